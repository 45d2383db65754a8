"""eg.from_torch beside PyTorch: values, names, first and second derivatives, transformations."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

import everygrad as eg
from everygrad.interop.torch.exchange import from_tensor
from everygrad.interop.torch.module import TorchModule
from tests.support.torch_models import CASES, Case, Recurrent, TiedTransformer, made

TOLERANCE = 1e-10
ids = [case.name for case in CASES]


def ours(value: Any) -> Any:
    return from_tensor(value, copy=True) if isinstance(value, torch.Tensor) else value


@lru_cache
def exported(index: int) -> Any:
    """A case, exported once: copies of a module share its programs."""
    model, args, kwargs = made(CASES[index])
    return model, eg.from_torch(model, args, kwargs), args, kwargs


def brought(case: Case) -> tuple[torch.nn.Module, TorchModule, Any, Any, dict[str, Any]]:
    """PyTorch's model and ours, PyTorch's arguments and ours, and the keywords."""
    model, module, args, kwargs = exported(CASES.index(case))
    return deepcopy(model), deepcopy(module), args, tuple(map(ours, args)), kwargs


def close(got: Any, want: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    expected = want.detach().numpy()
    found = got.detach().to("cpu").numpy()
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=tolerance)


def tensors(out: Any, kind: type) -> list[Any]:
    found = [v for v in pytree.tree_leaves(out) if isinstance(v, kind)]
    assert found
    return found


def loss_of(out: Any, kind: type) -> Any:
    """A number that depends on every floating-point output, and not linearly."""
    floats = [v for v in tensors(out, kind) if "float" in str(v.dtype)]
    return sum((v * v * v).sum() + v.sum() for v in floats)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_values_gradients_and_buffers_are_pytorchs(case: Case) -> None:
    model, module, args, given, kwargs = brought(case)
    want, got = model(*args, **kwargs), module(*given, **kwargs)
    for g, w in zip(tensors(got, eg.Tensor), tensors(want, torch.Tensor), strict=True):
        close(g, w)
    loss_of(want, torch.Tensor).backward()
    loss_of(got, eg.Tensor).backward()
    for (name, g), (same, w) in zip(
        module.named_parameters(), model.named_parameters(), strict=True
    ):
        assert name == same
        assert g.grad is not None
        assert w.grad is not None
        close(g.grad, w.grad)
    buffers = dict(model.named_buffers())
    assert [n for n, _ in module.named_buffers()] == list(buffers)
    assert all(np.allclose(b.numpy(), buffers[n].numpy()) for n, b in module.named_buffers())


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_names_and_state_are_pytorchs(case: Case) -> None:
    model, module, *_ = brought(case)
    state, own = model.state_dict(), module.state_dict()
    assert list(own) == list(state)
    assert all(np.array_equal(own[k].numpy(), v.numpy()) for k, v in state.items())
    module.load_state_dict({k: torch.zeros_like(v).numpy() for k, v in state.items()})
    assert all(not p.numpy().any() for p in module.state_dict().values())
    parts = [name for name, _ in model.named_modules()]
    assert [name for name, _ in module.named_modules()] == parts


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_second_derivatives_are_pytorchs(case: Case) -> None:
    model, module, args, given, kwargs = brought(case)
    theirs, own = list(model.parameters()), list(module.parameters())
    with sdpa_kernel(SDPBackend.MATH):  # PyTorch's fused attention has no second derivative
        loss = loss_of(model(*args, **kwargs), torch.Tensor)
        first = torch.autograd.grad(loss, theirs, create_graph=True)
        sum((g * g).sum() for g in first).backward()
    mine = eg.autograd.grad(loss_of(module(*given, **kwargs), eg.Tensor), own, create_graph=True)
    sum((g * g).sum() for g in mine).backward()
    for g, w in zip(own, theirs, strict=True):
        close(g.grad, w.grad, 1e-9)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_compiled_it_gives_the_same_and_trains(case: Case) -> None:
    _, module, _, given, kwargs = brought(case)
    plain = deepcopy(module)

    def step(model: TorchModule) -> Any:
        loss = loss_of(model(*given, **kwargs), eg.Tensor)
        grads = eg.autograd.grad(loss, list(model.parameters()))
        return loss.detach(), *grads

    compiled = eg.jit(lambda: step(module))
    for _ in range(3):
        for got, want in zip(compiled(), step(plain), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-9, atol=1e-9)
    for (_, got), (_, want) in zip(module.named_buffers(), plain.named_buffers(), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12)


def test_an_optimiser_trains_it_as_pytorchs_does() -> None:
    model, _, args, given, _ = brought(CASES[1])
    module = eg.from_torch(model, args)
    theirs = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimiser = eg.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    before = {k: v.clone() for k, v in model.state_dict().items()}

    @eg.jit
    def step(x: Any) -> Any:
        optimiser.zero_grad()
        loss = (module(x) ** 2).mean()
        loss.backward()
        optimiser.step()
        return loss

    got = [step(*given).item() for _ in range(5)]
    # the weights were shared, but training here writes nothing into PyTorch's memory
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    for want in got:
        theirs.zero_grad()
        loss = (model(*args) ** 2).mean()
        assert abs(loss.item() - want) < TOLERANCE
        loss.backward()
        theirs.step()
    for name, value in module.state_dict().items():
        close(value, model.state_dict()[name])


# --- transformations and devices -----------------------------------------------------------------


def test_vmap_and_per_example_gradients() -> None:
    model, module, args, (x,), _ = brought(CASES[0])
    np.testing.assert_allclose(
        eg.vmap(module)(x).detach().numpy(), model(*args).detach().numpy(), atol=TOLERANCE
    )
    each = eg.vmap(eg.grad(lambda row: (module(row) ** 2).sum()))(x)
    leaf = args[0].clone().requires_grad_()
    (model(leaf) ** 2).sum().backward()
    close(each, leaf.grad)


def test_hessian() -> None:
    model, module, args, (x,), _ = brought(CASES[0])
    got = eg.hessian(lambda row: (module(row) ** 2).sum())(x[0])
    want = torch.autograd.functional.hessian(lambda row: (model(row) ** 2).sum(), args[0][0])
    close(got, want)


@pytest.mark.parametrize("case", CASES[1:], ids=ids[1:])
def test_on_a_device(case: Case, device: str) -> None:
    """In float32 on every device that the run promises: values, gradients, buffers."""
    torch.manual_seed(0)
    model, args, kwargs = made(case)
    model = model.float()
    args = tuple(a.float() if a.is_floating_point() else a for a in args)
    module = eg.from_torch(model, args, kwargs).to(device)
    want = model(*args, **kwargs)
    got = module(*[ours(a).to(device) for a in args], **kwargs)
    assert all(t.device.startswith(device) for t in tensors(got, eg.Tensor))
    for g, w in zip(tensors(got, eg.Tensor), tensors(want, torch.Tensor), strict=True):
        close(g, w, 2e-5)
    loss_of(want, torch.Tensor).backward()
    loss_of(got, eg.Tensor).backward()
    for (name, g), (_, w) in zip(module.named_parameters(), model.named_parameters(), strict=True):
        assert g.grad is not None, name
        assert w.grad is not None, name
        close(g.grad, w.grad, 2e-4)


# --- structure -----------------------------------------------------------------------------------


def test_parts_are_reached_by_pytorchs_names() -> None:
    model, module, *_ = brought(CASES[2])
    assert isinstance(model, TiedTransformer)
    weight = module.layers.layers[1].linear1.weight
    assert isinstance(weight, eg.nn.Parameter)
    assert len(module.layers.layers) == 2
    assert [type(p).__name__ for p in module.layers.layers] == ["TorchPart"] * 2
    close(weight, model.layers.layers[1].linear1.weight)
    assert "Linear" in repr(module)


def test_tied_weights_stay_tied() -> None:
    model, module, *_ = brought(CASES[2])
    assert module.head.weight is module.words.weight
    assert {"head.weight", "words.weight"} <= set(module.state_dict())
    names = [name for name, _ in module.named_parameters()]
    assert "head.weight" not in names
    assert names == [n for n, _ in model.named_parameters()]


def test_weights_that_share_memory_without_being_one_parameter_are_tied_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = torch.nn.Parameter(model[0].weight.detach())
    module = eg.from_torch(model, torch.zeros(1, 3))
    assert module[0].weight is module[1].weight
    assert module[0].bias is not module[1].bias


def test_a_module_used_twice_is_one_module() -> None:
    layer = torch.nn.Linear(3, 3)
    module = eg.from_torch(torch.nn.Sequential(layer, torch.nn.ReLU(), layer), torch.zeros(1, 3))
    assert module[0] is module[2]
    assert len(list(module.parameters())) == 2


def test_nested_outputs_keep_their_containers() -> None:
    _, module, _, given, _ = brought(CASES[3])
    assert isinstance(brought(CASES[3])[0], Recurrent)
    for out in (module(*given), eg.jit(module)(*given)):
        assert list(out) == ["out", "states", "none"]
        assert out["none"] is None
        assert isinstance(out["states"], tuple)
        assert isinstance(out["states"][2], list)


def test_memory_is_shared_unless_a_copy_is_asked_for() -> None:
    layer = torch.nn.Linear(3, 2)
    shared, copied = (eg.from_torch(layer, torch.zeros(1, 3), copy=c) for c in (False, True))
    assert np.shares_memory(shared.weight.detach().numpy(), layer.weight.detach().numpy())
    assert not np.shares_memory(copied.weight.detach().numpy(), layer.weight.detach().numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.complex64])
def test_tensors_of_every_dtype_are_exchanged(dtype: torch.dtype) -> None:
    for value in (torch.randn(3, 4, dtype=dtype).t(), torch.ones((), dtype=dtype)):
        got = from_tensor(value)
        assert str(got.dtype) == str(dtype).removeprefix("torch.")
        wide = np.complex64 if dtype.is_complex else np.float32
        want = value.to(torch.complex64 if dtype.is_complex else torch.float32)
        assert np.array_equal(got.numpy().astype(wide), want.numpy())

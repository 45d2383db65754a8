"""Hooks, calls with other parameters, compiled modules, summaries, weights made of others."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.utils.prune

import everygrad as eg
from everygrad import nn
from everygrad.errors import ArgumentError, ShapeError
from tests.support.trained_beside_torch import copied, same

F = nn.functional


def two_layers(lib: Any) -> Any:
    return lib.Sequential(lib.Linear(4, 5), lib.Tanh(), lib.Linear(5, 2))


def pair() -> tuple[Any, Any, Any, Any]:
    """A model of ours and torch's with the same weights, and an input of both."""
    torch.manual_seed(0)
    reference = two_layers(torch.nn).double()
    model = copied(two_layers(nn), reference)
    array = np.random.default_rng(0).standard_normal((3, 4))
    return model, reference, eg.tensor(array), torch.from_numpy(array)


# --- hooks ---------------------------------------------------------------------------------------


def watched(model: Any, x: Any) -> tuple[list[Any], Any]:
    """What hooks of the middle layer and of the last see, and the gradient of the input."""
    seen: list[Any] = []
    model[1].register_full_backward_hook(lambda m, gi, go: seen.append(("plain", *gi, *go)))
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    model[0].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    model[0].register_forward_hook(lambda m, args, out: out * 0.5)
    x = x.requires_grad_()
    out = model(x)
    (out * out).sum().backward()
    return [t for group in seen for t in group[1:]], x.grad


def test_hooks_see_and_replace_what_torchs_do() -> None:
    model, reference, x, tx = pair()
    seen, grad = watched(model, x)
    expected, torch_grad = watched(reference, tx)
    assert len(seen) == len(expected) == 2
    for k, (a, b) in enumerate(zip(seen, expected, strict=True)):
        same(a, b, f"gradient {k} that a hook saw")
    same(grad, torch_grad, "gradient of the input")
    for (name, p), tp in zip(model.named_parameters(), reference.parameters(), strict=True):
        same(p.grad, tp.grad, name)


def test_hooks_of_several_inputs_and_results() -> None:
    class Both(nn.Module):
        def forward(self, x: Any, y: Any, scale: float) -> Any:
            return x * y * scale, x + y

    seen: list[Any] = []
    module = Both()

    def hook(m: Any, grad_input: Any, grad_output: Any) -> Any:
        seen.append((grad_input, grad_output))
        return (grad_input[0] * 10, None, None)

    handle = module.register_full_backward_hook(hook)
    x, y = (eg.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))
    product, total = module(x, y, 2.0)
    (product + 5 * total).sum().backward()
    assert [g is None for g in seen[0][0]] == [False, False, True]
    assert [g.tolist() for g in seen[0][1]] == [[1.0, 1.0], [5.0, 5.0]]
    assert x.grad.tolist() == [110.0, 130.0]
    assert y.grad.tolist() == [7.0, 9.0]
    handle.remove()
    module(x, y, 2.0)[0].sum().backward()
    assert len(seen) == 1


def test_hooks_with_kwargs_order_and_failures() -> None:
    class Scale(nn.Module):
        def forward(self, x: Any, by: float = 1.0) -> Any:
            if by < 0:
                raise ArgumentError("negative")
            return x * by

    module, called = Scale(), []
    module.register_forward_hook(lambda m, args, out: called.append("second"))
    module.register_forward_hook(lambda m, args, out: called.append("first"), prepend=True)
    module.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"by": kwargs["by"] * 2}), with_kwargs=True
    )
    assert module(eg.ones((1,)), by=3.0).tolist() == [6.0]
    assert called == ["first", "second"]
    module.register_forward_hook(
        lambda m, args, kwargs, out: called.append(out), with_kwargs=True, always_call=True
    )
    with pytest.raises(ArgumentError, match="negative"):
        module(eg.ones((1,)), by=-1.0)
    assert called[-1] is None


def test_hooks_without_gradients_of_inputs() -> None:
    layer, seen = nn.Linear(2, 1), []
    layer.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].shape)))
    layer(eg.ones((3, 2))).sum().backward()
    assert seen == [((None,), (3, 1))]
    with eg.no_grad():
        layer(eg.ones((3, 2)))
    assert len(seen) == 1


def test_backward_hooks_inside_jit() -> None:
    model, _, x, _ = pair()
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
    model(x).sum().backward()
    expected = [p.grad.tolist() for p in model.parameters()]

    @eg.jit
    def step(x: Any) -> Any:
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    step(x)
    step(x)
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert np.allclose(p.grad.numpy(), grad, atol=1e-12)


# --- modules as functions ------------------------------------------------------------------------


def test_functional_call_under_grad_equals_torch() -> None:
    model, reference, x, tx = pair()
    state = {name: p.detach() * 2 for name, p in model.named_parameters()}
    torch_state = {name: p.detach() * 2 for name, p in reference.named_parameters()}

    def loss(p: Any) -> Any:
        return (nn.functional_call(model, p, x) ** 2).sum()

    found = eg.grad(loss)(state)
    expected = torch.func.grad(lambda p: (torch.func.functional_call(reference, p, tx) ** 2).sum())(
        torch_state
    )
    for name, g in expected.items():
        same(found[name], g, name)
    compiled = eg.jit(lambda p: eg.grad(loss)(p))
    for _ in range(2):
        for name, g in expected.items():
            same(compiled(state)[name], g, name)
    assert compiled.count == 1


def test_ensembles_of_stacked_modules() -> None:
    models = [two_layers(nn) for _ in range(3)]
    parameters, buffers = nn.stack_module_state(models)
    assert buffers == {}
    assert all(p.requires_grad for p in parameters.values())
    x = eg.randn((5, 4))

    def run(p: Any, x: Any) -> Any:
        return nn.functional_call(models[0], p, x)

    out = eg.vmap(run, in_axes=(0, None))(parameters, x)
    for k, model in enumerate(models):
        assert eg.allclose(out[k], model(x), atol=1e-6)
    per_sample = eg.vmap(eg.grad(lambda p, row: run(p, row).sum()), in_axes=(None, 0))(
        dict(models[0].named_parameters()), x
    )
    assert per_sample["0.weight"].shape == (5, 5, 4)


def test_functional_call_leaves_the_module_as_it_was() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    before = tied[0].weight
    with pytest.raises(ShapeError):
        nn.functional_call(tied, {"0.weight": eg.ones((2, 2))}, eg.ones((1, 3)))
    assert tied[0].weight is tied[1].weight is before
    zero = {"0.weight": eg.zeros((3, 3))}
    assert eg.allclose(nn.functional_call(tied, zero, eg.ones((1, 3))), tied[1].bias)
    loose = nn.functional_call(tied, zero, eg.ones((1, 3)), tie_weights=False)
    assert not eg.allclose(loose, tied[1].bias)


# --- compiled modules ----------------------------------------------------------------------------


def test_a_compiled_module_is_the_module() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    compiled = eg.jit(model)
    assert isinstance(compiled, nn.Sequential)
    assert repr(compiled) == repr(model)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert list(compiled.state_dict()) == list(model.state_dict())
    compiled.eval()
    assert not model.training
    x = eg.randn((5, 4))
    assert eg.allclose(compiled(x), model(x), atol=1e-6)
    compiled.note = "mine"
    assert model.note == "mine"
    assert compiled[0] is model[0]
    parent = nn.ModuleDict({"inner": compiled})
    assert next(iter(parent.state_dict())) == "inner.0.weight"
    other = copy.deepcopy(compiled)
    other[0].weight = nn.Parameter(eg.zeros((3, 4)))
    assert not eg.allclose(other.eval()(x), compiled(x))
    assert "matmul" in str(compiled.lower(x)) or "linear" in str(compiled.lower(x))
    compiled.train()
    seen = model[1].num_batches_tracked.item()
    compiled(x)
    compiled(x)
    assert model[1].num_batches_tracked.item() == seen + 2


def test_summary_counts() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Flatten())
    x = eg.ones((2, 3, 5, 5))
    stats = model[1].running_mean.tolist()
    found = nn.summary(model, x)
    assert found.parameters == 3 * 8 * 9 + 8 + 16
    conv = next(row for row in found.rows if row.kind == "Conv2d")
    assert conv.flops >= 2 * 2 * 8 * 3 * 9 * 25
    assert conv.shapes == ((2, 8, 5, 5),)
    assert conv.nbytes == 2 * 8 * 25 * 4
    assert model.training
    assert model[1].running_mean.tolist() == stats
    assert not any(m._hooked for m in model.modules())
    assert nn.summary(eg.jit(model), x).flops == found.flops
    text = str(found)
    assert "Conv2d" in text
    assert f"{found.parameters:,}" in text


# --- lazy ----------------------------------------------------------------------------------------


def test_lazy_modules_become_plain() -> None:
    model = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d())
    assert list(model.state_dict()) == []
    model.to(dtype="float64")
    model(eg.ones((2, 3), dtype="float64"))
    assert type(model[0]) is nn.Linear
    assert type(model[2]) is nn.BatchNorm1d
    assert model[0].weight.dtype is eg.float64
    loaded = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyBatchNorm1d())
    loaded.load_state_dict(model.state_dict())
    assert loaded[0].in_features == 3


# --- weights made of others ----------------------------------------------------------------------


def test_parametrizations_compose_and_come_off() -> None:
    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).mT

    class Double(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

        def right_inverse(self, x: Any) -> Any:
            return x / 2

    register = nn.utils.parametrize.register_parametrization
    layer = nn.Linear(3, 3)
    start = layer.weight.detach()
    register(layer, "weight", Double())
    assert eg.allclose(layer.weight, start)
    layer.weight = start * 3
    assert eg.allclose(layer.parametrizations.weight.original, start * 1.5)
    register(layer, "weight", Symmetric())
    assert eg.allclose(layer.weight, layer.weight.mT)
    with nn.utils.parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight
    layer(eg.ones((1, 3))).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
    again = copy.deepcopy(layer)
    assert eg.allclose(again.weight, layer.weight)
    nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    assert isinstance(layer.weight, nn.Parameter)
    assert nn.utils.parametrize.is_parametrized(again, "weight")


PRUNED: dict[str, Callable[[Any, Any], Any]] = {
    "l1": lambda prune, m: prune.l1_unstructured(m, "weight", 0.3),
    "l1 twice": lambda prune, m: prune.l1_unstructured(
        prune.l1_unstructured(m, "weight", 5), "weight", 0.5
    ),
    "ln": lambda prune, m: prune.ln_structured(m, "weight", 2, n=2, dim=0),
    "ln twice": lambda prune, m: prune.ln_structured(
        prune.ln_structured(m, "weight", 1, n=1, dim=1), "weight", 0.5, n=2, dim=0
    ),
}


@pytest.mark.parametrize("name", PRUNED)
def test_prunes_what_torch_prunes(name: str) -> None:
    torch.manual_seed(0)
    reference = torch.nn.Linear(6, 5).double()
    layer = copied(nn.Linear(6, 5), reference)
    PRUNED[name](nn.utils.prune, layer)
    PRUNED[name](torch.nn.utils.prune, reference)
    same(layer.weight_mask, reference.weight_mask, "mask")
    same(layer.weight, reference.weight, "weight")
    assert nn.utils.prune.is_pruned(layer)
    nn.utils.prune.remove(layer, "weight")
    torch.nn.utils.prune.remove(reference, "weight")
    assert list(layer.state_dict()) == sorted(layer.state_dict(), key=["bias", "weight"].index)
    same(layer.weight, reference.weight, "removed")


def test_global_pruning_equals_torch() -> None:
    model, reference, _, _ = pair()
    for lib, m in ((nn, model), (torch.nn, reference)):
        prune = lib.utils.prune
        both = [(m[0], "weight"), (m[2], "weight")]
        prune.global_unstructured(both, prune.L1Unstructured, amount=9)
    for k in (0, 2):
        same(model[k].weight, reference[k].weight, str(k))


def test_fused_layers_do_what_both_did() -> None:
    rng = np.random.default_rng(0)
    for layer, norm, shape, fuse in (
        (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), (2, 3, 6, 6), nn.utils.fuse_conv_bn_eval),
        (nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), (5, 3), nn.utils.fuse_linear_bn_eval),
    ):
        layer.double()
        norm.double()
        x = eg.tensor(rng.standard_normal(shape))
        norm(layer(x))
        layer.eval()
        norm.eval()
        assert eg.allclose(fuse(layer, norm)(x), norm(layer(x)), atol=1e-12)


def test_vectors_and_norms_of_parameters() -> None:
    model, reference, x, tx = pair()
    vector = nn.utils.parameters_to_vector(model.parameters())
    same(vector, torch.nn.utils.parameters_to_vector(reference.parameters()), "vector")
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    assert eg.allclose(nn.utils.parameters_to_vector(model.parameters()), vector * 2)
    nn.utils.vector_to_parameters(vector, model.parameters())
    model(x).sum().backward()
    reference(tx).sum().backward()
    for kind in (1.0, 2.0, float("inf")):
        grads = [p.grad for p in model.parameters()]
        total = nn.utils.get_total_norm(grads, kind)
        torch_grads = [p.grad for p in reference.parameters()]
        same(total, torch.nn.utils.get_total_norm(torch_grads, kind), "norm")
    nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, nn.utils.get_total_norm(grads))
    torch.nn.utils.clip_grads_with_norm_(
        reference.parameters(), 0.1, torch.nn.utils.get_total_norm(torch_grads)
    )
    for (name, p), tp in zip(model.named_parameters(), reference.parameters(), strict=True):
        same(p.grad, tp.grad, name)


# --- starting values, and what is drawn ----------------------------------------------------------


def test_initialisers() -> None:
    eg.manual_seed(0)
    square = nn.init.orthogonal_(eg.empty((6, 4), dtype="float64"), gain=2.0)
    assert eg.allclose(square.mT @ square, 4 * eg.eye(4, dtype="float64"), atol=1e-12)
    sparse = nn.init.sparse_(eg.empty((10, 7)), 0.25, std=1.0)
    assert (sparse == 0).sum(axis=0).tolist() == [3] * 7
    drawn = nn.init.trunc_normal_(eg.empty((20_000,)), mean=1.0, std=2.0, a=-1.0, b=4.0).numpy()
    assert -1.0 <= drawn.min() < -0.9
    assert 3.9 < drawn.max() <= 4.0
    for groups in (1, 2):
        weight = torch.empty(4, 2, 3, 3, dtype=torch.float64)
        torch.nn.init.dirac_(weight, groups)
        same(nn.init.dirac_(eg.empty((4, 2, 3, 3), dtype="float64"), groups), weight, "dirac")


def test_channel_dropout_drops_channels() -> None:
    eg.manual_seed(0)
    x = eg.ones((50, 20, 3, 3))
    out = F.dropout2d(x, 0.25).numpy()
    assert set(np.unique(out)) == {0.0, np.float32(1 / 0.75)}
    means = out.reshape(1000, 9)
    assert np.all(means == means[:, :1])
    assert 0.18 < (means[:, 0] == 0).mean() < 0.32


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    eg.manual_seed(0)
    x = eg.randn((200, 500))
    for out in (F.alpha_dropout(x, 0.3, training=True), F.feature_alpha_dropout(x, 0.3, True)):
        values = out.numpy()
        assert abs(values.mean()) < 0.02
        assert abs(values.var() - 1) < 0.03
        _, counts = np.unique(values, return_counts=True)
        assert 0.27 < counts.max() / values.size < 0.33  # all that were dropped are alike


def test_rrelu_draws_slopes() -> None:
    eg.manual_seed(0)
    out = F.rrelu(-eg.ones((1000,)), 0.2, 0.4, training=True).numpy()
    assert np.all((out <= -0.2) & (out >= -0.4))
    assert out.std() > 0.04

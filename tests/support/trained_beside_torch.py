"""Runs a module of ours and PyTorch's on the same weights and data: forward, backward, SGD."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import everygrad as eg
from everygrad import nn, optim

STEPS = 20
RATE = 0.05
TOLERANCE = 1e-10


class Case(NamedTuple):
    """One module: made from either library's `nn`, and the arrays it is called with.

    `call` is given (module, library, arrays as tensors) where calling it is not all.
    """

    make: Callable[[Any], Any]
    inputs: Callable[[np.random.Generator], list[Any]]
    call: Callable[[Any, Any, list[Any]], Any] = lambda module, lib, xs: module(*xs)
    evaluate: bool = False  # in evaluation mode: it draws random numbers in training
    tolerance: float = TOLERANCE


def real(*shape: int) -> Callable[[np.random.Generator], list[Any]]:
    """One array of normal numbers."""
    return lambda rng: [rng.standard_normal(shape)]


def ours(t: Any) -> Any:
    return eg.tensor(t.detach().numpy())


def distance(a: eg.Tensor, b: torch.Tensor) -> float:
    """The largest difference, beyond 1 relative to the value."""
    x, y = a.detach().numpy(), b.detach().numpy()
    assert x.shape == y.shape, (x.shape, y.shape)
    assert x.dtype == y.dtype, (x.dtype, y.dtype)
    off = np.abs(x.astype(np.float64) - y) / np.maximum(1, np.abs(y))
    return float(np.max(np.where(x == y, 0, off), initial=0.0))


def same(a: eg.Tensor, b: torch.Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    off = distance(a, b)
    assert off <= tolerance, f"{what}: {off}"  # a NaN fails too


def copied(model: nn.Module, reference: torch.nn.Module) -> nn.Module:
    """The model with the reference's weights; their names and shapes must be the same."""
    model.to(dtype="float64")
    state = reference.state_dict()
    assert list(model.state_dict()) == list(state)
    model.load_state_dict({k: ours(v) for k, v in state.items()})
    return model


def flat(out: Any) -> list[Any]:
    """The floating-point tensors of a result, in order."""
    if isinstance(out, eg.Tensor | torch.Tensor):
        floating = out.dtype.is_float if isinstance(out, eg.Tensor) else out.is_floating_point()
        return [out] if floating else []
    if isinstance(out, tuple | list):
        return [t for part in out for t in flat(part)]
    return []


def tensors(arrays: list[Any], lib: Any) -> list[Any]:
    """Arrays as tensors of a library, floating-point ones with gradients."""
    made: list[Any] = []
    for a in arrays:
        if not isinstance(a, np.ndarray):
            made.append(a)
            continue
        t = eg.tensor(a) if lib is nn else torch.from_numpy(a.copy())
        made.append(t.requires_grad_() if a.dtype == np.float64 else t)
    return made


def train_beside_torch(case: Case, steps: int = STEPS, jit: bool = False) -> None:
    """Forward, backward and `steps` steps of SGD, all of them alike."""
    rng = np.random.default_rng(0)
    torch.set_num_threads(1)  # sizes are small: its threads would wait for each other
    torch.manual_seed(0)
    reference = case.make(torch.nn).double()
    with torch.no_grad():  # away from ones and zeros, which hide mistakes
        for p in reference.parameters():
            p.add_(0.1 * torch.randn_like(p))
    model = copied(case.make(nn), reference)
    reference.train(not case.evaluate)
    model.train(not case.evaluate)
    compiled = eg.jit(lambda *xs: case.call(model, nn, list(xs)))
    weights: list[Any] = []
    checked = 0
    trained = list(model.parameters())
    update = optim.SGD(trained, lr=RATE) if trained else None
    other = torch.optim.SGD(reference.parameters(), lr=RATE) if trained else None
    for step in range(steps):
        arrays = case.inputs(rng)
        xs, txs = tensors(arrays, nn), tensors(arrays, torch.nn)
        out = flat(compiled(*xs) if jit else case.call(model, nn, xs))
        expected = flat(case.call(reference, torch.nn, txs))
        assert len(out) == len(expected) > 0
        for k, (a, b) in enumerate(zip(out, expected, strict=True)):
            same(a, b, f"result {k} of step {step}")
            checked += 1
        if not weights:
            # of one size however large the result is: a step must not throw the weights far away
            weights = [torch.randn(t.shape).double() / max(1, t.numel()) ** 0.5 for t in expected]
        loss = sum((a * ours(w)).sum() for a, w in zip(out, weights, strict=True))
        torch_loss = sum((a * w).sum() for a, w in zip(expected, weights, strict=True))
        if not torch_loss.requires_grad:
            continue
        loss.backward()
        torch_loss.backward()
        for k, (x, tx) in enumerate(zip(xs, txs, strict=True)):
            if isinstance(tx, torch.Tensor) and tx.grad is not None:
                same(x.grad, tx.grad, f"gradient of input {k} in step {step}", case.tolerance)
        named = dict(reference.named_parameters())
        for key, p in model.named_parameters():
            if named[key].grad is None:
                assert p.grad is None or not p.grad.numpy().any(), key
            else:
                same(p.grad, named[key].grad, f"gradient of {key} in step {step}")
        if update is not None and other is not None:
            update.step()
            update.zero_grad()
            other.step()
            other.zero_grad()
    for key, value in reference.state_dict().items():
        same(model.state_dict()[key], value, f"{key} after {steps} steps")
    assert checked >= steps

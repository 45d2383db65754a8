"""What a kernel or a derivative raises is seen once: it is never a sign to compute another way."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cpu import lazy_native
from everygrad.dispatch import F32, F64, binary, unary
from everygrad.errors import DtypeError, EverygradError, GradientError, ShapeError
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.partials import fast_vjp
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import (
    BY_FAMILY,
    call,
    function_of,
    map_sample,
    native_threshold,
    samples_of,
    to_tensor,
)

CPU: Any = base.get("cpu")
ERRORS = (TypeError, AttributeError, ValueError, KeyError, IndexError)
DTYPES = {"float32": F32, "float64": F64}


def record(name: str) -> Elementwise:
    op = REGISTRY[name]
    assert isinstance(op, Elementwise)
    return op


# ops whose functions `unary` and `binary` made
MADE = [
    name
    for name in BY_FAMILY["elementwise"]
    if len(REGISTRY[name].inputs) <= 2 and hasattr(REGISTRY[name].function, "__signature__")
]
FLOATS = [name for name in MADE if F32 in record(name).floats]
INTEGERS_ONLY = [name for name in MADE if F32 not in record(name).floats]
# those whose derivatives have a fast path
DERIVATIVES = [name for name in FLOATS if "vjp" in vars(REGISTRY[name])]
# samples of `to` stay where they are
KERNELS = [name for name in BY_FAMILY["kernel"] if name in CPU.kernels and name != "to"]


class Broken:
    """A kernel with a bug. It counts its calls."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        raise self.error("a bug inside a kernel")


def small(count: int, dtype: str) -> list[eg.Tensor]:
    return [eg.tensor(np.full((2, 3), 0.5, dtype)) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", FLOATS)
def test_the_fast_path_shows_what_a_kernel_raises(
    name: str, error: type[Exception], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, broken = record(name), Broken(error)
    monkeypatch.setattr(op, "numpy_function", lambda dtype: broken)
    function: Any = unary(op) if len(op.inputs) == 1 else binary(op)
    for calls in (1, 2):  # the first call finds the kernel, others have it
        with pytest.raises(error, match="a bug inside a kernel"):
            function(*small(len(op.inputs), dtype))
        assert broken.calls == calls


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_backward_shows_what_a_derivative_raises(
    name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    op = record(name)
    inputs = small(len(op.inputs), "float32")
    for x, rule in zip(inputs, op.rules, strict=True):
        x.requires_grad_(rule is not None)
    # the way in Python: native code that has taken over is `test_fast_calls`' to test
    monkeypatch.setitem(vars(op), "vjp", fast_vjp(op))
    op.function(*inputs).sum().backward()  # compiles the derivatives
    compiled = [part for part in op.partials if part.fused is not None]
    broken = Broken(error)
    for part in compiled:
        monkeypatch.setattr(part, "fast32", broken)
    out = op.function(*inputs).sum()
    if not compiled:  # the gradient itself
        out.backward()
        assert not broken.calls
        return
    with pytest.raises(GradientError, match="a bug inside a kernel") as raised:
        out.backward()
    assert isinstance(raised.value.__cause__, error)
    assert broken.calls == 1


def test_some_derivatives_are_compiled() -> None:
    assert {"multiply", "tanh", "divide", "exp"} <= {*DERIVATIVES}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_of_the_backend_runs_once(
    name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    op, broken = REGISTRY[name], Broken(error)
    monkeypatch.setitem(CPU.kernels, name, broken)
    seen = []
    for sample in samples_of(op, "cpu"):
        broken.calls, raised = 0, False
        try:
            call(function_of(op), map_sample(sample, to_tensor("cpu")))
        except (error, EverygradError):  # one of ours names the function and an argument
            raised = True
        seen.append((broken.calls, raised))
    assert (1, True) in seen
    assert {*seen} <= {(1, True), (0, False)}  # not every sample needs the kernel


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", ["add", "multiply", "exp", "tanh"])
def test_a_compiled_kernel_runs_once(
    name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    op, broken = record(name), Broken(error)
    monkeypatch.setattr(lazy_native, "run", broken)
    monkeypatch.setattr(lazy_native, "flat", lambda program: broken)
    monkeypatch.setattr(CPU, "_flat", {})
    apart = [x[:, ::2] for x in small(len(op.inputs), "float32")]
    for inputs, calls in ((small(len(op.inputs), "float32"), 1), (apart, 2)):
        with native_threshold(0), pytest.raises(error, match="a bug inside a kernel"):
            op.function(*inputs)
        assert broken.calls == calls


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", INTEGERS_ONLY)
def test_floats_are_refused_by_name(name: str, dtype: str) -> None:
    op = record(name)
    with pytest.raises(DtypeError, match=f"{name}: does not take {dtype}"):
        op.function(*small(len(op.inputs), dtype))


@pytest.mark.parametrize("name", [n for n in FLOATS if len(REGISTRY[n].inputs) == 2])
def test_shapes_that_do_not_broadcast_are_named(name: str) -> None:
    op = record(name)
    with pytest.raises(ShapeError, match=rf"{name}: cannot broadcast \(2,\) with \(3,\)"):
        op.function(eg.ones((2,)), eg.ones((3,)))


def test_warnings_that_are_errors_change_nothing() -> None:
    x, y = eg.tensor([1.0, -1.0], requires_grad=True), eg.tensor([0.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = x / y
        out.sum().backward()
    assert out.tolist() == [np.inf, -np.inf]
    assert x.grad is not None
    assert x.grad.tolist() == [np.inf, np.inf]

"""What NumPy, and code written for it, may do with tensors: its functions, dtypes, numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, DtypeError, GradientError, ShapeError
from everygrad.ops.python import ufuncs
from everygrad.ops.record.spec import REGISTRY

VALUES = np.array([0.25, 0.5, 0.75])


def _floating() -> list[str]:
    """NumPy's functions of one or two floating numbers that have a counterpart."""
    found = {f.__name__: f for f in vars(np).values() if isinstance(f, np.ufunc)}
    return sorted(n for n, f in found.items() if _takes_floats(f) and ufuncs._counterpart(f))


def _takes_floats(f: np.ufunc) -> bool:
    inputs = {types.partition("->")[0] for types in f.types}
    logical = f.__name__.startswith("logical")  # ours take bool alone
    return f.nout == 1 and not f.signature and bool({"d", "dd"} & inputs) and not logical


@pytest.mark.parametrize("name", _floating())
def test_functions_of_numpy_are_ours(name: str) -> None:
    """The same values, as a tensor; so that no name is paired with another function's."""
    function = getattr(np, name)
    # one operand within every function's domain, one beside it
    arrays = [VALUES + (1 if name == "arccosh" else 0), VALUES[::-1].copy()][: function.nin]
    got = function(*[eg.tensor(a) for a in arrays])
    assert type(got) is eg.Tensor
    np.testing.assert_allclose(got.numpy(), function(*arrays), rtol=1e-12)


def test_most_functions_of_numpy_are_there() -> None:
    assert len(_floating()) >= 55
    assert all(REGISTRY[name].function is getattr(eg, name) for name in ufuncs._OURS.values())


def test_derivatives_go_through_functions_of_numpy() -> None:
    x = eg.tensor(VALUES, requires_grad=True)
    (np.exp(x) * np.float64(2) + VALUES * x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(VALUES) + VALUES)


@pytest.mark.parametrize(
    "op", [operator.add, operator.sub, operator.truediv, operator.pow, operator.lt, operator.eq]
)
def test_operators_of_arrays_and_numbers_give_tensors(op: Callable[..., Any]) -> None:
    x = eg.tensor(VALUES[::-1].copy())
    for left in (VALUES, np.float64(0.5)):
        got = op(left, x)
        assert type(got) is eg.Tensor
        np.testing.assert_allclose(got.numpy(), op(left, x.numpy()))


def test_a_number_of_numpys_does_not_widen() -> None:
    assert (np.float64(2) * eg.ones(2)).dtype is eg.float32


def test_an_array_may_take_tensors_up() -> None:
    """What is written into a NumPy array is NumPy's; a tensor's values never change."""
    total = np.ones(3)
    total += eg.tensor(VALUES)
    np.testing.assert_array_equal(total, 1 + VALUES)
    x = eg.tensor(VALUES)
    with pytest.raises(ArgumentError, match="add: values of tensors never change; leave out="):
        np.add(VALUES, 1, out=x)
    with pytest.raises(GradientError, match="use detach"):
        total += x.requires_grad_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: np.frexp(x), "frexp: tensors have no such function; call it on the values"),
        (lambda x: np.add.reduce(x), r"add\.reduce: tensors have no such function"),
        (lambda x: np.add(x, 1, where=VALUES > 0.3), "add with where: tensors have no such"),
    ],
)
def test_what_is_not_ours_is_refused_by_name(call: Callable[..., Any], message: str) -> None:
    with pytest.raises(DtypeError, match=message):
        call(eg.tensor(VALUES))


def test_others_are_asked_too() -> None:
    with pytest.raises(TypeError, match="returned NotImplemented"):
        np.add([1.0, 2.0, 3.0], eg.tensor(VALUES))


def test_numpy_takes_our_dtypes() -> None:
    for dtype in (eg.bool, eg.int32, eg.bfloat16, eg.float64, eg.complex64):
        assert eg.asarray(np.zeros(2, dtype=dtype)).dtype is dtype
    assert np.dtype("float32") == eg.float32 != np.dtype("float64")


def test_ends_of_linspace_may_be_tensors() -> None:
    stop = eg.tensor(3.0, dtype="float64", requires_grad=True)
    out = eg.linspace(1, stop, 5, dtype="float64")
    np.testing.assert_allclose(out.detach().numpy(), np.linspace(1, 3, 5))
    assert eg.gradcheck(lambda t: eg.linspace(-t, t, 4, endpoint=False, dtype="float64"), (stop,))
    compiled = eg.jit(lambda t: eg.linspace(t, 2, 3))
    assert compiled(eg.tensor(4.0)).tolist() == [4.0, 3.0, 2.0]
    assert eg.linspace(eg.tensor(0), 6, 4, dtype="int32").tolist() == [0, 2, 4, 6]
    assert eg.linspace(eg.tensor(1j), 0, 2).dtype is eg.complex64
    with pytest.raises(ShapeError, match=r"linspace: ends are numbers or 0-d tensors, got \[\(2,"):
        eg.linspace(eg.ones(2), 1, 3)
    with pytest.raises(DtypeError, match="linspace: complex ends do not fit float32"):
        eg.linspace(eg.tensor(1j), 0, 2, dtype="float32")


def test_ends_of_arange_may_be_tensors() -> None:
    assert eg.arange(eg.tensor(2), np.int64(8), eg.tensor(3)).tolist() == [2, 5]
    assert eg.arange(np.int32(3)).dtype is eg.int64
    with pytest.raises(GradientError, match="arange: how many elements there are has no deriv"):
        eg.arange(eg.tensor(2.0, requires_grad=True))


@pytest.mark.parametrize(
    ("own", "other"), [("float32", "float64"), ("int32", "int64"), ("complex64", "complex128")]
)
def test_what_is_assigned_takes_the_dtype_of_its_kind(own: str, other: str) -> None:
    """As in NumPy and PyTorch: x += y and x[i] = y leave x its dtype."""
    x, y = eg.ones(2, dtype=own), eg.ones(2, dtype=other)
    x += y
    x[0] = y[0] * 5
    assert x.tolist() == [5, 2]
    assert x.dtype is eg.ones(0, dtype=own).dtype
    with pytest.raises(DtypeError, match="does not fit into x uint8"):
        eg.ones(2, dtype="uint8").__iadd__(y.real() if "complex" in other else y)


def test_derivatives_go_through_what_is_rounded() -> None:
    y = eg.tensor([1.0, 2.0], dtype="float64", requires_grad=True)
    x = eg.zeros(2, dtype="float32")
    x += y * 3
    x[0] = y[1] * 2
    x.sum().backward()
    assert y.grad is not None
    assert y.grad.dtype is eg.float64
    assert y.grad.tolist() == [0.0, 5.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_masks_are_not_dropped(dtype: str) -> None:
    x, masked = eg.tensor([1.0, 2.0]), np.ma.array([1.0, 2.0], mask=[0, 1], dtype=dtype)
    calls = [lambda: x * masked, lambda: eg.exp(masked), lambda: eg.tensor(masked),
             lambda: eg.asarray(masked), lambda: eg.concat([x, masked])]  # fmt: skip
    for call in calls:
        with pytest.raises(ArgumentError, match="filled"):
            call()

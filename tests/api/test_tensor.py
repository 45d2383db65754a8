"""The Tensor itself: dtypes, creation, what it prints, how values get in and out, assignment."""

from __future__ import annotations

import operator
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import dtypes
from everygrad.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    GradientError,
    ShapeError,
    TraceError,
    ViewError,
)
from tests.support.checks import close, values

pytestmark = pytest.mark.needs("float64")

ALL = dtypes.ALL
SIGNED = [d for d in ALL if d.kind == "int"]
UNSIGNED = [d for d in ALL if d.kind == "uint"]
# PyTorch promotes these with everything else
TORCH = {d: getattr(torch, d.name) for d in ALL if d.name not in ("uint16", "uint32", "uint64")}
NAN = float("nan")

# --- promotion -----------------------------------------------------------------------------------


def test_integers_promote_as_the_array_api_says() -> None:
    for a in SIGNED + UNSIGNED:
        for b in SIGNED + UNSIGNED:
            if {a, b} & {dtypes.uint64} and "int" in (a.kind, b.kind):
                with pytest.raises(DtypeError, match="no dtype holds both"):
                    dtypes.promote(a, b)
                continue
            assert dtypes.promote(a, b).np == np.result_type(a.np, b.np)
            x, y = eg.ones((2,), a), eg.ones((2,), b)
            assert (x + y).dtype is dtypes.promote(a, b)


def test_mixed_kinds_promote_as_pytorch_does() -> None:
    for a in TORCH:
        for b in TORCH:
            want = torch.promote_types(TORCH[a], TORCH[b])
            assert TORCH[dtypes.promote(a, b)] is want, f"{a}, {b}"
            if a.kind != "bool" or b.kind != "bool":
                assert (eg.ones((2,), a) + eg.ones((2,), b)).dtype is dtypes.promote(a, b)


@pytest.mark.parametrize("number", [True, 3, 2.5, 1j])
def test_python_numbers_never_widen(number: Any) -> None:
    # True and a bool are refused: there is no arithmetic of bools
    for d in [d for d in TORCH if d.kind != "bool" or number is not True]:
        half = d in (dtypes.float16, dtypes.bfloat16)
        want = torch.complex64 if half and number == 1j else torch.result_type(
            torch.ones(2, dtype=TORCH[d]), number
        )  # fmt: skip
        for out in (eg.ones((2,), d) * number, number * eg.ones((2,), d)):
            assert TORCH[out.dtype] is want, f"{d} * {number}"


def test_numpy_scalars_are_numbers_and_numpy_arrays_are_not() -> None:
    x = eg.ones((2,), "float32")
    assert (x * np.float64(2)).dtype is eg.float32
    assert (np.float64(2) * x).dtype is eg.float32
    assert (x * np.ones(2)).dtype is eg.float64
    assert (np.ones(2) * x).dtype is eg.float64


def test_dtype_names() -> None:
    for spec in ("int8", np.int8, np.dtype("int8"), eg.int8):
        assert eg.zeros((1,), spec).dtype is eg.int8
    assert eg.zeros((1,), float).dtype is eg.float64
    assert eg.zeros((1,), int).dtype is eg.int64
    assert eg.zeros((1,), bool).dtype is eg.bool
    assert eg.zeros((1,), complex).dtype is eg.complex128
    assert repr(eg.bfloat16) == "everygrad.bfloat16"
    assert str(eg.bfloat16) == "bfloat16"
    with pytest.raises(DtypeError, match="'float99' is not a dtype everygrad has; it has bool"):
        eg.zeros((1,), "float99")


# --- creation ------------------------------------------------------------------------------------


def test_default_dtypes() -> None:
    for data, want in (
        (1, "int64"), (1.0, "float32"), (True, "bool"), (1j, "complex64"), ([1, 2.0], "float32"),
        ([], "float32"), (np.float64(1), "float64"), (np.arange(2, dtype=np.int16), "int16"),
        (np.zeros(2, ml_dtypes.bfloat16), "bfloat16"), (2**63, "uint64"),
    ):  # fmt: skip
        assert str(eg.tensor(data).dtype) == want, data


@pytest.mark.parametrize("dtype", [d.name for d in ALL])
def test_creation_functions(dtype: str, device: str) -> None:
    d = dtypes.as_dtype(dtype)
    ours = {"dtype": dtype, "device": device}
    for shape in ((), (3,), (0, 2), (2, 1)):
        for got, want in (
            (eg.zeros(shape, **ours), np.zeros(shape, d.np)),
            (eg.ones(shape, **ours), np.ones(shape, d.np)),
            (eg.full(shape, 3, **ours), np.full(shape, 3, d.np)),
            (eg.empty(shape, **ours), np.zeros(shape, d.np)),
        ):
            close(got, want, 0)
            assert got.dtype is d
            assert got.device == device
            for like in (
                eg.zeros_like(got),
                eg.ones_like(got),
                eg.full_like(got, 2),
                eg.empty_like(got),
            ):
                assert (like.shape, like.dtype, like.device) == (shape, d, device)
    close(eg.eye(2, 3, k=1, **ours), np.eye(2, 3, k=1), 0)
    if d.kind != "bool":
        close(eg.arange(5, **ours), np.arange(5), 0)
        close(eg.arange(2, 9, 3, **ours), np.arange(2, 9, 3), 0)
    if d.is_float:
        close(eg.linspace(0.0, 1.0, 5, **ours), np.linspace(0, 1, 5), 0)


def test_arange_and_linspace() -> None:
    for args in ((5,), (2, 5), (5, 2), (5, 0, -2), (0, 1, 0.25), (0, 1, 0.3), (1, 0, -0.25), (0,)):
        close(eg.arange(*args), np.arange(*args), 1e-6)
    assert eg.arange(3).dtype is eg.int64
    assert eg.arange(3.0).dtype is eg.float32
    close(eg.linspace(0, 1, 4, endpoint=False), np.linspace(0, 1, 4, endpoint=False), 1e-7)
    for indexing in ("xy", "ij"):
        made = eg.meshgrid(eg.arange(2), eg.arange(3), eg.arange(4), indexing=indexing)
        want = np.meshgrid(np.arange(2), np.arange(3), np.arange(4), indexing=indexing)
        for m, w in zip(made, want, strict=True):
            close(m, w, 0)


def test_tensor_of_anything() -> None:
    a = np.arange(6.0).reshape(2, 3)
    assert eg.tensor([eg.tensor([1.0]), [2.0]]).tolist() == [[1.0], [2.0]]
    close(eg.tensor(a.T), a.T, 0)
    close(eg.tensor(a.astype(">f8")), a, 0)
    close(eg.tensor(torch.tensor(a)), a, 0)
    x = eg.tensor(a)
    a[0, 0] = 9  # the tensor is a copy
    assert x[0, 0].item() == 0
    plain = eg.asarray(a.view(np.matrix))
    assert type(plain.numpy()) is np.ndarray


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: eg.tensor([[1], [1, 2]]), ShapeError, "nested lists are ragged"),
        (lambda: eg.tensor("abc"), DtypeError, "cannot make a tensor of str 'abc'"),
        (lambda: eg.tensor([None, 1]), DtypeError, "cannot make a tensor of list"),
        (lambda: eg.tensor([1j], "float32"), DtypeError, "complex data does not fit float32"),
        (lambda: eg.tensor(np.ones(2, np.longdouble)), DtypeError, "is not a dtype everygrad has"),
        (lambda: eg.tensor([1], requires_grad=True), DtypeError, "only floating and complex"),
        (lambda: eg.zeros((-1,)), ShapeError, r"sizes must not be negative, got \(-1,\)"),
        (lambda: eg.zeros((2.0,)), ArgumentError, "every size must be an integer, got 2.0"),
        (lambda: eg.zeros((True,)), ArgumentError, "every size must be an integer, got True"),
        (lambda: eg.zeros((1 << 50,)), ShapeError, "more memory than any device has"),
        (lambda: eg.zeros((2,), device="tpu"), DeviceError, "device 'tpu' is not available"),
        (lambda: eg.zeros((2,), device="cuda:x"), DeviceError, "GPUs are named by their number"),
        (lambda: eg.ones((1,)).astype(None), DtypeError, "None is not a dtype everygrad has"),
        (lambda: eg.arange(1, 2, 0), ArgumentError, "arange: step must not be 0"),
        (lambda: eg.linspace(0, 1, -1), ArgumentError, "num must not be negative"),
        (lambda: eg.meshgrid(eg.ones((2, 2))), ShapeError, "meshgrid: takes vectors"),
        (lambda: eg.from_dlpack([1]), DtypeError, "from_dlpack: list cannot be shared"),
        (lambda: eg.asarray([1], copy=False), ArgumentError, "list cannot be shared"),
        (
            lambda: eg.ones((2,)).item(),
            ArgumentError,
            r"item: needs exactly one.*has 2.*tolist\(\)",
        ),
        (lambda: bool(eg.ones((2,))), ArgumentError, r"any\(\), all\(\) or sum\(\)"),
        (lambda: float(eg.ones((0,))), ArgumentError, r"float\(\): needs exactly one element"),
        (lambda: operator.index(eg.tensor(1.0)), DtypeError, "0-d integer tensor, got float32"),
        (lambda: len(eg.tensor(1.0)), ShapeError, "a 0-d tensor has no length"),
        (lambda: list(eg.tensor(1.0)), ShapeError, r"cannot be iterated; use item\(\)"),
        (lambda: eg.ones((2,)) + "a", DtypeError, "add: takes tensors and numbers, got str 'a'"),
        (lambda: eg.ones((2,)) + eg.ones((2,), device="null"), DeviceError, r"cpu, null.*to\(\)"),
        (lambda: eg.ones((2,), device="null").numpy(), TraceError, "null device has no values"),
        (lambda: eg.ones((2,), device="null").to("cpu"), TraceError, "null device has no values"),
        (lambda: eg.ones((1,), requires_grad=True).numpy(), GradientError, r"use detach\(\).numpy"),
        (lambda: np.asarray(eg.ones((1,), requires_grad=True)), GradientError, r"use detach\(\)"),
    ],
)
def test_refusals(make: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make()


# --- what it prints ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: eg.tensor(1.0), "tensor(1.)"),
        (lambda: eg.tensor(3), "tensor(3)"),
        (lambda: eg.tensor([True, False]), "tensor([ True, False])"),
        (lambda: eg.tensor([1.0], "float64"), "tensor([1.], dtype=float64)"),
        (lambda: eg.tensor([1, -2], "int8"), "tensor([ 1, -2], dtype=int8)"),
        (lambda: eg.tensor([1 + 2j]), "tensor([1.+2.j], dtype=complex64)"),
        (lambda: eg.tensor([1.0, 3.14159], "bfloat16"), "tensor([1.    , 3.1406], dtype=bfloat16)"),
        (lambda: eg.tensor([NAN, np.inf]), "tensor([nan, inf])"),
        (lambda: eg.tensor([]), "tensor([], shape=[0], dtype=float32)"),
        (lambda: eg.zeros((2, 0)), "tensor([], shape=[2, 0], dtype=float32)"),
        (lambda: eg.tensor([[1.5, 2.0], [3.0, 4.0]]), "tensor([[1.5, 2. ],\n        [3. , 4. ]])"),
        (lambda: eg.arange(2000), "tensor([   0,    1,    2, ..., 1997, 1998, 1999])"),
        (lambda: eg.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: eg.tensor([1.0], requires_grad=True) * 2, "tensor([2.], op=multiply)"),
        (lambda: eg.zeros((2, 3), device="null"), "tensor(<NullArray [2, 3]>, device='null')"),
    ],
)
def test_repr(make: Any, text: str) -> None:
    assert repr(make()) == text
    assert str(make()) == text


def test_format() -> None:
    assert f"{eg.tensor(2.5):.3f}" == "2.500"
    assert f"{eg.tensor([7]):04d}" == "0007"
    assert f"{eg.tensor(2.5)}" == "tensor(2.5)"


# --- in and out ----------------------------------------------------------------------------------


def test_numbers() -> None:
    assert eg.tensor([2.5]).item() == 2.5
    assert eg.tensor(True).item() is True
    assert eg.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert eg.tensor(1.5, "bfloat16").item() == 1.5
    assert type(eg.tensor(1.5, "bfloat16").item()) is float
    assert (int(eg.tensor(3.7)), float(eg.tensor([2])), complex(eg.tensor(1j))) == (3, 2.0, 1j)
    assert bool(eg.tensor(0.0)) is False
    assert [10, 20, 30][eg.tensor(1)] == 20
    assert eg.tensor(2.0, requires_grad=True).item() == 2.0
    assert [v.item() for v in eg.arange(3)] == [0, 1, 2]
    assert len(eg.zeros((4, 2))) == 4
    assert len({eg.tensor(1.0), eg.tensor(1.0)}) == 2  # by identity


def _pointer(x: Any) -> int:
    return int(x.detach().numpy().__array_interface__["data"][0])


def test_numpy_shares_and_cannot_be_written() -> None:
    x = eg.arange(6.0).reshape(2, 3)
    a = x.numpy()
    assert a.__array_interface__["data"][0] == _pointer(x)
    assert np.asarray(x).__array_interface__["data"][0] == _pointer(x)
    assert not a.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        a[0, 0] = 1
    copy = np.array(x)
    copy[0, 0] = 5
    assert x[0, 0].item() == 0
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    with pytest.raises(ArgumentError, match="needs a copy"):
        np.asarray(x, dtype=np.float64, copy=False)


def test_asarray_shares() -> None:
    a = np.arange(6.0)
    assert _pointer(eg.asarray(a)) == a.__array_interface__["data"][0]
    assert _pointer(eg.asarray(a, copy=True)) != a.__array_interface__["data"][0]
    x = eg.asarray(a)
    x += 1
    x[0] = 7
    assert a.tolist() == [0, 1, 2, 3, 4, 5]  # a write gives x a new value, never the array


def test_to_and_astype(device: str) -> None:
    x = eg.tensor([1.5, -2.5], device=device)
    assert x.to("cpu").device == "cpu"
    assert x.to(eg.float64).dtype is eg.float64
    assert (x.to("null", "int8").device, x.to("null", "int8").dtype) == ("null", eg.int8)
    for d in ALL:
        if d.kind != "uint":  # where -2.5 is beyond the limits: see below
            close(x.astype(d), np.array([1.5, -2.5]).astype(d.np), 0)
    assert x.astype("int32").tolist() == [1, -2]
    assert x.astype("bool").tolist() == [True, True]
    y = eg.tensor([1.5], requires_grad=True, device=device)
    (y.astype("float64") * 2).sum().backward()
    assert y.grad.tolist() == [2.0]
    assert y.grad.dtype is eg.float32
    assert not y.astype("int32").requires_grad


@pytest.mark.parametrize("count", [1, 5000])  # NumPy's way and the compiled one
@pytest.mark.parametrize("dtype", [d.name for d in ALL if d.is_integer])
def test_too_large_for_an_integer_becomes_its_limit(dtype: str, count: int, device: str) -> None:
    limits = np.iinfo(dtype)
    for source in ("float16", "bfloat16", "float32", "float64"):
        x = eg.tensor([np.inf, -np.inf, NAN, 3.9, -0.9] * count, source, device)
        assert x.astype(dtype)[:5].tolist() == [limits.max, limits.min, 0, 3, 0]


# --- assignment ----------------------------------------------------------------------------------

SAME: dict[str, Any] = {
    "x[:]": lambda x: x[:], "x[...]": lambda x: x[...], "reshape": lambda x: x.reshape(3),
    "clone": lambda x: x.clone(), "astype": lambda x: x.astype("float32"),
    "to": lambda x: x.to("cpu"), "broadcast_to": lambda x: x.broadcast_to((3,)),
    "pad": lambda x: x.pad(0), "roll": lambda x: x.roll(0, 0), "clamp": lambda x: x.clamp(),
    "positive": lambda x: +x, "detach": lambda x: x.detach(), "tensor": eg.tensor,
    "dropout": lambda x: eg.dropout(x, 0.0), "sum_to": lambda x: x.sum_to((3,)),
    "conj": lambda x: x.conj(), "real": lambda x: x.real(), "sum": lambda x: x.sum(axis=()),
    "permute": lambda x: x.permute_dims((0,)), "concat": lambda x: eg.concat([x]),
}  # fmt: skip

VIEWS = {"x[:]", "x[...]", "reshape", "broadcast_to", "detach", "permute"}  # test_lost_writes.py


@pytest.mark.parametrize("how", SAME)
def test_names_do_not_alias(how: str, device: str) -> None:
    """What was taken from x before keeps its value when x gets another, and the other way round."""
    x = eg.tensor([1.0, 2.0, 3.0], device=device)
    if how == "to" and device != "cpu":
        pytest.skip("another device: another memory")
    y, array = SAME[how](x), x.to("cpu").numpy()
    if how in VIEWS:
        with pytest.raises(ViewError):
            y[0] = 9.0
    else:
        y[0] = 9.0
        y += 1.0
    assert x.tolist() == [1.0, 2.0, 3.0]
    z = SAME[how](x)
    x[1] = 7.0
    x *= 2.0
    assert z.tolist() == [1.0, 2.0, 3.0]
    assert array.tolist() == [1.0, 2.0, 3.0]
    assert x.tolist() == [2.0, 14.0, 6.0]


def test_another_name_is_the_same_tensor(device: str) -> None:
    x = eg.tensor([1.0, 2.0], device=device)
    y = x
    x[0] = 5.0
    x += 1.0
    assert y is x
    assert y.tolist() == [6.0, 3.0]
    inside = eg.tensor([0.0, 0.0], requires_grad=True, device=device) + 0.0
    same = inside
    inside[0] = 1.0
    assert same is inside


INPLACE = ("iadd", "isub", "imul", "itruediv", "ipow", "imod", "ifloordiv")


@pytest.mark.parametrize("name", INPLACE)
def test_in_place_is_the_functional_form(name: str, device: str) -> None:
    a, b = np.array([[1.5, 2.0], [0.7, 3.0]]), np.array([2.0, 0.5])
    found = []
    for inplace in (True, False):
        x = eg.tensor(a, device=device, requires_grad=True)
        y = eg.tensor(b, device=device, requires_grad=True)
        z = x * 1.0
        if inplace:
            before, z = z, getattr(operator, name)(z, y)
            assert z is before
        else:
            z = getattr(operator, name[1:])(z, y)
        (z * z).sum().backward()
        found.append((z, x.grad, y.grad))
    for got, want in zip(*found, strict=True):
        close(got, values(want), 0)


def test_in_place_keeps_saved_values(device: str) -> None:
    """exp saves its result, which is then assigned to: the gradient is that of the old value."""
    x = eg.tensor([0.5, 1.0], device=device, requires_grad=True)
    y = eg.exp(x)
    want = y.detach()
    y *= 10.0
    y[0] = 3.0
    y.sum().backward()
    close(x.grad, values(want) * [0.0, 10.0], 1e-6)


def test_in_place_refusals(device: str) -> None:
    leaf = eg.ones((2,), requires_grad=True, device=device)
    integers = eg.arange(2, device=device)
    for change, error, message in (
        (lambda: operator.iadd(leaf, 1.0), GradientError, r"leaf that requires grad.*no_grad\(\)"),
        (lambda: leaf.__setitem__(0, 1.0), GradientError, r"leaf that requires grad.*no_grad\(\)"),
        (lambda: operator.iadd(integers, 1.5), DtypeError, "float32 does not fit into x int64"),
        (lambda: integers.__setitem__(0, 1.5), DtypeError, "float32 does not fit into int64"),
        (lambda: operator.iadd(integers, eg.ones((3, 2), "int64", device)), ShapeError,
         r"\(3, 2\) does not fit into x \(2,\)"),
        (lambda: integers.__setitem__(slice(0, 1), eg.arange(2, device=device)), ShapeError,
         r"a value of shape \(2,\) does not fit the selected part \(1,\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            change()
    assert integers.tolist() == [0, 1]
    assert leaf.tolist() == [1.0, 1.0]
    with eg.no_grad():
        leaf -= 0.5
        leaf[0] = 4.0
    assert leaf.tolist() == [4.0, 0.5]
    assert leaf.requires_grad
    assert leaf.is_leaf
    (leaf * leaf).sum().backward()
    assert leaf.grad.tolist() == [8.0, 1.0]


def test_inf_and_nan_are_no_errors(device: str) -> None:
    """Overflow and division by zero give values, also where a filter makes warnings errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = eg.tensor([0.0, -1.0, 1e30, NAN], device=device, requires_grad=True)
        for out in (1 / x, eg.log(x), eg.sqrt(x), eg.exp(x), x**0.5, x / 0.0, x * 1e30,
                    x.astype("float16"), x.softmax(), x.var(), x.logsumexp(), x.max()):  # fmt: skip
            out.backward(eg.ones_like(out))
        assert np.isnan(eg.zeros((0,), device=device).mean().item())
        assert (eg.tensor([1], device=device) // 0).dtype is eg.int64
        x.detach().astype("int8")

"""`eg.tensor` and `eg.asarray` of nested lists that hold tensors: values as NumPy stacks them, the
dtype of promotion, and gradients, in every way a function is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.errors import DeviceError, DtypeError, ShapeError
from tests.support.checks import close, fitted, values

# lists of parts of x (a vector of four), as both a tensor and an array understand them
LISTS: dict[str, Any] = {
    "elements": lambda x: [x[0] * 2, x[1]],
    "one element": lambda x: [x[3]],
    "tensor": lambda x: [x],
    "rows": lambda x: [x, x * x],
    "tuple": lambda x: (x[0], x[2]),
    "nested": lambda x: [[x[0], x[1]], [x[2] * x[3], x[0]]],
    "numbers": lambda x: [x[0], 2, -1.5, True],
    "numbers and lists": lambda x: [[1.0, 2.0], [x[0], 3], [x[1], x[2]]],
    "a row of numbers": lambda x: [x, [1, 2, 3, 4], (0.5, 1.5, 2.5, 3.5)],
    "a column": lambda x: [[x[0]], [x[1]], [7]],
    "deep": lambda x: [[[x[0], 1.0]], [[2.0, x[1]]]],
    "NumPy rows": lambda x: [x, np.array([1, 2, 3, 4], np.int8)],
}
MAKERS = {"tensor": eg.tensor, "asarray": eg.asarray}


def wanted(name: str, x: Any) -> Any:
    """NumPy's array of the same list, through float64."""
    return np.array(LISTS[name](np.asarray(x, np.float64)), np.float64)


def made(device: str, seed: int = 0, rows: int | None = None) -> Any:
    shape = (4,) if rows is None else (rows, 4)
    array = np.random.default_rng(seed).normal(size=shape)
    return eg.tensor(fitted(array, device), device=device)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", LISTS)
def test_values_dtype_device_and_gradient(name: str, maker: str, device: str) -> None:
    x = made(device).requires_grad_()
    out = MAKERS[maker](LISTS[name](x))
    close(out, wanted(name, values(x)), 1e-12)
    assert out.dtype is x.dtype
    assert out.device == x.device
    weights = np.arange(1.0, 1.0 + out.size).reshape(out.shape)
    (out * eg.tensor(fitted(weights, device), device=device)).sum().backward()
    step = 1e-6
    for i in range(4):
        moved = np.asarray(values(x), np.float64)
        up, down = moved.copy(), moved.copy()
        up[i] += step
        down[i] -= step
        slope = ((wanted(name, up) - wanted(name, down)) * weights).sum() / (2 * step)
        close(x.grad[i], np.asarray(slope), 1e-7)


@pytest.mark.parametrize("name", LISTS)
def test_compiled_batched_and_forward(name: str, device: str) -> None:
    def f(x: Any) -> Any:
        return eg.tensor(LISTS[name](x))

    x, t = made(device), made(device, 1)
    close(eg.jit(f)(x), wanted(name, values(x)), 1e-12)
    rows = made(device, 2, rows=3)
    close(eg.vmap(f)(rows), np.stack([wanted(name, row) for row in values(rows)]), 1e-12)
    out, tangent = eg.jvp(f, (x,), (t,))
    step = 1e-6
    point, along = (np.asarray(values(v), np.float64) for v in (x, t))
    up, down = wanted(name, point + step * along), wanted(name, point - step * along)
    close(tangent, (up - down) / (2 * step), 1e-7)
    gradient = eg.grad(lambda x: (f(x) ** 2).sum())
    close(eg.jit(gradient)(x), values(gradient(x)), 1e-12)
    assert out.shape == tangent.shape


@pytest.mark.parametrize("first", [d.name for d in dtypes.ALL])
def test_dtypes_promote_as_in_ops(first: str) -> None:
    """Tensors and arrays promote, numbers never widen: as `result_type` says."""
    checked = 0
    for second in dtypes.ALL:
        a, b = eg.ones((2,), dtype=first), eg.ones((2,), dtype=second)
        try:
            common = eg.result_type(a, b)
        except DtypeError:
            with pytest.raises(DtypeError):
                eg.tensor([a, b])
            continue
        assert eg.tensor([a, b]).dtype is common
        assert eg.tensor([[a[0], 1], [b[0], True]]).dtype is eg.result_type(a, b, 1, True)
        checked += 1
    assert checked >= 11  # uint64 has none in common with signed integers
    for number in (True, 1, 1.5, 2j):
        want = eg.result_type(a.astype(first), number)
        assert eg.tensor([eg.ones((), dtype=first), number]).dtype is want
    assert eg.tensor([eg.ones((), dtype=first)], dtype="float64").dtype is eg.float64


def test_a_tensor_of_a_list_can_be_a_leaf_and_moves() -> None:
    parts = [eg.ones(()), eg.zeros(())]
    assert eg.tensor(parts, requires_grad=True).is_leaf
    assert eg.tensor(parts, device="null").device == "null"
    x = eg.arange(5)
    assert x[[eg.tensor(3), eg.tensor(-1)]].tolist() == [3, 4]


def test_refusals() -> None:
    x = eg.ones((2,))
    with pytest.raises(ShapeError, match=r"tensor: the nested lists are ragged: \[\(2,\), \(\)\]"):
        eg.tensor([x, 1.0])
    with pytest.raises(ShapeError, match="ragged"):
        eg.tensor([[x[0]], []])
    with pytest.raises(DtypeError, match="cannot make a tensor of str 'a'"):
        eg.tensor([x, "a"])
    with pytest.raises(DeviceError, match="different devices"):
        eg.tensor([x, eg.ones((2,), device="null")])


@pytest.mark.parametrize(
    ("python", "want"),
    [(bool, "bool"), (int, "int64"), (float, "float64"), (complex, "complex128")],
)
def test_python_types_mean_what_they_mean_to_numpy_and_pytorch(python: type, want: str) -> None:
    torch = pytest.importorskip("torch")
    assert str(np.zeros(1, python).dtype) == want
    assert str(torch.zeros(1, dtype=python).dtype) == f"torch.{want}"
    assert dtypes.as_dtype(python).name == dtypes.as_dtype(python.__name__).name == want
    x = eg.zeros((2,), dtype=python)
    assert x.dtype.name == want
    assert eg.ones((2,), dtype="int8").astype(python).dtype.name == want
    assert eg.asarray([1, 0], dtype=python).dtype.name == want

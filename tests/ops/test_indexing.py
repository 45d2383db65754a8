"""x[...] and x[...] = v against NumPy, with indices made by hypothesis; gradients with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import everygrad as eg
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from tests.support.checks import close, values

pytestmark = pytest.mark.needs("float64")

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
quick = settings(max_examples=150, deadline=None)


@st.composite
def basic(draw: Any) -> tuple[Any, Any]:
    """A shape and an index of integers, slices, None and ..."""
    shape = draw(SHAPES)
    if 0 in shape:  # hypothesis makes no integers for an axis of size 0
        return shape, tuple(draw(st.slices(n)) for n in shape)
    return shape, draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))


def _array_for(draw: Any, size: int, shape: Any) -> Any:
    return draw(hnp.arrays(np.int64, shape, elements=st.integers(-size, size - 1)))


@st.composite
def advanced(draw: Any) -> tuple[Any, Any]:
    """A shape and an index with integer arrays that broadcast, or a mask, beside slices."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4))
    result = draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    count = draw(st.integers(1, len(shape)))
    chosen = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=count))
    index: list[Any] = []
    axis = 0
    while axis < len(shape):
        if axis in chosen and draw(st.booleans()) and axis == max(chosen):
            mask = draw(hnp.arrays(bool, shape[axis]))
            others = [a for a in chosen if a != axis]
            index.append(mask if not others else _array_for(draw, shape[axis], result))
        elif axis in chosen:
            index.append(_array_for(draw, shape[axis], draw(st.sampled_from([result, ()]))))
        else:
            index.append(draw(st.slices(shape[axis])))
        axis += 1
    return shape, tuple(index)


def tensors(index: Any, device: str) -> Any:
    def one(entry: Any) -> Any:
        return eg.tensor(entry, device=device) if isinstance(entry, np.ndarray) else entry

    return tuple(map(one, index)) if isinstance(index, tuple) else one(index)


def filled(shape: Any) -> Any:
    return np.arange(1.0, 1.0 + int(np.prod(shape))).reshape(shape)


def check_get(case: tuple[Any, Any], device: str) -> None:
    shape, index = case
    a = filled(shape)
    want = np.asarray(a[index])
    x = eg.tensor(a, device=device, requires_grad=True)
    out = x[tensors(index, device)]
    close(out, want, 0, str(case))
    v = filled(want.shape)
    out.backward(eg.tensor(v, device=device))
    slope = np.zeros(shape)
    np.add.at(slope, index, v)
    close(x.grad, slope, 1e-12, str(case))


def check_set(case: tuple[Any, Any], device: str) -> None:
    shape, index = case
    a = filled(shape)
    part = np.asarray(a[index])
    v = -filled(part.shape)
    x = eg.tensor(a, device=device, requires_grad=True)
    y = eg.tensor(v, device=device, requires_grad=True)
    z = x * 1.0
    z[tensors(index, device)] = y
    want = a.copy()
    want[index] = v
    close(z, want, 0, str(case))
    w = filled(shape)
    z.backward(eg.tensor(w, device=device))
    # who wrote each element: 0 where nobody did, else the number of the value that came last
    writer = np.zeros(shape)
    writer[index] = filled(part.shape)
    close(x.grad, np.where(writer == 0, w, 0), 0, str(case))
    slope = np.zeros(v.size)
    for who, weight in zip(writer.reshape(-1), w.reshape(-1), strict=True):
        if who:
            slope[int(who) - 1] += weight
    close(y.grad, slope.reshape(v.shape), 0, str(case))
    assert eg.tensor(a, device=device)[tensors(index, device)].shape == part.shape
    number = eg.tensor(a, device=device)
    number[tensors(index, device)] = -5.0
    want[index] = -5.0
    close(number, want_number(a, index), 0, str(case))


def want_number(a: Any, index: Any) -> Any:
    out = a.copy()
    out[index] = -5.0
    return out


@quick
@given(case=basic())
def test_basic_reading(case: Any, device: str) -> None:
    check_get(case, device)


@quick
@given(case=advanced())
def test_advanced_reading(case: Any, device: str) -> None:
    check_get(case, device)


@quick
@given(case=basic())
def test_basic_writing(case: Any, device: str) -> None:
    check_set(case, device)


@quick
@given(case=advanced())
def test_advanced_writing(case: Any, device: str) -> None:
    check_set(case, device)


def test_masks_of_several_dimensions(device: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((3,), (2, 3), (2, 3, 2), (0, 2)):
        for ndim in range(1, len(shape) + 1):
            check_get((shape, rng.uniform(size=shape[:ndim]) < 0.5), device)
            check_set((shape, rng.uniform(size=shape[:ndim]) < 0.5), device)
    check_get(((2, 3, 4), (slice(None), rng.uniform(size=(3, 4)) < 0.5)), device)
    check_set(((2, 3, 4), (1, rng.uniform(size=(3, 4)) < 0.5)), device)


def test_integers_beside_arrays_are_taken_first(device: str) -> None:
    """As in PyTorch: x[0, :, i] is x[0][:, i]. NumPy moves the axes of i to the front."""
    x = eg.arange(24, device=device).reshape(4, 3, 2)
    i = eg.tensor([0, 1, 1, 0, 1], device=device)
    assert x[0, :, i].shape == (3, 5)
    close(x[0, :, i], values(x[0][:, i]), 0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_indices_of_any_integer_dtype(dtype: str, device: str) -> None:
    x = eg.arange(12.0, device=device).reshape(3, 4)
    i = eg.tensor([2, 0], dtype, device)
    grid = eg.tensor([[2, 0, 1, 1]], dtype, device)
    a = np.arange(12.0).reshape(3, 4)
    close(x[i], a[[2, 0]], 0)
    close(x.take(i, axis=1), a[:, [2, 0]], 0)
    close(x.gather(grid), np.take_along_axis(a, values(grid).astype(int), 0), 0)
    close(x.index_add(i, eg.ones((2, 4), device=device)), a + np.array([[1], [0], [1]]), 0)
    want = a.copy()
    want[[2, 0, 1, 1], [0, 1, 2, 3]] += 1
    close(x.scatter_add(grid, eg.ones((1, 4), device=device)), want, 0)
    close(eg.embedding(i, x), a[[2, 0]], 0)
    x[i] = 0.0
    close(x, a * [[0], [1], [0]], 0)


def test_python_lists_and_numpy_arrays_as_indices(device: str) -> None:
    a = np.arange(12.0).reshape(3, 4)
    x = eg.tensor(a, device=device)
    close(x[[2, 0]], a[[2, 0]], 0)
    close(x[np.array([[0], [1]]), [1, 2]], a[np.array([[0], [1]]), [1, 2]], 0)
    close(x[[True, False, True]], a[[True, False, True]], 0)
    close(x[np.int64(1)], a[1], 0)
    close(x[eg.tensor(1, device=device)], a[1], 0)
    close(x[[]], a[[]], 0)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (5, OutOfRangeError, "index 5 is out of range for axis 0 of size 3"),
        ((0, -5), OutOfRangeError, "index -5 is out of range for axis 1 of size 4"),
        ((slice(None), [0, 4]), OutOfRangeError, "index 4 is out of range for axis 1 of size 4"),
        ([-4], OutOfRangeError, "index -4 is out of range for axis 0 of size 3"),
        ((0, 0, 0), OutOfRangeError, "3 indices for a tensor of 2 dimensions"),
        ((..., ...), OutOfRangeError, "one ellipsis only"),
        ("a", DtypeError, "got str 'a'"),
        (slice(None, None, 0), ArgumentError, "the step of a slice must not be 0"),
        ((0, slice(1.5, None)), DtypeError, "parts of a slice are integers, got 1.5:None:None"),
        (True, DtypeError, "got bool True"),
        ([0.5], DtypeError, "got Tensor"),
        ([True, False], OutOfRangeError, r"a bool index \(2,\) does not match axes of size \(3,\)"),
        (([0, 1], [0, 1, 2]), ShapeError, r"cannot broadcast \(2,\) with \(3,\)"),
    ],
)
def test_bad_indices(index: Any, error: Any, message: str, device: str) -> None:
    x = eg.tensor(np.arange(12.0).reshape(3, 4), device=device)
    with pytest.raises(error, match=message):
        x[index]
    with pytest.raises(error, match=message):
        x[index] = 1.0
    assert x.tolist() == np.arange(12.0).reshape(3, 4).tolist()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["scatter_add", "index_add"])
@pytest.mark.parametrize("places", [1, 7, 50_000])
@pytest.mark.parametrize("compiled", [False, True])
def test_sums_of_halves_are_rounded_once(
    name: str, dtype: str, places: int, compiled: bool, device: str
) -> None:
    """Whatever is added to one place is added in float32: halves that are rounded after each term
    are soon off by more than the sum."""
    rng = np.random.default_rng(places)
    index = rng.integers(0, min(places, 7), 3000)
    terms = (2 * rng.integers(-16, 16, 3000) + 1) / 16  # exact in every dtype, as their sums are
    want = np.bincount(index, terms, places) + 1

    def run(x: Any, i: Any, s: Any) -> Any:
        return getattr(eg, name)(x, i, s, axis=0)

    given = [eg.ones((places,), dtype=dtype, device=device)]
    given += [eg.tensor(index, device=device), eg.tensor(terms, dtype=dtype, device=device)]
    got = (eg.jit(run) if compiled else run)(*given).astype("float32").numpy()
    ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert (np.abs(got - want) <= ulp * np.abs(want)).all()

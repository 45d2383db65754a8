"""Faults that random programs and PyTorch as referee found: each as what holds instead."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, AxisError, DtypeError, GradientError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY, Sample
from tests.support.checks import (
    WITH_SAMPLES,
    arrays_of,
    call,
    close,
    function_of,
    in_dtype,
    is_narrow,
    map_sample,
    samples_of,
)

pytestmark = pytest.mark.needs("float64")

# --- compiled: what is computed twice, and what lies inside something else ------------------------


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("shape", [(7, 2), (5, 40), (2, 300), (64,)])
def test_an_extreme_is_found_again(name: str, shape: tuple[int, ...], device: str) -> None:
    """One pass over a row finds its extreme, the next asks which element that was: both must round
    a * x + b alike, though one could make a fused multiply-add of it."""
    dtype = "float32" if is_narrow(device) else "float64"
    extreme = getattr(eg, name)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        a, b = map(float, rng.uniform(0.1, 2.0, 2))
        x = eg.tensor(rng.uniform(-1, 1, shape), dtype, device)

        def loss(x: Any, a: float = a, b: float = b) -> Any:
            scaled = x * a
            return (extreme(scaled + b, axis=-1) ** 2).sum() + (scaled * scaled).sum()

        def both(x: Any, loss: Callable[..., Any] = loss) -> Any:
            return loss(x), eg.grad(loss)(x)

        close(eg.jit(both)(x)[1], eg.grad(loss)(x), 1e-10, f"{name} of {shape}, seed {seed}")


def _takes_indices(name: str) -> bool:
    op = REGISTRY[name]
    arrays = arrays_of(next(iter(op.samples())))
    return not op.notes.get("by_values") and any(a.dtype.kind in "iu" for a in arrays)


@pytest.mark.parametrize("name", [n for n in WITH_SAMPLES if _takes_indices(n)])
def test_indices_may_be_part_of_a_tensor(name: str) -> None:
    """Inside jit an index that is checked lies where its argument does: behind a slice's start, for
    native code and for NumPy, which computes most ops in half floats."""
    op = REGISTRY[name]
    sample = in_dtype(next(samples_of(op, "cpu")), "float16")

    def whole(a: Any) -> Any:
        return np.concatenate([a[:1] * 0, a, a[:1] * 0]) if a.ndim else a

    def parted(*tensors: Any) -> tuple[Any, ...]:
        supply = iter(tensors)

        def part(_: Any) -> Any:
            x = next(supply)
            return x[1:-1] if x.ndim else x

        return tuple(call(function_of(op), map_sample(sample, part)))

    given = [eg.tensor(whole(a)) for a in arrays_of(sample)]
    for got, want in zip(eg.jit(parted)(*given), parted(*given), strict=True):
        close(got, want, 4e-3, name)


def test_a_slice_of_a_checked_index_is_read_in_its_place() -> None:
    """A slice that points into a slice: once an address of 0."""
    check = REGISTRY["check_range"].function

    def doubled(i: Any) -> Any:
        return check(i[2:], 10, "index")[1:] * 2

    index = eg.tensor(np.arange(8))
    assert eg.jit(doubled)(index).tolist() == doubled(index).tolist() == [6, 8, 10, 12, 14]


# --- linear algebra ------------------------------------------------------------------------------

linalg = eg.linalg


def _twice(f: Callable[..., Any], x: Any) -> Any:
    """The gradient of <gradient of the sum of f, ones>."""
    y = f(x)
    (first,) = eg.autograd.grad([y], [x], [eg.ones_like(y)], create_graph=True)
    if not first.requires_grad:
        return eg.zeros_like(x)
    (second,) = eg.autograd.grad([first], [x], [eg.ones_like(first)], allow_unused=True)
    return second


def _rebuilt(x: Any) -> Any:
    values, vectors = linalg.eig(x)
    return (vectors * (values * values).expand_dims(-2)) @ linalg.inv(vectors)


@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_rounding_is_no_dependence_on_a_phase(n: int, dtype: str) -> None:
    """The trace is linear, and x @ x a polynomial, also by way of eigenvectors."""
    rng = np.random.default_rng(n)
    x = eg.tensor(rng.normal(size=(n, n)) + 1j * rng.normal(size=(n, n)), dtype, requires_grad=True)
    rough = 1e-8 if dtype == "complex128" else 1e-2
    second = _twice(lambda x: linalg.eigvals(x).sum(), x)
    close(second, np.zeros((n, n)), rough, "trace")
    close(_twice(_rebuilt, x), _twice(lambda x: x @ x, x), rough, "square")


def test_a_dependence_on_a_phase_is_refused_still() -> None:
    x = eg.tensor(np.array([[1, 2j], [0.5, 3]]), requires_grad=True)
    with pytest.raises(GradientError, match="eig: the result depends on the phase"):
        linalg.eig(x).eigenvectors.imag().sum().backward()


def test_second_derivatives_of_determinants() -> None:
    """Right, or refused by name: a matrix whose determinant is rounding gave zeros."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 3))
    x = eg.tensor(a, requires_grad=True)
    want = np.zeros((3, 3))
    for at in np.ndindex(3, 3):
        ends = [a.copy(), a.copy()]
        ends[0][at] += 1e-5
        ends[1][at] -= 1e-5
        up, down = (np.sum(np.linalg.det(m) * np.linalg.inv(m).T) for m in ends)
        want[at] = (up - down) / 2e-5
    close(_twice(linalg.det, x), want, 1e-7, "by differences")
    close(_twice(linalg.det, eg.zeros((1, 1), requires_grad=True)), np.zeros((1, 1)), 0.0)
    for singular in (np.zeros((2, 2)), np.array([[0.1, 0.3], [0.1 / 3, 0.1]]), a * [1, 1, 0]):
        with pytest.raises(GradientError, match="det: a singular matrix has no second derivative"):
            _twice(linalg.det, eg.tensor(singular, requires_grad=True))


# --- bad input -----------------------------------------------------------------------------------


def _axis_calls(name: str) -> list[Sample]:
    """Samples of an op that can be given an axis by name."""
    op = REGISTRY[name]
    places = list(signature(op.function).parameters)
    if op.namespace == "internal" or "axis" not in places:
        return []
    return [s for s in op.samples() if len(s.args) <= places.index("axis")]


@pytest.mark.parametrize("name", [n for n in WITH_SAMPLES if _axis_calls(n)])
def test_an_axis_is_refused_by_the_op_that_was_called(name: str) -> None:
    """Not by one that it is made of."""
    given = map_sample(_axis_calls(name)[0], eg.tensor)
    said = {"repeat_interleave": "repeat_interleave: repeat"}.get(name, name.removeprefix("fft_"))
    with pytest.raises(AxisError, match=f"^{said}: axis 99"):
        REGISTRY[name].function(*given.args, **{**given.kwargs, "axis": 99})


# --- single ops ----------------------------------------------------------------------------------


def test_cross_entropy_of_one_example(device: str) -> None:
    """Without a batch, with labels to ignore: the gradient too."""
    for ignore, want in ((-100, True), (1, True), (0, False)):
        x = eg.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
        label = eg.tensor(0, device=device)
        eg.cross_entropy(x, label, ignore_index=ignore, reduction="none").backward()
        expected = np.exp([1.0, 2.0, 3.0]) / np.exp([1.0, 2.0, 3.0]).sum() - [1, 0, 0]
        close(x.grad, expected if want else np.zeros(3), 1e-6, f"ignore_index={ignore}")


def test_put_counts_from_the_end(device: str) -> None:
    x = eg.zeros((2, 2), device=device)
    index = eg.tensor([-1, 0], device=device)
    made = eg.put(x, index, eg.tensor([5.0, 7.0], device=device))
    assert made.tolist() == [[7.0, 0.0], [0.0, 5.0]]
    with pytest.raises(OutOfRangeError, match="put: index"):
        eg.put(x, eg.tensor([-5], device=device), eg.tensor([1.0], device=device)).tolist()


def test_pad_keeps_the_dtype(device: str) -> None:
    flags = eg.tensor([True, False], device=device)
    assert eg.pad(flags, ((1, 0),), True).tolist() == [True, True, False]
    assert eg.pad(flags, ((1, 0),)).dtype is eg.bool
    with pytest.raises(DtypeError, match="pad: a value of 2 does not fit into bool"):
        eg.pad(flags, ((1, 0),), 2)


def test_a_power_of_nan_has_no_slope_but_nan(device: str) -> None:
    x = eg.tensor([float("nan"), -1.0, 2.0], device=device)
    y = eg.tensor([2.0, 2.0, 1.0], device=device, requires_grad=True)
    (x**y).sum().backward()
    close(y.grad, np.array([np.nan, np.nan, 2 * np.log(2.0)]), 1e-6, "slope in the exponent")


def test_randint_gives_what_its_dtype_holds(device: str) -> None:
    for low, high, dtype in ((0, 300, "uint8"), (-1, 5, "uint8"), (0, 129, "int8")):
        with pytest.raises(ArgumentError, match=f"randint: {low} to {high - 1} does not fit"):
            eg.randint(low, high, (3,), dtype, device)
    with pytest.raises(ArgumentError, match=r"randint: low must be an integer, got 0\.5"):
        eg.randint(0.5, 3, (2,), device=device)  # type: ignore[arg-type]
    assert eg.randint(-128, 128, (40,), "int8", device).dtype is eg.int8
    assert eg.randint(255, 256, (2,), "uint8", device).tolist() == [255, 255]

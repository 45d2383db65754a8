"""Derivatives: properties that hold for every op of the registry, on every device.

The numbers to hold against are central differences of the op's reference, not of the op.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.support.checks import (
    BY_FAMILY,
    TOLERANCE,
    WITH_SAMPLES,
    all_close,
    arrays_of,
    call,
    close,
    difference_gradients,
    directions,
    few,
    fitted,
    function_of,
    gradients,
    in_dtype,
    is_absent,
    is_flat,
    is_float,
    is_narrow,
    leaves_of,
    map_sample,
    native_threshold,
    refer,
    referee,
    replaced,
    samples_of,
    to_tensor,
    wide,
    widened,
    without_kernel,
)


def _with_derivatives(op: Op, device: str) -> list[Sample]:
    """The samples with an input to differentiate by and a result to differentiate."""
    if is_flat(op):
        return []
    return [
        s
        for s in samples_of(op, device)
        if any(is_float(a) for a in arrays_of(s)) and refer(op, s)[0].dtype.kind in "fc"
    ]


DIFFERENTIABLE = [n for n in WITH_SAMPLES if _with_derivatives(REGISTRY[n], "cpu")]


def differentiable(op: Op, device: str) -> list[Sample]:
    """The same; none only of an op that the device refuses by name."""
    found = _with_derivatives(op, device)
    assert found or is_absent(op, device), f"{op.name} has no derivative to look at on {device}"
    return found


def few_differentiable(op: Op, device: str) -> list[Sample]:
    """Of a slow device only the first."""
    return [*few(differentiable(op, device), device)]


KERNELS = [n for n in BY_FAMILY["kernel"] if n in DIFFERENTIABLE]


def test_constant_ops_are_these() -> None:
    """The complete list of ops without a derivative: none is constant by oversight."""
    assert set(WITH_SAMPLES) - set(DIFFERENTIABLE) == {
        "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
        "logical_and", "logical_or", "logical_xor", "logical_not",
        "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift",
        "bitwise_invert", "isnan", "isinf", "isfinite", "any", "all", "argmax", "argmin",
        "last_write", "max_pool2d_index", "mulhi", "philox", "check_range", "count_labels",
        "argsort", "cummax_index", "cummin_index", "count_nonzero", "searchsorted", "bucketize",
        "isin", "histogram", "nonzero", "nonzero_indices", "argwhere", "top_index",
        "unique", "unique_all", "unique_counts", "unique_inverse", "unique_values", "signbit",
        "matrix_rank", "lstsq_ranks", "lexsort_rows", "check_true",
        "integer_of_words", "normal_of_words", "u64_to_uniform", "u32_to_uniform",
        "philox_advance", "isclose", "one_hot", "heaviside",
    }  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_derivative(name: str, device: str) -> None:
    op = REGISTRY[name]
    coarse = op.notes.get("coarse")  # the result is rounded: larger steps, fewer digits
    step, tolerance = (0.125, 2e-2) if coarse else (1e-6, 1e-7)
    for sample in differentiable(op, device):
        outs, grads = gradients(function_of(op), sample, device)
        want = difference_gradients(lambda s: refer(op, s), sample, directions(outs), step)
        all_close(grads, want, tolerance, f"{name} {sample}")
        for g, a in zip(grads, filter(is_float, arrays_of(sample)), strict=True):
            assert str(g.dtype) == str(a.dtype)


def _second(op: Op, sample: Sample, us: list[Any], device: str) -> tuple[Any, ...]:
    """First derivatives, and those of <first derivatives, us> by the inputs and by the seeds."""
    given = map_sample(sample, to_tensor(device, grad=True))
    leaves = leaves_of(given)
    outs = call(function_of(op), given)
    seeds = [
        eg.tensor(v, dtype=o.dtype, device=o.device, requires_grad=True)
        for o, v in zip(outs, directions(outs), strict=True)
    ]
    grads = eg.autograd.grad(outs, leaves, seeds, create_graph=True)
    moves = [eg.tensor(u, g.dtype, device) for g, u in zip(grads, us, strict=True)]
    total = sum((g * u).sum() for g, u in zip(grads, moves, strict=True))
    if not total.requires_grad:
        zero = [np.zeros(leaf.shape) for leaf in leaves]
        return grads, zero, [np.zeros(o.shape) for o in outs]
    found = eg.autograd.grad(total, [*leaves, *seeds], allow_unused=True)
    filled = [
        np.zeros(x.shape) if g is None else g for g, x in zip(found, [*leaves, *seeds], strict=True)
    ]
    return grads, filled[: len(leaves)], filled[len(leaves) :]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_second_derivative(name: str, device: str) -> None:
    """By the inputs: differences of the first derivative. By the seeds: of the result itself."""
    op = REGISTRY[name]
    step, tolerance = 1e-6, 1e-6
    if op.notes.get("coarse"):
        step, tolerance = 0.125, 2e-2
    for sample in few_differentiable(op, device):
        floats = [a for a in arrays_of(widened(sample)) if is_float(a)]
        rng = np.random.default_rng(1)
        us = [rng.uniform(-1, 1, a.shape) for a in floats]
        _, by_inputs, by_seeds = _second(op, sample, us, device)

        def moved(sign: int, sample=sample, us=us, floats=floats) -> Sample:
            return replaced(
                sample, [np.asarray(a + sign * step * u) for a, u in zip(floats, us, strict=True)]
            )

        ends = [gradients(function_of(op), moved(sign), referee(device))[1] for sign in (1, -1)]
        want = [(wide(a) - wide(b)) / (2 * step) for a, b in zip(*ends, strict=True)]
        all_close(by_inputs, want, tolerance, f"{name} {sample}")
        ends = [refer(op, moved(sign)) for sign in (1, -1)]
        want = [(wide(a) - wide(b)) / (2 * step) for a, b in zip(*ends, strict=True)]
        all_close(by_seeds, want, tolerance, f"{name} {sample}")


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_every_input_is_reached(name: str, device: str) -> None:
    """Through a chain of two ops: x * 1.0, then the op. Shapes and dtypes are the leaf's own."""
    op = REGISTRY[name]
    for sample in few_differentiable(op, device):
        given = map_sample(sample, to_tensor(device, grad=True))
        leaves = leaves_of(given)
        chained = map_tensors(given, lambda t: t * 1.0 if t.requires_grad else t)
        for out in call(function_of(op), chained):
            assert out.requires_grad, f"{name} {sample}: the result is cut off"
            out.backward(eg.ones_like(out), retain_graph=True)
        for leaf in leaves:
            assert leaf.grad is not None, f"{name} {sample}: an input got no gradient"
            assert (leaf.grad.shape, leaf.grad.dtype) == (leaf.shape, leaf.dtype)
            assert leaf.grad.device == device


def map_tensors(sample: Sample, fn: Any) -> Sample:
    def go(value: Any) -> Any:
        if isinstance(value, eg.Tensor):
            return fn(value)
        return type(value)(go(v) for v in value) if type(value) in (list, tuple) else value

    return Sample(go(sample.args), {n: go(v) for n, v in sample.kwargs.items()})


@pytest.mark.parametrize("name", sorted({*DIFFERENTIABLE} - {*BY_FAMILY["composite"]}))
def test_no_work_for_inputs_without_grad(name: str, device: str) -> None:
    """With one input that requires grad, the derivative of no other is computed."""
    op = REGISTRY[name]
    checked = 0
    for sample in few_differentiable(op, device):
        count = sum(is_float(a) for a in arrays_of(sample))
        for only in range(count):
            given = map_sample(sample, to_tensor(device, grad=True))
            leaves = leaves_of(given)
            for i, leaf in enumerate(leaves):
                leaf.requires_grad_(i == only)
            out = call(function_of(op), given)[0]
            node = out._node
            if node.is_leaf:  # the result is the input itself
                assert out is leaves[only]
                checked += 1
                continue
            results = node.op.vjp(node, eg.ones_like(out), False)
            for parent, g in zip(node.parents, results, strict=True):
                assert (parent is None) == (g is None), f"{name} {sample}"
            out.backward(eg.ones_like(out))
            assert [leaf.grad is not None for leaf in leaves] == [i == only for i in range(count)]
            checked += 1
    assert checked or is_absent(op, device)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_in_other_dtypes(name: str, device: str) -> None:
    """Gradients keep the dtype of their input, and are near those in float64."""
    op = REGISTRY[name]
    for sample in few_differentiable(op, device):
        for dtype in ("float32", "float16", "bfloat16"):
            rounded = in_dtype(sample, dtype)
            outs, grads = gradients(function_of(op), rounded, device)
            vs = directions(outs)
            want = gradients(function_of(op), in_dtype(rounded, "float64"), referee(device), vs)[1]
            assert [str(g.dtype) for g in grads] == [dtype] * len(grads), f"{name} {sample}"
            all_close(grads, want, 4 * TOLERANCE[dtype], f"{name} {dtype} {sample}")


def _with_portable(*, iterative: bool) -> list[str]:
    """Kernels with a portable definition that does something; `to` alone moves nothing. One that
    iterates until it converges is right, but its derivative is not that of the limit."""
    notes = {n: REGISTRY[n].notes for n in KERNELS if n != "to"}
    named = [n for n, note in notes.items() if "opaque" not in note]
    return [n for n in named if iterative or "iterative" not in notes[n]]


@pytest.mark.parametrize("name", _with_portable(iterative=True))
def test_portable_derivatives_equal_kernel(name: str, device: str) -> None:
    op = REGISTRY[name]
    if name not in base.get(device).kernels:
        pytest.skip(f"{device} has no kernel of its own for {name}")  # the portable one is in use
    for sample in few_differentiable(op, device):
        us = [np.full(a.shape, 0.5) for a in arrays_of(sample) if is_float(a)]
        want = _second(op, sample, us, device)
        with without_kernel(device, name):
            got = _second(op, sample, us, device)
        for g, w in zip(got, want, strict=True):
            all_close(g, w, 1e-10, f"{name} {sample}")


@pytest.mark.parametrize("name", _with_portable(iterative=False))
def test_rules_equal_portable_derivatives(name: str, device: str) -> None:
    """The rules a kernel op gives for speed are those of its portable definition."""
    op = REGISTRY[name]
    for sample in few_differentiable(op, device):
        us = [np.full(a.shape, 0.5) for a in arrays_of(sample) if is_float(a)]
        want = _second(op, sample, us, device)
        kept, op.composed = op.composed, True
        try:
            got = _second(op, sample, us, device)
        finally:
            op.composed = kept
        for g, w in zip(got, want, strict=True):
            all_close(g, w, 1e-10, f"{name} {sample}")


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if n in BY_FAMILY["elementwise"]])
def test_compiled_derivatives_equal_numpy(name: str, device: str) -> None:
    op = REGISTRY[name]
    for sample in differentiable(op, device):
        with native_threshold(1 << 40):
            want = gradients(function_of(op), sample, device)[1]
        with native_threshold(0):
            got = gradients(function_of(op), sample, device)[1]
        all_close(got, want, 1e-12, f"{name} {sample}")


# --- points where formulas break -----------------------------------------------------------------


def slopes(fn: Any, *points: Any, device: str, dtype: str = "float64") -> list[list[float]]:
    dtype = "float32" if is_narrow(device) and dtype == "float64" else dtype
    xs = [eg.tensor(p, dtype, device, requires_grad=True) for p in points]
    out = fn(*xs)
    out.backward(eg.ones_like(out))
    return [x.grad.tolist() for x in xs]


@pytest.mark.parametrize("threshold", [0, 1 << 40])
def test_pow_at_zero_and_below(threshold: int, device: str) -> None:
    with native_threshold(threshold):
        zeros = [0.0, 0.0, 0.0, 0.0]
        dx, dy = slopes(eg.pow, zeros, [0.0, 1.0, 2.0, 3.0], device=device)
        assert dx == [0.0, 1.0, 0.0, 0.0]
        assert dy == zeros
        dx, dy = slopes(eg.pow, [-2.0, -2.0, -2.0], [2.0, 3.0, -1.0], device=device)
        assert dx == [-4.0, 12.0, -0.25]
        assert np.isnan(dy).all()  # as in PyTorch: there is no slope
        (dx,) = slopes(lambda x: x**2, [0.0, -3.0], device=device)
        assert dx == [0.0, -6.0]
        (dx,) = slopes(lambda x: x**0, [0.0, -3.0], device=device)
        assert dx == [0.0, 0.0]
        (dy,) = slopes(lambda y: 2.0**y, [0.0, 1.0], device=device)
        digits = 1e-6 if is_narrow(device) else 1e-14
        close(np.array(dy), np.log(2) * np.array([1, 2]), digits)


def test_divide_at_extremes(device: str) -> None:
    """The square of the divisor would overflow or vanish."""
    _, db = slopes(eg.divide, [1.0], [300.0], device=device, dtype="float16")
    close(np.array(db), np.array([-1 / 300**2]), 1e-3)
    _, db = slopes(eg.divide, [1e-25], [1e-25], device=device, dtype="float32")
    close(np.array(db) * 1e-25, np.array([-1.0]), 1e-5)


def test_ties_share(device: str) -> None:
    assert slopes(eg.maximum, [1.0, 2.0], [1.0, 1.0], device=device) == [[0.5, 1.0], [0.5, 0.0]]
    assert slopes(eg.minimum, [1.0, 2.0], [1.0, 1.0], device=device) == [[0.5, 0.0], [0.5, 1.0]]
    assert slopes(lambda x: x.max(), [3.0, 1.0, 3.0], device=device) == [[0.5, 0.0, 0.5]]
    assert slopes(lambda x: x.min(), [3.0, 1.0, 1.0], device=device) == [[0.0, 0.5, 0.5]]
    assert slopes(lambda x: x.std(), [2.0, 2.0, 2.0], device=device) == [[0.0, 0.0, 0.0]]
    assert slopes(eg.relu, [0.0, -0.0, 1.0], device=device) == [[0.0, 0.0, 1.0]]
    assert slopes(eg.abs, [0.0, -2.0], device=device) == [[0.0, -1.0]]
    assert slopes(lambda x: x.clamp(0.0, 1.0), [0.0, 1.0, 2.0], device=device) == [[1.0, 1.0, 0.0]]


def test_saturation_gives_no_nan(device: str) -> None:
    far = [-1000.0, 1000.0]
    for fn in (eg.sigmoid, eg.tanh, eg.softplus, eg.silu, eg.gelu, eg.erf, eg.relu):
        for g in slopes(fn, far, device=device)[0]:
            assert g in (0.0, 1.0), fn.__name__
    large = 1e38 if is_narrow(device) else 1e308
    (g,) = slopes(lambda x: x.logsumexp(), [-large, large], device=device)
    assert g == [0.0, 1.0]
    (g,) = slopes(lambda x: x.log_softmax().sum(), [-1e4, 1e4], device=device)
    assert g == [1.0, -1.0]
    (g,) = slopes(lambda x: x.softmax(), [-large, large], device=device)
    assert g == [0.0, 0.0]


def test_broadcasting_one_against_none(device: str) -> None:
    da, db = slopes(eg.multiply, [3.0], np.zeros((0,)), device=device)
    assert da == [0.0]
    assert db == []


def test_shapes_of_one_element_keep_their_own(device: str) -> None:
    for shape in ((), (1,), (1, 1)):
        x = eg.ones(shape, device=device, requires_grad=True)
        y = eg.ones((1, 1, 1), device=device, requires_grad=True)
        (x * y + x).sum().backward()
        assert x.grad.shape == shape
        assert y.grad.shape == (1, 1, 1)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((1, 1, 4, 4), (1, 1, 3, 3), {"stride": 2, "padding": 1}),
        ((1, 1, 5, 5), (1, 1, 2, 2), {"stride": 2}),
        ((2, 4, 7, 6), (4, 2, 3, 2), {"stride": (2, 3), "padding": (0, 1), "groups": 2}),
        ((1, 2, 9, 8), (2, 2, 3, 3), {"dilation": (2, 3), "padding": 2}),
        ((1, 4, 6, 6), (4, 1, 3, 3), {"groups": 4, "stride": 3, "padding": 2}),
        ((0, 2, 4, 4), (3, 2, 3, 3), {}),
    ],
)
def test_convolution_whose_stride_leaves_a_rest(x: Any, w: Any, options: Any, device: str) -> None:
    op, rng = REGISTRY["conv2d"], np.random.default_rng(0)
    arrays = (fitted(rng.normal(size=x), device), fitted(rng.normal(size=w), device))
    sample = Sample(arrays, options)
    outs, grads = gradients(function_of(op), sample, device)
    all_close(outs, refer(op, sample), 1e-12)
    want = difference_gradients(lambda s: refer(op, s), sample, directions(outs))
    all_close(grads, want, 1e-7)

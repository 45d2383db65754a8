"""Native convolutions and pooling against a definition written out place by place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from everygrad import tensor
from everygrad.backends.cpu import convcode, convolution, kernels, threads, workrun
from everygrad.backends.cpu.convsums import joined_rows
from everygrad.ops.conv import Window, conv2d as conv2d_op

F32, F64 = np.float32, np.float64

# image (batch, channels, height, width), output channels, window
CASES = [
    ((2, 3, 32, 32), 32, Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((2, 8, 16, 16), 20, Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((1, 5, 14, 14), 7, Window((3, 3), (1, 1), (1, 1), (1, 1))),  # rows shorter than a vector
    ((2, 4, 7, 7), 9, Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((2, 3, 2, 3), 2, Window((3, 3), (1, 1), (1, 1), (1, 1))),  # fewer places than lanes
    ((1, 4, 29, 57), 6, Window((3, 3), (2, 2), (1, 1), (1, 1))),
    ((1, 3, 40, 40), 8, Window((7, 7), (2, 2), (3, 3), (1, 1))),
    ((2, 6, 20, 21), 5, Window((5, 5), (1, 1), (2, 2), (1, 1))),
    ((2, 70, 20, 20), 9, Window((1, 1), (1, 1), (0, 0), (1, 1))),  # read where it lies
    ((1, 300, 24, 24), 9, Window((1, 1), (1, 1), (0, 0), (1, 1))),  # several slabs
    ((2, 6, 9, 9), 5, Window((1, 1), (2, 2), (0, 0), (1, 1))),  # phases without taps
    ((2, 3, 20, 35), 4, Window((3, 2), (1, 1), (0, 0), (1, 1))),
    ((1, 2, 19, 23), 3, Window((2, 3), (3, 2), (2, 1), (2, 3))),
    ((1, 2, 11, 10), 3, Window((3, 3), (4, 5), (1, 0), (2, 1))),  # elements no window meets
    ((2, 8, 17, 18), 8, Window((3, 3), (1, 1), (1, 1), (1, 1), 8)),
    ((2, 6, 12, 40), 9, Window((3, 3), (2, 1), (1, 1), (1, 2), 3)),
    ((9, 2, 16, 16), 5, Window((3, 3), (1, 1), (1, 1), (1, 1))),  # several chunks of images
]


def _taps(window: Window, out: tuple[int, int]):
    (kh, kw), (sh, sw), _, (dh, dw), _ = window
    for i, j in itertools.product(range(kh), range(kw)):
        down = slice(i * dh, i * dh + sh * out[0], sh)
        yield i, j, (slice(None), slice(None), down, slice(j * dw, j * dw + sw * out[1], sw))


def _padded(x, window):
    (ph, pw) = window.padding
    return np.pad(x.astype(F64), ((0, 0), (0, 0), (ph, ph), (pw, pw)))


def _by_group(a, groups, axis):
    return np.split(a, groups, axis)


def reference(op, first, second, window, shape):
    """In float64, one tap of the kernel at a time, one group at a time."""
    g = window.groups
    if g > 1:
        one = window._replace(groups=1)
        axes = {"conv2d": (1, 0, 1, 1), "conv2d_input": (1, 0, 1, 1), "conv2d_weight": (1, 1, 0, 0)}
        a, b, where, cut = axes[op]
        part = tuple(n // g if k == cut else n for k, n in enumerate(shape))
        pairs = zip(_by_group(first, g, a), _by_group(second, g, b), strict=True)
        return np.concatenate([reference(op, x, y, one, part) for x, y in pairs], where)
    if op == "conv2d":
        x, out = _padded(first, window), np.zeros(shape)
        for i, j, at in _taps(window, shape[2:]):
            out += np.einsum("nchw,oc->nohw", x[at], second[:, :, i, j].astype(F64))
        return out
    if op == "conv2d_input":
        out = _padded(np.zeros(shape), window)
        for i, j, at in _taps(window, first.shape[2:]):
            out[at] += np.einsum("nohw,oc->nchw", first.astype(F64), second[:, :, i, j])
        (ph, pw), (h, w) = window.padding, shape[2:]
        return out[:, :, ph : ph + h, pw : pw + w]
    x, out = _padded(first, window), np.zeros(shape)
    for i, j, at in _taps(window, second.shape[2:]):
        out[:, :, i, j] = np.einsum("nchw,nohw->oc", x[at], second.astype(F64))
    return out


def problem(op, image, channels, window, dtype, seed=0):
    """Two inputs and the shape of the result."""
    rng = np.random.default_rng(seed)
    kernel = (channels, image[1] // window.groups, *window.size)
    result = (image[0], channels, *window.out_size(image))
    shapes = {
        "conv2d": (image, kernel, result),
        "conv2d_input": (result, kernel, image),
        "conv2d_weight": (image, result, kernel),
    }
    first, second, out = shapes[op]
    made = (rng.standard_normal(s).astype(dtype) for s in (first, second))
    return (*made, out)


def close(got, want, dtype):
    scale = np.abs(want).max() + 1e-30
    assert got.dtype == dtype
    assert np.abs(got - want).max() <= scale * (2e-5 if dtype == F32 else 1e-13)


OPS = ("conv2d", "conv2d_input", "conv2d_weight")


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_convolutions_agree_with_the_definition(op, case, dtype):
    image, channels, window = CASES[case]
    first, second, shape = problem(op, image, channels, window, dtype)
    got = convolution.run(op, (first, second), window, shape)
    close(got, reference(op, first, second, window, shape), dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("seed", range(12))
def test_any_window_will_do(op, seed):
    rng = np.random.default_rng(seed)
    pair = lambda low, high: tuple(int(v) for v in rng.integers(low, high + 1, 2))  # noqa: E731
    window = Window(pair(1, 4), pair(1, 3), pair(0, 3), pair(1, 3), int(rng.integers(1, 3)))
    g = window.groups
    image = (int(rng.integers(1, 4)), g * int(rng.integers(1, 5)), *pair(10, 40))
    dtype = F32 if seed % 2 else F64
    first, second, shape = problem(op, image, g * int(rng.integers(1, 15)), window, dtype, seed)
    got = convolution.run(op, (first, second), window, shape)
    close(got, reference(op, first, second, window, shape), dtype)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("op", OPS)
def test_narrower_vectors(op, width, dtype, monkeypatch):
    """What processors without 512-bit vectors and masks run."""
    for name in ("convolution", "convtiles", "convsums"):
        monkeypatch.setattr(
            f"everygrad.backends.cpu.{name}.machine",
            lambda dtype: convcode.Machine(width // dtype.itemsize, 16, False),
        )
    make = getattr(convolution, op)
    for image, channels, window in CASES[1:8:2]:
        first, second, shape = problem(op, image, channels, window, dtype)
        out = np.empty(shape, dtype)
        work = make(*map(workrun.operand, (first, second)), window, workrun.operand(out))
        workrun.run(work, [out], [first, second])
        close(out, reference(op, first, second, window, shape), dtype)


@pytest.mark.parametrize("op", OPS)
def test_inputs_of_any_layout(op):
    image, channels, window = (2, 4, 18, 20), 6, Window((3, 3), (2, 1), (1, 1), (1, 1))
    first, second, shape = problem(op, image, channels, window, F32)
    want = reference(op, first, second, window, shape)
    last = lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)  # noqa: E731
    backwards = lambda a: np.ascontiguousarray(a[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1]  # noqa: E731
    for view in (last, backwards):
        close(convolution.run(op, (view(first), view(second)), window, shape), want, F32)
    first[:] = first[:1, :1, :1, :1]
    spread = np.broadcast_to(first[:1, :1, :1, :1], first.shape)
    got = convolution.run(op, (spread, second), window, shape)
    close(got, reference(op, first, second, window, shape), F32)


@pytest.mark.parametrize("op", OPS)
def test_the_number_of_threads_changes_no_bit(op):
    before = threads.num_threads()
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    first, second, shape = problem(op, (5, 12, 24, 24), 40, window, F32)
    try:
        results = []
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            results.append(convolution.run(op, (first, second), window, shape))
    finally:
        threads.set_num_threads(before)
    assert all(np.array_equal(results[0], r) for r in results)


def test_infinities_stay_where_they_are():
    """Gaps between rows are not places: what lies there is not multiplied, even by zero."""
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    x, y, shape = problem("conv2d_weight", (1, 1, 14, 14), 1, window, F32)
    x[0, 0, 5, 0], y[0, 0, :, 0] = np.inf, 0.0
    y[0, 0, :, 1] = 1.0
    with np.errstate(invalid="ignore"):
        want = reference("conv2d_weight", x, y, window, shape)
        got = convolution.run("conv2d_weight", (x, y), window, shape)
    assert np.array_equal(np.isnan(want), np.isnan(got))
    assert np.array_equal(np.isinf(want), np.isinf(got))


def test_rows_are_joined_where_lanes_would_be_wasted():
    with_masks, without = convcode.Machine(16, 32, True), convcode.Machine(8, 16, False)
    assert joined_rows((16, 16), 18, with_masks) == 1
    assert joined_rows((7, 7), 9, with_masks) == 7
    assert joined_rows((7, 7), 9, without) == 1


POOLS = [
    ((2, 3, 32, 32), Window((2, 2), (2, 2), (0, 0), (1, 1))),
    ((2, 3, 9, 11), Window((2, 2), (2, 2), (0, 0), (1, 1))),
    ((1, 2, 20, 33), Window((3, 3), (2, 2), (1, 1), (1, 1))),
    ((1, 2, 20, 33), Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((1, 2, 14, 14), Window((14, 14), (14, 14), (0, 0), (1, 1))),
    ((2, 1, 30, 31), Window((5, 4), (3, 3), (2, 1), (1, 2))),
    ((1, 1, 3, 40), Window((1, 12), (1, 5), (0, 6), (1, 1))),
]


def _winners(x, window):
    """The places of the winners, found one window at a time."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw), _ = window
    out = np.empty((*x.shape[:2], *window.out_size(x.shape)), np.int64)
    h, w = x.shape[2:]
    for n, c, oy, ox in np.ndindex(*out.shape):
        rows = [oy * sh - ph + i * dh for i in range(kh)]
        columns = [ox * sw - pw + j * dw for j in range(kw)]
        at = [(r, k) for r in rows for k in columns if 0 <= r < h and 0 <= k < w]
        values = np.array([x[n, c, r, k] for r, k in at])
        r, k = at[int(np.argmax(values))]  # the first NaN, else the first of the largest
        out[n, c, oy, ox] = r * w + k
    return out


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("case", range(len(POOLS)))
def test_pooling_finds_the_first_of_the_largest_and_nan(case, dtype):
    shape, window = POOLS[case]
    rng = np.random.default_rng(case)
    x = rng.integers(-3, 4, shape).astype(dtype)
    x[rng.random(shape) < 0.05] = np.nan
    x[rng.random(shape) < 0.3] = -np.inf
    want = _winners(x, window)
    for view in (x, np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)):
        got = convolution.run("max_pool2d_index", (view,), window, want.shape)
        assert got.dtype == np.int64
        assert np.array_equal(got, want)


def test_large_ones_run_natively_and_small_ones_do_not(monkeypatch):
    ran = []
    run = convolution.run
    monkeypatch.setattr(convolution, "run", lambda op, *rest: ran.append(op) or run(op, *rest))
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    for size, native in ((4, False), (32, True)):
        x = np.ones((2, 3, size, size), F32)
        w = np.ones((8, 3, 3, 3), F32)
        y = kernels.conv2d(x, w, window)
        kernels.conv2d_input(y, w, window, x.shape)
        kernels.conv2d_weight(x, y, window, w.shape)
        kernels.max_pool2d_index(y, window)
        assert ran == ([*OPS, "max_pool2d_index"] if native else [])


def test_half_precision_is_computed_in_float32():
    x, w = np.ones((2, 4, 20, 20), np.float16), np.full((9, 4, 3, 3), 0.5, np.float16)
    out = kernels.conv2d(x, w, Window((3, 3), (1, 1), (0, 0), (1, 1)))
    assert out.dtype == np.float16
    assert (out == 18).all()


def test_gradients_of_a_large_convolution():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 8, 16, 16)), rng.standard_normal((12, 8, 3, 3))
    tx, tw = tensor(x, requires_grad=True), tensor(w, requires_grad=True)
    out = conv2d_op(tx, tw, stride=2, padding=1)
    (out * out).sum().backward()
    window = Window((3, 3), (2, 2), (1, 1), (1, 1))
    g = 2 * reference("conv2d", x, w, window, out.shape)
    close(tx.grad.numpy(), reference("conv2d_input", g, w, window, x.shape), F64)
    close(tw.grad.numpy(), reference("conv2d_weight", x, g, window, w.shape), F64)

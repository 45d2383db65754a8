"""Native convolutions and pooling against a direct definition, position by position."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes, tensor
from everygrad.backends import thread_pool
from everygrad.backends.cpu import registry
from everygrad.backends.cpu.conv import conv_tiles, convolution
from everygrad.backends.cpu.conv.conv_sums import merged_rows
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm import vector_emitter
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.ops.nn.conv2d import Window, conv2d as conv2d_op

F32, F64 = np.float32, np.float64

# image (batch, channels, height, width), output channels, window
CASES = [
    ((2, 3, 32, 32), 32, Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((2, 8, 16, 16), 20, Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((1, 5, 14, 14), 7, Window((3, 3), (1, 1), (1, 1), (1, 1))),  # rows shorter than a vector
    ((2, 4, 7, 7), 9, Window((3, 3), (1, 1), (1, 1), (1, 1))),
    ((2, 3, 2, 3), 2, Window((3, 3), (1, 1), (1, 1), (1, 1))),  # fewer positions than lanes
    ((1, 4, 29, 57), 6, Window((3, 3), (2, 2), (1, 1), (1, 1))),
    ((1, 3, 40, 40), 8, Window((7, 7), (2, 2), (3, 3), (1, 1))),
    ((2, 6, 20, 21), 5, Window((5, 5), (1, 1), (2, 2), (1, 1))),
    ((2, 70, 20, 20), 9, Window((1, 1), (1, 1), (0, 0), (1, 1))),  # read in place, without a copy
    ((1, 300, 24, 24), 9, Window((1, 1), (1, 1), (0, 0), (1, 1))),  # several slabs
    ((2, 6, 9, 9), 5, Window((1, 1), (2, 2), (0, 0), (1, 1))),  # phases without taps
    ((2, 3, 20, 35), 4, Window((3, 2), (1, 1), (0, 0), (1, 1))),
    ((1, 2, 19, 23), 3, Window((2, 3), (3, 2), (2, 1), (2, 3))),
    ((1, 2, 11, 10), 3, Window((3, 3), (4, 5), (1, 0), (2, 1))),  # elements that no window covers
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
    """The code for processors without 512-bit vectors and masks."""
    for name in ("convolution", "conv_tiles", "conv_sums"):
        monkeypatch.setattr(
            f"everygrad.backends.cpu.conv.{name}.machine",
            lambda dtype: vector_emitter.VectorUnit(width // dtype.itemsize, 16, False),
        )
    make = getattr(convolution, op)
    for image, channels, window in CASES[1:8:2]:
        first, second, shape = problem(op, image, channels, window, dtype)
        out = np.empty(shape, dtype)
        work = make(*map(run_work.layout_of, (first, second)), window, run_work.layout_of(out))
        run_work.run(work, [out], [first, second])
        close(out, reference(op, first, second, window, shape), dtype)


def assert_each_close(got, want, sizes, dtype):
    """Compares with a bound by the sum of the magnitudes of the terms of each element."""
    assert got.dtype == dtype
    eps = np.finfo(dtype).eps
    worst = np.max(np.abs(got.astype(F64) - want) / (sizes + 1e-300))
    assert worst <= 64 * eps, f"{worst / eps:.3g} eps"


# of processors with 256-bit vectors, with 128, and with 512 where this one has them: LLVM cannot
# write their masked instructions for another
MACHINES = [(32, 16, False), (16, 16, False)]
if engine().features.get("avx512f") and engine().features.get("avx512vl"):
    MACHINES.append((64, 32, True))


@pytest.mark.parametrize("op", OPS)
def test_kernels_of_one_tap_at_every_edge_of_their_tiles(op, monkeypatch):
    """Depths of one slab and of several; channels and positions that fill their tiles and that do
    not, so that the last tile overlaps the one before it; rows with gaps between them."""
    slabs, moved = set(), set()
    write = conv_tiles._CorrelationWriter.write

    def noted(self):
        p, tile = self.p, self.tile
        slabs.add(min(self.slabs, 3))
        if self.slabs > 1:
            edge = p.rows % tile.rows > 0, p.size[1] % (tile.across * self.code.lanes) > 0
            moved.add((*edge, p.size[0] % tile.down > 0))
        return write(self)

    monkeypatch.setattr(conv_tiles._CorrelationWriter, "write", noted)
    for (width, registers, masks), dtype in itertools.product(MACHINES, (F32, F64)):
        for name in ("convolution", "conv_tiles", "conv_sums"):
            made = vector_emitter.VectorUnit(width // dtype().itemsize, registers, masks)
            monkeypatch.setattr(f"everygrad.backends.cpu.conv.{name}.machine", lambda _, m=made: m)
        for k in range(32):
            _check_one_tap(op, dtype, made.lanes, k)
    if op != "conv2d_weight":
        assert slabs == {1, 2, 3}
        assert all(any(m[a] for m in moved) for a in range(3)), moved


def _check_one_tap(op, dtype, lanes, seed):
    rng = np.random.default_rng([seed, lanes])
    deep = int(rng.choice([1, 31, 96, 128, 193, 400, 521, 1100]))
    channels = int(rng.choice([1, 8, 17, 19, 23, 24, 31, 37]))
    h, w = (int(v) for v in rng.integers(1, 20, 2))
    gap = seed % 2 * int(rng.integers(1, 4))  # rows are longer than the part that is read
    if gap:  # just wide enough to be read in place: tiles of several rows
        w = lanes * (1 + seed // 2 % 2) + seed % 3
    n, m = (channels, deep) if op == "conv2d_input" else (deep, channels)
    window = Window((1, 1), (1, 1), (0, 0), (1, 1))
    first, second, shape = problem(op, (1 + seed % 2, n, h, w), m, window, dtype, seed)
    if gap:
        first = np.concatenate([first, first[..., :1].repeat(gap, -1)], -1)[..., :w]
    out = np.empty(shape, dtype)
    x, y, result = map(run_work.layout_of, (first, second, out))
    run_work.run(getattr(convolution, op)(x, y, window, result), [out], [first, second])
    sizes = reference(op, abs(first), abs(second), window, shape)
    assert_each_close(out, reference(op, first, second, window, shape), sizes, dtype)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_kernels_of_one_tap_by_their_public_names(axes, transposed):
    """The same kernels through every public op that uses them."""
    name = f"conv{axes}d" if not transposed else f"conv_transpose{axes}d"
    rng = np.random.default_rng(axes)
    for k in range(6):
        deep, channels = (int(v) for v in rng.integers(100, 600, 2))
        deep, channels = (deep, channels % 60 + 1) if k % 2 else (deep % 60 + 1, channels)
        places = [int(v) for v in rng.integers(1, {1: 300, 2: 18, 3: 8}[axes], axes)]
        x = rng.standard_normal((2, deep, *places)).astype(F32)
        w = rng.standard_normal((channels, deep)).astype(F32)
        g = rng.standard_normal((2, channels, *places)).astype(F32)
        kernel = np.ascontiguousarray(w.T if transposed else w)
        tx = tensor(x, requires_grad=True)
        tw = tensor(kernel.reshape(*kernel.shape, *[1] * axes), requires_grad=True)
        out = getattr(eg, name)(tx, tw)
        out.backward(tensor(g))
        by = lambda text, a, b: (  # noqa: E731
            np.einsum(text, a.astype(F64), b.astype(F64)),
            np.einsum(text, abs(a).astype(F64), abs(b).astype(F64)),
        )
        assert_each_close(out.detach().numpy(), *by("nc...,oc->no...", x, w), F32)
        assert_each_close(tx.grad.numpy(), *by("no...,oc->nc...", g, w), F32)
        flat = g.reshape(2, channels, -1), x.reshape(2, deep, -1)
        got = tw.grad.numpy().reshape(kernel.shape)
        assert_each_close(got.T if transposed else got, *by("noz,ncz->oc", *flat), F32)


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
    before = thread_pool.num_threads()
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    first, second, shape = problem(op, (5, 12, 24, 24), 40, window, F32)
    try:
        results = []
        for count in (1, 2, 3):
            thread_pool.set_num_threads(count)
            results.append(convolution.run(op, (first, second), window, shape))
    finally:
        thread_pool.set_num_threads(before)
    assert all(np.array_equal(results[0], r) for r in results)


def test_infinities_stay_where_they_are():
    """Gaps between rows are not positions: their contents are not multiplied, even by zero."""
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    x, y, shape = problem("conv2d_weight", (1, 1, 14, 14), 1, window, F32)
    x[0, 0, 5, 0], y[0, 0, :, 0] = np.inf, 0.0
    y[0, 0, :, 1] = 1.0
    with np.errstate(invalid="ignore"):
        want = reference("conv2d_weight", x, y, window, shape)
        got = convolution.run("conv2d_weight", (x, y), window, shape)
    assert np.array_equal(np.isnan(want), np.isnan(got))
    assert np.array_equal(np.isinf(want), np.isinf(got))


def test_rows_are_merged_where_lanes_would_be_wasted():
    with_masks, without = (
        vector_emitter.VectorUnit(16, 32, True),
        vector_emitter.VectorUnit(8, 16, False),
    )
    assert merged_rows((16, 16), 18, with_masks) == 1
    assert merged_rows((7, 7), 9, with_masks) == 7
    assert merged_rows((7, 7), 9, without) == 1


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
    """The indices of the largest elements, found one window at a time."""
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
        y = registry.conv2d(x, w, window)
        registry.conv2d_input(y, w, window, x.shape)
        registry.conv2d_weight(x, y, window, w.shape)
        registry.max_pool2d_index(y, window)
        assert ran == ([*OPS, "max_pool2d_index"] if native else [])


def test_half_precision_is_computed_in_float32():
    x, w = np.ones((2, 4, 20, 20), np.float16), np.full((9, 4, 3, 3), 0.5, np.float16)
    out = registry.conv2d(x, w, Window((3, 3), (1, 1), (0, 0), (1, 1)))
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


@pytest.mark.parametrize("op", OPS)
def test_images_side_by_side(op, monkeypatch):
    """Any number of images side by side, the last of them missing or not, gives the same sums."""
    for (width, registers, masks), dtype in itertools.product(MACHINES, (F32, F64)):
        made = vector_emitter.VectorUnit(width // dtype().itemsize, registers, masks)
        for name in ("convolution", "conv_tiles", "conv_sums"):
            monkeypatch.setattr(f"everygrad.backends.cpu.conv.{name}.machine", lambda _, m=made: m)
        for seed in range(12):
            rng = np.random.default_rng([seed, made.lanes])
            images = min(2 << seed % 4, made.lanes)
            monkeypatch.setattr(convolution, "_side_by_side", lambda *_, n=images: n)
            pair = lambda low, high: tuple(int(v) for v in rng.integers(low, high + 1, 2))  # noqa: E731, B023
            window = Window(pair(1, 3), pair(1, 3), pair(0, 2), pair(1, 2), int(rng.integers(1, 3)))
            g = window.groups
            image = (int(rng.integers(1, 2 * images + 2)), g * int(rng.integers(1, 4)), *pair(5, 9))
            first, second, shape = problem(op, image, g * int(rng.integers(1, 9)), window, dtype)
            if seed % 2:  # images that lie apart from each other
                first = np.concatenate([first, first + 1], 1)[:, : first.shape[1]]
            out = np.empty(shape, dtype)
            x, y, result = map(run_work.layout_of, (first, second, out))
            run_work.run(getattr(convolution, op)(x, y, window, result), [out], [first, second])
            sizes = reference(op, abs(first), abs(second), window, shape)
            assert_each_close(out, reference(op, first, second, window, shape), sizes, dtype)


def test_short_rows_are_read_side_by_side_where_that_is_faster():
    """A batch of images narrower than a vector is; one image, or wide images, are not."""
    lanes = vector_emitter.machine(dtypes.float32).lanes
    for width, batch in itertools.product((lanes // 4, 2 * lanes), (1, 16)):
        first, second, shape = problem(
            "conv2d", (batch, 64, width, width), 64, Window((3, 3), (1, 1), (1, 1), (1, 1)), F32
        )
        out = run_work.layout_of(np.empty(shape, F32))
        given = map(run_work.layout_of, (first, second))
        work = convolution.conv2d(*given, Window((3, 3), (1, 1), (1, 1), (1, 1)), out)
        assert len(work.steps) == (3 if batch > 1 and width < lanes else 2)

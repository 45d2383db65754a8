"""Convolutions of bfloat16 images on processors with dot products of bfloat16 pairs.

Images are copied so that two channels lie side by side, as pairs of 32 bits, and kernels likewise;
the tiles of `conv_tiles` then sum over pairs of channels, in float32, and round once. A kernel of
one tap, without stride and padding, is a matrix product (`pointwise`). The gradient of the kernel
sums over positions: its pairs are neighbouring positions, which need no pairing copy
(`convolution.conv2d_weight`).

Inputs and the result are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

from everygrad.backends.cpu.conv import convolution, pointwise
from everygrad.backends.cpu.conv.conv_tiles import Correlation, Tap, correlate
from everygrad.backends.cpu.conv.convolution import (
    interleave_step,
    phases_of,
    read_axis,
)
from everygrad.backends.cpu.conv.padded_planes import PaddedAxis, PaddedPlanes, fill_planes
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm.bf16_vectors import PairVectors
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import (
    FIRST,
    OUT,
    SCRATCH,
    SECOND,
    Int,
    has_bf16_dots,
    machine,
)
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.core.shapes import Shape
from everygrad.dtypes import DType, bfloat16, float32


def serves(dtype: DType) -> bool:
    """Whether this processor multiplies pairs of such elements."""
    return dtype is bfloat16 and has_bf16_dots()


def conv2d(x: ArrayLayout, w: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """Correlates images with kernels (out channels, channels / groups, height, width)."""
    size, stride, padding, dilation, groups = window
    rows, depth = w.shape[0] // groups, w.shape[1]
    if pointwise.is_product(window):
        return pointwise.conv2d(x, w, out, groups)
    down, across = (
        read_axis(x.shape[2 + a], out.shape[2 + a], size[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    planes = _pair_planes(x, groups, down, across)
    reads = [
        planes.offset_of(i * dilation[0], j * dilation[1])
        for i, j in product(range(size[0]), range(size[1]))
    ]
    taps = (tuple((read, tap) for tap, read in enumerate(reads)),)
    kernels_at = (rows * w.strides[0], w.strides[0], w.strides[1])
    positions = (out.shape[2], out.shape[3])
    return _correlated(
        x, w, out, planes, (groups, rows, depth), kernels_at, taps, positions, window
    )


def conv2d_input(y: ArrayLayout, w: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """The gradient of the image, shaped like `out`, from the result's."""
    size, stride, padding, dilation, groups = window
    rows, depth = w.shape[1], w.shape[0] // groups
    if pointwise.is_product(window):
        return pointwise.conv2d_input(y, w, out, groups)
    down, across = (
        phases_of(out.shape[2 + a], y.shape[2 + a], size[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    planes = _pair_planes(y, groups, down.axis, across.axis)
    taps: tuple[tuple[Tap, ...], ...] = tuple(
        tuple(
            (planes.offset_of(i, j), ti * size[1] + tj) for (ti, i), (tj, j) in product(some, other)
        )
        for some, other in product(down.taps, across.taps)
    )
    kernels_at = (depth * w.strides[0], w.strides[1], w.strides[0])
    positions = (down.positions, across.positions)
    work = _correlated(
        y, w, out, planes, (groups, rows, depth), kernels_at, taps, positions, window
    )
    if len(taps) == 1:
        return work
    used = work.scratch // 4
    area = out.shape[0] * out.shape[1] * len(taps) * down.positions * across.positions
    interleave = interleave_step(down, across, window, out, used)
    return Work((*work.steps, interleave), (used + area + 64) * 4)


def conv2d_weight(x: ArrayLayout, y: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """The gradient of the kernel, shaped like `out`, from the image and the result's gradient."""
    if pointwise.is_product(window) and pointwise.sums_side_by_side(x):
        return pointwise.conv2d_weight(x, y, out, window[4])
    return convolution.conv2d_weight(x, y, window, out)


# --- pairs of channels ---------------------------------------------------------------------------


def _correlated(
    x: ArrayLayout,
    w: ArrayLayout,
    out: ArrayLayout,
    planes: PaddedPlanes,
    sizes: tuple[int, int, int],
    kernels_at: tuple[int, int, int],
    taps: tuple[tuple[Tap, ...], ...],
    positions: tuple[int, int],
    window: Any,
) -> Work:
    """Copies of images and kernels as pairs, and their correlation: `out`, or with several phases
    those, as float32 behind the copies. `sizes`: groups, rows and depth; `kernels_at`: the strides
    of the kernels along these."""
    groups, rows, depth = sizes
    pairs, count = -(-depth // 2), window[0][0] * window[0][1]
    used = planes.elements
    kernels = groups * rows * pairs * count
    end = -(-(used + kernels + machine(float32).lanes) // 16) * 16
    several = len(taps) > 1
    problem = Correlation(
        float32,
        x.shape[0],
        groups,
        rows,
        pairs,
        positions,
        planes.image,
        (SCRATCH, used, rows * pairs * count, pairs * count, count),
        taps,
        (SCRATCH, end) if several else (OUT, out.offset),
        pairs=True,
        rounds=not several,
    )
    steps = (
        _pair_images(planes, x, groups),
        _pair_kernels(w, sizes, kernels_at, count, used),
        correlate(problem),
    )
    return Work(steps, end * 4)


def _pair_planes(x: ArrayLayout, groups: int, down: PaddedAxis, across: PaddedAxis) -> PaddedPlanes:
    """The planes of an image of which each channel is a pair of x's channels."""
    pairs = groups * -(-(x.shape[1] // groups) // 2)
    seen = contiguous(float32, (x.shape[0], pairs, *x.shape[2:]))
    return PaddedPlanes(FIRST, seen, down, across, 0)


def _pair_images(p: PaddedPlanes, x: ArrayLayout, groups: int) -> Step:
    """Fill the planes; one block is one pair of channels of one image. Channels of a group pair up;
    the last may have none beside it."""
    depth, stride = x.shape[1] // groups, p.across.stride
    c = PairVectors(machine(float32).lanes)
    given, copies = c.at(c.argument(FIRST), x.offset, "i16"), c.argument(SCRATCH, p.offset)
    with c.loop(*c.blocks) as block:
        rest, pair = c.divmod(block.index, -(-depth // 2))
        channel = c.mul(pair, 2)
        first = c.at(given, c.mul(c.add(c.mul(rest, depth), channel), x.strides[1]), "i16")
        second = c.at(first, x.strides[1], "i16")
        is_last = c.compare_ints("sge", channel, depth - 1) if depth % 2 else None

        def part(row: Int, at: Int, inside: range) -> Value:
            place = c.add(c.mul(row, x.strides[2]), at)
            low, high = (c.at(image, place, "i16") for image in (first, second))
            both = _single(c, low, inside, stride), _single(c, high, inside, stride, is_last)
            return c.interleaved(*both)

        fill_planes(c, p, c.at(copies, c.mul(block.index, p.channel)), part)
    return c.step(p.source.shape[0] * p.source.shape[1])


def _single(
    c: PairVectors, address: Value, inside: range, stride: int, missing: Value | None = None
) -> Value:
    """Elements of a contiguous row, `stride` apart; zeros where they are not inside, or where the
    row is missing."""
    if not len(inside):
        return c.short.zero
    first, last = inside.start * stride, (inside.stop - 1) * stride + 1
    parts = []
    for k in range(0, c.lanes * stride, c.lanes):
        read = range(*(min(max(0, end - k), c.lanes) for end in (first, last)))
        mask = c.these_lanes(read)
        mask = mask if missing is None else c.none_if(missing, mask)
        at = c.at(address, k, "i16")
        is_whole = missing is None and len(read) == c.lanes
        parts.append(c.load(at, c.short.vector) if is_whole else c.load_where(at, mask, c.short))
    return parts[0] if stride == 1 else _every(c, parts, stride)


def _every(c: PairVectors, parts: list[Value], stride: int) -> Value:
    """Every `stride`-th element of vectors one after the other."""
    made = Value(c.short.vector, "zeroinitializer")
    for k, part in enumerate(parts):
        order = list(range(c.lanes))
        for lane in range(c.lanes):
            inside = lane * stride - k * c.lanes
            if 0 <= inside < c.lanes:
                order[lane] = c.lanes + inside
        made = c.shuffle(made, part, order)
    return made


def _pair_kernels(
    w: ArrayLayout,
    sizes: tuple[int, int, int],
    kernels_at: tuple[int, int, int],
    taps: int,
    offset: int,
) -> Step:
    """Kernels as (group, row, pair, tap), each tap a pair, `offset` floats into scratch memory; one
    block is one row."""
    groups, rows, depth = sizes
    by_group, by_row, by_depth = kernels_at
    c = PairVectors(machine(float32).lanes)
    given, copies = c.at(c.argument(SECOND), w.offset, "i16"), c.argument(SCRATCH, offset)
    pairs = -(-depth // 2)
    with c.loop(*c.blocks) as block:
        g, row = c.divmod(block.index, rows)
        mine = c.at(given, c.add(c.mul(g, by_group), c.mul(row, by_row)), "i16")
        to = c.at(copies, c.mul(block.index, pairs * taps))
        with c.loop(0, pairs) as pair:
            channel = c.mul(pair.index, 2)
            first = c.at(mine, c.mul(channel, by_depth), "i16")
            second = c.at(first, by_depth, "i16")
            is_pair = c.compare_ints("slt", channel, depth - 1)
            count = c.select(is_pair, c.i64(taps), c.i64(0))
            target = c.at(to, c.mul(pair.index, taps))
            with c.loop(0, -(-taps // c.lanes)) as v:
                at = c.mul(v.index, c.lanes)
                mask = c.below(at, taps)
                low = c.load_where(c.at(first, at, "i16"), mask, c.short)
                high = c.load_where(c.at(second, at, "i16"), c.below(at, count), c.short)
                c.store_where(c.interleaved(low, high), c.at(target, at), mask)
    return c.step(groups * rows)


# --- eagerly -------------------------------------------------------------------------------------

_MAKERS: dict[str, Callable[..., Work]] = {
    "conv2d": conv2d,
    "conv2d_input": conv2d_input,
    "conv2d_weight": conv2d_weight,
}


@lru_cache(maxsize=512)
def _work(op: str, inputs: tuple[ArrayLayout, ...], window: Any, out: Shape) -> Work:
    return _MAKERS[op](*inputs, window, contiguous(bfloat16, out))


def run(op: str, arrays: tuple[Any, ...], window: Any, shape: Shape) -> Any:
    """The result of an op on contiguous NumPy arrays of bfloat16."""
    work = _work(op, tuple(map(run_work.layout_of, arrays)), window, shape)
    out = empty(shape, arrays[0].dtype)
    run_work.run(work, [out], arrays)
    return out

"""Convolutions of bfloat16 with kernels of one tap, without stride and padding, as matrix products.

Kernels times the channels of each image make the result's. Where images have so few positions
that vectors along them are badly filled, all images are laid side by side first, which makes one
wide product, and the results are taken apart. The gradient of the kernel sums over positions: side
by side, those of all images are one long sum.
"""

from __future__ import annotations

from typing import Any

from everygrad.backends.cpu.gemm.gemm import matmul
from everygrad.backends.cpu.llvm.vector_emitter import (
    FIRST,
    OUT,
    SCRATCH,
    SECOND,
    VectorEmitter,
    machine,
)
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import bfloat16

# positions of an image from which vectors along them are filled well enough
WIDE = edge(__name__, "WIDE", 128, "size")
# positions of an image from which the gradient of the kernel is not worth copies of images
LONG = edge(__name__, "LONG", 1024, "size")


def is_product(window: Any) -> bool:
    size, stride, padding, _, _ = window
    return tuple(size) == (1, 1) == tuple(stride) and not any(padding)


def conv2d(x: ArrayLayout, w: ArrayLayout, out: ArrayLayout, groups: int) -> Work:
    """Correlates images with kernels (out channels, channels / groups, 1, 1)."""
    rows, depth = w.shape[0] // groups, w.shape[1]
    return _product(_kernels(w, (groups, rows, depth), (depth, 1)), x, out)


def conv2d_input(y: ArrayLayout, w: ArrayLayout, out: ArrayLayout, groups: int) -> Work:
    """The gradient of the image, shaped like `out`, from the result's."""
    rows, depth = w.shape[1], w.shape[0] // groups
    return _product(_kernels(w, (groups, rows, depth), (1, rows)), y, out)


def sums_side_by_side(x: ArrayLayout) -> bool:
    """Whether the gradient of the kernel should be a product of images side by side."""
    return x.shape[0] > 1 and size_of(x.shape[2:]) < LONG


def conv2d_weight(x: ArrayLayout, y: ArrayLayout, out: ArrayLayout, groups: int) -> Work:
    """The gradient of the kernel, shaped like `out`, from the image and the result's gradient."""
    rows, depth = y.shape[1] // groups, x.shape[1] // groups
    length = x.shape[0] * size_of(x.shape[2:])
    made = contiguous(bfloat16, (groups, rows, depth))._replace(offset=out.offset)

    def product(first: int) -> Work:
        left = _wide((groups, rows, length), first)
        right = _wide((groups, depth, length), first + left.size)
        right = right._replace(shape=(groups, length, depth), strides=(depth * length, 1, length))
        return matmul(left, right, made, (SCRATCH, SCRATCH))

    used = _after(product(0).scratch)
    work, end = product(used), used + y.shape[1] * length
    steps = (_side_by_side(SECOND, y, used), _side_by_side(FIRST, x, end), *work.steps)
    return Work(steps, 2 * (end + x.shape[1] * length))


def _kernels(w: ArrayLayout, shape: tuple[int, int, int], strides: tuple[int, int]) -> ArrayLayout:
    """Kernels as matrices (group, row, depth); strides along the latter two."""
    return ArrayLayout(w.dtype, shape, (shape[1] * shape[2], *strides), w.offset)


def _product(kernels: ArrayLayout, x: ArrayLayout, out: ArrayLayout) -> Work:
    """Kernels times the channels of images; arguments come as those of a convolution."""
    (groups, rows, depth), batch, positions = kernels.shape, x.shape[0], size_of(x.shape[2:])
    if batch > 1 and positions < WIDE:
        return _wide_product(kernels, x, out)

    def channels(image: ArrayLayout, count: int) -> ArrayLayout:
        whole = contiguous(image.dtype, (batch, groups, count, positions))
        return whole._replace(offset=image.offset)

    repeated = ArrayLayout(
        kernels.dtype, (batch, *kernels.shape), (0, *kernels.strides), kernels.offset
    )
    return matmul(repeated, channels(x, depth), channels(out, rows), (SECOND, FIRST))


def _wide_product(kernels: ArrayLayout, x: ArrayLayout, out: ArrayLayout) -> Work:
    """The same with the images, and the results, side by side in scratch memory."""
    groups, rows, depth = kernels.shape
    length = x.shape[0] * size_of(x.shape[2:])

    def product(first: int) -> Work:
        seen = _wide((groups, depth, length), first)
        made = _wide((groups, rows, length), first + seen.size)
        return matmul(kernels, seen, made, (SECOND, SCRATCH), SCRATCH)

    used = _after(product(0).scratch)
    work, end = product(used), used + x.shape[1] * length
    steps = (_side_by_side(FIRST, x, used), *work.steps, _apart(out, end))
    return Work(steps, 2 * (end + out.shape[1] * length))


# --- images side by side -------------------------------------------------------------------------


def _wide(shape: tuple[int, int, int], offset: int) -> ArrayLayout:
    return contiguous(bfloat16, shape)._replace(offset=offset)


def _after(nbytes: int) -> int:
    """The first element behind the scratch memory of a product, in whole cache lines."""
    return -(-nbytes // 64) * 32


def _side_by_side(argument: int, x: ArrayLayout, to: int) -> Step:
    """Copies images to (channel, image, position), `to` elements into scratch memory."""
    batch, channels, positions = x.shape[0], x.shape[1], size_of(x.shape[2:])
    apart, wide = (positions, channels * positions), (batch * positions, positions)
    return _moved((argument, x.offset), apart, (SCRATCH, to), wide, (channels, batch, positions))


def _apart(out: ArrayLayout, begin: int) -> Step:
    """The other way round."""
    batch, channels, positions = out.shape[0], out.shape[1], size_of(out.shape[2:])
    apart, wide = (positions, channels * positions), (batch * positions, positions)
    return _moved((SCRATCH, begin), wide, (OUT, out.offset), apart, (channels, batch, positions))


def _moved(
    given: tuple[int, int],
    given_strides: tuple[int, int],
    to: tuple[int, int],
    to_strides: tuple[int, int],
    sizes: tuple[int, int, int],
) -> Step:
    """Copies runs of positions, for each channel and image; one block is one channel. `given` and
    `to`: arguments and offsets, with strides along channels and images."""
    channels, batch, positions = sizes
    c = VectorEmitter(bfloat16, machine(bfloat16).lanes)
    source, target = c.argument(*given), c.argument(*to)
    whole = positions // c.lanes
    with c.loop(*c.blocks) as block, c.loop(0, batch) as n:
        ours, theirs = (
            c.at(base, c.add(c.mul(block.index, by_channel), c.mul(n.index, by_image)))
            for base, (by_channel, by_image) in ((source, given_strides), (target, to_strides))
        )
        with c.loop(0, whole) as v:
            at = c.mul(v.index, c.lanes)
            c.store(c.load(c.at(ours, at)), c.at(theirs, at))
        if positions % c.lanes:
            mask, at = c.first_lanes(positions % c.lanes), whole * c.lanes
            c.store_where(c.load_where(c.at(ours, at), mask), c.at(theirs, at), mask)
    return c.step(channels)

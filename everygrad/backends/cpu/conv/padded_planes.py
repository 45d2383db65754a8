"""Padded copies of images, which kernels of convolutions read.

The copy resolves strides: elements a stride apart become neighbours, in one plane for each
remainder. Several images may lie side by side (CHWN), as one image of wider elements.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import (
    SCRATCH,
    Image,
    Int,
    VectorEmitter,
    machine,
)
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step


class PaddedAxis(NamedTuple):
    """One axis of an image that is copied: padded element i * stride + r goes to plane r, index i.

    `before` zeros precede the `size` elements; each plane has `length` elements.
    """

    size: int
    stride: int
    before: int
    planes: int
    length: int


class PaddedPlanes(NamedTuple):
    """A padded copy: for each image and channel down.planes * across.planes planes. Elements of
    `images` images at a time lie side by side (CHWN), as one image of wider elements."""

    argument: int  # what is copied
    source: ArrayLayout
    down: PaddedAxis
    across: PaddedAxis
    offset: int  # in scratch memory, elements
    images: int = 1

    @property
    def plane(self) -> int:
        """Elements of one plane, with at least a vector of slack, since kernels read and write
        whole vectors at its end."""
        lanes = machine(self.source.dtype).lanes
        return -(-self.down.length * self.pitch // lanes) * lanes + lanes

    @property
    def pitch(self) -> int:
        return self.across.length * self.images

    @property
    def batches(self) -> int:
        """Images side by side count as one."""
        return -(-self.source.shape[0] // self.images)

    @property
    def channel(self) -> int:
        return self.down.planes * self.across.planes * self.plane

    @property
    def elements(self) -> int:
        return self.batches * self.source.shape[1] * self.channel

    @property
    def image(self) -> Image:
        batch = self.source.shape[1] * self.channel
        return Image(SCRATCH, self.offset, batch, self.channel, self.pitch)

    def offset_of(self, y: int, x: int) -> int:
        """The offset of element (y, x) of the padded image for the first output position."""
        (down, r), (across, s) = divmod(y, self.down.stride), divmod(x, self.across.stride)
        plane = (r * self.across.planes + s) * self.plane
        return plane + down * self.pitch + across * self.images


def copy_step(p: PaddedPlanes) -> Step:
    """Fill the planes; one block is one channel of one image."""
    if p.images > 1:
        return side_by_side(p)
    source, down, across = p.source, p.down, p.across
    strides = source.strides
    c = VectorEmitter(source.dtype, machine(source.dtype).lanes)
    given, copies = c.argument(p.argument, source.offset), c.argument(SCRATCH, p.offset)
    with c.loop(*c.blocks) as block:
        n, channel = c.divmod(block.index, source.shape[1])
        image = c.at(given, c.add(c.mul(n, strides[0]), c.mul(channel, strides[1])))
        to = c.at(copies, c.mul(block.index, p.channel))
        with c.loop(0, down.planes) as r, c.loop(0, across.planes) as s:
            plane = c.add(c.mul(r.index, across.planes), s.index)
            start = c.at(to, c.mul(plane, p.plane))
            first = c.sub(s.index, across.before)
            with c.loop(0, down.length) as i:
                y = c.sub(c.add(c.mul(i.index, down.stride), r.index), down.before)
                inside = c.compare_ints("ult", y, down.size)
                width = c.select(inside, c.i64(across.size), c.i64(0))
                row = c.at(image, c.mul(y, strides[2]))
                target = c.at(start, c.mul(i.index, across.length))
                with c.loop(0, -(-across.length // c.lanes)) as j:
                    x = c.add(c.mul(j.index, c.lanes * across.stride), first)
                    at = c.at(row, c.mul(x, strides[3]))
                    value = _strided(c, at, x, width, (across.stride, strides[3]))
                    c.store(value, c.at(target, c.mul(j.index, c.lanes)))
    return c.step(source.shape[0] * source.shape[1])


def side_by_side(p: PaddedPlanes) -> Step:
    """Fill planes of several images; one block is one channel of them."""
    source, down, across, images = p.source, p.down, p.across, p.images
    strides = source.strides
    c = VectorEmitter(source.dtype, machine(source.dtype).lanes)
    given, copies = c.argument(p.argument, source.offset), c.argument(SCRATCH, p.offset)
    # a vector holds `images` images at each of lanes / images positions
    steps = [k // images * across.stride for k in range(c.lanes)]
    numbers = [k % images for k in range(c.lanes)]
    apart = [x * strides[3] + n * strides[0] for x, n in zip(steps, numbers, strict=True)]
    kind = "i32" if max(map(abs, apart)) < 1 << 31 else "i64"
    every = source.shape[0] % images == 0
    with c.loop(*c.blocks) as block:
        batch, channel = c.divmod(block.index, source.shape[1])
        n = c.mul(batch, images)
        image = c.at(given, c.add(c.mul(n, strides[0]), c.mul(channel, strides[1])))
        to = c.at(copies, c.mul(block.index, p.channel))
        there = None if every else c.each_below(numbers, 0, c.minus(source.shape[0], n))
        with c.loop(0, down.planes) as r, c.loop(0, across.planes) as s:
            plane = c.add(c.mul(r.index, across.planes), s.index)
            start = c.at(to, c.mul(plane, p.plane))
            first = c.sub(s.index, across.before)
            with c.loop(0, down.length) as i:
                y = c.sub(c.add(c.mul(i.index, down.stride), r.index), down.before)
                inside = c.compare_ints("ult", y, down.size)
                width = c.select(inside, c.i64(across.size), c.i64(0))
                row = c.at(image, c.mul(y, strides[2]))
                target = c.at(start, c.mul(i.index, p.pitch))
                with c.loop(0, -(-p.pitch // c.lanes)) as j:
                    x = c.add(c.mul(j.index, c.lanes // images * across.stride), first)
                    mask = c.each_below(steps, x, width)
                    mask = mask if there is None else c.op("and", mask, there)
                    value = c.gather(
                        c.at(row, c.mul(x, strides[3])), c.constants(apart, kind), mask
                    )
                    c.store(value, c.at(target, c.mul(j.index, c.lanes)))
    return c.step(p.batches * source.shape[1])


def _strided(
    c: VectorEmitter, address: Value, x: Int, width: Int, strides: tuple[int, int]
) -> Value:
    """Elements x, x + strides[0] and so on of a row, strides[1] apart in memory; zero outside of
    [0, width)."""
    step, apart = strides
    if strides == (2, 1):
        return c.evens(address, c.below(x, width), c.below(c.add(x, c.lanes), width))
    mask = c.below(x, width, step)
    if step * apart == 1:
        return c.load_where(address, mask)
    kind = "i32" if abs(step * apart) * c.lanes < 1 << 31 else "i64"
    return c.gather(address, c.lane_numbers(step * apart, kind), mask)

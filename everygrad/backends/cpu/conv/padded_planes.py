"""Padded copies of images, which kernels of convolutions read.

The copy resolves strides: elements a stride apart become neighbours, in one plane for each
remainder. Several images may lie side by side (CHWN), as one image of wider elements.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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

    def inside(self, plane: int) -> range:
        """Which elements of a plane exist; the others are zeros."""
        first = -((plane - self.before) // self.stride)
        end = (self.size - 1 + self.before - plane) // self.stride + 1
        return range(min(max(0, first), self.length), max(0, min(end, self.length)))


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
    source, strides = p.source, p.source.strides
    c = VectorEmitter(source.dtype, machine(source.dtype).lanes)
    given, copies = c.argument(p.argument, source.offset), c.argument(SCRATCH, p.offset)
    with c.loop(*c.blocks) as block:
        n, channel = c.divmod(block.index, source.shape[1])
        image = c.at(given, c.add(c.mul(n, strides[0]), c.mul(channel, strides[1])))
        to = c.at(copies, c.mul(block.index, p.channel))

        def part(row: Int, x: Int, inside: range) -> Value:
            at = c.at(c.at(image, c.mul(row, strides[2])), c.mul(x, strides[3]))
            return _strided(c, at, inside, (p.across.stride, strides[3]))

        fill_planes(c, p, to, part)
    return c.step(source.shape[0] * source.shape[1])


def fill_planes(
    c: VectorEmitter, p: PaddedPlanes, to: Value, part: Callable[[Int, Int, range], Value]
) -> None:
    """Code that writes the planes of a channel to `to`. `part` reads a vector of a row: elements x,
    x + stride and so on, of which those numbered `inside` exist and the others are zero."""
    filled = [p.down.inside(r) for r in range(p.down.planes)]
    starts, stops = ([getattr(rows, end) for rows in filled] for end in ("start", "stop"))
    with c.loop(0, p.down.planes) as r:
        plane = c.mul(r.index, p.across.planes * p.plane)
        begin, end = (_of(c, ends, r.index) for ends in (starts, stops))
        for s in range(p.across.planes):
            start = c.at(to, c.add(plane, s * p.plane))
            # a row ends in a whole vector, which reaches into the next row: that is written later
            runs = ((0, begin, None), (begin, end, part), (end, p.down.length, None))
            for first, last, read in runs:
                with c.loop(first, last) as i:
                    target = c.at(start, c.mul(i.index, p.across.length))
                    row = c.sub(c.add(c.mul(i.index, p.down.stride), r.index), p.down.before)
                    _fill_row(c, p.across, s, target, read and partial(read, row))


def _of(c: VectorEmitter, values: list[int], index: Int) -> Int:
    return values[index] if isinstance(index, int) else c.lookup(c.table(values), index)


def _fill_row(
    c: VectorEmitter,
    across: PaddedAxis,
    plane: int,
    to: Value,
    part: Callable[[Int, range], Value] | None,
) -> None:
    """Code that writes a row of a plane; zeros without `part`. Which elements of a vector exist is
    known here, so that only those at the edges of the image are masked."""
    inside = across.inside(plane) if part else range(0)

    def one(vector: Int, there: range) -> None:
        at = c.mul(vector, c.lanes)
        x = c.sub(c.add(c.mul(at, across.stride), plane), across.before)
        c.store(part(x, there) if part and len(there) else c.zero, c.at(to, at))

    vectors = range(-(-across.length // c.lanes))
    first, last = -(-inside.start // c.lanes), inside.stop // c.lanes
    whole = range(first, max(first, last))
    for k in vectors[: whole.start]:
        one(k, _within(inside, k * c.lanes, c.lanes))
    with c.loop(whole.start, whole.stop) as middle:
        one(middle.index, range(c.lanes))
    for k in vectors[whole.stop :]:
        one(k, _within(inside, k * c.lanes, c.lanes))


def _within(inside: range, first: int, lanes: int) -> range:
    """Which of `lanes` elements from `first` on are inside."""
    low, high = (min(max(0, end - first), lanes) for end in (inside.start, inside.stop))
    return range(low, max(low, high))


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


def _strided(c: VectorEmitter, address: Value, inside: range, strides: tuple[int, int]) -> Value:
    """Elements of a row, strides[0] positions apart, a position being strides[1] elements; zero
    where they are not inside."""
    step, apart = strides
    if step * apart == 1:
        return c.load_lanes(address, inside)
    if strides == (2, 1):
        return every_second(c, address, inside)
    kind = "i32" if abs(step * apart) * c.lanes < 1 << 31 else "i64"
    return c.gather(address, c.lane_numbers(step * apart, kind), c.these_lanes(inside))


def every_second(c: VectorEmitter, address: Value, inside: range) -> Value:
    """Every other element of two vectors, those inside: far faster than a gather."""
    read = range(2 * inside.start, max(2 * inside.start, 2 * inside.stop - 1))
    low, high = (c.load_lanes(c.at(address, k), _within(read, k, c.lanes)) for k in (0, c.lanes))
    return c.shuffle(low, high, range(0, 2 * c.lanes, 2))

"""Convolutions of images (batch, channels, height, width) as native work, float32 and float64.

Where padding or strides need it, images are first copied, padded, into scratch memory, and the
kernels read the copy. The copy resolves strides: elements a stride apart become neighbours, in one
plane for each remainder ("phase"). The input gradient of a strided convolution works the other way
round: each phase of the result is a convolution with some of the taps, and a last step interleaves
the phases.

Inputs may have any strides, the result is contiguous. `window` is (size, stride, padding, dilation,
groups), as in ops/nn/conv2d.py. Arguments of the steps: the result, the two inputs, scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from everygrad.backends.cpu.conv.conv_sums import WeightGradient, merged_rows, plan, weight_gradient
from everygrad.backends.cpu.conv.conv_tiles import Correlation, Tap, correlate
from everygrad.backends.cpu.conv.pooling import max_pool2d_index as max_pool2d_index
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import (
    FIRST,
    OUT,
    SCRATCH,
    SECOND,
    Image,
    Int,
    VectorEmitter,
    machine,
)
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape
from everygrad.dtypes import DType, int64


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
    """A padded copy: for each image and channel down.planes * across.planes planes."""

    argument: int  # what is copied
    source: ArrayLayout
    down: PaddedAxis
    across: PaddedAxis
    offset: int  # in scratch memory, elements

    @property
    def plane(self) -> int:
        """Elements of one plane, with at least a vector of slack, since kernels read and write
        whole vectors at its end."""
        lanes = machine(self.source.dtype).lanes
        return -(-self.down.length * self.across.length // lanes) * lanes + lanes

    @property
    def channel(self) -> int:
        return self.down.planes * self.across.planes * self.plane

    @property
    def elements(self) -> int:
        return self.source.shape[0] * self.source.shape[1] * self.channel

    @property
    def image(self) -> Image:
        batch = self.source.shape[1] * self.channel
        return Image(SCRATCH, self.offset, batch, self.channel, self.across.length)

    def offset_of(self, y: int, x: int) -> int:
        """The offset of element (y, x) of the padded image for the first output position."""
        (down, r), (across, s) = divmod(y, self.down.stride), divmod(x, self.across.stride)
        plane = (r * self.across.planes + s) * self.plane
        return plane + down * self.across.length + across


def copy_step(p: PaddedPlanes) -> Step:
    """Fill the planes; one block is one channel of one image."""
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


def _bytes(elements: int, x: ArrayLayout) -> int:
    return elements * x.dtype.itemsize


# --- forward -------------------------------------------------------------------------------------


def _read_axis(
    size: int, count: int, k: int, stride: int, padding: int, dilation: int
) -> PaddedAxis:
    """The padded axis that a kernel of k taps reads at `count` positions."""
    reach = [t * dilation for t in range(k)]
    planes = max(r % stride for r in reach) + 1
    return PaddedAxis(size, stride, padding, planes, count + max(r // stride for r in reach))


def _uncopied(p: PaddedPlanes, width: int) -> Image | None:
    """The images in place, if the copy would equal them and vectors of `width` positions read
    nothing beyond them."""
    x = p.source
    for axis in (p.down, p.across):
        if axis.stride != 1 or axis.before or axis.length > axis.size:
            return None
    if x.strides[3] != 1 or x.strides[2] < x.shape[3] or width < machine(x.dtype).lanes:
        return None
    return Image(p.argument, x.offset, x.strides[0], x.strides[1], x.strides[2])


class ImageReads(NamedTuple):
    """Where a kernel reads images: in place, or from a copy that a step makes first."""

    image: Image
    planes: PaddedPlanes
    steps: tuple[Step, ...]
    elements: int

    def offset_of(self, y: int, x: int) -> int:
        """The offset of element (y, x) of the padded image for the first output position."""
        return self.planes.offset_of(y, x) if self.steps else y * self.image.pitch + x


def _reads(planes: PaddedPlanes, width: int) -> ImageReads:
    image = _uncopied(planes, width)
    if image is not None:
        return ImageReads(image, planes, (), 0)
    return ImageReads(planes.image, planes, (copy_step(planes),), planes.elements)


def _forward(argument: int, x: ArrayLayout, count: tuple[int, int], window: Any) -> ImageReads:
    """The reads of a kernel at `count` positions."""
    size, stride, padding, dilation, _ = window
    down, across = (
        _read_axis(x.shape[2 + a], count[a], size[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    return _reads(PaddedPlanes(argument, x, down, across, 0), count[1])


def _taps(reads: ImageReads, window: Any) -> list[int]:
    (kh, kw), (dh, dw) = window[0], window[3]
    return [reads.offset_of(i * dh, j * dw) for i in range(kh) for j in range(kw)]


def conv2d(x: ArrayLayout, w: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """Correlates images with kernels (out channels, channels / groups, height, width)."""
    (kh, kw), groups = window[0], window[4]
    size = (out.shape[2], out.shape[3])
    reads = _forward(FIRST, x, size, window)
    rows, depth = w.shape[0] // groups, w.shape[1]
    weights = [i * w.strides[2] + j * w.strides[3] for i in range(kh) for j in range(kw)]
    step = correlate(
        Correlation(
            x.dtype,
            x.shape[0],
            groups,
            rows,
            depth,
            size,
            reads.image,
            (SECOND, w.offset, rows * w.strides[0], w.strides[0], w.strides[1]),
            (tuple(zip(_taps(reads, window), weights, strict=True)),),
            (OUT, out.offset),
        )
    )
    return Work((*reads.steps, step), _bytes(reads.elements, x))


# --- the gradient of the image -------------------------------------------------------------------


class Phases(NamedTuple):
    """One axis of the image's gradient. Elements y with (y + padding) % stride == r are phase r:
    `positions` of them (the last may not exist). Position j reads element offset + j of y's padded
    axis for each (tap, offset)."""

    axis: PaddedAxis
    positions: int
    taps: tuple[tuple[tuple[int, int], ...], ...]
    first: tuple[int, ...]  # the position of a phase's element y is (y + padding) // stride - first


def _phases(size: int, count: int, k: int, stride: int, padding: int, dilation: int) -> Phases:
    first = [-((r - padding) // stride) for r in range(stride)]
    lengths = [len(range(stride * q + r - padding, size, stride)) for r, q in enumerate(first)]
    most = max(lengths)
    steps = [
        [(t, (t * dilation - r) // stride) for t in range(k) if t * dilation % stride == r]
        for r in range(stride)
    ]
    back = [e - q for taps, q in zip(steps, first, strict=True) for _, e in taps]
    before = max(0, *back) if back else 0
    taps = tuple(
        tuple((t, before + q - e) for t, e in some) for some, q in zip(steps, first, strict=True)
    )
    length = most + max((offset for some in taps for _, offset in some), default=0)
    return Phases(PaddedAxis(count, 1, before, 1, length), most, taps, tuple(first))


def conv2d_input(y: ArrayLayout, w: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """The gradient of the image, shaped like `out`, from the result's."""
    size, stride, padding, dilation, groups = window
    down, across = (
        _phases(out.shape[2 + a], y.shape[2 + a], size[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    reads = _reads(PaddedPlanes(FIRST, y, down.axis, across.axis, 0), across.positions)
    taps: list[tuple[Tap, ...]] = [
        tuple(
            (reads.offset_of(i, j), ti * w.strides[2] + tj * w.strides[3])
            for (ti, i), (tj, j) in product(some, other)
        )
        for some, other in product(down.taps, across.taps)
    ]
    direct = len(taps) == 1
    depth, rows = w.shape[0] // groups, w.shape[1]
    problem = Correlation(
        y.dtype,
        y.shape[0],
        groups,
        rows,
        depth,
        (down.positions, across.positions),
        reads.image,
        (SECOND, w.offset, depth * w.strides[0], w.strides[1], w.strides[0]),
        tuple(taps),
        (OUT, out.offset) if direct else (SCRATCH, reads.elements),
    )
    steps = (*reads.steps, correlate(problem))
    if direct:
        return Work(steps, _bytes(reads.elements, y))
    channels = out.shape[0] * out.shape[1]
    interleaved = channels * len(taps) * down.positions * across.positions
    interleave = _interleave_step(down, across, window, out, reads.elements)
    return Work((*steps, interleave), _bytes(reads.elements + interleaved + 64, y))


def _interleave_step(
    down: Phases, across: Phases, window: Any, out: ArrayLayout, offset: int
) -> Step:
    """Interleaves phases (phase, channel, positions) into image rows; one block is a channel."""
    _, (sh, sw), (ph, pw), _, _ = window
    channels, (h, w) = out.shape[0] * out.shape[1], out.shape[2:]
    plane = down.positions * across.positions
    c = VectorEmitter(out.dtype, machine(out.dtype).lanes)
    columns = [
        (x + pw) % sw * channels * plane + (x + pw) // sw - across.first[(x + pw) % sw]
        for x in range(w)
    ]
    offsets = c.table([*columns, *[0] * c.lanes])
    firsts = c.table(down.first)
    phases, to = c.argument(SCRATCH, offset), c.argument(OUT, out.offset)
    kind = f"<{c.lanes} x i64>"
    with c.loop(*c.blocks) as block:
        image = c.at(phases, c.mul(block.index, plane))
        target = c.at(to, c.mul(block.index, h * w))
        with c.loop(0, h) as y:
            q, r = c.divmod(c.add(y.index, ph), sh)
            j = c.minus(q, c.lookup(firsts, r))
            shift = c.add(c.mul(r, sw * channels * plane), c.mul(j, across.positions))
            row, line = c.at(image, shift), c.at(target, c.mul(y.index, w))
            with c.loop(0, -(-w // c.lanes)) as v:
                x = c.mul(v.index, c.lanes)
                mask = c.below(0, c.minus(w, x))
                if sw == 2 and w > 1:
                    half = c.mul(v.index, c.lanes // 2)
                    even, odd = (c.load(c.at(c.at(row, columns[k]), half)) for k in (0, 1))
                    order = [k // 2 + k % 2 * c.lanes for k in range(c.lanes)]
                    value = c.shuffle(even, odd, order)
                else:
                    value = c.gather(row, c.load(c.at(offsets, x, "i64"), kind), mask)
                c.store_where(value, c.at(line, x), mask)
    return c.step(channels)


# --- the gradient of the kernel ------------------------------------------------------------------


def _as_is(argument: int, y: ArrayLayout, pitch: int) -> Image | None:
    """An image whose rows can be read in place, `pitch` apart; None otherwise."""
    if y.strides[3] != 1 or y.strides[2] != pitch:
        return None
    return Image(argument, y.offset, y.strides[0], y.strides[1], y.strides[2])


def conv2d_weight(x: ArrayLayout, y: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """The gradient of the kernel, shaped like `out`, from the image and the result's gradient."""
    groups, size = window[4], (y.shape[2], y.shape[3])
    reads = _forward(FIRST, x, size, window)
    image, steps, used = reads.image, list(reads.steps), reads.elements
    merged = merged_rows(size, image.pitch, machine(x.dtype))
    same = y.strides[2] if merged == 1 else image.pitch
    given = _as_is(SECOND, y, same)
    if given is None:
        down = PaddedAxis(size[0], 1, 0, 1, size[0])
        copy = PaddedPlanes(SECOND, y, down, PaddedAxis(size[1], 1, 0, 1, image.pitch), used)
        steps.append(copy_step(copy))
        given, used = copy.image, used + copy.elements
    problem = WeightGradient(
        x.dtype,
        x.shape[0],
        groups,
        y.shape[1] // groups,
        x.shape[1] // groups,
        size,
        given,
        image,
        tuple(_taps(reads, window)),
        (OUT, out.offset),
        merged,
    )
    parts = plan(problem).parts
    if parts == 1:
        return Work((*steps, weight_gradient(problem)), _bytes(used, x))
    steps += [weight_gradient(problem._replace(out=(SCRATCH, used))), _total_step(out, parts, used)]
    return Work(tuple(steps), _bytes(used + parts * out.size, x))


_RUN = edge(__name__, "_RUN", 1 << 12, "elements")  # elements per block that adds partial sums


def _total_step(out: ArrayLayout, parts: int, offset: int) -> Step:
    """The second stage: adds `parts` partial sums shaped like `out`, first to last."""
    c = VectorEmitter(out.dtype, machine(out.dtype).lanes)
    given, to = c.argument(SCRATCH, offset), c.argument(OUT, out.offset)
    blocks = -(-out.size // _RUN)
    with c.loop(*c.blocks) as block:
        first = c.mul(block.index, _RUN)
        with c.loop(0, _RUN // c.lanes) as v:
            x = c.add(first, c.mul(v.index, c.lanes))
            mask = c.below(x, out.size)
            with c.loop(0, parts, [c.zero]) as part:
                value = c.load_where(c.at(c.at(given, x), c.mul(part.index, out.size)), mask)
                part.next = [c.op("fadd", part.values[0], value)]
            c.store_where(part.values[0], c.at(to, x), mask)
    return c.step(blocks)


# --- eagerly -------------------------------------------------------------------------------------


class _Maker(NamedTuple):
    """Makes the work of an op; the result has `dtype`, or else that of the first input."""

    work: Callable[..., Work]
    dtype: DType | None = None


_MAKERS = {
    "conv2d": _Maker(conv2d),
    "conv2d_input": _Maker(conv2d_input),
    "conv2d_weight": _Maker(conv2d_weight),
    "max_pool2d_index": _Maker(max_pool2d_index, int64),
}


@lru_cache(maxsize=512)
def _work(op: str, inputs: tuple[ArrayLayout, ...], window: Any, out: Shape) -> Work:
    maker = _MAKERS[op]
    return maker.work(*inputs, window, contiguous(maker.dtype or inputs[0].dtype, out))


def run(op: str, arrays: tuple[Any, ...], window: Any, shape: Shape) -> Any:
    """The result of an op on NumPy arrays."""
    work = _work(op, tuple(map(run_work.layout_of, arrays)), window, shape)
    dtype = _MAKERS[op].dtype
    out = empty(shape, arrays[0].dtype if dtype is None else dtype.np)
    run_work.run(work, [out], arrays)
    return out

"""Convolutions of images (batch, channels, height, width) as native work, float32 and float64.

Where padding or strides need it, images are first copied, padded, into scratch memory, and the
kernels read the copy. The copy resolves strides: elements a stride apart become neighbours, in one
plane for each remainder ("phase"). The input gradient of a strided convolution works the other way
round: each phase of the result is a convolution with some of the taps, and a last step interleaves
the phases.

Images whose rows are short for the vectors are copied with the batch as the innermost axis (CHWN),
several images side by side: to the kernels they are one image with longer rows. The last step then
takes the results apart.

Inputs may have any strides, the result is contiguous. `window` is (size, stride, padding, dilation,
groups), as in ops/nn/conv2d.py. Arguments of the steps: the result, the two inputs, scratch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

from everygrad.backends.cpu.conv.conv_sums import (
    WeightGradient,
    dot_cycles,
    merged_rows,
    plan,
    weight_gradient,
)
from everygrad.backends.cpu.conv.conv_tiles import Correlation, Tap, correlate, cycles
from everygrad.backends.cpu.conv.padded_planes import PaddedAxis, PaddedPlanes, copy_step
from everygrad.backends.cpu.conv.pooling import max_pool2d_index as max_pool2d_index
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm.bf16_vectors import rounded
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import (
    FIRST,
    OUT,
    SCRATCH,
    SECOND,
    Image,
    VectorEmitter,
    machine,
)
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import DType, bfloat16, float32, int64


def _bytes(elements: int, x: ArrayLayout) -> int:
    return elements * x.dtype.itemsize


# --- forward -------------------------------------------------------------------------------------


def read_axis(
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
    image = _uncopied(planes, width) if planes.images == 1 else None
    if image is not None:
        return ImageReads(image, planes, (), 0)
    return ImageReads(planes.image, planes, (copy_step(planes),), planes.elements)


def _forward(
    argument: int, x: ArrayLayout, count: tuple[int, int], window: Any, images: int
) -> ImageReads:
    """The reads of a kernel at `count` positions."""
    size, stride, padding, dilation, _ = window
    down, across = (
        read_axis(x.shape[2 + a], count[a], size[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    return _reads(PaddedPlanes(argument, x, down, across, 0, images), count[1])


def _taps(reads: ImageReads, window: Any) -> list[int]:
    (kh, kw), (dh, dw) = window[0], window[3]
    return [reads.offset_of(i * dh, j * dw) for i in range(kh) for j in range(kw)]


# cycles to copy an element that is gathered, on the way to or from images side by side
_COPIED = 1.5


def _side_by_side(batch: int, lanes: int, cycles: Callable[[int], float], elements: int) -> int:
    """How many images to copy side by side: 1 where that is no faster. `elements` are copied."""
    some = [1 << k for k in range(lanes.bit_length()) if 1 << k < 2 * batch]
    return min(some, key=lambda n: cycles(n) + (_COPIED * elements if n > 1 else 0))


def conv2d(x: ArrayLayout, w: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """Correlates images with kernels (out channels, channels / groups, height, width)."""
    (kh, kw), groups = window[0], window[4]
    (h, wide), batch = out.shape[2:], x.shape[0]
    rows, depth = w.shape[0] // groups, w.shape[1]
    weights = [i * w.strides[2] + j * w.strides[3] for i in range(kh) for j in range(kw)]

    @cache
    def problem(images: int) -> tuple[ImageReads, Correlation]:
        reads = _forward(FIRST, x, (h, wide), window, images)
        return reads, Correlation(
            x.dtype,
            -(-batch // images),
            groups,
            rows,
            depth,
            (h, wide * images),
            reads.image,
            (SECOND, w.offset, rows * w.strides[0], w.strides[0], w.strides[1]),
            (tuple(zip(_taps(reads, window), weights, strict=True)),),
            (OUT, out.offset) if images == 1 else (SCRATCH, reads.elements),
        )

    lanes = machine(x.dtype).lanes
    images = _side_by_side(batch, lanes, lambda n: cycles(problem(n)[1]), x.size + out.size)
    reads, found = problem(images)
    steps = (*reads.steps, correlate(found))
    if images == 1:
        return Work(steps, _bytes(reads.elements, x))
    last = _apart_step(out, reads.elements, images)
    made = found.batch * out.shape[1] * h * wide * images
    return Work((*steps, last), _bytes(reads.elements + made, x))


def _apart_step(out: ArrayLayout, offset: int, images: int) -> Step:
    """Takes results of images side by side apart."""
    line = ArrayLayout(out.dtype, (*out.shape[:2], 1, size_of(out.shape[2:])), (), out.offset)
    down, across = (Phases(PaddedAxis(n, 1, 0, 1, n), n, ((),), (0,)) for n in line.shape[2:])
    return interleave_step(down, across, (None, (1, 1), (0, 0)), line, offset, images)


# --- the gradient of the image -------------------------------------------------------------------


class Phases(NamedTuple):
    """One axis of the image's gradient. Elements y with (y + padding) % stride == r are phase r:
    `positions` of them (the last may not exist). Position j reads element offset + j of y's padded
    axis for each (tap, offset)."""

    axis: PaddedAxis
    positions: int
    taps: tuple[tuple[tuple[int, int], ...], ...]
    first: tuple[int, ...]  # the position of a phase's element y is (y + padding) // stride - first


def phases_of(size: int, count: int, k: int, stride: int, padding: int, dilation: int) -> Phases:
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
        phases_of(out.shape[2 + a], y.shape[2 + a], size[a], stride[a], padding[a], dilation[a])
        for a in (0, 1)
    )
    depth, rows, batch = w.shape[0] // groups, w.shape[1], y.shape[0]

    @cache
    def problem(images: int) -> tuple[ImageReads, Correlation]:
        planes = PaddedPlanes(FIRST, y, down.axis, across.axis, 0, images)
        reads = _reads(planes, across.positions)
        taps: list[tuple[Tap, ...]] = [
            tuple(
                (reads.offset_of(i, j), ti * w.strides[2] + tj * w.strides[3])
                for (ti, i), (tj, j) in product(some, other)
            )
            for some, other in product(down.taps, across.taps)
        ]
        direct = len(taps) == images == 1
        return reads, Correlation(
            y.dtype,
            -(-batch // images),
            groups,
            rows,
            depth,
            (down.positions, across.positions * images),
            reads.image,
            (SECOND, w.offset, depth * w.strides[0], w.strides[1], w.strides[0]),
            tuple(taps),
            (OUT, out.offset) if direct else (SCRATCH, reads.elements),
        )

    lanes = machine(y.dtype).lanes
    images = _side_by_side(batch, lanes, lambda n: cycles(problem(n)[1]), y.size + out.size)
    reads, found = problem(images)
    steps = (*reads.steps, correlate(found))
    if found.out[0] == OUT:
        return Work(steps, _bytes(reads.elements, y))
    if len(found.taps) == 1:
        last = _apart_step(out, reads.elements, images)
    else:
        last = interleave_step(down, across, window, out, reads.elements, images)
    planes = found.batch * images * out.shape[1] * len(found.taps)
    made = planes * down.positions * across.positions
    return Work((*steps, last), _bytes(reads.elements + made + 64, y))


def interleave_step(
    down: Phases, across: Phases, window: Any, out: ArrayLayout, offset: int, images: int = 1
) -> Step:
    """Interleaves phases (phase, channel, positions, images side by side) into image rows; one
    block is a channel of these images."""
    (sh, sw), (ph, pw) = window[1:3]
    (batch, channels, h, w) = out.shape
    plane = down.positions * across.positions * images
    blocks = -(-batch // images) * channels
    c, made = _sums_of(out)
    columns = [
        (x + pw) % sw * blocks * plane + ((x + pw) // sw - across.first[(x + pw) % sw]) * images
        for x in range(w)
    ]
    offsets = c.table([*columns, *[0] * c.lanes])
    firsts = c.table(down.first)
    phases, to = c.argument(SCRATCH, offset), c.at(c.argument(OUT), out.offset, made)
    kind = f"<{c.lanes} x i64>"
    with c.loop(*c.blocks) as block:
        upper, channel = c.divmod(block.index, channels)
        first = c.mul(upper, images)
        mine = c.at(phases, c.mul(block.index, plane))
        with c.loop(0, c.least(c.minus(batch, first), images) if images > 1 else 1) as n:
            image = c.at(mine, n.index)
            number = c.add(c.mul(c.add(first, n.index), channels), channel)
            target = c.at(to, c.mul(number, h * w), made)
            with c.loop(0, h) as y:
                q, r = c.divmod(c.add(y.index, ph), sh)
                j = c.minus(q, c.lookup(firsts, r))
                shift = c.add(c.mul(r, sw * blocks * plane), c.mul(j, across.positions * images))
                row, line = c.at(image, shift), c.at(target, c.mul(y.index, w), made)
                with c.loop(0, -(-w // c.lanes)) as v:
                    x = c.mul(v.index, c.lanes)
                    mask = c.below(0, c.minus(w, x))
                    if sw == 2 and w > 1 and images == 1:
                        half = c.mul(v.index, c.lanes // 2)
                        even, odd = (c.load(c.at(c.at(row, columns[k]), half)) for k in (0, 1))
                        order = [k // 2 + k % 2 * c.lanes for k in range(c.lanes)]
                        value = c.shuffle(even, odd, order)
                    else:
                        value = c.gather(row, c.load(c.at(offsets, x, "i64"), kind), mask)
                    c.store_where(_as_result(c, value, out), c.at(line, x, made), mask)
    return c.step(blocks)


def _sums_of(out: ArrayLayout) -> tuple[VectorEmitter, str]:
    """An emitter for the sums that become `out`, and the type of its elements in memory: sums over
    bfloat16 are float32."""
    dtype = float32 if out.dtype is bfloat16 else out.dtype
    c = VectorEmitter(dtype, machine(dtype).lanes)
    return c, c.element if dtype is out.dtype else "i16"


def _as_result(c: VectorEmitter, value: Value, out: ArrayLayout) -> Value:
    return rounded(c, value, c.lanes) if out.dtype is bfloat16 else value


# --- the gradient of the kernel ------------------------------------------------------------------


def _as_is(argument: int, y: ArrayLayout, pitch: int) -> Image | None:
    """An image whose rows can be read in place, `pitch` apart; None otherwise."""
    if y.strides[3] != 1 or y.strides[2] != pitch:
        return None
    return Image(argument, y.offset, y.strides[0], y.strides[1], y.strides[2])


def conv2d_weight(x: ArrayLayout, y: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """The gradient of the kernel, shaped like `out`, from the image and the result's gradient."""
    batch, lanes = x.shape[0], machine(x.dtype).lanes
    found = cache(partial(_weight_problem, x, y, window, out))
    images = _side_by_side(batch, lanes, lambda n: dot_cycles(found(n)[0]), x.size + y.size)
    problem, copies, used = found(images)
    steps = [copy_step(c) for c in copies]
    parts, each = plan(problem).parts, problem.sums.itemsize
    if parts == 1 and problem.sums is out.dtype:
        return Work((*steps, weight_gradient(problem)), _bytes(used, x))
    first = -(-_bytes(used, x) // each)
    steps += [
        weight_gradient(problem._replace(out=(SCRATCH, first))),
        total_step(out, parts, first),
    ]
    return Work(tuple(steps), (first + parts * out.size) * each)


def _weight_problem(
    x: ArrayLayout, y: ArrayLayout, window: Any, out: ArrayLayout, images: int
) -> tuple[WeightGradient, list[PaddedPlanes], int]:
    """What is summed, which copies are made before, and how many elements they have."""
    groups, (h, w) = window[4], y.shape[2:]
    reads = _forward(FIRST, x, (h, w), window, images)
    image, used = reads.image, reads.elements
    copies = [reads.planes] if reads.steps else []
    size = (h, w * images)
    merged = merged_rows(size, image.pitch, machine(x.dtype))
    same = y.strides[2] if merged == 1 else image.pitch
    given = _as_is(SECOND, y, same) if images == 1 else None
    if given is None:
        pitch = image.pitch // images
        down, across = PaddedAxis(h, 1, 0, 1, h), PaddedAxis(w, 1, 0, 1, pitch)
        copy = PaddedPlanes(SECOND, y, down, across, used, images)
        copies.append(copy)
        given, used = copy.image, used + copy.elements
    problem = WeightGradient(
        x.dtype,
        -(-x.shape[0] // images),
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
    return problem, copies, used


_RUN = edge(__name__, "_RUN", 1 << 12, "elements")  # elements per block that adds partial sums


def total_step(out: ArrayLayout, parts: int, offset: int) -> Step:
    """The second stage: adds `parts` partial sums shaped like `out`, first to last."""
    c, made = _sums_of(out)
    given, to = c.argument(SCRATCH, offset), c.at(c.argument(OUT), out.offset, made)
    blocks = -(-out.size // _RUN)
    with c.loop(*c.blocks) as block:
        first = c.mul(block.index, _RUN)
        with c.loop(0, _RUN // c.lanes) as v:
            x = c.add(first, c.mul(v.index, c.lanes))
            mask = c.below(x, out.size)
            with c.loop(0, parts, [c.zero]) as part:
                value = c.load_where(c.at(c.at(given, x), c.mul(part.index, out.size)), mask)
                part.next = [c.op("fadd", part.values[0], value)]
            total = _as_result(c, part.values[0], out)
            c.store_where(total, c.at(to, x, made), mask)
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

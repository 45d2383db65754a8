"""The inner loop of convolutions, as LLVM IR: kernels correlated with images.

A tile of output channels times a few vectors of positions stays in registers while the loop runs
over the taps of the kernel. Positions are contiguous in memory, so a tap is a constant offset, and
there is no im2col. A tile at an edge moves back to end there and computes some positions twice with
the same result, which takes less code than a second kernel for the remainder. Where the depth is
split into slabs that accumulate in memory, a tile stores only positions that no earlier tile did.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from everygrad.backends.cpu.llvm.bf16_vectors import PairVectors, rounded
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import (
    NEAR,
    Image,
    Int,
    VectorEmitter,
    VectorUnit,
    machine,
    positions_of,
)
from everygrad.backends.cpu.llvm.work import Step
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

Tap = tuple[int, int]  # offsets from a position's own element: in the image, in the kernel


class Correlation(NamedTuple):
    """out[phase, n, g, m, position] = sum over c and the phase's taps of
    w[g, m, c, tap] * image[n, g, c, position + tap]; positions are `size` of the image's rows."""

    dtype: DType
    batch: int
    groups: int
    rows: int  # output channels of a group
    depth: int  # input channels of a group
    size: tuple[int, int]
    image: Image
    weight: tuple[int, int, int, int, int]  # argument, offset, strides by g, m, c
    taps: tuple[tuple[Tap, ...], ...]  # for each phase
    out: tuple[int, int]  # argument, offset; contiguous
    pairs: bool = False  # elements of w and the image are pairs of bfloat16, of two channels
    rounds: bool = False  # out is bfloat16


class CorrelationTile(NamedTuple):
    """rows x vectors of positions. mode: "row", `across` vectors in each of `down` rows; "narrow",
    the same with rows shorter than a vector; "flat", consecutive vectors over the image's rows and
    the gaps between them, which are masked out of the stores."""

    mode: str
    rows: int
    down: int
    across: int

    @property
    def vectors(self) -> int:
        return self.down * self.across


def _shapes(p: Correlation, m: VectorUnit) -> Iterator[tuple[CorrelationTile, int]]:
    """Every tile that fits the registers, with the number of them that cover an image."""
    (h, w), lanes = p.size, m.lanes
    fitting = [
        (r, v) for r, v in product(range(1, 17), range(1, 9)) if r * v + v + 2 <= m.registers
    ]
    for rows, vectors in fitting:
        if rows > p.rows:
            continue
        flat = positions_of(p.size, p.image.pitch)
        if m.masks and vectors * lanes <= flat and w != lanes:
            yield CorrelationTile("flat", rows, 1, vectors), -(-flat // (vectors * lanes))
        for down in (d for d in range(1, vectors + 1) if vectors % d == 0 and d <= h):
            across = vectors // down
            if across * lanes <= w:
                count = -(-h // down) * -(-w // (across * lanes))
                yield CorrelationTile("row", rows, down, across), count
            elif across == 1:
                yield CorrelationTile("narrow", rows, down, 1), -(-h // down)


def _cycles(p: Correlation, tile: CorrelationTile, count: int) -> float:
    """An estimate: two multiply-adds or two loads a cycle; vectors may straddle cache lines."""
    sums = tile.rows * tile.vectors
    bound = max(sums / 2, (tile.rows + 2 * tile.vectors) / 2, 4.0)
    each = bound + 0.4 * tile.vectors + 0.15 * tile.rows + 0.3
    taps = p.depth * sum(len(t) for t in p.taps) / len(p.taps)
    stores = sums * (4 if tile.mode == "flat" else 1)
    return count * -(-p.rows // tile.rows) * (taps * each + stores + 20)


def best_tile(p: Correlation) -> tuple[CorrelationTile, int]:
    """The tile with the lowest estimated time, and how many cover an image."""
    return min(_shapes(p, machine(p.dtype)), key=lambda t: _cycles(p, *t))


def _split(p: Correlation, tile: CorrelationTile, count: int) -> tuple[int, int]:
    """Into how many chunks the positions and the channels of one image are split, so that there are
    enough blocks for the threads. Depends on shapes only."""
    outer = len(p.taps) * p.batch * p.groups
    taps = sum(len(t) for t in p.taps)
    work = p.batch * p.groups * p.rows * p.depth * taps * p.size[0] * p.size[1]
    wanted = max(1, min(64, work >> 19))
    positions = min(count, -(-wanted // outer))
    channels = min(-(-p.rows // tile.rows), -(-wanted // (outer * positions)))
    return positions, channels


_DEEP = edge(__name__, "_DEEP", 32, "size")  # channels of images that one tap reads far apart
# bytes of images for the tiles of positions that one tile of channels goes through
_RUN = edge(__name__, "_RUN", 1 << 19, "bytes")


def _run(p: Correlation, tile: CorrelationTile, lanes: int) -> int:
    """How many tiles of positions one tile of channels does before the next tile of channels: many
    write longer runs of each channel, few find the images in a nearer cache."""
    taps = max(len(t) for t in p.taps)
    rows = tile.down + min(taps, p.size[0]) ** 0.5
    each = p.depth * int(rows * tile.across * lanes) * p.dtype.itemsize
    return 4 if taps == 1 and p.depth > _DEEP else max(1, min(16, _RUN // each))


class _CorrelationWriter:
    """Writes one correlation."""

    def __init__(self, p: Correlation) -> None:
        self.p = p
        m = machine(p.dtype)
        self.tile, self.count = best_tile(p)
        self.code = PairVectors(m.lanes) if p.pairs else VectorEmitter(p.dtype, m.lanes)
        self.made = "i16" if p.rounds else self.code.element
        taps = [t for phase in p.taps for t in phase]
        self.many = len(taps) > 1
        self.slabs = self.slab_count()
        if self.many:
            self.reads = self.code.table([t[0] for t in taps])
            self.weights = self.code.table([t[1] for t in taps])
        if len(p.taps) > 1:
            starts = [0]
            for phase in p.taps:
                starts.append(starts[-1] + len(phase))
            self.starts = self.code.table(starts)

    def write(self) -> Step:
        p, c, tile = self.p, self.code, self.tile
        positions, channels = _split(p, tile, self.count)
        run = _run(p, tile, c.lanes)
        tiles = -(-p.rows // tile.rows)
        size = p.size[0] * p.size[1]
        image, weight, out = (
            c.argument(p.image.argument, p.image.offset),
            c.argument(*p.weight[:2]),
            c.at(c.argument(p.out[0]), p.out[1], self.made),
        )
        with c.loop(*c.blocks) as block:
            rest, channel = c.divmod(block.index, channels)
            rest, position = c.divmod(rest, positions)
            upper, g = c.divmod(rest, p.groups)
            phase, n = c.divmod(upper, p.batch)
            self.taps = self.taps_of(phase)
            shift = c.add(c.mul(n, p.image.batch), c.mul(g, p.depth * p.image.channel))
            self.image = c.at(image, shift)
            self.weight = c.at(weight, c.mul(g, p.weight[2]))
            self.out = c.at(out, c.mul(rest, p.rows * size), self.made)
            low, high = c.share(position, positions, self.count)
            rounds, _ = c.divmod(c.add(c.minus(high, low), run - 1), run)
            with c.loop(0, rounds) as r:
                first = c.add(low, c.mul(r.index, run))
                last = c.least(c.add(first, run), high)
                with c.loop(0, self.slabs) as slab:
                    self.depth = c.share(slab.index, self.slabs, p.depth)
                    kernels = c.share(channel, channels, tiles)
                    with c.loop(*kernels) as m, c.loop(first, last) as t:
                        self.locate(t.index)
                        self.one(m.index, slab.index)
        return c.step(len(p.taps) * p.batch * p.groups * positions * channels)

    def slab_count(self) -> int:
        """Into how many slabs the input channels are split, so that one fits the nearest cache."""
        p, tile = self.p, self.tile
        if self.many or tile.mode != "row" or p.rounds:  # slabs would round in between
            return 1
        size = tile.vectors * self.code.lanes * p.dtype.itemsize
        return -(-p.depth * size // NEAR)

    def taps_of(self, phase: Int) -> tuple[Int, Int]:
        """The range of a phase in the tables of taps."""
        c = self.code
        if len(self.p.taps) == 1:
            return 0, len(self.p.taps[0])
        return c.lookup(self.starts, phase), c.lookup(self.starts, c.add(phase, 1))

    def locate(self, t: Int) -> None:
        """Tile t of positions: where it reads, and where each of its vectors is stored."""
        p, c, tile = self.p, self.code, self.tile
        (h, w), pitch, lanes = p.size, p.image.pitch, c.lanes
        self.masks: list[tuple[Value, Value]] = []
        if tile.mode == "flat":
            first = c.bounded(t, tile.across * lanes, positions_of(p.size, pitch))
            self.base = c.at(self.image, first)
            self.offsets = [k * lanes for k in range(tile.across)]
            self.stored: list[Int] = [self.dense(first, k) for k in self.offsets]
            return
        columns = -(-w // (tile.across * lanes)) if tile.mode == "row" else 1
        row, column = c.divmod(t, columns)
        y = c.bounded(row, tile.down, h)
        x = c.bounded(column, tile.across * lanes, w) if tile.mode == "row" else 0
        self.base = c.at(self.image, c.add(c.mul(y, pitch), x))
        pairs = list(product(range(tile.down), range(tile.across)))
        self.offsets = [r * pitch + k * lanes for r, k in pairs]
        start = c.add(c.mul(y, w), x)
        self.stored = [c.add(start, r * w + k * lanes) for r, k in pairs]
        if self.slabs > 1:
            above = c.repeated(row, tile.down, h)
            left = c.repeated(column, tile.across * lanes, w)
            self.new = [self.new_positions(r, k * lanes, above, left) for r, k in pairs]

    def new_positions(self, row: int, first: int, above: Int, left: Int) -> Value | None:
        """The mask of a vector's positions that are not among the first `above` rows and `left`
        columns of its tile; None if that is known to be all of them."""
        c, tile = self.code, self.tile
        if above == 0 and left == 0:
            return None
        mask = c.below(c.minus(first, left), tile.across * c.lanes)
        return mask if above == 0 else c.none_if(c.compare_ints("slt", row, above), mask)

    def dense(self, first: Int, offset: int) -> Int:
        """Where the positions from `first + offset` on are stored; records their mask."""
        c, (_, w), pitch = self.code, self.p.size, self.p.image.pitch
        row, column = c.divmod(c.add(first, offset), pitch)
        kind = f"<{c.lanes} x i32>"
        narrow = self.code.cast("trunc", c.i64(column), "i32")
        numbers = c.op("add", c.splat(narrow, kind), c.lane_numbers(1, "i32"))
        period = c.splat(Value("i32", str(pitch)), kind)
        column_of = c.op("urem", numbers, period)
        width = c.splat(Value("i32", str(w)), kind)
        mask = c.emit(c.mask, f"icmp ult {kind} {column_of.name}, {width.name}")
        self.masks.append((mask, self.as_many(mask)))
        return c.add(c.mul(row, w), c.least(column, w))

    def one(self, index: Int, slab: Int) -> None:
        """Writes tile `index` of the output channels at the positions that `locate` found."""
        p, c, tile = self.p, self.code, self.tile
        m = c.bounded(index, tile.rows, p.rows)
        weight = c.at(self.weight, c.mul(m, p.weight[3]))
        size = p.size[0] * p.size[1]
        out = c.at(self.out, c.mul(m, size), self.made)
        positions = [
            c.at(c.at(out, self.stored[k], self.made), row * size, self.made)
            for row, k in product(range(tile.rows), range(tile.vectors))
        ]
        with c.loop(*self.depth, self.initial_accumulators(positions, slab)) as depth:
            image = c.at(self.base, c.mul(depth.index, p.image.channel))
            kernel = c.at(weight, c.mul(depth.index, p.weight[4]))
            with c.loop(*self.taps, depth.values) as tap:
                tap.next = self.multiply(tap.values, *self.tap_at(image, kernel, tap.index))
            depth.next = tap.values
        done = c.repeated(index, tile.rows, p.rows) if self.slabs > 1 else 0
        for k, total in enumerate(depth.values):
            row, vector = divmod(k, tile.vectors)
            self.save(
                total, positions[k], vector, None if done == 0 else c.compare_ints("slt", row, done)
            )

    def initial_accumulators(self, positions: list[Value], slab: Int) -> list[Value]:
        """The accumulators: zeros, or what earlier slabs stored."""
        c = self.code
        if slab == 0:
            return [c.zero] * len(positions)
        first = c.splat(c.compare_ints("ne", slab, 0), c.mask)
        return [c.load_where(address, first) for address in positions]

    def tap_at(self, image: Value, kernel: Value, tap: Int) -> tuple[Value, Value]:
        c = self.code
        if not self.many:
            read, weight = next(t for phase in self.p.taps for t in phase)
            return c.at(image, read), c.at(kernel, weight)
        return (
            c.at(image, c.lookup(self.reads, tap)),
            c.at(kernel, c.lookup(self.weights, tap)),
        )

    def multiply(self, sums: list[Value], image: Value, kernel: Value) -> list[Value]:
        """The accumulators after one more tap of one channel."""
        c, tile = self.code, self.tile
        seen = [c.load(c.at(image, k)) for k in self.offsets]
        if not self.many:  # each element is read once per tile: the next tile would wait for it
            for k in self.offsets:
                c.prefetch(c.at(image, k + tile.vectors * c.lanes))
        new = []
        for m in range(tile.rows):
            weight = c.splat(c.load(c.at(kernel, m * self.p.weight[3]), c.element))
            mine = sums[m * tile.vectors :]
            new += [c.fused(weight, x, total) for x, total in zip(seen, mine, strict=False)]
        return new

    def save(self, total: Value, address: Value, vector: int, done: Value | None) -> None:
        """Store a vector, unless its channel is `done`."""
        c, mode = self.code, self.tile.mode
        if mode == "row":
            mask = self.new[vector] if self.slabs > 1 else None
            if done is not None:
                mask = c.none_if(done, mask or c.first_lanes(c.lanes))
            if mask is None:
                c.store(self.result(total), address)
            else:
                c.store_where(self.result(total), address, mask)
        elif mode == "narrow":
            c.store_where(self.result(total), address, c.first_lanes(self.p.size[1]))
        else:
            # not LLVM's compressing store, which is very slow to memory on some processors
            mask, ones = self.masks[vector]
            name = f"llvm.x86.avx512.mask.compress.{c.suffix}"
            dense = c.call(name, c.vector, total, c.zero, mask)
            c.store_where(self.result(dense), address, ones)

    def result(self, total: Value) -> Value:
        """Sums as the output holds them."""
        return rounded(self.code, total, self.code.lanes) if self.p.rounds else total

    def as_many(self, mask: Value) -> Value:
        """A mask of the first lanes, as many as are set in `mask`."""
        c, bits = self.code, f"i{self.code.lanes}"
        count = c.intrinsic("ctpop", c.cast("bitcast", mask, bits))
        wide = c.op("shl", Value("i64", "1"), c.cast("zext", count, "i64"))
        ones = c.cast("trunc", c.op("sub", wide, Value("i64", "1")), bits)
        return c.cast("bitcast", ones, c.mask)


def _merged(p: Correlation) -> Correlation:
    """The same with one long row, where there are no gaps between rows."""
    if p.image.pitch != p.size[1]:
        return p
    return p._replace(size=(1, p.size[0] * p.size[1]))


def cycles(p: Correlation) -> float:
    """An estimate of one core's time."""
    p = _merged(p)
    return p.batch * p.groups * len(p.taps) * _cycles(p, *best_tile(p))


def correlate(p: Correlation) -> Step:
    """The step that fills the output."""
    return _CorrelationWriter(_merged(p)).write()

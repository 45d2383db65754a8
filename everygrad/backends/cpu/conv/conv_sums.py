"""The inner loop of a convolution's weight gradient, as LLVM IR: products of two images, summed
over all positions, for each pair of channels and each tap. A tile is several dot products with
vectors along the rows; lanes are added up at the end.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from everygrad.backends.cpu.llvm.bf16_vectors import PairVectors
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import (
    NEAR,
    Image,
    Int,
    Loop,
    VectorEmitter,
    VectorUnit,
    machine,
    positions_of,
)
from everygrad.backends.cpu.llvm.work import Step
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType, bfloat16, float32


class WeightGradient(NamedTuple):
    """out[part, g, m, c * taps + t] = sum over a part of the images and all positions of
    y[n, g, m, position] * image[n, g, c, position + tap t].

    `merged` rows at a time are processed as one long row, with the gaps between them masked out;
    both images then have the same pitch. Each block computes one part for some channels m, going
    through its images in `chunks` that fit the cache.
    """

    dtype: DType
    batch: int
    groups: int
    rows: int  # channels of y in a group
    depth: int  # channels of the image in a group
    size: tuple[int, int]
    y: Image
    image: Image
    taps: tuple[int, ...]
    out: tuple[int, int]  # argument, offset; contiguous
    merged: int

    @property
    def sums(self) -> DType:
        """The dtype of the sums, and of the output."""
        return float32 if self.dtype is bfloat16 else self.dtype


def merged_rows(size: tuple[int, int], pitch: int, m: VectorUnit) -> int:
    """How many rows to merge: the fewest that waste the fewest lanes. Divides the height."""
    h, w = size
    some = [r for r in range(1, h + 1) if h % r == 0] if m.masks else [1]
    return min(some, key=lambda r: (h // r * -(-positions_of((r, w), pitch) // m.lanes), r))


class _WeightGradientPlan(NamedTuple):
    """The schedule of a WeightGradient: tiles of a x b accumulators; chunks of `images` whole
    images, or of `lines` merged rows of one image; `parts` partial sums of `chunks` chunks."""

    a: int
    b: int
    images: int
    lines: int
    chunks: int
    parts: int
    bands: int  # of channels m, each a block
    bunches: int  # of taps, one after the other

    def slices(self, p: WeightGradient) -> int:
        """Into how many chunks a single image is split."""
        return -(-(p.size[0] // p.merged) // self.lines)


# bytes of images for one part, to stay in the second
_PART = edge(__name__, "_PART", 1 << 19, "bytes")


def _each(a: int, b: int) -> float:
    """Cycles of a tile for one vector of positions."""
    return max(a * b / 2, a + b, 4.0) + 0.3 * (a + b)


def _sizes(p: WeightGradient, m: VectorUnit) -> tuple[int, int]:
    """The tile with the lowest estimated time."""
    depth = p.depth * len(p.taps)
    vectors = positions_of((p.merged, p.size[1]), p.y.pitch) / m.lanes * p.size[0] / p.merged
    steps = min(vectors * p.batch, 256.0)

    def cycles(tile: tuple[int, int]) -> float:
        a, b = tile
        return -(-p.rows // a) * -(-depth // b) * (steps * _each(a, b) + 3 * a * b + 60)

    fitting = [
        (a, b)
        for a, b in product(range(1, 17), range(1, machine(p.sums).lanes + 1))
        if a * b + min(a, b) + 1 < m.registers and a <= p.rows and b <= depth
    ]
    return min(fitting, key=cycles)


def dot_cycles(p: WeightGradient) -> float:
    """An estimate of one core's time."""
    m = machine(p.dtype)
    a, b = _sizes(p, m)
    line = -(-positions_of((p.merged, p.size[1]), p.y.pitch) // m.lanes)
    steps = p.batch * p.size[0] // p.merged * line
    tiles = p.groups * -(-p.rows // a) * -(-p.depth * len(p.taps) // b)
    return tiles * (steps * _each(a, b) + 3 * a * b + 60)


def plan(p: WeightGradient) -> _WeightGradientPlan:
    """The plan depends on shapes only, never on the number of threads."""
    m = machine(p.dtype)
    a, b = _sizes(p, m)
    lines = p.size[0] // p.merged
    line = p.merged * p.y.pitch * p.dtype.itemsize * a
    near = max(1, NEAR // line)
    images = max(1, min(p.batch, near // lines))
    some = min(lines, near)
    slices = -(-lines // some)
    total = -(-p.batch // images) * slices
    each = p.image.channel * p.depth * p.groups * p.dtype.itemsize * images // slices
    sums = p.groups * p.rows * p.depth * len(p.taps)
    most = 1 + p.batch * p.image.channel * p.depth * p.groups // sums
    bunches = min(-(-p.depth * len(p.taps) // b), max(1, each // _PART))
    parts = max(1, min(total, most, -(-total * each // _PART)))
    chunks = -(-total // parts)
    parts = -(-total // chunks)
    work = sums * p.batch * p.size[0] * p.size[1]
    wanted = max(1, min(64, work >> 19))
    bands = min(-(-p.rows // a), -(-wanted // (parts * p.groups)))
    return _WeightGradientPlan(a, b, images, some, chunks, parts, bands, bunches)


class _WeightGradientWriter:
    """Writes the kernel of one WeightGradient."""

    def __init__(self, p: WeightGradient) -> None:
        self.p = p
        self.plan = plan(p)
        lanes = machine(p.sums).lanes
        # in bfloat16 a lane of the sums takes a pair of neighbouring positions
        self.code = PairVectors(lanes) if p.dtype is bfloat16 else VectorEmitter(p.dtype, lanes)
        self.images_by = VectorEmitter(p.dtype, machine(p.dtype).lanes)  # how images are read
        c, (_, w), pitch = self.code, p.size, p.y.pitch
        self.span = self.images_by.lanes
        self.positions = positions_of((p.merged, w), pitch)
        self.vectors = -(-self.positions // self.span)
        self.reads = c.table(p.taps)
        inside = [x < self.positions and x % pitch < w for x in range(self.vectors * self.span)]
        self.masked = not all(inside)
        if self.masked:
            parts = [inside[k : k + self.span] for k in range(0, len(inside), self.span)]
            bits = [sum(1 << k for k, on in enumerate(v) if on) for v in parts]
            self.masks = c.table(bits, f"i{self.span}")

    def write(self) -> Step:
        p, c, plan = self.p, self.code, self.plan
        depth = p.depth * len(p.taps)
        tiles, columns = -(-p.rows // plan.a), -(-depth // plan.b)
        y, image = (self.seen_at(c.argument(i.argument), i.offset) for i in (p.y, p.image))
        out = c.argument(*p.out)
        slices = plan.slices(p)
        total = -(-p.batch // plan.images) * slices
        with c.loop(*c.blocks) as block:
            rest, band = c.divmod(block.index, plan.bands)
            part, g = c.divmod(rest, p.groups)
            self.y = self.seen_at(y, c.mul(g, p.rows * p.y.channel))
            self.image = self.seen_at(image, c.mul(g, p.depth * p.image.channel))
            self.out = c.at(out, c.mul(rest, p.rows * depth))
            first = c.mul(part, plan.chunks)
            last = c.least(c.add(first, plan.chunks), total)
            low, high = c.share(band, plan.bands, tiles)
            with c.loop(first, last) as chunk:
                fresh = c.compare_ints("eq", chunk.index, first)
                self.range_of(chunk.index, slices)
                with c.loop(0, plan.bunches) as bunch:
                    taps = c.share(bunch.index, plan.bunches, columns)
                    with c.loop(low, high) as t, c.loop(*taps) as k:
                        self.one(t.index, k.index, fresh)
        return c.step(plan.parts * p.groups * plan.bands)

    def range_of(self, chunk: Int, slices: int) -> None:
        """The images and the merged rows of a chunk."""
        p, c, plan = self.p, self.code, self.plan
        some, part = c.divmod(chunk, slices)
        n, line = c.mul(some, plan.images), c.mul(part, plan.lines)
        self.images = n, c.least(c.add(n, plan.images), p.batch)
        self.lines = line, c.least(c.add(line, plan.lines), p.size[0] // p.merged)

    def one(self, down: Int, across: Int, fresh: Value) -> None:
        """Writes one tile of accumulators."""
        p, c, plan = self.p, self.code, self.plan
        depth = p.depth * len(p.taps)
        m, k = c.bounded(down, plan.a, p.rows), c.bounded(across, plan.b, depth)
        mine = self.seen_at(self.y, c.mul(m, p.y.channel))
        seen = [self.tap_at(c.add(k, j)) for j in range(plan.b)]
        with c.loop(*self.images, [c.zero] * (plan.a * plan.b)) as n:
            with c.loop(*self.lines, n.values) as line:
                step = c.mul(line.index, p.merged)
                y = c.add(c.mul(n.index, p.y.batch), c.mul(step, p.y.pitch))
                x = c.add(c.mul(n.index, p.image.batch), c.mul(step, p.image.pitch))
                with c.loop(0, self.vectors, line.values) as v:
                    shift = c.mul(v.index, self.span)
                    ours = self.seen_at(mine, c.add(y, shift))
                    theirs = c.add(x, shift)
                    v.next = self.multiply(v, ours, [self.seen_at(s, theirs) for s in seen])
                line.next = v.values
            n.next = line.values
        out = c.at(self.out, c.add(c.mul(m, depth), k))
        rows = c.repeated(down, plan.a, p.rows)
        self.save(n.values, out, fresh, rows, c.repeated(across, plan.b, depth))

    def tap_at(self, k: Int) -> Value:
        """Where channel and tap k of the image begin."""
        c = self.code
        channel, tap = c.divmod(k, len(self.p.taps))
        begin = self.seen_at(self.image, c.mul(channel, self.p.image.channel))
        return self.seen_at(begin, self.read(tap))

    def seen_at(self, base: Value, offset: Int) -> Value:
        """The address `offset` elements of an image on."""
        return self.code.at(base, offset, self.images_by.element)

    def read(self, tap: Int) -> Int:
        if isinstance(tap, int):
            return self.p.taps[tap]
        return self.code.lookup(self.reads, tap)

    def multiply(self, v: Loop, mine: Value, seen: list[Value]) -> list[Value]:
        """The accumulators after one more vector of positions."""
        c, plan = self.code, self.plan
        mask = self.mask_at(v.index)
        ours = [self.seen_at(mine, i * self.p.y.channel) for i in range(plan.a)]
        # the fewer operands stay in registers while the others are loaded one at a time
        few, many = sorted((ours, seen), key=len)
        loaded = [self.load(address, mask) for address in few]
        new = list(v.values)
        for i, address in enumerate(many):
            value = self.load(address, mask)
            for j, other in enumerate(loaded):
                k = j * plan.b + i if few is ours else i * plan.b + j
                new[k] = c.fused(value, other, new[k])
        return new

    def mask_at(self, vector: Int) -> Value | None:
        """Which lanes of a vector are positions; None if all are."""
        c, bits = self.code, f"i{self.span}"
        if not self.masked:
            return None
        return c.cast("bitcast", c.lookup(self.masks, vector, bits), self.images_by.mask)

    def load(self, address: Value, mask: Value | None) -> Value:
        if mask is None:
            return self.code.load(address, self.images_by.vector)
        return self.code.load_where(address, mask, self.images_by)

    def save(self, sums: list[Value], out: Value, fresh: Value, rows: Int, columns: Int) -> None:
        """Add up the lanes and store them; a later chunk adds to what earlier ones stored. The
        first `rows` rows and `columns` columns are not written."""
        c, plan = self.code, self.plan
        depth = self.p.depth * len(self.p.taps)
        packed = self.added_up(sums)
        new = c.first_lanes(plan.b) if columns == 0 else self.columns_from(columns)
        for i in range(plan.a):
            at = c.at(out, i * depth)
            mask = new if rows == 0 else c.none_if(c.compare_ints("slt", i, rows), new)
            which, lane = divmod(i * plan.b, c.lanes)
            pair = packed[which], packed[min(which + 1, len(packed) - 1)]
            row = c.shuffle(*pair, [lane + j if j < plan.b else -1 for j in range(c.lanes)])
            old = c.load_where(at, c.none_if(fresh, mask))
            c.store_where(c.op("fadd", row, old), at, mask)

    def columns_from(self, first: Int) -> Value:
        """The mask of lanes [first, b)."""
        c = self.code
        back = c.op("sub", Value("i64", "0"), c.i64(first))
        return c.below(back, c.add(back, self.plan.b))

    def added_up(self, sums: list[Value]) -> list[Value]:
        """The sum of each vector's lanes, in a fixed order, one vector of sums at a time: each
        round adds neighbouring lanes of two vectors into one vector."""
        c = self.code
        vectors = sums + [c.zero] * (-len(sums) % c.lanes)
        even, odd = range(0, 2 * c.lanes, 2), range(1, 2 * c.lanes, 2)
        width = c.lanes
        while width > 1:
            vectors = [
                c.op("fadd", c.shuffle(a, b, even), c.shuffle(a, b, odd))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            width //= 2
        return vectors


def weight_gradient(p: WeightGradient) -> Step:
    """The step that fills the output, in `plan(p).parts` parts."""
    return _WeightGradientWriter(p).write()

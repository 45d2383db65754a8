"""The two inner loops of convolutions, as LLVM IR with vectors written out.

`correlate` moves kernels over images: a tile of output channels times a few vectors of places stays
in registers while every tap of the kernel goes by. Places lie one after the other in memory, so a
tap is a constant offset, and nothing is unfolded into columns. `moments` sums products of two
images over all places, for each pair of channels and each tap: a tile of dot products.

Tiles at an edge move back to end at it and do some places twice, with the same result, which costs
less code than a second kernel for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import NamedTuple

from everygrad.backends.cpu.llvm import Emitter, Value, engine
from everygrad.backends.cpu.work import Step
from everygrad.dtypes import DType

Int = Value | int  # an i64, known now or when the code runs

OUT, FIRST, SECOND, SCRATCH = range(4)  # the arguments of every step


class Machine(NamedTuple):
    """What tiles depend on: elements a vector, vector registers, whether lanes can be masked."""

    lanes: int
    registers: int
    masks: bool


def machine(dtype: DType) -> Machine:
    """The vectors of this processor."""
    features = engine().features
    if features.get("avx512f") and features.get("avx512vl"):
        return Machine(64 // dtype.itemsize, 32, True)
    width = 32 if features.get("avx2") else 16
    return Machine(width // dtype.itemsize, 16, False)


class Loop:
    """A loop being written: its index, what it carries round, and what the next round gets."""

    def __init__(self, index: Int, values: Sequence[Value]) -> None:
        self.index = index
        self.values = list(values)
        self.next = list(values)


class Code(Emitter):
    """Writes a step: integers folded where they are known, loops, vectors of one type."""

    def __init__(self, dtype: DType, lanes: int) -> None:
        super().__init__()
        self.element = "float" if dtype.itemsize == 4 else "double"
        self.lanes = lanes
        self.vector = f"<{lanes} x {self.element}>"
        self.mask = f"<{lanes} x i1>"
        self.suffix = f"v{lanes}f{dtype.bits}"
        self.zero = Value(self.vector, "zeroinitializer")
        self.globals: list[str] = []
        self._block = "entry"
        self._labels = 0

    # --- integers

    def add(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if b == 0:
            return a
        return b if a == 0 else self.op("add", self.i64(a), self.i64(b))

    def sub(self, a: Int, b: int) -> Int:
        return self.add(a, -b)

    def minus(self, a: Int, b: Int) -> Int:
        if isinstance(b, int):
            return self.add(a, -b)
        return self.op("sub", self.i64(a), b)

    def mul(self, a: Int, b: int) -> Int:
        if isinstance(a, int) or b == 0:
            return a * b if isinstance(a, int) else 0
        return a if b == 1 else self.op("mul", a, self.i64(b))

    def divmod(self, a: Int, b: int) -> tuple[Int, Int]:
        """Of integers that are not negative."""
        if isinstance(a, int) or b == 1:
            return divmod(a, b) if isinstance(a, int) else (a, 0)
        return self.op("udiv", a, self.i64(b)), self.op("urem", a, self.i64(b))

    def least(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.call("llvm.smin.i64", "i64", self.i64(a), self.i64(b))

    def i64(self, a: Int) -> Value:
        return Value("i64", str(a)) if isinstance(a, int) else a

    def compare_ints(self, predicate: str, a: Int, b: Int) -> Value:
        return self.compare(predicate, self.i64(a), self.i64(b))

    # --- memory

    def argument(self, index: int, offset: int = 0) -> Value:
        """An argument of the step, `offset` elements on."""
        at = self.emit("ptr", f"getelementptr ptr, ptr %args, i64 {index}")
        return self.at(self.emit("ptr", f"load ptr, ptr {at.name}"), offset)

    def at(self, base: Value, offset: Int, type_: str = "") -> Value:
        """The address `offset` elements on."""
        if offset == 0:
            return base
        kind = type_ or self.element
        offset = self.i64(offset)
        return self.emit("ptr", f"getelementptr {kind}, ptr {base.name}, i64 {offset.name}")

    def table(self, values: Sequence[int], type_: str = "i64") -> Value:
        """Constants to index when the code runs."""
        name = f"@table{len(self.globals)}"
        items = ", ".join(f"{type_} {v}" for v in values)
        self.globals.append(f"{name} = private constant [{len(values)} x {type_}] [{items}]")
        return Value("ptr", name)

    def lookup(self, table: Value, index: Int, type_: str = "i64") -> Value:
        return self.load(self.at(table, index, type_), type_)

    def load(self, address: Value, type_: str = "") -> Value:
        """By default a vector."""
        kind = type_ or self.vector
        aligned = "" if kind.startswith("i") else f", align {4 if 'float' in kind else 8}"
        return self.emit(kind, f"load {kind}, ptr {address.name}{aligned}")

    def store(self, value: Value, address: Value) -> None:
        align = 4 if "float" in value.type else 8
        self.lines.append(f"  store {value.type} {value.name}, ptr {address.name}, align {align}")

    def prefetch(self, address: Value) -> None:
        """Ask for a cache line that will be read soon; any address will do."""
        self.declarations.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        given = f"ptr {address.name}, i32 0, i32 2, i32 1"
        self.lines.append(f"  call void @llvm.prefetch.p0({given})")

    def load_where(self, address: Value, mask: Value) -> Value:
        """A vector, zero where the mask is not set; nothing is read there."""
        align = Value("i32", "4" if self.element == "float" else "8")
        name = f"llvm.masked.load.{self.suffix}.p0"
        return self.call(name, self.vector, address, align, mask, self.zero)

    def evens(self, address: Value, low: Value, high: Value) -> Value:
        """Every other element of two vectors, read where the masks are set: far faster than a
        gather."""
        two = self.load_where(address, low), self.load_where(self.at(address, self.lanes), high)
        return self.shuffle(*two, range(0, 2 * self.lanes, 2))

    def gather(self, address: Value, index: Value, mask: Value) -> Value:
        """The elements at `index` from `address` on, zero where the mask is not set."""
        ptrs = f"<{self.lanes} x ptr>"
        align = Value("i32", "4" if self.element == "float" else "8")
        wide = f"getelementptr {self.element}, ptr {address.name}, {index.type} {index.name}"
        name = f"llvm.masked.gather.{self.suffix}.v{self.lanes}p0"
        return self.call(name, self.vector, self.emit(ptrs, wide), align, mask, self.zero)

    def store_where(self, value: Value, address: Value, mask: Value) -> None:
        align = 4 if "float" in value.type else 8
        kind = "f" if "float" in value.type or "double" in value.type else "i"
        bits = 32 if "float" in value.type else 64
        name = f"llvm.masked.store.v{self.lanes}{kind}{bits}.p0"
        self.declarations.add(f"declare void @{name}({value.type}, ptr, i32, {mask.type})")
        given = f"{value.type} {value.name}, ptr {address.name}, i32 {align}"
        self.lines.append(f"  call void @{name}({given}, {mask.type} {mask.name})")

    # --- vectors

    def splat(self, value: Value, type_: str = "") -> Value:
        """A vector of one number."""
        kind = type_ or self.vector
        one = self.emit(kind, f"insertelement {kind} poison, {value.type} {value.name}, i64 0")
        many = f"shufflevector {kind} {one.name}, {kind} poison"
        return self.emit(kind, f"{many}, <{self.lanes} x i32> zeroinitializer")

    def shuffle(self, a: Value, b: Value, places: Sequence[int]) -> Value:
        """Lanes of a and b, counted through; -1 where anything will do."""
        which = ", ".join("i32 poison" if p < 0 else f"i32 {p}" for p in places)
        both = f"{a.type} {a.name}, {b.type} {b.name}"
        return self.emit(a.type, f"shufflevector {both}, <{len(places)} x i32> <{which}>")

    def fused(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c; rounded once where the processor does it at once."""
        return self.call(f"llvm.fmuladd.{self.suffix}", self.vector, a, b, c)

    def lane_numbers(self, step: int = 1, type_: str = "i64") -> Value:
        items = ", ".join(f"{type_} {step * k}" for k in range(self.lanes))
        return Value(f"<{self.lanes} x {type_}>", f"<{items}>")

    def below(self, first: Int, end: Int, step: int = 1) -> Value:
        """The mask of the lanes whose numbers, from `first` on by `step`, are in [0, end)."""
        kind = f"<{self.lanes} x i64>"
        numbers = self.lane_numbers(step)
        if first != 0:
            numbers = self.op("add", self.splat(self.i64(first), kind), numbers)
        bound = self.splat(self.i64(end), kind)
        return self.emit(self.mask, f"icmp ult {kind} {numbers.name}, {bound.name}")

    def first_lanes(self, count: int) -> Value:
        items = ", ".join(f"i1 {int(k < count)}" for k in range(self.lanes))
        return Value(self.mask, f"<{items}>")

    # --- control

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self._block = name

    @contextmanager
    def loop(self, start: Int, end: Int, carried: Sequence[Value] = ()) -> Iterator[Loop]:
        """Indices [start, end). Afterwards the loop's `values` are what the last round left."""
        if isinstance(start, int) and isinstance(end, int) and end == start + 1:
            loop = Loop(start, carried)
            yield loop
            loop.values = loop.next
            return
        k = self._labels
        self._labels += 1
        before, head, body, done = self._block, f"head{k}", f"body{k}", f"done{k}"
        index = Value("i64", f"%i{k}")
        loop = Loop(index, [Value(v.type, f"%c{k}.{j}") for j, v in enumerate(carried)])
        self.lines.append(f"  br label %{head}")
        self._label(head)
        place = len(self.lines)
        more = self.compare_ints("slt", index, end)
        self.lines.append(f"  br i1 {more.name}, label %{body}, label %{done}")
        self._label(body)
        yield loop
        self.lines.append(f"  %n{k} = add nsw i64 %i{k}, 1")
        self.lines.append(f"  br label %{head}")
        back = self._block
        turns = [(index, self.i64(start), Value("i64", f"%n{k}"))]
        turns += list(zip(loop.values, carried, loop.next, strict=True))
        self.lines[place:place] = [
            f"  {v.name} = phi {v.type} [ {a.name}, %{before} ], [ {b.name}, %{back} ]"
            for v, a, b in turns
        ]
        self._label(done)

    def step(self, blocks: int) -> Step:
        head = f"define void @step(i64 %lo, i64 %hi, ptr %args) {engine().attributes} {{"
        parts = [*sorted(self.declarations), *self.globals, head, "entry:", *self.lines]
        return Step("\n".join([*parts, "  ret void", "}", ""]), blocks, vectorise=False)

    @property
    def blocks(self) -> tuple[Value, Value]:
        """The range of blocks a call does."""
        return Value("i64", "%lo"), Value("i64", "%hi")


class Image(NamedTuple):
    """Where images lie: an argument, the first element, and strides in elements."""

    argument: int
    offset: int
    batch: int
    channel: int
    pitch: int  # from one row to the next


Tap = tuple[int, int]  # where it reads, from a place's own element on: in the image, in the kernel


class Correlation(NamedTuple):
    """out[phase, n, g, m, place] = sum over c and the phase's taps of
    w[g, m, c, tap] * image[n, g, c, place + tap]; places are `size` of the image's rows."""

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


class Tile(NamedTuple):
    """rows x vectors of places. mode: "row", `across` vectors to each of `down` rows; "narrow", the
    same with rows shorter than a vector; "flat", vectors one after the other over the image's rows
    and the gaps between them, which are left out when they are stored."""

    mode: str
    rows: int
    down: int
    across: int

    @property
    def vectors(self) -> int:
        return self.down * self.across


def places_of(size: tuple[int, int], pitch: int) -> int:
    """How many places there are, counting the gaps between rows."""
    return (size[0] - 1) * pitch + size[1]


def _shapes(p: Correlation, m: Machine) -> Iterator[tuple[Tile, int]]:
    """Every tile that fits, with the number of them an image takes."""
    (h, w), lanes = p.size, m.lanes
    room = [(r, v) for r, v in product(range(1, 17), range(1, 9)) if r * v + v + 2 <= m.registers]
    for rows, vectors in room:
        if rows > p.rows:
            continue
        flat = places_of(p.size, p.image.pitch)
        if m.masks and vectors * lanes <= flat and w != lanes:
            yield Tile("flat", rows, 1, vectors), -(-flat // (vectors * lanes))
        for down in (d for d in range(1, vectors + 1) if vectors % d == 0 and d <= h):
            across = vectors // down
            if across * lanes <= w:
                count = -(-h // down) * -(-w // (across * lanes))
                yield Tile("row", rows, down, across), count
            elif across == 1:
                yield Tile("narrow", rows, down, 1), -(-h // down)


def _cycles(p: Correlation, tile: Tile, count: int) -> float:
    """An estimate: two fused operations or two loads a cycle; vectors lie across cache lines."""
    sums = tile.rows * tile.vectors
    bound = max(sums / 2, (tile.rows + 2 * tile.vectors) / 2, 4.0)
    each = bound + 0.4 * tile.vectors + 0.15 * tile.rows + 0.3
    taps = p.depth * sum(len(t) for t in p.taps) / len(p.taps)
    stores = sums * (4 if tile.mode == "flat" else 1)
    return count * -(-p.rows // tile.rows) * (taps * each + stores + 20)


def best_tile(p: Correlation) -> tuple[Tile, int]:
    """The tile that should take the least time, and how many cover an image."""
    return min(_shapes(p, machine(p.dtype)), key=lambda t: _cycles(p, *t))


def _split(p: Correlation, tile: Tile, count: int) -> tuple[int, int]:
    """Into how many chunks the places and the channels of one image are cut, so that threads find
    enough blocks. From shapes alone."""
    outer = len(p.taps) * p.batch * p.groups
    taps = sum(len(t) for t in p.taps)
    work = p.batch * p.groups * p.rows * p.depth * taps * p.size[0] * p.size[1]
    wanted = max(1, min(64, work >> 19))
    places = min(count, -(-wanted // outer))
    channels = min(-(-p.rows // tile.rows), -(-wanted // (outer * places)))
    return places, channels


_NEAR = 24 << 10  # bytes of the images of one tile, to stay in the nearest cache
_RUN = 1 << 17  # bytes of images for the tiles of places that one tile of channels goes through


def _run(p: Correlation, tile: Tile, lanes: int) -> int:
    """How many tiles of places the same kernels do before the next kernels do them: many write
    longer stretches of each channel, few find the images in a nearer cache."""
    taps = max(len(t) for t in p.taps)
    rows = tile.down + min(taps, p.size[0]) ** 0.5
    each = p.depth * int(rows * tile.across * lanes) * p.dtype.itemsize
    return 1 if taps == 1 and p.depth > 32 else max(1, min(16, _RUN // each))


class _Correlate:
    """Writes one correlation."""

    def __init__(self, p: Correlation) -> None:
        self.p = p
        m = machine(p.dtype)
        self.tile, self.count = best_tile(p)
        self.code = Code(p.dtype, m.lanes)
        taps = [t for phase in p.taps for t in phase]
        self.many = len(taps) > 1
        if self.many:
            self.reads = self.code.table([t[0] for t in taps])
            self.weights = self.code.table([t[1] for t in taps])
        if len(p.taps) > 1:
            starts = [0]
            for phase in p.taps:
                starts.append(starts[-1] + len(phase))
            self.starts = self.code.table(starts)

    def range_of(self, index: Int, chunks: int, count: int) -> tuple[Int, Int]:
        """What chunk `index` of `count` tiles holds."""
        if chunks == 1:
            return 0, count
        c = self.code
        lo, _ = c.divmod(c.mul(index, count), chunks)
        hi, _ = c.divmod(c.mul(c.add(index, 1), count), chunks)
        return lo, hi

    def write(self) -> Step:
        p, c, tile = self.p, self.code, self.tile
        places, channels = _split(p, tile, self.count)
        run = _run(p, tile, c.lanes)
        tiles = -(-p.rows // tile.rows)
        size = p.size[0] * p.size[1]
        image, weight, out = (
            c.argument(p.image.argument, p.image.offset),
            c.argument(*p.weight[:2]),
            c.argument(*p.out),
        )
        with c.loop(*c.blocks) as block:
            rest, channel = c.divmod(block.index, channels)
            rest, place = c.divmod(rest, places)
            upper, g = c.divmod(rest, p.groups)
            phase, n = c.divmod(upper, p.batch)
            self.taps = self.taps_of(phase)
            shift = c.add(c.mul(n, p.image.batch), c.mul(g, p.depth * p.image.channel))
            self.image = c.at(image, shift)
            self.weight = c.at(weight, c.mul(g, p.weight[2]))
            self.out = c.at(out, c.mul(rest, p.rows * size))
            low, high = self.range_of(place, places, self.count)
            rounds, _ = c.divmod(c.add(c.minus(high, low), run - 1), run)
            with c.loop(0, rounds) as r:
                first = c.add(low, c.mul(r.index, run))
                last = c.least(c.add(first, run), high)
                slabs = self.slabs()
                with c.loop(0, slabs) as slab:
                    self.depth = self.range_of(slab.index, slabs, p.depth)
                    with c.loop(*self.range_of(channel, channels, tiles)) as m:
                        with c.loop(first, last) as t:
                            self.locate(t.index)
                            self.one(self.bounded(m.index, tile.rows, p.rows), slab.index)
        return c.step(len(p.taps) * p.batch * p.groups * places * channels)

    def slabs(self) -> int:
        """Into how many slabs the channels of the images are cut, to stay in the nearest cache."""
        p, tile = self.p, self.tile
        if self.many or tile.mode != "row":
            return 1
        size = tile.vectors * self.code.lanes * p.dtype.itemsize
        return -(-p.depth * size // _NEAR)

    def taps_of(self, phase: Int) -> tuple[Int, Int]:
        """The range of a phase in the tables of taps."""
        c = self.code
        if len(self.p.taps) == 1:
            return 0, len(self.p.taps[0])
        return c.lookup(self.starts, phase), c.lookup(self.starts, c.add(phase, 1))

    def bounded(self, index: Int, step: int, end: int) -> Int:
        """Where tile `index` begins: the last one moves back to end at `end`."""
        first = self.code.mul(index, step)
        return first if end % step == 0 else self.code.least(first, end - step)

    def locate(self, t: Int) -> None:
        """Tile t of places: where it reads, and where each of its vectors is stored."""
        p, c, tile = self.p, self.code, self.tile
        (h, w), pitch, lanes = p.size, p.image.pitch, c.lanes
        self.masks: list[tuple[Value, Value]] = []
        if tile.mode == "flat":
            first = self.bounded(t, tile.across * lanes, places_of(p.size, pitch))
            self.base = c.at(self.image, first)
            self.offsets = [k * lanes for k in range(tile.across)]
            self.stored: list[Int] = [self.dense(first, k) for k in self.offsets]
            return
        columns = -(-w // (tile.across * lanes)) if tile.mode == "row" else 1
        row, column = c.divmod(t, columns)
        y = self.bounded(row, tile.down, h)
        x = self.bounded(column, tile.across * lanes, w) if tile.mode == "row" else 0
        self.base = c.at(self.image, c.add(c.mul(y, pitch), x))
        pairs = list(product(range(tile.down), range(tile.across)))
        self.offsets = [r * pitch + k * lanes for r, k in pairs]
        start = c.add(c.mul(y, w), x)
        self.stored = [c.add(start, r * w + k * lanes) for r, k in pairs]

    def dense(self, first: Int, offset: int) -> Int:
        """Where the places from `first + offset` on are stored; their mask is noted."""
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

    def one(self, m: Int, slab: Int) -> None:
        """One tile, from channel m on."""
        p, c, tile = self.p, self.code, self.tile
        weight = c.at(self.weight, c.mul(m, p.weight[3]))
        size = p.size[0] * p.size[1]
        out = c.at(self.out, c.mul(m, size))
        places = [
            c.at(c.at(out, self.stored[k]), row * size)
            for row, k in product(range(tile.rows), range(tile.vectors))
        ]
        with c.loop(*self.depth, self.begun(places, slab)) as depth:
            image = c.at(self.base, c.mul(depth.index, p.image.channel))
            kernel = c.at(weight, c.mul(depth.index, p.weight[4]))
            with c.loop(*self.taps, depth.values) as tap:
                tap.next = self.multiply(tap.values, *self.tap_at(image, kernel, tap.index))
            depth.next = tap.values
        for k, total in enumerate(depth.values):
            self.save(total, places[k], k % tile.vectors)

    def begun(self, places: list[Value], slab: Int) -> list[Value]:
        """What the slabs before have left."""
        c = self.code
        if slab == 0:
            return [c.zero] * len(places)
        first = c.splat(c.compare_ints("ne", slab, 0), c.mask)
        return [c.load_where(address, first) for address in places]

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
        """What one tap of one channel adds."""
        c, tile = self.code, self.tile
        seen = [c.load(c.at(image, k)) for k in self.offsets]
        if not self.many:  # each element is read once a tile: the next tile would wait for all
            for k in self.offsets:
                c.prefetch(c.at(image, k + tile.vectors * c.lanes))
        new = []
        for m in range(tile.rows):
            weight = c.splat(c.load(c.at(kernel, m * self.p.weight[3]), c.element))
            mine = sums[m * tile.vectors :]
            new += [c.fused(weight, x, total) for x, total in zip(seen, mine, strict=False)]
        return new

    def save(self, total: Value, address: Value, vector: int) -> None:
        c, mode = self.code, self.tile.mode
        if mode == "row":
            c.store(total, address)
        elif mode == "narrow":
            c.store_where(total, address, c.first_lanes(self.p.size[1]))
        else:
            # not LLVM's compressing store: into memory it is very slow on some processors
            mask, ones = self.masks[vector]
            name = f"llvm.x86.avx512.mask.compress.{c.suffix}"
            c.store_where(c.call(name, c.vector, total, c.zero, mask), address, ones)

    def as_many(self, mask: Value) -> Value:
        """The mask of as many lanes as are set in `mask`, the first ones."""
        c, bits = self.code, f"i{self.code.lanes}"
        count = c.intrinsic("ctpop", c.cast("bitcast", mask, bits))
        wide = c.op("shl", Value("i64", "1"), c.cast("zext", count, "i64"))
        ones = c.cast("trunc", c.op("sub", wide, Value("i64", "1")), bits)
        return c.cast("bitcast", ones, c.mask)


def correlate(p: Correlation) -> Step:
    """The step that fills the output."""
    if p.image.pitch == p.size[1]:  # no gaps between rows: one long row
        p = p._replace(size=(1, p.size[0] * p.size[1]))
    return _Correlate(p).write()


class Moments(NamedTuple):
    """out[part, g, m, c * taps + t] = sum over a part of the images and all places of
    y[n, g, m, place] * image[n, g, c, place + tap t].

    The rows of places are taken `joined` at a time as one long row, gaps between them masked out;
    both images then have the same pitch. Each block does one part for some channels m, walking
    through its images in `chunks` that the cache holds.
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
    joined: int


def joined_rows(size: tuple[int, int], pitch: int, m: Machine) -> int:
    """How many rows to take as one: as few as waste the fewest lanes. Divides the height."""
    h, w = size
    some = [r for r in range(1, h + 1) if h % r == 0] if m.masks else [1]
    return min(some, key=lambda r: (h // r * -(-places_of((r, w), pitch) // m.lanes), r))


class _Plan(NamedTuple):
    """How a Moments is done: tiles of a x b sums; chunks of `images` whole images, or of `lines`
    joined rows of one image; `parts` sums apart, of `chunks` chunks each."""

    a: int
    b: int
    images: int
    lines: int
    chunks: int
    parts: int
    bands: int  # of channels m, each a block

    def slices(self, p: Moments) -> int:
        """How many chunks a single image is cut into."""
        return -(-(p.size[0] // p.joined) // self.lines)


_PART = 1 << 19  # bytes of images for one part, to stay in the second


def _sizes(p: Moments, m: Machine) -> tuple[int, int]:
    """The tile that should take the least time."""
    depth = p.depth * len(p.taps)
    vectors = places_of((p.joined, p.size[1]), p.y.pitch) / m.lanes * p.size[0] / p.joined
    steps = min(vectors * p.batch, 256.0)

    def cycles(tile: tuple[int, int]) -> float:
        a, b = tile
        each = max(a * b / 2, a + b, 4.0) + 0.3 * (a + b)
        return -(-p.rows // a) * -(-depth // b) * (steps * each + 3 * a * b + 60)

    room = [
        (a, b)
        for a, b in product(range(1, 17), range(1, m.lanes + 1))
        if a * b + min(a, b) + 1 < m.registers and a <= p.rows and b <= depth
    ]
    return min(room, key=cycles)


def plan(p: Moments) -> _Plan:
    """From shapes alone."""
    m = machine(p.dtype)
    a, b = _sizes(p, m)
    lines = p.size[0] // p.joined
    line = p.joined * p.y.pitch * p.dtype.itemsize * a
    near = max(1, _NEAR // line)
    images = max(1, min(p.batch, near // lines))
    some = min(lines, near)
    slices = -(-lines // some)
    total = -(-p.batch // images) * slices
    each = p.image.channel * p.depth * p.groups * p.dtype.itemsize * images // slices
    sums = p.groups * p.rows * p.depth * len(p.taps)
    most = 1 + p.batch * p.image.channel * p.depth * p.groups // sums
    parts = max(1, min(total, most, -(-total * each // _PART)))
    chunks = -(-total // parts)
    parts = -(-total // chunks)
    work = sums * p.batch * p.size[0] * p.size[1]
    wanted = max(1, min(64, work >> 19))
    bands = min(-(-p.rows // a), -(-wanted // (parts * p.groups)))
    return _Plan(a, b, images, some, chunks, parts, bands)


class _Moments:
    """Writes one Moments."""

    def __init__(self, p: Moments) -> None:
        self.p = p
        self.plan = plan(p)
        self.code = Code(p.dtype, machine(p.dtype).lanes)
        c, (_, w), pitch = self.code, p.size, p.y.pitch
        self.places = places_of((p.joined, w), pitch)
        self.vectors = -(-self.places // c.lanes)
        self.reads = c.table(p.taps)
        inside = [x < self.places and x % pitch < w for x in range(self.vectors * c.lanes)]
        self.masked = not all(inside)
        if self.masked:
            lanes = [inside[k : k + c.lanes] for k in range(0, len(inside), c.lanes)]
            bits = [sum(1 << k for k, on in enumerate(v) if on) for v in lanes]
            self.masks = c.table(bits, f"i{c.lanes}")

    def write(self) -> Step:
        p, c, plan = self.p, self.code, self.plan
        tiles, depth = -(-p.rows // plan.a), p.depth * len(p.taps)
        y, image = (c.argument(i.argument, i.offset) for i in (p.y, p.image))
        out = c.argument(*p.out)
        slices = plan.slices(p)
        total = -(-p.batch // plan.images) * slices
        with c.loop(*c.blocks) as block:
            rest, band = c.divmod(block.index, plan.bands)
            part, g = c.divmod(rest, p.groups)
            self.y = c.at(y, c.mul(g, p.rows * p.y.channel))
            self.image = c.at(image, c.mul(g, p.depth * p.image.channel))
            self.out = c.at(out, c.mul(rest, p.rows * depth))
            first = c.mul(part, plan.chunks)
            last = c.least(c.add(first, plan.chunks), total)
            low, _ = c.divmod(c.mul(band, tiles), plan.bands)
            high, _ = c.divmod(c.mul(c.add(band, 1), tiles), plan.bands)
            with c.loop(first, last) as chunk:
                fresh = c.compare_ints("eq", chunk.index, first)
                self.range_of(chunk.index, slices)
                with c.loop(low, high) as t, c.loop(0, -(-depth // plan.b)) as k:
                    self.one(t.index, k.index, fresh)
        return c.step(plan.parts * p.groups * plan.bands)

    def bounded(self, index: Int, step: int, end: int) -> Int:
        first = self.code.mul(index, step)
        return first if end % step == 0 else self.code.least(first, end - step)

    def range_of(self, chunk: Int, slices: int) -> None:
        """The images and the joined rows of a chunk."""
        p, c, plan = self.p, self.code, self.plan
        some, part = c.divmod(chunk, slices)
        n, line = c.mul(some, plan.images), c.mul(part, plan.lines)
        self.images = n, c.least(c.add(n, plan.images), p.batch)
        self.lines = line, c.least(c.add(line, plan.lines), p.size[0] // p.joined)

    def one(self, down: Int, across: Int, fresh: Value) -> None:
        """One tile of sums."""
        p, c, plan = self.p, self.code, self.plan
        depth = p.depth * len(p.taps)
        m, k = self.bounded(down, plan.a, p.rows), self.bounded(across, plan.b, depth)
        mine = c.at(self.y, c.mul(m, p.y.channel))
        seen = [self.tap_at(c.add(k, j)) for j in range(plan.b)]
        with c.loop(*self.images, [c.zero] * (plan.a * plan.b)) as n:
            with c.loop(*self.lines, n.values) as line:
                step = c.mul(line.index, p.joined)
                y = c.add(c.mul(n.index, p.y.batch), c.mul(step, p.y.pitch))
                x = c.add(c.mul(n.index, p.image.batch), c.mul(step, p.image.pitch))
                with c.loop(0, self.vectors, line.values) as v:
                    shift = c.mul(v.index, c.lanes)
                    ours, theirs = c.add(y, shift), c.add(x, shift)
                    v.next = self.multiply(v, c.at(mine, ours), [c.at(s, theirs) for s in seen])
                line.next = v.values
            n.next = line.values
        out = c.at(self.out, c.add(c.mul(m, depth), k))
        rows = self.repeated(down, plan.a, p.rows)
        self.save(n.values, out, fresh, rows, self.repeated(across, plan.b, depth))

    def repeated(self, index: Int, step: int, end: int) -> Int:
        """How many of a tile's rows or columns the tile before it has done: they must not be added
        a second time."""
        c = self.code
        if end % step == 0:
            return 0
        over = c.sub(c.mul(index, step), end - step)
        return c.call("llvm.smax.i64", "i64", c.i64(over), Value("i64", "0"))

    def tap_at(self, k: Int) -> Value:
        """Where channel and tap k of the image begin."""
        c = self.code
        channel, tap = c.divmod(k, len(self.p.taps))
        return c.at(c.at(self.image, c.mul(channel, self.p.image.channel)), self.read(tap))

    def read(self, tap: Int) -> Int:
        if isinstance(tap, int):
            return self.p.taps[tap]
        return self.code.lookup(self.reads, tap)

    def multiply(self, v: Loop, mine: Value, seen: list[Value]) -> list[Value]:
        """What one vector of places adds."""
        c, plan = self.code, self.plan
        load = c.load
        if self.masked:
            bits = f"i{c.lanes}"
            mask = c.cast("bitcast", c.lookup(self.masks, v.index, bits), c.mask)

            def load(address: Value) -> Value:
                return c.load_where(address, mask)

        ours = [c.at(mine, i * self.p.y.channel) for i in range(plan.a)]
        # fewer first: they stay in registers while the others go by one at a time
        few, many = sorted((ours, seen), key=len)
        kept = [load(address) for address in few]
        new = list(v.values)
        for i, address in enumerate(many):
            value = load(address)
            for j, other in enumerate(kept):
                k = j * plan.b + i if few is ours else i * plan.b + j
                new[k] = c.fused(value, other, new[k])
        return new

    def save(
        self, sums: list[Value], out: Value, fresh: Value, rows: Int, columns: Int
    ) -> None:
        """Add up the lanes; a later chunk adds to what the earlier ones left. The first `rows` rows
        and `columns` columns are left alone."""
        c, plan = self.code, self.plan
        depth = self.p.depth * len(self.p.taps)
        packed = self.added_up(sums)
        new = c.first_lanes(plan.b) if columns == 0 else self.columns_from(columns)
        for i in range(plan.a):
            at = c.at(out, i * depth)
            mask = new if rows == 0 else self.none_if(c.compare_ints("slt", i, rows), new)
            which, lane = divmod(i * plan.b, c.lanes)
            pair = packed[which], packed[min(which + 1, len(packed) - 1)]
            row = c.shuffle(*pair, [lane + j if j < plan.b else -1 for j in range(c.lanes)])
            old = c.load_where(at, self.none_if(fresh, mask))
            c.store_where(c.op("fadd", row, old), at, mask)

    def columns_from(self, first: Int) -> Value:
        """The mask of lanes [first, b)."""
        c = self.code
        back = c.op("sub", Value("i64", "0"), c.i64(first))
        return c.below(back, c.add(back, self.plan.b))

    def none_if(self, condition: Value, mask: Value) -> Value:
        c = self.code
        none = f"{c.mask} zeroinitializer, {c.mask} {mask.name}"
        return c.emit(c.mask, f"select i1 {condition.name}, {none}")

    def added_up(self, sums: list[Value]) -> list[Value]:
        """The lanes of each vector added up, in order, a vector of sums at a time: neighbours are
        added in all vectors at once, two vectors becoming one."""
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


def moments(p: Moments) -> Step:
    """The step that fills the output, in `plan(p).parts` parts."""
    return _Moments(p).write()

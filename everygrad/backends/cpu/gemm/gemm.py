"""Matrix products as generated code: floats of 16, 32 and 64 bits, any strides, any batch.

The result is split into tiles that fit the vector registers (`gemm_tile`). Columns of B are packed
a panel at a time, and a panel stays in the L1 cache while all tiles of a block's rows use it; A is
read in place, or packed when it is transposed and used by many panels. Sums run over k in a fixed
order, in stretches that fit that cache, so a result depends on shapes and layouts only, not on how
blocks are distributed over threads. Sums over 16-bit floats run in float32 (`half_tile`): a k that
needs several stretches leaves them in scratch memory, from which a second stage rounds them.

Blocks are whole rows of the result if there are enough rows, else rows by columns. A long sum with
a small result is split along k instead (split-K), and a second stage adds the partial sums.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from everygrad.backends.cpu.gemm import row_dots
from everygrad.backends.cpu.gemm.gemm_product import Batch, Product, product_of
from everygrad.backends.cpu.gemm.gemm_tile import (
    GemmTile,
    Strides,
    TileEmitter,
    VectorRegisters,
    machine,
    pack_any,
    pack_columns,
    pack_rows,
    tile,
    vectors_of,
)
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work
from everygrad.compiler.thresholds import edge

PANEL = edge(__name__, "PANEL", 32 << 10, "bytes")  # bytes of B that fit the L1 cache
# the same for 16-bit floats, in the L2 cache: a second stretch costs them a second stage
HALF_PANEL = edge(__name__, "HALF_PANEL", 128 << 10, "bytes")
# bytes of A, and of the result, that fit the L2 cache
CHUNK = edge(__name__, "CHUNK", 512 << 10, "bytes")
SMALL = edge(__name__, "SMALL", 50_000, "products")  # multiply-adds that are worth a block
BLOCKS = edge(__name__, "BLOCKS", 16, "count")  # wanted for a large product
LONG = edge(__name__, "LONG", 1024, "size")  # k from which split-K is considered, for at most
WIDE = edge(__name__, "WIDE", 1 << 16, "elements")  # elements of the result
VERY_LONG = edge(__name__, "VERY_LONG", 1 << 18, "size")  # k that is split into more parts
DEEPEST = edge(__name__, "DEEPEST", 512, "size")  # terms that are added one after the other
FEW = edge(__name__, "FEW", 4, "count")  # products of a batch up to which split-K is considered
TILES = edge(__name__, "TILES", 16, "count")  # along m that should share a panel; more, when B
BIG = edge(__name__, "BIG", 1 << 20, "bytes")  # has more bytes, and comes from an outer cache
# of A that are packed at a time where its rows are neighbours: that many cache lines an element
STEPS = edge(__name__, "STEPS", 8, "size")
PANELS = edge(__name__, "PANELS", 6, "count")  # that should share a packed A


@lru_cache(maxsize=1024)
def matmul(
    a: ArrayLayout,
    b: ArrayLayout,
    out: ArrayLayout,
    args: tuple[int, int] = (1, 2),
    out_arg: int = 0,
) -> Work:
    """out = a @ b; the arguments are out, a, b, or a and b are numbers `args` of them, and out
    number `out_arg`. Rows of `out` must be contiguous."""
    product = product_of(a, b, out, (*args, out_arg), machine().has_bf16_dots)
    if 0 in out.shape:
        return Work(())
    if row_dots.serves(product):
        return Work((row_dots.row_dots(product),))
    parts, size = _parts(product), product.dtype.itemsize
    in_stretches = product.is_half and product.k > _plan_gemm(product, machine()).depth
    if parts == 1 and not in_stretches:
        step, scratch = _step(product, 0)
        rows = _rows(product) if len(out.shape) == 2 and product.m == out.shape[0] else ()
        return Work((step,), scratch * size, rows)
    kept = _whole(parts * out.size, 16)
    step, scratch = _step(_split(product, parts), kept)
    return Work((step, _sum_step(product, parts)), (kept + scratch) * size)


def _whole(n: int, unit: int) -> int:
    """n rounded up to whole units."""
    return -(-n // unit) * unit


# --- split-K -------------------------------------------------------------------------------------


def _parts(p: Product) -> int:
    """The split-K factor, a divisor of k. If k is long and the result small, each part reads its
    own A and B once, where chunks of the result would read them many times."""
    if p.k < LONG or p.m * p.n > WIDE or p.entries > FEW or p.whole < p.k:
        return 1
    wanted = (8, 4) if p.m * p.n <= WIDE // 4 else (4,)  # the parts are summed at the end
    if p.k >= VERY_LONG and p.m * p.n <= WIDE // 32:  # more parts are also more accurate
        wanted = (64, 32, 16, *wanted)
    found = [parts for parts in (*wanted, 7, 5, 6, 3, 2) if p.k % parts == 0]
    return found[0] if found else 1


def _split(p: Product, parts: int) -> Product:
    """Split-K: the partial sums, or the one sum, as a batch of products in scratch memory."""
    k = p.k // parts
    batch, step = [], p.m * p.n
    for dim in reversed(p.batch):
        batch.append(dim._replace(out=step))
        step *= dim.size
    whole = Batch(parts, k * p.each * p.a[1], k * p.each * p.b[0], step)
    bases = (*p.bases[:2], (3, 0))
    terms = p.terms // parts
    return p._replace(
        k=k,
        terms=terms,
        made=p.dtype,
        out_row=p.n,
        batch=(whole, *reversed(batch)),
        bases=bases,
    )


# --- the plan ------------------------------------------------------------------------------------


class GemmPlan(NamedTuple):
    """The first `tall` of `tiles` tiles have `rows` rows, the others one row fewer; panels have
    `width` columns, the last may be narrower; k is split into stretches of `depth`.

    A batch entry is `down` x `across` chunks, a block is `group` chunks.
    """

    rows: int
    tiles: int
    tall: int
    width: int
    panels: int
    depth: int
    down: int
    across: int
    group: int
    packs: str
    a_packs: str

    @property
    def a_area(self) -> int:
        """Elements of scratch memory for the packed A of a chunk."""
        if self.a_packs == "none":
            return 0
        return _whole(-(-self.tiles // self.down) * self.rows * self.depth + 64, 64)


def _plan_gemm(p: Product, target: VectorRegisters) -> GemmPlan:
    lanes = target.width // p.dtype.itemsize
    rows, vectors = _tile_of(p, lanes, target.registers)
    tiles = -(-p.m // rows)
    width = vectors * lanes
    panels = -(-p.n // width)
    packs = _packing(p, width, tiles)
    depth = _depth(p, width, in_place=packs == "none")
    down, across = _chunks(p, tiles, panels, depth)
    chunk = p.m * p.n * p.k // (down * across)
    group = max(1, SMALL // max(chunk, 1))
    tall = p.m - tiles * (rows - 1)
    a_packs = _packing_of_a(p, panels // across >= PANELS, depth)
    return GemmPlan(rows, tiles, tall, width, panels, depth, down, across, group, packs, a_packs)


def _cycles(rows: int, vectors: int, k: int, depth: int) -> float:
    """Estimated cycles of a tile: for each k two multiply-adds a cycle, one load a cycle, a latency
    of four cycles; for each stretch, its loads and stores."""
    sums, loads = rows * vectors / 2, rows + vectors
    each = max((sums**4 + loads**4) ** 0.25, 4)  # by timings, the smaller of the two counts as well
    return k * each + -(-k // depth) * (40 + 2 * rows * vectors)


def _tile_of(p: Product, lanes: int, registers: int) -> tuple[int, int]:
    """Rows, and vectors of columns, of the tiles with the lowest estimated time."""
    total = -(-p.n // lanes)
    found = []
    for vectors in range(1, min(total, 8) + 1):
        most = (registers - 1 - vectors) // vectors
        if most < 1:
            break
        tiles = -(-p.m // most)
        rows = -(-p.m // tiles)
        depth = _depth(p, vectors * lanes)
        full, rest = divmod(total, vectors)
        cost = full * _cycles(rows, vectors, p.k, depth)
        cost += _cycles(rows, rest, p.k, depth) if rest else 0
        found.append((tiles * cost, rows, vectors))
    _, rows, vectors = min(found)
    return rows, vectors


def _depth(p: Product, width: int, in_place: bool = False) -> int:
    """The length of the stretches of k; only the last may be shorter. Each stretch has its own
    accumulator, so a very long k should have few; they are longer if no panel must fit the cache.
    """
    panel = HALF_PANEL if p.is_half else PANEL
    most = max(16, min(DEEPEST, panel // (width * p.dtype.itemsize)))
    most = max(most, math.isqrt(p.k) if in_place else 0)
    depth = max(1, -(-p.k // max(1, -(-p.k // most))))
    least = 4 + p.k - p.whole
    while p.k >= least and (p.k - 1) % depth + 1 < least:  # packing copies up to four at a time
        depth -= 1
    return depth


def _packing(p: Product, width: int, tiles: int) -> str:
    """How panels are made: "none", when B can be read in place, "rows", "columns" or "any"."""
    b_k, b_n = p.b
    if b_n == 1 or p.n == 1:
        in_place = (tiles <= 2 or b_k == width == p.n) and not p.is_half
        return "none" if in_place else "rows"
    return _packing_along_k(p, b_k)


def _packing_along_k(p: Product, along_k: int) -> str:
    if along_k == 1 and p.whole * p.dtype.itemsize >= 16:
        return "columns"
    return "any"


def _packing_of_a(p: Product, often: bool, depth: int) -> str:
    """The same for A, tile by tile. A is packed if it must be, or if its rows are neighbours in
    memory and it is used `often`: packing makes them contiguous."""
    if p.a[0] == 1 != p.a[1] and (p.is_half or (p.m > 16 and often)):
        return "rows"
    # pairs in memory can be read in place; half a pair only behind others, in the one stretch of k
    whole = p.whole == p.k or 0 < p.whole < p.k <= depth
    in_place = not p.is_half or (p.pairs and p.a[1] == 1 and whole)
    return "none" if in_place else _packing_along_k(p, p.a[1])


def _chunks(p: Product, tiles: int, panels: int, depth: int) -> tuple[int, int]:
    """Into how many chunks along m and along n the product is split.

    Along m first, since blocks then complete whole rows of the result. But each panel is packed
    once per chunk, so a chunk should have many tiles to amortise the packing.
    """
    size = p.dtype.itemsize
    most = BLOCKS if p.entries == 1 else BLOCKS // 2
    wanted = -(-min(most, p.m * p.n * p.k * p.entries // SMALL) // p.entries)
    cached = -(-p.m * depth * size // CHUNK)  # A's part fits the L2 cache
    serve = TILES if p.k * p.n * size <= BIG else 2 * TILES
    down = max(1, min(wanted, tiles // serve), min(cached, tiles))
    cached = -(-p.m * p.n * size // (2 * CHUNK * down))
    across = max(1, -(-wanted // down), cached)
    return down, min(across, panels)


# --- the code ------------------------------------------------------------------------------------


def _step(p: Product, scratch: int) -> tuple[Step, int]:
    """The step, and the elements of scratch memory it uses, from element `scratch` on."""
    plan = _plan_gemm(p, machine())
    chunks = p.entries * plan.down * plan.across
    blocks = -(-chunks // plan.group)
    step = Step(_GemmWriter(p, plan, scratch).text(), blocks, vectorise=False)
    return step, blocks * plan.a_area


def _rows(p: Product) -> tuple[int, ...]:
    """The rows at which blocks begin, where each block is one chunk of whole rows."""
    plan = _plan_gemm(p, machine())
    if p.entries > 1 or plan.across > 1 or plan.group > 1 or plan.down < 2:
        return ()
    tiles = [i * plan.tiles // plan.down for i in range(plan.down + 1)]
    return tuple(min(p.m, i * plan.rows - max(0, i - plan.tall)) for i in tiles)


def _sum_step(p: Product, parts: int) -> Step:
    """out = the sum of the parts in scratch memory; a block is one row."""
    code = p.emitter(machine())
    code.lines += [f"define void @step(i64 %lo, i64 %hi, ptr %args) {engine().attributes} {{", "e:"]
    bases = code.bases([(3, 0), p.bases[2]], [code.type, code.made])
    with code.loop("%lo", "%hi") as i:
        source = code.at(bases[0], code.times(i, p.n))
        row = code.integer("urem", i, p.m)
        batch = [(dim.size, (dim.out,)) for dim in p.batch]
        (target,) = code.entry(code.integer("udiv", i, p.m), [bases[1]], [code.made], batch)
        target = code.at(target, code.times(row, p.out_row), code.made)
        whole = p.n // code.lanes * code.lanes
        with code.loop(0, whole, code.lanes) as j:
            at = code.at(source, j), code.at(target, j, code.made)
            _sum_parts(code, *at, parts, p, code.lanes)
        if whole < p.n:
            at = code.at(source, whole), code.at(target, whole, code.made)
            _sum_parts(code, *at, parts, p, p.n - whole)
    code.lines += ["  ret void", "}"]
    return Step(code.text(), p.entries * p.m, vectorise=False)


def _sum_parts(
    code: TileEmitter, source: str, target: str, parts: int, p: Product, lanes: int
) -> None:
    """One vector of the sum."""
    total = code.load(source, lanes)
    for part in range(1, parts):
        more = code.load(code.at(source, part * p.entries * p.m * p.n), lanes)
        total = code.op("fadd", total, more)
    code.store_result(total, target, lanes)


class _GemmWriter:
    """Writes the module of one product."""

    def __init__(self, p: Product, plan: GemmPlan, scratch: int) -> None:
        self.p, self.plan, self.scratch = p, plan, scratch
        self.code = p.emitter(machine())
        self.edge = p.n - (plan.panels - 1) * plan.width  # columns of the last panel
        self.full = plan.panels if self.edge == plan.width else plan.panels - 1
        self.packed, self.a_packed = plan.packs != "none", plan.a_packs != "none"
        self.half = self.code.odd and not self.a_packed
        # one function serves tiles of both heights if each row's address fits a register
        self.short = plan.tall != plan.tiles and plan.rows <= 8 and not self.a_packed

    def text(self) -> str:
        widths = ([self.plan.width] if self.full else []) + (
            [self.edge] if self.edge != self.plan.width else []
        )
        for width in widths:
            self.parts(width)
        if self.a_packed:
            for rows in self.heights():
                across, along_k = self.p.a
                self.pack(f"packa{rows}", self.plan.a_packs, rows, (along_k, across), rows)
        self.step()
        return self.code.text()

    # --- functions -------------------------------------------------------------------------------

    def heights(self) -> list[int]:
        plan = self.plan
        one = plan.tall == plan.tiles or self.short
        return [plan.rows] if one else [plan.rows, plan.rows - 1]

    def parts(self, width: int) -> None:
        """The tiles and the packing of panels of `width` columns."""
        p, plan, code = self.p, self.plan, self.code
        b_step = plan.width if self.packed else p.b[0]
        for rows in self.heights():
            a = (1, rows) if self.a_packed else (p.a[0], p.a[1] * p.each)
            a_type = code.type if self.a_packed else code.stored
            strides = Strides(*a, b_step, p.out_row, a_type)
            resumes = p.k > plan.depth
            masked = not self.packed
            what = GemmTile(rows, width, masked, self.short, p.k > 0, resumes, self.half)
            tile(code, f"tile{rows}x{width}", what, strides)
        if self.packed:
            self.pack(f"pack{width}", plan.packs, width, p.b, plan.width)

    def pack(
        self, name: str, packing: str, columns: int, strides: tuple[int, int], panel: int
    ) -> None:
        """The function that packs a panel of `columns`, from strides along k and the columns."""
        along_k, across = strides
        if packing == "rows":
            pack_rows(self.code, name, columns, along_k, panel)
        elif packing == "any":
            pack_any(self.code, name, columns, along_k, across, panel)
        else:
            self.pack_columns(name, columns, across, panel)

    def pack_columns(self, name: str, columns: int, across: int, panel: int) -> None:
        """A panel is packed a vector at a time; the last vector may have fewer columns."""
        code = self.code
        counts = vectors_of(code, columns)
        for count in sorted(set(counts)):
            pack_columns(code, f"{name}.{count}", count, across, panel)
        params = ["ptr %b", "ptr %to", "i64 %k", *(["i64 %whole"] * code.odd)]
        with code.function(name, *params):
            # the last first: its vectors may reach into the next row of a panel that is no wider
            for j, count in reversed([*enumerate(counts)]):
                source = code.at("%b", j * code.lanes * across, code.stored)
                given = f"ptr {source}, ptr {code.at('%to', j * code.lanes)}"
                code.lines.append(f"  call void @{name}.{count}({given}, {', '.join(params[2:])})")

    # --- loops -----------------------------------------------------------------------------------

    def step(self) -> None:
        p, plan, code = self.p, self.plan, self.code
        attributes = engine().attributes
        code.lines += [f"define void @step(i64 %lo, i64 %hi, ptr %args) {attributes} {{", "e:"]
        if self.packed:
            size = plan.depth * plan.width
            code.lines.append(f"  %panel = alloca [{size} x {code.type}], align 64")
        types = [code.stored, code.stored, code.made, code.type]
        wanted = [*p.bases, (3, self.scratch)] if self.a_packed else p.bases
        bases = code.bases(wanted, types[: len(wanted)])
        if self.a_packed:  # no two calls have the same %lo
            bases[3] = code.at(bases[3], code.times("%lo", plan.a_area))
        chunks = p.entries * plan.down * plan.across
        first = code.times("%lo", plan.group)
        last = code.least(code.times("%hi", plan.group), chunks)
        with code.loop(first, last) as chunk:
            self.chunk(chunk, bases)
        code.lines += ["  ret void", "}"]

    def chunk(self, index: str, given: list[str]) -> None:
        """One chunk of one batch entry."""
        plan, code = self.plan, self.code
        bases = given.copy()
        entry = code.integer("udiv", index, plan.down * plan.across)
        chunk = code.integer("urem", index, plan.down * plan.across)
        batch = [(dim.size, dim[1:]) for dim in self.p.batch]
        types = [code.stored, code.stored, code.made]
        bases[:3] = code.entry(entry, bases[:3], types, batch)
        row = self.share(code.integer("udiv", chunk, plan.across), plan.tiles, plan.down)
        column = self.share(code.integer("urem", chunk, plan.across), plan.panels, plan.across)
        with code.loop(0, max(self.p.k, 1), plan.depth) as k:
            self.stretch(k, bases, row, column)

    def share(self, index: str, total: int, parts: int) -> tuple[str, str]:
        """Part `index` of [0, total) split into equal parts."""
        code = self.code
        after = code.integer("add", index, 1)
        low, high = (code.integer("udiv", code.times(i, total), parts) for i in (index, after))
        return low, high

    def stretch(
        self, k: str, bases: list[str], row: tuple[str, str], column: tuple[str, str]
    ) -> None:
        """A stretch of k: all panels of the chunk, for each all tiles."""
        p, plan, code = self.p, self.plan, self.code
        a, b, out = bases[:3]
        a = code.at(a, code.times(k, p.a[1] * p.each), code.stored)
        b = code.at(b, code.times(k, p.b[0] * p.each), code.stored)
        length = code.least(code.integer("sub", str(p.k), k), plan.depth)
        self.steps = self.counts(k, length)
        more = code.emit("i1", f"icmp ne i64 {k}, 0").name
        if self.a_packed:
            a = self.pack_a(a, bases[3], row, k, length)
        low, high = column
        if self.full:
            end = high if self.full == plan.panels else code.least(high, self.full)
            with code.loop(low, end) as panel:
                self.panel(panel, plan.width, (a, b, out), row, length, more)
        if self.full < plan.panels:
            with code.loop(code.least(low, self.full, largest=True), high) as panel:
                self.panel(panel, self.edge, (a, b, out), row, length, more)

    def panel(
        self,
        index: str,
        width: int,
        bases: tuple[str, str, str],
        row: tuple[str, str],
        length: str,
        more: str,
    ) -> None:
        """All tiles of one panel."""
        p, plan, code = self.p, self.plan, self.code
        a, b, out = bases
        column = code.times(index, plan.width)
        b = code.at(b, code.times(column, p.b[1]), code.stored)
        out = code.at(out, column, code.made)
        if self.packed:
            code.lines.append(f"  call void @pack{width}(ptr {b}, ptr %panel, {self.steps})")
            b = "%panel"
        a_row = (plan.depth, code.type) if self.a_packed else (p.a[0], code.stored)
        for rows, (low, high) in self.tiles(row):
            with code.loop(low, high) as i:
                at = self.first_row(i) if self.short else self.row_of(i, rows)
                source = code.at(a, code.times(at, a_row[0]), a_row[1])
                target = code.at(out, code.times(at, p.out_row), code.made)
                steps = p.whole if self.half else length
                given = f"ptr {source}, ptr {b}, ptr {target}, i64 {steps}, i1 {more}"
                if self.short:
                    tall = code.emit("i1", f"icmp slt i64 {i}, {plan.tall}").name
                    given += f", i1 {tall}"
                code.lines.append(f"  call void @tile{rows}x{width}({given})")

    def tiles(self, row: tuple[str, str]) -> list[tuple[int, tuple[str, str]]]:
        """The heights of tiles, and which of the tiles in `row` have them."""
        plan, code = self.plan, self.code
        if len(self.heights()) == 1:
            return [(plan.rows, row)]
        tall = row[0], code.least(row[1], plan.tall)
        short = code.least(row[0], plan.tall, largest=True), row[1]
        return [(plan.rows, tall), (plan.rows - 1, short)]

    def row_of(self, i: str, rows: int) -> str:
        """The first row of tile i, which has `rows` rows."""
        at = self.code.times(i, rows)
        return at if rows == self.plan.rows else self.code.integer("add", at, self.plan.tall)

    def counts(self, k: str, steps: str) -> str:
        """How many steps are packed from step k on, and how many of them are whole."""
        if not self.code.odd:
            return f"i64 {steps}"
        whole = self.code.least(self.code.integer("sub", str(self.p.whole), k), steps)
        return f"i64 {steps}, i64 {whole}"

    def pack_a(self, a: str, area: str, row: tuple[str, str], k: str, length: str) -> str:
        """Packs A's part of the chunk, `length` steps from k on, into `area`; returns where its row
        0 would be. Rows that are neighbours in memory are packed a few steps at a time: several
        tiles then find theirs in the same cache lines."""
        p, plan, code = self.p, self.plan, self.code
        area = code.at(area, code.integer("mul", self.first_row(row[0]), -plan.depth))
        each = STEPS if plan.a_packs == "rows" else plan.depth
        with code.loop(0, length, each) as j:
            begin = code.at(a, code.times(j, p.a[1] * p.each), code.stored)
            steps = code.least(code.integer("sub", length, j), each)
            steps = self.counts(code.integer("add", k, j), steps)
            for rows, (low, high) in self.tiles(row):
                with code.loop(low, high) as i:
                    at = self.row_of(i, rows)
                    source = code.at(begin, code.times(at, p.a[0]), code.stored)
                    to = code.integer("add", code.times(at, plan.depth), code.times(j, rows))
                    given = f"ptr {source}, ptr {code.at(area, to)}, {steps}"
                    code.lines.append(f"  call void @packa{rows}({given})")
        return area

    def first_row(self, i: str) -> str:
        """The first row of tile i."""
        at = self.code.times(i, self.plan.rows)
        past = self.code.least(self.code.integer("sub", i, self.plan.tall), 0, largest=True)
        return self.code.integer("sub", at, past)

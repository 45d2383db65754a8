"""A matrix of 16-bit floats times a vector, by dot products: the rows of the matrix are contiguous.

A tile of other products would transpose the matrix first, for the sake of one column. Here a few
rows share what is read of the vector, each in a vector of sums, whose lanes are added at the end.
"""

from __future__ import annotations

from everygrad.backends.cpu.gemm.gemm_product import Product
from everygrad.backends.cpu.llvm.bf16_vectors import rounded
from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import Int, VectorEmitter, machine
from everygrad.backends.cpu.llvm.work import Step
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import float16, float32

ROWS = edge(__name__, "ROWS", 8, "size")  # that share what is read of the vector
TERMS = edge(__name__, "TERMS", 1 << 16, "products")  # that are worth a block


def serves(p: Product) -> bool:
    """Whether this is such a product: `b` is the matrix, its columns contiguous along k."""
    lanes = machine(float32).lanes
    is_vector = p.m == 1 and p.n > 1 and p.a[1] == 1 == p.b[0]
    return is_vector and p.is_half and not p.pairs and p.made is p.stored and p.k >= lanes


def row_dots(p: Product) -> Step:
    """out[j] = sum over k of a[k] b[k, j], for each entry of the batch."""
    c = VectorEmitter(float32, machine(float32).lanes)
    kind = "half" if p.stored is float16 else "i16"
    rows = min(ROWS, p.n, c.lanes)
    tiles = -(-p.n // rows)
    group = min(tiles, max(1, TERMS // (rows * p.k)))
    each = -(-tiles // group)
    bases = [c.at(c.argument(argument), offset, kind) for argument, offset in p.bases]
    with c.loop(*c.blocks) as block:
        entry, part = c.divmod(block.index, each)
        a, b, out = _entry(c, p, entry, bases, kind)
        with c.loop(*c.share(part, each, tiles)) as tile:
            first = c.bounded(tile.index, rows, p.n)
            begin = c.at(b, c.mul(first, p.b[1]), kind)
            sums = [c.zero] * rows
            whole = p.k // c.lanes
            with c.loop(0, whole, sums) as k:
                at = c.mul(k.index, c.lanes)
                k.next = _add(c, p, c.at(a, at, kind), c.at(begin, at, kind), c.lanes, k.values)
            sums = k.values
            if p.k % c.lanes:
                end_a, end_b = (c.at(base, whole * c.lanes, kind) for base in (a, begin))
                sums = _add(c, p, end_a, end_b, p.k % c.lanes, sums)
            _store(c, p, sums, c.at(out, first, kind), kind)
    return c.step(p.entries * each)


def _entry(c: VectorEmitter, p: Product, entry: Int, bases: list[Value], kind: str) -> list[Value]:
    """Where a, b and out of an entry of the batch begin."""
    found = list(bases)
    for dim in reversed(p.batch):
        entry, at = c.divmod(entry, dim.size)
        steps = (dim.a, dim.b, dim.out)
        found = [c.at(v, c.mul(at, s), kind) for v, s in zip(found, steps, strict=True)]
    return found


def _add(
    c: VectorEmitter, p: Product, a: Value, b: Value, count: int, sums: list[Value]
) -> list[Value]:
    """The sums with `count` more terms of each row."""
    seen = _widened(c, p, a, count)
    kind = "half" if p.stored is float16 else "i16"
    return [
        c.fused(seen, _widened(c, p, c.at(b, j * p.b[1], kind), count), total)
        for j, total in enumerate(sums)
    ]


def _widened(c: VectorEmitter, p: Product, address: Value, count: int) -> Value:
    """The first `count` elements as float32, zeros in the other lanes."""
    short = VectorEmitter(p.stored, c.lanes)  # moves 16 bits, whatever they are
    given = (
        c.load(address, short.vector)
        if count == c.lanes
        else c.load_where(address, c.first_lanes(count), short)
    )
    if p.stored is float16:
        return c.cast("fpext", c.cast("bitcast", given, f"<{c.lanes} x half>"), c.vector)
    wide = f"<{c.lanes} x i32>"
    high = c.op("shl", c.cast("zext", given, wide), c.splat(Value("i32", "16"), wide))
    return c.cast("bitcast", high, c.vector)


def _store(c: VectorEmitter, p: Product, sums: list[Value], out: Value, kind: str) -> None:
    """The lanes of each sum added up, rounded and stored as neighbours."""
    made = c.zero
    for j, total in enumerate(sums):
        name = f"llvm.vector.reduce.fadd.v{c.lanes}f32"
        c.declarations.add(f"declare float @{name}(float, {c.vector})")
        one = c.emit("float", f"call reassoc float @{name}(float -0.0, {c.vector} {total.name})")
        made = c.emit(c.vector, f"insertelement {c.vector} {made.name}, float {one.name}, i64 {j}")
    if p.stored is float16:
        half = c.cast("fptrunc", made, f"<{c.lanes} x half>")
        short = c.cast("bitcast", half, f"<{c.lanes} x i16>")
    else:
        short = rounded(c, made, c.lanes)
    c.store_where(short, out, c.first_lanes(len(sums)))

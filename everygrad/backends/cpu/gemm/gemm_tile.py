"""The small functions of a matrix product, as LLVM IR: tiles, and packing into panels.

A tile is a few rows times a few vectors of columns of the result, held in registers while the
sum runs over k: one broadcast element of A times a vector of B. Vectors are explicit, so the source
needs no vectoriser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from everygrad.backends.cpu.llvm.compiler import Emitter, Value, engine
from everygrad.dtypes import DType

I64 = "i64"


class VectorRegisters(NamedTuple):
    """The processor's vector registers: their bytes and number, whether it has FMA, and whether it
    has dot products of bfloat16 pairs."""

    width: int
    registers: int
    has_fma: bool
    has_bf16_dots: bool = False


def machine() -> VectorRegisters:
    """The processor this runs on."""
    has = engine().features.get
    if has("avx512f"):
        return VectorRegisters(64, 32, True, bool(has("avx512bf16")))
    if has("avx2"):
        return VectorRegisters(32, 16, bool(has("fma")))
    if has("neon"):
        return VectorRegisters(16, 32, True)
    return VectorRegisters(16, 16, bool(has("fma")))


class TileEmitter(Emitter):
    """An emitter that knows functions, loops and vectors of one element type.

    A sum over k is a loop of steps. Here a step is one k, and A, B and the result hold the type of
    the sums; `half_tile` has emitters for which they hold 16-bit floats, and a step may be two k.
    """

    terms = 1  # of the sum over k in one step
    odd = False  # whether the last step has one term fewer

    def __init__(self, dtype: DType, target: VectorRegisters) -> None:
        super().__init__()
        self.size = self.stored_size = dtype.itemsize
        self.type = "float" if self.size == 4 else "double"
        self.stored = self.made = self.type  # the types of A and B, and of the result, in memory
        self.suffix = "f32" if self.size == 4 else "f64"
        self.target = target
        self.lanes = target.width // self.size
        self.vector = f"<{self.lanes} x {self.type}>"
        self._labels = 0

    # --- integers and addresses ------------------------------------------------------------------

    def integer(self, name: str, a: str, b: str | int) -> str:
        """A binary instruction on i64: add, mul, udiv..."""
        return self.emit(I64, f"{name} i64 {a}, {b}").name

    def least(self, a: str, b: str | int, largest: bool = False) -> str:
        """The smaller (or larger) of two integers."""
        name = "smax" if largest else "smin"
        return self.call(f"llvm.{name}.i64", I64, Value(I64, a), Value(I64, str(b))).name

    def at(self, pointer: str, elements: str | int, type_: str = "") -> str:
        """The address `elements` elements on, by default of the type of the sums."""
        if elements == 0:
            return pointer
        text = f"getelementptr {type_ or self.type}, ptr {pointer}, i64 {elements}"
        return self.emit("ptr", text).name

    def times(self, value: str, factor: int) -> str:
        return value if factor == 1 else self.integer("mul", value, factor)

    def bases(self, wanted: Sequence[tuple[int, int]], types: Sequence[str]) -> list[str]:
        """Pointers from %args: for each, which, and the offset of its first element."""
        found = []
        for (index, offset), type_ in zip(wanted, types, strict=True):
            at = self.emit("ptr", f"getelementptr ptr, ptr %args, i64 {index}").name
            found.append(self.at(self.emit("ptr", f"load ptr, ptr {at}").name, offset, type_))
        return found

    def entry(
        self,
        index: str,
        bases: list[str],
        types: Sequence[str],
        batch: Sequence[tuple[int, tuple[int, ...]]],
    ) -> list[str]:
        """Where the matrices of a batch entry begin; `batch`: sizes, and a stride for each base."""
        for size, strides in reversed(batch):
            at = self.integer("urem", index, size)
            index = self.integer("udiv", index, size)
            bases = [
                self.at(base, self.times(at, stride), type_) if stride else base
                for base, stride, type_ in zip(bases, strides, types, strict=True)
            ]
        return bases

    # --- control ---------------------------------------------------------------------------------

    def label(self, name: str) -> str:
        """Begins a basic block that the previous one falls through to; returns its name."""
        self._labels += 1
        label = f"{name}{self._labels}"
        self.lines += [f"  br label %{label}", f"{label}:"]
        return label

    @contextmanager
    def loop(self, start: str | int, end: str | int, step: int = 1) -> Iterator[str]:
        """The body runs for each index in [start, end)."""
        before = self.label("before")
        head, n = self.label("head"), self._labels
        self.lines += [
            f"  %i{n} = phi i64 [ {start}, %{before} ], [ %next{n}, %again{n} ]",
            f"  %go{n} = icmp slt i64 %i{n}, {end}",
            f"  br i1 %go{n}, label %body{n}, label %end{n}",
            f"body{n}:",
        ]
        yield f"%i{n}"
        self.lines += [
            f"  br label %again{n}",
            f"again{n}:",
            f"  %next{n} = add nuw nsw i64 %i{n}, {step}",
            f"  br label %{head}",
            f"end{n}:",
        ]

    @contextmanager
    def function(self, name: str, *params: str) -> Iterator[None]:
        """An internal function: many calls share one copy of the code."""
        attributes = f"noinline {engine().attributes}"
        self.lines += [f"define internal void @{name}({', '.join(params)}) {attributes} {{", "e:"]
        yield
        self.lines += ["  ret void", "}"]

    def text(self) -> str:
        return "\n".join([*sorted(self.declarations), *self.lines, ""])

    # --- vectors ---------------------------------------------------------------------------------

    def mask(self, count: int) -> Value:
        """The first `count` lanes."""
        bits = ", ".join(f"i1 {int(lane < count)}" for lane in range(self.lanes))
        return Value(f"<{self.lanes} x i1>", f"<{bits}>")

    def load(self, pointer: str, count: int) -> Value:
        """The first `count` lanes from memory, zeros in the others."""
        if count == self.lanes:
            return self.emit(self.vector, f"load {self.vector}, ptr {pointer}, align {self.size}")
        return self.call(
            f"llvm.masked.load.v{self.lanes}{self.suffix}.p0",
            self.vector,
            Value("ptr", pointer),
            Value("i32", str(self.size)),
            self.mask(count),
            Value(self.vector, "zeroinitializer"),
        )

    def store(self, value: Value, pointer: str, count: int) -> None:
        """The first `count` lanes to memory."""
        if count == self.lanes:
            text = f"store {self.vector} {value.name}, ptr {pointer}, align {self.size}"
            self.lines.append(f"  {text}")
            return
        name = f"llvm.masked.store.v{self.lanes}{self.suffix}.p0"
        mask = self.mask(count)
        self.declarations.add(f"declare void @{name}({self.vector}, ptr, i32, {mask.type})")
        self.lines.append(
            f"  call void @{name}({self.vector} {value.name}, ptr {pointer}, i32 {self.size}, "
            f"{mask.type} {mask.name})"
        )

    def store_result(self, value: Value, pointer: str, count: int) -> None:
        """The first `count` lanes to the result."""
        self.store(value, pointer, count)

    def spread(self, pointer: str) -> Value:
        """One step of A in every lane."""
        one = self.emit(self.type, f"load {self.type}, ptr {pointer}, align {self.stored_size}")
        return self.in_every_lane(one)

    def in_every_lane(self, one: Value) -> Value:
        low = self.emit(
            self.vector, f"insertelement {self.vector} poison, {self.type} {one.name}, i64 0"
        )
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.emit(
            self.vector, f"shufflevector {self.vector} {low.name}, {self.vector} poison, {zeros}"
        )

    def shuffle(self, a: Value, b: Value, lanes: list[int]) -> Value:
        """Selects lanes of a and b, numbered through both."""
        picked = ", ".join(f"i32 {lane}" for lane in lanes)
        element = a.type.split(" x ")[1]
        return self.emit(
            f"<{len(lanes)} x {element}",
            f"shufflevector {a.type} {a.name}, {b.type} {b.name}, <{len(lanes)} x i32> <{picked}>",
        )

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the processor has fused multiply-add."""
        if self.target.has_fma:
            return self.call(f"llvm.fma.v{self.lanes}{self.suffix}", self.vector, a, b, c)
        product = self.op("fmul", a, b)
        return self.op("fadd", product, c)

    # --- what packing makes of A and B -----------------------------------------------------------

    def step_of_row(self, pointer: str, along_k: int, count: int, half: bool) -> Value:
        """One step of `count` neighbours, zeros in the other lanes; `half`: one term fewer."""
        return self.load(pointer, count)

    def step_of_one(self, pointer: str, along_k: int, half: bool) -> Value:
        """One step of a single row or column."""
        return self.emit(self.type, f"load {self.type}, ptr {pointer}, align {self.size}")

    def few_steps(self, pointer: str, count: int) -> Value:
        """A few steps that are neighbours in memory, to be `widened`."""
        part = f"<{count} x {self.type}>"
        return self.emit(part, f"load {part}, ptr {pointer}, align {self.stored_size}")

    def widened(self, value: Value) -> Value:
        """A vector of stored elements as what a tile multiplies."""
        return value


class Strides(NamedTuple):
    """How tiles find their elements: A along m and a step, B along a step, the result along m; and
    the type in which A's strides count."""

    a_row: int
    a_step: int
    b_step: int
    out_row: int
    a_type: str


def vectors_of(code: TileEmitter, columns: int) -> list[int]:
    """How many lanes of each vector a row of `columns` uses."""
    return [min(code.lanes, columns - j) for j in range(0, columns, code.lanes)]


class GemmTile(NamedTuple):
    """Which tile: its rows and columns, and what its function must be able to do.

    masked: B must not be read past its columns (otherwise that memory exists, whatever it holds);
    short: the function takes a last argument, whether the last row counts; sums: k is not 0;
    resumes: it may add to a result of earlier stretches of k; half: behind its k steps follows one
    with one term fewer.
    """

    rows: int
    columns: int
    masked: bool
    short: bool
    sums: bool
    resumes: bool
    half: bool = False


_Sums = dict[tuple[int, int], Value]


def tile(code: TileEmitter, name: str, t: GemmTile, s: Strides) -> None:
    """@name(a, b, out, k, more[, tall]): out = A B for one tile, or out += A B if `more`."""
    counts = vectors_of(code, t.columns)
    grid = [(i, j) for i in range(t.rows) for j in range(len(counts))]
    params = ["ptr %a", "ptr %b", "ptr %out", "i64 %k", "i1 %more", *(["i1 %tall"] * t.short)]
    with code.function(name, *params):
        a_rows = [code.at("%a", i * s.a_row, s.a_type) for i in range(t.rows)] if t.short else []
        rows = [code.at("%out", i * s.out_row, code.made) for i in range(t.rows)]
        if t.short:  # aliases the row before the last, which is computed and stored twice
            for each in (a_rows, rows):
                each[-1] = code.select(Value("i1", "%tall"), *_pointers(each[-1], each[-2])).name
        at = {(i, j): code.at(rows[i], j * code.lanes, code.made) for i, j in grid}
        totals = {cell: Value(code.vector, "zeroinitializer") for cell in grid}
        if t.sums:
            code.lines += ["  br label %sum", "sum:"]
            lanes = counts if t.masked else [code.lanes] * len(counts)
            totals = _sum_loop(code, t, lanes, s, a_rows)
            if t.half:
                totals = _half_step(code, t, lanes, s, a_rows, totals)
            if t.resumes:
                _add_to(code, t, counts, at, totals)
        for i, j in grid:
            code.store_result(totals[i, j], at[i, j], counts[j])


def _add_to(
    code: TileEmitter, t: GemmTile, counts: list[int], at: dict[tuple[int, int], str], totals: _Sums
) -> None:
    """Adds this stretch of k to the stored result. Each stretch has its own accumulator: one that
    runs through all of a long k loses two digits by 2**25."""
    code.lines += ["  br i1 %more, label %resume, label %fresh", "resume:"]
    at_once = 2 if t.short else 1  # the last two rows may alias: read both before writing either
    for first in [*range(t.rows - at_once), t.rows - at_once]:
        some = range(first, t.rows if first == t.rows - at_once else first + 1)
        sums = {
            (i, j): code.op("fadd", code.load(at[i, j], count), totals[i, j])
            for i in some
            for j, count in enumerate(counts)
        }
        for (i, j), total in sums.items():
            code.store(total, at[i, j], counts[j])
    code.lines += ["  ret void", "fresh:"]


def _half_step(
    code: TileEmitter, t: GemmTile, lanes: list[int], s: Strides, a_rows: list[str], sums: _Sums
) -> _Sums:
    """The sums with the last step, of one term fewer, behind the loop: A is read in place, where
    what follows the last term is another row's."""
    b = [code.load(code.at("%pb.next", j * code.lanes), count) for j, count in enumerate(lanes)]
    totals: _Sums = {}
    for i in range(t.rows):
        base, far = (a_rows[i], "%at.next") if t.short else ("%pa.next", str(i * s.a_row))
        a = code.in_every_lane(code.step_of_one(code.at(base, far, s.a_type), 1, half=True))
        for j, v in enumerate(b):
            totals[i, j] = code.multiply_add(a, v, sums[i, j])
    return totals


def _pointers(*names: str) -> list[Value]:
    return [Value("ptr", name) for name in names]


def _sum_loop(
    code: TileEmitter, t: GemmTile, lanes: list[int], s: Strides, a_rows: list[str]
) -> _Sums:
    """The loop over k of a tile, in block "sum", from zero."""
    head = len(code.lines)
    code.lines.append("")  # the phis, filled in once the carried names are known
    b = [code.load(code.at("%pb", j * code.lanes), count) for j, count in enumerate(lanes)]
    totals: _Sums = {}
    for i in range(t.rows):
        base, far = (a_rows[i], "%at") if t.short else ("%pa", str(i * s.a_row))
        a = code.spread(code.at(base, far, s.a_type))
        for j, v in enumerate(b):
            totals[i, j] = code.multiply_add(a, v, Value(code.vector, f"%acc{i}.{j}"))
    carried = [("i64", "%left", "%k"), ("ptr", "%pb", "%b")]
    carried.append(("i64", "%at", "0") if t.short else ("ptr", "%pa", "%a"))
    phis = [(kind, name, start, f"{name}.next") for kind, name, start in carried]
    phis += [
        (code.vector, f"%acc{i}.{j}", "zeroinitializer", total.name)
        for (i, j), total in totals.items()
    ]
    code.lines[head] = "\n".join(
        f"  {name} = phi {kind} [ {start}, %e ], [ {new}, %sum ]" for kind, name, start, new in phis
    )
    code.lines += [
        "  %left.next = add nsw i64 %left, -1",
        f"  %pb.next = getelementptr {code.type}, ptr %pb, i64 {s.b_step}",
        f"  %at.next = add nsw i64 %at, {s.a_step}"
        if t.short
        else f"  %pa.next = getelementptr {s.a_type}, ptr %pa, i64 {s.a_step}",
        "  %done = icmp eq i64 %left.next, 0",
        "  br i1 %done, label %finish, label %sum",
        "finish:",
    ]
    return totals


# --- packing: columns of B, or rows of A, into panels, vector by vector for each step -----------


def _pack_params(code: TileEmitter) -> list[str]:
    """@pack(b, to, k[, whole]): k steps, of which the first `whole` have all their terms."""
    return ["ptr %b", "ptr %to", "i64 %k", *(["i64 %whole"] * code.odd)]


def _step_ranges(code: TileEmitter) -> list[tuple[bool, tuple[str, str]]]:
    """Whole steps, and then the last one where that has one term fewer."""
    if not code.odd:
        return [(False, ("0", "%k"))]
    return [(False, ("0", "%whole")), (True, ("%whole", "%k"))]


def pack_rows(code: TileEmitter, name: str, columns: int, b_k: int, panel: int) -> None:
    """@name: copy rows of `columns` neighbours; rows of the panel hold `panel`. What follows the
    last row is not written over if it holds no more than `columns`."""
    with code.function(name, *_pack_params(code)):
        for half, steps in _step_ranges(code):
            with code.loop(*steps) as k:
                source = code.at("%b", code.times(k, b_k * code.terms), code.stored)
                target = code.at("%to", code.times(k, panel))
                for j, count in enumerate(vectors_of(code, columns)):
                    at = code.at(source, j * code.lanes, code.stored)
                    value = code.step_of_row(at, b_k, count, half)
                    stored = count if columns == panel else code.lanes
                    code.store(value, code.at(target, j * code.lanes), stored)


def pack_columns(code: TileEmitter, name: str, columns: int, b_n: int, panel: int) -> None:
    """@name: as pack_rows for a B that is contiguous along k; one vector wide.

    Squares of 16 bytes a side are transposed in registers; the last may overlap the one before.
    At least `square(code)` whole steps. Missing columns repeat the last.
    """
    side = square(code)
    with code.function(name, *_pack_params(code)):
        whole = "%whole" if code.odd else "%k"
        with code.loop(0, whole, side) as i:
            k = code.least(i, code.integer("sub", whole, side))
            source = code.at("%b", code.times(k, code.terms), code.stored)
            target = code.at("%to", code.times(k, panel))
            rows = []
            for j in range(side):
                parts = []
                for column in range(j, code.lanes, side):
                    at = code.at(source, min(column, columns - 1) * b_n, code.stored)
                    parts.append(code.few_steps(at, side))
                rows.append(code.widened(_concatenated(code, parts)))
            for j, value in enumerate(_transposed(code, rows)):
                code.store(value, code.at(target, j * panel), code.lanes)
        if code.odd:
            with code.loop("%whole", "%k") as k:
                _pack_step(code, k, columns, (1, b_n), panel, half=True)


def pack_any(code: TileEmitter, name: str, columns: int, b_k: int, b_n: int, panel: int) -> None:
    """@name: element by element."""
    with code.function(name, *_pack_params(code)):
        for half, steps in _step_ranges(code):
            with code.loop(*steps) as k:
                _pack_step(code, k, columns, (b_k, b_n), panel, half)


def _pack_step(
    code: TileEmitter, k: str, columns: int, strides: tuple[int, int], panel: int, half: bool
) -> None:
    """One step of a panel, column by column."""
    along_k, along_n = strides
    row = code.at("%b", code.times(k, along_k * code.terms), code.stored)
    to = code.at("%to", code.times(k, panel))
    with code.loop(0, columns) as j:
        value = code.step_of_one(code.at(row, code.times(j, along_n), code.stored), along_k, half)
        text = f"store {value.type} {value.name}, ptr {code.at(to, j)}, align {code.size}"
        code.lines.append(f"  {text}")


def square(code: TileEmitter) -> int:
    """Elements in 16 bytes: shuffles within these are cheap on every processor."""
    return 16 // code.size


def _concatenated(code: TileEmitter, parts: list[Value]) -> Value:
    """Short vectors one after the other in a long one."""
    count = 16 // code.size
    while len(parts) > 1:
        count *= 2
        lanes = list(range(count))
        parts = [code.shuffle(a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _transposed(code: TileEmitter, rows: list[Value]) -> list[Value]:
    """Each 16 bytes of the vectors, seen as a square matrix, transposed."""
    side, lanes = len(rows), code.lanes

    def mixed(a: Value, b: Value, width: int, half: int) -> Value:
        """From each 16 bytes of a and b, alternately, `width` elements of the given half."""
        picked: list[int] = []
        for start in range(half * side // 2, lanes, side):
            for j in range(0, side // 2, width):
                picked += range(start + j, start + j + width)
                picked += range(lanes + start + j, lanes + start + j + width)
        return code.shuffle(a, b, picked)

    if side == 2:
        return [mixed(rows[0], rows[1], 1, half) for half in (0, 1)]
    # pairs (0, 1) and (2, 3) by single elements, then their halves by pairs
    first = {(i, h): mixed(rows[i], rows[i + 1], 1, h) for i in (0, 2) for h in (0, 1)}
    return [mixed(first[0, h], first[2, h], 2, half) for h in (0, 1) for half in (0, 1)]

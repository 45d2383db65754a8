"""Writes loops, addresses and memory accesses as LLVM IR, for kernels over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from everygrad import dtypes
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Emitter, Value as Reg, literal
from everygrad.backends.cpu.llvm.loops import program_body
from everygrad.compiler.expr import Program
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import DType

Body = Callable[[list[Reg]], list[Reg]]
# columns per accumulator; the accumulators of a longer row are combined in float64
STRETCH = edge(__name__, "STRETCH", 1 << 12, "size")


class CarriedAccumulator(Protocol):
    """An accumulator: its type and start, and those of the wider state that combines several."""

    type: str
    start: str

    @property
    def outer(self) -> tuple[str, str]: ...

    def combine(self, e: Emitter, held: Reg, total: Reg) -> Reg: ...

    def narrow(self, e: Emitter, held: Reg) -> Reg: ...


def whole_lines(nbytes: int) -> int:
    """Bytes of the cache lines that hold so many."""
    return -(-nbytes // 64) * 64


class LoopWriter:
    """Writes one function. Loops test before each iteration, so they may be empty."""

    def __init__(self) -> None:
        self.e = Emitter()
        self.lines = self.e.lines
        self.block = "entry"
        self.columns: list[Reg] = []  # the indices of the current columns
        self.globals: list[str] = []
        self._count = 0
        self._notes = 1

    # --- control ---------------------------------------------------------------------------------

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def _fresh(self, name: str) -> str:
        self._count += 1
        return f"{name}{self._count}"

    def _open(
        self, name: str, lo: str, hi: str, carried: Sequence[tuple[str, str, str]]
    ) -> tuple[Reg, int]:
        """Head of a loop; `carried` are (name, type, start). Returns the index and a line."""
        before = self.block
        self.lines.append(f"  br label %{name}.head")
        self.label(f"{name}.head")
        mark = len(self.lines)
        self.lines.append("")  # the phis, filled in when the loop is closed
        self.lines += [
            f"  %{name}.more = icmp slt i64 %{name}, {hi}",
            f"  br i1 %{name}.more, label %{name}.body, label %{name}.end",
        ]
        self.label(f"{name}.body")
        self.lines[mark] = f"{before}|{lo}"
        return Reg("i64", f"%{name}"), mark

    def _close(
        self, name: str, mark: int, carried: Sequence[tuple[str, str, str, str]], parallel: bool
    ) -> None:
        """Foot of a loop; `carried` are (name, type, start, next)."""
        before, lo = self.lines[mark].split("|")
        note = ""
        if parallel:
            note = f", !llvm.loop !{self._notes}"
            self._notes += 1
        self.lines += [
            f"  %{name}.next = add nuw nsw i64 %{name}, 1",
            f"  br label %{name}.head{note}",
        ]
        latch = self.block
        phis = [f"  %{name} = phi i64 [ {lo}, %{before} ], [ %{name}.next, %{latch} ]"]
        phis += [
            f"  {held} = phi {kind} [ {start}, %{before} ], [ {new}, %{latch} ]"
            for held, kind, start, new in carried
        ]
        self.lines[mark] = "\n".join(phis)
        self.label(f"{name}.end")

    @contextmanager
    def counted(self, name: str, lo: str, hi: str, parallel: bool = False) -> Iterator[Reg]:
        """A loop over [lo, hi). `parallel`: no iteration reads what another writes."""
        name = self._fresh(name)
        index, mark = self._open(name, lo, hi, ())
        yield index
        self._close(name, mark, (), parallel)

    @contextmanager
    def when(self, condition: Reg) -> Iterator[None]:
        """What runs only if `condition` holds; it must leave its results in memory."""
        name = self._fresh("w")
        branch = f"label %{name}.yes, label %{name}.end"
        self.lines.append(f"  br i1 {condition.name}, {branch}")
        self.label(f"{name}.yes")
        yield
        self.lines.append(f"  br label %{name}.end")
        self.label(f"{name}.end")

    def column_loops(
        self,
        columns: Shape,
        length: str,
        sums: Sequence[CarriedAccumulator],
        through: Sequence[bool],
        body: Body,
        after_inner: Callable[[list[Reg]], None],
    ) -> list[Reg]:
        """Writes loops over the columns that carry accumulators.

        Accumulators that are not carried `through` restart in each iteration of the outer columns;
        `after_inner` gets them after the inner loop. Returns the final accumulators. With more
        columns than STRETCH, each stretch has its own accumulators, which are combined: a float32
        that is added to thousands of times loses digits.
        """
        outer = size_of(columns[:-1])
        is_long = bool(sums) and size_of(columns) > STRETCH
        starts = [(s.type, s.start) for s in sums]
        if outer == 1:
            self.columns = [Reg("i64", "0")] * (len(columns) - 1)
            totals = (
                self._stretches(length, sums, body)
                if is_long
                else self._inner(length, starts, body)
            )
            after_inner(totals)
            return totals
        name = self._fresh("q")
        held = [f"%{name}.acc{j}" for j in range(len(starts))]
        kinds = [s.outer if is_long else begin for s, begin in zip(sums, starts, strict=True)]
        index, mark = self._open(name, "0", str(outer), ())
        self.columns = self.indices(index, columns[:-1])
        if is_long:
            totals = (
                self._stretches(length, sums, body)
                if columns[-1] > STRETCH
                else self._inner(length, starts, body)
            )
            after_inner(totals)
            rows = zip(sums, kinds, held, totals, strict=True)
            totals = [s.combine(self.e, Reg(kind, h), t) for s, (kind, _), h, t in rows]
        else:
            inner_starts = [
                (kind, h if whole else start)
                for (kind, start), h, whole in zip(starts, held, through, strict=True)
            ]
            totals = self._inner(length, inner_starts, body)
            after_inner(totals)
        carried = [
            (h, kind, start, t.name if whole else start)
            for h, (kind, start), t, whole in zip(held, kinds, totals, through, strict=True)
        ]
        self._close(name, mark, carried, parallel=False)
        made = [Reg(kind, h) for h, (kind, _) in zip(held, kinds, strict=True)]
        return [s.narrow(self.e, m) for s, m in zip(sums, made, strict=True)] if is_long else made

    def _stretches(self, length: str, sums: Sequence[CarriedAccumulator], body: Body) -> list[Reg]:
        """The innermost columns, STRETCH at a time."""
        name = self._fresh("s")
        outer = self.columns[:]
        held = [Reg(s.outer[0], f"%{name}.acc{j}") for j, s in enumerate(sums)]
        pieces = -(-int(length) // STRETCH)
        index, mark = self._open(name, "0", str(pieces), ())
        first = self.e.op("mul nsw", index, literal("i64", STRETCH))
        end = self.e.op("add nsw", first, literal("i64", STRETCH))
        self.columns = outer
        totals = self._inner(
            self.smallest(end, int(length)).name,
            [(s.type, s.start) for s in sums],
            body,
            first.name,
        )
        rows = zip(sums, held, totals, strict=True)
        made = [s.combine(self.e, h, t) for s, h, t in rows]
        carried = [(h.name, *s.outer, m.name) for s, h, m in zip(sums, held, made, strict=True)]
        self._close(name, mark, carried, parallel=False)
        return [s.narrow(self.e, h) for s, h in zip(sums, held, strict=True)]

    def _inner(
        self, length: str, starts: Sequence[tuple[str, str]], body: Body, first: str = "0"
    ) -> list[Reg]:
        name = self._fresh("c")
        outer = self.columns[:]
        held = [Reg(kind, f"%{name}.acc{j}") for j, (kind, _) in enumerate(starts)]
        index, mark = self._open(name, first, length, ())
        self.columns = [*outer, index]
        made = body(held)
        rows = zip(held, starts, made, strict=True)
        carried = [(h.name, kind, start, m.name) for h, (kind, start), m in rows]
        self._close(name, mark, carried, parallel=True)
        self.columns = [*outer, Reg("i64", "0")]
        return held

    # --- indices and addresses ---------------------------------------------------------------

    def indices(self, flat: Reg, sizes: Shape) -> list[Reg]:
        """A flat index as one index for each axis."""
        made: list[Reg] = []
        for i in reversed(range(len(sizes))):
            if i == 0:
                made.append(flat)
            elif sizes[i] == 1:
                made.append(Reg("i64", "0"))
            else:
                size = literal("i64", sizes[i])
                made.append(self.e.op("urem", flat, size))
                flat = self.e.op("udiv", flat, size)
        return made[::-1]

    def distance(self, offset: int, strides: Shape, indices: Sequence[Reg]) -> Reg:
        """offset + sum of index * stride."""
        total: Reg | None = literal("i64", offset) if offset else None
        for stride, index in zip(strides, indices, strict=True):
            if stride and index.name != "0":
                part = index
                if stride != 1:
                    part = self.e.op("mul nsw", index, literal("i64", stride))
                total = part if total is None else self.e.op("add nsw", total, part)
        return total or literal("i64", 0)

    def offset(
        self, pointer: str, offset: int, strides: Shape, indices: Sequence[Reg], dtype: DType
    ) -> str:
        far = self.distance(offset, strides, indices)
        if far.name == "0":
            return pointer
        return self.indexed(pointer, far, intrinsics.memory_type(dtype))

    def element(self, base: str, strides: Shape, indices: Sequence[Reg], dtype: DType) -> str:
        return self.offset(base, 0, strides, indices, dtype)

    def indexed(self, pointer: str, index: Reg, memory: str) -> str:
        text = f"getelementptr inbounds {memory}, ptr {pointer}, i64 {index.name}"
        return self.e.emit("ptr", text).name

    def at(self, pointer: str, nbytes: int) -> str:
        return self.indexed(pointer, literal("i64", nbytes), "i8")

    def moved(self, pointer: str, index: Reg, nbytes: int) -> str:
        return self.indexed(pointer, self.e.op("mul", index, literal("i64", nbytes)), "i8")

    def smallest(self, a: Reg, b: int) -> Reg:
        return self.e.call("llvm.smin.i64", "i64", a, literal("i64", b))

    # --- memory ------------------------------------------------------------------------------

    def load(self, address: str, dtype: DType, grouped: bool) -> Reg:
        value = self.load_raw(address, intrinsics.memory_type(dtype), grouped)
        if dtype is dtypes.bool_:
            return self.e.compare("ne", value, literal("i8", 0))
        return value

    def store(self, value: Reg, address: str, dtype: DType, grouped: bool) -> None:
        if dtype is dtypes.bool_:
            value = self.e.cast("zext", value, "i8")
        self.store_raw(value, address, grouped)

    def load_raw(self, address: str, memory: str, grouped: bool) -> Reg:
        group = ", !llvm.access.group !0" if grouped else ""
        return self.e.emit(memory, f"load {memory}, ptr {address}{group}")

    def store_raw(self, value: Reg, address: str, grouped: bool) -> None:
        group = ", !llvm.access.group !0" if grouped else ""
        self.lines.append(f"  store {value.type} {value.name}, ptr {address}{group}")

    def fill(self, pointer: str, memory: str, value: str, count: int) -> None:
        """`count` equal elements."""
        if count == 1:
            self.store_raw(Reg(memory, value), pointer, grouped=False)
            return
        with self.counted("f", "0", str(count), parallel=True) as i:
            self.store_raw(Reg(memory, value), self.indexed(pointer, i, memory), grouped=True)

    def table(self, name: str, numbers: Sequence[int], index: Reg) -> Reg:
        """Entry `index` of a constant table."""
        text = ", ".join(f"i64 {n}" for n in numbers)
        size = len(numbers)
        line = f"@{name} = private constant [{size} x i64] [{text}]"
        if line not in self.globals:
            self.globals.append(line)
        return self.load_raw(self.indexed(f"@{name}", index, "i64"), "i64", False)

    def partial(self, name: str, scratch: str, at: int, nbytes: int, block: Reg) -> None:
        """`name`: the part of the scratch memory that belongs to a block."""
        far = self.e.op("mul", block, literal("i64", nbytes))
        far = self.e.op("add", far, literal("i64", at))
        self.lines.append(f"  {name} = getelementptr inbounds i8, ptr {scratch}, i64 {far.name}")

    # --- the whole ---------------------------------------------------------------------------

    def body(self, program: Program, inputs: dict[int, Reg]) -> Reg:
        """A scalar program on registers."""
        return program_body(self.e, program, inputs)

    def arguments(self, count: int) -> None:
        """%p0, %p1, ...: the pointers in %args."""
        for i in range(count):
            self.lines += [
                f"  %p{i}.at = getelementptr inbounds ptr, ptr %args, i64 {i}",
                f"  %p{i} = load ptr, ptr %p{i}.at",
            ]

    def module(self, attributes: str) -> str:
        head = f"define void @step(i64 %lo, i64 %hi, ptr noalias %args) {attributes} {{"
        marks = self._notes
        notes = ["!0 = distinct !{}"]
        notes += [f"!{i} = distinct !{{!{i}, !{marks}}}" for i in range(1, marks)]
        notes.append(f'!{marks} = !{{!"llvm.loop.parallel_accesses", !0}}')
        before = [*sorted(self.e.declarations), *self.globals]
        return "\n".join([*before, head, *self.lines, "}", *notes, ""])

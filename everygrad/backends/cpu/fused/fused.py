"""Writes the LLVM IR of a fused group: rows, and passes over each row while it is cached.

A pass computes everything it can before a row reduction's result is needed; the next pass goes on
with it. A value that a later pass needs is read again if it was stored, cached in a small array of
the row if it is expensive (exp), and otherwise recomputed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from everygrad.backends.cpu.fused.accumulator import Accumulator, accumulator_of, long_sum
from everygrad.backends.cpu.fused.column_sums import ColumnSums, stretch_ends, stretch_loops
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine
from everygrad.backends.cpu.llvm.loop_writer import LoopWriter, whole_lines
from everygrad.backends.cpu.llvm.work import Step, Work
from everygrad.compiler.expr import Program
from everygrad.compiler.groups import Group, Load, Member, Number
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import LoopNest, StridedAccess, nest_of
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape
from everygrad.dtypes import int64

COMPARING = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
EXPENSIVE = frozenset(  # intrinsics that take longer than a load from the cache
    {
        "exp", "expm1", "log", "log1p", "log2", "erf", "ndtr", "pow", "floordiv", "mod", "sin",
        "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh",
        "atanh",
    }
)  # fmt: skip
# elements of a block: about 10 us, the least work worth a thread
GRAIN = edge(__name__, "GRAIN", 1 << 14, "elements")
MAX_BLOCKS = edge(__name__, "MAX_BLOCKS", 64, "count")
# elements of the partial results of all blocks
MAX_PARTIALS = edge(__name__, "MAX_PARTIALS", 1 << 21, "elements")
# bytes of a row that are cached between passes, on the stack
MAX_CACHED_BYTES = edge(__name__, "MAX_CACHED_BYTES", 1 << 15, "bytes")
MEMO = dict[Any, Reg]  # values in registers, by member and by load


class FusedWork(NamedTuple):
    """The work of a group; its arguments are the outputs, the inputs, then the scratch memory."""

    work: Work
    outputs: list[Value]
    inputs: list[tuple[Value, int]]  # with the offset, in elements, at which the argument points


class FusedKernelWriter:
    """Writes the kernel of one group."""

    def __init__(self, group: Group, stored: set[Value], bounds: tuple[int, ...] = ()) -> None:
        self.group = group
        self.bounds = bounds  # the rows at which blocks begin, if the caller decides
        self.nest: LoopNest = nest_of(group, bounds[-1] if bounds else 0)
        members = group.members
        self.outputs = [v for v in members if v in stored]
        loads = [r for m in members.values() for r in m.refs if isinstance(r, Load)]
        self.inputs = list(dict.fromkeys((r.value, r.offset) for r in loads))
        self.finals = [m for m in members.values() if m.role == "final" and m.value in stored]
        self.programs = {v: _program(v) for v in members if v.kind == "elementwise"}
        self.stages: dict[Value, int] = {}
        for v, m in members.items():
            self.stages[v] = max((self.stage(r) for r in m.refs), default=0)
        self.passes = 1 + max(
            (self.stages[v] for v, m in members.items() if self.in_loop(m)), default=-1
        )
        self.cached = self.choose_cached()
        self.exact = self.choose_exact()
        self.choose_blocks()
        self.w = LoopWriter()
        self.rows: MEMO = {}  # values of the current row
        self.row_loads: dict[Load, Reg] = {}
        self.row_bases: dict[Any, str] = {}
        self.picked_rows: dict[Value, str] = {}  # where a row's index points

    # --- what goes where -------------------------------------------------------------------------

    def stage(self, ref: Any) -> int:
        """The first pass in which a reference is available."""
        if not isinstance(ref, Value):
            return 0
        return self.stages[ref] + (self.group.members[ref].role == "reduce")

    def in_loop(self, m: Member) -> bool:
        """Whether a pass must produce this member."""
        if m.role == "reduce":
            return True
        if m.role == "final":
            return m.level == "full" and m.value in self.outputs
        return m.role == "full" and m.value in self.outputs

    def roots(self, k: int) -> list[Member]:
        members = self.group.members
        return [m for v, m in members.items() if self.in_loop(m) and self.stages[v] == k]

    def choose_cached(self) -> dict[Value, int]:
        """The full values to cache between passes, each with the number of its array."""
        cached: dict[Value, int] = {}
        budget = MAX_CACHED_BYTES
        for k in range(1, self.passes):
            todo = [r for m in self.roots(k) for r in self.needs(m)]
            seen = set(todo)
            while todo:
                v = todo.pop()
                m = self.group.members[v]
                if m.role != "full":
                    continue
                if self.stages[v] < k:
                    if v in self.outputs or v in cached:
                        continue
                    cost = self.nest.length * v.dtype.itemsize
                    if cost <= budget and self.is_expensive(v):
                        cached[v] = len(cached)
                        budget -= cost
                        continue
                for r in self.needs(m):
                    if r not in seen:
                        seen.add(r)
                        todo.append(r)
        return cached

    def choose_exact(self) -> set[Value]:
        """The values under a max or min, if the group compares anything: one pass finds the largest
        element, another tests which ones equal it, and both must round the same way."""
        if not any(i.fn in COMPARING for p in self.programs.values() for i in p.insts):
            return set()
        extremes = [m for v, m in self.group.members.items() if v.facts.combine in ("max", "min")]
        todo = [r for m in extremes if m.role == "reduce" for r in self.needs(m)]
        found: set[Value] = set()
        while todo:
            v = todo.pop()
            if v not in found:
                found.add(v)
                todo += self.needs(self.group.members[v])
        return found

    def is_expensive(self, v: Value) -> bool:
        """Whether recomputing v takes longer than reading it again."""
        program = self.programs.get(v)
        return program is not None and any(inst.fn in EXPENSIVE for inst in program.insts)

    def needs(self, m: Member) -> list[Value]:
        return [r for r in m.refs if isinstance(r, Value)]

    def choose_blocks(self) -> None:
        rows = self.nest.row_count
        if self.bounds:
            self.blocks = len(self.bounds) - 1
            self.allocate_partials(max(b - a for a, b in pairwise(self.bounds)))
            return
        blocks = max(1, min(rows, MAX_BLOCKS, self.group.size * max(1, self.passes) // GRAIN))
        width = sum(m.value.size for m in self.finals)
        if width:
            blocks = max(1, min(blocks, MAX_PARTIALS // width))
            if width > 1024:  # partial results cost memory bandwidth too
                blocks = min(blocks, max(1, self.group.size // (4 * width)))
        self.rows_a_block = -(-rows // blocks)
        self.blocks = -(-rows // self.rows_a_block)
        self.allocate_partials(self.rows_a_block)

    def partial_accumulator(self, m: Member) -> Accumulator:
        """The accumulator of a block's partial result. One that a whole loop over the last columns
        or a stretch of rows is added to is updated rarely, so float64 costs nothing there."""
        c = accumulator_of(m.value)
        is_wide = not self.follows_last(m) or m.value in self.sums.wide
        return long_sum(c.source) if c.is_widened and is_wide else c

    def row_accumulator(self, m: Member) -> Accumulator:
        """The accumulator in memory that each row is added to."""
        v = m.value
        return accumulator_of(v) if v in self.sums.counts else self.partial_accumulator(m)

    def allocate_partials(self, rows: int) -> None:
        """Lays out the scratch memory for blocks of at most so many rows."""
        narrow = [m.value for m in self.finals if accumulator_of(m.value).is_widened]
        places = {v: p for v, p in self.nest.finals.items() if v in narrow and p.columns[-1]}
        self.sums = ColumnSums(self.nest, places, rows)
        at = 0
        self.partials: dict[Value, int] = {}  # byte offsets in the scratch
        for m in self.finals:
            self.partials[m.value] = at
            at += whole_lines(self.blocks * m.value.size * self.partial_accumulator(m).itemsize)
        self.column_sums: dict[Value, tuple[int, int]] = {}  # byte offset, bytes of a block
        for v, count in self.sums.counts.items():
            self.column_sums[v] = at, whole_lines(count * accumulator_of(v).itemsize)
            at += self.blocks * self.column_sums[v][1]
        self.scratch = at

    # --- addresses -------------------------------------------------------------------------------

    def base(self, pointer: str, access: StridedAccess, key: Any) -> str:
        """Where the current row begins in an operand."""
        found = self.row_bases.get(key)
        if found is None:
            found = self.w.offset(pointer, access.offset, access.rows, self.row_index, key[1])
            self.row_bases[key] = found
        return found

    def pointer(self, v: Value) -> str:
        return f"%p{self.outputs.index(v)}"

    def load_base(self, r: Load) -> str:
        access = self.nest.loads[r]._replace(offset=0)  # the argument includes the offset
        number = len(self.outputs) + self.inputs.index((r.value, r.offset))
        return self.base(f"%p{number}", access, (r, r.value.dtype))

    # --- values ----------------------------------------------------------------------------------

    def load(self, r: Load, memo: MEMO) -> Reg:
        """A load from memory, once per row if it does not vary along the columns."""
        access = self.nest.loads[r]
        if not access.follows_columns:
            return self.row_loads[r]
        if r not in memo:
            at = self.w.element(self.load_base(r), access.columns, self.w.columns, r.value.dtype)
            memo[r] = self.w.load(at, r.value.dtype, grouped=True)
        return memo[r]

    def operand(self, ref: Any, arg: Value, memo: MEMO, k: int) -> Reg:
        if isinstance(ref, Number):
            return intrinsics.constant(arg.dtype, ref.value)
        if isinstance(ref, Load):
            return self.load(ref, memo)
        return self.value(ref, memo, k)

    def value(self, v: Value, memo: MEMO, k: int) -> Reg:
        """A member's value at the current element (or row), in pass k."""
        if v in self.rows:
            return self.rows[v]
        if v not in memo:
            memo[v] = self.compute(v, memo, k)
        return memo[v]

    def compute(self, v: Value, memo: MEMO, k: int) -> Reg:
        m = self.group.members[v]
        if m.role == "full" and self.stages[v] < k:
            if v in self.outputs:
                return self.w.load(self.full_address(v), v.dtype, grouped=True)
            if v in self.cached:
                return self.w.load(self.cached_address(v), v.dtype, grouped=True)
        if v.op.indexed_load:
            return self.picked(m, memo, k)
        inputs = {i: self.operand(r, a, memo, k) for i, (r, a) in _operands(m)}
        self.w.e.exact = v in self.exact
        made = self.w.body(self.programs[v], inputs)
        self.w.e.exact = False
        return made

    def picked(self, m: Member, memo: MEMO, k: int) -> Reg:
        """The element that an index selects."""
        r, where = m.refs
        base = self.picked_rows.get(m.value)
        if base is None:
            index = self.operand(where, m.value.args[1], memo, k)
            base = self.picked_base(r, index, m.value.args[1])
        at = self.w.element(base, self.nest.loads[r].columns, self.w.columns, r.value.dtype)
        return self.w.load(at, r.value.dtype, grouped=True)

    def picked_base(self, r: Load, index: Reg, arg: Value) -> str:
        wide = intrinsics.cast(self.w.e, index, arg.dtype, int64)
        return self.w.offset(self.load_base(r), 0, (r.step or 0,), [wide], r.value.dtype)

    def full_address(self, v: Value) -> str:
        access = self.nest.full
        base = self.base(self.pointer(v), access, (v, v.dtype))
        return self.w.element(base, access.columns, self.w.columns, v.dtype)

    def cached_address(self, v: Value) -> str:
        access = self.nest.full
        return self.w.element(f"%cached{self.cached[v]}", access.columns, self.w.columns, v.dtype)

    # --- one row -----------------------------------------------------------------------------

    def row(self) -> None:
        self.rows, self.row_loads, self.row_bases = {}, {}, {}
        for r in self.nest.loads:
            base = self.load_base(r)
            if r.step is None and not self.nest.loads[r].follows_columns:
                self.row_loads[r] = self.w.load(base, r.value.dtype, grouped=False)
        self.picked_rows = {
            v: self.picked_base(m.refs[0], self.row_loads[m.refs[1]], v.args[1])
            for v, m in self.group.members.items()
            if v.op.indexed_load and m.refs[1] in self.row_loads
        }
        for v in self.outputs:
            if self.group.members[v].role == "full":
                self.base(self.pointer(v), self.nest.full, (v, v.dtype))
        for m in self.finals:
            self.final_base(m)
        for k in range(self.passes + 1):
            self.row_values(k)
            if k < self.passes:
                self.one_pass(k)
        self.store_rows()

    def row_values(self, k: int) -> None:
        """Computes the row values that first become available in pass k."""
        for v, m in self.group.members.items():
            if m.role == "row" and self.stages[v] == k:
                self.rows[v] = self.compute(v, self.rows, k)

    def store_rows(self) -> None:
        for v in self.outputs:
            m = self.group.members[v]
            if m.role in ("row", "reduce"):
                base = self.base(self.pointer(v), self.nest.row, (v, v.dtype))
                self.w.store(self.rows[v], base, v.dtype, grouped=False)
            elif m.role == "final" and m.level == "row":
                acc = self.partial_accumulator(m)
                found = self.operand(m.refs[0], v.args[0], self.rows, self.passes)
                self.accumulate(acc, acc.load(self.w.e, found), self.final_base(m))

    def final_base(self, m: Member) -> str:
        pointer = f"%{'sums' if m.value in self.sums.counts else 'part'}{self.finals.index(m)}"
        return self.base(pointer, self.final_place(m), (m.value, self.row_accumulator(m).dtype))

    def final_place(self, m: Member) -> StridedAccess:
        """Where rows are added to: the accumulators of a stretch, or a block's partial result."""
        place = self.nest.finals[m.value]
        return self.sums.within(m.value, place) if m.value in self.sums.counts else place

    def accumulate(self, acc: Accumulator, new: Reg, address: str, grouped: bool = False) -> None:
        held = self.w.load_raw(address, acc.type, grouped)
        if new.type != held.type:
            new = self.w.e.cast("fpext", new, held.type)
        self.w.store_raw(acc.step(self.w.e, held, new), address, grouped)

    def one_pass(self, k: int) -> None:
        """Writes the loops of pass k: over outer columns, if any, and the innermost columns."""
        roots = self.roots(k)
        cached = [v for v in self.cached if self.stages[v] == k]
        written = [m.value for m in roots if m.role == "full"]
        carried: list[tuple[Member, Accumulator]] = []
        for m in roots:
            if m.role == "reduce" or (m.role == "final" and not self.follows_last(m)):
                carried.append((m, accumulator_of(m.value)))
        sums = [c for _, c in carried]
        through = [m.role == "reduce" or not self.follows_outer(m) for m, _ in carried]

        def body(accumulators: list[Reg]) -> list[Reg]:
            memo: MEMO = {}
            made = []
            for (m, c), held in zip(carried, accumulators, strict=True):
                x = self.operand(m.refs[0], m.value.args[0], memo, k)
                made.append(c.step(self.w.e, held, c.load(self.w.e, x)))
            added = [
                (m, self.operand(m.refs[0], m.value.args[0], memo, k))
                for m in roots
                if m.role == "final" and self.follows_last(m)
            ]
            # all loads before the first store: an output may reuse the memory of an input
            found = [(v, self.value(v, memo, k), self.full_address(v)) for v in written]
            found += [(v, self.value(v, memo, k), self.cached_address(v)) for v in cached]
            for v, value, address in found:
                self.w.store(value, address, v.dtype, grouped=True)
            for m, x in added:
                c = self.row_accumulator(m)
                self.accumulate(c, c.load(self.w.e, x), self.final_address(m), True)
            return made

        def after_inner(totals: list[Reg]) -> None:
            for (m, _), total, whole in zip(carried, totals, through, strict=True):
                if not whole:
                    self.accumulate(
                        self.partial_accumulator(m), total, self.final_address(m, outer=True)
                    )
            for m in roots:
                if m.value in self.sums.outer_columns:
                    self.after_outer_columns(m)

        totals = self.w.column_loops(
            self.nest.columns, self.length, sums, through, body, after_inner
        )
        for (m, c), total, whole in zip(carried, totals, through, strict=True):
            if m.role == "reduce":
                self.rows[m.value] = c.finalize(self.w.e, total, m.value)
            elif whole:
                self.accumulate(self.partial_accumulator(m), total, self.final_base(m))

    def follows_last(self, m: Member) -> bool:
        return self.nest.finals[m.value].columns[-1] != 0

    def follows_outer(self, m: Member) -> bool:
        return any(self.nest.finals[m.value].columns[:-1])

    def final_address(self, m: Member, outer: bool = False) -> str:
        place = self.final_place(m)
        strides = (*place.columns[:-1], 0) if outer else place.columns
        dtype = self.row_accumulator(m).dtype
        return self.w.element(self.final_base(m), strides, self.w.columns, dtype)

    # --- the whole ---------------------------------------------------------------------------

    def text(self) -> str:
        w, nest = self.w, self.nest
        count = len(self.outputs) + len(self.inputs) + bool(self.scratch)
        w.lines.append("entry:")
        w.arguments(count)
        for v, i in self.cached.items():
            memory = intrinsics.memory_type(v.dtype)
            w.lines.append(f"  %cached{i} = alloca [{nest.length} x {memory}], align 64")
        with w.counted("b", "%lo", "%hi") as block:
            for i, m in enumerate(self.finals):
                c = self.partial_accumulator(m)
                at = self.partials[m.value]
                w.partial(f"%part{i}", f"%p{count - 1}", at, m.value.size * c.itemsize, block)
                w.fill(f"%part{i}", c.type, c.start, m.value.size)
                if m.value in self.sums.counts:
                    c = self.row_accumulator(m)
                    w.partial(f"%sums{i}", f"%p{count - 1}", *self.column_sums[m.value], block)
                    w.fill(f"%sums{i}", c.type, c.start, self.sums.counts[m.value])
            first, end = self.rows_of(block)
            if self.sums.stretch is None:
                self.row_loop(first, end)
            else:
                with stretch_loops(w, self.sums.stretch, first, end) as (outer, start, after):
                    self.row_loop(start, after)
                    self.row_index = w.indices(outer, nest.rows[: self.sums.stretch.axis])
                    for m in self.finals:
                        if m.value in self.sums.counts and m.value not in self.sums.outer_columns:
                            self.add_column_sums(m, nest.finals[m.value].rows, self.row_index)
        if self.blocks == 1:
            for m in self.finals:
                self.combine_partials(m, "0", str(m.value.size))
        w.lines.append("  ret void")
        return w.module(engine().attributes)

    def row_loop(self, first: Reg, end: Reg) -> None:
        """Writes the loop over rows [first, end)."""
        w, nest = self.w, self.nest
        with w.counted("r", first.name, end.name) as row:
            self.row_index = w.indices(row, nest.rows)
            self.length = str(nest.columns[-1])
            if nest.tail:
                # the smallest of two: LLVM splits a select between constants into two tests in
                # the loop where the tail is 1, which then has no trip count to vectorise by
                done = w.e.op("mul nsw", row, Reg("i64", self.length))
                left = w.e.op("sub nsw", Reg("i64", str(self.group.size)), done)
                self.length = w.smallest(left, nest.columns[-1]).name
            self.row()

    def after_outer_columns(self, m: Member) -> None:
        """Adds the column sums to the partial result where a stretch of outer columns ends."""
        place, stretch = self.nest.finals[m.value], self.sums.outer_columns[m.value]
        with self.w.when(stretch_ends(self.w, stretch, self.nest.columns[:-1])):
            fixed = [*self.row_index, *self.w.columns[: stretch.axis]]
            self.add_column_sums(m, (*place.rows, *place.columns), fixed)

    def add_column_sums(self, m: Member, strides: Shape, fixed: list[Reg]) -> None:
        """Adds the sums of a stretch to the block's partial result, and clears them."""
        w, i = self.w, self.finals.index(m)
        wide, c = self.partial_accumulator(m), self.row_accumulator(m)
        part = w.element(f"%part{i}", strides[: len(fixed)], fixed, wide.dtype)
        with w.counted("a", "0", str(self.sums.counts[m.value]), parallel=True) as k:
            at = w.indexed(f"%sums{i}", k, c.type)
            total = w.load_raw(at, c.type, True)
            self.accumulate(wide, total, w.indexed(part, k, wide.type), True)
            w.store_raw(Reg(c.type, c.start), at, True)

    def rows_of(self, block: Reg) -> tuple[Reg, Reg]:
        """The first row of a block, and the row after its last."""
        w = self.w
        if self.bounds:
            after = w.e.op("add", block, Reg("i64", "1"))
            return w.table("bounds", self.bounds, block), w.table("bounds", self.bounds, after)
        first = w.e.op("mul", block, Reg("i64", str(self.rows_a_block)))
        end = w.e.op("add", first, Reg("i64", str(self.rows_a_block)))
        if self.blocks * self.rows_a_block != self.nest.row_count:
            end = w.smallest(end, self.nest.row_count)
        return first, end

    def combine_partials(self, m: Member, lo: str, hi: str) -> None:
        """Combines the partial results of all blocks into elements [lo, hi) of a final result."""
        w, v = self.w, m.value
        c = self.partial_accumulator(m)
        scratch = f"%p{len(self.outputs) + len(self.inputs)}"
        first = w.at(scratch, self.partials[v])
        step = v.size * c.itemsize
        if self.blocks > 1:
            with w.counted("b", "1", str(self.blocks)) as block:
                here = w.moved(first, block, step)
                with w.counted("i", lo, hi, parallel=True) as i:
                    total = w.load_raw(w.indexed(first, i, c.type), c.type, True)
                    part = w.load_raw(w.indexed(here, i, c.type), c.type, True)
                    w.store_raw(c.step(w.e, total, part), w.indexed(first, i, c.type), True)
        with w.counted("i", lo, hi, parallel=True) as i:
            total = w.load_raw(w.indexed(first, i, c.type), c.type, True)
            out = c.finalize(w.e, total, v)
            target = w.indexed(self.pointer(v), i, intrinsics.memory_type(v.dtype))
            w.store(out, target, v.dtype, grouped=True)

    def with_second_stage(self, text: str) -> tuple[Step, ...]:
        """The step of `text`, and a second stage that combines the partial results of blocks."""
        first = Step(text, self.blocks)
        if self.blocks == 1 or not self.finals:
            return (first,)
        self.w = LoopWriter()
        w = self.w
        w.lines.append("entry:")
        w.arguments(len(self.outputs) + len(self.inputs) + 1)
        largest = max(m.value.size for m in self.finals)
        piece = 1 << 12
        with w.counted("c", "%lo", "%hi") as chunk:
            lo = w.e.op("mul", chunk, Reg("i64", str(piece)))
            for m in self.finals:
                start = w.smallest(lo, m.value.size)
                end = w.smallest(w.e.op("add", lo, Reg("i64", str(piece))), m.value.size)
                self.combine_partials(m, start.name, end.name)
        w.lines.append("  ret void")
        return first, Step(w.module(engine().attributes), -(-largest // piece))


def _operands(m: Member) -> Any:
    return enumerate(zip(m.refs, m.value.args, strict=True))


def _program(v: Value) -> Program:
    program: Program = v.op.program([a.dtype for a in v.args], v.params)
    return program


def fusable(v: Value) -> bool:
    """Whether this backend can fuse a value into a loop."""
    if v.dtype.is_complex or any(a.dtype.is_complex for a in v.args):
        return False
    if v.kind == "reduction":
        return v.op.combine in ("add", "max", "min", "and", "or")
    if v.op.indexed_load:
        return True
    insts = _program(v).insts
    return all(
        intrinsics.supported(i.fn, insts[i.args[-1]].dtype if i.args else i.dtype) for i in insts
    )


def fused(group: Group, stored: set[Value], bounds: tuple[int, ...] = ()) -> FusedWork:
    """The work of a group that stores the values in `stored` to memory.

    `bounds`: the rows at which its blocks begin, and the number of rows: see `can_split_by_rows`.
    """
    loads = [r for m in group.members.values() for r in m.refs if isinstance(r, Load)]
    inputs = list(dict.fromkeys((r.value, r.offset) for r in loads))
    outputs = [v for v in group.members if v in stored]
    key = (bounds, code_key(group, stored))
    work = _written.get(key)
    if work is None:
        writer = FusedKernelWriter(group, stored, bounds)
        last = writer.with_second_stage(writer.text())
        work = _written[key] = Work(last, writer.scratch)
        if len(_written) > _MAX_CACHED:
            _written.pop(next(iter([*_written])), None)  # another thread may drop it, too
    return FusedWork(work, outputs, inputs)


def can_split_by_rows(group: Group, rows: int) -> bool:
    """Whether the loops of the group can be split into this many equal rows."""
    found = nest_of(group, rows)
    return found.row_count == rows and not found.tail


_written: dict[Any, Work] = {}  # layers of one shape are written once
_MAX_CACHED = 512


def code_key(group: Group, stored: set[Value], sized: bool = True) -> Any:
    """A key that is equal for groups with the same code. Without `sized`, it ignores the sizes of
    what is read, except whether that is a single number."""
    loads = [r for m in group.members.values() for r in m.refs if isinstance(r, Load)]
    inputs = dict.fromkeys((r.value, r.offset) for r in loads)
    numbers: dict[Any, int] = {v: i for i, v in enumerate((*inputs, *group.members))}

    def of_load(r: Load) -> Any:
        where = numbers[r.value, r.offset]
        return (where, r.shape, r.strides, r.step) if sized else (where, r.value.size == 1)

    parts: list[Any] = [group.row, tuple(v.dtype for v, _ in inputs)]
    if sized:
        parts.append(group.size)
    for v, m in group.members.items():
        refs = tuple(
            numbers[r]
            if isinstance(r, Value)
            else of_load(r)
            if isinstance(r, Load)
            else repr(r.value)  # 0.0 and -0.0 are different
            for r in m.refs
        )
        dtypes_of = tuple(a.dtype for a in v.args)
        level = m[1:3] if sized else (m.role, m.level)
        parts.append((v.op, *v.params.items(), v.dtype, dtypes_of, level, refs, v in stored))
    return tuple(parts)

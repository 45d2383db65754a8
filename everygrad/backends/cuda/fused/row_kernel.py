"""CUDA C++ of one kernel of a fused group: loops over elements, along rows, or down columns.

`flat` loops over all elements. `along_rows` gives each row to a warp or a block, which keeps a
short row in registers: each pass computes what does not depend on a reduction of the row that is
still to come. `down_columns` gives columns to threads, which loop over rows. Sums that end the
group ("finals") leave one partial sum for each block, in an order that depends on shapes alone; a
second stage adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad.backends.cuda.fused import online_softmax
from everygrad.backends.cuda.fused.values import (
    AliasingWriter,
    KernelTask,
    Values,
    accumulator_of,
    stored,
    vector_of,
)
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.writer import BLOCK, WrittenKernel, grid
from everygrad.codegen.groups.group_sums import PartialSums
from everygrad.compiler.groups import Load, Member, Number
from everygrad.compiler.ir import Value
from everygrad.compiler.schedule import online_sums, was_rounded
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

# elements of a row that a thread retains, over all values
_REGISTERS = edge(__name__, "_REGISTERS", 64, "size")
_WAVES = 32  # blocks for each multiprocessor, at most
_SUM_WAVES = 16  # the same, where blocks leave partial sums of columns
# threads for each multiprocessor that loop over rows and sum columns
_SUMMING = edge(__name__, "_SUMMING", 768, "size")
_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")  # threads side by side where columns are summed
_NAME = 48  # letters of a kernel's name


class FusedKernel(NamedTuple):
    """A written kernel: its pointers are the inputs, the outputs, then the partial sums."""

    written: WrittenKernel
    inputs: list[Value]
    outputs: list[Value]
    partial_sums: list[PartialSums]
    scratch: dict[DType, int]  # elements of partial sums
    in_place: bool  # one thread reads and writes each element, and nothing reads it later
    loops: Sequence[set[Any]] = ()  # what each loop reads and writes, where there are several

    def may_replace(self, v: Value, out: Value) -> bool:
        """Whether a result may overwrite an operand: no later loop reads that."""
        return not self.loops or any(v in loop and out in loop for loop in self.loops)


class FusedKernelWriter:
    """Writes one task as one kernel."""

    def __init__(self, task: KernelTask, multiprocessors: int) -> None:
        self.task = task
        self.members = task.members
        self.multiprocessors = multiprocessors
        self.accumulators = {
            v: accumulator_of(m) for v, m in task.members.items() if m.role in ("reduce", "final")
        }
        self.finals = [v for v, m in task.members.items() if m.role == "final"]
        self.stored = [v for v in task.wanted if v not in self.finals]
        self.online: dict[Value, Value] = {}  # sums of exponentials, and the maxima found with them
        self.stages: dict[Value, int] = {}
        self._find_stages()
        self.partial_sums: dict[Value, PartialSums] = {}
        self.scratch: dict[DType, int] = {}
        self.partials: dict[Value, int] = {}  # offsets in shared memory of a row's partial sums
        self.partials_size = 0
        names = "_".join(dict.fromkeys(v.name for v in task.members))
        self.w = AliasingWriter(f"fused_{names}"[:_NAME], False)

    # --- passes ----------------------------------------------------------------------------------

    def _find_stages(self) -> None:
        for v, m in self.members.items():
            stage = max((self._stage(r) for r in m.refs), default=0)
            self.stages[v] = self.stages[self.online[v]] if v in self.online else stage

    def _stage(self, ref: Any) -> int:
        """The first pass in which a reference can be used."""
        if not isinstance(ref, Value):
            return 0
        return self.stages[ref] + (self.members[ref].role == "reduce")

    def in_pass(self, v: Value) -> bool:
        """Whether a pass over columns must produce a member."""
        m = self.members[v]
        if m.role == "full":
            return v in self.task.wanted
        return m.role == "reduce" or (m.role == "final" and m.level == "full")

    def kind(self, v: Value) -> str:
        return self.task.kinds.get(v, "")

    def of_kind(self, kind: str) -> list[Value]:
        return [v for v in self.finals if self.kind(v) == kind]

    def number(self, v: Value) -> int:
        return self.values.numbers[v]

    # --- prologue and epilogue ------------------------------------------------------------------

    def begin(self, vector: int, held: int = 0) -> None:
        self.values = Values(self.task, vector, held)
        self.vector, self.held = vector, held
        self.index = self.values.index

    def declare(self) -> None:
        """Declare pointers, how sums are combined, and sums over all rows."""
        w = self.w
        for i, v in enumerate(self.values.inputs):
            w.pointer(LAYOUTS[v.dtype].memory, f"a{i}")
        for v in self.task.wanted:
            if v not in self.partial_sums:
                w.pointer(LAYOUTS[v.dtype].memory, f"o{self.number(v)}", written=True)
        for v, p in self.partial_sums.items():
            w.pointer(LAYOUTS[p.dtype].memory, f"p{self.number(v)}", written=True)
        for v, acc in self.accumulators.items():
            n, kind, made = self.number(v), acc.kind, acc.combine("a", "b")
            w.add(f"auto j{n} = [&]({kind} a, {kind} b) -> {kind} {{ return {made}; }};")
        for v in self.of_kind("total"):
            acc = self.accumulators[v]
            w.add(f"{acc.kind} s{self.number(v)} = {acc.start};")

    def declare_shared(self) -> None:
        self.w.add("__shared__ alignas(16) u32 shared[128];")

    def add_partial_sums(
        self, v: Value, many: int, each: int, step: int, inner: int = 0, outer: int = 0
    ) -> None:
        """Note that a final has partial sums, where there are several."""
        if many > 1:
            dtype, number = self.accumulators[v].total, len(self.partial_sums)
            start = self.scratch.get(dtype, 0)
            self.scratch[dtype] = start + many * v.size
            self.partial_sums[v] = PartialSums(
                v, dtype, start, many, each, step, inner or many, outer, number
            )

    def add_cyclic_rows(self, v: Value) -> None:
        """The partial sums of rows: pieces of a row are neighbours, and the next row of the same
        sum comes after those of all others."""
        size, pieces = v.size, self.task.pieces
        many = self.task.row_count // size
        if pieces == 1:
            self.add_partial_sums(v, many, 1, size)
        else:
            self.add_partial_sums(v, many, pieces, 1, pieces, size * pieces)

    def store_final(self, v: Value, value: str, place: str) -> str:
        """Store a final, or its partial sum number `place`."""
        n, acc = self.number(v), self.accumulators[v]
        if v in self.partial_sums:
            return f"p{n}[{place}] = {LAYOUTS[acc.total].store.format(value)};"
        return f"o{n}[{place}] = {LAYOUTS[v.dtype].store.format(acc.finalize(value))};"

    def totals(self, block: int, place: str) -> None:
        """Reduce sums over the block, and store them at `place`."""
        for v in self.of_kind("total"):
            n, acc = self.number(v), self.accumulators[v]
            start = f"({acc.kind}){acc.start}"
            self.w.add(f"s{n} = block_reduce<{block}>(s{n}, j{n}, {start}, shared);")
            self.w.add(f"if (threadIdx.x == 0) {self.store_final(v, f's{n}', place)}")

    def add_total_partial_sums(self, blocks: int) -> None:
        for v in self.of_kind("total"):
            self.add_partial_sums(v, blocks, 1, 1)

    def finish(self, blocks: int | tuple[int, int, int], block: int, in_place: bool) -> FusedKernel:
        written = self.w.finish(blocks, block)
        outputs = [v for v in self.task.wanted if v not in self.partial_sums]
        partial_sums = list(self.partial_sums.values())
        return FusedKernel(
            written, self.values.inputs, outputs, partial_sums, self.scratch, in_place
        )

    # --- elements ------------------------------------------------------------------------------

    def block(self, roots: Sequence[Member], k: int, guard: str = "") -> list[str]:
        """The lines for the elements from `c` on: stores, and terms of sums."""
        values, outs, after = self.values, [], []
        values.start_pass(k)
        loop = ("#pragma unroll", f"for (int j = 0; j < {self.vector}; ++j) {{")
        highest = self._highest(roots, loop)
        inner = self._elements(roots, k, guard)
        if self.vector == 1:
            lines = [*values.column_lines(), *values.outer, *highest]
            return [*lines, "{ constexpr int j = 0;", *inner, "}"]
        for m in roots:
            if m.role == "full":
                n = self.number(m.value)
                kind = f"Pack<{LAYOUTS[m.value.dtype].memory}, {self.vector}>"
                outs.append(f"{kind} w{n};")
                after.append(f"{self._store(n, guard, kind)} = w{n};")
        body = [*loop, *inner, "}"]
        hit = values.one_hot_test()
        if hit:  # most elements are not the chosen one, and need no comparison
            values.restart(values.counting)
            missed = self._elements(roots, k, guard)
            body = [f"if ({hit}) {{", *body, "} else {", *loop, *missed, "}", "}"]
        return [*values.column_lines(), *values.outer, *outs, *highest, *body, *after]

    def _highest(self, roots: Sequence[Member], loop: Sequence[str]) -> list[str]:
        """Maxima of the elements at hand, and the rescaling of sums that are relative to them."""
        lines: list[str] = []
        values = self.values
        for v in (m.value for m in roots if m.value in self.online):
            top, n = self.online[v], self.number(v)
            x = values.get(self.members[top].refs[0], top.args[0])
            lines += [f"float high{n} = __uint_as_float(0xff800000u);", *loop, *values.inner]
            lines += [f"high{n} = max_f(high{n}, {x});", "}"]
            lines += online_softmax.update(f"t{self.number(top)}", f"t{n}", f"high{n}")
            values.restart()
        return lines

    def _store(self, n: int, guard: str, kind: str = "") -> str:
        place = "c" if not self.task.rows else f"row * {self.task.length} + c"
        at = f"*({kind}*)(o{n} + {place})" if kind else f"o{n}[{place}]"
        return f"if ({guard}) {at}" if guard else at

    def _elements(self, roots: Sequence[Member], k: int, guard: str) -> list[str]:
        """The lines for one element, `j` of those at hand. All loads come before the first store,
        because a result may alias an operand."""
        values, stores = self.values, []
        for m in roots:
            v, n = m.value, self.number(m.value)
            if v in self.online:
                top = self.online[v]
                x = values.get(self.members[top].refs[0], top.args[0])
                rounded = was_rounded(top.args[0])
                values.inner.append(online_softmax.add(f"t{self.number(top)}", f"t{n}", x, rounded))
            elif m.role == "full":
                value = stored(v, values.get(v, v))
                target = f"w{n}.v[j]" if self.vector > 1 else self._store(n, guard)
                stores.append(f"{target} = {value};")
            elif v not in self.online.values() and not values.is_zero_term(m):
                acc, name = self.accumulators[v], self.sum_name(m)
                term = acc.load(values.get(m.refs[0], v.args[0]), v.args[0].dtype)
                condition = f"if ({guard}) " if guard and m.role == "final" else ""
                values.inner.append(f"{condition}{name} = j{n}({name}, {term});")
        for r in (*values.missing_retained(k), *(values.prefetched if not k else ())):
            values.get(r, r.value if isinstance(r, Load) else r)
        values.inner += stores
        return values.inner

    def sum_name(self, m: Member) -> str:
        n, kind = self.number(m.value), self.kind(m.value)
        if kind == "columns":
            return f"g{n}[h * {self.vector} + j]"
        return f"s{n}" if kind == "total" else f"t{n}"

    def roots(self, k: int) -> list[Member]:
        return [m for v, m in self.members.items() if self.in_pass(v) and self.stages[v] == k]

    # --- all elements in one loop ----------------------------------------------------------------

    def flat(self) -> FusedKernel:
        size = self.task.length
        self.begin(vector_of(self.task, True))
        vector, has_sums = self.vector, bool(self.finals)
        blocks = grid(size // vector, self.multiprocessors)
        self.add_total_partial_sums(blocks)
        self.declare()
        if has_sums:
            self.declare_shared()
        w, index = self.w, self.index
        w.add(f"const {index} thread = ({index})blockIdx.x * {BLOCK} + threadIdx.x;")
        w.add(*self.values.row_lines("0"))
        left, sized = size % vector, index == "i32" and len(self.task.columns) == 1
        takes, step, first, rest = (
            str(n) for n in (size // vector, blocks * BLOCK, size - left, left)
        )
        if sized:  # one text for all sizes
            n = w.number(size, "elements")
            takes, step = f"{n} / {vector}", f"(i32)gridDim.x * {BLOCK}"
            first, rest = f"{n} / {vector} * {vector}", f"{n} % {vector}"
        sets = self.independent_sets()
        for some in sets:
            w.add(f"for ({index} e = thread; e < {takes}; e += {step}) {{")
            w.add(f"const {index} c = e * {vector};", *self.block(some, 0), "}")
        if left or (sized and vector > 1):
            self._rest(first, rest)
        if has_sums:
            self.totals(BLOCK, "blockIdx.x")
        loops = [set().union(*map(self._uses, some)) for some in sets]
        return self.finish(blocks, BLOCK, True)._replace(loops=loops)

    def _rest(self, first: str, left: str) -> None:
        """The remainder, fewer elements than a thread takes at once."""
        whole, self.vector = self.values, 1
        self.values = Values(self.task, 1)
        self.values.of_row = whole.of_row
        for some in self.independent_sets():
            self.w.add(f"if (thread < {left}) {{")
            self.w.add(f"const {self.index} c = {first} + thread;", *self.block(some, 0), "}")

    def independent_sets(self) -> list[list[Member]]:
        """What is computed, in sets without a common operand: separate loops need fewer
        registers."""
        sets: list[tuple[set[Any], list[Member]]] = []
        for m in self.roots(0):
            uses = self._uses(m)
            mine = [m]
            for other in [s for s in sets if s[0] & uses]:
                uses |= other[0]
                mine = [*other[1], *mine]
                sets.remove(other)
            sets.append((uses, mine))
        return [found for _, found in sets]

    def _uses(self, m: Member) -> set[Any]:
        todo: list[Any] = [m.value]
        seen: set[Any] = {m.value}
        for r in todo:
            for other in self.members[r].refs if isinstance(r, Value) else ():
                if isinstance(other, Number) or other in self.values.of_row or other in seen:
                    continue
                seen.add(other)
                todo.append(other)
        return {r.value if isinstance(r, Load) else r for r in seen}

    # --- rows ------------------------------------------------------------------------------------

    def along_rows(self) -> FusedKernel:
        t = self.task
        vector = vector_of(t, False)
        share, block, held = self._geometry(vector)
        self.begin(vector, held)
        groups = block // share
        many = max(2, _SUMMING // block) if self.of_kind("columns") else _WAVES
        limit = self.multiprocessors * many
        blocks = max(1, min(-(-t.row_count // groups), limit))
        self.add_total_partial_sums(blocks)
        for v in self.of_kind("columns"):
            self.add_partial_sums(v, blocks, 1, t.length)
        for v in self.of_kind("rows"):
            self.add_cyclic_rows(v)
        if not held:
            self.online = online_sums(self.members)
            self._find_stages()
        self.passes = 1 + max((self.stages[v] for v in t.members if self.in_pass(v)), default=-1)
        self.values.plan([self._begins(k) for k in range(self.passes)])
        self.declare()
        self._rows(share, groups, blocks)
        for v in self.of_kind("columns"):
            self._store_columns(v, share)
        if self.of_kind("total"):
            self.totals(block, "blockIdx.x")
        return self.finish(blocks, block, self._written_last() and t.row_count % groups == 0)

    def _written_last(self) -> bool:
        """Whether whole rows are written in the last pass only: an element is then read by the
        thread that writes it, and not later."""
        full = [v for v in self.stored if self.members[v].role == "full"]
        return all(self.stages[v] == self.passes - 1 for v in full)

    def _begins(self, k: int) -> list[Any]:
        found = [m for m in self.roots(k) if m.value not in self.online]
        return [m.value if m.role == "full" else m.refs[0] for m in found]

    def _geometry(self, vector: int) -> tuple[int, int, int]:
        """Threads that share a row, threads of a block, and vectors of a row that a thread retains;
        0 where it retains none."""
        takes = -(-self.task.length // vector)
        several = bool(self.of_kind("columns"))
        if takes <= 128 and not several:
            share = 1
            while share < 32 and share < takes:
                share *= 2
            return share, BLOCK, -(-takes // share)
        for held in (2, 1):
            block = -(-takes // (32 * held)) * 32
            if 64 <= block <= 1024 and held * vector * 4 <= _REGISTERS:
                return block, block, held
        if several:
            return 1024, 1024, -(-takes // 1024)
        return 1024, 1024, 4 if takes <= 4096 else 0

    def _rows(self, share: int, groups: int, blocks: int) -> None:
        w, t, index = self.w, self.task, self.index
        if self.of_kind("total"):
            self.declare_shared()
        if share > 32:
            self._declare_partials()
        for v in self.of_kind("columns"):
            acc, size = self.accumulators[v], self.held * self.vector
            w.add(f"{acc.kind} g{self.number(v)}[{size}];", "#pragma unroll")
            w.add(f"for (int i = 0; i < {size}; ++i) g{self.number(v)}[i] = {acc.start};")
        w.add(f"const int lane = threadIdx.x % {share}, group = threadIdx.x / {share};")
        first = f"({index})blockIdx.x * {groups}"
        w.add(f"for ({index} top = {first}; top < {t.row_count}; top += {blocks * groups}) {{")
        guard = "there" if t.row_count % groups else ""
        if guard:
            w.add(f"const bool there = top + group < {t.row_count};")
        whose = f"there ? top + group : {t.row_count - 1}" if guard else "top + group"
        w.add(f"const {index} row = {whose};", *self.values.row_lines("row"))
        w.add(*self.values.retained_arrays())
        last = max([*self.stages.values(), self.passes - 1], default=0)
        for k in range(last + 1):
            self._row_members(k)
            if k < self.passes:
                self._pass(k, share, guard)
        self._row_ends(guard)
        w.add(*(["flip ^= 1;"] if self.partials else []), "}")

    def _declare_partials(self) -> None:
        """Shared memory for the partial sums that each warp has of a row. It is double-buffered by
        row: no warp can be more than one row ahead, so one barrier a pass is enough."""
        size = 0
        for v, m in self.members.items():
            if m.role == "reduce" or self.kind(v) == "rows":
                self.partials[v] = size
                size += 32 * max(4, self.accumulators[v].total.itemsize)
        if size:
            self.w.add(f"__shared__ alignas(16) char partials[{2 * size}];", "int flip = 0;")
        self.partials_size = size

    def _block_reduce(self, sums: Sequence[Member], share: int) -> None:
        """Reduce sums over the threads that share a row; all of them get the results."""
        w = self.w
        if share <= 32:
            for m in sums:
                n, acc = self.number(m.value), self.accumulators[m.value]
                none = f"({acc.kind}){acc.start}, (u32*)nullptr"
                w.add(f"t{n} = block_reduce<{share}>(t{n}, j{n}, {none});")
            return
        places = {}
        for m in sums:
            n, acc = self.number(m.value), self.accumulators[m.value]
            at = f"flip * {self.partials_size} + {self.partials[m.value]}"
            places[n] = f"(({acc.kind}*)(partials + {at}))"
            w.add(f"t{n} = warp_reduce<32>(t{n}, j{n});")
            w.add(f"if (threadIdx.x % 32 == 0) {places[n]}[threadIdx.x / 32] = t{n};")
        w.add("__syncthreads();")
        warps, wide = share // 32, 2
        while wide < warps:
            wide *= 2
        for m in sums:
            n, acc = self.number(m.value), self.accumulators[m.value]
            mine = f"threadIdx.x % {wide}"
            w.add(f"t{n} = {mine} < {warps} ? {places[n]}[{mine}] : ({acc.kind}){acc.start};")
            w.add(f"t{n} = warp_reduce<{wide}>(t{n}, j{n});")

    def _row_members(self, k: int) -> None:
        for v, m in self.members.items():
            if m.role == "row" and self.stages[v] == k:
                self.w.add(*self.values.row_member(v))

    def _pass(self, k: int, share: int, guard: str) -> None:
        w, t, index = self.w, self.task, self.index
        roots = self.roots(k)
        sums = [m for m in roots if m.role == "reduce" or self.kind(m.value) == "rows"]
        for m in sums:
            acc = self.accumulators[m.value]
            w.add(f"{acc.kind} t{self.number(m.value)} = {acc.start};")
            if m.value in self.online.values():
                w.add(f"float from_t{self.number(m.value)} = 0.0f;")
        if not roots:
            return
        lines = self.block(roots, k, guard)
        if self.held:
            w.add("#pragma unroll", f"for (int h = 0; h < {self.held}; ++h) {{")
            w.add(f"const {index} c = (lane + h * {share}) * {self.vector};")
            whole = share * self.held * self.vector == t.length
            w.add("{" if whole else f"if (c < {t.length}) {{", *lines, "}", "}")
        else:
            step = share * self.vector
            w.add(f"for ({index} c = lane * {self.vector}; c < {t.length}; c += {step}) {{")
            w.add(*lines, "}")
        after = [m for m in sums if m.value in self.online]  # they need their maxima first
        before = [m for m in sums if m not in after]
        for m in after:
            w.add(f"const float own{self.number(m.value)} = t{self.number(self.online[m.value])};")
        if before:
            self._block_reduce(before, share)
        for m in after:
            n, top = self.number(m.value), self.number(self.online[m.value])
            w.add(f"t{n} *= exp(own{n} - t{top});")
        if after:
            self._block_reduce(after, share)
        for m in sums:
            n, acc = self.number(m.value), self.accumulators[m.value]
            if m.role == "reduce":
                register = LAYOUTS[m.value.dtype].register
                w.add(f"const {register} m{n} = {acc.finalize(f't{n}')};")
                self.values.of_row[m.value] = f"m{n}"

    def _row_ends(self, guard: str) -> None:
        """Values that a row has one of: its first thread stores them and adds them to sums."""
        lines = []
        for v in self.stored:
            if self.members[v].role != "full":
                n, lay = self.number(v), LAYOUTS[v.dtype]
                lines.append(f"o{n}[row] = {lay.store.format(self.values.of_row[v])};")
        for v in self.finals:
            m, n = self.members[v], self.number(v)
            if self.kind(v) == "rows":
                lines.append(self.store_final(v, f"t{n}", "row"))
            elif m.level == "row":
                arg = v.args[0]
                term = self.accumulators[v].load(self.values.get(m.refs[0], arg), arg.dtype)
                lines.append(f"s{n} = j{n}(s{n}, {term});")
        if lines:
            condition = f"lane == 0 && {guard}" if guard else "lane == 0"
            self.w.add(f"if ({condition}) {{", *lines, "}")

    def _store_columns(self, v: Value, share: int) -> None:
        """Store the columns' sums of a block that takes one row at a time."""
        n, length = self.number(v), self.task.length
        place = f"blockIdx.x * {length} + c" if v in self.partial_sums else "c"
        self.w.add(
            "#pragma unroll",
            f"for (int i = 0; i < {self.held * self.vector}; ++i) {{",
            f"const {self.index} c = (lane + i / {self.vector} * {share}) * {self.vector} "
            f"+ i % {self.vector};",
            f"if (c < {length}) {self.store_final(v, f'g{n}[i]', place)}",
            "}",
        )

    # --- columns ---------------------------------------------------------------------------------

    def down_columns(self) -> FusedKernel:
        t = self.task
        vector = vector_of(t, False)
        self.begin(vector)
        takes = t.length // vector
        across = 1
        while across < _COLUMNS and across < takes:
            across *= 2
        beside = BLOCK // across
        columns = -(-takes // across)
        pieces = max(
            1, min(self.multiprocessors * _SUM_WAVES // columns, t.row_count // (4 * beside), 512)
        )
        chunk = -(-t.row_count // (pieces * beside)) * beside
        pieces = -(-t.row_count // chunk)
        for v in self.of_kind("columns"):
            self.add_partial_sums(v, pieces, 1, t.length)
        self.add_total_partial_sums(pieces * columns)
        self.declare()
        self._down_rows(across, beside, chunk)
        for v in self.of_kind("columns"):
            self._reduce_columns(v, across, beside)
        if self.of_kind("total"):
            self.declare_shared()
            self.totals(BLOCK, f"blockIdx.y * {columns} + blockIdx.x")
        return self.finish((columns, pieces, 1), BLOCK, True)

    def _down_rows(self, across: int, beside: int, chunk: int) -> None:
        w, t, index = self.w, self.task, self.index
        finals = self.of_kind("columns")
        size = max(self.accumulators[v].total.itemsize for v in finals)
        w.add(
            f"__shared__ alignas(16) char sums[{BLOCK * self.vector * size}];",
            f"const int tx = threadIdx.x % {across}, ty = threadIdx.x / {across};",
            f"const {index} c = ({index})(blockIdx.x * {across} + tx) * {self.vector};",
            f"const {index} first = ({index})blockIdx.y * {chunk};",
            f"const {index} last = {t.row_count}, left = last - first;",
            f"const {index} end = left < {chunk} ? last : first + {chunk};",
            "constexpr int h = 0;",
        )
        for v in finals:
            acc, n = self.accumulators[v], self.number(v)
            w.add(f"{acc.kind} g{n}[{self.vector}];")
            w.add(f"for (int j = 0; j < {self.vector}; ++j) g{n}[j] = {acc.start};")
        w.add(f"if (c < {t.length})")
        w.add(f"for ({index} row = first + ty; row < end; row += {beside}) {{")
        w.add(*self.values.row_lines("row"), *self.block(self.roots(0), 0), "}")

    def _reduce_columns(self, v: Value, across: int, beside: int) -> None:
        """Reduce sums over the threads that have the same columns."""
        acc, n = self.accumulators[v], self.number(v)
        place = f"blockIdx.y * {self.task.length} + c + j" if v in self.partial_sums else "c + j"
        self.w.add(
            f"{{ {acc.kind}* part = ({acc.kind}*)sums;",
            "__syncthreads();",
            f"for (int j = 0; j < {self.vector}; ++j) part[j * {BLOCK} + threadIdx.x] = g{n}[j];",
            f"for (int d = {beside // 2}; d > 0; d /= 2) {{",
            "__syncthreads();",
            f"if (ty < d) for (int j = 0; j < {self.vector}; ++j)",
            f"  part[j * {BLOCK} + threadIdx.x] = j{n}(part[j * {BLOCK} + threadIdx.x], "
            f"part[j * {BLOCK} + threadIdx.x + d * {across}]);",
            "}",
            f"if (ty == 0 && c < {self.task.length})",
            f"  for (int j = 0; j < {self.vector}; ++j) "
            f"{{ {self.store_final(v, f'part[j * {BLOCK} + tx]', place)} }}",
            "}",
        )

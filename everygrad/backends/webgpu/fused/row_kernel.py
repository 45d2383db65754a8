"""WGSL of one kernel of a fused group: passes over rows, sums over rows, and what is stored.

As on the CPU, a pass computes everything it can before a row reduction's result is needed; the next
pass continues with that result, from registers where the row is held there, else by loading again.
`mapping` says which thread computes what. Sums that end the group ("finals") are of three kinds:
"total", one number for all; "columns", one for each column; "rows", one for each row or each of a
cycle of rows. Where several workgroups have partial sums of one final, they store them in a scratch
buffer, and a second kernel (`second_stage`) combines them.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.backends.webgpu.fused.accumulator import Accumulator, BlockReducer, ThreadGroup, put
from everygrad.backends.webgpu.fused.operands import vec4_type
from everygrad.backends.webgpu.fused.thread_mapping import WORKGROUP, ThreadMapping
from everygrad.backends.webgpu.fused.values import Values
from everygrad.backends.webgpu.source.render import MAIN, with_library
from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.compiler.groups import Load, Member
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape
from everygrad.dtypes import DType

# takes from which a running sum is split, so that it keeps its digits
NEST = edge(__name__, "NEST", 128, "size")
_INNER = edge(__name__, "_INNER", 64, "size")


class RowKernelTask(NamedTuple):
    """What a kernel computes: `wanted` of the group's members, by threads that `mapping` assigns.
    `sizes` are those of the axes that make up rows and columns, `kinds` says what each final is."""

    members: dict[Value, Member]
    wanted: list[Value]
    mapping: ThreadMapping
    sizes: tuple[Shape, Shape]
    accesses: dict[Load, StridedAccess]
    kinds: dict[Value, str]


class PartialSums(NamedTuple):
    """Partial sums of a final in the scratch buffer: `many` for each of its elements. Number p of
    element e is accumulator `start` + (p / inner) * outer + (p % inner) * step +
    e * each. `start` and all steps count accumulators (of one or two words)."""

    value: Value
    start: int
    many: int
    each: int
    step: int
    inner: int
    outer: int


class RowKernelWriter:
    """Writes the kernel of one task."""

    def __init__(self, task: RowKernelTask, shared_bytes: int) -> None:
        self.task = task
        self.mapping = task.mapping
        self.members = task.members
        self.values = Values(task.members, task.accesses, task.sizes, task.mapping.vector)
        self.reducer = BlockReducer(shared_bytes)
        finals = [m for m in task.members.values() if m.role == "final"]
        self.finals = {m.value: m for m in finals}
        self.accumulators = {
            v: Accumulator(v) for v, m in task.members.items() if m.role in ("reduce", "final")
        }
        self.stages: dict[Value, int] = {}
        for v, m in task.members.items():
            self.stages[v] = max((self.stage(r) for r in m.refs), default=0)
        self.passes = 1 + max((self.stages[v] for v in task.members if self.in_pass(v)), default=-1)
        t = task.mapping
        of_rows = any(m.role == "reduce" or self.kind(m.value) == "rows" for m in self.reductions())
        self.has_row_barriers = of_rows and t.lanes > 1  # barriers inside the loop over rows
        self.some_rows_idle = t.rows % (t.row_groups * t.steps) != 0
        self.some_lanes_idle = t.held > 0 and t.lanes * t.vector * t.held * t.tiles != t.length
        self.partial_sums = self.place_partial_sums()
        self.packed = [v for v in self.stored() if self.is_unpacked(v)]
        self.outs: dict[Value, str] = {}  # names of results that the caller has chosen

    @property
    def is_plain(self) -> bool:
        """Whether it is purely elementwise: no reduction, and no second kernel."""
        return not (self.accumulators or self.packed) and all(
            m.role == "full" for m in self.members.values()
        )

    # --- members ---------------------------------------------------------------------------------

    def reductions(self) -> list[Member]:
        return [m for v, m in self.members.items() if v in self.accumulators]

    def kind(self, v: Value) -> str:
        return self.task.kinds.get(v, "")

    def stage(self, ref: object) -> int:
        """The first pass that can use a reference."""
        if not isinstance(ref, Value):
            return 0
        return self.stages[ref] + (self.members[ref].role == "reduce")

    def in_pass(self, v: Value) -> bool:
        """Whether a pass over columns must produce a member."""
        m = self.members[v]
        if m.role == "full":
            return v in self.task.wanted
        return m.role == "reduce" or (m.role == "final" and m.level == "full")

    def stored(self) -> list[Value]:
        """The values that are stored as they are computed; finals are stored at the end."""
        return [v for v in self.task.wanted if v not in self.finals]

    def is_unpacked(self, v: Value) -> bool:
        """Whether a result of small elements is first stored unpacked, one word for each."""
        if layout(v.dtype).per_word == 1 or v.size == 1:
            return False
        return self.members[v].role != "full" or self.mapping.vector == 1

    # --- partial results -------------------------------------------------------------------------

    def is_direct(self, v: Value) -> bool:
        """Whether a final's result is complete where it is computed."""
        t = self.mapping
        if layout(v.dtype).per_word > 1 and v.size > 1:
            return False
        if self.kind(v) == "total":
            return t.workgroups == 1
        if self.kind(v) == "rows":
            return t.tiles == 1 and v.size == t.rows
        return t.held > 0 and t.blocks == 1

    def place_partial_sums(self) -> dict[Value, PartialSums]:
        """Where the finals' partial sums are in the scratch buffer, one after the other."""
        t, at, made = self.mapping, 0, {}
        for v in self.finals:
            if self.is_direct(v):
                continue
            words = self.accumulators[v].words
            at = -(-at // words)
            if self.kind(v) == "total":
                parts = PartialSums(v, at, t.workgroups, 1, 1, t.workgroups, 0)
            elif self.kind(v) == "rows":
                outer = t.rows // v.size
                parts = PartialSums(v, at, outer * t.tiles, t.tiles, 1, t.tiles, v.size * t.tiles)
            else:
                count = t.blocks if t.held else t.active_groups
                parts = PartialSums(v, at, count, 1, t.length, count, 0)
            made[v] = parts
            at = (at + parts.many * v.size) * words
        self.scratch_words = at
        return made

    # --- conditions ------------------------------------------------------------------------------

    def guarded(self, lines: list[str], *conditions: str) -> list[str]:
        """Lines under conditions; an empty condition always holds."""
        found = [c for c in conditions if c]
        if not found:
            return lines
        return [f"  if ({' && '.join(found)}) {{", *lines, "  }"]

    @property
    def live(self) -> str:
        """The condition that the thread group has a row, where that is not certain."""
        return "live" if self.has_row_barriers and self.some_rows_idle else ""

    @property
    def first_lane(self) -> str:
        return "x == 0u" if self.mapping.lanes > 1 else ""

    def ok(self, take: int) -> str:
        return f"ok{take}" if self.some_lanes_idle else ""

    # --- a pass ----------------------------------------------------------------------------------

    def emit(self, *lines: str) -> None:
        self.values.lines += lines

    def contribution(self, m: Member, take: int) -> str:
        """What one take adds to a reduction."""
        acc, t = self.accumulators[m.value], self.mapping
        found = []
        for part in range(t.vector):
            name = self.values.get(m.refs[0], m.value.args[0], take * t.vector + part)
            value = acc.load(name)
            if not t.held and t.length % t.vector:  # the last vector of the row is not whole
                value = f"select({acc.identity}, {value}, c{take} + {part}u < {t.length}u)"
            found.append(value)
        conditions = [self.ok(take)] if self.ok(take) else []
        if self.live and m.role == "final":
            conditions.append(self.live)
        value = acc.combine(found)
        if conditions:
            return f"select({acc.identity}, {value}, {' && '.join(conditions)})"
        return value

    def one_pass(self, k: int) -> None:
        roots = [m for v, m in self.members.items() if self.in_pass(v) and self.stages[v] == k]
        added = [
            m for m in roots if m.value in self.accumulators and self.kind(m.value) != "columns"
        ]
        names = {m.value: self.accumulator_name(m) for m in added}
        for m in added:
            if self.kind(m.value) != "total":  # totals continue from row to row
                acc = self.accumulators[m.value]
                self.emit(f"  var {names[m.value]}: {acc.register} = {acc.identity};")
        if self.mapping.held:
            for take in range(self.mapping.held):
                self.one_take(roots, names, take)
        else:
            self.loop(roots, added, names)
        row_reductions = [m for m in added if self.kind(m.value) != "total"]
        self.reduce_lanes(row_reductions, names)

    def accumulator_name(self, m: Member) -> str:
        return f"s{self.values.numbers[m.value]}"

    def one_take(self, roots: list[Member], names: dict[Value, str], take: int) -> None:
        for m in roots:
            v = m.value
            if v in names:
                acc = self.accumulators[v]
                self.emit(f"  {names[v]} = {acc.combine([names[v], self.contribution(m, take)])};")
            elif m.role == "final":
                self.add_to_columns(m, take)
            else:
                self.store_full(v, take)

    def loop(self, roots: list[Member], added: list[Member], names: dict[Value, str]) -> None:
        """All takes of a tile; long sums are split."""
        t, outside = self.mapping, self.values.of_element
        self.values.of_element = {}
        step, inner = t.lanes * t.vector, dict(names)
        start, end = f"first + x * {t.vector}u", "end"
        nested = bool(added) and t.iterations > NEST
        if nested:
            size = step * _INNER
            self.emit(f"  for (var c = {start}; c < end; c = c + {size}u) {{")
            start, end = "c", f"min(end, c + {size}u)"
            for m in added:
                acc = self.accumulators[m.value]
                inner[m.value] = f"part_{names[m.value]}"
                self.emit(f"  var {inner[m.value]}: {acc.register} = {acc.identity};")
        self.emit(f"  for (var c0 = {start}; c0 < {end}; c0 = c0 + {step}u) {{")
        self.one_take(roots, inner, 0)
        self.emit("  }")
        if nested:
            for m in added:
                both = self.accumulators[m.value].combine([names[m.value], inner[m.value]])
                self.emit(f"  {names[m.value]} = {both};")
            self.emit("  }")
        self.values.of_element = outside

    def reduce_lanes(self, row_reductions: list[Member], names: dict[Value, str]) -> None:
        """Block reductions over the lanes of a row; their results are values of the row."""
        t = self.mapping
        found = {m.value: names[m.value] for m in row_reductions}
        if t.lanes > 1 and row_reductions:
            group = ThreadGroup("x", t.lanes, "(l - x)", 1)
            accumulators = [self.accumulators[m.value] for m in row_reductions]
            own = [names[m.value] for m in row_reductions]
            self.emit(*self.reducer.block_reduce(accumulators, own, group))
            found = {v: f"all_{name}" for v, name in found.items()}
        for m in row_reductions:
            v, acc = m.value, self.accumulators[m.value]
            if m.role == "final":
                self.store_row_sum(v, found[v])
                continue
            name = f"m{self.values.numbers[v]}"
            value = acc.finalize(found[v])
            self.emit(f"  let {name}: {layout(v.dtype).register} = {value};")
            self.values.of_row[v] = name

    def store_row_sum(self, v: Value, name: str) -> None:
        acc = self.accumulators[v]
        if self.is_direct(v):
            lines = [f"  let made = {acc.finalize(name)};", *put(v.dtype, self.out(v), "r", "made")]
        else:
            at = f"{self.partial_sums[v].start}u + r * {self.mapping.tiles}u + tile"
            lines = [f"  let at = {at};", *acc.store_partial("scratch", "at", name)]
        self.emit("  {", *self.guarded(lines, self.first_lane, self.live), "  }")

    # --- columns ---------------------------------------------------------------------------------

    def add_to_columns(self, m: Member, take: int) -> None:
        """Sums over rows: in registers where columns are held there, else in the scratch buffer."""
        t, acc = self.mapping, self.accumulators[m.value]
        for part in range(t.vector):
            u = take * t.vector + part
            value = acc.load(self.values.get(m.refs[0], m.value.args[0], u))
            if t.held:
                name = f"g{self.values.numbers[m.value]}_{u}"
                new = acc.combine([name, value])
                self.emit(f"  {name} = {f'select({name}, {new}, live)' if self.live else new};")
            else:
                self.add_in_memory(m, part, value)

    def add_in_memory(self, m: Member, part: int, value: str) -> None:
        """The thread group's sum of a column, which no other group touches."""
        t, acc = self.mapping, self.accumulators[m.value]
        group = f"(block * {t.row_groups}u + y) * {t.length}u"
        at = f"{self.partial_sums[m.value].start}u + {group} + c0 + {part}u"
        lines = [f"  let at = {at};", f"  var sum = {value};"]
        if t.steps > 1:
            more = acc.combine([f"({acc.load_partial('scratch', 'at')})", "sum"])
            lines.append(f"  if (s > 0u) {{ sum = {more}; }}")
        lines += acc.store_partial("scratch", "at", "sum")
        self.emit("  {", *self.guarded(lines, self.live), "  }")

    # --- stores ----------------------------------------------------------------------------------

    def out(self, v: Value) -> str:
        """The name of a result's buffer."""
        return self.outs.get(v) or f"out{self.outputs().index(v)}"

    def outputs(self) -> list[Value]:
        """The values that have a buffer of their own in this kernel."""
        return [*self.stored(), *(v for v in self.finals if self.is_direct(v))]

    def write_over(self, x: Value, v: Value) -> None:
        """Bind v only, and read x from it: the two share one buffer."""
        self.values.elsewhere[x] = self.out(v)

    def store_full(self, v: Value, take: int) -> None:
        t = self.mapping
        names = [self.values.get(v, v, take * t.vector + part) for part in range(t.vector)]
        at = f"r * {t.length}u + c{take}" if t.rows > 1 else f"c{take}"
        lines = [f"  let at = {at};"]
        if t.vector == 1:
            lines += put(v.dtype, self.out(v), "at", names[0])
        else:
            lines += _store_vec4(v.dtype, self.out(v), names)
        self.emit("  {", *self.guarded(lines, self.live, self.ok(take)), "  }")

    def end_row(self) -> None:
        """Store the values of the row, and add them to their sums."""
        lines: list[str] = []
        for v in self.stored():
            if self.members[v].role != "full":
                lines += put(v.dtype, self.out(v), "r", self.values.of_row[v])
        for v, m in self.finals.items():
            if m.level == "row":
                acc, name = self.accumulators[v], self.accumulator_name(m)
                value = acc.load(self.values.get(m.refs[0], v.args[0], None))
                lines.append(f"  {name} = {acc.combine([name, value])};")
        if lines:
            self.emit(*self.guarded(lines, self.first_lane, self.live))

    def end(self) -> None:
        """Block reductions of the sums over rows, and the stores of their results."""
        totals = [m for v, m in self.finals.items() if self.kind(v) == "total"]
        names = [self.accumulator_name(m) for m in totals]
        accumulators = [self.accumulators[m.value] for m in totals]
        group = ThreadGroup("l", WORKGROUP, "0u", 1)
        self.emit(*self.reducer.block_reduce(accumulators, names, group))
        for m, acc, name in zip(totals, accumulators, names, strict=True):
            self.emit(*self.guarded(self.stored_sum(m.value, acc, f"all_{name}", "k"), "l == 0u"))
        if self.mapping.held:
            self.end_columns()

    def end_columns(self) -> None:
        t = self.mapping
        found = [
            (v, f"g{self.values.numbers[v]}_{u}", u)
            for v in self.finals
            if self.kind(v) == "columns"
            for u in range(t.held * t.vector)
        ]
        if t.row_groups > 1:
            accumulators = [self.accumulators[v] for v, _, _ in found]
            group = ThreadGroup("y", t.row_groups, "x", t.lanes)
            names = [name for _, name, _ in found]
            self.emit(*self.reducer.block_reduce(accumulators, names, group))
        for v, name, u in found:
            take, part = divmod(u, t.vector)
            name = f"all_{name}" if t.row_groups > 1 else name
            at_column = f"c{take} + {part}u"
            if not self.is_direct(v):
                at_column = f"block * {t.length}u + {at_column}"
            lines = self.stored_sum(v, self.accumulators[v], name, at_column)
            self.emit("  {", *self.guarded(lines, "y == 0u", self.ok(take)), "  }")

    def stored_sum(self, v: Value, acc: Accumulator, name: str, at: str) -> list[str]:
        """Lines that store a final's result, or a partial sum of it."""
        if self.is_direct(v):
            lines = [f"  let at = {'0u' if v.size == 1 else at};"]
            return [
                *lines,
                f"  let made = {acc.finalize(name)};",
                *put(v.dtype, self.out(v), "at", "made"),
            ]
        return [
            f"  let at = {self.partial_sums[v].start}u + {at};",
            *acc.store_partial("scratch", "at", name),
        ]

    # --- the kernel ------------------------------------------------------------------------------

    def begin(self) -> None:
        """The thread's coordinates: lane x of group y, in a tile of columns and a block of rows."""
        t = self.mapping
        self.emit(
            f"  if (k >= {t.workgroups}u) {{ return; }}",
            f"  let x = l % {t.lanes}u;",
            f"  let y = l / {t.lanes}u;",
            f"  let tile = k % {t.tiles}u;",
            f"  let block = k / {t.tiles}u;",
            f"  let first = tile * {t.tile}u;",
            f"  let end = min(first + {t.tile}u, {t.length}u);",
        )
        for take in range(t.held):
            column = f"first + (x + {take * t.lanes}u) * {t.vector}u"
            if self.some_lanes_idle:
                self.emit(f"  let ok{take} = {column} < {t.length}u;")
                column = f"min({column}, {t.length - t.vector}u)"
            self.emit(f"  let c{take} = {column};")
        for v, m in self.finals.items():
            acc = self.accumulators[v]
            if self.kind(v) == "total":
                self.emit(f"  var {self.accumulator_name(m)}: {acc.register} = {acc.identity};")
            elif self.kind(v) == "columns":
                for u in range(t.held * t.vector):
                    name = f"g{self.values.numbers[v]}_{u}"
                    self.emit(f"  var {name}: {acc.register} = {acc.identity};")

    def row_loop(self) -> None:
        """The loop over a group's rows. A group without a row still reaches the barriers."""
        t = self.mapping
        self.emit(f"  for (var s = 0u; s < {t.steps}u; s = s + 1u) {{")
        self.emit(f"  let row = (block * {t.steps}u + s) * {t.row_groups}u + y;")
        ends = 1
        if self.live:
            self.emit(f"  let live = row < {t.rows}u;", f"  let r = min(row, {t.rows - 1}u);")
        elif self.some_rows_idle:
            self.emit(f"  if (row < {t.rows}u) {{", "  let r = row;")
            ends = 2
        else:
            self.emit("  let r = row;")
        self.row()
        self.emit("  }" * ends)

    def row(self) -> None:
        self.values.begin_row()
        for k in range(self.passes + 1):
            for v, m in self.members.items():
                if m.role == "row" and self.stages[v] == k:
                    self.values.row_value(v)
            if k < self.passes:
                self.one_pass(k)
        self.end_row()

    def body(self) -> None:
        """The lines of workgroup k."""
        self.begin()
        self.row_loop()
        self.end()

    def source(self) -> str:
        self.emit("  let k = w.y * g.x + w.x;")
        self.body()
        functions = {f.function: f.define() for f in self.accumulators.values()}
        text = "".join(functions.values()) + self.reducer.declared()
        text += MAIN + "\n".join(self.values.lines) + "\n}\n"
        return self.bindings() + with_library(text)

    def bindings(self) -> str:
        """Declarations of the buffers read and written, and of an unused uniform."""
        items = zip(self.values.inputs, self.values.bindings(), strict=True)
        over = self.values.elsewhere
        reads = [(self.values.buffer(v), kind) for v, kind in items if v not in over]
        writes = [(self.out(v), self.item(v)) for v in self.outputs()]
        if self.partial_sums:
            writes.append(("scratch", "u32"))
        return framed(reads, writes)

    def item(self, v: Value) -> str:
        full = self.members[v].role == "full" and self.mapping.vector == 4
        return vec4_type(v.dtype) if full else "u32"


def framed(reads: list[tuple[str, str]], writes: list[tuple[str, str]]) -> str:
    """Declarations of buffers by name and item."""
    lines = []
    for i, (name, kind) in enumerate((*reads, *writes)):
        how = "read" if i < len(reads) else "read_write"
        lines.append(f"@group(0) @binding({i}) var<storage, {how}> {name}: array<{kind}>;\n")
    lines.append("struct Params { v: array<vec4<u32>, 1> }\n")
    lines.append(f"@group(0) @binding({len(lines) - 1}) var<uniform> P: Params;\n")
    return "".join(lines)


def packed_words(dtype: DType, names: list[str]) -> list[str]:
    """Elements packed into words as they are in memory."""
    lay = layout(dtype)
    if lay.words == 2:
        return [f"{name}.{half}" for name in names for half in "xy"]
    bits = [f"({lay.bits.format(v=name)})" for name in names]
    width = 32 // lay.per_word
    return [
        " | ".join(
            f"({b} << {width * i}u)" if i else b for i, b in enumerate(bits[at:][: lay.per_word])
        )
        for at in range(0, len(bits), lay.per_word)
    ]


def _store_vec4(dtype: DType, buffer: str, names: list[str]) -> list[str]:
    """Lines that store four elements from a multiple of four, `at`, on."""
    words, kind = packed_words(dtype, names), vec4_type(dtype)
    if len(words) == 8:
        return [
            f"  {buffer}[at >> 1u] = {kind}({', '.join(words[:4])});",
            f"  {buffer}[(at >> 1u) + 1u] = {kind}({', '.join(words[4:])});",
        ]
    value = words[0] if len(words) == 1 else f"{kind}({', '.join(words)})"
    return [f"  {buffer}[at >> 2u] = {value};"]

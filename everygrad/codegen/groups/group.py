"""Fused groups on GPUs: passes over rows, sums over rows, and what is stored.

`compiler.schedule` says which pass computes what, `group_threads` which thread computes what; here
both become a kernel. Later passes take values from registers where the row is held there, else they
load again. Where several workgroups have partial sums of one final, they store them, and a second
kernel (`group_sums`) combines them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.codegen.groups.group_sizes import index_of, padded, sizes_of
from everygrad.codegen.groups.group_sums import Accumulator, GroupKernel, Pairs, PartialSums
from everygrad.codegen.groups.group_values import (
    Task,
    Values,
    address,
    number,
    operands_of,
    stores_of,
)
from everygrad.codegen.kernel import Buffer, Builder, logical_and, where
from everygrad.codegen.machine import Machine
from everygrad.codegen.passes import folded, optimised
from everygrad.codegen.verify import verified_in_tests
from everygrad.compiler.expr import Expr, as_expr, call
from everygrad.compiler.groups import Member
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

_INNER = edge(__name__, "_INNER", 64, "size")


class Bound(NamedTuple):
    """The buffers of a task: what it reads, what it writes, and partial sums by dtype."""

    inputs: dict[Value, Buffer]
    outputs: dict[Value, Buffer]
    scratch: dict[DType, Buffer]


class GroupWriter:
    """Writes one task."""

    def __init__(self, task: Task, machine: Machine) -> None:
        self.task, self.machine = task, machine
        self.mapping, self.members, self.passes = task.mapping, task.members, task.passes
        self.finals = {m.value: m for m in self.members.values() if m.role == "final"}
        self.accumulators = {
            v: Accumulator(v, ("count", n))
            for n, (v, m) in enumerate(self.members.items())
            if m.role in ("reduce", "final")
        }
        t = task.mapping
        of_rows = any(
            m.role == "reduce" or self.kind(v) == "rows"
            for v, m in self.members.items() if v in self.accumulators
        )  # fmt: skip
        self.has_row_barriers = of_rows and t.lanes > 1  # barriers inside the loop over rows
        self.operands, self.stores = operands_of(task), stores_of(task)
        self.inputs = task.inputs  # the values that are read
        self.scratch: dict[DType, int] = {}  # elements of partial sums
        self.partial_sums = self.place_partial_sums()
        self.sums: dict[Any, Expr] = {}  # variables: by final, or final and element held
        self.always: Expr | None = None  # whether the row exists, where that is not certain
        self.ok: list[Expr | None] = []  # whether the columns of each take exist
        self.subtracted: dict[Value, Expr] = {}  # of online sums: what their terms are relative to

    @property
    def is_plain(self) -> bool:
        """Whether it is purely elementwise."""
        return not self.accumulators and all(m.role == "full" for m in self.members.values())

    def kind(self, v: Value) -> str:
        return self.task.kinds.get(v, "")

    def stored(self) -> list[Value]:
        """The values that are stored as they are computed; finals are stored at the end."""
        return [v for v in self.task.wanted if v not in self.finals]

    def outputs(self) -> list[Value]:
        """The values that have a buffer of their own in this kernel."""
        return [*self.stored(), *(v for v in self.finals if self.is_direct(v))]

    def is_padded(self, v: Value) -> bool:
        """Whether vectors are written beyond the last element."""
        is_partial = self.mapping.length % self.mapping.vector != 0
        return self.machine.padded and self.members[v].role == "full" and is_partial

    # --- partial sums ----------------------------------------------------------------------------

    def is_direct(self, v: Value) -> bool:
        """Whether a final's result is complete where it is computed."""
        t = self.mapping
        if self.kind(v) == "total":
            return t.workgroups == 1
        if self.kind(v) == "rows":
            return t.tiles == 1 and v.size == t.rows
        return t.held > 0 and t.blocks == 1

    def place_partial_sums(self) -> dict[Value, PartialSums]:
        """Where the finals' partial sums are in the scratch buffers, one after the other."""
        t, made = self.mapping, dict[Value, PartialSums]()
        for v in self.finals:
            if self.is_direct(v):
                continue
            dtype = self.accumulators[v].dtype
            at = self.scratch.get(dtype, 0)
            if self.kind(v) == "total":
                parts = PartialSums(v, dtype, at, t.workgroups, 1, 1, t.workgroups, 0)
            elif self.kind(v) == "rows":
                outer, n = t.rows // v.size, t.tiles
                parts = PartialSums(v, dtype, at, outer * n, n, 1, n, v.size * n)
            else:
                count = t.blocks if t.held else t.active_groups
                parts = PartialSums(v, dtype, at, count, 1, t.length, count, 0)
            made[v] = parts._replace(number=len(made))
            self.scratch[dtype] = at + parts.many * v.size
        return made

    def place_behind(self, scratch: dict[DType, int]) -> None:
        """Put its partial sums behind so many elements of others, which then are its own too."""
        before = dict(scratch)
        self.partial_sums = {
            v: p._replace(start=p.start + before.get(p.dtype, 0))
            for v, p in self.partial_sums.items()
        }
        for dtype, n in self.scratch.items():
            scratch[dtype] = before.get(dtype, 0) + n

    # --- conditions ------------------------------------------------------------------------------

    def first_lane(self) -> Expr | None:
        return call("eq", self.x, 0) if self.mapping.lanes > 1 else None

    # --- the kernel ------------------------------------------------------------------------------

    def write(self, b: Builder, group: Expr, bound: Bound) -> None:
        """The statements of the group number `group` of the kernel: the thread's coordinates, lane
        x of group y in a tile of columns and a block of rows; the rows; what is left to store."""
        t = self.mapping
        self.b, self.group, self.out, self.parts = b, group, bound.outputs, bound.scratch
        self.sizes = sizes_of(self)
        self.values = Values(b, self.task, bound.inputs, self.operands)
        zero = as_expr(0)
        self.x = zero if t.lanes == 1 else b.thread
        self.y = zero
        if t.row_groups > 1:
            if t.lanes == 1:
                self.y = b.thread
            else:
                width = t.row_groups if t.interleaved else t.lanes
                inner, outer = b.let(b.thread % width), b.let(call("floordiv", b.thread, width))
                self.x, self.y = (outer, inner) if t.interleaved else (inner, outer)
        self.tile = self.first = zero
        self.block, self.end = group, self.size("end")
        if t.tiles > 1:
            self.tile, self.block = group, b.let(zero)
            if t.blocks > 1:
                self.tile = b.let(call("mod", group, self.size("tiles")))
                self.block = b.let(call("floordiv", group, self.size("tiles")))
            self.first = b.let(self.tile * self.size("tile"))
            self.end = b.let(call("min", self.first + self.size("tile"), self.end))
        columns: list[Expr] = []
        for take in range(t.held):
            column = b.let(self.first + (self.x + take * t.lanes) * t.vector)
            ok = None
            if t.some_lanes_idle:
                ok = b.let(call("lt", column, self.size("length")), dtypes.bool_)
                column = b.let(call("min", column, self.size("last start")))
            self.ok.append(ok)
            columns.append(column)
        self.values.columns = columns
        self.declare_sums()
        self.rows()
        self.store_sums()

    def size(self, *name: Hashable) -> Expr:
        """One of `sizes`, as the text says it."""
        whole = name if len(name) > 1 else name[0]
        return self.b.size(self.sizes[whole], whole)

    def declare_sums(self) -> None:
        """Variables for the sums over rows."""
        b, t = self.b, self.mapping
        for v, acc in self.accumulators.items():
            if self.kind(v) == "total":
                self.sums[v] = b.variable(acc.identity, acc.dtype)
            elif self.kind(v) == "columns":
                for u in range(t.held * t.vector):
                    self.sums[v, u] = b.variable(acc.identity, acc.dtype)

    # --- rows ------------------------------------------------------------------------------------

    def rows(self) -> None:
        """The loop over a group's rows. A group without a row still reaches the barriers."""
        t, b = self.mapping, self.b
        if t.steps == 1:
            self.row_at(0)
        else:
            with b.loop(0, self.size("steps")) as step:
                self.row_at(step)

    def row_at(self, step: Any) -> None:
        t, b = self.mapping, self.b
        self.step = step
        turn = self.block if t.steps == 1 else self.block * self.size("steps") + step
        row = b.let(turn * t.row_groups + self.y)
        if not t.some_rows_idle:
            self.row(row)
        elif self.has_row_barriers:
            self.always = b.let(call("lt", row, self.size("rows")), dtypes.bool_)
            self.row(b.let(call("min", row, self.size("last row"))))
        else:
            with b.when(call("lt", row, self.size("rows"))):
                self.row(row)

    def row(self, row: Expr) -> None:
        self.at = row
        self.values.begin_row(row)
        for store in self.stores.values():
            store.begin_row(row, self.b)
        if self.mapping.held and self.machine.warp > 1 and self.passes.count > 1:
            self.fetch_ahead()
        for k in range(self.passes.count + 1):
            for v in self.passes.of_rows(k):
                self.values.row_value(v)
            if k < self.passes.count:
                self.one_pass(k)
        self.end_row()

    def fetch_ahead(self) -> None:
        """Begin to read what later passes need while rows are reduced, if registers allow."""
        t, passes = self.mapping, self.passes
        first, *others = [passes.loads(passes.roots(k)) for k in range(passes.count)]
        every = {*first}.union(*others)
        later = [r for r in self.operands if r in every and r in self.values.vectors]
        if first and len(later) * t.held * t.vector <= 2 * self.machine.most_held:
            self.values.fetch(later, range(t.held))

    # --- a pass ----------------------------------------------------------------------------------

    def one_pass(self, k: int) -> None:
        b, roots = self.b, self.passes.roots(k)
        added = [
            m.value for m in roots
            if m.value in self.accumulators and self.kind(m.value) != "columns"
        ]  # fmt: skip
        sums = {}
        for v in added:
            acc = self.accumulators[v]
            # totals continue from row to row
            total = self.kind(v) == "total"
            sums[v] = self.sums[v] if total else b.variable(acc.identity, acc.dtype)
            if v in self.passes.online:
                self.subtracted[v] = b.variable(number(0.0, acc.dtype), acc.dtype)
        if self.mapping.held:
            for take in range(self.mapping.held):
                self.one_take(roots, sums, [take])
        else:
            self.loop(roots, sums)
        self.reduce_lanes({v: s for v, s in sums.items() if self.kind(v) != "total"})

    def one_take(
        self, roots: Sequence[Member], sums: dict[Value, Expr], takes: Sequence[int],
        outer: dict[Value, Expr] | None = None,
    ) -> None:  # fmt: skip
        """What takes add to sums, and what is stored of them; `outer` are the sums that `sums` are
        parts of."""
        online = self.passes.online
        for m in roots:
            v = m.value
            if v in online:
                parts = [sums[v]] if outer is None else [sums[v], outer[v]]
                self.add_online(v, sums[online[v]], parts, takes)
            elif v in online.values():
                pass  # found with its sum
            elif v in sums:
                acc = self.accumulators[v]
                terms = [self.contribution(m, take) for take in takes]
                self.b.assign(sums[v], acc.joined([sums[v], acc.joined(terms)]))
            else:
                for take in takes:
                    if m.role == "final":
                        self.add_to_columns(m, take)
                    else:
                        self.store_full(v, take)

    def contribution(self, m: Member, take: int) -> Expr:
        """What one take adds to a reduction."""
        acc, t = self.accumulators[m.value], self.mapping
        found = []
        for part in range(t.vector):
            u = take * t.vector + part
            value = acc.load(self.values.get(m.refs[0], m.value.args[0], u))
            found.append(self.inside(value, take, part, acc.identity))
        conditions = [self.ok[take]] if t.held else []
        if m.role == "final":
            conditions.append(self.always)
        value = acc.joined(found)
        held = [c for c in conditions if c is not None]
        return where(logical_and(*held), value, acc.identity) if held else value

    def add_online(self, v: Value, top: Expr, parts: Sequence[Expr], takes: Sequence[int]) -> None:
        """Add exp(x - maximum) to the first of `parts`, where the maximum is that of the elements
        so far; a larger one rescales all parts. While all are -inf, 0 is subtracted: exp(-inf) is
        0, as it will be once a larger one has come."""
        b, highest, acc = self.b, self.passes.online[v], self.accumulators[v]
        m, dtype, found = self.members[highest], acc.dtype, []
        vector, lowest = self.mapping.vector, self.accumulators[highest].identity
        for take, part in product(takes, range(vector)):
            x = self.values.get(m.refs[0], highest.args[0], take * vector + part)
            found.append(self.inside(x, take, part, lowest))
        high = b.let(self.accumulators[highest].joined(found), dtype)
        with b.when(call("not", call("le", high, top))):
            up = b.let(call("max", top, high), dtype)
            scale = b.let_rounded(call("exp", top - up), dtype, "low")
            for s in parts:
                b.assign(s, s * scale)
            b.assign(top, up)
            b.assign(self.subtracted[v], up)
        terms = [
            b.let_rounded(call("exp", x - self.subtracted[v]), dtype, "low") for x in found
        ]  # fmt: skip
        b.assign(parts[0], parts[0] + acc.joined(terms))

    def inside(self, value: Expr, take: int, part: int, other: Expr) -> Expr:
        """The value, or another where the last vector of the row is not whole."""
        t = self.mapping
        if t.held or t.length % t.vector == 0 or not self.machine.padded:
            return value
        column = self.values.columns[take] + part
        return where(call("lt", column, self.size("length")), value, other)

    def loop(self, roots: Sequence[Member], sums: dict[Value, Expr]) -> None:
        """All takes of a tile; long sums are split."""
        t, b, outside = self.mapping, self.b, self.values.of_element
        step, start = t.lanes * t.vector, folded(self.first + folded(self.x * t.vector))
        is_partial = self.machine.padded and t.length % t.vector != 0
        self.values.last = self.size("last") if is_partial else None
        if not (sums and t.is_long):
            self.takes(roots, sums, start, self.end)
        else:
            size = step * _INNER
            with b.loop(start, self.end, size) as c:
                inner = dict(sums)
                for v in sums:
                    if v not in self.passes.online.values():  # sums alone lose digits
                        acc = self.accumulators[v]
                        inner[v] = b.variable(acc.identity, acc.dtype)
                self.takes(roots, inner, c, call("min", self.end, c + size), sums)
                for v, s in sums.items():
                    if inner[v] is not s:
                        b.assign(s, self.accumulators[v].joined([s, inner[v]]))
        self.values.of_element = outside
        if t.length % t.vector and not is_partial:
            self.rest(roots, sums)

    def rest(self, roots: Sequence[Member], sums: dict[Value, Expr]) -> None:
        """The elements behind the last whole vector of a single row, one for a thread."""
        b, mapping, values = self.b, self.mapping, self.values
        whole = self.size("end")
        mine = call("lt", b.thread, self.size("rest"))
        with b.when(logical_and(call("eq", self.group, 0), mine)):
            self.mapping = mapping._replace(vector=1)
            task = self.task._replace(mapping=self.mapping)
            self.values = Values(b, task, values.buffers, operands_of(task))
            self.values.begin_row(self.at)
            self.values.columns = [b.let(b.thread + whole)]
            self.one_take(roots, sums, [0])
        self.mapping, self.values = mapping, values

    def takes(
        self, roots: Sequence[Member], sums: dict[Value, Expr], start: Expr, end: Expr,
        outer: dict[Value, Expr] | None = None,
    ) -> None:  # fmt: skip
        t, b = self.mapping, self.b
        step = t.lanes * t.vector
        if t.iterations == 1:
            column = b.let(start)
            with b.when(call("lt", column, end)):
                self.take_at([column], roots, sums, outer)
            return
        if t.batch > 1:  # as many as all threads have
            whole = self.size("batches")
            with b.loop(0, whole, step * t.batch) as first:
                columns = [b.let(first + start + k * step) for k in range(t.batch)]
                self.take_at(columns, roots, sums, outer)
            start = start + whole
        with b.loop(start, end, step) as column:
            self.take_at([column], roots, sums, outer)

    def take_at(
        self, columns: list[Expr], roots: Sequence[Member], sums: dict[Value, Expr],
        outer: dict[Value, Expr] | None,
    ) -> None:  # fmt: skip
        """Takes that begin at these columns."""
        self.values.columns, self.values.of_element = columns, {}
        takes = range(len(columns))
        if len(columns) > 1:
            self.values.fetch(self.passes.loads(roots), takes)
        self.one_take(roots, sums, takes, outer)

    def reduce_lanes(self, sums: dict[Value, Expr]) -> None:
        """Reductions over the lanes of a row; their results are values of the row. Online sums come
        after their maxima, which say what the terms of each lane should have been relative to."""
        b, online = self.b, self.passes.online
        self.reduce_rows({v: s for v, s in sums.items() if v not in online})
        later = {v: s for v, s in sums.items() if v in online}
        for v, s in later.items():
            top = self.values.of_row[online[v]]
            b.assign(s, s * call("exp", sums[online[v]] - top))
        self.reduce_rows(later)

    def reduce_rows(self, sums: dict[Value, Expr]) -> None:
        t = self.mapping
        found = self.reduced(list(sums.items()), t.lanes, t.row_groups if t.interleaved else 1)
        for v, value in zip(sums, found, strict=True):
            if self.members[v].role == "final":
                self.store_row_sum(v, value)
            else:
                self.values.of_row[v] = self.b.let(self.finalized(v, value), v.dtype)

    def reduced(self, sums: Sequence[tuple[Value, Expr]], count: int, stride: int) -> list[Expr]:
        """Combined over threads, as many at a time as fit into shared memory."""
        found: list[Expr] = []
        some: list[tuple[Expr, str]] = []
        room = most = max(8, self.machine.shared_bytes // self.mapping.threads)
        for v, s in sums:
            acc = self.accumulators[v]
            size = max(4, acc.dtype.itemsize)
            if size > room:
                found += self.b.reduce(some, count, stride)
                some, room = [], most
            some.append((s, acc.combine))
            room -= size
        return found + self.b.reduce(some, count, stride)

    # --- columns ---------------------------------------------------------------------------------

    def add_to_columns(self, m: Member, take: int) -> None:
        """Sums over rows: in registers where columns are held there, else in the scratch buffer."""
        t, acc = self.mapping, self.accumulators[m.value]
        for part in range(t.vector):
            u = take * t.vector + part
            value = acc.load(self.values.get(m.refs[0], m.value.args[0], u))
            if t.held:
                s = self.sums[m.value, u]
                made = acc.joined([s, value])
                self.b.assign(s, made if self.always is None else where(self.always, made, s))
            else:
                self.add_in_memory(m.value, self.values.columns[take] + part, value)

    def add_in_memory(self, v: Value, column: Expr, value: Expr) -> None:
        """The thread group's sum of a column, which no other group touches."""
        t, b, acc = self.mapping, self.b, self.accumulators[v]
        scratch = self.parts[acc.dtype]
        group = self.at  # its number is that of its row, if it has only one
        if t.steps > 1:
            own = self.block * t.row_groups + self.y
            group = b.let(call("min", own, self.size("last group")))
        place = group * self.size("length") + column
        at = b.let(place + self.size("start", self.partial_sums[v].number))
        made = b.let(value, acc.dtype)
        if t.steps > 1:
            later = [call("gt", self.step, 0), *([] if self.always is None else [self.always])]
            before = b.load(scratch, at, logical_and(*later))
            made = where(call("gt", self.step, 0), acc.joined([before, made]), made)
        b.store(scratch, at, made, self.always)

    # --- stores ----------------------------------------------------------------------------------

    def store_full(self, v: Value, take: int) -> None:
        t, b = self.mapping, self.b
        made = [self.values.get(v, v, take * t.vector + part) for part in range(t.vector)]
        column = self.values.columns[take]
        at = self.at * self.size("length") + column if t.rows > 1 else column
        if v in self.stores:
            store = self.stores[v]
            at = b.let(address(store.base, store.terms(b, "columns", column)))
        found = [c for c in (self.always, self.ok[take] if t.held else None) if c is not None]
        guard = logical_and(*found) if found else None
        if t.vector == 1:
            b.store(self.out[v], at, made[0], guard)
        elif guard is None:
            b.store_vector(self.out[v], at, made)
        else:
            with b.when(guard):
                b.store_vector(self.out[v], at, made)

    def store_row_sum(self, v: Value, value: Expr) -> None:
        guard = _both(self.first_lane(), self.always)
        if self.is_direct(v):
            self.b.store(self.out[v], self.at, self.finalized(v, value), guard)
        else:
            p = self.partial_sums[v]
            at = self.at if self.mapping.tiles == 1 else self.at * self.size("tiles") + self.tile
            at = at + self.size("start", p.number)
            self.b.store(self.parts[p.dtype], at, value, guard)

    def end_row(self) -> None:
        """Store the values of the row, and add them to their sums."""
        b, stores, sums = self.b, [], []
        for v in self.stored():
            if self.members[v].role != "full":
                stores.append((self.out[v], self.values.of_row[v]))
        for v, m in self.finals.items():
            if m.level == "row":
                acc = self.accumulators[v]
                value = acc.load(self.values.get(m.refs[0], v.args[0], None))
                sums.append((self.sums[v], acc.joined([self.sums[v], value])))
        guard = _both(self.first_lane(), self.always)
        for buffer, value in stores:
            b.store(buffer, self.at, value, guard)
        for s, value in sums:
            b.assign(s, value if guard is None else where(guard, value, s))

    def store_sums(self) -> None:
        """Reductions of the sums over rows, and the stores of their results."""
        t, b = self.mapping, self.b
        totals = [v for v in self.finals if self.kind(v) == "total"]
        found = self.reduced([(v, self.sums[v]) for v in totals], t.threads, 1)
        for v, value in zip(totals, found, strict=True):
            self.store_sum(v, value, self.group, call("eq", b.thread, 0))
        if not t.held:
            return
        columns = [(v, u) for v in self.finals if self.kind(v) == "columns"
                   for u in range(t.held * t.vector)]  # fmt: skip
        found = self.reduced([(v, self.sums[v, u]) for v, u in columns], t.row_groups, t.lanes)
        for (v, u), value in zip(columns, found, strict=True):
            take, part = divmod(u, t.vector)
            at = self.values.columns[take] + part
            if not self.is_direct(v):
                at = self.block * self.size("length") + at
            guard = call("eq", self.y, 0) if t.row_groups > 1 else None
            self.store_sum(v, value, at, _both(guard, self.ok[take]))

    def store_sum(self, v: Value, value: Expr, at: Expr, guard: Expr | None) -> None:
        """Store a final's result, or a partial sum of it."""
        if self.is_direct(v):
            place = at if v.size > 1 else as_expr(0)
            self.b.store(self.out[v], place, self.finalized(v, value), guard)
        else:
            p = self.partial_sums[v]
            at = at + self.size("start", p.number)
            self.b.store(self.parts[p.dtype], at, value, guard)

    def finalized(self, v: Value, value: Expr) -> Expr:
        """The result of a reduction, from the complete accumulator."""
        return self.accumulators[v].finalize(value, self.b)


def _both(*conditions: Expr | None) -> Expr | None:
    found = [c for c in conditions if c is not None]
    return reduce(lambda a, b: call("and", a, b), found) if found else None


def write_kernel(
    parts: Sequence[tuple[GroupWriter, Pairs]], machine: Machine, name: str = ""
) -> GroupKernel:
    """Independent tasks as one kernel: each has some of its groups; their partial sums are in one
    buffer for each dtype. A single one that is given a name has a text without sizes."""
    writers = [w for w, _ in parts]
    names = dict.fromkeys(v.name for w in writers for v in w.members)
    groups = sum(w.mapping.workgroups for w in writers)
    scratch: dict[DType, int] = {}
    for w in writers:
        w.place_behind(scratch)
    threads = max(w.mapping.threads for w in writers)
    index = index_of(writers, scratch, machine)
    head = "fused" if len(writers) == 1 else "batch"
    b = Builder(name or " ".join([head, *names]), index, groups, threads, bool(name))
    over = {x: v for _, pairs in parts for x, v in pairs.items()}
    read = dict.fromkeys(v for w in writers for v in w.inputs() if v not in over)
    inputs = {v: b.buffer(f"a{n}", v.dtype, padded(v.size, machine)) for n, v in enumerate(read)}
    given = set(over.values())
    outputs: dict[Value, Buffer] = {}
    for w in writers:
        for v in w.outputs():
            size = padded(v.size, machine) if w.is_padded(v) else v.size
            outputs[v] = b.buffer(f"o{len(outputs)}", v.dtype, size, True, v in given)
    sums = {d: b.buffer(f"sums_{d}", d, n, True) for d, n in scratch.items()}
    bound = Bound(inputs | {x: outputs[v] for x, v in over.items()}, outputs, sums)
    first = 0
    for w in writers:
        if len(writers) == 1:
            w.write(b, b.group, bound)
            break
        last = first + w.mapping.workgroups
        with b.when(logical_and(call("ge", b.group, first), call("lt", b.group, last))):
            w.write(b, b.let(b.group - first), bound)
        first = last
    return GroupKernel(optimised(verified_in_tests(b.finish())), [*read], [*outputs, *sums], over)

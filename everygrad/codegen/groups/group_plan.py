"""The kernels of a fused group: which of its values each computes, and how threads are mapped.

One kernel computes everything where it can. Sums of different shapes need different loop nests: a
group then becomes several kernels, each of which computes again what it needs. A sum that no loop
nest serves becomes a kernel of its own (`schedule.without_strays`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from everygrad.codegen.groups import group_threads
from everygrad.codegen.groups.group import GroupWriter, write_kernel
from everygrad.codegen.groups.group_sums import GroupKernel, Pairs, second_stage
from everygrad.codegen.groups.group_threads import ThreadMapping
from everygrad.codegen.groups.group_values import Task, store_operand
from everygrad.codegen.machine import Machine
from everygrad.compiler.groups import Group, Load, Member
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.compiler.schedule import (
    GroupLayout,
    Passes,
    by_loop_nest,
    finals,
    has_functions,
    is_by_rows,
    kind_of,
    layout_of,
    needed,
    online_sums,
)
from everygrad.compiler.views import is_whole


def task_of(
    group: Group, wanted: Sequence[Value], machine: Machine, exact: Set[Value] = frozenset()
) -> Task:
    """How these values are computed."""
    members = needed(group, wanted)
    kinds = {m.value: kind_of(m) for m in finals(members)}
    names = {v: k.name for v, k in kinds.items()}
    lengths = {k.length for k in kinds.values() if k.length}  # one at most: see `by_loop_nest`
    row = (group.row or 1) if is_by_rows(members) else max(lengths, default=0)
    layout = layout_of(group, row)
    mapping = _mapping(group, members, row, set(names.values()), machine, layout)
    # rows that are held are read once anyway; branches that are simulated are all computed
    online = {} if mapping.held or machine.is_simulated else online_sums(members)
    passes = Passes(members, wanted, online)
    sizes = (layout.rows, layout.columns)
    return Task(passes, mapping, sizes, layout.loads, names, exact, layout.stores)


def kernels_of(
    group: Group, stored: Set[Value], machine: Machine, exact: Set[Value] = frozenset(),
    name: str = "",
) -> Iterator[GroupKernel]:  # fmt: skip
    """The kernels of a group, in order, for a device that binds any number of buffers. Those that
    are given a name have texts without sizes."""
    for wanted in by_loop_nest(group, [v for v in group.members if v in stored]):
        writer = GroupWriter(task_of(group, wanted, machine, exact), machine)
        first = write_kernel([(writer, {})], machine, name)
        yield first
        if writer.partial_sums:
            sums = list(writer.partial_sums.values())
            stage = first.kernel.name
            yield second_stage(sums, writer.scratch, machine, stage, bool(name))


def _mapping(
    group: Group, members: dict[Value, Member], row: int, kinds: set[str], machine: Machine,
    layout: GroupLayout,
) -> ThreadMapping:  # fmt: skip
    vector = _vector(members, machine)
    sizes = (layout.rows, layout.columns)
    if not all(
        store_operand(v, at, sizes, vector).is_vector(False) for v, at in layout.stores.items()
    ):
        vector = 1
    if not row:
        return group_threads.flat(
            group.size, machine, vector, "total" in kinds, has_functions(members.values()),
            _reads_in_order(layout),
        )  # fmt: skip
    rows = group.size // row
    if is_by_rows(members):
        return group_threads.by_rows(
            rows, row, len(members), machine, vector, "total" in kinds, "columns" in kinds,
            any(map(_is_across, layout.stores.values())), min(_read_sizes(members), default=4),
        )  # fmt: skip
    choose = group_threads.split_rows if "rows" in kinds else group_threads.by_columns
    return choose(rows, row, machine, vector)


def _is_across(at: StridedAccess) -> bool:
    """Whether neighbours in memory are in different rows."""
    across = min((abs(s) for s in at.rows if s), default=0)
    return 0 < across < min((abs(s) for s in at.columns if s), default=0)


def _read_sizes(members: dict[Value, Member]) -> list[int]:
    """Bytes of the elements that are read one for each column."""
    refs = (r for m in members.values() if m.level == "full" for r in m.refs)
    return [r.value.dtype.itemsize for r in refs if isinstance(r, Load)]


def _vector(members: dict[Value, Member], machine: Machine) -> int:
    """The elements of a vector, by the widest value that is read or computed whole."""
    sizes = [m.value.dtype.itemsize for m in members.values() if m.role == "full"]
    return machine.vector_of(max([*sizes, *_read_sizes(members)], default=4))


def _reads_in_order(layout: GroupLayout) -> bool:
    """Whether neighbours are neighbours in every operand, or the same element."""
    return all(at.columns[-1] in (0, 1) for at in layout.loads.values() if at.columns)


def may_overwrite(writer: GroupWriter, x: Value, v: Value) -> bool:
    """Whether v may be written to the memory of x: the thread that computes an element of v is the
    only one that reads that element of x, and it reads it before it stores."""
    if v not in writer.outputs() or writer.passes.count != 1:
        return False
    if writer.members[v].role != "full":
        return False
    loads = {r for m in writer.members.values() for r in m.refs if _reads(r, x)}
    in_step = all(r.step is None and is_whole(r.shape, r.strides, r.offset) for r in loads)
    # elements that share a word are read and written together
    together = x.dtype.itemsize >= 4 or writer.mapping.vector > 1
    return in_step and together and _is_made_of(writer, v, x)


def _reads(ref: object, x: Value) -> bool:
    return isinstance(ref, Load) and ref.value is x


def _is_made_of(writer: GroupWriter, v: Value, x: Value) -> bool:
    """Whether v is computed from x, so that x is read before v is stored."""
    todo, seen = [v], {v}
    for member in todo:
        for r in writer.members[member].refs:
            if _reads(r, x):
                return True
            if isinstance(r, Value) and r not in seen:
                seen.add(r)
                todo.append(r)
    return False


def assign_in_place(writers: Sequence[GroupWriter], pairs: Pairs, size: int) -> list[Pairs]:
    """For each kernel of a group of so many elements, in order: which pairs it writes in place."""
    made: list[Pairs] = [{} for _ in writers]
    for x, v in pairs.items():
        readers = [n for n, w in enumerate(writers) if x in w.inputs()]
        if readers and x.size == size and may_overwrite(writers[readers[-1]], x, v):
            made[readers[-1]][x] = v
    return made

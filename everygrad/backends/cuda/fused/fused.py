"""The kernels of a fused group: which of its values each computes, and by which loops.

One kernel computes everything where it can. Sums of different shapes need different loops: a group
then becomes several kernels, each of which computes what it needs. A sum that no loop of the group
can compute gets a kernel of its own (`schedule.without_strays`).
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from everygrad.backends.cuda.fused.row_kernel import FusedKernel, FusedKernelWriter
from everygrad.backends.cuda.fused.values import KernelTask
from everygrad.compiler.groups import Group, Load, Member, is_chain
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.compiler.schedule import (
    finals,
    is_by_rows,
    kind_of,
    needed,
    nest_of_members,
    seen_rounded,
)
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import is_whole
from everygrad.core.strides import collapse

# elements of a row whose column sums fit into registers
LONGEST = edge(__name__, "LONGEST", 8192, "size")
_ROWS = edge(__name__, "_ROWS", 1024, "size")  # rows from which on every block has one
_SHORTEST = edge(__name__, "_SHORTEST", 1 << 12, "size")  # elements of a piece of a row


def _by_loop(group: Group, wanted: Sequence[Value]) -> list[list[Value]]:
    """The wanted values by the loops that compute them: the reduced rows, or a row length."""
    loops: dict[int, list[Value]] = {}
    anywhere: list[Value] = []
    for v in wanted:
        members = needed(group, [v])
        if is_by_rows(members):
            loops.setdefault(group.row or 0, []).append(v)
        elif members[v].role == "final" and kind_of(members[v]).length:
            length = kind_of(members[v]).length
            loops.setdefault(length if length <= LONGEST else -length, []).append(v)
        else:
            anywhere.append(v)
    if not loops:
        return [anywhere]
    first = group.row if group.row in loops else next(iter(loops))
    loops[first] += anywhere
    return list(loops.values())


def kernels(
    group: Group, stored: set[Value], multiprocessors: int, exact: Set[Value] = frozenset()
) -> list[FusedKernel]:
    """The kernels of a group, in launch order. `exact` values have the same bits in all."""
    wanted = [v for v in group.members if v in stored]
    return [_kernel(group, part, multiprocessors, exact) for part in _by_loop(group, wanted)]


def _kernel(
    group: Group, wanted: list[Value], multiprocessors: int, exact: Set[Value]
) -> FusedKernel:
    members = needed(group, wanted)
    kinds = {m.value: kind_of(m) for m in finals(members)}
    names = {v: k.name for v, k in kinds.items()}
    lengths = {k.length for k in kinds.values() if k.length}
    rounded = seen_rounded(members, wanted) - exact

    def writer(row: int, pieces: int = 1) -> FusedKernelWriter:
        task = _task(group, members, wanted, names, row)
        task = task._replace(pieces=pieces, exact=exact, rounded=rounded)
        return FusedKernelWriter(task, multiprocessors)

    if is_by_rows(members):
        return writer(group.row or 1).along_rows()
    if not lengths:
        return writer(0).flat()
    (row,) = lengths
    if "rows" not in names.values():
        return writer(row).down_columns()
    pieces = 1 if "columns" in names.values() else _pieces(group, row)
    return writer(row // pieces, pieces).along_rows()


def _pieces(group: Group, row: int) -> int:
    """Into how many pieces rows are split where they are few."""
    pieces = 1
    while (
        group.size // row * pieces < _ROWS
        and row % (2 * pieces) == 0
        and row // (2 * pieces) >= _SHORTEST
        and is_chain(group.cuts | {row, row // (2 * pieces)})
    ):
        pieces *= 2
    return pieces


def _task(
    group: Group,
    members: dict[Value, Member],
    wanted: list[Value],
    kinds: dict[Value, str],
    row: int,
) -> KernelTask:
    """The task of looping over rows of so many elements; 0: all are columns of one row."""
    found = nest_of_members(group, members, row)
    if row:
        return KernelTask(members, wanted, found.rows, found.columns, found.loads, kinds)
    loads = list(found.loads)
    strides = [(*found.loads[r].rows, *found.loads[r].columns) for r in loads]
    # a shorter last row does not matter: elements are counted, not rows
    ordered = (*found.full.rows, *found.full.columns)
    sizes, steps = collapse((*found.rows, *found.columns), [*strides, ordered])
    if len(sizes) == 1:
        sizes = (group.size,)
    accesses = {
        r: StridedAccess((), s, found.loads[r].offset)
        for r, s in zip(loads, steps[:-1], strict=True)
    }
    return KernelTask(members, wanted, (), sizes, accesses, kinds)


def read_in_place(group: Group, v: Value) -> bool:
    """Whether v is read once for each element: element i of it with element i of the group. Read in
    two shapes, it would be read a second time after it was overwritten."""
    loads = {
        r for m in group.members.values() for r in m.refs if isinstance(r, Load) and r.value is v
    }
    return len(loads) == 1 and all(
        v.size == group.size and r.step is None and is_whole(r.shape, r.strides, r.offset)
        for r in loads
    )

"""How GPUs compute a fused group: in which kernels and loops, and which pass computes what.

A kernel goes over rows of columns. A pass over the columns computes everything it can before the
result of a row's reduction is needed; the next pass goes on with that result. Sums that end the
group ("finals") are of three kinds: "total", one number for all; "columns", one for each column;
"rows", one for each row or each of a cycle of rows. Nothing here depends on a device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.compiler.expr import FUNCTIONS
from everygrad.compiler.groups import Group, Load, Member, final_strides
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.loop_nest import LoopNest, StridedAccess, nest_of
from everygrad.core.shapes import Shape
from everygrad.core.strides import collapse


class Kind(NamedTuple):
    """The kind of a final ("total", "columns", "rows", or "" for none of these), and the length of
    the rows it is computed along."""

    name: str
    length: int


def fusable(v: Value) -> bool:
    """Whether groups can contain v: elementwise values, reductions, and gathers by an index."""
    return v.facts.joins_groups


def under_extremes(graph: Graph) -> set[Value]:
    """The values under a max or min. One kernel finds the extreme, another may recompute the values
    and compare them with it: they must be rounded alike in both."""
    todo = [a for v in graph.values if v.facts.combine in ("max", "min") for a in v.args]
    found: set[Value] = set()
    for v in todo:
        if v not in found and v.kind in ("elementwise", "movement"):
            found.add(v)
            todo += v.args
    return found


def kind_of(m: Member) -> Kind:
    if m.value.size == 1:
        return Kind("total", 0)
    if m.level == "row":
        return Kind("", 0)
    shape: Shape = m.shape
    sizes, (steps,) = collapse(shape, [final_strides(shape, m.value.params["axes"])])
    if steps in ((0, 1), (1,)):
        return Kind("columns", sizes[-1])
    if steps in ((1, 0), (0, 1, 0)):
        return Kind("rows", sizes[-1])
    return Kind("", 0)


def finals(members: dict[Value, Member]) -> list[Member]:
    return [m for m in members.values() if m.role == "final"]


def has_functions(members: Iterable[Member]) -> bool:
    """Whether a member is computed by more than arithmetic."""
    programs = (
        m.value.op.program([a.dtype for a in m.value.args], m.value.params)
        for m in members if m.value.kind == "elementwise"
    )  # fmt: skip
    return any(inst.fn in FUNCTIONS for program in programs for inst in program.insts)


def is_by_rows(members: dict[Value, Member]) -> bool:
    """Whether rows are reduced, or have values: then the loops go over rows."""
    return any(m.role in ("reduce", "row") or m.level == "row" for m in members.values())


def needed(group: Group, wanted: Sequence[Value]) -> dict[Value, Member]:
    """The members that the wanted values depend on, in order."""
    todo, seen = list(wanted), set(wanted)
    for v in todo:
        for r in group.members[v].refs:
            if isinstance(r, Value) and r not in seen:
                seen.add(r)
                todo.append(r)
    return {v: m for v, m in group.members.items() if v in seen}


def _is_stray(group: Group, m: Member, longest: float) -> bool:
    """Whether no loop of the group can compute a final."""
    kind = kind_of(m)
    if not kind.name:
        return True
    if not is_by_rows(needed(group, [m.value])):
        return False
    return kind.length not in (0, group.row) or (kind.name == "columns" and kind.length > longest)


def without_strays(groups: Sequence[Group], longest: float = math.inf) -> list[Group]:
    """The groups, with sums that none of their loops can compute as opaque ops after them.
    `longest`: the elements of a reduced row up to which its columns can be summed on the way."""
    made: list[Group] = []
    for group in groups:
        apart = [m.value for m in finals(group.members) if _is_stray(group, m, longest)]
        for v in apart:
            del group.members[v]
        made += [group] if group.values else []
        for v in apart:
            single = Group(group.number)
            single.opaque = v
            made.append(single)
    return made


def nest_of_members(group: Group, members: dict[Value, Member], row: int) -> LoopNest:
    """The loops over some members of a group, in rows of so many elements; 0: the group's own."""
    like = Group(group.number, group.size)
    like.members, like.cuts, like.row = members, group.cuts, group.row
    like.stores = {v: steps for v, steps in group.stores.items() if v in members}
    if row:
        like.row, like.cuts = row, group.cuts | {row}
    return nest_of(like)


def by_loop_nest(group: Group, wanted: Sequence[Value]) -> list[list[Value]]:
    """The wanted values by the loop nest that computes them: one along rows that are reduced, one
    for each other kind of sum; values that fit any loop nest go with the first of these."""
    along = Kind("", group.row or 0)
    loop_nests: dict[Kind, list[Value]] = {}
    anywhere: list[Value] = []
    for v in wanted:
        members = needed(group, [v])
        if is_by_rows(members):
            loop_nests.setdefault(along, []).append(v)
        elif members[v].role == "final" and kind_of(members[v]).length:
            loop_nests.setdefault(kind_of(members[v]), []).append(v)
        else:
            anywhere.append(v)
    if not loop_nests:
        return [anywhere]
    first = along if along in loop_nests else next(iter(loop_nests))
    loop_nests[first] += anywhere
    if first == along:  # sums of such rows use the same loop nest
        for kind in [k for k in loop_nests if k.length == group.row and k != along]:
            loop_nests[along] += loop_nests.pop(kind)
    return list(loop_nests.values())


class GroupLayout(NamedTuple):
    """The sizes of the axes of rows and of columns, where loads are, and results that are not
    stored in order."""

    rows: Shape
    columns: Shape
    loads: dict[Load, StridedAccess]
    stores: dict[Value, StridedAccess]


def layout_of(group: Group, row: int) -> GroupLayout:
    """The layout of rows of so many elements; 0: all are columns."""
    found = nest_of_members(group, group.members, row)
    if row:
        return GroupLayout(found.rows, found.columns, found.loads, found.stores)

    def flat(at: StridedAccess) -> StridedAccess:
        return StridedAccess((), (*at.rows, *at.columns), at.offset)

    loads = {r: flat(at) for r, at in found.loads.items()}
    stores = {v: flat(at) for v, at in found.stores.items()}
    return GroupLayout((), (*found.rows, *found.columns), loads, stores)


def progression(load: Load) -> tuple[int, int] | None:
    """First element and step of a constant that is a range, as the numbers of classes are: it is
    computed, not read."""
    v = load.value
    if v.kind != "constant" or not v.dtype.is_integer or v.size < 2 or load.step is not None:
        return None
    flat = v.params["array"].reshape(-1)
    start, step = int(flat[0]), int(flat[1]) - int(flat[0])
    if start < 0 or step < 0 or v.dtype.itemsize < 4:
        return None
    counted = start + step * np.arange(v.size, dtype=np.int64)
    return (start, step) if np.array_equal(flat, counted) else None


def online_sums(members: dict[Value, Member]) -> dict[Value, Value]:
    """By sum of exp(x - maximum) over a row: that maximum, where one pass can find both. A thread's
    sum is relative to the largest element so far; a larger one rescales it."""
    found: dict[Value, Value] = {}
    for v, m in members.items():
        exponential = members.get(m.refs[0]) if isinstance(m.refs[0], Value) else None
        if m.role != "reduce" or not v.op.is_sum or not _is(exponential, "exp"):
            continue
        difference = members.get(exponential.refs[0])  # type: ignore[union-attr]  # it is "exp"
        if not _is(difference, "sub"):
            continue
        x, top = difference.refs  # type: ignore[union-attr]  # it is "sub"
        maximum = members.get(top) if isinstance(top, Value) else None
        if maximum is None or maximum.role != "reduce" or maximum.value.op.combine != "max":
            continue
        if maximum.refs[0] == x and maximum.value not in found.values():
            found[v] = maximum.value
    return found


def is_below_maximum(v: Value) -> bool:
    """Whether it is exp(x - maximum of x), of float32: exp of what is not above 0."""
    if v.dtype is not dtypes.float32 or v.kind != "elementwise" or v.op.intrinsic() != "exp":
        return False
    difference = v.args[0]
    if difference.kind != "elementwise" or difference.op.intrinsic() != "sub":
        return False
    x, top = difference.args
    return top.facts.combine == "max" and top.args[0] is x


def was_rounded(v: Value) -> bool:
    """Whether it is a number of 16 bits, converted."""
    if v.kind != "elementwise" or len(v.args) != 1 or not _is_half(v.args[0]):
        return False
    program = v.op.program([v.args[0].dtype], v.params)
    return all(inst.fn in ("input", "cast") for inst in program.insts)


def _is_half(v: Value) -> bool:
    return v.dtype.is_float and v.dtype.itemsize == 2


_ARITHMETIC = ("add", "sub", "mul", "div", "neg")


def seen_rounded(members: dict[Value, Member], wanted: Iterable[Value]) -> set[Value]:
    """The exponentials of float32 differences that only results of 16 bits are made of, by
    arithmetic. A difference of float32 is rounded, and what that costs the exponential is more than
    a function of 22 bits does."""
    users: dict[Value, list[Member]] = {}
    for m in members.values():
        for r in m.refs:
            if isinstance(r, Value):
                users.setdefault(r, []).append(m)
    stored = set(wanted)

    def is_rounded(v: Value) -> bool:
        todo = [v]
        for w in todo:
            if w in stored or w not in users:
                return False
            for m in users[w]:
                if _is_half(m.value):
                    continue
                if m.role != "full" or m.value.op.intrinsic() not in _ARITHMETIC:
                    return False
                todo += [] if m.value in todo else [m.value]
        return True

    return {
        v
        for v, m in members.items()
        if m.role == "full"
        and _is(m, "exp")
        and isinstance(m.refs[0], Value)
        and _is(members[m.refs[0]], "sub")
        and is_rounded(v)
    }


def _is(m: Member | None, intrinsic: str) -> bool:
    """Whether a member is this scalar function of float32."""
    if m is None or m.value.dtype is not dtypes.float32:
        return False
    return bool(m.value.op.intrinsic() == intrinsic)


class Passes:
    """Which pass over the columns computes which of the members; `online` sums are found in the
    pass of their maxima."""

    def __init__(
        self, members: dict[Value, Member], wanted: Sequence[Value], online: dict[Value, Value]
    ) -> None:
        self.members, self.wanted, self.online = members, wanted, online
        self.stages: dict[Value, int] = {}
        for v, m in members.items():
            stage = max((self.stage(r) for r in m.refs), default=0)
            self.stages[v] = self.stages[online[v]] if v in online else stage
        self.count = 1 + max((self.stages[v] for v in members if self.in_pass(v)), default=-1)

    def stage(self, ref: Any) -> int:
        """The first pass that can use a reference."""
        if not isinstance(ref, Value):
            return 0
        return self.stages[ref] + (self.members[ref].role == "reduce")

    def in_pass(self, v: Value) -> bool:
        """Whether a pass over columns must produce a member."""
        m = self.members[v]
        if m.role == "full":
            return v in self.wanted
        return m.role == "reduce" or (m.role == "final" and m.level == "full")

    def roots(self, k: int) -> list[Member]:
        """What pass k produces."""
        return [m for v, m in self.members.items() if self.in_pass(v) and self.stages[v] == k]

    def loads(self, roots: Sequence[Member]) -> list[Load]:
        """What a pass reads to produce these, element by element."""
        found: dict[Load, None] = {}
        todo, seen = list(roots), {m.value for m in roots}
        for m in todo:
            for r in m.refs:
                if isinstance(r, Load):
                    found[r] = None
                elif isinstance(r, Value) and r not in seen and self.members[r].role == "full":
                    seen.add(r)
                    todo.append(self.members[r])
        return list(found)

    def of_rows(self, k: int) -> list[Value]:
        """The elementwise values of the row that can be computed before pass k."""
        return [v for v, m in self.members.items() if m.role == "row" and self.stages[v] == k]

"""What WebGPU and CUDA ask about a fused group: its kinds of sums, and the loops for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from everygrad.compiler.groups import Group, Member, final_strides
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.loop_nest import LoopNest, nest_of
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
    if row:
        like.row, like.cuts = row, group.cuts | {row}
    return nest_of(like)

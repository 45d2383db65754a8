"""Groups of values, each to become one kernel, and what is asked of them while they grow.

A member of a group takes its arguments from other members, from memory (`Load`) or from nowhere
(`Number`). `Grouping` holds the groups of one graph: which group has which value, which waits for
which, and whether a value can be computed in the loops of a group. `fuse` forms the groups and
`recompute` adds copies to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from everygrad.compiler.dependencies import Dependencies
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import View, expand, is_whole, view_of
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major

# members of one group; by weight, where a backend says what its values text_weight
MOST_MEMBERS = edge(__name__, "MOST_MEMBERS", 96, "count")


class Load(NamedTuple):
    """A value from outside the group, read by strides along the axes of `shape`.

    `step`: how far one more of the index goes, where an index chooses the place (`take`).
    """

    value: Value
    shape: Shape
    strides: Shape
    offset: int
    step: int | None = None


class Number(NamedTuple):
    """A constant."""

    value: Any


Ref = Any  # a Value (another member), a Load or a Number


class Member(NamedTuple):
    """One value of a group: what it is there, and where its arguments come from."""

    value: Value
    role: str  # "full", "row", "reduce" or "final"
    shape: Shape  # the shape it is computed over: its own, or of a reduction its argument's
    refs: tuple[Ref, ...]
    level: str = "full"  # of a final: whether it reduces full or row values


class Group:
    """Members by value, in order. `opaque` groups hold one kernel and have no loops."""

    def __init__(self, number: int, size: int = 0) -> None:
        self.number = number
        self.size = size
        self.row: int | None = None
        self.cuts: frozenset[int] = frozenset()
        self.members: dict[Value, Member] = {}
        self.weight = 0
        self.loads: set[Value] = set()  # what the members read from outside
        self.stores: dict[Value, Shape] = {}  # strides of results that are not stored in order
        self.opaque: Value | None = None
        self.before: set[int] = set()  # numbers of the groups that it takes something from
        self.start: Any = None  # how the values were made at which it began
        self.closed = False  # takes no more members

    @property
    def values(self) -> list[Value]:
        return [self.opaque] if self.opaque is not None else list(self.members)

    def __repr__(self) -> str:
        names = " ".join(v.name for v in self.values)
        return f"<group {self.number} size {self.size} row {self.row}: {names}>"


def cuts_of(shape: Shape, scale: int = 1) -> frozenset[int]:
    """The numbers of elements behind one step of each axis: where rows may begin."""
    found, step = {scale}, scale
    for n in reversed(shape):
        step *= n
        found.add(step)
    return frozenset(found)


def is_chain(cuts: Iterable[int]) -> bool:
    """Whether each cut is a multiple of the next smaller one."""
    ordered = sorted(cuts)
    return all(b % a == 0 for a, b in pairwise(ordered))


def trailing(shape: Shape, axes: Shape) -> bool:
    """Whether the reduced axes come after all the others (axes of size 1 do not count)."""
    kept = [i for i, n in enumerate(shape) if n != 1 and i not in axes]
    gone = [i for i in axes if shape[i] != 1]
    return not kept or not gone or max(kept) < min(gone)


class Grouping:
    """The groups of one graph. A group reads at most `most_loads` values; `text_weight` says how
    much of a kernel's text a value takes."""

    def __init__(self, graph: Graph, most_loads: int, text_weight: Callable[[Value], int]) -> None:
        self.graph = graph
        self.most_loads = most_loads
        self.text_weight = text_weight
        self.groups: list[Group] = []
        self.of: dict[Value, Group] = {}
        self.dependencies = Dependencies()

    def new(self, size: int = 0) -> Group:
        group = Group(self.dependencies.new(), size)
        self.groups.append(group)
        return group

    # --- dependencies ----------------------------------------------------------------------------

    def waits(self, group: Group, other: Group) -> bool:
        """Whether `group` can only run after `other`."""
        return self.dependencies.waits(group.number, other.number)

    def wait_for(self, group: Group, bases: Iterable[Value]) -> None:
        """Note that `group` uses these values; whoever waits for it waits for them too."""
        found = (self.of.get(base) for base in bases)
        self.dependencies.add(group.number, [g.number for g in found if g is not None])

    def clear(self, group: Group, bases: Iterable[Value]) -> bool:
        """Whether none of these values waits for the group."""
        others = {self.of[b] for b in bases if b in self.of}
        return not any(o is not group and self.waits(o, group) for o in others)

    # --- where an argument comes from --------------------------------------------------------

    def ref(self, arg: Value, shape: Shape, group: Group, role: str) -> Ref | None:
        """How a member computed over `shape` gets `arg`; None where the group forbids it."""
        return self.seen(expand(view_of(arg), shape), group, role)

    def seen(self, view: View, group: Group, role: str) -> Ref | None:
        base = view.base
        if base.kind == "full":
            return Number(base.params["value"])
        member = group.members.get(base)
        if member is None:
            return Load(base, view.shape, view.strides, view.offset)
        return base if is_aligned(view, member, group, role) else None

    # --- members -----------------------------------------------------------------------------

    def too_many(self, *loads: Iterable[Value]) -> bool:
        """Whether these are more values than one kernel may read."""
        return self.most_loads < 1 << 30 and len(set().union(*loads)) > self.most_loads

    def fits(self, members: Iterable[Member], group: Group) -> bool:
        """Whether more members of all elements can be computed in a group's loops."""
        more = list(members)
        cuts = group.cuts.union(*(cuts_of(m.shape) for m in more))
        weight = group.weight + sum(self.text_weight(m.value) for m in more)
        if weight > MOST_MEMBERS or not is_chain(cuts):
            return False
        return not self.too_many(group.loads, *map(loads_of, more))

    def enter(self, member: Member, group: Group) -> None:
        v = member.value
        group.members[v] = member
        group.weight += self.text_weight(v)
        group.loads |= loads_of(member)
        self.of[v] = group
        scale = 1 if member.level == "full" else group.row or 1
        group.cuts |= cuts_of(member.shape, scale)
        if member.role == "reduce":
            group.row = size_of(member.shape) // v.size
            group.cuts |= {group.row}


def loads_of(member: Member) -> set[Value]:
    return {r.value for r in member.refs if isinstance(r, Load)}


def is_aligned(view: View, member: Member, group: Group, level: str) -> bool:
    """Whether the loop has the member's element at hand where the view asks for it."""
    if member.role == "final":
        return False
    if member.role == "full":
        return level == "full" and is_whole(view.shape, view.strides, view.offset)
    if level == "row":
        return is_whole(view.shape, view.strides, view.offset)
    return _repeats_rows(view, group.row or 1)


def _repeats_rows(view: View, row: int) -> bool:
    """Whether the view gives each row of `row` elements one element, in order."""
    if view.offset:
        return False
    shape, behind, at = view.shape, 1, len(view.shape)
    while behind < row and at:
        at -= 1
        behind *= shape[at]
    if behind != row:
        return False
    inner = all(s == 0 or n == 1 for n, s in zip(shape[at:], view.strides[at:], strict=True))
    return inner and is_whole(shape[:at], view.strides[:at])


def final_strides(shape: Shape, axes: Shape) -> Shape:
    """How far each axis of `shape` moves the result of reducing over `axes`."""
    kept = [n for i, n in enumerate(shape) if i not in axes]
    strides = iter(row_major(kept))
    return tuple(0 if i in axes else next(strides) for i in range(len(shape)))


def used_outside(groups: Sequence[Group], outputs: Sequence[Value]) -> set[Value]:
    """The values that must be in memory: results, and what one group takes from another."""
    found = {view_of(v).base for v in outputs}
    for group in groups:
        if group.opaque is not None:
            found |= {view_of(a).base for a in group.opaque.args}
        for m in group.members.values():
            found |= {r.value for r in m.refs if isinstance(r, Load)}
    return found

"""Values gathered into groups, each to become one kernel over one space of elements.

A group walks `size` elements in order. Its members are elementwise values of all elements ("full"),
reductions along rows of the last `row` elements ("reduce") and elementwise values of rows ("row"),
which full members may use again: a softmax is one group. Reductions of any other shape ("final")
may end a group but are not used inside it. What no group can hold (matrix products, gathers) is a
group of its own.

Values join greedily, in order. A value may join a group if everything it takes from the group lies
where the walk is at that moment, and if nothing it takes from outside waits for the group. A long
group ends where the program begins to repeat itself, as an unrolled loop does: groups that begin
alike become the same code, which is compiled once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

from everygrad.compile.dependencies import Dependencies
from everygrad.compile.facts import ValueCheck
from everygrad.compile.ir import LEAVES, Graph, Value, in_order, reachable
from everygrad.compile.recompute import Recompute
from everygrad.compile.thresholds import edge
from everygrad.compile.views import View, expand, is_whole, view_of
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major

# members of one group; by weight, where a backend says what its values text_weight
MOST_MEMBERS = edge(__name__, "MOST_MEMBERS", 96, "count")
# of that, from which on a group ends where the program begins to repeat itself
PERIOD = edge(__name__, "PERIOD", 32, "count")
ALIKE = 8  # values in a row that must be made alike for that
# elements so few that a single row needs no second thread
FEW = edge(__name__, "FEW", 1 << 15, "elements")
SIBLINGS = 8  # groups that one more is compared with
MOST_SIBLINGS = 32  # members of groups that are one for no other reason than to be few
# rows from which walking them one by one keeps every thread busy
ROWS = edge(__name__, "ROWS", 16, "size")


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
    """Members by value, in order. `opaque` groups hold one kernel and have no walk."""

    def __init__(self, number: int, size: int = 0) -> None:
        self.number = number
        self.size = size
        self.row: int | None = None
        self.cuts: frozenset[int] = frozenset()
        self.members: dict[Value, Member] = {}
        self.weight = 0
        self.loads: set[Value] = set()  # what the members read from outside
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


def _making(v: Value) -> tuple[Any, ...]:
    """How a value is made, in words that an unrolled loop repeats: arguments near it count by how
    far back they are, those that are far by their op alone. These are a loop's constants, or what
    the forward pass left for its backward pass: each turn is farther away from them."""
    made = (a for a in v.args if view_of(a).base.args)
    back = ((v.number - a.number, a.op) for a in made)
    return (v.op, *(n if n <= MOST_MEMBERS else op for n, op in back))


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


class Fuser:
    """Forms the groups of one graph. `fusable` says which values the backend has loops for."""

    def __init__(
        self,
        graph: Graph,
        fusable: Callable[[Value], bool],
        most_loads: int = 1 << 30,
        siblings: int | None = None,
        recompute: bool = False,
        text_weight: Callable[[Value], int] = lambda v: 1,
    ) -> None:
        self.graph = graph
        self.fusable = fusable
        self.most_loads = most_loads
        self.siblings = siblings
        self.recompute = recompute
        self.text_weight = text_weight
        self.groups: list[Group] = []
        self.of: dict[Value, Group] = {}
        self.dependencies = Dependencies()
        self.lately: deque[Any] = deque(maxlen=ALIKE)  # how the latest values were made

    def run(self) -> list[Group]:
        for v in in_order(reachable(self.graph.outputs)):
            if v.kind in LEAVES or (v.kind == "movement" and view_of(v).base is not v):
                continue
            self.lately.append(_making(v))
            if v.facts.joins_groups and v.size and self.fusable(v):
                self.place(v)
            else:
                self.alone(v)
        if self.siblings is not None:
            self.join_siblings(self.siblings)
        if self.recompute:
            Recompute(self, used_outside(self.groups, self.graph.outputs), Load, Member).run()
        return self.ordered()

    def new(self, size: int = 0) -> Group:
        group = Group(self.dependencies.new(), size)
        self.groups.append(group)
        return group

    def alone(self, v: Value) -> None:
        group = self.new()
        group.opaque = v
        self.of[v] = group
        self.wait_for(group, [view_of(a).base for a in v.args])

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
        return base if _aligned(view, member, group, role) else None

    def member(self, v: Value, group: Group) -> Member | None:
        """v as a member of the group, or None."""
        x = v.args[0]
        shape = x.shape if v.kind == "reduction" else v.shape
        size = size_of(shape)
        level = "full" if size == group.size else "row"
        scale = 1 if level == "full" else group.row or 0
        if size * scale != group.size:
            return None
        if not is_chain(group.cuts | cuts_of(shape, scale)):
            return None
        role = level
        if v.kind == "reduction":
            role = "final"
            axes = v.params["axes"]
            row = size_of(tuple(shape[a] for a in axes))
            if level == "full" and trailing(shape, axes) and group.row in (None, row):
                rows = size // row
                if rows >= ROWS or size <= FEW:
                    role = "reduce"
        refs = self.refs(v, shape, group, level)
        if any(r is None for r in refs):
            return None
        return Member(v, role, shape, tuple(refs), level)

    def refs(self, v: Value, shape: Shape, group: Group, level: str) -> list[Ref | None]:
        if not v.facts.indexed_load:
            return [self.ref(a, shape, group, level) for a in v.args]
        (x, index), axis = v.args, v.params["axis"]
        table, places = view_of(x), view_of(index)
        if table.base in group.members:
            return [None]
        before, after = table.strides[:axis], table.strides[axis + 1 :]
        strides = (*before, *(0,) * len(index.shape), *after)
        load = Load(table.base, shape, strides, table.offset, table.strides[axis])
        steps = (*(0,) * len(before), *places.strides, *(0,) * len(after))
        return [load, self.seen(View(places.base, shape, steps, places.offset), group, level)]

    # --- joining -----------------------------------------------------------------------------

    def place(self, v: Value) -> None:
        candidates = self.candidates(v)
        for group in candidates:
            if group.weight >= PERIOD and group.start == tuple(self.lately):
                group.closed = True
        for group in candidates:
            if not group.closed and self.join(v, group):
                for other in candidates:
                    if other is not group and other.number < len(self.groups):
                        self.merge(group, other)
                return
        shape = v.args[0].shape if v.kind == "reduction" else v.shape
        group = self.new(size_of(shape))
        group.start = tuple(self.lately)
        if not self.join(v, group):
            raise AssertionError(f"a new group refused {v}")

    def candidates(self, v: Value) -> list[Group]:
        found: dict[int, Group] = {}
        for a in v.args:
            group = self.of.get(view_of(a).base)
            if group is not None and group.opaque is None:
                found[group.number] = group
        return [found[n] for n in sorted(found, reverse=True)]

    def join(self, v: Value, group: Group) -> bool:
        if group.members and group.weight + self.text_weight(v) > MOST_MEMBERS:
            return False
        member = self.member(v, group)
        if member is None:
            return False
        outside = [r.value for r in member.refs if isinstance(r, Load)]
        if not self.clear(group, outside):
            return False
        if group.members and self.too_many(group.loads, outside):
            return False
        self.enter(member, group)
        self.wait_for(group, outside)
        return True

    def too_many(self, *loads: Iterable[Value]) -> bool:
        """Whether these are more values than one kernel may read."""
        return self.most_loads < 1 << 30 and len(set().union(*loads)) > self.most_loads

    def fits(self, members: Iterable[Member], group: Group) -> bool:
        """Whether more members of all elements can be computed on a group's walk."""
        more = list(members)
        cuts = group.cuts.union(*(cuts_of(m.shape) for m in more))
        weight = group.weight + sum(self.text_weight(m.value) for m in more)
        if weight > MOST_MEMBERS or not is_chain(cuts):
            return False
        return not self.too_many(group.loads, *map(_loads, more))

    def enter(self, member: Member, group: Group) -> None:
        v = member.value
        group.members[v] = member
        group.weight += self.text_weight(v)
        group.loads |= _loads(member)
        self.of[v] = group
        scale = 1 if member.level == "full" else group.row or 1
        group.cuts |= cuts_of(member.shape, scale)
        if member.role == "reduce":
            group.row = size_of(member.shape) // v.size
            group.cuts |= {group.row}

    def merge(self, group: Group, other: Group) -> bool:
        """Take the other group's members in, if the two can be one walk."""
        if not self.mergeable(group, other):
            return False
        both = Group(group.number, group.size)
        both.row = group.row or other.row
        both.cuts = group.cuts | other.cuts
        members = sorted(
            [*group.members.values(), *other.members.values()], key=lambda m: m.value.number
        )
        for m in members:
            refs = tuple(self.joined(r, m, both) for r in m.refs)
            if any(r is None for r in refs):
                return False
            made = both.members[m.value] = m._replace(refs=refs)
            both.loads |= _loads(made)
        group.members, group.row, group.cuts = both.members, both.row, both.cuts
        group.loads = both.loads
        group.weight += other.weight
        for v in other.members:
            self.of[v] = group
        other.members, other.loads = {}, set()
        self.dependencies.merge(group.number, other.number)
        return True

    def join_siblings(self, small: int) -> None:
        """Make groups one that have nothing to do with each other but are of one size, where they
        read the same, or are so small that starting a kernel is what they cost."""
        latest: dict[int, list[Group]] = {}  # by size; older ones are not looked at again
        for group in self.groups:
            if not group.members:
                continue
            others = latest.setdefault(group.size, [])
            for other in others:
                if _are_siblings(other, group, small) and self.merge(other, group):
                    break
            else:
                others[:] = [group, *others[: SIBLINGS - 1]]

    def joined(self, ref: Ref, member: Member, both: Group) -> Ref | None:
        """A reference as it is once two groups are one."""
        if isinstance(ref, Load) and ref.value in both.members:
            if ref.step is not None:  # an index may ask for what the walk has not reached
                return None
            view = View(ref.value, ref.shape, ref.strides, ref.offset)
            found = both.members[ref.value]
            return ref.value if _aligned(view, found, both, member.level) else None
        return ref

    def mergeable(self, group: Group, other: Group) -> bool:
        if not other.members or group.size != other.size or group.closed or other.closed:
            return False
        if group.row and other.row and group.row != other.row:
            return False
        if group.weight + other.weight > MOST_MEMBERS:
            return False
        if not is_chain(group.cuts | other.cuts):
            return False
        if self.too_many(group.loads, other.loads):
            return False
        between = self.dependencies.any_between
        return not between(group.number, other.number) and not between(other.number, group.number)

    # --- the end -----------------------------------------------------------------------------

    def ordered(self) -> list[Group]:
        """The groups that hold something, each after those it waits for, else as written."""
        left = [g for g in self.groups if g.values]
        early = self.wanted_early()
        waiting: dict[int, int] = {}  # how many groups each still waits for
        keys: dict[int, tuple[bool, int, int, int]] = {}
        for g in left:
            numbers = [v.number for v in g.values]
            keys[g.number] = (g.number not in early, max(numbers), min(numbers), g.number)
            g.before = self.dependencies.before[g.number]
            waiting[g.number] = len(g.before)
        ready = [keys[n] for n, count in waiting.items() if not count]
        heapify(ready)
        order = []
        while ready:
            *_, number = heappop(ready)
            order.append(self.groups[number])
            for n in self.dependencies.after[number]:
                waiting[n] -= 1
                if not waiting[n]:
                    heappush(ready, keys[n])
        assert len(order) == len(left), "groups wait for each other"
        return order

    def wanted_early(self) -> set[int]:
        """Checks of indices, and what they wait for: nothing may be changed before one raises."""
        opaque = ((g.number, g.opaque) for g in self.groups if g.opaque is not None)
        todo = [n for n, v in opaque if v.facts.value_check is ValueCheck.RANGE]
        found = set(todo)
        for n in todo:
            fresh = self.dependencies.before[n] - found
            found |= fresh
            todo += fresh
        return found


def _are_siblings(a: Group, b: Group, small: int) -> bool:
    """Whether one kernel is better than two, if it can be."""
    if _read_whole(a) & _read_whole(b):
        return True
    members = [*a.members.values(), *b.members.values()]
    plain = all(m.role == "full" for m in members)
    return plain and a.size <= small and len(members) <= MOST_SIBLINGS


def _loads(member: Member) -> set[Value]:
    return {r.value for r in member.refs if isinstance(r, Load)}


def _read_whole(group: Group) -> set[Value]:
    """The values that a group reads once for each of its elements."""
    return {v for v in group.loads if v.size == group.size}


def _aligned(view: View, member: Member, group: Group, level: str) -> bool:
    """Whether the walk has the member's element at hand where the view asks for it."""
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


def fuse(
    graph: Graph,
    fusable: Callable[[Value], bool],
    most_loads: int = 1 << 30,
    siblings: int | None = None,
    recompute: bool = False,
    text_weight: Callable[[Value], int] = lambda v: 1,
) -> list[Group]:
    """The graph's values in groups, in an order to run them. A group reads at most so many values.
    `siblings`: if given, groups that share no more than what they read may be one, and those of at
    most so many elements even if they share nothing. `recompute`: values may be computed again
    rather than be kept; arguments of kernels may then be changed to recomputed copies.
    `text_weight`: how much of a kernel's text a value takes, where most take 1."""
    return Fuser(graph, fusable, most_loads, siblings, recompute, text_weight).run()


def used_outside(groups: Sequence[Group], outputs: Sequence[Value]) -> set[Value]:
    """The values that must be in memory: results, and what one group takes from another."""
    found = {view_of(v).base for v in outputs}
    for group in groups:
        if group.opaque is not None:
            found |= {view_of(a).base for a in group.opaque.args}
        for m in group.members.values():
            found |= {r.value for r in m.refs if isinstance(r, Load)}
    return found

"""Values gathered into groups, each to become one kernel over one space of elements.

A group is a loop over `size` elements in order. Its members are elementwise values of all elements
("full"), reductions along rows of the last `row` elements ("reduce") and elementwise values of rows
("row"), which full members may use again: a softmax is one group. Reductions of any other shape
("final") may end a group but are not used inside it. What no group can hold (matrix products,
gathers) is a group of its own.

Values join greedily, in order. A value may join a group if everything it takes from the group lies
where the loop is at that moment, and if nothing it takes from outside waits for the group. A long
group ends where the program begins to repeat itself, as an unrolled loop does: groups that begin
alike become the same code, which is compiled once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from everygrad.compiler.facts import ValueCheck
from everygrad.compiler.groups import (
    MOST_MEMBERS,
    Group,
    Grouping,
    Load,
    Member,
    Ref,
    cuts_of,
    is_aligned,
    is_chain,
    loads_of,
    trailing,
    used_outside,
)
from everygrad.compiler.ir import LEAVES, Graph, Value, in_order, reachable
from everygrad.compiler.recompute import Recompute
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import View, view_of
from everygrad.core.shapes import Shape, size_of

# members from which on a group ends where the program begins to repeat itself
PERIOD = edge(__name__, "PERIOD", 32, "count")
ALIKE = 8  # values in a row that must be made alike for that
# elements so few that a single row needs no second thread
FEW = edge(__name__, "FEW", 1 << 15, "elements")
SIBLINGS = 8  # groups that one more is compared with
MOST_SIBLINGS = 32  # members of groups that are one for no other reason than to be few
# rows from which a loop over them keeps every thread busy
ROWS = edge(__name__, "ROWS", 16, "size")
AFTER_OTHERS = 1  # the priority of waits for collectives
LAST = 2  # and of what is wanted behind them


def _making(v: Value) -> tuple[Any, ...]:
    """How a value is made, in words that an unrolled loop repeats: arguments near it count by how
    far back they are, those that are far by their op alone. These are a loop's constants, or what
    the forward pass left for its backward pass: each turn is farther away from them."""
    made = (a for a in v.args if view_of(a).base.args)
    back = ((v.number - a.number, a.op) for a in made)
    return (v.op, *(n if n <= MOST_MEMBERS else op for n, op in back))


def are_few(rows: int, row: int) -> bool:
    """Whether these rows of so many elements are too few to be reduced each by one thread."""
    return rows < ROWS and rows * row > FEW


class _Key(NamedTuple):
    """Which of the groups that could run next does: the one with the smallest key."""

    late: bool
    priority: int
    last: int
    first: int
    number: int


class Fuser(Grouping):
    """Forms the groups of one graph. `fusable` says which values the backend has loops for."""

    def __init__(
        self,
        graph: Graph,
        fusable: Callable[[Value], bool],
        most_loads: int = 1 << 30,
        siblings: int | None = None,
        recompute: bool = False,
        text_weight: Callable[[Value], int] = lambda v: 1,
        is_split: Callable[[int, int], bool] = are_few,
        last: Collection[Value] = (),
    ) -> None:
        super().__init__(graph, most_loads, text_weight)
        self.last = frozenset(last)
        self.is_split = is_split
        self.fusable = fusable
        self.siblings = siblings
        self.recompute = recompute
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
            Recompute(self, used_outside(self.groups, self.graph.outputs)).run()
        return self.ordered()

    def alone(self, v: Value) -> None:
        group = self.new()
        group.opaque = v
        self.of[v] = group
        self.wait_for(group, [view_of(a).base for a in v.args])

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
                if not self.is_split(rows, row):
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

    def merge(self, group: Group, other: Group) -> bool:
        """Take the other group's members in, if the two can be one loop nest."""
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
            both.loads |= loads_of(made)
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
            if ref.step is not None:  # an index may ask for what the loop has not reached
                return None
            view = View(ref.value, ref.shape, ref.strides, ref.offset)
            found = both.members[ref.value]
            return ref.value if is_aligned(view, found, both, member.level) else None
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
        self.delay_fetches()
        left = [g for g in self.groups if g.values]
        early, last = self.wanted_early(), self.wanted_last()
        waiting: dict[int, int] = {}  # how many groups each still waits for
        keys: dict[int, _Key] = {}
        for g in left:
            numbers = [v.number for v in g.values]
            priority = 0 if g.opaque is None else g.opaque.facts.priority
            if g.number in last:
                priority = LAST
            late = g.number not in early
            keys[g.number] = _Key(late, priority, max(numbers), min(numbers), g.number)
            g.before = self.dependencies.before[g.number]
            waiting[g.number] = len(g.before)
        ready = [keys[n] for n, count in waiting.items() if not count]
        heapify(ready)
        order: dict[int, Group] = {}
        while ready:
            *_, number = heappop(ready)
            if number in order:  # it was called for, and came earlier
                continue
            order[number] = self.groups[number]
            for n in self.dependencies.after[number]:
                waiting[n] -= 1
                if not waiting[n]:
                    heappush(ready, keys[n])
                elif waiting[n] <= 2 and keys[n][1] < 0:
                    for called in self.called_for(n, order, keys):
                        keys[called] = keys[n]._replace(number=called)
                        if not waiting[called]:
                            heappush(ready, keys[called])
        assert len(order) == len(left), "groups wait for each other"
        return list(order.values())

    def delay_fetches(self) -> None:
        """What rearranges the argument of a fetch alone waits for what the fetch waits for."""
        for group in self.groups:
            v = group.opaque
            if v is not None and v.facts.patient:
                source, *others = (self.of.get(view_of(a).base) for a in v.args)
                if source is not None and self.dependencies.after[source.number] == {group.number}:
                    before = (g.number for g in others if g is not None)
                    self.dependencies.add(source.number, before)

    def called_for(self, start: int, done: Collection[int], keys: dict[int, _Key]) -> list[int]:
        """The waits that a start still waits for, if there is nothing else: they come next, so that
        what is under way is never more than may be."""
        opaque = self.groups[start].opaque
        if opaque is None or opaque.facts.patient:
            return []
        before = self.dependencies.before
        found = [n for n in before[start] if n not in done]
        for n in found:  # grows: waits wait for those before them
            if keys[n].priority != AFTER_OTHERS:
                return []
            found += [m for m in before[n] if m not in done and m not in found]
        return found

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

    def wanted_last(self) -> set[int]:
        """The groups that make what is wanted last and nothing that anyone else waits for."""
        if not self.last:
            return set()
        after = self.dependencies.after
        found: set[int] = set()
        left = {g.number for g in self.groups if not self.last.isdisjoint(g.values)}
        while fresh := {n for n in left if after[n] <= found}:
            found |= fresh
            left -= fresh
        return found


def _are_siblings(a: Group, b: Group, small: int) -> bool:
    """Whether one kernel is better than two, if it can be."""
    if _read_whole(a) & _read_whole(b):
        return True
    members = [*a.members.values(), *b.members.values()]
    plain = all(m.role == "full" for m in members)
    return plain and a.size <= small and len(members) <= MOST_SIBLINGS


def _read_whole(group: Group) -> set[Value]:
    """The values that a group reads once for each of its elements."""
    return {v for v in group.loads if v.size == group.size}


def fuse(
    graph: Graph,
    fusable: Callable[[Value], bool],
    most_loads: int = 1 << 30,
    siblings: int | None = None,
    recompute: bool = False,
    text_weight: Callable[[Value], int] = lambda v: 1,
    is_split: Callable[[int, int], bool] = are_few,
    last: Collection[Value] = (),
) -> list[Group]:
    """The graph's values in groups, in an order to run them. A group reads at most so many values.
    `siblings`: if given, groups that share no more than what they read may be one, and those of at
    most so many elements even if they share nothing. `recompute`: values may be computed again
    rather than be kept; arguments of kernels may then be changed to recomputed copies.
    `text_weight`: how much of a kernel's text a value takes, where most take 1. `is_split`: whether
    so many rows of so many elements are not reduced within a group, but by partial sums of them.
    `last`: values to be computed behind all others, where nothing waits for them."""
    more = (recompute, text_weight, is_split, last)
    return Fuser(graph, fusable, most_loads, siblings, *more).run()

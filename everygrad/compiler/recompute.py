"""Values computed again where they are used, in place of being kept.

`cheap` takes a value out of memory altogether: its readers compute it from what lies in memory
anyway, reading no more than they did. `late` is about values that kernels such as matrix products
read, one soon and another much later: the later one gets a copy, recomputed by a group that has at
hand what it is made of. It costs the copy's being written; the value's memory is free meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad.compiler.groups import Group, Grouping, Load, Member, Ref
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import is_whole, view_of
from everygrad.core.shapes import size_of

LARGE = edge(__name__, "LARGE", 1 << 20, "bytes")  # bytes of a value that is worth it
LARGE_LATE = edge(__name__, "LARGE_LATE", 1 << 22, "bytes")  # the same of one that is written twice
FAR = 16  # groups between two readers that are far apart
# elements that stand behind one of a small value, at least
_MIN_BROADCAST_RATIO = edge(__name__, "_MIN_BROADCAST_RATIO", 16, "size")
_LONGEST = 8  # values that are computed again for one
_CHEAP = ("cheap",)  # what records must say of the ops on the way
_LATE = ("cheap", "late")


class RematPlan(NamedTuple):
    """A group with recomputed copies of some values in it."""

    group: Group
    remats: dict[Value, Value]
    members: dict[Value, Member]
    bases: list[Value]  # what the copies read


class Recompute:
    """Works on groups before they are put in order. `stored`: the values that are in memory."""

    def __init__(self, grouping: Grouping, stored: set[Value]) -> None:
        self.grouping = grouping
        self.stored = stored
        self.remats: dict[int, dict[Value, Value]] = {}  # by the number of a group
        self.originals: dict[Value, Value] = {}  # by copy: what it was copied from
        self.readers: dict[Value, list[Group]] = {}
        self.kernels: dict[Value, list[Value]] = {}  # that read a value whole
        for group in grouping.groups:
            if group.opaque is not None:
                for base in {view_of(a).base for a in group.opaque.args}:
                    self.kernels.setdefault(base, []).append(group.opaque)
            for base in {r.value for m in group.members.values() for r in self.loads(m)}:
                self.readers.setdefault(base, []).append(group)
        self.outputs = {view_of(v).base for v in grouping.graph.outputs}
        self.pinned = {*self.kernels, *self.outputs}

    def loads(self, m: Member) -> list[Load]:
        return [r for r in m.refs if isinstance(r, Load)]

    def run(self) -> None:
        for group in self.grouping.groups:
            for v in [v for v in group.members if v in self.stored]:
                if v.nbytes >= LARGE and v not in self.pinned:
                    self.cheap(v, group)
        for group in self.grouping.groups:
            for v in [v for v in group.members if v in self.kernels]:
                if v.nbytes >= LARGE_LATE and v not in self.outputs:
                    self.late(v, group)

    # --- what a value is made of -----------------------------------------------------------------

    def chain(self, v: Value, group: Group, allowed: tuple[str, ...]) -> list[Value] | None:
        """The members that v is computed from again, itself last; None where that is too much."""
        todo, found = [v], {v}
        for w in todo:
            m = group.members[w]
            if m.role != "full" or w.kind != "elementwise" or w.op.recompute not in allowed:
                return None
            for r in m.refs:
                if not isinstance(r, Value) or r in found:
                    continue
                small = group.members[r].role != "full" and r.size * _MIN_BROADCAST_RATIO <= v.size
                if small or (r in self.stored and r is not v):
                    continue
                found.add(r)
                todo.append(r)
        return [w for w in group.members if w in found] if len(found) <= _LONGEST else None

    def planned(self, chain: Sequence[Value], group: Group) -> RematPlan | None:
        """Copies of a chain as members of a group; None where they do not fit into its loops."""
        remats = dict(self.remats.get(group.number, {}))
        members: dict[Value, Member] = {}
        bases: list[Value] = []
        for w in chain:
            original = self.originals.get(w, w)  # which other values name as their argument
            if original in remats:
                continue
            refs: list[Ref] = []
            for a in w.args:
                base = view_of(a).base
                ref = remats.get(base) or self.grouping.ref(a, w.shape, group, "full")
                refs.append(ref)
                if isinstance(ref, Load):
                    bases.append(base)
            if any(r is None for r in refs) or w.size != group.size:
                return None
            remat = w.copy_of(*w.args)
            remats[original] = remat
            members[remat] = Member(remat, "full", w.shape, tuple(refs))
        fits = self.grouping.fits(members.values(), group) and self.grouping.clear(group, bases)
        return RematPlan(group, remats, members, bases) if fits else None

    def read_whole(self, group: Group) -> set[Value]:
        """What a group reads of its own size."""
        loads = [r for m in group.members.values() for r in self.loads(m)]
        return {r.value for r in loads if r.value.size == group.size}

    def enter(self, plan: RematPlan) -> None:
        """Make the copies members, before all others."""
        group = plan.group
        self.remats[group.number] = plan.remats
        self.originals |= {copy: original for original, copy in plan.remats.items()}
        old = [v for v in group.members if v not in plan.remats.values()]
        remats = {t: group.members[t] for t in plan.remats.values() if t in group.members}
        others = {v: group.members[v] for v in old}
        group.members = {**remats, **plan.members, **others}
        for m in plan.members.values():
            self.grouping.enter(m, group)
            for r in self.loads(m):
                known = self.readers.setdefault(r.value, [])
                known += [] if group in known else [group]
        self.grouping.wait_for(group, plan.bases)
        self.stored |= {*plan.bases}
        self.pinned |= {*plan.bases}

    # --- out of memory ---------------------------------------------------------------------------

    def cheap(self, v: Value, group: Group) -> None:
        chain = self.chain(v, group, _CHEAP)
        if chain is None:
            return
        plans = []
        for reader in self.readers.get(v, []):
            plan = self.planned(chain, reader) if self.is_read_in_step(v, reader) else None
            if plan is None:
                return
            plans.append(plan)
        more = max((self.more(v, plan) for plan in plans), default=0)
        # v is written once and mostly read twice: half as much again at each place is not more
        if more > v.nbytes and (more > v.nbytes * 3 // 2 or not self.is_smaller(v, plans)):
            return
        for plan in plans:
            self.enter(plan)
            remat = plan.remats[self.originals.get(v, v)]
            for w, m in plan.group.members.items():
                refs = tuple(remat if self.is_load_of(r, v) else r for r in m.refs)
                plan.group.members[w] = m._replace(refs=refs)
            plan.group.loads.discard(v)
        if plans:
            self.stored.discard(v)
            self.readers[v] = []

    def is_load_of(self, ref: Ref, v: Value) -> bool:
        return isinstance(ref, Load) and ref.value is v

    def is_read_in_step(self, v: Value, reader: Group) -> bool:
        """Whether every load of v wants the element that the loop is at."""
        members = [(m, r) for m in reader.members.values() for r in m.refs if self.is_load_of(r, v)]
        return all(
            m.level == "full"
            and r.step is None
            and size_of(r.shape) == v.size == reader.size
            and is_whole(r.shape, r.strides, r.offset)
            for m, r in members
        )

    def more(self, v: Value, plan: RematPlan) -> int:
        """Bytes that the group reads for a copy of v, of what it did not read before."""
        before = self.read_whole(plan.group)
        found = {b for b in self.large_bases(v, plan) if b not in before}
        return sum(b.nbytes for b in found)

    def large_bases(self, v: Value, plan: RematPlan) -> set[Value]:
        return {b for b in plan.bases if b.size * _MIN_BROADCAST_RATIO > v.size}

    def is_smaller(self, v: Value, plans: Sequence[RematPlan]) -> bool:
        """Whether what has to be kept for longer, to make copies of v, is smaller than v."""
        last = max(plan.group.number for plan in plans)
        bases = {b for plan in plans for b in self.large_bases(v, plan)}
        return sum(b.nbytes for b in bases if self.last_reader(b) < last) < v.nbytes

    def last_reader(self, v: Value) -> int:
        """The number of the last group that reads a value."""
        places = [self.place(user) for user in self.kernels.get(v, [])]
        return max([*places, *(g.number for g in self.readers.get(v, []))], default=-1)

    # --- a copy for later ------------------------------------------------------------------------

    def late(self, v: Value, group: Group) -> None:
        users = sorted(self.kernels[v], key=lambda u: u.number)
        near = [u for u in users if self.place(u) - self.place(v) <= FAR]
        far = [u for u in users if u not in near]
        chain = self.chain(v, group, _LATE) if near and far else None
        if chain is None or self.readers.get(v):
            return
        for reader in self.makers(v, chain, group):
            plan = self.planned(chain, reader)
            behind = [self.grouping.of[u] for u in far]
            if plan is None or not self.has_at_hand(v, plan):
                continue
            if any(self.grouping.waits(reader, g) or g is reader for g in behind):
                continue
            self.enter(plan)
            remat = plan.remats[self.originals.get(v, v)]
            self.stored.add(remat)
            for u in far:
                u.args = tuple(_moved(a, v, remat) for a in u.args)
                self.grouping.wait_for(self.grouping.of[u], [remat])
            return

    def place(self, v: Value) -> int:
        return self.grouping.of[v].number

    def makers(self, v: Value, chain: Sequence[Value], group: Group) -> list[Group]:
        """Much later groups that read what the chain begins with, the last one first. What
        begins with an input alone, such as a weight's cast, is not looked at: an input may be
        written over."""
        refs = [r for w in chain for r in group.members[w].refs]
        ends = [r.value if isinstance(r, Load) else r for r in refs if r not in chain]
        large = [e for e in ends if isinstance(e, Value) and e.size == v.size and e.kind != "input"]
        found = self.readers.get(large[0], []) if large else []
        later = [g for g in found if g.number - self.place(v) > FAR and g.size == v.size]
        return sorted(later, key=lambda g: -g.number)

    def has_at_hand(self, v: Value, plan: RematPlan) -> bool:
        before = self.read_whole(plan.group)
        return all(b in before or b.size * _MIN_BROADCAST_RATIO <= v.size for b in plan.bases)


def _moved(a: Value, old: Value, new: Value) -> Value:
    """The same moves of another value."""
    if a is old:
        return new
    if a.kind != "movement" or view_of(a).base is not old:
        return a
    return a.copy_of(_moved(a.args[0], old, new))

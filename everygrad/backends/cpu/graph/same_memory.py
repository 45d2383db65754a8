"""Which values of a graph lie in the memory of another value from the start.

What a rank gives to a sum lies where the sum will, and what that is made of element by element too:
a gradient is computed, weighted and summed in one place. Where the result of a collective is no
result of the graph, but what is made of it element by element is, it lies there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from everygrad.compiler.groups import Group, Load
from everygrad.compiler.ir import Value, in_order
from everygrad.compiler.views import is_whole, view_of


class SameMemory(NamedTuple):
    """`lies_in`: by value, the one in whose memory it lies; `owned`: starts of collectives whose
    argument lies where the result does."""

    lies_in: dict[Value, Value]
    owned: set[Value]


def reads_of(group: Group) -> set[Value]:
    """The values that a group reads from memory."""
    v = group.opaque
    if v is not None:
        return {view_of(a).base for a in v.args[: v.facts.looks_at]}
    refs = (r for m in group.members.values() for r in m.refs)
    return {r.value for r in refs if isinstance(r, Load)}


def read_elsewhere(group: Group) -> set[Value]:
    """The values of which a load reads another element than i when the loop is at element i of
    the group."""
    loads = (r for m in group.members.values() for r in m.refs if isinstance(r, Load))
    return {
        r.value
        for r in loads
        if r.value.size != group.size
        or r.step is not None
        or not is_whole(r.shape, r.strides, r.offset)
    }


def same_memory(
    groups: Sequence[Group],
    read_by: Mapping[Value, Sequence[Group]],
    results: Collection[Value],
    donated: Collection[Value],
) -> SameMemory:
    """`read_by`: the groups that read a value; `results`: the graph's, of which those that are
    `donated` may be written in the memory of an input, and not before all else is done."""
    made_by = {v: g for g in groups for v in g.members}
    lies_in: dict[Value, Value] = {}
    owned: set[Value] = set()

    def made_of(x: Value) -> Value | None:
        """What x is made of element by element, and nothing else is."""
        group = made_by.get(x)
        if group is None or group.row is not None or group.members[x].role != "full":
            return None
        out_of_step = read_elsewhere(group)
        for y in in_order(reads_of(group)):
            fits = y.args and y.nbytes == x.nbytes and y.dtype is x.dtype
            kept = y in out_of_step or y in results or y in lies_in
            if fits and not kept and read_by[y] == [group]:
                return y
        return None

    for v in (g.opaque for g in groups if g.opaque is not None):
        if v.facts.takes_over is None:
            continue
        start, view = v.args[0], view_of(v.args[v.facts.takes_over])
        x: Value | None = view.base
        whole = view.base.size == v.size and is_whole(*view[1:])
        readers = {g.opaque for g in read_by.get(view.base, ())}
        if view.base.args and whole and view.base not in results and readers == {start, v}:
            owned.add(start)
            while x is not None:
                lies_in[x] = v
                x = made_of(x)
    for out in in_order(results):
        y = None if out in donated else made_of(out)
        if y is not None and y.facts.communicates:
            lies_in[y] = out
    return SameMemory(lies_in, owned)

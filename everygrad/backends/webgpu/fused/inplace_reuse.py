"""In-place reuse: which results of a compiled function overwrite which of its inputs.

WebGPU refuses a kernel that binds one buffer for reading and for writing. So a kernel that computes
a new value of a tensor binds the tensor once, for writing, and reads it from there. It may do so if
each element is read and written by one thread only (`group_plan.may_overwrite`), and if no
command reads the old values later. Whether the caller can still see the old values is checked at
each call: if so, the kernel works on a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from everygrad.codegen.groups.group_sums import Pairs
from everygrad.compiler.groups import Group, Load
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.views import view_of


def candidates(graph: Graph, donated: Iterable[tuple[int, int]]) -> Pairs:
    """The (input, output) pairs that are possible, whatever the kernels are."""
    seen = Counter(view_of(v).base for v in graph.outputs)
    made: Pairs = {}
    results: set[Value] = set()
    for i, k in donated:
        x, v = graph.inputs[i], graph.outputs[k]
        alike = x.shape == v.shape and x.dtype is v.dtype and x.size
        sole_result = seen[v] == 1 and x not in seen and v not in results
        if alike and sole_result and v.kind == "elementwise":
            made[x] = v
            results.add(v)
    return made


def last_users(groups: Sequence[Group], links: Mapping[Group, Value]) -> dict[Value, Group]:
    """The group that uses a value last. A product with a link runs with that group."""
    runs_with = {v: group for group, v in links.items()}
    order = {group: n for n, group in enumerate(groups)}
    found: dict[Value, Group] = {}
    for group in groups:
        runs = group if group.opaque is None else runs_with.get(group.opaque, group)
        for v in read_by_group(group):
            if v not in found or order[found[v]] < order[runs]:
                found[v] = runs
    return found


def read_by(v: Value) -> set[Value]:
    """The values in memory that a value is computed from."""
    return {view_of(a).base for a in v.args}


def read_by_group(group: Group) -> set[Value]:
    """The values that a group reads from memory."""
    if group.opaque is not None:
        return read_by(group.opaque)
    return {r.value for m in group.members.values() for r in m.refs if isinstance(r, Load)}

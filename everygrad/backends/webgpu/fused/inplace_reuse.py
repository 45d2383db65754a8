"""In-place reuse: which results of a compiled function overwrite which of its inputs.

WebGPU refuses a kernel that binds one buffer for reading and for writing. So a kernel that computes
a new value of a tensor binds the tensor once, for writing, and reads it from there. It may do so if
each element is read and written by one thread only, and if no command reads the old values later.
Whether the caller can still see the old values is checked at each call: if so, the kernel works on
a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from everygrad.backends.webgpu.fused.row_kernel import RowKernelWriter
from everygrad.compiler.groups import Group, Load
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.views import is_whole, view_of

Pairs = dict[Value, Value]  # by input: the result that overwrites it


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


def assign(writers: Sequence[RowKernelWriter], pairs: Pairs, size: int) -> list[Pairs]:
    """For each kernel of a group of so many elements, in order: which pairs it writes in place."""
    made: list[Pairs] = [{} for _ in writers]
    for x, v in pairs.items():
        readers = [n for n, w in enumerate(writers) if x in w.values.inputs]
        if readers and x.size == size and _can_write_in_place(writers[readers[-1]], x, v):
            made[readers[-1]][x] = v
    return made


def _can_write_in_place(writer: RowKernelWriter, x: Value, v: Value) -> bool:
    """Whether the thread that computes an element of v is the only one that reads that element of
    x, and reads it before it stores."""
    if v not in writer.outputs() or v in writer.packed or writer.passes != 1:
        return False
    if writer.members[v].role != "full":
        return False
    loads = [r for r in writer.values.operands if r.value is x]
    in_step = all(r.step is None and is_whole(r.shape, r.strides, r.offset) for r in loads)
    item = writer.values.bindings()[writer.values.inputs.index(x)]
    return in_step and item == writer.item(v) and _reads(writer, v, x)


def _reads(writer: RowKernelWriter, v: Value, x: Value) -> bool:
    """Whether v is computed from x, so that x is read before v is stored."""
    todo, seen = [v], {v}
    for member in todo:
        for r in writer.members[member].refs:
            if isinstance(r, Load) and r.value is x:
                return True
            if isinstance(r, Value) and r not in seen:
                seen.add(r)
                todo.append(r)
    return False

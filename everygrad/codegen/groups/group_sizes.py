"""The sizes of a task by name, and its form: what the text of its kernel says besides.

Where sizes are open, they are arguments of the launch, and tasks of one form have one text. So
nothing but what is in the form may decide what is written. In the tests every kernel that is taken
for its form is written again and compared (`codegen.groups.kernel_texts`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from everygrad.codegen.groups.group_sums import stage_threads
from everygrad.codegen.groups.group_values import vector_operands
from everygrad.compiler.groups import Member, Number

if TYPE_CHECKING:
    from everygrad.codegen.groups.group import GroupWriter
    from everygrad.codegen.machine import Machine
    from everygrad.dtypes import DType


def sizes_of(writer: GroupWriter) -> dict[Hashable, int]:
    """All sizes that a kernel, or its second stage, may name."""
    made = writer.mapping.sizes(writer.machine.padded)
    for operand in (*writer.operands.values(), *writer.stores.values()):
        made |= operand.named_sizes()
    for parts in writer.partial_sums.values():
        made |= parts.sizes()
    for accumulator in writer.accumulators.values():
        made[accumulator.name] = accumulator.count
    return made


def form_of(writer: GroupWriter) -> Hashable:
    """Tasks of equal forms have one text, if sizes are open."""
    operands, vectors = writer.operands, vector_operands(writer.task, writer.operands)
    numbers: dict[Any, int] = {v: k for k, v in enumerate(writer.members)}
    numbers |= {r: o.number for r, o in operands.items()}
    members = tuple(_member(writer, m, numbers) for m in writer.members.values())
    wanted = tuple(numbers[v] for v in writer.task.wanted)
    buffers = {v: k for k, v in enumerate(writer.inputs())}
    loads = tuple((buffers.get(r.value), r in vectors, o.form()) for r, o in operands.items())
    loads += tuple((numbers[v], False, o.form()) for v, o in writer.stores.items())
    parts, machine = [*writer.partial_sums.values()], writer.machine
    threads = stage_threads(parts, machine)
    sums = tuple(p.form(machine, threads) for p in parts)
    return (writer.mapping.form(), members, wanted, loads, sums)


def _member(writer: GroupWriter, m: Member, numbers: dict[Any, int]) -> Hashable:
    """A member by its op, its role and where its arguments come from. Programs are told apart as
    objects, which ops keep: equal ones may differ in the signs of zeros."""
    v = m.value
    refs = [
        ("number", repr(r.value)) if isinstance(r, Number) else (type(r), numbers[r])
        for r in m.refs
    ]
    dtypes = (v.dtype, *(a.dtype for a in v.args))
    body: Hashable = ()
    if v.kind == "elementwise":
        body = id(v.op.program(dtypes[1:], v.params))
    elif v in writer.accumulators:
        count = writer.accumulators[v].count if v.op.mean and v.dtype.is_complex else 0
        is_direct = m.role == "final" and writer.is_direct(v)
        body = (writer.kind(v), is_direct, v.size > 1, count)
    elif v.op.indexed_load:
        body = v.args[0].shape[v.params["axis"]]
    return (v.op, body, m.role, m.level, v in writer.task.exact, dtypes, *refs)


def index_of(writers: Sequence[GroupWriter], scratch: dict[DType, int], machine: Machine) -> DType:
    """The dtype of a kernel's indices."""
    sizes = [v.size for w in writers for v in (*w.inputs(), *w.task.wanted)]
    sizes += [w.mapping.rows * w.mapping.length for w in writers]
    groups = sum(w.mapping.workgroups for w in writers)
    threads = max(w.mapping.threads for w in writers)
    return machine.index_for(*sizes, *scratch.values(), groups * threads)


def padded(size: int, machine: Machine) -> int:
    """The elements that may be read: a vector may reach beyond the last."""
    return -(-size // 4) * 4 if machine.padded else size

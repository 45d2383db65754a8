"""The second stage of a fused group's sums: the kernel that combines partial sums.

Several threads share an element's partial sums, so that none adds many.
"""

from __future__ import annotations

from collections.abc import Sequence

from everygrad.codegen.group import Accumulator, GroupKernel, PartialSums
from everygrad.codegen.group_threads import power_of_two
from everygrad.codegen.kernel import Buffer, Builder, logical_and
from everygrad.codegen.machine import Machine
from everygrad.codegen.passes import optimised
from everygrad.codegen.verify import verified_in_tests
from everygrad.compiler.expr import Expr, call
from everygrad.dtypes import DType


def _lanes(parts: PartialSums, machine: Machine) -> int:
    """How many threads share an element."""
    few = 4 if parts.value.size >= machine.threads else 1
    return max(1, min(machine.threads, power_of_two(parts.many) // few))


def _groups(parts: PartialSums, machine: Machine) -> int:
    return -(-parts.value.size * _lanes(parts, machine) // machine.threads)


def second_stage(
    sums: Sequence[PartialSums], scratch: dict[DType, int], machine: Machine, name: str
) -> GroupKernel:
    """One kernel for all these: each final has some of its groups."""
    groups = sum(_groups(p, machine) for p in sums)
    values = [p.value for p in sums]
    index = machine.index_for(*scratch.values(), *(v.size for v in values))
    b = Builder(f"finish {name}", index, groups, machine.threads)
    used = {p.dtype for p in sums}
    read = {d: b.buffer(f"sums_{d}", d, n) for d, n in scratch.items() if d in used}
    outputs = [b.buffer(f"o{n}", v.dtype, v.size, True) for n, v in enumerate(values)]
    first = 0
    for p, out in zip(sums, outputs, strict=True):
        last = first + _groups(p, machine)
        if len(sums) == 1:
            _one(p, b, b.group, read[p.dtype], out, machine)
        else:
            with b.when(logical_and(call("ge", b.group, first), call("lt", b.group, last))):
                _one(p, b, b.let(b.group - first), read[p.dtype], out, machine)
        first = last
    return GroupKernel(optimised(verified_in_tests(b.finish())), [*read], [*values], {})


def _one(
    p: PartialSums, b: Builder, group: Expr, source: Buffer, out: Buffer, machine: Machine
) -> None:
    acc, lanes = Accumulator(p.value), _lanes(p, machine)
    width = machine.threads // lanes
    x, y = b.let(b.thread % width), b.let(call("floordiv", b.thread, width))
    e = b.let(group * width + x)
    inside = call("lt", e, p.value.size)
    total = b.variable(acc.identity, acc.dtype)
    with b.when(inside), b.loop(y, p.many, lanes) as n:
        at = n * p.step
        if p.inner != p.many:
            at = call("floordiv", n, p.inner) * p.outer + call("mod", n, p.inner) * p.step
        b.assign(total, acc.joined([total, b.load(source, at + e * p.each + p.start)]))
    (found,) = b.reduce([(total, acc.combine)], lanes, width)
    mine = logical_and(call("eq", y, 0), inside) if lanes > 1 else inside
    b.store(out, e, acc.finalize(found), mine)

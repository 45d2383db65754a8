"""Sums of a fused group: how they accumulate, where their partial sums are, and the second stage,
which is the kernel that combines those. Several threads share an element's partial sums, so that
none adds many.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from everygrad import dtypes
from everygrad.codegen.groups.group_threads import power_of_two
from everygrad.codegen.groups.group_values import number
from everygrad.codegen.kernel import Buffer, Builder, Kernel, logical_and
from everygrad.codegen.machine import Machine
from everygrad.codegen.passes import optimised
from everygrad.codegen.verify import verified_in_tests
from everygrad.compiler.accumulate import identity
from everygrad.compiler.expr import Expr, call
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

# partial sums of an element from which groups have more threads for them
_MANY = edge(__name__, "_MANY", 64, "count")


class Accumulator:
    """How one reduction accumulates; `name` is that of the size by which a mean divides."""

    def __init__(self, v: Value, name: Hashable) -> None:
        self.value, self.name = v, name
        self.combine = v.op.combine
        self.source = v.args[0].dtype
        self.dtype = accumulator_dtype(self.source)
        self.identity = number(identity(self.combine, self.dtype), self.dtype)

    def joined(self, parts: Sequence[Expr]) -> Expr:
        """Several values combined into one, pairwise."""
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        return call(self.combine, self.joined(parts[:half]), self.joined(parts[half:]))

    def load(self, value: Expr) -> Expr:
        """An element in the accumulator's dtype."""
        return value if self.source is self.dtype else value.cast(self.dtype)

    @property
    def count(self) -> int:
        """The elements of which each result is made."""
        return self.value.args[0].size // self.value.size

    def finalize(self, value: Expr, b: Builder) -> Expr:
        """The result, from the complete accumulator."""
        v = self.value
        if self.combine == "add" and (self.dtype.is_float or self.dtype.is_complex):
            value = value + 0.0  # sums begin at 0.0: the sum of -0.0 is 0.0
        if v.op.mean:
            is_open = b.open_sizes and self.dtype.is_float  # a number divides complex ones faster
            count = b.size(self.count, self.name).cast(self.dtype) if is_open else float(self.count)
            value = value / count
        return value if v.dtype is self.dtype else value.cast(v.dtype)


def accumulator_dtype(dtype: DType) -> DType:
    """What elements are accumulated in: whole words, floats as float32 at least."""
    if dtype is dtypes.bool_:
        return dtypes.uint32
    if dtype.itemsize >= 4:
        return dtype
    if dtype.is_float:
        return dtypes.float32
    return dtypes.int32 if dtype.kind == "int" else dtypes.uint32


class PartialSums(NamedTuple):
    """Partial sums of a final in the scratch buffer of its accumulator's dtype: `many` for each of
    its elements. Number p of element e is at
    `start` + (p / inner) * outer + (p % inner) * step + e * each."""

    value: Value
    dtype: DType
    start: int
    many: int
    each: int
    step: int
    inner: int
    outer: int
    number: int = 0

    def form(self, machine: Machine, threads: int) -> tuple[Hashable, ...]:
        """What the text of the second stage, of groups of so many threads, says besides sizes."""
        return (self.dtype, self.inner != self.many, _lanes(self, machine, threads), threads)

    def sizes(self) -> dict[Hashable, int]:
        """Its sizes by name."""
        found = {
            "start": self.start, "many": self.many, "each": self.each, "step": self.step,
            "inner": self.inner, "outer": self.outer, "elements": self.value.size,
            "terms": self.value.args[0].size // self.value.size,
        }  # fmt: skip
        return {(name, self.number): value for name, value in found.items()}


Pairs = dict[Value, Value]  # by input: the output that overwrites it


class GroupKernel(NamedTuple):
    """A kernel with its arguments: those it reads, those it writes, each in order. A dtype stands
    for the partial sums of that dtype. `in_place`: inputs that are not among those it reads, since
    outputs overwrite them."""

    kernel: Kernel
    reads: list[Value | DType]
    writes: list[Value | DType]
    in_place: Pairs


def stage_threads(sums: Sequence[PartialSums], machine: Machine) -> int:
    """The threads of a group of the second stage: more than others have, where warps read
    neighbouring elements and each has many partial sums."""
    many = any(p.each == 1 and p.many > _MANY for p in sums)
    return max(machine.threads, machine.most_threads) if many and machine.warp > 1 else (
        machine.threads
    )  # fmt: skip


def _lanes(parts: PartialSums, machine: Machine, threads: int) -> int:
    """How many threads share an element."""
    size = parts.value.size
    few = 4 if size >= machine.threads else 1
    lanes = max(1, min(threads, power_of_two(parts.many) // few))
    if machine.warp > 1 and parts.each == 1:  # a warp reads neighbours
        lanes = min(lanes, threads // min(machine.warp, power_of_two(size)))
    return lanes


def _groups(parts: PartialSums, machine: Machine, threads: int) -> int:
    return -(-parts.value.size * _lanes(parts, machine, threads) // threads)


def stage_bounds(sums: Sequence[PartialSums], machine: Machine) -> dict[Hashable, int]:
    """The groups of the second stage that each of these has: the first, and the one behind."""
    made: dict[Hashable, int] = {}
    behind, threads = 0, stage_threads(sums, machine)
    for p in sums:
        made["first group", p.number] = behind
        behind = made["group behind", p.number] = behind + _groups(p, machine, threads)
    return made


def index_of_sums(
    sums: Sequence[PartialSums], scratch: dict[DType, int], machine: Machine
) -> DType:
    """The dtype of a second stage's indices, and of the numbers that means are divided by."""
    return machine.index_for(*scratch.values(), *(p.value.args[0].size for p in sums))


def second_stage(
    sums: Sequence[PartialSums], scratch: dict[DType, int], machine: Machine, name: str,
    open_sizes: bool = False,
) -> GroupKernel:  # fmt: skip
    """One kernel for all these: each final has some of its groups. A single one may have a text
    without sizes."""
    bounds = stage_bounds(sums, machine)
    groups, threads = max(bounds.values()), stage_threads(sums, machine)
    values = [p.value for p in sums]
    index = index_of_sums(sums, scratch, machine)
    b = Builder(f"finish {name}", index, groups, threads, open_sizes)
    used = {p.dtype for p in sums}
    read = {d: b.buffer(f"sums_{d}", d, n) for d, n in scratch.items() if d in used}
    outputs = [b.buffer(f"o{n}", v.dtype, v.size, True) for n, v in enumerate(values)]
    for p, out in zip(sums, outputs, strict=True):
        if len(sums) == 1:
            _one(p, b, b.group, read[p.dtype], out, machine)
            continue
        names = (("first group", p.number), ("group behind", p.number))
        first, behind = (b.size(bounds[name], name) for name in names)
        with b.when(logical_and(call("ge", b.group, first), call("lt", b.group, behind))):
            _one(p, b, b.let(b.group - first), read[p.dtype], out, machine)
    return GroupKernel(optimised(verified_in_tests(b.finish())), [*read], [*values], {})


def _one(
    p: PartialSums, b: Builder, group: Expr, source: Buffer, out: Buffer, machine: Machine
) -> None:
    acc = Accumulator(p.value, ("terms", p.number))
    lanes, sizes = _lanes(p, machine, b.threads), p.sizes()

    def size(name: str) -> Expr:
        return b.size(sizes[name, p.number], (name, p.number))

    width = b.threads // lanes
    x, y = b.let(b.thread % width), b.let(call("floordiv", b.thread, width))
    e = b.let(group * width + x)
    inside = call("lt", e, size("elements"))
    total = b.variable(acc.identity, acc.dtype)
    with b.when(inside), b.loop(y, size("many"), lanes) as n:
        at = n * size("step")
        if p.inner != p.many:
            outer = b.let(call("floordiv", n, size("inner"))) * size("outer")
            at = outer + b.let(call("mod", n, size("inner"))) * size("step")
        at = at + e * size("each") + size("start")
        b.assign(total, acc.joined([total, b.load(source, at)]))
    (found,) = b.reduce([(total, acc.combine)], lanes, width)
    mine = logical_and(call("eq", y, 0), inside) if lanes > 1 else inside
    b.store(out, e, acc.finalize(found, b), mine)

"""Kernels of fused groups as WGSL, within the limits of a device.

A group is lowered as on every GPU (`codegen.groups`). It becomes more kernels where one would
bind more buffers than the device allows; each then computes again what it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from everygrad.backends.webgpu.source.kernel_render import render
from everygrad.backends.webgpu.source.render import with_library
from everygrad.backends.webgpu.source.word_layout import byte_size
from everygrad.codegen.groups.group import GroupWriter, write_kernel
from everygrad.codegen.groups.group_plan import task_of
from everygrad.codegen.groups.group_sums import GroupKernel, Pairs, second_stage
from everygrad.codegen.machine import Machine
from everygrad.compiler.groups import Group, Load
from everygrad.compiler.ir import Value
from everygrad.compiler.schedule import by_loop_nest
from everygrad.dtypes import DType

_A_VALUE = 8  # lines of library functions that count as much as one plain value


class Scratch:
    """Memory that lives between two kernels of a group."""

    def __init__(self, dtype: DType, count: int) -> None:
        self.nbytes = byte_size(dtype, count)


Buffer = Value | Scratch


class FusedKernel(NamedTuple):
    """One dispatch of a group: its source, what it binds, its workgroups and its uniform.
    `in_place`: by input, the output that overwrites it; the input is not among those that are bound
    to be read."""

    name: str
    source: str
    inputs: list[Buffer]
    outputs: list[Buffer]
    workgroups: int
    params: list[int]
    in_place: Pairs


@cache
def _lines(name: str) -> int:
    """How many lines the library function of an intrinsic has, with all that it calls."""
    return len(with_library(f"{name}_f(").splitlines())


def text_weight(v: Value) -> int:
    """How much a value adds to a kernel's size: drivers inline functions wherever they are called,
    and their compile time grows with the square of the size."""
    if v.kind != "elementwise":
        return 1
    insts = v.op.program([a.dtype for a in v.args], v.params).insts
    return 1 + sum(_lines(inst.fn) // _A_VALUE for inst in insts)


class Fuser:
    """Writes the kernels of groups for a device that binds so many `buffers`; `windows` says how
    many bindings a buffer of so many bytes takes."""

    def __init__(self, buffers: int, machine: Machine, windows: Callable[[int], int]) -> None:
        self.buffers = buffers
        self.machine = machine
        self.windows = windows

    def writers(self, group: Group, stored: set[Value]) -> list[GroupWriter]:
        """The writers of a group's kernels, in the order they run."""
        wanted = [v for v in group.members if v in stored]
        made: list[GroupWriter] = []
        for part in by_loop_nest(group, wanted):
            while part:
                writer, count = self.largest(group, part)
                made.append(writer)
                part = part[count:]
        return made

    def largest(self, group: Group, part: list[Value]) -> tuple[GroupWriter, int]:
        """The kernel for as many of these values as can be bound, and how many that are."""
        count = self.at_most(group, part)
        while True:
            writer = GroupWriter(task_of(group, part[:count], self.machine), self.machine)
            if count == 1 or self.bound(writer) <= self.buffers:
                return writer, count
            count -= 1

    def at_most(self, group: Group, part: list[Value]) -> int:
        """How many of these values, from the first on, one kernel can have at most, by the buffers
        they are read from and written to. No kernel is written for it."""
        seen: set[Value] = set()
        bound: set[Value] = set()
        used = 0
        for count, wanted in enumerate(part):
            todo = [wanted]
            fresh = [] if group.members[wanted].role == "final" else [wanted]
            for v in todo:
                if v not in seen:
                    seen.add(v)
                    refs = group.members[v].refs
                    todo += [r for r in refs if isinstance(r, Value)]
                    fresh += [r.value for r in refs if isinstance(r, Load)]
            more = dict.fromkeys(v for v in fresh if v not in bound)
            used += sum(self.windows(byte_size(v.dtype, v.size)) for v in more)
            bound.update(more)
            if used > self.buffers:
                return max(1, count)
        return len(part)

    def is_narrow(self, writer: GroupWriter) -> bool:
        """Whether each buffer of a kernel is one binding."""
        values = [*writer.inputs(), *writer.outputs()]
        return all(self.windows(byte_size(v.dtype, v.size)) == 1 for v in values)

    def bound(self, writer: GroupWriter) -> int:
        """How many bindings a kernel takes."""
        values = [*writer.inputs(), *writer.outputs()]
        count = sum(self.windows(byte_size(v.dtype, v.size)) for v in values)
        return count + sum(self.windows(byte_size(d, n)) for d, n in writer.scratch.items())

    def kernels(self, parts: Sequence[tuple[GroupWriter, Pairs]]) -> list[FusedKernel]:
        """Independent tasks as one kernel, and the second stages of all their sums."""
        first = write_kernel(parts, self.machine)
        sizes: Counter[DType] = Counter()
        for writer, _ in parts:
            sizes.update(writer.scratch)
        scratch = {d: Scratch(d, n) for d, n in sizes.items()}
        made = [_rendered(first, scratch)]
        every = (p for writer, _ in parts for p in writer.partial_sums.values())
        sums = [p._replace(number=n) for n, p in enumerate(every)]
        most = max(1, self.buffers - len(scratch))
        for at in range(0, len(sums), most):
            stage = second_stage(sums[at : at + most], sizes, self.machine, first.kernel.name)
            made.append(_rendered(stage, scratch))
        return made


def _rendered(written: GroupKernel, scratch: dict[DType, Scratch]) -> FusedKernel:
    kernel = render(written.kernel, offsets=False)
    inputs, outputs = (
        [scratch[b] if isinstance(b, DType) else b for b in bound]
        for bound in (written.reads, written.writes)
    )
    params = kernel.params([])
    return FusedKernel(
        kernel.name, kernel.source, inputs, outputs, kernel.groups, params, written.in_place
    )

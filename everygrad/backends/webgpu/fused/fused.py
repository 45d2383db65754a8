"""The kernels of a fused group: which of its values each computes, and how threads are mapped.

One kernel computes everything where it can. A group becomes several kernels where one would bind
more buffers than the device allows, or where sums of different shapes need different loop nests;
each kernel then recomputes what it needs. A sum that no loop nest serves becomes a kernel of its
own (`group_sums.without_strays`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from everygrad.backends.group_sums import Kind, finals, is_by_rows, kind_of, needed, nest_of_members
from everygrad.backends.webgpu.fused import second_stage, thread_mapping
from everygrad.backends.webgpu.fused.inplace_reuse import Pairs
from everygrad.backends.webgpu.fused.row_kernel import PartialSums, RowKernelTask, RowKernelWriter
from everygrad.backends.webgpu.source.render import with_library
from everygrad.backends.webgpu.source.word_layout import byte_size
from everygrad.compiler.groups import Group, Load
from everygrad.compiler.ir import Value
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.core.shapes import Shape

_A_VALUE = 8  # lines of library functions that count as much as one plain value


class Scratch:
    """Memory that lives between two kernels of a group."""

    def __init__(self, words: int) -> None:
        self.nbytes = 4 * words


Buffer = Value | Scratch


class FusedKernel(NamedTuple):
    """One dispatch of a group: its source, what it binds, its workgroups. `in_place`: by input, the
    output that overwrites it; the input is not among those that are bound to be read."""

    name: str
    source: str
    inputs: list[Buffer]
    outputs: list[Buffer]
    workgroups: int
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


def _by_loop_nest(group: Group, wanted: Sequence[Value]) -> list[list[Value]]:
    """The wanted values by the loop nest that computes them: one along rows that are reduced, one
    for each other kind of sum; values that fit any loop nest go with the first of these."""
    along = Kind("", group.row or 0)
    loop_nests: dict[Kind, list[Value]] = {}
    anywhere: list[Value] = []
    for v in wanted:
        members = needed(group, [v])
        if is_by_rows(members):
            loop_nests.setdefault(along, []).append(v)
        elif members[v].role == "final" and kind_of(members[v]).length:
            loop_nests.setdefault(kind_of(members[v]), []).append(v)
        else:
            anywhere.append(v)
    if not loop_nests:
        return [anywhere]
    first = along if along in loop_nests else next(iter(loop_nests))
    loop_nests[first] += anywhere
    if first == along:  # sums of such rows use the same loop nest
        for kind in [k for k in loop_nests if k.length == group.row and k != along]:
            loop_nests[along] += loop_nests.pop(kind)
    return list(loop_nests.values())


def task_of(group: Group, wanted: list[Value], software: bool) -> RowKernelTask:
    """How these values are computed."""
    members = needed(group, wanted)
    kinds = {m.value: kind_of(m) for m in finals(members)}
    names = {v: k.name for v, k in kinds.items()}
    has = set(names.values())
    lengths = {k.length for k in kinds.values() if k.length}  # one at most: see _by_loop_nest
    if is_by_rows(members):
        row = group.row or 1
        size = group.size // row
        mapping = thread_mapping.by_rows(
            size, row, len(members), software, "total" in has, "columns" in has
        )
    elif lengths:
        (row,) = lengths
        choose = thread_mapping.split_rows if "rows" in has else thread_mapping.by_columns
        mapping = choose(group.size // row, row, software)
    else:
        row, mapping = 0, thread_mapping.flat(group.size, software, "total" in has)
    rows, columns, accesses = _load_layout(group, row)
    return RowKernelTask(members, wanted, mapping, (rows, columns), accesses, names)


def _load_layout(group: Group, row: int) -> tuple[Shape, Shape, dict[Load, StridedAccess]]:
    """The sizes of the axes of rows and of columns, and where loads are; row 0: all are columns."""
    found = nest_of_members(group, group.members, row)
    if row:
        return found.rows, found.columns, found.loads
    flat = {r: StridedAccess((), (*p.rows, *p.columns), p.offset) for r, p in found.loads.items()}
    return (), (*found.rows, *found.columns), flat


class Fuser:
    """Writes the kernels of groups for a device with these limits; `windows` says how many
    bindings a buffer of so many bytes takes."""

    def __init__(
        self, buffers: int, shared_bytes: int, software: bool, windows: Callable[[int], int]
    ) -> None:
        self.buffers = buffers
        self.shared_bytes = shared_bytes
        self.software = software
        self.windows = windows

    def writers(self, group: Group, stored: set[Value]) -> list[RowKernelWriter]:
        """The writers of a group's kernels, in the order they run."""
        wanted = [v for v in group.members if v in stored]
        made: list[RowKernelWriter] = []
        for part in _by_loop_nest(group, wanted):
            while part:
                writer, count = self.largest(group, part)
                made.append(writer)
                part = part[count:]
        return made

    def largest(self, group: Group, part: list[Value]) -> tuple[RowKernelWriter, int]:
        """The kernel for as many of these values as can be bound, and how many that are."""
        count = self.at_most(group, part)
        while True:
            writer = RowKernelWriter(task_of(group, part[:count], self.software), self.shared_bytes)
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

    def is_narrow(self, writer: RowKernelWriter) -> bool:
        """Whether each buffer of a kernel is one binding."""
        values = [*writer.values.inputs, *writer.outputs()]
        return all(self.windows(byte_size(v.dtype, v.size)) == 1 for v in values)

    def bound(self, writer: RowKernelWriter) -> int:
        """How many bindings a kernel takes."""
        values = [*writer.values.inputs, *writer.outputs()]
        count = sum(self.windows(byte_size(v.dtype, v.size)) for v in values)
        return count + (self.windows(4 * writer.scratch_words) if writer.partial_sums else 0)

    def kernels(self, writer: RowKernelWriter, pairs: Pairs) -> list[FusedKernel]:
        """A kernel, and the small ones that follow it."""
        for x, v in pairs.items():
            writer.write_over(x, v)
        unpacked = {v: Scratch(v.size) for v in writer.packed}
        outputs: list[Buffer] = [unpacked.get(v, v) for v in writer.outputs()]
        scratch = Scratch(writer.scratch_words)
        if writer.partial_sums:
            outputs.append(scratch)
        name = _named(writer)
        inputs: list[Buffer] = [v for v in writer.values.inputs if v not in pairs]
        groups = writer.mapping.workgroups
        made = [FusedKernel(name, writer.source(), inputs, outputs, groups, pairs)]
        parts = list(writer.partial_sums.values())
        most = max(1, self.buffers - 1)
        for at in range(0, len(parts), most):
            made.append(self.second_stage_kernel(parts[at : at + most], scratch, name))
        for v, words in unpacked.items():
            source, groups = second_stage.pack(v.dtype, v.size)
            made.append(FusedKernel(f"pack {v.name}", source, [words], [v], groups, {}))
        return made

    def second_stage_kernel(
        self, parts: list[PartialSums], scratch: Scratch, name: str
    ) -> FusedKernel:
        source, groups = second_stage.finish(parts, self.shared_bytes)
        return FusedKernel(
            f"finish {name}", source, [scratch], [p.value for p in parts], groups, {}
        )


def _named(writer: RowKernelWriter) -> str:
    names = dict.fromkeys(v.name for v in writer.members)
    return "fused " + " ".join(names)

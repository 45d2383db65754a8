"""The texts of fused groups, written once for each form, and eager ops as graphs of one op.

Sizes are mostly arguments of a launch, so that arrays of other sizes have the same kernels. A
device adds its numbers, a renderer and how it launches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from everygrad.codegen import verify
from everygrad.codegen.groups.group import GroupWriter, write_kernel
from everygrad.codegen.groups.group_plan import task_of
from everygrad.codegen.groups.group_sizes import form_of, index_of, sizes_of
from everygrad.codegen.groups.group_sums import (
    GroupKernel,
    PartialSums,
    index_of_sums,
    second_stage,
    stage_bounds,
)
from everygrad.codegen.groups.group_threads import splits_rows
from everygrad.codegen.kernel import Kernel
from everygrad.codegen.machine import Machine
from everygrad.compiler.array_graph import OpGraph
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import used_outside
from everygrad.compiler.ir import Value
from everygrad.compiler.schedule import by_loop_nest, fusable
from everygrad.dtypes import DType
from everygrad.errors import CompileError

_MOST = 1 << 12  # texts that are kept


class Stage(NamedTuple):
    """One kernel of a task: its text as the device writes it, the sizes that it takes, its groups,
    and what it reads and writes; a dtype stands for partial sums."""

    text: Any
    sizes: tuple[int, ...]
    groups: int
    reads: Sequence[Value | DType]
    writes: Sequence[Value | DType]


class Launch(NamedTuple):
    """One kernel of an op: a `Stage` by the memory that it binds: the op's inputs first, then its
    result, then what is between; the first `reads` of these are read."""

    text: Any
    sizes: tuple[int, ...]
    groups: int
    places: tuple[int, ...]
    reads: int


class Lowered(NamedTuple):
    """The kernels of an op, and the memory between them: elements of a dtype."""

    launches: tuple[Launch, ...]
    between: tuple[tuple[DType, int], ...]


class _Unwritten(NamedTuple):
    """A stage whose text may be known: its sizes by name, and how it is written."""

    groups: int
    reads: Sequence[Value | DType]
    writes: Sequence[Value | DType]
    sizes: dict[Hashable, int]
    write: Callable[[], GroupKernel]


class KernelTexts:
    """The texts of one device's kernels, by their form. `render` writes one; `buffers`: how many it
    binds at most."""

    def __init__(
        self, device: str, render: Callable[[Kernel], Any], buffers: int = 1 << 30
    ) -> None:
        self.device, self.render, self.buffers = device, render, buffers
        self.known: dict[Hashable, tuple[tuple[Any, tuple[Hashable, ...]], ...]] = {}

    def single_op(self, op: OpGraph, name: str, machine: Machine) -> Lowered:
        """The kernels of an op that runs by itself."""
        graph = op.graph
        groups = fuse(graph, fusable, is_split=splits_rows(machine, True))
        stored = used_outside(groups, graph.outputs)
        places: dict[Any, int] = {v: k for k, v in enumerate((*graph.inputs, *graph.outputs))}
        between: list[tuple[DType, int]] = []
        launches: list[Launch] = []

        def place(buffer: Any, dtype: DType, count: int) -> None:
            if buffer not in places:
                places[buffer] = len(places)
                between.append((dtype, count))

        for group in groups:
            if op.strides is not None:
                group.stores = {v: op.strides for v in graph.outputs if v in group.members}
            for wanted in by_loop_nest(group, [v for v in group.members if v in stored]):
                writer = GroupWriter(task_of(group, wanted, machine), machine)
                for v in writer.task.wanted:
                    place(v, v.dtype, v.size)
                for dtype, count in writer.scratch.items():
                    place((writer, dtype), dtype, count)
                for stage in self.stages(writer, name):
                    bound = [
                        (writer, b) if isinstance(b, DType) else b
                        for b in (*stage.reads, *stage.writes)
                    ]
                    at = tuple(places[b] for b in bound)
                    launches.append(Launch(*stage[:3], at, len(stage.reads)))
        return Lowered(tuple(launches), tuple(between))

    def stages(self, writer: GroupWriter, name: str) -> list[Stage]:
        """The kernel of a task, and those that combine its partial sums."""
        parts = self.unwritten(writer, name)
        texts = self.texts(writer, parts, name)
        return [
            Stage(text, tuple(p.sizes[n] for n in names), p.groups, p.reads, p.writes)
            for p, (text, names) in zip(parts, texts, strict=True)
        ]

    def unwritten(self, writer: GroupWriter, name: str) -> list[_Unwritten]:
        machine, scratch, sizes = writer.machine, writer.scratch, sizes_of(writer)
        made = [
            _Unwritten(
                writer.mapping.workgroups, [*writer.inputs()], [*writer.outputs(), *scratch], sizes,
                lambda: write_kernel([(writer, {})], machine, name),
            )
        ]  # fmt: skip
        sums = list(writer.partial_sums.values())
        most = max(1, self.buffers - len(scratch))
        for at in range(0, len(sums), most):
            made.append(_second(sums[at : at + most], writer, sizes, name))
        return made

    def texts(
        self, writer: GroupWriter, parts: Sequence[_Unwritten], name: str
    ) -> tuple[tuple[Any, tuple[Hashable, ...]], ...]:
        """The text of each stage, with the names of the sizes that it takes."""
        scratch, machine, sums = writer.scratch, writer.machine, [*writer.partial_sums.values()]
        indices = (index_of([writer], scratch, machine), index_of_sums(sums, scratch, machine))
        form = (name, indices, form_of(writer))
        found = self.known.get(form)
        if found is None or verify.VERIFY_GROUPS:
            kernels = [part.write().kernel for part in parts]
            made = tuple((self.render(kernel), kernel.names) for kernel in kernels)
            if found is not None and not _same(found, made):
                raise CompileError(f"{self.device}: {name}: a form has two texts; please report it")
            if len(self.known) >= _MOST:
                self.known.clear()
            found = self.known[form] = made
        return found


def _same(found: Sequence[tuple[Any, Any]], made: Sequence[tuple[Any, Any]]) -> bool:
    """Whether texts are the same: sizes, and numbers that come with them, may differ."""
    return [(text.source, names) for text, names in found] == [
        (text.source, names) for text, names in made
    ]


def _second(
    sums: Sequence[PartialSums], writer: GroupWriter, sizes: dict[Hashable, int], name: str
) -> _Unwritten:
    machine, scratch = writer.machine, writer.scratch
    used, bounds = {p.dtype for p in sums}, stage_bounds(sums, machine)
    return _Unwritten(
        max(bounds.values()), [d for d in scratch if d in used], [p.value for p in sums],
        sizes | bounds,
        lambda: second_stage(sums, scratch, machine, name, open_sizes=True),
    )  # fmt: skip

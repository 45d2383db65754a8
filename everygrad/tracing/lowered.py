"""What the compiler made of a call, for people to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.backends.cpu.plan import HostStep, NativeStep, Program, build
from everygrad.compile.ir import Graph, Value
from everygrad.compile.memory import peak
from everygrad.shapes import size_of
from everygrad.tracing.record import Record
from everygrad.tracing.stages import donations_of, prepared


class Lowered:
    """The stages of one function: `graph` as traced, `simplified`, `kernels`, `source`, `memory`,
    and what it costs: `flops` and `nbytes`. Printed, all but the source."""

    def __init__(self, record: Record, fn: Callable[..., Any]) -> None:
        self.name = getattr(fn, "__qualname__", str(fn))
        self.record = record
        self.graph: Graph = record.graph
        self.simplified: Graph = prepared(record.graph)
        self.program: Program = build(self.simplified, donations_of(record))

    @property
    def kernels(self) -> str:
        """One line a step, in the order they run."""
        lines = []
        for i, s in enumerate(self.program.steps):
            if isinstance(s, HostStep):
                lines.append(f"{i:3} {s.name}")
            else:
                blocks = f"{s.step.blocks} block{'s' if s.step.blocks != 1 else ''}"
                slots = " ".join(map(str, s.slots))
                linked = ", linked to the next" if s.linked else ""
                lines.append(f"{i:3} {s.name}: {blocks}, slots {slots}{linked}")
        return "\n".join(lines)

    @property
    def source(self) -> str:
        """The LLVM IR of every step; equal ones once."""
        found: dict[str, str] = {}
        for s in self.program.steps:
            if isinstance(s, NativeStep):
                found.setdefault(s.step.source, s.name)
        return "\n".join(f"; {name}\n{text}" for text, name in found.items())

    @property
    def memory(self) -> Memory:
        return Memory(self.program)

    @property
    def flops(self) -> int:
        """Arithmetic operations, estimated: one an element and op, two a multiply-add."""
        return sum(_flops(v) for v in self.simplified.values)

    @property
    def nbytes(self) -> int:
        """Bytes that steps read and write, were no cache there."""
        sizes = _slot_sizes(self.program, self.simplified)
        return sum(sizes.get(slot, 0) for s in self.program.steps for slot in _slots(s))

    def __str__(self) -> str:
        return "\n".join(
            (
                f"--- {self.name}: {len(self.graph.values)} values traced ---",
                str(self.graph),
                f"--- simplified: {len(self.simplified.values)} values ---",
                str(self.simplified),
                f"--- {len(self.program.steps)} steps, about {self.flops:,} operations "
                f"and {self.nbytes:,} bytes ---",
                self.kernels,
                "--- memory ---",
                str(self.memory),
            )
        )

    __repr__ = __str__


class Memory:
    """The memory plan: `arena` bytes for what is computed on the way, of which `peak` are in use
    at once; `outputs` bytes of results; `constants` bytes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.arena = program.arena
        self.peak = peak(program.lifetimes)
        self.outputs = sum(v.nbytes for v in program.outputs.values())
        self.constants = sum(a.nbytes for a in program.constants.values())
        self.in_place = len(program.donations)

    def __str__(self) -> str:
        lines = [
            f"arena {self.arena:,} bytes ({self.peak:,} in use at once), results "
            f"{self.outputs:,}, constants {self.constants:,}, {self.in_place} written in place"
        ]
        offsets = self.program.temporaries.values()
        for offset, life in sorted(zip(offsets, self.program.lifetimes, strict=True)):
            lines.append(
                f"  at {offset:>10,}: {life.nbytes:>10,} bytes, steps {life.first} to {life.last}"
                f"  {life.name}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def _slots(step: NativeStep | HostStep) -> tuple[int, ...]:
    if isinstance(step, HostStep):
        return (step.out, *(slot for slot, _ in step.inputs))
    return step.slots


def _slot_sizes(program: Program, graph: Graph) -> dict[int, int]:
    sizes = {slot: v.nbytes for slot, v in program.outputs.items()}
    sizes |= {slot: a.nbytes for slot, a in program.constants.items()}
    order = zip(program.temporaries, program.lifetimes, strict=True)
    sizes |= {slot: life.nbytes for slot, life in order}
    sizes |= {slot: v.nbytes for slot, v in zip(program.inputs, graph.inputs, strict=True)}
    return sizes


def _flops(v: Value) -> int:
    if v.name in ("matmul", "linear"):
        return 2 * v.size * v.args[0].shape[-1]
    if v.name.startswith("conv2d"):
        shapes = [a.shape for a in v.args]
        window = v.params["window"]
        places = size_of(shapes[1][2:]) if v.name == "conv2d_weight" else size_of(v.shape[2:])
        taps = size_of(window.size)
        channels = shapes[0][1] * (shapes[1][1] if v.name == "conv2d_weight" else v.shape[1])
        return 2 * v.args[0].shape[0] * places * taps * channels // window.groups
    if v.kind == "elementwise":
        return v.size
    return v.args[0].size if v.kind == "reduction" else 0

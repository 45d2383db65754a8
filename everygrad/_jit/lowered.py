"""What the compiler made of a call, for people to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad._jit.pipeline import donations_of, prepared
from everygrad._jit.record import Record
from everygrad.backends import base
from everygrad.backends.cpu.graph.execution_plan import ExecutionPlan, HostStep, NativeStep, build
from everygrad.compiler import costs
from everygrad.compiler.ir import Graph
from everygrad.compiler.memory import Memory


class Lowered:
    """The stages of one function: `graph` as traced, `simplified`, `kernels`, `source`, `memory`,
    and what it costs: `flops` and `nbytes`. Printed, all but the source."""

    def __init__(self, record: Record, fn: Callable[..., Any]) -> None:
        self.name = getattr(fn, "__qualname__", str(fn))
        self.record = record
        self.graph: Graph = record.graph
        self.simplified: Graph = prepared(record.graph, record.device)
        # recorded, or built, but not run
        self.plan: Any = (
            Native(build(self.simplified, donations_of(record)), self.simplified)
            if record.device == "cpu"
            else base.get(record.device).compile(self.simplified, ())
        )

    @property
    def kernels(self) -> str:
        """One line a step, in the order they run."""
        return "\n".join(f"{i:3} {line}" for i, line in enumerate(self.plan.steps()))

    @property
    def source(self) -> str:
        """The text of every kernel (LLVM IR, WGSL); equal ones once."""
        return "\n".join(f"{name}\n{text}" for text, name in self.plan.sources().items())

    @property
    def memory(self) -> Memory:
        plan: Memory = self.plan.memory()
        return plan

    @property
    def flops(self) -> int:
        """Arithmetic operations, estimated: one an element and op, two a multiply-add."""
        return sum(costs.flops_of(v) for v in self.simplified.values)

    @property
    def nbytes(self) -> int:
        """Bytes that steps read and write, were no cache there."""
        return int(self.plan.nbytes())

    def __str__(self) -> str:
        return "\n".join(
            (
                f"--- {self.name}: {len(self.graph.values)} values traced ---",
                str(self.graph),
                f"--- simplified: {len(self.simplified.values)} values ---",
                str(self.simplified),
                f"--- {len(self.plan.steps())} steps, about {self.flops:,} operations "
                f"and {self.nbytes:,} bytes ---",
                self.kernels,
                "--- memory ---",
                str(self.memory),
            )
        )

    __repr__ = __str__


class Native:
    """The program of the CPU, as `Lowered` shows it; a device's replay has the same methods."""

    def __init__(self, program: ExecutionPlan, graph: Graph) -> None:
        self.program = program
        self.graph = graph
        self.memory = program.memory

    def steps(self) -> list[str]:
        """What each step is, who works on it, what it works on."""
        lines = []
        for s in self.program.steps:
            if isinstance(s, HostStep):
                lines.append(s.name)
            else:
                blocks = f"{s.step.blocks} block{'s' if s.step.blocks != 1 else ''}"
                slots = " ".join(map(str, s.slots))
                linked = ", linked to the next" if s.linked else ""
                lines.append(f"{s.name}: {blocks}, slots {slots}{linked}")
        return lines

    def sources(self) -> dict[str, str]:
        """The texts, each with a comment that names the first step that has it."""
        found: dict[str, str] = {}
        for s in self.program.steps:
            if isinstance(s, NativeStep):
                found.setdefault(s.step.source, f"; {s.name}")
        return found

    def nbytes(self) -> int:
        """Bytes that steps read and write."""
        return sum(self.step_bytes())

    def step_bytes(self) -> list[int]:
        """The same, step by step."""
        sizes = _slot_sizes(self.program, self.graph)
        return [sum(sizes.get(slot, 0) for slot in _slots(s)) for s in self.program.steps]


def _slots(step: NativeStep | HostStep) -> tuple[int, ...]:
    if isinstance(step, HostStep):
        return (step.out, *(slot for slot, _ in step.inputs))
    return step.slots


def _slot_sizes(program: ExecutionPlan, graph: Graph) -> dict[int, int]:
    sizes = {slot: v.nbytes for slot, v in program.outputs.items()}
    sizes |= {slot: a.nbytes for slot, a in program.constants.items()}
    order = zip(program.temporaries, program.lifetimes, strict=True)
    sizes |= {slot: life.nbytes for slot, life in order}
    sizes |= {slot: v.nbytes for slot, v in zip(program.inputs, graph.inputs, strict=True)}
    return sizes


def described(replay: Any, graph: Graph, device: str) -> tuple[Any, Graph]:
    """The steps of something compiled, as `Lowered` shows them, and the graph they compute."""
    simplified = prepared(graph, device)
    return Native(replay.program, simplified) if hasattr(replay, "program") else replay, simplified

"""What a function compiled for a GPU makes of the CPU's tensors alone, such as the next state of a
generator: computed on the CPU, where it goes, so that nothing waits for the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy import ndarray

from everygrad._jit.pipeline import compiled
from everygrad._jit.record import Record
from everygrad.compiler.ir import Graph, Value, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.core.tensor import Tensor


class HostPart:
    """Some outputs of a graph, by their numbers, compiled for the CPU."""

    def __init__(self, graph: Graph, outputs: Sequence[int]) -> None:
        self.outputs = outputs
        part, inputs = _cut_out(graph, [graph.outputs[k] for k in outputs])
        self._inputs = inputs
        self._replay = compiled(part, "cpu")

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs, for all inputs of the graph."""
        made: list[Any] = self._replay.run_on([arrays[i] for i in self._inputs])
        return made


def split(record: Record) -> tuple[Graph, HostPart | None]:
    """The graph that the device computes, and what is left to the CPU: an output that stands at its
    place in the first is an input, and its value comes from the second."""
    graph = record.graph
    if record.device == "cpu":
        return graph, None
    near = {
        v
        for v, s in zip(graph.inputs, record.origins, strict=True)
        if not s.grad and _is_near(s.tensor)
    }
    instead: dict[int, Value] = {}
    for t in record.targets:
        if t.grad or t.new or t.output is None or not _is_near(t.tensor):
            continue
        leaves = {v for v in reachable([graph.outputs[t.output]]) if v.kind == "input"}
        if leaves and leaves <= near:
            instead[t.output] = min(leaves, key=lambda v: v.number)
    if not instead:
        return graph, None
    rest = graph.with_outputs([instead.get(k, v) for k, v in enumerate(graph.outputs)])
    return rest, HostPart(graph, list(instead))


def _is_near(t: Tensor | None) -> bool:
    """Whether a tensor from outside lies on the CPU."""
    return t is not None and type(t._data) is ndarray


def _cut_out(graph: Graph, wanted: Sequence[Value]) -> tuple[Graph, list[int]]:
    """A graph of the wanted values alone, and the numbers of the inputs that it takes."""
    rewriter = Rewriter()
    part = rewriter.copy(wanted)
    numbers = {v: i for i, v in enumerate(graph.inputs)}
    return part, [numbers[v] for v in rewriter.made if v.kind == "input"]

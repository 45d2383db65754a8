"""Compiled functions on the reference device: the ops of a graph, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.memory import Memory
from everygrad.errors import CompileError

if TYPE_CHECKING:
    from everygrad.backends.reference.device import Reference

Commit = Callable[[], None]


class Replay:
    """A graph and the arrays that were put; see `core.protocols.Compiled`. No memory is reused."""

    def __init__(self, dev: Reference, graph: Graph) -> None:
        self.dev, self.graph = dev, graph
        self.arrays: list[Any] = [None] * len(graph.inputs)
        self.lock = threading.RLock()
        self.running = False

    def put(self, i: int, array: Any) -> None:
        self.arrays[i] = array

    def value(self, v: Value, known: dict[Value, Any]) -> Any:
        if v.kind == "full":
            return self.dev.full(v.shape, v.params["value"], v.dtype)
        if v.kind == "constant":
            return self.dev.from_numpy(np.asarray(v.params["array"]))
        if v.facts.alias:
            return known[v.args[0]]
        found = self.dev.run(v.op, [known[a] for a in v.args], v.params)
        if found is NotImplemented:
            raise CompileError(f"reference: jit: {v.name} is kept whole, and there is no way to it")
        return found

    def run(
        self,
        given: dict[int, Any],
        prepare: Callable[[list[Any]], Commit] | None = None,
        around: Any = None,
    ) -> tuple[list[Any], BaseException | None]:
        known: dict[Value, Any] = {}
        for v, array in zip(self.graph.inputs, self.arrays, strict=True):
            near = isinstance(array, np.ndarray)  # the CPU's, as states of generators are
            known[v] = self.dev.from_numpy(array) if near else array
        for v in self.graph.values:
            if v not in known:
                known[v] = self.value(v, known)
        outputs = [known[v] for v in self.graph.outputs]
        if prepare is not None:
            prepare(outputs)()
        return outputs, None

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        with self.lock:
            self.arrays = list(inputs)
            return self.run({})[0]

    def donated(self) -> dict[int, tuple[int, int]]:
        return {}

    def own_memory(self) -> dict[int, int]:
        return {}

    def may_write(self, slot: int, array: Any) -> bool:
        return False

    def held_bytes(self, most: int) -> int:
        return sum(v.nbytes for v in self.graph.values if v.kind == "constant")

    def memory(self) -> Memory:
        results = sum(v.nbytes for v in self.graph.outputs)
        return Memory(0, [], results, self.held_bytes(0), 0)

"""From a traced graph to something that runs: the stages between, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad._jit.record import Record
from everygrad.backends import base
from everygrad.compiler.expr import call
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.ir import Graph
from everygrad.compiler.overlap import agreed, overlapped
from everygrad.compiler.simplify import simplify
from everygrad.core.protocols import Compiled
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.spec import REGISTRY

COPY = Elementwise("copy", lambda x: x, kinds="any", recompute="cheap", copies=True)
# The sum of one term, 0.0 + x. Not as an addition: drivers of GPUs take x + 0.0 for x
SUM_ALONE = Elementwise("sum_alone", lambda x: call("select", x == 0.0, 0.0, x), kinds="any")
MOVES = {
    "copy": COPY,
    "sum_alone": SUM_ALONE,
    "add": REGISTRY["add"],
    "reshape": REGISTRY["reshape"],
    "broadcast_to": REGISTRY["broadcast_to"],
    "slice": REGISTRY["slice"],
    "concat": REGISTRY["concat"],
}


def evaluate(op: OpFacts, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    """An op on NumPy arrays, as eager mode computes it."""
    if op.host is not None:
        return op.host(*arrays, **params)
    return base.get("cpu").run(op, list(arrays), params)


def prepared(graph: Graph, device: str) -> Graph:
    """The graph as a backend compiles it."""
    graph = overlapped(graph, MOVES) if base.get(device).overlaps else agreed(graph)
    return simplify(graph, evaluate, MOVES)


def compiled(
    graph: Graph,
    device: str,
    donated: Sequence[tuple[int, int]] = (),
    remade: Sequence[int] = (),
) -> Compiled:
    """A traced graph, simplified and compiled for a device. `donated`: pairs of an input and an
    output that may take its memory; `remade`: outputs that may even where the call then raises."""
    return base.get(device).compile(prepared(graph, device), donated, remade)


def aligned(array: Any) -> Any:
    """The array as native code takes it: in order, and at an address that fits its elements."""
    if type(array) is not np.ndarray:  # another device's
        return array
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.ascontiguousarray(array) if flags.aligned else array.copy()


def donations_of(record: Record) -> list[tuple[int, int]]:
    """(input, output) pairs of tensors that are read and given a new value."""
    inputs = {
        id(s.tensor): i for i, s in enumerate(record.origins) if s.tensor is not None and not s.grad
    }
    return [
        (inputs[id(t.tensor)], t.output)
        for t in record.targets
        if t.tensor is not None and not t.grad and t.output is not None and id(t.tensor) in inputs
    ]

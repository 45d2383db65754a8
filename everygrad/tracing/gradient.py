"""Derivatives of a compiled function: one node whose derivative is a compiled function too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.autograd.graph import Node
from everygrad.errors import GradientError
from everygrad.ops.creation import zeros
from everygrad.ops.spec import Op
from everygrad.tensor import Tensor, wrap


def attach(
    entry: Any,
    tensors: Sequence[Tensor],
    inputs: Sequence[Any],
    results: Sequence[Tensor],
    outputs: Sequence[Any],
) -> None:
    """Give the results their place in the graph."""
    gradients = entry.record.gradients
    sources = [entry.sources[i] for i in gradients.wanted]
    parents = [(tensors[s.argument] if s.argument is not None else s.tensor)._node for s in sources]
    residuals = [outputs[i] for i in gradients.residuals]
    whole = _node(CALL, tuple(parents), {"entry": entry}, ())
    whole.saved = tuple(residuals)
    for place, i in enumerate(gradients.seeds):
        out = results[i]
        params = {"place": place, "count": len(gradients.seeds)}
        out._node = _node(RESULT, (whole,), params, out.shape)


def _node(op: Op, parents: tuple[Any, ...], params: dict[str, Any], shape: Any) -> Node:
    node = Node()
    node.op = op
    node.parents = parents
    node.params = params
    node.shape = shape
    node.saved = ()
    node.hooks = None
    return node


class _Result(Op):
    """One result of a compiled call."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        filled: list[Tensor | None] = [None] * node.params["count"]
        filled[node.params["place"]] = g
        return [tuple(filled)]


class _Call(Op):
    """A compiled call as a whole; its gradient is a tuple of its results'."""

    def vjp(self, node: Any, g: Any, create_graph: bool) -> Sequence[Any]:
        entry = node.params["entry"]
        if create_graph:
            raise GradientError(
                "jit: a second derivative through a compiled function; compile the derivative "
                "instead: eg.jit(eg.grad(f)) in place of eg.grad(eg.jit(f))"
            )
        gradients = entry.record.gradients
        replay = entry.backward_replay()
        values = [entry.record.graph.outputs[i] for i in gradients.seeds]
        seeds = [
            zeros(v.shape, v.dtype)._data if s is None else s._data
            for s, v in zip(g, values, strict=True)
        ]
        made = replay.run([entry.aligned(a) for a in (*node.saved, *seeds)], {})
        return [wrap(a) for a in made]


CALL, RESULT = _Call("jit"), _Result("jit.result")

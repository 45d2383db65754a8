"""Derivatives of a compiled function: one node whose derivative is a compiled function too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from everygrad._jit.lowered import described
from everygrad._jit.pipeline import aligned
from everygrad._jit.verify import check
from everygrad.amp.policy import policy, under
from everygrad.autograd.engine import Pass
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import enable_grad
from everygrad.autograd.trees import flatten, unflatten
from everygrad.core.context import intercepted, profiling
from everygrad.core.protocols import Layout
from everygrad.core.tensor import Tensor, wrap
from everygrad.errors import GradientError
from everygrad.ops.python.creation import zeros
from everygrad.ops.record.spec import Op

_STATIC = object()  # in the place of a node: the argument is no tensor


def attach(
    entry: Any,
    leaves: Sequence[Any],
    tensors: Sequence[Tensor],
    results: Sequence[Tensor],
    outputs: Sequence[Any],
) -> None:
    """Give the results their place in the graph. `leaves`: all arguments, `tensors` among them."""
    gradients = entry.record.gradients
    origins = [entry.origins[i] for i in gradients.wanted]
    parents = [(tensors[s.argument] if s.argument is not None else s.tensor)._node for s in origins]
    residuals = [outputs[i] for i in gradients.residuals]
    given = [(x._data, x._node) if isinstance(x, Tensor) else (x, _STATIC) for x in leaves]
    outside = [(t, t._data) for _, t, _ in entry.outside]
    params = {"entry": entry, "given": given, "tree": entry.tree, "outside": outside}
    params["autocast"] = policy()
    whole = _CallNode(len(gradients.seeds))
    _fill(whole, CALL, tuple(parents), params, ())
    whole.saved = tuple(residuals)
    for place, i in enumerate(gradients.seeds):
        out = results[i]
        params = {"place": place, "count": len(gradients.seeds)}
        out._node = _fill(Node(), RESULT, (whole,), params, out.shape)


class _CallNode(Node):
    """Backward may start at each of several results in turn: what was saved is used up only when
    it has come by as often as there are results."""

    __slots__ = ("kept", "left")

    def __init__(self, results: int) -> None:
        self.left = results
        self.kept: Any = None

    @property
    def saved(self) -> Any:
        return self.kept

    @saved.setter
    def saved(self, value: Any) -> None:
        if value is None:
            self.left -= 1
            if self.left > 0:
                return
        self.kept = value


def _fill(node: Node, op: Op, parents: tuple[Any, ...], params: dict[str, Any], shape: Any) -> Node:
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
            return self.recorded(node, g)
        gradients = entry.record.gradients
        replay = entry.backward_replay()
        values = [entry.record.graph.outputs[i] for i in gradients.seeds]
        seeds = [
            zeros(v.shape, v.dtype)._data if s is None else _seed(s, layout)
            for s, v, layout in zip(g, values, gradients.seed_layouts, strict=True)
        ]
        inputs = [aligned(a) for a in (*node.saved, *seeds)]
        if intercepted() and (profiler := profiling.get()) is not None:
            name, device = f"{entry.name}, backward", entry.record.device
            shown = partial(described, replay, gradients.graph, device)
            made = profiler.replay_on(name, shown, device, replay, inputs)
        else:
            made = replay.run_on(inputs)
        if entry.verify:
            check(gradients.graph, entry.record.device, inputs, made)
        return [
            wrap(a if layout is None else layout.around(wrap(a)))
            for a, layout in zip(made, gradients.layouts, strict=False)
        ]

    def recorded(self, node: Any, g: Any) -> Sequence[Any]:
        """The gradients as ops that can be differentiated again: the function runs uncompiled."""
        entry = node.params["entry"]
        if entry.targets:
            raise GradientError(
                "jit: a second derivative through a compiled function that changes tensors (or "
                "draws random numbers); compile the derivative: eg.jit(eg.grad(f))"
            )
        if any(t._data is not array for t, array in node.params["outside"]):
            raise GradientError(
                "jit: a second derivative through a compiled function, and a tensor it uses was "
                "given another value since; run backward before changing parameters"
            )
        leaves = [wrap(a, n) if n is not _STATIC else a for a, n in node.params["given"]]
        args, kwargs = unflatten(node.params["tree"], leaves)
        with enable_grad(), under(node.params["autocast"]):
            outs, _ = flatten(entry.fn(*args, **kwargs))
        seeds = entry.record.gradients.seeds
        roots = [(outs[i]._node, s) for i, s in zip(seeds, g, strict=True) if s is not None]
        targets = [p for p in node.parents if p is not None]
        work = Pass(roots, retain_graph=True, create_graph=True, targets=targets, accumulate=False)
        work.run()
        found = dict(work.captured)
        return [found.pop(p, None) for p in node.parents]  # once for a tensor given twice


def _seed(g: Tensor, layout: Layout | None) -> Any:
    """The array of a gradient that came, as the compiled backward takes it."""
    return g._data if layout is None else layout.fitted(g)._data


CALL, RESULT = _Call("jit"), _Result("jit.result")

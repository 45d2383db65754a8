"""A traced function as data: its graph, where inputs come from, where outputs go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from everygrad.autograd.engine import Pass
from everygrad.autograd.graph import Leaf, Node
from everygrad.autograd.modes import recording, transform_depth
from everygrad.autograd.trees import flatten, unflatten
from everygrad.compile.ir import Graph, Value, in_order, reachable
from everygrad.dispatch import user_line
from everygrad.dtypes import FROM_NP
from everygrad.errors import TraceError
from everygrad.tensor import Tensor, wrap
from everygrad.tracing.trace import Capture, Traced, Tracer


class Source(NamedTuple):
    """Where an input's value is found at each call: an argument, or a tensor from outside.

    `grad`: not the tensor itself but its gradient.
    """

    argument: int | None
    tensor: Tensor | None
    grad: bool = False


class Target(NamedTuple):
    """Who gets an output that is not returned; `tensor` or argument, its value or its gradient.

    `output` is None for a gradient that is dropped.
    """

    argument: int | None
    tensor: Tensor | None
    grad: bool
    output: int | None
    new: bool = False  # a tensor the function made and something outside keeps


class Gradients(NamedTuple):
    """The backward part: a graph of residuals and seeds, and which inputs its outputs are for."""

    graph: Graph
    residuals: list[int]  # numbers of the forward graph's outputs
    seeds: list[int]  # which results the seeds belong to
    wanted: list[int]  # numbers of the forward graph's inputs


class Record(NamedTuple):
    """One trace."""

    graph: Graph
    sources: list[Source]
    targets: list[Target]
    results: int
    tree: Any
    guards: list[tuple[Tensor, bool]]  # tensors whose .grad must be there, or not
    twins: list[tuple[Tensor, Tensor]]  # tensors that must share one value
    modules: list[tuple[Any, bool]]  # modules, and whether they must be training
    gradients: Gradients | None


class _Argument(NamedTuple):
    original: Tensor
    stand_in: Tensor
    traced: Traced


def _stand_in(tracer: Tracer, original: Tensor) -> _Argument:
    """A traced tensor in place of an argument."""
    array = original._data
    traced = tracer.traced(tracer.graph.input(array.shape, FROM_NP[array.dtype], "an argument"))
    t = type(original)() if type(original) is Tensor else Tensor()
    t._data, t._node = traced, None
    if original._node is not None:
        t._node = Leaf(t, transform_depth())
    grad = getattr(original, "_grad", None)
    if grad is not None:
        t._grad = grad
    return _Argument(original, t, traced)


def trace(
    fn: Callable[..., Any], leaves: list[Any], tree: Any, escapes: bool
) -> tuple[Record, list[Tensor]]:
    """Run fn on stand-ins for the tensors among `leaves`.

    `escapes`: tensors made inside may be kept outside. They are returned with the record.
    """
    tracer = Tracer()
    with tracer.active():
        arguments = [_stand_in(tracer, x) for x in leaves if isinstance(x, Tensor)]
        given = iter(arguments)
        stand_ins = [next(given).stand_in if isinstance(x, Tensor) else x for x in leaves]
        args, kwargs = unflatten(tree, stand_ins)
        try:
            builder = _Builder(tracer, arguments)
            builder.outputs(fn(*args, **kwargs))
        finally:
            changed = tracer.restore()
            grads = tracer.restore_grads()
        builder.changes(changed, grads)
    del args, kwargs, arguments, stand_ins, given, changed, grads
    record = builder.record()
    escaped = builder.escapees(escapes)
    return record, escaped


class _Builder:
    """Collects what a trace gives."""

    def __init__(self, tracer: Tracer, arguments: list[_Argument]) -> None:
        self.tracer = tracer
        self.arguments = arguments
        self.places = {id(a.stand_in): i for i, a in enumerate(arguments)}
        self.returned: list[Value] = []
        self.values: list[Value] = []
        self.targets: list[Target] = []
        self.roots: list[tuple[int, Node, Value]] = []
        self.tree: Any = None

    def outputs(self, out: Any) -> None:
        leaves, self.tree = flatten(out)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                raise TraceError(
                    f"jit: the function returned a {type(leaf).__name__} ({leaf!r:.60}); only "
                    f"tensors and containers of them have values that change from call to call: "
                    f"return eg.tensor(...) of it, or leave it out"
                )
            value = self.tracer.value_of(leaf)
            self.returned.append(value)
            node = leaf._node
            if node is not None and node.saved is not None and recording():
                self.roots.append((i, node, value))

    def output(self, value: Value) -> int:
        self.values.append(value)
        return len(self.returned) + len(self.values) - 1

    def changes(self, changed: list[Any], grads: list[Any]) -> None:
        for capture, payload, node in changed:
            self.check_node(capture.node, node, capture.tensor)
            if payload is not capture.traced:
                number = self.output(self.value(payload))
                self.targets.append(self.target(capture.tensor, capture.owner, number))
        for i, a in enumerate(self.arguments):
            if a.stand_in._data is not a.traced:
                number = self.output(self.value(a.stand_in._data))
                self.targets.append(Target(i, None, False, number))
            if not a.original.is_leaf and id(a.stand_in) in self.tracer.touched:
                raise TraceError(
                    "jit: backward inside the function reaches an argument that is the result of "
                    "an op outside; detach() it, or call backward outside"
                )
        for touch, now in grads:
            result = None if now is None else self.output(self.value(now._data))
            place = self.places.get(id(touch.tensor))
            tensor = touch.tensor if place is None else None
            self.targets.append(Target(place, tensor, True, result))

    def check_node(self, before: Any, after: Any, t: Tensor) -> None:
        if after is not before and (before is None) != (after is None):
            raise TraceError(
                f"jit: a tensor of shape {t.shape} from outside was given a value that requires "
                f"grad; change it under no_grad(), or return the new value"
            )

    def target(self, tensor: Tensor, owner: Tensor | None, number: int) -> Target:
        if owner is None:
            return Target(None, tensor, False, number)
        place = self.places.get(id(owner))
        return Target(place, owner if place is None else None, True, number)

    def value(self, payload: Any) -> Value:
        return self.tracer.value_of(wrap(payload))

    def sources(self) -> list[Source]:
        made = [Source(i, None) for i in range(len(self.arguments))]
        for c in self.inputs():
            if c.owner is None:
                made.append(Source(None, c.tensor))
            else:
                place = self.places.get(id(c.owner))
                made.append(Source(place, c.owner if place is None else None, grad=True))
        return made

    def inputs(self) -> list[Capture]:
        """The captures that are inputs of their own, in the order of these inputs."""
        return [c for c in self.tracer.captures if c.twin is None]

    def guards(self) -> list[tuple[Tensor, bool]]:
        touched = self.tracer.touched.values()
        return [
            (t.tensor, t.grad is not None)
            for t in touched
            if t.seen and id(t.tensor) not in self.places
        ]

    def record(self) -> Record:
        graph = self.tracer.graph
        graph.outputs = [*self.returned, *self.values]
        gradients = self.gradients() if self.roots else None
        self.roots = []
        return Record(
            graph,
            self.sources(),
            self.targets,
            len(self.returned),
            self.tree,
            self.guards(),
            [(c.tensor, c.twin) for c in self.tracer.captures if c.twin is not None],
            list(self.tracer.modules.values()),
            gradients,
        )

    def escapees(self, allowed: bool) -> list[Tensor]:
        """Tensors made inside that live on; each becomes a target."""
        tracer = self.tracer
        self.arguments = []
        tracer.captures = []
        found = tracer.escaped()
        if found and not allowed:
            lines = sorted({value.where for _, value in found})
            raise TraceError(
                "jit: tensors made inside the function are kept outside it at every call, which a "
                f"replay cannot do (made at {', '.join(lines[:5])}); return them instead"
            )
        for t, value in found:
            tracer.graph.outputs.append(value)
            number = len(tracer.graph.outputs) - 1
            self.targets.append(Target(None, t, False, number, new=True))
        return [t for t, _ in found]

    # --- derivatives of the whole ----------------------------------------------------------------

    def gradients(self) -> Gradients | None:
        """Trace backward from the results, and cut the graph between forward and backward."""
        tracer, graph = self.tracer, self.tracer.graph
        border = len(graph.values)
        leaves = [(i, a.stand_in._node) for i, a in enumerate(self.arguments)]
        count = len(self.arguments)
        leaves += [(count + j, c.node) for j, c in enumerate(self.inputs()) if c.owner is None]
        wanted = [(i, node) for i, node in leaves if node is not None]
        if not wanted:
            return None
        inputs = len(graph.inputs)
        for c in tracer.captures:
            c.tensor._data = c.traced
        tracer.open = True
        with tracer.active():
            try:
                seeds = [
                    tracer.traced(graph.input(v.shape, v.dtype, user_line()))
                    for _, _, v in self.roots
                ]
                work = Pass(
                    [(n, wrap(s)) for (_, n, _), s in zip(self.roots, seeds, strict=True)],
                    retain_graph=False,
                    create_graph=False,
                    targets=[node for _, node in wanted],
                    accumulate=False,
                )
                work.run()
                found = [(i, work.captured.get(node)) for i, node in wanted]
                grads = [(i, tracer.value_of(g)) for i, g in found if g is not None]
            finally:
                tracer.restore()
        return self.cut(graph, border, inputs, grads)

    def cut(
        self, graph: Graph, border: int, inputs: int, grads: list[tuple[int, Value]]
    ) -> Gradients:
        live = reachable(v for _, v in grads)
        seeds = graph.inputs[inputs:]
        del graph.inputs[inputs:]
        back = Graph()
        made: dict[Value, Value] = {}
        residuals: list[int] = []
        later = [v for v in in_order(live) if v.number >= border and v not in seeds]
        needed = {a for v in later for a in v.args} | {v for _, v in grads}
        for v in in_order(needed):
            if v.number < border and v.kind not in ("full", "constant"):
                graph.outputs.append(v)
                residuals.append(len(graph.outputs) - 1)
                made[v] = back.input(v.shape, v.dtype, v.where)
        for s in seeds:
            made[s] = back.input(s.shape, s.dtype, s.where)
        for v in in_order({*later, *needed}):
            if v in made:
                continue
            if v.kind == "full":
                made[v] = back.full(v.shape, v.params["value"], v.dtype)
            elif v.kind == "constant":
                made[v] = back.constant(v.params["array"], v.dtype)
            else:
                args = [made[a] for a in v.args]
                made[v] = back.call(v.op, args, v.params, v.where, v.generation)
        back.outputs = [made[v] for _, v in grads]
        return Gradients(back, residuals, [i for i, _, _ in self.roots], [i for i, _ in grads])

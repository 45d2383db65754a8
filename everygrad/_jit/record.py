"""A traced function as data: its graph, where inputs come from, where outputs go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from everygrad._jit.guards import Guard, Guards
from everygrad._jit.reads import Reads
from everygrad._jit.trace import Capture, Tracer, layout_of
from everygrad.autograd.engine import Pass
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import recording
from everygrad.autograd.trees import flatten, unflatten
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.core.protocols import Layout
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import user_line
from everygrad.errors import TraceError


class InputOrigin(NamedTuple):
    """Where an input's value is found at each call: an argument, or a tensor from outside.

    `grad`: not the tensor itself but its gradient.
    """

    argument: int | None
    tensor: Tensor | None
    grad: bool = False
    layout: Layout | None = None  # of a tensor placed on a mesh, of which the input is a part


class Target(NamedTuple):
    """Who gets an output that is not returned; `tensor` or argument, its value or its gradient.

    `output` is None for a gradient that is dropped.
    """

    argument: int | None
    tensor: Tensor | None
    grad: bool
    output: int | None
    new: bool = False  # a tensor the function made and something outside keeps
    same: bool = False  # a gradient that was changed, not replaced
    remade: bool = False  # its memory may be written to before the last call that can raise


class GradGuard(NamedTuple):
    """Whose gradient must be `there`, or not: an argument's, or a tensor's from outside."""

    argument: int | None
    tensor: Tensor | None
    there: bool


class Gradients(NamedTuple):
    """The backward part: a graph of residuals and seeds, and which inputs its outputs are for."""

    graph: Graph
    residuals: list[int]  # numbers of the forward graph's outputs
    seeds: list[int]  # which results the seeds belong to
    wanted: list[int]  # numbers of the forward graph's inputs
    seed_layouts: list[Layout | None]  # of placed tensors
    layouts: list[Layout | None]  # the same of the gradients


class Record(NamedTuple):
    """One trace."""

    graph: Graph
    origins: list[InputOrigin]
    targets: list[Target]
    results: int
    tree: Any
    grad_guards: list[GradGuard]
    aliases: list[tuple[Tensor, Tensor]]  # tensors that must share one value
    shared_grads: list[tuple[Tensor, Tensor]]  # tensors that must share one .grad
    modules: list[tuple[Any, Any]]  # modules, and the fingerprints they must have
    guards: Guards  # everything else that was read from Python
    once: bool  # Python state was made when it was first needed, which a replay would not do
    read_arguments: bool  # an argument is also reached from outside
    device: str
    gradients: Gradients | None
    last_acts: list[Callable[[], Any]]  # in Python, once every tensor has its new value
    layouts: dict[int, Layout]  # of the outputs that are parts of placed tensors


def _followed(reads: Reads, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """fn's result. Who looks at a frame's variables has them live as long as the frame: this one
    ends where `trace` goes on."""
    with reads.following():
        return fn(*args, **kwargs)


def trace(
    fn: Callable[..., Any],
    leaves: list[Any],
    tree: Any,
    escapes: bool,
    tracer: Tracer | None = None,
) -> tuple[Record, list[Tensor]]:
    """Run fn with traced payloads in the tensors among `leaves`.

    `escapes`: tensors made inside may be kept outside. They are returned with the record.
    `tracer`: one that takes other ops apart than the device's compiler wants.
    """
    tracer = Tracer() if tracer is None else tracer
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    args, kwargs = unflatten(tree, leaves)
    reads = Reads(fn, leaves, tracer.met)
    with tracer.active():
        for t in tensors:
            tracer.capture_argument(t)
        builder = _Builder(tracer, tensors)
        out = _followed(reads, fn, args, kwargs)
        reads.end()
        guards, once = reads.finish(out)
        _check_arguments(leaves, tree, (args, kwargs))
        builder.outputs(out)
        if tracer.refused is not None:
            raise tracer.refused
        builder.changes()
        tracer.check_modules()
    read_arguments = any(id(t) in reads.tensors for t in tensors)
    del args, kwargs, out, reads  # whatever they hold of the trace is held by nobody else
    record = builder.record(guards, once, read_arguments)
    return record, builder.escapees(escapes)


def _check_arguments(leaves: list[Any], tree: Any, given: Any) -> None:
    """Refuse a function that changed a container among its arguments: it was given a copy."""
    now, structure = flatten(given)
    if structure != tree or any(a is not b for a, b in zip(now, leaves, strict=True)):
        raise TraceError(
            "jit: the function changes a container among its arguments, which a replay would not "
            "do; return what is new, or change a tensor in it by x[...] = v"
        )


def used_up(node: Node) -> bool:
    """Whether a backward pass went through the graph behind a node."""
    todo, seen = [node], {node}
    for n in todo:
        if n.saved is None:
            return True
        for parent in n.parents:
            if parent is not None and parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return False


class _Builder:
    """Collects what a trace gives. `tensors` are those among the arguments."""

    def __init__(self, tracer: Tracer, tensors: list[Tensor]) -> None:
        self.tracer = tracer
        self.places: dict[int, int] = {}  # the first place of each, by id
        for i, t in enumerate(tensors):
            self.places.setdefault(id(t), i)
        self.returned: list[Value] = []
        self.values: list[Value] = []
        self.targets: list[Target] = []
        self.roots: list[tuple[int, Node, Value]] = []
        self.layouts: dict[int, Layout] = {}
        self.tree: Any = None

    def whose(self, t: Tensor) -> tuple[int | None, Tensor | None]:
        """The number of an argument, or the tensor itself."""
        place = self.places.get(id(t))
        return (None, t) if place is None else (place, None)

    def outputs(self, out: Any) -> None:
        leaves, self.tree = flatten(out)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor):
                raise TraceError(
                    f"jit: the function returned a {type(leaf).__name__} ({leaf!r:.60}); only "
                    f"tensors and containers of them have values that change from call to call: "
                    f"return eg.tensor(...) of it, or leave it out"
                )
            inside = self.tracer.inside(leaf)
            value, node = self.tracer.value_of(inside), inside._node
            self.note_layout(i, inside._data)
            self.returned.append(value)
            if node is not None and recording() and not used_up(node):
                self.roots.append((i, node, value))

    def output(self, payload: Any) -> int:
        self.values.append(self.tracer.value_of(wrap(payload)))
        number = len(self.returned) + len(self.values) - 1
        self.note_layout(number, payload)
        return number

    def note_layout(self, number: int, payload: Any) -> None:
        layout = layout_of(payload)
        if layout is not None:
            self.layouts[number] = layout

    def changes(self) -> None:
        """What the function gave to tensors from outside, and to their gradients."""
        grads = self.tracer.new_grads()
        for capture, payload, node in self.tracer.rebound():
            self.check_node(capture.inside, node, capture.tensor)
            if payload is not capture.traced:
                number = self.output(payload)
                grad = capture.owner is not None
                owner = capture.tensor if capture.owner is None else capture.owner
                remade = not grad and id(owner) in self.tracer.remade
                self.targets.append(
                    Target(*self.whose(owner), grad, number, same=grad, remade=remade)
                )
        for touch, now in grads:
            node = touch.tensor._node
            if node is not None and not node.is_leaf:
                raise TraceError(
                    "jit: backward inside the function reaches an argument that is the result of "
                    "an op outside; detach() it, or call backward outside"
                )
            result = None if now is None else self.output(now._data)
            self.targets.append(Target(*self.whose(touch.tensor), True, result))

    def check_node(self, before: Any, after: Any, t: Tensor) -> None:
        if after is not before and (before is None) != (after is None):
            raise TraceError(
                f"jit: a tensor of shape {t.shape} from outside was given a value that requires "
                f"grad; change it under no_grad(), or return the new value"
            )

    def origins(self) -> list[InputOrigin]:
        return [
            InputOrigin(
                *self.whose(c.tensor if c.owner is None else c.owner),
                c.owner is not None,
                layout_of(c.traced),
            )
            for c in self.inputs()
        ]

    def inputs(self) -> list[Capture]:
        """The captures that are inputs of their own, in the order of these inputs."""
        return [c for c in self.tracer.captures if c.alias is None]

    def grad_guards(self) -> list[GradGuard]:
        return [
            GradGuard(*self.whose(t.tensor), t.grad is not None)
            for t in self.tracer.touched.values()
            if t.seen
        ]

    def record(self, guards: list[Guard], once: bool, read_arguments: bool) -> Record:
        graph = self.tracer.graph
        graph.outputs = [*self.returned, *self.values]
        if self.tracer.latest_call is not None:  # what communicates is done, whoever uses it
            graph.outputs.append(self.tracer.latest_call)
        gradients = self.gradients() if self.roots else None
        self.roots = []
        return Record(
            graph,
            self.origins(),
            self.targets,
            len(self.returned),
            self.tree,
            self.grad_guards(),
            [(c.tensor, c.alias) for c in self.tracer.captures if c.alias is not None],
            self.tracer.shared_grads,
            list(self.tracer.modules.values()),
            Guards([*guards, *self.tracer.guards]),
            once,
            read_arguments,
            self.tracer.device,
            gradients,
            [act for _, act in self.tracer.last_acts],
            self.layouts,
        )

    def escapees(self, allowed: bool) -> list[Tensor]:
        """Tensors made inside that live on; each becomes a target."""
        tracer = self.tracer
        tracer.forget()
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
        leaves = [(i, c.inside) for i, c in enumerate(self.inputs()) if c.owner is None]
        wanted = [(i, node) for i, node in leaves if node is not None]
        if not wanted:
            return None
        inputs = len(graph.inputs)
        tracer.rewind()
        tracer.latest_call = None  # backward begins when all of forward is done
        targets = [node for _, node in wanted]
        with tracer.active():
            seeds: list[Any] = [
                tracer.traced(graph.input(v.shape, v.dtype, user_line()), tracer.device)
                for _, _, v in self.roots
            ]
            layouts = [self.seed_layout(i) for i, _, _ in self.roots]
            seeds = [
                s if layout is None else layout.around(wrap(s))
                for s, layout in zip(seeds, layouts, strict=True)
            ]
            work = Pass(
                [(n, wrap(s)) for (_, n, _), s in zip(self.roots, seeds, strict=True)],
                retain_graph=False,
                create_graph=False,
                targets=targets,
                accumulate=False,
                # hooks of the inputs run outside, when the gradients arrive there
                without_hooks=frozenset(targets),
            )
            work.run()
            found = [(i, work.captured.get(node)) for i, node in wanted]
            grads = [(i, tracer.inside(g)._data) for i, g in found if g is not None]
        return self.cut(graph, border, inputs, grads, layouts)

    def seed_layout(self, result: int) -> Layout | None:
        """Of the gradient that is expected for a result."""
        layout = self.layouts.get(result)
        return None if layout is None else layout.of_gradient()

    def cut(
        self,
        graph: Graph,
        border: int,
        inputs: int,
        grads: list[tuple[int, Any]],
        seed_layouts: list[Layout | None],
    ) -> Gradients:
        wanted = [self.tracer.value_of(wrap(payload)) for _, payload in grads]
        if self.tracer.latest_call is not None:
            wanted.append(self.tracer.latest_call)
        live = reachable(wanted)
        seeds = graph.inputs[inputs : inputs + len(self.roots)]
        del graph.inputs[inputs : inputs + len(self.roots)]
        first_seen = {*graph.inputs[inputs:]}  # tensors that only backward touches: forward's too
        back = Rewriter()
        residuals: list[int] = []
        given = {*seeds, *first_seen}
        later = [v for v in in_order(live) if v.number >= border and v not in given]
        needed = {a for v in later for a in v.args} | {*wanted}
        for v in in_order(needed):
            outside = v in first_seen or (v.number < border and v not in given)
            if outside and v.kind not in ("full", "constant"):
                graph.outputs.append(v)
                residuals.append(len(graph.outputs) - 1)
                back.made[v] = back.input(v)
        for s in seeds:
            back.made[s] = back.input(s)
        made = back.copy(wanted)
        return Gradients(
            made,
            residuals,
            [i for i, _, _ in self.roots],
            [i for i, _ in grads],
            seed_layouts,
            [layout_of(payload) for _, payload in grads],
        )

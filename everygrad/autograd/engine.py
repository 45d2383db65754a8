"""Reverse mode: traverses the graph from a root and sums gradients. Knows no op and no device.

Iterative and linear: one pass counts how often each node is used, a second runs every node once
its gradient is complete. A gradient is dropped as soon as it has been used. Contributions are
summed in an order fixed by the graph alone, so that the parallel pass gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Any

from numpy import ndarray

from everygrad.amp.policy import policy, uncast
from everygrad.autograd.graph import Leaf, Node, PartNode
from everygrad.autograd.modes import (
    OFF,
    anomaly_enabled,
    enable_grad,
    no_grad,
    recording,
    set_recording,
)
from everygrad.core.context import intercepted, tracing
from everygrad.core.scopes import drain
from everygrad.core.tensor import Tensor, Wrapped, set_grad, shared, stand_in, wrap
from everygrad.errors import AnomalyError, EverygradError, FreedGraphError, GradientError

LeafReady = Callable[[Tensor], None]
_GRAD = repeat("_grad")
# A gradient in flight is a Tensor, or for a node with several results a tuple of them (None: zero).
Grad = Any
SPARE = 1 << 16  # bytes that a gradient may keep beside its own
_NOTHING: Sequence[Any] = repeat(None)  # type: ignore[assignment]  # as long as needed


def uses(roots: Iterable[Node], usable: bool = False) -> dict[Node, int]:
    """Every node reachable from `roots`, with the number of edges that lead to it from there.

    `usable` refuses a graph of which an earlier pass has used up a part.
    """
    counts: dict[Node, int] = dict.fromkeys(roots, 0)
    todo = list(counts)
    more = todo.append
    for node in todo:  # grows while it is read: breadth first without recursion
        if usable and node.saved is None:
            raise _freed(node)
        for parent in node.parents:
            if parent is not None:
                if parent in counts:
                    counts[parent] += 1
                else:
                    counts[parent] = 1
                    more(parent)
    return counts


def on_path(counts: dict[Node, int], targets: Iterable[Node]) -> set[Node]:
    """Those nodes of `counts` from which one of `targets` can be reached."""
    children: dict[Node, list[Node]] = {}
    for node in counts:
        for parent in node.parents:
            if parent is not None:
                children.setdefault(parent, []).append(node)
    todo = [t for t in targets if t in counts]
    found = set(todo)
    for node in todo:
        for child in children.get(node, ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def fitted(g: Grad, shape: tuple[int, ...]) -> Grad:
    """A contribution summed down to the shape of the input it belongs to."""
    return g if type(g) is tuple or g._data.shape == shape else g.sum_to(shape)


class Unsummed:
    """A gradient whose contributions are kept apart until all have come, where one sum of all is
    less work than a sum for each. To the engine it looks like what it will be: it has a shape."""

    __slots__ = ()
    shape: tuple[int, ...]

    @property
    def _data(self) -> Unsummed:
        return self

    def added(self, other: Grad) -> Grad:
        """This and one more contribution."""
        raise NotImplementedError

    def total(self) -> Grad:
        """The sum."""
        raise NotImplementedError


def complete(g: Grad) -> Grad:
    """A gradient to which nothing will be added any more."""
    return g.total() if isinstance(g, Unsummed) else g


def add(a: Grad, b: Grad) -> Grad:
    """The sum of two contributions."""
    if isinstance(a, Unsummed):
        return a.added(b)
    if isinstance(b, Unsummed):
        return b.added(a)
    if type(a) is tuple:
        return tuple(
            q if p is None else p if q is None else p + q for p, q in zip(a, b, strict=True)
        )
    return a + b


def renamed(g: Grad) -> Grad:
    """The gradient under a name of its own: `p.grad *= 0.5` must not reach anyone else's."""
    return wrap(shared(g), stand_in(g)._node) if isinstance(g, Tensor) else g


def kept(g: Grad) -> Grad:
    """The gradient under a name of its own, for longer than this pass: what is a small part of an
    array, such as one of several results of a kernel, would keep all of it."""
    found = renamed(g)
    payload = found._data if isinstance(found, Tensor) else None
    if type(payload) is not ndarray or type(base := payload.base) is not ndarray:
        return found
    is_part = base.nbytes > 2 * payload.nbytes + SPARE and found._node is None
    return wrap(payload.copy()) if is_part else found


def has_nan(g: Tensor) -> bool:
    """Whether a value has a NaN, whatever transformations are wrapped around it."""
    while isinstance(g._data, Wrapped):
        if g._data.plain:  # traced: there is no value to look at
            return False
        g = g._data.inner
    return bool(g.isnan().any())


def run_hooks(node: Node, g: Grad) -> Grad:
    """The gradient after the node's hooks; a hook may replace it by one of the same shape."""
    # a copy: a hook may add or remove hooks while it runs
    for hook in list(node.hooks.values()) if node.hooks else ():
        changed = hook(renamed(g))
        if changed is not None:
            if not isinstance(changed, Tensor):
                raise GradientError(
                    f"hook on {node}: returned {type(changed).__name__}; "
                    f"return a Tensor to replace the gradient, or None to keep it"
                )
            if changed.shape != g.shape or changed.dtype is not g.dtype:
                raise GradientError(
                    f"hook on {node}: returned {changed.dtype}{list(changed.shape)}, "
                    f"the gradient is {g.dtype}{list(g.shape)}"
                )
            g = changed
    return g


def explain(node: Node, error: BaseException) -> EverygradError:
    """The error of a node's derivative, with the op's name and where it was recorded."""
    name = getattr(node.op, "name", "leaf")
    where = node.where or "a line that anomaly mode would name (with eg.detect_anomaly(): ...)"
    kind = type(error) if isinstance(error, EverygradError) else GradientError
    return kind(f"backward of {name}, recorded at {where}: {type(error).__name__}: {error}")


def _freed(node: Node) -> FreedGraphError:
    return FreedGraphError(
        f"backward: the graph at {node} was already used up by an earlier backward; "
        f"pass retain_graph=True to the earlier one"
    )


class PassHook:
    """A hook of leaves that is told which pass completes them, since it waits for several."""

    def __call__(self, x: Tensor) -> None:
        raise GradientError("a hook of a pass was called by itself")

    def ready(self, work: Pass, x: Tensor) -> None:
        """The leaf x is complete in this pass."""
        raise NotImplementedError

    def asked(self, reached: bool, accumulates: bool) -> None:
        """A pass was asked for the gradient of this leaf by name. `reached`: it is in the graph;
        `accumulates`: into `.grad`. Raises where that is not what it seems."""

    def of_all(self, loss: Tensor) -> Tensor:
        """A loss as that of all whose gradients this leaf is given."""
        return loss


def of_all(leaves: Iterable[Tensor], loss: Tensor) -> Tensor:
    """A loss as that of all who have a share in the gradients of these leaves."""
    for x in leaves:
        for hook in _pass_hooks(stand_in(x)._node):
            return hook.of_all(loss)
    return loss


def give(x: Tensor, g: Tensor) -> None:
    """Add a gradient that no pass brought to a leaf, as one would: its hooks are run."""
    node = stand_in(x)._node
    assert isinstance(node, Leaf)
    g = run_hooks(node, g)
    held = x.grad
    set_grad(x, renamed(g) if held is None else held + g)
    for hook in list(node.after_hooks.values()) if node.after_hooks else ():
        if not isinstance(hook, PassHook):
            hook(x)


def _pass_hooks(node: Node | None) -> list[PassHook]:
    hooks = node.after_hooks if isinstance(node, Leaf) else None
    return [hook for hook in (hooks or {}).values() if isinstance(hook, PassHook)]


def ask(targets: Sequence[Node], work: Pass) -> None:
    """Tell those who wait for leaves that these are asked for by name."""
    for node in targets:
        for hook in _pass_hooks(node):
            hook.asked(node in work.counts, work.accumulate)


class Pass:
    """One backward pass: its counts, its gradients in flight, what to do at the leaves."""

    def __init__(
        self,
        roots: Sequence[tuple[Node, Grad]],
        *,
        retain_graph: bool,
        create_graph: bool,
        targets: Sequence[Node] | None = None,
        accumulate: bool = True,
        leaf_ready: LeafReady | None = None,
        keep_mode: bool = False,
        without_hooks: frozenset[Node] = frozenset(),
    ) -> None:
        self.retain_graph = retain_graph
        self.create_graph = create_graph
        self.accumulate = (
            accumulate  # into .grad of the leaves; otherwise only `captured` is filled
        )
        self.leaf_ready = leaf_ready
        self.keep_mode = keep_mode  # inside a transformation the graphs further out go on recording
        self.without_hooks = without_hooks  # leaves whose hooks run elsewhere
        self.captured: dict[Node, Grad] = {}
        self.changed: list[Tensor] = []  # whose .grad was, and what it was before
        self.held: list[Tensor | None] = []
        self.at_end: list[Callable[[], None]] = []  # when all leaves are complete
        self.undo = self.undoing()
        self.anomaly = anomaly_enabled()
        # what cannot be done is refused before anything is changed
        self.counts = uses([node for node, _ in roots], usable=targets is None)
        self.targets: frozenset[Node] | None = None
        self.wanted: set[Node] | None = None
        if targets is not None:
            self.targets = frozenset(targets)
            if not self.targets.issuperset([node for node in self.counts if node.is_leaf]):
                self.wanted = on_path(self.counts, targets)  # otherwise every node leads to one
            for node in self.counts if self.wanted is None else self.wanted:
                if node.saved is None:
                    raise _freed(node)
        self.grads: dict[Node, Grad] = {}
        for node, given in roots:
            # a tracer must know a seed that no op has touched yet: rules may read its payload
            g = renamed(given) if intercepted() else given
            self.grads[node] = add(self.grads[node], g) if node in self.grads else g
        self.start = [node for node in self.grads if not self.counts[node]]

    def needs(self, node: Node) -> bool:
        return self.wanted is None or node in self.wanted

    def reaches(self, x: Tensor) -> bool:
        """Whether a gradient may come to the tensor."""
        node = stand_in(x)._node
        return node in self.counts and self.needs(node)

    def asked(self, node: Node) -> Node:
        """The node as its op's rules see it: without the parents whose gradients lead nowhere, so
        that none is computed. What has hooks shows them its gradient wherever it leads."""
        wanted = self.wanted
        if wanted is None:
            return node
        kept = tuple(
            [p if p in wanted or (p and p.hooks is not None) else None for p in node.parents]
        )
        return node if kept == node.parents else PartNode(node, kept)

    def modes(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """What is recorded while the pass runs; and that it is in the dtypes forward chose."""
        usual: AbstractContextManager[Any] = nullcontext()
        if not self.keep_mode:
            usual = enable_grad() if self.create_graph else no_grad()
        return usual, nullcontext() if policy() is None else uncast()

    def run(self) -> None:
        """The whole pass on this thread."""
        try:
            if self.create_graph or self.keep_mode or policy() is not None:
                usual, dtypes = self.modes()
                with usual, dtypes:
                    self.traverse()
                return
            before = recording()
            try:  # the usual mode, without an object for it
                set_recording(OFF)
                self.traverse()
            finally:
                set_recording(before)
        except BaseException:
            drain(self.undo)
            raise

    def undoing(self) -> Iterator[None]:
        """What makes every `.grad` what it was, for a pass that fails: `drain` does it by one
        native call, prepared here, since the next signal may come while the last is on its way."""
        if tracing.get() is not None:  # which alone knows them
            return map(set_grad, self.changed, self.held)
        return map(setattr, self.changed, _GRAD, self.held)

    def traverse(self) -> None:
        """Every node, once its gradient is complete. The loop is hot: every name in it is local.

        A gradient that is complete waits beside its node in `ready`; `grads` holds the others. The
        node made ready last comes next, and does not go through the list.
        """
        retain, create = self.retain_graph, self.create_graph
        simple = not self.anomaly
        usual: set[Node] | None = None  # the nodes without anything to be done beside; None: all
        if self.wanted is not None or not all(t.is_leaf for t in self.targets or ()):
            nodes = self.counts if self.wanted is None else self.wanted
            usual = set(nodes).difference(self.targets or ())
        plain = simple and usual is None
        grads, counts = self.grads, self.counts
        ready: list[Any] = []
        for root in self.start[::-1]:
            if root.is_leaf:
                self.finish_leaf(root, grads.pop(root))
            else:
                ready += (root, grads.pop(root))
        node: Any = None
        g: Grad = None
        while ready or node is not None:
            if node is None:
                g = ready.pop()
                node = ready.pop()
            if (
                node.hooks is None
                and g is not None
                and (plain or (simple and (usual is None or node in usual)))
            ):
                try:
                    results = node.op.vjp(node if plain else self.asked(node), g, create)
                except Exception as error:
                    raise explain(node, error) from error
                if not retain:
                    node.saved = None
            else:
                results = self.step(node, g) or _NOTHING
            shape = node.shape
            edges = zip(node.parents, results)  # noqa: B905  # a keyword takes 0.1 us
            node = None
            for parent, c in edges:
                if parent is None:
                    continue
                # only an input of another shape than the result can have been broadcast
                if parent.shape != shape and c is not None:
                    c = fitted(c, parent.shape)
                if grads:
                    held = grads.pop(parent, None)
                    if held is not None:
                        if type(held) is Tensor is type(c):  # nearly always: without a call
                            c = held + c
                        else:
                            c = held if c is None else add(held, c)
                left = counts[parent]
                if left > 1:
                    counts[parent] = left - 1
                    if c is not None:
                        grads[parent] = c
                    continue
                if type(c) is not Tensor and isinstance(c, Unsummed):
                    c = c.total()
                if parent.is_leaf:  # at once, whichever operand it was
                    self.finish_leaf(parent, c)
                    continue
                if node is not None:
                    ready += (node, g)
                node = parent
                g = c
        self.end()

    def end(self) -> None:
        """All leaves are complete."""
        for act in self.at_end:
            act()

    def step(self, node: Node, g: Grad) -> Sequence[Grad] | None:
        """Hooks and derivative of one interior node; None where no gradient arrived."""
        if g is not None and node.hooks:
            g = run_hooks(node, g)
        if self.targets is not None:
            if node in self.targets:
                self.captured[node] = renamed(g)
            if not self.needs(node):
                return None
        if g is None:
            return None
        try:
            saved = node.saved  # read once: another worker may be given values for it too
            if type(saved) is not tuple:  # such nodes have hooks, {} at least: see saving.py
                saved.fulfil(node)
            results: Sequence[Grad] = node.op.vjp(self.asked(node), g, self.create_graph)
        except Exception as error:
            raise explain(node, error) from error
        if self.anomaly:
            self.check_nan(node, results)
        if not self.retain_graph:
            node.saved = None
        return results

    def check_nan(self, node: Node, results: Sequence[Grad]) -> None:
        for i, g in enumerate(results):
            if isinstance(g, Tensor) and has_nan(g):
                raise AnomalyError(
                    f"backward of {node.op.name}: the gradient of input {i}, shape "
                    f"{list(g.shape)}, has NaN; the op was recorded at {node.where or 'unknown'}"
                )

    def finish_leaf(self, node: Node, g: Grad) -> None:
        """A leaf's gradient is complete: hooks, `.grad`, then those who wait for it."""
        assert isinstance(node, Leaf)
        if g is None or not self.needs(node):
            return
        if node.hooks and node not in self.without_hooks:
            g = run_hooks(node, g)
        if self.targets is not None and node in self.targets:
            self.captured[node] = kept(g)
        tensor = node.tensor()
        if not self.accumulate or tensor is None:
            return
        held = tensor.grad
        self.held.append(held)
        self.changed.append(tensor)
        set_grad(tensor, kept(g) if held is None else held + g)
        for hook in list(node.after_hooks.values()) if node.after_hooks else ():
            if isinstance(hook, PassHook):
                hook.ready(self, tensor)
            else:
                hook(tensor)
        if self.leaf_ready is not None:
            self.leaf_ready(tensor)

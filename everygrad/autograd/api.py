"""What users call on the engine: `backward`, `autograd.grad`, hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from everygrad.autograd.engine import LeafReady, Pass, ask
from everygrad.autograd.graph import HookHandle, Leaf, Node
from everygrad.autograd.modes import _Mode
from everygrad.core.scopes import Settings, drain
from everygrad.core.tensor import Tensor, Wrapped, set_grad, stand_in
from everygrad.errors import ArgumentError, DeviceError, DtypeError, GradientError, ShapeError

_leaf_ready: ContextVar[tuple[LeafReady, ...]] = ContextVar("everygrad_leaf_ready", default=())


def seed_for(op: str, root: Tensor, gradient: Tensor | None) -> Tensor:
    """The gradient a pass starts with, checked against its root."""
    if stand_in(root)._node is None:
        raise GradientError(
            f"{op}: the root does not depend on any tensor that requires grad; "
            f"set requires_grad=True on what you want derivatives for"
        )
    if gradient is None:
        if root._data.shape and root.size != 1:
            raise GradientError(
                f"{op}: the root has shape {root.shape}; pass gradient= of that shape, "
                f"or reduce it to one number with sum() or mean()"
            )
        if root.dtype.is_complex:
            raise GradientError(f"{op}: the root is {root.dtype}; pass gradient=, or take real()")
        return _ones_like(root)
    if not isinstance(gradient, Tensor):
        raise ArgumentError(f"{op}: gradient must be a Tensor, got {type(gradient).__name__}")
    if gradient.device != root.device:
        raise DeviceError(f"{op}: gradient is on {gradient.device}, the root on {root.device}")
    if gradient.shape != root.shape:
        raise ShapeError(f"{op}: gradient has shape {gradient.shape}, the root {root.shape}")
    if gradient.dtype is not root.dtype:
        raise DtypeError(f"{op}: gradient is {gradient.dtype}, the root {root.dtype}")
    return gradient


def _ones_like(x: Tensor) -> Tensor:
    ones = x.new_ones()
    return x._data.beside(ones) if isinstance(x._data, Wrapped) and x._data.is_shard else ones


def _all_of(hooks: tuple[LeafReady, ...]) -> LeafReady | None:
    def call(tensor: Tensor) -> None:
        for hook in hooks:
            hook(tensor)

    return call if hooks else None


def _run(work: Pass, workers: int) -> None:
    if not isinstance(workers, int) or workers < 1:
        raise ArgumentError(f"backward: workers must be a positive integer, got {workers!r}")
    if workers > 1:
        # loads the thread pool, which a sequential pass does without
        import_module("everygrad.autograd.parallel").run_parallel(work, workers)
    else:
        work.run()


def _target(op: str, x: Any) -> Node:
    if not isinstance(x, Tensor):
        raise ArgumentError(f"{op}: inputs must be Tensors, got {type(x).__name__}")
    node = stand_in(x)._node
    if node is None:
        raise GradientError(f"{op}: an input (shape {x.shape}) does not require grad")
    return node


def backward(
    root: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
    workers: int = 1,
) -> None:
    """Add the derivative of `root` to the `.grad` of the leaves it was made from.

    gradient      where to start: required unless the root has one element
    retain_graph  keep the graph for another pass; as create_graph unless given
    create_graph  record the pass itself, for derivatives of higher order
    inputs        only these tensors, not every leaf
    workers       threads; any number gives the same bits

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
    """
    seed = seed_for("backward", root, gradient)
    nodes = None if inputs is None else [_target("backward", x) for x in inputs]
    if inputs is not None and not inputs:
        raise ArgumentError("backward: inputs is empty; leave it out to reach every leaf")
    node = stand_in(root)._node
    assert node is not None
    ready = _leaf_ready.get()
    others = [x for x in inputs or () if not x.is_leaf]
    results = {_target("backward", x): (x, x.grad) for x in others}
    work = Pass(
        [(node, seed)],
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        targets=nodes,
        leaf_ready=_all_of(ready),
    )
    ask(nodes or (), work)
    _run(work, workers)
    if results:  # leaves were given theirs by the pass
        try:
            for place, (x, held) in results.items():
                g = work.captured.get(place)
                if g is not None:
                    g = g if held is None else held + g
                    work.held.append(held)
                    work.changed.append(x)
                    set_grad(x, g)
        except BaseException:
            drain(work.undo)
            raise


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    workers: int = 1,
) -> tuple[Any, ...]:
    """The derivatives of `outputs` with respect to `inputs`, as a tuple; no `.grad` changes.

    >>> import everygrad as eg
    >>> x = eg.tensor(3.0, requires_grad=True)
    >>> eg.autograd.grad(x * x, x)
    (tensor(6.),)
    """
    outs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    ins = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    seeds = _seeds(outs, grad_outputs)
    targets = [_target("grad", x) for x in ins]
    roots = [(stand_in(o)._node, s) for o, s in zip(outs, seeds, strict=True)]
    work = Pass(
        roots,  # type: ignore[arg-type]  # seed_for refused roots without a node
        retain_graph=create_graph if retain_graph is None else retain_graph,
        create_graph=create_graph,
        targets=targets,
        accumulate=False,
    )
    ask(targets, work)
    if not allow_unused:  # before the pass, which uses the graph up
        _all_used(ins, [node in work.counts for node in targets])
    _run(work, workers)
    found = tuple(work.captured.get(node) for node in targets)
    if not allow_unused:
        _all_used(ins, [g is not None for g in found])
    return found


def _all_used(inputs: list[Tensor], used: list[bool]) -> None:
    if not all(used):
        i = used.index(False)
        raise GradientError(
            f"grad: input {i} (shape {inputs[i].shape}) was not used to make the outputs; "
            f"pass allow_unused=True to get None for it"
        )


def _seeds(outs: list[Tensor], given: Any) -> list[Tensor]:
    if not outs:
        raise ArgumentError("grad: needs at least one output")
    seeds = [given] if isinstance(given, Tensor) else list(given or [None] * len(outs))
    if len(seeds) != len(outs):
        raise ArgumentError(f"grad: {len(seeds)} grad_outputs for {len(outs)} outputs")
    return [seed_for("grad", o, s) for o, s in zip(outs, seeds, strict=True)]


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> HookHandle:
    """Call `hook(gradient)` once in each backward pass, on the summed gradient of this tensor.

    A Tensor it returns replaces the gradient. The handle's `remove()` takes the hook away.
    """
    if x._node is None:
        raise GradientError("register_hook: this tensor does not require grad")
    return x._node.add_hook(hook)


def register_post_accumulate_grad_hook(x: Tensor, hook: Callable[[Tensor], None]) -> HookHandle:
    """Call `hook(tensor)` once this leaf's `.grad` is complete."""
    if not isinstance(x._node, Leaf):
        raise GradientError(
            "register_post_accumulate_grad_hook: only a leaf accumulates a gradient"
        )
    if x._node.after_hooks is None:
        x._node.after_hooks = {}
    handle = HookHandle(x._node.after_hooks)
    x._node.after_hooks[handle.id] = hook
    return handle


class leaf_ready_hook(_Mode):  # noqa: N801  # read as a phrase, as the modes are
    """Within the block, every backward pass calls `hook(leaf)` as soon as a leaf is complete.

    Leaves come in the order the pass completes them, so communication can overlap the rest.
    """

    def __init__(self, hook: LeafReady) -> None:
        super().__init__()
        self.hook = hook

    def settings(self) -> Settings:
        return ((_leaf_ready, (*_leaf_ready.get(), self.hook)),)


for _method in (backward, register_hook, register_post_accumulate_grad_hook):
    setattr(Tensor, _method.__name__, _method)

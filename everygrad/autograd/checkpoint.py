"""Gradient checkpointing: keep the graph, drop what it saved, compute it again when it is needed.

The function runs once and is recorded as usual, except that its nodes keep a promise in place of
saved values. The first node whose derivative needs them runs the function again, in the same random
state, and hands every node of the first run what its twin of the second run saved. The graph is the
plain one, so captured tensors, repeated inputs, hooks, several results, nesting and derivatives of
any order need nothing special.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from everygrad.autograd.graph import Node
from everygrad.autograd.modes import at_depth, enable_grad, is_grad_enabled, transform_depth
from everygrad.autograd.saving import Recorder, recorder
from everygrad.errors import ArgumentError, GradientError
from everygrad.ops.random import Generator, default_generator
from everygrad.tensor import Tensor, wrap


class _Frame(Recorder):
    """One checkpointed call: how to run it again, and who waits for the result."""

    def __init__(self, f: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.f = f
        # names may be given other values before the second run: keep these values
        self.args = tuple(_same_value(a) for a in args)
        self.kwargs = {k: _same_value(v) for k, v in kwargs.items()}
        self.depth = transform_depth()
        self.states = {default_generator: default_generator.get_state()}
        self.nodes: list[weakref.ref[Node]] = []
        self.notes: list[tuple[str, Any, tuple[Any, ...]]] = []
        self.lock = threading.RLock()

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Tensor]) -> Any:
        self.nodes.append(weakref.ref(node))
        self.notes.append((node.op.name, node.shape, _leaves_of(inputs)))
        return _Promise(self)

    def drawing(self, generator: Generator) -> None:
        if generator not in self.states:
            self.states[generator] = generator.get_state()

    def recompute(self) -> None:
        """Run again and hand out what was saved."""
        twin = _Twin()
        now = {g: g.get_state() for g in self.states}
        for generator, state in self.states.items():
            generator.set_state(state)
        token = recorder.set(twin)
        try:
            with at_depth(self.depth), enable_grad():
                self.f(*self.args, **self.kwargs)
        finally:
            recorder.reset(token)
            for generator, state in now.items():
                generator.set_state(state)
        self.check(twin)
        for ref, values in zip(self.nodes, twin.values, strict=True):
            node = ref()
            if node is not None and isinstance(node.saved, _Promise):
                node.saved = values

    def check(self, twin: _Twin) -> None:
        """Refuse a second run that did other work, or did it on other values."""
        for i, ((name, shape, leaves), again) in enumerate(zip(self.notes, twin.notes, strict=False)):
            if (name, shape) != again[:2]:
                raise GradientError(
                    f"checkpoint: op {i} was {name} {list(shape)} and is {again[0]} "
                    f"{list(again[1])} when computed again; the function must do the same work"
                )
            for before, after in zip(leaves, again[2], strict=True):
                if before is not None and (after is None or before() is not after()):
                    raise GradientError(
                        f"checkpoint: a tensor that {name} reads was given another value between "
                        f"forward and backward; run backward before changing parameters"
                    )
        if len(self.notes) != len(twin.notes):
            raise GradientError(
                f"checkpoint: {len(self.notes)} ops were recorded, {len(twin.notes)} when computed "
                f"again; the function must do the same work"
            )


class _Twin(Recorder):
    """The second run: keeps what every node saved."""

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []
        self.notes: list[tuple[str, Any, tuple[Any, ...]]] = []

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Tensor]) -> Any:
        self.values.append(values)
        self.notes.append((node.op.name, node.shape, _leaves_of(inputs)))
        return values


class _Promise:
    """Stands in a node for values that can be computed again."""

    __slots__ = ("frame",)

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame

    def fulfil(self, node: Node) -> None:
        with self.frame.lock:
            if isinstance(node.saved, _Promise):
                self.frame.recompute()


def _same_value(x: Any) -> Any:
    return wrap(x._data, x._node) if isinstance(x, Tensor) else x


def _leaves_of(inputs: Sequence[Tensor]) -> tuple[Any, ...]:
    """The payloads of inputs that are leaves: parameters, which someone might change meanwhile."""
    return tuple(
        weakref.ref(t._data) if t._node is not None and t._node.is_leaf else None for t in inputs
    )


def checkpoint(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """f(*args, **kwargs), keeping nothing for backward: f runs again when its derivative is needed.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0, 2.0], requires_grad=True)
    >>> eg.checkpoint(lambda v: eg.exp(v).sum(), x).backward()
    >>> x.grad
    tensor([2.7183, 7.3891])
    """
    if not callable(f):
        raise ArgumentError(f"checkpoint: takes a function, got {type(f).__name__}")
    if not is_grad_enabled():
        return f(*args, **kwargs)
    token = recorder.set(_Frame(f, args, kwargs))
    try:
        with enable_grad():
            return f(*args, **kwargs)
    finally:
        recorder.reset(token)


def checkpoint_sequential(
    functions: Sequence[Callable[..., Any]], segments: int, x: Any
) -> Any:
    """x through the functions one after the other, in `segments` checkpointed parts."""
    if isinstance(segments, bool) or not isinstance(segments, int) or segments < 1:
        raise ArgumentError(
            f"checkpoint_sequential: segments must be a positive integer, got {segments!r}"
        )
    steps = list(functions)

    def through(part: Sequence[Callable[..., Any]]) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            for fn in part:
                value = fn(value)
            return value

        return run

    count = min(segments, len(steps))
    for i in range(count):
        part = steps[len(steps) * i // count : len(steps) * (i + 1) // count]
        x = checkpoint(through(part), x)
    return x

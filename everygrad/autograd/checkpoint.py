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
from contextlib import nullcontext
from contextvars import copy_context
from typing import Any, NamedTuple

from everygrad.autograd.autocast import policy, under
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import enable_grad, is_grad_enabled
from everygrad.autograd.saving import Recorder, recorder
from everygrad.backends.base import tracing
from everygrad.errors import ArgumentError, GradientError
from everygrad.ops.random import Generator
from everygrad.tensor import Tensor, shared, wrap


class _Note(NamedTuple):
    """One recorded op, to be found again in the second run."""

    op: str
    shape: Any
    inputs: tuple[tuple[Any, Any, bool], ...]  # each tensor and its payload, weakly; is it a leaf

    @staticmethod
    def of(node: Node, inputs: Sequence[Tensor]) -> _Note:
        seen = tuple(
            (weakref.ref(t), weakref.ref(t._data), t._node is not None and t._node.is_leaf)
            for t in inputs
        )
        return _Note(node.op.name, node.shape, seen)


class _Frame(Recorder):
    """One checkpointed call: how to run it again, and who waits for the result."""

    def __init__(self, f: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.f = f
        # names may be given other values before the second run: keep these values
        self.args = tuple(_same_value(a) for a in args)
        self.kwargs = {k: _same_value(v) for k, v in kwargs.items()}
        self.around: Recorder | None = recorder.get()
        self.context = copy_context()  # modes and transformations, for the second run
        self.context.run(recorder.set, None)
        self.states: dict[Generator, Any] = {}  # before the first draw
        self.nodes: list[weakref.ref[Node]] = []
        self.notes: list[_Note] = []
        self.moved: set[tuple[int, int]] = (
            set()
        )  # inputs that the function itself gave another value
        self.running = True
        self.lock = threading.RLock()

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Tensor]) -> Any:
        self.nodes.append(weakref.ref(node))
        self.notes.append(_Note.of(node, inputs))
        return _Promise(self)

    def stream(self, generator: Generator) -> Generator:
        real: Generator = generator if self.around is None else self.around.stream(generator)
        if generator not in self.states:
            self.states[generator] = real.state.detach()
        return real

    def finish(self) -> None:
        """The first run is over: from here on, nothing it read may be given another value."""
        self.running = False
        self.around = None
        for i, note in enumerate(self.notes):
            for j, (ref, payload, _) in enumerate(note.inputs):
                t = ref()
                if t is not None and t._data is not payload():
                    self.moved.add((i, j))

    def recompute(self) -> None:
        """Run again and hand out what was saved."""
        twin = _Twin(self.states)
        tracer = tracing.get()
        with nullcontext() if tracer is None else tracer.again():
            context = self.context.copy()
            context.run(tracing.set, tracer)
            context.run(self.run_again, twin)
        self.check(twin)
        # a function that differentiates inside asks before its first run is over
        for ref, values in zip(self.nodes, twin.values, strict=not self.running):
            node = ref()
            if node is not None and isinstance(node.saved, _Promise):
                node.saved = values

    def run_again(self, twin: _Twin) -> None:
        recorder.set(twin)
        with enable_grad(), under(policy()):  # the block it was called in may be over
            self.f(*self.args, **self.kwargs)

    def check(self, twin: _Twin) -> None:
        """Refuse a second run that did other work, or did it on other values."""
        for i, (note, again) in enumerate(zip(self.notes, twin.notes, strict=False)):
            if (note.op, note.shape) != (again.op, again.shape):
                raise GradientError(
                    f"checkpoint: op {i} was {note.op} {list(note.shape)} and is {again.op} "
                    f"{list(again.shape)} when computed again; the function must do the same work"
                )
            for j, (before, after) in enumerate(zip(note.inputs, again.inputs, strict=True)):
                if (i, j) not in self.moved and _changed(before, after):
                    raise GradientError(
                        f"checkpoint: a tensor that {note.op} reads was given another value "
                        f"between forward and backward; run backward before changing parameters"
                    )
        ops, again_ops = len(self.notes), len(twin.notes)
        if ops > again_ops or (ops < again_ops and not self.running):
            raise GradientError(
                f"checkpoint: {ops} ops were recorded, {again_ops} when computed "
                f"again; the function must do the same work"
            )


class _Twin(Recorder):
    """The second run: keeps what every node saved, and draws the first run's random numbers."""

    def __init__(self, states: dict[Generator, Any]) -> None:
        self.states = states
        self.streams: dict[Generator, Generator] = {}
        self.values: list[tuple[Any, ...]] = []
        self.notes: list[_Note] = []

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Tensor]) -> Any:
        self.values.append(values)
        self.notes.append(_Note.of(node, inputs))
        return values

    def stream(self, generator: Generator) -> Generator:
        """A copy, so that the real one does not move and other threads are not disturbed."""
        if generator not in self.streams:
            state = self.states.get(generator, generator.state)
            copy = self.streams[generator] = Generator()
            copy.state = state.detach()
        return self.streams[generator]


class _Promise:
    """Stands in a node for values that can be computed again."""

    __slots__ = ("frame",)

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame

    def fulfil(self, node: Node) -> None:
        with self.frame.lock:
            if isinstance(node.saved, _Promise):
                self.frame.recompute()


def _changed(before: tuple[Any, Any, bool], after: tuple[Any, Any, bool]) -> bool:
    """Whether an op's input, a leaf or a captured tensor, has another value than before."""
    payload = before[1]()
    if payload is not None and payload is after[1]():
        return False
    t = before[0]()
    return before[2] or (t is not None and t._data is not payload)


def _same_value(x: Any) -> Any:
    return wrap(shared(x), x._node) if isinstance(x, Tensor) else x


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
    frame = _Frame(f, args, kwargs)
    before = recorder.get()
    try:
        recorder.set(frame)
        with enable_grad():
            return f(*args, **kwargs)
    finally:
        recorder.set(before)
        frame.finish()


def checkpoint_sequential(functions: Sequence[Callable[..., Any]], segments: int, x: Any) -> Any:
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

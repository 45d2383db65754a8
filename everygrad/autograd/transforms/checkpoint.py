"""Gradient checkpointing: keep the graph, drop what it saved, compute it again when it is needed.

The function runs once and is recorded as usual, except that its nodes keep a placeholder in place
of saved values, and that every op is noted: its parameters, and which earlier results it reads.
What else it reads came from outside (or is a constant), and is kept. The first node whose
derivative needs its values has these ops computed again, and every node is given what it would
have saved.

So the function itself never runs again. Names that stand for other values by then, tensors that
were changed, branches that would go another way make no difference; buffers it changes and random
numbers it draws count once. The graph is the plain one, so captured tensors, repeated inputs,
hooks, several results, nesting and derivatives of any order need nothing special.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, NamedTuple

from everygrad.amp.policy import uncast
from everygrad.autograd.graph import Leaf, Node
from everygrad.autograd.modes import (
    OFF,
    _Mode,
    enable_grad,
    is_grad_enabled,
    no_grad,
    recording,
    transform_depth,
)
from everygrad.autograd.saved_tensor_hooks import Recorder, recorder
from everygrad.backends import base
from everygrad.core.context import INTERCEPT, profiling, tracing
from everygrad.core.op import Op
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.dispatch import apply, execute
from everygrad.errors import ArgumentError, GradientError


class _Input(NamedTuple):
    """What a step reads: the result of an earlier one, or a payload from outside, which is kept.

    `level` is that of the node the tensor had, None if it had none: it says which nodes the op
    records. At the top a second run needs to know no more of the graph. Inside transformations
    what nodes save has graphs of its own: `node` is the tensor's place in them, if that is not
    where the step puts it.
    """

    step: int | None
    payload: Any
    level: int | None
    node: Node | None


class _Step:
    """One op of the function, or what a node of a user's own function saved (no `op`), or a tensor
    of one value (`full`)."""

    __slots__ = ("full", "inputs", "nodes", "op", "others", "params", "records")

    def __init__(self, op: Op | None, inputs: list[_Input], params: Any, records: bool) -> None:
        self.op = op
        self.inputs = inputs
        self.params = params
        self.records = records
        self.full: tuple[Any, ...] | None = None
        self.nodes: list[weakref.ref[Node] | None] = []  # in order; None: another checkpoint's
        # the same step in the checkpoints around, and its number there
        self.others: list[tuple[weakref.ref[_Frame], int]] = []

    def waits(self, frame: _Frame) -> bool:
        """Whether a node still needs what the step saves."""
        for ref in self.nodes:
            node = None if ref is None else ref()
            if node is not None and getattr(node.saved, "frame", None) is frame:
                return True
        return False


class _Frame:
    """One checkpointed call: its steps, and how to do them again."""

    def __init__(self) -> None:
        self.depth = transform_depth()  # what is wrapped deeper is wrapped inside the function
        self.context = copy_context()  # modes and transformations, for the second run
        self.steps: list[_Step] = []
        # results, by id: which step made them, and their nodes
        self.known: dict[int, tuple[weakref.ref[Any], int, Any]] = {}
        self.running = True
        self.lock = threading.RLock()

    # --- the first run ---------------------------------------------------------------------------

    def input(self, payload: Any, node: Node | None) -> _Input:
        level = None if node is None else node.level
        node = node if self.depth else None
        known = self.known.get(id(payload))
        if known is not None and known[0]() is payload:
            own = node is not None and known[2] is not None and known[2]() is node
            return _Input(known[1], None, level, None if own else node)
        return _Input(None, payload, level, node)

    def start(self, op: Op, inputs: Sequence[Tensor], params: Any) -> _Step:
        records = recording() != OFF
        read = [self.input(shared(t), t._node if records else None) for t in inputs]
        return _Step(op, read, params, records)

    def finish(self, step: _Step, out: Tensor) -> int:
        """The step is done; its number."""
        self.steps.append(step)
        number = len(self.steps) - 1
        self.learn(out, number)
        return number

    def learn(self, out: Tensor, number: int) -> None:
        node = None if out._node is None else weakref.ref(out._node)
        self.known[id(out._data)] = (weakref.ref(out._data), number, node)

    def end(self) -> None:
        self.running = False
        self.known = {}

    # --- the second ------------------------------------------------------------------------------

    def recompute(self) -> None:
        """Do what is needed again, and hand out what nodes save."""
        tracer, profiler = tracing.get(), profiling.get()
        with nullcontext() if tracer is None else tracer.again():
            context = self.context.copy()
            context.run(tracing.set, tracer)
            context.run(profiling.set, profiler)
            context.run(self.play)

    def needed(self) -> list[tuple[int, list[int]]]:
        """The numbers of the steps to do again, each with those whose results it reads last."""
        plan: list[tuple[int, list[int]]] = []
        wanted: set[int] = set()
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            if number in wanted or step.waits(self):
                read = {i.step for i in step.inputs if i.step is not None}
                plan.append((number, [*(read - wanted)]))
                wanted |= read
        return plan[::-1]

    def play(self) -> None:
        found: dict[int, Tensor] = {}
        with _noting(None), uncast(), no_grad():  # as in the first run: ops go the same ways
            for number, last in self.needed():
                self.play_step(number, found)
                for read in last:
                    del found[read]

    def play_step(self, number: int, found: dict[int, Tensor]) -> None:
        step = self.steps[number]
        if step.full is not None:
            device, *how = step.full
            out = wrap(base.get(device).full(*how))
        elif step.op is None:
            self.hand_out(step, [tuple([_payload(i, found) for i in step.inputs])])
            return
        elif not self.depth and len(step.nodes) <= 1 and not step.op.composed:
            out = self.play_plainly(step, [wrap(_payload(i, found)) for i in step.inputs])
        else:
            again = _Again()
            with _noting(again), enable_grad() if step.records else no_grad():
                out = apply(step.op, *[_placed(i, found) for i in step.inputs], **step.params)
            self.hand_out(step, again.values)
        found[number] = out
        # a function that differentiates inside asks before its run is over, or that of one around
        if self.running:
            self.learn(out, number)
        for ref, other in step.others:
            frame = ref()
            if frame is not None and frame.running:
                frame.learn(out, other)

    def play_plainly(self, step: _Step, inputs: list[Tensor]) -> Tensor:
        """The usual step: one node, on payloads without graphs of their own."""
        assert step.op is not None
        payload = execute(step.op, tuple(inputs), step.params)
        for ref in step.nodes:
            node = None if ref is None else ref()
            if node is not None and getattr(node.saved, "frame", None) is self:
                node.saved = step.op.save(node.parents, payload, inputs)
        return wrap(payload)

    def hand_out(self, step: _Step, values: list[tuple[Any, ...]]) -> None:
        if len(values) != len(step.nodes):
            assert step.op is not None
            raise GradientError(
                f"checkpoint: {step.op.name} recorded {len(step.nodes)} nodes and records "
                f"{len(values)} when computed again; please report it"
            )
        for ref, saved in zip(step.nodes, values, strict=True):
            node = None if ref is None else ref()
            if node is not None and getattr(node.saved, "frame", None) is self:
                node.saved = saved


def _payload(i: _Input, found: dict[int, Tensor]) -> Any:
    return i.payload if i.step is None else found[i.step]._data


def _placed(i: _Input, found: dict[int, Tensor]) -> Tensor:
    """What a step reads, with a place in the graph if it had one."""
    t = wrap(i.payload) if i.step is None else found[i.step]
    if i.level is None:
        return t if t._node is None else wrap(t._data)
    if i.node is not None:
        return wrap(t._data, i.node)
    if t._node is None:
        t = wrap(t._data)
        t._node = Leaf(t, i.level)
    return t


class _Taping(Recorder):
    """The checkpoints around, innermost first, each with the step it is in, or None."""

    __slots__ = ("depth", "states")

    def __init__(self, states: tuple[tuple[_Frame, _Step | None], ...]) -> None:
        self.states = states
        self.depth = -1  # up to which someone waits for ops; -1: all of them are inside a step
        for frame, step in states:
            if step is None and frame.depth > self.depth:
                self.depth = frame.depth

    def follows(self, op: Op, inputs: Sequence[Any]) -> bool:
        """Ops on what the function works with: deeper ones are made of these, and what a user's
        own function does is seen op by op."""
        return self.depth >= 0 and not op.is_users and _level(inputs) <= self.depth

    def run(self, op: Op, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
        level = _level(inputs) if len(self.states) > 1 else 0
        started = [
            f.start(op, inputs, params) if step is None and level <= f.depth else None
            for f, step in self.states
        ]
        states = [(f, new or step) for new, (f, step) in zip(started, self.states, strict=True)]
        try:
            recorder.set(_Taping(tuple(states)))
            out = apply(op, *inputs, **params)
        finally:
            recorder.set(self)
        numbers: list[tuple[weakref.ref[_Frame], int]] = []
        for (f, _), new in zip(states, started, strict=True):
            if new is not None:
                number = f.finish(new, out)
                if len(states) > 1:
                    numbers.append((weakref.ref(f), number))
        for new in started:
            if new is not None:
                new.others = numbers
        return out

    def filled(self, payload: Any, device: str, *how: Any) -> None:
        for f, inside in self.states:
            if inside is None:
                step = _Step(None, [], {}, False)
                step.full = (device, *how)
                f.finish(step, wrap(payload))

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        owner, step = self.states[0]
        mine = node.level <= owner.depth and any(v is not None for v in values)
        if step is not None:
            step.nodes.append(weakref.ref(node) if mine else None)
        for _, other in self.states[1:]:
            if other is not None:
                other.nodes.append(None)
        if not mine:
            return values
        if step is None:  # of a user's own function: what it saves are results of steps
            step = _Step(None, [owner.input(v, None) for v in values], {}, False)
            step.nodes.append(weakref.ref(node))
            owner.steps.append(step)
        return _Placeholder(owner)


class _Again(Recorder):
    """An op of the second run: keeps what every node saved."""

    def __init__(self) -> None:
        self.values: list[tuple[Any, ...]] = []

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        self.values.append(values)
        return values


class _noting(_Mode):  # noqa: N801  # a context manager, read as a phrase
    """A recorder sees every op inside, also those that no derivative is asked of: masks, draws."""

    def __init__(self, by: Recorder | None) -> None:
        super().__init__()
        self.by = by

    def settings(self) -> tuple[tuple[ContextVar[Any], Any], ...]:
        return ((recorder, self.by), *INTERCEPT)


class _Placeholder:
    """Stands in a node for values that can be computed again."""

    __slots__ = ("frame",)

    def __init__(self, frame: _Frame) -> None:
        self.frame = frame

    def fulfil(self, node: Node) -> None:
        with self.frame.lock:
            if isinstance(node.saved, _Placeholder):
                self.frame.recompute()


def _level(inputs: Sequence[Tensor]) -> int:
    """How deep the deepest of the payloads is wrapped."""
    deepest = 0
    for t in inputs:
        payload = t._data
        if isinstance(payload, Wrapped) and payload.level > deepest:
            deepest = payload.level
    return deepest


def checkpoint(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """f(*args, **kwargs), keeping for backward only what f reads: what it computes on the way is
    computed again when its derivative is needed, from the values it read. f runs once.

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
    frame = _Frame()
    around = recorder.get()
    others = around.states if isinstance(around, _Taping) else ()
    try:
        with _noting(_Taping(((frame, None), *others))), enable_grad():
            return f(*args, **kwargs)
    finally:
        frame.end()


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

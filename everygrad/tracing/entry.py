"""One compiled kind of call: where inputs are read, how it runs, who gets the outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import numpy as np
from numpy import ndarray

from everygrad.autograd.trees import unflatten
from everygrad.errors import TraceError
from everygrad.tensor import Tensor, wrap
from everygrad.tracing.gradient import attach
from everygrad.tracing.record import Record, Source, Target
from everygrad.tracing.stages import compiled, donations_of
from everygrad.tracing.verify import check


def aligned(array: Any) -> Any:
    """The array as native code takes it: in order, and at an address that fits its elements."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.ascontiguousarray(array) if flags.aligned else array.copy()


class Entry:
    """A record, compiled."""

    def __init__(
        self, record: Record, fn: Callable[..., Any], tree: Any, verify: bool, escaped: bool
    ) -> None:
        self.record = record
        self.tree = tree  # of the arguments
        self.fn = fn
        self.escaped = escaped
        self.used = False
        donated = donations_of(record)
        self.replay = compiled(record.graph, donated)
        self.backward: Any = None
        self.verify = verify
        self.sources = record.sources
        graph = record.graph
        self.facts = [
            (s, v.shape, v.dtype.np, None if s.tensor is None else s.tensor._node is None)
            for s, v in zip(record.sources, graph.inputs, strict=True)
            if s.argument is None
        ]
        self.targets = record.targets
        program = self.replay.program
        self.gifts = _gifts(record, program.donations, program.inputs, program.results)

    # --- does it fit -----------------------------------------------------------------------------

    def fits(self) -> bool:
        """Whether the tensors from outside are as they were when traced."""
        return self.misfit() is None

    def misfit(self) -> str | None:
        """What is not as it was."""
        if self.escaped and self.used:
            return "it made new state in its first call"
        for source, shape, dtype, plain in self.facts:
            t = source.tensor
            if source.grad:
                t = getattr(t, "_grad", None)
                if t is None:
                    return "a gradient it read is gone"
            array = t._data  # type: ignore[union-attr]
            if type(array) is not ndarray or array.shape != shape or array.dtype != dtype:
                return f"a tensor from outside is no longer {dtype}{list(shape)}"
            if not source.grad and (t._node is None) != plain:  # type: ignore[union-attr]
                return "a tensor from outside requires grad now, or no longer does"
        for t, there in self.record.guards:
            if (getattr(t, "_grad", None) is not None) != there:
                return "a gradient is there that was not, or is gone"
        for module, training in self.record.modules:
            if module.training != training:
                return f"{type(module).__name__} was switched between train() and eval()"
        return None

    # --- a call ----------------------------------------------------------------------------------

    def payload(self, source: Source, tensors: Sequence[Tensor]) -> Any:
        t = source.tensor if source.argument is None else tensors[source.argument]
        if source.grad:
            t = t.grad  # type: ignore[union-attr]
        if t is None:
            raise TraceError("jit: a gradient that the function reads is gone")
        return t._data

    def call(self, leaves: Sequence[Any], tensors: Sequence[Tensor]) -> Any:
        """The results for these arguments, of which `tensors` are the tensors."""
        self.used = True
        inputs = [aligned(self.payload(s, tensors)) for s in self.sources]
        # to verify, the inputs must still be there afterwards
        given = self.donated_memory(inputs) if self.gifts and not self.verify else {}
        outputs = self.replay.run(inputs, given)
        if self.verify:
            check(self.record.graph, inputs, outputs)
        count = self.record.results
        results = [wrap(a) for a in outputs[:count]]
        for target in self.targets:
            self.give(target, tensors, outputs)
        if self.record.gradients is not None:
            attach(self, leaves, tensors, results, outputs)
        return unflatten(self.record.tree, results)

    def donated_memory(self, inputs: Sequence[Any]) -> dict[int, Any]:
        """The memory of inputs that nobody but the tensor to be given a new value can see."""
        found: dict[int, Any] = {}
        for slot, number, tensor in self.gifts:
            array = tensor._data
            if array is inputs[number] and _ours_alone(array):
                found[slot] = array
        return found

    aligned = staticmethod(aligned)

    def backward_replay(self) -> Any:
        """The compiled derivative."""
        gradients = self.record.gradients
        if self.backward is None and gradients is not None:
            self.backward = compiled(gradients.graph)
        return self.backward

    def give(self, target: Target, tensors: Sequence[Tensor], outputs: Sequence[Any]) -> None:
        t = target.tensor if target.argument is None else tensors[target.argument]
        assert t is not None
        payload = None if target.output is None else outputs[target.output]
        if not target.grad:
            t.rebind(payload, t._node)
        elif payload is None:
            t._grad = None
        else:
            t._grad = wrap(payload)


def _ours_alone(array: Any) -> bool:
    """Whether only the tensor, this call's list of inputs and our own names know the array."""
    if not array.flags.writeable or getweakrefcount(array):
        return False
    owner = array.base
    if owner is None:
        return getrefcount(array) <= _KNOWN
    return False


def _known() -> int:
    """What getrefcount says of an array held by a tensor and by a call's list of inputs."""

    class Holder:
        _data: Any

    t = Holder()
    t._data = np.empty(1)
    inputs = [t._data]

    def look() -> int:
        array = t._data
        return inner(array) if array is inputs[0] else 0

    def inner(array: Any) -> int:
        return getrefcount(array)

    return look()


_KNOWN = _known()


def _gifts(record: Record, donations: Any, inputs: list[int], results: Any) -> list[Any]:
    """(output slot, input number, tensor) of the donations the program can use."""
    made = []
    for target in record.targets:
        if target.grad or target.tensor is None or target.output is None:
            continue
        slot = results[target.output].slot
        if slot in donations:
            made.append((slot, inputs.index(donations[slot]), target.tensor))
    return made

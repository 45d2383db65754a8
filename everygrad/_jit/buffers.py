"""A function compiled for a flat list of buffers that belong to somebody else.

The caller owns all memory: it hands over addresses of inputs and of results, and no Tensor is made
in a call. Every result has a buffer of its own. What it would have shared with an input, or with
all other calls because no input decides it, is copied into that buffer, and named in `aliases` and
`constants` for callers who know better than to ask for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everygrad._jit.pipeline import COPY, aligned, prepared
from everygrad._jit.trace import Tracer, device_of
from everygrad.autograd.modes import no_grad
from everygrad.backends import base
from everygrad.compiler.ir import LEAVES, Graph, Value, in_order, reachable
from everygrad.compiler.views import is_whole, view_of
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, wrap
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, TraceError


class Buffer(NamedTuple):
    """A C-contiguous block of memory, as it is known before any call."""

    shape: Shape
    dtype: DType


class BufferFunction:
    """A function of a flat list of buffers, compiled; made by `compile_buffers`.

    `results`: what each result's buffer must be. `constants`: numbers of the results that no input
    decides. `aliases`: results that are an input's elements, unchanged and in order, with the
    number of that input. `reads`: numbers of the inputs that any result depends on.
    """

    def __init__(self, tracer: Tracer, inputs: Sequence[Buffer], outputs: Sequence[Value]) -> None:
        graph = prepared(tracer.graph.with_outputs(outputs), tracer.device)
        self.device = tracer.device
        self.results = [Buffer(v.shape, v.dtype) for v in graph.outputs]
        self.constants, self.aliases = _undecided(graph), _aliases(graph)
        self.reads = _reads(graph)
        self.replay: Any = base.get(self.device).compile(_separated(graph))
        # a tensor that the function found by itself, read anew in each call
        self.found = [c.tensor for c in tracer.captures]
        self.inputs = list(inputs)

    def __call__(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        """Compute on the CPU's memory at these addresses; the buffers must not overlap."""
        if not self.found:
            self.replay.run_at(inputs, results)
            return
        held = [aligned(t._data) for t in self.found]
        self.replay.run_at([*inputs, *(a.ctypes.data for a in held)], results)

    def on_payloads(self, payloads: Sequence[Any]) -> list[Any]:
        """The results, as payloads of the function's device, for payloads of it. They fill memory
        of their own; the caller asks whether they are contiguous."""
        made: list[Any] = self.replay.run_on([*payloads, *(t._data for t in self.found)])
        return made


def compile_buffers(
    fn: Callable[[list[Tensor]], Sequence[Tensor]],
    inputs: Sequence[Buffer],
    device: str = "cpu",
) -> BufferFunction:
    """Compile `fn`, which takes and gives a flat list of tensors, for buffers like these.

    It is traced once. Python values that it reads are constants of the compiled code, as are the
    shapes; nothing looks at them again.

    >>> from everygrad import dtypes
    >>> double = compile_buffers(lambda xs: [xs[0] * 2], [Buffer((3,), dtypes.float32)])
    >>> double.results[0].shape, double.constants
    ((3,), [])
    """
    device = getattr(base.get(device), "device", device)  # as tensors name it: "cuda" for "cuda:0"
    tracer = Tracer()
    tracer.devices.add(device)
    with tracer.active(), no_grad():
        given = [
            wrap(tracer.traced(tracer.graph.input(b.shape, b.dtype, "a buffer"), device))
            for b in inputs
        ]
        made = list(fn(given))
        for k, t in enumerate(made):
            if not isinstance(t, Tensor):
                raise ArgumentError(
                    f"compile_buffers: result {k} is a {type(t).__name__}; return tensors only"
                )
        if tracer.refused is not None:
            raise tracer.refused
        outputs = [tracer.value_of(t) for t in made]
        if tracer.rebound() or tracer.new_grads():
            raise TraceError(
                "compile_buffers: the function gives a tensor from outside a new value; "
                "take it as an argument and return its new value"
            )
    far = [c.tensor.shape for c in tracer.captures if device_of(c.tensor._data) != device]
    if far:
        raise ArgumentError(f"compile_buffers: a tensor of shape {far[0]} is not on {device}")
    return BufferFunction(tracer, inputs, outputs)


def _undecided(graph: Graph) -> list[int]:
    """Outputs that no input is a part of."""
    decided: set[Value] = set()
    for v in in_order(reachable(graph.outputs)):
        if v.kind == "input" or not decided.isdisjoint(v.args):
            decided.add(v)
    return [k for k, v in enumerate(graph.outputs) if v not in decided]


def _aliases(graph: Graph) -> dict[int, int]:
    numbers = {v: i for i, v in enumerate(graph.inputs)}
    found: dict[int, int] = {}
    for k, v in enumerate(graph.outputs):
        view = view_of(v)
        if view.base in numbers and view.base.size == v.size and is_whole(*view[1:]):
            found[k] = numbers[view.base]
    return found


def _reads(graph: Graph) -> list[int]:
    live = reachable(graph.outputs)
    return [i for i, v in enumerate(graph.inputs) if v in live]


def _separated(graph: Graph) -> Graph:
    """The same outputs, each of which fills memory that is nobody else's."""
    views = [view_of(v) for v in graph.outputs]
    filled = [
        view.base.kind not in LEAVES and view.base.size == v.size and is_whole(*view[1:])
        for v, view in zip(graph.outputs, views, strict=True)
    ]
    taken = {view.base for view, fills in zip(views, filled, strict=True) if fills}
    given: set[Value] = set()
    outputs: list[Value] = []
    for k, (v, view, fills) in enumerate(zip(graph.outputs, views, filled, strict=True)):
        if fills and view.base not in given:
            given.add(view.base)
        elif view.base.kind in LEAVES or view.base in taken or view.base.size != v.size:
            # a generation of its own: equal calls would be one value, and one buffer; below 0, so
            # that devices know it from a copy that only makes contiguous
            v = graph.call(COPY, [v], {}, v.where, generation=-1 - k)
        else:  # the one result made of its base: a device that has it in this order need not copy
            v = graph.call(COPY, [v], {}, v.where)
            taken.add(view.base)
        outputs.append(v)
    return graph.with_outputs(outputs)

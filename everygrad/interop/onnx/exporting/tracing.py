"""A function traced for ONNX: ops that ONNX has stay whole, all others are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everygrad._jit.record import InputOrigin, Record, trace
from everygrad._jit.trace import Tracer
from everygrad._jit.verify import values_of
from everygrad.autograd.modes import no_grad
from everygrad.backends import base
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.ir import Value, in_order, reachable
from everygrad.core.op import Op
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import apply, user_line
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.exporting.arguments import CHANGES, Symbol
from everygrad.interop.onnx.exporting.kernels import KERNELS
from everygrad.interop.onnx.exporting.sizes import TRACES
from everygrad.ops.record.spec import REGISTRY


class Whole(OpFacts):
    """An op whose record leaves the shape of its result to its definition, left whole."""

    family = "kernel"

    def __init__(self, op: Op) -> None:
        self.name = op.name
        self.result = KERNELS[op.name].result


_whole: dict[str, Whole] = {}


class ExportTracer(Tracer):
    """Decides by the table of ONNX forms, not by a device's kernels, what is taken apart."""

    def backend(self, real: Any) -> Any:
        """ONNX's forms are the kernels that functions ask a device about."""
        found = super().backend(real)
        found.kernels = {**real.kernels, **KERNELS}
        return found

    def call(self, op: Op, inputs: Sequence[Tensor], params: dict[str, Any]) -> Any:
        form = KERNELS.get(op.name)
        if op.family != "kernel" or op.transfers or form is None or form.result is None:
            return super().call(op, inputs, params)
        inputs = self.lift(inputs)
        values = [t._data.value for t in inputs]
        if not form.accepts(*values, **params):
            return super().call(op, inputs, params)
        facts = _whole.setdefault(op.name, Whole(op))
        made = self.graph.call(facts, values, params, user_line(), self.generation)
        return self.traced(made, inputs[0]._data.device)

    def expands(
        self, op: Op, inputs: Sequence[Tensor], params: dict[str, Any], device: str
    ) -> bool:
        if op.result is None:
            return True
        form = KERNELS.get(op.name)
        if form is not None:
            return not form.accepts(*[t._data.value for t in inputs], **params)
        # an op without a definition stays, and is refused by name
        return not getattr(op, "notes", {}).get("opaque")

    def checked(
        self, op: Op, inputs: Sequence[Tensor], params: dict[str, Any], device: str
    ) -> list[Tensor]:
        """ONNX's own ops check their indices."""
        return list(inputs)


def traces_of(
    fn: Callable[..., Any], tensors: list[Tensor], tree: Any, symbols: dict[str, Symbol]
) -> list[Record]:
    """One trace, or with sizes that stay open one for each of several sizes."""
    if not symbols:
        return [_traced(fn, tensors, tree)]
    first: Exception | None = None
    for attempt in attempts(symbols):
        try:
            return [_traced(fn, _at_sizes(tensors, symbols, sizes), tree) for sizes in attempt]
        except Exception as error:  # the function does not take these sizes
            first = first or error
    _traced(fn, tensors, tree)  # raises what has nothing to do with sizes
    assert first is not None
    tried = ", ".join(f"{name}={n}" for name, n in next(attempts(symbols))[1].items())
    raise ArgumentError(
        f"save_onnx: a function with dynamic sizes is traced at several; at such as {tried} it "
        f"raises {type(first).__name__}: {first}"
    ) from first


def attempts(symbols: dict[str, Symbol]) -> Iterator[list[dict[str, int]]]:
    """The sizes of each trace, in the order they are tried: somewhat larger ones, which share no
    factor; smaller ones, where there is a largest; multiples, where there are blocks."""
    sizes = {name: max(2, s.size) for name, s in symbols.items()}
    pairs = dict(zip(symbols, CHANGES, strict=False))
    yield [{n: sizes[n] + (0, *pairs[n])[k] for n in symbols} for k in range(TRACES)]
    if all(size > max(pairs[name]) + 1 for name, size in sizes.items()):
        yield [{n: sizes[n] - (0, *pairs[n])[k] for n in symbols} for k in range(TRACES)]
    yield [{n: sizes[n] * (1 + (0, *pairs[n])[k]) for n in symbols} for k in range(TRACES)]


def _at_sizes(
    tensors: Sequence[Tensor], symbols: dict[str, Symbol], sizes: dict[str, int]
) -> list[Tensor]:
    shapes = [list(t.shape) for t in tensors]
    for name, symbol in symbols.items():
        for at, axis in symbol.places:
            shapes[at][axis] = sizes[name]
    # zeros: only shapes matter to a trace
    return [
        wrap(base.get(t.device).full(tuple(s), 0, t.dtype))
        for t, s in zip(tensors, shapes, strict=True)
    ]


def _traced(fn: Callable[..., Any], tensors: list[Tensor], tree: Any) -> Record:
    """What `fn` does to tensors like these. State that it made meanwhile, and something outside
    keeps, is what a call would have made it."""
    record, kept = trace(fn, list(tensors), tree, escapes=True, tracer=ExportTracer())
    if kept:
        known = {
            v: wrap(payload_of(origin, tensors))
            for v, origin in zip(record.graph.inputs, record.origins, strict=True)
        }
        for t in record.targets:
            if t.new and t.tensor is not None and t.output is not None:
                value = _computed(record, record.graph.outputs[t.output], known)
                t.tensor.rebind(value._data, None)
    return record


def _computed(record: Record, wanted: Value, known: dict[Value, Tensor]) -> Tensor:
    """A value of a trace, op by op as eager mode does."""
    device = base.get(record.device)
    with no_grad():
        for v in in_order(reachable([wanted])):
            if v in known:
                continue
            if v.kind == "full":
                known[v] = wrap(device.full(v.shape, v.params["value"], v.dtype))
            elif v.kind == "constant":
                known[v] = wrap(device.from_numpy(v.params["array"]))
            else:
                op: Any = REGISTRY[v.name] if isinstance(v.op, Whole) else v.op
                known[v] = apply(op, *[known[a] for a in v.args], **v.params)
    return known[wanted]


def computed(v: Value, known: Mapping[Value, Any]) -> Any:
    """One call on constants, as an array."""
    given = [wrap(known[a] if a in known else _leaf(a)) for a in v.args]
    op: Any = REGISTRY[v.name] if isinstance(v.op, Whole) else v.op
    with no_grad():
        return values_of([apply(op, *given, **v.params)._data])[0]


def _leaf(v: Value) -> Any:
    if v.kind == "constant":
        return v.params["array"]
    return np.full(v.shape, v.params["value"], v.dtype.np)


def payload_of(origin: InputOrigin, tensors: Sequence[Tensor]) -> Any:
    """The array that an input of a trace has now."""
    t: Any = origin.tensor if origin.argument is None else tensors[origin.argument]
    return (t.grad if origin.grad else t)._data

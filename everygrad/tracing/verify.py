"""`jit(verify=True)`: the graph computed op by op as eager mode does, and compared.

When a result differs, prefixes of the graph are compiled on their own to find the first value that
differs, which names the op and the line that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from everygrad.backends import base
from everygrad.compile.ir import Graph, Value, in_order, reachable
from everygrad.errors import CompileError
from everygrad.tracing.record import Record
from everygrad.tracing.stages import compiled, evaluate

TOLERANCE = {8: 1e-9, 4: 2e-4, 2: 2e-2, 1: 2e-1}  # by the size of a number in bytes


def interpreted(graph: Graph, inputs: Sequence[Any], wanted: Sequence[Value]) -> dict[Value, Any]:
    """The value of everything the wanted values are made of, op by op."""
    known: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for v in in_order(reachable(wanted)):
        if v in known:
            continue
        if v.kind == "full":
            known[v] = np.full(v.shape, v.params["value"], v.dtype.np)
        elif v.kind == "constant":
            known[v] = v.params["array"]
        else:
            known[v] = evaluate(v.op, [known[a] for a in v.args], v.params)
    return known


def coarseness(values: Iterable[Value]) -> dict[Value, int]:
    """The size of the coarsest real number each value is made of, in bytes."""
    found: dict[Value, int] = {}
    for v in in_order(values):
        own = v.dtype.itemsize // (2 if v.dtype.is_complex else 1)
        real = own if v.dtype.is_differentiable else 8
        found[v] = min([real, *(found[a] for a in v.args)])
    return found


def differs(got: Any, want: Any, size: int) -> bool:
    """Whether two results differ by more than the rounding of numbers of `size` bytes."""
    if want.dtype.kind in "iub":
        return not np.array_equal(got, want)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), np.asarray(want).astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    bound = TOLERANCE[size]
    return not np.allclose(a, b, rtol=bound, atol=bound * scale, equal_nan=True)


def check(record: Record, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise, naming the first op that differs, unless the outputs are what eager mode gives."""
    graph, device = record.graph, record.device
    inputs, outputs = values_of(inputs), values_of(outputs)
    known = interpreted(graph, inputs, graph.outputs)
    sizes = coarseness(known)
    pairs = zip(outputs, graph.outputs, strict=True)
    if not any(differs(got, known[v], sizes[v]) for got, v in pairs):
        return
    v = first_difference(graph, device, inputs, known, sizes)
    raise CompileError(
        "jit(verify=True): the compiled function differs from eager mode"
        + (f", first at {v} (made at {v.where})" if v is not None else " only as a whole")
        + "; please report it with the output of lower()"
    )


def first_difference(
    graph: Graph,
    device: str,
    inputs: Sequence[Any],
    known: dict[Value, Any],
    sizes: dict[Value, int],
) -> Value | None:
    """The first value that comes out differently when compiled with all before it."""
    ordered = [v for v in in_order(reachable(graph.outputs)) if v.op is not None]
    low, high = 0, len(ordered)
    while low < high:  # values before `low` are right, one up to `high` is wrong
        middle = (low + high) // 2
        part = ordered[low : middle + 1]
        got = outputs_of(graph, device, inputs, part)
        if any(differs(g, known[v], sizes[v]) for g, v in zip(got, part, strict=True)):
            high = middle
        else:
            low = middle + 1
    return ordered[low] if low < len(ordered) else None


def outputs_of(
    graph: Graph, device: str, inputs: Sequence[Any], values: Sequence[Value]
) -> list[Any]:
    """These values of a graph, compiled on their own."""
    part = Graph()
    part.values, part.inputs, part.outputs = graph.values, graph.inputs, list(values)
    given = [base.get(device).from_numpy(a) for a in inputs]
    return values_of(compiled(part, device).run_on(given))


def values_of(arrays: Sequence[Any]) -> list[Any]:
    """Arrays of any device as NumPy's."""
    return [a if isinstance(a, np.ndarray) else base.get(a.device).to_numpy(a) for a in arrays]

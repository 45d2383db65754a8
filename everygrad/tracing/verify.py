"""`jit(verify=True)`: the graph computed op by op as eager mode does, and compared.

When a result differs, prefixes of the graph are compiled on their own to find the first value that
differs, which names the op and the line that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.compile.ir import Graph, Value, in_order, reachable
from everygrad.errors import CompileError
from everygrad.tracing.stages import compiled, evaluate

TOLERANCE = {8: 1e-9, 4: 2e-4, 2: 2e-2, 16: 1e-9}  # by the size of an element (of its real part)


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


def differs(got: Any, want: Any) -> bool:
    """Whether two results differ by more than rounding."""
    if want.dtype.kind in "iub":
        return not np.array_equal(got, want)
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), np.asarray(want).astype(wide)
    finite = np.abs(b[np.isfinite(b)])
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    size = want.dtype.itemsize // (2 if want.dtype.kind == "c" else 1)
    bound = TOLERANCE[size]
    return not np.allclose(a, b, rtol=bound, atol=bound * scale, equal_nan=True)


def check(graph: Graph, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise, naming the first op that differs, unless the outputs are what eager mode gives."""
    known = interpreted(graph, inputs, graph.outputs)
    pairs = zip(outputs, graph.outputs, strict=True)
    if not any(differs(got, known[v]) for got, v in pairs):
        return
    v = first_difference(graph, inputs, known)
    raise CompileError(
        "jit(verify=True): the compiled function differs from eager mode"
        + (f", first at {v} (made at {v.where})" if v is not None else " only as a whole")
        + "; please report it with the output of lower()"
    )


def first_difference(graph: Graph, inputs: Sequence[Any], known: dict[Value, Any]) -> Value | None:
    """The first value that comes out differently when compiled with all before it."""
    ordered = [v for v in in_order(reachable(graph.outputs)) if v.op is not None]
    low, high = 0, len(ordered)
    while low < high:  # values before `low` are right, one up to `high` is wrong
        middle = (low + high) // 2
        if _wrong(graph, inputs, known, ordered[low : middle + 1]):
            high = middle
        else:
            low = middle + 1
    return ordered[low] if low < len(ordered) else None


def _wrong(
    graph: Graph, inputs: Sequence[Any], known: dict[Value, Any], values: Sequence[Value]
) -> bool:
    part = Graph()
    part.values, part.inputs, part.outputs = graph.values, graph.inputs, list(values)
    got = compiled(part).run_on(inputs)
    return any(differs(g, known[v]) for g, v in zip(got, values, strict=True))

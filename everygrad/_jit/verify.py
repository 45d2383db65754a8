"""`jit(verify=True)`: every op of the graph computed again by NumPy alone, and compared.

The graph is compiled a second time with every value as a result. Each of these is judged by the
reference (`backends/reference`), which is given the very inputs the op had: so a wrong kernel is
seen even if eager mode has the same one, its op is named, and bounds need allow for the rounding of
one op only. What the compiled function itself gave is then compared with those values; if it
differs, prefixes of the graph are compiled on their own to find the first that does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from everygrad._jit.pipeline import compiled, evaluate
from everygrad.backends import base
from everygrad.backends.reference.tolerance import Accuracy, is_exact, unit
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.errors import CompileError

TOLERANCE = {8: 1e-9, 4: 2e-4, 2: 2e-2, 1: 2e-1}  # by the size of a number in bytes
_TF32 = 2.0**-11
# graphs compiled with every value as a result
_stepwise: WeakKeyDictionary[Graph, Any] = WeakKeyDictionary()


def interpreted(graph: Graph, inputs: Sequence[Any], wanted: Sequence[Value]) -> dict[Value, Any]:
    """The value of everything the wanted values are made of, op by op as eager mode does."""
    known = _leaves(graph, inputs, wanted)
    for v in in_order(reachable(wanted)):
        if v not in known:
            known[v] = evaluate(v.op, [known[a] for a in v.args], v.params)
    return known


def _leaves(graph: Graph, inputs: Sequence[Any], wanted: Sequence[Value]) -> dict[Value, Any]:
    """The inputs and constants among what the wanted values are made of, and all other inputs."""
    known: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for v in reachable(wanted):
        if v.kind == "full":
            known[v] = np.full(v.shape, v.params["value"], v.dtype.np)
        elif v.kind == "constant":
            known[v] = v.params["array"]
    return known


# --- the check -----------------------------------------------------------------------------------


def check(graph: Graph, device: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise, naming the first op that is wrong, unless the outputs are what the graph says."""
    inputs, outputs = values_of(inputs), values_of(outputs)
    known = _leaves(graph, inputs, graph.outputs)
    steps = _steps(graph)
    known |= zip(steps, _run_stepwise(graph, device, inputs, steps), strict=True)
    _judge(steps, known, _accuracy(device))
    sizes = coarseness(known)
    pairs = zip(outputs, graph.outputs, strict=True)
    if not any(differs(got, known[v], sizes[v]) for got, v in pairs):
        return
    first = first_difference(graph, device, inputs, known, sizes)
    raise _fault(
        "only as a whole" if first is None else _place(first),
        "compiled with all before it, it is not what it is by itself",
    )


def _fault(where: str, how: str) -> CompileError:
    return CompileError(
        f"jit(verify=True): the compiled function differs from NumPy, {where}: {how}; "
        f"please report it with the output of lower()"
    )


def _place(v: Value) -> str:
    return f"first at {v} (made at {v.where})"


def _steps(graph: Graph) -> list[Value]:
    return [v for v in in_order(reachable(graph.outputs)) if v.op is not None]


def _run_stepwise(
    graph: Graph, device: str, inputs: Sequence[Any], steps: Sequence[Value]
) -> list[Any]:
    if not steps:
        return []
    replay = _stepwise.get(graph)
    if replay is None:
        replay = _stepwise[graph] = compiled(graph.with_outputs(steps), device)
    return values_of(replay.run_on([base.get(device).from_numpy(a) for a in inputs]))


def _judge(steps: Sequence[Value], known: dict[Value, Any], accuracy: Accuracy) -> None:
    """Raise unless every value is what its op makes of its arguments."""
    ways = import_module("everygrad.backends.reference.evaluate")  # few functions are verified
    for v in steps:
        if v.facts.communicates:  # other processes made it
            continue
        arrays = [known[a] for a in v.args]
        errors = [_unrounded(a, known[a]) if accuracy.contracts else 0.0 for a in v.args]
        found = ways.fault(v.op, arrays, v.params, known[v], errors, accuracy)
        if found is not None:
            raise _fault(_place(v), str(found))


def _unrounded(v: Value, array: Any) -> Any:
    """What an argument may be off by where a product is added before it is rounded."""
    while v.kind == "movement":
        (v,) = v.args
    if v.kind != "elementwise" or is_exact(array.dtype):
        return 0.0
    return unit(array.dtype) * np.abs(array.astype(np.float64))


def _accuracy(device: str) -> Accuracy:
    """What can be asked of a device."""
    kind = base.kind_of(device)
    if kind == "webgpu":
        return Accuracy(functions=32.0, basic=4.0, flushes=True, contracts=True)
    if kind == "cuda":
        coarse = getattr(base.get(device), "tf32", False)
        return Accuracy(product=_TF32 if coarse else 2.0**-24, contracts=True)
    return Accuracy()


# --- the whole against its parts -----------------------------------------------------------------


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


def first_difference(
    graph: Graph,
    device: str,
    inputs: Sequence[Any],
    known: dict[Value, Any],
    sizes: dict[Value, int],
) -> Value | None:
    """The first value that comes out differently when compiled with all before it."""
    ordered = _steps(graph)
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
    given = [base.get(device).from_numpy(a) for a in inputs]
    return values_of(compiled(graph.with_outputs(values), device).run_on(given))


def values_of(arrays: Sequence[Any]) -> list[Any]:
    """Arrays of any device as NumPy's."""
    return [a if isinstance(a, np.ndarray) else base.get(a.device).to_numpy(a) for a in arrays]

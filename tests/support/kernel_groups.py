"""Runs the fused groups of a graph as kernels of the kernel language, in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import everygrad as eg
from everygrad import dtypes
from everygrad._jit.pipeline import prepared
from everygrad.backends.reference import interpreter
from everygrad.backends.reference.evaluate import evaluate
from everygrad.codegen.groups.group_plan import kernels_of
from everygrad.codegen.groups.group_sums import GroupKernel
from everygrad.codegen.machine import Machine
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import Group, used_outside
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.compiler.schedule import fusable, without_strays
from everygrad.compiler.views import view_of

# few threads, so that small arrays reach every way of the lowering
GPU = Machine(
    8, dtypes.float32, dtypes.uint32, 1 << 30, None, parallel=64, shared_bytes=64, padded=True
)
MACHINES = {
    "gpu": GPU,
    "simulated": GPU._replace(parallel=1),
    "vectors of 16 bytes": GPU._replace(
        vector_bytes=16, padded=False, most_threads=32, warp=4, most_held=32
    ),
}
_ERROR = {8: 1e-12, 4: 2e-5, 2: 3e-2}


def graph_of(fn: Callable[..., Any], *arrays: Any) -> Graph:
    return prepared(eg.jit(fn).lower(*[eg.tensor(a) for a in arrays]).graph, "cpu")


def groups_of(graph: Graph) -> tuple[list[Group], set[Value]]:
    """The groups, and the values that must be in memory."""
    groups = without_strays(fuse(graph, fusable, siblings=0))
    return [g for g in groups if g.opaque is None], used_outside(groups, graph.outputs)


def values_of(graph: Graph, inputs: Sequence[Any]) -> dict[Value, Any]:
    """Every value of a graph, op by op in NumPy."""
    known: dict[Value, Any] = dict(zip(graph.inputs, inputs, strict=True))
    for v in in_order(reachable(graph.outputs)):
        if v.kind == "full":
            known[v] = np.full(v.shape, v.params["value"], v.dtype.np)
        elif v.kind == "constant":
            known[v] = v.params["array"]
        elif v not in known:
            args = [known[a] for a in v.args]
            known[v] = np.asarray(evaluate(v.op, args, v.params, v.dtype.np)).reshape(v.shape)
    return known


def run(kernel: GroupKernel, known: dict[Any, Any]) -> dict[Any, Any]:
    """What a kernel writes; what lies behind an array is garbage."""
    buffers = kernel.kernel.buffers
    held = []
    given = {v: x for x, v in kernel.in_place.items()}
    for value, buffer in zip((*kernel.reads, *kernel.writes), buffers, strict=True):
        array = np.full(buffer.size, 113, buffer.dtype.np)
        source = known.get(given.get(value, value))
        if source is not None and (not buffer.written or buffer.held):
            array[: source.size] = np.ascontiguousarray(source).reshape(-1)
        held.append(array)
    interpreter.run(kernel.kernel, held)
    return dict(zip(kernel.writes, held[len(kernel.reads) :], strict=True))


def check(fn: Callable[..., Any], *arrays: Any, machine: Machine, name: str = "") -> int:
    """Run all groups of a function, each on the reference's values, and compare; how many kernels
    there were. With a name they have no sizes in their texts."""
    graph = graph_of(fn, *arrays)
    return check_graph(graph, [np.asarray(a) for a in arrays], machine, name)


def check_graph(graph: Graph, inputs: Sequence[Any], machine: Machine, name: str = "") -> int:
    known: dict[Any, Any] = values_of(graph, inputs)
    groups, stored = groups_of(graph)
    count = 0
    for group in groups:
        between = dict(known)
        for kernel in kernels_of(group, stored, machine, name=name):
            count += 1
            for value, got in run(kernel, between).items():
                if isinstance(value, Value):
                    same(got[: value.size].reshape(value.shape), known[value], str(value))
                else:
                    between[value] = got
    assert {view_of(v).base for v in graph.outputs} <= known.keys()
    return count


def inputs_of(graph: Graph, seed: int) -> list[Any]:
    """Numbers for the inputs of a graph; integers are 0, which is an index of everything."""
    rng = np.random.default_rng(seed)
    made = []
    for v in graph.inputs:
        if v.dtype.is_float or v.dtype.is_complex:
            made.append(rng.uniform(0.25, 1.0, v.shape).astype(v.dtype.np))
        else:
            made.append(rng.integers(0, 2 if v.dtype is dtypes.bool_ else 1, v.shape, v.dtype.np))
    return made


def same(got: Any, want: Any, what: str) -> None:
    """Equal, but for rounding relative to the largest number."""
    assert got.shape == want.shape
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return
    kind = np.complex128 if want.dtype.kind == "c" else np.float64
    a, b = got.astype(kind), want.astype(kind)
    scale = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
    error = _ERROR[want.dtype.itemsize // (2 if want.dtype.kind == "c" else 1)]
    np.testing.assert_allclose(a, b, rtol=error, atol=error * scale, err_msg=what)

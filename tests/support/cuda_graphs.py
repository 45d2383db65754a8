"""Graphs of compiled CUDA functions computed by NumPy and the CPU's kernels, op by op or group by
group: what a rewrite must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cuda.graph import layouts, rewriting
from everygrad.backends.cuda.graph.rewriting import (
    PACKED_GRADS,
    PACKED_SLOPES,
    SAVED,
    SAVED_GRADS,
    SAVED_LOG_SUMS,
)
from everygrad.compiler.groups import Group, Load, Number, used_outside
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.views import view_of
from everygrad.ops.record.spec import REGISTRY

Arrays = dict[Value, Any]
_LAST = {op: name for name, op in (layouts.CONVOLUTIONS | layouts.POOLING).items()}


def cpu_run(op: Any, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    given = [np.ascontiguousarray(a) for a in arrays]
    if op.name in layouts.POOLING:  # by its definition: the CPU has no kernel for it
        return REGISTRY[op.name].function(*map(eg.tensor, given), **params).numpy()
    return np.asarray(base.get("cpu").run(op, given, params))


def saved(q: Any, k: Any, v: Any, *mask: Any, **params: Any) -> Any:
    """The result of `attention_saved`; only the derivative op reads the statistics."""
    out = cpu_run(REGISTRY["attention_masked" if mask else "attention"], [q, k, v, *mask], params)
    size = rewriting._saved(Value("", "", None, (), {}, q.shape, eg.float32, 0, ""))[0][0]
    flat = np.full(size, np.nan, q.dtype)
    flat[: out.size] = np.transpose(out, (0, 2, 1, 3)).reshape(-1)
    return flat


def kept_grads(g: Any, q: Any, k: Any, v: Any, flat: Any, *mask: Any, **params: Any) -> Any:
    assert flat.size >= q.size
    return packed_grads(g, q, k, v, *mask, **params)


def packed_grads(g: Any, q: Any, k: Any, v: Any, *mask: Any, **params: Any) -> Any:
    name = "attention_masked_grads" if mask else "attention_grads"
    parts = cpu_run(REGISTRY[name], [g, q, k, v, *mask], params).reshape(3, *q.shape)
    return np.transpose(parts, (1, 3, 0, 2, 4))


def reshaped_slopes(*args: Any, **params: Any) -> Any:
    found = eager("attention_saved_slopes", args, params).reshape(3, *args[1].shape)
    return np.transpose(found, (1, 3, 0, 2, 4))


def saved_log_sums(q: Any, k: Any, *others: Any, **params: Any) -> Any:
    return eager("attention_log_sums", (q, k), params)


def eager(name: str, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """An op by its definition: the CPU has no kernel for it."""
    op: Any = REGISTRY[name]
    given = [eg.tensor(np.ascontiguousarray(a)) for a in args]
    return op.portable(*given, **params).numpy()


def compute(v: Value, args: Sequence[Any]) -> Any:
    if v.op is SAVED:
        return saved(*args, **v.params)
    if v.op is SAVED_GRADS:
        return kept_grads(*args, **v.params)
    if v.op is PACKED_SLOPES:
        return reshaped_slopes(*args, **v.params)
    if v.op is SAVED_LOG_SUMS:
        return saved_log_sums(*args, **v.params)
    if v.name in ("attention_log_sums", "attention_saved_slopes"):
        return eager(v.name, args, v.params)
    if v.op is PACKED_GRADS:
        return packed_grads(*args, **v.params)
    if v.op in _LAST:
        given = [np.transpose(a, (0, 3, 1, 2)) for a in args]
        return np.transpose(cpu_run(REGISTRY[_LAST[v.op]], given, v.params), (0, 2, 3, 1))
    return cpu_run(v.op, args, v.params)


def constant(v: Value) -> Any:
    if v.kind == "full":
        return np.full(v.shape, v.params["value"], v.dtype.np)
    return v.params["array"]


def outputs(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph, op by op."""
    known: Arrays = dict(zip(graph.inputs, inputs, strict=True))
    for v in graph.values:
        if v not in known:
            leaf = v.kind in ("full", "constant")
            known[v] = constant(v) if leaf else compute(v, [known[a] for a in v.args])
    return [known[v] for v in graph.outputs]


class Memory:
    """The outputs of groups run in order; other groups see only what a group stores."""

    def __init__(self, graph: Graph, groups: Sequence[Group], inputs: Sequence[Any]) -> None:
        self.arrays: Arrays = dict(zip(graph.inputs, inputs, strict=True))
        stored = used_outside(groups, graph.outputs)
        for group in groups:
            if group.opaque is not None:
                v = group.opaque
                self.arrays[v] = compute(v, [self.value(a) for a in v.args])
                continue
            made = self.group(group)
            self.arrays |= {v: made[v] for v in made if v in stored}
        self.outputs = [self.value(v) for v in graph.outputs]

    def value(self, v: Value) -> Any:
        view = view_of(v)
        return self.seen(view.base, view.shape, view.strides, view.offset)

    def seen(self, v: Value, shape: Any, strides: Any, offset: int) -> Any:
        whole = constant(v) if v.kind in ("full", "constant") else self.arrays[v]
        flat = np.ascontiguousarray(whole).reshape(-1)[offset:]
        steps = [s * flat.itemsize for s in strides]
        return np.lib.stride_tricks.as_strided(flat, shape, steps)

    def group(self, group: Group) -> Arrays:
        made: Arrays = {}
        for v, m in group.members.items():
            args = []
            for r, a in zip(m.refs, v.args, strict=True):
                if isinstance(r, Number):
                    found = np.full(a.shape, r.value, a.dtype.np)
                elif isinstance(r, Load):
                    found = self.seen(r.value, r.shape, r.strides, r.offset)
                else:
                    found = np.broadcast_to(made[r].reshape(_fitted(r, m.shape)), m.shape)
                args.append(found)
            params = v.params
            if v.kind == "reduction":
                args = [args[0].reshape(v.args[0].shape)]
            made[v] = cpu_run(v.op, args, params).reshape(v.shape)
        return made


def _fitted(r: Value, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A member's shape in the axes of another: unchanged, or one element a row."""
    if r.size == int(np.prod(shape)):
        return shape
    lead, at = 1, 0
    while lead < r.size:
        lead *= shape[at]
        at += 1
    return (*shape[:at], *(1,) * (len(shape) - at))


def graph_of(fn: Callable[..., Any], *arrays: Any) -> Graph:
    return eg.jit(fn).lower(*(eg.tensor(a) for a in arrays)).simplified


def rand(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def agree(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5)

"""Runs a graph of ATen ops, as torch.export and aot_autograd make them, on tensors of ours."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node as FxNode
from torch.utils import _pytree as pytree

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import MissingOpsError
from everygrad.interop.torch.aten.registry import Result
from everygrad.interop.torch.aten.table import HANDLERS

if TYPE_CHECKING:
    from torch.fx import Graph, Node

DTYPES: dict[torch.dtype, dtypes.DType] = {
    getattr(torch, name): dtype for name, dtype in dtypes.BY_NAME.items() if hasattr(torch, name)
}
# Where a result lies in memory, and on which device, is not said to this library op by op.
_DROPPED = frozenset(("device", "layout", "memory_format", "pin_memory", "non_blocking"))
# Python's own functions among the nodes, which need no handler: items of tuples, sums of sizes.
_PLAIN = frozenset(getattr(operator, name) for name in operator.__all__) | {min, max}


def overload(target: Any) -> str:
    """The name of a node's target in the table, such as "aten::add.Tensor"."""
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def missing(graph: Graph) -> dict[str, list[str]]:
    """Overloads of a graph that the table lacks, each with the names of its nodes."""
    lacking: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target not in _PLAIN:
            name = overload(node.target)
            if name not in HANDLERS:
                lacking.setdefault(name, []).append(node.name)
    return lacking


def result_of(value: Any) -> Any:
    """What a node gives, from the value PyTorch keeps beside it."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return Result(tuple(map(int, value.shape)), DTYPES[value.dtype], tuple(map(int, strides)))
    if isinstance(value, (tuple, list)):
        return [result_of(v) for v in value]
    return None


def argument(value: Any) -> Any:
    """An argument of a node that is no node: PyTorch's dtypes become ours."""
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise TypeError("a graph with symbolic sizes is made for one set of sizes at a time")
    return value


class Step:
    """One node, made ready: which values it reads, its handler, and what PyTorch says it gives."""

    __slots__ = ("arguments", "common", "function", "name", "result", "target", "wants_result")

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.target = overload(node.target)
        kwargs = {k: v for k, v in node.kwargs.items() if k not in _DROPPED}
        self.arguments = pytree.tree_map(argument, (node.args, kwargs))
        self.result = result_of(node.meta.get("val"))
        self.common: dtypes.DType | None = None
        self.wants_result = False
        self.function: Callable[..., Any] = node.target  # type: ignore[assignment]
        if node.target not in _PLAIN:
            handler = HANDLERS[self.target]
            self.function, self.wants_result = handler.function, handler.wants_result
            if handler.promotes:
                self.common = common_dtype(node)


def common_dtype(node: Node) -> dtypes.DType:
    """The dtype PyTorch computes a node in, by its rule: tensors with axes come first, then 0-d
    tensors, then numbers; who comes later counts only if its kind (int, float) is a wider one."""
    read = [a.meta["val"] if isinstance(a, FxNode) else a for a in pytree.tree_leaves(node.args)]
    tensors = [v for v in read if isinstance(v, torch.Tensor)]
    numbers = [v for v in read if isinstance(v, (bool, int, float, complex))]
    with_axes = _widest(t.dtype for t in tensors if t.dim())
    without = _widest(t.dtype for t in tensors if not t.dim())
    found = with_axes or without
    if found is None:
        raise TypeError(f"{node.target} has no tensor among its arguments")
    if with_axes and without:
        found = torch.result_type(_example((1,), with_axes), _example((), without))
    for number in numbers:
        found = torch.result_type(_example((1,), found), number)
    return DTYPES[found]


def _widest(found: Iterable[torch.dtype]) -> torch.dtype | None:
    given = list(found)
    return reduce(torch.promote_types, given) if given else None


def _example(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


class Program:
    """A graph made ready to run: call it with the values of its placeholders."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        lacking = missing(module.graph)
        if lacking:
            raise MissingOpsError("PyTorch graph", lacking)
        self.inputs: list[str] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.steps: list[Step] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.inputs.append(node.name)
            elif node.op == "get_attr":
                self.constants[node.name] = operator.attrgetter(node.target)(module)
            elif node.op == "call_function":
                self.steps.append(Step(node))
            else:
                self.outputs = node.args[0]

    def __call__(self, values: Sequence[Any], constants: dict[str, Any]) -> Any:
        """The graph's outputs; `constants`: by name, the tensors that the graph itself holds."""
        held: dict[str, Any] = dict(zip(self.inputs, values, strict=True)) | constants

        def read(value: Any) -> Any:
            return held[value.name] if isinstance(value, FxNode) else value

        for step in self.steps:
            args, kwargs = pytree.tree_map(read, step.arguments)
            if step.common is not None:
                args = pytree.tree_map(lambda v, to=step.common: _cast(v, to), args)
            if step.wants_result:
                kwargs["result"] = step.result
            held[step.name] = _as_said(step.function(*args, **kwargs), step.result)
        return pytree.tree_map(read, self.outputs)


def _cast(value: Any, dtype: dtypes.DType) -> Any:
    return value.astype(dtype) if isinstance(value, Tensor) and value.dtype is not dtype else value


def _as_said(value: Any, result: Any) -> Any:
    """A node's result in the dtype that PyTorch says it has."""
    if isinstance(result, Result):
        return _cast(value, result.dtype)
    if isinstance(result, list) and isinstance(value, (tuple, list)):
        return [_as_said(v, r) for v, r in zip(value, result, strict=False)]
    return value

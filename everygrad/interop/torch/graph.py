"""Runs a graph of ATen ops, as torch.export and aot_autograd make them, on tensors of ours."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node as FxNode

from everygrad import dtypes
from everygrad.autograd.modes import set_grad_enabled
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
_PLAIN = frozenset(getattr(operator, name) for name in operator.__all__) | {
    min,
    max,
    abs,
    round,
    pow,
    math.floor,
    math.ceil,
    math.trunc,
    math.sqrt,
    math.pow,
}
_OVERLOAD = type(torch.ops.aten.add.Tensor)
# A graph inside a graph: what it takes for granted, then the graph, then its inputs.
_WITH_GRAD, _WITH_AUTOCAST = "wrap_with_set_grad_enabled", "wrap_with_autocast"


def overload(target: Any) -> str:
    """The name of a node's target in the table, such as "aten::add.Tensor"."""
    if isinstance(target, _OVERLOAD):
        whole = str(target.name())  # type: ignore[no-untyped-call]
        return whole if "." in whole else f"{whole}.default"
    name = getattr(target, "__name__", str(target))
    return f"torch::{name}" if getattr(target, "__module__", "").startswith("torch") else name


def _inner(target: Any) -> str:
    """The name of an op that runs a graph it is given, or nothing."""
    name = getattr(target, "__name__", "") or getattr(target, "_name", "")
    return name if name in (_WITH_GRAD, _WITH_AUTOCAST) else ""


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A function of every leaf of a node's arguments, in the same containers."""
    if isinstance(value, tuple):
        return tuple([_mapped(function, v) for v in value])
    if isinstance(value, list):
        return [_mapped(function, v) for v in value]
    if isinstance(value, dict):
        return {k: _mapped(function, v) for k, v in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(function, v) for v in (value.start, value.stop, value.step)))
    return function(value)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(found.append, value)
    return found


def missing(graph: Graph) -> dict[str, list[str]]:
    """Overloads of a graph that the table lacks or refuses, each with the names of its nodes."""
    lacking: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            held = _attribute(graph.owning_module, node.target)
            if isinstance(held, GraphModule):
                for name, at in missing(held.graph).items():
                    lacking.setdefault(name, []).extend(f"{node.name}.{a}" for a in at)
        for dtype in _strange(node.meta.get("val")):
            lacking.setdefault(f"dtype {dtype}", []).append(node.name)
        if node.op != "call_function" or node.target in _PLAIN or _inner(node.target):
            continue
        name = overload(node.target)
        handler = HANDLERS.get(name)
        if handler is None:
            lacking.setdefault(name, []).append(node.name)
        elif handler.refused:
            lacking.setdefault(f"{name}: {handler.refused}", []).append(node.name)
        elif node.meta.get("unbacked_bindings"):
            why = "the size of its result depends on values"
            lacking.setdefault(f"{name}: {why}", []).append(node.name)
    return lacking


def _strange(value: Any) -> list[torch.dtype]:
    """Dtypes of a node's results that do not exist here."""
    found = [v.dtype for v in _leaves(value) if isinstance(v, torch.Tensor)]
    return [d for d in found if d not in DTYPES]


def _attribute(module: Any, path: str) -> Any:
    return operator.attrgetter(path)(module)


class Sizes:
    """The numbers that a graph's symbolic sizes stand for, found from its inputs' shapes."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}

    def bind(self, said: Any, given: Any) -> None:
        """Note what the symbols in the example of an input are in the value given for it."""
        if isinstance(said, torch.Tensor):
            for size, number in zip(said.shape, given.shape, strict=True):
                self.bind(size, number)
        elif isinstance(said, torch.SymInt):
            expression = said.node.expr
            if expression.is_Symbol:
                self.known[expression] = int(given)

    def __call__(self, value: Any) -> int:
        """A size as a number: symbols by what is bound, else by the example's own."""
        if isinstance(value, torch.SymInt):
            found = value.node.expr.subs(self.known)
            return int(found) if found.is_Integer else int(value)
        return int(value)


def result_of(value: Any, size: Sizes | None = None) -> Any:
    """What a node gives, from the value PyTorch keeps beside it."""
    size = size or Sizes()
    if isinstance(value, torch.Tensor):
        strided = value.layout is torch.strided
        strides = value.stride() if strided else ()
        offset = size(value.storage_offset()) if strided else 0
        shape = tuple(map(size, value.shape))
        return Result(shape, DTYPES[value.dtype], tuple(map(size, strides)), offset)
    if isinstance(value, (tuple, list)):
        return [result_of(v, size) for v in value]
    return None


def argument(value: Any, size: Sizes | None = None) -> Any:
    """An argument of a node that is no node: PyTorch's dtypes become ours, sizes numbers."""
    if isinstance(value, torch.dtype):
        return DTYPES[value]
    if isinstance(value, torch.SymInt):
        return (size or Sizes())(value)
    if isinstance(value, (torch.SymFloat, torch.SymBool)):
        raise TypeError("a graph with symbolic numbers is made for one set of sizes at a time")
    return value


class Step:
    """One node, made ready: which values it reads, its handler, and what PyTorch says it gives."""

    __slots__ = (
        *("arguments", "common", "extra", "function", "name", "result", "target"),
        *("wants_device", "wants_result"),
    )

    def __init__(self, node: Node, size: Sizes | None = None) -> None:
        size = size or Sizes()
        self.name = node.name
        self.target = overload(node.target)
        kwargs = {k: v for k, v in node.kwargs.items() if k not in _DROPPED}
        self.arguments = _mapped(lambda v: argument(v, size), (node.args, kwargs))
        self.result = result_of(node.meta.get("val"), size)
        self.common: dtypes.DType | None = None
        self.extra: dict[str, Any] = {}
        self.wants_device = self.wants_result = False
        self.function: Callable[..., Any] = node.target  # type: ignore[assignment]
        if _inner(node.target):
            self.function = _run_with_grad if _inner(node.target) == _WITH_GRAD else _run_inner
        elif node.target not in _PLAIN:
            handler = HANDLERS[self.target]
            self.function, self.wants_result = handler.function, handler.wants_result
            self.wants_device = handler.wants_device
            if handler.wants_result:
                self.extra["result"] = self.result
            if handler.wants_inputs:
                read = (result_of(a.meta.get("val"), size) for a in node.all_input_nodes)
                self.extra["inputs"] = [r for r in read if r]
            if handler.promotes:
                self.common = self._common(node)

    def _common(self, node: Node) -> dtypes.DType:
        found = common_dtype(node)
        given = self.result
        # a function of integers that gives floats computes in the dtype that it gives
        if isinstance(given, Result) and given.dtype.is_differentiable > found.is_differentiable:
            return given.dtype
        return found


def _run_with_grad(enabled: bool, program: Program, *values: Any, device: str = "cpu") -> Any:
    with set_grad_enabled(enabled):
        return program(values, program.held, device)


def _run_inner(*args: Any, device: str = "cpu") -> Any:
    # what precision autocast chose stands in the graph as casts already
    at = next(i for i, a in enumerate(args) if isinstance(a, Program))
    program: Program = args[at]
    return program(args[at + 1 :], program.held, device)


def common_dtype(node: Node) -> dtypes.DType:
    """The dtype PyTorch computes a node in, by its rule: tensors with axes come first, then 0-d
    tensors, then numbers; who comes later counts only if its kind (int, float) is a wider one."""
    read = [a.meta["val"] if isinstance(a, FxNode) else a for a in _leaves(node.args)]
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
    """A graph made ready to run: call it with the values of its placeholders.

    `sizes`: of a graph with symbolic sizes, the numbers that this program is made for.
    """

    def __init__(self, module: GraphModule, sizes: Sizes | None = None) -> None:
        lacking = missing(module.graph)
        if lacking:
            raise MissingOpsError("PyTorch graph", lacking)
        self.inputs: list[str] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.held: dict[str, Any] = {}  # graphs inside this one, by name
        self.steps: list[Step] = []
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.inputs.append(node.name)
            elif node.op == "get_attr":
                found = _attribute(module, node.target)
                if isinstance(found, GraphModule):
                    self.held[node.name] = Program(found, sizes)
                else:
                    self.constants[node.name] = found
            elif node.op == "call_function":
                self.steps.append(Step(node, sizes))
            else:
                self.outputs = node.args[0]

    def __call__(
        self, values: Sequence[Any], constants: Mapping[str, Any], device: str | None = None
    ) -> Any:
        """The graph's outputs; `constants`: by name, the tensors that the graph itself holds.

        `device`: where tensors are made from nothing; that of the first tensor given, if not said.
        """
        held: dict[str, Any] = {
            **dict(zip(self.inputs, values, strict=True)),
            **self.held,
            **constants,
        }
        if device is None:
            device = next((v.device for v in held.values() if isinstance(v, Tensor)), "cpu")

        def read(value: Any) -> Any:
            return held[value.name] if isinstance(value, FxNode) else value

        for step in self.steps:
            args, kwargs = _mapped(read, step.arguments)
            if step.common is not None:
                args = _mapped(partial(_cast, step.common), args)
            if step.wants_device:
                kwargs["device"] = device
            held[step.name] = _as_said(step.function(*args, **kwargs, **step.extra), step.result)
        return _mapped(read, self.outputs)


def _cast(dtype: dtypes.DType, value: Any) -> Any:
    return value.astype(dtype) if isinstance(value, Tensor) and value.dtype is not dtype else value


def _as_said(value: Any, result: Any) -> Any:
    """A node's result in the dtype that PyTorch says it has."""
    if isinstance(result, Result):
        return _cast(result.dtype, value)
    if isinstance(result, list) and isinstance(value, (tuple, list)):
        return [_as_said(v, r) for v, r in zip(value, result, strict=False)]
    return value

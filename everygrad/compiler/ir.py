"""The graph a traced function becomes: values in order, each made by one op from earlier ones.

Five kinds of value besides inputs: `constant` (an array), `full` (one number everywhere), and the
families `elementwise`, `reduction`, `movement` and `kernel`, whose op records say the rest. Equal
calls are one value. A graph prints, one line a value::

    %2: float32[2, 3] = mul %0 %1
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from everygrad.compiler.facts import NO_FACTS, Move, OpFacts
from everygrad.core import shapes
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import DType, bfloat16, bool_, rounded
from everygrad.errors import CompileError

LEAVES = ("input", "constant", "full")


class Value:
    """One result. `op` is the record (None for leaves); `where` the user's line that made it."""

    __slots__ = (
        "args", "dtype", "generation", "kind", "name", "number", "op", "params", "shape", "size",
        "view", "where",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        name: str,
        op: OpFacts | None,
        args: tuple[Value, ...],
        params: dict[str, Any],
        shape: Shape,
        dtype: DType,
        number: int,
        where: str,
        generation: int = 0,
    ) -> None:
        self.kind = kind
        self.name = name
        self.op: OpFacts = op  # type: ignore[assignment]  # of no leaf: its `kind` says so
        self.args = args
        self.params = params
        self.shape = shape
        self.size = size_of(shape)
        self.dtype = dtype
        self.number = number
        self.where = where
        self.generation = generation  # equal calls of different generations stay apart
        self.view: Any = None  # see views.view_of

    def copy_of(self, *args: Value) -> Value:
        """The same call of other arguments, outside the order of a graph."""
        return Value(
            self.kind, self.name, self.op, args, self.params, self.shape, self.dtype, self.number,
            self.where,
        )  # fmt: skip

    @property
    def facts(self) -> OpFacts:
        """What the op's record says; of a leaf, nothing special."""
        return NO_FACTS if self.op is None else self.op

    @property
    def move(self) -> Move | None:
        """Which movement it is."""
        return None if self.op is None else self.op.move

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def type(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    def __str__(self) -> str:
        shown = [self.name, *(f"%{a.number}" for a in self.args)]
        hidden = ("array", "owner", "source")
        shown += [f"{k}={v}" for k, v in self.params.items() if k not in hidden]
        return f"%{self.number}: {self.type} = {' '.join(shown)}"

    __repr__ = __str__


def infer(op: OpFacts, args: Sequence[Value], params: dict[str, Any]) -> tuple[Shape, DType]:
    """The shape and dtype of a call, from the op's record."""
    first = args[0]
    if op.family == "elementwise":
        program = op.program([a.dtype for a in args], params)
        return shapes.broadcast(op.name, *[a.shape for a in args]), program.dtype
    if op.family == "reduction":
        dtype = bool_ if op.combine in ("and", "or") else first.dtype
        return shapes.reduced(first.shape, params["axes"], params["keepdims"]), dtype
    if op.family == "movement":
        return op.shape(first.shape, **params), first.dtype
    assert op.result is not None, op.name  # a tracer takes it apart
    return op.result(*args, **params)


class Graph:
    """Values in an order in which each comes after what it is made of."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self._known: dict[Any, Value] = {}

    def _add(self, value: Value) -> Value:
        self.values.append(value)
        return value

    def input(self, shape: Shape, dtype: DType, where: str = "") -> Value:
        number = len(self.values)
        made = Value("input", f"input{len(self.inputs)}", None, (), {}, shape, dtype, number, where)
        self.inputs.append(made)
        return self._add(made)

    def constant(self, array: Any, dtype: DType) -> Value:
        """An array that never changes; of one repeated number, a `full`."""
        if 0 < array.size <= 1 << 20:
            first = array.flat[0]
            if _all_equal(array, first):
                return self.full(array.shape, first.item(), dtype)
        number = len(self.values)
        shape = tuple(array.shape)
        return self._add(
            Value("constant", "constant", None, (), {"array": array}, shape, dtype, number, "")
        )

    def full(self, shape: Shape, value: Any, dtype: DType) -> Value:
        if dtype is bfloat16 and not isinstance(value, complex):  # what is made of it rounds twice
            value = float(rounded(value, dtype))
        key = ("full", shape, repr(value), dtype)
        found = self._known.get(key)
        if found is None:
            params = {"value": value}
            number = len(self.values)
            made = Value("full", "full", None, (), params, tuple(shape), dtype, number, "")
            found = self._known[key] = self._add(made)
        return found

    def call(
        self,
        op: OpFacts,
        args: Sequence[Value],
        params: dict[str, Any],
        where: str = "",
        generation: int = 0,
    ) -> Value:
        """The value of an op; an equal earlier call of the same generation serves again."""
        key = (op, generation, *[a.number for a in args], *params.items())
        found = self._known.get(key)
        if found is None:
            shape, dtype = infer(op, args, params)
            number = len(self.values)
            made = Value(
                op.family, op.name, op, tuple(args), params, shape, dtype, number, where, generation
            )
            found = self._known[key] = self._add(made)
        return found

    def with_outputs(self, outputs: Sequence[Value]) -> Graph:
        """The same values, which give other outputs."""
        made = Graph()
        made.values, made.inputs, made.outputs = self.values, self.inputs, list(outputs)
        return made

    def __str__(self) -> str:
        lines = [str(v) for v in self.values]
        return "\n".join([*lines, f"return {', '.join(f'%{v.number}' for v in self.outputs)}"])

    def verify(self) -> None:
        """Raise unless every value comes after its arguments and has the type its op gives it."""
        for i, v in enumerate(self.values):
            if v.number != i:
                raise CompileError(f"graph: {v} stands at place {i}")
            if any(a.number >= i or self.values[a.number] is not a for a in v.args):
                raise CompileError(f"graph: {v} comes before what it is made of")
            if v.op is not None and infer(v.op, v.args, v.params) != (v.shape, v.dtype):
                raise CompileError(f"graph: {v} is not what its op gives")


def _all_equal(array: Any, first: Any) -> bool:
    """Whether every element is `first`, in its sign too: 0.0 and -0.0 are different constants."""
    raw = array.tobytes()
    return raw == first.tobytes() * array.size


def index_bound(index: Value) -> float:
    """Below which all elements of an index are known to lie, since something it is made of was
    checked, or is made so."""
    while index.kind == "movement":
        index = index.args[0]
    if index.facts.rearranges:
        return max(index_bound(a) for a in index.args)
    bound = index.facts.index_bound
    return math.inf if bound is None else bound([a.shape for a in index.args], index.params)


def reachable(outputs: Iterable[Value]) -> set[Value]:
    """The values the outputs are made of, themselves included."""
    todo = list(outputs)
    seen = set(todo)
    for v in todo:
        for a in v.args:
            if a not in seen:
                seen.add(a)
                todo.append(a)
    return seen


def in_order(values: Iterable[Value]) -> Iterator[Value]:
    return iter(sorted(values, key=lambda v: v.number))

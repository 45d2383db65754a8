"""Graphs of one op on arrays: how an eager op of a GPU becomes a fused group.

Inputs are the memory of the arrays, and arrays are views of it. The axes of a reduction, or of
rows, are moved to where a group can have them; no element is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.compiler.expr import Inst, Program
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.row_ops import row_op
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import strided
from everygrad.core.shapes import Shape, broadcast, size_of
from everygrad.core.strides import broadcast_strides, collapse, is_row_major, row_major
from everygrad.dtypes import DType

# results up to which threads share them, and elements from which that pays
_FEW = edge(__name__, "_FEW", 64, "count")
_WORD = 4  # elements that are whole words, whatever their dtype


class ScalarOp(OpFacts):
    """A scalar program as an op. Those of one program are equal."""

    family = "elementwise"
    joins_groups = True

    def __init__(self, name: str, scalar: Program) -> None:
        self.name = name
        self.scalar = scalar

    def program(self, inputs: Sequence[DType], params: dict[str, Any]) -> Program:
        return self.scalar

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ScalarOp) and other.scalar is self.scalar

    def __hash__(self) -> int:
        return id(self.scalar)


class Combination(OpFacts):
    """A reduction by how it combines."""

    family = "reduction"
    joins_groups = True

    def __init__(self, name: str, combine: str) -> None:
        self.name = name
        self.combine = combine


SUM, PRODUCT = Combination("sum", "add"), Combination("prod", "mul")


@lru_cache
def cast_program(source: DType, target: DType) -> Program:
    return Program((Inst("input", source, (), 0), Inst("cast", target, (0,))))


class ArrayView(NamedTuple):
    """An array: an offset and strides in one of the op's storages, which has at least `end`
    elements and begins `first` elements behind where a vector may."""

    dtype: DType
    shape: Shape
    strides: Shape
    offset: int
    storage: int
    end: int
    first: int = 0

    def along(self, axes: Shape) -> _Axes:
        """Some of its axes, merged where one stride covers several."""
        shape, (strides,) = collapse(
            tuple(self.shape[a] for a in axes), [tuple(self.strides[a] for a in axes)]
        )
        return _Axes(shape, strides)


class _Axes(NamedTuple):
    shape: Shape
    strides: Shape

    @property
    def nearest(self) -> int:
        """How far apart neighbours are, at least; of a single element 0."""
        return min((abs(s) for s in self.strides if s), default=0)


class OpGraph(NamedTuple):
    """A graph of one op, the arrays it takes, which of their storages its inputs are, the strides
    of its result in memory, where that is not stored in order, and the shape and strides by which
    the result is seen, where its axes were moved."""

    graph: Graph
    arrays: list[Value]
    storages: tuple[int, ...]
    strides: Shape | None = None
    seen: tuple[Shape, Shape] | None = None


def _graph_on(arrays: Sequence[ArrayView], views: Sequence[tuple[Shape, Shape]]) -> OpGraph:
    """A graph with an input for each storage and dtype, and arrays by these shapes and strides."""
    graph, ends = Graph(), dict[Any, int]()
    for a in arrays:
        key = (a.storage, a.dtype)
        ends[key] = max(ends.get(key, 0), a.end)
    bases = {key: graph.input((end,), key[1]) for key, end in ends.items()}
    for a in arrays:
        bases[a.storage, a.dtype].params["first"] = a.first
    taken = [
        strided(bases[a.storage, a.dtype], shape, strides, a.offset)
        for a, (shape, strides) in zip(arrays, views, strict=True)
    ]
    return OpGraph(graph, taken, tuple(storage for storage, _ in bases))


def elementwise(
    name: str, program: Program, arrays: Sequence[ArrayView], in_order: bool = True
) -> OpGraph:
    """A scalar program over arrays that broadcast. Unless its result must be `in_order`, it has the
    axis order of the largest array, so that permuted arrays stay permuted for free."""
    shape = broadcast(name, *(a.shape for a in arrays))
    strides = [broadcast_strides(a.shape, a.strides, shape) for a in arrays]
    order = range(len(shape)) if in_order else _memory_order(shape, strides)
    sizes = tuple(shape[a] for a in order)
    op = _graph_on(arrays, [(sizes, tuple(s[a] for a in order)) for s in strides])
    op.graph.outputs = [op.graph.call(ScalarOp(name, program), op.arrays, {})]
    steps = dict(zip(order, row_major(sizes), strict=True))
    return op._replace(seen=(shape, tuple(steps[a] for a in range(len(shape)))))


def _memory_order(shape: Shape, strides: Sequence[Shape]) -> Sequence[int]:
    """The axes from the outermost in memory to the innermost, by the first array that is as large
    as the result."""
    axes = range(len(shape))
    for steps in strides:
        if all(s or n == 1 for n, s in zip(shape, steps, strict=True)):
            return sorted(axes, key=lambda a: -abs(steps[a]) if shape[a] != 1 else 0)
    return axes


def reduction(op: OpFacts, x: ArrayView, axes: Shape, simulated: bool = False) -> OpGraph:
    """Of a view that has the reduced axes last or first, as rows or columns are near in memory."""
    kept, gone = x.along(tuple(a for a in range(len(x.shape)) if a not in axes)), x.along(axes)
    shares = _shares_rows(kept, gone, simulated)
    first, last = (kept, gone) if shares else (gone, kept)
    made = _graph_on([x], [(first.shape + last.shape, first.strides + last.strides)])
    begin = len(kept.shape) if shares else 0
    places = tuple(range(begin, begin + len(gone.shape)))
    params = {"axes": places, "keepdims": False}
    made.graph.outputs = [made.graph.call(op, made.arrays, params)]
    return made


def _shares_rows(kept: _Axes, gone: _Axes, simulated: bool) -> bool:
    """Whether threads share the elements of a result: where these are nearer to each other than
    those of different results. Or results are few, where a device is simulated and reads nothing
    for a neighbour."""
    if size_of(kept.shape) == 1 or not kept.nearest or gone.nearest <= kept.nearest:
        return True
    return simulated and size_of(kept.shape) < _FEW <= size_of(gone.shape)


def along_rows(
    name: str, arrays: Sequence[ArrayView], axes: Shape, eps: float, whole_words: bool = False
) -> OpGraph:
    """An op along the rows that these axes make, of views that have them last. Halves are computed
    in float32; `whole_words`: so is their result, where they are not stored as whole words."""
    shape, dtype = arrays[0].shape, arrays[0].dtype
    order = (*(a for a in range(len(shape)) if a not in axes), *axes)
    sizes = tuple(shape[a] for a in order)
    op = _graph_on(arrays, [(sizes, tuple(x.strides[a] for a in order)) for x in arrays])
    graph, steps = op.graph, tuple(row_major(shape)[a] for a in order)
    places = tuple(range(len(shape) - len(axes), len(shape)))
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    given = [_converted(graph, x, wide) for x in op.arrays]
    out = row_op(graph, name, given, places, eps)
    in_order = is_row_major(sizes, steps)
    by_words = in_order and size_of(tuple(shape[a] for a in axes)) % _WORD == 0
    if by_words or not whole_words:
        out = _converted(graph, out, dtype)
    graph.outputs = [out]
    return op if in_order else op._replace(strides=steps)


def _converted(graph: Graph, x: Value, dtype: DType) -> Value:
    if x.dtype is dtype:
        return x
    return graph.call(ScalarOp("astype", cast_program(x.dtype, dtype)), [x], {})

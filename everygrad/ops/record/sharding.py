"""How an op is computed in shards: the axes along which shards of its inputs give shards of its
result, or parts that add up to it. Written for one mesh axis; `distributed.placed` asks.

The families derive theirs here. A kernel states its own as the fact `splits`, a function of the
inputs' shapes and the parameters, or is taken for what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.compiler.facts import Move
from everygrad.core.shapes import Shape, broadcast, size_of
from everygrad.dispatch import apply
from everygrad.ops.record.spec import REGISTRY

if TYPE_CHECKING:
    from everygrad.core.op import Op
    from everygrad.core.tensor import Tensor

Params = dict[str, Any]


class Split(NamedTuple):
    """One way to compute an op in shards.

    inputs   the axis along which each input is sharded; None: every rank has all of it
    out      the axis along which the results are shards; None: they add up
    size     of the whole result along `out`, where it is not that of the inputs
    params   (parameters, size of the result's shard) -> the parameters for a shard
    even     only where the axis divides by the number of ranks
    compute  (inputs, parameters) -> a shard of the result, where it is not the op itself
    """

    inputs: tuple[int | None, ...]
    out: int | None
    size: int | None = None
    params: Callable[[Params, int], Params] | None = None
    even: bool = False
    compute: Callable[..., Tensor] | None = None


def splits_of(op: Op, shapes: Sequence[Shape], params: Params) -> list[Split] | None:
    """The ways to compute `op` on inputs of these shapes; None where its definition must say."""
    family = _FAMILIES.get(op.family)
    if family is not None:
        return family(op, shapes, params)
    return None if op.splits is None else list(op.splits(shapes, **params))


def is_linear(op: Op, inputs: Sequence[int]) -> bool:
    """Whether the op of sums of these inputs, all at once, is the sum of the op of each."""
    given = tuple(inputs)
    if op.derivative_of is not None:
        return given == (0,)  # a derivative is linear in g
    if op.family == "movement":
        return True
    if op.family == "reduction":
        return op.combine == "add"
    if given in op.linear_in:
        return True
    return len(given) == 1 and given[0] in getattr(op, "linear", ())


# --- the families --------------------------------------------------------------------------------


def _elementwise(op: Op, shapes: Sequence[Shape], params: Params) -> list[Split]:
    return broadcast_axes(shapes, broadcast(op.name, *shapes))


def broadcast_axes(shapes: Sequence[Shape], out: Shape, trailing: int = 0) -> list[Split]:
    """Each axis of a result whose inputs broadcast, but for the last `trailing` ones."""
    made = []
    for axis in range(len(out) - trailing):
        places = [axis - len(out) + len(shape) for shape in shapes]
        inputs = tuple(
            p if p >= 0 and shape[p] == out[axis] else None
            for p, shape in zip(places, shapes, strict=True)
        )
        made.append(Split(inputs, axis, out[axis]))
    return made


def _reduction(op: Op, shapes: Sequence[Shape], params: Params) -> list[Split]:
    (shape,) = shapes
    axes, keepdims = params["axes"], params["keepdims"]
    made = []
    for axis in range(len(shape)):
        if axis not in axes:
            out = axis if keepdims else axis - sum(a < axis for a in axes)
            made.append(Split((axis,), out))
        elif op.is_sum:
            made.append(Split((axis,), None))
        elif op.combine == "add" and op.mean:
            count = float(max(1, size_of(tuple(shape[a] for a in axes))))
            made.append(Split((axis,), None, compute=lambda x, c=count, **p: _share(x, c, p)))
    return made


def _share(x: Tensor, count: float, params: Params) -> Tensor:
    """What a shard contributes to the mean of `count` elements."""
    total: Tensor = apply(REGISTRY["sum"], x, **params) / count
    return total


def _movement(op: Op, shapes: Sequence[Shape], params: Params) -> list[Split]:
    (shape,) = shapes
    assert op.move is not None
    return _MOVES[op.move](shape, **params)


def _permute(shape: Shape, axes: Shape) -> list[Split]:
    return [Split((axis,), axes.index(axis)) for axis in range(len(shape))]


def _with_size(name: str, at: int) -> Callable[[Params, int], Params]:
    """Parameters whose shape `name` has the size of a shard along `at`."""

    def change(params: Params, size: int) -> Params:
        shape = params[name]
        return {**params, name: (*shape[:at], size, *shape[at + 1 :])}

    return change


def _broadcast(old: Shape, shape: Shape) -> list[Split]:
    more = len(shape) - len(old)
    return [
        Split((axis,), axis + more, params=_with_size("shape", axis + more))
        for axis, size in enumerate(old)
        if size == shape[axis + more]
    ]


def _reshape(old: Shape, shape: Shape) -> list[Split]:
    """The first axis of each group of axes that become a group of axes: its elements stay in
    order, so that a shard stays a stretch of them."""
    made = []
    i = j = 0
    while i < len(old) and j < len(shape):
        if size_of(old[:i]) == size_of(shape[:j]) and size_of(old[i:]) == size_of(shape[j:]):
            pair = old[i], shape[j]
            same = pair[0] == pair[1]
            if same or (min(pair) > 0 and max(pair) % min(pair) == 0):
                even = not same
                change = _with_size("shape", j)
                made.append(Split((i,), j, shape[j], change, even))
        if size_of(old[: i + 1]) <= size_of(shape[: j + 1]):
            if size_of(old[: i + 1]) == size_of(shape[: j + 1]):
                j += 1
            i += 1
        else:
            j += 1
    return made


def _slice(shape: Shape, slices: Any) -> list[Split]:
    def change(axis: int) -> Callable[[Params, int], Params]:
        return lambda params, size: {**params, "slices": _full(params["slices"], axis, size)}

    whole = [axis for axis, n in enumerate(shape) if tuple(slices[axis]) == (0, n, 1)]
    return [Split((axis,), axis, params=change(axis)) for axis in whole]


def _unslice(old: Shape, shape: Shape, slices: Any) -> list[Split]:
    def change(axis: int) -> Callable[[Params, int], Params]:
        sized = _with_size("shape", axis)
        return lambda params, size: {
            **sized(params, size),
            "slices": _full(params["slices"], axis, size),
        }

    whole = [axis for axis, n in enumerate(shape) if tuple(slices[axis]) == (0, n, 1)]
    return [Split((axis,), axis, params=change(axis)) for axis in whole]


def _full(slices: Any, axis: int, size: int) -> Any:
    return (*slices[:axis], (0, size, 1), *slices[axis + 1 :])


_MOVES: dict[Move, Callable[..., list[Split]]] = {
    Move.PERMUTE: _permute,
    Move.BROADCAST: _broadcast,
    Move.RESHAPE: _reshape,
    Move.SLICE: _slice,
    Move.UNSLICE: _unslice,
}
_FAMILIES: dict[str, Callable[[Any, Sequence[Shape], Params], list[Split]]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "movement": _movement,
}

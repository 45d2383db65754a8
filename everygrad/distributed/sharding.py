"""How an op is computed in shards: the axes along which shards of its inputs give shards of its
result, or parts that add up to it. Written for one mesh axis; `distributed.placed` asks.

The families derive theirs here. A kernel states its own as the fact `splits`, a function of the
inputs' shapes and the parameters, or is taken for what it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from everygrad.compiler.facts import Move
from everygrad.core.shapes import Shape, broadcast, size_of
from everygrad.dispatch import apply
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.record.splits import Params, Split, broadcast_axes, with_size

if TYPE_CHECKING:
    from everygrad.core.op import Op
    from everygrad.core.tensor import Tensor


def splits_of(op: Op, shapes: Sequence[Shape], params: Params) -> list[Split] | None:
    """The ways to compute `op` on inputs of these shapes; None where its definition must say."""
    family = _FAMILIES.get(op.family)
    if family is not None:
        return family(op, shapes, params)
    return None if op.splits is None else list(op.splits(shapes, **params))


def is_linear(op: Op, inputs: Sequence[int], count: int) -> bool:
    """Whether the op of sums of these of `count` inputs, all at once, is the sum of the op of
    each."""
    given = tuple(inputs)
    if op.linear_in_all:
        return len(given) == count
    if op.derivative_of is not None:  # linear in g; that of a product in the other factor too
        product = {(0,), (1,)} <= set(op.derivative_of.linear_in)
        return given == (0,) or (product and len(given) == 1)
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


def _broadcast(old: Shape, shape: Shape) -> list[Split]:
    more = len(shape) - len(old)
    return [
        Split((axis,), axis + more, params=with_size("shape", axis + more))
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
                change = with_size("shape", j)
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
        sized = with_size("shape", axis)
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

"""vmap: a payload with one hidden leading axis, and how each family treats it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from everygrad.autograd.modes import deeper, transform_depth
from everygrad.autograd.randomness import Batch, vmaps_around
from everygrad.autograd.trees import flatten, spread, unflatten
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, ShapeError
from everygrad.ops.spec import NoRule
from everygrad.shapes import Shape, axis_index
from everygrad.tensor import Tensor, Wrapped, wrap


class Batched(Wrapped):
    """A tensor of the level below whose first axis is the batch."""

    __slots__ = ("value",)

    def __init__(self, level: int, value: Tensor) -> None:
        self.level = level
        self.value = value

    def stopped(self) -> Batched:
        return Batched(self.level, self.value.detach())

    @property
    def inner(self) -> Tensor:
        return self.value

    @property
    def shape(self) -> Shape:
        return self.value.shape[1:]

    @property
    def dtype(self) -> Any:
        return self.value._data.dtype

    @property
    def device(self) -> str:
        return self.value.device

    def interpret(self, op: Any, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        level, size = self.level, self.value.shape[0]
        flags = [_at(t, level) for t in inputs]
        values = [t._data.value if has else t for t, has in zip(inputs, flags, strict=True)]
        try:
            out = _RULES[op.family](op, values, flags, size, params)
        except NoRule:
            return op.portable(*inputs, **params)._data
        return Batched(level, out)


def _at(t: Tensor, level: int) -> bool:
    return isinstance(t._data, Batched) and t._data.level == level


def _elementwise(
    op: Any, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
) -> Tensor:
    """The batch axis in front of axes that broadcast: ranks are evened out behind it."""
    rank = max(v.ndim - has for v, has in zip(values, flags, strict=True))
    aligned = [
        v.reshape((size, *(1,) * (rank + 1 - v.ndim), *v.shape[1:]))
        if has and v.ndim <= rank
        else v
        for v, has in zip(values, flags, strict=True)
    ]
    return apply(op, *aligned, **params)


def _reduction(
    op: Any, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
) -> Tensor:
    axes = tuple(a + 1 for a in params["axes"])
    return apply(op, values[0], axes=axes, keepdims=params["keepdims"])


def _movement(
    op: Any, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
) -> Tensor:
    (x,) = values
    moved = _fill(op.batch(x.shape[1:], **params), size)
    rank = moved.pop("aligned", None)
    if rank is not None and x.ndim <= rank:
        x = x.reshape((size, *(1,) * (rank + 1 - x.ndim), *x.shape[1:]))
    return apply(op, x, **moved)


def _fill(params: Any, size: int) -> Any:
    """Parameters with the placeholder for the batch size filled in."""
    if isinstance(params, dict):
        return {k: _fill(v, size) for k, v in params.items()}
    if isinstance(params, tuple):
        if params[:2] == ("batch", "batch"):
            return (0, size, 1)
        return tuple(_fill(v, size) for v in params)
    return size if params == "batch" else params


def _kernel(
    op: Any, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
) -> Tensor:
    return op.batched(values, flags, size, params)


_RULES: dict[str, Callable[..., Tensor]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "movement": _movement,
    "kernel": _kernel,
}


def add_batch(x: Tensor, axis: int, level: int) -> Tensor:
    """x with one axis hidden as the batch of `level`."""
    return wrap(Batched(level, x if axis == 0 else x.moveaxis(axis, 0)))


def remove_batch(x: Tensor, axis: int, level: int, size: int) -> Tensor:
    """x with the batch of `level` shown again as an axis; repeated if x never depended on it."""
    value = x._data.value if _at(x, level) else x.expand_dims(0).broadcast_to((size, *x.shape))
    return value if axis == 0 else value.moveaxis(0, axis_index(axis, value.ndim, "vmap"))


def _spread(axes: Any, tree: Any, what: str) -> list[Any]:
    """One axis for each leaf of `tree`, from a value or a matching prefix of containers."""
    try:
        return spread(axes, tree)
    except ValueError as error:
        raise ArgumentError(f"vmap: {what} does not match the arguments: {error}") from None


def _batch_size(leaves: list[Any], axes: list[Any]) -> int:
    sizes = {}
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None:
            continue
        if not isinstance(leaf, Tensor):
            raise ArgumentError(f"vmap: in_axes {axis} for a {type(leaf).__name__}; use None")
        if not -leaf.ndim <= axis < leaf.ndim:
            raise AxisError(f"vmap: in_axes {axis} is out of range for an input of {leaf.shape}")
        sizes[leaf.shape[axis]] = leaf.shape
    if not sizes:
        raise ArgumentError("vmap: in_axes is None for every input; there is nothing to map over")
    if len(sizes) > 1:
        shown = ", ".join(f"{n} in {shape}" for n, shape in sizes.items())
        raise ShapeError(f"vmap: the mapped axes have different sizes: {shown}")
    return next(iter(sizes))


def vmap(
    f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, randomness: str = "error"
) -> Callable[..., Any]:
    """f for each slice of its inputs along `in_axes`, all at once.

    in_axes, out_axes  an axis, None (not mapped), or containers of them matching the arguments
    randomness         random functions inside: "error", the "same" numbers for every example, or
                       "different" ones

    >>> import everygrad as eg
    >>> eg.vmap(lambda x, y: (x * y).sum())(eg.ones((3, 2)), eg.ones((3, 2)))
    tensor([2., 2., 2.])
    """
    if randomness not in ("error", "same", "different"):
        raise ArgumentError(
            f'vmap: randomness must be "error", "same" or "different", got {randomness!r}'
        )

    @wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = flatten((args, kwargs), none_is_leaf=True)
        given = tuple(in_axes) if isinstance(in_axes, list | tuple) else in_axes
        axes = _spread(given, args, "in_axes")
        axes += [0 if isinstance(v, Tensor) else None for v in leaves[len(axes) :]]
        axes = [
            a if isinstance(v, Tensor) else None if a == in_axes else a
            for a, v in zip(axes, leaves, strict=True)
        ]
        size = _batch_size(leaves, axes)
        with deeper():
            level = transform_depth()
            around = vmaps_around.get()
            try:
                vmaps_around.set((*around, Batch(level, size, randomness, _wrap_first)))
                inside = [
                    v if a is None else add_batch(v, a % v.ndim, level)
                    for v, a in zip(leaves, axes, strict=True)
                ]
                new_args, new_kwargs = unflatten(tree, inside)
                out = f(*new_args, **new_kwargs)
            finally:
                vmaps_around.set(around)
        results, out_tree = flatten(out, none_is_leaf=True)
        places = _spread(out_axes, out, "out_axes")
        shown = [_leave(v, a, level, size) for v, a in zip(results, places, strict=True)]
        return unflatten(out_tree, shown)

    return mapped


def _wrap_first(x: Tensor, level: int) -> Tensor:
    return add_batch(x, 0, level)


def _leave(value: Any, axis: Any, level: int, size: int) -> Any:
    if not isinstance(value, Tensor):
        raise ArgumentError(f"vmap: the function must return tensors, got {type(value).__name__}")
    if axis is None:
        if _at(value, level):
            raise ArgumentError("vmap: out_axes is None for a result that differs by example")
        return value
    return remove_batch(value, axis, level, size)

"""vmap: a payload with one hidden leading axis, and how each family treats it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from typing import Any

from everygrad.autograd.modes import _Mode
from everygrad.autograd.randomness import Batch, vmaps_around
from everygrad.autograd.transform_scope import (
    INTERPRETED,
    Place,
    Transform,
    check_in_force,
    rolled_back,
    user_place,
    within,
)
from everygrad.autograd.trees import flatten, spread, unflatten
from everygrad.core.op import Op
from everygrad.core.shapes import Shape, axis_index
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, ShapeError
from everygrad.ops.record.families import Kernel, Movement
from everygrad.ops.record.keywords import spelled
from everygrad.ops.record.spec import NoRule


class Batched(Wrapped):
    """A tensor of the level below whose first axis is the batch."""

    __slots__ = ("place", "transform", "value")

    def __init__(self, transform: Transform, value: Tensor, place: Place) -> None:
        self.level = transform.level
        self.transform = transform
        self.value = value
        self.place = place

    def stopped(self) -> Batched:
        return Batched(self.transform, self.value.detach(), self.place)

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

    def interpret(self, op: Op, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        transform, size = self.transform, self.value.shape[0]
        if transform.over:
            check_in_force(self, f"{op.name}: ")
        flags = [_at(t, transform) for t in inputs]
        values = [t._data.value if has else t for t, has in zip(inputs, flags, strict=True)]
        try:
            out = _RULES[op.family](op, values, flags, size, params)
        except NoRule:
            return op.portable(*inputs, **params)._data
        return Batched(transform, out, user_place(INTERPRETED))


def _at(t: Tensor, transform: Transform) -> bool:
    return isinstance(t._data, Batched) and t._data.transform is transform


def _elementwise(
    op: Op, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
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
    op: Op, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
) -> Tensor:
    axes = tuple(a + 1 for a in params["axes"])
    return apply(op, values[0], axes=axes, keepdims=params["keepdims"])


def _movement(
    op: Movement, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
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
    op: Kernel, values: list[Tensor], flags: list[bool], size: int, params: dict[str, Any]
) -> Tensor:
    return op.batched(values, flags, size, params)


_RULES: dict[str, Callable[..., Tensor]] = {
    "elementwise": _elementwise,
    "reduction": _reduction,
    "movement": _movement,
    "kernel": _kernel,
}


def add_batch(x: Tensor, axis: int, transform: Transform) -> Tensor:
    """x with one axis hidden as the batch of `transform`."""
    return wrap(Batched(transform, x if axis == 0 else x.moveaxis(axis, 0), user_place()))


def remove_batch(x: Tensor, axis: int, transform: Transform, size: int) -> Tensor:
    """x with the batch shown again as an axis; repeated if x never depended on it."""
    here = _at(x, transform)
    value = x._data.value if here else x.expand_dims(0).broadcast_to((size, *x.shape))
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


@spelled
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
    def call(*args: Any, **kwargs: Any) -> Any:
        given = tuple(in_axes) if isinstance(in_axes, list | tuple) else in_axes
        leaves, tree = flatten((args, kwargs), none_is_leaf=True)
        axes = _spread(given, args, "in_axes")
        axes += [0 if isinstance(v, Tensor) else None for v in leaves[len(axes) :]]
        axes = [
            a if isinstance(v, Tensor) else None if a == in_axes else a
            for a, v in zip(axes, leaves, strict=True)
        ]
        size = _batch_size(leaves, axes)
        return _mapped(f, leaves, tree, axes, out_axes, Transform("vmap", size), size, randomness)

    return call


def along_directions(f: Callable[[Tensor], Any], xs: Tensor, name: str, out_axes: int = 0) -> Any:
    """f for each row of xs, as one call of the function that is differentiated: what it draws is
    drawn once, what it changes is changed once."""
    leaves, tree = flatten(((xs,), {}), none_is_leaf=True)
    return _mapped(f, leaves, tree, [0], out_axes, Transform(name), xs.shape[0], "same")


def _mapped(
    f: Callable[..., Any],
    leaves: list[Any],
    tree: Any,
    axes: list[Any],
    out_axes: Any,
    transform: Transform,
    size: int,
    randomness: str,
) -> Any:
    """f of the arguments with their batches hidden, its results with the batch shown again."""
    batch = Batch(transform, size, randomness, _wrap_first)
    with rolled_back(transform), within(transform):
        with _drawing(batch):
            inside = [
                v if a is None else add_batch(v, a % v.ndim, transform)
                for v, a in zip(leaves, axes, strict=True)
            ]
            out = _call(f, *unflatten(tree, inside))
            del inside
        results, out_tree = flatten(out, none_is_leaf=True)
        places = _spread(out_axes, out, "out_axes")
        shown = [_leave(v, a, transform, size) for v, a in zip(results, places, strict=True)]
        del out, results
        transform.settle()
    transform.end()
    return unflatten(out_tree, shown)


class _drawing(_Mode):  # noqa: N801  # a context manager, read as a phrase
    """Random functions know of one more vmap inside."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch

    def settings(self) -> tuple[tuple[ContextVar[Any], Any], ...]:
        return ((vmaps_around, (*vmaps_around.get(), self.batch)),)


def _call(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return f(*args, **kwargs)  # in a frame of its own, so that nothing here holds the arguments


def _wrap_first(x: Tensor, transform: Transform) -> Tensor:
    return add_batch(x, 0, transform)


def _leave(value: Any, axis: Any, transform: Transform, size: int) -> Any:
    if not isinstance(value, Tensor):
        raise ArgumentError(f"vmap: the function must return tensors, got {type(value).__name__}")
    if axis is None:
        if _at(value, transform):
            raise ArgumentError("vmap: out_axes is None for a result that differs by example")
        return wrap(shared(value), value._node)
    return remove_batch(value, axis, transform, size)

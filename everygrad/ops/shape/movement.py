"""Movement ops: the five layout moves every backend knows, and what people make of them.

reshape, permute, expand, slice, and unslice (a slice's transpose: the rest is zero). All are
linear; each gives its transpose in terms of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.compiler.facts import Move
from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, view
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Movement
from everygrad.ops.record.keywords import only_ones, with_names
from everygrad.ops.record.spec import REGISTRY, composite, refuse, register, same, sample
from everygrad.ops.shape.piecewise_gradient import Pieces, Slices


def _batched_shape(old: Shape, shape: Shape) -> dict[str, Any]:
    return {"shape": ("batch", *shape)}


RESHAPE: Movement = Movement(
    Move.RESHAPE,
    lambda old, shape: shape,
    lambda g, shape: apply(RESHAPE, g, shape=shape),
    _batched_shape,
)


def reshape(x: Tensor, shape: Any = (), *more: int, copy: bool | None = None) -> Tensor:
    """The same elements in another shape, a tuple or several numbers; one size may be -1.

    Values never change, so that `copy` changes nothing.

    >>> import everygrad as eg
    >>> eg.arange(6).reshape(2, -1).shape
    (2, 3)
    """
    if copy is not None:
        shapes.as_bool(copy, "reshape", "copy")
    wanted = shapes.as_shape((shape, *more) if more else shape, "reshape")
    new = shapes.resolve_reshape(x.shape, wanted)
    return view(same(x) if new == x.shape else apply(RESHAPE, x, shape=new), x)


register(
    RESHAPE,
    reshape,
    methods=("reshape",),
    reference=lambda x, shape: np.reshape(x, shape),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), (3, 2)),
            sample(s.real(2, 3), (-1,)),
            sample(s.real(), (1, 1)),
            sample(s.real(0, 3), (3, 0)),
            sample(s.real(4), (2, 1, 2)),
            sample(s.real(1), ()),
        )
    ),
    refuses=(
        refuse(ShapeError, r"reshape: \(2, 3\) has 6 elements, \(4,\) has 4", s.real(2, 3), (4,)),
        refuse(ShapeError, "one may be -1", s.real(2, 3), (-1, -1)),
        refuse(ArgumentError, "reshape: every size must be an integer", s.real(2, 3), (2.0, 3)),
    ),
)


def _inverse(axes: Shape) -> Shape:
    places = [0] * len(axes)
    for i, a in enumerate(axes):
        places[a] = i
    return tuple(places)


PERMUTE: Movement = Movement(
    Move.PERMUTE,
    lambda old, axes: tuple(old[a] for a in axes),
    lambda g, axes: apply(PERMUTE, g, axes=_inverse(axes)),
    lambda old, axes: {"axes": (0, *(a + 1 for a in axes))},
)


def permute_dims(x: Tensor, axes: Any = (), *more: int, **names: Any) -> Tensor:
    """The axes in another order, a tuple or several numbers."""
    if names:
        return with_names(permute_dims, names, x, axes)
    order = shapes.axis_tuple((axes, *more) if more else axes, x.ndim, "permute_dims")
    if len(order) != x.ndim:
        raise AxisError(f"permute_dims: {order} must name each of the {x.ndim} axes once")
    return view(apply(PERMUTE, x, axes=order), x)


register(
    PERMUTE,
    permute_dims,
    methods=("permute_dims",),
    reference=np.transpose,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), (1, 0)),
            sample(s.real(2, 3, 4), (2, 0, 1)),
            sample(s.real(2, 3, 4), (-1, 0, -2)),
            sample(s.real(), ()),
            sample(s.real(0, 2), (1, 0)),
        )
    ),
    refuses=(
        refuse(AxisError, "must name each of the 3 axes once", s.real(2, 3, 4), (0, 1)),
        refuse(AxisError, "names a dimension twice", s.real(2, 3), (0, 0)),
        refuse(AxisError, "out of range for 2 dimensions", s.real(2, 3), (0, 2)),
    ),
)


def _summed_down(g: Tensor, shape: Shape) -> Tensor:
    return sum_to(g, shape)


EXPAND: Movement = Movement(
    Move.BROADCAST,
    lambda old, shape: shape,
    _summed_down,
    lambda old, shape: {"shape": ("batch", *shape), "aligned": len(shape)},
)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x repeated, without copying, along axes of size 1 and new leading axes."""
    new = shape if type(shape) is tuple else shapes.as_shape(shape, "broadcast_to")
    old = x.shape
    if new == old:
        return view(same(x), x)
    if not old and shapes.all_sizes(new):
        return view(apply(EXPAND, x, shape=new), x)
    new = shapes.as_shape(new, "broadcast_to")
    if len(new) < x.ndim or shapes.broadcast("broadcast_to", x.shape, new) != new:
        raise ShapeError(f"broadcast_to: {x.shape} does not fit into {new}")
    return view(apply(EXPAND, x, shape=new), x)


register(
    EXPAND,
    broadcast_to,
    methods=("broadcast_to",),
    reference=np.broadcast_to,
    samples=lambda: iter(
        (
            sample(s.real(3), (2, 3)),
            sample(s.real(2, 1), (2, 3)),
            sample(s.real(), (2, 2)),
            sample(s.real(1, 3), (4, 2, 3)),
            sample(s.real(1), (0,)),
        )
    ),
    refuses=(
        refuse(ShapeError, "broadcast_to", s.real(3), (4,)),
        refuse(ShapeError, "does not fit", s.real(2, 3), (3,)),
    ),
)


@composite(
    reference="tests.support.references.basic:expand",
    torch=lambda torch, x, *shape: x.expand(*shape),
    samples=lambda: iter(
        (
            sample(s.real(2, 1), (-1, 3)),
            sample(s.real(3), 2, -1),
            sample(s.real(), (2, 2)),
        )
    ),
    refuses=(
        refuse(ShapeError, r"expand: -1 at 0 of \(-1, 3\) is no axis of \(3,\)", s.real(3), -1, 3),
        refuse(ShapeError, "broadcast_to", s.real(3), 4),
    ),
)
def expand(x: Tensor, shape: Any = (), *more: int) -> Tensor:
    """`broadcast_to`, the sizes in a tuple or as several numbers, where -1 keeps an axis as it
    is."""
    wanted = shapes.as_shape((shape, *more) if more else shape, "expand")
    if -1 in wanted:
        wanted = _kept(wanted, x.shape)
    return broadcast_to(x, wanted)


def _kept(wanted: Shape, shape: Shape) -> Shape:
    """`wanted` with the sizes of `shape`, which ends where it ends, in place of each -1."""
    new = len(wanted) - len(shape)
    for i, n in enumerate(wanted):
        if n == -1 and i < new:
            raise ShapeError(f"expand: -1 at {i} of {wanted} is no axis of {shape}")
    return tuple(shape[i - new] if n == -1 else n for i, n in enumerate(wanted))


@composite(
    reference="tests.support.references.basic:sum_to",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), (3,)),
            sample(s.real(4, 2, 3), (2, 1)),
            sample(s.real(2), ()),
            sample(s.real(0), (1,)),
            sample(s.real(2, 2), (2, 2)),
        )
    ),
    refuses=(refuse(ShapeError, "sum_to", s.real(2, 3), (2,)),),
)
def sum_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x summed down to `shape`: the transpose of broadcasting."""
    small = shape if type(shape) is tuple else shapes.as_shape(shape, "sum_to")
    big = x.shape
    if big == small:
        return same(x)
    added = len(big) - len(small)
    if added > 0 and big == (1,) * added + small:  # nothing to add up
        return x.reshape(small)
    if added > 0 and big[added:] == small and x.dtype.is_differentiable:  # a bias, or one number
        return apply(REGISTRY["sum"], x, axes=tuple(range(added)), keepdims=False)
    if len(small) > x.ndim or shapes.broadcast("sum_to", x.shape, small) != x.shape:
        raise ShapeError(f"sum_to: {small} does not broadcast to {x.shape}")
    leading, stretched = shapes.reduced_axes(x.shape, small)
    if stretched:
        x = x.sum(axis=stretched, keepdims=True, dtype=x.dtype)
    return x.sum(axis=leading, dtype=x.dtype) if leading else x


class _Slice(Movement):
    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        (parent,), slices = node.parents, node.params["slices"]
        if node.shape == parent.shape:  # flipped as a whole: no piece
            return [apply(UNSLICE, g, shape=parent.shape, slices=slices)]
        return [Pieces.of_slice(slices, g, parent.shape)]


SLICE: Movement = _Slice(
    Move.SLICE,
    lambda old, slices: tuple(count for _, count, _ in slices),
    lambda g, shape, slices: apply(UNSLICE, g, shape=shape, slices=slices),
    lambda old, slices: {"slices": (("batch", "batch", 1), *slices)},
)
UNSLICE: Movement = Movement(
    Move.UNSLICE,
    lambda old, shape, slices: shape,
    lambda g, slices: apply(SLICE, g, slices=slices),
    lambda old, shape, slices: {
        "shape": ("batch", *shape),
        "slices": (("batch", "batch", 1), *slices),
    },
)


def take_slices(x: Tensor, slices: Slices) -> Tensor:
    """`count` elements from `start` on, every `step`, along each axis."""
    whole = tuple((0, n, 1) for n in x.shape)
    return view(same(x) if slices == whole else apply(SLICE, x, slices=slices), x)


def put_slices(x: Tensor, shape: Shape, slices: Slices) -> Tensor:
    """Zeros of `shape` with x where `take_slices` would read."""
    return apply(UNSLICE, x, shape=shape, slices=slices)


def slice_axis(x: Tensor, axis: int, start: int, count: int, step: int = 1) -> Tensor:
    """`count` elements along one axis."""
    slices = tuple((start, count, step) if i == axis else (0, n, 1) for i, n in enumerate(x.shape))
    return take_slices(x, slices)


register(
    SLICE,
    take_slices,
    reference="tests.support.references.basic:take_slices",
    samples=lambda: iter(
        (
            sample(s.real(4, 3), ((1, 2, 1), (0, 3, 1))),
            sample(s.real(5), ((4, 3, -2),)),
            sample(s.real(6), ((0, 0, 1),)),
        )
    ),
    namespace="internal",
)
register(
    UNSLICE,
    put_slices,
    reference="tests.support.references.basic:put_slices",
    samples=lambda: iter(
        (
            sample(s.real(2, 3), (4, 3), ((1, 2, 1), (0, 3, 1))),
            sample(s.real(3), (5,), ((4, 3, -2),)),
        )
    ),
    namespace="internal",
)


@composite(
    scalar_rows="row",
    reference=np.flip,
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(2, 3), axis=1),
            sample(s.real(2, 3), axis=(-1, 0)),
            sample(s.real(0)),
            sample(s.real()),
        )
    ),
    refuses=(refuse(AxisError, "flip: axis 2 is out of range", s.real(2, 3), axis=2),),
)
def flip(x: Tensor, axis: Any = None, *more: int, **names: Any) -> Tensor:
    """The order of the elements reversed along the given axes, a tuple or several numbers, or along
    all."""
    if names:
        return with_names(flip, names, x, axis)
    axes = shapes.axis_tuple((axis, *more) if more else axis, x.ndim, "flip")
    return take_slices(
        x, tuple((n - 1, n, -1) if i in axes else (0, n, 1) for i, n in enumerate(x.shape))
    )


@composite(
    scalar_rows="row",
    reference="tests.support.references.basic:squeeze",
    samples=lambda: iter(
        (
            sample(s.real(1, 3), 0),
            sample(s.real(2, 1, 1), (1, -1)),
            sample(s.real(1), -1),
            sample(s.real(1, 2, 1)),
        )
    ),
    refuses=(
        refuse(ShapeError, r"squeeze: axis 1 of \(2, 3\) has size 3, not 1", s.real(2, 3), 1),
    ),
)
def squeeze(x: Tensor, axis: Any = None, **names: Any) -> Tensor:
    """Without the given axes, each of which must have size 1; without all that do, if none is
    given."""
    if names:
        return with_names(squeeze, only_ones(x, names), x, axis)
    if axis is None:
        axis = tuple(a for a, n in enumerate(x.shape) if n == 1)
    axes = shapes.axis_tuple(axis, x.ndim, "squeeze")
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of {x.shape} has size {x.shape[a]}, not 1")
    return x.reshape(shapes.reduced(x.shape, axes, False))


@composite(
    reference=np.expand_dims,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), axis=0),
            sample(s.real(2, 3), axis=-1),
            sample(s.real(), axis=0),
            sample(s.real(2, 3), axis=(0, 2)),
        )
    ),
    refuses=(refuse(AxisError, "expand_dims: axis 4", s.real(2, 3), axis=4),),
)
def expand_dims(x: Tensor, axis: Any = 0, **names: Any) -> Tensor:
    """With new axes of size 1 at the given places of the result."""
    if names:
        return with_names(expand_dims, names, x, axis)
    count = len(axis) if isinstance(axis, Sequence) else 1
    axes = shapes.axis_tuple(axis, x.ndim + count, "expand_dims")
    old = iter(x.shape)
    return x.reshape(tuple(1 if i in axes else next(old) for i in range(x.ndim + count)))


@composite(
    scalar_rows="row",
    reference=np.swapaxes,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), 0, 1),
            sample(s.real(2, 3, 4), -1, 0),
        )
    ),
    refuses=(refuse(AxisError, "swapaxes: axis 2", s.real(2, 3), 0, 2),),
)
def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Two axes exchanged."""
    order = list(range(x.ndim))
    a = shapes.axis_index(axis1, x.ndim, "swapaxes")
    b = shapes.axis_index(axis2, x.ndim, "swapaxes")
    order[a], order[b] = order[b], order[a]
    return permute_dims(x, order)


@composite(
    scalar_rows="row",
    reference=np.moveaxis,
    samples=lambda: iter(
        (
            sample(s.real(2, 3, 4), 0, 2),
            sample(s.real(2, 3, 4), (0, 1), (-1, 0)),
        )
    ),
    refuses=(refuse(AxisError, "moveaxis: axis 3", s.real(2, 3), 0, 3),),
)
def moveaxis(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Axes moved to other places, the rest keeping their order."""
    from_axes = shapes.axis_tuple(source, x.ndim, "moveaxis")
    to_axes = shapes.axis_tuple(destination, x.ndim, "moveaxis")
    if len(from_axes) != len(to_axes):
        raise ArgumentError(f"moveaxis: {len(from_axes)} axes to {len(to_axes)} places")
    order = [a for a in range(x.ndim) if a not in from_axes]
    for to, a in sorted(zip(to_axes, from_axes, strict=True)):
        order.insert(to, a)
    return permute_dims(x, order)


@composite(
    reference=np.matrix_transpose,
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(2, 3, 4)),
        )
    ),
    refuses=(refuse(ShapeError, "matrix_transpose: needs 2 dimensions", s.real(3)),),
)
def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: needs 2 dimensions or more, got shape {x.shape}")
    n = x.ndim
    return view(apply(PERMUTE, x, axes=(*range(n - 2), n - 1, n - 2)), x)


@composite(
    reference="tests.support.references.basic:flatten",
    samples=lambda: iter(
        (
            sample(s.real(2, 3, 4)),
            sample(s.real(2, 3, 4), 1),
            sample(s.real(), 0),
            sample(s.real(2, 3, 4), 0, 1),
        )
    ),
    refuses=(refuse(AxisError, "flatten: axis 2", s.real(2, 3), 2),),
)
def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1, **names: Any) -> Tensor:
    """The axes from start_axis to end_axis made one."""
    if names:
        return with_names(flatten, names, x, start_axis, end_axis)
    if x.ndim == 0:
        for a in (start_axis, end_axis):
            if a not in (0, -1):
                shapes.axis_index(a, 0, "flatten")  # refuses it
        return x.reshape(1)
    a = shapes.axis_index(start_axis, x.ndim, "flatten")
    b = shapes.axis_index(end_axis, x.ndim, "flatten")
    middle = shapes.size_of(x.shape[a : b + 1])
    return x.reshape((*x.shape[:a], middle, *x.shape[b + 1 :]))

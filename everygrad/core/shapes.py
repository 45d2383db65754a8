"""Facts about shapes and axes: broadcasting, axis normalisation, what a slice selects."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from everygrad.errors import ArgumentError, AxisError, ShapeError

Shape = tuple[int, ...]


def broadcast(op: str, *shapes: Shape) -> Shape:
    """The common shape, or a ShapeError that names the sizes that differ.

    >>> broadcast("add", (3, 1), (4,))
    (3, 4)
    """
    if shapes.count(shapes[0]) == len(shapes):
        return tuple(shapes[0])
    rank = max(map(len, shapes))
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if out[i] == 1:
                out[i] = size
            elif size not in (1, out[i]):
                shown = " with ".join(map(str, shapes))
                raise ShapeError(
                    f"{op}: cannot broadcast {shown}: sizes {out[i]} and {size} "
                    f"at axis {i - rank} differ and neither is 1"
                )
    return tuple(out)


def as_int(value: Any, op: str, what: str) -> int:
    """An integer argument, refusing floats and bools that Python would let through."""
    if isinstance(value, bool):
        raise ArgumentError(f"{op}: {what} must be an integer, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentError(f"{op}: {what} must be an integer, got {value!r}") from None


def as_bool(value: Any, op: str, what: str) -> bool:
    """True or False, also as NumPy or as 0 and 1 have it."""
    if type(value).__name__ != "bool" and not (isinstance(value, int) and value in (0, 1)):
        kind = type(value).__name__
        raise ArgumentError(f"{op}: {what} must be True or False, got {kind} {value!r}"[:200])
    return bool(value)


def axis_index(axis: Any, ndim: int, op: str) -> int:
    """One axis as a number from 0 to ndim - 1."""
    index = as_int(axis, op, "axis")
    if not -ndim <= index < ndim:
        if ndim == 0:
            error = AxisError(f"{op}: axis {index} given, but a 0-d tensor has no axes")
            error.of_scalar = index in (0, -1)
            raise error
        raise AxisError(
            f"{op}: axis {index} is out of range for {ndim} dimensions ({-ndim} to {ndim - 1})"
        )
    return index % ndim


def axis_tuple(axis: Any, ndim: int, op: str) -> Shape:
    """Several axes, each from 0 to ndim - 1, in the order given; None means all."""
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, Iterable):
        return (axis_index(axis, ndim, op),)
    axes = tuple(axis_index(a, ndim, op) for a in axis)
    if len(set(axes)) != len(axes):
        raise AxisError(f"{op}: axis {tuple(axis)} names a dimension twice")
    return axes


def reduction_axes(axis: Any, ndim: int, op: str) -> Shape:
    """`axis_tuple` for a reduction: along axis 0 or -1 of a 0-d tensor there is one element, as
    NumPy and PyTorch have it."""
    if ndim == 0 and axis is not None:
        named = tuple(axis) if isinstance(axis, Iterable) else (axis,)
        if len(named) == 1 and as_int(named[0], op, "axis") in (0, -1):
            return ()
    return axis_tuple(axis, ndim, op)


def reduced(shape: Shape, axes: Shape, keepdims: bool) -> Shape:
    """The shape after reducing over `axes`."""
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def as_shape(shape: Any, op: str) -> Shape:
    """A shape argument: one integer or a sequence of them, none negative but a single -1."""
    sizes: Sequence[Any] = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    return tuple(as_int(n, op, "every size") for n in sizes)


def all_sizes(shape: Any) -> bool:
    """Whether every entry is a plain size."""
    return all(isinstance(n, int) and type(n) is not bool and n >= 0 for n in shape)


def size_of(shape: Shape) -> int:
    """The number of elements.

    >>> size_of((2, 3)), size_of(())
    (6, 1)
    """
    total = 1
    for n in shape:
        total *= n
    return total


def resolve_reshape(old: Shape, new: Shape, op: str = "reshape") -> Shape:
    """`new` with its -1 filled in; a ShapeError where the element counts differ."""
    if any(n < -1 for n in new) or new.count(-1) > 1:
        raise ShapeError(f"{op}: {new} is not a shape: sizes are >= 0, and one may be -1")
    have = size_of(old)
    if -1 in new:
        known = size_of(tuple(n for n in new if n != -1))
        if known == 0 or have % known:
            raise ShapeError(f"{op}: {old} has {have} elements, which {new} cannot hold evenly")
        return tuple(have // known if n == -1 else n for n in new)
    if size_of(new) != have:
        raise ShapeError(f"{op}: {old} has {have} elements, {new} has {size_of(new)}")
    return new


def reduced_axes(big: Shape, small: Shape) -> tuple[Shape, Shape]:
    """Axes along which `small` was broadcast to `big`: the added ones, and the stretched ones.

    >>> reduced_axes((5, 3, 4), (3, 1))
    ((0,), (2,))
    """
    added = len(big) - len(small)
    stretched = tuple(i for i, n in enumerate(small, added) if n == 1 and big[i] != 1)
    return tuple(range(added)), stretched

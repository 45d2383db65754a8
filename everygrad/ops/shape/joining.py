"""Putting tensors together and taking them apart: concat, stack, split, pad, roll, triangles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import RECORD, recording
from everygrad.core import shapes
from everygrad.core.context import intercepted
from everygrad.core.tensor import Tensor, view, wrap
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import arange, ones, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import Op, composite, refuse, register, same, sample
from everygrad.ops.record.splits import other_axes
from everygrad.ops.shape.movement import SLICE, put_slices, slice_axis

_SMALL = 1 << 14  # elements of one tensor up to which NumPy has joined many at once


def _concat_portable(*xs: Tensor, axis: int, sizes: tuple[int, ...]) -> Tensor:
    shape = (*xs[0].shape[:axis], sum(sizes), *xs[0].shape[axis + 1 :])
    total: Tensor | None = None
    for i, x in enumerate(xs):
        slices = tuple(
            (sum(sizes[:i]), sizes[i], 1) if a == axis else (0, n, 1) for a, n in enumerate(shape)
        )
        part = put_slices(x, shape, slices)
        total = part if total is None else where(_between(slices[axis], axis, part), part, total)
    assert total is not None
    return total


def _between(piece: tuple[int, int, int], axis: int, whole: Tensor) -> Tensor:
    """Which places along an axis of `whole` lie in the piece."""
    place = arange(whole.shape[axis], device=whole.device).reshape(
        (-1,) + (1,) * (whole.ndim - axis - 1)
    )
    return (place >= piece[0]) & (place < piece[0] + piece[1])


def _concat_jvp(out: Tensor, xs: Any, tangents: Any, axis: int, sizes: tuple[int, ...]) -> Tensor:
    parts = [
        zeros(x.shape, x.dtype, x.device) if t is None else t
        for x, t in zip(xs, tangents, strict=True)
    ]
    return apply(CONCAT, *parts, axis=axis, sizes=sizes)


class _Concat(Kernel):
    """Its derivative takes all parts at once: where each begins is counted once."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        axis, sizes = node.params["axis"], node.params["sizes"]
        if len(sizes) == 1:
            return [same(g)]
        whole = [(0, n, 1) for n in g.shape]
        before, after = whole[:axis], whole[axis + 1 :]
        results: list[Tensor | None] = []
        start = 0
        for parent, n in zip(node.parents, sizes, strict=True):
            cut = (*before, (start, n, 1), *after)
            results.append(None if parent is None else apply(SLICE, g, slices=cut))
            start += n
        return results


CONCAT: Kernel = _Concat(
    "concat",
    _concat_portable,
    ("xs",),
    (lambda g, which, axis, sizes: slice_axis(g, axis, sum(sizes[:which]), sizes[which]),),
    jvp=_concat_jvp,
    batch=lambda xs, axis, sizes: apply(CONCAT, *xs, axis=axis + 1, sizes=sizes),
    result=lambda *xs, axis, sizes: (
        (*xs[0].shape[:axis], sum(sizes), *xs[0].shape[axis + 1 :]),
        xs[0].dtype,
    ),
    rearranges=True,
    splits=other_axes,
    linear_in_all=True,
)


def concat(arrays: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """Tensors joined along an axis they may differ in; axis=None joins them flattened.

    `tensor([])` beside tensors of another number of axes adds nothing, as in PyTorch.
    """
    xs = list(arrays)
    if not xs:
        raise ArgumentError("concat: needs at least one tensor")
    if axis is None:
        xs, axis = [x.reshape(-1) for x in xs], 0
    found = [x.shape for x in xs]
    if (0,) in found and any(len(shape) != 1 for shape in found):
        dtype = xs[0].dtype
        for x in xs:
            dtype = dtypes.promote(dtype, x.dtype, "concat")
        return concat([x.astype(dtype) for x in xs if x.shape != (0,)], axis)
    at = shapes.axis_index(axis, len(found[0]), "concat")
    before, after = found[0][:at], found[0][at + 1 :]
    if any(shape[:at] != before or shape[at + 1 :] != after for shape in found):
        shown = ", ".join(map(str, found))
        raise ShapeError(f"concat: {shown} differ outside axis {at}")
    common = xs[0].dtype
    if any(x.dtype is not common for x in xs):
        for x in xs:
            common = dtypes.promote(common, x.dtype, "concat")
        xs = [x.astype(common) for x in xs]
    return apply(CONCAT, *xs, axis=at, sizes=tuple([shape[at] for shape in found]))


register(
    CONCAT,
    concat,
    reference=np.concatenate,
    takes_list=True,
    samples=lambda: iter(
        (
            sample([s.real(2, 3), s.real(1, 3, seed=1)]),
            sample([s.real(2, 3), s.real(2, 1)], axis=-1),
            sample([s.real(2), s.real(0), s.real(3)]),
            sample([s.real(2, 2), s.real(3)], axis=None),
            sample([s.real(2, 3)], axis=1),
        )
    ),
    refuses=(
        refuse(
            ShapeError,
            r"concat: \(2, 3\), \(2, 4\) differ outside axis 0",
            [s.real(2, 3), s.real(2, 4)],
        ),
        refuse(ArgumentError, "concat: needs at least one tensor", []),
        refuse(AxisError, "concat: axis 2", [s.real(2, 3)], axis=2),
        refuse(AxisError, "0-d tensor has no axes", [s.real()]),
    ),
)


@composite(
    methods=(),
    reference=np.stack,
    takes_list=True,
    samples=lambda: iter(
        (
            sample([s.real(2, 3), s.real(2, 3, seed=1)]),
            sample([s.real(2), s.real(2, seed=1)], axis=-1),
            sample([s.real(), s.real(seed=1)]),
        )
    ),
    refuses=(
        refuse(ShapeError, r"stack: \(2,\), \(3,\) must be the same shape", [s.real(2), s.real(3)]),
        refuse(ArgumentError, "stack: needs at least one tensor", []),
    ),
)
def stack(arrays: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    xs = list(arrays)
    if not xs:
        raise ArgumentError("stack: needs at least one tensor")
    if any(x.shape != xs[0].shape for x in xs):
        shown = ", ".join(str(x.shape) for x in xs)
        raise ShapeError(f"stack: {shown} must be the same shape")
    at = shapes.axis_index(axis, xs[0].ndim + 1, "stack")
    if xs[0].size <= _SMALL and all(at_hand(x) and x.dtype is xs[0].dtype for x in xs):
        return wrap(np.stack([x._data for x in xs], at))
    return concat([x.expand_dims(at) for x in xs], axis=at)


@composite(
    reference="tests.support.references.basic:split",
    samples=lambda: iter(
        (
            sample(s.real(6), 2),
            sample(s.real(5, 2), 2),
            sample(s.real(2, 6), [1, 2, 3], axis=1),
            sample(s.real(4), [0, 4]),
        )
    ),
    refuses=(
        refuse(ShapeError, r"split: sizes \(1, 2\) add up to 3, axis 0 has 6", s.real(6), [1, 2]),
        refuse(ArgumentError, "split: the size of a part must be positive, got 0", s.real(6), 0),
        refuse(ShapeError, "split: sizes must not be negative", s.real(2), [-1, 3]),
    ),
)
def split(x: Tensor, sizes: int | Sequence[int], axis: int = 0, **names: Any) -> list[Tensor]:
    """Parts of the given sizes along an axis; one number means parts of that size."""
    if names:
        return with_names(split, names, x, sizes, axis)
    at = shapes.axis_index(axis, x.ndim, "split")
    total = x.shape[at]
    if isinstance(sizes, int):
        if sizes <= 0:
            raise ArgumentError(f"split: the size of a part must be positive, got {sizes}")
        parts = tuple(min(sizes, total - i) for i in range(0, total, sizes))
    else:
        parts = shapes.as_shape(sizes, "split")
    if min(parts, default=0) < 0:
        raise ShapeError(f"split: sizes must not be negative, got {parts}")
    if sum(parts) != total:
        raise ShapeError(f"split: sizes {parts} add up to {sum(parts)}, axis {at} has {total}")
    starts = [0, *itertools.accumulate(parts)]
    if x._node is not None and recording() == RECORD:
        made = recorded_parts(x, _cut(x.detach(), at, starts, parts), at, concat)
    else:
        made = _cut(x, at, starts, parts)
    return [view(part, x) for part in made]


def at_hand(x: Tensor) -> bool:
    """Whether x is a NumPy array that is in nobody's sight: a view of it is all there is to do."""
    return type(x._data) is np.ndarray and x._node is None and not intercepted()


def _cut(x: Tensor, axis: int, starts: Sequence[int], sizes: Sequence[int]) -> list[Tensor]:
    pieces = zip(starts, sizes, strict=False)
    if at_hand(x):
        array, before = x._data, (slice(None),) * axis
        return [wrap(array[(*before, slice(start, start + n))]) for start, n in pieces]
    return [slice_axis(x, axis, start, n) for start, n in pieces]


class _Gathered:
    """The gradients of some parts of a whole, by their numbers. What the engine asks of a gradient
    in flight is a shape and a sum; each part comes once, so that a sum takes them in."""

    __slots__ = ("found", "shape")

    def __init__(self, which: int, g: Tensor, shape: shapes.Shape) -> None:
        self.found = {which: g}
        self.shape = shape

    @property
    def _data(self) -> _Gathered:
        return self

    def __add__(self, other: _Gathered) -> _Gathered:
        self.found.update(other.found)
        return self


class _Whole(Op):
    """All parts of a split: their gradients are put together once."""

    def vjp(self, node: Any, g: Any, create_graph: bool) -> Sequence[Any]:
        shapes_of = node.params["parts"]
        like = next(iter(g.found.values()))
        parts = [
            zeros(shape, like.dtype, like.device) if (part := g.found.get(i)) is None else part
            for i, shape in enumerate(shapes_of)
        ]
        return [node.params["join"](parts, node.params["axis"])]


class _Part(Op):
    """One part of a split."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        return [_Gathered(node.params["which"], g, node.parents[0].shape)]


_WHOLE, _PART = _Whole("split"), _Part("split.part")


def _node(op: Op, parent: Node | None, params: dict[str, Any], shape: shapes.Shape) -> Node:
    node = Node()
    node.op = op
    node.parents = (parent,)
    node.saved = ()
    node.params = params
    node.shape = shape
    node.hooks = None
    return node


def recorded_parts(
    x: Tensor, parts: list[Tensor], axis: int, join: Callable[..., Tensor]
) -> list[Tensor]:
    """The parts of x, which `join` would make x of, on one node: slices of their own would each
    fill x with zeros on the way back."""
    whole = _node(
        _WHOLE, x._node, {"axis": axis, "join": join, "parts": [p.shape for p in parts]}, x.shape
    )
    for i, part in enumerate(parts):
        part._node = _node(_PART, whole, {"which": i}, part.shape)
    return parts


@composite(
    reference="tests.support.references.basic:pad",
    samples=lambda: iter(
        (
            sample(s.real(3), ((1, 2),)),
            sample(s.real(2, 3), ((0, 1), (2, 0)), value=1.5),
            sample(s.real(2, 3), 1),
            sample(s.real(0), ((1, 1),)),
            sample(s.real(2, 3), ((0, 1), (2, 1)), mode="reflect"),
            sample(s.real(2, 2), ((1, 0), (2, 1)), mode="replicate"),
            sample(s.real(3), ((3, 1),), mode="circular"),
            sample(s.real(2, 3), (1, 2)),
            sample(s.real(3, 4), ((-1, 2), (1, -2))),
            sample(s.real(2, 4), ((0, 0), (2, -1)), mode="reflect"),
        )
    ),
    refuses=(
        refuse(ArgumentError, "pad: 1 pairs of widths for 2 axes", s.real(2, 3), ((1, 1),)),
        refuse(ArgumentError, "pad: .* cut off more than", s.real(3), ((-2, -2),)),
        refuse(ArgumentError, "pad: every size must be an integer", s.real(3), 1.5),
        refuse(ArgumentError, r"pad: widths are pairs \(before, after\)", s.real(3), ((1, 2, 3),)),
        refuse(ArgumentError, "pad: 3 widths for 1 axes; give two for each", s.real(3), (1, 2, 3)),
        refuse(ArgumentError, "pad: mode must be one of .* got 'edge'", s.real(3), 1, mode="edge"),
        refuse(ShapeError, "pad: reflect cannot add 3 and 3", s.real(3), 3, mode="reflect"),
        refuse(DtypeError, r"pad: a value of 1.5 does not fit into int64", np.array([1]), 1, 1.5),
    ),
)
def pad(x: Tensor, widths: Any, mode: Any = "constant", value: Any = 0.0) -> Tensor:
    """x with more around it.

    widths  ((before, after), ...) for each axis in order, as in NumPy; or (before, after, ...) from
            the last axis on, as in PyTorch; or one number for all. Negative ones cut off
    mode    what is added: `value` ("constant"), x mirrored without its edge ("reflect"), its edge
            ("replicate"), or its other end ("circular")
    """
    if not isinstance(mode, str):  # pad(x, widths, value, mode)
        mode, value = (value if isinstance(value, str) else "constant"), mode
    value = 0.0 if value is None else value
    if mode not in _PAD_LIMITS:
        shown = ", ".join(map(repr, _PAD_LIMITS))
        raise ArgumentError(f"pad: mode must be one of {shown}, got {mode!r}")
    if not isinstance(widths, Sequence):
        widths = ((widths, widths),) * x.ndim
    elif widths and all(isinstance(n, int) for n in widths):
        widths = _from_the_last(widths, x.ndim)
    pairs = tuple(shapes.as_shape(pair, "pad") for pair in widths)
    if any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(f"pad: widths are pairs (before, after), got {widths!r}")
    if len(pairs) != x.ndim:
        raise ArgumentError(f"pad: {len(pairs)} pairs of widths for {x.ndim} axes")
    if any(a < 0 or b < 0 for a, b in pairs):  # cut off, after what is added
        if any(n + a + b < 0 for n, (a, b) in zip(x.shape, pairs, strict=True)):
            raise ArgumentError(f"pad: widths {pairs} cut off more than {x.shape} has")
        more = tuple((max(a, 0), max(b, 0)) for a, b in pairs)
        if mode == "circular":  # what is left comes round
            ends = zip(x.shape, pairs, strict=True)
            return pad(x[tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in ends)], more, mode)
        wide: Tensor = pad(x, more, mode, value)
        ends = zip(wide.shape, pairs, strict=True)
        return wide[tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in ends)]
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, pairs, strict=True))
    if shape == x.shape:
        return same(x)
    if mode != "constant":
        for axis, (a, b) in enumerate(pairs):
            x = _extended(x, axis, a, b, mode) if a or b else x
        return x
    slices = tuple((a, n, 1) for n, (a, _) in zip(x.shape, pairs, strict=True))
    padded = put_slices(x, shape, slices)
    if value == 0:
        return padded
    inside = put_slices(ones(x.shape, dtypes.bool_, x.device), shape, slices)
    out = where(inside, padded, value)
    if out.dtype is not x.dtype:
        raise DtypeError(f"pad: a value of {value!r} does not fit into {x.dtype}; use astype()")
    return out


def _from_the_last(widths: Sequence[int], ndim: int) -> tuple[Any, ...]:
    """PyTorch's widths, (before, after) of the last axis and so on, as pairs in the axes' order."""
    pairs = [tuple(widths[i : i + 2]) for i in range(0, len(widths), 2)]
    if len(widths) % 2 or len(pairs) > ndim:
        raise ArgumentError(
            f"pad: {len(widths)} widths for {ndim} axes; give two for each, the last axis first, "
            f"or pairs (before, after) of all axes"
        )
    return (*((0, 0),) * (ndim - len(pairs)), *reversed(pairs))


# how many elements more than the axis has, or fewer, can be added; None: any number
_PAD_LIMITS = {"constant": None, "reflect": -1, "replicate": None, "circular": 0}


def _extended(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """x with its own elements added along one axis."""
    n, limit = x.shape[axis], _PAD_LIMITS[mode]
    if n == 0 or (limit is not None and max(before, after) > n + limit):
        raise ShapeError(
            f"pad: {mode} cannot add {before} and {after} to the {n} elements of axis {axis}"
        )
    if mode == "reflect":
        front = slice_axis(x, axis, before, before, -1)
        back = slice_axis(x, axis, max(n - 2, 0), after, -1)
    elif mode == "circular":
        front, back = slice_axis(x, axis, n - before, before), slice_axis(x, axis, 0, after)
    else:
        shape = [*x.shape]
        front, back = (
            slice_axis(x, axis, place, 1).broadcast_to((*shape[:axis], many, *shape[axis + 1 :]))
            for place, many in ((0, before), (n - 1, after))
        )
    return concat([part for part in (front, x, back) if part.shape[axis]], axis)


@composite(
    reference=np.roll,
    samples=lambda: iter(
        (
            sample(s.real(5), 2),
            sample(s.real(2, 3), 1),
            sample(s.real(2, 3), -1, axis=1),
            sample(s.real(2, 3), (1, 2), axis=(0, 1)),
            sample(s.real(2, 3), (1, 1, 1), axis=(1, 0, -1)),
            sample(s.real(0), 1),
            sample(s.real(3), 7),
        )
    ),
    refuses=(
        refuse(ArgumentError, "roll: 2 shifts for 1 axes", s.real(2, 3), (1, 2), axis=0),
        refuse(AxisError, "roll: axis 3", s.real(2), 1, axis=3),
    ),
)
def roll(x: Tensor, shift: Any, axis: Any = None) -> Tensor:
    """Elements moved `shift` places along the axes, the last ones coming round to the front.

    An axis that is named twice is rolled twice.
    """
    if axis is None:
        return same(roll(x.reshape(-1), shift, 0).reshape(x.shape))
    named = axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple(shapes.axis_index(a, x.ndim, "roll") for a in named)
    shifts = tuple(shift) if isinstance(shift, Sequence) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise ArgumentError(f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for a, n in zip(axes, shifts, strict=True):
        size = x.shape[a]
        move = shapes.as_int(n, "roll", "shift") % size if size else 0
        if move:
            parts = (slice_axis(x, a, size - move, move), slice_axis(x, a, 0, size - move))
            x = concat(parts, axis=a)
    return same(x)


def _triangle(x: Tensor, k: int, op: str) -> tuple[Tensor, Tensor]:
    """The numbers of the columns less k, and of the rows: their difference need not be made."""
    if x.ndim < 2:
        raise ShapeError(f"{op}: needs 2 dimensions or more, got shape {x.shape}")
    rows = arange(x.shape[-2], device=x.device).reshape(-1, 1)
    return arange(x.shape[-1], device=x.device) - shapes.as_int(k, op, "k"), rows


@composite(
    reference=lambda x, k=0: np.tril(x, k),
    samples=lambda: iter(
        (
            sample(s.real(3, 3)),
            sample(s.real(2, 2, 4), k=1),
            sample(s.real(3, 2), k=-1),
        )
    ),
    refuses=(refuse(ShapeError, "tril: needs 2 dimensions", s.real(3)),),
)
def tril(x: Tensor, k: int = 0, **names: Any) -> Tensor:
    """The part on and below the k-th diagonal, zero above."""
    if names:
        return with_names(tril, names, x, k)
    columns, rows = _triangle(x, k, "tril")
    return where(columns <= rows, x, zeros((), x.dtype, x.device))


@composite(
    reference=lambda x, k=0: np.triu(x, k),
    samples=lambda: iter(
        (
            sample(s.real(3, 3)),
            sample(s.real(2, 2, 4), k=1),
            sample(s.real(3, 2), k=-1),
        )
    ),
    refuses=(refuse(ShapeError, "triu: needs 2 dimensions", s.real(3)),),
)
def triu(x: Tensor, k: int = 0, **names: Any) -> Tensor:
    """The part on and above the k-th diagonal, zero below."""
    if names:
        return with_names(triu, names, x, k)
    columns, rows = _triangle(x, k, "triu")
    return where(columns >= rows, x, zeros((), x.dtype, x.device))

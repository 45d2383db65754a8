"""x[...] and x[...] = v: NumPy's indexing, in terms of slices and takes.

Basic indices (integers, slices, None, ...) become one layout move. Integer and bool tensors become
one `take` along the merged axes they index, wherever they stand.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import no_grad, recording
from everygrad.backends import base
from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import (
    Tensor,
    Wrapped,
    data_owner,
    refuse_lost_write,
    shared,
    view,
    wrap,
)
from everygrad.dispatch import apply, as_tensor, operands
from everygrad.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    OutOfRangeError,
    ShapeError,
    TraceError,
)
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import CHECK_RANGE, index_put, positive, taken
from everygrad.ops.python.creation import holds_tensors, tensor
from everygrad.ops.record import samples as s
from everygrad.ops.record.spec import REGISTRY, composite, give_methods, refuse, same, sample
from everygrad.ops.shape.movement import RESHAPE, SLICE, put_slices, take_slices


class Plan(NamedTuple):
    """An index worked out: slices of the input, then which axes are left, then takes."""

    slices: tuple[tuple[int, int, int], ...]
    shape: Shape  # after slicing, with integer axes dropped and new axes added
    takes: tuple[tuple[int, Tensor], ...]  # (axis of `shape`, integer indices)


def _expand(index: Any, ndim: int) -> list[Any]:
    """The index with its ellipsis written out, one entry for each axis and None."""
    entries = [_as_index(e) for e in (index if isinstance(index, tuple) else (index,))]
    used = sum(_axes_of(e) for e in entries)
    dots = [i for i, e in enumerate(entries) if e is Ellipsis]
    if len(dots) > 1:
        raise OutOfRangeError("getitem: an index can have one ellipsis only")
    if used > ndim:
        raise OutOfRangeError(f"getitem: {used} indices for a tensor of {ndim} dimensions")
    fill = [slice(None)] * (ndim - used)
    at = dots[0] if dots else len(entries)
    return entries[:at] + fill + entries[at + len(dots) :]


def _as_index(entry: Any) -> Any:
    """A list, or a tuple inside an index, as the array or tensor it stands for."""
    if not isinstance(entry, list | tuple):
        return entry
    if holds_tensors(entry):
        return tensor(entry)
    try:
        return np.asarray(entry)
    except ValueError as error:
        raise ShapeError(f"getitem: a list in an index is ragged: {error}") from None


def _axes_of(entry: Any) -> int:
    if entry is None or entry is Ellipsis:
        return 0
    if isinstance(entry, Tensor | np.ndarray) and str(entry.dtype) == "bool":
        return entry.ndim
    return 1


def _mask_to_indices(mask: Tensor, shape: Shape) -> list[Tensor]:
    """Where the mask is true, one tensor for each of its axes; an empty axis fits any other."""
    if not all(m in (n, 0) for m, n in zip(mask.shape, shape, strict=True)):
        raise OutOfRangeError(
            f"getitem: a bool index {mask.shape} does not match axes of size {shape}"
        )
    if isinstance(shared(mask), Wrapped):
        raise TraceError(
            "getitem: a bool index inside a transformation has a result of unknown size; "
            "use where() instead"
        )
    mask = mask if mask.ndim else mask.reshape(1)
    if mask.device == "cpu":
        return [wrap(i) for i in np.nonzero(mask._data)]
    return list(REGISTRY["nonzero"].function(mask))  # one number is read from the device


def _positive(index: Tensor, size: int) -> Tensor:
    """Negative indices counted from the end."""
    return positive(index, size).astype(dtypes.int64)


def plan(x: Tensor, index: Any) -> Plan:
    """Work an index out against x, refusing what does not fit."""
    slices: list[tuple[int, int, int]] = []
    shape: list[int] = []
    takes: list[tuple[int, Tensor]] = []
    for entry in _expand(index, x.ndim):
        if entry is None:
            shape.append(1)
            continue
        if isinstance(entry, np.ndarray):
            array = entry
            if array.dtype.kind in "iu" and array.size:
                _check_values(array, len(shape), x.shape[len(slices)])
            entry = as_tensor(array if array.size else array.astype(np.int64), x)
        if isinstance(entry, Tensor) and entry.dtype is dtypes.bool_ and not entry.ndim:
            # it stands for a new axis, of one element or none
            (found,) = _mask_to_indices(entry, ())
            takes.append((len(shape), found))
            shape.append(1)
            continue
        size = x.shape[len(slices)]
        if isinstance(entry, slice):
            start, stop, step = _range(entry, size)
            count = len(range(start, stop, step))
            # a step that leads nowhere may be of any size, and is of none
            slices.append((start if count else 0, count, step if count > 1 else 1))
            shape.append(count)
            continue
        if isinstance(entry, Tensor) and entry.dtype is dtypes.bool_:
            there = x.shape[len(slices) : len(slices) + entry.ndim]
            for found in _mask_to_indices(entry, there):
                takes.append((len(shape), found))
                shape.append(x.shape[len(slices)])
                slices.append((0, x.shape[len(slices)], 1))
            continue
        if isinstance(entry, Tensor) and entry.dtype.is_integer:
            takes.append((len(shape), _positive(entry, size)))
            slices.append((0, size, 1))
            shape.append(size)
            continue
        slices.append((_single(entry, len(slices), size), 1, 1))
    return Plan(tuple(slices), tuple(shape), tuple(takes))


def _range(entry: slice, size: int) -> tuple[int, int, int]:
    """Where a slice of an axis starts and stops, and its step."""
    try:
        return entry.indices(size)
    except TypeError:
        parts = f"{entry.start!r}:{entry.stop!r}:{entry.step!r}"[:80]
        raise DtypeError(f"getitem: the parts of a slice are integers, got {parts}") from None
    except ValueError:
        raise ArgumentError("getitem: the step of a slice must not be 0") from None


def _single(entry: Any, axis: int, size: int) -> int:
    if isinstance(entry, bool | Tensor) or not hasattr(entry, "__index__"):
        got = f"{type(entry).__name__} {entry!r}"[:80]
        raise DtypeError(
            f"getitem: an index is an integer, a slice, None, ... or an integer or bool tensor, "
            f"got {got}"
        )
    i = entry.__index__()
    if not -size <= i < size:
        raise OutOfRangeError(f"getitem: index {i} is out of range for axis {axis} of size {size}")
    return int(i % size)


class _Merge(NamedTuple):
    """How the indexed axes are brought to the front, and back."""

    order: Shape  # the permutation
    sizes: Shape  # of the indexed axes
    flat: Tensor  # one flat number for each combination
    result: Shape  # shape of the broadcast indices
    place: int  # where the result's axes go


def _merge(p: Plan) -> _Merge:
    axes = tuple(a for a, _ in p.takes)
    result = shapes.broadcast("getitem", *(i.shape for _, i in p.takes))
    sizes = tuple(p.shape[a] for a in axes)
    flat: Tensor | None = None
    for (axis, i), n in zip(p.takes, sizes, strict=True):
        _check_range(i, axis, n)
        flat = i if flat is None else flat * n + i
    assert flat is not None
    order = (*axes, *(a for a in range(len(p.shape)) if a not in axes))
    together = axes == tuple(range(axes[0], axes[0] + len(axes)))
    place = axes[0] if together else 0  # NumPy: separated indices put their axes in front
    return _Merge(order, sizes, flat.broadcast_to(result), result, place)


def _check_values(index: Any, axis: int, size: int) -> None:
    """Refuse at once an index of known values, negative ones counted from the end."""
    low, high = int(index.min()), int(index.max())
    if low < -size or high >= size:
        bad = low if low < -size else high
        raise OutOfRangeError(
            f"getitem: index {bad} is out of range for axis {axis} of size {size}"
        )


def _check_range(index: Tensor, axis: int, size: int) -> None:
    """Refuse an index, counted from the start, that is not on the axis; where a device can look at
    it without being waited for, when a result is read."""
    if isinstance(shared(index), Wrapped) or index.size == 0 or index.device == "null":
        return
    if base.get(index.device).checks_later:
        what = f"getitem: index {{}} is out of range for axis {axis} of size {size}"
        apply(CHECK_RANGE, index, size=size, what=what)
        return
    values = base.get(index.device).to_numpy(index._data)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        bad = low if low < 0 else high
        raise OutOfRangeError(
            f"getitem: index {bad} is out of range for axis {axis} of size {size}"
        )


def _index_samples() -> Any:
    x = s.real(4, 3, 2)
    i = np.array([0, 2, -1])
    for index in (
        0,
        -1,
        slice(1, 3),
        slice(None, None, -2),
        (slice(None), 1),
        (..., 0),
        (None, 0, ..., None),
        i,
        (i, np.array([0, 1, 1])),
        (i, slice(None), np.array([0, 1, 1])),
        (slice(None), i - 1),
        s.booleans(4),
        s.booleans(4, 3),
        (i[:, None], np.array([0, 1])),
        (2, np.array([1, 1])),
        np.zeros((0,), np.int64),
        slice(3, 1),
    ):
        yield sample(x, index)
    yield sample(s.real(), ())


@composite(
    name="getitem",
    methods=("__getitem__",),
    reference=lambda x, index: x[index],
    samples=_index_samples,
    namespace="internal",
    refuses=(
        refuse(OutOfRangeError, "index 4 is out of range for axis 0 of size 4", s.real(4), 4),
        refuse(OutOfRangeError, "index -5 is out of range for axis 0 of size 4", s.real(4), -5),
        refuse(OutOfRangeError, "2 indices for a tensor of 1 dimensions", s.real(4), (0, 0)),
        refuse(
            OutOfRangeError,
            "index 7 is out of range for axis 0 of size 4",
            s.real(4),
            np.array([0, 7]),
        ),
        refuse(
            OutOfRangeError,
            "index -9 is out of range for axis 0 of size 4",
            s.real(4),
            np.array([-9]),
        ),
        refuse(DtypeError, "got float 1.5", s.real(4), 1.5),
        refuse(DtypeError, "parts of a slice are integers", s.real(4), slice(0, 2.5)),
        refuse(ArgumentError, "step of a slice must not be 0", s.real(4), slice(None, None, 0)),
        refuse(DtypeError, "got Tensor", s.real(4), s.real(2)),
        refuse(OutOfRangeError, r"a bool index \(3,\) does not match", s.real(4), s.booleans(3)),
        refuse(
            ShapeError,
            "getitem: cannot broadcast",
            s.real(4, 4),
            (np.array([0, 1]), np.array([0, 1, 2])),
        ),
    ),
)
def getitem(x: Tensor, index: Any) -> Tensor:
    """The part of x that `index` selects; shares memory where the index is basic.

    As NumPy's, but an integer beside index tensors is a plain integer, as in PyTorch.
    """
    shape = x.shape
    whole = tuple([(0, n, 1) for n in shape])
    if type(index) is int and shape:  # the commonest, in loops: a row
        row = ((_single(index, 0, shape[0]), 1, 1), *whole[1:])
        p = Plan(row, shape[1:], ())
    else:
        p = plan(x, index)
    if not p.takes:
        out = x if p.slices == whole else apply(SLICE, x, slices=p.slices)
        out = out if out.shape == p.shape else apply(RESHAPE, out, shape=p.shape)
        return view(same(x) if out is x else out, x)
    out = take_slices(x, p.slices).reshape(p.shape)
    if len(p.takes) == 1:  # its axes come where it stands
        ((axis, places),) = p.takes
        _check_range(places, axis, p.shape[axis])
        return taken(out, places, axis)
    m = _merge(p)
    out = out.permute_dims(m.order)
    rest = out.shape[len(m.sizes) :]
    out = taken(out.reshape((shapes.size_of(m.sizes), *rest)), m.flat, axis=0)
    return out.moveaxis(tuple(range(len(m.result))), tuple(range(m.place, m.place + len(m.result))))


def updated(x: Tensor, index: Any, value: Any) -> Tensor:
    """x with the selected part replaced by `value`, as a new tensor."""
    p = plan(x, index)
    value = value if isinstance(value, Tensor) else operands("setitem", x, value)[1]
    if value.dtype is not x.dtype:
        same_kind = value.dtype.kind == x.dtype.kind
        if not same_kind and dtypes.promote(x.dtype, value.dtype) is not x.dtype:
            raise DtypeError(f"setitem: {value.dtype} does not fit into {x.dtype}; use astype()")
        value = value.astype(x.dtype)
    if p.takes:
        return _put_takes(x, p, value)
    value = _fit(value, p.shape)
    part = tuple(count for _, count, _ in p.slices)
    inside = put_slices(_ones(part, x), x.shape, p.slices)
    return where(inside, put_slices(value.reshape(part), x.shape, p.slices), x)


def _ones(shape: Shape, like: Tensor) -> Tensor:
    return wrap(base.get(like.device).full(shape, True, dtypes.bool_))


def _fit(value: Tensor, shape: Shape) -> Tensor:
    if value.ndim > len(shape) and value.shape[: value.ndim - len(shape)].count(
        1
    ) == value.ndim - len(shape):
        value = value.reshape(value.shape[value.ndim - len(shape) :])
    try:
        return value.broadcast_to(shape)
    except ShapeError:
        raise ShapeError(
            f"setitem: a value of shape {value.shape} does not fit the selected part {shape}"
        ) from None


def _put_takes(x: Tensor, p: Plan, value: Tensor) -> Tensor:
    m = _merge(p)
    selected = take_slices(x, p.slices).reshape(p.shape)
    front = selected.permute_dims(m.order)
    rest = front.shape[len(m.sizes) :]
    wanted = (*rest[: m.place], *m.result, *rest[m.place :])
    moved = _fit(value, wanted).moveaxis(
        tuple(range(m.place, m.place + len(m.result))), tuple(range(len(m.result)))
    )
    flat = front.reshape((shapes.size_of(m.sizes), *rest))
    new = index_put(flat, m.flat.reshape(-1), moved.reshape((m.flat.size, *rest)))
    back = tuple(int(i) for i in np.argsort(m.order))
    new = new.reshape(front.shape).permute_dims(back)
    basic = tuple(
        slice(a, None if st < 0 and a + n * st < 0 else a + n * st, st) for a, n, st in p.slices
    )
    if all(piece == (0, n, 1) for piece, n in zip(p.slices, x.shape, strict=True)):
        return new.reshape(x.shape)
    return updated(x, basic, new.reshape(tuple(n for _, n, _ in p.slices)))


_CURE = (
    "write to that one with one index (x[0, 1] = 5 for x[0][1] = 5 or x.reshape(-1)[1] = 5), "
    "or write to a copy, made by clone()"
)


def setitem(self: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`: the name x gets a new value; recorded, so gradients flow to both.

    Of a view it is refused while somebody holds what it is a view of: that would not change.
    """
    owner = data_owner(self)
    if owner is not None:
        with no_grad():
            setitem(owner, index, value)
        self.rebind(shared(owner), None)
        return
    refuse_lost_write(self, "setitem", _CURE)
    if recording() and self._node is not None and self._node.is_leaf:
        raise GradientError(
            "setitem: this tensor is a leaf that requires grad; write under no_grad(), "
            "or start from x = x.clone()"
        )
    new = updated(self, index, value)
    node = self._node if not recording() else new._node
    self.rebind(new._data, node)


give_methods(__setitem__=setitem)

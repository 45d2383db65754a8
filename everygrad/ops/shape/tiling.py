"""Elements said more than once: repeat, tile, windows, and tensors broadcast together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, view
from everygrad.errors import ArgumentError, AxisError, ShapeError
from everygrad.ops.index.gather import check_index, taken
from everygrad.ops.index.search import searchsorted
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.record import samples as s
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import REGISTRY, composite, refuse, same, sample
from everygrad.ops.reduce.scans import cumulative_sum


def _each(x: Tensor, axis: int, times: int) -> Tensor:
    """Every element along an axis `times` times in a row."""
    if times < 0:
        raise ArgumentError(f"repeat: repeats must not be negative, got {times}")
    shape = (*x.shape[: axis + 1], times, *x.shape[axis + 1 :])
    whole = (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :])
    return same(x.expand_dims(axis + 1).broadcast_to(shape).reshape(whole))


def _places(repeats: Any, size: int, device: str) -> Tensor:
    """For each element of the result along the axis, whose copy it is."""
    counts = repeats.shape if isinstance(repeats, Tensor) else np.shape(repeats)
    if counts not in ((size,), (1,)):
        raise ShapeError(f"repeat: repeats of shape {counts} for an axis of size {size}: one each")
    if not isinstance(repeats, Tensor):
        numbers = shapes.as_shape(repeats, "repeat")
        if min(numbers, default=0) < 0:
            raise ArgumentError(f"repeat: repeats must not be negative, got {numbers}")
        numbers = numbers if len(numbers) == size else numbers * size
        return tensor(np.repeat(np.arange(size), numbers), device=device)
    check_index("repeat", repeats)
    ends = cumulative_sum(repeats.astype(dtypes.int64).broadcast_to((size,)))
    total = int(ends[-1]) if size else 0
    return searchsorted(ends, arange(total, device=device), side="right")


def _repeat(x: Tensor, repeats: Any, axis: int | None) -> Tensor:
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = shapes.axis_index(axis, x.ndim, "repeat")
    if not isinstance(repeats, Tensor | np.ndarray | Sequence):
        return _each(x, at, shapes.as_int(repeats, "repeat", "repeats"))
    if isinstance(repeats, Tensor | np.ndarray) and repeats.ndim == 0:
        return _each(x, at, int(repeats))
    return taken(x, _places(repeats, x.shape[at], x.device), at)


def _repeat_samples() -> Any:
    yield sample(s.real(2, 3), 2)
    yield sample(s.real(2, 2), [1, 3], axis=0)


_REPEATING: dict[str, Any] = {
    "torch": "tests.support.beside_torch:repeat",
    "reference": np.repeat,
    "samples": _repeat_samples,
    "refuses": (
        refuse(ArgumentError, "repeat: repeats must not be negative, got -1", s.real(3), -1),
        refuse(ShapeError, "repeat: repeats of shape .* one each", s.real(3), [1, 2]),
        refuse(AxisError, "repeat: axis 2 is out of range", s.real(2, 3), 2, axis=2),
    ),
}


@composite(**_REPEATING)
def repeat(
    x: Tensor, repeats: int | Sequence[int] | Tensor, *more: int, axis: int | None = None
) -> Tensor:
    """Each element `repeats` times in a row along an axis, or flattened.

    repeats  a number, or one for each element along the axis. The size of the result depends on the
             values of a tensor, which are read: eager only.
    """
    if more:  # PyTorch's x.repeat(2, 1)
        return tile(x, (repeats, *more))
    return _repeat(x, repeats, axis)


@composite(**_REPEATING)
def repeat_interleave(
    x: Tensor,
    repeats: int | Sequence[int] | Tensor,
    axis: int | None = None,
    *,
    output_size: int | None = None,
) -> Tensor:
    """`repeat` under PyTorch's name. `output_size` is what the axis will have, if it is known."""
    out = _repeat(x, repeats, axis)
    found = out.shape[axis or 0] if out.ndim else 1
    if output_size is not None and found != output_size:
        raise ArgumentError(f"repeat_interleave: output_size is {output_size}, of {found} elements")
    return out


@composite(
    torch="torch:tile",
    reference=np.tile,
    samples=lambda: iter(
        (
            sample(s.real(2), (2, 1, 2)),
            sample(s.real(2, 2), (0, 1)),
            sample(s.real(2, 2), (2, 3)),
        )
    ),
    refuses=(refuse(ArgumentError, "tile: repetitions must not be negative", s.real(3), (-1,)),),
)
def tile(x: Tensor, repetitions: Sequence[int] | int, *more: int) -> Tensor:
    """x laid side by side, so many times along each axis: a tuple or several numbers."""
    times = shapes.as_shape((repetitions, *more) if more else repetitions, "tile")
    if min(times, default=0) < 0:
        raise ArgumentError(f"tile: repetitions must not be negative, got {times}")
    rank = max(x.ndim, len(times))
    old = (1,) * (rank - x.ndim) + x.shape
    times = (1,) * (rank - len(times)) + times
    apart = tuple(v for n in old for v in (1, n))
    spread = tuple(v for pair in zip(times, old, strict=True) for v in pair)
    whole = tuple(t * n for t, n in zip(times, old, strict=True))
    return same(x.reshape(apart).broadcast_to(spread).reshape(whole))


def _windows_reference(x: Any, axis: int, size: int, step: int = 1) -> Any:
    seen = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    return np.take(seen, range(0, seen.shape[axis], step), axis)


@composite(
    torch=lambda torch, x, axis, size, step=1: x.unfold(axis, size, step),
    reference=_windows_reference,
    samples=lambda: iter((sample(s.real(5), 0, 2), sample(s.real(4, 2), 0, 3, step=2))),
    refuses=(
        refuse(ArgumentError, "unfold: size must be from 0 to 3.*got 4", s.real(3), 0, 4),
        refuse(ArgumentError, "unfold: step must be positive", s.real(3), 0, 2, 0),
        refuse(AxisError, "unfold: axis 1", s.real(3), 1, 2),
    ),
)
def unfold(
    x: Tensor,
    axis: Any = None,
    size: int | None = None,
    step: int | None = None,
    stride: Any = None,
    *,
    kernel_size: Any = None,
    dilation: Any = None,
    padding: Any = None,
    **names: Any,
) -> Tensor:
    """All windows of `size` elements along an axis, `step` (1) apart, as a last axis.

    Gradients of elements that several windows see add up. With `kernel_size`, patches of images as
    columns: PyTorch's `F.unfold`, whose arguments are understood by position too where they can
    mean nothing else, as after a pair of sizes.
    """
    if names:
        options = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding}
        return with_names(unfold, names, x, axis, size, step, stride, **options)
    if kernel_size is None and (
        isinstance(axis, list | tuple) or (axis is not None and size is None)
    ):
        given = [("dilation", size, dilation), ("padding", step, padding)]
        for name, place, named in given:
            if place is not None and named is not None:
                raise ArgumentError(f"unfold: {name} is given twice, as {place!r} and {named!r}")
        kernel_size, axis = axis, None
        dilation, padding = (p if p is not None else n for _, p, n in given)
        size = step = None
    if kernel_size is not None:
        if axis is not None or size is not None or step is not None:
            raise ArgumentError("unfold: give an axis and a size, or a kernel_size, not both")
        options = {"dilation": dilation, "padding": padding, "stride": stride}
        options = {k: v for k, v in options.items() if v is not None}
        columns: Tensor = REGISTRY["im2col"].function(x, kernel_size, **options)
        return columns
    if (dilation, padding, stride) != (None, None, None):
        raise ArgumentError(
            f"unfold: dilation, padding and stride are of patches of images, axis={axis!r} and "
            f"size={size!r} of windows; give kernel_size={axis!r} by name, or windows a step"
        )
    step = 1 if step is None else step
    if not x.ndim and axis in (0, -1):  # one window, as in PyTorch
        windows: Tensor = unfold(x.reshape((1,)), 0, size, step)
        return windows[0]
    at = shapes.axis_index(axis, x.ndim, "unfold")
    width = shapes.as_int(size, "unfold", "size")
    apart = shapes.as_int(step, "unfold", "step")
    if not 0 <= width <= x.shape[at]:
        raise ArgumentError(
            f"unfold: size must be from 0 to {x.shape[at]}, the size of axis {at}; got {width}"
        )
    if apart <= 0:
        raise ArgumentError(f"unfold: step must be positive, got {apart}")
    starts = arange(0, x.shape[at] - width + 1, apart, device=x.device)
    places = starts.reshape(-1, 1) + arange(width, device=x.device)
    return view(taken(x, places, at).moveaxis(at + 1, -1), x)


@composite(
    methods=(),
    torch="torch:broadcast_tensors",
    reference=lambda *arrays: [np.asarray(a) for a in np.broadcast_arrays(*arrays)],
    samples=lambda: iter((sample(s.real(2, 1), s.real(3, seed=1)), sample(s.real(2)))),
    refuses=(
        refuse(ShapeError, "broadcast_arrays: cannot broadcast", s.real(2), s.real(3)),
        refuse(ArgumentError, "broadcast_arrays: needs at least one tensor"),
    ),
)
def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """The tensors, each repeated without copying to the shape they have together."""
    if not arrays:
        raise ArgumentError("broadcast_arrays: needs at least one tensor")
    shape = shapes.broadcast("broadcast_arrays", *(a.shape for a in arrays))
    return [a.broadcast_to(shape) for a in arrays]

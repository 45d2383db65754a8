"""Pooling over lines, images and volumes (batch, channels, places...).

The largest element of a window is found by index, in images by a kernel of each device; lines and
volumes are taken as images. Means are sums of slices. What windows of images give, and where their
gradients go, are ops of their own, which a device may have kernels for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import gather, scatter_add
from everygrad.ops.nn.conv2d import Window, named, padded_image, taps_of
from everygrad.ops.nn.window_geometry import THINGS, Places, lowest, places_of
from everygrad.ops.python.creation import arange, asarray, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, Kernel, check_kind
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import image_axes
from everygrad.ops.shape.joining import pad
from everygrad.ops.shape.movement import put_slices, slice_axis, take_slices


def _pool_index_portable(x: Tensor, window: Window) -> Tensor:
    out = window.out_size(x.shape)
    width = x.shape[3]
    rows = arange(x.shape[2], device=x.device).reshape(-1, 1)
    places = (rows * width + arange(width, device=x.device)).expand(x.shape)
    whole = ((0, x.shape[0], 1), (0, x.shape[1], 1))
    values, index = (
        padded_image(x, window, lowest(x)),
        padded_image(places + 1, window),
    )
    best: Tensor | None = None
    found: Tensor | None = None
    for tap in taps_of(window, out):
        v, i = take_slices(values, (*whole, *tap)), take_slices(index, (*whole, *tap))
        if best is None or found is None:
            best, found = v, i
        else:
            # a NaN wins over numbers, a place in the image over one in the padding
            better = ((v > best) | (~(v == v) & (best == best)) | (found == 0)) & (i > 0)
            best, found = where(better, v, best), where(better, i, found)
    assert found is not None
    return found - 1


def _pool_index_batch(xs: list[Tensor], window: Window) -> Tensor:
    size, n = xs[0].shape[:2]
    out = apply(POOL_INDEX, xs[0].reshape(size * n, *xs[0].shape[2:]), window=window)
    return out.reshape(size, n, *out.shape[1:])


POOL_INDEX: Kernel = Kernel(
    "max_pool2d_index",
    _pool_index_portable,
    ("x",),
    constant=True,
    batch=_pool_index_batch,
    result=lambda x, window: ((*x.shape[:2], *window.out_size(x.shape)), dtypes.int64),
    index_bound=lambda given, params: shapes.size_of(given[0][2:]),
    splits=image_axes,
)
register(
    POOL_INDEX,
    lambda x, window: apply(POOL_INDEX, x, window=window),
    gives="index",
    reference="tests.support.references.basic:max_pool2d_index",
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(1, 2, 4, 4), Window((2, 2), (2, 2), (0, 0), (1, 1))),
            sample(s.real(1, 1, 5, 4), Window((3, 2), (2, 1), (1, 1), (1, 2))),
        )
    ),
)


def _images_batch(op: Callable[[], Kernel], *given: str) -> Callable[..., Tensor]:
    """One more axis of images, folded into theirs; `given` are parameters that are shapes too."""

    def batch(xs: list[Tensor], **params: Any) -> Tensor:
        size, n = xs[0].shape[:2]
        shapes_ = {name: (size * n, *params[name][1:]) for name in given}
        flat = [x.reshape(size * n, *x.shape[2:]) for x in xs]
        out = apply(op(), *flat, **(params | shapes_))
        return out.reshape(size, n, *out.shape[1:])

    return batch


def _out_shape(x: Any, window: Window) -> Shape:
    return (*x.shape[:2], *window.out_size(x.shape))


def _flat(x: Tensor, count: int) -> Tensor:
    """The last `count` axes as one."""
    kept = x.ndim - count
    return x.reshape((*x.shape[:kept], shapes.size_of(x.shape[kept:])))


def picked(x: Tensor, index: Tensor) -> Tensor:
    """The elements of (batch, channels, places...) at flat indices of the same rank."""
    count = x.ndim - 2
    return gather(_flat(x, count), _flat(index, count), axis=2).reshape(index.shape)


def _picked_if_any(x: Tensor, index: Tensor, otherwise: float | int) -> Tensor:
    """The elements at flat indices; where an index is -1, because a window lies in the padding,
    there is none."""
    there = index >= 0
    return where(there, picked(x, where(there, index, 0)), otherwise)


def _image_max(x: Tensor, window: Window) -> Tensor:
    index = apply(POOL_INDEX, x.detach(), window=window)
    if window.misses(x.shape):
        return _picked_if_any(x, index, lowest(x))
    return picked(x, index)


def _max_spread(y: Tensor, x: Tensor, window: Window) -> Tensor:
    index = apply(POOL_INDEX, x.detach(), window=window)
    if window.misses(x.shape):
        index, y = where(index < 0, 0, index), where(index < 0, 0, y)
    flat = zeros((*x.shape[:2], x.shape[2] * x.shape[3]), y.dtype, y.device)
    return scatter_add(flat, _flat(index, 2), _flat(y, 2), axis=2).reshape(x.shape)


def _max_gathered(g: Tensor, x: Tensor, window: Window) -> Tensor:
    """The transpose of spreading."""
    index = apply(POOL_INDEX, x.detach(), window=window)
    return _picked_if_any(g, index, 0) if window.misses(x.shape) else picked(g, index)


MAX: Kernel = Kernel(
    "max_pool2d_value",
    _image_max,
    ("x",),
    (lambda g, x, window: apply(MAX_SPREAD, g, x.detach(), window=window),),
    batch=_images_batch(lambda: MAX),
    result=lambda x, window: (_out_shape(x, window), x.dtype),
    splits=image_axes,
)
# the image's gradient: each of the result's goes to the largest element of its window in x
MAX_SPREAD: Kernel = Kernel(
    "max_pool2d_spread",
    _max_spread,
    ("y", "x"),
    (
        _max_gathered,
        None,
    ),
    linear=(0,),
    batch=_images_batch(lambda: MAX_SPREAD),
    result=lambda y, x, window: (x.shape, y.dtype),
    splits=image_axes,
)


def _image_sum(x: Tensor, window: Window) -> Tensor:
    out = window.out_size(x.shape)
    whole = ((0, x.shape[0], 1), (0, x.shape[1], 1))
    x = padded_image(x, window)
    total: Tensor | None = None
    for tap in taps_of(window, out):
        part = take_slices(x, (*whole, *tap))
        total = part if total is None else total + part
    assert total is not None
    return total


def _sum_spread(y: Tensor, window: Window, image: Shape) -> Tensor:
    n, c, height, width = image
    ph, pw = window.padding
    padded = (n, c, height + 2 * ph, width + 2 * pw)
    whole = ((0, n, 1), (0, c, 1))
    total: Tensor | None = None
    for tap in taps_of(window, y.shape[2:]):  # type: ignore[arg-type]  # two of them
        part = put_slices(y, padded, (*whole, *tap))
        total = part if total is None else total + part
    assert total is not None
    return take_slices(total, (*whole, (ph, height, 1), (pw, width, 1)))


SUM: Kernel = Kernel(
    "sum_pool2d",
    _image_sum,
    ("x",),
    (lambda g, window, shape: apply(SUM_SPREAD, g, window=window, image=shape),),
    linear=(0,),
    batch=_images_batch(lambda: SUM),
    result=lambda x, window: (_out_shape(x, window), x.dtype),
    splits=image_axes,
)
SUM_SPREAD: Kernel = Kernel(
    "sum_pool2d_spread",
    _sum_spread,
    ("y",),
    (lambda g, window: apply(SUM, g, window=window),),
    linear=(0,),
    batch=_images_batch(lambda: SUM_SPREAD, "image"),
    result=lambda y, window, image: (image, y.dtype),
    splits=image_axes,
)
_OVERLAPPING = Window((3, 2), (2, 1), (1, 1), (1, 1))
_APART = Window((2, 2), (2, 3), (0, 0), (1, 1))
_DILATED = Window((2, 2), (1, 2), (1, 0), (2, 1))
_WINDOWS = ((_OVERLAPPING, (1, 2, 5, 4)), (_APART, (2, 1, 4, 5)), (_DILATED, (1, 1, 4, 4)))


def _window_samples(gives: bool, takes: bool, image: bool = False) -> Any:
    """For each window, a gradient of the result or an image or both, and the image's shape."""

    def make() -> Any:
        for window, shape in _WINDOWS:
            given = [s.real(*shape[:2], *window.out_size(shape), seed=1)] if gives else []
            if takes:  # beside a gradient, an image is compared alone: integers have no derivative
                given.append(s.integers(*shape) if gives else s.real(*shape))
            yield sample(*given, window, *([shape] if image else []))

    return make


register(
    MAX,
    lambda x, window: apply(MAX, x, window=window),
    kinds="ordered",
    reference="tests.support.references.neural:max_pool2d_value",
    namespace="internal",
    samples=_window_samples(False, True),
)
register(
    MAX_SPREAD,
    lambda y, x, window: apply(MAX_SPREAD, y, x, window=window),
    reference="tests.support.references.neural:max_pool2d_spread",
    namespace="internal",
    samples=_window_samples(True, True),
)
register(
    SUM,
    lambda x, window: apply(SUM, x, window=window),
    reference="tests.support.references.neural:sum_pool2d",
    namespace="internal",
    samples=_window_samples(False, True),
)
register(
    SUM_SPREAD,
    lambda y, window, image: apply(SUM_SPREAD, y, window=window, image=image),
    reference="tests.support.references.neural:sum_pool2d_spread",
    namespace="internal",
    samples=_window_samples(True, False, True),
)


# --- the largest ---------------------------------------------------------------------------------


def _image_index(x: Tensor, places: Places) -> Tensor:
    """For each window of an image, where its largest element is, counted along the rows."""
    if not any(places.extra):
        return apply(POOL_INDEX, x, window=places.window)
    # each window starts in the image: among equals the first, so never what was added behind
    down, right = places.extra
    wider = pad(x, ((0, 0), (0, 0), (0, down), (0, right)), value=lowest(x))
    index = apply(POOL_INDEX, wider, window=places.window)
    height, width = x.shape[2:]
    row, column = index // (width + right), index % (width + right)
    if right:
        index = row * width + column
    if places.misses(x.shape[2:]):  # no place in the image, or only what was added
        index = where((index < 0) | (row >= height) | (column >= width), -1, index)
    return index


def _axes(places: Places, *which: int) -> Places:
    """The places along some of the axes, 0 and 1 once for each axis that is not there."""
    still = Places((1,), (1,), (0,), (1,), (1,), (0,))
    parts = [still if a < 0 else Places(*(part[a : a + 1] for part in places)) for a in which]
    return Places(*(tuple(v for one in group for v in one) for group in zip(*parts, strict=True)))


def _largest(x: Tensor, places: Places) -> Tensor:
    """The largest element of each window of lines or images."""
    if len(places.size) == 1:
        return _largest(x.expand_dims(2), _axes(places, -1, 0)).squeeze(2)
    if any(places.extra):  # each window starts in the image: what is added is never the first
        x = pad(x, ((0, 0), (0, 0), *((0, more) for more in places.extra)), value=lowest(x))
    return apply(MAX, x, window=places.window)


def max_index(x: Tensor, places: Places) -> Tensor:
    """For each window, the flat index of its first largest element; -1 where it has none."""
    count = len(places.size)
    if count == 2:
        return _image_index(x, places)
    if count == 1:
        return _image_index(x.expand_dims(2), _axes(places, -1, 0)).squeeze(2)
    # the largest of each slice of a volume, then the largest of those along the depth
    n, c, depth, height, width = x.shape
    down, across = places.out[1:]
    inner = _image_index(x.reshape(n, c * depth, height, width), _axes(places, 1, 2))
    misses = places.misses(x.shape[2:])
    at = partial(_picked_if_any, otherwise=lowest(x)) if misses else picked
    tops = at(x.reshape(n, c * depth, height, width), inner)
    outer = _image_index(tops.reshape(n, c, depth, down * across), _axes(places, 0, -1))
    slices = outer // (down * across)
    at = partial(_picked_if_any, otherwise=-1) if misses else picked
    within = at(inner.reshape(n, c, depth, down * across), outer)
    index = slices * (height * width) + within
    return (where(within < 0, -1, index) if misses else index).reshape(n, c, *places.out)


def _methods(name: str) -> tuple[str, ...]:
    return (name,) if name.endswith("2d") else ()


def _refusals(name: str, count: int) -> tuple[Any, ...]:
    x = s.real(1, 1, *(4,) * count)
    return (
        refuse(ShapeError, f"{name}: a kernel of .* does not fit", x, 5),
        refuse(ArgumentError, f"{name}: padding .* is more than half", x, 2, padding=2),
        refuse(ArgumentError, f"{name}: stride must be", x, 2, stride=0),
        refuse(ArgumentError, f"{name}: the kernel size must be", x, 1.5),
        refuse(ShapeError, f"{name}: takes {THINGS[count].split()[0]}", x[0, 0], 2),
    )


SMALL: dict[int, Shape] = {1: (2, 1, 5), 2: (1, 1, 4, 3), 3: (1, 1, 3, 2, 2)}


def _samples(count: int, **more: Any) -> Any:
    def make() -> Any:
        x = s.real(*SMALL[count])
        if count == 2:
            yield sample(x, 2)
        yield sample(x, 2, stride=1, padding=1, **more)
        yield sample(x, 2, ceil_mode=True, padding=(1,) * (count - 1) + (0,))

    return make


def _max_pool_of(count: int) -> Function:
    name = f"max_pool{count}d"

    def max_pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        check_kind(name, x.dtype, "real")
        places = places_of(name, x, count, kernel_size, stride, padding, dilation, ceil_mode)
        if count < 3 and not return_indices and MAX.name in base.get(x.device).kernels:
            return _largest(x, places)  # elsewhere backward is quicker by the index
        index = max_index(x.detach(), places)
        missed = places.misses(x.shape[2:])
        out = _picked_if_any(x, index, lowest(x)) if missed else picked(x, index)
        return (out, index) if return_indices else out

    doc = """The largest element in each window. NaN wins; the gradient goes to the first largest.

    A window that lies wholly in the padding, as one with dilation can, gives minus infinity (of
    integers their smallest), the index -1 and no gradient.

    The windows do not overlap unless `stride` says so. `ceil_mode` also counts windows that reach
    over the end. `return_indices` gives the places too, counted along the rows.
    """
    return composite(
        kinds="ordered",
        methods=_methods(name),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=_samples(count, dilation=2) if count < 3 else _samples(count),
        refuses=_refusals(name, count),
    )(named(max_pool, name, doc))


max_pool1d = _max_pool_of(1)
max_pool2d = _max_pool_of(2)
max_pool3d = _max_pool_of(3)

# --- means ---------------------------------------------------------------------------------------


def tiled(x: Tensor, size: Sequence[int]) -> tuple[Tensor, Shape]:
    """(batch, channels, places...) cut into blocks of `size`, and the axes within the blocks."""
    shape: list[int] = [*x.shape[:2]]
    for n, k in zip(x.shape[2:], size, strict=True):
        shape += [n // k, k]
    return x.reshape(shape), tuple(range(3, len(shape), 2))


def window_sum(x: Tensor, places: Places) -> Tensor:
    """The sum of each window, zeros beyond the edges; dilation is 1."""
    count = len(places.size)
    if count == 2 and not any(places.extra):
        return apply(SUM, x, window=places.window)
    if places.size == places.stride and not any(places.padding + places.extra):
        whole = [o * k for o, k in zip(places.out, places.size, strict=True)]
        blocks, axes = tiled(x[(..., *(slice(n) for n in whole))], places.size)
        return blocks.sum(axis=axes, dtype=x.dtype)
    widths = [(p, p + more) for p, more in zip(places.padding, places.extra, strict=True)]
    x = pad(x, ((0, 0), (0, 0), *widths))
    for a in range(count):  # a window's sum is the sum of its rows' sums
        parts = [
            slice_axis(x, a + 2, i, places.out[a], places.stride[a]) for i in range(places.size[a])
        ]
        x = parts[0]
        for part in parts[1:]:
            x = x + part
    return x


def _counts(x: Tensor, places: Places, include_pad: bool) -> float | Tensor:
    """How many elements each window has; a number where all have the same."""
    found: list[list[int]] = []
    for n, k, st, p, out in zip(x.shape[2:], *places[:3], places.out, strict=True):
        starts = [i * st - p for i in range(out)]
        if include_pad:
            found.append([min(i + k, n + p) - i for i in starts])
        else:
            found.append([min(i + k, n) - max(i, 0) for i in starts])
    if all(len(set(one)) == 1 for one in found):
        return float(np.prod([one[0] for one in found]))
    table = np.ones(())
    for one in found:
        table = np.multiply.outer(table, np.asarray(one))
    return asarray(table, dtype=x.dtype, device=x.device)


def _avg_pool_of(count: int) -> Function:
    name = f"avg_pool{count}d"

    def avg_pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        check_kind(name, x.dtype, "float")
        places = places_of(name, x, count, kernel_size, stride, padding, 1, ceil_mode)
        total = window_sum(x, places)
        if divisor_override is not None:
            if not isinstance(divisor_override, int) or divisor_override == 0:
                raise ArgumentError(
                    f"{name}: divisor_override must be an integer that is not 0, "
                    f"got {divisor_override!r}"
                )
            return total / float(divisor_override)
        return total / _counts(x, places, count_include_pad)

    doc = """The mean of each window; padding counts as zeros unless count_include_pad is False.

    `ceil_mode` also counts windows that reach over the end, where only what is there is averaged;
    `divisor_override` is what sums are divided by instead of their counts.
    """
    return composite(
        kinds="float",
        methods=_methods(name),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=_samples(count, count_include_pad=False),
        refuses=(
            *_refusals(name, count),
            refuse(
                ArgumentError,
                f"{name}: divisor_override must be",
                s.real(*SMALL[count]),
                2,
                divisor_override=0,
            ),
        ),
    )(named(avg_pool, name, doc))


avg_pool1d = _avg_pool_of(1)
avg_pool2d = _avg_pool_of(2)
avg_pool3d = _avg_pool_of(3)


def _lp_pool_of(count: int) -> Function:
    name = f"lp_pool{count}d"

    def lp_pool(
        x: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Tensor:
        check_kind(name, x.dtype, "real float")
        if not norm_type > 0:
            raise ArgumentError(f"{name}: norm_type must be positive, got {norm_type!r}")
        places = places_of(name, x, count, kernel_size, stride, 0, 1, ceil_mode)
        p = float(norm_type)
        total = window_sum(x**p, places)
        if any(places.extra):  # PyTorch's: the mean of what is there, times the size of the kernel
            whole = float(shapes.size_of(places.size))
            total = total * (whole / _counts(x, places, True))
        none = total == 0
        return where(none, 0.0, where(none, 1.0, total) ** (1.0 / p))

    doc = """The p-th root of the sum of p-th powers in each window, p being `norm_type`.

    Its derivative is 0 where that sum is 0. With `ceil_mode` a window over the end is scaled up to
    the whole kernel's size.
    """

    def samples() -> Any:
        x = s.real(*SMALL[count], low=0.3)
        yield sample(x, 2.0, 2)
        yield sample(x, 3.0, 2, stride=1, ceil_mode=True)

    return composite(
        kinds="real float",
        methods=(),
        reference=f"tests.support.references.neural:{name}",
        torch=f"torch.nn.functional:{name}",
        samples=samples,
        refuses=(
            refuse(ArgumentError, f"{name}: norm_type must be", s.real(*SMALL[count]), 0.0, 2),
            refuse(ShapeError, f"{name}: takes", s.real(2), 2.0, 2),
        ),
    )(named(lp_pool, name, doc))


lp_pool1d = _lp_pool_of(1)
lp_pool2d = _lp_pool_of(2)
lp_pool3d = _lp_pool_of(3)

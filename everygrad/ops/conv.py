"""Convolution and pooling over images (batch, channels, height, width).

conv2d is linear in the image and in the kernel, and so are the two ops its derivatives need; the
three are each other's derivatives, which gives every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.autograd.autocast import whole
from everygrad.dispatch import apply, operands
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops import samples as s
from everygrad.ops.creation import arange, zeros
from everygrad.ops.elementwise import where
from everygrad.ops.families import Kernel, check_kind
from everygrad.ops.indexing import gather
from everygrad.ops.joining import pad, stack
from everygrad.ops.movement import put_slices, take_slices
from everygrad.ops.spec import composite, refuse, register, sample
from everygrad.shapes import Shape
from everygrad.tensor import Tensor


class Window(NamedTuple):
    """How a kernel moves over an image."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int = 1

    def out_size(self, image: Shape) -> tuple[int, int]:
        """The number of places the kernel fits, by height and width."""
        h, w = (
            (n + 2 * p - d * (k - 1) - 1) // st + 1
            for n, k, st, p, d in zip(
                image[-2:], self.size, self.stride, self.padding, self.dilation, strict=True
            )
        )
        return h, w


def _pair(op: str, name: str, value: Any, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or any(not isinstance(v, int) or v < least for v in pair):
        raise ArgumentError(
            f"{op}: {name} must be one or two integers of at least {least}, got {value!r}"
        )
    return pair


def _window(
    op: str, size: Any, stride: Any, padding: Any, dilation: Any, groups: int = 1
) -> Window:
    if not isinstance(groups, int) or groups < 1:
        raise ArgumentError(f"{op}: groups must be a positive integer, got {groups!r}")
    return Window(
        _pair(op, "the kernel size", size, 1),
        _pair(op, "stride", stride, 1),
        _pair(op, "padding", padding, 0),
        _pair(op, "dilation", dilation, 1),
        groups,
    )


def _check_fit(op: str, x: Tensor, window: Window) -> None:
    if x.ndim != 4:
        raise ShapeError(f"{op}: takes images (batch, channels, height, width), got {x.shape}")
    if min(window.out_size(x.shape)) < 1:
        raise ShapeError(
            f"{op}: a kernel of {window.size} with dilation {window.dilation} does not fit an "
            f"image of {x.shape[2:]} padded by {window.padding}"
        )


def _taps(window: Window, out: tuple[int, int]) -> list[tuple[tuple[int, int, int], ...]]:
    """For each element of the kernel, the slices of the padded image it meets."""
    (kh, kw), (sh, sw), _, (dh, dw), _ = window
    return [((i * dh, out[0], sh), (j * dw, out[1], sw)) for i in range(kh) for j in range(kw)]


def _padded(x: Tensor, window: Window, value: float = 0.0) -> Tensor:
    (ph, pw) = window.padding
    return pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), value)


def _columns(x: Tensor, window: Window) -> Tensor:
    """(batch, groups, channels * taps, places): what each place of the kernel sees."""
    n, c = x.shape[:2]
    out = window.out_size(x.shape)
    x = _padded(x, window)
    whole = ((0, n, 1), (0, c, 1))
    seen = stack([take_slices(x, (*whole, *tap)) for tap in _taps(window, out)], axis=2)
    taps = window.size[0] * window.size[1]
    return seen.reshape(n, window.groups, c // window.groups * taps, out[0] * out[1])


def _conv_portable(x: Tensor, w: Tensor, window: Window) -> Tensor:
    columns = _columns(x, window)
    rows = w.reshape(window.groups, w.shape[0] // window.groups, -1)
    out = rows @ columns
    return out.reshape(x.shape[0], w.shape[0], *window.out_size(x.shape))


def _conv_input_portable(y: Tensor, w: Tensor, window: Window, image: Shape) -> Tensor:
    n, c, height, width = image
    (ph, pw), groups = window.padding, window.groups
    rows = w.reshape(groups, w.shape[0] // groups, -1).matrix_transpose()
    taps, places = window.size[0] * window.size[1], y.shape[2] * y.shape[3]
    columns = rows @ y.reshape(n, groups, w.shape[0] // groups, places)
    columns = columns.reshape(n, c, taps, *y.shape[2:])
    padded = (n, c, height + 2 * ph, width + 2 * pw)
    total: Tensor | None = None
    for i, tap in enumerate(_taps(window, y.shape[2:])):  # type: ignore[arg-type]
        part = put_slices(columns[:, :, i], padded, ((0, n, 1), (0, c, 1), *tap))
        total = part if total is None else total + part
    assert total is not None
    return take_slices(total, ((0, n, 1), (0, c, 1), (ph, height, 1), (pw, width, 1)))


def _conv_weight_portable(x: Tensor, y: Tensor, window: Window, weight: Shape) -> Tensor:
    n, groups = x.shape[0], window.groups
    rows = y.reshape(n, groups, weight[0] // groups, y.shape[2] * y.shape[3])
    return (rows @ _columns(x, window).matrix_transpose()).sum(axis=0).reshape(weight)


class _Conv(Kernel):
    """Batching: one more axis of images folds into theirs, one more of kernels into the groups."""

    def batched(self, values: Any, flags: Any, size: int, params: dict[str, Any]) -> Tensor:
        window = params["window"]
        if self is CONV and not flags[1]:
            x, w = values
            n = x.shape[1]
            out = apply(CONV, x.reshape(size * n, *x.shape[2:]), w, window=window)
            return out.reshape(size, n, *out.shape[1:])
        wide = window._replace(groups=window.groups * size)
        first, second = (
            v if has else v.expand_dims(0).broadcast_to((size, *v.shape))
            for v, has in zip(values, flags, strict=True)
        )
        if self is CONV:
            return _split_groups(
                apply(CONV, _join_groups(first), _join_kernels(second), window=wide), size
            )
        if self is CONV_INPUT:
            n, c, *image = params["image"]
            out = apply(
                CONV_INPUT,
                _join_groups(first),
                _join_kernels(second),
                window=wide,
                image=(n, c * size, *image),
            )
            return _split_groups(out, size)
        o, *rest = params["weight"]
        out = apply(
            CONV_WEIGHT,
            _join_groups(first),
            _join_groups(second),
            window=wide,
            weight=(o * size, *rest),
        )
        return out.reshape(size, o, *rest)


def _join_groups(x: Tensor) -> Tensor:
    """(batch, n, channels, ...) -> (n, batch * channels, ...)."""
    x = x.moveaxis(0, 1)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _split_groups(x: Tensor, size: int) -> Tensor:
    n, c = x.shape[:2]
    return x.reshape(n, size, c // size, *x.shape[2:]).moveaxis(1, 0)


def _join_kernels(w: Tensor) -> Tensor:
    return w.reshape(w.shape[0] * w.shape[1], *w.shape[2:])


CONV: Kernel = _Conv(
    "conv2d",
    _conv_portable,
    ("x", "w"),
    (
        lambda g, w, window, shape: apply(CONV_INPUT, g, w, window=window, image=shape),
        lambda g, x, window, shape: apply(CONV_WEIGHT, x, g, window=window, weight=shape),
    ),
    linear=(0, 1),
    result=lambda x, w, window: (
        (x.shape[0], w.shape[0], *window.out_size(x.shape)),
        x.dtype,
    ),
)
# the image's gradient from the result's: linear in `y` (shaped like the result) and in w
CONV_INPUT: Kernel = _Conv(
    "conv2d_input",
    _conv_input_portable,
    ("y", "w"),
    (
        lambda g, w, window, image: apply(CONV, g, w, window=window),
        lambda g, y, window, shape: apply(CONV_WEIGHT, g, y, window=window, weight=shape),
    ),
    linear=(0, 1),
    result=lambda y, w, window, image: (image, y.dtype),
)
# the kernel's gradient: linear in the image x and in `y` (shaped like the result)
CONV_WEIGHT: Kernel = _Conv(
    "conv2d_weight",
    _conv_weight_portable,
    ("x", "y"),
    (
        lambda g, y, window, shape: apply(CONV_INPUT, y, g, window=window, image=shape),
        lambda g, x, window: apply(CONV, x, g, window=window),
    ),
    linear=(0, 1),
    result=lambda x, y, window, weight: (weight, x.dtype),
)


@partial(whole, "conv2d")
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Kernels (out channels, channels / groups, height, width) moved over images, plus a bias."""
    if weight.ndim != 4:
        raise ShapeError(f"conv2d: the weight must have 4 dimensions, got {weight.shape}")
    window = _window("conv2d", weight.shape[2:], stride, padding, dilation, groups)
    _check_fit("conv2d", x, window)
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise ShapeError(
            f"conv2d: weight {weight.shape} in {groups} groups takes {weight.shape[1] * groups} "
            f"channels and gives a multiple of {groups}; the image has {x.shape[1]}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"conv2d: bias {bias.shape} must have shape {weight.shape[:1]}")
    x, weight = operands("conv2d", x, weight)
    check_kind("conv2d", x.dtype, "real float")
    out = apply(CONV, x, weight, window=window)
    return out if bias is None else out + bias.reshape(-1, 1, 1)


def _conv_samples() -> Any:
    yield sample(s.real(1, 1, 4, 4), s.real(1, 1, 3, 3, seed=1), stride=2, padding=1)
    yield sample(s.real(2, 2, 5, 5), s.real(3, 2, 2, 2, seed=1), stride=2)
    yield sample(
        s.real(1, 4, 5, 4), s.real(4, 2, 3, 2, seed=1), s.real(4), padding=(2, 1), groups=2
    )
    yield sample(s.real(1, 2, 6, 6), s.real(2, 2, 2, 3, seed=1), dilation=(2, 1), stride=(1, 2))
    yield sample(s.real(2, 3, 1, 1), s.real(2, 3, 3, 3, seed=1), padding=1)


register(
    CONV,
    conv2d,
    methods=("conv2d",),
    reference="tests.references:conv2d",
    samples=_conv_samples,
    refuses=(
        refuse(
            ShapeError,
            "conv2d: a kernel of .* does not fit",
            s.real(1, 1, 2, 2),
            s.real(1, 1, 3, 3),
        ),
        refuse(ShapeError, "the image has 3", s.real(1, 3, 4, 4), s.real(2, 2, 3, 3)),
        refuse(ShapeError, r"takes images \(batch", s.real(3, 4, 4), s.real(2, 3, 3, 3)),
        refuse(
            ArgumentError,
            "conv2d: stride must be one or two",
            s.real(1, 1, 4, 4),
            s.real(1, 1, 3, 3),
            stride=0,
        ),
        refuse(
            ArgumentError,
            "groups must be a positive",
            s.real(1, 1, 4, 4),
            s.real(1, 1, 3, 3),
            groups=0,
        ),
        refuse(ShapeError, "conv2d: bias", s.real(1, 1, 4, 4), s.real(1, 1, 3, 3), s.real(2)),
        refuse(
            DtypeError,
            "conv2d: does not take int64",
            s.integers(1, 1, 4, 4),
            s.integers(1, 1, 3, 3),
        ),
    ),
)
_SAMPLE_WINDOW = Window((3, 2), (2, 1), (1, 0), (1, 2))
register(
    CONV_INPUT,
    lambda y, w, window, image: apply(CONV_INPUT, y, w, window=window, image=image),
    reference="tests.references:conv2d_input",
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(1, 2, 3, 3), s.real(2, 2, 3, 2, seed=1), _SAMPLE_WINDOW, (1, 2, 6, 5)),)
    ),
)
register(
    CONV_WEIGHT,
    lambda x, y, window, weight: apply(CONV_WEIGHT, x, y, window=window, weight=weight),
    reference="tests.references:conv2d_weight",
    namespace="internal",
    samples=lambda: iter(
        (sample(s.real(1, 2, 6, 5), s.real(1, 2, 3, 3, seed=1), _SAMPLE_WINDOW, (2, 2, 3, 2)),)
    ),
)

# --- pooling -------------------------------------------------------------------------------------


def _pool_index_portable(x: Tensor, window: Window) -> Tensor:
    out = window.out_size(x.shape)
    width = x.shape[3]
    rows = arange(x.shape[2], device=x.device).reshape(-1, 1)
    places = (rows * width + arange(width, device=x.device)).expand(x.shape)
    whole = ((0, x.shape[0], 1), (0, x.shape[1], 1))
    values, index = _padded(x, window, -np.inf), _padded(places + 1, window)
    best: Tensor | None = None
    found: Tensor | None = None
    for tap in _taps(window, out):
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
)
register(
    POOL_INDEX,
    lambda x, window: apply(POOL_INDEX, x, window=window),
    reference="tests.references:max_pool2d_index",
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(1, 2, 4, 4), Window((2, 2), (2, 2), (0, 0), (1, 1))),
            sample(s.real(1, 1, 5, 4), Window((3, 2), (2, 1), (1, 1), (1, 2))),
        )
    ),
)


def _pool_window(op: str, x: Tensor, size: Any, stride: Any, padding: Any, dilation: Any) -> Window:
    window = _window(op, size, size if stride is None else stride, padding, dilation)
    _check_fit(op, x, window)
    if any(2 * p > k for p, k in zip(window.padding, window.size, strict=True)):
        raise ArgumentError(
            f"{op}: padding {window.padding} is more than half the kernel size {window.size}"
        )
    return window


def _pool_refusals(name: str) -> tuple[Any, ...]:
    x = s.real(1, 1, 4, 4)
    return (
        refuse(ShapeError, f"{name}: a kernel of .* does not fit", x, 5),
        refuse(ArgumentError, f"{name}: padding .* is more than half", x, 2, padding=2),
        refuse(ArgumentError, f"{name}: stride must be", x, 2, stride=0),
        refuse(ArgumentError, f"{name}: the kernel size must be", x, 1.5),
        refuse(ShapeError, f"{name}: takes images", s.real(4, 4), 2),
    )


@composite(
    reference="tests.references:max_pool2d",
    refuses=_pool_refusals("max_pool2d"),
    samples=lambda: iter(
        (
            sample(s.real(2, 3, 4, 4), 2),
            sample(s.real(1, 2, 5, 5), 3, stride=2, padding=1),
            sample(s.real(1, 1, 6, 5), (2, 3), stride=(1, 2), dilation=(2, 1)),
        )
    ),
)
def max_pool2d(
    x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
) -> Tensor:
    """The largest element in each window. NaN wins; the gradient goes to the first largest one."""
    check_kind("max_pool2d", x.dtype, "real")
    window = _pool_window("max_pool2d", x, kernel_size, stride, padding, dilation)
    index = apply(POOL_INDEX, x, window=window)
    n, c, h, w = x.shape
    flat = gather(
        x.reshape(n, c, h * w), index.reshape(n, c, index.shape[2] * index.shape[3]), axis=2
    )
    return flat.reshape(index.shape)


@composite(
    reference="tests.references:avg_pool2d",
    refuses=_pool_refusals("avg_pool2d"),
    samples=lambda: iter(
        (
            sample(s.real(2, 3, 4, 4), 2),
            sample(s.real(1, 2, 5, 5), 3, stride=2, padding=1),
            sample(s.real(1, 1, 6, 5), (2, 3), stride=(1, 2)),
            sample(s.real(1, 2, 5, 5), 3, stride=2, padding=1, count_include_pad=False),
        )
    ),
)
def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""
    check_kind("avg_pool2d", x.dtype, "float")
    window = _pool_window("avg_pool2d", x, kernel_size, stride, padding, 1)
    total = _window_sum(x, window)
    if count_include_pad or window.padding == (0, 0):
        return total / (window.size[0] * window.size[1])
    inside = zeros((1, 1, *x.shape[2:]), x.dtype, x.device) + 1.0
    return total / _window_sum(inside, window)


def _window_sum(x: Tensor, window: Window) -> Tensor:
    out = window.out_size(x.shape)
    whole = ((0, x.shape[0], 1), (0, x.shape[1], 1))
    x = _padded(x, window)
    total: Tensor | None = None
    for tap in _taps(window, out):
        part = take_slices(x, (*whole, *tap))
        total = part if total is None else total + part
    assert total is not None
    return total

"""Convolutions of lines, images and volumes, and patches of images."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import pulled_where
from everygrad.interop.torch.aten.registry import aten
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.conv2d import conv2d
from everygrad.ops.nn.conv_nd import (
    conv1d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from everygrad.ops.nn.unfold import channel_shuffle, col2im, im2col, pixel_shuffle, pixel_unshuffle
from everygrad.ops.shape.joining import pad
from everygrad.ops.shape.movement import put_slices, slice_axis

_PLAIN = {1: conv1d, 2: conv2d, 3: conv3d}
_TRANSPOSED = {1: conv_transpose1d, 2: conv_transpose2d, 3: conv_transpose3d}


def _each(value: Sequence[int], count: int) -> tuple[int, ...]:
    """One number for each axis, of a list that may hold one for all."""
    return tuple(value) * count if len(value) == 1 else tuple(value)


@aten("convolution.default", "convolution_overrideable.default")
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    count = weight.ndim - 2
    one = {"stride": _each(stride, count), "padding": _each(padding, count)}
    one |= {"dilation": _each(dilation, count)}
    if x.ndim == count + 1:
        return convolution(
            x.expand_dims(0), weight, bias, stride, padding, dilation, transposed,
            output_padding, groups,
        ).squeeze(0)  # fmt: skip
    if not x.dtype.is_differentiable:
        more = _each(output_padding, count) if transposed else None
        exact = _of_integers(x, weight, one, more, groups)
        return exact if bias is None else exact + bias.reshape((-1,) + (1,) * count)
    if transposed:
        more = _each(output_padding, count)
        out: Tensor = _TRANSPOSED[count](x, weight, bias, groups=groups, output_padding=more, **one)
        return out
    plain: Tensor = _PLAIN[count](x, weight, bias, groups=groups, **one)
    return plain


def _of_integers(
    x: Tensor, w: Tensor, one: dict[str, Any], more: tuple[int, ...] | None, groups: int
) -> Tensor:
    """Exact sums of products, one for each place in the kernel; `more`: of a transposed one, how
    much longer its result is. Our kernels are for floats."""
    stride, padding, dilation = one["stride"], one["padding"], one["dilation"]
    size = w.shape[2:]
    if more is not None:  # the same as a plain one of x with zeros between its elements
        x = put_slices(
            x,
            (*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))),
            (*((0, n, 1) for n in x.shape[:2]),
             *((0, n, s) for n, s in zip(x.shape[2:], stride, strict=True))),
        )  # fmt: skip
        reach = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        widths = [(r - p, r - p + m) for r, p, m in zip(reach, padding, more, strict=True)]
        w = w.reshape((groups, w.shape[0] // groups, w.shape[1], *size)).swapaxes(1, 2)
        w = w.flip(axis=tuple(range(3, w.ndim)))
        stride = (1,) * len(size)
    else:
        widths = [(p, p) for p in padding]
        w = w.reshape((groups, w.shape[0] // groups, w.shape[1], *size))
    cut = [slice(max(0, -a), n - max(0, -b)) for n, (a, b) in zip(x.shape[2:], widths, strict=True)]
    around = [(max(0, a), max(0, b)) for a, b in widths]
    x = pad(x[(..., *cut)], ((0, 0), (0, 0), *around))
    spans = zip(x.shape[2:], size, dilation, stride, strict=True)
    out = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in spans]
    total: Tensor | None = None
    for tap in itertools.product(*map(range, size)):
        seen = x
        for a, t in enumerate(tap):
            seen = slice_axis(seen, a + 2, t * dilation[a], out[a], stride[a])
        columns = seen.reshape((x.shape[0], groups, x.shape[1] // groups, -1))
        part = matmul(w[(..., *tap)], columns)
        total = part if total is None else total + part
    assert total is not None
    return total.reshape((x.shape[0], -1, *out))


@aten("_convolution.default", "_convolution.deprecated")
def convolution_with_flags(*given: Any) -> Tensor:
    return convolution(*given[:9])


@aten("convolution_backward.default")
def convolution_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    options = (stride, padding, dilation, transposed, output_padding, groups)
    found = pulled_where(
        lambda x, w: convolution(x, w, None, *options), g, (x, weight), output_mask[:2]
    )
    channels = weight.ndim - 2
    axes = (*range(g.ndim - channels - 1), *range(g.ndim - channels, g.ndim))
    return [*found, g.sum(axis=axes) if output_mask[2] else None]


def _same_names(count: int) -> Any:
    """conv1d and the others, as they stand in graphs that were not decomposed."""

    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = (1,),
        padding: Any = (0,),
        dilation: Any = (1,),
        groups: int = 1,
    ) -> Tensor:
        batched = x.ndim == count + 2
        out: Tensor = _PLAIN[count](
            x if batched else x.expand_dims(0),
            weight,
            bias,
            _each(stride, count),
            padding if isinstance(padding, str) else _each(padding, count),
            _each(dilation, count),
            groups,
        )
        return out if batched else out.squeeze(0)

    return run


def _same_names_transposed(count: int) -> Any:
    def run(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = (1,),
        padding: Any = (0,),
        output_padding: Any = (0,),
        groups: int = 1,
        dilation: Any = (1,),
    ) -> Tensor:
        return convolution(x, weight, bias, stride, padding, dilation, True, output_padding, groups)

    return run


_TRANSPOSED_NAMES = {1: "conv_transpose1d.default", 2: "conv_transpose2d.input",
                     3: "conv_transpose3d.input"}  # fmt: skip
for _count in _PLAIN:
    aten(f"conv{_count}d.default", f"conv{_count}d.padding")(_same_names(_count))
    aten(_TRANSPOSED_NAMES[_count])(_same_names_transposed(_count))


# --- patches -------------------------------------------------------------------------------------


def _folded(
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    each = [_each(v, 2) for v in (output_size, kernel_size, dilation, padding, stride)]
    if x.ndim == 3:
        out: Tensor = col2im(x, *each)
        return out
    alone: Tensor = col2im(x.expand_dims(0), *each)
    return alone.squeeze(0)


def _unfolded(x: Tensor, *options: Sequence[int]) -> Tensor:
    each = [_each(v, 2) for v in options]
    if x.ndim == 4:
        out: Tensor = im2col(x, *each)
        return out
    alone: Tensor = im2col(x.expand_dims(0), *each)
    return alone.squeeze(0)


aten("col2im.default")(_folded)
aten("im2col.default")(_unfolded)
aten("pixel_shuffle.default")(pixel_shuffle)
aten("pixel_unshuffle.default")(pixel_unshuffle)
aten("channel_shuffle.default", "native_channel_shuffle.default")(partial(channel_shuffle))

"""Convolution over volumes (batch, channels, depth, height, width) and its two derivatives.

By definition a volume is a batch of images, one for each place along the depth, whose channels are
those of the slices that the kernel meets there; so slices are held once for each place along the
kernel's depth. A device that has kernels for volumes holds them once.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.compiler import costs
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.ops.nn.conv2d import CONV, CONV_INPUT, CONV_WEIGHT, Window
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import register, sample
from everygrad.ops.record.splits import conv_axes, conv_input_axes, conv_weight_axes
from everygrad.ops.shape.joining import pad, stack
from everygrad.ops.shape.movement import put_slices, slice_axis


class Volume(NamedTuple):
    """How a kernel moves over a volume."""

    size: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int = 1

    def out_size(self, volume: Shape) -> Shape:
        """The number of places the kernel fits, by depth, height and width."""
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // st + 1
            for n, k, st, p, d in zip(volume[-3:], *self[:4], strict=True)
        )

    @property
    def images(self) -> Window:
        """The same over images, without the depth."""
        size, stride, padding, dilation = (tuple(part[1:]) for part in self[:4])
        return Window(size, stride, padding, dilation, self.groups)  # type: ignore[arg-type]


def _met(x: Tensor, window: Volume) -> Tensor:
    """Images (batch * depth, channels * taps, height, width): the slices that the kernel meets."""
    around = (window.padding[0],) * 2
    depth = window.out_size(x.shape)[0]
    taps, step, spread = (part[0] for part in (window.size, window.stride, window.dilation))
    x = pad(x, ((0, 0), (0, 0), around, (0, 0), (0, 0))).permute_dims((0, 2, 1, 3, 4))
    met = [slice_axis(x, 1, k * spread, depth, step) for k in range(taps)]
    x = met[0] if taps == 1 else stack(met, axis=3)  # (batch, depth, channels, taps, ...)
    channels = x.shape[2] * (1 if taps == 1 else taps)
    return x.reshape(x.shape[0] * depth, channels, *x.shape[-2:])


def _slices(y: Tensor) -> Tensor:
    """The slices of volumes as images."""
    n, c, depth, *rest = y.shape
    return y.permute_dims((0, 2, 1, 3, 4)).reshape(n * depth, c, *rest)


def _kernels(w: Tensor) -> Tensor:
    """Kernels over volumes as kernels over what images have of them."""
    o, c, taps, *size = w.shape
    return w.reshape(o, c * taps, *size)


def _portable(x: Tensor, w: Tensor, window: Volume) -> Tensor:
    out = apply(CONV, _met(x, window), _kernels(w), window=window.images)
    depth = window.out_size(x.shape)[0]
    out = out.reshape(x.shape[0], depth, *out.shape[1:])
    return out.permute_dims((0, 2, 1, 3, 4))


def _input_portable(y: Tensor, w: Tensor, window: Volume, image: Shape) -> Tensor:
    """Each slice spread over images for each place of the kernel along the depth."""
    n, c, deep, *rest = image
    depth, taps, around = y.shape[2], window.size[0], window.padding[0]
    shape = (n * depth, c * taps, *rest)
    out = apply(CONV_INPUT, _slices(y), _kernels(w), window=window.images, image=shape)
    out = out.reshape(n, depth, c, taps, *rest)
    padded = (n, deep + 2 * around, c, *rest)
    total: Tensor | None = None
    for k in range(taps):
        along = (k * window.dilation[0], depth, window.stride[0])
        at = tuple(along if a == 1 else (0, m, 1) for a, m in enumerate(padded))
        part = put_slices(out[:, :, :, k], padded, at)
        total = part if total is None else total + part
    assert total is not None
    return slice_axis(total, 1, around, deep).permute_dims((0, 2, 1, 3, 4))


def _weight_portable(x: Tensor, y: Tensor, window: Volume, weight: Shape) -> Tensor:
    o, c, taps, *size = weight
    met, shape = _met(x, window), (o, c * taps, *size)
    out = apply(CONV_WEIGHT, met, _slices(y), window=window.images, weight=shape)
    return out.reshape(weight)


VOLUME: Kernel = Kernel(
    "convolve3d",
    _portable,
    ("x", "w"),
    (
        lambda g, w, window, shape: apply(VOLUME_INPUT, g, w, window=window, image=shape),
        lambda g, x, window, shape: apply(VOLUME_WEIGHT, x, g, window=window, weight=shape),
    ),
    linear=(0, 1),
    result=lambda x, w, window: ((x.shape[0], w.shape[0], *window.out_size(x.shape)), x.dtype),
    precision="low",
    flops=costs.convolution,
    splits=conv_axes,
)
# the volume's gradient from the result's: linear in `y` (shaped like the result) and in w
VOLUME_INPUT: Kernel = Kernel(
    "convolve3d_input",
    _input_portable,
    ("y", "w"),
    (
        lambda g, w, window: apply(VOLUME, g, w, window=window),
        lambda g, y, window, shape: apply(VOLUME_WEIGHT, g, y, window=window, weight=shape),
    ),
    linear=(0, 1),
    result=lambda y, w, window, image: (image, y.dtype),
    precision="low",
    flops=costs.convolution,
    splits=conv_input_axes,
)
# the kernel's gradient: linear in the volume x and in `y` (shaped like the result)
VOLUME_WEIGHT: Kernel = Kernel(
    "convolve3d_weight",
    _weight_portable,
    ("x", "y"),
    (
        lambda g, y, window, shape: apply(VOLUME_INPUT, y, g, window=window, image=shape),
        lambda g, x, window: apply(VOLUME, x, g, window=window),
    ),
    linear=(0, 1),
    result=lambda x, y, window, weight: (weight, x.dtype),
    precision="low",
    flops=costs.convolution_weight,
    splits=conv_weight_axes,
)
_WINDOW = Volume((2, 1, 2), (2, 1, 1), (1, 0, 0), (1, 1, 2), 2)
_X, _W, _Y = (1, 2, 3, 1, 4), (2, 1, 2, 1, 2), (1, 2, 2, 1, 2)
register(
    VOLUME,
    lambda x, w, window: apply(VOLUME, x, w, window=window),
    kinds="real float",
    reference="tests.support.references.neural:convolve3d",
    namespace="internal",
    samples=lambda: iter((sample(s.real(*_X), s.real(*_W, seed=1), _WINDOW),)),
)
register(
    VOLUME_INPUT,
    lambda y, w, window, image: apply(VOLUME_INPUT, y, w, window=window, image=image),
    kinds="real float",
    reference="tests.support.references.neural:convolve3d_input",
    namespace="internal",
    samples=lambda: iter((sample(s.real(*_Y), s.real(*_W, seed=1), _WINDOW, _X),)),
)
register(
    VOLUME_WEIGHT,
    lambda x, y, window, weight: apply(VOLUME_WEIGHT, x, y, window=window, weight=weight),
    kinds="real float",
    reference="tests.support.references.neural:convolve3d_weight",
    namespace="internal",
    samples=lambda: iter((sample(s.real(*_X), s.real(*_Y, seed=1), _WINDOW, _W),)),
)

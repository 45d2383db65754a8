"""Layers that resize, rearrange or surround images, lines and volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.ops.nn.conv2d import integers
from everygrad.ops.nn.resampling import MODES
from everygrad.ops.nn.unfold import im2col


class Upsample(Module):
    """The input resized to `size`, or by `scale_factor`; `mode` is that of `interpolate`.

    >>> import everygrad as eg
    >>> eg.nn.Upsample(scale_factor=2)(eg.ones((1, 3, 4, 4))).shape
    (1, 3, 8, 8)
    """

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        if (size is None) == (scale_factor is None):
            raise ArgumentError("Upsample: give size or scale_factor, one of them")
        if mode not in MODES:
            shown = ", ".join(map(repr, MODES))
            raise ArgumentError(f"Upsample: mode must be one of {shown}, got {mode!r}")
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = bool(recompute_scale_factor)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.interpolate(
            x,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )
        return out

    def extra_repr(self) -> str:
        by = f"scale_factor={self.scale_factor}" if self.size is None else f"size={self.size}"
        return f"{by}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Images resized by their nearest elements.

    >>> import everygrad as eg
    >>> eg.nn.UpsamplingNearest2d(scale_factor=2)(eg.ones((1, 1, 2, 2))).shape
    (1, 1, 4, 4)
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Images resized by lines between their elements, with corners aligned.

    >>> import everygrad as eg
    >>> eg.nn.UpsamplingBilinear2d(size=(3, 3))(eg.ones((1, 1, 2, 2))).shape
    (1, 1, 3, 3)
    """

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


class PixelShuffle(Module):
    """(..., C r r, H, W) as (..., C, H r, W r), r being `upscale_factor`."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        check_sizes("PixelShuffle", upscale_factor=upscale_factor)
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.pixel_shuffle(x, self.upscale_factor)
        return out

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(..., C, H r, W r) as (..., C r r, H, W), r being `downscale_factor`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        check_sizes("PixelUnshuffle", downscale_factor=downscale_factor)
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.pixel_unshuffle(x, self.downscale_factor)
        return out

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels along axis 1 dealt out: the first of each group, then the second of each."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.channel_shuffle(x, self.groups)
        return out

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Unfold(Module):
    """What each place of a window sees, as columns (batch, channels * window, places)."""

    def __init__(
        self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.kernel_size = integers("Unfold", "kernel_size", kernel_size, 1, 2)
        self.dilation = integers("Unfold", "dilation", dilation, 1, 2)
        self.padding = integers("Unfold", "padding", padding, 0, 2)
        self.stride = integers("Unfold", "stride", stride, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = im2col(x, self.kernel_size, self.dilation, self.padding, self.stride)
        return out

    def extra_repr(self) -> str:
        shown = f"kernel_size={self.kernel_size}, dilation={self.dilation}"
        return f"{shown}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """Columns added up to images of `output_size`: the transpose of `Unfold`."""

    def __init__(
        self,
        output_size: Any,
        kernel_size: Any,
        dilation: Any = 1,
        padding: Any = 0,
        stride: Any = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = integers("Fold", "output_size", output_size, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.fold(
            x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )
        return out

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


# --- padding -------------------------------------------------------------------------------------


class _Pad(Module):
    """Padding by PyTorch's widths: (left, right), (left, right, top, bottom), ... or one number."""

    places: ClassVar[int]
    mode: ClassVar[str]
    value = 0.0

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        given = (padding,) * (2 * self.places) if isinstance(padding, int) else tuple(padding)
        if len(given) != 2 * self.places or any(n < 0 for n in given):
            raise ArgumentError(
                f"{type(self).__name__}: padding must be one or {2 * self.places} integers, none "
                f"negative, the last axis first, got {padding!r}"
            )
        self.padding = given

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < self.places + 1:
            raise ShapeError(
                f"{type(self).__name__}: takes {self.places + 1} dimensions or more, got {x.shape}"
            )
        return F.pad(x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    mode = "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """The last axis surrounded by `value`: (left, right) or one number."""

    places = 1


class ConstantPad2d(_ConstantPad):
    """The last two axes surrounded by `value`: (left, right, top, bottom) or one number."""

    places = 2


class ConstantPad3d(_ConstantPad):
    """The last three axes surrounded by `value`, the last axis first, or one number."""

    places = 3


class ZeroPad1d(_Pad):
    """The last axis surrounded by zeros: (left, right) or one number."""

    places, mode = 1, "constant"


class ZeroPad2d(_Pad):
    """The last two axes surrounded by zeros: (left, right, top, bottom) or one number."""

    places, mode = 2, "constant"


class ZeroPad3d(_Pad):
    """The last three axes surrounded by zeros, the last axis first, or one number."""

    places, mode = 3, "constant"


class ReflectionPad1d(_Pad):
    """The last axis mirrored at its ends, without them: (left, right) or one number."""

    places, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The last two axes mirrored: (left, right, top, bottom) or one number.

    >>> import everygrad as eg
    >>> eg.nn.ReflectionPad2d((1, 0, 0, 0))(eg.tensor([[[1.0, 2.0, 3.0]]]))
    tensor([[[2., 1., 2., 3.]]])
    """

    places, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The last three axes mirrored, the last axis first, or one number."""

    places, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The ends of the last axis repeated: (left, right) or one number."""

    places, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The edges of the last two axes repeated: (left, right, top, bottom) or one number."""

    places, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The edges of the last three axes repeated, the last axis first, or one number."""

    places, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The last axis continued from its other end: (left, right) or one number."""

    places, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The last two axes continued from their other ends: (left, right, top, bottom)."""

    places, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The last three axes continued from their other ends, the last axis first."""

    places, mode = 3, "circular"

"""Pooling layers over lines, images and volumes (batch, channels, places...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.ops.nn.conv2d import integers
from everygrad.ops.random.generators import Generator

_MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_LP = {1: F.lp_pool1d, 2: F.lp_pool2d, 3: F.lp_pool3d}
_UNPOOL = {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}
_FRACTIONAL = {2: F.fractional_max_pool2d, 3: F.fractional_max_pool3d}
_ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}
_ADAPTIVE_AVG = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


class _Pool(Module):
    """What the pooling layers share."""

    places: ClassVar[int]  # the number of axes that a window moves along

    def __init__(self, kernel_size: Any, stride: Any, padding: Any = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = integers(name, "kernel_size", kernel_size, 1, self.places)
        given = self.kernel_size if stride is None else stride
        self.stride = integers(name, "stride", given, 1, self.places)
        self.padding = integers(name, "padding", padding, 0, self.places)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _MaxPool(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation = integers(type(self).__name__, "dilation", dilation, 1, self.places)
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Any:
        return _MAX[self.places](
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.return_indices,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dilation={self.dilation}"


class MaxPool1d(_MaxPool):
    """The largest element in each window of a line; as `MaxPool2d`."""

    places = 1


class MaxPool2d(_MaxPool):
    """The largest element in each window; the windows do not overlap unless `stride` says so.

    `return_indices` gives their places too, for `MaxUnpool2d`.
    """

    places = 2


class MaxPool3d(_MaxPool):
    """The largest element in each window of a volume; as `MaxPool2d`."""

    places = 3


class _AvgPool(_Pool):
    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _AVG[self.places](
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, count_include_pad={self.count_include_pad}"


class AvgPool1d(_AvgPool):
    """The mean of each window of a line; as `AvgPool2d`."""

    places = 1


class AvgPool2d(_AvgPool):
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""

    places = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of a volume; as `AvgPool2d`."""

    places = 3


class _LPPool(_Pool):
    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__(kernel_size, stride)
        if not norm_type > 0:
            raise ArgumentError(
                f"{type(self).__name__}: norm_type must be positive, got {norm_type!r}"
            )
        self.norm_type = norm_type
        self.ceil_mode = ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _LP[self.places](
            x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode
        )
        return out

    def extra_repr(self) -> str:
        shown = f"norm_type={self.norm_type}, kernel_size={self.kernel_size}"
        return f"{shown}, stride={self.stride}, ceil_mode={self.ceil_mode}"


class LPPool1d(_LPPool):
    """The p-norm of each window of a line, p being `norm_type`."""

    places = 1


class LPPool2d(_LPPool):
    """The p-norm of each window of an image, p being `norm_type`."""

    places = 2


class LPPool3d(_LPPool):
    """The p-norm of each window of a volume, p being `norm_type`."""

    places = 3


class _MaxUnpool(_Pool):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__(kernel_size, stride, padding)

    def forward(
        self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        out: Tensor = _UNPOOL[self.places](
            x, indices, self.kernel_size, self.stride, self.padding, output_size
        )
        return out


class MaxUnpool1d(_MaxUnpool):
    """Zeros, with each element where `MaxPool1d` found it."""

    places = 1


class MaxUnpool2d(_MaxUnpool):
    """Zeros, with each element where `MaxPool2d` found it.

    >>> import everygrad as eg
    >>> out, where = eg.nn.MaxPool2d(2, return_indices=True)(eg.eye(4).reshape(1, 1, 4, 4))
    >>> eg.nn.MaxUnpool2d(2)(out, where).sum().item()
    2.0
    """

    places = 2


class MaxUnpool3d(_MaxUnpool):
    """Zeros, with each element where `MaxPool3d` found it."""

    places = 3


class _Adaptive(Module):
    places: ClassVar[int]

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveAvgPool(_Adaptive):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _ADAPTIVE_AVG[self.places](x, self.output_size)
        return out


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The means of windows that cover a line evenly; `output_size` is how many."""

    places = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The means of windows that cover an image evenly; a size of None keeps an axis.

    >>> import everygrad as eg
    >>> eg.nn.AdaptiveAvgPool2d((1, None))(eg.ones((2, 3, 5, 7))).shape
    (2, 3, 1, 7)
    """

    places = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The means of windows that cover a volume evenly; a size of None keeps an axis."""

    places = 3


class _AdaptiveMaxPool(_Adaptive):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, x: Tensor) -> Any:
        return _ADAPTIVE_MAX[self.places](x, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest elements of windows that cover a line evenly; `output_size` is how many."""

    places = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest elements of windows that cover an image evenly; None keeps an axis."""

    places = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest elements of windows that cover a volume evenly; None keeps an axis."""

    places = 3


class _FractionalMaxPool(Module):
    places: ClassVar[int]
    _random_samples: Tensor | None

    def __init__(
        self,
        kernel_size: Any,
        output_size: Any = None,
        output_ratio: Any = None,
        return_indices: bool = False,
        _random_samples: Tensor | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(f"{name}: give output_size or output_ratio, one of them")
        self.kernel_size = integers(name, "kernel_size", kernel_size, 1, self.places)
        self.output_size = output_size
        self.output_ratio = output_ratio
        self.return_indices = return_indices
        self.register_buffer("_random_samples", _random_samples)
        self.generator = generator

    def forward(self, x: Tensor) -> Any:
        return _FRACTIONAL[self.places](
            x,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            self._random_samples,
            self.generator,
        )

    def extra_repr(self) -> str:
        by = f"output_size={self.output_size}"
        if self.output_size is None:
            by = f"output_ratio={self.output_ratio}"
        return f"kernel_size={self.kernel_size}, {by}"


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest elements of windows at random, evenly spread places of an image.

    >>> import everygrad as eg
    >>> eg.nn.FractionalMaxPool2d(2, output_ratio=0.5)(eg.ones((1, 3, 8, 8))).shape
    (1, 3, 4, 4)
    """

    places = 2


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest elements of windows at random places of a volume; as `FractionalMaxPool2d`.

    >>> import everygrad as eg
    >>> eg.nn.FractionalMaxPool3d(2, output_size=3)(eg.ones((1, 3, 8, 8, 8))).shape
    (1, 3, 3, 3, 3)
    """

    places = 3

"""Convolution and pooling layers over images (batch, channels, height, width)."""

from __future__ import annotations

from typing import Any

from everygrad.errors import ArgumentError
from everygrad.nn import functional as F, init
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.creation import empty
from everygrad.ops.joining import pad
from everygrad.tensor import Tensor

Pair = int | tuple[int, int]


def _pair(layer: str, name: str, value: Any, least: int) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= least for v in pair)
    if len(pair) != 2 or not whole:
        raise ArgumentError(
            f"{layer}: {name} must be one or two integers of at least {least}, got {value!r}"
        )
    return pair[0], pair[1]


class Conv2d(Module):
    """Kernels moved over images, plus a bias for each of the out channels.

    `padding` is one or two numbers, "valid" (none) or "same" (the result is as large as the image).

    >>> import everygrad as eg
    >>> eg.nn.Conv2d(3, 8, 3, stride=2, padding=1)(eg.ones((1, 3, 8, 8))).shape
    (1, 8, 4, 4)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes("Conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"Conv2d: {in_channels} channels in and {out_channels} out must both be multiples "
                f"of groups={groups}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _pair("Conv2d", "kernel_size", kernel_size, 1)
        self.stride = _pair("Conv2d", "stride", stride, 1)
        self.dilation = _pair("Conv2d", "dilation", dilation, 1)
        self.groups = groups
        self.padding = self._checked_padding(padding)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(empty(shape, dtype, device))
        self.bias = Parameter(empty((out_channels,), dtype, device)) if bias else None
        self.reset_parameters()

    def _checked_padding(self, padding: Any) -> tuple[int, int] | str:
        if not isinstance(padding, str):
            return _pair("Conv2d", "padding", padding, 0)
        if padding not in ("same", "valid"):
            raise ArgumentError(
                f'Conv2d: padding must be numbers, "same" or "valid", got {padding!r}'
            )
        if padding == "same" and self.stride != (1, 1):
            raise ArgumentError(f'Conv2d: padding="same" needs stride 1, got {self.stride}')
        return padding

    def reset_parameters(self) -> None:
        """Draw new starting values."""
        init.linear_defaults(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        if padding == "same":
            x, padding = pad(x, ((0, 0), (0, 0), *self._same_widths())), (0, 0)
        elif padding == "valid":
            padding = (0, 0)
        return F.conv2d(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _same_widths(self) -> list[tuple[int, int]]:
        """Before and after each image axis; an odd one out goes after."""
        spans = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        return [(span // 2, span - span // 2) for span in spans]

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        shown += f", stride={self.stride}"
        for name, usual in (("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1)):
            value = getattr(self, name)
            shown += f", {name}={value!r}" if value != usual else ""
        return shown + ("" if self.bias is not None else ", bias=False")


class _Pool2d(Module):
    """What the pooling layers share."""

    def __init__(self, kernel_size: Pair, stride: Pair | None, padding: Pair) -> None:
        super().__init__()
        name = type(self).__name__
        self.kernel_size = _pair(name, "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else _pair(name, "stride", stride, 1)
        self.padding = _pair(name, "padding", padding, 0)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxPool2d(_Pool2d):
    """The largest element in each window; the windows do not overlap unless `stride` says so."""

    def __init__(
        self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, dilation: Pair = 1
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.dilation = _pair("MaxPool2d", "dilation", dilation, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation)
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, dilation={self.dilation}"


class AvgPool2d(_Pool2d):
    """The mean of each window; padding counts as zeros unless count_include_pad is False."""

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        *,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.count_include_pad
        )
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, count_include_pad={self.count_include_pad}"

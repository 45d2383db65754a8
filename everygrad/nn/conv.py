"""Convolution layers over lines, images and volumes (batch, channels, places...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.nn.conv2d import PADDING_MODES, integers, is_plain, padding_widths
from everygrad.ops.python.creation import empty

_FUNCTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


class _Convolution(Module):
    """What the layers share: their parameters, checked, and their weights."""

    places: ClassVar[int]  # the number of axes that a kernel moves along
    padding: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        dilation: Any,
        groups: int,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{name}: {in_channels} channels in and {out_channels} out must both be multiples "
                f"of groups={groups}"
            )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = integers(name, "kernel_size", kernel_size, 1, self.places)
        self.stride = integers(name, "stride", stride, 1, self.places)
        self.dilation = integers(name, "dilation", dilation, 1, self.places)
        self.groups = groups

    def hold(self, shape: Sequence[int], bias: bool, device: str, dtype: Any) -> None:
        """Make the parameters, and draw their starting values."""
        self.weight = Parameter(empty((*shape, *self.kernel_size), dtype, device))
        self.bias = Parameter(empty((self.out_channels,), dtype, device)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new starting values."""
        init.linear_defaults(self.weight, self.bias)

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        shown += f", stride={self.stride}"
        usual = {"padding": (0,) * self.places, "dilation": (1,) * self.places, "groups": 1,
                 "output_padding": (0,) * self.places, "padding_mode": "zeros"}  # fmt: skip
        for name, value in usual.items():
            own = getattr(self, name, value)
            shown += f", {name}={own!r}" if own != value else ""
        return shown + ("" if self.bias is not None else ", bias=False")


class _Conv(_Convolution):
    """Kernels moved over the input."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, dilation, groups)
        name = type(self).__name__
        if padding_mode not in PADDING_MODES:
            shown = ", ".join(map(repr, PADDING_MODES))
            raise ArgumentError(
                f"{name}: padding_mode must be one of {shown}, got {padding_mode!r}"
            )
        self.padding_mode = padding_mode
        if is_plain(padding):
            self.padding = integers(name, "padding", padding, 0, self.places)
        else:
            padding_widths(name, padding, self.kernel_size, self.stride, self.dilation)  # refuses
            self.padding = padding
        self.hold((out_channels, in_channels // groups), bias, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _FUNCTIONS[self.places](
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            self.padding_mode,
        )
        return out


class Conv1d(_Conv):
    """Kernels moved over lines (batch, channels, length), plus a bias for each out channel.

    `padding` and `padding_mode` are as in `Conv2d`.
    """

    places = 1


class Conv2d(_Conv):
    """Kernels moved over images, plus a bias for each of the out channels.

    `padding` is one or two numbers, a pair (before, after) for each axis, "valid" (none) or "same"
    (the result is as large as the image). `padding_mode` says what is there: "zeros", "reflect",
    "replicate" or "circular".

    >>> import everygrad as eg
    >>> eg.nn.Conv2d(3, 8, 3, stride=2, padding=1)(eg.ones((1, 3, 8, 8))).shape
    (1, 8, 4, 4)
    """

    places = 2


class Conv3d(_Conv):
    """Kernels moved over volumes (batch, channels, depth, height, width), plus a bias.

    `padding` and `padding_mode` are as in `Conv2d`.
    """

    places = 3


class _ConvTranspose(_Convolution):
    """Kernels spread by the input: the transpose of the convolution with these parameters."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, dilation, groups)
        name = type(self).__name__
        if padding_mode != "zeros":
            raise ArgumentError(f"{name}: padding_mode must be 'zeros', got {padding_mode!r}")
        self.padding = integers(name, "padding", padding, 0, self.places)
        self.output_padding = integers(name, "output_padding", output_padding, 0, self.places)
        self.hold((in_channels, out_channels // groups), bias, device, dtype)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        more = self.output_padding if output_size is None else self._rest(x, output_size)
        out: Tensor = _TRANSPOSED[self.places](
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            more,
            self.groups,
            self.dilation,
        )
        return out

    def _rest(self, x: Tensor, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output_padding that gives the size; several sizes have the same convolution."""
        wanted = tuple(output_size)[-self.places :]
        least = tuple(
            (n - 1) * st - 2 * p + d * (k - 1) + 1
            for n, st, p, d, k in zip(
                x.shape[2:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True
            )
        )
        rest = tuple(w - n for w, n in zip(wanted, least, strict=True))
        if any(not 0 <= r < st for r, st in zip(rest, self.stride, strict=True)):
            raise ShapeError(
                f"{type(self).__name__}: output_size {wanted} must be {least} or less than the "
                f"stride {self.stride} more"
            )
        return rest


class ConvTranspose1d(_ConvTranspose):
    """Kernels spread over lines by the elements of (batch, channels, length), plus a bias.

    `output_size`, where the layer is called, chooses among the sizes the stride leaves open.
    """

    places = 1


class ConvTranspose2d(_ConvTranspose):
    """Kernels spread over images by the elements of (batch, channels, height, width), plus a bias.

    `output_size`, where the layer is called, chooses among the sizes the stride leaves open.

    >>> import everygrad as eg
    >>> eg.nn.ConvTranspose2d(3, 8, 2, stride=2)(eg.ones((1, 3, 4, 4))).shape
    (1, 8, 8, 8)
    """

    places = 2


class ConvTranspose3d(_ConvTranspose):
    """Kernels spread over volumes by (batch, channels, depth, height, width), plus a bias.

    `output_size`, where the layer is called, chooses among the sizes the stride leaves open.
    """

    places = 3

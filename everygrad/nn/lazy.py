"""Layers that learn the size of their input from the first one they see.

Until then their weights have no shape. The first call, or `load_state_dict`, makes them, and the
layer becomes the plain one: a LazyLinear is a Linear from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from everygrad.nn.parameter import UninitializedBuffer, UninitializedParameter


class LazyModuleMixin(Module):
    """What lazy layers share: they wait, and then become `plain`.

    `options` are those of the plain layer but for the size of its input, which `width_of` reads
    from an input and `width_in` from the weights of a state_dict.
    """

    plain: ClassVar[type[Any]]
    places: ClassVar[Any]
    options: dict[str, Any]

    def _wait(self, options: dict[str, Any], *buffers: str) -> None:
        """Hold places for the parameters and buffers that the first input decides."""
        vars(self)["options"] = options
        device, dtype = options.get("device"), options.get("dtype")
        for name in self.parameter_names():
            setattr(self, name, UninitializedParameter(device=device, dtype=dtype))
        for name in buffers:
            self.register_buffer(name, UninitializedBuffer(device, dtype))

    def parameter_names(self) -> tuple[str, ...]:
        """The parameters that wait."""
        return ("weight", "bias") if self.options.get("bias", True) else ("weight",)

    def width_of(self, x: Tensor) -> int:
        """The size of the input that the plain layer needs to know."""
        raise NotImplementedError

    def width_in(self, weight: Any) -> int:
        """The same, from the shape of a weight that was trained."""
        raise NotImplementedError

    def has_uninitialized_params(self) -> bool:
        """Whether the layer still waits for its first input."""
        return "options" in vars(self)

    def initialize_parameters(self, width: int) -> None:
        """Become the plain layer for inputs of this width."""
        options = self.options
        held = next(iter(self.parameters()), None)  # what `to` moved decides where weights go
        place = {} if held is None else {"device": held.device, "dtype": held.dtype}
        made = self.plain(width, **{**options, **place})
        kept = {name: vars(self)[name] for name in ("training", "_hooks", "_hooked")}
        frozen = held is not None and not held.requires_grad
        vars(self).clear()
        vars(self).update(vars(made), **kept)
        self.__class__ = self.plain
        if frozen:
            self.requires_grad_(False)
        Module.changes += 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Tensor):
            raise ArgumentError(f"{type(self).__name__}: takes a tensor to learn its size from")
        self.initialize_parameters(self.width_of(args[0]))
        return self(*args, **kwargs)

    def before_loading(self, state: Mapping[str, Any], prefix: str) -> None:
        """Become the plain layer that a state_dict fits, if it has one for it."""
        found = state.get(f"{prefix}weight", state.get(f"{prefix}running_mean"))
        if found is not None and hasattr(found, "shape"):
            self.initialize_parameters(self.width_in(found))

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v!r}" for k, v in self.options.items() if v is not None)


class LazyLinear(LazyModuleMixin, Linear):
    """A Linear whose in_features are those of its first input.

    >>> import everygrad as eg
    >>> layer = eg.nn.LazyLinear(4)
    >>> layer(eg.ones((2, 3))).shape, layer
    ((2, 4), Linear(in_features=3, out_features=4, bias=True))
    """

    plain = Linear

    def __init__(
        self, out_features: int, bias: bool = True, device: str = "cpu", dtype: Any = None
    ) -> None:
        Linear(1, out_features, bias)  # refuses what it must, now
        self._wait({"out_features": out_features, "bias": bias, "device": device, "dtype": dtype})

    def width_of(self, x: Tensor) -> int:
        if not x.ndim:
            raise ShapeError("LazyLinear: takes (..., in_features), got a tensor without axes")
        return x.shape[-1]

    def width_in(self, weight: Any) -> int:
        return int(weight.shape[1])


class _LazyConvolution(LazyModuleMixin):
    """A convolution whose in_channels are those of its first input."""

    def __init__(self, out_channels: int, kernel_size: Any, *args: Any, **kwargs: Any) -> None:
        groups = kwargs.get("groups", args[self.groups_at] if len(args) > self.groups_at else 1)
        # refuses what it must, now
        plain = self.plain(groups, out_channels, kernel_size, *args, **kwargs)
        options = {name: getattr(plain, name) for name in self.names}
        options["bias"] = plain.bias is not None
        options |= {"device": kwargs.get("device", "cpu"), "dtype": kwargs.get("dtype")}
        self._wait(options)

    names: ClassVar[tuple[str, ...]]
    groups_at: ClassVar[int]  # where `groups` stands behind the kernel's size

    def width_of(self, x: Tensor) -> int:
        if x.ndim not in (self.places + 1, self.places + 2):
            raise ShapeError(
                f"{type(self).__name__}: takes {self.places + 2} dimensions, (batch, channels, "
                f"places...), to learn its channels from, got {x.shape}"
            )
        return x.shape[-1 - self.places]


class _LazyConv(_LazyConvolution):
    names = ("out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")  # fmt: skip # noqa: E501
    groups_at = 3

    def width_in(self, weight: Any) -> int:
        return int(weight.shape[1]) * int(self.options["groups"])


class _LazyConvTranspose(_LazyConvolution):
    names = ("out_channels", "kernel_size", "stride", "padding", "output_padding", "groups", "dilation")  # fmt: skip # noqa: E501
    groups_at = 3

    def width_in(self, weight: Any) -> int:
        return int(weight.shape[0])


class LazyConv1d(_LazyConv, Conv1d):
    """A Conv1d whose in_channels are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyConv1d(4, 3)(eg.ones((1, 2, 5))).shape
    (1, 4, 3)
    """

    plain = Conv1d


class LazyConv2d(_LazyConv, Conv2d):
    """A Conv2d whose in_channels are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyConv2d(4, 3, padding=1)(eg.ones((1, 2, 5, 5))).shape
    (1, 4, 5, 5)
    """

    plain = Conv2d


class LazyConv3d(_LazyConv, Conv3d):
    """A Conv3d whose in_channels are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyConv3d(4, 3)(eg.ones((1, 2, 3, 3, 3))).shape
    (1, 4, 1, 1, 1)
    """

    plain = Conv3d


class LazyConvTranspose1d(_LazyConvTranspose, ConvTranspose1d):
    """A ConvTranspose1d whose in_channels are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyConvTranspose1d(4, 3)(eg.ones((1, 2, 5))).shape
    (1, 4, 7)
    """

    plain = ConvTranspose1d


class LazyConvTranspose2d(_LazyConvTranspose, ConvTranspose2d):
    """A ConvTranspose2d whose in_channels are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyConvTranspose2d(4, 2, stride=2)(eg.ones((1, 2, 3, 3))).shape
    (1, 4, 6, 6)
    """

    plain = ConvTranspose2d


class LazyConvTranspose3d(_LazyConvTranspose, ConvTranspose3d):
    """A ConvTranspose3d whose in_channels are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyConvTranspose3d(4, 1)(eg.ones((1, 2, 3, 3, 3))).shape
    (1, 4, 3, 3, 3)
    """

    plain = ConvTranspose3d


class _LazyNorm(LazyModuleMixin):
    """A norm of channels whose num_features are those of its first input."""

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str = "cpu",
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        options: dict[str, Any] = {"eps": eps, "momentum": momentum, "affine": affine,
                                   "track_running_stats": track_running_stats,
                                   "bias": bias}  # fmt: skip
        self.plain(1, **options)  # refuses what it must, now
        buffers = ("running_mean", "running_var") if track_running_stats else ()
        self._wait({**options, "device": device, "dtype": dtype}, *buffers)

    def parameter_names(self) -> tuple[str, ...]:
        if not self.options["affine"]:
            return ()
        return ("weight", "bias") if self.options["bias"] else ("weight",)

    def width_of(self, x: Tensor) -> int:
        if x.ndim not in self.plain.ranks:
            raise ShapeError(
                f"{type(self).__name__}: takes (batch, channels{self.plain.places}), got {x.shape}"
            )
        return x.shape[1]

    def width_in(self, weight: Any) -> int:
        return int(weight.shape[0])


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """A BatchNorm1d whose num_features are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyBatchNorm1d()(eg.ones((2, 3))).shape
    (2, 3)
    """

    plain = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """A BatchNorm2d whose num_features are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyBatchNorm2d()(eg.ones((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    plain = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """A BatchNorm3d whose num_features are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyBatchNorm3d()(eg.ones((2, 3, 4, 4, 4))).shape
    (2, 3, 4, 4, 4)
    """

    plain = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """An InstanceNorm1d whose num_features are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyInstanceNorm1d()(eg.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    plain = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """An InstanceNorm2d whose num_features are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyInstanceNorm2d()(eg.ones((2, 3, 4, 4))).shape
    (2, 3, 4, 4)
    """

    plain = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """An InstanceNorm3d whose num_features are those of its first input.

    >>> import everygrad as eg
    >>> eg.nn.LazyInstanceNorm3d()(eg.ones((2, 3, 4, 4, 4))).shape
    (2, 3, 4, 4, 4)
    """

    plain = InstanceNorm3d

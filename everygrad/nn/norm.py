"""Normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.linear import check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import ones, zeros


def _not_negative(layer: Module, name: str, value: Any) -> Any:
    """A number below which a root would have no value; None is for the layer to choose."""
    if value is not None and not value >= 0:
        raise ArgumentError(f"{type(layer).__name__}: {name} must not be negative, got {value!r}")
    return value


class LayerNorm(Module):
    """Each example standardised over its last axes, then scaled and shifted.

    >>> import everygrad as eg
    >>> eg.nn.LayerNorm(2)(eg.tensor([[1.0, 3.0]]))
    tensor([[-1.,  1.]], op=scaled_standardize)
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shapes.as_shape(normalized_shape, "LayerNorm")
        check_sizes("LayerNorm", **{f"axis {i}": n for i, n in enumerate(self.normalized_shape)})
        self.eps = _not_negative(self, "eps", eps)
        self.elementwise_affine = elementwise_affine
        affine, shape = elementwise_affine, self.normalized_shape
        self.weight = Parameter(ones(shape, dtype, device)) if affine else None
        self.bias = Parameter(zeros(shape, dtype, device)) if affine and bias else None

    def reset_parameters(self) -> None:
        """Weights 1, biases 0."""
        _reset_affine(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return out

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSNorm(Module):
    """Each example over the root of the mean of its squares along its last axes, then scaled.

    `eps` is added to that mean; None is the distance from 1 to the next number of the dtype.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = shapes.as_shape(normalized_shape, "RMSNorm")
        check_sizes("RMSNorm", **{f"axis {i}": n for i, n in enumerate(self.normalized_shape)})
        self.eps = _not_negative(self, "eps", eps)
        self.elementwise_affine = elementwise_affine
        shape = self.normalized_shape
        self.weight = Parameter(ones(shape, dtype, device)) if elementwise_affine else None

    def reset_parameters(self) -> None:
        """Weights 1."""
        _reset_affine(self.weight, None)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return out

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class GroupNorm(Module):
    """Each group of channels of each example standardised, then scaled and shifted by channel.

    >>> import everygrad as eg
    >>> eg.nn.GroupNorm(2, 4)(eg.ones((3, 4, 5))).shape
    (3, 4, 5)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: str = "cpu",
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(
                f"GroupNorm: {num_channels} channels are no multiple of {num_groups} groups"
            )
        self.num_groups = num_groups
        self.num_channels = num_channels
        self.eps = _not_negative(self, "eps", eps)
        self.affine = affine
        shape = (num_channels,)
        self.weight = Parameter(ones(shape, dtype, device)) if affine else None
        self.bias = Parameter(zeros(shape, dtype, device)) if affine and bias else None

    def reset_parameters(self) -> None:
        """Weights 1, biases 0."""
        _reset_affine(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
        return out

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LocalResponseNorm(Module):
    """x / (k + alpha m) ** beta, m being the mean square of `size` neighbouring channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        check_sizes("LocalResponseNorm", size=size)
        self.size = size
        self.alpha = alpha
        self.beta = beta
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)
        return out

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class _ChannelNorm(Module):
    """What norms of channels share: weights, and running statistics where they are tracked."""

    places: ClassVar[str]  # the shapes that are taken, behind the batch and the channels
    ranks: ClassVar[tuple[int, ...]]
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        device: str,
        dtype: Any,
        bias: bool,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, num_features=num_features)
        if momentum is not None and not 0 <= momentum <= 1:
            raise ArgumentError(
                f"{name}: momentum must be None or between 0 and 1, got {momentum!r}"
            )
        self.num_features = num_features
        self.eps = _not_negative(self, "eps", eps)
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        shape = (num_features,)
        self.weight = Parameter(ones(shape, dtype, device)) if affine else None
        self.bias = Parameter(zeros(shape, dtype, device)) if affine and bias else None
        tracked = track_running_stats
        self.register_buffer("running_mean", zeros(shape, dtype, device) if tracked else None)
        self.register_buffer("running_var", ones(shape, dtype, device) if tracked else None)
        self.register_buffer("num_batches_tracked", zeros((), "int64", device) if tracked else None)

    def reset_parameters(self) -> None:
        """Weights 1, biases 0, and running statistics as if no batch had been seen."""
        _reset_affine(self.weight, self.bias)
        if self.running_mean is not None and self.running_var is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)
        if self.num_batches_tracked is not None:
            init.zeros_(self.num_batches_tracked)

    def check(self, x: Tensor) -> None:
        """Refuse another number of axes or of channels."""
        if x.ndim not in self.ranks or x.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: takes (batch, {self.num_features}{self.places}), "
                f"got {x.shape}"
            )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_ChannelNorm):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str = "cpu",
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        count = self._next_count() if self.training else None
        out: Tensor = F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self._momentum(count),
            self.eps,
        )
        if count is not None and self.num_batches_tracked is not None:
            self.num_batches_tracked.rebind(
                count._data, None
            )  # last: a call that raises changes nothing
        return out

    def _next_count(self) -> Tensor | None:
        return None if self.num_batches_tracked is None else self.num_batches_tracked + 1

    def _momentum(self, count: Tensor | None) -> float | Tensor:
        """The weight of this batch in the running statistics."""
        if self.momentum is not None or count is None or self.running_mean is None:
            return self.momentum or 0.0
        share: Tensor = 1.0 / count.astype(self.running_mean.dtype)
        return share


class BatchNorm1d(_BatchNorm):
    """Each channel of (batch, channels) or (batch, channels, length); as `BatchNorm2d`."""

    places, ranks = " or that and a length", (2, 3)


class BatchNorm2d(_BatchNorm):
    """Each channel of a batch of images standardised, then scaled and shifted.

    In training by the batch's own mean and variance, which also move the running ones by
    `momentum` (None: towards the plain average over all batches). In evaluation by the running
    ones, or by the batch's own where none are tracked.
    """

    places, ranks = ", height, width", (4,)


class BatchNorm3d(_BatchNorm):
    """Each channel of a batch of volumes standardised; as `BatchNorm2d`."""

    places, ranks = ", depth, height, width", (5,)


class _InstanceNorm(_ChannelNorm):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: str = "cpu",
        dtype: Any = None,
        bias: bool = True,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == self.ranks[0] - 1:  # one alone, without a batch
            return self.forward(x.expand_dims(0)).squeeze(0)
        self.check(x)
        out: Tensor = F.instance_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self.momentum or 0.0,
            self.eps,
        )
        return out


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each line standardised; as `InstanceNorm2d`."""

    places, ranks = ", length", (3,)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each image standardised, then scaled and shifted if `affine`.

    Where statistics are tracked, evaluation uses the running ones.
    """

    places, ranks = ", height, width", (4,)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each volume standardised; as `InstanceNorm2d`."""

    places, ranks = ", depth, height, width", (5,)


def _reset_affine(weight: Tensor | None, bias: Tensor | None) -> None:
    if weight is not None:
        init.ones_(weight)
    if bias is not None:
        init.zeros_(bias)

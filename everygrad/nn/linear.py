"""Linear layers, and the layers that only pass on or reshape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import empty
from everygrad.ops.record.spec import REGISTRY


def check_sizes(layer: str, **sizes: Any) -> None:
    """Refuse a size that is not a positive integer."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{layer}: {name} must be a positive integer, got {value!r}")


class Linear(Module):
    """x @ weight^T + bias over the last axis; weight is (out features, in features).

    >>> import everygrad as eg
    >>> eg.nn.Linear(3, 2)(eg.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes("Linear", in_features=in_features, out_features=out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Parameter(empty((out_features, in_features), dtype, device))
        self.bias = Parameter(empty((out_features,), dtype, device)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new starting values."""
        init.linear_defaults(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Bilinear(Module):
    """x1^T weight[k] x2 + bias[k] for each of the out features; weight is (out, in1, in2).

    >>> import everygrad as eg
    >>> eg.nn.Bilinear(2, 3, 4)(eg.ones((5, 2)), eg.ones((5, 3))).shape
    (5, 4)
    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        sizes = {"in1_features": in1_features, "in2_features": in2_features}
        check_sizes("Bilinear", **sizes, out_features=out_features)
        self.in1_features = in1_features
        self.in2_features = in2_features
        self.out_features = out_features
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(empty(shape, dtype, device))
        self.bias = Parameter(empty((out_features,), dtype, device)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new starting values, uniform within 1 / sqrt(in1_features)."""
        bound = self.in1_features**-0.5
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )


class Identity(Module):
    """x as it is, whatever the layer was made with.

    >>> import everygrad as eg
    >>> eg.nn.Identity(54, unused=True)(eg.ones((2,)))
    tensor([1., 1.])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class Flatten(Module):
    """The axes from start_axis to end_axis made one; by default all but the batch."""

    def __init__(
        self,
        start_axis: int = 1,
        end_axis: int = -1,
        *,
        start_dim: int | None = None,
        end_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.start_axis = start_axis if start_dim is None else start_dim
        self.end_axis = end_axis if end_dim is None else end_dim

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = REGISTRY["flatten"].function(x, self.start_axis, self.end_axis)
        return out

    def extra_repr(self) -> str:
        return f"start_axis={self.start_axis}, end_axis={self.end_axis}"


class Unflatten(Module):
    """One axis made several, of the sizes that are given; one of them may be -1.

    >>> import everygrad as eg
    >>> eg.nn.Unflatten(1, (2, -1))(eg.ones((5, 6))).shape
    (5, 2, 3)
    """

    def __init__(
        self,
        axis: int | None = None,
        unflattened_size: Sequence[int] = (),
        *,
        dim: int | None = None,
    ) -> None:
        super().__init__()
        given = axis if dim is None else dim
        if given is None or not unflattened_size:
            raise ArgumentError("Unflatten: needs an axis and the sizes it becomes")
        self.axis = given
        self.unflattened_size = tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        at = shapes.axis_index(self.axis, x.ndim, "Unflatten")
        sizes = self.unflattened_size
        known = math.prod(n for n in sizes if n != -1)
        if known < 1 or x.shape[at] % known or (-1 not in sizes and known != x.shape[at]):
            raise ShapeError(f"Unflatten: an axis of {x.shape[at]} cannot become {sizes}")
        return x.reshape(*x.shape[:at], *sizes, *x.shape[at + 1 :])

    def extra_repr(self) -> str:
        return f"axis={self.axis}, unflattened_size={self.unflattened_size}"

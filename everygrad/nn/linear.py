"""Linear layers, and the layers that only pass on or reshape."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
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


class Identity(Module):
    """x as it is."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Flatten(Module):
    """The axes from start_axis to end_axis made one; by default all but the batch."""

    def __init__(self, start_axis: int = 1, end_axis: int = -1) -> None:
        super().__init__()
        self.start_axis = start_axis
        self.end_axis = end_axis

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = REGISTRY["flatten"].function(x, self.start_axis, self.end_axis)
        return out

    def extra_repr(self) -> str:
        return f"start_axis={self.start_axis}, end_axis={self.end_axis}"

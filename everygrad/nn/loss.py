"""Losses as modules."""

from __future__ import annotations

from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.tensor import Tensor


class _Loss(Module):
    """What the losses share."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(
                f'{type(self).__name__}: reduction must be "mean", "sum" or "none", '
                f"got {reduction!r}"
            )
        self.reduction = reduction

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(_Loss):
    """The squared difference, averaged, summed or as it is."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.mse_loss(x, target, self.reduction)
        return out


class CrossEntropyLoss(_Loss):
    """The cross entropy of logits, classes along axis 1, with labels or class probabilities.

    >>> import everygrad as eg
    >>> loss = eg.nn.CrossEntropyLoss()
    >>> f"{loss(eg.zeros((2, 4)), eg.tensor([0, 3])):.4f}"
    '1.3863'
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError(
                f"CrossEntropyLoss: label_smoothing must be between 0 and 1, got {label_smoothing}"
            )
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.cross_entropy(
            x, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )
        return out

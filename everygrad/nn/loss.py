"""Losses and distances as modules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.linear import Linear, check_sizes
from everygrad.nn.module import Module
from everygrad.ops.record.keywords import spelled


class _Loss(Module):
    """What the losses share."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):  # PyTorch's oldest words for the reduction
            cls.__init__ = spelled(cls.__init__)  # type: ignore[method-assign]

    @spelled
    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in self.reductions():
            *others, last = (f'"{r}"' for r in self.reductions())
            raise ArgumentError(
                f"{type(self).__name__}: reduction must be {', '.join(others)} or {last}, "
                f"got {reduction!r}"
            )
        self.reduction = reduction

    def reductions(self) -> tuple[str, ...]:
        """What can be made of the losses of the elements."""
        return ("mean", "sum", "none")

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


class MSELoss(_Loss):
    """The squared difference, averaged, summed or as it is."""

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


class NLLLoss(_Loss):
    """Minus the logarithm of a probability that each label names, classes along axis 1."""

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.nll_loss(x, target, self.weight, self.ignore_index, self.reduction)
        return out


class L1Loss(_Loss):
    """The absolute difference, averaged, summed or as it is."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.l1_loss(x, target, self.reduction)
        return out


class SmoothL1Loss(_Loss):
    """The absolute difference less beta / 2; below beta its square / (2 beta)."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        if not beta >= 0:
            raise ArgumentError(f"SmoothL1Loss: beta must not be negative, got {beta!r}")
        self.beta = beta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.smooth_l1_loss(x, target, self.reduction, self.beta)
        return out


class HuberLoss(_Loss):
    """Half the squared difference; beyond delta it goes on as a line."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        if not delta > 0:
            raise ArgumentError(f"HuberLoss: delta must be positive, got {delta!r}")
        self.delta = delta

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.huber_loss(x, target, self.reduction, self.delta)
        return out


class BCELoss(_Loss):
    """The cross entropy of probabilities in [0, 1] with targets in [0, 1]."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.binary_cross_entropy(x, target, self.weight, self.reduction)
        return out


class BCEWithLogitsLoss(_Loss):
    """The cross entropy of sigmoid(x) with targets in [0, 1]; positives count `pos_weight`."""

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.binary_cross_entropy_with_logits(
            x, target, self.weight, self.reduction, self.pos_weight
        )
        return out


class KLDivLoss(_Loss):
    """How far logarithms of probabilities are from a target; "batchmean" is the divergence."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction)
        self.log_target = log_target

    def reductions(self) -> tuple[str, ...]:
        return (*super().reductions(), "batchmean")

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.kl_div(x, target, self.reduction, self.log_target)
        return out


class GaussianNLLLoss(_Loss):
    """Targets under normal distributions with the means and variances that are given."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full = full
        self.eps = eps

    def forward(self, x: Tensor, target: Tensor, var: Any) -> Tensor:
        out: Tensor = F.gaussian_nll_loss(x, target, var, self.full, self.eps, self.reduction)
        return out


class PoissonNLLLoss(_Loss):
    """Counts under Poisson distributions, x being the logarithms of their rates."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        eps: float = 1e-8,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.poisson_nll_loss(
            x, target, self.log_input, self.full, self.eps, self.reduction
        )
        return out


class CTCLoss(_Loss):
    """Minus the logarithm of the probability of label sequences, by any alignment."""

    def __init__(
        self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False
    ) -> None:
        super().__init__(reduction)
        self.blank = blank
        self.zero_infinity = zero_infinity

    def forward(
        self, log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any
    ) -> Tensor:
        out: Tensor = F.ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
        )
        return out


class CosineEmbeddingLoss(_Loss):
    """1 - the cosine of two vectors where target is 1; where it is -1, what is above `margin`."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.cosine_embedding_loss(x1, x2, target, self.margin, self.reduction)
        return out


class MarginRankingLoss(_Loss):
    """max(0, -target (x1 - x2) + margin)."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, x1: Tensor, x2: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.margin_ranking_loss(x1, x2, target, self.margin, self.reduction)
        return out


class TripletMarginLoss(_Loss):
    """max(0, |anchor - positive| - |anchor - negative| + margin), distances by the last axis."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        out: Tensor = F.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )
        return out


class HingeEmbeddingLoss(_Loss):
    """x where target is 1, max(0, margin - x) where it is -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.hinge_embedding_loss(x, target, self.margin, self.reduction)
        return out


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target x)), the target being 1 or -1."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.soft_margin_loss(x, target, self.reduction)
        return out


class MultiMarginLoss(_Loss):
    """The mean over classes of max(0, margin - x[label] + x) ** p, the label's left out."""

    weight: Tensor | None

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Tensor | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.p = p
        self.margin = margin

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.multi_margin_loss(
            x, target, self.p, self.margin, self.weight, self.reduction
        )
        return out


class MultiLabelSoftMarginLoss(_Loss):
    """The mean over classes, the last axis, of the cross entropy of sigmoid(x) with target."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.multilabel_soft_margin_loss(x, target, self.weight, self.reduction)
        return out


class MultiLabelMarginLoss(_Loss):
    """The sum of max(0, 1 - x[label] + x) over labels and other classes, over the classes.

    >>> import everygrad as eg
    >>> loss = eg.nn.MultiLabelMarginLoss()
    >>> loss(eg.tensor([[0.1, 0.2, 0.4, 0.8]]), eg.tensor([[3, 0, -1, 1]]))
    tensor(0.85)
    """

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        out: Tensor = F.multilabel_margin_loss(x, target, self.reduction)
        return out


class TripletMarginWithDistanceLoss(_Loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for a function d.

    >>> import everygrad as eg
    >>> loss = eg.nn.TripletMarginWithDistanceLoss(distance_function=lambda a, b: (a - b).abs())
    >>> loss(eg.zeros((1,)), eg.ones((1,)), eg.zeros((1,)))
    tensor(2.)
    """

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        if not margin > 0:
            raise ArgumentError(
                f"TripletMarginWithDistanceLoss: margin must be positive, got {margin!r}"
            )
        self.distance_function = distance_function
        self.margin = margin
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        out: Tensor = F.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            self.distance_function,
            self.margin,
            self.swap,
            self.reduction,
        )
        return out


class LinearCrossEntropyLoss(_Loss):
    """The cross entropy of a Linear's logits with labels or class probabilities.

    `out_features` gives a loss for each of several places: logits (batch, classes, *places).

    >>> import everygrad as eg
    >>> loss = eg.nn.LinearCrossEntropyLoss(3, 4)
    >>> loss(eg.zeros((2, 3)), eg.tensor([0, 3])).shape
    ()
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: str = "cpu",
        dtype: Any = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ) -> None:
        super().__init__(reduction)
        check_sizes("LinearCrossEntropyLoss", num_classes=num_classes)
        if not 0 <= label_smoothing <= 1:
            raise ArgumentError(
                f"LinearCrossEntropyLoss: label_smoothing must be between 0 and 1, "
                f"got {label_smoothing}"
            )
        self.num_classes = num_classes
        self.out_features = tuple(out_features)
        self.register_buffer("weight", weight)
        rows = num_classes * math.prod(self.out_features)
        self.linear = Linear(in_features, rows, bias, device, dtype)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.options = options

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        shape, bias = (self.num_classes, *self.out_features), self.linear.bias
        return F.linear_cross_entropy(
            x,
            self.linear.weight.reshape(*shape, -1),
            target,
            linear_bias=None if bias is None else bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
        )


# --- distances -----------------------------------------------------------------------------------


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along an axis.

    >>> import everygrad as eg
    >>> eg.nn.CosineSimilarity(dim=0)(eg.tensor([3.0, 4.0]), eg.tensor([3.0, 4.0]))
    tensor(1.)
    """

    def __init__(self, axis: int = 1, eps: float = 1e-8, *, dim: int | None = None) -> None:
        super().__init__()
        self.axis = axis if dim is None else dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        out: Tensor = F.cosine_similarity(x1, x2, self.axis, self.eps)
        return out

    def extra_repr(self) -> str:
        return f"axis={self.axis}, eps={self.eps}"


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis.

    >>> import everygrad as eg
    >>> eg.nn.PairwiseDistance(p=1, eps=0.0)(eg.zeros((2, 3)), eg.ones((2, 3)))
    tensor([3., 3.])
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        out: Tensor = F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)
        return out

    def extra_repr(self) -> str:
        return f"p={self.norm}, eps={self.eps}"

"""Softmax over many classes, the rare ones in clusters of smaller width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn import functional as F
from everygrad.nn.containers import ModuleList, Sequential
from everygrad.nn.linear import Linear, check_sizes
from everygrad.nn.module import Module
from everygrad.ops.elementwise.basic import clamp, where
from everygrad.ops.index.gather import CHECK_RANGE, gather
from everygrad.ops.reduce.reductions import argmax
from everygrad.ops.shape.joining import concat


class ASMoutput(NamedTuple):
    """The logarithm of each target's probability, and the mean of their negatives."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """The log softmax of many classes, sorted by how often they come (Grave et al. 2017).

    The first `cutoffs[0]` classes and one entry for each further cluster are the head; a cluster's
    classes get their logits through fewer features, `div_value` times fewer from one to the next.

    >>> import everygrad as eg
    >>> layer = eg.nn.AdaptiveLogSoftmaxWithLoss(16, 100, cutoffs=[10, 50])
    >>> layer(eg.ones((3, 16)), eg.tensor([0, 20, 99])).output.shape
    (3,)
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = "AdaptiveLogSoftmaxWithLoss"
        check_sizes(name, in_features=in_features, n_classes=n_classes)
        edges = list(cutoffs)
        rising = edges == sorted(set(edges)) and all(type(c) is int for c in edges)
        if not edges or not rising or edges[0] < 1 or edges[-1] > n_classes - 1:
            raise ArgumentError(
                f"{name}: cutoffs must be integers that rise from 1 to at most n_classes - 1 = "
                f"{n_classes - 1}, got {cutoffs!r}"
            )
        if not div_value > 0:
            raise ArgumentError(f"{name}: div_value must be positive, got {div_value!r}")
        self.in_features = in_features
        self.n_classes = n_classes
        self.cutoffs = [*edges, n_classes]
        self.div_value = div_value
        self.head_bias = head_bias
        self.shortlist_size = edges[0]
        self.n_clusters = len(edges)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for i in range(self.n_clusters):
            width = int(in_features // div_value ** (i + 1))
            check_sizes(name, **{f"the width of cluster {i}": width})
            classes = self.cutoffs[i + 1] - self.cutoffs[i]
            self.tail.append(
                Sequential(
                    Linear(in_features, width, False, device, dtype),
                    Linear(width, classes, False, device, dtype),
                )
            )

    def reset_parameters(self) -> None:
        """Draw new starting values."""
        self.head.reset_parameters()
        for layer in self.tail.modules():
            if isinstance(layer, Linear):
                layer.reset_parameters()

    def _check(self, x: Tensor, target: Tensor | None = None) -> None:
        name = type(self).__name__
        ranks = (2,) if target is None else (1, 2)
        if x.ndim not in ranks or x.shape[-1] != self.in_features:
            raise ShapeError(f"{name}: takes (batch, {self.in_features}), got {x.shape}")
        if target is not None and target.shape != x.shape[:-1]:
            raise ShapeError(f"{name}: target {target.shape} must have shape {x.shape[:-1]}")
        if target is not None and not target.dtype.is_integer:
            raise DtypeError(f"{name}: labels must be integers, got {target.dtype}")

    def forward(self, input: Tensor, target: Tensor) -> ASMoutput:
        self._check(input, target)
        alone = input.ndim == 1
        x = input.expand_dims(0) if alone else input
        labels = (target.expand_dims(0) if alone else target).astype(dtypes.int64)
        what = "AdaptiveLogSoftmaxWithLoss: label"
        labels = apply(CHECK_RANGE, labels, size=self.n_classes, what=what)
        head = F.log_softmax(self.head(x))
        # all clusters for all examples: which of them counts is known by values only
        place = labels
        found: Tensor | None = None
        for i, (inner, low) in enumerate(zip(self.tail, self.cutoffs, strict=False)):
            high = self.cutoffs[i + 1]
            here = (labels >= low) & (labels < high)
            logs = F.log_softmax(inner(x))
            own = gather(logs, clamp(labels - low, 0, high - low - 1).expand_dims(1), axis=1)
            part = where(here, own.squeeze(1), 0.0)
            found = part if found is None else found + part
            place = where(here, self.shortlist_size + i, place)
        out = gather(head, place.expand_dims(1), axis=1).squeeze(1)
        out = out if found is None else out + found
        loss = (-out).mean()
        return ASMoutput(out.squeeze(0) if alone else out, loss)

    def log_prob(self, input: Tensor) -> Tensor:
        """The logarithms of the probabilities of all classes: (batch, n_classes)."""
        self._check(input)
        head = F.log_softmax(self.head(input))
        parts = [head[:, : self.shortlist_size]]
        for i, inner in enumerate(self.tail):
            at = self.shortlist_size + i
            parts.append(F.log_softmax(inner(input)) + head[:, at : at + 1])
        out: Tensor = concat(parts, axis=1)
        return out

    def predict(self, input: Tensor) -> Tensor:
        """The most probable class of each example."""
        out: Tensor = argmax(self.log_prob(input), axis=1)
        return out

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.n_classes}, cutoffs={self.cutoffs[:-1]}"

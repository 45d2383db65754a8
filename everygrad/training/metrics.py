"""Metrics over many batches: what each batch adds is counted by ops, and kept exactly.

Counts are integers, and sums of losses float64 numbers, so that the result does not depend on how
the examples were cut into batches. An update never waits for a device; `compute` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.search import bincount, searchsorted
from everygrad.ops.index.sort import sort, topk
from everygrad.ops.python.creation import tensor
from everygrad.ops.shape.joining import concat


class Metric:
    """The base: `update(output, target)` for each batch, then `compute()`; `reset()` begins anew.

    A subclass gives `_of_batch`, tensors that each batch adds, and `_result`, of their totals.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, ...]] = []
        self._totals: list[Any] | None = None

    def reset(self) -> None:
        """Forget all batches."""
        self._pending, self._totals = [], None

    def update(self, output: Any, target: Any) -> None:
        """Count one batch: what a model gave, and what it should have given."""
        name = type(self).__name__
        for what, value in (("output", output), ("target", target)):
            if not isinstance(value, Tensor):
                raise DtypeError(
                    f"{name}.update: {what} must be a tensor, got {type(value).__name__}"
                )
        with no_grad():
            self._pending.append(self._of_batch(output.detach(), target.detach()))

    def compute(self) -> Any:
        """The metric of all batches since the last reset."""
        self._fold()
        if self._totals is None:
            raise ArgumentError(f"{type(self).__name__}.compute: no batch was counted yet")
        return self._result(*self._totals)

    def _fold(self) -> None:
        """Add what is pending to the totals, as NumPy arrays of int64 and float64."""
        for parts in self._pending:
            read = [p.to("cpu").numpy() for p in parts]
            wide = [r.astype(np.float64 if r.dtype.kind == "f" else np.int64) for r in read]
            old = self._totals
            self._totals = wide if old is None else [a + b for a, b in zip(old, wide, strict=True)]
        self._pending = []

    def _of_batch(self, output: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        raise NotImplementedError(f"{type(self).__name__} defines no _of_batch()")

    def _result(self, *totals: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} defines no _result()")

    def state_dict(self) -> dict[str, Any]:
        """The totals, to go on with."""
        self._fold()
        return {"totals": None if self._totals is None else [t.tolist() for t in self._totals]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from the totals of `state_dict`."""
        if "totals" not in state_dict:
            raise ArgumentError(
                f"{type(self).__name__}.load_state_dict: takes what its state_dict() gave"
            )
        held = state_dict["totals"]
        self._pending = []
        self._totals = None if held is None else [np.asarray(t) for t in held]

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _classes(name: str, output: Tensor, target: Tensor) -> Tensor:
    """The class that an output says: the largest along axis 1, or above 0 of one logit."""
    if output.ndim == target.ndim + 1:
        return output.argmax(axis=1)
    if output.shape == target.shape:
        return (output > 0).astype(dtypes.int64) if output.dtype.is_float else output
    raise ShapeError(
        f"{name}.update: output {output.shape} does not fit target {target.shape}; it has classes "
        "along axis 1, or one logit for each target"
    )


class Accuracy(Metric):
    """The share of targets that are hit; `ignore_index` marks targets that do not count.

    The output has a score for each class along axis 1, one logit for two classes, or classes.

    >>> import everygrad as eg
    >>> accuracy = eg.training.metrics.Accuracy()
    >>> accuracy.update(eg.tensor([[0.1, 0.9], [0.8, 0.2]]), eg.tensor([1, 1]))
    >>> accuracy.compute()
    0.5
    """

    def __init__(self, ignore_index: int | None = None) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def _hits(self, output: Tensor, target: Tensor) -> Tensor:
        return _classes(type(self).__name__, output, target) == target

    def _of_batch(self, output: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        hits = self._hits(output, target)
        counted = target == target if self.ignore_index is None else target != self.ignore_index
        return (
            (hits & counted).astype(dtypes.int64).sum(),
            counted.astype(dtypes.int64).sum(),
        )

    def _result(self, *totals: Any) -> float:
        hits, count = totals
        return float(hits) / float(count) if count else math.nan


class TopKAccuracy(Accuracy):
    """The share of targets that are among the k largest scores along axis 1.

    >>> import everygrad as eg
    >>> top2 = eg.training.metrics.TopKAccuracy(2)
    >>> top2.update(eg.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]]), eg.tensor([2, 2]))
    >>> top2.compute()
    0.5
    """

    def __init__(self, k: int = 5, ignore_index: int | None = None) -> None:
        super().__init__(ignore_index)
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ArgumentError(f"TopKAccuracy: k must be an integer of at least 1, got {k!r}")
        self.k = k

    def _hits(self, output: Tensor, target: Tensor) -> Tensor:
        if output.ndim != target.ndim + 1 or output.shape[1] < self.k:
            raise ShapeError(
                f"TopKAccuracy.update: needs {self.k} scores or more along axis 1, got output "
                f"{output.shape} for target {target.shape}"
            )
        best = topk(output, self.k, axis=1).indices
        return (best == target.expand_dims(1)).any(axis=1)


class ConfusionMatrix(Metric):
    """How often each class (row) was taken for each other (column).

    >>> import everygrad as eg
    >>> matrix = eg.training.metrics.ConfusionMatrix(2)
    >>> matrix.update(eg.tensor([0, 1, 1]), eg.tensor([0, 0, 1]))
    >>> matrix.compute().tolist()
    [[1, 1], [0, 1]]
    """

    def __init__(self, num_classes: int, ignore_index: int | None = None) -> None:
        super().__init__()
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
            raise ArgumentError(
                f"{type(self).__name__}: num_classes must be an integer of at least 2, got "
                f"{num_classes!r}"
            )
        self.num_classes = num_classes
        self.ignore_index = ignore_index

    def _of_batch(self, output: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        size = self.num_classes
        said = _classes(type(self).__name__, output, target).reshape(-1)
        wanted = target.reshape(-1)
        wrong = (said < 0) | (said >= size) | (wanted < 0) | (wanted >= size)
        # two places more, which are cut off: what is left out, and what is no class
        place = where(wrong, size * size + 1, wanted * size + said)
        if self.ignore_index is not None:
            place = where(wanted == self.ignore_index, size * size, place)
        counts = bincount(place.astype(dtypes.int64), minlength=size * size + 2)
        if int(counts[size * size + 1].item()):
            raise ArgumentError(
                f"{type(self).__name__}.update: classes are 0 to {size - 1}, got targets up to "
                f"{int(wanted.max().item())} and outputs up to {int(said.max().item())}"
            )
        return (counts[: size * size].reshape((size, size)),)

    def _result(self, *totals: Any) -> Any:
        return tensor(totals[0])


def _ratio(top: Any, bottom: Any) -> Any:
    """top / bottom, 0 where there is nothing to divide by."""
    return np.divide(top, bottom, out=np.zeros(np.shape(top)), where=np.asarray(bottom) > 0)


class _OfClasses(ConfusionMatrix):
    """A number for each class, and how they are averaged."""

    def __init__(
        self, num_classes: int = 2, average: str | None = "macro", ignore_index: int | None = None
    ) -> None:
        super().__init__(num_classes, ignore_index)
        if average not in ("macro", "micro", "weighted", "binary", None):
            raise ArgumentError(
                f'{type(self).__name__}: average must be "macro", "micro", "weighted", "binary" or '
                f"None, got {average!r}"
            )
        if average == "binary" and num_classes != 2:
            raise ArgumentError(
                f'{type(self).__name__}: average="binary" is for 2 classes, not {num_classes}'
            )
        self.average = average

    def _score(self, hits: Any, said: Any, there: Any) -> Any:
        raise NotImplementedError

    def _result(self, *totals: Any) -> Any:
        matrix = totals[0].astype(np.float64)
        hits, said, there = np.diag(matrix), matrix.sum(0), matrix.sum(1)
        if self.average == "micro":
            return float(self._score(hits.sum(), said.sum(), there.sum()))
        each = self._score(hits, said, there)
        if self.average == "binary":
            return float(each[1])
        if self.average is None:
            return tensor(each)
        if self.average == "weighted":
            return float((each * there).sum() / there.sum()) if there.sum() else math.nan
        seen = (said + there) > 0  # a class that never comes up has no score
        return float(each[seen].mean()) if seen.any() else math.nan


class Precision(_OfClasses):
    """Of what was taken for a class, the share that is of it, averaged over classes.

    >>> import everygrad as eg
    >>> precision = eg.training.metrics.Precision(2, average="binary")
    >>> precision.update(eg.tensor([1, 1, 0]), eg.tensor([1, 0, 1]))
    >>> precision.compute()
    0.5
    """

    def _score(self, hits: Any, said: Any, there: Any) -> Any:
        return _ratio(hits, said)


class Recall(_OfClasses):
    """Of what is of a class, the share that was taken for it, averaged over classes.

    >>> import everygrad as eg
    >>> recall = eg.training.metrics.Recall(2, average="binary")
    >>> recall.update(eg.tensor([1, 1, 0]), eg.tensor([1, 0, 1]))
    >>> recall.compute()
    0.5
    """

    def _score(self, hits: Any, said: Any, there: Any) -> Any:
        return _ratio(hits, there)


class F1(_OfClasses):
    """The harmonic mean of precision and recall, averaged over classes as scikit-learn does.

    >>> import everygrad as eg
    >>> f1 = eg.training.metrics.F1(2, average="binary")
    >>> f1.update(eg.tensor([1, 1, 0]), eg.tensor([1, 0, 1]))
    >>> f1.compute()
    0.5
    """

    def _score(self, hits: Any, said: Any, there: Any) -> Any:
        return _ratio(2.0 * hits, said + there)


class AUC(Metric):
    """The area under the ROC curve, ties included: exact, so it keeps all scores until `reset`.

    The output is one score for each target of 0 or 1, or two along axis 1, of which the second
    less the first counts.

    >>> import everygrad as eg
    >>> auc = eg.training.metrics.AUC()
    >>> auc.update(eg.tensor([0.1, 0.4, 0.35, 0.8]), eg.tensor([0, 0, 1, 1]))
    >>> auc.compute()
    0.75
    """

    def _of_batch(self, output: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        if output.ndim == target.ndim + 1 and output.shape[1] == 2:
            output = output[:, 1] - output[:, 0]
        if output.shape != target.shape:
            raise ShapeError(
                f"AUC.update: output {output.shape} does not fit target {target.shape}; it has one "
                "score for each target, or two along axis 1"
            )
        return (output.reshape(-1), (target.reshape(-1) > 0).astype(dtypes.int64))

    def _fold(self) -> None:
        if len(self._pending) + (self._totals is not None) < 2 and self._totals is not None:
            return
        held = [] if self._totals is None else [tuple(tensor(t) for t in self._totals)]
        parts = [*held, *(tuple(p.to("cpu") for p in pair) for pair in self._pending)]
        if parts:
            self._totals = [concat(column).numpy() for column in zip(*parts, strict=True)]
        self._pending = []

    def _result(self, *totals: Any) -> float:
        scores, positive = tensor(totals[0]), tensor(totals[1])
        ordered = sort(scores)
        # twice the rank of each, where equal scores share the mean of their places: an integer
        low = searchsorted(ordered, scores, side="left").astype(dtypes.int64)
        high = searchsorted(ordered, scores, side="right").astype(dtypes.int64)
        ranks = int(((low + high + 1) * positive).sum().item())
        ones = int(positive.sum().item())
        zeros = len(totals[1]) - ones
        if not ones or not zeros:
            return math.nan
        return (ranks - ones * (ones + 1)) / (2 * ones * zeros)


class Mean(Metric):
    """The mean of numbers, each counted as often as its batch has examples.

    >>> import everygrad as eg
    >>> mean = eg.training.metrics.Mean()
    >>> mean.add(eg.tensor(1.0), 3)
    >>> mean.add(eg.tensor(5.0), 1)
    >>> mean.compute()
    2.0
    """

    def __init__(self) -> None:
        super().__init__()
        self._values: list[tuple[Tensor, int]] = []

    def add(self, value: Tensor, weight: int = 1) -> None:
        """Count a 0-d tensor `weight` times."""
        self._values.append((value.detach(), weight))

    def update(self, output: Any, target: Any) -> None:
        self.add(output, target)

    def reset(self) -> None:
        super().reset()
        self._values = []

    def _fold(self) -> None:
        total, count = (0.0, 0) if self._totals is None else self._totals
        for value, weight in self._values:
            total, count = total + float(value.item()) * weight, count + weight
        if count:
            self._totals = [np.asarray(total), np.asarray(count)]
        self._values = []

    def _result(self, *totals: Any) -> float:
        return float(totals[0]) / float(totals[1])


class Perplexity(Metric):
    """exp of the mean negative log likelihood of classes, from scores along axis 1.

    >>> import everygrad as eg
    >>> perplexity = eg.training.metrics.Perplexity()
    >>> perplexity.update(eg.zeros((3, 4)), eg.tensor([0, 1, 2]))
    >>> round(perplexity.compute(), 5)
    4.0
    """

    def __init__(self, ignore_index: int | None = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index

    def _of_batch(self, output: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        if output.ndim != target.ndim + 1 or output.shape[:1] != target.shape[:1]:
            raise ShapeError(
                f"Perplexity.update: output {output.shape} does not fit target {target.shape}; it "
                "has scores along axis 1"
            )
        counted = target == target if self.ignore_index is None else target != self.ignore_index
        place = (target * counted.astype(target.dtype)).expand_dims(1)
        logs = output.log_softmax(1).gather(place.astype(dtypes.int64), axis=1).squeeze(1)
        lost = -(logs * counted.astype(logs.dtype))
        # a number for each example: float64 adds them up, where float32 would lose digits
        rows = lost.reshape((lost.shape[0], -1)).sum(axis=1)
        return rows, counted.astype(dtypes.int64).sum()

    def _fold(self) -> None:
        for rows, count in self._pending:
            total = rows.to("cpu").numpy().astype(np.float64).sum()
            seen = int(count.item())
            old = (0.0, 0) if self._totals is None else self._totals
            self._totals = [np.asarray(old[0] + total), np.asarray(old[1] + seen)]
        self._pending = []

    def _result(self, *totals: Any) -> float:
        return math.exp(float(totals[0]) / float(totals[1])) if totals[1] else math.nan


__all__ = [
    "AUC",
    "F1",
    "Accuracy",
    "ConfusionMatrix",
    "Mean",
    "Metric",
    "Perplexity",
    "Precision",
    "Recall",
    "TopKAccuracy",
]

__getattr__ = _answering(__name__)

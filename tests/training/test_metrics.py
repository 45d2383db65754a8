"""Metrics against scikit-learn, however the examples are cut into batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as referee

import everygrad as eg
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.training import metrics as M  # short, as nn.functional is F

RNG = np.random.default_rng(11)
CLASSES = 5
SCORES = RNG.normal(size=(203, CLASSES)).astype(np.float32)
TARGETS = RNG.integers(0, CLASSES, 203)
BINARY = (RNG.normal(size=203) > 0.3).astype(np.int64)
# rounded, so that many scores are equal: ties count half
LOGITS = np.round(RNG.normal(size=203) + BINARY, 1).astype(np.float32)
SAID = SCORES.argmax(1)


def log_loss(scores: Any, targets: Any) -> float:
    wide = scores.astype(np.float64)
    logs = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    return float(-logs[np.arange(len(targets)), targets].mean())


TABLE: dict[str, tuple[Callable[[], M.Metric], Any, Any, Any]] = {
    "accuracy": (M.Accuracy, SCORES, TARGETS, referee.accuracy_score(TARGETS, SAID)),
    "accuracy of logits": (M.Accuracy, LOGITS, BINARY, ((LOGITS > 0) == BINARY).mean()),
    "accuracy of classes": (M.Accuracy, SAID, TARGETS, referee.accuracy_score(TARGETS, SAID)),
    "top 2": (
        lambda: M.TopKAccuracy(2),
        SCORES,
        TARGETS,
        referee.top_k_accuracy_score(TARGETS, SCORES, k=2, labels=range(CLASSES)),
    ),
    "auc": (M.AUC, LOGITS, BINARY, referee.roc_auc_score(BINARY, LOGITS)),
    "perplexity": (M.Perplexity, SCORES, TARGETS, np.exp(log_loss(SCORES, TARGETS))),
    "confusion": (
        lambda: M.ConfusionMatrix(CLASSES),
        SCORES,
        TARGETS,
        referee.confusion_matrix(TARGETS, SAID),
    ),
}
for _average in ("macro", "micro", "weighted", None):
    for _name, _kind, _score in (
        ("f1", M.F1, referee.f1_score),
        ("precision", M.Precision, referee.precision_score),
        ("recall", M.Recall, referee.recall_score),
    ):
        TABLE[f"{_name} {_average}"] = (
            lambda kind=_kind, average=_average: kind(CLASSES, average),
            SCORES,
            TARGETS,
            _score(TARGETS, SAID, average=_average),
        )
TABLE["f1 binary"] = (
    lambda: M.F1(2, "binary"),
    LOGITS,
    BINARY,
    referee.f1_score(BINARY, LOGITS > 0),
)


@pytest.mark.parametrize("batch", [203, 50, 1])
@pytest.mark.parametrize("name", TABLE)
def test_against_scikit_learn(name: str, batch: int, device: str) -> None:
    if batch == 1 and device != "cpu":
        batch = 29  # enough cuts, fewer launches
    make, outputs, targets, want = TABLE[name]
    metric = make()
    for i in range(0, len(targets), batch):
        chosen = slice(i, i + batch)
        output = eg.tensor(outputs[chosen], device=device)
        metric.update(output, eg.tensor(targets[chosen], device=device))
    got = metric.compute()
    tolerance = 1e-6 if name == "perplexity" else 1e-12  # its logarithms are float32's
    np.testing.assert_allclose(np.asarray(got), want, rtol=tolerance)


@pytest.mark.parametrize("name", TABLE)
def test_state_and_reset(name: str) -> None:
    make, outputs, targets, _ = TABLE[name]
    whole, first = make(), make()
    halves = slice(0, 100), slice(100, None)
    for half in halves:
        whole.update(eg.tensor(outputs[half]), eg.tensor(targets[half]))
    first.update(eg.tensor(outputs[halves[0]]), eg.tensor(targets[halves[0]]))
    second = make()
    second.load_state_dict(first.state_dict())
    second.update(eg.tensor(outputs[halves[1]]), eg.tensor(targets[halves[1]]))
    np.testing.assert_allclose(
        np.asarray(second.compute()), np.asarray(whole.compute()), rtol=1e-14
    )
    whole.reset()
    with pytest.raises(ArgumentError, match="no batch was counted yet"):
        whole.compute()


def test_what_is_left_out() -> None:
    output, target = eg.tensor(SCORES[:6]), eg.tensor([*TARGETS[:4].tolist(), -100, -100])
    for make in (M.Accuracy, M.Perplexity, lambda i: M.F1(CLASSES, "micro", i)):
        some, few = make(-100), make(-100)
        some.update(output, target)
        few.update(output[:4], target[:4])
        assert some.compute() == pytest.approx(few.compute(), rel=1e-12)


def test_sequences_have_classes_along_axis_1() -> None:
    scores, targets = RNG.normal(size=(3, CLASSES, 7)), RNG.integers(0, CLASSES, (3, 7))
    accuracy, perplexity = M.Accuracy(), M.Perplexity()
    for metric in (accuracy, perplexity):
        metric.update(eg.tensor(scores), eg.tensor(targets))
    assert accuracy.compute() == (scores.argmax(1) == targets).mean()
    flat = np.moveaxis(scores, 1, -1).reshape(-1, CLASSES)
    assert perplexity.compute() == pytest.approx(np.exp(log_loss(flat, targets.reshape(-1))))


def test_one_class_alone_has_no_auc() -> None:
    auc = M.AUC()
    auc.update(eg.tensor([0.1, 0.2]), eg.tensor([1, 1]))
    assert np.isnan(auc.compute())


REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: M.TopKAccuracy(0), ArgumentError, "TopKAccuracy: k must be an integer of at least 1"),
    (lambda: M.F1(1), ArgumentError, "F1: num_classes must be an integer of at least 2, got 1"),
    (lambda: M.F1(3, "mean"), ArgumentError, "F1: average must be"),
    (lambda: M.F1(3, "binary"), ArgumentError, 'F1: average="binary" is for 2 classes, not 3'),
    (
        lambda: M.ConfusionMatrix(3).update(eg.tensor([0, 1]), eg.tensor([0, 3])),
        ArgumentError,
        "ConfusionMatrix.update: classes are 0 to 2, got targets up to 3",
    ),
    (
        lambda: M.ConfusionMatrix(3).update(eg.tensor([0, 5]), eg.tensor([0, 0])),
        ArgumentError,
        "outputs up to 5",
    ),
    (
        lambda: M.Accuracy().update(eg.zeros((2, 3)), eg.zeros((2, 3, 1))),
        ShapeError,
        "Accuracy.update: output (2, 3) does not fit target (2, 3, 1)",
    ),
    (
        lambda: M.TopKAccuracy(4).update(eg.zeros((2, 3)), eg.tensor([0, 1])),
        ShapeError,
        "TopKAccuracy.update: needs 4 scores or more along axis 1, got output (2, 3)",
    ),
    (lambda: M.Accuracy().update([1], eg.tensor([1])), DtypeError, "output must be a tensor"),
    (lambda: M.Accuracy().load_state_dict({}), ArgumentError, "takes what its state_dict() gave"),
]


@pytest.mark.parametrize("row", REFUSALS, ids=lambda r: r[2][:40])
def test_refused_by_name(row: tuple[Callable[[], Any], type[Exception], str]) -> None:
    call, error, message = row
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)

"""Losses against PyTorch: values and derivatives, twice; and what must not broadcast."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn as tnn

import everygrad as eg
from everygrad import nn
from everygrad.errors import ArgumentError, OutOfRangeError, ShapeError
from tests.ops.test_convolutions import agree
from tests.support.checks import close, fitted, is_narrow, values

RNG = np.random.default_rng(11)
REDUCTIONS = ("none", "mean", "sum")


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape)


def shares(*shape: int) -> Any:
    """Numbers within (0, 1)."""
    return RNG.uniform(0.05, 0.95, shape)


def signs(*shape: int) -> Any:
    return RNG.choice([-1, 1], shape)


def distributions(*shape: int) -> Any:
    """Probabilities along axis 1."""
    made = RNG.uniform(0.1, 1, shape)
    return made / made.sum(axis=1, keepdims=True)


# name, arrays that have derivatives, arrays that have none, options
CASES: list[tuple[str, list[Any], list[Any], dict[str, Any]]] = [
    ("mse_loss", [numbers(3, 4), numbers(3, 4)], [], {}),
    ("l1_loss", [numbers(3, 4), numbers(3, 4)], [], {}),
    ("smooth_l1_loss", [numbers(3, 4), numbers(3, 4)], [], {"beta": 0.7}),
    ("smooth_l1_loss", [numbers(3, 4), numbers(3, 4)], [], {"beta": 0.0}),
    ("huber_loss", [numbers(3, 4), numbers(3, 4)], [], {"delta": 0.4}),
    ("binary_cross_entropy", [shares(3, 4)], [shares(3, 4)], {}),
    ("binary_cross_entropy", [shares(3, 4)], [shares(3, 4), shares(4)], {}),
    ("binary_cross_entropy_with_logits", [5 * numbers(3, 4), shares(3, 4)], [], {}),
    ("kl_div", [numbers(3, 4), shares(3, 4)], [], {}),
    ("kl_div", [numbers(3, 4), numbers(3, 4)], [], {"log_target": True}),
    ("poisson_nll_loss", [numbers(3, 4)], [3 * shares(3, 4)], {"full": True}),
    ("poisson_nll_loss", [shares(3, 4)], [shares(3, 4)], {"log_input": False}),
    ("gaussian_nll_loss", [numbers(3, 4), numbers(3, 4), shares(3, 1)], [], {"full": True}),
    ("cosine_embedding_loss", [numbers(3, 4), numbers(3, 4)], [signs(3)], {"margin": -0.2}),
    ("triplet_margin_loss", [numbers(3, 4) for _ in "xyz"], [], {"margin": 2.0}),
    ("triplet_margin_loss", [numbers(3, 4) for _ in "xyz"], [], {"p": 1.5, "swap": True}),
    ("margin_ranking_loss", [numbers(5), numbers(5)], [signs(5)], {"margin": 0.5}),
    ("hinge_embedding_loss", [numbers(3, 4)], [signs(3, 4)], {"margin": 0.8}),
    ("soft_margin_loss", [numbers(3, 4)], [signs(3, 4)], {}),
    ("multi_margin_loss", [numbers(3, 4)], [RNG.integers(0, 4, 3)], {"p": 2}),
    ("multi_margin_loss", [numbers(4)], [np.array(2)], {}),
    ("multilabel_soft_margin_loss", [numbers(3, 4)], [RNG.integers(0, 2, (3, 4))], {}),
    ("nll_loss", [numbers(3, 4, 2)], [RNG.integers(0, 4, (3, 2)), shares(4)], {}),
    ("nll_loss", [numbers(4)], [np.array(3)], {}),
    ("cross_entropy", [numbers(3, 4)], [RNG.integers(0, 4, 3)], {}),
    ("cross_entropy", [numbers(3, 4, 2, 2)], [RNG.integers(0, 4, (3, 2, 2)), shares(4)], {}),
    ("cross_entropy", [numbers(5, 4)], [RNG.integers(0, 4, 5)], {"ignore_index": 1}),
    ("cross_entropy", [numbers(5, 4)], [RNG.integers(0, 4, 5), shares(4)],
     {"ignore_index": 2, "label_smoothing": 0.3}),
    ("cross_entropy", [numbers(3, 4, 2), distributions(3, 4, 2)], [], {"label_smoothing": 0.2}),
    ("cross_entropy", [numbers(3, 4), distributions(3, 4)], [shares(4)], {}),
]  # fmt: skip
ONCE = {"multi_margin_loss"}  # torch has no second derivative of it
NAMES = [f"{name}-{i}" for i, (name, *_) in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_against_pytorch(case: Any) -> None:
    name, moving, still, options = case
    ours, theirs = getattr(eg, name), getattr(F, name)
    here, there = [eg.tensor(a) for a in still], [torch.tensor(a) for a in still]
    if name == "multilabel_soft_margin_loss":
        there = [t.double() for t in there]
    for reduction in REDUCTIONS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's remarks about "mean" of kl_div
            agree(
                lambda *t, r=reduction: ours(*t, *here, **options, reduction=r),
                lambda *t, r=reduction: theirs(*t, *there, **options, reduction=r),
                *moving,
                twice=name not in ONCE,
            )


def test_batchmean_and_weights() -> None:
    x, t = numbers(3, 4), shares(3, 4)
    agree(
        lambda x, t: eg.kl_div(x, t, "batchmean"),
        lambda x, t: F.kl_div(x, t, reduction="batchmean"),
        x,
        t,
    )
    w, p = shares(4), 3 * shares(4)
    agree(
        lambda x: eg.binary_cross_entropy_with_logits(
            x, eg.tensor(t), eg.tensor(w), pos_weight=eg.tensor(p)
        ),
        lambda x: F.binary_cross_entropy_with_logits(
            x, torch.tensor(t), torch.tensor(w), pos_weight=torch.tensor(p)
        ),
        x,
    )
    agree(
        lambda x: eg.multi_margin_loss(x, eg.tensor([0, 3, 1]), weight=eg.tensor(w)),
        lambda x: F.multi_margin_loss(x, torch.tensor([0, 3, 1]), weight=torch.tensor(w)),
        x,
        twice=False,
    )


def test_gaussian_variance(device: str) -> None:
    """A number, and a variance below eps, whose derivative is that of eps."""
    x, t = (eg.tensor(fitted(numbers(3), device), device=device) for _ in range(2))
    one = eg.gaussian_nll_loss(x, t, 1.0)
    close(one, eg.gaussian_nll_loss(x, t, eg.ones((3,), x.dtype, device)), 1e-12)
    var = np.array([1e-9, 0.5])
    agree(
        lambda v: eg.gaussian_nll_loss(eg.ones((2,), "float64"), eg.zeros((2,), "float64"), v),
        lambda v: F.gaussian_nll_loss(
            torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), v
        ),
        var,
        twice=False,
    )


def test_certain_predictions(device: str) -> None:
    """Wrong and certain: finite, as PyTorch's; right and certain: no NaN."""
    for dtype in ("float32", "float16"):
        x = eg.tensor([0.0, 1.0, 0.0, 1.0], dtype, device, requires_grad=True)
        t = eg.tensor([1.0, 0.0, 0.0, 1.0], dtype, device)
        loss = eg.binary_cross_entropy(x, t, reduction="none")
        assert loss.tolist() == [100.0, 100.0, 0.0, 0.0]
        loss.backward(eg.ones_like(loss))
        got = values(x.grad).astype(np.float64)
        assert not np.isnan(got).any()
        assert got[2:].tolist() == [1.0, -1.0]
    far = eg.tensor([-1000.0, 1000.0], device=device, requires_grad=True)
    loss = eg.binary_cross_entropy_with_logits(far, eg.tensor([1.0, 0.0], device=device))
    assert loss.item() == 1000.0
    loss.backward()
    assert far.grad.tolist() == [-0.5, 0.5]


def test_distances() -> None:
    x, y = numbers(3, 4), numbers(3, 4)
    agree(lambda *t: eg.cosine_similarity(*t), lambda *t: F.cosine_similarity(*t), x, y)
    agree(
        lambda *t: eg.cosine_similarity(*t, axis=0),
        lambda *t: F.cosine_similarity(*t, dim=0),
        x,
        y[:1],
    )
    agree(lambda *t: eg.pairwise_distance(*t, 3.0), lambda *t: F.pairwise_distance(*t, 3.0), x, y)
    for p in (1.0, 2.0, 2.5, float("inf")):
        agree(lambda t, p=p: eg.normalize(t, p), lambda t, p=p: F.normalize(t, p), x)
    nothing = eg.zeros((2, 3), requires_grad=True)
    out = eg.normalize(nothing) + eg.cosine_similarity(nothing, nothing).reshape(2, 1)
    out.sum().backward()
    assert out.tolist() == [[0.0] * 3] * 2
    assert not np.isnan(values(nothing.grad)).any()


NO_BROADCAST = [
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss", "soft_margin_loss",
    "hinge_embedding_loss", "multilabel_soft_margin_loss",
]  # fmt: skip


@pytest.mark.parametrize("name", NO_BROADCAST)
def test_nothing_broadcasts(name: str) -> None:
    """A column against a row is the classic mistake: its loss would be one of all pairs."""
    for x, y in (((4, 1), (4,)), ((4,), (4, 1)), ((2, 3), ()), ((2, 3), (1, 3))):
        with pytest.raises(ShapeError, match=rf"{name}: .*must have"):
            getattr(eg, name)(eg.ones(x), eg.ones(y))


# --- connectionist temporal classification -------------------------------------------------------


def sequences(times: int, n: int, classes: int, longest: int) -> tuple[Any, ...]:
    labels = RNG.integers(1, classes, (n, longest))
    return (
        numbers(times, n, classes),
        labels,
        RNG.integers(0, times + 1, n),
        RNG.integers(0, longest + 1, n),
    )


def flattened(labels: Any, lengths: Any) -> Any:
    return np.concatenate([row[:k] for row, k in zip(labels, lengths, strict=True)])


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1, 2, 0), (5, 3, 4, 2), (4, 3, 3, 4), (7, 2, 5, 3), (3, 4, 2, 3)]
)
def test_ctc(shape: Any, zero_infinity: bool) -> None:
    """Lengths of every kind: none, more labels than times, repeats that need a blank between."""
    x, labels, times, lengths = sequences(*shape)
    options = {"zero_infinity": zero_infinity}
    there = [torch.tensor(a) for a in (labels, times, lengths)]
    here = [eg.tensor(a) for a in (labels, times, lengths)]
    for reduction in REDUCTIONS:

        def theirs(t: Any, r: str = reduction) -> Any:
            return F.ctc_loss(t.log_softmax(-1), *there, reduction=r, **options)

        def ours(t: Any, given: Any = here, r: str = reduction) -> Any:
            return eg.ctc_loss(t.log_softmax(-1), *given, reduction=r, **options)

        want = theirs(torch.tensor(x))
        if bool(torch.isfinite(want).all()):
            agree(ours, theirs, x, twice=False)  # torch has no second derivative
        close(ours(eg.tensor(x)), want.numpy(), 1e-10)
        one = eg.tensor(flattened(labels, lengths))
        close(ours(eg.tensor(x), [one, *here[1:]]), want.numpy(), 1e-10)
        close(ours(eg.tensor(x), [one, times.tolist(), lengths.tolist()]), want.numpy(), 1e-10)


def test_ctc_derivative_of_the_impossible() -> None:
    x = eg.tensor(numbers(2, 1, 3), requires_grad=True)
    for zero, want in ((False, float("inf")), (True, 0.0)):
        loss = eg.ctc_loss(x.log_softmax(-1), eg.tensor([[1, 1]]), [2], [2], zero_infinity=zero)
        assert loss.item() == want
        x.grad = None
        loss.backward()
        assert (x.grad == 0).all()


def test_ctc_of_certain_classes(device: str) -> None:
    """Logarithms of 0 among the inputs: the one alignment that is left has probability 1."""
    logs = np.log(
        np.eye(3)[[1, 0, 2]], where=np.eye(3)[[1, 0, 2]] > 0, out=np.full((3, 3), -np.inf)
    )
    x = eg.tensor(fitted(logs, device), device=device, requires_grad=True)
    loss = eg.ctc_loss(x, eg.tensor([1, 2], device=device), 3, 2)
    assert loss.item() == 0.0
    loss.backward()
    assert not np.isnan(values(x.grad)).any()


def test_ctc_compiled(device: str) -> None:
    x, labels, _, _ = sequences(8, 2, 4, 3)
    given = fitted(x, device)

    def loss(x: Any) -> Any:
        return eg.ctc_loss(x.log_softmax(-1), eg.tensor(labels, device=device), (8, 6), (3, 2))

    want = torch.tensor(x, requires_grad=True)
    F.ctc_loss(want.log_softmax(-1), torch.tensor(labels), (8, 6), (3, 2)).backward()
    got = eg.jit(eg.grad(loss))(eg.tensor(given, device=device))
    assert want.grad is not None
    close(got, want.grad.numpy(), 1e-5 if is_narrow(device) else 1e-10)


# --- layers --------------------------------------------------------------------------------------

X, Y = numbers(3, 4), numbers(3, 4)
LABELS = RNG.integers(0, 4, 3)
LAYERS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "nll": (lambda n: n.NLLLoss(ignore_index=2, reduction="sum"), [X], [LABELS]),
    "l1": (lambda n: n.L1Loss(), [X, Y], []),
    "smooth l1": (lambda n: n.SmoothL1Loss(beta=0.5), [X, Y], []),
    "huber": (lambda n: n.HuberLoss(delta=0.5), [X, Y], []),
    "bce": (lambda n: n.BCELoss(), [shares(3, 4)], [shares(3, 4)]),
    "bce with logits": (lambda n: n.BCEWithLogitsLoss(), [X], [shares(3, 4)]),
    "kl": (lambda n: n.KLDivLoss(reduction="batchmean"), [X, shares(3, 4)], []),
    "gaussian": (lambda n: n.GaussianNLLLoss(full=True), [X, Y, shares(3, 4)], []),
    "poisson": (lambda n: n.PoissonNLLLoss(full=True), [X], [3 * shares(3, 4)]),
    "cosine": (lambda n: n.CosineEmbeddingLoss(0.1), [X, Y], [signs(3)]),
    "ranking": (lambda n: n.MarginRankingLoss(0.1), [X, Y], [signs(3, 4)]),
    "triplet": (lambda n: n.TripletMarginLoss(2.0, swap=True), [X, Y, numbers(3, 4)], []),
    "hinge": (lambda n: n.HingeEmbeddingLoss(0.5), [X], [signs(3, 4)]),
    "soft margin": (lambda n: n.SoftMarginLoss(), [X], [signs(3, 4)]),
    "multi margin": (lambda n: n.MultiMarginLoss(p=2, margin=0.6), [X], [LABELS]),
    "multi label": (
        lambda n: n.MultiLabelSoftMarginLoss(), [X], [RNG.integers(0, 2, (3, 4)) * 1.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    make, moving, still = LAYERS[name]
    layer, theirs = make(nn), make(tnn)
    assert repr(layer).startswith(type(theirs).__name__)
    agree(
        lambda *t: layer(*t, *(eg.tensor(a) for a in still)),
        lambda *t: theirs(*t, *(torch.tensor(a) for a in still)),
        *moving,
        twice=name != "multi margin",
    )


def test_ctc_layer() -> None:
    x, labels, times, _ = sequences(6, 2, 4, 2)
    times[:] = 6
    got = nn.CTCLoss()(eg.tensor(x).log_softmax(-1), eg.tensor(labels), times.tolist(), (2, 1))
    want = tnn.CTCLoss()(
        torch.tensor(x).log_softmax(-1), torch.tensor(labels), times.tolist(), (2, 1)
    )
    close(got, want.numpy(), 1e-10)


def test_layers_refuse() -> None:
    with pytest.raises(ArgumentError, match='"none" or "batchmean", got'):
        nn.KLDivLoss("avg")
    with pytest.raises(OutOfRangeError, match="nll_loss: label 9 is out of range"):
        nn.NLLLoss()(eg.ones((1, 3)), eg.tensor([9]))


def test_ctc_of_many_times_compiles_soon() -> None:
    """As one op: fifty steps of tensor ops would be as many kernels to compile."""
    x = eg.randn((50, 2, 5))
    labels = eg.tensor([[1, 2, 3], [4, 4, 1]])

    def loss(x: Any) -> Any:
        return eg.ctc_loss(x.log_softmax(-1), labels, (50, 40), (3, 2))

    lowered = eg.jit(eg.value_and_grad(loss)).lower(x)
    assert len(lowered.kernels.splitlines()) < 40

"""One architecture in PyTorch and in everygrad, beside each other.

The referee is PyTorch's eager mode in the case's dtype. What it computes in float32 differs from
the truth too, and by how much depends on the network. So ours may differ from eager by what the
dtype may cost (TOLERANCES), or by some times what eager itself differs from eager in float64
(SLACK).
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.zoo.cases import Case
from everygrad.errors import MissingOpsError
from everygrad.interop.torch.backend import everygrad as backend
from everygrad.interop.torch.calls import from_torch

TOLERANCES = {torch.float32: 2e-5, torch.float64: 1e-9}  # of the largest number of a tensor
SLACK = 8
MOST = 5e-3  # whatever eager differs by: above, a check would say nothing
STEPS = 5
CHECKS = ("forward", "gradients", "training", "from_torch", "its gradients")

Tensors = Sequence[torch.Tensor]


@dataclass
class Outcome:
    """What came of one architecture: differences by check, relative, and how large they may be."""

    name: str
    library: str
    dtype: str = "float32"
    parameters: int = 0
    differences: dict[str, float] = field(default_factory=dict)
    allowed: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """Whether every check was made, and none went wrong."""
        return not self.failures and all(self.holds(check) for check in CHECKS)

    def holds(self, check: str) -> bool:
        """Whether one check went well."""
        found = self.differences.get(check)
        return found is not None and found <= self.allowed[check]

    def faults(self) -> list[str]:
        """What went wrong, in words."""
        wrong = [f"{check}: {text}" for check, text in self.failures.items()]
        for check, found in self.differences.items():
            if not self.holds(check):
                wrong.append(f"{check}: differs by {found:.1e}, above {self.allowed[check]:.1e}")
        return wrong


def difference(found: Iterable[Any], expected: Iterable[Any]) -> float:
    """The largest difference of two lists of tensors, each tensor's relative to its largest number,
    or to a hundredth of the largest of all: a bias before a norm has a gradient of 0, and what is
    found there is rounding."""
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(found, expected, strict=True)
    ]
    sizes = [float(np.abs(b).max()) if b.size else 0.0 for _, b in pairs]
    floor = 1e-2 * max(sizes, default=0.0) or 1.0
    worst = 0.0
    for (a, b), size in zip(pairs, sizes, strict=True):
        if a.shape != b.shape:
            return float("inf")
        if b.size:
            apart = float(np.abs(a - b).max()) / max(size, floor)
            worst = max(worst, apart if np.isfinite(a).all() else float("inf"))
    return worst


def loss_of(outputs: Any) -> Any:
    """One number that every output has its part in; the same in PyTorch and here."""
    total = None
    for i, out in enumerate(outputs):
        part = (out * out).mean() + (out * (0.1 * (i + 1))).sum() / out.shape[0]
        total = part if total is None else total + part
    return total


# --- PyTorch, eager or compiled --------------------------------------------------------------


@dataclass
class Run:
    """What a network gives: outputs, gradients, and in training its losses, and by how much its
    weights and buffers have changed."""

    outputs: list[Any]
    trained_outputs: list[Any]
    gradients: list[Any]
    losses: list[float]
    moved: list[Any]


def _values(tensors: Iterable[torch.Tensor]) -> list[Any]:
    return [t.detach().double().clone().numpy() for t in tensors]


def run(case: Case, wrap: Callable[[Any], Any], dtype: torch.dtype) -> Run:
    """A network of PyTorch's through its checks; `wrap` compiles it, or does nothing."""
    given = _given(case, dtype)
    network = case.network().to(dtype)
    with torch.no_grad():
        outputs = _values(wrap(network)(*given))
    network = case.trained().to(dtype)
    called = wrap(network)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.03, momentum=0.9)
    before = _values(_state(network))
    losses, first, gradients = [], [], []
    for step in range(STEPS):
        optimiser.zero_grad()
        found = called(*given)
        loss = loss_of(found)
        loss.backward()
        if step == 0:
            first = _values(found)
            gradients = _values(p.grad for p in network.parameters() if p.grad is not None)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
    moved = [a - b for a, b in zip(_values(_state(network)), before, strict=True)]
    return Run(outputs, first, gradients, losses, moved)


def _state(network: torch.nn.Module) -> list[torch.Tensor]:
    return [t for t in network.state_dict().values() if t.is_floating_point()]


def _given(case: Case, dtype: torch.dtype) -> list[torch.Tensor]:
    return [t.to(dtype) if t.is_floating_point() else t for t in case.arguments()]


def compiled(network: Any) -> Any:
    """The network by `torch.compile`, with no node left to PyTorch."""
    # the function itself: the name needs an installed package, which a checkout may not be
    return torch.compile(network, backend=backend, fullgraph=True, options={"fullgraph": True})


# --- eg.from_torch ---------------------------------------------------------------------------


def imported(case: Case) -> tuple[list[Any], list[Any]]:
    """Outputs in evaluation mode, and gradients in training mode, of a Module of ours."""
    given = _given(case, case.dtype)
    ours = [eg.tensor(t.numpy()) for t in given]
    model = from_torch(case.network().to(case.dtype), tuple(given))
    outputs = [o.detach().numpy() for o in _listed(model(*ours))]
    trained = from_torch(case.trained().to(case.dtype), tuple(given))
    loss_of(_listed(trained(*ours))).backward()
    gradients = [p.grad.numpy() for p in trained.parameters() if p.grad is not None]
    return outputs, gradients


def _listed(out: Any) -> list[Any]:
    return [out] if isinstance(out, eg.Tensor) else list(out)


# --- all of it -------------------------------------------------------------------------------


def check(case: Case) -> Outcome:
    """Everything about one architecture; what fails is noted, and the rest is checked."""
    outcome = Outcome(case.name, case.library, str(case.dtype).removeprefix("torch."))
    start = time.perf_counter()
    outcome.parameters = sum(p.numel() for p in case.network().parameters())
    eager = run(case, lambda network: network, case.dtype)
    exact = run(case, lambda network: network, torch.float64)

    def compare(name: str, *parts: tuple[list[Any], list[Any], list[Any]]) -> None:
        """Ours, eager's and eager's in float64; parts of one check have sizes of their own."""
        exactness = max(difference(expected, truth) for _, expected, truth in parts)
        least = max(TOLERANCES[case.dtype], case.tolerance)
        outcome.allowed[name] = min(MOST, max(least, SLACK * exactness))
        outcome.differences[name] = max(difference(found, expected) for found, expected, _ in parts)

    def attempt(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever it is, it belongs into the table
            outcome.failures[name] = _told(error)
            outcome.missing += [n for n in missing_of(error) if n not in outcome.missing]

    def by_compile() -> None:
        torch._dynamo.reset()
        with torch._dynamo.config.patch(allow_rnn=True):  # else it refuses nn.LSTM and nn.GRU
            ours = run(case, compiled, case.dtype)
        compare("forward", (ours.outputs, eager.outputs, exact.outputs))
        compare(
            "gradients",
            (ours.trained_outputs, eager.trained_outputs, exact.trained_outputs),
            (ours.gradients, eager.gradients, exact.gradients),
        )
        compare(
            "training",
            ([ours.losses], [eager.losses], [exact.losses]),
            (ours.moved, eager.moved, exact.moved),
        )

    def by_import() -> None:
        outputs, gradients = imported(case)
        compare("from_torch", (outputs, eager.outputs, exact.outputs))
        compare("its gradients", (gradients, eager.gradients, exact.gradients))

    attempt("torch.compile", by_compile)
    attempt("from_torch", by_import)
    outcome.seconds = time.perf_counter() - start
    return outcome


def missing_of(error: BaseException | None) -> list[str]:
    """The overloads that an error, or what it came from, says are missing."""
    while error is not None:
        if isinstance(error, MissingOpsError):
            return sorted(error.lacking)
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return []


def _told(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())
    return f"{type(error).__name__} at {where.filename.rsplit('/', 1)[-1]}:{where.lineno}: {text}"

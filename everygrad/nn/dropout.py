"""Dropout."""

from __future__ import annotations

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.ops.random.generators import Generator


def check_probability(layer: str, name: str, p: float) -> None:
    """Refuse what is no probability."""
    if not 0 <= p <= 1:
        raise ArgumentError(f"{layer}: {name} must be between 0 and 1, got {p!r}")


class Dropout(Module):
    """In training each element is 0 with probability p, else scaled by 1 / (1 - p)."""

    def __init__(self, p: float = 0.5, generator: Generator | None = None) -> None:
        super().__init__()
        check_probability("Dropout", "p", p)
        self.p = p
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.dropout(x, self.p, self.training, self.generator)
        return out

    def extra_repr(self) -> str:
        return f"p={self.p}"

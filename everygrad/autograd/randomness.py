"""What random functions draw inside vmap: the same numbers for every example, or different ones."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from everygrad.errors import ArgumentError


class Batch(NamedTuple):
    """One vmap around the draw."""

    transform: Any
    size: int
    mode: str  # "error", "same" or "different"
    wrap: Any  # (tensor with the batch axis first, transform) -> batched tensor


_around: ContextVar[tuple[Batch, ...]] = ContextVar("everygrad_vmaps", default=())
vmaps_around = _around


def batches() -> tuple[int, ...]:
    """The sizes of the vmaps around that ask for a draw of their own, outermost first."""
    for b in _around.get():
        if b.mode == "error":
            raise ArgumentError(
                'random numbers inside vmap: say what is meant with vmap(..., randomness="same") '
                'or randomness="different"'
            )
    return tuple(b.size for b in _around.get() if b.mode == "different")


def wrap_draw(x: Any) -> Any:
    """A draw with one leading axis for each such vmap, as those vmaps see it."""
    for b in _around.get():
        if b.mode == "different":
            x = b.wrap(x, b.transform)
    return x

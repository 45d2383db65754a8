"""Who decides what a node keeps: nobody, as a rule; a checkpoint, inside one."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from everygrad.autograd.graph import Node


class Recorder:
    """Sees every node recorded while it is in force."""

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        """What the node keeps instead of `values`: a tuple, or something with `fulfil(node)`."""
        return values

    def stream(self, generator: Any) -> Any:
        """The generator to use in place of `generator`, which is about to be used."""
        return generator


recorder: ContextVar[Recorder | None] = ContextVar("everygrad_recorder", default=None)

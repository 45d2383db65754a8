"""Who decides what a node keeps: nobody, as a rule; a checkpoint, inside one."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from everygrad.autograd.graph import Node
from everygrad.core.op import Op


class Recorder:
    """Sees every node recorded while it is in force, and every op of a scope that `watches`."""

    __slots__ = ()

    def follows(self, op: Op, inputs: Sequence[Any]) -> bool:
        """Whether `run` is to run an op."""
        return False

    def run(self, op: Op, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
        """The result of the op on tensors."""
        raise NotImplementedError

    def filled(self, payload: Any, device: str, *how: Any) -> None:
        """A payload was made by the device's `full(*how)`."""

    def saving(self, node: Node, values: tuple[Any, ...], inputs: Sequence[Any]) -> Any:
        """What the node keeps instead of `values`: a tuple, or something with `fulfil(node)`."""
        return values


recorder: ContextVar[Recorder | None] = ContextVar("everygrad_recorder", default=None)

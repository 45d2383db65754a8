"""Forward mode: a payload that carries a tangent beside its value."""

from __future__ import annotations

from typing import Any

from everygrad.dispatch import apply
from everygrad.ops.spec import NoRule
from everygrad.shapes import Shape
from everygrad.tensor import Tensor, Wrapped, wrap


class Dual(Wrapped):
    """A value and its tangent (None: zero), both tensors of the level below."""

    __slots__ = ("primal", "tangent")

    def __init__(self, level: int, primal: Tensor, tangent: Tensor | None) -> None:
        self.level = level
        self.primal = primal
        self.tangent = tangent

    @property
    def inner(self) -> Tensor:
        return self.primal

    @property
    def shape(self) -> Shape:
        return self.primal.shape

    @property
    def dtype(self) -> Any:
        return self.primal._data.dtype

    @property
    def device(self) -> str:
        return self.primal.device

    def interpret(self, op: Any, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        level = self.level
        parts = [part_of(t, level) for t in inputs]
        primals = [p for p, _ in parts]
        tangents = [t for _, t in parts]
        out = apply(op, *primals, **params)
        try:
            tangent = op.jvp(out, primals, tangents, params)
        except NoRule:
            duals = [wrap(Dual(level, p, t)) if t is not None else p for p, t in parts]
            return op.portable(*duals, **params)._data
        if tangent is None and out._node is None:
            return out._data
        return Dual(level, out, tangent)


def part_of(t: Tensor, level: int) -> tuple[Tensor, Tensor | None]:
    """The value and tangent of `t` at one level; a tensor from outside has no tangent there."""
    payload = t._data
    if isinstance(payload, Dual) and payload.level == level:
        return payload.primal, payload.tangent
    return t, None

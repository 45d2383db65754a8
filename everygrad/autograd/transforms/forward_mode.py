"""Forward mode: a payload that carries a tangent beside its value."""

from __future__ import annotations

from typing import Any

from everygrad.autograd.transform_scope import (
    INTERPRETED,
    Place,
    Transform,
    check_in_force,
    user_place,
)
from everygrad.core.op import Op
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, Wrapped, wrap
from everygrad.dispatch import apply
from everygrad.ops.record.spec import NoRule


class Dual(Wrapped):
    """A value and its tangent (None: zero), both tensors of the level below."""

    __slots__ = ("place", "primal", "tangent", "transform")

    def __init__(
        self, transform: Transform, primal: Tensor, tangent: Tensor | None, place: Place
    ) -> None:
        self.level = transform.level
        self.transform = transform
        self.primal = primal
        self.tangent = tangent
        self.place = place

    def left(self) -> Tensor | None:
        return self.primal if self.tangent is None else None

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

    def interpret(self, op: Op, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        transform = self.transform
        if transform.over:
            check_in_force(self, f"{op.name}: ")
        parts = [part_of(t, transform) for t in inputs]
        primals = [p for p, _ in parts]
        tangents = [t for _, t in parts]
        out = apply(op, *primals, **params)
        try:
            tangent = op.jvp(out, primals, tangents, params)
        except NoRule:
            place = user_place()
            duals = [wrap(Dual(transform, p, t, place)) if t is not None else p for p, t in parts]
            return op.portable(*duals, **params)._data
        if tangent is None and out._node is None:
            return out._data
        return Dual(transform, out, tangent, user_place(INTERPRETED))


def part_of(t: Tensor, transform: Transform) -> tuple[Tensor, Tensor | None]:
    """The value and tangent of `t` in one jvp; a tensor from outside has no tangent there."""
    payload = t._data
    if isinstance(payload, Dual) and payload.transform is transform:
        return payload.primal, payload.tangent
    return t, None

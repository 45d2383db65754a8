"""What handlers of backward overloads share: gradients pulled back through our own ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.autograd.transforms.functional import vjp
from everygrad.core.tensor import Tensor


def wide(x: Any) -> Any:
    """A tensor of 16-bit floats in float32, in which PyTorch computes them; others as they are.

    A node's result is brought to the dtype its metadata says, so handlers need not round."""
    if isinstance(x, Tensor) and x.dtype.kind == "float" and x.dtype.bits <= 16:
        return x.astype(dtypes.float32)
    return x


def pulled(f: Callable[..., Tensor], g: Tensor, *primals: Tensor) -> tuple[Tensor, ...]:
    """The gradients of <g, f(*primals)> by each of the primals.

    Inside `jit` nothing of f stays but what its derivatives read."""
    value, back = vjp(f, *primals)
    found: tuple[Tensor, ...] = back(g if g.dtype is value.dtype else g.astype(value.dtype))
    return found


def pulled_where(
    f: Callable[..., Tensor], g: Tensor, primals: Sequence[Tensor | None], mask: Sequence[bool]
) -> list[Tensor | None]:
    """`pulled` by those primals that the mask names; None for the others."""
    wanted = [i for i, on in enumerate(mask) if on and primals[i] is not None]
    if not wanted:
        return [None] * len(primals)

    def of_wanted(*some: Tensor) -> Tensor:
        given = list(primals)
        for i, x in zip(wanted, some, strict=True):
            given[i] = x
        return f(*given)

    chosen = [x for x in (primals[i] for i in wanted) if x is not None]
    found: list[Tensor | None] = [None] * len(primals)
    for i, gradient in zip(wanted, pulled(of_wanted, g, *chosen), strict=True):
        found[i] = gradient
    return found


__all__ = ["pulled", "pulled_where", "wide"]

"""PyTorch's dims, which a 0-d tensor has too, as this library's axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad.interop.torch.aten.registry import Tensor


def along(function: Callable[..., Any], x: Tensor, dim: int, *args: Any, **kwargs: Any) -> Any:
    """function(x, dim, ...) of an op that keeps shapes, or drops one axis; of a 0-d tensor as if it
    had one axis of one element, which PyTorch takes it for."""
    if x.ndim:
        return function(x, dim, *args, **kwargs)
    out = function(x.reshape(1), 0, *args, **kwargs)
    if isinstance(out, Tensor):
        return out.reshape(())
    return [part.reshape(()) for part in out]


def reduced(x: Tensor, dim: Sequence[int] | int | None) -> tuple[int, ...]:
    """The axes that a reduction goes along: no dims at all mean every axis."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0) or x.ndim == 0:
        return tuple(range(x.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % x.ndim for d in dims)

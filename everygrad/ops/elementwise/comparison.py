"""Whether numbers are close; the larger and the smaller where NaN is no number; steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import MISFIT, abs, maximum, minimum, where
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, check_kind, elementwise
from everygrad.ops.record.keywords import spelled
from everygrad.ops.record.spec import composite, refuse, sample
from everygrad.ops.reduce.norms_and_counts import amax, amin
from everygrad.ops.reduce.reductions import Axis


def _near_samples() -> Any:
    x = s.real(2, 3)
    yield sample(x, x + np.array([0.0, 1e-9, 1e-2]))
    yield sample(x, x[0] + 0.05, rtol=0.0, atol=0.1)
    yield sample(np.array([np.inf, np.nan, -np.inf]), np.array([np.inf, np.nan, 1.0]))


def _check_tolerances(op: str, rtol: Any, atol: Any) -> None:
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not isinstance(value, Tensor) and not value >= 0:
            raise ArgumentError(f"{op}: {name} must be 0 or more, got {value!r}")


@composite(
    kinds="any",
    flat=True,
    torch=None,  # dtypes must agree there
    reference=np.isclose,
    samples=_near_samples,
    refuses=(
        refuse(ShapeError, "isclose: cannot broadcast", s.real(2), s.real(3)),
        refuse(ArgumentError, "isclose: rtol must be 0 or more", s.real(2), s.real(2), rtol=-1e-5),
        refuse(ArgumentError, "isclose: atol must be 0 or", s.real(2), s.real(2), atol=-1.0),
        refuse(ArgumentError, "atol must be 0 or more, got nan", s.real(2), s.real(2), atol=np.nan),
    ),
)
def isclose(
    x: Tensor, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x - y| <= atol + rtol |y|. Infinities are close to themselves alone; NaN to none,
    or to NaN if `equal_nan`."""
    _check_tolerances("isclose", rtol, atol)
    x, y = operands("isclose", x, y)
    shapes.broadcast("isclose", x.shape, y.shape)
    same = x == y
    if equal_nan:
        same = same | ((x != x) & (y != y))
    if not x.dtype.is_differentiable:  # of 64 bits, too: the difference may leave the dtype
        x, y = operands("isclose", x, y, floating=True)
    size = abs(y)
    return same | ((abs(x - y) <= atol + rtol * size) & (size < float("inf")))


@spelled
def allclose(
    x: Tensor, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether `isclose` holds for all elements, as a Python bool: not inside jit."""
    _check_tolerances("allclose", rtol, atol)
    return bool(isclose(x, y, rtol, atol, equal_nan).all())


def _holey() -> Any:
    x, y = s.real(2, 3).copy(), s.real(3, seed=1).copy()
    x[0, 1] = y[2] = np.nan
    yield sample(x, y)
    yield sample(s.real(), s.real(2, seed=1))


fmax: Function = elementwise(
    "fmax",
    lambda x, y: where(x == x, where(y == y, maximum(x, y), x), y),
    (
        lambda g, x, y: g * where(x == y, 0.5, where((x > y) | (y != y), 1.0, 0.0)),
        lambda g, x, y: g * where(x == y, 0.5, where((x > y) | (y != y), 0.0, 1.0)),
    ),
    kinds="ordered",
    doc="The larger of x and y, NaN only where both are; a tie gives each side half the gradient.",
    reference=np.fmax,
    torch="torch:fmax",
    samples=_holey,
    refuses=(MISFIT,),
)
fmin: Function = elementwise(
    "fmin",
    lambda x, y: where(x == x, where(y == y, minimum(x, y), x), y),
    (
        lambda g, x, y: g * where(x == y, 0.5, where((x < y) | (y != y), 1.0, 0.0)),
        lambda g, x, y: g * where(x == y, 0.5, where((x < y) | (y != y), 0.0, 1.0)),
    ),
    kinds="ordered",
    doc="The smaller of x and y, NaN only where both are; a tie gives each side half the gradient.",
    reference=np.fmin,
    torch="torch:fmin",
    samples=_holey,
    refuses=(MISFIT,),
)


@composite(
    kinds="real",
    flat=True,
    torch=None,  # it has no derivative there, 0 or other
    reference=np.heaviside,
    samples=lambda: iter((sample(np.array([-1.5, 0.0, 2.0]), s.real(3, seed=1)),)),
    refuses=(refuse(ShapeError, "heaviside: cannot broadcast", s.real(2), s.real(3)),),
)
def heaviside(x: Tensor, y: Any) -> Tensor:
    """0 below 0, 1 above it, y at 0; NaN stays NaN. It carries no derivative."""
    x, y = (t.detach() for t in operands("heaviside", x, y))
    check_kind("heaviside", x.dtype, "real")
    shapes.broadcast("heaviside", x.shape, y.shape)
    step = where(x > 0, 1, where(x < 0, 0, y)).astype(x.dtype)
    return where(x == x, step, x)


@composite(
    kinds="ordered",
    reference=lambda x, axis=None, keepdims=False: (
        np.min(x, axis=axis, keepdims=keepdims),
        np.max(x, axis=axis, keepdims=keepdims),
    ),
    torch=None,  # takes its axis by keyword
    samples=lambda: iter((sample(s.real(2, 3)), sample(s.real(2, 3), 1, keepdims=True))),
    refuses=(refuse(ShapeError, "min: shape .* has no elements", s.real(0)),),
)
def aminmax(x: Tensor, axis: Axis = None, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element along the axes, as `amin` and `amax` give them."""
    axis = shapes.reduction_axes(axis, x.ndim, "aminmax")
    return amin(x, axis, keepdims), amax(x, axis, keepdims)

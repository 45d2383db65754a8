"""What the files of linear algebra share: checks of matrices, their parts, and `ensure`.

Kernels of linear algebra work on float32, float64 and complex numbers, in batches: leading axes
count matrices. Public functions widen halves on the way in and round on the way out. Definitions
that unroll a loop over columns serve matrices of up to `UNROLLED` columns on devices without a
kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends import base
from everygrad.compiler.facts import ValueCheck
from everygrad.core import shapes
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import apply, operands
from everygrad.dtypes import DType
from everygrad.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    EverygradError,
    GradientError,
    ShapeError,
)
from everygrad.ops.elementwise.basic import abs as absolute, real, where
from everygrad.ops.python.creation import arange, full, zeros
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import refuse, register, sample
from everygrad.ops.record.splits import every_axis
from everygrad.ops.shape.movement import SLICE, put_slices, take_slices

UNROLLED = 64
# what ops say, on every device, of matrices that they cannot compute with
SINGULAR = "a matrix is singular; use pinv() or lstsq(), or add to its diagonal"
NOT_POSITIVE = "a matrix is not positive definite; is it symmetric, and its eigenvalues above 0?"
NO_POWERS = "the input has a NaN or an infinity"
NOT_FINITE = "the iteration does not converge; is a NaN or an infinity in the input?"
_HALVES = (dtypes.float16, dtypes.bfloat16)


def checked(op: str, x: Any, square: bool = False) -> Tensor:
    """A batch of matrices in a dtype that kernels take, or an error that names the op."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"{op}: takes tensors, got {type(x).__name__}; use eg.tensor()")
    check_kind(op, x.dtype, "float")
    if x.ndim < 2:
        raise ShapeError(f"{op}: needs matrices, 2 dimensions or more, got shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{op}: needs square matrices, got shape {x.shape}")
    return widened(x)


def widened(x: Tensor) -> Tensor:
    """Halves as float32, others as they are."""
    return x.astype(dtypes.float32) if x.dtype in _HALVES else x


def rounded(x: Tensor, dtype: DType) -> Tensor:
    """A result in the dtype of the input it was widened from; of another kind, as it is."""
    return x.astype(dtype) if dtype in _HALVES else x


def widening(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of kernels, which halves may be given too: what users call an internal op by."""

    @wraps(fn)
    def call(*given: Any, **params: Any) -> Tensor:
        wide = [widened(v) if isinstance(v, Tensor) else v for v in given]
        return rounded(fn(*wide, **params), given[0].dtype)

    return call


def together(op: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Two inputs in one floating or complex dtype."""
    x, y = operands(op, x, y)
    check_kind(op, x.dtype, "float")
    return x, y


def broadcast_batch(op: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two batches of matrices with the same leading axes."""
    if x.shape[:-2] == y.shape[:-2]:
        return x, y
    batch = shapes.broadcast(op, x.shape[:-2], y.shape[:-2])
    return x.broadcast_to((*batch, *x.shape[-2:])), y.broadcast_to((*batch, *y.shape[-2:]))


def unrolled(op: str, x: Tensor, count: int) -> None:
    """Refuse a loop over more columns than are unrolled."""
    if count > UNROLLED:
        raise DeviceError(
            f"{op}: {x.device} has no kernel for it and unrolls up to {UNROLLED} columns, got "
            f'{x.shape}; move it with to("cpu")'
        )


# --- parts of matrices ---------------------------------------------------------------------------


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose."""
    x = x.matrix_transpose()
    return x.conj() if x.dtype.is_complex else x


# results of kernels are taken apart by these: nobody writes to the whole, and no view is noted


def rows(x: Tensor, start: int, count: int) -> Tensor:
    *batch, m, n = x.shape
    if count == m:
        return x
    whole = tuple([(0, size, 1) for size in batch])
    return apply(SLICE, x, slices=(*whole, (start, count, 1), (0, n, 1)))


def columns(x: Tensor, start: int, count: int) -> Tensor:
    *rest, n = x.shape
    if count == n:
        return x
    return apply(SLICE, x, slices=(*[(0, size, 1) for size in rest], (start, count, 1)))


def diagonal_of(x: Tensor) -> Tensor:
    """The elements on the diagonal, along a last axis."""
    m, n = x.shape[-2:]
    flat = x.reshape((*x.shape[:-2], m * n))
    whole = tuple((0, size, 1) for size in x.shape[:-2])
    return take_slices(flat, (*whole, (0, min(m, n), n + 1)))


def diagonal_matrix(v: Tensor) -> Tensor:
    """v on the diagonal of matrices of zeros."""
    batch, n = v.shape[:-1], v.shape[-1]
    whole = tuple((0, size, 1) for size in batch)
    flat = put_slices(v, (*batch, n * n), (*whole, (0, n, n + 1)))
    return flat.reshape((*batch, n, n))


def identity(n: int, like: Tensor) -> Tensor:
    """The unit matrix in the dtype and on the device of another tensor."""
    places = arange(n, device=like.device)
    return (places.reshape(-1, 1) == places).astype(like.dtype)


def real_part(x: Tensor) -> Tensor:
    return real(x) if x.dtype.is_complex else x


def as_kind(x: Tensor, like: Tensor) -> Tensor:
    """Real numbers in the dtype of a tensor that may be complex."""
    return x if x.dtype is like.dtype else x.astype(like.dtype)


def constant(values: Any, device: str | None) -> Tensor:
    """A NumPy array, which nobody else has, as a tensor: a constant to a compiler."""
    return wrap(base.get(device or "cpu").from_numpy(values))


def eps_of(x: Tensor) -> float:
    """The distance from 1 to the next number in x's dtype."""
    if not x.dtype.is_differentiable:
        raise DtypeError(f"linear algebra takes floating-point tensors, got {x.dtype}")
    return _eps(x.dtype)


@cache
def _eps(dtype: DType) -> float:
    return float(np.finfo(dtypes.real_of(dtype).np).eps)


def largest(x: Tensor) -> Tensor:
    """The largest magnitude in each matrix, with its axes kept; not differentiated."""
    return absolute(x.detach()).max(axis=(-2, -1), keepdims=True)


def firm(x: Tensor) -> Tensor:
    """Matrices far from singular, however x was made: what tests invert."""
    return x * 0.25 + 2 * identity(x.shape[-1], x)


Rule = Callable[..., Tensor]


def unless_empty(rule: Rule) -> Rule:
    """A rule of (g, out, x), for an input that has elements: else there is nothing to say."""

    def dx(g: Tensor, out: Tensor, x: Tensor) -> Tensor:
        return rule(g, out, x) if x.size else zeros(x.shape, x.dtype, x.device)

    return dx


def moves_unless_empty(rule: Rule) -> Rule:
    """The same for forward mode."""

    def jvp(out: Tensor, inputs: Sequence[Tensor], tangents: Sequence[Any]) -> Tensor:
        if inputs[0].size:
            return rule(out, inputs, tangents)
        return zeros(out.shape, out.dtype, out.device)

    return jvp


def over_leading(op: Callable[[], Kernel]) -> Callable[..., Tensor]:
    """The batching rule of an op that takes any leading axes."""
    return lambda xs, **params: apply(op(), *xs, **params)


# --- ensure: a result that exists ----------------------------------------------------------------

CHECK_TRUE: Kernel = Kernel(
    "check_true",
    lambda ok, what, error: ok,
    ("ok",),
    constant=True,
    batch=lambda xs, what, error: apply(CHECK_TRUE, xs[0], what=what, error=error),
    result=lambda ok, what, error: (ok.shape, ok.dtype),
    value_check=ValueCheck.TRUE,
    splits=every_axis,
)
register(
    CHECK_TRUE,
    lambda ok, what, error=ArgumentError: apply(CHECK_TRUE, ok, what=what, error=error),
    reference=lambda ok, what: ok,
    namespace="internal",
    samples=lambda: iter((sample(np.array([[True], [True]]), "not so"),)),
    refuses=(refuse(ArgumentError, "not so", np.array([True, False]), "not so"),),
)


def _ensure_portable(x: Tensor, ok: Tensor, what: str, error: type[EverygradError]) -> Tensor:
    ok = apply(CHECK_TRUE, ok, what=what, error=error)
    return where(ok, x, unknown((), x))


ENSURE: Kernel = Kernel(
    "ensure",
    _ensure_portable,
    ("x", "ok"),
    (lambda g: g, None),
    linear=(0,),
    batch=lambda xs, what, error: apply(ENSURE, *xs, what=what, error=error),
    result=lambda x, ok, what, error: (x.shape, x.dtype),
)


def unknown(shape: shapes.Shape, like: Tensor) -> Tensor:
    """NaN, for what has no derivative and must not be used."""
    return full(shape, float("nan"), dtypes.real_of(like.dtype), like.device).astype(like.dtype)


def ensure(x: Tensor, ok: Tensor, what: str, error: type[EverygradError] = GradientError) -> Tensor:
    """x, if `ok` holds throughout: else an error that says `what`. A device on which looking would
    mean waiting raises it when a value is next read; until then there is NaN where `ok` fails."""
    check_kind("ensure", x.dtype, "float")
    return apply(ENSURE, x, ok.broadcast_to(x.shape), what=what, error=error)


register(
    ENSURE,
    ensure,
    reference=lambda x, ok, what: x,
    namespace="internal",
    kinds="float",
    samples=lambda: iter((sample(np.array([1.0, 2.0]), np.array([True, True]), "no"),)),
    refuses=(refuse(GradientError, "no", np.array([1.0, 2.0]), np.array([True, False]), "no"),),
)

"""Least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import abs as absolute
from everygrad.ops.linalg.checks import (
    adjoint,
    as_kind,
    broadcast_batch,
    checked,
    constant,
    eps_of,
    over_leading,
    real_part,
    rounded,
    rows,
    together,
    widened,
    widening,
)
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.linalg.parts import parts
from everygrad.ops.linalg.svd import PINV, SVDVALS, rank_of, stepped, tolerance
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import refuse, register, sample
from everygrad.ops.record.splits import leading
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import take_slices

_DRIVERS = (None, "gels", "gelsy", "gelsd", "gelss")
_BY_VALUES = ("gelsd", "gelss")  # those whose result has singular values


def _lstsq_portable(a: Tensor, b: Tensor, rtol: float) -> Tensor:
    """The solution, and below it a row of ranks."""
    x = matmul(apply(PINV, a, tolerance(a, rtol)), b)
    rank = rank_of(apply(SVDVALS, a.detach()), a, rtol)
    row = as_kind(rank, x).expand_dims((-2, -1)).broadcast_to((*x.shape[:-2], 1, x.shape[-1]))
    return concat([x, row], axis=-2)


def _gradients(g: Tensor, out: Tensor, a: Tensor, b: Tensor, rtol: float) -> tuple[Tensor, Tensor]:
    """Those of a and b. A change of a moves A^+ by -A^+ da A^+, and where a has columns that are
    not independent, or rows that are not, by a term for each."""
    n = a.shape[-1]
    x, g = rows(out, 0, n), rows(g, 0, n)
    p = apply(PINV, a, tolerance(a, rtol))
    back = adjoint(p)
    of_b = matmul(back, g)
    off = b - matmul(a, x)
    beyond = g - matmul(adjoint(a), of_b)
    of_a = matmul(off, adjoint(matmul(p, of_b))) - matmul(of_b, adjoint(x))
    return of_a + matmul(matmul(back, x), adjoint(beyond)), of_b


def _vjp_portable(g: Tensor, out: Tensor, a: Tensor, b: Tensor, rtol: float) -> Tensor:
    return concat(_gradients(g, out, a, b, rtol), axis=-1)


# the gradients of a and b side by side; no rules: differentiated again through the definition
LSTSQ_VJP: Kernel = Kernel(
    "lstsq_vjp",
    _vjp_portable,
    ("g", "out", "a", "b"),
    batch=over_leading(lambda: LSTSQ_VJP),
    splits=leading(2, 2, 2, 2),
)


def _both(g: Tensor, out: Tensor, a: Tensor, b: Tensor, rtol: float) -> list[Tensor]:
    n, k = a.shape[-1], b.shape[-1]
    return parts(apply(LSTSQ_VJP, g, out, a, b, rtol=rtol), (-1, 0, n), (-1, n, k))


class _Lstsq(Kernel):
    """Both gradients come from one pseudo-inverse, which each rule by itself would find again."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        out, a, b = self.restore(node, create_graph)
        found = _both(g, out, a, b, **node.params)
        return [None if p is None else v for p, v in zip(node.parents, found, strict=True)]


LSTSQ: Kernel = _Lstsq(
    "lstsq",
    _lstsq_portable,
    ("a", "b"),
    (
        lambda g, out, a, b, rtol: _both(g, out, a, b, rtol)[0],
        lambda g, out, a, b, rtol: _both(g, out, a, b, rtol)[1],
    ),
    batch=over_leading(lambda: LSTSQ),
    splits=leading(2, 2),
)


def _ranks_portable(packed: Tensor) -> Tensor:
    *batch, m, _ = packed.shape
    whole = tuple((0, size, 1) for size in batch)
    found = take_slices(packed.detach(), (*whole, (m - 1, 1, 1), (0, 1, 1)))
    return real_part(found.reshape(tuple(batch))).astype(dtypes.int64)


RANKS: Kernel = Kernel(
    "lstsq_ranks",
    _ranks_portable,
    ("packed",),
    constant=True,
    batch=over_leading(lambda: RANKS),
    splits=leading(2),
)


def _residuals_portable(a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    left = matmul(a, x) - b
    left = absolute(left) if left.dtype.is_complex else left
    return (left * left).sum(axis=-2)


def _off(g: Tensor, a: Tensor, x: Tensor, b: Tensor) -> Tensor:
    """What a change of a x - b changes of the residuals, times g."""
    return (matmul(a, x) - b) * (as_kind(g, a) * 2.0).expand_dims(-2)


RESIDUALS: Kernel = Kernel(
    "lstsq_residuals",
    _residuals_portable,
    ("a", "x", "b"),
    (
        lambda g, a, x, b: matmul(_off(g, a, x, b), adjoint(x)),
        lambda g, a, x, b: matmul(adjoint(a), _off(g, a, x, b)),
        lambda g, a, x, b: -_off(g, a, x, b),
    ),
    batch=over_leading(lambda: RESIDUALS),
    splits=leading(2, 2, 2),
)


class LstsqResult(NamedTuple):
    """PyTorch's names."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def lstsq(
    A: Tensor,  # noqa: N803  # PyTorch's names
    B: Tensor,  # noqa: N803
    rcond: float | None = None,
    *,
    driver: str | None = None,
) -> LstsqResult:
    """X that makes A X - B smallest, the smallest such X where there are several; the sums of
    squares that are left (none where A has no more rows than columns), A's rank, and, by the
    drivers "gelsd" and "gelss", its singular values. Those up to `rcond` times the largest count
    as 0; the other drivers ("gelsy", "gels") estimate which these are, as PyTorch's do."""
    if driver not in _DRIVERS:
        raise ArgumentError(
            f'lstsq: driver must be "gels", "gelsy", "gelsd" or "gelss", got {driver!r}'
        )
    a, b = together("lstsq", A, B)
    dtype = a.dtype
    a = checked("lstsq", a)
    vector = b.ndim == 1
    b = widened(b.expand_dims(-1)) if vector else checked("lstsq", b)
    m, n = a.shape[-2:]
    if b.shape[-2] != m:
        raise ShapeError(
            f"lstsq: a matrix of {a.shape} does not fit a right side of {b.shape}: "
            f"sizes {m} and {b.shape[-2]} differ"
        )
    batch = a.shape[:-2]
    if batch != b.shape[:-2]:
        a, b = broadcast_batch("lstsq", a, b)
    least = max(m, n) * eps_of(a) if rcond is None else float(rcond)
    packed = apply(LSTSQ, a, b, rtol=least)
    (x,) = parts(packed, (-2, 0, n))
    nothing = constant(np.zeros(0, dtypes.real_of(a.dtype).np), a.device)
    residuals = apply(RESIDUALS, a, x, b) if m > n else nothing
    rank = apply(RANKS, packed)
    values = apply(SVDVALS, a.detach()) if driver in _BY_VALUES else nothing
    x = x.squeeze(-1) if vector else x
    return LstsqResult(rounded(x, dtype), rounded(residuals, dtype), rank, rounded(values, dtype))


def _tested(a: Tensor, b: Tensor, **options: Any) -> Any:
    found = lstsq(stepped(a), b, **options)
    return found[:2] if a.shape[-2] > a.shape[-1] else found.solution


def _vjp_tested(g: Tensor, a: Tensor, b: Tensor) -> Tensor:
    a = stepped(a)
    return apply(LSTSQ_VJP, g, apply(LSTSQ, a, b, rtol=0.0), a, b, rtol=0.0)


register(
    LSTSQ,
    lstsq,
    namespace="linalg",
    kinds="float",
    reference="tests.support.references.linalg:lstsq",
    tested_as=_tested,
    samples=lambda: iter(
        (
            sample(s.real(3, 2), s.real(3, 2, seed=1)),
            sample(s.real(2, 3), s.real(2, 1, seed=1)),
        )
    ),
    refuses=(
        refuse(ShapeError, "lstsq: .* sizes 2 and 3", s.real(2, 2), s.real(3, 1)),
        refuse(
            ArgumentError, 'lstsq: driver must be "gels"', s.real(2, 2), s.real(2, 1), driver="qr"
        ),
    ),
)
register(
    LSTSQ_VJP,
    widening(lambda g, out, a, b, rtol: apply(LSTSQ_VJP, g, out, a, b, rtol=rtol)),
    reference="tests.support.references.linalg:lstsq_vjp",
    tested_as=widening(_vjp_tested),
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(3, 1), s.real(3, 2), s.real(3, 1, seed=1)),
            sample(s.real(2, 4, 2), s.real(2, 2, 3), s.real(2, 2, 2, seed=1)),
        )
    ),
)
register(
    RANKS,
    lambda packed: apply(RANKS, packed),
    reference=lambda packed: packed[..., -1, 0].astype(np.int64),
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 3, 2) * 4),)),
)
register(
    RESIDUALS,
    widening(lambda a, x, b: apply(RESIDUALS, a, x, b)),
    reference=lambda a, x, b: ((a @ x - b) ** 2).sum(axis=-2),
    namespace="internal",
    samples=lambda: iter(
        (
            sample(s.real(3, 2), s.real(2, 2, seed=1), s.real(3, 2, seed=2)),
            sample(s.real(2, 3, 2), s.real(2, 2, 2, seed=1), s.real(2, 3, 2, seed=2)),
        )
    ),
)

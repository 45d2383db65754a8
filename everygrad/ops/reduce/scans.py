"""Scans: each element combined with all before it, differences, and integrals of samples.

A scan is a kernel op; `scan` is the portable definition of them all. Sums and products are kept in
wider numbers than they are given in: halves in float32, and by the CPU's kernel in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, AxisError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import isinf, isnan, maximum, where
from everygrad.ops.elementwise.math import exp, log
from everygrad.ops.index.gather import gather
from everygrad.ops.index.sort import ValuesAndIndices
from everygrad.ops.python.creation import arange, ones, zeros
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.keywords import with_names
from everygrad.ops.record.spec import composite, refuse, register, same, sample
from everygrad.ops.record.splits import other_axes
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import flip, slice_axis

State = tuple[Tensor, ...]  # what is known of the elements so far: a sum, or a value and an index
Combine = Callable[[State, State], State]  # of earlier elements and later ones; associative
_BLOCK = 16


def _ends(x: Tensor, axis: int, step: int) -> tuple[Tensor, Tensor]:
    """All but the last `step` elements, and all but the first."""
    n = x.shape[axis] - step
    return slice_axis(x, axis, 0, n), slice_axis(x, axis, step, n)


def _joined(first: State, second: State, axis: int) -> State:
    return tuple(concat([a, b], axis=axis) for a, b in zip(first, second, strict=True))


def _cut(state: State, axis: int, start: int, count: int) -> State:
    return tuple(slice_axis(v, axis, start, count) for v in state)


def _in_steps(state: State, axis: int, combine: Combine) -> State:
    """After the step of width w each element stands for itself and the 2 w - 1 before it."""
    n, step = state[0].shape[axis], 1
    while step < n:
        later = combine(_cut(state, axis, 0, n - step), _cut(state, axis, step, n - step))
        state = _joined(_cut(state, axis, 0, step), later, axis)
        step *= 2
    return state


def scan(state: State, axis: int, combine: Combine) -> State:
    """Each element combined with all before it: blocks in steps, then what the blocks before add.

    So a long scan goes over its elements five times, not log(n) times.
    """
    shape = state[0].shape
    n = shape[axis]
    if n <= 2 * _BLOCK:
        return _in_steps(state, axis, combine)
    many = n // _BLOCK
    whole = many * _BLOCK
    apart = (*shape[:axis], many, _BLOCK, *shape[axis + 1 :])
    blocks = tuple(v.reshape(apart) for v in _cut(state, axis, 0, whole))
    blocks = _in_steps(blocks, axis + 1, combine)
    totals = scan(_cut(blocks, axis + 1, _BLOCK - 1, 1), axis, combine)
    later = combine(_cut(totals, axis, 0, many - 1), _cut(blocks, axis, 1, many - 1))
    together = (*shape[:axis], whole, *shape[axis + 1 :])
    done = _joined(_cut(blocks, axis, 0, 1), later, axis)
    done = tuple(v.reshape(together) for v in done)
    if whole == n:
        return done
    rest = _in_steps(_cut(state, axis, whole, n - whole), axis, combine)
    return _joined(done, combine(_cut(done, axis, whole - 1, 1), rest), axis)


def _scanned(x: Tensor, axis: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    (out,) = scan((x,), axis, lambda a, b: (combine(a[0], b[0]),))
    return out


def segmented(x: Tensor, names: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The scan of a vector that begins anew wherever the name beside it, in runs, changes."""

    def within(before: State, here: State) -> State:
        (name, x), (own, y) = before, here
        return own, where(name == own, combine(x, y), y)

    return scan((names, x), 0, within)[1]


# --- sums and products ---------------------------------------------------------------------------


def _widely(x: Tensor, scan: Callable[[Tensor], Tensor]) -> Tensor:
    """The scan of halves in float32."""
    wide = dtypes.accumulator(x.dtype) if x.dtype.is_float else x.dtype
    return scan(x.astype(wide)).astype(x.dtype)


def _sum_portable(x: Tensor, axis: int, reverse: bool) -> Tensor:
    if reverse:
        return flip(_sum_portable(flip(x, axis), axis, False), axis)
    return _widely(x, lambda v: _from_zero(_scanned(v, axis, lambda a, b: a + b)))


def _from_zero(x: Tensor) -> Tensor:
    """0.0 + x, as sums begin: -0.0 becomes 0.0. Drivers of GPUs may take the addition for x."""
    return where(x == 0, 0.0, x) if x.dtype.is_float else x + 0


CUMULATIVE_SUM: Kernel = Kernel(
    "cumulative_sum",
    _sum_portable,
    ("x",),
    (lambda g, axis, reverse: apply(CUMULATIVE_SUM, g, axis=axis, reverse=not reverse),),
    linear=(0,),
    batch=lambda xs, axis, reverse: apply(CUMULATIVE_SUM, xs[0], axis=axis + 1, reverse=reverse),
    result=lambda x, axis, reverse: (x.shape, x.dtype),
    splits=other_axes,
)


def _recurrence_portable(a: Tensor, b: Tensor, axis: int) -> Tensor:
    def composed(first: State, second: State) -> State:
        (a, b), (c, d) = first, second
        return c * a, d + c * b

    return scan((a, b), axis, composed)[1]


RECURRENCE: Kernel = Kernel(
    "recurrence",
    _recurrence_portable,
    ("a", "b"),
    batch=lambda xs, axis: apply(RECURRENCE, *xs, axis=axis + 1),
    result=lambda a, b, axis: (b.shape, b.dtype),
    splits=other_axes,
)


def _recurrence(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """y with y[i] = b[i] + a[i] * y[i - 1], and y[0] = b[0]."""
    return apply(RECURRENCE, a, b, axis=axis)


def _recurrence_reference(a: Any, b: Any, axis: int) -> Any:
    out = np.array(np.moveaxis(b, axis, 0))
    for i, factor in enumerate(np.moveaxis(a, axis, 0)[1:]):
        out[i + 1] += factor * out[i]
    return np.moveaxis(out, 0, axis)


register(
    RECURRENCE,
    _recurrence,
    namespace="internal",
    kinds="float",
    reference=_recurrence_reference,
    samples=lambda: iter(
        (
            sample(s.real(2, 3), s.real(2, 3, seed=1), 1),
            sample(s.real(3, 2), s.real(3, 2, seed=1), 0),
        )
    ),
)


def _before(out: Tensor, axis: int) -> Tensor:
    """The product of all elements before each: 1 for the first."""
    shape = (*out.shape[:axis], 1, *out.shape[axis + 1 :])
    first = ones(shape, out.dtype, out.device)
    return concat([first, _ends(out, axis, 1)[0]], axis=axis)


def _prod_vjp(g: Tensor, x: Tensor, out: Tensor, axis: int) -> Tensor:
    """The product before each element times what follows it, which no division has to find."""
    if x.shape[axis] == 0:
        return same(g)
    wide = dtypes.accumulator(x.dtype)
    g, x, out = g.astype(wide), x.astype(wide), out.astype(wide)
    x, out = (x.conj(), out.conj()) if x.dtype.is_complex else (x, out)
    # r[i] = g[i] + x[i + 1] * r[i + 1], read from the end; the first factor is never used
    factors = concat([slice_axis(x, axis, 0, 1), flip(_ends(x, axis, 1)[1], axis)], axis=axis)
    later = flip(_recurrence(factors, flip(g, axis), axis), axis)
    return later * _before(out, axis)


def _prod_jvp(out: Tensor, inputs: Any, tangents: Any, axis: int) -> Tensor:
    (x,), (t,) = inputs, tangents
    return _recurrence(x, t * _before(out, axis), axis) if x.shape[axis] else same(t)


CUMULATIVE_PROD: Kernel = Kernel(
    "cumulative_prod",
    lambda x, axis: _widely(x, lambda v: _scanned(v, axis, lambda a, b: a * b)),
    ("x",),
    (lambda g, x, out, axis: _prod_vjp(g, x, out, axis).astype(x.dtype),),
    jvp=_prod_jvp,
    batch=lambda xs, axis: apply(CUMULATIVE_PROD, xs[0], axis=axis + 1),
    result=lambda x, axis: (x.shape, x.dtype),
    splits=other_axes,
)


def _accumulated(op: str, x: Tensor, axis: int | None, dtype: Any) -> tuple[Tensor, int]:
    if axis is None and x.ndim != 1:
        raise AxisError(f"{op}: x has {x.ndim} dimensions, not 1; say along which axis")
    at = shapes.axis_index(0 if axis is None else axis, x.ndim, op)
    if dtype is None and not x.dtype.is_differentiable:
        dtype = dtypes.accumulator(x.dtype)
    return x if dtype is None else x.astype(dtype), at


def _with_first(out: Tensor, axis: int, value: int, wanted: bool) -> Tensor:
    if not wanted:
        return out
    shape = (*out.shape[:axis], 1, *out.shape[axis + 1 :])
    first = (ones if value else zeros)(shape, out.dtype, out.device)
    return concat([first, out], axis=axis)


def cumulative_sum(
    x: Tensor, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The sums of the elements up to each; integers are summed in 64 bits.

    include_initial  begin with the sum of nothing, 0: one element more
    """
    x, at = _accumulated("cumulative_sum", x, axis, dtype)
    out = apply(CUMULATIVE_SUM, x, axis=at, reverse=False)
    return _with_first(out, at, 0, include_initial)


def cumulative_prod(
    x: Tensor, axis: int | None = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """The products of the elements up to each. The derivative is right where elements are 0.

    include_initial  begin with the product of nothing, 1: one element more
    """
    x, at = _accumulated("cumulative_prod", x, axis, dtype)
    return _with_first(apply(CUMULATIVE_PROD, x, axis=at), at, 1, include_initial)


def _cumulative_reference(fn: Any, initial: int) -> Any:
    def reference(x: Any, axis: int | None = None, include_initial: bool = False) -> Any:
        axis = 0 if axis is None else axis
        out = fn(x, axis=axis)
        if not include_initial:
            return out
        return np.insert(out, 0, initial, axis=axis)

    return reference


def _scan_refusals(name: str) -> tuple[Any, ...]:
    return (
        refuse(AxisError, f"{name}: axis 2 is out of range", s.real(2, 3), axis=2),
        refuse(AxisError, f"{name}: x has 2 dimensions, not 1; say", s.real(2, 3)),
    )


register(
    CUMULATIVE_SUM,
    cumulative_sum,
    scalar_rows="row",
    methods=("cumulative_sum",),
    gives="accumulated",
    torch="tests.support.beside_torch:cumulative_sum",
    reference=_cumulative_reference(np.cumsum, 0),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), axis=-1, include_initial=True),
            sample(s.real(5)),
            sample(s.real(2, 0), axis=1),
        )
    ),
    refuses=_scan_refusals("cumulative_sum"),
)
register(
    CUMULATIVE_PROD,
    cumulative_prod,
    scalar_rows="row",
    methods=("cumulative_prod",),
    gives="accumulated",
    torch="tests.support.beside_torch:cumulative_prod",
    reference=_cumulative_reference(np.cumprod, 1),
    samples=lambda: iter(
        (
            sample(s.real(3, 2), axis=0, include_initial=True),
            sample(np.array([2.0, 0.0, 3.0, 0.0, 1.5])),
            sample(s.real(0)),
        )
    ),
    refuses=_scan_refusals("cumulative_prod"),
)


@composite(
    scalar_rows="row",
    gives="accumulated",
    torch="torch:cumsum",
    reference=lambda x, axis: np.cumsum(x, axis=axis),
    samples=lambda: iter((sample(s.real(2, 3), 0),)),
    refuses=(refuse(AxisError, "cumsum: axis 2 is out of range", s.real(2, 3), 2),),
)
def cumsum(x: Tensor, axis: int | None = None, dtype: Any = None, **names: Any) -> Tensor:
    """`cumulative_sum` under PyTorch's name."""
    if names:
        return with_names(cumsum, names, x, axis, dtype)
    axis = shapes.axis_index(axis, x.ndim, "cumsum")
    return cumulative_sum(x, axis, dtype)


@composite(
    scalar_rows="row",
    gives="accumulated",
    torch="torch:cumprod",
    reference=lambda x, axis: np.cumprod(x, axis=axis),
    samples=lambda: iter((sample(s.real(2, 3), 1),)),
    refuses=(refuse(AxisError, "cumprod: axis 2 is out of range", s.real(2, 3), 2),),
)
def cumprod(x: Tensor, axis: int | None = None, dtype: Any = None, **names: Any) -> Tensor:
    """`cumulative_prod` under PyTorch's name."""
    if names:
        return with_names(cumprod, names, x, axis, dtype)
    axis = shapes.axis_index(axis, x.ndim, "cumprod")
    return cumulative_prod(x, axis, dtype)


# --- extremes ------------------------------------------------------------------------------------


def _extreme_index(largest: bool) -> Callable[..., Tensor]:
    def better(before: State, here: State) -> State:
        (x, i), (y, j) = before, here
        later = y >= x if largest else y <= x
        later = later | isnan(y) if y.dtype.is_float else later
        return where(later, y, x), where(later, j, i)

    def portable(x: Tensor, axis: int) -> Tensor:
        place = arange(x.shape[axis], dtype=dtypes.int32, device=x.device)
        index = place.reshape((-1,) + (1,) * (x.ndim - axis - 1)).broadcast_to(x.shape)
        return scan((x, index), axis, better)[1].astype(dtypes.int64)

    return portable


def _index_kernel(name: str, largest: bool) -> Kernel:
    op = Kernel(
        name,
        _extreme_index(largest),
        ("x",),
        constant=True,
        batch=lambda xs, axis: apply(op, xs[0], axis=axis + 1),
        result=lambda x, axis: (x.shape, dtypes.int64),
        splits=other_axes,
    )
    return op


def _index_reference(extreme: Any) -> Any:
    def along(row: Any) -> Any:
        found, at = [], 0
        for i, value in enumerate(row):
            best = row[at]
            at = i if value != value or extreme(value, best) == value == value else at
            found.append(at)
        return np.array(found, np.int64)

    return lambda x, axis: np.apply_along_axis(along, axis, x)


CUMMAX_INDEX = _index_kernel("cummax_index", True)
CUMMIN_INDEX = _index_kernel("cummin_index", False)
for _op, _extreme in ((CUMMAX_INDEX, np.maximum), (CUMMIN_INDEX, np.minimum)):
    register(
        _op,
        (lambda op: lambda x, axis: apply(op, x, axis=axis))(_op),
        namespace="internal",
        gives="index",
        reference=_index_reference(_extreme),
        samples=lambda: iter(
            (sample(np.array([1.0, 3.0, 3.0, -1.0, np.nan, 0.0]), 0), sample(s.real(3, 2), 0))
        ),
    )


def _cumulative_extreme(op: Kernel, name: str, x: Tensor, axis: int | None) -> ValuesAndIndices:
    check_kind(name, x.dtype, "ordered")
    at = shapes.axis_index(axis, x.ndim, name)
    index = apply(op, x, axis=at)
    return ValuesAndIndices(gather(x, index, at), index)


@composite(
    scalar_rows="row",
    kinds="ordered",
    tested_as=lambda x, axis: cummax(x, axis).values,
    torch=lambda torch, x, axis: torch.cummax(x, axis).values,
    reference=lambda x, axis: np.maximum.accumulate(x, axis=axis),
    samples=lambda: iter((sample(s.real(2, 3), -1),)),
    refuses=(refuse(AxisError, "cummax: axis 2 is out of range", s.real(2, 3), 2),),
)
def cummax(x: Tensor, axis: int | None = None, **names: Any) -> ValuesAndIndices:
    """The largest element so far, and its index: the last one of several. NaN wins."""
    if names:
        return with_names(cummax, names, x, axis)
    return _cumulative_extreme(CUMMAX_INDEX, "cummax", x, axis)


@composite(
    scalar_rows="row",
    kinds="ordered",
    tested_as=lambda x, axis: cummin(x, axis).values,
    torch=lambda torch, x, axis: torch.cummin(x, axis).values,
    reference=lambda x, axis: np.minimum.accumulate(x, axis=axis),
    samples=lambda: iter((sample(s.real(2, 3), 0),)),
    refuses=(refuse(AxisError, "cummin: axis 2 is out of range", s.real(2, 3), 2),),
)
def cummin(x: Tensor, axis: int | None = None, **names: Any) -> ValuesAndIndices:
    """The smallest element so far, and its index: the last one of several. NaN wins."""
    if names:
        return with_names(cummin, names, x, axis)
    return _cumulative_extreme(CUMMIN_INDEX, "cummin", x, axis)


# --- logarithms of sums --------------------------------------------------------------------------


def _log_of_sum(a: Tensor, b: Tensor) -> Tensor:
    """log(exp(a) + exp(b)) without overflow; a sum of nothing, -inf, has no slope."""
    top = maximum(a, b).detach()
    top = where(isinf(top), 0.0, top)
    total = exp(a - top) + exp(b - top)
    nothing = total == 0
    return where(nothing, -float("inf"), log(where(nothing, 1.0, total)) + top)


LOGCUMSUMEXP: Kernel = Kernel(
    "logcumsumexp",
    lambda x, axis: _widely(x, lambda v: _scanned(v, axis, _log_of_sum)),
    ("x",),
    batch=lambda xs, axis: apply(LOGCUMSUMEXP, xs[0], axis=axis + 1),
    result=lambda x, axis: (x.shape, x.dtype),
    splits=other_axes,
)


def logcumsumexp(x: Tensor, axis: int | None = None, **names: Any) -> Tensor:
    """log(cumulative_sum(exp(x))) without overflow."""
    if names:
        return with_names(logcumsumexp, names, x, axis)
    check_kind("logcumsumexp", x.dtype, "real float")
    return apply(LOGCUMSUMEXP, x, axis=shapes.axis_index(axis, x.ndim, "logcumsumexp"))


register(
    LOGCUMSUMEXP,
    logcumsumexp,
    scalar_rows="row",
    methods=("logcumsumexp",),
    kinds="real float",
    torch="torch:logcumsumexp",
    reference=lambda x, axis: np.logaddexp.accumulate(x, axis=axis),
    samples=lambda: iter((sample(s.real(2, 3), -1), sample(s.real(2, 2), 0))),
    refuses=(
        refuse(AxisError, "logcumsumexp: axis 2", s.real(2, 3), 2),
        refuse(DtypeError, "logcumsumexp: does not take int64", s.integers(3), 0),
    ),
)

# --- differences and integrals -------------------------------------------------------------------


@composite(
    kinds="numeric",
    torch=lambda torch, x, axis=-1, n=1, **more: torch.diff(x, n, axis, **more),
    reference=lambda x, axis=-1, n=1, **more: np.diff(x, n, axis, **more),
    samples=lambda: iter(
        (
            sample(s.real(2, 3)),
            sample(s.real(4, 2), axis=0, n=2, append=s.real(1, 2, seed=1)),
            sample(s.real(3), n=4),
        )
    ),
    refuses=(
        refuse(ArgumentError, "diff: n must not be negative, got -1", s.real(3), n=-1),
        refuse(AxisError, "diff: axis 1 is out of range", s.real(3), axis=1),
    ),
)
def diff(
    x: Tensor,
    n: int = 1,
    axis: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The differences between neighbours along an axis, n times over."""
    check_kind("diff", x.dtype, "numeric")
    at = shapes.axis_index(axis, x.ndim, "diff")
    times = shapes.as_int(n, "diff", "n")
    if times < 0:
        raise ArgumentError(f"diff: n must not be negative, got {times}")
    parts = [v for v in (prepend, x, append) if v is not None]
    x = concat(parts, axis=at) if len(parts) > 1 and times else same(x)
    for _ in range(min(times, x.shape[at])):
        before, here = _ends(x, at, 1)
        x = here - before
    return x


@composite(
    kinds="float",
    torch="tests.support.beside_torch:trapezoid",
    reference=lambda y, x=None, dx=1.0, axis=-1: np.trapezoid(y, x, dx, axis),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), dx=0.5),
            sample(s.real(3, 2), s.real(3, seed=1), axis=0),
            sample(s.real(1)),
        )
    ),
    refuses=(
        refuse(ShapeError, "trapezoid: x of .*one for each", s.real(3), s.real(2)),
        refuse(DtypeError, "trapezoid: does not take int64", s.integers(3)),
    ),
)
def trapezoid(y: Tensor, x: Tensor | None = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """The integral along an axis of the straight lines between samples y.

    x   where the samples were taken, one for each element along the axis or of y
    dx  how far apart they are, where x is not given
    """
    check_kind("trapezoid", y.dtype, "float")
    at = shapes.axis_index(axis, y.ndim, "trapezoid")
    if y.shape[at] == 0:
        return y.sum(axis=at)
    before, here = _ends(y, at, 1)
    if x is None:
        return (before + here).sum(axis=at) * (0.5 * dx)
    if x.shape not in ((y.shape[at],), y.shape):
        raise ShapeError(
            f"trapezoid: x of {x.shape} for y of {y.shape}: it needs one for each of the "
            f"{y.shape[at]} samples along axis {at}"
        )
    widths = diff(x, axis=-1 if x.ndim == 1 else at)
    if x.ndim == 1:
        widths = widths.reshape((-1,) + (1,) * (y.ndim - at - 1))
    return ((before + here) * widths).sum(axis=at) * 0.5

"""Softmax, layer norm and their derivatives as row kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.fused.row_loops import Body, Pass, Row, SmallRows, run, run_with_sums
from everygrad.backends.cpu.kernels.half_conversions import is_half
from everygrad.compiler.expr import Expr, call
from everygrad.core.shapes import Shape, size_of

_MOST_SMALL = 64  # kernels kept for arrays that differ in eps


def _exp(x: Any) -> Expr:
    return call("exp", x)


SOFTMAX = (
    Pass(reduce=(("max", lambda r: r.x[0]),)),
    Pass(
        reduce=(("add", lambda r: _exp(r.x[0] - r.total[0])),),
        store=lambda r: _exp(r.x[0] - r.total[0]),
    ),
    Pass(store=lambda r: r.out / r.total[1]),
)
SOFTMAX_OF_HALVES = (  # a stored exponential would be rounded twice
    *(SOFTMAX[0], Pass(reduce=SOFTMAX[1].reduce)),
    Pass(store=lambda r: _exp(r.x[0] - r.total[0]) / r.total[1]),
)
SOFTMAX_VJP = (  # of (g, y)
    Pass(reduce=(("add", lambda r: r.x[0] * r.x[1]),)),
    Pass(store=lambda r: r.x[1] * (r.x[0] - r.total[0])),
)
LOG_SOFTMAX = (
    Pass(reduce=(("max", lambda r: r.x[0]),)),
    Pass(reduce=(("add", lambda r: _exp(r.x[0] - r.total[0])),)),
    Pass(store=lambda r: (r.x[0] - r.total[0]) - call("log", r.total[1])),
)
LOG_SOFTMAX_VJP = (  # of (g, y)
    Pass(reduce=(("add", lambda r: r.x[0]),)),
    Pass(store=lambda r: r.x[0] - _exp(r.x[1]) * r.total[0]),
)


def _centred(r: Row, k: int, total: int) -> Expr:
    """The difference of an element and its row's mean."""
    return r.x[k] - r.total[total] / r.n


def _scale(r: Row, squares: int, eps: float) -> Expr:
    return 1.0 / call("sqrt", r.total[squares] / r.n + eps)


@lru_cache(maxsize=64)
def standardize(eps: float) -> tuple[Pass, ...]:
    return (
        Pass(reduce=(("add", lambda r: r.x[0]),)),
        Pass(reduce=(("add", lambda r: _centred(r, 0, 0) * _centred(r, 0, 0)),)),
        Pass(store=lambda r: _centred(r, 0, 0) * _scale(r, 1, eps)),
    )


@lru_cache(maxsize=64)
def standardize_vjp(eps: float) -> tuple[Pass, ...]:
    """Passes over (g, y, x), where y is the standardised x."""
    return (
        Pass(
            reduce=(
                ("add", lambda r: r.x[0]),
                ("add", lambda r: r.x[0] * r.x[1]),
                ("add", lambda r: r.x[2]),
            )
        ),
        Pass(reduce=(("add", lambda r: _centred(r, 2, 2) * _centred(r, 2, 2)),)),
        Pass(
            store=lambda r: (
                _scale(r, 3, eps) * (r.x[0] - r.total[0] / r.n - r.x[1] * (r.total[1] / r.n))
            )
        ),
    )


@lru_cache(maxsize=64)
def scaled_standardize(eps: float) -> tuple[Pass, ...]:
    """Passes over (x, weight, bias): a standardised row, scaled and shifted."""
    first, second, _ = standardize(eps)
    scaled = Pass(store=lambda r: _centred(r, 0, 0) * _scale(r, 1, eps) * r.x[1] + r.x[2])
    return first, second, scaled


@lru_cache(maxsize=64)
def scaled_standardize_vjp(eps: float) -> tuple[Pass, ...]:
    """Passes over (g, x, weight): the derivative of a scaled row by x."""

    def weighted(r: Row) -> Expr:
        return r.x[0] * r.x[2]

    def stored(r: Row) -> Expr:
        scale = _scale(r, 2, eps)
        along = _centred(r, 1, 0) * scale * (scale * r.total[3] / r.n)
        return scale * (weighted(r) - r.total[1] / r.n - along)

    return (
        Pass(reduce=(("add", lambda r: r.x[1]), ("add", weighted))),
        Pass(
            reduce=(
                ("add", lambda r: _centred(r, 1, 0) * _centred(r, 1, 0)),
                ("add", lambda r: weighted(r) * _centred(r, 1, 0)),
            )
        ),
        Pass(store=stored),
    )


@lru_cache(maxsize=64)
def _scaled_standardize_gradients(eps: float) -> tuple[Pass, ...]:
    """The same, and the gradients of weight and bias."""
    *before, last = scaled_standardize_vjp(eps)
    weight: Body = lambda r: r.x[0] * (_centred(r, 1, 0) * _scale(r, 2, eps))  # noqa: E731
    return (*before, last._replace(columns=(weight, lambda r: r.x[0])))


def scaled_standardize_gradients(g: Any, x: Any, weight: Any, eps: float) -> Any:
    """Those of (x, weight, bias), by one kernel; None where there are no rows."""
    if not x.size:
        return None
    n = x.shape[-1]
    arrays = [np.ascontiguousarray(a).reshape(-1, n) for a in (g, x)]
    passes = _scaled_standardize_gradients(eps)
    by_x, by_weight, by_bias = run_with_sums(passes, [*arrays, np.ascontiguousarray(weight)], 1)
    return by_x.reshape(x.shape), by_weight, by_bias


@lru_cache(maxsize=64)
def times_standardized(eps: float) -> tuple[Pass, ...]:
    """Passes over (g, x): g times the standardised x."""
    return (
        Pass(reduce=(("add", lambda r: r.x[1]),)),
        Pass(reduce=(("add", lambda r: _centred(r, 1, 0) * _centred(r, 1, 0)),)),
        Pass(store=lambda r: r.x[0] * (_centred(r, 1, 0) * _scale(r, 1, eps))),
    )


@lru_cache(maxsize=64)
def scaled_rms(eps: float) -> tuple[Pass, ...]:
    """Passes over (x, weight): a row over the root of its mean square, scaled."""
    return (
        Pass(reduce=(("add", lambda r: r.x[0] * r.x[0]),)),
        Pass(store=lambda r: r.x[0] * _scale(r, 0, eps) * r.x[1]),
    )


@lru_cache(maxsize=64)
def _scaled_rms_gradients(eps: float) -> tuple[Pass, ...]:
    """Passes over (g, x, weight): the gradients by x and weight."""

    def stored(r: Row) -> Expr:
        scale = _scale(r, 0, eps)
        return scale * (r.x[0] * r.x[2] - r.x[1] * (scale * scale * (r.total[1] / r.n)))

    weighted: Body = lambda r: r.x[0] * r.x[2] * r.x[1]  # noqa: E731
    weight: Body = lambda r: r.x[0] * (r.x[1] * _scale(r, 0, eps))  # noqa: E731
    return (
        Pass(reduce=(("add", lambda r: r.x[1] * r.x[1]), ("add", weighted))),
        Pass(store=stored, columns=(weight,)),
    )


def scaled_rms_gradients(g: Any, x: Any, weight: Any, eps: float) -> Any:
    """Those of (x, weight), by one kernel; None where there are no rows."""
    if not x.size:
        return None
    n = x.shape[-1]
    arrays = [np.ascontiguousarray(a).reshape(-1, n) for a in (g, x)]
    passes = _scaled_rms_gradients(eps)
    by_x, by_weight = run_with_sums(passes, [*arrays, np.ascontiguousarray(weight)], 1)
    return by_x.reshape(x.shape), by_weight


def _as_rows(a: Any, order: Shape, length: int) -> Any:
    """The array as contiguous rows of `length` elements, its axes permuted to `order`."""
    a = np.transpose(a, order)
    rows = size_of(a.shape) // length if length else 0
    return np.ascontiguousarray(a).reshape(rows, length)


def over_axes(
    passes: Callable[..., tuple[Pass, ...]], inputs: int, shared: int = 0
) -> Callable[..., Any]:
    """A kernel over rows that span `axes`; a parameter `eps`, where there is one, chooses the
    passes. The last `shared` inputs have the shape of a row."""
    small: dict[Any, SmallRows] = {}

    def kernel(*arrays: Any, axes: Shape, **params: Any) -> Any:
        first = arrays[0]
        if axes == (first.ndim - 1,):
            eps = params.get("eps")
            quick = small.get(eps)
            if quick is None:
                if len(small) >= _MOST_SMALL:
                    small.clear()
                quick = small[eps] = SmallRows(passes(**params), inputs, shared)
            if (out := quick(*arrays)) is not None:
                return out
            if all(a.flags.c_contiguous for a in arrays) and first.size:
                own = len(arrays) - shared
                rows = [a.reshape(-1, first.shape[-1]) for a in arrays[:own]]
                return run(passes(**params), [*rows, *arrays[own:]], shared).reshape(first.shape)
        order = (*(a for a in range(first.ndim) if a not in axes), *axes)
        length = size_of(tuple(first.shape[a] for a in axes))
        own = len(arrays) - shared
        rows = [_as_rows(a, order, length) for a in arrays[:own]]
        rows += [np.ascontiguousarray(a) for a in arrays[own:]]
        out = run(passes(**params), rows, shared)
        out = out.reshape(tuple(first.shape[a] for a in order))
        return np.transpose(out, tuple(order.index(a) for a in range(first.ndim)))

    return kernel


def along(passes: tuple[Pass, ...], inputs: int) -> Callable[..., Any]:
    """A kernel along one axis."""
    kernel = over_axes(lambda: passes, inputs)
    quick = SmallRows(passes, inputs)

    def run_along(*arrays: Any, axis: int) -> Any:
        if axis == arrays[0].ndim - 1 and (out := quick(*arrays)) is not None:
            return out
        return kernel(*arrays, axes=(axis,))

    return run_along


_softmax, _softmax_of_halves = along(SOFTMAX, 1), along(SOFTMAX_OF_HALVES, 1)


def softmax(x: Any, axis: int) -> Any:
    return (_softmax_of_halves if is_half(x) else _softmax)(x, axis=axis)


KERNELS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "softmax_vjp": along(SOFTMAX_VJP, 2),
    "log_softmax": along(LOG_SOFTMAX, 1),
    "log_softmax_vjp": along(LOG_SOFTMAX_VJP, 2),
    "standardize": over_axes(standardize, 1),
    "standardize_vjp": over_axes(standardize_vjp, 3),
    "scaled_standardize": over_axes(scaled_standardize, 3, shared=2),
    "scaled_standardize_vjp": over_axes(scaled_standardize_vjp, 3, shared=1),
    "times_standardized": over_axes(times_standardized, 2),
    "scaled_rms": over_axes(scaled_rms, 2, shared=1),
}


@lru_cache(maxsize=_MOST_SMALL)
def small_rows(name: str, eps: float | None = None) -> SmallRows:
    """The kernel of an op on small arrays, for dispatch."""
    passes, inputs, shared = _SMALL_ROWS[name]
    return SmallRows(passes if eps is None else passes(eps), inputs, shared)


_SMALL_ROWS: dict[str, tuple[Any, int, int]] = {
    "softmax": (SOFTMAX, 1, 0),
    "softmax_vjp": (SOFTMAX_VJP, 2, 0),
    "log_softmax": (LOG_SOFTMAX, 1, 0),
    "log_softmax_vjp": (LOG_SOFTMAX_VJP, 2, 0),
    "scaled_standardize": (scaled_standardize, 3, 2),
}

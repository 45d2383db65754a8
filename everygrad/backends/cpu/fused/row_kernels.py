"""Softmax, layer norm and their derivatives as row kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.fused.row_loops import Pass, Row, run
from everygrad.backends.cpu.kernels.half_conversions import is_half
from everygrad.compiler.expr import Expr, call
from everygrad.core.shapes import Shape, size_of


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


def _as_rows(a: Any, order: Shape, length: int) -> Any:
    """The array as contiguous rows of `length` elements, its axes permuted to `order`."""
    a = np.transpose(a, order)
    rows = size_of(a.shape) // length if length else 0
    return np.ascontiguousarray(a).reshape(rows, length)


def over_axes(passes: Callable[..., tuple[Pass, ...]]) -> Callable[..., Any]:
    """A kernel over rows that span `axes`; other keywords choose the passes."""

    def kernel(*arrays: Any, axes: Shape, **params: Any) -> Any:
        first = arrays[0]
        if axes == (first.ndim - 1,) and all(a.flags.c_contiguous for a in arrays):
            flat = [a.reshape(-1, a.shape[-1]) for a in arrays] if first.size else []
            return run(passes(**params), flat).reshape(first.shape) if flat else first.copy()
        order = (*(a for a in range(first.ndim) if a not in axes), *axes)
        length = size_of(tuple(first.shape[a] for a in axes))
        out = run(passes(**params), [_as_rows(a, order, length) for a in arrays])
        out = out.reshape(tuple(first.shape[a] for a in order))
        return np.transpose(out, tuple(order.index(a) for a in range(first.ndim)))

    return kernel


def along(passes: tuple[Pass, ...]) -> Callable[..., Any]:
    """A kernel along one axis."""
    kernel = over_axes(lambda: passes)
    return lambda *arrays, axis: kernel(*arrays, axes=(axis,))


_softmax, _softmax_of_halves = along(SOFTMAX), along(SOFTMAX_OF_HALVES)


def softmax(x: Any, axis: int) -> Any:
    return (_softmax_of_halves if is_half(x) else _softmax)(x, axis=axis)


KERNELS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "softmax_vjp": along(SOFTMAX_VJP),
    "log_softmax": along(LOG_SOFTMAX),
    "log_softmax_vjp": along(LOG_SOFTMAX_VJP),
    "standardize": over_axes(standardize),
    "standardize_vjp": over_axes(standardize_vjp),
}

"""Sorting, the k largest, where values would stand in what is sorted."""

from __future__ import annotations

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem


def _x(d: Draw, distinct: bool = False):
    shape = tuple(max(1, n) for n in d.any_shape(least=1, most=3))
    dtype = d.dtype()
    axis = d.between(0, len(shape) - 1)
    if distinct:  # along the axis, so that the gradient has one place to go
        order = d._values.random(shape).argsort(axis=axis)
        if dtype in ("float16", "bfloat16"):
            dtype = "float32"
        return d.given(order - shape[axis] / 2.0, dtype, repeats=False), shape, axis, dtype
    kind = d.pick(("ties", "floats"))
    return (d.ties if kind == "ties" else d.floats)(shape, dtype), shape, axis, dtype


def sort(d: Draw) -> Problem:
    x, _, axis, dtype = _x(d, True)
    down = d.chance(0.5)
    return Problem(
        (x,),
        lambda t: eg.sort(t, axis=axis, descending=down),
        lambda t: torch.sort(t, dim=axis, descending=down).values,
        "exact",
        dtype=dtype,
    )


def argsort(d: Draw) -> Problem:
    """Stable: equals stay in order, zeros of both signs are equal."""
    x, _, axis, _ = _x(d)
    down = d.chance(0.5)
    return Problem(
        (x,),
        lambda t: eg.argsort(t, axis=axis, descending=down, stable=True),
        lambda t: torch.sort(t, dim=axis, descending=down, stable=True).indices,
        "exact",
    )


def specials(d: Draw) -> Problem:
    """NaN stands last, the first of all where the order falls; infinities beside numbers."""
    shape = tuple(max(1, n) for n in d.any_shape(least=1, most=3))
    axis, down = d.between(0, len(shape) - 1), d.chance(0.5)
    return Problem(
        (d.specials(shape, d.dtype()),),
        lambda t: eg.argsort(t, axis=axis, descending=down),
        lambda t: torch.sort(t, dim=axis, descending=down, stable=True).indices,
        "exact",
    )


def topk(d: Draw) -> Problem:
    x, shape, axis, dtype = _x(d, True)
    k, largest = d.between(1, shape[axis]), d.chance(0.5)
    if d.chance(0.5):
        k = min(k, d.size(40))
    return Problem(
        (x,),
        lambda t: tuple(eg.topk(t, k, axis=axis, largest=largest)),
        lambda t: tuple(torch.topk(t, k, axis, largest)),
        "exact",
        dtype=dtype,
    )


def kthvalue(d: Draw) -> Problem:
    x, shape, axis, dtype = _x(d, True)
    k = d.between(1, shape[axis])
    return Problem(
        (x,),
        lambda t: tuple(eg.kthvalue(t, k, axis)),
        lambda t: tuple(torch.kthvalue(t, k, axis)),
        "exact",
        dtype=dtype,
    )


def median(d: Draw) -> Problem:
    x, _, axis, dtype = _x(d, True)
    q = d.pick((0.0, 0.1, 0.5, 0.75, 1.0))
    return Problem(
        (x,),
        lambda t: eg.quantile(t, q, axis=axis),
        lambda t: torch.quantile(t, q, dim=axis),
        "values",
        dtype=dtype,
    )


def integers(d: Draw) -> Problem:
    """Stable order of integers of every width."""
    shape = tuple(max(1, n) for n in d.any_shape(least=1, most=3))
    axis, kind = d.between(0, len(shape) - 1), d.pick(("int8", "uint8", "int16", "int32", "int64"))
    down, low = d.chance(0.5), 0 if kind == "uint8" else -100
    x = d.integers(shape, low, 100, kind, layout=True)
    return Problem(
        (x,),
        lambda t: [
            eg.argsort(t, axis=axis, descending=down),
            eg.sort(t, axis=axis, descending=down),
        ],
        lambda t: list(reversed(torch.sort(t, dim=axis, descending=down, stable=True))),
        "exact",
    )


def searchsorted(d: Draw) -> Problem:
    n, count = d.size(1 << 14), d.shape(d.pick((1, 2)))
    if d.chance(0.15):
        count = (d.between((1 << 14) - 9, (1 << 14) + 99),)
    dtype, right = d.dtype(halves=0.2), d.pick(("left", "right"))
    if d.chance(0.3):
        dtype = d.pick(("int32", "int64"))
    edges = np.sort(d._values.integers(-50, 50, n))
    values = d._values.integers(-60, 60, count)
    return Problem(
        (d.given(edges, dtype, False, False), d.given(values, dtype, True, False)),
        lambda x, v: eg.searchsorted(x, v, side=right),
        lambda x, v: torch.searchsorted(x, v.contiguous(), side=right),
        "exact",
    )


SECTION = OpSection(
    "ordering",
    ("arg_reduce", "library_calls", "ordering", "search", "single_op", "sort", "threaded_numpy"),
    {
        "sort": (2, sort),
        "argsort": (2, argsort),
        "special argsort": (1, specials),
        "topk": (2, topk),
        "kthvalue": (0.5, kthvalue),
        "sort of integers": (1, integers),
        "quantile": (0.5, median),
        "searchsorted": (1, searchsorted),
    },
)

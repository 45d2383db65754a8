"""Scans along any axis."""

from __future__ import annotations

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem


def cumsum(d: Draw) -> Problem:
    shape, dtype = d.any_shape(least=1), d.dtype()
    axis = d.between(0, len(shape) - 1)
    return Problem(
        (d.floats(shape, dtype),),
        lambda x: eg.cumsum(x, axis),
        lambda x: torch.cumsum(x, axis),
        "sums",
        dtype=dtype,
    )


def cumprod(d: Draw) -> Problem:
    shape, dtype = d.any_shape(least=1), d.dtype(halves=0)
    axis = d.between(0, len(shape) - 1)
    around = min(0.1, 10 / max(1, shape[axis]))  # neither overflows nor vanishes
    return Problem(
        (d.floats(shape, dtype, 1 - around, 1 + around),),
        lambda x: eg.cumprod(x, axis),
        lambda x: torch.cumprod(x, axis),
        "values",
        dtype=dtype,
    )


def extremes(d: Draw) -> Problem:
    shape, name = d.any_shape(least=1), d.pick(("cummax", "cummin"))
    axis, dtype = d.between(0, len(shape) - 1), d.dtype()
    x = d.ties(shape, dtype) if d.chance(0.5) else d.floats(shape, dtype)
    return Problem(
        (x,),
        lambda t: tuple(getattr(eg, name)(t, axis)),
        lambda t: tuple(getattr(torch, name)(t, axis)),
        "plain",
        dtype=dtype,
    )


def integer_extremes(d: Draw) -> Problem:
    shape, name = d.any_shape(least=1), d.pick(("cummax", "cummin"))
    axis, kind = d.between(0, len(shape) - 1), d.pick(("int32", "int64", "uint8", "int8"))
    x = d.integers(shape, 0 if kind == "uint8" else -9, 9, kind, layout=True)
    return Problem(
        (x,),
        lambda t: tuple(getattr(eg, name)(t, axis)),
        lambda t: tuple(getattr(torch, name)(t, axis)),
        "exact",
    )


def logcumsumexp(d: Draw) -> Problem:
    shape, dtype = d.any_shape(least=1), d.dtype(halves=0)
    axis = d.between(0, len(shape) - 1)
    return Problem(
        (d.floats(shape, dtype, -3, 3),),
        lambda x: eg.logcumsumexp(x, axis),
        # not torch.logcumsumexp, which is as far off in float64 as ours
        lambda x: torch.log(torch.cumsum(torch.exp(x), axis)),
        "values",
        floor=4.0,  # of long rows each sum is rounded beside a logarithm of 13
        dtype=dtype,
    )


def integers(d: Draw) -> Problem:
    shape = d.any_shape(least=1)
    axis, kind = d.between(0, len(shape) - 1), d.pick(("int32", "int64", "uint8"))
    x = d.integers(shape, 0, 20, kind, layout=True)
    return Problem(
        (x,),
        lambda t: eg.cumsum(t, axis, dtype="int64"),
        lambda t: torch.cumsum(t, axis, dtype=torch.int64),
        "exact",
    )


SECTION = OpSection(
    "scans",
    ("loop_nest", "ordering", "registry", "scan", "single_op", "sort"),
    {
        "cumsum": (2, cumsum),
        "cumprod": (1, cumprod),
        "cummax": (1, extremes),
        "logcumsumexp": (1, logcumsumexp),
        "cumsum of integers": (0.5, integers),
        "cummax of integers": (0.5, integer_extremes),
    },
)

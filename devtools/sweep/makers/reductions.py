"""Reductions over every pattern of axes, and where the largest lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem
from devtools.sweep.referee import rounded


def _axes(d: Draw, ndim: int) -> tuple[int, ...] | None:
    """Any of the axes, all of them as a tuple, or None for all."""
    if d.chance(0.15):
        return None
    some = [k for k in range(ndim) if d.chance(0.5)]
    return tuple(some or [d.between(0, ndim - 1)])


def _all_axes(axes: tuple[int, ...] | None, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim)) if axes is None else axes


def _shape(d: Draw) -> tuple[int, ...]:
    shape = d.any_shape(least=1)
    return tuple(max(1, n) for n in shape)


def sums(d: Draw) -> Problem:
    name, keep = d.pick(("sum", "sum", "mean")), d.chance(0.4)
    shape = d.any_shape(least=1) if name == "sum" else _shape(d)
    axes, dtype = _axes(d, len(shape)), d.dtype()
    dims = _all_axes(axes, len(shape))
    return Problem(
        (d.floats(shape, dtype),),
        lambda x: getattr(eg, name)(x, axis=axes, keepdims=keep),
        lambda x: getattr(torch, name)(x, dims, keep),
        "sums",
        dtype=dtype,
    )


def squares(d: Draw) -> Problem:
    """What fuses into a sum, before it and behind."""
    shape, axes, dtype = _shape(d), None, d.dtype()
    axes = _axes(d, len(shape))
    dims = _all_axes(axes, len(shape))
    return Problem(
        (d.floats(shape, dtype), d.floats(shape, dtype)),
        lambda x, y: (x * y).sum(axis=axes) * 0.5,
        lambda x, y: (x * y).sum(dims) * 0.5,
        "sums",
        dtype=dtype,
    )


def standardized(d: Draw) -> Problem:
    """Sums over rows, and over some axes of them, of what needs the rows' own sums first."""
    n, a, b = (max(2, k) for k in d.shape(3))
    x = d.floats((n, a, b), "float32", -2, 2)

    def ours(t: Any) -> list[Any]:
        off = t - t.mean(axis=(1, 2), keepdims=True)
        out = off * eg.rsqrt((off * off).mean(axis=(1, 2), keepdims=True) + 0.01)
        return [(out * t).sum(axis=axes) for axes in ((0, 2), (0, 1), (0, 1, 2), (1, 2))]

    def theirs(t: Any) -> list[Any]:
        off = t - t.mean((1, 2), keepdim=True)
        out = off * torch.rsqrt((off * off).mean((1, 2), keepdim=True) + 0.01)
        return [(out * t).sum(axes) for axes in ((0, 2), (0, 1), (0, 1, 2), (1, 2))]

    return Problem((x,), ours, theirs, "values")


def several(d: Draw) -> Problem:
    """Sums over different rows of the same columns, in one pass over them."""
    shape = tuple(max(1, n) for n in d.shape(3, d.elements(1 << 18)))
    if d.chance(0.5):  # many terms of each
        shape = (d.pick((3, 600, 1100)), d.pick((3, 300, 700)), d.size(9))
    some = [d.pick(((0,), (1,), (0, 1), (0, 1, 2))) for _ in range(d.between(2, 3))]

    def of(lib: Any) -> Callable[..., Any]:
        return lambda x, y: [(lib.tanh(x) * y).sum(axes) for axes in some]

    inputs = [d.floats(s, "float32", -2, 2) for s in (shape, shape)]
    return Problem(inputs, of(eg), of(torch), "values", floor=1.0)


def extremes(d: Draw) -> Problem:
    """amax and amin share the gradient among equals."""
    shape, name, keep = _shape(d), d.pick(("amax", "amin")), d.chance(0.4)
    axes, dtype, ties = _axes(d, len(shape)), d.dtype(), d.chance(0.5)
    dims = _all_axes(axes, len(shape))
    x = d.ties(shape, dtype) if ties else d.floats(shape, dtype)
    return Problem(
        (x,),
        lambda t: getattr(eg, name)(t, axis=axes, keepdims=keep),
        lambda t: getattr(torch, name)(t, dims, keep),
        "plain",
        dtype=dtype,
    )


def moments(d: Draw) -> Problem:
    shape, name, keep = _shape(d), d.pick(("var", "std")), d.chance(0.4)
    axes, dtype = _axes(d, len(shape)), d.dtype()
    dims = _all_axes(axes, len(shape))
    count = 1
    for k in dims:
        count *= shape[k]
    correction = d.pick((0, 0, 1)) if count > 2 else 0
    if count < 3:
        name = "var"  # the deviation of two near numbers has any slope
    return Problem(
        (d.floats(shape, dtype),),
        lambda x: getattr(eg, name)(x, axis=axes, correction=correction, keepdims=keep),
        lambda x: getattr(torch, name)(rounded(x), dims, correction=correction, keepdim=keep),
        "values",
        looseness=4.0,  # sums of squares of differences: two passes
        dtype=dtype,
    )


def products(d: Draw) -> Problem:
    """Long ones now and then: their halves are multiplied first."""
    shape, dtype = _shape(d), d.dtype(halves=0)
    if d.chance(0.2):
        shape = d.pick(((1 << 18,), (9, 1 << 15), (1 << 15, 9), (3, 1 << 16, 2)))
    axis = d.between(0, len(shape) - 1)
    around = min(0.1, 10 / max(1, shape[axis]))  # neither overflows nor vanishes
    return Problem(
        (d.floats(shape, dtype, 1 - around, 1 + around, grad=d.chance(0.6)),),
        lambda x: eg.prod(x, axis=axis),
        lambda x: torch.prod(x, axis),
        "values",
        dtype=dtype,
    )


def over_nothing(d: Draw) -> Problem:
    """Along no axis: each element is its own sum."""
    shape, dtype = d.any_shape(), d.dtype(halves=0.3)
    name = d.pick(("sum", "mean", "prod", "max"))
    return Problem(
        (d.floats(shape, dtype),),
        lambda x: getattr(eg, name)(x, axis=()),
        lambda x: x + 0.0 if name in ("sum", "mean") else x * 1,  # sums begin with 0.0
        "exact",
        dtype=dtype,
    )


def logsumexp(d: Draw) -> Problem:
    shape, keep = _shape(d), d.chance(0.4)
    axes, dtype = _axes(d, len(shape)), d.dtype()
    dims = _all_axes(axes, len(shape))
    return Problem(
        (d.floats(shape, dtype, -4, 4),),
        lambda x: eg.logsumexp(x, axis=axes, keepdims=keep),
        lambda x: torch.logsumexp(x, dims, keep),
        "values",
        dtype=dtype,
    )


def places(d: Draw) -> Problem:
    """argmax and argmin: the first of equals."""
    shape, name = _shape(d), d.pick(("argmax", "argmin"))
    axis = None if d.chance(0.2) else d.between(0, len(shape) - 1)
    keep = d.chance(0.3) and axis is not None
    kind = d.pick(("ties", "floats", "int32", "int64", "uint8"))
    if kind in ("ties", "floats"):
        dtype = d.dtype()
        x = (d.ties if kind == "ties" else d.floats)(shape, dtype)
    else:
        x = d.integers(shape, 0 if kind == "uint8" else -50, 50, kind, layout=True)

    def first(t: torch.Tensor) -> torch.Tensor:
        """PyTorch names any of equals; the first is the largest of what falls along the axis."""
        t = t.detach()
        flat, dim = (t.reshape(-1), 0) if axis is None else (t, axis)
        best = (flat.amax if name == "argmax" else flat.amin)(dim, True)
        falling = torch.arange(flat.shape[dim], 0, -1)
        falling = falling.reshape([-1 if k == dim else 1 for k in range(flat.ndim)])
        return ((flat == best) * falling).argmax(dim, keep)

    return Problem((x,), lambda t: getattr(eg, name)(t, axis=axis, keepdims=keep), first, "exact")


def specials(d: Draw) -> Problem:
    """NaN wins over numbers and infinities, wherever it stands and however rows are cut."""
    shape, name, dtype = _shape(d), d.pick(("amax", "amin", "sum")), d.dtype()
    axes = _axes(d, len(shape))
    dims = _all_axes(axes, len(shape))

    def theirs(t: torch.Tensor) -> torch.Tensor:
        out = getattr(torch, name)(t, dims)
        return out + 0.0 if name == "sum" else out.abs()  # any zero of both signs is the largest

    def ours(t: eg.Tensor) -> eg.Tensor:
        out = getattr(eg, name)(t, axis=axes)
        return out + 0.0 if name == "sum" else eg.abs(out)

    return Problem((d.specials(shape, dtype),), ours, theirs, "plain", dtype=dtype)


def special_places(d: Draw) -> Problem:
    """The first NaN, else the first of the largest."""
    shape, name = _shape(d), d.pick(("argmax", "argmin"))
    axis = d.between(0, len(shape) - 1)
    x = d.specials(shape, d.dtype())

    def theirs(t: torch.Tensor) -> torch.Tensor:
        best = (t.amax if name == "argmax" else t.amin)(axis, True)
        hit = torch.where(best.isnan(), t.isnan(), t == best)
        falling = torch.arange(t.shape[axis], 0, -1)
        falling = falling.reshape([-1 if k == axis else 1 for k in range(t.ndim)])
        return (hit * falling).argmax(axis)

    return Problem((x,), lambda t: getattr(eg, name)(t, axis=axis), theirs, "exact")


def logical(d: Draw) -> Problem:
    shape, name = _shape(d), d.pick(("any", "all", "count_nonzero"))
    axes = _axes(d, len(shape))
    x = d.booleans(shape, d.pick((0.5, 0.02, 0.98)))
    dims = _all_axes(axes, len(shape))

    def theirs(t: torch.Tensor) -> torch.Tensor:
        if name == "count_nonzero":
            return torch.count_nonzero(t, dims)
        return getattr(torch, name)(t, dims)

    return Problem((x,), lambda t: getattr(eg, name)(t, axis=axes), theirs, "exact")


def integers(d: Draw) -> Problem:
    """Sums of integers wrap and do not round."""
    shape, kind = _shape(d), d.pick(("int8", "uint8", "int32", "int64"))
    axes = _axes(d, len(shape))
    dims = _all_axes(axes, len(shape))
    name = d.pick(("sum", "amax", "amin"))
    x = d.integers(shape, 0 if kind == "uint8" else -100, 100, kind, layout=True)
    theirs: Callable[[Any], Any] = lambda t: getattr(torch, name)(t, dims)  # noqa: E731
    return Problem((x,), lambda t: getattr(eg, name)(t, axis=axes), theirs, "exact")


SECTION = OpSection(
    "reductions",
    (
        "column_sums",
        "fused",
        "array_graph",
        "group",
        "group_sums",
        "group_threads",
        "loop_nest",
        "loop_writer",
        "numpy_reduce",
        "registry",
        "row_kernel",
        "row_kernels",
        "rows",
        "single_op",
    ),
    {
        "sum": (3, sums),
        "sum of products": (2, squares),
        "sum of standardized": (1, standardized),
        "several sums": (0.7, several),
        "amax": (2, extremes),
        "var": (2, moments),
        "prod": (1, products),
        "sum along no axis": (0.3, over_nothing),
        "logsumexp": (1, logsumexp),
        "argmax": (2, places),
        "special amax": (1, specials),
        "special argmax": (1, special_places),
        "any": (1, logical),
        "integers": (1, integers),
    },
    weight=1.5,
)

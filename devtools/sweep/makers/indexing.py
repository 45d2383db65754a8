"""Gathering and scattering by index, embeddings, masks, slices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Given, Problem


def _x_shape(d: Draw) -> tuple[tuple[int, ...], int]:
    shape = tuple(max(1, n) for n in d.any_shape(least=1, most=3))
    return shape, d.between(0, len(shape) - 1)


def take(d: Draw) -> Problem:
    """Rows by index, many times the same: gradients are added up."""
    shape, axis = _x_shape(d)
    count = d.size(max(1, min(1 << 12, d.elements() * 4 // max(1, shape[axis]))))
    dtype = d.dtype()
    index = d.integers((count,), 0, d.pick((shape[axis], min(shape[axis], 3))))
    return Problem(
        (d.floats(shape, dtype), index),
        lambda x, i: eg.take(x, i, axis=axis),
        lambda x, i: torch.index_select(x, axis, i),
        "sums",
        dtype=dtype,
    )


def gather(d: Draw) -> Problem:
    shape, axis = _x_shape(d)
    dtype = d.dtype()
    part = list(shape)
    part[axis] = d.size(max(1, 2 * shape[axis]))
    index = d.integers(part, 0, shape[axis], layout=True)
    return Problem(
        (d.floats(shape, dtype), index),
        lambda x, i: eg.gather(x, i, axis=axis),
        lambda x, i: torch.gather(x, axis, i),
        "sums",
        dtype=dtype,
    )


def embedding(d: Draw) -> Problem:
    rows, width = d.shape(2)
    rows, dtype = max(1, rows), d.dtype()
    shape = d.shape(d.pick((1, 2)), d.elements(1 << 12))
    index = d.integers(shape, 0, d.pick((rows, min(rows, 4))))
    return Problem(
        (d.floats((rows, width), dtype), index),
        lambda w, i: eg.embedding(i, w),
        lambda w, i: torch.nn.functional.embedding(i, w),
        "sums",
        dtype=dtype,
    )


def scatter_add(d: Draw) -> Problem:
    shape, axis = _x_shape(d)
    dtype = d.dtype(halves=0)
    part = list(shape)
    part[axis] = d.size(max(1, 3 * shape[axis]))
    index = d.integers(part, 0, d.pick((shape[axis], min(shape[axis], 2))))
    return Problem(
        (d.floats(shape, dtype), index, d.floats(part, dtype)),
        lambda x, i, s: eg.scatter_add(x, i, s, axis=axis),
        lambda x, i, s: torch.scatter_add(x, axis, i, s),
        "sums",
        dtype=dtype,
    )


def scatter_add_whole(d: Draw) -> Problem:
    """Sums of integers are exact, whoever adds them."""
    (shape, axis), kind = _x_shape(d), d.pick(("int32", "int64", "int8"))
    part = list(shape)
    part[axis] = d.size(max(1, 3 * shape[axis]))
    index = d.integers(part, 0, d.pick((shape[axis], min(shape[axis], 2))))
    x, s = (d.integers(n, -9, 9, kind, layout=True) for n in (shape, part))
    return Problem(
        (x, index, s),
        lambda x, i, s: eg.scatter_add(x, i, s, axis=axis),
        lambda x, i, s: torch.scatter_add(x, axis, i, s),
        "exact",
    )


def index_add(d: Draw) -> Problem:
    shape, axis = _x_shape(d)
    dtype = d.dtype(halves=0)
    part = list(shape)
    part[axis] = d.size(max(1, 3 * shape[axis]))
    index = d.integers((part[axis],), 0, shape[axis])
    return Problem(
        (d.floats(shape, dtype), index, d.floats(part, dtype)),
        lambda x, i, s: eg.index_add(x, i, s, axis=axis),
        lambda x, i, s: torch.index_add(x, axis, i, s),
        "sums",
        dtype=dtype,
    )


def _with_zeros(g: Given, zero: float) -> Given:
    a = g.array
    return replace(g, array=np.where(a == 0, a.dtype.type(zero), a))


def scatter_extreme(d: Draw) -> Problem:
    """The largest or smallest of what falls on a place; constants, for ties share gradients."""
    shape, axis = _x_shape(d)
    dtype, reduce = d.dtype(halves=0), d.pick(("amax", "amin"))
    keep = d.chance(0.5)
    part = list(shape)
    part[axis] = d.size(max(1, 3 * shape[axis]))
    index = d.integers(part, 0, shape[axis])
    x, s = d.floats(shape, dtype, grad=False), d.floats(part, dtype, grad=False)
    # of zeros of both signs on one place either is the largest, as the order has it: one sign
    zero = d.pick((0.0, -0.0))
    x, s = _with_zeros(x, zero), _with_zeros(s, zero)
    return Problem(
        (x, index, s),
        lambda x, i, s: eg.scatter(x, i, s, axis=axis, reduce=reduce, include_self=keep),
        lambda x, i, s: torch.scatter_reduce(x, axis, i, s, reduce, include_self=keep),
        "exact",
        dtype=dtype,
    )


def put(d: Draw) -> Problem:
    """Rows written at places that are all different."""
    shape, axis = _x_shape(d)
    dtype = d.dtype()
    count = d.between(1, shape[axis])
    places = d._values.permutation(shape[axis])[:count]
    part = list(shape)
    part[axis] = count
    return Problem(
        (d.floats(shape, dtype), d.given(places, "int64", False, False), d.floats(part, dtype)),
        lambda x, i, s: eg.index_copy(x, i, s, axis=axis),
        lambda x, i, s: torch.index_copy(x, axis, i, s),
        "exact",
        dtype=dtype,
    )


def assigned(d: Draw) -> Problem:
    """x[index] = rows, at places that are all different."""
    shape, _ = _x_shape(d)
    if d.chance(0.1):  # so many rows that compiled code looks for the last write to each
        shape = (d.pick((1 << 17, 1 << 18)) + d.between(-2, 2),)
    dtype, count = d.dtype(), d.between(1, shape[0])
    places = d._values.permutation(shape[0])[:count]

    def ours(x: Any, i: Any, s: Any) -> Any:
        out = x.clone()
        out[i] = s
        return out

    return Problem(
        (
            d.floats(shape, dtype),
            d.given(places, "int64", False, False),
            d.floats((count, *shape[1:]), dtype),
        ),
        ours,
        lambda x, i, s: x.index_put((i,), s),
        "exact",
        dtype=dtype,
    )


def masked(d: Draw) -> Problem:
    shape, dtype = d.any_shape(least=1), d.dtype()
    mask = d.booleans(shape if d.chance(0.6) else shape[-1:], d.pick((0.5, 0.1, 0.9)))
    return Problem(
        (d.floats(shape, dtype), mask, d.floats(shape, dtype)),
        lambda x, m, y: eg.where(m, x, y),
        lambda x, m, y: torch.where(m, x, y),
        "exact",
        dtype=dtype,
    )


def selected(d: Draw) -> Problem:
    """How many there are depends on values: only eagerly."""
    shape, dtype = d.any_shape(least=1), d.dtype()
    mask = d.booleans(shape, d.pick((0.5, 0.02, 0.98)))
    return Problem(
        (d.floats(shape, dtype), mask),
        eg.masked_select,
        torch.masked_select,
        "exact",
        compiled=False,
        dtype=dtype,
    )


def places(d: Draw) -> Problem:
    """nonzero of booleans and numbers."""
    shape = d.any_shape(least=1)
    mask = d.booleans(shape, d.pick((0.5, 0.02, 0.98)))
    return Problem(
        (mask,),
        lambda m: tuple(eg.nonzero(m)),
        lambda m: tuple(torch.nonzero(m, as_tuple=True)),
        "exact",
        compiled=False,
    )


def slices(d: Draw) -> Problem:
    """x[a:b:c, ...], and its gradient, which is zeros around what was seen."""
    shape, dtype = d.any_shape(least=1), d.dtype()
    key = []
    for n in shape:
        low, high = d.between(0, n), d.between(0, n)
        key.append(slice(min(low, high), max(low, high), d.pick((1, 1, 2, 3))))
    return Problem(
        (d.floats(shape, dtype),),
        lambda x: x[tuple(key)] * 2,
        lambda x: x[tuple(key)] * 2,
        "sums",
        dtype=dtype,
    )


SECTION = OpSection(
    "indexing",
    (
        "copy_index",
        "copy_kernels",
        "cross_entropy",
        "gather",
        "gather_scatter",
        "launch_kernel",
        "registry",
        "scatter",
        "scatter_sorted",
        "single_op",
    ),
    {
        "take": (2, take),
        "gather": (2, gather),
        "embedding": (1, embedding),
        "scatter_add": (2, scatter_add),
        "scatter_add of integers": (0.5, scatter_add_whole),
        "index_add": (1, index_add),
        "scatter amax": (0.7, scatter_extreme),
        "index_copy": (0.7, put),
        "x[index] = rows": (0.7, assigned),
        "where": (1, masked),
        "masked_select": (0.7, selected),
        "nonzero": (0.5, places),
        "slices": (1, slices),
    },
)

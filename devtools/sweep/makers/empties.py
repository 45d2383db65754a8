"""Arrays without elements: an axis of 0 in every operand that may have one, in most ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem
from everygrad.ops.nn.recurrent import MODES, rnn_sequence


def _emptied(d: Draw, least: int, keep: int = 0) -> tuple[int, ...]:
    """A shape with at least one 0, which is none of its last `keep` axes."""
    sizes = list(d.shape(d.between(least, 4), 2_000))
    sizes = [max(1, n) for n in sizes]
    sizes[d.between(0, len(sizes) - 1 - keep)] = 0
    return tuple(sizes)


Pair = tuple[Callable[..., Any], Callable[..., Any]]
# of one operand with an axis -1 that may be the empty one
ROWS: dict[str, Pair] = {
    "softmax": (lambda x: eg.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "log_softmax": (lambda x: eg.log_softmax(x, -1), lambda x: torch.log_softmax(x, -1)),
    "cumsum": (lambda x: eg.cumsum(x, -1), lambda x: torch.cumsum(x, -1)),
    "cumprod": (lambda x: eg.cumprod(x, -1), lambda x: torch.cumprod(x, -1)),
    "sum": (lambda x: eg.sum(x, -1), lambda x: torch.sum(x, -1)),
    "sum of all": (eg.sum, torch.sum),
    "prod": (lambda x: eg.prod(x, -1), lambda x: torch.prod(x, -1)),
    "sort": (lambda x: eg.sort(x, axis=-1), lambda x: torch.sort(x, -1).values),
    "tanh": (lambda x: eg.tanh(x) * 2, lambda x: torch.tanh(x) * 2),
    "flip": (lambda x: eg.flip(x, 0) + 1, lambda x: torch.flip(x, (0,)) + 1),
    "transpose": (
        lambda x: eg.permute_dims(x, tuple(range(x.ndim))[::-1]) * 2,
        lambda x: x.permute(tuple(range(x.ndim))[::-1]) * 2,
    ),
    "concat": (lambda x: eg.concat([x, x], axis=-1), lambda x: torch.cat([x, x], -1)),
    "pad": (lambda x: eg.pad(x, ((0, 0),) * (x.ndim - 1) + ((1, 2),)), lambda x: F.pad(x, (1, 2))),
    "where": (lambda x: eg.where(x > 0, x, 0.0), lambda x: torch.where(x > 0, x, 0.0)),
    "argsort": (lambda x: eg.argsort(x, axis=-1), lambda x: torch.argsort(x, -1)),
    "nonzero": (lambda x: eg.count_nonzero(x), lambda x: torch.count_nonzero(x)),
}


def rows(d: Draw) -> Problem:
    name, dtype = d.pick(tuple(ROWS)), d.dtype()
    ours, theirs = ROWS[name]
    return Problem((d.floats(_emptied(d, 1), dtype),), ours, theirs, dtype=dtype)


def products(d: Draw) -> Problem:
    dtype = d.dtype()
    m, k, n = (d.size(40) for _ in range(3))
    batch = [d.size(4) for _ in range(d.between(0, 2))]
    which = d.between(0, 2 + bool(batch))
    if which < 3:
        m, k, n = (0 if which == i else v for i, v in enumerate((m, k, n)))
    else:
        batch[0] = 0
    x, y = d.floats((*batch, m, k), dtype), d.floats((*batch, k, n), dtype)
    scale = d.pick((None, 2.0))  # what follows would be part of the product's kernel

    def product(a: Any, b: Any) -> Any:
        return a @ b if scale is None else a @ b * scale + 1.0

    return Problem((x, y), product, product, "sums", floor=1.0, dtype=dtype)


def normed(d: Draw) -> Problem:
    """Norms of rows, of which there are none."""
    shape, dtype = _emptied(d, 2, keep=1), d.dtype()
    n = shape[-1]
    x, w, b = (d.floats(s, dtype) for s in (shape, (n,), (n,)))
    if d.chance(0.4):
        return Problem(
            (x, w),
            lambda x, w: eg.rms_norm(x, (n,), w),
            lambda x, w: F.rms_norm(x, (n,), w),
            dtype=dtype,
        )
    return Problem(
        (x, w, b),
        lambda x, w, b: eg.layer_norm(x, (n,), w, b),
        lambda x, w, b: F.layer_norm(x, (n,), w, b),
        dtype=dtype,
    )


def places(d: Draw) -> Problem:
    """Where the largest of each row is, of no rows."""
    x, name = d.floats(_emptied(d, 2, keep=1), d.dtype(), grad=False), d.pick(("argmax", "argmin"))
    return Problem(
        (x,),
        lambda x: getattr(eg, name)(x, axis=-1),
        lambda x: getattr(torch, name)(x, -1),
        "exact",
    )


def images(d: Draw) -> Problem:
    """A convolution or pooling of no images."""
    c, out, dtype = d.size(20), d.size(20), d.dtype(halves=0)
    plane = (d.size(12, 3), d.size(12, 3))
    x, w = d.floats((0, c, *plane), dtype), d.floats((out, c, 3, 3), dtype)
    if d.chance(0.5):
        return Problem((x, w), eg.conv2d, F.conv2d, "sums", dtype=dtype)
    return Problem((x,), lambda x: eg.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), dtype=dtype)


def gathered(d: Draw) -> Problem:
    """Indices that are none, into something or nothing."""
    dtype, n = d.dtype(), d.pick((0, 0, 5))
    width = d.size(20)
    x, i = d.floats((n, width), dtype), d.integers((0,), 0, 1)
    name = d.pick(("index_select", "x[i]", "scatter_add"))
    if name == "scatter_add":
        j = d.integers((0, width), 0, 1)
        y = d.floats((0, width), dtype)
        return Problem(
            (x, j, y),
            lambda x, j, y: eg.scatter_add(x, 0, j, y),
            lambda x, j, y: torch.scatter_add(x, 0, j, y),
            "sums",
            dtype=dtype,
        )
    if name == "x[i]":
        return Problem((x, i), lambda x, i: x[i], lambda x, i: x[i], dtype=dtype)
    return Problem(
        (x, i),
        lambda x, i: eg.index_select(x, 0, i),
        lambda x, i: torch.index_select(x, 0, i),
        dtype=dtype,
    )


def attention(d: Draw) -> Problem:
    """No queries, no images, rows without elements; of keys at least one."""
    queries, keys, width, depth = d.size(9), d.size(9), d.size(16), d.size(16)
    batch, empty = d.pick((0, 2)), d.pick(("queries", "queries", "width", "depth", "both"))
    if batch and empty == "queries":
        queries = 0
    width = 0 if empty in ("width", "both") else width
    depth = 0 if empty in ("depth", "both") else depth
    shapes = ((batch, 2, queries, width), (batch, 2, keys, width), (batch, 2, keys, depth))
    return Problem(
        tuple(d.floats(s) for s in shapes),
        lambda q, k, v: eg.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5),
        lambda q, k, v: torch.softmax(q @ k.mT * 0.5, -1) @ v,
    )


def broadcast(d: Draw) -> Problem:
    """Large operands whose result has no elements: a row, or a column, beside no rows."""
    n, dtype = d.between(1 << 10, 1 << 15), d.dtype()
    shapes = d.pick((((0, n), (n,)), ((1, n), (0, 1)), ((n, 1), (n, 0)), ((0, n), (1, n))))
    return Problem(
        [d.floats(s, dtype, 1, 2) for s in shapes],
        lambda x, y: x * y + x,
        lambda x, y: x * y + x,
        dtype=dtype,
    )


def matrices(d: Draw) -> Problem:
    """Factorisations of no matrices, and of matrices without rows."""
    dtype, n = d.dtype(halves=0, wide=0.5), d.pick((0, 3))
    batch = (0,) if n else d.pick(((), (2,), (0,)))
    x = d.floats((*batch, n, n), dtype, layout=False)
    name = d.pick(("inv", "det", "cholesky", "eigvalsh", "svdvals", "matrix_exp"))
    return Problem(
        (x,), getattr(eg.linalg, name), getattr(torch.linalg, name), compiled=False, dtype=dtype
    )


def searched(d: Draw) -> Problem:
    """Places of no values, and of values among none."""
    edges, values = d.pick(((0, 4), (4, 0), (0, 0)))
    given = [np.sort(d._values.integers(-9, 9, n)) for n in (edges, values)]
    return Problem(
        [d.given(a, "float32", False, False) for a in given],
        eg.searchsorted,
        torch.searchsorted,
        "exact",
    )


def written(d: Draw) -> Problem:
    """No rows written, and rows without elements."""
    n, width, count = d.pick(((5, 3, 0), (5, 0, 2), (0, 3, 0)))
    dtype = d.dtype()
    x, y = (d.floats((rows, width), dtype) for rows in (n, count))
    i = d.integers((count,), 0, 1)

    def ours(x: Any, i: Any, y: Any) -> Any:
        out = x * 2
        out[i] = y
        return out

    def theirs(x: Any, i: Any, y: Any) -> Any:
        return (x * 2).index_put((i,), y)

    return Problem((x, i, y), ours, theirs, dtype=dtype)


def recurrent(d: Draw) -> Problem:
    """No sequences: no states, and no gradient but zeros."""
    mode, dtype = d.pick(("lstm", "gru", "tanh")), d.dtype(halves=0)
    gates, states, *_ = MODES[mode]
    steps, hidden = d.between(1, 3), d.size(9)
    shapes = ((steps, 0, gates * hidden), (0, states * hidden), (gates * hidden, hidden))
    return Problem(
        [d.floats(s, dtype) for s in (*shapes, (gates * hidden,))],
        lambda *given: rnn_sequence(*given, mode=mode),
        lambda x, start, w, b: start.expand(steps, *start.shape) + x.sum() + w.sum() + b.sum(),
        dtype=dtype,
    )


def images_normed(d: Draw) -> Problem:
    """A norm over channels without places; its result has no elements."""
    c, dtype = d.size(9), d.dtype()
    shape = d.pick(((0, c, 3, 2), (2, c, 0, 2)))
    x, w, b = d.floats(shape, dtype), d.floats((c,), dtype), d.floats((c,), dtype)
    mean, var = (d.floats((c,), dtype, 0.5, 2, grad=False) for _ in range(2))
    return Problem(
        (x, w, b, mean, var),
        lambda x, w, b, m, v: eg.nn.functional.batch_norm(x, m, v, w, b),
        lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
        dtype=dtype,
    )


def factored(d: Draw) -> Problem:
    """Factors of matrices without elements."""
    dtype = d.dtype(halves=0, wide=0.5)
    m, n, batch = d.pick(((0, 0, ()), (3, 3, (0,)), (4, 3, (0,)), (3, 0, ())))
    x = d.floats((*batch, m, n), dtype, layout=False)
    square = ("eigh", "slogdet") if m == n else ()
    name = d.pick(("qr", "qr complete", "lu", "svdvals", "fft", "lstsq", *square))
    if name == "qr complete":  # for whose derivative PyTorch has no formula
        return Problem(
            (replace(x, grad=False),),
            lambda x: list(eg.linalg.qr(x, mode="complete")),
            lambda x: list(torch.linalg.qr(x, mode="complete")),
            dtype=dtype,
        )
    if name == "lstsq":
        y = d.floats((*batch, m, 2), dtype, layout=False)
        return Problem(
            (x, y),
            lambda x, y: eg.linalg.lstsq(x, y).solution,
            lambda x, y: torch.linalg.pinv(x) @ y,
            dtype=dtype,
        )
    if name == "fft":
        return Problem(
            (x,),
            lambda x: eg.real(eg.fft.rfftn(x, s=(4, 4))) if 0 not in batch else x * 2,
            lambda x: torch.zeros(4, 3, dtype=x.dtype) + x.sum() if 0 not in batch else x * 2,
            dtype=dtype,
        )
    if name == "svdvals":
        return Problem((x,), eg.linalg.svdvals, torch.linalg.svdvals, dtype=dtype)
    return Problem(
        (x,),
        lambda x: list(getattr(eg.linalg, name)(x)),
        lambda x: list(getattr(torch.linalg, name)(x)),
        dtype=dtype,
    )


SECTION = OpSection(
    "empties",
    ("loop_nest",),
    {
        "rows without elements": (4, rows),
        "products without elements": (2, products),
        "norms of no rows": (1, normed),
        "places in no rows": (0.4, places),
        "no images": (1, images),
        "no indices": (1, gathered),
        "attention of nothing": (0.5, attention),
        "no matrices": (0.5, matrices),
        "factors of nothing": (0.7, factored),
        "searches in nothing": (0.3, searched),
        "no rows written": (0.4, written),
        "no sequences": (0.3, recurrent),
        "norms of no places": (0.4, images_normed),
        "broadcast to nothing": (0.4, broadcast),
    },
    weight=0.5,
)

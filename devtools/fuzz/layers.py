"""Makers of the larger calls: products, images, rows, losses, indices."""

from __future__ import annotations

import math
from typing import Any

from devtools.fuzz.generate import Builder, Rejected
from devtools.fuzz.program import Ref
from everygrad.core.shapes import size_of
from everygrad.core.tensor import Tensor


def scaled(b: Builder, x: Ref, length: int) -> Ref:
    """x by the root of the number of summands: a product keeps the size of its factors."""
    return b.add("multiply", x, round(1 / math.sqrt(length), 3)) if length > 4 else x


def matmul(b: Builder) -> Ref:
    x = b.floating(least=1)
    shape = b.of(x).shape
    n = shape[-1]

    def fits(t: Tensor) -> bool:
        return t.dtype.is_float and t.ndim in (1, 2) and t.shape[0] == n

    try:
        y = b.pick(fits)
    except Rejected:
        more = shape[:-2] if b.rng.random() < 0.5 else ()
        y = b.input((*more, n, b.rng.choice(b.sizes)) if b.rng.random() < 0.8 else (n,))
    return scaled(b, b.add("matmul", x, y), n)


def linear(b: Builder) -> Ref:
    x = b.floating(least=2)
    n = b.of(x).shape[-1]
    try:
        w = b.pick(lambda t: t.dtype.is_float and t.ndim == 2 and t.shape[1] == n)
    except Rejected:
        w = b.input((b.rng.choice(b.sizes), n))
    out = scaled(b, b.add("linear", x, w), n)
    if b.rng.random() < 0.5:
        out = b.add("add", out, b.input(b.of(w).shape[:1]))
    return out


def image(b: Builder) -> Ref:
    """A value of four axes, reshaped to if there is none."""
    try:
        return b.pick(lambda t: t.dtype.is_float and t.ndim == 4 and 0 < t.size <= 4000)
    except Rejected:
        size = b.rng.choice((3, 5, 7, 9))
        return b.input((b.rng.choice((1, 2)), b.rng.choice((1, 2, 4)), size, size))


def conv2d(b: Builder) -> Ref:
    x = image(b)
    channels = b.of(x).shape[1]
    groups = channels if b.rng.random() < 0.2 else 1
    kernel = b.rng.choice(((1, 1), (2, 2), (3, 3), (3, 2)))
    out = groups * b.rng.choice((1, 2, 3))
    w = b.input((out, channels // groups, *kernel))
    kwargs: dict[str, Any] = {
        "stride": b.rng.choice((1, 1, 2)), "padding": b.rng.choice((0, 1, 2)),
        "dilation": b.rng.choice((1, 1, 2)), "groups": groups,
    }  # fmt: skip
    args = [x, w]
    if b.rng.random() < 0.5:
        args.append(b.input((out,)))
    return scaled(b, b.add("conv2d", *args, **kwargs), channels * size_of(kernel))


def pool(b: Builder) -> Ref:
    x = image(b)
    name = b.rng.choice(("max_pool2d", "avg_pool2d"))
    kernel = b.rng.choice((2, 3))
    kwargs = {"stride": b.rng.choice((1, 2)), "padding": b.rng.choice((0, 1))}
    return b.add(name, x, kernel, **kwargs)


def rows(b: Builder) -> Ref:
    """Softmax, layer norm and their kin."""
    x = b.floating(least=1, nonempty=True)
    shape = b.of(x).shape
    axis = b.rng.choice((-1, -1, b.rng.randrange(len(shape))))
    name = b.rng.choice(("softmax", "log_softmax", "standardize", "layer_norm", "logsumexp"))
    if name != "layer_norm":
        return b.add(name, x, axis=axis)
    tail = shape[-b.rng.randrange(1, min(2, len(shape)) + 1) :]
    given: dict[str, Any] = {}
    if b.rng.random() < 0.6:
        given["weight"] = b.input(tail, str(b.of(x).dtype))
        given["bias"] = b.input(tail, str(b.of(x).dtype))
    return b.add("layer_norm", x, normalized_shape=tail, **given)


def losses(b: Builder) -> Ref:
    x = b.pick(lambda t: t.dtype.is_float and t.ndim == 2 and t.size > 0)
    n, classes = b.of(x).shape
    reduced = b.rng.choice(("mean", "sum", "none"))
    if b.rng.random() < 0.3:
        shape, dtype = b.of(x).shape, b.of(x).dtype
        y = b.pick(lambda t: t.shape == shape and t.dtype is dtype)
        return b.add("mse_loss", x, y, reduction=reduced)
    target = b.input((n,), "int64", 0, classes)
    return b.add("cross_entropy", x, target, reduction=reduced)


def attention(b: Builder) -> Ref:
    x = b.pick(lambda t: t.dtype.is_float and t.ndim in (2, 3, 4) and 0 < t.size <= 2000)
    shape = b.of(x).shape
    others = [x if b.rng.random() < 0.3 else b.input(shape) for _ in range(2)]
    return b.add("attention", x, *others, causal=b.rng.random() < 0.5)


# --- indices -------------------------------------------------------------------------------------


def picks(b: Builder) -> Ref:
    x = b.floating(least=1, nonempty=True)
    shape = b.of(x).shape
    axis = b.rng.randrange(len(shape))
    size = shape[axis]
    name = b.rng.choice(("take", "gather", "index_add", "scatter_add", "take_along_axis",
                         "index_select", "embedding"))  # fmt: skip
    count = b.rng.choice((1, 2, 3, size))
    part = (*shape[:axis], count, *shape[axis + 1 :])
    if name == "embedding":
        return b.add(name, b.input(b.shape(0, 2), "int64", 0, shape[0]), x)
    if name in ("gather", "take_along_axis"):
        return b.add(name, x, b.input(part, "int64", 0, size), axis=axis)
    if name in ("take", "index_select"):
        return b.add(name, x, b.input((count,), "int64", 0, size), axis=axis)
    source = b.input(part, str(b.of(x).dtype))
    places = (count,) if name == "index_add" else part
    return b.add(name, x, b.input(places, "int64", 0, size), source, axis=axis)

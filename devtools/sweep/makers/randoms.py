"""Random numbers against Philox 4x32-10 written out: the same bits on every device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem

_LOW = np.uint64(0xFFFFFFFF)
_KEPT = {"float32": 24, "float16": 11, "bfloat16": 8}  # bits that a dtype holds


def philox(seed: int, count: int, first: int = 0) -> Any:
    """`count` words of the stream of `seed`, from block `first` on (Salmon et al., 2011)."""
    blocks = -(-count // 4)
    places = np.arange(first, first + blocks, dtype=np.uint64)
    zero = np.zeros_like(places)
    c = [places & _LOW, places >> np.uint64(32), zero, zero]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            p0 & _LOW,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1).reshape(-1)[:count]


def unit(words: Any, bits: int) -> Any:
    return np.floor(words.astype(np.float64) * 2.0 ** (bits - 32)) * 2.0**-bits


def _drawn(d: Draw, ours: Any, theirs: Any, scale: Any, **more: Any) -> Problem:
    """A draw beside another tensor, which fuses with it; it is the second result."""
    shape = theirs.shape
    x = d.floats(shape, "float32", -1, 1)
    right = torch.from_numpy(theirs)
    return Problem((x,), lambda t: [ours(), t * 2], lambda t: [right, t * 2], scale, **more)


def rand(d: Draw) -> Problem:
    shape, seed = d.any_shape(), d.between(0, 2**40)
    if d.chance(0.05):
        shape = (0, 3)
    dtype = d.dtype(halves=0.2)
    count = math.prod(shape)
    if dtype == "float64":
        words = philox(seed, 2 * count)
        whole = words[:count] >> np.uint64(5) << np.uint64(26) | words[count:] >> np.uint64(6)
        right = whole.astype(np.float64) * 2.0**-53
    else:
        right = unit(philox(seed, count), _KEPT[dtype])
    ours = lambda: eg.rand(shape, dtype, d.device, eg.Generator(seed))  # noqa: E731
    return _drawn(d, ours, right.reshape(shape), "exact", dtype=dtype)


def randn(d: Draw) -> Problem:
    shape, seed = d.any_shape(), d.between(0, 2**40)
    count = math.prod(shape)
    u, v = (unit(philox(seed, count, k * -(-count // 4)), 24) for k in (0, 1))
    right = np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v)
    ours = lambda: eg.randn(shape, "float32", d.device, eg.Generator(seed))  # noqa: E731
    return _drawn(d, ours, right.reshape(shape), "values", floor=4.0)  # near zero of the cosine


def randint(d: Draw) -> Problem:
    shape, seed = d.any_shape(), d.between(0, 2**40)
    low, span = d.between(-(2**20), 2**20), d.pick((1, 2, 3, 256, 1000, 2**31 - 2**21, 2**16))
    right = (philox(seed, math.prod(shape)) * np.uint64(span) >> np.uint64(32)).astype(
        np.int64
    ) + low
    ours = lambda: eg.randint(low, low + span, shape, "int64", d.device, eg.Generator(seed))  # noqa: E731
    return _drawn(d, ours, right.reshape(shape), "exact")


def dropout(d: Draw) -> Problem:
    """What is kept is divided by how much is kept; its gradient likewise."""
    shape, seed, p = d.any_shape(least=1), d.between(0, 2**40), d.pick((0.1, 0.5, 0.9))
    words = unit(philox(seed, math.prod(shape)), 24).reshape(shape).astype(np.float32)
    kept = torch.from_numpy((words < np.float32(1 - p)).astype(np.float64))
    return Problem(
        (d.floats(shape),),
        lambda x: eg.dropout(x, p, generator=eg.Generator(seed)),
        lambda x: x * kept / (1 - p),
        "sums",
    )


SECTION = OpSection(
    "randoms",
    ("fused", "philox_llvm", "random_bits", "registry"),
    {"rand": (2, rand), "randn": (1, randn), "randint": (1, randint), "dropout": (1, dropout)},
    weight=0.5,
)

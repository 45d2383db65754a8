"""Attention: causal, masked, grouped queries, many sizes of heads."""

from __future__ import annotations

import math

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem
from devtools.sweep.referee import softmax

SCORES = 1 << 24  # of all heads together


def attention(d: Draw) -> Problem:
    batch, heads = d.pick((1, 1, 2, 3)), d.pick((1, 2, 3, 8))
    causal = d.chance(0.4)
    budget = d.elements(1 << 18)
    queries, keys = d.shape(2, max(4, budget // 4))
    keys = max(1, keys)  # the softmax of nothing is nothing
    if d.chance(0.4):  # the referee has all scores at once, in float64, several times
        keys = queries = min(queries, math.isqrt(SCORES // (batch * heads)))
    if d.device.startswith("webgpu"):  # a software adapter ends long loops, and says so
        keys, queries = min(keys, 8000), min(queries, 8000)
    width = d.size(160 if d.chance(0.3) else 70)
    depth = width if d.chance(0.7) else d.size(100)
    dtype = d.dtype()
    shapes = [(batch, heads, n, w) for n, w in ((queries, width), (keys, width), (keys, depth))]
    groups = d.pick((1, 1, 1, 2)) if heads % 2 == 0 else 1
    if groups > 1:
        shapes[1:] = [(batch, heads // groups, *s[2:]) for s in shapes[1:]]
    inputs = [d.floats(s, dtype, -1.5, 1.5) for s in shapes]
    mask = d.pick(("", "", "added", "boolean")) if not causal else ""
    shape = d.pick(
        [(queries, keys), (batch, 1, queries, keys), (batch, heads, 1, keys), (queries, 1)]
    )
    if mask == "added":
        inputs.append(d.floats(shape, dtype, -2, 2, grad=d.chance(0.3)))
    elif mask:  # every query may look at one key: what else would it see?
        array = d._values.random(shape) < 0.6
        array[..., :1] = True
        inputs.append(d.given(array, "bool", True, False, repeats=False))
    grouped = {"enable_gqa": True} if groups > 1 else {}

    def ours(q: eg.Tensor, k: eg.Tensor, v: eg.Tensor, m: eg.Tensor | None = None) -> eg.Tensor:
        F = eg.nn.functional  # noqa: N806  # the name everyone knows
        return F.scaled_dot_product_attention(q, k, v, m, is_causal=causal, **grouped)

    def theirs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None = None):
        if groups > 1:
            k, v = (t.repeat_interleave(groups, 1) for t in (k, v))
        scores = q @ k.mT / np.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(
                ~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -np.inf
            )
        if m is not None:
            scores = scores.masked_fill(~m, -np.inf) if m.dtype == torch.bool else scores + m
        return softmax(scores, -1) @ v

    # results are means of values up to 1.5, of thousands of them, which cancel
    return Problem(inputs, ours, theirs, "values", floor=0.1, dtype=dtype)


SECTION = OpSection(
    "attention",
    ("attention", "attention_tiles", "flash", "flash_engines", "flash_gradients", "rewriting"),
    {"attention": (1, attention)},
)

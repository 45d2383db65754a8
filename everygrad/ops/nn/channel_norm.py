"""Batch norm as a few ops over channels, for devices that have kernels for them:

channel_moments     mean and variance of each channel, one vector under the other
channel_norm        x standardised in each channel, scaled and shifted
channel_norm_grads  the derivatives of <g, channel_norm> by x, weight and bias, flat
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.amp.policy import policy
from everygrad.core import shapes
from everygrad.core.context import intercepted, tracing
from everygrad.core.tensor import Tensor
from everygrad.dispatch import CPU, apply
from everygrad.ops.elementwise.basic import rsqrt
from everygrad.ops.nn.softmax_and_norm import standardize
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel
from everygrad.ops.record.spec import register, sample
from everygrad.ops.shape.joining import concat, stack
from everygrad.ops.shape.movement import SLICE


def _axes(x: Tensor) -> shapes.Shape:
    return (0, *range(2, x.ndim))


def _over_places(t: Tensor, ndim: int) -> Tensor:
    """A vector over the channels, shaped to broadcast along axis 1."""
    return t.reshape((-1,) + (1,) * (ndim - 2))


def _moments_portable(x: Tensor) -> Tensor:
    return stack((x.mean(axis=_axes(x)), x.var(axis=_axes(x), correction=0)))


def _norm_portable(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    unit = standardize(x, _axes(x), eps)
    return unit * _over_places(weight, x.ndim) + _over_places(bias, x.ndim)


def _parts(g: Tensor, x: Tensor, weight: Tensor, eps: float) -> list[Tensor]:
    """The derivatives by x, weight and bias."""
    axes, n = _axes(x), x.ndim
    unit = standardize(x, axes, eps)
    scale = rsqrt(x.var(axis=axes, keepdims=True, correction=0) + eps)
    inner = g * _over_places(weight, n)
    along = (inner * unit).mean(axis=axes, keepdims=True)
    dx = scale * (inner - inner.mean(axis=axes, keepdims=True) - unit * along)
    return [dx, (g * unit).sum(axis=axes), g.sum(axis=axes)]


def _grads_portable(g: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return concat(_parts(g, x, weight, eps), axis=None)


class _ChannelNorm(Kernel):
    """All derivatives come from one op; those of derivatives from their definition."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        _, x, weight, _ = self.restore(node, create_graph)
        eps = node.params["eps"]
        if create_graph or not type(g._data) is np.ndarray is type(x._data):
            found = _parts(g, x, weight, eps)
        else:
            flat = apply(CHANNEL_NORM_GRADS, g, x, weight, eps=eps)
            sizes = (shapes.size_of(x.shape), x.shape[1], x.shape[1])
            starts = (0, sizes[0], sizes[0] + sizes[1])
            cut = [
                apply(SLICE, flat, slices=((a, n, 1),)) for a, n in zip(starts, sizes, strict=True)
            ]
            found = [cut[0].reshape(x.shape), cut[1], cut[2]]
        pairs = zip(node.parents, found, strict=True)
        return [None if parent is None else d for parent, d in pairs]


CHANNEL_MOMENTS: Kernel = Kernel("channel_moments", _moments_portable, ("x",))
CHANNEL_NORM: Kernel = _ChannelNorm(
    "channel_norm",
    _norm_portable,
    ("x", "weight", "bias"),
    (lambda g, x, weight: g, lambda g, x, weight: g, lambda g, x, weight: g),
)
CHANNEL_NORM_GRADS: Kernel = Kernel("channel_norm_grads", _grads_portable, ("g", "x", "weight"))


def serves(x: Tensor, *others: Tensor | None) -> bool:
    """Whether batch norm of x is computed by these ops: eagerly, where a kernel takes them. Inside
    compiled functions and transformations the ops of the definition join those around them."""
    if intercepted() and (tracing.get() is not None or policy() is not None):
        return False
    if type(x._data) is not np.ndarray or "channel_norm" not in CPU.kernels or not x._data.size:
        return False
    same = all(o is None or (type(o._data) is np.ndarray and o.dtype is x.dtype) for o in others)
    return same and x.ndim > 2 and x.dtype.is_float and x.dtype.itemsize >= 4


def moments(x: Tensor) -> Tensor:
    return apply(CHANNEL_MOMENTS, x)


def channel_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return apply(CHANNEL_NORM, x, weight, bias, eps=float(eps))


_X, _G = s.real(2, 3, 4), s.real(2, 3, 4, seed=1)
_W, _B = s.real(3, seed=2), s.real(3, seed=3)

register(
    CHANNEL_MOMENTS,
    moments,
    kinds="real float",
    reference="tests.support.references.neural:channel_moments",
    namespace="internal",
    samples=lambda: iter((sample(_X), sample(s.real(2, 3, 2, 2)))),
)
register(
    CHANNEL_NORM,
    channel_norm,
    kinds="real float",
    reference="tests.support.references.neural:channel_norm",
    namespace="internal",
    samples=lambda: iter((sample(_X, _W, _B, 1e-3),)),
)
register(
    CHANNEL_NORM_GRADS,
    lambda g, x, weight, eps: apply(CHANNEL_NORM_GRADS, g, x, weight, eps=eps),
    kinds="real float",
    reference="tests.support.references.neural:channel_norm_grads",
    namespace="internal",
    samples=lambda: iter((sample(_G, _X, _W, 1e-3),)),
)

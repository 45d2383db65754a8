"""Attention as one op, so that a device need not hold a matrix of queries by keys.

    attention               softmax(q k^T * scale) v, causal or not
    attention_masked        softmax(q k^T * scale + mask) v
    attention_grads         the derivative of <g, attention>: dq, dk, dv one after the other, flat
    attention_masked_grads  the same of <g, attention_masked>
    attention_log_sums      the logarithm of what attention's softmax divides by, for each query
    attention_saved_slopes  attention_grads, where attention and those logarithms are given

q is (*batch, queries, width), k (*batch, keys, width) and v (*batch, keys, depth), batches alike; a
mask has as many axes as q and broadcasts to (*batch, queries, keys). The derivatives have no rules:
they are differentiated again through their portable definitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.compiler import costs
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import DtypeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import exp
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.softmax_and_norm import softmax
from everygrad.ops.python.creation import ones
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import Sample, refuse, register, sample
from everygrad.ops.record.splits import attention_axes
from everygrad.ops.reduce.reductions import logsumexp
from everygrad.ops.shape.joining import concat
from everygrad.ops.shape.movement import SLICE, sum_to

# --- portable definitions ------------------------------------------------------------------------


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    scores = matmul(q * scale, k.matrix_transpose())
    if not causal:
        return scores
    seen = ones(scores.shape[-2:], "bool", scores.device).tril()
    return where(seen, scores, -math.inf)


def _probabilities(q: Tensor, k: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """How much each query looks at each key; a query that may look nowhere looks at none."""
    scores = _scores(q, k, scale, causal)
    if mask is None:
        return softmax(scores)
    closed = mask == -math.inf
    alive = (~closed).any(axis=-1, keepdims=True)
    scores = where(closed & alive, -math.inf, scores + where(closed, 0.0, mask))
    probs: Tensor = where(alive, softmax(scores), 0.0)
    return probs


def _parts(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool
) -> list[Tensor]:
    """The derivatives by q, k, v and the scores."""
    p = _probabilities(q, k, mask, scale, causal)
    dp = matmul(g, v.matrix_transpose())
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    dq, dk = matmul(ds, k) * scale, matmul(ds.matrix_transpose(), q) * scale
    return [dq, dk, matmul(p.matrix_transpose(), g), ds]


def _widened(x: Tensor) -> Tensor:
    return x.astype(dtypes.float32) if x.dtype.bits <= 16 else x


def _wide(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`fn` with half floats widened inside."""

    def run(*inputs: Tensor, **params: Any) -> Tensor:
        dtype = inputs[0].dtype
        if dtype.bits > 16:
            return fn(*inputs, **params)
        return fn(*map(_widened, inputs), **params).astype(dtype)

    return run


@_wide
def _attention_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Tensor:
    return matmul(_probabilities(q, k, mask, scale, causal), v)


@_wide
def _grads_portable(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Tensor:
    return concat(_parts(g, q, k, v, mask, scale, causal)[:3], axis=None)


def _log_sums_portable(q: Tensor, k: Tensor, *, scale: float, causal: bool = False) -> Tensor:
    return logsumexp(_scores(_widened(q), _widened(k), scale, causal), axis=-1)


@_wide
def _slopes_portable(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    *,
    scale: float,
    causal: bool = False,
) -> Tensor:
    p = exp(_scores(q, k, scale, causal) - log_sums.expand_dims(-1))
    dp = matmul(g, v.matrix_transpose())
    ds = p * (dp - (g * out).sum(axis=-1, keepdims=True))
    dq, dk = matmul(ds, k) * scale, matmul(ds.matrix_transpose(), q) * scale
    return concat([dq, dk, matmul(p.matrix_transpose(), g)], axis=None)


# --- records -------------------------------------------------------------------------------------


def _cut(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The pieces of a flat result, shaped as `like`."""
    start, pieces = 0, []
    for x in like:
        count = shapes.size_of(x.shape)
        piece = apply(SLICE, flat, slices=((start, count, 1),))
        pieces.append(piece.reshape(x.shape))
        start += count
    return pieces


class _Attention(Kernel):
    """Attention with or without a mask; all derivatives come from one op, `grads`."""

    grads: Kernel

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        _, q, k, v, *masks = self.restore(node, create_graph)
        if masks and node.parents[3] is not None:
            found = self._with_mask(g, q, k, v, masks[0], **node.params)
        elif any(getattr(t._data, "is_shard", False) for t in (g, q, k, v)):
            # one vector of three derivatives has no axis that is a shard's
            found = self._with_mask(g, q, k, v, *masks, **node.params)[:3]
        else:
            flat = apply(self.grads, g, q, k, v, *masks, **node.params)
            found = _cut(flat, (q, k, v))
        pairs = zip_longest(node.parents, found)
        return [None if parent is None else d for parent, d in pairs]

    def _with_mask(
        self,
        g: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        *,
        scale: float,
        causal: bool = False,
    ) -> list[Tensor]:
        """A mask's derivative is that of the scores: here they are needed as a matrix."""
        dtype = q.dtype
        if dtype.bits <= 16:
            g, q, k, v = (x.astype(dtypes.float32) for x in (g, q, k, v))
            mask = None if mask is None else mask.astype(dtypes.float32)
        *slopes, pairs = _parts(g, q, k, v, mask, scale, causal)
        # summed before it is rounded: a mask may be one number for all pairs
        whole = [] if mask is None else [sum_to(pairs, mask.shape)]
        return [d.astype(dtype) for d in (*slopes, *whole)]


def _batch_grads(op: Callable[[], Kernel]) -> Callable[..., Tensor]:
    """One more leading axis: the pieces of each example brought together."""

    def batch(xs: Sequence[Tensor], **params: Any) -> Tensor:
        pieces = _cut(apply(op(), *xs, **params), xs[1:4])
        rows = [d.reshape(d.shape[0], shapes.size_of(d.shape[1:])) for d in pieces]
        return concat(rows, axis=1)

    return batch


def _mixed(q: Any, k: Any, v: Any, *mask: Any, **params: Any) -> tuple[shapes.Shape, Any]:
    return (*q.shape[:-1], v.shape[-1]), q.dtype


def _for_queries(q: Any, k: Any, **params: Any) -> tuple[shapes.Shape, Any]:
    return q.shape[:-1], dtypes.float32 if q.dtype.bits <= 16 else q.dtype


def _flat(g: Any, *inputs: Any, **params: Any) -> tuple[shapes.Shape, Any]:
    return (sum(shapes.size_of(x.shape) for x in inputs[:3]),), g.dtype


ATTENTION: _Attention = _Attention(
    "attention",
    _attention_portable,
    ("q", "k", "v"),
    (lambda g, q, k, v: g,) * 3,
    linear=(2,),
    batch=lambda xs, **params: apply(ATTENTION, *xs, **params),
    result=_mixed,
    precision="low",
    entry_points=("scaled_dot_product_attention",),
    flops=costs.attention,
    splits=attention_axes,
)
ATTENTION_MASKED: _Attention = _Attention(
    "attention_masked",
    _attention_portable,
    ("q", "k", "v", "mask"),
    (lambda g, q, k, v, mask: g,) * 4,
    linear=(2,),
    batch=lambda xs, **params: apply(ATTENTION_MASKED, *xs, **params),
    result=_mixed,
    precision="low",
    flops=costs.attention,
    splits=attention_axes,
)
ATTENTION_GRADS: Kernel = Kernel(
    "attention_grads",
    _grads_portable,
    ("g", "q", "k", "v"),
    batch=_batch_grads(lambda: ATTENTION_GRADS),
    result=_flat,
    flops=costs.attention_gradients,
)
ATTENTION_MASKED_GRADS: Kernel = Kernel(
    "attention_masked_grads",
    _grads_portable,
    ("g", "q", "k", "v", "mask"),
    batch=_batch_grads(lambda: ATTENTION_MASKED_GRADS),
    result=_flat,
    flops=costs.attention_gradients,
)
ATTENTION_LOG_SUMS: Kernel = Kernel(
    "attention_log_sums",
    _log_sums_portable,
    ("q", "k"),
    batch=lambda xs, **params: apply(ATTENTION_LOG_SUMS, *xs, **params),
    result=_for_queries,
    flops=costs.attention,
)
ATTENTION_SAVED_SLOPES: Kernel = Kernel(
    "attention_saved_slopes",
    _slopes_portable,
    ("g", "q", "k", "v", "out", "log_sums"),
    batch=_batch_grads(lambda: ATTENTION_SAVED_SLOPES),
    result=lambda g, q, k, v, *saved, **params: _flat(g, q, k, v),
    flops=costs.attention_gradients,
)
ATTENTION.grads = ATTENTION_GRADS
ATTENTION_MASKED.grads = ATTENTION_MASKED_GRADS


# --- functions -----------------------------------------------------------------------------------


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    check_kind("attention", q.dtype, "real float")
    if not q.dtype is k.dtype is v.dtype:
        raise DtypeError(f"attention: q, k and v differ: {q.dtype}, {k.dtype}, {v.dtype}")
    alike = q.ndim > 1 and q.shape[:-2] == k.shape[:-2] == v.shape[:-2]
    if not alike or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise ShapeError(
            f"attention: q {q.shape}, k {k.shape} and v {v.shape} must be (*batch, queries, width),"
            f" (*batch, keys, width) and (*batch, keys, depth)"
        )
    if not k.shape[-2]:
        raise ShapeError(f"attention: there are no keys in {k.shape}")


def _scale(q: Tensor, scale: float | None) -> float:
    return float(max(1, q.shape[-1]) ** -0.5 if scale is None else scale)


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, causal: bool = False
) -> Tensor:
    """softmax(q k^T * scale) v; `causal` lets query i look at keys 0 to i."""
    _check(q, k, v)
    return apply(ATTENTION, q, k, v, scale=_scale(q, scale), causal=bool(causal))


def attention_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None
) -> Tensor:
    """softmax(q k^T * scale + mask) v; 0 for a query whose mask is -inf for all keys."""
    _check(q, k, v)
    if mask.dtype is not q.dtype:
        raise DtypeError(f"attention_masked: a mask of {mask.dtype} for scores of {q.dtype}")
    pairs = (*q.shape[:-1], k.shape[-2])
    if mask.ndim != q.ndim or shapes.broadcast("attention_masked", mask.shape, pairs) != pairs:
        raise ShapeError(f"attention_masked: mask {mask.shape} must broadcast to {pairs}")
    return apply(ATTENTION_MASKED, q, k, v, mask, scale=_scale(q, scale))


def attention_log_sums(
    q: Tensor, k: Tensor, scale: float | None = None, causal: bool = False
) -> Tensor:
    """log(sum(exp(q k^T * scale))) for each query, in float32 of halves: what a backward in another
    program needs, with the result itself."""
    _check(q, k, k)
    return apply(ATTENTION_LOG_SUMS, q, k, scale=_scale(q, scale), causal=bool(causal))


def attention_saved_slopes(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    scale: float | None = None,
    causal: bool = False,
) -> list[Tensor]:
    """The derivatives of <g, attention> by q, k and v, by what its forward gave."""
    _check(q, k, v)
    given = (g, q, k, v, out, log_sums)
    params = {"scale": _scale(q, scale), "causal": bool(causal)}
    return _cut(apply(ATTENTION_SAVED_SLOPES, *given, **params), (q, k, v))


def _inputs(
    batch: tuple[int, ...], queries: int, keys: int, width: int, depth: int
) -> tuple[Any, ...]:
    return (
        s.real(*batch, queries, width),
        s.real(*batch, keys, width, seed=1),
        s.real(*batch, keys, depth, seed=2),
    )


def _mask(*shape: int, closed: bool = False) -> Any:
    mask = s.real(*shape, seed=3)
    return np.where(mask < -1, -np.inf, mask) if closed else mask


def _samples() -> Iterator[Sample]:
    yield sample(*_inputs((), 3, 4, 2, 3))
    yield sample(*_inputs((2,), 4, 3, 2, 1), causal=True)
    yield sample(*_inputs((2, 1), 2, 3, 2, 2), scale=0.3)
    yield sample(*_inputs((0,), 2, 3, 2, 2))


def _masked_samples() -> Iterator[Sample]:
    yield sample(*_inputs((), 2, 3, 2, 2), _mask(2, 3, closed=True))
    yield sample(*_inputs((2,), 2, 3, 2, 1), _mask(1, 1, 3), scale=0.5)


def _grad_samples() -> Iterator[Sample]:
    yield sample(s.real(3, 3, seed=4), *_inputs((), 3, 4, 2, 3), 0.5, True)
    yield sample(s.real(2, 2, 1, seed=4), *_inputs((2,), 2, 3, 2, 1), 0.7, False)


def _masked_grad_samples() -> Iterator[Sample]:
    yield sample(s.real(2, 2, seed=4), *_inputs((), 2, 3, 2, 2), _mask(1, 3), 0.5)


def _log_sum_samples() -> Iterator[Sample]:
    yield sample(*_inputs((), 3, 4, 2, 2)[:2])
    yield sample(*_inputs((2,), 4, 3, 2, 2)[:2], scale=0.5, causal=True)
    yield sample(*_inputs((0,), 2, 3, 2, 2)[:2])


def _slope_samples() -> Iterator[Sample]:
    """With the results that a forward would have given."""
    for batch, sizes, scale, causal in (
        ((), (3, 4, 2, 3), 0.5, True),
        ((2,), (2, 3, 2, 1), 0.7, False),
    ):
        q, k, v = _inputs(batch, *sizes)
        scores = np.float64(q) @ np.swapaxes(k, -1, -2) * scale
        if causal:
            scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
        sums = np.log(np.exp(scores).sum(axis=-1))
        out = np.exp(scores - sums[..., None]) @ v
        g = s.real(*q.shape[:-1], v.shape[-1], seed=4)
        yield sample(g, q, k, v, out.astype(q.dtype), sums.astype(q.dtype), scale, causal)


register(
    ATTENTION,
    attention,
    reference="tests.support.references.basic:attention",
    namespace="internal",
    samples=_samples,
    refuses=(
        refuse(ShapeError, "attention: q .* must be", *_inputs((), 2, 3, 2, 2)[:2], s.real(2, 2)),
        refuse(ShapeError, "attention: there are no keys", *_inputs((), 2, 0, 2, 2)),
        refuse(DtypeError, "attention: does not take int64", *[s.integers(2, 2)] * 3),
    ),
)
register(
    ATTENTION_MASKED,
    attention_masked,
    reference="tests.support.references.basic:attention_masked",
    namespace="internal",
    samples=_masked_samples,
    refuses=(
        refuse(
            ShapeError, "attention_masked: mask", *_inputs((2,), 2, 3, 2, 2), s.real(2, 3, seed=3)
        ),
    ),
)
register(
    ATTENTION_GRADS,
    lambda g, q, k, v, scale, causal: apply(
        ATTENTION_GRADS, g, q, k, v, scale=scale, causal=causal
    ),
    reference="tests.support.references.basic:attention_grads",
    namespace="internal",
    samples=_grad_samples,
)
register(
    ATTENTION_MASKED_GRADS,
    lambda g, q, k, v, mask, scale: apply(ATTENTION_MASKED_GRADS, g, q, k, v, mask, scale=scale),
    reference="tests.support.references.basic:attention_masked_grads",
    namespace="internal",
    samples=_masked_grad_samples,
)
register(
    ATTENTION_LOG_SUMS,
    attention_log_sums,
    reference="tests.support.references.basic:attention_log_sums",
    namespace="internal",
    samples=_log_sum_samples,
)
register(
    ATTENTION_SAVED_SLOPES,
    lambda g, q, k, v, out, log_sums, scale, causal: apply(
        ATTENTION_SAVED_SLOPES, g, q, k, v, out, log_sums, scale=scale, causal=causal
    ),
    reference="tests.support.references.basic:attention_saved_slopes",
    namespace="internal",
    samples=_slope_samples,
)

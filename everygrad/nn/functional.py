"""The functions behind the layers, for use without them: `import everygrad.nn.functional as F`."""

from __future__ import annotations

import math

from everygrad import shapes
from everygrad.autograd.modes import no_grad
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.attention import attention, attention_masked
from everygrad.ops.conv import avg_pool2d as avg_pool2d, conv2d as conv2d, max_pool2d as max_pool2d
from everygrad.ops.creation import ones, zeros
from everygrad.ops.elementwise import rsqrt, where
from everygrad.ops.functions import (
    gelu as _gelu,
    relu as relu,
    sigmoid as sigmoid,
    silu as silu,
    softplus as _softplus,
    tanh as tanh,
)
from everygrad.ops.inplace import assign
from everygrad.ops.linalg import linear as _linear, linear_bias, matmul
from everygrad.ops.losses import cross_entropy as cross_entropy, mse_loss as mse_loss
from everygrad.ops.neural import (
    dropout as dropout,
    embedding as _embedding,
    layer_norm as layer_norm,
    log_softmax as log_softmax,
    softmax as softmax,
    standardize,
)
from everygrad.tensor import Tensor


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight^T + bias, the weight being (out features, in features)."""
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear: a weight (out, in) of shape {weight.shape} does not take x of {x.shape}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(f"linear: bias {bias.shape} must have shape {weight.shape[:1]}")
    if x.ndim > 1:
        return _linear(x, weight) if bias is None else linear_bias(x, weight, bias)
    out = matmul(x, weight.permute_dims((1, 0)))
    return out if bias is None else out + bias


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the share of a standard normal below x; "tanh" gives the older approximation."""
    if approximate == "none":
        out: Tensor = _gelu(x)
        return out
    if approximate != "tanh":
        raise ArgumentError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}')
    inside = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    approximation: Tensor = 0.5 * x * (1.0 + tanh(inside))
    return approximation


def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where it is positive, negative_slope * x elsewhere."""
    out: Tensor = where(x > 0, x, x * negative_slope)
    return out


def softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta x)) / beta; x itself where beta x is above the threshold."""
    if not beta > 0:
        raise ArgumentError(f"softplus: beta must be positive, got {beta!r}")
    scaled = x * beta
    out: Tensor = where(scaled > threshold, x, _softplus(scaled) / beta)
    return out


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of `weight` that the indices name; row `padding_idx` gets no gradient."""
    rows: Tensor = _embedding(indices, weight)
    if padding_idx is None:
        return rows
    pad = padding_row(padding_idx, weight.shape[0])
    kept: Tensor = where((indices == pad).expand_dims(-1), rows.detach(), rows)
    return kept


def padding_row(padding_idx: int, count: int) -> int:
    """The row `padding_idx` means in a table of `count` rows, counted from the end if negative."""
    if not -count <= padding_idx < count:
        raise ArgumentError(
            f"embedding: padding_idx {padding_idx} is outside a table of {count} rows"
        )
    return padding_idx % count


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """x, channels along axis 1, standardised over all other axes, then scaled and shifted.

    In training the statistics are the batch's own and derivatives go through them; the running
    ones, if given, move towards them by `momentum`. Otherwise the running ones are used.
    """
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: needs a batch and channels, got shape {x.shape}")
    given = {
        "running_mean": running_mean,
        "running_var": running_var,
        "weight": weight,
        "bias": bias,
    }
    for name, value in given.items():
        if value is not None and value.shape != (x.shape[1],):
            raise ShapeError(f"batch_norm: {name} {value.shape} must have shape {(x.shape[1],)}")
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("batch_norm: give both running_mean and running_var, or neither")
    if training:
        out = _batch_standardized(x, running_mean, running_var, momentum, eps)
        out = out if weight is None else out * _channels(weight, x.ndim)
    elif running_mean is None or running_var is None:
        raise ArgumentError("batch_norm: without training it needs running_mean and running_var")
    else:
        scale = rsqrt(running_var + eps)
        scale = scale if weight is None else scale * weight
        out = (x - _channels(running_mean, x.ndim)) * _channels(scale, x.ndim)
    return out if bias is None else out + _channels(bias, x.ndim)


def _channels(t: Tensor, ndim: int) -> Tensor:
    """A vector over the channels, shaped to broadcast along axis 1."""
    shaped: Tensor = t.reshape((-1,) + (1,) * (ndim - 2))
    return shaped


def _batch_standardized(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float | Tensor,
    eps: float,
) -> Tensor:
    axes = (0, *range(2, x.ndim))
    count = shapes.size_of(tuple(x.shape[a] for a in axes))
    if count < 2:
        raise ShapeError(
            f"batch_norm: training needs more than one value in each channel, got shape {x.shape}"
        )
    out = standardize(x, axes, eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            # the running variance is the unbiased one, though the batch is scaled by the biased
            batch = (
                (running_mean, x.mean(axis=axes)),
                (running_var, x.var(axis=axes, correction=1)),
            )
            for running, now in batch:
                new = running + (now.astype(running.dtype) - running) * momentum
                assign(running, new.detach(), "batch_norm")
    return out


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ key^T * scale) @ value over the last two axes; scale is 1 / sqrt(width).

    A bool mask is True where a query may look at a key, a floating one is added to the scores. A
    query that may look nowhere gives 0. `is_causal` lets query i look at keys 0 to i.
    """
    if min(query.ndim, key.ndim, value.ndim) < 2 or query.shape[-1] != key.shape[-1]:
        raise ShapeError(
            f"scaled_dot_product_attention: query {query.shape} and key {key.shape} must agree in "
            f"their last axis"
        )
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"scaled_dot_product_attention: {key.shape[-2]} keys for {value.shape[-2]} values"
        )
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if dropout_p == 0:
        return _attend(query, key, value, attn_mask, is_causal, scale)
    scores = matmul(query * scale, key.matrix_transpose())
    alive: Tensor | None = None
    if is_causal:
        scores = where(causal_mask(scores), scores, -math.inf)
    elif attn_mask is not None:
        scores, alive = _masked(scores, attn_mask)
    probs = softmax(scores)
    if alive is not None:
        probs = where(alive, probs, 0.0)
    return matmul(dropout(probs, dropout_p), value)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """Without dropout: as one op, on inputs whose batches are alike."""
    name = "scaled_dot_product_attention"
    batch = shapes.broadcast(name, query.shape[:-2], key.shape[:-2], value.shape[:-2])
    given = [query, key, value] if mask is None else [query, key, value, mask]
    if mask is not None and mask.dtype.kind == "bool":
        given[3] = where(mask, zeros((), query.dtype, query.device), -math.inf)
    inputs = operands(name, *given, floating=True)
    q, k, v = (
        x if x.shape[:-2] == batch else x.broadcast_to((*batch, *x.shape[-2:])) for x in inputs[:3]
    )
    if mask is None:
        return attention(q, k, v, scale, causal)
    pairs = (*q.shape[:-1], k.shape[-2])
    if shapes.broadcast("attn_mask", mask.shape, pairs) != pairs:
        raise ShapeError(f"attn_mask: {mask.shape} does not broadcast to scores of {pairs}")
    added = inputs[3].reshape((1,) * (q.ndim - mask.ndim) + mask.shape)
    return attention_masked(q, k, v, added, scale)


def causal_mask(scores: Tensor) -> Tensor:
    """True where the key does not come after the query."""
    allowed: Tensor = ones(scores.shape[-2:], "bool", scores.device).tril()
    return allowed


def _masked(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The scores with the mask applied, rows it closes left open, and which rows are not closed."""
    if shapes.broadcast("attn_mask", mask.shape, scores.shape) != scores.shape:
        raise ShapeError(f"attn_mask: {mask.shape} does not broadcast to scores of {scores.shape}")
    if mask.dtype.kind == "bool":
        alive = mask.any(axis=-1, keepdims=True)
        return where(mask | ~alive, scores, -math.inf), alive
    alive = (mask != -math.inf).any(axis=-1, keepdims=True)
    return scores + where(alive, mask, 0.0), alive

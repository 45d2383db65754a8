"""Attention under every name PyTorch gives it, and the transformer layer it computes as one op."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from everygrad.backends import base
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.torch.aten.derivatives import pulled, pulled_where, wide
from everygrad.interop.torch.aten.registry import Result, Unread, aten
from everygrad.nn.functional import gelu, scaled_dot_product_attention
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import relu
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.attention import (
    ATTENTION_LOG_SUMS,
    attention_log_sums,
    attention_saved_slopes,
)
from everygrad.ops.nn.softmax_and_norm import dropout, layer_norm, softmax
from everygrad.ops.python.creation import ones, zeros
from everygrad.ops.reduce.reductions import logsumexp
from everygrad.ops.shape.joining import pad

Maybe = Tensor | None


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Maybe,
    causal: bool,
    scale: float | None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Heads of the query that are more than those of the key share them."""
    shared = q.ndim > 2 and k.shape[-3] != q.shape[-3]
    out: Tensor = scaled_dot_product_attention(
        q, k, v, mask, dropout_p, causal, scale=scale, enable_gqa=shared
    )
    return out


def _spread_heads(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[-3] == heads else x.repeat_interleave(heads // x.shape[-3], axis=-3)


def _scores(q: Tensor, k: Tensor, mask: Maybe, causal: bool, scale: float | None) -> Tensor:
    q, k = wide(q), wide(k)
    factor = max(1, q.shape[-1]) ** -0.5 if scale is None else scale
    keys = _spread_heads(k, q.shape[-3]) if q.ndim > 2 else k
    scores = matmul(q * factor, keys.mT)
    if causal:
        seen = ones(scores.shape[-2:], "bool", scores.device).tril()
        scores = where(seen, scores, -math.inf)
    if mask is not None and mask.dtype.kind == "bool":
        scores = where(mask, scores, -math.inf)
    elif mask is not None:
        scores = scores + wide(mask)
    return scores


def _log_sums(q: Tensor, k: Tensor, mask: Maybe, causal: bool, scale: float | None) -> Tensor:
    """The logarithm of what the softmax divides by, which PyTorch keeps for its backward."""
    if mask is None and q.shape[:-2] == k.shape[:-2]:
        return attention_log_sums(q, k, scale, causal)
    return logsumexp(_scores(q, k, mask, causal, scale), axis=-1)


def _slopes(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    causal: bool,
    scale: float | None,
) -> tuple[Tensor, ...]:
    """The derivatives, by what the forward gave where the device has kernels for that: where it has
    none, `unread_without_kernels` puts zeros in its place."""
    if not q.shape[:-2] == k.shape[:-2] == v.shape[:-2] or not serves_log_sums(q, k):
        return pulled(lambda q, k, v: _attend(q, k, v, None, causal, scale), g, q, k, v)
    log_sums = log_sums.reshape((*q.shape[:-2], -1))[..., : q.shape[-2]]
    return tuple(attention_saved_slopes(g, q, k, v, out, log_sums, scale, causal))


def serves_log_sums(q: Any, k: Any, device: str = "") -> bool:
    """Whether a device has kernels that leave and read what a softmax divides by: elsewhere it
    would be a product of all queries and keys of its own."""
    backend = base.get(device or q.device)
    op, options = ATTENTION_LOG_SUMS, {"scale": 1.0, "causal": False}
    return op.name in backend.kernels and backend.serves(op, [q, k], options)


def unread_without_kernels(
    places: tuple[int, ...], saved: tuple[int, ...], bias: int | None = None
) -> Unread:
    """The arguments of a backward that nothing reads: `places` always, and `saved`, the result and
    its logarithms, where attention is not of plain queries, keys and values, on a device that reads
    them."""

    def unread(args: Sequence[Any], device: str) -> tuple[int, ...]:
        q, k, v = args[1:4]
        alike = q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and q.shape[-1] == v.shape[-1]
        plain = alike and (bias is None or args[bias] is None)
        return places if plain and serves_log_sums(q, k, device) else (*saved, *places)

    return unread


def _no_dropout(name: str, p: float) -> None:
    if p:
        raise ArgumentError(
            f"{name}: dropout_p={p!r}, whose mask the backward could not draw again; trace with "
            "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), where dropout is an op of its own"
        )


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_for_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Maybe = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    _no_dropout("_scaled_dot_product_flash_attention_for_cpu", dropout_p)
    out = _attend(q, k, v, attn_mask, is_causal, scale)
    return out, _log_sums(q, k, attn_mask, is_causal, scale)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default", unread=(4, 5))
def flash_for_cpu_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    log_sums: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Maybe = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    return pulled(lambda q, k, v: _attend(q, k, v, attn_mask, is_causal, scale), g, q, k, v)


def _with_nothing(found: Sequence[Any], result: Sequence[Any], like: Tensor) -> list[Any]:
    """More outputs, of which no backward here reads anything: zeros where they are tensors."""
    more = [
        zeros(r.shape, r.dtype, like.device) if isinstance(r, Result) else 0
        for r in result[len(found) :]
    ]
    return [*found, *more]


def _fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Maybe,
    dropout_p: float,
    causal: bool,
    scale: float | None,
    result: Sequence[Any],
) -> list[Any]:
    _no_dropout("scaled_dot_product_attention", dropout_p)
    log_sums = _log_sums(q, k, bias, causal, scale)
    wanted = result[1].shape
    if len(wanted) > log_sums.ndim:  # cuDNN's have one more axis
        log_sums = log_sums.expand_dims(-1)
    elif not wanted[-1]:  # they were not asked for
        log_sums = zeros(wanted, q.dtype, q.device)
    elif wanted[-1] > log_sums.shape[-1]:  # kernels that round the number of queries up
        more = wanted[-1] - log_sums.shape[-1]
        log_sums = pad(log_sums, ((0, 0),) * (log_sums.ndim - 1) + ((0, more),))
    return _with_nothing([_attend(q, k, v, bias, causal, scale), log_sums], result, q)


@aten("_scaled_dot_product_fused_attention_overrideable.default", wants_result=True)
def overrideable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    result: Sequence[Any],
) -> list[Any]:
    return _fused(q, k, v, attn_bias, dropout_p, is_causal, scale, result)


@aten(
    "_scaled_dot_product_efficient_attention.default",
    "_scaled_dot_product_cudnn_attention.default",
    wants_result=True,
)
def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Maybe,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    result: Sequence[Any],
) -> list[Any]:
    return _fused(q, k, v, attn_bias, dropout_p, is_causal, scale, result)


@aten("_scaled_dot_product_flash_attention.default", wants_result=True)
def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
    result: Sequence[Any],
) -> Any:
    _no_dropout("_scaled_dot_product_flash_attention", dropout_p)
    found = [_attend(q, k, v, None, is_causal, scale), _log_sums(q, k, None, is_causal, scale)]
    return _with_nothing(found, result, q)


@aten(
    "_scaled_dot_product_flash_attention_backward.default",
    unread=unread_without_kernels((12, 13), (4, 5)),
)
def flash_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, *given: Any, scale: float | None = None
) -> tuple[Tensor, ...]:
    out, log_sums, causal = given[0], given[1], given[7]
    return _slopes(g, q, k, v, out, log_sums, causal, scale)


@aten(
    "_scaled_dot_product_cudnn_attention_backward.default",
    unread=unread_without_kernels((6, 7), (4, 5), bias=8),
)
def cudnn_backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, *given: Any, scale: float | None = None
) -> tuple[Tensor, ...]:
    """(out, log_sums, seed, offset, bias, 4 sizes, dropout_p, is_causal) follow the values."""
    out, log_sums, bias, causal = given[0], given[1], given[4], given[10]
    if bias is None:
        return _slopes(g, q, k, v, out, log_sums, causal, scale)
    return pulled(lambda q, k, v: _attend(q, k, v, bias, causal, scale), g, q, k, v)


@aten(
    "_scaled_dot_product_efficient_attention_backward.default",
    unread=unread_without_kernels((7, 8), (5, 6), bias=4),
)
def efficient_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Maybe,
    out: Tensor,
    log_sums: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> list[Maybe]:
    if bias is None:
        found = _slopes(g, q, k, v, out, log_sums, is_causal, scale)
        return [d if on else None for d, on in zip((*found, None), grad_input_mask, strict=True)]
    return pulled_where(
        lambda q, k, v, bias: _attend(q, k, v, bias, is_causal, scale),
        g,
        (q, k, v, bias),
        grad_input_mask,
    )


@aten("_scaled_dot_product_fused_attention_overrideable_backward.default")
def overrideable_backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Maybe,
    grad_input_mask: Sequence[bool],
    *given: Any,
    scale: float | None = None,
) -> list[Maybe]:
    causal = given[7]
    return pulled_where(
        lambda q, k, v, bias: _attend(q, k, v, bias, causal, scale),
        g,
        (q, k, v, bias),
        grad_input_mask,
    )


@aten("scaled_dot_product_attention.default")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    return _attend(q, k, v, attn_mask, is_causal, scale, dropout_p)


@aten("_scaled_dot_product_attention_math.default")
def attention_math(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Maybe = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """The result, and how much each query looks at each key."""
    scores = _scores(q, k, attn_mask, is_causal, scale)
    values = wide(_spread_heads(v, q.shape[-3]) if q.ndim > 2 else v)
    alive = (scores != -math.inf).any(axis=-1, keepdims=True)
    probs = where(alive, softmax(where(alive, scores, 0.0)), 0.0)
    if dropout_mask is not None:
        kept = where(dropout_mask, probs, 0.0) * (1 / (1 - dropout_p))
    else:
        kept = dropout(probs, dropout_p) if dropout_p else probs
    return matmul(kept, values), probs


# --- a whole layer -------------------------------------------------------------------------------


def _heads(x: Tensor, count: int) -> Tensor:
    """(batch, places, width) as (batch, heads, places, width of a head)."""
    return x.reshape((*x.shape[:2], count, -1)).swapaxes(1, 2)


def _opened(mask: Maybe, kind: int | None, batch: int) -> Maybe:
    """A mask of PyTorch's layers, True where one must not look, as one that is added."""
    if mask is None:
        return None
    if mask.dtype.kind == "bool":
        mask = ~mask
    if kind == 1:  # of keys: (batch, keys)
        return mask.reshape((batch, 1, 1, mask.shape[-1]))
    return mask


def _self_attention(
    x: Tensor,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Maybe,
    kind: int | None,
) -> Tensor:
    together = matmul(x, qkv_weight.mT) + qkv_bias
    width = x.shape[-1]
    q, k, v = (_heads(together[..., i * width : (i + 1) * width], heads) for i in range(3))
    out = _attend(q, k, v, _opened(mask, kind, x.shape[0]), False, None)
    return matmul(out.swapaxes(1, 2).reshape(x.shape), proj_weight.mT) + proj_bias


@aten("_transformer_encoder_layer_fwd.default")
def transformer_encoder_layer(
    x: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Maybe = None,
    mask_type: int | None = None,
) -> Tensor:
    width = (embed_dim,)

    def attend(x: Tensor) -> Tensor:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        return _self_attention(x, num_heads, *weights, mask, mask_type)

    def feed_forward(x: Tensor) -> Tensor:
        inner = matmul(x, ffn_weight_1.mT) + ffn_bias_1
        inner = gelu(inner) if use_gelu else relu(inner)
        return matmul(inner, ffn_weight_2.mT) + ffn_bias_2

    if norm_first:
        x = x + attend(layer_norm(x, width, norm_weight_1, norm_bias_1, eps))
        return x + feed_forward(layer_norm(x, width, norm_weight_2, norm_bias_2, eps))
    x = layer_norm(x + attend(x), width, norm_weight_1, norm_bias_1, eps)
    return layer_norm(x + feed_forward(x), width, norm_weight_2, norm_bias_2, eps)


@aten("_native_multi_head_attention.default")
def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Maybe = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Maybe]:
    weights, biases = qkv_weight.reshape((3, embed_dim, -1)), qkv_bias.reshape((3, embed_dim))
    q, k, v = (
        _heads(matmul(x, weights[i].mT) + biases[i], num_head)
        for i, x in enumerate((query, key, value))
    )
    out, probs = attention_math(q, k, v, _opened(mask, mask_type, query.shape[0]))
    joined = out.swapaxes(1, 2).reshape(query.shape)
    found = matmul(joined, proj_weight.mT) + proj_bias
    if not need_weights:
        return found, None
    return found, probs.mean(axis=1) if average_attn_weights else probs

"""com.microsoft: attention with packed weights, key and value caches, rotary positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.interop.onnx.operators.registry import MICROSOFT, Call, onnx_op


def heads(x: Tensor, count: int) -> Tensor:
    """(batch, steps, heads * width) as (batch, heads, steps, width)."""
    n, steps, width = x.shape
    return eg.permute_dims(x.reshape((n, steps, count, width // count)), (0, 2, 1, 3))


def joined(x: Tensor) -> Tensor:
    """`heads` undone."""
    n, count, steps, width = x.shape
    return eg.permute_dims(x, (0, 2, 1, 3)).reshape((n, steps, count * width))


def weights_of(
    call: Call, q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, sink: Any = None
) -> tuple[Tensor, Tensor]:
    """Scores and their softmax; `mask` says what counts, `bias` is added, `sink` joins the sum."""
    scale = call("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    wide = eg.float32 if q.dtype.bits < 32 else q.dtype
    scores = eg.matmul(q * scale, k.mT).astype(wide)
    cap = call("softcap", 0.0)
    if cap:
        scores = cap * eg.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias.astype(wide)
    if mask is not None:
        scores = eg.where(mask, scores, eg.full((), -math.inf, wide, q.device))
    if sink is None:
        return scores, eg.softmax(scores, axis=-1)
    extra = eg.broadcast_to(sink.astype(wide), (*scores.shape[:-1], 1))
    return scores, eg.softmax(eg.concat([scores, extra], axis=-1), axis=-1)[..., :-1]


def _causal(steps: int, total: int, device: str) -> Tensor:
    """Which keys each query may see: the last query sees all."""
    rows, columns = np.arange(steps)[:, None], np.arange(total)
    return eg.asarray(columns <= rows + (total - steps), device=device)


def _grouped(k: Tensor, count: int) -> Tensor:
    """Keys or values repeated so that each query's head has its own."""
    return k if k.shape[1] == count else eg.repeat(k, count // k.shape[1], axis=1)


def _padding_bias(call: Call, mask: Tensor, batch: int, total: int, wide: Any) -> Tensor:
    """A mask in one of onnxruntime's forms as what is added to scores."""
    off = call("mask_filter_value", -10000.0)
    if mask.ndim == 1 and mask.shape[0] in (batch, 2 * batch):
        places = eg.arange(total, device=mask.device).expand_dims(0)
        keep = places < mask[:batch].expand_dims(1).astype(eg.int64)
        if mask.shape[0] == 2 * batch:
            keep = keep & (places >= mask[batch:].expand_dims(1).astype(eg.int64))
    elif mask.ndim in (2, 3, 4):
        keep = mask != 0
    else:
        raise ShapeError(f"{call.op}: a mask of shape {mask.shape} for a batch of {batch}")
    if keep.ndim == 2:
        keep = keep.reshape((keep.shape[0], 1, 1, -1))
    elif keep.ndim == 3:
        keep = keep.expand_dims(1)
    return eg.where(keep, eg.zeros((), wide, mask.device), eg.full((), off, wide, mask.device))


def _attended(
    call: Call, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    wide = eg.float32 if q.dtype.bits < 32 else q.dtype
    added = None if bias is None else bias.astype(wide)
    if mask is not None:
        padding = _padding_bias(call, mask, q.shape[0], k.shape[2], wide)
        if padding.ndim == 4 and padding.shape[2:] != (1, k.shape[2]) and padding.shape[2] != 1:
            padding = (
                padding[:, :, k.shape[2] - q.shape[2] : k.shape[2], : k.shape[2]]
                if (padding.shape[2] > q.shape[2])
                else padding
            )
        added = padding if added is None else added + padding
    causal = _causal(q.shape[2], k.shape[2], q.device) if call("unidirectional", 0) else None
    scores, weights = weights_of(call, q, k, causal, added)
    return joined(eg.matmul(weights.astype(v.dtype), v)), scores


@onnx_op("Attention", domain=MICROSOFT)
def _attention(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    added: Tensor | None = None,
    past_length: Any = None,
) -> Any:
    if call("do_rotary", 0) or call("past_present_share_buffer", 0):
        raise ArgumentError("Attention: do_rotary and shared buffers are not known here")
    count = call("num_heads")
    projected = eg.matmul(x, weight)
    if bias is not None:
        projected = projected + bias
    sizes = call("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
    q, k, v = (heads(part, count) for part in eg.split(projected, sizes, axis=-1))
    if past is not None:
        k, v = eg.concat([past[0], k], axis=2), eg.concat([past[1], v], axis=2)
    out, _ = _attended(call, q, k, v, mask, added)
    return out, eg.stack([k, v], axis=0) if call.wants(1) else None


@onnx_op("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(
    call: Call,
    query: Tensor,
    key: Tensor | None = None,
    value: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    past_length: Any = None,
    beams: Any = None,
) -> Any:
    if beams is not None or past_length is not None:
        raise ArgumentError("MultiHeadAttention: shared buffers and beams are not known here")
    count = call("num_heads")
    if query.ndim == 5:  # query, key and value of each head side by side
        query, key, value = (_flat(query[:, :, :, i]) for i in range(3))
    elif key is not None and key.ndim == 5:
        key, value = _flat(key[:, :, :, 0]), _flat(key[:, :, :, 1])
    if key is None or value is None:
        raise ArgumentError("MultiHeadAttention: takes a key and a value, or a packed query")
    q, k, v = (query, key, value)
    if bias is not None:
        width = query.shape[-1]
        q = q + bias[:width]
        if key.ndim == 3:
            k = k + bias[width : 2 * width]
            v = v + bias[2 * width :]
    q = heads(q, count)
    k, v = (heads(t, count) if t.ndim == 3 else t for t in (k, v))
    if past_key is not None and past_value is not None:
        k, v = eg.concat([past_key, k], axis=2), eg.concat([past_value, v], axis=2)
    out, scores = _attended(call, q, k, v, mask, added)
    return out, k, v, scores


def _flat(x: Tensor) -> Tensor:
    return x.reshape((*x.shape[:2], x.shape[2] * x.shape[3]))


# --- rotary positions ----------------------------------------------------------------------------


def rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """x (batch, heads, steps, width) with pairs of its elements rotated; tables are (batch, steps,
    half), and what they do not reach stays."""
    half = cos.shape[-1]
    c, s = cos.expand_dims(1).astype(x.dtype), sin.expand_dims(1).astype(x.dtype)
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        pairs = eg.stack([a * c - b * s, b * c + a * s], axis=-1)
        found = pairs.reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        found = eg.concat([a * c - b * s, b * c + a * s], axis=-1)
    return found if rest.shape[-1] == 0 else eg.concat([found, rest], axis=-1)


@onnx_op("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(call: Call, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if call("is_packed_batching", 0):
        raise ArgumentError("RotaryEmbedding: packed batches are not known here")
    flat = x.ndim == 3
    count = call("num_heads", 0)
    if flat:
        width = x.shape[2] // count if count else 2 * cos.shape[1]
        wide = heads(x, x.shape[2] // width)
    else:
        wide = x
    steps = wide.shape[2]
    at = positions.astype(eg.int64)
    if at.ndim == 1:
        at = (at.reshape((1, 1)) + eg.arange(steps, device=x.device)).reshape((1, steps))
    c, s = (eg.take(t, at, axis=0) for t in (cos, sin))
    found = rotated(wide, c, s, bool(call("interleaved", 0))) * call("scale", 1.0)
    return joined(found) if flat else found


@onnx_op("GroupQueryAttention", domain=MICROSOFT, static=(6,))
def _group_query_attention(
    call: Call,
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    past_key: Tensor | None,
    past_value: Tensor | None,
    last: Tensor,
    total: Any,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    positions: Tensor | None = None,
    added: Tensor | None = None,
    sink: Tensor | None = None,
    *more: Any,
) -> Any:
    """`last` is the place of each example's last token; `total` the longest of all so far."""
    if any(v is not None for v in more) or call("sliding_window_cache", 0):
        raise ArgumentError("GroupQueryAttention: quantised and window caches are not known here")
    count, groups = call("num_heads"), call("kv_num_heads")
    if key is None or value is None:
        width = query.shape[2] // (count + 2 * groups)
        parts = [count * width, groups * width, groups * width]
        query, key, value = eg.split(query, parts, axis=2)
    q, k, v = heads(query, count), heads(key, groups), heads(value, groups)
    n, steps = query.shape[:2]
    longest = int(np.asarray(total).reshape(-1)[0])
    places = eg.arange(steps, device=query.device).expand_dims(0)
    if longest == steps:  # a prompt: nothing came before it
        at = eg.broadcast_to(places, (n, steps))
    else:
        at = last.reshape((n, 1)).astype(eg.int64) + 1 - steps + places
    if call("do_rotary", 0):
        if cos is None or sin is None:
            raise ArgumentError("GroupQueryAttention: do_rotary needs cos_cache and sin_cache")
        where = at if positions is None or longest == steps else positions.astype(eg.int64)
        c, s = (eg.take(t, where, axis=0) for t in (cos, sin))
        twisted = bool(call("rotary_interleaved", 0))
        q, k = rotated(q, c, s, twisted), rotated(k, c, s, twisted)
    size = max(longest, 0 if past_key is None else past_key.shape[2])
    k, v = (_cached(past, new, at, size) for past, new in ((past_key, k), (past_value, v)))
    keys = eg.arange(size, device=query.device).reshape((1, 1, 1, size))
    own = at.reshape((n, 1, steps, 1))
    mask = keys <= own if call("causal", 1) else keys <= own[:, :, -1:]
    window = call("local_window_size", -1)
    if window > 0:
        mask = mask & (keys > own - window)
    if added is not None and added.shape[-1] < size:
        missing = eg.zeros((*added.shape[:-1], size - added.shape[-1]), added.dtype, added.device)
        added = eg.concat([added, missing], axis=-1)
    if sink is not None:
        sink = sink.reshape((1, -1, 1, 1))
    elif call("smooth_softmax", 0):
        sink = eg.zeros((1, 1, 1, 1), eg.float32, query.device)
    _, weights = weights_of(call, q, _grouped(k, count), mask, added, sink)
    out = joined(eg.matmul(weights.astype(v.dtype), _grouped(v, count)))
    return out, k, v


def _cached(past: Tensor | None, new: Tensor, at: Tensor, size: int) -> Tensor:
    """A cache with new keys or values at each example's own places."""
    n, groups, steps, width = new.shape
    held = 0 if past is None else past.shape[2]
    parts = [] if past is None else [past]
    if size > held:
        parts.append(eg.zeros((n, groups, size - held, width), new.dtype, new.device))
    cache = parts[0] if len(parts) == 1 else eg.concat(parts, axis=2)
    index = eg.broadcast_to(at.reshape((n, 1, steps, 1)), new.shape)
    found = eg.scatter(cache, index, new, axis=2)
    # behind an example's last token there is nothing, whatever the buffer held
    valid = eg.arange(size, device=new.device).reshape((1, 1, size, 1)) <= at[:, -1].reshape(
        (n, 1, 1, 1)
    )
    return eg.where(valid, found, eg.zeros_like(found))

"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.dropout import check_probability
from everygrad.nn.linear import Linear, check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.elementwise.basic import where
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.creation import empty, zeros


class MultiheadAttention(Module):
    """Queries look at keys and mix the values, in `num_heads` heads of embed_dim / num_heads each.

    Called with query, key and value of shape (length, batch, embed_dim), batch first if
    `batch_first`, or without the batch; returns the result and, unless `need_weights` is False, how
    much each query looked at each key: averaged over the heads, or (batch, heads, queries, keys).

    Masks are True, or minus infinity, where a query must not look: `key_padding_mask` (batch, keys)
    for whole keys, `attn_mask` (queries, keys) or (batch * heads, queries, keys) for pairs.
    Floating ones are added to the scores. `is_causal` closes, besides, every key after the query.

    >>> import everygrad as eg
    >>> attention = eg.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = eg.ones((3, 5, 8))
    >>> out, weights = attention(x, x, x, is_causal=True)
    >>> out.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_sizes("MultiheadAttention", embed_dim=embed_dim, num_heads=num_heads)
        check_probability("MultiheadAttention", "dropout", dropout)
        if embed_dim % num_heads:
            raise ArgumentError(
                f"MultiheadAttention: embed_dim {embed_dim} is not a multiple of "
                f"num_heads {num_heads}"
            )
        for name, size in (("kdim", kdim), ("vdim", vdim)):
            if size not in (None, embed_dim):
                raise ArgumentError(
                    f"MultiheadAttention: {name}={size} differs from embed_dim={embed_dim}, which "
                    f"is not supported; bring keys and values to embed_dim with a Linear first"
                )
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.in_proj_weight = Parameter(empty((3 * embed_dim, embed_dim), dtype, device))
        self.in_proj_bias = Parameter(empty((3 * embed_dim,), dtype, device)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new starting values; biases 0."""
        init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        batched = query.ndim == 3
        self._check(query, key, value)
        q, k, v = (self._heads(t, batched) for t in self._projected(query, key, value))
        # where nothing but the order of the keys closes any, no mask need be made
        ordered = is_causal and not need_weights and key_padding_mask is None and attn_mask is None
        mask = self._mask(q, k, key_padding_mask, attn_mask, is_causal and not ordered)
        out, weights = self._attend(q, k, v, mask, need_weights, ordered)
        # (batch, heads, queries, width) -> (batch, queries, embed_dim), in the caller's layout
        out = out.permute_dims((0, 2, 1, 3)).reshape(out.shape[0], out.shape[2], self.embed_dim)
        if not batched:
            out = out.squeeze(0)
        elif not self.batch_first:
            out = out.permute_dims((1, 0, 2))
        if weights is not None:
            weights = weights.mean(axis=1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        return self.out_proj(out), weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        shown = f"query {query.shape}, key {key.shape}, value {value.shape}"
        if not (query.ndim == key.ndim == value.ndim and query.ndim in (2, 3)):
            raise ShapeError(f"MultiheadAttention: needs 3 axes, or 2 without batch: {shown}")
        if any(t.shape[-1] != self.embed_dim for t in (query, key, value)):
            raise ShapeError(f"MultiheadAttention: the last axis must be {self.embed_dim}: {shown}")
        batch = 0 if self.batch_first else 1
        one_batch = query.ndim == 2 or query.shape[batch] == key.shape[batch]
        if key.shape[:-1] != value.shape[:-1] or not one_batch:
            raise ShapeError(
                f"MultiheadAttention: keys and values must be as many, batches alike: {shown}"
            )

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        weight, bias, width = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        if query is key and key is value:  # one product instead of three
            parts: list[Tensor] = F.linear(query, weight, bias).split(width, axis=-1)
            return parts
        weights = weight.split(width)
        biases = [None] * 3 if bias is None else bias.split(width)
        inputs = (query, key, value)
        return [F.linear(t, w, b) for t, w, b in zip(inputs, weights, biases, strict=True)]

    def _heads(self, x: Tensor, batched: bool) -> Tensor:
        """(batch, heads, length, width of a head)."""
        if not batched:
            x = x.expand_dims(0)
        elif not self.batch_first:
            x = x.permute_dims((1, 0, 2))
        x = x.reshape(*x.shape[:2], self.num_heads, self.head_dim)
        return x.permute_dims((0, 2, 1, 3))

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        need_weights: bool,
        ordered: bool,
    ) -> tuple[Tensor, Tensor | None]:
        p = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(q, k, v, mask, p, ordered), None
        scores = matmul(q * self.head_dim**-0.5, k.matrix_transpose())
        scores = scores if mask is None else scores + mask
        weights = F.dropout(F.softmax(scores) if k.shape[2] else scores, p)
        return matmul(weights, v), weights

    def _mask(
        self, q: Tensor, k: Tensor, padding: Tensor | None, pairs: Tensor | None, is_causal: bool
    ) -> Tensor | None:
        """All masks as one, to be added to scores of (batch, heads, queries, keys)."""
        batch, heads, queries = q.shape[:3]
        keys = k.shape[2]
        parts = []
        if padding is not None:
            if padding.shape not in ((batch, keys), (keys,) if batch == 1 else (batch, keys)):
                raise ShapeError(
                    f"MultiheadAttention: key_padding_mask {padding.shape} must be {(batch, keys)}"
                )
            parts.append(_additive("key_padding_mask", padding, q).reshape(batch, 1, 1, keys))
        if pairs is not None:
            allowed = ((queries, keys), (batch * heads, queries, keys))
            if pairs.shape not in allowed:
                raise ShapeError(
                    f"MultiheadAttention: attn_mask {pairs.shape} must be {allowed[0]} "
                    f"or {allowed[1]}"
                )
            shape = (batch, heads, queries, keys) if pairs.ndim == 3 else pairs.shape
            parts.append(_additive("attn_mask", pairs, q).reshape(shape))
        if is_causal:
            closed = ~F.causal_mask(empty((queries, keys), device=q.device))
            parts.append(_additive("is_causal", closed, q))
        total: Tensor | None = None
        for part in parts:
            total = part if total is None else total + part
        return total

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, "
            f"batch_first={self.batch_first}"
        )


def _additive(name: str, mask: Tensor, like: Tensor) -> Tensor:
    """A bool mask as 0 where open and minus infinity where closed; a floating one as it is."""
    if mask.dtype.is_float:
        return mask.astype(like.dtype)
    if mask.dtype is not dtypes.bool_:
        raise DtypeError(
            f"MultiheadAttention: {name} must be bool or floating point, got {mask.dtype}"
        )
    added: Tensor = where(mask, -math.inf, zeros((), like.dtype, like.device))
    return added

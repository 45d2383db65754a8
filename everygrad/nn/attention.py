"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn import functional as F, init
from everygrad.nn.dropout import check_probability
from everygrad.nn.functions.attention import Projections, attend
from everygrad.nn.linear import Linear, check_sizes
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import empty


class MultiheadAttention(Module):
    """Queries look at keys and mix the values, in `num_heads` heads of embed_dim / num_heads each.

    Called with query, key and value of shape (length, batch, embed_dim), batch first if
    `batch_first`, or without the batch; returns the result and, unless `need_weights` is False, how
    much each query looked at each key: averaged over the heads, or (batch, heads, queries, keys).

    Masks are True, or minus infinity, where a query must not look: `key_padding_mask` (batch, keys)
    for whole keys, `attn_mask` (queries, keys) or (batch * heads, queries, keys) for pairs.
    Floating ones are added to the scores. `is_causal` closes, besides, every key after the query.
    `kdim` and `vdim` are the widths of keys and values where they differ from embed_dim;
    `add_bias_kv` adds a trained key and value at the end, `add_zero_attn` one of zeros.

    >>> import everygrad as eg
    >>> attention = eg.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = eg.ones((3, 5, 8))
    >>> out, weights = attention(x, x, x, is_causal=True)
    >>> out.shape, weights.shape
    ((3, 5, 8), (3, 5, 5))
    """

    in_proj_weight: Parameter | None = None
    q_proj_weight: Parameter | None = None
    k_proj_weight: Parameter | None = None
    v_proj_weight: Parameter | None = None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
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
        check_sizes("MultiheadAttention", kdim=kdim or embed_dim, vdim=vdim or embed_dim)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = kdim or embed_dim
        self.vdim = vdim or embed_dim
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        widths = {"in_proj": embed_dim, "q": embed_dim, "k": self.kdim, "v": self.vdim}
        joint = self.kdim == self.vdim == embed_dim
        for part in ("in_proj",) if joint else ("q", "k", "v"):
            rows = 3 * embed_dim if joint else embed_dim
            name = "in_proj_weight" if joint else f"{part}_proj_weight"
            setattr(self, name, Parameter(empty((rows, widths[part]), dtype, device)))
        self.in_proj_bias = Parameter(empty((3 * embed_dim,), dtype, device)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype)
        shape = (1, 1, embed_dim)
        self.bias_k = Parameter(empty(shape, dtype, device)) if add_bias_kv else None
        self.bias_v = Parameter(empty(shape, dtype, device)) if add_bias_kv else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new starting values; biases 0."""
        for weight in (self.in_proj_weight, *self._separate()):
            if weight is not None:
                init.xavier_uniform_(weight)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                init.xavier_normal_(added)
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
        weights = Projections(
            self.in_proj_weight,
            self.in_proj_bias,
            self._separate() or None,
            self.bias_k,
            self.bias_v,
            self.out_proj.weight,
            self.out_proj.bias,
        )
        return attend(
            "MultiheadAttention",
            (query, key, value),
            weights,
            self.num_heads,
            (self.embed_dim, self.kdim, self.vdim),
            F.scaled_dot_product_attention,
            batch_first=self.batch_first,
            dropout_p=self.dropout if self.training else 0.0,
            key_padding_mask=key_padding_mask,
            need_weights=need_weights,
            attn_mask=attn_mask,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            add_zero_attn=self.add_zero_attn,
        )

    def _separate(self) -> Any:
        """The weights of query, key and value where they differ in width."""
        if self.in_proj_weight is not None:
            return ()
        return (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)

    def extra_repr(self) -> str:
        return (
            f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, dropout={self.dropout}, "
            f"batch_first={self.batch_first}"
        )

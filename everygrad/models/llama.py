"""Llama, and what has its form: Mistral (a window), Qwen2 (biases), Qwen3 (norms of heads)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.models.config import Settings
from everygrad.models.decoder import Decoder, Masks
from everygrad.models.kv_cache import KVCache
from everygrad.nn import functional as F
from everygrad.nn.containers import ModuleList
from everygrad.nn.embedding import Embedding
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.norm import RMSNorm
from everygrad.ops.python.creation import tensor
from everygrad.ops.shape.joining import concat


class Llama(Decoder):
    """Llama, Mistral, Qwen2 or Qwen3, as the configuration's `model_type` says, with its head.

    >>> import everygrad as eg
    >>> sizes = {"vocab_size": 99, "hidden_size": 16, "intermediate_size": 24}
    >>> sizes |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    >>> eg.models.Llama(sizes)(eg.tensor([[1, 5, 2]])).shape
    (1, 3, 99)
    """

    model_types = ("llama", "mistral", "qwen2", "qwen3")
    rename = {  # noqa: RUF012  # a ClassVar of the base
        "model.": "",
        "rotary_emb.inv_freq": None,  # older files hold what is computed here
        "self_attn.rotary_emb.inv_freq": None,
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        said = Settings(config, "Llama")
        said.refuse("pretraining_tp", 1)
        width, vocabulary = said.size("hidden_size"), said.size("vocab_size")
        count = said.layers("num_hidden_layers")
        self.heads = said.size("num_key_value_heads", said.size("num_attention_heads"))
        self.head_dim = _head_dim(said)
        self.longest = said.size("max_position_embeddings", 2048)
        self.windows = _windows(said, count)
        self.frequencies = rope_frequencies(said, self.head_dim)
        self.embed_tokens = Embedding(vocabulary, width, padding_idx=said("pad_token_id", None))
        self.layers = ModuleList(_Layer(said, i, w) for i, w in enumerate(self.windows))
        self.norm = RMSNorm(width, said.number("rms_norm_eps", 1e-6))
        self.lm_head = Linear(width, vocabulary, bias=False)
        if said.flag("tie_word_embeddings", False):
            self.lm_head.weight = self.embed_tokens.weight

    def hidden(
        self, tokens: Tensor, at: Tensor, masks: Masks, cache: KVCache | None, position: Any
    ) -> Tensor:
        x = self.embed_tokens(tokens)
        turn = rope_angles(self.frequencies, at, x.dtype)
        for layer in self.layers:
            x = layer(x, turn, masks, cache, position)
        out: Tensor = self.norm(x)
        return out


_WIDEST_HEAD = 1 << 14  # an angle is computed for each pair of its numbers


def _head_dim(said: Settings) -> int:
    if said("head_dim", None) is not None:
        return said.size("head_dim", most=_WIDEST_HEAD)
    width = said.divided("hidden_size", "num_attention_heads")
    if width > _WIDEST_HEAD:
        raise ArgumentError(f"Llama: heads are at most {_WIDEST_HEAD} wide, got {width}")
    return width


def _windows(said: Settings, count: int) -> tuple[int | None, ...]:
    """How far back the tokens of each layer look, themselves included."""
    kind = said("model_type", "llama")
    if kind == "llama" or said("sliding_window", None) is None:
        return (None,) * count
    window = said.size("sliding_window")
    if kind == "mistral":
        return (window,) * count
    if not said.flag("use_sliding_window", False):
        return (None,) * count
    first = said("max_window_layers", 28)
    kinds = said(
        "layer_types", ["full_attention"] * first + ["sliding_attention"] * max(0, count - first)
    )
    known = {"full_attention": None, "sliding_attention": window}
    if len(kinds) < count or not set(kinds) <= set(known):
        raise ArgumentError(
            f"Llama: layer_types must name {' or '.join(known)} for each of {count} layers, "
            f"got {kinds!r:.200}"
        )
    return tuple(known[kind] for kind in kinds[:count])


# --- positions as angles -------------------------------------------------------------------------


def rope_frequencies(said: Settings, width: int) -> tuple[float, ...]:
    """The angle that each pair of a head's numbers turns by from one position to the next."""
    table = said("rope_parameters", None) or said("rope_scaling", None) or {}
    rope = Settings(table, f"{said.owner}: rope_parameters")
    rope.refuse("partial_rotary_factor", 1.0)
    base = rope.number("rope_theta", said.number("rope_theta", 10000.0))
    plain = [base ** (-2 * i / width) for i in range(width // 2)]
    kind = rope("rope_type", rope("type", "default"))
    if kind == "default":
        return tuple(plain)
    if kind == "linear":
        return tuple(f / rope.number("factor") for f in plain)
    if kind == "llama3":
        return tuple(_stretched(f, rope) for f in plain)
    raise ArgumentError(
        f"{said.owner}: rope_type {kind!r} is not done here; default, linear and llama3 are"
    )


def _stretched(frequency: float, rope: Settings) -> float:
    """Llama 3's rule: slow turns are slowed down further by `factor`, fast ones are kept."""
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    turns = rope.size("original_max_position_embeddings") * frequency / (2 * math.pi)
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * (kept + (1 - kept) / rope.number("factor"))


def rope_angles(frequencies: tuple[float, ...], at: Tensor, dtype: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles at places (tokens,) or (batch, tokens), for heads."""
    exact = "float64" if str(dtype) == "float64" else "float32"  # 16 bits would lose far places
    angles = at.astype(exact)[..., None] * tensor(frequencies, exact, at.device)
    angles = concat([angles, angles], axis=-1)
    angles = angles[:, None] if at.ndim == 2 else angles
    return angles.cos().astype(dtype), angles.sin().astype(dtype)


def turned(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs of numbers, half a head's width apart, turned by the angles of their places."""
    cos, sin = angles
    half = x.shape[-1] // 2
    return x * cos + concat([-x[..., half:], x[..., :half]], axis=-1) * sin


# --- layers --------------------------------------------------------------------------------------


class _Layer(Module):
    def __init__(self, said: Settings, index: int, window: int | None) -> None:
        super().__init__()
        width, eps = said.size("hidden_size"), said.number("rms_norm_eps", 1e-6)
        self.window = window
        self.self_attn = _Attention(said, index)
        self.mlp = _MLP(said)
        self.input_layernorm = RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)

    def forward(
        self, x: Tensor, turn: Any, masks: Masks, cache: KVCache | None, position: Any
    ) -> Tensor:
        mask = masks[self.window]
        x = x + self.self_attn(self.input_layernorm(x), turn, mask, cache, position)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Attention(Module):
    def __init__(self, said: Settings, index: int) -> None:
        super().__init__()
        kind = said("model_type", "llama")
        width, self.head_dim = said.size("hidden_size"), _head_dim(said)
        queries = said.size("num_attention_heads")
        keys = said.size("num_key_value_heads", queries)
        if queries % keys:
            raise ArgumentError(
                f"Llama: num_key_value_heads {keys} must divide num_attention_heads {queries}"
            )
        biased = said.flag("attention_bias", False)
        inner, shared = queries * self.head_dim, keys * self.head_dim
        self.index, self.grouped = index, queries != keys
        self.q_proj = Linear(width, inner, biased or kind == "qwen2")
        self.k_proj = Linear(width, shared, biased or kind == "qwen2")
        self.v_proj = Linear(width, shared, biased or kind == "qwen2")
        self.o_proj = Linear(inner, width, biased)
        eps = said.number("rms_norm_eps", 1e-6)
        self.q_norm = RMSNorm(self.head_dim, eps) if kind == "qwen3" else None
        self.k_norm = RMSNorm(self.head_dim, eps) if kind == "qwen3" else None
        self.dropout_p = said.number("attention_dropout", 0.0, 1.0)

    def forward(
        self, x: Tensor, turn: Any, mask: Tensor | None, cache: KVCache | None, position: Any
    ) -> Tensor:
        shape = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (part(x).reshape(shape) for part in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.permute_dims((0, 2, 1, 3)) for part in (q, k, v))
        q, k = turned(q, turn), turned(k, turn)
        if cache is not None:
            k, v = cache.write(self.index, k, v, position)
        mixed = F.scaled_dot_product_attention(
            *(q, k, v, mask, self.dropout_p if self.training else 0.0),
            is_causal=mask is None,
            enable_gqa=self.grouped,
        )
        out: Tensor = self.o_proj(mixed.permute_dims((0, 2, 1, 3)).reshape((*x.shape[:2], -1)))
        return out


class _MLP(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width, inner = said.size("hidden_size"), said.size("intermediate_size")
        biased = said.flag("mlp_bias", False)
        self.gate_proj, self.up_proj = (Linear(width, inner, biased) for _ in range(2))
        self.down_proj = Linear(inner, width, biased)
        self.activation = said.activation("hidden_act", "silu")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))
        return out

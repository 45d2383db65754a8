"""GPT-2: a decoder of text with learned positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.models.config import Settings
from everygrad.models.decoder import Decoder, Masks
from everygrad.models.kv_cache import KVCache
from everygrad.nn import functional as F, init
from everygrad.nn.containers import ModuleList
from everygrad.nn.dropout import Dropout
from everygrad.nn.embedding import Embedding
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.norm import LayerNorm
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import empty, zeros


class GPT2(Decoder):
    """GPT-2 with its head: token numbers (batch, tokens) in, scores of the next tokens out.

    >>> import everygrad as eg
    >>> sizes = {"vocab_size": 99, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
    >>> eg.models.GPT2(sizes)(eg.tensor([[1, 5, 2]])).shape
    (1, 3, 99)
    """

    model_types = ("gpt2",)
    rename = {  # noqa: RUF012  # a ClassVar of the base
        "transformer.": "",
        "attn.bias": None,  # masks, which older files hold
        "attn.masked_bias": None,
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        said = Settings(config, "GPT2")
        said.refuse("add_cross_attention", False)
        width = said.size("n_embd")
        vocabulary = said.size("vocab_size")
        self.heads = said.size("n_head")
        self.windows = (None,) * said.layers("n_layer")
        self.head_dim = said.divided("n_embd", "n_head")
        self.longest = said.size("n_positions", 1024)
        self.wte, self.wpe = Embedding(vocabulary, width), Embedding(self.longest, width)
        self.drop = Dropout(said.number("embd_pdrop", 0.1, 1.0))
        self.h = ModuleList(_Block(said, i) for i in range(len(self.windows)))
        self.ln_f = LayerNorm(width, said.number("layer_norm_epsilon", 1e-5))
        self.lm_head = Linear(width, vocabulary, bias=False)
        for table in (self.wte, self.wpe):
            init.normal_(table.weight, std=said.number("initializer_range", 0.02))
        if said.flag("tie_word_embeddings", True):
            self.lm_head.weight = self.wte.weight

    def hidden(
        self, tokens: Tensor, at: Tensor, masks: Masks, cache: KVCache | None, position: Any
    ) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(at))
        for block in self.h:
            x = block(x, masks[None], cache, position)
        out: Tensor = self.ln_f(x)
        return out


class Conv1D(Module):
    """A linear layer whose weight is (in, out), as GPT-2's files have it."""

    def __init__(self, inputs: int, outputs: int, std: float) -> None:
        super().__init__()
        self.weight = Parameter(empty((inputs, outputs)))
        self.bias = Parameter(zeros((outputs,)))
        init.normal_(self.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias

    def extra_repr(self) -> str:
        return "{}, {}".format(*self.weight.shape)


class _Block(Module):
    def __init__(self, said: Settings, index: int) -> None:
        super().__init__()
        width, eps = said.size("n_embd"), said.number("layer_norm_epsilon", 1e-5)
        self.ln_1, self.ln_2 = LayerNorm(width, eps), LayerNorm(width, eps)
        self.attn = _Attention(said, index)
        self.mlp = _MLP(said)

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: KVCache | None, position: Any
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), mask, cache, position)
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class _Attention(Module):
    def __init__(self, said: Settings, index: int) -> None:
        super().__init__()
        width, std = said.size("n_embd"), said.number("initializer_range", 0.02)
        self.index, self.head_dim = index, said.divided("n_embd", "n_head")
        self.c_attn, self.c_proj = Conv1D(width, 3 * width, std), Conv1D(width, width, std)
        self.scale = self.head_dim**-0.5 if said.flag("scale_attn_weights", True) else 1.0
        if said.flag("scale_attn_by_inverse_layer_idx", False):
            self.scale /= index + 1
        self.dropout_p = said.number("attn_pdrop", 0.1, 1.0)
        self.drop = Dropout(said.number("resid_pdrop", 0.1, 1.0))

    def forward(
        self, x: Tensor, mask: Tensor | None, cache: KVCache | None, position: Any
    ) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.c_attn(x).reshape((batch, tokens, 3, -1, self.head_dim))
        q, k, v = parts.permute_dims((2, 0, 3, 1, 4))
        if cache is not None:
            k, v = cache.write(self.index, k, v, position)
        dropout = self.dropout_p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, mask is None, self.scale)
        joined = mixed.permute_dims((0, 2, 1, 3)).reshape((batch, tokens, width))
        out: Tensor = self.drop(self.c_proj(joined))
        return out


class _MLP(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width, std = said.size("n_embd"), said.number("initializer_range", 0.02)
        inner = said.size("n_inner", 4 * width)
        self.c_fc, self.c_proj = Conv1D(width, inner, std), Conv1D(inner, width, std)
        self.activation = said.activation("activation_function", "gelu_new")
        self.drop = Dropout(said.number("resid_pdrop", 0.1, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop(self.c_proj(self.activation(self.c_fc(x))))
        return out

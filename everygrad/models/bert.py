"""BERT, and what has its form, such as MiniLM: an encoder of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everygrad.core.tensor import Tensor
from everygrad.errors import ShapeError
from everygrad.models.config import Settings
from everygrad.models.pretrained import Pretrained
from everygrad.nn import functional as F
from everygrad.nn.containers import ModuleList
from everygrad.nn.dropout import Dropout
from everygrad.nn.embedding import Embedding
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.norm import LayerNorm
from everygrad.ops.elementwise.math import tanh
from everygrad.ops.python.creation import arange, zeros


class BertOutput(NamedTuple):
    """A vector for each token, and one of the first token, made for whole texts."""

    last_hidden_state: Tensor
    pooler_output: Tensor


class Bert(Pretrained):
    """BERT without a head: token numbers (batch, tokens) in, vectors out, as `BertOutput`.

    `attention_mask` is True or 1 where a token is no padding. Heads that were trained on top
    (`cls.`, `classifier.`, `qa_outputs.`) are left out.

    >>> import everygrad as eg
    >>> sizes = {"vocab_size": 99, "hidden_size": 8, "num_hidden_layers": 1}
    >>> sizes |= {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 32}
    >>> eg.models.Bert(sizes)(eg.tensor([[1, 5, 2]])).last_hidden_state.shape
    (1, 3, 8)
    """

    model_types = ("bert",)
    rename = {  # noqa: RUF012  # a ClassVar of the base
        "bert.": "",
        "gamma": "weight",  # files from before 2019
        "beta": "bias",
        "embeddings.position_ids": None,
        **dict.fromkeys(("cls.", "classifier.", "qa_outputs."), None),
    }

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        said = Settings(config, "Bert")
        said.refuse("is_decoder", False)
        said.refuse("add_cross_attention", False)
        said.refuse("position_embedding_type", "absolute")
        self.embeddings = _Embeddings(said)
        self.encoder = _Encoder(said)
        self.pooler = _Pooler(said.size("hidden_size"))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> BertOutput:
        if input_ids.ndim != 2:
            raise ShapeError(f"Bert: input_ids must be (batch, tokens), got {input_ids.shape}")
        real = None if attention_mask is None else attention_mask.astype("bool")[:, None, None, :]
        x = self.encoder(self.embeddings(input_ids, token_type_ids), real)
        return BertOutput(x, self.pooler(x))


class _Embeddings(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width = said.size("hidden_size")
        padding = said("pad_token_id", 0)
        self.word_embeddings = Embedding(said.size("vocab_size"), width, padding_idx=padding)
        self.position_embeddings = Embedding(said.size("max_position_embeddings", 512), width)
        self.token_type_embeddings = Embedding(said.size("type_vocab_size", 2), width)
        self.LayerNorm = LayerNorm(width, said.number("layer_norm_eps", 1e-12))
        self.dropout = Dropout(said.number("hidden_dropout_prob", 0.1, 1.0))

    def forward(self, tokens: Tensor, kinds: Tensor | None) -> Tensor:
        places = self.position_embeddings
        if tokens.shape[1] > places.num_embeddings:
            raise ShapeError(
                f"Bert: {tokens.shape[1]} tokens are more than its {places.num_embeddings} "
                f"positions (max_position_embeddings)"
            )
        if kinds is None:
            kinds = zeros(tokens.shape, tokens.dtype, tokens.device)
        at = places(arange(tokens.shape[1], device=tokens.device))
        x = self.word_embeddings(tokens) + self.token_type_embeddings(kinds) + at
        out: Tensor = self.dropout(self.LayerNorm(x))
        return out


class _Encoder(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        self.layer = ModuleList(_Layer(said) for _ in range(said.layers("num_hidden_layers")))

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        for layer in self.layer:
            x = layer(x, real)
        return x


class _Layer(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width, inner = said.size("hidden_size"), said.size("intermediate_size")
        self.attention = _Attention(said)
        self.intermediate = _Intermediate(width, inner)
        self.output = _Output(inner, said)
        self.activation = said.activation("hidden_act", "gelu")

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        x = self.attention(x, real)
        out: Tensor = self.output(self.activation(self.intermediate(x)), x)
        return out


class _Intermediate(Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.dense = Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(x)
        return out


class _Attention(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        self.self = SelfAttention(said, biases=True, dropout=0.1)
        self.output = _Output(said.size("hidden_size"), said)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        out: Tensor = self.output(self.self(x, real), x)
        return out


class SelfAttention(Module):
    """Every token looks at all tokens that are no padding; the heads are joined, not projected."""

    def __init__(self, said: Settings, biases: bool, dropout: float) -> None:
        super().__init__()
        width = said.size("hidden_size")
        self.head_dim = said.divided("hidden_size", "num_attention_heads")
        self.query, self.key, self.value = (Linear(width, width, biases) for _ in range(3))
        self.dropout_p = said.number("attention_probs_dropout_prob", dropout, 1.0)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        shape = (*x.shape[:2], -1, self.head_dim)
        parts = (self.query(x), self.key(x), self.value(x))
        q, k, v = (part.reshape(shape).permute_dims((0, 2, 1, 3)) for part in parts)
        dropout = self.dropout_p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        return mixed.permute_dims((0, 2, 1, 3)).reshape(x.shape)


class _Output(Module):
    """A projection that is added to what went in before, then normalised."""

    def __init__(self, inner: int, said: Settings) -> None:
        super().__init__()
        width = said.size("hidden_size")
        self.dense = Linear(inner, width)
        self.LayerNorm = LayerNorm(width, said.number("layer_norm_eps", 1e-12))
        self.dropout = Dropout(said.number("hidden_dropout_prob", 0.1, 1.0))

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(self.dropout(self.dense(x)) + before)
        return out


class _Pooler(Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return tanh(self.dense(x[:, 0]))

"""The encoder and decoder of transformers (Vaswani et al. 2017)."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn import functional as F, init
from everygrad.nn.attention import MultiheadAttention
from everygrad.nn.containers import ModuleList
from everygrad.nn.dropout import Dropout
from everygrad.nn.linear import Linear, check_sizes
from everygrad.nn.module import Module
from everygrad.nn.norm import LayerNorm
from everygrad.ops.elementwise.basic import where
from everygrad.ops.python.creation import ones, zeros

Activation = Callable[[Tensor], Tensor]


def _activation(layer: str, given: str | Activation) -> Activation:
    named: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu}
    if callable(given):
        return given
    if given not in named:
        raise ArgumentError(
            f'{layer}: activation must be "relu", "gelu" or a function, got {given!r}'
        )
    return named[given]


def _copies(module: Module, count: int, layer: str) -> ModuleList:
    check_sizes(layer, num_layers=count)
    return ModuleList(deepcopy(module) for _ in range(count))


class _TransformerLayer(Module):
    """What the layers of encoder and decoder share: attention to itself, and a network of two
    linear layers, each added to what came in."""

    activation: Activation

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_sizes(name, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        place = {"device": device, "dtype": dtype}
        heads = {"dropout": dropout, "bias": bias, "batch_first": batch_first, **place}
        norm = {"eps": layer_norm_eps, "bias": bias, **place}
        self.self_attn = MultiheadAttention(d_model, nhead, **heads)
        if self.crosses():
            self.multihead_attn = MultiheadAttention(d_model, nhead, **heads)
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype)
        self.norm_first = norm_first
        count = 3 if self.crosses() else 2
        for k in range(1, count + 1):
            setattr(self, f"norm{k}", LayerNorm(d_model, **norm))
        for k in range(1, count + 1):
            setattr(self, f"dropout{k}", Dropout(dropout))
        self.activation = _activation(name, activation)

    def crosses(self) -> bool:
        """Whether the layer looks at a memory too."""
        return False

    def _added(self, x: Tensor, k: int, block: Callable[[Tensor], Tensor]) -> Tensor:
        """x + block(x), with the k-th norm before the block or after the sum."""
        norm, dropout = getattr(self, f"norm{k}"), getattr(self, f"dropout{k}")
        if self.norm_first:
            out: Tensor = x + dropout(block(norm(x)))
            return out
        normed: Tensor = norm(x + dropout(block(x)))
        return normed

    def _feed(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return out

    def _attend_self(
        self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool
    ) -> Tensor:
        out: Tensor = self.self_attn(
            x, x, x, key_padding_mask=padding, need_weights=False, attn_mask=mask, is_causal=causal
        )[0]
        return out


class TransformerEncoderLayer(_TransformerLayer):
    """Attention of a sequence to itself, then a network of two layers, each with a residual.

    `norm_first` puts each norm before its block instead of after the sum. Masks are those of
    `MultiheadAttention`.

    >>> import everygrad as eg
    >>> layer = eg.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(eg.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def look(x: Tensor) -> Tensor:
            return self._attend_self(x, src_mask, src_key_padding_mask, is_causal)

        return self._added(self._added(src, 1, look), 2, self._feed)


class TransformerDecoderLayer(_TransformerLayer):
    """Attention to itself, attention to a memory, then a network of two layers.

    >>> import everygrad as eg
    >>> layer = eg.nn.TransformerDecoderLayer(8, 2, dim_feedforward=16, batch_first=True)
    >>> layer(eg.ones((3, 5, 8)), eg.ones((3, 7, 8))).shape
    (3, 5, 8)
    """

    def crosses(self) -> bool:
        return True

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def look(x: Tensor) -> Tensor:
            return self._attend_self(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

        def look_across(x: Tensor) -> Tensor:
            out: Tensor = self.multihead_attn(
                x,
                memory,
                memory,
                key_padding_mask=memory_key_padding_mask,
                need_weights=False,
                attn_mask=memory_mask,
                is_causal=memory_is_causal,
            )[0]
            return out

        x = self._added(self._added(tgt, 1, look), 2, look_across)
        return self._added(x, 3, self._feed)


class TransformerEncoder(Module):
    """Copies of an encoder layer one after the other, and a norm at the end if there is one.

    >>> import everygrad as eg
    >>> layer = eg.nn.TransformerEncoderLayer(8, 2, dim_feedforward=16)
    >>> eg.nn.TransformerEncoder(layer, 2)(eg.ones((5, 3, 8))).shape
    (5, 3, 8)
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = _copies(encoder_layer, num_layers, "TransformerEncoder")
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(
                x,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=bool(is_causal),
            )
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """Copies of a decoder layer one after the other, and a norm at the end if there is one.

    >>> import everygrad as eg
    >>> layer = eg.nn.TransformerDecoderLayer(8, 2, dim_feedforward=16)
    >>> eg.nn.TransformerDecoder(layer, 2)(eg.ones((5, 3, 8)), eg.ones((4, 3, 8))).shape
    (5, 3, 8)
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = _copies(decoder_layer, num_layers, "TransformerDecoder")
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        x = tgt
        for layer in self.layers:
            x = layer(
                x,
                memory,
                tgt_mask=tgt_mask,
                memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
                tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder of the source, and a decoder of the target that looks at what it made.

    >>> import everygrad as eg
    >>> model = eg.nn.Transformer(8, 2, 1, 1, dim_feedforward=16, batch_first=True)
    >>> model(eg.ones((3, 7, 8)), eg.ones((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = F.relu,
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        given = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps)
        options = (batch_first, norm_first, bias, device, dtype)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)

        if custom_encoder is None:
            layer: Module = TransformerEncoderLayer(*given, *options)
            self.encoder: Module = TransformerEncoder(layer, num_encoder_layers, norm())
        else:
            self.encoder = custom_encoder
        if custom_decoder is None:
            layer = TransformerDecoderLayer(*given, *options)
            self.decoder: Module = TransformerDecoder(layer, num_decoder_layers, norm())
        else:
            self.decoder = custom_decoder
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for p in self.parameters():
            if p.ndim > 1:
                init.xavier_uniform_(p)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        batch = 0 if self.batch_first else 1
        alike = src.ndim == tgt.ndim and (src.ndim == 2 or src.shape[batch] == tgt.shape[batch])
        if not alike or src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(
                f"Transformer: src {src.shape} and tgt {tgt.shape} must have the same batch, and "
                f"d_model = {self.d_model} as their last axis"
            )
        memory = self.encoder(
            src,
            mask=src_mask,
            src_key_padding_mask=src_key_padding_mask,
            is_causal=src_is_causal,
        )
        out: Tensor = self.decoder(
            tgt,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )
        return out

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """A mask (sz, sz) that is minus infinity where a key comes after the query.

        >>> Transformer.generate_square_subsequent_mask(2)
        tensor([[  0., -inf],
                [  0.,   0.]])
        """
        check_sizes("generate_square_subsequent_mask", sz=sz)
        seen = ones((sz, sz), "bool", device).tril()
        mask: Tensor = where(seen, zeros((), dtype, device), -math.inf)
        return mask

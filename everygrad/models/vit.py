"""ViT, the Vision Transformer: images cut into patches, encoded as a text is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.models.bert import SelfAttention
from everygrad.models.config import Settings
from everygrad.models.pretrained import Pretrained
from everygrad.nn import init
from everygrad.nn.containers import ModuleList
from everygrad.nn.conv import Conv2d
from everygrad.nn.dropout import Dropout
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.norm import LayerNorm
from everygrad.nn.parameter import Parameter
from everygrad.ops.python.creation import zeros
from everygrad.ops.shape.joining import concat


class ViTOutput(NamedTuple):
    """A vector for each patch behind that of the whole image, and the classes' scores."""

    last_hidden_state: Tensor
    logits: Tensor | None


class ViT(Pretrained):
    """The Vision Transformer: images (batch, channels, height, width) in, a `ViTOutput` out.

    It has a classifier where the configuration names classes (`id2label`, `num_labels`) or an
    architecture for classification; `logits` are None without one. A pooler is left out.

    >>> import everygrad as eg
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> sizes |= {"intermediate_size": 16, "image_size": 8, "patch_size": 4, "num_labels": 3}
    >>> eg.models.ViT(sizes)(eg.ones((1, 3, 8, 8))).logits.shape
    (1, 3)
    """

    model_types = ("vit",)
    rename = {"vit.": "", "pooler.": None}  # noqa: RUF012  # a ClassVar of the base

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        said = Settings(config, "ViT")
        width = said.size("hidden_size")
        self.embeddings = _Embeddings(said)
        self.encoder = _Encoder(said)
        self.layernorm = LayerNorm(width, said.number("layer_norm_eps", 1e-12))
        classes = _classes(said)
        self.classifier = Linear(width, classes) if classes else None

    def forward(self, pixel_values: Tensor) -> ViTOutput:
        x = self.layernorm(self.encoder(self.embeddings(pixel_values)))
        return ViTOutput(x, None if self.classifier is None else self.classifier(x[:, 0]))


def _classes(said: Settings) -> int:
    """How many classes a configuration has; 2, as elsewhere, where only the task is said."""
    named = said("id2label", None)
    if isinstance(named, Mapping):
        return len(named)
    tasks = said("architectures", [])
    if said("num_labels", None) is not None:
        return said.size("num_labels")
    return 2 if any("Classification" in str(task) for task in tasks) else 0


class _Embeddings(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width = said.size("hidden_size")
        self.image, self.patch = said.size("image_size", 224), said.size("patch_size", 16)
        if self.image % self.patch:
            raise ArgumentError(f"ViT: patch_size {self.patch} must divide image_size {self.image}")
        self.channels = said.size("num_channels", 3)
        count = (self.image // self.patch) ** 2
        self.cls_token = Parameter(zeros((1, 1, width)))
        self.position_embeddings = Parameter(zeros((1, count + 1, width)))
        init.trunc_normal_(self.position_embeddings, std=0.02)
        self.patch_embeddings = _Patches(self.channels, width, self.patch)
        self.dropout = Dropout(said.number("hidden_dropout_prob", 0.0, 1.0))

    def forward(self, image: Tensor) -> Tensor:
        wanted = (self.channels, self.image, self.image)
        if image.ndim != 4 or image.shape[1:] != wanted:
            raise ShapeError(f"ViT: pixel_values must be (batch, *{wanted}), got {image.shape}")
        patches = self.patch_embeddings(image)
        first = self.cls_token.broadcast_to((image.shape[0], 1, patches.shape[2]))
        out: Tensor = self.dropout(concat([first, patches], axis=1) + self.position_embeddings)
        return out


class _Patches(Module):
    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.projection = Conv2d(channels, width, patch, stride=patch)

    def forward(self, image: Tensor) -> Tensor:
        x = self.projection(image)
        return x.reshape((*x.shape[:2], -1)).matrix_transpose()


class _Encoder(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        self.layer = ModuleList(_Layer(said) for _ in range(said.layers("num_hidden_layers")))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


class _Layer(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width, inner = said.size("hidden_size"), said.size("intermediate_size")
        self.attention = _Attention(said)
        self.intermediate, self.output = _Dense(width, inner), _Dense(inner, width)
        eps = said.number("layer_norm_eps", 1e-12)
        self.layernorm_before, self.layernorm_after = LayerNorm(width, eps), LayerNorm(width, eps)
        self.activation = said.activation("hidden_act", "gelu")
        self.dropout = Dropout(said.number("hidden_dropout_prob", 0.0, 1.0))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.layernorm_before(x)))
        inner = self.activation(self.intermediate(self.layernorm_after(x)))
        out: Tensor = x + self.dropout(self.output(inner))
        return out


class _Attention(Module):
    def __init__(self, said: Settings) -> None:
        super().__init__()
        width = said.size("hidden_size")
        self.attention = SelfAttention(said, said.flag("qkv_bias", True), dropout=0.0)
        self.output = _Dense(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.output(self.attention(x, None))
        return out


class _Dense(Module):
    """A linear layer one name deeper, where the files have it."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.dense = Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(x)
        return out

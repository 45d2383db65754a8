"""Architectures for sound, from transformers, and networks of plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from devtools.zoo import torchvision_schemas
from devtools.zoo.cases import Case, images, quiet, tokens

torchvision_schemas.define()
import transformers as hf  # noqa: E402  # imports torchvision, where it is installed


def _whisper() -> Any:
    config = hf.WhisperConfig(
        **{"vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8},
        **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": 16},
        **{"max_target_positions": 16, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        **{"decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
    )
    return hf.WhisperForConditionalGeneration(quiet(config))


def _wav2vec2() -> Any:
    config = hf.Wav2Vec2Config(
        **{"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"intermediate_size": 48, "conv_dim": (16, 16), "conv_kernel": (10, 3)},
        **{"conv_stride": (5, 2), "num_conv_pos_embeddings": 16},
        **{"num_conv_pos_embedding_groups": 4, "apply_spec_augment": False},
    )
    return hf.Wav2Vec2ForCTC(quiet(config))


class Recurrent(nn.Module):
    """Tokens through a recurrent layer, and scores of classes from its last step."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 16)
        self.layer = layer(16, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 10)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.words(given))[0][:, -1])


class Translator(nn.Module):
    """nn.Transformer between two tables of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.body = nn.Transformer(32, 4, 2, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        words = self.words(source), self.words(target)
        return self.head(self.body(*words, tgt_mask=mask, tgt_is_causal=True))


class UNet(nn.Module):
    """Two levels down, two levels up, joined across; `width`: channels, in multiples of 8."""

    def __init__(self, width: int = 1) -> None:
        super().__init__()
        a, b, c = 8 * width, 16 * width, 32 * width
        self.down1, self.down2, self.bottom = self.level(3, a), self.level(a, b), self.level(b, c)
        self.up2, self.up1 = nn.ConvTranspose2d(c, b, 2, 2), nn.ConvTranspose2d(b, a, 2, 2)
        self.level2, self.level1 = self.level(c, b), self.level(b, a)
        self.head = nn.Conv2d(a, 4, 1)

    def level(self, before: int, behind: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, behind, 3, padding=1), nn.GroupNorm(4, behind), nn.SiLU()
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        one = self.down1(image)
        two = self.down2(nn.functional.max_pool2d(one, 2))
        x = self.bottom(nn.functional.max_pool2d(two, 2))
        x = self.level2(torch.cat([self.up2(x), two], 1))
        return self.head(self.level1(torch.cat([self.up1(x), one], 1)))


class Autoencoder(nn.Module):
    """A convolutional autoencoder with BatchNorm, interpolation and a vector in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ELU(), nn.Flatten()),
            *(nn.Linear(16 * 16, 12), nn.Tanh()),
        )
        self.decode = nn.Sequential(
            *(nn.Linear(12, 16 * 16), nn.Unflatten(1, (16, 4, 4))),
            *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 8, 3, 1, 1)),
            *(nn.PReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 3, 3, 1, 1), nn.Sigmoid()),
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle = self.encode(image)
        return self.decode(middle), middle


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(12, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU()),
        *(nn.BatchNorm1d(32), nn.Linear(32, 10), nn.LogSoftmax(1)),
    )


CASES = [
    Case(
        "Whisper",
        "transformers",
        _whisper,
        lambda: {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": tokens(length=6)},
        ("logits",),
        ("WhisperEncoder", "WhisperDecoder"),
    ),
    Case(
        "Wav2Vec2",
        "transformers",
        _wav2vec2,
        lambda: {"input_values": torch.randn(2, 400)},
        ("logits",),
        ("Wav2Vec2FeatureEncoder", "Wav2Vec2Encoder"),
    ),
    Case("LSTM", "torch", lambda: Recurrent(nn.LSTM), lambda: (tokens(),)),
    Case("GRU", "torch", lambda: Recurrent(nn.GRU), lambda: (tokens(),)),
    Case("Transformer", "torch", Translator, lambda: (tokens(), tokens(length=6))),
    Case("UNet", "torch", UNet, lambda: (images(16),)),
    Case("Autoencoder", "torch", Autoencoder, lambda: (images(16),)),
    Case("MLP", "torch", _mlp, lambda: (torch.randn(6, 12),)),
]

"""Twelve architectures of varied kinds, large enough that their time is not that of the call.

The zoo's own sizes are chosen to find faults; a step of those is over before it is measured. These
take a few to a hundred milliseconds on two cores.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from devtools.zoo import torchvision_schemas
from devtools.zoo.cases import Case, images, quiet, tokens
from devtools.zoo.sound_and_plain import UNet

torchvision_schemas.define()
import transformers as hf  # noqa: E402  # imports torchvision, where it is installed

VOCABULARY, LENGTH, BATCH = 2000, 64, 4
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 256, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 128},
}


def _text(name: str, model: str, config: str, length: int = LENGTH, **sizes: Any) -> Case:
    def build() -> nn.Module:
        made: nn.Module = getattr(hf, model)(quiet(getattr(hf, config)(**sizes)))
        return made

    def inputs() -> dict[str, torch.Tensor]:
        given = {"input_ids": tokens(VOCABULARY, length, BATCH)}
        if name == "T5":
            given["decoder_input_ids"] = tokens(VOCABULARY, length // 2, BATCH)
        return given

    return Case(name, "transformers", build, inputs, ("logits",))


def _pictures(name: str, model: str, config: str, size: int, batch: int, **sizes: Any) -> Case:
    def build() -> nn.Module:
        made: nn.Module = getattr(hf, model)(quiet(getattr(hf, config)(**sizes)))
        return made

    return Case(
        *(name, "transformers", build),
        *(lambda: {"pixel_values": images(size, batch=batch)}, ("logits",)),
    )


def _maker(name: str, library: str, make: Callable[[], Any], size: int, batch: int) -> Case:
    return Case(name, library, make, lambda: (images(size, batch=batch),))


def _convnext() -> Any:
    return import_module("timm").create_model(
        "convnext_atto", num_classes=10, depths=(1, 1, 2, 1), dims=(32, 64, 128, 256)
    )


def _torchvision(maker: str) -> Callable[[], Any]:
    return lambda: getattr(import_module("torchvision.models"), maker)(num_classes=10)


class Reader(nn.Module):
    """Tokens through two layers of LSTM, and scores of classes from the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 128)
        self.layer = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layer(self.words(given))[0][:, -1])
        return scores


CASES = {
    case.name: case
    for case in (
        _text("BERT", "BertForMaskedLM", "BertConfig", **_SIZES),
        _text(
            *("GPT-2", "GPT2LMHeadModel", "GPT2Config"),
            **{"vocab_size": VOCABULARY, "n_embd": 256, "n_layer": 2, "n_head": 4},
            **{"n_positions": 128, **_ENDS},
        ),
        _text(
            *("Llama", "LlamaForCausalLM", "LlamaConfig"),
            **{**_SIZES, "num_key_value_heads": 2, **_ENDS},
        ),
        _text(
            *("T5", "T5ForConditionalGeneration", "T5Config"),
            **{"vocab_size": VOCABULARY, "d_model": 256, "d_kv": 64, "d_ff": 1024},
            **{"num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0},
        ),
        _text(  # its scan is unrolled by the step, which takes compilers long
            *("Mamba", "MambaForCausalLM", "MambaConfig", 16),
            **{"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, **_ENDS},
        ),
        _pictures(
            *("ViT", "ViTForImageClassification", "ViTConfig", 64, 8),
            **{"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 3},
            **{"intermediate_size": 768, "image_size": 64, "patch_size": 8, "num_labels": 10},
        ),
        _pictures(
            *("Swin", "SwinForImageClassification", "SwinConfig", 64, 8),
            **{"image_size": 64, "patch_size": 4, "embed_dim": 48, "depths": [2, 2]},
            **{"num_heads": [3, 6], "window_size": 4, "num_labels": 10},
        ),
        _maker("ConvNeXt", "timm", _convnext, 64, 8),
        _maker("ResNet-18", "torchvision", _torchvision("resnet18"), 64, 8),
        _maker("MobileNetV3", "torchvision", _torchvision("mobilenet_v3_small"), 96, 8),
        _maker("UNet", "torch", lambda: UNet(4), 64, 4),
        Case("LSTM", "torch", Reader, lambda: (tokens(VOCABULARY, 32, 16),)),
    )
}

"""Architectures for images, from transformers, timm and torchvision.

The last two are imported when a network of theirs is built: the tests do without.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.nn import BatchNorm2d

from devtools.zoo import torchvision_schemas
from devtools.zoo.cases import Case, images, quiet, tokens

torchvision_schemas.define()
import transformers as hf  # noqa: E402  # imports torchvision, where it is installed

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def _hf(
    name: str,
    model: str,
    config: str,
    sizes: dict[str, Any],
    size: int,
    wanted: str = "logits",
    dtype: torch.dtype = torch.float32,
) -> Case:
    def build() -> Any:
        return getattr(hf, model)(quiet(getattr(hf, config)(**sizes)))

    names = tuple(wanted.split())
    return Case(
        name, "transformers", build, lambda: {"pixel_values": images(size)}, names, dtype=dtype
    )


def _timm(
    name: str,
    path: str,
    size: int,
    *args: Any,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Case:
    """`path`: a model that timm.create_model knows, or a class and the module it is in."""

    def build() -> Any:
        module, _, maker = path.rpartition(".")
        if module:
            return getattr(import_module(f"timm.models.{module}"), maker)(*args, **options)
        return import_module("timm").create_model(path, num_classes=10, **options)

    return Case(name, "timm", build, lambda: (images(size),), dtype=dtype)


def _tv(name: str, maker: str, size: int, *args: Any, tolerance: float = 0.0) -> Case:
    def build() -> Any:
        return getattr(import_module("torchvision.models"), maker)(*args, num_classes=10)

    return Case(
        *(name, "torchvision", build, lambda: (images(size),)),
        **{"dtype": torch.float64, "tolerance": tolerance},
    )


def _clip() -> Any:
    text = {**_SIZES, "vocab_size": 64, "max_position_embeddings": 16, "eos_token_id": 2}
    image = {**_SIZES, "image_size": 16, "patch_size": 8}
    made = hf.CLIPConfig(text_config=text, vision_config=image, projection_dim=16)
    return hf.CLIPModel(made)


def _siglip() -> Any:
    text = {**_SIZES, "vocab_size": 64, "max_position_embeddings": 16, "projection_size": 32}
    image = {**_SIZES, "image_size": 16, "patch_size": 8}
    return hf.SiglipModel(hf.SiglipConfig(text_config=text, vision_config=image))


def _detr() -> Any:
    backbone = hf.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 12, 16, 20],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = hf.DetrConfig(
        use_timm_backbone=False,
        backbone=None,
        use_pretrained_backbone=False,
        backbone_config=backbone,
        **{"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 5},
        **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
        **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_labels": 3},
    )
    return hf.DetrForObjectDetection(quiet(config))


def _resnet() -> Any:
    resnet = import_module("torchvision.models.resnet")
    return resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=10)


CASES = [
    Case(
        "CLIP",
        "transformers",
        _clip,
        lambda: {"input_ids": tokens(), "pixel_values": images(16)},
        ("logits_per_image", "logits_per_text"),
    ),
    Case(
        "SigLIP",
        "transformers",
        _siglip,
        lambda: {"input_ids": tokens(), "pixel_values": images(16)},
        ("logits_per_image", "logits_per_text"),
    ),
    _hf(
        *("ViT", "ViTForImageClassification", "ViTConfig"),
        {**_SIZES, "image_size": 16, "patch_size": 4, "num_labels": 10},
        16,
    ),
    _hf(
        *("DeiT", "DeiTForImageClassificationWithTeacher", "DeiTConfig"),
        {**_SIZES, "image_size": 16, "patch_size": 4, "num_labels": 10},
        16,
        "logits cls_logits distillation_logits",
    ),
    _hf(
        *("Swin", "SwinForImageClassification", "SwinConfig"),
        {
            **{"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2]},
            **{"num_heads": [2, 4], "window_size": 4, "num_labels": 10},
        },
        32,
    ),
    _hf(
        *("SegFormer", "SegformerForSemanticSegmentation", "SegformerConfig"),
        {
            **{"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_labels": 5},
            **{"num_attention_heads": [1, 2, 3, 4], "decoder_hidden_size": 16},
        },
        64,
        dtype=torch.float64,
    ),
    Case(
        "DETR",
        "transformers",
        _detr,
        lambda: {"pixel_values": images(64)},
        ("logits", "pred_boxes"),
        ("DetrEncoderLayer",),
    ),
    _timm(
        *("ConvNeXt", "convnext_atto", 64),
        **{"dtype": torch.float32, "depths": (1, 1, 2, 1), "dims": (8, 16, 24, 32)},
    ),
    _timm(
        *("EfficientNet", "efficientnet._gen_efficientnet", 64, "efficientnet_b0", 0.25, 0.4),
        **{"num_classes": 10},
    ),
    _timm(
        *("MLP-Mixer", "mlp_mixer.MlpMixer", 32, 10),
        **{"dtype": torch.float32},
        **{"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 32},
    ),
    _timm("RegNet", "regnetx_002", 64),
    _timm(
        *("VGG", "vgg.VGG", 64, [8, "M", 16, "M", 16, 16, "M"], 10),
        **{"mlp_ratio": 0.01, "norm_layer": BatchNorm2d},
    ),
    Case("ResNet", "torchvision", _resnet, lambda: (images(64),), dtype=torch.float64),
    # PyTorch's derivative of hardsigmoid is 1/6 rounded to float32, also in float64
    _tv("MobileNetV3", "mobilenet_v3_small", 64, tolerance=3e-8),
    _tv("DenseNet", "DenseNet", 64, 8, (2, 2, 2), 16),
]

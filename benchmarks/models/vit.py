"""A vision transformer (ViT-S)."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.models import Library, Model
from benchmarks.models.resnet import batch, loss


def network(
    L: Library, *, layers: int, heads: int, width: int, pixels: int, patch: int, classes: int
) -> Any:
    nn, F, lib = L.nn, L.F, L.lib

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            qkv = self.qkv(self.n1(x)).reshape(b, t, 3, heads, width // heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, width))
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class ViT(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, stride=patch)
            self.token = nn.Parameter(lib.zeros((1, 1, width)))
            self.places = nn.Parameter(lib.zeros((1, (pixels // patch) ** 2 + 1, width)))
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = lib.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.places
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)[:, 0])

    return ViT()


def _model(
    name: str, layers: int, heads: int, width: int, size: int, pixels: int, patch: int,
    devices: tuple[str, ...], asked: dict[str, str], precision: str = "f32",
) -> Model:  # fmt: skip
    classes = 100
    return Model(
        name, f"{layers} layers, width {width}, {size} images of {pixels}, patches of {patch}",
        partial(network, layers=layers, heads=heads, width=width, pixels=pixels, patch=patch,
                classes=classes),
        partial(batch, size=size, pixels=pixels, classes=classes),
        loss, devices, precision=precision, units=size, unit="images", asked=asked,
        tolerance=2e-2 if precision == "bf16" else 2e-3,
    )  # fmt: skip


MODELS = [
    _model("vit", 12, 6, 384, 128, 224, 16, ("cuda",), {"cuda.eager": "1.2 of the peer's"}, "bf16"),
    _model("vit.small", 4, 3, 96, 32, 32, 4, ("webgpu", "cpu"), {"webgpu.first": "3 s"}),
]

"""ResNet-18 and ResNet-50, for images of 224 pixels and, with a small first layer, of 32."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.models import Array, Batch, Library, Model


def network(L: Library, *, deep: bool, small: bool, width: int, classes: int) -> Any:
    nn = L.nn
    counts = (3, 4, 6, 3) if deep else (2, 2, 2, 2)

    def convolution(wide: int, out: int, size: int, stride: int = 1) -> Any:
        return nn.Conv2d(wide, out, size, stride=stride, padding=size // 2, bias=False)

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, wide: int, mid: int, stride: int) -> None:
            super().__init__()
            out = 4 * mid if deep else mid
            sizes = ((wide, mid, 1, 1), (mid, mid, 3, stride), (mid, out, 1, 1)) if deep else \
                ((wide, mid, 3, stride), (mid, out, 3, 1))  # fmt: skip
            self.convs = nn.ModuleList([convolution(*s) for s in sizes])
            self.norms = nn.ModuleList([nn.BatchNorm2d(s[1]) for s in sizes])
            self.relu = nn.ReLU(inplace=True)
            self.shortcut = nn.Sequential()
            if stride != 1 or wide != out:
                self.shortcut = nn.Sequential(
                    convolution(wide, out, 1, stride), nn.BatchNorm2d(out)
                )

        def forward(self, x: Any) -> Any:
            y = x
            last = len(self.convs) - 1
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
                y = norm(conv(y))
                if i != last:
                    y = self.relu(y)
            return self.relu(y + self.shortcut(x))

    stem = [convolution(3, width, 3 if small else 7, 1 if small else 2),
            nn.BatchNorm2d(width), nn.ReLU(inplace=True)]  # fmt: skip
    if not small:
        stem.append(nn.MaxPool2d(3, 2, 1))
    blocks, wide = [], width
    for stage, count in enumerate(counts):
        for i in range(count):
            mid = width * 2**stage
            blocks.append(Block(wide, mid, 2 if stage and not i else 1))
            wide = 4 * mid if deep else mid
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, classes)]
    return nn.Sequential(*stem, *blocks, *head)


def batch(rng: np.random.Generator, *, size: int, pixels: int, classes: int) -> dict[str, Array]:
    images = rng.standard_normal((size, 3, pixels, pixels), dtype=np.float32)
    return {"x": images, "y": rng.integers(0, classes, size)}


def loss(L: Library, model: Any, b: Batch) -> Any:
    return L.F.cross_entropy(model(b["x"]), b["y"])


def _model(
    name: str, deep: bool, width: int, size: int, pixels: int, devices: tuple[str, ...],
    asked: dict[str, str], precision: str = "f32", classes: int = 10, lr: float = 1e-2,
) -> Model:  # fmt: skip
    return Model(
        name, f"width {width}, {size} images of {pixels} x {pixels}, SGD with momentum",
        partial(network, deep=deep, small=pixels < 100, width=width, classes=classes),
        partial(batch, size=size, pixels=pixels, classes=classes),
        loss, devices, optimiser="sgd", lr=lr, precision=precision, units=size, unit="images",
        asked=asked, tolerance=5e-2 if precision == "bf16" else 5e-3,
    )  # fmt: skip


MODELS = [
    _model("resnet50", True, 64, 128, 224, ("cuda",),
           {"cuda.jit": "the peer's, 1.2 of its memory"}, "bf16", 1000),
    # batch norms of so few images magnify rounding: at 1e-2 PyTorch differs from torch.compile
    _model("resnet50.cpu", True, 64, 4, 224, ("cpu",), {"cpu.memory": "the peer's"}, "f32", 1000,
           lr=1e-5),
    _model("resnet18", False, 64, 256, 32, ("cuda",), {"cuda.eager": "1.2 of the peer's"}, "bf16"),
    _model("resnet18.f32", False, 64, 256, 32, ("webgpu",), {"webgpu.jit": "35 ms"}),
    _model("resnet18.small", False, 32, 16, 32, ("cpu",),
           {"cpu.jit": "0.8 of the peer's", "cpu.eager": "1.1 of the peer's"}),
]  # fmt: skip

"""A UNet with group norms, three sizes deep."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.models import Array, Batch, Library, Model


def network(L: Library, *, width: int) -> Any:
    nn, F, lib = L.nn, L.F, L.lib

    class Double(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, wide: int, out: int) -> None:
            super().__init__()
            self.c1, self.c2 = nn.Conv2d(wide, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
            self.n1, self.n2 = nn.GroupNorm(8, out), nn.GroupNorm(8, out)

        def forward(self, x: Any) -> Any:
            return F.silu(self.n2(self.c2(F.silu(self.n1(self.c1(x))))))

    class UNet(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            w = width
            self.down = nn.ModuleList([Double(3, w), Double(w, 2 * w), Double(2 * w, 4 * w)])
            self.up = nn.ModuleList([Double(6 * w, 2 * w), Double(3 * w, w)])
            self.out = nn.Conv2d(w, 3, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for i, block in enumerate(self.down):
                x = block(x if not i else F.max_pool2d(x, 2))
                kept.append(x)
            for block, skip in zip(self.up, reversed(kept[:-1]), strict=True):
                x = F.interpolate(x, scale_factor=2, mode="nearest")
                x = block(lib.cat([x, skip], dim=1))
            return self.out(x)

    return UNet()


def batch(rng: np.random.Generator, *, size: int, pixels: int) -> dict[str, Array]:
    shape = (size, 3, pixels, pixels)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name in ("x", "y")}


def loss(L: Library, model: Any, b: Batch) -> Any:
    return L.F.mse_loss(model(b["x"]), b["y"])


def _model(
    name: str, width: int, size: int, pixels: int, devices: tuple[str, ...], asked: dict[str, str],
    precision: str = "f32",
) -> Model:  # fmt: skip
    return Model(
        name, f"width {width}, {size} images of {pixels} x {pixels}",
        partial(network, width=width), partial(batch, size=size, pixels=pixels),
        loss, devices, precision=precision, units=size, unit="images", asked=asked,
        tolerance=2e-2 if precision == "bf16" else 2e-3,
    )  # fmt: skip


MODELS = [
    _model("unet", 64, 32, 64, ("cuda",), {"cuda.memory": "the peer's"}, "bf16"),
    _model("unet.f32", 64, 32, 64, ("webgpu",), {"webgpu.jit": "15 ms"}),
    _model("unet.small", 16, 8, 32, ("cpu", "webgpu"),
           {"cpu.memory": "the peer's", "webgpu.first": "3 s"}),
]  # fmt: skip

"""Small networks: a CNN, a physics-informed network, and an LSTM cell called step by step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.models import Array, Batch, Library, Model
from benchmarks.models.resnet import batch as images, loss as classify


def cnn(L: Library) -> Any:
    nn = L.nn
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def pinn(L: Library, *, width: int, layers: int) -> Any:
    nn = L.nn
    inner = [m for _ in range(layers - 1) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), *inner, nn.Linear(width, 1))


def points(rng: np.random.Generator, *, size: int) -> dict[str, Array]:
    return {"x": rng.uniform(-1, 1, (size, 2)).astype(np.float32)}


def burgers(L: Library, model: Any, b: Batch) -> Any:
    """The residual of u_t + u u_x = 0.01 u_xx, squared."""
    u = model(b["x"])
    first = L.gradient(u, b["x"])
    second = L.gradient(first[:, 0], b["x"])
    return ((first[:, 1:] + u * first[:, :1] - 0.01 * second[:, :1]) ** 2).mean()


def cell(L: Library, *, width: int) -> Any:
    nn, lib = L.nn, L.lib

    class Reader(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(32, width), nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            h = c = lib.zeros((x.shape[1], width), device=L.device)
            for t in range(x.shape[0]):
                h, c = self.cell(x[t], (h, c))
            return self.head(h)

    return Reader()


def sequences(rng: np.random.Generator, *, steps: int, size: int) -> dict[str, Array]:
    x = rng.standard_normal((steps, size, 32), dtype=np.float32)
    return {"x": x, "y": rng.integers(0, 10, size)}


def _cell(name: str, device: str, steps: int, width: int, size: int, asked: str) -> Model:
    return Model(
        name, f"{steps} steps of a cell of {width}, batch {size}", partial(cell, width=width),
        partial(sequences, steps=steps, size=size), classify, (device,),
        units=steps, unit="steps", asked={f"{device}.eager": asked},
    )  # fmt: skip


MODELS = [
    Model(
        "cnn", "two convolutions with batch norms, 32 images of 32 x 32", cnn,
        partial(images, size=32, pixels=32, classes=10), classify, ("cpu",), optimiser="sgd",
        lr=1e-2, units=32, unit="images", asked={"cpu.eager": "the peer's"}, tolerance=5e-3,
    ),
    Model(
        "pinn", "Burgers' equation, 4 layers of 64, 1024 points, second derivatives",
        partial(pinn, width=64, layers=4), partial(points, size=1024), burgers, ("cpu", "cuda"),
        units=1024, unit="points", asked={"cpu.eager": "the peer's"},
        differentiates_inputs=("x",),
    ),
    _cell("lstm_cell", "cuda", 128, 256, 64, "1.2 of the peer's"),
    _cell("lstm_cell.small", "cpu", 32, 128, 32, "the peer's"),
]  # fmt: skip

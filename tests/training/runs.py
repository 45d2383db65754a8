"""A small run with everything in it: dropout, batch norm, shuffling, a schedule, EMA, clipping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import everygrad as eg
from everygrad import nn


def dataset(count: int = 96) -> eg.data.TensorDataset:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(count, 6)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64)
    return eg.data.TensorDataset(eg.tensor(x), eg.tensor(y))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)
    )


class Run:
    """A trainer and its loaders, the same for the same seed."""

    def __init__(
        self,
        folder: Path | None = None,
        seed: int = 7,
        loading: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        eg.manual_seed(seed)
        self.model = network()
        self.optimizer = eg.optim.AdamW(self.model.parameters(), lr=0.02)
        schedule = eg.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=40)
        self.loader = eg.data.DataLoader(
            dataset(), batch_size=10, shuffle=True, generator=eg.Generator(3), **(loading or {})
        )
        self.validation = eg.data.DataLoader(dataset(40), batch_size=16)
        settings: dict[str, Any] = {
            "scheduler": schedule,
            "scheduler_every": "step",
            "clip_norm": 1.0,
            "ema": 0.9,
            "metrics": {"accuracy": eg.training.metrics.Accuracy()},
            "progress": "none",
            "plots": False if folder is not None else None,
            "log_every": 4,
        }
        self.trainer = eg.training.Trainer(
            self.model,
            self.optimizer,
            nn.CrossEntropyLoss(),
            folder=folder,
            **{**settings, **more},
        )

    def fit(self, **how: Any) -> list[dict[str, Any]]:
        return self.trainer.fit(self.loader, self.validation, **how)

    def everything(self) -> dict[str, Any]:
        """All tensors and numbers that a run has, by name."""
        trainer = self.trainer
        found = {f"model.{k}": np.asarray(v) for k, v in self.model.state_dict().items()}
        if trainer.ema is not None:
            found |= {f"ema.{k}": np.asarray(v) for k, v in trainer.ema.state_dict().items()}
        for i, held in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{i}.{k}": np.asarray(v) for k, v in held.items()}
        found["lr"] = trainer.rate()
        found["random"] = eg.default_generator.get_state()
        found["rows"] = [
            {k: v for k, v in row.items() if k != "seconds"} for row in trainer.history
        ]
        return found


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Bit by bit."""
    assert a.keys() == b.keys()
    for key, value in a.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == b[key].dtype, key
            assert value.tobytes() == b[key].tobytes(), key
        else:
            assert value == b[key], key

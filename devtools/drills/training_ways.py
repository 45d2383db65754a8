"""One training in ways that are drawn at random: compiled or not, with checkpoints in the graph, on
ranks that share the batch or the parameters as well, with a loss scaler, and saved, spoilt and
loaded on the way. The losses are those of the plain way.

    python -m devtools.drills.training_ways [--seed 0] [--count 100]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.nn import functional as F

RNG = np.random.default_rng(0)
STEPS, ROWS, LENGTH, WORDS, WIDTH = 6, 4, 5, 11, 12
IDS, TARGETS = RNG.integers(0, WORDS, (2, STEPS, ROWS, LENGTH))
SAME = 1e-9


@dataclass(frozen=True)
class Way:
    """The first line decides the losses, the others must not."""

    optimiser: str
    drop: float
    schedule: bool
    ema: bool
    clip: bool
    halves: bool  # two batches of half the rows are a step
    checkpoint: bool = False
    compiled: bool = False
    scaler: bool = False
    saved: bool = False
    level: int | None = None  # 0: data parallel, 1 to 3: ZeRO
    ranks: int = 1


class Network(nn.Module):
    """A bit of everything that has weights."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True, dropout=way.drop)
        self.attention = nn.MultiheadAttention(WIDTH, 3, batch_first=True, dropout=way.drop)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.ahead = nn.Sequential(
            nn.Linear(WIDTH, 24), nn.GELU(), nn.Dropout(way.drop), nn.Linear(24, WIDTH)
        )
        self.scales = nn.ParameterList([eg.ones((WIDTH,)), eg.full((WIDTH,), 0.5)])
        self.way = way

    def block(self, h: eg.Tensor) -> eg.Tensor:
        a = self.norms[0](h)
        h = h + self.scales[0] * self.attention(a, a, a, need_weights=False)[0]
        out: eg.Tensor = h + self.scales[1] * self.ahead(self.norms[1](h))
        return out

    def forward(self, ids: eg.Tensor) -> eg.Tensor:
        h, _ = self.lstm(self.embedding(ids))
        h = eg.checkpoint(self.block, h) if self.way.checkpoint else self.block(h)
        scores: eg.Tensor = F.linear(h, self.embedding.weight)  # another module's
        return scores


class Training:
    """Everything that one rank has."""

    def __init__(self, way: Way) -> None:
        eg.manual_seed(9)
        self.way = way
        self.mesh = dist.Mesh({"data": way.ranks})
        self.model: Any = Network(way).double()
        if way.level is not None:
            wrap = dist.shard if way.level else dist.DataParallel
            self.model = wrap(self.model, self.mesh, "data", *[way.level] * bool(way.level))
        self.optimiser = getattr(optim, way.optimiser)(self.model.parameters(), lr=1e-2)
        held: dict[str, Any] = {"model": self.model, "optimiser": self.optimiser}
        if way.schedule:
            held["schedule"] = optim.lr_scheduler.CosineAnnealingLR(self.optimiser, T_max=STEPS)
        if way.scaler:
            held["scaler"] = optim.GradScaler(init_scale=256.0)
        if way.ema:
            held["ema"] = optim.swa_utils.AveragedModel(self.model)
        self.held = held
        self.run = eg.jit(self.step) if way.compiled else self.step

    def rows(self, batch: Any) -> eg.Tensor:
        share = ROWS // self.way.ranks
        return eg.tensor(batch[dist.rank() * share : (dist.rank() + 1) * share])

    def step(self, ids: eg.Tensor, targets: eg.Tensor) -> eg.Tensor:
        way, scaler = self.way, self.held.get("scaler")
        self.optimiser.zero_grad()
        parts = 2 if way.halves else 1
        losses = []
        for some, wanted in zip(eg.chunk(ids, parts), eg.chunk(targets, parts), strict=True):
            scores = self.model(some).reshape(-1, WORDS)
            loss = F.cross_entropy(scores, wanted.reshape(-1)) / parts
            (loss if scaler is None else scaler.scale(loss)).backward()
            losses.append(loss.detach())
        if scaler is not None and way.clip:
            scaler.unscale_(self.optimiser)
        if way.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.3)
        if scaler is None:
            self.optimiser.step()
        else:
            scaler.step(self.optimiser)
            scaler.update()
        if way.ema:
            self.held["ema"].update_parameters(self.model)
        return eg.stack(losses).sum()

    def losses(self, folder: str) -> list[float]:
        """Of all steps, and a number made by the model that comes out."""
        found = []
        for i in range(STEPS):
            loss = self.run(self.rows(IDS[i]), self.rows(TARGETS[i]))
            if self.way.schedule:
                self.held["schedule"].step()
            found.append(self.mean(loss))
            if self.way.saved and i == STEPS // 2:
                self.save_and_load(f"{folder}/{dist.rank()}")
        model = self.held.get("ema", self.model).eval()
        with eg.no_grad():
            return [*found, self.mean(model(self.rows(IDS[0])).mean())]

    def mean(self, x: eg.Tensor) -> float:
        return float(dist.all_reduce(x.detach(), self.mesh, "data", "mean").item())

    def save_and_load(self, file: str) -> None:
        eg.save(file, self.held)
        spoilt = {name: t * 0.5 for name, t in self.model.state_dict().items()}
        self.model.load_state_dict(spoilt)
        self.run(self.rows(IDS[0]), self.rows(TARGETS[0]))
        eg.load(file, into=self.held)
        self.optimiser.zero_grad()


def losses_of(way: Way) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        every = dist.run_local(lambda: Training(way).losses(folder), way.ranks)
    assert all(found == every[0] for found in every)
    return list(every[0])


def drawn_ways(seed: int) -> Iterator[tuple[Way, Way]]:
    """Plain ways, and others that must come to the same."""
    draw = random.Random(seed)

    def maybe() -> bool:
        return draw.random() < 0.5

    while True:
        rule = draw.choice(["AdamW", "SGD", "Lion", "RMSprop", "NAdam", "Adagrad"])
        halves = draw.random() < 0.3
        drop = 0.0 if halves else draw.choice([0.0, 0.25])  # halves are drawn for one by one
        plain = Way(rule, drop, maybe(), maybe(), maybe(), halves)
        level = draw.choice([None, 0, 1, 2, 3])
        ranks = 1 if level is None else 2 if halves else draw.choice([2, 4])
        # a masked step that is thrown away has moved the generator on
        saved = maybe() and not drop
        other = replace(plain, checkpoint=maybe(), compiled=maybe(), scaler=maybe(), saved=saved)
        yield plain, replace(other, level=level, ranks=ranks)


def difference(plain: Way, other: Way) -> float:
    want, got = losses_of(plain), losses_of(other)
    return max(abs(a - b) for a, b in zip(want, got, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    failed = 0
    for _, (plain, other) in zip(range(given.count), drawn_ways(given.seed), strict=False):
        try:
            gap = difference(plain, other)
            said = "" if gap <= SAME else f"WRONG by {gap:.1e}"
        except Exception as error:  # of any kind: it is reported, and the next one tried
            said = f"{type(error).__name__}: {error}"
        failed += bool(said)
        print(f"{other}: {said or 'the same'}", flush=True)
    print(f"{failed} of {given.count} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The model of `examples/gpt.py`, tiny, in float64, with one start and one stream of batches."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.nn import functional as F
from everygrad.ops.random.generators import Generator, scoped_generator
from examples.gpt import GPT, loss_of

LETTERS, LAYERS, HEADS, WIDTH, TOKENS = 17, 2, 4, 16, 6  # 17 letters do not divide
BATCH, STEPS = 8, 50
SHARDS = {
    "blocks.*.qkv": (dist.Shard(0), 3),
    "blocks.*.mix": dist.Shard(1),
    "blocks.*.up": dist.Shard(0),
    "blocks.*.down": dist.Shard(1),
    "letters": dist.Shard(0),
    "head": dist.Shard(0),
}


def batches(steps: int = STEPS) -> list[tuple[eg.Tensor, eg.Tensor]]:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, LETTERS, (steps, 2, BATCH, TOKENS))
    return [(eg.tensor(x), eg.tensor(y)) for x, y in drawn]


@cache
def start() -> dict[str, Any]:
    with scoped_generator(Generator(1)):
        made = GPT(LETTERS, LAYERS, HEADS, WIDTH, TOKENS)
    return {name: t.astype("float64") for name, t in made.state_dict().items()}


def gpt() -> GPT:
    """The model with the one start, whichever rank makes it."""
    with scoped_generator(Generator(0)):
        model = GPT(LETTERS, LAYERS, HEADS, WIDTH, TOKENS).double()
    model.load_state_dict(start())
    return model


def optimizer(parameters: Any) -> optim.AdamW:
    return optim.AdamW(parameters, lr=3e-3, weight_decay=0.01)


@cache
def losses_of_one_process(steps: int = STEPS) -> list[float]:
    model = gpt()
    opt = optimizer(model.parameters())
    found = []
    for x, y in batches(steps):
        loss = loss_of(model, x, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        found.append(loss.item())
    return found


def wrapped(module: nn.Module, mesh: dist.Mesh, level: int) -> Any:
    """Data parallel training, with what a level of ZeRO shares."""
    if level == 0:
        return dist.DataParallel(module, mesh)
    return dist.shard(module, mesh, "data", level)


def losses(axes: dict[str, int], level: int, steps: int, jit: bool) -> list[float]:
    """The losses on a mesh with a data axis and perhaps a model axis."""
    mesh = dist.Mesh(axes)
    inside = gpt()
    if "model" in axes:
        dist.parallelize(inside, mesh, "model", SHARDS)
    model = wrapped(inside, mesh, level)
    opt = optimizer(model.parameters())

    def step(x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        if "model" in axes:
            loss = dist.parallel_cross_entropy(model(x), y, mesh, "model", classes=LETTERS)
        else:
            loss = loss_of(model, x, y)
        opt.zero_grad()
        loss.backward()
        dist.clip_grad_norm_(model.parameters(), 1.0, mesh=mesh)
        opt.step()
        return dist.all_reduce(loss.detach(), mesh, "data", "mean")

    run = eg.jit(step) if jit else step
    return [run(*model.local_batch(x, y)).item() for x, y in batches(steps)]


class First(nn.Module):
    """The first stage of a pipeline: letters to vectors, and some blocks."""

    def __init__(self, model: GPT, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.letters = model.letters
        self.places = model.places
        self.rest = nn.Sequential(*blocks)

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        return self.rest(self.letters(x) + self.places(eg.arange(x.shape[1])))


def stages(count: int, mesh: dist.Mesh) -> list[nn.Module]:
    model = gpt()
    if "model" in mesh.axes:
        dist.parallelize(model, mesh, "model", SHARDS)
    blocks = list(model.blocks.children())
    end = [model.norm, model.head]
    if count == 1:
        return [nn.Sequential(First(model, blocks), *end)]
    if count == 2:
        return [First(model, blocks[:1]), nn.Sequential(blocks[1], *end)]
    return [First(model, []), blocks[0], blocks[1], nn.Sequential(*end)]


def pipeline_losses(
    axes: dict[str, int],
    schedule: str,
    microbatches: int,
    count: int,
    level: int,
    steps: int,
    jit: bool,
) -> list[float]:
    """The losses on a mesh with an axis of stages; `jit`: each stage is compiled."""
    mesh = dist.Mesh(axes)
    made: list[Any] = stages(count, mesh)
    if jit:
        made = [eg.jit(stage) for stage in made]
    if "data" in axes:
        own = range(mesh.coordinate("pipe"), count, axes["pipe"])
        made = [wrapped(s, mesh, level) if i in own else s for i, s in enumerate(made)]
    pipe = dist.pipeline(made, microbatches, schedule, mesh)
    opt = optimizer(pipe.parameters())

    def loss(scores: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        if "model" in axes:
            return dist.parallel_cross_entropy(scores, y, mesh, "model", classes=LETTERS)
        return F.cross_entropy(scores.reshape(-1, LETTERS), y.reshape(-1))

    found = []
    for x, y in batches(steps):
        if "data" in axes:
            a, b = dist.extent(BATCH, axes["data"], mesh.coordinate("data"))
            x, y = x[a:b], y[a:b]
        opt.zero_grad()
        now = pipe.step(loss, x, y)
        dist.clip_grad_norm_(pipe.parameters(), 1.0, mesh=mesh, split_over=("pipe",))
        opt.step()
        whole = dist.all_reduce(now, mesh, "data", "mean") if "data" in axes else now
        found.append(whole.item())
    return found

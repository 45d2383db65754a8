"""Pipelines whose stages are wrapped, compiled, checkpointed, or have wrapped modules in them; and
what is not a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.errors import ArgumentError, CollectiveMismatchError, ShapeError
from everygrad.nn import functional as F

RNG = np.random.default_rng(8)
WIDE, ROWS, MICRO, STEPS = 6, 8, 2, 3
X, Y = RNG.standard_normal((2, ROWS, WIDE))
MESHES: list[dict[str, int]] = [
    {"pipe": 2},
    {"data": 2, "pipe": 2},
    {"data": 2, "pipe": 2, "model": 2},
]


class Block(nn.Module):
    """Two layers that can be shared, of a kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.norm = nn.BatchNorm1d(WIDE) if kind == "batch norm" else nn.LayerNorm(WIDE)
        self.up, self.down = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)

    def inner(self, x: eg.Tensor) -> eg.Tensor:
        return self.down(self.up(self.norm(x)).tanh())

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        out: eg.Tensor = (
            eg.checkpoint(self.inner, x) if self.kind == "checkpoint" else self.inner(x)
        )
        return x + out


class Stage(nn.Module):
    """A block, and a parameter beside it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.block = Block(kind)
        self.scale = nn.Parameter(eg.full((WIDE,), 0.9))

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        return self.block(x) * self.scale


def stages_of(kind: str, count: int) -> list[Any]:
    eg.manual_seed(4)
    return [Stage(kind).double() for _ in range(count)]


def alone(kind: str, count: int, ranks: int) -> list[float]:
    """The losses of one process, which adds up the gradients of the same microbatches."""
    model = nn.Sequential(*stages_of(kind, count))
    opt = optim.AdamW(model.parameters(), lr=0.01)
    parts = np.arange(ROWS).reshape(ranks, MICRO, -1).swapaxes(0, 1).reshape(MICRO, -1)
    found = []
    for _ in range(STEPS):
        opt.zero_grad()
        total = 0.0
        for rows in parts:
            loss = F.mse_loss(model(eg.tensor(X[rows])), eg.tensor(Y[rows])) / MICRO
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        found.append(total)
    return found


def wrapped(module: nn.Module, mesh: dist.Mesh, level: int) -> Any:
    return dist.shard(module, mesh, "data", level) if level else dist.DataParallel(module, mesh)


def staged(
    kind: str, count: int, axes: dict[str, int], schedule: str, where: str, level: int
) -> list[float]:
    """`where`: what is wrapped: the stage, the block in it, or what is compiled of the stage."""
    mesh = dist.Mesh(axes)
    made = stages_of(kind, count)
    own = range(mesh.coordinate("pipe"), count, 2)
    scales = []
    for i, stage in enumerate(made):
        if "model" in axes:
            places = {"block.up": dist.Shard(0), "block.down": dist.Shard(1)}
            dist.parallelize(stage, mesh, "model", places)
        if "data" in axes and i in own:
            stage = dist.convert_sync_batchnorm(stage, mesh)
            if where == "block":
                stage.block = wrapped(stage.block, mesh, level)
                scales.append(stage.scale)
                made[i] = stage
            else:
                made[i] = wrapped(eg.jit(stage) if where == "compiled" else stage, mesh, level)
    pipe = dist.pipeline(made, MICRO, schedule, mesh)
    opt = optim.AdamW(pipe.parameters(), lr=0.01)
    x, y = X, Y
    if "data" in axes:
        a, b = dist.extent(ROWS, axes["data"], mesh.coordinate("data"))
        x, y = X[a:b], Y[a:b]
    found = []
    for _ in range(STEPS):
        opt.zero_grad()
        loss = pipe.step(F.mse_loss, eg.tensor(x), eg.tensor(y))
        for p in scales:  # outside of what is wrapped
            p.grad = dist.all_reduce(p.grad, mesh, "data", "mean")
        nn.utils.clip_grad_norm_(pipe.parameters(), 0.5)
        opt.step()
        found.append(
            (dist.all_reduce(loss, mesh, "data", "mean") if "data" in axes else loss).item()
        )
    return found


@pytest.mark.parametrize("kind", ["plain", "checkpoint", "batch norm"])
@pytest.mark.parametrize(("schedule", "count"), [("gpipe", 2), ("1f1b", 2), ("interleaved", 4)])
@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: "x".join(axes))
def test_stages_of_all_kinds(kind: str, schedule: str, count: int, axes: dict[str, int]) -> None:
    want = alone(kind, count, axes.get("data", 1))
    ranks = int(np.prod(list(axes.values())))
    ways = [("stage", 0)]
    if "data" in axes:  # one way for each kind and schedule, all of them in every three
        number = len(kind) + count + len(schedule)
        ways = [(where, (number + i) % 4) for i, where in enumerate(("stage", "block", "compiled"))]
    for where, level in ways:
        for found in dist.run_local(staged, ranks, kind, count, axes, schedule, where, level):
            np.testing.assert_allclose(found, want, rtol=0, atol=1e-12, err_msg=f"{where} {level}")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("where", ["stage", "block", "compiled"])
def test_wrapped_stages(where: str, level: int) -> None:
    want = alone("plain", 2, 2)
    for found in dist.run_local(staged, 4, "plain", 2, MESHES[1], "1f1b", where, level):
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-12)


def linears(count: int = 2) -> list[Any]:
    eg.manual_seed(0)
    return [nn.Linear(WIDE, WIDE).double() for _ in range(count)]


def gradients(stages: list[Any], schedule: str = "1f1b") -> tuple[float, list[Any]]:
    pipe = dist.pipeline(stages, MICRO, schedule, dist.Mesh({"pipe": 2}))
    loss = pipe.step(F.mse_loss, eg.tensor(X), eg.tensor(Y))
    optim.SGD(pipe.parameters(), lr=0.1) if list(pipe.parameters()) else None
    return loss.item(), [None if p.grad is None else p.grad.numpy() for p in pipe.parameters()]


def check_gradients(make: Callable[[], list[Any]], schedule: str = "1f1b") -> None:
    """Those of the stages one after the other, each on its rank."""
    whole = make()
    F.mse_loss(nn.Sequential(*whole)(eg.tensor(X)), eg.tensor(Y)).backward()
    for rank, (_, found) in enumerate(dist.run_local(lambda: gradients(make(), schedule), 2)):
        params: dict[int, Any] = {id(p): p for s in whole[rank::2] for p in s.parameters()}
        assert len(found) == len(params)
        for g, p in zip(found, params.values(), strict=True):
            assert (g is None) == (p.grad is None)
            if g is not None:
                np.testing.assert_allclose(g, p.grad.numpy(), rtol=0, atol=1e-14)


def test_stages_without_anything_to_train() -> None:
    def frozen(number: int) -> list[Any]:
        made = linears()
        made[number].requires_grad_(False)
        return made

    check_gradients(lambda: frozen(0))
    check_gradients(lambda: frozen(1))
    check_gradients(lambda: [nn.Identity(), linears()[0]])
    check_gradients(lambda: [linears()[0], nn.Identity()])


def test_stages_of_one_rank_may_share_a_parameter() -> None:
    def tied() -> list[Any]:
        made = linears(4)
        made[2].weight = made[0].weight
        return made

    check_gradients(tied, "interleaved")


class Pair(nn.Module):
    """Not a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(eg.ones((1,), "float64"))

    def forward(self, x: eg.Tensor) -> Any:
        return x * self.weight, x


def tied_stages() -> list[Any]:
    made = linears()
    made[1].weight = made[0].weight
    return made


def step_on(stages: list[Any], rows: int = ROWS, loss: Any = F.mse_loss) -> Any:
    pipe = dist.pipeline(stages, MICRO, mesh=dist.Mesh({"pipe": 2}))
    return pipe.step(loss, eg.tensor(X[:rows]), eg.tensor(Y[:rows]))


def compiled_call(method: str) -> Any:
    pipe = dist.pipeline(linears(), MICRO, mesh=dist.Mesh({"pipe": 2}))
    x = eg.tensor(X)
    call = (lambda x: pipe(x)) if method == "forward" else lambda x: pipe.step(F.mse_loss, x, x)
    return eg.jit(call)(x)


def of_whole_models() -> Any:
    return optim.LBFGS(dist.pipeline(linears(), 2, mesh=dist.Mesh({"pipe": 2})).parameters())


BAD: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ArgumentError, "weight of stage 1 is weight of stage 0 too, on another rank",
     lambda: step_on(tied_stages())),
    (ArgumentError, r"stage 0 \(Pair\) gave tuple", lambda: step_on([Pair(), *linears(1)])),
    (ShapeError, "loss must be one number", lambda: step_on(linears(), loss=lambda a, b: a - b)),
    (ShapeError, "cannot be 2 microbatches", lambda: step_on(linears(), 1)),
    (CollectiveMismatchError, r"step of a pipeline on a batch of float64\[3, 6\]",
     lambda: step_on(linears(), 3 + dist.rank())),
    (ArgumentError, r"step\(\) talks to other ranks by turns", lambda: compiled_call("step")),
    (ArgumentError, r"forward\(\) talks to other ranks by turns", lambda: compiled_call("forward")),
    (ArgumentError, "LBFGS: looks at all parameters at once", of_whole_models),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "act"), BAD, ids=[case[1] for case in BAD])
def test_bad_input_is_named(error: Any, message: str, act: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message):
        dist.run_local(act, 2)


def test_rules_of_whole_parameters_take_stages() -> None:
    def run() -> bool:
        pipe = dist.pipeline(linears(), 2, mesh=dist.Mesh({"pipe": 2}))
        opt = optim.LAMB(pipe.parameters(), lr=0.1)
        pipe.step(F.mse_loss, eg.tensor(X), eg.tensor(Y))
        opt.step()
        return True

    assert dist.run_local(run, 2) == [True] * 2


@pytest.mark.parametrize("unscaled", [False, True])
def test_an_overflow_in_one_stage_skips_the_step_of_all(unscaled: bool) -> None:
    """And the ranks that have no loss know the scale."""

    def run(spoilt: bool) -> Any:
        pipe = dist.pipeline(linears(), 2, mesh=dist.Mesh({"pipe": 2}))
        opt, scaler = optim.SGD(pipe.parameters(), lr=0.1), optim.GradScaler(init_scale=4.0)
        pipe.step(lambda a, b: scaler.scale(F.mse_loss(a, b)), eg.tensor(X), eg.tensor(Y))
        weight = next(iter(pipe.parameters()))
        if spoilt and dist.rank() == 0:
            weight.grad = weight.grad * np.inf
        before = weight.detach().numpy().copy()
        if unscaled:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        return scaler.get_scale(), bool((weight.detach().numpy() == before).all())

    assert dist.run_local(run, 2, True) == [(2.0, True)] * 2
    assert dist.run_local(run, 2, False) == [(4.0, False)] * 2

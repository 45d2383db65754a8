"""What reaches the gradients of a wrapped model in other ways than one forward and one backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.errors import ArgumentError, CollectiveMismatchError, GradientError

X = np.random.default_rng(5).standard_normal((8, 3))
STEPS = 3


class Branches(nn.Module):
    """Layers that a call may use or not, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.never = nn.Linear(3, 4), nn.Linear(3, 3)
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: eg.Tensor, which: str = "both") -> Any:
        h = self.body(x).tanh()
        if which == "both":
            return self.first(h), self.second(h)
        return getattr(self, which)(h)


def cost(x: eg.Tensor) -> eg.Tensor:
    return (x**2).mean()


def part_of_the_result(m: Any, x: eg.Tensor) -> None:
    cost(m(x)[0]).backward()


def two_forwards(m: Any, x: eg.Tensor) -> None:
    (cost(m(x, "first")) + cost(m(2 * x, "second"))).backward()


def two_forwards_two_passes(m: Any, x: eg.Tensor) -> None:
    first, second = cost(m(x, "first")), cost(m(2 * x, "second"))
    first.backward()
    second.backward()


def a_dropped_forward(m: Any, x: eg.Tensor) -> None:
    m(x, "second")
    cost(m(x, "first")).backward()


def two_passes_of_a_graph(m: Any, x: eg.Tensor) -> None:
    loss = cost(m(x, "first"))
    loss.backward(retain_graph=True)
    (loss * 0.5).backward()


def some_inputs(m: Any, x: eg.Tensor) -> None:
    inside = getattr(m, "module", m)
    cost(m(x, "first")).backward(inputs=[inside.body.weight, inside.first.bias])


def several_threads(m: Any, x: eg.Tensor) -> None:
    cost(m(x)[1]).backward(workers=2)


def a_penalty(m: Any, x: eg.Tensor) -> None:
    x = x.detach().requires_grad_()
    out = m(x, "first")
    (g,) = eg.autograd.grad((out**2).sum(), [x], create_graph=True)
    (cost(out) + cost(g)).backward()


def a_penalty_on_parameters(m: Any, x: eg.Tensor) -> None:
    """Of single elements: a part has its own."""
    (cost(m(x, "first")) + sum((p**2).sum() for p in m.parameters())).backward()


def a_compiled_forward(m: Any, x: eg.Tensor) -> None:
    cost(compiled(m)(x)[0]).backward()


_COMPILED: dict[int, Any] = {}


def compiled(m: Any) -> Any:
    return _COMPILED.setdefault(id(m), (m, eg.jit(m)))[1]


WAYS = [
    part_of_the_result,
    two_forwards,
    two_forwards_two_passes,
    a_dropped_forward,
    two_passes_of_a_graph,
    some_inputs,
    several_threads,
    a_penalty,
    a_penalty_on_parameters,
    a_compiled_forward,
]


def wrapped(module: nn.Module, level: int | None, ranks: int, bucket_bytes: int = 2**20) -> Any:
    mesh = dist.Mesh({"data": ranks})
    if level is None:
        return module
    if level == 0:
        return dist.DataParallel(module, mesh, bucket_bytes=bucket_bytes)
    return dist.shard(module, mesh, "data", level, bucket_bytes)


def trained(
    way: Callable[..., None], level: int | None, ranks: int, jit: bool, bucket_bytes: int = 2**20
) -> dict[str, Any]:
    """The parameters after some steps, in which AdamW moves whatever has a gradient."""
    eg.manual_seed(1)
    m = wrapped(Branches().double(), level, ranks, bucket_bytes)
    opt = optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.1)
    own = 8 // ranks
    x = eg.tensor(X[dist.rank() * own : (dist.rank() + 1) * own])

    def step(x: eg.Tensor) -> eg.Tensor:
        opt.zero_grad()
        way(m, x)
        opt.step()
        return x.sum()

    run = eg.jit(step) if jit else step
    for _ in range(STEPS):
        run(x)
    return {name: t.numpy() for name, t in m.state_dict().items()}


@pytest.mark.filterwarnings("ignore:.*backward does not reach")
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_ways_to_come_by_gradients(way: Callable[..., None], level: int, jit: bool) -> None:
    """What no rank reaches keeps no gradient: it is not decayed either."""
    if jit and way in (a_compiled_forward, several_threads):
        jit = False
    (want,) = dist.run_local(trained, 1, way, None, 1, jit)
    for bucket_bytes in (1, 2**20) if level < 3 else (1,):
        for got in dist.run_local(trained, 2, way, level, 2, jit, bucket_bytes):
            assert got.keys() == want.keys()
            for name, t in want.items():
                np.testing.assert_allclose(got[name], t, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_what_would_not_be_the_gradient_of_all_ranks_is_refused(level: int) -> None:
    def run() -> bool:
        m = wrapped(Branches().double(), level, 2)
        loss = cost(m(eg.tensor(X[:4]))[0])
        with pytest.raises(GradientError, match=r"create_graph=True.* without a graph"):
            loss.backward(retain_graph=True, create_graph=True)
        if level == 3:
            return True
        inside = m.module.body.weight
        with pytest.raises(GradientError, match="this rank's rows alone"):
            eg.autograd.grad(loss, [inside], retain_graph=True)
        with m.no_sync():
            eg.autograd.grad(loss, [inside], retain_graph=True)
        if level:
            with pytest.raises(GradientError, match=r"in no graph.* model.module.parameters"):
                loss.backward(inputs=list(m.parameters()))
        return True

    assert dist.run_local(run, 2) == [True] * 2


@pytest.mark.parametrize("level", [0, 1, 2])
def test_ranks_that_use_other_branches_in_a_compiled_step_are_told(level: int) -> None:
    """There it is fixed which gradients there are."""

    def run() -> None:
        m = wrapped(Branches().double(), level, 2)
        step = eg.jit(lambda x: cost(m(x, ("first", "second")[dist.rank()])).backward())
        step(eg.tensor(X[:4]))

    unused = r"without gradients of never.weight, never.bias, {}.weight"
    message = f"(?s){unused.format('second')}.*{unused.format('first')}"
    with pytest.warns(UserWarning, match="does not reach"):  # noqa: SIM117
        with pytest.raises(CollectiveMismatchError, match=message):
            dist.run_local(run, 2)


def join_in(m: Any, act: Callable[[Any, eg.Tensor], None]) -> None:
    with m.join(lambda: None):
        act(m, eg.tensor(X[:2]))


def two_joined_forwards(m: Any, x: eg.Tensor) -> None:
    m(x)
    m(x)


def accumulated(m: Any, x: eg.Tensor) -> None:
    for _ in range(2):
        sum(map(cost, m(x))).backward()


def unsynced(m: Any, x: eg.Tensor) -> None:
    with m.no_sync():
        sum(map(cost, m(x))).backward()


@pytest.mark.filterwarnings("ignore:.*backward does not reach")
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize(
    ("act", "message"),
    [
        (two_joined_forwards, "join: a second forward before the backward"),
        (accumulated, r"join: there are gradients of an earlier batch.* zero_grad\(\)"),
        (unsynced, "no_sync: inside join"),
    ],
)
def test_what_join_cannot_follow_is_refused(
    act: Callable[[Any, eg.Tensor], None], message: str, level: int
) -> None:
    def run() -> bool:
        m = wrapped(Branches().double(), level, 2)
        with pytest.raises((ArgumentError, GradientError), match=message):
            join_in(m, act)
        return True

    assert dist.run_local(run, 2) == [True] * 2


def test_modules_that_join_cannot_follow_are_refused() -> None:
    def run() -> bool:
        mesh = dist.Mesh({"data": 2})
        norm = nn.Sequential(nn.Linear(3, 4), dist.SyncBatchNorm(4, mesh)).double()
        with pytest.raises(ArgumentError, match="join: 1 is a SyncBatchNorm"):
            join_in(dist.DataParallel(norm, mesh), lambda m, x: None)
        with pytest.raises(ArgumentError, match="join: at level 3 every layer gathers"):
            join_in(dist.shard(Branches(), mesh, "data", 3), lambda m, x: None)
        return True

    assert dist.run_local(run, 2) == [True] * 2

"""A compiled step of several ranks moves parameters and states in the memory they have, behind all
that can fail, and only where nobody else can see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.core.ownership import RELIABLE
from everygrad.distributed.carriers.local import LocalCarrier
from everygrad.ops.random.generators import Generator, scoped_generator

pytestmark = pytest.mark.usefixtures("alone")

WIDTHS = {"numpy's memory": 24, "the pool's": 300}
LEVELS = [0, 1, 2, 3]

WATCHERS: dict[str, Callable[[Any], Any]] = {
    "detach": lambda p: p.detach(),
    "slice": lambda p: p.detach()[1:],
    "numpy": lambda p: p.detach().numpy(),
    "memoryview": lambda p: memoryview(p.detach().numpy()),
    "dlpack": lambda p: np.from_dlpack(p.detach()),
    "reshape": lambda p: p.detach().reshape(-1, 1),
    "payload": lambda p: p._data,
}


def address(t: Any) -> int:
    return int(t._data.__array_interface__["data"][0])


def values(held: Any) -> Any:
    return np.array(held.numpy() if isinstance(held, eg.Tensor) else held)


class Training:
    """A model on this rank, its optimiser, and a compiled step."""

    def __init__(self, level: int, width: int, ranks: int = 2) -> None:
        mesh = dist.Mesh({"data": ranks})
        with scoped_generator(Generator(5)):
            inside = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        inside = inside.double()
        self.model: Any = (
            dist.DataParallel(inside, mesh) if level == 0 else dist.shard(inside, mesh, level=level)
        )
        self.opt = optim.AdamW(self.model.parameters(), lr=0.01)
        x = np.linspace(-1, 1, 8 * width).reshape(8, width)
        self.x = self.model.local_batch(eg.tensor(x))
        self.step = eg.jit(self.eager)

    def eager(self) -> Any:
        self.opt.zero_grad()
        loss = (self.model(self.x) ** 2).mean()
        loss.backward()
        self.opt.step()
        return loss

    def moved(self) -> list[Any]:
        """What a step moves: parameters and moments."""
        state = self.opt.state_dict()["state"]
        moments = [v for s in state.values() for v in s.values() if isinstance(v, eg.Tensor)]
        return [*self.model.parameters(), *moments]

    def grads(self) -> list[Any]:
        return [None if p.grad is None else values(p.grad) for p in self.model.parameters()]

    def seen(self) -> list[Any]:
        return [values(t.detach()) for t in self.moved()]


@pytest.mark.skipif(not RELIABLE, reason="nothing is ever known to be ours alone")
@pytest.mark.parametrize("level", LEVELS)
def test_parameters_stay_where_they_are(level: int) -> None:
    def run() -> bool:
        t = Training(level, WIDTHS["the pool's"])
        for _ in range(3):
            t.step()
        large = [p for p in t.model.parameters() if p.ndim == 2]
        before = [address(p) for p in large]
        for _ in range(3):
            t.step()
        return [address(p) for p in large] == before

    assert dist.run_local(run, 2) == [True, True]


@pytest.mark.parametrize("memory", WIDTHS)
@pytest.mark.parametrize("level", LEVELS)
def test_who_holds_a_value_sees_it_stay(level: int, memory: str) -> None:
    """A parameter of the optimiser, and at levels 1 and 2 the whole one that forward gathers."""

    def run() -> list[str]:
        t = Training(level, WIDTHS[memory])
        wrong = []
        for _ in range(3):
            t.step()
        whole = next(iter(t.model.module.parameters()))
        for p in (next(iter(t.model.parameters())), whole):
            for name, watch in WATCHERS.items():
                if name == "slice" and p.ndim == 0:
                    continue
                held = watch(p)
                before = values(held)
                t.step()
                t.step()
                if not (values(held) == before).all():
                    wrong.append(name)
                del held
                t.step()
        return wrong

    assert dist.run_local(run, 2) == [[], []]


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_that_fails_has_moved_nothing(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever exchange fails, on all ranks: parameters and moments are those of before, gradients
    too or all gone, and the next step is the one that would have been made."""
    inside = LocalCarrier.swap

    def swap(self: Any, group: Any, *given: Any) -> None:
        channel = given[-1]
        left = vars(self).get("left")  # a channel, and how many more exchanges go well there
        if left is not None and left[0] == channel:
            if left[1] == 0:
                self.left = None
                raise OSError("drill")
            self.left = (channel, left[1] - 1)
        inside(self, group, *given)

    monkeypatch.setattr(LocalCarrier, "swap", swap)

    def run() -> tuple[int, list[str]]:
        t, plain = (Training(level, WIDTHS["the pool's"]) for _ in range(2))
        for _ in range(3):
            t.step()
            plain.step()
        carrier: Any = dist.world.world().carrier
        failures, wrong, ways = 0, [], set()
        for channel in range(3):
            for k in range(40):
                before, grads = t.seen(), t.grads()
                carrier.left = (channel, k)
                try:
                    t.step()
                except OSError:
                    failures += 1
                    same = all((a == b).all() for a, b in zip(before, t.seen(), strict=True))
                    wrong += [] if same else [f"moved at {channel}, {k}"]
                    now = t.grads()
                    gone = all(g is None for g in now)
                    kept = gone or all((a == b).all() for a, b in zip(grads, now, strict=True))
                    wrong += [] if kept else [f"some gradients are gone at {channel}, {k}"]
                    ways.add(gone)
                    t.step()
                else:
                    carrier.left = None
                    plain.step()
                    break
                plain.step()
                same = all((a == b).all() for a, b in zip(plain.seen(), t.seen(), strict=True))
                wrong += [] if same else [f"other values after {channel}, {k}"]
        assert ways == {False, True}, ways
        return failures, wrong

    found = dist.run_local(run, 2, timeout=20.0)
    assert found[0][0] >= 3
    assert [wrong for _, wrong in found] == [[], []]

"""Multi-tensor optimiser updates, and replays that allocate no fresh memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.backends.cpu.fused.multi_tensor import _ENTRY, kind_of, multi_tensor_work
from everygrad.backends.cpu.graph import replay
from everygrad.backends.cpu.graph.execution_plan import NativeStep, Planner
from everygrad.backends.cpu.runtime import pool

OPTIMISERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "nadam": lambda p: optim.NAdam(p, lr=1e-2),
    "radam": lambda p: optim.RAdam(p, lr=1e-2),
    "adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "adadelta": lambda p: optim.Adadelta(p, lr=1e-2, weight_decay=0.1),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.5, eps=1e-2),
    "rprop": lambda p: optim.Rprop(p, lr=1e-2),
    "asgd": lambda p: optim.ASGD(p, lr=1e-2),
    "lion": lambda p: optim.Lion(p, lr=1e-3),
    "schedule_free": lambda p: optim.ScheduleFreeAdamW(p, lr=1e-2),
}


def model() -> Any:
    eg.manual_seed(3)
    return nn.Sequential(
        nn.Linear(20, 300), nn.LayerNorm(300), nn.ReLU(), nn.Linear(300, 70), nn.Linear(70, 4)
    )


def trained(name: str, steps: int, compiled: bool) -> tuple[list[Any], Any]:
    m = model()
    x, y = eg.randn((16, 20)), eg.tensor(np.arange(16) % 4)
    optimiser = OPTIMISERS[name](m.parameters())

    def step() -> Any:
        loss = nn.functional.cross_entropy(m(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        return loss

    run = eg.jit(step) if compiled else step
    losses = [run().item() for _ in range(steps)]
    return [losses, *(p.detach().numpy() for p in m.parameters())], run


def update_steps(before: set[Any]) -> list[NativeStep]:
    """The steps that write parameters, of the one function compiled since."""
    (found,) = {*replay._REPLAYS} - before
    count = len(found.program.donations)
    assert count >= 8, "parameters are not written in place"
    given = [s for s in found.program.steps if isinstance(s, NativeStep)]
    return [s for s in given if {*s.slots} & {*found.program.donations}]


@pytest.mark.parametrize("name", OPTIMISERS)
def test_all_updates_are_one_kernel_and_equal_eager(name: str) -> None:
    before = {*replay._REPLAYS}
    want, _ = trained(name, 4, compiled=False)
    got, _keep = trained(name, 4, compiled=True)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)  # Adam divides small by small
    found = [s for s in update_steps(before) if "like it" in s.name]
    # changes that share what they read and not what they make are two kernels on the CPU
    assert len(found) == (2 if name in ("lion", "rprop") else 1)
    assert len(update_steps(before)) <= len(found) + 1  # step counts beside it
    assert all(s.step.blocks >= 8 for s in found)


def graph_of(*sizes: int) -> Any:
    """A compiled function of one independent update per size, and its graph."""
    xs = [eg.randn((n,)) for n in sizes]
    before = {*replay._REPLAYS}
    fn = eg.jit(lambda *ts: [eg.exp(t) * 0.5 + t for t in ts])
    outs = fn(*xs)
    for x, out in zip(xs, outs, strict=True):
        np.testing.assert_allclose(
            out.numpy(), np.exp(x.numpy()) * 0.5 + x.numpy(), rtol=1e-5, atol=1e-6
        )
    (found,) = {*replay._REPLAYS} - before
    return found.program, fn


@pytest.mark.parametrize("sizes", [(2, 3), (1000, 2, 70000), (16384, 16385, 16383), (64, 65, 1)])
def test_sizes_of_every_kind(sizes: tuple[int, ...]) -> None:
    """Blocks do not cross tensors; a single number has its own kernel."""
    program, _ = graph_of(*sizes)
    kinds = [s for s in program.steps if "like it" in s.name]
    assert len(kinds) == 1
    assert len(program.steps) == 1 + (1 in sizes)
    covered = dict.fromkeys([n for n in sizes if n > 1], 0)
    (table,) = [a for a in program.constants.values() if a.dtype == np.int64 and a.size]
    for _, start, end in table.reshape(-1, _ENTRY):
        assert 0 <= start < end
    ends = {}
    for first, start, end in table.reshape(-1, _ENTRY):
        assert ends.get(first, 0) == start
        ends[first] = end
    assert sorted(ends.values()) == sorted(covered)


def test_groups_that_read_the_same_tensor_are_kept_apart() -> None:
    """One of them may overwrite that tensor in place."""
    x = eg.randn((5000,))
    y = eg.randn((5000,))

    @eg.jit
    def both() -> Any:
        nonlocal x
        a = x * 2.0 + y
        b = x * 2.0 + (y + 1.0)
        x += 1.0
        return a, b

    start = x.numpy().copy()
    for call in range(3):
        a, b = both()
        np.testing.assert_allclose(a.numpy(), 2 * (start + call) + y.numpy(), atol=1e-5)
        np.testing.assert_allclose(b.numpy(), 2 * (start + call) + y.numpy() + 1, atol=1e-5)
    np.testing.assert_allclose(x.numpy(), start + 3, rtol=1e-6)


def test_groups_that_are_not_flat_get_their_own_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    usual = Planner.emit_multi_tensor

    def watch(self: Any, groups: Any) -> None:
        seen.extend(groups)
        assert all(kind_of(g, self.stored) is not None for g in groups)
        assert multi_tensor_work(groups, self.stored).step.blocks >= len(groups)
        usual(self, groups)

    monkeypatch.setattr(Planner, "emit_multi_tensor", watch)
    rows = [eg.randn((30, 40)), eg.randn((50, 40))]
    fn = eg.jit(lambda a, b: [eg.softmax(a), eg.softmax(b), a.T + 1.0, b.T + 1.0])
    for got, want in zip(fn(*rows), fn.__wrapped__(*rows), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)
    assert not seen


# --- memory of results ---------------------------------------------------------------------------


def test_a_replay_takes_no_fresh_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first calls parameters are updated in place and results reuse earlier memory."""
    _, step = trained("adamw", 3, compiled=True)
    large = eg.jit(lambda a: (a * 2.0, a.sum()))
    a = eg.randn((300, 400))
    for _ in range(3):
        results = (step(), *large(a))
    taken: list[Any] = []
    usual = np.empty
    monkeypatch.setattr(pool.np, "empty", lambda *args: taken.append(args) or usual(*args))
    for _ in range(5):
        results = (step(), *large(a))
    assert not taken
    assert len(results) == 3


@pytest.mark.parametrize("size", [3, 200_000])
def test_results_that_are_held_keep_their_values(size: int) -> None:
    fn = eg.jit(lambda a: a + 1.0)
    x = eg.zeros((size,))
    held: list[Any] = []
    for i in range(6):
        out = fn(x + float(i))
        held.append([out, out.numpy(), out[1:], out.detach()][i % 4])
        del out
    for i, one in enumerate(held):
        assert np.asarray(one if isinstance(one, np.ndarray) else one.numpy())[1] == i + 1.0

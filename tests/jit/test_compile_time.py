"""Compiling takes work in proportion to the program: tracing, fusion, planning, recording.

Work is counted in calls, of Python and of C, which no other process can disturb: twice the program
must not take more than a little over twice the calls. What happens inside one call, such as a list
built by comparing each with all, is seen by the time that the largest programs take.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad._jit.pipeline import prepared
from everygrad.backends.webgpu.graph.placeholders import shared
from everygrad.compiler import fuse, memory
from everygrad.compiler.dependencies import Dependencies
from everygrad.compiler.groups import Load
from everygrad.compiler.ir import in_order, reachable
from everygrad.compiler.memory import Lifetime, peak, plan
from tests.conftest import DEVICES

GROWTH = 2.5  # calls that a program of twice the size may take, for each one


def rk4(f: Callable[[Any], Any], y: Any, steps: int, h: float = 0.01) -> Any:
    for _ in range(steps):
        k1 = f(y)
        k2 = f(y + 0.5 * h * k1)
        k3 = f(y + 0.5 * h * k2)
        k4 = f(y + h * k3)
        y = y + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def rk4_number(n: int, w: Any) -> Any:
    return rk4(lambda y: w.sum() * eg.sin(y) - y, eg.ones((), device=w.device), n)


def rk4_vector(n: int, w: Any) -> Any:
    return rk4(lambda y: w[0] * eg.sin(y) - y, w[1] * 1.0, n).sum()


def rk4_network(n: int, w: Any) -> Any:
    return rk4(lambda y: eg.tanh(y @ w) @ w, w[:3] * 1.0, n).sum()


def rk4_pair(n: int, w: Any) -> Any:
    q, p = w[0] * 1.0, w[1] * 1.0
    for _ in range(n):
        k = [(p, -eg.sin(q))]
        for c in (0.5, 0.5, 1.0):
            dq, dp = k[-1]
            k.append((p + c * 0.01 * dp, -w[2] * eg.sin(q + c * 0.01 * dq)))
        q = q + 0.01 / 6 * (k[0][0] + 2 * k[1][0] + 2 * k[2][0] + k[3][0])
        p = p + 0.01 / 6 * (k[0][1] + 2 * k[1][1] + 2 * k[2][1] + k[3][1])
    return q.sum() + p.sum()


def recurrent(n: int, w: Any) -> Any:
    h = w[0] * 1.0
    for _ in range(n):
        h = eg.tanh(h @ w + w[1])
    return (h * h).sum()


def chain(n: int, w: Any) -> Any:
    y = w * 1.0
    for i in range(2 * n):
        y = eg.sin(y) if i % 3 else y * 1.01
    return y.sum()


def outputs(n: int, w: Any) -> Any:
    return sum((w * eg.cos(w + w[i % 4]) * float(i % 3)).sum() for i in range(n))


def wide(n: int, w: Any) -> Any:
    layer = [w * (w + float(i)) for i in range(8)]
    for k in range(n // 4):
        layer = [layer[i] * layer[i - 1] + layer[(i * 3 + k) % 8] for i in range(8)]
    return sum(x.mean() for x in layer)


def norms(n: int, w: Any) -> Any:
    y = w * 1.0
    for _ in range(n // 2):
        y = eg.softmax(y, axis=-1) + w
    return y.sum()


def slices(n: int, w: Any) -> Any:
    x = eg.concat([w] * (n // 4), axis=1) * 1.5
    h = eg.zeros((4,), device=w.device)
    for t in range(n):
        h = h * 0.5 + x[:, t]
    return (h * h).sum()


PROGRAMS = [
    rk4_number, rk4_vector, rk4_network, rk4_pair, recurrent, chain, outputs, wide, norms, slices,
]  # fmt: skip


def step_of(program: Callable[..., Any], n: int, device: str) -> tuple[Any, Any]:
    w = eg.tensor(np.linspace(0.1, 0.6, 16).reshape(4, 4), dtype="float32", device=device)
    w.requires_grad_()

    def step() -> Any:
        loss = program(n, w)
        w.grad = None
        loss.backward()
        return loss

    return step, w


def calls_of(function: Callable[[], Any]) -> int:
    """How many calls, of Python and of C, a call makes on this thread."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


# compilers for GPUs take seconds for each kernel with sines: a few programs show as much
CASES = [(p, "cpu") for p in PROGRAMS]
CASES += [(p, "cuda:dry") for p in (recurrent, norms, slices)]
CASES += [(p, "webgpu") for p in (recurrent, norms, slices) if "webgpu" in DEVICES]


@pytest.mark.parametrize(("program", "where"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_twice_the_program_takes_twice_the_work(program: Any, where: str) -> None:
    # WebGPU: beyond the sizes from which groups are more kernels, each with less in registers
    n = 32 if where == "webgpu" else 16
    eg.jit(step_of(program, n, where)[0])()  # what is made once in a process
    small = calls_of(eg.jit(step_of(program, 2 * n, where)[0]))
    large = calls_of(eg.jit(step_of(program, 4 * n, where)[0]))
    assert large <= GROWTH * small, (small, large)


def test_a_value_takes_few_calls() -> None:
    """Tracing and compiling, forward alone: 163 for each value of the graph, 271 once. Timing shows
    as much only on a machine that does nothing else."""
    w = eg.tensor(np.linspace(0.1, 0.6, 16).reshape(4, 4), dtype="float32")
    calls, values = [], []
    for n in (2, 20, 40):  # the first makes what is made once in a process

        def step(w: Any, n: int = n) -> Any:
            return rk4_number(n, w)

        calls.append(calls_of(lambda step=step: eg.jit(step)(w)))  # type: ignore[misc]
        values.append(len(eg.jit(step).lower(w).graph.values))
    assert calls[2] - calls[1] <= 200 * (values[2] - values[1]), (calls, values)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_long_programs_are_what_eager_mode_computes(program: Any) -> None:
    step, w = step_of(program, 40, "cpu")
    want, grad = step().item(), (step(), w.grad.numpy())[1]
    compiled = eg.jit(step)
    for _ in range(2):
        np.testing.assert_allclose(compiled().item(), want, rtol=1e-4)
        np.testing.assert_allclose(w.grad.numpy(), grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("program", "n", "seconds"), [(rk4_network, 300, 20), (rk4_vector, 300, 20)]
)
def test_hundreds_of_steps_with_backward(program: Any, n: int, seconds: float) -> None:
    """What counting calls does not see would show here: 60 s once, now 1 to 2."""
    step, _ = step_of(program, n, "cpu")
    compiled = eg.jit(step)
    start = time.process_time()
    compiled()
    assert time.process_time() - start < seconds


@pytest.mark.parametrize("program", [rk4_vector, rk4_pair, rk4_number], ids=lambda p: p.__name__)
def test_groups_of_a_loop_are_the_same_code(program: Any) -> None:
    """Forward and backward: more turns of a loop are more kernels, not more texts."""
    counts = []
    for turns in (30, 60):
        compiled = eg.jit(step_of(program, turns, "cpu")[0])
        compiled()
        steps = compiled.latest.replay.program.steps
        counts.append(len({s.step.source for s in steps}))
    assert counts[1] <= counts[0] + 2
    assert counts[1] <= len(steps) // 3 < len(steps) < 200


# --- the parts -----------------------------------------------------------------------------------


def test_groups_are_in_an_order_that_holds() -> None:
    """Whatever joined whom: every value is computed after what it is made of, once."""
    for program in PROGRAMS:
        step, _ = step_of(program, 12, "cpu")
        graph = prepared(eg.jit(step).lower().graph, "cpu")
        for siblings in (None, 1 << 15):
            groups = fuse.fuse(graph, lambda v: True, siblings=siblings)
            where = {v: n for n, g in enumerate(groups) for v in g.values}
            assert len(where) == sum(len(g.values) for g in groups)
            for n, g in enumerate(groups):
                for v in g.members:
                    for r in g.members[v].refs:
                        source = r.value if isinstance(r, Load) else r
                        if source in where:
                            assert where[source] < n or source in g.members
            computed = [v for v in in_order(reachable(graph.outputs)) if v.kind == "elementwise"]
            assert all(v in where for v in computed)


def test_groups_are_the_same_each_time() -> None:
    """Traced and fused again, whatever the collector and its callbacks do meanwhile."""
    collections = 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal collections
        collections += phase == "stop"

    def grouped(program: Any) -> list[list[int]]:
        graph = prepared(eg.jit(step_of(program, 12, "cpu")[0]).lower().graph, "cpu")
        groups = fuse.fuse(graph, lambda v: True, siblings=1 << 15)
        return [[v.number for v in g.values] for g in groups]

    wanted = [grouped(program) for program in PROGRAMS]
    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(100, 5, 1000)
    try:
        found = [grouped(program) for program in PROGRAMS]
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
    assert found == wanted
    assert collections > 0


@pytest.mark.parametrize("window", [4, 64, 4096])
def test_dependencies_against_a_search(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that wait are told so, by whatever way; far ones may be said to wait."""
    module = sys.modules[Dependencies.__module__]
    monkeypatch.setattr(module, "WINDOW", window)
    for seed in range(30):
        draw = random.Random(seed)
        known, alive = Dependencies(), []

        def reaches(a: int, b: int, known: Dependencies = known) -> bool:
            todo, seen = [a], {a}
            for n in todo:
                fresh = known.before[n] - seen
                seen |= fresh
                todo += fresh
            return b in seen and a != b

        for _ in range(60):
            action = draw.random()
            if action < 0.5 or len(alive) < 3:
                alive.append(known.new())
                known.add(alive[-1], draw.sample(alive[:-1], min(len(alive) - 1, 2)))
            elif action < 0.75:
                a, b = draw.sample(alive, 2)
                if not known.waits(b, a):
                    known.add(a, [b])
            else:
                a, b = draw.sample(alive, 2)
                if not known.any_between(a, b) and not known.any_between(b, a):
                    known.merge(a, b)
                    alive.remove(b)
            for a in alive:
                assert not any(reaches(n, a) for n in known.before[a]), "a cycle"
                for b in alive:
                    if reaches(a, b):
                        assert known.waits(a, b)
                    elif window == 4096 and a != b:
                        assert not known.waits(a, b)


def lifetimes_of(seed: int) -> list[Lifetime]:
    draw = random.Random(seed)
    made = []
    for _ in range(draw.randrange(1, 120)):
        first = draw.randrange(200)
        size = draw.choice([0, 1, 64, 100, 4096, draw.randrange(100000)])
        made.append(Lifetime(size, first, first + draw.choice([0, 1, 5, 90]), ""))
    return made


def overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


@pytest.mark.parametrize("compared", [0, 5, 1024])
def test_no_two_buffers_share_a_place_at_a_time(
    compared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_COMPARED", compared)
    monkeypatch.setattr("everygrad.backends.webgpu.graph.placeholders.MOST_COMPARED", compared)
    for seed in range(40):
        lives = lifetimes_of(seed)
        made = plan(lives)
        blocks = shared(lives, 4096)
        for i, a in enumerate(lives):
            assert made.offsets[i] % memory.ALIGN == 0
            assert made.offsets[i] + a.nbytes <= made.size
            for j in range(i):
                if overlap(a, lives[j]):
                    first, second = sorted((i, j), key=lambda k: made.offsets[k])
                    empty = 0 in (a.nbytes, lives[j].nbytes)
                    end = made.offsets[first] + lives[first].nbytes
                    assert empty or end <= made.offsets[second]
                    assert blocks[i] != blocks[j]
                bound = 4096
                if blocks[i] == blocks[j]:
                    assert (a.nbytes <= bound) == (lives[j].nbytes <= bound)
        assert made.size <= 3 * max(64, peak(lives))

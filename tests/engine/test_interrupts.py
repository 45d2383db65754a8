"""What Ctrl-C, or any exception of a signal handler, leaves behind: nothing.

`devtools/drills/interrupting` makes a signal pending at a chosen place and lets the interpreter
deliver it there. Here are all places of what is small, and seeded samples of the drill's steps; the
drill itself (`python -m devtools.drills.interrupts`) takes as long as it is given.
"""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from devtools.drills.interrupting import (
    KINDS,
    Drill,
    Handler,
    LateError,
    after,
    at,
    chosen,
    handled,
    modes_now,
    places,
)
from devtools.drills.steps import STEPS, Captured
from everygrad._jit import entry
from everygrad._jit.entry import Entry
from everygrad.autograd.api import leaf_ready_hook
from everygrad.backends import base, thread_pool
from everygrad.backends.cpu.gemm import blas
from everygrad.backends.cuda.driver.driver import Driver
from everygrad.core.config import config
from everygrad.core.context import fast_limit
from everygrad.core.scopes import at_once
from tests.conftest import DEVICES

DRY = "cuda:dry"
ON_DEVICES = ("backward", "with blocks", "x[i] = v", "AdamW, eager", "jit", "jit, backward",
           "jit, SGD")  # fmt: skip


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiled step is dropped for others, of earlier tests, and traced again in between."""
    monkeypatch.setattr(config, "code_bytes", 1 << 40)


@pytest.fixture
def handler() -> Iterator[Handler]:
    with handled() as found:
        yield found


def drilled(drill: Drill, picked: list[int], handler: Handler, rng: random.Random) -> int:
    """Interrupt at these places; how many interrupts came."""
    came = 0
    for k in picked:
        handler.kind = rng.choice(KINDS)
        trial = drill.trial(partial(at, k, handler))
        assert not trial.faults, (k, handler.kind, trial.faults)
        came += trial.came
    return came


def sampled(name: str, device: str, handler: Handler, most: int) -> None:
    """So many places, all tries together: 60,000 take about a second."""
    rng = random.Random(name)
    drill = Drill(partial(STEPS[name], device), handler)
    picked = list(chosen(max(3, min(30, most // drill.places)), drill.places, rng))
    assert drilled(drill, picked, handler, rng) >= len(picked) // 2


@pytest.mark.parametrize("name", list(STEPS))
def test_steps(name: str, handler: Handler) -> None:
    sampled(name, "cpu", handler, 60_000)


@pytest.mark.parametrize("name", ON_DEVICES)
def test_steps_on_devices(name: str, handler: Handler, device: str) -> None:
    sampled(name, device, handler, 10_000)


def test_every_place_of_a_replay(handler: Handler) -> None:
    """Between noting an array and pointing at it, among others."""
    drill = Drill(partial(Captured, "cpu"), handler)
    assert drill.places > 100
    assert drilled(drill, list(range(1, drill.places + 1)), handler, random.Random(0)) > 100


@pytest.mark.parametrize("name", ["backward, workers=2", "jit, AdamW, dropout", "with blocks"])
def test_real_signals(name: str, handler: Handler) -> None:
    rng = random.Random(name)
    drill = Drill(partial(STEPS[name], "cpu"), handler)
    came = 0
    for _ in range(40):
        handler.kind = rng.choice(KINDS)
        trial = drill.trial(partial(after, 1e-6 + rng.random() * drill.seconds, handler))
        assert not trial.faults, trial.faults
        came += trial.came
    assert came >= 10


BLOCKS: dict[str, Callable[[], Any]] = {
    "no_grad": eg.no_grad,
    "enable_grad": eg.enable_grad,
    "inference_mode": eg.inference_mode,
    "detect_anomaly": eg.detect_anomaly,
    "set_grad_enabled": lambda: eg.set_grad_enabled(False),
    "autocast": eg.autocast,
    "autocast off": lambda: eg.autocast(enabled=False),
    "find_nan": eg.find_nan,
    "profile": eg.tools.profile,
    "leaf_ready_hook": partial(leaf_ready_hook, print),
    "one thread": blas.OneThread,
}


@pytest.mark.parametrize("how", ["left", "raised in", "nested", "decorating"])
@pytest.mark.parametrize("name", list(BLOCKS))
def test_every_place_of_a_block(name: str, how: str, handler: Handler) -> None:
    make = BLOCKS[name]
    for device in DEVICES:
        _ = eg.ones((2,), device=device) * 2.0  # a profiler waits for every device in use

    def work() -> None:
        block = make()
        if how == "decorating":
            if callable(block):
                block(modes_now)()
        elif how == "nested" and name != "profile":  # which refuses to be opened twice
            with block, block:
                pass
        elif how == "raised in":
            with pytest.raises(ZeroDivisionError), block:
                raise ZeroDivisionError
        else:
            with block:
                pass

    work()
    usual, limit = modes_now(), fast_limit()
    count = places(work)
    if how == "raised in":  # pytest's own block is long
        picked = chosen(60, count, random.Random(name))
    else:
        picked = range(1, count + 1)
    for k in picked:
        handler.kind = KINDS[k % len(KINDS)]
        at(k, handler, work)
        assert modes_now() == usual, k
        _ = eg.ones((2,)) * 2.0  # repairs what was left to it
        assert fast_limit() == limit
    blas._blas.settle()
    assert not blas._blas.askers
    assert not blas._blas.lowered


def test_every_place_of_parallel_for(handler: Handler) -> None:
    """No part is waited for that nobody does, and none runs when the call is over."""
    running: set[int] = set()
    done = np.zeros(64, np.int64)

    def task(lo: int, hi: int) -> None:
        running.add(lo)
        done[lo:hi] += 1
        running.discard(lo)

    def work() -> None:
        running.clear()
        done[:] = 0
        thread_pool.parallel_for(64, 1, task)

    before = thread_pool.num_threads()
    thread_pool.set_num_threads(3)
    try:
        work()
        for k in range(1, places(work) + 1):
            _, error = at(k, handler, work)
            helped = running - {0} if error is not None else running
            assert error is None or len(helped) <= 1, k  # the caller's own, interrupted inside
            assert not thread_pool.inside()
            work()
            assert (done == 1).all(), k
    finally:
        thread_pool.set_num_threads(before)


def test_a_native_call_is_not_interrupted(handler: Handler) -> None:
    for k in range(1, 40):
        told: list[int] = []
        action = at_once(*[partial(told.append, i) for i in range(5)])
        at(k, handler, action)
        assert told in ([], [0, 1, 2, 3, 4])


def test_passes_on_many_threads_end_where_one_is_interrupted(handler: Handler) -> None:
    """The main thread is interrupted; what other threads do at the same time comes out right."""
    x = eg.tensor(np.linspace(0.1, 1.0, 50), requires_grad=True)
    failures: list[BaseException] = []
    stop = threading.Event()

    def other() -> None:
        w = eg.tensor(np.ones(5), requires_grad=True)
        try:
            while not stop.is_set():
                w.grad = None
                (eg.exp(w) * w).sum().backward(workers=2)
                np.testing.assert_allclose(w.grad.numpy(), 2 * np.e)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    try:

        def work() -> None:
            x.grad = None
            (eg.tanh(x) * eg.sin(x)).sum().backward(workers=2)

        for k in chosen(40, places(work), random.Random(1)):
            at(k, handler, work)
            work()
            t = np.tanh(x.detach().numpy())
            wanted = (1 - t * t) * np.sin(x.detach().numpy()) + t * np.cos(x.detach().numpy())
            np.testing.assert_allclose(x.grad.numpy(), wanted)
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_the_drill_runs_where_the_parent_ignores_sigint() -> None:
    given = "-m devtools.drills.interrupts --count 30 --only backward --ways places,signals"
    done = subprocess.run(
        [sys.executable, *given.split()],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of them left something wrong" in done.stdout


def test_every_launch_is_made_once(handler: Handler, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA: kernels that write over a parameter run once, all of them, or not at all."""
    log = base.get(DRY).gpu.driver.launched
    w = eg.ones((40, 30), device=DRY, requires_grad=True)
    moved = eg.zeros((40, 30), device=DRY)

    @eg.jit
    def step(x: Any) -> Any:
        w.grad = None
        loss = eg.tanh(x @ w).sum()
        loss.backward()
        with eg.no_grad():
            moved.__imul__(0.9)
            moved.__iadd__(w.grad)
            w.__isub__(moved * 0.1)
        return loss

    donated: list[int] = []  # how many inputs gave their memory to results, call by call
    found = Entry.donated_memory

    def donated_memory(self: Entry) -> dict[int, Any]:
        memory = found(self)
        donated.append(len(memory))
        return memory

    monkeypatch.setattr(Entry, "donated_memory", donated_memory)
    monkeypatch.setattr(entry, "_others_may_look", lambda: False)  # threads of earlier tests
    x = eg.ones((20, 40), device=DRY)
    for _ in range(3):
        step(x)
    assert step.count == 1
    runner = step.latest.replay.runner
    seen = set(runner.plan.donations.values())
    writers = {s.what.function for s in runner.plan.steps if s.slots & seen}
    assert writers
    log.clear()
    step(x)
    whole = Counter(log)
    count = places(lambda: step(x))
    # everywhere from the first launch on: what comes before takes four fifths of the places
    picked = {*chosen(60, count, random.Random(2)), *range(count * 3 // 4, count + 100)}
    done = undone = 0
    gc.freeze()  # collecting what interrupted frames hold is quick then
    try:
        for k in sorted(picked):
            gc.collect()  # or the values they hold are not overwritten in place
            before = w.grad
            log.clear()
            handler.kind = KINDS[k % len(KINDS)]
            at(k, handler, lambda: step(x))
            committed = w.grad is not before
            seen_now = (k, committed, donated[-1], Counter(log), whole)
            assert donated[-1] == len(runner.plan.donations), seen_now
            assert Counter(log) == whole if committed else not writers & {*log}, seen_now
            done += committed
            undone += not committed
    finally:
        gc.unfreeze()
    assert done > 20
    assert undone > 100


def test_what_a_handler_raises_is_no_failure_of_a_launch() -> None:
    """An ordinary exception of an alarm's handler, raised where a kernel is launched, stays it."""

    class Launch:
        name = "kernel"

    with pytest.raises(LateError):
        Driver.recover(Driver.__new__(Driver), Launch, LateError("drill"))


def test_a_signal_handler_is_no_part_of_what_is_traced() -> None:
    """One that only takes note, as handlers for a graceful end do, changes nothing for jit."""

    class Stopper:
        asked = 0

        def ask(self, signum: int, frame: Any) -> None:
            self.asked += 1

    stopper = Stopper()

    def f(x: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return x * 2.0

    before = signal.signal(signal.SIGINT, stopper.ask)
    try:
        compiled = eg.jit(f)
        assert [float(compiled(eg.ones(()))) for _ in range(3)] == [2.0] * 3
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopper.asked == 1  # as it was traced

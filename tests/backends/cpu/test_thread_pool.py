"""The CPU's thread pool: which thread runs what, exceptions, and forks."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from everygrad import dtypes
from everygrad.backends import thread_pool
from everygrad.backends.cpu.kernels import elementwise
from everygrad.backends.cpu.llvm.compiler import Engine, engine
from everygrad.compiler.expr import Expr, call, lower
from everygrad.errors import ArgumentError


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(2)
    yield
    thread_pool.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("count", "grain"), [(2, 1), (7, 2), (1000, 3), (100, 50), (99, 50)])
def test_ranges_cover_everything_once(count: int, grain: int) -> None:
    seen: list[tuple[int, int]] = []
    thread_pool.parallel_for(count, grain, lambda lo, hi: seen.append((lo, hi)))
    seen.sort()
    assert seen[0][0] == 0
    assert seen[-1][1] == count
    assert all(a[1] == b[0] for a, b in itertools.pairwise(seen))
    assert all(hi - lo >= min(grain, count) for lo, hi in seen)


@pytest.mark.usefixtures("two_threads")
def test_two_threads_work_at_once() -> None:
    barrier = threading.Barrier(2, timeout=10)  # passes only when both are inside
    passed: list[int] = []
    thread_pool.parallel_for(2, 1, lambda lo, hi: passed.append(barrier.wait()))
    assert sorted(passed) == [0, 1]


@pytest.mark.usefixtures("two_threads")
def test_small_counts_stay_with_the_caller() -> None:
    names: list[str] = []
    thread_pool.parallel_for(9, 5, lambda lo, hi: names.append(threading.current_thread().name))
    assert names == [threading.current_thread().name]
    thread_pool.parallel_for(0, 5, lambda lo, hi: names.append("none"))
    assert len(names) == 1


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("where", ["caller", "worker"])
def test_exceptions_reach_the_caller(where: str) -> None:
    me = threading.current_thread()
    barrier = threading.Barrier(2, timeout=10)
    done: list[int] = []

    def task(lo: int, hi: int) -> None:
        barrier.wait()
        if (threading.current_thread() is me) == (where == "caller"):
            raise ValueError(f"part {lo}")
        time.sleep(0.02)
        done.append(lo)

    with pytest.raises(ValueError, match="part"):
        thread_pool.parallel_for(2, 1, task)
    assert len(done) == 1  # the other part was waited for
    thread_pool.parallel_for(2, 1, lambda lo, hi: done.append(lo))
    assert len(done) == 3


@pytest.mark.usefixtures("two_threads")
def test_nested_calls_run_serially() -> None:
    inner: list[tuple[int, int, bool]] = []

    def task(lo: int, hi: int) -> None:
        me = threading.current_thread()

        def nested(a: int, b: int) -> None:
            inner.append((a, b, threading.current_thread() is me))

        thread_pool.parallel_for(100, 1, nested)

    thread_pool.parallel_for(2, 1, task)
    assert inner == [(0, 100, True)] * 2


@pytest.mark.usefixtures("two_threads")
def test_many_callers() -> None:
    program = lower(call("exp", Expr.inputs(1)[0]), [dtypes.float32])
    x = np.linspace(-5, 5, 200_000, dtype=np.float32)
    want = np.empty_like(x)
    elementwise.run(program, [x], want)
    failures: list[int] = []

    def caller(number: int) -> None:
        for _ in range(10):
            out = np.empty_like(x)
            elementwise.run(program, [x], out)
            if not np.array_equal(out, want):
                failures.append(number)

    callers = [threading.Thread(target=caller, args=(n,)) for n in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(30)
    assert not failures


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads is the point
@pytest.mark.usefixtures("two_threads")
def test_fork() -> None:
    barrier = threading.Barrier(2, timeout=10)
    thread_pool.parallel_for(2, 1, lambda lo, hi: barrier.wait())  # the pool exists
    child = os.fork()
    if child == 0:
        code = 1
        try:
            again = threading.Barrier(2, timeout=10)
            thread_pool.parallel_for(2, 1, lambda lo, hi: again.wait())
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_thread_count_is_checked() -> None:
    with pytest.raises(ArgumentError, match="0 threads"):
        thread_pool.set_num_threads(0)


# --- work that no signal handler may end ---------------------------------------------------------


def test_uninterrupted_work_is_never_on_the_main_thread() -> None:
    assert thread_pool.uninterrupted(threading.current_thread) is not threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        thread_pool.uninterrupted(lambda: 1 // 0)
    found: list[Any] = []
    other = threading.Thread(
        target=lambda: found.append(thread_pool.uninterrupted(threading.current_thread))
    )
    other.start()
    other.join()
    assert found == [other]  # where no handler runs anyway, it stays


def test_an_interrupted_wait_leaves_the_work_to_its_end() -> None:
    began, done = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        time.sleep(0.05)
        done.set()

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def send() -> None:
        began.wait()
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threading.Thread(target=send).start()
        with pytest.raises(KeyboardInterrupt):
            thread_pool.uninterrupted(work)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done.wait(10)
    assert thread_pool.uninterrupted(lambda: 7) == 7


def test_llvm_is_not_called_on_the_main_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is taken by Python code, in which a handler's exception would leave it taken."""
    seen: set[Any] = set()
    for name in ("_object_code", "_link"):
        plain = getattr(Engine, name)

        def noted(self: Any, *args: Any, plain: Any = plain) -> Any:
            seen.add(threading.current_thread())
            return plain(self, *args)

        monkeypatch.setattr(Engine, name, noted)
    source = "define void @step(i64 %lo, i64 %hi, ptr %args) {\n  ret void\n}\n"
    engine().compile(f"; {time.time_ns()}\n{source}", "step")
    assert seen
    assert threading.main_thread() not in seen

"""Native threads: each block runs once, replays, early stops, forks, exits and interrupts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from everygrad.backends import thread_pool
from everygrad.backends.cpu.graph.execution_plan import ERROR_WORDS
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.llvm.work import Step, Work
from everygrad.backends.cpu.runtime import native_threads

# args[0][i] += 1 for each block i
COUNT = """
define void @step(i64 %lo, i64 %hi, ptr %args) {
entry:
  %counts = load ptr, ptr %args
  br label %block
block:
  %i = phi i64 [ %lo, %entry ], [ %i.next, %block ]
  %at = getelementptr i64, ptr %counts, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %hi
  br i1 %more, label %block, label %done
done:
  ret void
}
"""

# returns only when a second thread is inside as well
BARRIER = """
define void @step(i64 %lo, i64 %hi, ptr %args) {
entry:
  %counter = load ptr, ptr %args
  %old = atomicrmw add ptr %counter, i64 1 seq_cst
  %even = and i64 %old, -2
  %wanted = add i64 %even, 2
  br label %wait
wait:
  %now = load atomic i64, ptr %counter seq_cst, align 8
  %waiting = icmp slt i64 %now, %wanted
  br i1 %waiting, label %wait, label %done
done:
  ret void
}
"""

# args[0][lo] = 7
FAIL = """
define void @step(i64 %lo, i64 %hi, ptr %args) {
  %word = load ptr, ptr %args
  store i64 7, ptr %word
  ret void
}
"""

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
needs_workers = pytest.mark.skipif(sys.platform != "linux", reason="workers are Linux only")


def address(text: str) -> int:
    return engine().compile(text, "step", vectorise=False)


def pointers(*values: int) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(values))(*values)


class Steps:
    """A list of steps for run_steps: (function, blocks, slot numbers) each."""

    def __init__(self, steps: Sequence[tuple[int, int, Sequence[int]]], slots: Sequence[int]):
        self.error = (ctypes.c_int64 * ERROR_WORDS)()
        self.slots = pointers(ctypes.addressof(self.error), *slots)
        self.count = len(steps)
        self.words = (ctypes.c_int64 * (native_threads.STEP_WORDS * self.count))()
        self.keepalive: list[object] = []
        for k, (function, blocks, numbers) in enumerate(steps):
            given = (ctypes.c_int64 * len(numbers))(*numbers)
            args = (ctypes.c_void_p * len(numbers))()
            self.keepalive += [given, args, function]  # keeps the code alive
            where = (ctypes.addressof(given), ctypes.addressof(args))
            self.words[5 * k : 5 * k + 5] = [function, blocks, len(numbers), *where]

    def run(self) -> None:
        there = (ctypes.addressof(self.words), self.count, ctypes.addressof(self.slots))
        native_threads.run_steps(*there)
        assert self.error[3] == 1  # the last of the four words: the run has ended


@pytest.fixture(params=[1, 2, 5])
def some_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(request.param)
    yield request.param
    thread_pool.set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(2)
    yield
    thread_pool.set_num_threads(before)


@pytest.mark.usefixtures("some_threads")
@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 7, 64, 1000])
def test_every_block_is_done_once(blocks: int) -> None:
    counts = np.zeros(blocks + 1, np.int64)
    args, function = pointers(counts.ctypes.data), address(COUNT)
    for _ in range(300):
        native_threads.parallel(function, blocks, ctypes.addressof(args))
    assert counts.tolist() == [300] * blocks + [0]


@pytest.mark.usefixtures("some_threads")
def test_what_workers_wrote_is_seen() -> None:
    """Each step reads what the previous one wrote on other threads; a lost write would show."""
    counts = np.zeros(64, np.int64)
    steps = Steps([(address(COUNT), 64, [1])] * 500, [counts.ctypes.data])
    for _ in range(20):
        steps.run()
    assert counts.tolist() == [10_000] * 64


@needs_workers
@pytest.mark.usefixtures("two_threads")
def test_two_threads_work_at_once() -> None:
    counter = ctypes.c_int64(0)
    args = pointers(ctypes.addressof(counter))
    for pause in (0, 0, 0.0002, 0.01):  # the worker spins, spins, yields or sleeps, sleeps
        time.sleep(pause)
        native_threads.parallel(address(BARRIER), 2, ctypes.addressof(args))
    assert counter.value == 8


@needs_workers
def test_fewer_threads_later() -> None:
    before = thread_pool.num_threads()
    names: set[int] = set()
    note = CALLBACK(lambda lo, hi, args: names.add(threading.get_ident()))
    where = ctypes.cast(note, ctypes.c_void_p).value or 0
    try:
        for count in (6, 3, 1):
            thread_pool.set_num_threads(count)
            for _ in range(20):
                names.clear()
                native_threads.parallel(where, 100, 0)
                assert 1 <= len(names) <= count
    finally:
        thread_pool.set_num_threads(before)


@pytest.mark.usefixtures("some_threads")
def test_steps_fill_their_arguments() -> None:
    a, b = np.zeros(8, np.int64), np.zeros(8, np.int64)
    f = address(COUNT)
    steps = [(f, 8, [1]), (f, 1, [2]), (f, 0, [2]), (f, 8, [1]), (f, 3, [2, 1])]
    Steps(steps, [a.ctypes.data, b.ctypes.data]).run()
    assert a.tolist() == [2] * 8
    assert b.tolist() == [2, 1, 1, 0, 0, 0, 0, 0]


@pytest.mark.usefixtures("some_threads")
def test_an_error_stops_the_run() -> None:
    a = np.zeros(8, np.int64)
    f, fail = address(COUNT), address(FAIL)
    steps = Steps([(f, 8, [1]), (fail, 8, [0]), (f, 8, [1])], [a.ctypes.data])
    steps.run()
    assert list(steps.error) == [7, 0, 0, 1]
    assert a.tolist() == [1] * 8
    Steps([], []).run()  # no steps: nothing happens


@pytest.mark.usefixtures("two_threads")
def test_nested_calls_run_in_their_thread() -> None:
    seen: list[tuple[int, int, bool]] = []

    def outer(lo: int, hi: int, args: int) -> None:
        me = threading.get_ident()
        inner = CALLBACK(lambda a, b, _: seen.append((a, b, threading.get_ident() == me)))
        native_threads.parallel(ctypes.cast(inner, ctypes.c_void_p).value or 0, 100, 0)

    made = CALLBACK(outer)
    native_threads.parallel(ctypes.cast(made, ctypes.c_void_p).value or 0, 2, 0)
    assert seen == [(0, 100, True)] * 2


@pytest.mark.usefixtures("two_threads")
def test_calls_inside_python_tasks_stay_there() -> None:
    seen: list[tuple[int, int]] = []
    note = CALLBACK(lambda lo, hi, args: seen.append((lo, hi)))
    where = ctypes.cast(note, ctypes.c_void_p).value or 0
    thread_pool.parallel_for(2, 1, lambda lo, hi: native_threads.parallel(where, 50, 0))
    assert seen == [(0, 50)] * 2


@pytest.mark.usefixtures("some_threads")
def test_many_callers() -> None:
    arrays = [np.zeros(100, np.int64) for _ in range(6)]

    def caller(counts: np.ndarray) -> None:
        Steps([(address(COUNT), 100, [1])] * 200, [counts.ctypes.data]).run()

    callers = [threading.Thread(target=caller, args=(a,)) for a in arrays]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(30)
    assert all(a.tolist() == [200] * 100 for a in arrays)


def test_thread_counts_change_while_others_work() -> None:
    before = thread_pool.num_threads()
    counts = np.zeros(33, np.int64)
    steps = Steps([(address(COUNT), 33, [1])] * 100, [counts.ctypes.data])
    worker = threading.Thread(target=lambda: [steps.run() for _ in range(50)])
    worker.start()
    try:
        for k in range(200):
            thread_pool.set_num_threads(1 + k % 4)
            other = np.zeros(5, np.int64)
            args = pointers(other.ctypes.data)
            native_threads.parallel(address(COUNT), 5, ctypes.addressof(args))
            assert other.tolist() == [1] * 5
        worker.join(30)
    finally:
        thread_pool.set_num_threads(before)
    assert counts.tolist() == [5000] * 33


@needs_workers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with threads is the point
@pytest.mark.usefixtures("two_threads")
def test_fork() -> None:
    counter = ctypes.c_int64(0)
    args = pointers(ctypes.addressof(counter))
    function = address(BARRIER)
    native_threads.parallel(function, 2, ctypes.addressof(args))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            native_threads.parallel(function, 2, ctypes.addressof(args))
            code = 0 if counter.value == 4 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    native_threads.parallel(function, 2, ctypes.addressof(args))
    assert counter.value == 4


def test_work_runs_on_the_native_pool() -> None:
    counts = np.zeros(50, np.int64)
    work = Work((Step(COUNT, 50, vectorise=False), Step(COUNT, 50)))
    run_work.run(work, [counts], [])
    assert counts.tolist() == [2] * 50


# --- ends of processes ---------------------------------------------------------------------------

_PROLOGUE = f"""
import ctypes, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the parent ignores
from everygrad.backends import thread_pool
from everygrad.backends.cpu.runtime import native_threads
from everygrad.backends.cpu.llvm.compiler import engine
thread_pool.set_num_threads(4)
counts = (ctypes.c_int64 * 64)()
args = (ctypes.c_void_p * 1)(ctypes.addressof(counts))
function = engine().compile('''{COUNT}''', "step")
work = lambda: native_threads.parallel(function, 64, ctypes.addressof(args))
work()
"""

_ENDS = {
    "at once": "",
    "while workers sleep": "time.sleep(0.05)",
    "by sys.exit": "sys.exit(0)",
    "with a busy daemon": """
def forever():
    while True:
        work()
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
""",
    "after a fork": """
child = os.fork()
work()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""",
}


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", _PROLOGUE + body]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("end", list(_ENDS))
def test_the_process_ends(end: str) -> None:
    if end == "after a fork" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    done = run_script(_ENDS[end])
    assert (done.returncode, done.stderr) == (0, "")


@needs_workers
def test_an_interrupt_waits_for_the_step() -> None:
    done = run_script("""
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may ignore it
def interrupt():
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
counts = (ctypes.c_int64 * 60_000)()
error = (ctypes.c_int64 * 4)()  # plan.ERROR_WORDS
slots = (ctypes.c_int64 * 2)(ctypes.addressof(error), ctypes.addressof(counts))
number, n = ctypes.c_int64(1), 20_000
words = [function, 60_000, 1, ctypes.addressof(number), ctypes.addressof(args)]
steps = (ctypes.c_int64 * (5 * n))(*(words * n))
try:
    native_threads.run_steps(ctypes.addressof(steps), n, ctypes.addressof(slots))
    time.sleep(5)
    print("never")
except KeyboardInterrupt:
    print("interrupted", set(counts))
""")
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted {20000}"), done.stderr

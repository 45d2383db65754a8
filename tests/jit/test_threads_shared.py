"""Threads on shared parameters: devtools/drills/threads.py, for a few seconds.

Whoever traces, profiles or casts must not be noticed by other threads: their results are those of
an undisturbed run, bit for bit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.drills.processes import run_case
from devtools.drills.threads import ROLES, run_drill

WITHOUT_TRACES = [r for r in ROLES if r not in ("traces", "steps")]


@pytest.mark.parametrize(
    "roles",
    [WITHOUT_TRACES, ["traces", "small", "backward"], ["steps", "replays", "large"], [*ROLES]],
    ids=["without traces", "a trace beside eager ops", "steps beside replays", "all"],
)
def test_no_thread_notices_another(roles: list[str]) -> None:
    code, text = run_drill("cpu", roles, seconds=2.0)
    assert code == 0, text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_forked_while_another_thread_traces() -> None:
    outcome = run_case("cpu", ", ".join(["while another traces"] * 3), "os.fork")
    assert not outcome.failed, outcome.text
    assert outcome.text == "worked"


_FORKS = """
import os, signal, threading, time
from llvmlite.binding import ffi
from everygrad.backends.cpu.llvm.compiler import engine
TEXT = "define void @step(i64 %lo, i64 %hi, ptr %args) {{ ret void }} ; {}"
engine().compile(TEXT.format(0), "step", vectorise=False)
stop, seen = threading.Event(), []

def inside():
    while not stop.is_set():
        with ffi.lib._lock:  # as a call of LLVM that takes its time
            time.sleep(0.002)
        time.sleep(0.001)

thread = threading.Thread(target=inside)
thread.start()
for k in range(1, 41):
    child = os.fork()
    if not child:
        signal.alarm(20)  # who hangs is ended
        engine().compile(TEXT.format(k), "step", vectorise=False)
        grandchild = os.fork()  # the child's locks are whole too
        if not grandchild:
            signal.alarm(20)  # who hangs is ended
            engine().compile(TEXT.format(-k), "step", vectorise=False)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    seen.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    engine().compile(TEXT.format(1000 + k), "step", vectorise=False)  # the parent's are, too
stop.set()
thread.join()
print(len(seen), sum(map(abs, seen)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_forked_while_another_thread_is_inside_llvm() -> None:
    root = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", _FORKS],
        env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "40 0"), done.stderr[-2000:]

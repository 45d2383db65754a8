"""Fork and spawn after use: a child works as the parent does, or refuses by name, and never hangs.

    python -m devtools.drills.processes [--device cpu] [--seconds 600]

Each case is a process of its own: it uses the library in some way, makes a child in some way, and
both then do the same work. The child's results are the parent's, bit for bit, or an error of
`everygrad.errors` that it prints at once; the parent's are what they were before. `tests/
test_processes.py` runs each case once, this program until its time is over.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.errors import EverygradError

ROOT = Path(__file__).parents[2]
LIMIT = 60.0  # seconds for a case; a child that takes half of that hangs
LARGE = 300  # rows and columns: far beyond what NumPy does at once

# --- the work -------------------------------------------------------------------------------------


class Setting:
    """What a program has: parameters, a compiled step, a compiled function."""

    def __init__(self, device: str) -> None:
        rng = np.random.default_rng(0)
        self.device = device
        self.w = eg.tensor(rng.standard_normal((8, 8)).astype("float32"), device=device)
        self.big = eg.tensor(rng.standard_normal((LARGE, LARGE)).astype("float32"), device=device)
        self.p = eg.tensor(np.ones(8, "float32"), device=device, requires_grad=True)
        self.compiled = eg.jit(lambda x: eg.tanh(x @ x).sum(axis=0) * 2)

    def small(self) -> Any:
        return eg.exp(self.w @ self.w * 0.1) + self.w

    def large(self) -> Any:
        return (eg.tanh(self.big) * self.big + 1).sum(axis=1)

    def product(self) -> Any:
        return (self.big @ self.big).mean(axis=0)

    def replay(self) -> Any:
        return self.compiled(self.big)

    def trace(self) -> Any:
        return eg.jit(lambda x: eg.exp(x * 0.5).sum(axis=0) - x[0])(self.big)

    def backward(self) -> Any:
        return eg.grad(lambda p: (eg.tanh(self.w @ p) ** 2).sum())(self.p)

    def workers(self) -> Any:
        p = self.p.detach().requires_grad_()
        parts = [eg.tanh(self.w @ p * float(k)).sum() for k in range(1, 6)]
        sum(parts[1:], parts[0]).backward(workers=2)
        return p.grad

    def checkpoint(self) -> Any:
        return eg.grad(lambda p: eg.checkpoint(lambda q: eg.exp(self.w @ q).sum(), p))(self.p)

    def mapped(self) -> Any:
        return eg.vmap(lambda row: eg.tanh(row) * row)(self.w)

    def drawn(self) -> Any:
        return eg.randn((50_000,), device=self.device, generator=eg.Generator(3))


TASKS = ("small", "large", "product", "replay", "trace", "backward", "workers", "checkpoint",
         "mapped", "drawn")  # fmt: skip


def results(setting: Setting) -> dict[str, bytes]:
    return {t: getattr(setting, t)().detach().to("cpu").numpy().tobytes() for t in TASKS}


# --- what the parent did before -------------------------------------------------------------------


@contextmanager
def busy(*tasks: Callable[[], Any]) -> Iterator[None]:
    """Threads that do these things over and over, while the child is made. Each was done before:
    a module that another thread is importing at that moment is Python's to lose, not ours."""
    stop = threading.Event()
    for task in tasks:
        task()

    def run(task: Callable[[], Any]) -> None:
        while not stop.is_set():
            task()

    threads = [threading.Thread(target=run, args=(t,), daemon=True) for t in tasks]
    for t in threads:
        t.start()
    time.sleep(0.05)
    try:
        yield
    finally:
        stop.set()
        for t in threads:
            t.join()


@contextmanager
def used(how: str, setting: Setting) -> Iterator[None]:
    if how == "everything":
        results(setting)
    elif how == "while another runs eagerly":
        with busy(setting.large, setting.product):
            yield
        return
    elif how == "while another replays":
        setting.replay()
        with busy(setting.replay):
            yield
        return
    elif how == "while another traces":
        with busy(setting.trace):
            yield
        return
    elif how == "while another goes backward":
        with busy(setting.workers, setting.backward):
            yield
        return
    elif how != "nothing":
        getattr(setting, how)()
    yield


USES = ("nothing", *TASKS[:7], "everything", "while another runs eagerly", "while another replays",
        "while another traces", "while another goes backward")  # fmt: skip


# --- children -------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a child found: results, or the name of an error and its text."""

    found: dict[str, bytes]
    refused: str

    def encoded(self) -> bytes:
        """As JSON, the way it travels between processes."""
        found = {task: value.hex() for task, value in self.found.items()}
        return json.dumps({"found": found, "refused": self.refused}).encode()

    @staticmethod
    def decoded(text: bytes) -> Answer:
        given = json.loads(text)
        found = {task: bytes.fromhex(value) for task, value in given["found"].items()}
        return Answer(found, given["refused"])


def answer(device: str, setting: Setting | None) -> Answer:
    faulthandler.dump_traceback_later(LIMIT / 2, exit=True)  # who hangs says where
    try:
        return Answer(results(setting or Setting(device)), "")
    except EverygradError as error:
        return Answer({}, f"{type(error).__name__}: {error}")


def forked(device: str, setting: Setting) -> Answer:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(read)
            with os.fdopen(write, "wb") as pipe:
                pipe.write(answer(device, setting).encoded())
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with {status}"
    return Answer.decoded(text)


def _in_child(device: str, setting: Setting | None, pipe: Connection) -> None:
    pipe.send_bytes(answer(device, setting).encoded())


def by_multiprocessing(method: str) -> Callable[[str, Setting], Answer]:
    def make(device: str, setting: Setting) -> Answer:
        context: Any = multiprocessing.get_context(method)
        read, write = context.Pipe(duplex=False)
        given = setting if method == "fork" else None  # tensors are never pickled
        child = context.Process(target=_in_child, args=(device, given, write))
        child.start()
        write.close()  # so that a child that ends without a word is seen
        found = Answer.decoded(read.recv_bytes())
        child.join()
        assert child.exitcode == 0, f"the child ended with {child.exitcode}"
        return found

    return make


CHILDREN: dict[str, Callable[[str, Setting], Answer]] = {
    "os.fork": forked,
    "fork": by_multiprocessing("fork"),
    "spawn": by_multiprocessing("spawn"),
    "forkserver": by_multiprocessing("forkserver"),
}


# --- cases ----------------------------------------------------------------------------------------


def case(device: str, uses: str, child: str) -> str:
    """One case, in this process: a child after each of the uses. What became of them."""
    setting = Setting(device)
    said = set()
    for use in uses.split(", "):
        with used(use, setting):
            found = CHILDREN[child](device, setting)
        mine = results(setting)
        assert mine == results(setting), f"{use}: the parent is not what it was"
        if found.refused:
            said.add(f"refused: {found.refused}")
            continue
        different = [t for t in TASKS if found.found[t] != mine[t]]
        assert not different, f"{use}: the child's {', '.join(different)} differ"
        said.add("worked")
    return "\n".join(sorted(said))


class Outcome(NamedTuple):
    """What a case printed, or why it failed."""

    text: str
    failed: bool


def run_case(device: str, uses: str, child: str, limit: float = LIMIT) -> Outcome:
    """One case in a process of its own, ended by force if it hangs."""
    command = [sys.executable, "-m", "devtools.drills.processes", "--case", device, uses, child]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # its children too
        out, err = process.communicate()
        return Outcome(f"hangs: {out}{err}", failed=True)
    failed = process.returncode != 0
    return Outcome(err[-2000:] if failed else out.strip(), failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--case", nargs=3)
    given = parser.parse_args()
    if given.case:
        print(case(*given.case))
        return 0
    rng = random.Random(0)
    cases = [*itertools.product(USES, CHILDREN)]
    end, done, failures = time.monotonic() + given.seconds, 0, 0
    while time.monotonic() < end:
        use, child = rng.choice(cases)
        outcome = run_case(given.device, use, child)
        done += 1
        # a GPU does not follow a fork, and says so; everything else works
        gone = given.device != "cpu" and "fork" in child and "was forked" in outcome.text
        if outcome.failed or not (gone or outcome.text == "worked"):
            failures += 1
            print(f"{given.device}, {use}, {child}: {outcome.text}", flush=True)
    print(f"{done} cases on {given.device}, {failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())

"""Workers that fail name themselves and their item; nothing hangs and nothing is left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, WorkerError
from tests.support.loader_cases import Augmented, Counting, Failing, Large, OddError, children, held

ROOT = Path(__file__).parents[2]
Loader = eg.data.DataLoader


def failing(how: str, kind: str = "process", **more: Any) -> Any:
    return Loader(Failing(how), batch_size=4, num_workers=2, workers=kind, **more)


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("everygrad-")}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    resource_tracker.ensure_running()  # multiprocessing's own: it stays once something was spawned
    gc.collect()
    before = held()
    yield
    gc.collect()
    after = held()
    assert after[0] <= before[0], "processes"
    assert after[1] <= before[1], "shared memory"
    assert after[2] <= before[2], "descriptors"
    assert not {n for n in threads() if "loader" in n or "prefetch" in n}


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSEGV", "exit code 3"])
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_worker_that_dies_is_named_with_its_item(how: str, way: str) -> None:
    with pytest.raises(
        WorkerError, match=f"worker 1 .process [0-9]+. .*{how}.* item 13 of batch 3"
    ):
        list(failing(how, multiprocessing_context=way))


@pytest.mark.parametrize("how", ["ValueError", "KeyError"])
@pytest.mark.parametrize("kind", ["process", "thread"])
@pytest.mark.parametrize("more", [{}, {"persistent_workers": True}, {"device": "cpu"}], ids=str)
def test_an_exception_arrives_as_itself(how: str, kind: str, more: dict[str, Any]) -> None:
    loader = failing(how, kind, **more)
    seen: list[int] = []
    with pytest.raises((ValueError, KeyError), match="bad pixel") as found:
        seen.extend(n for batch in loader for n in batch[:, 0].tolist())
    assert type(found.value).__name__ == how
    assert seen == list(range(12))
    told = str(found.value) + "".join(getattr(found.value, "__notes__", ()))
    assert "worker 1 (" in told
    assert "item 13 of batch 3" in told
    if kind == "process":
        assert "Traceback (most recent call last)" in told
        assert "in _raise" not in told.splitlines()[0]
        assert "loader_cases.py" in told
    with pytest.raises((ValueError, KeyError), match="bad pixel"):
        list(loader)  # the next pass has workers of its own


@pytest.mark.parametrize("how", ["StopIteration", "SystemExit", "Odd"])
def test_what_cannot_be_raised_again_is_an_error_of_ours(how: str) -> None:
    with pytest.raises(WorkerError, match="bad pixel") as found:
        list(failing(how))
    assert not isinstance(found.value, OddError)
    assert "item 13 of batch 3" in str(found.value)
    with pytest.raises(WorkerError, match="bad pixel"):
        list(failing("StopIteration", "thread"))


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_worker_that_takes_too_long_is_named(kind: str) -> None:
    loader = Loader(_Slow(), batch_size=4, num_workers=2, workers=kind, timeout=0.5)
    with pytest.raises(WorkerError, match=r"within timeout=0.5 .*worker 1 .*item 5"):
        list(loader)


class _Slow(Failing):
    def __init__(self) -> None:
        super().__init__("nothing")

    def __getitem__(self, i: int) -> Any:
        if i == 5:
            time.sleep(1.5)
        return i


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_failure_of_collate_fn_names_the_batch(kind: str) -> None:
    def collate(items: list[Any]) -> Any:
        if items[0][0] == 12:
            raise ValueError("ragged")
        return items

    with pytest.raises(ValueError, match="ragged") as found:
        list(failing("nothing", kind, collate_fn=collate))
    told = str(found.value) + "".join(getattr(found.value, "__notes__", ()))
    assert "the collate_fn of batch 3" in told


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_failure_as_a_worker_starts_is_told(kind: str) -> None:
    def init(number: int) -> None:
        raise ValueError(f"no database for {number}")

    with pytest.raises(ValueError, match="no database for 0"):
        list(failing("nothing", kind, worker_init_fn=init))


def test_an_iterable_dataset_that_fails() -> None:
    class Breaks(Counting):
        def __iter__(self) -> Any:
            yield 1
            raise ValueError("bad line")

    for kind in ("process", "thread"):
        with pytest.raises(ValueError, match="bad line") as found:
            list(Loader(Breaks(3), batch_size=2, num_workers=2, workers=kind))
        told = str(found.value) + "".join(getattr(found.value, "__notes__", ()))
        assert "worker 0" in told


def test_a_dataset_that_cannot_be_spawned_is_refused_at_once() -> None:
    class Local(Failing):
        pass

    loader = Loader(Local("nothing"), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(ArgumentError, match=r"cannot: .*[Ll]ocal.* top of a module"):
        iter(loader)


@pytest.mark.parametrize("kind", ["process", "thread"])
@pytest.mark.parametrize(
    "end", ["break", "close", "garbage", "exception", "loader closed", "loader gone"]
)
def test_workers_end_with_the_loop(kind: str, end: str) -> None:
    persistent = end.startswith("loader")
    loader = failing("nothing", kind, persistent_workers=persistent)
    batches = iter(loader)
    next(batches)
    assert len(children()) >= 2 or kind == "thread"
    if end == "break":
        for _ in loader:
            break
    if end == "close":
        batches.close()
        assert list(batches) == []
    if end == "exception":
        with pytest.raises(ZeroDivisionError):
            sum(1 // 0 for _ in loader)
    if end == "loader closed":
        loader.close()
    batches = loader = None
    gc.collect()
    assert not multiprocessing.active_children()
    assert not {n for n in threads() if "loader" in n}


def test_persistent_workers_stay_the_same() -> None:
    loader = Loader(Augmented(), num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 23
    before = {p.pid for p in multiprocessing.active_children()}
    batches = iter(loader)
    next(batches)  # a pass that is not finished
    assert len(list(loader)) == 23
    assert {p.pid for p in multiprocessing.active_children()} == before
    assert len(before) == 2
    with pytest.raises(ArgumentError, match="a later iter"):
        next(batches)


def test_a_batch_that_is_kept_outlives_its_worker() -> None:
    loader = Loader(Large(), batch_size=2, num_workers=1)
    batches = iter(loader)
    x, _ = next(batches)
    del batches
    assert not multiprocessing.active_children()
    assert x[:, -1].tolist() == [0.0, 1.0]


def test_batches_that_are_kept_hold_no_descriptors() -> None:
    before = held()[2]
    batches = iter(Loader(Large(), batch_size=1, num_workers=1))
    kept = [b for _, b in zip(range(20), batches, strict=False)]
    assert len(kept) == 20
    assert held()[2] - before <= 4  # the socket and the process, however many batches there are


def run(case: str, kind: str) -> Any:
    code = [sys.executable, "-m", "tests.support.loader_cases", case, kind]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    # a group of its own: a terminal's Ctrl-C goes to the whole group
    return subprocess.Popen(
        code, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def gone(pids: list[int]) -> bool:
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if not any(Path(f"/proc/{p}").exists() for p in pids):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_ctrl_c_ends_everything(kind: str) -> None:
    program = run("waits", kind)
    pids = [int(p) for p in program.stdout.readline().split()]
    assert len(pids) == (2 if kind == "process" else 0)
    time.sleep(0.3)  # it waits for the endless item, most likely; either way it must end
    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # no worker has one of its own
    assert gone(pids)


@pytest.mark.parametrize("kind", ["process", "thread"])
@pytest.mark.parametrize("case", ["ends", "exits", "breaks"])
def test_the_end_of_the_program_ends_everything(kind: str, case: str) -> None:
    program = run(case, kind)
    out, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (0, "")
    assert gone([int(p) for p in out.split()])


def test_a_parent_that_is_killed_takes_its_workers_along() -> None:
    program = run("breaks", "process")
    pids = [int(p) for p in program.stdout.readline().split()]
    program.kill()
    program.communicate(timeout=60)
    assert len(pids) == 2
    assert gone(pids)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_forked_child_has_workers_of_its_own(kind: str) -> None:
    items = [*range(23)]  # not of np.random, whose lock another thread may hold at the fork
    loader: Any = Loader(items, batch_size=4, num_workers=2, workers=kind, persistent_workers=True)
    whole = len([*loader])
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # nobody waits for ever for workers that are not there
        try:
            next(batches)
        except WorkerError as error:
            forked = "process that was forked" in str(error)
            again = [len([*loader]) for _ in range(2)] == [whole] * 2
            loader.close()
            os._exit(0 if forked and again else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert len([*batches]) == whole - 1
    assert len([*loader]) == whole
    loader.close()

"""Datasets for the loader's tests: importable, so that spawned workers find them."""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.data import Dataset, IterableDataset


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: Any
    name: str


class Augmented(Dataset[Any]):
    """Items that draw from every stream of a process."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> Any:
        return {
            "item": i,
            "python": random.random(),
            "numpy": np.random.rand(2),
            "everygrad": eg.rand((3,)),
        }


class DrawnByEverygrad(Dataset[Any]):
    """Items that draw from everygrad alone: what thread workers keep apart."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> Any:
        own = eg.data.item_generator()
        return i, eg.rand((3,)), eg.rand((), generator=own)


class Counting(IterableDataset[Any]):
    """Numbers, divided among the workers; each with a random one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        info = eg.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for n in range(first, self.count, step):
            yield n, eg.rand(()).item()


class CountingFrom(IterableDataset[Any]):
    """One that knows where it is; `skips` counts the items it was made to produce."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0
        self.produced = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.count:
            self.at += 1
            self.produced += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Failing(Dataset[Any]):
    """One item goes wrong, in one of several ways."""

    def __init__(self, how: str, item: int = 13) -> None:
        self.how, self.item = how, item

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        if i == self.item:
            _WAYS[self.how]()
        return np.full((5,), i)


class OddError(Exception):
    """An exception that no single text makes."""

    def __init__(self, number: int, cause: str) -> None:
        super().__init__(f"{cause} {number + 0}")


def _raise(error: BaseException) -> Callable[[], None]:
    def now() -> None:
        raise error

    return now


_WAYS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: (faulthandler.disable(), os.kill(os.getpid(), signal.SIGSEGV)),
    "exit code 3": lambda: os._exit(3),
    "ValueError": _raise(ValueError("bad pixel")),
    "KeyError": _raise(KeyError("bad pixel")),
    "StopIteration": _raise(StopIteration("bad pixel")),
    "SystemExit": _raise(SystemExit("bad pixel")),
    "Odd": lambda: _raise(OddError(7, "bad pixel"))(),
    "endless": lambda: time.sleep(600),
}


class Computing(Dataset[Any]):
    """Items made by kernels of their own: eager, compiled, and products on all threads."""

    def __init__(self) -> None:
        self.w = eg.asarray(np.random.default_rng(0).random((300, 300), np.float32))
        self.step = eg.jit(lambda x: eg.tanh(x @ x * 0.01).sum(axis=0))

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        x = eg.exp(self.w * (0.1 * i)) + 1
        return (self.w @ x).mean(axis=0), self.step(x), eg.sort(x, axis=0)[0]


class Large(Dataset[Any]):
    """Items of some size, and of a kind that is told as text."""

    def __init__(self, size: int = 20000, text: int = 0) -> None:
        self.size, self.text = size, text

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        return np.full((self.size,), i, np.float32), "a" * self.text + str(i)


def as_values(batch: Any) -> Any:
    """A batch as plain values, to be compared with ==."""
    if isinstance(batch, eg.Tensor):
        return str(batch.dtype), batch.tolist()
    if isinstance(batch, np.ndarray | np.generic):
        return str(batch.dtype), batch.tolist()
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return type(batch).__name__, [
            (f.name, as_values(getattr(batch, f.name))) for f in dataclasses.fields(batch)
        ]
    if isinstance(batch, dict):
        return type(batch).__name__, [(k, as_values(v)) for k, v in batch.items()]
    if isinstance(batch, list | tuple):
        return type(batch).__name__, [as_values(v) for v in batch]
    return batch


def children() -> set[int]:
    """The processes whose parent this one is."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            # multiprocessing's own, which stays once something was spawned
            if "resource_tracker" in (path.parent / "cmdline").read_text():
                continue
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def held() -> tuple[set[int], set[str], int]:
    """What a loader might leave behind: processes, shared memory, descriptors."""
    shm = {p.name for p in Path("/dev/shm").iterdir()} if Path("/dev/shm").is_dir() else set()
    return children(), shm, len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":  # a program of its own, for the test of Ctrl-C and of endings
    # whoever started the tests may ignore it (nohup, a job in the background), and so would we
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = eg.data.DataLoader(
        Failing("endless" if sys.argv[1] != "breaks" else "nothing"),
        batch_size=4,
        num_workers=2,
        workers=sys.argv[2],
        persistent_workers=sys.argv[1] == "exits",
    )
    batches = iter(loader)
    next(batches)
    print(*(sorted(children())), flush=True)
    if sys.argv[1] == "waits":
        for _ in batches:
            pass

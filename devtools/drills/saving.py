"""SIGKILL at random instants of saving: the previous checkpoint is always whole.

    python -m devtools.drills.saving [--kills 200] [--seed 0] [--megabytes 4]

A child saves one state after the other, to one file, as shards, or as numbered checkpoints written
by a thread, and says which it has finished. It is killed at a random instant. What lies there is
then the last one that it finished, or the one behind that, and each of their values is right.
`tests/io/test_crashes.py` is the short form.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.io import files

LONGEST = 0.06  # seconds until a kill: a few saves


def state(step: int, megabytes: float) -> dict[str, Any]:
    """Tensors whose every element says which step they belong to."""
    count = int(megabytes * 2**18) // 8
    parts = [np.full(count, float(step), np.float32) for _ in range(8)]
    return {"step": step, "parts": [eg.tensor(p) for p in parts]}


def step_of(found: dict[str, Any]) -> int:
    """The step that all of it belongs to."""
    step: int = found["step"]
    for part in found["parts"]:
        assert (part.numpy() == step).all(), f"a part of step {step} is of another"
    return step


# --- ways of saving ------------------------------------------------------------------------------


def one_file(folder: Path, states: Callable[[int], Any], done: Callable[[int], None]) -> None:
    for step in range(1_000_000):
        eg.save(folder / "last.safetensors", states(step))
        done(step)


def shards(folder: Path, states: Callable[[int], Any], done: Callable[[int], None]) -> None:
    for step in range(1_000_000):
        eg.save(folder / "last.safetensors", states(step), max_shard_size="1MB")
        done(step)


def numbered(folder: Path, states: Callable[[int], Any], done: Callable[[int], None]) -> None:
    checkpoints = eg.io.Checkpoints(folder, keep_last=2, asynchronous=True)
    for step in range(1_000_000):
        checkpoints.save(step, states(step))
        checkpoints.wait()
        done(step)


WAYS: dict[str, tuple[Callable[..., None], Callable[[Path], Any]]] = {
    "one file": (one_file, lambda folder: eg.load(folder / "last.safetensors")),
    "shards": (shards, lambda folder: eg.load(folder / "last.safetensors.index.json")),
    "numbered": (numbered, eg.load_latest),
}


# --- the kill ------------------------------------------------------------------------------------


def child(way: str, folder: Path, megabytes: float, tell: int) -> None:
    """Save until somebody kills this process; the first is on the disk before that may happen."""
    made = [state(step, megabytes) for step in range(4)]

    def states(step: int) -> Any:
        return made[step] if step < len(made) else state(step, megabytes)

    save, _ = WAYS[way]
    save(folder, states, lambda step: os.write(tell, step.to_bytes(4, "little")) and None)


def kill_once(way: str, folder: Path, megabytes: float, wait: float) -> tuple[int, int]:
    """The step that was told last, and the one that lies there."""
    listen, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(listen)
        try:
            child(way, folder, megabytes, tell)
        finally:
            os._exit(1)
    os.close(tell)
    told = os.read(listen, 4)
    time.sleep(wait)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    while more := os.read(listen, 4096):
        told = more[-4:]
    os.close(listen)
    assert os.WIFSIGNALED(status), f"{way}: the child ended by itself: {status}"
    _, load = WAYS[way]
    return int.from_bytes(told, "little"), step_of(load(folder))


def drill(kills: int, seed: int, megabytes: float) -> Counter[str]:
    """Kill so often; returns how often the next one was there, and how often something was left."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    warnings.simplefilter("error")  # nothing may be passed over as damaged
    for i in range(kills):
        way = list(WAYS)[i % len(WAYS)]
        with tempfile.TemporaryDirectory(prefix="everygrad-saving-") as name:
            folder = Path(name)
            told, found = kill_once(way, folder, megabytes, rng.random() * LONGEST)
            assert found in (told, told + 1), f"{way}: step {told} was finished, {found} is there"
            counts["kills"] += 1
            counts["the next one was there already"] += found == told + 1
            left = [p for p in folder.iterdir() if p.name.endswith(".tmp")]
            counts["half a file was left beside it"] += bool(left)
            for path in left:
                os.utime(path, (0, 0))
            assert sorted(left) == files.remove_orphans(folder)
    return counts


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--megabytes", type=float, default=4.0)
    options = parser.parse_args(given)
    start = time.perf_counter()
    counts = drill(options.kills, options.seed, options.megabytes)
    for what, count in counts.items():
        print(f"{count:5d}  {what}")
    print(f"every checkpoint was whole; {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

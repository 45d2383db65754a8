"""Numbered checkpoints in a folder: the last few and the best, written beside the training."""

from __future__ import annotations

import math
import os
import re
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Self

from everygrad.errors import ArgumentError, EverygradError, FileError, MissingFileError
from everygrad.io import files, safetensors_format as fmt
from everygrad.io.loading import load
from everygrad.io.restore import restore
from everygrad.io.snapshot import Snapshot, write

_NAME = re.compile(r"step-(\d{1,18})\.safetensors")


def load_latest(
    folder: Any,
    into: Any = None,
    *,
    device: str | None = None,
    mmap: bool = False,
    verify: bool = True,
) -> Any:
    """What the newest whole checkpoint of a folder holds, as `eg.load` gives it.

    Damaged ones are passed over, with a warning that names the file and the damage. A checkpoint
    that is whole and does not fit `into` raises.

    >>> import everygrad as eg, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with eg.io.Checkpoints(folder, keep_last=2) as checkpoints:
    ...     for step in range(3):
    ...         checkpoints.save(step, {"step": step})
    >>> eg.load_latest(folder)
    {'step': 2}
    """
    where = files.as_path(folder, "load_latest")
    if not where.is_dir():
        raise MissingFileError(f"load_latest: {files.missing(where)}")
    damaged = []
    for _, path in reversed(numbered(where)):
        try:
            found = load(path, device=device, mmap=mmap, verify=verify)
        except (FileError, OSError) as error:
            damaged.append(path.name)
            warnings.warn(f"load_latest: passed over {error}", stacklevel=2)
            continue
        return found if into is None else restore(into, found, str(path))
    what = f"none is whole: {', '.join(damaged)}" if damaged else "there is none"
    raise MissingFileError(f"load_latest: no checkpoint in {where}: {what}")


def numbered(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder by their steps, in order."""
    found = [(m, folder / n) for n in os.listdir(folder) if (m := _NAME.fullmatch(n))]
    return sorted((int(m[1]), path) for m, path in found)


class _Job(NamedTuple):
    step: int
    shot: Snapshot
    metric: float | None


class Checkpoints:
    """A folder of numbered checkpoints, of which the last few and the best are kept.

    `save(step, obj)` writes `step-00000007.safetensors`. With `asynchronous`, the caller only takes
    a snapshot, which copies nothing that lies on the CPU but NumPy arrays, and a thread writes it.
    One is written at a time and one may wait; if a third comes, the one that waits is dropped, with
    a warning. What goes wrong in the thread is raised by the next call. `keep_best` keeps that many
    with the best `metric`, the smallest, or the largest if `best="max"`.

    >>> import everygrad as eg, tempfile
    >>> model = eg.nn.Linear(3, 2)
    >>> with eg.io.Checkpoints(tempfile.mkdtemp(), keep_last=2, asynchronous=True) as checkpoints:
    ...     checkpoints.save(1, {"model": model}, metric=0.5)
    >>> [path.name for path in checkpoints.paths()]
    ['step-00000001.safetensors']
    """

    def __init__(
        self,
        folder: Any,
        *,
        keep_last: int | None = 3,
        keep_best: int = 0,
        best: str = "min",
        asynchronous: bool = False,
    ) -> None:
        if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
            raise ArgumentError(
                f"Checkpoints: keep_last must be at least 1, or None for all, got {keep_last!r}"
            )
        if type(keep_best) is not int or keep_best < 0:
            raise ArgumentError(f"Checkpoints: keep_best must be at least 0, got {keep_best!r}")
        if best not in ("min", "max"):
            raise ArgumentError(f'Checkpoints: best must be "min" or "max", got {best!r}')
        self.folder = files.as_path(folder, "Checkpoints")
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.best = best
        self.asynchronous = asynchronous
        self.folder.mkdir(parents=True, exist_ok=True)
        files.remove_orphans(self.folder)
        self._metrics = {step: _metric_of(path) for step, path in numbered(self.folder)}
        self._found = list(self._metrics)
        self._lock = threading.Condition()
        self._waiting: _Job | None = None
        self._busy = False
        self._error: BaseException | None = None

    def save(self, step: int, obj: Any, metric: float | None = None) -> None:
        """Write the checkpoint of a step; `metric` is what the best are found by."""
        if type(step) is not int or not 0 <= step < 10**18:
            raise ArgumentError(f"Checkpoints.save: step must be at least 0, got {step!r}")
        if metric is not None:
            metric = float(metric)
        self._raise()
        self._warn_of_later(step)
        note = {"step": step} | ({} if metric is None else {"metric": repr(metric)})
        job = _Job(step, Snapshot("Checkpoints.save", obj, note), metric)
        if not self.asynchronous:
            self._write(job)
            return
        job.shot.settle()
        with self._lock:
            dropped, self._waiting = self._waiting, job
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._work, name="everygrad-checkpoints").start()
        if dropped is not None:
            warnings.warn(
                f"Checkpoints.save: step {dropped.step} is not written: steps come faster than the "
                f"disk takes them",
                stacklevel=2,
            )

    def _warn_of_later(self, step: int) -> None:
        """Say once if the folder has checkpoints that `load_latest` would take for newer ones."""
        later = [s for s in self._found if s > step]
        self._found = []
        if later:
            warnings.warn(
                f"Checkpoints.save: {self.folder} has a checkpoint of step {max(later)}, which "
                f"load_latest prefers to step {step}; delete it, or take another folder",
                stacklevel=3,
            )

    def wait(self) -> None:
        """Wait until everything is on the disk; raises what went wrong."""
        with self._lock:
            self._lock.wait_for(lambda: not self._busy)
        self._raise()

    def close(self) -> None:
        """The same as `wait`; a `with` block ends with it."""
        self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.close()
        except BaseException:
            if error is None:  # what ended the block says more than what the disk said
                raise

    def paths(self) -> list[Path]:
        """The checkpoints that are there, the oldest first."""
        return [path for _, path in numbered(self.folder)]

    def best_path(self) -> Path | None:
        """The checkpoint with the best metric; None if none has one."""
        there = dict(numbered(self.folder))
        ranked = [step for step in self._ranked() if step in there]
        return there[ranked[0]] if ranked else None

    def load_latest(self, into: Any = None, **how: Any) -> Any:
        """`eg.load_latest` of this folder, behind what is still being written."""
        self.wait()
        return load_latest(self.folder, into, **how)

    # --- writing ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                job, self._waiting = self._waiting, None
                if job is None:
                    self._busy = False
                    self._lock.notify_all()
                    return
            try:
                self._write(job)
            except BaseException as error:
                with self._lock:
                    self._error = error
            del job  # its tensors are free before the next is waited for

    def _write(self, job: _Job) -> None:
        write(self.folder / f"step-{job.step:08d}.safetensors", job.shot)
        self._metrics[job.step] = job.metric
        self._prune(job.step)

    def _prune(self, last: int) -> None:
        """Delete what is neither among the last nor among the best. What has a later number than
        the one that was just written is of another run, and is let alone."""
        if self.keep_last is None:
            return
        there = [(step, path) for step, path in numbered(self.folder) if step <= last]
        kept = {step for step, _ in there[-self.keep_last :]}
        kept |= set(self._ranked()[: self.keep_best])
        for step, path in there:
            if step not in kept:
                path.unlink(missing_ok=True)
                self._metrics.pop(step, None)

    def _ranked(self) -> list[int]:
        """Steps that have a metric, the best first; of equal ones the later."""
        held = list(self._metrics.items())  # at once: the writing thread changes it
        known = [(m, s) for s, m in held if m is not None and not math.isnan(m)]
        sign = 1 if self.best == "min" else -1
        return [step for _, step in sorted(known, key=lambda pair: (sign * pair[0], -pair[1]))]

    def _raise(self) -> None:
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error


def _metric_of(path: Path) -> float | None:
    """The metric that a checkpoint was saved with; None of one that is damaged."""
    try:
        with files.reading(path, "Checkpoints") as (file, size):
            about = fmt.read_header(file, size, str(path)).about
        return float(about["note"]["metric"]) if about else None
    except (EverygradError, OSError, KeyError, TypeError, ValueError):
        return None

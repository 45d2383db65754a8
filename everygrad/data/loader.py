"""DataLoader: batches of a dataset, made by workers ahead of their use, in one order for a seed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import finalize

from everygrad.backends import base
from everygrad.core.shapes import as_bool, as_int
from everygrad.data.collate import default_collate, default_convert
from everygrad.data.dataset import IterableDataset
from everygrad.data.permutation import seed_from
from everygrad.data.sampler import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    between_passes,
    check_generator,
    positive,
    restore_generator,
)
from everygrad.data.workers.fetch import END, Job
from everygrad.data.workers.prefetch import DevicePrefetch, moved
from everygrad.data.workers.processes import ProcessWorkers, context_for
from everygrad.data.workers.threads import Caller, ThreadWorkers
from everygrad.errors import ArgumentError, WorkerError
from everygrad.ops.random.generators import Generator

T_co = TypeVar("T_co", covariant=True)
_KEYS = {"epoch", "batches", "seed", "sampler", "generator", "workers", "turn", "running"}
_NEVER = object()


class DataLoader(Generic[T_co]):
    """Batches of a dataset, with PyTorch's arguments.

    The same seed gives the same batches in the same order, and every item the same random
    augmentation, for any `num_workers` and for processes and threads alike; of an `IterableDataset`
    that is so for the same number of workers. `state_dict()` says where the loop stands, and after
    `load_state_dict` the next loop goes on with the next batch.

    `workers` is "process" or "thread". Batches come back from a process in shared memory, without a
    copy and without pickle. The dataset itself reaches a forked worker as it is; a spawned one gets
    it by `multiprocessing`, which pickles the object (but not the tensors in it). Workers are
    forked on Linux, and spawned where a GPU is open. `device` moves every batch there, the next one
    while the last one computes; `pin_memory` changes nothing: every move goes through pinned
    memory. `in_order=False` is taken, and the order kept.

    >>> import everygrad as eg
    >>> data = eg.data.TensorDataset(eg.arange(5))
    >>> loader = eg.data.DataLoader(data, batch_size=2, shuffle=True, generator=eg.Generator(1))
    >>> sum(x.sum().item() for x, in loader)
    10
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        workers: str = "process",
        device: str | None = None,
    ) -> None:
        self.dataset, self.generator, self.device = dataset, generator, device
        self.num_workers = as_int(num_workers, "DataLoader", "num_workers")
        self.pin_memory = as_bool(pin_memory, "DataLoader", "pin_memory")
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        self.drop_last = as_bool(drop_last, "DataLoader", "drop_last")
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.multiprocessing_context, self.workers = multiprocessing_context, workers
        self.persistent_workers = as_bool(persistent_workers, "DataLoader", "persistent_workers")
        self._iterable = isinstance(dataset, IterableDataset)
        self._check_workers(prefetch_factor)
        self.prefetch_factor = prefetch_factor
        self._choose_sampler(batch_size, shuffle, sampler, batch_sampler)
        batched = self.batch_sampler is not None or (self._iterable and batch_size is not None)
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._job = Job(
            dataset, self.collate_fn, self.batch_size, self.drop_last, self._iterable, batched
        )
        self._epoch = 0
        self._progress: _Progress | None = None
        self._resume: dict[str, Any] | None = None
        self._kept: Any = None  # persistent workers
        self._kept_by = 0  # the process that started them

    def _check_workers(self, prefetch_factor: int | None) -> None:
        if self.num_workers < 0:
            raise ArgumentError(f"DataLoader: num_workers is 0 or more, got {self.num_workers}")
        if self.workers not in ("process", "thread"):
            raise ArgumentError(
                f'DataLoader: workers is "process" or "thread", got {self.workers!r}; how many '
                f"there are is num_workers"
            )
        if not isinstance(self.timeout, int | float) or not self.timeout >= 0:
            raise ArgumentError(f"DataLoader: timeout is 0 or more seconds, got {self.timeout!r}")
        if prefetch_factor is not None:
            positive(prefetch_factor, "DataLoader", "prefetch_factor")
        if self.num_workers == 0:
            for name, given in (
                ("prefetch_factor", prefetch_factor is not None),
                ("persistent_workers", self.persistent_workers),
                ("timeout", self.timeout > 0),
                ("multiprocessing_context", self.multiprocessing_context is not None),
            ):
                if given:
                    raise ArgumentError(f"DataLoader: {name} needs workers: give num_workers=1")
        elif self.multiprocessing_context is not None:
            if self.workers == "thread":
                raise ArgumentError("DataLoader: threads have no multiprocessing_context")
            context_for(self.multiprocessing_context)

    def _choose_sampler(
        self, batch_size: int | None, shuffle: bool | None, sampler: Any, batch_sampler: Any
    ) -> None:
        if self._iterable:
            for name, given in (
                *(("shuffle", shuffle), ("sampler", sampler is not None)),
                ("batch_sampler", batch_sampler is not None),
            ):
                if given:
                    raise ArgumentError(
                        f"DataLoader: {name} chooses items by number, and an IterableDataset has "
                        f"none; order them in its __iter__"
                    )
        if sampler is not None and shuffle:
            raise ArgumentError("DataLoader: a sampler decides the order; leave out shuffle")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or self.drop_last:
                raise ArgumentError(
                    "DataLoader: a batch_sampler decides what batch_size, shuffle, sampler and "
                    "drop_last would; leave those out"
                )
            batch_size = None
        elif batch_size is not None:
            positive(batch_size, "DataLoader", "batch_size")
        elif self.drop_last:
            raise ArgumentError("DataLoader: without a batch_size there is nothing to drop_last")
        if not self._iterable and sampler is None and batch_sampler is None:
            sampler = (
                RandomSampler(self.dataset, generator=self.generator)
                if shuffle
                else SequentialSampler(self.dataset)
            )
        if batch_size is not None and not self._iterable:
            batch_sampler = BatchSampler(sampler, batch_size, self.drop_last)
        self.batch_size, self.sampler, self.batch_sampler = batch_size, sampler, batch_sampler

    @property
    def _index_sampler(self) -> Any:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __len__(self) -> int:
        """The number of batches of a whole pass."""
        if not self._iterable:
            return len(self._index_sampler)
        count = len(self.dataset)
        if self.batch_size is None:
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[T_co]:
        """A pass over the dataset; the first one after `load_state_dict` goes on where it was."""
        resume, self._resume = self._resume, None
        running = resume is not None and resume["running"]
        if not running:
            self._epoch += 1
            resume = None
        seed = seed_from(self.generator) if resume is None else resume["seed"]
        progress = _Progress(seed, resume, max(self.num_workers, 1))
        pool = self._pool()
        try:
            iterator: _Iterator = _Iterator(self, pool, progress)
        except BaseException:
            self._kept = None
            pool.close()
            raise
        self._progress = progress
        return iterator

    def _pool(self) -> Any:
        if self._kept is not None and self._kept_by == os.getpid():
            return self._kept
        if self._kept is not None:  # in a forked child: the workers are its parent's
            self._kept.disown()
            self._kept = None
        count = self.num_workers
        if count == 0:
            return Caller(self._job)
        pool: Any
        if self.workers == "thread":
            pool = ThreadWorkers(self._job, count, self.worker_init_fn, self.timeout)
        else:
            context = context_for(self.multiprocessing_context)
            ahead = self.prefetch_factor or 2
            pool = ProcessWorkers(
                self._job, count, self.worker_init_fn, context, self.timeout, ahead
            )
        if self.persistent_workers:
            self._kept, self._kept_by = pool, os.getpid()
        return pool

    def close(self) -> None:
        """End persistent workers now; the next pass starts new ones."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()

    # --- where it stands -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands: after the batch that was handed out last."""
        if self._resume is not None:
            return dict(self._resume)
        p = self._progress
        running = p is not None and p.running
        state = getattr(self._index_sampler, "state_dict", None)
        sampler = None if state is None else state()
        g = self.generator
        return {
            "epoch": self._epoch,
            "running": running,
            "batches": p.batches if p is not None and running else 0,
            "seed": p.seed if p is not None and running else None,
            "sampler": sampler if running else between_passes(sampler),
            "generator": None if g is None else g.get_state().tolist(),
            "workers": [dict(w) for w in p.workers] if p and running and self._iterable else None,
            "turn": p.turn if p is not None and running else 0,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next pass go on behind the batch after which this state was taken."""
        if not isinstance(state_dict, Mapping) or set(state_dict) != _KEYS:
            raise ArgumentError("DataLoader.load_state_dict: takes what its state_dict() gave")
        state = dict(state_dict)
        if self._iterable and state["running"]:
            had = len(state["workers"] or ())
            if had != max(self.num_workers, 1):
                raise ArgumentError(
                    f"DataLoader.load_state_dict: an IterableDataset is divided among workers, and "
                    f"this state is of num_workers={had}, not {self.num_workers}"
                )
        load = getattr(self._index_sampler, "load_state_dict", None)
        if (load is None) != (state["sampler"] is None):
            raise ArgumentError(
                "DataLoader.load_state_dict: the state is of a loader with another kind of sampler"
            )
        check_generator(self.generator, state["generator"], "DataLoader")
        if load is not None:
            load(state["sampler"])
        restore_generator(self.generator, state["generator"], "DataLoader")
        self._epoch, self._resume = state["epoch"], state


class _Progress:
    """Where a pass stands, as its caller sees it: what was prefetched does not count."""

    def __init__(self, seed: int, resume: Any, workers: int) -> None:
        self.seed = seed
        self.running = True
        self.batches = 0 if resume is None else resume["batches"]
        self.turn = 0 if resume is None else resume["turn"]
        fresh = {"items": 0, "done": False, "dataset": None}
        told = None if resume is None else resume["workers"]
        self.resumed = told
        self.workers = [dict(w) for w in told] if told else [dict(fresh) for _ in range(workers)]

    def advance(self, position: tuple[int, Any]) -> None:
        worker, state = position
        self.batches += 1
        self.turn = (worker + 1) % len(self.workers)
        if state is not None:
            self.workers[worker] = state


class _Source:
    """Asks workers for batches ahead of time, and gives them out in order."""

    def __init__(self, loader: DataLoader[Any], pool: Any, progress: _Progress) -> None:
        self._pool = pool
        self._iterable = loader._iterable
        count = max(loader.num_workers, 1)
        ahead = (loader.prefetch_factor or 2) if loader.num_workers else 1
        self._asked: deque[tuple[int, int]] = deque()  # number and worker, in order
        self._next = progress.batches
        pool.begin(progress.seed, progress.resumed)
        turns = [(progress.turn + k) % count for k in range(count)]
        if not self._iterable:
            self._indices = islice(iter(loader._index_sampler), progress.batches, None)
        for worker in turns * ahead:
            if not (self._iterable and progress.workers[worker]["done"]):
                self._ask(worker)

    def _ask(self, worker: int) -> None:
        indices = None if self._iterable else next(self._indices, _NEVER)
        if indices is not _NEVER:
            self._pool.submit(worker, self._next, indices)
            self._asked.append((self._next, worker))
            self._next += 1

    def __call__(self) -> tuple[Any, tuple[int, Any]]:
        """The next batch, and the position behind it; StopIteration at the end."""
        while self._asked:
            number, worker = self._asked[0]
            batch, state = self._pool.take(number)
            self._asked.popleft()
            if batch is not END:
                self._ask(worker)  # in place of the one that came: the turns stay as they are
                return batch, (worker, state)
        raise StopIteration


class _Iterator(Iterator[Any]):
    """One pass. Workers end with it, however it ends, unless they are persistent."""

    def __init__(self, loader: DataLoader[Any], pool: Any, progress: _Progress) -> None:
        self._progress, self._device, self._pool = progress, loader.device, pool
        self._loader, self._keeps = loader, loader._kept is pool
        self._process = os.getpid() if loader.num_workers else None
        self._source = _Source(loader, pool, progress)
        pool.user = progress
        self._ahead = self._uploads = None
        if loader.device is not None and loader.num_workers:
            self._ahead = DevicePrefetch(self._source, loader.device)
        elif loader.device is not None:
            self._uploads = base.get(loader.device).uploads()
        self._finalizer = finalize(self, _finish, pool, self._ahead, self._keeps, self._uploads)

    def __next__(self) -> Any:
        if not self._progress.running or not self._finalizer.alive:
            raise StopIteration
        if self._process not in (None, os.getpid()):
            raise WorkerError(
                "DataLoader: this pass and its workers belong to the process that was forked; call "
                "iter() again here"
            )
        if self._pool.user is not self._progress:
            raise ArgumentError("DataLoader: a later iter() has taken over the persistent workers")
        try:
            if self._ahead is not None:
                batch, position = self._ahead.take()
            else:
                batch, position = self._source()
                if self._device is not None and self._uploads is not None:
                    batch = moved(batch, self._device, self._uploads)
                    self._uploads.arrived(self._uploads.sent())
        except StopIteration:
            self._progress.running = False
            self._finalizer()
            raise
        except BaseException:
            if self._keeps and self._loader._kept is self._pool:
                self._loader._kept = None
            self._keeps = False
            self._finalizer.detach()
            _finish(self._pool, self._ahead, False, self._uploads)
            raise
        self._progress.advance(position)
        return batch

    def __len__(self) -> int:
        return len(self._loader)

    def close(self) -> None:
        """End the pass here; `state_dict()` of the loader still says where it was."""
        self._finalizer()


def _finish(
    pool: Any, ahead: DevicePrefetch | None, keeps: bool, uploads: base.Uploads | None
) -> None:
    if ahead is not None:
        ahead.stop()
    if not keeps:
        pool.close()
    if ahead is not None:
        ahead.close()
    if uploads is not None:
        uploads.close()

"""Making one batch: what runs in a worker, or in the caller where there are no workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from everygrad.core.tensor import wrap
from everygrad.data.collate import Batch, allocator, default_collate
from everygrad.data.dataset import TensorDataset
from everygrad.errors import ArgumentError, OutOfRangeError

END = object()  # an iterable dataset has no more items
_BEFORE = 1 << 62  # what an iterable dataset draws before its first item


class Job(NamedTuple):
    """What every worker of a loader does."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batch_size: int | None  # of an iterable dataset; None: items one by one
    drop_last: bool
    iterable: bool
    batched: bool  # the indices of a map-style dataset come as lists


class Seeds(Protocol):
    """Puts the random streams at the beginning of one batch's."""

    def __call__(self, *numbers: int) -> None: ...


def _nowhere(place: int) -> None:
    """Progress that nobody watches."""


class Fetcher(Protocol):
    """Makes the batches of one worker."""

    def fetch(self, number: int, indices: Any) -> Any: ...

    def state(self) -> Any: ...


def fetcher(
    job: Job,
    seeds: Seeds,
    seed: int,
    worker: int,
    resume: Any = None,
    progress: Callable[[int], None] = _nowhere,
) -> Fetcher:
    """The fetcher for one pass over the dataset."""
    if job.iterable:
        return _FromIterable(job, seeds, seed, worker, resume, progress)
    return _FromMap(job, seeds, seed, progress)


class _FromMap:
    def __init__(self, job: Job, seeds: Seeds, seed: int, progress: Callable[[int], None]) -> None:
        self._job, self._seeds, self._seed, self._progress = job, seeds, seed, progress
        self._several = getattr(job.dataset, "__getitems__", None)
        self._streams = job.collate_fn is default_collate
        self._rows = type(job.dataset) is TensorDataset and self._streams

    def fetch(self, number: int, indices: Any) -> Any:
        job = self._job
        self._progress(0)
        self._seeds(self._seed, number)  # once: whoever fetches a batch fetches all of its items
        if not job.batched:
            return job.collate_fn(job.dataset[indices])
        if self._rows and all(t.device == "cpu" for t in job.dataset.tensors):
            return [_rows_of(t, indices) for t in job.dataset.tensors]
        if self._several is not None:
            items = self._several(indices)
            if len(items) != len(indices):
                raise ArgumentError(
                    f"{type(job.dataset).__name__}.__getitems__: {len(indices)} indices, "
                    f"{len(items)} items"
                )
        elif self._streams and len(indices):
            batch = Batch(len(indices))
            for place, index in enumerate(indices):
                self._progress(place)
                batch.add(job.dataset[index])
            return batch.finish()
        else:
            items = []
            for place, index in enumerate(indices):
                self._progress(place)
                items.append(job.dataset[index])
        self._progress(len(indices))
        return job.collate_fn(items)

    def state(self) -> Any:
        return None


def _rows_of(t: Any, indices: list[int]) -> Any:
    """The rows of a tensor, gathered at once into the memory of the batch."""
    values, at = t.detach().numpy(), np.array(indices, np.int64)
    if at.size and not (-len(values) <= at.min() and at.max() < len(values)):
        raise OutOfRangeError(f"TensorDataset: an index is outside its {len(values)} items")
    out = allocator.get()((len(at), *values.shape[1:]), values.dtype)
    return wrap(np.take(values, at % max(len(values), 1), 0, out, mode="clip"))


class _FromIterable:
    def __init__(
        self,
        job: Job,
        seeds: Seeds,
        seed: int,
        worker: int,
        resume: Any,
        progress: Callable[[int], None],
    ) -> None:
        self._job, self._seeds, self._seed, self._worker = job, seeds, seed, worker
        self._progress = progress
        self._count = 0  # items so far
        seeds(seed, worker, _BEFORE)
        resume = resume or {}
        state = resume.get("dataset")
        if state is not None and _has_state(job.dataset):
            job.dataset.load_state_dict(state)
        self._items: Iterator[Any] = iter(job.dataset)
        self._source: Any = next((s for s in (self._items, job.dataset) if _has_state(s)), None)
        self._done = bool(resume.get("done"))
        items = int(resume.get("items", 0))
        if state is not None:
            if self._source is self._items:
                self._items.load_state_dict(state)  # type: ignore[attr-defined]
            self._count = items
        else:
            while self._count < items and self._next() is not END:
                pass

    def _next(self) -> Any:
        if self._count % (self._job.batch_size or 1) == 0:  # where a batch begins
            self._seeds(self._seed, self._worker, self._count)
        item = next(self._items, END)
        if item is END:
            self._done = True
        else:
            self._count += 1
        return item

    def fetch(self, number: int, indices: Any) -> Any:
        job = self._job
        if self._done:
            return END
        if job.batch_size is None:
            self._progress(0)
            item = self._next()
            return END if item is END else job.collate_fn(item)
        items: list[Any] = []
        while len(items) < job.batch_size:
            self._progress(len(items))
            if (item := self._next()) is END:
                break
            items.append(item)
        if not items or (job.drop_last and len(items) < job.batch_size):
            return END
        return job.collate_fn(items)

    def state(self) -> Any:
        """Where this worker stands after the last batch."""
        own = self._source.state_dict() if self._source is not None else None
        return {"items": self._count, "done": self._done, "dataset": own}


def _has_state(x: Any) -> bool:
    return hasattr(x, "state_dict") and hasattr(x, "load_state_dict")


def name_of_item(indices: Any, place: int, batched: bool) -> str:
    """What is being fetched at a place of a batch, in words."""
    if indices is None:
        return f"at place {place}"
    if not batched:
        return f"item {indices!r}"
    return f"item {indices[place]!r}" if place < len(indices) else "the collate_fn"

"""Samplers: in which order the items of a dataset come, and which make a batch.

A sampler that draws takes one seed from its generator for each pass, and everything else follows
from that seed: `state_dict()` is the seed of the pass under way, and after `load_state_dict` the
next pass is that one again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from importlib import import_module
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from everygrad.core.shapes import as_bool, as_int
from everygrad.core.tensor import Tensor
from everygrad.data.permutation import (
    integers_of,
    mixed,
    permutation_of,
    seed_from,
    units_of,
)
from everygrad.errors import ArgumentError
from everygrad.ops.random.generators import Generator

T_co = TypeVar("T_co", covariant=True)
_CHUNK = 1 << 16  # indices drawn with replacement at once


def positive(value: Any, owner: str, what: str) -> int:
    """An integer of 1 or more."""
    number = as_int(value, owner, what)
    if number < 1:
        raise ArgumentError(f"{owner}: {what} must be 1 or more, got {value!r}")
    return number


def loaded(owner: Any, state: Mapping[str, Any], *keys: str) -> None:
    """Refuse a state that is not one of `owner`."""
    if not isinstance(state, Mapping) or set(state) != set(keys):
        given = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ArgumentError(
            f"{type(owner).__name__}.load_state_dict: takes what its state_dict() gave, "
            f"{sorted(keys)}; got {given}"
        )


class Sampler(Generic[T_co]):
    """The order of items: subclasses write `__iter__`, and `__len__` where they know it.

    One with `state_dict()` and `load_state_dict()` is resumed by them; any other must give the
    same order when it is iterated again.

    >>> import everygrad as eg
    >>> class Backwards(eg.data.Sampler):
    ...     def __iter__(self): return iter([2, 1, 0])
    >>> [x.tolist() for x in eg.data.DataLoader([5, 6, 7], batch_size=3, sampler=Backwards())]
    [[7, 6, 5]]
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__}: write __iter__(self)")


class SequentialSampler(Sampler[int]):
    """Items from the first to the last.

    >>> import everygrad as eg
    >>> list(eg.data.SequentialSampler("abc"))
    [0, 1, 2]
    """

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class _Drawing(Sampler[Any]):
    """A sampler with one seed for each pass."""

    generator: Generator | None = None
    _seed: int | None = None  # of the pass under way, or of the last one
    _again: int | None = None  # a seed that was loaded: the next pass is that one

    def _next_seed(self) -> int:
        seed = seed_from(self.generator) if self._again is None else self._again
        self._seed, self._again = seed, None
        return seed

    def state_dict(self) -> dict[str, Any]:
        """The seed of the pass under way, and where the generator stands, if it has its own."""
        seed = self._seed if self._again is None else self._again
        g = self.generator
        return {"seed": seed, "generator": None if g is None else g.get_state().tolist()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Make the next pass the one of which this is the state."""
        loaded(self, state_dict, "seed", "generator")
        restore_generator(self.generator, state_dict["generator"], type(self).__name__)
        self._again = None if state_dict["seed"] is None else int(state_dict["seed"])


def restore_generator(generator: Generator | None, words: Any, owner: str) -> None:
    """Put a generator where it stood; without one there must have been none."""
    check_generator(generator, words, owner)
    if generator is not None:
        generator.set_state(np.array(words, np.uint32))


def check_generator(generator: Generator | None, words: Any, owner: str) -> None:
    """Refuse the state of a generator where there is none, and the other way round."""
    if (generator is None) != (words is None):
        had = "one" if generator is None else "none"
        raise ArgumentError(
            f"{owner}.load_state_dict: was saved with {had} as its generator; make it alike"
        )


def between_passes(state: Any) -> Any:
    """The state of a sampler whose pass has ended: the next one draws a seed of its own."""
    if not isinstance(state, dict):
        return state
    if set(state) == {"seed", "generator"}:
        return {**state, "seed": None}
    return {k: between_passes(v) for k, v in state.items()}


class RandomSampler(_Drawing):
    """Items in random order, or with `replacement` each drawn from all of them.

    >>> import everygrad as eg
    >>> sorted(eg.data.RandomSampler(range(4), generator=eg.Generator(1)))
    [0, 1, 2, 3]
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = as_bool(replacement, "RandomSampler", "replacement")
        self._num_samples = num_samples
        if num_samples is not None:
            positive(num_samples, "RandomSampler", "num_samples")
        self.generator = generator

    @property
    def num_samples(self) -> int:
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        return self._order(self._next_seed(), len(self.data_source), self.num_samples)

    def _order(self, seed: int, count: int, wanted: int) -> Iterator[int]:
        if count == 0 and wanted:
            raise ArgumentError("RandomSampler: the dataset has no items to draw from")
        done, turn = 0, 0
        while done < wanted:
            here = mixed(seed, turn)
            if self.replacement:
                part = integers_of(here, min(_CHUNK, wanted - done), count)
            else:
                part = permutation_of(count, here)[: wanted - done]
            yield from part.tolist()
            done, turn = done + len(part), turn + 1

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(_Drawing):
    """Some indices in random order.

    >>> import everygrad as eg
    >>> sorted(eg.data.SubsetRandomSampler([5, 7, 9]))
    [5, 7, 9]
    """

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = permutation_of(len(self.indices), self._next_seed()).tolist()
        return (self.indices[i] for i in order)

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(_Drawing):
    """Indices drawn in proportion to `weights`, which need not sum to 1.

    >>> import everygrad as eg
    >>> list(eg.data.WeightedRandomSampler([0.0, 3.0, 0.0], num_samples=4))
    [1, 1, 1, 1]
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        name = "WeightedRandomSampler"
        given = weights.numpy() if isinstance(weights, Tensor) else weights
        self.weights = np.asarray(given).astype(np.float64)
        self.num_samples = positive(num_samples, name, "num_samples")
        self.replacement = as_bool(replacement, name, "replacement")
        self.generator = generator
        w = self.weights
        if w.ndim != 1 or not np.isfinite(w).all() or (w < 0).any() or not w.sum() > 0:
            raise ArgumentError(
                f"{name}: weights must be one row of numbers that are finite, not negative and "
                f"not all 0, got shape {w.shape}"
            )
        if not self.replacement and num_samples > np.count_nonzero(w):
            raise ArgumentError(
                f"{name}: {num_samples} samples without replacement from "
                f"{np.count_nonzero(w)} items of positive weight; use replacement=True"
            )

    def __iter__(self) -> Iterator[int]:
        seed = self._next_seed()
        if self.replacement:
            sums = np.cumsum(self.weights)
            drawn = units_of(seed, self.num_samples) * sums[-1]
            last = int(np.flatnonzero(self.weights)[-1])
            chosen = np.minimum(np.searchsorted(sums, drawn, side="right"), last)
        else:
            # the smallest of exponential waiting times, each with its weight for a rate
            with np.errstate(divide="ignore"):
                waits = -np.log1p(-units_of(seed, len(self.weights))) / self.weights
            waits[self.weights == 0] = np.inf
            chosen = np.argsort(waits, kind="stable")[: self.num_samples]
        return iter(chosen.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[Any]]):
    """The indices of a sampler in lists of `batch_size`.

    >>> import everygrad as eg
    >>> list(eg.data.BatchSampler(range(5), batch_size=2, drop_last=False))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        self.sampler = sampler
        self.batch_size = positive(batch_size, "BatchSampler", "batch_size")
        self.drop_last = as_bool(drop_last, "BatchSampler", "drop_last")

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]  # a sampler without one says so itself
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The state of the sampler inside."""
        state = getattr(self.sampler, "state_dict", None)
        return {"sampler": None if state is None else state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        loaded(self, state_dict, "sampler")
        load = getattr(self.sampler, "load_state_dict", None)
        if (load is None) != (state_dict["sampler"] is None):
            raise ArgumentError(
                "BatchSampler.load_state_dict: the state is of one with another kind of sampler"
            )
        if load is not None:
            load(state_dict["sampler"])


class BucketBatchSampler(_Drawing):
    """Batches of items of similar length, so that little padding is needed; the batches themselves
    come in random order.

    Items are shuffled, sorted by length within buckets of `bucket_size` batches, and cut into
    batches. `max_tokens` bounds a batch by its longest length times its items instead of, or
    together with, `batch_size`.

    >>> import everygrad as eg
    >>> lengths = [9, 1, 8, 2, 9, 1]
    >>> batches = eg.data.BucketBatchSampler(lengths, batch_size=2, generator=eg.Generator(0))
    >>> sorted(sorted(lengths[i] for i in b) for b in batches)
    [[1, 1], [2, 8], [9, 9]]
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int | None = None,
        drop_last: bool = False,
        *,
        max_tokens: int | None = None,
        bucket_size: int = 100,
        shuffle: bool = True,
        generator: Generator | None = None,
    ) -> None:
        name = "BucketBatchSampler"
        if batch_size is None and max_tokens is None:
            raise ArgumentError(f"{name}: give batch_size, max_tokens or both")
        self.lengths = np.asarray(lengths).astype(np.int64)
        if self.lengths.ndim != 1 or (self.lengths < 0).any():
            raise ArgumentError(f"{name}: lengths must be one row of numbers that are 0 or more")
        self.batch_size = None if batch_size is None else positive(batch_size, name, "batch_size")
        self.max_tokens = None if max_tokens is None else positive(max_tokens, name, "max_tokens")
        longest = int(self.lengths.max(initial=0))
        if self.max_tokens is not None and longest > self.max_tokens:
            raise ArgumentError(f"{name}: an item of length {longest} exceeds {max_tokens=}")
        self.bucket_size = positive(bucket_size, name, "bucket_size")
        self.drop_last = as_bool(drop_last, name, "drop_last")
        self.shuffle = as_bool(shuffle, name, "shuffle")
        self.generator = generator
        self._batches: tuple[int | None, list[list[int]]] | None = None  # of which seed

    def __iter__(self) -> Iterator[list[int]]:
        seed = self._next_seed() if self.shuffle else None
        self._batches = (seed, self._cut(seed))
        return iter(self._batches[1])

    def _cut(self, seed: int | None) -> list[list[int]]:
        count = len(self.lengths)
        order = np.arange(count) if seed is None else permutation_of(count, mixed(seed, 0))
        bucket = self.bucket_size * (self.batch_size or 64)
        if seed is None:
            bucket = max(count, 1)
        batches: list[list[int]] = []
        rest: list[int] = []
        for begin in range(0, count, bucket):
            part = order[begin : begin + bucket]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            rest = self._fill(rest + part.tolist(), batches)
        if rest and not (self.drop_last and self.batch_size and len(rest) < self.batch_size):
            batches.append(rest)
        if seed is None:
            return batches
        return [batches[i] for i in permutation_of(len(batches), mixed(seed, 1)).tolist()]

    def _fill(self, indices: list[int], batches: list[list[int]]) -> list[int]:
        """Append full batches of these indices; returns what is left for the next bucket."""
        batch: list[int] = []
        longest = 0
        for i in indices:
            widest = max(longest, int(self.lengths[i]))
            too_wide = self.max_tokens is not None and widest * (len(batch) + 1) > self.max_tokens
            if batch and (too_wide or len(batch) == self.batch_size):
                batches.append(batch)
                batch, widest = [], int(self.lengths[i])
            batch.append(i)
            longest = widest
        return batch

    def __len__(self) -> int:
        if self.max_tokens is None and self.batch_size is not None:
            count = len(self.lengths)
            return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        if self._batches is None:
            raise TypeError("len: with max_tokens the number of batches is known once iterated")
        return len(self._batches[1])


class DistributedSampler(Sampler[int]):
    """The part of a dataset that one of several processes trains on.

    num_replicas, rank  how many there are, and which this is: unless given, as in `eg.distributed`

    Call `set_epoch` before each epoch for another order. Every rank gets the same number of items:
    the last ones are dropped, or the first ones come twice.

    >>> import everygrad as eg
    >>> list(eg.data.DistributedSampler(range(5), num_replicas=2, rank=1, shuffle=False))
    [1, 3, 0]
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        name = "DistributedSampler"
        if num_replicas is None or rank is None:
            # loads what programs on one process do without
            here = import_module("everygrad.distributed.world").world()
            num_replicas = here.size if num_replicas is None else num_replicas
            rank = here.rank if rank is None else rank
        self.dataset = dataset
        self.num_replicas = positive(num_replicas, name, "num_replicas")
        self.rank = as_int(rank, name, "rank")
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(
                f"{name}: rank must be from 0 to {self.num_replicas - 1}, got {rank}"
            )
        self.shuffle = as_bool(shuffle, name, "shuffle")
        self.drop_last = as_bool(drop_last, name, "drop_last")
        self.seed = as_int(seed, name, "seed")
        self.epoch = 0
        count = len(dataset)
        spare = self.drop_last and count % self.num_replicas
        self.num_samples = (
            count // self.num_replicas if spare else math.ceil(count / self.num_replicas)
        )
        self.total_size = self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this epoch; every rank must say the same."""
        self.epoch = as_int(epoch, "DistributedSampler.set_epoch", "epoch")

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        if self.shuffle:
            order = permutation_of(count, mixed(self.seed, self.epoch))
        else:
            order = np.arange(count)
        if count:
            order = np.resize(order, self.total_size)  # repeats from the front, or cuts
        return iter(order[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return self.num_samples

    def state_dict(self) -> dict[str, Any]:
        """The epoch whose order is in use."""
        return {"epoch": self.epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        loaded(self, state_dict, "epoch")
        self.set_epoch(state_dict["epoch"])

"""Datasets: what has items by number, and what yields them one after the other."""

from __future__ import annotations

import bisect
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from everygrad.core.shapes import as_int
from everygrad.core.tensor import Tensor
from everygrad.data.permutation import permutation_of, seed_from
from everygrad.errors import ArgumentError, OutOfRangeError, ShapeError
from everygrad.ops.python.creation import asarray
from everygrad.ops.random.generators import Generator

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """Items by number: subclasses write `__getitem__`, and `__len__` where they know it.

    A `__getitems__(indices)` that returns a list of items is used for a whole batch where a class
    has one.

    >>> import everygrad as eg
    >>> class Squares(eg.data.Dataset):
    ...     def __getitem__(self, i): return i * i
    ...     def __len__(self): return 4
    >>> [x.tolist() for x in eg.data.DataLoader(Squares(), batch_size=2)]
    [[0, 1], [4, 9]]
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__}: write __getitem__(self, index)")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co], Iterable[T_co]):
    """Items one after the other: subclasses write `__iter__`.

    Every worker iterates over a copy: `get_worker_info()` says which part is its own. An iterator,
    or a dataset, with `state_dict()` and `load_state_dict()` is resumed by them, any other by
    skipping what was already seen.

    >>> import everygrad as eg
    >>> class Count(eg.data.IterableDataset):
    ...     def __iter__(self): return iter(range(3))
    >>> [x.tolist() for x in eg.data.DataLoader(Count(), batch_size=2)]
    [[0, 1], [2]]
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__}: write __iter__(self)")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:  # type: ignore[override]  # PyTorch's
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Any, ...]]):
    """Rows of tensors or NumPy arrays that have the same first size.

    >>> import everygrad as eg
    >>> eg.data.TensorDataset(eg.arange(3), eg.arange(3) * 2)[1]
    (tensor(1), tensor(2))
    """

    def __init__(self, *tensors: Any) -> None:
        if not tensors:
            raise ArgumentError("TensorDataset: takes at least one tensor")
        self.tensors = tuple(t if isinstance(t, Tensor) else asarray(t) for t in tensors)
        sizes = [t.shape[0] if t.ndim else None for t in self.tensors]
        if None in sizes or len({*sizes}) > 1:
            shapes = ", ".join(str(t.shape) for t in self.tensors)
            raise ShapeError(f"TensorDataset: the first sizes must be the same, got {shapes}")

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(t[index] for t in self.tensors)

    def __len__(self) -> int:
        return self.tensors[0].shape[0]


class StackDataset(Dataset[Any]):
    """Items of several datasets side by side, as a tuple or, given names, as a dict.

    >>> import everygrad as eg
    >>> eg.data.StackDataset(x=[1, 2], y=[3, 4])[1]
    {'x': 2, 'y': 4}
    """

    datasets: tuple[Any, ...] | dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError(
                "StackDataset: takes datasets either by position (items are tuples) or by name "
                "(items are dicts)"
            )
        self.datasets = args or kwargs
        lengths = {len(d) for d in args or kwargs.values()}
        if len(lengths) > 1:
            raise ShapeError(f"StackDataset: the datasets have different lengths {sorted(lengths)}")
        self._length = lengths.pop()

    def __getitem__(self, index: Any) -> Any:
        if isinstance(self.datasets, dict):
            return {name: d[index] for name, d in self.datasets.items()}
        return tuple(d[index] for d in self.datasets)

    def __len__(self) -> int:
        return self._length


class Subset(Dataset[T_co]):
    """The items of a dataset at some indices.

    >>> import everygrad as eg
    >>> list(eg.data.Subset("abcd", [3, 1]))
    ['d', 'b']
    """

    def __init__(self, dataset: Any, indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> T_co:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        several = getattr(self.dataset, "__getitems__", None)
        if several is not None:
            return several([self.indices[i] for i in indices])
        return [self.dataset[self.indices[i]] for i in indices]

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T_co]):
    """Several datasets, one behind the other.

    >>> import everygrad as eg
    >>> joined = eg.data.ConcatDataset(["ab", "cde"])
    >>> len(joined), joined[2], joined[-1]
    (5, 'c', 'e')
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("ConcatDataset: takes at least one dataset, got none")
        for d in self.datasets:
            if isinstance(d, IterableDataset):
                raise ArgumentError(
                    f"ConcatDataset: {type(d).__name__} is an IterableDataset, which has no items "
                    f"by number; use ChainDataset"
                )
        self.cumulative_sizes = list(accumulate(len(d) for d in self.datasets))

    def __getitem__(self, index: int) -> T_co:
        count = len(self)
        if not -count <= index < count:
            raise OutOfRangeError(f"ConcatDataset: index {index} is outside its {count} items")
        place = index % count
        which = bisect.bisect_right(self.cumulative_sizes, place)
        return self.datasets[which][place - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """Several iterable datasets, one after the other.

    >>> import everygrad as eg
    >>> class Count(eg.data.IterableDataset):
    ...     def __iter__(self): return iter(range(2))
    >>> list(eg.data.ChainDataset([Count(), Count()]))
    [0, 1, 0, 1]
    """

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        for d in self.datasets:
            if not isinstance(d, IterableDataset):
                raise ArgumentError(
                    f"ChainDataset: takes IterableDatasets, got {type(d).__name__}; "
                    f"use ConcatDataset for items by number"
                )

    def __iter__(self) -> Iterator[Any]:
        for d in self.datasets:
            yield from d

    def __len__(self) -> int:
        return sum(len(d) for d in self.datasets)


def random_split(
    dataset: Any, lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[Any]]:
    """Subsets without common items, of these lengths or fractions, in random order.

    >>> import everygrad as eg
    >>> parts = eg.data.random_split(range(10), [0.7, 0.3], eg.Generator(0))
    >>> [len(p) for p in parts], sorted(parts[0].indices + parts[1].indices) == list(range(10))
    ([7, 3], True)
    """
    sizes = _sizes(len(dataset), lengths)
    order = permutation_of(len(dataset), seed_from(generator)).tolist()
    ends = [*accumulate(sizes)]
    return [Subset(dataset, order[end - n : end]) for n, end in zip(sizes, ends, strict=True)]


def _sizes(count: int, lengths: Sequence[int | float]) -> list[int]:
    given = list(lengths)
    if any(isinstance(n, float) for n in given) and math.isclose(sum(given), 1.0, abs_tol=1e-9):
        if any(not 0.0 <= n <= 1.0 for n in given):
            raise ArgumentError(f"random_split: fractions lie between 0 and 1, got {given}")
        sizes = [math.floor(count * n) for n in given]
        for i in range(count - sum(sizes)):  # what rounding left over, one by one from the front
            sizes[i % len(sizes)] += 1
        for i, n in enumerate(sizes):
            if n == 0:
                warnings.warn(f"random_split: part {i} of {given} is empty", stacklevel=3)
        return sizes
    sizes = [as_int(n, "random_split", "a length") for n in given]
    if any(n < 0 for n in sizes) or sum(sizes) != count:
        raise ArgumentError(
            f"random_split: lengths must sum to the dataset's {count} items (or be fractions that "
            f"sum to 1), got {given}"
        )
    return sizes

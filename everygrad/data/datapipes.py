"""Data pipes: datasets that read from datasets, written as a chain of calls.

PyTorch's base classes and decorators, and the pipes that most chains are made of: `map`, `filter`,
`batch`, `unbatch`, `collate`, `shuffle`, `zip`, `concat` and `sharding_filter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar

from everygrad.data.collate import default_collate
from everygrad.data.dataset import Dataset, IterableDataset
from everygrad.data.permutation import integers_of, mixed, permutation_of, seed_from
from everygrad.data.pipe_validation import check_deterministic
from everygrad.data.sampler import positive
from everygrad.data.workers.worker_info import get_worker_info, here
from everygrad.errors import ArgumentError

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound=type)


class _Functional:
    """Other pipes as methods: `pipe.map(f)` is `Mapper(pipe, f)`."""

    functions: ClassVar[dict[str, Callable[..., Any]]]

    def __getattr__(self, name: str) -> Any:
        make = type(self).functions.get(name)
        if make is None:
            known = ", ".join(sorted(type(self).functions))
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; the pipes by name are {known}"
            )
        return lambda *args, **kwargs: make(self, *args, **kwargs)

    @classmethod
    def register_function(cls, name: str, function: Callable[..., Any]) -> None:
        """Make `function(pipe, ...)` callable as `pipe.name(...)`."""
        cls.functions[name] = function

    @classmethod
    def register_datapipe_as_function(cls, name: str, made: Callable[..., Any]) -> None:
        """Make a pipe callable by a name; each name is given once."""
        if name in cls.functions:
            raise ArgumentError(f"functional_datapipe: there is a pipe {name!r} already")
        cls.functions[name] = made


class IterDataPipe(_Functional, IterableDataset[T_co]):
    """A pipe that is iterated over: subclasses write `__iter__`.

    >>> import everygrad as eg
    >>> pipe = eg.data.IterableWrapper(range(6)).filter(lambda n: n % 2).map(lambda n: n * 10)
    >>> list(pipe)
    [10, 30, 50]
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}


class MapDataPipe(_Functional, Dataset[T_co]):
    """A pipe with items by number: subclasses write `__getitem__` and `__len__`.

    >>> import everygrad as eg
    >>> pipe = eg.data.SequenceWrapper([1, 2, 3]).map(lambda n: n * 10)
    >>> len(pipe), pipe[2]
    (3, 30)
    """

    functions: ClassVar[dict[str, Callable[..., Any]]] = {}


class DataChunk(list[Any]):
    """The items of a batch in a pipe.

    >>> import everygrad as eg
    >>> eg.data.DataChunk([1, 2]).as_str()
    '[1, 2]'
    """

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.items = list(self)

    def as_str(self, indent: str = "") -> str:
        return f"{indent}[{', '.join(map(str, self))}]"

    def raw_iterator(self) -> Iterator[Any]:
        return iter(self.items)


class functional_datapipe:  # noqa: N801  # PyTorch's name
    """A decorator that makes a pipe callable as a method of all pipes of its kind.

    >>> import everygrad as eg
    >>> @eg.data.functional_datapipe("twice")
    ... class Twice(eg.data.IterDataPipe):
    ...     def __init__(self, source): self.source = source
    ...     def __iter__(self): return (x for x in self.source for _ in range(2))
    >>> list(eg.data.IterableWrapper("ab").twice())
    ['a', 'a', 'b', 'b']
    """

    def __init__(self, name: str, enable_df_api_tracing: bool = False) -> None:
        self._name = name

    def __call__(self, made: P) -> P:
        for kind in (IterDataPipe, MapDataPipe):
            if isinstance(made, type) and issubclass(made, kind):
                kind.register_datapipe_as_function(self._name, made)
                return made
        raise ArgumentError(f"functional_datapipe: takes a class of pipes, got {made!r}")


# --- iterated pipes -------------------------------------------------------------------------------


class IterableWrapper(IterDataPipe[Any]):
    """Any iterable as a pipe.

    >>> import everygrad as eg
    >>> list(eg.data.IterableWrapper("ab"))
    ['a', 'b']
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def __len__(self) -> int:
        return len(self.iterable)  # type: ignore[arg-type]  # one without a length says so itself


@functional_datapipe("map")
class _Mapper(IterDataPipe[Any]):
    def __init__(self, source: Any, fn: Callable[[Any], Any]) -> None:
        self.source, self.fn = source, fn

    def __iter__(self) -> Iterator[Any]:
        return map(self.fn, self.source)

    def __len__(self) -> int:
        return len(self.source)


@functional_datapipe("filter")
class _Filter(IterDataPipe[Any]):
    def __init__(self, source: Any, filter_fn: Callable[[Any], Any]) -> None:
        self.source, self.filter_fn = source, filter_fn

    def __iter__(self) -> Iterator[Any]:
        return filter(self.filter_fn, self.source)


@functional_datapipe("batch")
class _Batcher(IterDataPipe[Any]):
    def __init__(self, source: Any, batch_size: int, drop_last: bool = False) -> None:
        self.source, self.drop_last = source, drop_last
        self.batch_size = positive(batch_size, "batch", "batch_size")

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.source)
        while batch := DataChunk(islice(items, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        count = len(self.source)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


@functional_datapipe("unbatch")
class _UnBatcher(IterDataPipe[Any]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        for batch in self.source:
            yield from batch


@functional_datapipe("collate")
class _Collator(_Mapper):
    def __init__(self, source: Any, collate_fn: Callable[[Any], Any] = default_collate) -> None:
        super().__init__(source, collate_fn)


@functional_datapipe("shuffle")
class _Shuffler(IterDataPipe[Any]):
    """Items drawn from a buffer of the next ones; all workers of a loader draw the same order, so
    that a `sharding_filter` behind it divides the items among them."""

    def __init__(self, source: Any, buffer_size: int = 10000) -> None:
        check_deterministic(_Shuffler, seeded=True)
        self.source = source
        self.buffer_size = positive(buffer_size, "shuffle", "buffer_size")

    def __iter__(self) -> Iterator[Any]:
        return self._drawn(here.pass_seed if here.pass_seed is not None else seed_from(None))

    def _drawn(self, seed: int) -> Iterator[Any]:
        buffer: list[Any] = []
        for turn, item in enumerate(self.source):
            buffer.append(item)
            if len(buffer) == self.buffer_size:
                place = int(integers_of(mixed(seed, turn), 1, len(buffer))[0])
                buffer[place], buffer[-1] = buffer[-1], buffer[place]
                yield buffer.pop()
        for place in permutation_of(len(buffer), mixed(seed, -1)).tolist():
            yield buffer[place]

    def __len__(self) -> int:
        return len(self.source)


@functional_datapipe("zip")
class _Zipper(IterDataPipe[Any]):
    def __init__(self, *sources: Any) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.sources, strict=False)

    def __len__(self) -> int:
        return min(len(s) for s in self.sources)


@functional_datapipe("concat")
class _Concater(IterDataPipe[Any]):
    def __init__(self, *sources: Any) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[Any]:
        for source in self.sources:
            yield from source

    def __len__(self) -> int:
        return sum(len(s) for s in self.sources)


@functional_datapipe("sharding_filter")
class _ShardingFilter(IterDataPipe[Any]):
    """The items that belong to this worker: every n-th of them."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return islice(iter(self.source), first, None, step)


# --- pipes by number ------------------------------------------------------------------------------


class SequenceWrapper(MapDataPipe[Any]):
    """Any sequence as a pipe.

    >>> import everygrad as eg
    >>> eg.data.SequenceWrapper("abc")[1]
    'b'
    """

    def __init__(self, sequence: Any) -> None:
        self.sequence = sequence

    def __getitem__(self, index: Any) -> Any:
        return self.sequence[index]

    def __len__(self) -> int:
        return len(self.sequence)


@functional_datapipe("map")
class _MapMapper(MapDataPipe[Any]):
    def __init__(self, source: Any, fn: Callable[[Any], Any]) -> None:
        self.source, self.fn = source, fn

    def __getitem__(self, index: Any) -> Any:
        return self.fn(self.source[index])

    def __len__(self) -> int:
        return len(self.source)


@functional_datapipe("zip")
class _MapZipper(MapDataPipe[Any]):
    def __init__(self, *sources: Sequence[Any]) -> None:
        self.sources = sources

    def __getitem__(self, index: Any) -> Any:
        return tuple(s[index] for s in self.sources)

    def __len__(self) -> int:
        return min(len(s) for s in self.sources)

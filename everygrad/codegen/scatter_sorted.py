"""Scatter-adds by sorting: equal targets become neighbours, and are summed one after the other.
Atomic additions of floats would change their order, and with it the last digits, from run to run.

Keys of 8 bytes have the target in their upper half and the position among the indices in the lower
one, which breaks ties. A bitonic network sorts them: groups sort chunks in shared memory, steps
between keys further apart go over all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from everygrad import dtypes
from everygrad.codegen.copy import Axes, Lowered, each, finished, groups_for, split
from everygrad.codegen.gather import Indices
from everygrad.codegen.kernel import Buffer, Builder, logical_and, where
from everygrad.codegen.machine import Machine
from everygrad.codegen.scatter import Scatter, summed
from everygrad.compiler.expr import Expr, call
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import DType

_NONE = (1 << 64) - 1  # the key of padding and of bad indices: they sort last
_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")  # of a group that sums whole slices
_CROWDED = 4  # indices for each target, above which more threads share them
_MOST_GROUPS = (1 << 31) - 1


def capacity_for(pairs: int, machine: Machine) -> int:
    """Room for so many keys: whole chunks, and a power of two."""
    return max(machine.sorted_keys, 1 << (pairs - 1).bit_length())


@lru_cache(maxsize=1024)
def write_keys(what: Scatter, capacity: int, machine: Machine, number: int = 0) -> Lowered:
    """Buffers: index, keys."""
    x, index, _, axis, whole = what
    picks, pairs = Axes("index", index.shape, index.strides), size_of(index.shape)
    index_dtype = machine.index_for(capacity, what.targets, picks.reach)
    b = Builder("scatter_keys", index_dtype, groups_for(machine, capacity), machine.threads)
    named = b.buffer("index", index.dtype, picks.reach)
    keys = b.buffer("keys", dtypes.uint64, capacity, written=True)
    count = b.symbol(pairs)
    checked = machine._replace(checks_apart=False)
    size = b.symbol(x.shape[axis])
    indices = None if machine.checks_apart else Indices(b, checked, named, x.shape[axis], number)
    with each(b, machine, capacity) as at:
        key = b.variable(_NONE, dtypes.uint64)
        with b.when(at < count):
            where_ = split(b, at, index.shape)
            place = picks.place_of(b, at, where_)
            if indices is None:
                value = b.let(b.load(named, place).cast(dtypes.uint64), dtypes.uint64)
                inside, k = value < size.cast(dtypes.uint64), b.let(value.cast(b.index))
            else:
                found = indices.read(place)
                assert found.inside is not None
                inside, k = found.inside, b.let(found.value)
            target: Expr = k
            if not whole:
                moved = [k if a == axis else w for a, w in enumerate(where_)]
                target = Expr("const", (), 0)
                for n, w in zip(x.shape, moved, strict=True):
                    target = target * b.symbol(n) + w
            with b.when(inside):
                high = call("shl", b.let(target).cast(dtypes.uint64), 32)
                b.assign(key, call("or", high, at.cast(dtypes.uint64)))
        b.store(keys, at, key)
    return finished(b, picks, None)


# --- sorting -------------------------------------------------------------------------------------


def _lower(b: Builder, t: Expr, d: Expr) -> Expr:
    """The first of the t-th pair of elements that lie `d`, a power of two, apart."""
    low = b.let(call("and", t, d - 1))
    return b.let(call("or", call("shl", call("xor", t, low), 1), low))


@lru_cache(maxsize=64)
def sort_chunks(capacity: int, first: bool, size: int, machine: Machine) -> Lowered:
    """Groups sort (`first`) chunks of keys, or merge what lies less than a chunk apart in runs of
    `size`. Buffer: keys."""
    chunk, threads = machine.sorted_keys, machine.sorting_threads
    stages = chunk.bit_length() - 1
    b = Builder("scatter_sort", machine.index_for(capacity), capacity // chunk, threads)
    keys = b.buffer("keys", dtypes.uint64, capacity, written=True, held=True)
    shared = b.local("held", dtypes.uint64, chunk)
    run = None if first else b.symbol(size)
    start = b.let(b.group * chunk)
    with b.loop(b.thread, chunk, threads) as i:
        b.store(shared, i, b.load(keys, start + i))

    def merge(length: Expr, span: Expr | int, steps: Expr | int) -> None:
        with b.loop(0, steps) as step:
            d = b.let(call("max", call("shr", span, step + 1), 1))
            b.barrier()
            with b.loop(b.thread, chunk // 2, threads) as t:
                i = _lower(b, t, d)
                j = b.let(call("or", i, d))
                _exchange(b, shared, i, j, b.let(start + i), length)

    if run is None:
        with b.loop(1, stages + 1) as stage:
            length = b.let(call("shl", 1, stage))
            merge(length, length, stage)
    else:
        merge(run, chunk, stages)
    b.barrier()
    with b.loop(b.thread, chunk, threads) as i:
        b.store(keys, start + i, b.load(shared, i))
    return finished(b, None)


def _exchange(b: Builder, keys: Buffer, i: Expr, j: Expr, at: Expr, length: Expr) -> None:
    """Bring two keys into order: upwards in every other run of `length`."""
    up = call("eq", call("and", at, length), 0)
    one, other = b.load(keys, i), b.load(keys, j)
    with b.when(call("eq", call("gt", one, other), up)):
        b.store(keys, i, other)
        b.store(keys, j, one)


@lru_cache(maxsize=1024)
def sort_step(capacity: int, size: int, distance: int, machine: Machine) -> Lowered:
    """One step of the network between keys that are further apart than a chunk. Buffer: keys."""
    half = capacity // 2
    groups = groups_for(machine, half)
    b = Builder("scatter_step", machine.index_for(capacity), groups, machine.threads)
    keys = b.buffer("keys", dtypes.uint64, capacity, written=True, held=True)
    length, d = b.symbol(size), b.symbol(distance)
    with each(b, machine, half) as t:
        i = _lower(b, t, d)
        _exchange(b, keys, i, b.let(call("or", i, d)), i, length)
    return finished(b, None)


def sorting(capacity: int, machine: Machine) -> list[Lowered]:
    """Kernels that sort keys in place."""
    made = [sort_chunks(capacity, True, 0, machine)]
    size = 2 * machine.sorted_keys
    while size <= capacity:
        d = size // 2
        while d >= machine.sorted_keys:
            made.append(sort_step(capacity, size, d, machine))
            d //= 2
        made.append(sort_chunks(capacity, False, size, machine))
        size *= 2
    return made


# --- summing -------------------------------------------------------------------------------------


class _Sums:
    """Writes the kernel that adds what falls on each target to the result, which holds x. Keys are
    read as words: the position, then the target."""

    def __init__(
        self, name: str, what: Scatter, out: DType, pairs: int, capacity: int, machine: Machine
    ) -> None:
        x, _, source, axis, whole = what
        self.what, self.machine, self.kept = what, machine, summed(source.dtype)
        rest: Shape = (1,)
        if whole:
            behind = (*x.shape[:axis], *x.shape[axis + 1 :])
            steps = (*source.strides[:axis], *source.strides[axis + 1 :])
            rest, (steps,) = collapse(behind, [steps])
            self.adds = Axes("source", (*rest, pairs), (*steps, source.strides[axis]))
        else:
            self.adds = Axes("source", source.shape, source.strides)
        self.rest, self.columns = rest, size_of(rest)
        self.inner = size_of(x.shape[axis + 1 :]) if whole else 1
        total = size_of(x.shape)
        self.crowded = pairs > _CROWDED * what.targets
        self.across, self.beside, self.groups = self.threads(pairs)
        index_dtype = machine.index_for(
            2 * capacity, total, self.adds.reach, pairs * self.columns, self.groups
        )
        b = self.b = Builder(name, index_dtype, self.groups, self.group_threads())
        self.keys = b.buffer("keys", dtypes.uint32, 2 * capacity)
        self.source = b.buffer("source", source.dtype, self.adds.reach)
        self.out = b.buffer("out", out, total, written=True, held=True)
        self.pairs, self.last = b.symbol(pairs), b.symbol(pairs - 1)
        self.targets = b.symbol(what.targets)

    def threads(self, pairs: int) -> tuple[int, int, int]:
        """Threads across columns and beside each other on one target; groups."""
        machine, columns, crowded = self.machine, self.columns, self.crowded
        if machine.run_threads:
            across = _COLUMNS if self.what.whole else 1
            most = machine.threads if across == 1 else _COLUMNS
            beside = most if crowded else most // 8
            tiles = min(-(-columns // across), max(1, _MOST_GROUPS // pairs))
            return across, beside, pairs * tiles
        if not crowded:
            return 1, 1, groups_for(machine._replace(most_groups=0), pairs * columns)
        across = min(_COLUMNS, machine.threads // 2) if columns >= _COLUMNS else 1
        return across, machine.threads // across, self.what.targets * -(-columns // across)

    def group_threads(self) -> int:
        return self.across * self.beside if self.beside > 1 else self.machine.threads

    # --- parts -----------------------------------------------------------------------------------

    def target(self, q: Expr, guard: Expr | None = None) -> Expr:
        """The target of a key; that of padding is above all."""
        return self.b.load(self.keys, q * 2 + 1, guard)

    def value(self, q: Expr, coordinates: list[Expr | int]) -> Expr:
        """What falls on the target of a key, at the coordinates of a column."""
        b = self.b
        at = b.let(call("min", b.load(self.keys, q * 2).cast(b.index), self.last))
        if self.what.whole:
            place = self.adds.place(b, [*coordinates, at])
        else:
            place = self.adds.place_of(b, at, split(b, at, self.what.source.shape))
        return b.load(self.source, place).cast(self.kept)

    def add(self, target: Expr, column: Expr, total: Expr) -> None:
        b, place = self.b, target
        if self.what.whole:
            inner = b.symbol(self.inner)
            outer, behind = b.let(column // inner), b.let(column % inner)
            place = (outer * self.targets + target) * inner + behind
        at = b.let(place)
        was = b.load(self.out, at).cast(self.kept)
        b.store(self.out, at, (was + total).cast(self.out.dtype))

    def reduced(self, total: Expr) -> Callable[[], Expr]:
        """The sum over threads beside each other, for the first of them."""
        b, across = self.b, self.across
        part = b.local("part", self.kept, self.across * self.beside)
        b.store(part, b.thread, total)
        d = self.beside // 2
        while d:
            b.barrier()
            with b.when(b.thread < d * across):
                both = b.load(part, b.thread), b.load(part, b.thread + d * across)
                b.store(part, b.thread, both[0] + both[1])
            d //= 2
        return lambda: b.load(part, b.thread)

    def fresh(self, q: Expr, target: Expr) -> Expr:
        """Whether a key is the first of its target."""
        b = self.b
        before = self.target(q - 1, q > 0).cast(b.index)
        other = call("or", call("eq", q, 0), call("ne", before, target))
        return logical_and(call("lt", target, self.targets), other)

    # --- kernels ---------------------------------------------------------------------------------

    def finish(self) -> Lowered:
        if self.beside == 1:
            self.by_threads()
        elif self.machine.run_threads:
            self.by_runs()
        else:
            self.by_targets()
        return finished(self.b, None, self.adds, None)

    def by_threads(self) -> None:
        """A thread for each key and column; that of a target's first key sums all of its."""
        b = self.b
        wide = self.columns > 1
        count = b.symbol(self.columns)
        t = b.let(b.group * b.threads + b.thread)
        q = b.let(t // count) if wide else t
        column = b.let(t % count) if wide else b.let(0)
        with b.when(q < self.pairs):
            target = b.let(self.target(q).cast(b.index))
            with b.when(self.fresh(q, target)):
                coordinates = split(b, column, self.rest)
                total = b.variable(0, self.kept)
                with b.loop(q, self.pairs) as r:
                    b.leave(call("ne", self.target(r).cast(b.index), target))
                    b.assign(total, total + self.value(r, coordinates))
                self.add(target, column, total)

    def by_runs(self) -> None:
        """A group for each key and some columns; that of a target's first key sums all of its."""
        b = self.b
        tiles = self.groups // self.what_pairs()
        many = b.symbol(tiles)
        q, tile = b.let(b.group // many), b.let(b.group % many)
        target = b.let(self.target(q).cast(b.index))
        tx, ty = b.let(b.thread % self.across), b.let(b.thread // self.across)
        columns = b.symbol(self.columns)
        step = b.symbol(tiles * self.across)
        with b.when(self.fresh(q, target)), b.loop(tile * self.across, columns, step) as first:
            column = b.let(call("min", first + tx, columns - 1))
            coordinates = split(b, column, self.rest)
            total = b.variable(0, self.kept)
            with b.loop(q + ty, self.pairs, self.beside) as r:
                b.leave(call("ne", self.target(r).cast(b.index), target))
                b.assign(total, total + self.value(r, coordinates))
            found = self.reduced(total)
            with b.when(logical_and(call("eq", ty, 0), first + tx < columns)):
                self.add(target, column, found())
            b.barrier()

    def what_pairs(self) -> int:
        return size_of(self.what.indices.shape)

    def by_targets(self) -> None:
        """A group for each target and some columns: its threads share the target's keys."""
        b, across = self.b, self.across
        tiles = b.symbol(-(-self.columns // across))
        target, tile = b.let(b.group // tiles), b.let(b.group % tiles)
        tx, ty = b.let(b.thread % across), b.let(b.thread // across)
        columns = b.symbol(self.columns)
        own = b.let(tile * across + tx)
        column = b.let(call("min", own, columns - 1))
        coordinates = split(b, column, self.rest)
        steps = b.symbol(self.what_pairs().bit_length())
        first, end = self.first_of(target, steps), self.first_of(target + 1, steps)
        total = b.variable(0, self.kept)
        stop = b.let(call("min", end, self.pairs))
        with b.loop(first + ty, stop, self.beside) as q:
            b.assign(total, total + self.value(q, coordinates))
        found = self.reduced(total)
        whole = logical_and(call("eq", ty, 0), own < columns, call("lt", first, end))
        with b.when(whole):
            self.add(target, column, found())

    def first_of(self, target: Expr, steps: Expr) -> Expr:
        """The first key of this target or of one above, by bisection."""
        b = self.b
        low, high = b.variable(0, b.index), b.variable(self.pairs, b.index)
        with b.loop(0, steps):
            middle = b.let(low + (high - low) // 2)
            with b.when(logical_and(middle < self.pairs, call("lt", low, high))):
                below = b.let(self.target(middle).cast(b.index) < target, dtypes.bool_)
                b.assign(low, where(below, middle + 1, low))
                b.assign(high, where(below, high, middle))
        return low


@lru_cache(maxsize=1024)
def add_runs(name: str, what: Scatter, out: DType, capacity: int, machine: Machine) -> Lowered:
    """Buffers: keys as words, source, out, which holds x."""
    return _Sums(name, what, out, size_of(what.indices.shape), capacity, machine).finish()

"""The numbers that a device supplies to lowerings, which have no other way to know it."""

from __future__ import annotations

from typing import NamedTuple

from everygrad import dtypes
from everygrad.dtypes import DType


class Machine(NamedTuple):
    """`threads` of a group; 1 where groups are blocks of work for a processor's core.

    `wide_float` is what sums of floats are kept in; `parallel` how many threads keep the device
    busy: no more than a group has where a device is simulated, and barriers are what costs;
    `in_flight` how many independent chains of operations hide the latency of one.

    `warp`: threads that reduce without a barrier; 1: every reduction has one. `most_held`: elements
    of a row that a thread keeps in registers. `shared_bytes` are those of a group; `most_threads`:
    of a group that shares one long row, where that may have more. `vector_bytes`: of one load or
    store; None: four elements, whatever they are. `word`: bytes that have an address. `padded`:
    elements behind the last one may be read and written, so that vectors need not end with an
    array.

    `grain`: elements of a core's block of work. `most_groups`: no more groups are launched, and
    threads go through what is left; 0: any number. `checks_apart`: values are checked by kernels of
    their own, of which a compiled function drops repeated ones; `checks_before`: and a kernel that
    reads them does not run where one fails. `sorted_keys`: of 8 bytes, in shared memory,
    by a group of `sorting_threads`. `run_threads`: a whole group sums what falls on one target.
    `atomic_sums`: integers of these dtypes are added where they lie.
    """

    threads: int
    wide_float: DType
    narrow_index: DType  # while extents are below `narrow`
    narrow: int
    wide_index: DType | None  # beyond that; None: refused before
    parallel: int = 1
    in_flight: int = 1
    warp: int = 1
    most_held: int = 16
    shared_bytes: int = 1 << 14
    most_threads: int = 0
    vector_bytes: int | None = None
    word: int = 1
    padded: bool = False
    grain: int = 1 << 15
    most_groups: int = 0
    checks_apart: bool = False
    checks_before: bool = False
    sorted_keys: int = 1024
    sorting_threads: int = 256
    run_threads: bool = False
    atomic_sums: tuple[DType, ...] = ()

    def __hash__(self) -> int:
        """Of few fields: every launch looks for a kernel by its machine."""
        return hash((self.threads, self.narrow, self.vector_bytes))

    @property
    def is_simulated(self) -> bool:
        """Whether there are no threads to keep busy."""
        return self.parallel <= self.threads

    @property
    def busy_groups(self) -> int:
        return self.parallel // self.threads

    def index_for(self, *extents: int) -> DType:
        if max(extents, default=0) < self.narrow or self.wide_index is None:
            return self.narrow_index
        return self.wide_index

    def accumulator(self, dtype: DType) -> DType:
        """What sums and products of this dtype are kept in."""
        return self.wide_float if dtype.is_float else dtype

    def comparable(self, dtype: DType) -> DType:
        """What elements of this dtype are compared in: halves in float32, others as they are."""
        return dtypes.float32 if dtype.is_float and dtype.itemsize == 2 else dtype

    def vector_of(self, itemsize: int) -> int:
        """Elements of one load or store."""
        return 4 if self.vector_bytes is None else max(1, self.vector_bytes // itemsize)

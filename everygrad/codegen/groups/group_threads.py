"""How the threads of a workgroup share the rows and columns of a fused group.

A workgroup has `threads` threads in `row_groups` groups; each group has a row, and its `lanes`
threads share the row's columns. A lane takes `vector` neighbouring columns at a time. Short rows
stay in registers: each lane holds `held` such takes, so that nothing is read or computed twice.
Kernels loop over long rows, once for each pass. Rows without reductions may be cut into tiles of
columns, each for another workgroup; a group may process several rows, so that sums over rows
produce few partial sums.

The mapping depends on shapes and on numbers of the device alone, never on what else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from everygrad.codegen.machine import Machine
from everygrad.compiler.fuse import are_few
from everygrad.compiler.thresholds import edge

# members for each element that may be held: what a driver compiles quickly
MOST_TEXT = edge(__name__, "MOST_TEXT", 32, "count")
# takes of a row that a thread has before warps share the row
WARP_TAKES = edge(__name__, "WARP_TAKES", 4, "count")
# of what is read of a row by a thread of several warps, unless two takes are more
TAKEN = edge(__name__, "TAKEN", 32, "bytes")
# of so many threads that keep a device busy, those that sum columns beside rows: eighths
SUMMING = 3
# workgroups whose partial sums a second stage combines
MOST_PARTS = edge(__name__, "MOST_PARTS", 1024, "count")
# rows of a workgroup whose neighbours in memory are neighbours: whole cache lines
SIDE_BY_SIDE = edge(__name__, "SIDE_BY_SIDE", 16, "size")
# rows, or takes, that one workgroup processes rather than store partial sums
FEW_STEPS = edge(__name__, "FEW_STEPS", 32, "size")
# elements from which a thread of an elementwise kernel takes several vectors
LARGE = edge(__name__, "LARGE", 1 << 20, "elements")
# the same where the device is simulated
SIMULATED_LARGE = edge(__name__, "SIMULATED_LARGE", 1 << 14, "elements")
# takes from which a running sum is split, so that it keeps its digits
NEST = edge(__name__, "NEST", 128, "size")
# elements of a row that several groups share, where there are fewer rows than so many
LONG = edge(__name__, "LONG", 1 << 14, "size")
MANY = edge(__name__, "MANY", 256, "size")
# rows added one after the other: a longer sum would lose digits
LONGEST = edge(__name__, "LONGEST", 128, "size")


class ThreadMapping(NamedTuple):
    """See above. `held` is 0 where a loop goes over the columns, `batch` takes at a time.
    `interleaved`: neighbouring threads are in neighbouring rows."""

    threads: int
    rows: int
    length: int
    lanes: int
    vector: int
    held: int
    tile: int
    steps: int
    interleaved: bool = False
    batch: int = 1

    @property
    def row_groups(self) -> int:
        return self.threads // self.lanes

    @property
    def tiles(self) -> int:
        return -(-self.length // self.tile)

    @property
    def blocks(self) -> int:
        """Blocks of rows: a workgroup has one of them."""
        return -(-self.rows // (self.row_groups * self.steps))

    @property
    def workgroups(self) -> int:
        return self.tiles * self.blocks

    @property
    def active_groups(self) -> int:
        """Groups that have a row; they are the first ones."""
        before = (self.blocks - 1) * self.row_groups
        return before + min(self.row_groups, self.rows - before * self.steps)

    @property
    def iterations(self) -> int:
        """How many takes of columns a lane has in a tile."""
        return -(-min(self.tile, self.length) // (self.lanes * self.vector))

    @property
    def is_long(self) -> bool:
        """Whether sums along a tile are split."""
        return self.iterations > NEST

    @property
    def some_rows_idle(self) -> bool:
        return self.rows % (self.row_groups * self.steps) != 0

    @property
    def some_lanes_idle(self) -> bool:
        """Whether a lane may hold columns that there are not."""
        return self.held > 0 and self.lanes * self.vector * self.held * self.tiles != self.length

    def form(self) -> Hashable:
        """What the text of a kernel says besides sizes."""
        idle = (self.some_rows_idle, self.some_lanes_idle, self.length % self.vector > 0)
        many = (self.tiles > 1, self.blocks > 1, self.steps > 1, self.rows > 1)
        taken = (self.threads, self.lanes, self.vector, self.held, self.interleaved, self.batch)
        return (*taken, *many, *idle, self.iterations > 1, self.is_long)

    def sizes(self, padded: bool) -> dict[Hashable, int]:
        """Its sizes by name. `end` is where vectors of a row end; `padded`: they may reach beyond
        its last element."""
        whole = self.length // self.vector * self.vector
        end = -(-self.length // self.vector) * self.vector if padded else whole
        batch = self.lanes * self.vector * self.batch
        return {
            "rows": self.rows, "last row": self.rows - 1, "length": self.length,
            "last": self.length - 1, "last start": self.length - self.vector,
            "end": self.length if self.held else end, "rest": self.length - whole,
            "tile": self.tile, "tiles": self.tiles, "steps": self.steps,
            "last group": self.active_groups - 1, "batches": self.length // batch * batch,
        }  # fmt: skip


def power_of_two(n: int) -> int:
    """The smallest one that is not less than n."""
    return 1 << max(0, n - 1).bit_length()


def flat(
    size: int, machine: Machine, vector: int, totals: bool, functions: bool, in_order: bool
) -> ThreadMapping:  # fmt: skip
    """All elements as one row; `totals` if some are summed to one number, `functions` if some are
    computed by more than arithmetic, which a loop only makes slower where it is simulated;
    `in_order`: nothing that is read is read again nearby, so that groups may be small."""
    threads = machine.threads
    if size == 1:
        return ThreadMapping(threads, 1, 1, threads, 1, 0, threads, 1)
    vector = vector if machine.padded or size > vector else 1
    step = threads * vector
    is_large = size >= (SIMULATED_LARGE if machine.is_simulated else LARGE)
    iterations = 4 if is_large and not (functions and machine.is_simulated) else 1
    if machine.warp > 1 and in_order and not totals:
        iterations = 1
    if totals:
        needed = -(-size // step)
        # where a device is simulated, reductions are what costs
        least = FEW_STEPS if machine.is_simulated else iterations
        few = FEW_STEPS // 4 if machine.warp > 1 else FEW_STEPS
        iterations = needed if needed <= few else max(least, -(-needed // MOST_PARTS))
    return ThreadMapping(threads, 1, size, threads, vector, 0, step * iterations, 1)


def _whole(length: int, most: int, machine: Machine) -> int:
    """The widest vectors that rows divide into."""
    while length % most:
        most = 1 if machine.vector_bytes is None else most // 2
    return most


def _lanes(takes: int, vector: int, taken: int, machine: Machine) -> int:
    """How many threads share a row of so many takes: a warp if that is enough; `taken`: elements
    for each of more."""
    if machine.warp > 1:
        if takes <= machine.warp * WARP_TAKES:
            return min(machine.warp, power_of_two(takes))
        lanes = 2 * machine.warp
        while lanes < machine.most_threads and takes > lanes * max(2, taken // vector):
            lanes *= 2
        return lanes
    lanes = min(machine.threads, power_of_two(takes))
    while lanes < machine.most_threads and takes * vector > machine.most_held * lanes:
        lanes *= 2
    return lanes


def _batch(made: ThreadMapping, members: int, taken: int) -> int:
    """How many takes of a long row a thread has at a time, so that it does not wait for each."""
    batch = max(1, taken // made.vector)
    many = made.iterations < batch or made.is_long or members > MOST_TEXT
    return 1 if many else batch


def _lanes_across(rows: int, length: int, most: int, taken: int, machine: Machine) -> int:
    """How many threads share a row whose neighbours in memory are in other rows."""
    most = min(most, max(1, machine.threads // SIDE_BY_SIDE))
    if machine.warp == 1:
        return most
    lanes = 1
    while lanes < most and (length > lanes * taken or rows * lanes < machine.parallel):
        lanes *= 2
    return lanes


def by_rows(
    rows: int, length: int, members: int, machine: Machine, vector: int, totals: bool,
    columns: bool, across: bool, itemsize: int,
) -> ThreadMapping:  # fmt: skip
    """Rows that are reduced; `totals` and `columns` if there are sums over rows too; `across`:
    neighbours in memory are in different rows; `itemsize`: bytes of the narrowest that is read."""
    threads, simulated = machine.threads, machine.is_simulated
    # a single row may be read beyond its end, so vectors need not divide it
    beyond = machine.padded and rows == 1 < length and not columns
    vector = vector if beyond else _whole(length, vector, machine)
    takes, taken = -(-length // vector), TAKEN // itemsize
    lanes = _lanes(takes, vector, taken, machine)
    if simulated:  # there are no threads to use, and barriers cost more than everything else
        lanes = 1 if rows >= 128 or length < 64 else min(threads, 16)
    interleaved = across and not (simulated or totals or columns) and rows >= SIDE_BY_SIDE
    if interleaved:
        lanes = _lanes_across(rows, takes * vector, lanes, taken, machine)
    elif lanes > machine.warp > 1:
        threads = lanes  # fewer wait at a barrier
    threads = max(threads, lanes)
    held, most = -(-length // (lanes * vector)), machine.most_held
    if machine.warp > 1 and threads > machine.threads:  # which share the registers
        most //= 2
    if held * vector > most or held * vector * members > MOST_TEXT * most or length % vector:
        held = 0
    made = ThreadMapping(threads, rows, length, lanes, vector, held, length, 1, interleaved)
    if machine.warp > 1 and not held:
        made = made._replace(batch=_batch(made, members, taken))
    if not (totals or columns):
        return made
    each = -(-rows // made.row_groups)  # rows of a group, if there were one workgroup
    few = FEW_STEPS if simulated or length <= threads else FEW_STEPS // 4
    steps = each if each <= few else max(-(-each // MOST_PARTS), 1)
    if columns and machine.warp > 1:  # no more groups than run at once
        steps = max(1, -(-each * threads * 8 // (machine.parallel * SUMMING)))
    elif columns and steps < each:  # partial sums cost as much as what is summed
        steps = max(steps, 8 if simulated else min(8, each // machine.busy_groups))
    return made._replace(steps=min(steps, each))


def by_columns(rows: int, length: int, machine: Machine, vector: int) -> ThreadMapping:
    """Rows are not reduced, but columns are: a lane keeps its columns and loops over rows."""
    simulated = machine.is_simulated
    vector = _whole(length, vector, machine)
    widest = machine.threads if simulated else min(machine.threads, 32)
    lanes = min(widest, power_of_two(length // vector))
    made = ThreadMapping(machine.threads, rows, length, lanes, vector, 1, lanes * vector, 1)
    each = -(-rows // made.row_groups)
    if each <= FEW_STEPS:
        return made._replace(steps=each)
    parts = max(1, MOST_PARTS // made.tiles)
    least = FEW_STEPS
    if not simulated:
        least = max(4, min(FEW_STEPS, each * made.tiles // (2 * machine.busy_groups)))
    return made._replace(steps=min(LONGEST, max(least, -(-each // parts))))


def split_rows(rows: int, length: int, machine: Machine, vector: int) -> ThreadMapping:
    """Few long rows, each summed: tiles of columns store partial sums for each row."""
    simulated = machine.is_simulated
    vector = _whole(length, vector, machine)
    lanes = 1 if simulated else min(machine.threads, power_of_two(length // vector))
    tile = lanes * vector * (256 if simulated else 16)
    return ThreadMapping(machine.threads, rows, length, lanes, vector, 0, min(tile, length), 1)


def splits_rows(machine: Machine, is_single: bool = False) -> Callable[[int, int], bool]:
    """Whether several groups share each of so many rows of so many elements; `is_single`: of an
    op that runs by itself, where nothing else would be read again for it. Mesa's software adapter
    silently ends all loops of a thread after 65535 iterations in total."""
    most = 1 << 62 if machine.is_simulated else MANY if is_single else 0

    def is_split(rows: int, row: int) -> bool:
        return are_few(rows, row) or (row >= LONG and rows < most)

    return is_split

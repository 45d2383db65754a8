"""How the threads of a workgroup share the rows and columns of a fused group.

A workgroup has 256 threads in `row_groups` groups; each group has a row, and its `lanes` threads
share the row's columns. A lane takes `vector` neighbouring columns at a time. Short rows stay in
registers: each lane holds `held` such takes, unrolled, so that nothing is read or computed twice.
Kernels loop over long rows, once for each reduction that later values depend on. Rows without
reductions may be cut into tiles of columns, each for another workgroup; a group may process several
rows, so that sums over rows produce few partial sums.

The mapping depends on shapes alone (and on whether there is a GPU at all), never on what else runs.
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.compiler.thresholds import edge

WORKGROUP = edge(__name__, "WORKGROUP", 256, "size")
MOST_HELD = edge(__name__, "MOST_HELD", 16, "size")  # elements of a row in one thread's registers
# members times elements held: what a driver compiles quickly
MOST_TEXT = edge(__name__, "MOST_TEXT", 512, "count")
# workgroups whose partial sums a second stage combines
MOST_PARTS = edge(__name__, "MOST_PARTS", 1024, "count")
# rows, or takes, that one workgroup processes rather than store partial sums
FEW_STEPS = edge(__name__, "FEW_STEPS", 32, "size")
# elements from which a thread of an elementwise kernel takes several vectors
LARGE = edge(__name__, "LARGE", 1 << 20, "elements")
# a software adapter has no threads to keep busy
SOFTWARE_LARGE = edge(__name__, "SOFTWARE_LARGE", 1 << 14, "elements")
BUSY = edge(__name__, "BUSY", 256, "count")  # workgroups that keep a large GPU busy
# rows added one after the other: a longer sum would lose digits
LONGEST = edge(__name__, "LONGEST", 128, "size")


class ThreadMapping(NamedTuple):
    """See above. `held` is 0 where a loop goes over the columns."""

    rows: int
    length: int
    lanes: int
    vector: int
    held: int
    tile: int
    steps: int

    @property
    def row_groups(self) -> int:
        return WORKGROUP // self.lanes

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


def power_of_two(n: int) -> int:
    """The smallest one that is not less than n."""
    return 1 << max(0, n - 1).bit_length()


def flat(size: int, software: bool, totals: bool) -> ThreadMapping:
    """All elements as one row; `totals` if some are summed to one number."""
    if size == 1:
        return ThreadMapping(1, 1, WORKGROUP, 1, 0, WORKGROUP, 1)
    step = WORKGROUP * 4
    iterations = 1 if size < (SOFTWARE_LARGE if software else LARGE) else 4
    if totals:
        needed = -(-size // step)
        iterations = needed if needed <= FEW_STEPS else max(iterations, -(-needed // MOST_PARTS))
    return ThreadMapping(1, size, WORKGROUP, 4, 0, step * iterations, 1)


def by_rows(
    rows: int, length: int, members: int, software: bool, totals: bool, columns: bool
) -> ThreadMapping:
    """Rows that are reduced; `totals` and `columns` if there are sums over rows too."""
    # a single row may be read beyond its end, so its length need not be a multiple of 4
    vector = 4 if length % 4 == 0 or (rows == 1 < length and not columns) else 1
    lanes = min(WORKGROUP, power_of_two(-(-length // vector)))
    if software:  # there are no threads to use, and barriers cost more than everything else
        lanes = 1 if rows >= 128 or length < 64 else 16
    held = -(-length // (lanes * vector))
    if held * vector > MOST_HELD or held * vector * members > MOST_TEXT or length % vector:
        held = 0
    made = ThreadMapping(rows, length, lanes, vector, held, length, 1)
    if not (totals or columns):
        return made
    each = -(-rows // made.row_groups)  # rows of a group, if there were one workgroup
    few = FEW_STEPS if software or length <= WORKGROUP else FEW_STEPS // 4
    steps = each if each <= few else max(-(-each // MOST_PARTS), 1)
    if columns and steps < each:  # partial sums cost as much as what is summed
        steps = max(steps, 8 if software else min(8, each // BUSY))
    return made._replace(steps=min(steps, each))


def by_columns(rows: int, length: int, software: bool) -> ThreadMapping:
    """Rows are not reduced, but columns are: a lane keeps its columns and loops over rows."""
    vector = 4 if length % 4 == 0 else 1
    widest = WORKGROUP if software else 32
    lanes = min(widest, power_of_two(length // vector))
    made = ThreadMapping(rows, length, lanes, vector, 1, lanes * vector, 1)
    each = -(-rows // made.row_groups)
    if each <= FEW_STEPS:
        return made._replace(steps=each)
    parts = max(1, MOST_PARTS // made.tiles)
    least = FEW_STEPS if software else max(4, min(FEW_STEPS, each * made.tiles // (2 * BUSY)))
    return made._replace(steps=min(LONGEST, max(least, -(-each // parts))))


def split_rows(rows: int, length: int, software: bool) -> ThreadMapping:
    """Few long rows, each summed: tiles of columns store partial sums for each row."""
    vector = 4 if length % 4 == 0 else 1
    lanes = 1 if software else min(WORKGROUP, power_of_two(length // vector))
    tile = lanes * vector * (256 if software else 16)
    return ThreadMapping(rows, length, lanes, vector, 0, min(tile, length), 1)

"""The loop nest of a group: over rows, and along each row, with strides for every operand.

The axes of all members, cut as finely as any of them needs, are merged again where every operand
allows. `rows` are the sizes of the outer axes, `columns` those of the inner ones; a group without
row reductions has its last axis as columns, in pieces if it is long.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from everygrad.compiler.groups import Group, Load, Member, final_strides
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major

# elements of a piece: short enough for exact sums, long enough to hide the loop
CHUNK = edge(__name__, "CHUNK", 4096, "size")


class StridedAccess(NamedTuple):
    """Which element of an operand is accessed: offset + row index * rows + column index *
    columns."""

    rows: Shape
    columns: Shape
    offset: int

    @property
    def follows_columns(self) -> bool:
        return any(self.columns)


class LoopNest(NamedTuple):
    """`tail`: elements of the last row where it is shorter than the others, else 0."""

    rows: Shape
    columns: Shape
    tail: int
    loads: dict[Load, StridedAccess]
    finals: dict[Value, StridedAccess]
    full: StridedAccess  # of a result stored in order
    row: StridedAccess  # of a result that has one element a row
    stores: dict[Value, StridedAccess]  # of results stored otherwise

    @property
    def row_count(self) -> int:
        return size_of(self.rows)

    @property
    def length(self) -> int:
        return size_of(self.columns)


def _refined(shape: Shape, strides: Shape, dims: Shape, scale: int) -> list[int]:
    """Strides along `shape` as strides along the finer axes `dims` (of rows only if scale > 1)."""
    behind = [1] * len(dims)
    for i in reversed(range(len(dims) - 1)):
        behind[i] = behind[i + 1] * dims[i + 1]
    made = [0] * len(dims)
    step = scale
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        for i, p in enumerate(behind):
            if step <= p < step * n:
                made[i] = stride * (p // step)
        step *= n
    return made


def nest_of(group: Group, rows_wanted: int = 0) -> LoopNest:
    """The loop nest of a group; where there is a choice, in `rows_wanted` rows."""
    ordered = sorted(group.cuts | {1, group.size}, reverse=True)
    dims = tuple(a // b for a, b in pairwise(ordered)) or (1,)
    row = group.row or 1
    loads: dict[Load, tuple[list[int], int]] = {}
    finals: dict[Value, tuple[list[int], int]] = {}
    for m in group.members.values():
        scale = 1 if m.level == "full" else row
        for r in m.refs:
            if isinstance(r, Load):
                loads[r] = (_refined(r.shape, r.strides, dims, scale), r.offset)
        if m.role == "final":
            finals[m.value] = (_final(m, dims, scale), 0)
    stores = {v: _refined(v.shape, steps, dims, 1) for v, steps in group.stores.items()}
    split = len(dims)
    behind = 1
    while behind < row:
        split -= 1
        behind *= dims[split]
    full = list(row_major(dims))
    tables = [full, *(s for s, _ in loads.values()), *(s for s, _ in finals.values())]
    tables += stores.values()
    sizes, split = _merged(list(dims), split, tables)
    tail = 0
    if group.row is None:
        sizes, split, tail = _pieces(sizes, tables, rows_wanted)
    rows, columns = tuple(sizes[:split]), tuple(sizes[split:])

    def access(strides: list[int], offset: int) -> StridedAccess:
        return StridedAccess(tuple(strides[:split]), tuple(strides[split:]), offset)

    return LoopNest(
        rows,
        columns,
        tail,
        {r: access(*s) for r, s in loads.items()},
        {v: access(*s) for v, s in finals.items()},
        access(full, 0),
        StridedAccess(row_major(rows), (0,) * len(columns), 0),
        {v: access(steps, 0) for v, steps in stores.items()},
    )


def _final(m: Member, dims: Shape, scale: int) -> list[int]:
    axes = m.value.params["axes"]
    return _refined(m.shape, final_strides(m.shape, axes), dims, scale)


def _merged(sizes: list[int], split: int, tables: list[list[int]]) -> tuple[list[int], int]:
    """Neighbouring axes made one where every operand goes on from one to the next."""
    i = len(sizes) - 2
    while i >= 0:
        if i + 1 != split and all(t[i] == t[i + 1] * sizes[i + 1] for t in tables):
            sizes[i + 1] *= sizes[i]
            del sizes[i]
            for t in tables:
                del t[i]
            if split > i:
                split -= 1
        i -= 1
    return sizes, split


def _pieces(sizes: list[int], tables: list[list[int]], rows: int = 0) -> tuple[list[int], int, int]:
    """The last axis as columns; a long one is cut: evenly, or if it is the only one with a tail."""
    last = sizes[-1]
    tail = 0
    if rows and len(sizes) == 1 and last % rows == 0:
        sizes[-1:] = [rows, last // rows]
        for t in tables:
            t[-1:] = [t[-1] * (last // rows), t[-1]]
    elif last > CHUNK:
        piece = CHUNK
        if len(sizes) > 1:
            while piece > 256 and last % piece:
                piece //= 2
        if last % piece == 0 or len(sizes) == 1:
            count, tail = -(-last // piece), last % piece
            sizes[-1:] = [count, piece]
            for t in tables:
                t[-1:] = [t[-1] * piece, t[-1]]
    return sizes, len(sizes) - 1, tail

"""The kernels that bring the parts of sums together, as fused kernels leave them.

Parts of columns lie one row after the other, a row for each block that left some. The columns of
several sums of one shape are brought together by one kernel: starting it is what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad.backends.cuda.fused.values import Fold
from everygrad.backends.cuda.kernels.reduction import (
    Stage,
    Walk,
    goes_by_rows,
    write_columns,
    write_rows,
)
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.writer import Writer, Written, is_wide
from everygrad.compile.ir import Value
from everygrad.compile.thresholds import edge

_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")  # side by side in a block
_BESIDE = edge(__name__, "_BESIDE", 32, "size")  # threads that share a column
_MOST = edge(__name__, "_MOST", 4096, "size")  # parts of a column that one block brings together
_TOGETHER = edge(__name__, "_TOGETHER", 64, "size")  # the same, where there are more


class Parts(NamedTuple):
    """What a final's parts are: `size` of them in memory, gathered by `walk`."""

    fold: Fold
    size: int
    walk: Walk

    @property
    def in_rows(self) -> bool:
        """Whether each block has left one row of columns, and rows are not too many."""
        n, terms = self.walk.rows, self.walk.terms
        plain = self.walk == Walk((n,), (1,), (terms,), (n,)) and not goes_by_rows(self.walk)
        return plain and terms <= _MOST and self.fold.total.itemsize <= 8

    def finish(self) -> list[tuple[Written, int]]:
        """The kernels that make the final of its parts, each with the number of its results. Many
        parts of columns are brought together in two steps, so that more threads can help."""
        f, walk = self.fold, self.walk
        name, combine = f"finish_{f.value.name}", f.value.op.combine
        if goes_by_rows(walk):
            stage = Stage(combine, f.total, f.total, f.value.dtype, 1, walk.terms, f.divisor)
            return [(write_rows(name, stage, walk, 0), walk.rows)]
        made = []
        if walk.terms > 4 * _TOGETHER:
            pieces = -(-walk.terms // _TOGETHER)
            stage = Stage(combine, f.total, f.total, f.total, pieces, _TOGETHER, 0)
            made.append((write_columns(name, stage, walk), walk.rows * pieces))
            walk = Walk((walk.rows,), (1,), (pieces,), (walk.rows,))
        stage = Stage(combine, f.total, f.total, f.value.dtype, 1, walk.terms, f.divisor)
        return [*made, (write_columns(name, stage, walk), walk.rows)]


class Finish(NamedTuple):
    """A kernel for several sums: its pointers are their parts, then the sums."""

    written: Written
    values: list[Value]


def together(parts: Sequence[Parts]) -> tuple[list[list[Parts]], list[Parts]]:
    """Parts that one kernel can finish, by shape; and the others."""
    sets: dict[Walk, list[Parts]] = {}
    for p in parts:
        if p.in_rows:
            sets.setdefault(p.walk, []).append(p)
    return list(sets.values()), [p for p in parts if not p.in_rows]


def write_finish(parts: Sequence[Parts]) -> Finish:
    """Columns of each sum, a block for every 32; all parts have one walk."""
    walk = parts[0].walk
    w = Writer("finish", is_wide(walk.extent))
    for k, p in enumerate(parts):
        w.pointer(LAYOUTS[p.fold.total].memory, f"p{k}")
    for k, p in enumerate(parts):
        w.pointer(LAYOUTS[p.fold.value.dtype].memory, f"o{k}", written=True)
    columns, terms = w.number(walk.rows, "columns"), w.number(walk.terms, "terms")
    size = max(p.fold.total.itemsize for p in parts)
    w.add(
        f"__shared__ alignas(16) char shared[{_COLUMNS * _BESIDE * size}];",
        f"const int tx = threadIdx.x % {_COLUMNS}, ty = threadIdx.x / {_COLUMNS};",
        f"const {w.index} c = ({w.index})blockIdx.x * {_COLUMNS} + tx;",
    )
    for k, p in enumerate(parts):
        f = p.fold
        w.add(
            f"if (blockIdx.y == {k}) {{",
            f"  {f.kind}* sums = ({f.kind}*)shared;",
            f"  {f.kind} sum = {f.start};",
            f"  if (c < {columns})",
            "#pragma unroll 8",
            f"    for ({w.index} t = ty; t < {terms}; t += {_BESIDE})",
            f"      sum = {f.join('sum', f'p{k}[t * {columns} + c]')};",
            "  sums[threadIdx.x] = sum;",
            f"  for (int d = {_BESIDE // 2}; d > 0; d /= 2) {{",
            "    __syncthreads();",
            f"    if (ty < d) sums[threadIdx.x] = {f.join('sums[threadIdx.x]', _other())};",
            "  }",
            f"  if (ty == 0 && c < {columns}) o{k}[c] = "
            f"{LAYOUTS[f.value.dtype].store.format(f.leave('sums[tx]'))};",
            "}",
        )
    blocks = (-(-walk.rows // _COLUMNS), len(parts), 1)
    return Finish(w.finish(blocks, _COLUMNS * _BESIDE), [p.fold.value for p in parts])


def _other() -> str:
    """The sum `d` rows of threads further on."""
    return f"sums[threadIdx.x + d * {_COLUMNS}]"

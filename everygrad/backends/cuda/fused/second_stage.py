"""The second stage of reductions: kernels that combine the partial sums fused kernels leave.

Partial sums of columns lie row by row, one row for each block that wrote some. One kernel combines
the columns of several sums of one shape, because the launch is what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad.backends.cuda.fused.values import Accumulator
from everygrad.backends.cuda.kernels.reduction import (
    ReductionLayout,
    ReductionStage,
    goes_by_rows,
    write_columns,
    write_rows,
)
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, is_wide
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge

_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")  # side by side in a block
_COLUMN_THREADS = edge(__name__, "_COLUMN_THREADS", 32, "size")  # threads that share a column
_MAX_TERMS = edge(__name__, "_MAX_TERMS", 4096, "size")  # of a column for one block
_STEP_TERMS = edge(__name__, "_STEP_TERMS", 64, "size")  # of each step, where there are more


class PartialSums(NamedTuple):
    """The partial sums of a final: `size` of them in memory, read as `layout` says."""

    accumulator: Accumulator
    size: int
    layout: ReductionLayout

    @property
    def in_rows(self) -> bool:
        """Whether each block has left one row of columns, and rows are not too many."""
        n, terms = self.layout.rows, self.layout.terms
        plain = self.layout == ReductionLayout((n,), (1,), (terms,), (n,)) and not goes_by_rows(
            self.layout
        )
        return plain and terms <= _MAX_TERMS and self.accumulator.total.itemsize <= 8

    def second_stage(self) -> list[tuple[WrittenKernel, int]]:
        """The kernels that reduce the partial sums to the final, each with its number of results.
        Many partial sums of columns take two steps, so that more threads share the work."""
        acc, layout = self.accumulator, self.layout
        name, combine = f"second_stage_{acc.value.name}", acc.value.op.combine
        if goes_by_rows(layout):
            stage = ReductionStage(
                combine, acc.total, acc.total, acc.value.dtype, 1, layout.terms, acc.divisor
            )
            return [(write_rows(name, stage, layout, 0), layout.rows)]
        made = []
        if layout.terms > 4 * _STEP_TERMS:
            pieces = -(-layout.terms // _STEP_TERMS)
            stage = ReductionStage(combine, acc.total, acc.total, acc.total, pieces, _STEP_TERMS, 0)
            made.append((write_columns(name, stage, layout), layout.rows * pieces))
            layout = ReductionLayout((layout.rows,), (1,), (pieces,), (layout.rows,))
        stage = ReductionStage(
            combine, acc.total, acc.total, acc.value.dtype, 1, layout.terms, acc.divisor
        )
        return [*made, (write_columns(name, stage, layout), layout.rows)]


def cyclic_rows(size: int, count: int, pieces: int) -> ReductionLayout:
    """How partial sums lie, one for each of `count` rows: pieces of a row are neighbours, and the
    next row of the same sum comes after those of all others."""
    many = count // (size * pieces)
    if pieces == 1:
        return ReductionLayout((size,), (1,), (many,), (size,))
    if many == 1:
        return ReductionLayout((size,), (pieces,), (pieces,), (1,))
    return ReductionLayout((size,), (pieces,), (many, pieces), (size * pieces, 1))


class SecondStage(NamedTuple):
    """A kernel for several sums: its pointers are their partial sums, then the results."""

    written: WrittenKernel
    values: list[Value]


def group_by_layout(
    parts: Sequence[PartialSums],
) -> tuple[list[list[PartialSums]], list[PartialSums]]:
    """Partial sums that one kernel can combine, by layout; and the others."""
    sets: dict[ReductionLayout, list[PartialSums]] = {}
    for p in parts:
        if p.in_rows:
            sets.setdefault(p.layout, []).append(p)
    return list(sets.values()), [p for p in parts if not p.in_rows]


def write_second_stage(parts: Sequence[PartialSums]) -> SecondStage:
    """Columns of each sum, a block for every 32; all have one layout."""
    layout = parts[0].layout
    w = KernelWriter("second_stage", is_wide(layout.extent))
    for k, p in enumerate(parts):
        w.pointer(LAYOUTS[p.accumulator.total].memory, f"p{k}")
    for k, p in enumerate(parts):
        w.pointer(LAYOUTS[p.accumulator.value.dtype].memory, f"o{k}", written=True)
    columns, terms = w.number(layout.rows, "columns"), w.number(layout.terms, "terms")
    size = max(p.accumulator.total.itemsize for p in parts)
    w.add(
        f"__shared__ alignas(16) char shared[{_COLUMNS * _COLUMN_THREADS * size}];",
        f"const int tx = threadIdx.x % {_COLUMNS}, ty = threadIdx.x / {_COLUMNS};",
        f"const {w.index} c = ({w.index})blockIdx.x * {_COLUMNS} + tx;",
    )
    for k, p in enumerate(parts):
        acc = p.accumulator
        w.add(
            f"if (blockIdx.y == {k}) {{",
            f"  {acc.kind}* sums = ({acc.kind}*)shared;",
            f"  {acc.kind} sum = {acc.start};",
            f"  if (c < {columns})",
            "#pragma unroll 8",
            f"    for ({w.index} t = ty; t < {terms}; t += {_COLUMN_THREADS})",
            f"      sum = {acc.combine('sum', f'p{k}[t * {columns} + c]')};",
            "  sums[threadIdx.x] = sum;",
            f"  for (int d = {_COLUMN_THREADS // 2}; d > 0; d /= 2) {{",
            "    __syncthreads();",
            f"    if (ty < d) sums[threadIdx.x] = {acc.combine('sums[threadIdx.x]', _other())};",
            "  }",
            f"  if (ty == 0 && c < {columns}) o{k}[c] = "
            f"{LAYOUTS[acc.value.dtype].store.format(acc.finalize('sums[tx]'))};",
            "}",
        )
    blocks = (-(-layout.rows // _COLUMNS), len(parts), 1)
    return SecondStage(
        w.finish(blocks, _COLUMNS * _COLUMN_THREADS), [p.accumulator.value for p in parts]
    )


def _other() -> str:
    """The sum `d` rows of threads further on."""
    return f"sums[threadIdx.x + d * {_COLUMNS}]"

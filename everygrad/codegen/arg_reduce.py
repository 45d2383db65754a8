"""The place of the largest or smallest element along an axis, on GPUs.

Threads of a group share a row: each finds its best element, the group the best of all, then the
first place of it. Rows whose neighbours in memory are other rows have a thread each. Where rows are
few and long, groups have a piece of a row each, and a second kernel chooses among their places. A
NaN is better than any number, and the first of equal elements is chosen.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everygrad import dtypes
from everygrad.codegen.copy import Axes, Layout, Lowered, finished, split
from everygrad.codegen.kernel import Builder, logical_and, where
from everygrad.codegen.machine import Machine
from everygrad.compiler.accumulate import identity
from everygrad.compiler.expr import Expr, call
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import DType

# elements of a row from which several groups have pieces of it, where rows are few
PIECE = edge(__name__, "PIECE", 1 << 14, "size")
# rows from which each may have a thread of its own
ROWS = edge(__name__, "ROWS", 1024, "size")


class Plan(NamedTuple):
    """The kernels, and how many places the first one leaves for the second."""

    launches: tuple[Lowered, ...]
    between: int


@lru_cache(maxsize=1024)
def plan(x: Layout, axis: int, largest: bool, machine: Machine) -> Plan:
    """Buffers of the last kernel: x, the places that it chooses among if it is the second, out."""
    terms = x.shape[axis]
    stay = [a for a in range(len(x.shape)) if a != axis]
    kept, (steps,) = collapse(tuple(x.shape[a] for a in stay), [tuple(x.strides[a] for a in stay)])
    axes = Axes("source", (*kept, terms), (*steps, x.strides[axis]))
    rows = size_of(kept)
    if _has_threads_for_rows(axes, rows, machine):
        return Plan((_lowered(x.dtype, axes, largest, machine, 1, 0, False),), 0)
    pieces = 1
    if not machine.is_simulated and rows < machine.busy_groups:
        pieces = -(-terms // PIECE)
    threads = machine.threads
    if pieces == 1:
        return Plan((_lowered(x.dtype, axes, largest, machine, threads, 1, False),), 0)
    first = _lowered(x.dtype, axes, largest, machine, threads, pieces, False)
    last = _lowered(x.dtype, axes, largest, machine, threads, pieces, True)
    return Plan((first, last), rows * pieces)


def _has_threads_for_rows(axes: Axes, rows: int, machine: Machine) -> bool:
    """Whether each thread has a row: neighbours in memory are in different rows."""
    *steps, along = (abs(s) for s in axes.strides)
    across = min((s for s in steps if s), default=0)
    return 0 < across < along and rows >= max(ROWS, machine.busy_groups * machine.warp)


def _lowered(
    dtype: DType, axes: Axes, largest: bool, machine: Machine, lanes: int, pieces: int, again: bool
) -> Lowered:
    """One kernel; `lanes` threads have a row, or one of `pieces` of it. `again`: they choose among
    the places of pieces."""
    *kept, terms = axes.sizes
    rows = size_of(tuple(kept))
    parts = 1 if again else max(1, pieces)
    results = rows * parts
    groups = -(-results * lanes // machine.threads)
    index = machine.index_for(axes.reach, results * lanes, rows * max(1, pieces) * 2)
    b = Builder("argmax" if largest else "argmin", index, groups, machine.threads)
    source = b.buffer("source", dtype, axes.reach)
    given = b.buffer("given", dtypes.int64, rows * pieces) if again else None
    out = b.buffer("out", dtypes.int64, results, written=True)
    own = b.let(b.group * b.threads + b.thread) if lanes == 1 else b.group
    combine = "max" if largest else "min"
    compared = machine.comparable(dtypes.uint32 if dtype is dtypes.bool_ else dtype)
    nowhere = b.symbol((1 << 31) - 1 if index is dtypes.uint32 else 1 << 62)

    def choose() -> None:
        row = own if parts == 1 else b.let(own // b.symbol(parts))
        start, stop = Expr("const", (), 0), b.symbol(pieces if again else terms)
        if again:
            start = b.let(row * b.symbol(pieces))
            stop = b.let(start + b.symbol(pieces))
        elif parts > 1:
            length = b.symbol(-(-terms // parts))
            start = b.let((own - row * b.symbol(parts)) * length)
            stop = b.let(call("min", start + length, b.symbol(terms)))
        at_row = split(b, row, tuple(kept))
        best = b.variable(identity(combine, compared), compared)
        place = b.variable(nowhere, index)
        first = start if lanes == 1 else b.let(start + b.thread)
        with b.loop(first, stop, lanes) as n:
            at = n
            if given is not None:
                chosen = b.load(given, n)
                at = b.let(call("min", chosen.cast(index), b.symbol(terms - 1)))
            v = b.let(b.load(source, axes.place(b, [*at_row, at])).cast(compared), compared)
            better = call("gt" if largest else "lt", v, best)
            if compared.is_float:
                better = call("or", better, logical_and(_nan(v), call("not", _nan(best))))
            taken = b.let(call("or", call("eq", place, nowhere), better), dtypes.bool_)
            b.assign(place, where(taken, at, place))
            b.assign(best, where(taken, v, best))
        if lanes == 1:
            b.store(out, own, place.cast(dtypes.int64))
            return
        (top,) = b.reduce([(best, combine)], lanes)
        same = call("eq", best, top)
        if compared.is_float:
            same = call("or", same, logical_and(_nan(best), _nan(top)))
        (found,) = b.reduce([(b.let(where(same, place, nowhere)), "min")], lanes)
        b.store(out, own, found.cast(dtypes.int64), call("eq", b.thread, 0))

    if lanes == 1:
        with b.when(own < b.symbol(rows)):
            choose()
    else:
        choose()
    return finished(b, axes, *([None] if again else []), None)


def _nan(v: Expr) -> Expr:
    return call("isnan", v)

"""Single elementwise ops and reductions in the kernel language, in the plainest way: a thread for
each element, a group for each sum. No device renders these; the interpreter runs them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from everygrad import dtypes
from everygrad.codegen.copy import Axes, Lowered, each, finished, groups_for, split
from everygrad.codegen.kernel import Builder
from everygrad.codegen.machine import Machine
from everygrad.compiler import accumulate
from everygrad.compiler.expr import Expr, Program, call
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import broadcast_strides, collapse, row_major
from everygrad.dtypes import DType

# a group this small lets the interpreter find what a race in a large one would do
MACHINE = Machine(
    threads=8,
    wide_float=dtypes.float64,
    narrow_index=dtypes.uint32,
    narrow=1 << 30,
    wide_index=dtypes.uint64,
    parallel=64,
    sorted_keys=64,
    sorting_threads=8,
    run_threads=True,
)
_MANY = 64  # elements from which a large group shares a reduction
_COMBINE = {"add": "add", "mul": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


@lru_cache(maxsize=1024)
def elementwise(
    name: str, program: Program, given: tuple[DType, ...], shapes: tuple[Shape, ...], shape: Shape
) -> Lowered:
    """A scalar program over contiguous arrays that broadcast; buffers: the inputs, out."""
    steps = [broadcast_strides(s, row_major(s), shape) for s in shapes]
    sizes, strides = collapse(shape, steps)
    total = size_of(shape)
    b = Builder(name, MACHINE.index_for(total), groups_for(MACHINE, total), MACHINE.threads)
    reads = [Axes(f"x{k}", sizes, s) for k, s in enumerate(strides)]
    held = [b.buffer(a.name, d, a.reach) for a, d in zip(reads, given, strict=True)]
    out = b.buffer("out", program.dtype, total, written=True)
    with each(b, MACHINE, total) as at:
        where_ = split(b, at, sizes)
        made: list[Expr] = []
        for inst in program.insts:
            if inst.fn == "input":
                k = inst.value
                value: Expr = b.load(held[k], reads[k].place_of(b, at, where_))
            elif inst.fn == "const":
                value = b.let(inst.value, inst.dtype)
            elif inst.fn == "cast":
                value = b.let(made[inst.args[0]].cast(inst.dtype), inst.dtype)
            else:
                args = [made[a] for a in inst.args]
                value = b.let(Expr(inst.fn, tuple(args), inst.value), inst.dtype)
            made.append(value)
        b.store(out, at, made[-1])
    return finished(b, *(None for _ in (*held, out)))


def _kept_in(combine: str, dtype: DType) -> DType:
    """What a reduction is kept in."""
    if combine in ("max", "min"):
        return MACHINE.comparable(dtype)
    if dtype.is_complex:
        return dtypes.complex128
    return MACHINE.accumulator(dtype)


@lru_cache(maxsize=1024)
def reduction(
    name: str, combine: str, mean: bool, dtype: DType, shape: Shape, axes: Shape
) -> Lowered:
    """A contiguous array combined along axes; buffers: x, out."""
    strides = row_major(shape)
    kept = [a for a in range(len(shape)) if a not in axes]
    outer = Axes("outer", tuple(shape[a] for a in kept), tuple(strides[a] for a in kept))
    inner = Axes("inner", tuple(shape[a] for a in axes), tuple(strides[a] for a in axes))
    results, count = size_of(outer.sizes), size_of(inner.sizes)
    threads = MACHINE.threads if count <= _MANY else 256
    own = _kept_in(combine, dtype)
    b = Builder(name, MACHINE.index_for(size_of(shape)), results, threads)
    x = b.buffer("x", dtype, size_of(shape))
    out = b.buffer("out", dtype, results, written=True)
    part = b.local("part", own, threads)
    first = b.let(outer.place(b, split(b, b.group, outer.sizes)))
    start = accumulate.identity(combine, own)
    total = b.variable(start, own)
    with b.loop(b.thread, b.symbol(count), threads) as r:
        place = inner.place(b, split(b, r, inner.sizes))
        b.assign(total, call(_COMBINE[combine], total, b.load(x, first + place).cast(own)))
    b.store(part, b.thread, total)
    d = threads // 2
    while d:
        b.barrier()
        with b.when(b.thread < d):
            both = b.load(part, b.thread), b.load(part, b.thread + d)
            b.store(part, b.thread, call(_COMBINE[combine], *both))
        d //= 2
    with b.when(call("eq", b.thread, 0)):
        whole: Any = b.load(part, b.thread)
        whole = whole / float(count) if mean else whole
        b.store(out, b.group, whole.cast(dtype))
    return finished(b, None, None)

"""Reductions: a workgroup for each row, or a thread for each column, in blocks.

Rows are split into pieces of 16384, columns into pieces of 128, and their partial results are
reduced again: no running sum is long enough to lose digits, and the order depends on the shape
alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.source.render import (
    MAIN,
    THREAD,
    address,
    cast,
    constant,
    frame,
    instruction,
    slot,
    split_index,
)
from everygrad.backends.webgpu.source.word_layout import layout, load
from everygrad.compiler.accumulate import COMBINATIONS, identity, of_nothing
from everygrad.compiler.expr import Inst, Program
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, reduced, size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

ROW_PIECE = edge(__name__, "ROW_PIECE", 1 << 14, "size")
COLUMN_PIECE = edge(__name__, "COLUMN_PIECE", 128, "size")


def accumulator_dtype(dtype: DType) -> DType:
    """The dtype that accumulates: whole words."""
    if dtype.is_complex:
        return dtypes.complex64
    if dtype.is_float:
        return dtypes.float32
    if dtype.kind == "int":
        return dtypes.int64 if dtype.bits == 64 else dtypes.int32
    return dtypes.uint64 if dtype.bits == 64 else dtypes.uint32


def combined(combine: str, dtype: DType, a: str, b: str) -> str:
    assert combine in COMBINATIONS
    return instruction(Inst(combine, dtype, (0, 1)), [a, b], [dtype, dtype])


def total_of(combine: str, dtype: DType, name: str) -> str:
    """The accumulator as a result: drivers replace 0.0 + x by x, although x may be -0.0."""
    if combine != "add":
        return name
    if dtype.is_complex:
        return f"plus_zero_c({name})"
    return f"plus_zero_f({name})" if dtype.is_float else name


class ReductionPlan(NamedTuple):
    """What a kernel's source depends on."""

    combine: str
    source: DType
    total: DType
    kept_rank: int  # axes that are kept, and that are reduced
    reduced_rank: int
    by_rows: bool
    mean: bool


class LoopNest(NamedTuple):
    """Where the elements are: sizes and strides of the kept and of the reduced axes."""

    kept_sizes: Shape
    kept_strides: Shape
    reduced_sizes: Shape
    reduced_strides: Shape
    offset: int

    def params(self) -> list[int]:
        return [
            *self.kept_sizes[1:], *(self.offset, *self.kept_strides),
            *self.reduced_sizes[1:], *(0, *self.reduced_strides),
        ]  # fmt: skip


_HEAD = 5  # words of the uniform before the loops: results, terms, rows, pieces, divisor


@lru_cache(maxsize=1024)
def kernel_text(plan: ReductionPlan) -> str:
    """One stage: every (row, piece) is reduced to one word, or two."""
    row_lines, row_names = split_index(plan.kept_rank, _HEAD, "row")
    at = _HEAD + plan.kept_rank - 1
    base = address(at, row_names)
    at += 1 + plan.kept_rank
    term_lines, term_names = split_index(plan.reduced_rank, at, "j")
    step = address(at + plan.reduced_rank - 1, term_names)
    params = at + plan.reduced_rank - 1 + 1 + plan.reduced_rank
    register = layout(plan.total).register
    value = cast("x", plan.source, plan.total)
    at_row = "\n".join(row_lines)
    at_term = "\n".join(term_lines)
    text = (
        f"fn base_of(row: u32) -> u32 {{\n{at_row}\n  return {base};\n}}\n"
        f"fn term(base: u32, j: u32) -> {register} {{\n{at_term}\n  let p = base + {step};\n"
        f"  let x: {layout(plan.source).register} = {load(plan.source, 'a0', 'p')};\n"
        f"  return {value};\n}}\n"
        f"fn combine(a: {register}, b: {register}) -> {register} {{\n"
        f"  return {combined(plan.combine, plan.total, 'a', 'b')};\n}}\n"
    )
    text += _rows(plan, register) if plan.by_rows else _columns(plan, register)
    return frame(1, params, text)


def _store_result(plan: ReductionPlan, at: str) -> str:
    """Write `acc` as result `at`."""
    lines = f"    acc = {total_of(plan.combine, plan.total, 'acc')};\n"
    if plan.mean:
        divide = "over_c" if plan.total.is_complex else "div_f"
        lines += f"    acc = {divide}(acc, bitcast<f32>({slot(4)}));\n"
    if layout(plan.total).words == 2:
        return lines + f"    out[2u * {at}] = acc.x;\n    out[2u * {at} + 1u] = acc.y;\n"
    return lines + f"    out[{at}] = {layout(plan.total).bits.format(v='acc')};\n"


def _rows(plan: ReductionPlan, register: str) -> str:
    start = constant(identity(plan.combine, plan.total), plan.total)
    return (
        f"var<workgroup> part: array<{register}, 256>;\n" + MAIN + "  let k = w.y * g.x + w.x;\n"
        f"  if (k >= {slot(0)}) {{ return; }}\n"
        f"  let base = base_of(k / {slot(3)});\n  let first = (k % {slot(3)}) * {ROW_PIECE}u;\n"
        f"  let end = min(first + {ROW_PIECE}u, {slot(1)});\n"
        f"  var acc: {register} = {start};\n"
        "  for (var j = first + l; j < end; j = j + 256u) { acc = combine(acc, term(base, j)); }\n"
        "  part[l] = acc;\n  workgroupBarrier();\n"
        "  for (var s = 128u; s > 0u; s = s >> 1u) {\n"
        "    if (l < s) { part[l] = combine(part[l], part[l + s]); }\n"
        "    workgroupBarrier();\n  }\n"
        "  if (l == 0u) {\n    acc = part[0];\n" + _store_result(plan, "k") + "  }\n}\n"
    )


def _columns(plan: ReductionPlan, register: str) -> str:
    start = constant(identity(plan.combine, plan.total), plan.total)
    return (
        MAIN + THREAD + f"  if (t >= {slot(0)}) {{ return; }}\n"
        f"  let base = base_of(t % {slot(2)});\n  let first = (t / {slot(2)}) * {COLUMN_PIECE}u;\n"
        f"  let end = min(first + {COLUMN_PIECE}u, {slot(1)});\n"
        f"  var acc: {register} = {start};\n  var j = first;\n"
        "  for (; j + 3u < end; j = j + 4u) {\n"  # four loads are in flight at once
        + "".join(f"    let x{i} = term(base, j + {i}u);\n" for i in range(4))
        + "    acc = combine(combine(combine(combine(acc, x0), x1), x2), x3);\n  }\n"
        "  for (; j < end; j = j + 1u) { acc = combine(acc, term(base, j)); }\n"
        "  {\n" + _store_result(plan, "t") + "  }\n}\n"
    )


def _stage(
    dev: WebGPU, name: str, plan: ReductionPlan, storage: Any, loops: LoopNest, count: int
) -> tuple[WebGPUArray, int]:
    """Run one kernel: its results, and how many partial results each row has."""
    rows, terms = size_of(loops.kept_sizes), size_of(loops.reduced_sizes)
    pieces = -(-terms // (ROW_PIECE if plan.by_rows else COLUMN_PIECE))
    plan = plan._replace(mean=plan.mean and pieces == 1)
    total: WebGPUArray = dev.empty((rows * pieces,), plan.total)
    divisor = int(np.float32(count).view(np.uint32))
    params = [rows * pieces, terms, rows, pieces, divisor, *loops.params()]
    threads = rows * pieces * (256 if plan.by_rows else 1)
    dev.launch(name, kernel_text(plan), [storage], total, params, threads)
    return total, pieces


def _reduces_by_rows(dev: WebGPU, loops: LoopNest) -> bool:
    """Whether threads of a workgroup share a row: for long rows with near elements, and where there
    are too few rows to give every thread its own. Not on a software adapter, where barriers cost
    more than everything else."""
    if size_of(loops.reduced_sizes) < 64 or dev.gpu.is_software:
        return False
    along = min((abs(s) for s in loops.reduced_strides if s), default=0)
    across = min((abs(s) for s in loops.kept_strides if s), default=1 << 62)
    return along <= across or size_of(loops.kept_sizes) < 64


def accumulate(
    dev: WebGPU, name: str, combine: str, x: WebGPUArray, axes: Shape, mean: bool = False
) -> WebGPUArray:
    """The reduction of a non-empty array, in the accumulator's dtype, as a flat array."""
    source = FROM_NP[x.dtype]
    total = accumulator_dtype(source)
    stay = [a for a in range(len(x.shape)) if a not in axes]
    kept, (kept_strides,) = collapse(
        tuple(x.shape[a] for a in stay), [tuple(x.strides[a] for a in stay)]
    )
    reduced_sizes, (reduced_strides,) = collapse(
        tuple(x.shape[a] for a in axes), [tuple(x.strides[a] for a in axes)]
    )
    loops = LoopNest(kept, kept_strides, reduced_sizes, reduced_strides, x.offset)
    count = size_of(reduced_sizes)
    storage = x.storage
    while True:
        by_rows = _reduces_by_rows(dev, loops)
        plan = ReductionPlan(
            combine, source, total, len(loops.kept_sizes), len(loops.reduced_sizes), by_rows, mean
        )
        out, pieces = _stage(dev, name, plan, storage, loops, count)
        if pieces == 1:
            return out
        rows = size_of(loops.kept_sizes)
        steps = (pieces, 1) if by_rows else (1, rows)
        loops = LoopNest((rows,), steps[:1], (pieces,), steps[1:], 0)
        source, storage = total, out.storage


@lru_cache
def _cast_program(source: DType, target: DType) -> Program:
    return Program((Inst("input", source, (), 0), Inst("cast", target, (0,))))


def as_dtype(dev: WebGPU, x: WebGPUArray, dtype: DType) -> WebGPUArray:
    """Elements converted."""
    source = FROM_NP[x.dtype]
    if source is dtype:
        return x
    made: WebGPUArray = dev.elementwise("astype", _cast_program(source, dtype), [x])
    return made


def reduce(
    dev: WebGPU,
    name: str,
    combine: str,
    x: WebGPUArray,
    axes: Shape,
    keepdims: bool,
    mean: bool = False,
) -> WebGPUArray:
    dtype = dtypes.bool_ if combine in ("and", "or") else FROM_NP[x.dtype]
    shape = reduced(x.shape, axes, keepdims)
    if not size_of(shape):
        return dev.empty(shape, dtype)
    if x.storage is None:
        return dev.full(shape, of_nothing(combine, dtype, mean), dtype)
    out = as_dtype(dev, accumulate(dev, name, combine, x, axes, mean), dtype)
    return WebGPUArray(dev.device, shape, dtype.np, out.storage)


# --- argmax and argmin ---------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _arg_text(dtype: DType, kept_rank: int, largest: bool) -> str:
    """A workgroup for each row. Uniform: rows, terms, stride of the terms, then the kept axes."""
    lines, names = split_index(kept_rank, 3, "row")
    lay = layout(dtype)
    compare = instruction(
        Inst("gt" if largest else "lt", dtypes.bool_, (0, 1)), ["v", "b"], [dtype, dtype]
    )
    equal = instruction(Inst("eq", dtypes.bool_, (0, 1)), ["v", "b"], [dtype, dtype])
    nan = ""
    if lay.kind == "f":
        nan = (
            "  if (is_nan(v) != is_nan(b)) { return is_nan(v); }\n"
            "  if (is_nan(v)) { return i < bi; }\n"
        )
    rows = "\n".join(lines)
    text = (
        f"fn base_of(row: u32) -> u32 {{\n{rows}\n  return {address(2 + kept_rank, names)};\n}}\n"
        f"fn better(v: {lay.register}, i: u32, b: {lay.register}, bi: u32) -> bool {{\n"
        "  if (i == 0xffffffffu || bi == 0xffffffffu) { return bi == 0xffffffffu; }\n"
        f"{nan}  return ({compare}) || (({equal}) && i < bi);\n}}\n"
        f"var<workgroup> best: array<{lay.register}, 256>;\n"
        "var<workgroup> place: array<u32, 256>;\n" + MAIN + "  let k = w.y * g.x + w.x;\n"
        f"  if (k >= {slot(0)}) {{ return; }}\n  let base = base_of(k);\n"
        f"  var b: {lay.register};\n  var bi = 0xffffffffu;\n"
        f"  for (var j = l; j < {slot(1)}; j = j + 256u) {{\n    let p = base + j * {slot(2)};\n"
        f"    let v: {lay.register} = {load(dtype, 'a0', 'p')};\n"
        "    if (better(v, j, b, bi)) { b = v; bi = j; }\n  }\n"
        "  best[l] = b;\n  place[l] = bi;\n  workgroupBarrier();\n"
        "  for (var s = 128u; s > 0u; s = s >> 1u) {\n    if (l < s) {\n"
        "      if (better(best[l + s], place[l + s], best[l], place[l])) {\n"
        "        best[l] = best[l + s];\n        place[l] = place[l + s];\n      }\n    }\n"
        "    workgroupBarrier();\n  }\n"
        "  if (l == 0u) {\n    out[2u * k] = place[0];\n    out[2u * k + 1u] = 0u;\n  }\n}\n"
    )
    return frame(1, 3 + kept_rank - 1 + 1 + kept_rank, text)


def arg_reduce(
    dev: WebGPU, largest: bool, x: WebGPUArray, axis: int, keepdims: bool
) -> WebGPUArray:
    shape = reduced(x.shape, (axis,), keepdims)
    out: WebGPUArray = dev.empty(shape, dtypes.int64)
    if out.storage is None or x.storage is None:
        return out
    stay = [a for a in range(len(x.shape)) if a != axis]
    kept, (steps,) = collapse(tuple(x.shape[a] for a in stay), [tuple(x.strides[a] for a in stay)])
    rows = size_of(kept)
    params = [rows, x.shape[axis], x.strides[axis], *kept[1:], x.offset, *steps]
    source = _arg_text(FROM_NP[x.dtype], len(kept), largest)
    name = "argmax" if largest else "argmin"
    dev.launch(name, source, [x.storage], out, params, rows * 256)
    return out


def prod(dev: WebGPU, x: WebGPUArray, axes: Shape, keepdims: bool) -> WebGPUArray:
    return reduce(dev, "prod", "mul", x, axes, keepdims)

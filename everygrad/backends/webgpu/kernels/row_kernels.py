"""Softmax, standardisation and their derivatives: a row is read once, reduced, and written.

A few threads share a row, and a workgroup has as many rows as fit. Each thread keeps its elements
in registers; rows too long for that are read again at each stage. Where a few rows are very long,
workgroups reduce pieces of them, one stage after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, distinct
from everygrad.backends.webgpu.driver.gpu import WORKGROUP
from everygrad.backends.webgpu.kernels import copy_kernels, reduction
from everygrad.backends.webgpu.kernels.reduction import as_dtype, combined
from everygrad.backends.webgpu.source.render import (
    MAIN,
    address,
    constant,
    element_kernel,
    frame,
    slot,
    split_index,
)
from everygrad.backends.webgpu.source.word_layout import layout, load, thread_count
from everygrad.compiler.accumulate import identity
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import collapse, row_major
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DtypeError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

HELD = edge(__name__, "HELD", 16, "size")  # elements of a row that a thread keeps in registers
# elements it should have: more threads for a row would mostly wait for each other
WANTED = edge(__name__, "WANTED", 8, "size")
# rows of a workgroup that are contiguous across rows: whole cache lines
SIDE_BY_SIDE = edge(__name__, "SIDE_BY_SIDE", 16, "size")
# terms summed one after the other before blocks are summed
BLOCK = edge(__name__, "BLOCK", 64, "size")
PIECE = edge(__name__, "PIECE", 1 << 12, "size")  # elements of a long row that a workgroup reduces
LONG, FEW = 1 << 14, 256  # rows as long as this are cut into pieces where there are fewer
HEAD = 4  # words of the uniform before the loops: rows, elements of a row, the latter as f32, eps
_F32 = dtypes.float32


class RowStage(NamedTuple):
    """One reduction of all elements. `becomes` first updates the elements, also for later stages;
    each term is an expression to combine, and one to finalize its total t. Totals are called
    t0, t1, ... throughout an op."""

    combine: str
    terms: tuple[tuple[str, str], ...]
    becomes: str = ""


class RowOp(NamedTuple):
    """x0, x1, ... are the inputs' elements at one position, `size` is the length of a row."""

    inputs: int
    stages: tuple[RowStage, ...]
    final: str


_MEAN, _SCALE = "t / size", "1.0 / sqrt_f(t / size + eps)"
OPS = {
    "softmax": RowOp(
        1,
        (
            RowStage("max", (("x0", "t"),)),
            RowStage("add", (("x0", "t"),), "x0 = exp_low(x0 - t0);"),
        ),
        "x0 / t1",
    ),
    "softmax_vjp": RowOp(  # of g, out
        2, (RowStage("add", (("x0", "t"),), "x0 = x0 * x1;"),), "x0 - x1 * t0"
    ),
    "log_softmax": RowOp(
        1,
        (
            RowStage("max", (("x0", "t"),)),
            RowStage("add", (("exp_low(x0)", "log_f(t)"),), "x0 = x0 - t0;"),
        ),
        "x0 - t1",
    ),
    "log_softmax_vjp": RowOp(  # of g, out
        2, (RowStage("add", (("x0", "t"),)),), "x0 - exp_f(x1) * t0"
    ),
    "standardize": RowOp(
        1,
        (
            RowStage("add", (("x0", _MEAN),)),
            RowStage("add", (("x0 * x0", _SCALE),), "x0 = x0 - t0;"),
        ),
        "x0 * t1",
    ),
    "standardize_vjp": RowOp(  # of g, out, x
        3,
        (
            RowStage("add", (("x0", _MEAN), ("x0 * x1", _MEAN), ("x2", _MEAN))),
            RowStage("add", (("x2 * x2", _SCALE),), "x2 = x2 - t2;"),
        ),
        "t3 * (x0 - t0 - x1 * t1)",
    ),
}
_ELEMENT, _TOTAL = re.compile(r"\bx(\d)\b"), re.compile(r"\bt\b")


class RowKernelPlan(NamedTuple):
    """What a kernel's source depends on."""

    op: str
    dtype: DType
    bindings: tuple[int, ...]
    row_rank: int  # axes of the rows, and axes within a row
    term_rank: int
    lanes: int = WORKGROUP  # threads of a row
    held: int = 0  # elements that each thread keeps in registers, 0: none
    interleaved: bool = False  # whether neighbouring threads are in neighbouring rows
    each: int = 1  # elements of a result's word


# --- text ----------------------------------------------------------------------------------------


def exp_low(value: str = "f32") -> str:
    """A WGSL function: exp of a number that is not above 0, or NaN, for scalars or vec4. It has no
    branches, and returns 0 where the result would be subnormal."""
    bits, whole = value.replace("f32", "u32"), value.replace("f32", "i32")
    return (
        f"fn exp_low(x: {value}) -> {value} {{\n"
        f"  let y = max(x, {value}(-87.0));\n  let k = round(y * 1.4426950408889634);\n"
        "  let r = (y - k * 0.693145751953125) - k * 1.428606765330187e-06;\n"
        "  let p = 0.5 + r * (0.16666512191295624 + r * (0.0416661873459816\n"
        "    + r * (0.008369598537683487 + r * 0.0013951717410236597)));\n"
        f"  let e = bitcast<{whole}>(1.0 + (r + r * r * p)) + {whole}(k) * {whole}(1 << 23u);\n"
        f"  let found = select(bitcast<{value}>(e), {value}(0.0), x < {value}(-87.0));\n"
        f"  let bits = bitcast<{bits}>(x) & {bits}(0x7fffffffu);\n"
        f"  return select(found, x, bits > {bits}(0x7f800000u));\n}}\n"
    )


def _first(op: RowOp, stage: int) -> int:
    """The number of a stage's first total."""
    return sum(len(s.terms) for s in op.stages[:stage])


def _finalized(op: RowOp, stage: int, q: int, total: str) -> str:
    """Define t<number>, the finalized total of a term."""
    value = _TOTAL.sub(total, op.stages[stage].terms[q][1])
    return f"  let t{_first(op, stage) + q} = {value};\n"


def _readers(plan: RowKernelPlan, arrays: int) -> tuple[str, int]:
    """base{k}(row) and at{k}(base, j): where elements are; read{k}(base, j) for inputs. Also the
    number of words of the uniform."""
    rows, row_names = split_index(plan.row_rank, HEAD, "row")
    terms, term_names = split_index(plan.term_rank, HEAD + plan.row_rank - 1, "j")
    first = HEAD + plan.row_rank + plan.term_rank - 2
    text = ""
    for k in range(arrays):
        steps = [
            f"{name} * {slot(first + 1 + plan.row_rank + i)}" for i, name in enumerate(term_names)
        ]
        text += (
            f"fn base{k}(row: u32) -> u32 {{\n"
            + "\n".join(rows)
            + f"\n  return {address(first, row_names)};\n}}\n"
            + f"fn at{k}(base: u32, j: u32) -> u32 {{\n"
            + "\n".join(terms)
            + f"\n  return base + {' + '.join(steps)};\n}}\n"
        )
        if k < OPS[plan.op].inputs:
            value = load(plan.dtype, f"a{plan.bindings[k]}", "p")
            text += f"fn read{k}(base: u32, j: u32) -> f32 {{\n  let p = at{k}(base, j);\n"
            text += f"  return {value};\n}}\n"
        first += 1 + plan.row_rank + plan.term_rank
    return text + exp_low(), first


def _numbers() -> str:
    size, eps = (f"bitcast<f32>({slot(i)})" for i in (2, 3))
    return f"  let n = {slot(1)};\n  let size = {size};\n  let eps = {eps};\n"


def _load_element(op: RowOp, j: str, changes: int) -> str:
    """Load the elements at j, updated as the first stages update them."""
    lines = "".join(f"    var x{k} = read{k}(b{k}, {j});\n" for k in range(op.inputs))
    return lines + "".join(f"    {s.becomes}\n" for s in op.stages[:changes])


def _register(text: str, e: int) -> str:
    """The expression for element e of those a thread keeps."""
    return _ELEMENT.sub(rf"x\1_{e}", text)


def _load_registers(plan: RowKernelPlan) -> str:
    """Load every element of the thread into a register of its own."""
    lines = []
    for e in range(plan.held):
        word = f"lane + {e // plan.each * plan.lanes}u"
        place = word if plan.each == 1 else f"({word}) * {plan.each}u + {e % plan.each}u"
        lines.append(f"  let j{e} = {place};\n  let in{e} = j{e} < n;\n")
        for k in range(OPS[plan.op].inputs):
            lines.append(
                f"  var x{k}_{e} = 0.0;\n  if (in{e}) {{ x{k}_{e} = read{k}(b{k}, j{e}); }}\n"
            )
    return "".join(lines)


def _accumulate(op: RowOp, stage: int, held: int, step: str, start: str, end: str) -> str:
    """acc0, acc1, ...: the thread's accumulator of each total."""
    s = op.stages[stage]
    zero = constant(identity(s.combine, _F32), _F32)
    count = range(len(s.terms))
    text = "".join(f"  var acc{q}_{stage} = {zero};\n" for q in count)
    if held:
        for e in range(held):
            text += f"  if (in{e}) {{\n    {_register(s.becomes, e)}\n"
            for q in count:
                acc = f"acc{q}_{stage}"
                value = _register(s.terms[q][0], e)
                text += f"    {acc} = {combined(s.combine, _F32, acc, f'({value})')};\n"
            text += "  }\n"
        return text
    text += f"  for (var first = {start}; first < {end}; first = first + {BLOCK}u * {step}) {{\n"
    text += "".join(f"  var block{q} = {zero};\n" for q in count)
    text += f"  let last = min(first + {BLOCK}u * {step}, {end});\n"
    text += f"  for (var j = first; j < last; j = j + {step}) {{\n"
    text += _load_element(op, "j", stage + 1)
    for q in count:
        value = combined(s.combine, _F32, f"block{q}", f"({s.terms[q][0]})")
        text += f"    block{q} = {value};\n"
    text += "  }\n"
    for q in count:
        acc = f"acc{q}_{stage}"
        text += f"  {acc} = {combined(s.combine, _F32, acc, f'block{q}')};\n"
    return text + "  }\n"


def _block_reduce(op: RowOp, stage: int, lanes: int, step: int) -> str:
    """sum0, sum1, ...: the totals of the row, reduced over its threads in shared memory."""
    s = op.stages[stage]
    count = range(len(s.terms))
    if lanes == 1:
        return "".join(f"  let sum{q}_{stage} = acc{q}_{stage};\n" for q in count)
    text = "".join(f"  part{q}[l] = acc{q}_{stage};\n" for q in count)
    text += f"  workgroupBarrier();\n  for (var s = {lanes // 2}u; s > 0u; s = s >> 1u) {{\n"
    text += "    if (lane < s) {\n"
    for q in count:
        value = combined(s.combine, _F32, f"part{q}[l]", f"part{q}[l + s * {step}u]")
        text += f"      part{q}[l] = {value};\n"
    text += "    }\n    workgroupBarrier();\n  }\n"
    text += "".join(f"  let sum{q}_{stage} = part{q}[l - lane * {step}u];\n" for q in count)
    return text + "  workgroupBarrier();\n"


def _write(plan: RowKernelPlan) -> str:
    """Store the results of the thread's elements: a thread has all elements of a word."""
    op, lay, out = OPS[plan.op], layout(plan.dtype), OPS[plan.op].inputs
    width = 32 // plan.each

    def bits(value: str, i: int) -> str:
        word = lay.bits.format(v=f"({value})") if plan.each > 1 else f"bitcast<u32>({value})"
        return f"(({word}) << {i * width}u)"

    if plan.held:
        text = ""
        for e in range(0, plan.held, plan.each):
            values = " | ".join(bits(_register(op.final, e + i), i) for i in range(plan.each))
            at = f"at{out}(b{out}, j{e}) / {plan.each}u"
            text += f"  if (alive && in{e}) {{ out[{at}] = {values}; }}\n"
        return text
    text = f"  for (var w0 = lane * {plan.each}u; w0 < n; w0 = w0 + {plan.lanes * plan.each}u) {{\n"
    text += "    var word = 0u;\n"
    for i in range(plan.each):
        text += f"    {{\n{_load_element(op, f'w0 + {i}u', len(op.stages))}"
        text += f"    word = word | {bits(op.final, i)};\n    }}\n"
    return text + f"    if (alive) {{ out[at{out}(b{out}, w0) / {plan.each}u] = word; }}\n  }}\n"


def _shared_memory(op: RowOp) -> str:
    most = max(len(s.terms) for s in op.stages)
    return "".join(f"var<workgroup> part{q}: array<f32, 256>;\n" for q in range(most))


@lru_cache(maxsize=512)
def _row_text(plan: RowKernelPlan) -> str:
    """The kernel in which one workgroup reduces whole rows."""
    op = OPS[plan.op]
    rows = WORKGROUP // plan.lanes
    readers, params = _readers(plan, op.inputs + 1)
    split = ("%", "/", rows) if plan.interleaved else ("/", "%", plan.lanes)
    text = readers + (_shared_memory(op) if plan.lanes > 1 else "") + MAIN
    text += (
        f"  let line = (w.y * g.x + w.x) * {rows}u + l {split[0]} {split[2]}u;\n"
        f"  let lane = l {split[1]} {split[2]}u;\n  let alive = line < {slot(0)};\n"
        f"  let row = min(line, {slot(0)} - 1u);\n" + _numbers()
    )
    text += "".join(f"  let b{k} = base{k}(row);\n" for k in range(op.inputs + 1))
    text += _load_registers(plan)
    for stage in range(len(op.stages)):
        text += _accumulate(op, stage, plan.held, f"{plan.lanes}u", "lane", "n")
        text += _block_reduce(op, stage, plan.lanes, rows if plan.interleaved else 1)
        for q in range(len(op.stages[stage].terms)):
            text += _finalized(op, stage, q, f"sum{q}_{stage}")
    return frame(max(plan.bindings) + 1, params, text + _write(plan) + "}\n")


def _load_totals(op: RowOp, stages: int, first: int) -> str:
    """Load the totals of earlier stages from their buffers."""
    text = ""
    for s in range(stages):
        for q in range(len(op.stages[s].terms)):
            text += f"  let got{q}_{s} = bitcast<f32>(a{first + s}[{q}u * {slot(0)} + row]);\n"
            text += _finalized(op, s, q, f"got{q}_{s}")
    return text


@lru_cache(maxsize=256)
def _stage_text(plan: RowKernelPlan, stage: int) -> str:
    """The kernel of one stage on pieces of rows; one more uniform word is the number of pieces."""
    op = OPS[plan.op]
    readers, params = _readers(plan, op.inputs)
    buffers = max(plan.bindings) + 1
    pieces = slot(params)
    text = readers + _shared_memory(op) + MAIN + "  let k = w.y * g.x + w.x;\n  let lane = l;\n"
    text += f"  if (k >= {slot(0)} * {pieces}) {{ return; }}\n"
    text += f"  let row = k / {pieces};\n  let start = (k % {pieces}) * {PIECE}u;\n" + _numbers()
    text += f"  let end = min(start + {PIECE}u, n);\n"
    text += "".join(f"  let b{k} = base{k}(row);\n" for k in range(op.inputs))
    text += _load_totals(op, stage, buffers)
    text += _accumulate(op, stage, 0, f"{WORKGROUP}u", "start + lane", "end")
    text += _block_reduce(op, stage, WORKGROUP, 1) + "  if (l == 0u) {\n"
    for q in range(len(op.stages[stage].terms)):
        at = f"{q}u * {slot(0)} * {pieces} + k"
        text += f"    out[{at}] = bitcast<u32>(sum{q}_{stage});\n"
    return frame(buffers + stage, params + 1, text + "  }\n}\n")


@lru_cache(maxsize=256)
def _final_text(name: str, dtype: DType, bindings: tuple[int, ...], rank: int) -> str:
    """The kernel that computes results from the totals. Uniform: rows, count, size, eps; sizes; for
    each input, and for the number of the row, offset and strides."""
    op = OPS[name]
    lines, names = split_index(rank, HEAD)
    first = HEAD + rank - 1
    body = "\n".join(lines) + "\n"
    for k in range(op.inputs):
        body += f"  let p{k} = {address(first + k * (rank + 1), names)};\n"
        body += f"  var x{k} = {load(dtype, f'a{bindings[k]}', f'p{k}')};\n"
    body += f"  let row = {address(first + op.inputs * (rank + 1), names)};\n"
    body += _numbers()
    buffers = max(bindings) + 1
    body += _load_totals(op, len(op.stages), buffers)
    body += "".join(f"  {s.becomes}\n" for s in op.stages)
    text = exp_low() + f"fn element(e: u32) -> f32 {{\n{body}  return {op.final};\n}}\n"
    params = first + (op.inputs + 1) * (rank + 1)
    return element_kernel(buffers + len(op.stages), params, dtype, text, slot(1))


# --- arrays --------------------------------------------------------------------------------------


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _nearest(steps: Shape) -> int:
    return min((abs(s) for s in steps if s), default=1 << 62)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << (n - 1).bit_length()


def _thread_mapping(software: bool, rows: int, n: int, interleaved: bool) -> tuple[int, int, bool]:
    """Threads of a row, elements each keeps, and whether neighbours are in neighbouring rows.

    On a software adapter a barrier costs more than everything else: no thread shares its row.
    """
    if software:
        lanes, interleaved = 1, False
    elif interleaved and rows >= SIDE_BY_SIDE:
        lanes = WORKGROUP // SIDE_BY_SIDE
    else:
        lanes, interleaved = min(WORKGROUP, _power_of_two(-(-n // WANTED))), False
    held = _power_of_two(-(-n // lanes))
    return lanes, held if held <= HELD else 0, interleaved


def floating(name: str, array: WebGPUArray) -> DType:
    """The dtype of an array, which must be a float."""
    dtype = FROM_NP[array.dtype]
    if not dtype.is_float:
        raise DtypeError(f"{name}: takes floating dtypes, got {dtype}; cast it with astype()")
    return dtype


def _run(
    dev: WebGPU, name: str, *arrays: WebGPUArray, axes: Shape, eps: float = 0.0
) -> WebGPUArray:
    """The op on the rows that `axes` make; every array has the shape of the first."""
    shape, dtype = arrays[0].shape, floating(name, arrays[0])
    if not size_of(shape):
        return dev.empty(shape, dtype)
    arrays = tuple(copy_kernels.fit_bindings(dev, arrays))
    stay = tuple(a for a in range(len(shape)) if a not in axes)
    rows, n = (size_of(tuple(shape[a] for a in some)) for some in (stay, axes))
    head = [rows, n, _bits(n), _bits(eps)]
    # Mesa's software adapter silently ends all loops of a thread after 65535 iterations in total
    if n >= LONG and (rows < FEW or dev.gpu.is_software):
        return _run_split(dev, name, arrays, stay, axes, head)
    strides = [*(a.strides for a in arrays), row_major(shape)]
    (row_sizes, row_strides), (term_sizes, term_strides) = (
        collapse(tuple(shape[a] for a in some), [tuple(s[a] for a in some) for s in strides])
        for some in (stay, axes)
    )
    interleaved = _nearest(row_strides[0]) < _nearest(term_strides[0])
    lanes, held, interleaved = _thread_mapping(dev.gpu.is_software, rows, n, interleaved)
    each = layout(dtype).per_word
    packed = n % each == 0 and term_strides[-1] == (1,)
    result = dtype if packed or each == 1 else _F32
    storages, bindings = distinct(arrays)
    each = each if packed else 1
    held = max(held, each) if held else 0
    plan = RowKernelPlan(
        name, dtype, bindings, len(row_sizes), len(term_sizes), lanes, held, interleaved, each
    )
    params = [*head, *row_sizes[1:], *term_sizes[1:]]
    offsets = [*(a.offset for a in arrays), 0]
    for offset, k, s in zip(offsets, row_strides, term_strides, strict=True):
        params += (offset, *k, *s)
    out: WebGPUArray = dev.empty(shape, result)
    threads = -(-rows * lanes // WORKGROUP) * WORKGROUP
    dev.launch(name, _row_text(plan), storages, out, params, threads)
    return as_dtype(dev, out, dtype)


def _run_split(
    dev: WebGPU, name: str, arrays: Sequence[WebGPUArray], stay: Shape, axes: Shape, head: list[int]
) -> WebGPUArray:
    """A few long rows: each stage runs one workgroup for each piece."""
    op, shape, dtype = OPS[name], arrays[0].shape, FROM_NP[arrays[0].dtype]
    storages, bindings = distinct(arrays)
    strides = [a.strides for a in arrays]
    (row_sizes, row_strides), (term_sizes, term_strides) = (
        collapse(tuple(shape[a] for a in some), [tuple(s[a] for a in some) for s in strides])
        for some in (stay, axes)
    )
    plan = RowKernelPlan(name, dtype, bindings, len(row_sizes), len(term_sizes))
    pieces = -(-head[1] // PIECE)
    params = [*head, *row_sizes[1:], *term_sizes[1:]]
    for a, k, s in zip(arrays, row_strides, term_strides, strict=True):
        params += (a.offset, *k, *s)
    totals: list[Any] = []
    for number, stage in enumerate(op.stages):
        parts = dev.empty((len(stage.terms), head[0], pieces), _F32)
        text = _stage_text(plan, number)
        threads = head[0] * pieces * WORKGROUP
        dev.launch(name, text, [*storages, *totals], parts, [*params, pieces], threads)
        totals.append(reduction.accumulate(dev, name, stage.combine, parts, (2,)).storage)
    numbers = dict(zip(stay, row_major(tuple(shape[a] for a in stay)), strict=True))
    row_steps = tuple(numbers.get(a, 0) for a in range(len(shape)))
    sizes, steps = collapse(shape, [*strides, row_steps])
    head = [head[0], size_of(shape), *head[2:], *sizes[1:]]
    for offset, k in zip([*(a.offset for a in arrays), 0], steps, strict=True):
        head += (offset, *k)
    out: WebGPUArray = dev.empty(shape, dtype)
    text = _final_text(name, dtype, bindings, len(sizes))
    count = thread_count(dtype, size_of(shape))
    dev.launch(name, text, [*storages, *totals], out, head, count)
    return out


def _along(name: str) -> Callable[..., WebGPUArray]:
    """A kernel along one axis."""
    return lambda dev, *arrays, axis: _run(dev, name, *arrays, axes=(axis,))


def _over(name: str) -> Callable[..., WebGPUArray]:
    """A kernel over several axes."""
    return lambda dev, *arrays, axes, eps: _run(dev, name, *arrays, axes=axes, eps=eps)


KERNELS: dict[str, Callable[..., WebGPUArray]] = {
    **{name: _along(name) for name in OPS if "softmax" in name},
    **{name: _over(name) for name in OPS if "standardize" in name},
}

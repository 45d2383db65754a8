"""Gather and scatter. The GPU records an index out of range, and the next read raises it; until
then WebGPU's bounds checks keep it harmless."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, distinct
from everygrad.backends.webgpu.kernels.copy_kernels import fit_bindings
from everygrad.backends.webgpu.kernels.reduction import accumulator_dtype, as_dtype
from everygrad.backends.webgpu.kernels.sorted_scatter import add_sorted
from everygrad.backends.webgpu.source.render import (
    MAIN,
    THREAD,
    address,
    cast,
    constant,
    element_kernel,
    frame,
    instruction,
    slot,
    split_index,
)
from everygrad.backends.webgpu.source.word_layout import layout, load, raw, thread_count
from everygrad.compiler.expr import Inst, Program
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import EverygradError, OutOfRangeError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_WORD = {"l": "{0}.x", "ul": "{0}.x", "i": "bitcast<u32>({0})", "u": "{0}", "b": "u32(!{0})"}
_HIGH = {"l": "{0}.y", "ul": "{0}.y", "i": "bitcast<u32>({0} >> 31u)", "u": "0u", "b": "0u"}
CHECK, MESSAGE = (
    "check_range",
    2,
)  # a check's name, and the word of its uniform that numbers its message
# so few indices that each result searches them all, always in one order
ONE_BY_ONE = edge(__name__, "ONE_BY_ONE", 64, "size")


def _read_index(dtype: DType, buffer: str, at: str, name: str) -> str:
    """Lines that load an index as the word `name`."""
    word = _WORD[layout(dtype).kind].format(f"{name}_")
    return (
        f"  let {name}_at = {at};\n"
        f"  let {name}_: {layout(dtype).register} = {load(dtype, buffer, f'{name}_at')};\n"
        f"  let {name} = {word};\n"
    )


# --- checks --------------------------------------------------------------------------------------


@lru_cache
def _check_text(dtype: DType, rank: int) -> str:
    """Bools must be true, indices below the axis' size. Uniform: the count, that size, the check's
    number; then sizes, offset and strides."""
    lines, names = split_index(rank, 3, "t")
    kind = layout(dtype).kind
    at = address(2 + rank, names)
    text = (
        MAIN + THREAD + f"  if (t >= {slot(0)}) {{ return; }}\n" + "\n".join(lines) + "\n"
        f"  let p = {at};\n  let x: {layout(dtype).register} = {load(dtype, 'a0', 'p')};\n"
        f"  let low = {_WORD[kind].format('x')};\n  let high = {_HIGH[kind].format('x')};\n"
        f"  if (high != 0u || low >= {slot(1)}) {{\n"
        "    if (atomicAdd(&out[0], 1u) == 0u) {\n"
        f"      atomicStore(&out[1], {slot(2)});\n      atomicStore(&out[2], low);\n"
        "      atomicStore(&out[3], high);\n    }\n  }\n}\n"
    )
    return frame(1, 3 + 2 * rank, text, "out: array<atomic<u32>>")


def check_range(dev: WebGPU, x: WebGPUArray, size: int, what: str) -> WebGPUArray:
    return _checked(x, size, what, OutOfRangeError)


def check_true(dev: WebGPU, ok: WebGPUArray, what: str, error: type[EverygradError]) -> WebGPUArray:
    return _checked(ok, 1, what, error)


def _checked(x: WebGPUArray, size: int, what: str, error: type[EverygradError]) -> WebGPUArray:
    if x.storage is None:
        return x
    gpu = x.storage.gpu
    sizes, (steps,) = collapse(x.shape, [x.strides])
    count = size_of(sizes)
    params = [count, size, gpu.check_number(what, size, error), *sizes[1:], x.offset, *steps]
    source = _check_text(FROM_NP[x.dtype], len(sizes))
    faults = [gpu.fault_storage()]
    gpu.dispatch(CHECK, source, [x.storage], faults, params, -(-count // 256))
    return x


def _empty_axis_error(dev: WebGPU, op: str, index: WebGPUArray, size: int) -> OutOfRangeError:
    first = int(dev.to_numpy(index).reshape(-1)[0])
    return OutOfRangeError(f"{op}: index {first} is out of range for an axis of size {size}")


# --- take and gather -----------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _take_text(
    dtype: DType, index: DType, ranks: tuple[int, int, int], bindings: tuple[int, int]
) -> str:
    """Results have axes before, of the index, and after. Uniform: count, sizes; x's offset,
    strides, and that of the axis taken from; the index' offset and strides."""
    before, middle, after = ranks
    rank = before + middle + after
    lines, names = split_index(rank, 1)
    inner = names[before : before + middle]
    outer = names[:before] + names[before + middle :]
    x_at = rank
    index_at = x_at + 2 + len(outer)
    text = f"fn element(e: u32) -> {layout(dtype).register} {{\n" + "\n".join(lines) + "\n"
    text += _read_index(index, f"a{bindings[1]}", address(index_at, inner), "k")
    text += f"  let p = {address(x_at, [*outer, 'k'])};\n"
    text += f"  return {load(dtype, f'a{bindings[0]}', 'p')};\n}}\n"
    params = index_at + 1 + middle
    return element_kernel(max(bindings) + 1, params, dtype, text, slot(0))


def take(dev: WebGPU, x: WebGPUArray, index: WebGPUArray, axis: int) -> WebGPUArray:
    dtype = FROM_NP[x.dtype]
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    if index.storage is not None and x.shape[axis] == 0:
        raise _empty_axis_error(dev, "take", index, 0)
    check_range(dev, index, x.shape[axis], "take: index")
    out: WebGPUArray = dev.empty(shape, dtype)
    if out.storage is None:
        return out
    ranks = (axis, len(index.shape), len(x.shape) - axis - 1)
    if not shape:
        ranks, shape = (0, 1, 0), (1,)
        index = index.view((1,), (0,))
    storages, bindings = distinct([x, index])
    steps = (*x.strides[:axis], *x.strides[axis + 1 :], x.strides[axis])
    params = [size_of(shape), *shape[1:], x.offset, *steps, index.offset, *index.strides]
    dtype = raw(dtype)
    source = _take_text(dtype, FROM_NP[index.dtype], ranks, (bindings[0], bindings[1]))
    dev.launch("take", source, storages, out, params, thread_count(dtype, size_of(shape)))
    return out


@lru_cache(maxsize=512)
def _gather_text(
    dtype: DType, index: DType, rank: int, axis: int, bindings: tuple[int, int]
) -> str:
    """Uniform: count, sizes; x's offset and strides; the index' offset and strides."""
    lines, names = split_index(rank, 1)
    text = f"fn element(e: u32) -> {layout(dtype).register} {{\n" + "\n".join(lines) + "\n"
    text += _read_index(index, f"a{bindings[1]}", address(rank + 1 + rank, names), "k")
    coordinates = ["k" if a == axis else n for a, n in enumerate(names)]
    text += f"  let p = {address(rank, coordinates)};\n"
    text += f"  return {load(dtype, f'a{bindings[0]}', 'p')};\n}}\n"
    return element_kernel(max(bindings) + 1, 3 * rank + 2, dtype, text, slot(0))


def gather(dev: WebGPU, x: WebGPUArray, index: WebGPUArray, axis: int) -> WebGPUArray:
    dtype = FROM_NP[x.dtype]
    if index.storage is not None and x.storage is None:
        raise _empty_axis_error(dev, "gather", index, x.shape[axis])
    check_range(dev, index, x.shape[axis], "gather: index")
    out: WebGPUArray = dev.empty(index.shape, dtype)
    if out.storage is None:
        return out
    storages, bindings = distinct([x, index])
    shape = index.shape
    count = size_of(shape)
    params = [count, *shape[1:], x.offset, *x.strides, index.offset, *index.strides]
    rank = len(shape)
    dtype = raw(dtype)
    source = _gather_text(dtype, FROM_NP[index.dtype], rank, axis, (bindings[0], bindings[1]))
    dev.launch("gather", source, storages, out, params, thread_count(dtype, count))
    return out


# --- scatter-add ---------------------------------------------------------------------------------


def _add(dtype: DType, a: str, b: str) -> str:
    return instruction(Inst("add", dtype, (0, 1)), [a, b], [dtype, dtype])


@lru_cache(maxsize=512)
def _search_text(
    dtype: DType, index: DType, rank: int, axis: int, whole: bool, bindings: tuple[int, int, int]
) -> str:
    """Each result searches the indices. Uniform: count, sizes; then of x, the index and the
    source offset and strides; then the sizes of the index (of `whole`: its one size)."""
    total = accumulator_dtype(dtype)
    lines, names = split_index(rank, 1)
    index_rank = 1 if whole else rank
    index_at = rank + 1 + rank
    source_at = index_at + 1 + index_rank
    sizes_at = source_at + 1 + rank
    moving = ["j" if a == axis else n for a, n in enumerate(names)]
    terms = slot(sizes_at + (0 if whole else axis))
    others = [a for a in range(rank) if a != axis] if not whole else []
    fits = " && ".join(f"i{a} < {slot(sizes_at + a)}" for a in others) or "true"
    text = (
        f"fn element(e: u32) -> {layout(dtype).register} {{\n" + "\n".join(lines) + "\n"
        f"  let p = {address(rank, names)};\n"
        f"  let x: {layout(dtype).register} = {load(dtype, f'a{bindings[0]}', 'p')};\n"
        f"  let start: {layout(total).register} = {cast('x', dtype, total)};\n"
        f"  var sum: {layout(total).register} = {constant(0, total)};\n"
        f"  if ({fits}) {{\n  for (var j = 0u; j < {terms}; j = j + 1u) {{\n"
        + _read_index(index, f"a{bindings[1]}", address(index_at, ["j"] if whole else moving), "k")
        + f"  if (k == i{axis}) {{\n  let q = {address(source_at, moving)};\n"
        f"  let y: {layout(dtype).register} = {load(dtype, f'a{bindings[2]}', 'q')};\n"
        f"  let z: {layout(total).register} = {cast('y', dtype, total)};\n"
        f"  sum = {_add(total, 'sum', 'z')};\n  }}\n  }}\n  }}\n"
        f"  let all: {layout(total).register} = {_add(total, 'start', 'sum')};\n"
        f"  return {cast('all', total, dtype)};\n}}\n"
    )
    params = sizes_at + index_rank
    return element_kernel(max(bindings) + 1, params, dtype, text, slot(0))


_ADD_WORD = "  atomicAdd(&out[p], {0});\n"


@lru_cache(maxsize=512)
def _atomic_text(
    dtype: DType, index: DType, rank: int, axis: int, whole: bool, bindings: tuple[int, int]
) -> str:
    """Each integer of the source is added atomically, in any order. Uniform: count, the source's
    sizes; offset and strides of the source and of the index; strides of the result."""
    total = accumulator_dtype(dtype)
    lines, names = split_index(rank, 1, "t")
    index_rank = 1 if whole else rank
    index_at = rank + 1 + rank
    out_at = index_at + 1 + index_rank
    coordinates = ["k" if a == axis else n for a, n in enumerate(names)]
    word = "bitcast<u32>(v)" if layout(total).kind == "i" else "v"
    text = (
        MAIN + THREAD + f"  if (t >= {slot(0)}) {{ return; }}\n" + "\n".join(lines) + "\n"
        + _read_index(
            index, f"a{bindings[1]}", address(index_at, [names[axis]] if whole else names), "k"
        )
        + f"  let q = {address(rank, names)};\n"
        f"  let y: {layout(dtype).register} = {load(dtype, f'a{bindings[0]}', 'q')};\n"
        f"  let v: {layout(total).register} = {cast('y', dtype, total)};\n"
        f"  let p = {address(out_at, coordinates)};\n{_ADD_WORD.format(word)}}}\n"
    )  # fmt: skip
    params = out_at + 1 + rank
    return frame(max(bindings) + 1, params, text, "out: array<atomic<u32>>")


def _scatter(
    dev: WebGPU,
    op: str,
    x: WebGPUArray,
    index: WebGPUArray,
    source: WebGPUArray,
    axis: int,
    whole: bool,
) -> WebGPUArray:
    if index.storage is not None and x.storage is None:
        if x.shape[axis] == 0:
            raise _empty_axis_error(dev, op, index, 0)
        return x
    check_range(dev, index, x.shape[axis], f"{op}: index")
    if source.storage is None or x.storage is None:
        return x
    dtype, of = FROM_NP[x.dtype], FROM_NP[index.dtype]
    rank = len(x.shape)
    terms = index.shape[0] if whole else index.shape[axis]
    if terms <= ONE_BY_ONE or dtype.bits == 64:
        x, index, source = fit_bindings(dev, [x, index, source])
        storages, b3 = distinct([x, index, source])
        out: WebGPUArray = dev.empty(x.shape, dtype)
        count = size_of(x.shape)
        params = [count, *x.shape[1:], x.offset, *x.strides, index.offset, *index.strides]
        params += (source.offset, *source.strides, *index.shape)
        text = _search_text(dtype, of, rank, axis, whole, (b3[0], b3[1], b3[2]))
        dev.launch(op, text, storages, out, params, thread_count(dtype, count))
        return out
    total = accumulator_dtype(dtype)
    out = _copied(dev, as_dtype(dev, x, total))
    if layout(total).kind == "f":
        kind = layout(of).kind
        words = (_WORD[kind].format("k_"), _HIGH[kind].format("k_"))
        add_sorted(dev, op, out, index, source, axis, whole, words)
        return as_dtype(dev, out, dtype)
    storages, b2 = distinct([source, index])
    count = size_of(source.shape)
    params = [count, *source.shape[1:], source.offset, *source.strides]
    params += (index.offset, *index.strides, 0, *out.strides)
    text = _atomic_text(dtype, of, rank, axis, whole, (b2[0], b2[1]))
    dev.launch(op, text, storages, out, params, count)
    return as_dtype(dev, out, dtype)


def _copied(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """A contiguous copy with no other owner, to be added to."""
    dtype = FROM_NP[x.dtype]
    out: WebGPUArray = dev.elementwise("copy", Program((Inst("input", dtype, (), 0),)), [x])
    return out


def index_add(
    dev: WebGPU, x: WebGPUArray, index: WebGPUArray, source: WebGPUArray, axis: int
) -> WebGPUArray:
    return _scatter(dev, "index_add", x, index, source, axis, whole=True)


def scatter_add(
    dev: WebGPU, x: WebGPUArray, index: WebGPUArray, source: WebGPUArray, axis: int
) -> WebGPUArray:
    return _scatter(dev, "scatter_add", x, index, source, axis, whole=False)


# --- the last write ------------------------------------------------------------------------------


@lru_cache
def _last_text(index: DType) -> str:
    text = (
        MAIN + THREAD + f"  if (t >= {slot(0)}) {{ return; }}\n"
        + _read_index(index, "a0", f"{slot(1)} + t * {slot(2)}", "k")
        + "  atomicMax(&out[k], t + 1u);\n}\n"
    )  # fmt: skip
    return frame(1, 3, text, "out: array<atomic<u32>>")


@lru_cache
def _minus_one(dtype: DType) -> Program:
    return Program(
        (
            Inst("input", dtypes.uint32, (), 0),
            Inst("cast", dtype, (0,)),
            Inst("const", dtype, (), 1),
            Inst("sub", dtype, (1, 2)),
        )
    )


def last_write(dev: WebGPU, index: WebGPUArray, size: int) -> WebGPUArray:
    """Positions are counted from 1, so that 0 means that nothing is written there."""
    dtype = FROM_NP[index.dtype]
    if not size:
        if index.storage is not None:
            raise _empty_axis_error(dev, "setitem", index, 0)
        return dev.empty((0,), dtype)
    check_range(dev, index, size, "setitem: index")
    found = _copied(dev, dev.full((size,), 0, dtypes.uint32))
    if index.storage is not None:
        params = [index.shape[0], index.offset, index.strides[0]]
        dev.launch("last_write", _last_text(dtype), [index.storage], found, params, index.shape[0])
    out: WebGPUArray = dev.elementwise("last_write", _minus_one(dtype), [found])
    return out

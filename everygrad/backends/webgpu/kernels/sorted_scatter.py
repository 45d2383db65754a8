"""Scatter-add of floats in a fixed order: pairs of (target, position) are sorted, and equal
targets, which are then neighbours, are summed one after the other. Atomic additions would change
their order, and with it the last digits, from run to run.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, distinct
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
from everygrad.compiler.expr import Inst
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

CHUNK = edge(__name__, "CHUNK", 1024, "size")  # pairs that one workgroup sorts: 8 KiB
_COLUMNS = edge(__name__, "_COLUMNS", 32, "size")  # of a workgroup that sums whole slices
_CROWDED = 4  # indices for each target, above which a workgroup sums a target's values
_NONE = "0xffffffffu"  # the target of padding and of bad indices: they sort last

_IS_AFTER = (
    "fn is_after(a: vec2<u32>, b: vec2<u32>) -> bool {\n"
    "  return a.x > b.x || (a.x == b.x && a.y > b.y);\n}\n"
)


@lru_cache(maxsize=256)
def _keys_text(index: DType, word: str, high: str, rank: int, axis: int, whole: bool) -> str:
    """Write the pairs: the target's number, the position among the indices. Uniform: the capacity,
    the number of indices, the size of the axis; the index' sizes, offset and strides; x's sizes."""
    ranks = 1 if whole else rank
    lines, names = split_index(ranks, 3, "t")
    index_at = 2 + ranks
    sizes_at = index_at + 1 + ranks
    target = "k"
    if not whole:
        for a, name in enumerate(names):
            where = "k" if a == axis else name
            target = f"({target} * {slot(sizes_at + a)} + {where})" if a else where
    text = (
        MAIN + THREAD + f"  if (t >= {slot(0)}) {{ return; }}\n"
        f"  var target_place = {_NONE};\n  if (t < {slot(1)}) {{\n" + "\n".join(lines) + "\n"
        f"  let at = {address(index_at, names)};\n"
        f"  let k_: {layout(index).register} = {load(index, 'a0', 'at')};\n"
        f"  let k = {word};\n"
        f"  if ({high} == 0u && k < {slot(2)}) {{ target_place = {target}; }}\n  }}\n"
        "  out[2u * t] = target_place;\n  out[2u * t + 1u] = t;\n}\n"
    )  # fmt: skip
    return frame(1, sizes_at + rank, text)


@lru_cache
def _sort_text(first: bool) -> str:
    """Workgroups sort (`first`), or merge, the pairs of a chunk in shared memory, by a bitonic
    network. Uniform: the size of the runs to merge."""
    sizes = f"for (var size = 2u; size <= {CHUNK}u; size = size * 2u)"
    if not first:
        sizes = f"let size = {slot(0)};\n "
    move = f"for (var i = l; i < {CHUNK}u; i = i + 256u)"
    text = (
        _IS_AFTER + f"var<workgroup> held: array<vec2<u32>, {CHUNK}>;\n" + MAIN
        + f"  let start = (w.y * g.x + w.x) * {CHUNK}u;\n  if (start >= {slot(1)}) {{ return; }}\n"
        f"  {move} {{\n"
        "    held[i] = vec2<u32>(out[2u * (start + i)], out[2u * (start + i) + 1u]);\n  }\n"
        f"  {sizes} {{\n  for (var d = min(size, {CHUNK}u) / 2u; d > 0u; d = d / 2u) {{\n"
        "    workgroupBarrier();\n"
        f"    for (var t = l; t < {CHUNK // 2}u; t = t + 256u) {{\n"
        "      let i = 2u * t - (t & (d - 1u));\n"
        "      let a = held[i];\n      let b = held[i + d];\n"
        "      let up = ((start + i) & size) == 0u;\n"
        "      if (is_after(a, b) == up) { held[i] = b; held[i + d] = a; }\n    }\n  }\n  }\n"
        f"  workgroupBarrier();\n  {move} {{\n    let pair = held[i];\n"
        "    out[2u * (start + i)] = pair.x;\n    out[2u * (start + i) + 1u] = pair.y;\n  }\n}\n"
    )  # fmt: skip
    return frame(0, 2, text)


@lru_cache
def _step_text() -> str:
    """One step of the network between pairs that are further apart than a chunk. Uniform: half the
    capacity, the size of the runs, the distance."""
    size, d = slot(1), slot(2)
    text = (
        _IS_AFTER + MAIN + THREAD + f"  if (t >= {slot(0)}) {{ return; }}\n"
        f"  let i = 2u * t - (t & ({d} - 1u));\n  let j = i + {d};\n"
        "  let a = vec2<u32>(out[2u * i], out[2u * i + 1u]);\n"
        "  let b = vec2<u32>(out[2u * j], out[2u * j + 1u]);\n"
        f"  if (is_after(a, b) == ((i & {size}) == 0u)) {{\n"
        "    out[2u * i] = b.x;\n    out[2u * i + 1u] = b.y;\n"
        "    out[2u * j] = a.x;\n    out[2u * j + 1u] = a.y;\n  }\n}\n"
    )
    return frame(0, 3, text)


def _sort(dev: WebGPU, op: str, keys: WebGPUArray, capacity: int) -> None:
    """Sort pairs in place; their number is a power of two, and at least a chunk."""
    dev.launch(op, _sort_text(True), [], keys, [0, capacity], capacity // CHUNK * 256)
    size = 2 * CHUNK
    while size <= capacity:
        d = size // 2
        while d >= CHUNK:
            dev.launch(op, _step_text(), [], keys, [capacity // 2, size, d], capacity // 2)
            d //= 2
        dev.launch(op, _sort_text(False), [], keys, [size, capacity], capacity // CHUNK * 256)
        size *= 2


def _value_lines(dtype: DType, total: DType, rank: int, axis: int, whole: bool, first: int) -> str:
    """A function from a position and a column to the source's value, and one to the place of a
    target and a column in the result. Uniform, from `first`: the source's sizes (of `whole`: all
    but the axis), offset and strides; the elements that follow the axis, the size of the axis."""
    ranks = rank - 1 if whole else rank
    lines, names = split_index(max(1, ranks), first, "column" if whole else "position")
    at = first + max(1, ranks) - 1
    if whole:
        names = names[: rank - 1]
        names.insert(axis, "position")
    inner, size = slot(at + 1 + rank), slot(at + 2 + rank)
    place = f"(column / {inner} * {size} + place) * {inner} + column % {inner}"
    return (
        f"fn value(position: u32, column: u32) -> {layout(total).register} {{\n"
        + "\n".join(lines) + f"\n  let p = {address(at, names)};\n"
        f"  let y: {layout(dtype).register} = {load(dtype, 'a1', 'p')};\n"
        f"  return {cast('y', dtype, total)};\n}}\n"
        f"fn result(place: u32, column: u32) -> u32 {{ return {place if whole else 'place'}; }}\n"
    )  # fmt: skip


def _value_params(rank: int, whole: bool) -> int:
    return max(1, rank - 1 if whole else rank) - 1 + 1 + rank + 2


def _plus(total: DType, a: str, b: str) -> str:
    return instruction(Inst("add", total, (0, 1)), [a, b], [total, total])


def _add_to_result(total: DType) -> str:
    was = load(total, "out", "o")
    return (
        "    let o = result(place, column);\n"
        f"    let was: {layout(total).register} = {was};\n"
        f"    let all: {layout(total).register} = {_plus(total, 'was', 'sum')};\n"
        f"    out[o] = {layout(total).bits.format(v='all')};\n"
    )


@lru_cache(maxsize=256)
def _runs_text(dtype: DType, total: DType, rank: int, axis: int, whole: bool) -> str:
    """A thread for each pair and column; that of a target's first pair sums the values of all its
    pairs. Uniform: the pairs, the columns; then what `_value_lines` reads."""
    text = (
        _value_lines(dtype, total, rank, axis, whole, 2) + MAIN + THREAD
        + f"  let first = t / {slot(1)};\n  let column = t % {slot(1)};\n"
        f"  if (first >= {slot(0)}) {{ return; }}\n  let place = a0[2u * first];\n"
        f"  if (place == {_NONE}) {{ return; }}\n"
        "  if (first > 0u) { if (a0[2u * first - 2u] == place) { return; } }\n"
        f"  var sum: {layout(total).register} = {constant(0, total)};\n"
        f"  for (var q = first; q < {slot(0)}; q = q + 1u) {{\n"
        "    if (a0[2u * q] != place) { break; }\n"
        "    let v = value(a0[2u * q + 1u], column);\n"
        f"    sum = {_plus(total, 'sum', 'v')};\n  }}\n  {{\n" + _add_to_result(total) + "  }\n}\n"
    )  # fmt: skip
    return frame(2, 2 + _value_params(rank, whole), text)


@lru_cache(maxsize=256)
def _targets_text(
    dtype: DType, total: DType, rank: int, axis: int, whole: bool, across: int
) -> str:
    """A workgroup for each target and `across` columns: its threads share the target's pairs.
    Uniform: the pairs, the columns, the targets; then what `_value_lines` reads."""
    register = layout(total).register
    beside = 256 // across
    text = (
        _value_lines(dtype, total, rank, axis, whole, 3)
        + f"fn first_of(place: u32) -> u32 {{\n  var low = 0u;\n  var high = {slot(0)};\n"
        "  while (low < high) {\n    let middle = low + (high - low) / 2u;\n"
        "    if (a0[2u * middle] < place) { low = middle + 1u; } else { high = middle; }\n"
        "  }\n  return low;\n}\n"
        f"var<workgroup> part: array<{register}, 256>;\n" + MAIN
        + f"  let tiles = ({slot(1)} + {across - 1}u) / {across}u;\n"
        "  let group = w.y * g.x + w.x;\n  let place = group / tiles;\n"
        f"  if (place >= {slot(2)}) {{ return; }}\n"
        f"  let column = (group % tiles) * {across}u + l % {across}u;\n"
        f"  let there = column < {slot(1)};\n"
        "  let first = first_of(place);\n  let end = first_of(place + 1u);\n"
        f"  var sum: {register} = {constant(0, total)};\n"
        f"  if (there) {{\n  for (var q = first + l / {across}u; q < end; q = q + {beside}u) {{\n"
        "    let v = value(a0[2u * q + 1u], column);\n"
        f"    sum = {_plus(total, 'sum', 'v')};\n  }}\n  }}\n  part[l] = sum;\n"
        f"  for (var d = {beside // 2}u; d > 0u; d = d / 2u) {{\n    workgroupBarrier();\n"
        f"    if (l / {across}u < d) {{\n      let a = part[l];\n"
        f"      let b = part[l + d * {across}u];\n"
        f"      part[l] = {_plus(total, 'a', 'b')};\n    }}\n  }}\n"
        f"  if (l < {across}u && there && first < end) {{\n    sum = part[l];\n"
        + _add_to_result(total) + "  }\n}\n"
    )  # fmt: skip
    return frame(2, 3 + _value_params(rank, whole), text)


def add_sorted(
    dev: WebGPU,
    op: str,
    out: WebGPUArray,
    index: WebGPUArray,
    source: WebGPUArray,
    axis: int,
    whole: bool,
    words: tuple[str, str],
) -> None:
    """Add the source to `out`, which is contiguous and has the accumulator's dtype.

    whole  an index selects a whole slice, not one element
    words  the low and the high word of an index `k_`, as expressions
    """
    dtype, total, rank = FROM_NP[source.dtype], FROM_NP[out.dtype], len(out.shape)
    pairs = size_of(index.shape)
    capacity = max(CHUNK, 1 << (pairs - 1).bit_length())
    keys: WebGPUArray = dev.empty((2 * capacity,), dtypes.uint32)
    text = _keys_text(FROM_NP[index.dtype], *words, rank, axis, whole)
    assert index.storage is not None
    params = [capacity, pairs, out.shape[axis], *index.shape[1:], index.offset, *index.strides]
    dev.launch(op, text, [index.storage], keys, [*params, *out.shape], capacity)
    _sort(dev, op, keys, capacity)
    rest = (*out.shape[:axis], *out.shape[axis + 1 :]) if whole else ()
    columns = size_of(rest)
    targets = out.shape[axis] if whole else size_of(out.shape)
    inner = size_of(out.shape[axis + 1 :]) if whole else 1
    sizes = rest[1:] if whole else source.shape[1:]
    tail = [*sizes, source.offset, *source.strides, inner, out.shape[axis]]
    storages, _ = distinct([keys, source])
    if pairs <= _CROWDED * targets:
        text = _runs_text(dtype, total, rank, axis, whole)
        dev.launch(op, text, storages, out, [pairs, columns, *tail], pairs * columns)
        return
    across = _COLUMNS if columns >= _COLUMNS else 1
    text = _targets_text(dtype, total, rank, axis, whole, across)
    groups = targets * -(-columns // across)
    dev.launch(op, text, storages, out, [pairs, columns, targets, *tail], groups * 256)

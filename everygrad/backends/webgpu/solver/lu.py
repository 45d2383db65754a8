"""LU with partial pivoting, a block of columns after the other, and the order of rows it gives."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.kernels.copy_kernels import concat_into, contiguous
from everygrad.backends.webgpu.solver.matrices import (
    BARRIER,
    BLOCK,
    BODY,
    FLOATS,
    batch_of,
    kernel,
    launch,
    matrices,
    place,
    product,
)
from everygrad.backends.webgpu.source.render import slot
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


@lru_cache
def _panel_text() -> str:
    """Eliminate the columns k to k + kb, one workgroup a matrix; each pivot, which is the first of
    the largest, is noted in the last column. Uniform: first matrix, k, kb, rows, columns; the
    matrices."""
    k, size, rows, columns = (slot(i) for i in range(1, 5))

    def at(row: str, column: str) -> str:
        return place("out", 5, row, column)

    return kernel(
        0,
        (FLOATS,),
        9,
        "var<workgroup> best: array<f32, 256>;\nvar<workgroup> found: array<u32, 256>;\n"
        f"var<workgroup> line: array<f32, {BLOCK}>;\n"
        + BODY
        + f"  for (var j = 0u; j < {size}; j = j + 1u) {{\n"
        f"    let d = {k} + j;\n"
        "    var most = -1.0;\n    var where_ = d;\n"
        f"    for (var r = d + l; r < {rows}; r = r + 256u) {{\n"
        f"      var v = abs_f({at('r', 'd')});\n"
        "      if (is_nan(v)) { v = bits_f(0x7f800000u); }\n"
        "      if (v > most) { most = v; where_ = r; }\n    }\n"
        "    best[l] = most;\n    found[l] = where_;\n    workgroupBarrier();\n"
        "    for (var half = 128u; half > 0u; half = half >> 1u) {\n"
        "      if (l < half) {\n"
        "        let v = best[l + half];\n        let r = found[l + half];\n"
        "        if (v > best[l] || (v == best[l] && r < found[l])) {\n"
        "          best[l] = v;\n          found[l] = r;\n        }\n      }\n"
        "      workgroupBarrier();\n    }\n"
        "    let p = found[0];\n"
        f"    if (l < {size}) {{\n"
        f"      let c = {k} + l;\n      let chosen = {at('p', 'c')};\n      line[l] = chosen;\n"
        f"      if (p != d) {{\n        {at('p', 'c')} = {at('d', 'c')};\n"
        f"        {at('d', 'c')} = chosen;\n      }}\n    }}\n"
        f"    if (l == 0u) {{ {at('d', columns)} = f32(p); }}\n    {BARRIER}"
        "    let corner = line[j];\n"
        "    if (!is_zero(corner)) {\n"
        f"      for (var r = d + 1u + l; r < {rows}; r = r + 256u) {{\n"
        f"        let f = div_f({at('r', 'd')}, corner);\n        {at('r', 'd')} = f;\n"
        f"        for (var i = j + 1u; i < {size}; i = i + 1u) {{\n"
        f"          let c = {k} + i;\n          {at('r', 'c')} = {at('r', 'c')} - f * line[i];\n"
        f"        }}\n      }}\n    }}\n    {BARRIER}  }}\n}}\n",
    )


@lru_cache
def _rows_text() -> str:
    """Exchange the rows of the other columns, one a thread, and solve for the rows of U beside the
    block. Uniform: first matrix, k, kb, columns; the matrices."""
    k, size, columns = (slot(i) for i in range(1, 4))

    def at(row: str, column: str) -> str:
        return place("out", 4, row, column)

    return kernel(
        0,
        (FLOATS,),
        8,
        f"var<workgroup> s: array<f32, {BLOCK * BLOCK}>;\n"
        f"var<workgroup> pivots: array<u32, {BLOCK}>;\n"
        + BODY
        + f"  for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"    let i = e / {BLOCK}u;\n    let j = e % {BLOCK}u;\n"
        f"    if (i < {size} && j < {size}) {{ s[e] = {at(f'{k} + i', f'{k} + j')}; }}\n  }}\n"
        f"  if (l < {size}) {{ pivots[l] = u32({at(f'{k} + l', columns)}); }}\n"
        "  workgroupBarrier();\n"
        "  var c = w.x * 256u + l;\n"
        f"  if (c >= {k}) {{ c = c + {size}; }}\n  if (c >= {columns}) {{ return; }}\n"
        f"  for (var j = 0u; j < {size}; j = j + 1u) {{\n"
        f"    let d = {k} + j;\n    let p = pivots[j];\n"
        f"    if (p != d) {{\n      let v = {at('d', 'c')};\n"
        f"      {at('d', 'c')} = {at('p', 'c')};\n      {at('p', 'c')} = v;\n    }}\n  }}\n"
        f"  if (c < {k}) {{ return; }}\n"
        f"  var x: array<f32, {BLOCK}>;\n"
        f"  for (var j = 0u; j < {size}; j = j + 1u) {{\n"
        f"    let d = {k} + j;\n    var v = {at('d', 'c')};\n"
        "    for (var i = 0u; i < j; i = i + 1u) {\n"
        f"      v = v - s[j * {BLOCK}u + i] * x[i];\n    }}\n"
        f"    x[j] = v;\n    {at('d', 'c')} = v;\n  }}\n}}\n",
    )


def lu_factor(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """The factors in one matrix, with a column more: the row each row was exchanged with."""
    m, n = x.shape[-2:]
    batch = batch_of(x)
    dtype = FROM_NP[x.dtype]
    out: WebGPUArray = dev.empty((*x.shape[:-1], n + 1), dtype)
    if out.storage is None:
        return out
    zeros = dev.full((*x.shape[:-1], 1), 0, dtype)
    if x.storage is None:
        return contiguous(dev, zeros)
    concat_into(dev, out, [x, zeros], len(x.shape) - 1)
    whole = matrices(dev, out)
    storages = [whole.storage]
    turns = BLOCK * (-(-m // 256) * (BLOCK // 2 + 2) + 10)
    for k in range(0, min(m, n), BLOCK):
        size = min(BLOCK, min(m, n) - k)
        launch(dev, "lu panel", _panel_text(), [], storages,
               [k, size, m, n, *whole.words], (1, 1), batch, turns)  # fmt: skip
        if n > size:
            launch(dev, "lu rows", _rows_text(), [], storages,
                   [k, size, n, *whole.words], (-(-(n - size) // 256), 1), batch)  # fmt: skip
        at = k + size
        product(dev, "lu update", whole.part(at, k), whole.part(k, at), whole.part(at, at),
                (m - at, n - at, size), batch, subtract=True)  # fmt: skip
    return out


@lru_cache
def _order_text() -> str:
    """The exchanges of rows, one after the other, made to the numbers 0, 1, 2, ... as 64-bit
    integers. Uniform: first matrix, pivots, rows; where the pivots lie (column: their stride)."""
    pivots, rows = slot(1), slot(2)
    # 64-bit integers: the low word of the pivot
    o, step, each = (slot(i) for i in (3, 4, 6))
    return kernel(
        1,
        ("array<u32>",),
        7,
        BODY + f"  let start = 2u * b * {rows};\n"
        f"  for (var r = l; r < {rows}; r = r + 256u) {{\n"
        "    out[start + 2u * r] = r;\n    out[start + 2u * r + 1u] = 0u;\n  }\n"
        f"  {BARRIER}  if (l > 0u) {{ return; }}\n"
        f"  for (var k = 0u; k < {pivots}; k = k + 1u) {{\n"
        f"    let p = a0[2u * ({o} + b * {step} + k * {each})];\n"
        "    let v = out[start + 2u * k];\n"
        "    out[start + 2u * k] = out[start + 2u * p];\n    out[start + 2u * p] = v;\n  }\n}\n",
    ).replace("var<storage, read> a0: array<f32>", "var<storage, read> a0: array<u32>")


def row_order(dev: WebGPU, pivots: WebGPUArray, size: int) -> WebGPUArray:
    """Which row comes where after the exchanges that pivots say."""
    count = pivots.shape[-1]
    out: WebGPUArray = dev.empty((*pivots.shape[:-1], size), dtypes.int64)
    if out.storage is None:
        return out
    batch = size_of(pivots.shape[:-1])
    if pivots.storage is None:  # no pivots: any buffer serves
        given, words = dev.full((2,), 0, dtypes.int64), (0, 0, 0, 0)
        given = contiguous(dev, given)
    else:
        given = contiguous(dev, pivots)
        words = (given.offset, count, 0, 1)
    launch(dev, "lu order", _order_text(), [storage_of(given)], [storage_of(out)],
           [count, size, *words], (1, 1), batch, -(-size // 256) + count)  # fmt: skip
    return out

"""Triangular systems, a block of rows after the other."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.solver.matrices import (
    BLOCK,
    BODY,
    FAULTS,
    FLOATS,
    batch_of,
    copied,
    kernel,
    launch,
    matrices,
    place,
    product,
)
from everygrad.backends.webgpu.source.render import slot
from everygrad.core.context import records
from everygrad.errors import ArgumentError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_SHARE = 4096  # results of a workgroup that `_check_text` overwrites


@lru_cache
def _block_text(upper: bool, unit: bool) -> str:
    """Solve with a block on the diagonal, one column a thread; the rows of an upper one from the
    last to the first. Uniform: first matrix, size of the block, columns; the block, the results."""
    row = "kb - 1u - j" if upper else "j"
    other = "kb - 1u - i" if upper else "i"
    value = place("out", 7, "row", "c")
    divided = "v" if unit else f"div_f(v, s[row * {BLOCK}u + row])"
    return kernel(
        1,
        (FLOATS,),
        11,
        f"var<workgroup> s: array<f32, {BLOCK * BLOCK}>;\n" + BODY + f"  let kb = {slot(1)};\n"
        f"  for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"    let r = e / {BLOCK}u;\n    let c = e % {BLOCK}u;\n"
        f"    if (r < kb && c < kb) {{ s[e] = {place('a0', 3, 'r', 'c')}; }}\n"
        "  }\n  workgroupBarrier();\n"
        f"  let c = w.x * 256u + l;\n  if (c >= {slot(2)}) {{ return; }}\n"
        f"  var x: array<f32, {BLOCK}>;\n"
        "  for (var j = 0u; j < kb; j = j + 1u) {\n"
        f"    let row = {row};\n    var v = {value};\n"
        "    for (var i = 0u; i < j; i = i + 1u) {\n"
        f"      v = v - s[row * {BLOCK}u + {other}] * x[i];\n    }}\n"
        f"    x[j] = {divided};\n    {value} = x[j];\n  }}\n}}\n",
    )


@lru_cache
def _check_text() -> str:
    """NaN, and a fault, for a matrix with a 0 on its diagonal. Uniform: first matrix, size,
    results, the check's number; the matrices; where the first result of a matrix lies, from 0."""
    return kernel(
        1,
        (FLOATS, FAULTS),
        8,
        "var<workgroup> zeros: array<u32, 256>;\n" + BODY + "  var count = 0u;\n"
        f"  for (var k = l; k < {slot(1)}; k = k + 256u) {{\n"
        f"    if (is_zero({place('a0', 4, 'k', 'k')})) {{ count = 1u; }}\n  }}\n"
        "  zeros[l] = count;\n  workgroupBarrier();\n"
        "  for (var half = 128u; half > 0u; half = half >> 1u) {\n"
        "    if (l < half) { zeros[l] = zeros[l] | zeros[l + half]; }\n"
        "    workgroupBarrier();\n  }\n"
        "  if (zeros[0] == 0u) { return; }\n"
        "  if (w.x == 0u && l == 0u && atomicAdd(&out1[0], 1u) == 0u) {\n"
        f"    atomicStore(&out1[1], {slot(3)});\n  }}\n"
        f"  let end = min({slot(2)}, (w.x + 1u) * {_SHARE}u);\n"
        f"  for (var e = w.x * {_SHARE}u + l; e < end; e = e + 256u) {{\n"
        f"    out[b * {slot(2)} + e] = nan_f();\n  }}\n}}\n",
    )


def solve_triangular(
    dev: WebGPU, a: WebGPUArray, b: WebGPUArray, upper: bool, unit: bool
) -> WebGPUArray:
    if b.storage is None:
        return b
    (n, columns), batch = b.shape[-2:], batch_of(b)
    out = copied(dev, b)
    left, right = matrices(dev, a), matrices(dev, out)
    starts = range(0, n, BLOCK)
    source = _block_text(upper, unit)
    for k in reversed(starts) if upper else starts:
        size = min(BLOCK, n - k)
        here = right.part(k, 0)
        launch(dev, "solve_triangular", source, [left.storage], [right.storage],
               [size, columns, *left.part(k, k).words, *here.words],
               (-(-columns // 256), 1), batch)  # fmt: skip
        first, count = (0, k) if upper else (k + size, n - k - size)
        product(dev, "solve_triangular update", left.part(first, k), here, right.part(first, 0),
                (count, columns, size), batch, subtract=True)  # fmt: skip
    if not unit:
        gpu = dev.gpu
        number = gpu.check_number(records.failure("solve_triangular"), 1, ArgumentError)
        count = n * columns
        launch(dev, "solve_triangular check", _check_text(), [left.storage],
               [right.storage, gpu.fault_storage()], [n, count, number, *left.words],
               (-(-count // _SHARE), 1), batch)  # fmt: skip
    return out

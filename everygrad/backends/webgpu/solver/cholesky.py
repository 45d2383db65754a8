"""Cholesky's factorisation, a block of columns after the other."""

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

_PAD = BLOCK + 1  # floats of a row in shared memory: neighbours lie in different banks


def _load_block(first: int) -> str:
    """The block of `kb` columns at (k, k) in shared memory."""
    return (
        f"  for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"    let r = e / {BLOCK}u;\n    let c = e % {BLOCK}u;\n"
        f"    if (r < kb && c < kb) {{ s[r * {_PAD}u + c] = {place('out', first, 'r', 'c')}; }}\n"
        "  }\n  workgroupBarrier();\n"
    )


@lru_cache
def _corner_text() -> str:
    """Factor the block on the diagonal. Uniform: first matrix, size; the block's place. What is
    not positive becomes NaN, and with it all that follows, the last element included."""
    return kernel(
        0,
        (FLOATS,),
        6,
        f"var<workgroup> s: array<f32, {BLOCK * _PAD}>;\n"
        + BODY
        + f"  let kb = {slot(1)};\n"
        + _load_block(2)
        + "  for (var j = 0u; j < kb; j = j + 1u) {\n"
        f"    let d = s[j * {_PAD}u + j];\n"
        "    let root = select(nan_f(), sqrt_f(d), d > 0.0);\n"
        "    workgroupBarrier();\n"
        f"    if (l == j) {{ s[j * {_PAD}u + j] = root; }}\n"
        "    if (l > j && l < kb) {\n"
        f"      s[l * {_PAD}u + j] = div_f(s[l * {_PAD}u + j], root);\n    }}\n"
        "    workgroupBarrier();\n"
        f"    for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"      let r = e / {BLOCK}u;\n      let c = e % {BLOCK}u;\n"
        "      if (c > j && r >= c && r < kb) {\n"
        f"        s[r * {_PAD}u + c] = s[r * {_PAD}u + c]\n"
        f"          - s[r * {_PAD}u + j] * s[c * {_PAD}u + j];\n"
        "      }\n    }\n    workgroupBarrier();\n  }\n"
        f"  for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"    let r = e / {BLOCK}u;\n    let c = e % {BLOCK}u;\n"
        f"    if (r < kb && c <= r) {{ {place('out', 2, 'r', 'c')} = s[r * {_PAD}u + c]; }}\n"
        "  }\n}\n",
    )


@lru_cache
def _panel_text() -> str:
    """The rows below a block on the diagonal, one a thread. Uniform: first matrix, size of the
    block, rows; the block's place."""
    value = place("out", 3, "r", "j")
    return kernel(
        0,
        (FLOATS,),
        7,
        f"var<workgroup> s: array<f32, {BLOCK * _PAD}>;\n"
        + BODY
        + f"  let kb = {slot(1)};\n"
        + _load_block(3)
        + f"  let r = w.x * 256u + l + kb;\n  if (r >= {slot(2)} + kb) {{ return; }}\n"
        f"  var x: array<f32, {BLOCK}>;\n"
        "  for (var j = 0u; j < kb; j = j + 1u) {\n"
        f"    var v = {value};\n"
        "    for (var i = 0u; i < j; i = i + 1u) {\n"
        f"      v = v - x[i] * s[j * {_PAD}u + i];\n    }}\n"
        f"    x[j] = div_f(v, s[j * {_PAD}u + j]);\n"
        f"    {value} = x[j];\n  }}\n}}\n",
    )


@lru_cache
def _finish_text() -> str:
    """Zeros above the diagonal; NaN, and a fault, for a matrix that is not positive definite.
    Uniform: first matrix, size, the check's number; the matrices' place."""
    n = slot(1)
    value = place("out", 3, "r", "c")
    return kernel(
        0,
        (FLOATS, FAULTS),
        7,
        BODY + "  let r = w.y;\n  let c = w.x * 256u + l;\n"
        f"  let ok = {place('out', 3, f'{n} - 1u', f'{n} - 1u')} > 0.0;\n"
        "  if (r + c == 0u && !ok && atomicAdd(&out1[0], 1u) == 0u) {\n"
        f"    atomicStore(&out1[1], {slot(2)});\n  }}\n"
        f"  if (c >= {n}) {{ return; }}\n"
        f"  if (!ok) {{ {value} = nan_f(); return; }}\n"
        f"  if (c > r) {{ {value} = 0.0; }}\n}}\n",
    )


def cholesky(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    if x.storage is None:
        return x
    n, batch = x.shape[-1], batch_of(x)
    out = copied(dev, x)
    whole = matrices(dev, out)
    for k in range(0, n, BLOCK):
        size = min(BLOCK, n - k)
        rest = n - k - size
        corner = whole.part(k, k)
        launch(dev, "cholesky corner", _corner_text(), [], [whole.storage],
               [size, *corner.words], (1, 1), batch)  # fmt: skip
        if rest:
            launch(dev, "cholesky panel", _panel_text(), [], [whole.storage],
                   [size, rest, *corner.words], (-(-rest // 256), 1), batch)  # fmt: skip
            below = corner.part(size, 0)
            product(dev, "cholesky update", below, below.transposed, corner.part(size, size),
                    (rest, rest, size), batch, subtract=True, lower=True)  # fmt: skip
    gpu = dev.gpu
    number = gpu.check_number(records.failure("cholesky"), 1, ArgumentError)
    launch(dev, "cholesky finish", _finish_text(), [], [whole.storage, gpu.fault_storage()],
           [n, number, *whole.words], (-(-n // 256), n), batch)  # fmt: skip
    return out

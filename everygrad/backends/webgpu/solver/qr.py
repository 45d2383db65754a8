"""QR by Householder's reflections, a block of columns after the other.

The reflections of a block are kept as V and T with (1 - t_1 v_1 v_1^T)(1 - t_2 v_2 v_2^T)... =
1 - V T V^T, so that products apply them to the columns beside the block, and then, from the last
block to the first, to a unit matrix, which becomes Q.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.kernels.copy_kernels import concat_into
from everygrad.backends.webgpu.solver.matrices import (
    BARRIER,
    BLOCK,
    BODY,
    FLOATS,
    Matrices,
    batch_of,
    copied,
    kernel,
    launch,
    matrices,
    place,
    product,
)
from everygrad.backends.webgpu.source.render import slot
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_LANES = 256 // BLOCK  # threads that share a column's sum
_AT_ONCE = 8  # rows of a turn of a loop: loads are in flight at once, and turns are few


def _rows(first: str, step: int, end: str, line: str) -> str:
    """A loop over rows r, `step` apart."""
    return (
        f"  for (var s = {first}; s < {end}; s = s + {step * _AT_ONCE}u) {{\n"
        + "".join(
            f"    {{ let r = s + {step * i}u;\n      if (r < {end}) {{ {line} }} }}\n"
            for i in range(_AT_ONCE)
        )
        + "  }\n"
    )


@lru_cache
def _panel_text() -> str:
    """The columns k to k + kb, one workgroup a matrix; their signs are LAPACK's. Uniform: first
    matrix, k, kb, rows; the matrices, V, T."""
    k, size, rows = (slot(i) for i in range(1, 4))

    def at(row: str, column: str) -> str:
        return place("out", 4, row, column)

    def v_at(row: str, column: str) -> str:
        return place("out1", 8, row, column)

    lanes = " + ".join(f"sums[c + {BLOCK * i}u]" for i in range(_LANES))
    return kernel(
        0,
        (FLOATS, FLOATS, FLOATS),
        16,
        "var<workgroup> sums: array<f32, 256>;\n"
        f"var<workgroup> taus: array<f32, {BLOCK}>;\n"
        f"var<workgroup> gram: array<f32, {BLOCK * BLOCK}>;\n"
        f"var<workgroup> t: array<f32, {BLOCK * BLOCK}>;\n"
        + BODY
        + f"  let c = l % {BLOCK}u;\n  let lane = l / {BLOCK}u;\n"
        f"  for (var j = 0u; j < {size}; j = j + 1u) {{\n"
        f"    let d = {k} + j;\n    var sum = 0.0;\n"
        + _rows("d + 1u + l", 256, rows, f"let x = {at('r', 'd')}; sum = sum + x * x;")
        + "    sums[l] = sum;\n    workgroupBarrier();\n"
        "    for (var half = 128u; half > 0u; half = half >> 1u) {\n"
        "      if (l < half) { sums[l] = sums[l] + sums[l + half]; }\n"
        "      workgroupBarrier();\n    }\n"
        f"    let tail = sums[0];\n    let alpha = {at('d', 'd')};\n"
        "    let still = tail == 0.0;\n"
        "    let norm = sqrt_f(alpha * alpha + tail);\n"
        "    let beta = select(select(neg_f(norm), norm, is_negative(alpha)), alpha, still);\n"
        "    let tau = select(div_f(beta - alpha, beta), 0.0, still);\n"
        "    let scale = select(alpha - beta, 1.0, still);\n"
        f"    {BARRIER}"
        f"    for (var r = l; r < {rows}; r = r + 256u) {{\n"
        "      var v = 0.0;\n"
        f"      if (r == d) {{ v = 1.0; {at('r', 'd')} = beta; }}\n"
        f"      if (r > d) {{ v = div_f({at('r', 'd')}, scale); {at('r', 'd')} = 0.0; }}\n"
        f"      {v_at('r', 'd')} = v;\n    }}\n"
        f"    {BARRIER}"
        f"    let mine = c > j && c < {size};\n    let column = {k} + c;\n"
        "    var total = 0.0;\n    if (mine) {\n"
        + _rows(
            "d + lane", _LANES, rows, f"total = total + {v_at('r', 'd')} * {at('r', 'column')};"
        )
        + "    }\n    sums[l] = total;\n    if (l == 0u) { taus[j] = tau; }\n"
        "    workgroupBarrier();\n"
        f"    if (mine) {{\n      let f = tau * ({lanes});\n"
        + _rows(
            "d + lane",
            _LANES,
            rows,
            f"{at('r', 'column')} = {at('r', 'column')} - f * {v_at('r', 'd')};",
        )
        + f"    }}\n    {BARRIER}  }}\n"
        f"  for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"    let i = e / {BLOCK}u;\n    let j = e % {BLOCK}u;\n    var total = 0.0;\n"
        f"    if (i < j && j < {size}) {{\n"
        + _rows(
            f"{k} + j",
            1,
            rows,
            f"total = total + {v_at('r', f'{k} + i')} * {v_at('r', f'{k} + j')};",
        )
        + "    }\n    gram[e] = total;\n    t[e] = 0.0;\n  }\n  workgroupBarrier();\n"
        f"  for (var j = 0u; j < {size}; j = j + 1u) {{\n"
        "    if (l < j) {\n      var sum = 0.0;\n"
        "      for (var p = l; p < j; p = p + 1u) {\n"
        f"        sum = sum + t[l * {BLOCK}u + p] * gram[p * {BLOCK}u + j];\n      }}\n"
        f"      t[l * {BLOCK}u + j] = neg_f(taus[j]) * sum;\n    }}\n"
        f"    if (l == j) {{ t[j * {BLOCK}u + j] = taus[j]; }}\n    workgroupBarrier();\n  }}\n"
        f"  for (var e = l; e < {BLOCK * BLOCK}u; e = e + 256u) {{\n"
        f"    let i = e / {BLOCK}u;\n    let j = e % {BLOCK}u;\n"
        f"    {place('out2', 12, 'i', 'j')} = t[e];\n  }}\n}}\n",
    )


@lru_cache
def _unit_text() -> str:
    """Unit matrices. Uniform: first matrix, rows; the matrices."""
    return kernel(
        0,
        (FLOATS,),
        6,
        BODY + f"  let r = w.x * 256u + l;\n  if (r >= {slot(1)}) {{ return; }}\n"
        f"  {place('out', 2, 'r', 'w.y')} = select(0.0, 1.0, r == w.y);\n}}\n",
    )


def _unit(dev: WebGPU, x: WebGPUArray, width: int) -> WebGPUArray:
    """The first columns of a unit matrix with as many rows as x has, for each of x's matrices."""
    m = x.shape[-2]
    made: WebGPUArray = dev.empty((*x.shape[:-1], width), FROM_NP[x.dtype])
    if made.storage is not None:
        whole = matrices(dev, made)
        launch(dev, "qr unit", _unit_text(), [], [whole.storage], [m, *whole.words],
               (-(-m // 256), width), batch_of(x))  # fmt: skip
    return made


class _Reflections:
    """The blocks of reflections of a batch of matrices, and memory to apply them."""

    def __init__(self, dev: WebGPU, x: WebGPUArray, columns: int) -> None:
        m, n = x.shape[-2:]
        self.dev, self.batch, self.rows = dev, batch_of(x), m
        dtype = FROM_NP[x.dtype]
        blocks = -(-n // BLOCK)

        def empty(rows: int, width: int) -> Matrices:
            return matrices(dev, dev.empty((self.batch, rows, width), dtype))

        self.v, self.t = empty(m, n), empty(blocks * BLOCK, BLOCK)
        self.seen, self.moved = empty(BLOCK, columns), empty(BLOCK, columns)

    def apply(self, k: int, size: int, x: Matrices, columns: int, forward: bool) -> None:
        """Block k times these columns of a matrix, or, if `forward`, its transpose times them."""
        if not columns:
            return
        dev, batch, rows = self.dev, self.batch, self.rows - k
        v, t = self.v.part(k, k), self.t.part(k, 0)
        t = t.transposed if forward else t
        product(dev, "qr seen", v.transposed, x, self.seen, (size, columns, rows), batch)
        product(dev, "qr moved", t, self.seen, self.moved, (size, columns, size), batch)
        product(dev, "qr update", v, self.moved, x, (rows, columns, size), batch, subtract=True)


def factored(dev: WebGPU, x: WebGPUArray, width: int) -> tuple[WebGPUArray, WebGPUArray]:
    """The first `width` columns of Q, and R with the zeros below it."""
    m, n = x.shape[-2:]
    batch = batch_of(x)
    r = copied(dev, x)
    whole = matrices(dev, r)
    made = _Reflections(dev, x, max(n, width))
    starts = range(0, n, BLOCK)
    each = -(-m // (_LANES * _AT_ONCE))
    turns = BLOCK * (2 * each + -(-m // 256) * 2 + 10) + 4 * -(-m // _AT_ONCE) + BLOCK * BLOCK
    for k in starts:
        size = min(BLOCK, n - k)
        launch(dev, "qr panel", _panel_text(), [],
               [whole.storage, made.v.storage, made.t.storage],
               [k, size, m, *whole.words, *made.v.words, *made.t.part(k, 0).words],
               (1, 1), batch, turns)  # fmt: skip
        made.apply(k, size, whole.part(k, k + size), n - k - size, forward=True)
    q = _unit(dev, x, width)
    whole = matrices(dev, q)
    for k in reversed(starts):  # the columns before k are still those of the unit matrix
        made.apply(k, min(BLOCK, n - k), whole.part(k, k), width - k, forward=False)
    return q, r


def qr(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """Q, and R below it."""
    m, n = x.shape[-2:]
    out: WebGPUArray = dev.empty((*x.shape[:-2], m + n, n), FROM_NP[x.dtype])
    if x.storage is not None:
        q, r = factored(dev, x, n)
        upper = r.view((*r.shape[:-2], n, n), r.strides)
        concat_into(dev, out, [q, upper], len(x.shape) - 2)
    return out


def qr_complete(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """Q, square, and R with its zeros beside it."""
    m, n = x.shape[-2:]
    if x.storage is None:  # no columns: Q is a unit matrix
        return _unit(dev, x, m)
    out: WebGPUArray = dev.empty((*x.shape[:-1], m + n), FROM_NP[x.dtype])
    q, r = factored(dev, x, m)
    concat_into(dev, out, [q, r], len(x.shape) - 1)
    return out

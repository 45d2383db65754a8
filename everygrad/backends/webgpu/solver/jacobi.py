"""Jacobi's rotations: one workgroup a matrix, many rounds of a tournament in one launch.

In round t of a tournament of n (even), n - 1 meets t, and t + i meets t - i, counted round a table
of n - 1: each meets each once in n - 1 rounds, a sweep. Nobody moves: pairs are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.gemm.choose_kernel import MOST_TURNS
from everygrad.backends.webgpu.solver.matrices import (
    BARRIER,
    BODY,
    FAULTS,
    FLOATS,
    Matrices,
    batch_of,
    kernel,
    launch,
    matrices,
    place,
)
from everygrad.backends.webgpu.solver.qr import factored
from everygrad.backends.webgpu.source.render import slot
from everygrad.compiler.thresholds import edge
from everygrad.core.context import records
from everygrad.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

PAIRS = edge(__name__, "PAIRS", 32, "size")  # of columns that a workgroup rotates at once
_LANES = 256 // PAIRS  # threads that share a column
_MOST_TURNS_OF_GPUS = 1 << 20  # of one launch: systems with a display end those that take seconds
MOST = edge(__name__, "MOST", 2048, "size")  # columns of a symmetric matrix: shared memory ends

_N, _START, _COUNT = slot(1), slot(2), slot(3)
_ROTATION = f"""
fn first_of(t: u32, i: u32) -> u32 {{
  if (i == 0u) {{ return {_N} - 1u; }}
  return (t + i) % ({_N} - 1u);
}}
fn second_of(t: u32, i: u32) -> u32 {{
  return (t + ({_N} - 1u) - i) % ({_N} - 1u);
}}
// The sine, and the sine over 1 + the cosine, of the angle that takes c out of [[a, c], [c, b]]
fn rotation(a: f32, b: f32, c: f32) -> vec2<f32> {{
  if (is_zero(c)) {{ return vec2<f32>(0.0, 0.0); }}
  let slope = div_f(b - a, 2.0 * c);
  let size = abs_f(slope);
  var tangent = div_f(1.0, size + sqrt_f(1.0 + size * size));
  if (is_inf(size)) {{ tangent = 0.0; }}
  tangent = with_sign(tangent, slope);
  let cosine = div_f(1.0, sqrt_f(1.0 + tangent * tangent));
  let sine = cosine * tangent;
  return vec2<f32>(sine, div_f(sine, 1.0 + cosine));
}}
// u and v rotated. What changes is added: a cosine that is rounded to 1 would make them longer
fn turned(u: f32, v: f32, by: vec2<f32>) -> vec2<f32> {{
  return vec2<f32>(u - by.x * (v + by.y * u), v + by.x * (u - by.y * v));
}}
"""


@lru_cache
def _symmetric_text() -> str:
    """Rotate rows and columns of symmetric matrices, and the columns of what lies below them.
    Uniform: first matrix, n, the first round, how many; the matrices, what lies below."""

    def at(row: str, column: str) -> str:
        return place("out", 4, row, column)

    def below(row: str, column: str) -> str:
        return place("out", 8, row, column)

    def turned(one: str, other: str) -> str:
        return (
            f"      {{ let made = turned({one}, {other}, by);\n"
            f"        {one} = made.x;\n        {other} = made.y; }}\n"
        )

    pair = (
        "      let p = first_of(t, i);\n      let q = second_of(t, i);\n      let by = angles[i];\n"
    )
    return kernel(
        0,
        (FLOATS,),
        12,
        f"var<workgroup> angles: array<vec2<f32>, {MOST // 2}>;\n"
        + _ROTATION
        + BODY
        + f"  let half = {_N} / 2u;\n"
        f"  for (var t = {_START}; t < {_START} + {_COUNT}; t = t + 1u) {{\n"
        "    for (var i = l; i < half; i = i + 256u) {\n"
        "      let p = first_of(t, i);\n      let q = second_of(t, i);\n"
        f"      angles[i] = rotation({at('p', 'p')}, {at('q', 'q')}, {at('p', 'q')});\n    }}\n"
        f"    {BARRIER}"
        f"    for (var e = l; e < half * {_N}; e = e + 256u) {{\n"
        f"      let i = e % half;\n      let r = e / half;\n{pair}"
        + turned(at("r", "p"), at("r", "q"))
        + turned(below("r", "p"), below("r", "q"))
        + f"    }}\n    {BARRIER}"
        f"    for (var e = l; e < half * {_N}; e = e + 256u) {{\n"
        f"      let i = e / {_N};\n      let c = e % {_N};\n{pair}"
        + turned(at("p", "c"), at("q", "c"))
        + f"    }}\n    {BARRIER}  }}\n}}\n",
    )


@lru_cache
def _columns_text() -> str:
    """Rotate pairs of columns until their first rows are orthogonal. Uniform: first matrix, n, the
    first round, how many, rows that count, all rows; the matrices."""

    def at(row: str, column: str) -> str:
        return place("out", 6, row, column)

    counted, rows = slot(4), slot(5)
    lanes = " + ".join(f"sums[c + {PAIRS * i}u]" for i in range(_LANES))
    return kernel(
        0,
        (FLOATS,),
        10,
        "var<workgroup> sums: array<vec3<f32>, 256>;\n"
        + _ROTATION
        + BODY
        + f"  let half = {_N} / 2u;\n  let c = l % {PAIRS}u;\n  let lane = l / {PAIRS}u;\n"
        f"  for (var t = {_START}; t < {_START} + {_COUNT}; t = t + 1u) {{\n"
        f"    for (var first = 0u; first < half; first = first + {PAIRS}u) {{\n"
        "      let i = min(first + c, half - 1u);\n      let mine = first + c < half;\n"
        "      let p = first_of(t, i);\n      let q = second_of(t, i);\n"
        "      var sum = vec3<f32>();\n"
        "      if (mine) {\n"
        f"        for (var r = lane; r < {counted}; r = r + {_LANES}u) {{\n"
        f"          let u = {at('r', 'p')};\n          let v = {at('r', 'q')};\n"
        "          sum = sum + vec3<f32>(u * u, v * v, u * v);\n        }\n      }\n"
        "      sums[l] = sum;\n      workgroupBarrier();\n"
        f"      let whole = {lanes};\n      workgroupBarrier();\n"
        "      if (mine) {\n"
        "        let by = rotation(whole.x, whole.y, whole.z);\n"
        f"        for (var r = lane; r < {rows}; r = r + {_LANES}u) {{\n"
        f"          let made = turned({at('r', 'p')}, {at('r', 'q')}, by);\n"
        f"          {at('r', 'p')} = made.x;\n          {at('r', 'q')} = made.y;\n"
        "        }\n      }\n    }\n"
        f"    {BARRIER}  }}\n}}\n",
    )


def _tournaments(
    dev: WebGPU, n: int, sweeps: int, each: int, play: Callable[[int, int, int], None]
) -> None:
    """`play(first round, how many, turns)` for every round of some sweeps, at most a sweep at a
    time; a round takes `each` turns of loops, of which one launch may take only so many."""
    rounds = n - 1
    most = max(1, (MOST_TURNS if dev.gpu.is_software else _MOST_TURNS_OF_GPUS) // each)
    for _ in range(sweeps):
        for start in range(0, rounds, most):
            count = min(most, rounds - start)
            play(start, count, count * each)


# --- before and after ----------------------------------------------------------------------------


@lru_cache
def _start_text(symmetric: bool) -> str:
    """A matrix, with a column of zeros more where it has an odd number, above a unit matrix; of a
    symmetric one only the lower half is read. Uniform: first matrix, rows of it, columns of it,
    rows of the result; the matrices."""
    value = place("a0", 4, *(("max(r, c)", "min(r, c)") if symmetric else ("r", "c")))
    rows, columns, height = (slot(i) for i in (1, 2, 3))
    above = f"({rows} + {columns} % 2u)" if symmetric else rows
    return kernel(
        1,
        (FLOATS,),
        12,
        BODY + f"  let r = w.x * 256u + l;\n  let c = w.y;\n  if (r >= {height}) {{ return; }}\n"
        f"  var v = select(0.0, 1.0, r == c + {above});\n"
        f"  if (r < {above}) {{\n    v = 0.0;\n"
        f"    if (r < {rows} && c < {columns}) {{ v = {value}; }}\n  }}\n"
        f"  {place('out', 8, 'r', 'c')} = v;\n}}\n",
    )


def _started(
    dev: WebGPU, x: Matrices, rows: int, columns: int, batch: int, symmetric: bool
) -> Matrices:
    width = columns + columns % 2
    height = 2 * width if symmetric else rows + width
    whole = matrices(dev, dev.empty((batch, height, width), dtypes.float32))
    launch(dev, "jacobi start", _start_text(symmetric), [x.storage], [whole.storage],
           [rows, columns, height, *x.words, *whole.words],
           (-(-height // 256), width), batch)  # fmt: skip
    return whole


def _rank(n: str, value: str, falling: bool) -> str:
    """Lines of a workgroup that define `bad`, whether some `value` is not finite, and `rank`, the
    place of column k in the order of values, the first of equal ones first; k itself if `bad`."""
    before = "v > mine" if falling else "v < mine"
    return (
        f"  var k = w.y;\n  let mine = {value};\n  var place = 0u;\n  var faults = 0u;\n"
        f"  for (var j = l; j < {n}; j = j + 256u) {{\n    k = j;\n    let v = {value};\n"
        f"    if ({before} || (v == mine && j < w.y)) {{ place = place + 1u; }}\n"
        "    if (is_nan(v) || is_inf(v)) { faults = 1u; }\n  }\n"
        "  k = w.y;\n  counts[l] = vec2<u32>(place, faults);\n  workgroupBarrier();\n"
        "  for (var half = 128u; half > 0u; half = half >> 1u) {\n"
        "    if (l < half) { counts[l] = counts[l] + counts[l + half]; }\n"
        "    workgroupBarrier();\n  }\n"
        "  let bad = counts[0].y > 0u;\n  let rank = select(counts[0].x, k, bad);\n"
    )


_COUNTS = "var<workgroup> counts: array<vec2<u32>, 256>;\n"


def _fault(number: str) -> str:
    return (
        "  if (bad && l == 0u && w.y == 0u && atomicAdd(&out1[0], 1u) == 0u) {\n"
        f"    atomicStore(&out1[1], {number});\n  }}\n"
    )


@lru_cache
def _eigh_text() -> str:
    """The values in order in the first column, then the vectors. Uniform: first matrix, n, the
    check's number; the rotated matrices, the rotations below them, the results."""
    n = slot(1)
    vector = place("a0", 7, "r", "k")
    return kernel(
        1,
        (FLOATS, FAULTS),
        15,
        _COUNTS
        + BODY
        + _rank(n, place("a0", 3, "k", "k"), falling=False)
        + _fault(slot(2))
        + f"  for (var r = l; r < {n}; r = r + 256u) {{\n"
        f"    {place('out', 11, 'r', 'rank + 1u')} = select({vector}, nan_f(), bad);\n  }}\n"
        f"  if (l == 0u) {{ {place('out', 11, 'rank', '0u')} = select(mine, nan_f(), bad); }}\n"
        "}\n",
    )


def eigh(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """Values, rising, in the first column, and vectors in the others."""
    n, batch = x.shape[-1], batch_of(x)
    if n > MOST:
        raise DeviceError(
            f"eigh: webgpu takes matrices of up to {MOST} columns, got {x.shape}; move them with "
            f'to("cpu")'
        )
    out: WebGPUArray = dev.empty((*x.shape[:-1], n + 1), dtypes.float32)
    if out.storage is None:
        return out
    whole = _started(dev, matrices(dev, x), n, n, batch, symmetric=True)
    size = n + n % 2
    vectors = whole.part(size, 0)
    each = 2 * -(-size * size // 512) + -(-size // 512) + 4

    def play(start: int, count: int, turns: int) -> None:
        launch(dev, "eigh rotations", _symmetric_text(), [], [whole.storage],
               [size, start, count, *whole.words, *vectors.words],
               (1, 1), batch, turns)  # fmt: skip

    _tournaments(dev, size, _sweeps(n), each, play)
    gpu = dev.gpu
    number = gpu.check_number(records.failure("eigh"), 1, ArgumentError)
    launch(dev, "eigh finish", _eigh_text(), [whole.storage],
           [storage_of(out), gpu.fault_storage()],
           [n, number, *whole.words, *vectors.words, *matrices(dev, out).words],
           (1, n), batch)  # fmt: skip
    return out


def _sweeps(n: int) -> int:
    """One more than was enough for every matrix tried; a single pair is done at once."""
    return 2 + n.bit_length() if n > 2 else 2


@lru_cache
def _lengths_text() -> str:
    """The squared length of the first rows of each column. Uniform: first matrix, rows, columns;
    the matrices, the results."""
    return kernel(
        1,
        (FLOATS,),
        11,
        "var<workgroup> sums: array<f32, 256>;\n" + BODY + "  let k = w.y;\n  var sum = 0.0;\n"
        f"  for (var r = l; r < {slot(1)}; r = r + 256u) {{\n"
        f"    let v = {place('a0', 3, 'r', 'k')};\n    sum = sum + v * v;\n  }}\n"
        "  sums[l] = sum;\n  workgroupBarrier();\n"
        "  for (var half = 128u; half > 0u; half = half >> 1u) {\n"
        "    if (l < half) { sums[l] = sums[l] + sums[l + half]; }\n"
        "    workgroupBarrier();\n  }\n"
        f"  if (l == 0u) {{ {place('out', 7, '0u', 'k')} = sums[0]; }}\n}}\n",
    )


@lru_cache
def _ordered_text() -> str:
    """The columns in the falling order of their lengths. Uniform: first matrix, rows, columns; the
    matrices, the lengths, the results."""
    return kernel(
        2,
        (FLOATS,),
        15,
        _COUNTS
        + BODY
        + _rank(slot(2), place("a1", 7, "0u", "k"), falling=True)
        + f"  for (var r = l; r < {slot(1)}; r = r + 256u) {{\n"
        f"    {place('out', 11, 'r', 'rank')} = {place('a0', 3, 'r', 'k')};\n"
        "  }\n}\n",
    )


@lru_cache
def _svd_text(swapped: bool) -> str:
    """Vectors of the longer side (Q, with R's signs), a row of values, and vectors of the shorter
    side; the other way round if `swapped`. Uniform: first matrix, longer, shorter side, the
    check's number; Q, R, the rotations, the results."""
    longer, shorter = slot(1), slot(2)
    first, second = ("0u", f"{longer} + 1u") if not swapped else (f"{shorter} + 1u", "0u")
    middle = shorter if swapped else longer
    corner = place("a1", 8, "k", "k")

    def put(row: str, value: str) -> str:
        return f"{place('out', 16, row, 'k')} = select({value}, nan_f(), bad);"

    return kernel(
        3,
        (FLOATS, FAULTS),
        20,
        _COUNTS
        + BODY
        + _rank(shorter, corner, falling=True)
        + _fault(slot(3))
        + "  let sign = select(1.0, -1.0, is_negative(mine));\n"
        f"  for (var r = l; r < {longer}; r = r + 256u) {{\n"
        f"    {put(f'{first} + r', 'sign * ' + place('a0', 4, 'r', 'k'))}\n  }}\n"
        f"  for (var r = l; r < {shorter}; r = r + 256u) {{\n"
        f"    {put(f'{second} + r', place('a2', 12, 'r', 'k'))}\n  }}\n"
        f"  if (l == 0u) {{ {put(middle, 'abs_f(mine)')} }}\n}}\n",
    )


def svd(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """U's rows, a row of singular values, V's rows: rotations make the columns orthogonal, and a
    QR of these gives U, whole even where values are 0."""
    (m, n), batch = x.shape[-2:], batch_of(x)
    out: WebGPUArray = dev.empty((*x.shape[:-2], m + 1 + n, min(m, n)), dtypes.float32)
    if out.storage is None:
        return out
    swapped = m < n
    given = matrices(dev, x)
    longer, shorter = max(m, n), min(m, n)
    whole = _started(dev, given.transposed if swapped else given, longer, shorter, batch, False)
    size = shorter + shorter % 2
    rows = longer + size
    each = -(-size // (2 * PAIRS)) * (-(-(rows + longer) // _LANES) + 1) + 1

    def play(start: int, count: int, turns: int) -> None:
        launch(dev, "svd rotations", _columns_text(), [], [whole.storage],
               [size, start, count, longer, rows, *whole.words], (1, 1), batch,
               turns)  # fmt: skip

    _tournaments(dev, size, _sweeps(shorter), each, play)
    lengths = matrices(dev, dev.empty((batch, 1, shorter), dtypes.float32))
    launch(dev, "svd lengths", _lengths_text(), [whole.storage], [lengths.storage],
           [longer, shorter, *whole.words, *lengths.words], (1, shorter), batch)  # fmt: skip
    ordered = dev.empty((batch, longer + shorter, shorter), dtypes.float32)
    columns = matrices(dev, ordered)
    launch(dev, "svd order", _ordered_text(), [whole.storage, lengths.storage], [columns.storage],
           [longer + shorter, shorter, *whole.words, *lengths.words, *columns.words],
           (1, shorter), batch)  # fmt: skip
    q, r = factored(dev, ordered.view((batch, longer, shorter), ordered.strides), shorter)
    gpu = dev.gpu
    number = gpu.check_number(records.failure("svd"), 1, ArgumentError)
    parts = [matrices(dev, q), matrices(dev, r), columns.part(longer, 0)]
    launch(dev, "svd finish", _svd_text(swapped), [part.storage for part in parts],
           [storage_of(out), gpu.fault_storage()],
           [longer, shorter, number, *(word for part in parts for word in part.words),
            *matrices(dev, out).words], (1, shorter), batch)  # fmt: skip
    return out

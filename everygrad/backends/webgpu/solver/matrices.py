"""What kernels of linear algebra share: batches of matrices, their launches, and tiled products.

Factorisations work in place on a copy, a block of `BLOCK` columns at a time: one workgroup for each
matrix factors the block, and tiled products apply it to the rest. So the number of launches grows
with columns / BLOCK, and no sum depends on anything but shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.driver.memory import Storage
from everygrad.backends.webgpu.gemm.choose_kernel import MOST_TURNS
from everygrad.backends.webgpu.kernels.copy_kernels import contiguous, identity
from everygrad.backends.webgpu.source.render import MAIN, slot, with_library
from everygrad.backends.webgpu.source.word_layout import raw
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

BLOCK = edge(__name__, "BLOCK", 32, "size")  # columns that one workgroup factors at a time
TILE = edge(__name__, "TILE", 64, "size")  # rows and columns of a product that a workgroup computes
_TERMS = 16  # of a product that lie in shared memory at once
FAULTS = "array<atomic<u32>>"
FLOATS = "array<f32>"
# A barrier for what threads of a workgroup wrote to buffers and to shared memory
BARRIER = "storageBarrier();\nworkgroupBarrier();\n"


class Matrices(NamedTuple):
    """A batch of matrices on one storage: where the first begins, and the strides."""

    storage: Storage
    offset: int
    batch: int
    row: int
    column: int

    def part(self, row: int, column: int) -> Matrices:
        """The parts of the matrices that begin at this row and column."""
        return self._replace(offset=self.offset + row * self.row + column * self.column)

    @property
    def transposed(self) -> Matrices:
        return self._replace(row=self.column, column=self.row)

    @property
    def words(self) -> tuple[int, int, int, int]:
        """As they stand in a uniform."""
        return self.offset, self.batch, self.row, self.column


def matrices(dev: WebGPU, x: WebGPUArray) -> Matrices:
    """The last two axes as matrices, the others as one batch; copied where strides forbid that."""
    batch = [(n, s) for n, s in zip(x.shape[:-2], x.strides[:-2], strict=True) if n > 1]
    if any(a[1] != b[0] * b[1] for a, b in pairwise(batch)):
        x = contiguous(dev, x)
        batch = [(n, s) for n, s in zip(x.shape[:-2], x.strides[:-2], strict=True) if n > 1]
    step = batch[-1][1] if batch else 0
    return Matrices(storage_of(x), x.offset, step, *x.strides[-2:])


def copied(dev: WebGPU, x: WebGPUArray) -> WebGPUArray:
    """The same elements, contiguous, in memory that a kernel may overwrite."""
    bits = raw(FROM_NP[x.dtype])
    made: WebGPUArray = dev.elementwise("copy", identity(bits), [x.bitcast(bits.np)])
    return made.bitcast(x.dtype)


def batch_of(x: WebGPUArray) -> int:
    return size_of(x.shape[:-2])


def kernel(inputs: int, outputs: Sequence[str], params: int, text: str) -> str:
    """A kernel of floats: a0, a1, ... to read, `out`, `out1`, ... to write, P the uniform. Word 0
    of the uniform is the number of the first matrix."""
    lines = [f"var<storage, read> a{i}: {FLOATS};\n" for i in range(inputs)]
    names = ["out", *(f"out{i}" for i in range(1, len(outputs)))]
    for name, kind in zip(names, outputs, strict=True):
        lines.append(f"var<storage, read_write> {name}: {kind};\n")
    lines.append("var<uniform> P: Params;\n")
    lines = [f"@group(0) @binding({i}) {line}" for i, line in enumerate(lines)]
    head = f"struct Params {{ v: array<vec4<u32>, {-(-params // 4)}> }}\n"
    return head + "".join(lines) + with_library(text)


BODY = MAIN + f"  let b = w.z + {slot(0)};\n"  # of a kernel whose workgroups along z are matrices


def place(buffer: str, first: int, row: str, column: str) -> str:
    """An element of matrix b, whose `Matrices.words` are the uniform's from `first` on."""
    o, b, r, c = (slot(first + i) for i in range(4))
    return f"{buffer}[{o} + b * {b} + ({row}) * {r} + ({column}) * {c}]"


def launch(
    dev: WebGPU,
    name: str,
    source: str,
    inputs: Sequence[Storage],
    outputs: Sequence[Storage],
    params: Sequence[int],
    grid: tuple[int, int],
    batch: int,
    turns: int = 0,
) -> None:
    """Record a kernel of so many workgroups for each matrix; `turns` bounds what all loops of a
    thread take together, which software adapters cut off."""
    gpu = dev.gpu
    most = gpu.limits.groups
    if max(grid) > most:
        raise DeviceError(
            f"{name}: needs {max(grid)} workgroups along one axis, this device starts at most "
            f'{most}; move the matrices with to("cpu")'
        )
    if gpu.is_software and turns > MOST_TURNS:
        raise DeviceError(
            f"{name}: matrices of this size take {turns} turns of a loop, this software adapter "
            f'makes at most {MOST_TURNS}; move them with to("cpu")'
        )
    for first in range(0, batch, most):
        groups = (*grid, min(most, batch - first))
        gpu.dispatch(name, source, inputs, outputs, [first, *params], groups)


# --- products ------------------------------------------------------------------------------------


class Side(NamedTuple):
    """One operand of a product: its buffer, and whether it is contiguous along the terms."""

    buffer: str
    along_terms: bool


@lru_cache
def _product_text(left: Side, right: Side, subtract: bool, lower: bool, inputs: int) -> str:
    """Uniform: the first matrix, rows, columns, terms; then both operands and the result."""
    rows, columns, terms = (slot(i) for i in (1, 2, 3))

    def staged(side: Side, shared: str, first: int, limit: str, start: str) -> str:
        near, far = (f"e % {_TERMS}u", f"e / {_TERMS}u") if side.along_terms else (
            f"e / {TILE}u", f"e % {TILE}u")  # fmt: skip
        at = ("i", "k") if shared == "sa" else ("k", "i")
        return (
            f"    for (var e = l; e < {_TERMS * TILE}u; e = e + 256u) {{\n"
            f"      let t = {near};\n      let s = {far};\n"
            f"      let k = k0 + t;\n      let i = {start} + s;\n      var v = 0.0;\n"
            f"      if (k < {terms} && i < {limit}) {{ v = {place(side.buffer, first, *at)}; }}\n"
            f"      {shared}[t * {TILE}u + s] = v;\n    }}\n"
        )

    target = place("out", 12, "i", "j")
    value = f"{target} - total[p][q]" if subtract else "total[p][q]"
    skipped = f"  if (j0 >= i0 + {TILE}u) {{ return; }}\n" if lower else ""
    return kernel(
        inputs,
        (FLOATS,),
        16,
        f"var<workgroup> sa: array<f32, {_TERMS * TILE}>;\n"
        f"var<workgroup> sb: array<f32, {_TERMS * TILE}>;\n"
        + BODY
        + f"  let i0 = w.y * {TILE}u;\n  let j0 = w.x * {TILE}u;\n"
        + skipped
        + "  let y = (l / 16u) * 4u;\n  let x = (l % 16u) * 4u;\n"
        "  var total: array<vec4<f32>, 4>;\n"
        f"  for (var k0 = 0u; k0 < {terms}; k0 = k0 + {_TERMS}u) {{\n"
        + staged(left, "sa", 4, rows, "i0")
        + staged(right, "sb", 8, columns, "j0")
        + "    workgroupBarrier();\n"
        f"    for (var t = 0u; t < {_TERMS}u; t = t + 1u) {{\n"
        f"      let r = t * {TILE}u + y;\n      let c = t * {TILE}u + x;\n"
        "      let u = vec4<f32>(sb[c], sb[c + 1u], sb[c + 2u], sb[c + 3u]);\n"
        + "".join(f"      total[{i}] = total[{i}] + sa[r + {i}u] * u;\n" for i in range(4))
        + "    }\n    workgroupBarrier();\n  }\n"
        "  for (var p = 0u; p < 4u; p = p + 1u) {\n"
        "    for (var q = 0u; q < 4u; q = q + 1u) {\n"
        "      let i = i0 + y + p;\n      let j = j0 + x + q;\n"
        f"      if (i < {rows} && j < {columns}) {{ {target} = {value}; }}\n    }}\n  }}\n}}\n",
    )


def product(
    dev: WebGPU,
    name: str,
    left: Matrices,
    right: Matrices,
    out: Matrices,
    sizes: tuple[int, int, int],
    batch: int,
    *,
    subtract: bool = False,
    lower: bool = False,
) -> None:
    """out = left @ right, or out - left @ right, for matrices of (rows, columns, terms). Operands
    may lie beside `out` on its storage. Of a `lower` product only what is on and below the
    diagonal is needed."""
    rows, columns, terms = sizes
    if not rows or not columns:
        return
    inputs: list[Storage] = []
    sides = []
    for x, step, other in ((left, left.column, left.row), (right, right.row, right.column)):
        buffer = "out"
        if x.storage is not out.storage:
            buffer = f"a{len(inputs)}"
            inputs.append(x.storage)
        sides.append(Side(buffer, abs(step) < abs(other)))
    source = _product_text(*sides, subtract, lower, len(inputs))
    params = [*sizes, *left.words, *right.words, *out.words]
    grid = (-(-columns // TILE), -(-rows // TILE))
    turns = -(-terms // _TERMS) * (1 + _TERMS + 2 * _TERMS * TILE // 256) + 20
    launch(dev, name, source, inputs, [out.storage], params, grid, batch, turns)

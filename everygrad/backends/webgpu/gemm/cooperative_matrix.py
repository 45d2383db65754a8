"""float16 products by the device's cooperative matrices (tensor cores and similar units).

wgpu's extension is experimental: WGSL has 16 x 16 matrices that a subgroup holds, and there is no
way to ask which types the device supports. So before the first use a small product is computed and
checked, and a device that gets it wrong uses plain tiles. The extension has no bfloat16.

A workgroup computes a tile of 128 x 128 results, each of its subgroups an equal share, with slices
of 32 terms in shared memory in the operands' own layout: matrices are loaded by rows or columns.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import wgpu

from everygrad import dtypes
from everygrad.backends.webgpu.driver.shader_modules import InBounds
from everygrad.backends.webgpu.gemm.gemm import (
    COLUMNS,
    HEAD,
    ROWS,
    GemmOperands,
    Side,
    Tile,
    call,
    where,
)
from everygrad.backends.webgpu.gemm.result_writes import Epilogue, bindings, plain, stored
from everygrad.backends.webgpu.source.render import with_library
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType
from everygrad.errors import CompileError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU
    from everygrad.backends.webgpu.driver.gpu import Gpu

NEEDS = {"cooperative-matrix", "shader-f16", "subgroup"}
TILE = Tile(128, 128, 4, 8)
TERMS = edge(__name__, "TERMS", 32, "size")
SUBGROUPS = 8  # of 32 threads
SIDE = edge(__name__, "SIDE", 16, "size")  # of a cooperative matrix
SHARED = edge(__name__, "SHARED", 28 << 10, "bytes")  # bytes
DOWN, ACROSS = 2, 4  # matrices of a subgroup: a quarter of the rows, half of the columns
_PAD = 2  # vectors of padding: neighbouring rows are in different memory banks


def serves(dev: WebGPU, sizes: tuple[int, int, int, int], dtype: DType) -> bool:
    """Whether a product uses cooperative matrices."""
    gpu = dev.gpu
    if dtype is not dtypes.float16 or not gpu.features >= NEEDS:
        return False
    _, rows, columns, terms = sizes
    large = min(rows, columns) >= TILE.rows // 2 and terms >= TERMS
    return large and gpu.limits.shared_bytes >= SHARED and is_right(gpu)


def state(gpu: Gpu) -> str:
    """Whether products of float16 use cooperative matrices; if not, why, in words."""
    plain_tiles = "float16 products use plain tiles"
    if "cooperative-matrix" not in gpu.adapter.features:
        return f"not offered by this adapter; {plain_tiles}"
    wrong = f"offered by the adapter, but a product came out wrong; {plain_tiles}"
    if gpu.has_cooperative_matrices is False:
        return wrong
    if not gpu.features >= NEEDS:
        return f"offered by the adapter, but refused when the device was opened; {plain_tiles}"
    if gpu.limits.shared_bytes < SHARED:
        return f"they need {SHARED} bytes of workgroup memory; {plain_tiles}"
    if not is_right(gpu):
        return wrong
    return "used for large products of float16"


# --- the kernel ----------------------------------------------------------------------------------


class _Slice(NamedTuple):
    """A side's share of a slice: registers, lines that load and store them, how many vectors a line
    of shared memory has, and how many lines there are."""

    registers: list[str]
    read: str
    put: str
    line: int
    lines: int


def _slice(side: Side, shared: str, start: str, limit: str) -> _Slice:
    """Vectors along the tile or along the terms, whichever is contiguous in the operand."""
    along = side.along or side.near
    vectors, lines = (TERMS // 4, TILE.rows) if along == "terms" else (TILE.rows // 4, TERMS)
    line = vectors + _PAD
    names, read, put = [], "", ""
    for q in range(vectors * lines // 256):
        name = f"{shared}_{q}"
        names.append(name)
        u, f = f"((l + {256 * q}u) / {vectors}u)", f"((l + {256 * q}u) % {vectors}u)"
        t, k = (u, f"4u * {f}") if along == "terms" else (f"4u * {f}", u)
        read += f"    {{\n      let t = {start} + {t};\n      let k = k0 + {k};\n"
        read += f"      {name} = vec4<f16>();\n" + _read_vec4(side, along, name, limit) + "    }\n"
        put += f"    {shared}[{u} * {line}u + {f}] = {name};\n"
    return _Slice(names, read, put, line, lines)


def _read_vec4(side: Side, along: str, name: str, limit: str) -> str:
    if side.along:
        return f"      if (t < {limit} && k < end) {{ {name} = {call(side, 't', 'k')}; }}\n"
    lines = ""
    for i, part in enumerate("xyzw"):
        t, k = ("t", f"k + {i}u") if along == "terms" else (f"t + {i}u", "k")
        inside = f"{t} < {limit} && {k} < end"
        lines += f"      if ({inside}) {{ {name}.{part} = {call(side, t, k)}; }}\n"
    return lines


def _load(role: str, name: str, shared: str, half: _Slice, tile: str, term: int) -> str:
    """Lines that load one matrix. By rows ("T") where a line of shared memory is a row; an index
    and a stride need names of their own, or naga drops them."""
    along_terms = half.lines == TILE.rows
    by_rows = along_terms if role == "A" else not along_terms
    at = f"({tile}) * {half.line}u + {term // 4}u" if along_terms else (
        f"{term * half.line}u + ({tile}) / 4u")  # fmt: skip
    return (
        f"    let {name}_at = {at};\n    let {name}_line = {half.line}u;\n"
        f"    let {name} = coopLoad{'T' if by_rows else ''}<coop_mat16x16<f16, {role}>>"
        f"(&{shared}[{name}_at], {name}_line);\n"
    )


def _inner(left: _Slice, right: _Slice) -> str:
    lines = []
    for step in range(0, TERMS, SIDE):
        for r in range(DOWN):
            tile = f"m1 + {SIDE * r}u"
            lines.append(_load("A", f"x{step}_{r}", "xs", left, tile, step))
        for c in range(ACROSS):
            tile = f"n1 + {SIDE * c}u"
            lines.append(_load("B", f"y{step}_{c}", "ys", right, tile, step))
        for r in range(DOWN):
            for c in range(ACROSS):
                sums = f"s{r}{c}"
                lines.append(f"    {sums} = coopMultiplyAdd(x{step}_{r}, y{step}_{c}, {sums});\n")
    return "".join(lines)


def _results(epilogue: Epilogue, vec4_out: bool) -> str:
    """Each matrix goes through shared memory, from which a subgroup's threads read vectors: 256
    numbers, two vectors for each thread."""
    lines = [f"  let base = group * {SIDE * SIDE}u;\n  let line = {SIDE}u;\n"]
    for r in range(DOWN):
        for c in range(ACROSS):
            lines.append(f"  coopStoreT(s{r}{c}, &stage[base], line);\n  workgroupBarrier();\n")
            lines.append(
                "  for (var h = 0u; h < 2u; h = h + 1u) {\n    let f = within + 32u * h;\n"
            )
            lines.append(f"    let m = m0 + m1 + {SIDE * r}u + f / 4u;\n")
            lines.append(
                f"    let n = n0 + n1 + {SIDE * c}u + (f % 4u) * 4u;\n    let p = base + f * 4u;\n"
            )
            lines.append(f"    if (m < {ROWS} && n < {COLUMNS}) {{\n")
            vector = "vec4<f32>(stage[p], stage[p + 1u], stage[p + 2u], stage[p + 3u])"
            at = f"(z * {ROWS} + m) * {COLUMNS} + n"
            lines.append(stored(epilogue, vector, at, f"{COLUMNS} - n", vec4_out))
            lines.append("    }\n  }\n  workgroupBarrier();\n")
    return "".join(lines)


@lru_cache(maxsize=64)
def kernel(operands: GemmOperands, epilogue: Epilogue, vec4_out: bool) -> str:
    """As `gemm.kernel`, for operands that are read as f16."""
    left = _slice(operands.sides[0], "xs", "m0", ROWS)
    right = _slice(operands.sides[1], "ys", "n0", COLUMNS)
    sums = [f"s{r}{c}" for r in range(DOWN) for c in range(ACROSS)]
    main = (
        f"var<workgroup> xs: array<vec4<f16>, {left.line * left.lines}>;\n"
        f"var<workgroup> ys: array<vec4<f16>, {right.line * right.lines}>;\n"
        f"var<workgroup> stage: array<f32, {SUBGROUPS * SIDE * SIDE}>;\n"
        "@compute @workgroup_size(256) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
        "    @builtin(local_invocation_index) l: u32, @builtin(subgroup_id) group: u32,\n"
        "    @builtin(subgroup_invocation_id) within: u32) {\n"
        + where()
        + f"  let m0 = w.y * {TILE.rows}u;\n  let n0 = w.x * {TILE.columns}u;\n"
        f"  let m1 = (group / 2u) * {DOWN * SIDE}u;\n  let n1 = (group % 2u) * {ACROSS * SIDE}u;\n"
        + "".join(f"  var {name} = coop_mat16x16<f32, C>();\n" for name in sums)
        + "".join(f"  var {name} = vec4<f16>();\n" for name in (*left.registers, *right.registers))
        + f"  var k0 = start;\n{left.read}{right.read}"
        + f"  for (; k0 < end; ) {{\n{left.put}{right.put}    k0 = k0 + {TERMS}u;\n"
        + f"    workgroupBarrier();\n{left.read}{right.read}"
        + _inner(left, right)
        + f"    workgroupBarrier();\n  }}\n{_results(epilogue, vec4_out)}}}\n"
    )
    enable = operands.enable + "enable wgpu_cooperative_matrix;\n"
    head = bindings(operands.words, epilogue, operands.params, vec4_out)
    return InBounds(enable + head + with_library(operands.text + epilogue.text + main))


# --- the check before the first use --------------------------------------------------------------

_CHECKED = (128, 128, 64)  # rows, columns, terms


def is_right(gpu: Gpu) -> bool:
    """Whether a small product is correct; the feature is disabled on a device where it is not."""
    if gpu.has_cooperative_matrices is None:
        try:
            gpu.has_cooperative_matrices = _product_is_right(gpu)
        except (CompileError, wgpu.GPUError):
            gpu.has_cooperative_matrices = False
        if not gpu.has_cooperative_matrices:
            gpu.features.discard("cooperative-matrix")
    return bool(gpu.has_cooperative_matrices)


def _check_operands() -> GemmOperands:
    text = "".join(
        f"fn {fn}4(b: u32, {one}: u32, {two}: u32) -> vec4<f16> {{\n"
        f"  return a{i}[({one} * {line}u + {two}) >> 2u];\n}}\n"
        for i, (fn, one, two, line) in enumerate(
            (("left", "m", "k", _CHECKED[2]), ("right", "k", "n", _CHECKED[1]))
        )
    )
    sides = (Side("left", "terms", "terms"), Side("right", "tile", "tile"))
    return GemmOperands(text, HEAD, ("vec4<f16>",) * 2, sides, "enable f16;\n")


def _product_is_right(gpu: Gpu) -> bool:
    """Uses its own buffers and commands: a compiled function may be recording."""
    rows, columns, terms = _CHECKED
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (rows, terms)).astype(np.float16)
    y = rng.integers(-4, 5, (terms, columns)).astype(np.float16)
    source = kernel(_check_operands(), plain(dtypes.float32), vec4_out=True)
    pipeline = gpu.pipeline("cooperative matrix check", source, 2, 1).raw
    head = np.array([rows, columns, terms, 0, 1, terms, 0, 0], np.uint32)
    usage = wgpu.BufferUsage
    made = [
        gpu.device.create_buffer_with_data(data=data, usage=how)
        for data, how in (
            (x, usage.STORAGE),
            (y, usage.STORAGE),
            (np.zeros((rows, columns), np.float32), usage.STORAGE | usage.COPY_SRC),
            (head, usage.UNIFORM),
        )
    ]
    entries = [
        {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
        for i, b in enumerate(made)
    ]
    group = gpu.device.create_bind_group(layout=gpu.layout(2, 1)[0], entries=entries)
    encoder = gpu.device.create_command_encoder()
    commands = encoder.begin_compute_pass()
    commands.set_pipeline(pipeline)
    commands.set_bind_group(0, group)
    commands.dispatch_workgroups(1, 1, 1)
    commands.end()
    gpu.queue.submit([encoder.finish()])
    found = np.frombuffer(gpu.queue.read_buffer(made[2]), np.float32).reshape(rows, columns)
    return bool((found == x.astype(np.float32) @ y.astype(np.float32)).all())

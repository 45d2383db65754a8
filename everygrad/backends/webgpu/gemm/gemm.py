"""The tiled matrix kernel: float32 sums, four numbers at a time.

A workgroup of 256 threads computes a tile of results; each thread keeps vec4s of them in registers
while slices of 16 or 32 terms pass through shared memory, always as vec4s along the tile. While one
slice is multiplied, the next is loaded into registers. The terms may be split into parts, each with
its own set of results, which a second kernel adds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from everygrad.backends.webgpu.driver.shader_modules import InBounds
from everygrad.backends.webgpu.gemm.result_writes import Epilogue, bindings, stored
from everygrad.backends.webgpu.source.render import slot, with_library
from everygrad.compiler.thresholds import edge

TERMS = edge(__name__, "TERMS", 16, "size")  # parts of the terms are multiples of this
HEAD = 6  # words of every uniform: rows, columns, terms, first, matrices, terms of a part
ROWS, COLUMNS, ALL_TERMS, FIRST, MATRICES, PART = (slot(i) for i in range(HEAD))


class Side(NamedTuple):
    """One operand. `along` says how vec4s are read: "tile" where the operand is contiguous along
    the tile, "terms" where it is contiguous along the terms, "" where it is read one by one."""

    fn: str  # left or right
    along: str
    near: str  # what neighbouring threads read when one by one: "tile" or "terms"


class GemmOperands(NamedTuple):
    """How a product reads its operands: WGSL functions left(b, m, k) and right(b, k, n), or left4
    and right4 where a side is read as vec4; the words of each binding; the uniform's length."""

    text: str
    params: int
    words: tuple[str, ...]
    sides: tuple[Side, Side]
    enable: str = ""  # lines that ask for parts of WGSL

    @property
    def is_vec4(self) -> bool:
        return all(side.along for side in self.sides)

    def kernel(self, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> str:
        return kernel(self, tile, epilogue, vec4_out)


class Tile(NamedTuple):
    """Results of a workgroup, how many groups of four rows and of four columns a thread has, and
    the terms of a slice: more where there is little work between two slices."""

    rows: int
    columns: int
    down: int
    across: int
    terms: int = 16

    @property
    def threads(self) -> tuple[int, int]:
        return self.rows // (4 * self.down), self.columns // (4 * self.across)


TILE, LARGE_TILE = Tile(64, 64, 1, 1, 32), Tile(128, 128, 2, 2)
FLAT_TILE, TALL_TILE = Tile(32, 128, 1, 1), Tile(128, 32, 1, 1)


def call(side: Side, tile: str, term: str) -> str:
    name = side.fn + ("4" if side.along else "")
    return f"{name}(b, {tile}, {term})" if side.fn == "left" else f"{name}(b, {term}, {tile})"


def where() -> str:
    """Which matrix (`b`), which part of the terms (`start` to `end`), and which results (`z`)."""
    return (
        f"  let z = w.z + {FIRST};\n  let b = z % {MATRICES};\n"
        f"  let start = (z / {MATRICES}) * {PART};\n"
        f"  let end = min({ALL_TERMS}, start + {PART});\n"
    )


# --- slices ------------------------------------------------------------------------------------


class _Slice(NamedTuple):
    """How one side's slice gets into shared memory: registers, lines that load them from term `k0`
    on (zeros beyond the edges), and lines that store them there."""

    registers: list[str]
    read: str
    put: str


def _slice(side: Side, size: int, terms: int, shared: str, start: str, limit: str) -> _Slice:
    if side.along == "terms":
        return _transposed_slice(side, size, terms, shared, start, limit)
    vectors = size // 4
    by_terms = not side.along and side.near == "terms"
    names, read, put = [], [], []
    count = terms * vectors
    inside = (
        f"if (l < {count}u) " if count < 256 else ""
    )  # a small tile's slice does not need all threads
    for q in range(-(-count // 256)):
        name = f"{shared}_{q}"
        c = f"(l + {256 * q}u)"
        f, s = (f"{c} % {terms}u", f"{c} / {terms}u") if by_terms else (
            f"{c} / {vectors}u", f"{c} % {vectors}u")  # fmt: skip
        names.append(name)
        lines = f"    {inside}{{\n      let k = k0 + {f};\n      let t = {start} + ({s}) * 4u;\n"
        lines += f"      {name} = vec4<f32>();\n"
        if side.along:
            lines += f"      if (t < {limit} && k < end) {{ {name} = {call(side, 't', 'k')}; }}\n"
        else:
            lines += "      if (k < end) {\n"
            for i, part in enumerate("xyzw"):
                at = f"t + {i}u"
                value = call(side, at, "k")
                lines += f"        if ({at} < {limit}) {{ {name}.{part} = {value}; }}\n"
            lines += "      }\n"
        read.append(lines + "    }\n")
        put.append(f"    {inside}{{ {shared}[({f}) * {vectors}u + ({s})] = {name}; }}\n")
    return _Slice(names, "".join(read), "".join(put))


def _transposed_slice(
    side: Side, size: int, terms: int, shared: str, start: str, limit: str
) -> _Slice:
    """Blocks of 4 x 4 that are contiguous along the terms, transposed in registers. The first
    threads load the left side, the last ones the right side."""
    vectors, deep = size // 4, terms // 4
    blocks = vectors * deep
    first = 0 if side.fn == "left" else 256 - blocks
    inside = f"    if (l >= {first}u && l < {first + blocks}u) {{\n      let c = l - {first}u;\n"
    names = [f"{shared}_{i}" for i in range(4)]
    read = f"{inside}      let k = k0 + (c % {deep}u) * 4u;\n"
    read += f"      let t = {start} + (c / {deep}u) * 4u;\n"
    for i, name in enumerate(names):
        value = call(side, f"t + {i}u", "k")
        read += f"      {name} = vec4<f32>();\n      if (t + {i}u < {limit} && k < end) "
        read += f"{{ {name} = {value}; }}\n"
    put = inside
    for i, part in enumerate("xyzw"):
        value = ", ".join(f"{name}.{part}" for name in names)
        at = f"((c % {deep}u) * 4u + {i}u) * {vectors}u + c / {deep}u"
        put += f"      {shared}[{at}] = vec4<f32>({value});\n"
    return _Slice(names, read + "    }\n", put + "    }\n")


# --- sums --------------------------------------------------------------------------------------


def _in_order(term: str, vector: str, vectors: int) -> str:
    """Where a vector of a term lies in shared memory."""
    return f"{term} * {vectors}u + {vector}"


def multiplied(tile: Tile, place: Callable[[str, str, int], str] = _in_order) -> str:
    """The loop over a slice's terms, four at a time: all products of the thread's rows and
    columns."""
    lines = [f"    for (var k4 = 0u; k4 < {tile.terms // 4}u; k4 = k4 + 1u) {{\n"]
    down, across = tile.threads
    for u in range(4):
        term = f"(k4 * 4u + {u}u)"
        for r in range(tile.down):
            at = place(term, f"ty + {down * r}u", tile.rows // 4)
            lines.append(f"      let x{u}{r} = xs[{at}];\n")
        for c in range(tile.across):
            at = place(term, f"tx + {across * c}u", tile.columns // 4)
            lines.append(f"      let y{u}{c} = ys[{at}];\n")
        for r in range(tile.down):
            for i, part in enumerate("xyzw"):
                for c in range(tile.across):
                    acc = f"s{r}{i}{c}"
                    lines.append(f"      {acc} = {acc} + x{u}{r}.{part} * y{u}{c};\n")
    return "".join([*lines, "    }\n"])


def beginning(tile: Tile, registers: Sequence[str]) -> str:
    """A kernel's shared memory, and lines that say which results a thread has and define its
    registers."""
    return (
        f"var<workgroup> xs: array<vec4<f32>, {tile.terms * tile.rows // 4}>;\n"
        f"var<workgroup> ys: array<vec4<f32>, {tile.terms * tile.columns // 4}>;\n"
        "@compute @workgroup_size(256) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
        "    @builtin(local_invocation_index) l: u32) {\n"
        + where()
        + f"  let m0 = w.y * {tile.rows}u;\n  let n0 = w.x * {tile.columns}u;\n"
        f"  let ty = l / {tile.threads[1]}u;\n  let tx = l % {tile.threads[1]}u;\n"
        + "".join(f"  var {n} = vec4<f32>();\n" for n in registers)
    )


def results_of(tile: Tile, epilogue: Epilogue, vec4_out: bool) -> str:
    """Lines that store the thread's results."""
    lines = []
    down, across = tile.threads
    for r in range(tile.down):
        for c in range(tile.across):
            for i in range(4):
                m = f"m0 + ty * 4u + {4 * down * r + i}u"
                n = f"n0 + tx * 4u + {4 * across * c}u"
                lines.append(f"  if ({m} < {ROWS} && {n} < {COLUMNS}) {{\n")
                at = f"(z * {ROWS} + {m}) * {COLUMNS} + {n}"
                left = f"{COLUMNS} - ({n})"
                lines.append(stored(epilogue, f"s{r}{i}{c}", at, left, vec4_out) + "  }\n")
    return "".join(lines)


@lru_cache(maxsize=256)
def kernel(operands: GemmOperands, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> str:
    """`vec4_out`: rows of results are whole vec4s."""
    sums = [f"s{r}{i}{c}" for r in range(tile.down) for i in range(4) for c in range(tile.across)]
    left = _slice(operands.sides[0], tile.rows, tile.terms, "xs", "m0", ROWS)
    right = _slice(operands.sides[1], tile.columns, tile.terms, "ys", "n0", COLUMNS)
    main = (
        beginning(tile, (*sums, *left.registers, *right.registers))
        + "  var k0 = start;\n"
        + left.read
        + right.read
        + f"  for (; k0 < end; ) {{\n{left.put}{right.put}    k0 = k0 + {tile.terms}u;\n"
        + f"    workgroupBarrier();\n{left.read}{right.read}"
        + multiplied(tile)
        + "    workgroupBarrier();\n  }\n"
        + results_of(tile, epilogue, vec4_out)
        + "}\n"
    )
    head = bindings(operands.words, epilogue, operands.params, vec4_out)
    return InBounds(operands.enable + head + with_library(operands.text + epilogue.text + main))


# --- without shared memory: on software adapters barriers cost more than they save ---------------

DIRECT = Tile(32, 64, 1, 2)  # 64 threads, 4 x 8 results each


def _reads(sides: tuple[Side, Side]) -> tuple[list[str], list[str]]:
    """Lines that read 4 terms of the thread's rows and columns; the scalars x(row, term)."""
    lines, xs = [], []
    if sides[0].along == "terms":
        lines += [f"    let x{r} = left4(b, min(m + {r}u, {ROWS} - 1u), k);\n" for r in range(4)]
        xs = [f"x{r}.{part}" for r in range(4) for part in "xyzw"]
    else:
        lines += [f"    let x{i} = left4(b, m, k + {i}u);\n" for i in range(4)]
        xs = [f"x{i}.{part}" for part in "xyzw" for i in range(4)]
    if sides[1].along == "tile":
        for i in range(4):
            for c in range(DIRECT.across):
                at = f"min(n + {4 * c}u, {COLUMNS} - 4u)"
                lines.append(f"    let y{i}{c} = right4(b, k + {i}u, {at});\n")
        return lines, xs
    for j in range(4 * DIRECT.across):
        lines.append(f"    let z{j} = right4(b, k, min(n + {j}u, {COLUMNS} - 1u));\n")
    for i, part in enumerate("xyzw"):
        for c in range(DIRECT.across):
            parts = ", ".join(f"z{4 * c + j}.{part}" for j in range(4))
            lines.append(f"    let y{i}{c} = vec4<f32>({parts});\n")
    return lines, xs


@lru_cache(maxsize=256)
def direct(operands: GemmOperands, epilogue: Epilogue, vec4_out: bool) -> str:
    """One thread for 4 x 8 results. The terms are a multiple of 4; both sides are read as vec4."""
    reads, xs = _reads(operands.sides)
    each = [(r, c) for r in range(4) for c in range(DIRECT.across)]
    adds = [
        f"    s{r}{c} = s{r}{c} + {xs[4 * r + i]} * y{i}{c};\n" for i in range(4) for r, c in each
    ]
    writes = []
    for r, c in each:
        m, n = f"m + {r}u", f"n + {4 * c}u"
        writes.append(f"  if ({m} < {ROWS} && {n} < {COLUMNS}) {{\n")
        at, left = f"(z * {ROWS} + {m}) * {COLUMNS} + {n}", f"{COLUMNS} - ({n})"
        writes.append(stored(epilogue, f"s{r}{c}", at, left, vec4_out) + "  }\n")
    main = (
        "@compute @workgroup_size(64) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
        "    @builtin(local_invocation_index) l: u32) {\n"
        + where()
        + "  let m = (w.y * 8u + (l >> 3u)) * 4u;\n  let n = (w.x * 8u + (l & 7u)) * 8u;\n"
        + f"  if (m >= {ROWS} || n >= {COLUMNS}) {{ return; }}\n"
        + "".join(f"  var s{r}{c} = vec4<f32>();\n" for r, c in each)
        + "  for (var k = start; k < end; k = k + 4u) {\n"
        + "".join(reads)
        + "".join(adds)
        + "  }\n"
        + "".join(writes)
        + "}\n"
    )
    head = bindings(operands.words, epilogue, operands.params, vec4_out)
    return InBounds(operands.enable + head + with_library(operands.text + epilogue.text + main))

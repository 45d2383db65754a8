"""The tiled matrix kernel: float32 sums, four numbers at a time.

A workgroup of 16 x 16 threads makes a tile of results; each thread keeps 4 x 4 of them (or 8 x 8)
in registers while slices of 16 terms pass through shared memory, always in fours along the tile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everygrad.backends.webgpu.render import slot, with_library

TERMS = 16


class Side(NamedTuple):
    """One operand. `along` is how it is read four at a time: "tile" where neighbours in the tile's
    direction lie together, "terms" where neighbours along the terms do, "" one by one."""

    fn: str  # left or right
    along: str
    near: str  # what neighbouring threads read when one by one: "tile" or "terms"


def _call(side: Side, tile: str, term: str, four: bool = False) -> str:
    name = side.fn + ("4" if four else "")
    return f"{name}(b, {tile}, {term})" if side.fn == "left" else f"{name}(b, {term}, {tile})"


def _fill(side: Side, size: int, shared: str, start: str, limit: str) -> str:
    """Lines that bring a slice of the operand into shared memory, zeros beyond its edges."""
    fours = size // 4
    terms = slot(2)
    if side.along == "terms":  # blocks of 4 x 4, turned over in registers
        blocks = fours * TERMS // 4
        first = 0 if side.fn == "left" else 256 - blocks
        lines = [
            f"    if (l >= {first}u && l < {first + blocks}u) {{\n      let c = l - {first}u;\n"
        ]
        lines.append(
            f"      let k = k0 + (c & 3u) * 4u;\n      let t = {start} + (c >> 2u) * 4u;\n"
        )
        for i in range(4):
            lines.append(
                f"      var r{i} = vec4<f32>();\n      if (t + {i}u < {limit} && k < {terms}) "
                f"{{ r{i} = {_call(side, f't + {i}u', 'k', True)}; }}\n"
            )
        for i, part in enumerate("xyzw"):
            value = ", ".join(f"r{j}.{part}" for j in range(4))
            lines.append(
                f"      {shared}[((c & 3u) * 4u + {i}u) * {fours}u + (c >> 2u)] "
                f"= vec4<f32>({value});\n"
            )
        return "".join(lines) + "    }\n"
    by_terms = not side.along and side.near == "terms"
    where = (f"c % {TERMS}u", f"c / {TERMS}u") if by_terms else (f"c / {fours}u", f"c % {fours}u")
    lines = [f"    for (var q = 0u; q < {TERMS * fours // 256}u; q = q + 1u) {{\n"]
    lines.append(
        f"      let c = q * 256u + l;\n      let f = {where[0]};\n      let s = {where[1]};\n"
    )
    lines.append(
        f"      let k = k0 + f;\n      let t = {start} + s * 4u;\n      var v = vec4<f32>();\n"
    )
    if side.along:
        lines.append(
            f"      if (t < {limit} && k < {terms}) {{ v = {_call(side, 't', 'k', True)}; }}\n"
        )
    else:
        lines.append(f"      if (k < {terms}) {{\n")
        for i, part in enumerate("xyzw"):
            at = f"t + {i}u"
            lines.append(f"        if ({at} < {limit}) {{ v.{part} = {_call(side, at, 'k')}; }}\n")
        lines.append("      }\n")
    lines.append(f"      {shared}[f * {fours}u + s] = v;\n    }}\n")
    return "".join(lines)


def _inner(size: int) -> str:
    """Four terms, all products of the thread's rows and columns."""
    fours, rows = size // 4, size // 64
    lines = []
    for u in range(4):
        at = f"(k4 * 4u + {u}u) * {fours}u"
        for r in range(rows):
            lines.append(f"      let x{u}{r} = xs[{at} + ty + {16 * r}u];\n")
            lines.append(f"      let y{u}{r} = ys[{at} + tx + {16 * r}u];\n")
        for r in range(rows):
            for i, part in enumerate("xyzw"):
                for c in range(rows):
                    acc = f"s{r}{i}{c}"
                    lines.append(f"      {acc} = {acc} + x{u}{r}.{part} * y{u}{c};\n")
    return "".join(lines)


def _results(size: int, fours_out: bool) -> str:
    lines = []
    rows = size // 64
    for r in range(rows):
        for c in range(rows):
            for i in range(4):
                m, n = f"m0 + ty * 4u + {64 * r + i}u", f"n0 + tx * 4u + {64 * c}u"
                value = f"bitcast<vec4<u32>>(s{r}{i}{c})"
                at = f"(b * {slot(0)} + {m}) * {slot(1)} + {n}"
                if fours_out:
                    lines.append(
                        f"  if ({m} < {slot(0)} && {n} < {slot(1)}) "
                        f"{{ out[({at}) >> 2u] = {value}; }}\n"
                    )
                    continue
                lines.append(
                    f"  if ({m} < {slot(0)}) {{\n    let v = {value};\n    let p = {at};\n"
                )
                for j, part in enumerate("xyzw"):
                    lines.append(
                        f"    if ({n} + {j}u < {slot(1)}) {{ out[p + {j}u] = v.{part}; }}\n"
                    )
                lines.append("  }\n")
    return "".join(lines)


def _head(bindings: int, params: int, word: str, out: str) -> str:
    """What is read as arrays of `word`, what is written as one of `out`, and the uniform."""
    lines = [
        f"@group(0) @binding({i}) var<storage, read> a{i}: array<{word}>;\n"
        for i in range(bindings)
    ]
    lines.append(f"@group(0) @binding({bindings}) var<storage, read_write> out: array<{out}>;\n")
    lines.append(f"struct Params {{ v: array<vec4<u32>, {-(-params // 4)}> }}\n")
    lines.append(f"@group(0) @binding({bindings + 1}) var<uniform> P: Params;\n")
    return "".join(lines)


@lru_cache(maxsize=256)
def kernel(
    readers: str, sides: tuple[Side, Side], size: int, fours_in: bool, fours_out: bool,
    bindings: int, params: int,
) -> str:  # fmt: skip
    """`readers` defines left, right and those of left4, right4 that are asked for."""
    word, out = ("vec4<u32>" if f else "u32" for f in (fours_in, fours_out))
    count = TERMS * size // 4
    rows = size // 64
    names = [f"s{r}{i}{c}" for r in range(rows) for i in range(4) for c in range(rows)]
    main = (
        f"var<workgroup> xs: array<vec4<f32>, {count}>;\n"
        f"var<workgroup> ys: array<vec4<f32>, {count}>;\n"
        "@compute @workgroup_size(256) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
        "    @builtin(local_invocation_index) l: u32) {\n"
        f"  let b = w.z + {slot(3)};\n  let m0 = w.y * {size}u;\n  let n0 = w.x * {size}u;\n"
        "  let ty = l >> 4u;\n  let tx = l & 15u;\n"
        + "".join(f"  var {name} = vec4<f32>();\n" for name in names)
        + f"  for (var k0 = 0u; k0 < {slot(2)}; k0 = k0 + {TERMS}u) {{\n"
        + _fill(sides[0], size, "xs", "m0", slot(0))
        + _fill(sides[1], size, "ys", "n0", slot(1))
        + f"    workgroupBarrier();\n    for (var k4 = 0u; k4 < {TERMS // 4}u; k4 = k4 + 1u) {{\n"
        + _inner(size)
        + "    }\n    workgroupBarrier();\n  }\n"
        + _results(size, fours_out)
        + "}\n"
    )
    return _head(bindings, params, word, out) + with_library(readers + main)


# --- without shared memory: on software adapters barriers cost more than they save ---------------

ROWS, COLUMNS = 4, 8  # results of one thread


def _reads(sides: tuple[Side, Side]) -> tuple[list[str], list[str]]:
    """Lines that read 4 terms of the thread's rows and columns; the scalars x(row, term)."""
    lines, xs = [], []
    if sides[0].along == "terms":
        lines += [f"    let x{r} = left4(b, min(m + {r}u, {slot(0)} - 1u), k);\n" for r in range(4)]
        xs = [f"x{r}.{part}" for r in range(4) for part in "xyzw"]
    else:
        lines += [f"    let x{i} = left4(b, m, k + {i}u);\n" for i in range(4)]
        xs = [f"x{i}.{part}" for part in "xyzw" for i in range(4)]
    fours = COLUMNS // 4
    if sides[1].along == "tile":
        for i in range(4):
            for c in range(fours):
                at = f"min(n + {4 * c}u, {slot(1)} - 4u)"
                lines.append(f"    let y{i}{c} = right4(b, k + {i}u, {at});\n")
        return lines, xs
    for j in range(COLUMNS):
        lines.append(f"    let z{j} = right4(b, k, min(n + {j}u, {slot(1)} - 1u));\n")
    for i, part in enumerate("xyzw"):
        for c in range(fours):
            parts = ", ".join(f"z{4 * c + j}.{part}" for j in range(4))
            lines.append(f"    let y{i}{c} = vec4<f32>({parts});\n")
    return lines, xs


@lru_cache(maxsize=256)
def direct(readers: str, sides: tuple[Side, Side], bindings: int, params: int) -> str:
    """A thread for 4 x 8 results. The terms come in fours; both sides are read four at a time."""
    reads, xs = _reads(sides)
    fours = COLUMNS // 4
    sums = [f"s{r}{c}" for r in range(ROWS) for c in range(fours)]
    adds = [
        f"    s{r}{c} = s{r}{c} + {xs[4 * r + i]} * y{i}{c};\n"
        for i in range(4)
        for r in range(ROWS)
        for c in range(fours)
    ]
    writes = []
    for r in range(ROWS):
        for c in range(fours):
            for j, part in enumerate("xyzw"):
                m, n = f"m + {r}u", f"n + {4 * c + j}u"
                at = f"(b * {slot(0)} + {m}) * {slot(1)} + {n}"
                writes.append(
                    f"  if ({m} < {slot(0)} && {n} < {slot(1)}) "
                    f"{{ out[{at}] = bitcast<u32>(s{r}{c}.{part}); }}\n"
                )
    main = (
        "@compute @workgroup_size(64) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
        "    @builtin(local_invocation_index) l: u32) {\n"
        f"  let b = w.z + {slot(3)};\n  let m = (w.y * 8u + (l >> 3u)) * {ROWS}u;\n"
        f"  let n = (w.x * 8u + (l & 7u)) * {COLUMNS}u;\n"
        f"  if (m >= {slot(0)} || n >= {slot(1)}) {{ return; }}\n"
        + "".join(f"  var {name} = vec4<f32>();\n" for name in sums)
        + f"  for (var k = 0u; k < {slot(2)}; k = k + 4u) {{\n"
        + "".join(reads)
        + "".join(adds)
        + "  }\n"
        + "".join(writes)
        + "}\n"
    )
    return _head(bindings, params, "vec4<u32>", "u32") + with_library(readers + main)

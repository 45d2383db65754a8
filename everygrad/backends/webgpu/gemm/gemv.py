"""GEMV: products with few rows or few columns, matrices times vectors, and dot products.

The operand with many rows or columns is wide, the other one has few. Where the wide one is
contiguous along its terms, threads share the terms of a few results, and a block reduction adds
their sums; where it is contiguous along its tile, each thread has four neighbours of it, and eight
threads share their terms.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from everygrad.backends.webgpu.driver.shader_modules import InBounds
from everygrad.backends.webgpu.gemm.gemm import COLUMNS, ROWS, GemmOperands, Side, call, where
from everygrad.backends.webgpu.gemm.result_writes import bindings, plain
from everygrad.backends.webgpu.source.render import with_library
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import float32

FEW = edge(__name__, "FEW", 8, "size")  # rows or columns from which tiles are better
# wide rows or columns of a workgroup where they are contiguous along the tile
WIDE_TILE = edge(__name__, "WIDE_TILE", 128, "size")
SHARERS = edge(__name__, "SHARERS", 8, "size")  # threads that share the terms there
_AHEAD = edge(__name__, "_AHEAD", 4, "size")  # terms read at once there


class GemvPlan(NamedTuple):
    """What a kernel's text depends on besides its operands."""

    few: int  # rows or columns of the operand that has few
    few_left: bool  # whether it is the left one
    lanes: (
        int  # threads along the terms of one result; 0: the wide side is contiguous along its tile
    )
    block: int  # wide rows or columns of a thread
    subgroups: bool

    @property
    def tile(self) -> int:
        """Wide rows or columns of a workgroup."""
        return 256 // self.lanes * self.block if self.lanes else WIDE_TILE


def _sides(operands: GemmOperands, plan: GemvPlan) -> tuple[Side, Side, str]:
    """The operand that has few, the wide one, and how many rows or columns that has."""
    left, right = operands.sides
    return (left, right, COLUMNS) if plan.few_left else (right, left, ROWS)


def _place(plan: GemvPlan, few: str, wide: str) -> str:
    m, n = (few, wide) if plan.few_left else (wide, few)
    return f"(z * {ROWS} + {m}) * {COLUMNS} + {n}"


@lru_cache(maxsize=256)
def kernel(operands: GemmOperands, plan: GemvPlan) -> str:
    """Results are float32."""
    shared, main = _along_terms(operands, plan) if plan.lanes else _along_tile(operands, plan)
    subgroup = ""
    if plan.subgroups:
        subgroup = (
            ",\n    @builtin(subgroup_id) group: u32, @builtin(num_subgroups) groups: u32"
            ",\n    @builtin(subgroup_invocation_id) within: u32"
        )
    text = (
        f"{operands.text}{shared}"
        "@compute @workgroup_size(256) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
        f"    @builtin(local_invocation_index) l: u32{subgroup}) {{\n{where()}{main}}}\n"
    )
    head = bindings(operands.words, plain(float32), operands.params, vec4=False)
    return InBounds(operands.enable + head + with_library(text))


# --- along the terms -----------------------------------------------------------------------------


def _along_terms(operands: GemmOperands, plan: GemvPlan) -> tuple[str, str]:
    few, wide, limit = _sides(operands, plan)
    step = 4 if operands.is_vec4 else 1
    each = [(i, j) for i in range(plan.few) for j in range(plan.block)]
    lines = [f"  let lane = l % {plan.lanes}u;\n"]
    lines.append(f"  let t = w.x * {plan.tile}u + (l / {plan.lanes}u) * {plan.block}u;\n")
    lines += [f"  var s{i}{j} = 0.0;\n" for i, j in each]
    advance = f"k = k + {plan.lanes * step}u"
    lines.append(f"  for (var k = start + lane * {step}u; k < end; {advance}) {{\n")
    lines += [f"    let x{i} = {call(few, f'{i}u', 'k')};\n" for i in range(plan.few)]
    for j in range(plan.block):
        lines.append(f"    let y{j} = {call(wide, f'min(t + {j}u, {limit} - 1u)', 'k')};\n")
    for i, j in each:
        product = f"dot(x{i}, y{j})" if step == 4 else f"x{i} * y{j}"
        lines.append(f"    s{i}{j} = s{i}{j} + {product};\n")
    lines.append("  }\n")
    shared, summed = _by_subgroups(plan) if plan.subgroups else _by_tree(plan)
    last = (
        f"  if (lane < {len(each)}u && t + lane % {plan.block}u < {limit}) {{\n{summed}"
        f"    let e = {_place(plan, f'lane / {plan.block}u', f't + lane % {plan.block}u')};\n"
        "    out[e] = bitcast<u32>(total);\n  }\n"
    )
    return shared[0], "".join(lines) + shared[1] + last


def _by_tree(plan: GemvPlan) -> tuple[tuple[str, str], str]:
    """Sums over the lanes in shared memory: its declaration and the steps; then the total."""
    each = [(i, j) for i in range(plan.few) for j in range(plan.block)]
    puts = "".join(f"  parts[{256 * v}u + l] = s{i}{j};\n" for v, (i, j) in enumerate(each))
    adds = "".join(
        f"      parts[{256 * v}u + l] = parts[{256 * v}u + l] + parts[{256 * v}u + l + h];\n"
        for v in range(len(each))
    )
    steps = (
        f"{puts}  workgroupBarrier();\n"
        f"  for (var h = {plan.lanes // 2}u; h > 0u; h = h >> 1u) {{\n"
        f"    if (lane < h) {{\n{adds}    }}\n    workgroupBarrier();\n  }}\n"
    )
    shared = f"var<workgroup> parts: array<f32, {256 * len(each)}>;\n"
    return (shared, steps), "    let total = parts[lane * 256u + l - lane];\n"


def _by_subgroups(plan: GemvPlan) -> tuple[tuple[str, str], str]:
    """The same with one barrier: subgroups add their lanes, and one thread for each result adds
    the subgroups' sums. A workgroup has at most 64 subgroups, of whichever threads."""
    each = [(i, j) for i in range(plan.few) for j in range(plan.block)]
    steps = "".join(f"  let g{i}{j} = subgroupAdd(s{i}{j});\n" for i, j in each)
    steps += "  if (within == 0u) {\n"
    for v, (i, j) in enumerate(each):
        steps += f"    parts[group * {len(each)}u + {v}u] = g{i}{j};\n"
    steps += "  }\n  workgroupBarrier();\n"
    total = (
        "    var total = 0.0;\n    for (var g = 0u; g < groups; g = g + 1u) {\n"
        f"      total = total + parts[g * {len(each)}u + lane];\n    }}\n"
    )
    return (f"var<workgroup> parts: array<f32, {64 * len(each)}>;\n", steps), total


# --- along the tile ------------------------------------------------------------------------------


def _read_vec4(wide: Side, term: str, limit: str, name: str) -> str:
    """Lines that read four elements of the wide side from t on."""
    lines = f"    var {name} = vec4<f32>();\n"
    if wide.along:
        return f"{lines}    if (t < {limit}) {{ {name} = {call(wide, 't', term)}; }}\n"
    for i, part in enumerate("xyzw"):
        value = call(wide, f"t + {i}u", term)
        lines += f"    if (t + {i}u < {limit}) {{ {name}.{part} = {value}; }}\n"
    return lines


def _along_tile(operands: GemmOperands, plan: GemvPlan) -> tuple[str, str]:
    few, wide, limit = _sides(operands, plan)
    vectors = WIDE_TILE // 4
    lines = [
        f"  let lane = l / {vectors}u;\n  let t = w.x * {WIDE_TILE}u + (l % {vectors}u) * 4u;\n"
    ]
    lines += [f"  var s{i} = vec4<f32>();\n" for i in range(plan.few)]
    lines.append("  var k = start + lane;\n")
    for ahead in (_AHEAD, 1):
        last = f"k + {(ahead - 1) * SHARERS}u" if ahead > 1 else "k"
        lines.append(f"  for (; {last} < end; k = k + {ahead * SHARERS}u) {{\n")
        terms = [f"k + {SHARERS * u}u" if u else "k" for u in range(ahead)]
        lines += [_read_vec4(wide, term, limit, f"y{u}") for u, term in enumerate(terms)]
        for u, term in enumerate(terms):
            for i in range(plan.few):
                lines.append(f"    s{i} = s{i} + {call(few, f'{i}u', term)} * y{u};\n")
        lines.append("  }\n")
    for i in range(plan.few):
        lines.append(f"  parts[l] = s{i};\n  workgroupBarrier();\n  if (lane == 0u) {{\n")
        total = " + ".join(f"parts[l + {vectors * u}u]" for u in range(SHARERS))
        lines.append(f"    let v = {total};\n")
        for j, part in enumerate("xyzw"):
            place = _place(plan, f"{i}u", f"t + {j}u")
            lines.append(f"    if (t + {j}u < {limit}) {{ out[{place}] = ")
            lines.append(f"bitcast<u32>(v.{part}); }}\n")
        lines.append("  }\n  workgroupBarrier();\n")
    return "var<workgroup> parts: array<vec4<f32>, 256>;\n", "".join(lines)


def choose_plan(
    few: int, wide: int, terms: int, few_left: bool, by_terms: bool, subgroups: bool
) -> GemvPlan:
    """`by_terms`: the wide side is contiguous along its terms. All threads share them where there
    are few results or many terms; a thread has at most 16 sums."""
    if not by_terms:
        return GemvPlan(few, few_left, 0, 4, subgroups=False)
    lanes = next((n for n in (16, 64) if terms <= 32 * n and wide >= 64), 256)
    block = min(4 if few <= 4 else 2, 1 << (wide - 1).bit_length())
    return GemvPlan(few, few_left, lanes, block, subgroups and lanes == 256)

"""argmax and argmin: a workgroup for each row."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.source.render import (
    MAIN,
    address,
    frame,
    instruction,
    slot,
    split_index,
)
from everygrad.backends.webgpu.source.word_layout import layout, load
from everygrad.compiler.expr import Inst
from everygrad.core.shapes import reduced, size_of
from everygrad.core.strides import collapse
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU


@lru_cache(maxsize=256)
def _arg_text(dtype: DType, kept_rank: int, largest: bool) -> str:
    """A workgroup for each row. Uniform: rows, terms, stride of the terms, then the kept axes."""
    lines, names = split_index(kept_rank, 3, "row")
    lay = layout(dtype)
    compare = instruction(
        Inst("gt" if largest else "lt", dtypes.bool_, (0, 1)), ["v", "b"], [dtype, dtype]
    )
    equal = instruction(Inst("eq", dtypes.bool_, (0, 1)), ["v", "b"], [dtype, dtype])
    nan = ""
    if lay.kind == "f":
        nan = (
            "  if (is_nan(v) != is_nan(b)) { return is_nan(v); }\n"
            "  if (is_nan(v)) { return i < bi; }\n"
        )
    rows = "\n".join(lines)
    text = (
        f"fn base_of(row: u32) -> u32 {{\n{rows}\n  return {address(2 + kept_rank, names)};\n}}\n"
        f"fn better(v: {lay.register}, i: u32, b: {lay.register}, bi: u32) -> bool {{\n"
        "  if (i == 0xffffffffu || bi == 0xffffffffu) { return bi == 0xffffffffu; }\n"
        f"{nan}  return ({compare}) || (({equal}) && i < bi);\n}}\n"
        f"var<workgroup> best: array<{lay.register}, 256>;\n"
        "var<workgroup> place: array<u32, 256>;\n" + MAIN + "  let k = w.y * g.x + w.x;\n"
        f"  if (k >= {slot(0)}) {{ return; }}\n  let base = base_of(k);\n"
        f"  var b: {lay.register};\n  var bi = 0xffffffffu;\n"
        f"  for (var j = l; j < {slot(1)}; j = j + 256u) {{\n    let p = base + j * {slot(2)};\n"
        f"    let v: {lay.register} = {load(dtype, 'a0', 'p')};\n"
        "    if (better(v, j, b, bi)) { b = v; bi = j; }\n  }\n"
        "  best[l] = b;\n  place[l] = bi;\n  workgroupBarrier();\n"
        "  for (var s = 128u; s > 0u; s = s >> 1u) {\n    if (l < s) {\n"
        "      if (better(best[l + s], place[l + s], best[l], place[l])) {\n"
        "        best[l] = best[l + s];\n        place[l] = place[l + s];\n      }\n    }\n"
        "    workgroupBarrier();\n  }\n"
        "  if (l == 0u) {\n    out[2u * k] = place[0];\n    out[2u * k + 1u] = 0u;\n  }\n}\n"
    )
    return frame(1, 3 + kept_rank - 1 + 1 + kept_rank, text)


def arg_reduce(
    dev: WebGPU, largest: bool, x: WebGPUArray, axis: int, keepdims: bool
) -> WebGPUArray:
    shape = reduced(x.shape, (axis,), keepdims)
    out: WebGPUArray = dev.empty(shape, dtypes.int64)
    if out.storage is None or x.storage is None:
        return out
    stay = [a for a in range(len(x.shape)) if a != axis]
    kept, (steps,) = collapse(tuple(x.shape[a] for a in stay), [tuple(x.strides[a] for a in stay)])
    rows = size_of(kept)
    params = [rows, x.shape[axis], x.strides[axis], *kept[1:], x.offset, *steps]
    source = _arg_text(FROM_NP[x.dtype], len(kept), largest)
    name = "argmax" if largest else "argmin"
    dev.launch(name, source, [x.storage], out, params, rows * 256)
    return out

"""Attention and its derivative without a matrix of queries by keys.

Scores are computed a tile at a time and used at once (online softmax): the kernel keeps a running
maximum and a running sum of exponentials, and rescales what it has summed when the maximum grows.
The derivative recomputes the scores. The kernels, by name:

    out    a result of each query
    stats  of each query: the largest score, 1 / the sum of exponentials, <p, g v^T>
    dq     by the queries, rows of queries and columns of keys
    dkv    by keys and values, rows of keys and columns of queries
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.attention.attention_tiles import (
    TILE,
    TileOperand,
    TileWriter,
    chunks,
    slabs,
)
from everygrad.backends.webgpu.driver.shader_modules import InBounds
from everygrad.backends.webgpu.kernels.copy_kernels import as_dtype
from everygrad.backends.webgpu.kernels.single_op import floating
from everygrad.backends.webgpu.source.mathlib import exp_low
from everygrad.backends.webgpu.source.render import address, frame, slot, split_index
from everygrad.backends.webgpu.source.word_layout import load
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.core.strides import broadcast_strides, collapse
from everygrad.dtypes import FROM_NP, DType
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

# words of the uniform: workgroups, queries, keys, scale, where dk and dv begin, width, depth, slabs
# and whether causal
HEAD = 10
RANK = 2  # axes of a batch, at least: most have one or two, and fewer kernels are compiled
KNOWN = ("shift", "weight", "mean")  # what `stats` stores for each query
# the largest score, which is subtracted from exponents; 0 for a query that attends to no key
SHIFT = "let shift{r} = select(top{r}, vec4<f32>(), top{r} == vec4<f32>(low));"


class AttentionForm(NamedTuple):
    """What a kernel's text depends on."""

    kind: str  # out, stats, dq or dkv
    names: tuple[str, ...]  # of the arrays it reads
    dtype: DType
    rank: int  # of the batch
    chunks: tuple[int, int]  # of a row of q and k, and of a row of v and g
    vectors: int  # see TileWriter


class _AttentionKernel:
    """The text of one kernel."""

    def __init__(self, form: AttentionForm) -> None:
        self.form = form
        self.by_keys = form.kind == "dkv"
        self.tiles = TileWriter(form.vectors)
        self.q, self.k = (TileOperand(name, "width", form.chunks[0]) for name in "qk")
        self.v, self.g = (TileOperand(name, "depth", form.chunks[1]) for name in "vg")
        scaled = self.q._replace(scale="scale")
        # rows and columns of the scores; rows and columns of the derivative by probabilities
        self.scores = (self.k, scaled) if self.by_keys else (scaled, self.k)
        self.slopes = (self.v, self.g) if self.by_keys else (self.g, self.v)

    # --- around ----------------------------------------------------------------------------------

    def text(self) -> str:
        tiles, body = self.tiles, getattr(self, self.form.kind)()
        counts = (slot(2), slot(1)) if self.by_keys else (slot(1), slot(2))
        operands = [name for name in self.form.names if name != "stats"]
        main = (
            f"@compute @workgroup_size({tiles.threads}) fn main(\n"
            "    @builtin(workgroup_id) w: vec3<u32>, @builtin(num_workgroups) n: vec3<u32>,\n"
            "    @builtin(local_invocation_index) l: u32) {\n"
            f"  let group = w.y * n.x + w.x;\n  if (group >= {slot(0)}) {{ return; }}\n"
            f"  let row_count = {counts[0]};\n  let column_count = {counts[1]};\n"
            f"  let scale = bitcast<f32>({slot(3)});\n  let low = bits_f(0xff800000u);\n"
            f"  let width = {slot(6)};\n  let depth = {slot(7)};\n"
            f"  let causal = {slot(9)} != 0u;\n"
            f"  let count = (row_count + {TILE - 1}u) / {TILE}u;\n"
            f"  let row0 = (group % count) * {TILE}u;\n"
            f"  let slab = (group / count) % {slot(8)};\n"
            f"  let batch = group / (count * {slot(8)});\n"
            + "".join(f"  let {x}_start = {x}_first(batch);\n" for x in operands)
            + tiles.begin()
        )
        readers, params = self.readers()
        shared = tiles.shared(max(self.form.chunks))
        whole = exp_low("vec4<f32>", "exp_low") + readers + shared + main + body + "}\n"
        return frame(len(self.form.names), params, whole)

    def readers(self) -> tuple[str, int]:
        """For each operand x_first(batch) and x(start, row, column); stats(batch, query, which).
        Also the number of words of the uniform."""
        form = self.form
        lines, names = split_index(form.rank, HEAD, "batch")
        first = HEAD + form.rank - 1
        text = ""
        for binding, name in enumerate(form.names):
            if name == "stats":
                at = f"(batch * {slot(1)} + query) * {len(KNOWN)}u + which"
                text += "fn stats(batch: u32, query: u32, which: u32) -> f32 {\n"
                text += f"  return bitcast<f32>(a{binding}[{at}]);\n}}\n"
                continue
            text += f"fn {name}_first(batch: u32) -> u32 {{\n" + "\n".join(lines)
            text += f"\n  return {address(first, names)};\n}}\n"
            steps = (slot(first + form.rank + 1), slot(first + form.rank + 2))
            text += f"fn {name}(start: u32, row: u32, column: u32) -> f32 {{\n"
            text += f"  let p = start + row * {steps[0]} + column * {steps[1]};\n"
            text += f"  return {load(form.dtype, f'a{binding}', 'p')};\n}}\n"
            first += form.rank + 3
        return text, first

    def loop(self, body: str) -> str:
        """`body` for all columns that any of the workgroup's rows may attend to."""
        start, end = "0u", "column_count"
        if self.by_keys:
            start = "select(0u, row0, causal)"
        else:
            end = f"select(column_count, min(column_count, row0 + {TILE}u), causal)"
        step = f"col0 = col0 + {TILE}u"
        return f"  for (var col0 = {start}; col0 < {end}; {step}) {{\n{body}  }}\n"

    def rows(self, form: str, indent: str = "    ") -> str:
        """A line for each row group r, which is {r}."""
        return "".join(f"{indent}{form.replace('{r}', str(r))}\n" for r in self.tiles.each)

    # --- scores ----------------------------------------------------------------------------------

    def masked(self) -> str:
        """Lines that add the mask to the scores; minus infinity where a query must not attend."""
        tiles, text, low = self.tiles, "", "vec4<f32>(low)"
        for r, j in tiles.pairs():
            s, column = f"s{r}_{j}", tiles.column(j)
            if "mask" in self.form.names:
                there = f"min({column}, column_count - 1u)"
                pair = f"{there}, {{row}}" if self.by_keys else f"{{row}}, {there}"
                value = tiles.of_rows(r, f"mask(mask_start, {pair})")
                text += f"    let m{r}_{j} = {value};\n"
                text += f"    {s} = select({s} + m{r}_{j}, {low}, m{r}_{j} == {low});\n"
            else:
                later = f"vec4<u32>({column}) {'<' if self.by_keys else '>'} rows{r}"
                text += f"    {s} = select({s}, {low}, vec4<bool>(causal) & ({later}));\n"
            text += f"    {s} = select({s}, {low}, {column} >= column_count);\n"
        return text

    def online_softmax(self, more: str) -> str:
        """Exponentials p of the scores s, with the running maximum and sum updated. `more` follows,
        and can use `ratio`, the factor by which earlier sums are rescaled."""
        tiles = self.tiles
        text = tiles.product("s", *self.scores) + self.masked()
        for r in tiles.each:
            top = tiles.along("max({}, {})", [f"s{r}_{j}" for j in tiles.columns])
            text += f"    var next{r} = max(top{r}, {top});\n"
        text += tiles.across("next", "max({}, {})") + self.rows(SHIFT.replace("top", "next"))
        text += self.rows("let ratio{r} = exp_low(top{r} - shift{r});\n    top{r} = next{r};")
        for r, j in tiles.pairs():
            text += f"    let p{r}_{j} = exp_low(s{r}_{j} - shift{r});\n"
        for r in tiles.each:
            total = tiles.along("({} + {})", [f"p{r}_{j}" for j in tiles.columns])
            text += f"    total{r} = total{r} * ratio{r} + {total};\n"
        return text + more

    def begin_online_softmax(self) -> str:
        return self.rows("var top{r} = vec4<f32>(low);\n  var total{r} = vec4<f32>();", "  ")

    def weights(self) -> str:
        """1 / the sum; 0 for a query that attends to no key."""
        weight = "1.0 / total{r}"
        if "mask" in self.form.names:
            weight = f"select({weight}, vec4<f32>(), total{{r}} == vec4<f32>())"
        return self.tiles.across("total", "{} + {}") + self.rows(f"let weight{{r}} = {weight};")

    def recomputed(self) -> str:
        """Probabilities p, and the derivative by the scores, e, from what `stats` stored."""
        tiles = self.tiles
        text = tiles.product("s", *self.scores) + self.masked()
        text += tiles.product("d", *self.slopes)
        if self.by_keys:
            for j in tiles.columns:
                there = f"min({tiles.column(j)}, column_count - 1u)"
                for which, name in enumerate(KNOWN):
                    text += f"    let {name}{j} = stats(batch, {there}, {which}u);\n"
        for r, j in tiles.pairs():
            shift, weight, mean = (f"{name}{j if self.by_keys else r}" for name in KNOWN)
            p, e = f"p{r}_{j}", f"e{r}_{j}"
            text += f"    var {p} = exp_low(s{r}_{j} - {shift}) * {weight};\n"
            text += f"    var {e} = {p} * (d{r}_{j} - {mean});\n"
            if self.by_keys:  # values read for a query beyond the last may be NaN
                beyond = f"{tiles.column(j)} >= column_count"
                for x in (p, e):
                    text += f"    {x} = select({x}, vec4<f32>(), {beyond});\n"
        return text

    # --- the kernels -----------------------------------------------------------------------------

    def out(self) -> str:
        tiles, v = self.tiles, self.v
        mixed = tiles.shrink("out", v, "ratio") + tiles.mix("out", "p", v)
        text = (
            self.begin_online_softmax()
            + tiles.sums("out", v)
            + self.loop(self.online_softmax(mixed))
        )
        return text + self.weights() + tiles.store("out", v, "0u", "weight")

    def stats(self) -> str:
        tiles, more = self.tiles, self.tiles.product("d", *self.slopes)
        for r in tiles.each:
            terms = [f"p{r}_{j} * d{r}_{j}" for j in tiles.columns]
            more += f"    slope{r} = slope{r} * ratio{r} + {tiles.along('({} + {})', terms)};\n"
        text = self.begin_online_softmax() + self.rows("var slope{r} = vec4<f32>();", "  ")
        text += (
            self.loop(self.online_softmax(more)) + self.weights() + tiles.across("slope", "{} + {}")
        )
        text += self.rows(SHIFT) + self.rows("let mean{r} = slope{r} * weight{r};")
        return text + tiles.store_rows(KNOWN)

    def dq(self) -> str:
        tiles, k = self.tiles, self.k
        text = ""
        for r in tiles.each:
            for which, name in enumerate(KNOWN):
                value = tiles.of_rows(r, f"stats(batch, {{row}}, {which}u)")
                text += f"  let {name}{r} = {value};\n"
        text += tiles.sums("dq", k) + self.loop(self.recomputed() + tiles.mix("dq", "e", k))
        return text + tiles.store("dq", k, "0u", "scale")

    def dkv(self) -> str:
        tiles, g, q = self.tiles, self.g, self.q
        mixed = tiles.mix("dv", "p", g) + tiles.mix("dk", "e", q)
        text = tiles.sums("dv", g) + tiles.sums("dk", q) + self.loop(self.recomputed() + mixed)
        text += tiles.store("dk", q, slot(4), "scale")
        return text + tiles.store("dv", g, slot(5), "1.0")


@lru_cache(maxsize=512)
def _text(form: AttentionForm) -> str:
    return InBounds(_AttentionKernel(form).text())


# --- on arrays -----------------------------------------------------------------------------------


class KernelWork(NamedTuple):
    """What a kernel computes: which sizes its products sum over, and how wide the results are that
    it mixes; "w" is the width, "d" the depth."""

    products: str
    mixes: str


WORKS = {
    "out": KernelWork("w", "d"),
    "stats": KernelWork("wd", ""),
    "dq": KernelWork("wd", "w"),
    "dkv": KernelWork("wd", "wd"),
}
# iterations of all loops of a thread, after which Mesa's software adapter ends them
MOST_TURNS = edge(__name__, "MOST_TURNS", 65535, "size")


class _AttentionCall:
    """The operands of one call, and how kernels are to read them."""

    def __init__(
        self, dev: WebGPU, arrays: dict[str, WebGPUArray], scale: float, causal: bool
    ) -> None:
        self.dev, self.causal = dev, causal
        q, v = arrays["q"], arrays["v"]
        self.batch = q.shape[:-2]
        self.queries, self.width = q.shape[-2:]
        self.keys, self.depth = v.shape[-2:]
        self.dtype = FROM_NP[q.dtype]
        if "mask" in arrays:
            mask, pairs = arrays["mask"], (*self.batch, self.queries, self.keys)
            mask = mask.view(pairs, broadcast_strides(mask.shape, mask.strides, pairs))
            arrays = {**arrays, "mask": mask}
        self.arrays = arrays
        self.vectors = 2 if dev.gpu.is_software else 1
        self.count = size_of(self.batch)
        scale_bits = int(np.float32(scale).view(np.uint32))
        starts = (self.count * n * self.width for n in (self.queries, self.queries + self.keys))
        self.sizes = [self.queries, self.keys, scale_bits, *starts, self.width, self.depth]

    def widths(self, letters: str) -> list[int]:
        return [self.width if letter == "w" else self.depth for letter in letters]

    def check(self, *kinds: str) -> None:
        """Refuse kernels that a software adapter would silently cut short."""
        for kind in kinds if self.dev.gpu.is_software else ():
            work, columns = WORKS[kind], self.queries if kind == "dkv" else self.keys
            turns = TileWriter(self.vectors).turns(self.widths(work.products), len(work.mixes))
            most = MOST_TURNS // turns * TILE
            if columns > most:
                raise DeviceError(
                    f"attention: {self.queries} queries and {self.keys} keys of width "
                    f"{self.width}: a software adapter ends loops after {MOST_TURNS} turns, enough "
                    f"for {most}; use the CPU: x.to('cpu')"
                )

    def run(self, kind: str, names: str, out: WebGPUArray, stats: WebGPUArray | None) -> None:
        """Launch one kernel, which reads these operands, the mask and `stats` if there are any."""
        chosen = [*names.split(), *(["mask"] if "mask" in self.arrays else [])]
        arrays = [self.arrays[name] for name in chosen]
        batch, strides = collapse(self.batch, [a.strides[:-2] for a in arrays])
        batch = (*(1,) * (RANK - len(batch)), *batch)
        # one kernel for each number of chunks, but only of what it mixes
        mixed = WORKS[kind].mixes
        parts = (
            chunks(self.width) if "w" in mixed else 1,
            chunks(self.depth) if "d" in mixed else 1,
        )
        read = (*chosen, *([] if stats is None else ["stats"]))
        form = AttentionForm(kind, read, self.dtype, len(batch), parts, self.vectors)
        shared = slabs(*self.widths(mixed))
        rows = self.keys if kind == "dkv" else self.queries
        groups = -(-rows // TILE) * shared * self.count
        params = [groups, *self.sizes, shared, int(self.causal), *batch[1:]]
        for a, steps in zip(arrays, strides, strict=True):
            params += (a.offset, *(0,) * (len(batch) - len(steps)), *steps, *a.strides[-2:])
        storages = [storage_of(a) for a in (arrays if stats is None else [*arrays, stats])]
        name = f"attention {kind}"
        self.dev.gpu.dispatch(name, _text(form), storages, [storage_of(out)], params, groups)


def attention(
    dev: WebGPU,
    q: WebGPUArray,
    k: WebGPUArray,
    v: WebGPUArray,
    mask: WebGPUArray | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> WebGPUArray:
    dtype, shape = floating("attention", q), (*q.shape[:-1], v.shape[-1])
    if not size_of(shape):
        return dev.empty(shape, dtype)
    arrays = _present(dev, {"q": q, "k": k, "v": v, "mask": mask})
    out: WebGPUArray = dev.empty(shape, dtypes.float32)
    call = _AttentionCall(dev, arrays, scale, causal)
    call.check("out")
    call.run("out", "q k v", out, None)
    return as_dtype(dev, out, dtype)


def grads(
    dev: WebGPU,
    g: WebGPUArray,
    q: WebGPUArray,
    k: WebGPUArray,
    v: WebGPUArray,
    mask: WebGPUArray | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> WebGPUArray:
    """The derivatives by q, k and v one after the other, flat."""
    dtype = floating("attention_grads", q)
    count = sum(size_of(x.shape) for x in (q, k, v))
    if not size_of(q.shape[:-1]):  # no query, no derivative
        return dev.full((count,), 0, dtype)
    arrays = _present(dev, {"q": q, "k": k, "v": v, "g": g, "mask": mask})
    call = _AttentionCall(dev, arrays, scale, causal)
    out: WebGPUArray = dev.empty((count,), dtypes.float32)
    if not count:
        return as_dtype(dev, out, dtype)
    call.check("stats", "dq", "dkv")
    stats = dev.empty((call.count * call.queries * len(KNOWN),), dtypes.float32)
    call.run("stats", "q k v g", stats, None)
    if call.width:
        call.run("dq", "q k v g", out, stats)
    call.run("dkv", "q k v g", out, stats)
    return as_dtype(dev, out, dtype)


def _present(dev: WebGPU, arrays: dict[str, WebGPUArray | None]) -> dict[str, WebGPUArray]:
    """The arrays that are given; an empty one is replaced by something that can be bound."""
    found = {}
    for name, a in arrays.items():
        if a is not None:
            one = a if a.storage is not None else dev.full((1,), 0, FROM_NP[a.dtype])
            found[name] = a if one is a else one.view(a.shape, (0,) * len(a.shape))
    return found


KERNELS: dict[str, Callable[..., WebGPUArray]] = {
    "attention": attention,
    "attention_masked": attention,
    "attention_grads": grads,
    "attention_masked_grads": grads,
}

"""Products: one tiled kernel for matrices and for convolutions, which read their operands by
functions of their own (an image is never unfolded in memory). Integers, and products too small for
tiles, take a thread for each result.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from everygrad import dtypes, shapes
from everygrad.backends.webgpu import gemm
from everygrad.backends.webgpu.array import WebGPUArray, collapse, distinct, spread
from everygrad.backends.webgpu.gemm import Side
from everygrad.backends.webgpu.layout import layout, load
from everygrad.backends.webgpu.moves import permute_dims, reshape
from everygrad.backends.webgpu.reducing import accumulator, as_dtype
from everygrad.backends.webgpu.render import (
    address,
    cast,
    constant,
    element_kernel,
    instruction,
    places,
    slot,
)
from everygrad.compile.expr import Inst
from everygrad.dtypes import FROM_NP, DType
from everygrad.shapes import Shape, size_of

TILE, LARGE_TILE = 64, 128
ENOUGH = 64  # large tiles from which they keep a GPU busy
SMALL = 16  # rows or columns below which tiles would be mostly empty
HEAD = 4  # words of every uniform: rows, columns, terms, first matrix of the batch


class Operands(NamedTuple):
    """How a product reads: WGSL functions left(b, m, k) and right(b, k, n), and their uniform."""

    text: str
    params: int
    bindings: int
    sides: tuple[Side, Side]
    fours: bool = False  # whether there are left4 and right4 too, which `sides` ask for


def _multiply_add(dtype: DType, a: str, b: str, c: str) -> str:
    product = instruction(Inst("mul", dtype, (0, 1)), [a, b], [dtype, dtype])
    return instruction(Inst("add", dtype, (0, 1)), [c, f"({product})"], [dtype, dtype])


@lru_cache(maxsize=512)
def simple(operands: Operands, total: DType, out: DType) -> str:
    """A thread for each result; the first matrix's number is not used."""
    register = layout(total).register
    text = operands.text + (
        f"fn element(e: u32) -> {layout(out).register} {{\n  let n = e % {slot(1)};\n"
        f"  let m = (e / {slot(1)}) % {slot(0)};\n  let b = e / ({slot(1)} * {slot(0)});\n"
        f"  var acc: {register} = {constant(0, total)};\n"
        f"  for (var k = 0u; k < {slot(2)}; k = k + 1u) {{\n"
        f"    let x = left(b, m, k);\n    let y = right(b, k, n);\n"
        f"    acc = {_multiply_add(total, 'x', 'y', 'acc')};\n  }}\n"
        f"  return {cast('acc', total, out)};\n}}\n"
    )
    count = f"({slot(3)})"
    return element_kernel(operands.bindings, operands.params, out, text, count)


def is_tiled(dev: Any, sizes: tuple[int, int, int, int], dtype: DType) -> bool:
    """Whether a product is made of tiles."""
    batch, rows, columns, terms = sizes
    if min(rows, columns) < SMALL or rows * columns * terms * batch < SMALL**4:
        return False
    return dtype.is_float and max(rows, columns) <= TILE // 2 * dev.gpu.limits.groups


def _tile(rows: int, columns: int, batch: int) -> tuple[int, int]:
    tiles = (rows // LARGE_TILE) * (columns // LARGE_TILE) * batch
    return (LARGE_TILE, LARGE_TILE) if tiles >= ENOUGH else (TILE, TILE)


def product(
    dev: Any,
    name: str,
    operands: Operands,
    arrays: list[WebGPUArray],
    params: list[int],
    sizes: tuple[int, int, int, int],
    dtype: DType,
) -> WebGPUArray:
    """(batch, rows, columns) results of `terms` terms each, in `dtype`."""
    batch, rows, columns, terms = sizes
    total = accumulator(dtype)
    storages, _ = distinct(arrays)
    out: WebGPUArray
    if not is_tiled(dev, sizes, dtype):
        out = dev.empty((batch, rows, columns), dtype)
        count = batch * rows * columns
        head = [rows, columns, terms, count]
        each = layout(dtype).per_word
        source = simple(operands, total, dtype)
        dev.launch(name, source, storages, out, head + params, -(-count // each))
        return out
    out = dev.empty((batch, rows, columns), total)
    assert out.storage is not None
    if dev.gpu.is_software and operands.fours and terms % 4 == 0 and columns >= 4:
        tile = (gemm.ROWS * 8, gemm.COLUMNS * 8)
        source = gemm.direct(operands.text, operands.sides, operands.bindings, operands.params)
    else:
        tile = _tile(rows, columns, batch)
        source = gemm.kernel(
            operands.text, operands.sides, tile[0], operands.fours, columns % 4 == 0,
            operands.bindings, operands.params,
        )  # fmt: skip
    most = dev.gpu.limits.groups
    for first in range(0, batch, most):
        grid = (-(-columns // tile[1]), -(-rows // tile[0]), min(most, batch - first))
        head = [rows, columns, terms, first]
        dev.gpu.dispatch(name, source, storages, [out.storage], head + params, grid)
    return as_dtype(dev, out, dtype)


# --- matrices ------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _matrices(
    dtype: DType, rank: int, bindings: tuple[int, int], sides: tuple[Side, Side], fours: bool
) -> Operands:
    """Uniform after the head: rank - 1 sizes of the batch; for each side its offset, strides of
    the batch, strides of its two axes."""
    total = accumulator(dtype)
    first = HEAD + rank - 1
    text = ""
    for side, (fn, one, two) in enumerate((("left", "m", "k"), ("right", "k", "n"))):
        lines, names = places(rank, HEAD, "b")
        at = address(first + side * (rank + 3), [*names, one, two])
        buffer = f"a{bindings[side]}"
        args = f"(b: u32, {one}: u32, {two}: u32)"
        where = "\n".join(lines) + f"\n  let p = {at};\n"
        if fours:
            text += f"fn {fn}4{args} -> vec4<f32> {{\n{where}"
            text += f"  return bitcast<vec4<f32>>({buffer}[p >> 2u]);\n}}\n"
            continue
        text += f"fn {fn}{args} -> {layout(total).register} {{\n{where}"
        text += f"  let x: {layout(dtype).register} = {load(dtype, buffer, 'p')};\n"
        text += f"  return {cast('x', dtype, total)};\n}}\n"
    params = first + 2 * (rank + 3)
    return Operands(text, params, max(bindings) + 1, sides, fours)


def _side(a: WebGPUArray, fn: str) -> Side:
    """How a matrix can be read: in fours where whole fours lie together, at places that suit."""
    tile, terms = (-2, -1) if fn == "left" else (-1, -2)
    along = ""
    for name, axis in (("tile", tile), ("terms", terms)):
        rest = [st for i, st in enumerate(a.strides) if i != len(a.strides) + axis]
        whole = a.shape[axis] % 4 == 0 and a.offset % 4 == 0
        if a.strides[axis] == 1 and whole and all(st % 4 == 0 for st in rest):
            along = along or name
    return Side(fn, along, "terms" if abs(a.strides[terms]) == 1 else "tile")


def matmul(dev: Any, x: WebGPUArray, y: WebGPUArray) -> WebGPUArray:
    if x.shape[-1] != y.shape[-2]:
        raise ValueError("inner sizes differ")
    if len(y.shape) == 2 and len(x.shape) > 2 and x.is_contiguous:  # one taller matrix
        tall = reshape(dev, x, (size_of(x.shape[:-1]), x.shape[-1]))
        return reshape(dev, matmul(dev, tall, y), (*x.shape[:-1], y.shape[-1]))
    batch = shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])
    shape = (*batch, x.shape[-2], y.shape[-1])
    dtype = FROM_NP[x.dtype]
    if not size_of(shape):
        return dev.empty(shape, dtype)
    if x.storage is None or y.storage is None:
        return dev.full(shape, 0, dtype)
    sides = [spread(a.shape[:-2], a.strides[:-2], batch) for a in (x, y)]
    sizes, strides = collapse(batch, sides)
    _, bindings = distinct([x, y])
    size = (size_of(batch), x.shape[-2], y.shape[-1], x.shape[-1])
    two = (_side(x, "left"), _side(y, "right"))
    fours = all(s.along for s in two) and dtype is dtypes.float32 and is_tiled(dev, size, dtype)
    if not fours:
        two = (two[0]._replace(along=""), two[1]._replace(along=""))
    operands = _matrices(dtype, len(sizes), (bindings[0], bindings[1]), two, fours)
    params = [*sizes[1:]]
    for a, steps in zip((x, y), strides, strict=True):
        params += (a.offset, *steps, *a.strides[-2:])
    out = product(dev, "matmul", operands, [x, y], params, size, dtype)
    return WebGPUArray(dev.device, shape, dtype.np, out.storage)


def linear(dev: Any, x: WebGPUArray, w: WebGPUArray) -> WebGPUArray:
    return matmul(dev, x, permute_dims(dev, w, (1, 0)))


# --- convolutions --------------------------------------------------------------------------------


class Geometry(NamedTuple):
    """The sizes a convolution's kernels read from their uniform, in this order."""

    images: int
    groups: int
    inner: int  # channels of a group
    outer: int  # results of a group
    height: int
    width: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int
    oh: int
    ow: int


def _sizes(first: int) -> dict[str, str]:
    return {name: slot(first + i) for i, name in enumerate(Geometry._fields)}


def _geometry(window: Any, image: Shape, results: int) -> Geometry:
    n, c, height, width = image
    g = window.groups
    return Geometry(
        n, g, c // g, results // g, height, width, *window.size, *window.stride, *window.padding,
        *window.dilation, *window.out_size(image),
    )  # fmt: skip


def _value(dtype: DType, buffer: str, at: str) -> str:
    """Lines that return the element at `at`, widened."""
    total = accumulator(dtype)
    return (
        f"  let p = {at};\n  let x: {layout(dtype).register} = {load(dtype, buffer, 'p')};\n"
        f"  return {cast('x', dtype, total)};\n}}\n"
    )


# two arrays of four axes: the image or the result, and the kernel or the result
_FIRST, _SECOND = HEAD, HEAD + 5
_CONV_PARAMS = HEAD + 10 + len(Geometry._fields)


@lru_cache
def _conv_operands(form: str, dtype: DType, bindings: tuple[int, int]) -> Operands:
    s = _sizes(HEAD + 10)
    head = f"-> {layout(accumulator(dtype)).register} {{\n"
    zero = constant(0, accumulator(dtype))
    b0, b1 = (f"a{b}" for b in bindings)
    image = (  # channel c of group u of image `at`, tap (i, j), place (y, x)
        f"  let row = y * {s['sh']} + i * {s['dh']} - {s['ph']};\n"
        f"  let col = x * {s['sw']} + j * {s['dw']} - {s['pw']};\n"
        f"  if (row >= {s['height']} || col >= {s['width']}) {{ return {zero}; }}\n"
    )
    channel = f"(u * {s['inner']} + c)"
    result = f"(u * {s['outer']} + o)"
    split = (
        f"  let j = {{k}} % {s['kw']};\n  let i = ({{k}} / {s['kw']}) % {s['kh']};\n"
        f"  let {{name}} = {{k}} / ({s['kw']} * {s['kh']});\n"
    )
    which = f"  let u = b % {s['groups']};\n  let at = b / {s['groups']};\n"
    if form == "conv2d":  # rows: results, columns: places, terms: channels and taps
        text = f"fn left(b: u32, o: u32, k: u32) {head}{which}" + split.format(k="k", name="c")
        text += _value(dtype, b1, address(_SECOND, [result, "c", "i", "j"]))
        text += f"fn right(b: u32, k: u32, n: u32) {head}{which}" + split.format(k="k", name="c")
        text += f"  let x = n % {s['ow']};\n  let y = n / {s['ow']};\n{image}"
        text += _value(dtype, b0, address(_FIRST, ["at", channel, "row", "col"])).replace(
            "let x:", "let v:").replace("return x", "return v")  # fmt: skip
    elif form == "conv2d_input":  # rows: channels, columns: pixels, terms: results and taps
        text = f"fn left(b: u32, c: u32, k: u32) {head}{which}" + split.format(k="k", name="o")
        text += _value(dtype, b1, address(_SECOND, [result, "c", "i", "j"]))
        text += f"fn right(b: u32, k: u32, n: u32) {head}{which}" + split.format(k="k", name="o")
        text += (
            f"  let h = n / {s['width']} + {s['ph']} - i * {s['dh']};\n"
            f"  let v = n % {s['width']} + {s['pw']} - j * {s['dw']};\n"
            f"  let y = h / {s['sh']};\n  let z = v / {s['sw']};\n"
            f"  if (h >= 0x80000000u || v >= 0x80000000u || y * {s['sh']} != h || "
            f"z * {s['sw']} != v || y >= {s['oh']} || z >= {s['ow']}) {{ return {zero}; }}\n"
        )
        text += _value(dtype, b0, address(_FIRST, ["at", result, "y", "z"]))
    else:  # conv2d_weight; rows: results, columns: channels and taps, terms: places of all images
        text = f"fn left(u: u32, o: u32, k: u32) {head}"
        place = (
            f"  let x = k % {s['ow']};\n  let y = (k / {s['ow']}) % {s['oh']};\n"
            f"  let at = k / ({s['ow']} * {s['oh']});\n"
        )
        text += place + _value(dtype, b1, address(_SECOND, ["at", result, "y", "x"])).replace(
            "let x:", "let v:").replace("return x", "return v")  # fmt: skip
        text += f"fn right(u: u32, k: u32, n: u32) {head}{place}" + split.format(k="n", name="c")
        text += image
        text += _value(dtype, b0, address(_FIRST, ["at", channel, "row", "col"])).replace(
            "let x:", "let v:").replace("return x", "return v")  # fmt: skip
    sides = (Side("left", "", "terms"), Side("right", "", "tile"))
    return Operands(text, _CONV_PARAMS, max(bindings) + 1, sides)


def _convolve(
    dev: Any,
    form: str,
    a: WebGPUArray,
    b: WebGPUArray,
    geometry: Geometry,
    sizes: tuple[int, int, int, int],
    shape: Shape,
) -> WebGPUArray:
    dtype = FROM_NP[a.dtype]
    if not size_of(shape):
        return dev.empty(shape, dtype)
    if a.storage is None or b.storage is None:
        return dev.full(shape, 0, dtype)
    _, bindings = distinct([a, b])
    params = [a.offset, *a.strides, b.offset, *b.strides, *geometry]
    operands = _conv_operands(form, dtype, (bindings[0], bindings[1]))
    out = product(dev, form, operands, [a, b], params, sizes, dtype)
    return WebGPUArray(dev.device, shape, dtype.np, out.storage)


def conv2d(dev: Any, x: WebGPUArray, w: WebGPUArray, window: Any) -> WebGPUArray:
    g = _geometry(window, x.shape, w.shape[0])
    sizes = (g.images * g.groups, g.outer, g.oh * g.ow, g.inner * g.kh * g.kw)
    return _convolve(dev, "conv2d", x, w, g, sizes, (g.images, w.shape[0], g.oh, g.ow))


def conv2d_input(
    dev: Any, y: WebGPUArray, w: WebGPUArray, window: Any, image: Shape
) -> WebGPUArray:
    g = _geometry(window, image, w.shape[0])._replace(oh=y.shape[2], ow=y.shape[3])
    sizes = (g.images * g.groups, g.inner, g.height * g.width, g.outer * g.kh * g.kw)
    return _convolve(dev, "conv2d_input", y, w, g, sizes, image)


def conv2d_weight(
    dev: Any, x: WebGPUArray, y: WebGPUArray, window: Any, weight: Shape
) -> WebGPUArray:
    g = _geometry(window, x.shape, weight[0])._replace(oh=y.shape[2], ow=y.shape[3])
    sizes = (g.groups, g.outer, g.inner * g.kh * g.kw, g.images * g.oh * g.ow)
    return _convolve(dev, "conv2d_weight", x, y, g, sizes, weight)

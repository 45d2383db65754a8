"""Convolutions as matrix products: the WGSL functions by which kernels read images, which are never
unfolded in memory. `gemm.choose_kernel` chooses the kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from everygrad.backends.webgpu.array import WebGPUArray, distinct
from everygrad.backends.webgpu.conv.image_tile import (
    FIRST_ARRAY,
    PARAMS,
    SECOND_ARRAY,
    WINDOW,
    ConvForm,
    Geometry,
    ImageOperands,
    size_names,
)
from everygrad.backends.webgpu.gemm.choose_kernel import Product, Sizes, kind_of
from everygrad.backends.webgpu.gemm.gemm import TERMS, GemmOperands, Side
from everygrad.backends.webgpu.gemm.operand_reads import OperandReader, reader_of, run_or_zeros
from everygrad.backends.webgpu.source.render import address
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

# channels below which most of a tap's 16 terms would be zeros
FEWEST = edge(__name__, "FEWEST", 8, "size")


def _geometry(window: Any, image: Shape, results: int) -> Geometry:
    n, c, height, width = image
    g = window.groups
    return Geometry(
        n, g, c // g, results // g, height, width, *window.size, *window.stride, *window.padding,
        *window.dilation, *window.out_size(image),
    )  # fmt: skip


def _value(reader: OperandReader, buffer: str, at: str) -> str:
    return f"  let p = {at};\n{reader.scalar(buffer)}"


# the axes of weights as `image_tile` reads them: taps, terms, rows
_ORDERS = {ConvForm.RESULT: (2, 3, 1, 0), ConvForm.INPUT: (2, 3, 0, 1), ConvForm.WEIGHT: ()}


@lru_cache(maxsize=512)
def _conv_operands(
    form: ConvForm, reader: OperandReader, bindings: tuple[int, int], window: tuple[int, ...]
) -> GemmOperands:
    s = size_names(window)
    head = f"-> {reader.register} {{\n"
    b0, b1 = (f"a{b}" for b in bindings)
    image = (  # channel c of group u of image `at`, tap (i, j), place (y, x)
        f"  let row = y * {s['sh']} + i * {s['dh']} - {s['ph']};\n"
        f"  let col = x * {s['sw']} + j * {s['dw']} - {s['pw']};\n"
        f"  if (row >= {s['height']} || col >= {s['width']}) {{ return {reader.zero}; }}\n"
    )
    channel = f"(u * {s['inner']} + c)"
    result = f"(u * {s['outer']} + o)"
    split = (
        f"  let j = {{k}} % {s['kw']};\n  let i = ({{k}} / {s['kw']}) % {s['kh']};\n"
        f"  let {{name}} = {{k}} / ({s['kw']} * {s['kh']});\n"
    )
    which = f"  let u = b % {s['groups']};\n  let at = b / {s['groups']};\n"
    near = "tile"
    if form is ConvForm.RESULT:  # rows: results, columns: places, terms: channels and taps
        text = f"fn left(b: u32, o: u32, k: u32) {head}{which}" + split.format(k="k", name="c")
        text += _value(reader, b1, address(SECOND_ARRAY, [result, "c", "i", "j"]))
        text += f"fn right(b: u32, k: u32, n: u32) {head}{which}" + split.format(k="k", name="c")
        text += f"  let x = n % {s['ow']};\n  let y = n / {s['ow']};\n{image}"
        text += _value(reader, b0, address(FIRST_ARRAY, ["at", channel, "row", "col"]))
    elif form is ConvForm.INPUT:  # rows: channels, columns: pixels, terms: results and taps
        text = f"fn left(b: u32, c: u32, k: u32) {head}{which}" + split.format(k="k", name="o")
        text += _value(reader, b1, address(SECOND_ARRAY, [result, "c", "i", "j"]))
        text += f"fn right(b: u32, k: u32, n: u32) {head}{which}" + split.format(k="k", name="o")
        text += (
            f"  let h = n / {s['width']} + {s['ph']} - i * {s['dh']};\n"
            f"  let v = n % {s['width']} + {s['pw']} - j * {s['dw']};\n"
            f"  let y = h / {s['sh']};\n  let z = v / {s['sw']};\n"
            f"  if (h >= 0x80000000u || v >= 0x80000000u || y * {s['sh']} != h || "
            f"z * {s['sw']} != v || y >= {s['oh']} || z >= {s['ow']}) "
            f"{{ return {reader.zero}; }}\n"
        )
        text += _value(reader, b0, address(FIRST_ARRAY, ["at", result, "y", "z"]))
    else:  # WEIGHT; rows: results, columns: channels and taps, terms: places of all images
        near = "terms"
        place = (
            f"  let x = k % {s['ow']};\n  let y = (k / {s['ow']}) % {s['oh']};\n"
            f"  let at = k / ({s['ow']} * {s['oh']});\n"
        )
        text = f"fn left(u: u32, o: u32, k: u32) {head}{place}"
        text += _value(reader, b1, address(SECOND_ARRAY, ["at", result, "y", "x"]))
        text += f"fn right(u: u32, k: u32, n: u32) {head}{place}" + split.format(k="n", name="c")
        text += image + _value(reader, b0, address(FIRST_ARRAY, ["at", channel, "row", "col"]))
    sides = (Side("left", "", "terms"), Side("right", "", near))
    words = (reader.word(vec4=False),) * (max(bindings) + 1)
    return GemmOperands(text, PARAMS, words, sides, reader.enable)


def _merged(images: ImageOperands, g: Geometry, sizes: Sizes, blocks: int) -> tuple[Sizes, int]:
    """The sizes of one product over all images (for each group, and phase), from those of a product
    for each image; and how many of its columns are stored side by side, 0 if all are."""
    if images.form is ConvForm.WEIGHT:
        return sizes, 1 if images.fours and g.kh * g.kw > 1 else 0
    if not images.is_by_phase:
        terms = g.kh * g.kw * blocks * TERMS
        return (g.groups, sizes[1], g.images * sizes[2], terms), sizes[2]
    phases, taps = g.sh * g.sw, -(-g.kh // g.sh) * -(-g.kw // g.sw)
    pixels = -(-g.height // g.sh) * -(-g.width // g.sw)
    columns = g.images * pixels
    run = sizes[2] if phases == 1 else 1
    return (g.groups * phases, sizes[1], columns, taps * blocks * TERMS), run


def _convolve(
    dev: WebGPU,
    form: ConvForm,
    a: WebGPUArray,
    b: WebGPUArray,
    geometry: Geometry,
    sizes: Sizes,
    shape: Shape,
) -> Product | None:
    """The product, one for each image; where that is tiled, one over all images instead."""
    dtype = FROM_NP[a.dtype]
    if not size_of(shape) or a.storage is None or b.storage is None:
        return None
    _, bindings = distinct([a, b])
    params = [a.offset, *a.strides, b.offset, *b.strides, *geometry]
    kind = kind_of(dev, sizes, dtype)
    window = tuple(getattr(geometry, name) for name in WINDOW)
    reader = reader_of(dev, kind, dtype)
    order = _ORDERS[form]
    channels = geometry.inner if form is ConvForm.RESULT else geometry.outer
    if kind == "tiled" and (form is ConvForm.WEIGHT or channels >= FEWEST):
        if form is not ConvForm.WEIGHT:
            bindings = (0, 1)  # the weights are a copy
        vec4 = form is not ConvForm.WEIGHT and sizes[1] % 4 == 0
        fours = form is ConvForm.WEIGHT and geometry.inner % 4 == 0 and geometry.outer % 4 == 0
        images = ImageOperands(form, reader, (bindings[0], bindings[1]), window, vec4, fours)
        blocks = 0 if form is ConvForm.WEIGHT else -(-channels // TERMS)
        merged, run = _merged(images, geometry, sizes, blocks)
        if kind_of(dev, merged, dtype) == "tiled":
            return Product(
                *(form.value, "images", images, [a, b], [*params, blocks], merged, dtype, shape),
                run=run,
                order=order,
            )
    operands = _conv_operands(form, reader, (bindings[0], bindings[1]), window)
    return Product(form.value, kind, operands, [a, b], params, sizes, dtype, shape)


def convolution(dev: WebGPU, x: WebGPUArray, w: WebGPUArray, window: Any) -> Product | None:
    g = _geometry(window, x.shape, w.shape[0])
    sizes = (g.images * g.groups, g.outer, g.oh * g.ow, g.inner * g.kh * g.kw)
    return _convolve(dev, ConvForm.RESULT, x, w, g, sizes, (g.images, w.shape[0], g.oh, g.ow))


def input_gradient(
    dev: WebGPU, y: WebGPUArray, w: WebGPUArray, window: Any, image: Shape
) -> Product | None:
    g = _geometry(window, image, w.shape[0])._replace(oh=y.shape[2], ow=y.shape[3])
    sizes = (g.images * g.groups, g.inner, g.height * g.width, g.outer * g.kh * g.kw)
    return _convolve(dev, ConvForm.INPUT, y, w, g, sizes, image)


def weight_gradient(
    dev: WebGPU, x: WebGPUArray, y: WebGPUArray, window: Any, weight: Shape
) -> Product | None:
    g = _geometry(window, x.shape, weight[0])._replace(oh=y.shape[2], ow=y.shape[3])
    sizes = (g.groups, g.outer, g.inner * g.kh * g.kw, g.images * g.oh * g.ow)
    return _convolve(dev, ConvForm.WEIGHT, x, y, g, sizes, weight)


def conv2d(dev: WebGPU, x: WebGPUArray, w: WebGPUArray, window: Any) -> WebGPUArray:
    shape = (x.shape[0], w.shape[0], *window.out_size(x.shape))
    return run_or_zeros(dev, convolution(dev, x, w, window), shape, x)


def conv2d_input(
    dev: WebGPU, y: WebGPUArray, w: WebGPUArray, window: Any, image: Shape
) -> WebGPUArray:
    return run_or_zeros(dev, input_gradient(dev, y, w, window, image), image, y)


def conv2d_weight(
    dev: WebGPU, x: WebGPUArray, y: WebGPUArray, window: Any, weight: Shape
) -> WebGPUArray:
    return run_or_zeros(dev, weight_gradient(dev, x, y, window, weight), weight, x)

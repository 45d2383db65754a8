"""Matrix products: the WGSL functions by which kernels read their operands. `choose_kernel` chooses
the kernel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from everygrad import dtypes
from everygrad.backends.strided_views import permute_dims, reshape
from everygrad.backends.webgpu.array import WebGPUArray, distinct
from everygrad.backends.webgpu.gemm import choose_kernel, complex_product
from everygrad.backends.webgpu.gemm.choose_kernel import Product, Sizes, kind_of
from everygrad.backends.webgpu.gemm.gemm import COLUMNS, HEAD, GemmOperands, Side
from everygrad.backends.webgpu.gemm.result_writes import Epilogue
from everygrad.backends.webgpu.source.render import address, cast, constant, split_index
from everygrad.backends.webgpu.source.word_layout import layout, load
from everygrad.codegen.groups.group_sums import accumulator_dtype
from everygrad.compiler.expr import Inst, Program
from everygrad.core import shapes
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import broadcast_strides, collapse
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_PAIRS = {  # how the two 16-bit numbers of a word are unpacked
    dtypes.float16: "half_f({w} & 65535u), half_f({w} >> 16u)",
    dtypes.bfloat16: "bits_f({w} << 16u), bits_f({w} & 0xffff0000u)",
}


class OperandReader(NamedTuple):
    """How numbers are loaded from a buffer into registers. `native`: the buffer is an array of f16.
    `half`: the registers are f16 too; else small floats are widened."""

    dtype: DType
    native: bool = False
    half: bool = False

    @property
    def register(self) -> str:
        return "f16" if self.half else layout(accumulator_dtype(self.dtype)).register

    @property
    def zero(self) -> str:
        return "f16(0.0)" if self.half else constant(0, accumulator_dtype(self.dtype))

    @property
    def enable(self) -> str:
        return "enable f16;\n" if self.native else ""

    def word(self, vec4: bool) -> str:
        """The type of the buffer's items."""
        if self.native:
            return "vec4<f16>" if vec4 else "f16"
        if vec4:
            return "vec4<u32>" if self.dtype.itemsize == 4 else "vec2<u32>"
        return "u32"

    def scalar(self, buffer: str) -> str:
        """Lines that return the element at p."""
        if self.native:
            value = f"{buffer}[p]"
            return f"  return {value if self.half else f'f32({value})'};\n}}\n"
        value = load(self.dtype, buffer, "p")
        found = cast("found", self.dtype, accumulator_dtype(self.dtype))
        return f"  let found: {layout(self.dtype).register} = {value};\n  return {found};\n}}\n"

    def vec4(self, buffer: str) -> str:
        """Lines that return four elements from p on."""
        value = f"{buffer}[p >> 2u]"
        if self.native:
            return f"  return {value if self.half else f'vec4<f32>({value})'};\n}}\n"
        if self.dtype.itemsize == 4:
            return f"  return bitcast<vec4<f32>>({value});\n}}\n"
        pair = _PAIRS[self.dtype]
        parts = f"{pair.format(w='found.x')}, {pair.format(w='found.y')}"
        return f"  let found = {value};\n  return vec4<f32>({parts});\n}}\n"


def reader_of(dev: WebGPU, kind: str, dtype: DType) -> OperandReader:
    native = dtype is dtypes.float16 and "shader-f16" in dev.gpu.features and kind != "simple"
    return OperandReader(dtype, native, kind == "cooperative")


# --- matrices ------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _matrices(
    reader: OperandReader, rank: int, bindings: tuple[int, int], sides: tuple[Side, Side]
) -> GemmOperands:
    """Uniform after the head: rank - 1 sizes of the batch; for each side its offset, strides of
    the batch, strides of its two axes."""
    first = HEAD + rank - 1
    text = ""
    for i, (side, one, two) in enumerate(zip(sides, "mk", "kn", strict=True)):
        lines, names = split_index(rank, HEAD, "b")
        at = address(first + i * (rank + 3), [*names, one, two])
        buffer = f"a{bindings[i]}"
        args = f"(b: u32, {one}: u32, {two}: u32)"
        where = "\n".join(lines) + f"\n  let p = {at};\n"
        if side.along:
            text += f"fn {side.fn}4{args} -> vec4<{reader.register}> {{\n{where}"
            text += reader.vec4(buffer)
        else:
            text += f"fn {side.fn}{args} -> {reader.register} {{\n{where}{reader.scalar(buffer)}"
    words = [""] * (max(bindings) + 1)
    for side, binding in zip(sides, bindings, strict=True):
        words[binding] = reader.word(bool(side.along))
    return GemmOperands(text, first + 2 * (rank + 3), tuple(words), sides, reader.enable)


def _vec4_axes(a: WebGPUArray, fn: str) -> list[str]:
    """The axes along which a matrix can be read as vec4: contiguous and aligned."""
    tile, terms = (-2, -1) if fn == "left" else (-1, -2)
    found = []
    for name, axis in (("tile", tile), ("terms", terms)):
        rest = [
            st
            for i, (n, st) in enumerate(zip(a.shape, a.strides, strict=True))
            if i != len(a.shape) + axis and n != 1
        ]
        whole = a.shape[axis] % 4 == 0 and a.offset % 4 == 0
        if a.strides[axis] == 1 and whole and all(st % 4 == 0 for st in rest):
            found.append(name)
    return found


def _sides(
    x: WebGPUArray, y: WebGPUArray, kind: str, sizes: Sizes, shared: bool
) -> tuple[Side, Side]:
    """How both are read. A storage that both share is read one way: as vec4 or one by one."""
    axes = [_vec4_axes(x, "left"), _vec4_axes(y, "right")]
    if kind == "simple":
        axes = [[], []]
    if kind == "gemv":
        few = 0 if sizes[1] <= sizes[2] else 1
        if "terms" in axes[0] and "terms" in axes[1]:
            axes = [["terms"], ["terms"]]
        else:  # the wide one as vec4 along its tile, the other one by one
            axes[few] = []
            axes[1 - few] = [axis for axis in axes[1 - few] if axis == "tile"]
    if shared and not all(axes):
        axes = [[], []]
    sides = []
    for a, fn, found in zip((x, y), ("left", "right"), axes, strict=True):
        along_terms = abs(a.strides[-1 if fn == "left" else -2]) == 1
        sides.append(Side(fn, found[0] if found else "", "terms" if along_terms else "tile"))
    return sides[0], sides[1]


def product_of(dev: WebGPU, x: WebGPUArray, y: WebGPUArray) -> Product | None:
    """The product of two (stacks of) matrices; None where it has no results or no terms."""
    batch = shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])
    shape = (*batch, x.shape[-2], y.shape[-1])
    dtype = FROM_NP[x.dtype]
    if not size_of(shape) or x.storage is None or y.storage is None:
        return None
    sizes, strides = collapse(
        batch, [broadcast_strides(a.shape[:-2], a.strides[:-2], batch) for a in (x, y)]
    )
    _, bindings = distinct([x, y])
    size = (size_of(batch), x.shape[-2], y.shape[-1], x.shape[-1])
    kind = kind_of(dev, size, dtype)
    sides = _sides(x, y, kind, size, bindings[0] == bindings[1])
    reader = reader_of(dev, kind, dtype)
    operands = _matrices(reader, len(sizes), (bindings[0], bindings[1]), sides)
    params = [*sizes[1:]]
    for a, steps in zip((x, y), strides, strict=True):
        params += (a.offset, *steps, *a.strides[-2:])
    return Product("matmul", kind, operands, [x, y], params, size, dtype, shape)


def matrices(dev: WebGPU, x: WebGPUArray, y: WebGPUArray) -> Product | None:
    """As `product_of`; a stack times one matrix is one taller matrix."""
    if x.shape[-1] != y.shape[-2]:
        raise ValueError("inner sizes differ")
    if len(y.shape) == 2 and len(x.shape) > 2 and x.is_contiguous:
        tall = reshape(dev, x, (size_of(x.shape[:-1]), x.shape[-1]))
        found = product_of(dev, tall, y)
        return found and found._replace(shape=(*x.shape[:-1], y.shape[-1]))
    return product_of(dev, x, y)


def run_or_zeros(
    dev: WebGPU, found: Product | None, shape: Shape, like: WebGPUArray
) -> WebGPUArray:
    """The product's result; zeros where it has no terms."""
    if found is not None:
        return choose_kernel.run(dev, found)
    zeros: WebGPUArray = dev.full(shape, 0, FROM_NP[like.dtype])
    return zeros


def matmul(dev: WebGPU, x: WebGPUArray, y: WebGPUArray) -> WebGPUArray:
    if complex_product.pays(x, y):
        return complex_product.multiply(dev, x, y, matmul)
    found = matrices(dev, x, y)
    batch = shapes.broadcast("matmul", x.shape[:-2], y.shape[:-2])
    return run_or_zeros(dev, found, (*batch, x.shape[-2], y.shape[-1]), x)


def linear(dev: WebGPU, x: WebGPUArray, w: WebGPUArray) -> WebGPUArray:
    return matmul(dev, x, permute_dims(dev, w, (1, 0)))


@lru_cache
def _with_bias(dtype: DType, first: int) -> Epilogue:
    """The sum, rounded as memory would round it, and a column's bias."""
    text = (
        "struct Results { r0: f32 }\nfn results(e: u32, value: f32) -> Results {\n"
        f"  let n = e % {COLUMNS};\n  let bias: f32 = {load(dtype, f'a{first}', 'n')};\n"
        f"  return Results({cast('value', dtypes.float32, dtype)} + bias);\n}}\n"
    )
    return Epilogue(text, 1, (dtype,))


@lru_cache
def _addition(dtype: DType) -> Program:
    inputs = tuple(Inst("input", dtype, (), i) for i in range(2))
    return Program((*inputs, Inst("add", dtype, (0, 1))))


def linear_bias(dev: WebGPU, x: WebGPUArray, w: WebGPUArray, b: WebGPUArray) -> WebGPUArray:
    """One kernel where the product is tiled, else an addition after it."""
    found = matrices(dev, x, permute_dims(dev, w, (1, 0)))
    if found is not None and b.is_contiguous and not b.offset:
        epilogue = _with_bias(found.dtype, len(found.operands.words))
        if choose_kernel.takes_epilogue(dev, found, epilogue):
            (out,) = choose_kernel.run_with(dev, found, epilogue, [b.storage])
            return WebGPUArray(dev.device, found.shape, x.dtype, out.storage)
    product = run_or_zeros(dev, found, (*x.shape[:-1], w.shape[0]), x)
    added: WebGPUArray = dev.elementwise("add", _addition(FROM_NP[x.dtype]), [product, b])
    return added

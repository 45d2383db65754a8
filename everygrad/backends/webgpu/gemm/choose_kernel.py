"""Which kernel computes a product, and running it.

Most products are tiled (`gemm`), those over all places of images by a kernel of their own
(`conv.image_tile`); float16 uses the device's cooperative matrices where it has them
(`cooperative_matrix`); few rows or columns use `gemv`; integers and tiny products use one thread
for each result. Where the results alone would not keep a GPU busy, the terms are split (split-K)
and a second kernel adds the partial sums. The split depends on sizes and on the kind of device
only, so results are reproducible bit for bit.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from everygrad.backends.strided_views import permute_dims
from everygrad.backends.webgpu.array import WebGPUArray, distinct, storage_of
from everygrad.backends.webgpu.gemm import cooperative_matrix, gemm, gemv
from everygrad.backends.webgpu.gemm.gemm import GemmOperands, Tile
from everygrad.backends.webgpu.gemm.result_writes import Epilogue, fits_vec4, plain
from everygrad.backends.webgpu.kernels import single_op
from everygrad.backends.webgpu.kernels.copy_kernels import as_dtype, copied
from everygrad.backends.webgpu.source.render import (
    cast,
    constant,
    element_kernel,
    instruction,
    slot,
)
from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.codegen.groups.group_sums import accumulator_dtype
from everygrad.compiler import array_graph
from everygrad.compiler.expr import Inst
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import DType, float32

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

# multiplications up to which one thread for each result is as good as anything
TINY = edge(__name__, "TINY", 1 << 16, "products")
SHORT = edge(__name__, "SHORT", 64, "size")  # terms below which threads do not share them
ENOUGH = edge(__name__, "ENOUGH", 128, "count")  # large tiles from which they keep a GPU busy
BUSY, BUSY_SOFTWARE = 256, 8  # workgroups that keep a device busy
# iterations of all loops of a thread: Mesa's software adapter ends them after 65,535
MOST_TURNS = edge(__name__, "MOST_TURNS", 60_000, "size")
TERMS_A_TURN = 3  # at least, in tiles
# terms below which a part is not worth its second kernel, where launches are expensive
PART = edge(__name__, "PART", 256, "size")
LEAST = edge(__name__, "LEAST", 64, "size")  # terms of a part on a GPU
# the time a large GPU needs for 16 terms of a tile, for one more kernel, for each part it adds and
# each result of a part
SLICE_NS, KERNEL_NS, PART_NS, RESULT_NS = 1300, 5500, 200, 0.004
TAIL = (
    0.5  # of the time of as many workgroups as keep a GPU busy: how much of it waits for the last
)
MOST_PARTS = 128

Sizes = tuple[int, int, int, int]  # matrices, rows, columns, terms


class TiledOperands(Protocol):
    """How a tiled kernel reads its operands: the words of each binding, the uniform's length."""

    @property
    def params(self) -> int: ...

    @property
    def words(self) -> tuple[str, ...]: ...

    def tile(self, sizes: Sizes) -> Tile: ...

    def kernel(self, tile: Tile, epilogue: Epilogue, vec4_out: bool) -> str: ...


class Product(NamedTuple):
    """(matrices, rows, columns) results of `terms` terms each; `kind` names the kernel."""

    name: str
    kind: str  # simple, gemv, tiled, cooperative or images
    operands: Any  # GemmOperands; of images any TiledOperands
    arrays: list[WebGPUArray]
    params: list[int]  # of the uniform, after its head
    sizes: Sizes
    dtype: DType
    shape: Shape  # of the result as its op has it
    run: int = 0  # columns that are stored side by side; 0: all of them
    order: Shape = ()  # of the axes in which the second array is read: it is copied before

    @property
    def is_vec4(self) -> bool:
        """Whether results are stored four at a time."""
        return (self.run or self.sizes[2]) % 4 == 0


def kind_of(dev: WebGPU, sizes: Sizes, dtype: DType) -> str:
    matrices, rows, columns, terms = sizes
    fits = max(rows, columns) <= gemm.FLAT_TILE.rows * dev.gpu.limits.groups
    if not dtype.is_float or not fits or matrices * rows * columns * terms < TINY:
        return "simple"
    if min(rows, columns) < gemv.FEW:
        return "gemv" if terms >= SHORT else "simple"
    if cooperative_matrix.serves(dev, sizes, dtype):
        return "cooperative"
    return "tiled"


def run(dev: WebGPU, product: Product) -> WebGPUArray:
    """The product in its dtype."""
    if product.kind == "simple":
        out = as_dtype(dev, _run_simple(dev, product), product.dtype)
    elif product.kind == "gemv":
        out = as_dtype(dev, _run_gemv(dev, product), product.dtype)
    else:
        whole = product.is_vec4 and parts_of(dev, product) == 1
        stored = product.dtype if whole else float32
        (out,) = run_with(dev, product, plain(stored), [])
        out = as_dtype(dev, out, product.dtype)
    return WebGPUArray(dev.device, product.shape, product.dtype.np, out.storage)


def takes_epilogue(dev: WebGPU, product: Product, epilogue: Epilogue) -> bool:
    """Whether `run_with` can run this product with an epilogue."""
    buffers = len(product.operands.words) + epilogue.inputs + len(epilogue.outputs)
    return (
        product.kind in ("tiled", "cooperative", "images")
        and product.is_vec4
        and fits_vec4(epilogue.outputs)
        and buffers <= dev.gpu.limits.storage_buffers
        and parts_of(dev, product) == 1
    )


def run_with(
    dev: WebGPU, product: Product, epilogue: Epilogue, inputs: list[Any]
) -> list[WebGPUArray]:
    """The epilogue's results, each in C order over the product's elements. `inputs` are the
    storages it reads. Parts of the terms are summed only where the result is the sum itself."""
    tile, source = _text(dev, product, epilogue)
    if product.order:
        first, second = product.arrays
        ordered = copied(dev, permute_dims(dev, second, product.order))
        product = product._replace(arrays=[first, ordered])
    _, rows, columns, _ = product.sizes
    parts = parts_of(dev, product)
    outs = [dev.empty((parts, size_of(product.shape)), dtype) for dtype in epilogue.outputs]
    groups = (-(-columns // tile.columns), -(-rows // tile.rows))
    _dispatch(dev, product, source, groups, parts, inputs, outs)
    return [_sum_parts(dev, product, out, parts) for out in outs]


def _dispatch(
    dev: WebGPU,
    product: Product,
    source: str,
    groups: tuple[int, int],
    parts: int,
    inputs: list[Any],
    outs: list[WebGPUArray],
) -> None:
    matrices, rows, columns, terms = product.sizes
    storages, _ = distinct(product.arrays)
    most = dev.gpu.limits.groups
    for first in range(0, parts * matrices, most):
        grid = (*groups, min(most, parts * matrices - first))
        head = [rows, columns, terms, first, matrices, _part_terms(terms, parts)]
        dev.gpu.dispatch(
            product.name, source, [*storages, *inputs], [storage_of(out) for out in outs],
            head + product.params, grid,
        )  # fmt: skip


def _text(dev: WebGPU, product: Product, epilogue: Epilogue) -> tuple[Tile, str]:
    operands, vec4_out = product.operands, product.is_vec4
    if product.kind == "cooperative":
        return cooperative_matrix.TILE, cooperative_matrix.kernel(operands, epilogue, vec4_out)
    tile = _tile(dev, product)
    if tile is gemm.DIRECT:
        return tile, gemm.direct(operands, epilogue, vec4_out)
    return tile, operands.kernel(tile, epilogue, vec4_out)


def _tile(dev: WebGPU, product: Product) -> Tile:
    matrices, rows, columns, terms = product.sizes
    if product.kind == "images":
        images: TiledOperands = product.operands
        return images.tile(product.sizes)
    if dev.gpu.is_software and product.operands.is_vec4 and terms % 4 == 0 and columns >= 4:
        return gemm.DIRECT
    if rows <= gemm.FLAT_TILE.rows:
        return gemm.FLAT_TILE
    if columns <= gemm.TALL_TILE.columns:
        return gemm.TALL_TILE
    large = gemm.LARGE_TILE
    tiles = (rows // large.rows) * (columns // large.columns) * matrices
    return large if tiles >= ENOUGH else gemm.TILE


# --- split-K -------------------------------------------------------------------------------------


def parts_of(dev: WebGPU, product: Product) -> int:
    """Into how many parts the terms are split."""
    matrices, rows, columns, terms = product.sizes
    if product.kind == "gemv":
        plan = _gemv_plan(dev, product)
        groups = matrices * -(-max(rows, columns) // plan.tile)
    else:
        tile = cooperative_matrix.TILE if product.kind == "cooperative" else _tile(dev, product)
        groups = matrices * -(-rows // tile.rows) * -(-columns // tile.columns)
    if dev.gpu.is_software:
        parts = max(
            min(BUSY_SOFTWARE // groups, terms // PART), -(-terms // (TERMS_A_TURN * MOST_TURNS))
        )
    elif product.kind == "gemv":
        parts = min(BUSY // groups, terms // PART)
    else:
        parts = _fastest_split(groups, terms, matrices * rows * columns)
    return -(-terms // _part_terms(terms, max(1, parts)))


@lru_cache(maxsize=4096)
def _fastest_split(groups: int, terms: int, results: int) -> int:
    """The number of parts with which tiles should take the least time: parts run concurrently until
    the GPU is busy, then one behind the other, at the end of which some of it is idle; and a second
    kernel reads their partial sums."""

    def nanoseconds(parts: int) -> float:
        turns = groups * parts / BUSY
        slices = _part_terms(terms, parts) // gemm.TERMS * (turns + TAIL if turns > 1 else 1.0)
        again = KERNEL_NS + (PART_NS + RESULT_NS * results) * parts if parts > 1 else 0
        return slices * SLICE_NS + again

    powers = (1 << k for k in range(MOST_PARTS.bit_length()))
    return min((n for n in powers if n == 1 or terms // n >= LEAST), key=nanoseconds)


def _part_terms(terms: int, parts: int) -> int:
    """Terms of a part: whole slices."""
    return -(-terms // (parts * gemm.TERMS)) * gemm.TERMS


def _sum_parts(dev: WebGPU, product: Product, out: WebGPUArray, parts: int) -> WebGPUArray:
    if parts == 1:
        return out
    shape = (parts, size_of(product.shape))
    whole = WebGPUArray(dev.device, shape, out.dtype, out.storage)
    return single_op.reduce(dev, array_graph.SUM, whole, (0,), keepdims=False)


# --- few rows or columns -------------------------------------------------------------------------


def _gemv_plan(dev: WebGPU, product: Product) -> gemv.GemvPlan:
    _, rows, columns, terms = product.sizes
    few_left = rows <= columns
    wide = product.operands.sides[1 if few_left else 0]
    by_terms = wide.along == "terms" or (not wide.along and wide.near == "terms")
    return gemv.choose_plan(
        min(rows, columns), max(rows, columns), terms, few_left, by_terms,
        "subgroup" in dev.gpu.features,
    )  # fmt: skip


def _run_gemv(dev: WebGPU, product: Product) -> WebGPUArray:
    matrices, rows, columns, _ = product.sizes
    plan, parts = _gemv_plan(dev, product), parts_of(dev, product)
    out = dev.empty((parts * matrices, rows, columns), float32)
    groups = (-(-max(rows, columns) // plan.tile), 1)
    source = gemv.kernel(product.operands, plan)
    _dispatch(dev, product, source, groups, parts, [], [out])
    return _sum_parts(dev, product, out, parts)


# --- a thread for each result --------------------------------------------------------------------


def _multiply_add(dtype: DType, a: str, b: str, c: str) -> str:
    product = instruction(Inst("mul", dtype, (0, 1)), [a, b], [dtype, dtype])
    return instruction(Inst("add", dtype, (0, 1)), [c, f"({product})"], [dtype, dtype])


@lru_cache(maxsize=512)
def simple(operands: GemmOperands, total: DType, out: DType) -> str:
    """Words 3 to 5 of the uniform: how many results there are, matrices, terms of a part."""
    register = layout(total).register
    text = operands.text + (
        f"fn element(e: u32) -> {layout(out).register} {{\n  let n = e % {slot(1)};\n"
        f"  let m = (e / {slot(1)}) % {slot(0)};\n  let z = e / ({slot(1)} * {slot(0)});\n"
        f"  let b = z % {slot(4)};\n  let start = (z / {slot(4)}) * {slot(5)};\n"
        f"  let end = min({slot(2)}, start + {slot(5)});\n"
        f"  var acc: {register} = {constant(0, total)};\n"
        f"  for (var k = start; k < end; k = k + 1u) {{\n"
        f"    let x = left(b, m, k);\n    let y = right(b, k, n);\n"
        f"    acc = {_multiply_add(total, 'x', 'y', 'acc')};\n  }}\n"
        f"  return {cast('acc', total, out)};\n}}\n"
    )
    return element_kernel(len(operands.words), operands.params, out, text, slot(3))


def _run_simple(dev: WebGPU, product: Product) -> WebGPUArray:
    matrices, rows, columns, terms = product.sizes
    per_word = layout(product.dtype).per_word  # results of a thread, one loop after the other
    parts = max(1, -(-terms * per_word // MOST_TURNS)) if dev.gpu.is_software else 1
    out: WebGPUArray = dev.empty((parts * matrices, rows, columns), product.dtype)
    count = parts * matrices * rows * columns
    source = simple(product.operands, accumulator_dtype(product.dtype), product.dtype)
    storages, _ = distinct(product.arrays)
    params = [rows, columns, terms, count, matrices, -(-terms // parts), *product.params]
    threads = -(-count // per_word)
    dev.launch(product.name, source, storages, out, params, threads)
    return _sum_parts(dev, product, out, parts)

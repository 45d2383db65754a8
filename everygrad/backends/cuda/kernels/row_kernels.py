"""Softmax, normalisation and their derivatives: whole rows in one kernel, held in registers.

A warp or a block shares a row. Rows too long for registers are read once for each pass. Half floats
are computed in float32 and rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import contiguous
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, is_wide
from everygrad.backends.strided_views import permute_dims
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

# elements that a thread holds, over all inputs
_IN_REGISTERS = edge(__name__, "_IN_REGISTERS", 32, "size")
_SMALL_BLOCK, _LARGE_BLOCK = 256, 1024


class RowPass(NamedTuple):
    """One reduction of a row: the term of each element, and how terms are combined."""

    name: str
    element: str
    combine: str = "a + b"
    start: str = "0"


class RowOp(NamedTuple):
    """A row op: passes, each with the code that uses its result, then the result of an element.

    X, Y and Z are an element of each input, T the accumulator's type, `n` the row's length and
    `eps` the parameter, if any.
    """

    inputs: int
    passes: tuple[tuple[RowPass, str], ...]
    result: str


_MAX = RowPass("top", "X", "max_f(a, b)", "LOWEST")
_MEAN = (RowPass("total", "X"), "const T middle = total / (T)n;")
_SPREAD = (
    RowPass("squares", "(X - middle) * (X - middle)"),
    "const T scale = (T)1 / sqrt(squares / (T)n + eps);",
)
ROW_OPS: dict[str, RowOp] = {
    "softmax": RowOp(
        1,
        ((_MAX, ""), (RowPass("total", "exp(X - top)"), "")),
        "exp(X - top) / total",
    ),
    "log_softmax": RowOp(
        1,
        ((_MAX, ""), (RowPass("total", "exp(X - top)"), "const T size = log(total);")),
        "X - top - size",
    ),
    "softmax_vjp": RowOp(2, ((RowPass("total", "X * Y"), ""),), "X * Y - Y * total"),
    "log_softmax_vjp": RowOp(2, ((RowPass("total", "X"), ""),), "X - exp(Y) * total"),
    "standardize": RowOp(1, (_MEAN, _SPREAD), "(X - middle) * scale"),
    # of the input, the gradient and the result, in this order
    "standardize_vjp": RowOp(
        3,
        (
            _MEAN,
            _SPREAD,
            (RowPass("slope", "Y"), "const T along = slope / (T)n;"),
            (RowPass("dot", "Y * Z"), "const T across = dot / (T)n;"),
        ),
        "scale * (Y - along - Z * across)",
    ),
}


def _geometry(length: int, inputs: int) -> tuple[int, int, int]:
    """Threads that share a row, threads of a block, and elements of each input that a thread holds;
    0 where they do not fit into registers."""
    if length <= 1024:
        held = 1
        while held * 32 < length:
            held *= 2
        if held * inputs <= _IN_REGISTERS:
            return 32, _SMALL_BLOCK, held
    for block in (_SMALL_BLOCK, _LARGE_BLOCK):
        held = 1
        while held * block < length:
            held *= 2
        if held * inputs <= _IN_REGISTERS:
            return block, block, held
    return _LARGE_BLOCK, _LARGE_BLOCK, 0


class _RowKernelWriter:
    """Writes one kernel."""

    def __init__(self, name: str, dtype: DType, rows: int, length: int, eps: float | None) -> None:
        self.form = ROW_OPS[name]
        self.lay = LAYOUTS[dtype]
        self.wide = is_wide(rows * length)
        self.w = KernelWriter(name, self.wide)
        self.rows, self.length, self.eps = rows, length, eps
        self.share, self.block, self.held = _geometry(length, self.form.inputs)

    def each(self, text: str) -> list[str]:
        """A loop of the text over this thread's elements, with X, Y and Z replaced."""
        names = list(zip("XYZ", "xyz", strict=True))[: self.form.inputs]
        if self.held:
            for big, small in names:
                text = _replaced(text, big, f"{small}[k]")
            return [
                "#pragma unroll",
                f"for (int k = 0; k < {self.held}; ++k) {{",
                f"  const int i = lane + k * {self.share};",
                f"  if (i < n) {{ {text} }}",
                "}",
            ]
        for big, small in names:
            text = _replaced(text, big, self.lay.load.format(f"p{small}[i]"))
        return [f"for (i32 i = lane; i < n; i += {self.share}) {{ {text} }}"]

    def write(self) -> WrittenKernel:
        w, lay = self.w, self.lay
        names = "xyz"[: self.form.inputs]
        for small in names:
            w.pointer(lay.memory, f"a{small}")
        w.pointer(lay.memory, "out", written=True)
        rows_per_block = self.block // self.share
        w.add(
            f"typedef {lay.register} T;",
            f"const int lane = threadIdx.x % {self.share};",
            f"const {w.index} row = ({w.index})blockIdx.x * {rows_per_block} "
            f"+ threadIdx.x / {self.share};",
            f"const bool there = row < {w.number(self.rows, 'rows')};",
            f"const i32 n = there ? (i32){w.number(self.length, 'length')} : 0;",
            "const T LOWEST = -(T)__uint_as_float(0x7f800000u);",
        )
        if self.eps is not None:
            w.add(f"const T eps = (T){self.eps!r};")
        if self.share > 32:
            w.add("__shared__ alignas(16) u32 shared[64];")
        for small in names:
            w.add(f"const {lay.memory}* p{small} = a{small} + (there ? row * length : 0);")
        if self.held:
            self._load(names)
        for one, after in self.form.passes:
            self._pass(one)
            w.add(after)
        made = lay.store.format(self.form.result)
        w.add(f"{lay.memory}* q = out + (there ? row * length : 0);")
        w.add(*self.each(f"q[i] = {made};"))
        return w.finish(-(-self.rows // rows_per_block), self.block)

    def _load(self, names: str) -> None:
        for small in names:
            self.w.add(f"T {small}[{self.held}];")
        text = " ".join(f"{s}[k] = {self.lay.load.format(f'p{s}[i]')};" for s in names)
        self.w.add(*self.each(text))

    def _pass(self, one: RowPass) -> None:
        self.w.add(f"T {one.name} = {one.start};")
        self.w.add(f"auto combine_{one.name} = [&](T a, T b) -> T {{ return {one.combine}; }};")
        self.w.add(*self.each(f"{one.name} = combine_{one.name}({one.name}, {one.element});"))
        shared = "shared" if self.share > 32 else "(u32*)nullptr"
        self.w.add(
            f"{one.name} = block_reduce<{self.share}>({one.name}, combine_{one.name}, "
            f"(T){one.start}, {shared});"
        )


def _replaced(text: str, name: str, value: str) -> str:
    """Replace whole words."""
    return re.sub(rf"\b{name}\b", value, text)


def _along(dev: Cuda, name: str, arrays: list[CudaArray], axes: Shape, eps: float | None) -> Any:
    """The op along axes, which are permuted to the end; NotImplemented for dtypes that are not real
    floats, and for rows whose length needs more than 31 bits."""
    x = arrays[0]
    dtype = FROM_NP[x.dtype]
    length = size_of(tuple(x.shape[a] for a in axes))
    if not dtype.is_float or length >= 1 << 31:
        return NotImplemented
    kept = tuple(a for a in range(len(x.shape)) if a not in axes)
    order = (*kept, *axes)
    if x.storage is None:
        return x
    straight = order == tuple(range(len(order)))
    arranged = [contiguous(dev, a if straight else permute_dims(dev, a, order)) for a in arrays]
    rows = size_of(x.shape) // length
    out: CudaArray = dev.empty(arranged[0].shape, dtype)
    key = (name, dtype, rows, length, eps)
    kernel = dev.planned(key, lambda: _RowKernelWriter(name, dtype, rows, length, eps).write())
    dev.gpu.launch(kernel, *(a.ptr for a in arranged), out.ptr)
    if straight:
        return out
    back = tuple(order.index(a) for a in range(len(order)))
    return permute_dims(dev, out, back)


def _softmaxes(name: str) -> Callable[..., Any]:
    def run(dev: Cuda, *arrays: CudaArray, axis: int) -> Any:
        return _along(dev, name, list(arrays), (axis,), None)

    return run


def standardize(dev: Cuda, x: CudaArray, axes: Shape, eps: float) -> Any:
    return _along(dev, "standardize", [x], axes, eps)


def standardize_vjp(
    dev: Cuda, g: CudaArray, out: CudaArray, x: CudaArray, axes: Shape, eps: float
) -> Any:
    return _along(dev, "standardize_vjp", [x, g, out], axes, eps)


KERNELS: dict[str, Callable[..., Any]] = {
    **{
        name: _softmaxes(name)
        for name in ("softmax", "log_softmax", "softmax_vjp", "log_softmax_vjp")
    },
    "standardize": standardize,
    "standardize_vjp": standardize_vjp,
}

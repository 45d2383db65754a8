"""The cross entropy of labels from logits, and its derivative: neither log-probabilities nor
one-hot labels are ever in memory.

A warp or a block shares a row. The largest logit and the sum of exponentials relative to it are
found in one pass; the derivative recomputes them, and then the row is still in cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import ALIGNED, CudaArray
from everygrad.backends.cuda.kernels.copy_kernels import contiguous
from everygrad.backends.cuda.kernels.losses import WHAT
from everygrad.backends.cuda.source.c_types import LAYOUTS
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, is_wide
from everygrad.backends.strided_views import permute_dims
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_BLOCK, _LARGE_BLOCK = 256, 1024
_BYTES = 16  # of one load or store
_COUNTED = edge(__name__, "_COUNTED", 1 << 16, "size")  # labels that one block counts


class _CrossEntropyWriter:
    """Writes one kernel, on contiguous rows of one length."""

    def __init__(self, name: str, dtype: DType, labels: DType, rows: int, length: int) -> None:
        self.w = KernelWriter(name, is_wide(rows * length))
        self.lay, self.labels = LAYOUTS[dtype], LAYOUTS[labels]
        self.rows, self.length = rows, length
        each = _BYTES // dtype.itemsize
        self.vector = each if length % each == 0 else 1
        self.share = 32 if length <= 1024 else _BLOCK if length <= 8192 else _LARGE_BLOCK
        self.block = max(self.share, _BLOCK)

    def begin(self, *others: str) -> None:
        """Declare the pointers and the row of each thread; `others` are values of each row."""
        w, lay = self.w, self.lay
        for name in others:
            w.pointer(lay.memory, name)
        w.pointer(lay.memory, "x")
        w.pointer(self.labels.memory, "target")
        w.pointer("u64", "faults", written=True)
        w.pointer(lay.memory, "out", written=True)
        rows_per_block = self.block // self.share
        w.add(
            f"typedef {lay.register} T;",
            f"typedef Pack<{lay.memory}, {self.vector}> Some;",
            f"const int lane = threadIdx.x % {self.share};",
            f"const {w.index} row = ({w.index})blockIdx.x * {rows_per_block} "
            f"+ threadIdx.x / {self.share};",
            f"const bool there = row < {w.number(self.rows, 'rows')};",
            f"const i32 n = there ? (i32){w.number(self.length, 'length')} : 0;",
            f"const {lay.memory}* p = x + (there ? row * length : 0);",
            "const i64 k = there ? (i64)target[row] : 0;",
        )

    def total(self) -> None:
        """Compute `top`, the largest logit, and `total`, the sum of exp(logit - top). A thread that
        has seen only -inf has no largest one: its sum is 0, whatever it is relative to."""
        shared = "(u32*)nullptr"
        if self.share > 32:
            self.w.add("__shared__ alignas(16) u32 shared[64];")
            shared = "shared"
        load = self.lay.load.format("y.v[j]")
        self.w.add(
            "const T LOWEST = -(T)__uint_as_float(0x7f800000u);",
            "auto higher = [](T a, T b) -> T { return max_f(a, b); };",
            "auto sum = [](T a, T b) -> T { return a + b; };",
            "T top = LOWEST, total = 0;",
            *self.each(
                "T high = top, more = 0;",
                f"for (int j = 0; j < {self.vector}; ++j) high = max_f(high, (T){load});",
                "const T beside = high == LOWEST ? (T)0 : high;",
                f"for (int j = 0; j < {self.vector}; ++j) more += exp({load} - beside);",
                "total = total * exp(top - beside) + more;",
                "top = high;",
            ),
            "const T mine = top;",
            f"top = block_reduce<{self.share}>(top, higher, LOWEST, {shared});",
            "total = mine == LOWEST ? (T)0 : total * exp(mine - top);",
            f"total = block_reduce<{self.share}>(total, sum, (T)0, {shared});",
            "const T size = log(total);",
        )

    def each(self, *lines: str) -> list[str]:
        """A loop of the lines over this thread's vectors `y`, the first element at `i`."""
        step = self.share * self.vector
        return [
            f"for (i32 i = lane * {self.vector}; i < n; i += {step}) {{",
            "  const Some y = *(const Some*)(p + i);",
            *(f"  {line}" for line in lines),
            "}",
        ]

    def finish(self) -> WrittenKernel:
        rows_per_block = self.block // self.share
        return self.w.finish(-(-self.rows // rows_per_block), self.block)


def _write_entropy(rows: _CrossEntropyWriter, ignored: int, number: int) -> WrittenKernel:
    rows.begin()
    rows.total()
    lay, which = rows.lay, rows.w.number(number, "number")
    rows.w.add(
        "if (there && lane == 0) {",
        "  T made = 0;",
        f"  if (k != (i64){ignored}) {{",
        f"    if (k < 0 || k >= length) fault(faults, {which}, k);",
        f"    else made = -({lay.load.format('p[k]')} - top - size);",
        "  }",
        f"  out[row] = {lay.store.format('made')};",
        "}",
    )
    return rows.finish()


def _write_vjp(rows: _CrossEntropyWriter, ignored: int, number: int) -> WrittenKernel:
    rows.begin("g")
    rows.total()
    lay, which = rows.lay, rows.w.number(number, "number")
    move = "by * (exp({} - top - size) - (i + j == k ? (T)1 : (T)0))".format(
        lay.load.format("y.v[j]")
    )
    rows.w.add(
        f"const bool counts = there && k != (i64){ignored};",
        f"const T by = counts ? {lay.load.format('g[row]')} : (T)0;",
        f"if (counts && lane == 0 && (k < 0 || k >= length)) fault(faults, {which}, k);",
        f"{lay.memory}* q = out + (there ? row * length : 0);",
        *rows.each(
            "Some r;",
            f"for (int j = 0; j < {rows.vector}; ++j) r.v[j] = {lay.store.format(move)};",
            "*(Some*)(q + i) = r;",
        ),
    )
    return rows.finish()


def _run(
    dev: Cuda, x: CudaArray, target: CudaArray, g: CudaArray | None, axis: int, ignored: int
) -> Any:
    """The entropy of each row, or the derivative by the logits; NotImplemented for dtypes that are
    not real floats, and for rows whose length needs more than 30 bits."""
    dtype, labels, length = FROM_NP[x.dtype], FROM_NP[target.dtype], x.shape[axis]
    if not dtype.is_float or x.storage is None or length >= 1 << 30:
        return NotImplemented
    order = (*(a for a in range(len(x.shape)) if a != axis), axis)
    x = contiguous(dev, permute_dims(dev, x, order))
    if x.ptr % ALIGNED:
        return NotImplemented
    given = [contiguous(dev, a) for a in (g, x, target) if a is not None]
    number = dev.gpu.check_number(WHAT, length)
    out: CudaArray = dev.empty(target.shape if g is None else x.shape, dtype)
    count = size_of(target.shape)
    name, write = (
        ("softmax_cross_entropy", _write_entropy)
        if g is None
        else ("softmax_cross_entropy_vjp", _write_vjp)
    )
    kernel = dev.planned(
        (name, dtype, labels, count, length, ignored),
        lambda: write(_CrossEntropyWriter(name, dtype, labels, count, length), ignored, number),
    )
    dev.gpu.launch(kernel, *(a.ptr for a in given), dev.gpu.faults(), out.ptr)
    if g is None:
        return out
    return permute_dims(dev, out, tuple(order.index(a) for a in range(len(order))))


def softmax_cross_entropy(
    dev: Cuda, x: CudaArray, target: CudaArray, axis: int, ignore_index: int
) -> Any:
    return _run(dev, x, target, None, axis, ignore_index)


def softmax_cross_entropy_vjp(
    dev: Cuda, g: CudaArray, x: CudaArray, target: CudaArray, axis: int, ignore_index: int
) -> Any:
    return _run(dev, x, target, g, axis, ignore_index)


# --- counting labels -----------------------------------------------------------------------------


def _write_count(labels: DType, dtype: DType, size: int, ignored: int) -> WrittenKernel:
    lay = LAYOUTS[dtype]
    w = KernelWriter("count_labels", wide=False)
    w.pointer(LAYOUTS[labels].memory, "target")
    w.pointer(lay.memory, "out", written=True)
    w.add(
        "__shared__ alignas(16) u32 shared[64];",
        "i32 count = 0;",
        f"for (i32 i = threadIdx.x; i < {w.number(size, 'size')}; i += {_LARGE_BLOCK})",
        f"  count += (i64)target[i] != (i64){ignored};",
        "auto sum = [](i32 a, i32 b) -> i32 { return a + b; };",
        f"count = block_reduce<{_LARGE_BLOCK}>(count, sum, 0, shared);",
        f"if (threadIdx.x == 0) out[0] = {lay.store.format(f'({lay.register})count')};",
    )
    return w.finish(1, _LARGE_BLOCK)


def count_labels(dev: Cuda, target: CudaArray, ignore_index: int, dtype: DType) -> Any:
    """By one block; NotImplemented where there are too many labels for one."""
    size, labels = size_of(target.shape), FROM_NP[target.dtype]
    if not 0 < size <= _COUNTED or not dtype.is_float:
        return NotImplemented
    target = contiguous(dev, target)
    out: CudaArray = dev.empty((), dtype)
    key = ("count_labels", labels, dtype, size, ignore_index)
    kernel = dev.planned(key, lambda: _write_count(labels, dtype, size, ignore_index))
    dev.gpu.launch(kernel, target.ptr, out.ptr)
    return out

"""Pooling over windows of images, and its gradients: one kernel each.

A gradient is gathered: each element of the image reads the windows that contain it, so that no two
threads add to one element, and sums have one order. The argmax of a window is recomputed from the
image, which costs less than saving it: where windows do not overlap, while their gradients are
written; where they do, by a kernel before. Channels-last images give channels-last results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.cudnn import channels_last_strides, is_channels_last
from everygrad.backends.cuda.kernels.elementwise import grid
from everygrad.backends.cuda.source.c_types import LAYOUTS, accumulator_dtype
from everygrad.backends.cuda.source.render import constant
from everygrad.backends.cuda.source.writer import (
    NARROW,
    KernelWriter,
    WrittenKernel,
    extent,
    is_wide,
)
from everygrad.compiler.accumulate import identity
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import row_major
from everygrad.dtypes import FROM_NP, DType

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_PLAIN = (0, 1, 2, 3)  # axes in loop order
_LAST = (0, 2, 3, 1)
# elements of a window up to which its loop is unrolled
_UNROLLED = edge(__name__, "_UNROLLED", 16, "count")


class PoolingLoop(NamedTuple):
    """The loop of a kernel over an image or the outputs of its windows, and what it reads."""

    name: str
    window: Any
    image: Shape
    out: Shape  # of the result
    strides: Shape  # of the result
    order: Shape
    dtypes: tuple[DType, ...]  # of what is read, and of the result
    shapes: tuple[Shape, ...]
    steps: tuple[Shape, ...]

    @property
    def places(self) -> Shape:
        """The shape of the windows' outputs."""
        height, width = self.window.out_size(self.image)
        return (*self.image[:2], height, width)


def _pooling_loop(
    name: str, arrays: Sequence[CudaArray], window: Any, image: Shape, out: Shape, dtype: DType
) -> PoolingLoop:
    last = is_channels_last(arrays[-1].shape, arrays[-1].strides)
    return PoolingLoop(
        *(name, window, image, out),
        channels_last_strides(out) if last else row_major(out),
        _LAST if last else _PLAIN,
        (*(FROM_NP[a.dtype] for a in arrays), dtype),
        tuple(a.shape for a in arrays),
        tuple(a.strides for a in arrays),
    )


def _begin(at: PoolingLoop, *names: str, over: Shape = ()) -> KernelWriter:
    """A kernel with its loop over the results, or over `over`, by coordinates n, c, r, q."""
    over = over or at.out
    reach = [extent(n, s) for n, s in zip(at.shapes, at.steps, strict=True)]
    w = KernelWriter(at.name, is_wide(size_of(at.out), size_of(at.image), *reach))
    for name, dtype in zip((*names, "out"), at.dtypes, strict=True):
        w.pointer(LAYOUTS[dtype].memory, name, written=name == "out")
    w.thread()
    w.add(f"for ({w.index} e = thread; e < {w.number(size_of(over), 'count')}; e += threads) {{")
    lines, found = w.split("e", tuple(over[a] for a in at.order), "i")
    w.add(*lines)
    for axis, name in zip(at.order, found, strict=True):
        w.add(f"const {w.index} {'ncrq'[axis]} = {name};")
    for name, size in zip(("h", "w_", "oh", "ow"), (*at.image[2:], *at.places[2:]), strict=True):
        w.number(size, name)
    return w


def _search(w: KernelWriter, at: PoolingLoop, which: int, r: str, q: str) -> list[str]:
    """Lines that find the largest element of the window at (r, q) of input `which`; a NaN wins:
    `best`, and `found`, its index in the image or -1."""
    window, lay = at.window, LAYOUTS[at.dtypes[which]]
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = window[:4]
    place = w.address(["n", "c", "y", "z"], at.steps[which])
    nan = "|| (v != v && best == best)" if at.dtypes[which].is_float else ""
    worst = constant(identity("max", at.dtypes[which]), at.dtypes[which])
    unroll = "#pragma unroll" if kh * kw <= _UNROLLED else "#pragma unroll 1"
    return [
        f"{lay.register} best = {worst};",  # the result where a window is all padding
        f"{w.index} found = -1;",
        unroll,
        f"for (int i = 0; i < {kh}; ++i) {{",
        f"  const {w.index} y = {r} * {sh} + i * {dh} - {ph};",
        "  if (y < 0 || y >= h) continue;",
        f"  {unroll}",
        f"  for (int j = 0; j < {kw}; ++j) {{",
        f"    const {w.index} z = {q} * {sw} + j * {dw} - {pw};",
        "    if (z < 0 || z >= w_) continue;",
        f"    const {lay.register} v = {lay.load.format(f'x[{place}]')};",
        f"    if (found < 0 || v > best {nan}) {{ best = v; found = y * w_ + z; }}",
        "  }",
        "}",
    ]


def _windows(w: KernelWriter, at: PoolingLoop, axis: int) -> list[str]:
    """Lines that begin a loop, with index a or b, over the windows that contain an element of the
    image along an axis."""
    place, name, most = (("r", "a", "oh"), ("q", "b", "ow"))[axis]
    size, step, around, spread = (part[axis] for part in at.window[:4])
    if spread == 1:
        first = f"{name}_first"
        return [
            f"const {w.index} {first} = {place} + {around - size + 1};",
            f"const {w.index} {name}_last = ({place} + {around}) / {step};",
            f"for ({w.index} {name} = {first} > 0 ? ({first} + {step - 1}) / {step} : 0; "
            f"{name} <= {name}_last && {name} < {most}; ++{name}) {{",
        ]
    return [
        f"for (int {name}_tap = 0; {name}_tap < {size}; ++{name}_tap) {{",
        f"  const {w.index} {name}_at = {place} + {around} - {name}_tap * {spread};",
        f"  const {w.index} {name} = {name}_at / {step};",
        f"  if ({name}_at < 0 || {name} * {step} != {name}_at || {name} >= {most}) continue;",
    ]


def _around(w: KernelWriter, at: PoolingLoop, *inside: str) -> list[str]:
    """Lines that loop over the windows (a, b) that contain the element (r, q) of the image."""
    return [*_windows(w, at, 0), *_windows(w, at, 1), *inside, "}", "}"]


def _finish(w: KernelWriter, at: PoolingLoop, value: str, multiprocessors: int) -> WrittenKernel:
    lay = LAYOUTS[at.dtypes[-1]]
    place = w.address(list("ncrq"), at.strides)
    w.add(f"out[{place}] = {lay.store.format(value)};", "}")
    return w.finish(grid(size_of(at.out), multiprocessors))


def _write_largest(at: PoolingLoop, multiprocessors: int, found: str = "index") -> WrittenKernel:
    """The largest element of each window: its index, or its value."""
    w = _begin(at, "x")
    w.add(*_search(w, at, 0, "r", "q"))
    value = "best" if found == "value" else f"({LAYOUTS[at.dtypes[-1]].memory})found"
    return _finish(w, at, value, multiprocessors)


def _write_max_spread(at: PoolingLoop, multiprocessors: int) -> WrittenKernel:
    """From argmax indices: each element sums the gradients of the windows that chose it."""
    w = _begin(at, "g", "index")
    lay = LAYOUTS[at.dtypes[0]]
    a, b = (w.address(list("ncab"), steps) for steps in at.steps)
    given = f"if (index[{b}] == r * w_ + q) total += {lay.load.format(f'g[{a}]')};"
    w.add(f"{lay.register} total = 0;", *_around(w, at, given))
    return _finish(w, at, "total", multiprocessors)


def _cells(at: PoolingLoop) -> Shape:
    """How many windows without overlap cover the image."""
    down, across = (-(-n // k) for n, k in zip(at.image[2:], at.window.size, strict=True))
    return (*at.image[:2], down, across)


def _write_max_cells(at: PoolingLoop, multiprocessors: int) -> WrittenKernel:
    """For windows without overlap: each writes all of its elements, and so do the partial ones at
    the edge, which are no windows."""
    w = _begin(at, "g", "x", over=_cells(at))
    (kh, kw), lay = at.window.size, LAYOUTS[at.dtypes[0]]
    given = lay.load.format(f"g[{w.address(list('ncrq'), at.steps[0])}]")
    place = w.address(["n", "c", "y", "z"], at.strides)
    zero = lay.store.format(f"({lay.register})0")
    w.add(
        *_search(w, at, 1, "r", "q"),
        "const bool whole = r < oh && q < ow;",
        f"const {lay.memory} given = whole ? {lay.store.format(given)} : {zero};",
        f"for (int i = 0; i < {kh}; ++i)",
        f"  for (int j = 0; j < {kw}; ++j) {{",
        f"    const {w.index} y = r * {kh} + i, z = q * {kw} + j;",
        f"    if (y < h && z < w_) out[{place}] = found == y * w_ + z ? given : {zero};",
        "  }",
        "}",
    )
    return w.finish(grid(size_of(_cells(at)), multiprocessors))


def _write_sum(at: PoolingLoop, multiprocessors: int) -> WrittenKernel:
    w = _begin(at, "x")
    lay = LAYOUTS[at.dtypes[0]]
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = at.window[:4]
    given = lay.load.format(f"x[{w.address(list('ncyz'), at.steps[0])}]")
    w.add(
        f"{LAYOUTS[accumulator_dtype(at.dtypes[0])].register} total = 0;",
        f"for (int i = 0; i < {kh}; ++i) {{",
        f"  const {w.index} y = r * {sh} + i * {dh} - {ph};",
        "  if (y < 0 || y >= h) continue;",
        f"  for (int j = 0; j < {kw}; ++j) {{",
        f"    const {w.index} z = q * {sw} + j * {dw} - {pw};",
        f"    if (z >= 0 && z < w_) total += {given};",
        "  }",
        "}",
    )
    return _finish(w, at, "total", multiprocessors)


def _write_sum_spread(at: PoolingLoop, multiprocessors: int) -> WrittenKernel:
    w = _begin(at, "g")
    lay = LAYOUTS[at.dtypes[0]]
    given = lay.load.format(f"g[{w.address(list('ncab'), at.steps[0])}]")
    w.add(f"{lay.register} total = 0;", *_around(w, at, f"total += {given};"))
    return _finish(w, at, "total", multiprocessors)


_WRITERS: dict[str, Callable[[PoolingLoop, int], WrittenKernel]] = {
    "max_pool2d_index": _write_largest,
    "max_pool2d_value": partial(_write_largest, found="value"),
    "max_pool2d_place": _write_largest,
    "max_pool2d_spread": _write_max_spread,
    "max_pool2d_cells_spread": _write_max_cells,
    "sum_pool2d": _write_sum,
    "sum_pool2d_spread": _write_sum_spread,
}


def _run(
    dev: Cuda, name: str, arrays: Sequence[CudaArray], window: Any, image: Shape, dtype: DType
) -> Any:
    """Run a kernel over images of this shape; gradients have their shape, other results that of the
    windows' outputs."""
    out = image if name.endswith("spread") else (*image[:2], *window.out_size(image))
    if any(FROM_NP[a.dtype].is_complex for a in arrays):
        return NotImplemented
    made: CudaArray = dev.empty(out, dtype)
    if made.storage is None or any(a.storage is None for a in arrays):
        return made
    at = _pooling_loop(name, arrays, window, image, out, dtype)
    kernel = dev.planned(at, lambda: _WRITERS[name](at, dev.multiprocessors))
    dev.gpu.launch(kernel, *(a.ptr for a in arrays), made.ptr)
    return made.view(out, at.strides)


def max_pool2d_index(dev: Cuda, x: CudaArray, window: Any) -> Any:
    return _run(dev, "max_pool2d_index", [x], window, x.shape, dtypes.int64)


def max_pool2d_value(dev: Cuda, x: CudaArray, window: Any) -> Any:
    return _run(dev, "max_pool2d_value", [x], window, x.shape, FROM_NP[x.dtype])


def max_pool2d_spread(dev: Cuda, g: CudaArray, x: CudaArray, window: Any) -> Any:
    dtype = FROM_NP[g.dtype]
    side_by_side = window.stride == window.size and not any(window.padding)
    if side_by_side and window.dilation == (1, 1):
        return _run(dev, "max_pool2d_cells_spread", [g, x], window, x.shape, dtype)
    narrow = size_of(x.shape[2:]) < NARROW
    index_dtype = dtypes.int32 if narrow else dtypes.int64
    index = _run(dev, "max_pool2d_place", [x], window, x.shape, index_dtype)
    if index is NotImplemented:
        return index
    return _run(dev, "max_pool2d_spread", [g, index], window, x.shape, dtype)


def sum_pool2d(dev: Cuda, x: CudaArray, window: Any) -> Any:
    return _run(dev, "sum_pool2d", [x], window, x.shape, FROM_NP[x.dtype])


def sum_pool2d_spread(dev: Cuda, g: CudaArray, window: Any, image: Shape) -> Any:
    return _run(dev, "sum_pool2d_spread", [g], window, image, FROM_NP[g.dtype])


KERNELS: dict[str, Callable[..., Any]] = {
    "max_pool2d_index": max_pool2d_index,
    "max_pool2d_value": max_pool2d_value,
    "max_pool2d_spread": max_pool2d_spread,
    "sum_pool2d": sum_pool2d,
    "sum_pool2d_spread": sum_pool2d_spread,
}

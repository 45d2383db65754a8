"""Library ops of a compiled function, as steps on the memory planned for them.

CuPy allocates memory while it runs, which no graph can hold. Such an op is a `LibraryCall`: a step
that the host makes between two graphs, on our stream; its result is copied to the planned address.
Fourier transforms need no memory but their plan's, and factorisations are called directly
(`solver/factorisations`): both stay inside a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.cupy_interop import as_cupy, has_libraries, on_our_stream
from everygrad.backends.cuda.kernels import sort
from everygrad.backends.cuda.kernels.copy_kernels import contiguous
from everygrad.backends.cuda.solver import cufft, factorisations, solver
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda
    from everygrad.backends.cuda.graph.recording import RecordingCuda

# elements of a row up to which the portable network sorts it
_NETWORK = edge(__name__, "_NETWORK", 1024, "size")
# ops that portable definitions unroll over columns: whether the library has a batched routine
_UNROLLED = {
    **dict.fromkeys(("cholesky", "solve", "inv", "det", "slogdet"), True),
    **dict.fromkeys(("solve_triangular", "qr", "qr_complete"), True),
    "lu_factor": False,
}
_FEW = 4  # columns up to which their portable definitions are used
_FEWER = 3  # the same, where the library call stays inside the graph
_MANY = 64  # the same, where a library has no batched routine: as many as are unrolled

Work = Callable[..., Any]  # called with a list of arrays, and `cupy`


class LibraryCall:
    """A library call on arrays of these layouts, of which the last is the result. It is called with
    their addresses; never while the stream is being captured."""

    def __init__(self, dev: Cuda, op: str, work: Work, arrays: Sequence[CudaArray]) -> None:
        self.__name__ = op
        self._dev = dev
        self._work = work
        self._arrays = arrays

    def __call__(self, *addresses: int) -> None:
        with on_our_stream(self._dev) as cupy:
            pairs = zip(self._arrays, addresses, strict=True)
            *given, out = [as_cupy(cupy, array, address) for array, address in pairs]
            out[...] = self._work(given, cupy=cupy)


class CommunicationCall(LibraryCall):
    """A collective of GPUs, which the host launches on our stream."""

    def __call__(self, *addresses: int) -> None:
        with on_our_stream(self._dev):
            self._work(self._dev.gpu.driver.stream, addresses[0], addresses[-1])


def record_communication(
    dev: Cuda, rec: RecordingCuda, v: Value, arrays: Sequence[CudaArray]
) -> CudaArray:
    """The result of a collective. What it waits for is among its arguments, and bound too."""
    assert v.op.on_device is not None
    out: CudaArray = rec.empty(v.shape, v.dtype)
    work = v.op.on_device(v.args[0], v, v.params)
    bound = (contiguous(rec, arrays[0]), *arrays[1:], out)
    rec.gpu.call(CommunicationCall(dev, v.name, work, bound), *(a.ptr for a in bound))
    return out


def serves(dev: Cuda, op: str, given: Sequence[Any], params: dict[str, Any]) -> bool | None:
    """Whether a library computes an op on values of these shapes inside a compiled function; None:
    no library has the op. The portable definition is faster where it is a few kernels, which are
    fused with their neighbours."""
    called = op in solver.LIBRARY or op in sort.KERNELS
    if not called or not all(size_of(v.shape) for v in given):
        return None
    if factorisations.serves(dev, op, given[0].shape):
        return min(given[0].shape[-2:]) > _FEWER
    if not has_libraries(dev):
        return None
    if op in sort.KERNELS:
        return bool(given[0].shape[params["axis"]] > _NETWORK)
    if op in _UNROLLED:
        *batch, m, n = given[0].shape
        columns = min(m, n)
        one_by_one = not _UNROLLED[op] and columns < size_of(tuple(batch))
        return columns > (_MANY if one_by_one else _FEW)
    return True


def record(dev: Cuda, rec: RecordingCuda, v: Value, arrays: Sequence[CudaArray]) -> CudaArray:
    """The result of an op that a library computes, on placeholder arrays."""
    if v.name in cufft.TRANSFORMS:
        return cufft.record(dev, rec, arrays[0], v)
    if factorisations.serves(rec, v.name, arrays[0].shape):
        return factorisations.compute(rec, v.name, *arrays, **v.params)
    if v.name in sort.KERNELS:
        arrays = [sort.sortable(rec, arrays[0])]
        work: Work = partial(_sorted, v.params)
    else:
        work = partial(solver.computed, dev, v.name, params=v.params)
    out: CudaArray = rec.empty(v.shape, v.dtype)
    bound = (*arrays, out)
    rec.gpu.call(LibraryCall(dev, v.name, work, bound), *(a.ptr for a in bound))
    return out


def _sorted(params: dict[str, Any], arrays: Sequence[Any], cupy: Any) -> Any:
    return sort.order(cupy, *arrays, **params)

"""Fourier transforms inside graphs, by cuFFT plans that own their workspace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from everygrad.backends import strided_views
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.cupy_interop import on_our_stream
from everygrad.backends.cuda.kernels import copy_kernels
from everygrad.compiler.ir import Value
from everygrad.core.shapes import size_of

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda
    from everygrad.backends.cuda.graph.recording import RecordingCuda

TRANSFORMS = ("dft", "real_dft", "half_dft")
_KINDS = {  # of a transform for cuFFT, by the dtypes of what is read and written
    ("complex64", "complex64"): 0x29,
    ("float32", "complex64"): 0x2A,
    ("complex64", "float32"): 0x2C,
    ("complex128", "complex128"): 0x69,
    ("float64", "complex128"): 0x6A,
    ("complex128", "float64"): 0x6C,
}
_FORWARD, _INVERSE = -1, 1


class Transform:
    """Transforms of contiguous rows. The first call makes the plan; later ones allocate nothing,
    and may be captured."""

    def __init__(
        self, dev: Cuda, op: str, kind: int, length: int, count: int, direction: int
    ) -> None:
        self.__name__ = op
        self._dev = dev
        self._facts = (length, kind, count)
        self._direction = direction
        self._plan: Any = None

    def __call__(self, source: int, target: int) -> None:
        with on_our_stream(self._dev) as cupy:
            if self._plan is None:
                self._plan = cupy.cuda.cufft.Plan1d(*self._facts)
            self._plan.fft(_at(source), _at(target), self._direction)


def _at(address: int) -> Any:
    """An address as an object that CuPy's plans accept for an array."""
    return SimpleNamespace(data=SimpleNamespace(ptr=address))


def record(dev: Cuda, rec: RecordingCuda, x: CudaArray, v: Value) -> CudaArray:
    """The result on placeholder arrays: the axis is permuted to the end, and back."""
    axis, last = v.params["axis"], len(x.shape) - 1
    axes = (*(a for a in range(last + 1) if a != axis), axis)
    backwards = not v.dtype.is_complex  # complex-to-real
    moved = strided_views.permute_dims(rec, x, axes)
    # complex-to-real overwrites its input, and real inputs are read in aligned pairs
    own = backwards or moved.offset
    source = copy_kernels.copied(rec, moved) if own else copy_kernels.contiguous(rec, moved)
    out = rec.empty(tuple(v.shape[a] for a in axes), v.dtype)
    length = v.shape[axis] if backwards else x.shape[axis]
    direction = _INVERSE if backwards or v.params.get("inverse") else _FORWARD
    kind = _KINDS[x.dtype.name, v.dtype.name]
    count = size_of(source.shape[:-1])
    rec.gpu.call(Transform(dev, v.name, kind, length, count, direction), source.ptr, out.ptr)
    return strided_views.permute_dims(rec, out, tuple(axes.index(a) for a in range(last + 1)))

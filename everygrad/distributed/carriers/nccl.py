"""NCCL through CuPy: GPUs that talk to each other directly, on the stream of everygrad.

MPI starts it and agrees on what is called; NCCL moves the arrays. It works on the leading axis of
contiguous arrays, by their addresses; `collectives` brings tensors into that form. NCCL refuses two
ranks on one GPU, and fixes the order of its sums for each number of ranks and size of array.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everygrad.dtypes import DType
from everygrad.errors import DeviceError, DtypeError

if TYPE_CHECKING:
    from everygrad.distributed.group import Group

_ID = 128  # bytes of a communicator's id
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice
_TYPES = {
    **{n: f"NCCL_{n.upper()}" for n in ("int8", "uint8", "int32", "uint32", "int64", "uint64")},
    **{"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"},
    **{"complex64": "NCCL_FLOAT32", "complex128": "NCCL_FLOAT64"},  # sums: part by part
}
Work = Callable[[int, int, int], None]  # of a stream and the addresses of input and result


def library() -> tuple[Any, Any, Any]:
    """CuPy's modules of NCCL and of the CUDA runtime, and its allocator."""
    try:
        from cupy.cuda import alloc, nccl, runtime
    except ImportError:
        nccl = None
    if nccl is None or not getattr(nccl, "available", True):
        raise DeviceError(
            'the carrier "nccl" needs CuPy with NCCL: pip install "everygrad[cuda13]" '
            "nvidia-nccl-cu13 (or cuda12 and cu12)"
        )
    return nccl, runtime, alloc


class NcclGroup:
    """The GPUs of a group of ranks."""

    def __init__(self, group: Group) -> None:
        self.nccl, runtime, self.alloc = library()
        self.clear = runtime.memsetAsync
        self.copy = runtime.memcpyAsync
        self.to_itself: deque[tuple[int, Any]] = deque()  # messages that were not received yet
        self.group = group
        unique = self.nccl.get_unique_id()  # bytes; before CuPy 14, a tuple of signed ones
        own = bytes(x & 0xFF for x in unique)
        entry = group.world.ring.begin(f"NCCL over {group.name}")
        first = group.guarded(entry, lambda: group.told(own, [_ID] * group.size, entry))[0]
        runtime.setDevice(group.world.gpu)  # NCCL joins the GPU that is current
        shared: Any = bytes(first)
        if not isinstance(unique, bytes):
            shared = tuple(x - 256 if x > 127 else x for x in shared)
        self.comm = self.nccl.NcclCommunicator(group.size, shared, group.index)

    def number(self, dtype: DType, what: str) -> int:
        """NCCL's number of a dtype that is summed."""
        name = _TYPES.get(dtype.name)
        if name is None:
            raise DtypeError(f"{what}: NCCL has no {dtype}; cast it with astype()")
        found: int = getattr(self.nccl, name)
        return found

    def work(self, kind: str, x: Any, out: Any, params: dict[str, Any]) -> Work:
        """What carries out a collective; x and out have a shape, a dtype and a size."""
        made: Work = getattr(self, kind)(x, out, **params)
        return made

    def all_reduce(self, x: Any, out: Any, how: str) -> Work:
        dtype = self.number(x.dtype, "all_reduce")
        op = getattr(self.nccl, f"NCCL_{how.upper()}")
        count = x.size * (2 if x.dtype.is_complex else 1)
        return lambda s, a, b: self.comm.allReduce(a, b, count, dtype, op, s)

    def reduce_scatter(self, x: Any, out: Any, dim: int) -> Work:
        dtype, op = self.number(x.dtype, "reduce_scatter"), self.nccl.NCCL_SUM
        count = out.size * (2 if x.dtype.is_complex else 1)
        return lambda s, a, b: self.comm.reduceScatter(a, b, count, dtype, op, s)

    def reduce(self, x: Any, out: Any, source: int) -> Work:
        """The sum at one place, and zeros at the others."""
        dtype, op = self.number(x.dtype, "reduce"), self.nccl.NCCL_SUM
        count = x.size * (2 if x.dtype.is_complex else 1)

        def work(s: int, a: int, b: int) -> None:
            self.clear(b, 0, out.size * out.dtype.itemsize, s)
            self.comm.reduce(a, b, count, dtype, op, source, s)

        return work

    # what moves elements and does not look at them moves bytes

    def all_gather(self, x: Any, out: Any, dim: int) -> Work:
        count, byte = x.size * x.dtype.itemsize, self.nccl.NCCL_UINT8
        return lambda s, a, b: self.comm.allGather(a, b, count, byte, s)

    def broadcast(self, x: Any, out: Any, source: int) -> Work:
        count, byte = x.size * x.dtype.itemsize, self.nccl.NCCL_UINT8
        return lambda s, a, b: self.comm.broadcast(a, b, count, byte, source, s)

    def barrier(self, x: Any, out: Any) -> Work:
        return self.all_reduce(x, out, "sum")

    def statement(self, x: Any, out: Any, text: str) -> Work:
        nbytes = x.size * x.dtype.itemsize
        return lambda s, a, b: self.copy(b, a, nbytes, _ON_DEVICE, s)

    def all_to_all(self, x: Any, out: Any, split_dim: int, concat_dim: int) -> Work:
        size, byte = self.group.size, self.nccl.NCCL_UINT8
        count = x.size * x.dtype.itemsize // size

        def work(s: int, a: int, b: int) -> None:
            self.nccl.groupStart()
            for i in range(size):
                self.comm.send(a + i * count, count, byte, i, s)
                self.comm.recv(b + i * count, count, byte, i, s)
            self.nccl.groupEnd()

        return work

    # NCCL takes no message from a rank to itself: such a one is kept in memory of the GPU

    def keep(self, s: int, a: int, count: int) -> None:
        kept = self.alloc(count)
        self.copy(kept.ptr, a, count, _ON_DEVICE, s)
        self.to_itself.append((count, kept))

    def take(self, s: int, b: int, count: int) -> None:
        if not self.to_itself or self.to_itself[0][0] != count:
            sent = f"one of {self.to_itself[0][0]} bytes" if self.to_itself else "none"
            raise DeviceError(
                f"recv: rank {self.group.world.rank} receives a message of {count} bytes from "
                f"itself, and has sent {sent}"
            )
        _, kept = self.to_itself.popleft()
        self.copy(b, kept.ptr, count, _ON_DEVICE, s)  # on the stream that its memory returns to

    def send(self, x: Any, out: Any, to: int) -> Work:
        count, byte = x.size * x.dtype.itemsize, self.nccl.NCCL_UINT8

        def work(s: int, a: int, b: int) -> None:
            self.clear(b, 0, out.size * out.dtype.itemsize, s)  # the 0 that stands for it
            if to == self.group.index:
                self.keep(s, a, count)
            else:
                self.comm.send(a, count, byte, to, s)

        return work

    def recv(self, x: Any, out: Any, source: int) -> Work:
        count, byte = x.size * x.dtype.itemsize, self.nccl.NCCL_UINT8
        if source == self.group.index:
            return lambda s, a, b: self.take(s, b, count)
        return lambda s, a, b: self.comm.recv(b, count, byte, source, s)

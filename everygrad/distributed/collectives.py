"""Collectives on tensors: what users call, checked, and in the form that a device takes."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from numpy import ndarray

from everygrad.amp.policy import HALVES
from everygrad.core.context import intercepted, tracing
from everygrad.core.shapes import axis_index
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import apply
from everygrad.distributed.background import Pending, Rest
from everygrad.distributed.calls import Call
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.records import (
    ALL_EXTREME,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    RECV,
    REDUCE,
    REDUCE_SCATTER,
    SEND,
    Collective,
    by_leading_axis,
)
from everygrad.distributed.world import world
from everygrad.dtypes import DType, float32, int16, int32, uint16
from everygrad.errors import ArgumentError, DtypeError, ShapeError, TraceError
from everygrad.ops.python.creation import zeros
from everygrad.ops.shape.joining import concat

__all__ = [
    "Work",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "recv",
    "reduce",
    "reduce_scatter",
    "send",
    "start_all_reduce",
]


class Reduction(NamedTuple):
    """How the ranks' tensors become one: the record, its parameter, whether it is a mean."""

    record: Collective
    how: str
    is_mean: bool = False


_REDUCTIONS = {
    "sum": Reduction(ALL_REDUCE, "sum"),
    "mean": Reduction(ALL_REDUCE, "sum", is_mean=True),
    "max": Reduction(ALL_EXTREME, "max"),
    "min": Reduction(ALL_EXTREME, "min"),
}


def wider(x: Tensor) -> DType:
    """The dtype in which a GPU's library sums x: half floats in float32."""
    if x.dtype in HALVES:
        return float32
    return int32 if x.dtype in (int16, uint16) else x.dtype


def _checked(name: str, x: Any, mesh: Any, axis: Any) -> int:
    """The number of ranks along the axis; raises where an argument is of no use."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"{name}: takes a Tensor, got {type(x).__name__}; make one with tensor()")
    if not isinstance(mesh, Mesh):
        raise ArgumentError(f"{name}: mesh must be a Mesh, got {type(mesh).__name__}")
    if axis is None:
        return mesh.size
    if axis not in mesh.axes:
        names = ", ".join(map(repr, mesh.axes))
        raise ArgumentError(f"{name}: the mesh has no axis {axis!r}; it has {names}")
    return mesh.axes[axis]


def _dim(name: str, x: Tensor, dim: Any, divisor: int = 1) -> int:
    found = axis_index(dim, x.ndim, name)
    if x.shape[found] % divisor:
        raise ShapeError(
            f"{name}: axis {dim} of {x.shape} has {x.shape[found]} elements, which {divisor} ranks "
            f"cannot share equally; pad it to a multiple of {divisor}"
        )
    return found


def _member(name: str, number: Any, size: int, what: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < size:
        raise ArgumentError(f"{name}: {what} must be from 0 to {size - 1}, got {number!r}")
    return number


def all_reduce(x: Tensor, mesh: Mesh, axis: str | None, op: str = "sum") -> Tensor:
    """x summed over the ranks along an axis of the mesh (of all its axes, for None), in the order
    of the ranks: every rank gets the same bits. `op` is "sum", "mean", "max" or "min". Half floats
    are summed in float32.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.all_reduce(eg.ones((2,)), mesh, "data")
    tensor([1., 1.])
    """
    size = _checked("all_reduce", x, mesh, axis)
    kind = _reduction("all_reduce", op)
    orders = kind.record is ALL_EXTREME
    if x.dtype.kind == "bool" or (x.dtype.is_complex and orders):
        cure = "cast it to int32" if x.dtype.kind == "bool" else "take abs() first"
        raise DtypeError(f"all_reduce: does not take {x.dtype} for {op}; {cure}")
    if kind.is_mean and not x.dtype.is_differentiable:
        raise DtypeError(f"all_reduce: the mean of {x.dtype}; cast it with astype() to a float")
    wide = wider(x) if by_leading_axis(x, mesh) else x.dtype
    given = x if wide is x.dtype else x.astype(wide)
    out = apply(kind.record, given, mesh=mesh, axis=axis, how=kind.how)
    out = out if wide is x.dtype else out.astype(x.dtype)
    return out / size if kind.is_mean else out


def _reduction(name: str, op: Any) -> Reduction:
    found = _REDUCTIONS.get(op) if isinstance(op, str) else None
    if found is None:
        raise ArgumentError(f"{name}: op must be one of {', '.join(_REDUCTIONS)}, got {op!r}")
    return found


class Work:
    """An all_reduce that was started; `wait` gives its result."""

    def __init__(self, pending: Pending, divisor: int) -> None:
        self._pending = pending
        self._divisor = divisor

    def wait(self) -> Tensor:
        """The result, once it is there; raises what the collective raised."""
        out = wrap(self._pending.result())
        return out if self._divisor == 1 else out / self._divisor

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._pending.done.is_set()


def start_all_reduce(x: Tensor, mesh: Mesh, axis: str | None, op: str = "sum") -> Work:
    """An all_reduce in the background: the rank's communication thread carries it out, after all
    that was started before it, while the program goes on. It has no derivative; gradients that are
    ready while backward goes on are what it is for. Inside `jit` it is an all_reduce, which the
    compiler overlaps, and on a GPU it is done at once.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> work = eg.distributed.start_all_reduce(eg.ones((2,)), mesh, "data")
    >>> work.wait()
    tensor([1., 1.])
    """
    size = _checked("start_all_reduce", x, mesh, axis)
    kind = _reduction("start_all_reduce", op)
    if kind.record is not ALL_REDUCE or not x.dtype.is_differentiable:
        raise ArgumentError(
            f"start_all_reduce: takes floats and op sum or mean, got {x.dtype} and {op!r}"
        )
    payload = x._data
    divisor = size if kind.is_mean else 1
    if type(payload) is not ndarray or intercepted():
        made = Pending(lambda: apply(ALL_REDUCE, x.detach(), mesh=mesh, axis=axis, how="sum")._data)
        made.run()
        made.done.set()
        return Work(made, divisor)
    work = partial(ALL_REDUCE.on_host, payload, mesh=mesh, axis=axis, how="sum", inline=True)
    return Work(mesh.background.submit(work), divisor)


def begun_all_reduce(x: Tensor, mesh: Mesh, axis: str | None) -> Tensor | Rest:
    """The sum of x, or what is left to do of it after its first stage; for a thread that
    communicates. x is nobody else's: the sum may take its memory."""
    payload = x._data
    if type(payload) is not ndarray or intercepted():
        return all_reduce(x, mesh, axis)
    owned = payload.flags.writeable
    made = ALL_REDUCE.on_host(payload, mesh=mesh, axis=axis, how="sum", inline=True, owned=owned)
    return _wrapped(made)


def _wrapped(made: Any) -> Tensor | Rest:
    if not isinstance(made, Rest):
        return wrap(made)
    return Rest(lambda: _wrapped(made.work()))


def all_gather(x: Tensor, mesh: Mesh, axis: str | None, dim: int = 0) -> Tensor:
    """The tensors of all ranks along an axis of the mesh, joined along their axis `dim`.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.all_gather(eg.ones((2, 3)), mesh, "data", dim=1).shape
    (2, 3)
    """
    _checked("all_gather", x, mesh, axis)
    dim = _dim("all_gather", x, dim)
    if dim and by_leading_axis(x, mesh):
        return apply(ALL_GATHER, x.moveaxis(dim, 0), mesh=mesh, axis=axis, dim=0).moveaxis(0, dim)
    return apply(ALL_GATHER, x, mesh=mesh, axis=axis, dim=dim)


def reduce_scatter(x: Tensor, mesh: Mesh, axis: str | None, dim: int = 0) -> Tensor:
    """This rank's part, along `dim`, of the sum over the ranks.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.reduce_scatter(eg.ones((2,)), mesh, "data")
    tensor([1., 1.])
    """
    size = _checked("reduce_scatter", x, mesh, axis)
    if x.dtype.kind == "bool":
        raise DtypeError("reduce_scatter: does not take bool; cast it to int32")
    dim = _dim("reduce_scatter", x, dim, size)
    if by_leading_axis(x, mesh):
        moved = x.moveaxis(dim, 0).astype(wider(x))
        out = apply(REDUCE_SCATTER, moved, mesh=mesh, axis=axis, dim=0)
        return out.moveaxis(0, dim).astype(x.dtype)
    return apply(REDUCE_SCATTER, x, mesh=mesh, axis=axis, dim=dim)


def all_to_all(x: Tensor, mesh: Mesh, axis: str | None, split_dim: int, concat_dim: int) -> Tensor:
    """x split along `split_dim`, part i given to rank i, and what came joined along `concat_dim`.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.all_to_all(eg.ones((2, 3)), mesh, "data", 0, 1).shape
    (2, 3)
    """
    size = _checked("all_to_all", x, mesh, axis)
    split_dim = _dim("all_to_all", x, split_dim, size)
    concat_dim = _dim("all_to_all", x, concat_dim)
    if by_leading_axis(x, mesh):
        moved = x.moveaxis(split_dim, 0)
        out = apply(ALL_TO_ALL, moved, mesh=mesh, axis=axis, split_dim=0, concat_dim=0)
        parts = out.reshape(size, out.shape[0] // size, *out.shape[1:])
        return concat([part.moveaxis(0, split_dim) for part in parts], axis=concat_dim)
    return apply(ALL_TO_ALL, x, mesh=mesh, axis=axis, split_dim=split_dim, concat_dim=concat_dim)


def broadcast(x: Tensor, mesh: Mesh, axis: str | None, source: int = 0) -> Tensor:
    """The tensor of the rank at place `source` of the axis; x has its shape and dtype everywhere.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.broadcast(eg.ones((2,)), mesh, "data")
    tensor([1., 1.])
    """
    size = _checked("broadcast", x, mesh, axis)
    source = _member("broadcast", source, size, "source")
    return apply(BROADCAST, x, mesh=mesh, axis=axis, source=source)


def reduce(x: Tensor, mesh: Mesh, axis: str | None, source: int = 0) -> Tensor:
    """The sum over the ranks at place `source` of the axis, and zeros at the others.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.reduce(eg.ones((2,)), mesh, "data")
    tensor([1., 1.])
    """
    size = _checked("reduce", x, mesh, axis)
    if x.dtype.kind == "bool":
        raise DtypeError("reduce: does not take bool; cast it to int32")
    source = _member("reduce", source, size, "source")
    if by_leading_axis(x, mesh) and (wide := wider(x)) is not x.dtype:
        return apply(REDUCE, x.astype(wide), mesh=mesh, axis=axis, source=source).astype(x.dtype)
    return apply(REDUCE, x, mesh=mesh, axis=axis, source=source)


def send(x: Tensor, mesh: Mesh, axis: str, to: int) -> Tensor:
    """Send x to the rank at place `to` of the axis, which calls `recv`.

    The result is a 0 that stands for what was sent: `backward()` of it waits for the gradient that
    the receiver's backward sends.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"pipe": 1})
    >>> sent = eg.distributed.send(eg.ones((2,)), mesh, "pipe", to=0)
    >>> eg.distributed.recv(eg.zeros((2,)), mesh, "pipe", source=0)
    tensor([1., 1.])
    """
    size = _checked("send", x, mesh, axis)
    return apply(SEND, x, mesh=mesh, axis=axis, to=_member("send", to, size, "to"))


def recv(like: Tensor, mesh: Mesh, axis: str, source: int) -> Tensor:
    """What the rank at place `source` of the axis sends: of the shape and dtype of `like`.

    If `like` requires grad, backward sends the gradient of what came back to the sender.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"pipe": 1})
    >>> sent = eg.distributed.send(eg.ones((2,)), mesh, "pipe", to=0)
    >>> eg.distributed.recv(eg.zeros((2,)), mesh, "pipe", source=0)
    tensor([1., 1.])
    """
    size = _checked("recv", like, mesh, axis)
    return apply(RECV, like, mesh=mesh, axis=axis, source=_member("recv", source, size, "source"))


def barrier(mesh: Mesh | None = None, axis: str | None = None) -> None:
    """Wait until all ranks along an axis of the mesh are here; of no mesh, all ranks there are.

    >>> import everygrad as eg
    >>> eg.distributed.barrier()
    """
    if mesh is None:
        if intercepted() and tracing.get() is not None:
            raise TraceError("barrier: inside a jitted function it needs a mesh: barrier(mesh)")
        everyone = world().everyone
        call = Call("barrier", everyone.name, "", ())
        everyone.run(call, zeros((1,))._data)
        return
    x = zeros((1,))
    _checked("barrier", x, mesh, axis)
    apply(BARRIER, x, mesh=mesh, axis=axis)

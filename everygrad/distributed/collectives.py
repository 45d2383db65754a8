"""Collectives as ops: each is a record whose derivative is a collective again.

The derivative is that of the sum of all ranks' losses: what a rank gives to others comes back as
their gradients. So all_gather and reduce_scatter are each other's, broadcast and reduce too, an
all_reduce and an all_to_all their own, and a recv sends its gradient back to where a send waits
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray

from everygrad.backends import base
from everygrad.compiler.facts import OpFacts, SplitCall
from everygrad.core.context import intercepted
from everygrad.core.shapes import Shape, axis_index
from everygrad.core.tensor import Tensor, Wrapped, wrap
from everygrad.dispatch import apply
from everygrad.distributed.background import Pending
from everygrad.distributed.calls import Call
from everygrad.distributed.group import MESSAGES, Agreement, Group
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.world import world
from everygrad.dtypes import FROM_NP, DType, int64
from everygrad.errors import ArgumentError, DtypeError, ShapeError, TraceError
from everygrad.ops.python.creation import zeros
from everygrad.ops.record.families import Kernel

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

_OPS = ("sum", "mean", "max", "min")


class _Start(OpFacts):
    """The first half of a collective in a graph: its result is the number that `_Wait` asks for."""

    family = "kernel"
    priority = -1

    def __init__(self, whole: Collective) -> None:
        self.name = f"{whole.name}.start"
        self.whole = whole
        self.state(communicates=True, host=self.on_host)

    def result(self, *given: Any, **params: Any) -> tuple[Shape, DType]:
        return (1,), int64

    def on_host(self, x: Any, *after: Any, mesh: Mesh, **params: Any) -> Any:
        # x stays as it is until `_Wait`, which takes it too, has run
        work = partial(self.whole.on_host, x, mesh=mesh, inline=True, **params)
        return np.array([mesh.background.start(work)])


class _Wait(OpFacts):
    """The second half: gives the result of the collective."""

    family = "kernel"
    priority = 1

    def __init__(self, whole: Collective) -> None:
        self.name = f"{whole.name}.wait"
        self.whole = whole
        self.state(communicates=True, host=self.on_host)

    def result(self, ticket: Any, x: Any, *after: Any, **params: Any) -> tuple[Shape, DType]:
        return self.whole.infer(x, **params)

    def on_host(self, ticket: Any, *given: Any, mesh: Mesh, **params: Any) -> Any:
        return mesh.background.finish(int(ticket[0]))


class _Agree(OpFacts):
    """Stands before the first collective of a graph: the ranks compare their lists."""

    family = "kernel"
    name = "agree"
    priority = -1

    def __init__(self) -> None:
        self.state(communicates=True, host=self.on_host)

    def result(self, x: Any, **params: Any) -> tuple[Shape, DType]:
        return x.shape, x.dtype

    def on_host(self, x: Any, owner: Any) -> Any:
        """`owner`: the calls of the graph, each with its mesh and axis."""
        texts: dict[Group, list[str]] = {}
        for mesh, axis, call in owner:
            if call.kind not in MESSAGES:
                texts.setdefault(mesh.group(axis), []).append(str(call))
        background = owner[0][0].background
        for group, calls in texts.items():
            listed = Agreement("\n".join(calls), len(calls))
            if background.busy:
                background.submit(partial(group.trust, listed)).result()
            else:
                group.trust(listed)
        return x


AGREE = _Agree()


class Collective(Kernel):
    """The record of a collective. `detail` are the parameters that its description names."""

    def __init__(
        self,
        name: str,
        rules: Sequence[Callable[..., Any] | None],
        shape: Callable[..., Shape] = lambda shape, size: shape,
        detail: Sequence[str] = (),
        moved: Sequence[str] = (),
        linear: bool = True,
    ) -> None:
        super().__init__(
            name,
            self.run,
            ("x",),
            rules,
            linear=(0,) if linear else (),
            batch=self.run_batch,
            result=self.infer,
            communicates=True,
            host=self.on_host,
        )
        halves = (_Start(self), _Wait(self), AGREE)
        self.state(split=SplitCall(*halves, self.compared, self.bucket))
        self.shape_of = shape
        self.detail = tuple(detail)
        self.moved = tuple(moved)  # parameters that are axes of x

    def describe(self, shape: Shape, dtype: DType, params: dict[str, Any]) -> Call:
        """The call as all ranks must see it."""
        mesh, axis = params["mesh"], params["axis"]
        detail = " ".join(f"{k}={params[k]}" for k in self.detail)
        return Call(self.name, mesh.group(axis).name, str(dtype), tuple(shape), detail)

    def on_host(
        self,
        x: Any,
        *after: Any,
        mesh: Mesh,
        axis: str | None,
        trusted: bool = False,
        inline: bool = False,
        **more: Any,
    ) -> Any:
        """The collective on a NumPy array. `after`: in a graph, the one before it; `trusted`: the
        ranks have agreed on it; `inline`: this is the communication thread."""
        call = self.describe(x.shape, FROM_NP[x.dtype], {"mesh": mesh, "axis": axis, **more})
        group, given = mesh.group(axis), self.arguments(call, **more)
        if inline:
            return group.now(call, x, trusted, given)
        return group.run(call, x, trusted, **given)

    def arguments(self, call: Call, **more: Any) -> dict[str, Any]:
        """What the group's method takes beside the array."""
        return more

    def run(self, x: Tensor, **params: Any) -> Tensor:
        payload = x._data
        if type(payload) is ndarray:
            return wrap(self.on_host(payload, **params))
        if isinstance(payload, Wrapped):
            raise TraceError(f"{self.name}: does not work inside this transformation")
        device = base.get(payload.device)
        made = self.on_host(device.to_numpy(payload), **params)
        return wrap(device.from_numpy(made))

    def run_batch(self, values: Sequence[Tensor], **params: Any) -> Tensor:
        """Inside vmap: the same collective of all examples, whose axis comes first."""
        later = {k: params[k] + 1 for k in self.moved}
        return apply(self, *values, **{**params, **later})

    def compared(self, v: Any, shape: Shape) -> Any:
        """Where a call of a graph takes place, and what all ranks there must see of it."""
        mesh, axis = v.params["mesh"], v.params["axis"]
        return mesh, axis, self.describe(shape, v.dtype, v.params)

    def bucket(self, v: Any) -> Any:
        """Sums over the same ranks and of one dtype may be one sum of one array."""
        if self is not ALL_REDUCE:
            return None
        return v.params["mesh"], v.params["axis"], v.params["how"], v.dtype

    def infer(
        self, x: Any, *after: Any, mesh: Mesh, axis: str | None, **more: Any
    ) -> tuple[Shape, DType]:
        given = {k: v for k, v in more.items() if k in self.moved}
        return self.shape_of(x.shape, mesh.group(axis).size, **given), x.dtype


class _Message(Collective):
    """send and recv: what two ranks must agree on is written once, as the sender sees it."""

    def arguments(self, call: Call, **more: Any) -> dict[str, Any]:
        return {**more, "text": f"{call.dtype}{list(call.shape)}"}


def _all_shapes(shape: Shape, size: int, dim: int) -> Shape:
    return (*shape[:dim], shape[dim] * size, *shape[dim + 1 :])


def _part_shape(shape: Shape, size: int, dim: int) -> Shape:
    return (*shape[:dim], shape[dim] // size, *shape[dim + 1 :])


def _moved_shape(shape: Shape, size: int, split_dim: int, concat_dim: int) -> Shape:
    return _all_shapes(_part_shape(shape, size, split_dim), size, concat_dim)


def _tied(g: Tensor, x: Tensor, out: Tensor, mesh: Mesh, axis: str | None) -> Tensor:
    """Of a largest or smallest element: its rank gets the gradient, several an equal share."""
    mine = (x == out).astype(g.dtype)
    count = apply(ALL_REDUCE, mine, mesh=mesh, axis=axis, how="sum")
    return apply(ALL_REDUCE, g, mesh=mesh, axis=axis, how="sum") * (mine / count)


ALL_REDUCE: Collective = Collective(
    "all_reduce",
    (lambda g, mesh, axis, how: apply(ALL_REDUCE, g, mesh=mesh, axis=axis, how=how),),
    detail=("how",),
)
ALL_EXTREME: Collective = Collective(
    "all_reduce",
    (lambda g, x, out, mesh, axis, how: _tied(g, x, out, mesh, axis),),
    detail=("how",),
    linear=False,
)
ALL_GATHER: Collective = Collective(
    "all_gather",
    (lambda g, mesh, axis, dim: apply(REDUCE_SCATTER, g, mesh=mesh, axis=axis, dim=dim),),
    _all_shapes,
    detail=("dim",),
    moved=("dim",),
)
REDUCE_SCATTER: Collective = Collective(
    "reduce_scatter",
    (lambda g, mesh, axis, dim: apply(ALL_GATHER, g, mesh=mesh, axis=axis, dim=dim),),
    _part_shape,
    detail=("dim",),
    moved=("dim",),
)
ALL_TO_ALL: Collective = Collective(
    "all_to_all",
    (
        lambda g, mesh, axis, split_dim, concat_dim: apply(
            ALL_TO_ALL, g, mesh=mesh, axis=axis, split_dim=concat_dim, concat_dim=split_dim
        ),
    ),
    _moved_shape,
    detail=("split_dim", "concat_dim"),
    moved=("split_dim", "concat_dim"),
)
BROADCAST: Collective = Collective(
    "broadcast",
    (lambda g, mesh, axis, source: apply(REDUCE, g, mesh=mesh, axis=axis, source=source),),
    detail=("source",),
)
REDUCE: Collective = Collective(
    "reduce",
    (lambda g, mesh, axis, source: apply(BROADCAST, g, mesh=mesh, axis=axis, source=source),),
    detail=("source",),
)
BARRIER: Collective = Collective("barrier", (lambda g: g,))
# The result of a send is a 0: through it, backward waits for the gradient that the receiver sends.
SEND: Collective = _Message(
    "send",
    (
        lambda g, shape, mesh, axis, to: apply(
            RECV, g.broadcast_to(shape), mesh=mesh, axis=axis, source=to
        ),
    ),
    lambda shape, size: (),
    detail=("to",),
)
RECV: Collective = _Message(
    "recv",
    (
        lambda g, shape, mesh, axis, source: apply(
            SEND, g, mesh=mesh, axis=axis, to=source
        ).broadcast_to(shape),
    ),
    detail=("source",),
)


# --- what users call -----------------------------------------------------------------------------


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
    if op not in _OPS:
        raise ArgumentError(f"all_reduce: op must be one of {', '.join(_OPS)}, got {op!r}")
    if x.dtype.kind == "bool" or (x.dtype.is_complex and op in ("max", "min")):
        cure = "cast it to int32" if x.dtype.kind == "bool" else "take abs() first"
        raise DtypeError(f"all_reduce: does not take {x.dtype} for {op}; {cure}")
    if op == "mean":
        if not x.dtype.is_differentiable:
            raise DtypeError(f"all_reduce: the mean of {x.dtype}; cast it with astype() to a float")
        return apply(ALL_REDUCE, x, mesh=mesh, axis=axis, how="sum") / size
    record = ALL_REDUCE if op == "sum" else ALL_EXTREME
    return apply(record, x, mesh=mesh, axis=axis, how=op)


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
    if op not in ("sum", "mean") or not x.dtype.is_differentiable:
        raise ArgumentError(
            f"start_all_reduce: takes floats and op sum or mean, got {x.dtype} and {op!r}"
        )
    payload = x._data
    divisor = size if op == "mean" else 1
    if type(payload) is not ndarray or intercepted():
        made = Pending(lambda: apply(ALL_REDUCE, x.detach(), mesh=mesh, axis=axis, how="sum")._data)
        made.run()
        return Work(made, divisor)
    work = partial(ALL_REDUCE.on_host, payload, mesh=mesh, axis=axis, how="sum", inline=True)
    return Work(mesh.background.submit(work), divisor)


def all_gather(x: Tensor, mesh: Mesh, axis: str | None, dim: int = 0) -> Tensor:
    """The tensors of all ranks along an axis of the mesh, joined along their axis `dim`.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.all_gather(eg.ones((2, 3)), mesh, "data", dim=1).shape
    (2, 3)
    """
    _checked("all_gather", x, mesh, axis)
    return apply(ALL_GATHER, x, mesh=mesh, axis=axis, dim=_dim("all_gather", x, dim))


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
        everyone = world().everyone
        call = Call("barrier", everyone.name, "", ())
        everyone.run(call, zeros((1,))._data)
        return
    x = zeros((1,))
    _checked("barrier", x, mesh, axis)
    apply(BARRIER, x, mesh=mesh, axis=axis)

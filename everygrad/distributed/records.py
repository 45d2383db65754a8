"""The records of collectives: each one's derivative is a collective again.

The derivative is that of the sum of all ranks' losses: what a rank gives to others comes back as
their gradients. So all_gather and reduce_scatter are each other's, broadcast and reduce too, an
all_reduce and an all_to_all their own, and a recv sends its gradient back to where a send waits
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from everygrad.backends import base
from everygrad.compiler.facts import OpFacts, SplitCall
from everygrad.core.shapes import Shape, size_of
from everygrad.core.tensor import Tensor, Wrapped, wrap
from everygrad.dispatch import apply
from everygrad.distributed.calls import Call
from everygrad.distributed.group import MESSAGES, Agreement, Group
from everygrad.distributed.mesh import Mesh
from everygrad.dtypes import FROM_NP, DType, int64
from everygrad.errors import TraceError
from everygrad.ops.record.families import Kernel


class _Start(OpFacts):
    """The first half of a collective in a graph: its result is the number that `_Wait` asks for."""

    family = "kernel"
    priority = -1

    def __init__(self, whole: Collective, patient: bool = False) -> None:
        self.name = f"{whole.name}.start"
        self.whole = whole
        self.state(communicates=True, looks_at=1, host=self.on_host, patient=patient)

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
        self.state(communicates=True, looks_at=2, host=self.on_host)
        self.state(takes_over=1 if whole.in_place else None)

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
        self.state(communicates=True, host=self.on_host, on_device=self.launched)

    def launched(self, x: Any, out: Any, params: dict[str, Any]) -> Any:
        """Between two graphs of a GPU, which need not be waited for."""
        return lambda stream, given, made: self.on_host(None, **params)

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
                background.after_all(partial(group.trust, listed))
            else:
                group.trust(listed)
        return x


AGREE = _Agree()


class Likeness(NamedTuple):
    """What a result will be."""

    shape: Shape
    dtype: DType

    @property
    def size(self) -> int:
        return size_of(self.shape)


def by_leading_axis(x: Tensor, mesh: Mesh) -> bool:
    """Whether a GPU's library takes x, which looks at leading axes alone."""
    device = base.get(x.device)
    return device.communicates and not device.overlaps and mesh.uses_nccl


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
        in_place: bool = False,
    ) -> None:
        self.in_place = in_place  # the result may take the memory of x
        super().__init__(
            name,
            self.run,
            ("x",),
            rules,
            linear=(0,) if linear else (),
            batch=self.run_batch,
            result=self.infer,
            communicates=True,
            looks_at=1,
            host=self.on_host,
            on_device=self.launched,
        )
        halves = (_Start(self), _Start(self, patient=True), _Wait(self), AGREE)
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
        owned: bool = False,
        **more: Any,
    ) -> Any:
        """The collective on a NumPy array. `after`: in a graph, the one before it; `trusted`: the
        ranks have agreed on it; `inline`: this is the communication thread, which may be given what
        is left of it to do; `owned`: and the memory of x for the result."""
        call = self.describe(x.shape, FROM_NP[x.dtype], {"mesh": mesh, "axis": axis, **more})
        group, given = mesh.group(axis), self.arguments(call, **more)
        if inline:
            return group.now(call, x, trusted, given, stages=True, owned=owned)
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
        group = params["mesh"].group(params["axis"])
        if not device.communicates or not payload.size or not group.world.uses_nccl:
            made = self.on_host(device.to_numpy(payload), **params)
            return wrap(device.from_numpy(made))
        shape, dtype = self.infer(x, **params)
        work = self.launched(x, Likeness(shape, dtype), params)
        call = self.describe(x.shape, x.dtype, params)
        launch = partial(device.communicate, work, payload, shape, dtype)
        return wrap(group.run_on_gpus(call, launch, False))

    def launched(self, x: Any, out: Any, params: dict[str, Any]) -> Any:
        """What launches it on a GPU, by NCCL."""
        given = {k: v for k, v in params.items() if k not in ("mesh", "axis", "trusted")}
        group = params["mesh"].group(params["axis"])
        return group.on_gpus(self.name).work(self.name, x, out, given)

    def run_batch(self, values: Sequence[Tensor], **params: Any) -> Tensor:
        """Inside vmap: the same collective of all examples, whose axis comes first."""
        if self.moved and by_leading_axis(values[0], params["mesh"]):
            (x,) = values  # the axis of the examples goes last
            out = apply(self, x.moveaxis(0, -1), **params)
            return out.moveaxis(-1, 0)
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
    in_place=True,
)
ALL_EXTREME: Collective = Collective(
    "all_reduce",
    (lambda g, x, out, mesh, axis, how: _tied(g, x, out, mesh, axis),),
    detail=("how",),
    linear=False,
    in_place=True,
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
# What the ranks must have in common beside their collectives: it moves nothing.
STATEMENT: Collective = Collective("statement", (lambda g: g,), detail=("text",))
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

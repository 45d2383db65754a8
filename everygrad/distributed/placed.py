"""Placed tensors: one shape for the whole, and on each rank the part that is here.

The payload of a placed tensor is a `Placed`: a mesh, a placement for each of its axes, and a local
tensor. An op on placed tensors is computed on the local ones, by the rule of its record, and never
communicates; where the rule does not take the placements, the op is refused by name and the refusal
names the `reshard` that would do. Of what every rank has whole (`Replicate`, and plain tensors,
which must be the same on every rank) each takes its own where an op needs shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from everygrad.core.op import Op
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, Wrapped, shared, wrap
from everygrad.dispatch import apply
from everygrad.distributed.placements import (
    Partial,
    Placement,
    Replicate,
    Shard,
    checked_placements,
    extent,
    local_box,
)
from everygrad.distributed.sharding import is_linear, splits_of
from everygrad.errors import PlacementError, ShapeError
from everygrad.ops.record.spec import NoRule
from everygrad.ops.record.splits import Split

_WHOLE = Replicate()
_PARTIAL = Partial()


class Placed(Wrapped):
    """The payload: `value` is the local tensor, `shape` that of the whole."""

    __slots__ = ("mesh", "placements", "value", "whole")
    is_shard = True

    def __init__(
        self, mesh: Any, placements: tuple[Placement, ...], value: Tensor, shape: Shape
    ) -> None:
        self.level = 0
        self.mesh = mesh
        self.placements = placements
        self.value = value
        self.whole = shape

    @property
    def layout(self) -> PlacedLayout:  # type: ignore[override]  # a class attribute elsewhere
        return PlacedLayout(self.mesh, self.placements, self.whole)

    @property
    def inner(self) -> Tensor:
        return self.value

    def beside(self, x: Tensor) -> Tensor:
        return wrap(Placed(self.mesh, (_WHOLE,) * len(self.placements), x, x.shape))

    def stopped(self) -> Any:
        return self  # the tensor inside has no graph of its own

    @property
    def shape(self) -> Shape:
        return self.whole

    @property
    def dtype(self) -> Any:
        return self.value._data.dtype

    @property
    def device(self) -> str:
        return self.value.device

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        # beside a plain gradient, dispatch's fast path takes this for a sign that it does not serve
        raise RuntimeWarning("a placed tensor is no NumPy array")

    __array_ufunc__ = __array__

    def interpret(self, op: Op, inputs: list[Tensor], params: dict[str, Any]) -> Any:
        placed = [t._data for t in inputs if isinstance(t._data, Placed)]
        for other in placed:
            if other.mesh is not self.mesh:
                raise PlacementError(
                    f"{op.name}: inputs on different meshes, {self.mesh} and {other.mesh}"
                )
        communicate = getattr(op, "communicate", None)
        if communicate is not None:
            return communicate(self, **params)
        try:
            return _computed(op, self.mesh, inputs, params)
        except NoRule:
            made: Any = op.portable(*inputs, **params)
            return made._data


class PlacedLayout(NamedTuple):
    """What a placed tensor is beside its part on this rank: a compiled function knows it, and
    computes with the parts."""

    mesh: Any
    placements: tuple[Placement, ...]
    shape: Shape

    def around(self, part: Tensor) -> Placed:
        return Placed(self.mesh, self.placements, part, self.shape)

    def of_gradient(self) -> PlacedLayout:
        """Shards as they are; the gradient of parts that add up is the same for all of them."""
        kept = tuple(_WHOLE if isinstance(p, Partial) else p for p in self.placements)
        return self._replace(placements=kept)

    def fitted(self, g: Tensor) -> Tensor:
        payload = g._data
        held = payload if isinstance(payload, Placed) else self.of_whole(g)
        local = held.value
        names = list(self.mesh.axes)
        for name, have, want in zip(names, held.placements, self.placements, strict=True):
            if have != want and (have != _WHOLE or not isinstance(want, Shard)):
                raise PlacementError(
                    f"jit: the gradient of a result {list(self.shape)} is {have!r} on mesh axis "
                    f"{name!r}, and the compiled backward takes {want!r}; call "
                    f"reshard(g, mesh, {name!r}, {want!r}) first"
                )
        if held.placements != self.placements:
            wanted = dict(zip(names, self.placements, strict=True))
            held_now = dict(zip(names, held.placements, strict=True))
            local = _narrowed(local, self.shape, held_now, wanted, self.mesh)
        return local

    def of_whole(self, x: Tensor) -> Placed:
        return Placed(self.mesh, (_WHOLE,) * len(self.placements), x, x.shape)


class _Level(NamedTuple):
    """What one mesh axis does to an op: the placement of its result and, if it is sharded, its size
    along that axis before."""

    placement: Placement
    size: int


def _computed(op: Op, mesh: Any, inputs: list[Tensor], params: dict[str, Any]) -> Placed:
    """The op on the local tensors, one mesh axis after the other."""
    has = [isinstance(t._data, Placed) for t in inputs]
    local = [t._data.value if isinstance(t._data, Placed) else t for t in inputs]
    shapes = [t.shape for t in inputs]
    levels: list[_Level] = []
    compute = None
    for i, (name, ranks) in enumerate(mesh.axes.items()):
        held = [t._data.placements[i] if p else _WHOLE for t, p in zip(inputs, has, strict=True)]
        if all(h == _WHOLE for h in held):
            levels.append(_Level(_WHOLE, 0))
            continue
        step = _Step(op, name, ranks, shapes, held, params)
        if step.has_partial():
            levels.append(_Level(step.partial(), 0))
            continue
        split = step.split()
        index = mesh.coordinate(name)
        size = 0
        for k, axis in enumerate(split.inputs):
            if axis is None:
                continue
            size = shapes[k][axis]
            start, stop = extent(size, ranks, index)
            if held[k] == _WHOLE:
                local[k] = _cut(local[k], axis, start, stop)
            shapes[k] = (*shapes[k][:axis], stop - start, *shapes[k][axis + 1 :])
        compute = split.compute or compute
        if index:
            for k in split.once:
                local[k] = local[k].new_zeros(local[k].shape)
        if split.out is None:
            levels.append(_Level(_PARTIAL, 0))
            continue
        size = size if split.size is None else split.size
        start, stop = extent(size, ranks, index)
        if split.params is not None:
            params = split.params(params, stop - start)
        levels.append(_Level(Shard(split.out), size))
    out = apply(op, *local, **params) if compute is None else compute(*local, **params)
    shape = out.shape
    for level in reversed(levels):
        if isinstance(level.placement, Shard):
            at = level.placement.axis
            shape = (*shape[:at], level.size, *shape[at + 1 :])
    return Placed(mesh, tuple(level.placement for level in levels), out, shape)


def _cut(t: Tensor, axis: int, start: int, stop: int) -> Tensor:
    cut: Tensor = t[(*(slice(None),) * axis, slice(start, stop))]
    return cut


class _Step(NamedTuple):
    """An op's inputs as one mesh axis sees them."""

    op: Op
    name: str
    ranks: int
    shapes: Sequence[Shape]
    held: Sequence[Placement]
    params: dict[str, Any]

    def has_partial(self) -> bool:
        return any(isinstance(h, Partial) for h in self.held)

    def partial(self) -> Placement:
        """The result of parts that add up: such parts again, where the op is linear in them."""
        parts = [i for i, h in enumerate(self.held) if isinstance(h, Partial)]
        sharded = [i for i, h in enumerate(self.held) if isinstance(h, Shard)]
        if sharded or not is_linear(self.op, parts, len(self.held)):
            if not sharded and self.op.family == "kernel" and self.op.splits is None:
                raise NoRule(self.op.name)
            self.refuse(parts[0], _WHOLE)
        return _PARTIAL

    def split(self) -> Split:
        found = splits_of(self.op, self.shapes, self.params)
        if found is None:
            raise NoRule(self.op.name)
        found = [split for split in found if self.divides(split)]
        for cut in (False, True):  # as it is, or with what is whole cut
            for split in found:
                if not self.misfits(split, cut):
                    return split
        first = next(i for i, h in enumerate(self.held) if isinstance(h, Shard))
        if not found:
            self.refuse(first, _WHOLE)
        nearest = min(found, key=lambda split: len(self.misfits(split, True)))
        which = self.misfits(nearest, True)[0]
        axis = nearest.inputs[which]
        self.refuse(which, _WHOLE if axis is None else Shard(axis))

    def misfits(self, split: Split, cut: bool) -> list[int]:
        """The inputs whose placement is not what a split takes; `cut`: what is whole may be cut."""
        wanted = [_WHOLE if a is None else Shard(a) for a in split.inputs]
        pairs = enumerate(zip(wanted, self.held, strict=True))
        return [i for i, (want, h) in pairs if want != h and not (cut and h == _WHOLE)]

    def divides(self, split: Split) -> bool:
        sizes = [self.shapes[i][a] for i, a in enumerate(split.inputs) if a is not None]
        if split.filled and any(n < self.ranks for n in sizes):
            return False
        return not split.even or all(n % self.ranks == 0 for n in [*sizes, split.size or 0])

    def refuse(self, which: int, placement: Placement) -> NoReturn:
        inputs = self.op.inputs
        name = inputs[which] if which < len(inputs) else f"input {which}"
        shown = ", ".join(
            f"{h!r} of {list(s)}" for h, s in zip(self.held, self.shapes, strict=True)
        )
        raise PlacementError(
            f"{self.op.name}: on mesh axis {self.name!r} it does not take {shown}; "
            f"call reshard({name}, mesh, {self.name!r}, {placement!r}) first"
        )


# --- making and reading placed tensors -----------------------------------------------------------


def _narrowed(
    local: Tensor,
    shape: Shape,
    held: Mapping[str, Placement],
    wanted: Mapping[str, Placement],
    mesh: Any,
) -> Tensor:
    """This rank's part of a tensor of `shape` with the placements `wanted`, taken from its larger
    part with the placements `held`."""
    coordinates = {name: mesh.coordinate(name) for name in mesh.axes}
    have = local_box(shape, held, mesh.axes, coordinates)
    want = local_box(shape, wanted, mesh.axes, coordinates)
    for axis, ((a, b), (start, stop)) in enumerate(zip(have, want, strict=True)):
        if (start, stop) != (a, b):
            local = _cut(local, axis, start - a, stop - a)
    return local


def place(x: Tensor, mesh: Any, placements: Mapping[str, Placement]) -> Tensor:
    """The tensor x, the same on every rank, placed on a mesh: each rank keeps what is its own.

    placements  for each mesh axis by name; axes that are not named are replicated

    >>> import everygrad as eg
    >>> from everygrad.distributed import Mesh, Shard, local_value, place, run_local
    >>> def shard(_=None):
    ...     x = place(eg.arange(6), Mesh({"data": 2}), {"data": Shard(0)})
    ...     return local_value(x).tolist(), x.shape
    >>> run_local(shard, 2)
    [([0, 1, 2], (6,)), ([3, 4, 5], (6,))]
    """
    held = checked_placements("place", mesh, placements, x.ndim)
    if isinstance(shared(x), Placed):
        raise PlacementError("place: this tensor is placed already; use reshard()")
    coordinates = {name: mesh.coordinate(name) for name in mesh.axes}
    local = _narrowed(x.detach(), x.shape, {}, held, mesh)
    for name, placement in held.items():
        if isinstance(placement, Partial) and coordinates[name]:
            local = local.new_zeros(local.shape)  # the first rank has all of it
    made = wrap(Placed(mesh, tuple(held.values()), local, x.shape))
    return made.requires_grad_() if x.requires_grad else made


def from_local(
    x: Tensor, mesh: Any, placements: Mapping[str, Placement], shape: Sequence[int]
) -> Tensor:
    """The tensor of `shape` of which each rank has x: its shard, its copy, or its part of the sum.

    >>> import everygrad as eg
    >>> from everygrad.distributed import Mesh, Partial, from_local, reshard, Replicate, run_local
    >>> def total(_=None):
    ...     mesh = Mesh({"data": 2})
    ...     x = from_local(eg.ones((3,)), mesh, {"data": Partial()}, (3,))
    ...     return eg.distributed.local_value(reshard(x, mesh, "data", Replicate())).tolist()
    >>> run_local(total, 2)
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]
    """
    whole = tuple(shape)
    held = checked_placements("from_local", mesh, placements, len(whole))
    coordinates = {name: mesh.coordinate(name) for name in mesh.axes}
    wanted = tuple(b - a for a, b in local_box(whole, held, mesh.axes, coordinates))
    if wanted != x.shape:
        raise ShapeError(
            f"from_local: rank {mesh.rank} of {whole} with {held} has {wanted}, got {x.shape}"
        )
    made = wrap(Placed(mesh, tuple(held.values()), x.detach(), whole))
    return made.requires_grad_() if x.requires_grad else made


def local_value(x: Tensor) -> Tensor:
    """What this rank has of a placed tensor, unconnected; of a plain tensor all of it."""
    payload = shared(x)
    return payload.value.detach() if isinstance(payload, Placed) else x.detach()


def placements_of(x: Tensor) -> dict[str, Placement]:
    """The placement of a tensor on each mesh axis; empty for a plain tensor."""
    payload = shared(x)
    if not isinstance(payload, Placed):
        return {}
    return dict(zip(payload.mesh.axes, payload.placements, strict=True))

"""From one placement to another: the only place where placed tensors communicate.

Shard     -> Replicate  all_gather           Partial   -> Replicate  all_reduce
Shard     -> Shard      all_to_all           Partial   -> Shard      reduce_scatter
Replicate -> Shard      each keeps its own   Replicate -> Partial    the first has all
"""

from __future__ import annotations

from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor, shared, wrap
from everygrad.dispatch import apply
from everygrad.distributed.collectives import all_gather, all_reduce, all_to_all, reduce_scatter
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.placed import Placed, from_local, local_value
from everygrad.distributed.placements import (
    Partial,
    Placement,
    Replicate,
    Shard,
    checked_placements,
    extent,
)
from everygrad.errors import PlacementError
from everygrad.ops.python.creation import zeros_like
from everygrad.ops.record.families import Kernel
from everygrad.ops.shape.joining import concat


def gather_shards(x: Tensor, mesh: Mesh, axis: str, dim: int, size: int) -> Tensor:
    """The whole of a tensor of `size` along `dim`, of which each rank along `axis` has a shard."""
    ranks = mesh.axes[axis]
    if size % ranks == 0:
        return all_gather(x, mesh, axis, dim=dim)
    widest = -(-size // ranks)
    whole = all_gather(_padded(x, dim, widest), mesh, axis, dim=dim)
    return concat([_part(whole, dim, i * widest, _rows(size, ranks, i)) for i in range(ranks)], dim)


def sum_to_shards(x: Tensor, mesh: Mesh, axis: str, dim: int) -> Tensor:
    """This rank's shard along `dim` of the sum over the ranks along `axis`."""
    ranks, size = mesh.axes[axis], x.shape[dim]
    if size % ranks == 0:
        return reduce_scatter(x, mesh, axis, dim=dim)
    widest = -(-size // ranks)
    spans = [extent(size, ranks, i) for i in range(ranks)]
    parts = [_padded(_part(x, dim, a, b - a), dim, widest) for a, b in spans]
    summed = reduce_scatter(concat(parts, dim), mesh, axis, dim=dim)
    return _part(summed, dim, 0, _rows(size, ranks, mesh.coordinate(axis)))


def _rows(size: int, ranks: int, index: int) -> int:
    start, stop = extent(size, ranks, index)
    return stop - start


def _part(x: Tensor, dim: int, start: int, rows: int) -> Tensor:
    part: Tensor = x[(*(slice(None),) * dim, slice(start, start + rows))]
    return part


def _padded(x: Tensor, dim: int, rows: int) -> Tensor:
    """x with zeros behind it along `dim`."""
    missing = rows - x.shape[dim]
    if not missing:
        return x
    shape = (*x.shape[:dim], missing, *x.shape[dim + 1 :])
    return concat([x, x.new_zeros(shape)], dim)


def _exchanged(x: Tensor, mesh: Mesh, axis: str, shape: Shape, old: int, new: int) -> Tensor:
    """The shard along `new` of what is sharded along `old`; `shape` without this mesh axis."""
    ranks, index = mesh.axes[axis], mesh.coordinate(axis)
    if shape[old] % ranks == 0 and shape[new] % ranks == 0:
        return all_to_all(x, mesh, axis, new, old)
    start, stop = extent(shape[new], ranks, index)
    return _part(gather_shards(x, mesh, axis, old, shape[old]), new, start, stop - start)


def _moved(payload: Placed, mesh: Mesh, axis: str, to: Placement, source: Placement) -> Placed:
    """The payload with another placement on one mesh axis."""
    number = list(mesh.axes).index(axis)
    x, ranks, index = payload.value, mesh.axes[axis], mesh.coordinate(axis)
    shape = _level_shape(payload, mesh, number)
    if isinstance(to, Shard):
        if isinstance(source, Partial):
            x = sum_to_shards(x, mesh, axis, to.axis)
        elif isinstance(source, Shard):
            x = _exchanged(x, mesh, axis, shape, source.axis, to.axis)
        else:
            start, stop = extent(shape[to.axis], ranks, index)
            x = _part(x, to.axis, start, stop - start)
    elif isinstance(to, Replicate):
        if isinstance(source, Partial):
            x = all_reduce(x, mesh, axis)
        else:
            assert isinstance(source, Shard)
            x = gather_shards(x, mesh, axis, source.axis, shape[source.axis])
    else:
        whole = x
        if isinstance(source, Shard):
            whole = gather_shards(x, mesh, axis, source.axis, shape[source.axis])
        x = zeros_like(whole) if index else whole
    placements = (*payload.placements[:number], to, *payload.placements[number + 1 :])
    return Placed(mesh, placements, x, payload.whole)


def _level_shape(payload: Placed, mesh: Mesh, number: int) -> Shape:
    """The shape of what the ranks along mesh axis `number` hold together: the whole, cut by the
    other mesh axes."""
    shape = list(payload.whole)
    for i, (name, ranks) in enumerate(mesh.axes.items()):
        held = payload.placements[i]
        if i != number and isinstance(held, Shard):
            shape[held.axis] = _rows(shape[held.axis], ranks, mesh.coordinate(name))
    return tuple(shape)


class _Reshard(Kernel):
    """The record. The gradient goes back to the placement the input had; that of parts that add up
    is the same for all of them."""

    def __init__(self) -> None:
        super().__init__("reshard", self.of_plain, ("x",), (_back,), linear=(0,))

    def of_plain(self, x: Tensor, mesh: Mesh, axis: str, to: Placement) -> Tensor:
        raise PlacementError(f"reshard: a tensor of shape {x.shape} has no placement; use place()")

    def communicate(self, payload: Placed, mesh: Mesh, axis: str, to: Placement) -> Placed:
        source = payload.placements[list(mesh.axes).index(axis)]
        return payload if source == to else _moved(payload, mesh, axis, to, source)


def _back(g: Tensor, x: Tensor, mesh: Mesh, axis: str, to: Placement) -> Tensor:
    source = x._data.placements[list(mesh.axes).index(axis)]
    wanted = Replicate() if isinstance(source, Partial) else source
    if not isinstance(g._data, Placed):  # the same on every rank
        return g
    return reshard(g, mesh, axis, wanted)


_RESHARD = _Reshard()


def reshard(x: Tensor, mesh: Mesh, axis: str, placement: Placement) -> Tensor:
    """The tensor with another placement on one mesh axis. Its gradient is brought back to the
    placement of x; so resharding to what x has already does nothing but that.

    >>> import everygrad as eg
    >>> from everygrad.distributed import Mesh, Replicate, Shard, local_value, place, reshard
    >>> mesh = Mesh({"data": 1})
    >>> x = place(eg.arange(4), mesh, {"data": Shard(0)})
    >>> local_value(reshard(x, mesh, "data", Replicate())).tolist()
    [0, 1, 2, 3]
    """
    checked_placements("reshard", mesh, {axis: placement}, x.ndim)
    payload = shared(x)
    if not isinstance(payload, Placed):
        raise PlacementError(f"reshard: a tensor of shape {x.shape} has no placement; use place()")
    if payload.mesh is not mesh:
        raise PlacementError(f"reshard: the tensor is on {payload.mesh}, not on {mesh}")
    if isinstance(placement, Partial) and not x.dtype.is_differentiable:
        raise PlacementError(f"reshard: {x.dtype} cannot be Partial; cast it with astype() first")
    return apply(_RESHARD, x, mesh=mesh, axis=axis, to=placement)


def full_value(x: Tensor) -> Tensor:
    """The whole of a placed tensor on every rank, as a plain tensor without a graph.

    >>> import everygrad as eg
    >>> from everygrad.distributed import Mesh, Shard, full_value, place
    >>> full_value(place(eg.arange(4), Mesh({"data": 1}), {"data": Shard(0)})).tolist()
    [0, 1, 2, 3]
    """
    payload = shared(x)
    if not isinstance(payload, Placed):
        return x.detach()
    made = wrap(payload)
    # the last axis that cut an axis of the tensor is put together first
    for name in reversed(list(payload.mesh.axes)):
        made = reshard(made, payload.mesh, name, Replicate())
    return local_value(made)


__all__ = ["from_local", "full_value", "gather_shards", "reshard", "sum_to_shards"]

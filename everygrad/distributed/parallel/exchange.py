"""What passes between a tensor that every rank has and shards of it, where all ranks go on to the
same loss: each is the derivative of another, and the loss counts once, not once for each rank."""

from __future__ import annotations

from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.distributed.collectives import all_reduce
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.placements import extent
from everygrad.distributed.resharding import gather_shards
from everygrad.ops.record.families import Kernel


def _own(x: Tensor, mesh: Mesh, axis: str, dim: int) -> Tensor:
    start, stop = extent(x.shape[dim], mesh.axes[axis], mesh.coordinate(axis))
    part: Tensor = x[(*(slice(None),) * dim, slice(start, stop))]
    return part


_COPY: Kernel = Kernel(
    "copy_to_shards",
    lambda x, mesh, axis: x,
    ("x",),
    (lambda g, mesh, axis: apply(_SUM, g, mesh=mesh, axis=axis),),
    linear=(0,),
)
_SUM: Kernel = Kernel(
    "sum_of_shards",
    lambda x, mesh, axis: all_reduce(x, mesh, axis),
    ("x",),
    (lambda g, mesh, axis: apply(_COPY, g, mesh=mesh, axis=axis),),
    linear=(0,),
)
_GATHER: Kernel = Kernel(
    "gather_shards",
    lambda x, mesh, axis, dim, size: gather_shards(x, mesh, axis, dim, size),
    ("x",),
    (lambda g, mesh, axis, dim: apply(_SPLIT, g, mesh=mesh, axis=axis, dim=dim),),
    linear=(0,),
)
_SPLIT: Kernel = Kernel(
    "split_to_shards",
    _own,
    ("x",),
    (
        lambda g, shape, mesh, axis, dim: apply(
            _GATHER, g, mesh=mesh, axis=axis, dim=dim, size=shape[dim]
        ),
    ),
    linear=(0,),
)


_SHARE: Kernel = Kernel(
    "share_of_mean",
    lambda x, ranks: x,
    ("x",),
    (lambda g, ranks: g * (1.0 / ranks),),
    linear=(0,),
)


def share_of_mean(x: Tensor, ranks: int) -> Tensor:
    """x itself, of which `ranks` make losses whose mean counts: its gradient is their share."""
    return apply(_SHARE, x, ranks=ranks)


def copy_to_shards(x: Tensor, mesh: Mesh, axis: str) -> Tensor:
    """x itself, for layers that have shards of the weights: its gradient is summed over the ranks.

    >>> import everygrad as eg
    >>> from everygrad.distributed.parallel.exchange import copy_to_shards
    >>> copy_to_shards(eg.ones((2,)), eg.distributed.Mesh({"model": 1}), "model")
    tensor([1., 1.])
    """
    return apply(_COPY, x, mesh=mesh, axis=axis)


def sum_of_shards(x: Tensor, mesh: Mesh, axis: str) -> Tensor:
    """The sum of what the ranks have; its gradient is that of each of them."""
    return apply(_SUM, x, mesh=mesh, axis=axis)


def gather_to_all(x: Tensor, mesh: Mesh, axis: str, dim: int, size: int) -> Tensor:
    """The whole of what the ranks have in shards along `dim`, of `size`."""
    return apply(_GATHER, x, mesh=mesh, axis=axis, dim=dim % x.ndim, size=size)


def split_to_shards(x: Tensor, mesh: Mesh, axis: str, dim: int) -> Tensor:
    """This rank's shard along `dim` of what every rank has whole."""
    return apply(_SPLIT, x, mesh=mesh, axis=axis, dim=dim % x.ndim)


def summed_gradient(mesh: Mesh, axis: str) -> Any:
    """A hook of a parameter that every rank has, but uses on a part of the input."""

    def hook(g: Tensor) -> Tensor:
        return all_reduce(g, mesh, axis)

    return hook

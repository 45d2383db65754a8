"""What is asked of all gradients at once, wherever their parts are: a norm, or an overflow."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.distributed.collectives import all_reduce
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.parallel.shard_parameter import ShardParameter, replicas
from everygrad.dtypes import float32
from everygrad.errors import ArgumentError, GradientError
from everygrad.nn.utils.clip_grad import clip_grads_with_norm_
from everygrad.ops.elementwise.basic import isfinite
from everygrad.ops.python.creation import zeros
from everygrad.ops.shape.joining import stack


@no_grad()
def clip_grad_norm_(
    parameters: Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    mesh: Mesh | None = None,
    split_over: Iterable[str] = (),
) -> Tensor:
    """Scale all gradients so that their norm, over the shards of all ranks, is at most `max_norm`;
    returns the norm they had. All ranks of the mesh must call it.

    mesh        where no parameter is a shard, the mesh that they are on
    split_over  mesh axes along which ranks have other parameters, such as that of a pipeline

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> p = eg.nn.Parameter(eg.tensor([3.0, 4.0]))
    >>> p.grad = eg.tensor([3.0, 4.0])
    >>> eg.distributed.clip_grad_norm_([p], 1.0, mesh=mesh)
    tensor(5.)
    """
    if not max_norm >= 0:
        raise ArgumentError(f"clip_grad_norm_: max_norm must not be negative, got {max_norm}")
    if not norm_type > 0:
        raise ArgumentError(f"clip_grad_norm_: norm_type must be above 0, got {norm_type}")
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    mesh = mesh or next((p.mesh for p in given if isinstance(p, ShardParameter)), None)
    if mesh is None:
        raise ArgumentError(
            "clip_grad_norm_: no parameter is a shard; say which mesh they are on, mesh=..., or "
            "use nn.utils.clip_grad_norm_ where every rank has all gradients"
        )
    held = [(p, g) for p in given if (g := p.grad) is not None]
    if norm_type == math.inf:
        local = [g.abs().max() for _, g in held if g.size]
        own = stack(local).max() if local else zeros(())
        total = all_reduce(own, mesh, None, "max")
    else:
        powers = [(g.abs() ** norm_type).sum() / replicas(p, mesh, split_over) for p, g in held]
        own = stack(powers).sum() if powers else zeros((), given[0].dtype if given else "float32")
        total = all_reduce(own, mesh, None) ** (1.0 / norm_type)
    if error_if_nonfinite and not isfinite(total):
        raise GradientError(
            f"clip_grad_norm_: the norm of the gradients is {total.item()}; look for its origin "
            f"with eg.detect_anomaly(), or pass error_if_nonfinite=False"
        )
    clip_grads_with_norm_([p for p, _ in held], max_norm, total)
    return total


class _OtherRanks:
    """What `ShardParameter` tells those who know nothing of ranks."""

    parts = True

    def clip_grad_norm(
        self, parts: Sequence[Tensor], max_norm: float, norm_type: float, check: bool
    ) -> Tensor:
        return clip_grad_norm_(parts, max_norm, norm_type, check)

    def on_any(self, parts: Sequence[Tensor], found: Tensor) -> Tensor:
        meshes = {id(p.mesh): p.mesh for p in parts if isinstance(p, ShardParameter)}
        for mesh in meshes.values():
            found = all_reduce(found.astype(float32), mesh, None, "max") > 0.0
        return found


class OtherStages:
    """What parameters of a pipeline tell those who know nothing of ranks."""

    parts = False

    def __init__(self, mesh: Mesh, axis: str) -> None:
        self.mesh = mesh
        self.axis = axis

    def clip_grad_norm(
        self, parts: Sequence[Tensor], max_norm: float, norm_type: float, check: bool
    ) -> Tensor:
        return clip_grad_norm_(
            parts, max_norm, norm_type, check, mesh=self.mesh, split_over=(self.axis,)
        )

    def on_any(self, parts: Sequence[Tensor], found: Tensor) -> Tensor:
        return all_reduce(found.astype(float32), self.mesh, None, "max") > 0.0


class OtherStagesParts(OtherStages):
    """The same of shards in a pipeline."""

    parts = True


ShardParameter.ranks = _OtherRanks()

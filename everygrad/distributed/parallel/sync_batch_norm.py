"""Batch norms whose statistics are those of the whole batch, not of one rank's rows."""

from __future__ import annotations

from typing import Any, ClassVar

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor, shared
from everygrad.distributed.collectives import all_reduce
from everygrad.distributed.mesh import Mesh
from everygrad.errors import ArgumentError, ShapeError
from everygrad.nn.module import Module
from everygrad.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, _BatchNorm
from everygrad.nn.parameter import Parameter

_KINDS = (BatchNorm1d, BatchNorm2d, BatchNorm3d)


class SyncBatchNorm(_BatchNorm):
    """A batch norm of (batch, channels, ...) over the rows of all ranks along an axis of a mesh.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> eg.distributed.SyncBatchNorm(3, mesh)(eg.randn((4, 3, 2, 2))).shape
    (4, 3, 2, 2)
    """

    ranks: ClassVar[tuple[int, ...]] = (2, 3, 4, 5)
    places: ClassVar[str] = ", ..."

    def __init__(self, num_features: int, mesh: Mesh, axis: str = "data", **options: Any) -> None:
        super().__init__(num_features, **options)
        mesh.coordinate(axis)
        self.mesh = mesh
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        self.check(x)
        axes = (0, *range(2, x.ndim))
        shape = (1, -1, *(1,) * (x.ndim - 2))
        own = x.size // max(1, x.shape[1])
        count = all_reduce(x.detach().new_full((), float(own)), self.mesh, self.axis)
        if self.mesh.axes[self.axis] == 1 and own < 2:
            raise ShapeError(
                f"SyncBatchNorm: training needs more than one value in each channel, got {x.shape}"
            )
        mean = all_reduce(x.sum(axis=axes), self.mesh, self.axis) / count
        centred = x - mean.reshape(shape)
        var = all_reduce((centred * centred).sum(axis=axes), self.mesh, self.axis) / count
        out = centred * (var + self.eps).rsqrt().reshape(shape)
        if self.weight is not None and self.bias is not None:
            out = out * self.weight.reshape(shape) + self.bias.reshape(shape)
        if self.training and self.running_mean is not None:
            self._move(mean.detach(), var.detach() * count / (count - 1.0))
        return out

    def _move(self, mean: Tensor, var: Tensor) -> None:
        """Move the running statistics towards those of this batch."""
        assert self.running_mean is not None
        assert self.running_var is not None
        with no_grad():
            steps = self._next_count()
            share = self._momentum(steps)
            for held, now in ((self.running_mean, mean), (self.running_var, var)):
                held.rebind(shared(held + (now - held) * share), None)
            if steps is not None and self.num_batches_tracked is not None:
                self.num_batches_tracked.rebind(shared(steps), None)


def convert_sync_batchnorm(module: Module, mesh: Mesh, axis: str = "data") -> Module:
    """The module with every batch norm in it replaced by one over all ranks, with the same
    parameters and statistics; a batch norm itself becomes another one.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> model = eg.nn.Sequential(eg.nn.Linear(2, 3), eg.nn.BatchNorm1d(3))
    >>> type(eg.distributed.convert_sync_batchnorm(model, mesh)[1]).__name__
    'SyncBatchNorm'
    """
    if not isinstance(module, Module):
        raise ArgumentError(f"convert_sync_batchnorm: takes a Module, got {type(module).__name__}")
    mesh.coordinate(axis)
    if isinstance(module, _KINDS):
        made = SyncBatchNorm(
            module.num_features,
            mesh,
            axis,
            eps=module.eps,
            momentum=module.momentum,
            affine=module.affine,
            track_running_stats=module.track_running_stats,
        )
        for name, value in vars(module).items():
            if isinstance(value, Parameter) or name in module._buffers:
                setattr(made, name, value)
        made.train(module.training)
        return made
    for name, child in list(module.named_children()):
        setattr(module, name, convert_sync_batchnorm(child, mesh, axis))
    return module

"""Tensor parallel layers: the weights are placed over an axis of a mesh.

A column parallel layer has a shard of the outputs (`Shard(0)` of its weight), a row parallel one of
the inputs (`Shard(1)`) and sums what the ranks make of theirs; a column parallel layer followed by
a row parallel one communicates once each way. With `sequence_dim`, what lies between such pairs is
sharded along the sequence: the layers gather it and scatter it again, and norms in between see
their own stretch (`sequence_parallel`). All ranks compute one loss from one input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from everygrad.core.tensor import Tensor
from everygrad.distributed.collectives import all_gather, all_reduce, reduce_scatter
from everygrad.distributed.mesh import Mesh
from everygrad.distributed.parallel.exchange import (
    copy_to_shards,
    gather_to_all,
    split_to_shards,
    sum_of_shards,
    summed_gradient,
)
from everygrad.distributed.parallel.shard_parameter import Box, ShardParameter, own_memory
from everygrad.distributed.placements import Placement, Replicate, Shard, extent
from everygrad.errors import ArgumentError, PlacementError, ShapeError
from everygrad.nn import functional as F
from everygrad.nn.embedding import Embedding
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.elementwise.basic import where
from everygrad.ops.index.gather import gather
from everygrad.ops.shape.joining import concat

M = TypeVar("M", bound=Module)


def _stretches(what: str, size: int, mesh: Mesh, axis: str, blocks: int) -> list[tuple[int, int]]:
    """Which of `size` rows this rank has: its stretch of each of `blocks` equal blocks."""
    ranks, index = mesh.axes[axis], mesh.coordinate(axis)
    if blocks < 1 or size % blocks:
        raise ArgumentError(f"{what}: {size} features are no {blocks} equal blocks")
    each = size // blocks
    if each < ranks:
        raise ArgumentError(f"{what}: {each} features leave some of {ranks} ranks without any")
    start, stop = extent(each, ranks, index)
    return [(i * each + start, i * each + stop) for i in range(blocks)]


def _sharded(
    p: Parameter, mesh: Mesh, axis: str, dim: int, stretches: Sequence[tuple[int, int]]
) -> ShardParameter:
    """These stretches of a parameter along `dim`."""
    before = (slice(None),) * dim
    parts = [p.detach()[(*before, slice(a, b))] for a, b in stretches]
    here = parts[0] if len(parts) == 1 else concat(parts, dim)
    boxes: list[Box] = [
        tuple(span if i == dim else (0, n) for i, n in enumerate(p.shape)) for span in stretches
    ]
    return ShardParameter(own_memory(here), mesh, (axis,), p.shape, boxes, p.requires_grad)


class ColumnParallelLinear(Module):
    """A Linear layer of which each rank has a shard of the out features.

    blocks         the out features are so many blocks, of which each rank has a shard each: 3 for
                   queries, keys and values in one layer
    gather_output  every rank gets all out features; otherwise its own
    sequence_dim   the input is sharded along this axis, and gathered

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"model": 1})
    >>> eg.distributed.ColumnParallelLinear(3, 4, mesh, "model")(eg.ones((2, 3))).shape
    (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        mesh: Mesh,
        axis: str = "model",
        bias: bool = True,
        blocks: int = 1,
        gather_output: bool = False,
        sequence_dim: int | None = None,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        whole = Linear(in_features, out_features, bias, device, dtype)
        self._take(whole, mesh, axis, blocks, gather_output, sequence_dim)

    @classmethod
    def from_linear(
        cls,
        linear: Linear,
        mesh: Mesh,
        axis: str = "model",
        blocks: int = 1,
        gather_output: bool = False,
        sequence_dim: int | None = None,
    ) -> ColumnParallelLinear:
        """The layer that has its shards of a Linear layer, which is the same on every rank."""
        made = cls.__new__(cls)
        made._take(linear, mesh, axis, blocks, gather_output, sequence_dim)
        return made

    def _take(
        self,
        linear: Linear,
        mesh: Mesh,
        axis: str,
        blocks: int,
        gather_output: bool,
        sequence_dim: int | None,
    ) -> None:
        if gather_output and blocks > 1:
            raise ArgumentError("ColumnParallelLinear: gather_output needs blocks=1")
        stretches = _stretches("ColumnParallelLinear", linear.out_features, mesh, axis, blocks)
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.mesh = mesh
        self.axis = axis
        self.gather_output = gather_output
        self.sequence_dim = sequence_dim
        self.weight = _sharded(linear.weight, mesh, axis, 0, stretches)
        bias = linear.bias
        self.bias = None if bias is None else _sharded(bias, mesh, axis, 0, stretches)

    def forward(self, x: Tensor) -> Tensor:
        if self.sequence_dim is None:
            x = copy_to_shards(x, self.mesh, self.axis)
        else:
            x = all_gather(x, self.mesh, self.axis, dim=self.sequence_dim)
        out: Tensor = F.linear(x, self.weight, self.bias)
        if self.gather_output:
            return gather_to_all(out, self.mesh, self.axis, -1, self.out_features)
        return out

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, here={self.weight.shape[0]}"
        )


class RowParallelLinear(Module):
    """A Linear layer of which each rank has a shard of the in features; the ranks' results add up.

    split_input   every rank is given all in features; otherwise its own
    sequence_dim  the result is scattered along this axis

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"model": 1})
    >>> eg.distributed.RowParallelLinear(4, 3, mesh, "model")(eg.ones((2, 4))).shape
    (2, 3)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        mesh: Mesh,
        axis: str = "model",
        bias: bool = True,
        split_input: bool = False,
        sequence_dim: int | None = None,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        whole = Linear(in_features, out_features, bias, device, dtype)
        self._take(whole, mesh, axis, split_input, sequence_dim)

    @classmethod
    def from_linear(
        cls,
        linear: Linear,
        mesh: Mesh,
        axis: str = "model",
        split_input: bool = False,
        sequence_dim: int | None = None,
    ) -> RowParallelLinear:
        """The layer that has its shard of a Linear layer, which is the same on every rank."""
        made = cls.__new__(cls)
        made._take(linear, mesh, axis, split_input, sequence_dim)
        return made

    def _take(
        self, linear: Linear, mesh: Mesh, axis: str, split_input: bool, sequence_dim: int | None
    ) -> None:
        stretches = _stretches("RowParallelLinear", linear.in_features, mesh, axis, 1)
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.mesh = mesh
        self.axis = axis
        self.split_input = split_input
        self.sequence_dim = sequence_dim
        self.weight = _sharded(linear.weight, mesh, axis, 1, stretches)
        self.bias = linear.bias
        if self.bias is not None and sequence_dim is not None and self.bias.requires_grad:
            self.bias.register_hook(summed_gradient(mesh, axis))

    def forward(self, x: Tensor) -> Tensor:
        if self.split_input:
            x = split_to_shards(x, self.mesh, self.axis, -1)
        part: Tensor = F.linear(x, self.weight)
        if self.sequence_dim is None:
            out = sum_of_shards(part, self.mesh, self.axis)
        else:
            out = reduce_scatter(part, self.mesh, self.axis, dim=self.sequence_dim)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, here={self.weight.shape[1]}"
        )


class ParallelEmbedding(Module):
    """An Embedding of which each rank has a shard of the rows.

    sequence_dim  the result is scattered along this axis

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"model": 1})
    >>> eg.distributed.ParallelEmbedding(10, 4, mesh, "model")(eg.tensor([1, 2])).shape
    (2, 4)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mesh: Mesh,
        axis: str = "model",
        sequence_dim: int | None = None,
        device: str = "cpu",
        dtype: Any = None,
    ) -> None:
        super().__init__()
        whole = Embedding(num_embeddings, embedding_dim, device=device, dtype=dtype)
        self._take(whole, mesh, axis, sequence_dim)

    @classmethod
    def from_embedding(
        cls, embedding: Embedding, mesh: Mesh, axis: str = "model", sequence_dim: int | None = None
    ) -> ParallelEmbedding:
        """The layer that has its shard of an Embedding, which is the same on every rank."""
        if embedding.max_norm is not None or embedding.padding_idx is not None:
            raise ArgumentError("ParallelEmbedding: takes no max_norm and no padding_idx")
        made = cls.__new__(cls)
        made._take(embedding, mesh, axis, sequence_dim)
        return made

    def _take(self, embedding: Embedding, mesh: Mesh, axis: str, sequence_dim: int | None) -> None:
        rows = embedding.num_embeddings
        stretches = _stretches("ParallelEmbedding", rows, mesh, axis, 1)
        self.num_embeddings = rows
        self.embedding_dim = embedding.embedding_dim
        self.mesh = mesh
        self.axis = axis
        self.sequence_dim = sequence_dim
        (self.start, self.stop), *_ = stretches
        self.weight = _sharded(embedding.weight, mesh, axis, 0, stretches)

    def forward(self, index: Tensor) -> Tensor:
        here = (index >= self.start) & (index < self.stop)
        rows: Tensor = F.embedding(where(here, index - self.start, 0), self.weight)
        found = where(here.expand_dims(-1), rows, 0.0)
        if self.sequence_dim is None:
            return sum_of_shards(found, self.mesh, self.axis)
        return reduce_scatter(found, self.mesh, self.axis, dim=self.sequence_dim)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, here={self.start}:{self.stop}"


def parallel_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    mesh: Mesh,
    axis: str = "model",
    reduction: str = "mean",
    classes: int | None = None,
) -> Tensor:
    """The cross entropy of scores (..., classes) whose classes are sharded over a mesh axis, as a
    column parallel layer gives them; labels (...) are the same on every rank. `classes`: how many
    there are on all ranks, where they do not divide.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"model": 1})
    >>> loss = eg.distributed.parallel_cross_entropy(eg.zeros((2, 4)), eg.tensor([0, 3]), mesh)
    >>> round(loss.item(), 4)
    1.3863
    """
    if reduction not in ("mean", "sum", "none"):
        raise ArgumentError(
            f'parallel_cross_entropy: reduction must be "mean", "sum" or "none", got {reduction!r}'
        )
    ranks = mesh.axes[axis]
    count = logits.shape[-1] * ranks if classes is None else classes
    start, stop = extent(count, ranks, mesh.coordinate(axis))
    if stop - start != logits.shape[-1]:
        raise ShapeError(
            f"parallel_cross_entropy: of {count} classes rank {mesh.coordinate(axis)} of {ranks} "
            f"has {stop - start}, got {logits.shape[-1]} scores; pass classes="
        )
    highest = all_reduce(logits.detach().max(axis=-1, keepdims=True), mesh, axis, "max")
    shifted = logits - highest
    total = sum_of_shards(shifted.exp().sum(axis=-1), mesh, axis)
    here = (labels >= start) & (labels < start + logits.shape[-1])
    place = where(here, labels - start, 0).expand_dims(-1)
    found = gather(shifted, place, axis=logits.ndim - 1).squeeze(-1)
    target = sum_of_shards(where(here, found, 0.0), mesh, axis)
    losses = total.log() - target
    if reduction == "none":
        return losses
    made: Tensor = losses.mean() if reduction == "mean" else losses.sum()
    return made


def sequence_parallel(module: M, mesh: Mesh, axis: str = "model") -> M:
    """A norm (or any module that looks at one place of a sequence at a time) whose input is sharded
    along the sequence: the gradients of its parameters are summed over the ranks.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"model": 1})
    >>> eg.distributed.sequence_parallel(eg.nn.LayerNorm(4), mesh)(eg.ones((2, 4))).shape
    (2, 4)
    """
    mesh.coordinate(axis)
    for p in module.parameters():
        if p.requires_grad:
            p.register_hook(summed_gradient(mesh, axis))
    return module


def parallelize(
    module: M, mesh: Mesh, axis: str, weights: Mapping[str, Placement | tuple[Placement, int]]
) -> M:
    """Give the weights of layers placements, and so make them parallel layers; returns the module.

    weights  by name of the layer, in which "*" stands for anything: `Shard(0)` makes a Linear
             column parallel and an Embedding parallel, `Shard(1)` makes a Linear row parallel; with
             a number beside it the out features are so many blocks

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"model": 1})
    >>> model = eg.nn.Sequential(eg.nn.Linear(3, 8), eg.nn.ReLU(), eg.nn.Linear(8, 2))
    >>> weights = {"0": eg.distributed.Shard(0), "2": eg.distributed.Shard(1)}
    >>> eg.distributed.parallelize(model, mesh, "model", weights)(eg.ones((5, 3))).shape
    (5, 2)
    """
    mesh.coordinate(axis)
    chosen: dict[str, Module] = {}
    homes = dict(module.named_modules())
    for pattern, given in weights.items():
        placement, blocks = given if isinstance(given, tuple) else (given, 1)
        names = [name for name in homes if name and fnmatchcase(name, pattern)]
        if not names:
            raise ArgumentError(f"parallelize: no layer is called {pattern!r}")
        for name in names:
            chosen[name] = _parallel(name, homes[name], placement, blocks, mesh, axis)
    for name, made in chosen.items():
        parent, _, last = name.rpartition(".")
        setattr(homes[parent], last, made)
    return module


def _parallel(
    name: str, layer: Module, placement: Placement, blocks: int, mesh: Mesh, axis: str
) -> Module:
    """The parallel layer in place of a layer."""
    if isinstance(placement, Replicate):
        return layer
    if isinstance(layer, Linear) and placement == Shard(0):
        return ColumnParallelLinear.from_linear(layer, mesh, axis, blocks)
    if isinstance(layer, Linear) and placement == Shard(1):
        return RowParallelLinear.from_linear(layer, mesh, axis)
    if isinstance(layer, Embedding) and placement == Shard(0):
        return ParallelEmbedding.from_embedding(layer, mesh, axis)
    raise PlacementError(
        f"parallelize: {name} is a {type(layer).__name__}, whose weight cannot be {placement!r}; "
        f"Linear takes Shard(0) and Shard(1), Embedding Shard(0)"
    )

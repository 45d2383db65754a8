"""Strided memory as a C-contiguous buffer, seen through slices and permutations.

Compiled functions read buffers in C order. A tensor of PyTorch with other strides is such a buffer
too: sorted by stride, its axes are those of a buffer, some of them only in part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import is_row_major
from everygrad.core.tensor import Tensor
from everygrad.ops.shape.movement import broadcast_to, permute_dims, reshape


class Layout(NamedTuple):
    """How a tensor of `shape` lies in a buffer of the shape `buffer`.

    `order`: the tensor's axes as they come in memory, without those of size 1 and those that
    repeat (stride 0). `dense`: nothing of the buffer is left out, and nothing repeats.
    """

    shape: Shape
    buffer: Shape
    order: Shape
    dense: bool

    @property
    def plain(self) -> bool:
        """Whether the tensor is its buffer. Equal shapes do not say so: a square may lie
        transposed, or repeat as many elements as it has."""
        return self.dense and self.buffer == self.shape and [*self.order] == sorted(self.order)

    def restored(self, buffer: Tensor) -> Tensor:
        """The tensor, as a view of its buffer."""
        if self.plain:
            return buffer
        sizes = [self.shape[axis] for axis in self.order]
        if self.dense:
            part = reshape(buffer, tuple(sizes))
        else:
            part = reshape(buffer[(*(slice(n) for n in sizes), 0)], tuple(sizes))
        ranks = sorted(range(len(sizes)), key=self.order.__getitem__)
        kept = {axis: self.shape[axis] for axis in self.order}
        out = permute_dims(part, tuple(ranks))
        out = reshape(out, tuple(kept.get(axis, 1) for axis in range(len(self.shape))))
        return broadcast_to(out, self.shape)

    def arranged(self, x: Tensor) -> Tensor:
        """The buffer of a dense tensor."""
        if self.plain:
            return x
        rest = [axis for axis in range(len(self.shape)) if axis not in self.order]
        return reshape(permute_dims(x, (*self.order, *rest)), self.buffer)


def layout_of(shape: Sequence[int], strides: Sequence[int]) -> Layout | None:
    """The buffer that memory with these strides (in elements) is; None where elements overlap, or
    lie in no buffer of this rank: such memory must be copied."""
    shape = tuple(shape)
    if not size_of(shape) or is_row_major(shape, tuple(strides)):
        return Layout(shape, shape, tuple(range(len(shape))), True)
    moving = [axis for axis, n in enumerate(shape) if n > 1 and strides[axis]]
    repeats = any(n > 1 and not s for n, s in zip(shape, strides, strict=True))
    order = tuple(sorted(moving, key=lambda axis: -strides[axis]))
    if not order:  # one element, repeated
        return Layout(shape, (1,), (), False)
    sizes = [shape[axis] for axis in order]
    steps = [strides[axis] for axis in order]
    inner = [outer // step for outer, step in pairwise(steps)]
    for outer, step, n in zip(steps, steps[1:], sizes[1:], strict=False):
        if outer % step or outer < n * step:
            return None
    dense = not repeats and inner == sizes[1:] and steps[-1] == 1
    buffer = (sizes[0], *inner)
    return Layout(shape, buffer if dense else (*buffer, steps[-1]), order, dense)

"""A parameter of which each rank has a part, and which part that is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.distributed.mesh import Mesh
from everygrad.nn.parameter import OtherRanks, Parameter

Box = tuple[tuple[int, int], ...]  # a start and a stop along each axis


class ShardParameter(Parameter):
    """A part of a parameter.

    mesh    the mesh, and `axes` those of its axes along which ranks have different parts
    whole   the shape of the parameter
    boxes   the elements that are here, in their order: stretches of each axis of the whole. Where
            the tensor has more elements than they, those behind them are padding
    """

    __slots__ = ("axes", "boxes", "mesh", "whole")
    ranks: OtherRanks | None = None  # what all who have a part of a parameter do together

    def __init__(
        self,
        data: Tensor,
        mesh: Mesh,
        axes: Sequence[str],
        whole: Shape,
        boxes: Sequence[Box],
        requires_grad: bool = True,
    ) -> None:
        super().__init__(data, requires_grad)
        self.mesh = mesh
        self.axes = tuple(axes)
        self.whole = tuple(whole)
        self.boxes = tuple(boxes)
        self.others = ShardParameter.ranks

    @property
    def ndim(self) -> int:
        """The number of axes of the whole parameter: what is chosen by it is chosen as on one
        process. What is here may be a stretch of the elements, a vector."""
        return len(self.whole)

    def __copy__(self) -> ShardParameter:
        return ShardParameter(
            self, self.mesh, self.axes, self.whole, self.boxes, self.requires_grad
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardParameter:
        made = self.__copy__()
        made.grad = None if self.grad is None else self.grad.detach().clone()
        return made


def own_memory(x: Tensor) -> Tensor:
    """The same value in memory of its own: a view, which is what `clone` gives, would keep all that
    it is a view of, and an optimiser would go on writing there."""
    return x.detach() * 1


def whole_box(shape: Shape) -> Box:
    """All of a tensor."""
    return tuple((0, n) for n in shape)


def box_shape(box: Box) -> Shape:
    return tuple(b - a for a, b in box)


def box_size(box: Box) -> int:
    return prod(box_shape(box))


def stretch_boxes(box: Box, start: int, stop: int) -> list[Box]:
    """Elements `start` to `stop` of a box, counted row by row, as boxes in the same order.

    >>> from everygrad.distributed.parallel.shard_parameter import stretch_boxes
    >>> stretch_boxes(((0, 3), (0, 4)), 2, 9)
    [((0, 1), (2, 4)), ((1, 2), (0, 4)), ((2, 3), (0, 1))]
    """
    if start >= stop:
        return []
    if not box or (start, stop) == (0, box_size(box)):
        return [box]
    low = box[0][0]
    row = box_size(box[1:])
    first, last = start // row, (stop - 1) // row
    if first == last:
        inner = stretch_boxes(box[1:], start - first * row, stop - first * row)
        return [((low + first, low + first + 1), *rest) for rest in inner]
    made: list[Box] = []
    if start % row:
        inner = stretch_boxes(box[1:], start - first * row, row)
        made += [((low + first, low + first + 1), *rest) for rest in inner]
        first += 1
    full = stop // row
    if full > first:
        made.append(((low + first, low + full), *box[1:]))
    if stop % row:
        inner = stretch_boxes(box[1:], 0, stop - full * row)
        made += [((low + full, low + full + 1), *rest) for rest in inner]
    return made


def stretch_of_all(boxes: Sequence[Box], start: int, stop: int) -> list[Box]:
    """Elements `start` to `stop` of boxes, one behind the other."""
    made: list[Box] = []
    at = 0
    for box in boxes:
        size = box_size(box)
        made += stretch_boxes(box, max(0, start - at), min(size, stop - at))
        at += size
    return made


def replicas(p: Tensor, mesh: Mesh, split_over: Iterable[str] = ()) -> int:
    """How many ranks of the mesh have the same elements of a parameter."""
    axes = p.axes if isinstance(p, ShardParameter) else ()
    return prod(n for name, n in mesh.axes.items() if name not in axes and name not in split_over)

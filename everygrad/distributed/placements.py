"""Where the elements of a tensor lie along one mesh axis: in shards, on every rank, or as parts
that add up. Shards are as even as they can be: the first ranks have one element more where the size
does not divide, and a size smaller than the number of ranks leaves the last ones empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everygrad.core.shapes import Shape
from everygrad.errors import PlacementError


class Placement:
    """What a tensor is along one mesh axis: `Shard`, `Replicate` or `Partial`."""

    __slots__ = ()


@dataclass(frozen=True)
class Shard(Placement):
    """Each rank has its stretch of `axis`.

    >>> from everygrad.distributed import Shard
    >>> Shard(0)
    Shard(0)
    """

    axis: int

    def __post_init__(self) -> None:
        if isinstance(self.axis, bool) or not isinstance(self.axis, int) or self.axis < 0:
            raise PlacementError(
                f"Shard: axis must be an integer from 0 up, counted from the front, "
                f"got {self.axis!r}"
            )

    def __repr__(self) -> str:
        return f"Shard({self.axis})"


@dataclass(frozen=True)
class Replicate(Placement):
    """Each rank has all of it.

    >>> from everygrad.distributed import Replicate
    >>> Replicate() == Replicate()
    True
    """

    def __repr__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True)
class Partial(Placement):
    """The value is the sum of what the ranks have.

    >>> from everygrad.distributed import Partial
    >>> Partial()
    Partial('sum')
    """

    combine: str = "sum"

    def __post_init__(self) -> None:
        if self.combine != "sum":
            raise PlacementError(f"Partial: combine must be 'sum', got {self.combine!r}")

    def __repr__(self) -> str:
        return f"Partial({self.combine!r})"


def extent(size: int, ranks: int, index: int) -> tuple[int, int]:
    """The stretch, from start to stop, of an axis of `size` that rank `index` of `ranks` has.

    >>> from everygrad.distributed import extent
    >>> [extent(7, 3, i) for i in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    share, more = divmod(size, ranks)
    start = index * share + min(index, more)
    return start, start + share + (index < more)


def local_box(
    shape: Shape,
    placements: Mapping[str, Placement],
    sizes: Mapping[str, int],
    coordinates: Mapping[str, int],
) -> tuple[tuple[int, int], ...]:
    """The stretch of each axis of a tensor of `shape` that the rank at `coordinates` has. An axis
    that several mesh axes shard is split by the first of them, its stretches by the next."""
    box = [(0, n) for n in shape]
    for name, placement in placements.items():
        if isinstance(placement, Shard):
            start, stop = box[placement.axis]
            at = extent(stop - start, sizes[name], coordinates[name])
            box[placement.axis] = (start + at[0], start + at[1])
    return tuple(box)


def checked_placements(
    what: str, mesh: Any, placements: Mapping[str, Placement], ndim: int | None = None
) -> dict[str, Placement]:
    """One placement for each mesh axis, in their order; axes that are not named are replicated."""
    unknown = [name for name in placements if name not in mesh.axes]
    if unknown:
        raise PlacementError(
            f"{what}: the mesh has no axis {unknown[0]!r}; it has {', '.join(mesh.axes)}"
        )
    for name, placement in placements.items():
        if not isinstance(placement, Placement):
            raise PlacementError(
                f"{what}: the placement on mesh axis {name!r} must be Shard(axis), Replicate() or "
                f"Partial(), got {placement!r}"
            )
        if isinstance(placement, Shard) and ndim is not None and placement.axis >= ndim:
            raise PlacementError(
                f"{what}: {placement} on mesh axis {name!r}: the tensor has {ndim} axes"
            )
    return {name: placements.get(name, Replicate()) for name in mesh.axes}

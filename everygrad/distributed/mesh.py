"""A mesh: the ranks as the places of an array whose axes have names."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from math import prod
from typing import Any

from everygrad.distributed.background import Background
from everygrad.distributed.group import Group
from everygrad.distributed.world import init, world
from everygrad.errors import ArgumentError


class Mesh:
    """All ranks as an array with named axes; the last axis has neighbouring ranks.

    axes     sizes by name; their product is the number of ranks
    carrier  as `init` takes it, where the program has not called that

    Every rank must make the same meshes in the same order.

    >>> import everygrad as eg
    >>> mesh = eg.distributed.Mesh({"data": 1})
    >>> mesh.size, mesh.rank, mesh.coordinate("data"), mesh.ranks_along("data")
    (1, 0, 0, (0,))
    """

    def __init__(self, axes: Mapping[str, int], carrier: str | None = None) -> None:
        if carrier is not None:
            init(carrier)
        own = self._world = world()
        self.axes = dict(axes)
        self.rank = own.rank
        self.size = own.size
        self._channel = ""
        own.meshes += 1
        self.number = own.meshes
        entry = own.ring.begin(f"{self!r}")
        own.everyone.guarded(entry, lambda: own.everyone.agree(f"{self!r}", entry))
        self._check()
        sizes = list(self.axes.values())
        strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
        self._coordinates = {
            name: self.rank // stride % size
            for (name, size), stride in zip(self.axes.items(), strides, strict=True)
        }
        self._strides = dict(zip(self.axes, strides, strict=True))
        self._groups: dict[str | None, Group] = {}

    def _check(self) -> None:
        """Raise, on all ranks alike since all were given the same."""
        if not self.axes:
            raise ArgumentError('Mesh: needs an axis, such as {"data": 4}')
        for name, size in self.axes.items():
            if not isinstance(name, str) or not name:
                raise ArgumentError(f"Mesh: the names of axes are strings, got {name!r}")
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ArgumentError(f"Mesh: axis {name!r} needs a size from 1 on, got {size!r}")
        count = prod(self.axes.values())
        if count != self.size:
            raise ArgumentError(
                f"Mesh: {self.axes} has {count} places and there are {self.size} ranks; the sizes "
                f"of its axes must multiply to {self.size}, or start {count} ranks"
            )

    def _axis(self, axis: str) -> str:
        if axis not in self.axes:
            raise ArgumentError(f"Mesh: no axis {axis!r}; it has {', '.join(map(repr, self.axes))}")
        return axis

    def coordinate(self, axis: str) -> int:
        """Where this rank is along an axis."""
        return self._coordinates[self._axis(axis)]

    def ranks_along(self, axis: str) -> tuple[int, ...]:
        """The ranks that differ from this one along an axis alone, in order."""
        stride = self._strides[self._axis(axis)]
        first = self.rank - self._coordinates[axis] * stride
        return tuple(first + i * stride for i in range(self.axes[axis]))

    def group(self, axis: str | None) -> Group:
        """These ranks as a group that communicates; of None, all ranks of the mesh."""
        found = self._groups.get(axis)
        if found is None:
            ranks = tuple(range(self.size)) if axis is None else self.ranks_along(axis)
            name = f"{self!r}.{axis or 'all axes'}"
            found = self._groups[axis] = self._world.group(name, ranks)
            found.is_channel = bool(self._channel)
        return found

    @property
    def uses_nccl(self) -> bool:
        """Whether GPUs talk to each other directly."""
        return self._world.uses_nccl

    @property
    def background(self) -> Background:
        """This rank's communication thread."""
        return self._world.background

    def channel(self, name: str) -> Mesh:
        """The same ranks with groups of their own: what is said there may overlap what is said
        here. Every rank must ask for the same.

        >>> import everygrad as eg
        >>> eg.distributed.Mesh({"data": 1}).channel("gradients").axes
        {'data': 1}
        """
        made = copy(self)
        made._groups = {}
        made._channel = f"{self._channel}:{name}"
        return made

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.axes.items())
        return f"Mesh{self.number}({sizes}){self._channel}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Mesh:
        return self

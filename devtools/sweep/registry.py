"""Sections: what draws cases and checks them. One more is one more entry of SECTIONS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, Protocol


class Context(NamedTuple):
    """Where and how large."""

    device: str
    largest: int  # elements of the largest arrays


class Case(Protocol):
    """Something that can be checked, and kept."""

    op: str

    def title(self) -> str:
        """One line for who reads the list of what failed."""
        ...

    def kept(self) -> dict[str, Any]:
        """What `Section.again` makes the same case from; JSON."""
        ...

    def check(self) -> list[str]:
        """Every difference, one line each; none where all is as it should be."""
        ...


class Section(Protocol):
    """A kind of cases."""

    weight: float  # how many of its cases are drawn, beside other sections; below 0.25, not in
    # every round of all sections, and then by a number that counts its cases
    generators: Sequence[str]  # modules of the backends whose numbers its shapes are drawn around

    def serves(self, device: str) -> bool:
        """Whether a device has anything of it."""
        ...

    def draw(self, seed: int, context: Context) -> Case:
        """The case of a seed: the same for the same numbers at which generators change."""
        ...

    def again(self, kept: dict[str, Any], context: Context) -> Case:
        """A case that was kept."""
        ...


_MODULES = (
    "products",
    "convolutions",
    "pooling",
    "attention",
    "reductions",
    "scans",
    "ordering",
    "indexing",
    "movement",
    "resampling",
    "rows",
    "elementwise",
    "creation",
    "randoms",
    "optimisers",
    "linalg",
    "factorisations",
    "sequences",
    "complexes",
    "empties",
    "chains",
)


def _of_makers(name: str) -> Callable[[], Section]:
    return lambda: import_module(f"devtools.sweep.makers.{name}").SECTION


SECTIONS: dict[str, Callable[[], Section]] = {
    **{name: _of_makers(name) for name in _MODULES},
    "networks": lambda: import_module("devtools.sweep.networks.section").SECTION,
}

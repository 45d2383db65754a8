"""Checks cases one by one: what a worker process, a replay and the tests share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from devtools.sweep.registry import SECTIONS, Context, Section


class Outcome(NamedTuple):
    """One checked case."""

    section: str
    seed: int
    op: str
    title: str
    kept: dict[str, Any]
    differences: list[str]


@cache
def section_of(name: str) -> Section:
    return SECTIONS[name]()


def order(names: Sequence[str]) -> list[str]:
    """Sections in turn, each as often as its weight says."""
    return [n for n in names for _ in range(max(1, round(2 * section_of(n).weight)))]


def drawn(names: Sequence[str], start: int, context: Context) -> Iterator[tuple[str, int, Any]]:
    """Cases without end: section, seed, case."""
    turns = order(names)
    seed = start
    while True:
        name = turns[seed % len(turns)]
        yield name, seed, section_of(name).draw(seed, context)
        seed += 1


def checked(name: str, seed: int, case: Any) -> Outcome:
    return Outcome(name, seed, case.op, case.title(), case.kept(), case.check())

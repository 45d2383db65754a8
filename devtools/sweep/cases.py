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


def _every(name: str) -> int:
    """In how many rounds a section has one turn."""
    return max(1, round(1 / (2 * section_of(name).weight)))


def order(names: Sequence[str]) -> list[str]:
    """Sections in turn, each as often as its weight says."""
    return [n for n in names for _ in range(max(1, round(2 * section_of(n).weight)))]


def drawn(names: Sequence[str], start: int, context: Context) -> Iterator[tuple[str, int, Any]]:
    """Cases without end: section, seed, case. A rare section's turn is the next one's in all rounds
    but one of `_every`."""
    names = [n for n in names if section_of(n).serves(context.device)]
    if not names:
        raise ValueError(f"{context.device} has nothing of these sections")
    turns = order(names)
    often = [n for n in turns if _every(n) == 1] or turns
    seed = start
    while True:
        turn, number = seed // len(turns), seed
        name = turns[seed % len(turns)]
        if _every(name) > 1:
            if len(names) > 1 and turn % _every(name):
                name = often[turn % len(often)]
            else:
                number = turn // _every(name)  # so that its cases come one after the other
        yield name, seed, section_of(name).draw(number, context)
        seed += 1


def checked(name: str, seed: int, case: Any) -> Outcome:
    return Outcome(name, seed, case.op, case.title(), case.kept(), case.check())

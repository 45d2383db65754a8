"""Names that differ between two sides, each with the nearest one of the other side."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_COMPARED = 20_000  # pairs of names, some tenths of a second


def differences(missing: Sequence[str], unexpected: Sequence[str]) -> list[str]:
    """What is missing and what is unexpected, all of it, as parts of an error message.

    >>> differences(["0.weight"], ["0.weights"])
    ['missing: 0.weight (nearest: 0.weights)', 'unexpected: 0.weights']
    >>> differences([], ["x"])
    ['unexpected: x']
    """
    found = []
    if missing:
        found.append("missing: " + ", ".join(_with_nearest(missing, unexpected)))
    if unexpected:
        found.append("unexpected: " + ", ".join(unexpected))
    return found


def nearest(name: str, among: Iterable[str]) -> str | None:
    """The name that is most like this one, if any is.

    >>> nearest("wieght", ["bias", "weight"])
    'weight'
    """
    close = difflib.get_close_matches(name, [*among], n=1, cutoff=0.6)
    return close[0] if close else None


def _with_nearest(names: Sequence[str], among: Sequence[str]) -> list[str]:
    shown = []
    looked_up = _COMPARED // max(1, len(among))
    for i, name in enumerate(names):
        close = nearest(name, among) if among and i < looked_up else None
        shown.append(name if close is None else f"{name} (nearest: {close})")
    return shown

"""Names that are not there, answered with the nearest that are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

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
    return next(iter(_close(name, among, 1)), None)


def no_attribute(module: str, name: str, known: Iterable[str], cure: str = "") -> AttributeError:
    """The error for a name that a module does not have: the cure if one is known, else what is
    nearest.

    >>> no_attribute("eg", "cumsom", ["cumsum", "exp"])
    AttributeError("eg has no 'cumsom'; the nearest is 'cumsum'")
    >>> no_attribute("transforms", "Affine", ["AbsTransform", "AffineTransform"])
    AttributeError("transforms has no 'Affine'; the nearest is 'AffineTransform'")
    """
    if name.startswith("__"):  # Python asks for these itself
        return AttributeError(f"{module} has no {name!r}")
    near = "" if cure else _nearest_in_words(name, known)
    return AttributeError(f"{module} has no {name!r}{cure or near}")


def answering(module: str) -> Callable[[str], Any]:
    """A module's `__getattr__`: a name that is not there is answered with the nearest that is.

    >>> answering("everygrad.core.nearest")("neerest")
    Traceback (most recent call last):
    AttributeError: everygrad.core.nearest has no 'neerest'; the nearest is 'nearest'
    """

    def missing(name: str) -> Any:
        raise no_attribute(module, name, vars(sys.modules[module]))

    return missing


def _nearest_in_words(name: str, known: Iterable[str]) -> str:
    public = [n for n in known if not n.startswith("_")]
    longer = sorted((n for n in public if n.lower().startswith(name.lower())), key=len)
    best = [repr(n) for n in dict.fromkeys([*_close(name, public, 2), *longer])][:2]
    if not best:
        return ""
    return f"; the nearest {'is' if len(best) == 1 else 'are'} {' and '.join(best)}"


def _close(name: str, among: Iterable[str], count: int) -> list[str]:
    difflib = import_module("difflib")  # only a mistake pays for it
    names = {n.lower(): n for n in among}
    found = difflib.get_close_matches(name.lower(), list(names), n=count, cutoff=0.6)
    return [names[n] for n in found]


def _with_nearest(names: Sequence[str], among: Sequence[str]) -> list[str]:
    shown = []
    looked_up = _COMPARED // max(1, len(among))
    for i, name in enumerate(names):
        close = nearest(name, among) if among and i < looked_up else None
        shown.append(name if close is None else f"{name} (nearest: {close})")
    return shown

"""Whether anyone else holds an object: CPython's reference counts, read in one place.

A count includes the references of whoever asks. So each question is calibrated: asked once, in the
same words, of an object that surely has one owner. Free-threaded builds defer and split counts:
there no object is ever known to be ours alone, and nothing is written in place.
"""

from __future__ import annotations

import sys
from sys import getrefcount as refcount

__all__ = ["RELIABLE", "calibrated", "calls_are_hooked", "refcount"]

RELIABLE: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
_NEVER = -(1 << 30)  # no count is as small


def _handed_on(held: object) -> int:
    return refcount(held)


def calls_are_hooked() -> bool:
    """Whether another tool runs Python's frames, as `torch.compile` does while it looks at them: a
    call then holds its arguments once more, and counts are larger by that."""
    held = object()
    return _handed_on(held) - refcount(held) > 1


def calibrated(count: int) -> int:
    """What `refcount` says of an object with one owner, to compare others with. A count that was
    taken under a hook would be too large without it: then nothing is known to be ours alone."""
    return count if RELIABLE and not calls_are_hooked() else _NEVER

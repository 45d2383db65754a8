"""Whether anyone else holds an object: CPython's reference counts, read in one place.

A count includes the references of whoever asks. So each question is calibrated: asked once, in the
same words, of an object that surely has one owner. Free-threaded builds defer and split counts:
there no object is ever known to be ours alone, and nothing is written in place.
"""

from __future__ import annotations

import sys
from sys import getrefcount as refcount

__all__ = ["RELIABLE", "calibrated", "refcount"]

RELIABLE: bool = getattr(sys, "_is_gil_enabled", lambda: True)()
_NEVER = -(1 << 30)  # no count is as small


def calibrated(count: int) -> int:
    """What `refcount` says of an object with one owner, to compare others with."""
    return count if RELIABLE else _NEVER

"""Settings: read once from the environment, changed by attributes."""

from __future__ import annotations

import os


class Config:
    """The values in force. `eg.config` is the one instance.

    native_threshold  above this many elements an eager CPU op uses a compiled kernel instead of
                      NumPy: below it, NumPy's call costs less than ours
    fast_limit        up to this many elements the door takes its fast path; -1 while something
                      (`find_nan`) must see every op
    """

    def __init__(self) -> None:
        self._watched = 0
        self._native_threshold = int(os.environ.get("EVERYGRAD_NATIVE_THRESHOLD", "16384"))
        self.fast_limit = self._native_threshold

    @property
    def native_threshold(self) -> int:
        return self._native_threshold

    @native_threshold.setter
    def native_threshold(self, value: int) -> None:
        self._native_threshold = value
        self.watch(0)

    def watch(self, change: int) -> None:
        """One more (+1) or one fewer (-1) who must see every op."""
        self._watched += change
        self.fast_limit = -1 if self._watched else self._native_threshold


config = Config()

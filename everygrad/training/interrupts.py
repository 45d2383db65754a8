"""Ctrl-C while training: the first ends the run behind the current step, the second ends it now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class Interrupts:
    """A block in which the first SIGINT sets `requested` and the second raises KeyboardInterrupt.

    Python delivers signals to the main thread alone: elsewhere, and where something else than
    Python handles SIGINT, the block changes nothing. Its end puts the handler back.
    """

    def __init__(self, announce: Callable[[], object] | None = None) -> None:
        self.requested = False
        self._announce = announce
        self._before: Any = None
        self._installed = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not None:  # None: installed from outside Python, not to be put back
                signal.signal(signal.SIGINT, self._handle)
                self._installed = True
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._put_back()
            raise KeyboardInterrupt
        self.requested = True
        if self._announce is not None:
            self._announce()

    def _put_back(self) -> None:
        if self._installed:
            self._installed = False
            signal.signal(signal.SIGINT, self._before)

    def __exit__(self, *error: object) -> None:
        self._put_back()

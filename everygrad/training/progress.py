"""How far a run is: a bar in a terminal that has tqdm, else a plain line now and then."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from everygrad.distributed.world import is_first
from everygrad.launch.worker import note


def clock(seconds: float) -> str:
    """Seconds as 1:02:03, or 02:03 below an hour."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes:02d}:{left:02d}"


def shown(values: Mapping[str, Any]) -> str:
    """Numbers for people: loss 0.1234, lr 0.001."""
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    )


class Progress:
    """Counts steps up to `total` (None: unknown), and shows rate and time left.

    `show` is "auto" (a bar in a terminal, which under the launcher is the launcher's; lines
    elsewhere), "bar", "lines" or "none".
    """

    EVERY = 10.0  # seconds between lines
    REDRAWN = 0.2  # seconds between two states of a bar that the launcher shows
    WIDTH = 20  # of that bar

    def __init__(
        self, total: int | None, begin: int, show: str = "auto", stream: TextIO | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._total, self._begin, self._at = total, begin, begin
        self._started = self._said = time.perf_counter()
        self._values: dict[str, Any] = {}
        self._bar: Any = None
        show = show if is_first() else "none"  # one bar for all ranks
        self._launcher = show == "auto" and os.environ.get("EVERYGRAD_LAUNCH_BAR") == "1"
        self._quiet = show == "none"
        terminal = show == "auto" and self._stream.isatty()
        if show == "bar" or (terminal and importlib.util.find_spec("tqdm") is not None):
            tqdm = importlib.import_module("tqdm").tqdm
            self._bar = tqdm(
                total=total, initial=begin, unit="step", file=self._stream, dynamic_ncols=True
            )

    def advance(self, values: Mapping[str, Any] | None = None) -> None:
        """One step more, with the numbers to show beside it."""
        self._at += 1
        if values:
            self._values = dict(values)
        if self._bar is not None:
            self._bar.update()
            if values:
                self._bar.set_postfix_str(shown(values), refresh=False)
        elif self._launcher:
            if time.perf_counter() - self._said >= self.REDRAWN:
                self._said = time.perf_counter()
                note("bar", self.drawn(), as_line=True)
        elif not self._quiet and time.perf_counter() - self._said >= self.EVERY:
            self.say(self.line())

    def line(self) -> str:
        """step 120/360, loss 0.5, 81.3 steps/s, 00:03 left."""
        seconds = max(time.perf_counter() - self._started, 1e-9)
        rate = (self._at - self._begin) / seconds
        parts = [f"step {self._at}" + (f"/{self._total}" if self._total is not None else "")]
        if self._values:
            parts.append(shown(self._values))
        parts.append(f"{rate:.4g} steps/s")
        if self._total is not None and rate > 0:
            parts.append(f"{clock((self._total - self._at) / rate)} left")
        return ", ".join(parts)

    def drawn(self) -> str:
        """The line with a bar in front."""
        if not self._total:
            return self.line()
        done = self.WIDTH * min(self._at, self._total) // self._total
        return f"[{'#' * done}{'.' * (self.WIDTH - done)}] {self.line()}"

    def say(self, text: str) -> None:
        """A line of its own, above the bar if there is one."""
        self._said = time.perf_counter()
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
        elif self._launcher:
            note("bar", "", as_line=True)

"""What ranks print, as lines with the rank in front, and below them one progress bar.

mpiexec hands on whole lines only. So a rank that has something for the launcher, word of its end or
how far a run is, prints a line that begins with `NOTE` and names this launch.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import IO, Any

from everygrad.launch.worker import NOTE

_TAG = re.compile(rb"^\[\d+,(\d+)\]<std(?:out|err)>: ?")  # Open MPI's, of each line
_CLEAR = "\r\x1b[K"  # to the start of the line, and delete it


class Output:
    """Where lines of all ranks go. `terminal` is that of the bar, if there is one."""

    def __init__(self, folder: str, terminal: Any = None) -> None:
        self.folder = folder
        self.terminal = terminal
        self.bar = ""
        self.lock = threading.Lock()  # standard output and standard error have a reader each

    def show(self, source: IO[bytes], target: Any) -> None:
        """Print the lines of all ranks, each with its rank in front, until there are no more."""
        for line in source:
            if not self.keep_note(line):
                shown = _TAG.sub(lambda m: b"[%s] " % m.group(1), line)
                self.print(shown.decode(errors="replace"), target)

    def keep_note(self, line: bytes) -> bool:
        """Whether a line is for the launcher. What a rank on another host leaves word of is kept
        as what those of this one do."""
        _, found, word = line.partition(f"{NOTE}{self.folder} ".encode())
        if not found:
            return False
        state, rank, text = json.loads(word)
        if state == "bar":
            self.draw(text)
        else:
            (Path(self.folder) / f"{state}-{rank}").write_text(text, encoding="utf-8")
        return True

    def print(self, text: str, target: Any) -> None:
        with self.lock:
            if self.bar:
                self.terminal.write(_CLEAR)
                self.terminal.flush()
            target.write(text)
            target.flush()
            if self.bar:
                self.terminal.write(self.bar)
                self.terminal.flush()

    def draw(self, bar: str) -> None:
        """Show this bar below all lines, in place of the one before; an empty one ends it."""
        with self.lock:
            if self.terminal is not None and (bar or self.bar):
                self.terminal.write(_CLEAR + bar if bar else "\n")
                self.terminal.flush()
                self.bar = bar

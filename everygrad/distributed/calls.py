"""What a collective is in words: its description, its digest, and the ring of the latest ones."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

LATEST = 256  # collectives that each rank remembers
DIGEST = 16  # bytes


class Call(NamedTuple):
    """One collective as all ranks that take part in it must see it."""

    kind: str
    group: str  # the mesh and the axis
    dtype: str
    shape: tuple[int, ...]
    detail: str = ""  # the operation, the axes of the tensor, the source

    def __str__(self) -> str:
        what = f"{self.kind} {self.dtype}{list(self.shape)}" if self.dtype else self.kind
        return " ".join(part for part in (what, self.detail, f"over {self.group}") if part)


def digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=DIGEST).digest()


def around_first_difference(lists: dict[int, Sequence[str]], context: int = 3) -> str:
    """The lists of several ranks where the first of them differs from another, one line a call."""
    longest = max(len(calls) for calls in lists.values())
    rows = [[calls[i] if i < len(calls) else "(nothing)" for calls in lists.values()]
            for i in range(longest)]  # fmt: skip
    first = next((i for i, row in enumerate(rows) if len(set(row)) > 1), longest)
    lines = []
    for rank, calls in lists.items():
        lines.append(f"rank {rank}:")
        for i in range(max(0, first - context), first + context + 1):
            if i < len(calls):
                lines.append(f"  {'>' if i == first else ' '} {i}: {calls[i]}")
        if first >= len(calls):
            lines.append(f"  > {first}: (nothing)")
    return "\n".join(lines)


class Ring:
    """The latest collectives of one rank: written to a file when something fails."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.step = 0
        self.calls: deque[dict[str, Any]] = deque(maxlen=LATEST)
        self.written: str | None = None
        self.lock = threading.Lock()

    def begin(self, text: str) -> dict[str, Any]:
        """Note a collective that begins; its number is `step`."""
        with self.lock:
            self.step += 1
            entry = {"step": self.step, "call": text, "begun": time.time(), "state": "begun"}
            self.calls.append(entry)
        return entry

    def end(self, entry: dict[str, Any], state: str = "done") -> None:
        entry["ended"] = time.time()
        entry["state"] = state

    def write(self, reason: str) -> str:
        """Write the ring, once, and return the file's name. A failure must not raise another."""
        if self.written is None:
            folder = os.environ.get("EVERYGRAD_RING_DIR") or None
            name = f"everygrad-collectives-{os.getpid()}-rank{self.rank}-"
            content = {"rank": self.rank, "reason": reason, "collectives": list(self.calls)}
            try:  # a new file of our own, whatever lies in a folder that others write to as well
                handle, path = tempfile.mkstemp(".json", name, folder)
                with open(handle, "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=1)
                self.written = path
            except OSError as error:
                self.written = f"(not written: {error})"
        return self.written

"""Drivers' messages about a shader, made readable."""

from __future__ import annotations

import re


def first_words(text: str) -> str:
    """A driver's message on one line."""
    return " ".join(text.split())[:500]


def numbered(source: str, message: str) -> str:
    """The lines around the one a message points at."""
    lines = source.splitlines()
    found = re.search(r"─ [^\n]*?:(\d+):\d+", message)
    at = int(found.group(1)) if found else 1
    first, last = max(1, at - 6), min(len(lines), at + 6)
    rows = [f"{'>' if n == at else ' '}{n:4} | {lines[n - 1]}" for n in range(first, last + 1)]
    return "\n".join(rows)

"""Cases that once differed: a file of them, which every `make test` checks again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[2] / "tests" / "sweep_cases.jsonl"


def recorded(path: Path = FILE) -> Iterator[dict[str, Any]]:
    """One case a line; lines that begin with # are comments."""
    if path.exists():
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                yield json.loads(line)


def record(kept: dict[str, Any], why: str, path: Path = FILE) -> None:
    """Keep a case, once."""
    case = {**kept, "why": why[:200]}
    key = [{k: v for k, v in c.items() if k != "why"} for c in recorded(path)]
    if json.loads(json.dumps(kept)) not in key:
        with path.open("a") as file:
            file.write(json.dumps(case) + "\n")

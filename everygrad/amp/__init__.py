"""Mixed precision: which ops run in a half dtype (`policy`), and losses scaled for it (`scaler`).

`policy` stands below `dispatch`, which asks it; `scaler` is written in ops, and is loaded when
`GradScaler` is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everygrad.amp.policy import autocast as autocast


def __getattr__(name: str) -> Any:
    if name != "GradScaler":
        raise AttributeError(f"everygrad.amp has no {name!r}; it has autocast and GradScaler")
    return import_module("everygrad.amp.scaler").GradScaler

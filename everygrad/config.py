"""Settings: read once from the environment, changed by functions, never by the environment alone."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass
class Config:
    """The values in force. `eg.config` is the one instance."""

    # Above this many elements an eager CPU op uses a compiled kernel instead of NumPy: below it,
    # NumPy's call costs less than ours.
    native_threshold: int = int(os.environ.get("EVERYGRAD_NATIVE_THRESHOLD", "16384"))


config = Config()

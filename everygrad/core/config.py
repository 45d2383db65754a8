"""Settings: read once from the environment, changed by attributes."""

from __future__ import annotations

import os

from everygrad.core.context import FAST_LIMIT, fast_limit, intercepted
from everygrad.errors import ArgumentError

_PRECISIONS = ("highest", "high")


class Config:
    """The values in force. `eg.config` is the one instance.

    native_threshold  above this many elements an eager CPU op uses a compiled kernel instead of
                      NumPy: below it, NumPy's call costs less than ours. Ops of several NumPy
                      calls, such as sigmoid, do so from fewer on, in proportion. Changed, it holds
                      in the context (the thread) that changed it; EVERYGRAD_NATIVE_THRESHOLD sets
                      it for the process
    matmul_precision  "highest" or "high": see `set_matmul_precision`
    code_bytes        how many bytes compiled functions and kernels that are kept for the next call
                      may take in all: beyond, those not used for longest are dropped, and compiled
                      again (or loaded from disk) when they are called again
    """

    def __init__(self) -> None:
        self.matmul_precision = "highest"
        self._native_threshold = fast_limit()
        self.code_bytes = int(os.environ.get("EVERYGRAD_CODE_MB", "256")) << 20

    @property
    def native_threshold(self) -> int:
        return self._native_threshold

    @native_threshold.setter
    def native_threshold(self, value: int) -> None:
        self._native_threshold = value
        if not intercepted():
            FAST_LIMIT.set(value)


config = Config()


def set_matmul_precision(precision: str) -> None:
    """How precisely float32 matrix products and convolutions are computed.

    "highest", the default, is float32 throughout. "high" lets CUDA round what is multiplied to tf32
    (10 bits) first, and sum in float32, which is several times as fast. The CPU and WebGPU have
    nothing of the kind and compute in float32 either way.

    >>> import everygrad as eg
    >>> eg.get_matmul_precision()
    'highest'
    """
    if precision not in _PRECISIONS:
        raise ArgumentError(
            f'set_matmul_precision: takes "highest" or "high" (tf32 on CUDA), got {precision!r}; '
            f"for less use eg.autocast()"
        )
    config.matmul_precision = precision


def get_matmul_precision() -> str:
    """What `set_matmul_precision` chose."""
    return config.matmul_precision

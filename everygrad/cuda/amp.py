"""`torch.cuda.amp`, the older place of mixed precision: `everygrad.amp` has it for all devices."""

from __future__ import annotations

from typing import Any

from everygrad import dtypes
from everygrad.amp.policy import autocast as _autocast
from everygrad.amp.scaler import GradScaler as GradScaler
from everygrad.core.nearest import answering


class autocast(_autocast):  # noqa: N801  # PyTorch's name
    """`eg.autocast("cuda")`: of other devices nothing changes.

    >>> import everygrad as eg
    >>> from everygrad.cuda.amp import autocast
    >>> with autocast():
    ...     (eg.ones((2, 2)) @ eg.ones((2, 2))).dtype
    everygrad.float32
    """

    def __init__(
        self, enabled: bool = True, dtype: Any = dtypes.float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cuda", dtype, enabled)


__getattr__ = answering(__name__)

"""What is in force, devices, and what programs say of layouts, in PyTorch's spellings."""

from __future__ import annotations

from typing import Any

from everygrad.amp.policy import policy
from everygrad.autograd.modes import anomaly_enabled, in_inference_mode
from everygrad.core.device_name import device as device
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError

# Shapes are tuples. Layouts are nothing that a program chooses: what takes one of these takes it
# and does as without.
Size: type[tuple[Any, ...]] = tuple
strided = "strided"
contiguous_format, preserve_format = "contiguous_format", "preserve_format"
channels_last, channels_last_3d = "channels_last", "channels_last_3d"


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether `autocast` is on, on any device or on this kind."""
    chosen = policy()
    if chosen is None:
        return False
    named = dict(chosen)
    low = named.get(device_type, named.get("*")) if device_type else any(named.values())
    return bool(low)


def is_anomaly_enabled() -> bool:
    """Whether `detect_anomaly` is on."""
    return anomaly_enabled()


def is_inference_mode_enabled() -> bool:
    """Whether `inference_mode` is on."""
    return in_inference_mode()


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Nothing to choose: sums are taken in an order that shapes alone decide."""
    if not isinstance(mode, bool):
        raise ArgumentError(f"use_deterministic_algorithms: takes True or False, got {mode!r}")


def typename(obj: Any) -> str:
    """The name of an object's type, of a tensor with its dtype."""
    if isinstance(obj, Tensor):
        return f"everygrad.{obj.dtype}"
    kind = type(obj)
    return f"{kind.__module__}.{kind.__qualname__}"

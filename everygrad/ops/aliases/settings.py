"""What is in force, and devices, in PyTorch's spellings."""

from __future__ import annotations

from typing import Any

from everygrad.amp.policy import policy
from everygrad.autograd.modes import anomaly_enabled, in_inference_mode
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError


class device(str):  # noqa: N801  # PyTorch's name
    """A device's name, with its kind and number: everything that takes a device takes a string.

    >>> import everygrad as eg
    >>> eg.device("cuda", 1), eg.device("cuda:1").type, eg.device("cpu") == "cpu"
    (device('cuda:1'), 'cuda', True)
    """

    __slots__ = ()

    def __new__(cls, type: str, index: int | None = None) -> device:
        if not isinstance(type, str):
            raise ArgumentError(f"device: takes a name such as 'cuda:0', got {type!r}")
        return super().__new__(cls, type if index is None else f"{type}:{index}")

    @property
    def type(self) -> str:
        """The kind of device: "cpu", "cuda", "webgpu"."""
        return self.partition(":")[0]

    @property
    def index(self) -> Any:
        """Which one of its kind; None where the name does not say."""
        number = self.partition(":")[2]
        return int(number) if number else None

    def __repr__(self) -> str:
        return f"device({str(self)!r})"


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

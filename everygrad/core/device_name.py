"""The name of a device, with its kind and number in PyTorch's words."""

from __future__ import annotations

from typing import Any

from everygrad.errors import ArgumentError


class device(str):  # noqa: N801  # PyTorch's name
    """A device's name, with its kind and number: everything that takes a device takes a string.

    >>> import everygrad as eg
    >>> eg.device("cuda", 1), eg.device("cuda:1").type, eg.zeros(2).device.type
    ('cuda:1', 'cuda', 'cpu')
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


class _Names(dict[str, device]):
    """The name of each device, made once: every tensor's `device` is one of them."""

    def __missing__(self, name: str) -> device:
        made = self[str(name)] = device(name)
        return made


NAMES = _Names()

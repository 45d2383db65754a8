"""The settings of a network as `config.json` of a Hugging Face folder has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from everygrad.core.nearest import nearest
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, FileError
from everygrad.io.files import as_path, read_at, reading
from everygrad.io.safetensors_format import LONGEST_HEADER, parsed
from everygrad.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}

_NEEDED = object()


def read_config(folder: Any, what: str) -> dict[str, Any]:
    """What a folder's config.json says."""
    where = as_path(folder, what)
    path = where if where.name.endswith(".json") else Path(where) / "config.json"
    with reading(path, what) as (file, size):
        if size > LONGEST_HEADER:
            raise FileError(f"{what}: {path}: {size:,} bytes are too many for a configuration")
        data = bytearray(size)
        read_at(file, memoryview(data), 0, str(path))
    return parsed(data, str(path))


class Settings:
    """A configuration that is asked for values by name, and refuses what is not of their kind."""

    def __init__(self, config: Mapping[str, Any], owner: str) -> None:
        if not isinstance(config, Mapping):
            raise ArgumentError(
                f"{owner}: takes a configuration as config.json has it, a dict of names and "
                f"values, got {type(config).__name__}; from_pretrained(folder) reads one"
            )
        self.config, self.owner = config, owner

    def __call__(self, name: str, default: Any = _NEEDED) -> Any:
        """A value as it is; what is null or absent is the default."""
        value = self.config.get(name)
        if value is not None:
            return value
        if default is _NEEDED:
            close = nearest(name, self.config)
            hint = f"; it has {close!r}" if close else ""
            raise ArgumentError(f"{self.owner}: the configuration has no {name!r}{hint}")
        return default

    def size(self, name: str, default: Any = _NEEDED, most: int = 2**31 - 1) -> int:
        """A number of things: an integer above 0, and at most `most`."""
        value = self(name, default)
        if type(value) is not int or value < 1:
            raise ArgumentError(f"{self.owner}: {name} must be an integer above 0, got {value!r}")
        if value > most:
            raise ArgumentError(f"{self.owner}: {name} must be at most {most}, got {value}")
        return value

    def layers(self, name: str) -> int:
        """How many layers there are, each of which is made: 4,096 at most."""
        return self.size(name, most=4096)

    def number(self, name: str, default: Any = _NEEDED, below: float = float("inf")) -> float:
        """A number from 0 to below `below`."""
        value = self(name, default)
        if type(value) not in (int, float) or not 0 <= value < below:
            top = "" if below == float("inf") else f" and below {below}"
            raise ArgumentError(
                f"{self.owner}: {name} must be a number of at least 0{top}, got {value!r}"
            )
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self(name, default)
        if type(value) is not bool:
            raise ArgumentError(f"{self.owner}: {name} must be true or false, got {value!r}")
        return value

    def activation(self, name: str, default: str) -> Callable[[Tensor], Tensor]:
        """The function that a configuration names."""
        value = self(name, default)
        if value not in ACTIVATIONS:
            raise ArgumentError(
                f"{self.owner}: {name} is {value!r}; known are {', '.join(ACTIVATIONS)}"
            )
        return ACTIVATIONS[value]

    def refuse(self, name: str, usual: Any) -> None:
        """Refuse a setting that changes the network and is not done here."""
        value = self(name, usual)
        if value != usual:
            raise ArgumentError(
                f"{self.owner}: {name}={value!r} is not done here; only {usual!r} is"
            )

    def divided(self, whole: str, parts: str) -> int:
        """How much of one size each of the others has."""
        n, k = self.size(whole), self.size(parts)
        if n % k:
            raise ArgumentError(f"{self.owner}: {parts} {k} must divide {whole} {n}")
        return n // k

"""What a module's state and a state_dict have in common, and what not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everygrad.core.nearest import differences
from everygrad.core.shapes import Shape
from everygrad.errors import ArgumentError, ShapeError


class LoadedKeys(NamedTuple):
    """What `load_state_dict` did not find a partner for."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class StateFaults(NamedTuple):
    """What of a state_dict does not fit a module: names, and how they do not fit."""

    missing: list[str]
    unexpected: list[str]
    shapes: dict[str, str]
    kinds: dict[str, str]

    def refuse(self, what: str, strict: bool) -> None:
        """Raise if there is any fault, naming all; names that differ are none if not `strict`."""
        wrong = [f"{name} {how}" for name, how in (self.shapes | self.kinds).items()]
        names = differences(self.missing, self.unexpected) if strict else []
        if not (wrong or names):
            return
        cure = ["pass strict=False to load only what both sides have"] if names else []
        kind = ShapeError if self.shapes else ArgumentError
        raise kind(f"{what}: " + "; ".join([*names, *wrong, *cure]))


def faults_of(own: Mapping[str, Shape], state_dict: Mapping[str, Any]) -> StateFaults:
    """What of a state_dict does not fit tensors of these names and shapes."""
    faults = StateFaults(
        [k for k in own if k not in state_dict], [k for k in state_dict if k not in own], {}, {}
    )
    for name, value in state_dict.items():
        if name not in own:
            continue
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            faults.kinds[name] = f"must be a Tensor or an array, got {type(value).__name__}"
        elif tuple(value.shape) != own[name]:
            faults.shapes[name] = f"has shape {tuple(value.shape)}, not {own[name]}"
    return faults


def entries_below(at: str, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a module, by the names that it has for them."""
    start = f"{at}."
    return {k.removeprefix(start): v for k, v in state_dict.items() if k.startswith(start)}

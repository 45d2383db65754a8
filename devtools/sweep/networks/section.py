"""Whole networks as a section of the sweep."""

from __future__ import annotations

from typing import Any

from devtools.sweep.networks.check import check, dtypes_of
from devtools.sweep.networks.models import NETWORKS


class NetworkCase:
    """One network in one dtype, from one seed."""

    def __init__(self, name: str, device: str, dtype: str, seed: int) -> None:
        self.op = name
        self.device = device
        self.dtype = dtype
        self.seed = seed

    def title(self) -> str:
        return f"{self.op} in {self.dtype} on {self.device}, seed {self.seed}"

    def kept(self) -> dict[str, Any]:
        return {"op": self.op, "dtype": self.dtype, "seed": self.seed}

    def check(self) -> list[str]:
        return check(self.op, self.device, self.dtype, self.seed)


class NetworkSection:
    """Draws networks in turn, each in every dtype."""

    weight = 0.06  # each takes as long as a hundred ops
    generators = ()  # shapes are those of the networks

    def serves(self, device: str) -> bool:
        return True

    def draw(self, seed: int, context: Any) -> NetworkCase:
        names, dtypes = list(NETWORKS), dtypes_of(context.device)
        dtype = dtypes[seed // len(names) % len(dtypes)]
        return NetworkCase(names[seed % len(names)], context.device, dtype, seed)

    def again(self, kept: dict[str, Any], context: Any) -> NetworkCase:
        return NetworkCase(kept["op"], context.device, kept["dtype"], kept["seed"])


SECTION = NetworkSection()

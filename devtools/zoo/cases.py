"""What one architecture of the zoo is: a network in small, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

SEED = 0


class Network(nn.Module):
    """A network that takes tensors by position and gives a tuple of floating-point tensors.

    Libraries want keywords and give objects; a compiled function and an exported program are about
    tensors.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...], wanted: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names, self.wanted = model, names, wanted

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.model(**dict(zip(self.names, given, strict=True))) if self.names else None
        out = self.model(*given) if out is None else out
        if self.wanted:
            return tuple(getattr(out, name) for name in self.wanted)
        return (out,) if isinstance(out, torch.Tensor) else tuple(out)


@dataclass(frozen=True)
class Case:
    """One architecture: who publishes it, how it is made, what it is given.

    `inputs` are by name where the network wants names. `wanted`: which parts of the result count.
    `still`: classes of modules that stay in evaluation mode, because in training they branch on a
    random number, or change what requires a gradient, which no graph can hold. `dtype`: float64
    where norms over a batch of two would turn float32's rounding into more than a fault does.
    `tolerance`: where PyTorch itself is not as exact as its dtype.
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor] | tuple[torch.Tensor, ...]]
    wanted: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    dtype: torch.dtype = torch.float32
    tolerance: float = 0.0

    def network(self) -> Network:
        """The network in evaluation mode, its weights drawn from one seed, without dropout, whose
        bits are not the same everywhere."""
        torch.manual_seed(SEED)
        given = self.inputs()
        names = tuple(given) if isinstance(given, dict) else ()
        model = self.build()
        _stir(model)
        for part in model.modules():
            if isinstance(part, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                part.p = 0.0
        network = Network(model, names, self.wanted).eval()
        with torch.no_grad():
            network(*self.arguments())  # some libraries install hooks at the first call
        return network

    def trained(self) -> Network:
        """The network in training mode."""
        network = self.network().train()
        for part in network.modules():
            if type(part).__name__ in self.still:
                part.training = False
        return network

    def arguments(self) -> tuple[torch.Tensor, ...]:
        """What the network is given, the same each time."""
        torch.manual_seed(SEED + 1)
        given = self.inputs()
        return tuple(given.values()) if isinstance(given, dict) else tuple(given)


def _stir(model: nn.Module) -> None:
    """Noise on parameters that start as a constant: a head of zeros would hide all faults."""
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() > 1 and bool((p == p.flatten()[0]).all()):
                p.add_(0.05 * torch.randn_like(p))


def tokens(vocabulary: int = 64, length: int = 8, batch: int = 2) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def images(size: int, channels: int = 3, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)


def quiet(config: Any) -> Any:
    """A configuration without any dropout, and without a cache among the results."""
    for name in vars(config):
        if ("drop" in name or name.startswith("mask_")) and isinstance(
            getattr(config, name), float
        ):
            setattr(config, name, 0.0)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config

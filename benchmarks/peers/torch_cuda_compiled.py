"""PyTorch through torch.compile on an NVIDIA GPU.

Losses of leaves are compiled with their gradients; of a training step the forward pass and with it
the backward one, beside the fused optimiser, as PyTorch's own training loops have it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers import Step, torch_compiled, torch_eager
from benchmarks.peers.torch_cuda import (
    DEVICE,
    VERSIONS as VERSIONS,
    held as held,
    missing as missing,
    peak as peak,
    wait as wait,
)
from benchmarks.workloads import Data


class Train(torch_eager.Train):
    """The eager step, its loss compiled."""

    def __init__(self, model: nn.Module, data: Data, device: str) -> None:
        super().__init__(model, data, device)
        self.compiled = torch.compile(self._loss)

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def forward(self) -> Tensor:
        with torch_eager.precision(self.settings, self.device):
            loss: Tensor = self.compiled(self.x, self.y)
            return loss


STEPS: dict[str, Callable[[Data], Step]] = {
    **torch_compiled.leaves(DEVICE),
    "mlp": lambda data: Train(torch_eager.mlp(data), data, DEVICE),
    "gpt": lambda data: Train(torch_eager.GPT(data, DEVICE), data, DEVICE),
}

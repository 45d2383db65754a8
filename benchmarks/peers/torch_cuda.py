"""PyTorch, eager, on an NVIDIA GPU, with its fused optimiser."""

from __future__ import annotations

import torch

from benchmarks.peers import torch_eager

DEVICE = "cuda"
VERSIONS = torch_eager.VERSIONS | {"CUDA (torch)": str(torch.version.cuda)}
STEPS = torch_eager.steps(DEVICE)


def missing() -> str:
    return "" if torch.cuda.is_available() else "this PyTorch finds no GPU"


def wait() -> None:
    torch.cuda.synchronize()


def peak() -> int:
    return torch.cuda.max_memory_allocated()


def held() -> int:
    return torch.cuda.max_memory_reserved()

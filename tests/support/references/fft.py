"""References for transforms of short stretches, by PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def _torch(x: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x))


def _given(options: dict[str, Any], n_fft: int, win_length: int | None) -> dict[str, Any]:
    window = torch.ones(win_length or n_fft, dtype=torch.float64)
    return {"window": window, "win_length": win_length, **options}


def stft(x: Any, n_fft: int, hop: Any = None, win_length: Any = None, **options: Any) -> Any:
    hop = options.pop("hop_length", hop)
    known = _given(options, n_fft, win_length)
    return torch.stft(_torch(x), n_fft, hop, return_complex=True, **known).numpy()


def istft(x: Any, n_fft: int, hop: Any = None, win_length: Any = None, **options: Any) -> Any:
    hop = options.pop("hop_length", hop)
    known = _given(options, n_fft, win_length)
    return torch.istft(_torch(x).to(torch.complex128), n_fft, hop, **known).numpy()

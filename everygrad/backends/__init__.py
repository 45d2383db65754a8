"""Devices: buffers and programs."""

from typing import Any

# What PyTorch's programs set in `torch.backends`; devices of everygrad are not found here.
_SWITCHES = dict.fromkeys(
    ("cudnn", "cuda", "mps", "mkldnn", "openmp"),
    "nothing: kernels are chosen by measuring; eg.set_matmul_precision is for TF32",
)


def __getattr__(name: str) -> Any:
    cure = f"; in place of torch.backends use {_SWITCHES[name]}" if name in _SWITCHES else ""
    raise AttributeError(f"everygrad.backends has no {name!r}{cure}")

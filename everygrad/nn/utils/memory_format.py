"""Layouts of weights in memory, which PyTorch programs choose and nothing here depends on."""

from __future__ import annotations

from typing import Any


def convert_conv2d_weight_memory_format(module: Any, memory_format: Any) -> Any:
    """The module as it is: no op here asks for a layout.

    >>> import everygrad as eg
    >>> eg.nn.utils.convert_conv2d_weight_memory_format(eg.nn.ReLU(), "channels_last")
    ReLU()
    """
    return module


def convert_conv3d_weight_memory_format(module: Any, memory_format: Any) -> Any:
    """The module as it is: no op here asks for a layout.

    >>> import everygrad as eg
    >>> eg.nn.utils.convert_conv3d_weight_memory_format(eg.nn.ReLU(), "channels_last_3d")
    ReLU()
    """
    return module

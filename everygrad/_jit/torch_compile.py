"""`eg.compile`: PyTorch's name for `eg.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad._jit.jit import jit
from everygrad.errors import ArgumentError


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: Any = None,
    disable: bool = False,
) -> Any:
    """`jit` under PyTorch's name. A function is always one graph, compiled anew for new shapes and
    for each device by its own compiler, so that the other arguments choose nothing; `disable` gives
    the function as it is.

    >>> import everygrad as eg
    >>> eg.compile(lambda x: x * 2, mode="max-autotune")(eg.tensor([1.0])).tolist()
    [2.0]
    """
    if dynamic:
        raise ArgumentError("compile: shapes are constants of compiled code; leave out dynamic")
    if model is None:
        return lambda real: compile(real, disable=disable)
    return model if disable else jit(model)

"""Differentiation: the graph, its traversal, and the transformations built on both."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any

from everygrad.core.nearest import no_attribute as _no_attribute

# what torch.autograd has, and everygrad itself
_ELSEWHERE = (
    *("Function", "detect_anomaly", "enable_grad", "gradcheck", "gradgradcheck"),
    *("inference_mode", "no_grad", "set_grad_enabled"),
)


def __getattr__(name: str) -> Any:
    if name == "grad":
        from everygrad.autograd.api import grad

        return grad
    if name == "Variable":
        return _import_module("everygrad.ops.aliases.making").Variable
    if name in _ELSEWHERE:
        return getattr(_import_module("everygrad"), name)
    raise _no_attribute("everygrad.autograd", name, ("grad", *_ELSEWHERE, *globals()))

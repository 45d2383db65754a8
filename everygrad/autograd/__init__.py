"""Differentiation: the graph, its traversal, and the transformations built on both."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "grad":
        from everygrad.autograd.api import grad

        return grad
    raise AttributeError(f"everygrad.autograd has no {name!r}")

"""Differentiation: the graph, its traversal, and the transformations built on both."""

from __future__ import annotations

from typing import Any

from everygrad.core.nearest import no_attribute as _no_attribute


def __getattr__(name: str) -> Any:
    if name == "grad":
        from everygrad.autograd.api import grad

        return grad
    raise _no_attribute("everygrad.autograd", name, ("grad", *globals()))

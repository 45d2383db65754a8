"""The table of ATen ops, and what a handler may ask about the node it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Result:
    """What PyTorch says a node gives: its shape, dtype and strides."""

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Handler:
    """One ATen overload here.

    `promotes`: tensors and numbers among the arguments are brought to PyTorch's common dtype first
    (its rules differ from the Array API's). `wants_result`: called with `result=`, the node's
    Result, or a list of them (None for an output that is no tensor).
    """

    function: Callable[..., Any]
    promotes: bool = False
    wants_result: bool = False


HANDLERS: dict[str, Handler] = {}


def aten(
    *names: str, promotes: bool = False, wants_result: bool = False
) -> Callable[[Function], Function]:
    """Enter a function into the table as the overloads named, such as "add.Tensor".

    Names of other namespaces are given whole, with a colon: "prims::convert_element_type".
    """

    def enter(function: Function) -> Function:
        for name in names:
            whole = name if "::" in name else f"aten::{name}"
            assert whole not in HANDLERS, whole
            HANDLERS[whole] = Handler(function, promotes, wants_result)
        return function

    return enter


__all__ = ["HANDLERS", "Handler", "Result", "Tensor", "aten"]

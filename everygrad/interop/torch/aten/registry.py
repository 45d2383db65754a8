"""The table of ATen ops, and what a handler may ask about the node it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType

Function = TypeVar("Function", bound=Callable[..., Any])


Unread = tuple[int, ...] | Callable[[Sequence[Any], str], tuple[int, ...]]


@dataclass(frozen=True)
class Result:
    """What PyTorch says a node gives: its shape, dtype, strides and place in its storage."""

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Handler:
    """One ATen overload here.

    `promotes`: tensors and numbers among the arguments are brought to PyTorch's common dtype first
    (its rules differ from the Array API's). `wants_result`: called with `result=`, the node's
    Result, or a list of them (None for an output that is no tensor). `wants_inputs`: called with
    `inputs=`, the Results of the tensors among its arguments, in order. `wants_device`: called with
    `device=`, where the program's inputs are. `refused`: why no program may hold this overload.
    `unread`: arguments, by position, that PyTorch's kernel needs and the function does not read, or
    a function that says which, of the arguments (tensors as Results) and the device.
    """

    function: Callable[..., Any]
    promotes: bool = False
    wants_result: bool = False
    wants_inputs: bool = False
    wants_device: bool = False
    refused: str = ""
    unread: Unread = ()


HANDLERS: dict[str, Handler] = {}


def aten(
    *names: str,
    promotes: bool = False,
    wants_result: bool = False,
    wants_inputs: bool = False,
    wants_device: bool = False,
    refused: str = "",
    unread: Unread = (),
) -> Callable[[Function], Function]:
    """Enter a function into the table as the overloads named, such as "add.Tensor".

    Names of other namespaces are given whole, with a colon: "prims::convert_element_type.default".
    """

    def enter(function: Function) -> Function:
        for name in names:
            whole = name if "::" in name else f"aten::{name}"
            assert whole not in HANDLERS, whole
            HANDLERS[whole] = Handler(
                function, promotes, wants_result, wants_inputs, wants_device, refused, unread
            )
        return function

    return enter


__all__ = ["HANDLERS", "Handler", "Result", "Tensor", "Unread", "aten"]

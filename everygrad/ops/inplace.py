"""x += y and its kin: the name x gets a new value.

In place when the buffer is provably ours alone; never visible to anyone who saw the old value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everygrad.autograd.modes import recording
from everygrad.errors import DtypeError, GradientError, ShapeError
from everygrad.ops.elementwise import (
    add,
    bitwise_and,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    divide,
    floor_divide,
    multiply,
    remainder,
    subtract,
)
from everygrad.ops.functions import pow  # the Array API's name
from everygrad.ops.linalg import matmul
from everygrad.tensor import Tensor


def assign(x: Tensor, new: Tensor, op: str) -> Tensor:
    """Give the name x the value `new`, of x's shape. x keeps its dtype: a value of the same kind
    is rounded to it, another kind is refused."""
    if new.shape != x.shape:
        raise ShapeError(f"{op}: the result {new.shape} does not fit into x {x.shape}")
    if new.dtype is not x.dtype:
        if new.dtype.kind != x.dtype.kind:
            raise DtypeError(
                f"{op}: the result {new.dtype} does not fit into x {x.dtype}; use astype()"
            )
        new = new.astype(x.dtype)
    x.rebind(new._data, new._node if recording() else x._node)
    return x


def _inplace(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Tensor:
        if self._node is not None and self._node.is_leaf and recording():
            raise GradientError(
                f"{name}: this tensor is a leaf that requires grad; change it under no_grad(), "
                f"or write x = x + y for a new tensor"
            )
        return assign(self, function(self, other), name)

    return method


for _name, _function in (
    ("__iadd__", add),
    ("__isub__", subtract),
    ("__imul__", multiply),
    ("__itruediv__", divide),
    ("__ifloordiv__", floor_divide),
    ("__imod__", remainder),
    ("__ipow__", pow),
    ("__iand__", bitwise_and),
    ("__ior__", bitwise_or),
    ("__ixor__", bitwise_xor),
    ("__ilshift__", bitwise_left_shift),
    ("__irshift__", bitwise_right_shift),
    ("__imatmul__", matmul),
):
    setattr(Tensor, _name, _inplace(_function, _name))

"""x += y and its kin: the name x gets a new value.

In place when the buffer is provably ours alone; never visible to anyone who saw the old value.

`x[i] += v` calls the method of a view that nobody holds, x[i], and then writes its result to x[i]:
nothing is lost. `row += v`, where row is a name for a view of x, would be lost to x, and is refused
as `row[...] = row + v` is.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

from everygrad.autograd.modes import no_grad, recording
from everygrad.core.ownership import calibrated, refcount
from everygrad.core.tensor import Tensor, data_owner, refuse_lost_write, shared
from everygrad.errors import DtypeError, GradientError, ShapeError
from everygrad.ops.elementwise.basic import (
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
from everygrad.ops.elementwise.math import pow  # the Array API's name
from everygrad.ops.linalg.matmul import matmul


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
    x._source = None
    return x


_CURE = "write x[i] += v to that one, or y = y + v for a new tensor"


@lru_cache(maxsize=256)
def _goes_to_name(code: CodeType, at: int) -> bool:
    """Whether the instruction at `at` is a `y += v` of a name or an attribute. Reference counts say
    so too, but Python 3.14 counts the references of local names no longer."""
    steps = [step for step in dis.get_instructions(code) if step.offset >= at]
    if not steps or steps[0].opname != "BINARY_OP":
        return False
    after = next((step.opname for step in steps[1:] if step.opname != "SWAP"), "")
    return after.startswith("STORE_") and after not in ("STORE_SUBSCR", "STORE_SLICE")


def _temporary() -> int:
    """What refcount says, in a method of `+=`, of an item that nobody holds: x[i] += v."""

    class Item:
        def __iadd__(self, other: Any) -> Any:
            return refcount(self)

    class Items:
        def __getitem__(self, i: int) -> Any:
            return Item()

        def __setitem__(self, i: int, count: int) -> None:
            self.count = count

    items = Items()
    items[0] += 1
    return items.count


_TEMPORARY = calibrated(_temporary())


def _inplace(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Tensor, other: Any) -> Tensor:
        if self._source is not None:
            owner = data_owner(self)
            if owner is not None:
                refuse_lost_write(owner, name, _CURE)
                with no_grad():
                    assign(owner, function(owner, other), name)
                self.rebind(shared(owner), None)
                return self
            frame = sys._getframe(1)
            if refcount(self) > _TEMPORARY or _goes_to_name(frame.f_code, frame.f_lasti):
                refuse_lost_write(self, name, _CURE)
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

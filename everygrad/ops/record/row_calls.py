"""The functions of ops over rows, which have a way for small arrays of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from everygrad.core.context import fast_limit
from everygrad.core.fast_calls import Heat, backward_rows, forward_rows
from everygrad.core.op import Op
from everygrad.core.operand_names import ABSENT
from everygrad.dispatch import CPU, F32, F64, apply, record

_MOST = 64  # values of eps with native code of their own


def rows(op: Op, careful: Callable[..., Any], derivative: str) -> Callable[..., Any]:
    """The function of an op along one axis, by default the last: small arrays go straight to the
    kernel, everything else to `careful`, which takes what users may pass. `derivative`: the op of
    (gradient, result) that the derivative is."""
    kernel: Callable[[Any], Any] | None = None
    native: Any = None
    heat = Heat()

    def take_over() -> None:
        """From now on native code serves, and calls for the derivative what it was elsewhere."""
        nonlocal native
        found = forward_rows(op, CPU.small_rows(op.name), lambda ndim: {"axis": ndim - 1})
        if found is not None:
            native, params = found
            slow = type(op).vjp.__get__(op)
            op.__dict__["vjp"] = backward_rows(CPU.small_rows(derivative), (0,), slow, params)

    @wraps(careful)
    def call(x: Any = ABSENT, axis: Any = -1, **names: Any) -> Any:
        usual = native is not None and type(axis) is int and axis == -1 and not names
        if usual and op.name in CPU.kernels and (t := native(x)) is not None:
            return t
        try:
            a = x._data
            small = 0 < a.size <= fast_limit()
        except (AttributeError, TypeError):  # no tensor, or a payload that this path is not for
            return careful(axis=axis, **names) if x is ABSENT else careful(x, axis, **names)
        last = len(a.shape) - 1
        if (
            not small
            or names
            or type(axis) is not int
            or (axis != -1 and axis != last)
            or last < 0
            or (a.dtype is not F32 and a.dtype is not F64)
            or op.name not in CPU.kernels
        ):
            return careful(x, axis, **names)
        nonlocal kernel
        if kernel is None:
            kernel = CPU.small_rows(op.name)
        out = kernel(a)
        if out is None:
            return careful(x, axis)
        if heat.is_hot():
            take_over()
        return record(op, (x,), out, {"axis": last})

    return call


def scaled_rows(op: Op, careful: Callable[..., Any]) -> Callable[..., Any]:
    """The function of an op of rows along the last axis, a scale and a shift of each place in them:
    small arrays go straight to the op, everything else to `careful`."""
    native: dict[float, Any] = {}
    heat: dict[float, Heat] = {}

    def take_over(eps: float) -> None:
        """From now on native code serves calls with this `eps`."""
        if len(native) < _MOST:
            kernel = CPU.small_rows(op.name, eps)
            found = forward_rows(op, kernel, lambda ndim: {"axes": (ndim - 1,), "eps": eps})
            if found is not None:
                native[eps] = found[0]

    @wraps(careful)
    def call(
        x: Any = ABSENT,
        normalized_shape: Any = ABSENT,
        weight: Any = None,
        bias: Any = None,
        eps: Any = 1e-5,
        **names: Any,
    ) -> Any:
        if native and not names and type(eps) is float and op.name in CPU.kernels:
            found = native.get(eps)
            try:
                fits = type(normalized_shape) is tuple and normalized_shape == weight._data.shape
            except AttributeError:
                fits = False
            if fits and found is not None and (t := found(x, weight, bias)) is not None:
                return t
        try:
            a, w, b = x._data, weight._data, bias._data
            small = 0 < a.size <= fast_limit() and a.shape[-1:] == w.shape
        except (AttributeError, TypeError):  # no tensors, or payloads that this path is not for
            small = False
        if (
            small
            and not names
            and type(eps) is float
            and type(normalized_shape) is tuple
            and normalized_shape == w.shape == b.shape
            and ((dtype := a.dtype) is F32 or dtype is F64)
            and dtype is w.dtype is b.dtype
        ):
            if len(heat) < _MOST and heat.setdefault(eps, Heat()).is_hot():
                take_over(eps)
            return apply(op, x, weight, bias, axes=(len(a.shape) - 1,), eps=eps)
        if x is not ABSENT and normalized_shape is not ABSENT:
            return careful(x, normalized_shape, weight, bias, eps, **names)
        for name, value in (("x", x), ("normalized_shape", normalized_shape)):
            if value is not ABSENT:
                names[name] = value
        return careful(weight=weight, bias=bias, eps=eps, **names)

    return call

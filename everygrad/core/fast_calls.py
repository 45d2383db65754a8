"""When an op is called so often that its fast path is worth native code, which takes over then.

Its values are those of the path in Python, to the bit (`backends.cpu.runtime.fast_calls`). Loading
LLVM takes as long as a hundred thousand ops save, so a program that has not loaded it yet waits for
more calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.graph import Node
from everygrad.autograd.modes import _recording
from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.kernels.numpy_render import most_by_numpy
from everygrad.core.context import FAST_LIMIT
from everygrad.core.op import ElementwiseOp, Op
from everygrad.core.tensor import Tensor

MANY, LOADED_MANY = 20_000, 1_000  # calls of an op, without LLVM and with it
_NEVER = -(1 << 62)  # calls until which nobody asks again
DTYPES = tuple((np.dtype(d.np), d) for d in (dtypes.float32, dtypes.float64))


class Heat:
    """Counts the calls of one function; `is_hot` is true once."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def is_hot(self) -> bool:
        self.calls = calls = self.calls + 1
        if calls < LOADED_MANY or (calls < MANY and not lazy_native.is_loaded()):
            return False
        self.calls = _NEVER
        return True


def _objects(native: Any) -> Any:
    return native.Objects(Tensor, Node, FAST_LIMIT, _recording)


def forward(op: ElementwiseOp) -> Callable[..., Any] | None:
    """An elementwise op of one or two tensors as native code; its function gives None where it does
    not serve. None where there is no such code."""
    native = lazy_native.fast_calls()
    if native is None:
        return None
    count = len(op.inputs)
    functions = tuple(op.numpy_function(np_dtype) for np_dtype, _ in DTYPES)
    programs = tuple(op.program([dtype] * count, {}) for _, dtype in DTYPES)
    part = native.Part((), functions, programs, most_by_numpy(programs[0]))
    keeps: Any = None
    if not op.constant:
        keeps = op.keep_table if count == 2 else (None, op.keeps)
    made: Callable[..., Any] = native.forward(
        _objects(native), op, part, keeps, native.parameters()
    )
    return made


def backward(
    parts: Sequence[tuple[Any, ...] | None], slow: Callable[..., Any]
) -> Callable[..., Any] | None:
    """The derivatives of such an op as native code, which calls `slow` where it does not serve:
    each the places of the saved values it needs, and its functions and programs for both dtypes;
    None for the gradient itself."""
    native = lazy_native.fast_calls()
    if native is None or any(part is not None and len(part[0]) > 2 for part in parts):
        return None
    given = [None if p is None else native.Part(*p, most_by_numpy(p[2][0])) for p in parts]
    made: Callable[..., Any] = native.backward(_objects(native), given, slow, native.parameters())
    return made


def apply(
    kernels: Mapping[str, Callable[..., Any]], record: Callable[..., Any]
) -> Callable[..., Any] | None:
    """`dispatch.apply` of an op, its inputs and its parameters on the CPU's arrays as native code,
    which gives None where it does not serve."""
    native = lazy_native.fast_calls()
    if native is None:
        return None
    made: Callable[..., Any] = native.apply(_objects(native), kernels, record)
    return made


def forward_rows(
    op: Op, kernel: Callable[..., Any], params: Callable[[int], dict[str, Any]]
) -> tuple[Callable[..., Any], Any] | None:
    """An op of rows along the last axis, whose kernel gives None where it does not serve: its
    function, likewise; and the parameters of its nodes, `params` of their number of axes."""
    native = lazy_native.fast_calls()
    if native is None:
        return None
    count = len(op.inputs)
    keeps = [
        op.kept(tuple([bool(wants >> i & 1) for i in range(count)])) for wants in range(1 << count)
    ]
    shared = native.parameters(params)
    part = native.Part((), (kernel, kernel))
    return native.forward(_objects(native), op, part, keeps, shared), shared


def backward_rows(
    kernel: Callable[..., Any], needs: tuple[int, ...], slow: Callable[..., Any], params: Any
) -> Callable[..., Any]:
    """The derivative of such an op of one input: a kernel of the gradient and of saved values."""
    native: Any = lazy_native.fast_calls()
    part = native.Part(needs, (kernel, kernel))
    made: Callable[..., Any] = native.backward(_objects(native), [part], slow, params)
    return made


def export(slow: Callable[..., Any], slow_device: Callable[..., Any]) -> tuple[Any, Any] | None:
    """`Tensor.__dlpack__` and `Tensor.__dlpack_device__` as native code, which call these where it
    does not serve. None where there is no such code."""
    native = lazy_native.dlpack_calls()
    if native is None:
        return None
    made: tuple[Any, Any] = native.exported(_objects(lazy_native.fast_calls()), slow, slow_device)
    return made


def take(torch: Any) -> Callable[[Any], Tensor | None] | None:
    """A function that gives a tensor on the memory of one of PyTorch's, or None where it does not
    serve. None where there is no such code."""
    native = lazy_native.dlpack_calls()
    if native is None:
        return None
    made: Callable[[Any], Tensor | None] = native.imported(
        _objects(lazy_native.fast_calls()), torch
    )
    return made

"""Attention by the flash kernels where they apply; elsewhere the portable definitions serve."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.attention import flash
from everygrad.backends.cuda.driver.gpu import PendingKernel
from everygrad.backends.cuda.kernels.copy_kernels import contiguous, copied
from everygrad.backends.strided_views import reshape
from everygrad.compiler import expr
from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import broadcast_strides, reshape_strides, row_major
from everygrad.dtypes import FROM_NP

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda


_F32 = dtypes.float32.np
# The kernels' logarithms have the base 2
_LOG, _LOG2 = (
    expr.lower(expr.trace(lambda x, by=by: x * by, 1), [dtypes.float32])
    for by in (math.log(2), 1 / math.log(2))
)


def _leading(shape: Shape) -> Shape:
    """Batch and heads of an operand of any number of axes. Heads come last: keys that several
    queries share have a stride of 0 there, and need no copy."""
    *rest, heads = (1, *shape[:-2])
    return size_of(tuple(rest)), heads


def _as_4d(dev: Cuda, x: CudaArray) -> CudaArray:
    """x as (batch, heads, tokens, width), the last axis contiguous, no stride negative."""
    if x.strides[-1] != 1 or min(x.strides) < 0:
        x = contiguous(dev, x)
    shape = (*_leading(x.shape), *x.shape[-2:])
    if shape == x.shape:
        return x
    strides = reshape_strides(x.shape, x.strides, shape)
    return reshape(dev, x, shape) if strides is None else x.view(shape, strides)


def _operand(x: CudaArray) -> flash.AttentionOperand:
    """x as the kernels take it. Strides of axes of one element mean nothing, and become 0."""
    steps = [s if n > 1 else 0 for n, s in zip(x.shape[:3], x.strides[:3], strict=True)]
    return flash.AttentionOperand(x.ptr, *steps)


def _mask(x: CudaArray, shape: Shape) -> flash.Mask:
    lead = x.shape[:-2]
    rest = x.strides[-2:]
    if len(lead) == 2:
        four = (*x.strides[:2], *rest)
    else:
        four = (0, x.strides[0] if lead else 0, *rest)
    sizes = (*((1,) * (2 - len(lead))), *x.shape)
    return flash.Mask(x.ptr, *broadcast_strides(sizes, four, shape))


def _compile_later(driver: Any, call: flash.FlashLaunch) -> PendingKernel:
    """The kernel of a launch, which another thread starts to compile now."""
    made = driver.nvrtc.compile_later("attention", call.text, call.architecture)
    return PendingKernel(lambda: driver.load(made.result(), flash.NAME, call.shared))


def _launch(kernel: PendingKernel, call: flash.FlashLaunch, stream: int) -> None:
    flash.launch(kernel.function, call, stream)


class _AttentionCall:
    """One attention: its inputs as the kernels take them; `serves` is False where they cannot."""

    def __init__(
        self,
        dev: Cuda,
        q: CudaArray,
        k: CudaArray,
        v: CudaArray,
        mask: CudaArray | None,
        scale: float,
        causal: bool,
    ) -> None:
        self.dev = dev
        self.serves = False
        self.held: list[CudaArray] = []  # what kernels read by address until the last is launched
        if dev.gpu.driver.lt is None or any(a.storage is None for a in (q, k, v)):
            return
        if mask is not None and len(q.shape) > 4:
            return
        self.dtype = FROM_NP[q.dtype]
        batch, heads = _leading(q.shape)
        queries, keys = q.shape[-2], k.shape[-2]
        self.problem = flash.AttentionProblem(
            *(self.dtype, batch, heads, queries, keys, q.shape[-1], v.shape[-1], scale, causal),
            mask="" if mask is None else "add",
        )
        driver = dev.gpu.driver
        # decided by shapes alone, so that recording and running agree
        self.serves = flash.serves(self.problem, driver.capability, driver.shared)
        if not self.serves:
            return
        self.q, self.k, self.v = (self.as_operand(a) for a in (q, k, v))
        seen = None if mask is None else _mask(mask, (batch, heads, queries, keys))
        self.inputs = flash.Inputs(_operand(self.q), _operand(self.k), _operand(self.v), seen)

    def as_operand(self, x: CudaArray) -> CudaArray:
        """x in four axes as the kernels read it: copied where its address or a stride is not a
        multiple of 16 bytes."""
        x = _as_4d(self.dev, x)
        return x if flash.aligned(self.dtype, _operand(x)) else copied(self.dev, x)

    def statistics(self, size: int) -> CudaArray:
        made: CudaArray = self.dev.empty((size,), dtypes.float32)
        self.held.append(made)
        return made

    def launch(self, calls: list[flash.FlashLaunch]) -> None:
        dev = self.dev
        driver = dev.gpu.driver
        for call in calls:
            key = ("flash", call.text, call.architecture)
            function = dev.plans.get(key)
            if function is None:
                function = dev.plans[key] = _compile_later(driver, call)
            dev.gpu.call(_launch, function, call, driver.stream)

    def forward(self) -> CudaArray:
        out: CudaArray = self.dev.empty((*self.q.shape[:3], self.problem.depth), self.dtype)
        self.forward_into(out, self.statistics(self.problem.lse_size).ptr)
        return out

    def forward_into(self, out: CudaArray, lse: int) -> None:
        capability = self.dev.gpu.driver.capability
        self.launch(flash.forward(self.problem, capability, self.inputs, _operand(out), lse))

    def split_saved(self, flat: CudaArray) -> tuple[CudaArray, int]:
        """The result and the address of lse in what a forward saved; heads are interleaved."""
        _, heads, tokens, width = self.q.shape
        strides = (tokens * heads * width, width, heads * width, 1)
        out = CudaArray(flat.device, self.q.shape, flat.dtype, flat.storage, flat.offset, strides)
        return out, flat.ptr + size_of(out.shape) * flat.dtype.itemsize

    def backward(self, g: CudaArray, lse: int, delta: int) -> CudaArray:
        """The derivatives by q, k and v, concatenated."""
        counts = [size_of(a.shape) for a in (self.q, self.k, self.v)]
        flat: CudaArray = self.dev.empty((sum(counts),), self.dtype)
        parts, start = [], 0
        for a, count in zip((self.q, self.k, self.v), counts, strict=True):
            parts.append(CudaArray(a.device, a.shape, a.dtype, flat.storage, start))
            start += count
        self.derivatives(_operand(g), lse, delta, parts)
        return flat

    def backward_packed(self, g: CudaArray, lse: int, delta: int) -> CudaArray:
        """The derivatives interleaved."""
        batch, heads, tokens, width = self.q.shape
        made: CudaArray = self.dev.empty((batch, tokens, 3, heads, width), self.dtype)
        row = heads * width
        strides = (tokens * 3 * row, width, 3 * row, 1)
        parts = [
            CudaArray(made.device, self.q.shape, made.dtype, made.storage, i * row, strides)
            for i in range(3)
        ]
        self.derivatives(_operand(g), lse, delta, parts)
        return made

    def computed(self, g: CudaArray) -> tuple[int, int]:
        """The addresses of lse and delta, computed from the inputs."""
        p, capability = self.problem, self.dev.gpu.driver.capability
        lse, delta = self.statistics(p.lse_size), self.statistics(p.delta_size)
        self.launch(flash.statistics(p, capability, self.inputs, _operand(g), lse.ptr, delta.ptr))
        return lse.ptr, delta.ptr

    def saved(self, g: CudaArray, flat: CudaArray) -> tuple[int, int]:
        """The same from what a forward saved."""
        out, lse = self.split_saved(flat)
        return lse, self.delta(g, out)

    def given(self, g: CudaArray, out: CudaArray, log_sums: CudaArray) -> tuple[int, int]:
        """The same from a forward's result and its logarithms."""
        if self.problem.padded != self.problem.queries:
            return self.computed(g)
        steep = log_sums.view((size_of(log_sums.shape),), (1,), log_sums.offset)
        lse: CudaArray = self.dev.elementwise("log2_of_log", _LOG2, [steep], ordered=True)
        self.held.append(lse)
        return lse.ptr, self.delta(g, self.as_operand(out))

    def delta(self, g: CudaArray, out: CudaArray) -> int:
        p, capability = self.problem, self.dev.gpu.driver.capability
        made = self.statistics(p.delta_size)
        self.launch(flash.delta(p, capability, self.inputs, _operand(g), _operand(out), made.ptr))
        return made.ptr

    def derivatives(
        self, g: flash.AttentionOperand, lse: int, delta: int, parts: list[CudaArray]
    ) -> None:
        p, capability = self.problem, self.dev.gpu.driver.capability
        dq, dk, dv = (_operand(a) for a in parts)
        self.launch(flash.backward(p, capability, self.inputs, g, lse, delta, dq, dk, dv))


def _attention(
    dev: Cuda,
    q: CudaArray,
    k: CudaArray,
    v: CudaArray,
    mask: CudaArray | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Any:
    call = _AttentionCall(dev, q, k, v, mask, scale, causal)
    if not call.serves:
        return NotImplemented
    out = call.forward()
    return reshape(dev, out, (*q.shape[:-1], v.shape[-1]))


def _grads(
    dev: Cuda,
    g: CudaArray,
    q: CudaArray,
    k: CudaArray,
    v: CudaArray,
    mask: CudaArray | None = None,
    *,
    scale: float,
    causal: bool = False,
    packed: bool = False,
) -> Any:
    """The derivatives concatenated, or `packed` as (batch, tokens, 3, heads, width)."""
    call = _AttentionCall(dev, q, k, v, mask, scale, causal)
    if not call.serves:
        return NotImplemented
    g = call.as_operand(g)
    return (call.backward_packed if packed else call.backward)(g, *call.computed(g))


def _slopes(
    dev: Cuda,
    g: CudaArray,
    q: CudaArray,
    k: CudaArray,
    v: CudaArray,
    out: CudaArray,
    log_sums: CudaArray,
    *,
    scale: float,
    causal: bool = False,
    packed: bool = False,
) -> Any:
    """The same, from a forward's result and its logarithms."""
    call = _AttentionCall(dev, q, k, v, None, scale, causal)
    if not call.serves:
        return NotImplemented
    g = call.as_operand(g)
    found = call.given(g, out, contiguous(dev, log_sums))
    return (call.backward_packed if packed else call.backward)(g, *found)


def _log_sums(dev: Cuda, q: CudaArray, k: CudaArray, *, scale: float, causal: bool = False) -> Any:
    call = _AttentionCall(dev, q, k, k, None, scale, causal)
    if not call.serves:
        return NotImplemented
    lse = call.statistics(call.problem.lse_size)
    call.forward_into(dev.empty((*call.q.shape[:3], call.problem.depth), call.dtype), lse.ptr)
    return _natural(dev, q.shape[:-1], lse.storage, 0)


def _saved_log_sums(
    dev: Cuda,
    q: CudaArray,
    k: CudaArray,
    v: CudaArray,
    saved: CudaArray,
    *,
    scale: float,
    causal: bool = False,
) -> Any:
    """The logarithms in what a forward saved."""
    behind = (saved.offset + size_of(q.shape)) * saved.dtype.itemsize
    return _natural(dev, q.shape[:-1], saved.storage, behind // _F32.itemsize)


def _natural(dev: Cuda, shape: Shape, storage: Any, offset: int) -> CudaArray:
    """Natural logarithms without padding, of the kernels' at an offset of float32."""
    *lead, queries = shape
    lines = (*lead, flash.padded(queries))
    seen = CudaArray(dev.device, shape, _F32, storage, offset, row_major(lines))
    made: CudaArray = dev.elementwise("log_of_log2", _LOG, [seen], ordered=True)
    return made


def _attention_saved(
    dev: Cuda,
    q: CudaArray,
    k: CudaArray,
    v: CudaArray,
    mask: CudaArray | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Any:
    """The result as (batch, tokens, heads, width), flat, and lse behind it."""
    call = _AttentionCall(dev, q, k, v, mask, scale, causal)
    if not call.serves:
        return NotImplemented
    statistics = call.problem.lse_size * 4 // q.dtype.itemsize
    flat: CudaArray = dev.empty((size_of(q.shape) + statistics,), call.dtype)
    call.forward_into(*call.split_saved(flat))
    return flat


def _saved_grads(
    dev: Cuda,
    g: CudaArray,
    q: CudaArray,
    k: CudaArray,
    v: CudaArray,
    saved: CudaArray,
    mask: CudaArray | None = None,
    *,
    scale: float,
    causal: bool = False,
) -> Any:
    """The derivatives as (batch, tokens, 3, heads, width)."""
    call = _AttentionCall(dev, q, k, v, mask, scale, causal)
    if not call.serves:
        return NotImplemented
    g = call.as_operand(g)
    return call.backward_packed(g, *call.saved(g, saved))


KERNELS: dict[str, Callable[..., Any]] = {
    "attention_saved": _attention_saved,
    "attention_saved_grads": _saved_grads,
    "attention": _attention,
    "attention_masked": _attention,
    "attention_grads": _grads,
    "attention_masked_grads": _grads,
    "attention_packed_grads": partial(_grads, packed=True),
    "attention_log_sums": _log_sums,
    "attention_saved_log_sums": _saved_log_sums,
    "attention_saved_slopes": _slopes,
    "attention_packed_slopes": partial(_slopes, packed=True),
}

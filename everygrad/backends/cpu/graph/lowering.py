"""Lowers each kernel of a graph to native work if there is a generator, else to NumPy calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.cpu.attention import attention
from everygrad.backends.cpu.conv import convolution, pair_convolution, pooling
from everygrad.backends.cpu.gemm import recurrent
from everygrad.backends.cpu.gemm.eager_matmul import batched
from everygrad.backends.cpu.gemm.gemm import matmul as product
from everygrad.backends.cpu.kernels import copy_index, ctc, gather_scatter, scan, search, sort
from everygrad.backends.cpu.kernels.numpy_render import render
from everygrad.backends.cpu.kernels.ordering import SHORT
from everygrad.backends.cpu.llvm.work import ArrayLayout, Work, contiguous
from everygrad.backends.cpu.registry import KERNELS, REDUCERS
from everygrad.codegen import scan as scan_lowering
from everygrad.compiler.facts import Gemm
from everygrad.compiler.ir import Value
from everygrad.core.shapes import size_of
from everygrad.errors import CompileError

REAL = (dtypes.float32, dtypes.float64)
HALVES = (dtypes.float16, dtypes.bfloat16)


def lower(p: Any, v: Value) -> None:
    """Add the steps of value v, which has elements, to planner p."""
    rule = RULES.get(v.name)
    if rule is None or not rule(p, v):
        p.host(v, host_call(v, {"owned": True} if v in p.owned else {}))


def host_call(v: Value, more: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The op on NumPy arrays. `more`: parameters beside its own."""
    params = {**v.params, **(more or {})}
    if (communicate := v.op.host) is not None:
        return lambda *arrays: communicate(*arrays, **params)
    kernel = KERNELS.get(v.name)
    if kernel is not None:
        return lambda *arrays: kernel(*arrays, **params)
    if v.kind == "elementwise":
        function = render(v.op.program([a.dtype for a in v.args], params), len(v.args))
        return lambda *arrays: _quiet(function, *arrays)
    if v.kind == "reduction":
        reduce = REDUCERS[v.op.combine]
        return lambda x: reduce(x, mean=v.op.mean, **params)
    raise CompileError(f"{v.name}: neither the compiler nor NumPy knows this op on {v.type}")


def _quiet(function: Callable[..., Any], *arrays: Any) -> Any:
    with np.errstate(all="ignore"):
        return function(*arrays)


def _out(p: Any, v: Value) -> tuple[int, ArrayLayout]:
    return p.slot(v), contiguous(v.dtype, v.shape)


def _matmul(p: Any, v: Value) -> bool:
    if v.dtype not in (*REAL, *HALVES):
        return False
    (a_slot, a), (b_slot, b) = (p.operand(x) for x in v.args)
    if v.op.gemm is Gemm.TRANSPOSED:
        b = ArrayLayout(b.dtype, b.shape[::-1], b.strides[::-1], b.offset)
    if len(b.shape) == 2 and len(a.shape) > 2 and a.is_contiguous:  # one tall product
        a = ArrayLayout(a.dtype, (size_of(a.shape[:-1]), a.shape[-1]), (a.shape[-1], 1), a.offset)
    batch = v.shape[:-2] if len(a.shape) > 2 or len(b.shape) > 2 else ()
    out = contiguous(v.dtype, (*batch, a.shape[-2], v.shape[-1]))
    a, b = batched(a, batch), batched(b, batch)
    out_slot = p.slot(v)
    p.product(product(a, b, out), v, [out_slot, a_slot, b_slot])
    return True


def _conv(p: Any, v: Value) -> bool:
    kernels = convolution if v.dtype in REAL else pair_convolution
    if v.dtype not in REAL and not pair_convolution.serves(v.dtype):
        return False
    if not all(a.size for a in v.args):  # the kernel's gradient over no images: zeros
        return False
    (x_slot, x), (w_slot, w) = (p.contiguous_operand(a) for a in v.args)
    out_slot, out = _out(p, v)
    work = getattr(kernels, v.name)(x, w, v.params["window"], out)
    p.emit(work, [out_slot, x_slot, w_slot], f"%{v.number} {v.name}")
    return True


def _pool_index(p: Any, v: Value) -> bool:
    if v.args[0].dtype not in REAL:
        return False
    x_slot, x = p.contiguous_operand(v.args[0])
    out_slot, out = _out(p, v)
    work = pooling.max_pool2d_index(x, v.params["window"], out)
    p.emit(work, [out_slot, x_slot], f"%{v.number} {v.name}")
    return True


def _attention(p: Any, v: Value, grads: bool = False) -> bool:
    """Attention over four axes; its arguments need only be contiguous along the last axis."""
    q = v.args[1] if grads else v.args[0]
    if v.dtype not in REAL or len(q.shape) < 3:
        return False
    given = [p.operand(a) for a in v.args]
    if any(o.strides[-1] != 1 or len(o.shape) != 4 for _, o in given):
        given = [_four_axes(*p.contiguous_operand(a)) for a in v.args]
    slots = [slot for slot, _ in given]
    operands = [operand for _, operand in given]
    scale, causal = v.params["scale"], v.params["causal"]
    out_slot, out = _out(p, v)
    if grads:
        g, q_, k, u = operands
        work = attention.attention_grads(g, q_, k, u, out, scale, causal)
    else:
        q_, k, u = operands
        work = attention.attention(q_, k, u, _four_axes(out_slot, out)[1], scale, causal)
    p.emit(work, [out_slot, *slots], f"%{v.number} {v.name}")
    return True


def _four_axes(slot: int, x: ArrayLayout) -> tuple[int, ArrayLayout]:
    """A contiguous operand as (batch, heads, rows, width)."""
    heads = x.shape[-3]
    shape = (size_of(x.shape[:-3]), heads, *x.shape[-2:])
    return slot, contiguous(x.dtype, shape)._replace(offset=x.offset)


def _gather(p: Any, v: Value) -> bool:
    (x_slot, x), (i_slot, index) = (p.contiguous_operand(a) for a in v.args)
    if v.dtype.itemsize > 8:
        return False
    work = gather_scatter.gather(x, index, v.params["axis"])
    p.emit(work, [p.slot(v), x_slot, i_slot], f"%{v.number} gather")
    return True


def _last_write(p: Any, v: Value) -> bool:
    slot, index = p.contiguous_operand(v.args[0])
    p.guard(v, slot, index, "setitem: index", v.params["size"])
    work = gather_scatter.last_write(index, v.params["size"])
    p.emit(work, [p.slot(v), slot], f"%{v.number} last_write")
    return True


def _index_put(p: Any, v: Value) -> bool:
    if v.dtype.itemsize > 8 or not v.args[1].size:
        return False
    (x_slot, x), (i_slot, index), (s_slot, _) = (p.contiguous_operand(a) for a in v.args)
    p.guard(v, i_slot, index, "setitem: index", x.shape[0])
    work = gather_scatter.index_put(x, index)
    p.emit(work, [p.slot(v), x_slot, i_slot, s_slot], f"%{v.number} index_put")
    return True


def _adding(p: Any, v: Value) -> bool:
    if v.dtype.is_complex or v.dtype.itemsize == 2 or v.dtype is dtypes.bool_:
        return False
    if not all(a.size for a in v.args):  # nothing is added
        return False
    (x_slot, x), (i_slot, index), (s_slot, _) = (p.contiguous_operand(a) for a in v.args)
    work = getattr(gather_scatter, v.name)(x, index, v.params["axis"])
    p.emit(work, [p.slot(v), x_slot, i_slot, s_slot], f"%{v.number} {v.name}")
    return True


def _scan(p: Any, v: Value) -> bool:
    if not scan_lowering.serves(v.args[0].dtype):
        return False
    given = [p.contiguous_operand(a) for a in v.args]
    work = scan.scan(v.name, given[0][1], **v.params)
    p.emit(work, [p.slot(v), *(slot for slot, _ in given)], f"%{v.number} {v.name}")
    return True


def _ctc(p: Any, v: Value) -> bool:
    slots = [p.contiguous_operand(a)[0] for a in v.args]
    work = ctc.work(v.name, v.dtype, v.shape)
    p.emit(work, [p.slot(v), *slots], f"%{v.number} {v.name}")
    return True


def _recurrent(p: Any, v: Value, lower: Callable[[Any, Value], bool]) -> bool:
    return v.dtype in REAL and lower(p, v)


def _order(p: Any, v: Value, downwards: str) -> bool:
    """argsort and top_index along the last axis; NumPy handles other axes. `downwards`: the
    parameter that asks for the largest first."""
    (x,), axis = v.args, v.params["axis"]
    last = axis == len(x.shape) - 1
    if not last or x.shape[axis] < SHORT or x.dtype.is_complex:
        return False
    x_slot, operand = p.contiguous_operand(x)
    work = sort.order(operand, v.shape[axis], v.params[downwards])
    p.emit(work, [p.slot(v), x_slot], f"%{v.number} {v.name}")
    return True


def _search(p: Any, v: Value) -> bool:
    x = v.args[0]
    if x.dtype.is_complex or x.dtype in HALVES:
        return False
    (x_slot, x), (v_slot, values) = (p.contiguous_operand(a) for a in v.args)
    work = search.searchsorted(x, values, v.params["right"])
    p.emit(work, [p.slot(v), x_slot, v_slot], f"%{v.number} searchsorted")
    return True


def _concat(p: Any, v: Value) -> bool:
    if v.dtype.is_complex:
        return False
    out_slot, out = _out(p, v)
    axis, at = v.params["axis"], 0
    for part in v.args:
        slot, source = p.operand(part)
        if part.size:
            here = p.at(out_slot, at * out.strides[axis] * v.dtype.itemsize)
            target = ArrayLayout(out.dtype, part.shape, out.strides)
            p.emit(Work((copy_index.copy(source, target),)), [here, slot], f"%{v.number} concat")
        at += part.shape[axis]
    return True


def _unslice(p: Any, v: Value) -> bool:
    if v.dtype.is_complex:
        return False
    out_slot, out = _out(p, v)
    slot, source = p.operand(v.args[0])
    slices = v.params["slices"]
    p.emit(Work((copy_index.zero(out),)), [out_slot], f"%{v.number} unslice: zeros")
    if source.size:
        far = sum(start * s for (start, _, _), s in zip(slices, out.strides, strict=True))
        steps = tuple(by * s for (_, _, by), s in zip(slices, out.strides, strict=True))
        here = p.at(out_slot, far * v.dtype.itemsize)
        target = ArrayLayout(out.dtype, source.shape, steps)
        p.emit(Work((copy_index.copy(source, target),)), [here, slot], f"%{v.number} unslice")
    return True


RULES: dict[str, Callable[[Any, Value], bool]] = {
    "matmul": _matmul,
    "linear": _matmul,
    "conv2d": _conv,
    "conv2d_input": _conv,
    "conv2d_weight": _conv,
    "max_pool2d_index": _pool_index,
    "attention": _attention,
    "attention_grads": partial(_attention, grads=True),
    "gather": _gather,
    "last_write": _last_write,
    "index_put": _index_put,
    "index_add": _adding,
    "scatter_add": _adding,
    **dict.fromkeys(scan_lowering.OPS, _scan),
    **dict.fromkeys(ctc.OPS, _ctc),
    "rnn_reserve": partial(_recurrent, lower=recurrent.lower_reserve),
    "rnn_sequence": partial(_recurrent, lower=recurrent.lower_states),
    "rnn_grads": partial(_recurrent, lower=recurrent.lower_grads),
    "argsort": partial(_order, downwards="descending"),
    "top_index": partial(_order, downwards="largest"),
    "searchsorted": _search,
    "concat": _concat,
    "unslice": _unslice,
}

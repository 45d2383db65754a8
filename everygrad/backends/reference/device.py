"""The reference device: kernels of the kernel language are interpreted, everything else is NumPy.

It is slow, and strict: a kernel that leaves its memory, reads what nobody wrote or races is an
error that names the statement. It shows what a device must have (docs/adding-a-device.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends import base
from everygrad.backends.base import Backend
from everygrad.backends.deferred_checks import Check
from everygrad.backends.reference import evaluate, interpreter, linalg, lowering, matmul_conv
from everygrad.backends.reference.lowering import MACHINE
from everygrad.backends.reference.replay import Replay
from everygrad.codegen import gather, scan, scatter, scatter_sorted
from everygrad.codegen.copy import Layout, Lowered
from everygrad.compiler import accumulate
from everygrad.compiler.facts import OpFacts
from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.strides import row_major
from everygrad.dtypes import FROM_NP, DType, bool_, rounded
from everygrad.errors import ArgumentError, EverygradError, OutOfRangeError

if TYPE_CHECKING:
    from everygrad.compiler.ir import Graph

NAME = "reference"


class ReferenceArray:
    """A contiguous NumPy array that belongs to the reference device. It never changes."""

    __slots__ = ("__weakref__", "dtype", "shape", "values")
    device = NAME
    plain = True  # derivatives may be fused into one kernel on it

    def __init__(self, values: Any) -> None:
        self.values = np.array(values, order="C", ndmin=0)
        self.values.flags.writeable = False
        self.shape: Shape = self.values.shape
        self.dtype = self.values.dtype  # NumPy's


class _Typed(NamedTuple):
    """What a record's rule about results asks of an input."""

    shape: Shape
    dtype: DType


def _layout(x: ReferenceArray) -> Layout:
    return Layout(FROM_NP[x.dtype], x.shape, row_major(x.shape))


def _interpreted(lowered: Lowered, arrays: Sequence[Any], check: Check | None = None) -> None:
    """Run a kernel on arrays, one for each of its buffers; a bad value raises its check's error."""
    kernel = lowered.kernel
    held = [  # a gather may not reach the end of an array
        a.reshape(-1).view(buffer.dtype.np)[: buffer.size]
        for a, buffer in zip(arrays, kernel.buffers, strict=True)
    ]
    found = interpreter.run(kernel, held)
    if found is not None:
        assert check is not None
        raise check.refusal(found.value)


# --- kernels by name -----------------------------------------------------------------------------


def _nothing_to_take(op: str, index: ReferenceArray, size: int) -> None:
    """Of an axis without elements no index is right, and no kernel looks at any."""
    if index.values.size and not size:
        raise Check(f"{op}: index", 0, OutOfRangeError).refusal(int(index.values.flat[0]))


def _check_range(x: ReferenceArray, size: int, what: str) -> ReferenceArray:
    return _checked(x, Check(what, size, OutOfRangeError))


def _check_true(x: ReferenceArray, what: str, error: type[EverygradError]) -> ReferenceArray:
    return _checked(x, Check(what, 1, error))


def _checked(x: ReferenceArray, check: Check) -> ReferenceArray:
    if x.values.size:
        _interpreted(gather.check(_layout(x), check.size, 0, MACHINE), [x.values], check)
    return x


def _take(x: ReferenceArray, index: ReferenceArray, axis: int) -> ReferenceArray:
    _nothing_to_take("take", index, x.shape[axis])
    check = Check("take: index", x.shape[axis], OutOfRangeError)
    out = np.empty((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]), x.dtype)
    if not out.size:
        _checked(index, check)
        return ReferenceArray(out)
    lowered = gather.take(_layout(x), _layout(index), axis, MACHINE)
    _interpreted(lowered, [x.values, index.values, out], check)
    return ReferenceArray(out)


def _gather(x: ReferenceArray, index: ReferenceArray, axis: int) -> ReferenceArray:
    _nothing_to_take("gather", index, x.values.size)
    out = np.empty(index.shape, x.dtype)
    if out.size:
        check = Check("gather: index", x.shape[axis], OutOfRangeError)
        lowered = gather.gather(_layout(x), _layout(index), axis, MACHINE)
        _interpreted(lowered, [x.values, index.values, out], check)
    return ReferenceArray(out)


def _scatter(
    op: str, whole: bool, x: ReferenceArray, index: ReferenceArray, source: ReferenceArray,
    axis: int,
) -> ReferenceArray:  # fmt: skip
    _nothing_to_take(op, index, x.shape[axis])
    check = Check(f"{op}: index", x.shape[axis], OutOfRangeError)
    if not source.values.size or not x.values.size:
        _checked(index, check)
        return x
    what = scatter.Scatter(_layout(x), _layout(index), _layout(source), axis, whole)
    if what.terms <= scatter.FEW // 8:  # so that tests need few indices for the other way
        _checked(index, check)
        out = np.empty(x.shape, x.dtype)
        lowered = scatter.search(op, what, MACHINE)
        _interpreted(lowered, [x.values, index.values, source.values, out])
        return ReferenceArray(out)
    capacity = scatter_sorted.capacity_for(index.values.size, MACHINE)
    keys, out = np.empty(capacity, np.uint64), x.values.copy()
    _interpreted(scatter_sorted.write_keys(what, capacity, MACHINE), [index.values, keys], check)
    for step in scatter_sorted.sorting(capacity, MACHINE):
        _interpreted(step, [keys])
    summing = scatter_sorted.add_runs(op, what, FROM_NP[x.dtype], capacity, MACHINE)
    _interpreted(summing, [keys, source.values, out])
    return ReferenceArray(out)


def _last_write(index: ReferenceArray, size: int) -> ReferenceArray:
    _nothing_to_take("setitem", index, size)
    found = np.zeros(size, gather.positions(MACHINE, index.values.size).np)
    if index.values.size:
        check = Check("setitem: index", size, OutOfRangeError)
        lowered = gather.last_write(_layout(index), size, MACHINE)
        _interpreted(lowered, [index.values, found], check)
    return ReferenceArray((found.astype(np.int64) - 1).astype(index.dtype))


def _scan(op: str, *arrays: ReferenceArray, axis: int, reverse: bool = False) -> Any:
    dtype = FROM_NP[arrays[0].dtype]
    if not scan.serves(dtype):
        return NotImplemented
    shape = arrays[0].shape
    out = np.empty(shape, scan.result_dtype(op, dtype).np)
    if out.size:
        plan = scan.plan(op, dtype, shape, axis, MACHINE, reverse)
        held = [*(a.values for a in arrays), out]
        held += [np.empty(n, d.np) for d, n in plan.temporaries]
        for kernel, places in plan.launches:
            interpreter.run(kernel, [held[p] for p in places])
    return ReferenceArray(out)


def _index_put(x: ReferenceArray, index: ReferenceArray, values: ReferenceArray) -> ReferenceArray:
    _check_range(index, x.shape[0], "setitem: index")
    found = evaluate.WAYS["index_put"](x.values, index.values, values.values)
    return ReferenceArray(found.value)


def _ensure(
    x: ReferenceArray, ok: ReferenceArray, what: str, error: type[EverygradError]
) -> ReferenceArray:
    _check_true(ok, what, error)
    return x


def _to(x: ReferenceArray, device: str, source: str) -> Any:
    return base.get(device).from_numpy(x.values)


KERNELS: dict[str, Callable[..., Any]] = {
    "to": _to,
    "identity": lambda x: x,
    "take": _take,
    "gather": _gather,
    "index_add": partial(_scatter, "index_add", True),
    "scatter_add": partial(_scatter, "scatter_add", False),
    "last_write": _last_write,
    "check_range": _check_range,
    "check_true": _check_true,
    "ensure": _ensure,
    "index_put": _index_put,
    **{op: partial(_scan, op) for op in scan.OPS},
}
# ops of which the reference says what they give, where their record says of which dtype
_BY_NUMPY = {*evaluate.WAYS, *matmul_conv.ROUNDED, *linalg.CLAIMS}
_BY_NUMPY.discard("matrix_exp")  # refuses values that NumPy's way does not see: by its definition


class Reference(Backend):
    """Ops by the interpreter, by the reference's NumPy, or by their definitions."""

    name = NAME

    def __init__(self) -> None:
        self.kernels = {**dict.fromkeys(_BY_NUMPY, self.by_numpy), **KERNELS}

    def run(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        if op.family == "elementwise":
            return self.elementwise(op, arrays, params)
        if op.family == "reduction":
            return self.reduction(op, arrays[0], **params)
        if op.name in KERNELS:
            return KERNELS[op.name](*arrays, **params)
        if op.family == "kernel" and op.name not in self.kernels:
            return NotImplemented
        return self.by_numpy(op, arrays, params)

    def elementwise(
        self, op: OpFacts, arrays: Sequence[ReferenceArray], params: dict[str, Any]
    ) -> ReferenceArray:
        given = tuple(FROM_NP[a.dtype] for a in arrays)
        program = op.program(given, params)
        shape = shapes.broadcast(op.name, *(a.shape for a in arrays))
        out = np.empty(shape, program.dtype.np)
        if out.size:
            lowered = lowering.elementwise(
                op.name, program, given, tuple(a.shape for a in arrays), shape
            )
            _interpreted(lowered, [*(a.values for a in arrays), out])
        return ReferenceArray(out)

    def reduction(
        self, op: OpFacts, x: ReferenceArray, axes: Shape, keepdims: bool
    ) -> ReferenceArray:
        dtype = bool_ if op.combine in ("and", "or") else FROM_NP[x.dtype]
        out = np.empty(shapes.reduced(x.shape, axes, keepdims), dtype.np)
        if not x.values.size:
            out[...] = accumulate.of_nothing(op.combine, dtype, op.mean) if out.size else 0
        else:
            lowered = lowering.reduction(op.name, op.combine, op.mean, dtype, x.shape, axes)
            _interpreted(lowered, [x.values, out])
        return ReferenceArray(out)

    def by_numpy(self, op: OpFacts, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
        """As `jit(verify=True)` computes it. Where the record does not say what it is, the
        definition is used."""
        if op.family == "movement":
            dtype = FROM_NP[arrays[0].dtype]
        elif op.result is None:
            return NotImplemented
        else:
            typed = [_Typed(a.shape, FROM_NP[a.dtype]) for a in arrays]
            _, dtype = op.result(*typed, **params)
        try:
            found = evaluate.evaluate(op, [a.values for a in arrays], params, dtype.np)
        except np.linalg.LinAlgError:
            raise ArgumentError(f"{op.name}: {op.failure}") from None
        return ReferenceArray(found)

    def serves(self, op: OpFacts, given: Sequence[Any], params: dict[str, Any]) -> bool:
        return op.result is not None or op.name in KERNELS

    def compile(self, graph: Graph, donated: Any = (), remade: Any = ()) -> Replay:
        return Replay(self, graph)

    # --- data in and out -------------------------------------------------------------------------

    def from_numpy(self, array: Any) -> ReferenceArray:
        return ReferenceArray(array)

    def to_numpy(self, array: ReferenceArray) -> Any:
        return array.values

    def full(self, shape: Shape, value: Any, dtype: DType) -> ReferenceArray:
        try:
            one = np.array(rounded(value, dtype) if dtype.is_float else value, dtype.np)
        except OverflowError:
            raise ArgumentError(
                f"{value} does not fit into {dtype}; choose a wider dtype"
            ) from None
        return ReferenceArray(np.broadcast_to(one, shape))

    def arange(self, start: Any, count: int, step: Any, dtype: DType) -> ReferenceArray:
        values = start + step * np.arange(count, dtype=np.int64 if dtype.is_integer else np.float64)
        return ReferenceArray(rounded(values, dtype) if dtype.is_float else values.astype(dtype.np))


def open_device() -> Reference:
    return Reference()

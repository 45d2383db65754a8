"""Elementwise kernels: a `Program` looped over arrays, compiled by LLVM for this processor.

A kernel is compiled per program and loop pattern, never per shape. The pattern is the number of
loops after mergeable dimensions are merged, and how each operand moves along the innermost loop.
Sizes and strides are arguments.

>>> from everygrad import dtypes
>>> from everygrad.compiler.expr import Expr, lower
>>> x, y = Expr.inputs(2)
>>> a = np.arange(4, dtype=np.float32)
>>> out = np.empty((3, 4), np.float32)
>>> run(lower(x * y, [dtypes.float32] * 2), [a, np.array([[1], [2], [3]], np.float32)], out)
>>> out[2]
array([0., 3., 6., 9.], dtype=float32)
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends import thread_pool
from everygrad.backends.code_cache import code_cache
from everygrad.backends.cpu.llvm import intrinsics, loop_order
from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.loops import Loops, Pattern, operand_dtypes
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.parallel_for import spread
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.expr import Program
from everygrad.compiler.thresholds import edge
from everygrad.errors import ArgumentError, DtypeError

Array = np.ndarray[Any, Any]

# elements up to which one thread finishes before a second one would start
SERIAL_MAX = edge(__name__, "SERIAL_MAX", 1 << 15, "elements")
GRAIN = edge(__name__, "GRAIN", 1 << 12, "elements")  # elements per task
_CACHED_LAYOUTS = 1024


def supports(program: Program) -> bool:
    """Whether `run` can run `program`: everything but complex numbers."""
    insts = program.insts
    for inst in insts:
        at = inst.args[-1] if inst.args else None
        dtype = inst.dtype if at is None else insts[at].dtype
        if inst.dtype.is_complex or not intrinsics.supported(inst.fn, dtype):
            return False
    return True


def _count_inputs(program: Program) -> int:
    return max((inst.value + 1 for inst in program.insts if inst.fn == "input"), default=0)


def source(program: Program, pattern: Pattern | None = None) -> str:
    """The LLVM IR of a kernel; by default the one for contiguous arrays of one shape."""
    if not supports(program):
        raise DtypeError(f"the CPU compiler cannot run this program:\n{program}")
    pattern = pattern or Pattern(1, "c" * (1 + _count_inputs(program)))
    return Loops(program, pattern).text()


def assembly(program: Program, pattern: Pattern | None = None) -> str:
    """The machine code of a kernel, as assembly."""
    return engine().assembly(source(program, pattern))


class _Call(NamedTuple):
    """One kernel call: elements, byte offsets of the operands, sizes and strides."""

    size: int
    offsets: tuple[int, ...]
    meta: Any


class _Compiled(NamedTuple):
    """A kernel f(lo, hi, out, *inputs[, meta]), and its address."""

    function: Callable[..., None]
    address: Address  # holds the code


class _CallPlan(NamedTuple):
    """The kernel calls for one combination of layouts. `simple`: one call, no offsets or meta."""

    compiled: _Compiled
    simple: bool
    calls: tuple[_Call, ...]


def _call(part: loop_order.LoopNest, pattern: Pattern) -> _Call:
    flat = [*part.sizes, *(step for steps in part.strides for step in steps)]
    meta = (ctypes.c_int64 * len(flat))(*flat) if pattern.has_meta else None
    return _Call(math.prod(part.sizes), tuple(part.offsets), meta)


class Kernel:
    """A program and everything compiled for it."""

    def __init__(self, program: Program) -> None:
        if not supports(program):
            raise DtypeError(f"the CPU compiler cannot run this program:\n{program}")
        self.program = program
        self.out = program.dtype.np
        self.inputs = _count_inputs(program)
        found = operand_dtypes(program, self.inputs)
        self.wanted = [None if d is None else d.np for d in found[1:]]
        self._compiled: dict[Pattern, _Compiled] = {}
        self._plans: dict[Any, _CallPlan] = {}
        self._flat: dict[str, _Compiled] = {}  # by kinds: those of `flat`, without a lock
        self._lock = threading.Lock()
        self.recent = True

    def compiled(self, pattern: Pattern) -> _Compiled:
        """The kernel for a pattern of loops."""
        with self._lock:
            found = self._compiled.get(pattern)
            if found is None:
                address = engine().compile(source(self.program, pattern), "kernel")
                pointers = [ctypes.c_void_p] * (len(pattern.kinds) + pattern.has_meta)
                prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, *pointers)
                found = self._compiled[pattern] = _Compiled(prototype(address), address)
                nbytes = sum(c.address.nbytes for c in self._compiled.values())
                code_cache.add(self, nbytes, _drop)
            return found

    def forget(self) -> None:
        """Hold no code any more."""
        self._compiled.clear()
        self._plans.clear()
        self._flat.clear()

    def plan(self, arrays: Sequence[Array], out: Array) -> _CallPlan:
        """How to run on arrays laid out like these."""
        itemsizes = [out.itemsize, *(a.itemsize for a in arrays)]
        parts = loop_order.tile(loop_order.merge(out, arrays))
        sizes, strides, _ = parts[0]
        kinds = "".join(
            loop_order.kind(s[-1], item, sizes[-1])
            for s, item in zip(strides, itemsizes, strict=True)
        )
        pattern = Pattern(len(sizes), kinds)
        calls = tuple(_call(part, pattern) for part in parts)
        simple = len(calls) == 1 and not pattern.has_meta and not any(calls[0].offsets)
        return _CallPlan(self.compiled(pattern), simple, calls)

    def check(self, arrays: Sequence[Array], out: Array) -> None:
        """Raise unless the dtypes and the number of arrays are the program's."""
        if len(arrays) < self.inputs:
            raise ArgumentError(f"the program reads {self.inputs} inputs, got {len(arrays)}")
        if out.dtype != self.out:
            raise DtypeError(f"the program makes {self.out}, but out is {out.dtype}")
        for k, (array, wanted) in enumerate(zip(arrays, self.wanted, strict=False)):
            if wanted is not None and array.dtype != wanted:
                raise DtypeError(f"the program reads {wanted} as input {k}, got {array.dtype}")

    def flat(self, arrays: Sequence[Array]) -> Array | None:
        """The result for contiguous arrays of one shape, with numbers beside them or without, which
        need no plan; None for any others."""
        shape: tuple[int, ...] = ()
        kinds = "c"
        given = []
        for a, dtype in zip(arrays, self.wanted):  # noqa: B905  # a keyword takes 0.1 us
            own = a.shape
            if own == shape:
                kinds += "c" if own else "s"
            elif not own:
                kinds += "s"
            elif not shape:
                shape = own
                kinds += "c"
            else:
                return None
            if a.dtype is not dtype or not a.flags.c_contiguous:
                return None
            given.append(address_of(a))
        if not shape or len(given) != len(arrays):
            return None
        compiled = self._flat.get(kinds)
        if compiled is None:
            compiled = self._flat[kinds] = self.compiled(Pattern(1, kinds))
        self.recent = True
        out: Array = empty(shape, self.out)
        count = out.size
        if count <= SERIAL_MAX:
            compiled.function(0, count, address_of(out), *given)
        else:
            _run(compiled, count, (address_of(out), *given))
        return out

    def __call__(self, arrays: Sequence[Array], out: Array) -> None:
        """Fill `out`. Small contiguous arrays cost one dict lookup and one foreign call."""
        # dtypes are part of the key: the same strides mean another loop for another item size
        key = [out.dtype, out.shape, out.strides]
        for a in arrays:
            key += (a.dtype, a.shape, a.strides)
        plan = self._plans.get(tuple(key))
        self.recent = True
        if plan is None:
            self.check(arrays, out)
            if not out.size:
                return
            plan = self.plan(arrays, out)
            if len(self._plans) >= _CACHED_LAYOUTS:
                self._plans.clear()
            self._plans[tuple(key)] = plan
        compiled, simple, calls = plan
        pointers = [address_of(out), *[address_of(a) for a in arrays]]
        if simple:
            _run(compiled, calls[0].size, pointers)
            return
        for size, offsets, meta in calls:
            given = [p + o for p, o in zip(pointers, offsets, strict=True)]
            if meta is not None:
                given.append(ctypes.addressof(meta))
            _run(compiled, size, given)


def _run(compiled: _Compiled, count: int, given: Sequence[int]) -> None:
    if count <= SERIAL_MAX or thread_pool.num_threads() == 1:
        compiled.function(0, count, *given)
    else:
        spread(compiled.address, count, GRAIN, given)


_kernels: dict[str, Kernel] = {}
_by_identity: dict[int, tuple[Program, Kernel]] = {}
_kernels_lock = threading.RLock()  # reentrant: a thread that holds it may drop a kernel
_MAX_CACHED = 4096


def kernel(program: Program) -> Kernel:
    """The one Kernel of this program; equal programs share it."""
    # By identity first: hashing a long program costs more than running it on a small array. The
    # entry holds the program, so its id cannot pass to another one.
    found = _by_identity.get(id(program))
    if found is not None:
        return found[1]
    with _kernels_lock:
        text = str(program)  # not the tuple itself: 0.0 equals -0.0, and NaN does not equal itself
        made = _kernels.get(text)
        if made is None:
            made = _kernels[text] = Kernel(program)
        if len(_by_identity) >= _MAX_CACHED:
            _by_identity.clear()
        _by_identity[id(program)] = (program, made)
        return made


def _drop(kernel: Kernel) -> None:
    """Drops a kernel's code; calls that are running continue, and later ones compile it again."""
    kernel.forget()
    with _kernels_lock:
        _kernels.pop(str(kernel.program), None)
        for key in [k for k, (_, held) in _by_identity.items() if held is kernel]:
            del _by_identity[key]


def run(program: Program, arrays: Sequence[Array], out: Array) -> None:
    """Fill `out` with `program` of `arrays`, which broadcast to its shape, on all cores.

    `out` may be one of the arrays itself, laid out the same way; any other overlap between them
    gives unspecified values.
    """
    kernel(program)(arrays, out)

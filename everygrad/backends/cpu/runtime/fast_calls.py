"""The fast path of dispatch as native code: functions that CPython calls as it calls its own.

A small elementwise op costs less than the Python around it: reading payloads, asking the context,
making a Tensor and a Node. `forward` gives a builtin that does all this for an op, `backward` one
that is the op's `vjp`. Each serves the common case and leaves any other to Python: `forward`'s
returns None, and `backward`'s calls the function it replaces. They know neither ops nor what the
classes mean.

Values are NumPy's, to the bit: a kernel computes only where NumPy would round alike, and NumPy's
own function is called for everything else. So nobody can see when an op begins to be called here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import slots_of
from everygrad.backends.cpu.llvm.loops import Loops, Pattern
from everygrad.backends.cpu.runtime.fast_call_code import (
    COMMON,
    FORWARD,
    NAMES,
    NODE_SLOTS,
    PART,
    TENSOR_SLOTS,
    source,
)
from everygrad.compiler.expr import Program

_NEW_FROM_DESCR = 94  # the place of PyArray_NewFromDescr in NumPy's table

# What rounds as NumPy does, one or several.
_EXACT = frozenset(("input", "const", "add", "sub", "mul", "div", "neg", "sqrt"))


class Objects(NamedTuple):
    """What results are made of: the classes, and the variables of the context that say up to how
    many elements the fast path serves and whether a graph is recorded (0: no, 1: yes)."""

    tensor: type
    node: type
    limit: ContextVar[int]
    recording: ContextVar[int]


class Part(NamedTuple):
    """The derivative by one input: a program of the gradient and of saved values at `needs`."""

    needs: tuple[int, ...]
    functions: tuple[Callable[..., Any], Callable[..., Any]]
    programs: tuple[Program, Program]
    most: int  # elements up to which NumPy computes it


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


_FASTCALL = 0x0080  # METH_FASTCALL: positional arguments in an array


class _State(np.ndarray[Any, Any]):
    """The words that a builtin works with, and what they stand for, so that it lives as long."""

    held: Any


class _Code(NamedTuple):
    """The loaded code: the definitions of its functions, and the words common to all."""

    methods: dict[str, _Method]
    common: list[int]
    held: Any


@cache
def _code(objects: Objects) -> _Code:
    tensor = slots_of(objects.tensor(), TENSOR_SLOTS)
    node = slots_of(objects.node(), NODE_SLOTS)
    addresses = engine().functions(source(tensor, node), NAMES)
    methods = {n: _Method(n.encode(), addresses[n], _FASTCALL, None) for n in NAMES}
    kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = kind(("PyCapsule_GetPointer", ctypes.pythonapi))(_numpy_table(), None)
    new_array = ctypes.c_int64.from_address(table + 8 * _NEW_FROM_DESCR).value
    float32, float64 = np.dtype(np.float32), np.dtype(np.float64)
    known: dict[str, Any] = {
        "ndarray": np.ndarray, "tuple": tuple, "float32": float32, "float64": float64,
        "none": None, "false": False, "warning": RuntimeWarning, "asarray": np.asarray,
        "shape": "shape", "tensor": objects.tensor, "node": objects.node,
        "limit": objects.limit, "recording": objects.recording,
    }  # fmt: skip
    common = [new_array if name == "new_array" else id(known[name]) for name in COMMON]
    return _Code(methods, common, known)


def _numpy_table() -> Any:
    """The capsule that holds the table of NumPy's C API."""
    return import_module("numpy._core._multiarray_umath")._ARRAY_API


def _builtin(code: _Code, name: str, words: list[int], held: Any) -> Callable[..., Any]:
    state = np.array([*code.common, *words], np.int64).view(_State)
    state.held = (code, held)
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new = kind(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., Any] = new(ctypes.addressof(code.methods[name]), state, None)
    return made


def _kernels(programs: tuple[Program, Program]) -> list[Address | None]:
    """Kernels that give what NumPy gives, for both dtypes; None where there are none."""
    kinds = [inst.fn for inst in programs[0].insts]
    if not _EXACT.issuperset(kinds):
        return [None, None]
    found: list[Address | None] = []
    for program in programs:
        count = 1 + max(inst.value for inst in program.insts if inst.fn == "input")
        loops = Loops(program, Pattern(1, "c" * (1 + count)))
        loops.e.exact = True
        found.append(engine().compile(loops.text(), "kernel"))
    return found


def forward(
    objects: Objects,
    op: Any,
    functions: tuple[Callable[..., Any], Callable[..., Any]],
    programs: tuple[Program, Program],
    most: int,
    keeps: Sequence[Sequence[bool] | None] | None,
) -> Callable[..., Any]:
    """A builtin of as many tensors as the op has inputs, which gives its result or None. `keeps`:
    which of the result and the inputs a node saves, by which inputs want a gradient (the first: 1,
    the second: 2, both: 3); without it nothing is recorded. `most`: see `Part`."""
    code = _code(objects)
    count = len(op.inputs)
    kernels = _kernels(programs)
    nothing = (None,) * (count + 1)
    bits = 0
    for row, keep in enumerate(keeps or ()):
        for place, kept in enumerate(keep or ()):
            bits |= kept << (4 * row + place)
    values = {
        "op": id(op), "records": int(keeps is not None), "keeps": bits, "nothing": id(nothing),
        "function32": id(functions[0]), "function64": id(functions[1]),
        "kernel32": int(kernels[0] or 0), "kernel64": int(kernels[1] or 0), "most": most,
    }  # fmt: skip
    words = [values[name] for name in FORWARD]
    return _builtin(code, f"forward{count}", words, (op, functions, kernels, nothing))


def backward(
    objects: Objects, parts: Sequence[Part | None], slow: Callable[..., Any]
) -> Callable[..., Any]:
    """A builtin of (node, gradient, create_graph) in place of `slow`, which it calls where it does
    not serve. A part that is None: the gradient itself."""
    code = _code(objects)
    words = [id(slow)]
    held: list[Any] = [slow, parts]
    for part in parts:
        values = dict.fromkeys(PART, 0)
        if part is not None:
            kernels = _kernels(part.programs)
            values["count"], values["most"] = 1 + len(part.needs), part.most
            values |= {f"need{k}": need for k, need in enumerate(part.needs)}
            values |= {"function32": id(part.functions[0]), "function64": id(part.functions[1])}
            values |= {"kernel32": int(kernels[0] or 0), "kernel64": int(kernels[1] or 0)}
            held.append(kernels)
        words += [values[name] for name in PART]
    return _builtin(code, f"backward{len(parts)}", words, held)

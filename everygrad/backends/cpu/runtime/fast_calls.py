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
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.llvm import cpython
from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import slots_of
from everygrad.backends.cpu.llvm.loops import Loops, Pattern
from everygrad.backends.cpu.runtime.fast_call_code import (
    APPLY,
    COMMON,
    FORWARD,
    MOST_AXES,
    NODE_SLOTS,
    PARAMS,
    PART,
    ROWS,
    TENSOR_SLOTS,
)
from everygrad.backends.cpu.runtime.fast_call_modules import (
    NAMES,
    ROWS_NAMES,
    rows_source,
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
    programs: tuple[Program, Program] | None = None
    most: int = 0  # elements up to which NumPy computes it


class _State(np.ndarray[Any, Any]):
    """The words that a builtin works with, and what they stand for, so that it lives as long."""

    held: Any


class _Code(NamedTuple):
    """The loaded code: the definitions of its functions, and the words common to all."""

    methods: dict[str, cpython.Method]
    common: list[int]
    held: Any


@cache
def _code(objects: Objects | None) -> _Code:
    """Without objects: of functions of arrays."""
    if objects is None:
        names: tuple[str, ...] = ROWS_NAMES
        text = rows_source()
    else:
        tensor = slots_of(objects.tensor(), TENSOR_SLOTS)
        names, text = NAMES, source(tensor, slots_of(objects.node(), NODE_SLOTS))
    addresses = engine().functions(text, names)
    methods = {n: cpython.method(n, addresses[n]) for n in names}
    return _Code(methods, *common_words(objects))


def common_words(objects: Objects | None) -> tuple[list[int], Any]:
    """The words that `COMMON` names, and what they stand for."""
    float32, float64 = np.dtype(np.float32), np.dtype(np.float64)
    known: dict[str, Any] = {
        "ndarray": np.ndarray, "tuple": tuple, "float32": float32, "float64": float64,
        "none": None, "false": False, "warning": RuntimeWarning, "asarray": np.asarray,
        "shape": "shape", **(objects._asdict() if objects else {}),
    }  # fmt: skip
    words = {name: id(held) for name, held in known.items()}
    words["new_array"] = numpy_function(_NEW_FROM_DESCR)
    return [words.get(name, 0) for name in COMMON], known


def numpy_function(place: int) -> int:
    """The address of a function, by its place in the table of NumPy's C API."""
    capsule = import_module("numpy._core._multiarray_umath")._ARRAY_API
    kind = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    table = kind(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, None)
    return int(ctypes.c_int64.from_address(table + 8 * place).value)


def builtin(method: cpython.Method, words: list[int], held: Any) -> Callable[..., Any]:
    """A builtin that works with these words, and what they stand for."""
    state = np.array(words, np.int64).view(_State)
    state.held = (method, held)
    return cpython.new_builtin(method, state)


def _builtin(code: _Code, name: str, words: list[int], held: Any) -> Callable[..., Any]:
    return builtin(code.methods[name], [*code.common, *words], (code, held))


def _kernels(programs: tuple[Program, Program] | None) -> list[Address | None]:
    """Kernels that give what NumPy gives, for both dtypes; None where there are none."""
    if programs is None:
        return [None, None]
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


def parameters(params: Callable[[int], Any] | None = None) -> tuple[Any, ...]:
    """A node's parameters by its number of axes; None for more axes than are counted."""
    if params is None:
        return (None,) * len(PARAMS)
    return (*(params(ndim) for ndim in range(MOST_AXES + 1)), None)


def forward(
    objects: Objects,
    op: Any,
    part: Part,
    keeps: Sequence[Sequence[bool] | None] | None,
    params: tuple[Any, ...],
) -> Callable[..., Any]:
    """A builtin of as many tensors as the op has inputs, which gives its result or None. `keeps`:
    which of the result and the inputs a node saves, by which inputs want a gradient (the first: 1,
    the second: 2, both: 3 and so on); without it nothing is recorded. `params`: of the node, by its
    number of axes."""
    code = _code(objects)
    count = len(op.inputs)
    kernels = _kernels(part.programs)
    nothing = (None,) * (count + 1)
    bits = 0
    for row, keep in enumerate(keeps or ()):
        for place, kept in enumerate(keep or ()):
            bits |= kept << (4 * row + place)
    values = {
        "op": id(op), "records": int(keeps is not None), "keeps": bits, "nothing": id(nothing),
        **_calls(part, kernels), **{name: id(p) for name, p in zip(PARAMS, params, strict=True)},
    }  # fmt: skip
    words = [values[name] for name in FORWARD]
    return _builtin(code, f"forward{count}", words, (op, part, kernels, nothing, params))


def _calls(part: Part, kernels: Sequence[Address | None]) -> dict[str, int]:
    return {
        "function32": id(part.functions[0]), "function64": id(part.functions[1]),
        "kernel32": int(kernels[0] or 0), "kernel64": int(kernels[1] or 0), "most": part.most,
    }  # fmt: skip


def backward(
    objects: Objects,
    parts: Sequence[Part | None],
    slow: Callable[..., Any],
    params: tuple[Any, ...],
) -> Callable[..., Any]:
    """A builtin of (node, gradient, create_graph) in place of `slow`, which it calls where it does
    not serve. A part that is None: the gradient itself. `params`: those of `forward`."""
    code = _code(objects)
    words = [id(slow), *map(id, params)]
    held: list[Any] = [slow, parts, params]
    for part in parts:
        values = dict.fromkeys(PART, 0)
        if part is not None:
            kernels = _kernels(part.programs)
            values["count"] = 1 + len(part.needs)
            values |= {f"need{k}": need for k, need in enumerate(part.needs)}
            values |= _calls(part, kernels)
            held.append(kernels)
        words += [values[name] for name in PART]
    return _builtin(code, f"backward{len(parts)}", words, held)


def apply(
    objects: Objects, kernels: Mapping[str, Callable[..., Any]], record: Callable[..., Any]
) -> Callable[..., Any]:
    """A builtin of an op, a tuple of tensors and a dict of parameters, which gives the result of
    the op's kernel on their arrays, or None. `record` makes a tensor of a payload that is none."""
    known: dict[str, Any] = {
        "kernels": kernels, "record": record, "retried": (RuntimeWarning, MemoryError),
        "generic": np.generic, "unserved": NotImplemented, "true": True,
        **{name: name for name in ("name", "composed", "constant", "save")},
    }  # fmt: skip
    return _builtin(_code(objects), "apply", [id(known[name]) for name in APPLY], known)


def rows(
    kernels: Sequence[Address | None], most: int, longest: int, inputs: int, shared: int
) -> Callable[..., Any]:
    """A builtin of contiguous arrays: a kernel f(lo, hi, n, out, *inputs) for float32 and float64
    over the rows along their last axis. It gives None for arrays of more elements, or of longer
    rows, and for any others that it does not serve. The last `shared` are one row."""
    values = [int(kernels[0] or 0), int(kernels[1] or 0), most, longest]
    assert len(values) == len(ROWS)
    return _builtin(_code(None), f"rows{inputs}_{shared}", values, kernels)

"""LLVM IR of functions that CPython calls as it calls its own, and where its objects lie in memory.

They call CPython's C API and read NumPy's array struct, which is part of NumPy's ABI, and slots of
Python classes, whose offsets are found by looking.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from everygrad.backends.cpu.llvm.compiler import Emitter
from everygrad.core.ownership import RELIABLE

HEAD = object.__basicsize__  # of every object; the last word of it is the type
# an array after its head: data, number of axes, sizes, strides, base, dtype, flags
DATA, NDIM, SIZES, STRIDES, DTYPE, FLAGS = (HEAD + i for i in (0, 8, 16, 24, 40, 48))
CONTIGUOUS, WRITEABLE = 0x1, 0x400  # of the flags

API = {
    "PyType_GenericAlloc": "ptr (ptr, i64)", "PyType_IsSubtype": "i32 (ptr, ptr)",
    "PyTuple_New": "ptr (i64)", "PyTuple_SetItem": "i32 (ptr, i64, ptr)",
    "PyTuple_GetItem": "ptr (ptr, i64)", "PyTuple_Size": "i64 (ptr)",
    "PyContextVar_Get": "i32 (ptr, ptr, ptr)",
    "PyLong_AsSsize_t": "i64 (ptr)", "PyObject_Vectorcall": "ptr (ptr, ptr, i64, ptr)",
    "PyObject_GetAttr": "ptr (ptr, ptr)", "PyErr_ExceptionMatches": "i32 (ptr)",
    "PyDict_GetItem": "ptr (ptr, ptr)", "PyObject_VectorcallDict": "ptr (ptr, ptr, i64, ptr)",
    "PyObject_VectorcallMethod": "ptr (ptr, ptr, i64, ptr)", "PyErr_Clear": "void ()",
    "PyCapsule_IsValid": "i32 (ptr, ptr)", "PyCapsule_GetPointer": "ptr (ptr, ptr)",
    "Py_IncRef": "void (ptr)", "Py_DecRef": "void (ptr)",
}  # fmt: skip


def declarations() -> str:
    """The functions of CPython, whose addresses LLVM is told."""
    for name in API:
        held = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p)
        llvm.add_symbol(name, held.value)
    return "\n".join(f"declare {t.replace(' (', f' @{name}(')}" for name, t in API.items())


def _words(held: Any, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(id(held)))


def slots_of(made: Any, names: Sequence[str]) -> dict[str, int]:
    """The offsets of a new object's slots, by what appears where when they are set."""
    count = type(made).__basicsize__ // 8
    found = {}
    for name in names:
        mark = object()
        setattr(made, name, mark)
        found[name] = 8 * _words(made, count).index(id(mark))
        delattr(made, name)
    return found


@cache
def is_available() -> bool:
    """Whether this interpreter and NumPy lie in memory as the code expects."""
    if sys.implementation.name != "cpython" or not RELIABLE or struct.calcsize("P") != 8:
        return False
    array = np.zeros((3, 5), np.float32)[1:]
    words = _words(array, HEAD // 8 + 7)
    at = {offset: words[offset // 8] for offset in (DATA, NDIM, SIZES, STRIDES, DTYPE, FLAGS)}
    return (
        words[HEAD // 8 - 1] == id(np.ndarray)
        and at[DATA] == array.ctypes.data
        and at[NDIM] & 0xFFFFFFFF == 2
        and list((ctypes.c_int64 * 2).from_address(at[SIZES])) == [2, 5]
        and list((ctypes.c_int64 * 2).from_address(at[STRIDES])) == [20, 4]
        and at[DTYPE] == id(array.dtype)
        and at[FLAGS] & (CONTIGUOUS | WRITEABLE) == CONTIGUOUS | WRITEABLE
        and not _words(array.T, HEAD // 8 + 7)[FLAGS // 8] & CONTIGUOUS
    )


_FASTCALL, _KEYWORDS = 0x80, 0x02


class Method(ctypes.Structure):
    """PyMethodDef: a builtin's definition, which must live as long as any."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


def method(name: str, address: int) -> Method:
    """Of a function (self, array of positional arguments, their number)."""
    return Method(name.encode(), address, _FASTCALL, None)


def keyword_method(name: str, address: int, doc: str) -> Method:
    """Of a function (self, array of arguments, number of positional ones, names of the others or
    null). `doc`: begins with the signature, as builtins' do."""
    return Method(name.encode(), address, _FASTCALL | _KEYWORDS, doc.encode())


def as_method(builtin: Callable[..., Any]) -> Any:
    """A builtin as an attribute of a class, which is given the object before all else."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)
    return kind(("PyInstanceMethod_New", ctypes.pythonapi))(builtin)


def new_builtin(definition: Method, state: Any) -> Callable[..., Any]:
    """The builtin whose `self` is `state`."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new = kind(("PyCFunction_NewEx", ctypes.pythonapi))
    made: Callable[..., Any] = new(ctypes.addressof(definition), state, None)
    return made


class Function:
    """Writes one function. References it owns lie in slots of the stack, and are given back at the
    one exit, so that no path can forget any."""

    def __init__(self, head: str, result: str = "ptr") -> None:
        self.head = head
        self.result = result
        self.e = Emitter()
        self.labels = itertools.count()
        self.slots: list[str] = []
        self.begin: list[str] = []

    def line(self, text: str) -> None:
        self.e.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.e.lines.append(f"{name}:")

    def emit(self, type_: str, text: str) -> str:
        return self.e.emit(type_, text).name

    def load(self, base: str, offset: int, type_: str = "ptr") -> str:
        at = self.emit("ptr", f"getelementptr i8, ptr {base}, i64 {offset}")
        return self.emit(type_, f"load {type_}, ptr {at}, align 4")

    def store(self, base: str, offset: int, value: str) -> None:
        """A slot of a new object: it has a reference of its own."""
        self.line(f"call void @Py_IncRef(ptr {value})")
        at = self.emit("ptr", f"getelementptr i8, ptr {base}, i64 {offset}")
        self.line(f"store ptr {value}, ptr {at}, align 8")

    def equal(self, a: str, b: str, type_: str = "ptr") -> str:
        return self.emit("i1", f"icmp eq {type_} {a}, {b}")

    def go_unless(self, condition: str, label: str) -> None:
        after = f"go{next(self.labels)}"
        self.line(f"br i1 {condition}, label %{after}, label %{label}")
        self.label(after)

    def go_if(self, condition: str, label: str) -> None:
        after = f"go{next(self.labels)}"
        self.line(f"br i1 {condition}, label %{label}, label %{after}")
        self.label(after)

    def own(self, value: str) -> str:
        """A reference that the exit gives back."""
        slot = f"%owned{len(self.slots)}"
        self.slots.append(slot)
        self.line(f"store ptr {value}, ptr {slot}, align 8")
        return value

    def hold(self, value: str) -> str:
        self.line(f"call void @Py_IncRef(ptr {value})")
        return self.own(value)

    def made(self, text: str, failed: str = "failed") -> str:
        """A new object that the exit gives back; without one there is an error."""
        value = self.own(self.emit("ptr", text))
        self.go_if(self.equal(value, "null"), failed)
        return value

    def leave(self, value: str) -> None:
        """The end, with a reference that the caller is to own."""
        self.line(f"call void @Py_IncRef(ptr {value})")
        self.line(f"store ptr {value}, ptr %result, align 8")
        self.line("br label %exit")

    def text(self) -> str:
        start = ["entry:", "  %result = alloca ptr", "  store ptr null, ptr %result"]
        for slot in self.slots:
            start += [f"  {slot} = alloca ptr", f"  store ptr null, ptr {slot}"]
        start += [*self.begin, "  br label %start", "start:"]
        end = ["failed:", "  br label %exit", "exit:"]
        for i, slot in enumerate(self.slots):
            end += [f"  %gone{i} = load ptr, ptr {slot}",
                    f"  call void @Py_DecRef(ptr %gone{i})"]  # fmt: skip
        end += ["  %back = load ptr, ptr %result", "  ret ptr %back"]
        return "\n".join([f"{self.head} {{", *start, *self.e.lines, *end, "}"])

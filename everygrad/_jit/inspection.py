"""Questions about Python objects that are answered without running any code of theirs."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections import deque
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from everygrad._jit.bytecode import UNKNOWN, Fresh, Some
from everygrad._jit.guards import Cell, in_class, is_plain
from everygrad.core.tensor import Tensor
from everygrad.dtypes import DType

PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PATHS = sysconfig.get_paths()
_LIBRARY = tuple(_PATHS[k] + os.sep for k in ("stdlib", "platstdlib"))
_INSTALLED = tuple(_PATHS[k] + os.sep for k in ("purelib", "platlib"))
_NUMPY = os.path.dirname(np.__file__) + os.sep
# what everygrad itself calls, to open a device or to compile
_DEPENDENCIES = (
    "cffi",
    "cupy",
    "cupy_backends",
    "cupyx",
    "llvmlite",
    "ml_dtypes",
    "optree",
    "wgpu",
)


NOT_LOOKED_INTO = (  # functions, whose reads are followed when they are called; and namespaces
    type,
    ModuleType,
    FunctionType,
    MethodType,
    BuiltinFunctionType,
    functools.partial,
    staticmethod,
    classmethod,
)


@functools.cache  # asked at every call that is followed
def is_ours(filename: str) -> bool:
    """Whether code is everygrad's, the standard library's, or a library's that everygrad calls:
    not followed."""
    if filename.startswith((PACKAGE, _NUMPY, "<frozen ")):
        return True
    if filename.startswith(_LIBRARY) and not filename.startswith(_INSTALLED):
        return True
    loaded = [getattr(sys.modules.get(name), "__file__", None) for name in _DEPENDENCIES]
    return filename.startswith(tuple(os.path.dirname(f) + os.sep for f in loaded if f))


def is_installed(filename: str) -> bool:
    """Whether code is a library's, not the user's own."""
    return filename.startswith(_INSTALLED)


def of_the_package(kind: type) -> bool:
    return str(kind.__module__).split(".")[0] == "everygrad"


def keeps_own_guards(held: Any) -> bool:
    """Tensors, modules, optimisers, generators: guarded by the tracer, or by counts of changes."""
    return any(of_the_package(kind) for kind in type(held).__mro__)


def counts_changes(held: Any) -> bool:
    return hasattr(type(held), "fingerprint") and keeps_own_guards(held)


_NO_OBJECTS = (type, ModuleType, FunctionType, MethodType, Tensor, Enum, DType)


def has_attributes(held: Any) -> bool:
    """Whether an object has a dict of attributes that is worth looking at."""
    return not isinstance(held, _NO_OBJECTS) and isinstance(getattr(held, "__dict__", None), dict)


def slots_of(kind: type) -> list[str]:
    """The names of the attributes that a class keeps in slots."""
    found = [pair for base in kind.__mro__ for pair in base.__dict__.items()]
    slots = [name for name, value in found if isinstance(value, MemberDescriptorType)]
    return [name for name in slots if not name.startswith("__")]


def overrides(held: Any, name: str) -> bool:
    return isinstance(in_class(type(held), name), FunctionType)


def elements_of(held: Any) -> list[Any]:
    """What an iterator over a container of Python's own may give: of a dict, values too."""
    if isinstance(held, dict):
        return [*dict.keys(held), *dict.values(held)]
    return list(held) if isinstance(held, list | tuple | set | frozenset | deque) else []


def is_known(key: Any) -> bool:
    """Whether a key is an object of the program's, with all that a tuple holds."""
    if isinstance(key, Some | Fresh):
        return False
    return all(map(is_known, key)) if type(key) is tuple else key is not UNKNOWN


def is_memory(held: Any) -> bool:
    """Whether an object is a piece of memory: an array.array, a memoryview, an array of ctypes."""
    try:
        memoryview(held).release()
    except (TypeError, ValueError, BufferError):
        return False
    return not isinstance(held, bytes | bytearray)


def hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def known_in(value: Any, kinds: frozenset[Any]) -> bool:
    return hashable(value) and value in kinds


def shown(key: Any) -> str:
    text = repr(key) if is_plain(key) else type(key).__name__
    return text if len(text) < 40 else "..."


def holds(fn: FunctionType, values: list[Any]) -> bool:
    """Whether a function's variables have these values."""
    cells = fn.__closure__ or ()
    guards = [Cell("", cell, None) for cell in cells]
    return all(g.now() is v for g, v in zip(guards, values, strict=False))

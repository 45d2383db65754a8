"""Questions about Python objects that are answered without running any code of theirs."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
from collections import deque
from enum import Enum
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from everygrad._jit.bytecode import UNKNOWN, Fresh, Made, Some
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


# classes of ours whose objects are what their attributes are, like anybody's
_PLAIN_OBJECTS = ("everygrad.distributions", "everygrad.data", "everygrad.models")


def of_the_package(kind: type) -> bool:
    return str(kind.__module__).split(".")[0] == "everygrad"


def keeps_own_guards(held: Any) -> bool:
    """Tensors, modules, optimisers, generators: guarded by the tracer, or by counts of changes."""
    first = next((kind for kind in type(held).__mro__ if of_the_package(kind)), None)
    return first is not None and not first.__module__.startswith(_PLAIN_OBJECTS)


def is_internal(held: Any) -> bool:
    """Whether an object of ours is no user's subclass, and keeps its own guards."""
    return of_the_package(type(held)) and keeps_own_guards(held)


def counts_changes(held: Any) -> bool:
    return hasattr(type(held), "fingerprint") and keeps_own_guards(held)


def belongs_to_library(kind: type) -> bool:
    """Whether a class is of the standard library, such as collections.UserDict: its methods are not
    followed, and it keeps what it is given in attributes."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and is_ours(file) and not of_the_package(kind)


ON_THE_HEAP = 1 << 9  # flag of a class whose attributes can be set


def keeps_to_itself(fn: FunctionType) -> bool:
    """Whether a function that is not followed is ours or NumPy's, whose variables hold nothing of
    the program's but functions."""
    return fn.__code__.co_filename.startswith((PACKAGE, _NUMPY))


def values_of_cells(fn: FunctionType) -> list[Any]:
    """What a function of the library holds, and the functions that it holds, such as the table
    of functools.singledispatch."""
    cells = fn.__closure__ or ()
    found = [Cell("", cell, None).now() for cell in cells]
    inner = [v for v in found if unfollowed_code(v) and v is not fn]
    return [*found, *(x for v in inner for x in values_of_cells(v))]


def shared_sources() -> list[Any]:
    """Python's and NumPy's own sources of random numbers, which functions of their modules use."""
    names = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))
    found = [getattr(sys.modules.get(module), name, None) for module, name in names]
    return [source for source in found if source is not None]


def is_code_of(fn: Any, code: CodeType) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return getattr(getattr(fn, "__func__", fn), "__code__", None) is code


def unfollowed_code(fn: Any) -> bool:
    return isinstance(fn, FunctionType) and is_ours(fn.__code__.co_filename)


def is_users(fn: Any) -> bool:
    """Whether a function is the user's own, neither the library's nor an installed package's."""
    while isinstance(fn, MethodType | functools.partial):
        fn = fn.__func__ if isinstance(fn, MethodType) else fn.func
    if isinstance(fn, FunctionType):
        file = fn.__code__.co_filename
        return not is_ours(file) and not is_installed(file)
    return isinstance(fn, Made)


def bound_to(fn: Any) -> Any:
    """What a bound method that is not followed works on; None if nothing of a program's."""
    if isinstance(fn, MethodType):
        return fn.__self__ if unfollowed_code(fn.__func__) else None
    owner = getattr(fn, "__self__", None)
    return None if isinstance(owner, ModuleType | type) else owner


def draws(held: Any) -> bool:
    """Whether an object is a source of random numbers, of Python's or NumPy's."""
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(held).__mro__}
    return not names.isdisjoint(_SOURCES)


_SOURCES = {
    "random.Random",
    "numpy.random.mtrand.RandomState",
    "numpy.random._generator.Generator",
    "numpy.random.bit_generator.BitGenerator",
}


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
    """Whether an object is a piece of memory: an array.array, a memoryview, an array of ctypes, a
    record of NumPy's, or another library's array."""
    if hasattr(type(held), "__dlpack__") and hasattr(type(held), "__array__"):
        return True
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

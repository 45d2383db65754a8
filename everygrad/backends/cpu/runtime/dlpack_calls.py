"""DLPack on the CPU's memory as native code: builtins that do what Python does, in a fifth of its
time, for contiguous arrays and for PyTorch's tensors, and leave all others to Python.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.cpu.llvm import cpython
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.runtime.dlpack_code import EXPORT, IMPORT, NAMES, source
from everygrad.backends.cpu.runtime.fast_call_code import TENSOR_SLOTS
from everygrad.backends.cpu.runtime.fast_calls import (
    Objects,
    builtin,
    common_words,
    numpy_function,
)

_SET_BASE = 282  # the place of PyArray_SetBaseObject in NumPy's table
_OLD, _VERSIONED = (
    ctypes.create_string_buffer(name) for name in (b"dltensor", b"dltensor_versioned")
)
_CPU = (1, 0)  # DLPack's device
_SIGNATURE = "(self, /, *, stream=None, max_version=None, dl_device=None, copy=None)"


@cache
def _addresses(tensor: type) -> dict[str, Any]:
    return dict(engine().functions(source(cpython.slots_of(tensor(), TENSOR_SLOTS)), NAMES))


def _made(method: cpython.Method, objects: Objects, known: dict[str, Any], more: Any) -> Any:
    """A builtin: `known` are objects by their words' names, in order; numbers are words
    themselves."""
    common, held = common_words(objects)
    words = [v if isinstance(v, _Word) else id(v) for v in known.values()]
    return builtin(method, [*common, *words], (held, known, more))


class _Word(int):
    """A number that is a word itself, where other objects' addresses are."""


def _shared_words() -> dict[str, Any]:
    return {
        "set_base": _Word(numpy_function(_SET_BASE)), "old": _Word(ctypes.addressof(_OLD)),
        "versioned": _Word(ctypes.addressof(_VERSIONED)), "bfloat16": dtypes.bfloat16.np,
    }  # fmt: skip


def exported(objects: Objects, slow: Callable[..., Any], slow_device: Callable[..., Any]) -> Any:
    """`__dlpack__` and `__dlpack_device__` of tensors, which call these where they do not serve."""
    addresses = _addresses(objects.tensor)
    made = []
    for name, function, signature in (
        ("exported", slow, _SIGNATURE), ("exported_device", slow_device, "(self)"),
    ):  # fmt: skip
        known = _shared_words() | {
            "slow": function, "name": "__dlpack__", "max_version": sys.intern("max_version"),
            "bits": np.dtype(np.uint16), "cpu": _CPU,
        }  # fmt: skip
        title = function.__name__
        doc = f"{title}{signature}\n--\n\n{function.__doc__ or ''}"
        method = cpython.keyword_method(title, addresses[name], doc)
        words = {word: known[word] for word in EXPORT}
        made.append(cpython.as_method(_made(method, objects, words, addresses)))
    return tuple(made)


def imported(objects: Objects, torch: Any) -> Callable[..., Any]:
    """A builtin of a PyTorch tensor, which gives a tensor on its memory or None."""
    addresses = _addresses(objects.tensor)
    known = _shared_words() | {
        "torch_tensor": torch.Tensor, "torch_parameter": torch.nn.Parameter,
        "torch_bfloat16": torch.bfloat16, "to_dlpack": torch.utils.dlpack.to_dlpack,
        **{name: name for name in ("dtype", "numpy", "requires_grad", "is_neg")},
    }  # fmt: skip
    method = cpython.method("imported", addresses["imported"])
    return _made(method, objects, {word: known[word] for word in IMPORT}, addresses)

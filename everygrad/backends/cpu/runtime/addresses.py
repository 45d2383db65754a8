"""Where an array's first element lies."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

# PyArrayObject begins with the object head and then the data pointer: part of NumPy's ABI, and ten
# times faster to read than `ctypes.data` or `__array_interface__`
_HEAD = object.__basicsize__
_read_pointer = ctypes.c_void_p.from_address


def address_of(array: Any) -> int:
    return _read_pointer(id(array) + _HEAD).value or 0


def _address_slowly(array: Any) -> int:
    return int(array.ctypes.data)


_probe = np.zeros(3)[1:]
if address_of(_probe) != _address_slowly(_probe):  # an interpreter with another object header
    address_of = _address_slowly

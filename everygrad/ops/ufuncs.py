"""NumPy's functions on tensors: `np.exp(x)` is `eg.exp(x)`, a tensor with its derivative.

The operators of NumPy's arrays and numbers come here too: `array + x` is `np.add(array, x)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.errors import ArgumentError, DtypeError
from everygrad.ops.spec import REGISTRY, give_methods
from everygrad.tensor import Tensor

# What NumPy calls otherwise. A function without a namesake here is refused by name.
_OURS = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
    "rint": "round",
}


_KNOWN = (Tensor, np.ndarray, np.generic, bool, int, float, complex)


def _counterpart(ufunc: Any) -> Any:
    """The op that means what a function of NumPy's means, or None."""
    name = ufunc.__name__
    if getattr(np, name, None) is not ufunc:  # another library's
        return None
    try:
        return REGISTRY[_OURS.get(name, name)]
    except KeyError:
        return None


def __array_ufunc__(  # noqa: N807
    self: Tensor, ufunc: Any, method: str, /, *inputs: Any, out: Any = (), **options: Any
) -> Any:
    """The op that means the same. What is to be written into a NumPy array is computed by NumPy,
    from the tensors' values."""
    call = f"{ufunc.__name__}" if method == "__call__" else f"{ufunc.__name__}.{method}"
    if any(isinstance(target, Tensor) for target in out):
        raise ArgumentError(f"{call}: values of tensors never change; leave out= away")
    if not all(isinstance(v, _KNOWN) for v in inputs):
        return NotImplemented  # it may be the other one's to answer
    if out:
        arrays = (np.asarray(v) if isinstance(v, Tensor) else v for v in inputs)
        return getattr(ufunc, method)(*arrays, out=out, **options)
    op = _counterpart(ufunc)
    if op is None or method != "__call__" or options:
        named = f" with {', '.join(options)}" if options else ""
        raise DtypeError(
            f"{call}{named}: tensors have no such function; call it on the values, x.numpy()"
        )
    # of a number compared with a tensor NumPy makes an array without axes
    return op.function(*(v[()] if isinstance(v, np.ndarray) else v for v in inputs))


give_methods(__array_ufunc__=__array_ufunc__)

"""NumPy's functions on tensors: `np.exp(x)` is `eg.exp(x)`, a tensor with its derivative.

The operators of NumPy's arrays and numbers come here too: `array + x` is `np.add(array, x)`. So do
`np.sum(x)` and NumPy's other reductions and scans. What else NumPy has it does with tensors as with
any object: by a method of that name, or on the values.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError
from everygrad.ops.record.spec import REGISTRY, give_methods

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


# NumPy's reductions, each with the op and the options it passes on
_REDUCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    np.sum: ("sum", ("axis", "dtype", "keepdims")),
    np.prod: ("prod", ("axis", "dtype", "keepdims")),
    np.mean: ("mean", ("axis", "keepdims")),
    np.var: ("var", ("axis", "correction", "keepdims")),
    np.std: ("std", ("axis", "correction", "keepdims")),
    np.max: ("max", ("axis", "keepdims")),
    np.amax: ("max", ("axis", "keepdims")),
    np.min: ("min", ("axis", "keepdims")),
    np.amin: ("min", ("axis", "keepdims")),
    np.all: ("all", ("axis", "keepdims")),
    np.any: ("any", ("axis", "keepdims")),
    np.argmax: ("argmax", ("axis", "keepdims")),
    np.argmin: ("argmin", ("axis", "keepdims")),
    np.count_nonzero: ("count_nonzero", ("axis", "keepdims")),
}
_SCANS: dict[Any, str] = {np.cumsum: "cumsum", np.cumprod: "cumprod"}
_PARTS: dict[Any, str] = {np.real: "real", np.imag: "imag"}  # attributes of NumPy's arrays
_UNSAID = getattr(np, "_NoValue", None)


def __array_function__(  # noqa: N807
    self: Tensor, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The op that means the same; any other function of NumPy's does what it does."""
    if func in _PARTS:
        return REGISTRY[_PARTS[func]].function(*args, **kwargs)
    if func not in _REDUCTIONS and func not in _SCANS and func is not np.ptp:
        return func._implementation(*args, **kwargs)
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    x = given.pop("a")
    if isinstance(given.get("out"), np.ndarray) or not isinstance(x, Tensor):
        arrays = {k: np.asarray(v) if isinstance(v, Tensor) else v for k, v in given.items()}
        return func(np.asarray(x), **arrays)
    options = {k: v for k, v in given.items() if v is not None and v is not _UNSAID}
    if "ddof" in options:
        options["correction"] = options.pop("ddof")
    if func in _SCANS:
        if "axis" not in options:  # NumPy's default: of all elements, in order
            x, options["axis"] = x.reshape(-1), 0
        return REGISTRY[_SCANS[func]].function(x, **options)
    if func is np.ptp:
        return x.max(**options) - x.min(**options)
    name, takes = _REDUCTIONS[func]
    if "dtype" in options and "dtype" not in takes:
        x = x.astype(options.pop("dtype"))
    more = [k for k in options if k not in takes]
    if more:
        raise ArgumentError(
            f"{name}: np.{func.__name__} of a tensor takes no {', '.join(more)}; "
            f"call it on the values, x.numpy()"
        )
    return REGISTRY[name].function(x, **options)


give_methods(__array_ufunc__=__array_ufunc__, __array_function__=__array_function__)

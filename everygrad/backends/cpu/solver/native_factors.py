"""Factorisations of small matrices by one native call (`factor_code`)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import is_available
from everygrad.backends.cpu.runtime.native_call import bound
from everygrad.backends.cpu.solver import eigen_code, factor_code as code
from everygrad.backends.cpu.solver.batched_lapack import SMALL, library, routine
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import FROM_NP

_FEW = edge(__name__, "_FEW", 1 << 18, "products")  # with the interpreter's lock held
_SHORT = edge(__name__, "_SHORT", 1 << 18, "products")  # of one matrix, without LAPACK
# the routines of each, for real and complex numbers; none where `factor_code` writes it out
_ROUTINES: dict[str, tuple[tuple[str, str], ...]] = {
    "eigh": (("syevd", "heevd"),),
    "svd": (("gesdd", "gesdd"),),
    "qr": (("geqr2", "geqr2"), ("org2r", "ung2r")),
    "cholesky": (),
    "slogdet": (),
}
_OF_SINGLES = {**_ROUTINES, "qr": ()}
_OF_REAL_SINGLES = {**_OF_SINGLES, "eigh": (), "svd": ()}


def _routines(name: str, char: str) -> tuple[tuple[str, str], ...]:
    return {"f": _OF_REAL_SINGLES, "F": _OF_SINGLES}.get(char, _ROUTINES)[name]


def serves(x: Any, name: str) -> bool:
    """Whether this is the shortest way for the matrices."""
    m, n = x.shape[-2:]
    routines = _routines(name, x.dtype.char)
    return (
        min(m, n) > 0
        and (max(m, n) <= SMALL if routines else m * n * min(m, n) <= _SHORT)
        and x.size * max(m, n) <= _FEW
        and is_available()
        and (not routines or library() is not None)
    )


@cache
def _address(name: str, char: str) -> Address:
    sources = code.SOURCES | (eigen_code.SOURCES if char == "f" else {})
    source = sources[name](FROM_NP[np.dtype(char)])
    return engine().compile(source, "step", vectorise=False)


def _packed(name: str, shape: Shape) -> Shape:
    *batch, m, n = shape
    return {
        "eigh": (*batch, n, n + 1),
        "svd": (*batch, m + 1 + n, min(m, n)),
        "qr": (*batch, m + n, n),
        "slogdet": (*batch, 2),
    }.get(name, shape)


_bound: dict[Any, tuple[Any, Any, Shape]] = {}


def factored(name: str, x: Any) -> Any:
    """The op's result; None where a matrix has none, or x is not served."""
    key = (name, x.dtype.char, x.shape)
    found = _bound.get(key)
    if found is None:
        if not serves(x, name):
            return None
        found = _make(key)
    call, status, shape = found
    out = np.empty(shape, x.dtype)
    status[0] = 0
    call(x if x.flags.c_contiguous else np.ascontiguousarray(x), out)
    return None if status[0] else out


def _make(key: tuple[str, str, Shape]) -> tuple[Any, Any, Shape]:
    name, char, shape = key
    *batch, m, n = shape
    k, most = min(m, n), max(m, n)
    is_complex = char in "FD"
    # as LAPACK's pages say: generous for one routine, enough for all
    sizes = (8 * k * k + 16 * most + 64, 7 * k * k + 2 * most * k + 16 * k + 64, 8 * most + 16)
    numbers = np.array([m, n, k, 0, *sizes, 0, *[0] * (16 * most + 64)], np.int64)
    whole = -(-most // 8) * 8  # in vectors
    room = sizes[0] + sizes[1] + 4 * k * whole + 4 * most * (-(-k // 8) * 8) + 64 * most + 256
    letter = "D" if is_complex else "d"
    routines = [
        ctypes.cast(routine(names[is_complex], letter, 0), ctypes.c_void_p).value
        for names in _routines(name, char)
    ]
    status = np.zeros(1, np.int64)
    words = (0, 0, *routines, *[0] * (2 - len(routines)), np.empty(2 * room), m, n, k, numbers,
             status, size_of(tuple(batch)))  # fmt: skip
    if len(_bound) >= 500:
        _bound.clear()
    made = bound(_address(name, char), words, code.X, 2)
    found = _bound[key] = made, status, _packed(name, shape)
    return found

"""cuSOLVER and cuBLAS of Python: they note what is called, and do it by NumPy and SciPy on the
host's memory, which is where the device "cuda:dry" has its arrays. And what the kernels around them
do, in NumPy: a dry device runs none."""

from __future__ import annotations

import ctypes
import re
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
from scipy.linalg import lapack

from everygrad import dtypes
from everygrad.backends.cuda.driver.cusolver import (
    _BLAS,
    _SOLVER,
    WORKSPACE,
    Cusolver,
    Libraries,
)
from everygrad.backends.cuda.solver import factorisations
from everygrad.errors import ArgumentError

DTYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
STEMS = "|".join([*_SOLVER, *_BLAS, "ungqr"])
ROUTINE = re.compile(rf"(?:cusolverDn|cublas)([SDCZ])({STEMS})(_bufferSize|_v2)?$")
ELEMENTS = 33  # that every routine asks for to work in
HANDLE = 77


class Function:
    """A function of a library, as ctypes shows it."""

    def __init__(self, run: Any) -> None:
        self.argtypes: list[Any] | None = None
        self._run = run

    def __call__(self, *arguments: Any) -> Any:
        assert self.argtypes is None or len(arguments) == len(self.argtypes)
        return self._run(*arguments)


class FakeCusolver:
    """Both libraries: what was called is in `called`, by name, with the numbers it was given."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.status: dict[str, int] = {}  # by routine: what it answers
        self.idle = False  # it notes what is called, and does nothing
        self._functions: dict[str, Function] = {}

    def __getattr__(self, name: str) -> Function:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._functions:
            found = ROUTINE.match(name)
            if found is None:
                run = partial(self._set_up, name)
            else:
                letter, stem, ending = found.groups()
                size = ending == "_bufferSize"
                run = partial(self._size if size else self._routine, DTYPES[letter], stem)
            self._functions[name] = Function(run)
        return self._functions[name]

    def opened(self, address: int) -> Cusolver:
        """Our side of both, with a workspace at an address."""
        return Cusolver(Libraries(self, self), 5, address)

    def _set_up(self, name: str, *arguments: Any) -> int:
        if "Create" in name:
            arguments[0]._obj.value = HANDLE
        elif "SetWorkspace" in name:
            assert arguments[2] == WORKSPACE
        else:
            assert arguments == (HANDLE, 5)
        return self.status.get(name, 0)

    def _size(self, dtype: Any, stem: str, handle: int, *arguments: int) -> int:
        assert handle == HANDLE
        ctypes.c_int.from_address(arguments[-1]).value = ELEMENTS
        return self.status.get(f"{stem}_bufferSize", 0)

    def _routine(self, dtype: Any, stem: str, handle: int, *arguments: int) -> int:
        assert handle == HANDLE
        self.called.append(stem)
        if stem not in self.status and not self.idle:
            name = {"ungqr": "orgqr"}.get(stem, stem)
            globals()[f"_{name}"](np.dtype(dtype), *arguments)
        return self.status.get(stem, 0)


# --- memory --------------------------------------------------------------------------------------


def _at(address: int, dtype: Any, *shape: int, leading: int | None = None) -> Any:
    """The host's memory as a column-major array."""
    dtype = np.dtype(dtype)
    ld = shape[0] if leading is None else leading
    steps = tuple(dtype.itemsize * s for s in (1, ld)[: len(shape)])
    facts = {"data": (address, False), "shape": shape, "typestr": dtype.str, "strides": steps}
    return np.asarray(type("Memory", (), {"__array_interface__": facts | {"version": 3}})())


def _list(address: int, count: int) -> list[int]:
    return [int(v) for v in _at(address, np.uint64, count)]


# --- routines ------------------------------------------------------------------------------------


def _potrf(
    dtype: Any, uplo: int, n: int, a: int, ld: int, work: int, work_size: int, info: int
) -> None:
    assert (uplo, work_size) == (1, ELEMENTS)
    _at(work, dtype, work_size)[:] = 0
    x = _at(a, dtype, n, n, leading=ld)
    made, failed = lapack.get_lapack_funcs("potrf", dtype=dtype)(x, lower=False, clean=False)
    x[...] = made
    _at(info, np.int32, 1)[:] = failed


def _potrfBatched(dtype: Any, uplo: int, n: int, a: int, ld: int, info: int, count: int) -> None:  # noqa: N802
    work = np.zeros(ELEMENTS, dtype)
    for k, one in enumerate(_list(a, count)):
        _potrf(dtype, uplo, n, one, ld, work.ctypes.data, ELEMENTS, info + 4 * k)


def _getrf(dtype: Any, m: int, n: int, a: int, ld: int, work: int, pivots: int, info: int) -> None:
    x = _at(a, dtype, m, n, leading=ld)
    made, rows, failed = lapack.get_lapack_funcs("getrf", dtype=dtype)(x)
    x[...] = made
    _at(pivots, np.int32, min(m, n))[:] = rows + 1
    _at(info, np.int32, 1)[:] = failed
    if work and np.isnan(x).any():  # as cuSOLVER does, and cuBLAS does not
        x[...], _at(info, np.int32, 1)[:] = 0, 1
    if work:
        _at(work, dtype, ELEMENTS)[:] = 0


def _getrfBatched(dtype: Any, n: int, a: int, ld: int, pivots: int, info: int, count: int) -> None:  # noqa: N802
    for k, one in enumerate(_list(a, count)):
        _getrf(dtype, n, n, one, ld, 0, pivots + 4 * n * k, info + 4 * k)


def _getrs(*args: Any) -> None:
    dtype, trans, n, r, a, ld, pivots, b, ldb, _ = args
    assert trans == 0
    right = _at(b, dtype, n, r, leading=ldb)
    rows = _at(pivots, np.int32, n) - 1
    with np.errstate(all="ignore"):
        getrs = lapack.get_lapack_funcs("getrs", dtype=dtype)
        right[...] = getrs(_at(a, dtype, n, n, leading=ld), rows, right)[0]


def _getrsBatched(*args: Any) -> None:  # noqa: N802
    dtype, trans, n, r, a, ld, pivots, b, ldb, _, count = args
    for k, (one, right) in enumerate(zip(_list(a, count), _list(b, count), strict=True)):
        _getrs(dtype, trans, n, r, one, ld, pivots + 4 * n * k, right, ldb, 0)


def _matinvBatched(*args: Any) -> None:  # noqa: N802
    dtype, n, a, ld, b, ldb, info, count = args
    assert n <= 32
    words = _at(info, np.int32, count)
    for k, (one, out) in enumerate(zip(_list(a, count), _list(b, count), strict=True)):
        x, words[k] = _at(one, dtype, n, n, leading=ld), 0
        try:
            _at(out, dtype, n, n, leading=ldb)[...] = np.linalg.inv(x)
        except np.linalg.LinAlgError:
            words[k] = 1


def _trsm(*args: Any) -> None:
    dtype, side, uplo, trans, diagonal, m, n, one, a, ld, b, ldb = args
    assert side == 1
    assert _at(one, dtype, 1)[0] == 1
    x, out = _at(a, dtype, n, n, leading=ld), _at(b, dtype, m, n, leading=ldb)
    tri = np.triu(x) if uplo else np.tril(x)
    if diagonal:
        np.fill_diagonal(tri, 1)
    op = tri.T if trans else tri
    lower = bool(uplo) == bool(trans)
    if (np.diag(op) != 0).all():
        made = scipy.linalg.solve_triangular(op.T, out.T, lower=not lower)
        out[...] = made.T


def _trsmBatched(*args: Any) -> None:  # noqa: N802
    *head, a, ld, b, ldb, count = args
    for one, right in zip(_list(a, count), _list(b, count), strict=True):
        _trsm(*head, one, ld, right, ldb)


def _geqrf(*args: Any) -> None:
    dtype, m, n, a, ld, scale, work, work_size, info = args
    x = _at(a, dtype, m, n, leading=ld)
    made, tau, *_ = lapack.get_lapack_funcs("geqrf", dtype=dtype)(x)
    x[...], _at(scale, dtype, n)[:] = made, tau
    _at(work, dtype, work_size)[:] = 0
    _at(info, np.int32, 1)[:] = 0


def _orgqr(*args: Any) -> None:
    dtype, m, n, k, a, ld, scale, work, work_size, info = args
    x = _at(a, dtype, m, n, leading=ld)
    name = "ungqr" if dtype.kind == "c" else "orgqr"
    given = x.copy(order="F")
    given[:, k:] = 0  # what is there is not to be read
    x[...] = lapack.get_lapack_funcs(name, dtype=dtype)(given, _at(scale, dtype, k))[0]
    _at(work, dtype, work_size)[:] = 0
    _at(info, np.int32, 1)[:] = 0


# --- kernels, by NumPy ---------------------------------------------------------------------------


def _strided(address: int, dtype: Any, shape: Any, strides: Any) -> Any:
    """The host's memory as an array with steps in elements."""
    steps = tuple(s * dtype.itemsize for s in strides)
    facts = {"data": (address, False), "shape": shape, "typestr": dtype.str, "strides": steps}
    return np.asarray(type("Memory", (), {"__array_interface__": facts | {"version": 3}})())


def copy_strided(dev: Any, x: Any, address: int, strides: tuple[int, int, int]) -> None:
    *batch, m, n = x.shape
    count = int(np.prod(batch))

    def placed(source: int, target: int) -> None:
        given = _strided(source, x.dtype, x.shape, x.strides)
        _strided(target, x.dtype, (count, m, n), strides)[...] = given.reshape(count, m, n)

    dev.gpu.call(placed, x.ptr, address)


def addresses(dev: Any, count: int, *stretches: tuple[int, int]) -> Any:
    out = dev.empty((len(stretches), count), dtypes.uint64)

    def listed(*at: int) -> None:
        firsts, steps = np.array(at[:-1], np.uint64), np.array([s for _, s in stretches], np.uint64)
        found = firsts[:, None] + steps[:, None] * np.arange(count, dtype=np.uint64)
        _at(at[-1], np.uint64, out.shape[0] * count)[:] = found.reshape(-1)

    dev.gpu.call(listed, *(first for first, _ in stretches), out.ptr)
    return out


def unit_matrices(dev: Any, count: int, n: int, dtype: Any) -> Any:
    out = dev.empty((count, n, n), dtype)

    def made(at: int) -> None:
        _strided(at, dtype.np, (count, n, n), (n * n, n, 1))[...] = np.eye(n)

    dev.gpu.call(made, out.ptr)
    return out


def mark_failures(dev: Any, x: Any, info: Any, out: Any, what: str | None) -> None:
    number = -1 if what is None else dev.gpu.check_number(what, 1, ArgumentError)
    count = info.shape[0]

    def settled(at: int, words: int, made: int, *faults: int) -> None:
        given = _strided(at, x.dtype, x.shape, x.strides).reshape(count, *x.shape[-2:])
        results = _strided(made, x.dtype, (count, out.size), (out.step, 1))
        for k in np.flatnonzero(_at(words, np.int32, count)):
            if not np.isfinite(given[k]).all():
                results[k] = np.nan
            elif faults:
                _at(faults[0], np.int64, 3)[:] = 1, number, 0

    words = () if what is None else (dev.gpu.faults(),)
    dev.gpu.call(settled, x.ptr, info.ptr, out.address, *words)


def keep_lower(dev: Any, x: Any, info: Any, what: str) -> None:
    number = dev.gpu.check_number(what, 1, ArgumentError)

    def cut(at: int, words: int, faults: int) -> None:
        found = _strided(at, x.dtype, x.shape, x.strides)
        found[...] = np.tril(found)
        if _at(words, np.int32, info.shape[0]).any():
            _at(faults, np.int64, 3)[:] = 1, number, 0

    dev.gpu.call(cut, x.ptr, info.ptr, dev.gpu.faults())


def refuse_zeros(dev: Any, a: Any, what: str) -> None:
    number = dev.gpu.check_number(what, 1, ArgumentError)

    def looked(at: int, faults: int) -> None:
        found = _strided(at, a.dtype, a.shape, a.strides)
        if (np.diagonal(found, axis1=-2, axis2=-1) == 0).any():
            _at(faults, np.int64, 3)[:] = 1, number, 0

    dev.gpu.call(looked, a.ptr, dev.gpu.faults())


def put_pivots(dev: Any, packed: Any, pivots: Any) -> None:
    count, columns, m = packed.shape
    few = pivots.shape[-1]

    def put(rows: int, at: int) -> None:
        last = _strided(at, packed.dtype, packed.shape, (columns * m, m, 1))[:, -1]
        last[...] = 0
        last[:, :few] = _strided(rows, np.dtype(np.int32), (count, few), (few, 1)) - 1

    dev.gpu.call(put, pivots.ptr, packed.ptr)


def determinants(dev: Any, factors: Any, pivots: Any, out: Any, logs: bool) -> None:
    count, n = pivots.shape

    def found(at: int, rows: int, result: int) -> None:
        lu = _strided(at, factors.dtype, (count, n, n), (n * n, n, 1))
        moved = _strided(rows, np.dtype(np.int32), (count, n), (n, 1)) != np.arange(n) + 1
        det = np.diagonal(lu, axis1=1, axis2=2).prod(axis=1) * (-1) ** moved.sum(axis=1)
        size = np.abs(det)
        with np.errstate(all="ignore"):
            both = np.stack([det / size, np.log(size)], axis=1)
        _at(result, out.dtype, count * (2 if logs else 1))[:] = (both if logs else det).reshape(-1)

    dev.gpu.call(found, factors.ptr, pivots.ptr, out.ptr)


def take_triangle(dev: Any, memory: Any, n: int, rows: int, offset: int) -> None:
    count, columns, leading = memory.shape
    strides = ((count, n, rows), (columns * leading, leading, 1))

    def taken(at: int) -> None:
        source = _strided(at, memory.dtype, *strides)
        target = _strided(at + offset * memory.dtype.itemsize, memory.dtype, *strides)
        target[...] = np.tril(source)

    dev.gpu.call(taken, memory.ptr)


def install_kernels(monkeypatch: Any) -> None:
    """Let NumPy do what kernels would."""
    for kernel in (
        *(copy_strided, addresses, unit_matrices, mark_failures, keep_lower, refuse_zeros),
        *(put_pivots, determinants, take_triangle),
    ):
        monkeypatch.setattr(factorisations, kernel.__name__, kernel)

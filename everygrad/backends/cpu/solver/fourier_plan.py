"""Plans of Fourier transforms by native code (`fourier_code`), and how they are run.

They serve lengths that are products of 2, 3, 5 and 7: along the last axis even ones, and real
numbers in multiples of 4. NumPy's pocketfft serves all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends import thread_pool
from everygrad.backends.cpu.llvm.compiler import Address, engine
from everygrad.backends.cpu.llvm.cpython import is_available
from everygrad.backends.cpu.runtime.native_call import bound, here, on_all_threads
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.backends.cpu.solver import fourier_code as code
from everygrad.backends.cpu.solver.fourier import radices, row_radices
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of
from everygrad.dtypes import DType

# elements up to which all is done in the calling thread
_FEW = edge(__name__, "_FEW", 1 << 14, "elements")
_NEAR = 1 << 12  # elements of a block of columns

Key = tuple[DType, str, int, bool]  # of a function: dtype, kind, radix, inverse
_functions: dict[Key, Address] = {}


def _compiled(keys: Sequence[Key]) -> list[Address]:
    missing = [key for key in keys if key not in _functions]
    sources = [(code.source(*key), False) for key in missing]
    for key, found in zip(missing, engine().compile_all(sources), strict=True):
        _functions[key] = found
    return [_functions[key] for key in keys]


def roots(places: Any, n: int) -> Any:
    """exp(-2 pi i k / n), each part as near as float64 comes: angles up to a quarter of pi are
    multiplied out, and all others are reflections of these."""
    k = np.asarray(places, np.int64) % n
    eighth, rest = np.divmod(8 * k, n)
    odd = eighth % 2 == 1
    angle = np.pi / 4 * (np.where(odd, n - rest, rest) / n)
    cos, sin = np.cos(angle), np.sin(angle)
    quarter = (eighth + 1) // 2 % 4  # turns by quarters; odd eighths are reflected
    sin = np.where(odd, -sin, sin)
    real = np.choose(quarter, [cos, -sin, -cos, sin])
    imaginary = np.choose(quarter, [sin, cos, -sin, -cos])
    return real - 1j * imaginary


class Plan(NamedTuple):
    """What runs transforms of one length: the driver, and the words of its passes."""

    run: Address
    words: Any
    passes: int
    table: Any
    held: Any  # what the words are addresses of


def _parts(values: Any, dtype: DType, axis: int) -> Any:
    """Real and imaginary parts along a new axis."""
    return np.ascontiguousarray(np.stack([values.real, values.imag], axis), dtype.np)


@lru_cache(maxsize=512)
def plan(n: int, dtype: DType, kind: str, inverse: bool) -> Plan:
    """Along rows, columns, or of real numbers ("real", "whole", "half"), where n counts pairs."""
    along_rows = kind != "columns"
    passes_inverse = inverse if kind in ("rows", "columns") else kind == "half"
    steps = row_radices(n) if along_rows else radices(n)
    keys: list[Key] = [(dtype, kind, 0, inverse and kind in ("columns", "whole"))]
    tables: list[Any] = []
    sizes = []
    left, s = n, 1
    for i, r in enumerate(steps):
        m = left // r
        name = "middle"
        if along_rows and i in (0, len(steps) - 1):
            name = "first" if i == 0 else "last"
        keys.append((dtype, name, r, passes_inverse and name != "middle"))
        places = np.arange(1, r)[:, None] * np.arange(m)
        weights = roots(places, left)
        tables.append(_parts(weights, dtype, 1) if name == "first" else _parts(weights.T, dtype, 2))
        sizes.append((m, s))
        left, s = m, s * r
    run, *passes = _compiled(keys)
    words = np.array(
        [
            (found, m, s, table.ctypes.data)
            for found, (m, s), table in zip(passes, sizes, tables, strict=True)
        ],
        np.int64,
    )
    table = np.zeros(1, dtype.np)
    if kind in ("real", "whole", "half"):  # -i exp(-2 pi i k / 2n), or its inverse
        turns = roots(np.arange(n), 2 * n)
        table = _parts(1j * turns.conj() if kind == "half" else -1j * turns, dtype, 0)
    return Plan(run, words, len(steps), table, (tables, passes))


@lru_cache(maxsize=1024)
def _factors(values: tuple[float, ...], dtype: DType) -> Any:
    return np.array(values, dtype.np)


def _blocks(tasks: int, size: int) -> int:
    return 1 if size <= _FEW else min(tasks, 4 * thread_pool.num_threads())


def _rows(
    char: str, size: int, length: int, out_length: int, kind: str, inverse: bool,
    factors: tuple[float, ...],
) -> tuple[Plan, list[Any]]:  # fmt: skip
    """The plan of transforms of rows of `length` elements, and its words but scratch memory."""
    dtype = _DTYPES[char]
    n = out_length if kind == "rows" else max(length, out_length) // 2
    wide = length if char in "fd" else 2 * length
    out_wide = out_length if kind == "half" else 2 * out_length
    count = size // length
    blocks = _blocks(count, n * count)
    found = plan(n, dtype, kind, inverse)
    return found, [n * (4 if kind == "rows" else 6) + code.SPARE, n, 1, 1, count, blocks, wide,
                   out_wide, _factors(factors, dtype)]  # fmt: skip


def _columns(
    char: str, shape: Shape, axis: int, inverse: bool, scale: float
) -> tuple[Plan, list[Any]]:
    """The same for transforms along another axis."""
    dtype = _DTYPES[char]
    n, inner = shape[axis], size_of(shape[axis + 1 :])
    size = size_of(shape)
    wide = min(inner, max(16, _NEAR // n // 16 * 16))
    count = size // (n * inner)
    blocks = _blocks(count * -(-inner // wide), size)
    found = plan(n, dtype, "columns", inverse)
    return found, [4 * n * wide + code.SPARE, n, inner, wide, count, blocks, 0, 0,
                   _factors((scale,), dtype)]  # fmt: skip


def _run(x: Any, out: Any, found: Plan, given: Sequence[Any]) -> None:
    room, *words = given
    blocks = words[code.BLOCKS - code.LENGTH]
    scratch = empty((blocks * room,), out.real.dtype)
    call = here() if blocks == 1 else on_all_threads
    call(found.run, blocks, found.words, found.passes, x, out, scratch, *words, found.table)


def _bound(char: str, found: Plan, given: Sequence[Any]) -> Any:
    room, *words = given
    scratch = np.empty(room, _DTYPES[char].np)
    all_words = (found.words, found.passes, 0, 0, scratch, *words, found.table)
    return bound(found.run, all_words, code.X, 2, found)


def along_rows(x: Any, out: Any, kind: str, inverse: bool, factors: tuple[float, ...]) -> None:
    """Transforms along the last axis of contiguous arrays. Factors: of the transform of pairs, and
    for real numbers of the elements of half the transform that stand for themselves alone, and of
    the others."""
    sizes = x.size, x.shape[-1], out.shape[-1]
    _run(x, out, *_rows(x.dtype.char, *sizes, kind, inverse, factors))


def along_columns(x: Any, out: Any, axis: int, inverse: bool, scale: float) -> None:
    """Transforms along an axis that is not the last one of contiguous complex arrays, which may be
    one and the same."""
    _run(x, out, *_columns(x.dtype.char, x.shape, axis, inverse, scale))


def bound_rows(
    char: str, shape: Shape, out_length: int, kind: str, inverse: bool, factors: tuple[float, ...]
) -> Any:
    """A function of arrays (x, out) of one dtype and shape that does what `along_rows` does, for
    few elements."""
    size, length = size_of(shape), shape[-1]
    return _bound(char, *_rows(char, size, length, out_length, kind, inverse, factors))


def bound_columns(char: str, shape: Shape, axis: int, inverse: bool, scale: float) -> Any:
    return _bound(char, *_columns(char, shape, axis, inverse, scale))


def binds(size: int) -> bool:
    """Whether there are such functions for arrays of so many elements."""
    return size <= _FEW and is_available()


_DTYPES = {"F": dtypes.float32, "f": dtypes.float32, "D": dtypes.float64, "d": dtypes.float64}

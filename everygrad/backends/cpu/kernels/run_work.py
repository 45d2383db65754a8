"""Runs a `Work` on NumPy arrays, for eager ops and for tests of generators."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from everygrad.backends.code_cache import code_cache
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.backends.cpu.runtime import native_threads
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.dtypes import FROM_NP


class _Functions:
    """The compiled functions of some steps."""

    __slots__ = ("__weakref__", "addresses", "recent")

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.addresses = engine().compile_all([(s.source, s.vectorise) for s in steps])
        self.recent = True


_compiled: dict[tuple[Step, ...], _Functions] = {}


def functions_of(steps: tuple[Step, ...]) -> _Functions:
    """The compiled functions of the steps; they live as long as the caller holds this."""
    found = _compiled.get(steps)
    if found is None:
        found = _compiled[steps] = _Functions(steps)
        nbytes = sum(a.nbytes for a in found.addresses) + sum(len(s.source) for s in steps)
        code_cache.add(found, nbytes, partial(_drop, steps))
    found.recent = True
    return found


def _drop(steps: tuple[Step, ...], compiled: _Functions) -> None:
    if _compiled.get(steps) is compiled:
        del _compiled[steps]


def layout_of(array: Any) -> ArrayLayout:
    """The layout of an array, relative to its first element."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return ArrayLayout(FROM_NP[array.dtype], array.shape, strides)


def copied(copy: Callable[[ArrayLayout, ArrayLayout], Step], array: Any) -> Any:
    """A contiguous copy of an array, by a generator of copies."""
    source = layout_of(array)
    out = empty(array.shape, array.dtype)
    run(Work((copy(source, contiguous(source.dtype, source.shape)),)), [out], [array])
    return out


def run(work: Work, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Fills `outputs`. Arrays must have the layouts that the work was generated for."""
    given = [address_of(a) for a in (*outputs, *inputs)]
    scratch = empty((work.scratch + 64,), np.dtype(np.uint8)) if work.scratch else None
    if scratch is not None:
        given.append(-(-address_of(scratch) // 64) * 64)
    args = (ctypes.c_void_p * len(given))(*given)
    where = ctypes.addressof(args)
    compiled = functions_of(work.steps)
    for step, function in zip(work.steps, compiled.addresses):  # noqa: B905  # takes 0.1 us
        native_threads.parallel(function, step.blocks, where)

"""Runs a `Work` on NumPy arrays: what eager ops, and tests of generators, use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import runtime
from everygrad.backends.cpu.llvm import engine
from everygrad.backends.cpu.pool import empty
from everygrad.backends.cpu.render import address_of
from everygrad.backends.cpu.work import Operand, Step, Work, contiguous
from everygrad.dtypes import FROM_NP


@lru_cache(maxsize=1024)
def addresses(steps: tuple[Step, ...]) -> tuple[int, ...]:
    """Where the steps' functions are."""
    return tuple(engine().compile_all([(s.source, s.vectorise) for s in steps]))


def operand(array: Any) -> Operand:
    """The layout of an array, from its own first element on."""
    strides = tuple(s // array.itemsize for s in array.strides)
    return Operand(FROM_NP[array.dtype], array.shape, strides)


def copied(copy: Callable[[Operand, Operand], Step], array: Any) -> Any:
    """An array copied into order by a generator of copies."""
    source = operand(array)
    out = empty(array.shape, array.dtype)
    run(Work((copy(source, contiguous(source.dtype, source.shape)),)), [out], [array])
    return out


def run(work: Work, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Fill `outputs`. Arrays must be laid out as the work was written for."""
    given = [address_of(a) for a in (*outputs, *inputs)]
    scratch = empty((work.scratch + 64,), np.dtype(np.uint8)) if work.scratch else None
    if scratch is not None:
        given.append(-(-address_of(scratch) // 64) * 64)
    args = (ctypes.c_void_p * len(given))(*given)
    where = ctypes.addressof(args)
    for step, function in zip(work.steps, addresses(work.steps), strict=True):
        runtime.parallel(function, step.blocks, where)

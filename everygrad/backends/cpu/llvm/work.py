"""Work for native code: a list of steps, each one function of generated LLVM IR.

A generator (matrix products, convolutions, attention, fused loops) makes a `Work` from shapes and
layouts; an eager op or a replay runs it and knows nothing else about it. A step is a module that
defines

    define void @step(i64 %lo, i64 %hi, ptr %args)

and runs blocks [lo, hi) of its `blocks` independent blocks; any split over any threads gives the
same bits. `args` is an array of pointers: the outputs, the inputs, then the scratch memory if there
is any (64-byte aligned, the same for all steps, undefined at first). Sizes and strides are
constants of the source: shapes are known when it is written. Steps run one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad.core.shapes import Shape, size_of
from everygrad.core.strides import is_row_major
from everygrad.dtypes import DType


class ArrayLayout(NamedTuple):
    """The layout of an array. Strides and offset count elements; a stride may be 0."""

    dtype: DType
    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def size(self) -> int:
        return size_of(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the array is C-contiguous."""
        return is_row_major(self.shape, self.strides)


def contiguous(dtype: DType, shape: Sequence[int]) -> ArrayLayout:
    """The layout of a C-contiguous array."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return ArrayLayout(dtype, tuple(shape), tuple(reversed(strides)))


class Step(NamedTuple):
    """One function. `vectorise`: its loops are scalar and LLVM vectorises them; a source with
    explicit vectors compiles several times faster without that."""

    source: str
    blocks: int
    vectorise: bool = True


class Work(NamedTuple):
    """The native work of one op: steps, and the scratch memory they share, in bytes.

    `rows`: if each block of a single step completes whole rows of a two-dimensional output, the
    rows at which blocks begin, and the number of rows at the end; otherwise empty.
    """

    steps: tuple[Step, ...]
    scratch: int = 0
    rows: tuple[int, ...] = ()

"""A writer of kernels: the names of arguments stand in the text, their values in a buffer.

Sizes and strides are arguments, so one text serves all shapes. Pointers come first in the buffer;
only they change from launch to launch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from everygrad.backends.cuda.source.prelude import with_library
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape

BLOCK = edge(__name__, "BLOCK", 256, "size")
# elements below which indices have 32 bits
NARROW = edge(__name__, "NARROW", 1 << 30, "elements")

_WAVES = edge(__name__, "_WAVES", 32, "count")  # blocks for each multiprocessor, at most


class KernelText(NamedTuple):
    """All that a kernel's machine code depends on."""

    name: str
    source: str  # without the device library


class KernelParts(NamedTuple):
    """A kernel's declarations and its body, from which others are made."""

    pointers: tuple[str, ...]  # "const float* a0": what has no const is written
    numbers: tuple[str, ...]
    lines: tuple[str, ...]


class WrittenKernel(NamedTuple):
    """A kernel with the values of its arguments, except the pointers. `divided`: which of its
    numbers indices are divided by; what that takes (`magic`) stands behind the others."""

    text: KernelText
    pointers: int
    numbers: tuple[int, ...]
    wide: bool  # numbers have 64 bits
    grid: tuple[int, int, int]
    block: int
    parts: KernelParts | None = None
    divided: tuple[int, ...] = ()

    @property
    def source(self) -> str:
        return self.text.source

    def resized(self, sizes: Sequence[int], groups: int) -> WrittenKernel:
        """The same kernel for other sizes."""
        more = (n for k in self.divided for n in magic(sizes[k]))
        return self._replace(numbers=(*sizes, *more), grid=(groups, 1, 1))


def is_wide(*extents: int) -> bool:
    """Whether indices up to these need 64 bits."""
    return max(extents, default=0) >= NARROW


def extent(shape: Shape, strides: Shape) -> int:
    """How far from its first element an array reaches, in either direction."""
    return sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True))


def divisor(n: int) -> tuple[int, int]:
    """What `quotient` needs to divide numbers below 2**31 by n.

    >>> m, s = divisor(7)
    >>> all(((k * m >> 32) + k) >> s == k // 7 for k in (0, 6, 7, 8, 2**31 - 1))
    True
    """
    shift = (n - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - n)) // n + 1, shift


def magic(n: int) -> tuple[int, int]:
    """The numbers of `divisor` as arguments of a kernel."""
    m, shift = divisor(n)
    return m - (1 << 32) * (m >> 31), shift


def grid(groups: int, multiprocessors: int) -> int:
    """The number of blocks for so many threads' worth of work."""
    return max(1, min(-(-groups // BLOCK), multiprocessors * _WAVES))


class KernelWriter:
    """Collects one kernel. `wide`: indices have 64 bits."""

    def __init__(self, name: str, wide: bool) -> None:
        self.name = re.sub(r"\W", "_", name)
        self.wide = wide
        self.index = "i64" if wide else "i32"
        self.lines: list[str] = []
        self._pointers: list[str] = []
        self._numbers: list[str] = []
        self._values: list[int] = []

    # --- arguments -------------------------------------------------------------------------------

    def pointer(self, type: str, name: str, written: bool = False) -> str:
        """A pointer, in the order of the launch's arguments; a written one must not alias
        another."""
        kind = type if written else f"const {type}"
        self._pointers.append(f"{kind}* __restrict__ {name}")
        return name

    def number(self, value: int, name: str = "") -> str:
        """An argument of the index type; returns its name."""
        name = name or f"p{len(self._numbers)}"
        self._numbers.append(f"{self.index} {name}")
        self._values.append(value)
        return name

    # --- text ------------------------------------------------------------------------------------

    def add(self, *lines: str) -> None:
        self.lines.extend(lines)

    def split(self, index: str, shape: Shape, prefix: str) -> tuple[list[str], list[str]]:
        """Lines that split a linear index in C order into coordinates, and the coordinates'
        names."""
        names = [f"{prefix}{k}" for k in range(len(shape))]
        rest = index
        lines = []
        for k in range(len(shape) - 1, 0, -1):
            size = self.number(shape[k])
            above = f"{prefix}r{k}"
            if self.wide:
                lines.append(f"const {self.index} {above} = {rest} / {size};")
            else:
                m, shift = map(self.number, magic(shape[k]))
                lines.append(f"const i32 {above} = quotient({rest}, (u32){m}, (u32){shift});")
            lines.append(f"const {self.index} {names[k]} = {rest} - {above} * {size};")
            rest = above
        lines.append(f"const {self.index} {names[0]} = {rest};")
        return lines, names

    def address(self, names: Sequence[str], strides: Shape) -> str:
        """The sum of coordinates times strides; strides of 0 are left out."""
        pairs = zip(names, strides, strict=True)
        terms = [f"{n} * {self.number(s)}" for n, s in pairs if s]
        return " + ".join(terms) or "0"

    def thread(self) -> None:
        """Declare `thread`, the global thread index, and `threads`, their number."""
        cast = "(i64)" if self.wide else ""
        self.add(
            f"const {self.index} thread = {cast}blockIdx.x * {BLOCK} + threadIdx.x;",
            f"const {self.index} threads = {cast}gridDim.x * {BLOCK};",
        )

    def finish(self, grid: int | tuple[int, int, int], block: int = BLOCK) -> WrittenKernel:
        """The kernel, named after its op and a hash of its text."""
        arguments = ", ".join([*self._pointers, *self._numbers])
        text = "\n".join(f"  {line}" for line in self.lines)
        rest = f"({arguments}) {{\n{text}\n}}\n"
        name = f"{self.name}_{hashlib.sha256(f'{block}{rest}'.encode()).hexdigest()[:12]}"
        head = f'extern "C" __global__ void __launch_bounds__({block})\n{name}'
        whole = grid if isinstance(grid, tuple) else (grid, 1, 1)
        return WrittenKernel(
            KernelText(name, head + rest),
            len(self._pointers),
            tuple(self._values),
            self.wide,
            whole,
            block,
            KernelParts(tuple(self._pointers), tuple(self._numbers), tuple(self.lines)),
        )


def full_source(text: KernelText) -> str:
    """The translation unit that is compiled."""
    return with_library(text.source)

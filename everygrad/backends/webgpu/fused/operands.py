"""Where the operands of a fused kernel are, as WGSL: addresses, and which loads are vec4.

An address is an offset, terms of the row `r`, and terms of the column. Divisions, which are
expensive, appear only where an operand's own strides require them. Arithmetic is in u32 throughout:
a negative stride wraps around, and so does the sum, to the right value.
"""

from __future__ import annotations

from collections.abc import Sequence

from everygrad.compiler.groups import Load
from everygrad.compiler.loop_nest import StridedAccess
from everygrad.core.shapes import Shape
from everygrad.core.strides import collapse
from everygrad.dtypes import DType

_VEC4 = {1: "u32", 2: "vec2<u32>", 4: "vec4<u32>", 8: "vec4<u32>"}  # by the bytes of an element


def vec4_type(dtype: DType) -> str:
    """The type of a buffer's items where four elements are read or written at once."""
    return _VEC4[dtype.itemsize]


def terms(index: str, sizes: Shape, strides: Shape) -> list[str]:
    """What an address grows by at `index`, which counts through axes of these sizes.

    >>> terms("c", (2, 3, 4), (4, 0, 1)), terms("c", (6, 4), (8, 2))
    (['(c % 4u)', '(c / 12u) * 4u'], ['c * 2u'])
    """
    sizes, (steps,) = collapse(sizes, [strides])
    made, behind = [], 1
    for k in reversed(range(len(sizes))):
        if steps[k]:
            at = index if behind == 1 else f"({index} / {behind}u)"
            at = f"({at} % {sizes[k]}u)" if k else at
            made.append(at if steps[k] == 1 else f"{at} * {steps[k] % (1 << 32)}u")
        behind *= sizes[k]
    return made


def total(parts: Sequence[str], offset: int = 0) -> str:
    """A sum of terms."""
    shown = [*parts, *([f"{offset % (1 << 32)}u"] if offset or not parts else [])]
    return " + ".join(shown)


class FusedOperand:
    """A load, number `n`, of a kernel whose lanes take `vector` columns at a time."""

    def __init__(
        self, n: int, load: Load, access: StridedAccess, sizes: tuple[Shape, Shape], vector: int
    ) -> None:
        self.n = n
        self.load = load
        self.dtype = load.value.dtype
        self.access = access
        self.rows, self.columns = sizes
        self.vector = vector
        merged, (steps,) = collapse(self.columns, [access.columns])
        # whether the columns of one take are the last stride apart
        self.has_one_stride = vector == 1 or len(merged) == 1 or merged[-1] % vector == 0
        self.step = steps[-1]

    @property
    def is_of_row(self) -> bool:
        """Whether all columns have the same element."""
        return self.load.step is None and not any(self.access.columns)

    @property
    def is_steady(self) -> bool:
        """Whether the columns of one take have the same element."""
        return self.has_one_stride and self.step == 0

    def is_vec4(self, steady_index: bool) -> bool:
        """Whether a take is four contiguous elements that start at a multiple of four."""
        if self.vector != 4 or not self.has_one_stride or self.step != 1:
            return False
        if self.load.step is not None and (self.load.step % 4 or not steady_index):
            return False
        _, (steps,) = collapse(self.columns, [self.access.columns])
        _, (over,) = collapse(self.rows, [self.access.rows])
        return not any(s % 4 for s in (*steps[:-1], *over, self.access.offset))

    def base(self) -> str:
        """The address at which the row begins."""
        return total(terms("r", self.rows, self.access.rows), self.access.offset)

    def column(self, index: str) -> list[str]:
        return terms(index, self.columns, self.access.columns)

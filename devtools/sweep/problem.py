"""One case: inputs as they lie in memory, what we compute of them, what the referee does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

LAYOUTS = ("transposed", "swapped", "strided", "offset", "flipped", "repeated")
# how far a result may be from the referee's, element by element:
#   sums    beside the same op on the sizes of its inputs: of sums of products
#   values  beside the result, and what PyTorch's float32 makes of inputs that are rounded
#   plain   beside the result, or what it was multiplied by, of which a few are added up
#   exact   the same bits, signs of zeros included; any NaN is a NaN
Scale = Literal["sums", "values", "plain", "exact"]


@dataclass(frozen=True)
class Given:
    """An input. `layout` says how it lies in memory; `inside`: the view of the memory is part of
    the function, whose leaf is the memory; otherwise the function gets the view."""

    array: Any
    layout: str = "plain"
    inside: bool = False
    grad: bool = True

    @property
    def is_float(self) -> bool:
        return self.array.dtype.kind in "fV" and self.array.dtype.name != "bool"

    @property
    def is_summed(self) -> bool:
        """Whether the gradient is a sum over what repeats one row of memory."""
        return self.inside and self.layout == "repeated"

    @property
    def order(self) -> tuple[int, ...]:
        """Of the axes in memory: the other way round; or the last but one and the one before it
        exchanged, as heads and tokens are."""
        axes = list(range(self.array.ndim))
        if self.layout == "transposed" or len(axes) < 3:
            return tuple(reversed(axes))
        axes[-3], axes[-2] = axes[-2], axes[-3]
        return tuple(axes)

    @property
    def memory(self) -> Any:
        """What is stored; NaN, or a number that no index is, where the view does not look."""
        a = self.array
        if self.layout in ("transposed", "swapped"):
            return np.ascontiguousarray(a.transpose(self.order))
        if self.layout == "flipped":
            return np.ascontiguousarray(a[..., ::-1])
        if self.layout == "repeated":
            return a[:1].copy()
        junk: Any = np.nan if self.is_float else (True if a.dtype == bool else 97)
        if self.layout == "strided":
            wide = np.full((*a.shape[:-1], 2 * a.shape[-1] + 1), junk, a.dtype)
            wide[..., 1::2] = a
            return wide
        if self.layout == "offset":
            tall = np.full((a.shape[0] + 2, *a.shape[1:]), junk, a.dtype)
            tall[1:-1] = a
            return tall
        return a

    def view(self, t: Any, permute: Any, flip: Any, broadcast: Any) -> Any:
        """The input as a view of a tensor of its memory; the functions are the library's."""
        if self.layout in ("transposed", "swapped"):
            return permute(t, self.order)  # its own inverse
        if self.layout == "flipped":
            return flip(t)
        if self.layout == "repeated":
            return broadcast(t, self.array.shape)
        if self.layout == "strided":
            return t[..., 1::2]
        return t[1:-1] if self.layout == "offset" else t


@dataclass(frozen=True)
class Problem:
    """Two functions of the inputs that must give the same: tensors, or lists of them."""

    inputs: Sequence[Given]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    scale: Scale = "values"
    looseness: float = 1.0  # times the tolerance, with its reason where it is not 1
    floor: float = 0.0  # more of the scale, for results that are differences of larger numbers
    compiled: bool = True  # whether eg.jit takes it
    dtype: str = "float32"  # what results are rounded to

    def title(self) -> str:
        return ", ".join(
            f"{g.array.dtype.name}{list(g.array.shape)}"
            + ("" if g.layout == "plain" else f" {g.layout}{' inside' * g.inside}")
            for g in self.inputs
        )

"""How windows move over lines, images and volumes (batch, channels, places...)."""

from __future__ import annotations

from typing import Any, NamedTuple

from everygrad.compiler.accumulate import identity
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.nn.conv2d import Window, integers, misses


class Places(NamedTuple):
    """How a window moves over any number of axes, and how often it fits each."""

    size: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    out: Shape
    extra: Shape  # what ceil_mode reads beyond the padding

    def misses(self, sizes: Shape) -> bool:
        """Whether some window lies wholly in the padding of things of these sizes."""
        return any(misses(*one) for one in zip(sizes, *self[:5], strict=True))

    @property
    def window(self) -> Window:
        """The same over images."""
        return Window(self.size, self.stride, self.padding, self.dilation)  # type: ignore[arg-type]


THINGS = {1: "lines (batch, channels, length)", 2: "images (batch, channels, height, width)",
          3: "volumes (batch, channels, depth, height, width)"}  # fmt: skip


def check_ndim(op: str, x: Tensor, count: int) -> None:
    """Refuse what is no batch of things with `count` axes."""
    if x.ndim != count + 2:
        raise ShapeError(f"{op}: takes {THINGS[count]}, got {x.shape}")


def _fits(n: int, k: int, st: int, p: int, d: int, ceil: bool) -> int:
    """How often a window fits; with `ceil` also over the end, if it starts before it."""
    rest = n + 2 * p - d * (k - 1) - 1
    if not ceil:
        return rest // st + 1
    count = -(-rest // st) + 1
    return count - 1 if (count - 1) * st >= n + p else count


def places_of(
    op: str,
    x: Tensor,
    count: int,
    size: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Places:
    """The parameters of a pooling op, checked."""
    check_ndim(op, x, count)
    k = integers(op, "the kernel size", size, 1, count)
    st = k if stride is None else integers(op, "stride", stride, 1, count)
    p = integers(op, "padding", padding, 0, count)
    d = integers(op, "dilation", dilation, 1, count)
    if any(2 * a > b for a, b in zip(p, k, strict=True)):
        raise ArgumentError(f"{op}: padding {p} is more than half the kernel size {k}")
    out, extra = [], []
    for n, kernel, step, around, spread in zip(x.shape[2:], k, st, p, d, strict=True):
        many = _fits(n, kernel, step, around, spread, ceil_mode)
        end = (many - 1) * step + spread * (kernel - 1) + 1
        out.append(many)
        extra.append(max(0, end - n - 2 * around) if ceil_mode else 0)
    if min(out) < 1:
        raise ShapeError(
            f"{op}: a kernel of {k} with dilation {d} does not fit places {x.shape[2:]} padded by "
            f"{p}"
        )
    return Places(k, st, p, d, tuple(out), tuple(extra))


def lowest(x: Tensor) -> Any:
    """What no element of x is smaller than."""
    return identity("max", x.dtype)

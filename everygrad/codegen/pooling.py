"""Pooling over windows of images, and its gradients, on every device.

A gradient is gathered: each element of the image reads the windows that contain it, so that no two
threads add to one element, and sums have one order. A NaN wins over numbers, the first of equal
elements over later ones, any element over padding. A result's elements lie in the order of `order`,
its axes from the outermost to the innermost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.codegen.copy import (
    Axes,
    Layout,
    Lowered,
    finished,
    groups_for,
    result,
    split,
    store_each,
    vectors,
)
from everygrad.codegen.groups.group_sums import accumulator_dtype
from everygrad.codegen.groups.group_values import number
from everygrad.codegen.kernel import Buffer, Builder, logical_and, where
from everygrad.codegen.machine import Machine
from everygrad.compiler.accumulate import identity
from everygrad.compiler.expr import Expr, call
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import Shape, size_of

# elements of a window up to which its loop is unrolled
_UNROLLED = edge(__name__, "_UNROLLED", 16, "count")

Place = tuple[Expr, Expr]  # a row and a column
_Pairs = AbstractContextManager[list[tuple[Place, Expr]]]  # and whether that is inside


class _Read(NamedTuple):
    """An array that a kernel reads, image by image."""

    buffer: Buffer
    axes: Axes


class _Pooling:
    """One kernel: its window, what it reads, and the coordinates of what a thread computes."""

    def __init__(
        self, name: str, window: Any, image: Shape, given: dict[str, Layout], out: Layout,
        order: Shape, machine: Machine,
    ) -> None:  # fmt: skip
        self.window, self.image, self.machine = window, image, machine
        self.places: Shape = window.out_size(image)
        self.out, self.order, self.total = out, order, size_of(out.shape)
        axes = {n: Axes(n, x.shape, x.strides) for n, x in given.items()}
        index = machine.index_for(
            self.total, size_of(image), *(a.reach for a in axes.values()), _farthest(window, image)
        )
        groups = groups_for(machine, vectors(machine, out.dtype, self.total))
        self.b = b = Builder(name, index, groups, machine.threads)
        self.read = {
            n: _Read(b.buffer(n, x.dtype, axes[n].reach), axes[n]) for n, x in given.items()
        }
        self._to = result(b, machine, out.dtype, self.total)

    def summed(self, pairs: _Pairs, value: Callable[[Place, Expr], Expr]) -> Expr:
        """The values of taps or windows, one after the other, as they are accumulated."""
        wide = accumulator_dtype(self.out.dtype)
        total = self.b.variable(number(0, wide), wide)
        with pairs as found:
            for at, inside in found:
                self.b.assign(total, total + value(at, inside))
        return total

    def store(self, value: Callable[[Expr | int, Expr | int, Place], Expr]) -> Lowered:
        """The kernel that computes `value` of each image, channel and place of the result."""

        def at(element: Expr) -> Expr:
            sizes = tuple(self.out.shape[a] for a in self.order)
            found = split(self.b, element, sizes)
            n, c, row, column = (found[self.order.index(a)] for a in range(4))
            place = [self.b.let(k) if isinstance(k, int) else k for k in (row, column)]
            return value(n, c, (place[0], place[1])).cast(self.out.dtype)

        store_each(self.b, self.machine, self._to, self.total, at)
        return finished(self.b, *(r.axes for r in self.read.values()), None)

    def element(self, name: str, n: Any, c: Any, place: Place, inside: Expr) -> Expr:
        """An element as it is accumulated or compared."""
        found = self.read[name]
        where_ = found.axes.place(self.b, [n, c, *place])
        value = self.b.load(found.buffer, where_, inside)
        wide = accumulator_dtype(found.buffer.dtype)
        return self.b.let(value.cast(wide), wide)

    # --- from a window to its elements -----------------------------------------------------------

    @contextmanager
    def _each(self, counts: Sequence[int]) -> Iterator[list[tuple[Any, Any]]]:
        """All pairs of numbers below two counts: written out, or one pair in a loop."""
        if counts[0] * counts[1] <= _UNROLLED:
            yield [(i, j) for i in range(counts[0]) for j in range(counts[1])]
            return
        with self.b.loop(0, counts[0]) as i, self.b.loop(0, counts[1]) as j:
            yield [(i, j)]

    @contextmanager
    def taps(self, place: Place) -> Iterator[list[tuple[Place, Expr]]]:
        """The elements of the window of a place, and whether they are in the image."""
        b, (_, step, around, spread) = self.b, self.window[:4]
        with self._each(self.window.size) as pairs:
            made = []
            for pair in pairs:
                near = [b.let(place[a] * step[a] + pair[a] * spread[a] - around[a]) for a in (0, 1)]
                made.append(((near[0], near[1]), self._below(near, self.image[2:])))
            yield made

    @contextmanager
    def windows(self, place: Place) -> Iterator[list[tuple[Place, Expr]]]:
        """The windows that may contain an element of the image, and whether they do."""
        b, (size, step, around, spread) = self.b, self.window[:4]
        counts = [-(-size[a] // step[a]) if spread[a] == 1 else size[a] for a in (0, 1)]
        last = [b.let(place[a] + around[a]) for a in (0, 1)]
        with self._each(counts) as pairs:
            made = []
            for pair in pairs:
                near, holds = [], []
                for a in (0, 1):
                    if spread[a] == 1:  # the last window that begins before the element, and before
                        window = b.let(last[a] // step[a] - pair[a])
                        holds.append(last[a] - window * step[a] < size[a])
                    else:  # the window of which it is this tap
                        first = b.let(last[a] - pair[a] * spread[a])
                        window = b.let(first // step[a])
                        holds.append(call("eq", window * step[a], first))
                    near.append(window)
                inside = self._below(near, self.places)
                made.append(((near[0], near[1]), logical_and(inside, *holds)))
            yield made

    def _below(self, near: Sequence[Expr], sizes: Shape) -> Expr:
        return logical_and(*(at < n for at, n in zip(near, sizes, strict=True)))

    def largest(self, name: str, n: Any, c: Any, place: Place) -> tuple[Expr, Expr]:
        """The largest element of a window, the least there is if it has none; and its number in
        the image, counted from 1, or 0."""
        b, wide = self.b, accumulator_dtype(self.read[name].buffer.dtype)
        worst = identity("max", self.read[name].buffer.dtype)
        best = b.variable(number(worst, wide), wide)
        found = b.variable(0, b.index)
        with self.taps(place) as taps:
            for at, inside in taps:
                v = self.element(name, n, c, at, inside)
                better = call("or", call("eq", found, 0), v > best)
                if wide.is_float:
                    new = call("and", call("isnan", v), call("not", call("isnan", best)))
                    better = call("or", better, new)
                better = b.let(logical_and(inside, better), dtypes.bool_)
                b.assign(best, where(better, v, best))
                b.assign(found, where(better, at[0] * self.image[3] + at[1] + 1, found))
        return best, found


def _farthest(window: Any, image: Shape) -> int:
    """A number above all rows and columns that a kernel counts, the padding's too."""
    reach = [n + 2 * p + d * k for n, k, _, p, d in zip(image[2:], *window[:4], strict=True)]
    return max(reach)


# --- the kernels, by what their elements are -----------------------------------------------------


def _value(p: _Pooling, n: Any, c: Any, place: Place) -> Expr:
    """The largest element of a window."""
    return p.largest("image", n, c, place)[0]


def _index(p: _Pooling, n: Any, c: Any, place: Place) -> Expr:
    """The index in the image of a window's largest element, -1 where it has none."""
    return p.largest("image", n, c, place)[1].cast(p.out.dtype) - 1


def _spread_apart(p: _Pooling, n: Any, c: Any, place: Place) -> Expr:
    """The image's gradient where no windows overlap: each element finds the largest one of its
    window again."""
    with p.windows(place) as ((near, inside),):
        given = p.element("gradient", n, c, near, inside)
        _, found = p.largest("image", n, c, near)
        own = call("eq", found, place[0] * p.image[3] + place[1] + 1)
        return where(logical_and(inside, own), given, 0)


def _spread(p: _Pooling, n: Any, c: Any, place: Place) -> Expr:
    """The image's gradient from the indices of the largest elements."""

    def chosen(at: Place, inside: Expr) -> Expr:
        found = p.element("index", n, c, at, inside)
        own = (place[0] * p.image[3] + place[1]).cast(p.b.dtype_of(found))
        given = p.element("gradient", n, c, at, inside)
        return where(logical_and(inside, call("eq", found, own)), given, 0)

    return p.summed(p.windows(place), chosen)


def _sum_spread(p: _Pooling, n: Any, c: Any, place: Place) -> Expr:
    """The gradient of a window's sum."""
    return p.summed(p.windows(place), partial(p.element, "gradient", n, c))


def _sum(p: _Pooling, n: Any, c: Any, place: Place) -> Expr:
    """The sum of a window's elements."""
    return p.summed(p.taps(place), partial(p.element, "image", n, c))


class _Form(NamedTuple):
    """What a kernel is called, what it reads, and what it computes of each element."""

    name: str
    reads: tuple[str, ...]
    value: Callable[..., Expr]


FORMS = {
    "value": _Form("max_pool2d_value", ("image",), _value),
    "index": _Form("max_pool2d_index", ("image",), _index),
    "spread": _Form("max_pool2d_spread", ("gradient", "index"), _spread),
    "spread apart": _Form("max_pool2d_spread", ("gradient", "image"), _spread_apart),
    "sum": _Form("sum_pool2d", ("image",), _sum),
    "sum spread": _Form("sum_pool2d_spread", ("gradient",), _sum_spread),
}


def overlap(window: Any) -> bool:
    """Whether an element may be in several windows."""
    close = any(k > step for k, step in zip(window.size, window.stride, strict=True))
    return close or window.dilation != (1, 1)


@lru_cache(maxsize=1024)
def pooling(
    form: str, given: tuple[Layout, ...], window: Any, image: Shape, out: Layout, order: Shape,
    machine: Machine,
) -> Lowered:  # fmt: skip
    """One of `FORMS`; buffers: what it reads, out. Strides of `out` are those of `order`."""
    name, reads, value = FORMS[form]
    p = _Pooling(name, window, image, dict(zip(reads, given, strict=True)), out, order, machine)
    return p.store(partial(value, p))

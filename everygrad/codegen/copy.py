"""What kernels that move elements share: bits in place of values, the axes of an array as a kernel
reads it, and threads for each element of a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from everygrad import dtypes
from everygrad.codegen.kernel import Buffer, Builder, Kernel
from everygrad.codegen.machine import Machine
from everygrad.codegen.passes import optimised
from everygrad.codegen.verify import verify
from everygrad.compiler.expr import Expr, call
from everygrad.core.shapes import Shape
from everygrad.core.strides import row_major
from everygrad.dtypes import DType

T = TypeVar("T")
_BITS = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64,
         16: dtypes.complex128}  # fmt: skip


def bits_of(dtype: DType, count: int = 1) -> DType:
    """What neighbouring elements are moved as: a float register may change the bits of a NaN."""
    return _BITS[dtype.itemsize * count]


class Layout(NamedTuple):
    """An array. Strides count elements."""

    dtype: DType
    shape: Shape
    strides: Shape


class Axes(NamedTuple):
    """How a kernel reads an array: by an axis for each of its coordinates. The buffer, of this
    name, begins at the lowest element that it reads, `lowest` behind the one at coordinates 0."""

    name: str
    sizes: Shape
    strides: Shape

    @property
    def lowest(self) -> int:
        return sum(min(0, (n - 1) * s) for n, s in zip(self.sizes, self.strides, strict=True))

    @property
    def reach(self) -> int:
        """Elements of the buffer."""
        return 1 + sum((n - 1) * abs(s) for n, s in zip(self.sizes, self.strides, strict=True))

    def place(self, b: Builder, coordinates: Sequence[Expr | int]) -> Expr:
        """The index in the buffer of the element at these coordinates."""
        found: Expr | None = None
        for a, (n, step) in enumerate(zip(self.sizes, self.strides, strict=True)):
            if not step or n == 1:
                continue
            at = coordinates[a]
            if step < 0:
                at = b.symbol(n - 1, (self.name, "last", a)) - at
            term = at * b.symbol(abs(step), (self.name, "step", a))
            found = term if found is None else found + term
        return Expr("const", (), 0) if found is None else found

    def place_of(self, b: Builder, element: Expr, coordinates: Sequence[Expr | int]) -> Expr:
        """Likewise of an element, whose number in C order is known too."""
        in_order = self.strides == row_major(self.sizes)
        return element if in_order else self.place(b, coordinates)


class Lowered:
    """A kernel; where its buffers begin, behind the first elements of their arrays; and its text in
    the languages it was rendered in."""

    __slots__ = ("_rendered", "kernel", "starts")

    def __init__(self, kernel: Kernel, starts: tuple[int, ...]) -> None:
        self.kernel = kernel
        self.starts = starts
        self._rendered: dict[Any, Any] = {}

    def rendered(self, render: Callable[[Kernel], T]) -> T:
        """What a renderer makes of the kernel, made once."""
        found: T | None = self._rendered.get(render)
        if found is None:
            found = self._rendered[render] = render(self.kernel)
        return found


def finished(b: Builder, *axes: Axes | None) -> Lowered:
    """The checked kernel; `axes` are those of its buffers, None of those that begin at 0."""
    starts = tuple(0 if a is None else a.lowest for a in axes)
    return Lowered(optimised(verify(b.finish())), starts)


def split(b: Builder, index: Expr, sizes: Shape) -> list[Expr | int]:
    """The coordinates of an index in C order; of axes of size 1 the number 0."""
    made: list[Expr | int] = [0] * len(sizes)
    long = [a for a, n in enumerate(sizes) if n != 1]
    for a in reversed(long[1:]):
        n = b.symbol(sizes[a], ("split", sizes, a))
        made[a] = b.let(index % n)
        index = b.let(index // n)
    if long:
        made[long[0]] = index
    return made


# --- threads for elements ------------------------------------------------------------------------


def groups_for(machine: Machine, items: int) -> int:
    """The groups of a kernel that does something for each of so many items."""
    groups = -(-items // (machine.grain if machine.threads == 1 else machine.threads))
    return min(groups, machine.most_groups) if machine.most_groups else groups


@contextmanager
def each(b: Builder, machine: Machine, items: int) -> Iterator[Expr]:
    """What a thread does for one of the items, of a kernel of `groups_for` these."""
    count = b.symbol(items)
    if machine.threads == 1:
        start = b.let(b.group * machine.grain)
        with b.loop(start, b.let(call("min", start + machine.grain, count))) as item:
            yield item
        return
    own = b.let(b.group * b.threads + b.thread)
    if machine.most_groups:
        with b.loop(own, count, b.symbol(b.groups * b.threads)) as item:
            yield item
        return
    with b.when(own < count):
        yield own


def per_thread(machine: Machine, dtype: DType) -> int:
    """How many elements of a result a thread stores at once: devices that have no address for less
    than a word store whole words."""
    return max(1, machine.word // dtype.itemsize)


def store_each(
    b: Builder, machine: Machine, out: Buffer, total: int, value: Callable[[Expr], Expr]
) -> None:
    """Store the value of each element of a result; a kernel of `groups_for` the
    vectors."""
    many = per_thread(machine, out.dtype)
    with each(b, machine, -(-total // many)) as item:
        if many == 1:
            b.store(out, item, value(item))
            return
        first, last = b.let(item * many), b.symbol(total - 1)
        places = [b.let(call("min", first + j, last)) for j in range(many)]
        b.store_vector(out, first, [value(at) for at in places])


def vectors(machine: Machine, dtype: DType, total: int) -> int:
    """What `store_each` gives a thread each."""
    return -(-total // per_thread(machine, dtype))


def result(b: Builder, machine: Machine, dtype: DType, total: int) -> Buffer:
    """The buffer that `store_each` fills; its last vector may reach beyond the last element."""
    size = vectors(machine, dtype, total) * per_thread(machine, dtype)
    return b.buffer("out", dtype, size, written=True)

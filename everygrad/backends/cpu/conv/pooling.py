"""The index of the largest element of each pooling window, as native work."""

from __future__ import annotations

from typing import Any

from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import FIRST, OUT, Int, VectorEmitter
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work
from everygrad.compiler.thresholds import edge

_UNROLLED = edge(__name__, "_UNROLLED", 9, "count")  # taps; larger windows are loops
_LANES = edge(__name__, "_LANES", 8, "size")  # int64 results fill 64 bytes


def max_pool2d_index(x: ArrayLayout, window: Any, out: ArrayLayout) -> Work:
    """For each window the index row * width + column of its largest element, int64.

    A NaN wins over numbers, the first of equal elements over later ones, any element over padding.
    x is float32 or float64 with any strides, out contiguous.
    """
    return Work((_PoolingWriter(x, window, out).write(),))


class _PoolingWriter:
    """Writes one pooling; a block is one channel of one image."""

    def __init__(self, x: ArrayLayout, window: Any, out: ArrayLayout) -> None:
        self.x, self.window, self.out = x, window, out
        self.code = VectorEmitter(x.dtype, _LANES)
        self.index_type = f"<{_LANES} x i64>"
        self.none = Value(self.index_type, f"<{', '.join(['i64 -1'] * _LANES)}>")
        self.padded = tuple(window[2]) != (0, 0)

    def write(self) -> Step:
        c, x = self.code, self.x
        (sh, _), (ph, _) = self.window[1:3]
        h, w = self.out.shape[2:]
        given, to = c.argument(FIRST, x.offset), c.argument(OUT)
        to = c.at(to, self.out.offset, "i64")
        with c.loop(*c.blocks) as block:
            n, channel = c.divmod(block.index, x.shape[1])
            shift = c.add(c.mul(n, x.strides[0]), c.mul(channel, x.strides[1]))
            self.image = c.at(given, shift)
            target = c.at(to, c.mul(block.index, h * w), "i64")
            with c.loop(0, h) as i:
                top = c.sub(c.mul(i.index, sh), ph)
                line = c.at(target, c.mul(i.index, w), "i64")
                with c.loop(0, -(-w // _LANES)) as j:
                    first = c.mul(j.index, _LANES)
                    if w >= _LANES:  # the last vector moves back to end where the row ends
                        first = c.least(first, w - _LANES)
                    self.one(top, first, c.at(line, first, "i64"))
        return c.step(x.shape[0] * x.shape[1])

    def one(self, top: Int, first: Int, target: Value) -> None:
        """A vector of windows."""
        c = self.code
        (kh, kw), (_, sw), (_, pw) = self.window[:3]
        left = c.sub(c.mul(first, sw), pw)
        best = c.splat(Value(c.element, "0xFFF0000000000000"))  # minus infinity
        found = self.none
        if kh * kw <= _UNROLLED // (1 + self.padded):
            for i in range(kh):
                best, found = self.row(top, left, i, best, found)
        else:
            with c.loop(0, kh, [best, found]) as down:
                down.next = list(self.row(top, left, down.index, *down.values))
            best, found = down.values
        start = c.splat(c.i64(c.add(c.mul(top, self.x.shape[3]), left)), self.index_type)
        index = c.op("add", c.op("add", start, c.lane_numbers(sw)), found)
        if self.padded:
            index = self.pick(self.nothing(found), self.none, index)
        c.store_where(index, target, c.first_lanes(self.out.shape[3]))

    def row(self, top: Int, left: Int, i: Int, best: Value, found: Value) -> tuple[Value, Value]:
        """The better of the best so far and row i of the windows."""
        c, kw = self.code, self.window[0][1]
        if kw <= _UNROLLED:
            for j in range(kw):
                best, found = self.tap(top, left, i, j, best, found)
            return best, found
        with c.loop(0, kw, [best, found]) as across:
            across.next = list(self.tap(top, left, i, across.index, *across.values))
        best, found = across.values
        return best, found

    def tap(
        self, top: Int, left: Int, i: Int, j: Int, best: Value, found: Value
    ) -> tuple[Value, Value]:
        """The better of the best so far and element (i, j) of the windows: its value, and its index
        relative to the window's first element."""
        c, x = self.code, self.x
        dh, dw = self.window[3]
        w = x.shape[3]
        y, column = c.add(top, c.mul(i, dh)), c.add(left, c.mul(j, dw))
        at = c.add(c.mul(y, x.strides[2]), c.mul(column, x.strides[3]))
        value = self.read(c.at(self.image, at), y, column)
        index = c.splat(c.i64(c.add(c.mul(i, dh * w), c.mul(j, dw))), self.index_type)
        if not self.padded and i == j == 0:
            return value, index
        larger = c.emit(c.mask, f"fcmp ugt {c.vector} {value.name}, {best.name}")
        number = c.emit(c.mask, f"fcmp ord {c.vector} {best.name}, {best.name}")
        better = c.op("and", larger, number)
        if self.padded:
            inside = self.inside(y, column, self.window[1][1])
            better = c.op("and", c.op("or", better, self.nothing(found)), inside)
        elif not isinstance(i, int) or not isinstance(j, int):  # a loop: the first tap is not known
            better = c.op("or", better, self.nothing(found))
        return self.pick(better, value, best), self.pick(better, index, found)

    def nothing(self, found: Value) -> Value:
        """The lanes whose windows have seen no element yet."""
        return self.code.emit(
            self.code.mask, f"icmp slt {self.index_type} {found.name}, zeroinitializer"
        )

    def inside(self, y: Int, column: Int, step: int) -> Value:
        """The lanes whose element, from `column` on by `step`, is in the image."""
        c = self.code
        h, w = self.x.shape[2:]
        row = c.compare_ints("ult", y, h)
        return c.below(column, c.select(row, c.i64(w), c.i64(0)), step)

    def read(self, address: Value, y: Int, column: Int) -> Value:
        """The elements of a tap, one for each window."""
        c, stride, width = self.code, self.window[1][1], self.out.shape[3]
        step = stride * self.x.strides[3]
        if step != 2 or stride != 2:
            mask = self.inside(y, column, stride) if self.padded else c.first_lanes(width)
            if step == 1:
                return c.load_where(address, mask)
            return c.gather(address, c.lane_numbers(step), mask)
        if self.padded:
            low, high = (self.inside(y, c.add(column, k), 1) for k in (0, _LANES))
        else:
            last = 2 * min(width, _LANES) - 1
            low, high = c.first_lanes(last), c.first_lanes(last - _LANES)
        return c.evens(address, low, high)

    def pick(self, condition: Value, yes: Value, no: Value) -> Value:
        chosen = f"{yes.type} {yes.name}, {no.type} {no.name}"
        return self.code.emit(yes.type, f"select {condition.type} {condition.name}, {chosen}")

"""Discrete Fourier transforms of complex arrays along an axis, as native work.

Stockham's form of Cooley and Tukey: each stage reads one buffer in order and writes the other so
that nothing has to be reversed at the end. Real and imaginary parts lie apart, so that elements
side by side, of one row or of neighbouring ones, are vectors. Lengths are products of 2, 3, 5, 7.
"""

from __future__ import annotations

import cmath
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu.llvm import Value as Reg, engine, literal
from everygrad.backends.cpu.loopwriter import LoopWriter
from everygrad.backends.cpu.pool import empty
from everygrad.backends.cpu.work import Step, Work
from everygrad.backends.cpu.workrun import run
from everygrad.shapes import Shape, size_of

_RADICES = (4, 2, 3, 5, 7)
_BESIDE = 16  # neighbouring rows that are transformed together
_BLOCKS = 64  # at most: each has buffers of its own
_LONGEST = 1 << 16  # beyond, the buffers leave the cache
Pair = tuple[Reg, Reg]  # real and imaginary part


@lru_cache(maxsize=1024)
def radices(n: int) -> tuple[int, ...]:
    """The factors of n as stages; empty where n has others."""
    found = []
    for r in _RADICES:
        while n % r == 0:
            found.append(r)
            n //= r
    return tuple(found) if n == 1 else ()


@lru_cache(maxsize=256)
def _twiddles(n: int, inverse: bool, real: Any) -> Any:
    """For each stage and each k from 1 the factors of all its butterflies: real parts, then
    imaginary ones."""
    parts, left = [], n
    for r in radices(n):
        turns = np.outer(np.arange(1, r), np.arange(left // r)) / left
        parts.append(np.exp((2j if inverse else -2j) * np.pi * turns).reshape(-1))
        left //= r
    whole = np.concatenate(parts)
    return np.stack([whole.real, whole.imag]).astype(real)


class _Writer:
    """args: out, x, twiddles, scratch; x is (outer, n, inner) of complex numbers."""

    def __init__(self, shape: Shape, axis: int, inverse: bool, kind: str) -> None:
        self.outer, self.n = size_of(shape[:axis]), shape[axis]
        self.inner = size_of(shape[axis + 1 :])
        self.beside = max(d for d in range(1, _BESIDE + 1) if self.inner % d == 0)
        self.sign = 1 if inverse else -1
        self.kind = kind
        self.all = sum((r - 1) * m for r, m, _ in self.stages())  # twiddles
        self.w = LoopWriter()

    def stages(self) -> list[tuple[int, int, int]]:
        """Radix, butterflies and stride of each stage."""
        made, left, stride = [], self.n, self.beside
        for r in radices(self.n):
            made.append((r, left // r, stride))
            left, stride = left // r, stride * r
        return made

    # --- arithmetic

    def op(self, name: str, a: Reg, b: Reg) -> Reg:
        return self.w.e.op(f"{name} contract", a, b)

    def add(self, a: Pair, b: Pair) -> Pair:
        return self.op("fadd", a[0], b[0]), self.op("fadd", a[1], b[1])

    def sub(self, a: Pair, b: Pair) -> Pair:
        return self.op("fsub", a[0], b[0]), self.op("fsub", a[1], b[1])

    def mul(self, a: Pair, b: Pair) -> Pair:
        real = self.op("fsub", self.op("fmul", a[0], b[0]), self.op("fmul", a[1], b[1]))
        return real, self.op("fadd", self.op("fmul", a[0], b[1]), self.op("fmul", a[1], b[0]))

    def turned(self, a: Pair) -> Pair:
        """i a, or -i a on the way there."""
        if self.sign > 0:
            return self.w.e.neg(a[1]), a[0]
        return a[1], self.w.e.neg(a[0])

    def butterfly(self, x: list[Pair]) -> list[Pair]:
        if len(x) == 2:
            return [self.add(*x), self.sub(*x)]
        if len(x) == 4:
            a, b, c, d = x
            even, odd = (self.add(a, c), self.sub(a, c)), (self.add(b, d), self.sub(b, d))
            turned = self.turned(odd[1])
            return [
                self.add(even[0], odd[0]),
                self.add(even[1], turned),
                self.sub(even[0], odd[0]),
                self.sub(even[1], turned),
            ]
        return [self.direct(x, k) for k in range(len(x))]

    def direct(self, x: list[Pair], k: int) -> Pair:
        """One element of a short transform, by its definition."""
        total = x[0]
        for j in range(1, len(x)):
            wave = cmath.exp(self.sign * 2j * cmath.pi * (j * k % len(x)) / len(x))
            factor = literal(self.kind, wave.real), literal(self.kind, wave.imag)
            total = self.add(total, self.mul(x[j], factor) if k else x[j])
        return total

    # --- memory

    def far(self, a: Reg, scale: int, more: int = 0) -> Reg:
        made = self.w.e.op("mul", a, literal("i64", scale)) if scale != 1 else a
        return self.w.e.op("add", made, literal("i64", more)) if more else made

    def load(self, base: str, at: Reg, apart: int, grouped: bool = True) -> Pair:
        """A number whose parts lie `apart` elements from each other."""
        w = self.w
        real = w.load_raw(w.indexed(base, at, self.kind), self.kind, grouped)
        other = w.indexed(base, self.far(at, 1, apart), self.kind)
        return real, w.load_raw(other, self.kind, grouped)

    def store(self, value: Pair, base: str, at: Reg, apart: int) -> None:
        w = self.w
        w.store_raw(value[0], w.indexed(base, at, self.kind), True)
        w.store_raw(value[1], w.indexed(base, self.far(at, 1, apart), self.kind), True)

    # --- loops

    def stage(self, r: int, m: int, s: int, source: str, target: str, first: int) -> None:
        w, apart = self.w, self.n * self.beside

        def one(p: Reg, q: Reg | None, factors: list[Pair]) -> None:
            read = self.far(p, s) if q is None else w.e.op("add", self.far(p, s), q)
            to = self.far(p, s * r) if q is None else w.e.op("add", self.far(p, s * r), q)
            given = [self.load(source, self.far(read, 1, k * m * s), apart) for k in range(r)]
            for k, y in enumerate(self.butterfly(given)):
                out = self.mul(y, factors[k - 1]) if k and m > 1 else y
                self.store(out, target, self.far(to, 1, k * s), apart)

        def factors(p: Reg, grouped: bool) -> list[Pair]:
            at = [self.far(p, 1, first + k * m) for k in range(r - 1)] if m > 1 else []
            return [self.load("%p2", a, self.all, grouped) for a in at]

        if s == 1:
            with w.counted("u", "0", str(m), parallel=True) as p:
                one(p, None, factors(p, True))
            return
        with w.counted("u", "0", str(m)) as p:
            known = factors(p, False)
            with w.counted("q", "0", str(s), parallel=True) as q:
                one(p, q, known)

    def moved(self, inward: bool, start: Reg, buffer: str) -> None:
        """Numbers between an array, their parts side by side, and a buffer, their parts apart."""
        w, b = self.w, self.beside
        apart = self.n * b

        def one(i: Reg, near: Reg, at: Reg) -> None:
            where = self.far(w.e.op("add", start, at), 2)
            if inward:
                self.store(self.load("%p1", where, 1), buffer, near, apart)
            else:
                self.store(self.load(buffer, near, apart), "%p0", where, 1)

        if b == 1:
            with w.counted("i", "0", str(self.n), parallel=True) as i:
                one(i, i, self.far(i, self.inner))
            return
        with w.counted("i", "0", str(self.n)) as i, w.counted("c", "0", str(b), parallel=True) as c:
            one(i, w.e.op("add", self.far(i, b), c), w.e.op("add", self.far(i, self.inner), c))

    def work(self) -> Work:
        w = self.w
        w.lines.append("entry:")
        w.arguments(4)
        nbytes = 4 if self.kind == "float" else 8
        half = 2 * self.n * self.beside * nbytes  # one buffer
        pieces = self.inner // self.beside
        count = self.outer * pieces
        each = -(-count // _BLOCKS)
        blocks = -(-count // each)
        with w.counted("b", "%lo", "%hi") as block:
            source = w.moved("%p3", block, 2 * half)
            low = self.far(block, each)
            high = w.smallest(self.far(low, 1, each), count)
            with w.counted("t", low.name, high.name) as row:
                before, piece = w.indices(row, (self.outer, pieces))
                start = self.far(before, self.n * self.inner)
                start = w.e.op("add", start, self.far(piece, self.beside))
                self.transform(start, source, w.at(source, half))
        w.lines.append("  ret void")
        return Work((Step(w.module(engine().attributes), blocks),), blocks * 2 * half)

    def transform(self, start: Reg, source: str, target: str) -> None:
        """One row, or some beside each other, by way of two buffers."""
        self.moved(True, start, source)
        first = 0
        for r, m, s in self.stages():
            self.stage(r, m, s, source, target, first)
            source, target, first = target, source, first + (r - 1) * m
        self.moved(False, start, source)


@lru_cache(maxsize=256)
def _work(shape: Shape, axis: int, inverse: bool, kind: str) -> Work:
    return _Writer(shape, axis, inverse, kind).work()


def serves(x: Any, axis: int) -> bool:
    """Whether the axis has a length that is known here."""
    n = x.shape[axis]
    return 1 < n <= _LONGEST and bool(radices(n)) and x.dtype.kind == "c"


def dft(x: Any, axis: int, inverse: bool) -> Any:
    """The transform, not divided by the length, of a contiguous array that is served."""
    real = x.real.dtype
    out = empty(x.shape, x.dtype)
    kind = "float" if real == np.float32 else "double"
    run(_work(x.shape, axis, inverse, kind), [out], [x, _twiddles(x.shape[axis], inverse, real)])
    return out

"""LLVM IR of Fourier transforms: Stockham's passes of radix 2, 3, 4, 5, 7 and 8.

A pass takes n = r m numbers, seen as x[j][p][q] (r, m, s), to y[p][k][q] (m, r, s): the transform
over j, times exp(-2 pi i p k / n). After it m is what n was, and s is r times as large; no pass
moves anything that its stores do not move anyway. Between passes real and imaginary parts lie in
arrays of their own, so that a vector is as many numbers as it has lanes:

    first   reads the user's pairs; s is 1, and vectors go along p
    middle  vectors go along q
    last    m is 1; writes pairs, scaled

All are of one signature, (in, out, half, m, s, twiddles): `half` elements lie between real and
imaginary parts. An inverse transform is one of numbers whose parts changed places, which the first
and the last pass see to. `rows` and `columns` run the passes of a plan over a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, localcontext
from functools import cache

from everygrad.backends.cpu.llvm.compiler import Value, engine, literal
from everygrad.backends.cpu.llvm.vector_emitter import Int, VectorEmitter, machine
from everygrad.dtypes import DType

RADICES = (8, 4, 2, 3, 5, 7)
PASS_WORDS = 4  # of a plan: the function, m, s, twiddles
# arguments of `rows` and `columns`
(PLAN, PASSES, X, OUT, SCRATCH, LENGTH, INNER, WIDE, COUNT, BLOCKS, X_ROW, OUT_ROW, SCALE,
 TABLE) = range(14)  # fmt: skip
SPARE = 64  # elements between the parts of a block's scratch memory

Complex = tuple[Value, Value]


@cache
def _root(k: int, r: int) -> tuple[float, float]:
    """cos and sin of 2 pi k / r, rounded once: -1/2 is not what math.cos makes of 2 pi / 3."""
    with localcontext() as context:
        context.prec = 40
        angle = Decimal("6.283185307179586476925286766559005768394") * k / r
        total, term = [Decimal(1), Decimal(0)], Decimal(1)
        for power in range(1, 60):
            term *= angle / power
            total[power % 2] += term if power % 4 < 2 else -term
        return float(total[0]), float(total[1])


class _Pass(VectorEmitter):
    """Writes one function; vectors are of as many lanes as `wide` says last, one being a number."""

    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype, 1)
        self.dtype = dtype
        self.wide(1)

    def wide(self, lanes: int) -> None:
        self.lanes = lanes
        self.vector = self.element if lanes == 1 else f"<{lanes} x {self.element}>"
        self.suffix = f"f{self.dtype.bits}" if lanes == 1 else f"v{lanes}f{self.dtype.bits}"

    def number(self, value: float) -> Value:
        one = literal(self.element, value)
        if self.lanes == 1:
            return one
        lanes = ", ".join(f"{one.type} {one.name}" for _ in range(self.lanes))
        return Value(self.vector, f"<{lanes}>")

    def spread(self, value: Value) -> Value:
        return value if self.lanes == 1 else self.splat(value)

    # --- complex numbers

    def plus(self, a: Complex, b: Complex) -> Complex:
        return self.op("fadd", a[0], b[0]), self.op("fadd", a[1], b[1])

    def less(self, a: Complex, b: Complex) -> Complex:
        return self.op("fsub", a[0], b[0]), self.op("fsub", a[1], b[1])

    def less_i(self, a: Complex, b: Complex) -> Complex:
        """a - i b."""
        return self.op("fadd", a[0], b[1]), self.op("fsub", a[1], b[0])

    def plus_i(self, a: Complex, b: Complex) -> Complex:
        return self.op("fsub", a[0], b[1]), self.op("fadd", a[1], b[0])

    def negated(self, a: Value) -> Value:
        return self.emit(self.vector, f"fneg {self.vector} {a.name}")

    def times(self, a: Complex, b: Complex) -> Complex:
        real = self.fused(self.negated(a[1]), b[1], self.op("fmul", a[0], b[0]))
        return real, self.fused(a[0], b[1], self.op("fmul", a[1], b[0]))

    # --- butterflies: the transform of r numbers

    def butterfly(self, a: Sequence[Complex]) -> list[Complex]:
        r = len(a)
        if r == 2:
            return [self.plus(a[0], a[1]), self.less(a[0], a[1])]
        if r == 4:
            return self._four(a)
        return self._eight(a) if r == 8 else self._odd(a)

    def _four(self, a: Sequence[Complex]) -> list[Complex]:
        even, odd = self.plus(a[0], a[2]), self.plus(a[1], a[3])
        cross, turn = self.less(a[0], a[2]), self.less(a[1], a[3])
        return [
            self.plus(even, odd), self.less_i(cross, turn),
            self.less(even, odd), self.plus_i(cross, turn),
        ]  # fmt: skip

    def _eight(self, a: Sequence[Complex]) -> list[Complex]:
        even, odd = self._four(a[::2]), self._four(a[1::2])
        root = self.number(math.sqrt(0.5))
        x, y = odd[1]
        first = self.op("fadd", x, y), self.op("fsub", y, x)
        x, y = odd[3]
        third = self.op("fsub", y, x), self.op("fadd", x, y)  # the second is subtracted

        def scaled(a: Complex, b: Complex, sign: int, second: int) -> Complex:
            out = []
            for of, add, s in ((0, b[0], sign), (1, b[1], sign * second)):
                factor = root if s > 0 else self.number(-math.sqrt(0.5))
                out.append(self.fused(add, factor, a[of]))
            return out[0], out[1]

        return [
            self.plus(even[0], odd[0]), scaled(even[1], first, 1, 1),
            self.less_i(even[2], odd[2]), scaled(even[3], third, 1, -1),
            self.less(even[0], odd[0]), scaled(even[1], first, -1, 1),
            self.plus_i(even[2], odd[2]), scaled(even[3], third, -1, -1),
        ]  # fmt: skip

    def _odd(self, a: Sequence[Complex]) -> list[Complex]:
        r = len(a)
        half = range(1, (r + 1) // 2)
        sums = [self.plus(a[j], a[r - j]) for j in half]
        differences = [self.less(a[j], a[r - j]) for j in half]
        whole = a[0]
        for one in sums:
            whole = self.plus(whole, one)
        out = [whole] * r
        for k in half:
            real, turn = a[0], None
            for j, s, d in zip(half, sums, differences, strict=True):
                cos, sin = (self.number(part) for part in _root(j * k % r, r))
                real = self.fused(s[0], cos, real[0]), self.fused(s[1], cos, real[1])
                if turn is None:
                    turn = self.op("fmul", d[0], sin), self.op("fmul", d[1], sin)
                else:
                    turn = self.fused(d[0], sin, turn[0]), self.fused(d[1], sin, turn[1])
            assert turn is not None
            out[k], out[r - k] = self.less_i(real, turn), self.plus_i(real, turn)
        return out

    # --- memory

    def parts(self, base: Value, half: Value, at: Int) -> Complex:
        """Of numbers whose parts lie apart."""
        real = self.at(base, at)
        return self.load(real), self.load(self.at(real, half))

    def put_parts(self, value: Complex, base: Value, half: Value, at: Int) -> None:
        real = self.at(base, at)
        self.store(value[0], real)
        self.store(value[1], self.at(real, half))

    def pairs(self, base: Value, at: Int) -> Complex:
        """Of numbers as the user has them, `at` of them on."""
        first = self.at(base, self.mul(at, 2))
        low, high = self.load(first), self.load(self.at(first, self.lanes))
        if self.lanes == 1:
            return low, high
        n = 2 * self.lanes
        return self.shuffle(low, high, range(0, n, 2)), self.shuffle(low, high, range(1, n, 2))

    def put_pairs(self, value: Complex, base: Value, at: Int) -> None:
        first = self.at(base, self.mul(at, 2))
        for i, part in enumerate(self.zipped(*value)):
            self.store(part, self.at(first, i * self.lanes))

    def zipped(self, a: Value, b: Value) -> list[Value]:
        """The elements of two vectors in turns."""
        n = self.lanes
        if n == 1:
            return [a, b]
        low = [i for k in range(n // 2) for i in (k, n + k)]
        return [self.shuffle(a, b, low), self.shuffle(a, b, [i + n // 2 for i in low])]

    def put_in_turns(self, values: Sequence[Value], base: Value) -> None:
        """The first elements of all vectors, a power of two, then the second ones, and so on."""
        if self.lanes == 1:
            for k, value in enumerate(values):
                self.store(value, self.at(base, k))
            return
        for i, part in enumerate(self._in_turns([[v] for v in values])):
            self.store(part, self.at(base, i * self.lanes))

    def _in_turns(self, runs: list[list[Value]]) -> list[Value]:
        while len(runs) > 1:
            half = len(runs) // 2
            runs = [
                [part for a, b in zip(runs[k], runs[k + half], strict=True)
                 for part in self.zipped(a, b)]
                for k in range(half)
            ]  # fmt: skip
        return runs[0]

    def stretches(self, count: Int, widths: Sequence[int]) -> Iterator[Int]:
        """The code for `count` elements, as vectors of each width as far as they go: yields the
        place of one."""
        done: Int = 0
        for lanes in widths:
            self.wide(lanes)
            left = self.minus(count, done)
            turns = left if lanes == 1 else self.op("sdiv", self.i64(left), self.i64(lanes))
            with self.loop(0, turns) as loop:
                yield self.add(self.mul(loop.index, lanes), done)
            done = self.add(self.mul(turns, lanes), done)


def _widths(dtype: DType) -> list[int]:
    """The widest vectors first; the last is one number."""
    lanes = machine(dtype).lanes
    return [w for w in (16, 8, 4, 2) if w <= lanes and w * dtype.itemsize >= 16] + [1]


_HEAD = "ptr %in, ptr %out, i64 %half, i64 %m, i64 %s, ptr %twiddles"
_BATCH = "i64 %lo, i64 %hi, ptr %args"


def _function(e: _Pass, head: str = _HEAD) -> str:
    start = f"define void @step({head}) {engine().attributes} {{"
    return "\n".join([*sorted(e.declarations), start, "entry:", *e.lines, "  ret void", "}", ""])


def _named(*names: str) -> list[Value]:
    kinds = {"in": "ptr", "out": "ptr", "twiddles": "ptr", "scale": "ptr"}
    return [Value(kinds.get(n, "i64"), f"%{n}") for n in names]


def _first(dtype: DType, r: int, inverse: bool) -> str:
    e = _Pass(dtype)
    source, out, half, m, twiddles = _named("in", "out", "half", "m", "twiddles")
    widths = [1] if r % 2 else _widths(dtype)  # odd ones are stored one by one
    for p in e.stretches(m, widths):
        given = []
        for j in range(r):
            real, imaginary = e.pairs(source, e.add(p, _product(e, m, j)))
            given.append((imaginary, real) if inverse else (real, imaginary))
        found = e.butterfly(given)
        for k in range(1, r):
            row = e.at(twiddles, e.add(p, _product(e, m, 2 * (k - 1))))
            found[k] = e.times(found[k], (e.load(row), e.load(e.at(row, m))))
        place = e.at(out, e.mul(e.i64(p), r))
        e.put_in_turns([v[0] for v in found], place)
        e.put_in_turns([v[1] for v in found], e.at(place, half))
    return _function(e)


def _product(e: _Pass, a: Value, factor: int) -> Int:
    return 0 if not factor else e.mul(a, factor)


def _middle(dtype: DType, r: int) -> str:
    e = _Pass(dtype)
    source, out, half, m, s, twiddles = _named("in", "out", "half", "m", "s", "twiddles")
    apart = e.op("mul", m, s)

    def one(p: Int, weights: Sequence[Complex]) -> None:
        start = e.op("mul", e.i64(p), s)
        for q in e.stretches(s, _widths(dtype)):
            at = e.add(q, start)
            given = [e.parts(source, half, e.add(at, _product(e, apart, j))) for j in range(r)]
            found = e.butterfly(given)
            for k, (real, imaginary) in enumerate(weights, 1):
                found[k] = e.times(found[k], (e.spread(real), e.spread(imaginary)))
            at = e.add(q, e.mul(start, r))
            for k in range(r):
                e.put_parts(found[k], out, half, e.add(at, _product(e, s, k)))

    one(0, ())  # without factors: they are 1
    with e.loop(1, m) as loop:
        row = e.at(twiddles, e.mul(loop.index, 2 * (r - 1)))
        words = [e.load(e.at(row, i), e.element) for i in range(2 * (r - 1))]
        one(loop.index, list(zip(words[::2], words[1::2], strict=True)))
    return _function(e)


def _last(dtype: DType, r: int, inverse: bool) -> str:
    """The address of the scale comes as `twiddles`."""
    e = _Pass(dtype)
    source, out, half, s, twiddles = _named("in", "out", "half", "s", "twiddles")
    scale = e.load(twiddles, e.element)
    for q in e.stretches(s, _widths(dtype)):
        given = [e.parts(source, half, e.add(q, _product(e, s, j))) for j in range(r)]
        factor = e.spread(scale)
        for k, (real, imaginary) in enumerate(e.butterfly(given)):
            value = e.op("fmul", real, factor), e.op("fmul", imaginary, factor)
            e.put_pairs(
                (value[1], value[0]) if inverse else value, out, e.add(q, _product(e, s, k))
            )
    return _function(e)


# --- over a batch --------------------------------------------------------------------------------


def _arguments(e: _Pass) -> Callable[[int], Value]:
    def word(index: int) -> Value:
        kind = "ptr" if index in (PLAN, X, OUT, SCRATCH, SCALE, TABLE) else "i64"
        at = e.emit("ptr", f"getelementptr i64, ptr %args, i64 {index}")
        return e.emit(kind, f"load {kind}, ptr {at.name}")

    return word


def _run_passes(
    e: _Pass, plan: Value, start: int, end: Int, ends: tuple[Value, Value], half: Value, wide: Int
) -> tuple[Value, Value]:
    """Passes [start, end) of a plan between two parts of the scratch memory; where it ends."""
    with e.loop(start, end, ends) as loop:
        source, out = loop.values
        _call(e, plan, loop.index, source, out, half, wide)
        loop.next = [out, source]
    return loop.values[0], loop.values[1]


def _call(
    e: _Pass, plan: Value, index: Int, source: Value, out: Value, half: Value, wide: Int,
    factor: Value | None = None,
) -> None:  # fmt: skip
    row = e.at(plan, e.mul(index, PASS_WORDS), "i64")
    function, m, s, twiddles = (
        e.load(e.at(row, i, "i64"), kind) for i, kind in enumerate(("ptr", "i64", "i64", "ptr"))
    )
    inner = s if wide == 1 else e.op("mul", s, e.i64(wide))
    given = (
        f"ptr {source.name}, ptr {out.name}, i64 {half.name}, i64 {m.name}, i64 {inner.name}, "
        f"ptr {(factor or twiddles).name}"
    )
    e.lines.append(f"  call void {function.name}({given})")


def _share(e: _Pass, block: Value, blocks: Value, count: Value) -> tuple[Value, Value]:
    """The part of [0, count) that is a block's."""
    low = e.op("sdiv", e.op("mul", block, count), blocks)
    after = e.op("mul", e.i64(e.add(block, 1)), count)
    return low, e.op("sdiv", after, blocks)


def _rows(dtype: DType, kind: str, inverse: bool) -> str:
    """Transforms along the last axis; each block has scratch memory of its own. Of real numbers,
    half of it ("real") or with its mirror image ("whole"), or back to these from such a half
    ("half"): n of them are n / 2 pairs, and what the transform of the pairs lacks are sums of two
    elements each."""
    e = _Pass(dtype)
    word = _arguments(e)
    plan, passes, x, out, scratch, n = (word(i) for i in range(LENGTH + 1))
    count, blocks, x_row, out_row, scale, table = (word(i) for i in range(COUNT, TABLE + 1))
    last = e.sub(passes, 1)
    with e.loop(*e.blocks) as block:
        room = e.i64(e.add(e.mul(n, 4 if kind == "rows" else 6), SPARE))
        first = e.at(scratch, e.op("mul", e.i64(block.index), room))
        second = e.at(first, e.mul(n, 2))
        between = e.at(first, e.mul(n, 4))
        low, high = _share(e, e.i64(block.index), blocks, count)
        with e.loop(low, high) as row:
            source = e.at(x, e.op("mul", e.i64(row.index), x_row))
            target = e.at(out, e.op("mul", e.i64(row.index), out_row))
            if kind == "half":
                _join(e, source, between, n, table, scale)
                source = between
            _call(e, plan, 0, source, first, n, 1)
            found, _ = _run_passes(e, plan, 1, last, (first, second), n, 1)
            _call(e, plan, last, found, target if kind in ("rows", "half") else between, n, 1,
                  scale)  # fmt: skip
            if kind in ("real", "whole"):
                _split(e, between, target, n, table, scale, kind == "whole", inverse)
    return _function(e, _BATCH)


def _reversed(e: _Pass, v: Complex) -> Complex:
    """The lanes in reverse, conjugated."""
    if e.lanes > 1:
        order = range(e.lanes - 1, -1, -1)
        v = e.shuffle(v[0], v[0], order), e.shuffle(v[1], v[1], order)
    return v[0], e.negated(v[1])


def _beside(e: _Pass, base: Value, n: Value, k: Int) -> tuple[Complex, Complex]:
    """Elements k and on, and n - k and back, conjugated."""
    back = e.add(e.minus(n, k), 1 - e.lanes)
    return e.pairs(base, k), _reversed(e, e.pairs(base, back))


def _weights(e: _Pass, factors: Value) -> tuple[Value, Value]:
    """Of elements that stand for themselves alone, and of the others."""
    return e.load(e.at(factors, 1), e.element), e.load(e.at(factors, 2), e.element)


def _split(
    e: _Pass, z: Value, out: Value, n: Value, table: Value, factors: Value, whole: bool,
    inverse: bool,
) -> None:  # fmt: skip
    """Half the transform of 2 n real numbers from that of n pairs, z; or the whole of it."""
    once, twice = _weights(e, factors)
    for i in e.stretches(e.minus(n, 1), _widths(e.dtype)):
        k = e.add(i, 1)
        a, b = _beside(e, z, n, k)
        factor = e.spread(twice)
        total, off = e.plus(a, b), e.less(a, b)
        weight = e.load(e.at(table, k)), e.load(e.at(e.at(table, k), n))
        turn = e.times(off, weight)
        real, imaginary = (
            e.op("fmul", e.op("fadd", p, q), factor) for p, q in zip(total, turn, strict=True)
        )
        value = real, e.negated(imaginary) if inverse else imaginary
        e.put_pairs(value, out, k)
        if whole:
            back = e.add(e.minus(e.mul(n, 2), k), 1 - e.lanes)
            e.put_pairs(_reversed(e, value), out, back)
    e.wide(1)
    real, imaginary = e.pairs(z, 0)
    nothing = e.number(0.0)
    for name, place in (("fadd", 0), ("fsub", n)):
        end = e.op("fmul", e.op(name, real, imaginary), once)
        e.put_pairs((end, nothing), out, place)


def _join(e: _Pass, x: Value, z: Value, n: Value, table: Value, factors: Value) -> None:
    """The n pairs whose inverse transform are 2 n real numbers, from half of the transform x."""
    once, twice = _weights(e, factors)
    for i in e.stretches(e.minus(n, 1), _widths(e.dtype)):
        k = e.add(i, 1)
        a, b = _beside(e, x, n, k)
        weight = e.load(e.at(table, k)), e.load(e.at(e.at(table, k), n))
        made = e.plus(e.plus(a, b), e.times(e.less(a, b), weight))
        factor = e.spread(twice)
        e.put_pairs((e.op("fmul", made[0], factor), e.op("fmul", made[1], factor)), z, k)
    e.wide(1)
    # the imaginary parts of both ends stand for nothing
    start = e.op("fmul", e.load(x), once)
    end = e.op("fmul", e.load(e.at(x, e.mul(n, 2))), once)
    e.put_pairs((e.op("fadd", start, end), e.op("fsub", start, end)), z, 0)


def _columns(dtype: DType, inverse: bool) -> str:
    """Transforms along another axis, of WIDE columns at a time: x is (COUNT, LENGTH, INNER)."""
    e = _Pass(dtype)
    word = _arguments(e)
    plan, passes, x, out, scratch, n, inner, wide, count, blocks = (
        word(i) for i in range(BLOCKS + 1)
    )
    scale = e.load(word(SCALE), e.element)
    half = e.op("mul", n, wide)
    groups = e.op("sdiv", e.op("add", inner, e.i64(e.sub(wide, 1))), wide)
    matrix = e.op("mul", n, inner)
    with e.loop(*e.blocks) as block:
        assert isinstance(block.index, Value)
        room = e.i64(e.add(e.mul(half, 4), SPARE))
        first = e.at(scratch, e.op("mul", block.index, room))
        second = e.at(first, e.mul(half, 2))
        low, high = _share(e, block.index, blocks, e.op("mul", count, groups))
        with e.loop(low, high) as task:
            assert isinstance(task.index, Value)
            outer, group = e.op("sdiv", task.index, groups), e.op("srem", task.index, groups)
            column = e.op("mul", group, wide)
            width = e.i64(e.least(wide, e.minus(inner, column)))
            start = e.i64(e.add(e.op("mul", outer, matrix), column))
            with e.loop(0, n) as row:
                assert isinstance(row.index, Value)
                there = e.add(start, e.op("mul", row.index, inner))
                here = e.op("mul", row.index, width)
                for q in e.stretches(width, _widths(dtype)):
                    value = e.pairs(x, e.add(there, q))
                    value = value[::-1] if inverse else value
                    e.put_parts(value, first, half, e.add(here, q))
            found, _ = _run_passes(e, plan, 0, passes, (first, second), half, width)
            with e.loop(0, n) as row:
                assert isinstance(row.index, Value)
                there = e.add(start, e.op("mul", row.index, inner))
                here = e.op("mul", row.index, width)
                for q in e.stretches(width, _widths(dtype)):
                    factor = e.spread(scale)
                    value = e.parts(found, half, e.add(here, q))
                    value = e.op("fmul", value[0], factor), e.op("fmul", value[1], factor)
                    e.put_pairs((value[1], value[0]) if inverse else value, out, e.add(there, q))
    return _function(e, _BATCH)


def source(dtype: DType, kind: str, radix: int, inverse: bool) -> str:
    """The module of one function, `step`; `radix` matters for passes alone."""
    if kind in ("rows", "real", "whole", "half"):
        return _rows(dtype, kind, inverse)
    if kind == "columns":
        return _columns(dtype, inverse)
    if kind == "middle":
        return _middle(dtype, radix)
    return (_first if kind == "first" else _last)(dtype, radix, inverse)

"""LLVM IR of factorisations of small matrices, in float64: LAPACK's routines, called on copies in
the order it wants and packed as the ops' results are, in one native call for a batch; Cholesky's
and Gauss's are so short that they are written out.

What a routine does not compute (its info is not 0, or a result is no number) makes the status 1,
and the slower way says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import Int
from everygrad.backends.cpu.solver.matrix_code import Given, MatrixCode, Number
from everygrad.dtypes import DType

# the words: the user's array and the result; two of LAPACK's routines; scratch memory in parts, and
# integers' ; sizes; the numbers that LAPACK takes by reference; the status; how many matrices
X, OUT, FIRST, SECOND, WORK, M, N, K, NUMBERS, STATUS, COUNT = range(11)
INFO, LWORK, LRWORK, LIWORK, INTEGERS = 3, 4, 5, 6, 8  # places among the numbers; m, n, k are first


class FactorCode(MatrixCode):
    """Matrices of LAPACK's lie column by column, real and imaginary parts side by side."""

    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype)
        self.m, self.n, self.k = self.word(M), self.word(N), self.word(K)
        self.work = self.word(WORK, "ptr")
        self.texts: list[str] = []

    def space(self, elements: Int, parts: int | None = None) -> Value:
        """Some of the scratch memory."""
        here = self.work
        count = self.mul(self.i64(elements), self.parts if parts is None else parts)
        self.work = self.at(here, count, "double")
        return here

    def number(self, place: int) -> Value:
        """The address of a number."""
        return self.at(self.word(NUMBERS, "ptr"), place, "i64")

    def letter(self, letter: str) -> Value:
        name = f"@letter.{letter}"
        text = f'{name} = private constant [2 x i8] c"{letter}\\00"'
        self.globals.append(text)
        return Value("ptr", name)

    def routine(self, word: int, args: Sequence[Value]) -> None:
        """A routine of LAPACK's; where its info, the last argument, is not 0, the status is set."""
        info = self.number(INFO)
        self.store(self.i64(0), info)
        address = self.word(word, "ptr")
        given = ", ".join(f"ptr {a.name}" for a in (*args, info))
        self.lines.append(f"  call void {address.name}({given})")
        self.fail_if(self.compare_ints("ne", self.load(info, "i64"), 0))

    def fail_if(self, condition: Value) -> None:
        with self.when(condition):
            self.store(self.i64(1), self.word(STATUS, "ptr"))

    def fail_unless_number(self, value: Number) -> None:
        for part in value:
            self.fail_if(self.compare("uno", part, part))

    def at_column(self, base: Value, rows: Value, i: Int, j: Int) -> Value:
        at = self.add(self.op("mul", self.i64(j), rows), i)
        return self.at(base, self.mul(self.i64(at), self.parts), "double")

    def get(self, base: Value, rows: Value, i: Int, j: Int) -> Number:
        at = self.at_column(base, rows, i, j)
        return tuple([self.load(self.at(at, p, "double"), "double") for p in range(self.parts)])

    def set(self, value: Number, base: Value, rows: Value, i: Int, j: Int) -> None:
        at = self.at_column(base, rows, i, j)
        for p, part in enumerate(value):
            self.store(part, self.at(at, p, "double"))

    def copy_in(self, x: Value, to: Value, rows: Value, columns: Value) -> None:
        with self.loop(0, rows) as i, self.loop(0, columns) as j:
            value = self.given_number(Given(x, columns), i.index, j.index)
            self.set(value, to, rows, i.index, j.index)

    def real_number(self, value: Value) -> Number:
        return (value, *[self.real(0.0)] * (self.parts - 1))

    def one_of(self, base: Value, step: Value, index: Int) -> Value:
        size = self.op("mul", step, self.i64(index))
        return self.at(base, self.mul(size, self.parts), self.given)

    def function(self) -> str:
        return "\n".join([*dict.fromkeys(self.globals), super().function()])


def _eigh(dtype: DType) -> str:
    e = FactorCode(dtype)
    n = e.n
    wide = e.i64(e.add(n, 1))
    x, out, count = e.word(X, "ptr"), e.word(OUT, "ptr"), e.word(COUNT)
    square = e.op("mul", n, n)
    a, values = e.space(square), e.space(n, 1)
    spaces = [e.space(e.load(e.number(LWORK), "i64"))]
    if e.is_complex:
        spaces.append(e.space(e.load(e.number(LRWORK), "i64"), 1))
    places = [LWORK, LRWORK, LIWORK] if e.is_complex else [LWORK, LIWORK]
    spaces.append(e.number(INTEGERS))
    with e.loop(0, count) as matrix:
        e.copy_in(e.one_of(x, square, matrix.index), a, n, n)
        given = [e.letter("V"), e.letter("L"), e.number(1), a, e.number(1), values]
        for space, place in zip(spaces, places, strict=True):
            given += [space, e.number(place)]
        e.routine(FIRST, given)
        to = Given(e.one_of(out, e.op("mul", n, wide), matrix.index), wide)
        with e.loop(0, n) as i:
            value = e.load(e.at(values, i.index, "double"), "double")
            e.fail_unless_number((value,))
            e.give(e.real_number(value), to, i.index, 0)
            with e.loop(0, n) as j:
                e.give(e.get(a, n, i.index, j.index), to, i.index, e.add(j.index, 1))
    return e.function()


def _svd(dtype: DType) -> str:
    e = FactorCode(dtype)
    m, n, k = e.m, e.n, e.k
    x, out, count = e.word(X, "ptr"), e.word(OUT, "ptr"), e.word(COUNT)
    size = e.op("mul", m, n)
    a, values = e.space(size), e.space(k, 1)
    u, vh = e.space(e.op("mul", m, k)), e.space(e.op("mul", k, n))
    spaces = [e.space(e.load(e.number(LWORK), "i64")), e.number(LWORK)]
    if e.is_complex:
        spaces.append(e.space(e.load(e.number(LRWORK), "i64"), 1))
    tall = e.op("add", e.i64(e.add(m, 1)), n)
    with e.loop(0, count) as matrix:
        e.copy_in(e.one_of(x, size, matrix.index), a, m, n)
        given = [e.letter("S"), e.number(0), e.number(1), a, e.number(0), values, u, e.number(0),
                 vh, e.number(2), *spaces, e.number(INTEGERS)]  # fmt: skip
        e.routine(FIRST, given)
        to = Given(e.one_of(out, e.op("mul", tall, k), matrix.index), k)
        with e.loop(0, k) as j:
            value = e.load(e.at(values, j.index, "double"), "double")
            e.fail_unless_number((value,))
            e.give(e.real_number(value), to, m, j.index)
            with e.loop(0, m) as i:
                e.give(e.get(u, m, i.index, j.index), to, i.index, j.index)
            with e.loop(0, n) as i:
                one = e.conjugate(e.get(vh, k, j.index, i.index))
                e.give(one, to, e.add(e.add(m, 1), i.index), j.index)
    return e.function()


def _qr(dtype: DType) -> str:
    if dtype.bits == (64 if dtype.is_complex else 32):
        return _short_qr(dtype)
    e = FactorCode(dtype)
    m, n = e.m, e.n
    x, out, count = e.word(X, "ptr"), e.word(OUT, "ptr"), e.word(COUNT)
    size = e.op("mul", m, n)
    a, scales, space = e.space(size), e.space(n), e.space(n)
    tall = e.op("add", m, n)
    with e.loop(0, count) as matrix:
        e.copy_in(e.one_of(x, size, matrix.index), a, m, n)
        sizes = e.number(0), e.number(1)
        e.routine(FIRST, [*sizes, a, e.number(0), scales, space])
        to = Given(e.one_of(out, e.op("mul", tall, n), matrix.index), n)
        with e.loop(0, n) as i:
            with e.loop(0, i.index) as j:
                e.give(e.nothing(False), to, e.add(m, i.index), j.index)
            with e.loop(i.index, n) as j:
                e.give(e.get(a, m, i.index, j.index), to, e.add(m, i.index), j.index)
        e.routine(SECOND, [*sizes, e.number(1), a, e.number(0), scales, space])
        with e.loop(0, m) as i, e.loop(0, n) as j:
            e.give(e.get(a, m, i.index, j.index), to, i.index, j.index)
    return e.function()


def _short_qr(dtype: DType) -> str:
    """Of numbers whose squares, sums and quotients are all normal in float64."""
    e = FactorCode(dtype)
    m, n = e.m, e.n
    x, out, count = e.word(X, "ptr"), e.word(OUT, "ptr"), e.word(COUNT)
    a, work = e.matrix(e.work, n, m)
    v, work = e.matrix(work, n, m)
    q, work = e.matrix(work, n, m)
    r, _ = e.matrix(work, n, n)
    size, tall = e.op("mul", m, n), e.op("add", m, n)
    with e.loop(0, count) as matrix:
        e.read_columns(Given(e.one_of(x, size, matrix.index), n), a)
        e.reflections(a, v, r, q)
        to = e.one_of(out, e.op("mul", tall, n), matrix.index)
        e.write(q, Given(to, n), transposed=True)
        below = e.op("mul", size, e.i64(e.parts))
        e.write(r, Given(e.at(to, below, e.given), n))
    return e.function()


def _cholesky(dtype: DType) -> str:
    """L^H row by row, each taken out of those below; of x the lower triangle is read."""
    e = FactorCode(dtype)
    n = e.n
    x, out, count = e.word(X, "ptr"), e.word(OUT, "ptr"), e.word(COUNT)
    size = e.op("mul", n, n)
    upper, _ = e.matrix(e.work, n, n)
    bases = e.bases(upper)
    with e.loop(0, count) as matrix:
        source = Given(e.one_of(x, size, matrix.index), n)
        to = Given(e.one_of(out, size, matrix.index), n)
        e.clear(upper)
        with e.loop(0, n) as i, e.loop(i.index, n) as j:
            value = e.conjugate(e.given_number(source, j.index, i.index))
            e.keep(value, bases, e.place(upper, i.index, j.index))
        with e.loop(0, n) as i:
            corner = e.take(bases, e.place(upper, i.index, i.index))[0]
            e.fail_if(e.compare("ule", corner, e.real(0.0)))
            root = e.intrinsic("sqrt", corner)
            over = e.spread(e.real_number(e.op("fdiv", e.real(1.0), root)))
            e.scale_row(upper, i.index, over)
            # not 1 / root times what it is the root of: exact where the root is
            e.keep(e.real_number(root), bases, e.place(upper, i.index, i.index))
            with e.loop(e.add(i.index, 1), n) as j:
                one = e.take(bases, e.place(upper, i.index, j.index))
                factor = e.spread(e.negated(e.conjugate(one)))
                e.add_row_of(upper, j.index, upper, i.index, factor)
        with e.loop(0, n) as i:
            with e.loop(0, i.index) as j:
                value = e.take(bases, e.place(upper, j.index, i.index))
                e.give(e.conjugate(value), to, i.index, j.index)
            diagonal = e.take(bases, e.place(upper, i.index, i.index))[0]
            e.give(e.real_number(diagonal), to, i.index, i.index)
            with e.loop(e.add(i.index, 1), n) as j:
                e.give(e.nothing(False), to, i.index, j.index)
    return e.function()


def _slogdet(dtype: DType) -> str:
    e = FactorCode(dtype)
    n = e.n
    x, out, count = e.word(X, "ptr"), e.word(OUT, "ptr"), e.word(COUNT)
    size = e.op("mul", n, n)
    a, _ = e.matrix(e.work, n, n)
    with e.loop(0, count) as matrix:
        e.read(Given(e.one_of(x, size, matrix.index), n), a)
        sign = e.eliminate(a, None)
        with e.loop(0, n, [*e.real_number(sign), e.real(0.0)]) as i:
            corner = e.take(e.bases(a), e.place(a, i.index, i.index))
            length = e.intrinsic("fabs", corner[0])
            if e.is_complex:
                squares = [e.op("fmul", part, part) for part in corner]
                length = e.intrinsic("sqrt", e.op("fadd", *squares))
            gone = e.compare("oeq", length, e.real(0.0))
            safe = e.select(gone, e.real(1.0), length)
            unit = tuple([e.op("fdiv", part, safe) for part in corner])
            log = e.intrinsic("log", length)
            i.next = [*e.times(tuple(i.values[:-1]), unit), e.op("fadd", i.values[-1], log)]
        to = Given(e.one_of(out, e.i64(2), matrix.index), e.i64(2))
        e.fail_unless_number(tuple(i.values))
        e.give(tuple(i.values[:-1]), to, 0, 0)
        e.give(e.real_number(i.values[-1]), to, 0, 1)
    return e.function()


SOURCES: dict[str, Callable[[DType], str]] = {
    "eigh": _eigh,
    "svd": _svd,
    "qr": _qr,
    "cholesky": _cholesky,
    "slogdet": _slogdet,
}

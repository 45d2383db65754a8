"""LLVM IR of what small matrices are computed with: products, triangular systems, adjoints.

All is in float64, whatever the user's numbers are. A matrix lies in scratch memory row by row,
real and imaginary parts apart, rows filled up to whole vectors; vectors go along a row. So one
writer serves real and complex matrices of any number of rows and columns, known when the code runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from everygrad import dtypes
from everygrad.backends.cpu.llvm.compiler import Value, engine, literal
from everygrad.backends.cpu.llvm.vector_emitter import Int, VectorEmitter, machine
from everygrad.dtypes import DType

Number = tuple[Value, ...]  # one part, or two


class Matrix(NamedTuple):
    """In scratch memory: of `rows` rows, `pitch` elements apart, imaginary parts behind all."""

    base: Value
    rows: Value
    columns: Value
    pitch: Value


class Given(NamedTuple):
    """A matrix of the user's, of which element (i, j) is i * row + j elements on."""

    base: Value
    row: Value


class MatrixCode(VectorEmitter):
    """Writes step(lo, hi, words), which does its work for matrices [lo, hi) of a batch."""

    def __init__(self, dtype: DType) -> None:
        super().__init__(dtypes.float64, machine(dtypes.float64).lanes)
        self.given = "float" if dtype.bits == (64 if dtype.is_complex else 32) else "double"
        self.parts = 2 if dtype.is_complex else 1
        self.is_complex = dtype.is_complex

    # --- words and scratch memory

    def word(self, index: int, kind: str = "i64") -> Value:
        at = self.emit("ptr", f"getelementptr i64, ptr %args, i64 {index}")
        return self.emit(kind, f"load {kind}, ptr {at.name}")

    def pitch(self, columns: Value) -> Value:
        """Elements of a row, in whole vectors."""
        more = self.op("add", columns, self.i64(self.lanes - 1))
        return self.op("and", more, self.i64(-self.lanes))

    def matrix(self, base: Value, rows: Value, columns: Value) -> tuple[Matrix, Value]:
        """A matrix at an address, and the address behind it."""
        pitch = self.pitch(columns)
        made = Matrix(base, rows, columns, pitch)
        size = self.op("mul", rows, pitch)
        return made, self.at(base, self.mul(size, self.parts), "double")

    def imaginary(self, a: Matrix) -> Value:
        return self.at(a.base, self.op("mul", a.rows, a.pitch), "double")

    def bases(self, a: Matrix) -> list[Value]:
        return [a.base, self.imaginary(a)] if self.is_complex else [a.base]

    # --- numbers

    def real(self, value: float) -> Value:
        return literal("double", value)

    def take(self, bases: Sequence[Value], at: Int, kind: str = "double") -> Number:
        return tuple([self.load(self.at(b, at, "double"), kind) for b in bases])

    def keep(self, value: Number, bases: Sequence[Value], at: Int) -> None:
        for part, base in zip(value, bases, strict=True):
            self.store(part, self.at(base, at, "double"))

    def spread(self, value: Number) -> Number:
        return tuple([self.splat(part) for part in value])

    def conjugate(self, a: Number) -> Number:
        return a if len(a) == 1 else (a[0], self._negative(a[1]))

    def _negative(self, a: Value) -> Value:
        return self.emit(a.type, f"fneg {a.type} {a.name}")

    def plus(self, a: Number, b: Number) -> Number:
        return tuple([self.op("fadd", p, q) for p, q in zip(a, b, strict=True)])

    def less(self, a: Number, b: Number) -> Number:
        return tuple([self.op("fsub", p, q) for p, q in zip(a, b, strict=True)])

    def scaled(self, a: Number, factor: Value) -> Number:
        return tuple([self.op("fmul", part, factor) for part in a])

    def added(self, total: Number, a: Number, b: Number) -> Number:
        """total + a b, of vectors."""
        if len(a) == 1:
            return (self.fused(a[0], b[0], total[0]),)
        real = self.fused(a[0], b[0], self.fused(self._negative(a[1]), b[1], total[0]))
        return real, self.fused(a[0], b[1], self.fused(a[1], b[0], total[1]))

    def reciprocal(self, a: Number) -> Number:
        one = self.real(1.0)
        if len(a) == 1:
            return (self.op("fdiv", one, a[0]),)
        size = self.op("fadd", self.op("fmul", a[0], a[0]), self.op("fmul", a[1], a[1]))
        return self.op("fdiv", a[0], size), self.op("fdiv", self._negative(a[1]), size)

    def nothing(self, vector: bool = True) -> Number:
        return (self.zero if vector else self.real(0.0),) * self.parts

    # --- the user's matrices

    def given_number(self, a: Given, i: Int, j: Int) -> Number:
        at = self.add(self.op("mul", self.i64(i), a.row), j)
        place = self.at(a.base, self.mul(at, self.parts), self.given)
        found = []
        for part in range(self.parts):
            value = self.load(self.at(place, part, self.given), self.given)
            found.append(self.cast("fpext", value, "double"))
        return tuple(found)

    def give(self, value: Number, a: Given, i: Int, j: Int) -> None:
        at = self.add(self.op("mul", self.i64(i), a.row), j)
        place = self.at(a.base, self.mul(at, self.parts), self.given)
        for k, part in enumerate(value):
            self.store(self.cast("fptrunc", part, self.given), self.at(place, k, self.given))

    def read_columns(self, a: Given, to: Matrix) -> None:
        """Columns of the user's matrix as rows."""
        self.clear(to)
        with self.loop(0, to.rows) as i, self.loop(0, to.columns) as j:
            value = self.given_number(a, j.index, i.index)
            self.keep(value, self.bases(to), self.place(to, i.index, j.index))

    def read(self, a: Given, to: Matrix, rows: tuple[Int, Int] | None = None) -> None:
        """The user's matrix as it is, zeros behind its columns. `rows`: of each row the columns
        read, (from, to) as steps of the row: (0, 0) for none; others are zero."""
        bases = self.bases(to)
        with self.loop(0, to.rows) as i:
            row = self.op("mul", self.i64(i.index), to.pitch)
            with self.loop(0, to.pitch) as j:
                self.keep(self.nothing(False), bases, self.add(row, j.index))
            start, end = (0, to.columns) if rows is None else self._span(i.index, to, rows)
            with self.loop(start, end) as j:
                self.keep(self.given_number(a, i.index, j.index), bases, self.add(row, j.index))

    def _span(self, i: Int, to: Matrix, rows: tuple[Int, Int]) -> tuple[Int, Int]:
        """The lower triangle (0, 1) with the diagonal, or the upper (1, 0) with it."""
        return (0, self.least(self.add(i, 1), to.columns)) if rows[1] else (i, to.columns)

    def write(self, a: Matrix, to: Given, adjoint: bool = False, transposed: bool = False) -> None:
        """A matrix, or its adjoint or transpose, as the user's."""
        bases = self.bases(a)
        with self.loop(0, a.rows) as i:
            row = self.op("mul", self.i64(i.index), a.pitch)
            with self.loop(0, a.columns) as j:
                value = self.take(bases, self.add(row, j.index))
                if adjoint or transposed:
                    value = self.conjugate(value) if adjoint else value
                    self.give(value, to, j.index, i.index)
                else:
                    self.give(value, to, i.index, j.index)

    # --- matrices

    @contextmanager
    def each_vector(self, a: Matrix) -> Iterator[tuple[Int, Int]]:
        """Of each row and each vector of it: the row, and the place of the vector."""
        vectors = self.op("sdiv", a.pitch, self.i64(self.lanes))
        with self.loop(0, a.rows) as i:
            row = self.op("mul", self.i64(i.index), a.pitch)
            with self.loop(0, vectors) as j:
                yield i.index, self.add(row, self.mul(j.index, self.lanes))

    def adjoint(self, a: Matrix, to: Matrix) -> None:
        source, target = self.bases(a), self.bases(to)
        self.clear(to)
        with self.loop(0, a.rows) as i, self.loop(0, a.columns) as j:
            value = self.take(source, self.place(a, i.index, j.index))
            self.keep(self.conjugate(value), target, self.place(to, j.index, i.index))

    def clear(self, a: Matrix) -> None:
        bases = self.bases(a)
        with self.each_vector(a) as (_, at):
            self.keep(self.nothing(), bases, at)

    def place(self, a: Matrix, i: Int, j: Int) -> Int:
        return self.add(self.op("mul", self.i64(i), a.pitch), j)

    def product(self, a: Matrix, b: Matrix, to: Matrix, adjoint: bool = False) -> None:
        """a b, or a^H b."""
        left, right, out = self.bases(a), self.bases(b), self.bases(to)
        with self.each_vector(to) as (i, at):
            column = self.op("sub", self.i64(at), self.op("mul", self.i64(i), to.pitch))
            with self.loop(0, b.rows, self.nothing()) as p:
                place = self.place(a, p.index, i) if adjoint else self.place(a, i, p.index)
                one = self.take(left, place)
                one = self.spread(self.conjugate(one) if adjoint else one)
                row = self.take(right, self.place(b, p.index, column), self.vector)
                p.next = list(self.added(tuple(p.values), one, row))
            self.keep(tuple(p.values), out, at)

    def solve_upper(self, a: Matrix, b: Matrix, of_adjoint: bool = False) -> None:
        """X with a X = b in the place of b; `a` is upper, or the adjoint of what is given."""
        coefficients, values = self.bases(a), self.bases(b)
        vectors = self.op("sdiv", b.pitch, self.i64(self.lanes))
        with self.loop(0, b.rows) as back:
            i = self.minus(self.sub(b.rows, 1), back.index)
            first = self.add(i, 1)
            diagonal = self.take(coefficients, self.place(a, i, i))
            diagonal = self.conjugate(diagonal) if of_adjoint else diagonal
            over = self.spread(self.reciprocal(diagonal))
            with self.loop(0, vectors) as j:
                column = self.mul(j.index, self.lanes)
                at = self.place(b, i, column)
                start = self.take(values, at, self.vector)
                with self.loop(first, b.rows, start) as p:
                    place = self.place(a, p.index, i) if of_adjoint else self.place(a, i, p.index)
                    one = self.take(coefficients, place)
                    one = self.spread(self.conjugate(one) if of_adjoint else one)
                    one = tuple([self._negative(part) for part in one])
                    row = self.take(values, self.place(b, p.index, column), self.vector)
                    p.next = list(self.added(tuple(p.values), one, row))
                found = tuple(p.values)
                self.keep(self.added(self.nothing(), over, found), values, at)

    def eliminate(self, a: Matrix, b: Matrix | None) -> Value:
        """Gaussian elimination with LAPACK's choice of pivots: `a` becomes upper, b what has the
        same solutions. The sign of the exchanges; a pivot of 0 stays, and nothing is divided by
        it."""
        matrices = [a] if b is None else [a, b]
        with self.loop(0, a.rows, [self.real(1.0)]) as k:
            here = self.i64(k.index)
            start = [self.real(-1.0), here]
            with self.loop(here, a.rows, start) as i:
                size = self.real(0.0)
                for part in self.take(self.bases(a), self.place(a, i.index, here)):
                    size = self.op("fadd", size, self.intrinsic("fabs", part))
                larger = self.compare("ogt", size, i.values[0])
                i.next = [
                    self.select(larger, size, i.values[0]),
                    self.select(larger, self.i64(i.index), i.values[1]),
                ]
            pivot = i.values[1]
            for m in matrices:
                self.exchange(m, here, pivot)
            same = self.compare_ints("eq", pivot, here)
            sign = k.values[0]
            k.next = [self.select(same, sign, self._negative(sign))]
            corner = self.take(self.bases(a), self.place(a, here, here))
            size = self.real(0.0)
            for part in corner:
                size = self.op("fadd", size, self.intrinsic("fabs", part))
            gone = self.compare("oeq", size, self.real(0.0))
            one = (self.real(1.0), *[self.real(0.0)] * (self.parts - 1))
            corner = tuple([self.select(gone, p, q) for p, q in zip(one, corner, strict=True)])
            over = self.reciprocal(corner)
            with self.loop(self.add(here, 1), a.rows) as i:
                head = self.take(self.bases(a), self.place(a, i.index, here))
                factor = self.spread(self.negated(self.times(head, over)))
                for m in matrices:
                    self.add_row_of(m, i.index, m, here, factor)
        return k.values[0]

    def negated(self, a: Number) -> Number:
        return tuple([self._negative(part) for part in a])

    def times(self, a: Number, b: Number) -> Number:
        if len(a) == 1:
            return (self.op("fmul", a[0], b[0]),)
        real = self.op("fsub", self.op("fmul", a[0], b[0]), self.op("fmul", a[1], b[1]))
        return real, self.op("fadd", self.op("fmul", a[0], b[1]), self.op("fmul", a[1], b[0]))

    def exchange(self, a: Matrix, i: Int, j: Int) -> None:
        bases = self.bases(a)
        with self.loop(0, self.op("sdiv", a.pitch, self.i64(self.lanes))) as v:
            column = self.mul(v.index, self.lanes)
            places = [self.place(a, row, column) for row in (i, j)]
            values = [self.take(bases, at, self.vector) for at in places]
            for at, value in zip(places, values[::-1], strict=True):
                self.keep(value, bases, at)

    def add_row_of(self, a: Matrix, i: Int, b: Matrix, j: Int, factor: Number) -> None:
        """Adds a multiple of row j of b to row i of `a`."""
        bases = self.bases(a)
        with self.loop(0, self.op("sdiv", a.pitch, self.i64(self.lanes))) as v:
            column = self.mul(v.index, self.lanes)
            at = self.place(a, i, column)
            row = self.take(self.bases(b), self.place(b, j, column), self.vector)
            self.keep(self.added(self.take(bases, at, self.vector), factor, row), bases, at)

    def scale_row(self, a: Matrix, i: Int, factor: Number) -> None:
        bases = self.bases(a)
        with self.loop(0, self.op("sdiv", a.pitch, self.i64(self.lanes))) as v:
            at = self.place(a, i, self.mul(v.index, self.lanes))
            value = self.take(bases, at, self.vector)
            self.keep(self.added(self.nothing(), factor, value), bases, at)

    def inner_product(self, a: Matrix, i: Int, b: Matrix, j: Int) -> Number:
        """Row i of `a`, conjugated, times row j of b."""
        vectors = self.op("sdiv", a.pitch, self.i64(self.lanes))
        with self.loop(0, vectors, self.nothing()) as v:
            column = self.mul(v.index, self.lanes)
            one = self.conjugate(self.take(self.bases(a), self.place(a, i, column), self.vector))
            other = self.take(self.bases(b), self.place(b, j, column), self.vector)
            v.next = list(self.added(tuple(v.values), one, other))
        found = []
        name = f"llvm.vector.reduce.fadd.{self.suffix}"
        self.declarations.add(f"declare double @{name}(double, {self.vector})")
        for part in v.values:
            given = f"double -0.0, {self.vector} {part.name}"
            found.append(self.emit("double", f"call reassoc double @{name}({given})"))
        return tuple(found)

    def reflections(self, a: Matrix, v: Matrix, r: Matrix, q: Matrix) -> None:
        """a = Q R by Householder's reflections with LAPACK's signs. Rows of `a`, which is used up,
        and of q are columns of A and Q; v is as large as `a`."""
        rest = [self.real(0.0)] * (self.parts - 1)
        self.clear(r)
        scales = self.bases(q)  # tau of each reflection, until Q is made
        with self.loop(0, a.rows) as k:
            here = self.i64(k.index)
            beta, tau = self.reflection(a, here, v, here)
            self.keep(tau, scales, here)
            self.keep((beta, *rest), self.bases(r), self.place(r, here, here))
            with self.loop(self.add(here, 1), a.rows) as j:
                self.reflect(a, j.index, v, here, self.conjugate(tau))
                value = self.take(self.bases(a), self.place(a, j.index, here))
                self.keep(value, self.bases(r), self.place(r, here, j.index))
        held = self.bases(a)  # not needed any more
        with self.loop(0, a.rows) as k:
            self.keep(self.take(scales, k.index), held, k.index)
        self.unit(q)
        with self.loop(0, a.rows) as k:
            back = self.minus(self.sub(a.rows, 1), k.index)
            tau = self.take(held, back)
            with self.loop(back, a.rows) as j:
                self.reflect(q, j.index, v, back, tau)

    def reflection(
        self, a: Matrix, k: Value, v: Matrix, row: Int, place: Value | None = None
    ) -> tuple[Value, Number]:
        """Of row k of `a` from a place on, by default k: what becomes of its first element, tau,
        and the vector in a row of v, with zeros before the place."""
        place = k if place is None else place
        zero, one = self.real(0.0), self.real(1.0)
        rest = [zero] * (self.parts - 1)
        bases = self.bases(v)
        with self.loop(0, self.op("sdiv", a.pitch, self.i64(self.lanes))) as j:
            column = self.mul(j.index, self.lanes)
            mask = self.below(self.minus(self.sub(column, 1), place), a.pitch)
            source, to = self.place(a, k, column), self.place(v, row, column)
            for base, target in zip(self.bases(a), bases, strict=True):
                tail = self.load_where(self.at(base, source, "double"), mask)
                self.store(tail, self.at(target, to, "double"))
        tail = self.inner_product(v, row, v, row)[0]
        alpha = self.take(self.bases(a), self.place(a, k, place))
        imaginary = self.op("fmul", alpha[1], alpha[1]) if rest else zero
        off = self.op("fadd", tail, imaginary)
        # far below the square of the least number of single precision: what rounding left of zeros,
        # of which smaller squares would be 0
        still = self.compare("olt", off, self.real(1e-280))
        size = self.intrinsic("sqrt", self.op("fadd", off, self.op("fmul", *alpha[:1] * 2)))
        below = self.compare("olt", alpha[0], zero)
        beta = self.select(below, size, self._negative(size))
        beta = self.select(still, alpha[0], beta)
        apart = (self.op("fsub", alpha[0], beta), *alpha[1:])
        safe = (self.select(still, one, apart[0]), *apart[1:])
        over = self.op("fdiv", one, self.select(still, one, beta))
        tau = self.scaled(self.negated(apart), over)
        tau = tuple([self.select(still, zero, part) for part in tau])
        self.scale_row(v, row, self.spread(self.reciprocal(safe)))
        self.keep((one, *rest), bases, self.place(v, row, place))
        return beta, tau

    def reflect(self, a: Matrix, i: Int, v: Matrix, k: Int, tau: Number) -> None:
        """Row i of `a` less tau times its part along row k of v."""
        part = self.times(tau, self.inner_product(v, k, a, i))
        self.add_row_of(a, i, v, k, self.spread(self.negated(part)))

    def unit(self, a: Matrix) -> None:
        """The unit matrix."""
        self.clear(a)
        one = (self.real(1.0), *[self.real(0.0)] * (self.parts - 1))
        with self.loop(0, a.rows) as i:
            self.keep(one, self.bases(a), self.place(a, i.index, i.index))

    def function(self) -> str:
        start = f"define void @step(i64 %lo, i64 %hi, ptr %args) {engine().attributes} {{"
        return "\n".join(
            [*sorted(self.declarations), start, "entry:", *self.lines, "  ret void", "}", ""]
        )

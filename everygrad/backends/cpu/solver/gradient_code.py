"""LLVM IR of the gradients of factorisations, matrix by matrix: what `matrix_gradients` says by
NumPy, for matrices so small that each of its calls takes longer than what it computes.

A matrix that is not plain (values that count as equal, a rank that is not full, a result that
depends on a phase) makes the status 1: the results are not used then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import Int
from everygrad.backends.cpu.solver.matrix_code import Given, Matrix, MatrixCode, Number
from everygrad.dtypes import DType

# the words: arrays of the gradient, of the op's result, of what is computed and of one more input;
# scratch memory, how
# many elements of it a block has; sizes; the status; bounds (of gaps, of ranks, of phases) in
# float64; how many matrices, and blocks they are split into
(G, OUT, RESULT, OTHER, MORE, SCRATCH, ROOM, M, N, K, STATUS, BOUNDS, COUNT, BLOCKS) = range(14)


class _Code(MatrixCode):
    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype)
        self.m, self.n, self.k = self.word(M), self.word(N), self.word(K)
        self.bounds = [self.load(self.at(self.word(BOUNDS, "ptr"), i, "double"), "double")
                       for i in range(3)]  # fmt: skip
        self.free = Value("ptr", "null")

    @contextmanager
    def each(self, *sizes: Value) -> Iterator[list[Value]]:
        """The addresses of the gradient, of the op's result, of what is computed and of another
        input, of such sizes, for each matrix; `new` takes from scratch memory."""
        arrays = [self.word(i, "ptr") for i in range(G, G + len(sizes))]
        scratch, room = self.word(SCRATCH, "ptr"), self.word(ROOM)
        count, blocks = self.word(COUNT), self.word(BLOCKS)
        steps = [self.parted(size) for size in sizes]
        with self.loop(*super().blocks) as block:
            index = self.i64(block.index)
            self.free = self.at(scratch, self.op("mul", index, room), "double")
            low = self.op("sdiv", self.op("mul", index, count), blocks)
            after = self.op("mul", self.i64(self.add(index, 1)), count)
            with self.loop(low, self.op("sdiv", after, blocks)) as i:
                yield [
                    self.at(a, self.op("mul", self.i64(i.index), step), self.given)
                    for a, step in zip(arrays, steps, strict=True)
                ]

    def parted(self, size: Value) -> Value:
        return self.i64(self.mul(size, self.parts))

    def new(self, rows: Value, columns: Value) -> Matrix:
        made, self.free = self.matrix(self.free, rows, columns)
        return made

    def behind(self, a: Matrix, m: Value, n: Value) -> Value:
        """The address behind a matrix and what a factorisation of (m, n) used after it."""
        wide = self.compare_ints("sgt", n, m)
        rows, length = self.select(wide, m, n), self.select(wide, n, m)
        _, end = self.matrix(a.base, a.rows, a.columns)
        for columns in (length, length, length, rows):
            _, end = self.matrix(end, rows, columns)
        return end

    def copy(self, a: Matrix, to: Matrix) -> None:
        with self.each_vector(to) as (_, at):
            self.keep(self.take(self.bases(a), at, self.vector), self.bases(to), at)

    def conjugate_all(self, a: Matrix) -> None:
        if self.is_complex:
            with self.each_vector(a) as (_, at):
                value = self.take(self.bases(a), at, self.vector)
                self.keep(self.conjugate(value), self.bases(a), at)

    def combine(self, a: Matrix, b: Matrix, sign: float) -> None:
        """Adds b, or subtracts it."""
        with self.each_vector(a) as (_, at):
            values = [self.take(self.bases(x), at, self.vector) for x in (a, b)]
            total = self.plus(*values) if sign > 0 else self.less(*values)
            self.keep(total, self.bases(a), at)

    def from_row(self, base: Value, row: Int, width: Value) -> Given:
        """The user's matrix that begins at a row of one that is `width` wide."""
        at = self.op("mul", self.i64(row), self.parted(width))
        return Given(self.at(base, at, self.given), width)

    def refuse_unless(self, condition: Value) -> None:
        bad = self.emit("i1", f"xor i1 {condition.name}, true")
        with self.when(bad):
            self.store(self.i64(1), self.word(STATUS, "ptr"))

    def at_most(self, a: Value, b: Value) -> None:
        self.refuse_unless(self.compare("ole", a, b))

    def more(self, a: Value, b: Value) -> None:
        self.refuse_unless(self.compare("ogt", a, b))

    def size(self, a: Number) -> Value:
        """The magnitude."""
        if len(a) == 1:
            return self.intrinsic("fabs", a[0])
        squares = self.op("fadd", self.op("fmul", a[0], a[0]), self.op("fmul", a[1], a[1]))
        return self.intrinsic("sqrt", squares)

    def largest(self, count: Int, one: Callable[[Int], Value], start: Value) -> Value:
        """The largest of numbers from 0 on; NaN counts as none: where it is compared it is seen."""
        with self.loop(0, count, [start]) as i:
            i.next = [self.intrinsic("maxnum", i.values[0], one(i.index))]
        return i.values[0]

    def number(self, a: Matrix, i: Int, j: Int) -> Number:
        return self.take(self.bases(a), self.place(a, i, j))

    def put(self, value: Number, a: Matrix, i: Int, j: Int) -> None:
        self.keep(value, self.bases(a), self.place(a, i, j))

    def as_number(self, real: Value, imaginary: Value | None = None) -> Number:
        """A real number, or one with an imaginary part, as the matrices have them."""
        return (real, imaginary or self.real(0.0)) if self.is_complex else (real,)


def cholesky(dtype: DType) -> str:
    e = _Code(dtype)
    n = e.n
    size = e.op("mul", n, n)
    with e.each(size, size, size) as (g, out, result):
        lower, given, inner, back = (e.new(n, n) for _ in range(4))
        e.read(Given(out, n), lower)
        e.read(Given(g, n), given, (0, 1))
        e.product(lower, given, inner, adjoint=True)
        with e.loop(0, n) as i:
            diagonal = e.number(inner, i.index, i.index)
            e.put(e.scaled(diagonal, e.real(0.5)), inner, i.index, i.index)
            with e.loop(e.add(i.index, 1), n) as j:
                e.put(e.nothing(False), inner, i.index, j.index)
        e.solve_upper(lower, inner, of_adjoint=True)
        e.adjoint(inner, back)
        e.solve_upper(lower, back, of_adjoint=True)
        with e.loop(0, n) as i, e.loop(0, n) as j:
            both = e.plus(
                e.number(back, i.index, j.index), e.conjugate(e.number(back, j.index, i.index))
            )
            e.give(e.scaled(both, e.real(0.5)), Given(result, n), i.index, j.index)
    return e.function()


def qr(dtype: DType) -> str:
    e = _Code(dtype)
    m, n = e.m, e.n
    packed = e.op("mul", e.op("add", m, n), n)
    with e.each(packed, packed, e.op("mul", m, n)) as (g, out, result):
        q, gq, made = (e.new(m, n) for _ in range(3))
        r, gr, other, inner, both = (e.new(n, n) for _ in range(5))
        right = e.new(n, m)
        e.read(Given(out, n), q)
        e.read(Given(g, n), gq)
        e.read(e.from_row(out, m, n), r)
        e.read(e.from_row(g, m, n), gr, (1, 0))

        def diagonal(i: Int) -> Value:
            return e.size(e.number(r, i, i))

        least = e.op("fmul", e.largest(n, diagonal, e.real(0.0)), e.bounds[1])
        with e.loop(0, n) as i:
            e.more(diagonal(i.index), least)
        e.adjoint(gr, other)
        e.product(r, other, inner)
        e.product(gq, q, other, adjoint=True)
        e.clear(both)
        with e.loop(0, n) as i:
            one = e.less(e.number(inner, i.index, i.index), e.number(other, i.index, i.index))
            e.put(e.as_number(one[0]), both, i.index, i.index)
            with e.loop(0, i.index) as j:
                one = e.less(e.number(inner, i.index, j.index), e.number(other, i.index, j.index))
                e.put(one, both, i.index, j.index)
                e.put(e.conjugate(one), both, j.index, i.index)
        e.product(q, both, made)
        with e.each_vector(made) as (_, at):
            bases = e.bases(made)
            total = e.plus(e.take(bases, at, e.vector), e.take(e.bases(gq), at, e.vector))
            e.keep(total, bases, at)
        e.adjoint(made, right)
        e.solve_upper(r, right)
        e.write(right, Given(result, n), adjoint=True)
    return e.function()


def _check_gaps(e: _Code, count: Value, value: Callable[[Int], Value]) -> None:
    """Refuse values of which two count as equal."""
    largest = e.largest(count, lambda i: e.intrinsic("fabs", value(i)), e.real(0.0))
    near = e.op("fmul", largest, e.bounds[0])
    with e.loop(0, count) as i, e.loop(0, i.index) as j:
        gap = e.op("fsub", value(i.index), value(j.index))
        e.more(e.intrinsic("fabs", gap), near)


def _largest_of(e: _Code, a: Matrix, start: Value) -> Value:
    with e.loop(0, a.rows, [start]) as i:
        found = e.largest(a.columns, lambda j: e.size(e.number(a, i.index, j)), i.values[0])
        i.next = [found]
    return i.values[0]


def _check_phases(
    e: _Code, x: Matrix, diagonal: Callable[[Int], Value], beside: Callable[[Int], Number]
) -> None:
    """Refuse a diagonal whose imaginary part says that a phase matters."""
    start = e.largest(x.rows, lambda i: e.size(beside(i)), e.real(0.0))
    most = e.op("fmul", _largest_of(e, x, start), e.bounds[2])
    most = e.op("fadd", most, e.real(1e-30))
    with e.loop(0, x.rows) as i:
        e.at_most(e.intrinsic("fabs", diagonal(i.index)), most)


def eigh(dtype: DType) -> str:
    e = _Code(dtype)
    n = e.n
    wide = e.i64(e.add(n, 1))
    packed = e.op("mul", n, wide)
    with e.each(packed, packed, e.op("mul", n, n)) as (g, out, result):
        vectors, given, inner, made, back = (e.new(n, n) for _ in range(5))
        columns = [Given(e.at(base, e.parts, e.given), wide) for base in (out, g)]
        e.read(columns[0], vectors)
        e.read(columns[1], given)

        def value(i: Int) -> Value:
            return e.given_number(Given(out, wide), i, 0)[0]

        def of_value(i: Int) -> Number:
            return e.given_number(Given(g, wide), i, 0)

        _check_gaps(e, n, value)
        e.product(vectors, given, inner, adjoint=True)
        if e.is_complex:
            _check_phases(e, inner, lambda i: e.number(inner, i, i)[1], of_value)
        e.clear(made)
        with e.loop(0, n) as i:
            e.put(e.as_number(of_value(i.index)[0]), made, i.index, i.index)
            with e.loop(0, i.index) as j:
                a, b = e.number(inner, i.index, j.index), e.number(inner, j.index, i.index)
                gap = e.op("fsub", value(j.index), value(i.index))
                half = e.op("fdiv", e.real(0.5), gap)
                one = e.scaled(e.less(a, e.conjugate(b)), half)
                e.put(one, made, i.index, j.index)
                e.put(e.conjugate(one), made, j.index, i.index)
        e.product(vectors, made, inner)
        e.adjoint(vectors, back)
        e.product(inner, back, made)
        e.write(made, Given(result, n))
    return e.function()


def svd(dtype: DType) -> str:
    e = _Code(dtype)
    m, n, k = e.m, e.n, e.k
    tall = e.op("add", e.i64(e.add(m, 1)), n)
    packed = e.op("mul", tall, k)
    with e.each(packed, packed, e.op("mul", m, n)) as (g, out, result):
        (u, gu, inner_u), (v, gv, inner_v) = ([e.new(rows, k) for _ in range(3)] for rows in (m, n))
        left, right, inner = (e.new(k, k) for _ in range(3))
        back, made, more = e.new(k, n), e.new(m, n), e.new(m, n)
        after = e.add(m, 1)
        for base, first, second in ((out, u, v), (g, gu, gv)):
            e.read(Given(base, k), first)
            e.read(e.from_row(base, after, k), second)

        def value(i: Int) -> Value:
            return e.given_number(Given(out, k), m, i)[0]

        def of_value(i: Int) -> Number:
            return e.given_number(Given(g, k), m, i)

        _check_gaps(e, k, value)
        least = e.op("fmul", e.largest(k, value, e.real(0.0)), e.bounds[1])
        with e.loop(0, k) as i:
            e.more(value(i.index), least)
        e.product(u, gu, left, adjoint=True)
        e.product(v, gv, right, adjoint=True)
        if e.is_complex:

            def phase(i: Int) -> Value:
                return e.op("fadd", e.number(left, i, i)[1], e.number(right, i, i)[1])

            for x in (left, right):
                _check_phases(e, x, phase, of_value)
        e.clear(inner)
        with e.loop(0, k) as i, e.loop(0, k) as j:
            apart = e.compare_ints("ne", i.index, j.index)
            with e.when(apart):
                a, b = value(i.index), value(j.index)
                both = [
                    e.less(
                        e.number(x, i.index, j.index), e.conjugate(e.number(x, j.index, i.index))
                    )
                    for x in (left, right)
                ]
                one = e.plus(e.scaled(both[0], b), e.scaled(both[1], a))
                size = e.op("fmul", e.op("fsub", b, a), e.op("fadd", b, a))
                e.put(e.scaled(one, e.op("fdiv", e.real(1.0), size)), inner, i.index, j.index)
        with e.loop(0, k) as i:
            turn = None
            if e.is_complex:
                turn = e.op("fdiv", e.number(left, i.index, i.index)[1], value(i.index))
            e.put(e.as_number(of_value(i.index)[0], turn), inner, i.index, i.index)
        e.product(u, inner, inner_u)
        with e.when(e.compare_ints("sgt", m, k)):
            _add_beyond(e, u, gu, left, inner_u, value)
        e.adjoint(v, back)
        e.product(inner_u, back, made)
        with e.when(e.compare_ints("sgt", n, k)):
            e.clear(inner_v)
            _add_beyond(e, v, gv, right, inner_v, value)
            e.adjoint(inner_v, back)
            e.product(u, back, more)
            with e.each_vector(made) as (_, at):
                bases = e.bases(made)
                total = e.plus(e.take(bases, at, e.vector), e.take(e.bases(more), at, e.vector))
                e.keep(total, bases, at)
        e.write(made, Given(result, n))
    return e.function()


def _add_beyond(
    e: _Code, u: Matrix, gu: Matrix, inner: Matrix, to: Matrix, value: Callable[[Int], Value]
) -> None:
    """Adds (gu - u inner) / values to a matrix."""
    part, _ = e.matrix(e.free, u.rows, u.columns)
    e.product(u, inner, part)
    with e.loop(0, u.rows) as i, e.loop(0, u.columns) as j:
        off = e.less(e.number(gu, i.index, j.index), e.number(part, i.index, j.index))
        one = e.scaled(off, e.op("fdiv", e.real(1.0), value(j.index)))
        e.put(e.plus(e.number(to, i.index, j.index), one), to, i.index, j.index)


def slogdet(dtype: DType) -> str:
    """g: of sign and logarithm; out: the matrix; the other: sign and logarithm."""
    e = _Code(dtype)
    n = e.n
    square, two = e.op("mul", n, n), e.i64(2)
    with e.each(two, square, square, two) as (g, x, result, packed):
        a, inverse = e.new(n, n), e.new(n, n)
        e.read(Given(x, n), a)
        e.unit(inverse)
        e.eliminate(a, inverse)
        with e.loop(0, n) as i:
            e.more(e.size(e.number(a, i.index, i.index)), e.real(0.0))
        e.solve_upper(a, inverse)
        scale = e.as_number(e.given_number(Given(g, two), 0, 1)[0])
        if e.is_complex:
            (gr, gi), (sr, si) = (e.given_number(Given(v, two), 0, 0) for v in (g, packed))
            turn = e.op("fsub", e.op("fmul", gi, sr), e.op("fmul", gr, si))
            scale = scale[0], turn
        with e.loop(0, n) as i, e.loop(0, n) as j:
            value = e.times(e.conjugate(e.number(inverse, i.index, j.index)), scale)
            e.give(value, Given(result, n), j.index, i.index)
    return e.function()


def adjugate(dtype: DType) -> str:
    """No gradient of its own, but det's: out is the matrix, and g is not looked at. The bound of
    ranks is that of condition numbers."""
    e = _Code(dtype)
    n = e.n
    square = e.op("mul", n, n)
    with e.each(e.i64(0), square, square) as (_, x, result):
        a, inverse = e.new(n, n), e.new(n, n)
        e.read(Given(x, n), a)
        size = _row_sums(e, a)
        e.unit(inverse)
        sign = e.eliminate(a, inverse)
        with e.loop(0, n, list(e.as_number(sign))) as i:
            corner = e.number(a, i.index, i.index)
            e.more(e.size(corner), e.real(0.0))
            i.next = list(e.times(tuple(i.values), corner))
        det = tuple(i.values)
        e.solve_upper(a, inverse)
        far = e.op("fmul", size, _row_sums(e, inverse))
        e.refuse_unless(e.compare("olt", far, e.bounds[1]))
        with e.loop(0, n) as i, e.loop(0, n) as j:
            value = e.times(e.number(inverse, i.index, j.index), det)
            e.give(value, Given(result, n), i.index, j.index)
    return e.function()


def lstsq(dtype: DType) -> str:
    """g: of the solution and the row of ranks; out: `a`; the result: the gradients of a and b side
    by side; the others: b, and the solution with its ranks, of which all must be full."""
    e = _Code(dtype)
    m, n, k = e.m, e.n, e.k
    both = e.i64(e.op("add", n, k))
    packed = e.op("mul", e.i64(e.add(n, 1)), k)
    sizes = (packed, e.op("mul", m, n), e.op("mul", m, both), e.op("mul", m, k), packed)
    with e.each(*sizes) as (g, a, result, b, out):
        least = e.i64(e.least(m, n))
        rank = e.given_number(Given(out, k), n, 0)[0]
        full = e.emit("double", f"sitofp i64 {least.name} to double")
        e.refuse_unless(e.compare("oeq", rank, full))
        matrix = e.new(m, n)
        given, solved = e.new(n, k), e.new(n, k)
        e.read(Given(a, n), matrix)
        e.read(Given(g, k), given)
        e.read(Given(out, k), solved)
        # p, the pseudo-inverse, as R^-1 Q^H of a, or the adjoint of that of a^H
        p = e.new(n, m)
        wide = e.compare_ints("sgt", n, m)
        for flipped in (False, True):
            condition = wide if flipped else e.compare_ints("sle", n, m)
            with e.when(condition):
                start = e.free
                rows, length = (m, n) if flipped else (n, m)
                work, v, q = (e.new(rows, length) for _ in range(3))
                r = e.new(rows, rows)
                if flipped:  # rows of a, conjugated, are columns of a^H
                    e.read(Given(a, n), work)
                    e.conjugate_all(work)
                else:
                    e.read_columns(Given(a, n), work)
                e.reflections(work, v, r, q)
                e.conjugate_all(q)  # its rows are those of Q^H
                e.solve_upper(r, q)
                if flipped:
                    e.adjoint(q, p)
                else:
                    e.copy(q, p)
                e.free = start
        e.free = e.behind(p, m, n)
        p_h, of_b, t = e.new(m, n), e.new(m, k), e.new(n, k)
        e.adjoint(p, p_h)
        e.product(p_h, given, of_b)
        e.product(p, of_b, t)
        off, inner = e.new(m, k), e.new(m, k)
        e.read(Given(b, k), off)
        e.product(matrix, solved, inner)
        e.combine(off, inner, -1.0)
        t_h, x_h = e.new(k, n), e.new(k, n)
        e.adjoint(t, t_h)
        e.adjoint(solved, x_h)
        total, part = e.new(m, n), e.new(m, n)
        e.product(off, t_h, total)
        e.product(of_b, x_h, part)
        e.combine(total, part, -1.0)
        e.product(matrix, of_b, t, adjoint=True)
        e.combine(given, t, -1.0)  # what of g is beyond the rows of a
        e.adjoint(given, t_h)
        e.product(p_h, solved, inner)
        e.product(inner, t_h, part)
        e.combine(total, part, 1.0)
        e.write(total, Given(result, both))
        e.write(of_b, Given(e.at(result, e.parted(n), e.given), both))
    return e.function()


def _row_sums(e: _Code, a: Matrix) -> Value:
    """The largest sum of magnitudes in a row."""
    with e.loop(0, a.rows, [e.real(0.0)]) as i:
        with e.loop(0, a.columns, [e.real(0.0)]) as j:
            j.next = [e.op("fadd", j.values[0], e.size(e.number(a, i.index, j.index)))]
        i.next = [e.intrinsic("maxnum", i.values[0], j.values[0])]
    return i.values[0]


SOURCES: dict[str, Callable[[DType], str]] = {
    "cholesky": cholesky,
    "qr": qr,
    "eigh": eigh,
    "svd": svd,
    "slogdet": slogdet,
    "adjugate": adjugate,
    "lstsq": lstsq,
}

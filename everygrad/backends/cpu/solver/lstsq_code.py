"""LLVM IR of least squares and of systems of equations.

Of single precision both are computed in float64: by Householder's reflections where those prove the
full rank, and by Gauss's elimination. Otherwise it is LAPACK's gelsy in the numbers' own precision,
on copies in its order. And the sums of squares that a solution leaves.
"""

from __future__ import annotations

from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import Int
from everygrad.backends.cpu.solver.matrix_code import Given, MatrixCode
from everygrad.dtypes import DType

# the words: the user's arrays, the result; the routine; scratch memory in the numbers' precision;
# rows, columns and right sides; numbers by reference; the bound of ranks; the status; how many
A, B, OUT, ROUTINE, WORK, M, N, K, NUMBERS, BOUND, STATUS, COUNT = range(12)
SINGLE = 1e76  # sums of squares below it are of numbers of single precision that are finite
TALL, RANK, LWORK, INFO, CHOSEN = 3, 4, 5, 6, 8  # places among the numbers; m, n, k are first


class _Code(MatrixCode):
    def __init__(self, dtype: DType) -> None:
        super().__init__(dtype)
        self.m, self.n, self.k = self.word(M), self.word(N), self.word(K)
        self.work = self.word(WORK, "ptr")

    def space(self, elements: Int, parts: int | None = None) -> Value:
        here = self.work
        count = self.mul(self.i64(elements), self.parts if parts is None else parts)
        self.work = self.at(here, count, self.given)
        return here

    def moved(self, base: Value, at: Int) -> Value:
        return self.at(base, self.mul(self.i64(at), self.parts), self.given)

    def copy(self, source: Value, to: Value) -> None:
        for part in range(self.parts):
            value = self.load(self.at(source, part, self.given), self.given)
            self.store(value, self.at(to, part, self.given))

    def number_at(self, place: int) -> Value:
        return self.at(self.word(NUMBERS, "ptr"), place, "i64")

    def fail_if(self, condition: Value) -> None:
        with self.when(condition):
            self.store(self.i64(1), self.word(STATUS, "ptr"))


def solution(dtype: DType) -> str:
    """The smallest of the nearest solutions, and below it a row of ranks."""
    e = _Code(dtype)
    m, n, k = e.m, e.n, e.k
    a, b, out, bound = (e.word(i, "ptr") for i in (A, B, OUT, BOUND))
    tall = e.load(e.number_at(TALL), "i64")
    matrix, sides = e.space(e.op("mul", m, n)), e.space(e.op("mul", tall, k))
    space = e.space(e.load(e.number_at(LWORK), "i64"))
    more = [e.space(e.mul(n, 2), 1)] if e.is_complex else []
    chosen, rank, info = e.number_at(CHOSEN), e.number_at(RANK), e.number_at(INFO)
    sizes = [e.op("mul", m, n), e.op("mul", m, k), e.op("mul", e.i64(e.add(n, 1)), k)]
    with e.loop(0, e.word(COUNT)) as item:
        one, side, to = (
            e.moved(base, e.op("mul", e.i64(item.index), size))
            for base, size in zip((a, b, out), sizes, strict=True)
        )
        for source, target, width, height in ((one, matrix, n, m), (side, sides, k, tall)):
            with e.loop(0, m) as i, e.loop(0, width) as j:
                here = e.add(e.op("mul", e.i64(i.index), width), j.index)
                there = e.add(e.op("mul", e.i64(j.index), height), i.index)
                e.copy(e.moved(source, here), e.moved(target, there))
        with e.loop(m, tall) as i, e.loop(0, k) as j:
            there = e.moved(sides, e.add(e.op("mul", e.i64(j.index), tall), i.index))
            for part in range(e.parts):
                nothing = Value(e.given, "0.0")
                e.store(nothing, e.at(there, part, e.given))
        with e.loop(0, n) as j:
            e.store(e.i64(0), e.at(chosen, j.index, "i64"))
        e.store(e.i64(0), info)
        given = [e.number_at(0), e.number_at(1), e.number_at(2), matrix, e.number_at(0), sides,
                 e.number_at(TALL), chosen, bound, rank, space, e.number_at(LWORK), *more,
                 info]  # fmt: skip
        text = ", ".join(f"ptr {v.name}" for v in given)
        e.lines.append(f"  call void {e.word(ROUTINE, 'ptr').name}({text})")
        e.fail_if(e.compare_ints("ne", e.load(info, "i64"), 0))
        count = e.emit(e.given, f"sitofp i64 {e.load(rank, 'i64').name} to {e.given}")
        last = e.op("mul", n, k)
        with e.loop(0, k) as j:
            with e.loop(0, n) as i:
                here = e.moved(sides, e.add(e.op("mul", e.i64(j.index), tall), i.index))
                place = e.moved(to, e.add(e.op("mul", e.i64(i.index), k), j.index))
                e.copy(here, place)
                for part in range(e.parts):
                    value = e.load(e.at(place, part, e.given), e.given)
                    zero = e.op("fsub", value, value)  # of an infinity, as of NaN, it is none
                    e.fail_if(e.compare("uno", zero, zero))
            place = e.moved(to, e.add(last, j.index))
            e.store(count, place)
            if e.is_complex:
                e.store(Value(e.given, "0.0"), e.at(place, 1, e.given))
    return e.function()


def of_full_rank(dtype: DType) -> str:
    """The solution by Householder's reflections in float64, for numbers of single precision and
    matrices with as many rows as columns or more.

    The rank is -1 unless the norms of R and of its inverse prove that no singular value is as small
    as the bound makes 0, so that LAPACK's way, which chooses columns and estimates what is proven
    here, finds the same rank; and unless the solution is finite."""
    e = _Code(dtype)
    m, n, k = e.m, e.n, e.k
    x, b, out, bound = (e.word(i, "ptr") for i in (A, B, OUT, BOUND))
    columns = e.op("add", n, k)
    a, work = e.matrix(e.work, columns, m)  # rows are columns of the matrix and right sides
    v, work = e.matrix(work, e.i64(1), m)
    inverse, work = e.matrix(work, n, n)
    found, _ = e.matrix(work, n, k)
    sizes = [e.op("mul", m, n), e.op("mul", m, k), e.op("mul", e.i64(e.add(n, 1)), k)]
    with e.loop(0, e.word(COUNT)) as item:
        one, side, to = (
            e.moved(base, e.op("mul", e.i64(item.index), size))
            for base, size in zip((x, b, out), sizes, strict=True)
        )
        right = [e.at(base, e.op("mul", n, a.pitch), "double") for base in e.bases(a)]
        e.clear(a)
        for given, width, target in ((one, n, e.bases(a)), (side, k, right)):
            with e.loop(0, width) as i, e.loop(0, m) as j:
                number = e.given_number(Given(given, width), j.index, i.index)
                e.keep(number, target, e.place(a, i.index, j.index))
        with e.loop(0, n, [e.real(0.0)]) as i:
            i.next = [e.op("fadd", i.values[0], e.inner_product(a, i.index, a, i.index)[0])]
        size = i.values[0]
        with e.loop(0, n) as j:
            here = e.i64(j.index)
            beta, tau = e.reflection(a, here, v, 0)
            e.keep((beta, *[e.real(0.0)] * (e.parts - 1)), e.bases(a), e.place(a, here, here))
            with e.loop(e.add(here, 1), columns) as i:
                e.reflect(a, i.index, v, 0, e.conjugate(tau))
        e.unit(inverse)
        e.clear(found)
        with e.loop(0, n) as i, e.loop(0, k) as j:
            e.keep(e.take(right, e.place(a, j.index, i.index)), e.bases(found),
                   e.place(found, i.index, j.index))  # fmt: skip
        with e.loop(0, n, [e.real(0.0)]) as back:
            here = e.op("sub", e.i64(e.sub(n, 1)), e.i64(back.index))
            over = e.spread(e.reciprocal(e.take(e.bases(a), e.place(a, here, here))))
            for rows in (inverse, found):
                e.scale_row(rows, here, over)
            with e.loop(0, here) as p:
                factor = e.negated(e.take(e.bases(a), e.place(a, here, p.index)))
                for rows in (inverse, found):
                    e.add_row_of(rows, p.index, rows, here, e.spread(factor))
            more = e.inner_product(inverse, here, inverse, here)[0]
            back.next = [e.op("fadd", back.values[0], more)]
        condition = e.op("fmul", size, back.values[0])
        limit = e.load(bound, "double")
        e.write(found, Given(to, k))
        with e.loop(0, n, [e.real(0.0)]) as i:
            i.next = [e.op("fadd", i.values[0], e.inner_product(found, i.index, found, i.index)[0])]
        is_finite = e.compare("olt", i.values[0], e.real(SINGLE))
        proven = e.op("and", e.compare("olt", condition, limit), is_finite)
        count = e.select(proven, e.cast("sitofp", n, "double"), e.real(-1.0))
        with e.loop(0, k) as j:
            e.give((count, *[e.real(0.0)] * (e.parts - 1)), Given(to, k), n, j.index)
    return e.function()


def system(dtype: DType) -> str:
    """X with a X = b, for numbers of single precision. The first element is NaN unless all of the
    results are finite: they are not where a pivot was 0."""
    e = _Code(dtype)
    n, k = e.m, e.k
    one, side, out = (e.word(i, "ptr") for i in (A, B, OUT))
    a, work = e.matrix(e.work, n, n)
    x, _ = e.matrix(work, n, k)
    square, size = e.op("mul", n, n), e.op("mul", n, k)
    with e.loop(0, e.word(COUNT), [e.real(0.0)]) as item:
        e.read(Given(e.moved(one, e.op("mul", e.i64(item.index), square)), n), a)
        at = e.op("mul", e.i64(item.index), size)
        e.read(Given(e.moved(side, at), k), x)
        e.eliminate(a, x)
        e.solve_upper(a, x)
        with e.loop(0, n, item.values) as i:
            i.next = [e.op("fadd", i.values[0], e.inner_product(x, i.index, x, i.index)[0])]
        e.write(x, Given(e.moved(out, at), k))
        item.next = i.values
    is_finite = e.compare("olt", item.values[0], e.real(SINGLE))
    with e.when(e.op("xor", is_finite, Value("i1", "true"))):
        e.store(Value(e.given, "0x7FF8000000000000"), out)
    return e.function()


def residuals(dtype: DType) -> str:
    """Of a, b and a solution x, which has the place of the routine: sums of squares, real."""
    e = _Code(dtype)
    m, n, k = e.m, e.n, e.k
    a, b, out, x = (e.word(i, "ptr") for i in (A, B, OUT, ROUTINE))
    with e.loop(0, e.word(COUNT)) as item:
        one, side, solved = (
            Given(
                e.moved(base, e.op("mul", e.i64(item.index), e.op("mul", rows, columns))), columns
            )
            for base, rows, columns in ((a, m, n), (b, m, k), (x, n, k))
        )
        to = e.at(out, e.op("mul", e.i64(item.index), k), e.given)
        with e.loop(0, k) as j:
            with e.loop(0, m, [e.real(0.0)]) as i:
                with e.loop(0, n, e.given_number(side, i.index, j.index)) as p:
                    left = e.given_number(one, i.index, p.index)
                    right = e.given_number(solved, p.index, j.index)
                    p.next = list(e.less(tuple(p.values), e.times(left, right)))
                total = i.values[0]
                for part in p.values:
                    total = e.op("fadd", total, e.op("fmul", part, part))
                i.next = [total]
            e.store(e.cast("fptrunc", i.values[0], e.given), e.at(to, j.index, e.given))
    return e.function()


SOURCES = {
    "solution": solution,
    "of_full_rank": of_full_rank,
    "system": system,
    "residuals": residuals,
}

"""LLVM IR of the eigenvectors of small symmetric matrices, and of the singular vectors of small
matrices, of single precision.

All is in float64: Householder's reflections make the matrix tridiagonal, and QL steps with implicit
shifts make that diagonal. Their rotations combine two rows, each of which becomes an eigenvector.

Singular vectors are eigenvectors of A^T A and their images. That squares the condition number: what
float64 has beyond single precision pays for it where the least singular value is `_FAR` times the
largest or more. Other matrices are left to LAPACK, which the value NaN in place of the first says.
"""

from __future__ import annotations

from everygrad.backends.cpu.llvm.compiler import Value
from everygrad.backends.cpu.llvm.vector_emitter import Int
from everygrad.backends.cpu.solver.factor_code import COUNT, OUT, FactorCode, K, M, N, X
from everygrad.backends.cpu.solver.matrix_code import Given, Matrix
from everygrad.dtypes import DType

_ROWS = 4  # that are added up at a time, in sums of their own
_MOST = 60  # QL steps for one eigenvalue, of which one or two are usual
_FAR = 3e-4
_EPS = 2.0**-52  # what is no larger beside its neighbours on the diagonal counts as 0


class _EigenCode(FactorCode):
    def __init__(self, dtype: DType, size: int) -> None:
        super().__init__(dtype)
        self.n = self.word(size)
        whole = self.op("and", self.op("add", self.n, self.i64(_ROWS - 1)), self.i64(-_ROWS))
        one = self.i64(1)
        self.a, work = self.matrix(self.work, whole, whole)  # the matrix, both triangles
        self.v, work = self.matrix(work, whole, whole)  # the reflections' vectors
        self.q, work = self.matrix(work, whole, whole)  # and their product
        self.w, work = self.matrix(work, one, whole)
        self.tau, work = self.matrix(work, one, whole)
        self.diagonal, work = self.matrix(work, one, whole)
        self.beside, work = self.matrix(work, one, whole)
        self.state, self.work = self.matrix(work, one, whole)

    def vectors_from(self, place: Value) -> tuple[Int, Int]:
        """The vectors of a row that hold what lies from a place on."""
        lanes = self.i64(self.lanes)
        return self.op("udiv", place, lanes), self.op("udiv", self.a.pitch, lanes)

    def spot(self, a: Matrix, i: Int) -> Value:
        return self.at(a.base, i, "double")

    def one(self, a: Matrix, i: Int) -> Value:
        return self.load(self.spot(a, i), "double")

    def put(self, value: Value, a: Matrix, i: Int) -> None:
        self.store(value, self.spot(a, i))

    def part(self, a: Matrix, row: Int, column: Int) -> Value:
        return self.at(a.base, self.place(a, row, column), "double")

    def negative(self, value: Value) -> Value:
        return self.negated((value,))[0]

    # --- the parts of the algorithm

    def combined_rows(
        self, a: Matrix, by: Matrix, k: Int, place: Value, factor: Value, to: Matrix, row: Int = 0
    ) -> None:
        """Row `row` of `to` from a place on: factor * (sum of a's rows, each times its element of
        row k of `by`, which are 0 before the place)."""
        ends = self.op("udiv", place, self.i64(_ROWS)), self.op("udiv", a.rows, self.i64(_ROWS))
        lanes = self.i64(self.lanes)
        vectors = self.op("udiv", place, lanes), self.op("udiv", a.pitch, lanes)
        with self.loop(*vectors) as j:
            column = self.mul(j.index, self.lanes)
            with self.loop(*ends, [self.zero] * _ROWS) as i:
                first = self.mul(i.index, _ROWS)
                for r in range(_ROWS):
                    one = self.splat(self.load(self.part(by, k, self.add(first, r)), "double"))
                    value = self.load(self.part(a, self.add(first, r), column))
                    i.next[r] = self.fused(one, value, i.values[r])
            low, high = (self.op("fadd", *i.values[r : r + 2]) for r in (0, 2))
            total = self.op("fmul", self.op("fadd", low, high), self.splat(factor))
            self.store(total, self.part(to, row, column))

    def make_tridiagonal(self) -> None:
        a, v, w, n = self.a, self.v, self.w, self.n
        self.clear(w)
        with self.loop(0, self.sub(n, 1)) as step:
            k = self.i64(step.index)
            place = self.i64(self.add(k, 1))
            beta, (tau,) = self.reflection(a, k, v, k, place)
            self.put(self.load(self.part(a, k, k), "double"), self.diagonal, k)
            self.put(beta, self.beside, k)
            self.put(tau, self.tau, k)
            self.combined_rows(a, v, k, place, tau, w)
            with self.loop(*self.vectors_from(place), [self.zero]) as j:
                column = self.mul(j.index, self.lanes)
                both = self.load(self.spot(w, column)), self.load(self.part(v, k, column))
                j.next = [self.fused(*both, j.values[0])]
            along = self.total(j.values[0])
            half = self.op("fmul", self.op("fmul", tau, self.real(-0.5)), along)
            with self.loop(*self.vectors_from(place)) as j:
                column = self.mul(j.index, self.lanes)
                old, one = self.load(self.spot(w, column)), self.load(self.part(v, k, column))
                self.store(self.fused(self.splat(half), one, old), self.spot(w, column))
            with self.loop(place, n) as i:
                row = self.load(self.part(v, k, i.index), "double")
                ours, theirs = (self.splat(self.negative(x)) for x in (row, self.one(w, i.index)))
                with self.loop(*self.vectors_from(place)) as j:
                    column = self.mul(j.index, self.lanes)
                    at = self.part(a, i.index, column)
                    value = self.fused(ours, self.load(self.spot(w, column)), self.load(at))
                    self.store(self.fused(theirs, self.load(self.part(v, k, column)), value), at)
        last = self.sub(n, 1)
        self.put(self.load(self.part(a, last, last), "double"), self.diagonal, last)
        self.put(self.real(0.0), self.beside, last)

    def total(self, value: Value) -> Value:
        """The sum of a vector's lanes."""
        name = f"llvm.vector.reduce.fadd.{self.suffix}"
        self.declarations.add(f"declare double @{name}(double, {self.vector})")
        given = f"double -0.0, {self.vector} {value.name}"
        return self.emit("double", f"call reassoc double @{name}({given})")

    def make_vectors(self) -> None:
        """The product of the reflections in q, and its transpose in `a`."""
        q, v, w, n = self.q, self.v, self.w, self.n
        self.unit(q)
        with self.loop(0, self.sub(n, 1)) as back:
            k = self.minus(self.sub(n, 2), back.index)
            place = self.i64(self.add(k, 1))
            self.combined_rows(q, v, k, place, self.one(self.tau, k), w)
            with self.loop(place, n) as i:
                row = self.load(self.part(v, k, i.index), "double")
                one = self.splat(self.negative(row))
                with self.loop(*self.vectors_from(place)) as j:
                    column = self.mul(j.index, self.lanes)
                    at = self.part(q, i.index, column)
                    value = self.load(self.spot(w, column))
                    self.store(self.fused(one, value, self.load(at)), at)
        self.adjoint(q, self.a)

    def end_of_block(self, first: Int) -> Value:
        """The first place from `first` on behind which what is beside the diagonal is as good as
        0."""
        n = self.n
        last = self.i64(self.sub(n, 1))
        with self.loop(first, last, [last]) as i:
            near = self.intrinsic("fabs", self.one(self.diagonal, i.index))
            next_ = self.intrinsic("fabs", self.one(self.diagonal, self.add(i.index, 1)))
            small = self.op("fmul", self.op("fadd", near, next_), self.real(_EPS))
            small = self.call("llvm.maxnum.f64", "double", small, self.one(self.state, 1))
            size = self.intrinsic("fabs", self.one(self.beside, i.index))
            here = self.compare("ole", size, small)
            is_first = self.compare_ints("eq", i.values[0], last)
            found = self.op("and", here, is_first)
            i.next = [self.select(found, self.i64(i.index), i.values[0])]
        return i.values[0]

    def make_diagonal(self) -> None:
        with self.loop(0, self.n, [self.real(0.0)]) as i:
            sizes = (
                self.intrinsic("fabs", self.one(x, i.index)) for x in (self.diagonal, self.beside)
            )
            i.next = [self.call("llvm.maxnum.f64", "double", i.values[0], self.op("fadd", *sizes))]
        # beside the largest number it counts as 0 as well: the small ones' own squares may be 0
        self.put(self.op("fmul", i.values[0], self.real(_EPS)), self.state, 1)
        with self.loop(0, self.n) as each:
            first = each.index
            self.store(self.i64(1), self.state.base)  # whether to go on
            with self.loop(0, _MOST):
                go_on = self.compare_ints("ne", self.load(self.state.base, "i64"), 0)
                with self.when(go_on):
                    end = self.end_of_block(first)
                    more = self.compare_ints("ne", end, first)
                    self.store(self.cast("zext", more, "i64"), self.state.base)
                    with self.when(more):
                        self.ql_step(first, end)
            left = self.load(self.state.base, "i64")
            with self.when(self.compare_ints("ne", left, 0)):
                end = self.end_of_block(first)
                self.fail_if(self.compare_ints("ne", end, first))

    def ql_step(self, first: Int, end: Value) -> None:
        d, e, one = self.diagonal, self.beside, self.real(1.0)
        low, beside = self.one(d, first), self.one(e, first)
        apart = self.op("fsub", self.one(d, self.add(first, 1)), low)
        ratio = self.op("fdiv", apart, self.op("fadd", beside, beside))
        root = self.intrinsic("sqrt", self.fused_one(ratio, ratio, one))
        below = self.compare("olt", ratio, self.real(0.0))
        root = self.select(below, self.negative(root), root)
        g = self.op("fsub", self.one(d, end), low)
        g = self.op("fadd", g, self.op("fdiv", beside, self.op("fadd", ratio, root)))
        count = self.op("sub", end, self.i64(first))
        vectors = self.op("udiv", self.a.pitch, self.i64(self.lanes))
        start = [g, one, one, self.real(0.0)]
        with self.loop(0, count, start) as back:
            g, s, c, p = back.values
            i = self.op("sub", self.i64(self.sub(end, 1)), self.i64(back.index))
            next_ = self.add(i, 1)
            beside = self.one(e, i)
            f, b = self.op("fmul", s, beside), self.op("fmul", c, beside)
            r = self.intrinsic("sqrt", self.fused_one(f, f, self.op("fmul", g, g)))
            self.put(r, e, next_)
            none = self.compare("oeq", r, self.real(0.0))
            over = self.op("fdiv", one, self.select(none, one, r))
            s = self.op("fmul", f, over)
            c = self.select(none, one, self.op("fmul", g, over))
            g = self.op("fsub", self.one(d, next_), p)
            twice = self.op("fmul", self.op("fadd", c, c), b)
            r = self.fused_one(self.op("fsub", self.one(d, i), g), s, twice)
            p = self.op("fmul", s, r)
            self.put(self.op("fadd", g, p), d, next_)
            g = self.op("fsub", self.op("fmul", c, r), b)
            back.next = [g, s, c, p]
            many_c, many_s = self.splat(c), self.splat(s)
            minus_s = self.splat(self.negative(s))
            with self.loop(0, vectors) as j:
                column = self.mul(j.index, self.lanes)
                upper, lower = (self.part(self.a, row, column) for row in (i, next_))
                x, y = self.load(upper), self.load(lower)
                self.store(self.fused(many_s, x, self.op("fmul", many_c, y)), lower)
                self.store(self.fused(minus_s, y, self.op("fmul", many_c, x)), upper)
        g, _, _, p = back.values
        self.put(self.op("fsub", self.one(d, first), p), d, first)
        self.put(self.real(0.0), e, end)
        self.put(g, e, first)

    def fused_one(self, a: Value, b: Value, c: Value) -> Value:
        return self.call("llvm.fmuladd.f64", "double", a, b, c)

    def sort(self) -> None:
        """Eigenvalues from the least on, and the rows of their vectors."""
        with self.loop(0, self.n) as k:
            here = self.i64(k.index)
            with self.loop(here, self.n, [self.one(self.diagonal, here), here]) as i:
                value = self.one(self.diagonal, i.index)
                less = self.compare("olt", value, i.values[0])
                i.next = [
                    self.select(less, value, i.values[0]),
                    self.select(less, self.i64(i.index), i.values[1]),
                ]
            least, at = i.values
            with self.when(self.compare_ints("ne", at, here)):
                self.put(self.one(self.diagonal, here), self.diagonal, at)
                self.put(least, self.diagonal, here)
                self.exchange(self.a, here, at)

    def decompose(self) -> None:
        """Of the matrix in `a`: values on the diagonal, from the least on, and vectors as rows."""
        self.clear(self.v)
        self.make_tridiagonal()
        self.make_vectors()
        self.make_diagonal()
        self.sort()


def eigh(dtype: DType) -> str:
    """[values | vectors] of real matrices, of which the lower triangles are read."""
    e = _EigenCode(dtype, N)
    n = e.n
    wide = e.i64(e.add(n, 1))
    x, out = e.word(X, "ptr"), e.word(OUT, "ptr")
    square = e.op("mul", n, n)
    with e.loop(0, e.word(COUNT)) as matrix:
        given = Given(e.one_of(x, square, matrix.index), n)
        e.clear(e.a)
        with e.loop(0, n) as i, e.loop(0, e.add(i.index, 1)) as j:
            (value,) = e.given_number(given, i.index, j.index)
            e.store(value, e.part(e.a, i.index, j.index))
            e.store(value, e.part(e.a, j.index, i.index))
        e.decompose()
        to = e.one_of(out, e.op("mul", n, wide), matrix.index)
        with e.loop(0, n) as i:
            value = e.one(e.diagonal, i.index)
            e.fail_unless_number((value,))
            e.give((value,), Given(to, wide), i.index, 0)
        vectors = Given(e.at(to, 1, e.given), wide)
        e.write(e.a._replace(rows=n, columns=n), vectors, transposed=True)
    return e.function()


def svd(dtype: DType) -> str:
    """U's rows, one of singular values, then V's rows, of real matrices."""
    e = _EigenCode(dtype, K)
    k, m, n = e.n, e.word(M), e.word(N)
    x, out = e.word(X, "ptr"), e.word(OUT, "ptr")
    is_tall = e.compare_ints("sge", m, n)
    tall = e.select(is_tall, m, n)
    whole = e.op("and", e.op("add", tall, e.i64(_ROWS - 1)), e.i64(-_ROWS))
    images, work = e.matrix(e.work, whole, e.a.rows)  # A, or its transpose where A is wide
    columns, work = e.matrix(work, k, whole)  # and the other of both
    found, _ = e.matrix(work, whole, e.a.rows)
    size, rows = e.op("mul", m, n), e.op("add", e.i64(e.add(m, 1)), n)
    zero, one = e.i64(0), e.real(1.0)
    with e.loop(0, e.word(COUNT)) as matrix:
        given = Given(e.one_of(x, size, matrix.index), n)
        e.clear(images)
        e.clear(columns)
        with e.loop(0, m) as i, e.loop(0, n) as j:
            (value,) = e.given_number(given, i.index, j.index)
            down = e.select(is_tall, e.i64(i.index), e.i64(j.index))
            across = e.select(is_tall, e.i64(j.index), e.i64(i.index))
            e.store(value, e.part(images, down, across))
            e.store(value, e.part(columns, across, down))
        e.clear(e.a)
        with e.loop(0, k) as i:
            e.combined_rows(images, columns, i.index, zero, one, e.a, i.index)
        e.decompose()
        e.adjoint(e.a, e.q)  # vectors as columns
        with e.loop(0, tall) as i:
            e.combined_rows(e.q, images, i.index, zero, one, found, i.index)
        to = Given(e.one_of(out, e.op("mul", rows, k), matrix.index), k)
        below = e.i64(e.add(m, 1))
        ours, theirs = e.select(is_tall, zero, below), e.select(is_tall, below, zero)
        with e.loop(0, k) as j:
            place = e.minus(e.sub(k, 1), j.index)  # from the largest on
            square = e.one(e.diagonal, place)
            value = e.intrinsic("sqrt", square)
            e.give((value,), to, m, j.index)
            over = e.op("fdiv", one, value)
            with e.loop(0, tall) as i:
                number = e.load(e.part(found, i.index, place), "double")
                e.give(
                    (e.op("fmul", number, over),), to, e.op("add", ours, e.i64(i.index)), j.index
                )
            with e.loop(0, k) as i:
                number = e.load(e.part(e.a, place, i.index), "double")
                e.give((number,), to, e.op("add", theirs, e.i64(i.index)), j.index)
        least, most = e.one(e.diagonal, 0), e.one(e.diagonal, e.sub(k, 1))
        is_near = e.compare("ogt", least, e.op("fmul", most, e.real(_FAR**2)))
        with e.when(e.op("xor", is_near, Value("i1", "true"))):
            e.give((e.real(float("nan")),), to, m, 0)
    return e.function()


SOURCES = {"eigh": eigh, "svd": svd}

"""Tile routines of the attention kernels, as LLVM IR with vectors written out.

`IRText` writes one function, `TileModule` a module of them; two routines with the same constants
are one function. A tile product holds `rows` x `vectors` accumulators in registers and adds outer
products to them; its operands are laid out so that every vector is one load:

    panels   a matrix transposed, `panel` of its rows side by side: [row // panel][column][panel]
    rows     a matrix copied row by row, each row padded with zeros to whole vectors
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from everygrad import dtypes
from everygrad.backends.cpu.llvm.compiler import engine, literal
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

LOG2E = math.log2(math.e)
GROUP = edge(__name__, "GROUP", 4, "size")  # rows per softmax routine, to hide latencies
MAX_ROWS = edge(__name__, "MAX_ROWS", 12, "size")  # of a product
# (2^r - 1) / r for |r| <= 1/2, interpolated at Chebyshev nodes
_EXP2_32 = (0.6931472, 0.2402265, 0.05550357, 0.009618083, 0.0013390863, 0.00015453163)
_EXP2_64 = (
    0.6931471805599453, 0.24022650695910097, 0.0555041086648216, 0.009618129107606888,
    0.0013333558146416936, 0.0001540353044173605, 1.525273382983612e-05, 1.321544258792169e-06,
    1.0178062445845774e-07, 7.072585949269223e-09, 4.4549605981865186e-10,
)  # fmt: skip


def round_up(n: int, step: int) -> int:
    return -(-n // step) * step


class Loop:
    """A loop being written: `i` is its index, `values` are carried, `after` are their next values;
    once the loop is closed, `results` are their final values."""

    def __init__(self, i: str, values: list[str]) -> None:
        self.i = i
        self.values = values
        self.after: list[str] = list(values)
        self.results: list[str] = []


class IRText:
    """The text of one function."""

    def __init__(self, head: str) -> None:
        self.lines = [head + " {", "entry:"]
        self._block = "entry"
        self._count = 0

    def do(self, text: str) -> None:
        self.lines.append("  " + text)

    def let(self, text: str) -> str:
        """The name of a new value."""
        self._count += 1
        self.do(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def add(self, a: str, b: str | int) -> str:
        return self.let(f"add nsw i64 {a}, {b}")

    def sub(self, a: str, b: str | int) -> str:
        return self.let(f"sub nsw i64 {a}, {b}")

    def mul(self, a: str, b: str | int) -> str:
        return self.let(f"mul nsw i64 {a}, {b}")

    def div(self, a: str, b: int) -> str:
        """a // b for a >= 0."""
        return self.let(f"udiv i64 {a}, {b}")

    def least(self, a: str, b: str | int) -> str:
        return self.let(f"call i64 @llvm.smin.i64(i64 {a}, i64 {b})")

    def most(self, a: str, b: str | int) -> str:
        return self.let(f"call i64 @llvm.smax.i64(i64 {a}, i64 {b})")

    def up(self, a: str, step: int) -> str:
        """How many times `step` covers a >= 0."""
        return self.div(self.add(a, step - 1), step)

    def at(self, type_: str, pointer: str, index: str | int) -> str:
        return self.let(f"getelementptr inbounds {type_}, ptr {pointer}, i64 {index}")

    def at_row(self, type_: str, pointer: str, row: str, stride: int) -> str:
        return self.at(type_, pointer, self.mul(row, stride))

    @contextmanager
    def loop(
        self,
        start: str | int,
        stop: str | int,
        step: int = 1,
        carried: Sequence[tuple[str, str]] = (),
    ) -> Iterator[Loop]:
        """A loop over [start, stop); `carried` are (type, first value) pairs."""
        self._count += 1
        n, before = self._count, self._block
        self.do(f"%any{n} = icmp slt i64 {start}, {stop}")
        self.do(f"br i1 %any{n}, label %loop{n}, label %done{n}")
        self._start(f"loop{n}")
        head = len(self.lines)
        loop = Loop(f"%i{n}", [f"%c{n}.{k}" for k in range(len(carried))])
        yield loop
        latch = self._block
        self.do(f"%next{n} = add nsw i64 {loop.i}, {step}")
        self.do(f"%more{n} = icmp slt i64 %next{n}, {stop}")
        self.do(f"br i1 %more{n}, label %loop{n}, label %done{n}")
        phis = [f"  {loop.i} = phi i64 [ {start}, %{before} ], [ %next{n}, %{latch} ]"]
        self._start(f"done{n}")
        for k, ((type_, first), name) in enumerate(zip(carried, loop.values, strict=True)):
            ways = f"[ {first}, %{before} ], [ {loop.after[k]}, %{latch} ]"
            phis.append(f"  {name} = phi {type_} {ways}")
            loop.results.append(f"%r{n}.{k}")
            self.do(f"%r{n}.{k} = phi {type_} {ways}")
        self.lines[head:head] = phis

    def _start(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self._block = label

    def text(self) -> str:
        return "\n".join([*self.lines, "  ret void", "}"])


class TileModule:
    """A module for one dtype: routines are written on first use, with vectors as wide as the
    processor's registers."""

    def __init__(self, dtype: DType) -> None:
        features = engine().features
        width = 64 if features.get("avx512f") else 32 if features.get("avx2") else 16
        self.wide = dtype is dtypes.float64
        self.type = "double" if self.wide else "float"
        self.int = "i64" if self.wide else "i32"
        self.size = dtype.bits // 8
        self.least = float(np.finfo(dtype.np).min)
        self.lanes = width // self.size
        self.vector = f"<{self.lanes} x {self.type}>"
        self.integers = f"<{self.lanes} x {self.int}>"
        self.mask = f"<{self.lanes} x i1>"
        self.suffix = f"v{self.lanes}f{dtype.bits}"
        # accumulators of a tile product: they leave registers (32 with AVX-512, else 16) for its
        # operands and hide the latency of the multiply-adds
        self.sums = 24 if width == 64 else 12
        self.panel = 3 * self.lanes
        self.rows = self.sums // 3  # of products with panels
        self.slack = round_up(MAX_ROWS, self.lanes)
        self.chunk = min(4, self.lanes)
        self._made: dict[object, str] = {}
        self._types: dict[str, list[str]] = {}
        self._texts: list[str] = []

    def make(self, key: object, params: str, write: Callable[[IRText], None]) -> str:
        """The name of the routine known by `key`, written on first use."""
        if key not in self._made:
            name = self._made[key] = f"@tile{len(self._made)}"
            self._types[name] = [param.split()[0] for param in params.split(", ")]
            code = IRText(f"define internal void {name}({params}) noinline {engine().attributes}")
            write(code)
            self._texts.append(code.text())
        return self._made[key]

    def call(self, code: IRText, routine: str, *args: str | float) -> None:
        args = tuple(literal(self.type, a).name if isinstance(a, float) else a for a in args)
        pairs = zip(self._types[routine], args, strict=True)
        code.do(f"call void {routine}({', '.join(f'{t} {a}' for t, a in pairs)})")

    def module(self, step: IRText) -> str:
        """The source of a step that calls the routines made so far."""
        v, m, t = self.vector, self.mask, self.suffix
        declarations = [
            "declare i64 @llvm.smin.i64(i64, i64)",
            "declare i64 @llvm.smax.i64(i64, i64)",
            f"declare {v} @llvm.fmuladd.{t}({v}, {v}, {v})",
            f"declare {v} @llvm.masked.load.{t}.p0(ptr, i32, {m}, {v})",
            f"declare void @llvm.masked.store.{t}.p0({v}, ptr, i32, {m})",
        ]
        if self.chunk != self.lanes:
            c, bits = self.chunk, 8 * self.size
            chunk = f"<{c} x {self.type}>"
            name = f"@llvm.masked.load.v{c}f{bits}.p0"
            declarations.append(f"declare {chunk} {name}(ptr, i32, <{c} x i1>, {chunk})")
        return "\n".join([*declarations, *self._texts, step.text()])

    # --- vectors ---------------------------------------------------------------------------------

    def const(self, value: float) -> str:
        """The same number in every lane."""
        return f"splat ({self.type} {literal(self.type, value).name})"

    def load(self, code: IRText, pointer: str, count: int | None = None, other: float = 0.0) -> str:
        """A vector; with `count`, only that many elements, followed by `other`."""
        if count is None or count >= self.lanes:
            return code.let(f"load {self.vector}, ptr {pointer}, align {self.size}")
        return code.let(
            f"call {self.vector} @llvm.masked.load.{self.suffix}.p0(ptr {pointer}, "
            f"i32 {self.size}, {self.mask} {self.first(count)}, {self.vector} {self.const(other)})"
        )

    def store(self, code: IRText, value: str, pointer: str, count: int | None = None) -> None:
        if count is None or count >= self.lanes:
            code.do(f"store {self.vector} {value}, ptr {pointer}, align {self.size}")
        else:
            code.do(
                f"call void @llvm.masked.store.{self.suffix}.p0({self.vector} {value}, "
                f"ptr {pointer}, i32 {self.size}, {self.mask} {self.first(count)})"
            )

    def first(self, count: int) -> str:
        """A mask of the first `count` lanes."""
        bits = ("true" if lane < count else "false" for lane in range(self.lanes))
        return "<" + ", ".join(f"i1 {b}" for b in bits) + ">"

    def splat(self, code: IRText, type_: str, value: str) -> str:
        """A scalar in every lane."""
        vector = f"<{self.lanes} x {type_}>"
        one = code.let(f"insertelement {vector} poison, {type_} {value}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return code.let(f"shufflevector {vector} {one}, {vector} poison, {zeros}")

    def spread(self, code: IRText, pointer: str) -> str:
        """The number at `pointer` in every lane."""
        value = code.let(f"load {self.type}, ptr {pointer}, align {self.size}")
        return self.splat(code, self.type, value)

    def op(self, code: IRText, name: str, a: str, b: str) -> str:
        return code.let(f"{name} {self.vector} {a}, {b}")

    def fma(self, code: IRText, a: str, b: str, c: str) -> str:
        v = self.vector
        return code.let(f"call {v} @llvm.fmuladd.{self.suffix}({v} {a}, {v} {b}, {v} {c})")

    def choose(self, code: IRText, mask: str, yes: str, no: str) -> str:
        v = self.vector
        return code.let(f"select {self.mask} {mask}, {v} {yes}, {v} {no}")

    def larger(self, code: IRText, a: str, b: str) -> str:
        return self.choose(code, code.let(f"fcmp ogt {self.vector} {a}, {b}"), a, b)

    def shuffle(self, code: IRText, a: str, b: str, lanes: Sequence[int]) -> str:
        v = self.vector
        chosen = ", ".join(f"i32 {p}" for p in lanes)
        return code.let(f"shufflevector {v} {a}, {v} {b}, <{self.lanes} x i32> <{chosen}>")

    def across(self, code: IRText, combine: Callable[[IRText, str, str], str], a: str) -> str:
        """All lanes combined, in every lane."""
        step = self.lanes // 2
        while step:
            other = self.shuffle(code, a, "poison", [lane ^ step for lane in range(self.lanes)])
            a = combine(code, a, other)
            step //= 2
        return a

    def exp2(self, code: IRText, x: str) -> str:
        """2^x for x <= 0, propagates NaN; error below 1 ulp, 0 where the result is subnormal."""
        bits, bias = (52, 1023) if self.wide else (23, 127)
        magic = self.const(1.5 * 2.0**bits)  # adding it rounds to an integer, in the low bits
        shifted = self.op(code, "fadd", x, magic)
        r = self.op(code, "fsub", x, self.op(code, "fsub", shifted, magic))
        *rest, last = _EXP2_64 if self.wide else _EXP2_32
        q = self.const(last)
        for c in reversed(rest):
            q = self.fma(code, q, r, self.const(c))
        value = self.fma(code, q, r, self.const(1.0))
        ints = self.integers
        whole = code.let(f"bitcast {self.vector} {shifted} to {ints}")
        biased = code.let(f"add {ints} {whole}, splat ({self.int} {bias})")
        power = code.let(f"shl {ints} {biased}, splat ({self.int} {bits})")
        scale = code.let(f"bitcast {ints} {power} to {self.vector}")
        normal = code.let(f"fcmp uge {self.vector} {x}, {self.const(1 - bias)}")
        return self.choose(code, normal, self.op(code, "fmul", value, scale), self.const(0.0))

    # --- moving ----------------------------------------------------------------------------------

    def copy(self, width: int, source: int, target: int, pad: bool) -> str:
        """copy(from, to, rows, all, scale): rows of `width` numbers, times `scale`; rows from there
        to `all` are zeros. `source` and `target` are the rows' strides; with `pad`, whole vectors
        are written."""

        def write(code: IRText) -> None:
            scale = self.splat(code, self.type, "%scale")
            with code.loop(0, "%rows") as row:
                here = code.at_row(self.type, "%from", row.i, source)
                there = code.at_row(self.type, "%to", row.i, target)
                for at in range(0, width, self.lanes):
                    value = self.load(code, code.at(self.type, here, at), width - at)
                    value = self.op(code, "fmul", value, scale)
                    count = None if pad else width - at
                    self.store(code, value, code.at(self.type, there, at), count)
            with code.loop("%rows", "%all") as row:
                there = code.at_row(self.type, "%to", row.i, target)
                for at in range(0, width if pad else 0, self.lanes):
                    self.store(code, self.const(0.0), code.at(self.type, there, at))

        params = f"ptr %from, ptr %to, i64 %rows, i64 %all, {self.type} %scale"
        return self.make(("copy", width, source, target, pad), params, write)

    def scaled_rows(self, width: int, source: int, target: int) -> str:
        """scaled_rows(from, to, weights, rows): copies rows, each times its weight."""

        def write(code: IRText) -> None:
            with code.loop(0, "%rows") as row:
                here = code.at_row(self.type, "%from", row.i, source)
                there = code.at_row(self.type, "%to", row.i, target)
                weight = self.spread(code, code.at(self.type, "%weights", row.i))
                for at in range(0, width, self.lanes):
                    value = self.load(code, code.at(self.type, here, at))
                    value = self.op(code, "fmul", value, weight)
                    self.store(code, value, code.at(self.type, there, at), width - at)

        key = ("scaled_rows", width, source, target)
        return self.make(key, "ptr %from, ptr %to, ptr %weights, i64 %rows", write)

    def clear(self) -> str:
        """clear(to, count): zeros in a whole number of vectors."""

        def write(code: IRText) -> None:
            with code.loop(0, "%count", self.lanes) as loop:
                self.store(code, self.const(0.0), code.at(self.type, "%to", loop.i))

        return self.make("clear", "ptr %to, i64 %count", write)

    def transpose(self, rows: int, width: int, stride: int) -> str:
        """transpose(from, to, count): the first rows of a matrix of `rows` rows, as panels; count
        is rounded up to whole vectors, and zeros are taken beyond the matrix's end."""
        whole = width // self.chunk * self.chunk

        def write(code: IRText) -> None:
            with code.loop(0, "%count", self.lanes) as row:
                here = code.at_row(self.type, "%from", row.i, stride)
                panel = code.div(row.i, self.panel)
                to = code.at_row(self.type, "%to", panel, self.panel * width)
                there = code.at(self.type, to, code.sub(row.i, code.mul(panel, self.panel)))
                left = code.sub(str(rows), row.i) if rows % self.lanes else None
                with code.loop(0, whole, self.chunk) as column:
                    source = code.at(self.type, here, column.i)
                    target = code.at_row(self.type, there, column.i, self.panel)
                    self._transpose_square(code, source, target, stride, self.chunk, left)
                if width != whole:
                    source = code.at(self.type, here, whole)
                    target = code.at(self.type, there, whole * self.panel)
                    self._transpose_square(code, source, target, stride, width - whole, left)

        key = ("transpose", rows, width, stride)
        return self.make(key, "ptr %from, ptr %to, i64 %count", write)

    def _transpose_square(
        self, code: IRText, source: str, target: str, stride: int, width: int, left: str | None
    ) -> None:
        """Transposes as many rows of `width` columns as a vector has lanes. Only `left` rows exist.

        Short loads put every row's columns where a transposition of small squares suffices.
        """
        n, c = self.lanes, self.chunk
        rows = []
        for k in range(c):
            parts = [
                self._short(code, code.at(self.type, source, row * stride), row, width, left)
                for row in range(k, n, c)
            ]
            rows.append(self._concatenated(code, parts))
        step = c // 2
        while step:
            low = [lane if not lane & step else n + lane - step for lane in range(n)]
            high = [lane + step if not lane & step else n + lane for lane in range(n)]
            for k in (k for k in range(c) if not k & step):
                a, b = rows[k], rows[k + step]
                rows[k] = self.shuffle(code, a, b, low)
                rows[k + step] = self.shuffle(code, a, b, high)
            step //= 2
        for k in range(width):
            self.store(code, rows[k], code.at(self.type, target, k * self.panel))

    def _short(self, code: IRText, pointer: str, row: int, width: int, left: str | None) -> str:
        """A chunk of a row, padded with zeros beyond the matrix."""
        c, bits = self.chunk, 8 * self.size
        chunk, mask = f"<{c} x {self.type}>", f"<{c} x i1>"
        if left is None and width == c:
            return code.let(f"load {chunk}, ptr {pointer}, align {self.size}")
        exists = "true" if left is None else code.let(f"icmp sgt i64 {left}, {row}")
        inside = ", ".join(f"i1 {'true' if k < width else 'false'}" for k in range(c))
        chosen = code.let(f"select i1 {exists}, {mask} <{inside}>, {mask} zeroinitializer")
        return code.let(
            f"call {chunk} @llvm.masked.load.v{c}f{bits}.p0(ptr {pointer}, i32 {self.size}, "
            f"{mask} {chosen}, {chunk} zeroinitializer)"
        )

    def _concatenated(self, code: IRText, parts: list[str]) -> str:
        """Short vectors one after the other."""
        n = self.chunk
        while len(parts) > 1:
            lanes = ", ".join(f"i32 {p}" for p in range(2 * n))
            type_ = f"<{n} x {self.type}>"
            parts = [
                code.let(f"shufflevector {type_} {a}, {type_} {b}, <{2 * n} x i32> <{lanes}>")
                for a, b in zip(parts[::2], parts[1::2], strict=True)
            ]
            n *= 2
        return parts[0]

    # --- products --------------------------------------------------------------------------------

    def rows_for(self, vectors: int) -> int:
        """How many rows a product of `vectors` vectors (up to 4) has; at most MAX_ROWS."""
        return min(MAX_ROWS, self.sums // vectors)

    def product(
        self, rows: int, vectors: int, a: tuple[int, int], b: int, c: int, more: bool = False
    ) -> str:
        """product(a, b, c, k): c[r][:] = (+= if `more`) the sum over i < k of a[r][i] b[i][:].

        c has `rows` rows of `vectors` vectors. `a` are the strides of r and of i, `b` and `c` those
        of the rows of b and c.
        """
        grid = [(r, n) for r in range(rows) for n in range(vectors)]

        def write(code: IRText) -> None:
            targets = [code.at(self.type, "%c", r * c + n * self.lanes) for r, n in grid]
            first = [self.load(code, t) if more else self.const(0.0) for t in targets]
            with code.loop(0, "%k", 1, [(self.vector, f) for f in first]) as loop:
                row = code.at_row(self.type, "%b", loop.i, b)
                column = code.at_row(self.type, "%a", loop.i, a[1])
                ats = [code.at(self.type, row, n * self.lanes) for n in range(vectors)]
                right = [self.load(code, at) for at in ats]
                for r in range(rows):
                    left = self.spread(code, code.at(self.type, column, r * a[0]))
                    for n, k in enumerate(range(r * vectors, (r + 1) * vectors)):
                        loop.after[k] = self.fma(code, left, right[n], loop.values[k])
            for target, value in zip(targets, loop.results, strict=True):
                self.store(code, value, target)

        key = ("product", rows, vectors, a, b, c, more)
        return self.make(key, "ptr %a, ptr %b, ptr %c, i64 %k", write)


class Softmax:
    """The softmax of a tile's scores, which are base-2 exponents: q k^T * scale * log2(e)."""

    def __init__(
        self, t: TileModule, queries: int, keys: int, row: int, causal: bool, mask_row: int | None
    ) -> None:
        self.t = t
        self.queries, self.keys = queries, keys
        self.score_row = row  # the stride of rows of scores
        self.causal = causal
        self.masked = mask_row is not None
        self.mask_row = mask_row or 0

    def routine(self, grads: bool) -> str:
        """The softmax of GROUP rows of scores, the first of them query %row.

        Forward, the exponentials replace the scores, and 1 / their sums are stored to %extra. For
        the derivative, the probabilities replace the scores, and %extra, which held the gradient
        of the probabilities, gets the gradient of the scores.
        """
        params = "ptr %s, ptr %extra, ptr %mask, i64 %row"
        return self.t.make("softmax", params, lambda code: self._softmax(code, grads))

    def _softmax(self, code: IRText, grads: bool) -> None:
        t, rows = self.t, range(GROUP)
        scores = [code.at(t.type, "%s", r * self.score_row) for r in rows]
        extra = [code.at(t.type, "%extra", r * self.score_row if grads else r) for r in rows]
        stop = self._mask_scores(code, scores)
        if self.causal:
            self._zero_beyond(code, stop, [*scores, *extra] if grads else scores)
        low = t.const(-math.inf)
        with code.loop(0, stop, t.lanes, [(t.vector, low)] * GROUP) as loop:
            for r in rows:
                value = t.load(code, code.at(t.type, scores[r], loop.i))
                loop.after[r] = t.larger(code, value, loop.values[r])
        tops = [t.across(code, t.larger, m) for m in loop.results]
        if self.masked:  # a row that is masked out entirely: exponentials of -inf, not of NaN
            none = [code.let(f"fcmp oeq {t.vector} {m}, {low}") for m in tops]
            tops = [t.choose(code, n, t.const(0.0), m) for n, m in zip(none, tops, strict=True)]
        zeros = [(t.vector, t.const(0.0))] * (2 * GROUP if grads else GROUP)
        with code.loop(0, stop, t.lanes, zeros) as loop:
            for r in rows:
                at = code.at(t.type, scores[r], loop.i)
                e = t.exp2(code, t.op(code, "fsub", t.load(code, at), tops[r]))
                t.store(code, e, at)
                loop.after[r] = t.op(code, "fadd", loop.values[r], e)
                if grads:
                    g = t.load(code, code.at(t.type, extra[r], loop.i))
                    loop.after[GROUP + r] = t.fma(code, e, g, loop.values[GROUP + r])
        weights = [self._weight(code, s) for s in loop.results[:GROUP]]
        if grads:
            self._softmax_vjp(code, stop, scores, extra, weights, loop.results[GROUP:])
            return
        for r in rows:
            one = code.let(f"extractelement {t.vector} {weights[r]}, i64 0")
            code.do(f"store {t.type} {one}, ptr {extra[r]}, align {t.size}")

    def _weight(self, code: IRText, total: str) -> str:
        """1 / the sum over all lanes; 0 for a row that is masked out entirely."""
        t = self.t
        total = t.across(code, lambda c, a, b: t.op(c, "fadd", a, b), total)
        weight = t.op(code, "fdiv", t.const(1.0), total)
        if not self.masked:
            return weight
        none = code.let(f"fcmp oeq {t.vector} {total}, {t.const(0.0)}")
        return t.choose(code, none, t.const(0.0), weight)

    def _softmax_vjp(
        self,
        code: IRText,
        stop: str,
        scores: list[str],
        extra: list[str],
        weights: list[str],
        dots: list[str],
    ) -> None:
        """Replaces exponentials by probabilities p, and their gradient g by p (g - <p, g>)."""
        t = self.t
        means = []
        for weight, dot in zip(weights, dots, strict=True):
            dot = t.across(code, lambda c, a, b: t.op(c, "fadd", a, b), dot)
            means.append(t.op(code, "fmul", dot, weight))
        with code.loop(0, stop, t.lanes) as loop:
            for r in range(GROUP):
                at, g_at = (code.at(t.type, x[r], loop.i) for x in (scores, extra))
                p = t.op(code, "fmul", t.load(code, at), weights[r])
                off = t.op(code, "fsub", t.load(code, g_at), means[r])
                t.store(code, p, at)
                t.store(code, t.op(code, "fmul", p, off), g_at)

    def _mask_scores(self, code: IRText, scores: list[str]) -> str:
        """Writes -inf where a query must not attend; returns where the last open vector ends."""
        if self.masked:
            self._add_mask(code, scores)
        if self.causal:
            return self._mask_future(code, scores)
        if not self.masked and self.keys % self.t.lanes:
            last = self.keys // self.t.lanes * self.t.lanes
            for score in scores:
                at = code.at(self.t.type, score, last)
                inside = self.t.first(self.keys - last)
                low = self.t.const(-math.inf)
                self.t.store(code, self.t.choose(code, inside, self.t.load(code, at), low), at)
        return str(round_up(self.keys, self.t.lanes))

    def _mask_future(self, code: IRText, scores: list[str]) -> str:
        t = self.t
        ends = [code.least(code.add("%row", r + 1), self.keys) for r in range(GROUP)]
        start = code.mul(code.div(ends[0], t.lanes), t.lanes)
        stop = code.mul(code.up(ends[-1], t.lanes), t.lanes)
        numbers = f"<{t.lanes} x i64>"
        lanes = "<" + ", ".join(f"i64 {lane}" for lane in range(t.lanes)) + ">"
        with code.loop(start, stop, t.lanes) as loop:
            for end, score in zip(ends, scores, strict=True):
                left = t.splat(code, "i64", code.sub(end, loop.i))
                inside = code.let(f"icmp slt {numbers} {lanes}, {left}")
                at = code.at(t.type, score, loop.i)
                value = t.choose(code, inside, t.load(code, at), t.const(-math.inf))
                t.store(code, value, at)
        return stop

    def _zero_beyond(self, code: IRText, stop: str, rows: list[str]) -> None:
        """Zero-fills what later rows of the same product read."""
        t = self.t
        for row in rows:
            end = code.at(t.type, row, stop)
            for at in range(0, t.slack, t.lanes):
                t.store(code, t.const(0.0), code.at(t.type, end, at))

    def _add_mask(self, code: IRText, scores: list[str]) -> None:
        """Adds the mask, scaled to base-2 exponents as the scores are; -inf masks any score.

        Finite numbers mask nothing: the smallest one must not become -inf by the scaling.
        """
        t = self.t
        # tiles may end beyond the last query
        rows = [code.least(code.add("%row", r), self.queries - 1) for r in range(GROUP)]
        masks = [code.at_row(t.type, "%mask", row, self.mask_row) for row in rows]
        low, least = t.const(-math.inf), t.const(t.least)

        def add(i: str, count: int | None) -> None:
            for score, pointer in zip(scores, masks, strict=True):
                at = code.at(t.type, score, i)
                m = t.load(code, code.at(t.type, pointer, i), count, -math.inf)
                value = t.fma(code, m, t.const(LOG2E), t.load(code, at))
                value = t.larger(code, least, value)  # in this order, which propagates NaN
                closed = code.let(f"fcmp oeq {t.vector} {m}, {low}")
                t.store(code, t.choose(code, closed, low, value), at)

        whole = self.keys // t.lanes * t.lanes
        with code.loop(0, whole, t.lanes) as loop:
            add(loop.i, None)
        if whole != self.keys:
            add(str(whole), self.keys - whole)

"""Kernels over contiguous rows: several passes over one row while it is in the cache.

A pass computes scalar bodies for each element of the row; it may reduce some of them to numbers of
the row, which later passes can use, and store one of them. A softmax is three passes: the largest
element; the exponentials, stored, and their sum; the quotients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from everygrad.backends.cpu import intrinsics
from everygrad.backends.cpu.llvm import Emitter, Value, engine, literal
from everygrad.backends.cpu.loops import program_body
from everygrad.backends.cpu.pool import empty
from everygrad.backends.cpu.ranges import spread
from everygrad.backends.cpu.render import address_of
from everygrad.compile.combining import identity
from everygrad.compile.edges import edge
from everygrad.compile.expr import Expr, lower
from everygrad.dtypes import FROM_NP, DType, float32, int32, int64

Body = Callable[["Row"], Expr]
GRAIN = edge(__name__, "GRAIN", 1 << 12, "elements")  # elements, in whole rows, handed out together


class Row:
    """What a body can name: x[k], element of input k; out, element stored by an earlier pass;
    total[j], the j-th number reduced so far; n, the length of the row."""

    def __init__(self, inputs: int, totals: int) -> None:
        self.x = [Expr("input", (), k) for k in range(inputs)]
        self.out = Expr("input", (), inputs)
        self.n = Expr("input", (), inputs + 1)
        self.total = [Expr("input", (), inputs + 2 + j) for j in range(totals)]


class Pass(NamedTuple):
    """One walk along the row: bodies to reduce ("add" or "max"), and one to store, or None."""

    reduce: tuple[tuple[str, Body], ...] = ()
    store: Body | None = None


class _Writer:
    """Writes one kernel: kernel(lo, hi, n, out, *inputs) over rows [lo, hi) of n elements.

    Half floats are computed with in float32, and rounded where they are stored.
    """

    def __init__(self, passes: Sequence[Pass], inputs: int, held: DType) -> None:
        self.passes = passes
        self.inputs = inputs
        self.held = held  # in memory
        self.memory = intrinsics.memory_type(held)
        self.dtype = dtype = float32 if held.bits == 16 else held
        self.type = intrinsics.register_type(dtype)
        self.word = "i32" if dtype.bits == 32 else "i64"
        self.e = Emitter()
        self.totals: list[Value] = []

    def element(self, pointer: str) -> Value:
        at = self.e.emit("ptr", f"getelementptr inbounds {self.memory}, ptr {pointer}, i64 %i")
        value = self.e.emit(self.memory, f"load {self.memory}, ptr {at.name}, align 1")
        return intrinsics.cast(self.e, value, self.held, self.dtype)

    def body(self, body: Body) -> Value:
        """A scalar body at element %i."""
        count = self.inputs + 2 + len(self.totals)
        program = lower(body(Row(self.inputs, len(self.totals))), [self.dtype] * count, self.dtype)
        values: dict[int, Value] = {}
        for inst in program.insts:
            if inst.fn == "input" and inst.value <= self.inputs:
                pointer = "%row.out" if inst.value == self.inputs else f"%row{inst.value}"
                values[inst.value] = self.element(pointer)
        values[self.inputs + 1] = Value(self.type, "%count")
        for j, total in enumerate(self.totals):
            values[self.inputs + 2 + j] = total
        return program_body(self.e, program, values)

    def ordered(self, x: Value) -> Value:
        """A float as an integer that sorts the same way, NaN above all: integers reduce by vectors,
        floats with NaN do not."""
        e, bits = self.e, self.dtype.bits
        raw = e.cast("bitcast", x, self.word)
        sign = e.op("ashr", raw, literal(self.word, bits - 1))
        mask = e.op("and", sign, literal(self.word, 2 ** (bits - 1) - 1))
        return e.op("xor", raw, mask)

    def start_of(self, combine: str) -> str:
        kind = self.dtype if combine == "add" else int32 if self.word == "i32" else int64
        type_ = self.type if combine == "add" else self.word
        return literal(type_, identity(combine, kind)).name

    def walk(self, k: int, one: Pass) -> None:
        """The loop of pass k. Blocks: before{k} -> loop{k} -> after{k}."""
        e = self.e
        lines = e.lines
        lines += [f"  br label %before{k}", f"before{k}:", f"  br label %loop{k}", f"loop{k}:"]
        head = len(lines)
        lines.append("")  # the phis, once the names of what they carry are known
        lines.append(f"  %i.next{k} = add nuw nsw i64 %i{k}, 1")
        mark = len(lines)
        carried: list[tuple[str, str, str, str]] = []  # type, accumulator, next value, start
        for j, (combine, body) in enumerate(one.reduce):
            value = self.body(body)
            kind, name = self.type, f"%acc{k}.{j}"
            if combine == "add":
                # reassoc: many partial sums, one a vector lane, which is also more accurate
                new = e.emit(kind, f"fadd reassoc {kind} {name}, {value.name}")
            else:
                kind = self.word
                new = e.call(f"llvm.smax.{kind}", kind, Value(kind, name), self.ordered(value))
            carried.append((kind, name, new.name, self.start_of(combine)))
        if one.store is not None:
            value = intrinsics.cast(e, self.body(one.store), self.dtype, self.held)
            at = e.emit("ptr", f"getelementptr inbounds {self.memory}, ptr %row.out, i64 %i")
            lines.append(f"  store {value.type} {value.name}, ptr {at.name}, align 1")
        for i in range(mark, len(lines)):
            lines[i] = lines[i].replace(", i64 %i", f", i64 %i{k}")
        phis = [f"  %i{k} = phi i64 [ 0, %before{k} ], [ %i.next{k}, %loop{k} ]"]
        phis += [
            f"  {name} = phi {kind} [ {start}, %before{k} ], [ {new}, %loop{k} ]"
            for kind, name, new, start in carried
        ]
        lines[head] = "\n".join(phis)
        lines += [
            f"  %more{k} = icmp slt i64 %i.next{k}, %n",
            f"  br i1 %more{k}, label %loop{k}, label %after{k}",
            f"after{k}:",
        ]
        for (kind, _, final, _), (combine, _) in zip(carried, one.reduce, strict=True):
            self.totals.append(self.finished(Value(kind, final), combine))

    def finished(self, total: Value, combine: str) -> Value:
        if combine == "add":
            return total
        e, bits = self.e, self.dtype.bits
        sign = e.op("ashr", total, literal(self.word, bits - 1))
        mask = e.op("and", sign, literal(self.word, 2 ** (bits - 1) - 1))
        return e.cast("bitcast", e.op("xor", total, mask), self.type)

    def text(self) -> str:
        names = [f"%p{k}" for k in range(self.inputs)]
        lines = self.e.lines
        lines += [
            "entry:",
            f"  %count = sitofp i64 %n to {self.type}",
            "  br label %rows",
            "rows:",
            "  %r = phi i64 [ %lo, %entry ], [ %r.next, %rows.end ]",
            "  %offset = mul i64 %r, %n",
        ]
        for pointer, row in [*((p, f"%row{k}") for k, p in enumerate(names)), ("%out", "%row.out")]:
            lines.append(
                f"  {row} = getelementptr inbounds {self.memory}, ptr {pointer}, i64 %offset"
            )
        for k, one in enumerate(self.passes):
            self.walk(k, one)
        lines += [
            "  br label %rows.end",
            "rows.end:",
            "  %r.next = add i64 %r, 1",
            "  %r.more = icmp slt i64 %r.next, %hi",
            "  br i1 %r.more, label %rows, label %done",
            "done:",
            "  ret void",
        ]
        arguments = ", ".join(
            ["i64 %lo", "i64 %hi", "i64 %n", "ptr noalias %out"]
            + [f"ptr noalias readonly {p}" for p in names]
        )
        head = f"define void @rows({arguments}) {engine().attributes} {{"
        return "\n".join([*sorted(self.e.declarations), head, *lines, "}", ""])


def source(passes: Sequence[Pass], inputs: int, dtype: DType) -> str:
    """The LLVM IR of a row kernel, for reading."""
    return _Writer(passes, inputs, dtype).text()


@lru_cache(maxsize=256)
def _compiled(passes: tuple[Pass, ...], inputs: int, dtype: DType) -> int:
    """Where the kernel is."""
    return engine().compile(source(passes, inputs, dtype), "rows")


def run(passes: tuple[Pass, ...], arrays: Sequence[Any]) -> Any:
    """The passes over each row of contiguous (rows, n) arrays of one floating dtype."""
    count, n = arrays[0].shape
    out = empty((count, n), arrays[0].dtype)
    if out.size:
        kernel = _compiled(passes, len(arrays), FROM_NP[out.dtype])
        given = [n, address_of(out), *(address_of(a) for a in arrays)]
        spread(kernel, count, max(1, GRAIN // n), given)
    return out

"""Kernels over contiguous rows: several passes over one row while it is in the cache.

A pass computes scalar bodies for each element of the row; it may reduce some of them to one number
per row, which later passes can use, and store one of them. A softmax is three passes: the largest
element; the exponentials, stored, and their sum; the quotients.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Address, Emitter, Value, engine, literal
from everygrad.backends.cpu.llvm.loops import program_body
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.parallel_for import spread
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.accumulate import identity
from everygrad.compiler.expr import Expr, lower
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import FROM_NP, DType, float32, float64, int32, int64

Body = Callable[["Row"], Expr]
GRAIN = edge(__name__, "GRAIN", 1 << 12, "elements")  # elements per task, in whole rows
# elements of a row that are summed in its dtype; the strips of a longer row are summed in float64
STRIP = edge(__name__, "STRIP", 1 << 12, "size")
# elements of an array up to which one call of one thread is quickest
SMALL = edge(__name__, "SMALL", 1 << 14, "elements")


class Row:
    """The names in a body: x[k], element of input k; out, element stored by an earlier pass;
    total[j], the j-th number reduced so far; n, the length of the row."""

    def __init__(self, inputs: int, totals: int) -> None:
        self.x = [Expr("input", (), k) for k in range(inputs)]
        self.out = Expr("input", (), inputs)
        self.n = Expr("input", (), inputs + 1)
        self.total = [Expr("input", (), inputs + 2 + j) for j in range(totals)]


class Pass(NamedTuple):
    """One pass over the row: bodies to reduce ("add" or "max"), and one to store, or None; and
    bodies whose sums over the rows are wanted, for each place in them."""

    reduce: tuple[tuple[str, Body], ...] = ()
    store: Body | None = None
    columns: tuple[Body, ...] = ()


class _RowKernelWriter:
    """Writes one kernel: kernel(lo, hi, n, out, *inputs) over rows [lo, hi) of n elements. One that
    sums columns takes two more: `per`, and arrays of (blocks of so many rows, n), one for each sum.

    Half floats are computed in float32 and rounded when they are stored. `long`: rows may be
    longer than a strip; strips cost time if rows are short. The last `shared` inputs are one row,
    which every row is computed with.
    """

    def __init__(
        self, passes: Sequence[Pass], inputs: int, held: DType, long: bool, shared: int
    ) -> None:
        self.long = long
        self.passes = passes
        self.inputs = inputs
        self.shared = shared
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
        """A float as an integer of the same order, NaN above all: LLVM vectorises reductions of
        integers, but not those of floats that must propagate NaN."""
        e, bits = self.e, self.dtype.bits
        raw = e.cast("bitcast", x, self.word)
        sign = e.op("ashr", raw, literal(self.word, bits - 1))
        mask = e.op("and", sign, literal(self.word, 2 ** (bits - 1) - 1))
        return e.op("xor", raw, mask)

    def start_of(self, combine: str) -> str:
        kind = self.dtype if combine == "add" else int32 if self.word == "i32" else int64
        type_ = self.type if combine == "add" else self.word
        return literal(type_, identity(combine, kind)).name

    def traverse(self, k: int, one: Pass) -> None:
        """The loops of pass k, over strips and their elements: before{k} -> strip{k} -> loop{k} ->
        combined{k} -> after{k}. A pass that reduces nothing is one strip, and so is a short row."""
        e, several = self.e, bool(one.reduce) and self.long
        lines = e.lines
        lines += [f"  br label %before{k}", f"before{k}:", f"  br label %strip{k}", f"strip{k}:"]
        outer = len(lines)
        lines.append("")  # the phis of strips, filled in once the carried names are known
        end = self.strip_end(k) if several else "%n"
        lines += [f"  br label %loop{k}", f"loop{k}:"]
        head = len(lines)
        lines.append("")  # the phis of elements, likewise
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
        for j, column in enumerate(one.columns):
            value = self.body(column)
            at = e.emit("ptr", f"getelementptr inbounds {self.type}, ptr %row.column{j}, i64 %i")
            held = e.emit(self.type, f"load {self.type}, ptr {at.name}, align 4")
            total = e.op("fadd", held, value)
            lines.append(f"  store {self.type} {total.name}, ptr {at.name}, align 4")
        for i in range(mark, len(lines)):
            lines[i] = lines[i].replace(", i64 %i", f", i64 %i{k}")
        phis = [f"  %i{k} = phi i64 [ %s{k}, %strip{k} ], [ %i.next{k}, %loop{k} ]"]
        phis += [
            f"  {name} = phi {kind} [ {start}, %strip{k} ], [ {new}, %loop{k} ]"
            for kind, name, new, start in carried
        ]
        lines[head] = "\n".join(phis)
        lines += [
            f"  %more{k} = icmp slt i64 %i.next{k}, {end}",
            f"  br i1 %more{k}, label %loop{k}, label %combined{k}",
            f"combined{k}:",
        ]
        totals = [Value(kind, final) for kind, _, final, _ in carried]
        phis = [f"  %s{k} = phi i64 [ 0, %before{k} ]"]
        if several:
            phis[0] += f", [ %s.next{k}, %combined{k} ]"
            for j, (combine, _) in enumerate(one.reduce):
                totals[j], phi = self.combined(k, j, totals[j], combine)
                phis.append(phi)
            lines.append(f"  %s.more{k} = icmp slt i64 %s.next{k}, %n")
            lines.append(f"  br i1 %s.more{k}, label %strip{k}, label %after{k}")
        else:
            lines.append(f"  br label %after{k}")
        lines[outer] = "\n".join(phis)
        lines.append(f"after{k}:")
        for total, (combine, _) in zip(totals, one.reduce, strict=True):
            self.totals.append(self.finished(total, combine))

    def strip_end(self, k: int) -> str:
        """Where the strip that begins at %s{k} ends."""
        self.e.lines.append(f"  %s.next{k} = add nuw nsw i64 %s{k}, {STRIP}")
        following = Value("i64", f"%s.next{k}")
        return self.e.call("llvm.smin.i64", "i64", following, Value("i64", "%n")).name

    def combined(self, k: int, j: int, total: Value, combine: str) -> tuple[Value, str]:
        """The row's j-th number combined with a strip's, and the phi that carries it. Sums are in
        float64, since a long row has many strips."""
        e, name, start = self.e, f"%row.acc{k}.{j}", self.start_of(combine)
        if combine == "add":
            kind, start = "double", literal("double", identity(combine, float64)).name
            wide = total if total.type == kind else e.cast("fpext", total, kind)
            new = e.emit(kind, f"fadd {kind} {name}, {wide.name}")
        else:
            kind = self.word
            new = e.call(f"llvm.smax.{kind}", kind, Value(kind, name), total)
        phi = f"  {name} = phi {kind} [ {start}, %before{k} ], [ {new.name}, %combined{k} ]"
        return new, phi

    def finished(self, total: Value, combine: str) -> Value:
        if combine == "add":
            is_wide = self.type == total.type
            return total if is_wide else self.e.cast("fptrunc", total, self.type)
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
        own = self.inputs - self.shared
        for pointer, row, at in [
            *((p, f"%row{k}", "%offset" if k < own else "0") for k, p in enumerate(names)),
            ("%out", "%row.out", "%offset"),
        ]:
            lines.append(f"  {row} = getelementptr inbounds {self.memory}, ptr {pointer}, i64 {at}")
        columns = sum(len(one.columns) for one in self.passes)
        if columns:
            lines.append("  %block = udiv i64 %r, %per")
            lines.append("  %block.row = mul i64 %block, %n")
        for j in range(columns):
            at = f"getelementptr inbounds {self.type}, ptr %columns{j}, i64 %block.row"
            lines.append(f"  %row.column{j} = {at}")
        for k, one in enumerate(self.passes):
            self.traverse(k, one)
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
            + (["i64 %per"] if columns else [])
            + [f"ptr noalias %columns{j}" for j in range(columns)]
        )
        head = f"define void @rows({arguments}) {engine().attributes} {{"
        return "\n".join([*sorted(self.e.declarations), head, *lines, "}", ""])


def source(
    passes: Sequence[Pass], inputs: int, dtype: DType, long: bool = False, shared: int = 0
) -> str:
    """The LLVM IR of a row kernel, for reading."""
    return _RowKernelWriter(passes, inputs, dtype, long, shared).text()


@lru_cache(maxsize=256)
def _compiled(
    passes: tuple[Pass, ...], inputs: int, dtype: DType, long: bool, shared: int = 0
) -> Address:
    return engine().compile(source(passes, inputs, dtype, long, shared), "rows")


def run(passes: tuple[Pass, ...], arrays: Sequence[Any], shared: int = 0) -> Any:
    """The passes over each row of contiguous (rows, n) arrays of one floating dtype, of which the
    last `shared` are one row of n elements."""
    count, n = arrays[0].shape
    out = empty((count, n), arrays[0].dtype)
    if out.size:
        kernel = _compiled(passes, len(arrays), FROM_NP[out.dtype], n > STRIP, shared)
        given = [n, address_of(out), *(address_of(a) for a in arrays)]
        spread(kernel, count, max(1, GRAIN // n), given)
    return out


def run_with_sums(passes: tuple[Pass, ...], arrays: Sequence[Any], shared: int) -> tuple[Any, ...]:
    """As `run`, and the sums over the rows that the passes ask for. Rows are added up in blocks,
    in their dtype, and blocks in float64: blocks depend on the shape alone."""
    count, n = arrays[0].shape
    dtype = arrays[0].dtype
    out = empty((count, n), dtype)
    per = min(max(count // _BLOCKS, _LEAST), _MOST)
    sums = np.zeros((sum(len(one.columns) for one in passes), -(-count // per), n), dtype)
    kernel = _compiled(passes, len(arrays), FROM_NP[dtype], n > STRIP, shared)
    given = [n, address_of(out), *(address_of(a) for a in arrays), per]
    spread(kernel, count, per, given + [address_of(s) for s in sums])
    if sums.shape[1] == 1:
        return out, *sums[:, 0]
    if sums.shape[1] == 2:  # of two numbers float64's sum, rounded, is their own dtype's
        return out, *np.add(sums[:, 0], sums[:, 1])
    return out, *np.add.reduce(sums, 1, np.float64).astype(dtype)


# rows whose sums are made one after the other in float32, which is not for many more
_BLOCKS, _LEAST, _MOST = 16, 32, 256
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
MANY = 100  # calls after which a builtin is worth its making


class SmallRows:
    """A kernel on arrays so small that one native call, which keeps the interpreter lock, is done
    before a second thread would begin. None for arrays that it does not serve."""

    def __init__(self, passes: tuple[Pass, ...], inputs: int, shared: int = 0) -> None:
        self.passes, self.inputs, self.shared = passes, inputs, shared
        self.calls: dict[Any, tuple[Address, Any]] = {}  # by dtype
        self.builtin: Any = None  # see `fast_calls`
        self.count = 0  # calls that it did not serve

    def serves(self, arrays: Sequence[Any]) -> bool:
        """Whether contiguous arrays, with rows along their last axis, are such."""
        first = arrays[0]
        shape, dtype = first.shape, first.dtype
        if not shape or not 0 < first.size <= SMALL or shape[-1] > STRIP:
            return False
        shapes = [shape] * (self.inputs - self.shared) + [shape[-1:]] * self.shared
        return all(
            a.shape == s and a.dtype is dtype and a.flags.c_contiguous
            for a, s in zip(arrays, shapes, strict=True)
        )

    def native(self, dtype: Any) -> Any:
        """The kernel as a function of (first row, rows, length, addresses)."""
        held = self.calls.get(dtype)
        if held is None:
            address = _compiled(self.passes, self.inputs, FROM_NP[dtype], False, self.shared)
            made = ctypes.PYFUNCTYPE(None, *(ctypes.c_int64,) * (4 + self.inputs))(address)
            held = self.calls[dtype] = (address, made)
        return held[1]

    def take_over(self, dtype: Any) -> None:
        """From now on this dtype, too, goes to a builtin, which takes no time to be called."""
        if dtype in (_F32, _F64) and (fast := lazy_native.fast_calls()) is not None:
            known = [self.calls[d][0] if d in self.calls else None for d in (_F32, _F64)]
            self.builtin = fast.rows(known, SMALL, STRIP, self.inputs, self.shared)

    def __call__(self, *arrays: Any) -> Any:
        if self.builtin is not None:
            out = self.builtin(*arrays)
            if out is not None:
                return out
        if not self.serves(arrays):
            return None
        first = arrays[0]
        shape = first.shape
        n = shape[-1]
        out = np.empty(shape, first.dtype)
        given = [address_of(a) for a in arrays]
        self.native(first.dtype)(0, first.size // n, n, address_of(out), *given)
        self.count += 1
        if not self.count % MANY:
            self.take_over(first.dtype)
        return out

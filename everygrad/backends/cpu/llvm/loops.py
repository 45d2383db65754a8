"""The IR of one elementwise kernel: a `Program` inside loops over strided operands."""

from __future__ import annotations

from typing import NamedTuple

from everygrad import dtypes
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Emitter, Value, engine, literal
from everygrad.compiler.expr import Program
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError


class Pattern(NamedTuple):
    """What a kernel is specialised on, besides its program.

    `kinds` has a letter for each operand, the output first: c, contiguous along the innermost loop;
    s, the same element throughout (stride 0); g, any stride.
    """

    dims: int
    kinds: str

    @property
    def has_meta(self) -> bool:
        """Whether the kernel takes sizes and strides."""
        return self.dims > 1 or "g" in self.kinds


def program_body(e: Emitter, program: Program, inputs: dict[int, Value]) -> Value:
    """The program's instructions on one element."""
    values: list[Value] = []
    insts = program.insts
    for inst in insts:
        if inst.fn == "input":
            values.append(inputs[inst.value])
        elif inst.fn == "const":
            values.append(intrinsics.constant(inst.dtype, inst.value))
        elif inst.fn == "cast":
            (at,) = inst.args
            values.append(intrinsics.cast(e, values[at], insts[at].dtype, inst.dtype))
        else:
            args = [values[at] for at in inst.args]
            last = insts[inst.args[-1]]
            if inst.fn == "select":
                condition = insts[inst.args[0]].dtype
                args[0] = intrinsics.cast(e, args[0], condition, dtypes.bool_)
            values.append(intrinsics.apply(e, inst.fn, last.dtype, args))
    return values[-1]


class Loops:
    """Writes one kernel: rows of the outer dimensions, and the innermost loop over one row.

    Threads split the elements, not the rows: a call covers [lo, hi) of the flat index, and its
    first and last row may be parts of rows.
    """

    def __init__(self, program: Program, pattern: Pattern) -> None:
        self.program = program
        self.dims, self.kinds = pattern
        self.pattern = pattern
        self.operands = [f"p{k}" for k in range(len(self.kinds))]
        found = operand_dtypes(program, len(self.kinds) - 1)
        self.dtypes = {k: dtype for k, dtype in enumerate(found) if dtype is not None}
        self.used = list(self.dtypes)
        self.e = Emitter()

    def meta(self, index: int, name: str) -> None:
        """%name = the meta argument's entry `index`."""
        self.e.lines += [
            f"  %{name}.at = getelementptr inbounds i64, ptr %meta, i64 {index}",
            f"  %{name} = load i64, ptr %{name}.at, !invariant.load !3",
        ]

    def load_meta(self) -> None:
        n = self.dims
        for d in range(n):
            self.meta(d, f"size{d}")
        for k in self.used:
            for d in range(n):
                self.meta(n * (k + 1) + d, f"stride{k}.{d}")

    def load(self, dtype: DType, address: str, grouped: bool) -> Value:
        memory = intrinsics.memory_type(dtype)
        group = ", !llvm.access.group !0" if grouped else ""
        # align 1: NumPy allows views at any address, and unaligned loads are cheap here
        value = self.e.emit(memory, f"load {memory}, ptr {address}, align 1{group}")
        if dtype is dtypes.bool_:
            return self.e.compare("ne", value, literal("i8", 0))
        return value

    def address(self, k: int, base: str) -> str:
        """The address of operand k's element %i in the row at `base`."""
        memory = intrinsics.memory_type(self.dtypes[k])
        if self.kinds[k] == "c":
            return self.e.emit("ptr", f"getelementptr {memory}, ptr {base}, i64 %i").name
        step = Value("i64", f"%stride{k}.{self.dims - 1}")
        offset = self.e.op("mul", Value("i64", "%i"), step)
        return self.e.emit("ptr", f"getelementptr i8, ptr {base}, i64 {offset.name}").name

    def inner(self, bases: list[str], start: str, end: str, before: str, after: str) -> None:
        """The innermost loop over %i in [start, end), entered from block `before`."""
        e, lines = self.e, self.e.lines
        inputs: dict[int, Value] = {}
        for k in self.used[1:]:
            if self.kinds[k] == "s":
                inputs[k - 1] = self.load(self.dtypes[k], bases[k], grouped=False)
        lines += [
            "  br label %element",
            "element:",
            f"  %i = phi i64 [ {start}, %{before} ], [ %i.next, %element ]",
        ]
        for k in self.used[1:]:
            if self.kinds[k] != "s":
                address = self.address(k, bases[k])
                inputs[k - 1] = self.load(self.dtypes[k], address, grouped=True)
        result = program_body(e, self.program, inputs)
        if self.program.dtype is dtypes.bool_:
            result = e.cast("zext", result, "i8")
        target = self.address(0, bases[0])
        lines += [
            f"  store {result.type} {result.name}, ptr {target}, align 1, !llvm.access.group !0",
            "  %i.next = add nuw nsw i64 %i, 1",
            f"  %i.more = icmp slt i64 %i.next, {end}",
            f"  br i1 %i.more, label %element, label %{after}, !llvm.loop !1",
        ]

    def flat(self) -> None:
        """A single loop: the range is that of the innermost loop."""
        self.e.lines.append("entry:")
        if self.pattern.has_meta:
            self.load_meta()
        bases = [f"%{name}" for name in self.operands]
        self.inner(bases, "%lo", "%hi", "entry", "done")
        self.e.lines += ["done:", "  ret void"]

    def first_row(self) -> None:
        """The start of the range: the index in each dimension, and each operand's row."""
        inner = self.dims - 1
        lines = self.e.lines
        lines += [
            f"  %start.row = udiv i64 %lo, %size{inner}",
            f"  %start.col = urem i64 %lo, %size{inner}",
        ]
        rest = "%start.row"
        for d in reversed(range(inner)):
            lines.append(f"  %first{d} = urem i64 {rest}, %size{d}")
            lines.append(f"  %rest{d} = udiv i64 {rest}, %size{d}")
            rest = f"%rest{d}"
        for k in self.used:
            offset = Value("i64", "0")
            for d in range(inner):
                step = Value("i64", f"%stride{k}.{d}")
                move = self.e.op("mul", Value("i64", f"%first{d}"), step)
                offset = self.e.op("add", offset, move)
            lines.append(f"  %start{k} = getelementptr i8, ptr %p{k}, i64 {offset.name}")

    def next_row(self) -> None:
        """Advances to the next row, carrying into outer dimensions without a branch."""
        e, lines = self.e, self.e.lines
        carry = Value("i64", "1")
        moves = {k: Value("i64", "0") for k in self.used}
        for d in reversed(range(self.dims - 1)):
            size, zero = Value("i64", f"%size{d}"), literal("i64", 0)
            index = e.op("add", Value("i64", f"%index{d}"), carry)
            full = e.compare("eq", index, size)
            lines.append(f"  %next{d} = select i1 {full.name}, i64 0, i64 {index.name}")
            back = e.select(full, size, zero)
            delta = e.op("sub", carry, back)
            for k in self.used:
                step = e.op("mul", delta, Value("i64", f"%stride{k}.{d}"))
                moves[k] = e.op("add", moves[k], step)
            carry = e.cast("zext", full, "i64")
        for k in self.used:
            lines.append(f"  %row.next{k} = getelementptr i8, ptr %row{k}, i64 {moves[k].name}")

    def nested(self) -> None:
        """Loops over rows around the innermost loop."""
        lines, inner = self.e.lines, self.dims - 1
        lines.append("entry:")
        self.load_meta()
        self.first_row()
        lines += ["  br label %row", "row:"]
        lines.append("  %pos = phi i64 [ %lo, %entry ], [ %pos.next, %row.end ]")
        lines.append("  %col = phi i64 [ %start.col, %entry ], [ 0, %row.end ]")
        for d in range(inner):
            lines.append(f"  %index{d} = phi i64 [ %first{d}, %entry ], [ %next{d}, %row.end ]")
        for k in self.used:
            lines.append(f"  %row{k} = phi ptr [ %start{k}, %entry ], [ %row.next{k}, %row.end ]")
        lines += [
            "  %left = sub i64 %hi, %pos",
            "  %wanted = add i64 %col, %left",
            f"  %end = call i64 @llvm.smin.i64(i64 %wanted, i64 %size{inner})",
        ]
        self.e.declarations.add("declare i64 @llvm.smin.i64(i64, i64)")
        bases = [f"%row{k}" for k in range(len(self.kinds))]
        self.inner(bases, "%col", "%end", "row", "row.end")
        lines.append("row.end:")
        self.next_row()
        lines += [
            "  %length = sub i64 %end, %col",
            "  %pos.next = add i64 %pos, %length",
            "  %pos.more = icmp slt i64 %pos.next, %hi",
            "  br i1 %pos.more, label %row, label %done",
            "done:",
            "  ret void",
        ]

    def text(self) -> str:
        if self.dims == 1:
            self.flat()
        else:
            self.nested()
        arguments = ["i64 %lo", "i64 %hi", *(f"ptr %{name}" for name in self.operands)]
        if self.pattern.has_meta:
            arguments.append("ptr noalias readonly %meta")
        head = f"define void @kernel({', '.join(arguments)}) {engine().attributes} {{"
        # The output may be the buffer of an input, so no pointer is noalias. But an iteration
        # touches only its own elements: parallel-access metadata spares the vectoriser its overlap
        # checks, which would send in-place calls down the scalar path.
        notes = [
            "!0 = distinct !{}",
            "!1 = distinct !{!1, !2}",
            '!2 = !{!"llvm.loop.parallel_accesses", !0}',
            "!3 = !{}",
        ]
        return "\n".join([*sorted(self.e.declarations), head, *self.e.lines, "}", *notes, ""])


def operand_dtypes(program: Program, inputs: int) -> list[DType | None]:
    """The dtype of the output and of each input; None for an input that is not read."""
    found: list[DType | None] = [program.dtype, *[None] * inputs]
    for inst in program.insts:
        if inst.fn == "input":
            if inst.value >= inputs:
                raise ArgumentError(f"the program reads input {inst.value}, but {inputs} are given")
            found[inst.value + 1] = inst.dtype
    return found

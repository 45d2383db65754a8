"""Kernels of the kernel language as CUDA C++: a group is a block."""

from __future__ import annotations

import re

from everygrad import dtypes
from everygrad.backends.cuda.source.c_types import HALVES, LAYOUTS
from everygrad.backends.cuda.source.render import body, cast, constant, instruction
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, divisor
from everygrad.codegen import report
from everygrad.codegen.kernel import (
    GROUP,
    THREAD,
    Atomic,
    Kernel,
    Load,
    Reduce,
    Store,
    Term,
)
from everygrad.codegen.render import TextRenderer
from everygrad.compiler.accumulate import identity
from everygrad.compiler.expr import Expr, Inst, Program
from everygrad.dtypes import DType

_WARP = 32
_COARSE = re.compile(r"\b(normcdf|exp)\(")


def combined(combine: str, dtype: DType, a: str, b: str) -> str:
    return instruction(Inst(combine, dtype, (0, 1)), [a, b], [dtype, dtype])


class _Renderer(TextRenderer):
    device = "cuda"
    barrier = "__syncthreads();"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, 0)
        self.w = KernelWriter(kernel.name, kernel.index_dtype is dtypes.uint64)
        self.kind = LAYOUTS[kernel.index_dtype].register  # of indices
        self.shared_bytes = 0  # of reductions
        self.magic: dict[int, tuple[str, str]] = {}  # of sizes that indices are divided by

    def program(
        self, program: Program, given: dict[int, str], name: str, precision: str
    ) -> list[str]:
        lines = body(program, given, name, precision == "exact", f"{name}_")
        return [_COARSE.sub(r"\1_low(", x) for x in lines] if precision == "coarse" else lines

    def declare(self, name: str, dtype: DType, value: str, variable: bool = False) -> None:
        word = "" if variable else "const "
        self.line(f"{word}{LAYOUTS[dtype].register} {name} = {value};")

    def counter(self, name: str, start: str) -> str:
        return f"{self.kind} {name} = {start}"

    def step(self, by: int) -> str:
        return str(by)

    def in_memory(self, value: str, dtype: DType) -> str:
        return cast(value, dtypes.float32, dtype) if dtype in HALVES else value

    def zero(self, dtype: DType) -> str:
        return "{}"

    def quotient(self, e: Expr) -> str | None:
        """An index divided by a size, or its remainder: a product, by numbers that come with the
        size. Both are asked for together, and computed once."""
        if e.fn not in ("floordiv", "mod") or self.kernel.index_dtype is not dtypes.uint32:
            return None
        above, size = e.args
        known = self.kernel.symbols.get(size.value, 0) if size.fn == "input" else 0
        if above.fn != "input" or not known:
            return None
        parts = self.magic.get(size.value)
        if parts is None:
            m, shift = divisor(known)
            signed = m - (1 << 32) * (m >> 31)
            parts = self.magic[size.value] = self.w.number(signed), self.w.number(shift)
        text = f"(u32)quotient((i32)r{above.value}, (u32){parts[0]}, (u32){parts[1]})"
        return text if e.fn == "floordiv" else f"r{above.value} - {text} * r{size.value}"

    # --- reductions ------------------------------------------------------------------------------

    def reduce(self, s: Reduce) -> None:
        for t in s.terms:
            self.reduce_term(s, t)

    def reduce_term(self, s: Reduce, t: Term) -> None:
        """Over a warp's neighbours by shuffles, over a whole block by warps, else by halves."""
        dtype = self.kernel.registers[t.register]
        kind, name = LAYOUTS[dtype].register, f"r{t.register}"
        made = self.value(t.value, dtype)
        text = combined(t.combine, dtype, "a", "b")
        self.line(f"auto j{name} = [&]({kind} a, {kind} b) -> {kind} {{ return {text}; }};")
        if s.stride == 1 and (s.over <= _WARP or s.over == self.kernel.threads):
            shared = "(u32*)nullptr"
            if s.over > _WARP:
                shared = self.scratch(dtype, _WARP)
            start = constant(identity(t.combine, dtype), dtype)
            reduced = f"block_reduce<{s.over}>({made}, j{name}, ({kind}){start}, {shared})"
            self.line(f"const {kind} {name} = {reduced};")
            return
        part, me = f"p{name}", f"r{THREAD}"
        self.line(f"{kind}* {part} = ({kind}*){self.scratch(dtype, self.kernel.threads)};")
        self.line(f"const int q{name} = {me} / {s.stride} % {s.over};")
        self.line("__syncthreads();")
        self.line(f"{part}[{me}] = {made};")
        self.line(f"for (int d = {s.over // 2}; d > 0; d /= 2) {{")
        other = f"{part}[{me} + d * {s.stride}]"
        self.line("  __syncthreads();")
        self.line(f"  if (q{name} < d) {part}[{me}] = j{name}({part}[{me}], {other});")
        self.line("}")
        self.line("__syncthreads();")
        self.line(f"const {kind} {name} = {part}[{me} - q{name} * {s.stride}];")

    def scratch(self, dtype: DType, count: int) -> str:
        """Shared memory that all reductions use in turn."""
        self.shared_bytes = max(self.shared_bytes, count * max(4, dtype.itemsize))
        return "(u32*)shared"

    # --- memory ----------------------------------------------------------------------------------

    def place(self, s: Load | Store | Atomic) -> str:
        return f"{s.buffer.name}[{self.index(s.at)}]"

    def element(self, s: Load) -> str:
        form = LAYOUTS[s.buffer.dtype].load if s.buffer.space == "global" else "{0}"
        return form.format(self.place(s))

    def vector(self, s: Load | Store) -> tuple[str, str]:
        """The type of a vector, and the vector in memory."""
        kind = f"Pack<{LAYOUTS[s.buffer.dtype].memory}, {1 + len(s.more)}>"
        at = self.index(s.at)
        return kind, f"*({'' if s.buffer.written else 'const '}{kind}*)({s.buffer.name} + {at})"

    def load_vector(self, s: Load) -> None:
        layout = LAYOUTS[s.buffer.dtype]
        kind, place = self.vector(s)
        self.line(f"const {kind} y{s.register} = {place};")
        for part, r in enumerate(s.registers):
            element = layout.load.format(f"y{s.register}.v[{part}]")
            self.line(f"const {layout.register} r{r} = {element};")

    def store_vector(self, s: Store) -> None:
        layout = LAYOUTS[s.buffer.dtype]
        made = [layout.store.format(self.value(e, s.buffer.dtype)) for e in s.values]
        kind, place = self.vector(s)
        self.line(f"{place} = {kind}{{{{{', '.join(made)}}}}};")

    def store(self, s: Store) -> None:
        if s.more:
            self.store_vector(s)
            return
        form = LAYOUTS[s.buffer.dtype].store if s.buffer.space == "global" else "{0}"
        made = form.format(self.value(s.value, s.buffer.dtype))
        self.line(f"{self.place(s)} = {made};")

    def atomic(self, s: Atomic) -> None:
        layout = LAYOUTS[s.buffer.dtype]
        if s.buffer.dtype.bits < 32:
            raise self.lacks(f"an atomic {s.fn} of {s.buffer.dtype}")
        value, place = self.value(s.value, s.buffer.dtype), self.place(s)
        if s.fn == "add":
            self.line(f"atomicAdd(({layout.word}*)&{place}, ({layout.word}){value});")
        else:
            self.line(f"atomicMax(&{place}, {value});")

    def fault(self, test: str, number: str, value: str) -> None:
        self.line(f"if ({test}) fault(faults, {number}, {value});")

    # --- the whole -------------------------------------------------------------------------------

    def run(self) -> WrittenKernel:
        k = self.kernel
        for b in k.buffers:
            self.w.pointer(LAYOUTS[b.dtype].memory, b.name, b.written)
        if self.checks:
            self.w.pointer("u64", "faults", written=True)
        for b in k.local:
            self.line(f"__shared__ {LAYOUTS[b.dtype].register} {b.name}[{b.size}];")
        self.line(f"const {self.kind} r{GROUP} = blockIdx.x, r{THREAD} = threadIdx.x;")
        for r, value in k.symbols.items():
            self.line(f"const {self.kind} r{r} = {self.w.number(value)};")
        self.statements(k.body)
        if self.shared_bytes:
            self.w.add(f"__shared__ alignas(16) char shared[{self.shared_bytes}];")
        self.w.add(*self.lines)
        written = self.w.finish(k.groups, k.threads)
        report.rendered_as(written.text.name, k)
        return written


def render(kernel: Kernel) -> WrittenKernel:
    """The kernel as text with its launch; pointers are its buffers in their order, then the words
    of faults if it checks values."""
    return _Renderer(kernel).run()

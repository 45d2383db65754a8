"""Kernels of the kernel language as CUDA C++: a group is a block."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from everygrad import dtypes
from everygrad.backends.cuda.source.c_types import HALVES, LAYOUTS
from everygrad.backends.cuda.source.render import body, cast, instruction
from everygrad.backends.cuda.source.writer import KernelWriter, WrittenKernel, magic
from everygrad.codegen import report
from everygrad.codegen.kernel import (
    GROUP,
    THREAD,
    Assign,
    Atomic,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Statement,
    Store,
    expressions,
    registers_in,
    statements,
)
from everygrad.codegen.render import TextRenderer
from everygrad.compiler.expr import Expr, Inst, Program
from everygrad.dtypes import DType

_WARP = 32
_SHARED_BYTES = 16 << 10  # of the reductions of a kernel
_NAME = 48  # letters of a kernel's name
_COARSE = re.compile(r"\b(normcdf|exp)\(")


def combined(combine: str, dtype: DType, a: str, b: str) -> str:
    return instruction(Inst(combine, dtype, (0, 1)), [a, b], [dtype, dtype])


def _only_stored(kernel: Kernel) -> set[int]:
    """The halves that nothing is computed from: storing them rounds."""
    uses = Counter(
        r for s in statements(kernel.body) for e in expressions(s) for r in registers_in(e)
    )
    made = {s.register for s in statements(kernel.body) if isinstance(s, Let) and not s.variable}
    return {
        e.value
        for s in statements(kernel.body)
        if isinstance(s, Store) and s.buffer.space == "global"
        for e in s.values
        if e.fn == "input" and uses[e.value] == 1 and e.value in made
        and kernel.registers[e.value] in HALVES
    }  # fmt: skip


def _warps(s: Reduce) -> int:
    """How many warps a reduction is over."""
    return s.over // min(s.over, max(1, _WARP // s.stride))


def _bytes_of(dtype: DType, places: int) -> int:
    return -(-places // _WARP * max(4, dtype.itemsize) // 16) * 16


class _Renderer(TextRenderer):
    device = "cuda"
    barrier = "__syncthreads();"

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel, 0)
        self.w = KernelWriter(kernel.name[:_NAME], kernel.index_dtype is dtypes.uint64)
        self.kind = LAYOUTS[kernel.index_dtype].register  # of indices
        self.shared_bytes = self.shared_at = 0  # of reductions
        self.reused = False  # whether reductions have the memory of earlier ones
        self.loops = self.barriers = 0  # around a statement, and of reductions beside it
        self.magic: dict[int, tuple[str, str]] = {}  # of sizes that indices are divided by
        self.only_stored = _only_stored(kernel)

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

    def let(self, s: Let) -> None:
        if s.register not in self.only_stored:
            super().let(s)
            return
        dtype = self.kernel.registers[s.register]
        self.declare(f"r{s.register}", dtype, self.value(s.value, dtype, s.precision))

    def stored(self, e: Expr, dtype: DType) -> str:
        """A value as it is stored; what is already rounded is not rounded again."""
        value, is_register = self.value(e, dtype), e.fn == "input"
        if dtype is dtypes.bfloat16 and is_register and e.value not in self.only_stored:
            return f"brain_top({value})"
        return LAYOUTS[dtype].store.format(value)

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
            m, shift = map(self.w.number, magic(known))
            parts = self.magic[size.value] = m, shift
        text = f"(u32)quotient((i32)r{above.value}, (u32){parts[0]}, (u32){parts[1]})"
        return text if e.fn == "floordiv" else f"r{above.value} - {text} * r{size.value}"

    # --- reductions ------------------------------------------------------------------------------

    def statements(self, body: Sequence[Statement]) -> None:
        outside, self.barriers = self.barriers, 0
        for s in body:
            self.barriers += isinstance(s, Reduce) and _warps(s) > 1
        super().statements(body)
        self.barriers = outside

    def loop(self, s: Loop) -> None:
        self.loops += 1
        loads = [part for part in s.body if isinstance(part, Load)]
        in_steps = isinstance(s.step, Expr) or s.step > 1
        is_sum = len(loads) == 1 and not loads[0].more and in_steps
        if is_sum and {type(part) for part in s.body} <= {Let, Load, Assign}:
            self.line("#pragma unroll 8")  # so that loads do not wait for each other
        super().loop(s)
        self.loops -= 1

    def reduce(self, s: Reduce) -> None:
        """Over a warp's threads by shuffles, then over warps in shared memory, where each warp has
        a place for each of its results."""
        threads, warps = self.kernel.threads, _warps(s)
        if threads % _WARP or (s.over & (s.over - 1)) or (s.stride & (s.stride - 1)):
            raise self.lacks(f"a reduction over {s.over} of {threads} threads, {s.stride} apart")
        inner, many = s.over // warps, min(s.stride, _WARP)
        if warps > 1:
            self.make_space([self.kernel.registers[t.register] for t in s.terms], threads * many)
        parts = []
        for t in s.terms:
            dtype, name = self.kernel.registers[t.register], f"r{t.register}"
            kind, made = LAYOUTS[dtype].register, self.value(t.value, dtype)
            text = combined(t.combine, dtype, "a", "b")
            self.line(f"auto j{name} = [&]({kind} a, {kind} b) -> {kind} {{ return {text}; }};")
            if inner > 1:
                made = f"warp_reduce<{inner}, {s.stride}>({made}, j{name})"
            self.line(f"{kind} {name} = {made};")
            if warps > 1:
                parts.append((kind, name, self.scratch(dtype, threads * many)))
        if warps == 1:
            return
        if self.reused or (self.loops and self.barriers < 2):
            self.line("__syncthreads();")  # whoever reads the last one has done so
        me, hop = f"r{THREAD}", max(1, s.stride // _WARP)
        store = "" if many == _WARP else f"if ({me} % {_WARP} < {many}) "
        for _, name, part in parts:
            self.line(f"{store}{part}[{me} / {_WARP} * {many} + {me} % {many}] = {name};")
        self.line("__syncthreads();")
        for kind, name, part in parts:
            first = f"{me} / {_WARP} - {me} / {_WARP * hop} % {warps} * {hop}"
            if s.stride == 1:
                self.line(f"{name} = {part}[{first} + {me} % {warps}];")
                self.line(f"{name} = warp_reduce<{warps}>({name}, j{name});")
                continue
            self.line(f"const {kind}* f{name} = {part} + ({first}) * {many} + {me} % {many};")
            self.line(f"{name} = f{name}[0];")
            self.line("#pragma unroll")
            self.line(f"for (int k = 1; k < {warps}; ++k)")
            self.line(f"  {name} = j{name}({name}, f{name}[k * {hop * many}]);")

    def make_space(self, dtypes: Sequence[DType], places: int) -> None:
        """Begin with the memory of the first reductions again, where much is used."""
        size = sum(_bytes_of(dtype, places) for dtype in dtypes)
        if self.shared_at and self.shared_at + size > _SHARED_BYTES:
            self.shared_at, self.reused = 0, True

    def scratch(self, dtype: DType, places: int) -> str:
        """Shared memory for one value of a reduction: a place for every 32 of so many."""
        at = self.shared_at
        self.shared_at += _bytes_of(dtype, places)
        self.shared_bytes = max(self.shared_bytes, self.shared_at)
        return f"(({LAYOUTS[dtype].register}*)(shared + {at}))"

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
        made = [self.stored(e, s.buffer.dtype) for e in s.values]
        kind, place = self.vector(s)
        self.line(f"{place} = {kind}{{{{{', '.join(made)}}}}};")

    def store(self, s: Store) -> None:
        if s.more:
            self.store_vector(s)
            return
        is_global = s.buffer.space == "global"
        made = (self.stored if is_global else self.value)(s.value, s.buffer.dtype)
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
        symbols = [*k.symbols]
        written = self.w.finish(k.groups, k.threads)._replace(
            divided=tuple(symbols.index(r) for r in self.magic)
        )
        report.rendered_as(written.text.name, k)
        return written


def render(kernel: Kernel) -> WrittenKernel:
    """The kernel as text with its launch; pointers are its buffers in their order, then the words
    of faults if it checks values."""
    return _Renderer(kernel).run()

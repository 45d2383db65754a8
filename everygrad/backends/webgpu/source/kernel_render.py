"""Kernels of the kernel language as WGSL: a group is a workgroup.

A buffer that is only read and written in vectors of four is an array of vectors. Elements smaller
than a word that are written one by one are written by two atomic operations on their word, since
threads next to each other may write its other parts. Reductions go through workgroup memory, in at
most two steps: sixteen threads combine what all threads of a team have, then every thread combines
what those sixteen have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from everygrad import dtypes
from everygrad.backends.webgpu.source.render import body, constant, instruction, slot, with_library
from everygrad.backends.webgpu.source.word_layout import layout, load
from everygrad.codegen import report
from everygrad.codegen.kernel import (
    GROUP,
    THREAD,
    Atomic,
    Buffer,
    Kernel,
    Let,
    Load,
    Reduce,
    Store,
    Term,
    When,
    statements,
)
from everygrad.codegen.render import TextRenderer
from everygrad.compiler.expr import Expr, Inst, Program, call
from everygrad.dtypes import DType

_VECTOR = 4  # elements of a vector
_ITEM = {1: "u32", 2: "vec2<u32>", 4: "vec4<u32>", 8: "vec4<u32>"}  # of so many bytes an element
_GATHERERS = 16  # threads that combine what all threads of a team have
_HALVES = {dtypes.float16: "half_round({})", dtypes.bfloat16: "brain_round({})"}
_ZERO = {"f": "0.0", "i": "0", "u": "0u", "b": "false", "l": "vec2<u32>()", "ul": "vec2<u32>()"}
_WORD = re.compile(r"\{b\}(\[[^]]*\])")  # where a form of `word_layout` reads a word


class RenderedKernel(NamedTuple):
    """Buffers it reads are bound before those it writes, and the words of faults, if it checks
    values, behind them."""

    name: str
    source: str
    groups: int
    symbols: tuple[int, ...]
    faults: bool = False
    read: int = 0  # buffers that it reads only

    def params(self, offsets: Sequence[int]) -> list[int]:
        """The words of its uniform; `offsets` are where the arrays it reads begin."""
        return [self.groups, *offsets, *self.symbols]


def _width(s: Load | Store) -> int:
    return 1 + len(s.more)


def combined(combine: str, dtype: DType, a: str, b: str) -> str:
    return instruction(Inst(combine, dtype, (0, 1)), [a, b], [dtype, dtype])


class _Renderer(TextRenderer):
    device = "webgpu"
    barrier = "workgroupBarrier();"

    def __init__(self, kernel: Kernel, offsets: bool) -> None:
        super().__init__(kernel, 1)
        self.shared_words = 0  # arrays that reductions need
        self.shares: dict[int, Expr] = {}  # registers that hold ndtr of another
        self.read = [b for b in kernel.buffers if not b.written]
        self.offsets = {b.name: slot(1 + i) for i, b in enumerate(self.read)} if offsets else {}
        self.vectors, self.atomics = self.find_forms()

    def find_forms(self) -> tuple[set[str], set[str]]:
        """The buffers that are arrays of vectors, and those whose words several threads change."""
        widths: dict[str, set[int]] = {}
        shared = set()
        for s in statements(self.kernel.body):
            if isinstance(s, Atomic):
                widths.setdefault(s.buffer.name, set()).add(1)
                shared.add(s.buffer.name)
            elif isinstance(s, Load | Store):
                widths.setdefault(s.buffer.name, set()).add(_width(s))
                is_part = isinstance(s, Store) and _width(s) % layout(s.buffer.dtype).per_word
                if is_part and s.buffer.space == "global":
                    shared.add(s.buffer.name)
        return {name for name, found in widths.items() if found == {_VECTOR}}, shared

    # --- values ----------------------------------------------------------------------------------

    def program(
        self, program: Program, given: dict[int, str], name: str, precision: str
    ) -> list[str]:
        lines = body(program, given, name, f"{name}_", precision == "low")
        return [text.strip() for text in lines]

    def value(self, e: Expr, dtype: DType, precision: str = "", name: str = "") -> str:
        if not name and e.fn == "const" and dtype is self.kernel.index_dtype:
            return constant(e.value, dtype)
        return super().value(self.with_shares(e), dtype, precision, name)

    def declare(self, name: str, dtype: DType, value: str, variable: bool = False) -> None:
        word = "var" if variable else "let"
        self.line(f"{word} {name}: {layout(dtype).register} = {value};")

    def counter(self, name: str, start: str) -> str:
        return f"var {name}: u32 = {start}"

    def step(self, by: int) -> str:
        return f"{by}u"

    def in_memory(self, value: str, dtype: DType) -> str:
        return _HALVES.get(dtype, "{}").format(value)

    def zero(self, dtype: DType) -> str:
        return _ZERO[layout(dtype).kind]

    def let(self, s: Let) -> None:
        dtype = self.kernel.registers[s.register]
        if s.value.fn == "ndtr" and s.value.args[0].fn == "input":
            self.shares[s.register] = s.value
        if s.variable or dtype in _HALVES or self.quotient(s.value):
            super().let(s)
        else:
            self.value(s.value, dtype, s.precision, f"r{s.register}")

    def with_shares(self, e: Expr) -> Expr:
        """x * y where y is a register that holds ndtr(x), with that in its place: the product is
        one function (`render.body`), since ndtr(x) may be subnormal where the product is not."""
        if e.fn != "mul" or e.args[1].fn != "input":
            return e
        share = self.shares.get(e.args[1].value)
        is_same = share is not None and share.args[0].value == e.args[0].value
        return Expr("mul", (share.args[0], share)) if share is not None and is_same else e

    def quotient(self, e: Expr) -> str | None:
        """An index divided by a size, or its remainder: sizes are not 0, which other divisors may
        be."""
        if e.fn not in ("floordiv", "mod") or any(a.fn != "input" for a in e.args):
            return None
        above, size = (a.value for a in e.args)
        sign = "/" if e.fn == "floordiv" else "%"
        return f"r{above} {sign} r{size}" if self.kernel.symbols.get(size) else None

    # --- memory ----------------------------------------------------------------------------------

    def place(self, s: Load) -> str:
        """The name of an index, with where the array begins."""
        at = self.index(s.at)
        if s.buffer.name not in self.offsets:
            return at
        self.count += 1
        self.line(f"let at{self.count} = {at} + {self.offsets[s.buffer.name]};")
        return f"at{self.count}"

    def load_vector(self, s: Load) -> None:
        if s.buffer.name in self.offsets:
            raise self.lacks("a vector of an array that begins anywhere")
        lay, name = layout(s.buffer.dtype), s.buffer.name
        at = self.place(s)
        self.count += 1
        held, size = f"q{self.count}", s.buffer.dtype.itemsize
        if name not in self.vectors:
            for part, r in enumerate(s.registers):
                self.line(f"let {held}_{part} = {at} + {part}u;")
                found = self.scalar(s.buffer, f"{held}_{part}")
                self.line(f"let r{r}: {lay.register} = {found};")
            return
        if size == 8:
            self.line(f"let h{held} = {at} >> 1u;")
            halves = [f"{name}[h{held}]", f"{name}[h{held} + 1u]"]
            words = ", ".join(f"{h}.{p}" for h in halves for p in "xyzw")
            self.line(f"var {held} = array<u32, 8>({words});")
        else:
            item = f"{name}[{at} >> 2u]"
            self.line(f"let {held} = {f'vec2<u32>({item}, 0u)' if size == 1 else item};")
        for part, r in enumerate(s.registers):
            found = load(s.buffer.dtype, held, f"{part}u")
            self.line(f"let r{r}: {lay.register} = {found};")

    def scalar(self, buffer: Buffer, at: str) -> str:
        """The element at a name."""
        if buffer.space == "shared":
            return f"{buffer.name}[{at}]"
        if buffer.name in self.atomics:
            form = _WORD.sub(r"atomicLoad(&{b}\1)", layout(buffer.dtype).load)
            return form.format(b=buffer.name, i=at)
        return load(buffer.dtype, buffer.name, at)

    def element(self, s: Load) -> str:
        return self.scalar(s.buffer, self.named(self.place(s)))

    def named(self, text: str) -> str:
        """A name for an index, which may be repeated."""
        if text.isidentifier() or text.endswith("u"):
            return text
        self.count += 1
        self.line(f"let v{self.count} = {text};")
        return f"v{self.count}"

    def atomic(self, s: Atomic) -> None:
        lay, fn = layout(s.buffer.dtype), "Add" if s.fn == "add" else "Max"
        if lay.words > 1 or lay.per_word > 1 or (fn == "Max" and lay.kind != "u"):
            raise self.lacks(f"an atomic {s.fn} of {s.buffer.dtype}")
        at, made = self.index(s.at), self.value(s.value, s.buffer.dtype)
        self.line(f"atomic{fn}(&{s.buffer.name}[{at}], {lay.bits.format(v=made)});")

    def fault(self, test: str, number: str, value: str) -> None:
        """Words: how many, the number of the first one's check, and its value."""
        self.line(f"if ({test}) {{ if (atomicAdd(&faults[0], 1u) == 0u) {{")
        self.line(f"  atomicStore(&faults[1], {number}); atomicStore(&faults[2], {value}.x);")
        self.line(f"  atomicStore(&faults[3], {value}.y);")
        self.line("} }")

    def store(self, s: Store) -> None:
        buffer, at = s.buffer, self.index(s.at)
        made = [self.value(e, buffer.dtype) for e in s.values]
        if buffer.name in self.vectors:
            self.store_vector(buffer, at, made)
        elif len(made) > 1 and layout(buffer.dtype).per_word > 1:
            self.store_words(buffer, at, made)
        else:
            for part, value in enumerate(made):
                self.store_element(buffer, f"({at} + {part}u)" if part else at, value)

    def store_vector(self, buffer: Buffer, at: str, made: Sequence[str]) -> None:
        words, kind = packed_words(buffer.dtype, made), _ITEM[buffer.dtype.itemsize]
        if len(words) == 8:
            for i in range(2):
                part = ", ".join(words[4 * i :][:4])
                self.line(f"{buffer.name}[({at} >> 1u) + {i}u] = {kind}({part});")
            return
        value = words[0] if len(words) == 1 else f"{kind}({', '.join(words)})"
        self.line(f"{buffer.name}[{at} >> 2u] = {value};")

    def store_words(self, buffer: Buffer, at: str, made: Sequence[str]) -> None:
        """Neighbours that fill words: these are written as they are."""
        for i, word in enumerate(packed_words(buffer.dtype, made)):
            place = f"{buffer.name}[{at} / {layout(buffer.dtype).per_word}u + {i}u]"
            is_atomic = buffer.name in self.atomics
            self.line(f"atomicStore(&{place}, {word});" if is_atomic else f"{place} = {word};")

    def store_element(self, buffer: Buffer, at: str, made: str) -> None:
        lay, name = layout(buffer.dtype), buffer.name
        if buffer.space == "shared":
            self.line(f"{name}[{at}] = {made};")
        elif lay.words == 2:
            self.line(f"{name}[2u * {at}] = {made}.x;")
            self.line(f"{name}[2u * {at} + 1u] = {made}.y;")
        elif lay.per_word == 1:
            bits = lay.bits.format(v=made)
            is_atomic = name in self.atomics
            place = f"{name}[{at}]"
            self.line(f"atomicStore(&{place}, {bits});" if is_atomic else f"{place} = {bits};")
        else:
            width = 32 // lay.per_word
            word = f"&{name}[{at} / {lay.per_word}u]"
            shift = f"(({at} % {lay.per_word}u) * {width}u)"
            self.line(f"atomicAnd({word}, ~({(1 << width) - 1}u << {shift}));")
            self.line(f"atomicOr({word}, ({lay.bits.format(v=made)}) << {shift});")

    # --- reductions ------------------------------------------------------------------------------

    def reduce(self, s: Reduce) -> None:
        registers = self.kernel.registers
        few, stride = min(s.over, _GATHERERS), s.stride
        q, base = f"r{THREAD}", "0u"
        if s.over * stride < self.kernel.threads or stride > 1:
            self.count += 1
            q, base = f"q{self.count}", f"b{self.count}"
            own = f"r{THREAD}" if stride == 1 else f"(r{THREAD} / {stride}u)"
            self.line(f"let {q} = {own} % {s.over}u;")
            self.line(f"let {base} = r{THREAD} - {q} * {stride}u;")
        arrays, used = [], 0
        for t in s.terms:
            arrays.append(used)
            used += layout(registers[t.register]).words
        self.shared_words = max(self.shared_words, used)
        values = [self.value(t.value, registers[t.register]) for t in s.terms]
        self.line("workgroupBarrier();")  # the reduction before has read its arrays
        for t, array, value in zip(s.terms, arrays, values, strict=True):
            self.share(registers[t.register], array, value)
        self.line("workgroupBarrier();")
        if s.over > few:
            self.line(f"if ({q} < {few}u) {{")
            for t, array in zip(s.terms, arrays, strict=True):
                self.gather(t, array, f"s{t.register}", base, q, (few, s.over), stride)
                self.share(registers[t.register], array, f"s{t.register}")
            self.line("}")
            self.line("workgroupBarrier();")
        for t, array in zip(s.terms, arrays, strict=True):
            self.gather(t, array, f"r{t.register}", base, "0u", (1, few), stride)

    def share(self, dtype: DType, array: int, value: str) -> None:
        """Store a register in the thread's place of shared memory."""
        if layout(dtype).words == 2:
            self.line(f"part{array}[r{THREAD}] = {value}.x;")
            self.line(f"part{array + 1}[r{THREAD}] = {value}.y;")
        else:
            self.line(f"part{array}[r{THREAD}] = bitcast<u32>({value});")

    def gather(
        self, t: Term, array: int, name: str, base: str, first: str, steps: tuple[int, int],
        stride: int,
    ) -> None:  # fmt: skip
        """Combine what threads `first`, `first` + step and so on of a team have stored. Threads
        that have nothing to do leave the loop at once, where a branch would not spare them."""
        dtype = self.kernel.registers[t.register]
        kind = layout(dtype).register

        def shared(slot: str) -> str:
            if layout(dtype).words == 2:
                return f"vec2<u32>(part{array}[{slot}], part{array + 1}[{slot}])"
            return f"bitcast<{kind}>(part{array}[{slot}])"

        step, end = steps
        times = f" * {stride}u" if stride > 1 else ""
        self.count += 1
        at = f"at{self.count}"
        self.line(f"let {at} = {base} + {first}{times};")
        self.line(f"var {name}: {kind} = {shared(at)};")
        self.line(f"for (var i = {first} + {step}u; i < {end}u; i = i + {step}u) {{")
        self.line(f"  let j = {base} + i{times};")
        self.line(f"  let m = {shared('j')};")
        self.line(f"  {name} = {combined(t.combine, dtype, name, 'm')};")
        self.line("}")

    def run(self) -> RenderedKernel:
        k = self.kernel
        ordered = self.read + [b for b in k.buffers if b.written]
        frame = []
        for i, b in enumerate(ordered):
            mode = "read_write" if b.written else "read"
            kind = _ITEM[b.dtype.itemsize] if b.name in self.vectors else "u32"
            kind = "atomic<u32>" if b.name in self.atomics else kind
            frame.append(f"@group(0) @binding({i}) var<storage, {mode}> {b.name}: array<{kind}>;\n")
        end = len(ordered)
        if self.checks:
            frame.append(
                f"@group(0) @binding({end}) var<storage, read_write> faults: array<atomic<u32>>;\n"
            )
            end += 1
        first = 1 + len(self.offsets)
        words = -(-(first + len(k.symbols)) // 4)
        frame.append(f"struct Params {{ v: array<vec4<u32>, {words}> }}\n")
        frame.append(f"@group(0) @binding({end}) var<uniform> P: Params;\n")
        for b in k.local:
            kind = layout(b.dtype).register
            frame.append(f"var<workgroup> {b.name}: array<{kind}, {b.size}>;\n")
        # what WGSL gives has names that no buffer has
        self.line(f"let r{GROUP} = GROUP.y * GROUPS.x + GROUP.x;")
        self.line(f"let r{THREAD} = THREAD;")
        whole = _threads_of_items(k)
        if whole is None:
            self.line(f"if (r{GROUP} >= {slot(0)}) {{ return; }}")
        for i, r in enumerate(k.symbols):
            self.line(f"let r{r} = {slot(first + i)};")
        self.statements(k.body if whole is None else k.body[:-1])
        if whole is not None:
            self.line(f"if (!{self.test(whole.condition)}) {{ return; }}")
            self.statements(whole.body)
        for i in range(self.shared_words):
            frame.append(f"var<workgroup> part{i}: array<u32, {k.threads}>;\n")
        main = (
            f"@compute @workgroup_size({k.threads}) fn main(\n"
            "    @builtin(workgroup_id) GROUP: vec3<u32>,\n"
            "    @builtin(num_workgroups) GROUPS: vec3<u32>,\n"
            "    @builtin(local_invocation_index) THREAD: u32) {\n"
        )
        text = main + "\n".join(self.lines) + "\n}\n"
        source = "".join(frame) + with_library(text)
        report.rendered_as(source, k)
        return RenderedKernel(
            k.name, source, k.groups, tuple(k.symbols.values()), self.checks, len(self.read)
        )


def _threads_of_items(kernel: Kernel) -> When | None:
    """The last statement, if it is all that a kernel does, for each item the thread of its number:
    threads and groups beyond the items, which a grid may have, do nothing."""
    own = call("add", call("mul", Expr("input", (), GROUP), kernel.threads),
               Expr("input", (), THREAD))  # fmt: skip
    *before, last = kernel.body
    if not isinstance(last, When) or not all(isinstance(s, Let) for s in before):
        return None
    if last.condition.fn != "lt" or any(a.fn != "input" for a in last.condition.args):
        return None
    item, count = (a.value for a in last.condition.args)
    named = any(
        isinstance(s, Let) and s.register == item and repr(s.value) == repr(own) for s in before
    )
    items = kernel.symbols.get(count, kernel.groups * kernel.threads + 1)
    return last if named and items <= kernel.groups * kernel.threads else None


def packed_words(dtype: DType, names: Sequence[str]) -> list[str]:
    """Elements packed into words as they are in memory."""
    lay = layout(dtype)
    if lay.words == 2:
        return [f"{name}.{half}" for name in names for half in "xy"]
    bits = [f"({lay.bits.format(v=name)})" for name in names]
    width = 32 // lay.per_word
    return [
        " | ".join(
            f"({b} << {width * i}u)" if i else b for i, b in enumerate(bits[at:][: lay.per_word])
        )
        for at in range(0, len(bits), lay.per_word)
    ]


def render(kernel: Kernel, offsets: bool = True) -> RenderedKernel:
    """The kernel as text with its launch. `offsets`: arrays that it reads begin anywhere."""
    return _Renderer(kernel, offsets).run()

"""Kernels of the kernel language as LLVM IR: a group is a block of a step, with one thread.

Sizes are constants here: shapes are known when code is written, and LLVM makes use of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from everygrad import dtypes
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Emitter, Value, engine
from everygrad.backends.cpu.llvm.loops import program_body
from everygrad.backends.cpu.llvm.work import Step, Work
from everygrad.codegen import report
from everygrad.codegen.kernel import (
    GROUP,
    THREAD,
    Assign,
    Assume,
    Atomic,
    Barrier,
    Break,
    Buffer,
    Fault,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Statement,
    Store,
    When,
    typed,
)
from everygrad.compiler.expr import Expr
from everygrad.dtypes import DType
from everygrad.errors import CompileError

_LINE = 64  # bytes: scratch memory of a group begins on a cache line


class _Renderer:
    def __init__(self, kernel: Kernel, order: Sequence[int | None]) -> None:
        self.kernel = kernel
        self.e = Emitter()
        self.variables: list[str] = []  # stack slots, which LLVM turns into registers
        self.values: dict[int, Value] = {}
        self.slots: dict[int, str] = {}
        self.pointers: dict[str, str] = {}
        self.labels = 0
        self.notes = ["!0 = distinct !{}"]  # the accesses of parallel loops
        self.in_parallel = False
        self.ends: list[str] = []  # labels behind the loops around
        self.argument = dict(zip(order, range(len(order)), strict=True))
        self.scratch = self.place_scratch()

    def place_scratch(self) -> int:
        """Bytes of scratch memory for each group."""
        self.offsets: dict[str, int] = {}
        total = 0
        for b in self.kernel.local:
            self.offsets[b.name] = total
            total += -(-b.size * b.dtype.itemsize // _LINE) * _LINE
        return total

    # --- values ----------------------------------------------------------------------------------

    def register(self, r: int) -> Value:
        if r in self.slots:
            kind = intrinsics.register_type(self.kernel.registers[r])
            return self.e.emit(kind, f"load {kind}, ptr {self.slots[r]}")
        return self.values[r]

    def value(self, x: Expr, dtype: DType) -> Value:
        program, used = typed(x, self.kernel.registers, dtype)
        given = {k: self.register(r) for k, r in enumerate(used)}
        with report.rendering("cpu", self.kernel):
            return program_body(self.e, program, given)

    def index(self, x: Expr) -> Value:
        return self.value(x, self.kernel.index_dtype)

    def quotient(self, x: Expr) -> Value | None:
        """An index divided by a size, or its remainder: sizes are not 0, which other divisors may
        be."""
        if x.fn not in ("floordiv", "mod") or self.kernel.index_dtype is not dtypes.uint64:
            return None
        above, size = x.args
        known = self.kernel.symbols.get(size.value, 0) if size.fn == "input" else size.value
        if above.fn != "input" or not known:
            return None
        word = "udiv" if x.fn == "floordiv" else "urem"
        return self.e.emit("i64", f"{word} i64 {self.register(above.value).name}, {known}")

    def address(self, buffer: Buffer, index: Expr) -> str:
        kind = intrinsics.memory_type(buffer.dtype)
        base, at = self.pointers[buffer.name], self.index(index)
        text = f"getelementptr inbounds {kind}, ptr {base}, i64 {at.name}"
        return self.e.emit("ptr", text).name

    # --- statements ------------------------------------------------------------------------------

    def block(self, body: Sequence[Statement]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Statement) -> None:
        registers = self.kernel.registers
        match s:
            case Let(variable=True):
                kind = intrinsics.register_type(registers[s.register])
                slot = self.slots[s.register] = f"%var{s.register}"
                self.variables.append(f"  {slot} = alloca {kind}")
                self.assign(s.register, s.value)
            case Let():
                made = self.quotient(s.value)
                self.values[s.register] = made or self.value(s.value, registers[s.register])
            case Assign():
                self.assign(s.register, s.value)
            case Load() if s.more:
                for part, register in enumerate(s.registers):
                    self.statement(s._replace(register=register, at=s.at + part, more=()))
            case Load(guard=None):
                self.values[s.register] = self.load(s)
            case Load():
                self.guarded_load(s)
            case Store() if s.guard is not None:
                self.when(s.guard, [s._replace(guard=None)])
            case Store():
                for part, value in enumerate(s.values):
                    self.store(Store(s.buffer, s.at + part if part else s.at, value))
            case When():
                self.when(s.condition, s.body)
            case Loop():
                self.loop(s)
            case Atomic():
                self.atomic(s)
            case Assume():
                pass
            case Break():
                test = self.value(s.condition, dtypes.bool_)
                on = self.label()
                self.e.lines += [f"  br i1 {test.name}, label %{self.ends[-1]}, label %{on}",
                                 f"{on}:"]  # fmt: skip
            case Fault():
                raise CompileError(
                    f"cpu: {self.kernel.name} needs a deferred check, which this device does not "
                    f"have: its checks are made before the op"
                )
            case Barrier() | Reduce():
                raise CompileError(
                    f"cpu: {self.kernel.name} needs a barrier, which this device does not have: "
                    f"its groups have one thread"
                )

    def assign(self, register: int, value: Expr) -> None:
        made = self.value(value, self.kernel.registers[register])
        self.e.lines.append(f"  store {made.type} {made.name}, ptr {self.slots[register]}")

    def mark(self) -> str:
        return ", !llvm.access.group !0" if self.in_parallel else ""

    def load(self, s: Load) -> Value:
        kind = intrinsics.memory_type(s.buffer.dtype)
        found = self.e.emit(kind, f"load {kind}, ptr {self.address(s.buffer, s.at)}{self.mark()}")
        if s.buffer.dtype is dtypes.bool_:
            return intrinsics.cast(self.e, found, dtypes.uint8, dtypes.bool_)
        return found

    def guarded_load(self, s: Load) -> None:
        assert s.guard is not None
        kind = intrinsics.register_type(s.buffer.dtype)
        slot = self.slots[s.register] = f"%var{s.register}"
        self.variables.append(f"  {slot} = alloca {kind}")
        zero = intrinsics.constant(s.buffer.dtype, 0)
        self.e.lines.append(f"  store {kind} {zero.name}, ptr {slot}")
        done = self.branch(s.guard)
        found = self.load(s)
        self.e.lines.append(f"  store {found.type} {found.name}, ptr {slot}")
        self.join(done)

    def store(self, s: Store) -> None:
        made = self.value(s.value, s.buffer.dtype)
        if s.buffer.dtype is dtypes.bool_:
            made = self.e.cast("zext", made, "i8")
        place = self.address(s.buffer, s.at)
        self.e.lines.append(f"  store {made.type} {made.name}, ptr {place}{self.mark()}")

    def atomic(self, s: Atomic) -> None:
        dtype = s.buffer.dtype
        made, place = self.value(s.value, dtype), self.address(s.buffer, s.at)
        fn = "add" if s.fn == "add" else "max" if dtype.kind == "int" else "umax"
        self.e.lines.append(f"  atomicrmw {fn} ptr {place}, {made.type} {made.name} monotonic")

    # --- control ---------------------------------------------------------------------------------

    def label(self) -> str:
        self.labels += 1
        return f"at{self.labels}"

    def branch(self, condition: Expr) -> str:
        """Go on where the condition holds; the label to join at."""
        test = self.value(condition, dtypes.bool_)
        inside, done = self.label(), self.label()
        self.e.lines += [f"  br i1 {test.name}, label %{inside}, label %{done}", f"{inside}:"]
        return done

    def join(self, done: str) -> None:
        self.e.lines += [f"  br label %{done}", f"{done}:"]

    def when(self, condition: Expr, body: Sequence[Statement]) -> None:
        done = self.branch(condition)
        self.block(body)
        self.join(done)

    def loop(self, s: Loop) -> None:
        start, stop = self.index(s.start), self.index(s.stop)
        step = s.step if isinstance(s.step, int) else self.index(s.step).name
        before, head, body, done = (self.label() for _ in range(4))
        at, after = f"%loop{s.register}", f"%next{s.register}"
        self.values[s.register] = Value("i64", at)
        lines = self.e.lines
        lines += [f"  br label %{before}", f"{before}:", f"  br label %{head}", f"{head}:"]
        mark = len(lines)
        test = self.e.emit("i1", f"icmp ult i64 {at}, {stop.name}")
        lines += [f"  br i1 {test.name}, label %{body}, label %{done}", f"{body}:"]
        outside, self.in_parallel = self.in_parallel, s.parallel
        self.ends.append(done)
        self.block(s.body)
        self.ends.pop()
        self.in_parallel = outside
        back = self.label()
        note = ""
        if s.parallel:
            note = f", !llvm.loop !{len(self.notes)}"
            self.notes.append(f"!{len(self.notes)} = distinct !{{!{len(self.notes)}, !access}}")
        lines += [f"  br label %{back}", f"{back}:", f"  {after} = add nuw nsw i64 {at}, {step}",
                  f"  br label %{head}{note}", f"{done}:"]  # fmt: skip
        lines.insert(mark, f"  {at} = phi i64 [ {start.name}, %{before} ], [ {after}, %{back} ]")

    # --- the whole -------------------------------------------------------------------------------

    def step(self) -> Step:
        k = self.kernel
        lines = self.e.lines
        for i, b in enumerate(k.buffers):
            at = self.argument[i]
            lines += [f"  %p{i}.at = getelementptr inbounds ptr, ptr %args, i64 {at}",
                      f"  %p{i} = load ptr, ptr %p{i}.at"]  # fmt: skip
            self.pointers[b.name] = f"%p{i}"
        if k.local:
            lines += [f"  %s.at = getelementptr inbounds ptr, ptr %args, i64 {len(k.buffers)}",
                      "  %s = load ptr, ptr %s.at"]  # fmt: skip
        lines += ["  br label %head", "head:",
                  "  %group = phi i64 [ %lo, %entry ], [ %next, %last ]",
                  "  %more = icmp ult i64 %group, %hi", "  br i1 %more, label %body, label %done",
                  "body:"]  # fmt: skip
        self.values[GROUP], self.values[THREAD] = Value("i64", "%group"), Value("i64", "0")
        for r, value in k.symbols.items():
            self.values[r] = Value("i64", str(value))
        if k.local:
            lines.append(f"  %own = mul i64 %group, {self.scratch}")
        for b in k.local:
            far = self.e.emit("i64", f"add i64 %own, {self.offsets[b.name]}").name
            self.pointers[b.name] = self.e.emit(
                "ptr", f"getelementptr inbounds i8, ptr %s, i64 {far}"
            ).name
        self.block(k.body)
        lines += ["  br label %last", "last:", "  %next = add nuw i64 %group, 1",
                  "  br label %head", "done:", "  ret void", "}"]  # fmt: skip
        access = len(self.notes)
        notes = [n.replace("!access", f"!{access}") for n in self.notes]
        notes.append(f'!{access} = !{{!"llvm.loop.parallel_accesses", !0}}')
        head = f"define void @step(i64 %lo, i64 %hi, ptr noalias %args) {engine().attributes} {{"
        parts = [*sorted(self.e.declarations), head, "entry:", *self.variables, *lines, *notes, ""]
        source = "\n".join(parts)
        report.rendered_as(source, k)
        return Step(source, k.groups)


def render(kernel: Kernel, order: Sequence[int | None]) -> Work:
    """The work of a kernel; `order` says which of its buffers are the arguments, in their order;
    None: an argument that other steps use."""
    renderer = _Renderer(kernel, order)
    return Work((renderer.step(),), renderer.scratch * kernel.groups)

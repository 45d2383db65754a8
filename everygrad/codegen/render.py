"""What the renderers into languages like C share: statements, and the names of what they compute.
Register k is called rk. A language adds how it declares, loads, stores and reduces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from everygrad import dtypes
from everygrad.codegen import report
from everygrad.codegen.kernel import (
    Assign,
    Assume,
    Atomic,
    Barrier,
    Break,
    Fault,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Statement,
    Store,
    When,
    statements,
    typed,
)
from everygrad.compiler.expr import Expr, Program
from everygrad.dtypes import DType
from everygrad.errors import CompileError


class TextRenderer(ABC):
    """Writes the body of a kernel, line by line."""

    device: str
    barrier: str

    def __init__(self, kernel: Kernel, depth: int) -> None:
        self.kernel, self.depth = kernel, depth
        self.lines: list[str] = []
        self.count = 0  # of names
        self.assigned = {s.register for s in statements(kernel.body) if isinstance(s, Assign)}
        self.checks = any(isinstance(s, Fault) for s in statements(kernel.body))

    # --- what a language adds --------------------------------------------------------------------

    @abstractmethod
    def program(
        self, program: Program, given: dict[int, str], name: str, precision: str
    ) -> list[str]:
        """The lines that compute a program from named registers."""

    @abstractmethod
    def declare(self, name: str, dtype: DType, value: str, variable: bool = False) -> None: ...

    @abstractmethod
    def in_memory(self, value: str, dtype: DType) -> str:
        """A value as memory would round it."""

    @abstractmethod
    def zero(self, dtype: DType) -> str: ...

    @abstractmethod
    def quotient(self, e: Expr) -> str | None:
        """An index divided by a size, or its remainder, where there is a faster way."""

    @abstractmethod
    def step(self, by: int) -> str: ...

    @abstractmethod
    def element(self, s: Load) -> str:
        """One element, read."""

    @abstractmethod
    def load_vector(self, s: Load) -> None: ...

    @abstractmethod
    def store(self, s: Store) -> None:
        """One without a guard."""

    @abstractmethod
    def atomic(self, s: Atomic) -> None: ...

    @abstractmethod
    def fault(self, test: str, number: str, value: str) -> None: ...

    @abstractmethod
    def reduce(self, s: Reduce) -> None: ...

    # --- values ----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def fresh(self, prefix: str = "v") -> str:
        """A name that nothing has."""
        self.count += 1
        return f"{prefix}{self.count}"

    def value(self, e: Expr, dtype: DType, precision: str = "", name: str = "") -> str:
        """The name of a register that holds it; the one that is given, or any."""
        if not name:
            if e.fn == "input" and self.kernel.registers[e.value] is dtype:
                return f"r{e.value}"
            name = self.fresh()
        program, used = typed(e, self.kernel.registers, dtype)
        given = {k: f"r{r}" for k, r in enumerate(used)}
        with report.rendering(self.device, self.kernel):
            lines = self.program(program, given, name, precision)
        for text in lines:
            self.line(text)
        return name

    def index(self, e: Expr) -> str:
        return self.value(e, self.kernel.index_dtype)

    def test(self, e: Expr) -> str:
        return self.value(e, dtypes.bool_)

    def settled(self, e: Expr) -> str:
        """An index as it is now: a variable may be assigned in the loop that it ends."""
        made = self.index(e)
        if e.fn != "input" or e.value not in self.assigned:
            return made
        name = self.fresh()
        self.declare(name, self.kernel.index_dtype, made)
        return name

    def rounded(self, e: Expr, dtype: DType, precision: str = "") -> str:
        """A value as memory would round it."""
        made = self.value(e, dtype, precision)
        is_plain = e.fn == "input" and self.kernel.registers[e.value] is dtype
        return made if is_plain else self.in_memory(made, dtype)

    # --- statements ------------------------------------------------------------------------------

    def block(self, body: Sequence[Statement], head: str) -> None:
        self.line(f"{head} {{")
        self.depth += 1
        self.statements(body)
        self.depth -= 1
        self.line("}")

    def statements(self, body: Sequence[Statement]) -> None:
        for s in body:
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Let():
                self.let(s)
            case Assign():
                made = self.rounded(s.value, self.kernel.registers[s.register])
                self.line(f"r{s.register} = {made};")
            case Load():
                self.load(s)
            case Store() if s.guard is not None:
                self.block([s._replace(guard=None)], f"if ({self.test(s.guard)})")
            case Store():
                self.store(s)
            case Atomic():
                self.atomic(s)
            case Fault():
                number, value = self.index(s.number), self.value(s.value, dtypes.int64)
                self.fault(self.test(s.condition), number, value)
            case Assume():
                pass
            case Break():
                self.line(f"if ({self.test(s.condition)}) {{ break; }}")
            case Loop():
                self.loop(s)
            case When():
                self.block(s.body, f"if ({self.test(s.condition)})")
            case Barrier():
                self.line(self.barrier)
            case Reduce():
                self.reduce(s)

    def let(self, s: Let) -> None:
        dtype = self.kernel.registers[s.register]
        made = self.quotient(s.value) or self.rounded(s.value, dtype, s.precision)
        self.declare(f"r{s.register}", dtype, made, s.variable)

    def load(self, s: Load) -> None:
        dtype, name = s.buffer.dtype, f"r{s.register}"
        if s.more:
            if s.guard is not None:
                raise self.lacks("a vector that is loaded under a guard")
            self.load_vector(s)
        elif s.guard is None:
            self.declare(name, dtype, self.element(s))
        else:
            self.declare(name, dtype, self.zero(dtype), variable=True)
            self.line(f"if ({self.test(s.guard)}) {{")
            self.depth += 1
            self.line(f"{name} = {self.element(s)};")
            self.depth -= 1
            self.line("}")

    def loop(self, s: Loop) -> None:
        start, stop = self.settled(s.start), self.settled(s.stop)
        step = self.settled(s.step) if isinstance(s.step, Expr) else self.step(s.step)
        at = f"r{s.register}"
        head = f"for ({self.counter(at, start)}; {at} < {stop}; {at} = {at} + {step})"
        self.block(s.body, head)

    @abstractmethod
    def counter(self, name: str, start: str) -> str:
        """The declaration of a loop's register."""

    def lacks(self, what: str) -> CompileError:
        return CompileError(
            f"{self.device}: {self.kernel.name} needs {what}, which this device does not have"
        )

"""The kernel language, and a builder that writes it.

A kernel runs `groups` independent groups of `threads` threads. Threads of a group share memory and
wait at barriers; groups share nothing. Registers are numbered and typed. Those that a loop or
`let` defines never change; a `variable` may be assigned. Expressions are those of `compiler.expr`,
in which input k is register k. Every index is a register of the kernel's index dtype, unsigned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from everygrad.compiler.expr import Expr, Program, as_expr, call, lower
from everygrad.dtypes import DType
from everygrad.errors import CompileError


class Buffer(NamedTuple):
    """Memory of `size` elements: an argument ("global"), or of each group: "shared" by its threads,
    or "scratch", which is too large for that and lies behind the arguments. `held`: one that is
    written and has values before."""

    name: str
    dtype: DType
    size: int
    space: str = "global"
    written: bool = False
    held: bool = False


class Let(NamedTuple):
    """Defines a register; a variable may be assigned later. `precision`: "exact" where every
    operation is rounded, so that the same bits come out wherever it is computed; "coarse" where
    functions accurate to 20 bits serve; "low" where exp is of what is not above 0, or NaN, and may
    be 0 instead of subnormal."""

    register: int
    value: Expr
    variable: bool = False
    precision: str = ""


class Assign(NamedTuple):
    register: int
    value: Expr


class Load(NamedTuple):
    """Defines a register; where the guard does not hold nothing is read, and it is 0. `more`
    registers get the elements behind it: a vector, which begins at a multiple of its width."""

    register: int
    buffer: Buffer
    at: Expr
    guard: Expr | None = None
    more: tuple[int, ...] = ()

    @property
    def registers(self) -> tuple[int, ...]:
        return (self.register, *self.more)


class Store(NamedTuple):
    """Where the guard does not hold nothing is written. `more` values go behind the first: a
    vector, which begins at a multiple of its width."""

    buffer: Buffer
    at: Expr
    value: Expr
    guard: Expr | None = None
    more: tuple[Expr, ...] = ()

    @property
    def values(self) -> tuple[Expr, ...]:
        return (self.value, *self.more)


class Atomic(NamedTuple):
    """An element becomes its sum with a value, or the larger of both ("add", "max"): of integers,
    so that the order in which threads come does not matter."""

    fn: str
    buffer: Buffer
    at: Expr
    value: Expr


class Fault(NamedTuple):
    """Where the condition holds a check has found a bad value: the first one of a launch is kept,
    with the number of the check, and raised when a result is read."""

    number: Expr
    value: Expr
    condition: Expr


class Assume(NamedTuple):
    """What was checked before the kernel runs: nothing is done to make it so."""

    condition: Expr


class Break(NamedTuple):
    """Leaves the innermost loop where the condition holds."""

    condition: Expr


class Loop(NamedTuple):
    """Over [start, stop) by `step`. `parallel`: its iterations are independent."""

    register: int
    start: Expr
    stop: Expr
    step: int | Expr
    body: tuple[Statement, ...]
    parallel: bool = False


class When(NamedTuple):
    condition: Expr
    body: tuple[Statement, ...]


class Barrier(NamedTuple):
    """All threads of a group arrive before any goes on; memory written before is seen after."""


class Term(NamedTuple):
    """One of the values that are reduced together: what it becomes, and how it is combined."""

    register: int
    value: Expr
    combine: str


class Reduce(NamedTuple):
    """Defines registers: the values of `over` threads, `stride` apart, combined, for all of these.
    All threads of the group arrive; the order depends on `over` alone."""

    terms: tuple[Term, ...]
    over: int
    stride: int = 1


Statement = (
    Let | Assign | Load | Store | Atomic | Fault | Assume | Break | Loop | When | Barrier | Reduce
)
GROUP, THREAD = 0, 1  # the registers every kernel has


class Kernel(NamedTuple):
    """`symbols` are registers whose value is an argument of the launch; `names`: what those are
    called, in order."""

    name: str
    index_dtype: DType
    buffers: tuple[Buffer, ...]  # those of space "global", in the order of arguments
    local: tuple[Buffer, ...]
    symbols: dict[int, int]
    registers: tuple[DType, ...]
    groups: int
    threads: int
    body: tuple[Statement, ...]
    names: tuple[Hashable, ...] = ()


def register_of(e: Expr) -> int:
    """The number of a register that stands by itself."""
    if e.fn != "input":
        raise TypeError(f"a register is wanted, not {e!r}")
    return int(e.value)


def is_flat(e: Expr) -> bool:
    """Whether it is one operation on registers and numbers, as most are."""
    for a in e.args:  # noqa: SIM110  # asked of every expression several times
        if a.args:
            return False
    return True


def registers_in(e: Expr) -> list[int]:
    """The registers of an expression, each once, in order of appearance."""
    if not e.args:
        return [e.value] if e.fn == "input" else []
    found: dict[int, None] = {}
    if is_flat(e):
        return list(dict.fromkeys([a.value for a in e.args if a.fn == "input"]))
    seen: set[int] = set()
    stack = [e]
    while stack:
        here = stack.pop()
        if here.fn == "input":
            found[here.value] = None
        elif here.args and id(here) not in seen:
            seen.add(id(here))
            stack.extend(reversed(here.args))
    return list(found)


def rebuilt(e: Expr, leaf: Callable[[int], Expr]) -> Expr:
    """The expression with its registers replaced."""
    known: dict[int, Expr] = {}
    stack = [(e, False)]
    while stack:
        here, ready = stack.pop()
        if id(here) in known:
            continue
        if here.fn == "input":
            known[id(here)] = leaf(here.value)
        elif ready or not here.args:
            args = tuple(known[id(a)] for a in here.args)
            known[id(here)] = Expr(here.fn, args, here.value)
        else:
            stack.append((here, True))
            stack.extend((a, False) for a in here.args)
    return known[id(e)]


_MOST_TYPED = 1 << 14
_typed: dict[tuple[Any, ...], Program] = {}  # most expressions of kernels are alike


def typed(
    e: Expr, registers: Sequence[DType], out: DType | None = None
) -> tuple[Program, list[int]]:
    """The expression as a program whose input k is the k-th of the registers that come with it."""
    places: dict[int, int] = {}
    key = (*_written(e, registers, places), out)
    program = _typed.get(key)
    if program is None:
        if len(_typed) >= _MOST_TYPED:
            _typed.clear()
        renamed = rebuilt(e, lambda r: Expr("input", (), places[r]))
        program = _typed[key] = lower(renamed, [registers[r] for r in places], out)
    return program, list(places)


def _written(e: Expr, registers: Sequence[DType], places: dict[int, int]) -> list[Any]:
    """The operations of an expression in order, by numbers: what equal ones have in common. Fills
    in the place of each register."""
    made: list[Any] = []
    if is_flat(e):
        for a in e.args or (e,):
            if a.fn == "input":
                made.append(places.setdefault(a.value, len(places)))
                made.append(registers[a.value])
            else:
                made.append(repr(a.value))
        return [e.fn, e.value if e.args else None, *made]
    known: dict[int, int] = {}
    stack = [(e, False)]
    while stack:
        here, ready = stack.pop()
        if id(here) in known:
            continue
        if not here.args:
            if here.fn == "input":
                place = places.setdefault(here.value, len(places))
                made.append((place, registers[here.value]))
            else:
                made.append((here.fn, repr(here.value)))
        elif ready:
            made.append((here.fn, here.value, *[known[id(a)] for a in here.args]))
        else:
            stack.append((here, True))
            stack.extend([(a, False) for a in reversed(here.args)])
            continue
        known[id(here)] = len(made)
    return made


def expressions(s: Statement) -> list[Expr]:
    """Those that a statement evaluates itself, not those of its body."""
    match s:
        case Let() | Assign():
            return [s.value]
        case Load():
            return [s.at] if s.guard is None else [s.at, s.guard]
        case Store():
            return [s.at, *s.values] if s.guard is None else [s.at, *s.values, s.guard]
        case Atomic():
            return [s.at, s.value]
        case Fault():
            return [s.number, s.value, s.condition]
        case Loop():
            return [s.start, s.stop, *([s.step] if isinstance(s.step, Expr) else [])]
        case When() | Break() | Assume():
            return [s.condition]
        case Barrier():
            return []
        case Reduce():
            return [t.value for t in s.terms]


def logical_and(*conditions: Expr) -> Expr:
    whole, *rest = conditions
    for c in rest:
        whole = call("and", whole, c)
    return whole


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All of them, those of loops and conditions included."""
    for s in body:
        yield s
        if isinstance(s, Loop | When):
            yield from statements(s.body)


def where(condition: Expr, yes: Any, no: Any) -> Expr:
    return call("select", condition, yes, no)


class Builder:
    """Writes one kernel. Methods that define a register return it as an expression. `open_sizes`:
    sizes are symbols, so that one text serves all."""

    def __init__(
        self, name: str, index: DType, groups: int, threads: int, open_sizes: bool = False
    ) -> None:
        self.name, self.index, self.open_sizes = name, index, open_sizes
        self.groups, self.threads = groups, threads
        self._registers: list[DType] = [index, index]
        self._buffers: list[Buffer] = []
        self._local: list[Buffer] = []
        self._symbols: dict[int, int] = {}
        self._named: dict[Hashable, int] = {}
        self._blocks: list[list[Statement]] = [[]]
        self.group, self.thread = Expr("input", (), GROUP), Expr("input", (), THREAD)

    def _register(self, dtype: DType) -> int:
        self._registers.append(dtype)
        return len(self._registers) - 1

    def _add(self, statement: Statement) -> None:
        self._blocks[-1].append(statement)

    # --- memory ----------------------------------------------------------------------------------

    def buffer(
        self, name: str, dtype: DType, size: int, written: bool = False, held: bool = False
    ) -> Buffer:
        """An argument, in the order of these calls."""
        self._buffers.append(Buffer(name, dtype, size, "global", written, held))
        return self._buffers[-1]

    def local(self, name: str, dtype: DType, size: int, space: str = "shared") -> Buffer:
        self._local.append(Buffer(name, dtype, size, space, True))
        return self._local[-1]

    def load(self, buffer: Buffer, index: Any, guard: Expr | None = None) -> Expr:
        r = self._register(buffer.dtype)
        self._add(Load(r, buffer, as_expr(index), guard))
        return Expr("input", (), r)

    def store(self, buffer: Buffer, index: Any, value: Any, guard: Expr | None = None) -> None:
        self._add(Store(buffer, as_expr(index), as_expr(value), guard))

    def load_vector(
        self, buffer: Buffer, index: Any, width: int, guard: Expr | None = None
    ) -> list[Expr]:
        """Neighbouring elements from a multiple of `width` on."""
        first, *more = [self._register(buffer.dtype) for _ in range(width)]
        self._add(Load(first, buffer, as_expr(index), guard, tuple(more)))
        return [Expr("input", (), r) for r in (first, *more)]

    def store_vector(
        self, buffer: Buffer, index: Any, values: Sequence[Any], guard: Expr | None = None
    ) -> None:
        first, *more = map(as_expr, values)
        self._add(Store(buffer, as_expr(index), first, guard, tuple(more)))

    def atomic(self, fn: str, buffer: Buffer, index: Any, value: Any) -> None:
        self._add(Atomic(fn, buffer, as_expr(index), as_expr(value)))

    def fault(self, number: Any, value: Any, condition: Expr) -> None:
        self._add(Fault(as_expr(number), as_expr(value), condition))

    # --- registers -------------------------------------------------------------------------------

    def symbol(self, value: int, name: Hashable = None) -> Expr:
        """A size that is an argument of the launch, so that one text serves all sizes. What is
        asked for again by a name is the same symbol."""
        r = self._named.get(name)
        if r is not None and self._symbols[r] != value:
            raise CompileError(f"{self.name}: {name} is {self._symbols[r]} and {value}")
        if r is None:
            r = self._register(self.index)
            self._symbols[r] = value
            if name is not None:
                self._named[name] = r
        return Expr("input", (), r)

    def size(self, value: int, name: Hashable) -> Expr:
        """A size as a number, or as a symbol of this name where sizes are open."""
        return self.symbol(value, name) if self.open_sizes else as_expr(value)

    def let(self, value: Any, dtype: DType | None = None) -> Expr:
        """A register; of the index dtype unless said otherwise."""
        return self._define(value, dtype or self.index, False)

    def variable(self, value: Any, dtype: DType) -> Expr:
        return self._define(value, dtype, True)

    def let_rounded(self, value: Expr, dtype: DType, precision: str) -> Expr:
        """A register whose value is computed in this precision (`Let`)."""
        return self._define(value, dtype, False, precision)

    def _define(self, value: Any, dtype: DType, variable: bool, precision: str = "") -> Expr:
        r = self._register(dtype)
        self._add(Let(r, as_expr(value), variable, precision))
        return Expr("input", (), r)

    def dtype_of(self, register: Expr) -> DType:
        return self._registers[register_of(register)]

    def reduce(self, values: Sequence[tuple[Expr, str]], over: int, stride: int = 1) -> list[Expr]:
        """Registers, each with how its values in `over` threads are combined."""
        if over == 1:
            return [value for value, _ in values]
        terms = []
        for value, combine in values:
            terms.append(Term(self._register(self.dtype_of(value)), value, combine))
        if terms:
            self._add(Reduce(tuple(terms), over, stride))
        return [Expr("input", (), t.register) for t in terms]

    def assign(self, variable: Expr, value: Any) -> None:
        self._add(Assign(register_of(variable), as_expr(value)))

    # --- control ---------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Any, stop: Any, step: int | Expr = 1, parallel: bool = False
    ) -> Iterator[Expr]:
        r = self._register(self.index)
        self._blocks.append([])
        yield Expr("input", (), r)
        body = tuple(self._blocks.pop())
        self._add(Loop(r, as_expr(start), as_expr(stop), step, body, parallel))

    @contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        self._blocks.append([])
        yield
        body = tuple(self._blocks.pop())
        self._add(When(condition, body))

    def assume(self, condition: Expr) -> None:
        """What the device has checked before."""
        self._add(Assume(condition))

    def leave(self, condition: Expr) -> None:
        """Leaves the innermost loop where the condition holds."""
        self._add(Break(condition))

    def barrier(self) -> None:
        if self.threads > 1:
            self._add(Barrier())

    def finish(self) -> Kernel:
        (body,) = self._blocks
        named = {r: name for name, r in self._named.items()}
        return Kernel(
            self.name, self.index, tuple(self._buffers), tuple(self._local), dict(self._symbols),
            tuple(self._registers), self.groups, self.threads, tuple(body),
            tuple(named.get(r) for r in self._symbols),
        )  # fmt: skip

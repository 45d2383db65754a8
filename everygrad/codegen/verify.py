"""Checks of kernels: definitions, types, bounds of every access, barriers that all threads reach.

Bounds are proven by intervals: a register lies between two numbers, which loops, symbols and guards
of the form `register < expression` say; and a loop that ends at `a - b` keeps b plus its register
below a. Of each register it is also known what it is a multiple of: a vector begins at a multiple
of its width, and a loop in steps of 4 to a multiple of 4 ends 4 before it. An access that cannot be
proven is refused; the lowering then names what it compares. What intervals cannot see, two threads
that write one place, is found by running kernels in `backends.reference.interpreter`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from everygrad import dtypes
from everygrad.codegen import show
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
    expressions,
    registers_in,
    statements,
    typed,
)
from everygrad.compiler.expr import Expr, as_expr
from everygrad.dtypes import DType
from everygrad.errors import CompileError

# whether kernels of fused groups, of which a program has hundreds, are verified when they are
# written: the tests say so, and users need not wait for it
VERIFY_GROUPS = False


class Interval(NamedTuple):
    """Both ends are included; None: not known."""

    low: int | None
    high: int | None


_UNKNOWN = Interval(None, None)


class Known(NamedTuple):
    """What is known of registers: where they lie, expressions that they are less than, and what
    they are multiples of."""

    ranges: dict[int, Interval]
    below: dict[int, tuple[Expr, ...]]
    defined: dict[int, Expr]
    multiples: dict[int, int]

    def copy(self) -> Known:
        return Known(dict(self.ranges), dict(self.below), dict(self.defined), dict(self.multiples))

    def having(self, register: int, found: Interval, multiple: int, *below: Expr) -> Known:
        made = self.copy()
        made.ranges[register] = found
        made.below[register] = below
        made.multiples[register] = multiple
        return made


def _sum(a: int | None, b: int | None, sign: int = 1) -> int | None:
    return None if a is None or b is None else a + sign * b


def _product(a: Interval, b: Interval) -> Interval:
    """Of numbers that are not negative."""
    if (a.low or 0) < 0 or (b.low or 0) < 0:
        return _UNKNOWN
    low = a.low * b.low if a.low is not None and b.low is not None else None
    high = a.high * b.high if a.high is not None and b.high is not None else None
    return Interval(low, high)


def _quotient(a: Interval, b: Interval) -> Interval:
    if not b.low:
        return _UNKNOWN
    low = a.low // b.high if a.low is not None and b.high else 0
    return Interval(low, a.high // b.low if a.high is not None else None)


def _remainder(a: Interval, b: Interval) -> Interval:
    if b.high is None:
        return _UNKNOWN
    if a.high is not None and b.low is not None and a.high < b.low:
        return a
    return Interval(0, b.high - 1)


def _least(a: Interval, b: Interval) -> Interval:
    ends = [x for x in (a.high, b.high) if x is not None]
    low = None if a.low is None or b.low is None else min(a.low, b.low)
    return Interval(low, min(ends, default=None))


def _most(a: Interval, b: Interval) -> Interval:
    ends = [x for x in (a.low, b.low) if x is not None]
    high = None if a.high is None or b.high is None else max(a.high, b.high)
    return Interval(max(ends, default=None), high)


def _either(a: Interval, b: Interval) -> Interval:
    low = None if a.low is None or b.low is None else min(a.low, b.low)
    high = None if a.high is None or b.high is None else max(a.high, b.high)
    return Interval(low, high)


def _sum_of(a: Interval, b: Interval) -> Interval:
    return Interval(_sum(a.low, b.low), _sum(a.high, b.high))


def _difference(a: Interval, b: Interval) -> Interval:
    """Indices are unsigned: what may be negative is not known."""
    low = _sum(a.low, b.high, -1)
    return _UNKNOWN if low is None or low < 0 else Interval(low, _sum(a.high, b.low, -1))


def _common_bits(a: Interval, b: Interval) -> Interval:
    ends = [x for x in (a.high, b.high) if x is not None]
    return Interval(0, min(ends)) if ends and a.low is not None and b.low is not None else _UNKNOWN


def _all_bits(a: Interval, b: Interval) -> Interval:
    """Of numbers that are not negative: no bit above the highest of both."""
    if a.low is None or b.low is None or a.high is None or b.high is None:
        return _UNKNOWN
    return Interval(0, (1 << max(a.high, b.high).bit_length()) - 1)


def _shifted_up(a: Interval, b: Interval) -> Interval:
    if a.low is None or b.low is None or a.high is None or b.high is None or b.high > 63:
        return _UNKNOWN
    return Interval(a.low << b.low, a.high << b.high)


def _shifted_down(a: Interval, b: Interval) -> Interval:
    if a.low is None or b.low is None:
        return _UNKNOWN
    return Interval(0, None if a.high is None else a.high >> b.low)


_RULES = {"add": _sum_of, "sub": _difference, "mul": _product, "floordiv": _quotient,
          "mod": _remainder, "min": _least, "max": _most, "and": _common_bits, "or": _all_bits,
          "xor": _all_bits, "shl": _shifted_up, "shr": _shifted_down}  # fmt: skip


def _of(dtype: DType) -> Interval:
    """What a number of this dtype can be."""
    return Interval(0, (1 << dtype.bits) - 1) if dtype.kind == "uint" else _UNKNOWN


def _converted(found: Interval, dtype: DType) -> Interval:
    """Unsigned numbers wrap around."""
    ends = _of(dtype)
    fits = found.low is not None and found.high is not None and ends.high is not None
    return found if fits and found.low >= 0 and found.high <= ends.high else ends  # type: ignore[operator]  # `fits`


def interval(e: Expr, known: Known) -> Interval:
    """Between which numbers an index lies."""
    low, high = _interval(e, known)
    if high and (step := multiple(e, known)):
        high -= high % step
    return Interval(low, high)


def _interval(e: Expr, known: Known) -> Interval:
    if e.fn == "const":
        is_int = isinstance(e.value, int) and not isinstance(e.value, bool)
        return Interval(e.value, e.value) if is_int else _UNKNOWN
    if e.fn == "input":
        return known.ranges.get(e.value, _UNKNOWN)
    if e.fn == "cast":
        return _converted(interval(e.args[0], known), e.value)
    if e.fn == "select":
        return _either(*(interval(a, known) for a in e.args[1:]))
    rule = _RULES.get(e.fn)
    if rule is None:
        return _UNKNOWN
    found = rule(*(interval(a, known) for a in e.args))
    if e.fn == "add" and e.args[0].fn == e.args[1].fn == "input":
        ends = [_end_of_sum(a, b, known) for a, b in (e.args, reversed(e.args))]
        found = _least(found, _least(*(Interval(found.low, end) for end in ends)))
    return found


def multiple(e: Expr, known: Known) -> int:
    """A number that an index is a multiple of; 0: the index is 0."""
    if e.fn == "const":
        return abs(e.value) if isinstance(e.value, int) and not isinstance(e.value, bool) else 1
    if e.fn == "input":
        return known.multiples.get(e.value, 1)
    if e.fn in ("add", "sub", "min", "max", "mod"):
        found = math.gcd(*(multiple(a, known) for a in e.args))
        # a difference below 0 wraps around at a power of two
        return found & -found if e.fn == "sub" else found
    if e.fn == "mul":
        return math.prod(multiple(a, known) for a in e.args)
    return math.gcd(*(multiple(a, known) for a in e.args[1:])) if e.fn == "select" else 1


def _end_of_sum(a: Expr, b: Expr, known: Known) -> int | None:
    """The most that a + b can be, where b is less than some c - a."""
    todo = list(known.below.get(b.value, ()))
    while todo:
        e = todo.pop()
        if e.fn == "input" and e.value in known.defined:
            todo.append(known.defined[e.value])
        elif e.fn == "min":
            todo.extend(e.args)
        elif e.fn == "sub" and e.args[1].fn == "input" and e.args[1].value == a.value:
            high = interval(e.args[0], known).high
            return None if high is None else high - 1
    return None


def refined(known: Known, condition: Expr) -> Known:
    """What is known where the condition holds."""
    if condition.fn == "and":
        return refined(refined(known, condition.args[0]), condition.args[1])
    if condition.fn not in ("lt", "le", "gt", "ge") or condition.args[0].fn != "input":
        return known
    register, other = condition.args[0].value, interval(condition.args[1], known)
    here = known.ranges.get(register, _UNKNOWN)
    if condition.fn in ("lt", "le"):
        end = None if other.high is None else other.high - (condition.fn == "lt")
        made = _least(here, Interval(here.low, end))
    else:
        end = None if other.low is None else other.low + (condition.fn == "gt")
        made = _most(here, Interval(end, here.high))
    found = known.copy()
    found.ranges[register] = made
    return found


class _Verifier:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.variables: set[int] = set()
        self.loops: list[bool] = []  # of those around: whether only some threads may have left it
        # registers that may differ between the threads of a group
        self.divergent: set[int] = {THREAD} if kernel.threads > 1 else set()

    def fail(self, s: Statement, why: str) -> None:
        line = show.statement(s)[0]
        raise CompileError(
            f"kernel {self.kernel.name}: {why}, in `{line}`; this is a fault of everygrad, please "
            f"report it with this text:\n{show.kernel(self.kernel)}"
        )

    def dtype_of(self, s: Statement, e: Expr, wanted: DType) -> None:
        """What is written must be of the dtype; what is made of numbers alone takes it on, and what
        is computed from halves is float32."""
        plain = e.fn == "const" or not (e.fn == "cast" or registers_in(e))
        found = wanted if plain else typed(e, self.kernel.registers)[0].dtype
        widened = found.is_float and found.itemsize == 2 and wanted is dtypes.float32
        if found is not wanted and not widened:
            self.fail(s, f"{show.expression(e)} is {found} where {wanted} is wanted")

    def access(self, s: Load | Store | Atomic, width: int, known: Known) -> None:
        buffer = s.buffer
        self.dtype_of(s, s.at, self.kernel.index_dtype)
        low, high = interval(s.at, known)
        if high is not None:
            high += width - 1
        if low is None or high is None or low < 0 or high >= buffer.size:
            self.fail(s, f"index from {low} to {high} of {buffer.name} with {buffer.size} elements")
        if multiple(s.at, known) % width:
            self.fail(s, f"a vector of {width} that may not begin at a multiple of {width}")

    def stored(self, s: Statement, buffer: Buffer, *values: Expr) -> None:
        for value in values:
            self.dtype_of(s, value, buffer.dtype)
        if not buffer.written:
            self.fail(s, f"{buffer.name} is not declared as written")

    def block(
        self, body: Sequence[Statement], defined: set[int], known: Known, uniform: bool
    ) -> None:
        defined, known = set(defined), known.copy()
        for s in body:
            for e in expressions(s):
                missing = [r for r in registers_in(e) if r not in defined]
                if missing:
                    self.fail(s, f"{show.register_name(missing[0])} is used before it is defined")
            self.statement(s, defined, known, uniform)

    def changes(self, e: Expr) -> bool:
        """Whether it may have another value later."""
        return any(r in self.variables for r in registers_in(e))

    def range_of(self, value: Expr, register: int, known: Known) -> Interval:
        """Where a register lies that gets this value."""
        dtype, found = self.kernel.registers[register], interval(value, known)
        if dtype is not self.kernel.index_dtype:
            return _converted(found, dtype)
        low, high = _of(dtype)
        return Interval(
            low if found.low is None else found.low, high if found.high is None else found.high
        )

    def varies(self, *parts: Expr) -> bool:
        return any(r in self.divergent for e in parts for r in registers_in(e))

    def statement(self, s: Statement, defined: set[int], known: Known, uniform: bool) -> None:
        match s:
            case Let():
                self.dtype_of(s, s.value, self.kernel.registers[s.register])
                self.define(s, s.register, defined)
                if s.variable:
                    self.variables.add(s.register)
                    known.ranges[s.register] = _of(self.kernel.registers[s.register])
                else:
                    known.ranges[s.register] = self.range_of(s.value, s.register, known)
                    known.multiples[s.register] = multiple(s.value, known)
                    if not self.changes(s.value):
                        known.defined[s.register] = s.value
                if self.varies(s.value):
                    self.divergent.add(s.register)
            case Assign():
                if s.register not in self.variables:
                    self.fail(s, f"{show.register_name(s.register)} is no variable")
                self.dtype_of(s, s.value, self.kernel.registers[s.register])
                if not uniform or self.varies(s.value):
                    self.divergent.add(s.register)
            case Load():
                inside = known if s.guard is None else self.guarded(s, s.guard, known)
                self.access(s, len(s.registers), inside)
                is_shared = not s.buffer.written and not self.varies(*expressions(s))
                for r in s.registers:
                    self.define(s, r, defined)
                    known.ranges[r] = _of(s.buffer.dtype)
                    if not is_shared:  # else the whole group reads one element
                        self.divergent.add(r)
            case Store():
                inside = known if s.guard is None else self.guarded(s, s.guard, known)
                self.access(s, len(s.values), inside)
                self.stored(s, s.buffer, *s.values)
            case Atomic():
                self.access(s, 1, known)
                self.stored(s, s.buffer, s.value)
                if not s.buffer.dtype.is_integer:
                    self.fail(s, f"{s.buffer.dtype} depends on the order of its threads")
            case Fault():
                self.dtype_of(s, s.number, self.kernel.index_dtype)
                self.dtype_of(s, s.value, dtypes.int64)
                self.dtype_of(s, s.condition, dtypes.bool_)
            case Assume():
                known.ranges.update(self.guarded(s, s.condition, known).ranges)
            case Break():
                self.dtype_of(s, s.condition, dtypes.bool_)
                if not self.loops:
                    self.fail(s, "there is no loop to leave")
                self.loops[-1] |= not uniform or self.varies(s.condition)
            case Loop():
                self.loop(s, defined, known, uniform)
            case When():
                inside = self.guarded(s, s.condition, known)
                self.block(s.body, defined, inside, uniform and not self.varies(s.condition))
            case Barrier():
                if not uniform:
                    self.fail(s, "a barrier that some threads may not reach")
            case Reduce():
                self.reduce(s, defined, uniform)

    def reduce(self, s: Reduce, defined: set[int], uniform: bool) -> None:
        if not uniform:
            self.fail(s, "a reduction that some threads may not reach")
        if s.over & (s.over - 1) or self.kernel.threads % (s.over * s.stride):
            self.fail(s, f"{s.over} of {self.kernel.threads} threads, {s.stride} apart")
        for t in s.terms:
            self.dtype_of(s, t.value, self.kernel.registers[t.register])
            self.define(s, t.register, defined)
            if s.over < self.kernel.threads:
                self.divergent.add(t.register)

    def loop(self, s: Loop, defined: set[int], known: Known, uniform: bool) -> None:
        for e in (s.start, s.stop):
            self.dtype_of(s, e, self.kernel.index_dtype)
        if isinstance(s.step, Expr):
            self.dtype_of(s, s.step, self.kernel.index_dtype)
        by = as_expr(s.step)
        least = interval(by, known).low
        if least is None or least < 1:
            self.fail(s, f"a step of {least}")
        low, high = interval(s.start, known).low, interval(s.stop, known).high
        step = math.gcd(multiple(s.start, known), multiple(by, known))
        last = max(1, math.gcd(multiple(s.stop, known), step))
        ends = Interval(low, None if high is None else high - last)
        same = uniform and not self.varies(s.start, s.stop, by)
        if self.varies(s.start, by):
            self.divergent.add(s.register)
        self.define(s, s.register, set(defined))
        below = () if self.changes(s.stop) else (s.stop,)
        inside = known.having(s.register, ends, step, *below)
        has_barriers = any(isinstance(part, Barrier | Reduce) for part in statements(s.body))
        again = True
        while again:  # what differs at the end of an iteration differs at the start of the next
            before = len(self.divergent)
            self.loops.append(False)
            self.block(s.body, defined | {s.register}, inside, same)
            if self.loops.pop():
                self.left_apart(s)
            again = has_barriers and len(self.divergent) > before

    def left_apart(self, s: Loop) -> None:
        """A loop that threads may leave one after the other: no barriers, and what it assigns
        differs."""
        for part in statements(s.body):
            if isinstance(part, Barrier | Reduce):
                self.fail(part, "a barrier in a loop that some threads may leave before")
            if isinstance(part, Assign):
                self.divergent.add(part.register)

    def define(self, s: Statement, register: int, defined: set[int]) -> None:
        if register in defined:
            self.fail(s, f"{show.register_name(register)} is defined twice")
        defined.add(register)

    def guarded(self, s: Statement, guard: Expr, known: Known) -> Known:
        self.dtype_of(s, guard, dtypes.bool_)
        found = refined(known, guard)
        for r in registers_in(guard):
            if r in self.variables:  # it may be assigned where the guard still holds
                found.ranges[r] = known.ranges[r]
        return found


def verify(kernel: Kernel) -> Kernel:
    """The kernel itself; CompileError if it is not sound."""
    ranges = {GROUP: Interval(0, kernel.groups - 1), THREAD: Interval(0, kernel.threads - 1)}
    ranges |= {r: Interval(v, v) for r, v in kernel.symbols.items()}
    multiples = dict(kernel.symbols)
    _Verifier(kernel).block(kernel.body, set(ranges), Known(ranges, {}, {}, multiples), True)
    return kernel


def verified_in_tests(kernel: Kernel) -> Kernel:
    """The kernel itself; CompileError if it is looked at, and is not sound."""
    return verify(kernel) if VERIFY_GROUPS else kernel

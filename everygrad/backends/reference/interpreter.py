"""Runs kernels of the kernel language in NumPy, all threads of many groups at once.

It finds what no driver reports: accesses outside a buffer, reads of what nobody wrote, and races:
two threads on one element, at least one of them writing, with no barrier between. An error names
the statement and the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad import dtypes
from everygrad.backends.reference.elementwise import FUNCTIONS, converted
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
    Term,
    When,
    typed,
)
from everygrad.compiler.expr import Expr, Inst, Program
from everygrad.dtypes import DType
from everygrad.errors import CompileError

_NOBODY = -1
_SEVERAL = -2
_AT_ONCE = 1 << 14  # threads that are run at once, at least those of one group


class KernelError(CompileError):
    """A kernel that goes outside its memory, reads what is not there, or races."""


class BadValue(NamedTuple):
    """What a check of a kernel found first."""

    number: int
    value: int


class _Memory:
    """One buffer, with who wrote and read each element last: threads of all groups are numbered
    through. What a thread did before its group's last barrier counts for other groups only."""

    def __init__(self, buffer: Buffer, array: Any, defined: bool, size: int) -> None:
        self.buffer, self.array = buffer, array
        self.size = size  # for each group, where they have one each
        self.defined = np.full(array.size, defined)
        self.atomic = np.zeros(array.size, bool)  # whether any thread changed it atomically
        self.writer, self.written = self.marks()
        self.reader, self.read = self.marks()
        self.reading = np.full(array.size, _NOBODY, np.int64)  # the group of those that read it

    def marks(self) -> tuple[Any, Any]:
        """Threads, and after how many barriers of their group they came."""
        return np.full(self.array.size, _NOBODY, np.int64), np.zeros(self.array.size, np.int64)

    def raced_by_writers(self, at: Any, who: Any, groups: Any, epochs: Any, threads: int) -> Any:
        """Where another thread wrote."""
        writer = self.writer[at]
        other = (writer != _NOBODY) & (writer != who)
        return other & ((writer // threads != groups) | (self.written[at] == epochs))

    def raced_by_readers(self, at: Any, who: Any, groups: Any, epochs: Any) -> Any:
        """Where another thread read."""
        reading = self.reading[at]
        far = (reading != _NOBODY) & (reading != groups)
        near = (reading == groups) & (self.read[at] == epochs) & (self.reader[at] != who)
        return far | near

    def note_readers(self, at: Any, who: Any, groups: Any, epochs: Any) -> None:
        if not at.size:
            return
        first, last = _first_and_last(at, groups)
        places, group = at[first], groups[first]
        before = self.reading[places]
        same = ((before == _NOBODY) | (before == group)) & (group == groups[last])
        self.reading[places] = np.where(same, group, _SEVERAL)
        first, last = _first_and_last(at, who)
        one, now = who[first], epochs[first]
        before = self.reader[places]
        free = (before == _NOBODY) | (self.read[places] != now) | (before == one)
        self.reader[places] = np.where(free & (one == who[last]), one, _SEVERAL)
        self.read[places] = now


def _first_and_last(at: Any, keys: Any) -> tuple[Any, Any]:
    """For each different place, in order: who has the smallest key there, and who the largest."""
    order = np.lexsort((keys, at))
    ends = np.flatnonzero(np.diff(at[order]))
    return order[np.append(0, ends + 1)], order[np.append(ends, at.size - 1)]


def _extreme(fn: Any) -> Any:
    """IEEE 754's: of zeros, 0.0 is above -0.0."""

    def of(x: Any, y: Any) -> Any:
        found = fn(x, y)
        if not np.issubdtype(found.dtype, np.floating):
            return found
        tied = (x == 0) & (y == 0)
        negative = np.signbit(x) & np.signbit(y)
        if fn is np.minimum:
            negative = np.signbit(x) | np.signbit(y)
        zero = np.where(negative, found.dtype.type(-0.0), found.dtype.type(0.0))
        return np.where(tied, zero, found)

    return of


_OWN: dict[str, Callable[..., Any]] = {
    **FUNCTIONS, "max": _extreme(np.maximum), "min": _extreme(np.minimum),
}  # fmt: skip


def _number(inst: Inst, args: list[Any], insts: Sequence[Inst]) -> Any:
    if inst.fn in ("bits", "unbits"):
        return args[0] if args[0].dtype == inst.dtype.np else args[0].view(inst.dtype.np)
    if inst.fn == "round" and inst.dtype.is_integer:
        return args[0]
    if inst.fn == "cast":
        return _converted(args[0], insts[inst.args[0]].dtype, inst.dtype)
    if inst.fn == "select":
        return np.where(args[0], args[1], args[2])
    return _OWN[inst.fn](*args)


def _converted(x: Any, source: DType, target: DType) -> Any:
    if target.is_integer or target is dtypes.bool_:
        return converted(x.astype(np.float64) if source.is_float else x, target.np)
    if source.is_complex and not target.is_complex:
        x = x.real
    return dtypes.rounded(x, target) if target is dtypes.bfloat16 else x.astype(target.np)


_Programs = dict[tuple[int, DType], tuple[Program, list[int]]]  # by the id of an expression


class _Threads:
    """All threads of some groups, which go through the kernel statement by statement."""

    def __init__(
        self, kernel: Kernel, groups: range, memory: dict[str, _Memory], programs: _Programs
    ) -> None:
        self.kernel, self.programs = kernel, programs
        self.memory = dict(memory)
        for b in kernel.local:
            whole = np.zeros(b.size * len(groups), b.dtype.np)
            self.memory[b.name] = _Memory(b, whole, False, b.size)
        index, threads = kernel.index_dtype.np, kernel.threads
        self.count = threads * len(groups)
        self.first = groups.start
        self.who = np.arange(self.count, dtype=np.int64) + groups.start * threads
        self.groups = self.who // threads
        self.epochs = np.zeros(len(groups), np.int64)
        self.left: list[Any] = []  # the threads that have left the loops around
        self.fault: BadValue | None = None
        self.values: dict[int, Any] = {
            GROUP: self.groups.astype(index), THREAD: (self.who % threads).astype(index)
        }  # fmt: skip
        self.values |= {r: np.full(self.count, v, index) for r, v in kernel.symbols.items()}

    def fail(self, s: Statement, thread: int, why: str) -> None:
        line = show.statement(s)[0]
        number = int(thread) % self.kernel.threads
        raise KernelError(
            f"kernel {self.kernel.name}, group {self.groups[thread]}: thread {number} {why}, in "
            f"`{line}`\n{show.kernel(self.kernel)}"
        )

    def epochs_of(self, threads: Any) -> Any:
        return self.epochs[self.groups[threads] - self.first]

    def evaluate(self, e: Expr, out: DType) -> Any:
        known = self.programs.get((id(e), out))
        if known is None:
            known = self.programs[id(e), out] = typed(e, self.kernel.registers, out)
        program, used = known
        found: list[Any] = []
        for inst in program.insts:
            if inst.fn == "input":
                found.append(self.values[used[inst.value]])
            elif inst.fn == "const":
                found.append(np.full(self.count, inst.value, inst.dtype.np))
            else:
                args = [found[a] for a in inst.args]
                with np.errstate(all="ignore"):
                    made = _number(inst, args, program.insts)
                found.append(np.asarray(made).astype(inst.dtype.np, copy=False))
        return found[-1]

    def where(self, guard: Expr | None, mask: Any) -> Any:
        return mask if guard is None else mask & self.evaluate(guard, dtypes.bool_)

    def define(self, register: int, value: Any, mask: Any) -> None:
        before = self.values.get(register)
        self.values[register] = value if before is None else np.where(mask, value, before)

    def run(self, body: Sequence[Statement], mask: Any) -> None:
        for s in body:
            self.statement(s, mask & ~self.left[-1] if self.left else mask)

    def statement(self, s: Statement, mask: Any) -> None:
        registers = self.kernel.registers
        match s:
            case Let() | Assign():
                self.define(s.register, self.evaluate(s.value, registers[s.register]), mask)
            case Load():
                inside = self.where(s.guard, mask)
                at = self.begin(s, len(s.registers), inside)
                for part, register in enumerate(s.registers):
                    self.load(s, at + at.dtype.type(part), inside, mask, register)
            case Store():
                inside = self.where(s.guard, mask)
                at = self.begin(s, len(s.values), inside)
                for part, value in enumerate(s.values):
                    self.store(s, at + at.dtype.type(part), value, inside)
            case Atomic():
                self.atomic(s, mask)
            case Fault():
                self.check(s, self.where(s.condition, mask))
            case Assume():
                wrong = mask & ~self.evaluate(s.condition, dtypes.bool_)
                if wrong.any():
                    self.fail(s, np.flatnonzero(wrong)[0], "does not find what it assumes")
            case Break():
                self.left[-1] |= self.where(s.condition, mask)
            case When():
                inside = self.where(s.condition, mask)
                if inside.any():
                    self.run(s.body, inside)
            case Loop():
                self.loop(s, mask)
            case Barrier():
                self.epochs += self.arrived(s, mask)
            case Reduce():  # of few threads it may be no barrier
                self.arrived(s, mask)
                found = [self.reduced(s, t) for t in s.terms]
                for t, value in zip(s.terms, found, strict=True):
                    self.define(t.register, value, mask)

    def begin(self, s: Load | Store, width: int, mask: Any) -> Any:
        """Where each thread's element or vector begins."""
        at = self.evaluate(s.at, self.kernel.index_dtype)
        odd = mask & (at % at.dtype.type(width) != 0)
        if odd.any():
            first = np.flatnonzero(odd)[0]
            self.fail(s, first, f"begins a vector of {width} at {at[first]}")
        return at

    def reduced(self, s: Reduce, t: Term) -> Any:
        """What each thread gets."""
        value = self.evaluate(t.value, self.kernel.registers[t.register])
        teams = value.reshape(-1, s.over, s.stride)
        found = teams[:, 0]
        for q in range(1, s.over):
            with np.errstate(all="ignore"):
                found = _OWN[t.combine](found, teams[:, q]).astype(value.dtype)
        return np.broadcast_to(found[:, None], teams.shape).reshape(-1)

    def arrived(self, s: Barrier | Reduce, mask: Any) -> Any:
        """Which groups come to it, and all of their threads with them."""
        arrived = mask.reshape(-1, self.kernel.threads)
        some = arrived.any(1) & ~arrived.all(1)
        if some.any():
            group = np.flatnonzero(some)[0]
            missing = np.flatnonzero(~arrived[group])[0]
            self.fail(s, group * self.kernel.threads + missing, "does not reach the barrier")
        return arrived.all(1)

    def check(self, s: Fault, inside: Any) -> None:
        if inside.any() and self.fault is None:
            first = int(np.flatnonzero(inside)[0])
            number = self.evaluate(s.number, self.kernel.index_dtype)[first]
            self.fault = BadValue(int(number), int(self.evaluate(s.value, dtypes.int64)[first]))

    def loop(self, s: Loop, mask: Any) -> None:
        index = self.kernel.index_dtype
        at, stop = self.evaluate(s.start, index), self.evaluate(s.stop, index)
        step = self.evaluate(s.step, index) if isinstance(s.step, Expr) else index.np.type(s.step)
        self.left.append(np.zeros(self.count, bool))
        while True:
            inside = mask & (at < stop) & ~self.left[-1]
            if not inside.any():
                break
            self.values[s.register] = at.copy()
            self.run(s.body, inside)
            at = (at + step).astype(index.np)
        self.left.pop()

    def places(self, s: Load | Store | Atomic, at: Any, mask: Any) -> tuple[Any, ...]:
        """The memory; the threads that access it, and where each of them does; who they are."""
        memory = self.memory[s.buffer.name]
        threads = np.flatnonzero(mask)
        found = at[threads]
        outside = found >= memory.size
        if outside.any():
            place = found[outside][0]
            self.fail(s, threads[outside][0], f"is at {place} of {memory.size} elements")
        places = found.astype(np.int64)
        groups = self.groups[threads]
        if s.buffer.space != "global":
            places += (groups - self.first) * memory.size
        return memory, threads, places, (self.who[threads], groups, self.epochs_of(threads))

    def load(self, s: Load, index: Any, inside: Any, mask: Any, register: int) -> None:
        memory, threads, at, who = self.places(s, index, inside)
        if not memory.defined[at].all():
            self.fail(s, threads[~memory.defined[at]][0], "reads what nobody wrote")
        raced = memory.raced_by_writers(at, *who, self.kernel.threads) | memory.atomic[at]
        if raced.any():
            self.fail(s, threads[raced][0], "reads what another one writes")
        if s.buffer.written:
            memory.note_readers(at, *who)
        value = np.zeros(self.count, s.buffer.dtype.np)
        value[threads] = memory.array[at]
        self.define(register, value, mask)

    def store(self, s: Store, index: Any, value: Expr, inside: Any) -> None:
        memory, threads, at, who = self.places(s, index, inside)
        made = self.evaluate(value, s.buffer.dtype)[threads]
        raced = _repeated(at) | memory.atomic[at]
        raced |= memory.raced_by_writers(at, *who, self.kernel.threads)
        raced |= memory.raced_by_readers(at, *who)
        if raced.any():
            self.fail(s, threads[raced][0], "writes what another one reads or writes")
        memory.array[at] = made
        memory.defined[at] = True
        memory.writer[at], memory.written[at] = who[0], who[2]

    def atomic(self, s: Atomic, inside: Any) -> None:
        index = self.evaluate(s.at, self.kernel.index_dtype)
        memory, threads, at, who = self.places(s, index, inside)
        made = self.evaluate(s.value, s.buffer.dtype)[threads]
        raced = memory.raced_by_writers(at, *who, self.kernel.threads)
        raced |= memory.raced_by_readers(at, *who)
        if raced.any():
            self.fail(s, threads[raced][0], "changes what another one reads or writes")
        if not memory.defined[at].all():
            self.fail(s, threads[~memory.defined[at]][0], "changes what nobody wrote")
        fn: Any = np.add if s.fn == "add" else np.maximum
        fn.at(memory.array, at, made)
        memory.atomic[at] = True


def _repeated(at: Any) -> Any:
    """Which places stand earlier in the list as well."""
    _, first = np.unique(at, return_index=True)
    found = np.ones(at.size, bool)
    found[first] = False
    return found


def run(kernel: Kernel, arrays: Sequence[Any]) -> BadValue | None:
    """Run a kernel on arrays, one for each of its buffers; those it writes are changed, and every
    element of them that it did not write must not be read afterwards. What its checks found."""
    memory = {}
    for buffer, array in zip(kernel.buffers, arrays, strict=True):
        flat = array.reshape(-1)
        if flat.size != buffer.size or flat.dtype != buffer.dtype.np:
            raise KernelError(
                f"kernel {kernel.name}: {buffer.name} is {buffer.dtype}[{buffer.size}], got "
                f"{flat.dtype}[{flat.size}]"
            )
        defined = buffer.held or not buffer.written
        memory[buffer.name] = _Memory(buffer, flat, defined, flat.size)
    programs: _Programs = {}
    fault: BadValue | None = None
    many = max(1, _AT_ONCE // kernel.threads)
    for start in range(0, kernel.groups, many):
        groups = range(start, min(start + many, kernel.groups))
        threads = _Threads(kernel, groups, memory, programs)
        threads.run(kernel.body, np.ones(threads.count, bool))
        fault = fault or threads.fault
    for buffer in kernel.buffers:
        if buffer.written and not memory[buffer.name].defined.all():
            missing = int(np.flatnonzero(~memory[buffer.name].defined)[0])
            raise KernelError(
                f"kernel {kernel.name}: element {missing} of {buffer.name} is never written\n"
                f"{show.kernel(kernel)}"
            )
    return fault

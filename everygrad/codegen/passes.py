"""Passes over kernels: constants of indices folded, equal ones computed once, and what a loop does
not change computed before it.

Only integers and conditions are touched: they are exact, so their order means nothing. Compilers of
C++ and LLVM IR do the same; drivers of WebGPU may not.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.codegen.kernel import (
    GROUP,
    THREAD,
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
    is_flat,
    typed,
)
from everygrad.compiler.expr import INTRINSICS, Expr
from everygrad.dtypes import DType

_EXACT: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "min": min, "max": max,
}  # fmt: skip
# what an operation with this number on the right gives: its left operand, or the number
_NEUTRAL = {("add", 0): "left", ("sub", 0): "left", ("mul", 1): "left", ("floordiv", 1): "left",
            ("mul", 0): 0, ("mod", 1): 0}  # fmt: skip
_COMMUTES = ("add", "mul")


def _is_int(e: Expr) -> bool:
    return e.fn == "const" and isinstance(e.value, int) and not isinstance(e.value, bool)


def folded(e: Expr) -> Expr:
    """One index operation whose arguments are folded already. Differences below 0 stay: unsigned
    numbers wrap around."""
    if e.fn not in _EXACT:
        return e
    left, right = e.args
    if _is_int(left) and _is_int(right):
        if e.fn not in ("floordiv", "mod") or right.value:
            value = _EXACT[e.fn](left.value, right.value)
            return e if value < 0 else Expr("const", (), value)
        return e
    if _is_int(left) and e.fn in _COMMUTES:
        left, right = right, left
    if not _is_int(right):
        return e
    found = _NEUTRAL.get((e.fn, right.value))
    if found is None:
        return e
    return left if found == "left" else Expr("const", (), found)


class _Scope:
    """A block that is being rewritten: what stands before the current statement, and what is known
    from here on."""

    def __init__(self) -> None:
        self.done: list[Statement] = []
        self.known: dict[Any, int] = {}


class _Passes:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.registers: list[DType] = list(kernel.registers)
        self.scopes: list[_Scope] = []
        # by register: how deep the block is that defines it; a variable is never moved
        self.depth: dict[int, int | None] = dict.fromkeys((GROUP, THREAD, *kernel.symbols), 0)

    # --- expressions -----------------------------------------------------------------------------

    def key(self, e: Expr) -> Any:
        if e.fn in ("input", "const"):
            return (e.fn, repr(e.value))
        return (e.fn, str(e.value), *map(self.key, e.args))

    def level(self, e: Expr) -> int | None:
        """The depth of the outermost block that could compute it; None: only where it stands."""
        if e.fn == "input":
            return self.depth[e.value]
        if e.fn in ("floordiv", "mod") and not _never_zero(e.args[1], self.kernel):
            return None
        levels = [self.level(a) for a in e.args]
        found = [x for x in levels if x is not None]
        return max(found, default=0) if len(found) == len(levels) else None

    def is_index(self, e: Expr) -> bool:
        if e.fn in ("input", "const"):
            return False
        while e.fn not in ("input", "const", "cast") and INTRINSICS[e.fn][1] != "bool":
            numbers = e.args[1:] if e.fn == "select" else e.args
            e = next((a for a in numbers if a.fn != "const"), numbers[0])
        if e.fn == "const":
            return isinstance(e.value, int)
        if e.fn not in ("input", "cast"):
            return True
        dtype = e.value if e.fn == "cast" else self.registers[e.value]
        return dtype is self.kernel.index_dtype or dtype is dtypes.bool_

    def rewritten(self, root: Expr) -> Expr:
        """The expression, shared parts visited once."""
        if not root.args or (is_flat(root) and not self.is_index(root)):
            return root
        memo: dict[int, Expr] = {}
        stack = [(root, False)]
        while stack:
            e, ready = stack.pop()
            if id(e) in memo:
                continue
            if ready or not e.args:
                memo[id(e)] = self.step(e, [memo[id(a)] for a in e.args])
            else:
                stack.append((e, True))
                stack.extend((a, False) for a in reversed(e.args))
        return memo[id(root)]

    def step(self, e: Expr, args: list[Expr]) -> Expr:
        """One operation on rewritten arguments."""
        if not args:
            return e
        made = folded(Expr(e.fn, tuple(args), e.value))
        if not made.args or not self.is_index(made):
            return made
        level = self.level(made)
        if level is None:
            return made
        key = self.key(made)
        for scope in self.scopes[: level + 1]:
            if key in scope.known:
                return Expr("input", (), scope.known[key])
        return self.placed(made, level, key) if level < len(self.scopes) - 1 else made

    def placed(self, e: Expr, level: int, key: Any) -> Expr:
        """A register defined in the block of this depth, before the statement that is there now."""
        dtype = typed(e, self.registers)[0].dtype
        self.registers.append(dtype)
        r = len(self.registers) - 1
        self.depth[r] = level
        self.scopes[level].done.append(Let(r, e))
        self.scopes[level].known[key] = r
        return Expr("input", (), r)

    def maybe(self, e: Expr | None) -> Expr | None:
        return None if e is None else self.rewritten(e)

    # --- statements ------------------------------------------------------------------------------

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        self.scopes.append(_Scope())
        for s in body:
            made = self.statement(s)  # may place registers before itself
            self.scopes[-1].done.append(made)
        return tuple(self.scopes.pop().done)

    def statement(self, s: Statement) -> Statement:
        depth = len(self.scopes) - 1
        match s:
            case Let():
                value = self.rewritten(s.value)
                self.depth[s.register] = None if s.variable else depth
                if not s.variable and self.is_index(value) and self.level(value) is not None:
                    self.scopes[-1].known.setdefault(self.key(value), s.register)
                return s._replace(value=value)
            case Assign():
                return s._replace(value=self.rewritten(s.value))
            case Load():
                index, guard = self.rewritten(s.at), self.maybe(s.guard)
                self.depth.update(dict.fromkeys(s.registers, depth))
                return s._replace(at=index, guard=guard)
            case Store():
                index, guard = self.rewritten(s.at), self.maybe(s.guard)
                more = tuple(map(self.rewritten, s.more))
                return s._replace(at=index, value=self.rewritten(s.value), guard=guard, more=more)
            case Atomic():
                return s._replace(at=self.rewritten(s.at), value=self.rewritten(s.value))
            case Fault():
                number, value = self.rewritten(s.number), self.rewritten(s.value)
                return s._replace(number=number, value=value, condition=self.rewritten(s.condition))
            case Break() | Assume():
                return s._replace(condition=self.rewritten(s.condition))
            case Loop():
                start, stop = self.rewritten(s.start), self.rewritten(s.stop)
                step = self.rewritten(s.step) if isinstance(s.step, Expr) else s.step
                self.depth[s.register] = depth + 1
                return s._replace(start=start, stop=stop, step=step, body=self.block(s.body))
            case When():
                condition = self.rewritten(s.condition)
                return s._replace(condition=condition, body=self.block(s.body))
            case Barrier():
                return s
            case Reduce():
                self.depth.update((t.register, depth) for t in s.terms)
                terms = tuple(t._replace(value=self.rewritten(t.value)) for t in s.terms)
                return s._replace(terms=terms)


def _never_zero(e: Expr, kernel: Kernel) -> bool:
    if e.fn == "input":
        return kernel.symbols.get(e.value, 0) > 0
    return _is_int(e) and e.value > 0


def optimised(kernel: Kernel) -> Kernel:
    """The same kernel with index arithmetic folded, shared and moved out of loops."""
    passes = _Passes(kernel)
    body = passes.block(kernel.body)
    return kernel._replace(body=body, registers=tuple(passes.registers))

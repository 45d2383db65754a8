"""Kernels as text that people read.

kernel double[float32] 2 groups x 4 threads
x: float32[8], out: float32[8] written
i = group * 4 + thread
when i < 7:
  v = x[i]
  out[i] = v * 2.0
"""

from __future__ import annotations

from collections.abc import Sequence

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
)
from everygrad.compiler.expr import Expr

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "eq": "==",
          "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
          "and": "and", "or": "or"}  # fmt: skip


def register_name(k: int) -> str:
    return {GROUP: "group", THREAD: "thread"}.get(k, f"r{k}")


def expression(e: Expr, nested: bool = False) -> str:
    if e.fn == "input":
        return register_name(e.value)
    if e.fn == "const":
        return repr(e.value)
    args = [expression(a, e.fn in _SIGNS) for a in e.args]
    if e.fn in _SIGNS:
        text = f" {_SIGNS[e.fn]} ".join(args)
        return f"({text})" if nested else text
    name = str(e.value) if e.fn == "cast" else e.fn
    return f"{name}({', '.join(args)})"


def _buffer(b: Buffer) -> str:
    words = [f"{b.name}: {b.dtype}[{b.size}]", b.space if b.space != "global" else ""]
    changed = "changed" if b.held else "written"
    words.append(changed if b.written and b.space == "global" else "")
    return " ".join(w for w in words if w)


def _if(guard: Expr | None) -> str:
    return "" if guard is None else f" if {expression(guard)}"


def _place(buffer: Buffer, at: Expr, width: int) -> str:
    """An element, or the vector of so many from it on."""
    return f"{buffer.name}[{expression(at)}{f':+{width}' if width > 1 else ''}]"


def statement(s: Statement) -> list[str]:
    """The lines of one statement."""
    match s:
        case Let():
            sign = ":=" if s.variable else "="
            end = f"  # {s.precision}" if s.precision else ""
            return [f"{register_name(s.register)} {sign} {expression(s.value)}{end}"]
        case Assign():
            return [f"{register_name(s.register)} <- {expression(s.value)}"]
        case Load():
            names = ", ".join(map(register_name, s.registers))
            return [f"{names} = {_place(s.buffer, s.at, len(s.registers))}{_if(s.guard)}"]
        case Store():
            values = ", ".join(map(expression, s.values))
            return [f"{_place(s.buffer, s.at, len(s.values))} = {values}{_if(s.guard)}"]
        case Atomic():
            place = f"{s.buffer.name}[{expression(s.at)}]"
            return [f"{place} = atomic {s.fn} {expression(s.value)}"]
        case Fault():
            found = f"{expression(s.number)}, {expression(s.value)}"
            return [f"fault({found}) if {expression(s.condition)}"]
        case Assume():
            return [f"assume {expression(s.condition)}"]
        case Break():
            return [f"break if {expression(s.condition)}"]
        case Loop():
            ends = f"{expression(s.start)}, {expression(s.stop)}"
            step = expression(s.step) if isinstance(s.step, Expr) else str(s.step)
            step = f", {step}" if step != "1" else ""
            kind = "parallel " if s.parallel else ""
            head = f"{kind}for {register_name(s.register)} in range({ends}{step}):"
            return [head, *_inside(s.body)]
        case When():
            return [f"when {expression(s.condition)}:", *_inside(s.body)]
        case Barrier():
            return ["barrier"]
        case Reduce():
            whom = f"{s.over} threads" + (f", {s.stride} apart" if s.stride != 1 else "")
            return [
                f"{register_name(t.register)} = {t.combine} of {expression(t.value)} over {whom}"
                for t in s.terms
            ]


def _inside(body: Sequence[Statement]) -> list[str]:
    return [f"  {line}" for s in body for line in statement(s)]


def kernel(k: Kernel) -> str:
    """A whole kernel."""
    head = f"kernel {k.name}: {k.groups} groups x {k.threads} threads, indices {k.index_dtype}"
    lines = [head, ", ".join(_buffer(b) for b in (*k.buffers, *k.local))]
    lines += [f"{register_name(r)} = {value}  # symbol" for r, value in k.symbols.items()]
    return "\n".join([*lines, *(line for s in k.body for line in statement(s))]) + "\n"

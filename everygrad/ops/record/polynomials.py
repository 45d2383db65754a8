"""Polynomials of scalars, and their derivatives: of the rules that can be differentiated again as
one op, since the derivative of a polynomial is one too.

>>> x, y = Expr.inputs(2)
>>> derivative(x * y * y, 1, Expr("input", (), 2))
add(mul(mul(x0, x2), x1), mul(mul(x0, x1), x2))
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from everygrad.compiler.expr import Expr

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
}


def is_polynomial(e: Expr) -> bool:
    """Whether an expression is made of sums and products alone."""
    return e.fn in ("input", "const") or (e.fn in _FUNCTIONS and all(map(is_polynomial, e.args)))


def operations(e: Expr) -> int:
    """How many sums and products an expression has."""
    return len(e.args) and 1 + sum(map(operations, e.args))


def derivative(e: Expr, at: int, g: Expr) -> Expr | None:
    """The derivative of a polynomial by input number `at`, times g; None where it is zero."""
    if e.fn in ("input", "const"):
        return g if e.fn == "input" and e.value == at else None
    found = [derivative(a, at, g) for a in e.args]
    if e.fn == "neg":
        return None if found[0] is None else -found[0]
    left, right = found
    if e.fn == "mul":
        left = None if left is None else left * e.args[1]
        right = None if right is None else e.args[0] * right
    elif e.fn == "sub" and right is not None:
        return -right if left is None else left - right
    return right if left is None else left if right is None else left + right


def evaluate(e: Expr, values: Sequence[Any]) -> Any:
    """A polynomial of tensors, or of expressions."""
    if e.fn == "input":
        return values[e.value]
    if e.fn == "const":
        return e.value
    return _FUNCTIONS[e.fn](*[evaluate(a, values) for a in e.args])

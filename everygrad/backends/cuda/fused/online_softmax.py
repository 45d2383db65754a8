"""The maximum of a row and the sum of exp(x - maximum) in one pass over it, not two.

A thread's sum is relative to the largest element it has seen so far; a larger one rescales the sum.
Elements are taken a vector at a time. Rows too long for registers are so read once less.
"""

from __future__ import annotations

from everygrad import dtypes
from everygrad.compiler.groups import Member
from everygrad.compiler.ir import Value


def pairs(members: dict[Value, Member]) -> dict[Value, Value]:
    """By sum of exponentials: the maximum that its terms are relative to."""
    found: dict[Value, Value] = {}
    for v, m in members.items():
        exponential = members.get(m.refs[0]) if isinstance(m.refs[0], Value) else None
        if m.role != "reduce" or not v.op.is_sum or not _is(exponential, "exp"):
            continue
        difference = members.get(exponential.refs[0])  # type: ignore[union-attr]  # it is "exp"
        if not _is(difference, "sub"):
            continue
        x, top = difference.refs  # type: ignore[union-attr]  # it is "sub"
        maximum = members.get(top) if isinstance(top, Value) else None
        if maximum is None or maximum.role != "reduce" or maximum.value.op.combine != "max":
            continue
        if maximum.refs[0] == x and maximum.value not in found.values():
            found[v] = maximum.value
    return found


def _is(m: Member | None, intrinsic: str) -> bool:
    """Whether a member is this scalar function of float32."""
    if m is None or m.value.dtype is not dtypes.float32:
        return False
    return bool(m.value.op.intrinsic() == intrinsic)


def update(top: str, total: str, high: str) -> list[str]:
    """The lines that take the largest of some elements, before these are added. While all are -inf,
    0 is subtracted: exp(-inf) is 0, as it will be once a larger one has come."""
    return [
        f"if (!({high} <= {top})) {{",
        f"  const float up = max_f({top}, {high});",
        f"  {total} *= exp({top} - up);",
        f"  {top} = from_{top} = up;",
        "}",
    ]


def add(top: str, total: str, x: str) -> str:
    """The line that adds an element."""
    return f"{total} += exp({x} - from_{top});"

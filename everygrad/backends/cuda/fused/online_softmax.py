"""The maximum of a row and the sum of exp(x - maximum) in one pass over it, not two.

A thread's sum is relative to the largest element it has seen so far; a larger one rescales the sum.
Elements are taken a vector at a time. Rows too long for registers are so read once less. Which sums
these are, `compiler.schedule.online_sums` says.
"""

from __future__ import annotations


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


def add(top: str, total: str, x: str, rounded: bool) -> str:
    """The line that adds an element; of one that was `rounded` to 16 bits, an exponential of 22
    bits: the sum of a row is as good as float32's."""
    return f"{total} += {'exp_low' if rounded else 'exp'}({x} - from_{top});"

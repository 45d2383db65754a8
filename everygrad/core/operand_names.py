"""The operands of elementwise functions under PyTorch's names: `input`, `other`, `exponent`."""

from __future__ import annotations

from typing import Any

from everygrad.core.op import ElementwiseOp
from everygrad.errors import ArgumentError

ABSENT = object()  # where a call gave no tensor


def in_one_word(op: str, own: str, here: Any, theirs: str, given: Any) -> Any:
    """The tensor that a call names in PyTorch's way, unless it names it in ours as well."""
    if here is not ABSENT:
        raise ArgumentError(f"{op}: {theirs} and {own} are the same parameter; give one of them")
    return given


def missing_operand(op: str, name: str) -> TypeError:
    return TypeError(f"{op}() missing a required argument: {name!r}")


def scaled(op: ElementwiseOp, y: Any, alpha: Any) -> Any:
    """The second operand times PyTorch's `alpha`, which sums and differences have."""
    if not op.takes_alpha:
        raise TypeError(f"{op.name}() takes two tensors; alpha= is for add and subtract")
    if y is ABSENT:
        raise missing_operand(op.name, "y")
    return y if type(alpha) is int and alpha == 1 else y * alpha


def power(op: ElementwiseOp, y: Any, exponent: Any) -> Any:
    """The second operand of `pow`, which PyTorch calls the exponent."""
    if not op.takes_exponent:
        raise TypeError(f"{op.name}() got an unexpected keyword argument 'exponent'")
    return in_one_word(op.name, "y", y, "exponent", exponent)

"""Which calls are tame: results neither too large nor NaN, and no input at a jump or a kink.

Two correct ways to compute a value differ by rounding. Where a result jumps (a comparison of near
numbers, the largest of two that nearly tie) rounding decides it, and nothing can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from devtools.fuzz.program import Step, replaced
from everygrad.autograd import grad
from everygrad.ops.python.creation import ones_like, tensor
from everygrad.ops.record.spec import REGISTRY

GAP = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2}
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
LARGEST, LARGEST_INTEGER = 60.0, 1 << 20

Inputs = list[Any]
Guard = Callable[[Step, Inputs, float], bool]


def tame(step: Step, inputs: Inputs, out: Any) -> bool:
    """Whether this call may be part of a program; values are NumPy arrays."""
    if not is_small(out):
        return False
    guard = GUARDS.get(step.op)
    if guard is None:
        if step.op not in REGISTRY or REGISTRY[step.op].family != "elementwise":
            return True
        guard = _smooth
    floats = [a for a in inputs if is_float(a)]
    gap = max((GAP[a.dtype.name] for a in floats), default=0.0)
    with np.errstate(all="ignore"):
        return guard(step, inputs, gap)


def is_float(a: Any) -> bool:
    return a.dtype.name in GAP


def is_small(out: Any) -> bool:
    if not out.size or out.dtype.kind == "b":
        return True
    wide = np.abs(out) if out.dtype.kind == "c" else out.astype(np.float64)
    limit = LARGEST if is_float(out) or out.dtype.kind == "c" else LARGEST_INTEGER
    return bool(np.isfinite(wide).all() and np.abs(wide).max() <= limit)


def _least(distance: Any, gap: float) -> bool:
    """Whether all distances are larger than the gap."""
    return bool(np.asarray(distance, dtype=np.float64).min(initial=np.inf) > gap)


def _wide(a: Any) -> Any:
    return np.asarray(a).astype(np.float64)


def _from_zero(step: Step, inputs: Inputs, gap: float) -> bool:
    return not is_float(inputs[0]) or _least(np.abs(_wide(inputs[0])), gap)


def _from_integers(step: Step, inputs: Inputs, gap: float) -> bool:
    x = _wide(inputs[0])
    return not is_float(inputs[0]) or _least(np.abs(x - np.round(x)), gap)


def _from_halves(step: Step, inputs: Inputs, gap: float) -> bool:
    x = _wide(inputs[0])
    return _least(np.abs(x - np.floor(x) - 0.5), gap)


def _apart(step: Step, inputs: Inputs, gap: float) -> bool:
    """Two operands that never come near each other; a number among the arguments counts."""
    if not any(map(is_float, inputs)):
        return True
    numbers = [a for a in step.args if isinstance(a, int | float)]
    x, y = [*inputs, *numbers][:2]
    return _least(np.abs(_wide(x) - _wide(y)), gap)


def _ratio(step: Step, inputs: Inputs, gap: float) -> bool:
    numbers = [a for a in step.args if isinstance(a, int | float)]
    x, y = [*inputs, *numbers][:2]
    if not _least(np.abs(_wide(y)), 0.1):
        return False
    ratio = _wide(x) / _wide(y)
    return not any(map(is_float, inputs)) or _least(np.abs(ratio - np.round(ratio)), 100 * gap)


def _from_bounds(step: Step, inputs: Inputs, gap: float) -> bool:
    bounds = [b for b in (step.kwargs.get("min"), step.kwargs.get("max")) if b is not None]
    return all(_least(np.abs(_wide(inputs[0]) - b), gap) for b in bounds)


def _distinct(step: Step, inputs: Inputs, gap: float) -> bool:
    """No two elements near each other; integers may tie, for they are exact."""
    if not is_float(inputs[0]):
        return True
    return _least(np.diff(np.sort(_wide(inputs[0]).reshape(-1))), gap)


def _spread(step: Step, inputs: Inputs, gap: float) -> bool:
    """Rows whose elements differ: a deviation near zero has an infinite derivative."""
    axis = step.kwargs.get("axis", -1 if step.op == "standardize" else None)
    if "normalized_shape" in step.kwargs:
        axis = tuple(range(-len(step.kwargs["normalized_shape"]), 0))
    return _least(np.std(_wide(inputs[0]), axis=axis), 0.05) if inputs[0].size else False


def _smooth(step: Step, inputs: Inputs, gap: float) -> bool:
    """An elementwise op without a guard of its own: values and slopes on both sides of the inputs
    are nearly the same, also where the inputs move against each other."""
    if not any(map(is_float, inputs)):
        return True
    here = _sides(step, inputs, 0.0, 0.0)
    sides = [_sides(step, inputs, s * gap, t * gap) for s, t in ((1, 1), (-1, -1), (1, -1))]
    near = 1e-3 + 20 * gap
    for side in sides:
        for a, b in zip(side, here, strict=True):
            if not np.all(np.abs(a - b) <= near * (1.0 + np.abs(b))):
                return False
    return True


def _sides(step: Step, inputs: Inputs, first: float, others: float) -> list[Any]:
    """The result and its slopes with the first input moved so far, the others otherwise."""
    moved = [
        tensor(_wide(a) + (others if i else first), requires_grad=True)
        if is_float(a)
        else tensor(a)
        for i, a in enumerate(inputs)
    ]
    supply = iter(moved)
    args = replaced(step.args, lambda r: next(supply))
    kwargs = {k: replaced(v, lambda r: next(supply)) for k, v in step.kwargs.items()}
    out = REGISTRY[step.op].function(*args, **kwargs)
    found = [_wide(out.detach().numpy())]
    if out.requires_grad:
        leaves = [t for t in moved if t.requires_grad]
        slopes = grad([out], leaves, [ones_like(out)], allow_unused=True)
        found += [_wide(g.numpy()) for g in slopes if g is not None]
    return found


def _dtype(step: Step, inputs: Inputs, gap: float) -> bool:
    target = step.args[1] if len(step.args) > 1 else step.kwargs["dtype"]
    if target == "bool":
        return _from_zero(step, inputs, gap)
    return _from_integers(step, inputs, gap) if target == "int64" else True


GUARDS: dict[str, Guard] = {
    **dict.fromkeys(("abs", "relu", "sign"), _from_zero),
    **dict.fromkeys(("floor", "ceil", "trunc"), _from_integers),
    "round": _from_halves,
    **dict.fromkeys(("maximum", "minimum", *COMPARISONS), _apart),
    **dict.fromkeys(("floor_divide", "remainder"), _ratio),
    "clamp": _from_bounds,
    **dict.fromkeys(("max", "min", "argmax", "argmin", "max_pool2d"), _distinct),
    **dict.fromkeys(("std", "standardize", "layer_norm"), _spread),
    "astype": _dtype,
}

"""Elementwise bodies by NumPy in wide numbers, with a bound for what rounding each step may do.

A scalar program is a straight line of instructions. Each value on the way has an error: what its
arguments' errors make of it, found by the instruction at their ends, and its own rounding. So a
body that loses digits (x * y - z) is allowed to, element by element, and one that does not is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from everygrad.backends.reference.tolerance import (
    Accuracy,
    Expected,
    is_exact,
    kind_of,
    limits,
    unit,
    wide,
)
from everygrad.compiler.expr import Inst, Program

_ROOT_HALF = math.sqrt(0.5)
_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def _through_python(fn: Any) -> Callable[[Any], Any]:
    """A function of Python's on an array; of longdouble too, to the digits of float64."""
    return lambda x: np.asarray(fn(x.astype(np.float64)), np.float64).astype(x.dtype)


def _power(x: Any, y: Any) -> Any:
    """Integers to negative powers are rounded towards 0."""
    if x.dtype.kind != "i" or not np.any(y < 0):
        out = np.power(x, y)
        if x.dtype.kind == "f":  # not square roots, which NumPy takes of one exponent of 1/2
            out = np.where((y == 0.5) & ((x == 0) | (x == -np.inf)), np.abs(x), out)
        return out
    one = np.where(x == -1, np.where(y % 2 == 0, 1, -1), x == 1)
    return np.where(y < 0, one, np.power(x, np.maximum(y, 0))).astype(x.dtype)


def _high_half(x: Any, y: Any) -> Any:
    half = np.multiply(x, y, dtype=np.uint64) >> np.uint64(32)
    return half.astype(np.uint32)


def _sign(x: Any) -> Any:
    nothing = np.isnan(x) if x.dtype.kind == "c" else False
    return np.where(nothing, x.dtype.type(np.nan), np.sign(x)) if np.any(nothing) else np.sign(x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "pow": _power,
    "floordiv": np.floor_divide, "mod": np.remainder, "atan2": np.arctan2, "max": np.maximum,
    "min": np.minimum, "neg": np.negative, "sign": _sign, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "round": np.rint, "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10,
    "erf": _through_python(_erf), "ndtr": _through_python(lambda x: 0.5 * _erfc(-x * _ROOT_HALF)),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "isnan": np.isnan,
    "isinf": np.isinf, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "shl": np.left_shift, "shr": np.right_shift, "mulhi": _high_half,
    "conj": np.conjugate, "abs": np.absolute, "real": np.real, "imag": np.imag, "angle": np.angle,
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGIC = ("and", "or", "xor", "not")
# never rounded: of numbers that fit, these fit
_WHOLE = ("max", "min", "neg", "sign", "floor", "ceil", "trunc", "round", "abs", "real", "imag",
          "conj", "select", "input", "const", "isnan", "isinf", *_COMPARISONS)  # fmt: skip
_BASIC = ("add", "sub", "mul", "cast", "unbits", "bits")
_ROUGH = ("div", "sqrt", "mod", "floordiv")


class _Line:
    """One program on arrays: the value and the error of each instruction."""

    def __init__(self, arrays: Sequence[Any], errors: Sequence[Any], accuracy: Accuracy) -> None:
        self.arrays = arrays
        self.errors = errors
        self.accuracy = accuracy
        self.values: list[Any] = []
        self.bounds: list[Any] = []
        self.insts: list[Inst] = []

    def run(self, program: Program) -> Expected:
        for inst in program.insts:
            self.insts.append(inst)
            value, bound = self.step(inst)
            self.values.append(value)
            self.bounds.append(bound)
        value, bound = self.values[-1], self.bounds[-1]
        shape = np.broadcast_shapes(*(a.shape for a in self.arrays))
        return Expected(np.broadcast_to(value, shape), np.broadcast_to(bound, shape), signed=False)

    def step(self, inst: Inst) -> tuple[Any, Any]:
        args = [self.values[a] for a in inst.args]
        bounds = [self.bounds[a] for a in inst.args]
        if inst.fn == "input":
            return wide(self.arrays[inst.value]), self.errors[inst.value]
        if inst.fn == "const":
            return wide(np.asarray(inst.value, inst.dtype.np)), 0.0
        if inst.fn == "select":
            return _selected(*args, *bounds)
        if inst.fn in _COMPARISONS:
            value = FUNCTIONS[inst.fn](*args)
            return value, _undecided(*args, *bounds)
        if inst.fn in ("bits", "unbits"):
            return self.reinterpreted(inst, args[0]), _all_or_nothing(bounds)
        fn = self.function(inst)
        value = fn(*args)
        if inst.fn in _LOGIC or (is_exact(inst.dtype.np) and inst.fn != "cast"):
            return value, _all_or_nothing(bounds)
        return self.own(inst, args, value, _carried(fn, args, bounds, value))

    def function(self, inst: Inst) -> Callable[..., Any]:
        if inst.fn == "cast":
            return lambda x: converted(x, inst.dtype.np)
        if inst.fn == "round" and inst.dtype.is_integer:
            return np.positive
        return FUNCTIONS[inst.fn]

    def reinterpreted(self, inst: Inst, x: Any) -> Any:
        source = self.insts[inst.args[0]].dtype.np
        if inst.fn == "bits":
            return x if is_exact(source) else x.astype(source).view(inst.dtype.np)
        return wide(np.asarray(x).view(inst.dtype.np))

    def own(self, inst: Inst, args: Sequence[Any], value: Any, carried: Any) -> tuple[Any, Any]:
        """The value as the dtype can hold it, and the error with the instruction's own rounding."""
        dtype = inst.dtype.np
        if is_exact(dtype):
            return value, carried
        largest, normal, smallest = limits(dtype)
        size = np.abs(value)
        if inst.fn not in _WHOLE or (inst.fn == "abs" and args[0].dtype.kind == "c"):
            carried = carried + self.units(inst.fn, args) * unit(dtype) * size
            carried = carried + (normal if self.accuracy.flushes else smallest)
        beyond = size > largest * (1 + unit(dtype))
        edge = (size + carried > largest) & (size - carried <= largest * (1 + unit(dtype)))
        edge &= np.isfinite(value)
        if kind_of(dtype) == "f":
            value = np.where(beyond, np.copysign(np.inf, value), value)
            value = np.where(size < smallest / 2, np.copysign(0.0, value), value)
        else:
            carried = np.where(beyond, np.inf, carried)
        return value, np.where(edge, np.inf, np.where(np.isfinite(value), carried, 0.0))

    def units(self, fn: str, args: Sequence[Any]) -> Any:
        if fn in _BASIC:
            return 4.0 if args[0].dtype.kind == "c" else 1.0
        if fn in _ROUGH:
            return self.accuracy.basic * (4.0 if args[0].dtype.kind == "c" else 1.0)
        if fn == "pow":  # exp(y log x): what the exponent loses counts in the result
            lost = np.abs(args[1]) * np.abs(np.log(np.maximum(np.abs(args[0]), 1e-300)))
            return self.accuracy.functions * (1 + np.where(np.isfinite(lost), lost, 0.0) / 64)
        return self.accuracy.functions


def _selected(c: Any, yes: Any, no: Any, ec: Any, ey: Any, en: Any) -> tuple[Any, Any]:
    value = np.where(c, yes, no)
    bound = np.where(c, ey, en)
    if np.any(ec):
        apart = np.abs(np.where(yes == no, 0, wide_difference(yes, no)))
        bound = np.where(ec != 0, apart + np.maximum(ey, en), bound)
    return value, np.where(np.isnan(bound), np.inf, bound) if np.any(ec) else bound


def wide_difference(x: Any, y: Any) -> Any:
    """x - y where neither wraps around."""
    if is_exact(np.asarray(x).dtype):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return x - y


def _undecided(x: Any, y: Any, ex: Any, ey: Any) -> Any:
    """1 where a comparison could go either way, 0 elsewhere."""
    if not np.any(ex) and not np.any(ey):
        return 0.0
    error = np.asarray(ex) + ey
    close = np.abs(wide_difference(x, y)) <= error
    return np.where((error > 0) & close, 1.0, 0.0)


def _all_or_nothing(bounds: Sequence[Any]) -> Any:
    """Bits of something that is not known to the last one are not known at all."""
    if not any(np.any(b) for b in bounds):
        return 0.0
    return np.where(
        np.any(np.broadcast_arrays(*[np.asarray(b) != 0 for b in bounds]), 0), np.inf, 0
    )


def _ends(x: Any, error: Any) -> list[Any]:
    if not np.any(error) or is_exact(x.dtype):
        return [x]
    if x.dtype.kind == "c":
        return [x, x + error, x - error, x + 1j * error, x - 1j * error]
    return [x, x + error, x - error]


def _carried(fn: Callable[..., Any], args: Sequence[Any], bounds: Sequence[Any], value: Any) -> Any:
    """What errors of the arguments make of the result, seen at their ends."""
    unknown = _unknown(args, bounds)
    if not any(np.any(b) for b in bounds):
        return 0.0
    most: Any = 0.0
    for point in list(product(*map(_ends, args, bounds)))[1:]:
        moved = fn(*point)
        apart = np.where(moved == value, 0.0, np.abs(wide_difference(moved, value)))
        most = np.fmax(most, apart)
    return np.where(unknown, np.inf, most)


def _unknown(args: Sequence[Any], bounds: Sequence[Any]) -> Any:
    """Where an argument may be anything; of integers every error counts, they are never rounded."""
    found: Any = False
    for x, bound in zip(args, bounds, strict=True):
        found = found | (np.asarray(bound) != 0 if is_exact(x.dtype) else np.isinf(bound))
    return found


def converted(x: Any, dtype: Any) -> Any:
    """A wide value as one of a dtype: towards 0, the nearest there is, NaN as integer 0."""
    if kind_of(x.dtype) == "c" and kind_of(dtype) not in "cb":
        x = x.real
    if kind_of(dtype) == "b":
        return x != 0
    if kind_of(dtype) not in "iu":
        held = np.asarray(x).astype(dtype) if is_exact(x.dtype) and dtype.itemsize < 8 else x
        return x.astype(wide(np.empty(0, dtype)).dtype) if held is x else wide(held)
    if is_exact(x.dtype):
        return x.astype(dtype)
    facts = np.iinfo(dtype)
    low, high = x < float(facts.min), x >= float(facts.max)
    inside = np.where(low | high | (x != x), 0, x).astype(dtype)
    return np.where(high, facts.max, np.where(low, facts.min, inside)).astype(dtype)


def body(program: Program, arrays: Sequence[Any], errors: Sequence[Any], of: Accuracy) -> Expected:
    """The body's result on arrays whose elements may be off by `errors`."""
    with np.errstate(all="ignore"):
        return _Line(arrays, errors, of).run(program)

"""Renders scalar programs as NumPy calls, for small arrays, where the cost of a call dominates.

A program becomes one Python function; a body of a single intrinsic becomes the ufunc itself. Where
NumPy would go over an array several times, the compiled kernel pays from fewer elements on than
where one call does: `small` chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.kernels import complex_functions
from everygrad.compiler.expr import Expr, Inst, Program, lower
from everygrad.compiler.thresholds import edge
from everygrad.core.config import config
from everygrad.dtypes import FROM_NP, DType, bfloat16, rounded

# In shares of `config.native_threshold`: the elements that take NumPy as long as a call of it does,
# those that a kernel must have at least; KERNEL times it: what a kernel's call costs, likewise.
CALL = edge(__name__, "CALL", 4, "count")
LEAST = edge(__name__, "LEAST", 32, "count")
KERNEL = 1.6

UFUNCS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
    "pow": np.power,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "atan2": np.arctan2,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "conj": np.conjugate,
    "abs": np.absolute,
    "real": np.real,
    "imag": np.imag,
    "angle": np.angle,
    "select": np.where,
}


def _compiled(fn: str) -> Callable[[Any], Any]:
    """An intrinsic that NumPy lacks: the compiled kernel serves every size."""

    def function(x: Any) -> Any:
        out = np.empty(np.shape(x), x.dtype)
        lazy_native.run(_program(fn, FROM_NP[x.dtype]), [np.asarray(x)], out)
        return out

    return function


@lru_cache
def _program(fn: str, dtype: DType) -> Program:
    return lower(Expr(fn, (Expr("input", (), 0),)), [dtype])


def mulhi(x: Any, y: Any) -> Any:
    """The high 32 bits of a product of two uint32."""
    wide = np.multiply(x, y, dtype=np.uint64)
    return np.right_shift(wide, np.uint64(32)).astype(np.uint32)


def power(x: Any, y: Any) -> Any:
    """Powers; NumPy refuses negative powers of integers, here they round to 0, as compiled."""
    if x.dtype.kind != "i" or not np.any(y < 0):
        return np.power(x, y)
    one = np.where(x == -1, np.where(y % 2 == 0, 1, -1), x == 1)
    return np.where(y < 0, one, np.power(x, np.maximum(y, 0))).astype(x.dtype)


def real_power(x: Any, y: Any) -> Any:
    """Powers of reals. For a scalar exponent of 1/2 NumPy takes the square root, which is -0.0 of
    -0.0 and NaN of -inf; here these are 0.0 and inf, as in arrays of exponents and compiled."""
    out = np.power(x, y)
    if y.ndim == 0:
        halves = y.item() == 0.5
    elif y.shape == out.shape and 0 not in y.strides:
        return out  # element by element
    else:
        halves = y == 0.5
    if halves is False or 1 not in np.signbit(x).tobytes():
        return out
    return np.where(halves & ((x == 0) | (x == -np.inf)), np.abs(x), out)


def bits(x: Any) -> Any:
    """A float's bits as an integer of its width; integers as they are."""
    return x.view({4: np.int32, 8: np.int64}[x.dtype.itemsize]) if x.dtype.kind == "f" else x


def unbits(x: Any) -> Any:
    """The float that has these bits."""
    return x.view({4: np.float32, 8: np.float64}[x.dtype.itemsize])


_SPECIAL: dict[str, Callable[..., Any]] = {
    "erf": _compiled("erf"),
    "ndtr": _compiled("ndtr"),
    "mulhi": mulhi,
    "bits": bits,
    "unbits": unbits,
}


_POWERS = {"int": power, "float": real_power}
_COMPLEX = {name: getattr(complex_functions, name) for name in ("div", "expm1", "log1p", "sign")}


def _function(inst: Inst) -> Callable[..., Any]:
    if inst.fn == "pow" and inst.dtype.kind in _POWERS:
        return _POWERS[inst.dtype.kind]
    if inst.fn in _COMPLEX and inst.dtype.is_complex:
        return _COMPLEX[inst.fn]
    if inst.fn == "round" and inst.dtype.is_integer:
        return np.positive  # rint would convert it to float
    return _SPECIAL.get(inst.fn) or UFUNCS[inst.fn]


def _single(program: Program) -> Callable[..., Any] | None:
    """The ufunc, where the program is one intrinsic of its inputs in order."""
    last = program.insts[-1]
    if last.fn in ("input", "const", "cast", "select"):
        return None
    operands = [program.insts[a] for a in last.args]
    in_order = all(o.fn == "input" and o.value == i for i, o in enumerate(operands))
    return _function(last) if in_order else None


_small: dict[int, tuple[Program, Callable[..., Any]]] = {}  # the entry keeps its program alive
_MOST = 4096  # programs that are remembered


def small(program: Program, arity: int) -> Callable[..., Any]:
    """The program on NumPy arrays up to `config.native_threshold`, by NumPy or the kernel."""
    found = _small.get(id(program))  # hashing a program takes longer than asking of it
    if found is not None:
        return found[1]
    if len(_small) >= _MOST:
        _small.clear()
    made = _by_either(program, render(program, arity))
    _small[id(program)] = (program, made)
    return made


def _passes(program: Program) -> int:
    return sum(inst.fn not in ("input", "const") for inst in program.insts)


def most_by_numpy(program: Program) -> int:
    """Up to how many elements `small` has NumPy compute a program of real numbers."""
    passes, most = _passes(program), config.native_threshold
    if passes < 2:
        return most
    return max(most // LEAST, int(KERNEL * most / passes - most / CALL))


def _by_either(program: Program, by_numpy: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function, or around it one that calls the kernel where that takes less time than
    NumPy's passes over the array, all together."""
    passes = _passes(program)
    if passes < 2 or any(inst.dtype.is_complex for inst in program.insts):
        return by_numpy
    flat: Callable[..., Any] | None = None

    def by_kernel(*arrays: Any) -> Any:
        nonlocal flat
        if flat is None:
            flat = lazy_native.flat(program) if lazy_native.supports(program) else _nothing
        out = flat(arrays)
        return by_numpy(*arrays) if out is None else out

    def either(*arrays: Any) -> Any:
        size, most = arrays[0].size, config.native_threshold
        if LEAST * size > most and passes * (size + most / CALL) > KERNEL * most:
            return by_kernel(*arrays)
        return by_numpy(*arrays)

    return either


def _nothing(arrays: Any) -> None:
    """What no kernel gives."""


@lru_cache(maxsize=4096)
def render(program: Program, arity: int) -> Callable[..., Any]:
    """A function of `arity` NumPy arrays that computes the program."""
    single = _single(program)
    if single is not None and len(program.insts[-1].args) == arity:
        return single
    # the module that NumPy's warnings name: see the filter in `dispatch`
    names: dict[str, Any] = {"__name__": f"{__name__}.kernel"}
    lines = []
    for i, inst in enumerate(program.insts):
        args = [f"t{a}" for a in inst.args]
        if inst.fn == "input":
            value = f"x{inst.value}"
        elif inst.fn == "const":
            names[f"c{i}"] = inst.dtype.np.type(inst.value)
            value = f"c{i}"
        elif inst.fn == "cast":
            names[f"c{i}"] = inst.dtype.np
            value = f"cast({args[0]}, c{i})"
        else:
            names[f"f{i}"] = _function(inst)
            value = f"f{i}({', '.join(args)})"
        lines.append(f"    t{i} = {value}")
    params = ", ".join(f"x{i}" for i in range(arity))
    source = "\n".join((f"def kernel({params}):", *lines, f"    return t{len(lines) - 1}"))
    names["cast"] = cast
    exec(source, names)  # source made of instruction numbers only; see above
    return names["kernel"]


def cast(x: Any, dtype: Any) -> Any:
    """`x` as `dtype`. Complex to real drops the imaginary part silently; to bool it counts."""
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    if dtype.kind in "iu" and x.dtype.kind not in "iub":
        return _to_integer(x, dtype)
    return rounded(x, bfloat16) if dtype == bfloat16.np else x.astype(dtype)


def _to_integer(x: Any, dtype: Any) -> Any:
    """Rounds towards 0, saturates, and converts NaN to 0, as compiled code does."""
    limits = np.iinfo(dtype)
    too_low, too_high = x < float(limits.min), x >= float(limits.max)  # max itself rounds up
    inside = np.where(too_low | too_high | (x != x), 0, x).astype(dtype)
    return np.where(too_high, limits.max, np.where(too_low, limits.min, inside)).astype(dtype)

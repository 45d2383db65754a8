"""Lowers each intrinsic of `compile.expr` to LLVM IR, with NumPy's results at the edges.

In registers a bool is an i1 and a bfloat16 an i16 with its bits; other dtypes are LLVM's own types.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from everygrad import dtypes
from everygrad.backends.cpu.llvm import trigonometry, vecinverse, vecmath, vecnormal
from everygrad.backends.cpu.llvm.compiler import Emitter, Value, literal
from everygrad.compiler.expr import INTRINSICS
from everygrad.dtypes import DType

_FLOAT_TYPES = {dtypes.float16: "half", dtypes.float32: "float", dtypes.float64: "double"}
_HALVES = (dtypes.float16, dtypes.bfloat16)
_OF_BITS = {dtypes.int32: "float", dtypes.int64: "double"}


def _root(e: Emitter, x: Value) -> Value:
    """x ** 0.5, which is 0.0 for -0.0 and inf for -inf, unlike the square root."""
    root = e.intrinsic("sqrt", e.op("fadd", x, literal(x.type, 0.0)))
    least = e.compare("oeq", x, literal(x.type, -math.inf))
    return e.select(least, literal(x.type, math.inf), root)


# frequent constant exponents, as cheaper arithmetic of the same value
_POWERS: dict[float, Callable[[Emitter, Value], Value]] = {
    1.0: lambda e, x: x,
    2.0: lambda e, x: e.op("fmul", x, x),
    0.5: _root,
    3.0: lambda e, x: e.op("fmul", e.op("fmul", x, x), x),
    -1.0: lambda e, x: e.op("fdiv", literal(x.type, 1.0), x),
}


def register_type(dtype: DType) -> str:
    """The LLVM type of a value of `dtype` in a register."""
    if dtype is dtypes.bool_:
        return "i1"
    return _FLOAT_TYPES.get(dtype, f"i{dtype.bits}")


def memory_type(dtype: DType) -> str:
    """The LLVM type of an element of `dtype` in memory."""
    return "i8" if dtype is dtypes.bool_ else register_type(dtype)


def constant(dtype: DType, value: Any) -> Value:
    """A Python number as a value of `dtype`; integers wrap."""
    if dtype is dtypes.bfloat16:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        rounded = 0x7FC0 if math.isnan(value) else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return Value("i16", str(rounded))
    if dtype.is_integer:
        return Value(register_type(dtype), str(int(value) % (1 << dtype.bits)))
    return literal(register_type(dtype), value)


def supported(fn: str, dtype: DType) -> bool:
    """Whether `fn` can be applied to values of `dtype` here."""
    if fn in ("input", "const", "cast"):
        return not dtype.is_complex
    if fn not in INTRINSICS or dtype.is_complex:
        return False
    if fn in ("and", "or", "xor", "not"):
        return not dtype.is_float
    if fn in ("shl", "shr", "mulhi"):
        return dtype.is_integer
    if fn in ("bits", "unbits"):
        return fn == "bits" or dtype in _OF_BITS
    if dtype is dtypes.bool_:
        return fn in _BOOL
    return dtype.is_float or fn in _INTEGER


def cast(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    """`x` converted; out of range floats saturate to integers and NaN becomes 0."""
    if source is target:
        return x
    if source is dtypes.bfloat16:
        return cast(e, _widen_bfloat16(e, x), dtypes.float32, target)
    if target is dtypes.bool_:
        zero = literal(x.type, 0)
        return e.compare("une" if source.is_float else "ne", x, zero)
    if source.is_float and target.is_integer:
        return _cast_to_integer(e, e.cast("fpext", x, "float") if x.type == "half" else x, target)
    if target.is_float:
        return _cast_to_float(e, x, source, target)
    if target.bits < source.bits:
        return e.cast("trunc", x, register_type(target))
    return e.cast("sext" if source.kind == "int" else "zext", x, register_type(target))


def _cast_to_integer(e: Emitter, x: Value, target: DType) -> Value:
    """The result of llvm.fptosi.sat, which LLVM does not vectorise: both limits are powers of two,
    or 0, which every float represents, and values inside them are converted."""
    signed = target.kind == "int"
    bits = target.bits - signed
    least, most = (-(1 << bits) if signed else 0), (1 << bits) - 1
    low, high = literal(x.type, float(least)), literal(x.type, float(most + 1))
    below, above = e.compare("olt", x, low), e.compare("oge", x, high)
    outside = e.op("or", e.op("or", below, above), e.compare("uno", x, x))
    safe = e.select(outside, literal(x.type, 0.0), x)
    to = register_type(target)
    if target.bits < 32:  # vector conversions have at least 32 bits
        made = e.cast("trunc", e.cast("fptosi", safe, "i32"), to)
    else:
        made = e.cast("fptosi" if signed else "fptoui", safe, to)
    ends = constant(target, least), constant(target, most)
    return e.select(above, ends[1], e.select(below, ends[0], made))


def _cast_to_float(e: Emitter, x: Value, source: DType, target: DType) -> Value:
    if not source.is_float:
        name = "sitofp" if source.kind == "int" else "uitofp"
        if target is dtypes.bfloat16 and source.bits > 16:  # through float32 it would round twice
            wide = e.cast(name, _sticky(e, x, source) if source.bits == 64 else x, "double")
            return cast(e, wide, dtypes.float64, target)
        through = dtypes.float32 if target in _HALVES else target
        return cast(e, e.cast(name, x, register_type(through)), through, target)
    if target in _HALVES and source is dtypes.float64:
        return cast(e, _round_to_odd(e, x), dtypes.float32, target)
    if target is dtypes.bfloat16:
        if source is dtypes.float16:
            x = e.cast("fpext", x, "float")
        return _narrow_bfloat16(e, x)
    return e.cast("fpext" if target.bits > source.bits else "fptrunc", x, register_type(target))


def _sticky(e: Emitter, x: Value, source: DType) -> Value:
    """A large 64-bit integer as one that float64 represents: the bits that do not fit become one
    sticky bit."""
    low = e.op("and", x, literal("i64", 0x7FF))
    lost = e.cast("zext", e.compare("ne", low, literal("i64", 0)), "i64")
    shift = literal("i64", 11)
    short = e.op("ashr" if source.kind == "int" else "lshr", x, shift)
    odd = e.op("shl", e.op("or", short, lost), shift)
    # from -2**53 to 2**53: shifted up, and compared as unsigned
    moved = e.op("add", x, literal("i64", 1 << 53 if source.kind == "int" else 0))
    small = e.compare("ult", moved, literal("i64", 1 << (54 if source.kind == "int" else 53)))
    return e.select(small, x, odd)


def _round_to_odd(e: Emitter, x: Value) -> Value:
    """A double rounded to odd as a float: rounding that again equals rounding once."""
    near = e.cast("fptrunc", x, "float")
    back = e.cast("fpext", near, "double")
    inexact = e.compare("one", back, x)
    above = e.compare("ogt", e.intrinsic("fabs", back), e.intrinsic("fabs", x))
    bits = e.cast("bitcast", near, "i32")
    toward_zero = e.op("sub", bits, e.cast("zext", above, "i32"))
    odd = e.op("or", toward_zero, e.cast("zext", inexact, "i32"))
    return e.cast("bitcast", odd, "float")


def _widen_bfloat16(e: Emitter, x: Value) -> Value:
    bits = e.op("shl", e.cast("zext", x, "i32"), literal("i32", 16))
    return e.cast("bitcast", bits, "float")


def _narrow_bfloat16(e: Emitter, x: Value) -> Value:
    """Round to nearest, ties to even; NaN stays NaN."""
    bits = e.cast("bitcast", x, "i32")
    lsb = e.op("and", e.op("lshr", bits, literal("i32", 16)), literal("i32", 1))
    rounded = e.op("add", e.op("add", bits, literal("i32", 0x7FFF)), lsb)
    # rounding the low bits of a NaN could carry into infinity or zero
    quiet = e.op("or", bits, literal("i32", 0x400000))
    chosen = e.select(e.compare("uno", x, x), quiet, rounded)
    return e.cast("trunc", e.op("lshr", chosen, literal("i32", 16)), "i16")


def apply(e: Emitter, fn: str, dtype: DType, args: list[Value]) -> Value:
    """The intrinsic `fn` of `args`, all of `dtype` (for select: the branches are)."""
    if fn == "select":
        return e.select(*args)
    if fn == "bits":  # half floats are float32 by now
        return e.cast("bitcast", args[0], f"i{dtype.bits}") if dtype.is_float else args[0]
    if fn == "unbits":
        return e.cast("bitcast", args[0], _OF_BITS[dtype])
    if dtype in _HALVES:
        wide = [cast(e, a, dtype, dtypes.float32) for a in args]
        result = apply(e, fn, dtypes.float32, wide)
        if INTRINSICS[fn][1] == "bool":
            return result
        return cast(e, result, dtypes.float32, dtype)
    if fn in _COMPARE:
        return _compare(e, fn, dtype, *args)
    if fn in ("conj", "real"):
        return args[0]
    if dtype is dtypes.bool_:
        return _BOOL[fn](e, *args)
    if not dtype.is_float:
        return _INTEGER[fn](e, dtype, *args)
    if fn == "pow":
        for exponent, power in _POWERS.items():
            if args[1] == literal(args[1].type, exponent):
                return power(e, args[0])
    rule = _FLOAT.get(fn)
    return rule(e, *args) if rule is not None else _elementary(e, fn, *args)


_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def _compare(e: Emitter, fn: str, dtype: DType, a: Value, b: Value) -> Value:
    if dtype.is_float:
        return e.compare("une" if fn == "ne" else f"o{fn}", a, b)
    signed = "" if fn in ("eq", "ne") else "s" if dtype.kind == "int" else "u"
    return e.compare(signed + fn, a, b)


def _elementary(e: Emitter, fn: str, *args: Value) -> Value:
    """Inline if `vecmath` or a module like it has the function, else the C library's."""
    x = args[0]
    if fn == "pow" and x.type == "float":
        return vecmath.pow_(vecmath.Real(e, "float"), *args)
    if fn == "atan2" and x.type == "float":
        return vecinverse.atan2(e, *args)
    found = None
    if len(args) == 1:
        kin = (vecmath, vecinverse, vecnormal, trigonometry)
        found = next((made for one in kin if (made := one.expand(e, fn, x)) is not None), None)
    if found is not None:
        return found
    name = fn + ("f" if x.type == "float" else "")
    return e.call(name, x.type, *args, attributes="nounwind willreturn memory(none)")


# floats


def _contract(name: str) -> Callable[..., Value]:
    """Arithmetic that LLVM may contract to a fused multiply-add, but not reassociate."""
    return lambda e, a, b: e.op(name if e.exact else f"{name} contract", a, b)


def _extreme(predicate: str) -> Callable[..., Value]:
    """max or min; NaN wins on either side."""

    def rule(e: Emitter, a: Value, b: Value) -> Value:
        # the machine's max gives b when either is NaN: only a NaN in a must be propagated
        chosen = e.select(e.compare(predicate, a, b), a, b)
        return e.select(e.compare("uno", a, a), a, chosen)

    return rule


def _sign(e: Emitter, x: Value) -> Value:
    zero, one = literal(x.type, 0.0), literal(x.type, 1.0)
    nonzero = e.intrinsic("copysign", one, x)
    ordered = e.select(e.compare("oeq", x, zero), zero, nonzero)
    return e.select(e.compare("uno", x, x), x, ordered)


def _float_divmod(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """Python's quotient and remainder, as NumPy computes them: from C's fmod."""
    zero, one = literal(a.type, 0.0), literal(a.type, 1.0)
    rest = e.op("frem", a, b)
    quotient = e.op("fdiv", e.op("fsub", a, rest), b)
    left = e.compare("une", rest, zero)
    crossed = e.op("xor", e.compare("olt", b, zero), e.compare("olt", rest, zero))
    fix = e.op("and", left, crossed)
    quotient = e.select(fix, e.op("fsub", quotient, one), quotient)
    floor = e.intrinsic("floor", quotient)
    short = e.compare("ogt", e.op("fsub", quotient, floor), literal(a.type, 0.5))
    floor = e.select(short, e.op("fadd", floor, one), floor)
    ratio = e.op("fdiv", a, b)
    signed_zero = e.intrinsic("copysign", zero, ratio)
    floor = e.select(e.compare("oeq", quotient, zero), signed_zero, floor)
    by_zero = e.compare("oeq", b, zero)
    mod = e.select(left, rest, e.intrinsic("copysign", zero, b))
    mod = e.select(fix, e.op("fadd", rest, b), mod)
    return e.select(by_zero, ratio, floor), e.select(by_zero, rest, mod)


def _angle(e: Emitter, x: Value) -> Value:
    """0 or pi by the sign bit, as atan2(0, x)."""
    integer = "i64" if x.type == "double" else "i32"
    negative = e.compare("slt", e.cast("bitcast", x, integer), literal(integer, 0))
    angle = e.select(negative, literal(x.type, math.pi), literal(x.type, 0.0))
    return e.select(e.compare("uno", x, x), x, angle)


def _isinf(e: Emitter, x: Value) -> Value:
    return e.compare("oeq", e.intrinsic("fabs", x), literal(x.type, math.inf))


_FLOAT: dict[str, Callable[..., Value]] = {
    "add": _contract("fadd"),
    "sub": _contract("fsub"),
    "mul": _contract("fmul"),
    "div": lambda e, a, b: e.op("fdiv", a, b),
    "floordiv": lambda e, a, b: _float_divmod(e, a, b)[0],
    "mod": lambda e, a, b: _float_divmod(e, a, b)[1],
    "max": _extreme("ogt"),
    "min": _extreme("olt"),
    "neg": lambda e, x: e.neg(x),
    "sign": _sign,
    "abs": lambda e, x: e.intrinsic("fabs", x),
    "floor": lambda e, x: e.intrinsic("floor", x),
    "ceil": lambda e, x: e.intrinsic("ceil", x),
    "trunc": lambda e, x: e.intrinsic("trunc", x),
    "round": lambda e, x: e.intrinsic("roundeven", x),
    "sqrt": lambda e, x: e.intrinsic("sqrt", x),
    "isnan": lambda e, x: e.compare("uno", x, x),
    "isinf": _isinf,
    "imag": lambda e, x: literal(x.type, 0.0),
    "angle": _angle,
}

# integers


def _int_divmod(e: Emitter, dtype: DType, a: Value, b: Value) -> tuple[Value, Value]:
    """Python's quotient and remainder; 0 for a zero divisor, wrapped for MIN // -1."""
    zero, one = literal(a.type, 0), literal(a.type, 1)
    by_zero = e.compare("eq", b, zero)
    signed = dtype.kind == "int"
    safe = e.select(by_zero, one, b)
    if dtype.bits == 64:  # there is no faster vector division
        by_minus = e.compare("eq", safe, literal(a.type, -1))
        # dividing by 1 and negating keeps MIN // -1 from trapping
        divisor = e.select(by_minus, one, safe) if signed else safe
        quotient = e.op("sdiv" if signed else "udiv", a, divisor)
        if signed:
            quotient = e.select(by_minus, e.neg(a), quotient)
    else:
        quotient = _divide_as_float(e, dtype, a, safe)
    rest = e.op("sub", a, e.op("mul", quotient, safe))
    if signed:
        differ = e.compare("slt", e.op("xor", rest, safe), zero)
        down = e.op("and", differ, e.compare("ne", rest, zero))
        quotient = e.op("sub", quotient, e.cast("zext", down, a.type))
        rest = e.select(down, e.op("add", rest, safe), rest)
    return e.select(by_zero, zero, quotient), e.select(by_zero, zero, rest)


def _divide_as_float(e: Emitter, dtype: DType, a: Value, b: Value) -> Value:
    """The truncated quotient of integers up to 32 bits, exact: the float has twice their bits."""
    signed = dtype.kind == "int"
    wide = "double" if dtype.bits == 32 else "float"
    to_float = "sitofp" if signed else "uitofp"
    ratio = e.op("fdiv", e.cast(to_float, a, wide), e.cast(to_float, b, wide))
    # through a wider integer: MIN // -1 must wrap, not overflow
    through = "i64" if dtype.bits == 32 else "i32"
    return e.cast("trunc", e.cast("fptosi", ratio, through), a.type)


def _shift(name: str) -> Callable[..., Value]:
    """Shifts; a count outside the width shifts every bit out."""

    def rule(e: Emitter, dtype: DType, a: Value, b: Value) -> Value:
        last = literal(a.type, dtype.bits - 1)
        inside = e.compare("ule", b, last)  # unsigned: a negative count is outside too
        count = e.select(inside, b, last)
        if name == "shr" and dtype.kind == "int":
            return e.op("ashr", a, count)
        shifted = e.op("shl" if name == "shl" else "lshr", a, count)
        return e.select(inside, shifted, literal(a.type, 0))

    return rule


def _mulhi(e: Emitter, dtype: DType, a: Value, b: Value) -> Value:
    wide = f"i{2 * dtype.bits}"
    extend = "sext" if dtype.kind == "int" else "zext"
    product = e.op("mul", e.cast(extend, a, wide), e.cast(extend, b, wide))
    return e.cast("trunc", e.op("lshr", product, literal(wide, dtype.bits)), a.type)


def _int_pow(e: Emitter, dtype: DType, a: Value, b: Value) -> Value:
    """a ** b, wrapped; a negative exponent gives the truncated reciprocal, 0 for 0."""
    name = f"everygrad.pow.{a.type}.{dtype.kind}"
    e.declarations.add(_POW_LOOP.format(name=name, t=a.type))
    positive = e.emit(a.type, f"call {a.type} @{name}({a.type} {a.name}, {b.type} {b.name})")
    if dtype.kind == "uint":
        return positive
    zero, one = literal(a.type, 0), literal(a.type, 1)
    odd = e.compare("ne", e.op("and", b, one), zero)
    is_one = e.compare("eq", a, one)
    is_minus = e.compare("eq", a, literal(a.type, -1))
    reciprocal = e.select(is_minus, e.select(odd, a, one), zero)
    reciprocal = e.select(is_one, one, reciprocal)
    return e.select(e.compare("slt", b, zero), reciprocal, positive)


_POW_LOOP = """\
define internal {t} @{name}({t} %base, {t} %exponent) {{
entry:
  br label %loop
loop:
  %square = phi {t} [ %base, %entry ], [ %square.next, %loop ]
  %left = phi {t} [ %exponent, %entry ], [ %left.next, %loop ]
  %power = phi {t} [ 1, %entry ], [ %power.next, %loop ]
  %odd = trunc {t} %left to i1
  %times = mul {t} %power, %square
  %power.next = select i1 %odd, {t} %times, {t} %power
  %square.next = mul {t} %square, %square
  %left.next = lshr {t} %left, 1
  %more = icmp ne {t} %left.next, 0
  br i1 %more, label %loop, label %done
done:
  ret {t} %power.next
}}"""


def _int_extreme(word: str) -> Callable[..., Value]:
    def rule(e: Emitter, dtype: DType, a: Value, b: Value) -> Value:
        return e.intrinsic(("s" if dtype.kind == "int" else "u") + word, a, b)

    return rule


def _int_sign(e: Emitter, dtype: DType, x: Value) -> Value:
    zero = literal(x.type, 0)
    positive = e.cast("zext", e.compare("ne", x, zero), x.type)
    if dtype.kind == "uint":
        return positive
    return e.select(e.compare("slt", x, zero), literal(x.type, -1), positive)


def _int_abs(e: Emitter, dtype: DType, x: Value) -> Value:
    return e.intrinsic("abs", x, literal("i1", False)) if dtype.kind == "int" else x


def _plain(name: str) -> Callable[..., Value]:
    return lambda e, dtype, a, b: e.op(name, a, b)


def _unchanged(e: Emitter, dtype: DType, x: Value) -> Value:
    return x


def _never(e: Emitter, *rest: object) -> Value:
    return literal("i1", False)


_INTEGER: dict[str, Callable[..., Value]] = {
    **{name: _plain(name) for name in ("add", "sub", "mul", "and", "or", "xor")},
    **dict.fromkeys(("floor", "ceil", "trunc", "round"), _unchanged),
    "floordiv": lambda e, dtype, a, b: _int_divmod(e, dtype, a, b)[0],
    "mod": lambda e, dtype, a, b: _int_divmod(e, dtype, a, b)[1],
    "shl": _shift("shl"),
    "shr": _shift("shr"),
    "mulhi": _mulhi,
    "pow": _int_pow,
    "max": _int_extreme("max"),
    "min": _int_extreme("min"),
    "neg": lambda e, dtype, x: e.neg(x),
    "not": lambda e, dtype, x: e.op("xor", x, literal(x.type, -1)),
    "abs": _int_abs,
    "sign": _int_sign,
    "isnan": _never,
    "isinf": _never,
    "imag": lambda e, dtype, x: literal(x.type, 0),
    # listed so that `supported` finds them; `apply` handles them before this table
    **dict.fromkeys((*_COMPARE, "select", "conj", "real"), _unchanged),
}

# bools: add is or, mul is and, as in NumPy


def _bool_op(name: str) -> Callable[..., Value]:
    return lambda e, a, b: e.op(name, a, b)


_BOOL: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(("add", "or", "max"), _bool_op("or")),
    **dict.fromkeys(("mul", "and", "min"), _bool_op("and")),
    "xor": _bool_op("xor"),
    "not": lambda e, x: e.op("xor", x, literal("i1", True)),
    "isnan": _never,
    "isinf": _never,
    "imag": _never,
    **dict.fromkeys(
        (*_COMPARE, "select", "conj", "real", "abs", "floor", "ceil", "trunc", "round"),
        lambda e, x: x,
    ),
}

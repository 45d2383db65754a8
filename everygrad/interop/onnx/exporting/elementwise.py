"""Elementwise ops: each instruction of the typed body as ONNX nodes, and the few ops that ONNX has
under a name of their own."""

from __future__ import annotations

import math
from collections.abc import Callable

from everygrad import dtypes
from everygrad.compiler.expr import Inst
from everygrad.compiler.ir import Value
from everygrad.dtypes import DType
from everygrad.interop.onnx.exporting.sizes import Mismatch, is_static
from everygrad.interop.onnx.exporting.writer import ONNX_TYPES, NoForm, Writer

# ops that ONNX has too, from this opset on; of floats
WHOLE = {
    "relu": ("Relu", 14),
    "sigmoid": ("Sigmoid", 13),
    "softsign": ("Softsign", 1),
    "mish": ("Mish", 18),
    "hardswish": ("HardSwish", 14),
    "gelu": ("Gelu", 20),
    "reciprocal": ("Reciprocal", 13),
    "erf": ("Erf", 13),
}
_GELU_TANH = "gelu_tanh"
# runtimes compute few integer types: these are computed in wider ones, which changes no result
_WIDER = {
    dtypes.int8: dtypes.int32,
    dtypes.int16: dtypes.int32,
    dtypes.uint8: dtypes.int32,
    dtypes.uint16: dtypes.int32,
    dtypes.uint32: dtypes.int64,
}
_PLAIN = {
    **{"add": "Add", "sub": "Sub", "mul": "Mul", "pow": "Pow", "max": "Max", "min": "Min"},
    **{"floor": "Floor", "ceil": "Ceil", "round": "Round", "sqrt": "Sqrt", "sign": "Sign"},
    **{"exp": "Exp", "log": "Log", "erf": "Erf", "abs": "Abs", "select": "Where"},
    **{"sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan"},
    **{"sinh": "Sinh", "cosh": "Cosh", "tanh": "Tanh"},
    **{"asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh"},
    **{"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"},
    **{"eq": "Equal", "isnan": "IsNaN", "isinf": "IsInf"},
}
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
_BITWISE = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor", "not": "BitwiseNot"}
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
# functions of the rounding of integers, which stay as they are
_ROUNDING = ("floor", "ceil", "round", "trunc")


def write(w: Writer, v: Value) -> str:
    """One elementwise call."""
    if not is_static(tuple(v.params.values())):
        raise Mismatch(f"a parameter of {v.name} changes with the sizes: {v.params}", v.where)
    names = _operands(w, v)
    floats = all(a.dtype.kind == "float" for a in v.args)
    # runtimes make some of these of others, with constants in float32
    narrow = floats and v.dtype in (dtypes.float16, dtypes.float32)
    kind, least = WHOLE.get(v.name, ("", 0))
    if kind and narrow and not v.params and w.opset >= least and v.dtype is v.args[0].dtype:
        return w.node(kind, *names)
    if v.name in _SHORT and narrow and not v.params:
        short = _SHORT[v.name](w, v, names[0])
        if short is not None:
            return short
    if v.name == _GELU_TANH and narrow and w.opset >= 20:
        return w.node("Gelu", *names, approximate="tanh")
    if v.name in _SIGNS and floats:
        return _SIGNS[v.name](w, v.args[0].dtype, *names)
    program = v.op.program([a.dtype for a in v.args], v.params)
    body = _Body(w)
    out: list[str] = []
    for inst in program.insts:
        given = [program.insts[a].dtype for a in inst.args]
        if inst.fn == "input":
            out.append(names[inst.value])
        else:
            out.append(body.instruction(inst, [out[a] for a in inst.args], given))
    return out[-1]


def _operands(w: Writer, v: Value) -> list[str]:
    """The arguments. One number everywhere stays a scalar where another argument has the result's
    shape."""
    shaped = any(a.shape == v.shape for a in v.args if a.kind != "full")
    return [w.number(a) if a.kind == "full" and shaped else w.name(a) for a in v.args]


class _Body:
    """Instructions as nodes."""

    def __init__(self, w: Writer) -> None:
        self.w = w

    def instruction(self, inst: Inst, args: list[str], given: list[DType]) -> str:
        w, fn, dtype = self.w, inst.fn, inst.dtype
        for d in (dtype, *given):
            if d not in ONNX_TYPES:
                raise NoForm(f"{d}")
        if fn == "const":
            return w.scalar(inst.value, dtype)
        if fn == "cast":
            return args[0] if given[0] is dtype else _converted(w, args[0], given[0], dtype)
        kind = given[-1]
        if fn in _LOGICAL:
            return w.node((_LOGICAL if kind is dtypes.bool_ else _BITWISE)[fn], *args)
        if fn == "bits" and not kind.is_float:
            return args[0]
        if fn == "select" and kind is dtypes.bool_:
            return _chosen(w, *args)
        wide = self.wider(fn, kind)
        if wide is not None:
            choice = 1 if fn == "select" else 0  # the condition stays
            args = [*args[:choice], *(w.cast(a, wide) for a in args[choice:])]
            out = self.plain(fn, args, wide)
            return out if fn in _COMPARISONS else w.cast(out, dtype)
        return self.plain(fn, args, kind)

    def wider(self, fn: str, dtype: DType) -> DType | None:
        """What an instruction is computed in, where runtimes lack it in the dtype itself."""
        if fn in ("shl", "shr"):
            return None
        if dtype is dtypes.bool_ and fn in ("lt", "le", "gt", "ge", "max", "min"):
            return dtypes.int32
        return _WIDER.get(dtype)

    def plain(self, fn: str, args: list[str], dtype: DType) -> str:
        w = self.w
        if fn in _FORMS:
            return _FORMS[fn](w, dtype, *args)
        if not dtype.is_float and fn in _ROUNDING:
            return args[0]
        if fn in ("isnan", "isinf") and not dtype.is_float:
            raise NoForm(f"{fn} of {dtype}")
        if fn not in _PLAIN:
            raise NoForm(f"the scalar function {fn}")
        return w.node(_PLAIN[fn], *args)


def _converted(w: Writer, x: str, old: DType, new: DType) -> str:
    if old.kind == "float" and new is dtypes.bool_:  # not by way of an integer: 0.5 is true
        return w.node("Not", w.node("Equal", x, w.scalar(0, old)))
    return w.cast(x, new)


def _chosen(w: Writer, condition: str, yes: str, no: str) -> str:
    """One of two truths; not every runtime has Where for them."""
    return w.node("Or", w.node("And", condition, yes), w.node("And", w.node("Not", condition), no))


# --- what takes several nodes --------------------------------------------------------------------

Form = Callable[..., str]


def _div(w: Writer, dtype: DType, x: str, y: str) -> str:
    return w.node("Div", x, y)


def _neg(w: Writer, dtype: DType, x: str) -> str:
    if dtype.kind == "uint":
        return w.node("Sub", w.scalar(0, dtype), x)
    return w.node("Neg", x)


def _floordiv(w: Writer, dtype: DType, x: str, y: str) -> str:
    if dtype.is_float:
        # floor(x / y) would round up a quotient just below an integer
        rest = _mod(w, dtype, x, y)
        return w.node("Round", w.node("Div", w.node("Sub", x, rest), y))
    rest = w.node("Mod", x, y)
    return w.node("Div", w.node("Sub", x, rest), y)


def _mod(w: Writer, dtype: DType, x: str, y: str) -> str:
    """The remainder with the divisor's sign."""
    if not dtype.is_float:
        return w.node("Mod", x, y)
    zero = w.scalar(0, dtype)
    rest = w.node("Mod", x, y, fmod=1)
    apart = w.node("Xor", w.node("Less", rest, zero), w.node("Less", y, zero))
    moved = w.node("And", apart, w.node("Not", w.node("Equal", rest, zero)))
    return w.node("Where", moved, w.node("Add", rest, y), rest)


def _trunc(w: Writer, dtype: DType, x: str) -> str:
    if not dtype.is_float:
        return x
    below = w.node("Less", x, w.scalar(0, dtype))
    return w.node("Where", below, w.node("Ceil", x), w.node("Floor", x))


def _exp2(w: Writer, dtype: DType, x: str) -> str:
    return w.node("Pow", w.scalar(2, dtype), x)


def _expm1(w: Writer, dtype: DType, x: str) -> str:
    """Near 0 by tanh, which is accurate there: 2 t / (1 - t) with t = tanh(x / 2)."""
    one, half = w.scalar(1, dtype), w.scalar(0.5, dtype)
    t = w.node("Tanh", w.node("Mul", x, half))
    near = w.node("Div", w.node("Add", t, t), w.node("Sub", one, t))
    far = w.node("Sub", w.node("Exp", x), one)
    return w.node("Where", w.node("Less", w.node("Abs", x), half), near, far)


def _log1p(w: Writer, dtype: DType, x: str) -> str:
    """log(u) x / (u - 1) with u = 1 + x, whose rounding cancels; x where u is 1."""
    one = w.scalar(1, dtype)
    u = w.node("Add", x, one)
    ratio = w.node("Div", x, w.node("Sub", u, one))
    close = w.node("Or", w.node("Equal", u, one), w.node("IsInf", u))
    return w.node("Where", close, x, w.node("Mul", w.node("Log", u), ratio))


def _log_to(base: float) -> Form:
    def form(w: Writer, dtype: DType, x: str) -> str:
        return w.node("Div", w.node("Log", x), w.scalar(math.log(base), dtype))

    return form


def _ndtr(w: Writer, dtype: DType, x: str) -> str:
    erf = w.node("Erf", w.node("Mul", x, w.scalar(math.sqrt(0.5), dtype)))
    half = w.scalar(0.5, dtype)
    return w.node("Add", half, w.node("Mul", half, erf))


def _is_negative(w: Writer, dtype: DType, x: str) -> str:
    """The sign bit, of -0.0 too: 1 / -0.0 is -inf. Of a NaN it is not known."""
    zero = w.scalar(0, dtype)
    return w.node("Or", w.node("Less", x, zero), w.node("Less", w.node("Reciprocal", x), zero))


def _atan2(w: Writer, dtype: DType, y: str, x: str) -> str:
    zero, turn = w.scalar(0, dtype), w.scalar(math.pi, dtype)
    down, left = _is_negative(w, dtype, y), _is_negative(w, dtype, x)
    both_zero = w.node("And", w.node("Equal", x, zero), w.node("Equal", y, zero))
    both_inf = w.node("And", w.node("IsInf", x), w.node("IsInf", y))
    # 0 / 0 is as 0 / 1, and inf / inf as 1 / 1, with their signs
    signs = w.node("Mul", w.node("Sign", x), w.node("Sign", y))
    ratio = w.node("Where", both_inf, signs, w.node("Div", y, x))
    mirrored = w.node("Where", left, w.node("Neg", y), y)
    angle = w.node("Atan", w.node("Where", both_zero, mirrored, ratio))
    half_turn = w.node("Where", down, w.node("Neg", turn), turn)
    return w.node("Where", left, w.node("Add", angle, half_turn), angle)


def _ne(w: Writer, dtype: DType, x: str, y: str) -> str:
    return w.node("Not", w.node("Equal", x, y))


def _shift(direction: str) -> Form:
    def form(w: Writer, dtype: DType, x: str, y: str) -> str:
        if dtype.kind == "uint":
            return w.node("BitShift", x, y, direction=direction)
        wide = dtypes.int64 if dtype is dtypes.int64 else dtypes.int32
        a, b = (n if dtype is wide else w.cast(n, wide) for n in (x, y))
        power = w.node("Pow", w.scalar(2, wide), b)
        out = w.node("Mul", a, power) if direction == "LEFT" else _floordiv(w, wide, a, power)
        return out if dtype is wide else w.cast(out, dtype)

    return form


def _bits(w: Writer, dtype: DType, x: str) -> str:
    if w.opset < 26:
        raise NoForm("the bits of a float before opset 26")
    whole = dtypes.int64 if dtype is dtypes.float64 else dtypes.int32
    return w.node("BitCast", x, to=ONNX_TYPES[whole])


def _unbits(w: Writer, dtype: DType, x: str) -> str:
    if w.opset < 26:
        raise NoForm("the bits of a float before opset 26")
    real = dtypes.float64 if dtype is dtypes.int64 else dtypes.float32
    return w.node("BitCast", x, to=ONNX_TYPES[real])


def _same(w: Writer, dtype: DType, x: str) -> str:
    return x


def _imag(w: Writer, dtype: DType, x: str) -> str:
    return w.node("Mul", x, w.scalar(0, dtype))


def _angle(w: Writer, dtype: DType, x: str) -> str:
    return w.node("Where", _is_negative(w, dtype, x), w.scalar(math.pi, dtype), w.scalar(0, dtype))


_FORMS: dict[str, Form] = {
    **{"div": _div, "neg": _neg, "floordiv": _floordiv, "mod": _mod, "trunc": _trunc, "ne": _ne},
    **{"exp2": _exp2, "expm1": _expm1, "log1p": _log1p, "ndtr": _ndtr, "atan2": _atan2},
    **{"log2": _log_to(2.0), "log10": _log_to(10.0)},
    **{"shl": _shift("LEFT"), "shr": _shift("RIGHT"), "bits": _bits, "unbits": _unbits},
    **{"conj": _same, "real": _same, "imag": _imag, "angle": _angle},
}


# --- ops whose bodies are careful where a runtime is careful itself ------------------------------


def _silu(w: Writer, v: Value, x: str) -> str:
    return w.node("Mul", x, w.node("Sigmoid", x))


def _softplus(w: Writer, v: Value, x: str) -> str:
    return w.node("Softplus", x)


def _logsigmoid(w: Writer, v: Value, x: str) -> str:
    return w.node("Neg", w.node("Softplus", w.node("Neg", x)))


def _selu(w: Writer, v: Value, x: str) -> str:
    return w.node("Selu", x)


def _hardsigmoid(w: Writer, v: Value, x: str) -> str:
    return w.node("HardSigmoid", x, alpha=1.0 / 6.0, beta=0.5)


def _with_slope(kind: str) -> Callable[[Writer, Value, str], str | None]:
    """An activation whose second argument ONNX has as an attribute, if it is one number."""

    def form(w: Writer, v: Value, x: str) -> str | None:
        slope = v.args[1]
        number = slope.params.get("value") if slope.kind == "full" else None
        known = isinstance(number, float) and v.shape == v.args[0].shape
        return w.node(kind, x, alpha=number) if known else None

    return form


_SHORT: dict[str, Callable[[Writer, Value, str], str | None]] = {
    "silu": _silu,
    "softplus": _softplus,
    "logsigmoid": _logsigmoid,
    "selu": _selu,
    "hardsigmoid": _hardsigmoid,
    "leaky_relu": _with_slope("LeakyRelu"),
    "elu": _with_slope("Elu"),
}

# --- ops that read the bits of floats, without them ----------------------------------------------


def _copysign(w: Writer, dtype: DType, x: str, y: str) -> str:
    size = w.node("Abs", x)
    return w.node("Where", _is_negative(w, dtype, y), w.node("Neg", size), size)


def _fmod(w: Writer, dtype: DType, x: str, y: str) -> str:
    return w.node("Mod", x, y, fmod=1)


def _signbit(w: Writer, dtype: DType, x: str) -> str:
    return _is_negative(w, dtype, x)


_SIGNS: dict[str, Form] = {"copysign": _copysign, "fmod": _fmod, "signbit": _signbit}

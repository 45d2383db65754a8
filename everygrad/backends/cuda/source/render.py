"""Scalar programs as CUDA C++: one line for each instruction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.cuda.source.c_types import HALVES, LAYOUTS
from everygrad.compiler.expr import Inst, Program
from everygrad.dtypes import DType
from everygrad.errors import DtypeError

# by intrinsic and kind of register: b bool, i signed, u unsigned, f real, c complex. {0}, {1}, {2}
# are arguments, {t} is their type, {w} the unsigned type in which signed arithmetic may wrap.
TABLE: dict[str, dict[str, str]] = {
    "add": {**dict.fromkeys("fc", "{0} + {1}"), "b": "{0} || {1}"},
    "sub": dict.fromkeys("fc", "{0} - {1}"),
    "mul": {**dict.fromkeys("fc", "{0} * {1}"), "b": "{0} && {1}"},
    "div": dict.fromkeys("fc", "{0} / {1}"),
    "pow": {"f": "pow_f({0}, {1})", "c": "pow_c({0}, {1})"},
    "floordiv": {"f": "floordiv_f({0}, {1})"},
    "mod": {"f": "mod_f({0}, {1})"},
    "max": {"f": "max_f({0}, {1})", "b": "{0} || {1}"},
    "min": {"f": "min_f({0}, {1})", "b": "{0} && {1}"},
    "neg": {**dict.fromkeys("fc", "-{0}"), **dict.fromkeys("iu", "({t})(0 - ({w}){0})")},
    "abs": {"f": "fabs({0})", "c": "abs_c({0})", "b": "{0}", "u": "{0}"},
    "sign": {"f": "sign_f({0})", "c": "sign_c({0})", "u": "({t})({0} != 0)"},
    "atan2": {"f": "atan2({0}, {1})"},
    "angle": {"f": "angle_f({0})", "c": "atan2({0}.im, {0}.re)"},
    "real": {**dict.fromkeys("fiub", "{0}"), "c": "{0}.re"},
    "imag": {**dict.fromkeys("fiub", "({t})0"), "c": "{0}.im"},
    "conj": {**dict.fromkeys("fiub", "{0}"), "c": "conj_c({0})"},
    **{fn: {"f": fn + "({0})", **dict.fromkeys("iub", "{0}")} for fn in ("floor", "ceil", "trunc")},
    "round": {"f": "rint({0})", "c": "round_c({0})", **dict.fromkeys("iub", "{0}")},
    "erf": {"f": "erf({0})"},
    "ndtr": {"f": "normcdf({0})"},  # 1 + erf would lose all digits far below 0
    **{
        fn: {"f": fn + "({0})", "c": fn + "_c({0})"}
        for fn in (
            *("sqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10"),
            *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
            *("asinh", "acosh", "atanh"),
        )
    },
    "eq": dict.fromkeys("biufc", "{0} == {1}"),
    "ne": dict.fromkeys("biufc", "{0} != {1}"),
    "lt": dict.fromkeys("biuf", "{0} < {1}"),
    "le": dict.fromkeys("biuf", "{0} <= {1}"),
    "gt": dict.fromkeys("biuf", "{0} > {1}"),
    "ge": dict.fromkeys("biuf", "{0} >= {1}"),
    "isnan": {**dict.fromkeys("fc", "{0} != {0}"), **dict.fromkeys("iub", "false")},
    "isinf": {
        "f": "is_inf({0})",
        "c": "is_inf({0}.re) || is_inf({0}.im)",
        **dict.fromkeys("iub", "false"),
    },
    "and": {"b": "{0} && {1}", **dict.fromkeys("iu", "({t})({0} & {1})")},
    "or": {"b": "{0} || {1}", **dict.fromkeys("iu", "({t})({0} | {1})")},
    "xor": {"b": "{0} != {1}", **dict.fromkeys("iu", "({t})({0} ^ {1})")},
    "not": {"b": "!{0}", **dict.fromkeys("iu", "({t})~{0}")},
    "shl": dict.fromkeys("iu", "shl<{t}>({0}, {1})"),
    "shr": dict.fromkeys("iu", "shr<{t}>({0}, {1})"),
    "bits": {"f": "bits_f({0})", **dict.fromkeys("iu", "{0}")},
    "unbits": {"i": "float_of({0})"},
    "mulhi": dict.fromkeys("iu", "mulhi({0}, {1})"),
    "select": dict.fromkeys("biufc", "{0} ? {1} : {2}"),
}
for _fn, _sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
    TABLE[_fn].update(dict.fromkeys("iu", f"({{t}})(({{w}}){{0}} {_sign} ({{w}}){{1}})"))
for _fn in ("pow", "floordiv", "mod"):
    TABLE[_fn].update({k: f"{_fn}_{k}<{{t}}>({{0}}, {{1}})" for k in "iu"})
for _fn, _sign in (("max", ">"), ("min", "<")):
    TABLE[_fn].update(dict.fromkeys("iu", f"{{0}} {_sign} {{1}} ? {{0}} : {{1}}"))
TABLE["abs"]["i"] = "({t})({0} < 0 ? 0 - ({w}){0} : ({w}){0})"
TABLE["sign"]["i"] = "({t})(({0} > 0) - ({0} < 0))"
# common constant exponents, as cheaper arithmetic of the same value
_POWERS = {1.0: "{0}", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", -1.0: "1 / {0}"}

# additions that the compiler never contracts into a fused multiply-add
_ROUNDED = {
    ("add", dtypes.float32): "__fadd_rn",
    ("sub", dtypes.float32): "__fsub_rn",
    ("add", dtypes.float64): "__dadd_rn",
    ("sub", dtypes.float64): "__dsub_rn",
}


def _real(value: float, dtype: DType) -> str:
    """A literal; values without a C++ literal are made from their bits."""
    if dtype is dtypes.float64:
        if math.isfinite(value):
            return repr(float(value))
        return f"__longlong_as_double({int(np.float64(value).view(np.uint64)):#x}ull)"
    with np.errstate(over="ignore"):
        number = np.asarray(value, dtype.np).astype(np.float32)[()]
    if math.isfinite(number):
        return f"{float(number)!r}f"
    return f"__uint_as_float({int(number.view(np.uint32)):#x}u)"


def constant(value: Any, dtype: DType) -> str:
    """A number as a register of `dtype`; integers wrap."""
    register = LAYOUTS[dtype].register
    if dtype.is_complex:
        part = dtypes.real_of(dtype)
        number = complex(value)
        return f"{register}({_real(number.real, part)}, {_real(number.imag, part)})"
    if dtype.is_float:
        return _real(float(value), dtype)
    if dtype is dtypes.bool_:
        return "true" if value else "false"
    return f"({register}){int(value) % (1 << dtype.bits)}ull"


def cast(value: str, source: DType, target: DType, rounds: bool = True) -> str:
    """A converted register; half floats are rounded to their precision, unless storing will."""
    if source is target:
        return value
    register = LAYOUTS[target].register
    if source.is_complex:
        if target.is_complex:
            part = LAYOUTS[dtypes.real_of(target)].register
            return f"{register}(({part}){value}.re, ({part}){value}.im)"
        if target is dtypes.bool_:
            return f"{value}.re != 0 || {value}.im != 0"
        return cast(f"{value}.re", dtypes.real_of(source), target, rounds)
    if target.is_complex:
        return f"{register}({cast(value, source, dtypes.real_of(target))}, 0)"
    if target is dtypes.bool_:
        return f"{value} != 0"
    if target in HALVES:
        wide = f"odd_f({value})" if source is dtypes.float64 else f"(float){value}"
        if target is dtypes.bfloat16 and source.is_integer and source.bits > 16:
            wide = f"odd_f(odd_d({value}))" if source.bits == 64 else f"odd_f((double){value})"
        if source is dtypes.float32 or source in HALVES:
            wide = value
        name = "half_round" if target is dtypes.float16 else "brain_round"
        return f"{name}({wide})" if rounds else wide
    if source.is_float and target.is_integer:
        limits = np.iinfo(target.np)
        low, high = constant(limits.min, target), constant(limits.max, target)
        return f"saturate<{register}>({value}, {low}, {high})"
    return f"({register}){value}"


def instruction(inst: Inst, args: Sequence[str], sources: Sequence[DType]) -> str:
    """The expression of one instruction on named arguments."""
    if inst.fn == "cast":
        return cast(args[0], sources[0], inst.dtype)
    of = sources[1] if inst.fn == "select" else sources[0]
    lay = LAYOUTS[of]
    form = TABLE[inst.fn].get(lay.kind)
    if form is None:
        raise DtypeError(f"cuda: {inst.fn} does not take {of}; cast it with astype()")
    text = form.format(*args, t=lay.register, w=lay.word)
    if of in HALVES and LAYOUTS[inst.dtype].kind == "f":  # lowering widens before it computes
        return cast(text, dtypes.float32, of)
    return text


def _power(program: Program, inst: Inst, args: Sequence[str]) -> str | None:
    """A power by a constant exponent that one or two products compute."""
    last = program.insts[inst.args[-1]]
    if inst.fn != "pow" or not inst.dtype.is_float or last.fn != "const":
        return None
    form = _POWERS.get(last.value)
    return None if form is None else form.format(args[0])


def body(
    program: Program, inputs: dict[int, str], final: str, exact: bool = False, prefix: str = "t"
) -> list[str]:
    """The lines that compute the program from named registers; `final` names the result, `prefix`
    begins the names of what is computed on the way. A half float result is not rounded here:
    storing it rounds. `exact`: no addition is contracted into a fused multiply-add."""
    names: list[str] = []
    lines = []
    last = len(program.insts) - 1
    for i, inst in enumerate(program.insts):
        args = [names[a] for a in inst.args]
        sources = [program.insts[a].dtype for a in inst.args]
        if inst.fn in ("input", "const"):
            is_input = inst.fn == "input"
            text = inputs[inst.value] if is_input else f"({constant(inst.value, inst.dtype)})"
            if i < last:
                names.append(text)
                continue
        elif i == last and inst.fn == "cast":
            text = cast(args[0], sources[0], inst.dtype, rounds=False)
        else:
            text = _power(program, inst, args) or instruction(inst, args, sources)
            if exact and (inst.fn, inst.dtype) in _ROUNDED:
                text = f"{_ROUNDED[inst.fn, inst.dtype]}({args[0]}, {args[1]})"
        names.append(final if i == last else f"{prefix}{i}")
        lines.append(f"const {LAYOUTS[inst.dtype].register} {names[-1]} = {text};")
    return lines


def used_inputs(program: Program) -> list[int]:
    return sorted({inst.value for inst in program.insts if inst.fn == "input"})

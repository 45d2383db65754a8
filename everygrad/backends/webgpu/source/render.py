"""Scalar programs as WGSL: one line for each intrinsic, and the frame of a kernel around them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.backends.webgpu.source.complexlib import COMPLEX_FUNCTIONS
from everygrad.backends.webgpu.source.intlib import INTEGER_FUNCTIONS
from everygrad.backends.webgpu.source.mathlib import FLOAT_FUNCTIONS, exp_low
from everygrad.backends.webgpu.source.normallib import NORMAL_FUNCTIONS
from everygrad.backends.webgpu.source.word_layout import layout, store
from everygrad.compiler.expr import Inst, Program
from everygrad.dtypes import DType
from everygrad.errors import DtypeError

_NAME = re.compile(r"^fn (\w+)\(", re.MULTILINE)
_CALL = re.compile(r"\b(\w+)\(")


def _split(text: str) -> dict[str, str]:
    """Functions by name."""
    starts = [m.start() for m in _NAME.finditer(text)]
    pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
    return {piece[3 : piece.index("(")]: piece for piece in pieces}


LIBRARY = {
    name: text
    for part in (FLOAT_FUNCTIONS, exp_low(), NORMAL_FUNCTIONS, COMPLEX_FUNCTIONS, INTEGER_FUNCTIONS)
    for name, text in _split(part).items()
}

# by intrinsic and kind of register: b bool, i int, u uint, f float, c complex, l int64, ul uint64
# (l serves where ul is absent). A driver may replace x - x by 0, (x + y) - x by y and x * 0 by 0,
# regardless of NaN and rounding: it does not where bits are changed as integers in between, hence
# the forms of sub and times_zero_f.
TABLE: dict[str, dict[str, str]] = {
    "add": {"f": "{0} + {1}", "i": "{0} + {1}", "u": "{0} + {1}", "l": "add_l({0}, {1})"},
    "sub": {"f": "{0} + neg_f({1})", "i": "{0} - {1}", "u": "{0} - {1}", "l": "sub_l({0}, {1})"},
    "mul": {"f": "{0} * {1}", "i": "{0} * {1}", "u": "{0} * {1}", "l": "mul_l({0}, {1})"},
    "div": {"f": "div_f({0}, {1})"},
    "pow": {
        "f": "pow_f({0}, {1})",
        "i": "pow_i({0}, {1})",
        "u": "pow_u({0}, {1})",
        "l": "pow_l({0}, {1})",
        "ul": "pow_ul({0}, {1})",
    },
    "floordiv": {
        "f": "floordiv_f({0}, {1})",
        "i": "floordiv_i({0}, {1})",
        "u": "floordiv_u({0}, {1})",
        "l": "floordiv_l({0}, {1})",
        "ul": "floordiv_ul({0}, {1})",
    },
    "mod": {
        "f": "mod_f({0}, {1})",
        "i": "mod_i({0}, {1})",
        "u": "mod_u({0}, {1})",
        "l": "mod_l({0}, {1})",
        "ul": "mod_ul({0}, {1})",
    },
    "max": {
        "f": "max_f({0}, {1})",
        "i": "max({0}, {1})",
        "u": "max({0}, {1})",
        "l": "max_l({0}, {1})",
        "ul": "max_ul({0}, {1})",
        "b": "{0} || {1}",
    },
    "min": {
        "f": "min_f({0}, {1})",
        "i": "min({0}, {1})",
        "u": "min({0}, {1})",
        "l": "min_l({0}, {1})",
        "ul": "min_ul({0}, {1})",
        "b": "{0} && {1}",
    },
    "neg": {"f": "neg_f({0})", "i": "neg_i({0})", "u": "0u - {0}", "l": "neg_l({0})"},
    "abs": {"f": "abs_f({0})", "i": "abs({0})", "u": "{0}", "l": "abs_l({0})", "ul": "{0}"},
    "sign": {
        "f": "sign_f({0})",
        "i": "sign_i({0})",
        "u": "min({0}, 1u)",
        "l": "sign_l({0})",
        "ul": "vec2<u32>(min({0}.x | {0}.y, 1u), 0u)",
    },
    "atan2": {"f": "atan2_f({0}, {1})"},
    "exp2": {"f": "exp2_f({0})"},
    "log10": {"f": "log2_f({0}) * 0.3010299956639812"},
    "ndtr": {"f": "ndtr_f({0})"},
    "angle": {"f": "atan2_f(0.0, {0})"},
    "imag": {"f": "0.0", "i": "0", "u": "0u", "l": "vec2<u32>(0u, 0u)"},
    **{fn: dict.fromkeys("fiulb", "{0}") for fn in ("real", "conj")},
    **{
        fn: {"f": fn + "_f({0})"}
        for fn in (
            *("sqrt", "exp", "expm1", "log", "log1p", "log2"),
            *("erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
            *("asinh", "acosh", "atanh"),
        )
    },
    **{
        fn: {"f": fn + "_f({0})", **dict.fromkeys("iul", "{0}")}
        for fn in ("floor", "ceil", "trunc", "round")
    },
    "eq": {"f": "eq_f({0}, {1})", **dict.fromkeys("iub", "{0} == {1}"), "l": "eq_l({0}, {1})"},
    "ne": {"f": "!eq_f({0}, {1})", **dict.fromkeys("iub", "{0} != {1}"), "l": "!eq_l({0}, {1})"},
    "lt": {
        "f": "lt_f({0}, {1})",
        **dict.fromkeys("iu", "{0} < {1}"),
        "b": "!{0} && {1}",
        "l": "lt_l({0}, {1})",
        "ul": "lt_ul({0}, {1})",
    },
    "le": {
        "f": "le_f({0}, {1})",
        **dict.fromkeys("iu", "{0} <= {1}"),
        "b": "!{0} || {1}",
        "l": "!lt_l({1}, {0})",
        "ul": "!lt_ul({1}, {0})",
    },
    "gt": {
        "f": "lt_f({1}, {0})",
        **dict.fromkeys("iu", "{0} > {1}"),
        "b": "{0} && !{1}",
        "l": "lt_l({1}, {0})",
        "ul": "lt_ul({1}, {0})",
    },
    "ge": {
        "f": "le_f({1}, {0})",
        **dict.fromkeys("iu", "{0} >= {1}"),
        "b": "{0} || !{1}",
        "l": "!lt_l({0}, {1})",
        "ul": "!lt_ul({0}, {1})",
    },
    "isnan": {"f": "is_nan({0})"},
    "isinf": {"f": "is_inf({0})"},
    "and": {"b": "{0} && {1}", **dict.fromkeys("iul", "{0} & {1}")},
    "or": {"b": "{0} || {1}", **dict.fromkeys("iul", "{0} | {1}")},
    "xor": {"b": "{0} != {1}", **dict.fromkeys("iul", "{0} ^ {1}")},
    "not": {"b": "!{0}", **dict.fromkeys("iul", "~{0}")},
    "shl": {"i": "shl_i({0}, {1})", "u": "shl_u({0}, {1})", "l": "shl_l({0}, {1})"},
    "shr": {
        "i": "shr_i({0}, {1})",
        "u": "shr_u({0}, {1})",
        "l": "shr_l({0}, {1})",
        "ul": "shr_ul({0}, {1})",
    },
    "bits": {"f": "bitcast<i32>({0})", **dict.fromkeys("iul", "{0}")},
    "unbits": {"i": "bitcast<f32>({0})"},
    "mulhi": {"u": "mulhi_u({0}, {1})"},
    "select": dict.fromkeys("fiubl", "select({2}, {1}, {0})"),
}
for _fn in ("add", "sub", "mul", "div", "pow", "eq"):
    TABLE[_fn]["c"] = _fn + "_c({0}, {1})"
for _fn in (
    *("neg", "abs", "sign", "angle", "conj", "round"),
    *("sqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh"),
):
    TABLE[_fn]["c"] = _fn + "_c({0})"
TABLE["real"]["c"], TABLE["imag"]["c"] = "re_c({0})", "im_c({0})"
TABLE["ne"]["c"] = "!eq_c({0}, {1})"
TABLE["isnan"]["c"] = "is_nan(re_c({0})) || is_nan(im_c({0}))"
TABLE["isinf"]["c"] = "is_inf(re_c({0})) || is_inf(im_c({0}))"
TABLE["select"]["c"] = "select({2}, {1}, {0})"
CASTS: dict[str, str] = {
    "b f": "select(0.0, 1.0, {0})",
    "b i": "select(0, 1, {0})",
    "b u": "select(0u, 1u, {0})",
    "b l": "vec2<u32>(select(0u, 1u, {0}), 0u)",
    "f b": "!is_zero({0})",
    "i b": "{0} != 0",
    "u b": "{0} != 0u",
    "l b": "({0}.x | {0}.y) != 0u",
    "i f": "f32({0})",
    "u f": "f32({0})",
    "l f": "f32_of_l({0})",
    "ul f": "f32_of_ul({0})",
    "f i": "i32_of_f({0})",
    "f u": "u32_of_f({0})",
    "f l": "l_of_f({0})",
    "f ul": "ul_of_f({0})",
    "i u": "bitcast<u32>({0})",
    "u i": "bitcast<i32>({0})",
    "i l": "l_of_i({0})",
    "u l": "l_of_u({0})",
    "l i": "bitcast<i32>({0}.x)",
    "l u": "{0}.x",
}
# small integers wrap around after each of these, as in memory
_WRAPPED = {"add", "sub", "mul", "neg", "abs", "pow", "floordiv", "shl", "not", "cast"}
_WRAPS = {
    dtypes.int8: "(({0}) << 24u) >> 24u",
    dtypes.int16: "(({0}) << 16u) >> 16u",
    dtypes.uint8: "({0}) & 255u",
    dtypes.uint16: "({0}) & 65535u",
}
_ROUNDS = {dtypes.float16: "half_round({0})", dtypes.bfloat16: "brain_round({0})"}


def constant(value: Any, dtype: DType) -> str:
    """A literal; a value without a WGSL literal is made from its bits."""
    kind = layout(dtype).kind
    if kind == "b":
        return "true" if value else "false"
    if kind == "c":
        number = complex(value)
        return f"c_of({_real(number.real)}, {_real(number.imag)})"
    if kind == "f":
        return _real(value, dtype)
    if kind == "i":
        return f"i32({int(value)})"
    if kind == "u":
        return f"{int(value)}u"
    word = int(value) & 0xFFFFFFFFFFFFFFFF
    return f"vec2<u32>({word & 0xFFFFFFFF}u, {word >> 32}u)"


def _real(value: Any, dtype: DType = dtypes.float32) -> str:
    """A literal of a float; a value without one is made from its bits."""
    with np.errstate(over="ignore"):
        number = float(np.asarray(value, dtype.np).astype(np.float32))
    if math.isfinite(number) and abs(number) >= 2.0**-126:
        return f"{number!r}f"
    bits = int(np.float32(number).view(np.uint32))
    return f"bits_f({bits}u)" if bits else "0.0f"


_ZEROS = {constant(0.0, dtypes.float32), constant(-0.0, dtypes.float32)}


def cast(value: str, source: DType, target: DType) -> str:
    """A register converted to another dtype; half floats are rounded."""
    a, b = layout(source).kind, layout(target).kind
    if a == "c":
        if target is dtypes.bool_:
            return f"!is_zero_c({value})"
        return value if b == "c" else cast(f"re_c({value})", dtypes.float32, target)
    if b == "c":
        return f"c_of({cast(value, source, dtypes.float32)}, 0.0)"
    rounded = _ROUNDS.get(target)
    if a == b == "f" or b == "f":
        plain = value if a == "f" else _cast_form(CASTS, a, b).format(value)
        if target is dtypes.bfloat16:
            plain = _to_be_rounded(value, source, target)
        if rounded and source is not target:
            return rounded.format(plain)
        return plain
    if a == "f" and target in _WRAPS:  # a value that is too large becomes the largest
        limits = np.iinfo(target.np)
        name, end = ("i32", "") if b == "i" else ("u32", "u")
        return f"clamp({name}_of_f({value}), {limits.min}{end}, {limits.max}{end})"
    plain = value if a == b or {a, b} == {"l", "ul"} else _cast_form(CASTS, a, b).format(value)
    narrower = target in _WRAPS and source is not target and a != "b"
    return _WRAPS[target].format(plain) if narrower else plain


def _to_be_rounded(value: str, source: DType, half: DType) -> str:
    """A register as a float32 such that rounding it to a half float next rounds only once."""
    if half is dtypes.bfloat16 and source.is_integer and source.bits > 16:
        return f"odd_of_{layout(source).kind}({value})"
    return cast(value, source, dtypes.float32)


def _cast_form(table: dict[str, str], a: str, b: str) -> str:
    for key in (f"{a} {b}", f"{a[-1]} {b}", f"{a} {b[-1]}", f"{a[-1]} {b[-1]}"):
        if key in table:
            return table[key]
    raise AssertionError(f"no cast from {a} to {b}")


def instruction(inst: Inst, args: Sequence[str], sources: Sequence[DType]) -> str:
    """The WGSL expression of one instruction on named arguments."""
    if inst.fn == "cast":
        return cast(args[0], sources[0], inst.dtype)
    of = sources[1] if inst.fn == "select" else sources[0]
    kind = layout(of).kind
    forms = TABLE[inst.fn]
    form = forms.get(kind) or forms.get(kind[-1])
    if form is None:
        raise DtypeError(f"webgpu: {inst.fn} does not take {of}; cast it with astype()")
    if inst.fn == "mul" and kind == "f" and not _ZEROS.isdisjoint(args):
        form = "times_zero_f({1}, {0})" if args[0] in _ZEROS else "times_zero_f({0}, {1})"
    text = form.format(*args)
    if inst.fn in _WRAPPED and inst.dtype in _WRAPS:
        return _WRAPS[inst.dtype].format(text)
    return text


def _gelu(program: Program, inst: Inst, args: Sequence[str]) -> str | None:
    """x * ndtr(x) as one function, if this is one: ndtr(x) may be subnormal, which a GPU flushes,
    where the product is not."""
    if inst.fn != "mul" or inst.dtype is not dtypes.float32:
        return None
    first, second = inst.args
    found = program.insts[second]
    return f"gelu_f({args[0]})" if found.fn == "ndtr" and found.args == (first,) else None


def _by_constant(program: Program, inst: Inst, args: Sequence[str]) -> str | None:
    """Sums with 0.0, which drivers take for the other term although that may be -0.0; quotients of
    complex numbers by real ones, and of whole ones by what is not 0."""
    number = program.insts[inst.args[-1]] if inst.fn in _CONSTANT else None
    if number is None or number.fn != "const":
        return None
    kind = layout(inst.dtype).kind
    if inst.fn in ("floordiv", "mod"):
        sign = "/" if inst.fn == "floordiv" else "%"
        return f"{args[0]} {sign} {args[1]}" if kind == "u" and number.value else None
    if inst.fn == "add" and kind in "fc" and not number.value and not _is_negative(number.value):
        return f"plus_zero_{kind}({args[0]})"
    if inst.fn == "div" and kind == "c" and not number.value.imag:
        return f"over_c({args[0]}, {_real(number.value.real)})"
    return None


_CONSTANT = ("add", "div", "floordiv", "mod")


def _is_word(inst: Inst) -> bool:
    return inst.fn == "const" and inst.dtype is dtypes.uint32


def _is_negative(zero: complex) -> bool:
    number = complex(zero)
    return math.copysign(1.0, number.real) < 0 or math.copysign(1.0, number.imag) < 0


def body(
    program: Program, inputs: dict[int, str], final: str, prefix: str = "t", low: bool = False
) -> list[str]:
    """The lines that compute the program from named registers; `final` names the result, `prefix`
    begins the names of what is computed on the way; `low`: exp is of what is not above 0."""
    names: list[str] = []
    lines = []
    last = len(program.insts) - 1
    for i, inst in enumerate(program.insts):
        args = [names[a] for a in inst.args]
        sources = [program.insts[a].dtype for a in inst.args]
        if inst.fn == "input":
            text = inputs[inst.value]
        elif inst.fn == "const":
            text = constant(inst.value, inst.dtype)
        elif i == last and inst.fn == "cast" and inst.dtype in _ROUNDS:
            text = _to_be_rounded(args[0], sources[0], inst.dtype)  # rounded as it is stored
        elif low and inst.fn == "exp" and inst.dtype is dtypes.float32:
            text = f"exp_low_f({args[0]})"
        else:
            special = _gelu(program, inst, args) or _by_constant(program, inst, args)
            text = special or instruction(inst, args, sources)
        # a zero stays a literal, so that `instruction` sees it; inputs have names
        plain = text in _ZEROS or inst.fn == "input" or _is_word(inst)
        name = final if i == last else text if plain else f"{prefix}{i}"
        names.append(name)
        if name == text:
            continue
        lines.append(f"  let {name}: {layout(inst.dtype).register} = {text};")
    return lines


# --- the kernel ----------------------------------------------------------------------------------


def slot(i: int) -> str:
    """Word i of the uniform."""
    return f"P.v[{i // 4}].{'xyzw'[i % 4]}"


def with_library(text: str) -> str:
    """The source and those library functions that it calls, directly or not."""
    found: dict[str, str] = {}
    todo = [text]
    while todo:
        for name in _CALL.findall(todo.pop()):
            if name in LIBRARY and name not in found:
                found[name] = LIBRARY[name]
                todo.append(LIBRARY[name])
    return "".join(found[n] for n in sorted(found)) + text


def frame(inputs: int, params: int, text: str, out: str = "out: array<u32>") -> str:
    """Bindings a0, a1, ... to read, `out` to write, P the uniform; then the kernel's text."""
    lines = [
        f"@group(0) @binding({i}) var<storage, read> a{i}: array<u32>;\n" for i in range(inputs)
    ]
    lines.append(f"@group(0) @binding({inputs}) var<storage, read_write> {out};\n")
    lines.append(f"struct Params {{ v: array<vec4<u32>, {max(1, -(-params // 4))}> }}\n")
    lines.append(f"@group(0) @binding({inputs + 1}) var<uniform> P: Params;\n")
    return "".join(lines) + with_library(text)


MAIN = (
    "@compute @workgroup_size(256) fn main(@builtin(workgroup_id) w: vec3<u32>,\n"
    "    @builtin(local_invocation_index) l: u32, @builtin(num_workgroups) g: vec3<u32>) {\n"
)
THREAD = "  let t = (w.y * g.x + w.x) * 256u + l;\n"


def element_kernel(inputs: int, params: int, dtype: DType, text: str, count: str) -> str:
    """A kernel whose text defines `element(e)`, the value of output element e."""
    main = MAIN + THREAD + store(dtype, count) + "}\n"
    return frame(inputs, params, text + main)


def split_index(rank: int, first: int, index: str = "e") -> tuple[list[str], list[str]]:
    """Lines that split an index into coordinates, by sizes in words first.. of the uniform (all
    but the first size); and the coordinates' names."""
    lines, names = [f"  var r = {index};"], [f"i{k}" for k in range(rank)]
    for k in range(rank - 1, 0, -1):
        size = slot(first + k - 1)
        lines.append(f"  let i{k} = r % {size};\n  r = r / {size};")
    lines.append("  let i0 = r;")
    return lines, names


def address(first: int, names: Sequence[str]) -> str:
    """offset + coordinates * strides, from words first.. of the uniform."""
    terms = [slot(first), *(f"{n} * {slot(first + 1 + k)}" for k, n in enumerate(names))]
    return " + ".join(terms)

"""Elementwise ops on broadcast and strided operands, around the widths of vectors."""

from __future__ import annotations

from typing import Any

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem

TF = torch.nn.functional
# name: the range of the inputs, and PyTorch's function where it has another name
UNARY: dict[str, tuple[float, float, Any]] = {
    "exp": (-5, 5, torch.exp),
    "log": (0.1, 9, torch.log),
    "log1p": (-0.5, 9, torch.log1p),
    "expm1": (-3, 3, torch.expm1),
    "sin": (-9, 9, torch.sin),
    "cos": (-9, 9, torch.cos),
    "tanh": (-4, 4, torch.tanh),
    "sigmoid": (-9, 9, torch.sigmoid),
    "sqrt": (0.1, 9, torch.sqrt),
    "rsqrt": (0.1, 9, torch.rsqrt),
    "erf": (-3, 3, torch.erf),
    "gelu": (-4, 4, TF.gelu),
    "silu": (-6, 6, TF.silu),
    "softplus": (-6, 6, TF.softplus),
    "reciprocal": (0.3, 4, torch.reciprocal),
    "atan": (-4, 4, torch.atan),
    "asinh": (-4, 4, torch.asinh),
    "square": (-4, 4, torch.square),
    "negative": (-4, 4, torch.neg),
    "elu": (-4, 4, TF.elu),
    "sinh": (-5, 5, torch.sinh),
    "cosh": (-5, 5, torch.cosh),
    "tan": (-1.4, 1.4, torch.tan),
    "asin": (-0.9, 0.9, torch.asin),
    "acos": (-0.9, 0.9, torch.acos),
    "acosh": (1.1, 9, torch.acosh),
    "atanh": (-0.9, 0.9, torch.atanh),
    "exp2": (-5, 5, torch.exp2),
    "log2": (0.1, 9, torch.log2),
    "log10": (0.1, 9, torch.log10),
}
BINARY: dict[str, tuple[float, float, Any]] = {
    "add": (-2, 2, torch.add),
    "subtract": (-2, 2, torch.sub),
    "multiply": (-2, 2, torch.mul),
    "divide": (0.5, 2, torch.div),
    "pow": (0.3, 2, torch.pow),
    "atan2": (0.2, 2, torch.atan2),
    "hypot": (0.2, 2, torch.hypot),
    "logaddexp": (-3, 3, torch.logaddexp),
}


def unary(d: Draw) -> Problem:
    name, shape, dtype = d.pick(tuple(UNARY)), d.any_shape(), d.dtype()
    low, high, theirs = UNARY[name]
    return Problem(
        (d.floats(shape, dtype, low, high),), getattr(eg, name), theirs, "values", dtype=dtype
    )


def binary(d: Draw) -> Problem:
    """Gradients of broadcast operands are sums."""
    name, shape, dtype = d.pick(tuple(BINARY)), d.any_shape(), d.dtype()
    low, high, theirs = BINARY[name]
    shapes = [shape, shape]
    which = d.pick((0, 1, 1))
    kind = d.pick(("same", "same", "tail", "ones", "scalar", "both"))
    if kind == "tail":
        shapes[which] = shape[d.between(0, len(shape)) :]
    elif kind == "ones":
        shapes[which] = tuple(1 if d.chance(0.5) else n for n in shape)
    elif kind == "scalar":
        shapes[which] = ()
    elif kind == "both":
        shapes = [tuple(1 if d.chance(0.4) else n for n in shape) for _ in shapes]
    return Problem(
        [d.floats(s, dtype, low, high) for s in shapes],
        getattr(eg, name),
        theirs,
        "values",
        looseness=2.0,  # sums of many
        dtype=dtype,
    )


def selecting(d: Draw) -> Problem:
    """maximum, minimum, relu, clamp, abs: exact, and no gradient is lost at ties."""
    name, shape, dtype = d.pick(("relu", "abs", "clamp", "sign", "floor")), d.any_shape(), d.dtype()
    if name == "clamp":
        return Problem(
            (d.floats(shape, dtype),),
            # numbers of every dtype: others are rounded to it, beside the referee's
            lambda x: eg.clamp(x, -0.71875, 0.71875),
            lambda x: torch.clamp(x, -0.71875, 0.71875),
            "plain",
            dtype=dtype,
        )
    theirs = getattr(torch, name)
    return Problem(
        (d.floats(shape, dtype, -3, 3),), getattr(eg, name), theirs, "exact", dtype=dtype
    )


def comparing(d: Draw) -> Problem:
    names = {"less": torch.lt, "equal": torch.eq, "greater_equal": torch.ge, "not_equal": torch.ne}
    name, shape, dtype = d.pick(tuple(names)), d.any_shape(), d.dtype()
    return Problem(
        (d.ties(shape, dtype), d.ties(shape, dtype)), getattr(eg, name), names[name], "exact"
    )


def specials(d: Draw) -> Problem:
    """NaN, infinities and zeros of both signs, lane by lane."""
    names = {
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "less": torch.lt,
        "equal": torch.eq,
        "not_equal": torch.ne,
        "multiply": torch.mul,
        "add": torch.add,
        "isnan": None,
        "isfinite": None,
        "abs": None,
        "sign": None,
        "signbit": None,
        "copysign": torch.copysign,
        "nextafter": torch.nextafter,
    }
    name, shape, dtype = d.pick(tuple(names)), d.any_shape(), d.dtype()
    if name == "nextafter" and dtype in ("float16", "bfloat16"):
        name = "signbit"
    first, other = d.specials(shape, dtype), names[name]
    if name == "nextafter" and dtype == "float32":  # the next of another dtype is another
        other = lambda x, y: torch.nextafter(x.float(), y.float()).double()  # noqa: E731
    if other is None:
        theirs = getattr(torch, name)
        if name == "sign":  # PyTorch's of NaN is 0; NumPy's and the Array API's is NaN
            theirs = lambda x: torch.where(x.isnan(), x, torch.sign(x))  # noqa: E731
        return Problem((first,), getattr(eg, name), theirs, "exact", dtype=dtype)
    kind = "plain" if name in ("maximum", "minimum") else "exact"  # of two zeros either is largest
    return Problem((first, d.specials(shape, dtype)), getattr(eg, name), other, kind, dtype=dtype)


def integers(d: Draw) -> Problem:
    """Exact, at every width of integers."""
    names = {
        "add": torch.add,
        "subtract": torch.sub,
        "multiply": torch.mul,
        "bitwise_and": torch.bitwise_and,
        "bitwise_xor": torch.bitwise_xor,
        "maximum": torch.maximum,
        "floor_divide": torch.floor_divide,
        "remainder": torch.remainder,
        "bitwise_left_shift": torch.bitwise_left_shift,
        "bitwise_right_shift": torch.bitwise_right_shift,
        "pow": torch.pow,
        "less": torch.lt,
    }
    name, shape = d.pick(tuple(names)), d.any_shape()
    kind = d.pick(("int8", "uint8", "int16", "int32", "int64"))
    low = 0 if kind == "uint8" else -11
    x = d.integers(shape, low, 12, kind, layout=True)
    y = d.integers(shape, 1, 7 if "shift" in name or name == "pow" else 12, kind, layout=True)
    return Problem((x, y), getattr(eg, name), names[name], "exact")


def unsigned(d: Draw) -> Problem:
    """Of dtypes for which PyTorch has few functions: small enough for its signed ones."""
    names = {
        "add": torch.add,
        "multiply": torch.mul,
        "floor_divide": torch.floor_divide,
        "remainder": torch.remainder,
        "maximum": torch.maximum,
        "bitwise_right_shift": torch.bitwise_right_shift,
        "pow": torch.pow,
    }
    name, shape = d.pick((*names, "sign", "abs", "square", "round")), d.any_shape()
    kind = d.pick(("uint16", "uint32", "uint64"))
    x, y = (d.integers(shape, low, 7, kind) for low in (0, 1))  # PyTorch has no flip of these
    if name not in names:
        theirs = getattr(torch, name)
        return Problem((x,), getattr(eg, name), lambda x: theirs(x.to(torch.int64)), "exact")
    return Problem(
        (x, y),
        getattr(eg, name),
        lambda x, y: names[name](x.to(torch.int64), y.to(torch.int64)),
        "exact",
    )


def roots(d: Draw) -> Problem:
    """Powers that are numbers, of zeros of both signs and infinities: NumPy takes other ways."""
    shape, dtype, exponent = d.any_shape(), d.dtype(halves=0), d.pick((0.5, 2.0, -1.0, 0.0, 3.0))
    x = d.specials(shape, dtype)
    if shape and d.chance(0.3):  # a row of exponents
        row = d.given(d._values.choice((0.5, 2.0, -1.0), shape[-1:]), dtype, False, False)
        whole = lambda x, y: torch.pow(x, y.expand_as(x).contiguous())  # noqa: E731
        return Problem((x, row), eg.pow, whole, "plain", dtype=dtype)

    def theirs(x: Any) -> Any:  # of a number 0.5 it takes the square root, which is NaN of -inf
        return torch.pow(x, torch.full_like(x, exponent))

    return Problem((x,), lambda x: eg.pow(x, exponent), theirs, "plain", dtype=dtype)


def truths(d: Draw) -> Problem:
    names = {
        "logical_and": torch.logical_and,
        "logical_or": torch.logical_or,
        "logical_xor": torch.logical_xor,
        "bitwise_and": torch.bitwise_and,
        "bitwise_or": torch.bitwise_or,
        "bitwise_xor": torch.bitwise_xor,
        "equal": torch.eq,
        "not_equal": torch.ne,
        "where": lambda x, y: torch.where(x, y, ~x),
    }
    name, shape = d.pick(tuple(names)), d.any_shape()
    x, y = d.booleans(shape), d.booleans(shape)
    if name == "where":
        return Problem((x, y), lambda x, y: eg.where(x, y, ~x), names[name], "exact")
    return Problem(
        (x, y),
        lambda x, y: eg.logical_not(getattr(eg, name)(x, y)),
        lambda x, y: torch.logical_not(names[name](x, y)),
        "exact",
    )


FLOATS = ("float", "float", "float")  # of any width
WHOLE = ("bool", "int8", "uint8", "int16", "int32", "int64")


def converting(d: Draw) -> Problem:
    """From any dtype to any other, numbers that all of them have; and the functions of integers
    that are their own formula."""
    shape, kind = d.any_shape(), d.pick((*WHOLE, *FLOATS))
    target = d.dtype(halves=0.6) if d.chance(0.5) else d.pick(WHOLE)
    if kind in FLOATS:  # with a fraction, which integers drop; integers have no negative zero
        x = d.given(d._values.integers(0, 60, shape) / 4, d.dtype(halves=0.5), grad=False)
    wide = getattr(torch, target) if target in WHOLE else torch.float64

    def theirs(x: Any) -> Any:
        return x.to(wide)

    if kind in FLOATS:
        return Problem((x,), lambda x: x.astype(target), theirs, "exact", dtype=target)
    name = d.pick(("astype", "astype", "square", "sign", "abs"))
    x = d.booleans(shape) if kind == "bool" else d.integers(shape, 0, 11, kind, layout=True)
    if name != "astype" and kind != "bool":
        return Problem((x,), getattr(eg, name), getattr(torch, name), "exact")
    return Problem((x,), lambda x: x.astype(target), theirs, "exact", dtype=target)


def ternary(d: Draw) -> Problem:
    name, shape, dtype = d.pick(("addcmul", "lerp", "where")), d.any_shape(), d.dtype()
    x, y, z = (d.floats(shape, dtype, -2, 2) for _ in range(3))
    if name == "where":
        return Problem(
            (x, y),
            lambda a, b: eg.where(a > 0.125, a * 2, b),
            lambda a, b: torch.where(a > 0.125, a * 2, b),
            "exact",
            dtype=dtype,
        )
    return Problem((x, y, z), getattr(eg, name), getattr(torch, name), "values", dtype=dtype)


SECTION = OpSection(
    "elementwise",
    (
        "chunked",
        "device",
        "elementwise",
        "fused",
        "gpu",
        "group_threads",
        "loops",
        "lowering",
        "numpy_render",
        "parallel_for",
        "render",
        "writer",
    ),
    {
        "unary": (3, unary),
        "binary": (4, binary),
        "selecting": (2, selecting),
        "comparing": (1, comparing),
        "specials": (1.5, specials),
        "integers": (1.5, integers),
        "converting": (1, converting),
        "ternary": (1, ternary),
        "unsigned": (0.7, unsigned),
        "powers by numbers": (0.4, roots),
        "truths": (0.4, truths),
    },
    weight=1.5,
)

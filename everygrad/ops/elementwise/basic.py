"""Elementwise ops: a scalar body and, for each input, the derivative times g.

Formulas name what they need (`g`, `out`, the inputs) and are written with op functions that take
scalar expressions as well as tensors. `s` in front of a name means the scalar intrinsic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from everygrad import dtypes
from everygrad.compiler.expr import Expr, as_expr, call
from everygrad.compiler.facts import Neutral
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply, binary, operands
from everygrad.errors import DtypeError, ShapeError
from everygrad.ops.record import samples as s
from everygrad.ops.record.arguments import tensor_of
from everygrad.ops.record.families import Elementwise, Function, check_kind, elementwise
from everygrad.ops.record.spec import (
    REGISTRY,
    Refusal,
    composite,
    give_methods,
    refuse,
    register,
    same,
    sample,
)


def intrinsic(name: str) -> Callable[..., Expr]:
    """The body of an op that is one intrinsic of one input."""
    return lambda x: call(name, x)


def zero(g: Any) -> Any:
    """A derivative that is zero wherever it exists."""
    return (g if is_complex(g) else sign(g)) * 0.0


def _is_nan(x: Any) -> Any:
    return ~(x == x)


MISFIT: Refusal = refuse(
    ShapeError, r"cannot broadcast \(2, 3\) with \(3, 2\).*differ", s.real(2, 3), s.real(3, 2)
)
NOT_BOOL: Refusal = refuse(DtypeError, "does not take bool.*astype", s.booleans(2), s.booleans(2))


def reflected(function: Callable[..., Any], name: str) -> None:
    """Give Tensor the operator with its sides exchanged."""
    setattr(Tensor, name, lambda x, y: function(y, x))


# --- arithmetic ---------------------------------------------------------------------------------

add: Function = elementwise(
    "add",
    lambda x, y: call("add", x, y),
    (lambda g: g, lambda g: g),
    linear_in=((0, 1),),
    doc="The sum x + y.",
    methods=("add", "__add__"),
    takes_alpha=True,
    reference=np.add,
    samples=s.binary(),
    refuses=(MISFIT, NOT_BOOL),
    recompute="cheap",
    neutral=Neutral(-0.0, both=True),
)
subtract: Function = elementwise(
    "subtract",
    lambda x, y: call("sub", x, y),
    (lambda g: g, lambda g: -g),
    linear_in=((0, 1),),
    doc="The difference x - y.",
    methods=("subtract", "__sub__"),
    takes_alpha=True,
    reference=np.subtract,
    samples=s.binary(),
    refuses=(MISFIT, NOT_BOOL),
    recompute="cheap",
    neutral=Neutral(0.0, both=False),
)
multiply: Function = elementwise(
    "multiply",
    lambda x, y: call("mul", x, y),
    (lambda g, y: g * y, lambda g, x: g * x),
    linear_in=((0,), (1,)),
    doc="The product x * y.",
    methods=("multiply", "__mul__"),
    reference=np.multiply,
    samples=s.binary(),
    refuses=(MISFIT, NOT_BOOL),
    recompute="cheap",
    neutral=Neutral(1, both=True),
)
divide: Function = elementwise(
    "divide",
    lambda x, y: call("div", x, y),
    # (g / y) * out, not g * x / (y * y): the square over- and underflows long before the result
    (lambda g, y: g / y, lambda g, y, out: -(g / y) * out),
    linear_in=((0,),),
    doc="The quotient x / y; integers give floating point.",
    methods=("divide", "__truediv__"),
    kinds="float",
    reference=np.divide,
    samples=s.binary(low_y=0.5),
    refuses=(MISFIT,),
    recompute="cheap",
    neutral=Neutral(1, both=False),
)


def is_complex(x: Any) -> bool:
    """Whether x is a complex tensor; scalar expressions in rules are real."""
    return isinstance(x, Tensor) and x.dtype.is_complex


floor_divide: Function = elementwise(
    "floor_divide",
    lambda x, y: call("floordiv", x, y),
    (zero, zero),
    doc="x / y rounded towards minus infinity.",
    methods=("floor_divide", "__floordiv__"),
    kinds="real",
    reference=np.floor_divide,
    samples=s.binary(low_y=0.5),
    refuses=(MISFIT, NOT_BOOL),
)
remainder: Function = elementwise(
    "remainder",
    lambda x, y: call("mod", x, y),
    (lambda g: g, lambda g, x, y: -g * floor_divide(x, y)),
    doc="x - y * floor(x / y): the remainder with the sign of y.",
    methods=("remainder", "__mod__"),
    kinds="real",
    reference=np.remainder,
    samples=s.binary(low_y=0.5),
    refuses=(MISFIT, NOT_BOOL),
)
reflected(add, "__radd__")
reflected(subtract, "__rsub__")
reflected(multiply, "__rmul__")
reflected(divide, "__rtruediv__")
reflected(floor_divide, "__rfloordiv__")
reflected(remainder, "__rmod__")


def _divmod(x: Any, y: Any) -> tuple[Tensor, Tensor]:
    return floor_divide(x, y), remainder(x, y)


give_methods(__divmod__=_divmod, __rdivmod__=lambda self, other: _divmod(other, self))

negative: Function = elementwise(
    "negative",
    lambda x: call("neg", x),
    (lambda g: -g,),
    linear_in=((0,),),
    doc="-x.",
    methods=("negative", "__neg__"),
    reference=np.negative,
    samples=s.unary(),
    recompute="cheap",
    involution=True,
)


@composite(methods=("positive", "__pos__"), reference=np.positive, samples=s.unary())
def positive(x: Tensor) -> Tensor:
    """+x: the same value."""
    check_kind("positive", x.dtype, "numeric")
    return same(x)


square: Function = elementwise(
    "square",
    lambda x: x * x,
    (lambda g, x: g * (x + x),),
    doc="x * x.",
    reference=np.square,
    samples=s.unary(),
    precision="float32",
)
reciprocal: Function = elementwise(
    "reciprocal",
    lambda x: 1.0 / x,
    (lambda g, out: -g * out * out,),
    kinds="float",
    doc="1 / x.",
    reference=np.reciprocal,
    samples=s.unary(0.5),
    precision="float32",
)
sqrt: Function = elementwise(
    "sqrt",
    intrinsic("sqrt"),
    (lambda g, out: g / (out + out),),
    kinds="float",
    doc="The square root.",
    reference=np.sqrt,
    samples=s.unary(0.1),
)
rsqrt: Function = elementwise(
    "rsqrt",
    lambda x: 1.0 / call("sqrt", x),
    (lambda g, x, out: -0.5 * g * (out / x),),
    kinds="float",
    doc="1 / sqrt(x).",
    reference=lambda x: 1 / np.sqrt(x),
    samples=s.unary(0.1),
    precision="float32",
)


def _sign_dx(g: Any, x: Any, out: Any) -> Any:
    """Flat along the ray through x; across it, the turn of a circle of radius abs(x)."""
    if not is_complex(x):
        return zero(g)
    size = abs(x)
    across = g - out * real(conj(out) * g)
    return where(size == 0, 0.0, across / where(size == 0, 1.0, size))


sign: Function = elementwise(
    "sign",
    intrinsic("sign"),
    (_sign_dx,),
    holomorphic=False,
    doc="-1, 0 or 1; NaN stays NaN. Of a complex number x / abs(x), and 0 of 0.",
    reference=np.sign,
    samples=s.unary(),
)


def _abs_dx(g: Any, x: Any, out: Any) -> Any:
    if is_complex(x):
        return g * (x / where(out == 0, 1.0, out))
    return g * sign(x)


def _abs_tangent(g: Any, x: Any, out: Any) -> Any:
    return real(_abs_dx(conj(g), x, out)) if is_complex(x) else g * sign(x)


abs: Function = elementwise(  # the Array API's name
    "abs",
    intrinsic("abs"),
    (_abs_dx,),
    holomorphic=False,
    tangents=(_abs_tangent,),
    doc="The absolute value; 0 has derivative 0.",
    methods=("abs", "__abs__"),
    reference=np.abs,
    samples=s.unary(),
)

# --- choosing -----------------------------------------------------------------------------------


def _share(x: Any, y: Any, wins: Any) -> Any:
    """The part of the gradient x gets: ties are split evenly, a NaN wins."""
    tie = (x == y) | (_is_nan(x) & _is_nan(y))
    return where(tie, 0.5, where(wins | _is_nan(x), 1.0, 0.0))


maximum: Function = elementwise(
    "maximum",
    lambda x, y: call("max", x, y),
    (
        lambda g, x, y: g * _share(x, y, (x > y) & (y == y)),
        lambda g, x, y: g * _share(y, x, (y > x) & (x == x)),
    ),
    doc="The larger of x and y. NaN wins; a tie gives each side half the gradient.",
    kinds="ordered",
    reference=np.maximum,
    samples=s.binary(),
    refuses=(MISFIT,),
)
minimum: Function = elementwise(
    "minimum",
    lambda x, y: call("min", x, y),
    (
        lambda g, x, y: g * _share(x, y, (x < y) & (y == y)),
        lambda g, x, y: g * _share(y, x, (y < x) & (x == x)),
    ),
    doc="The smaller of x and y. NaN wins; a tie gives each side half the gradient.",
    kinds="ordered",
    reference=np.minimum,
    samples=s.binary(),
    refuses=(MISFIT,),
)

CLAMP = Elementwise(
    "clamp",
    lambda x, low, high: call("min", call("max", x, low), high),
    (
        lambda g, x, low, high: where((x < low) | (x > high), 0.0, g),
        lambda g, x, low, high: where((x < low) & (low <= high), g, 0.0),
        lambda g, x, low, high: where((x > high) | (low > high), g, 0.0),
    ),
    kinds="real",
)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:  # PyTorch's names
    """x limited to [min, max]; the gradient is 1 at the bounds. Either bound may be left out."""
    check_kind("clamp", x.dtype, "real")
    if min is None:
        return same(x) if max is None else minimum_at_bound(x, max)
    if max is None:
        return maximum_at_bound(x, min)
    return apply(CLAMP, *CLAMP.promote(x, min, max))


def maximum_at_bound(x: Tensor, low: Any) -> Tensor:
    high = math.inf if x.dtype.is_float else np.iinfo(x.dtype.np).max
    return apply(CLAMP, *CLAMP.promote(x, low, high))


def minimum_at_bound(x: Tensor, high: Any) -> Tensor:
    low = -math.inf if x.dtype.is_float else int(np.iinfo(x.dtype.np).min)
    return apply(CLAMP, *CLAMP.promote(x, low, high))


register(
    CLAMP,
    clamp,
    methods=("clamp",),
    reference=lambda x, min=None, max=None: np.clip(x, min, max),
    samples=lambda: iter(
        (
            sample(s.real(2, 3), min=-1.0, max=1.0),
            sample(s.real(4), max=0.5),
            sample(s.real(4), min=0.0),
            sample(s.real(2, 3), s.real(3, low=-1.0, high=-0.5), s.real(2, 1, low=0.5, high=1.0)),
        )
    ),
    refuses=(refuse(ShapeError, "clamp: cannot broadcast", s.real(2), s.real(3), s.real(3)),),
)

WHERE = Elementwise(
    "where",
    lambda condition, x, y: call("select", condition, x, y),
    (
        None,
        lambda g, condition: where(condition, g, 0.0),
        lambda g, condition: where(condition, 0.0, g),
    ),
    kinds="any",
    selects=True,
)


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """x where the condition holds, y elsewhere; with the condition alone, `nonzero` of it."""
    if isinstance(condition, Expr):
        return call("select", condition, x, y)
    if not isinstance(condition, Tensor):
        beside = x if isinstance(x, Tensor) else y
        condition = tensor_of("where", condition, beside if isinstance(beside, Tensor) else None)
    if condition.dtype.kind != "bool":
        got = condition.dtype
        raise DtypeError(f"where: the condition must be a bool tensor, got {got}; compare first")
    if x is None and y is None:
        return REGISTRY["nonzero"].function(condition)
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        pair = operands("where", x, y)
    else:  # two numbers: on the condition's device
        pair = operands("where", x, y)
        pair = tuple(t.to(condition.device) for t in pair)
    return apply(WHERE, condition, *pair)


register(
    WHERE,
    where,
    linear_in=((1, 2),),
    reference=np.where,
    samples=lambda: iter(
        (
            sample(s.booleans(2, 3), s.real(2, 3), s.real(3, seed=1)),
            sample(s.booleans(3), s.real(), s.real(2, 1)),
            sample(s.booleans(0), s.real(1), s.real(0)),
        )
    ),
    refuses=(
        refuse(
            DtypeError,
            "where: the condition must be a bool tensor",
            s.real(2),
            s.real(2),
            s.real(2),
        ),
        refuse(ShapeError, "where: cannot broadcast", s.booleans(2), s.real(3), s.real(3)),
    ),
)

# --- comparison and logic: no derivative ----------------------------------------------------------


def _comparison(
    name: str, fn: str, operator: str, kinds: str, reference: Any
) -> Callable[..., Any]:
    return elementwise(
        name,
        lambda x, y: call(fn, x, y),
        methods=(name, operator),
        kinds=kinds,
        doc=f"Whether x is {name.replace('_', ' or ')}{' to' if 'equal' in name else ' than'} y.",
        reference=reference,
        samples=s.binary(),
        refuses=(MISFIT,),
    )


equal = _comparison("equal", "eq", "__eq__", "any", np.equal)
not_equal = _comparison("not_equal", "ne", "__ne__", "any", np.not_equal)
give_methods(
    __eq__=binary(cast("Elementwise", REGISTRY["equal"]), beside_none=False),
    __ne__=binary(cast("Elementwise", REGISTRY["not_equal"]), beside_none=True),
)
less = _comparison("less", "lt", "__lt__", "ordered", np.less)
less_equal = _comparison("less_equal", "le", "__le__", "ordered", np.less_equal)
greater = _comparison("greater", "gt", "__gt__", "ordered", np.greater)
greater_equal = _comparison("greater_equal", "ge", "__ge__", "ordered", np.greater_equal)


def _truth(x: Any) -> Expr:
    """Whether a value of any dtype is not 0; NaN is not."""
    return as_expr(x).cast(dtypes.bool_)


def _logical(name: str, fn: str, reference: Any) -> Callable[..., Any]:
    return elementwise(
        name,
        lambda x, y: call(fn, _truth(x), _truth(y)),
        kinds="any",
        doc=f"{name.replace('_', ' ').capitalize()}, as bool: every number but 0 is true, NaN too.",
        reference=reference,
        samples=s.binary_of(s.truths),
        refuses=(MISFIT,),
    )


logical_and = _logical("logical_and", "and", np.logical_and)
logical_or = _logical("logical_or", "or", np.logical_or)
logical_xor = _logical("logical_xor", "xor", np.logical_xor)
logical_not: Function = elementwise(
    "logical_not",
    lambda x: call("not", _truth(x)),
    kinds="any",
    doc="Whether x is False or 0, as bool; NaN is not.",
    reference=np.logical_not,
    samples=s.unary_of(s.truths),
)


def _bitwise(name: str, fn: str, operator: str, kinds: str, reference: Any) -> Callable[..., Any]:
    function = elementwise(
        name,
        lambda x, y: call(fn, x, y),
        methods=(name, operator),
        kinds=kinds,
        doc=f"{name.replace('_', ' ').capitalize()}, for each element.",
        reference=reference,
        samples=s.binary_of(s.integers),
        refuses=(refuse(DtypeError, f"{name}: does not take float64", s.real(2), s.real(2)),),
    )
    reflected(function, "__r" + operator[2:])
    return function


bitwise_and = _bitwise("bitwise_and", "and", "__and__", "bits", np.bitwise_and)
bitwise_or = _bitwise("bitwise_or", "or", "__or__", "bits", np.bitwise_or)
bitwise_xor = _bitwise("bitwise_xor", "xor", "__xor__", "bits", np.bitwise_xor)
bitwise_left_shift = _bitwise("bitwise_left_shift", "shl", "__lshift__", "integer", np.left_shift)
bitwise_right_shift = _bitwise(
    "bitwise_right_shift", "shr", "__rshift__", "integer", np.right_shift
)
bitwise_invert: Function = elementwise(
    "bitwise_invert",
    lambda x: call("not", x),
    kinds="bits",
    methods=("bitwise_invert", "__invert__"),
    doc="Every bit inverted; for bool, logical not.",
    reference=np.invert,
    samples=s.unary_of(s.integers),
)
isnan: Function = elementwise(
    "isnan",
    intrinsic("isnan"),
    kinds="float",
    doc="Whether each element is NaN.",
    reference=np.isnan,
    samples=s.unary(),
)
isinf: Function = elementwise(
    "isinf",
    intrinsic("isinf"),
    kinds="float",
    doc="Whether each element is infinite.",
    reference=np.isinf,
    samples=s.unary(),
)
isfinite: Function = elementwise(
    "isfinite",
    lambda x: ~(call("isnan", x) | call("isinf", x)),
    kinds="float",
    doc="Whether each element is neither infinite nor NaN.",
    reference=np.isfinite,
    samples=s.unary(),
)

# --- rounding ------------------------------------------------------------------------------------


def _rounding(name: str, doc: str, reference: Any, kinds: str = "real") -> Callable[..., Any]:
    return elementwise(
        name,
        intrinsic(name),
        (lambda g: zero(g),),
        kinds=kinds,
        doc=f"{doc} Integers stay what they are. The derivative is 0.",
        reference=reference,
        samples=s.unary(-5.0, 5.0),
    )


floor = _rounding("floor", "The next integer below.", np.floor)
ceil = _rounding("ceil", "The next integer above.", np.ceil)
trunc = _rounding("trunc", "The next integer towards 0.", np.trunc)
round = _rounding("round", "The nearest integer, halves to the even one.", np.round, "numeric")

# --- complex -------------------------------------------------------------------------------------

real: Function = elementwise(
    "real",
    intrinsic("real"),
    (lambda g, x: _as_complex(g, x),),
    holomorphic=False,
    tangents=(lambda g: real(g),),
    linear_in=((0,),),
    doc="The real part.",
    reference=np.real,
    samples=s.unary(),
)
imag: Function = elementwise(
    "imag",
    intrinsic("imag"),
    (lambda g, x: _as_complex(g, x) * _i(x),),
    holomorphic=False,
    tangents=(lambda g: imag(g),),
    linear_in=((0,),),
    doc="The imaginary part.",
    kinds="float",
    reference=np.imag,
    samples=s.unary(),
)
conj: Function = elementwise(
    "conj",
    intrinsic("conj"),
    (lambda g: conj(g),),
    holomorphic=False,
    linear_in=((0,),),
    doc="The complex conjugate.",
    reference=np.conj,
    samples=s.unary(),
)


def _as_complex(g: Any, x: Any) -> Any:
    return g.astype(x.dtype) if is_complex(x) else g


def _i(x: Any) -> complex | float:
    return 1j if is_complex(x) else 0.0


__all__ = [
    name
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__name__", "") == name and not name.startswith("_")
]

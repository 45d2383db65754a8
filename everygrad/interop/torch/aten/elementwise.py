"""Ops on each element: arithmetic, functions, comparisons, logic and bits, choices, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import everygrad as eg
from everygrad import dtypes
from everygrad.interop.torch.aten.registry import Result, Tensor, aten
from everygrad.special import (
    digamma,
    entr,
    erfc,
    erfcx,
    erfinv,
    i0,
    i0e,
    i1,
    i1e,
    j0,
    j1,
    lgamma,
    log_ndtr,
    ndtri,
    polygamma,
    xlog1py,
    y0,
    y1,
    zeta,
)

# One argument, the same name or nearly so here.
_UNARY: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(eg, name)
        for name in (
            *("abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos"),
            *("cosh", "deg2rad", "erf", "exp", "exp2", "expm1", "floor", "frac", "imag", "isinf"),
            *("isfinite", "isnan", "isneginf", "isposinf", "log", "log10", "log1p", "log2"),
            *("positive", "rad2deg", "real", "reciprocal", "relu", "rsqrt", "sigmoid"),
            *("sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc"),
        )
    },
    "arccos": eg.acos,
    "arctan": eg.atan,
    "conj_physical": eg.conj,
    "_conj": eg.conj,
    "_conj_physical": eg.conj,
    "digamma": digamma,
    "erfc": erfc,
    "erfinv": erfinv,
    "fix": eg.trunc,
    "i0": i0,
    "lgamma": lgamma,
    "logical_not": lambda x: eg.logical_not(x.astype(dtypes.bool_)),
    "neg": eg.negative,
    "negative": eg.negative,
    "_neg_view": eg.negative,
    "resolve_conj": eg.clone,
    "resolve_neg": eg.clone,
    "sgn": lambda x: x if x.dtype is dtypes.bool_ else eg.sign(x),
    "sign": lambda x: x if x.dtype is dtypes.bool_ else eg.sign(x),
    "signbit": lambda x: eg.signbit(x.astype(dtypes.uint8) if x.dtype is dtypes.bool_ else x),
    "special_bessel_j0": j0,
    "special_bessel_j1": j1,
    "special_bessel_y0": y0,
    "special_bessel_y1": y1,
    "special_entr": entr,
    "special_erfcx": erfcx,
    "special_i0e": i0e,
    "special_i1": i1,
    "special_i1e": i1e,
    "special_log_ndtr": log_ndtr,
    "special_ndtri": ndtri,
}
for _name, _function in _UNARY.items():
    aten(f"{_name}.default", promotes=True)(_function)


def _power(x: Any, y: Any) -> Tensor:
    """Integers to negative powers keep their whole part in PyTorch: 0, but of 1 and -1."""
    like = x if isinstance(x, Tensor) else y
    if like.dtype.is_differentiable or not isinstance(y, Tensor):
        return eg.pow(x, y)
    whole = eg.pow(x, eg.where(y < 0, 0, y))
    sign = eg.where(y % 2 == 0, 1, x)
    unit = (x == 1) | (x == -1)
    return eg.where(y < 0, eg.where(unit, sign, 0), whole)


# Two arguments, either of which may be a number.
_BINARY: dict[tuple[str, ...], Callable[..., Any]] = {
    ("atan2.default", "arctan2.default"): eg.atan2,
    ("copysign.Tensor", "copysign.Scalar"): eg.copysign,
    ("eq.Tensor", "eq.Scalar"): eg.equal,
    ("ne.Tensor", "ne.Scalar", "not_equal.Tensor", "not_equal.Scalar"): eg.not_equal,
    ("lt.Tensor", "lt.Scalar", "less.Tensor", "less.Scalar"): eg.less,
    ("le.Tensor", "le.Scalar", "less_equal.Tensor", "less_equal.Scalar"): eg.less_equal,
    ("gt.Tensor", "gt.Scalar", "greater.Tensor", "greater.Scalar"): eg.greater,
    ("ge.Tensor", "ge.Scalar", "greater_equal.Tensor", "greater_equal.Scalar"): eg.greater_equal,
    ("fmax.default",): eg.fmax,
    ("fmin.default",): eg.fmin,
    ("fmod.Tensor", "fmod.Scalar"): eg.fmod,
    ("gcd.default",): eg.gcd,
    ("lcm.default",): eg.lcm,
    ("hypot.default",): eg.hypot,
    ("logaddexp.default",): eg.logaddexp,
    ("logaddexp2.default",): eg.logaddexp2,
    ("maximum.default", "max.other"): eg.maximum,
    ("minimum.default", "min.other"): eg.minimum,
    ("nextafter.default",): eg.nextafter,
    ("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar"): _power,
    ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"): eg.remainder,
    ("floor_divide.default", "floor_divide.Scalar"): eg.floor_divide,
    ("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self"): eg.xlogy,
    (
        "special_xlog1py.default",
        "special_xlog1py.other_scalar",
        "special_xlog1py.self_scalar",
    ): xlog1py,
    ("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar"): zeta,
    ("heaviside.default",): eg.heaviside,
    ("clamp_min.default", "clamp_min.Tensor"): eg.maximum,
    ("clamp_max.default", "clamp_max.Tensor"): eg.minimum,
}
for _names, _function in _BINARY.items():
    aten(*_names, promotes=True)(_function)


def _is_bool(x: Any) -> bool:
    return (x.dtype is dtypes.bool_) if isinstance(x, Tensor) else isinstance(x, bool)


def _scaled(x: Any, alpha: Any) -> Any:
    return x if alpha == 1 else x * alpha


@aten("add.Tensor", "add.Scalar", promotes=True)
def add(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    if _is_bool(x) and _is_bool(y):  # numbers of one bit: 1 + 1 is 1
        return eg.logical_or(x, y) if alpha else eg.clone(x)
    return eg.add(x, _scaled(y, alpha))


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar", promotes=True)
def sub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return eg.subtract(x, _scaled(y, alpha))


@aten("rsub.Tensor", "rsub.Scalar", promotes=True)
def rsub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return eg.subtract(y, _scaled(x, alpha))


@aten("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar", promotes=True)
def mul(x: Any, y: Any) -> Tensor:
    return eg.logical_and(x, y) if _is_bool(x) and _is_bool(y) else eg.multiply(x, y)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "divide.Tensor", promotes=True)
def div(x: Any, y: Any) -> Tensor:
    return eg.divide(x, y)


@aten("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", promotes=True)
def div_mode(x: Any, y: Any, rounding_mode: str | None = None) -> Tensor:
    return eg.div(x, y, rounding_mode=rounding_mode)


@aten("addcmul.default", promotes=True)
def addcmul(x: Tensor, y: Tensor, z: Tensor, value: Any = 1) -> Tensor:
    return eg.add(x, _scaled(y, value) * z)


@aten("addcdiv.default", promotes=True)
def addcdiv(x: Tensor, y: Tensor, z: Tensor, value: Any = 1) -> Tensor:
    return eg.add(x, _scaled(y, value) / z)


@aten("lerp.Scalar", "lerp.Tensor", promotes=True)
def lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    # from the nearer end, as PyTorch has it: exact at both
    if not isinstance(weight, Tensor):
        return x + (end - x) * weight if abs(weight) < 0.5 else end - (end - x) * (1 - weight)
    gap = end - x
    return eg.where(eg.abs(weight) < 0.5, x + weight * gap, end - gap * (1 - weight))


@aten("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar")
def float_power(x: Any, y: Any) -> Tensor:
    return eg.float_power(x, y)


@aten("ldexp.Tensor", promotes=True)
def ldexp(x: Tensor, other: Tensor) -> Tensor:
    return x * eg.exp2(other)


@aten("polygamma.default", "special_polygamma.default")
def polygamma_(n: int, x: Tensor) -> Tensor:
    return polygamma(n, x)


@aten("round.default")
def round_(x: Tensor) -> Tensor:
    return eg.round(x)


@aten("round.decimals")
def round_decimals(x: Tensor, decimals: int) -> Tensor:
    if decimals == 0 or not x.dtype.is_float:
        return eg.round(x)
    scale = 10.0 ** abs(decimals)
    return eg.round(x * scale) / scale if decimals > 0 else eg.round(x / scale) * scale


@aten("nan_to_num.default")
def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    return eg.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)


@aten("logit.default", "special_logit.default", promotes=True)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    x = x if eps is None else eg.clamp(x, eps, 1 - eps)
    return eg.log(x / (1 - x))


@aten("clamp.default", "clamp.Tensor", "clip.default", "clip.Tensor", promotes=True)
def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        x = x if min is None else eg.maximum(x, min)
        return x if max is None else eg.minimum(x, max)
    if min is not None and max is not None and min > max:
        return eg.full_like(x, max)
    return eg.clamp(x, min, max)


# --- logic and bits ------------------------------------------------------------------------------


def _logical(function: Callable[..., Any]) -> Callable[[Tensor, Tensor], Any]:
    return lambda x, y: function(x.astype(dtypes.bool_), y.astype(dtypes.bool_))


for _name in ("and", "or", "xor"):
    aten(f"logical_{_name}.default")(_logical(getattr(eg, f"logical_{_name}")))
    _overloads = (f"bitwise_{_name}.{_o}" for _o in ("Tensor", "Scalar", "Scalar_Tensor"))
    aten(*_overloads, f"__{_name}__.Tensor", f"__{_name}__.Scalar", promotes=True)(
        getattr(eg, f"bitwise_{_name}")
    )


@aten("bitwise_not.default")
def bitwise_not(x: Tensor) -> Tensor:
    return eg.logical_not(x) if x.dtype is dtypes.bool_ else eg.bitwise_invert(x)


@aten(
    *("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar"),
    *("bitwise_left_shift.Scalar_Tensor", "__lshift__.Tensor", "__lshift__.Scalar"),
    promotes=True,
)
def left_shift(x: Any, y: Any) -> Tensor:
    return eg.bitwise_left_shift(x, y)


@aten(
    *("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar"),
    *("bitwise_right_shift.Scalar_Tensor", "__rshift__.Tensor", "__rshift__.Scalar"),
    promotes=True,
)
def right_shift(x: Any, y: Any) -> Tensor:
    return eg.bitwise_right_shift(x, y)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", wants_result=True)
def where(condition: Tensor, x: Any, y: Any, *, result: Result) -> Tensor:
    x, y = (v.astype(result.dtype) if isinstance(v, Tensor) else v for v in (x, y))
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        x = eg.full((), x, result.dtype, condition.device)
    return eg.where(condition.astype(dtypes.bool_), x, y)


@aten("isclose.default", promotes=True)
def isclose(
    x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    return eg.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)


@aten("equal.default")
def equal(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape and bool((x == y).all().item())


# --- complex numbers -----------------------------------------------------------------------------


@aten("complex.default")
def complex_(real: Tensor, imag: Tensor) -> Tensor:
    return eg.complex(real, imag)


@aten("polar.default")
def polar(length: Tensor, angle: Tensor) -> Tensor:
    return eg.polar(length, angle)


@aten("view_as_real.default", "view_as_real_copy.default")
def view_as_real(x: Tensor) -> Tensor:
    return eg.view_as_real(x)


@aten("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(x: Tensor) -> Tensor:
    return eg.view_as_complex(x)


# --- casts, copies, other names of the same value ------------------------------------------------


@aten(
    *("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other"),
    *("prims::convert_element_type.default", "prims::device_put.default", "type_as.default"),
    *("_autocast_to_reduced_precision.default", "_autocast_to_full_precision.default"),
    wants_result=True,
)
def cast(x: Tensor, *_: Any, result: Result, **__: Any) -> Tensor:
    if x.dtype.is_complex and not result.dtype.is_complex:
        x = eg.real(x)
    return x.astype(result.dtype)


@aten(
    *("alias.default", "alias_copy.default", "clone.default", "contiguous.default"),
    *("lift.default", "lift_fresh.default", "lift_fresh_copy.default", "prims::view_of.default"),
    *("prims::clone.default",),
)
def alias(x: Tensor, **_: Any) -> Tensor:
    return eg.clone(x)


@aten("detach.default", "detach_copy.default")
def detach(x: Tensor) -> Tensor:
    return x.detach()


@aten("copy.default")
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return eg.clone(source.astype(x.dtype)).broadcast_to(x.shape)


@aten("fill.Scalar", "fill.Tensor")
def fill(x: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.astype(x.dtype).broadcast_to(x.shape)
    return eg.full(x.shape, value, x.dtype, x.device)


@aten("frexp.Tensor")
def frexp(x: Tensor) -> Any:
    return tuple(eg.frexp(x))


@aten("mvlgamma.default", promotes=True)
def mvlgamma(x: Tensor, p: int) -> Tensor:
    return eg.mvlgamma(x, p)

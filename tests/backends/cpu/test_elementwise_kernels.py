"""The CPU's compiled elementwise kernels: values, layouts, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special

from everygrad import dtypes
from everygrad.backends import thread_pool
from everygrad.backends.cpu.kernels import elementwise
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.compiler.expr import Expr, call, lower
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, DtypeError, ShapeError

Array = np.ndarray[Any, Any]

F32, F64 = dtypes.float32, dtypes.float64
HALVES = (dtypes.float16, dtypes.bfloat16)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 7.25, 1e-45, -1e-39, 1e-30,
           3e38, -3e38, 1e10, math.inf, -math.inf, math.nan]  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, at special values


def compute(fn: Any, *arrays: Any, out: DType | None = None) -> Array:
    """`fn` (an intrinsic's name, or a body) of arrays, compiled."""
    given = [np.asarray(a) for a in arrays]
    inputs = Expr.inputs(len(given))
    root = call(fn, *inputs) if isinstance(fn, str) else fn(*inputs)
    program = lower(root, [dtypes.FROM_NP[a.dtype] for a in given], out)
    assert elementwise.supports(program)
    result = np.empty(np.broadcast_shapes(*(a.shape for a in given)), program.dtype.np)
    elementwise.run(program, given, result)
    return result


def samples(dtype: DType, count: int = 500, seed: int = 0) -> Array:
    """Random values of a dtype, and its edges."""
    rng = np.random.default_rng(seed)
    if dtype is dtypes.bool_:
        return rng.random(count) < 0.5
    if dtype.is_integer:
        info = np.iinfo(dtype.np)
        full = rng.integers(info.min, info.max, count, dtype=dtype.np, endpoint=True)
        near = rng.integers(max(-9, info.min), 9, count).astype(dtype.np)
        edges = np.array([info.min, info.min + 1, info.max, 0, 1], dtype.np)
        return np.concatenate([full, near, edges])
    spread = rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)
    return np.concatenate([SPECIAL, spread, np.arange(-20, 20) / 2]).astype(dtype.np)


def pairs(dtype: DType) -> tuple[Array, Array]:
    """All pairs of edge values, and random pairs."""
    a = samples(dtype)
    edges = a[: len(SPECIAL)] if dtype.is_float else a[-60:]
    x, y = np.meshgrid(edges, edges)
    more = samples(dtype, seed=1)
    return np.concatenate([x.ravel(), a]), np.concatenate([y.ravel(), more])


def assert_same(got: Array, want: Any, signs: bool = True) -> None:
    """Equal in every bit but NaN's payload."""
    want = np.asarray(want)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    if signs and got.dtype.kind == "f":
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


# values

BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide,
    "mod": np.remainder, "max": np.maximum, "min": np.minimum, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "sign": np.sign, "abs": np.abs, "isnan": np.isnan, "isinf": np.isinf,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.round, "conj": np.conj,
    "real": np.real, "imag": np.imag,
}  # fmt: skip
NUMBERS = (*dtypes.INTEGERS, F32, F64)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("fn", BINARY)
def test_binary_equals_numpy(fn: str, dtype: DType) -> None:
    x, y = pairs(dtype)
    # the sign of max(0, -0) is unspecified
    assert_same(compute(fn, x, y), BINARY[fn](x, y), signs=fn not in ("max", "min"))


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("fn", UNARY)
def test_unary_equals_numpy(fn: str, dtype: DType) -> None:
    x = samples(dtype)
    assert_same(compute(fn, x), UNARY[fn](x))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_only(dtype: DType) -> None:
    x, y = pairs(dtype)
    assert_same(compute("div", x, y), x / y)
    assert_same(compute("sqrt", x), np.sqrt(x))
    np.testing.assert_array_equal(compute("angle", x), np.angle(x))


@pytest.mark.parametrize("dtype", [dtypes.bool_, *dtypes.INTEGERS], ids=str)
def test_bits_equal_numpy(dtype: DType) -> None:
    x, y = pairs(dtype)
    assert_same(compute("and", x, y), x & y)
    assert_same(compute("or", x, y), x | y)
    assert_same(compute("xor", x, y), x ^ y)
    assert_same(compute("not", x), ~x)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_shifts_push_every_bit_out(dtype: DType) -> None:
    x = samples(dtype)
    counts = np.resize(np.arange(-3 if dtype.kind == "int" else 0, 70), x.shape).astype(dtype.np)
    assert_same(compute("shl", x, counts), np.left_shift(x, counts))
    assert_same(compute("shr", x, counts), np.right_shift(x, counts))


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_integer_powers(dtype: DType) -> None:
    x = samples(dtype)
    power = np.resize(np.arange(40), x.shape).astype(dtype.np)
    assert_same(compute("pow", x, power), np.power(x, power))


def test_negative_integer_powers_truncate() -> None:
    base = np.array([1, -1, -1, 2, -3, 0])
    assert compute("pow", base, np.array([-2, -2, -3, -1, -1, -1])).tolist() == [1, 1, -1, 0, 0, 0]


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_mulhi(dtype: DType) -> None:
    x, y = pairs(dtype)
    want = [int(a) * int(b) >> dtype.bits for a, b in zip(x, y, strict=True)]
    assert compute("mulhi", x, y).tolist() == want


def test_bool_arithmetic_is_logic() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    for fn in ("add", "mul", "max", "min", "eq", "lt", "ge"):
        assert_same(compute(fn, x, y), BINARY[fn](x, y))
    assert not elementwise.supports(lower(call("sub", *Expr.inputs(2)), [dtypes.bool_] * 2))


def test_bool_bytes_other_than_one_are_true() -> None:
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert compute("not", odd).view(np.uint8).tolist() == [1, 0, 0, 0]


def test_select() -> None:
    x, y = pairs(F32)
    got = compute(lambda a, b: call("select", a > b, a, b.cast(F32) * 2), x, y)
    assert_same(got, np.where(x > y, x, y * 2))
    got = compute(lambda a: call("select", a, 1.5, -1.5), np.array([True, False]), out=F64)
    assert got.tolist() == [1.5, -1.5]


def test_constants_keep_their_sign_and_nan() -> None:
    zero = np.zeros(3, np.float32)
    plus = compute(lambda x: x * 0.0 + 0.0, zero - 1)
    minus = compute(lambda x: x * 0.0 + -0.0, zero - 1)  # equal as tuples, not the same kernel
    assert not np.signbit(plus).any()
    assert np.signbit(minus).all()
    assert np.isnan(compute(lambda x: x + math.nan, zero)).all()


# elementary functions

WIDE: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2,
    "tanh": np.tanh, "erf": scipy.special.erf, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
BOUND32 = dict.fromkeys(WIDE, 2.0) | {"tanh": 2.5, "tan": 3.6}


def float32_inputs() -> Array:
    rng = np.random.default_rng(3)
    any_bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    ends = [88.72283, 88.73, 89.0, 89.41, 89.6, -87.34, -103.97, -103.98, -105.0, 9.1, 4.0, 10.0]
    dense = [np.linspace(-r, r, 50_001) for r in (1e-3, 1.0, 4.0, 20.0, 110.0)]
    near_one = 1 + np.linspace(-1e-3, 1e-3, 20_001)
    quarters = np.arange(1, 30_000) * (np.pi / 2)  # where sin or cos nearly vanish
    parts = [any_bits, SPECIAL, ends, *dense, near_one, quarters]
    return np.concatenate([np.asarray(p, np.float32) for p in parts])


def ulps(got: Array, want: Array) -> float:
    """The largest error in units of got's last place; infinite where the kinds of value differ."""
    rounded = want.astype(got.dtype)
    alike = (np.isnan(got) == np.isnan(rounded)) & (np.isinf(got) == np.isinf(rounded))
    alike &= np.isnan(got) | (np.signbit(got) == np.signbit(rounded))
    if not alike.all():
        return math.inf
    finite = np.isfinite(rounded)
    # spacing of the smallest number is the subnormal step
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    return float((np.abs(got[finite].astype(np.float64) - want[finite]) / unit).max())


@pytest.mark.parametrize("fn", WIDE)
def test_float32_within_bound(fn: str) -> None:
    x = float32_inputs()
    assert ulps(compute(fn, x), WIDE[fn](x.astype(np.float64))) <= BOUND32[fn]


EXACT: dict[str, Callable[..., Any]] = {
    "exp": mpmath.exp, "expm1": mpmath.expm1, "log": mpmath.log, "log1p": mpmath.log1p,
    "log2": lambda v: mpmath.log(v, 2), "tanh": mpmath.tanh, "erf": mpmath.erf,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "sin": mpmath.sin, "atan": mpmath.atan,
}  # fmt: skip


@pytest.mark.parametrize("fn", EXACT)
def test_float64_within_bound(fn: str) -> None:
    rng = np.random.default_rng(4)
    parts = [rng.uniform(-r, r, 150) for r in (1e-3, 0.3, 1.0, 3.0, 7.0, 40.0, 705.0)]
    x = np.concatenate([*parts, 10.0 ** rng.uniform(-300, 300, 150)])
    got, rough = compute(fn, x), WIDE[fn](x)
    usual = np.isfinite(rough) & (np.abs(rough) > 1e-300)
    with mpmath.workprec(120):
        for value, at in zip(got[usual], x[usual], strict=True):
            error = mpmath.mpf(float(value)) - EXACT[fn](mpmath.mpf(float(at)))
            assert abs(error) <= 2.5 * np.spacing(abs(value)), (fn, at)


@pytest.mark.parametrize("fn", WIDE)
def test_float64_special_values(fn: str) -> None:
    edges = [5e-324, -5e-324, 1e-310, 709.78, 709.79, 710.4, 710.5, -745.1, -745.2, -708.5, 1e308]
    x = np.array(SPECIAL + edges)
    got, want = compute(fn, x), WIDE[fn](x)
    np.testing.assert_allclose(got, want, rtol=1e-15, atol=1e-323)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(want[numbers]))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_pow(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    edges = np.array([*SPECIAL, 2.0, -2.0, 16777215, 16777217])
    x, y = np.meshgrid(edges, edges)
    base = np.concatenate([x.ravel(), rng.uniform(0, 10, 20_000), rng.integers(-5, 6, 5000)])
    power = np.concatenate([y.ravel(), rng.uniform(-30, 30, 20_000), rng.integers(-5, 6, 5000)])
    base, power = base.astype(dtype.np), power.astype(dtype.np)
    assert ulps(compute("pow", base, power), np.power(base.astype(float), power)) <= 1.0


@pytest.mark.parametrize("power", [-1.0, 1.0, 2.0, 3.0, 0.5, -0.5])
def test_pow_by_a_constant(power: float) -> None:
    x = samples(F32)
    want = np.power(x.astype(np.float64), np.full(x.shape, power))  # an array: C's pow
    assert ulps(compute(lambda a: a**power, x), want) <= 2.0


def test_atan2() -> None:
    x, y = pairs(F32)
    assert ulps(compute("atan2", x, y), np.arctan2(x.astype(float), y.astype(float))) <= 1.0


# casts and half floats


NO_16_BITS = [d for d in NUMBERS if d.bits != 16]  # they are cast like 8-bit types


@pytest.mark.parametrize("target", NO_16_BITS, ids=str)
@pytest.mark.parametrize("source", [dtypes.bool_, *NO_16_BITS, *HALVES], ids=str)
def test_cast_equals_numpy(source: DType, target: DType) -> None:
    x = samples(source)
    if source.is_float and target.is_integer:  # saturation has its own test
        info = np.iinfo(target.np)
        wide = x.astype(np.float64)
        x = x[(wide > max(info.min, -(2.0**62))) & (wide < min(info.max, 2.0**62))]
    assert_same(compute(lambda a: a.cast(target), x, out=target), x.astype(target.np))


@pytest.mark.parametrize("source", [F32, F64, dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("target", dtypes.INTEGERS, ids=str)
def test_floats_saturate_to_integers(source: DType, target: DType) -> None:
    x = np.array([math.inf, -math.inf, math.nan, 1e30, -1e30]).astype(source.np)
    info = np.iinfo(target.np)
    got = compute(lambda a: a.cast(target), x).tolist()
    assert got == [info.max, info.min, 0, info.max, info.min]


def test_cast_to_bool() -> None:
    x = samples(F32)
    assert_same(compute(lambda a: a.cast(dtypes.bool_), x), x.astype(bool))


def half_neighbours(dtype: DType) -> Array:
    """Numbers beside and on the ties between neighbours of a half type, and its edges."""
    all_halves = np.arange(2**16, dtype=np.uint16).view(dtype.np).astype(np.float64)
    halves = np.sort(all_halves[np.isfinite(all_halves)])[::31]
    ties = (halves[1:] + halves[:-1]) / 2
    return np.concatenate([ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf), SPECIAL])


def nearest(dtype: DType, x: float) -> float:
    """x rounded once, to nearest and even, in exact arithmetic."""
    if not math.isfinite(x) or x == 0:
        return x
    digits, smallest = (11, -24) if dtype is dtypes.float16 else (8, -133)
    step = Fraction(2) ** max(math.frexp(x)[1] - digits, smallest)
    rounded = round(Fraction(x) / step) * step  # Python rounds halves to even
    largest = Fraction(65504) if dtype is dtypes.float16 else Fraction(2) ** 128 * 255 / 256
    return math.copysign(math.inf if abs(rounded) > largest else float(abs(rounded)), x)


@pytest.mark.parametrize("source", [F32, F64], ids=str)
@pytest.mark.parametrize("target", HALVES, ids=str)
def test_halves_round_once(source: DType, target: DType) -> None:
    x = half_neighbours(target).astype(source.np)
    want = np.array([nearest(target, float(v)) for v in x])
    assert_same(compute(lambda a: a.cast(target), x).astype(np.float64), want)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_halves_compute_in_float32(dtype: DType) -> None:
    x, y = samples(dtype), samples(dtype, seed=1)
    wide = x.astype(np.float32) * y.astype(np.float32) + np.float32(1)
    got = compute(lambda a, b: a * b + 1, x, y)
    assert got.dtype == dtype.np
    # contracted to a fused multiply-add: float32 may differ in its last bit, the half must not
    exact = x.astype(np.float64) * y.astype(np.float64) + 1
    want = np.array([nearest(dtype, float(np.float32(v))) for v in exact])
    np.testing.assert_array_equal(got.astype(np.float64), want)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(wide))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_intrinsics_of_a_half_inside(dtype: DType) -> None:
    x = samples(F32)
    got = compute(lambda a: call("max", a.cast(dtype), 0.5) + 1, x)
    part = np.maximum(x.astype(dtype.np).astype(np.float32), np.float32(0.5))
    want = (part.astype(dtype.np).astype(np.float32) + np.float32(1)).astype(dtype.np)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_every_nan_survives_narrowing() -> None:
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF80FFFF], np.uint32)
    for dtype in HALVES:
        got = compute(lambda a, d=dtype: a.cast(d), bits.view(np.float32))
        assert np.isnan(got.astype(np.float32)).all()


# layouts


def fused(x: Expr, y: Expr) -> Expr:
    return call("max", x - y, y * 0.5)


def fused_numpy(x: Array, y: Array) -> Array:
    return np.asarray(np.maximum(x - y, y * np.float32(0.5)))


def grid(*shape: int) -> Array:
    rng = np.random.default_rng(len(shape))
    return rng.standard_normal(shape).astype(np.float32)


LAYOUTS: dict[str, Callable[[], tuple[Array, Array, Array]]] = {
    "same": lambda: (grid(5, 37), grid(5, 37), np.empty((5, 37), np.float32)),
    "row": lambda: (grid(5, 37), grid(37), np.empty((5, 37), np.float32)),
    "column": lambda: (grid(5, 37), grid(5, 1), np.empty((5, 37), np.float32)),
    "outer": lambda: (grid(5, 1), grid(1, 37), np.empty((5, 37), np.float32)),
    "scalar": lambda: (grid(5, 37), grid(), np.empty((5, 37), np.float32)),
    "size one": lambda: (grid(1), grid(1, 1), np.empty((1, 1), np.float32)),
    "0-d": lambda: (grid(), grid(), np.empty((), np.float32)),
    "both repeated": lambda: (grid(1), grid(), np.empty((4, 3), np.float32)),
    "transposed in": lambda: (grid(37, 5).T, grid(5, 37), np.empty((5, 37), np.float32)),
    "transposed tiles": lambda: (grid(300, 9).T, grid(9, 300), np.empty((9, 300), np.float32)),
    "transposed 3-d": lambda: (
        grid(256, 6, 4).transpose(1, 2, 0),
        grid(6, 1, 256),
        np.empty((6, 4, 256), np.float32),
    ),
    "Fortran": lambda: (grid(7, 5).T, grid(7, 5).T, np.empty((7, 5), np.float32).T),
    "Fortran out": lambda: (grid(5, 7), grid(5, 7), np.empty((7, 5), np.float32).T),
    "every other": lambda: (grid(10, 74)[::2, ::2], grid(37), np.empty((5, 37), np.float32)),
    "out every other": lambda: (grid(5, 37), grid(37), np.empty((10, 74), np.float32)[::2, ::2]),
    "backwards": lambda: (grid(5, 37)[::-1, ::-1], grid(5, 37), np.empty((5, 37), np.float32)),
    "all backwards": lambda: (grid(99)[::-1], grid(99)[::-1], np.empty(99, np.float32)[::-1]),
    "out backwards": lambda: (grid(5, 37), grid(5, 1), np.empty((5, 37), np.float32)[:, ::-1]),
    "4-d": lambda: (
        grid(3, 1, 5, 1),
        grid(4, 1, 17),
        np.empty((3, 4, 5, 17), np.float32),
    ),
    "inner slice": lambda: (grid(6, 9, 8)[1:5, 2:7, 3:8], grid(5, 5), np.empty((4, 5, 5), "f4")),
    "empty": lambda: (grid(0, 3), grid(3), np.empty((0, 3), np.float32)),
    "large row": lambda: (grid(700, 301), grid(301), np.empty((700, 301), np.float32)),
    "large transposed": lambda: (grid(601, 403).T, grid(403, 1), np.empty((403, 601), "f4")),
    "few long rows": lambda: (grid(3, 90_001), grid(3, 1), np.empty((3, 90_001), np.float32)),
    "unaligned": lambda: (unaligned(grid(99)), grid(99), unaligned(np.empty(99, np.float32))),
}


def unaligned(x: Array) -> Array:
    """The same numbers at an address that is one byte off."""
    buffer = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype)
    buffer[...] = x
    return buffer


@pytest.fixture(params=[1, 3])
def thread_count(request: pytest.FixtureRequest) -> Iterator[int]:
    before = thread_pool.num_threads()
    thread_pool.set_num_threads(request.param)
    yield request.param
    thread_pool.set_num_threads(before)


@pytest.mark.usefixtures("thread_count")
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    x, y, out = LAYOUTS[name]()
    whole = out if out.base is None else out.base
    whole[...] = 7
    program = lower(fused(*Expr.inputs(2)), [F32, F32])
    elementwise.run(program, [x, y], out)
    np.testing.assert_array_equal(out, np.broadcast_to(fused_numpy(x, y), out.shape))
    if name == "out every other":
        np.testing.assert_array_equal(whole[1::2], 7)  # nothing written in between


def test_random_layouts() -> None:
    rng = np.random.default_rng(9)
    program = lower(fused(*Expr.inputs(2)), [F32, F32])
    for _ in range(80):
        ndim = int(rng.integers(1, 5))
        shape = tuple(int(n) for n in rng.integers(1, 7, ndim))

        def view(keep: bool, shape: tuple[int, ...] = shape, ndim: int = ndim) -> Array:
            sizes = [n if keep or rng.random() < 0.7 else 1 for n in shape]
            order = rng.permutation(ndim)
            steps = rng.choice([1, 1, 2, -1, -2], ndim)
            buffer = grid(*(sizes[d] * abs(steps[d]) for d in order)).transpose(np.argsort(order))
            return buffer[tuple(slice(None, None, int(s)) for s in steps)]

        x, y, out = view(False), view(False), view(True)
        elementwise.run(program, [x, y], out)
        np.testing.assert_array_equal(out, np.broadcast_to(fused_numpy(x, y), out.shape))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 300_000])
def test_in_place(size: int) -> None:
    x, y = grid(size), grid(size)[::-1]
    want = fused_numpy(x, y)
    elementwise.run(lower(fused(*Expr.inputs(2)), [F32, F32]), [x, y], x)
    np.testing.assert_array_equal(x, want)


def test_mixed_item_sizes() -> None:
    x, y = np.arange(50, dtype=np.int8).reshape(5, 10), np.linspace(0, 1, 10)
    got = compute(lambda a, b: (a.cast(F64) * b) > 2.0, x, y)
    assert_same(got, x * y > 2.0)


def test_unused_input() -> None:
    out = np.empty(3, np.float32)
    program = lower(Expr.inputs(2)[1] * 2, [F64, F32])
    elementwise.run(program, [np.zeros(3), np.array([1, 2, 3], np.float32)], out)
    assert out.tolist() == [2, 4, 6]


def test_refusals() -> None:
    x, y = Expr.inputs(2)
    program = lower(x + y, [F32, F32])
    a = np.zeros(3, np.float32)
    with pytest.raises(DtypeError, match="float64"):
        elementwise.run(program, [a, np.zeros(3)], a)
    with pytest.raises(DtypeError, match="out is int32"):
        elementwise.run(program, [a, a], np.zeros(3, np.int32))
    with pytest.raises(ShapeError, match="broadcast"):
        elementwise.run(program, [a, np.zeros(4, np.float32)], a)
    with pytest.raises(ShapeError, match="repeats"):
        elementwise.run(program, [a, a], np.broadcast_to(np.float32(0), 3))
    with pytest.raises(ArgumentError, match="2 inputs"):
        elementwise.run(program, [a], a)
    complex_program = lower(x * y, [dtypes.complex64] * 2)
    assert not elementwise.supports(complex_program)
    with pytest.raises(DtypeError, match="complex64"):
        elementwise.run(complex_program, [a, a], a)


# code


def test_equal_programs_share_a_kernel() -> None:
    make = [lower(Expr.inputs(1)[0] * 3, [F32]) for _ in range(2)]
    assert elementwise.kernel(make[0]) is elementwise.kernel(make[1])


@pytest.mark.parametrize("fn", ["exp", "log", "tanh", "erf", "sin", "expm1", "log1p", "pow"])
def test_elementary_functions_are_vectorised(fn: str) -> None:
    inputs = Expr.inputs(2 if fn == "pow" else 1)
    program = lower(call(fn, *inputs), [F32] * len(inputs))
    assert "<" not in elementwise.source(program)  # scalar as written
    text = elementwise.assembly(program)
    assert "call" not in text
    features = engine().features
    if features.get("avx512f"):
        assert "zmm" in text
    elif features.get("avx2"):
        assert "ymm" in text


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64])
def test_constants_beside_nothing_but_a_condition_are_as_wide_as_the_inputs(dtype: Any) -> None:
    x = Expr.inputs(1)[0]
    program = lower(call("select", x > 0, 0.1, 0.3) * x, [dtype])
    constants = [inst.dtype for inst in program.insts if inst.fn == "const" and inst.value]
    assert constants == [dtype, dtype]

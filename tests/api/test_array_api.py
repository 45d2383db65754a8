"""The Array API standard 2024.12: `everygrad` is the namespace, and tensors are its arrays."""

from __future__ import annotations

import array
import inspect
import itertools
import math
import operator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

import everygrad as eg
from everygrad import dtypes
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError

UNARY = """
abs acos acosh asin asinh atan atanh bitwise_invert ceil conj cos cosh exp expm1 floor imag isfinite
isinf isnan log log10 log1p log2 logical_not negative positive real reciprocal round sign signbit
sin sinh sqrt square tan tanh trunc matrix_transpose nonzero unique_all unique_counts unique_inverse
unique_values
"""
BINARY = """
add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide
equal floor_divide greater greater_equal hypot less less_equal logaddexp logical_and logical_or
logical_xor matmul maximum minimum multiply nextafter not_equal pow remainder subtract
"""
OTHERS = """
all(x, /, *, axis, keepdims)
any(x, /, *, axis, keepdims)
arange(start, /, stop, step, *, dtype, device)
argmax(x, /, *, axis, keepdims)
argmin(x, /, *, axis, keepdims)
argsort(x, /, *, axis, descending, stable)
asarray(obj, /, *, dtype, device, copy)
astype(x, dtype, /, *, copy, device)
broadcast_arrays(*arrays)
broadcast_to(x, /, shape)
can_cast(from_, to, /)
clip(x, /, min, max)
concat(arrays, /, *, axis)
count_nonzero(x, /, *, axis, keepdims)
cumulative_prod(x, /, *, axis, dtype, include_initial)
cumulative_sum(x, /, *, axis, dtype, include_initial)
diff(x, /, *, axis, n, prepend, append)
empty(shape, *, dtype, device)
empty_like(x, /, *, dtype, device)
expand_dims(x, /, *, axis)
eye(n_rows, n_cols, /, *, k, dtype, device)
finfo(type, /)
flip(x, /, *, axis)
from_dlpack(x, /, *, device, copy)
full(shape, fill_value, *, dtype, device)
full_like(x, /, fill_value, *, dtype, device)
iinfo(type, /)
isdtype(dtype, kind)
linspace(start, stop, /, num, *, dtype, device, endpoint)
max(x, /, *, axis, keepdims)
mean(x, /, *, axis, keepdims)
meshgrid(*arrays, indexing)
min(x, /, *, axis, keepdims)
moveaxis(x, source, destination, /)
ones(shape, *, dtype, device)
ones_like(x, /, *, dtype, device)
permute_dims(x, /, axes)
prod(x, /, *, axis, dtype, keepdims)
repeat(x, repeats, /, *, axis)
reshape(x, /, shape, *, copy)
result_type(*arrays_and_dtypes)
roll(x, /, shift, *, axis)
searchsorted(x1, x2, /, *, side, sorter)
sort(x, /, *, axis, descending, stable)
squeeze(x, /, axis)
stack(arrays, /, *, axis)
std(x, /, *, axis, correction, keepdims)
sum(x, /, *, axis, dtype, keepdims)
take(x, indices, /, *, axis)
take_along_axis(x, indices, /, *, axis)
tensordot(x1, x2, /, *, axes)
tile(x, repetitions, /)
tril(x, /, *, k)
triu(x, /, *, k)
unstack(x, /, *, axis)
var(x, /, *, axis, correction, keepdims)
vecdot(x1, x2, /, *, axis)
where(condition, x1, x2, /)
zeros(shape, *, dtype, device)
zeros_like(x, /, *, dtype, device)
"""
LINALG = """
cholesky(x, /, *, upper)
cross(x1, x2, /, *, axis)
det(x, /)
diagonal(x, /, *, offset)
eigh(x, /)
eigvalsh(x, /)
inv(x, /)
matmul(x1, x2, /)
matrix_norm(x, /, *, keepdims, ord)
matrix_power(x, n, /)
matrix_rank(x, /, *, rtol)
matrix_transpose(x, /)
outer(x1, x2, /)
pinv(x, /, *, rtol)
qr(x, /, *, mode)
slogdet(x, /)
solve(x1, x2, /)
svd(x, /, *, full_matrices)
svdvals(x, /)
tensordot(x1, x2, /, *, axes)
trace(x, /, *, offset, dtype)
vecdot(x1, x2, /, *, axis)
vector_norm(x, /, *, axis, keepdims, ord)
"""
ALONG = "fft ifft rfft irfft hfft ihfft"
OVER = "fftn ifftn rfftn irfftn"
SIGNATURES = [
    *(("", f"{n}(x, /)") for n in UNARY.split()),
    *(("", f"{n}(x1, x2, /)") for n in BINARY.split()),
    *(("", line) for line in OTHERS.strip().splitlines()),
    *(("linalg", line) for line in LINALG.strip().splitlines()),
    *(("fft", f"{n}(x, /, *, n, axis, norm)") for n in ALONG.split()),
    *(("fft", f"{n}(x, /, *, s, axes, norm)") for n in OVER.split()),
    *(("fft", f"{n}(n, /, *, d, dtype, device)") for n in ("fftfreq", "rfftfreq")),
    *(("fft", f"{n}(x, /, *, axes)") for n in ("fftshift", "ifftshift")),
]
METHODS = """
abs add and bool complex dlpack dlpack_device eq float floordiv ge getitem gt index int invert le
lshift lt matmul mod mul ne neg or pos pow rshift setitem sub truediv xor iadd isub imul itruediv
ifloordiv ipow imod iand ior ixor ilshift irshift imatmul radd rsub rmul rtruediv rfloordiv rpow
rmod rand ror rxor rlshift rrshift rmatmul array_namespace
"""
STANDARD = [d for d in dtypes.ALL if d not in (dtypes.float16, dtypes.bfloat16)]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("part", "line"), SIGNATURES)
def test_signature(part: str, line: str) -> None:
    """Everything the standard allows in a call is allowed; more may be."""
    name, _, rest = line.partition("(")
    module = getattr(eg, part) if part else eg
    wanted = inspect.signature(eval(f"lambda {rest[:-1]}: 0")).parameters.values()
    own = inspect.signature(getattr(module, name)).parameters
    places = list(own.values())
    for i, p in enumerate(wanted):
        if p.kind is p.KEYWORD_ONLY:
            assert own[p.name].kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD), p
        elif p.kind is p.POSITIONAL_ONLY:
            assert places[i].kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD), p
        else:
            assert places[i].kind is p.kind
            assert places[i].name == p.name or p.kind is p.VAR_POSITIONAL


def test_array_object() -> None:
    x = eg.ones((2, 3))
    missing = [n for n in METHODS.split() if not hasattr(x, f"__{n}__")]
    assert not missing
    assert (x.ndim, x.shape, x.size, x.dtype, x.device) == (2, (2, 3), 6, eg.float32, "cpu")
    assert x.T.shape == x.mT.shape == (3, 2)
    for shape in ((), (3,), (2, 3, 4), (1, 2, 3, 4)):  # the standard has T of matrices alone
        with pytest.raises(ShapeError, match=r"T: takes a matrix, got .* use mT .* permute_dims"):
            _ = eg.ones(shape).T
    assert eg.ones((2, 3, 4)).mT.shape == (2, 4, 3)
    assert x.to_device("cpu").device == "cpu"
    with pytest.raises(ArgumentError, match="to_device: a device has one stream"):
        x.to_device("cpu", stream=1)


def test_namespace() -> None:
    x = eg.ones(())
    assert x.__array_namespace__() is eg
    for version in ("2021.12", "2022.12", "2023.12", "2024.12"):
        assert x.__array_namespace__(api_version=version) is eg
    with pytest.raises(ArgumentError, match=r"api_version '1999\.12' is not among"):
        x.__array_namespace__(api_version="1999.12")
    assert eg.__array_api_version__ == "2024.12"
    assert (eg.e, eg.pi, eg.inf, eg.newaxis) == (math.e, math.pi, math.inf, None)
    assert math.isnan(eg.nan)


def test_info() -> None:
    info = eg.__array_namespace_info__()
    facts = info.capabilities()
    assert facts["boolean indexing"] is facts["data-dependent shapes"] is True
    assert facts["max dimensions"] == 64
    assert eg.ones((1,) * 64).ndim == 64
    assert info.default_device() in info.devices()
    for device in info.devices():
        assert set(info.dtypes(device=device)) == {d.name for d in STANDARD}
        for name, dtype in info.dtypes(device=device).items():
            assert eg.zeros((1,), dtype=dtype, device=device).dtype is getattr(eg, name)
    defaults = info.default_dtypes()
    for kind, value in (("real floating", 1.0), ("complex floating", 1j), ("integral", 1)):
        assert eg.asarray(value).dtype is defaults[kind]
    assert eg.argmax(eg.ones((2,))).dtype is defaults["indexing"]
    assert list(info.dtypes(kind=("bool", "unsigned integer"))) == [
        "bool", "uint8", "uint16", "uint32", "uint64",
    ]  # fmt: skip


def test_info_of_a_narrow_device(device: str) -> None:
    """What a device lists can be made there, and what it leaves out is refused by name."""
    listed = eg.__array_namespace_info__().dtypes(device=device)
    for dtype in STANDARD:
        if dtype.name in listed:
            assert eg.zeros((2,), dtype=dtype, device=device).dtype is dtype
        else:
            with pytest.raises(DtypeError, match=f"{dtype} does not exist on this device"):
                eg.zeros((2,), dtype=dtype, device=device)


# --- dtypes --------------------------------------------------------------------------------------


def test_limits() -> None:
    for dtype in STANDARD:
        if dtype.is_integer:
            limits, want = eg.iinfo(dtype), np.iinfo(dtype.np)
            assert limits == (want.bits, want.max, want.min, dtype)
        elif dtype.is_differentiable:
            facts, real = eg.finfo(eg.zeros((), dtype=dtype)), np.finfo(dtype.np)
            assert facts.dtype is dtypes.real_of(dtype)
            assert facts[:5] == (real.bits, real.eps, real.max, real.min, real.smallest_normal)
            assert all(type(v) is float for v in facts[1:5])
    assert eg.finfo("bfloat16").eps == 2.0**-7
    with pytest.raises(DtypeError, match="finfo: int32 is not a floating-point dtype; use iinfo"):
        eg.finfo(eg.int32)
    with pytest.raises(DtypeError, match="iinfo: bool is not an integer dtype"):
        eg.iinfo(eg.bool)


def test_kinds() -> None:
    for dtype, kind in itertools.product(STANDARD, dtypes.KINDS):
        assert eg.isdtype(dtype, kind) is np.isdtype(dtype.np, kind)
    assert eg.isdtype(eg.int8, (eg.float32, "integral"))
    assert not eg.isdtype(eg.int8, eg.int16)
    with pytest.raises(ArgumentError, match="'floating' is not a kind; they are bool, signed"):
        eg.isdtype(eg.int8, ("integral", "floating"))
    with pytest.raises(DtypeError, match="a kind is a dtype, a string or a tuple"):
        eg.isdtype(eg.int8, 3)


def _common(a: Any, b: Any) -> Any:
    """The standard's table: NumPy's, but for uint64 beside a signed integer."""
    if a.kind != b.kind and "uint64" in (a.name, b.name):
        return None
    return dtypes.FROM_NP[np.promote_types(a.np, b.np)]


@pytest.mark.parametrize("kind", ["bool", "integral", "real floating", "complex floating"])
def test_promotion(kind: str) -> None:
    """Within a kind as the standard's table says; functions, operators and `result_type` alike."""
    own = [d for d in STANDARD if eg.isdtype(d, kind)]
    for a, b in itertools.product(own, own):
        x, y = eg.ones((2,), dtype=a), eg.ones((2,), dtype=b)
        want = _common(a, b)
        calls = (
            lambda a=a, b=b: eg.result_type(a, b),
            lambda x=x, y=y: (x & y if kind == "bool" else x + y).dtype,
            lambda x=x, y=y: eg.where(x == y, x, y).dtype,
            lambda x=x, y=y: eg.concat([x, y]).dtype,
        )
        for call in calls:
            if want is None:
                with pytest.raises(DtypeError, match="no dtype holds both"):
                    call()
            else:
                assert call() is want, (a, b)
        assert eg.can_cast(a, b) is (want is b)
        assert eg.can_cast(x, b) is (want is b)


def test_numbers_keep_the_dtype() -> None:
    for dtype in STANDARD:
        x = eg.ones((2,), dtype=dtype)
        numbers: dict[str, list[Any]] = {
            "bool": [True],
            "int": [1], "uint": [1],
            "float": [1, 1.5], "complex": [1, 1.5, 2j],
        }  # fmt: skip
        for number in numbers[dtype.kind]:
            assert eg.result_type(x, number) is eg.result_type(number, dtype) is dtype
            op = operator.and_ if dtype.kind == "bool" else operator.mul
            assert op(x, number).dtype is op(number, x).dtype is dtype
    assert eg.result_type(eg.int32, 1.5) is eg.float32
    assert eg.result_type(eg.float64, 2j) is eg.complex128
    assert eg.result_type(eg.ones((2,)), np.float64(3)) is eg.float32
    with pytest.raises(ArgumentError, match="result_type: needs a tensor or a dtype"):
        eg.result_type()


# --- special cases -------------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
COMPLEX_CASES = [  # a function, the parts of its argument, the parts of its result
    *(("expm1", x, y) for x, y in [
        ((INF, 0.0), (INF, 0.0)), ((INF, -0.0), (INF, -0.0)), ((-INF, INF), (-1.0, 0.0)),
        ((INF, INF), (INF, NAN)), ((-INF, NAN), (-1.0, 0.0)), ((INF, NAN), (INF, NAN)),
        ((NAN, 0.0), (NAN, 0.0)), ((2.0, INF), (NAN, NAN)), ((-INF, 1.0), (-1.0, 0.0)),
        ((1e4, 0.0), (INF, 0.0)), ((NAN, NAN), (NAN, NAN)), ((0.0, -0.0), (0.0, -0.0)),
        ((-0.0, 0.0), (0.0, 0.0)),
    ]),
    *(("log1p", x, y) for x, y in [
        ((-1.0, 0.0), (-INF, 0.0)), ((2.0, INF), (INF, math.pi / 2)), ((2.0, NAN), (NAN, NAN)),
        ((-INF, 2.0), (INF, math.pi)), ((INF, 2.0), (INF, 0.0)), ((NAN, INF), (INF, NAN)),
        ((-INF, INF), (INF, 3 * math.pi / 4)), ((INF, INF), (INF, math.pi / 4)),
        ((INF, NAN), (INF, NAN)), ((NAN, 2.0), (NAN, NAN)), ((0.0, -0.0), (0.0, -0.0)),
        ((1e-20, 1e-20), (1e-20, 1e-20)), ((1e-9, 0.0), (1e-9 - 5e-19, 0.0)),
        ((-2e-30, -1e-30), (-2e-30, -1e-30)), ((3.0, -4.0), (math.log(32) / 2, -math.pi / 4)),
    ]),
    *(("sign", x, y) for x, y in [
        ((NAN, 2.0), (NAN, NAN)), ((INF, NAN), (NAN, NAN)), ((0.0, 2.0), (0.0, 1.0)),
        ((NAN, -INF), (NAN, NAN)), ((3.0, -4.0), (0.6, -0.8)),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "wanted"), COMPLEX_CASES)
def test_complex_cases(name: str, given: tuple[float, float], wanted: tuple[float, float]) -> None:
    """Those that NumPy's functions do not have; of the conjugate the conjugate."""
    function = getattr(eg, name)
    for dtype, tolerance in ((np.complex64, 1e-6), (np.complex128, 1e-15)):
        for turn in (1, -1):
            z = np.array([complex(given[0], turn * given[1])] * 3, dtype)
            for call in (function, eg.jit(function)):
                got = call(eg.asarray(z)).numpy()
                assert got.dtype == dtype
                pairs = zip((got[0].real, got[0].imag), (wanted[0], turn * wanted[1]), strict=True)
                for part, want in pairs:
                    np.testing.assert_allclose(part, dtype(want).real, rtol=tolerance)
                    signed = want == 0 and math.isfinite(given[1])
                    assert not signed or math.copysign(1, part) == math.copysign(1, want)


# --- creation ------------------------------------------------------------------------------------


def test_asarray_copies(device: str) -> None:
    x = eg.asarray([1.0, 2.0], device=device)
    assert eg.asarray(x) is x
    assert eg.asarray(x, copy=False, dtype=eg.float32, device=device) is x
    other = eg.asarray(x, copy=True)
    x[0] = 5.0
    assert other.tolist() == [1.0, 2.0]
    assert eg.astype(x, eg.float32, copy=False) is x
    assert eg.astype(x, eg.float32) is not x
    for call in (
        lambda: eg.asarray(x, dtype=eg.int32, copy=False),
        lambda: eg.asarray([1.0], copy=False),
        lambda: eg.asarray(3, copy=False),
    ):
        with pytest.raises(ValueError, match="asarray: copy=False, but"):
            call()


def test_asarray_shares_numpy() -> None:
    a = np.arange(3.0)
    assert np.shares_memory(eg.asarray(a).numpy(), a)
    assert not np.shares_memory(eg.asarray(a, copy=True).numpy(), a)


def test_large_integers() -> None:
    """No integer passes through a float on its way into a tensor."""
    large = 2**63 + 1
    assert eg.asarray([large, 1]).tolist() == [large, 1]
    assert eg.asarray([[0, 2**64 - 1]], dtype=eg.uint64).tolist() == [[0, 2**64 - 1]]
    x = eg.zeros((2,), dtype=eg.uint64)
    x[1] = large
    assert (x + 1).tolist() == [1, large + 1]
    with pytest.raises(ArgumentError, match="no integer dtype holds -1 and"):
        eg.asarray([-1, large])
    assert eg.asarray([1e30, 2]).dtype is eg.float32


def test_buffers() -> None:
    """What has Python's buffer protocol keeps its dtype, and shares its memory."""
    for code, dtype in (("d", eg.float64), ("f", eg.float32), ("i", eg.int32), ("B", eg.uint8)):
        numbers = array.array(code, [1, 2, 3])
        for buffer in (numbers, memoryview(numbers)):
            x = eg.asarray(buffer, copy=False)
            assert (x.dtype, x.tolist()) == (dtype, [1, 2, 3])
            assert np.shares_memory(x.numpy(), np.asarray(numbers))
            assert not np.shares_memory(eg.asarray(buffer, copy=True).numpy(), np.asarray(numbers))
            assert eg.tensor(buffer).dtype is dtype
            assert eg.asarray(buffer, dtype=eg.complex64).dtype is eg.complex64
    assert eg.asarray(memoryview(np.ones((2, 3)))).shape == (2, 3)


def test_full(device: str) -> None:
    assert eg.full((2,), eg.asarray(3, device=device)).tolist() == [3, 3]
    x = eg.asarray(2.0, device=device).requires_grad_()
    eg.full((3, 2), x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 6
    assert eg.full(3, np.float32(2), device=device).tolist() == [2.0, 2.0, 2.0]
    assert [eg.full((), v).dtype.name for v in (True, 1, 1.0)] == ["bool", "int64", "float32"]
    for bad in ("a", None, eg.ones((2,), device=device)):
        with pytest.raises(DtypeError, match="full: fill_value must be a number, got"):
            eg.full((2,), bad)


def test_spaced_numbers() -> None:
    for num, endpoint in itertools.product((0, 1, 2, 7), (True, False)):
        for ends in ((0.0, 1.0), (-3, 5), (1.0, 1 + 2j)):
            dtype = eg.complex128 if isinstance(ends[1], complex) else eg.float64
            got = eg.linspace(*ends, num, dtype=dtype, endpoint=endpoint)
            want = np.linspace(*ends, num, endpoint=endpoint)
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)
    assert eg.linspace(0, 1j, 3).dtype is eg.complex64
    with pytest.raises(DtypeError, match="linspace: complex ends do not fit float32"):
        eg.linspace(0, 1j, 3, dtype=eg.float32)
    for k in (-(10**30), -2, 0, 1, 10**30):
        np.testing.assert_array_equal(eg.eye(3, 4, k=k).numpy(), np.eye(3, 4, k=k))
    far = eg.linspace(-1.7e308, 1.7e308, 3, dtype=eg.float64)  # the distance is infinite
    assert far.tolist() == [-1.7e308, 0.0, 1.7e308]
    assert eg.linspace(5e-324, 1e-323, 2, dtype=eg.float64).tolist() == [5e-324, 1e-323]
    large = 2**63 + 1
    assert eg.arange(large, large + 5, 3, dtype=eg.uint64).tolist() == [large, large + 3]
    assert eg.arange(-(2**63), -(2**63) + 5, 3).tolist() == [-(2**63), -(2**63) + 3]
    assert eg.arange(100, -101, -100, dtype=eg.int8).tolist() == [100, 0, -100]
    for start, stop, step in ((0, 10, 3), (5, 0, -2), (3, 3, 1), (1.5, 4, 0.5), (0, -4, 1)):
        np.testing.assert_allclose(
            eg.arange(start, stop, step).numpy(), np.arange(start, stop, step), rtol=1e-6
        )


def test_like(device: str) -> None:
    x = eg.ones((2, 3), dtype=eg.int8, device=device)
    for name in ("empty_like", "ones_like", "zeros_like"):
        y = getattr(eg, name)(x)
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        y = getattr(eg, name)(x, dtype=eg.float32, device="cpu")
        assert (y.dtype, y.device) == (eg.float32, "cpu")
    for name in ("empty", "ones", "zeros"):
        assert getattr(eg, name)((2,), dtype=None, device=None).dtype is eg.float32


# --- exchange ------------------------------------------------------------------------------------


def test_dlpack(device: str) -> None:
    x = eg.arange(6, dtype=eg.float32, device=device).reshape(2, 3)
    for flat in (x, x.flip(0), x[:, ::2], eg.broadcast_to(x[:1], (4, 3)), x[:0]):
        for options in ({}, {"copy": True}, {"max_version": (1, 0)}, {"dl_device": (1, 0)}):
            flat.__dlpack__(**options)
        if device.split(":")[0] != "cuda":  # whose memory NumPy does not take
            np.testing.assert_array_equal(np.from_dlpack(flat), flat.to("cpu").numpy())
    assert eg.from_dlpack(x) is x
    assert eg.from_dlpack(x, device="cpu").device == "cpu"
    assert eg.from_dlpack(x, copy=True) is not x
    a = np.arange(3.0, dtype=np.float32)
    assert np.shares_memory(eg.from_dlpack(a).numpy(), a)
    assert not np.shares_memory(eg.from_dlpack(a, copy=True).numpy(), a)
    assert eg.from_dlpack(a, device=device).device == x.device
    with pytest.raises(BufferError, match="copy=False, but this layout cannot be shared"):
        eg.arange(3).flip(0).__dlpack__(copy=False)
    for error in (AttributeError, BufferError):  # the standard's, for one reason and the other
        with pytest.raises(error, match="from_dlpack: list cannot be shared"):
            eg.from_dlpack([1.0])


def test_python_numbers() -> None:
    assert (bool(eg.asarray(True)), int(eg.asarray(-3)), float(eg.asarray(2))) == (True, -3, 2.0)
    assert complex(eg.asarray(1.5)) == 1.5 + 0j
    assert [complex(eg.asarray(v)) for v in (True, 3, math.inf)] == [1, 3, math.inf]
    for value, both in ((math.nan, True), (complex(math.nan, 2), False)):
        number = complex(eg.asarray(value))
        assert math.isnan(number.real)
        assert math.isnan(number.imag) is both
    assert [1, 2, 3][eg.asarray(1)] == 2
    assert float(eg.asarray(math.inf)) == math.inf
    for convert in (int, float):
        with pytest.raises(TypeError, match=r"this tensor is complex64; take real\(\) or abs\(\)"):
            convert(eg.asarray(1j))
    with pytest.raises(TypeError, match="needs a 0-d integer tensor, got float32"):
        operator.index(eg.asarray(1.0))


# --- indexing ------------------------------------------------------------------------------------

xps = make_strategies_namespace(eg)
quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def equal(x: Any, want: Any) -> bool:
    got = x.numpy()
    same = np.array_equal(got, want, equal_nan=got.dtype.kind in "fc")
    return got.dtype == np.asarray(want).dtype and got.shape == np.shape(want) and same


@quick
@given(st.data())
def test_basic_indices(data: st.DataObject) -> None:
    """Any basic index, read and written, as NumPy has it."""
    shape = data.draw(xps.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=4))
    x = data.draw(xps.arrays(dtype=xps.scalar_dtypes(), shape=shape))
    a = x.numpy().copy()
    key = data.draw(xps.indices(shape=shape, allow_newaxis=True))
    assert equal(x[key], a[key])
    key = data.draw(xps.indices(shape=shape))
    for value in (
        data.draw(xps.from_dtype(x.dtype)),
        data.draw(xps.arrays(dtype=x.dtype, shape=a[key].shape)),
    ):
        x[key] = value
        a[key] = value.numpy() if isinstance(value, eg.Tensor) else value
        assert equal(x, a)


@quick
@given(st.data())
def test_masks(data: st.DataObject) -> None:
    """Masks of any shape: read and written, or refused as an IndexError."""
    sides = xps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    shape = data.draw(sides)
    x = data.draw(xps.arrays(dtype=xps.scalar_dtypes(), shape=shape))
    mask = data.draw(xps.arrays(dtype=eg.bool, shape=st.just(shape) | st.just(()) | sides))
    fits = mask.ndim <= x.ndim and all(m in (n, 0) for m, n in zip(mask.shape, shape, strict=False))
    if not fits:
        with pytest.raises(IndexError):
            x[mask]
        return
    a = x.numpy().copy()
    assert equal(x[mask], a[mask.numpy()])
    value = data.draw(xps.from_dtype(x.dtype))
    x[mask] = value
    a[mask.numpy()] = value
    assert equal(x, a)


def test_axes_out_of_range() -> None:
    """The standard says IndexError, NumPy's users expect a ValueError: it is both."""
    for error in (IndexError, ValueError):
        with pytest.raises(error, match="expand_dims: axis 7 is out of range"):
            eg.expand_dims(eg.ones((2,)), axis=7)


def test_index_tensors() -> None:
    a = np.arange(24.0).reshape(2, 3, 4)
    x = eg.asarray(a)
    i, j = np.array([[0, 1], [1, -2]]), np.array([2, -1])
    for dtype in (eg.int8, eg.int64):
        rows, columns = eg.asarray(i, dtype=dtype), eg.asarray(j, dtype=dtype)
        assert equal(x[rows], a[i])
        assert equal(x[rows, columns], a[i, j])
        assert equal(x[rows, 1, columns], a[i, 1, j])
        assert equal(x[rows, columns, columns], a[i, j, j])
    with pytest.raises(OutOfRangeError, match="index 4 is out of range"):
        x[eg.asarray([4])]
    far = eg.asarray([-1, 0, -128], dtype=eg.int8)  # which does not hold the axis's size
    assert eg.arange(300)[far].tolist() == eg.take(eg.arange(300), far).tolist() == [299, 0, 172]


@quick
@given(st.data())
def test_taking(data: st.DataObject) -> None:
    """`take` and `take_along_axis` count negative indices from the end, eagerly and compiled."""
    shape = data.draw(xps.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=4))
    x = data.draw(xps.arrays(dtype=xps.scalar_dtypes(), shape=shape))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    size = shape[axis]
    dtype = data.draw(st.sampled_from([eg.int8, eg.int32, eg.int64]))
    elements = st.integers(-size, size - 1)
    index = data.draw(xps.arrays(dtype=dtype, shape=(3,), elements=elements))
    own = tuple(2 if i == axis % len(shape) else n for i, n in enumerate(shape))
    along = data.draw(xps.arrays(dtype=dtype, shape=own, elements=elements))
    for call in (lambda f: f, eg.jit):
        taken = call(lambda x, i: eg.take(x, i, axis=axis))(x, index)
        assert equal(taken, np.take(x.numpy(), index.numpy(), axis))
        taken = call(lambda x, i: eg.take_along_axis(x, i, axis=axis))(x, along)
        assert equal(taken, np.take_along_axis(x.numpy(), along.numpy().astype(np.int64), axis))


# --- operators -----------------------------------------------------------------------------------

ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "pow", "truediv", "matmul")


@pytest.mark.parametrize("name", [*ARITHMETIC, "and_", "or_", "xor", "lshift", "rshift"])
def test_in_place_operators(name: str, device: str) -> None:
    """The same object, with the value of the plain operator and the dtype it had."""
    integral = name in ("and_", "or_", "xor", "lshift", "rshift")
    a = np.array([[3, 2], [1, 4]], np.int32 if integral else np.float32)
    b = np.array([[1, 2], [2, 1]], np.int8 if integral else np.float32)
    x, y = eg.asarray(a, device=device), eg.asarray(b, device=device)
    out = getattr(operator, f"i{name.rstrip('_')}")(x, y)
    assert out is x
    np.testing.assert_allclose(x.to("cpu").numpy(), getattr(operator, name)(a, b), rtol=1e-6)
    with pytest.raises((DtypeError, ShapeError), match=r"does not fit|no dtype|inner sizes"):
        getattr(operator, f"i{name.rstrip('_')}")(x, eg.ones((3, 2, 2), eg.uint64, device))

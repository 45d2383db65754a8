"""Values: properties that hold for every op of the registry, on every device."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.errors import DeviceError, DtypeError, TraceError
from everygrad.ops.record.families import KINDS
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.support.checks import (
    BY_FAMILY,
    TOLERANCE,
    WITH_SAMPLES,
    all_close,
    arrays_of,
    call,
    close,
    few,
    few_samples_of,
    fitted,
    function_of,
    in_dtype,
    is_absent,
    is_float,
    is_narrow,
    map_sample,
    native_threshold,
    refer,
    samples_of,
    to_tensor,
    values,
    with_floats,
    without_kernel,
)

CHANGES_DTYPE = {"astype", "attention_log_sums"}
# internal ops check nothing
PUBLIC = [n for n in WITH_SAMPLES if REGISTRY[n].namespace != "internal"]


def takes(op: Op, kind: str) -> bool:
    """Whether the op takes dtypes of this kind."""
    kinds = op.notes.get("kinds") or getattr(op, "kinds", "any")
    return op.name in ("any", "all") or kind in KINDS[kinds]


def floats_of(device: str, *names: str) -> tuple[str, ...]:
    """Those of the dtypes that the device has."""
    return tuple(n for n in names if n != "float64" or not is_narrow(device))


def run(op: Op, sample: Sample, device: str) -> list[Any]:
    return call(function_of(op), map_sample(sample, to_tensor(device)))


def test_device_opens(device: str) -> None:
    assert base.get(device).name == device.split(":")[0]


def test_every_public_op_has_samples() -> None:
    missing = [n for n in REGISTRY if n not in WITH_SAMPLES]
    assert missing == ["dropout"]  # random: tested in test_random.py


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_equals_reference(name: str, device: str) -> None:
    op = REGISTRY[name]
    for sample in samples_of(op, device):
        got = run(op, sample, device)
        want = refer(op, sample)
        all_close(got, want, 2e-3 if op.notes.get("coarse") else 1e-11, f"{name} {sample}")
        if name not in CHANGES_DTYPE:
            for g, w in zip(got, [fitted(w, device) for w in want], strict=True):
                kept = str(g.dtype) == str(w.dtype) or (g.dtype.is_integer and w.dtype.kind in "iu")
                assert kept, f"{name}: {g.dtype} for {w.dtype}"


def with_some_float(op: Op, device: str) -> list[Sample]:
    return [s for s in samples_of(op, device) if any(is_float(a) for a in arrays_of(s))]


OF_FLOATS = [n for n in WITH_SAMPLES if with_some_float(REGISTRY[n], "cpu")]


def test_ops_without_floats_are_these() -> None:
    """The complete list of ops that tests of floating-point numbers leave out."""
    assert set(WITH_SAMPLES) - set(OF_FLOATS) == {
        "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift",
        "bitwise_xor", "check_range", "check_true", "count_labels", "u64_to_uniform",
        "integer_of_words", "last_write", "mulhi", "nonzero_indices", "normal_of_words", "one_hot",
        "philox", "philox_advance", "lexsort_rows", "u32_to_uniform",
    }  # fmt: skip


@pytest.mark.parametrize("name", OF_FLOATS)
def test_keeps_float_dtypes(name: str, device: str) -> None:
    """The reference in float64 on the rounded inputs; the result in the inputs' dtype."""
    op = REGISTRY[name]
    checked = 0
    for dtype in ("float32", "float16", "bfloat16"):
        for sample in few(with_some_float(op, device), device):
            rounded = in_dtype(sample, dtype)
            got = run(op, rounded, device)
            want = refer(op, in_dtype(rounded, "float64"))
            all_close(got, want, TOLERANCE[dtype], f"{name} {dtype} {sample}")
            for g in got:
                if name not in CHANGES_DTYPE and g.dtype.is_float:
                    assert str(g.dtype) == dtype, f"{name}: {dtype} became {g.dtype}"
            checked += 1
    assert checked or is_absent(op, device)


def _complex(a: Any) -> Any:
    rng = np.random.default_rng(a.size)
    return np.asarray(a + 1j * rng.uniform(-1, 1, a.shape))


@pytest.mark.parametrize("name", [n for n in OF_FLOATS if n in {*PUBLIC} - CHANGES_DTYPE])
def test_complex(name: str, device: str) -> None:
    op = REGISTRY[name]
    given = with_some_float(op, device)
    assert given or is_absent(op, device)
    for one in given:
        sample = with_floats(one, _complex)
        if not takes(op, "complex") and not is_narrow(device):
            with pytest.raises(DtypeError, match="complex"):
                run(op, sample, device)
            continue
        small = with_floats(sample, lambda a: a.astype(np.complex64))
        if is_narrow(device):
            with pytest.raises(DtypeError, match="complex128 does not exist on this device; use"):
                run(op, sample, device)
            if not takes(op, "complex"):
                with pytest.raises(DtypeError, match="complex"):
                    run(op, small, device)
                continue
        want = refer(op, sample)
        if not is_narrow(device):
            all_close(run(op, sample, device), want, 1e-11, f"{name} {sample}")
        got = run(op, small, device)
        all_close(got, want, 1e-4, f"{name} complex64 {sample}")
        for g, w in zip(got, want, strict=True):
            if w.dtype.kind == "c":
                assert g.dtype is dtypes.complex64
            elif w.dtype.kind == "f":
                assert g.dtype is dtypes.float32


INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _as_integers(dtype: str) -> Any:
    def make(a: Any) -> Any:
        return np.asarray(np.random.default_rng(a.size + 1).integers(1, 5, a.shape)).astype(dtype)

    return make


def as_integers_too(op: Op, device: str) -> list[Sample]:
    """Samples without a float parameter, which would make the result floating."""
    return [
        s
        for s in with_some_float(op, device)
        if not any(isinstance(v, float) for v in (*s.args, *s.kwargs.values()))
    ]


@pytest.mark.parametrize(
    "name",
    [n for n in PUBLIC if n not in CHANGES_DTYPE and as_integers_too(REGISTRY[n], "cpu")],
)
def test_integers(name: str, device: str) -> None:
    op = REGISTRY[name]
    floating = getattr(op, "kinds", "") in ("float", "real float") and op.family == "elementwise"
    given = [*few(as_integers_too(op, device), device)]
    assert given or is_absent(op, device)
    for one in given:
        for dtype in INTEGERS:
            sample = with_floats(one, _as_integers(dtype))
            if not takes(op, "int") and not floating:
                with pytest.raises(DtypeError, match="int"):
                    run(op, sample, device)
                break
            got = run(op, sample, device)
            if floating:  # integers give the default floating-point type
                want = refer(op, with_floats(one, lambda a, d=dtype: _as_integers(d)(a) * 1.0))
                all_close(got, want, 1e-5, f"{name} {sample}")
                assert got[0].dtype in (dtypes.float32, dtypes.bool_)
                continue
            all_close(got, refer(op, sample), 0, f"{name} {sample}")
            allowed = {dtypes.as_dtype(dtype), dtypes.bool_}
            if op.notes.get("gives") == "accumulated":
                allowed = {dtypes.accumulator(dtypes.as_dtype(dtype))}
            if op.notes.get("gives") == "index":
                allowed |= {dtypes.int64}
            assert all(g.dtype in allowed for g in got), f"{name}: {dtype} became {got[0].dtype}"


@pytest.mark.parametrize("name", [n for n in WITH_SAMPLES if REGISTRY[n].family == "movement"])
def test_movement_of_bools(name: str, device: str) -> None:
    op = REGISTRY[name]
    for one in samples_of(op, device):
        sample = with_floats(one, lambda a: np.asarray(a > 0))
        got, want = run(op, sample, device), refer(op, sample)
        all_close(got, want, 0)
        assert got[0].dtype is dtypes.bool_


# opaque: no definition in other ops; a device without the kernel refuses the op
@pytest.mark.parametrize(
    "name", [n for n in BY_FAMILY["kernel"] if "opaque" not in REGISTRY[n].notes]
)
def test_portable_equals_kernel(name: str, device: str) -> None:
    op = REGISTRY[name]
    if name not in base.get(device).kernels:
        pytest.skip(f"{device} has no kernel of its own for {name}")  # the portable one is in use
    for sample in samples_of(op, device):
        want = run(op, sample, device)
        with without_kernel(device, name):
            got = run(op, sample, device)
        all_close(got, want, 1e-11, f"{name} {sample}")
        assert [g.dtype for g in got] == [w.dtype for w in want]


def _value_dependent(name: str, sample: Sample) -> bool:
    """Whether the result's shape depends on values, or values are asked for."""
    masks = name == "getitem" and any(a.dtype == bool for a in arrays_of(sample))
    return masks or name == "to" or bool(REGISTRY[name].notes.get("by_values"))


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_null_device_knows_shape_and_dtype(name: str) -> None:
    op = REGISTRY[name]
    for sample in op.samples():
        if _value_dependent(name, sample):
            with pytest.raises(TraceError, match="null device"):
                run(op, sample, "null")
            continue
        for dtype in ("float64", "bfloat16"):
            rounded = in_dtype(sample, dtype)
            got = [(o.shape, o.dtype) for o in run(op, rounded, "null")]
            assert got == [(o.shape, o.dtype) for o in run(op, rounded, "cpu")], f"{name} {sample}"


@pytest.mark.parametrize("name", [n for n in WITH_SAMPLES if REGISTRY[n].notes.get("absent")])
def test_absent_ops_are_refused_by_name(name: str, device: str) -> None:
    op = REGISTRY[name]
    message = op.notes["absent"].get(device.split(":")[0])
    if message is None:  # it is there: test_equals_reference
        assert not is_absent(op, device)
        return
    for sample in op.samples():
        with pytest.raises((DeviceError, DtypeError), match=message):
            run(op, map_sample(sample, lambda a: fitted(a, device)), device)


REFUSALS = [(n, i) for n, op in REGISTRY.items() for i in range(len(op.refusals))]


@pytest.mark.parametrize(("name", "i"), REFUSALS)
def test_refuses(name: str, i: int, device: str) -> None:
    op = REGISTRY[name]
    refusal = op.refusals[i]
    error: Any = refusal.error
    message = refusal.message
    if is_absent(op, device):  # either fault may be named
        error, message = (error, DeviceError, DtypeError), "."
    if is_narrow(device):
        message = message.replace("float64", "float32").replace("complex128", "complex64")
    given = map_sample(refusal.call, lambda a: to_tensor(device, grad=True)(fitted(a, device)))
    with pytest.raises(error, match=message):
        _ = [
            values(out) for out in call(function_of(op), given)
        ]  # a GPU tells when a result is read
    kept: list[Any] = []
    map_sample(refusal.call, kept.append)
    tensors = [t for t in _flat(given) if isinstance(t, eg.Tensor)]
    for tensor, array in zip(tensors, kept, strict=True):
        assert tensor.is_leaf
        np.testing.assert_array_equal(values(tensor), fitted(array, device))


def _flat(sample: Sample) -> list[Any]:
    found: list[Any] = []

    def look(value: Any) -> None:
        if type(value) in (list, tuple):
            for v in value:
                look(v)
        else:
            found.append(value)

    look([list(sample.args), list(sample.kwargs.values())])
    return found


# --- layouts -------------------------------------------------------------------------------------


def _fortran(a: Any) -> Any:
    return np.array(a, order="F")


def _flipped(a: Any) -> Any:
    """The same values, read backwards from a flipped copy."""
    return np.flip(np.flip(a).copy()) if a.ndim else a


def _gapped(a: Any) -> Any:
    """The same values, every second element of a larger array."""
    if not a.ndim:
        return a
    large = np.zeros(tuple(2 * n for n in a.shape), a.dtype)
    large[tuple(slice(None, None, 2) for _ in a.shape)] = a
    return large[tuple(slice(None, None, 2) for _ in a.shape)]


def _stretched(a: Any) -> Any:
    """Other values: the first along axis 0 repeated without copying."""
    return np.broadcast_to(a[:1], a.shape) if a.ndim and a.shape[0] else a


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_layout_does_not_matter(name: str, device: str) -> None:
    op = REGISTRY[name]
    thresholds = (0, 1 << 40) if device == "cpu" else (0,)
    for sample in few_samples_of(op, device):
        for threshold in thresholds:
            with native_threshold(threshold):
                want = run(op, sample, device)
                for layout in (_fortran, _flipped, _gapped):
                    given = map_sample(sample, lambda a, f=layout: eg.asarray(f(a), device=device))
                    all_close(
                        call(function_of(op), given), want, 1e-13, f"{name} {layout.__name__}"
                    )
                copied = map_sample(
                    sample, lambda a: eg.tensor(_stretched(a).copy(), device=device)
                )
                given = map_sample(sample, lambda a: eg.asarray(_stretched(a), device=device))
                all_close(
                    call(function_of(op), given), call(function_of(op), copied), 1e-13, f"{name} 0"
                )


def _enlarged(sample: Sample, dtype: str) -> Sample:
    """More elements than the threshold, from the sample's own values; inputs still broadcast."""
    rng = np.random.default_rng(5)
    shapes = iter([(130, 140), (140,), (130, 1)])

    def enlarge(a: Any) -> Any:
        big = np.asarray(rng.choice(a.reshape(-1), next(shapes)))
        return big.astype(dtypes.as_dtype(dtype).np) if is_float(a) else big

    return map_sample(sample, enlarge)


def _largest(op: Op) -> Sample:
    return max(op.samples(), key=lambda s: min(a.size for a in arrays_of(s)))


@pytest.mark.parametrize("name", BY_FAMILY["elementwise"])
def test_compiled_equals_numpy(name: str, device: str) -> None:
    op = REGISTRY[name]
    wanted = floats_of(device, "float64", "float32", "float16", "bfloat16")
    if not any(is_float(a) for a in arrays_of(_largest(op))):
        wanted = wanted[:1]  # they are all the same
    for dtype in wanted:
        sample = _enlarged(_largest(op), dtype)
        with native_threshold(1 << 40):
            want = run(op, sample, device)
        got = run(op, sample, device)
        close(got[0], want[0], TOLERANCE[dtype], f"{name} {dtype}")
        assert got[0].dtype is want[0].dtype
        with np.errstate(all="ignore"):
            exact = refer(op, in_dtype(sample, "float64"))
        loose = 2e-3 if op.notes.get("coarse") else TOLERANCE[dtype]
        close(got[0], exact[0], loose, f"{name} {dtype}")


OF_INTEGERS = [
    n
    for n in BY_FAMILY["elementwise"]
    if n not in ("mulhi", "astype") and takes(REGISTRY[n], "int") and takes(REGISTRY[n], "uint")
]


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_compiled_integers_equal_numpy(name: str, device: str) -> None:
    op = REGISTRY[name]
    for dtype in INTEGERS:
        one = _largest(op)
        sample = map_sample(
            _enlarged(one, "float64"),
            lambda a, d=dtype: a if a.dtype == bool else _as_integers(d)(a),
        )
        got = run(op, sample, device)
        with native_threshold(1 << 40):
            want = run(op, sample, device)
        close(got[0], want[0], 0, f"{name} {dtype}")
        assert got[0].dtype is want[0].dtype


LARGE = {
    "sum": [((300, 700), {}), ((300, 700), {"axis": 0}), ((300, 700), {"axis": 1}),
            ((3, 50000), {"axis": 1}), ((50000, 3), {"axis": 0}), ((20, 30, 400), {"axis": (0, 2)}),
            ((3, 70001), {}), ((2, 600, 3, 90), {"axis": (1, 3)})],
    "max": [((300, 700), {"axis": 0}), ((300, 700), {})],
    "min": [((300, 700), {"axis": 1})],
    "prod": [((3, 50), {"axis": 1})],
    "argmax": [((300, 700), {"axis": 0}), ((300, 700), {})],
    "softmax": [((300, 700), {"axis": 0}), ((300, 700), {"axis": 1}), ((40, 30, 200), {"axis": 1})],
    "log_softmax": [((300, 700), {"axis": 0}), ((300, 700), {"axis": -1})],
    "standardize": [((300, 700), {"axis": 0}), ((20, 30, 400), {"axis": (0, 2)})],
    "logsumexp": [((300, 700), {"axis": 0})],
    "var": [((300, 700), {"axis": 1})],
}  # fmt: skip
LARGE["mean"] = LARGE["sum"]


@pytest.mark.parametrize("name", LARGE)
def test_large_rows(name: str, device: str) -> None:
    """Enough elements for threads and blocks, also of a transposed input."""
    op = REGISTRY[name]
    for shape, options in LARGE[name]:
        x = np.random.default_rng(3).normal(size=shape)
        turned = np.asfortranarray(x)
        want = refer(op, Sample((x,), options))
        for dtype in floats_of(device, "float64", "float32", "float16"):
            rounded = x.astype(dtype)
            exact = want if dtype == "float64" else refer(op, Sample((rounded * 1.0,), options))
            if dtype == "float16":
                exact = refer(op, Sample((rounded.astype(np.float64),), options))
            for given in (rounded, turned.astype(dtype)):
                got = op.function(eg.asarray(given, device=device), **options)
                close(got, exact[0], TOLERANCE[dtype], f"{name} {shape} {options} {dtype}")


def test_sums_do_not_stall(device: str) -> None:
    """A running float32 sum of ones stops growing at 2 ** 24."""
    count = 20_000_000
    x = eg.ones((count,), device=device)
    assert x.mean().item() == 1.0
    assert x.sum().item() == count
    assert x.reshape(count // 2, 2).sum(axis=0).tolist() == [count / 2] * 2
    assert x.reshape(2, count // 2).sum(axis=1).tolist() == [count / 2] * 2
    assert eg.mse_loss(x, eg.zeros((count,), device=device)).item() == 1.0


# --- methods and operators -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in WITH_SAMPLES if REGISTRY[n].methods])
def test_methods(name: str, device: str) -> None:
    op = REGISTRY[name]
    for sample in samples_of(op, device):
        given = map_sample(sample, to_tensor(device))
        want = call(op.function, given)
        for method in op.methods:
            first, *rest = given.args
            got = call(getattr(first, method), Sample(tuple(rest), given.kwargs))
            all_close(got, want, 0, f"{name}.{method}")


ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
BITS = ("and_", "or_", "xor", "lshift", "rshift")


@pytest.mark.parametrize("name", [*ARITHMETIC, *COMPARE])
def test_operators(name: str, device: str) -> None:
    fn = getattr(operator, name)
    a, b = (fitted(v, device) for v in ([[0.5, 1.5, 3.0]], [[2.0], [1.5]]))
    x, y = eg.tensor(a, device=device), eg.tensor(b, device=device)
    close(fn(x, y), fn(a, b), 1e-14)
    close(fn(x, 1.5), fn(a, 1.5), 1e-14)
    close(fn(1.5, x), fn(1.5, a), 1e-14)
    close(fn(x, 2), fn(a, 2), 1e-14)
    close(fn(2, x), fn(2, a), 1e-14)
    close(fn(x, b), fn(a, b), 1e-14)  # a NumPy array on either side
    close(fn(a, y), fn(a, b), 1e-14)
    close(fn(np.float64(1.5), x), fn(1.5, a), 1e-14)
    for result in (fn(x, 1.5), fn(1.5, x), fn(a, y)):
        assert isinstance(result, eg.Tensor)


@pytest.mark.parametrize("name", BITS)
def test_bit_operators(name: str, device: str) -> None:
    fn = getattr(operator, name)
    a, b = np.array([5, 6, 7]), np.array([[1], [2]])
    x, y = eg.tensor(a, device=device), eg.tensor(b, device=device)
    close(fn(x, y), fn(a, b), 0)
    close(fn(x, 3), fn(a, 3), 0)
    close(fn(3, x), fn(3, a), 0)


def test_unary_operators(device: str) -> None:
    a = fitted([[-1.5, 2.0]], device)
    x = eg.tensor(a, device=device)
    close(-x, -a, 0)
    close(+x, a, 0)
    close(abs(x), abs(a), 0)
    close(~eg.tensor([True, False], device=device), np.array([False, True]), 0)
    close(x @ x.T, a @ a.T, 1e-14)
    close(a @ x.T, a @ a.T, 1e-14)
    close(x.mT, a.T, 0)


# --- NaN and infinity ----------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize("size", [1, 20000])  # NumPy's way and the compiled one
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_nan_wins(dtype: str, size: int, device: str) -> None:
    if dtype not in floats_of(device, dtype):
        pytest.skip(f"{device} has no {dtype}")
    x = eg.tensor(np.tile([NAN, 1.0, -1.0, np.inf, -np.inf], size), dtype, device)
    nan = values(eg.isnan(x))
    one = eg.tensor(1.0, dtype, device)
    y = eg.tensor(NAN, dtype, device)
    clamped = (x.clamp(-1.0, 1.0), x.clamp(min=0.0), x.clamp(max=0.0))
    chosen = (eg.maximum(x, one), eg.minimum(x, one), eg.maximum(one, x), eg.minimum(one, x))
    for out in (eg.relu(x), *clamped, *chosen):
        np.testing.assert_array_equal(np.isnan(values(out).astype(np.float32)), nan)
    for out in (eg.maximum(x, y), eg.minimum(y, x)):
        assert bool(eg.isnan(out).all())
    assert np.isnan(x.max().item())
    assert np.isnan(x.min().item())
    assert x.argmax().item() == 0
    assert x.argmin().item() == 0
    rows = x.reshape(-1, 5)
    assert bool(eg.isnan(rows.max(axis=1)).all())
    assert values(eg.isnan(rows.min(axis=0))).tolist() == [True, False, False, False, False]


def test_nan_in_pooling(device: str) -> None:
    x = fitted(np.arange(16.0), device).reshape(1, 1, 4, 4)
    x[0, 0, 1, 1] = NAN
    out = values(eg.max_pool2d(eg.tensor(x, device=device), 2))
    np.testing.assert_array_equal(out[0, 0], [[NAN, 7.0], [13.0, 15.0]])


def takes_float(name: str) -> bool:
    return "float" in KINDS[REGISTRY[name].kinds]


SPECIALS = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, NAN, 1e30, -1e30, 5e-324, 80.0, -80.0])
# where the value at a special point is a matter of convention, not of mathematics
CONVENTION = {"remainder", "floor_divide", "where", "mulhi", "astype", "clamp"}


def takes_nothing_else(name: str) -> bool:
    """Whether the op is a function of one or two tensors, without parameters."""
    sample, count = next(iter(REGISTRY[name].samples())), len(REGISTRY[name].inputs)
    public = REGISTRY[name].namespace != "internal"
    return public and not sample.kwargs and len(sample.args) == len(arrays_of(sample)) == count <= 2


ALONE = filter(takes_nothing_else, filter(takes_float, BY_FAMILY["elementwise"]))


@pytest.mark.parametrize("threshold", [0, 1 << 40])
@pytest.mark.parametrize("name", sorted({*ALONE} - CONVENTION))
def test_special_values(name: str, threshold: int, device: str) -> None:
    """Zeros, infinities, NaN and extremes as NumPy and SciPy have them."""
    op = REGISTRY[name]
    a = fitted(SPECIALS, device)
    args = (a,) if len(op.inputs) == 1 else (a[:, None], a[None, :])
    want = refer(op, Sample(args))[0]
    with native_threshold(threshold):
        got = values(run(op, Sample(args), device)[0])
    if name == "gelu":  # the reference itself overflows at -inf: 0 * inf
        got, want = got[a != -np.inf], want[a != -np.inf]
    if name == "silu":  # likewise, at the large negative end
        keep = ~np.isnan(want) | np.isnan(a)
        got, want = got[keep], want[keep]
    rtol, atol = (1e-6, 1e-44) if is_narrow(device) else (1e-13, 1e-300)
    if name == "y0" and is_narrow(device):  # y0(1) is near a zero: what it is the sum of is larger
        rtol = 2e-6
    np.testing.assert_allclose(
        got.astype(np.complex128), want.astype(np.complex128), rtol=rtol, atol=atol
    )

"""CPU kernels of single ops: fast paths against plain definitions, large and small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.backends.cpu import lazy_native
from everygrad.backends.cpu.fused import row_loops
from everygrad.backends.cpu.kernels import half_conversions, ordering, random_bits
from everygrad.backends.cpu.solver import fourier, matrix_gradients
from everygrad.ops.record.spec import REGISTRY
from tests.support.references import random as words
from tests.support.references.basic import philox


@pytest.mark.parametrize("count", [1, 4, 6, 4099])
@pytest.mark.parametrize("loaded", [False, True])
def test_random_bits(count: int, loaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy and the kernel give the same bits for any counter."""
    monkeypatch.setattr(lazy_native, "is_loaded", lambda: loaded)
    for state in ([1, 2, 0, 0], [5, 7, 2**32 - 2, 3], [2**32 - 1, 0, 2**32 - 1, 2**32 - 1]):
        start = np.array(state, np.uint32)
        assert np.array_equal(random_bits.philox(start, count), philox(start, count))


def test_float64_uniform_numbers_are_53_bits_of_two_words() -> None:
    drawn = philox(np.array([9, 0, 0, 0], np.uint32), 14)
    got = eg.rand((7,), "float64", generator=eg.Generator(9)).numpy()
    assert np.array_equal(got, words.unit_wide(drawn[:7], drawn[7:], "float64"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_conversions_keep_the_layout(dtype: str, axes: Any) -> None:
    x = eg.randn((40, 50, 60), dtype).numpy().transpose(axes)
    wide = half_conversions.widened(x)
    assert wide.dtype == np.float32
    assert np.argsort(wide.strides).tolist() == np.argsort(x.strides).tolist()
    assert np.array_equal(wide, x.astype(np.float32))
    assert np.array_equal(half_conversions.converted(wide, x.dtype), x)


@pytest.mark.parametrize("most", [50, 2**31 - 1])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64, np.uint64])
def test_products_of_integers_wrap(most: int, dtype: Any) -> None:
    """By float64 if that is exact, else by NumPy; both give the same bits."""
    rng = np.random.default_rng(0)
    top = min(most, np.iinfo(dtype).max)
    x, y = (rng.integers(0, top, s, dtype) for s in ((3, 20, 30), (30, 25)))
    if np.iinfo(dtype).min < 0:
        x = -x
    got = REGISTRY["matmul"].function(eg.tensor(x), eg.tensor(y)).numpy()
    assert got.dtype == dtype
    assert np.array_equal(got, np.matmul(x, y))


@pytest.mark.parametrize("n", [4, 6, 20, 30, 56, 126, 128, 480, 1000, 1024, 2048])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transforms_of_real_rows(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    rows = 1 + (1 << 15) // n
    x = rng.standard_normal((rows, n)).astype(dtype)
    close = {"rtol": 0, "atol": (2e-6 if dtype == np.float32 else 1e-14) * n}
    want = np.fft.rfft(x.astype(np.float64))
    got = fourier.real_dft(x, 1)
    assert got.dtype == np.result_type(dtype, np.complex64)
    np.testing.assert_allclose(got, want, **close)
    half = (want + 1j * rng.standard_normal(want.shape)).astype(got.dtype)
    back = fourier.half_dft(half, 1, n)  # the imaginary parts at both ends are ignored
    assert back.dtype == dtype
    np.testing.assert_allclose(back, np.fft.irfft(half, n, norm="forward"), **close)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_long_recurrences(axis: int, dtype: str) -> None:
    """Compiled code and NumPy agree; the first factor is ignored, even if it is infinite."""
    rng = np.random.default_rng(0)
    a, b = (
        eg.tensor(rng.uniform(-1, 1, (600, 500))).astype(dtype).numpy().copy() for _ in range(2)
    )
    a[(slice(None), 0) if axis else 0] = np.inf
    out = REGISTRY["recurrence"].function(eg.tensor(a), eg.tensor(b), axis)
    rows = slice(None, 20)
    part = (rows, slice(None)) if axis else (slice(None), rows)
    want = ordering.recurrence(a[part], b[part], axis)
    assert out.numpy().dtype == b.dtype
    atol = 1e-14 if dtype == "float64" else 0  # others are rounded from float64
    np.testing.assert_allclose(out.numpy()[part], want, rtol=0, atol=atol)


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_floats_become_integers_as_small_arrays_do(source: str, to: str) -> None:
    """Rounds towards 0, saturates, and converts NaN to 0."""
    ends = [s * 2.0**k + d for s in (1, -1) for k in (7, 8, 15, 16, 31, 32, 63) for d in (-1, 0, 1)]
    given = np.array([*ends, np.nan, np.inf, -np.inf, 0.5, -0.5, -0.0, 254.75, 1e30])
    few = eg.tensor(given).astype(source)
    many = few.expand((800, given.size)).reshape(-1)
    got, want = many.astype(to).numpy(), few.astype(to).numpy()
    assert np.array_equal(got.reshape(800, -1), np.broadcast_to(want, (800, given.size)))
    assert np.array_equal(eg.jit(lambda x: x.astype(to))(many).numpy(), got)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 3, 5), (7, 2, 1), (40, 3, 41)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ctc_of_sizes_known_and_not(shape: Any, dtype: str) -> None:
    """Sizes in the code (compiled) and as arguments (eager) agree with the definition."""
    rng = np.random.default_rng(0)
    steps, n, states = shape
    emitted = eg.tensor(rng.uniform(-3, 0, shape).astype(dtype))
    skips = rng.random((n, states)) < 0.4
    skips[:, :2] = False
    given = (eg.tensor(skips), eg.tensor(rng.integers(0, steps + 1, n)))
    forward, backward = REGISTRY["ctc_states"], REGISTRY["ctc_adjoint"]
    alphas = forward.function(emitted, *given)
    back = eg.where(alphas > -1e29, emitted, 0.0)  # impossible states have no gradient
    slope = backward.function(back, alphas, *given)
    close = {"rtol": 3e-6 if dtype == "float32" else 1e-13, "atol": 1e-6}
    for op, first, got in ((forward, (emitted,), alphas), (backward, (back, alphas), slope)):
        whole = (*first, *given)
        compiled = eg.jit(op.function)(*whole)
        np.testing.assert_array_equal(compiled.numpy(), got.numpy())
        np.testing.assert_allclose(got.numpy(), op.portable(*whole).numpy(), **close)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_numpys_public_transforms_serve_where_its_ufuncs_are_gone(n: int, dtype: Any) -> None:
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((3, n, 2)) + 1j * rng.standard_normal((3, n, 2))).astype(dtype)
    one = x.real.dtype.type(0.5)
    axes = [(1,), (), (1,)]
    for inside, public in ((fourier._FORWARD, np.fft.fft), (fourier._INVERSE, np.fft.ifft)):
        got, want = np.empty_like(x), np.empty_like(x)
        inside(x, one, want, axes=axes)
        fourier._public(public)(x, one, got, axes=axes)
        np.testing.assert_allclose(got, want, atol=1e-5)
    half, want_half = (np.empty((3, n // 2 + 1, 2), dtype) for _ in range(2))
    fourier._REAL[n % 2](x.real, one, want_half, axes=axes)
    fourier._public(np.fft.rfft)(x.real, one, half, axes=axes)
    np.testing.assert_allclose(half, want_half, atol=1e-5)
    back, want_back = (np.empty(x.shape, x.real.dtype) for _ in range(2))
    fourier._HALF(half, one, want_back, axes=axes)
    fourier._public(np.fft.irfft)(half, one, back, axes=axes)
    np.testing.assert_allclose(back, want_back, atol=1e-5)


_ROWS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w, b: eg.softmax(x),
    "log_softmax": lambda x, w, b: eg.log_softmax(x),
    "layer_norm": lambda x, w, b: eg.layer_norm(x, w.shape, w, b),
    "rms_norm": lambda x, w, b: eg.rms_norm(x, w.shape, w),
}


@pytest.mark.parametrize("name", _ROWS)
@pytest.mark.parametrize("n", [1, 3, 64, row_loops.STRIP, row_loops.STRIP + 1])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_rows_at_the_size_where_one_call_serves(name: str, n: int, more: int) -> None:
    """One native call, or blocks on all threads: both are right beside PyTorch in float64."""
    rng = np.random.default_rng(n)
    count = max(1, row_loops.SMALL // n + more)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((count, n), n, n))
    got = _ROWS[name](*map(eg.tensor, (x, w, b))).numpy()
    tx, tw, tb = (torch.tensor(a, dtype=torch.float64) for a in (x, w, b))
    want = {
        "softmax": lambda: torch.softmax(tx, -1),
        "log_softmax": lambda: torch.log_softmax(tx, -1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(tx, (n,), tw, tb),
        "rms_norm": lambda: torch.nn.functional.rms_norm(tx, (n,), tw, np.finfo("f4").eps),
    }[name]()
    np.testing.assert_allclose(got, want.numpy(), rtol=2e-5, atol=2e-5)
    turned = _ROWS[name](eg.tensor(np.asfortranarray(x)), *map(eg.tensor, (w, b))).numpy()
    np.testing.assert_allclose(turned, got, rtol=1e-5, atol=1e-5)


def test_gradients_of_factorisations_leave_doubtful_cases_to_the_definition() -> None:
    """The kernels serve what is plain, and nothing else."""
    rng = np.random.default_rng(0)
    g = rng.standard_normal((3, 4))
    for values, plain in (([1.0, 2.0, 3.0], True), ([1.0, 2.0, 2.0], False)):
        out = np.concatenate((np.array(values)[:, None], np.eye(3)), axis=1)
        assert (matrix_gradients.eigh_vjp(g, out) is not NotImplemented) == plain
    g = rng.standard_normal((6, 2))
    for diagonal, plain in (([1.0, 2.0], True), ([1.0, 0.0], False)):
        out = np.concatenate((np.eye(4, 2), np.diag(diagonal)))
        assert (matrix_gradients.qr_vjp(g, out) is not NotImplemented) == plain
        packed = np.concatenate((np.eye(3, 2), [diagonal[::-1]], np.eye(2)))
        assert (matrix_gradients.svd_vjp(g, packed, 3) is not NotImplemented) == plain

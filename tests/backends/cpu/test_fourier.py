"""Fourier transforms by native code: right to pocketfft's last digits, for every length and layout
they serve, and the same however the work is split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from everygrad.backends import thread_pool
from everygrad.backends.cpu.solver import fourier

# every radix first, in between and last; short ones; vectors that do not come out even
LENGTHS = [
    4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 30, 32, 36, 40, 42, 48, 50, 56, 60, 64, 70, 84, 96,
    98, 100, 120, 126, 128, 144, 192, 210, 256, 384, 500, 512, 1000, 1024, 1260, 2048, 4096, 6000,
]  # fmt: skip


def drawn(*shape: int, dtype: str) -> Any:
    rng = np.random.default_rng(len(shape) * 1000 + shape[-1])
    real = rng.standard_normal(shape)
    return (real + 1j * rng.standard_normal(shape) if dtype in "FD" else real).astype(dtype)


def rms(x: Any, want: Any) -> float:
    return float(np.sqrt((np.abs(x - want) ** 2).mean() / (np.abs(want) ** 2).mean()))


def no_worse(got: Any, pocketfft: Any, want: Any) -> None:
    assert got.dtype == pocketfft.dtype
    assert got.shape == pocketfft.shape
    last = np.finfo(got.dtype).eps / 8  # a short transform may have no error at all
    assert rms(got, want) <= 1.1 * rms(pocketfft, want) + last


def pocketfft(ufunc: Any, x: Any, size: int, dtype: str, axis: int = 1, scale: float = 1) -> Any:
    """In x's own precision, in which np.fft.fft does not compute."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    out = np.empty(shape, dtype)
    ufunc(x, out.real.dtype.type(scale), out, axes=[(axis,), (), (axis,)])
    return out


@pytest.mark.parametrize("dtype", ["F", "D"])
@pytest.mark.parametrize("n", LENGTHS)
def test_rows_are_as_near_as_pocketfft_comes(n: int, dtype: str) -> None:
    assert fourier.row_radices(n)
    x = drawn(7, n, dtype=dtype)
    whole = np.fft.fft(x.astype("G"))
    no_worse(fourier.dftn(x, (1,), False, 1.0), pocketfft(fourier._FORWARD, x, n, dtype), whole)
    back = np.fft.ifft(x.astype("G"))
    theirs = pocketfft(fourier._INVERSE, x, n, dtype, scale=1 / n)
    no_worse(fourier.dftn(x, (1,), True, 1 / n), theirs, back)
    real = np.ascontiguousarray(x.real)
    want = np.fft.fft(real.astype("g"))
    theirs = pocketfft(fourier._REAL[n % 2], real, n // 2 + 1, dtype)
    no_worse(fourier.real_dft(real, 1), theirs, want[:, : n // 2 + 1])
    mirror = np.concatenate([theirs, theirs[:, (n - 1) // 2 : 0 : -1].conj()], axis=1)
    no_worse(fourier.whole_dft(real, 1, False, 1.0), mirror, want)
    no_worse(fourier.whole_dft(real, 1, True, 0.5), mirror.conj() / 2, want.conj() / 2)
    half = x[:, : n // 2 + 1].copy()
    want = np.fft.irfft(half.astype("G"), n)
    theirs = pocketfft(fourier._HALF, half, n, real.dtype.char, scale=1 / n)
    no_worse(fourier.half_dft_weighted(half, 1, n, 1 / n, 1 / n), theirs, want)


@pytest.mark.parametrize("dtype", ["F", "D"])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 9, 15, 21, 25, 35, 49, 64, 105, 243, 256, 1000])
@pytest.mark.parametrize("inner", [4, 5, 7, 16, 33, 100])
def test_columns_are_as_near_as_pocketfft_comes(inner: int, n: int, dtype: str) -> None:
    x = drawn(2, n, inner, dtype=dtype)
    want = np.fft.fft(x.astype("G"), axis=1)
    theirs = pocketfft(fourier._FORWARD, x, n, dtype)
    no_worse(fourier.dftn(x, (1,), False, 1.0), theirs, want)
    want = np.fft.ifft(x.astype("G"), axis=1)
    theirs = pocketfft(fourier._INVERSE, x, n, dtype, scale=1 / n)
    no_worse(fourier.dftn(x, (1,), True, 1 / n), theirs, want)


@pytest.mark.parametrize("n", [12, 16, 30, 256])
@pytest.mark.parametrize("once", [1.0, 0.25])
def test_weights_of_ends_and_the_others(once: float, n: int) -> None:
    x = drawn(3, n, dtype="d")
    weights = np.full(n // 2 + 1, 0.5)
    weights[[0, -1]] = once
    want = np.fft.rfft(x) * weights
    np.testing.assert_allclose(fourier.real_dft_weighted(x, 1, once, 0.5), want, atol=1e-12)
    half = drawn(3, n // 2 + 1, dtype="D")
    want = np.fft.irfft(half * weights, n, norm="forward")
    np.testing.assert_allclose(fourier.half_dft_weighted(half, 1, n, once, 0.5), want, atol=1e-12)


@pytest.mark.parametrize("rows", [64, 97])
@pytest.mark.parametrize("n", [96, 512, 1000])
def test_threads_and_batches_change_no_bit(n: int, rows: int) -> None:
    x = drawn(rows, n, dtype="F")
    real = np.ascontiguousarray(x.real)
    threads = thread_pool.num_threads()
    found = []
    try:
        for count in (1, 2, 5):
            thread_pool.set_num_threads(count)
            found.append([
                fourier.dftn(x, (0, 1), False, 0.5), fourier.dftn(x, (1,), True, 1.0),
                fourier.real_dft(real, 1), fourier.whole_dft(real, 1, True, 2.0),
            ])  # fmt: skip
    finally:
        thread_pool.set_num_threads(threads)
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(fourier.dftn(x[3:4], (1,), True, 1.0), found[0][1][3:4])
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(fourier.dftn(strided, (1,), True, 1.0), found[0][1])


def test_long_transforms() -> None:
    for n in (1 << 16, 3 << 15, 1 << 20):
        x = drawn(n, dtype="F")
        theirs = pocketfft(fourier._FORWARD, x, n, "F", axis=0)
        no_worse(fourier.dft(x, 0, False), theirs, np.fft.fft(x.astype("G")))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    x = drawn(2, 64, dtype="F")
    x[0, 5] = bad
    out = fourier.dft(x, 1, False)
    assert not np.isfinite(out[0]).any()
    assert np.isfinite(out[1]).all()

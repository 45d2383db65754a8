"""Complex numbers on WebGPU, pairs of float32: against NumPy in complex128."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends.webgpu.gemm.choose_kernel import TINY
from everygrad.ops.signal.dft import _DIRECT

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)


def on(x: Any) -> Any:
    return eg.tensor(x, device="webgpu")


def drawn(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)


ELSEWHERE = {f"a{fn}": f"arc{fn}" for fn in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}


@pytest.mark.parametrize("name", [
    *("exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "abs", "angle", "conj"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", *ELSEWHERE),
])  # fmt: skip
def test_functions(name: str) -> None:
    """To a few units of the last place of the whole number, not of its smaller part."""
    sizes = 10.0 ** np.random.default_rng(1).uniform(-3, 0.5, 600)
    z = (drawn(600) * sizes).astype(np.complex64)
    with np.errstate(all="ignore"):
        want = getattr(np, ELSEWHERE.get(name, name))(z.astype(np.complex128))
    error = np.abs(getattr(eg, name)(on(z)).numpy() - want) / np.abs(want)
    assert error.max() < 4e-6
    assert np.median(error) < 2e-7


def test_far_numbers_neither_overflow_nor_vanish() -> None:
    z = np.array([3e37 + 4e37j, 3e-37 + 4e-37j, -3e37 + 4e37j, 3e-37j, 2e38], np.complex64)
    for name in ("abs", "sqrt", "log"):
        want = getattr(np, name)(z.astype(np.complex128))
        got = getattr(eg, name)(on(z)).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose((on(z) / on(z)).numpy(), np.ones(5), rtol=1e-6)


def test_branch_cuts_are_numpys() -> None:
    sides = [complex(x, y) for x in (-2.0, 2.0, 0.0, -0.0) for y in (0.0, -0.0)]
    sides += [complex(x, y) for y in (-2.0, 2.0) for x in (0.0, -0.0)]
    z = np.array(sides, np.complex64)
    for name in ("sqrt", "log", "asin", "acos", "atanh", "asinh", "acosh", "atan"):
        with np.errstate(all="ignore"):
            want = getattr(np, ELSEWHERE.get(name, name))(z)
        got = getattr(eg, name)(on(z)).numpy()
        finite = np.isfinite(want)
        np.testing.assert_allclose(got[finite], want[finite], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_number_times_its_conjugate_is_real() -> None:
    z = on(drawn(5000))
    assert not eg.imag(z * z.conj()).numpy().any()
    assert not eg.imag(eg.jit(lambda z: z * z.conj())(z)).numpy().any()


@pytest.mark.parametrize("shapes", [
    ((3, 4), (4, 5)), ((40, 41), (41, 42)), ((2, 40, 33), (33, 60)), ((2, 3, 9, 50), (3, 50, 60)),
])  # fmt: skip
def test_products(shapes: Any) -> None:
    """Below and above the size from which they are products of parts."""
    x, y = drawn(*shapes[0]), drawn(*shapes[1], seed=1)
    want = x.astype(np.complex128) @ y
    views = on(np.swapaxes(x, -1, -2).copy()).matrix_transpose(), on(y[::-1].copy()).flip(0)
    for a, b in ((on(x), on(y)), views):
        for fn in (lambda a, b: a @ b, eg.jit(lambda a, b: a @ b)):
            error = np.abs(fn(a, b).numpy() - want).max() / np.abs(want).max()
            assert error < 1e-6
    assert 3 * 4 * 5 < TINY <= 40 * 41 * 42


LENGTHS = (1, 2, 3, _DIRECT, _DIRECT + 1, 37, 64, 1000, 1009, 4096)


@pytest.mark.parametrize("n", LENGTHS)
def test_fourier_transforms(n: int) -> None:
    """To a few roundings for each stage; 37 and 1009 are primes."""
    z = drawn(3, n)
    real = z.real.copy()
    bound = 2e-7 * (2 + np.log2(n))
    cases: list[tuple[Callable[[Any], Any], Any, Any]] = [
        (eg.fft.fft, z, np.fft.fft(z.astype(np.complex128))),
        (eg.fft.ifft, z, np.fft.ifft(z.astype(np.complex128))),
        (eg.fft.rfft, real, np.fft.rfft(real.astype(np.float64))),
        (lambda x: eg.fft.irfft(x, n=n), drawn(3, n // 2 + 1, seed=2),
         np.fft.irfft(drawn(3, n // 2 + 1, seed=2).astype(np.complex128), n=n)),
    ]  # fmt: skip
    for fn, x, want in cases:
        size = np.sqrt((np.abs(want) ** 2).mean())
        for way in (fn, eg.jit(fn)):
            assert np.abs(way(on(x)).numpy() - want).max() < bound * 6 * size


def test_transforms_of_two_axes_and_their_derivatives() -> None:
    x = drawn(6, 10).real.copy()

    def loss(x: Any) -> Any:
        return (eg.abs(eg.fft.fft2(x)) ** 3).sum()

    def twice(x: Any) -> Any:
        return eg.grad(lambda x: (eg.grad(loss)(x) * eg.cos(x)).sum())(x)

    for fn in (loss, eg.grad(loss), twice):
        want = fn(eg.tensor(x.astype(np.float64))).numpy()
        for way in (fn, eg.jit(fn)):
            error = np.abs(way(on(x)).numpy() - want).max() / np.abs(want).max()
            assert error < 2e-6


def test_complex_systems_are_solved_by_definition() -> None:
    """Kernels of linear algebra take real numbers; compiled functions see that too."""
    a, b = drawn(6, 6) + 4 * np.eye(6, dtype=np.complex64), drawn(6, 2)
    want = np.linalg.solve(a.astype(np.complex128), b)
    for fn in (eg.linalg.solve, eg.jit(eg.linalg.solve)):
        assert np.abs(fn(on(a), on(b)).numpy() - want).max() < 1e-6


def test_files_and_devices() -> None:
    z = drawn(4, 5)
    np.testing.assert_array_equal(on(z).numpy(), z)
    np.testing.assert_array_equal(eg.tensor(z).to("webgpu").to("cpu").numpy(), z)
    np.testing.assert_array_equal(on(z)[::-1, 1:3].numpy(), z[::-1, 1:3])
    np.testing.assert_array_equal(eg.where(on(z.real > 0), on(z), 0.0).numpy()[z.real < 0], 0.0)


@pytest.mark.parametrize("op", ["cumulative_sum", "cumulative_prod"])
def test_compiled_scans_of_complex_numbers(op: str) -> None:
    """They have no kernel: a compiled function takes the definition, as an eager op does."""
    x = eg.asarray(np.exp(1j * np.arange(51, dtype=np.float32)).reshape(3, 17), device="webgpu")

    def loss(x: eg.Tensor) -> eg.Tensor:
        return eg.abs(getattr(eg, op)(x, axis=1)).sum()

    want = getattr(np, {"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}[op])(x.numpy(), 1)
    np.testing.assert_allclose(eg.jit(getattr(eg, op))(x, axis=1).numpy(), want, 1e-5, 1e-5)
    np.testing.assert_allclose(
        eg.jit(eg.grad(loss))(x).numpy(), eg.grad(loss)(x).numpy(), 1e-4, 1e-4
    )

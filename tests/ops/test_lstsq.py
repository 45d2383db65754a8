"""Least squares against PyTorch and singular values: drivers, ranks, batches, derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import linalg
from everygrad.errors import ArgumentError
from tests.support.checks import without_kernel

SHAPES = [((5, 3), 2), ((3, 5), 2), ((4, 4), 1), ((6, 5, 3), 2), ((2, 3, 3, 5), 1), ((40, 30), 3)]


def drawn(*shape: int, dtype: str = "float64", seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(shape)
    made = made + 1j * rng.standard_normal(shape) if dtype.startswith("c") else made
    return made.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(("shape", "wide"), SHAPES)
def test_solutions_and_ranks_are_pytorchs(dtype: str, shape: Any, wide: int) -> None:
    a, b = drawn(*shape, dtype=dtype), drawn(*shape[:-1], wide, dtype=dtype, seed=1)
    got, want = (
        linalg.lstsq(eg.tensor(a), eg.tensor(b)),
        torch.linalg.lstsq(torch.tensor(a), torch.tensor(b)),
    )
    tolerance = 2e-4 if dtype in ("float32", "complex64") else 1e-10
    np.testing.assert_allclose(got.solution.numpy(), want.solution.numpy(), atol=tolerance)
    assert np.array_equal(got.rank.numpy(), want.rank.numpy())
    assert got.singular_values.shape == (0,)


@pytest.mark.parametrize("shape", [(5, 4), (4, 5), (4, 4)])
def test_of_many_solutions_it_is_the_smallest(shape: tuple[int, int]) -> None:
    a = drawn(shape[0], 2) @ drawn(2, shape[1], seed=1)
    b = drawn(shape[0], 3, seed=2)
    got = linalg.lstsq(eg.tensor(a), eg.tensor(b))
    assert int(got.rank) == 2
    np.testing.assert_allclose(got.solution.numpy(), np.linalg.pinv(a) @ b, atol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 3)])
def test_the_kernel_equals_the_definition(shape: tuple[int, ...]) -> None:
    a, b = eg.tensor(drawn(*shape)), eg.tensor(drawn(*shape[:-1], 2, seed=1))
    got = linalg.lstsq(a, b)
    with without_kernel("cpu", "lstsq"), without_kernel("cpu", "lstsq_residuals"):
        want = linalg.lstsq(a, b)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-12)


def test_drivers() -> None:
    a, b = eg.tensor(drawn(5, 3)), eg.tensor(drawn(5, 2, seed=1))
    want = np.linalg.svd(a.numpy(), compute_uv=False)
    for driver in ("gelsd", "gelss"):
        got = linalg.lstsq(a, b, driver=driver).singular_values.numpy()
        np.testing.assert_allclose(got, want, atol=1e-12)
    assert linalg.lstsq(a, b, driver="gels").singular_values.shape == (0,)
    with pytest.raises(ArgumentError, match="lstsq: driver must be"):
        linalg.lstsq(a, b, driver="qr")


def test_what_is_not_finite_is_refused_by_name() -> None:
    a = drawn(4, 2)
    a[1, 1] = np.nan
    with pytest.raises(ArgumentError, match="does not converge"):
        linalg.lstsq(eg.tensor(a), eg.tensor(drawn(4, 1)))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_derivatives_in_both_modes_and_to_second_order(shape: tuple[int, int]) -> None:
    a = eg.tensor(drawn(*shape), requires_grad=True)
    b = eg.tensor(drawn(shape[0], 2, seed=1), requires_grad=True)

    def solution(a: Any, b: Any) -> Any:
        return linalg.lstsq(a, b).solution

    assert eg.gradcheck(solution, (a, b))
    assert eg.gradgradcheck(solution, (a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("shape", [(5, 7, 3), (4, 3, 6), (2, 3, 4, 4)])
def test_a_batch_is_its_matrices(dtype: str, shape: tuple[int, ...]) -> None:
    """The native loop over a batch gives what one call for each matrix does, to the bit."""
    eg.jit(lambda x: x + 1)(eg.ones(3))  # LLVM is loaded: the loop is native
    rng = np.random.default_rng(0)
    drawn = [rng.standard_normal((*s, 2)) @ [1, 1j] for s in (shape, (*shape[:-1], 2))]
    kind = np.dtype(dtype).kind
    a, b = (eg.tensor((x if kind == "c" else x.real).astype(dtype)) for x in drawn)
    a = eg.concat([a[:1] * 0, a[1:]])  # one without a rank
    together = eg.linalg.lstsq(a, b)
    for at in np.ndindex(shape[:-2]):
        alone = eg.linalg.lstsq(a[at], b[at])
        np.testing.assert_array_equal(together.solution[at].numpy(), alone.solution.numpy())
        assert together.rank[at].item() == alone.rank.item()

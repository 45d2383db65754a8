"""Random numbers: Philox bit by bit, distributions by their moments, generators, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import everygrad as eg
from everygrad.backends import base
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from tests.support.checks import close, native_threshold, values, without_kernel
from tests.support.references import basic as references

pytestmark = pytest.mark.needs("float64")

COUNT = 200_000

# (counter, key, result) from Random123's known-answer tests for philox4x32-10
KNOWN = (
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
)  # fmt: skip


def words(text: str) -> list[int]:
    return [int(w, 16) for w in text.split()]


def test_the_reference_gives_the_known_answers() -> None:
    for counter, key, result in KNOWN:
        assert references.philox_block(words(counter), words(key)) == words(result)


def test_bits_are_the_known_answer(device: str) -> None:
    g = eg.Generator(0)
    assert values(g.bits(4, device)).tolist() == words(KNOWN[0][2])


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**64 - 1])
@pytest.mark.parametrize("portable", [False, True])
def test_bits_equal_the_reference(seed: int, portable: bool, device: str) -> None:
    state = np.array([seed % 2**32, seed >> 32, 0, 0], np.uint32)
    for start in (0, 2**32 - 2):  # across the carry into the second word
        state[2] = start
        g = eg.Generator(seed)
        g.set_state(state)
        want = references.philox(state, 4 * 9)
        if portable and "philox" in base.get(device).kernels:
            with without_kernel(device, "philox"):
                got = [values(g.bits(n, device)) for n in (4, 8, 24)]
        else:
            got = [values(g.bits(n, device)) for n in (4, 8, 24)]
        assert np.concatenate(got).tolist() == want.tolist()
        assert g.get_state()[2] == (start + 9) % 2**32
        assert g.get_state()[3] == (start + 9) >> 32


def test_compiled_bits_are_the_same() -> None:
    """Many words come from kernels, also across the carry and past the last counter."""
    for words_ in ([1, 2, 0, 0], [5, 2**32 - 1, 2**32 - 3, 3], [7, 9, 2**32 - 2, 2**32 - 1]):
        g = eg.Generator(0)
        g.set_state(np.array(words_, np.uint32))
        plain = values(g.bits(41))
        g.set_state(np.array(words_, np.uint32))
        with native_threshold(0):
            assert values(g.bits(41)).tolist() == plain.tolist()


def test_a_draw_starts_a_new_block() -> None:
    """Element i depends on the counter and i alone: what was not used of a block is left."""
    g = eg.Generator(3)
    first, second = values(g.bits(5)), values(g.bits(3))
    stream = references.philox(np.array([3, 0, 0, 0], np.uint32), 12)
    assert first.tolist() == stream[:5].tolist()
    assert second.tolist() == stream[8:11].tolist()


def test_floats_are_made_of_the_bits(device: str) -> None:
    stream = references.philox(np.array([7, 0, 0, 0], np.uint32), 8)
    single = eg.rand((4,), "float32", device, eg.Generator(7))
    assert values(single).tolist() == ((stream[:4] >> 8) * 2.0**-24).tolist()
    half = eg.rand((4,), "float16", device, eg.Generator(7))
    assert values(half).tolist() == ((stream[:4] >> 21) * 2.0**-11).tolist()
    double = eg.rand((4,), "float64", device, eg.Generator(7))
    high, low = stream[:4].astype(object) >> 5, stream[4:].astype(object) >> 6
    assert values(double).tolist() == [
        (h * 2**26 + k) / 2**53 for h, k in zip(high, low, strict=True)
    ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_moments(dtype: str, device: str) -> None:
    g = eg.Generator(11)
    u = values(eg.rand((COUNT,), dtype, device, g)).astype(np.float64)
    assert u.min() >= 0
    assert u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=5e-3)
    assert u.var() == pytest.approx(1 / 12, abs=2e-3)
    n = values(eg.randn((COUNT,), dtype, device, g)).astype(np.float64)
    assert np.isfinite(n).all()
    assert n.mean() == pytest.approx(0, abs=1e-2)
    assert n.var() == pytest.approx(1, abs=2e-2)
    assert stats.kurtosis(n) == pytest.approx(0, abs=5e-2)
    if dtype in ("float32", "float64"):
        assert stats.kstest(u, "uniform").pvalue > 1e-3
        assert stats.kstest(n, "norm").pvalue > 1e-3


def test_other_distributions(device: str) -> None:
    g = eg.Generator(5)
    u = values(eg.uniform(-3.0, 5.0, (COUNT,), device=device, generator=g))
    assert (u.min() >= -3, u.max() < 5) == (True, True)
    assert u.mean() == pytest.approx(1, abs=5e-2)
    n = values(eg.normal(4.0, 0.5, (COUNT,), device=device, generator=g))
    assert (n.mean(), n.std()) == (pytest.approx(4, abs=1e-2), pytest.approx(0.5, abs=1e-2))
    b = values(eg.bernoulli(0.3, (COUNT,), device=device, generator=g))
    assert b.dtype == bool
    assert b.mean() == pytest.approx(0.3, abs=5e-3)
    i = values(eg.randint(-2, 5, (COUNT,), device=device, generator=g))
    assert stats.chisquare(np.bincount(i + 2)).pvalue > 1e-3
    assert sorted(set(i.tolist())) == [-2, -1, 0, 1, 2, 3, 4]
    assert eg.bernoulli(1.0, (1000,), device=device).all().item()
    assert not eg.bernoulli(0.0, (1000,), device=device).any().item()
    small = values(eg.randint(0, 200, (COUNT,), "uint8", device=device, generator=g))
    assert (small.dtype, small.max()) == (np.uint8, 199)


def test_generators(device: str) -> None:
    eg.manual_seed(42)
    first = values(eg.randn((5,), device=device))
    second = values(eg.randn((5,), device=device))
    assert not np.array_equal(first, second)
    eg.manual_seed(42)
    close(eg.randn((5,), device=device), first, 0)
    g = eg.Generator(42)
    assert g.seed == 42
    close(eg.randn((5,), device=device, generator=g), first, 0)
    state = g.get_state()
    ahead = values(eg.rand((3,), device=device, generator=g))
    g.set_state(state)
    close(eg.rand((3,), device=device, generator=g), ahead, 0)
    state[:] = 0  # what get_state gave is a copy
    assert g.get_state().any()
    assert eg.rand((0, 3), device=device, generator=g).shape == (0, 3)
    assert eg.rand((), device=device, generator=g).shape == ()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: eg.Generator(-1), ArgumentError, r"from 0 to 2\*\*64 - 1, got -1"),
        (lambda: eg.manual_seed(1.5), ArgumentError, "got 1.5"),
        (lambda: eg.Generator(0).set_state([1, 2]), ArgumentError, "four uint32"),
        (lambda: eg.rand((2,), "int32"), DtypeError, "floating point, not int32"),
        (lambda: eg.rand((-2,)), ArgumentError, "must not be negative"),
        (lambda: eg.uniform(1.0, 0.0, (2,)), ArgumentError, "low must not be above high"),
        (lambda: eg.normal(0.0, -1.0, (2,)), ArgumentError, "std must not be negative"),
        (lambda: eg.bernoulli(1.5, (2,)), ArgumentError, "between 0 and 1, got 1.5"),
        (lambda: eg.randint(3, 3, (2,)), ArgumentError, "needs low < high"),
        (lambda: eg.exponential(0.0, (2,)), ArgumentError, "rate must be above 0, got 0.0"),
        (lambda: eg.gamma(-1.0, shape=(2,)), ArgumentError, "concentration must be above 0"),
        (lambda: eg.beta(1.0, 0.0, (2,)), ArgumentError, "beta: b must be above 0, got 0.0"),
        (lambda: eg.gamma("a"), TypeError, "'>' not supported"),
        (lambda: eg.normal(1j, 1.0, (2,)), DtypeError, "normal: takes tensors and numbers, got c"),
        (lambda: eg.gamma(eg.ones((3,)), shape=(2,)), ShapeError, "gamma: cannot broadcast"),
        (lambda: eg.gamma(eg.ones((2, 3)), shape=(3,)), ShapeError, "do not fit into the shape"),
        (lambda: eg.gamma(1.0, dtype="int32"), DtypeError, "in floating point, not int32"),
        (lambda: eg.dirichlet(eg.ones(())), ShapeError, "needs concentrations along an axis"),
        (lambda: eg.poisson(-1.0), ArgumentError, "rate must not be negative, got -1.0"),
        (lambda: eg.binomial(-1, 0.5), ArgumentError, "n must not be negative, got -1"),
        (lambda: eg.binomial(3, 1.5), ArgumentError, "p must be between 0 and 1, got 1.5"),
        (lambda: eg.categorical(eg.ones((2,), "int32")), DtypeError, "does not take int32"),
        (lambda: eg.categorical(eg.ones((2, 0))), ShapeError, "nothing to choose from"),
        (lambda: eg.categorical(eg.ones((2, 3)), (3,)), ShapeError, "cannot broadcast"),
        (lambda: eg.multinomial(eg.ones((2,)), 3), ArgumentError, "3 samples of 2 choices need"),
        (lambda: eg.multinomial(eg.ones((2,)), 0), ArgumentError, "1 or more, got 0"),
        (lambda: eg.permutation(-1), ArgumentError, "must not be negative, got -1"),
        (lambda: eg.permutation(2.5), ArgumentError, "the size must be an integer, got 2.5"),
        (lambda: eg.dropout(eg.ones((2,)), 1.5), ArgumentError, "between 0 and 1, got 1.5"),
        (lambda: eg.dropout(eg.arange(2)), DtypeError, "dropout: does not take int64"),
    ],
)
def test_refusals(call: Any, error: Any, message: str) -> None:
    before = eg.default_generator.get_state()
    with pytest.raises(error, match=message):
        call()
    assert eg.default_generator.get_state().tolist() == before.tolist()


def test_dropout(device: str) -> None:
    x = eg.ones((COUNT,), "float64", device, requires_grad=True)
    eg.manual_seed(1)
    out = eg.dropout(x, 0.25)
    kept = values(out) != 0
    assert kept.mean() == pytest.approx(0.75, abs=5e-3)
    close(out, np.where(kept, 1 / 0.75, 0), 1e-15)
    out.sum().backward()
    close(x.grad, values(out), 0)  # the derivative has the same mask
    other = values(eg.dropout(x, 0.25))
    assert not np.array_equal(other, values(out))
    eg.manual_seed(1)
    close(eg.dropout(x, 0.25), values(out), 0)


def test_dropout_at_the_ends_stays_connected(device: str) -> None:
    x = eg.ones((3,), device=device, requires_grad=True)
    for p, training, slope in ((0.0, True, 1.0), (1.0, True, 0.0), (0.5, False, 1.0)):
        x.grad = None
        out = eg.dropout(x * 1.0, p, training)
        assert out.requires_grad
        out.sum().backward()
        assert x.grad.tolist() == [slope] * 3

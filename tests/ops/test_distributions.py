"""Distributions: by their distribution functions, derivatives, transformations and devices."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import everygrad as eg
from everygrad.errors import ArgumentError
from tests.support.checks import close, values

MANY = 20_000
CONTINUOUS: dict[str, tuple[Any, Any]] = {
    "exponential": (lambda **o: eg.exponential(3.0, (MANY,), **o), stats.expon(scale=1 / 3)),
    "gamma-0.05": (lambda **o: eg.gamma(0.05, 1.0, (MANY,), **o), stats.gamma(0.05)),
    "gamma-1": (lambda **o: eg.gamma(1.0, 2.0, (MANY,), **o), stats.gamma(1.0, scale=0.5)),
    "gamma-300": (lambda **o: eg.gamma(300.0, 1.0, (MANY,), **o), stats.gamma(300.0)),
    "beta": (lambda **o: eg.beta(0.4, 3.0, (MANY,), **o), stats.beta(0.4, 3.0)),
    "uniform": (lambda **o: eg.uniform(2.0, 3.0, (MANY,), **o), stats.uniform(2.0, 1.0)),
    "normal": (lambda **o: eg.normal(2.0, 3.0, (MANY,), **o), stats.norm(2.0, 3.0)),
}
DISCRETE: dict[str, tuple[Any, Any]] = {
    **{
        f"poisson-{rate}": (lambda r=rate, **o: eg.poisson(r, (MANY,), **o), stats.poisson(rate))
        for rate in (0.3, 9.5, 10.5, 400.0)
    },
    **{
        f"binomial-{n}-{p}": (
            lambda n=n, p=p, **o: eg.binomial(n, p, (MANY,), **o),
            stats.binom(n, p),
        )
        for n, p in ((1, 0.3), (30, 0.1), (30, 0.9), (30, 0.5), (1000, 0.3), (1000, 0.999))
    },
}
EVERY = {**CONTINUOUS, **DISCRETE}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name: str, device: str) -> None:
    draw, want = CONTINUOUS[name]
    x = values(draw(device=device, generator=eg.Generator(11)))
    assert x.dtype == np.float32
    assert stats.kstest(x.astype(np.float64), want.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name: str, device: str) -> None:
    draw, want = DISCRETE[name]
    k = values(draw(device=device, generator=eg.Generator(12))).astype(np.int64)
    ends = np.unique(want.ppf([1e-9, *np.linspace(0.02, 0.98, 40), 1 - 1e-9]))
    mass = np.diff([0.0, *want.cdf(ends[:-1]), 1.0])
    seen = np.bincount(np.searchsorted(ends[:-1], k), minlength=len(mass))
    often = mass * MANY > 5
    assert (seen[~often] <= 20).all()
    fair = mass[often] / mass[often].sum() * seen[often].sum()
    assert stats.chisquare(seen[often], fair).pvalue > 1e-3


@pytest.mark.parametrize("name", EVERY)
def test_devices_draw_alike(name: str, device: str) -> None:
    """The same bits, and so the same numbers up to the rounding of a device's functions."""
    draw, _ = EVERY[name]
    here = values(draw(device="cpu", generator=eg.Generator(13)))
    there = values(draw(device=device, generator=eg.Generator(13)))
    close_ones = np.isclose(there, here, rtol=1e-4, atol=1e-5)
    assert close_ones.mean() > 0.9999  # a number at the very edge of an acceptance may go elsewhere


def test_parameters_may_be_tensors(device: str) -> None:
    """One distribution for each element, in the shape and dtype of the parameters or the result."""
    rates = eg.tensor([[0.5], [5.0], [80.0]], device=device)
    for draw, mean in (
        (lambda o: eg.exponential(1 / rates, **o), rates),
        (lambda o: eg.gamma(rates, **o), rates),
        (lambda o: eg.poisson(rates, **o), rates),
        (lambda o: eg.normal(rates, 1.0, **o), rates),
        (lambda o: eg.uniform(0.0, 2.0 * rates, **o), rates),
        (lambda o: eg.binomial(100.0, rates / 100.0, **o), rates),
        (lambda o: eg.bernoulli(rates / 100.0, **o), rates / 100.0),
        (lambda o: eg.beta(rates, 10.0, **o), rates / (rates + 10.0)),
    ):
        out = draw({"shape": (3, 4000), "generator": eg.Generator(4)})
        assert (out.shape, out.device) == ((3, 4000), rates.device)
        spread = values(out).astype(np.float64)
        error = spread.std(axis=1) / np.sqrt(4000)
        assert (np.abs(spread.mean(axis=1) - values(mean)[:, 0]) < 5 * error + 1e-6).all()
        assert draw({"generator": eg.Generator(4)}).shape == (3, 1)
    for dtype in ("float16", "bfloat16"):
        assert str(eg.gamma(rates.astype(dtype)).dtype) == dtype
        assert str(eg.poisson(rates.astype(dtype)).dtype) == dtype


def test_edges(device: str) -> None:
    assert values(eg.poisson(0.0, (5,), device=device)).tolist() == [0.0] * 5
    for p, n in ((0.0, 0.0), (1.0, 50.0)):
        assert values(eg.binomial(50, p, (5,), device=device)).tolist() == [n] * 5
    assert values(eg.binomial(0, 0.5, (5,), device=device)).tolist() == [0.0] * 5
    bad = eg.tensor([-1.0, float("nan"), 2.0], device=device)
    assert np.isnan(values(eg.poisson(bad))).tolist() == [True, True, False]
    assert np.isnan(values(eg.binomial(3.0, bad))).all()
    tiny = eg.full((1000,), 1e-3, device=device)
    both = values(eg.beta(tiny, tiny))  # gamma variables of which most underflow
    assert np.isfinite(both).all()
    assert both.mean() == pytest.approx(0.5, abs=0.1)


def test_choices(device: str) -> None:
    p = np.array([0.1, 0.0, 0.2, 0.7], np.float32)
    weights = eg.tensor(p * 8, device=device)
    g = eg.Generator(21)
    for drawn in (
        eg.categorical(eg.log(weights), (MANY,), generator=g),
        eg.multinomial(weights, MANY, replacement=True, generator=g),
        eg.multinomial(weights.broadcast_to((MANY, 4)), 2, generator=g)[:, 0],
    ):
        assert drawn.dtype is eg.int64
        counts = np.bincount(values(drawn), minlength=4)
        assert counts[1] == 0
        assert stats.chisquare(counts[p > 0], p[p > 0] * MANY).pvalue > 1e-3
    order = values(eg.multinomial(weights.broadcast_to((50, 4)), 4, generator=g))
    assert (np.sort(order, axis=1) == np.arange(4)).all()
    assert (order[:, 3] == 1).all()  # what cannot be chosen comes last
    rows = eg.categorical(eg.ones((4, 3, 2), device=device), axis=1)
    assert rows.shape == (4, 2)


def test_permutations(device: str) -> None:
    g = eg.Generator(8)
    orders = [tuple(eg.permutation(3, device=device, generator=g).tolist()) for _ in range(300)]
    counts = [orders.count(o) for o in itertools.permutations(range(3))]
    assert stats.chisquare(counts).pvalue > 1e-3
    x = eg.arange(12, device=device).reshape(3, 4)
    mixed = values(eg.permutation(x, axis=1, generator=g))
    assert sorted(mixed[0].tolist()) == [0, 1, 2, 3]
    assert (mixed - mixed[:1] == np.array([[0], [4], [8]])).all()
    assert eg.permutation(0, device=device).shape == (0,)


# --- derivatives ---------------------------------------------------------------------------------


def _quantile_slopes(alpha: Any, z: Any, step: float = 1e-5) -> tuple[Any, Any]:
    """First and second derivative of the gamma quantile that z is, by differences of SciPy's."""
    p = special.gammainc(alpha, z)
    low, high = (special.gammaincinv(alpha + d, p) for d in (-step, step))
    return (high - low) / (2 * step), (high - 2 * z + low) / step**2


def test_gamma_derivative() -> None:
    """A gamma variable moves with its parameter as its quantile does, to second order."""
    alpha = np.array([0.3, 0.9, 1.0, 1.7, 6.0, 40.0])

    def f(a: Any) -> Any:
        return eg.gamma(a, generator=eg.Generator(5))

    a = eg.tensor(alpha)
    first, second = _quantile_slopes(alpha, values(f(a)))
    slope = eg.grad(lambda a: f(a).sum())
    close(slope(a), first, 1e-8)
    close(eg.grad(lambda a: slope(a).sum())(a), second, 1e-4)
    close(eg.jvp(f, (a,), (eg.ones_like(a),))[1], first, 1e-8)


def test_gamma_derivative_on_devices(device: str) -> None:
    alpha = np.array([0.02, 0.3, 1.0, 6.0, 200.0], np.float32)
    a = eg.tensor(alpha, device=device, requires_grad=True)
    z = eg.gamma(a, generator=eg.Generator(5))
    z.sum().backward()
    first, _ = _quantile_slopes(alpha.astype(np.float64), values(z).astype(np.float64))
    np.testing.assert_allclose(values(a.grad), first, rtol=2e-3, atol=1e-6)


def test_small_alphas_keep_their_derivative() -> None:
    """Where z is 0 in float64 its logarithm still moves; beta and dirichlet are made of it."""
    a = eg.full((2000,), 1e-3, dtype="float64").requires_grad_()
    eg.beta(a, 2e-3, generator=eg.Generator(6)).sum().backward()
    assert np.isfinite(values(a.grad)).all()
    error = values(a.grad).std() / np.sqrt(2000)
    assert values(a.grad).mean() == pytest.approx(2e-3 / 3e-3**2, abs=5 * error)


def test_closed_derivatives(device: str) -> None:
    low, high = (eg.tensor(v, device=device, requires_grad=True) for v in (1.0, 3.0))
    u = (values(eg.uniform(low, high, generator=eg.Generator(3))) - 1.0) / 2.0
    eg.uniform(low, high, generator=eg.Generator(3)).backward()
    close(low.grad, 1 - u, 1e-6)
    close(high.grad, u, 1e-6)
    rate = eg.tensor([2.0, 0.5], device=device, requires_grad=True)
    waits = eg.exponential(rate, generator=eg.Generator(3))
    waits.sum().backward()
    close(rate.grad, -values(waits) / values(rate), 1e-6)


def test_dirichlet(device: str) -> None:
    c = np.array([0.5, 1.0, 2.5], np.float32)
    a = eg.tensor(c, device=device, requires_grad=True)
    p = eg.dirichlet(a, (MANY, 3), generator=eg.Generator(2))
    close(p.sum(axis=-1), np.ones(MANY), 1e-5)
    for i in range(3):
        want = stats.beta(float(c[i]), float(c.sum() - c[i]))
        assert stats.kstest(values(p)[:, i].astype(np.float64), want.cdf).pvalue > 1e-3
    p[:, 0].mean().backward()
    want = np.array([c.sum() - c[0], -c[0], -c[0]]) / c.sum() ** 2  # of c[0] / sum(c)
    np.testing.assert_allclose(values(a.grad), want, atol=0.01)


@pytest.mark.parametrize("name", ["exponential", "gamma-1", "poisson-10.5"])  # each kind of draw
def test_compiled_draws_are_eager_draws(name: str) -> None:
    draw, _ = EVERY[name]
    step = eg.jit(lambda: draw())
    eg.manual_seed(5)
    got = [values(step()) for _ in range(2)]
    eg.manual_seed(5)
    for g in got:
        np.testing.assert_allclose(g, values(draw()), rtol=2e-5, atol=1e-6)
    assert not np.array_equal(*got)


def test_inside_vmap() -> None:
    a = eg.tensor([[0.5, 2.0], [0.5, 2.0], [0.5, 2.0]])
    for draw in (
        lambda x: eg.gamma(x),
        lambda x: eg.poisson(x * 30.0),
        lambda x: eg.binomial(50.0, x * 0.1),
        lambda x: eg.categorical(eg.stack([x] * 9), axis=0) + x * 0,
        lambda x: eg.dirichlet(x),
        lambda x: eg.permutation(8) + x.sum() * 0,
    ):
        same = values(eg.vmap(draw, randomness="same")(a))
        assert (same == same[:1]).all()
        different = values(eg.vmap(draw, randomness="different")(a))
        assert different.shape == same.shape
        assert not (different == different[:1]).all()
        with pytest.raises(ArgumentError, match="random numbers inside vmap"):
            eg.vmap(draw)(a)
    curved = eg.hessian(lambda x: eg.gamma(x, generator=eg.Generator(3)).sum())(a[0])
    slope = eg.grad(lambda x: eg.gamma(x, generator=eg.Generator(3)).sum())
    twice = eg.grad(lambda x: slope(x).sum())(a[0])
    close(curved, np.diag(values(twice)), 1e-6)  # every direction sees the same numbers
    per_example = eg.vmap(eg.grad(lambda x: eg.gamma(x).sum()), randomness="different")(a)
    assert per_example.shape == (3, 2)
    assert (values(per_example) > 0).all()

"""Draws: by moments, by Kolmogorov and Smirnov's test, and their gradients.

Seeds are fixed; thresholds are those that one right program in 10**5 fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

import everygrad as eg
from tests.distributions.cases import BY_NAME, CASES, ours

COUNT = 20_000
WITH_CDF = [
    *("Normal", "Uniform", "Laplace", "Cauchy", "Gumbel", "Gamma", "Chi2", "Exponential"),
    *("InverseGamma", "LogNormal", "HalfNormal", "HalfCauchy", "Weibull", "Pareto"),
    *("GeneralizedPareto", "Kumaraswamy", "ContinuousBernoulli", "TransformedDistribution"),
    "MixtureSameFamily",
]
BY_SCIPY = {
    "StudentT": lambda p, i: scipy.stats.t(p["df"][i], p["loc"][i], p["scale"][i]),
    "Beta": lambda p, i: scipy.stats.beta(p["concentration1"][i], p["concentration0"][i]),
    "FisherSnedecor": lambda p, i: scipy.stats.f(p["df1"][i], p["df2"][i]),
    "VonMises": lambda p, i: scipy.stats.vonmises(p["concentration"][i], p["loc"][i]),
}
MOMENTS = [c.name for c in CASES if c.name.split()[0] not in {
    *("Cauchy", "HalfCauchy", "Categorical", "LKJCholesky", "LogisticNormal", "Pareto", "VonMises"),
    *("RelaxedBernoulli", "RelaxedOneHotCategorical", "TransformedDistribution", "StudentT"),
    *("FisherSnedecor", "InverseGamma", "GeneralizedPareto", "LogNormal"),
}]  # fmt: skip  # those without moments, or whose moments hang on a few draws


def draws(name: str, count: int = COUNT) -> Any:
    eg.manual_seed(1234)
    mine, _ = ours(BY_NAME[name])
    return mine, np.asarray(mine.sample((count,)))


@pytest.mark.parametrize("name", WITH_CDF)
def test_draws_follow_the_cdf(name: str) -> None:
    mine, x = draws(name)
    shares = np.asarray(mine.cdf(eg.tensor(x)))
    p = [scipy.stats.kstest(row, "uniform").pvalue for row in shares.T]
    assert len(p) == mine.batch_shape[0]
    assert min(p) > 1e-5, p


@pytest.mark.parametrize("name", BY_SCIPY)
def test_draws_follow_scipy(name: str) -> None:
    _, x = draws(name)
    given = BY_NAME[name].parameters
    assert x.shape[1] == 3
    for i, row in enumerate(x.T):
        other = BY_SCIPY[name](given, i)
        if name == "VonMises":
            assert row.min() >= -np.pi
            assert row.max() <= np.pi
            # distances from loc, which SciPy's distribution function is meant for
            row = (row - given["loc"][i] + np.pi) % (2 * np.pi) - np.pi + given["loc"][i]
        assert scipy.stats.kstest(row, other.cdf).pvalue > 1e-5


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str) -> None:
    mine, x = draws(name)
    mean, variance = np.asarray(mine.mean), np.asarray(mine.variance)
    error = np.sqrt(variance / COUNT)
    assert (np.abs(x.mean(0) - mean) <= 5 * error + 1e-12).all()
    # the error of a variance, from the fourth moment of what was drawn
    fourth = ((x - mean) ** 4).mean(0)
    tolerance = 6 * np.sqrt(np.maximum(fourth - variance**2, 0) / COUNT) + 25 * variance / COUNT
    assert (np.abs(x.var(0) - variance) <= tolerance).all()


@pytest.mark.parametrize("name", ["Categorical", "Categorical logits"])
def test_frequencies(name: str) -> None:
    mine, x = draws(name)
    probs = np.asarray(mine.probs)
    for row, wanted in zip(x.T, probs, strict=True):
        counted = np.bincount(row, minlength=3)
        assert scipy.stats.chisquare(counted, wanted * COUNT).pvalue > 1e-5


def test_lkj_cholesky_draws_correlations() -> None:
    mine, x = draws("LKJCholesky")
    assert bool(mine.support.check(eg.tensor(x)).all())
    for i, c in enumerate(BY_NAME["LKJCholesky"].parameters["concentration"]):
        correlation = (x @ np.swapaxes(x, -1, -2))[:, i]
        # of LKJ(c) in three dimensions, each correlation is 2 Beta(b, b) - 1 with b = c + 1/2
        marginal = scipy.stats.beta(c + 0.5, c + 0.5, loc=-1, scale=2)
        for row, column in ((0, 1), (0, 2), (1, 2)):
            assert scipy.stats.kstest(correlation[:, row, column], marginal.cdf).pvalue > 1e-5


@pytest.mark.parametrize("name", ["RelaxedBernoulli", "RelaxedOneHotCategorical"])
def test_relaxed_choices_prefer_what_is_probable(name: str) -> None:
    mine, x = draws(name, 4000)
    assert bool(mine.support.check(eg.tensor(x)).all())
    if name == "RelaxedBernoulli":  # above 1/2 as often as 1 is drawn, at any temperature
        got, want = (x > 0.5).mean(0), np.asarray(mine.probs)
    else:
        got = (x.argmax(-1)[..., None] == np.arange(3)).mean(0)
        want = np.asarray(mine.probs)
    assert (np.abs(got - want) < 5 * np.sqrt(want * (1 - want) / 4000)).all()


# --- gradients -----------------------------------------------------------------------------------

# a draw is a function of its parameters at a fixed place of the distribution: dx = -dF / f
REPARAMETERISED = [
    *("Normal", "Uniform", "Laplace", "Cauchy", "Gumbel", "Gamma", "Chi2", "Exponential"),
    *("InverseGamma", "LogNormal", "HalfNormal", "Weibull", "Pareto", "Kumaraswamy"),
    *("ContinuousBernoulli", "GeneralizedPareto"),
]


@pytest.mark.parametrize("name", REPARAMETERISED)
def test_rsample_gradient_is_implicit(name: str) -> None:
    """By the distribution function: the gradient of a draw is -(dF/dp) / (dF/dx)."""
    eg.manual_seed(5)
    mine, parameters = ours(BY_NAME[name], grad=True)
    x = mine.rsample((50,))
    x.sum().backward()
    at = eg.tensor(np.asarray(x.detach()), requires_grad=True)
    again, others = ours(BY_NAME[name], grad=True)
    density = np.exp(np.asarray(mine.log_prob(at).detach()))
    for key, tensor in parameters.items():
        slopes = []
        for draw in range(50):  # one draw at a time, as the density weighs each
            again, others = ours(BY_NAME[name], grad=True)
            again.cdf(at[draw].detach()).sum().backward()
            slopes.append(-np.asarray(others[key].grad) / density[draw])
        want = np.array(slopes).sum(0)
        np.testing.assert_allclose(np.asarray(tensor.grad), want, rtol=1e-6, err_msg=key)


@pytest.mark.parametrize(
    ("name", "key"),
    [("Beta", "concentration1"), ("Beta", "concentration0"), ("Dirichlet", "concentration"),
     ("StudentT", "df"), ("FisherSnedecor", "df2"), ("Wishart", "df")],
)  # fmt: skip
def test_rsample_gradient_of_expectations(name: str, key: str) -> None:
    """d/dp E[g(x)] from draws, against finite differences of what is known in closed form."""
    case = BY_NAME[name]
    if name in ("StudentT", "FisherSnedecor"):  # of many degrees, so that variances are finite
        given = {k: v * 0 + 12.0 if "df" in k else v for k, v in case.parameters.items()}
        case = case._replace(parameters=given)
    eg.manual_seed(9)
    mine, parameters = ours(case, grad=True)
    x = mine.rsample((COUNT,))
    away = x - mine.mean.detach()
    square = (away * away).mean(axis=0)
    square.sum().backward()
    got = np.asarray(parameters[key].grad)

    def spread(values: Any) -> float:
        moved, _ = ours(case._replace(parameters={**case.parameters, key: values}))
        shift = np.asarray(moved.mean) - np.asarray(mine.mean.detach())
        return float((np.asarray(moved.variance) + shift**2).sum())

    base = case.parameters[key]
    want = np.zeros(base.shape)
    for place in np.ndindex(base.shape):
        step = np.zeros(base.shape)
        step[place] = 1e-5
        want[place] = (spread(base + step) - spread(base - step)) / 2e-5
    scale = np.abs(want).max()
    np.testing.assert_allclose(got, want, atol=0.12 * scale, rtol=0.12)


def test_straight_through_has_the_gradient_of_the_probabilities() -> None:
    logits = eg.tensor([[0.1, -1.0, 2.0]], eg.float64, requires_grad=True)
    weights = eg.tensor([1.0, 5.0, -2.0], eg.float64)
    x = eg.distributions.OneHotCategoricalStraightThrough(logits=logits).rsample()
    assert sorted(x.tolist()[0]) == [0.0, 0.0, 1.0]
    (x * weights).sum().backward()
    other = eg.tensor([[0.1, -1.0, 2.0]], eg.float64, requires_grad=True)
    (other.softmax(-1) * weights).sum().backward()
    np.testing.assert_allclose(np.asarray(logits.grad), np.asarray(other.grad), rtol=1e-12)


@pytest.mark.parametrize("name", [c.name for c in CASES])
def test_sample_has_no_gradient_and_rsample_has_one(name: str) -> None:
    mine, parameters = ours(BY_NAME[name], grad=True)
    assert not mine.sample((2,)).requires_grad
    if mine.has_rsample:
        assert mine.rsample((2,)).requires_grad
    else:
        with pytest.raises(NotImplementedError, match="rsample"):
            mine.rsample((2,))
    assert parameters

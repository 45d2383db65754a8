"""What is refused, by name; and distributions inside jit, vmap and on every device."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.core.torch_names import DISTRIBUTIONS_ABSENT
from everygrad.errors import ArgumentError, DeviceError, DtypeError, ShapeError
from tests.distributions.cases import BY_NAME, CASES, Case, ours

D = eg.distributions


def t(*values: Any) -> eg.Tensor:
    return eg.tensor(values)


REFUSALS: list[tuple[Any, type[Exception], str]] = [
    (lambda: D.Normal(0.0, -1.0), ArgumentError,
     "Normal: scale must be positive (above 0), got -1.0"),
    (lambda: D.Normal(t(0.0, np.nan), 1.0), ArgumentError,
     "Normal: loc must be a real number, got nan"),
    (lambda: D.Normal("0", 1.0), DtypeError,
     "Normal: loc must be a tensor or a number, got str '0'"),
    (lambda: D.Normal(eg.zeros((2,)), eg.ones((3,))), ShapeError,
     "Normal: parameters do not broadcast: loc (2,), scale (3,)"),
    (lambda: D.Uniform(1.0, 0.0), ArgumentError, "Uniform: low must be below high, got 1.0"),
    (lambda: D.Uniform(0.0, 1.0).log_prob(2.0), ArgumentError,
     "Uniform.log_prob: the value must be between tensor(0.) and tensor(1.), got 2.0"),
    (lambda: D.Gamma(t(1.0, 0.0), 1.0), ArgumentError,
     "Gamma: concentration must be positive (above 0), got 0.0"),
    (lambda: D.Gamma(1.0, 1.0).log_prob(-1.0), ArgumentError,
     "Gamma.log_prob: the value must be nonnegative (at least 0), got -1.0"),
    (lambda: D.Bernoulli(1.5), ArgumentError,
     "Bernoulli: probs must be between 0.0 and 1.0, got 1.5"),
    (lambda: D.Bernoulli(0.5, 0.0), ArgumentError,
     "Bernoulli: give exactly one of probs, logits, got probs and logits"),
    (lambda: D.Bernoulli(), ArgumentError,
     "Bernoulli: give exactly one of probs, logits, got none"),
    (lambda: D.Bernoulli(0.5).log_prob(0.5), ArgumentError,
     "Bernoulli.log_prob: the value must be 0 or 1, got 0.5"),
    (lambda: D.Binomial(2.5, 0.5), ArgumentError,
     "Binomial: total_count must be an integer of 0 or more, got 2.5"),
    (lambda: D.Binomial(3, 0.5).log_prob(4.0), ArgumentError,
     "Binomial.log_prob: the value must be an integer from 0 to 3, got 4.0"),
    (lambda: D.Geometric(0.0), ArgumentError,
     "Geometric: probs must be positive (above 0), got 0.0"),
    (lambda: D.Poisson(1.0).log_prob(t(1.0, 1.5)), ArgumentError,
     "Poisson.log_prob: the value must be an integer of 0 or more, got 1.5"),
    (lambda: D.Categorical(t(0.5, -0.5, 1.0)), ArgumentError,
     "Categorical: probs must be a simplex"),
    (lambda: D.Categorical(eg.tensor(0.5)), ShapeError,
     "Categorical: probs needs an axis of choices, got shape ()"),
    (lambda: D.Categorical(t(0.5, 0.5)).log_prob(eg.tensor(2)), ArgumentError,
     "Categorical.log_prob: the value must be an integer from 0 to 1, got 2"),
    (lambda: D.Multinomial(2.5, t(0.5, 0.5)), ArgumentError,
     "Multinomial: total_count must be an integer of 0 or more, got 2.5"),
    (lambda: D.Dirichlet(t(1.0, -2.0)), ArgumentError,
     "Dirichlet: concentration must be positive (above 0), got [1.0, -2.0]"),
    (lambda: D.Dirichlet(t(1.0, 2.0)).log_prob(t(0.5, 0.6)), ArgumentError,
     "Dirichlet.log_prob: the value must be a simplex"),
    (lambda: D.MultivariateNormal(eg.zeros((2,)), t([1.0, 2.0], [2.0, 1.0])), ArgumentError,
     "MultivariateNormal: covariance_matrix must be a symmetric positive-definite matrix, got "
     "[[1.0, 2.0], [2.0, 1.0]]"),
    (lambda: D.MultivariateNormal(eg.zeros((3,)), eg.eye(2)), ShapeError,
     "MultivariateNormal: loc has shape (3,), but covariance_matrix (2, 2) is for vectors of 2"),
    (lambda: D.MultivariateNormal(eg.zeros((2,))), ArgumentError,
     "MultivariateNormal: give exactly one of covariance_matrix, precision_matrix, scale_tril"),
    (lambda: D.MultivariateNormal(eg.zeros((2,)), eg.eye(2)).log_prob(eg.zeros((3,))), ShapeError,
     "MultivariateNormal.log_prob: events have shape (2,), got a value of shape (3,)"),
    (lambda: D.Wishart(0.5, eg.eye(2)), ArgumentError,
     "Wishart: df must be above 1, the size of the matrices less 1, got 0.5"),
    (lambda: D.LKJCholesky(1), ArgumentError,
     "LKJCholesky: dim must be an integer of 2 or more, got 1"),
    (lambda: D.RelaxedBernoulli(-0.5, 0.5), ArgumentError,
     "temperature must be positive (above 0), got -0.5"),
    (lambda: D.Independent(D.Normal(eg.zeros((2,)), 1.0), 2), ArgumentError,
     "Independent: reinterpreted_batch_ndims must be from 0 to 1"),
    (lambda: D.MixtureSameFamily(D.Categorical(eg.ones((3,))), D.Normal(eg.zeros((2,)), 1.0)),
     ShapeError, "MixtureSameFamily: 3 choices need components along the last batch axis"),
    (lambda: D.Normal(eg.zeros((2,)), 1.0).expand((3,)), ShapeError,
     "Normal.expand: batch shape (2,) does not broadcast to (3,)"),
    (lambda: D.Normal(0.0, 1.0).sample((-1,)), ArgumentError,
     "Normal.sample: sample_shape must not be negative, got (-1,)"),
    (lambda: D.Normal(0.0, 1.0).log_prob("x"), DtypeError,
     "Normal.log_prob: takes a tensor, got str 'x'"),
    (lambda: D.kl_divergence(D.VonMises(0.0, 1.0), D.Normal(0.0, 1.0)), NotImplementedError,
     "kl_divergence: no formula for VonMises and Normal; give one with register_kl"),
    (lambda: D.kl_divergence(1.0, D.Normal(0.0, 1.0)), DtypeError,
     "kl_divergence: p must be a Distribution, got float"),
    (lambda: D.Distribution.set_default_validate_args(3), ArgumentError,
     "set_default_validate_args: takes True or False, got 3"),
    (lambda: D.Poisson(1.0).rsample(), NotImplementedError, "Poisson.rsample: draws of Poisson"),
    (lambda: D.Norml, AttributeError,
     "everygrad.distributions has no 'Norml'; the nearest are 'Normal'"),
    (lambda: D.StudentT(1.0).cdf(0.0), NotImplementedError, "StudentT has no cdf"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSALS, ids=lambda r: re.sub(r"\W+", "-", r[2])[:60])
def test_refused_by_name(row: tuple[Any, type[Exception], str]) -> None:
    call, error, message = row
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_unchecked_where_not_asked_for() -> None:
    assert D.Normal(0.0, -1.0, validate_args=False).scale.item() == -1.0
    D.Distribution.set_default_validate_args(False)
    try:
        assert D.Normal(0.0, -1.0).scale.item() == -1.0
    finally:
        D.Distribution.set_default_validate_args(True)
    with pytest.raises(ArgumentError):
        D.Normal(0.0, -1.0)


def test_representations() -> None:
    assert repr(D.Normal(0.0, 1.5)) == "Normal(loc: 0.0, scale: 1.5)"
    assert repr(D.Gamma(eg.ones((2,)), 1.0)) == "Gamma(concentration: (2,), rate: (2,))"
    mixed = D.Independent(D.Normal(eg.zeros((2,)), 1.0), 1)
    assert repr(mixed) == "Independent(Normal(loc: (2,), scale: (2,)), 1)"


def test_names_of_pytorch() -> None:
    """All names but those listed with a reason, of which there may be one in ten."""
    names = set(torch.distributions.__all__)
    absent = {n for n in names if not hasattr(D, n)}
    assert absent == set(DISTRIBUTIONS_ABSENT)
    assert len(absent) <= 0.1 * len(names)
    assert names - absent <= set(D.__all__)


def test_loads_when_asked_for() -> None:
    assert eg.distributions is D
    assert "distributions" in eg.__all__


# --- jit, vmap, devices --------------------------------------------------------------------------


def tensors_of(case: Case, dtype: Any, device: str = "cpu") -> list[eg.Tensor]:
    arrays = [v for v in case.parameters.values() if isinstance(v, np.ndarray)]
    return [eg.tensor(v, dtype, device) for v in arrays]


def rebuilt(case: Case, tensors: Any) -> Any:
    """The distribution of a row, from tensors for its arrays."""
    given = iter(tensors)
    made = {k: next(given) if isinstance(v, np.ndarray) else v for k, v in case.parameters.items()}
    return case.make(D, **made)


@pytest.mark.parametrize("name", [c.name for c in CASES])
def test_inside_jit(name: str) -> None:
    """Construction with checks, log_prob, its gradients and draws are one compiled function."""
    case = BY_NAME[name]
    tensors = tensors_of(case, eg.float64)
    value = eg.tensor(np.ascontiguousarray(case.values), eg.float64)

    def density(value: eg.Tensor, *tensors: eg.Tensor) -> eg.Tensor:
        return rebuilt(case, tensors).log_prob(value).sum()

    def step(value: eg.Tensor, *tensors: eg.Tensor) -> Any:
        slopes = eg.grad(density, argnums=tuple(range(1, 1 + len(tensors))))(value, *tensors)
        return density(value, *tensors), slopes, rebuilt(case, tensors).sample((2,))

    eg.manual_seed(3)
    want = step(value, *tensors)
    compiled = eg.jit(step)
    eg.manual_seed(3)
    got = compiled(value, *tensors)
    np.testing.assert_allclose(got[0].numpy(), want[0].numpy(), rtol=1e-12)
    for a, b in zip(got[1], want[1], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got[2].numpy(), want[2].numpy(), rtol=1e-9, atol=1e-12)


def test_checks_inside_jit() -> None:
    density = eg.jit(lambda scale, x: D.Normal(0.0, scale).log_prob(x).sum())
    assert np.isfinite(density(t(1.0), t(0.5)).item())
    with pytest.raises(ArgumentError, match=r"Normal: scale must be positive \(above 0\)"):
        density(t(-1.0), t(0.5)).item()
    counted = eg.jit(lambda p, x: D.Categorical(p).log_prob(x).sum())
    assert np.isfinite(counted(t(0.5, 0.5), eg.tensor([1, 0])).item())
    with pytest.raises(ArgumentError, match=r"Categorical\.log_prob: the value must be an integer"):
        counted(t(0.5, 0.5), eg.tensor([1, 2])).item()


VMAPPED = [
    *("Normal", "Gamma", "Beta", "Weibull", "Gumbel", "Pareto", "StudentT", "Bernoulli", "Poisson"),
    *("Kumaraswamy", "VonMises", "Laplace", "MultivariateNormal scale_tril", "Wishart scale_tril"),
    *("Dirichlet", "Categorical", "OneHotCategorical", "LKJCholesky"),
]


@pytest.mark.parametrize("name", VMAPPED)
def test_inside_vmap(name: str) -> None:
    """A distribution for each example is the batch of distributions."""
    case = BY_NAME[name]
    tensors = tensors_of(case, eg.float64)
    value = np.ascontiguousarray(case.values)
    if "scale_tril" in name:  # the rows of these have one value for the whole batch
        value = np.stack([value, value])
    values = eg.tensor(value, eg.float64)
    batched = eg.vmap(lambda x, *p: rebuilt(case, p).log_prob(x))(values, *tensors)
    want = rebuilt(case, tensors).log_prob(values)
    np.testing.assert_allclose(batched.numpy(), want.numpy(), rtol=1e-10)
    drawn = eg.vmap(lambda *p: rebuilt(case, p).sample((4,)), randomness="different")(*tensors)
    support = rebuilt(case, tensors).support
    assert drawn.shape[:2] == (tensors[0].shape[0], 4)
    assert bool(support.check(drawn.swapaxes(0, 1)).all())


@pytest.mark.parametrize("name", [c.name for c in CASES])
def test_on_devices_in_float32(name: str, device: str) -> None:
    case = BY_NAME[name]
    tensors = tensors_of(case, eg.float32, device)
    mine = rebuilt(case, tensors)
    value = eg.tensor(np.ascontiguousarray(case.values), eg.float32, device)
    got = mine.log_prob(value)
    assert got.device == value.device
    assert got.dtype is eg.float32
    exact, _ = ours(case)
    want = exact.log_prob(eg.tensor(np.ascontiguousarray(case.values)))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=2e-4)
    drawn = mine.sample((500,))
    assert drawn.device == value.device
    assert np.isfinite(drawn.numpy()).all()
    assert bool(mine.support.check(drawn).all())


def test_devices_do_not_mix(device: str) -> None:
    if eg.zeros((1,), device=device).device == "cpu":
        assert D.Normal(eg.zeros((1,)), 1.0).loc.device == "cpu"
        return
    with pytest.raises(DeviceError, match="Normal: parameters lie on different devices"):
        D.Normal(eg.zeros((1,), device=device), eg.ones((1,)))


def test_a_variational_step_compiles_and_learns() -> None:
    """Draws, densities and divergences of distributions inside one compiled training step."""
    eg.manual_seed(0)
    data = eg.tensor(np.random.default_rng(0).normal(2.0, 0.5, (256, 1)), eg.float32)
    loc = eg.tensor([0.0], requires_grad=True)
    log_scale = eg.tensor([0.0], requires_grad=True)
    optimiser = eg.optim.AdamW([loc, log_scale], lr=0.05, weight_decay=0.0)

    @eg.jit
    def step(x: eg.Tensor) -> eg.Tensor:
        optimiser.zero_grad()
        q = D.Normal(loc, log_scale.exp())
        z = q.rsample()
        loss = D.kl_divergence(q, D.Normal(0.0, 10.0)).sum()
        loss = loss - D.Normal(z, 0.5).log_prob(x).sum()
        loss.backward()
        optimiser.step()
        return loss

    losses = [step(data).item() for _ in range(300)]
    assert losses[-1] < losses[0]
    assert abs(loc.item() - 2.0) < 0.15

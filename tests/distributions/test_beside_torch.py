"""Every distribution against PyTorch's, in float64: answers, functions, gradients, KL divergences.

What PyTorch's class does not have, ours must not have either, except where SciPy is the referee.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import everygrad as eg
from everygrad.errors import ArgumentError
from tests.distributions.cases import ANSWERS, BY_NAME, CASES, FUNCTIONS, Case, ours, theirs

# where PyTorch's answer is wrong: the mode is NaN throughout, and an entropy has seven digits
WRONG_IN_TORCH = {
    ("Kumaraswamy", "mode"),
    ("Multinomial", "entropy"),
    ("Multinomial", "perplexity"),
}
NAMES = [c.name for c in CASES if c.referee]
SHARES = np.array([0.1, 0.5, 0.85])
# PyTorch has no derivative of the incomplete gamma function in its first argument
NO_TORCH_GRADIENT = {("Gamma", "cdf"), ("Chi2", "cdf"), ("InverseGamma", "cdf")}


class ExactDigamma(torch.autograd.Function):
    """digamma whose derivative has all its digits: PyTorch's trigamma has nine."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.special.digamma(x.detach())

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.tensor(scipy.special.polygamma(1, x.detach().numpy()))


@pytest.fixture(autouse=True)
def exact_digamma(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (torch, torch.Tensor):
        monkeypatch.setattr(owner, "digamma", lambda x: ExactDigamma.apply(x))


def answer(make: Any) -> Any:
    """What a distribution answers, or None where its class has no answer."""
    try:
        return make()
    except NotImplementedError:
        return None


def asked(distribution: Any, what: str) -> Any:
    """The answer to a property or to a function without arguments."""
    if what in ANSWERS:
        return answer(lambda: getattr(distribution, what))
    return answer(lambda: getattr(distribution, what)())


def gradients(value: Any, inputs: dict[str, Any], of: Any) -> dict[str, Any]:
    """Of a sum with uneven weights, so that no two elements count alike."""
    flat = value.reshape(-1)
    weights = np.linspace(0.5, 1.5, flat.shape[0])
    if isinstance(value, torch.Tensor):
        total = (flat * torch.tensor(weights)).sum()
    else:
        total = (flat * eg.tensor(weights)).sum()
    total.backward()
    found = {}
    for name, tensor in inputs.items():
        if isinstance(tensor, of) and tensor.requires_grad:
            shape = tuple(tensor.shape)
            slope = np.zeros(shape) if tensor.grad is None else np.asarray(tensor.grad)
            # what stands above the diagonal is no parameter
            found[name] = np.tril(slope) if name == "scale_tril" else slope
    return found


def agree(got: Any, want: Any, what: str) -> None:
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: {got.shape} and {want.shape}"
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10, err_msg=what)


@pytest.mark.parametrize("name", NAMES)
def test_shapes_and_answers(name: str) -> None:
    case = BY_NAME[name]
    (mine, _), (other, _) = ours(case), theirs(case)
    assert mine.batch_shape == tuple(other.batch_shape)
    assert mine.event_shape == tuple(other.event_shape)
    assert mine.has_rsample == other.has_rsample
    assert mine.has_enumerate_support == other.has_enumerate_support
    for what in (*ANSWERS, "entropy", "perplexity"):
        got, want = asked(mine, what), asked(other, what)
        assert (got is None) == (want is None), f"{name}.{what}"
        if want is not None and (name.split()[0], what) not in WRONG_IN_TORCH:
            agree(got.detach(), want.detach(), f"{name}.{what}")


def of_function(case: Case, function: str, grad: bool) -> tuple[Any, Any, Any, Any] | None:
    """A function of both distributions and what it was computed from; None where neither has it."""
    (mine, mine_in), (other, other_in) = ours(case, grad), theirs(case, grad)
    values = SHARES if function == "icdf" else np.ascontiguousarray(case.values)
    x = eg.tensor(values, requires_grad=grad)
    y = torch.tensor(values, requires_grad=grad)
    got = answer(lambda: getattr(mine, function)(x))
    want = answer(lambda: getattr(other, function)(y))
    assert (got is None) == (want is None), f"{case.name}.{function}"
    if want is None:
        return None
    return got, want, {**mine_in, "value": x}, {**other_in, "value": y}


@pytest.mark.parametrize("name", NAMES)
def test_what_pytorchs_have_is_listed(name: str) -> None:
    (mine, _), (other, _) = ours(BY_NAME[name]), theirs(BY_NAME[name])
    public = {n for n in dir(other) if not n.startswith("_")}
    assert public - {*dir(mine)} <= {"sample_n"}  # which PyTorch itself replaces by sample((n,))
    for parameter in {*type(mine).arg_constraints} & public:
        getattr(mine, parameter)


@pytest.mark.parametrize("name", NAMES)
def test_infinite_counts_are_refused(name: str) -> None:
    mine, _ = ours(BY_NAME[name])
    if not mine.support.is_discrete:
        return
    endless = eg.full((*mine.batch_shape, *mine.event_shape), float("inf"), dtype="float64")
    with pytest.raises(ArgumentError, match="the value must be"):
        mine.log_prob(endless)


@pytest.mark.parametrize("name", ["LogNormal", "InverseGamma", "Weibull", "HalfNormal"])
def test_the_cdf_is_0_where_the_support_begins(name: str) -> None:
    mine, _ = ours(BY_NAME[name])
    found = mine.cdf(eg.zeros(mine.batch_shape, "float64"))
    assert not found.any()


@pytest.mark.parametrize("name", NAMES)
def test_functions(name: str) -> None:
    case = BY_NAME[name]
    compared = []
    for function in FUNCTIONS:
        pair = of_function(case, function, grad=False)
        if pair is not None:
            agree(pair[0], pair[1], f"{name}.{function}")
            compared.append(function)
    assert "log_prob" in compared


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_functions(name: str) -> None:
    case = BY_NAME[name]
    compared = []
    for function in FUNCTIONS:
        if (name, function) in NO_TORCH_GRADIENT:
            continue
        pair = of_function(case, function, grad=True)
        if pair is None:
            continue
        got = gradients(pair[0], pair[2], eg.Tensor)
        want = gradients(pair[1], pair[3], torch.Tensor)
        assert got
        assert got.keys() == want.keys()
        for key, value in want.items():
            agree(got[key], value, f"{name}.{function}, gradient in {key}")
        compared.append(function)
    assert "log_prob" in compared


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_answers(name: str) -> None:
    case = BY_NAME[name]
    compared = 0
    for what in ("mean", "variance", "entropy"):
        (mine, mine_in), (other, other_in) = ours(case, True), theirs(case, True)
        got, want = asked(mine, what), asked(other, what)
        compared += 1
        if want is None or not want.requires_grad or not bool(torch.isfinite(want).all()):
            continue
        found = gradients(got, mine_in, eg.Tensor)
        for key, value in gradients(want, other_in, torch.Tensor).items():
            agree(found[key], value, f"{name}.{what}, gradient in {key}")
    assert compared == 3


@pytest.mark.parametrize("name", NAMES)
def test_expand_and_enumerate(name: str) -> None:
    case = BY_NAME[name]
    (mine, _), (other, _) = ours(case), theirs(case)
    sizes = (2, *mine.batch_shape)
    mine, other = mine.expand(sizes), other.expand(sizes)
    assert mine.batch_shape == tuple(other.batch_shape) == sizes
    values = np.ascontiguousarray(case.values)
    agree(mine.log_prob(eg.tensor(values)), other.log_prob(torch.tensor(values)), f"{name}.expand")
    if mine.has_enumerate_support:
        for expand in (True, False):
            got, want = mine.enumerate_support(expand), other.enumerate_support(expand)
            agree(got, want, f"{name}.enumerate_support")
    assert mine.sample((3,)).shape == (3, *sizes, *mine.event_shape)


# --- where SciPy is the referee ------------------------------------------------------------------


def test_von_mises_against_scipy() -> None:
    mine, _ = ours(BY_NAME["VonMises"])
    loc, kappa = (np.asarray(v) for v in (mine.loc, mine.concentration))
    x = BY_NAME["VonMises"].values
    want = scipy.stats.vonmises.logpdf(x, kappa, loc)
    np.testing.assert_allclose(np.asarray(mine.log_prob(eg.tensor(x))), want, rtol=1e-12)
    spread = 1 - scipy.special.i1e(kappa) / scipy.special.i0e(kappa)
    np.testing.assert_allclose(np.asarray(mine.variance), spread, rtol=1e-12)


def test_generalized_pareto_against_scipy() -> None:
    case = BY_NAME["GeneralizedPareto"]
    mine, _ = ours(case)
    loc, scale, c = case.parameters.values()
    other = scipy.stats.genpareto(c, loc, scale)
    x = case.values
    for got, want in (
        (mine.log_prob(eg.tensor(x)), other.logpdf(x)),
        (mine.cdf(eg.tensor(x)), other.cdf(x)),
        (mine.log_cdf(eg.tensor(x)), other.logcdf(x)),
        (mine.log_survival_function(eg.tensor(x)), other.logsf(x)),
        (mine.icdf(eg.tensor(SHARES)), other.ppf(SHARES)),
        (mine.mean, other.mean()),
        (mine.variance, other.var()),
        (mine.entropy(), other.entropy()),
    ):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-10)
    inputs = [eg.tensor(v, requires_grad=True) for v in (loc, scale, np.array([-0.3, 0.2, 0.4]), x)]
    make = eg.distributions.GeneralizedPareto
    assert eg.gradcheck(lambda a, b, c, x: make(a, b, c).log_prob(x), tuple(inputs))


def test_the_mode_of_kumaraswamy_is_a_maximum() -> None:
    mine, _ = ours(BY_NAME["Kumaraswamy"])
    at = mine.log_prob(mine.mode)
    for step in (-1e-3, 1e-3):
        assert bool((mine.log_prob(mine.mode + step) < at).all())


def test_the_entropy_of_multinomial_by_counting() -> None:
    mine, _ = ours(BY_NAME["Multinomial"])
    n = mine.total_count
    counts = [(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)]
    logs = np.asarray(mine.log_prob(eg.tensor(np.array(counts, np.float64)[:, None, :])))
    np.testing.assert_allclose(np.exp(logs).sum(0), 1.0, rtol=1e-12)
    want = -(np.exp(logs) * logs).sum(0)
    np.testing.assert_allclose(np.asarray(mine.entropy()), want, rtol=1e-10)


def test_gamma_cdf_has_both_gradients() -> None:
    x = eg.tensor([0.3, 1.1, 2.7], eg.float64, requires_grad=True)
    a = eg.tensor([0.6, 1.7, 4.2], eg.float64, requires_grad=True)
    assert eg.gradcheck(lambda a, x: eg.distributions.Gamma(a, 2.0).cdf(x), (a, x))


# --- KL divergences ------------------------------------------------------------------------------

FAMILIES = sorted(
    {c.name: c for c in CASES if c.referee and " " not in c.name}.items(), key=lambda kv: kv[0]
)
TORCH_PAIRS = sorted(
    (a.__name__, b.__name__) for a, b in torch.distributions.kl._KL_REGISTRY
)  # every pair that PyTorch has a formula for


def shifted(case: Case) -> Case:
    """Another member of the same family: other parameters, still valid."""
    made = {}
    for key, value in case.parameters.items():
        if not isinstance(value, np.ndarray):
            made[key] = value
        elif key in ("probs",) and value.ndim > 1:
            made[key] = value[::-1].copy()
        elif key in ("probs",):
            made[key] = value * 0.7 + 0.1
        elif key in ("covariance_matrix", "precision_matrix", "scale_tril"):
            made[key] = value * 1.3
        else:
            made[key] = value * 1.25
    return case._replace(parameters=made)


@pytest.mark.parametrize("pair", TORCH_PAIRS, ids="-".join)
def test_kl_divergence(pair: tuple[str, str]) -> None:
    if "ExponentialFamily" in pair:
        assert (eg.distributions.ExponentialFamily,) * 2 in eg.distributions.kl.TABLE
        return
    p, q = BY_NAME[pair[0]], shifted(BY_NAME[pair[1]])
    if pair == ("TransformedDistribution", "TransformedDistribution"):
        q = p._replace(parameters={k: v * 1.5 for k, v in p.parameters.items()})
    compare_kl(p, q, "-".join(pair))


# families whose supports contain one another only for some parameters
CONTAINED = [
    ("Uniform", {"low": [0.1, 0.2], "high": [0.6, 0.9]}, "Beta"),
    ("Uniform", {"low": [0.1, 0.2], "high": [0.6, 0.9]}, "Gamma"),
    ("Uniform", {"low": [0.1, 0.2], "high": [0.6, 0.9]}, "Exponential"),
    ("Uniform", {"low": [0.1, 0.2], "high": [0.6, 0.9]}, "ContinuousBernoulli"),
    ("Uniform", {"low": [3.5, 4.0], "high": [5.0, 9.0]}, "Pareto"),
    ("Uniform", {"low": [-5.0, -6.0], "high": [5.0, 9.0]}, "Uniform"),
    ("Beta", {"concentration1": [0.5, 2.0], "concentration0": [1.5, 3.0]}, "Uniform"),
    ("ContinuousBernoulli", {"probs": [0.3, 0.8]}, "Uniform"),
    ("Pareto", {"scale": [0.5, 1.0], "alpha": [2.5, 4.0]}, "Exponential"),
    ("Pareto", {"scale": [0.5, 1.0], "alpha": [2.5, 4.0]}, "Gamma"),
    ("Pareto", {"scale": [0.5, 1.0], "alpha": [2.5, 4.0]}, "Normal"),
    ("Pareto", {"scale": [8.0, 9.0], "alpha": [2.5, 4.0]}, "Pareto"),
]


@pytest.mark.parametrize("row", CONTAINED, ids=lambda r: f"{r[0]}-{r[2]}")
def test_kl_divergence_inside_the_support(row: tuple[str, dict[str, Any], str]) -> None:
    family, parameters, other = row
    given = {k: np.array(v) for k, v in parameters.items()}
    p = BY_NAME[family]._replace(parameters=given)
    q = BY_NAME[other]
    cut = {k: v[:2] if isinstance(v, np.ndarray) else v for k, v in q.parameters.items()}
    if (family, other) in {("Beta", "Uniform"), ("ContinuousBernoulli", "Uniform")}:
        cut = {"low": np.array([-0.5, -0.1]), "high": np.array([1.1, 2.0])}
    if (family, other) == ("Uniform", "Uniform"):
        cut = {"low": np.array([-7.0, -6.0]), "high": np.array([6.0, 9.5])}
    value = compare_kl(p, q._replace(parameters=cut), f"{family}-{other}")
    assert np.isfinite(value).all()


def compare_kl(p: Case, q: Case, what: str) -> Any:
    (a, a_in), (b, b_in) = ours(p, True), ours(q, True)
    (c, c_in), (d, d_in) = theirs(p, True), theirs(q, True)
    got = eg.distributions.kl_divergence(a, b)
    want = torch.distributions.kl_divergence(c, d)
    agree(got.detach(), want.detach().broadcast_to(got.shape), what)
    if want.requires_grad and bool(torch.isfinite(want).all()):
        mine = {**{f"p.{k}": v for k, v in a_in.items()}, **{f"q.{k}": v for k, v in b_in.items()}}
        other = {**{f"p.{k}": v for k, v in c_in.items()}, **{f"q.{k}": v for k, v in d_in.items()}}
        found = gradients(got, mine, eg.Tensor)
        for key, value in gradients(want, other, torch.Tensor).items():
            agree(found[key], value, f"{what}, gradient in {key}")
    return np.asarray(got.detach())


@pytest.mark.parametrize("name", ["Normal", "Gamma", "Beta", "Dirichlet", "Exponential",
                                  "Bernoulli", "Wishart"])  # fmt: skip
def test_the_log_normaliser_gives_entropy_and_kl(name: str) -> None:
    """Bregman's divergence, for families without formulas of their own, agrees with formulas."""
    family = eg.distributions.ExponentialFamily
    case = BY_NAME[name]
    (p, _), (q, _) = ours(case), ours(shifted(case))
    agree(family.entropy(p), p.entropy(), f"{name}.entropy")
    bregman = eg.distributions.kl.TABLE[family, family]
    direct = eg.distributions.kl_divergence(p, q)
    agree(bregman(p, q), direct, f"{name} by Bregman")

"""One row for each distribution: parameters, and values to judge. The other tests read this table.

Parameters are NumPy arrays, which become tensors of float64; everything else is passed as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import everygrad as eg

ANSWERS = ("mean", "variance", "stddev", "mode")
FUNCTIONS = ("log_prob", "cdf", "icdf")


class Case(NamedTuple):
    """`make(module, **parameters)` gives the distribution of everygrad's or of PyTorch's module."""

    name: str
    parameters: dict[str, Any]
    values: Any  # of the support, of a shape that broadcasts with the batch
    make: Callable[..., Any]
    referee: bool = True  # False: PyTorch's own approximates or fails in float64; SciPy is asked


def array(*values: Any) -> Any:
    return np.array(values, dtype=np.float64)


def plain(name: str, values: Any, **parameters: Any) -> Case:
    return Case(name, parameters, np.asarray(values, np.float64), by_name(name))


def by_name(name: str) -> Callable[..., Any]:
    return lambda module, **parameters: getattr(module, name)(**parameters)


LOC, SCALE = array(-0.5, 0.7, 1.2), array(0.4, 1.3, 2.5)
A, B = array(0.6, 1.7, 4.2), array(2.3, 0.9, 1.4)
REAL, POSITIVE, UNIT = array(-1.3, 0.4, 2.1), array(0.3, 1.1, 2.7), array(0.15, 0.5, 0.83)
PROBS, LOGITS = array(0.2, 0.55, 0.9), array(-1.2, 0.3, 2.0)
ROWS = array([0.2, 0.5, 0.3], [0.6, 0.1, 0.3])
LOGIT_ROWS = array([0.1, -1.0, 2.0], [1.0, 0.5, -0.3])
SIMPLEX = array([0.3, 0.2, 0.5], [0.1, 0.75, 0.15])
ONE_HOT = array([0.0, 1.0, 0.0], [1.0, 0.0, 0.0])
COUNTS = array([2.0, 1.0, 3.0], [0.0, 6.0, 0.0])
MATRIX = array(
    [[1.5, 0.3, 0.1], [0.3, 1.1, -0.2], [0.1, -0.2, 0.8]],
    [[0.9, 0.0, 0.2], [0.0, 2.0, 0.5], [0.2, 0.5, 1.3]],
)
LOWER = np.linalg.cholesky(MATRIX)
VECTORS = array([0.3, -0.4, 1.0], [-1.5, 0.2, 0.7])
TALL = array([0.5, 0.1], [-0.3, 0.9], [0.2, -0.6])
CORRELATION = np.linalg.cholesky(
    array([[1.0, 0.3, -0.2], [0.3, 1.0, 0.4], [-0.2, 0.4, 1.0]],
          [[1.0, -0.5, 0.1], [-0.5, 1.0, 0.0], [0.1, 0.0, 1.0]])
)  # fmt: skip


def _transformed(module: Any, loc: Any, scale: Any) -> Any:
    chain = [module.AffineTransform(0.3, 2.0), module.SigmoidTransform(),
             module.AffineTransform(-1.0, 4.0)]  # fmt: skip
    return module.TransformedDistribution(module.Normal(loc, scale), chain)


def _mixture(module: Any, probs: Any, loc: Any, scale: Any) -> Any:
    return module.MixtureSameFamily(module.Categorical(probs), module.Normal(loc, scale))


def _vector_mixture(module: Any, logits: Any, loc: Any, scale_tril: Any) -> Any:
    parts = module.MultivariateNormal(loc, scale_tril=scale_tril)
    return module.MixtureSameFamily(module.Categorical(logits=logits), parts)


def _independent(module: Any, loc: Any, scale: Any) -> Any:
    return module.Independent(module.Laplace(loc, scale), 1)


CASES = [
    plain("Normal", REAL, loc=LOC, scale=SCALE),
    plain("Uniform", array(-0.5, 0.9, 1.9), low=LOC - 0.5, high=LOC + SCALE),
    plain("Laplace", REAL, loc=LOC, scale=SCALE),
    plain("Cauchy", REAL, loc=LOC, scale=SCALE),
    plain("Gumbel", REAL, loc=LOC, scale=SCALE),
    plain("StudentT", REAL, df=array(0.8, 1.5, 5.0), loc=LOC, scale=SCALE),
    Case("VonMises", {"loc": LOC, "concentration": A}, REAL, by_name("VonMises"), referee=False),
    plain("Gamma", POSITIVE, concentration=A, rate=B),
    plain("Chi2", POSITIVE, df=A),
    plain("Exponential", POSITIVE, rate=B),
    plain("InverseGamma", POSITIVE, concentration=A, rate=B),
    plain("FisherSnedecor", POSITIVE, df1=array(1.5, 3.0, 7.0), df2=array(1.0, 3.5, 6.0)),
    plain("LogNormal", POSITIVE, loc=LOC, scale=SCALE),
    plain("HalfNormal", POSITIVE, scale=SCALE),
    plain("HalfCauchy", POSITIVE, scale=SCALE),
    plain("Weibull", POSITIVE, scale=SCALE, concentration=array(1.6, 1.2, 3.0)),
    plain("Pareto", array(3.1, 2.7, 4.0), scale=SCALE, alpha=array(0.9, 1.7, 4.2)),
    Case("GeneralizedPareto",
         {"loc": array(-0.5, 0.7, 1.2), "scale": SCALE, "concentration": array(-0.3, 0.0, 0.4)},
         array(0.3, 1.1, 1.9), by_name("GeneralizedPareto"), referee=False),
    plain("Beta", UNIT, concentration1=A, concentration0=B),
    plain("Kumaraswamy", UNIT, concentration1=array(1.6, 1.2, 3.0),
          concentration0=array(2.3, 1.9, 1.4)),
    plain("ContinuousBernoulli", UNIT, probs=array(0.2, 0.4995, 0.9)),
    Case("ContinuousBernoulli logits", {"logits": LOGITS}, UNIT, by_name("ContinuousBernoulli")),
    plain("Dirichlet", SIMPLEX, concentration=array([1.5, 2.0, 0.7], [3.0, 1.1, 2.2])),
    plain("LogisticNormal", SIMPLEX, loc=VECTORS[:, :2], scale=array(0.5, 1.5)),
    plain("Bernoulli", array(1.0, 0.0, 1.0), probs=PROBS),
    Case("Bernoulli logits", {"logits": LOGITS}, array(1.0, 0.0, 1.0), by_name("Bernoulli")),
    plain("Binomial", array(2.0, 0.0, 5.0), total_count=5, probs=PROBS),
    Case("Binomial logits", {"total_count": array(5.0, 5.0, 5.0), "logits": LOGITS},
         array(2.0, 0.0, 5.0), by_name("Binomial")),
    plain("NegativeBinomial", array(2.0, 0.0, 5.0), total_count=array(1.5, 3.0, 4.0), probs=PROBS),
    plain("Geometric", array(2.0, 0.0, 5.0), probs=PROBS),
    Case("Geometric logits", {"logits": LOGITS}, array(2.0, 0.0, 5.0), by_name("Geometric")),
    plain("Poisson", array(2.0, 0.0, 5.0), rate=A),
    plain("Categorical", array(1.0, 2.0), probs=ROWS),
    Case("Categorical logits", {"logits": LOGIT_ROWS}, array(1.0, 2.0), by_name("Categorical")),
    plain("OneHotCategorical", ONE_HOT, probs=ROWS),
    plain("OneHotCategoricalStraightThrough", ONE_HOT, logits=LOGIT_ROWS),
    plain("Multinomial", COUNTS, total_count=6, probs=ROWS),
    Case("Multinomial logits", {"total_count": 6, "logits": LOGIT_ROWS}, COUNTS,
         by_name("Multinomial")),
    plain("RelaxedBernoulli", UNIT, temperature=array(0.4, 0.7, 1.5), probs=PROBS),
    plain("RelaxedOneHotCategorical", SIMPLEX, temperature=np.array(0.7), logits=LOGIT_ROWS),
    plain("MultivariateNormal", VECTORS, loc=VECTORS[0], covariance_matrix=MATRIX),
    Case("MultivariateNormal scale_tril", {"loc": VECTORS, "scale_tril": LOWER}, VECTORS[0],
         by_name("MultivariateNormal")),
    Case("MultivariateNormal precision", {"loc": VECTORS, "precision_matrix": MATRIX}, VECTORS[0],
         by_name("MultivariateNormal")),
    plain("LowRankMultivariateNormal", VECTORS, loc=VECTORS[0], cov_factor=TALL,
          cov_diag=array(0.4, 0.9, 1.3)),
    plain("Wishart", MATRIX[::-1], df=array(3.5, 6.0), covariance_matrix=MATRIX),
    Case("Wishart scale_tril", {"df": array(3.5, 6.0), "scale_tril": LOWER}, MATRIX[0],
         by_name("Wishart")),
    plain("LKJCholesky", CORRELATION, dim=3, concentration=array(0.7, 2.0)),
    Case("TransformedDistribution", {"loc": LOC, "scale": SCALE}, array(-0.5, 0.9, 2.2),
         _transformed),
    Case("Independent", {"loc": VECTORS, "scale": SCALE}, VECTORS[0], _independent),
    Case("MixtureSameFamily", {"probs": ROWS, "loc": VECTORS, "scale": SCALE}, array(0.2, -0.7),
         _mixture),
    Case("MixtureSameFamily vectors",
         {"logits": LOGIT_ROWS[0, :2], "loc": VECTORS, "scale_tril": LOWER}, VECTORS[1],
         _vector_mixture),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)


def ours(case: Case, grad: bool = False, dtype: Any = None, device: str = "cpu") -> Any:
    """everygrad's distribution, and its parameters."""
    made = {
        k: eg.tensor(v, dtype or eg.float64, device, requires_grad=grad)
        if isinstance(v, np.ndarray)
        else v
        for k, v in case.parameters.items()
    }
    return case.make(eg.distributions, **made), made


def theirs(case: Case, grad: bool = False) -> Any:
    """PyTorch's distribution, and its parameters."""
    made = {
        k: torch.tensor(v.copy(), dtype=torch.float64, requires_grad=grad)
        if isinstance(v, np.ndarray)
        else v
        for k, v in case.parameters.items()
    }
    return case.make(torch.distributions, **made), made

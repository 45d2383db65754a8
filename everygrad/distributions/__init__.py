"""Probability distributions, in PyTorch's names: sampling, densities, entropies, KL divergences."""

from typing import Any as _Any

from everygrad.core.nearest import no_attribute as _no_attribute
from everygrad.distributions import (
    categorical as categorical,
    constraints as constraints,
    kl_pairs as _kl_pairs,  # noqa: F401  # fills the table
    normal as normal,
)
from everygrad.distributions.choices import (
    Categorical as Categorical,
    Multinomial as Multinomial,
    OneHotCategorical as OneHotCategorical,
    OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
)
from everygrad.distributions.compound import (
    Independent as Independent,
    MixtureSameFamily as MixtureSameFamily,
    TransformedDistribution as TransformedDistribution,
)
from everygrad.distributions.constraint_registry import (
    biject_to as biject_to,
    transform_to as transform_to,
)
from everygrad.distributions.discrete import (
    Bernoulli as Bernoulli,
    Binomial as Binomial,
    Geometric as Geometric,
    NegativeBinomial as NegativeBinomial,
    Poisson as Poisson,
)
from everygrad.distributions.distribution import (
    Distribution as Distribution,
    ExponentialFamily as ExponentialFamily,
)
from everygrad.distributions.kl import kl_divergence as kl_divergence, register_kl as register_kl
from everygrad.distributions.multivariate import (
    LKJCholesky as LKJCholesky,
    LowRankMultivariateNormal as LowRankMultivariateNormal,
    MultivariateNormal as MultivariateNormal,
    Wishart as Wishart,
)
from everygrad.distributions.positive import (
    Chi2 as Chi2,
    Exponential as Exponential,
    FisherSnedecor as FisherSnedecor,
    Gamma as Gamma,
    GeneralizedPareto as GeneralizedPareto,
    HalfCauchy as HalfCauchy,
    HalfNormal as HalfNormal,
    InverseGamma as InverseGamma,
    LogNormal as LogNormal,
    Pareto as Pareto,
    Weibull as Weibull,
)
from everygrad.distributions.real_line import (
    Cauchy as Cauchy,
    Gumbel as Gumbel,
    Laplace as Laplace,
    Normal as Normal,
    StudentT as StudentT,
    Uniform as Uniform,
    VonMises as VonMises,
)
from everygrad.distributions.transforms import (
    AbsTransform as AbsTransform,
    AffineTransform as AffineTransform,
    ComposeTransform as ComposeTransform,
    CumulativeDistributionTransform as CumulativeDistributionTransform,
    ExpTransform as ExpTransform,
    IndependentTransform as IndependentTransform,
    PowerTransform as PowerTransform,
    SigmoidTransform as SigmoidTransform,
    SoftplusTransform as SoftplusTransform,
    TanhTransform as TanhTransform,
    Transform as Transform,
    identity_transform as identity_transform,
)
from everygrad.distributions.unit_interval import (
    Beta as Beta,
    ContinuousBernoulli as ContinuousBernoulli,
    Dirichlet as Dirichlet,
    Kumaraswamy as Kumaraswamy,
    LogisticNormal as LogisticNormal,
    RelaxedBernoulli as RelaxedBernoulli,
    RelaxedOneHotCategorical as RelaxedOneHotCategorical,
)
from everygrad.distributions.vector_transforms import (
    CatTransform as CatTransform,
    CorrCholeskyTransform as CorrCholeskyTransform,
    LowerCholeskyTransform as LowerCholeskyTransform,
    PositiveDefiniteTransform as PositiveDefiniteTransform,
    ReshapeTransform as ReshapeTransform,
    SoftmaxTransform as SoftmaxTransform,
    StackTransform as StackTransform,
    StickBreakingTransform as StickBreakingTransform,
)

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "CatTransform",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "ContinuousBernoulli",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "ExponentialFamily",
    "FisherSnedecor",
    "Gamma",
    "GeneralizedPareto",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "Wishart",
    "biject_to",
    "constraints",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transform_to",
]


def __getattr__(name: str) -> _Any:
    raise _no_attribute("everygrad.distributions", name, __all__)

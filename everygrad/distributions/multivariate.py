"""Distributions of vectors and matrices: multivariate normal, low-rank, Wishart, LKJ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from everygrad.autograd.modes import no_grad
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.distributions import constraints
from everygrad.distributions.constraints import Constraint
from everygrad.distributions.distribution import (
    Distribution,
    ExponentialFamily,
    as_tensors,
    ensure_in,
    one_of,
)
from everygrad.distributions.positive import tiny_of
from everygrad.distributions.real_line import HALF_LOG_TAU, noise
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.linalg.checks import diagonal_matrix, diagonal_of, identity
from everygrad.ops.linalg.cholesky_qr import cholesky
from everygrad.ops.linalg.matrix_functions import slogdet
from everygrad.ops.linalg.solve import cholesky_solve, solve_triangular
from everygrad.ops.python.creation import arange
from everygrad.ops.random.continuous import beta, gamma
from everygrad.ops.random.generators import randn
from everygrad.ops.shape.joining import tril
from everygrad.ops.special.gamma import digamma, lgamma

_MATRICES = ("covariance_matrix", "precision_matrix", "scale_tril")


def multivariate_lgamma(a: Tensor, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    steps = 0.5 * arange(p, dtype=a.dtype, device=a.device)
    constant = 0.25 * p * (p - 1) * math.log(math.pi)
    return lgamma(a.expand_dims(-1) - steps).sum(axis=-1) + constant


def _multivariate_digamma(a: Tensor, p: int) -> Tensor:
    steps = 0.5 * arange(p, dtype=a.dtype, device=a.device)
    return digamma(a.expand_dims(-1) - steps).sum(axis=-1)


def precision_to_scale_tril(precision: Tensor) -> Tensor:
    """The Cholesky factor of the inverse of a matrix, without the inverse."""
    # of the matrix read backwards the factor is upper triangular, and so is its inverse's
    upper = cholesky(precision.flip((-2, -1))).flip((-2, -1)).mT
    return solve_triangular(upper, identity(precision.shape[-1], precision), upper=False)


def mahalanobis(scale_tril: Tensor, x: Tensor) -> Tensor:
    """The squared length of x in units of a covariance with that Cholesky factor."""
    return solve_triangular(scale_tril, x.expand_dims(-1), upper=False).square().sum(axis=(-2, -1))


def log_diagonal(matrix: Tensor) -> Tensor:
    """The sum of the logarithms of a diagonal."""
    return diagonal_of(matrix).log().sum(axis=-1)


class _Covariance(Distribution):
    """What has a covariance, given as such, as its inverse or as its Cholesky factor."""

    covariance_matrix: Tensor
    precision_matrix: Tensor
    scale_tril: Tensor

    def _set_matrix(self, name: str, matrix: Tensor) -> None:
        """Keeps what was given, by its name, and the Cholesky factor that follows."""
        setattr(self, name, matrix)
        if name == "covariance_matrix":
            self._tril = cholesky(matrix)
        elif name == "precision_matrix":
            self._tril = precision_to_scale_tril(matrix)

    def __getattr__(self, name: str) -> Tensor:
        own = vars(self)
        lower = own.get("_tril", own.get("scale_tril"))
        if name not in _MATRICES or lower is None:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        if name == "scale_tril":
            return lower
        if name == "covariance_matrix":
            made: Tensor = lower @ lower.mT
            return made
        return cholesky_solve(identity(lower.shape[-1], lower), lower)


def _square(owner: str, name: str, matrix: Tensor) -> int:
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ShapeError(f"{owner}: {name} must be square matrices, got shape {matrix.shape}")
    return matrix.shape[-1]


class MultivariateNormal(_Covariance):
    """The normal distribution of vectors, by covariance_matrix, precision_matrix or scale_tril.

    >>> import everygrad as eg
    >>> eg.distributions.MultivariateNormal(eg.zeros((2,)), eg.eye(2)).entropy()
    tensor(2.8379)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        owner = type(self).__name__
        name, matrix = one_of(
            owner,
            covariance_matrix=covariance_matrix,
            precision_matrix=precision_matrix,
            scale_tril=scale_tril,
        )
        made, matrix = as_tensors(owner, {"loc": loc, name: matrix})
        size = _square(owner, name, matrix)
        if not made.ndim or made.shape[-1] not in (1, size):
            raise ShapeError(
                f"{owner}: loc has shape {made.shape}, but {name} {matrix.shape} is for vectors "
                f"of {size}"
            )
        batch = shapes.broadcast(owner, made.shape[:-1], matrix.shape[:-2])
        self.loc = made.broadcast_to((*batch, size))
        matrix = matrix.broadcast_to((*batch, size, size))
        setattr(self, name, matrix)
        super().__init__(batch, (size,), validate_args)
        self._set_matrix(name, vars(self)[name])

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(axis=-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        z = noise(randn, self._extended_shape(sample_shape), self.loc)
        return self.loc + (self.scale_tril @ z.expand_dims(-1)).squeeze(-1)

    def log_prob(self, value: Any) -> Tensor:
        away = self._value(value, self.loc) - self.loc
        lower = self.scale_tril
        size = self.event_shape[0]
        return -0.5 * mahalanobis(lower, away) - log_diagonal(lower) - size * HALF_LOG_TAU

    def entropy(self) -> Tensor:
        return self.event_shape[0] * (0.5 + HALF_LOG_TAU) + log_diagonal(self.scale_tril)


class LowRankMultivariateNormal(Distribution):
    """A normal distribution of covariance cov_factor @ cov_factor.T + diag(cov_diag).

    >>> import everygrad as eg
    >>> one = eg.ones((2,))
    >>> eg.distributions.LowRankMultivariateNormal(one, eg.ones((2, 1)), one).variance
    tensor([2., 2.])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: bool | None = None
    ) -> None:
        owner = "LowRankMultivariateNormal"
        given = {"loc": loc, "cov_factor": cov_factor, "cov_diag": cov_diag}
        loc, factor, diagonal = as_tensors(owner, given)
        if not loc.ndim or factor.ndim < 2 or not diagonal.ndim:
            raise ShapeError(
                f"{owner}: loc and cov_diag must be vectors and cov_factor matrices, got shapes "
                f"{loc.shape}, {diagonal.shape} and {factor.shape}"
            )
        size = loc.shape[-1]
        if factor.shape[-2] != size or diagonal.shape[-1] != size:
            raise ShapeError(
                f"{owner}: loc {loc.shape}, cov_factor {factor.shape} and cov_diag "
                f"{diagonal.shape} differ in the size of the vectors"
            )
        batch = shapes.broadcast(owner, loc.shape[:-1], factor.shape[:-2], diagonal.shape[:-1])
        self.loc = loc.broadcast_to((*batch, size))
        self.cov_factor = factor.broadcast_to((*batch, *factor.shape[-2:]))
        self.cov_diag = diagonal.broadcast_to((*batch, size))
        super().__init__(batch, (size,), validate_args)

    def capacitance_tril(self) -> Tensor:
        """The Cholesky factor of I + W^T D^-1 W."""
        scaled = self.cov_factor / self.cov_diag.expand_dims(-1)
        inner = self.cov_factor.mT @ scaled
        return cholesky(inner + identity(inner.shape[-1], inner))

    def log_determinant(self, capacitance_tril: Tensor) -> Tensor:
        """log det of the covariance."""
        return 2.0 * log_diagonal(capacitance_tril) + self.cov_diag.log().sum(axis=-1)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.cov_factor.square().sum(axis=-1) + self.cov_diag

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        return self.cov_factor @ self.cov_factor.mT + diagonal_matrix(self.cov_diag)

    @property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return cholesky(self.covariance_matrix)

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariance."""
        scaled = self.cov_factor.mT / self.cov_diag.expand_dims(-2)
        half = solve_triangular(self.capacitance_tril(), scaled, upper=False)
        return diagonal_matrix(1.0 / self.cov_diag) - half.mT @ half

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(sample_shape)
        rank = self.cov_factor.shape[-1]
        low = noise(randn, (*shape[:-1], rank), self.loc).expand_dims(-1)
        own = noise(randn, shape, self.loc)
        return self.loc + (self.cov_factor @ low).squeeze(-1) + self.cov_diag.sqrt() * own

    def log_prob(self, value: Any) -> Tensor:
        away = self._value(value, self.loc) - self.loc
        lower = self.capacitance_tril()
        scaled = away / self.cov_diag
        inner = self.cov_factor.mT @ scaled.expand_dims(-1)
        less = solve_triangular(lower, inner, upper=False).square().sum(axis=(-2, -1))
        length = (away * scaled).sum(axis=-1) - less
        size = self.event_shape[0]
        return -0.5 * (length + self.log_determinant(lower)) - size * HALF_LOG_TAU

    def entropy(self) -> Tensor:
        spread = 0.5 * self.log_determinant(self.capacitance_tril())
        return self.event_shape[0] * (0.5 + HALF_LOG_TAU) + spread


class Wishart(_Covariance, ExponentialFamily):
    """Sums of outer products of `df` normal vectors: random covariance matrices.

    >>> import everygrad as eg
    >>> eg.distributions.Wishart(3.0, eg.eye(2)).mean
    tensor([[3., 0.],
            [0., 3.]])
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {
        "df": constraints.dependent,
        "covariance_matrix": constraints.positive_definite,
        "precision_matrix": constraints.positive_definite,
        "scale_tril": constraints.lower_cholesky,
    }
    support = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0.0

    def __init__(
        self,
        df: Any,
        covariance_matrix: Any = None,
        precision_matrix: Any = None,
        scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = one_of(
            "Wishart",
            covariance_matrix=covariance_matrix,
            precision_matrix=precision_matrix,
            scale_tril=scale_tril,
        )
        made, matrix = as_tensors("Wishart", {"df": df, name: matrix})
        size = _square("Wishart", name, matrix)
        batch = shapes.broadcast("Wishart", made.shape, matrix.shape[:-2])
        self.df = made.broadcast_to(batch)
        matrix = matrix.broadcast_to((*batch, size, size))
        setattr(self, name, matrix)
        super().__init__(batch, (size, size), validate_args)
        self._set_matrix(name, vars(self)[name])

    def _check_parameters(self) -> None:
        super()._check_parameters()
        least = self.event_shape[-1] - 1
        what = f"Wishart: df must be above {least}, the size of the matrices less 1"
        self.df = ensure_in(self.df, self.df > least, what)

    @property
    def _size(self) -> int:
        return self.event_shape[-1]

    def _df(self) -> Tensor:
        return self.df.expand_dims(-1).expand_dims(-1)

    @property
    def mean(self) -> Tensor:
        return self._df() * self.covariance_matrix

    @property
    def mode(self) -> Tensor:
        factor = self._df() - (self._size + 1.0)
        return where(factor > 0.0, factor, math.nan) * self.covariance_matrix

    @property
    def variance(self) -> Tensor:
        covariance = self.covariance_matrix
        d = diagonal_of(covariance)
        return self._df() * (covariance.square() + d.expand_dims(-1) * d.expand_dims(-2))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """By Bartlett's decomposition: chi variables on the diagonal, normal ones below."""
        shape, size = self._extended_shape(sample_shape), self._size
        degrees = self.df.expand_dims(-1) - arange(size, dtype=self.df.dtype, device=self.df.device)
        squares = gamma(0.5 * degrees, 0.5, shape[:-1]).clamp(tiny_of(self.df))
        below = tril(noise(randn, shape, self.df), -1)
        lower = self.scale_tril @ (below + diagonal_matrix(squares.sqrt()))
        return lower @ lower.mT

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.df)
        size, df, lower = self._size, self.df, self.scale_tril
        norm = df * (0.5 * size * math.log(2.0) + log_diagonal(lower))
        norm = norm + multivariate_lgamma(0.5 * df, size)
        batch = shapes.broadcast("Wishart.log_prob", value.shape[:-2], lower.shape[:-2])
        value = value.broadcast_to((*batch, size, size))
        inner = cholesky_solve(value, lower.broadcast_to((*batch, size, size)))
        trace = diagonal_of(inner).sum(axis=-1)
        return 0.5 * (df - size - 1.0) * slogdet(value).logabsdet - 0.5 * trace - norm

    def entropy(self) -> Tensor:
        size, df = self._size, self.df
        spread = (size + 1.0) * (0.5 * size * math.log(2.0) + log_diagonal(self.scale_tril))
        digammas = _multivariate_digamma(0.5 * df, size)
        spread = spread + multivariate_lgamma(0.5 * df, size) + 0.5 * df * size
        return spread - 0.5 * (df - size - 1.0) * digammas

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        return (-0.5 * self.precision_matrix, 0.5 * (self.df - self._size - 1.0))

    def _log_normalizer(self, *natural: Tensor) -> Tensor:
        x, y = natural
        size = self._size
        df = y + 0.5 * (size + 1.0)
        return df * -slogdet(-x).logabsdet + multivariate_lgamma(df, size)


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices of density in proportion to det**(concentration-1).

    >>> import everygrad as eg
    >>> eg.distributions.LKJCholesky(3, 0.5).sample().shape
    (3, 3)
    """

    arg_constraints: ClassVar[dict[str, Constraint]] = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(
        self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None
    ) -> None:
        if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2:
            raise ArgumentError(f"LKJCholesky: dim must be an integer of 2 or more, got {dim!r}")
        self.dim = dim
        (self.concentration,) = as_tensors("LKJCholesky", {"concentration": concentration})
        super().__init__(self.concentration.shape, (dim, dim), validate_args)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """By the onion method: row after row, a radius and a direction."""
        with no_grad():
            shape, c, dim = self._extended_shape(sample_shape), self.concentration, self.dim
            rows = arange(dim, dtype=c.dtype, device=c.device)
            # of the first row, whose only entry is 1, the radius does not matter
            before = (rows - 1.0).clamp(0.0)
            b = (c + 0.5 * (dim - 2)).expand_dims(-1) - 0.5 * before
            radius = beta((0.5 * before + 0.5).broadcast_to(b.shape), b, shape[:-1]).expand_dims(-1)
            way = tril(noise(randn, shape, c), -1)
            length = way.square().sum(axis=-1, keepdims=True).sqrt()
            low = radius.sqrt() * way / where(length > 0.0, length, 1.0)
            left = (1.0 - low.square().sum(axis=-1)).clamp(tiny_of(c))
            return low + diagonal_matrix(left.sqrt())

    def log_prob(self, value: Any) -> Tensor:
        value = self._value(value, self.concentration)
        c, dim = self.concentration, self.dim
        orders = arange(2, dim + 1, dtype=c.dtype, device=c.device)
        powers = 2.0 * (c - 1.0).expand_dims(-1) + (dim - orders)
        density = (powers * diagonal_of(value)[..., 1:].log()).sum(axis=-1)
        less = dim - 1
        alpha = c + 0.5 * less
        norm = 0.5 * less * math.log(math.pi) + multivariate_lgamma(alpha - 0.5, less)
        return density - norm + less * lgamma(alpha)

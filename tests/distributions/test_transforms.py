"""Transforms and constraints against PyTorch's, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg

RNG = np.random.default_rng(3)
REAL, POSITIVE = RNG.normal(size=(4, 3)), RNG.uniform(0.2, 3.0, size=(4, 3))
MATRICES = RNG.normal(size=(2, 3, 3))
ONE = np.array(1.0)


def affine(d: Any, t: Any) -> Any:
    return d.AffineTransform(t([0.5, -1.0, 2.0]), t([2.0, -0.5, 1.5]))


TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "Exp": (lambda d, t: d.ExpTransform(), REAL),
    "Power": (lambda d, t: d.PowerTransform(t(-1.5)), POSITIVE),
    "Sigmoid": (lambda d, t: d.SigmoidTransform(), REAL),
    "Softplus": (lambda d, t: d.SoftplusTransform(), REAL),
    "Tanh": (lambda d, t: d.TanhTransform(), REAL),
    "Affine": (affine, REAL),
    "Affine event": (lambda d, t: d.AffineTransform(1.0, -2.0, event_dim=1), REAL),
    "StickBreaking": (lambda d, t: d.StickBreakingTransform(), REAL),
    "CorrCholesky": (lambda d, t: d.CorrCholeskyTransform(), REAL),
    "Reshape": (lambda d, t: d.ReshapeTransform((4, 3), (2, 6)), REAL),
    "Compose": (lambda d, t: d.ComposeTransform([affine(d, t), d.ExpTransform()]), REAL),
    "Independent": (lambda d, t: d.IndependentTransform(d.ExpTransform(), 1), REAL),
    "Cat": (lambda d, t: d.CatTransform([d.ExpTransform(), d.TanhTransform()], 1, [1, 2]), REAL),
    "Stack": (
        lambda d, t: d.StackTransform(
            [d.ExpTransform(), d.TanhTransform(), d.AffineTransform(1.0, 3.0)], 1
        ),
        REAL,
    ),
    "Cumulative": (
        lambda d, t: d.CumulativeDistributionTransform(d.Normal(t(0.3), t(1.2))),
        REAL,
    ),
    "inverse": (lambda d, t: d.ExpTransform().inv, POSITIVE),
}
ONE_WAY = {
    "Abs": (lambda d, t: d.AbsTransform(), REAL),
    "Softmax": (lambda d, t: d.SoftmaxTransform(), REAL),
    "LowerCholesky": (lambda d, t: d.LowerCholeskyTransform(), MATRICES),
    "PositiveDefinite": (lambda d, t: d.PositiveDefiniteTransform(), MATRICES),
}


def mine(make: Any) -> Any:
    return make(eg.distributions, lambda v: eg.tensor(v, eg.float64))


def other(make: Any) -> Any:
    return make(torch.distributions, lambda v: torch.tensor(v, dtype=torch.float64))


def agree(got: Any, want: Any) -> None:
    assert np.asarray(got).shape == tuple(want.shape)
    np.testing.assert_allclose(np.asarray(got), want.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [*TRANSFORMS, *ONE_WAY])
def test_transform(name: str) -> None:
    make, values = {**TRANSFORMS, **ONE_WAY}[name]
    a, b = mine(make), other(make)
    x, y = eg.tensor(values), torch.tensor(values)
    agree(a(x), b(y))
    agree(a.inv(a(x)), b.inv(b(y)))
    assert a.bijective == b.bijective
    assert a.domain.event_dim == b.domain.event_dim
    assert a.codomain.event_dim == b.codomain.event_dim
    assert a.forward_shape(x.shape) == tuple(b.forward_shape(y.shape))
    assert a.inverse_shape(a(x).shape) == tuple(b.inverse_shape(b(y).shape))
    if name in TRANSFORMS:
        agree(a.log_abs_det_jacobian(x, a(x)), b.log_abs_det_jacobian(y, b(y)))
        agree(a.inv.log_abs_det_jacobian(a(x), x), b.inv.log_abs_det_jacobian(b(y), y))
        np.testing.assert_allclose(np.asarray(a.inv(a(x))), values, rtol=1e-9, atol=1e-12)
    assert bool(a.codomain.check(a(x)).all())


@pytest.mark.parametrize("name", ["Exp", "Power", "Sigmoid", "Tanh", "Softplus", "CorrCholesky",
                                  "StickBreaking"])  # fmt: skip
def test_gradients(name: str) -> None:
    make, values = TRANSFORMS[name]
    a = mine(make)
    x = eg.tensor(values, requires_grad=True)
    assert eg.gradcheck(lambda x: a(x), (x,))
    assert eg.gradcheck(lambda x: a.log_abs_det_jacobian(x, a(x)), (x,))


def test_a_cache_gives_back_what_was_put_in() -> None:
    transform = eg.distributions.ExpTransform(cache_size=1)
    x = eg.randn((3,))
    assert transform.inv(transform(x)) is x
    assert eg.distributions.ExpTransform().inv(transform(x)) is not x
    with pytest.raises(eg.errors.ArgumentError, match="cache_size must be 0 or 1, got 2"):
        eg.distributions.ExpTransform(cache_size=2)


def test_transforms_are_equal_by_value() -> None:
    d = eg.distributions
    assert d.AffineTransform(1.0, eg.ones((2,))) == d.AffineTransform(1.0, eg.ones((2,)))
    assert d.AffineTransform(1.0, 2.0) != d.AffineTransform(1.0, 3.0)
    assert d.ExpTransform() != d.TanhTransform()
    assert d.ExpTransform().inv == d.ExpTransform().inv


# --- constraints ---------------------------------------------------------------------------------

CONSTRAINTS = {
    "boolean": [0.0, 1.0, 0.5, -1.0],
    "one_hot": [[0.0, 1.0], [1.0, 1.0], [0.5, 0.5], [1.0, 0.0]],
    "nonnegative_integer": [0.0, 3.0, -1.0, 0.5],
    "positive_integer": [0.0, 3.0, -1.0, 1.5],
    "positive": [0.0, 1.0, -1.0, np.nan],
    "nonnegative": [0.0, 1.0, -1.0, np.nan],
    "real": [0.0, np.inf, -np.inf, np.nan],
    "real_vector": [[0.0, 1.0], [np.nan, 1.0], [1.0, np.inf], [2.0, 2.0]],
    "unit_interval": [0.0, 1.0, 1.5, -0.1],
    "simplex": [[0.4, 0.6], [0.4, 0.7], [-0.1, 1.1], [0.0, 1.0]],
    "lower_triangular": [[[1.0, 0.0], [2.0, -1.0]], [[1.0, 0.5], [2.0, 1.0]]],
    "lower_cholesky": [[[1.0, 0.0], [2.0, 1.0]], [[1.0, 0.0], [2.0, -1.0]]],
    "corr_cholesky": [[[1.0, 0.0], [0.6, 0.8]], [[1.0, 0.0], [0.6, 0.9]]],
    "square": [[[1.0, 0.0], [2.0, 1.0]], [[1.0, 0.0], [2.0, -1.0]]],
    "symmetric": [[[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.0], [2.0, -1.0]]],
    "positive_definite": [[[2.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]]],
    "positive_semidefinite": [[[1.0, 1.0], [1.0, 1.0]], [[1.0, 2.0], [2.0, 1.0]]],
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraint(name: str) -> None:
    values = np.array(CONSTRAINTS[name], np.float64)
    a, b = (getattr(m.constraints, name) for m in (eg.distributions, torch.distributions))
    got, want = a.check(eg.tensor(values)), b.check(torch.tensor(values))
    assert got.tolist() == want.tolist()
    assert a.event_dim == b.event_dim
    assert a.is_discrete == b.is_discrete
    assert str(a)


BOUNDED = [("greater_than", (0.5,)), ("greater_than_eq", (0.5,)), ("less_than", (0.5,)),
           ("interval", (-0.5, 0.5)), ("half_open_interval", (-0.5, 0.5)),
           ("integer_interval", (-1, 1)), ("multinomial", (3,))]  # fmt: skip


@pytest.mark.parametrize(("name", "bounds"), BOUNDED)
def test_bounded_constraint(name: str, bounds: Any) -> None:
    values = np.array([[-0.5, 0.5, 1.0], [0.0, 1.0, 2.0], [2.0, 2.0, 0.0]])
    a, b = (getattr(m.constraints, name)(*bounds) for m in (eg.distributions, torch.distributions))
    assert a.check(eg.tensor(values)).tolist() == b.check(torch.tensor(values)).tolist()


def test_all_of_pytorchs_constraints_are_there() -> None:
    assert set(torch.distributions.constraints.__all__) == set(eg.distributions.constraints.__all__)


def test_what_is_not_symmetric_is_not_positive_definite() -> None:
    values = eg.tensor([[[2.0, 1.0], [1.0, 2.0]], [[1.0, 2.0], [2.0, 1.0]], [[1.0, 3.0], [0, 1]]])
    for name in ("positive_definite", "positive_semidefinite"):
        constraint = getattr(eg.distributions.constraints, name)
        assert constraint.check(values).tolist() == [True, False, False]


REGISTRY = ["real", "positive", "nonnegative", "unit_interval", "simplex", "lower_cholesky",
            "corr_cholesky", "positive_definite", "real_vector"]  # fmt: skip


@pytest.mark.parametrize("which", ["biject_to", "transform_to"])
@pytest.mark.parametrize("name", REGISTRY)
def test_registry(which: str, name: str) -> None:
    matrices = name in ("lower_cholesky", "positive_definite")
    values = MATRICES if matrices else REAL
    if matrices and which == "biject_to":
        with pytest.raises(NotImplementedError, match="biject_to: no transform into a"):
            eg.distributions.biject_to(getattr(eg.distributions.constraints, name))
        return
    a = getattr(eg.distributions, which)(getattr(eg.distributions.constraints, name))
    b = getattr(torch.distributions, which)(getattr(torch.distributions.constraints, name))
    agree(a(eg.tensor(values)), b(torch.tensor(values)))
    assert bool(getattr(eg.distributions.constraints, name).check(a(eg.tensor(values))).all())


def test_registry_bounds_and_refusals() -> None:
    d = eg.distributions
    known = d.constraints
    sets = [known.interval(2.0, 5.0), known.greater_than(2.0), known.less_than(-1.0)]
    for c in (*sets, known.half_open_interval(0.0, 3.0)):
        assert bool(c.check(d.transform_to(c)(eg.tensor(REAL))).all())
    with pytest.raises(NotImplementedError, match="biject_to: no transform into 0 or 1"):
        d.biject_to(d.constraints.boolean)

"""Continuous distributions, differentiable in their parameters: exponential, gamma and their kin.

Rejection happens in a fixed number of rounds, each with numbers of its own for every element: the
same on every device, and nothing to know beforehand inside jit and vmap. An element that no round
accepted (one in 10**10, at the worst parameter) is given a value near the mode.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from everygrad.compiler.expr import call
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import exp, expm1, log
from everygrad.ops.nn.softmax_and_norm import softmax
from everygrad.ops.python.creation import tensor
from everygrad.ops.random.generators import Generator, Parameters, fine_unit, parameters, rand
from everygrad.ops.record.families import Elementwise, Kernel
from everygrad.ops.special.gamma import digamma

ROUNDS = 8  # the worst parameter, 1, is refused one time in twenty
NODES = 32  # of the quadrature for a gamma variable's derivative
SPAN = 36.0  # e-foldings of the integrand that are looked at


def _positive(op: str, name: str, value: Any) -> None:
    """Refuse a number that is not above 0; tensors are not looked into, and give NaN there."""
    if not isinstance(value, Tensor) and not value > 0:
        raise ArgumentError(f"{op}: {name} must be above 0, got {value!r}")


def exponential(
    rate: Any = 1.0,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Waiting times of events that come `rate` times in a unit of time; the mean is 1 / rate.

    >>> import everygrad as eg
    >>> eg.exponential(2.0, (3,)).shape
    (3,)
    """
    _positive("exponential", "rate", rate)
    p = parameters("exponential", (rate,), shape, dtype, device)
    return (-log(fine_unit(p.shape, p.inner, p.device, generator)) / p.values[0]).astype(p.dtype)


# --- gamma: Marsaglia and Tsang (2000) -----------------------------------------------------------


def _centre(alpha: Any) -> Any:
    """Their d: for alpha below 1 that of alpha + 1, which a power of a uniform number corrects."""
    return call("select", alpha < 1.0, alpha + 1.0, alpha) - 1.0 / 3.0


def _round(v: Any, alpha: Any, u: Any, angle: Any, test: Any) -> Any:
    """v, or where it is still 0 the next candidate if it is accepted: z = d v."""
    d = _centre(alpha)
    x = call("sqrt", -2.0 * call("log", u)) * call("cos", angle * (2.0 * math.pi))
    t = x / call("sqrt", 9.0 * d)
    logarithm = 3.0 * call("log1p", call("max", t, -1.0 + 1e-6))
    # 1 - (1 + t)**3 + 3 log(1 + t), where for large d nearly all of it cancels
    score = 0.5 * x * x + d * (logarithm - 3.0 * t - t * t * (3.0 + t))
    accepted = (t > -1.0) & (call("log", test) < score)
    fresh = call("select", accepted, call("exp", logarithm), 0.0 * t)
    return call("select", v > 0.0, v, fresh)


def _finished(v: Any, alpha: Any, u: Any) -> Any:
    """The logarithm of the gamma variable."""
    kept = call("select", v > 0.0, v, v * 0.0 + 1.0)
    shrunk = call("select", alpha < 1.0, call("log", u) / alpha, 0.0 * alpha)
    return call("log", _centre(alpha) * kept) + shrunk


ROUND = Elementwise("gamma_round", _round, kinds="real float")
FINISHED = Elementwise("gamma_finished", _finished, kinds="real float")


def _log_gamma(alpha: Tensor, p: Parameters, generator: Generator | None) -> Tensor:
    """Logarithms of gamma variables, which stay finite where alpha is small."""
    alpha = alpha.broadcast_to(p.shape)
    v = alpha * 0.0
    for _ in range(ROUNDS):
        u, test = (fine_unit(p.shape, p.inner, p.device, generator) for _ in range(2))
        angle = rand(p.shape, p.inner, p.device, generator)
        v = apply(ROUND, v, alpha, u, angle, test)
    u = fine_unit(p.shape, p.inner, p.device, generator)
    return apply(PATH, apply(FINISHED, v, alpha, u), alpha)


# --- its derivative ------------------------------------------------------------------------------


def _reach(z: Any, alpha: Any) -> Any:
    """How far from log z the integrand of `_log_slope` is worth looking at."""
    below = (SPAN + z) / alpha
    above = call("min", call("sqrt", 2.0 * SPAN / z), call("log1p", SPAN / z) + 1.0)
    for _ in range(12):  # Newton from the far side, where both functions are convex
        grown = alpha * below + z * call("expm1", -below) - SPAN
        below = below - grown / (alpha - z * call("exp", -below))
        grown = z * call("expm1", above) - alpha * above - SPAN
        above = above - grown / (z * call("exp", above) - alpha)
    return call("select", z <= alpha, below, above)


REACH = Elementwise("gamma_reach", _reach, kinds="real float")


def _nodes(dtype: DType, device: str) -> tuple[Tensor, Tensor]:
    """Places in (0, 1), more of them near 0, and weights: Gauss and Legendre's, cubed."""
    x, weights = np.polynomial.legendre.leggauss(NODES)
    u = (x + 1.0) / 2.0
    return tensor(u**3, dtype, device), tensor(weights * 1.5 * u**2, dtype, device)


def _log_slope(log_z: Tensor, alpha: Tensor) -> Tensor:
    """d log z / d alpha of a gamma variable z at a fixed place of its distribution.

    It is -(dF / d alpha) / (z f): an integral of f(t) (log t - digamma(alpha)) over the tail on
    z's side of the mean, here in w = |log t - log z|, where the integrand only falls.
    """
    z = exp(log_z)
    places, weights = _nodes(alpha.dtype, alpha.device)
    reach = apply(REACH, z, alpha)  # the integral does not depend on it, nor does its derivative
    side = where(z <= alpha, -1.0, 1.0).astype(alpha.dtype)
    w = (side * reach).expand_dims(-1) * places
    offset = (log_z - digamma(alpha)).expand_dims(-1)
    z, alpha = z.expand_dims(-1), alpha.expand_dims(-1)
    return reach * side * (exp(alpha * w - z * expm1(w)) * (w + offset) * weights).sum(axis=-1)


def _path_jvp(out: Tensor, inputs: Any, tangents: Any) -> Tensor | None:
    t = tangents[1]
    return None if t is None else t * _log_slope(out, inputs[1])


# Gives log z, a sample, its derivative in alpha; the value is log z itself.
PATH: Kernel = Kernel(
    "gamma_path",
    lambda log_z, alpha: log_z,
    ("log_z", "alpha"),
    (None, lambda g, out, alpha: g * _log_slope(out, alpha)),
    jvp=_path_jvp,
    batch=lambda xs: apply(PATH, *xs),
)


def _as_tensor(value: Any, p: Parameters) -> Tensor:
    return value if isinstance(value, Tensor) else tensor(value, p.inner, p.device)


def gamma(
    concentration: Any,
    rate: Any = 1.0,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Gamma variables of mean concentration / rate, numbers or tensors; differentiable in both.

    >>> import everygrad as eg
    >>> bool((eg.gamma(0.5, 2.0, (100,)) >= 0).all())
    True
    """
    _positive("gamma", "concentration", concentration)
    _positive("gamma", "rate", rate)
    p = parameters("gamma", (concentration, rate), shape, dtype, device)
    log_z = _log_gamma(_as_tensor(p.values[0], p), p, generator)
    return (exp(log_z) / p.values[1]).astype(p.dtype)


def beta(
    a: Any,
    b: Any,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """Beta variables in [0, 1] of mean a / (a + b), numbers or tensors; differentiable in both."""
    _positive("beta", "a", a)
    _positive("beta", "b", b)
    p = parameters("beta", (a, b), shape, dtype, device)
    x, y = (_log_gamma(_as_tensor(v, p), p, generator) for v in p.values)
    return (x - y).sigmoid().astype(p.dtype)


def dirichlet(
    concentration: Tensor,
    shape: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
) -> Tensor:
    """Probabilities along the last axis, differentiable in their concentrations, a tensor.

    `shape` is that of the result, whose last axis is that of the concentrations.
    """
    if not isinstance(concentration, Tensor) or not concentration.ndim:
        raise ShapeError(f"dirichlet: needs concentrations along an axis, got {concentration!r}")
    p = parameters("dirichlet", (concentration,), shape, dtype, None)
    log_z = _log_gamma(p.values[0], p, generator)
    return softmax(log_z, axis=-1).astype(p.dtype)

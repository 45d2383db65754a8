"""Discrete distributions: poisson, binomial, categorical, multinomial, permutations.

Small means by inversion of the distribution function, large ones by transformed rejection in a
fixed number of rounds (Hoermann 1993): the same on every device, and at home in jit and vmap. An
element that no round accepted (one in 10**9, at the worst parameter) is given the mean.
"""

from __future__ import annotations

import math
from typing import Any

from everygrad import dtypes
from everygrad.compiler.expr import call
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.ops.elementwise.basic import where
from everygrad.ops.elementwise.math import log, log1p
from everygrad.ops.index.gather import taken
from everygrad.ops.index.sort import argsort
from everygrad.ops.linalg.checks import ensure
from everygrad.ops.nn.softmax_and_norm import softmax
from everygrad.ops.python.creation import arange, tensor
from everygrad.ops.random.generators import Generator, Parameters, draw, fine_unit, parameters, rand
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.keywords import spelled
from everygrad.ops.reduce.reductions import argmax

ROUNDS = 16
FEW = 10.0  # means below it are inverted
STEPS = 44  # beyond which a mean below FEW leads one time in 10**14
_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)


# --- bodies: scalar expressions ------------------------------------------------------------------


def _stirling(n: Any) -> Any:
    """log((n - 1)!) less its leading terms (n - 1/2) log n - n + log(2 pi) / 2."""
    square = n * n
    return (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / (1260.0 * square)) / square) / n


def _deviance(n: Any, mean: Any) -> Any:
    """n log(n / mean) - (n - mean), exact where n is near the mean."""
    d = (n - mean) / mean
    return mean * ((1.0 + d) * call("log1p", d) - d)


def _chosen(k: Any, accepted: Any, candidate: Any) -> Any:
    """k, or where it is still below 0 the candidate if it is accepted."""
    fresh = call("select", accepted, candidate, -1.0)
    return call("select", k >= 0.0, k, fresh)


def _poisson_few(u: Any, mean: Any) -> Any:
    """How many steps of the distribution function lie below u."""
    mass = call("exp", -mean)
    below, k = mass, mean * 0.0
    for i in range(1, STEPS + 1):
        k = k + call("select", u > below, 1.0, 0.0 * k)
        mass = mass * mean / float(i)
        below = below + mass
    return k


def _poisson_round(k: Any, mean: Any, u: Any, v: Any) -> Any:
    b = 0.931 + 2.53 * call("sqrt", mean)
    a = -0.059 + 0.02483 * b
    squeeze = 0.9277 - 3.6224 / (b - 2.0)
    scale = 1.1239 + 1.1328 / (b - 3.4)
    u = u - 0.5
    edge = 0.5 - call("abs", u)
    candidate = call("floor", (2.0 * a / edge + b) * u + mean + 0.43)
    n = call("max", candidate, 0.0) + 1.0
    mass = -_deviance(n, mean) + 0.5 * call("log", n) - call("log", mean)
    mass = mass - _HALF_LOG_TAU - _stirling(n)
    test = call("log", v * scale / (a / (edge * edge) + b)) <= mass
    quick = (edge >= 0.07) & (v <= squeeze)
    slow = (candidate >= 0.0) & ((edge >= 0.013) | (v <= edge)) & test
    return _chosen(k, quick | slow, candidate)


def _binomial_few(u: Any, n: Any, p: Any) -> Any:
    mass = call("exp", n * call("log1p", -p))
    odds = p / (1.0 - p)
    below, k = mass, n * 0.0
    for i in range(STEPS):
        k = k + call("select", (u > below) & (n > float(i)), 1.0, 0.0 * k)
        mass = mass * odds * (n - float(i)) / float(i + 1)
        below = below + mass
    return k


def _binomial_mass(k: Any, n: Any, p: Any) -> Any:
    """The logarithm of the probability of k, up to what depends on n and p alone."""
    a, b = k + 1.0, n - k + 1.0
    spread = _deviance(a, (n + 1.0) * p) + _deviance(b, (n + 1.0) * (1.0 - p))
    return 0.5 * call("log", a * b) - spread - _stirling(a) - _stirling(b)


def _binomial_round(k: Any, n: Any, p: Any, u: Any, v: Any) -> Any:
    sigma = call("sqrt", n * p * (1.0 - p))
    b = 1.15 + 2.53 * sigma
    a = -0.0873 + 0.0248 * b + 0.01 * p
    u = u - 0.5
    edge = 0.5 - call("abs", u)
    candidate = call("floor", (2.0 * a / edge + b) * u + n * p + 0.5)
    inside = (candidate >= 0.0) & (candidate <= n)
    kept = call("min", call("max", candidate, 0.0), n)
    mode = call("floor", (n + 1.0) * p)
    scale = (2.83 + 5.1 / b) * sigma
    level = call("log", v * scale / (a / (edge * edge) + b))
    test = level <= _binomial_mass(kept, n, p) - _binomial_mass(mode, n, p)
    quick = (edge >= 0.07) & (v <= 0.92 - 4.2 / b)
    return _chosen(k, inside & (quick | test), candidate)


POISSON_FEW = Elementwise("poisson_few", _poisson_few, kinds="real float")
POISSON_ROUND = Elementwise("poisson_round", _poisson_round, kinds="real float")
BINOMIAL_FEW = Elementwise("binomial_few", _binomial_few, kinds="real float")
BINOMIAL_ROUND = Elementwise("binomial_round", _binomial_round, kinds="real float")


# --- counts --------------------------------------------------------------------------------------


def _full(value: Any, p: Parameters) -> Tensor:
    """A parameter in the shape of the result, as a constant: counts have no derivative."""
    made = value.detach() if isinstance(value, Tensor) else tensor(value, p.inner, p.device)
    return made.broadcast_to(p.shape)


def _rounds(op: Elementwise, given: tuple[Tensor, ...], p: Parameters, g: Any) -> Tensor:
    """The first candidate that a round accepts, below 0 where none does."""
    k = given[0] * 0.0 - 1.0
    for _ in range(ROUNDS):
        u, v = rand(p.shape, p.inner, p.device, g), fine_unit(p.shape, p.inner, p.device, g)
        k = apply(op, k, *given, u, v)
    return k


@spelled
def poisson(
    rate: Any,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """How many events happen of which `rate` are expected, a number or a tensor.

    Counts in the rate's dtype, as PyTorch has them. NaN where a rate is negative or NaN.

    >>> import everygrad as eg
    >>> eg.poisson(0.0, (3,))
    tensor([0., 0., 0.])
    """
    if not isinstance(rate, Tensor) and not rate >= 0:
        raise ArgumentError(f"poisson: rate must not be negative, got {rate!r}")
    p = parameters("poisson", (rate,), shape, dtype, device)
    mean = _full(p.values[0], p)
    few = apply(POISSON_FEW, rand(p.shape, p.inner, p.device, generator), mean.minimum(FEW))
    many = _rounds(POISSON_ROUND, (mean.maximum(FEW),), p, generator)
    drawn = where(mean < FEW, few, where(many < 0.0, mean.floor(), many))
    return where(mean >= 0.0, drawn, math.nan).astype(p.dtype)


@spelled
def binomial(
    n: Any,
    p: Any,
    shape: Any = None,
    dtype: Any = None,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """How many of n trials succeed, each with probability p; numbers or tensors.

    Counts in the floating-point dtype of the parameters, as PyTorch has them. NaN where p is not
    a probability or n is negative.
    """
    if not isinstance(n, Tensor) and not n >= 0:
        raise ArgumentError(f"binomial: n must not be negative, got {n!r}")
    if not isinstance(p, Tensor) and not 0 <= p <= 1:
        raise ArgumentError(f"binomial: p must be between 0 and 1, got {p!r}")
    given = parameters("binomial", (n, p), shape, dtype, device)
    trials, chance = (_full(v, given) for v in given.values)
    rare = chance.minimum(1.0 - chance)  # of success or failure, whichever comes less often
    small = trials * rare < FEW
    u = rand(given.shape, given.inner, given.device, generator)
    few = apply(BINOMIAL_FEW, u, trials, where(small, rare, 0.0))
    large = where(small, 40.0, trials), where(small, 0.5, rare)
    many = _rounds(BINOMIAL_ROUND, large, given, generator)
    drawn = where(small, few, where(many < 0.0, (trials * rare).floor(), many))
    valid = (trials >= 0.0) & (chance >= 0.0) & (chance <= 1.0)
    counted = where(chance > 0.5, trials - drawn, drawn)
    return where(valid, counted, math.nan).astype(given.dtype)


# --- choices -------------------------------------------------------------------------------------


def _races(shape: shapes.Shape, like: Tensor, generator: Generator | None) -> Tensor:
    """Exponential times, exact where they are small: who is first is who is chosen."""
    if like.dtype is dtypes.float64:
        return -log(1.0 - rand(shape, like.dtype, like.device, generator))
    u = fine_unit(shape, dtypes.float32, like.device, generator)
    return -log1p(-u)


def _log_weights(op: str, logits: Any, shape: Any, axis: int) -> tuple[Tensor, shapes.Shape]:
    """Logits with the axis of choices last, and the shape of the results."""
    if not isinstance(logits, Tensor) or not logits.ndim:
        raise ShapeError(f"{op}: needs a tensor with an axis of choices, got {logits!r}"[:300])
    if not logits.dtype.is_float:
        raise DtypeError(f"{op}: does not take {logits.dtype}; cast it with astype() first")
    logits = logits.detach().moveaxis(axis, -1)
    if not logits.shape[-1]:
        raise ShapeError(f"{op}: there is nothing to choose from along an axis of size 0")
    if logits.dtype is not dtypes.float64:
        logits = logits.astype(dtypes.float32)
    batch = logits.shape[:-1]
    sizes = batch if shape is None else shapes.as_shape(shape, op)
    if shapes.broadcast(op, batch, sizes) != sizes:
        raise ShapeError(f"{op}: logits for results of shape {batch} do not fit into {sizes}")
    return logits, sizes


def categorical(
    logits: Tensor,
    shape: Any = None,
    axis: int = -1,
    generator: Generator | None = None,
) -> Tensor:
    """Indices along `axis`, each chosen with a probability in proportion to exp(logits).

    `shape` is that of the result; without it, one index for each row of logits.

    >>> import everygrad as eg
    >>> eg.categorical(eg.log(eg.tensor([0.0, 1.0, 0.0])), (4,))
    tensor([1, 1, 1, 1])
    """
    weights, sizes = _log_weights("categorical", logits, shape, axis)
    times = _races((*sizes, weights.shape[-1]), weights, generator)
    return argmax(weights - log(times), axis=-1)


@spelled
def gumbel_softmax(
    logits: Tensor,
    tau: float = 1.0,
    hard: bool = False,
    axis: int = -1,
    generator: Generator | None = None,
    eps: float | None = None,
) -> Tensor:
    """A choice along `axis` that has derivatives: softmax of the logits and Gumbel noise, over tau.

    The smaller tau, the nearer to one_hot. With `hard` the values are one_hot's, and the
    derivatives those of the soft choice. PyTorch's `eps` has no effect, as there.

    >>> import everygrad as eg
    >>> eg.gumbel_softmax(eg.zeros((5, 3)), hard=True).sum(axis=-1)
    tensor([1., 1., 1., 1., 1.])
    """
    if not tau > 0:
        raise ArgumentError(f"gumbel_softmax: tau must be positive, got {tau}")
    if isinstance(logits, Tensor) and not logits.ndim and axis in (0, -1):  # one choice
        row: Tensor = gumbel_softmax(logits.reshape((1,)), tau, hard, 0, generator)
        return row.reshape(())
    weights, sizes = _log_weights("gumbel_softmax", logits, None, axis)
    times = _races((*sizes, weights.shape[-1]), weights, generator).moveaxis(-1, axis)
    noise = log(times).astype(logits.dtype)
    soft = softmax((logits - noise) / tau, axis)
    if not hard:
        return soft
    size = soft.shape[axis]
    chosen = argmax(soft, axis=axis, keepdims=True).moveaxis(axis, -1)
    places = arange(size, device=soft.device)
    one = (chosen == places).astype(soft.dtype).moveaxis(-1, axis)
    return one + (soft - soft.detach())


@spelled
def multinomial(
    probs: Tensor,
    num_samples: int,
    replacement: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """`num_samples` indices along the last axis, chosen with probabilities in proportion to
    `probs`; without `replacement` no index comes twice.

    As PyTorch's: the rows need not sum to 1, but none may consist of zeros or have elements that
    are negative, infinite or NaN. Where fewer choices than samples have a probability above 0, the
    others follow.
    """
    count = shapes.as_int(num_samples, "multinomial", "num_samples")
    if count < 1:
        raise ArgumentError(f"multinomial: num_samples must be 1 or more, got {count}")
    weights, batch = _log_weights("multinomial", probs, None, -1)
    if replacement:
        rows = log(_possible("multinomial", weights)).expand_dims(-2)
        return categorical(rows, (*batch, count), generator=generator)
    if count > weights.shape[-1]:
        raise ArgumentError(
            f"multinomial: {count} samples of {weights.shape[-1]} choices need replacement=True"
        )
    weights = _possible("multinomial", weights)
    times = _races(weights.shape, weights, generator)
    return argsort(times / weights, axis=-1)[..., :count]


def _possible(op: str, weights: Tensor) -> Tensor:
    """Weights, if each row allows a choice."""
    total = weights.sum(axis=-1, keepdims=True)
    ok = (weights >= 0).all(axis=-1, keepdims=True) & (total > 0) & (total < math.inf)
    what = f"{op}: each row of probs must be finite, not negative, and have a sum above 0"
    return ensure(weights, ok, what, ArgumentError)


def permutation(
    x: Any,
    axis: int = 0,
    device: str | None = None,
    generator: Generator | None = None,
) -> Tensor:
    """The numbers below x in random order; of a tensor, its slices along `axis`.

    >>> import everygrad as eg
    >>> sorted(eg.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    place: str
    if isinstance(x, Tensor):
        count = x.shape[shapes.axis_index(axis, x.ndim, "permutation")]
        place = x.device
    else:
        count, place = shapes.as_int(x, "permutation", "the size"), device or "cpu"
        if count < 0:
            raise ArgumentError(f"permutation: the size must not be negative, got {count}")
    high, low = draw((count,), 2, generator, place)
    order = argsort(low)  # a stable sort by one word after the other: by both of them
    order = taken(order, argsort(taken(high, order)))
    return taken(x, order, axis=axis) if isinstance(x, Tensor) else order

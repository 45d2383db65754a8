"""Starting values: each function gives its tensor new values, in place, and returns it.

Nothing is recorded. Without a generator the numbers come from the default one (`eg.manual_seed`).
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Any

import numpy as np

from everygrad.autograd.modes import no_grad
from everygrad.core.scopes import Setting
from everygrad.core.tensor import Tensor, data_owner, refuse_lost_write
from everygrad.core.torch_absent import missing
from everygrad.errors import ArgumentError, GradientError, ShapeError
from everygrad.ops.elementwise.basic import clamp, sign, where
from everygrad.ops.index.sort import argsort
from everygrad.ops.linalg.cholesky_qr import qr
from everygrad.ops.python.creation import asarray, eye, full_like
from everygrad.ops.python.inplace import assign
from everygrad.ops.random import generators
from everygrad.ops.random.generators import Generator
from everygrad.ops.special.erf import erfinv

_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), 1.0),
    "sigmoid": 1.0,
    "tanh": 5.0 / 3.0,
    "relu": math.sqrt(2.0),
    "selu": 0.75,
}


_TO_COME: ContextVar[bool] = ContextVar("everygrad.nn.init", default=False)


def values_to_come() -> Setting:
    """A block in which nothing is drawn: layers made inside get their values from a file, and take
    no memory before.

    >>> import everygrad as eg
    >>> before = eg.default_generator.get_state().tolist()
    >>> with eg.nn.init.values_to_come():
    ...     layer = eg.nn.Linear(3, 2)
    >>> before == eg.default_generator.get_state().tolist()
    True
    """
    return Setting(_TO_COME, True)


def are_to_come() -> bool:
    """Whether values will come from elsewhere, so that none need be made."""
    return _TO_COME.get()


def _fill(t: Tensor, new: Tensor, op: str) -> Tensor:
    if not t.is_leaf:
        raise GradientError(f"{op}: this tensor is the result of an op; fill a leaf, or detach()")
    owner = data_owner(t)
    if owner is not None:
        t.rebind(_fill(owner, new, op)._data, None)
        return t
    refuse_lost_write(t, op, "fill that one, and then write its part: x[i] = v")
    with no_grad():
        return assign(t, new, op)


def uniform_(
    t: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Uniform numbers in [a, b)."""
    if are_to_come():
        return t
    return _fill(t, generators.uniform(a, b, t.shape, t.dtype, t.device, generator), "uniform_")


def normal_(
    t: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Normal numbers."""
    if are_to_come():
        return t
    return _fill(t, generators.normal(mean, std, t.shape, t.dtype, t.device, generator), "normal_")


def constant_(t: Tensor, val: float) -> Tensor:
    """Every element `val`."""
    return _fill(t, full_like(t, val), "constant_")


def zeros_(t: Tensor) -> Tensor:
    """Every element 0."""
    return _fill(t, full_like(t, 0), "zeros_")


def ones_(t: Tensor) -> Tensor:
    """Every element 1."""
    return _fill(t, full_like(t, 1), "ones_")


def eye_(t: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere."""
    if t.ndim != 2:
        raise ShapeError(f"eye_: takes a matrix, got shape {t.shape}")
    rows, columns = t.shape
    return _fill(t, eye(rows, columns, dtype=t.dtype, device=t.device), "eye_")


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much a layer must spread its weights so that what follows keeps the variance.

    >>> calculate_gain("leaky_relu", 1.0)
    1.0
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2.0 / (1.0 + slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join((*_GAINS, "leaky_relu"))
        raise ArgumentError(f"calculate_gain: no gain for {nonlinearity!r}; there is {known}")
    return _GAINS[nonlinearity]


def fans(t: Tensor) -> tuple[int, int]:
    """How many inputs each output of this weight has, and how many outputs each input."""
    if t.ndim < 2:
        raise ShapeError(f"fans: a weight of shape {t.shape} has no fan; it needs 2 dimensions")
    taps = math.prod(t.shape[2:])
    return t.shape[1] * taps, t.shape[0] * taps


def xavier_uniform_(t: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform within gain * sqrt(6 / (fan in + fan out))."""
    bound = gain * math.sqrt(6.0 / max(1, sum(fans(t))))
    return uniform_(t, -bound, bound, generator)


def xavier_normal_(t: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with standard deviation gain * sqrt(2 / (fan in + fan out))."""
    return normal_(t, 0.0, gain * math.sqrt(2.0 / max(1, sum(fans(t)))), generator)


def _kaiming_std(t: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f'kaiming: mode must be "fan_in" or "fan_out", got {mode!r}')
    fan = fans(t)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(1, fan))


def kaiming_uniform_(
    t: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform within gain * sqrt(3 / fan); `a` is the slope of a leaky_relu below 0."""
    bound = math.sqrt(3.0) * _kaiming_std(t, a, mode, nonlinearity)
    return uniform_(t, -bound, bound, generator)


def kaiming_normal_(
    t: Tensor,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with standard deviation gain / sqrt(fan)."""
    return normal_(t, 0.0, _kaiming_std(t, a, mode, nonlinearity), generator)


def dirac_(t: Tensor, groups: int = 1) -> Tensor:
    """A convolution's weight that passes its channels on: 1 in the middle of each kernel that
    leads from a channel to itself.

    >>> import everygrad as eg
    >>> eg.nn.init.dirac_(eg.empty((1, 1, 3)))
    tensor([[[0., 1., 0.]]])
    """
    if t.ndim not in (3, 4, 5):
        raise ShapeError(f"dirac_: takes a weight of 3, 4 or 5 dimensions, got shape {t.shape}")
    if groups < 1 or t.shape[0] % groups:
        raise ArgumentError(f"dirac_: {t.shape[0]} channels are no multiple of groups={groups}")
    rows = t.shape[0] // groups
    values = np.zeros(t.shape, np.float64)
    middle = tuple(n // 2 for n in t.shape[2:])
    for g in range(groups):
        for d in range(min(rows, t.shape[1])):
            values[(g * rows + d, d, *middle)] = 1.0
    return _fill(t, asarray(values, dtype=t.dtype, device=t.device), "dirac_")


def orthogonal_(t: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """A matrix with orthonormal rows or columns, times `gain`; further axes count as columns.

    >>> import everygrad as eg
    >>> w = eg.nn.init.orthogonal_(eg.empty((3, 5)))
    >>> eg.allclose(w @ w.mT, eg.eye(3), atol=1e-5)
    True
    """
    if t.ndim < 2:
        raise ShapeError(f"orthogonal_: takes 2 dimensions or more, got shape {t.shape}")
    if not t.size:
        return t
    rows, columns = t.shape[0], math.prod(t.shape[1:])
    shape = (max(rows, columns), min(rows, columns))
    drawn = generators.randn(shape, dtype=t.dtype, device=t.device, generator=generator)
    with no_grad():
        q, r = qr(drawn)
        q = q * sign(r.diagonal())  # every orthogonal matrix is as likely as any other
        found = (q if rows >= columns else q.mT).reshape(t.shape) * gain
    return _fill(t, found, "orthogonal_")


def sparse_(
    t: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None
) -> Tensor:
    """Normal numbers, a share of each column of a matrix 0.

    >>> import everygrad as eg
    >>> int((eg.nn.init.sparse_(eg.empty((10, 2)), 0.5) == 0).sum().item())
    10
    """
    if t.ndim != 2:
        raise ShapeError(f"sparse_: takes a matrix, got shape {t.shape}")
    if not 0 <= sparsity <= 1:
        raise ArgumentError(f"sparse_: sparsity must be between 0 and 1, got {sparsity!r}")
    count = math.ceil(sparsity * t.shape[0])
    order = argsort(generators.rand(t.shape, device=t.device, generator=generator), axis=0)
    place = argsort(order, axis=0)
    drawn = generators.normal(0.0, std, t.shape, t.dtype, t.device, generator)
    return _fill(t, where(place < count, 0.0, drawn), "sparse_")


def trunc_normal_(
    t: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal numbers, none of them outside [a, b].

    >>> import everygrad as eg
    >>> bool((eg.nn.init.trunc_normal_(eg.empty((100,)), std=3.0).abs() <= 2).all())
    True
    """
    if not a < b:
        raise ArgumentError(f"trunc_normal_: a {a!r} must be below b {b!r}")
    if not std > 0:
        raise ArgumentError(f"trunc_normal_: std must be positive, got {std!r}")

    if are_to_come():
        return t

    def below(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    # uniform between the shares of the distribution at both ends, through its inverse
    low, high = 2 * below((a - mean) / std) - 1, 2 * below((b - mean) / std) - 1
    drawn = generators.uniform(low, high, t.shape, t.dtype, t.device, generator)
    with no_grad():
        found = clamp(erfinv(drawn) * (std * math.sqrt(2.0)) + mean, a, b)
    return _fill(t, found, "trunc_normal_")


def linear_defaults(weight: Tensor, bias: Any) -> None:
    """PyTorch's start for Linear and Conv2d: both uniform within 1 / sqrt(fan in)."""
    kaiming_uniform_(weight, a=math.sqrt(5.0))
    if bias is not None:
        fan_in, _ = fans(weight)
        bound = 1.0 / math.sqrt(fan_in) if fan_in else 0.0
        uniform_(bias, -bound, bound)


# PyTorch's older names
uniform, normal, constant, dirac = uniform_, normal_, constant_, dirac_
xavier_uniform, xavier_normal = xavier_uniform_, xavier_normal_
kaiming_uniform, kaiming_normal = kaiming_uniform_, kaiming_normal_
orthogonal, sparse = orthogonal_, sparse_

__getattr__ = missing("everygrad.nn.init", "torch.nn.init", lambda: globals())

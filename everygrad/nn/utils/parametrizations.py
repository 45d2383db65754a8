"""Parametrisations of weights: of a given size, of spectral norm 1, orthogonal."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad.autograd.modes import no_grad
from everygrad.core import shapes
from everygrad.core.nearest import answering as _answering
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, DtypeError, ShapeError
from everygrad.nn import functional as F
from everygrad.nn.module import Module
from everygrad.nn.utils.parametrize import register_parametrization
from everygrad.ops.elementwise.basic import abs as _abs, sign, sqrt
from everygrad.ops.linalg.cholesky_qr import householder_product, qr
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.linalg.matrix_functions import matrix_exp
from everygrad.ops.linalg.solve import solve
from everygrad.ops.python.creation import asarray, eye, zeros
from everygrad.ops.python.inplace import assign
from everygrad.ops.random.generators import randn
from everygrad.ops.shape.joining import concat

ORTHOGONAL_MAPS = ("matrix_exp", "cayley", "householder")


def norm_except(v: Tensor, axis: int) -> Tensor:
    """The Euclidean norm over all axes but one, kept as axes of 1; -1: over all, a number."""
    squares = v * v
    if axis == -1:
        return sqrt(squares.sum())
    others = tuple(k for k in range(v.ndim) if k != axis)
    return sqrt(squares.sum(axis=others, keepdims=True))


class WeightNorm(Module):
    """g v / |v|, the norm being that of each slice along an axis."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except(weight_v, self.axis))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The size and the direction of a weight."""
        return norm_except(weight, self.axis), weight

    def extra_repr(self) -> str:
        return f"axis={self.axis}"


def _tensor_of(fn: str, module: Module, name: str) -> Tensor:
    held = getattr(module, name, None)
    if not isinstance(held, Tensor):
        known = ", ".join(n for n, _ in module._own(Tensor)) or "none"
        raise ArgumentError(
            f"{fn}: {type(module).__name__} has no tensor {name!r}; there are: {known}"
        )
    return held


def norm_axis(fn: str, weight: Tensor, dim: int | None) -> int:
    """Which axis keeps norms of its own; None and -1 stand for none of them."""
    return -1 if dim in (None, -1) else shapes.axis_index(dim, weight.ndim, fn)


def weight_norm(module: Any, name: str = "weight", dim: int | None = 0) -> Any:
    """Train the size and the direction of a weight apart (Salimans and Kingma 2016).

    One size for each slice along `dim`, or one for all if it is None. The parameters become
    `parametrizations.<name>.original0`, the size, and `original1`.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.parametrizations.weight_norm(eg.nn.Linear(2, 3))
    >>> layer.parametrizations.weight.original0.shape
    (3, 1)
    """
    weight = _tensor_of("weight_norm", module, name)
    made = WeightNorm(norm_axis("weight_norm", weight, dim))
    return register_parametrization(module, name, made, unsafe=True)


class SpectralNorm(Module):
    """A weight over its largest singular value, which the power method follows in training."""

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if isinstance(n_power_iterations, bool) or n_power_iterations < 1:
            raise ArgumentError(
                f"spectral_norm: n_power_iterations must be positive, got {n_power_iterations!r}"
            )
        self.dim = shapes.axis_index(dim, weight.ndim, "spectral_norm")
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.ndim > 1:
            with no_grad():
                matrix = self._matrix(weight.detach())
                for key, size in zip(("_u", "_v"), matrix.shape, strict=True):
                    start = randn((size,), dtype=weight.dtype, device=weight.device)
                    self.register_buffer(key, F.normalize(start, axis=0, eps=eps))
            self._power_method(matrix, 15)

    def _matrix(self, weight: Tensor) -> Tensor:
        order = (self.dim, *(k for k in range(weight.ndim) if k != self.dim))
        return weight.permute_dims(order).reshape(weight.shape[self.dim], -1)

    @no_grad()
    def _power_method(self, matrix: Tensor, rounds: int) -> None:
        u, v = self._u, self._v
        for _ in range(rounds):
            u = F.normalize(matmul(matrix, v), axis=0, eps=self.eps)
            v = F.normalize(matmul(matrix.mT, u), axis=0, eps=self.eps)
        assign(self._u, u, "spectral_norm")
        assign(self._v, v, "spectral_norm")

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            out: Tensor = F.normalize(weight, axis=0, eps=self.eps)
            return out
        matrix = self._matrix(weight)
        if self.training:
            self._power_method(matrix.detach(), self.n_power_iterations)
        u, v = self._u.detach(), self._v.detach()
        sigma = (u * matmul(matrix, v)).sum()
        return weight / sigma

    def right_inverse(self, value: Tensor) -> Tensor:
        """The weight as it is: its size makes no difference."""
        return value


def spectral_norm(
    module: Any,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Any:
    """Divide a weight by its largest singular value (Miyato et al. 2018).

    The value is followed by `n_power_iterations` rounds of the power method whenever the weight is
    read in training. `dim` is the axis of outputs: 0, and 1 for transposed convolutions.

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.parametrizations.spectral_norm(eg.nn.Linear(4, 3))
    >>> abs(eg.linalg.matrix_norm(layer.weight, ord=2).item() - 1) < 0.1
    True
    """
    weight = _tensor_of("spectral_norm", module, name)
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    made = SpectralNorm(weight, n_power_iterations, dim, eps)
    return register_parametrization(module, name, made)


# --- orthogonal ----------------------------------------------------------------------------------


def _orthogonalised(x: Tensor) -> Tensor:
    """The Q of x = QR with a diagonal of R that is not negative."""
    q, r = qr(x)
    return q * sign(r.diagonal(0, -2, -1)).expand_dims(-2)


def _reflectors(q: Tensor) -> Tensor:
    """What makes Householder reflections of a tall matrix, with the signs on its diagonal."""
    h, tau = np.linalg.qr(q.detach().to("cpu").numpy(), mode="raw")
    found = np.array(np.swapaxes(h, -1, -2))
    diagonal = np.sign(np.diagonal(found, axis1=-2, axis2=-1))
    k = np.arange(diagonal.shape[-1])
    found[..., k, k] = np.where(tau == 0, -diagonal, diagonal)
    return asarray(found, dtype=q.dtype, device=q.device)


class Orthogonal(Module):
    """An orthogonal matrix of as many free numbers as there are."""

    base: Tensor | None

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        super().__init__()
        self.shape = weight.shape
        self.orthogonal_map = orthogonal_map
        self.use_trivialization = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, x: Tensor) -> Tensor:
        n, k = x.shape[-2:]
        tall = x.mT if n < k else x
        q = self._mapped(tall)
        if self.use_trivialization and self.base is not None:
            q = matmul(self.base, q)
        return q.mT if n < k else q

    def _mapped(self, x: Tensor) -> Tensor:
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            a = x.tril(-1)
            tau = 2.0 / (1.0 + (a * a).sum(axis=-2))
            signs = x.detach().diagonal(0, -2, -1).trunc()
            return householder_product(a, tau) * signs.expand_dims(-2)
        low = x.tril()
        if n != k:
            rest = zeros((*x.shape[:-2], n, n - k), x.dtype, x.device)
            low = concat([low, rest], axis=-1)
        skew = low - low.mT
        if self.orthogonal_map == "matrix_exp":
            q = matrix_exp(skew)
        else:
            one = eye(n, dtype=x.dtype, device=x.device)
            q = solve(one - 0.5 * skew, one + 0.5 * skew)
        return q[..., :k]

    @no_grad()
    def right_inverse(self, value: Tensor) -> Tensor:
        """What makes an orthogonal matrix; one that is not orthogonal is made so first."""
        if value.shape != self.shape:
            raise ShapeError(f"orthogonal: takes a value of shape {self.shape}, got {value.shape}")
        n, k = value.shape[-2:]
        q = value.mT if n < k else value
        if not self.use_trivialization:
            if self.orthogonal_map != "householder":
                raise ArgumentError(
                    f"orthogonal: {self.orthogonal_map} cannot be assigned to with "
                    f"use_trivialization=False"
                )
            found = _reflectors(q)
            return found.mT if n < k else found
        high, low = q.shape[-2:]
        if high == low:
            one = eye(low, dtype=q.dtype, device=q.device)
            off = _abs(matmul(q.mT, q) - one).max().item()
            epsilon = float(np.finfo(q.dtype.np).eps)
            base = q if off <= 10 * high * epsilon else _orthogonalised(q)
        else:
            more = randn((*q.shape[:-2], high, high - low), dtype=q.dtype, device=q.device)
            base = _orthogonalised(concat([q, more], axis=-1))
        if self.base is None:
            self.base = base.detach()
        else:
            assign(self.base, base, "orthogonal")
        # minus the identity: its diagonal holds the signs of the Householder map
        return -eye(n, k, dtype=value.dtype, device=value.device) + zeros(
            value.shape, value.dtype, value.device
        )

    def extra_repr(self) -> str:
        return f"orthogonal_map={self.orthogonal_map!r}"


def orthogonal(
    module: Any,
    name: str = "weight",
    orthogonal_map: str | None = None,
    *,
    use_trivialization: bool = True,
) -> Any:
    """Keep a matrix orthogonal, or a batch of them (the last two axes).

    `orthogonal_map` is "matrix_exp" or "cayley", functions of skew-symmetric matrices, or
    "householder", a product of reflections; by default the first for square matrices, the last for
    others. `use_trivialization` keeps the starting value in a buffer and trains the way from it
    (Lezcano-Casado 2019).

    >>> import everygrad as eg
    >>> layer = eg.nn.utils.parametrizations.orthogonal(eg.nn.Linear(4, 3))
    >>> eg.allclose(layer.weight @ layer.weight.mT, eg.eye(3), atol=1e-5)
    True
    """
    weight = _tensor_of("orthogonal", module, name)
    if weight.ndim < 2:
        raise ShapeError(f"orthogonal: takes matrices, got shape {weight.shape}")
    if not weight.dtype.is_float:
        raise DtypeError(f"orthogonal: takes real matrices, got {weight.dtype}")
    if orthogonal_map is None:
        square = weight.shape[-1] == weight.shape[-2]
        orthogonal_map = "matrix_exp" if square else "householder"
    if orthogonal_map not in ORTHOGONAL_MAPS:
        raise ArgumentError(
            f"orthogonal: orthogonal_map must be one of {', '.join(ORTHOGONAL_MAPS)}, "
            f"got {orthogonal_map!r}"
        )
    made = Orthogonal(weight, orthogonal_map, use_trivialization)
    if not use_trivialization and orthogonal_map != "householder":
        # the tensor itself is what the map is applied to
        object.__setattr__(made, "right_inverse", lambda value: value)
    return register_parametrization(module, name, made, unsafe=True)


__getattr__ = _answering(__name__)

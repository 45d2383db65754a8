"""Fourier transforms, distances between all pairs of rows, and rare special functions."""

from __future__ import annotations

from collections.abc import Sequence

from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import pulled
from everygrad.interop.torch.aten.registry import aten
from everygrad.ops.elementwise.basic import clamp
from everygrad.ops.loss.margins import cdist, pdist
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.signal.dft import as_complex
from everygrad.ops.signal.fft import fftn, ifftn, irfftn, rfftn

# PyTorch's numbers: what a transform of n elements is divided by is 1, the root of n, or n
_FORWARD = ("backward", "ortho", "forward")
_INVERSE = ("forward", "ortho", "backward")


@aten("_fft_c2c.default")
def fft_c2c(x: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    if not dim:
        return x
    if forward:
        out: Tensor = fftn(x, axes=tuple(dim), norm=_FORWARD[normalization])
        return out
    back: Tensor = ifftn(x, axes=tuple(dim), norm=_INVERSE[normalization])
    return back


@aten("_fft_r2c.default")
def fft_r2c(x: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    if not onesided:
        return fft_c2c(as_complex(x), dim, normalization, True)
    out: Tensor = rfftn(x, axes=tuple(dim), norm=_FORWARD[normalization])
    return out


@aten("_fft_c2r.default")
def fft_c2r(x: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    sizes = (*(x.shape[a] for a in dim[:-1]), last_dim_size)
    out: Tensor = irfftn(x, s=sizes, axes=tuple(dim), norm=_INVERSE[normalization])
    return out


# --- distances -----------------------------------------------------------------------------------


@aten("_cdist_forward.default")
def cdist_(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    out: Tensor = cdist(x, y, p)
    return out


@aten("_cdist_backward.default")
def cdist_backward(g: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """By x alone: PyTorch asks for the other by exchanging them."""
    (found,) = pulled(lambda x: cdist(x, y, p), g, x)
    return found


@aten("_euclidean_dist.default")
def euclidean_dist(x: Tensor, y: Tensor) -> Tensor:
    """By |x|^2 - 2 xy + |y|^2, which is a product of matrices, and less exact near 0."""
    squares = (x * x).sum(axis=-1, keepdims=True) + (y * y).sum(axis=-1).expand_dims(-2)
    return clamp(squares - 2 * (x @ y.mT), 0, None).sqrt()


@aten("_pdist_forward.default")
def pdist_(x: Tensor, p: float = 2.0) -> Tensor:
    out: Tensor = pdist(x, p)
    return out


@aten("_pdist_backward.default")
def pdist_backward(g: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    (found,) = pulled(lambda x: pdist(x, p), g, x)
    return found


# --- special functions that few models use -------------------------------------------------------

for _name, _function in {
    "igamma": "gammainc",
    "igammac": "gammaincc",
    "special_modified_bessel_i0": "i0",
    "special_modified_bessel_i1": "i1",
}.items():
    aten(f"{_name}.default", promotes=True)(REGISTRY[_function].function)

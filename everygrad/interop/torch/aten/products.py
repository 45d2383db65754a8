"""Products of matrices and vectors, and the sums around them."""

from __future__ import annotations

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.torch.aten.derivatives import wide
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.nn.functions.products import bilinear, linear
from everygrad.ops.elementwise.basic import conj, where
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.python.creation import arange
from everygrad.ops.shape.joining import stack


@aten("mm.default", "bmm.default", "mv.default", "dot.default", "matmul.default")
def product(x: Tensor, y: Tensor) -> Tensor:
    return matmul(x, y)


@aten("mm.dtype", "bmm.dtype")
def product_in(x: Tensor, y: Tensor, out_dtype: dtypes.DType) -> Tensor:
    return matmul(x.astype(out_dtype), y.astype(out_dtype))


@aten("vdot.default")
def vdot(x: Tensor, y: Tensor) -> Tensor:
    return matmul(conj(x), y)


def _factor(x: Tensor, factor: complex) -> complex:
    """A number that scales x; in PyTorch it loses its fraction where x has none."""
    return factor if x.dtype.is_differentiable else int(factor.real)


def _sum(x: Tensor, products: Tensor, beta: complex, alpha: complex) -> Tensor:
    """beta * x + alpha * products. With beta 0, NaN in x counts for nothing, as in BLAS."""
    beta, alpha = _factor(products, beta), _factor(products, alpha)
    found = products if alpha == 1 else products * alpha
    if beta == 0:
        return found
    return (x if beta == 1 else x * beta) + found


@aten("addmm.default", "baddbmm.default", "addmv.default")
def add_product(
    x: Tensor, a: Tensor, b: Tensor, *, beta: complex = 1, alpha: complex = 1
) -> Tensor:
    return _sum(x, matmul(a, b), beta, alpha)


@aten("addmm.dtype", "baddbmm.dtype")
def add_product_in(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    out_dtype: dtypes.DType,
    *,
    beta: complex = 1,
    alpha: complex = 1,
) -> Tensor:
    return _sum(x.astype(out_dtype), product_in(a, b, out_dtype), beta, alpha)


@aten("addbmm.default")
def add_sum_of_products(
    x: Tensor, a: Tensor, b: Tensor, *, beta: complex = 1, alpha: complex = 1
) -> Tensor:
    return _sum(x, matmul(a, b).sum(axis=0, dtype=a.dtype), beta, alpha)


@aten("addr.default", promotes=True)
def add_outer(x: Tensor, a: Tensor, b: Tensor, *, beta: complex = 1, alpha: complex = 1) -> Tensor:
    return _sum(x, a.expand_dims(1) * b, beta, alpha)


@aten("linear.default")
def linear_(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = linear(x, weight, bias)
    return out


@aten("bilinear.default")
def bilinear_(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out: Tensor = bilinear(x, y, weight, bias)
    return out


@aten("_trilinear.default")
def trilinear(
    x: Tensor,
    y: Tensor,
    z: Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Tensor:
    """The product of three tensors with axes inserted, summed over some of them."""
    for at in expand1:
        x = x.expand_dims(at)
    for at in expand2:
        y = y.expand_dims(at)
    for at in expand3:
        z = z.expand_dims(at)
    found = x * y * z
    return found.sum(axis=tuple(sumdim)) if sumdim else found


# --- products of groups --------------------------------------------------------------------------


def _members(ends: Tensor, count: int, group: int) -> Tensor:
    """True at those of `count` places that belong to the group: between two ends."""
    places = arange(count, dtype=dtypes.int64, device=ends.device)
    inside = places < ends[group]
    return inside & (places >= ends[group - 1]) if group else inside


@aten("_grouped_mm.default")
def grouped_mm(
    x: Tensor,
    y: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: dtypes.DType | None = None,
) -> Tensor:
    """A product for each group; `offs` are the ends of the groups along the axis they share.

    Sizes must not depend on values, so each group is a product of everything, with zeros for what
    belongs to others."""
    if bias is not None:
        raise ArgumentError("_grouped_mm: a bias is not supported; add it to the result")
    out_dtype = out_dtype or x.dtype
    if offs is None:
        return matmul(x, y).astype(out_dtype)
    groups = offs.shape[0]
    ends = offs.astype(dtypes.int64)
    if x.ndim == 2 and y.ndim == 3:  # rows of x are in groups
        mine = [_members(ends, x.shape[0], k).expand_dims(1) for k in range(groups)]
        parts = [matmul(where(mine[k], x, 0.0), y[k]) for k in range(groups)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total.astype(out_dtype)
    if x.ndim == 3 and y.ndim == 2:  # columns of y are in groups
        return grouped_mm(y.mT, x.mT, offs, None, out_dtype).mT
    if x.ndim == 2 and y.ndim == 2:  # what is summed over is in groups
        mine = [_members(ends, x.shape[1], k) for k in range(groups)]
        return stack([matmul(where(m, x, 0.0), y) for m in mine], axis=0).astype(out_dtype)
    return matmul(x, y).astype(out_dtype)


@aten("transformers::grouped_mm_fallback.default")
def grouped_mm_fallback(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return grouped_mm(x, weight, offs)


# --- weight norms --------------------------------------------------------------------------------


def _other_axes(v: Tensor, dim: int) -> tuple[int, ...]:
    return tuple(a for a in range(v.ndim) if a != dim % v.ndim)


@aten("_weight_norm_interface.default", wants_result=True)
def weight_norm(
    v: Tensor, g: Tensor, dim: int = 0, *, result: list[Result]
) -> tuple[Tensor, Tensor]:
    """The direction v with the length g along every axis but `dim`, and v's lengths."""
    v, g = wide(v), wide(g)
    norms = (v * v).sum(axis=_other_axes(v, dim), keepdims=True).sqrt()
    return v * (g / norms), norms.reshape(result[1].shape)


@aten("_weight_norm_interface_backward.default")
def weight_norm_backward(
    grad_w: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    grad_w, v, g = wide(grad_w), wide(v), wide(g)
    lengths = wide(norms).reshape(g.shape)
    along = (grad_w * v).sum(axis=_other_axes(v, dim), keepdims=True)
    grad_g = along / lengths
    return (g / lengths) * (grad_w - v * (grad_g / lengths)), grad_g

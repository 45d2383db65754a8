"""Reductions and scans along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import everygrad as eg
from everygrad import dtypes
from everygrad.dtypes import DType
from everygrad.interop.torch.aten.axes import along, reduced
from everygrad.interop.torch.aten.registry import Result, Tensor, aten

Dims = Sequence[int] | int | None


def _in(x: Tensor, dtype: DType | None) -> Tensor:
    return x if dtype is None else x.astype(dtype)


@aten("sum.default", "sum.dim_IntList", wants_result=True)
def sum_(
    x: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    result: Result,
) -> Tensor:
    return eg.sum(x.astype(result.dtype), axis=reduced(x, dim), keepdims=keepdim)


@aten("nansum.default", wants_result=True)
def nansum(
    x: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    result: Result,
) -> Tensor:
    x = x.astype(result.dtype)
    kept = eg.where(eg.isnan(x), 0.0, x) if x.dtype.is_float else x
    return eg.sum(kept, axis=reduced(x, dim), keepdims=keepdim)


@aten("mean.default", "mean.dim")
def mean(
    x: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    return eg.mean(_in(x, dtype), axis=reduced(x, dim), keepdims=keepdim)


@aten("prod.default", wants_result=True)
def prod(x: Tensor, *, dtype: DType | None = None, result: Result) -> Tensor:
    return eg.prod(x.astype(result.dtype))


@aten("prod.dim_int", wants_result=True)
def prod_dim(
    x: Tensor, dim: int, keepdim: bool = False, *, dtype: DType | None = None, result: Result
) -> Tensor:
    return eg.prod(x.astype(result.dtype), axis=reduced(x, dim), keepdims=keepdim)


@aten("amax.default")
def amax(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return eg.amax(x, axis=reduced(x, dim), keepdims=keepdim)


@aten("amin.default")
def amin(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return eg.amin(x, axis=reduced(x, dim), keepdims=keepdim)


@aten("max.default")
def max_all(x: Tensor) -> Tensor:
    return eg.amax(x)


@aten("min.default")
def min_all(x: Tensor) -> Tensor:
    return eg.amin(x)


@aten("aminmax.default")
def aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def _picked(which: Callable[..., Tensor]) -> Callable[..., Any]:
    """The element that `which` finds along an axis, and where: it alone gets the gradient."""

    def pick(x: Tensor, dim: int, keepdim: bool = False) -> list[Tensor]:
        at = which(x.detach(), axis=dim, keepdims=True)
        values = eg.gather(x, at, axis=dim)
        return [values, at] if keepdim else [v.squeeze(dim) for v in (values, at)]

    return lambda x, dim, keepdim=False: along(pick, x, dim, keepdim)


def _number(x: Tensor) -> Tensor:
    return x.astype(dtypes.uint8) if x.dtype is dtypes.bool_ else x


def _argmax(x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    return eg.argmax(_number(x), axis=axis, keepdims=keepdims)


def _argmin(x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    return eg.argmin(_number(x), axis=axis, keepdims=keepdims)


aten("max.dim")(_picked(_argmax))
aten("min.dim")(_picked(_argmin))


def _place(which: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def find(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is None:
            at = which(x.reshape(-1), 0, False)
            return at.reshape((1,) * x.ndim) if keepdim else at
        return along(which, x, dim, keepdim)

    return find


aten("argmax.default")(_place(_argmax))
aten("argmin.default")(_place(_argmin))


@aten("any.default", "any.dim", "any.dims")
def any_(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return eg.any(x, axis=reduced(x, dim), keepdims=keepdim)


@aten("all.default", "all.dim", "all.dims")
def all_(x: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return eg.all(x, axis=reduced(x, dim), keepdims=keepdim)


@aten("count_nonzero.default", "count_nonzero.dim_IntList")
def count_nonzero(x: Tensor, dim: Dims = None) -> Tensor:
    return eg.count_nonzero(x, axis=reduced(x, dim))


# --- variances -----------------------------------------------------------------------------------


def _spread(
    function: Callable[..., Any],
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """A variance or the like in its three overloads: of all elements, by `unbiased`, by
    `correction`."""

    def corrected(
        x: Tensor, dim: Dims = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        share = 1 if correction is None else correction
        return function(x, axis=reduced(x, dim), correction=share, keepdims=keepdim)

    def along_dims(x: Tensor, dim: Dims, unbiased: bool = True, keepdim: bool = False) -> Any:
        return corrected(x, dim, correction=int(unbiased), keepdim=keepdim)

    def of_all(x: Tensor, unbiased: bool = True) -> Any:
        return corrected(x, correction=int(unbiased))

    return of_all, along_dims, corrected


for _name in ("var", "std", "var_mean", "std_mean"):
    for _overload, _function in zip(
        ("default", "dim", "correction"), _spread(getattr(eg, _name)), strict=True
    ):
        aten(f"{_name}.{_overload}")(_function)


# --- norms and sums in other measures ------------------------------------------------------------


@aten("logsumexp.default", promotes=True)
def logsumexp(x: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    return eg.logsumexp(x, axis=reduced(x, dim), keepdims=keepdim)


@aten("linalg_vector_norm.default")
def vector_norm(
    x: Tensor,
    ord: Any = 2,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    return eg.norm(_in(x, dtype), ord, axis=reduced(x, dim), keepdims=keepdim)


@aten(
    *("norm.Scalar", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype"),
)
def norm(
    x: Tensor, p: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


@aten("dist.default")
def dist(x: Tensor, y: Tensor, p: Any = 2) -> Tensor:
    return eg.norm(x - y, p)


# --- the middle, the k-th, the commonest ---------------------------------------------------------


def _pair(function: Callable[..., Any]) -> Callable[..., Any]:
    def pick(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
        return along(lambda v, d: tuple(function(v, d, keepdim)), x, dim)

    return pick


aten("median.dim")(_pair(eg.median))
aten("mode.default")(_pair(eg.mode))


@aten("median.default")
def median(x: Tensor) -> Tensor:
    return eg.median(x)


@aten("nanmedian.default")
def nanmedian(x: Tensor) -> Tensor:
    return eg.nanmedian(x)


@aten("kthvalue.default")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return along(lambda v, d: tuple(eg.kthvalue(v, k, axis=d, keepdims=keepdim)), x, dim)


# --- scans ---------------------------------------------------------------------------------------


@aten("cumsum.default", wants_result=True)
def cumsum(x: Tensor, dim: int, *, dtype: DType | None = None, result: Result) -> Tensor:
    return along(eg.cumsum, x.astype(result.dtype), dim)


@aten("cumprod.default", wants_result=True)
def cumprod(x: Tensor, dim: int, *, dtype: DType | None = None, result: Result) -> Tensor:
    return along(eg.cumprod, x.astype(result.dtype), dim)


@aten("logcumsumexp.default")
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return along(eg.logcumsumexp, x, dim)


@aten("cummax.default")
def cummax(x: Tensor, dim: int) -> Any:
    return along(lambda v, d: tuple(eg.cummax(v, d)), x, dim)


@aten("cummin.default")
def cummin(x: Tensor, dim: int) -> Any:
    return along(lambda v, d: tuple(eg.cummin(v, d)), x, dim)


# --- counts --------------------------------------------------------------------------------------


@aten("histc.default")
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if min == max:  # the range is that of the values: in tensors, for a tracer knows no values
        low, high = eg.amin(x), eg.amax(x)
        same = low == high
        low, high = eg.where(same, low - 1, low), eg.where(same, high + 1, high)
    else:
        low, high = (eg.full((), float(v), x.dtype, x.device) for v in (min, max))
    place = eg.floor((x - low) / (high - low) * bins)
    place = eg.where(x == high, bins - 1.0, place)  # the last bin holds its upper end
    inside = (x >= low) & (x <= high)
    at = eg.where(inside, eg.clamp(place, 0, bins - 1), 0.0).astype(dtypes.int64)
    counts = eg.zeros((bins,), x.dtype, x.device)
    return eg.index_add(counts, at.reshape(-1), inside.astype(x.dtype).reshape(-1))


@aten("trace.default")
def trace(x: Tensor) -> Tensor:
    return eg.diagonal(x).sum()


@aten("renorm.default")
def renorm(x: Tensor, p: Any, dim: int, maxnorm: Any) -> Tensor:
    return eg.renorm(x, p, dim, maxnorm)


@aten("diff.default")
def diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    parts = [p for p in (prepend, x, append) if p is not None]
    return eg.diff(eg.concat(parts, axis=dim), n=n, axis=dim)

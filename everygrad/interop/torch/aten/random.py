"""Random numbers, all by this library's generator: the distributions are PyTorch's, not its bits.

What is drawn from nothing (`rand`, `randn`, `randint`, `randperm`) stands with what is made from
nothing, in `creation`."""

from __future__ import annotations

import math
from typing import Any

from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.ops.elementwise.basic import ceil, where
from everygrad.ops.elementwise.math import log1p
from everygrad.ops.random import continuous, discrete, generators


def _number(dtype: dtypes.DType) -> dtypes.DType:
    return dtype if dtype.kind == "float" else dtypes.float32


@aten("bernoulli.default")
def bernoulli(x: Tensor, *, generator: None = None) -> Tensor:
    return generators.bernoulli(x).astype(x.dtype)


@aten("bernoulli.p", "bernoulli.Tensor")
def bernoulli_p(x: Tensor, p: Any = 0.5, *, generator: None = None) -> Tensor:
    return generators.bernoulli(p, x.shape, x.device).astype(x.dtype)


@aten("uniform.default")
def uniform(x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: None = None) -> Tensor:
    return generators.uniform(low, high, x.shape, x.dtype, x.device)


@aten("normal_functional.default")
def normal_like(
    x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: None = None
) -> Tensor:
    return generators.normal(mean, std, x.shape, x.dtype, x.device)


@aten("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", wants_result=True)
def normal(mean: Any, std: Any = 1.0, *, generator: None = None, result: Result) -> Tensor:
    return generators.normal(mean, std, result.shape, result.dtype)


@aten("normal.float_float", wants_result=True, wants_device=True)
def normal_sized(
    mean: float, std: float, *_: Any, result: Result, device: str, **__: Any
) -> Tensor:
    return generators.normal(mean, std, result.shape, result.dtype, device)


@aten("exponential.default")
def exponential(x: Tensor, lambd: float = 1.0, *, generator: None = None) -> Tensor:
    return continuous.exponential(lambd, x.shape, x.dtype, x.device)


@aten("cauchy.default")
def cauchy(x: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: None = None) -> Tensor:
    drawn = generators.rand(x.shape, _number(x.dtype), x.device)
    return (drawn - 0.5).__mul__(math.pi).tan() * sigma + median


@aten("log_normal.default")
def log_normal(x: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: None = None) -> Tensor:
    return generators.normal(mean, std, x.shape, x.dtype, x.device).exp()


@aten("geometric.default")
def geometric(x: Tensor, p: float, *, generator: None = None) -> Tensor:
    """How many trials the first success takes: 1 or more."""
    drawn = generators.rand(x.shape, _number(x.dtype), x.device)
    found = ceil(log1p(-drawn) / math.log1p(-p))
    return where(found < 1, 1.0, found).astype(x.dtype)


@aten("poisson.default")
def poisson(x: Tensor, generator: None = None) -> Tensor:
    return discrete.poisson(x, dtype=x.dtype)


@aten("multinomial.default")
def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *, generator: None = None
) -> Tensor:
    return discrete.multinomial(x, num_samples, replacement)


# --- dropout -------------------------------------------------------------------------------------


@aten("native_dropout.default")
def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The result, and which elements were kept: the backward reads the same mask."""
    if not train or p == 0:
        kept = x == x
        return x, kept | ~kept
    kept = generators.bernoulli(1 - p, x.shape, x.device)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return where(kept, x * scale, 0.0), kept


@aten("native_dropout_backward.default")
def native_dropout_backward(g: Tensor, mask: Tensor, scale: float) -> Tensor:
    found: Tensor = where(mask, g * scale, 0.0)
    return found


@aten("dropout.default")
def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    return native_dropout(x, p, train)[0]

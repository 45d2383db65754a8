"""What a graph asserts about itself: sizes and dtypes, which were settled when it was made."""

from __future__ import annotations

from typing import Any

import everygrad as eg
from everygrad.errors import ArgumentError
from everygrad.interop.torch.aten.registry import Tensor, aten


@aten(
    *("_assert_tensor_metadata.default", "_assert_scalar.default", "sym_constrain_range.default"),
    *("sym_constrain_range_for_size.default", "_assert_async.default", "_assert_async.msg"),
    *("_functional_assert_scalar.default", "_functional_assert_async.msg"),
    *("_functional_sym_constrain_range.default", "_print.default"),
)
def settled(*args: Any, **_: Any) -> Any:
    # a functional assertion gives its last argument back: the token that orders effects
    return args[-1] if args and isinstance(args[-1], Tensor) else None


@aten("is_same_size.default")
def is_same_size(x: Tensor, y: Tensor) -> bool:
    return x.shape == y.shape


@aten("torch::sym_not")
def sym_not(x: Any) -> bool:
    return not x


@aten("torch::sym_max")
def sym_max(x: Any, y: Any) -> Any:
    return max(x, y)


@aten("torch::sym_min")
def sym_min(x: Any, y: Any) -> Any:
    return min(x, y)


@aten("torch::sym_float")
def sym_float(x: Any) -> float:
    return float(x)


@aten("torch::sym_int")
def sym_int(x: Any) -> int:
    return int(x)


@aten("torch::sym_ite")
def sym_ite(condition: Any, x: Any, y: Any) -> Any:
    return x if condition else y


@aten("torch::sym_sum")
def sym_sum(values: Any) -> Any:
    return sum(values)


@aten("_make_dep_token.default")
def dep_token(**_: Any) -> Tensor:
    return eg.zeros(())


@aten("torch::_check")
def check(condition: Any, message: Any = None) -> None:
    if not condition:
        raise ArgumentError(f"torch._check: a condition of the graph does not hold: {message}")

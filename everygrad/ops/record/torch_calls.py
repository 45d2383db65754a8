"""Calls that PyTorch means otherwise than the Array API does, and can be told from its calls.

`x.max(axis=1)` is a tensor, `x.max(1)` and `x.max(dim=1)` are PyTorch's pair of values and indices;
`x.std(axis=0)` divides by n, `x.std(dim=0)` by n - 1. A call with `dim` is PyTorch's in all that it
means, so that a program that is ported computes what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.record.spec import REGISTRY


class ValuesAndIndices(NamedTuple):
    """Elements of a tensor, and where along the axis they stand."""

    values: Tensor
    indices: Tensor


def _call(op: str, *args: Any, **kwargs: Any) -> Any:
    return REGISTRY[op].function(*args, **kwargs)


def _settled(
    op: str, given: tuple[Any, ...], names: Mapping[str, Any], *order: str, **held: Any
) -> dict[str, Any]:
    """PyTorch's arguments by name: those by position have the names of `order`."""
    if len(given) > len(order):
        raise TypeError(f"{op}() takes at most {len(order)} arguments beside its tensor")
    made = dict(zip(order, given, strict=False))
    for name, value in names.items():
        if name not in order:
            raise TypeError(f"{op}() got an unexpected keyword argument {name!r}")
        if name in made:
            raise TypeError(f"{op}() got multiple values for argument {name!r}")
        made[name] = value
    if held["axis"] is not None:
        raise ArgumentError(
            f"{op}: give axis= for a tensor of values, or dim= for values and indices, not both"
        )
    return made


def _paired(x: Tensor, indices: Tensor, at: int, keepdim: bool) -> ValuesAndIndices:
    """The elements that `indices`, which keeps its axis, names: each takes its whole gradient."""
    values = _call("gather", x, indices, at)
    if keepdim:
        return ValuesAndIndices(values, indices)
    return ValuesAndIndices(values.squeeze(at), indices.squeeze(at))


def _with_axis(x: Tensor) -> Tensor:
    return x if x.ndim else x.reshape(1)


def extreme(
    op: str, x: Tensor, given: tuple[Any, ...], axis: Any, keepdims: bool, names: Mapping[str, Any]
) -> Any:
    """PyTorch's max and min: of two tensors, or along `dim` with the indices."""
    if given and isinstance(given[0], Tensor):
        names, given = {**names, "other": given[0]}, given[1:]
    if "other" in names:
        if given or len(names) > 1:
            raise ArgumentError(f"{op}: of two tensors there is one result; leave out the axis")
        return _call(f"{op}imum", x, names["other"])
    made = _settled(op, given, names, "dim", "keepdim", axis=axis)
    return choice(op, x, made.get("dim"), made.get("keepdim", keepdims))


def choice(op: str, x: Tensor, dim: Any, keepdim: bool) -> Any:
    """The extreme elements along `dim`, and their first indices; without one a single tensor."""
    if dim is None or isinstance(dim, tuple | list):
        return _call(op, x, axis=dim if dim is None else tuple(dim), keepdims=keepdim)
    row = _with_axis(x)
    at = shapes.axis_index(dim, row.ndim, op)
    indices = _call(f"arg{op}", row, axis=at, keepdims=True)
    return _paired(row, indices, at, bool(keepdim) and x.ndim > 0)


def middle(
    op: str, x: Tensor, given: tuple[Any, ...], axis: Any, keepdims: bool, names: Mapping[str, Any]
) -> Any:
    """PyTorch's median and nanmedian along `dim`, with the first index where each stands."""
    made = _settled(op, given, names, "dim", "keepdim", axis=axis)
    dim, keepdim = made.get("dim"), made.get("keepdim", keepdims)
    if dim is None or isinstance(dim, tuple | list):
        return _call(op, x, axis=dim if dim is None else tuple(dim), keepdims=keepdim)
    row = _with_axis(x)
    at = shapes.axis_index(dim, row.ndim, op)
    value = _call(op, row.detach(), axis=at, keepdims=True)
    hit = row == value
    if row.dtype.is_float:
        hit = hit | (_call("isnan", row) & _call("isnan", value))
    indices = _call("argmax", hit.astype(dtypes.int32), axis=at, keepdims=True)
    return _paired(row, indices, at, bool(keepdim) and x.ndim > 0)


def in_order(
    x: Tensor,
    given: tuple[Any, ...],
    axis: int,
    descending: bool,
    stable: bool,
    names: Mapping[str, Any],
) -> ValuesAndIndices:
    """PyTorch's sort: the elements in order, and where each stood."""
    held = None if axis == -1 else axis
    made = _settled("sort", given, names, "dim", "descending", "stable", axis=held)
    descending = made.get("descending", descending)
    at = made.get("dim", -1)
    indices = _call("argsort", x, axis=at, descending=descending, stable=stable)
    return ValuesAndIndices(_call("gather", x, indices, at), indices)

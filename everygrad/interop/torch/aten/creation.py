"""Tensors from nothing: filled, counted, random. PyTorch's graph says their shapes and dtypes."""

from __future__ import annotations

from typing import Any

import everygrad as eg
from everygrad import dtypes
from everygrad.interop.torch.aten.registry import Result, Tensor, aten


def fitting(value: Any, dtype: dtypes.DType) -> Any:
    """A number as the dtype holds it: 2.7 in an integer's place is 2, as in PyTorch."""
    if dtype.kind == "bool":
        return bool(value)
    return int(value) if dtype.is_integer and not isinstance(value, complex) else value


@aten(
    *("full.default", "new_full.default", "full_like.default", "scalar_tensor.default"),
    wants_result=True,
    wants_device=True,
)
def full(*args: Any, result: Result, device: str, **_: Any) -> Tensor:
    return _filled(result, args[-1], device)


def _filled(result: Result, value: Any, device: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.astype(result.dtype).broadcast_to(result.shape)
    return eg.full(result.shape, fitting(value, result.dtype), result.dtype, device)


# Memory without values is zeros here: what nobody may rely on is at least the same each time.
@aten(
    *("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format"),
    *("empty_like.default", "empty_strided.default", "empty_permuted.default"),
    *("new_empty.default", "new_empty_strided.default", "prims::empty_strided.default"),
    wants_result=True,
    wants_device=True,
)
def zeros(*_: Any, result: Result, device: str, **__: Any) -> Tensor:
    return eg.zeros(result.shape, result.dtype, device)


@aten(
    *("ones.default", "ones_like.default", "new_ones.default"),
    wants_result=True,
    wants_device=True,
)
def ones(*_: Any, result: Result, device: str, **__: Any) -> Tensor:
    return eg.ones(result.shape, result.dtype, device)


@aten(
    *("arange.default", "arange.start", "arange.start_step"),
    wants_result=True,
    wants_device=True,
)
def arange(*args: Any, result: Result, device: str, **_: Any) -> Tensor:
    start, step = (0 if len(args) == 1 else args[0]), (args[2] if len(args) > 2 else 1)
    return _counted(start, step, result, device)


def _counted(start: Any, step: Any, result: Result, device: str) -> Tensor:
    """start + step * (0, 1, 2, ...), exactly where both are integers."""
    (count,) = result.shape
    if isinstance(start, int) and isinstance(step, int):
        return eg.arange(start, start + step * count, step, dtype=dtypes.int64, device=device)
    wide = dtypes.float64 if device == "cpu" else dtypes.float32
    return eg.arange(count, dtype=wide, device=device) * step + start


@aten("prims::iota.default", wants_result=True, wants_device=True)
def iota(_: int, *, start: int, step: int, result: Result, device: str, **__: Any) -> Tensor:
    return _counted(start, step, result, device)


@aten("linspace.default", wants_result=True, wants_device=True)
def linspace(start: Any, end: Any, _: int, *, result: Result, device: str, **__: Any) -> Tensor:
    return _spaced(start, end, result, device)


def _spaced(start: Any, end: Any, result: Result, device: str) -> Tensor:
    (count,) = result.shape
    floats = result.dtype if result.dtype.is_float else dtypes.float32
    wide = dtypes.float64 if device == "cpu" and not result.dtype.is_integer else floats
    step = (end - start) / max(count - 1, 1)
    places = eg.arange(count, dtype=wide, device=device)
    # from the nearer end: both ends come out exactly
    return eg.where(places < count / 2, start + places * step, end - (count - 1 - places) * step)


@aten("logspace.default", wants_result=True, wants_device=True)
def logspace(
    start: Any, end: Any, _: int, base: float = 10.0, *, result: Result, device: str, **__: Any
) -> Tensor:
    return eg.pow(base, _spaced(start, end, result, device))


@aten("eye.default", "eye.m", wants_result=True, wants_device=True)
def eye(*_: Any, result: Result, device: str, **__: Any) -> Tensor:
    rows, columns = result.shape
    return eg.eye(rows, columns, dtype=result.dtype, device=device)


@aten("tril_indices.default", wants_device=True)
def tril_indices(row: int, col: int, offset: int = 0, *, device: str, **_: Any) -> Tensor:
    return eg.tril_indices(row, col, offset, device=device)


@aten("triu_indices.default", wants_device=True)
def triu_indices(row: int, col: int, offset: int = 0, *, device: str, **_: Any) -> Tensor:
    return eg.triu_indices(row, col, offset, device=device)


# --- random numbers, by this library's generator -------------------------------------------------


@aten("rand.default", "rand_like.default", wants_result=True, wants_device=True)
def rand(*_: Any, result: Result, device: str, **__: Any) -> Tensor:
    return eg.rand(result.shape, dtype=result.dtype, device=device)


@aten("randn.default", "randn_like.default", wants_result=True, wants_device=True)
def randn(*_: Any, result: Result, device: str, **__: Any) -> Tensor:
    return eg.randn(result.shape, dtype=result.dtype, device=device)


@aten(
    *("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype"),
    wants_result=True,
    wants_device=True,
)
def randint(*args: Any, result: Result, device: str, **_: Any) -> Tensor:
    numbers = [a for a in args if isinstance(a, int)]  # not the shape, not the tensor to be like
    low, high = numbers if len(numbers) == 2 else (0, *numbers)
    return eg.randint(low, high, result.shape, dtypes.int64, device)


@aten("randperm.default", wants_device=True)
def randperm(n: int, *, device: str, **_: Any) -> Tensor:
    return eg.permutation(n, device=device)

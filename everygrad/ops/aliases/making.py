"""Tensors made in PyTorch's and NumPy's spellings: from_numpy, new_zeros, randperm and others."""

from __future__ import annotations

from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.ops.python import creation
from everygrad.ops.random import discrete, generators
from everygrad.ops.record.spec import REGISTRY


def as_tensor(data: Any, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor on the memory of an array where it can be shared, else a copy: `asarray`."""
    return creation.asarray(data, dtype=dtype, device=device)


def Variable(  # noqa: N802  # PyTorch's name
    data: Tensor, requires_grad: bool = False, volatile: bool = False
) -> Tensor:
    """PyTorch's oldest name of a tensor that asks for gradients: the value of `data`."""
    return data.detach().requires_grad_() if requires_grad else data


def from_numpy(ndarray: Any) -> Tensor:
    """A tensor on the memory of a NumPy array, which must not be written to afterwards."""
    if not isinstance(ndarray, np.ndarray):
        raise ArgumentError(f"from_numpy: takes a NumPy array, got {type(ndarray).__name__}")
    return creation.asarray(ndarray)


def frombuffer(
    buffer: Any,
    *,
    dtype: Any,
    count: int = -1,
    offset: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """A vector on the memory of an object with Python's buffer protocol."""
    values = np.frombuffer(buffer, dtypes.as_dtype(dtype).np, count, offset)
    out = creation.asarray(values)
    return out.requires_grad_() if requires_grad else out


def scalar_tensor(
    s: Any, *, dtype: Any = None, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A 0-d tensor."""
    return creation.tensor(s, dtype or dtypes.DEFAULT_FLOAT, device, requires_grad)


def _legacy(name: str, dtype: dtypes.DType) -> Any:
    def make(*data: Any) -> Tensor:
        if len(data) > 1 or all(isinstance(n, int) and not isinstance(n, bool) for n in data):
            return creation.empty(shapes.as_shape(data or (0,), name), dtype)
        return creation.tensor(data[0], dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Data as {dtype}: `tensor(data, dtype=eg.{dtype})`; of numbers, a shape."
    return make


FloatTensor = _legacy("FloatTensor", dtypes.float32)
DoubleTensor = _legacy("DoubleTensor", dtypes.float64)
HalfTensor = _legacy("HalfTensor", dtypes.float16)
BoolTensor = _legacy("BoolTensor", dtypes.bool_)
LongTensor = _legacy("LongTensor", dtypes.int64)
IntTensor = _legacy("IntTensor", dtypes.int32)
ShortTensor = _legacy("ShortTensor", dtypes.int16)
CharTensor = _legacy("CharTensor", dtypes.int8)
ByteTensor = _legacy("ByteTensor", dtypes.uint8)


def _sizes(op: str, size: tuple[Any, ...]) -> shapes.Shape:
    """A shape given as one sequence or as several numbers."""
    return shapes.as_shape(size[0] if len(size) == 1 else size, op)


def new_zeros(
    x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Zeros of a shape, in the dtype and on the device of x."""
    shape = _sizes("new_zeros", size)
    return creation.zeros(shape, dtype or x.dtype, device or x.device, requires_grad)


def new_empty(
    x: Tensor, *size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor whose values mean nothing, in the dtype and on the device of x."""
    shape = _sizes("new_empty", size)
    return creation.empty(shape, dtype or x.dtype, device or x.device, requires_grad)


def new_full(
    x: Tensor,
    size: Any,
    fill_value: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """One value in a shape, in the dtype and on the device of x."""
    return creation.full(size, fill_value, dtype or x.dtype, device or x.device, requires_grad)


def new_tensor(
    x: Tensor, data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Data as a tensor in the dtype and on the device of x."""
    return creation.tensor(data, dtype or x.dtype, device or x.device, requires_grad)


def randperm(
    n: int,
    *,
    generator: generators.Generator | None = None,
    dtype: Any = dtypes.int64,
    device: str | None = None,
) -> Tensor:
    """The numbers from 0 to n - 1 in random order: `permutation`."""
    out: Tensor = discrete.permutation(n, device=device, generator=generator)
    return out.astype(dtype)


def randint_like(
    x: Tensor, low: int, high: int | None = None, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Random integers from low to high - 1, or from 0 to low - 1, in the shape and dtype of x."""
    first, last = (0, low) if high is None else (low, high)
    place = device or x.device
    drawn = generators.randint(first, last, x.shape, dtypes.int64, place)
    return drawn.astype(dtype or x.dtype)


def range(  # PyTorch's name
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: Any = None,
) -> Tensor:
    """start, start + step, ... up to and with end; `arange` goes up to but without it."""
    first, last = (0, start) if end is None else (start, end)
    if step == 0 or (last - first) / step < 0:
        raise ArgumentError(f"range: {first} to {last} is not reached in steps of {step}")
    count = int((last - first) / step) + 1
    steps = creation.arange(count, dtype=dtypes.int64, device=device)
    wanted = dtype or dtypes.DEFAULT_FLOAT
    return steps.astype(wanted) * step + first


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """The tensors repeated to one common shape."""
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], tuple | list) else tensors
    return tuple(REGISTRY["broadcast_arrays"].function(*given))


def fill(x: Tensor, value: Any) -> Tensor:
    """A tensor like x with one value everywhere."""
    return creation.full_like(x, value)


def copy(x: Tensor) -> Tensor:
    """The same value under another name, connected to x: `clone`."""
    return x.clone()


def bernoulli(x: Tensor, p: float | None = None, *, generator: Any = None) -> Tensor:
    """1 with the probability that each element is, or with p, in the dtype of x."""
    share = x.detach() if p is None else p
    drawn = generators.bernoulli(share, x.shape, x.device, generator)
    return drawn.astype(x.dtype)


def multinomial(
    x: Tensor, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Indices drawn with the weights along the last axis."""
    return discrete.multinomial(x, num_samples, replacement, generator=generator)


def seed() -> int:
    """Seed the default generator from the operating system's randomness; returns the seed."""
    value = int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 1
    generators.manual_seed(value)
    return value


def initial_seed() -> int:
    """The seed of the default generator."""
    return generators.default_generator.seed


def get_rng_state() -> Tensor:
    """The place of the default generator in its stream, for `set_rng_state`."""
    return creation.tensor(generators.default_generator.get_state())


def set_rng_state(new_state: Tensor) -> None:
    """Put the default generator back to a place that `get_rng_state` gave."""
    generators.default_generator.set_state(new_state.numpy())

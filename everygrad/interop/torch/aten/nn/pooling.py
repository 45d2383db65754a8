"""Pooling over windows of lines, images and volumes, with the backwards that PyTorch names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import pulled, wide
from everygrad.interop.torch.aten.registry import aten
from everygrad.ops.elementwise.basic import trunc
from everygrad.ops.index.gather import scatter_add
from everygrad.ops.nn.adaptive_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
)
from everygrad.ops.nn.pooling import (
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from everygrad.ops.python.creation import zeros
from everygrad.ops.random.layers import fractional_max_pool2d, fractional_max_pool3d

_MAX = {1: max_pool1d, 2: max_pool2d, 3: max_pool3d}
_AVG = {1: avg_pool1d, 2: avg_pool2d, 3: avg_pool3d}
_ADAPTIVE_AVG = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}
_ADAPTIVE_MAX = {1: adaptive_max_pool1d, 2: adaptive_max_pool2d, 3: adaptive_max_pool3d}
_FRACTIONAL = {2: fractional_max_pool2d, 3: fractional_max_pool3d}


def _each(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis, of a number or a list that may hold one for all."""
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    return given * count if len(given) == 1 else given


def _strides(stride: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    """Windows that do not overlap, where the list of strides is empty."""
    return _each(stride, len(size)) if isinstance(stride, int) or stride else size


def _batched(pool: Callable[[Tensor], Any], x: Tensor, count: int) -> Any:
    """What `pool` gives for x, which may lack a batch or have several axes of them."""
    if x.ndim == count + 2:
        return pool(x)
    outer = x.shape[: -count - 1]
    found = pool(x.reshape((shapes.size_of(outer), *x.shape[-count - 1 :])))
    if isinstance(found, tuple):
        return tuple(f.reshape((*outer, *f.shape[1:])) for f in found)
    return found.reshape((*outer, *found.shape[1:]))


# --- the largest of each window ------------------------------------------------------------------


def _max_pool(
    count: int,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    with_indices: bool,
) -> Any:
    size = _each(kernel_size, count)
    options = (size, _strides(stride, size), _each(padding, count), _each(dilation, count))
    return _batched(lambda x: _MAX[count](x, *options, ceil_mode, with_indices), x, count)


def _max_pools(count: int) -> None:
    @aten(f"max_pool{count}d_with_indices.default")
    def with_indices(
        x: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = _max_pool(
            count, x, kernel_size, stride, padding, dilation, ceil_mode, True
        )
        return found

    @aten(f"max_pool{count}d.default")
    def alone(
        x: Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Tensor:
        out: Tensor = _max_pool(count, x, kernel_size, stride, padding, dilation, ceil_mode, False)
        return out


for _count in _MAX:
    _max_pools(_count)


def _spread(g: Tensor, x: Tensor, indices: Tensor, count: int) -> Tensor:
    """Gradients added up where the indices, counted along the rows, say they came from."""
    outer = x.shape[:-count]
    flat = zeros((*outer, shapes.size_of(x.shape[-count:])), g.dtype, g.device)
    places = (*outer, shapes.size_of(g.shape[-count:]))
    found = scatter_add(flat, indices.reshape(places), g.reshape(places), axis=len(outer))
    return found.reshape(x.shape)


@aten("max_pool2d_with_indices_backward.default", unread=(7,))
def max_pool2d_backward(
    g: Tensor,
    x: Tensor,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """By the windows again, not by the indices: for these the CPU has a kernel."""
    options = (kernel_size, stride, padding, dilation, ceil_mode, False)
    (found,) = pulled(lambda x: _max_pool(2, x, *options), g, x)
    return found


@aten("max_pool3d_with_indices_backward.default")
def max_pool3d_backward(g: Tensor, x: Tensor, *options: Any) -> Tensor:
    return _spread(g, x, options[-1], 3)


@aten("adaptive_max_pool2d_backward.default")
def adaptive_max_pool2d_backward(g: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _spread(g, x, indices, 2)


@aten("adaptive_max_pool3d_backward.default")
def adaptive_max_pool3d_backward(g: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return _spread(g, x, indices, 3)


def _adaptive_max(count: int) -> Any:
    def run(x: Tensor, output_size: Sequence[int]) -> tuple[Tensor, Tensor]:
        size = _each(output_size, count)
        found: tuple[Tensor, Tensor] = _batched(
            lambda x: _ADAPTIVE_MAX[count](x, size, True), x, count
        )
        return found

    return run


for _count in _ADAPTIVE_MAX:
    aten(f"adaptive_max_pool{_count}d.default")(_adaptive_max(_count))


def _fractional(count: int) -> Any:
    def run(
        x: Tensor, kernel_size: Any, output_size: Any, random_samples: Tensor
    ) -> tuple[Tensor, Tensor]:
        size, wanted = _each(kernel_size, count), _each(output_size, count)
        # PyTorch's numbers are for the last axis first
        drawn = random_samples.flip(axis=2)
        found: tuple[Tensor, Tensor] = _FRACTIONAL[count](
            x, size, wanted, return_indices=True, _random_samples=drawn
        )
        return found

    return run


def _fractional_backward(count: int) -> Any:
    def run(g: Tensor, x: Tensor, kernel_size: Any, output_size: Any, indices: Tensor) -> Tensor:
        return _spread(g, x, indices, count)

    return run


def _unpool(count: int) -> Any:
    def run(x: Tensor, indices: Tensor, output_size: Sequence[int], *options: Any) -> Tensor:
        outer = x.shape[:-count]
        flat = zeros((*outer, shapes.size_of(tuple(output_size))), x.dtype, x.device)
        inner = (*outer, shapes.size_of(x.shape[-count:]))
        # where one place is named twice the values are the same, being those of one maximum
        found = flat.scatter(indices.reshape(inner), x.reshape(inner), axis=len(outer))
        out: Tensor = found.reshape((*outer, *output_size))
        return out

    return run


for _count in _FRACTIONAL:
    aten(f"fractional_max_pool{_count}d.default")(_fractional(_count))
    aten(f"fractional_max_pool{_count}d_backward.default")(_fractional_backward(_count))
    aten(f"max_unpool{_count}d.default")(_unpool(_count))


# --- means ---------------------------------------------------------------------------------------


def _avg_pool(
    count: int,
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    size = _each(kernel_size, count)
    options = (size, _strides(stride, size), _each(padding, count))
    rest = (ceil_mode, count_include_pad, divisor_override)
    given = wide(x) if x.dtype.is_differentiable else x.astype(dtypes.float64)
    out: Tensor = _batched(lambda x: _AVG[count](x, *options, *rest), given, count)
    # a mean of integers loses its fraction
    return out if x.dtype.is_differentiable else trunc(out)


def _avg_pools(count: int) -> None:
    @aten(f"avg_pool{count}d.default")
    def forward(x: Tensor, *options: Any, **more: Any) -> Tensor:
        return _avg_pool(count, x, *options, **more)

    def backward(g: Tensor, x: Tensor, *options: Any, **more: Any) -> Tensor:
        (found,) = pulled(lambda x: _avg_pool(count, x, *options, **more), wide(g), wide(x))
        return found

    def adaptive(x: Tensor, output_size: Sequence[int]) -> Tensor:
        size = _each(output_size, count)
        out: Tensor = _batched(lambda x: _ADAPTIVE_AVG[count](x, size), wide(x), count)
        return out

    def adaptive_backward(g: Tensor, x: Tensor) -> Tensor:
        (found,) = pulled(lambda x: adaptive(x, g.shape[-count:]), wide(g), wide(x))
        return found

    aten(f"adaptive_avg_pool{count}d.default")(adaptive)
    if count > 1:  # PyTorch has no such names for lines
        aten(f"avg_pool{count}d_backward.default")(backward)
        aten(f"_adaptive_avg_pool{count}d.default")(adaptive)
        aten(f"_adaptive_avg_pool{count}d_backward.default")(adaptive_backward)


for _count in _AVG:
    _avg_pools(_count)

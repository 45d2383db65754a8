"""Images at other sizes and places: upsample_*, grid_sampler_*, padding by mirrors and edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.torch.aten.derivatives import pulled, pulled_where
from everygrad.interop.torch.aten.registry import aten
from everygrad.ops.index.gather import take
from everygrad.ops.nn.resampling import affine_grid, grid_sample, interpolate
from everygrad.ops.python.creation import asarray, zeros
from everygrad.ops.shape.joining import pad

_MODES = {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest-exact",
    "_upsample_nearest_exact2d": "nearest-exact",
    "_upsample_nearest_exact3d": "nearest-exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "bilinear",
    "upsample_trilinear3d": "trilinear",
    "upsample_bicubic2d": "bicubic",
    "_upsample_bilinear2d_aa": "bilinear",
    "_upsample_bicubic2d_aa": "bicubic",
}


def _upsampled(
    name: str, x: Tensor, size: Sequence[int] | None, align: bool, scales: Sequence[float | None]
) -> Tensor:
    """Sizes say how large the result is; scales, where given, where its elements are read."""
    mode = _MODES[name]
    corners = align if mode.endswith(("linear", "cubic")) else None
    smooth = name.endswith("_aa")
    given = [f for f in scales if f]
    whole: Any = None
    if len(given) == len(scales) == x.ndim - 2:
        whole = tuple(given)
        reached = [int(n * f) for n, f in zip(x.shape[2:], whole, strict=True)]
        if size is not None and reached != list(size):
            raise ArgumentError(
                f"{name}: scales {whole} bring {x.shape[2:]} to {tuple(reached)}, not {size}"
            )
        size = None
    wanted = None if size is None else tuple(size)
    out: Tensor = interpolate(x, wanted, whole, mode, corners, antialias=smooth)
    return out


def _upsample(name: str) -> None:
    aligns = not name.startswith(("upsample_nearest", "_upsample_nearest"))

    def split(given: Sequence[Any]) -> tuple[bool, Sequence[Any]]:
        return (given[0], given[1:]) if aligns else (False, given)

    def forward(x: Tensor, output_size: Sequence[int], *given: Any, **named: Any) -> Tensor:
        align, scales = split(given)
        return _upsampled(name, x, output_size, align, [*scales, *named.values()])

    def by_list(x: Tensor, output_size: Sequence[int] | None, *given: Any) -> Tensor:
        align, (scales,) = split(given)
        return _upsampled(name, x, output_size, align, scales or ())

    def backward(
        g: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *given: Any,
        **named: Any,
    ) -> Tensor:
        align, scales = split(given)
        every = [*scales, *named.values()]
        # the op is linear: where it is differentiated does not matter
        x = zeros(tuple(input_size), g.dtype, g.device)
        (found,) = pulled(lambda x: _upsampled(name, x, output_size, align, every), g, x)
        return found

    aten(f"{name}.default")(forward)
    aten(f"{name}.vec")(by_list)
    aten(f"{name}_backward.default")(backward)


for _name in _MODES:
    _upsample(_name)


# --- grids ---------------------------------------------------------------------------------------

_GRID_MODES = ("bilinear", "nearest", "bicubic")
_GRID_PADDING = ("zeros", "border", "reflection")


@aten("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def grid_sampler(
    x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    mode, padding = _GRID_MODES[interpolation_mode], _GRID_PADDING[padding_mode]
    out: Tensor = grid_sample(x, grid, mode, padding, align_corners)
    return out


@aten("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
def grid_sampler_backward(
    g: Tensor,
    x: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> list[Tensor | None]:
    options = (interpolation_mode, padding_mode, align_corners)
    # the gradient by the grid is a result whether it is asked for or not
    mask = (output_mask[0], True)
    return pulled_where(lambda x, grid: grid_sampler(x, grid, *options), g, (x, grid), mask)


@aten("affine_grid_generator.default")
def affine_grid_generator(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    out: Tensor = affine_grid(theta, tuple(size), align_corners)
    return out


# --- padding -------------------------------------------------------------------------------------


def _padded(x: Tensor, widths: Sequence[int], mode: str) -> Tensor:
    """PyTorch takes widths below 0 too: they cut, and what the other end adds is read from all."""
    pairs = [(0, 0)] * x.ndim
    for k in range(0, len(widths), 2):
        pairs[x.ndim - 1 - k // 2] = (widths[k], widths[k + 1])
    if min(widths) >= 0:
        out: Tensor = pad(x, tuple(pairs), mode)
        return out
    for axis, (before, after) in enumerate(pairs):
        if before or after:
            last = x.shape[axis] - 1
            places = np.arange(-before, x.shape[axis] + after)
            if mode == "reflect":
                places = last - np.abs(last - np.abs(places))
            x = take(x, asarray(np.clip(places, 0, last), device=x.device), axis=axis)
    return x


def _pad(mode: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def forward(x: Tensor, padding: Sequence[int]) -> Tensor:
        return _padded(x, padding, mode)

    def backward(g: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        if not shapes.size_of(g.shape):
            return zeros(x.shape, g.dtype, g.device)
        (found,) = pulled(lambda x: _padded(x, padding, mode), g, x)
        return found

    return forward, backward


for _name, _mode in (("reflection", "reflect"), ("replication", "replicate")):
    _forward, _backward = _pad(_mode)
    for _count in (1, 2, 3):
        aten(f"{_name}_pad{_count}d.default")(_forward)
        aten(f"{_name}_pad{_count}d_backward.default")(_backward)

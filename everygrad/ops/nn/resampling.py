"""Lines, images and volumes read at other places: interpolate, grid_sample, affine_grid.

Where interpolation reads is known from the sizes alone, and is worked out once, in NumPy; a grid is
a tensor, and has derivatives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.dispatch import operands
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import abs, clamp, floor, round, where
from everygrad.ops.index.gather import taken
from everygrad.ops.linalg.matmul import matmul
from everygrad.ops.nn.adaptive_pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
)
from everygrad.ops.nn.conv2d import integers
from everygrad.ops.nn.sparse_interp import Table, weighted_gather_sum
from everygrad.ops.python.creation import arange, asarray
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import check_kind
from everygrad.ops.record.spec import composite, refuse, same, sample


def _full(x: Tensor) -> Tensor:
    """Half floats widened: places and weights need more digits than they have."""
    return x.astype(dtypes.float32) if x.dtype.itemsize < 4 else x


# --- interpolate ---------------------------------------------------------------------------------

MODES = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,),
          "trilinear": (3,), "bicubic": (2,), "area": (1, 2, 3)}  # fmt: skip
_AREA = {1: adaptive_avg_pool1d, 2: adaptive_avg_pool2d, 3: adaptive_avg_pool3d}


def _sizes(x: Tensor, size: Any, scale_factor: Any) -> tuple[Shape, list[float | None]]:
    """The sizes of the result, and the scales that places follow where they were given."""
    count = x.ndim - 2
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: give size or scale_factor, one of them")
    if size is not None:
        return integers("interpolate", "size", size, 1, count), [None] * count
    given = [*scale_factor] if isinstance(scale_factor, Sequence) else [scale_factor] * count
    right = all(isinstance(v, int | float) and v > 0 for v in given)
    if len(given) != count or not right:
        raise ArgumentError(
            f"interpolate: scale_factor must be one or {count} positive numbers, "
            f"got {scale_factor!r}"
        )
    sizes = tuple(math.floor(n * f) for n, f in zip(x.shape[2:], given, strict=True))
    if min(sizes) < 1:
        raise ArgumentError(
            f"interpolate: scale_factor {scale_factor} leaves nothing of {x.shape[2:]}"
        )
    return sizes, [float(f) for f in given]


def _ratio(n: int, out: int, scale: float | None, align: bool, number: Any = np.float64) -> Any:
    """How far apart two neighbours of the result are, in elements of the input."""
    if align:
        return (n - 1) / (out - 1) if out > 1 else 0.0
    return number(1.0 / scale) if scale else number(n) / number(out)


@lru_cache(maxsize=256)
def _nearest(n: int, out: int, scale: float | None, exact: bool) -> Table:
    # PyTorch's places, to the bit: single precision
    ratio = _ratio(n, out, scale, False, np.float32)
    places = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0.0)
    index = np.minimum(np.floor(places * ratio).astype(np.int64), n - 1)
    return Table(n, index[None], np.ones((1, out)))


_SHARPNESS = -0.75  # of the cubic, as PyTorch's
# what a neighbour weighs is a polynomial in how far the place lies beyond the lower one of the two
# around it; a row holds the powers 0, 1, ... for one neighbour
_POLYNOMIALS = {
    "nearest": np.array([[1.0]]),
    "linear": np.array([[1.0, -1.0], [0.0, 1.0]]),
    "cubic": np.array(
        [
            [0.0, _SHARPNESS, -2 * _SHARPNESS, _SHARPNESS],
            [1.0, 0.0, -_SHARPNESS - 3, _SHARPNESS + 2],
            [0.0, -_SHARPNESS, 2 * _SHARPNESS + 3, -_SHARPNESS - 2],
            [0.0, 0.0, _SHARPNESS, -_SHARPNESS],
        ]
    ),
}
_FIRST = {"nearest": 0, "linear": 0, "cubic": -1}  # the first neighbour, counted from the lower one


@lru_cache(maxsize=256)
def _smooth(n: int, out: int, scale: float | None, align: bool, kind: str) -> Table:
    i = np.arange(out)
    if align or not scale:  # places are fractions of whole numbers: exact at any size
        above, below = (i * (n - 1), max(1, out - 1)) if align else ((2 * i + 1) * n - out, 2 * out)
        above = np.clip(above, 0, (n - 1) * below) if kind == "linear" else above
        low, beyond = above // below, above % below / below
    else:
        places = (i + 0.5) * _ratio(n, out, scale, align) - 0.5
        places = np.clip(places, 0.0, n - 1) if kind == "linear" else places
        low = np.floor(places)
        beyond = places - low
    powers = _POLYNOMIALS[kind]
    weights = powers @ np.stack([beyond**k for k in range(powers.shape[1])])
    index = low + np.arange(len(powers))[:, None] + _FIRST[kind]
    return Table(n, np.clip(index, 0, n - 1).astype(np.int64), weights)


def _triangle(x: Any) -> Any:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _hat(x: Any) -> Any:
    """The cubic of Keys with the sharpness -1/2: PyTorch's, where it smooths."""
    x = np.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1.0, ((2.5 - 0.5 * x) * x - 4.0) * x + 2.0
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


_FILTERS = {"linear": (_triangle, 1.0), "cubic": (_hat, 2.0)}  # and how far each reaches


@lru_cache(maxsize=256)
def _antialiased(n: int, out: int, scale: float | None, align: bool, kind: str) -> Table:
    """Where the result has fewer places, the filter is as much wider as they lie apart."""
    ratio = _ratio(n, out, scale, align)
    wide = np.maximum(ratio, 1.0)
    shape, reach = _FILTERS[kind]
    centres = ratio * (np.arange(out) + 0.5)
    first = np.maximum(np.trunc(centres - reach * wide + 0.5), 0).astype(np.int64)
    end = np.minimum(np.trunc(centres + reach * wide + 0.5), n).astype(np.int64)
    index = first + np.arange(int((end - first).max()))[:, None]
    weights = np.where(index < end, shape((index - centres + 0.5) / wide), 0.0)
    return Table(n, np.minimum(index, n - 1), weights / weights.sum(axis=0))


def _repeated(x: Tensor, axis: int, table: Table) -> Tensor:
    """One element for each place; whole repeats without an index."""
    n, index = x.shape[axis], table.index[0]
    out = len(index)
    if out % n or not np.array_equal(index, np.arange(out) // (out // n)):
        return weighted_gather_sum(x, axis, table)
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    wide = x.expand_dims(axis + 1).broadcast_to((*before, out // n, *after))
    return wide.reshape((*x.shape[:axis], out, *after))


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:interpolate",
    torch="torch.nn.functional:interpolate",
    samples=lambda: iter(
        (
            sample(s.real(1, 2, 3), scale_factor=2.0),
            sample(s.real(1, 1, 2, 3), (4, 2), mode="bilinear", align_corners=False),
            sample(s.real(1, 1, 2, 3), (3, 4), mode="bicubic", align_corners=True),
            sample(s.real(1, 1, 3, 4), (2, 2), mode="bilinear", antialias=True),
        )
    ),
    refuses=(
        refuse(ArgumentError, "interpolate: give size or scale_factor", s.real(1, 1, 3)),
        refuse(ArgumentError, "interpolate: mode must be one of", s.real(1, 1, 3), 2, mode="cubic"),
        refuse(ShapeError, "interpolate: bilinear takes", s.real(1, 1, 3), 2, mode="bilinear"),
        refuse(ArgumentError, "align_corners is for", s.real(1, 1, 3), 2, align_corners=True),
        refuse(ArgumentError, "antialias is for bilinear", s.real(1, 1, 3), 2, antialias=True),
        refuse(ArgumentError, "scale_factor .* leaves nothing", s.real(1, 1, 3), scale_factor=0.1),
    ),
)
def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool = False,
    antialias: bool = False,
) -> Tensor:
    """x (batch, channels, places...) resized to `size`, or by `scale_factor`.

    `mode` is "nearest" or "nearest-exact", "area", or by the number of axes "linear", "bilinear",
    "trilinear" or "bicubic"; the latter put the corners' centres onto each other if
    `align_corners`. Places are PyTorch's: a scale that was given is what they follow, not the
    rounded sizes, unless `recompute_scale_factor`. `antialias`, of "bilinear" and "bicubic",
    averages over all that a place of a smaller result stands for.
    """
    check_kind("interpolate", x.dtype, "real float")
    if mode not in MODES:
        shown = ", ".join(map(repr, MODES))
        raise ArgumentError(f"interpolate: mode must be one of {shown}, got {mode!r}")
    count = x.ndim - 2
    if count not in MODES[mode] or 0 in x.shape[2:]:
        wanted = " or ".join(str(n + 2) for n in MODES[mode])
        raise ShapeError(
            f"interpolate: {mode} takes {wanted} dimensions, none empty, got {x.shape}"
        )
    smooth = mode in ("linear", "bilinear", "trilinear", "bicubic")
    if align_corners is not None and not smooth:
        raise ArgumentError(f"interpolate: align_corners is for linear and cubic, not for {mode}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f"interpolate: antialias is for bilinear and bicubic, not for {mode}")
    sizes, scales = _sizes(x, size, scale_factor)
    if mode == "area":
        out: Tensor = _AREA[count](x, sizes)
        return out
    scales = [None] * count if recompute_scale_factor else scales
    steps = list(enumerate(zip(x.shape[2:], sizes, scales, strict=True), 2))
    if not smooth:
        for axis, (n, m, scale) in steps:
            if n != m:
                x = _repeated(x, axis, _nearest(n, m, scale, mode == "nearest-exact"))
        return same(x)
    kind = "cubic" if mode == "bicubic" else "linear"
    table = _antialiased if antialias else _smooth
    out = _full(x)
    for axis, (n, m, scale) in steps:
        if n != m or ((antialias or kind == "cubic") and scale not in (None, 1.0)):
            out = weighted_gather_sum(out, axis, table(n, m, scale, bool(align_corners), kind))
    return out.astype(x.dtype)


# --- grids ---------------------------------------------------------------------------------------


def _reflected(c: Tensor, n: int, align: bool) -> Tensor:
    """Coordinates mirrored at the edges as often as it takes to come inside."""
    low = 0.0 if align else -0.5
    span = float(n - 1 if align else n)
    if span == 0:
        return c * 0.0
    off = abs(c - low)
    turns = floor(off / span)
    extra = off - turns * span
    odd = turns - 2.0 * floor(turns * 0.5)
    return where(odd == 0, extra, span - extra) + low


def _held(c: Tensor, n: int, padding_mode: str, align: bool) -> Tensor:
    """Coordinates brought inside, if the mode says so."""
    if padding_mode == "zeros":
        return c
    if padding_mode == "reflection":
        c = _reflected(c, n, align)
    return clamp(c, 0.0, float(n - 1))


def _coordinates(g: Tensor, n: int, align: bool) -> Tensor:
    """-1 to 1 as places of an axis: the centres of the corners, or their outer edges."""
    return (g + 1.0) * (0.5 * (n - 1)) if align else ((g + 1.0) * n - 1.0) * 0.5


def _neighbours(c: Tensor, n: int, mode: str, padding_mode: str, align: bool) -> Any:
    """(places, weights) along one axis, of each neighbour of each coordinate; no weights: 1."""
    if mode != "bicubic":
        c = _held(c, n, padding_mode, align)
    if mode == "nearest":
        return round(c).detach().expand_dims(0), None
    table = _POLYNOMIALS["cubic" if mode == "bicubic" else "linear"]
    low = floor(c).detach()
    share = (c - low).expand_dims(0)
    powers = asarray(table.T.copy(), dtype=c.dtype, device=c.device)
    powers = powers.reshape((*powers.shape, *(1,) * c.ndim))
    weights = powers[-1]
    for k in reversed(range(table.shape[1] - 1)):
        weights = weights * share + powers[k]
    first = arange(len(table), dtype=c.dtype, device=c.device).reshape((-1,) + (1,) * c.ndim)
    places = low + first
    if mode == "bicubic":
        places = _held(places - 1.0, n, padding_mode, align)
    return places, weights


def _fitting(t: Tensor, axis: int, count: int) -> Tensor:
    """(neighbours, batch, places) with the neighbours of the other axes beside its own."""
    shape = [1] * count
    shape[axis] = t.shape[0]
    return t.reshape((*shape, *t.shape[1:]))


def _sampled(rows: Tensor, sizes: Shape, taps: Any, start: Tensor) -> Tensor:
    """(batch, places, channels): the sum over neighbours that lie inside along every axis."""
    count = len(sizes)
    inside: Tensor | None = None
    weight: Tensor | None = None
    index = start
    steps = [shapes.size_of(sizes[i + 1 :]) for i in range(count)]
    for axis, (places, weights) in enumerate(taps):
        here = (places >= 0.0) & (places <= sizes[axis] - 1.0)
        at = where(here, places, 0.0).astype(dtypes.int64) * steps[axis]
        index = index + _fitting(at, axis, count)
        here = _fitting(here, axis, count)
        inside = here if inside is None else inside & here
        if weights is not None:
            share = _fitting(weights, axis, count)
            weight = share if weight is None else weight * share
    assert inside is not None
    out = taken(rows, index)
    out = out if weight is None else out * weight.expand_dims(-1)
    return where(inside.expand_dims(-1), out, 0.0).sum(axis=tuple(range(count)))


_GRIDMODES = ("bilinear", "nearest", "bicubic")
_GRID_PADDINGS = ("zeros", "border", "reflection")


def _check_grid(x: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    for name, value, known in (
        ("mode", mode, _GRIDMODES),
        ("padding_mode", padding_mode, _GRID_PADDINGS),
    ):
        if value not in known:
            shown = ", ".join(map(repr, known))
            raise ArgumentError(f"grid_sample: {name} must be one of {shown}, got {value!r}")
    count = x.ndim - 2
    fits = count in (2, 3) and grid.ndim == x.ndim
    fits = fits and grid.shape[0] == x.shape[0] and grid.shape[-1] == count
    if not fits or 0 in x.shape[2:]:
        raise ShapeError(
            f"grid_sample: a grid {grid.shape} does not fit {x.shape}: images (n, c, h, w), none "
            f"empty, take (n, ..., ..., 2), volumes (n, c, d, h, w) take (n, ..., ..., ..., 3)"
        )
    if mode == "bicubic" and count != 2:
        raise ArgumentError('grid_sample: "bicubic" is for images, not for volumes')


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:grid_sample",
    torch=None,  # it has no second derivative
    samples=lambda: iter(
        (
            sample(s.real(1, 2, 2, 3), s.real(1, 2, 1, 2, low=-1.3, high=1.3, seed=1)),
            sample(
                s.real(1, 1, 3, 2),
                s.real(1, 1, 2, 2, low=-1.3, high=1.3, seed=3),
                mode="bicubic",
                padding_mode="reflection",
            ),
        )
    ),
    refuses=(
        refuse(ShapeError, "grid_sample: a grid .* does not fit", s.real(1, 1, 2, 2), s.real(2, 2)),
        refuse(
            ArgumentError,
            "grid_sample: mode must be one of",
            s.real(1, 1, 2, 2),
            s.real(1, 1, 1, 2),
            mode="linear",
        ),
        refuse(
            ArgumentError,
            "grid_sample: .bicubic. is for images",
            s.real(1, 1, 2, 2, 2),
            s.real(1, 1, 1, 1, 3),
            mode="bicubic",
        ),
    ),
)
def grid_sample(
    x: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """x (n, c, places...) read where the grid (n, places of the result..., axes) says.

    A grid's last axis holds x, y and for volumes z, each from -1 to 1: the outer edges of the
    corners, their centres if `align_corners`. Beyond is 0 ("zeros"), the edge ("border"), or what
    mirrors show ("reflection"). With "nearest" the grid has no derivative.
    """
    check_kind("grid_sample", x.dtype, "real float")
    check_kind("grid_sample", grid.dtype, "real float")
    _check_grid(x, grid, mode, padding_mode)
    dtype, sizes = x.dtype, x.shape[2:]
    x, grid = operands("grid_sample", _full(x), _full(grid))
    n, c, out = x.shape[0], x.shape[1], grid.shape[1:-1]
    last = tuple(range(2, x.ndim))
    rows = x.permute_dims((0, *last, 1)).reshape(n * shapes.size_of(sizes), c)
    grid = grid.reshape(n, shapes.size_of(out), len(sizes))
    axes = []
    for a, size in enumerate(sizes):
        g = grid[:, :, len(sizes) - 1 - a]
        place = _coordinates(g, size, align_corners)
        axes.append(_neighbours(place, size, mode, padding_mode, align_corners))
    start = arange(n, device=x.device).reshape(n, 1) * shapes.size_of(sizes)
    total = _sampled(rows, sizes, axes, start)
    return total.reshape(n, *out, c).moveaxis(-1, 1).astype(dtype)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:affine_grid",
    torch="torch.nn.functional:affine_grid",
    samples=lambda: iter(
        (
            sample(s.real(2, 2, 3), (2, 1, 2, 2), align_corners=True),
            sample(s.real(1, 3, 4), (1, 1, 2, 1, 2), align_corners=False),
        )
    ),
    refuses=(
        refuse(ShapeError, "affine_grid: .* needs theta of", s.real(1, 2, 3), (2, 1, 2, 2)),
        refuse(ShapeError, "affine_grid: size must be", s.real(1, 2, 3), (1, 1, 2)),
    ),
)
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """The grid for `grid_sample` that moves every place of `size` by the matrices theta.

    theta is (n, 2, 3) for images of size (n, c, h, w), (n, 3, 4) for volumes (n, c, d, h, w).
    """
    check_kind("affine_grid", theta.dtype, "real float")
    sizes = shapes.as_shape(size, "affine_grid")
    count = len(sizes) - 2
    if count not in (2, 3) or min(sizes) < 1:
        raise ShapeError(f"affine_grid: size must be (n, c, h, w) or (n, c, d, h, w), got {sizes}")
    if theta.shape != (sizes[0], count, count + 1):
        raise ShapeError(
            f"affine_grid: {sizes} needs theta of {(sizes[0], count, count + 1)}, got {theta.shape}"
        )
    lines = [_line(n, align_corners) for n in sizes[2:]]
    planes = np.meshgrid(*lines, indexing="ij")[::-1]
    base = np.stack([*planes, np.ones(sizes[2:])], axis=-1).reshape(-1, count + 1)
    points = asarray(base, dtype=theta.dtype, device=theta.device)
    out = matmul(points, theta.matrix_transpose())
    return out.reshape(sizes[0], *sizes[2:], count)


def _line(n: int, align: bool) -> Any:
    """The centres of n elements from -1 to 1."""
    places = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
    return places if align else places * ((n - 1) / n)

"""Images of another size, and images read at any place."""

from __future__ import annotations

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem

TF = torch.nn.functional
MODES = {
    1: ("nearest", "linear"),
    2: ("nearest", "bilinear", "bicubic"),
    3: ("nearest", "trilinear"),
}


def _interpolated(x: torch.Tensor, wanted: tuple[int, ...], mode: str, align: bool) -> torch.Tensor:
    """Axis by axis, with places as fractions of whole numbers."""
    for axis, m in enumerate(wanted, 2):
        n, i = x.shape[axis], np.arange(m)
        above, below = (i * (n - 1), max(1, m - 1)) if align else ((2 * i + 1) * n - m, 2 * m)
        if "cubic" not in mode:
            above = np.clip(above, 0, (n - 1) * below)
        low, t = above // below, above % below / below
        if "cubic" in mode:
            # as products: the cubic's zeros at whole distances keep their digits
            near = [(1 - u) * (1 + u - 1.25 * u**2) for u in (t, 1 - t)]
            far = [-0.75 * u * (1 - u) ** 2 for u in (t, 1 - t)]
            taps = [(-1, far[0]), (0, near[0]), (1, near[1]), (2, far[1])]
        else:
            taps = [(0, 1 - t), (1, t)]
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        x = sum(
            x.index_select(axis, torch.from_numpy(np.clip(low + k, 0, n - 1)))
            * torch.from_numpy(w).to(x.dtype).reshape(shape)
            for k, w in taps
        )
    return x


def interpolate(d: Draw) -> Problem:
    axes = d.pick((1, 2, 2, 2, 3))
    mode = d.pick(MODES[axes])
    size = tuple(max(1, n) for n in d.shape(axes, d.elements(1 << 14)))
    wanted = tuple(max(1, min(3 * n + 9, d.size(3 * n + 5))) for n in size)
    align = d.chance(0.4) if mode != "nearest" else None
    anti = axes == 2 and mode in ("bilinear", "bicubic") and d.chance(0.2)
    if anti:  # of a result one column wide PyTorch 2.13 computes the first row, again and again
        wanted = tuple(max(2, n) for n in wanted)
    dtype = d.dtype(halves=0)
    given = {"size": wanted, "mode": mode, "align_corners": align, "antialias": anti}
    # PyTorch takes the floor of a place in float32, of float64 too
    exact = max(*size, *wanted) > 512 and mode != "nearest" and not anti
    return Problem(
        (d.floats((d.pick((1, 2)), d.size(9), *size), dtype),),
        lambda x: eg.interpolate(x, **given),
        lambda x: (
            _interpolated(x, wanted, mode, bool(align)) if exact else TF.interpolate(x, **given)
        ),
        "values",
        looseness=8.0,  # where a place falls is computed in the image's own dtype
        dtype=dtype,
    )


def grid_sample(d: Draw) -> Problem:
    size = tuple(max(2, n) for n in d.shape(2, d.elements(1 << 12)))
    places = tuple(max(1, n) for n in d.shape(2, d.elements(1 << 12)))
    mode, dtype = d.pick(("bilinear", "nearest")), d.dtype(halves=0)
    padding, align = d.pick(("zeros", "border", "reflection")), d.chance(0.5)
    batch = d.pick((1, 2))
    return Problem(
        (
            d.floats((batch, d.size(5), *size), dtype),
            d.floats((batch, *places, 2), dtype, -1.2, 1.2, grad=mode != "nearest"),
        ),
        lambda x, g: eg.grid_sample(x, g, mode, padding, align),
        lambda x, g: TF.grid_sample(x, g, mode, padding, align),
        "values",
        looseness=64.0 if mode == "nearest" else 16.0,  # beside a border rounding picks the side
        dtype=dtype,
    )


SECTION = OpSection(
    "resampling",
    (
        "copy_index",
        "copy_kernels",
        "gather",
        "gather_scatter",
        "scatter_sorted",
        "registry",
        "sparse_interp",
    ),
    {"interpolate": (3, interpolate), "grid_sample": (1, grid_sample)},
)

"""Images of another size, and images read at any place."""

from __future__ import annotations

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
    return Problem(
        (d.floats((d.pick((1, 2)), d.size(9), *size), dtype),),
        lambda x: eg.interpolate(x, **given),
        lambda x: TF.interpolate(x, **given),
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
        "sorted_scatter",
        "registry",
        "sparse_interp",
    ),
    {"interpolate": (3, interpolate), "grid_sample": (1, grid_sample)},
)

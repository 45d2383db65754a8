"""Convolutions of one, two and three axes, transposed ones, groups, strides, dilations."""

from __future__ import annotations

import math
from typing import Any

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem

MOST_PRODUCTS = 1 << 24


def _window(d: Draw, axes: int) -> dict[str, Any]:
    """Kernel, stride, padding and dilation of each axis; often one tap, or a plain window."""
    kind = d.pick(("one", "plain", "any", "any"))
    if kind == "one":
        size, stride = [1] * axes, [d.pick((1, 1, 2, 3))] * axes
        return {"size": size, "stride": stride, "padding": [0] * axes, "dilation": [1] * axes}
    if kind == "plain":
        k = d.pick((2, 3, 3, 5))
        return {
            "size": [k] * axes,
            "stride": [d.pick((1, 1, 2))] * axes,
            "padding": [k // 2] * axes,
            "dilation": [1] * axes,
        }
    return {
        "size": [d.between(1, 4 if axes == 3 else 7) for _ in range(axes)],
        "stride": [d.between(1, 3) for _ in range(axes)],
        "padding": [d.between(0, 3) for _ in range(axes)],
        "dilation": [d.between(1, 3) for _ in range(axes)],
    }


def _channels(d: Draw, most: int) -> tuple[int, int, int]:
    """Groups, and channels in and out of each."""
    kind = d.pick(("one", "one", "one", "some", "depthwise"))
    if kind == "depthwise":
        return d.size(min(most, 70)), 1, d.pick((1, 1, 2, 3))
    groups = 1 if kind == "one" else d.between(2, 5)
    each = max(1, most // groups)
    return groups, d.size(each), d.size(max(1, min(each, 130)))


def convolution(d: Draw) -> Problem:
    axes = d.pick((1, 2, 2, 2, 3))
    w = _window(d, axes)
    taps = math.prod(w["size"])
    # a kernel of one tap is a sum over channels, which may be cut into slabs
    most = d.pick((40, 300, 300, 1200) if taps == 1 else (8, 8, 40, 300))
    groups, c_in, c_out = _channels(d, most)
    batch = d.pick((1, 1, 2, 3, 9))
    work = batch * groups * c_in * c_out * taps
    places = max(1, min(MOST_PRODUCTS // max(work, 1), d.elements(1 << 14)))
    size = d.shape(axes, places)
    least = [
        (k - 1) * s + 1 - 2 * p
        for k, s, p in zip(w["size"], w["dilation"], w["padding"], strict=True)
    ]
    size = tuple(max(n, low, 1) for n, low in zip(size, least, strict=True))
    dtype, bias = d.dtype(), d.chance(0.3)
    inputs = [
        d.floats((batch, groups * c_in, *size), dtype),
        d.floats((groups * c_out, c_in, *w["size"]), dtype),
    ]
    if bias:
        inputs.append(d.floats((groups * c_out,), dtype, layout=False))
    name, given = f"conv{axes}d", {k: tuple(w[k]) for k in ("stride", "padding", "dilation")}
    return Problem(
        inputs,
        lambda *x: getattr(eg, name)(*x, groups=groups, **given),
        lambda *x: getattr(torch.nn.functional, name)(*x, groups=groups, **given),
        "sums",
        dtype=dtype,
    )


def tiles(d: Draw) -> Problem:
    """Channels and pixels around what a tile of a product has of them, and many tiles; strides that
    leave few pixels for a phase, and strides beside dilations, which leave no phases."""
    outer, inner = d.pick((30, 33, 60, 130)), d.pick((8, 9, 40))
    kind = d.pick(("few", "few", "some", "many"))
    stride, dilation = d.pick(((1, 1), (2, 1), (3, 1), (2, 2)))
    taps = d.pick((1, 2, 3))
    side = {"few": d.between(5, 7), "some": d.between(9, 15), "many": 128 + d.between(0, 2)}[kind]
    if kind == "many":  # of hardly any terms
        outer, inner, taps, stride = d.pick((60, 130)), 8, 1, 1
    size = (side + (taps - 1) * dilation, side)
    dtype, images = d.dtype(wide=0), 1 if kind == "many" else d.pick((1, 2))
    inputs = [d.floats((images, inner, *size), dtype), d.floats((outer, inner, taps, taps), dtype)]
    given = {"stride": stride, "dilation": dilation, "padding": taps // 2}
    return Problem(
        inputs,
        lambda *x: eg.conv2d(*x, **given),
        lambda *x: torch.nn.functional.conv2d(*x, **given),
        "sums",
        dtype=dtype,
    )


def pointwise(d: Draw) -> Problem:
    """Kernels of one tap and many channels: sums that are cut into slabs, tiles that move back."""
    axes, back = d.pick((1, 2, 2, 3)), d.chance(0.4)
    deep = d.between(90, 1300) if d.chance(0.6) else d.size(1300, 90)
    other = d.between(1, 80) if d.chance(0.6) else d.size(130)
    places = max(1, min(d.pick((30, 300, 900)), MOST_PRODUCTS // (deep * other)))
    size = tuple(max(1, n) for n in d.shape(axes, places))
    c_in, c_out = (other, deep) if back else (deep, other)
    batch, dtype = d.pick((1, 1, 2)), d.dtype()
    flip = d.chance(0.3)
    name = f"conv_transpose{axes}d" if flip else f"conv{axes}d"
    kernel = (c_in, c_out) if flip else (c_out, c_in)
    inputs = [
        d.floats((batch, c_in, *size), dtype),
        d.floats((*kernel, *[1] * axes), dtype),
    ]
    return Problem(
        inputs,
        lambda *x: getattr(eg, name)(*x),
        lambda *x: getattr(torch.nn.functional, name)(*x),
        "sums",
        dtype=dtype,
    )


def transposed(d: Draw) -> Problem:
    axes = d.pick((1, 2, 2, 2, 3))
    w = _window(d, axes)
    taps = math.prod(w["size"])
    groups, c_in, c_out = _channels(d, d.pick((40, 300, 800) if taps == 1 else (8, 8, 40, 300)))
    batch = d.pick((1, 1, 2, 3))
    work = batch * groups * c_in * c_out * taps
    places = max(1, min(MOST_PRODUCTS // max(work, 1), d.elements(1 << 12)))
    size = d.shape(axes, places)
    size = tuple(max(n, 1 + p) for n, p in zip(size, w["padding"], strict=True))
    extra = tuple(
        d.between(0, max(s, r) - 1) for s, r in zip(w["stride"], w["dilation"], strict=True)
    )
    extra = tuple(min(e, s - 1) for e, s in zip(extra, w["stride"], strict=True))
    pad = tuple(
        min(p, ((n - 1) * s + (k - 1) * r) // 2)
        for p, n, s, k, r in zip(
            w["padding"], size, w["stride"], w["size"], w["dilation"], strict=True
        )
    )  # results of at least one element
    dtype = d.dtype()
    inputs = [
        d.floats((batch, groups * c_in, *size), dtype),
        d.floats((groups * c_in, c_out, *w["size"]), dtype),
    ]
    if d.chance(0.3):
        inputs.append(d.floats((groups * c_out,), dtype, layout=False))
    name = f"conv_transpose{axes}d"
    given = {
        "stride": tuple(w["stride"]),
        "padding": pad,
        "dilation": tuple(w["dilation"]),
        "output_padding": extra,
    }
    return Problem(
        inputs,
        lambda *x: getattr(eg, name)(*x, groups=groups, **given),
        lambda *x: getattr(torch.nn.functional, name)(*x, groups=groups, **given),
        "sums",
        dtype=dtype,
    )


SECTION = OpSection(
    "convolutions",
    (
        "choose_kernel",
        "conv_sums",
        "conv_tiles",
        "convolution",
        "half_tile",
        "image_tile",
        "eager_matmul",
        "matmul",
        "matmul_conv",
        "operand_reads",
        "pointwise",
        "registry",
        "vector_emitter",
    ),
    {
        "conv": (3, convolution),
        "conv of tiles": (0.7, tiles),
        "pointwise conv": (2, pointwise),
        "conv_transpose": (1, transposed),
    },
    weight=2.0,
)

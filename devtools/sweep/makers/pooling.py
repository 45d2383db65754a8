"""Windows over images: the largest, the mean, the norm of each; adaptive ones."""

from __future__ import annotations

from typing import Any

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Given, Problem

TF = torch.nn.functional


def _image(d: Draw, axes: int, ties: bool = False) -> tuple[Given, tuple[int, ...], str]:
    lead = d.shape(2, d.pick((1, 4, 40)))
    size = d.shape(axes, d.elements(1 << 16))
    size = tuple(max(1, n) for n in size)
    dtype = d.dtype()
    shape = (max(1, lead[0]), max(1, lead[1]), *size)
    if ties:  # equal elements: the first of them wins, and has the gradient
        return d.ties(shape, dtype), size, dtype
    return d.floats(shape, dtype), size, dtype


def _window(d: Draw, size: tuple[int, ...], dilated: bool) -> dict[str, Any]:
    kernel, stride, padding, dilation = [], [], [], []
    padded = d.chance(0.6)
    for n in size:
        reach = d.between(1, min(n, d.pick((2, 3, 3, 8, 40))))
        step = d.between(1, 3) if dilated and d.chance(0.3) else 1
        k = max(1, (reach - 1) // step + 1)
        kernel.append(k)
        dilation.append(step)
        padding.append(d.between(0, k // 2) if padded else 0)
        stride.append(d.between(1, max(1, d.pick((k, 2, 3)))))
    window: dict[str, Any] = {"kernel_size": tuple(kernel), "stride": tuple(stride)}
    window["padding"] = tuple(padding)
    if dilated:
        window["dilation"] = tuple(dilation)
    return window


def max_pool(d: Draw) -> Problem:
    axes = d.pick((1, 2, 2, 2, 3))
    x, size, dtype = _image(d, axes, d.chance(0.5))
    window = _window(d, size, True)
    window["ceil_mode"] = d.chance(0.2)
    window["return_indices"] = d.chance(0.3)
    name = f"max_pool{axes}d"
    if axes == 2 and d.chance(0.15):  # of whole numbers, for which PyTorch has none
        whole = d.integers(x.array.shape, 0, 9, d.pick(("int32", "int64", "int8", "uint64")))
        return Problem(
            (whole,),
            lambda t: eg.max_pool2d(t, **window),
            lambda t: TF.max_pool2d(t.double(), **window),
            "exact",
        )
    return Problem(
        (x,),
        lambda t: getattr(eg, name)(t, **window),
        lambda t: getattr(TF, name)(t, **window),
        "plain",
        dtype=dtype,
    )


def avg_pool(d: Draw) -> Problem:
    axes = d.pick((1, 2, 2, 2, 3))
    x, size, dtype = _image(d, axes)
    window = _window(d, size, False)
    window["ceil_mode"], window["count_include_pad"] = d.chance(0.2), d.chance(0.5)
    name = f"avg_pool{axes}d"
    return Problem(
        (x,),
        lambda t: getattr(eg, name)(t, **window),
        lambda t: getattr(TF, name)(t, **window),
        "sums",
        dtype=dtype,
    )


def adaptive(d: Draw) -> Problem:
    axes, which = d.pick((1, 2, 2, 3)), d.pick(("avg", "max"))
    x, size, dtype = _image(d, axes)
    wanted = tuple(d.between(1, min(n, 9)) for n in size)
    name = f"adaptive_{which}_pool{axes}d"
    return Problem(
        (x,),
        lambda t: getattr(eg, name)(t, wanted),
        lambda t: getattr(TF, name)(t, wanted),
        "sums" if which == "avg" else "plain",
        dtype=dtype,
    )


SECTION = OpSection(
    "pooling",
    ("copy_index", "copy_kernels", "pooling", "registry", "scatter", "vector_emitter"),
    {"max_pool": (3, max_pool), "avg_pool": (1, avg_pool), "adaptive_pool": (1, adaptive)},
)

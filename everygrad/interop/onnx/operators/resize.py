"""Resize and Upsample: a product with a matrix of weights along each axis, made from sizes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import checked_size

Array = np.ndarray[Any, Any]


class Axis(NamedTuple):
    """How one axis is resized."""

    size: int
    wanted: int
    scale: float
    roi: tuple[float, float] | None


class Rule(NamedTuple):
    """How elements of the result find those of the input."""

    mode: str
    coordinates: str
    nearest: str
    coefficient: float
    antialias: bool
    exclude_outside: bool


def _coordinates(rule: Rule, axis: Axis) -> Array:
    """Where each element of the result lies in the input."""
    x = np.arange(axis.wanted, dtype=np.float64)
    exact = axis.scale * axis.size
    way = rule.coordinates
    if way == "asymmetric":
        return x / axis.scale
    if way == "align_corners":
        return x * 0 if exact == 1 else x * (axis.size - 1) / (exact - 1)
    if way == "tf_crop_and_resize":
        first, last = axis.roi or (0.0, 1.0)
        reach = (last - first) * (axis.size - 1)
        return first * (axis.size - 1) + (
            reach / 2 + 0 * x if exact == 1 else x * reach / (exact - 1)
        )
    if way == "tf_half_pixel_for_nn":
        return (x + 0.5) / axis.scale
    half = (x + 0.5) / axis.scale - 0.5
    if way == "half_pixel":
        return half
    if way == "pytorch_half_pixel":
        return half if exact != 1 else np.full_like(x, -0.5)
    if way == "half_pixel_symmetric":
        return axis.size / 2 * (1 - axis.wanted / exact) + half
    raise ArgumentError(f"Resize: coordinate_transformation_mode {way!r} is not one of ONNX's")


def _nearest(rule: Rule, at: Array, size: int) -> Array:
    ways: dict[str, Any] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5),
        "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    if rule.nearest not in ways:
        raise ArgumentError(f"Resize: nearest_mode {rule.nearest!r} is not one of {[*ways]}")
    return np.clip(ways[rule.nearest](at), 0, size - 1).astype(np.int64)


def _kernel(rule: Rule, distance: Array) -> Array:
    d = np.abs(distance)
    if rule.mode == "linear":
        return np.clip(1 - d, 0, 1)
    a = rule.coefficient
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((d - 5) * d + 8) * d * a - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _matrix(rule: Rule, axis: Axis) -> tuple[Array, Array]:
    """The share of each input element in each of the result, and what lies outside."""
    at = _coordinates(rule, axis)
    stretch = min(axis.scale, 1.0) if rule.antialias else 1.0
    reach = 1 if rule.mode == "linear" else 2
    left = np.ceil(at) - 1  # of two equally near neighbours the left one counts as nearer
    first = int(np.floor(-reach / stretch)) + 1
    places = left[:, None] + np.arange(first, 2 - first)
    weights = _kernel(rule, (places - at[:, None]) * stretch)
    if rule.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    if rule.exclude_outside:
        weights = np.where((places >= 0) & (places < axis.size), weights, 0.0)
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((axis.wanted, axis.size))
    columns = np.clip(places, 0, axis.size - 1).astype(np.int64)
    np.add.at(matrix, (np.arange(axis.wanted)[:, None], columns), weights)
    return matrix, (at < 0) | (at > axis.size - 1)


def resized(x: Tensor, axes: dict[int, Axis], rule: Rule, outside: float) -> Tensor:
    """x with some axes resized."""
    found = x if rule.mode == "nearest" or x.dtype.is_float else x.astype(eg.float32)
    beyond: list[tuple[int, Array]] = []
    for axis, how in axes.items():
        if how.size == how.wanted and how.scale == 1.0 and how.roi is None:
            continue
        if rule.mode == "nearest":
            at = _coordinates(rule, how)
            index = _nearest(rule, at, how.size)
            found = eg.take(found, eg.asarray(index, device=x.device), axis=axis)
            out = (at < 0) | (at > how.size - 1)
        else:
            matrix, out = _matrix(rule, how)
            weights = eg.asarray(matrix.astype(np.float32), device=x.device).astype(found.dtype)
            last = eg.matmul(eg.moveaxis(found, axis, -1), weights.mT)
            found = eg.moveaxis(last, -1, axis)
        if rule.coordinates == "tf_crop_and_resize":
            beyond.append((axis, out))
    for axis, out in beyond:
        shape = [1] * x.ndim
        shape[axis] = out.size
        mask = eg.asarray(out.reshape(shape), device=x.device)
        found = eg.where(mask, eg.full((), outside, found.dtype, x.device), found)
    return found.astype(x.dtype)


def _rule(call: Call, defaults: tuple[str, str]) -> Rule:
    return Rule(
        {"bilinear": "linear", "trilinear": "linear"}.get(call("mode", "nearest"))
        or call("mode", "nearest"),
        call("coordinate_transformation_mode", defaults[0]),
        call("nearest_mode", defaults[1]),
        call("cubic_coeff_a", -0.75),
        bool(call("antialias", 0)),
        bool(call("exclude_outside", 0)),
    )


def _by_scales(x: Tensor, scales: Any, rule: Rule) -> Tensor:
    axes = {
        i: Axis(n, math.floor(n * float(s)), float(s), None)
        for i, (n, s) in enumerate(zip(x.shape, scales, strict=True))
    }
    checked_size("Resize", [a.wanted for a in axes.values()])
    return resized(x, axes, rule, 0.0)


@onnx_op("Upsample")
def _upsample_by_attribute(call: Call, x: Tensor) -> Tensor:
    scales = call("scales")
    if scales is None:  # opset 1
        scales = [1.0, 1.0, call("height_scale"), call("width_scale")]
    return _by_scales(x, scales, _rule(call, ("asymmetric", "floor")))


@onnx_op("Upsample", since=9, static=(1,))
@onnx_op("Resize", since=10, static=(1,))
def _upsample(call: Call, x: Tensor, scales: Any) -> Tensor:
    return _by_scales(x, scales, _rule(call, ("asymmetric", "floor")))


@onnx_op("Resize", since=11, static=(1, 2, 3))
def _resize(
    call: Call, x: Tensor, roi: Any = None, scales: Any = None, sizes: Any = None
) -> Tensor:
    rule = _rule(call, ("half_pixel", "round_prefer_floor"))
    chosen = [a % x.ndim for a in call("axes", range(x.ndim))]
    if (sizes is None or not len(sizes)) == (scales is None or not len(scales)):
        raise ArgumentError("Resize: takes scales or sizes, and not both")
    if sizes is not None and len(sizes):
        ratios = [int(s) / x.shape[a] for s, a in zip(sizes, chosen, strict=True)]
        policy = call("keep_aspect_ratio_policy", "stretch")
        wanted = [int(s) for s in sizes]
        if policy != "stretch":
            common = min(ratios) if policy == "not_larger" else max(ratios)
            ratios = [common] * len(ratios)
            wanted = [math.floor(common * x.shape[a] + 0.5) for a in chosen]
    else:
        ratios = [float(s) for s in scales]
        wanted = [math.floor(x.shape[a] * s) for a, s in zip(chosen, ratios, strict=True)]
    axes = {}
    for i, (axis, ratio, size) in enumerate(zip(chosen, ratios, wanted, strict=True)):
        region = None
        if rule.coordinates == "tf_crop_and_resize":
            region = (float(roi[i]), float(roi[len(chosen) + i]))
            if sizes is None or not len(sizes):
                size = math.floor(x.shape[axis] * (region[1] - region[0]) * ratio)
        axes[axis] = Axis(x.shape[axis], size, ratio, region)
    checked_size("Resize", [axes[i].wanted if i in axes else n for i, n in enumerate(x.shape)])
    return resized(x, axes, rule, call("extrapolation_value", 0.0))


@onnx_op("GridSample")
def _grid_sample(call: Call, x: Tensor, grid: Tensor) -> Tensor:
    mode = call("mode", "linear")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    padding = call("padding_mode", "zeros")
    return eg.grid_sample(x, grid, mode, padding, bool(call("align_corners", 0)))

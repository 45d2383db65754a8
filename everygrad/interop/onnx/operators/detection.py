"""Boxes and deformed windows: NonMaxSuppression, RoiAlign, DeformConv, images as bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError, FileError
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import array_of, checked_size


def _corners(boxes: Any, centred: bool) -> Any:
    """(top, left, bottom, right) of boxes that are given by corners or by their centres."""
    if centred:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 1)
    top, bottom = np.minimum(boxes[:, 0], boxes[:, 2]), np.maximum(boxes[:, 0], boxes[:, 2])
    left, right = np.minimum(boxes[:, 1], boxes[:, 3]), np.maximum(boxes[:, 1], boxes[:, 3])
    return np.stack([top, left, bottom, right], 1)


def _overlaps(box: Any, others: Any) -> Any:
    """The share of the union that a box has in common with each other."""
    height = np.minimum(box[2], others[:, 2]) - np.maximum(box[0], others[:, 0])
    width = np.minimum(box[3], others[:, 3]) - np.maximum(box[1], others[:, 1])
    common = np.maximum(height, 0) * np.maximum(width, 0)
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    union = (box[2] - box[0]) * (box[3] - box[1]) + areas - common
    return np.where(union > 0, common / np.where(union > 0, union, 1), 0.0)


@onnx_op("NonMaxSuppression", static=(0, 1, 2, 3, 4), raw=True)
def _non_max_suppression(
    call: Call, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None
) -> Any:
    limit = 0 if most is None else int(most.reshape(-1)[0])
    threshold = 0.0 if overlap is None else float(overlap.reshape(-1)[0])
    found = []
    for n in range(boxes.shape[0]):
        corners = _corners(boxes[n].astype(np.float64), bool(call("center_point_box", 0)))
        for c in range(scores.shape[1]):
            order = np.argsort(-scores[n, c], kind="stable")
            if least is not None:
                order = order[scores[n, c][order] > float(least.reshape(-1)[0])]
            kept: list[int] = []
            while order.size and len(kept) < limit:
                first, order = int(order[0]), order[1:]
                kept.append(first)
                order = order[_overlaps(corners[first], corners[order]) <= threshold]
            found += [(n, c, k) for k in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def _line(start: float, bin_size: float, bins: int, grid: int, size: int) -> Any:
    """Along one axis: the lower and upper neighbours of each sample, the upper one's weight, and
    whether it lies on the image."""
    at = start + (np.arange(bins)[:, None] + (np.arange(grid) + 0.5) / grid) * bin_size
    inside = (at >= -1.0) & (at <= size)
    at = np.maximum(at, 0)
    low = at.astype(np.int64)
    last = low >= size - 1
    low = np.where(last, size - 1, low)
    return low, np.where(last, low, low + 1), np.where(last, 0.0, at - low), inside


@onnx_op("RoiAlign", static=(1, 2))
def _roi_align(call: Call, x: Tensor, rois: Any, images: Any) -> Tensor:
    half = call("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    if call.version < 16:
        half = False
    offset, scale = (0.5 if half else 0.0), call("spatial_scale", 1.0)
    bins = (call("output_height", 1), call("output_width", 1))
    ratio, mode = call("sampling_ratio", 0), call("mode", "avg")
    if mode not in ("avg", "max"):
        raise ArgumentError(f"RoiAlign: mode is 'avg' or 'max', got {mode!r}")
    checked_size("RoiAlign", (*bins, max(ratio, 1), max(ratio, 1)))
    flat = x.reshape((*x.shape[:2], -1))
    out = []
    for roi, image in zip(np.asarray(rois, np.float64), np.asarray(images), strict=True):
        lines = []
        for axis in (0, 1):
            start, end = (roi[1 - axis + 2 * k] * scale - offset for k in (0, 1))
            length = end - start if half else max(end - start, 1.0)
            grid = ratio if ratio > 0 else max(int(np.ceil(length / bins[axis])), 1)
            checked_size("RoiAlign", (bins[axis], grid))
            lines.append(_line(start, length / bins[axis], bins[axis], grid, x.shape[2 + axis]))
        out.append(_aligned(flat[int(image)], lines, x.shape[3], mode))
    if not out:
        return eg.zeros((0, x.shape[1], *bins), x.dtype, x.device)
    return eg.stack(out, axis=0)


def _aligned(image: Tensor, lines: list[Any], width: int, mode: str) -> Tensor:
    """The average or largest of the samples of each bin, from four neighbours each."""
    (y0, y1, fy, in_y), (x0, x1, fx, in_x) = lines
    inside = in_y[:, None, :, None] & in_x[None, :, None, :]
    parts = []
    for ys, wy in ((y0, 1 - fy), (y1, fy)):
        for xs, wx in ((x0, 1 - fx), (x1, fx)):
            index = ys[:, None, :, None] * width + xs[None, :, None, :]
            weight = np.where(inside, wy[:, None, :, None] * wx[None, :, None, :], 0.0)
            taken = eg.take(image, eg.asarray(index, device=image.device), axis=1)
            w = eg.asarray(weight.astype(np.float32), device=image.device).astype(image.dtype)
            parts.append(taken * w)
    if mode == "avg":
        return eg.mean(parts[0] + parts[1] + parts[2] + parts[3], axis=(3, 4))
    return eg.amax(eg.stack(parts, axis=0), axis=(0, 4, 5))


@onnx_op("DeformConv")
def _deform_conv(
    call: Call, x: Tensor, w: Tensor, offset: Tensor, bias: Any = None, mask: Any = None
) -> Tensor:
    n, c, height, width = x.shape
    kernel = w.shape[2:]
    strides, dilations = call("strides", [1, 1]), call("dilations", [1, 1])
    pads, groups = call("pads", [0, 0, 0, 0]), call("group", 1)
    og = call("offset_group", 1)
    taps = kernel[0] * kernel[1]
    places = offset.shape[2:]
    moves = offset.reshape((n, og, taps, 2, *places))
    tap = np.stack(np.meshgrid(*map(np.arange, kernel), indexing="ij"), -1).reshape(-1, 2)
    at = []
    for axis in (0, 1):
        start = np.arange(places[axis]) * strides[axis] - pads[axis]
        shape = (1, 1, 1, -1, 1) if axis == 0 else (1, 1, 1, 1, -1)
        base = start.reshape(shape) + (tap[:, axis] * dilations[axis]).reshape(1, 1, -1, 1, 1)
        at.append(
            moves[:, :, :, axis]
            + eg.asarray(base.astype(np.float32), device=x.device).astype(x.dtype)
        )
    flat = x.reshape((n, og, c // og, 1, height * width))
    count = taps * places[0] * places[1]
    low = [eg.floor(v) for v in at]
    total: Any = 0
    for dy in (0, 1):
        for dx in (0, 1):
            y, z = low[0] + dy, low[1] + dx
            near = (1 - eg.abs(at[0] - y)) * (1 - eg.abs(at[1] - z))
            inside = (y >= 0) & (y < height) & (z >= 0) & (z < width)
            index = eg.clip(y, 0, height - 1) * width + eg.clip(z, 0, width - 1)
            weight = eg.where(inside, near, eg.zeros_like(near))
            wide = index.astype(eg.int64).reshape((n, og, 1, count))
            wide = eg.broadcast_to(wide, (n, og, c // og, count))
            taken = eg.gather(flat.reshape((n, og, c // og, height * width)), wide, axis=3)
            total = total + taken * weight.reshape((n, og, 1, count))
    if mask is not None:
        total = total * mask.reshape((n, og, 1, count))
    columns = total.reshape((n, groups, c // groups * taps, places[0] * places[1]))
    rows = w.reshape((groups, w.shape[0] // groups, -1))
    out = eg.matmul(rows, columns).reshape((n, w.shape[0], *places))
    return out if bias is None else out + bias.reshape((-1, 1, 1))


@onnx_op("ImageDecoder", raw=True)
def _image_decoder(call: Call, data: Any) -> Any:
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "ImageDecoder needs Pillow: pip install 'everygrad[data]'", name="PIL"
        ) from None
    form = call("pixel_format", "RGB")
    if form not in ("RGB", "BGR", "Grayscale"):
        raise ArgumentError(f"ImageDecoder: pixel_format {form!r} is not RGB, BGR or Grayscale")
    try:
        with Image.open(io.BytesIO(array_of(data).tobytes())) as image:
            found = np.array(image.convert("L" if form == "Grayscale" else "RGB"))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise FileError(f"ImageDecoder: {error}") from None
    if form == "Grayscale":
        return found[:, :, None]
    return np.ascontiguousarray(found[:, :, ::-1]) if form == "BGR" else found

"""Several ops that ONNX has as one: a convolution with its bias, and normalisations with theirs.

A pattern is looked for when its last op is written. What was written for the ops before it is read
by nobody then, and dropped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from everygrad import dtypes
from everygrad.compiler.facts import Move
from everygrad.compiler.ir import Value
from everygrad.interop.onnx.exporting import kernels
from everygrad.interop.onnx.exporting.writer import Writer

Pattern = Callable[[Writer, Value], "str | None"]


def fused(w: Writer, v: Value) -> str | None:
    """The one node that an elementwise op ends; None where it ends none."""
    for pattern in _PATTERNS.get(v.name, ()):
        found = pattern(w, v)
        if found is not None:
            return found
    return None


def _either(v: Value) -> Iterator[tuple[Value, Value]]:
    """Both orders of two arguments."""
    x, y = v.args
    yield x, y
    yield y, x


def _channels(v: Value, images: Value) -> Value | None:
    """The vector that a value has along axis 1 of images, and nothing else."""
    if v.move is not Move.RESHAPE or v.args[0].shape != images.shape[1:2]:
        return None
    (vector,) = v.args
    ones = (1,) * (len(images.shape) - 2)
    wanted: Any = ((*vector.shape, *ones), (1, *vector.shape, *ones))
    return vector if v.shape in wanted else None


def _convolution(w: Writer, v: Value) -> str | None:
    for conv, other in _either(v):
        if conv.name in ("conv2d", "convolve3d") and v.shape == conv.shape:
            bias = _channels(other, v)
            # one in bfloat16 is written between casts
            if bias is not None and v.dtype is conv.dtype is not dtypes.bfloat16:
                return kernels.convolution(w, conv, w.name(bias))
    return None


def _scaled_rows(w: Writer, v: Value) -> str | None:
    """standardize(x) * weight."""
    for rows, weight in _either(v):
        if rows.name == "standardize" and _fits(v, rows, weight):
            return kernels.layer_norm(w, rows, w.name(weight))
    return None


def _moved_rows(w: Writer, v: Value) -> str | None:
    """standardize(x) * weight + bias."""
    for scaled, bias in _either(v):
        if scaled.name != "multiply":
            continue
        for rows, weight in _either(scaled):
            if rows.name == "standardize" and _fits(v, rows, weight) and _fits(v, rows, bias):
                return kernels.layer_norm(w, rows, w.name(weight), w.name(bias))
    return None


def _fits(v: Value, rows: Value, weight: Value) -> bool:
    """Whether a weight has the shape of what was normalised; an op taken apart is no `Whole`."""
    count = len(rows.params["axes"])
    same = weight.shape == rows.shape[-count:] and weight.dtype is rows.dtype
    return same and v.shape == rows.shape and v.dtype is rows.dtype


def _batch_norm(w: Writer, v: Value) -> str | None:
    """(x - mean) * (rsqrt(var + eps) * weight) + bias, with the four of them along axis 1."""
    if v.dtype is dtypes.float64:  # ONNX has eps as a float32
        return None
    for scaled, moved in _either(v):
        bias = _channels(moved, v)
        if bias is None or scaled.name != "multiply":
            continue
        for centred, factor in _either(scaled):
            slope = _channels(factor, v)
            if slope is None or centred.name != "subtract" or slope.name != "multiply":
                continue
            x, off = centred.args
            mean = _channels(off, v)
            root, weight = next(
                ((a, b) for a, b in _either(slope) if a.name == "rsqrt"), (None, None)
            )
            if mean is None or root is None or weight is None or root.args[0].name != "add":
                continue
            var, eps = root.args[0].args
            number = eps.params.get("value") if eps.kind == "full" else None
            vectors = (weight, bias, mean, var)
            alike = len({(p.shape, p.dtype) for p in vectors}) == 1 and x.dtype is v.dtype
            if isinstance(number, float) and alike and x.shape == v.shape and x.dtype is var.dtype:
                names = [w.name(p) for p in (x, *vectors)]
                return w.node("BatchNormalization", *names, epsilon=number)
    return None


_PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "add": (_convolution, _moved_rows, _batch_norm),
    "multiply": (_scaled_rows,),
}

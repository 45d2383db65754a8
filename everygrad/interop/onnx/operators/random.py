"""Random numbers. A seed in the file draws by NumPy, as ONNX's reference does; without one the
draws are everygrad's, and `eg.manual_seed` governs them."""

from __future__ import annotations

from typing import Any

import numpy as np

import everygrad as eg
from everygrad import dtypes
from everygrad.core.tensor import Tensor
from everygrad.interop.onnx.operators.registry import Call, onnx_op
from everygrad.interop.onnx.values import checked_size, np_dtype


def _dtype(call: Call, like: Any = None) -> Any:
    said = call("dtype")
    if said is not None:
        return dtypes.as_dtype(np_dtype(said))
    return eg.float32 if like is None else like.dtype


def _drawn(call: Call, shape: tuple[int, ...], dtype: Any, normal: bool) -> Tensor:
    checked_size(call.op, shape)
    if call("seed") is not None:
        source = np.random.RandomState(int(call("seed")))
        draws = source.standard_normal(shape) if normal else source.uniform(0, 1, shape)
        found = eg.asarray(np.asarray(draws, np.float32), device=call.device)
    else:
        draw = eg.randn if normal else eg.rand
        found = draw(shape, device=call.device)
    if normal:
        found = found * call("scale", 1.0) + call("mean", 0.0)
    else:
        low, high = call("low", 0.0), call("high", 1.0)
        found = found * (high - low) + low
    return found.astype(dtype)


@onnx_op("RandomNormal", "RandomUniform", fold=False)
def _random(call: Call) -> Tensor:
    return _drawn(call, tuple(call("shape")), _dtype(call), call.op == "RandomNormal")


@onnx_op("RandomNormalLike", "RandomUniformLike", fold=False)
def _random_like(call: Call, x: Tensor) -> Tensor:
    return _drawn(call, x.shape, _dtype(call, x), call.op == "RandomNormalLike")


@onnx_op("Bernoulli", fold=False)
def _bernoulli(call: Call, x: Tensor) -> Tensor:
    if call("seed") is not None:
        draws = np.random.RandomState(int(call("seed"))).uniform(0, 1, x.shape)
        below = eg.asarray(np.asarray(draws, np.float32), device=x.device) < x
    else:
        below = eg.rand(x.shape, device=x.device) < x
    return below.astype(_dtype(call, x))


@onnx_op("Multinomial", fold=False)
def _multinomial(call: Call, x: Tensor) -> Tensor:
    dtype = eg.int32 if call("dtype") is None else _dtype(call)
    count = call("sample_size", 1)
    checked_size("Multinomial", (x.shape[0], count))
    shares = eg.softmax(x, axis=-1)
    if call("seed") is None:
        return eg.multinomial(shares, count, replacement=True).astype(dtype)
    draws = np.random.RandomState(int(call("seed"))).uniform(0, 1, (x.shape[0], 1, count))
    ends = eg.cumulative_sum(shares, axis=1).expand_dims(2)
    below = ends < eg.asarray(draws.astype(np.float32), device=x.device)
    return eg.sum(below.astype(eg.int64), axis=1).astype(dtype)

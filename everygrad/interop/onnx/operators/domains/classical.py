"""Operators of ai.onnx.ml: scalers, labels, linear models, trees."""

from __future__ import annotations

from typing import Any

import numpy as np

import everygrad as eg
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import ML, Call, onnx_op
from everygrad.interop.onnx.values import array_of


@onnx_op("Binarizer", domain=ML)
def _binarizer(call: Call, x: Tensor) -> Tensor:
    return (x > call("threshold", 0.0)).astype(x.dtype)


@onnx_op("Scaler", domain=ML)
def _scaler(call: Call, x: Tensor) -> Tensor:
    offset, scale = (
        eg.asarray(np.array(call(n), np.float32), device=x.device) for n in ("offset", "scale")
    )
    return (x.astype(eg.float32) - offset) * scale


@onnx_op("Normalizer", domain=ML)
def _normalizer(call: Call, x: Tensor) -> Tensor:
    wide = x.astype(eg.float32)
    norm = call("norm", "MAX")
    if norm == "MAX":
        size = eg.amax(wide, axis=-1, keepdims=True)
    elif norm == "L1":
        size = eg.sum(eg.abs(wide), axis=-1, keepdims=True)
    elif norm == "L2":
        size = eg.sqrt(eg.sum(wide * wide, axis=-1, keepdims=True))
    else:
        raise ArgumentError(f"Normalizer: norm is MAX, L1 or L2, got {norm!r}")
    return eg.where(size == 0, wide, wide / eg.where(size == 0, eg.ones_like(size), size))


@onnx_op("LinearRegressor", domain=ML)
def _linear_regressor(call: Call, x: Tensor) -> Tensor:
    targets = call("targets", 1)
    weights = np.array(call("coefficients"), np.float32).reshape(targets, -1)
    out = eg.matmul(x.astype(eg.float32), eg.asarray(weights, device=x.device).mT)
    bias = call("intercepts")
    if bias is not None:
        out = out + eg.asarray(np.array(bias, np.float32), device=x.device)
    return _finished(call, out)


def _finished(call: Call, scores: Any) -> Any:
    """Scores after a model's last function, which attributes write by number or by name."""
    how = call("post_transform", "NONE")
    if how in ("NONE", 0):
        return scores
    on_array = isinstance(scores, np.ndarray)
    x = eg.asarray(scores) if on_array else scores
    if how in ("LOGISTIC", 2):
        found = eg.sigmoid(x)
    elif how in ("SOFTMAX", 1):
        found = eg.softmax(x, axis=-1)
    else:
        raise ArgumentError(f"{call.op}: post_transform {how!r} is not known here")
    return array_of(found) if on_array else found


_KINDS = ("tensor", "strings", "int64s", "floats")


@onnx_op("LabelEncoder", domain=ML, raw=True)
def _label_encoder(call: Call, x: Any) -> Any:
    known = array_of(x)
    keys = next(call(f"keys_{k}") for k in _KINDS if call(f"keys_{k}") is not None)
    kind = next(k for k in _KINDS if call(f"values_{k}") is not None)
    found = call(f"values_{kind}")
    defaults = {"strings": "_Unused", "int64s": -1, "floats": -0.0}
    dtypes = {"strings": object, "int64s": np.int64, "floats": np.float32}
    if kind == "tensor":
        dtype = found.dtype
        default = call("default_tensor", np.zeros(1, dtype)).reshape(-1)[0]
    else:
        dtype = np.dtype(dtypes[kind])
        default = call(f"default_{kind[:-1]}", defaults[kind])
    table = {
        _key(k): v
        for k, v in zip(np.asarray(keys).reshape(-1), np.asarray(found).reshape(-1), strict=True)
    }
    out = np.empty(known.shape, dtype)
    out.reshape(-1)[:] = [table.get(_key(v), default) for v in known.reshape(-1)]
    return out


def _key(value: Any) -> Any:
    """A key that finds NaN too, which is not equal to itself."""
    if isinstance(value, str):
        return str(value)
    number = float(value)
    return "NaN" if number != number else number


# --- trees ---------------------------------------------------------------------------------------

_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)


@onnx_op("TreeEnsemble", domain=ML, raw=True)
def _tree_ensemble(call: Call, x: Any) -> Any:
    """Each row goes down every tree; the leaves' weights add up for their targets."""
    known = array_of(x)
    modes = np.asarray(call("nodes_modes")).reshape(-1)
    splits = np.asarray(call("nodes_splits")).reshape(-1)
    features, targets = call("nodes_featureids"), call("n_targets", 1)
    leaf_weights = np.asarray(call("leaf_weights")).reshape(-1)
    members = _member_sets(call, modes)
    missing = call("nodes_missing_value_tracks_true") or [0] * len(modes)
    out: list[list[Any]] = [[[] for _ in range(targets)] for _ in known]
    for row, sums in zip(known, out, strict=True):
        for root in call("tree_roots"):
            at, leaf = root, False
            for _ in range(len(modes) + 1):
                if leaf:
                    break
                value = row[features[at]]
                if modes[at] == 6:
                    true = bool(value in members[at])
                else:
                    true = bool(_COMPARE[modes[at]](value, splits[at]))
                true = true or bool(missing[at] and value != value)
                side = "true" if true else "false"
                leaf = bool(call(f"nodes_{side}leafs")[at])
                at = call(f"nodes_{side}nodeids")[at]
            if not leaf:
                raise ArgumentError("TreeEnsemble: a tree is cyclic")
            sums[call("leaf_targetids")[at]].append(leaf_weights[at])
    combine: Any = {0: np.mean, 1: np.sum, 2: np.min, 3: np.max}[call("aggregate_function", 1)]
    found = np.array([[combine(v) if v else 0.0 for v in row] for row in out], known.dtype)
    return _finished(call, found.reshape(len(known), targets))


def _member_sets(call: Call, modes: Any) -> dict[int, Any]:
    """For each node that asks for membership, the values that NaN separates."""
    values = call("membership_values")
    if values is None:
        return {}
    flat = np.asarray(values).reshape(-1)
    parts = np.split(flat, np.nonzero(np.isnan(flat))[0])
    sets = [p[~np.isnan(p)] for p in parts]
    nodes = [i for i, m in enumerate(modes) if m == 6]
    return dict(zip(nodes, sets, strict=False))

"""Norms over layers, groups and batches with the statistics they give, and their backwards.

Half floats are computed in float32, as PyTorch does, whatever dtype the weights have."""

from __future__ import annotations

from collections.abc import Sequence

from everygrad import dtypes
from everygrad.core import shapes
from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import wide
from everygrad.interop.torch.aten.registry import Result, aten
from everygrad.ops.elementwise.basic import rsqrt
from everygrad.ops.nn.normalisation import rms_norm
from everygrad.ops.nn.softmax_and_norm import standardize
from everygrad.ops.python.creation import zeros
from everygrad.ops.python.inplace import assign

Maybe = Tensor | None


def _last(x: Tensor, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _affine(x: Tensor, weight: Maybe, bias: Maybe) -> Tensor:
    x = x if weight is None else x * wide(weight)
    return x if bias is None else x + wide(bias)


def _statistics(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The mean and the variance along axes, which stay as axes of one element."""
    mean = x.mean(axis=axes, keepdims=True)
    off = x - mean
    return mean, (off * off).mean(axis=axes, keepdims=True)


def _slope(g: Tensor, unit: Tensor, rstd: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The gradient by x of (x - mean) * rstd, both taken along axes; `unit` is its value."""
    along = (g * unit).mean(axis=axes, keepdims=True)
    return rstd * (g - g.mean(axis=axes, keepdims=True) - unit * along)


# --- layers --------------------------------------------------------------------------------------


@aten("native_layer_norm.default")
def native_layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, axes = wide(x), _last(x, normalized_shape)
    mean, var = _statistics(x, axes)
    return _affine(standardize(x, axes, eps), weight, bias), mean, rsqrt(var + eps)


@aten("layer_norm.default")
def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    return native_layer_norm(x, normalized_shape, weight, bias, eps)[0]


@aten("native_layer_norm_backward.default")
def native_layer_norm_backward(
    g: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Maybe,
    bias: Maybe,
    output_mask: Sequence[bool],
) -> list[Maybe]:
    g, x, axes = wide(g), wide(x), _last(x, normalized_shape)
    unit = (x - wide(mean)) * wide(rstd)
    outer = tuple(range(x.ndim - len(axes)))
    scaled = g if weight is None else g * wide(weight)
    return [
        _slope(scaled, unit, wide(rstd), axes) if output_mask[0] else None,
        (g * unit).sum(axis=outer) if output_mask[1] and weight is not None else None,
        g.sum(axis=outer) if output_mask[2] and bias is not None else None,
    ]


@aten("_fused_rms_norm.default")
def fused_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Maybe, eps: float | None
) -> tuple[Tensor, Tensor]:
    x = wide(x)
    least = dtypes.finfo(x.dtype).eps if eps is None else eps
    axes = _last(x, normalized_shape)
    rstd = rsqrt((x * x).mean(axis=axes, keepdims=True) + least)
    return _affine(x * rstd, weight, None), rstd


@aten("rms_norm.default")
def rms_norm_(
    x: Tensor, normalized_shape: Sequence[int], weight: Maybe = None, eps: float | None = None
) -> Tensor:
    out: Tensor = rms_norm(wide(x), tuple(normalized_shape), wide(weight), eps)
    return out


@aten("_fused_rms_norm_backward.default")
def fused_rms_norm_backward(
    g: Tensor,
    x: Tensor,
    normalized_shape: Sequence[int],
    rstd: Tensor,
    weight: Maybe,
    output_mask: Sequence[bool],
) -> list[Maybe]:
    g, x, rstd, axes = wide(g), wide(x), wide(rstd), _last(x, normalized_shape)
    unit = x * rstd
    scaled = g if weight is None else g * wide(weight)
    along = (scaled * unit).mean(axis=axes, keepdims=True)
    outer = tuple(range(x.ndim - len(axes)))
    return [
        rstd * (scaled - unit * along) if output_mask[0] else None,
        (g * unit).sum(axis=outer) if output_mask[1] and weight is not None else None,
    ]


# --- groups --------------------------------------------------------------------------------------


@aten("native_group_norm.default")
def native_group_norm(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    batch: int,
    channels: int,
    places: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    shape, rows = x.shape, wide(x).reshape((batch, group, channels // group * places))
    mean, var = (s.squeeze(2) for s in _statistics(rows, (2,)))
    each = (channels,) + (1,) * (len(shape) - 2)
    unit = standardize(rows, 2, eps).reshape(shape)
    weight = None if weight is None else weight.reshape(each)
    bias = None if bias is None else bias.reshape(each)
    return _affine(unit, weight, bias), mean, rsqrt(var + eps)


@aten("group_norm.default")
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Maybe = None,
    bias: Maybe = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    batch, channels, *places = x.shape
    inner = shapes.size_of(tuple(places))
    return native_group_norm(x, weight, bias, batch, channels, inner, num_groups, eps)[0]


@aten("native_group_norm_backward.default")
def native_group_norm_backward(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Maybe,
    batch: int,
    channels: int,
    places: int,
    group: int,
    output_mask: Sequence[bool],
) -> list[Maybe]:
    each = (batch, group, channels // group, places)
    grads, values = wide(g).reshape(each), wide(x).reshape(each)
    middle, scale = (
        wide(mean).reshape((batch, group, 1, 1)),
        wide(rstd).reshape((batch, group, 1, 1)),
    )
    unit = (values - middle) * scale
    scaled = grads
    if weight is not None:
        scaled = grads * wide(weight).reshape((group, channels // group, 1))
    by_channel = (batch, channels, places)
    return [
        _slope(scaled, unit, scale, (2, 3)).reshape(x.shape) if output_mask[0] else None,
        (grads * unit).reshape(by_channel).sum(axis=(0, 2)) if output_mask[1] else None,
        grads.reshape(by_channel).sum(axis=(0, 2)) if output_mask[2] else None,
    ]


# --- batches -------------------------------------------------------------------------------------


def _over_batch(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes that are averaged over, and how a vector over the channels is shaped."""
    return (0, *range(2, x.ndim)), (x.shape[1],) + (1,) * (x.ndim - 2)


def _trained(
    x: Tensor, weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """By the batch's own statistics: the result, the mean, the variance, 1 / the deviation."""
    x = wide(x)
    axes, channels = _over_batch(x)
    # with the axes kept they are the statistics inside `standardize`, which then go over x once
    mean, var = (s.reshape(-1) for s in _statistics(x, axes))
    weight = None if weight is None else weight.reshape(channels)
    bias = None if bias is None else bias.reshape(channels)
    return _affine(standardize(x, axes, eps), weight, bias), mean, var, rsqrt(var + eps)


def _inferred(
    x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    x = wide(x)
    _, channels = _over_batch(x)
    scale = rsqrt(wide(var) + eps)
    scale = scale if weight is None else scale * wide(weight)
    out = (x - wide(mean).reshape(channels)) * scale.reshape(channels)
    return out if bias is None else out + wide(bias).reshape(channels)


def _moved(x: Tensor, running: Tensor, now: Tensor, momentum: float, unbiased: bool) -> Tensor:
    """A running statistic taken towards the batch's; a variance as the unbiased one."""
    if unbiased:
        count = x.size // x.shape[1]
        now = now * (count / (count - 1)) if count > 1 else now
    return (running * (1 - momentum) + now * momentum).astype(running.dtype)


def _batch_norm(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
    result: Sequence[Result],
) -> tuple[list[Tensor], Maybe, Maybe]:
    """What all overloads share: the result and the statistics of this batch, then the running ones
    as they are afterwards."""
    if not training:
        assert running_mean is not None
        assert running_var is not None
        out = _inferred(x, weight, bias, running_mean, running_var, eps)
        saved = [running_mean, rsqrt(wide(running_var) + eps)]
        # on the CPU PyTorch keeps nothing for a backward that is made from running statistics
        kept = [
            s if r.shape == s.shape else zeros(r.shape, r.dtype, x.device)
            for s, r in zip(saved, result[1:3], strict=True)
        ]
        return [out, *kept], running_mean, running_var
    out, mean, var, rstd = _trained(x, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        running_mean = _moved(x, running_mean, mean, momentum, False)
        running_var = _moved(x, running_var, var, momentum, True)
    return [out, mean, rstd], running_mean, running_var


@aten("_native_batch_norm_legit_functional.default", wants_result=True)
def batch_norm_functional(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    *,
    result: Sequence[Result],
) -> list[Maybe]:
    found, mean, var = _batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, result
    )
    return [*found, mean, var]


@aten("_native_batch_norm_legit.default", "native_batch_norm.default", wants_result=True)
def batch_norm_in_place(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    training: bool,
    momentum: float,
    eps: float,
    *,
    result: Sequence[Result],
) -> list[Tensor]:
    """The running statistics get their new values themselves, as this overload promises."""
    found, mean, var = _batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, result
    )
    for running, new in ((running_mean, mean), (running_var, var)):
        if training and running is not None and new is not None:
            assign(running, new.detach(), "batch_norm")
    return found


@aten("_native_batch_norm_legit.no_stats", wants_result=True)
def batch_norm_without_running(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    training: bool,
    momentum: float,
    eps: float,
    *,
    result: Sequence[Result],
) -> list[Tensor]:
    # without running statistics there is nothing else than the batch's own
    return _batch_norm(x, weight, bias, None, None, True, momentum, eps, result)[0]


@aten("_native_batch_norm_legit_no_training.default", wants_result=True)
def batch_norm_no_training(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    result: Sequence[Result],
) -> list[Tensor]:
    return _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps, result)[0]


@aten("_batch_norm_no_update.default", wants_result=True)
def batch_norm_no_update(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    momentum: float,
    eps: float,
    *,
    result: Sequence[Result],
) -> list[Tensor]:
    training = running_mean is None
    found, _, _ = _batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps, result
    )
    return [*found, _reserve(x, result[3])]


@aten("_batch_norm_with_update_functional.default", wants_result=True)
def batch_norm_with_update_functional(
    x: Tensor,
    weight: Maybe,
    bias: Maybe,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    *,
    result: Sequence[Result],
) -> list[Maybe]:
    found, mean, var = _batch_norm(
        x, weight, bias, running_mean, running_var, True, momentum, eps, result
    )
    return [*found, _reserve(x, result[3]), mean, var]


def _reserve(x: Tensor, result: Result) -> Tensor:
    """What cuDNN would keep for itself; our backward needs nothing of it."""
    return zeros(result.shape, result.dtype, x.device)


@aten("native_batch_norm_backward.default")
def native_batch_norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Maybe,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_invstd: Maybe,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> list[Maybe]:
    g, x = wide(g), wide(x)
    axes, channels = _over_batch(x)
    mean, rstd = save_mean, save_invstd
    if not train:
        assert running_var is not None
        mean, rstd = running_mean, rsqrt(wide(running_var) + eps)
    assert mean is not None
    assert rstd is not None
    middle, scale = wide(mean).reshape(channels), wide(rstd).reshape(channels)
    unit = (x - middle) * scale
    scaled = g if weight is None else g * wide(weight).reshape(channels)
    by_input = None
    if output_mask[0]:
        by_input = _slope(scaled, unit, scale, axes) if train else scaled * scale
    return [
        by_input,
        (g * unit).sum(axis=axes) if output_mask[1] else None,
        g.sum(axis=axes) if output_mask[2] else None,
    ]


@aten("batch_norm_backward.default")
def batch_norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    running_mean: Maybe,
    running_var: Maybe,
    save_mean: Maybe,
    save_var: Maybe,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Tensor,
) -> list[Maybe]:
    return native_batch_norm_backward(
        g, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )

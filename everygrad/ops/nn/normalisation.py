"""Norms over batches, groups, instances and neighbours; layer_norm stands beside `standardize`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.autograd.modes import no_grad
from everygrad.core import shapes
from everygrad.core.context import intercepted
from everygrad.core.tensor import Tensor, wrap
from everygrad.dispatch import CPU, apply
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.elementwise.basic import rsqrt
from everygrad.ops.nn.channel_norm import channel_norm, moments, serves
from everygrad.ops.nn.softmax_and_norm import over_rows, scales_at_once, standardize
from everygrad.ops.python.creation import ones, zeros
from everygrad.ops.python.inplace import assign
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Kernel, check_kind
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.shape.joining import pad
from everygrad.ops.shape.movement import slice_axis

_X = s.real(2, 3, 2)


def _check_channels(op: str, x: Tensor, **given: Tensor | None) -> None:
    """Refuse what has no channels along axis 1, and vectors that are not over them."""
    if x.ndim < 2:
        raise ShapeError(f"{op}: needs a batch and channels, got shape {x.shape}")
    for name, value in given.items():
        if value is not None and value.shape != (x.shape[1],):
            raise ShapeError(f"{op}: {name} {value.shape} must have shape {(x.shape[1],)}")


def _check_running(op: str, mean: Tensor | None, var: Tensor | None, needed: bool) -> None:
    if (mean is None) != (var is None):
        raise ArgumentError(f"{op}: give both running_mean and running_var, or neither")
    if needed and mean is None:
        raise ArgumentError(f"{op}: without training it needs running_mean and running_var")


def _channels(t: Tensor, ndim: int) -> Tensor:
    """A vector over the channels, shaped to broadcast along axis 1."""
    return t.reshape((-1,) + (1,) * (ndim - 2))


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * _channels(weight, x.ndim)
    return x if bias is None else x + _channels(bias, x.ndim)


def _moved(
    op: str, pairs: Sequence[tuple[Tensor | None, Tensor]], momentum: float | Tensor
) -> None:
    """Running statistics taken towards those of this batch."""
    for running, now in pairs:
        if running is not None:
            new = running + (now.astype(running.dtype) - running) * momentum
            assign(running, new.detach(), op)


def _by_running(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    scale = rsqrt(var + eps)
    scale = scale if weight is None else scale * weight
    out = (x - _channels(mean, x.ndim)) * _channels(scale, x.ndim)
    return out if bias is None else out + _channels(bias, x.ndim)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:batch_norm",
    torch="tests.support.references.neural:torch_batch_norm",
    samples=lambda: iter(
        (
            sample(_X, None, None, s.real(3, seed=1), s.real(3, seed=2), True),
            sample(_X, s.real(3, seed=1), s.real(3, low=0.5, seed=2), s.real(3, seed=3)),
            sample(_X[:0], None, None, s.real(3, seed=1), s.real(3, seed=2), True),
        )
    ),
    refuses=(
        refuse(ShapeError, "batch_norm: needs a batch and channels", s.real(3), None, None),
        refuse(ShapeError, "batch_norm: weight .* must have shape", _X, None, None, s.real(2)),
        refuse(ArgumentError, "batch_norm: give both", _X, s.real(3), None),
        refuse(ArgumentError, "batch_norm: without training it needs", _X, None, None),
        refuse(
            ShapeError,
            "training needs more than one value",
            _X[:1, :, :1],
            None,
            None,
            training=True,
        ),
    ),
)
def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """x, channels along axis 1, standardised over all other axes, then scaled and shifted.

    In training the statistics are the batch's own and derivatives go through them; the running
    ones, if given, move towards them by `momentum`. Otherwise the running ones are used. The result
    has x's dtype, as in PyTorch: halves stay halves beside statistics and weights in float32.
    """
    given = {"running_mean": running_mean, "running_var": running_var}
    check_kind("batch_norm", x.dtype, "real float")
    _check_channels("batch_norm", x, **given, weight=weight, bias=bias)
    _check_running("batch_norm", running_mean, running_var, needed=not training)
    if not training:
        assert running_mean is not None
        assert running_var is not None
        return _by_running(x, running_mean, running_var, weight, bias, eps).astype(x.dtype)
    axes = (0, *range(2, x.ndim))
    count = shapes.size_of(tuple(x.shape[a] for a in axes))
    if count == 0:  # nothing to take statistics of: the running ones stay
        return _scaled(x, weight, bias).astype(x.dtype)
    if count == 1:
        raise ShapeError(
            f"batch_norm: training needs more than one value in each channel, got shape {x.shape}"
        )
    if serves(x, weight, bias):
        return _by_kernels(x, running_mean, running_var, weight, bias, momentum, eps)
    out = standardize(x, axes, eps)
    if running_mean is not None:
        with no_grad():
            # the running variance is the unbiased one, though the batch is scaled by the biased
            now = ((running_mean, x.mean(axis=axes)), (running_var, x.var(axis=axes, correction=1)))
            _moved("batch_norm", now, momentum)
    return _scaled(out, weight, bias).astype(x.dtype)


def _by_kernels(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float | Tensor,
    eps: float,
) -> Tensor:
    """Batch norm in training by ops of their own."""
    channels = (x.shape[1],)
    with no_grad():
        weight = ones(channels, x.dtype) if weight is None else weight
        bias = zeros(channels, x.dtype) if bias is None else bias
    out = channel_norm(x, weight, bias, eps)
    if running_mean is not None:
        count = shapes.size_of((x.shape[0], *x.shape[2:]))
        with no_grad():
            found = moments(x)
            now = ((running_mean, found[0]), (running_var, found[1] * (count / (count - 1))))
            _moved("batch_norm", now, momentum)
    return out


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:instance_norm",
    torch="tests.support.references.neural:torch_instance_norm",
    samples=lambda: iter(
        (
            sample(_X, None, None, s.real(3, seed=1), s.real(3, seed=2), eps=0.1),
            sample(_X, s.real(3, seed=1), s.real(3, low=0.5, seed=2), use_input_stats=False),
        )
    ),
    refuses=(
        refuse(ShapeError, "instance_norm: needs places", s.real(2, 3)),
        refuse(ShapeError, "instance_norm: bias .* must have shape", _X, bias=s.real(2)),
        refuse(ArgumentError, "instance_norm: without", _X, use_input_stats=False),
        refuse(ShapeError, "needs more than one value", _X[:, :, :1]),
    ),
)
def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Each channel of each example standardised over its places, then scaled and shifted.

    Running statistics, if given, move by `momentum` towards the mean over the batch; without
    `use_input_stats` they are used instead of the example's own. The result has x's dtype.
    """
    given = {"running_mean": running_mean, "running_var": running_var}
    check_kind("instance_norm", x.dtype, "real float")
    _check_channels("instance_norm", x, **given, weight=weight, bias=bias)
    _check_running("instance_norm", running_mean, running_var, needed=not use_input_stats)
    if x.ndim < 3:
        raise ShapeError(f"instance_norm: needs places behind the channels, got shape {x.shape}")
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        return _by_running(x, running_mean, running_var, weight, bias, eps).astype(x.dtype)
    axes = tuple(range(2, x.ndim))
    if shapes.size_of(x.shape[2:]) < 2:
        raise ShapeError(
            f"instance_norm: needs more than one value in each channel, got shape {x.shape}"
        )
    out = standardize(x, axes, eps)
    if running_mean is not None:
        with no_grad():
            mean, var = x.mean(axis=axes), x.var(axis=axes, correction=1)
            now = ((running_mean, mean.mean(axis=0)), (running_var, var.mean(axis=0)))
            _moved("instance_norm", now, momentum)
    return _scaled(out, weight, bias).astype(x.dtype)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:group_norm",
    torch="torch.nn.functional:group_norm",
    samples=lambda: iter(
        (
            sample(s.real(2, 4), 2),
            sample(s.real(1, 4, 3), 2, s.real(4, seed=1), s.real(4, seed=2), eps=0.1),
        )
    ),
    refuses=(
        refuse(ShapeError, "group_norm: 3 channels are no multiple of 2 groups", _X, 2),
        refuse(ArgumentError, "group_norm: num_groups must be", _X, 0),
        refuse(ShapeError, "group_norm: weight .* must have shape", _X, 3, s.real(2)),
    ),
    precision="float32",
)
def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Each group of channels of each example standardised, then scaled and shifted by channel."""
    check_kind("group_norm", x.dtype, "real float")
    _check_channels("group_norm", x, weight=weight, bias=bias)
    if isinstance(num_groups, bool) or not isinstance(num_groups, int) or num_groups < 1:
        raise ArgumentError(
            f"group_norm: num_groups must be a positive integer, got {num_groups!r}"
        )
    n, c = x.shape[:2]
    if c % num_groups:
        raise ShapeError(f"group_norm: {c} channels are no multiple of {num_groups} groups")
    size = c // num_groups * shapes.size_of(x.shape[2:])
    out = standardize(x.reshape(n, num_groups, size), -1, eps)
    return _scaled(out.reshape(x.shape), weight, bias)


def _scaled_rms(x: Tensor, weight: Tensor, axes: shapes.Shape, eps: float) -> Tensor:
    return x * rsqrt((x * x).mean(axis=axes, keepdims=True) + eps) * weight


class _ScaledRms(Kernel):
    """rms_norm. Recorded where `scales_at_once` says so; elsewhere its definition is."""

    def vjp(self, node: Any, g: Tensor, create_graph: bool) -> Sequence[Any]:
        _, x, weight = self.restore(node, create_graph)
        axes, eps = node.params["axes"], node.params["eps"]
        arrays = all(t is None or type(t._data) is np.ndarray for t in (g, x, weight))
        if not create_graph and arrays and not intercepted() and axes == (x.ndim - 1,):
            found = CPU.rms_gradients(g._data, x._data, weight._data, eps)
            if found is not None:
                return [
                    None if p is None else wrap(one)
                    for p, one in zip(node.parents, found, strict=True)
                ]
        to_x, to_weight = (parent is not None for parent in node.parents)
        scale = rsqrt((x * x).mean(axis=axes, keepdims=True) + eps)
        by_x = by_weight = None
        if to_x:
            given = g * weight
            along = (given * x).mean(axis=axes, keepdims=True)
            by_x = scale * (given - x * (scale * scale * along))
        if to_weight:
            by_weight = over_rows(g * (x * scale))
        return [by_x, by_weight]


# rms_norm over the last axis, in one kernel
SCALED_RMS: Kernel = _ScaledRms(
    "scaled_rms",
    _scaled_rms,
    ("x", "weight"),
    (lambda g, x, weight: g, lambda g, x, weight: g),
    precision="float32",
)
register(
    SCALED_RMS,
    lambda x, weight, axes, eps: apply(SCALED_RMS, x, weight, axes=axes, eps=eps),
    reference=lambda x, weight, axes, eps: (
        x / np.sqrt((x * x).mean(axis=axes, keepdims=True) + eps) * weight
    ),
    namespace="internal",
    samples=lambda: iter((sample(s.real(2, 4), s.real(4, seed=1), (1,), 1e-3),)),
)


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:rms_norm",
    torch="torch.nn.functional:rms_norm",
    samples=lambda: iter(
        (
            sample(s.real(2, 4), (4,), s.real(4, seed=1), 1e-3),
            sample(s.real(2, 2, 3), (2, 3)),
        )
    ),
    refuses=(
        refuse(ShapeError, r"rms_norm: \(2, 4\) does not end in \(3,\)", s.real(2, 4), (3,)),
        refuse(ShapeError, "rms_norm: weight .* must have shape", s.real(2, 4), (4,), s.real(3)),
    ),
    precision="float32",
)
def rms_norm(
    x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x over the root of the mean of its squares along its last axes, then scaled by weight.

    `eps` is added to that mean; without it, the distance from 1 to the next number of the dtype
    (of float32, in which half floats are computed).
    """
    check_kind("rms_norm", x.dtype, "real float")
    last = shapes.as_shape(normalized_shape, "rms_norm")
    if not last or x.shape[-len(last) :] != last:
        raise ShapeError(f"rms_norm: {x.shape} does not end in {last}")
    if weight is not None and weight.shape != last:
        raise ShapeError(f"rms_norm: weight {weight.shape} must have shape {last}")
    wide = x.astype(dtypes.float32) if x.dtype.itemsize < 4 else x
    least = float(np.finfo(wide.dtype.np).eps) if eps is None else eps
    axes = tuple(range(x.ndim - len(last), x.ndim))
    if weight is not None and len(axes) == 1 and wide is x and weight.dtype is x.dtype:
        if scales_at_once(x, weight, weight):
            return apply(SCALED_RMS, x, weight, axes=axes, eps=float(least))
        return _scaled_rms(x, weight, axes, float(least))
    out = wide * rsqrt((wide * wide).mean(axis=axes, keepdims=True) + least)
    out = out.astype(x.dtype)
    return out if weight is None else out * weight


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:local_response_norm",
    torch="torch.nn.functional:local_response_norm",
    samples=lambda: iter(
        (sample(s.real(1, 4, 2), 3, 0.5, 0.6, 2.0), sample(s.real(2, 3, 1), 2, 1.0))
    ),
    refuses=(
        refuse(ArgumentError, "local_response_norm: size must be", _X, 0),
        refuse(ShapeError, "local_response_norm: needs places", s.real(2, 3), 2),
    ),
    precision="float32",
)
def local_response_norm(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """x / (k + alpha m) ** beta, m being the mean of the squares of `size` neighbouring channels.

    Beyond the first and the last channel are zeros; of an even size the odd one is before.
    """
    check_kind("local_response_norm", x.dtype, "real float")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"local_response_norm: size must be a positive integer, got {size!r}")
    if x.ndim < 3:
        raise ShapeError(f"local_response_norm: needs places behind channels, got {x.shape}")
    around = ((0, 0), (size // 2, (size - 1) // 2), *((0, 0),) * (x.ndim - 2))
    squares = pad(x * x, around)
    total = slice_axis(squares, 1, 0, x.shape[1])
    for i in range(1, size):
        total = total + slice_axis(squares, 1, i, x.shape[1])
    return x / (total * (alpha / size) + k) ** beta

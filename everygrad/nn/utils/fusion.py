"""Batch norm folded into the layer before it, for evaluation."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from everygrad.autograd.modes import no_grad
from everygrad.core.tensor import Tensor
from everygrad.errors import ArgumentError
from everygrad.nn.linear import Linear
from everygrad.nn.module import Module
from everygrad.nn.parameter import Parameter
from everygrad.ops.elementwise.basic import sqrt
from everygrad.ops.python.creation import ones_like, zeros_like


def _folded(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    gain: Tensor | None,
    shift: Tensor | None,
    axis: int,
) -> tuple[Parameter, Parameter]:
    """The weights of the layer and the norm together; `axis` is that of the out channels."""
    with no_grad():
        bias = zeros_like(mean) if bias is None else bias
        gain = ones_like(mean) if gain is None else gain
        shift = zeros_like(mean) if shift is None else shift
        scale = gain / sqrt(var + eps)
        wide = [1] * weight.ndim
        wide[axis] = -1
        new = weight * scale.reshape(wide).astype(weight.dtype)
        return (
            Parameter(new, weight.requires_grad),
            Parameter(((bias - mean) * scale + shift).astype(bias.dtype), bias.requires_grad),
        )


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """A convolution's weight and bias with a batch norm folded in.

    >>> import everygrad as eg
    >>> w, b = eg.nn.utils.fuse_conv_bn_weights(
    ...     eg.ones((2, 1, 1, 1)), None, eg.zeros((2,)), eg.ones((2,)), 0.0, None, None
    ... )
    >>> b.tolist()
    [0.0, 0.0]
    """
    return _folded(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """A Linear's weight and bias with a batch norm folded in.

    >>> import everygrad as eg
    >>> w, b = eg.nn.utils.fuse_linear_bn_weights(
    ...     eg.ones((2, 3)), None, eg.zeros((2,)), eg.ones((2,)), 0.0, None, None
    ... )
    >>> w.shape
    (2, 3)
    """
    return _folded(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def _check(fn: str, layer: Module, norm: Any) -> None:
    if layer.training or norm.training:
        raise ArgumentError(
            f"{fn}: fusing is for evaluation only; call eval() on both modules first"
        )
    if norm.running_mean is None or norm.running_var is None:
        raise ArgumentError(f"{fn}: the batch norm tracks no statistics to fold in")


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A copy of the convolution that does what it and the batch norm behind it do in evaluation.

    >>> import everygrad as eg
    >>> conv, norm = eg.nn.Conv2d(1, 2, 3).eval(), eg.nn.BatchNorm2d(2).eval()
    >>> eg.nn.utils.fuse_conv_bn_eval(conv, norm)
    Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
    """
    _check("fuse_conv_bn_eval", conv, bn)
    fused = deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias,
        transpose,
    )  # fmt: skip
    return fused


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A copy of the Linear that does what it and the batch norm behind it do in evaluation.

    >>> import everygrad as eg
    >>> linear, norm = eg.nn.Linear(3, 2).eval(), eg.nn.BatchNorm1d(2).eval()
    >>> eg.nn.utils.fuse_linear_bn_eval(linear, norm)
    Linear(in_features=3, out_features=2, bias=True)
    """
    _check("fuse_linear_bn_eval", linear, bn)
    if isinstance(linear, Linear) and bn.num_features not in (1, linear.out_features):
        raise ArgumentError(
            f"fuse_linear_bn_eval: {linear.out_features} features for a batch norm of "
            f"{bn.num_features}"
        )
    fused = deepcopy(linear)
    fused.weight, fused.bias = fuse_linear_bn_weights(
        linear.weight, linear.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused

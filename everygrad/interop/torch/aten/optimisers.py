"""Optimisers' steps: PyTorch's fused ones, and ops on lists of tensors (`_foreach_*`).

Each list is mapped over: the compiler fuses updates of many tensors into one kernel by itself."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from everygrad.core.tensor import Tensor
from everygrad.interop.torch.aten.derivatives import wide
from everygrad.interop.torch.aten.registry import aten
from everygrad.ops.elementwise.basic import maximum, minimum, sqrt, where
from everygrad.ops.python.creation import zeros
from everygrad.ops.record.spec import REGISTRY
from everygrad.ops.reduce.norms_and_counts import norm

Tensors = Sequence[Tensor]
Lists = tuple[list[Tensor], ...]


def _unscaled(g: Tensor, grad_scale: Tensor | None) -> Tensor:
    return wide(g) if grad_scale is None else wide(g) / grad_scale


def _adam(decoupled: bool) -> Any:
    """Adam, or AdamW whose decay does not pass through the moments."""

    def run(
        params: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: float | Tensor,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> Lists:
        found: Lists = ([], [], [], [], [])
        for i, p in enumerate(params):
            given = (p, grads[i], exp_avgs[i], exp_avg_sqs[i])
            x, kept, m, v = (wide(t) for t in given)
            kept = _unscaled(kept, grad_scale)
            g = -kept if maximize else kept
            if weight_decay and decoupled:
                x = x - x * (lr * weight_decay)
            elif weight_decay:
                g = g + x * weight_decay
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            t = state_steps[i].astype(x.dtype)
            most = v
            if amsgrad:
                most = maximum(wide(max_exp_avg_sqs[i]), v)
            first, second = 1 - beta1**t, 1 - beta2**t
            new = x - (lr / first) * m / (sqrt(most) / sqrt(second) + eps)
            made = [new, kept, m, v, *([most] if amsgrad else [])]
            old = [*given, *([max_exp_avg_sqs[i]] if amsgrad else [])]
            for out, one, before in zip(found, made, old, strict=False):
                out.append(_unless(found_inf, one, before))
        return found

    return run


def _unless(found_inf: Tensor | None, new: Tensor, before: Tensor) -> Tensor:
    """The new value in the old one's dtype; the old one if a gradient was infinite."""
    new = new.astype(before.dtype)
    return new if found_inf is None else where(found_inf == 1, before, new)


aten("_fused_adam.default", "_fused_adam.tensor_lr")(_adam(False))
aten("_fused_adamw.default", "_fused_adamw.tensor_lr")(_adam(True))


@aten("_fused_sgd.default", "_fused_sgd.tensor_lr")
def fused_sgd(
    params: Tensors,
    grads: Tensors,
    buffers: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: float | Tensor,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> Lists:
    found: Lists = ([], [], [])
    for i, p in enumerate(params):
        x, kept = wide(p), _unscaled(grads[i], grad_scale)
        g = -kept if maximize else kept
        g = g + x * weight_decay if weight_decay else g
        if momentum:
            before = buffers[i]
            moved = wide(before) * momentum + g * (1 - dampening)
            buffer = g if is_first_step else moved
            found[2].append(_unless(found_inf, buffer, before))
            g = g + buffer * momentum if nesterov else buffer
        found[0].append(_unless(found_inf, x - lr * g, p))
        found[1].append(_unless(found_inf, kept, grads[i]))
    return found


# --- lists of tensors ----------------------------------------------------------------------------


def _mapped(function: Callable[..., Tensor], *lists: Any, **named: Any) -> list[Tensor]:
    """The function of the first elements, of the second ones, ...; what is no list goes to all."""
    count = len(lists[0])
    rows = [x if isinstance(x, (list, tuple)) else [x] * count for x in lists]
    return [function(*given, **named) for given in zip(*rows, strict=True)]


def _foreach(name: str, overloads: Sequence[str], function: Callable[..., Tensor]) -> None:
    def run(*lists: Any, **named: Any) -> list[Tensor]:
        return _mapped(function, *lists, **named)

    aten(*(f"_foreach_{name}.{o}" for o in overloads))(run)


def _kept(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A function whose result stays in the first argument's dtype, if both are of one kind."""

    def run(x: Tensor, y: Any) -> Tensor:
        out: Tensor = function(x, y)
        return out.astype(x.dtype) if out.dtype.kind == x.dtype.kind else out

    return run


_BOTH = ("Scalar", "List", "ScalarList", "Tensor")


def _plus(sign: int) -> Callable[..., Tensor]:
    def run(x: Tensor, y: Any, alpha: Any = 1) -> Tensor:
        out: Tensor = x + y * (sign * alpha) if alpha != 1 or sign < 0 else x + y
        return out.astype(x.dtype) if out.dtype.kind == x.dtype.kind else out

    return run


_foreach("add", _BOTH, _plus(1))
_foreach("sub", _BOTH[:3], _plus(-1))
_foreach("mul", _BOTH, _kept(operator.mul))
_foreach("div", _BOTH, _kept(operator.truediv))
_foreach("pow", _BOTH[:3], _kept(operator.pow))
_foreach("maximum", _BOTH[:3], _kept(maximum))
_foreach("minimum", _BOTH[:3], _kept(minimum))
_foreach("clamp_min", _BOTH[:3], _kept(maximum))
_foreach("clamp_max", _BOTH[:3], _kept(minimum))


@aten("_foreach_pow.ScalarAndTensor")
def foreach_pow_of(base: float, exponents: Tensors) -> list[Tensor]:
    return [base**x for x in exponents]


@aten("_foreach_addcmul.Scalar", "_foreach_addcmul.ScalarList", "_foreach_addcmul.Tensor")
def foreach_addcmul(xs: Tensors, ys: Tensors, zs: Tensors, value: Any = 1) -> list[Tensor]:
    return _mapped(lambda x, y, z, k: x + y * z * k, xs, ys, zs, _each(value))


@aten("_foreach_addcdiv.Scalar", "_foreach_addcdiv.ScalarList", "_foreach_addcdiv.Tensor")
def foreach_addcdiv(xs: Tensors, ys: Tensors, zs: Tensors, value: Any = 1) -> list[Tensor]:
    return _mapped(lambda x, y, z, k: x + y / z * k, xs, ys, zs, _each(value))


def _each(value: Any) -> Any:
    """A tensor of numbers, one for each element of the lists, as a list."""
    if isinstance(value, Tensor):
        return [value[i] for i in range(value.shape[0])]
    return value


@aten("_foreach_lerp.Scalar", "_foreach_lerp.List", "_foreach_lerp.ScalarList")
def foreach_lerp(xs: Tensors, ends: Tensors, weight: Any) -> list[Tensor]:
    return _mapped(lambda x, end, w: x + (end - x) * w, xs, ends, weight)


@aten("_foreach_norm.Scalar")
def foreach_norm(xs: Tensors, ord: float = 2, dtype: Any = None) -> list[Tensor]:
    return [norm((x if dtype is None else x.astype(dtype)).reshape(-1), ord) for x in xs]


@aten("_foreach_copy.default")
def foreach_copy(xs: Tensors, others: Tensors, non_blocking: bool = False) -> list[Tensor]:
    return [y.astype(x.dtype).broadcast_to(x.shape) for x, y in zip(xs, others, strict=True)]


@aten("_foreach_zero.default")
def foreach_zero(xs: Tensors) -> list[Tensor]:
    return [zeros(x.shape, x.dtype, x.device) for x in xs]


_UNARY = (
    *("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "exp", "expm1", "floor", "frac"),
    *("lgamma", "log", "log10", "log1p", "log2", "reciprocal", "round", "rsqrt", "sigmoid", "sign"),
    *("sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
for _name in _UNARY:
    _foreach(_name, ("default",), REGISTRY[_name].function)
_foreach("neg", ("default",), operator.neg)

"""Rows for overloads that are not tagged `core`, but stand in graphs all the same: aot_autograd's
backwards, recurrent layers, attention, optimisers' steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from devtools.aten.rows import Maker, Row


def _recurrent(gates: int, states: int, ways: int = 1, layers: int = 2) -> Callable[..., Any]:
    """(input, states, weights, has_biases, num_layers, dropout, train, two ways, batch_first)"""

    def row(t: Maker) -> tuple[Any, ...]:
        hidden, given, params = 3, 4, []
        for layer in range(layers):
            for _ in range(ways):
                size = given if layer == 0 else hidden * ways
                params += [t(gates * hidden, size), t(gates * hidden, hidden)]
                params += [t(gates * hidden), t(gates * hidden)]
        start = [t(layers * ways, 2, hidden) for _ in range(states)]
        options = (True, layers, 0.0, False, ways == 2, True)
        return (t(2, 5, given), start if states == 2 else start[0], params, *options)

    return row


def _onednn(t: Maker, reverse: bool = False) -> tuple[Any, ...]:
    weights = (t(12, 4), t(12, 3), t(12), t(12))
    options = (reverse, [], 2, 3, 1, True, False, False, False)
    return (t(5, 2, 4), *weights, t(1, 2, 3), t(1, 2, 3), *options)


def _onednn_backward(t: Maker) -> tuple[Any, ...]:
    *given, _ = _onednn(t)
    out = torch.ops.aten.mkldnn_rnn_layer(*given, True)
    x, w0, w1, w2, w3, hx, cx, reverse, sizes, mode, hidden, layers, biases, both, first = given
    grads = tuple(t(*o.shape) for o in out[:3])
    options = (reverse, mode, hidden, layers, biases, True, both, sizes, first)
    return (x, w0, w1, w2, w3, hx, cx, *out[:3], *grads, *options, out[3])


def _attention(t: Maker, heads: int = 4, shared: int = 4, **options: Any) -> tuple[Any, ...]:
    q, k, v = t(2, heads, 5, 8), t(2, shared, 5, 8), t(2, shared, 5, 8)
    return (q, k, v, 0.0, options.pop("causal", False), options)


def _attention_backward(t: Maker, causal: bool, masked: bool) -> tuple[Any, ...]:
    q, k, v = t(2, 4, 5, 8), t(2, 4, 5, 8), t(2, 4, 5, 8)
    options = {"attn_mask": t(1, 1, 5, 5)} if masked else {}
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, log_sums = forward(q, k, v, 0.0, causal, **options)
    return (t(2, 4, 5, 8), q, k, v, out, log_sums, 0.0, causal, options)


def _encoder_layer(t: Maker, first: bool, masked: bool) -> tuple[Any, ...]:
    weights = (t(24, 8), t(24), t(8, 8), t(8), True, first, 1e-5)
    rest = (t(8), t(8), t(8), t(8), t(16, 8), t(16), t(8, 16), t(8))
    mask = (torch.tensor([[False] * 4 + [True], [False] * 5]), 1) if masked else ()
    return (t(2, 5, 8), 8, 2, *weights, *rest, *mask)


def _adam(t: Maker, amsgrad: bool = False) -> tuple[Any, ...]:
    shapes = ((2, 3), (4,))
    made = [[t(*s) for s in shapes], [t(*s) for s in shapes], [t(*s) for s in shapes]]
    squares = [t(*s).abs() for s in shapes]
    most = [s + 0.1 for s in squares] if amsgrad else []
    steps = [torch.tensor(3.0), torch.tensor(7.0)]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8}
    return (*made, squares, most, steps, options | {"amsgrad": amsgrad, "maximize": False})


def _quantised(t: Maker, *more: Any, zero: Any = 3, scale: float = 0.11) -> tuple[Any, ...]:
    """Numbers of which some lie outside of the 8 levels, and their rounding."""
    return (t(3, 5), scale, zero, 0, 7, *more)


def _by_tensors(t: Maker, axis: int | None, zero: torch.Tensor, *more: Any) -> tuple[Any, ...]:
    count = zero.numel()
    scale = t.unit(count).float() + 0.1
    where = () if axis is None else (axis,)
    return (t(3, 5), scale, zero, *where, -4, 3, *more)


def _zeros(t: Maker, count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-4, 4, (count,), generator=t.generator).to(dtype)


def _learned(t: Maker, axis: int | None, count: int) -> tuple[Any, ...]:
    return _by_tensors(t, axis, _zeros(t, count, torch.float32) + 0.25, 0.7)


def _sgd(t: Maker, nesterov: bool) -> tuple[Any, ...]:
    lists = [[t(2, 3), t(4)] for _ in range(3)]
    options = {"weight_decay": 0.01, "momentum": 0.9, "lr": 0.1, "dampening": 0.0}
    return (*lists, options | {"nesterov": nesterov, "maximize": False, "is_first_step": False})


def _ctc(t: Maker) -> tuple[Any, ...]:
    targets = t.index(4, 2, 3) + 1
    return (t(6, 2, 5).log_softmax(-1), targets, [6, 5], [3, 2])


def _ctc_backward(t: Maker) -> tuple[Any, ...]:
    given = _ctc(t)
    loss, alphas = torch.ops.aten._ctc_loss(*given)
    return (t(2), *given, loss, alphas, 0)


MORE: dict[str, tuple[Row, ...]] = {
    "lstm.input": (_recurrent(4, 2), _recurrent(4, 2, ways=2)),
    "gru.input": (_recurrent(3, 1), _recurrent(3, 1, ways=2)),
    "rnn_tanh.input": (_recurrent(1, 1),),
    "rnn_relu.input": (_recurrent(1, 1, ways=2),),
    "mkldnn_rnn_layer.default": (_onednn, lambda t: _onednn(t, True)),
    "mkldnn_rnn_layer_backward.default": (_onednn_backward,),
    "_scaled_dot_product_flash_attention_for_cpu.default": (
        _attention,
        lambda t: _attention(t, 4, 2, causal=True),
        lambda t: _attention(t, attn_mask=t(2, 1, 5, 5), scale=0.3),
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward.default": (
        lambda t: _attention_backward(t, False, False),
        lambda t: _attention_backward(t, True, False),
        lambda t: _attention_backward(t, False, True),
    ),
    "_scaled_dot_product_attention_math.default": (
        lambda t: (t(2, 4, 5, 8), t(2, 4, 6, 8), t(2, 4, 6, 8)),
        lambda t: (
            *(t(2, 4, 5, 8), t(2, 2, 5, 8), t(2, 2, 5, 8), None, 0.0, True),
            {"enable_gqa": True},
        ),
    ),
    "_transformer_encoder_layer_fwd.default": (
        lambda t: _encoder_layer(t, False, False),
        lambda t: _encoder_layer(t, True, False),
        lambda t: _encoder_layer(t, True, True),
    ),
    "_weight_norm_interface.default": (
        lambda t: (t(4, 3, 2), t(4, 1, 1)),
        lambda t: (t(4, 3), t(1, 3), 1),
    ),
    "_weight_norm_interface_backward.default": (
        lambda t: (t(4, 3, 2), t(4, 3, 2), t(4, 1, 1), t.unit(4, 1, 1), 0),
    ),
    "native_batch_norm_backward.default": (
        lambda t: (
            *(t(4, 3, 2), t(4, 3, 2), t(3), t(3), t.unit(3), t(3), t.unit(3)),
            *(True, 1e-5, [True] * 3),
        ),
        lambda t: (
            *(t(4, 3, 2), t(4, 3, 2), t(3), t(3), t.unit(3), t(0), t(0)),
            *(False, 1e-5, [True] * 3),
        ),
    ),
    "_native_batch_norm_legit_functional.default": (
        lambda t: (t(4, 3, 2), t(3), t(3), t(3), t.unit(3), True, 0.1, 1e-5),
        lambda t: (t(4, 3, 2), t(3), t(3), t(3), t.unit(3), False, 0.1, 1e-5),
    ),
    "_fused_rms_norm.default": (lambda t: (t(3, 4), [4], t(4), 1e-5),),
    "fake_quantize_per_tensor_affine.default": (
        _quantised,
        lambda t: _quantised(t, zero=-2, scale=1.7),
    ),
    "fake_quantize_per_tensor_affine_cachemask.default": (_quantised,),
    "fake_quantize_per_tensor_affine_cachemask_backward.default": (
        lambda t: (t(3, 5), t.mask(3, 5)),
    ),
    "fake_quantize_per_channel_affine_cachemask_backward.default": (
        lambda t: (t(3, 5), t.mask(3, 5)),
    ),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": (
        lambda t: (*_by_tensors(t, None, _zeros(t, 1, torch.int32))[:3], torch.ones(1), -4, 3),
        lambda t: (*_by_tensors(t, None, _zeros(t, 1, torch.int32))[:3], torch.zeros(1), -4, 3),
    ),
    **dict.fromkeys(
        (
            "fake_quantize_per_channel_affine.default",
            "fake_quantize_per_channel_affine_cachemask.default",
        ),
        (
            lambda t: _by_tensors(t, 0, _zeros(t, 3, torch.int32)),
            lambda t: _by_tensors(t, 1, _zeros(t, 5, torch.int32)),
            lambda t: _by_tensors(t, 1, _zeros(t, 5, torch.float32)),
        ),
    ),
    "_fake_quantize_learnable_per_tensor_affine.default": (lambda t: _learned(t, None, 1),),
    "_fake_quantize_learnable_per_tensor_affine_backward.default": (
        lambda t: (t(3, 5), *_learned(t, None, 1)),
    ),
    "_fake_quantize_learnable_per_channel_affine.default": (
        lambda t: _learned(t, 0, 3),
        lambda t: _learned(t, 1, 5),
    ),
    "_fake_quantize_learnable_per_channel_affine_backward.default": (
        lambda t: (t(3, 5), *_learned(t, 0, 3)),
        lambda t: (t(3, 5), *_learned(t, 1, 5)),
    ),
    "native_dropout_backward.default": (lambda t: (t(3, 4), t.mask(3, 4), 2.0),),
    "nll_loss_forward.default": (
        lambda t: (t(4, 3), t.index(3, 4), None, 1, -100),
        lambda t: (t(4, 3), t.index(3, 4), t.unit(3), 2, 1),
        lambda t: (t(4, 3), t.index(3, 4), t.unit(3), 0, -100),
    ),
    "nll_loss_backward.default": (
        lambda t: (t(), t(4, 3), t.index(3, 4), t.unit(3), 1, 1, t.unit()),
        lambda t: (t(4), t(4, 3), t.index(3, 4), None, 0, -100, t.unit()),
    ),
    "_ctc_loss.default": (_ctc,),
    "_ctc_loss_backward.default": (_ctc_backward,),
    "grid_sampler_2d_backward.default": (
        lambda t: (t(1, 2, 3, 3), t(1, 2, 4, 5), t(1, 3, 3, 2), 0, 1, False, [True, True]),
    ),
    "upsample_bicubic2d_backward.default": (
        lambda t: (t(1, 2, 7, 8), [7, 8], [1, 2, 4, 5], False),
    ),
    "_fft_c2c.default": (
        lambda t: (torch.complex(t(3, 4), t(3, 4)), [0, 1], 2, False),
        lambda t: (torch.complex(t(3, 5), t(3, 5)), [1], 1, True),
    ),
    "_fused_adamw.default": (_adam, lambda t: _adam(t, True)),
    "_fused_adam.default": (_adam,),
    "_fused_sgd.default": (lambda t: _sgd(t, False), lambda t: _sgd(t, True)),
    "_foreach_add.List": (lambda t: ([t(2), t(3)], [t(2), t(3)], {"alpha": 2}),),
    "_foreach_mul.Scalar": (lambda t: ([t(2), t(3)], 0.5),),
    "_foreach_div.List": (lambda t: ([t(2), t(3)], [t.unit(2), t.unit(3)]),),
    "_foreach_sqrt.default": (lambda t: ([t.unit(2), t.unit(3)],),),
    "_foreach_addcdiv.ScalarList": (
        lambda t: ([t(2), t(3)], [t(2), t(3)], [t.unit(2), t.unit(3)], [0.5, 2.0]),
    ),
    "_foreach_lerp.Scalar": (lambda t: ([t(2), t(3)], [t(2), t(3)], 0.3),),
    "_foreach_norm.Scalar": (lambda t: ([t(2), t(3, 2)],),),
}

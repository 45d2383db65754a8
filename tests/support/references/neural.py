"""What convolutions, pooling, norms, resampling and losses are held against: PyTorch and NumPy.

Op records name these as "tests.support.references.neural:NAME".
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F


def _given(value: Any) -> Any:
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def _as_torch(fn: Any) -> Any:
    """A function of torch as one of NumPy arrays."""

    def call(*args: Any, **options: Any) -> Any:
        out = fn(*map(_given, args), **{k: _given(v) for k, v in options.items()})
        return [o.numpy() for o in out] if isinstance(out, tuple | list) else out.numpy()

    return call


def _parts(fn: Any) -> Any:
    """A linear function that torch has for real numbers only."""

    def call(x: Any, *args: Any, **options: Any) -> Any:
        if x.dtype.kind != "c":
            return fn(x, *args, **options)
        return fn(x.real, *args, **options) + 1j * fn(x.imag, *args, **options)

    return call


def _integers(fn: Any) -> Any:
    """A function that chooses elements, for the integers that torch does not choose from."""

    def call(x: Any, *args: Any, **options: Any) -> Any:
        given = x.astype(np.float64) if x.dtype.kind in "iu" else x
        return fn(given, *args, **options).astype(x.dtype)

    return call


# --- convolution ---------------------------------------------------------------------------------

MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate",
         "circular": "circular"}  # fmt: skip


def _with_padding(fn: Any, count: int) -> Any:
    """With asymmetric padding and padding modes, which torch's functions do not have."""

    def call(
        x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, padding_mode: str = "zeros",
    ) -> Any:  # fmt: skip
        if isinstance(padding, tuple) and padding and isinstance(padding[0], tuple):
            widths = [v for pair in reversed(padding) for v in pair]
            x, padding = F.pad(x, widths, mode=MODES[padding_mode]), 0
        elif padding_mode != "zeros":
            each = padding if isinstance(padding, tuple) else (padding,) * count
            widths = [v for p in reversed(each) for v in (p, p)]
            x, padding = F.pad(x, widths, mode=MODES[padding_mode]), 0
        return fn(x, w, bias, stride, padding, dilation, groups)

    return call


torch_conv1d = _with_padding(F.conv1d, 1)
torch_conv3d = _with_padding(F.conv3d, 3)
conv1d = _as_torch(torch_conv1d)
conv2d = _as_torch(_with_padding(F.conv2d, 2))
conv3d = _as_torch(torch_conv3d)
conv_transpose1d = _as_torch(F.conv_transpose1d)
conv_transpose2d = _as_torch(F.conv_transpose2d)
conv_transpose3d = _as_torch(F.conv_transpose3d)


def _volume(window: Any) -> dict[str, Any]:
    return {
        "stride": window.stride, "padding": window.padding, "dilation": window.dilation,
        "groups": window.groups,
    }  # fmt: skip


def convolve3d(x: Any, w: Any, window: Any) -> Any:
    return _as_torch(F.conv3d)(x, w, **_volume(window))


def convolve3d_input(y: Any, w: Any, window: Any, image: Any) -> Any:
    fn = torch.nn.grad.conv3d_input
    return _as_torch(lambda y, w: fn(image, w, y, **_volume(window)))(y, w)


def convolve3d_weight(x: Any, y: Any, window: Any, weight: Any) -> Any:
    fn = torch.nn.grad.conv3d_weight
    return _as_torch(lambda x, y: fn(x, weight, y, **_volume(window)))(x, y)


# --- pooling -------------------------------------------------------------------------------------


def _window(window: Any) -> tuple[Any, ...]:
    return (window.size, window.stride, window.padding)


def max_pool2d_value(x: Any, window: Any) -> Any:
    return max_pool2d(x, *_window(window), window.dilation)


def max_pool2d_spread(y: Any, x: Any, window: Any) -> Any:
    def spread(g: Any, x: Any) -> Any:
        x = x.to(g.dtype).requires_grad_()
        out = F.max_pool2d(x, *_window(window), window.dilation)
        return torch.autograd.grad(out, x, g)[0]

    return _as_torch(spread)(y, x)


def _ones(x: Any, window: Any) -> Any:
    """A kernel of ones for each channel."""
    return torch.ones((x.shape[1], 1, *window.size), dtype=x.dtype)


def sum_pool2d(x: Any, window: Any) -> Any:
    def sums(x: Any) -> Any:
        options = (window.stride, window.padding, window.dilation)
        return F.conv2d(x, _ones(x, window), None, *options, groups=x.shape[1])

    return _parts(_as_torch(sums))(x)


def sum_pool2d_spread(y: Any, window: Any, image: Any) -> Any:
    def spread(g: Any) -> Any:
        options = (window.stride, window.padding, window.dilation)
        weight = _ones(g, window)
        return torch.nn.grad.conv2d_input(image, weight, g, *options, groups=g.shape[1])

    return _parts(_as_torch(spread))(y)


max_pool1d = _integers(_as_torch(F.max_pool1d))
max_pool2d = _integers(_as_torch(F.max_pool2d))
max_pool3d = _integers(_as_torch(F.max_pool3d))
avg_pool1d = _parts(_as_torch(F.avg_pool1d))
avg_pool2d = _parts(_as_torch(F.avg_pool2d))
avg_pool3d = _parts(_as_torch(F.avg_pool3d))
lp_pool1d = _as_torch(F.lp_pool1d)
lp_pool2d = _as_torch(F.lp_pool2d)
lp_pool3d = _as_torch(F.lp_pool3d)
adaptive_avg_pool1d = _parts(_as_torch(F.adaptive_avg_pool1d))
adaptive_avg_pool2d = _parts(_as_torch(F.adaptive_avg_pool2d))
adaptive_avg_pool3d = _parts(_as_torch(F.adaptive_avg_pool3d))
adaptive_max_pool1d = _integers(_as_torch(F.adaptive_max_pool1d))
adaptive_max_pool2d = _integers(_as_torch(F.adaptive_max_pool2d))
adaptive_max_pool3d = _integers(_as_torch(F.adaptive_max_pool3d))


def _unpool(x: Any, indices: Any, kernel_size: int) -> Any:
    """Windows of `kernel_size` that do not overlap, as the samples have them."""
    sizes = [n * kernel_size for n in x.shape[2:]]
    out = np.zeros((*x.shape[:2], int(np.prod(sizes))), x.dtype)
    np.put_along_axis(out, indices.reshape(*x.shape[:2], -1), x.reshape(*x.shape[:2], -1), axis=2)
    return out.reshape(*x.shape[:2], *sizes)


max_unpool1d = max_unpool2d = max_unpool3d = _unpool

# --- images --------------------------------------------------------------------------------------


def im2col(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Place by place: what torch.nn.Unfold's documentation says, for any dtype."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = map(_pair, (kernel_size, dilation, padding, stride))
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    rows = range(0, x.shape[2] - dh * (kh - 1), sh)
    columns = range(0, x.shape[3] - dw * (kw - 1), sw)
    seen = [
        x[:, :, i : i + dh * (kh - 1) + 1 : dh, j : j + dw * (kw - 1) + 1 : dw].reshape(len(x), -1)
        for i in rows
        for j in columns
    ]
    return np.stack(seen, axis=-1)


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def col2im(
    x: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0,
    stride: Any = 1,
) -> Any:  # fmt: skip
    """Where `im2col` reads each element from, that much is added."""
    channels = x.shape[1] // int(np.prod(_pair(kernel_size)))
    names = np.arange(1, channels * int(np.prod(output_size)) + 1).reshape(1, -1, *output_size)
    places = im2col(names, kernel_size, dilation, padding, stride)[0]
    out = np.zeros((len(x), names.size + 1), x.dtype)
    for image, columns in zip(out, x, strict=True):
        np.add.at(image, places.reshape(-1), columns.reshape(-1))
    return out[:, 1:].reshape(len(x), channels, *output_size)


def _rearranged(fn: Any) -> Any:
    """A function that only moves elements, for every dtype: by the indices it moves."""

    def call(x: Any, *args: Any) -> Any:
        places = torch.arange(x.size).reshape(x.shape)
        return x.reshape(-1)[fn(places, *args).numpy()]

    return call


pixel_shuffle = _rearranged(F.pixel_shuffle)
pixel_unshuffle = _rearranged(F.pixel_unshuffle)
channel_shuffle = _rearranged(F.channel_shuffle)

# --- resampling ----------------------------------------------------------------------------------


def interpolate(x: Any, size: Any = None, **options: Any) -> Any:
    return _as_torch(F.interpolate)(x, size, **options)


def grid_sample(x: Any, grid: Any, align_corners: bool = False, **options: Any) -> Any:
    return _as_torch(F.grid_sample)(x, grid, align_corners=align_corners, **options)


def affine_grid(theta: Any, size: Any, align_corners: bool = False) -> Any:
    return _as_torch(F.affine_grid)(theta, list(size), align_corners=align_corners)


# --- norms ---------------------------------------------------------------------------------------

batch_norm = _as_torch(F.batch_norm)


def torch_batch_norm(x: Any, mean: Any, var: Any, *more: Any, **options: Any) -> Any:
    """With the derivatives by running statistics that torch leaves out."""
    if mean is None:
        return F.batch_norm(x, None, None, *more, **options)
    scale = torch.rsqrt(var + 1e-5)[:, None]
    return (x - mean[:, None]) * scale * more[0][:, None]


def torch_instance_norm(x: Any, mean: Any, var: Any, *more: Any, **options: Any) -> Any:
    if mean is None:
        return F.instance_norm(x, None, None, *more, **options)
    return (x - mean[:, None]) * torch.rsqrt(var + 1e-5)[:, None]


instance_norm = _as_torch(F.instance_norm)
group_norm = _as_torch(F.group_norm)
rms_norm = _as_torch(F.rms_norm)
local_response_norm = _as_torch(F.local_response_norm)

# --- losses --------------------------------------------------------------------------------------

nll_loss = _as_torch(F.nll_loss)


def torch_nll_loss(x: Any, target: Any, weight: Any = None, **options: Any) -> Any:
    """With the derivative by the weights of classes that torch leaves out."""
    if weight is None:
        return F.nll_loss(x, target, **options)
    share = weight[target]
    return -(x.gather(1, target[:, None])[:, 0] * share).sum() / share.sum()


def torch_binary_cross_entropy(
    x: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Any:
    """With the derivative by the weights that torch leaves out."""
    loss = F.binary_cross_entropy(x, target, reduction="none")
    loss = loss if weight is None else loss * weight
    return loss if reduction == "none" else getattr(loss, reduction)()


def torch_binary_cross_entropy_with_logits(
    x: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    above = target if pos_weight is None else target * pos_weight
    loss = -(above * F.logsigmoid(x) + (1 - target) * F.logsigmoid(-x))
    loss = loss if weight is None else loss * weight
    return loss if reduction == "none" else getattr(loss, reduction)()


l1_loss = _as_torch(F.l1_loss)
smooth_l1_loss = _as_torch(F.smooth_l1_loss)
huber_loss = _as_torch(F.huber_loss)
binary_cross_entropy = _as_torch(F.binary_cross_entropy)
binary_cross_entropy_with_logits = _as_torch(F.binary_cross_entropy_with_logits)
gaussian_nll_loss = _as_torch(F.gaussian_nll_loss)
poisson_nll_loss = _as_torch(F.poisson_nll_loss)


def binary_entropy(x: Any, target: Any) -> Any:
    """Terms of the cross entropy of two classes, by NumPy, for inputs that broadcast."""
    with np.errstate(divide="ignore"):
        yes, no = np.maximum(np.log(x), -100), np.maximum(np.log1p(-x), -100)
    return -(target * yes + (1 - target) * no)


def kl_div(x: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    with warnings.catch_warnings():  # that "mean" is not the divergence: we say so too
        warnings.simplefilter("ignore")
        return _as_torch(F.kl_div)(x, target, reduction=reduction, log_target=log_target)


def normalize(x: Any, p: float = 2.0, axis: int = 1) -> Any:
    return _as_torch(F.normalize)(x, p, axis)


def cosine_similarity(x1: Any, x2: Any, axis: int = 1) -> Any:
    return _as_torch(F.cosine_similarity)(x1, x2, axis)


def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, keepdims: bool = False) -> Any:
    return _as_torch(F.pairwise_distance)(x1, x2, p, keepdim=keepdims)


cosine_embedding_loss = _as_torch(F.cosine_embedding_loss)
triplet_margin_loss = _as_torch(F.triplet_margin_loss)
margin_ranking_loss = _as_torch(F.margin_ranking_loss)
hinge_embedding_loss = _as_torch(F.hinge_embedding_loss)
soft_margin_loss = _as_torch(F.soft_margin_loss)
multilabel_margin_loss = _as_torch(F.multilabel_margin_loss)
multilabel_soft_margin_loss = _as_torch(F.multilabel_soft_margin_loss)


def multi_margin_loss(
    x: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None
) -> Any:
    return _as_torch(F.multi_margin_loss)(x, target, p, margin, weight)


def ctc_loss(logs: Any, targets: Any, times: Any, lengths: Any, reduction: str = "mean") -> Any:
    """torch's lengths are a batch's, its log_probs and targets may be one example's."""
    given = [tuple(int(v) for v in np.asarray(one).reshape(-1)) for one in (times, lengths)]
    if logs.ndim == 2:
        logs, targets = logs[:, None], targets[None]
        out = _as_torch(F.ctc_loss)(logs, targets, *given, reduction=reduction)
        return out.reshape(()) if reduction == "none" else out
    return _as_torch(F.ctc_loss)(logs, targets, *given, reduction=reduction)


def ctc_states(emitted: Any, skips: Any, times: Any) -> Any:
    """Probabilities, state by state."""
    said = np.exp(emitted)
    out = np.zeros_like(said)
    out[0, :, :2] = said[0, :, :2]
    for t, n, state in np.ndindex(said.shape):
        if t and t >= times[n]:
            out[t, n, state] = out[t - 1, n, state]
        elif t:
            ways = [state - k for k in (0, 1, 2) if k < 2 or skips[n, state]]
            total = sum(out[t - 1, n, k] for k in ways if k >= 0)
            out[t, n, state] = total * said[t, n, state]
    return out


def ctc_adjoint(back: Any, alphas: Any, skips: Any, times: Any) -> Any:
    """Each way's share of a state, taken back state by state."""
    found, now = np.zeros_like(alphas), back[-1].copy()
    for t in range(len(alphas) - 1, 0, -1):
        before = back[t - 1].copy()
        for n, state in np.ndindex(now.shape):
            if t >= times[n]:
                before[n, state] += now[n, state]
                continue
            found[t, n, state] = now[n, state]
            ways = [state - k for k in (0, 1, 2) if state >= k and (k < 2 or skips[n, state])]
            shares = np.exp(alphas[t - 1, n, ways])
            before[n, ways] += now[n, state] * shares / shares.sum()
        now = before
    found[0, :, :2] = now[:, :2]
    return found


def channel_moments(x):
    axes = (0, *range(2, x.ndim))
    return np.stack((x.mean(axis=axes), x.var(axis=axes)))


def channel_norm(x, weight, bias, eps):
    return batch_norm(x, None, None, weight, bias, True, eps=eps)


def channel_norm_grads(g, x, weight, eps):
    """By the Jacobian of each channel, written out."""
    dx, dw, db = np.zeros_like(x), np.zeros_like(weight), np.zeros_like(weight)
    for c in range(x.shape[1]):
        v, up = x[:, c].reshape(-1), g[:, c].reshape(-1)
        n, scale = v.size, (v.var() + eps) ** -0.5
        unit = (v - v.mean()) * scale
        jacobian = scale * (np.eye(n) - 1 / n - np.outer(unit, unit) / n)
        dx[:, c] = (weight[c] * jacobian @ up).reshape(x[:, c].shape)
        dw[c], db[c] = (up * unit).sum(), up.sum()
    return np.concatenate((dx.reshape(-1), dw, db))

"""What the ops are held against: NumPy, SciPy and PyTorch, never our own code.

Op records name these as "tests.support.references.basic:NAME".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import special, stats

torch.set_num_threads(1)  # these arrays are tiny, and two test processes share the cores


def _torch(fn: Any, *arrays: Any, **options: Any) -> Any:
    given = [None if a is None else torch.tensor(np.asarray(a)) for a in arrays]
    return fn(*given, **options).numpy()


# --- movement and joining ------------------------------------------------------------------------


def sum_to(x: Any, shape: Any) -> Any:
    """The transpose of broadcasting: each element goes where it would be read from."""
    places = np.broadcast_to(np.arange(int(np.prod(shape))).reshape(shape), x.shape)
    out = np.zeros(int(np.prod(shape)), x.dtype)
    np.add.at(out, places.reshape(-1), x.reshape(-1))
    return out.reshape(shape)


def _places(slices: Any) -> Any:
    return np.ix_(*([start + i * step for i in range(count)] for start, count, step in slices))


def _integers(places: Any) -> Any:
    return tuple(p.astype(np.int64) for p in places)


def take_slices(x: Any, slices: Any) -> Any:
    return x[_integers(_places(slices))]


def put_slices(x: Any, shape: Any, slices: Any) -> Any:
    out = np.zeros(shape, x.dtype)
    out[_integers(_places(slices))] = x
    return out


def squeeze(x: Any, axis: Any = None) -> Any:
    return np.squeeze(x, axis)


def expand(x: Any, *shape: Any) -> Any:
    return torch.as_tensor(x).expand(*shape).numpy()


def flatten(x: Any, start_axis: int = 0, end_axis: int = -1) -> Any:
    return _torch(torch.flatten, x, start_dim=start_axis, end_dim=end_axis)


def split(x: Any, sizes: Any, axis: int = 0) -> Any:
    return [part.numpy() for part in torch.split(torch.tensor(x), sizes, dim=axis)]


def pad(x: Any, widths: Any, mode: str = "constant", value: float = 0.0) -> Any:
    if isinstance(widths, tuple) and isinstance(widths[0], int):  # the last axis alone
        widths = (*((0, 0),) * (x.ndim - 1), widths)
    if isinstance(widths, tuple) and min(map(min, widths)) < 0:
        wide = pad(x, tuple((max(a, 0), max(b, 0)) for a, b in widths), mode, value)
        ends = zip(wide.shape, widths, strict=True)
        return wide[tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in ends)]
    if mode == "constant":
        return np.pad(x, widths, constant_values=value)
    return np.pad(x, widths, mode={"replicate": "edge", "circular": "wrap"}.get(mode, mode))


# --- indexing ------------------------------------------------------------------------------------


def index_add(x: Any, index: Any, source: Any, axis: int = 0) -> Any:
    out = np.moveaxis(x.copy(), axis, 0)
    np.add.at(out, index, np.moveaxis(source, axis, 0))
    return np.moveaxis(out, 0, axis)


def gather(x: Any, index: Any, axis: int = 0) -> Any:
    out = np.empty(index.shape, x.dtype)
    for place in np.ndindex(index.shape):
        there = list(place)
        there[axis] = index[place]
        out[place] = x[tuple(there)]
    return out


def scatter_add(x: Any, index: Any, source: Any, axis: int = 0) -> Any:
    out = x.copy()
    for place in np.ndindex(index.shape):
        there = list(place)
        there[axis] = index[place]
        out[tuple(there)] += source[place]
    return out


def last_write(index: Any, size: int) -> Any:
    out = [-1] * size
    for place, name in enumerate(index):
        out[name] = place
    return np.array(out, index.dtype)


def index_put(x: Any, index: Any, values: Any) -> Any:
    out = x.copy()
    for place, value in zip(index, values, strict=True):
        out[place] = value
    return out


def embedding(indices: Any, weight: Any) -> Any:
    return weight[indices]


# --- products ------------------------------------------------------------------------------------


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    return np.vecdot(x, y, axis=axis)


def mulhi(x: Any, y: Any) -> Any:
    product = x.astype(object) * y.astype(object)
    return (product // 2**32).astype(np.uint32)


# --- functions -----------------------------------------------------------------------------------


def gelu(x: Any) -> Any:
    return x * stats.norm.cdf(x)


def softmax(x: Any, axis: int = -1) -> Any:
    return special.softmax(x, axis) if x.size else x


def log_softmax(x: Any, axis: int = -1) -> Any:
    return special.log_softmax(x, axis) if x.size else x


def softmax_vjp(g: Any, out: Any, axis: int) -> Any:
    """(diag(out) - out out^T) g, with the matrix written out."""

    def row(pair: Any) -> Any:
        g, y = np.split(pair, 2)
        return (np.diag(y) - np.outer(y, y)) @ g

    return np.apply_along_axis(row, axis, np.concatenate([g, out], axis))


def log_softmax_vjp(g: Any, out: Any, axis: int) -> Any:
    """(1 - exp(out) 1^T) g, with the matrix written out."""

    def row(pair: Any) -> Any:
        g, y = np.split(pair, 2)
        return (np.eye(g.size) - np.outer(np.exp(y), np.ones_like(g))) @ g

    return np.apply_along_axis(row, axis, np.concatenate([g, out], axis))


def standardize(x: Any, axis: Any = -1, eps: float = 1e-5) -> Any:
    axis = tuple(axis) if isinstance(axis, tuple | list) else axis
    return (x - np.mean(x, axis, keepdims=True)) / np.sqrt(np.var(x, axis, keepdims=True) + eps)


def standardize_vjp(g: Any, out: Any, x: Any, axes: Any, eps: float) -> Any:
    """The formula of layer norm's derivative, as in the literature (Ba et al. 2016)."""
    n = np.prod([x.shape[a] for a in axes])
    sigma = np.sqrt(np.var(x, axes, keepdims=True) + eps)
    ones = np.sum(g, axes, keepdims=True) / n
    along = out * np.sum(g * out, axes, keepdims=True) / n
    return (g - ones - along) / sigma


def scaled_standardize(x: Any, weight: Any, bias: Any, axes: Any, eps: float) -> Any:
    off = x - x.mean(axis=axes, keepdims=True)
    return off / np.sqrt(x.var(axis=axes, keepdims=True) + eps) * weight + bias


def scaled_standardize_vjp(g: Any, x: Any, weight: Any, axes: Any, eps: float) -> Any:
    return standardize_vjp(g * weight, standardize(x, axes, eps), x, axes, eps)


def times_standardized(g: Any, x: Any, axes: Any, eps: float) -> Any:
    return g * standardize(x, axes, eps)


def layer_norm(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return _torch(lambda x, w, b: F.layer_norm(x, tuple(shape), w, b, eps), x, weight, bias)


# --- losses --------------------------------------------------------------------------------------


def mse_loss(x: Any, target: Any, reduction: str = "mean") -> Any:
    return _torch(F.mse_loss, x, target, reduction=reduction)


def cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    labels = target if target.dtype.kind == "f" else target.astype(np.int64)
    return _torch(
        lambda x, t, w: F.cross_entropy(
            x,
            t,
            w,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
        ),
        x,
        labels,
        weight,
    )


def nll_gather(logs: Any, target: Any, axis: int, ignore_index: int) -> Any:
    swapped = np.moveaxis(np.asarray(logs), axis, 1) if logs.ndim > 1 else logs
    return _torch(
        lambda x, t: F.nll_loss(x, t, ignore_index=ignore_index, reduction="none"),
        np.ascontiguousarray(swapped),
        np.asarray(target),
    )


def softmax_cross_entropy(x: Any, target: Any, axis: int, ignore_index: int) -> Any:
    swapped = np.moveaxis(np.asarray(x), axis, 1) if x.ndim > 1 else x
    return _torch(
        lambda x, t: F.cross_entropy(x, t, ignore_index=ignore_index, reduction="none"),
        np.ascontiguousarray(swapped),
        np.asarray(target),
    )


def nll_scatter(v: Any, target: Any, axis: int, classes: int, ignore_index: int) -> Any:
    out = np.zeros((*target.shape, classes), v.dtype)
    for place in np.ndindex(target.shape):
        if target[place] != ignore_index:
            out[(*place, target[place])] = -v[place]
    return np.moveaxis(out, -1, axis)


# --- convolution and pooling ---------------------------------------------------------------------


def conv2d(
    x: Any, w: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    return _torch(lambda x, w, b: F.conv2d(x, w, b, stride, padding, dilation, groups), x, w, bias)


def _options(window: Any) -> dict[str, Any]:
    return {
        "stride": window.stride, "padding": window.padding, "dilation": window.dilation,
        "groups": window.groups,
    }  # fmt: skip


def conv2d_input(y: Any, w: Any, window: Any, image: Any) -> Any:
    fn = torch.nn.grad.conv2d_input
    return _torch(lambda y, w: fn(image, w, y, **_options(window)), y, w)


def conv2d_weight(x: Any, y: Any, window: Any, weight: Any) -> Any:
    fn = torch.nn.grad.conv2d_weight
    return _torch(lambda x, y: fn(x, weight, y, **_options(window)), x, y)


def _signed(x: Any) -> Any:
    """PyTorch pools no unsigned integers."""
    return x.astype(np.int64) if x.dtype.kind == "u" else x


def max_pool2d_index(x: Any, window: Any) -> Any:
    def index(x: Any) -> Any:
        return F.max_pool2d(
            x, window.size, window.stride, window.padding, window.dilation, return_indices=True
        )[1]

    return _torch(index, _signed(x))


def max_pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1
) -> Any:
    out = _torch(lambda x: F.max_pool2d(x, kernel_size, stride, padding, dilation), _signed(x))
    return out.astype(x.dtype)


def avg_pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Any:
    if x.dtype.kind == "c":  # linear, and PyTorch has it for real numbers only
        args = (kernel_size, stride, padding, count_include_pad)
        return avg_pool2d(x.real, *args) + 1j * avg_pool2d(x.imag, *args)
    return _torch(
        lambda x: F.avg_pool2d(
            x, kernel_size, stride, padding, count_include_pad=count_include_pad
        ),
        x,
    )


# --- random bits ---------------------------------------------------------------------------------


def philox_block(counter: Any, key: Any) -> list[int]:
    """Philox 4x32-10 in Python's integers, as the Random123 paper writes it."""
    c, k = [int(v) for v in counter], [int(v) for v in key]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % (1 << 32), (k[1] + 0xBB67AE85) % (1 << 32)]
    return c


def philox(state: Any, count: int) -> Any:
    start = int(state[2]) + (int(state[3]) << 32)
    words: list[int] = []
    for i in range(-(-count // 4)):
        at = (start + i) % (1 << 64)
        words += philox_block((at % (1 << 32), at >> 32, 0, 0), state[:2])
    return np.array(words[:count], np.uint32)


# --- attention -----------------------------------------------------------------------------------


def attention(q: Any, k: Any, v: Any, scale: Any = None, causal: bool = False) -> Any:
    return _torch(F.scaled_dot_product_attention, q, k, v, is_causal=causal, scale=scale)


def attention_masked(q: Any, k: Any, v: Any, mask: Any, scale: Any = None) -> Any:
    return _torch(F.scaled_dot_product_attention, q, k, v, mask, scale=scale)


def attention_grads(g: Any, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
    return _attention_slopes(g, (q, k, v), scale=scale, is_causal=causal)


def attention_masked_grads(g: Any, q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    return _attention_slopes(g, (q, k, v), scale=scale, attn_mask=torch.tensor(mask))


def attention_log_sums(q: Any, k: Any, scale: Any = None, causal: bool = False) -> Any:
    def sums(q: Any, k: Any) -> Any:
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).tril().bool(), -torch.inf)
        return torch.logsumexp(scores, -1)

    return _torch(sums, q, k)


def attention_saved_slopes(
    g: Any, q: Any, k: Any, v: Any, out: Any, log_sums: Any, scale: float, causal: bool
) -> Any:
    g, q, k, v, out, log_sums = (np.float64(np.asarray(a)) for a in (g, q, k, v, out, log_sums))
    scores = q @ k.swapaxes(-1, -2) * scale
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    p = np.exp(scores - log_sums[..., None])
    ds = p * (g @ v.swapaxes(-1, -2) - (g * out).sum(axis=-1, keepdims=True))
    found = [ds @ k * scale, ds.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ g]
    return np.concatenate([part.reshape(-1) for part in found])


def _attention_slopes(g: Any, inputs: Any, **options: Any) -> Any:
    leaves = [torch.tensor(np.asarray(a), requires_grad=True) for a in inputs]
    out = F.scaled_dot_product_attention(*leaves, **options)
    slopes = torch.autograd.grad(out, leaves, torch.tensor(np.asarray(g)))
    return np.concatenate([slope.numpy().reshape(-1) for slope in slopes])

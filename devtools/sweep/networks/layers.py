"""Layers written once for everygrad and for PyTorch, and networks of them that note what each did.

A network is a function of a `Net`, which makes parameters on first use (from NumPy, by name and
seed, so that both sides have the same) and runs each layer by one of the functions in LAYERS.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import everygrad as eg
from everygrad import nn

Array = Any  # of NumPy
Handle = Any  # a tensor of either side


class Ours:
    """everygrad, on a device."""

    F: Any = nn.functional
    concat = staticmethod(eg.concat)
    permute = staticmethod(eg.permute_dims)
    sin, cos = staticmethod(eg.sin), staticmethod(eg.cos)
    hardsigmoid = staticmethod(nn.functional.hardsigmoid)

    def __init__(self, device: str, dtype: str) -> None:
        self.device = device
        self.dtype = dtype

    def tensor(self, array: Array, grad: bool = False) -> Handle:
        array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        return eg.tensor(array, device=self.device, requires_grad=grad)

    def array(self, t: Handle) -> Array:
        return np.array(t.detach().to("cpu").numpy())

    def assign(self, t: Handle, array: Array) -> None:
        with eg.no_grad():
            t[...] = self.tensor(array)


class Theirs:
    """PyTorch in float64 on the CPU."""

    F: Any = torch.nn.functional
    concat = staticmethod(torch.concat)
    permute = staticmethod(torch.permute)
    sin, cos = staticmethod(torch.sin), staticmethod(torch.cos)

    def hardsigmoid(self, x: Handle) -> Handle:
        """Not F.hardsigmoid: its derivative in float64 has the float32 nearest to 1/6."""
        return self.F.relu6(x + 3) / 6

    def tensor(self, array: Array, grad: bool = False) -> Handle:
        # contiguous: PyTorch's batch_norm gives wrong gradients for some other strides of batches
        # of one
        array = array.astype(np.float64) if array.dtype.kind == "f" else array
        return torch.tensor(np.array(array, order="C"), requires_grad=grad)

    def array(self, t: Handle) -> Array:
        return t.detach().numpy().copy()

    def assign(self, t: Handle, array: Array) -> None:
        with torch.no_grad():
            t[...] = self.tensor(array)


Side = Ours | Theirs

# --- layers: functions of (side, tensors..., attributes...) --------------------------------------


def _batch_norm(lib: Side, x: Handle, w: Handle, b: Handle, mean: Handle, var: Handle) -> Handle:
    return lib.F.batch_norm(x, mean, var, w, b, training=True, momentum=0.1)


def _heads(lib: Side, x: Handle, heads: int) -> Handle:
    n, length, width = x.shape
    return lib.permute(x.reshape((n, length, heads, width // heads)), (0, 2, 1, 3))


def _attention(
    lib: Side,
    q: Handle,
    k: Handle,
    v: Handle,
    mask: Handle = None,
    *,
    heads: int,
    groups: int = 0,
    causal: bool = False,
    scale: float | None = None,
) -> Handle:
    """Several heads; `groups` of keys and values, where fewer than heads."""
    few = groups or heads
    parts = [_heads(lib, x, h) for x, h in ((q, heads), (k, few), (v, few))]
    out = lib.F.scaled_dot_product_attention(
        *parts, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=few != heads
    )
    out = lib.permute(out, (0, 2, 1, 3))
    return out.reshape((*out.shape[:2], out.shape[2] * out.shape[3]))


def _rotary(lib: Side, x: Handle, angles: Handle, heads: int) -> Handle:
    n, length, width = x.shape
    x = x.reshape((n, length, heads, 2, width // heads // 2))
    first, second = x[:, :, :, 0], x[:, :, :, 1]
    c, s = lib.cos(angles), lib.sin(angles)
    out = lib.concat([first * c - second * s, second * c + first * s], -1)
    return out.reshape((n, length, width))


def _patches(lib: Side, x: Handle) -> Handle:
    n, c, h, w = x.shape
    return lib.permute(x.reshape((n, c, h * w)), (0, 2, 1))


def _first(lib: Side, token: Handle, x: Handle) -> Handle:
    n, _, width = x.shape
    return lib.concat([token.expand((n, 1, width)), x], 1)


def _position_bias(lib: Side, table: Handle, buckets: Handle) -> Handle:
    """(1, heads, queries, keys) from one number for each distance and head."""
    found = lib.F.embedding(buckets, table)
    return lib.permute(found, (2, 0, 1)).reshape((1, table.shape[1], *buckets.shape))


def _channels_last(lib: Side, x: Handle, back: bool = False) -> Handle:
    return lib.permute(x, (0, 3, 1, 2) if back else (0, 2, 3, 1))


def _activation(name: str, **params: Any) -> Callable[..., Handle]:
    return lambda lib, x: getattr(lib.F, name)(x, **params)


LAYERS: dict[str, Callable[..., Handle]] = {
    "conv": lambda lib, *xs, **params: lib.F.conv2d(*xs, **params),
    "conv_transpose": lambda lib, *xs, **params: lib.F.conv_transpose2d(*xs, **params),
    "batch_norm": _batch_norm,
    "layer_norm": lambda lib, x, w, b: lib.F.layer_norm(x, tuple(w.shape), w, b, eps=1e-6),
    "rms_norm": lambda lib, x, w: lib.F.rms_norm(x, tuple(w.shape), w, eps=1e-6),
    "linear": lambda lib, *xs: lib.F.linear(*xs),
    "embedding": lambda lib, w, index: lib.F.embedding(index, w),
    "attention": _attention,
    "rotary": _rotary,
    "position_bias": _position_bias,
    "patches": _patches,
    "first": _first,
    "channels_last": _channels_last,
    "take_first": lambda lib, x: x[:, 0],
    "max_pool": lambda lib, x, **params: lib.F.max_pool2d(x, **params),
    "global_pool": lambda lib, x: x.mean((2, 3)),
    "squeeze_pool": lambda lib, x: lib.F.adaptive_avg_pool2d(x, 1),
    "add": lambda lib, x, y: x + y,
    "multiply": lambda lib, x, y: x * y,
    "concat": lambda lib, x, y: lib.concat([x, y], 1),
    "resize": lambda lib, x, **params: lib.F.interpolate(x, **params),
    "cross_entropy": lambda lib, x, target: lib.F.cross_entropy(x, target),
    "relu": _activation("relu"),
    "silu": _activation("silu"),
    "sigmoid": lambda lib, x: x.sigmoid(),
    "gelu": _activation("gelu"),
    "gelu_tanh": _activation("gelu", approximate="tanh"),
    "hardswish": _activation("hardswish"),
    "hardsigmoid": lambda lib, x: lib.hardsigmoid(x),
}


# --- layers with kinks, on the side that another run took ----------------------------------------
#
# Rounding decides on which side of a kink a number next to it falls, and each side has another
# slope. A run in float32 is compared with what float64 gives on the same sides: `seen` is what the
# layer was given in that run.


def _relu_as(lib: Side, x: Handle, seen: Handle) -> Handle:
    return x * (seen > 0)


def _hardswish_as(lib: Side, x: Handle, seen: Handle) -> Handle:
    return torch.where(seen <= -3, 0 * x, torch.where(seen >= 3, x, x * (x + 3) / 6))


def _hardsigmoid_as(lib: Side, x: Handle, seen: Handle) -> Handle:
    return torch.where(seen <= -3, 0 * x, torch.where(seen >= 3, 0 * x + 1, (x + 3) / 6))


def _max_pool_as(lib: Side, x: Handle, seen: Handle, **params: Any) -> Handle:
    out, index = torch.nn.functional.max_pool2d(seen, return_indices=True, **params)
    return x.flatten(2).gather(2, index.flatten(2)).reshape(out.shape)


ON_SIDES: dict[str, Callable[..., Handle]] = {
    "relu": _relu_as,
    "hardswish": _hardswish_as,
    "hardsigmoid": _hardsigmoid_as,
    "max_pool": _max_pool_as,
}


class Done(NamedTuple):
    """A layer that ran: what went in and came out."""

    name: str
    kind: str
    inputs: list[Handle]
    attributes: dict[str, Any]
    out: Handle
    state: list[Array]  # of its buffers, before
    buffers: list[Handle]


class Net:
    """One side's parameters and buffers; runs layers and notes them.

    `apart`: each layer gets copies of its inputs whose gradients are kept, so that what it gave
    back to each of them is known, whatever else used them. `seen`: what each layer gave in another
    run, whose sides are taken at kinks; of PyTorch only.
    """

    def __init__(
        self, side: Side, seed: int, apart: bool = False, seen: dict[str, Array] | None = None
    ) -> None:
        self.seen = seen
        self.side = side
        self.seed = seed
        self.apart = apart
        self.parameters: dict[str, Handle] = {}
        self.buffers: dict[str, Handle] = {}
        self.initial: dict[str, Array] = {}
        self.done: list[Done] = []
        self.counts: dict[str, int] = {}

    # --- what networks are made of -----------------------------------------------------------

    def weight(self, name: str, shape: tuple[int, ...], size: float, middle: float = 0.0) -> Handle:
        """A parameter with normal elements around `middle`."""
        if name not in self.parameters:
            rng = np.random.default_rng((self.seed, zlib.crc32(name.encode())))
            array = middle + size * rng.standard_normal(shape)
            array = array.astype(np.float32).astype(np.float64)  # the same in all dtypes
            self.parameters[name] = self.side.tensor(array, grad=True)
        return self.parameters[name]

    def buffer(self, name: str, array: Array) -> Handle:
        if name not in self.buffers:
            self.initial[name] = array
            self.buffers[name] = self.side.tensor(array)
        return self.buffers[name]

    def constant(self, array: Array) -> Handle:
        return self.side.tensor(array)

    def sharing(self) -> Net:
        """Another run with the same parameters and buffers."""
        other = Net(self.side, self.seed, seen=self.seen)
        other.parameters, other.buffers, other.initial = (
            self.parameters,
            self.buffers,
            self.initial,
        )
        return other

    def again(self) -> Net:
        """The same, with no gradients, and buffers as they were at first."""
        for p in self.parameters.values():
            p.grad = None
        for name, b in self.buffers.items():
            self.side.assign(b, self.initial[name])
        return self.sharing()

    def _seen_as(self, x: Handle) -> Handle:
        """What the other run had where this one has x: the result of some layer."""
        assert self.seen is not None
        name = next(done.name for done in reversed(self.done) if done.out is x)
        return self.side.tensor(self.seen[name])

    def __call__(self, kind: str, *inputs: Handle, buffers: Any = (), **attributes: Any) -> Handle:
        """A layer of this kind, noted."""
        number = self.counts[kind] = self.counts.get(kind, 0) + 1
        given = list(inputs)
        if self.apart:
            given = [_copied(x) for x in given]
        state = [self.side.array(b) for b in buffers] if self.apart else []
        if self.seen is not None and kind in ON_SIDES:
            out = ON_SIDES[kind](self.side, *given, self._seen_as(given[0]), **attributes)
        else:
            out = LAYERS[kind](self.side, *given, *buffers, **attributes)
        if self.apart and out.requires_grad:
            out.retain_grad()
        name = f"{kind} {number}"
        self.done.append(Done(name, kind, given, attributes, out, state, list(buffers)))
        return out

    # --- layers with parameters --------------------------------------------------------------

    def named(self, kind: str) -> str:
        return f"{kind} {self.counts.get(kind, 0) + 1}"

    def conv(
        self, x: Handle, out: int, size: int, stride: int = 1, groups: int = 1, bias: bool = False,
        padding: int | None = None,
    ) -> Handle:  # fmt: skip
        name, fan = self.named("conv"), x.shape[1] // groups
        shape = (out, fan, size, size)
        weights = [self.weight(f"{name} weight", shape, (2 / (fan * size * size)) ** 0.5)]
        if bias:
            weights.append(self.weight(f"{name} bias", (out,), 0.1))
        around = size // 2 if padding is None else padding
        return self("conv", x, *weights, stride=stride, padding=around, groups=groups)

    def conv_transpose(self, x: Handle, out: int, size: int, stride: int) -> Handle:
        name, fan = self.named("conv_transpose"), x.shape[1]
        w = self.weight(f"{name} weight", (fan, out, size, size), (1 / fan) ** 0.5)
        b = self.weight(f"{name} bias", (out,), 0.1)
        return self("conv_transpose", x, w, b, stride=stride)

    def batch_norm(self, x: Handle) -> Handle:
        name, c = self.named("batch_norm"), x.shape[1]
        w, b = self.weight(f"{name} weight", (c,), 0.1, 1.0), self.weight(f"{name} bias", (c,), 0.1)
        mean = self.buffer(f"{name} mean", np.zeros(c))
        var = self.buffer(f"{name} var", np.ones(c))
        return self("batch_norm", x, w, b, buffers=(mean, var))

    def layer_norm(self, x: Handle) -> Handle:
        name, c = self.named("layer_norm"), x.shape[-1]
        w, b = self.weight(f"{name} weight", (c,), 0.1, 1.0), self.weight(f"{name} bias", (c,), 0.1)
        return self("layer_norm", x, w, b)

    def rms_norm(self, x: Handle) -> Handle:
        w = self.weight(f"{self.named('rms_norm')} weight", (x.shape[-1],), 0.1, 1.0)
        return self("rms_norm", x, w)

    def linear(self, x: Handle, out: int, bias: bool = True) -> Handle:
        name, fan = self.named("linear"), x.shape[-1]
        weights = [self.weight(f"{name} weight", (out, fan), fan**-0.5)]
        if bias:
            weights.append(self.weight(f"{name} bias", (out,), 0.1))
        return self("linear", x, *weights)

    def embedding(self, index: Handle, count: int, width: int, name: str) -> Handle:
        return self("embedding", self.weight(f"{name} weight", (count, width), 0.5), index)


def _copied(x: Handle) -> Handle:
    """The tensor under a name of its own, whose gradient is what one layer gives back."""
    if not x.requires_grad:
        return x
    x = x.clone()
    x.retain_grad()
    return x

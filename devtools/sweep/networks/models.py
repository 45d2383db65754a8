"""Shapes of well-known networks, as functions of a `Net` and of inputs; each returns a loss.

Channel counts are the published ones. Images and sequences are small, and layers that repeat the
same shapes are few, so that each takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from devtools.sweep.networks.layers import Handle, Net


class Network(NamedTuple):
    """A function of a Net and its inputs, and what makes the inputs: (rng, scale) -> arrays."""

    loss: Callable[..., Handle]
    inputs: Callable[[np.random.Generator, int], list[Any]]


def _images(side: int, batch: int = 2, classes: int = 1000) -> Callable[..., list[Any]]:
    def make(rng: np.random.Generator, scale: int) -> list[Any]:
        x = rng.standard_normal((batch, 3, side * scale, side * scale)).astype(np.float32)
        return [x, rng.integers(0, classes, batch)]

    return make


def _tokens(length: int, words: int, batch: int = 2, more: int = 1) -> Callable[..., list[Any]]:
    """Rows of words, and labels for each; `more` kinds of rows."""

    def make(rng: np.random.Generator, scale: int) -> list[Any]:
        shape = (batch, length * scale)
        return [rng.integers(0, words, shape) for _ in range(more + 1)]

    return make


# --- convolutional networks ----------------------------------------------------------------------


def _normed(net: Net, x: Handle, out: int, size: int, act: str = "", **params: Any) -> Handle:
    x = net.batch_norm(net.conv(x, out, size, **params))
    return net(act, x) if act else x


def _basic(net: Net, x: Handle, width: int, stride: int) -> Handle:
    out = _normed(net, x, width, 3, "relu", stride=stride)
    out = _normed(net, out, width, 3)
    if stride > 1 or x.shape[1] != width:
        x = _normed(net, x, width, 1, stride=stride)
    return net("relu", net("add", out, x))


def _bottleneck(net: Net, x: Handle, width: int, stride: int) -> Handle:
    out = _normed(net, x, width, 1, "relu")
    out = _normed(net, out, width, 3, "relu", stride=stride)
    out = _normed(net, out, 4 * width, 1)
    if stride > 1 or x.shape[1] != 4 * width:
        x = _normed(net, x, 4 * width, 1, stride=stride)
    return net("relu", net("add", out, x))


def _resnet(block: Callable[..., Handle], depths: tuple[int, ...]) -> Callable[..., Handle]:
    def loss(net: Net, x: Handle, labels: Handle) -> Handle:
        x = _normed(net, x, 64, 7, "relu", stride=2)
        x = net("max_pool", x, kernel_size=3, stride=2, padding=1)
        for i, depth in enumerate(depths):
            for j in range(depth):
                x = block(net, x, 64 << i, 2 if i and not j else 1)
        return net("cross_entropy", net.linear(net("global_pool", x), 1000), labels)

    return loss


def _squeezed(net: Net, x: Handle, width: int, act: str, gate: str) -> Handle:
    """Squeeze and excitation: channels weighed by what all places have on average."""
    s = net("squeeze_pool", x)
    s = net(act, net.conv(s, width, 1, bias=True))
    return net("multiply", x, net(gate, net.conv(s, x.shape[1], 1, bias=True)))


def _inverted(
    net: Net, x: Handle, size: int, wide: int, out: int, squeeze: int, act: str, stride: int,
    gate: str = "hardsigmoid",
) -> Handle:  # fmt: skip
    """Wide by a 1x1 convolution, each channel by its own kernel, narrow again."""
    inner = x if wide == x.shape[1] else _normed(net, x, wide, 1, act)
    inner = _normed(net, inner, wide, size, act, stride=stride, groups=wide)
    if squeeze:
        inner = _squeezed(net, inner, squeeze, "relu" if gate == "hardsigmoid" else "silu", gate)
    inner = _normed(net, inner, out, 1)
    return net("add", inner, x) if stride == 1 and out == x.shape[1] else inner


_MOBILE = (  # size, wide, out, squeeze, activation, stride: MobileNetV3-Large
    (3, 16, 16, 0, "relu", 1), (3, 64, 24, 0, "relu", 2), (3, 72, 24, 0, "relu", 1),
    (5, 72, 40, 24, "relu", 2), (5, 120, 40, 32, "relu", 1), (3, 240, 80, 0, "hardswish", 2),
    (3, 200, 80, 0, "hardswish", 1), (3, 184, 80, 0, "hardswish", 1),
    (3, 480, 112, 120, "hardswish", 1), (3, 672, 112, 168, "hardswish", 1),
    (5, 672, 160, 168, "hardswish", 2), (5, 960, 160, 240, "hardswish", 1),
)  # fmt: skip


def _mobilenet(net: Net, x: Handle, labels: Handle) -> Handle:
    x = _normed(net, x, 16, 3, "hardswish", stride=2)
    for size, wide, out, squeeze, act, stride in _MOBILE:
        x = _inverted(net, x, size, wide, out, squeeze, act, stride)
    x = net("global_pool", _normed(net, x, 960, 1, "hardswish"))
    x = net("hardswish", net.linear(x, 1280))
    return net("cross_entropy", net.linear(x, 1000), labels)


_EFFICIENT = (  # widening, out, depth, stride, size: EfficientNet-B0
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5), (6, 192, 2, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip


def _efficientnet(net: Net, x: Handle, labels: Handle) -> Handle:
    x = _normed(net, x, 32, 3, "silu", stride=2)
    for widening, out, depth, stride, size in _EFFICIENT:
        for j in range(depth):
            c = x.shape[1]
            first = stride if not j else 1
            x = _inverted(net, x, size, widening * c, out, c // 4, "silu", first, "sigmoid")
    x = net("global_pool", _normed(net, x, 1280, 1, "silu"))
    return net("cross_entropy", net.linear(x, 1000), labels)


def _convnext(net: Net, x: Handle, labels: Handle) -> Handle:
    x = _channel_norm(net, net.conv(x, 96, 4, stride=4, bias=True, padding=0))
    for i, depth in enumerate((1, 1, 3, 1)):  # 3, 3, 9, 3 of the same shapes
        if i:
            x = net.conv(_channel_norm(net, x), 96 << i, 2, stride=2, bias=True, padding=0)
        for _ in range(depth):
            out = net.conv(x, x.shape[1], 7, groups=x.shape[1], bias=True)
            out = net.layer_norm(net("channels_last", out))
            out = net.linear(net("gelu", net.linear(out, 4 * x.shape[1])), x.shape[1])
            gamma = net.weight(f"gamma {net.named('multiply')}", (x.shape[1],), 0.1, 0.5)
            out = net("channels_last", net("multiply", out, gamma), back=True)
            x = net("add", x, out)
    x = net.layer_norm(net("global_pool", x))
    return net("cross_entropy", net.linear(x, 1000), labels)


def _channel_norm(net: Net, x: Handle) -> Handle:
    return net("channels_last", net.layer_norm(net("channels_last", x)), back=True)


def _unet(net: Net, x: Handle, labels: Handle) -> Handle:
    """Down four times and up again; every pixel has a class."""

    def twice(x: Handle, width: int) -> Handle:
        return _normed(net, _normed(net, x, width, 3, "relu"), width, 3, "relu")

    kept = []
    for i in range(4):
        x = twice(x, 64 << i)
        kept.append(x)
        x = net("max_pool", x, kernel_size=2)
    x = twice(x, 1024)
    for i in range(3, -1, -1):
        if i % 2:
            x = net.conv_transpose(x, 64 << i, 2, 2)
        else:
            x = net("resize", x, scale_factor=2, mode="bilinear", align_corners=False)
            x = net.conv(x, 64 << i, 1, bias=True)
        x = twice(net("concat", kept[i], x), 64 << i)
    return net("cross_entropy", net.conv(x, 21, 1, bias=True), labels)


def _pictures(side: int) -> Callable[..., list[Any]]:
    def make(rng: np.random.Generator, scale: int) -> list[Any]:
        shape = (1, side * scale, side * scale)
        x = rng.standard_normal((1, 3, *shape[1:])).astype(np.float32)
        return [x, rng.integers(0, 21, shape)]

    return make


# --- transformers --------------------------------------------------------------------------------

_DEPTH = 2  # blocks: more would repeat the same shapes


def _attended(
    net: Net, x: Handle, heads: int, memory: Handle = None, mask: Handle = None,
    bias: bool = True, **params: Any,
) -> Handle:  # fmt: skip
    """Queries from x, keys and values from the memory or from x too."""
    width, given = x.shape[-1], x if memory is None else memory
    q, v = net.linear(x, width, bias), net.linear(given, width, bias)
    k = net.linear(given, width, False)  # the gradient of a bias would be 0: softmax takes it away
    masks = () if mask is None else (mask,)
    return net.linear(net("attention", q, k, v, *masks, heads=heads, **params), width, bias)


def _forward(net: Net, x: Handle, wide: int, act: str) -> Handle:
    return net.linear(net(act, net.linear(x, wide)), x.shape[-1])


def _vit(net: Net, x: Handle, labels: Handle) -> Handle:
    x = net("patches", net.conv(x, 768, 16, stride=16, bias=True, padding=0))
    x = net("first", net.weight("token", (1, 1, 768), 0.5), x)
    x = net("add", x, net.weight("places", (1, x.shape[1], 768), 0.5))
    for _ in range(_DEPTH):
        x = net("add", x, _attended(net, net.layer_norm(x), 12))
        x = net("add", x, _forward(net, net.layer_norm(x), 3072, "gelu"))
    x = net("take_first", net.layer_norm(x))
    return net("cross_entropy", net.linear(x, 1000), labels)


def _flat(net: Net, logits: Handle, labels: Handle) -> Handle:
    """The loss of a class for each word of each row."""
    logits = logits.reshape((logits.shape[0] * logits.shape[1], logits.shape[2]))
    return net("cross_entropy", logits, labels.reshape((-1,)))


def _bert(net: Net, words: Handle, labels: Handle) -> Handle:
    n, length = words.shape
    x = net(
        "add", net.embedding(words, 4096, 768, "words"), net.weight("places", (length, 768), 0.5)
    )
    x = net.layer_norm(x)
    ends = np.arange(n)[:, None, None, None] % 3 + length - 2  # rows of unequal lengths
    closed = np.arange(length)[None, None, None, :] >= ends
    mask = net.constant(np.where(closed, -np.inf, 0.0) + np.zeros((n, 1, length, length)))
    for _ in range(_DEPTH):
        x = net.layer_norm(net("add", x, _attended(net, x, 12, mask=mask)))
        x = net.layer_norm(net("add", x, _forward(net, x, 3072, "gelu")))
    x = net.layer_norm(net("gelu", net.linear(x, 768)))
    return _flat(net, net.linear(x, 4096), labels)


def _gpt2(net: Net, words: Handle, labels: Handle) -> Handle:
    length = words.shape[1]
    table = net.weight("words weight", (4096, 768), 0.05)
    x = net("add", net("embedding", table, words), net.weight("places", (length, 768), 0.5))
    for _ in range(_DEPTH):
        x = net("add", x, _attended(net, net.layer_norm(x), 12, causal=True))
        x = net("add", x, _forward(net, net.layer_norm(x), 3072, "gelu_tanh"))
    return _flat(net, net("linear", net.layer_norm(x), table), labels)  # one table for both ends


def _llama(net: Net, words: Handle, labels: Handle) -> Handle:
    width, heads, groups, wide = 1024, 16, 4, 2816
    head = width // heads
    turns = np.arange(words.shape[1])[:, None] / 10000 ** (np.arange(0, head, 2) / head)
    angles = net.constant(turns[:, None, :].astype(np.float32))
    x = net.embedding(words, 4096, width, "words")
    for _ in range(_DEPTH):
        inner = net.rms_norm(x)
        q = net("rotary", net.linear(inner, width, False), angles, heads=heads)
        k = net("rotary", net.linear(inner, groups * head, False), angles, heads=groups)
        v = net.linear(inner, groups * head, False)
        out = net("attention", q, k, v, heads=heads, groups=groups, causal=True)
        x = net("add", x, net.linear(out, width, False))
        inner = net.rms_norm(x)
        gate = net("silu", net.linear(inner, wide, False))
        inner = net("multiply", gate, net.linear(inner, wide, False))
        x = net("add", x, net.linear(inner, width, False))
    return _flat(net, net.linear(net.rms_norm(x), 4096, False), labels)


def _t5(net: Net, words: Handle, answers: Handle, labels: Handle) -> Handle:
    """An encoder and a decoder; what a query is off from a key is a bias of the scores."""
    width, heads = 512, 8
    table = net.weight("words weight", (4096, width), 0.5)

    def biased(name: str, length: int, causal: bool) -> Handle:
        off = np.arange(length)[None, :] - np.arange(length)[:, None]
        buckets = net.constant(np.clip(off, -15, 15) + 15)
        bias = net.weight(f"{name} distances", (32, heads), 0.5)
        out = net("position_bias", bias, buckets)
        closed = np.where(off > 0, -np.inf, 0.0)[None, None]
        return net("add", out, net.constant(closed)) if causal else out

    def block(x: Handle, mask: Handle, memory: Handle = None) -> Handle:
        facts: dict[str, Any] = {"bias": False, "scale": 1.0}
        x = net("add", x, _attended(net, net.rms_norm(x), heads, mask=mask, **facts))
        if memory is not None:
            x = net("add", x, _attended(net, net.rms_norm(x), heads, memory, **facts))
        inner = net("relu", net.linear(net.rms_norm(x), 4 * width, False))
        return net("add", x, net.linear(inner, width, False))

    x = net("embedding", table, words)
    mask = biased("encoder", words.shape[1], False)
    for _ in range(_DEPTH):
        x = block(x, mask)
    memory = net.rms_norm(x)
    y = net("embedding", table, answers)
    mask = biased("decoder", answers.shape[1], True)
    for _ in range(_DEPTH):
        y = block(y, mask, memory)
    return _flat(net, net.linear(net.rms_norm(y), 4096, False), labels)


NETWORKS: dict[str, Network] = {
    "resnet18": Network(_resnet(_basic, (2, 2, 2, 2)), _images(64)),
    "bottlenecks": Network(_resnet(_bottleneck, (2, 1, 1, 1)), _images(64)),
    "resnet50": Network(_resnet(_bottleneck, (2, 2, 2, 2)), _images(64)),
    "mobilenetv3": Network(_mobilenet, _images(64)),
    "efficientnet": Network(_efficientnet, _images(64)),
    "convnext": Network(_convnext, _images(64)),
    "unet": Network(_unet, _pictures(32)),
    "vit": Network(_vit, _images(64)),
    "bert": Network(_bert, _tokens(24, 4096)),
    "gpt2": Network(_gpt2, _tokens(24, 4096)),
    "llama": Network(_llama, _tokens(20, 4096)),
    "t5": Network(_t5, _tokens(18, 4096, more=2)),
}

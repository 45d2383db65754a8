"""The work every peer does, as data: inputs, initial weights, settings, and the target.

Everything here is NumPy, float32 and seeded, so each process makes the same bytes for itself.
Weights carry PyTorch's parameter names. What each kind must compute stands in its function here;
how a library computes it stands in that library's module under `peers/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rng = np.random.Generator


@dataclass(frozen=True)
class Data:
    """One workload's inputs. `settings` are plain numbers, strings and tuples of them."""

    arrays: dict[str, Array]
    weights: dict[str, Array] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Workload:
    """`steps` are timed together as one round.

    `target` bounds eager everygrad's time over PyTorch's, `jit_target` that of `eg.jit` over the
    fastest of all other peers; `floor_target`, of a workload bound by memory, that over a copy of
    the same bytes; `first_targets` the seconds of jit's first call, cold and warm. None: no bound.
    """

    name: str
    kind: str
    about: str
    make: Callable[[Rng, dict[str, Any]], Data]
    steps: int
    target: float
    jit_target: float | None = 1.0
    floor_target: float | None = None
    first_targets: tuple[float, float] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    # Steps until results are compared again. One where there are ReLUs: a unit that is zero but for
    # rounding may be on for one peer and off for another, and then their gradients part.
    check_steps: int = 3
    tolerance: float = 1e-4
    seed: int = 2026

    def data(self) -> Data:
        return self.make(np.random.default_rng(self.seed), self.settings)


def _normal(rng: Rng, *shape: int) -> Array:
    return rng.standard_normal(shape, dtype=np.float32)


def _uniform(rng: Rng, low: float, high: float, *shape: int) -> Array:
    return rng.uniform(low, high, shape).astype(np.float32)


def _linear(rng: Rng, name: str, wide: int, out: int, *, bias: bool = True) -> dict[str, Array]:
    bound = wide**-0.5
    weights = {f"{name}.weight": _uniform(rng, -bound, bound, out, wide)}
    if bias:
        weights[f"{name}.bias"] = _uniform(rng, -bound, bound, out)
    return weights


def _conv(rng: Rng, name: str, wide: int, out: int, size: int) -> dict[str, Array]:
    bound = (wide * size * size) ** -0.5
    return {
        f"{name}.weight": _uniform(rng, -bound, bound, out, wide, size, size),
        f"{name}.bias": _uniform(rng, -bound, bound, out),
    }


def _layer_norm(rng: Rng, name: str, width: int) -> dict[str, Array]:
    # Not ones and zeros: AdamW moves a zero bias by the sign of its gradient, and that of a
    # gradient at rounding level differs between peers.
    return {
        f"{name}.weight": _uniform(rng, 0.9, 1.1, width),
        f"{name}.bias": _uniform(rng, -0.1, 0.1, width),
    }


def chain(rng: Rng, settings: dict[str, Any]) -> Data:
    """y = x; `repeats` times y = y * a + b; sum(y) backward to the leaves named in `wrt`."""
    shape = settings["shape"]
    arrays = {
        "x": _normal(rng, *shape),
        "a": _uniform(rng, 0.9, 1.1, *shape),
        "b": _normal(rng, *shape),
    }
    return Data(arrays, settings=settings)


def mlp(rng: Rng, settings: dict[str, Any]) -> Data:
    """Linear and relu in turn, no relu after the last; cross entropy; one optimiser step."""
    sizes = settings["sizes"]
    weights: dict[str, Array] = {}
    for i, (wide, out) in enumerate(pairwise(sizes)):
        # Names of a Sequential in which every other module is a ReLU.
        weights |= _linear(rng, str(2 * i), wide, out)
    arrays = {
        "x": _normal(rng, settings["batch"], sizes[0]),
        "y": rng.integers(0, sizes[-1], settings["batch"]),
    }
    return Data(arrays, weights, settings)


def pointwise(rng: Rng, settings: dict[str, Any]) -> Data:
    """mean(gelu(x * w + b)), the exact (erf) gelu, backward to x, w and b; `alone`: of x only."""
    size = settings["size"]
    if settings.get("alone"):
        return Data({"x": _normal(rng, size, size)}, settings=settings)
    small = (size,) if settings["rows"] else (size, size)
    arrays = {
        "x": _normal(rng, size, size),
        "w": _uniform(rng, 0.5, 1.5, *small),
        "b": _normal(rng, *small),
    }
    return Data(arrays, settings=settings)


def cnn(rng: Rng, settings: dict[str, Any]) -> Data:
    """conv 3x3 pad 1, relu, max pool 2, twice; flatten; linear; cross entropy; one step."""
    first, second = settings["channels"]
    image, classes, batch = settings["image"], settings["classes"], settings["batch"]
    weights = _conv(rng, "conv1", 3, first, 3) | _conv(rng, "conv2", first, second, 3)
    weights |= _linear(rng, "head", second * (image // 4) ** 2, classes)
    arrays = {
        "x": _normal(rng, batch, 3, image, image),
        "y": rng.integers(0, classes, batch),
    }
    return Data(arrays, weights, settings)


def gpt(rng: Rng, settings: dict[str, Any]) -> Data:
    """A pre-norm transformer, each library's own causal attention, cross entropy everywhere.

    The query/key/value projection has no bias: the gradient of a key bias is zero but for
    rounding, so no two peers could agree on it. `tied`: the head's weights are the embedding's.
    `feeds`: batches for as many steps, of tokens of which some are commoner than others, so that
    there is something to learn.
    """
    width, vocab = settings["width"], settings["vocab"]
    tokens, batch, tied = settings["tokens"], settings["batch"], settings.get("tied", False)
    scale = 0.02 if tied else 0.1
    weights = {
        "wte.weight": scale * _normal(rng, vocab, width),
        "wpe.weight": scale * _normal(rng, tokens, width),
    }
    for i in range(settings["layers"]):
        weights |= _layer_norm(rng, f"blocks.{i}.ln1", width)
        weights |= _linear(rng, f"blocks.{i}.qkv", width, 3 * width, bias=False)
        weights |= _linear(rng, f"blocks.{i}.proj", width, width)
        weights |= _layer_norm(rng, f"blocks.{i}.ln2", width)
        weights |= _linear(rng, f"blocks.{i}.up", width, 4 * width)
        weights |= _linear(rng, f"blocks.{i}.down", 4 * width, width)
    weights |= _layer_norm(rng, "ln", width)
    if not tied:
        weights |= _linear(rng, "head", width, vocab, bias=False)
    text = rng.integers(0, vocab, (batch, tokens + 1))
    arrays = {
        "x": np.ascontiguousarray(text[:, :-1]),
        "y": np.ascontiguousarray(text[:, 1:]),
        "positions": np.arange(tokens),
    }
    if "feeds" in settings:
        sizes = (settings["feeds"], batch, tokens + 1)
        arrays["text"] = np.minimum(rng.zipf(1.2, sizes), vocab) - 1
    return Data(arrays, weights, settings)


def hvp(rng: Rng, settings: dict[str, Any]) -> Data:
    """H v for the mean squared error of a tanh MLP, over all its weights, by double backward."""
    sizes = settings["sizes"]
    weights: dict[str, Array] = {}
    for i, (wide, out) in enumerate(pairwise(sizes)):
        weights |= _linear(rng, str(i), wide, out)
    arrays = {
        "x": _normal(rng, settings["batch"], sizes[0]),
        "y": _normal(rng, settings["batch"], sizes[-1]),
    }
    arrays |= {f"v.{name}": _normal(rng, *w.shape) for name, w in weights.items()}
    return Data(arrays, weights, settings)


def lstm(rng: Rng, settings: dict[str, Any]) -> Data:
    """An LSTM over (steps, batch, width), a linear head on every step; cross entropy; one step."""
    width, classes = settings["width"], settings["classes"]
    bound = width**-0.5
    weights: dict[str, Array] = {}
    for layer in range(settings["layers"]):
        shapes = {"weight_ih": (4 * width, width), "weight_hh": (4 * width, width)}
        for name, shape in (*shapes.items(), ("bias_ih", (4 * width,)), ("bias_hh", (4 * width,))):
            weights[f"lstm.{name}_l{layer}"] = _uniform(rng, -bound, bound, *shape)
    weights |= _linear(rng, "head", width, classes)
    steps, batch = settings["tokens"], settings["batch"]
    arrays = {
        "x": _normal(rng, steps, batch, width),
        "y": rng.integers(0, classes, (steps, batch)),
    }
    return Data(arrays, weights, settings)


_CHAIN = {"shape": (16, 16), "repeats": 32}
_MLP = {"sizes": (784, 512, 256, 10), "batch": 128}
_CNN = {"channels": (32, 64), "image": 32, "classes": 10, "batch": 32}
_GPT = {"layers": 4, "heads": 4, "width": 128, "tokens": 128, "batch": 16, "vocab": 256}
_LSTM = {"layers": 2, "width": 256, "tokens": 128, "batch": 32, "classes": 16}
_HVP = {"sizes": (64, 128, 128, 1), "batch": 64}
# Small steps, because every step sees the same batch: a model that has learnt it by heart has
# gradients so small that their squares are denormal numbers, which some processors slow down for.
_SGD = {"optimiser": "sgd", "lr": 1e-3}
_ADAMW = {"optimiser": "adamw", "lr": 1e-5}

_ALL = [
    Workload(
        "chain64", "chain", "64 multiply/add ops on 16x16, gradient of x",
        chain, steps=200, target=0.5, settings=_CHAIN | {"wrt": ("x",)},
    ),
    Workload(
        "chain64.all", "chain", "64 multiply/add ops on 16x16, gradients of x, a, b",
        chain, steps=200, target=0.5, jit_target=None, settings=_CHAIN | {"wrt": ("x", "a", "b")},
    ),
    Workload(
        "mlp", "mlp", "MLP step 784-512-256-10, batch 128, SGD",
        mlp, steps=50, target=1.5, settings=_MLP | _SGD, check_steps=1,
    ),
    Workload(
        "mlp.adamw", "mlp", "MLP step 784-512-256-10, batch 128, AdamW",
        mlp, steps=50, target=1.5, settings=_MLP | _ADAMW, check_steps=1,
    ),
    Workload(
        "pointwise", "pointwise", "mean(gelu(x * w + b)), all 2048x2048, all gradients",
        pointwise, steps=5, target=1.5, floor_target=1.3, settings={"size": 2048, "rows": False},
    ),
    Workload(
        "pointwise.rows", "pointwise", "mean(gelu(x * w + b)), w and b rows, all gradients",
        pointwise, steps=5, target=1.5, jit_target=None, settings={"size": 2048, "rows": True},
    ),
    Workload(
        "cnn", "cnn", "CNN step, 3x32x32, 32 and 64 channels, batch 32, SGD",
        cnn, steps=5, target=4.0, settings=_CNN | _SGD, check_steps=1,
    ),
    Workload(
        "gpt", "gpt", "GPT step, 4 layers, 4 heads, width 128, 16 x 128 tokens, AdamW",
        gpt, steps=2, target=1.5, first_targets=(1.0, 0.3), settings=_GPT | _ADAMW,
    ),
    Workload(
        "lstm", "lstm", "LSTM step, 2 layers of 256, 128 steps, batch 32, SGD",
        lstm, steps=1, target=1.0, settings=_LSTM | _SGD | {"lr": 8.0},
    ),
    Workload(
        "hvp", "hvp", "Hessian-vector product, tanh MLP 64-128-128-1, batch 64",
        hvp, steps=200, target=1.5, settings=_HVP,
    ),
]  # fmt: skip

WORKLOADS: dict[str, Workload] = {w.name: w for w in _ALL}

_GPT2 = {
    **{"layers": 12, "heads": 12, "width": 768, "vocab": 50304, "tied": True},
    **{"optimiser": "adamw", "precision": "bf16"},
}
_ON_CUDA = [
    Workload(
        "gpt2", "gpt", "GPT-2 124M training step, 16 x 1024 tokens, bf16, AdamW",
        gpt, steps=5, target=1.0, check_steps=2, tolerance=2e-2,
        settings=_GPT2 | {"tokens": 1024, "batch": 16, "lr": 3e-4},
    ),
    Workload(
        "gelu.8192", "pointwise", "mean(gelu(x)) of 8192x8192 float32, and the gradient of x",
        pointwise, steps=20, target=1.0, settings={"size": 8192, "alone": True},
    ),
    Workload(
        "mlp.4096", "mlp", "MLP step 784-4096-4096-10, batch 512, tf32, AdamW",
        mlp, steps=50, target=1.0, check_steps=1, tolerance=1e-2,
        settings={"sizes": (784, 4096, 4096, 10), "batch": 512, "precision": "tf32"} | _ADAMW,
    ),
    Workload(
        "chain64", "chain", "64 multiply/add ops on 16x16, gradient of x",
        chain, steps=100, target=1.0, settings=_CHAIN | {"wrt": ("x",)},
    ),
]  # fmt: skip
# What the GPUs are timed at, and the steps over which losses are compared.
CUDA_WORKLOADS: dict[str, Workload] = {f"cuda.{w.name}": w for w in _ON_CUDA}
CURVE = Workload(
    "gpt2.curve", "gpt", "GPT-2 124M, 4 x 256 tokens, AdamW",
    gpt, steps=200, target=1.0,
    settings=_GPT2 | {"tokens": 256, "batch": 4, "lr": 3e-4, "feeds": 200},
)  # fmt: skip
CURVES = {
    f"cuda.curve.{precision}": replace(CURVE, settings=CURVE.settings | {"precision": precision})
    for precision in ("bf16", "f32")
}
EVERY = WORKLOADS | CUDA_WORKLOADS | CURVES  # by the name a worker is asked for


def select(names: list[str]) -> list[Workload]:
    """The workloads named: `mlp` is `mlp` and its variants `mlp.*`, `mlp.adamw` itself only."""
    if not names:
        return list(WORKLOADS.values())
    chosen: list[Workload] = []
    for name in names:
        found = [w for w in WORKLOADS.values() if name in (w.name, w.name.partition(".")[0])]
        if not found:
            raise ValueError(f"no workload {name!r}: there are {', '.join(WORKLOADS)}")
        chosen += [w for w in found if w not in chosen]
    return chosen

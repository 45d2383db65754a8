"""everygrad, eager: `steps(device)` on any device, `STEPS` on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import metadata
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

import everygrad as eg
from benchmarks.workloads import Array, Data
from everygrad import Tensor, nn
from everygrad.nn import functional as F


def _version() -> str:
    try:
        return metadata.version("everygrad")
    except metadata.PackageNotFoundError:  # run from the source tree
        return "from source"


VERSIONS = {"everygrad": _version()}


def _tensors(arrays: dict[str, Array], device: str) -> dict[str, Tensor]:
    return {name: eg.tensor(a, device=device) for name, a in arrays.items()}


def _array(t: Tensor | None) -> Array:
    if t is None:
        raise ValueError("no gradient arrived")
    return np.array(t.detach().to("cpu").numpy())


def _optimiser(params: Iterable[Tensor], settings: dict[str, Any]) -> Any:
    if settings["optimiser"] == "sgd":
        return eg.optim.SGD(params, lr=settings["lr"])
    return eg.optim.AdamW(params, lr=settings["lr"])


def _precision(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """What a step computes in: half floats where that is asked for; tf32 is a setting for good."""
    wanted = settings.get("precision", "f32")
    if wanted == "tf32":
        eg.set_matmul_precision("high")
    return eg.autocast(dtype=eg.bfloat16) if wanted == "bf16" else nullcontext()


class Computed(Protocol):
    """A step whose tensor work is one function, which a compiler can take as a whole.

    `compute` assigns no attribute but those of tensors and optimisers; it returns the result.
    """

    result: Any

    def compute(self) -> Any: ...
    def run(self) -> None: ...
    def outputs(self) -> dict[str, Array]: ...


class Leaves:
    """A step that takes a scalar loss backward to leaf tensors."""

    def __init__(self, data: Data, device: str, wrt: Iterable[str]) -> None:
        self.tensors = _tensors(data.arrays, device)
        self.wrt = {name: self.tensors[name].requires_grad_() for name in wrt}
        self.result: Tensor | None = None

    def forward(self) -> Tensor:
        raise NotImplementedError

    def compute(self) -> Tensor:
        for leaf in self.wrt.values():
            leaf.grad = None
        loss = self.forward()
        loss.backward()
        return loss

    def run(self) -> None:
        self.result = self.compute()

    def value(self) -> float:
        return float(_array(self.result))

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": _array(leaf.grad) for name, leaf in self.wrt.items()}
        return {"loss": _array(self.result)} | grads


class Chain(Leaves):
    def __init__(self, data: Data, device: str) -> None:
        super().__init__(data, device, data.settings["wrt"])
        self.repeats: int = data.settings["repeats"]

    def forward(self) -> Tensor:
        y, a, b = (self.tensors[name] for name in "xab")
        for _ in range(self.repeats):
            y = y * a + b
        return y.sum()


class Pointwise(Leaves):
    def __init__(self, data: Data, device: str) -> None:
        super().__init__(data, device, data.arrays)

    def forward(self) -> Tensor:
        x, *rest = self.tensors.values()
        return F.gelu(x * rest[0] + rest[1] if rest else x).mean()


class Train:
    """A step that trains a model of logits by cross entropy."""

    def __init__(self, model: nn.Module, data: Data, device: str) -> None:
        model.load_state_dict(_tensors(data.weights, "cpu"))
        self.model = model.to(device)
        self.start, self.settings = data.weights, data.settings
        self.opt = _optimiser(model.parameters(), data.settings)
        self.x = eg.tensor(data.arrays["x"], device=device)
        self.y = eg.tensor(data.arrays["y"], device=device).reshape(-1)
        self.result: Tensor | None = None

    def compute(self) -> Tensor:
        self.opt.zero_grad()
        with _precision(self.settings):
            loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.opt.step()
        return loss

    def run(self) -> None:
        self.result = self.compute()

    def value(self) -> float:
        return float(_array(self.result))

    def feed(self, text: Array) -> None:
        self.x[:] = eg.tensor(text[:, :-1], device=self.x.device)
        self.y[:] = eg.tensor(text[:, 1:].reshape(-1), device=self.y.device)

    def outputs(self) -> dict[str, Array]:
        named = dict(self.model.named_parameters())
        grads = {f"grad.{name}": _array(p.grad) for name, p in named.items()}
        changes = {f"change.{name}": _array(p) - self.start[name] for name, p in named.items()}
        return {"loss": _array(self.result)} | grads | changes


def mlp(data: Data) -> nn.Module:
    layers: list[nn.Module] = []
    for wide, out in pairwise(data.settings["sizes"]):
        layers += [nn.Linear(wide, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class CNN(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        settings = data.settings
        first, second = settings["channels"]
        self.conv1 = nn.Conv2d(3, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(second * (settings["image"] // 4) ** 2, settings["classes"])

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        logits: Tensor = self.head(x.reshape(x.shape[0], -1))
        return logits


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shape = batch, tokens, self.heads, width // self.heads
        parts = self.qkv(x).split(width, axis=-1)
        q, k, v = (part.reshape(shape).permute_dims((0, 2, 1, 3)) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.permute_dims((0, 2, 1, 3)).reshape(batch, tokens, width))
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.ln2(x))))
        return out


class GPT(nn.Module):
    def __init__(self, data: Data, device: str) -> None:
        super().__init__()
        settings = data.settings
        width, vocab = settings["width"], settings["vocab"]
        self.positions = eg.tensor(data.arrays["positions"], device=device)
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(settings["tokens"], width)
        self.blocks = nn.ModuleList(
            [Block(width, settings["heads"]) for _ in range(settings["layers"])]
        )
        self.ln = nn.LayerNorm(width)
        self.tied = settings.get("tied", False)
        if not self.tied:
            self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(self.positions)
        for block in self.blocks:
            h = block(h)
        h = self.ln(h)
        logits: Tensor = F.linear(h, self.wte.weight) if self.tied else self.head(h)
        return logits.reshape(-1, logits.shape[-1])


class LSTMTagger(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        settings = data.settings
        self.lstm = nn.LSTM(settings["width"], settings["width"], settings["layers"])
        self.head = nn.Linear(settings["width"], settings["classes"])

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x)[0])
        return logits.reshape(-1, logits.shape[-1])


class HVP:
    def __init__(self, data: Data, device: str) -> None:
        tensors = _tensors(data.arrays, device)
        self.x, self.y = tensors["x"], tensors["y"]
        self.params = {n: w.requires_grad_() for n, w in _tensors(data.weights, device).items()}
        self.v = [tensors[f"v.{name}"] for name in self.params]
        self.layers = len(data.settings["sizes"]) - 1
        self.result: tuple[Tensor, ...] = ()

    def loss(self) -> Tensor:
        h = self.x
        for i in range(self.layers):
            h = F.linear(h, self.params[f"{i}.weight"], self.params[f"{i}.bias"])
            if i < self.layers - 1:
                h = eg.tanh(h)
        return F.mse_loss(h, self.y)

    def compute(self) -> tuple[Tensor, ...]:
        params = list(self.params.values())
        grads = eg.autograd.grad(self.loss(), params, create_graph=True)
        return eg.autograd.grad(grads, params, grad_outputs=self.v)

    def run(self) -> None:
        self.result = self.compute()

    def outputs(self) -> dict[str, Array]:
        named = zip(self.params, self.result, strict=True)
        return {f"hvp.{name}": _array(t) for name, t in named}


def steps(device: str) -> dict[str, Callable[[Data], Computed]]:
    """Every kind of workload on one device."""
    return {
        "chain": lambda data: Chain(data, device),
        "mlp": lambda data: Train(mlp(data), data, device),
        "pointwise": lambda data: Pointwise(data, device),
        "cnn": lambda data: Train(CNN(data), data, device),
        "gpt": lambda data: Train(GPT(data, device), data, device),
        "lstm": lambda data: Train(LSTMTagger(data), data, device),
        "hvp": lambda data: HVP(data, device),
    }


STEPS = steps("cpu")


def build_chain(length: int, width: int, a: float, b: float) -> tuple[Tensor, Tensor]:
    """A leaf of ones, and the end of `length` ops y = y * a + b on it."""
    x = eg.ones((width,), requires_grad=True)
    factor, term = eg.full((width,), a), eg.full((width,), b)
    y = x
    for _ in range(length // 2):
        y = y * factor + term
    return x, y

"""PyTorch, eager, on the CPU, with its optimisers' default settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers import Step
from benchmarks.workloads import Array, Data

VERSIONS = {"torch": torch.__version__}
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def tensors(arrays: dict[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(a.copy()) for name, a in arrays.items()}


def array(t: Tensor | None) -> Array:
    if t is None:
        raise ValueError("no gradient arrived")
    return t.detach().numpy().copy()


def _optimiser(params: Iterable[Tensor], settings: dict[str, Any]) -> torch.optim.Optimizer:
    if settings["optimiser"] == "sgd":
        return torch.optim.SGD(params, lr=settings["lr"])
    return torch.optim.AdamW(params, lr=settings["lr"])


class Leaves:
    """A step that takes a scalar loss backward to leaf tensors."""

    def __init__(self, data: Data, wrt: Iterable[str]) -> None:
        self.tensors = tensors(data.arrays)
        self.wrt = {name: self.tensors[name].requires_grad_() for name in wrt}
        self.loss: Tensor | None = None

    def forward(self) -> Tensor:
        raise NotImplementedError

    def run(self) -> None:
        for leaf in self.wrt.values():
            leaf.grad = None
        self.loss = self.forward()
        self.loss.backward()  # type: ignore[no-untyped-call]  # torch's own

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": array(leaf.grad) for name, leaf in self.wrt.items()}
        return {"loss": array(self.loss)} | grads


class Chain(Leaves):
    def __init__(self, data: Data) -> None:
        super().__init__(data, data.settings["wrt"])
        self.repeats: int = data.settings["repeats"]

    def forward(self) -> Tensor:
        y, a, b = (self.tensors[name] for name in "xab")
        for _ in range(self.repeats):
            y = y * a + b
        return y.sum()


class Pointwise(Leaves):
    def __init__(self, data: Data) -> None:
        super().__init__(data, "xwb")

    def forward(self) -> Tensor:
        x, w, b = (self.tensors[name] for name in "xwb")
        return F.gelu(x * w + b).mean()


class Train:
    """A step that trains a model of logits by cross entropy."""

    def __init__(self, model: nn.Module, data: Data) -> None:
        model.load_state_dict(tensors(data.weights))
        self.model = model
        self.start = data.weights
        self.opt = _optimiser(model.parameters(), data.settings)
        self.x = torch.from_numpy(data.arrays["x"])
        self.y = torch.from_numpy(data.arrays["y"]).reshape(-1)
        self.loss: Tensor | None = None

    def run(self) -> None:
        self.opt.zero_grad()
        self.loss = F.cross_entropy(self.model(self.x), self.y)
        self.loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self.opt.step()

    def outputs(self) -> dict[str, Array]:
        named = dict(self.model.named_parameters())
        grads = {f"grad.{name}": array(p.grad) for name, p in named.items()}
        changes = {f"change.{name}": array(p) - self.start[name] for name, p in named.items()}
        return {"loss": array(self.loss)} | grads | changes


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
        parts = self.qkv(x).split(width, dim=-1)
        q, k, v = (part.reshape(shape).permute(0, 2, 1, 3) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(mixed.permute(0, 2, 1, 3).reshape(batch, tokens, width))
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.ln1(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.ln2(x))))
        return out


class GPT(nn.Module):
    def __init__(self, data: Data) -> None:
        super().__init__()
        settings = data.settings
        width, vocab = settings["width"], settings["vocab"]
        self.positions = torch.from_numpy(data.arrays["positions"])
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(settings["tokens"], width)
        self.blocks = nn.ModuleList(
            Block(width, settings["heads"]) for _ in range(settings["layers"])
        )
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe(self.positions)
        for block in self.blocks:
            h = block(h)
        logits: Tensor = self.head(self.ln(h))
        return logits.reshape(-1, logits.shape[-1])


class HVP:
    def __init__(self, data: Data) -> None:
        arrays = tensors(data.arrays)
        self.x, self.y = arrays["x"], arrays["y"]
        self.params = {n: w.requires_grad_() for n, w in tensors(data.weights).items()}
        self.v = [arrays[f"v.{name}"] for name in self.params]
        self.layers = len(data.settings["sizes"]) - 1
        self.product: tuple[Tensor, ...] = ()

    def loss(self) -> Tensor:
        h = self.x
        for i in range(self.layers):
            h = F.linear(h, self.params[f"{i}.weight"], self.params[f"{i}.bias"])
            if i < self.layers - 1:
                h = torch.tanh(h)
        return F.mse_loss(h, self.y)

    def run(self) -> None:
        params = list(self.params.values())
        grads = torch.autograd.grad(self.loss(), params, create_graph=True)
        self.product = torch.autograd.grad(grads, params, grad_outputs=self.v)

    def outputs(self) -> dict[str, Array]:
        named = zip(self.params, self.product, strict=True)
        return {f"hvp.{name}": array(t) for name, t in named}


STEPS: dict[str, Callable[[Data], Step]] = {
    "chain": Chain,
    "mlp": lambda data: Train(mlp(data), data),
    "pointwise": Pointwise,
    "cnn": lambda data: Train(CNN(data), data),
    "gpt": lambda data: Train(GPT(data), data),
    "hvp": HVP,
}


def build_chain(length: int, width: int, a: float, b: float) -> tuple[Tensor, Tensor]:
    """A leaf of ones, and the end of `length` ops y = y * a + b on it."""
    x = torch.ones(width, requires_grad=True)
    factor, term = torch.full((width,), a), torch.full((width,), b)
    y = x
    for _ in range(length // 2):
        y = y * factor + term
    return x, y

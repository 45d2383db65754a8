"""PyTorch, eager, with its optimisers' default settings: `steps(device)`, `STEPS` on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers import Step
from benchmarks.workloads import Array, Data

VERSIONS = {"torch": torch.__version__}
if "OMP_NUM_THREADS" in os.environ:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def tensors(arrays: dict[str, Array], device: str = "cpu") -> dict[str, Tensor]:
    return {name: torch.from_numpy(a.copy()).to(device) for name, a in arrays.items()}


def array(t: Tensor | None) -> Array:
    if t is None:
        raise ValueError("no gradient arrived")
    return t.detach().cpu().numpy().copy()


def _optimiser(params: Iterable[Tensor], settings: dict[str, Any]) -> torch.optim.Optimizer:
    params = list(params)
    if settings["optimiser"] == "sgd":
        return torch.optim.SGD(params, lr=settings["lr"])
    fused = params[0].is_cuda  # its fastest there
    return torch.optim.AdamW(params, lr=settings["lr"], fused=fused or None)


def precision(settings: dict[str, Any], device: str) -> AbstractContextManager[None]:
    """What a step computes in: half floats where that is asked for; tf32 is a setting for good."""
    wanted = settings.get("precision", "f32")
    torch.set_float32_matmul_precision("high" if wanted == "tf32" else "highest")
    half: Any = torch.autocast(device, dtype=torch.bfloat16, enabled=wanted == "bf16")
    return cast("AbstractContextManager[None]", half)


class Leaves:
    """A step that takes a scalar loss backward to leaf tensors."""

    def __init__(self, data: Data, device: str, wrt: Iterable[str]) -> None:
        self.tensors = tensors(data.arrays, device)
        self.wrt = {name: self.tensors[name].requires_grad_() for name in wrt}
        self.loss: Tensor | None = None

    def forward(self) -> Tensor:
        raise NotImplementedError

    def run(self) -> None:
        for leaf in self.wrt.values():
            leaf.grad = None
        self.loss = self.forward()
        self.loss.backward()  # type: ignore[no-untyped-call]  # torch's own

    def value(self) -> float:
        return float(array(self.loss))

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": array(leaf.grad) for name, leaf in self.wrt.items()}
        return {"loss": array(self.loss)} | grads


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
        model.load_state_dict(tensors(data.weights))
        self.model = model.to(device)
        self.start, self.settings, self.device = data.weights, data.settings, device
        self.opt = _optimiser(model.parameters(), data.settings)
        self.x = torch.from_numpy(data.arrays["x"]).to(device)
        self.y = torch.from_numpy(data.arrays["y"]).reshape(-1).to(device)
        self.loss: Tensor | None = None

    def forward(self) -> Tensor:
        with precision(self.settings, self.device):
            return F.cross_entropy(self.model(self.x), self.y)

    def run(self) -> None:
        self.opt.zero_grad()
        self.loss = self.forward()
        self.loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        self.opt.step()

    def value(self) -> float:
        return float(array(self.loss))

    def feed(self, text: Array) -> None:
        self.x.copy_(torch.from_numpy(np.ascontiguousarray(text[:, :-1])))
        self.y.copy_(torch.from_numpy(np.ascontiguousarray(text[:, 1:])).reshape(-1))

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
    def __init__(self, data: Data, device: str = "cpu") -> None:
        super().__init__()
        settings = data.settings
        width, vocab = settings["width"], settings["vocab"]
        self.positions = torch.from_numpy(data.arrays["positions"]).to(device)
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(settings["tokens"], width)
        self.blocks = nn.ModuleList(
            Block(width, settings["heads"]) for _ in range(settings["layers"])
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
        arrays = tensors(data.arrays, device)
        self.x, self.y = arrays["x"], arrays["y"]
        self.params = {n: w.requires_grad_() for n, w in tensors(data.weights, device).items()}
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


def steps(device: str) -> dict[str, Callable[[Data], Step]]:
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
    x = torch.ones(width, requires_grad=True)
    factor, term = torch.full((width,), a), torch.full((width,), b)
    y = x
    for _ in range(length // 2):
        y = y * factor + term
    return x, y

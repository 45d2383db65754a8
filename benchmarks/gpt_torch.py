"""The model and the training step of examples/gpt.py in PyTorch, for benchmarks.gpt_training."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from examples.gpt import CLIP, DECAY, RATE

Tensors = dict[str, Tensor]
BETA1, BETA2, EPS, WEIGHT_DECAY = 0.9, 0.999, 1e-8, 0.01


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, width // self.heads)
        parts = self.qkv(self.norm1(x)).split(width, dim=-1)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).reshape(batch, tokens, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class GPT(nn.Module):
    def __init__(self, letters: int, layers: int, heads: int, width: int, tokens: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.letters(x) + self.places(torch.arange(x.shape[1]))
        out: Tensor = self.head(self.norm(self.blocks(h)))
        return out


def loader(data: Any, batch: int, order: list[int]) -> Any:
    return torch.utils.data.DataLoader(data, batch, sampler=order, drop_last=True)


def share(step: int, options: argparse.Namespace) -> float:
    """The share of the highest rate that a step has: everygrad's WarmupCosine."""
    warm_up = min(20, options.steps // 10)
    if step < warm_up:
        return 1 / warm_up + (1 - 1 / warm_up) * step / warm_up
    done = min((step - warm_up) / (options.steps - warm_up), 1.0)
    return 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2


def make_step(
    how: str, weights: dict[str, Any], options: argparse.Namespace
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of a batch: `how` is "" (eager), "loss" or "step" (what is compiled)."""
    sizes = (options.layers, options.heads, options.width, options.tokens)
    model = GPT(weights["letters.weight"].shape[0], *sizes)
    model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})
    return whole_step(model, options) if how == "step" else usual_step(model, options, how)


def usual_step(
    model: GPT, options: argparse.Namespace, how: str
) -> Callable[[Tensor, Tensor], Tensor]:
    opt = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: share(step, options))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        scores = model(x)
        return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))

    forward = torch.compile(loss_of, fullgraph=True) if how else loss_of

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = forward(x, y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP, foreach=True)
        opt.step()
        average.update_parameters(model)
        schedule.step()
        return loss.detach()

    return step


def whole_step(model: GPT, options: argparse.Namespace) -> Callable[[Tensor, Tensor], Tensor]:
    """Gradients, clipping, AdamW and the average as one graph; numbers that change are tensors."""
    model.requires_grad_(False)
    params: Tensors = {name: p.clone() for name, p in model.named_parameters()}
    means = {name: p.clone() for name, p in params.items()}
    first = {name: torch.zeros_like(p) for name, p in params.items()}
    second = {name: torch.zeros_like(p) for name, p in params.items()}

    def loss_of(params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        scores = torch.func.functional_call(model, params, (x,))
        return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))

    def body(x: Tensor, y: Tensor, rate: Tensor, count: Tensor, decay: Tensor) -> Tensor:
        grads, loss = torch.func.grad_and_value(loss_of)(params, x, y)
        norm = torch.stack([(g * g).sum() for g in grads.values()]).sum().sqrt()
        scale = (CLIP / (norm + 1e-6)).clamp(max=1.0)
        one, two = 1 - BETA1**count, 1 - BETA2**count
        for name, p in params.items():
            g, m, v = grads[name] * scale, first[name], second[name]
            m.mul_(BETA1).add_(g, alpha=1 - BETA1)
            v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
            p.mul_(1 - rate * WEIGHT_DECAY)
            p.sub_(rate / one * m / ((v / two).sqrt() + EPS))
            means[name].mul_(decay).add_(p * (1 - decay))
        return loss

    compiled = torch.compile(body, fullgraph=True)
    done = 0

    def step(x: Tensor, y: Tensor) -> Tensor:
        nonlocal done
        rate = torch.tensor(RATE * share(done, options))
        decay = torch.tensor(DECAY if done else 0.0)  # the first average is the weights
        done += 1
        with torch.no_grad():
            out: Tensor = compiled(x, y, rate, torch.tensor(float(done)), decay)
        return out

    return step

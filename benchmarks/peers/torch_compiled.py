"""PyTorch through torch.compile, on the CPU: every step is one compiled graph.

The step is written as a function of its parameters (`torch.func`), gradients and the optimiser's
update included, and no `.grad` is kept. Against compiling the loss and calling `backward()`, with
or without a compiled optimiser, that was faster on chain, mlp and cnn, level on gpt, and on
pointwise faster at best but not in the median.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers import Step, torch_eager
from benchmarks.peers.torch_eager import VERSIONS as VERSIONS, array, tensors
from benchmarks.workloads import Array, Data

Tensors = dict[str, Tensor]
BETA1, BETA2, EPS, DECAY = 0.9, 0.999, 1e-8, 0.01  # torch.optim.AdamW's defaults


def missing() -> str:
    """Inductor writes C++ and needs a compiler for it."""
    names = [os.environ.get("CXX", ""), "g++", "clang++"]
    if any(shutil.which(name) for name in names if name):
        return ""
    return "no C++ compiler: apt-get install g++"


def _compile(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(fn, fullgraph=True, options=options or None)
    return compiled


class Leaves:
    """A scalar loss and its gradients by the leaves named in `wrt`."""

    def __init__(
        self, data: Data, wrt: Iterable[str], loss: Callable[..., Tensor], device: str = "cpu"
    ) -> None:
        self.leaves = tensors(data.arrays, device)
        self.wrt = {name: self.leaves.pop(name) for name in wrt}
        self.compiled = _compile(torch.func.grad_and_value(loss))
        self.grads: Tensors = {}
        self.loss: Tensor | None = None

    def run(self) -> None:
        self.grads = {}  # as `.grad = None` does: their memory is free for the new ones
        with torch.no_grad():
            self.grads, self.loss = self.compiled(self.wrt, self.leaves)

    def value(self) -> float:
        return float(array(self.loss))

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": array(g) for name, g in self.grads.items()}
        return {"loss": array(self.loss)} | grads


def _chain(repeats: int, wrt: Tensors, rest: Tensors) -> Tensor:
    y, a, b = ((wrt | rest)[name] for name in "xab")
    for _ in range(repeats):
        y = y * a + b
    return y.sum()


def _pointwise(wrt: Tensors, _rest: Tensors) -> Tensor:
    x = wrt["x"] * wrt["w"] + wrt["b"] if "w" in wrt else wrt["x"]
    return F.gelu(x).mean()


def _sgd(params: Tensors, grads: Tensors, lr: float) -> None:
    for name, p in params.items():
        # Not add_(g, alpha=-lr): compiled by Inductor 2.13 that moved the matrices about 1 / lr
        # times too far, as if alpha were dropped; uncompiled and under aot_eager it was right.
        p.sub_(lr * grads[name])


def _adamw(params: Tensors, grads: Tensors, state: dict[str, Tensors], lr: float) -> None:
    count = state["count"][""].add_(1)
    rate = lr / (1 - BETA1**count)
    root = (1 - BETA2**count).sqrt()
    for name, p in params.items():
        g = grads[name]
        m = state["m"][name].lerp_(g, 1 - BETA1)
        v = state["v"][name].mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
        p.mul_(1 - lr * DECAY).sub_(rate * m / (v.sqrt() / root + EPS))


class Train:
    """A model of logits trained by cross entropy; parameters and state change in place."""

    def __init__(self, model: nn.Module, data: Data, *, channels_last: bool = False) -> None:
        model.requires_grad_(False)
        self.layout = torch.channels_last if channels_last else torch.preserve_format
        self.model = model  # its own weights are never used: `functional_call` brings them
        self.start, self.settings = data.weights, data.settings
        self.x = torch.from_numpy(data.arrays["x"])
        if channels_last:
            self.x = self.x.to(memory_format=self.layout)
        self.y = torch.from_numpy(data.arrays["y"]).reshape(-1)
        self.params, self.state = self._initial()
        self.compiled = _compile(self._step)
        self.done = 0
        self.loss: Tensor | None = None

    def _initial(self) -> tuple[Tensors, dict[str, Tensors]]:
        params = tensors(self.start)
        for name, p in params.items():
            if p.ndim == 4:
                params[name] = p.contiguous(memory_format=self.layout)
        zeros = {name: torch.zeros_like(p) for name, p in params.items()}
        if self.settings["optimiser"] == "sgd":
            return params, {}
        copies = {name: z.clone() for name, z in zeros.items()}
        return params, {"m": zeros, "v": copies, "count": {"": torch.zeros(())}}

    def _loss(self, params: Tensors, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(self.model, params, (x,)), y)

    def _step(self, params: Tensors, state: dict[str, Tensors], x: Tensor, y: Tensor) -> Tensor:
        grads, loss = torch.func.grad_and_value(self._loss)(params, x, y)
        if self.settings["optimiser"] == "sgd":
            _sgd(params, grads, self.settings["lr"])
        else:
            _adamw(params, grads, state, self.settings["lr"])
        value: Tensor = loss
        return value

    def run(self) -> None:
        with torch.no_grad():
            self.loss = self.compiled(self.params, self.state, self.x, self.y)
        self.done += 1

    def _last_grads(self) -> Tensors:
        """The last step keeps no gradients: its parameters are made again, and taken backward."""
        params, state = self._initial()
        with torch.no_grad():
            for _ in range(self.done - 1):
                self.compiled(params, state, self.x, self.y)
            grads: Tensors = torch.func.grad(self._loss)(params, self.x, self.y)
        return grads

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": array(g) for name, g in self._last_grads().items()}
        changes = {f"change.{n}": array(p) - self.start[n] for n, p in self.params.items()}
        return {"loss": array(self.loss)} | grads | changes


class HVP:
    """Reverse over reverse, as eager does it."""

    def __init__(self, data: Data) -> None:
        arrays = tensors(data.arrays)
        self.x, self.y = arrays["x"], arrays["y"]
        self.params = tensors(data.weights)
        self.v = {name: arrays[f"v.{name}"] for name in self.params}
        self.layers = len(data.settings["sizes"]) - 1
        # A fifth faster here; on the other workloads no clear gain, and longer to compile.
        self.compiled = _compile(self._product, cpp_wrapper=True)
        self.product: Tensors = {}

    def _loss(self, params: Tensors) -> Tensor:
        h = self.x
        for i in range(self.layers):
            h = F.linear(h, params[f"{i}.weight"], params[f"{i}.bias"])
            if i < self.layers - 1:
                h = torch.tanh(h)
        return F.mse_loss(h, self.y)

    def _product(self, params: Tensors, v: Tensors) -> Tensors:
        pull = torch.func.vjp(torch.func.grad(self._loss), params)[1]
        product: Tensors = pull(v)[0]
        return product

    def run(self) -> None:
        with torch.no_grad():
            self.product = self.compiled(self.params, self.v)

    def outputs(self) -> dict[str, Array]:
        return {f"hvp.{name}": array(t) for name, t in self.product.items()}


def leaves(device: str) -> dict[str, Callable[[Data], Leaves]]:
    """The workloads that are a loss of leaf tensors, on one device."""

    def chain(data: Data) -> Leaves:
        loss = partial(_chain, data.settings["repeats"])
        return Leaves(data, data.settings["wrt"], loss, device)

    return {"chain": chain, "pointwise": lambda data: Leaves(data, data.arrays, _pointwise, device)}


STEPS: dict[str, Callable[[Data], Step]] = {
    **leaves("cpu"),
    "mlp": lambda data: Train(torch_eager.mlp(data), data),
    # Timed both ways: channels last took nine tenths of the time at best.
    "cnn": lambda data: Train(torch_eager.CNN(data), data, channels_last=True),
    "gpt": lambda data: Train(torch_eager.GPT(data), data),
    # torch.compile leaves recurrent layers to their eager kernels
    "lstm": torch_eager.STEPS["lstm"],
    "hvp": HVP,
}


def trivial(shape: tuple[int, ...], add: bool) -> Callable[[], object]:
    """A call of a compiled function that does nothing, or adds 1."""
    x = torch.ones(shape)
    fn = _compile((lambda x: x + 1) if add else (lambda x: x))
    return lambda: fn(x)

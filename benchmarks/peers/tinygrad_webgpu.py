"""tinygrad on its WEBGPU device (Dawn, from dawn-python), every step one TinyJit."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib import metadata
from importlib.resources import files
from typing import Any

# tinygrad reads these when it is imported, and does not find dawn-python's library by itself
os.environ["DEV"] = "WEBGPU"
os.environ["TRAINING"] = "1"
os.environ["WEBGPU_PATH"] = f"{files('pydawn')}/lib/libwebgpu_dawn_{platform.machine()}.so"
os.environ["NODEVICE_SELECT"] = "1"  # a layer of Mesa's stays out, which asks for a display

import numpy as np
from tinygrad import Device, Tensor, TinyJit  # type: ignore[import-not-found]  # .venv-tinygrad
from tinygrad.nn import optim  # type: ignore[import-not-found]

from benchmarks.peers import Step
from benchmarks.workloads import Array, Data

VERSIONS = {name: metadata.version(name) for name in ("tinygrad", "dawn-python")}
Tree = dict[str, Any]


def missing() -> str:
    """What the device lacks to be opened, or ""."""
    try:
        Device[Device.DEFAULT].synchronize()
    except (RuntimeError, OSError) as error:
        return f"tinygrad's {Device.DEFAULT} device does not open: {error}"
    return ""


def _tensor(array: Array) -> Any:
    # 64-bit integers do not exist in WGSL
    narrow = array.astype(np.int32) if array.dtype == np.int64 else array
    return Tensor(narrow).realize()


def _optimiser(params: list[Any], settings: dict[str, Any]) -> Any:
    make = optim.SGD if settings["optimiser"] == "sgd" else optim.AdamW
    return make(params, lr=settings["lr"])


class Train:
    """A step that trains an MLP by cross entropy; all it computes is one replayed capture."""

    def __init__(self, data: Data) -> None:
        self.data = data
        self.layers = len(data.settings["sizes"]) - 1
        self.x, self.y = _tensor(data.arrays["x"]), _tensor(data.arrays["y"])
        self.params = {name: _tensor(w) for name, w in data.weights.items()}
        self.opt = _optimiser(list(self.params.values()), data.settings)
        self.compiled = TinyJit(self.step)
        self.loss: Any = None
        self.done = 0

    def logits(self) -> Any:
        h = self.x
        for i in range(self.layers):
            h = h.linear(self.params[f"{2 * i}.weight"].T, self.params[f"{2 * i}.bias"])
            h = h.relu() if i < self.layers - 1 else h
        return h

    def backward(self) -> Any:
        self.opt.zero_grad()
        loss = self.logits().sparse_categorical_crossentropy(self.y)
        loss.backward()
        return loss

    def step(self) -> Any:
        loss = self.backward()
        return loss.realize(*self.opt.schedule_step())

    def run(self) -> None:
        self.loss = self.compiled()
        Device[Device.DEFAULT].synchronize()
        self.done += 1

    def _last_grads(self) -> Tree:
        """The last step keeps no gradients: its parameters are made again, and taken backward."""
        again = Train(self.data)
        for _ in range(self.done - 1):
            again.step()
        again.backward()
        return {name: p.grad.numpy() for name, p in again.params.items()}

    def outputs(self) -> dict[str, Array]:
        grads = {f"grad.{name}": g for name, g in self._last_grads().items()}
        start = self.data.weights
        changes = {f"change.{n}": p.numpy() - start[n] for n, p in self.params.items()}
        return {"loss": np.array(self.loss.numpy())} | grads | changes


STEPS: dict[str, Callable[[Data], Step]] = {"mlp": Train}

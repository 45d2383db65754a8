"""Optimisers' updates of many tensors, a few steps, eager and compiled, against PyTorch's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.compare import difference
from devtools.sweep.draw import DTYPES, Draw
from devtools.sweep.registry import Context

STEPS = 3
GENERATORS = ("elementwise", "fused", "gathering", "merging", "multi_tensor", "render")


@dataclass(frozen=True)
class Optimising:
    """Parameters of these shapes, an optimiser and its settings."""

    op: str
    draw: Draw
    shapes: list[tuple[int, ...]]
    settings: dict[str, Any]
    device: str
    dtype: str = "float32"
    rate: str = ""

    def title(self) -> str:
        return f"{self.op} {self.settings} of {len(self.shapes)} tensors {self.shapes[:9]}"

    def kept(self) -> dict[str, Any]:
        return {"op": self.op, "seed": self.draw.seed, "choices": self.draw.choices}

    def check(self) -> list[str]:
        rng = np.random.default_rng(self.draw.seed)
        kind = DTYPES.get(self.dtype, self.dtype)

        def some() -> list[Any]:
            arrays = [rng.standard_normal(s).astype(kind) for s in self.shapes]
            return [a.astype(np.float32) for a in arrays]

        start, slopes = some(), [some() for _ in range(STEPS)]
        right = self._theirs(start, slopes)
        found = []
        for way in ("eager", "jit"):
            try:
                got = self._ours(start, slopes, way == "jit")
            except Exception as error:  # whatever it is: PyTorch has done it
                found.append(f"{way}: {type(error).__name__}: {error}")
                continue
            for k, (a, b, x) in enumerate(zip(got, right, start, strict=True)):
                scale = np.abs(b) + np.abs(x) + 4 * self.settings["lr"]
                # of halves the parameter and its momentum are rounded in each step
                text = difference(a.astype(np.float64), b, scale, "values", self.dtype)
                found += [f"{way}: parameter {k}: {text}"] if text else []
        return found

    def _theirs(self, start: list[Any], slopes: list[list[Any]]) -> list[Any]:
        params = [torch.from_numpy(a.astype(np.float64)).clone() for a in start]
        opt = getattr(torch.optim, self.op)(params, **self.settings)
        for step in slopes:
            for p, g in zip(params, step, strict=True):
                p.grad = torch.from_numpy(g.astype(np.float64))
            opt.step()
        return [p.numpy() for p in params]

    def _ours(self, start: list[Any], slopes: list[list[Any]], compiled: bool) -> list[Any]:
        params = [
            eg.tensor(a, dtype=self.dtype, device=self.device, requires_grad=True) for a in start
        ]
        settings = dict(self.settings)
        if self.dtype != "float32":
            settings["master_weights"] = self.rate == ""
        if self.rate:  # a tensor, beside the parameters or on the CPU
            where = "cpu" if self.rate == "cpu" else self.device
            settings["lr"] = eg.tensor(settings["lr"], device=where)
        opt = getattr(eg.optim, self.op)(params, **settings)

        def step(given: list[eg.Tensor]) -> None:
            opt.zero_grad()
            total = eg.zeros((), device=self.device)
            for p, g in zip(params, given, strict=True):
                total = total + (p * g).astype("float32").sum()
            total.backward()
            opt.step()

        run = eg.jit(step) if compiled else step
        for grads in slopes:
            run([eg.tensor(g, dtype=self.dtype, device=self.device) for g in grads])
        return [p.detach().numpy() for p in params]


class Optimisers:
    """The section."""

    weight = 0.5
    generators = GENERATORS

    def serves(self, device: str) -> bool:
        return True

    def _case(self, draw: Draw, device: str) -> Optimising:
        name = draw.pick(("SGD", "SGD", "Adam", "AdamW"))
        settings: dict[str, Any] = {"lr": draw.pick((0.1, 0.01))}
        if name == "SGD" and draw.chance(0.6):
            settings["momentum"] = 0.9
            settings["nesterov"] = draw.chance(0.5)
        settings["weight_decay"] = draw.pick((0.0, 0.0, 0.1))
        if name != "SGD":
            settings["amsgrad"] = draw.chance(0.2)
        count = draw.pick((1, 2, 3, 8, 17, 40))
        each = max(1, draw.elements(1 << 17) // count)
        shapes = [draw.shape(draw.pick((0, 1, 2, 2, 3)), each) for _ in range(count)]
        # Adam's squares and its epsilon are more than halves hold
        halves = ("float16", "bfloat16") if name == "SGD" else ()
        dtype = draw.pick(("float32", "float32", *halves))
        rate = draw.pick(("", "", "", "cpu", "beside"))
        return Optimising(name, draw, shapes, settings, device, dtype, rate)

    def draw(self, seed: int, context: Context) -> Optimising:
        return self._case(Draw(seed, context.device, GENERATORS, context.largest), context.device)

    def again(self, kept: dict[str, Any], context: Context) -> Optimising:
        draw = Draw(kept["seed"], context.device, GENERATORS, context.largest, kept["choices"])
        return self._case(draw, context.device)


SECTION = Optimisers()

"""Sections made of makers: each maker draws a `Problem`, which every way must answer alike."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from devtools.sweep import fences
from devtools.sweep.compare import difference
from devtools.sweep.draw import Draw
from devtools.sweep.problem import Problem
from devtools.sweep.referee import MANY, Answer, KinkError, answer, shapes_of
from devtools.sweep.registry import Context
from devtools.sweep.ways import WAYS

Maker = Callable[[Draw], Problem]


@dataclass(frozen=True)
class OpSection:
    """Makers and their weights. `generators`: the modules of backends whose numbers shapes are
    drawn around, whatever the device."""

    name: str
    generators: Sequence[str]
    makers: dict[str, tuple[float, Maker]]
    weight: float = 1.0
    absent: dict[str, tuple[str, ...]] = field(default_factory=dict)  # makers, by device

    def _present(self, device: str) -> list[str]:
        absent = self.absent.get(device.split(":")[0], ())
        return [n for n in self.makers if n not in absent]

    def serves(self, device: str) -> bool:
        return bool(self._present(device))

    def draw(self, seed: int, context: Context) -> OpCase:
        rng = Random(f"{self.name} {seed}")
        names = self._present(context.device)
        name = rng.choices(names, [self.makers[n][0] for n in names])[0]
        draw = Draw(rng.getrandbits(60), context.device, self.generators, context.largest)
        return OpCase(name, draw, self.makers[name][1](draw), context.device)

    def again(self, kept: dict[str, Any], context: Context) -> OpCase:
        name = kept["op"]
        draw = Draw(kept["seed"], context.device, self.generators, context.largest, kept["choices"])
        return OpCase(name, draw, self.makers[name][1](draw), context.device)


@dataclass(frozen=True)
class OpCase:
    """One problem of one maker."""

    op: str
    draw: Draw
    problem: Problem
    device: str

    def title(self) -> str:
        return f"{self.op}({self.problem.title()}) choices {self.draw.choices}"

    def kept(self) -> dict[str, Any]:
        return {"op": self.op, "seed": self.draw.seed, "choices": self.draw.choices}

    def ways(self) -> list[str]:
        """Eager and compiled; now and then also on other numbers of threads."""
        ways = ["eager", "jit"] if self.problem.compiled else ["eager"]
        return [*ways, "threads"] if self.device == "cpu" and self.draw.seed % 8 == 0 else ways

    def check(self) -> list[str]:
        problem, rng = self.problem, np.random.default_rng(self.draw.seed)
        # exact in every dtype, and never zero, whose sign no sum keeps
        weights = [(2 * rng.integers(-16, 16, shape) + 1) / 16 for shape in shapes_of(problem)]
        found, results = [], {}
        for way in self.ways():
            try:
                with fences.around(self.device) as fence:
                    got = WAYS[way](problem, weights, self.device)
                found += [f"{way}: {text}" for text in fence.broken()]
            except Exception as error:  # whatever it is: a referee's answer exists
                last = traceback.extract_tb(error.__traceback__)[-1]
                where = f"{last.filename.rpartition('everygrad/')[2]}:{last.lineno}"
                found.append(f"{way}: {type(error).__name__}: {error} ({where})")
                continue
            results[way] = got
        differ = self._compared(results, answer(problem, weights, self.draw.seed))
        if differ and problem.scale == "values":
            # of millions of elements, some are near the right value in all of a few trials by
            # chance, and would have hardly any room: whether they differ, many trials say
            try:
                differ = self._compared(results, answer(problem, weights, self.draw.seed, MANY))
            except KinkError:
                differ = []
        return found + differ

    def _compared(self, results: dict[str, list[Any]], right: Answer) -> list[str]:
        return [
            f"{way}: {text}"
            for way, got in results.items()
            for text in self._differences(got, right)
        ]

    def _differences(self, got: list[Any], right: Answer) -> list[str]:
        p, found = self.problem, []
        leaves = [g for g in p.inputs if g.is_float and g.grad]
        names = [f"result {k}" for k in range(len(right.outs))]
        names += [f"gradient {k}" for k in range(len(right.grads))]
        if len(got) == len(right.outs):  # nothing of ours has a gradient
            got = [*got, *[None] * len(right.grads)]
        want = zip(names, got, [*right.outs, *right.grads], right.scales, strict=True)
        for k, (name, a, b, scale) in enumerate(want):
            if a is None or b is None:
                if (a is None) != (b is None) and np.any(a if b is None else b):
                    found.append(f"{name}: {'missing' if a is None else 'should be none'}")
                continue
            dtype = a.dtype.name if a.dtype.kind in "fV" else p.dtype
            is_result, kind = k < len(right.outs), p.scale
            if kind == "exact" and not is_result and leaves[k - len(right.outs)].is_summed:
                kind, scale = "plain", np.abs(b) + 1
            # zero times a negative weight is nothing's gradient: its sign says nothing
            text = difference(a, b, scale, kind, dtype, p.looseness, signs=is_result)
            if text:
                found.append(f"{name}: {text}")
        return found

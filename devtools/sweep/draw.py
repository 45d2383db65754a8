"""From a seed to choices: sizes around the numbers that generators declare, values, layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from devtools.sweep.problem import LAYOUTS, Given
from everygrad.compiler import thresholds
from everygrad.core.config import config

T = TypeVar("T")
LANES = (2, 4, 8, 16, 32, 64)  # of vectors, warps and subgroups, whatever the machine
DTYPES = {"bfloat16": ml_dtypes.bfloat16}
NARROW = ("webgpu",)  # devices without float64 and complex128


@cache
def numbers_of(kind: str) -> list[thresholds.Edge]:
    """Every number that a device's generators declare, whatever was imported before."""
    package = Path(thresholds.__file__).parents[1]
    for folder in ("compiler", "codegen", "backends", f"backends/{kind}"):
        for path in sorted((package / folder).glob("*.py" if folder == "backends" else "**/*.py")):
            if "edge(__name__" in path.read_text():
                module = path.relative_to(package.parent).with_suffix("")
                import_module(".".join(module.parts))
    threshold = thresholds.Edge(
        kind, "render", "native_threshold", config.native_threshold, "elements"
    )
    return [*thresholds.declared(kind), *([threshold] if kind == "cpu" else [])]


class Draw:
    """Choices for one case, from a seed; with `recorded` the choices that were made before."""

    def __init__(
        self,
        seed: int,
        device: str,
        generators: Sequence[str],
        largest: int,
        recorded: Sequence[Any] | None = None,
    ) -> None:
        self.seed, self.device, self.largest = seed, device, largest
        self.choices: list[Any] = []
        self._rng = Random(seed)
        self._values = np.random.default_rng(seed)
        self._recorded = None if recorded is None else list(recorded)
        known = numbers_of(device.split(":")[0])
        mine = [e for e in known if e.generator in generators]
        self._mine, self._all = mine or known, known

    # --- choices, each of which is recorded --------------------------------------------------

    def note(self, value: T) -> T:
        """A choice; of a case that is replayed, the one that was made then."""
        if self._recorded is not None:
            if len(self.choices) >= len(self._recorded):
                raise ValueError("the maker has changed since this case was kept: too few choices")
            value = self._recorded[len(self.choices)]
        self.choices.append(value)
        return value

    def pick(self, options: Sequence[T]) -> T:
        return self.note(self._rng.choice(options))

    def chance(self, probability: float) -> bool:
        return self.note(self._rng.random() < probability)

    def between(self, low: int, high: int) -> int:
        """An integer of [low, high]."""
        return self.note(self._rng.randint(low, max(low, high)))

    def size(self, most: int, least: int = 1) -> int:
        """A size of one axis, up to `most`."""
        return self.note(self._size(least, max(least, most)))

    def elements(self, most: int | None = None) -> int:
        """How many elements an array may have: mostly few, so that many cases are tried."""
        return self.note(self._elements(most or self.largest))

    def shape(self, axes: int, elements: int | None = None) -> tuple[int, ...]:
        """Sizes of so many axes, their product at most about `elements`."""
        budget = elements or self.elements()
        return tuple(self.note(self._shape(axes, budget)))

    def any_shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        return self.shape(self.pick([n for n in (0, 1, 1, 2, 2, 3, 3, 4) if least <= n <= most]))

    # --- how sizes are drawn -----------------------------------------------------------------

    def _numbers(self, *units: str) -> list[int]:
        found = self._mine if self._rng.random() < 0.7 else self._all
        return [e.value // (4 if e.unit == "bytes" else 1) for e in found if e.unit in units]

    def _near(self, n: int) -> int:
        """Beside a multiple of n, or a part of it."""
        times = self._rng.choice((1, 1, 1, 1, 2, 2, 3, 5, 0.5))
        return int(n * times) + self._rng.choice((-1, 0, 0, 1, 1, self._rng.randint(-9, 9)))

    def _size(self, least: int, most: int) -> int:
        roll = self._rng.random()
        if roll < 0.05:
            return least
        if roll < 0.25:
            return self._rng.randint(least, min(most, least + 12))
        if roll < 0.75:
            known = [n for n in (*self._numbers("size", "count"), *LANES) if n <= most]
            if known:
                return min(most, max(least, self._near(self._rng.choice(known))))
        if roll < 0.85:
            return _prime_below(self._log(least, most), least)
        return self._log(least, most)

    def _log(self, least: int, most: int) -> int:
        low, high = math.log(max(least, 1)), math.log(max(most, 1))
        return min(most, max(least, round(math.exp(self._rng.uniform(low, high)))))

    def _elements(self, most: int) -> int:
        roll = self._rng.random()
        if roll < 0.25:
            known = [n for n in self._numbers("elements", "bytes", "products") if n <= most]
            if known:
                return min(most, max(1, self._near(self._rng.choice(known))))
        top = (
            1 << 11 if roll < 0.6 else 1 << 14 if roll < 0.85 else 1 << 17 if roll < 0.97 else most
        )
        return self._log(1, min(top, most))

    def _shape(self, axes: int, budget: int) -> list[int]:
        """Some axes drawn, one that fills the budget, in any order."""
        if not axes:
            return []
        left, sizes = max(budget, 1), []
        for k in range(axes - 1):
            share = left if self._rng.random() < 0.3 else round(left ** (1.5 / (axes - k)))
            sizes.append(self._size(1, max(1, min(left, share))))
            left = max(1, left // sizes[-1])
        fills = self._rng.random() < 0.6
        sizes.append(max(1, left + self._rng.choice((-1, 0, 1))) if fills else self._size(1, left))
        self._rng.shuffle(sizes)
        if self._rng.random() < 0.03:
            sizes[self._rng.randrange(axes)] = 0
        return sizes

    # --- values, which follow from the seed ----------------------------------------------------

    def dtype(self, halves: float = 0.1, wide: float = 0.15) -> str:
        """A floating dtype: float32, now and then another that the device has."""
        roll = self._rng.random()
        if roll < halves:
            return self.note(self._rng.choice(("float16", "bfloat16")))
        narrow = self.device.split(":")[0] in NARROW
        return self.note("float64" if roll < halves + wide and not narrow else "float32")

    def floats(
        self,
        shape: Sequence[int],
        dtype: str = "float32",
        low: float | None = None,
        high: float = 1.0,
        layout: bool = True,
        grad: bool = True,
    ) -> Given:
        """Numbers of several sizes, or evenly in [low, high)."""
        rng, shape = self._values, tuple(shape)
        if low is not None:
            array = rng.uniform(low, high, shape)
        else:
            array = rng.standard_normal(shape)
            kind = rng.random()
            if kind < 0.3 and shape:  # small elements beside large ones
                array = array * 2.0 ** rng.integers(-6, 7, shape)
            elif kind < 0.5:
                array = np.round(array * 4)
        return self.given(array, dtype, layout, grad)

    def integers(
        self, shape: Sequence[int], low: int, high: int, dtype: str = "int64", layout: bool = False
    ) -> Given:
        """Of [low, high)."""
        array = self._values.integers(low, max(high, low + 1), tuple(shape))
        return self.given(array, dtype, layout, False)

    def ties(self, shape: Sequence[int], dtype: str = "float32", layout: bool = True) -> Given:
        """Floating numbers of which many are equal, zeros of both signs among them."""
        array = self._values.integers(-3, 4, tuple(shape)).astype(np.float64)
        array[(array == 0) & (self._values.random(array.shape) < 0.5)] = -0.0
        return self.given(array, dtype, layout)

    def specials(self, shape: Sequence[int], dtype: str = "float32") -> Given:
        """Infinities, zeros of both signs, equal numbers and, often, NaN; without gradients."""
        array = self.ties(shape, dtype, layout=False).array.astype(np.float64)
        share = self._values.choice((0.0, 0.02, 0.3))
        for value in (np.nan, np.inf, -np.inf):
            array[self._values.random(array.shape) < share] = value
        return self.given(array, dtype, True, False)

    def booleans(self, shape: Sequence[int], share: float = 0.5) -> Given:
        return self.given(self._values.random(tuple(shape)) < share, "bool", False, False)

    def given(
        self, array: Any, dtype: str, layout: bool = True, grad: bool = True, repeats: bool = True
    ) -> Given:
        """An input with these values; with `repeats` perhaps its first row, many times."""
        array = np.asarray(array).astype(DTYPES.get(dtype, dtype))
        how = "plain"
        if layout and array.ndim and array.size and self.chance(0.4):
            how = self.pick(LAYOUTS if repeats else LAYOUTS[:-1])
        if how == "repeated":  # one row, seen many times
            array = np.broadcast_to(array[:1], array.shape).copy()
        return Given(array, how, bool(how != "plain" and self.chance(0.5)), grad)

    def permuted(self, n: int) -> list[int]:
        order = list(range(n))
        self._rng.shuffle(order)
        return self.note(order)


def _prime_below(n: int, least: int) -> int:
    """The largest prime up to n, or `least`."""
    for k in range(n, max(least, 1), -1):
        if all(k % d for d in range(2, math.isqrt(k) + 1)):
            return k
    return least

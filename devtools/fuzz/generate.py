"""From one integer to one program: calls are made eagerly as they are chosen, so all are valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from devtools.fuzz import guards, program as p
from devtools.fuzz.program import Input, Program, Ref, Step, refs_in
from everygrad.core.shapes import Shape, size_of
from everygrad.core.tensor import Tensor
from everygrad.errors import EverygradError

SIZES = (1, 2, 2, 3, 3, 4, 5, 7, 8, 16, 17, 33)
MOST_INPUTS = 7
DTYPES = ("float64",) * 12 + ("float32",) * 3 + ("bfloat16",)
WIDE = ("float64", "complex64", "complex128")  # what a narrow device has not
FLOATS = ("float64", "float32", "bfloat16")


class Rejected(Exception):  # noqa: N818  # control flow of the generator
    """This choice leads nowhere; another one may."""


class Crash(Exception):  # noqa: N818  # control flow of the generator
    """The last step failed with an exception that is none of ours."""


class Builder:
    """A program in the making."""

    def __init__(self, rng: Random, narrow: bool = False) -> None:
        self.rng = rng
        self.narrow = narrow  # for a device that has no float64
        self.dtype = rng.choice(DTYPES)
        if narrow and self.dtype == "float64":
            self.dtype = "float32"
        # a few programs are large enough for several blocks of loops, and for eager's own kernels
        self.largest = 50_000 if rng.random() < 0.08 else 3_000
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.values: dict[int, Tensor] = {}
        self.count = 0
        self.sizes = [self.size() for _ in range(4)]

    def size(self) -> int:
        """A size of an axis; now and then one that blocks and tails of loops are met with."""
        roll = self.rng.random()
        if roll < 0.02:
            return 0
        if roll < (0.5 if self.largest > 3_000 else 0.06):
            return self.rng.choice((64, 100, 129, 300))
        return self.rng.choice((1000, 5000)) if roll > 0.98 else self.rng.choice(SIZES)

    def shape(self, least: int = 0, most: int = 4) -> Shape:
        """A shape of this program's sizes."""
        ndim = self.rng.choice([n for n in (0, 1, 1, 2, 2, 2, 3, 3, 4) if least <= n <= most])
        for _ in range(20):
            shape = tuple(self.rng.choice(self.sizes) for _ in range(ndim))
            if size_of(shape) <= self.largest:
                return shape
        return (2,) * ndim

    # --- values --------------------------------------------------------------------------------

    def array(self, ref: Ref) -> Any:
        return self.values[ref.number].numpy()

    def of(self, ref: Ref) -> Tensor:
        return self.values[ref.number]

    def next(self) -> int:
        self.count += 1
        return self.count - 1

    def input(
        self, shape: Shape, dtype: str | None = None, low: float = -1.0, high: float = 1.0,
        literal: Any = None, place: str | None = None,
    ) -> Ref:  # fmt: skip
        """A new input."""
        if len(self.inputs) >= MOST_INPUTS:
            raise Rejected
        dtype = dtype or self.dtype
        roll = self.rng.random()
        where = p.ARGUMENT if roll < 0.75 else p.CLOSURE if roll < 0.9 else p.CONSTANT
        where = place or where
        made = Input(
            self.next(), shape, dtype, low, high, self.rng.randrange(1000),
            self.layout(shape, where) if literal is None else p.PLAIN, where, literal,
        )  # fmt: skip
        self.inputs.append(made)
        self.values[made.number] = made.tensor()
        return Ref(made.number)

    def layout(self, shape: Shape, place: str) -> str:
        if place == p.CONSTANT or not shape or self.rng.random() < 0.75:
            return p.PLAIN
        return self.rng.choice(
            (p.TRANSPOSED, p.STRIDED, p.FLIPPED, p.REPEATED)[: 3 + (shape[0] > 0)]
        )

    def pick(self, fits: Callable[[Tensor], bool] = lambda t: True) -> Ref:
        """A value that fits; rather a late one."""
        found = [n for n, t in self.values.items() if not t.dtype.is_complex and fits(t)]
        if not found:
            raise Rejected
        late = found[-3:] if self.rng.random() < 0.6 else found
        return Ref(self.rng.choice(late))

    def floating(self, least: int = 0, most: int = 9, nonempty: bool = False) -> Ref:
        """A floating value of so many axes."""

        def fits(t: Tensor) -> bool:
            return t.dtype.is_float and least <= t.ndim <= most and (t.size > 0 or not nonempty)

        try:
            return self.pick(fits)
        except Rejected:
            shape = self.shape(least, min(most, 4))
            if nonempty and not size_of(shape):
                raise
            return self.input(shape)

    def add(self, op: str, *args: Any, pick: int | None = None, **kwargs: Any) -> Ref:
        """One more step, if it is valid and tame."""
        step = Step(self.next(), op, args, kwargs, pick)
        refs = refs_in((args, tuple(kwargs.values())))
        before = [np.array(self.array(r)) for r in refs]
        try:
            out = step.run(self.values)
        except EverygradError:
            if step.in_place:
                self.again()
            raise Rejected from None
        except Exception:  # eager mode itself fails: that is the program to show
            self.steps.append(step)
            raise Crash from None
        if self.narrow and str(out.dtype) in WIDE:
            raise Rejected
        made = out.numpy()
        if out.size > 2 * self.largest or out.ndim > 6 or not guards.tame(step, before, made):
            if step.in_place:
                self.again()
            raise Rejected
        self.steps.append(step)
        self.values[step.number] = out
        return Ref(step.number)

    def again(self) -> None:
        """Compute everything anew, after a step that was not wanted changed a value."""
        self.values = Program(tuple(self.inputs), tuple(self.steps), ()).values()

    def within(self, x: Ref, low: float, high: float) -> Ref:
        """x, squashed into a range if it is not in it."""
        a = self.array(x)
        wide = a.astype(np.float64)
        if not a.size or (wide.min() >= low and wide.max() <= high):
            return x
        half = (high - low) / 2
        squashed = self.add("tanh", x)
        return self.add("add", self.add("multiply", squashed, half * 0.95), low + half)


def finished(b: Builder) -> Program:
    """The program with its outputs chosen: what nobody uses, and a few more."""
    rng = b.rng
    used = {n for step in b.steps for n in step.refs()}
    made = [s.number for s in b.steps if not b.values[s.number].dtype.is_complex]
    ends = [n for n in made if n not in used] or made or [i.number for i in b.inputs]
    outputs = ends[-rng.choice((1, 2, 3, 4)) :]
    if made and rng.random() < 0.3:
        outputs.append(rng.choice(made))
    if rng.random() < 0.05:
        outputs.append(rng.choice([i.number for i in b.inputs]))
    rng.shuffle(outputs)
    program = Program(tuple(b.inputs), tuple(b.steps), tuple(outputs)).live()
    if any(i.dtype in FLOATS for i in program.arguments):
        return program
    inputs = [replace(i, place=p.ARGUMENT) if i.dtype in FLOATS else i for i in program.inputs]
    return replace(program, inputs=tuple(inputs))


def generate(
    seed: int, makers: dict[str, tuple[float, Callable[[Builder], Any]]], narrow: bool = False
) -> Program:
    """The program of a seed, from these makers and their weights; without float64 if `narrow`."""
    rng = Random(seed)
    b = Builder(rng, narrow)
    for _ in range(rng.choice((1, 2, 2, 3))):
        b.input(b.shape(1), place=p.ARGUMENT)
    # rounding adds up: short programs of bfloat16, and now and then a long one of the others
    wanted = rng.choice((2, 3, 4) if b.dtype == "bfloat16" else (2, 3, 4, 6, 8, 8, 12, 12, 30))
    names = list(makers)
    weights = [makers[n][0] for n in names]
    for _ in range(8 * wanted):
        if len(b.steps) >= wanted:
            break
        name = rng.choices(names, weights)[0]
        try:
            makers[name][1](b)
        except (Rejected, EverygradError):
            continue
        except Crash:
            return Program(tuple(b.inputs), tuple(b.steps), (b.steps[-1].number,)).live()
    return finished(b)

"""Random programs as data: inputs and steps that print as Python and run on tensors.

Every value has a number, and keeps it while a program is shrunk. A step is one call; in-place steps
(`x[i] = v`, `x += y`) give a value they name another content, and are values themselves: the same
tensor under one more number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.core.shapes import Shape
from everygrad.core.tensor import Tensor
from everygrad.ops.python import creation
from everygrad.ops.record.spec import REGISTRY, Op

PLAIN, TRANSPOSED, STRIDED = "plain", "transposed", "strided"
FLIPPED, REPEATED = "flipped", "repeated"
ARGUMENT, CLOSURE, CONSTANT = "argument", "closure", "constant"
CREATION = ("full", "arange", "eye")
IN_PLACE = {"setitem": "{0}[{index}] = {1}", "iadd": "{0} += {1}", "isub": "{0} -= {1}",
            "imul": "{0} *= {1}"}  # fmt: skip
HEADER = """\
import numpy as np
import everygrad as eg
from everygrad import fft, linalg, special
from everygrad.ops.nn.conv2d import Window
from everygrad.ops.nn.conv3d import Volume
from everygrad.ops.record.spec import REGISTRY
from devtools.fuzz.program import function_of
"""


@dataclass(frozen=True)
class Ref:
    """A value of the program, by its number."""

    number: int

    def __repr__(self) -> str:
        return f"v{self.number}"


@dataclass(frozen=True)
class Input:
    """A tensor the program is given: scattered numbers of [low, high), or the literal ones."""

    number: int
    shape: Shape
    dtype: str = "float64"
    low: float = -1.0
    high: float = 1.0
    seed: int = 0
    layout: str = PLAIN
    place: str = ARGUMENT
    literal: Any = field(default=None, compare=False)

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    def text(self) -> str:
        """An expression that makes the tensor."""
        made = f'eg.tensor({self.numbers()}, dtype="{self.dtype}")'
        return made + self.moves()

    def numbers(self) -> str:
        """An expression of NumPy for the numbers, before they are laid out."""
        shape = self.stored_shape()
        if self.literal is not None:
            shown = str(self.literal.tolist()).replace("nan", "np.nan")
            return f"np.array({shown}).reshape({shape})"
        rng = f"np.random.default_rng({self.seed})"
        if self.dtype == "bool":
            return f"{rng}.random({shape}) < 0.5"
        if self.is_float:
            return f"{rng}.uniform({self.low!r}, {self.high!r}, {shape})"
        return f"{rng}.integers({int(self.low)}, {int(self.high)}, {shape})"

    def stored_shape(self) -> Shape:
        if self.layout == TRANSPOSED:
            return self.shape[::-1]
        if self.layout == STRIDED:
            return (*self.shape[:-1], self.shape[-1] * 2)
        if self.layout == REPEATED:
            return (1, *self.shape[1:])
        return self.shape

    def moves(self) -> str:
        if self.layout == TRANSPOSED:
            return f".permute_dims({tuple(range(len(self.shape)))[::-1]})"
        if self.layout == STRIDED:
            return "[..., ::2]"
        if self.layout == FLIPPED:
            return ".flip(0)"
        return f".broadcast_to({self.shape})" if self.layout == REPEATED else ""

    def tensor(self) -> Tensor:
        """What `text` says."""
        made = creation.tensor(self.array(), dtype=self.dtype)
        if self.layout == TRANSPOSED:
            return made.permute_dims(tuple(range(len(self.shape)))[::-1])
        if self.layout == STRIDED:
            return made[..., ::2]
        if self.layout == FLIPPED:
            return made.flip(0)
        return made.broadcast_to(self.shape) if self.layout == REPEATED else made

    def array(self) -> Any:
        """The numbers, before they are laid out."""
        shape = self.stored_shape()
        if self.literal is not None:
            return self.literal.reshape(shape)
        rng = np.random.default_rng(self.seed)
        if self.dtype == "bool":
            return rng.random(shape) < 0.5
        if self.is_float:
            return rng.uniform(self.low, self.high, shape)
        return rng.integers(int(self.low), int(self.high), shape)


@dataclass(frozen=True)
class Step:
    """One call. `args` hold Refs, lists of them and plain values; `pick` one of several results."""

    number: int
    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    pick: int | None = None

    @property
    def in_place(self) -> bool:
        return self.op in IN_PLACE

    def refs(self) -> list[int]:
        return [r.number for r in refs_in((self.args, tuple(self.kwargs.values())))]

    def run(self, values: dict[int, Tensor], device: str = "cpu") -> Tensor:
        args = replaced(self.args, lambda r: values[r.number])
        kwargs = {k: replaced(v, lambda r: values[r.number]) for k, v in self.kwargs.items()}
        if self.in_place:
            return _assign(self.op, *args, **kwargs)
        if self.op in CREATION:
            return getattr(creation, self.op)(*args, **kwargs, device=device)
        out = function_of(REGISTRY[self.op])(*args, **kwargs)
        return out if self.pick is None else out[self.pick]

    def lines(self) -> list[str]:
        if self.in_place:
            names = [repr(a) for a in self.args]
            index = _index_text(self.kwargs.get("index"))
            return [IN_PLACE[self.op].format(*names, index=index), f"v{self.number} = {names[0]}"]
        known = self.op in CREATION or not (
            REGISTRY[self.op].namespace or REGISTRY[self.op].notes.get("tested_as")
        )
        function = f"eg.{self.op}" if known else f'function_of(REGISTRY["{self.op}"])'
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs.items())]
        picked = "" if self.pick is None else f"[{self.pick}]"
        return [f"v{self.number} = {function}({', '.join(given)}){picked}"]


def function_of(op: Op) -> Callable[..., Any]:
    """The function that stands for an op: its own, or one of what is determined in its results."""
    return op.notes.get("tested_as") or op.function


def _assign(op: str, x: Tensor, y: Any, index: Any = None) -> Tensor:
    if op == "setitem":
        x[index] = y
    elif op == "iadd":
        x += y
    elif op == "isub":
        x -= y
    else:
        x *= y
    return x


def _index_text(index: Any) -> str:
    return ", ".join(map(repr, index)) + "," if isinstance(index, tuple) else repr(index)


def refs_in(value: Any) -> list[Ref]:
    """Every reference in nested lists and tuples."""
    found: list[Ref] = []
    replaced(value, found.append)
    return found


def replaced(value: Any, fn: Callable[[Ref], Any]) -> Any:
    """`value` with `fn` of each reference in it."""
    if isinstance(value, Ref):
        return fn(value)
    if type(value) in (list, tuple):
        return type(value)(replaced(v, fn) for v in value)
    return value


@dataclass(frozen=True)
class Program:
    """Inputs, steps in order, and the numbers of the values that are returned."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @property
    def arguments(self) -> list[Input]:
        return [i for i in self.inputs if i.place == ARGUMENT]

    def tensors(self, device: str = "cpu") -> list[Tensor]:
        """The arguments."""
        return [i.tensor().to(device) for i in self.arguments]

    def function(self, device: str = "cpu") -> Callable[..., list[Tensor]]:
        """The program as a function of its arguments, which lie on this device."""
        closures = {i.number: i.tensor().to(device) for i in self.inputs if i.place == CLOSURE}
        constants = [(i, _literal(i)) for i in self.inputs if i.place == CONSTANT]
        numbers = [i.number for i in self.arguments]

        def f(*args: Tensor) -> list[Tensor]:
            values = dict(closures) | dict(zip(numbers, args, strict=True))
            for i, array in constants:
                values[i.number] = creation.tensor(array, dtype=i.dtype, device=device)
            for step in self.steps:
                values[step.number] = step.run(values, device)
            return [values[n] for n in self.outputs]

        return f

    def values(self) -> dict[int, Tensor]:
        """Every value, computed eagerly, as it is in the end."""
        values = {i.number: i.tensor() for i in self.inputs}
        for step in self.steps:
            values[step.number] = step.run(values)
        return values

    def live(self) -> Program:
        """Without the steps and inputs that no output needs."""
        wanted = set(self.outputs)
        steps: list[Step] = []
        for step in reversed(self.steps):
            if step.number in wanted or (step.in_place and self.reaches(step, wanted)):
                wanted.update(step.refs())
                steps.append(step)
        inputs = tuple(i for i in self.inputs if i.number in wanted)
        return Program(inputs, tuple(reversed(steps)), self.outputs)

    def reaches(self, step: Step, wanted: set[int]) -> bool:
        """Whether an in-place step changes a tensor that is wanted under another number."""
        return bool({step.args[0].number} & wanted)

    def text(self) -> str:
        """Python that defines f and args."""
        lines = [HEADER]
        lines += [f"v{i.number} = {i.text()}" for i in self.inputs if i.place == CLOSURE]
        names = [f"v{i.number}" for i in self.arguments]
        lines.append(f"def f({', '.join(names)}):")
        lines += [f"    v{i.number} = {i.text()}" for i in self.inputs if i.place == CONSTANT]
        lines += [f"    {line}" for step in self.steps for line in step.lines()]
        lines += [f"    return [{', '.join(f'v{n}' for n in self.outputs)}]", ""]
        lines += ["args = [", *(f"    {i.text()}," for i in self.arguments), "]"]
        return "\n".join(lines)


def _literal(i: Input) -> Any:
    return i.tensor().numpy().astype(dtypes.as_dtype(i.dtype).np)


def coarsest(values: Sequence[Tensor]) -> str:
    """The floating dtype of least precision among these."""
    order = ("bfloat16", "float16", "float32", "float64")
    found = {str(v.dtype) for v in values}
    return next((name for name in order if name in found), "float64")

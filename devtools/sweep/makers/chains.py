"""Random chains of ops: what eg.jit fuses into groups, beside the same chain in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Given, Problem
from devtools.sweep.referee import amax, rounded, softmax

TF = torch.nn.functional


class Chain:
    """A chain in the making: steps as pairs of functions of (value, extra inputs, earlier values),
    ours and PyTorch's."""

    def __init__(self, d: Draw, shape: tuple[int, ...], dtype: str) -> None:
        self.d, self.shape, self.dtype = d, shape, dtype
        self.inputs: list[Given] = [d.floats(shape, dtype, -1, 1)]
        self.steps: list[tuple[Any, Any]] = []
        self.shapes = [shape]  # of the values so far

    def input(self, shape: tuple[int, ...]) -> int:
        """The place of one more input."""
        self.inputs.append(self.d.floats(shape, self.dtype, -1, 1))
        return len(self.inputs) - 1

    def add(self, ours: Callable[..., Any], theirs: Callable[..., Any], shape: Any = None) -> None:
        self.steps.append((ours, theirs))
        self.shape = self.shape if shape is None else tuple(shape)
        self.shapes.append(self.shape)

    def function(self, which: int, kept: list[int]) -> Callable[..., list[Any]]:
        def run(*given: Any) -> list[Any]:
            values = [given[0]]
            for step in self.steps:
                out = step[which](values[-1], given, values)
                values.append(rounded(out) if which else out)
            return [values[k] for k in kept]

        return run


Step = Callable[[Chain], None]
UNARY = {
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "gelu": TF.gelu,
    "exp": lambda x: torch.exp(x),
    "square": torch.square,
    "silu": TF.silu,
}


def unary(c: Chain) -> None:
    name = c.d.pick(tuple(UNARY))
    if name in ("exp", "square"):  # stays small
        c.add(lambda x, *_: getattr(eg, name)(eg.tanh(x)), lambda x, *_: UNARY[name](torch.tanh(x)))
    else:
        c.add(lambda x, *_: getattr(eg, name)(x), lambda x, *_: UNARY[name](x))


def with_input(c: Chain) -> None:
    """Another input, broadcast in some way."""
    kind = c.d.pick(("same", "tail", "ones", "scalar"))
    shape = c.shape
    if kind == "tail":
        shape = shape[c.d.between(0, len(shape)) :]
    elif kind == "ones":
        shape = tuple(1 if c.d.chance(0.5) else n for n in shape)
    elif kind == "scalar":
        shape = ()
    k, name = c.input(shape), c.d.pick(("add", "multiply", "subtract"))
    theirs = {"add": torch.add, "multiply": torch.mul, "subtract": torch.sub}[name]
    c.add(
        lambda x, given, _: getattr(eg, name)(x, given[k]),
        lambda x, given, _: theirs(x, given[k]),
    )


def with_earlier(c: Chain) -> None:
    """A value from before: it has two readers."""
    same = [k for k, s in enumerate(c.shapes) if s == c.shape]
    k = c.d.pick(same)
    c.add(lambda x, _, values: x * 0.5 + values[k], lambda x, _, values: x * 0.5 + values[k])


def reduce_back(c: Chain) -> None:
    """A reduction that is subtracted, as norms do."""
    axis, name = c.d.between(0, len(c.shape) - 1), c.d.pick(("mean", "amax", "sum"))
    scale = 1.0 / max(1, c.shape[axis]) if name == "sum" else 1.0

    def theirs(x: Any, *_: Any) -> Any:
        return x - scale * (
            amax(x, axis) if name == "amax" else getattr(torch, name)(x, axis, True)
        )

    c.add(lambda x, *_: x - scale * getattr(eg, name)(x, axis=axis, keepdims=True), theirs)


def rows(c: Chain) -> None:
    name, axis = c.d.pick(("softmax", "log_softmax")), c.d.pick((-1, -1, 0))
    c.add(
        lambda x, *_: getattr(eg, name)(x, axis=axis),
        lambda x, *_: softmax(x, axis, name == "log_softmax"),
    )


def norm(c: Chain) -> None:
    if c.shape[-1] < 4:
        return unary(c)
    w, b, n = c.input(c.shape[-1:]), c.input(c.shape[-1:]), c.shape[-1:]
    c.add(
        lambda x, given, _: eg.layer_norm(x, n, given[w], given[b], eps=0.1),
        lambda x, given, _: TF.layer_norm(x, n, given[w], given[b], eps=0.1),
    )
    return None


def matmul(c: Chain) -> None:
    n = c.shape[-1]
    wanted = c.d.size(max(1, min(300, (1 << 16) // max(1, n))))
    k, scale = c.input((n, wanted)), max(1, n) ** -0.5
    c.add(
        lambda x, given, _: x @ given[k] * scale,
        lambda x, given, _: x @ given[k] * scale,
        (*c.shape[:-1], wanted),
    )


def permute(c: Chain) -> None:
    order = tuple(c.d.permuted(len(c.shape)))
    c.add(
        lambda x, *_: eg.permute_dims(x, order),
        lambda x, *_: x.permute(order),
        [c.shape[k] for k in order],
    )


def reshape(c: Chain) -> None:
    if len(c.shape) < 2:
        return permute(c)
    shape = (c.shape[0] * c.shape[1], *c.shape[2:])
    c.add(lambda x, *_: x.reshape(shape), lambda x, *_: x.reshape(shape), shape)
    return None


def shift(c: Chain) -> None:
    """Neighbours: slices and padding."""
    axis = len(c.shape) - 1
    if c.shape[axis] < 2:
        return unary(c)
    c.add(
        lambda x, *_: x[..., 1:] - x[..., :-1],
        lambda x, *_: x[..., 1:] - x[..., :-1],
        (*c.shape[:-1], c.shape[-1] - 1),
    )
    return None


def reduce(c: Chain) -> None:
    """An axis less."""
    if len(c.shape) < 2:
        return unary(c)
    axis = c.d.between(0, len(c.shape) - 1)
    c.add(
        lambda x, *_: eg.mean(x, axis=axis),
        lambda x, *_: torch.mean(x, axis),
        [n for k, n in enumerate(c.shape) if k != axis],
    )
    return None


def doubled(c: Chain) -> None:
    if c.shape[0] > 4000:
        return unary(c)
    axis = c.d.between(0, len(c.shape) - 1)
    shape = list(c.shape)
    shape[axis] *= 2
    c.add(
        lambda x, *_: eg.concat([x, x * 0.5], axis=axis),
        lambda x, *_: torch.cat([x, x * 0.5], axis),
        shape,
    )
    return None


STEPS: tuple[Step, ...] = (
    *(unary, unary, unary, with_input, with_input, with_earlier, reduce_back, rows, norm),
    *(matmul, permute, reshape, shift, reduce, doubled),
)


def chain(d: Draw) -> Problem:
    shape = tuple(max(1, n) for n in d.shape(d.pick((1, 2, 2, 3)), d.elements(1 << 16)))
    c = Chain(d, shape, d.dtype(halves=0))
    for _ in range(d.pick((2, 3, 4, 6, 9))):
        STEPS[d.between(0, len(STEPS) - 1)](c)
    some = [k for k in range(1, len(c.steps)) if d.chance(0.15)]
    kept = [*some, len(c.steps)]
    return Problem(
        c.inputs,
        c.function(0, kept),
        c.function(1, kept),
        "values",
        floor=1e-3,  # the mean of a softmax has no gradient: what is left of it is rounding
        looseness=4.0,  # rounding of one step is magnified by the next
        dtype=c.dtype,
    )


SECTION = OpSection(
    "chains",
    (
        "column_sums",
        "copy_index",
        "copy_kernels",
        "epilogues",
        "fuse",
        "fused",
        "group",
        "group_threads",
        "groups",
        "loop_nest",
        "loops",
        "numpy_reduce",
        "online_softmax",
        "recompute",
        "reduction",
        "replay",
        "row_kernel",
        "row_kernels",
        "rows",
        "second_stage",
        "simplify",
        "values",
    ),
    {"chain": (1, chain)},
    weight=2.0,
)

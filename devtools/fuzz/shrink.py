"""A failing program made smaller while it still fails in the same way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from devtools.fuzz import program as p
from devtools.fuzz.check import Failure, tried, ways_for
from devtools.fuzz.program import Input, Program, Ref, Step, replaced

Fails = Callable[[Program], bool]


def still_fails(failure: Failure) -> Fails:
    """Whether a candidate is valid, and fails as the original did."""

    def fails(program: Program) -> bool:
        possible, allowed = ways_for(program)
        if failure.way not in possible:
            return False
        found = tried(program, failure.way, allowed)
        return found is not None and found.same_as(failure)

    return fails


def shrink(program: Program, fails: Fails, seconds: float = 60.0) -> Program:
    """The smallest program found that still fails."""
    end = time.monotonic() + seconds
    program = program.live()
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in candidates(program):
            if time.monotonic() > end:
                break
            if candidate != program and fails(candidate):
                program, changed = candidate, True
                break
    return program


def candidates(program: Program) -> Iterator[Program]:
    """Smaller programs, those that save most first."""
    for make in (fewer_outputs, cuts, bypasses, plainer, fewer_inputs, smaller_sizes):
        for candidate in make(program):
            yield candidate.live()


def fewer_outputs(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for n in program.outputs:
            yield replace(program, outputs=(n,))
        for i in range(len(program.outputs)):
            left = program.outputs[:i] + program.outputs[i + 1 :]
            yield replace(program, outputs=left)


def cuts(program: Program) -> Iterator[Program]:
    """A value that was computed becomes an input, late ones first; a result becomes its input."""
    used = {n for s in program.steps for n in s.refs()}
    values = computed(program)
    for step in reversed(program.steps):
        if step.in_place:
            yield renamed(without(program, step), step.number, step.args[0].number)
        elif step.number in used and step.number in values:
            made = as_input(step.number, values[step.number].numpy())
            cut = without(program, step)
            yield replace(cut, inputs=(*cut.inputs, made))
    for step in program.steps:  # an earlier result serves in place of a later one
        if step.number in program.outputs and not step.in_place:
            for n in step.refs():
                outs = tuple(n if o == step.number else o for o in program.outputs)
                yield replace(program, outputs=outs)


def computed(program: Program) -> dict[int, Any]:
    """The values up to the first step that fails, if one does."""
    values: dict[int, Any] = {i.number: i.tensor() for i in program.inputs}
    for step in program.steps:
        try:
            values[step.number] = step.run(values)
        except Exception:
            break
    return values


def as_input(number: int, array: Any) -> Input:
    """An input of random numbers of an array's range."""
    low, high = -1.0, 1.0
    if array.size and array.dtype.kind != "b":
        wide = array.astype(np.float64)
        low, high = float(np.round(wide.min(), 2)), float(np.round(wide.max(), 2)) + 0.01
        if array.dtype.kind in "iu":
            high = np.floor(high) + 1
    return Input(number, array.shape, array.dtype.name, low, high, number)


def without(program: Program, step: Step) -> Program:
    return replace(program, steps=tuple(s for s in program.steps if s is not step))


def renamed(program: Program, old: int, new: int) -> Program:
    """Every use of one value becomes a use of another."""

    def other(ref: Ref) -> Ref:
        return Ref(new) if ref.number == old else ref

    steps = tuple(
        replace(
            s,
            args=replaced(s.args, other),
            kwargs={k: replaced(v, other) for k, v in s.kwargs.items()},
        )
        for s in program.steps
    )
    outputs = tuple(new if n == old else n for n in program.outputs)
    return Program(program.inputs, steps, outputs)


def bypasses(program: Program) -> Iterator[Program]:
    """A step is left out where one of its arguments has its type."""
    values = computed(program)
    for step in reversed(program.steps):
        if step.number not in values:
            continue
        for n in dict.fromkeys(step.refs()):
            a, b = values[n], values[step.number]
            if a.shape == b.shape and a.dtype is b.dtype and not step.in_place:
                yield renamed(without(program, step), step.number, n)


def plainer(program: Program) -> Iterator[Program]:
    """Without keywords, layouts, closures, float32."""
    for i, x in enumerate(program.inputs):
        if x.layout != p.PLAIN:
            yield with_input(program, i, replace(x, layout=p.PLAIN))
        if x.place != p.ARGUMENT:
            yield with_input(program, i, replace(x, place=p.ARGUMENT))
        if x.dtype in ("float32", "bfloat16"):
            yield with_input(program, i, replace(x, dtype="float64"))
    for i, s in enumerate(program.steps):
        for name in s.kwargs:
            left = {k: v for k, v in s.kwargs.items() if k != name}
            yield with_step(program, i, replace(s, kwargs=left))


def with_input(program: Program, i: int, x: Input) -> Program:
    return replace(program, inputs=(*program.inputs[:i], x, *program.inputs[i + 1 :]))


def with_step(program: Program, i: int, step: Step) -> Program:
    return replace(program, steps=(*program.steps[:i], step, *program.steps[i + 1 :]))


def fewer_inputs(program: Program) -> Iterator[Program]:
    """One input serves for another of its type."""
    for a, b in itertools.combinations(program.inputs, 2):
        if (a.shape, a.dtype) == (b.shape, b.dtype):
            left = tuple(x for x in program.inputs if x is not b)
            yield renamed(replace(program, inputs=left), b.number, a.number)


def smaller_sizes(program: Program) -> Iterator[Program]:
    """Every axis of one size gets a smaller size, wherever that number stands; axes go."""
    sizes = sorted({n for x in program.inputs for n in x.shape if n > 1}, reverse=True)
    for n in sizes:
        for less in sorted({1, 2, 3, n // 2, n - 1}):
            if less < n:
                yield resized(program, n, less)
    for i, x in enumerate(program.inputs):
        for axis, n in enumerate(x.shape):
            if n > 1:
                shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
                yield with_input(program, i, unlettered(x, shape))
            shape = x.shape[:axis] + x.shape[axis + 1 :]
            yield with_input(program, i, replace(unlettered(x, shape), layout=p.PLAIN))


def resized(program: Program, old: int, new: int) -> Program:
    def number(value: Any) -> Any:
        if type(value) is int:
            return new if value == old else value
        if type(value) in (list, tuple):
            return type(value)(number(v) for v in value)
        return value

    inputs = tuple(
        unlettered(x, tuple(new if n == old else n for n in x.shape), min(x.high, new), old)
        for x in program.inputs
    )
    steps = tuple(
        replace(s, args=number(s.args), kwargs={k: number(v) for k, v in s.kwargs.items()})
        for s in program.steps
    )
    return Program(inputs, steps, program.outputs)


def unlettered(x: Input, shape: Any, high: float = 1.0, old: int = 0) -> Input:
    """The input in another shape; its literal numbers become random ones of their range."""
    if x.shape == shape:
        return x
    if x.literal is None:
        if x.dtype == "int64" and x.high == old:  # indices along the axis that became smaller
            return replace(x, shape=shape, high=high)
        return replace(x, shape=shape)
    drawn = as_input(x.number, x.literal)
    return replace(x, shape=shape, literal=None, low=drawn.low, high=drawn.high)

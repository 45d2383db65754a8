"""Calls of any op of the registry as its samples have them: new ops need no maker of their own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from devtools.fuzz.generate import Builder, Rejected
from devtools.fuzz.program import Ref, function_of
from everygrad import ops
from everygrad.autograd import grad
from everygrad.core.tensor import Tensor
from everygrad.errors import GradientError
from everygrad.ops.python.creation import ones_like, tensor
from everygrad.ops.record.spec import REGISTRY, Op, Sample

ops.load_all()

# random numbers, checks and moves to devices are no programs; the rest has makers of its own
NOT_FUZZED = {
    *("philox", "philox_advance", "mulhi", "check_range", "to", "dropout", "real", "imag", "conj"),
    *("u32_to_uniform", "u64_to_uniform", "normal_of_words", "integer_of_words"),
    "attention_saved_slopes",  # takes sums of its own arguments
}


@cache
def elementwise(inputs: int) -> tuple[str, ...]:
    """The names of elementwise ops of so many inputs, and no further parameters."""
    found = []
    for name, op in REGISTRY.items():
        if op.family != "elementwise" or name in NOT_FUZZED or len(op.inputs) != inputs:
            continue
        sample = next(iter(op.samples()), None)
        if sample is None or sample.kwargs or len(sample.args) != inputs:
            continue
        if all(isinstance(a, np.ndarray) and a.dtype.kind in "fib" for a in sample.args):
            found.append(name)
    return tuple(found)


@cache
def sampled() -> tuple[str, ...]:
    """The ops that only their samples lead to."""
    others = {*NOT_FUZZED, *elementwise(1), *elementwise(2)}
    return tuple(n for n, op in REGISTRY.items() if n not in others and _samples(op.name))


@cache
def _samples(name: str) -> tuple[Sample, ...]:
    op = REGISTRY[name]
    return tuple(s for s in op.samples() if usable(op, s))


def usable(op: Op, sample: Sample) -> bool:
    """A sample of real numbers whose result's size does not depend on values."""
    found = list(_arrays((sample.args, tuple(sample.kwargs.values()))))
    masked = op.name == "getitem" and any(a.dtype == bool for a in found)
    few = len(found) <= 5 and all(a.size <= 300 for a in found)
    real = all(a.dtype.kind in "fib" and not np.isinf(a).any() for a in found)
    return few and real and not masked and not op.notes.get("by_values")


@cache
def _results(name: str, which: int) -> tuple[bool, ...] | None:
    """Of an op that gives several results for a sample, which of them are tensors to go on with."""
    sample = _samples(name)[which]
    args, kwargs = _made(sample.args), {k: _made(v) for k, v in sample.kwargs.items()}
    out = function_of(REGISTRY[name])(*args, **kwargs)
    if not isinstance(out, list | tuple):
        return None
    return tuple(t.size > 0 for t in out)


@cache
def _has_slope(name: str, which: int) -> bool:
    """Whether a sample can be differentiated: some ops refuse where no derivative exists."""
    sample = _samples(name)[which]
    leaves: list[Tensor] = []
    args = _made(sample.args, leaves)
    out = function_of(REGISTRY[name])(
        *args, **{k: _made(v, leaves) for k, v in sample.kwargs.items()}
    )
    parts = [t for t in (out if isinstance(out, list | tuple) else [out]) if t.requires_grad]
    try:
        grad(parts, leaves, [ones_like(t) for t in parts], allow_unused=True) if parts else None
    except GradientError:
        return False
    return True


def _made(value: Any, leaves: list[Tensor] | None = None) -> Any:
    """A sample's arrays as tensors; floating ones that are to be leaves are collected."""
    if type(value) in (list, tuple):
        return type(value)(_made(v, leaves) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    made = tensor(value)
    if leaves is not None and made.dtype.is_differentiable:
        leaves.append(made.requires_grad_())
    return made


def from_sample(b: Builder) -> Ref:
    """A call of any op of the registry, as one of its samples has it; of complex numbers a part."""
    name = b.rng.choice(sampled())
    which = b.rng.randrange(len(_samples(name)))
    if not _has_slope(name, which) or (b.narrow and REGISTRY[name].notes.get("absent")):
        raise Rejected
    sample = _samples(name)[which]
    args = tuple(_placed(b, a) for a in sample.args)
    kwargs = {k: _placed(b, v) for k, v in sample.kwargs.items()}
    several = _results(name, which)
    pick = None if several is None else b.rng.choice([i for i, full in enumerate(several) if full])
    out = b.add(name, *args, pick=pick, **kwargs)
    return b.add(b.rng.choice(("real", "imag")), out) if b.of(out).dtype.is_complex else out


def _arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif type(value) in (list, tuple):
        for v in value:
            yield from _arrays(v)


def _placed(b: Builder, value: Any) -> Any:
    """A sample's array as an input, tied to the rest of the program by a factor near 1."""
    if type(value) in (list, tuple):
        return type(value)(_placed(b, v) for v in value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind != "f":
        return b.input(value.shape, value.dtype.name, literal=value)
    x = b.input(value.shape, "float32" if b.narrow else "float64", literal=value)
    if b.dtype != str(b.of(x).dtype):
        return b.add("astype", x, b.dtype)
    if b.rng.random() < 0.5:
        other = b.pick(lambda t: t.dtype.is_float and t.size > 0)
        factor = b.add("mean", b.add("tanh", other))
        return b.add("multiply", x, b.add("add", b.add("multiply", factor, 0.01), 1.0))
    return x

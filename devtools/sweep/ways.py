"""The ways to run a problem: eagerly, compiled, on other numbers of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import everygrad as eg
from devtools.sweep.problem import Given, Problem
from devtools.sweep.referee import as_list
from everygrad.autograd.api import grad
from everygrad.backends.thread_pool import num_threads, set_num_threads

Arrays = list[Any]


def _flip(t: eg.Tensor) -> eg.Tensor:
    return t[..., ::-1]


def _seen(g: Given, t: eg.Tensor) -> eg.Tensor:
    return g.view(t, eg.permute_dims, _flip, eg.broadcast_to)


def leaves_of(problem: Problem, device: str) -> list[eg.Tensor]:
    """The leaves; those that lie otherwise in memory than in order are views of it."""
    made = []
    for g in problem.inputs:
        t = eg.tensor(g.memory, device=device)
        if not g.inside:
            t = _seen(g, t).detach()
        made.append(t.requires_grad_() if g.is_float and g.grad else t)
    return made


def function_of(problem: Problem, weights: list[Any]) -> Callable[..., tuple[Any, Any]]:
    """Results and gradients, as a function of leaves and weights."""
    floats = [k for k, g in enumerate(problem.inputs) if g.is_float and g.grad]

    def run(leaves: list[eg.Tensor], given: list[eg.Tensor]) -> tuple[Any, Any]:
        seen = [_seen(g, t) if g.inside else t for g, t in zip(problem.inputs, leaves, strict=True)]
        outs = as_list(problem.ours(*seen))
        some = [(o, w) for o, w in zip(outs, given, strict=True) if o.requires_grad]
        if not some or not floats:
            return outs, []
        wanted = [leaves[k] for k in floats]
        slopes = grad(
            [o for o, _ in some],
            wanted,
            [w.astype(o.dtype) for o, w in some],
            allow_unused=True,
        )
        return [o.detach() for o in outs], list(slopes)

    return run


def _copied(outs: Any, slopes: Any) -> Arrays:
    return [None if t is None else np.array(t.detach().numpy()) for t in (*outs, *slopes)]


def _weights(weights: list[Any], device: str) -> list[eg.Tensor]:
    return [eg.tensor(w.astype(np.float32), device=device) for w in weights]


def eager(problem: Problem, weights: list[Any], device: str) -> Arrays:
    """Op by op."""
    run = function_of(problem, weights)
    return _copied(*run(leaves_of(problem, device), _weights(weights, device)))


def compiled(problem: Problem, weights: list[Any], device: str) -> Arrays:
    """Traced and replayed; a replay that gives other bits is an error of its own."""
    run = eg.jit(function_of(problem, weights))
    leaves, given = leaves_of(problem, device), _weights(weights, device)
    first = _copied(*run(leaves, given))
    again = _copied(*run(leaves, given))
    for k, (a, b) in enumerate(zip(first, again, strict=True)):
        if a is not None and a.tobytes() != b.tobytes():
            raise AssertionError(f"result {k} has other bits when the function is called again")
    return again


def threads(problem: Problem, weights: list[Any], device: str) -> Arrays:
    """Eagerly on other numbers of threads: the same bits on any."""
    before = num_threads()
    first = eager(problem, weights, device)
    try:
        for count in (1, 3, 7):
            set_num_threads(count)
            again = eager(problem, weights, device)
            for k, (a, b) in enumerate(zip(first, again, strict=True)):
                if a is not None and a.tobytes() != b.tobytes():
                    what = f"on {count} threads than on {before}"
                    raise AssertionError(f"result {k} has other bits {what}")
    finally:
        set_num_threads(before)
    return first


WAYS: dict[str, Callable[[Problem, list[Any], str], Arrays]] = {
    "eager": eager,
    "jit": compiled,
    "threads": threads,
}

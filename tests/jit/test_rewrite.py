"""Graphs made from graphs: a copy without rules is the same graph; a rule changes what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad._jit.record import trace
from everygrad._jit.verify import interpreted
from everygrad.autograd.transforms.checkpoint import checkpoint
from everygrad.autograd.trees import flatten
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.nn import functional as F

X, W = np.linspace(-1, 1, 12).reshape(3, 4), np.linspace(0, 1, 8).reshape(2, 4)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda x, w: (eg.exp(x) * 2 + 0.5).sum(axis=0),
    "product": lambda x, w: F.gelu(F.linear(x, w)),
    "constants": lambda x, w: x + eg.tensor([1.0, 2.0, 3.0, 4.0], dtype="float64"),
    "index": lambda x, w: eg.take(x, eg.tensor([2, 0]), axis=0) + w,
    "moves": lambda x, w: eg.concat([x.T.reshape(3, 4), x[::-1]], axis=1),
    "again": lambda x, w: checkpoint(lambda y: eg.tanh(y) * y, x) + eg.tanh(x),
    "nothing used": lambda x, w: w * 2,
}


def graph_of(name: str) -> Graph:
    leaves, tree = flatten(((eg.tensor(X), eg.tensor(W)), {}))
    return trace(FUNCTIONS[name], leaves, tree, escapes=True)[0].graph


def facts(v: Value) -> Any:
    params = [(name, id(value)) for name, value in v.params.items()]
    return v.op, params, v.shape, v.dtype, v.where, v.generation


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_copy_is_the_same_graph(name: str) -> None:
    old = graph_of(name)
    new = Rewriter().run(old)
    new.verify()
    live = [v for v in in_order({*old.inputs, *reachable(old.outputs)}) if v.kind != "input"]
    made = [v for v in new.values if v.kind != "input"]
    assert [facts(v) for v in made] == [facts(v) for v in live]
    assert len(new.inputs) == len(old.inputs)
    assert str(Rewriter().run(new)) == str(new)
    given = [X, W, *([np.array([2, 0])] if len(old.inputs) > 2 else [])][: len(old.inputs)]
    want = [interpreted(old, given, old.outputs)[v] for v in old.outputs]
    got = [interpreted(new, given, new.outputs)[v] for v in new.outputs]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    assert want


def test_a_copy_stops_at_what_is_given() -> None:
    old = graph_of("product")
    (last,) = old.outputs
    (before,) = last.args
    part = Rewriter()
    part.made[before] = part.input(before)
    new = part.copy([last])
    assert [v.kind for v in new.values] == ["input", "elementwise"]
    assert new.inputs[0].shape == before.shape


def test_a_rule_replaces_what_it_answers_for() -> None:
    class WithoutReductions(Rewriter):
        def replacement(self, v: Value, args: list[Value]) -> Value | None:
            return args[0] if v.facts.combine else None

    old = graph_of("elementwise")
    new = WithoutReductions().run(old)
    assert [v.shape for v in old.outputs] == [(4,)]
    assert [v.shape for v in new.outputs] == [(3, 4)]
    assert not [v for v in new.values if v.kind == "reduction"]


def test_other_outputs_of_the_same_values() -> None:
    old = graph_of("product")
    part = old.with_outputs([old.outputs[0].args[0]])
    assert part.values is old.values
    assert part.inputs is old.inputs
    assert part.outputs != old.outputs

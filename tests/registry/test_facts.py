"""What records say about ops (`compile.facts`) is true of what the ops compute."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import ops
from everygrad.compiler import expr
from everygrad.compiler.facts import FACTS, Move, OpFacts
from everygrad.ops.record.families import Elementwise
from everygrad.ops.record.spec import REGISTRY, Op
from everygrad.optim import __path__ as PATH
from everygrad.optim.rule import Update

ops.load_all()
X = np.array([-2.5, -0.0, 0.0, 1.0, 3.25])


def having(fact: str) -> list[Any]:
    """The ops that state a fact."""
    found = [op for op in REGISTRY.values() if getattr(op, fact) not in (None, False, "", ())]
    assert found, f"no op states {fact}"
    return [pytest.param(op, id=op.name) for op in found]


def same_bits(made: Any, x: Any) -> None:
    np.testing.assert_array_equal(made.numpy(), x)
    np.testing.assert_array_equal(np.signbit(made.numpy()), np.signbit(x))


@pytest.mark.parametrize("op", having("neutral"))
def test_the_neutral_number_changes_nothing(op: Any) -> None:
    x, number = eg.tensor(X), eg.tensor(op.neutral.right, dtype="float64")
    same_bits(op.function(x, number), X)
    if op.neutral.both:
        same_bits(op.function(number, x), X)
    else:
        assert not np.array_equal(op.function(number, x).numpy(), X, equal_nan=True)


@pytest.mark.parametrize("op", having("involution"))
def test_an_involution_undoes_itself(op: Any) -> None:
    same_bits(op.function(op.function(eg.tensor(X))), X)


@pytest.mark.parametrize("op", having("selects"))
def test_a_selection_is_one_of_two(op: Any) -> None:
    for chosen in (True, False):
        out = op.function(eg.tensor(np.full(5, chosen)), eg.tensor(X), eg.tensor(X + 7))
        same_bits(out, X if chosen else X + 7)


@pytest.mark.parametrize("op", having("alias"))
def test_an_alias_is_its_input(op: Any) -> None:
    (sample, *_) = op.samples()
    args = [eg.tensor(a) if isinstance(a, np.ndarray) else a for a in sample.args]
    same_bits(op.function(*args, **sample.kwargs), sample.args[0])


@pytest.mark.parametrize("op", having("index_bound"))
def test_indices_lie_below_their_bound(op: Any) -> None:
    samples = [s for s in op.samples() if all(a.size for a in s.args if isinstance(a, np.ndarray))]
    assert samples
    for s in samples:
        args = [eg.tensor(a) if isinstance(a, np.ndarray) else a for a in s.args]
        names = op.result.__code__.co_varnames[len(op.inputs) : op.result.__code__.co_argcount]
        params = dict(zip(names, s.args[len(op.inputs) :], strict=True))
        shapes = [a.shape for a in s.args if isinstance(a, np.ndarray)]
        assert op.function(*args).max().item() < op.index_bound(shapes, params)


def test_movements_are_the_five() -> None:
    found = {op.move: op for op in REGISTRY.values() if op.family == "movement"}
    assert {*found} == {*Move}
    assert all(found[move].name == move.value and found[move].rearranges for move in Move)


def test_an_intrinsic_is_the_whole_op() -> None:
    by_name = {n: op.intrinsic() for n, op in REGISTRY.items() if isinstance(op, Elementwise)}
    wanted = {"add": "add", "exp": "exp", "subtract": "sub", "equal": "eq", "where": "select"}
    assert wanted.items() <= by_name.items()
    assert {by_name[n] for n in ("square", "relu", "gelu")} == {""}
    for name, fn in by_name.items():
        if fn:
            root = expr.trace(REGISTRY[name].body, expr.INTRINSICS[fn][0])  # type: ignore[attr-defined]
            assert (root.fn, [a.value for a in root.args]) == (fn, [*range(len(root.args))]), name


def test_a_fused_derivative_knows_its_op() -> None:
    gelu: Any = REGISTRY["gelu"]
    derivative = gelu.partials[0].compile()
    assert derivative.derivative_of is gelu
    assert derivative.coarse_halves


def test_a_misspelt_fact_is_refused() -> None:
    with pytest.raises(TypeError, match="no fact of an op is called 'is_random'"):
        Op("x", is_random=True)
    assert "random" in FACTS
    assert not OpFacts().random


def test_rules_of_optimisers_are_asked_like_ops() -> None:
    """Compilers ask every elementwise op of a graph for its intrinsic, updates included."""
    found = [
        update
        for module in (import_module(f"everygrad.optim.{m.name}") for m in iter_modules(PATH))
        for update in vars(module).values()
        if isinstance(update, Update)
    ]
    assert len(found) > 30
    assert {update.intrinsic() for update in found} >= {"", "max"}

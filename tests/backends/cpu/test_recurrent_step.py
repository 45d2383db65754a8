"""Cells of LSTMs and GRUs: a step is one op, which gives what its definition gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.ops.nn.recurrent import MODES, recurrent_step
from everygrad.ops.nn.recurrent_step import cell_step

MODES_SERVED = ("lstm", "gru")


def _inputs(mode: str, n: int, hidden: int, dtype: str = "float32") -> list[Any]:
    rng = np.random.default_rng(n)
    gates, states = MODES[mode].gates, MODES[mode].states
    widths = (gates, gates, *(1,) * states)
    made = [rng.standard_normal((n, width * hidden)).astype(dtype) for width in widths]
    return [eg.tensor(a, requires_grad=True) for a in made]


def _results(step: Any, mode: str, inputs: list[Any]) -> list[Any]:
    gx, gh, *states = inputs
    found = step(mode, gx, gh, states)[: len(states)]
    loss = sum((k + 2) * (out * out).sum() for k, out in enumerate(found))
    used = inputs if mode == "gru" else [gx, gh, states[-1]]
    return [*found, *eg.autograd.grad(loss, used)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", MODES_SERVED)
@pytest.mark.parametrize(("n", "hidden"), [(1, 1), (3, 5), (2, 17), (33, 64), (1, 0), (0, 2)])
def test_a_step_is_what_its_definition_is(mode: str, n: int, hidden: int, dtype: str) -> None:
    inputs = _inputs(mode, n, hidden, dtype)
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for a, b in zip(
        _results(cell_step, mode, inputs), _results(recurrent_step, mode, inputs), strict=True
    ):
        np.testing.assert_allclose(
            a.detach().numpy(), b.detach().numpy(), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("mode", MODES_SERVED)
def test_a_step_is_one_op_where_a_kernel_takes_it(mode: str) -> None:
    gx, gh, *states = _inputs(mode, 3, 4)
    node = cell_step(mode, gx, gh, states)[0]._node
    node = node.parents[0] if mode == "lstm" else node  # the states lie one below the other
    assert node.op.name == "rnn_step"
    with eg.autocast(dtype="bfloat16"):  # chooses the dtypes of the ops it is made of
        assert cell_step(mode, gx, gh, states)[0]._node.op.name != "rnn_step"
    halves = [x.astype("float16") for x in (gx, gh, *states)]
    assert cell_step(mode, halves[0], halves[1], halves[2:])[0].dtype is eg.float16


@pytest.mark.parametrize("cell", [eg.nn.LSTMCell, eg.nn.GRUCell])
def test_cells_take_higher_derivatives(cell: Any) -> None:
    made = cell(3, 4, dtype="float64")
    x = eg.tensor(np.random.default_rng(0).standard_normal((2, 3)), requires_grad=True)

    def after_two(x: Any) -> Any:
        state = made(x * 0.5, made(x))
        return state[0] + state[1] if isinstance(state, tuple) else state

    assert eg.gradcheck(after_two, [x])
    assert eg.gradgradcheck(after_two, [x])

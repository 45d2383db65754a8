"""Nodes of a graph that compute the same: one serves, where nobody can tell."""

import subprocess
import sys

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from everygrad.interop.torch.repeated import without_repeated

aten = torch.ops.aten


def _merged(function, *given) -> tuple[GraphModule, int, int]:
    """The graph without repeated nodes, and how many nodes it had and has."""
    module = make_fx(function, tracing_mode="fake")(*given)
    before = len(module.graph.nodes)
    without_repeated(module)
    module.graph.lint()
    module.recompile()
    return module, before, len(module.graph.nodes)


def test_one_node_serves_for_all_that_compute_the_same() -> None:
    def function(x, y):
        a, b = aten.max.dim(aten.sin(x), 1)
        c, d = aten.max.dim(aten.sin(x), 1)
        return aten.mul(a, aten.exp(y)) + aten.mul(c, aten.exp(y)), b + d

    given = torch.randn(3, 4), torch.randn(3)
    module, before, after = _merged(function, *given)
    assert before - after == 6  # sin, max, two getitems, exp, mul
    for got, want in zip(module(*given), function(*given), strict=True):
        assert torch.equal(got, want)


def test_what_differs_stays_apart() -> None:
    def numbers(x):
        return (
            aten.full([2], 1, dtype=torch.float32) + aten.full([2], 1.0, dtype=torch.float32),
            (x * 0.0) + (x * -0.0),
            aten.sum.dim_IntList(x, [0]) + aten.sum.dim_IntList(x, [0], True),
        )

    def drawn(x):
        return aten.rand([3]) + aten.rand([3]) + aten.bernoulli(x) + aten.bernoulli(x)

    def written(x):
        a = aten.sin(x)
        aten.add_(x, 1)
        return a + aten.sin(x)

    def given_away(x):
        return aten.sin(x), aten.sin(x), aten.view(aten.cos(x), [3]), aten.cos(x)

    x = torch.rand(3)
    for function in (numbers, drawn, written, given_away):
        module, before, after = _merged(function, x)
        assert before == after, function.__name__
        torch.manual_seed(0)
        want = function(x.clone())
        torch.manual_seed(0)
        torch.testing.assert_close(module(x.clone()), want, rtol=0, atol=0)


def test_sizes_that_are_symbols_are_left_to_pytorch() -> None:
    module = make_fx(lambda x: aten.sin(x) + aten.sin(x), tracing_mode="symbolic")(torch.rand(3))
    before = len(module.graph.nodes)
    without_repeated(module)
    assert len(module.graph.nodes) == before


def test_training_does_not_load_inductors_lowerings() -> None:
    program = """
import sys, torch
model = torch.compile(torch.nn.Linear(3, 3), backend="everygrad")
model(torch.ones(2, 3)).sum().backward()
print([name for name in sys.modules if name.startswith("torch._inductor.lowering")])
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "[]\n", run.stderr

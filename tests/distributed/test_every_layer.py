"""Every layer of the tables, and a network of many of them, on ranks that share it."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from devtools.drills.training_ways import SAME, difference, drawn_ways
from everygrad import nn, optim
from everygrad.errors import ArgumentError
from tests.nn import test_layers, test_recurrent
from tests.support.trained_beside_torch import Case, flat, tensors

LAYERS = {**test_layers.CASES, **test_recurrent.CASES}
# called otherwise than as a whole, which what is around a module is not
NOT_CALLED = {"AdaptiveLogSoftmax log_prob", "ModuleList", "ModuleDict", "ParameterList",
              "ParameterDict"}  # fmt: skip
WITH_WEIGHTS = [
    name
    for name, case in LAYERS.items()
    if list(case.make(nn).parameters()) and name not in NOT_CALLED
]
assert len(WITH_WEIGHTS) > 70


def results(case: Case, level: int | None, ranks: int) -> tuple[list[Any], dict[str, Any]]:
    """What a layer gives, the gradients of its inputs, and its whole parameters after a step."""
    eg.manual_seed(1)
    model: Any = case.make(nn).double().train(not case.evaluate)
    mesh = dist.Mesh({"data": ranks})
    if level is not None:
        model = dist.shard(model, mesh, "data", level) if level else dist.DataParallel(model, mesh)
    opt = optim.SGD(model.parameters(), lr=0.01)
    found = []
    for i in range(2):
        xs = tensors(case.inputs(np.random.default_rng(i)), nn)
        outs = flat(case.call(model, nn, xs))
        opt.zero_grad()
        sum((out * out).sum() for out in outs).backward()
        opt.step()
        grads = [x.grad for x in xs if isinstance(x, eg.Tensor)]
        found += [t.detach().numpy() for t in (*outs, *grads) if t is not None]
    return found, {name: t.numpy() for name, t in model.state_dict().items()}


@pytest.mark.filterwarnings("ignore:.*does not depend on")
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_a_layer_on_ranks_that_share_it(name: str, level: int) -> None:
    """All ranks get the same rows: the mean of their gradients is that of one."""
    if "max norm" in name:
        with pytest.raises(ArgumentError, match=r"by max_norm.* would come to have other weights"):
            dist.run_local(results, 2, LAYERS[name], level, 2)
        return
    ((want, weights),) = dist.run_local(results, 1, LAYERS[name], None, 1)
    for got, shared in dist.run_local(results, 2, LAYERS[name], level, 2):
        assert len(got) == len(want)
        assert shared.keys() == weights.keys()
        pairs = [*zip(got, want, strict=True), *((shared[k], weights[k]) for k in weights)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("number", range(12))
def test_a_training_in_another_way(number: int) -> None:
    """Seeded; `python -m devtools.drills.training_ways` draws as many as it is asked for."""
    ((plain, other),) = islice(drawn_ways(7), number, number + 1)
    assert difference(plain, other) <= SAME, other

"""Every optimiser on parameters that ranks share: as one process would, or refused by name. And
what else in a training loop looks at all gradients at once."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.errors import ArgumentError

RNG = np.random.default_rng(11)
X, Y = RNG.standard_normal((8, 5)), RNG.standard_normal((8, 3))
STEPS = 4
OPTIMISERS = [
    made
    for name, made in sorted(vars(optim).items())
    if inspect.isclass(made) and issubclass(made, optim.Optimizer) and made is not optim.Optimizer
]
assert len(OPTIMISERS) > 15
OF_WHOLE_PARAMETERS = {"Adafactor", "LAMB", "LBFGS", "Muon"}


def trained(make: Any, level: int | None, ranks: int, compiled: bool = False) -> list[float]:
    """The losses of a few steps; without a level in a process by itself."""
    eg.manual_seed(3)  # each rank has a stream of its own
    model: Any = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)).double()
    mesh = dist.Mesh({"data": ranks})
    if level is not None:
        model = dist.shard(model, mesh, "data", level) if level else dist.DataParallel(model, mesh)
    opt = make([p for p in model.parameters() if p.ndim == 2 or make is not optim.Muon])
    rows = slice(dist.rank() * 8 // ranks, (dist.rank() + 1) * 8 // ranks)
    x, y = eg.tensor(X[rows]), eg.tensor(Y[rows])

    def closure() -> eg.Tensor:
        opt.zero_grad()
        loss: eg.Tensor = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss.detach()  # LBFGS asks the other ranks for theirs

    def step() -> eg.Tensor:
        loss = dist.all_reduce(closure(), mesh, "data", "mean")
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        return loss

    run = eg.jit(step) if compiled else step
    return [
        (opt.step(closure) if isinstance(opt, optim.LBFGS) else run()).item() for _ in range(STEPS)
    ]


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("make", OPTIMISERS, ids=lambda make: make.__name__)
def test_steps_are_those_of_one_process_or_refused(make: Any, level: int) -> None:
    if level and make.__name__ in OF_WHOLE_PARAMETERS:
        message = f"{make.__name__}: (got no parameters|parameter 0 .* part of one whose rest)"
        with pytest.raises(ArgumentError, match=message):
            dist.run_local(trained, 2, make, level, 2)
        return
    (alone,) = dist.run_local(trained, 1, make, None, 1)
    assert len(set(alone)) == STEPS
    for losses in dist.run_local(trained, 2, make, level, 2):
        np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_groups_chosen_by_axes_are_those_of_one_process(level: int, compiled: bool) -> None:
    """No decay of what has fewer than two axes: what is here of a matrix may be a vector."""

    def make(params: Any) -> Any:
        many, few = ([p for p in params if (p.dim() > 1) is wide] for wide in (True, False))
        assert many
        assert few
        groups = [{"params": many}, {"params": few, "weight_decay": 0.0}]
        return optim.AdamW(groups, lr=0.1, weight_decay=0.5)

    (alone,) = dist.run_local(trained, 1, make, None, 1)
    for losses in dist.run_local(trained, 2, make, level, 2, compiled):
        np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", [1, 3])
def test_gradients_are_clipped_by_the_norm_over_all_ranks_in_a_compiled_step(level: int) -> None:
    (alone,) = dist.run_local(trained, 1, optim.AdamW, None, 1)
    for losses in dist.run_local(trained, 2, optim.AdamW, level, 2, True):
        np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("unscaled", [False, True])
def test_an_overflow_on_one_rank_skips_the_step_on_all(level: int, unscaled: bool) -> None:
    """At level 2 and 3 one rank alone has the gradient that is infinite."""

    def run() -> Any:
        model: Any = nn.Linear(4, 1, bias=False)
        mesh = dist.Mesh({"data": 2})
        model = dist.shard(model, mesh, "data", level) if level else dist.DataParallel(model, mesh)
        before = {n: v.numpy().copy() for n, v in model.state_dict().items()}
        opt, scaler = optim.SGD(model.parameters(), lr=1.0), optim.GradScaler(init_scale=4.0)
        x = eg.tensor([[1.0, 1.0, 1.0, np.inf]])
        scaler.scale(model(x).sum()).backward()
        if unscaled:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        after = model.state_dict()
        return scaler.get_scale(), all((after[n].numpy() == v).all() for n, v in before.items())

    assert dist.run_local(run, 2) == [(2.0, True)] * 2


def test_simulated_ranks_have_random_streams_of_their_own() -> None:
    """As processes have: each begins where the process that starts them is, and seeds itself."""
    drawn = eg.jit(lambda: eg.rand((3,)))
    state = eg.default_generator.get_state()

    def run() -> Any:
        first = eg.rand((3,)).tolist()
        eg.manual_seed(5 + dist.rank())
        mine, compiled = eg.rand((3,)).tolist(), drawn().tolist()
        eg.default_generator.manual_seed(5 + dist.rank())
        again = [eg.rand((3,)).tolist(), eg.rand((3,)).tolist()]
        return first, mine, compiled, again, eg.initial_seed()

    found = dist.run_local(run, 3)
    np.testing.assert_array_equal(eg.default_generator.get_state(), state)
    before = eg.rand((3,)).tolist()
    for rank, (first, mine, compiled, again, seed) in enumerate(found):
        assert first == before
        assert [mine, compiled] == again
        assert seed == 5 + rank
    assert len({tuple(mine) for _, mine, *_ in found}) == 3

"""The memory of a rank beside theory, counted by the allocator: every block that the rank's context
took from the pool and still holds. Layers are large enough that all they have is the pool's, and
batches so that their gradients are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.backends.cpu.runtime.pool import SMALLEST, _pool, count_memory, empty
from everygrad.distributed import Shard
from everygrad.ops.random.generators import Generator, scoped_generator

pytestmark = pytest.mark.usefixtures("alone")

WIDE, LAYERS, ROWS = 512, 8, 4
LAYER = WIDE * WIDE * 8  # bytes
WHOLE = LAYERS * LAYER
NEAR = 1.1


def net() -> nn.Sequential:
    with scoped_generator(Generator(4)):
        made = [nn.Linear(WIDE, WIDE, bias=False) for _ in range(LAYERS)]
    return nn.Sequential(*(part for m in made for part in (m, nn.Tanh()))).double()


def test_a_count_is_of_what_its_context_holds() -> None:
    outside = empty((SMALLEST,), np.dtype(np.uint8))
    with count_memory() as count:
        assert count.in_use == 0
        a = empty((2, SMALLEST), np.dtype(np.uint8))
        b = a[0]  # a view keeps the block
        assert count.in_use == 2 * SMALLEST
        del a
        assert count.in_use == 2 * SMALLEST
        del b
        assert count.in_use == 0
        assert count.peak == 2 * SMALLEST
        count.reset_peak()
        assert count.peak == 0
        c = empty((SMALLEST,), np.dtype(np.uint8))
        empty((SMALLEST - 1,), np.dtype(np.uint8))  # NumPy's
        assert count.in_use == count.peak == SMALLEST
    d = empty((2, SMALLEST), np.dtype(np.uint8))  # memory that was counted, and is another's now
    assert count.in_use == SMALLEST
    del c, outside, d


def test_a_count_outlives_a_trim_of_the_pool() -> None:
    """Which may come at any allocation, wherever the pool retains as much as it may."""
    with count_memory() as count:
        held, idle = (empty((2, SMALLEST), np.dtype(np.uint8)) for _ in range(2))
        del idle
        _pool.trim()
        assert count.in_use == 2 * SMALLEST
        empty((4, SMALLEST), np.dtype(np.uint8))
        assert count.peak == 6 * SMALLEST
        del held
        assert count.in_use == 0
        _pool.trim()
        assert not _pool.owners


def test_ranks_are_counted_by_themselves() -> None:
    """Threads of one process with one pool, and what their communication threads take."""

    def run() -> int:
        with count_memory() as count:
            mesh = dist.Mesh({"d": 2})
            x = eg.ones((WIDE, WIDE * (dist.rank() + 1)), "float64") * 2.0
            work = dist.start_all_reduce(eg.ones((WIDE, WIDE), "float64"), mesh, "d")
            total = work.wait()
            dist.barrier(mesh)
            assert (x.ndim, total.ndim) == (2, 2)
            return count.in_use

    assert dist.run_local(run, 2) == [2 * LAYER, 3 * LAYER]


class Shares:
    """Memory beside theory, as shares of it."""

    def __init__(self, after_backward: float, after_step: float, peak: float) -> None:
        self.after_backward = after_backward
        self.after_step = after_step
        self.peak = peak

    def check(self) -> None:
        assert 1 / NEAR < self.after_backward < NEAR, vars(self)
        assert 1 / NEAR < self.after_step < NEAR, vars(self)
        assert self.peak < NEAR, vars(self)


def shares_of(
    make: Callable[[], tuple[Any, Callable[[], None]]],
    theory: float,
    buffers: float,
) -> Shares:
    """Train a few steps by AdamW and compare.

    theory   bytes of parameters, gradients and the optimiser's state
    buffers  bytes that the exchange of gradients needs while it is under way
    """
    with count_memory() as count:
        model, backward = make()
        opt = optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(3):
            opt.zero_grad()
            count.reset_peak()
            backward()
            held, most = count.in_use, count.peak
            opt.step()
        return Shares(held / theory, count.in_use / theory, most / (theory + buffers))


MANY_ROWS = 64  # from here on the gradient of a weight is the pool's, not NumPy's


def theory_of(level: int, ranks: int) -> float:
    """Bytes of parameters, gradients and the optimiser's state, of which a rank has its share from
    some level on. AdamW's state is two moments, and at levels 1 and 2 the rank's own copy of its
    share of the parameters, which moves while the whole ones stay until the next forward."""
    shared = 1 / ranks
    parameters = shared if level == 3 else 1
    gradients = shared if level >= 2 else 1
    state = 2 if level == 0 else 2 * shared if level == 3 else 3 * shared
    return WHOLE * (parameters + gradients + state)


class Held(NamedTuple):
    """Bytes at some moments of the last of a few steps."""

    after_forward: int
    after_backward: int
    after_step: int
    peak: int


def trained(level: int | None, ranks: int, compiled: bool = False) -> Held:
    mesh = dist.Mesh({"data": ranks})
    x = eg.ones((MANY_ROWS, WIDE), "float64")
    with count_memory() as count:
        model: Any = net()
        if level == 0:
            model = dist.DataParallel(model, mesh)
        elif level is not None:
            model = dist.shard(model, mesh, "data", level)
        opt = optim.AdamW(model.parameters(), lr=1e-3)
        held = {"forward": 0, "backward": 0}

        def note(moment: str) -> None:
            if not compiled:
                held[moment] = count.in_use

        def step(x: Any) -> Any:
            opt.zero_grad()
            loss = model(x).sum()
            note("forward")
            loss.backward()
            note("backward")
            opt.step()
            return loss

        run = eg.jit(step) if compiled else step
        for _ in range(2 * compiled):  # the first moments are NumPy's zeros: they become the pool's
            step(x)
        for _ in range(3):
            count.reset_peak()
            run(x).item()
        return Held(held["forward"], held["backward"], count.in_use, count.peak)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_data_parallel_and_zero(level: int, ranks: int) -> None:
    """What a rank holds after backward, after a step and at its peak is what theory says of it and
    what the same step takes on one process for activations; at level 3, a gathered layer and its
    gradient. Nothing is left over for buckets: those in flight are small."""
    theory = theory_of(level, ranks)
    (alone,) = dist.run_local(trained, 1, None, 1)
    gathered = 2 * LAYER if level == 3 else 0
    activations = alone.after_forward - 3 * WHOLE  # there are no gradients then
    assert 0 < activations < WHOLE / 4
    most = theory + activations + gathered
    for held in dist.run_local(trained, ranks, level, ranks):
        assert held.after_backward < NEAR * theory, (held, theory)
        assert theory / NEAR < held.after_step < NEAR * theory, (held, theory)
        assert held.peak < NEAR * most, (held, most)


UNDER_WAY = {0: 1, 1: 2, 2: 5, 3: 5}  # layers, by level: see the test


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_compiled_step_holds_what_theory_says(level: int, ranks: int) -> None:
    """At its peak, arena included: parameters, gradients, states and activations, and beside them
    layers on their way, however many there are. While sums are exchanged, parts of them: of two
    halves. At levels 1 and 2 two gathered layers, and at level 2 two whole gradients, and one that
    is being made; at level 3 a gathered layer and the next two, a gradient, and one that leaves."""
    (alone,) = dist.run_local(trained, 1, None, 1)
    theory = theory_of(level, ranks) + (alone.after_forward - 3 * WHOLE)
    for held in dist.run_local(trained, ranks, level, ranks, True):
        assert held.peak < NEAR * theory + UNDER_WAY[level] * LAYER, (held, theory)
        assert theory / 2 < held.after_step < NEAR * theory + UNDER_WAY[level] * LAYER


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel(ranks: int) -> None:
    """Gradients of two batches are added up: the result of a thin product is NumPy's, and a sum of
    such is the pool's."""
    places = {str(2 * i): Shard(i % 2) for i in range(LAYERS)}

    def run() -> Shares:
        def make() -> Any:
            mesh = dist.Mesh({"model": ranks})
            model = dist.parallelize(net(), mesh, "model", places)
            x = eg.ones((ROWS, WIDE), "float64")

            def backward() -> None:
                for _ in range(2):
                    model(x).sum().backward()

            return model, backward

        return shares_of(make, 4 * WHOLE / ranks, LAYER)

    for shares in dist.run_local(run, ranks):
        shares.check()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_pipelines(schedule: str) -> None:
    ranks = 2

    def run() -> Shares:
        def make() -> Any:
            mesh = dist.Mesh({"pipe": ranks})
            count = 2 * ranks if schedule == "interleaved" else ranks
            layers, each = list(net().children()), 2 * LAYERS // count
            stages = [nn.Sequential(*layers[i * each : (i + 1) * each]) for i in range(count)]
            own = range(dist.rank(), count, ranks)
            for i, stage in enumerate(stages):
                if i not in own:
                    stages[i] = nn.Sequential(*(nn.Identity() for _ in stage.children()))
            pipe = dist.pipeline(stages, 4, schedule, mesh)
            x, y = eg.ones((ROWS, WIDE), "float64"), eg.zeros((ROWS, WIDE), "float64")

            def backward() -> None:
                pipe.step(nn.functional.mse_loss, x, y)

            return pipe, backward

        # a microbatch's gradients of a stage are there before they are added to those before it
        return shares_of(make, 4 * WHOLE / ranks, WHOLE / ranks)

    for shares in dist.run_local(run, ranks):
        shares.check()

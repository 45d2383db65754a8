"""Optimiser updates are in place where nobody can tell, and never where somebody could."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import optim
from everygrad.backends.cpu.runtime.pool import Pool

pytestmark = pytest.mark.usefixtures("alone")

SHAPE = (300, 300)  # large enough for the pool: below, results are small and made anew


def address(t: Any) -> int:
    return t._data.__array_interface__["data"][0]


def make(compiled: bool = False) -> tuple[Any, Callable[[], None]]:
    """A parameter whose memory is the pool's, and a step that takes 0.5 from every element."""
    p = eg.tensor(np.ones(SHAPE, np.float32), requires_grad=True)
    opt = optim.SGD([p], lr=0.5)

    def step() -> None:
        p.grad = eg.ones(SHAPE)
        opt.step()

    if compiled:
        step = eg.jit(step)
    step()  # the first value came from the user: its memory is not the pool's
    return p, step


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_rewrites_the_parameter_in_place(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everygrad._jit.entry._others_may_look", lambda: False)
    p, step = make(compiled)
    before = address(p)
    step()
    assert address(p) == before
    assert p.is_leaf
    assert p.requires_grad
    np.testing.assert_array_equal(p.detach().numpy(), np.zeros(SHAPE))


WATCHERS: dict[str, Callable[[Any], Any]] = {
    "detach": lambda p: p.detach(),
    "numpy": lambda p: p.detach().numpy(),
    "dlpack": lambda p: np.from_dlpack(p.detach()),
    "slice": lambda p: p.detach()[1:],
    "transpose": lambda p: p.detach().T,
    "memoryview": lambda p: memoryview(p.detach().numpy()),
    "graph": lambda p: p * eg.ones(SHAPE, requires_grad=True),
    "state_dict": lambda p: {"p": p.detach()},
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", WATCHERS)
def test_nobody_sees_a_value_change(name: str, compiled: bool) -> None:
    p, step = make(compiled)
    held = WATCHERS[name](p)
    seen = held["p"] if isinstance(held, dict) else held
    before = np.array(seen.detach() if isinstance(seen, eg.Tensor) else seen)
    step()
    step()
    after = np.array(seen.detach() if isinstance(seen, eg.Tensor) else seen)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(p.detach().numpy(), np.full(SHAPE, -0.5))


def test_a_checkpoint_keeps_the_parameter_it_read() -> None:
    p, step = make()
    before = p.detach().numpy().copy()
    loss = eg.checkpoint(lambda: (p * p).sum())
    step()
    p.grad = None
    loss.backward()
    assert p.grad is not None
    np.testing.assert_array_equal(p.grad.numpy(), 2 * before)
    np.testing.assert_array_equal(p.detach().numpy(), before - 0.5)


def test_adamw_rewrites_its_state_too() -> None:
    p = eg.tensor(np.ones(SHAPE, np.float32), requires_grad=True)
    opt = optim.AdamW([p], lr=0.1)
    places = []
    for _ in range(3):
        p.grad = eg.ones(SHAPE)
        opt.step()
        state = opt.state[p]
        places.append([address(t) for t in (p, state["exp_avg"], state["exp_avg_sq"])])
    assert places[1] == places[2]


def test_a_block_whose_making_was_interrupted_is_known_again() -> None:
    pool = Pool()
    size = 4 * SHAPE[0] * SHAPE[1]
    first = pool.empty(SHAPE, np.dtype(np.float32))
    block = first.base
    pool.held.discard(id(block))  # as if a signal had come before it was noted
    del first, block
    again = pool.empty(SHAPE, np.dtype(np.float32))
    assert again.nbytes == size
    assert pool.holds(again.base)
    assert pool.retained == sum(n * len(blocks) for n, blocks in pool.blocks.items())

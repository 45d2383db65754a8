"""States of generators, and other tensors of the CPU, in functions compiled for a GPU: they move on
as in eager mode, bit for bit, and nothing is read back for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad.backends import base
from tests.conftest import DEVICES

GPUS = [d for d in DEVICES if d.startswith(("webgpu", "cuda"))]
pytestmark = pytest.mark.skipif(not GPUS, reason="this run promises no GPU")


@contextmanager
def nothing_is_read(gpu: str) -> Iterator[None]:
    """Whoever asks for a value inside is at fault."""

    def no(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a copy to the host")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.get(gpu), "to_numpy", no)
        patch.setattr(base.get(gpu), "read_later", no)
        yield


def drops(x: eg.Tensor) -> eg.Tensor:
    return nn.functional.dropout(nn.functional.dropout(x, 0.5) + 1.0, 0.25)


@pytest.mark.parametrize("gpu", GPUS)
def test_draws_and_states_are_those_of_eager_mode(gpu: str) -> None:
    """Whatever is called in between, and at any place of the stream."""
    x = eg.ones((37,), device=gpu)
    compiled = eg.jit(drops)
    for place in ([5, 1, 0, 0], [5, 1, 2**32 - 30, 7], [5, 1, 2**32 - 1, 2**32 - 1]):
        start = np.array(place, np.uint32)
        found = []
        for calls in ((drops,) * 5, (compiled, drops, compiled, compiled, drops)):
            eg.default_generator.set_state(start)
            outs = [call(x) for call in calls]
            found.append((eg.default_generator.get_state(), [o.numpy() for o in outs]))
        assert found[0][0].tobytes() == found[1][0].tobytes()
        for a, b in zip(found[0][1], found[1][1], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("gpu", GPUS)
def test_nothing_is_read_for_a_state(gpu: str) -> None:
    x = eg.ones((16,), device=gpu)
    compiled = eg.jit(drops)
    eg.manual_seed(3)
    with nothing_is_read(gpu):
        outs = [compiled(x) for _ in range(4)]
        state = eg.default_generator.get_state()  # it is on the CPU
    assert state.tolist() == [3, 0, 4 * 2 * 16 // 4, 0]
    assert len({o.numpy().tobytes() for o in outs}) == 4


@pytest.mark.parametrize("gpu", GPUS)
def test_several_generators_seeds_and_training_steps(gpu: str) -> None:
    """Each its own stream, a state that is set counts, and so it does with a backward pass."""
    runs = []
    for compile_it in (False, True):
        ours, other = eg.Generator(7), eg.Generator(2**40 + 1)
        w = eg.ones((8,), device=gpu, requires_grad=True)

        def step(x: eg.Tensor, ours: Any = ours, other: Any = other, w: Any = w) -> eg.Tensor:
            noise = eg.randn((8,), device=gpu, generator=other)
            kept = eg.bernoulli(0.5, (8,), device=gpu, generator=ours)
            loss = eg.where(kept, (w * x + noise) ** 2, 0.0).sum()
            w.grad = None
            loss.backward()
            with eg.no_grad():
                w.__isub__(w.grad * 0.125)
            return loss

        call = eg.jit(step) if compile_it else step
        x = eg.ones((8,), device=gpu)
        losses = [call(x) for _ in range(2)]
        other.manual_seed(11)
        losses += [call(x) for _ in range(2)]
        states = [g.get_state().tolist() for g in (ours, other)]
        runs.append((states, [v.item() for v in losses], w.detach().numpy()))
    assert runs[0][0] == runs[1][0]
    np.testing.assert_allclose(runs[0][1], runs[1][1], rtol=1e-5)
    np.testing.assert_allclose(runs[0][2], runs[1][2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("gpu", GPUS)
def test_checkpoints_and_verification(gpu: str) -> None:
    x = eg.ones((12,), device=gpu)
    plain = eg.grad(lambda x: drops(x).sum())
    saved = eg.grad(lambda x: eg.checkpoint(drops, x).sum())
    found = []
    for work in (plain, eg.jit(saved), eg.jit(plain, verify=True)):
        eg.manual_seed(9)
        made = [work(x).numpy() for _ in range(3)]
        found.append((eg.default_generator.get_state().tolist(), np.stack(made).tobytes()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("gpu", GPUS)
def test_any_tensor_of_the_cpu_moves_on(gpu: str) -> None:
    """A count that stays on the CPU, and is read from there by the GPU."""
    count = eg.zeros((), dtype="int32")

    def step(x: eg.Tensor) -> eg.Tensor:
        count.__iadd__(1)
        return x * count.to(gpu)

    compiled = eg.jit(step)
    x = eg.ones((3,), device=gpu)
    with nothing_is_read(gpu):
        outs = [compiled(x) for _ in range(3)]
        assert count.device == "cpu"
        assert count.item() == 3
    assert [o.numpy().tolist() for o in outs] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]

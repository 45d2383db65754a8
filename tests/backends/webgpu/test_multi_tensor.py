"""Multi-tensor updates on WebGPU: what is launched, whose memory is written, and the values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import optim
from everygrad.backends import base
from tests.conftest import DEVICES

pytestmark = pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")
DEVICE = "webgpu"
SHAPES = ((5,), (3, 7), (64, 300))
MAKERS: dict[str, Callable[[Any], Any]] = {
    "adam.move": lambda ps: optim.Adam(ps, amsgrad=True, weight_decay=0.1),
    "sgd.nesterov": lambda ps: optim.SGD(ps, momentum=0.9, nesterov=True),
    "nadam.move": lambda ps: optim.NAdam(ps),
    "radam.move": lambda ps: optim.RAdam(ps, weight_decay=0.1),
    "adamax.move": lambda ps: optim.Adamax(ps),
    "adagrad.move": lambda ps: optim.Adagrad(ps, lr_decay=0.1),
    "adadelta.moved": lambda ps: optim.Adadelta(ps, weight_decay=0.1),
    "rmsprop.along": lambda ps: optim.RMSprop(ps, momentum=0.9, centered=True),
    "rprop.previous": lambda ps: optim.Rprop(ps),
    "asgd.average": lambda ps: optim.ASGD(ps),
    "lion.momentum": lambda ps: optim.Lion(ps, weight_decay=0.1),
    "schedule_free.plain": lambda ps: optim.ScheduleFreeAdamW(ps),
}


@pytest.fixture
def gpu() -> Any:
    return base.get(DEVICE).gpu  # type: ignore[attr-defined]


def tensors(shapes: Any, dtype: str = "float32", device: str = DEVICE) -> list[eg.Tensor]:
    rng = np.random.default_rng(3)
    return [
        eg.tensor(rng.standard_normal(s), dtype, device=device).requires_grad_() for s in shapes
    ]


def stepped(params: list[eg.Tensor], opt: Any, steps: int) -> None:
    rng = np.random.default_rng(4)
    for _ in range(steps):
        for p in params:
            p.grad = eg.tensor(rng.standard_normal(p.shape), p.dtype, device=p.device)
        opt.step()


def launched(work: Callable[[], None]) -> list[str]:
    with base.get(DEVICE).launches() as names:
        work()
    return list(names)


@pytest.mark.parametrize("last", MAKERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_all_parameters_move_in_one_launch(last: str, dtype: str) -> None:
    """And to where the CPU moves them; half parameters without master weights too."""
    found = []
    for device in ("cpu", DEVICE):
        params = tensors(SHAPES, dtype, device)
        opt = MAKERS[last](params)
        opt.param_groups[0]["master_weights"] = False
        stepped(params, opt, 2)
        for p, g in zip(params, tensors(SHAPES, dtype, device), strict=True):
            p.grad = g.detach()
        if device == "cpu":
            opt.step()
        else:
            names = launched(opt.step)
            updates = [n for n in names if n.startswith("multi_tensor")]
            assert updates == [f"multi_tensor {last}"]
            assert len(names) <= 7  # the others are of scalars
        found.append([p.detach().astype("float32").numpy() for p in params])
    close = {"float32": 1e-5, "bfloat16": 4e-2, "float16": 5e-3}[dtype]
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=close, atol=close)


def test_a_device_that_binds_few_buffers_takes_more_launches(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    first: list[Any] = []
    for most in (96, 9, 8, 5):
        monkeypatch.setattr(gpu, "limits", replace(gpu.limits, storage_buffers=most))
        params = tensors(SHAPES)
        opt = optim.AdamW(params)
        stepped(params, opt, 2)
        names = launched(lambda params=params, opt=opt: stepped(params, opt, 1))  # type: ignore[misc]
        found.append(sum(n.startswith("multi_tensor") for n in names))
        values = [p.detach().numpy() for p in params]
        first = first or values
        for a, b in zip(values, first, strict=True):
            np.testing.assert_array_equal(a, b)
    # four arrays a parameter and four numbers; five buffers are too few for any
    assert found == [1, 3, 3, 0]


def test_new_values_go_to_the_memory_of_old_ones_that_nobody_sees() -> None:
    params = tensors(SHAPES)
    opt = optim.AdamW(params)
    stepped(params, opt, 2)
    held = [params[0].detach(), opt.state[params[1]]["exp_avg"].detach()]
    seen = params[2][1:]
    before = [t.numpy() for t in (*held, seen.detach())]
    moving = [*params, *(opt.state[p]["exp_avg"] for p in params)]
    blocks = [t._data.storage.block for t in moving]
    stepped(params, opt, 1)
    same = [t._data.storage.block is b for t, b in zip(moving, blocks, strict=True)]
    assert same == [False, True, False, True, False, True]
    for t, want in zip((*held, seen.detach()), before, strict=True):
        np.testing.assert_array_equal(t.numpy(), want)


def test_arrays_in_another_order_are_copied_first() -> None:
    both = []
    for device in ("cpu", DEVICE):
        wide = tensors([(4, 6), (9,)], device=device)
        params = [wide[0].detach().T.detach().requires_grad_(), wide[1]]
        opt = optim.SGD(params, lr=0.5)
        grads = tensors([(8, 6), (17,)], device=device)
        params[0].grad = grads[0].detach()[::2].T
        params[1].grad = grads[1].detach()[3:12]  # from an odd place of its storage on
        if device == DEVICE:
            names = launched(opt.step)
            assert [n for n in names if n != "copy"] == ["multi_tensor sgd"]
        else:
            opt.step()
        both.append([p.detach().numpy() for p in params])
    for want, got in zip(*both, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_profile_sees_every_op() -> None:
    params = tensors(SHAPES)
    opt = optim.AdamW(params)
    stepped(params, opt, 2)
    with eg.tools.profile() as found:
        stepped(params, opt, 1)
    assert "adam.average" in found.table()


# --- compiled, as on hardware --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "launches"), [("LAMB", [2, 4]), ("Adafactor", [4, 5]), ("Adam8bit", [2, 3])]
)
def test_compiled_reductions_share_launches(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, name: str, launches: list[int]
) -> None:
    """Three parameters and nine: more launches only for what one can bind; and they move to where
    the CPU moves them."""
    monkeypatch.setattr(gpu, "is_software", False)
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, storage_buffers=32))
    shapes = [(40, 32), (33,), (64, 64)]
    counts = []
    for times in (1, 3):
        found = []
        for device in ("cpu", DEVICE):
            params = tensors(shapes * times, device=device)
            opt = getattr(optim, name)(params)
            step = eg.jit(lambda opt=opt: opt.step())
            rng = np.random.default_rng(5)
            for _ in range(2):
                for p in params:
                    p.grad = eg.tensor(rng.standard_normal(p.shape), "float32", device=device)
                step()
            found.append([p.detach().numpy() for p in params])
        for want, got in zip(*found, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        counts.append(len(step.latest.replay.steps()))
    assert counts == launches


def test_gathered_groups_keep_their_order(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of small groups and products, of which some read what others overwrite."""
    monkeypatch.setattr(gpu, "is_software", False)
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal((12, 12)).astype(np.float32) for _ in range(6)]

    def f(*xs: Any) -> Any:
        made = []
        for i, x in enumerate(xs):
            y = eg.exp(x * 0.1) * xs[i - 1]
            z = y @ xs[i - 2]
            scale = 1.0 / (1.0 + (z * z).sum(axis=1, keepdims=True))
            made += [z * scale, scale, (y - z).mean(), y.max(axis=0)]
        return made

    given = [eg.tensor(a, device=DEVICE) for a in arrays]
    jitted = eg.jit(f)
    for _ in range(2):
        for got, want in zip(jitted(*given), f(*map(eg.tensor, arrays)), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-4, atol=2e-4)
    alone = eg.jit(lambda *xs: f(*xs))
    monkeypatch.setattr(gpu, "is_software", True)
    alone(*given)
    counts = [len(g.latest.replay.steps()) for g in (jitted, alone)]
    assert counts[0] < counts[1]

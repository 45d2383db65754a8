"""GradScaler and master weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import errors, optim

HALVES = ("bfloat16", "float16")


def leaf(*values: float, dtype: str = "float32") -> Any:
    return eg.tensor(list(values), dtype=dtype, requires_grad=True)


def scaled_step(p: Any, opt: Any, scaler: Any, factor: Any) -> Any:
    opt.zero_grad()
    loss = (p * p * factor).sum()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    return loss


@pytest.mark.parametrize("first", [(), (float("inf"),)], ids=["", "at first"])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW, "momentum"])
def test_steps_are_those_without_a_scale_and_overflow_skips(
    make: Any, compiled: bool, first: Any
) -> None:
    def built(p: Any) -> Any:
        if make == "momentum":
            return optim.SGD([p], lr=0.1, momentum=0.9)
        return make([p], lr=0.1)

    p, q = leaf(1.0, -2.0), leaf(1.0, -2.0)
    opt, plain = built(p), built(q)
    scaler = optim.GradScaler(init_scale=8.0, growth_interval=2)

    def body(factor: Any) -> Any:
        return scaled_step(p, opt, scaler, factor)

    step = eg.jit(body) if compiled else body
    scales = []
    for factor in (*first, 1.0, 1.0, float("inf"), 1.0):
        before = p.tolist(), {k: v.tolist() for k, v in opt.state.get(p, {}).items()}
        step(eg.tensor(factor))
        scales.append(scaler.get_scale())
        if factor == 1.0:
            q.grad = q.detach() * 2.0
            plain.step()
        else:
            assert p.tolist() == before[0]
            for name, value in before[1].items():
                assert opt.state[p][name].tolist() == value
        np.testing.assert_allclose(p.tolist(), q.tolist(), rtol=1e-6)
    assert scales == ([4.0, 4.0, 8.0, 4.0, 4.0] if first else [8.0, 16.0, 8.0, 8.0])


def test_unscale_then_clip() -> None:
    p = leaf(3.0)
    opt, scaler = optim.SGD([p], lr=1.0), optim.GradScaler(init_scale=1024.0)
    scaler.scale((p * p).sum()).backward()
    assert p.grad.item() == 6.0 * 1024.0
    scaler.unscale_(opt)
    assert p.grad.item() == 6.0
    p.grad = p.grad.clamp(-1.0, 1.0)
    scaler.step(opt)
    scaler.update()
    assert p.item() == 2.0


def test_scaler_serves_several_optimisers() -> None:
    p, q = leaf(1.0), leaf(1.0)
    one, two = optim.SGD([p], lr=0.5), optim.SGD([q], lr=0.5)
    scaler = optim.GradScaler(init_scale=2.0)
    first, second = scaler.scale(((p * p).sum(), (q * float("inf")).sum()))
    (first + second).backward()
    scaler.step(one)
    scaler.step(two)
    scaler.update()
    assert (p.item(), q.item(), scaler.get_scale()) == (0.0, 1.0, 1.0)


def test_scaler_state_and_settings() -> None:
    p = leaf(1.0)
    opt, scaler = optim.SGD([p], lr=0.0), optim.GradScaler(init_scale=2.0, growth_interval=3)
    step = eg.jit(lambda: scaled_step(p, opt, scaler, 1.0))
    step()
    step()
    state = scaler.state_dict()
    assert state == {
        "scale": 2.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 3,
        "_growth_tracker": 2,
    }
    step()
    assert scaler.get_scale() == 4.0
    scaler.set_growth_interval(1)  # a compiled step sees it
    scaler.set_growth_factor(8.0)
    step()
    assert scaler.get_scale() == 32.0
    scaler.load_state_dict(state)
    assert (scaler.get_scale(), scaler.get_growth_interval()) == (2.0, 3)
    step()
    assert scaler.get_scale() == 4.0
    other = optim.GradScaler()
    other.load_state_dict(state)
    assert other.state_dict() == state
    scaler.update(128.0)
    assert scaler.get_scale() == 128.0


def test_scale_does_not_grow_to_infinity() -> None:
    p = leaf(0.0)
    opt, scaler = optim.SGD([p]), optim.GradScaler(init_scale=3e38, growth_interval=1)
    scaled_step(p, opt, scaler, 1.0)
    assert scaler.get_scale() == pytest.approx(3e38)


def test_scaler_that_is_off_does_nothing() -> None:
    p = leaf(1.0)
    opt, scaler = optim.SGD([p], lr=0.5), optim.GradScaler(enabled=False)
    scaled_step(p, opt, scaler, 1.0)
    assert (p.item(), scaler.get_scale(), scaler.state_dict()) == (0.0, 1.0, {})
    assert not scaler.is_enabled()


def test_scaler_refusals() -> None:
    p = leaf(1.0)
    opt, scaler = optim.SGD([p]), optim.GradScaler()
    with pytest.raises(errors.ArgumentError, match=r"step: call scale\(\) on the loss first"):
        scaler.step(opt)
    loss = scaler.scale((p * p).sum())
    with pytest.raises(errors.GradientError, match="no parameter of the optimiser has a gradient"):
        scaler.step(opt)
    with pytest.raises(errors.ArgumentError, match=r"update: call step\(\) or unscale_\(\) first"):
        scaler.update()
    loss.backward()
    scaler.unscale_(opt)
    with pytest.raises(errors.ArgumentError, match=r"unscale_\(\) was called already"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(errors.ArgumentError, match="called twice"):
        scaler.step(opt)
    with pytest.raises(errors.ArgumentError, match="takes no closure"):
        scaler.step(opt, lambda: None)
    for wrong in ({"init_scale": 0.0}, {"growth_factor": 1.0}, {"backoff_factor": 1.0}):
        with pytest.raises(errors.ArgumentError, match=f"GradScaler: {next(iter(wrong))} must"):
            optim.GradScaler(**wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="growth_interval must be a positive integer"):
        optim.GradScaler(growth_interval=0)
    with pytest.raises(errors.ArgumentError, match="missing"):
        scaler.load_state_dict({})
    half = leaf(1.0, dtype="float16")
    half.grad = eg.ones((1,), "float16")
    scaler.update()
    with pytest.raises(errors.DtypeError, match="a float16 gradient vanishes"):
        scaler.unscale_(optim.SGD([half]))


# --- master weights ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [optim.SGD, optim.AdamW])
def test_master_weights_follow_float32(make: Any, dtype: str) -> None:
    start = np.random.default_rng(2).standard_normal(64).astype(np.float32)
    start = eg.tensor(start).astype(dtype).astype("float32").numpy()
    p, q = eg.tensor(start).astype(dtype).requires_grad_(), eg.tensor(start, requires_grad=True)
    half, exact = make([p], lr=1e-3), make([q], lr=1e-3)
    for k in range(30):
        g = eg.tensor(np.sin(np.arange(64) * (k + 1)).astype(np.float32)).astype(dtype)
        p.grad, q.grad = g, g.astype("float32")
        half.step()
        exact.step()
    np.testing.assert_allclose(half.state[p]["master"].tolist(), q.tolist(), rtol=1e-6, atol=1e-7)
    assert p.tolist() == q.astype(dtype).tolist()
    assert all(v.dtype is eg.float32 for v in half.state[p].values())


def test_master_weights_in_jit_and_saved() -> None:
    def training(p: Any, opt: Any) -> Any:
        def step(g: Any) -> None:
            p.grad = g * 1.0
            opt.step()

        return eg.jit(step)

    p = leaf(1.0, 2.0, dtype="bfloat16")
    opt = optim.AdamW([p], lr=1e-3)
    step = training(p, opt)
    g = eg.tensor([1.0, -1.0]).astype("bfloat16")
    for _ in range(3):
        step(g)
    saved, value = opt.state_dict(), p.detach()
    master = saved["state"][0]["master"].tolist()
    assert master == pytest.approx([0.997, 2.003], abs=1e-4)
    step(g)
    want = p.tolist(), opt.state[p]["master"].tolist()
    again = value.detach().requires_grad_()
    other = optim.AdamW([again], lr=1e-3)
    other.load_state_dict(saved)
    assert other.state[again]["master"].dtype is eg.float32
    assert other.state[again]["exp_avg"].dtype is eg.float32
    again.grad = g
    other.step()
    assert again.tolist() == want[0]
    assert other.state[again]["master"].tolist() == pytest.approx(want[1], rel=1e-6)


def test_master_weights_take_up_a_new_value() -> None:
    p = leaf(1.0, 2.0, dtype="bfloat16")
    opt = optim.SGD([p], lr=1e-3)
    p.grad = eg.ones((2,), "bfloat16")
    opt.step()
    p.rebind(eg.tensor([1.0, 5.0]).astype("bfloat16")._data, p._node)
    opt.step()
    assert opt.state[p]["master"].tolist() == pytest.approx([0.998, 4.999])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_skipped_step_leaves_master_weights(compiled: bool) -> None:
    p = leaf(1.0, 2.0, dtype="bfloat16")
    opt, scaler = optim.AdamW([p], lr=1e-3), optim.GradScaler(init_scale=4.0)

    def body(factor: Any) -> Any:
        return scaled_step(p, opt, scaler, factor)

    step = eg.jit(body) if compiled else body
    for factor in (1.0, float("inf"), float("nan"), 1.0):
        step(eg.tensor(factor))
        state = {k: v.tolist() for k, v in opt.state[p].items()}
        if factor == 1.0:
            known = p.tolist(), state
        else:
            assert (p.tolist(), state) == known
    assert state["step"] == 2.0
    assert state["master"] == pytest.approx([0.998, 1.998], abs=1e-4)


def test_float16_parameters_with_a_scale() -> None:
    p = leaf(0.0, dtype="float16")
    opt, scaler = optim.SGD([p], lr=1.0), optim.GradScaler(init_scale=2.0**14)
    tiny = 2.0**-26  # vanishes in float16
    scaler.scale((p.astype("float32") * tiny).sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert opt.state[p]["master"].item() == -tiny


def test_without_master_weights() -> None:
    p = leaf(1.0, dtype="bfloat16")
    opt = optim.SGD([p], lr=1e-3, momentum=0.5, master_weights=False)
    p.grad = eg.ones((1,), "bfloat16")
    opt.step()
    assert opt.state[p].keys() == {"momentum_buffer"}
    assert p.item() == 1.0

"""Schedulers: equal to PyTorch's over 60 epochs, resumed in the middle, beside and inside compiled
steps; and what they refuse."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import optim
from everygrad.errors import ArgumentError, TraceError
from everygrad.optim import lr_scheduler as ours_of

EPOCHS = 60
# PyTorch's wish that its optimiser step too
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler:UserWarning")
Make = Callable[[Any, Any], Any]  # of the namespace of schedulers and an optimiser


class Falling:
    """A function with attributes, which a state holds."""

    def __init__(self, base: float) -> None:
        self.base = base

    def __call__(self, epoch: float) -> float:
        return float(self.base**epoch)


ROWS: dict[str, Make] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda e: 0.95**e),
    "lambdas": lambda s, o: s.LambdaLR(o, [lambda e: 0.95**e, Falling(0.9)]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.95 if e % 2 else 1.01),
    "step": lambda s, o: s.StepLR(o, 7, gamma=0.6),
    "multistep": lambda s, o: s.MultiStepLR(o, [30, 5, 5, 17], gamma=0.5),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 9),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.9, total_iters=20),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.97),
    "polynomial": lambda s, o: s.PolynomialLR(o, 25, power=1.7),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 13, eta_min=0.001),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 5, eta_min=0.002),
    "longer_restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, T_mult=2),
    "one_cycle": lambda s, o: s.OneCycleLR(o, [0.3, 0.7], total_steps=EPOCHS + 1),
    "one_cycle_linear": lambda s, o: s.OneCycleLR(
        o, 0.5, epochs=9, steps_per_epoch=7, anneal_strategy="linear", pct_start=0.4
    ),
    "one_cycle_three": lambda s, o: s.OneCycleLR(
        o, 0.5, total_steps=70, three_phase=True, div_factor=5.0, final_div_factor=10.0
    ),
    "one_cycle_plain": lambda s, o: s.OneCycleLR(o, 0.5, total_steps=70, cycle_momentum=False),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.4, step_size_up=6, step_size_down=9),
    "cyclic_halves": lambda s, o: s.CyclicLR(
        o, [0.01, 0.02], [0.4, 0.3], step_size_up=5, mode="triangular2", base_momentum=0.5
    ),
    "cyclic_exp": lambda s, o: s.CyclicLR(o, 0.01, 0.4, 4, mode="exp_range", gamma=0.98),
    "cyclic_own": lambda s, o: s.CyclicLR(
        o, 0.01, 0.4, 4, scale_fn=Falling(0.9), scale_mode="iterations"
    ),
    "chained": lambda s, o: s.ChainedScheduler(
        [s.LinearLR(o, 0.2, total_iters=4), s.ExponentialLR(o, 0.95), s.StepLR(o, 9, 0.8)]
    ),
    "sequential": lambda s, o: s.SequentialLR(
        o,
        [s.LinearLR(o, 0.1, total_iters=8), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.9)],
        milestones=[8, 31],
    ),
    "to_zero": lambda s, o: s.LinearLR(o, 1 / 3, 0.0, total_iters=5),  # and a rounding error below
    "nested": lambda s, o: s.SequentialLR(
        o,
        [
            s.ConstantLR(o, 0.5, 50),
            s.ChainedScheduler([s.ExponentialLR(o, 0.9), s.StepLR(o, 5, 0.5)]),
        ],
        milestones=[70],
    ),
    "swa": lambda s, o: s.SWALR(o, [0.05, 0.01], anneal_epochs=12),
    "swa_linear": lambda s, o: s.SWALR(o, 0.05, anneal_epochs=7, anneal_strategy="linear"),
    "swa_at_once": lambda s, o: s.SWALR(o, 0.05, anneal_epochs=0),
}
OPTIMISERS: dict[str, dict[str, Any]] = {"SGD": {"momentum": 0.9}, "AdamW": {}}
rows = pytest.mark.parametrize("row", list(ROWS))
kinds = pytest.mark.parametrize("kind", list(OPTIMISERS))


OURS = SimpleNamespace(**{**vars(ours_of), **vars(optim.swa_utils)})
THEIRS = SimpleNamespace(**{**vars(torch.optim.lr_scheduler), **vars(torch.optim.swa_utils)})


def ours(kind: str, lr: Any = 0.2) -> optim.Optimizer:
    params = [eg.ones((2,), "float64", requires_grad=True) for _ in range(2)]
    groups = [{"params": [params[0]]}, {"params": [params[1]], "lr": 0.1}]
    made: optim.Optimizer = getattr(optim, kind)(groups, lr=lr, **OPTIMISERS[kind])
    return made


def theirs(kind: str) -> Any:
    params = [torch.ones(2, requires_grad=True, dtype=torch.float64) for _ in range(2)]
    groups = [{"params": [params[0]]}, {"params": [params[1]], "lr": 0.1}]
    return getattr(torch.optim, kind)(groups, lr=0.2, **OPTIMISERS[kind])


def numbers(opt: Any) -> list[float]:
    found = []
    for group in opt.param_groups:
        found.append(float(group["lr"]))
        found.append(float(group["betas"][0] if "betas" in group else group["momentum"]))
    return found


@rows
@kinds
def test_rates_are_pytorchs(row: str, kind: str) -> None:
    opt, reference = ours(kind), theirs(kind)
    schedule, right = ROWS[row](OURS, opt), ROWS[row](THEIRS, reference)
    for epoch in range(EPOCHS):
        np.testing.assert_allclose(numbers(opt), numbers(reference), rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(schedule.get_last_lr(), right.get_last_lr(), rtol=1e-10)
        schedule.step()
        right.step()
        assert getattr(schedule, "last_epoch", epoch + 1) == getattr(right, "last_epoch", epoch + 1)
    np.testing.assert_allclose(numbers(opt), numbers(reference), rtol=1e-10, atol=1e-15)


@rows
@kinds
def test_a_state_takes_up_where_it_was(row: str, kind: str) -> None:
    opt, other = ours(kind), ours(kind)
    schedule = ROWS[row](OURS, opt)
    for _ in range(23):
        schedule.step()
    resumed = ROWS[row](OURS, other)
    resumed.load_state_dict(schedule.state_dict())
    other.load_state_dict(opt.state_dict())
    for _ in range(23, EPOCHS):
        schedule.step()
        resumed.step()
        assert numbers(opt) == numbers(other)
        assert schedule.get_last_lr() == resumed.get_last_lr()


@rows
def test_a_state_is_plain_data(row: str) -> None:
    def check(value: Any) -> None:
        if isinstance(value, dict):
            assert all(isinstance(k, str) for k in value)
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                check(one)
        else:
            assert value is None or isinstance(value, bool | int | float | str)

    schedule = ROWS[row](OURS, ours("SGD"))
    assert len(schedule.state_dict()) > 1
    check(schedule.state_dict())


@rows
def test_a_state_of_pytorchs_is_taken_up(row: str) -> None:
    reference = theirs("SGD")
    right = ROWS[row](THEIRS, reference)
    for _ in range(9):
        right.step()
    opt = ours("SGD")
    schedule = ROWS[row](OURS, opt)
    schedule.load_state_dict(right.state_dict())
    saved = reference.state_dict()
    opt.load_state_dict({"state": {}, "param_groups": saved["param_groups"]})
    for _ in range(9):
        right.step()
        schedule.step()
        np.testing.assert_allclose(numbers(opt), numbers(reference), rtol=1e-10)


def test_schedulers_of_schedulers_begin_at_their_milestone() -> None:
    opt = ours("SGD")
    inner = ours_of.SequentialLR(
        opt, [ours_of.LinearLR(opt, 0.5, total_iters=2), ours_of.ExponentialLR(opt, 0.5)], [2]
    )
    both = ours_of.ChainedScheduler([ours_of.StepLR(opt, 2, 0.1), inner])
    schedule = ours_of.SequentialLR(opt, [ours_of.ConstantLR(opt, 0.25, 99), both], [3])
    found = [schedule.get_last_lr()[0]]
    for _ in range(7):
        schedule.step()
        found.append(schedule.get_last_lr()[0])
    # a quarter; then from the first rate: half, three quarters, and at inner's milestone whole
    want = [0.25, 0.25, 0.25, 0.5, 0.75, 1.0, 0.5, 0.025]
    np.testing.assert_allclose(found, [0.2 * x for x in want])


AT_ONCE = ["step", "multistep", "constant", "linear", "exponential", "polynomial", "cosine"]
AT_ONCE += ["lambda", "restarts", "longer_restarts"]


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of the argument
@pytest.mark.parametrize("row", AT_ONCE)
def test_an_epoch_can_be_named(row: str) -> None:
    opt, reference = ours("SGD"), theirs("SGD")
    schedule, right = ROWS[row](OURS, opt), ROWS[row](THEIRS, reference)
    for epoch in (3, 4, 21, 8, 40, 0):
        schedule.step(epoch)
        right.step(epoch)
        np.testing.assert_allclose(numbers(opt), numbers(reference), rtol=1e-10, atol=1e-15)


PLATEAUS: list[dict[str, Any]] = [
    {"patience": 3, "factor": 0.5},
    {"patience": 2, "mode": "max", "threshold": 0.05, "cooldown": 2},
    {"patience": 1, "threshold_mode": "abs", "threshold": 0.1, "min_lr": [0.02, 0.05]},
    {"patience": 0, "mode": "max", "threshold_mode": "abs", "threshold": 0.01, "eps": 1e-2},
]


@pytest.mark.parametrize("settings", PLATEAUS)
def test_plateaus(settings: dict[str, Any]) -> None:
    opt, reference = ours("SGD"), theirs("SGD")
    schedule = ours_of.ReduceLROnPlateau(opt, **settings)
    right = torch.optim.lr_scheduler.ReduceLROnPlateau(reference, **settings)
    metrics = np.random.default_rng(5).normal(np.cos(np.arange(EPOCHS) / 9) - 0.2, 0.1)
    rates = set()
    for epoch, metric in enumerate(metrics):
        if epoch == 20:
            saved = schedule.state_dict()
            schedule = ours_of.ReduceLROnPlateau(opt)
            schedule.load_state_dict(saved)
        schedule.step(eg.tensor(float(metric), dtype="float64"))
        right.step(float(metric))
        assert numbers(opt) == numbers(reference)
        assert schedule.num_bad_epochs == right.num_bad_epochs
        rates.add(opt.param_groups[0]["lr"])
    assert len(rates) > 1


def warm(step: int, peak: float) -> float:
    """10 steps of warm-up to `peak` from a tenth of it, as a formula of the paper's."""
    return peak * (0.1 + 0.9 * step / 10)


def test_warm_up_and_cosine() -> None:
    opt = ours("SGD")
    schedule = ours_of.WarmupCosine(opt, 10, 50, eta_min=0.01, start_factor=0.1)
    for step in range(EPOCHS):
        for lr, peak in zip(schedule.get_last_lr(), (0.2, 0.1), strict=True):
            angle = math.pi * min(step - 10, 40) / 40
            fall = 0.01 + 0.5 * (peak - 0.01) * (1 + math.cos(angle))
            assert lr == pytest.approx(warm(step, peak) if step < 10 else fall, rel=1e-12)
        schedule.step()


@pytest.mark.parametrize("decay", ["linear", "cosine", "sqrt"])
def test_warm_up_stable_decay(decay: str) -> None:
    opt = ours("SGD")
    schedule = ours_of.WarmupStableDecay(opt, 10, 20, 15, 0.01, decay, start_factor=0.1)
    for step in range(EPOCHS):
        done = min(max(step - 30, 0) / 15, 1)
        left = {
            "linear": 1 - done,
            "cosine": math.cos(math.pi * done / 2) ** 2,
            "sqrt": 1 - done**0.5,
        }[decay]
        for lr, peak in zip(schedule.get_last_lr(), (0.2, 0.1), strict=True):
            want = warm(step, peak) if step < 10 else left * peak + (1 - left) * 0.01
            assert lr == pytest.approx(want, rel=1e-12)
        schedule.step()


# --- compiled steps ------------------------------------------------------------------------------

WARM: dict[str, Make] = {
    "warm_cosine": lambda s, o: s.WarmupCosine(o, 5, 20),
    "warm_stable": lambda s, o: s.WarmupStableDecay(o, 5, 5, 10),
}
ALL = {**ROWS, **WARM}


def trained(opt: optim.Optimizer, schedule: Any, way: str) -> list[list[float]]:
    """The parameters after each of 20 steps."""
    params = [p for group in opt.param_groups for p in group["params"]]

    def step(target: eg.Tensor) -> eg.Tensor:
        opt.zero_grad()
        loss = sum(((p - target) ** 2).sum() for p in params)
        loss.backward()
        opt.step()
        if way == "inside":
            schedule.step()
        return loss

    run = step if way == "eager" else eg.jit(step)
    found = []
    for i in range(20):
        run(eg.tensor([0.1 * i, 1.0], dtype="float64"))
        if way != "inside":
            schedule.step()
        found.append([x for p in params for x in p.tolist()] + numbers(opt))
    return found


@pytest.mark.parametrize("row", list(ALL))
@kinds
@pytest.mark.parametrize("way", ["beside", "inside"])
def test_a_new_rate_is_no_new_trace(row: str, kind: str, way: str, traces: list[Any]) -> None:
    eager = ours(kind)
    want = trained(eager, ALL[row](OURS, eager), "eager")
    opt = ours(kind)
    got = trained(opt, ALL[row](OURS, opt), way)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    # SGD's first step makes its momentum: another program, once
    assert len(traces) == (2 if kind == "SGD" else 1)
    assert len({tuple(x[-4:]) for x in got}) > 1 or row in ("nested", "swa_at_once")


@pytest.mark.parametrize("way", ["beside", "inside"])
def test_a_rate_that_is_a_tensor_stays_it(way: str, traces: list[Any]) -> None:
    lr = eg.tensor(0.2, dtype="float64")
    opt, eager = ours("AdamW", lr), ours("AdamW")
    schedules = [ours_of.ExponentialLR(o, 0.9) for o in (opt, eager)]
    want = trained(eager, schedules[1], "eager")
    got = trained(opt, schedules[0], way)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert opt.param_groups[0]["lr"] is lr
    assert lr.item() == pytest.approx(0.2 * 0.9**20)
    assert len(traces) == 1


def test_rates_set_by_hand_are_no_new_traces(traces: list[Any]) -> None:
    p = eg.ones((3,), requires_grad=True)
    opt = optim.AdamW([p], lr=0.5)

    @eg.jit
    def step() -> None:
        opt.zero_grad()
        (p * p).sum().backward()
        opt.step()

    for i in range(20):
        for group in opt.param_groups:
            group["lr"] = 0.5 / (i + 1)
            group["betas"] = (0.9 - i / 100, 0.999)
        step()
        assert isinstance(opt.param_groups[0]["lr"], float)
    assert len(traces) == 1
    opt.param_groups[0]["betas"] = (0.9, 0.9)  # the second is part of the program
    step()
    assert len(traces) == 2


def test_a_rate_set_inside_a_compiled_step_is_refused_and_leaves_no_trace() -> None:
    p = eg.ones((1,), requires_grad=True)
    opt = optim.SGD([p], lr=1.0)
    group = opt.param_groups[0]

    def step(rate: float | None) -> None:
        p.grad = eg.ones((1,))
        if rate is not None:
            group["lr"] = rate
        opt.step()

    step(None)
    with pytest.raises(TraceError, match=r"changes .*lr"):
        eg.jit(step)(0.25)
    group["lr"] = 0.25
    step(None)
    assert p.item() == 1.0 - 1.0 - 0.25


def test_what_a_compiled_step_cannot_do_is_refused() -> None:
    p = eg.ones((3,), requires_grad=True)
    p.grad = eg.ones((3,))
    opt = optim.SGD([p], lr=0.5)
    schedule = ours_of.ExponentialLR(opt, 0.5)
    plateau = ours_of.ReduceLROnPlateau(opt)

    def backwards() -> None:
        schedule.step()
        opt.step()

    def reads() -> Any:
        return p * schedule.get_last_lr()[0]

    with pytest.raises(TraceError, match=r"SGD\.step\(\) comes after its scheduler's step"):
        eg.jit(backwards)()
    with pytest.raises(TraceError, match=r"get_last_lr.* ask for them outside"):
        eg.jit(reads)()
    with pytest.raises(TraceError, match=r"ReduceLROnPlateau\.step looks at the metric"):
        eg.jit(lambda: plateau.step(p.sum()))()
    assert schedule.last_epoch == 0
    assert opt.param_groups[0]["lr"] == 0.5


# --- refusals ------------------------------------------------------------------------------------

OPT = ours("SGD")
MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: ours_of.StepLR(3, 1), "StepLR: takes an optimiser, got int"),  # type: ignore[arg-type]
    (lambda: ours_of.StepLR(OPT, 0), "StepLR: step_size must be a positive integer, got 0"),
    (lambda: ours_of.StepLR(ours("SGD"), 1, last_epoch=4), "group 0 has no initial_lr; load the"),
    (lambda: ours_of.StepLR(OPT, 1, last_epoch=-2), "last_epoch must be -1 or more, got -2"),
    (lambda: ours_of.LambdaLR(OPT, [abs]), "LambdaLR: got 1 functions for 2 groups"),
    (lambda: ours_of.MultiplicativeLR(OPT, 0.5), "MultiplicativeLR: takes functions, got float"),
    (lambda: ours_of.ConstantLR(OPT, 1.5), "ConstantLR: factor must lie between 0 and 1, got 1.5"),
    (lambda: ours_of.LinearLR(OPT, 0.0), "LinearLR: start_factor must be above 0"),
    (lambda: ours_of.LinearLR(OPT, 0.1, 1.1), "end_factor must lie between 0 and 1, got 1.1"),
    (lambda: ours_of.PolynomialLR(OPT, 0), "PolynomialLR: total_iters must be a positive"),
    (lambda: ours_of.CosineAnnealingLR(OPT, 0), "CosineAnnealingLR: T_max must be a positive"),
    (lambda: ours_of.CosineAnnealingWarmRestarts(OPT, 3, 0), "T_mult must be a positive integer"),
    (lambda: ours_of.CosineAnnealingWarmRestarts(OPT, 3).step(-1), "epoch must be at least 0"),
    (lambda: ours_of.OneCycleLR(OPT, 0.1), "needs total_steps, or epochs and steps_per_epoch"),
    (lambda: ours_of.OneCycleLR(OPT, -0.1, 5), "max_lr must not be negative, got -0.1"),
    (lambda: ours_of.ExponentialLR(OPT, -0.5), "gamma must not be negative, got -0.5"),
    (lambda: ours_of.OneCycleLR(OPT, [0.1], 5), "max_lr has 1 values, the optimiser 2 groups"),
    (lambda: ours_of.OneCycleLR(OPT, 0.1, 5, pct_start=1.5), "pct_start must lie between 0 and 1"),
    (lambda: ours_of.OneCycleLR(OPT, 0.1, 5, anneal_strategy="x"), 'must be "cos" or "linear"'),
    (lambda: ours_of.OneCycleLR(OPT, 0.1, 5, div_factor=0), "div_factor must be above 0"),
    (lambda: ours_of.CyclicLR(OPT, 0.1, 0.2, mode="x"), "mode must be one of triangular"),
    (lambda: ours_of.CyclicLR(OPT, 0.1, 0.2, scale_mode="x"), "scale_mode must be"),
    (lambda: ours_of.CyclicLR(OPT, 0.1, 0.2, 0), "step_size_up must be a positive integer"),
    (
        lambda: ours_of.CyclicLR(optim.Adagrad([eg.ones(1, requires_grad=True)]), 0.1, 0.2),
        "Adagrad has no momentum and no betas; give cycle_momentum=False",
    ),
    (lambda: ours_of.ReduceLROnPlateau(OPT, factor=1.0), "factor must be below 1, got 1.0"),
    (lambda: ours_of.ReduceLROnPlateau(OPT, "low"), 'mode must be "min" or "max", got'),
    (lambda: ours_of.ReduceLROnPlateau(OPT, threshold_mode="x"), "threshold_mode must be"),
    (lambda: ours_of.ReduceLROnPlateau(OPT, min_lr=[0.1]), "min_lr has 1 values"),
    (lambda: ours_of.ChainedScheduler([]), "ChainedScheduler: got no schedulers"),
    (
        lambda: ours_of.ChainedScheduler([ours_of.ReduceLROnPlateau(OPT)]),
        "scheduler 0 is a ReduceLROnPlateau, whose step takes a metric",
    ),
    (
        lambda: ours_of.SequentialLR(OPT, [ours_of.StepLR(ours("SGD"), 1)], []),
        "scheduler 0 belongs to another optimiser",
    ),
    (
        lambda: ours_of.SequentialLR(OPT, [ours_of.StepLR(OPT, 1)], [3]),
        "1 schedulers need 0 milestones, got 1",
    ),
    (lambda: ours_of.WarmupCosine(OPT, 5, 5), "total_steps must be above warmup_steps"),
    (lambda: ours_of.WarmupCosine(OPT, -1, 5), "warmup_steps must be at least 0, got -1"),
    (lambda: ours_of.WarmupStableDecay(OPT, 1, 1, 0), "decay_steps must be a positive integer"),
    (lambda: ours_of.WarmupStableDecay(OPT, 1, 1, 1, decay="x"), "decay must be one of cosine"),
    (lambda: optim.swa_utils.SWALR(OPT, 0.1, -1), "anneal_epochs must be an integer of at least 0"),
    (lambda: optim.swa_utils.SWALR(OPT, 0.1, 1, "x"), 'must be "cos" or "linear"'),
    (
        lambda: ours_of.StepLR(OPT, 1).load_state_dict({"last_epoch": 1, "T_max": 3}),
        "StepLR has no T_max",
    ),
    (lambda: ours_of.StepLR(OPT, 1).load_state_dict({}), "StepLR needs last_epoch"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_one_cycle_ends() -> None:
    schedule = ours_of.OneCycleLR(ours("SGD"), 0.1, total_steps=3)
    for _ in range(3):
        schedule.step()
    with pytest.raises(ArgumentError, match="step 4 is past the 3 that the cycle has"):
        schedule.step()


def test_a_scheduler_without_a_rule() -> None:
    with pytest.raises(NotImplementedError, match=r"defines no get_lr\(\)"):
        ours_of.LRScheduler(ours("SGD"))

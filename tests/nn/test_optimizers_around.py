"""What stands around an optimiser: hooks, switches, averages of weights, clipping, accumulation,
half parameters, states on disk, and names that PyTorch has."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import everygrad as eg
from everygrad import nn, optim
from everygrad.core.torch_optim_names import ABSENT, SPELLINGS
from everygrad.errors import ArgumentError, ShapeError, TraceError
from everygrad.optim import muon, swa_utils
from tests.nn.test_optimizers_table import ONE_EACH, leaves, made, put_grads, values

each = pytest.mark.parametrize(("name", "settings"), ONE_EACH, ids=[name for name, _ in ONE_EACH])


def leaf(*data: float) -> eg.Tensor:
    return eg.tensor(list(data), requires_grad=True)


# --- every optimiser -----------------------------------------------------------------------------


_CHANGES: dict[str, Callable[[Any], Any]] = {
    "the state is dropped": lambda opt: opt.state.clear(),
    "a state is emptied": lambda opt: [held.clear() for held in opt.state.values()],
    "a setting by update": lambda opt: opt.param_groups[0].update(lr=0.02),
    "a setting by a dict": lambda opt: opt.param_groups[0].update({"lr": 0.02}),
    "a setting switched on": lambda opt: opt.param_groups[0].update(
        {k: True for k in ("amsgrad", "nesterov") if opt.param_groups[0].get(k) is False}
    ),
}


@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adamax"])
def test_a_compiled_step_sees_every_change_of_an_optimiser(name: str, change: str) -> None:
    settings = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    runs = []
    for compiled in (False, True):
        w = leaf(11.0, 12.0, 13.0)
        opt = getattr(optim, name)([w], **settings)

        def step(w: Any = w, opt: Any = opt) -> Any:
            opt.zero_grad()
            (w * w).sum().backward()
            opt.step()
            return w.detach() * 1.0

        run, seen = eg.jit(step) if compiled else step, []
        for i in range(7):
            if i in (3, 4, 6):
                _CHANGES[change](opt)
            seen.append(run().numpy())
        runs.append(np.stack(seen))
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5, atol=1e-5)


@each
def test_switches_are_taken_and_change_nothing(name: str, settings: dict[str, Any]) -> None:
    start, grads = values(name, 2)
    both = leaves(start), leaves(start)
    switches: dict[str, Any] = {"foreach": True, "fused": False, "capturable": True}
    plain, switched = (
        made(name, params, {**settings, **more})
        for params, more in zip(both, ({}, switches), strict=True)
    )
    for i in range(2):
        for params, opt in zip(both, (plain, switched), strict=True):
            put_grads(params, grads[i])
            opt.step()
    assert [p.tolist() for p in both[0]] == [p.tolist() for p in both[1]]
    with pytest.raises(ArgumentError, match=f"{name}: has no argument learning_rate; it takes lr"):
        made(name, leaves(start), {"learning_rate": 0.1})


@each
def test_an_overflow_leaves_all_as_it_was(name: str, settings: dict[str, Any]) -> None:
    start, grads = values(name, 3)
    params = leaves(start)
    opt = made(name, params, settings)
    for i in range(2):
        put_grads(params, grads[i])
        opt.step()

    def everything() -> list[Any]:
        held = [t.tolist() for p in params for t in opt.state[p].values()]
        return [*[p.tolist() for p in params], *held]

    before = everything()
    put_grads(params, grads[2])
    opt.step(found_inf=eg.tensor(True))
    assert everything() == before
    opt.step(found_inf=eg.tensor(False), grad_scale=eg.tensor(4.0))
    assert everything() != before


@each
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_parameters_follow_their_masters(
    name: str, settings: dict[str, Any], dtype: str
) -> None:
    start, grads = values(name, 8)
    params, wide = leaves(start, dtype=dtype), leaves(start, dtype="float32")
    for half, full in zip(params, wide, strict=True):
        full.rebind(half.detach().astype("float32")._data, full._node)
    opt, reference = (made(name, some, settings) for some in (params, wide))
    for i in range(8):
        put_grads(params, grads[i], dtype=dtype)
        put_grads(wide, [p.grad.astype("float32").numpy() for p in params], dtype="float32")  # type: ignore[union-attr]
        opt.step()
        reference.step()
    for half, full in zip(params, wide, strict=True):
        np.testing.assert_allclose(
            opt.state[half]["master"].numpy(), full.detach().numpy(), rtol=2e-5, atol=1e-6
        )
        assert half.dtype.name == dtype
        assert half.tolist() == opt.state[half]["master"].astype(dtype).tolist()


@each
def test_a_state_goes_through_files(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    start, grads = values(name, 6)
    params = leaves(start)
    opt = made(name, params, settings)
    for i in range(3):
        put_grads(params, grads[i])
        opt.step()
    saved = opt.state_dict()
    held = {f"{k}.{n}": t.numpy() for k, s in saved["state"].items() for n, t in s.items()}
    save_file({k: np.array(v, order="C") for k, v in held.items()}, tmp_path / "state.safetensors")
    (tmp_path / "groups.json").write_text(json.dumps(saved["param_groups"]))

    state: dict[str, Any] = {}
    for key, array in load_file(tmp_path / "state.safetensors").items():
        number, _, field = key.partition(".")
        state.setdefault(number, {})[field] = eg.tensor(array)
    others = leaves([p.detach().numpy() for p in params])
    resumed = made(name, others, {})
    groups = json.loads((tmp_path / "groups.json").read_text())
    resumed.load_state_dict({"state": state, "param_groups": groups})
    for i in range(3, 6):
        for some, one in ((params, opt), (others, resumed)):
            put_grads(some, grads[i])
            one.step()
    assert [p.tolist() for p in params] == [p.tolist() for p in others]


# --- hooks ---------------------------------------------------------------------------------------


def test_hooks_of_a_step() -> None:
    p = leaf(1.0)
    opt = optim.SGD([p], lr=0.5)
    seen: list[Any] = []

    def closure() -> eg.Tensor:
        p.grad = eg.tensor([1.0])
        return eg.tensor(7.0)

    before = opt.register_step_pre_hook(lambda o, args, kwargs: ((closure,), {}))
    after = opt.register_step_post_hook(lambda o, args, kwargs: seen.append((o, args, p.item())))
    assert opt.step().item() == 7.0
    assert seen == [(opt, (closure,), 0.5)]
    before.remove()
    after.remove()
    assert opt.step() is None
    assert len(seen) == 1
    opt.register_step_pre_hook(lambda o, args, kwargs: 3)
    with pytest.raises(ArgumentError, match=r"returns None or \(args, kwargs\), got int"):
        opt.step()
    with pytest.raises(ArgumentError, match="register_step_post_hook: takes a function, got int"):
        opt.register_step_post_hook(3)  # type: ignore[arg-type]


def test_a_new_hook_is_part_of_a_compiled_step() -> None:
    p = leaf(8.0)
    opt = optim.SGD([p], lr=0.5)

    @eg.jit
    def step() -> None:
        p.grad = eg.ones((1,))
        opt.step()

    def halve(o: Any, args: Any, kwargs: Any) -> None:
        p.grad = p.grad / 2  # type: ignore[operator]

    step()
    step()
    handle = opt.register_step_pre_hook(halve)
    step()
    step()
    handle.remove()
    step()
    assert p.item() == 8.0 - 0.5 * (1 + 1 + 0.5 + 0.5 + 1)


def test_hooks_of_states() -> None:
    p = leaf(1.0)
    opt = optim.Adam([p], lr=0.5)
    order: list[str] = []
    opt.register_state_dict_pre_hook(lambda o: order.append("second"))
    opt.register_state_dict_pre_hook(lambda o: order.append("first"), prepend=True)
    opt.register_state_dict_post_hook(lambda o, saved: {**saved, "note": 3})
    saved = opt.state_dict()
    assert order == ["first", "second"]
    assert saved["note"] == 3
    opt.register_load_state_dict_pre_hook(
        lambda o, held: {**held, "param_groups": [{**held["param_groups"][0], "lr": 0.25}]}
    )
    opt.register_load_state_dict_post_hook(lambda o: order.append("loaded"))
    opt.load_state_dict(saved)
    assert opt.param_groups[0]["lr"] == 0.25
    assert order[-1] == "loaded"


# --- groups --------------------------------------------------------------------------------------


def test_named_parameters() -> None:
    model = nn.Linear(2, 1)
    opt = optim.SGD(model.named_parameters(), lr=0.1)
    assert opt.param_groups[0]["param_names"] == ["weight", "bias"]
    assert opt.param_groups[0]["params"] == [model.weight, model.bias]
    theirs = torch.optim.SGD(torch.nn.Linear(2, 1).named_parameters(), lr=0.1).state_dict()
    opt.load_state_dict(theirs)
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]
    with pytest.raises(ArgumentError, match=r"all be tensors, or all \(name, tensor\) pairs"):
        optim.SGD([("a", leaf(1.0)), leaf(1.0)])


def test_lbfgs_refuses_what_it_cannot_do() -> None:
    p, q = leaf(1.0), leaf(2.0)
    opt = optim.LBFGS([p])
    with pytest.raises(ArgumentError, match="needs a closure"):
        opt.step()
    with pytest.raises(ArgumentError, match="takes one group of parameters"):
        opt.add_param_group({"params": [q]})
    with pytest.raises(ArgumentError, match="cannot be scaled"):
        opt.step(lambda: p.sum(), grad_scale=eg.tensor(2.0))
    with pytest.raises(TraceError, match=r"opt\.step\(eg\.jit\(closure\)\)"):
        eg.jit(lambda: opt.step(lambda: p.sum()))()


def test_muon_refuses_what_is_no_matrix() -> None:
    with pytest.raises(ShapeError, match=r"Muon: parameter 0 has shape \(1,\).*AdamW"):
        optim.Muon([leaf(1.0)])


def test_muon_in_bfloat16_is_as_far_from_the_truth_as_pytorchs() -> None:
    rng = np.random.default_rng(3)
    start, grads = rng.standard_normal((24, 16)), rng.standard_normal((5, 24, 16))
    tp = torch.tensor(start, dtype=torch.float32, requires_grad=True)
    p = eg.tensor(start, dtype="float32").requires_grad_()
    exact = eg.tensor(start).requires_grad_()
    theirs, opt = torch.optim.Muon([tp], lr=0.1), optim.Muon([p], lr=0.1)
    truth = optim.Muon([exact], lr=0.1, ns_dtype="float64")
    for g in grads:
        tp.grad, p.grad = torch.tensor(g, dtype=torch.float32), eg.tensor(g, dtype="float32")
        exact.grad = eg.tensor(g)
        for one in (theirs, opt, truth):
            one.step()
    want = exact.detach().numpy()
    ours_off, theirs_off = (np.abs(t.detach().numpy() - want).mean() for t in (p, tp))
    # PyTorch's products are not rounded before something is added to them
    assert 0 < ours_off < 1.5 * theirs_off


@pytest.mark.parametrize("spare", [0, 300, 3000, 1 << 25])
def test_muon_finds_the_same_however_matrices_are_stacked(spare: int) -> None:
    rng = np.random.default_rng(5)
    shapes = [(3, 4), (4, 3), (5, 5), (1, 9), (2, 2), (3, 4), (0, 3), (7, 2)]
    xs = [eg.tensor(rng.standard_normal(s)) for s in shapes]
    group = optim.Muon([eg.ones((1, 1))], ns_dtype="float64").param_groups[0]
    batches = [*muon.stacks(shapes, spare)]
    assert sorted(k for _, those in batches for k in those) == [*range(len(shapes))]
    assert len(batches) == {0: 6, 1 << 25: 1}.get(spare, len(batches))
    for shape, those in batches:
        assert shape[0] <= shape[1]
        made = muon.orthogonal([xs[k] for k in those], group, shape)
        for k, found in zip(those, made, strict=True):
            (want,) = muon.orthogonal([xs[k]], group, (min(shapes[k]), max(shapes[k])))
            np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-10, atol=1e-12)


def test_schedule_free_evaluates_the_average(traces: list[Any]) -> None:
    p = eg.tensor([3.0, -2.0], dtype="float64", requires_grad=True)
    opt = optim.ScheduleFreeAdamW([p], lr=0.1)
    grads = np.random.default_rng(1).standard_normal((12, 2))
    x = z = y = np.array([3.0, -2.0])
    v = np.zeros(2)

    @eg.jit
    def step(g: eg.Tensor) -> None:
        p.grad = g
        opt.step()

    for t, g in enumerate(grads, 1):
        step(eg.tensor(g))
        v = 0.999 * v + 0.001 * g * g
        z = z - 0.1 * g / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        x = (1 - 1 / t) * x + z / t
        y = 0.1 * z + 0.9 * x
    np.testing.assert_allclose(p.detach().numpy(), y, rtol=1e-10)
    opt.eval()
    opt.eval()
    np.testing.assert_allclose(p.detach().numpy(), x, rtol=1e-10)
    with pytest.raises(ArgumentError, match=r"call train\(\) first"):
        step(eg.tensor(grads[0]))
    opt.train()
    np.testing.assert_allclose(p.detach().numpy(), y, rtol=1e-10)


def test_averages_in_bytes_take_a_quarter() -> None:
    p = eg.ones((1000, 10), requires_grad=True)
    p.grad = eg.randn((1000, 10))
    sizes = []
    for kind in (optim.Adam, optim.Adam8bit):
        opt = kind([p])
        opt.step()
        sizes.append(sum(t.size * t.dtype.itemsize for t in opt.state[p].values()))
    assert sizes[1] < 0.27 * sizes[0]


# --- ranges --------------------------------------------------------------------------------------

P, W = leaf(1.0), eg.ones((2, 2), requires_grad=True)
MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: optim.NAdam([P], momentum_decay=-1), "NAdam: momentum_decay must be at least 0"),
    (lambda: optim.NAdam([P], betas=(1.0, 0.9)), "NAdam: betas must be two numbers from 0 to"),
    (lambda: optim.RAdam([P], eps=-1), "RAdam: eps must be at least 0, got -1"),
    (lambda: optim.RAdam([P], betas=(0.9,)), "RAdam: betas must be two numbers"),  # type: ignore[arg-type]
    (lambda: optim.Adamax([P], weight_decay=-1), "Adamax: weight_decay must be at least 0"),
    (lambda: optim.Adagrad([P], lr_decay=-1), "Adagrad: lr_decay must be at least 0"),
    (lambda: optim.Adagrad([P], initial_accumulator_value=-1), "initial_accumulator_value must"),
    (lambda: optim.Adadelta([P], rho=1.5), "Adadelta: rho must lie between 0 and 1, got 1.5"),
    (lambda: optim.Adafactor([P], beta2_decay=0.5), "beta2_decay must be at most 0, got 0.5"),
    (lambda: optim.Adafactor([P], d=0.5), "Adafactor: d must be at least 1, got 0.5"),
    (lambda: optim.Adafactor([P], eps=(-1, 0.1)), "eps must be two numbers of at least 0"),
    (lambda: optim.RMSprop([P], momentum=-1), "RMSprop: momentum must be at least 0"),
    (lambda: optim.RMSprop([P], alpha=-1), "RMSprop: alpha must be at least 0"),
    (lambda: optim.Rprop([P], etas=(1.5, 1.2)), "Rprop: etas must be one number between 0 and 1"),
    (lambda: optim.Rprop([P], step_sizes=(2, 1)), "step_sizes must be the smallest and the larg"),
    (lambda: optim.ASGD([P], lr=-1), "ASGD: lr must be at least 0, got -1"),
    (lambda: optim.LBFGS([P], max_iter=0), "LBFGS: max_iter must be a positive integer, got 0"),
    (lambda: optim.LBFGS([P], line_search_fn="x"), 'line_search_fn must be None or "strong_wolfe"'),
    (lambda: optim.LBFGS([P], history_size=0), "history_size must be a positive integer"),
    (lambda: optim.LBFGS([P], tolerance_grad=-1), "tolerance_grad must be at least 0"),
    (lambda: optim.Lion([P], betas=(0.9, 1.0)), "Lion: betas must be two numbers from 0 to below"),
    (lambda: optim.LAMB([P], bounds=(2, 1)), "LAMB: bounds must be None or .low, high., got"),
    (lambda: optim.Muon([W], ns_steps=100), "Muon: ns_steps must be an integer below 100"),
    (lambda: optim.Muon([W], adjust_lr_fn="x"), "Muon: adjust_lr_fn must be one of"),
    (lambda: optim.Muon([W], ns_coefficients=(1, 2)), "ns_coefficients must be three"),  # type: ignore[arg-type]
    (lambda: optim.Muon([W], ns_dtype="int32"), "ns_dtype must be a floating point dtype"),
    (lambda: optim.ScheduleFreeAdamW([P], betas=(0.0, 0.9)), "the first of betas must be above 0"),
    (lambda: optim.ScheduleFreeAdamW([P], warmup_steps=-1), "warmup_steps must be at least 0"),
    (lambda: optim.Adam8bit([P], block_size=1), "block_size must be an integer of at least 2"),
    (lambda: optim.AdamW8bit([P], min_8bit_size=-1), "min_8bit_size must be an integer of at"),
    (lambda: swa_utils.get_ema_multi_avg_fn(1.5), "get_ema_multi_avg_fn: decay must lie between"),
    (lambda: swa_utils.get_ema_avg_fn(-1), "get_ema_avg_fn: decay must lie between 0 and 1"),
    (lambda: swa_utils.AveragedModel(3), "AveragedModel: takes a module, got int"),  # type: ignore[arg-type]
    (
        lambda: swa_utils.AveragedModel(nn.Linear(1, 1)).update_parameters(nn.Linear(2, 1)),
        "not those of the one that was copied",
    ),
    (lambda: optim.accumulate_gradients(lambda x: x.sum(), W, steps=0), "steps must be a positive"),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_mistakes_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


# --- averages of weights -------------------------------------------------------------------------

AVERAGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "swa": lambda u: {},
    "swa_fn": lambda u: {"avg_fn": u.get_swa_avg_fn()},
    "swa_multi": lambda u: {"multi_avg_fn": u.get_swa_multi_avg_fn()},
    "ema": lambda u: {"avg_fn": u.get_ema_avg_fn(0.9)},
    "ema_multi": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.9)},
    # a decay that is exact in binary: a count is truncated, and would show how a sum was rounded
    "ema_buffers": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.75), "use_buffers": True},
    "own": lambda u: {"avg_fn": lambda mean, x, n: 0.5 * mean + 0.5 * x},
}


@pytest.mark.parametrize("row", list(AVERAGES))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_averaged_models_are_pytorchs(row: str, compiled: bool, traces: list[Any]) -> None:
    reference = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).double()
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(dtype="float64")
    model.load_state_dict({k: v.numpy() for k, v in reference.state_dict().items()})
    right = torch.optim.swa_utils.AveragedModel(reference, **AVERAGES[row](torch.optim.swa_utils))
    mean = swa_utils.AveragedModel(model, **AVERAGES[row](swa_utils))
    opt, theirs = (
        optim.SGD(model.parameters(), lr=0.1),
        torch.optim.SGD(reference.parameters(), 0.1),
    )

    def step(x: eg.Tensor) -> None:
        opt.zero_grad()
        (model(x) ** 2).mean().backward()
        opt.step()
        mean.update_parameters(model)

    run = eg.jit(step) if compiled else step
    rng = np.random.default_rng(2)
    for _ in range(20):
        x = rng.standard_normal((8, 3))
        run(eg.tensor(x))
        theirs.zero_grad()
        (reference(torch.tensor(x)) ** 2).mean().backward()
        theirs.step()
        right.update_parameters(reference)
        want = right.state_dict()
        got = mean.state_dict()
        assert got.keys() == want.keys()
        for key, value in want.items():
            np.testing.assert_allclose(got[key].numpy(), value.numpy(), atol=1e-10, err_msg=key)
    assert len(traces) == compiled
    x = rng.standard_normal((8, 3))
    np.testing.assert_allclose(
        mean(eg.tensor(x)).detach().numpy(), right(torch.tensor(x)).detach().numpy(), atol=1e-10
    )


def test_update_bn_is_pytorchs() -> None:
    reference = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).double()
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(dtype="float64")
    model.load_state_dict({k: v.numpy() for k, v in reference.state_dict().items()})
    batches = np.random.default_rng(2).standard_normal((5, 8, 3))
    reference.eval()
    model.eval()
    torch.optim.swa_utils.update_bn([(torch.tensor(x), 1) for x in batches], reference)
    swa_utils.update_bn([(eg.tensor(x), 1) for x in batches], model)
    for key, value in reference.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[key].numpy(), value.numpy(), atol=1e-10)
    assert model[1].momentum == 0.1
    assert not model.training


# --- a whole step --------------------------------------------------------------------------------


def test_accumulation_and_clipping_in_one_compiled_step(traces: list[Any]) -> None:
    reference = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    reference.double()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype="float64")
    model.load_state_dict({k: v.numpy() for k, v in reference.state_dict().items()})
    opt, theirs = optim.AdamW(model.parameters()), torch.optim.AdamW(reference.parameters())
    schedule = optim.lr_scheduler.WarmupCosine(opt, 5, 20, start_factor=0.5)
    mean = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))

    def loss_of(x: eg.Tensor, y: eg.Tensor) -> eg.Tensor:
        found: eg.Tensor = ((model(x) - y) ** 2).mean()
        return found

    @eg.jit
    def step(x: eg.Tensor, y: eg.Tensor) -> tuple[eg.Tensor, eg.Tensor]:
        opt.zero_grad()
        loss = optim.accumulate_gradients(loss_of, x, y, steps=4)
        size = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        mean.update_parameters(model)
        schedule.step()
        return loss, size

    rng = np.random.default_rng(4)
    for _ in range(20):
        x, y = rng.standard_normal((8, 3)), rng.standard_normal((8, 1))
        for group in theirs.param_groups:
            group["lr"] = opt.param_groups[0]["lr"]
        loss, size = step(eg.tensor(x), eg.tensor(y))
        theirs.zero_grad()
        want = ((reference(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
        want.backward()
        norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        theirs.step()
        np.testing.assert_allclose(loss.item(), want.item(), rtol=1e-10)
        np.testing.assert_allclose(size.item(), norm.item(), rtol=1e-10)
        for key, value in reference.state_dict().items():
            np.testing.assert_allclose(model.state_dict()[key].numpy(), value.numpy(), atol=1e-10)
    assert len(traces) == 1
    assert mean.n_averaged.item() == 20
    assert schedule.last_epoch == 20


def test_parts_that_do_not_divide_a_batch_are_refused() -> None:
    p = leaf(1.0)
    with pytest.raises(ShapeError, match="3 examples cannot be divided into 2 equal parts"):
        optim.accumulate_gradients(lambda x: (p * x).mean(), eg.ones((3,)), steps=2)
    with pytest.raises(ShapeError, match=r"one size of the first axis, got .2, 3."):
        optim.accumulate_gradients(lambda x, y: p.sum(), eg.ones((3,)), eg.ones((2,)), steps=1)
    assert p.grad is None


# --- PyTorch's names -----------------------------------------------------------------------------

MODULES: dict[str, tuple[Any, Any]] = {
    "optim": (torch.optim, optim),
    "optim.lr_scheduler": (torch.optim.lr_scheduler, optim.lr_scheduler),
    "optim.swa_utils": (torch.optim.swa_utils, optim.swa_utils),
}


@pytest.mark.parametrize("module", list(MODULES))
def test_what_pytorch_has_is_there_or_explained(module: str) -> None:
    theirs, ours = MODULES[module]
    names = set(theirs.__all__)
    absent = {name for name in names if not hasattr(ours, name)}
    assert absent == set(ABSENT[module])
    assert len(absent) <= 0.1 * len(names)
    assert all(reason for reason in ABSENT[module].values())
    assert set(ours.__all__) == {n for n in ours.__all__ if hasattr(ours, n)} >= names - absent


@pytest.mark.parametrize(
    ("module", "name", "answer"),
    [
        (optim, "AdmW", "everygrad.optim has no 'AdmW'; the nearest are 'AdamW' and 'Adam'"),
        (optim, "SparseAdam", "has no 'SparseAdam'; use Adam: gradients are dense here"),
        (optim, "EMA", "use swa_utils.AveragedModel with get_ema_multi_avg_fn"),
        (optim.lr_scheduler, "CosineLR", "the nearest are 'CosineAnnealingLR'"),
        (optim.lr_scheduler, "get_wsd_schedule", "use lr_scheduler.WarmupStableDecay"),
        (optim.swa_utils, "update_batchnorm", "has no 'update_batchnorm'"),
    ],
)
def test_a_name_that_is_not_there_is_answered(module: Any, name: str, answer: str) -> None:
    with pytest.raises(AttributeError, match=answer):
        getattr(module, name)


def test_spellings_lead_somewhere() -> None:
    assert not any(hasattr(optim, name) for name in SPELLINGS)
    for use in SPELLINGS.values():
        found: Any = optim if not use.startswith("eg.") else eg
        for part in use.removeprefix("eg.").split(",")[0].split(" ")[0].split("."):
            found = getattr(found, part)
        assert callable(found)


def test_other_parameters_for_a_while() -> None:
    p, q = leaf(1.0, 2.0), leaf(5.0, 6.0)
    opt = optim.Adam([p], lr=0.1)
    p.grad = eg.ones((2,))
    opt.step()
    before, groups = opt.state_dict(), opt.param_groups
    other = opt.state_dict()
    other["param_groups"][0]["lr"] = 0.5
    q.grad = -eg.ones((2,))
    with optim.swap_in_optimizer_params_and_state(opt, {"p": q}, other):
        assert opt.param_groups[0]["lr"] == 0.5
        opt.step()
    assert other["state"][0]["step"].item() == 2.0
    assert opt.param_groups is groups
    assert groups[0]["lr"] == 0.1
    assert q.tolist() != [5.0, 6.0]
    after = opt.state_dict()["state"][0]
    assert {k: t.tolist() for k, t in after.items()} == {
        k: t.tolist() for k, t in before["state"][0].items()
    }
    with (
        pytest.raises(ArgumentError, match=r"2 parameters in groups of \[1\] do not fit Adam's"),
        optim.swap_in_optimizer_params_and_state(opt, {"p": q, "q": p}, other),
    ):
        raise AssertionError("not reached")

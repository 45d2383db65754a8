"""Every optimiser, several settings each: 20 steps in float64, equal to PyTorch's, or to the
paper's formulas in NumPy where PyTorch has none; eager, compiled, in groups, and resumed."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import optim
from tests.support.optimizers import FORMULAS

STEPS = 20
TOLERANCE = 1e-10
SHAPES = [(4, 3), (3,), (3, 4, 2), ()]
MATRICES = [(5, 3), (3, 5), (4, 4)]

# one row a setting; what PyTorch has by the same name is the reference
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.1}),
    ("Adam", {"lr": 0.1, "betas": (0.5, 0.7), "weight_decay": 0.3, "amsgrad": True}),
    ("Adam", {"weight_decay": 0.3, "decoupled_weight_decay": True, "maximize": True}),
    ("AdamW", {"lr": 0.1}),
    ("AdamW", {"lr": 0.1, "betas": (0.0, 0.9), "weight_decay": 0.2, "amsgrad": True}),
    ("NAdam", {}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.2, "momentum_decay": 0.1, "maximize": True}),
    ("NAdam", {"lr": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.1}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.2, "maximize": True}),
    ("RAdam", {"lr": 0.1, "weight_decay": 0.2, "decoupled_weight_decay": True, "eps": 1e-3}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.5)}),
    ("RAdam", {"lr": 0.1, "betas": (0.8, 0.99999)}),
    ("Adamax", {}),
    ("Adamax", {"lr": 0.1, "betas": (0.7, 0.8), "weight_decay": 0.2, "maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "maximize": True}),
    ("Adagrad", {"lr": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3}),
    ("Adadelta", {}),
    ("Adadelta", {"lr": 0.5, "rho": 0.7, "eps": 1e-3, "weight_decay": 0.2, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.3, "beta2_decay": -0.5, "eps": (1e-8, 1e-2), "weight_decay": 0.1}),
    ("Adafactor", {"lr": 0.3, "d": 1.5, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.05, "alpha": 0.9, "momentum": 0.8, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.05, "centered": True, "momentum": 0.5, "maximize": True}),
    ("RMSprop", {"lr": 0.05, "centered": True, "eps": 1e-2}),
    ("Rprop", {}),
    ("Rprop", {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (1e-3, 0.5), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 4, "weight_decay": 0.1}),
    ("ASGD", {"lr": 0.1, "maximize": True}),
    ("Muon", {"lr": 0.1}),
    ("Muon", {"lr": 0.1, "nesterov": False, "weight_decay": 0.0, "momentum": 0.5}),
    ("Muon", {"lr": 0.1, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3}),
    ("Lion", {"lr": 0.01}),
    ("Lion", {"lr": 0.01, "betas": (0.8, 0.7), "weight_decay": 0.3, "maximize": True}),
    ("LAMB", {"lr": 0.1}),
    ("LAMB", {"lr": 0.1, "weight_decay": 0.0, "bounds": (0.5, 2.0), "maximize": True}),
    ("ScheduleFreeAdamW", {"lr": 0.1}),
    ("ScheduleFreeAdamW", {"lr": 0.1, "weight_decay": 0.1, "warmup_steps": 5, "r": 1.0}),
    ("Adam8bit", {"lr": 0.01, "min_8bit_size": 0, "block_size": 8}),
    ("Adam8bit", {"lr": 0.01, "min_8bit_size": 12, "block_size": 8, "weight_decay": 0.1}),
    ("AdamW8bit", {"lr": 0.01, "min_8bit_size": 0, "block_size": 5, "maximize": True}),
]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(ROWS)]
table = pytest.mark.parametrize(("name", "settings"), ROWS, ids=IDS)
ONE_EACH = list({name: (name, settings) for name, settings in reversed(ROWS)}.values())
each = pytest.mark.parametrize(("name", "settings"), ONE_EACH, ids=[name for name, _ in ONE_EACH])


@pytest.fixture(autouse=True)
def _float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    # PyTorch's Muon always rounds to bfloat16; here it keeps its digits, to be compared
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda t: t.clone())
    yield
    torch.set_default_dtype(torch.float32)


def shapes_of(name: str) -> list[tuple[int, ...]]:
    return MATRICES if name == "Muon" else SHAPES


def values(name: str, steps: int = STEPS) -> tuple[list[Any], list[list[Any]]]:
    """Where parameters begin, and their gradients at each step."""
    rng = np.random.default_rng(7)
    shapes = shapes_of(name)
    start = [np.asarray(rng.standard_normal(s)) for s in shapes]
    return start, [[np.asarray(rng.standard_normal(s)) for s in shapes] for _ in range(steps)]


def made(name: str, params: list[eg.Tensor], settings: dict[str, Any]) -> optim.Optimizer:
    exact = {"ns_dtype": "float64"} if name == "Muon" else {}
    found: optim.Optimizer = getattr(optim, name)(params, **settings, **exact)
    return found


def leaves(start: list[Any], **kind: Any) -> list[eg.Tensor]:
    return [eg.tensor(a, **kind).requires_grad_() for a in start]


def expected(name: str, settings: dict[str, Any]) -> list[list[Any]]:
    """The parameters after each step."""
    start, grads = values(name)
    if name in FORMULAS:
        return [
            list(x)
            for x in zip(
                *[
                    FORMULAS[name](p, [g[k] for g in grads], **settings)
                    for k, p in enumerate(start)
                ],
                strict=True,
            )
        ]
    params = [torch.tensor(a, requires_grad=True) for a in start]
    opt = getattr(torch.optim, name)(params, **settings)
    found = []
    for step in grads:
        for p, g in zip(params, step, strict=True):
            p.grad = torch.tensor(g)
        opt.step()
        found.append([p.detach().numpy().copy() for p in params])
    return found


def close(params: list[eg.Tensor], right: list[Any], what: str, tolerance: float) -> None:
    assert len(params) == len(right) > 0
    for k, (p, want) in enumerate(zip(params, right, strict=True)):
        got = p.detach().numpy()
        assert got.shape == want.shape
        off = np.max(np.abs(got - want) / np.maximum(1, np.abs(want)))
        assert off <= tolerance, f"{what}, parameter {k}: {off}"


def put_grads(params: list[eg.Tensor], grads: list[Any], **kind: Any) -> None:
    for p, g in zip(params, grads, strict=True):
        p.grad = eg.tensor(g, **kind)


# bytes hold about two digits: an element may fall to the other side of a middle
ROUNDED = {"Adam8bit": 1e-5, "AdamW8bit": 1e-5}


@table
def test_steps_are_the_references(name: str, settings: dict[str, Any]) -> None:
    start, grads = values(name)
    params = leaves(start)
    opt = made(name, params, settings)
    right = expected(name, settings)
    assert len(right) == STEPS
    for i in range(STEPS):
        put_grads(params, grads[i])
        opt.step()
        close(params, right[i], f"step {i}", ROUNDED.get(name, TOLERANCE))


@table
def test_compiled_steps_are_the_references(
    name: str, settings: dict[str, Any], traces: list[Any]
) -> None:
    start, grads = values(name)
    params = leaves(start)
    opt = made(name, params, settings)

    @eg.jit
    def step(*given: eg.Tensor) -> None:
        for p, g in zip(params, given, strict=True):
            p.grad = g
        opt.step()

    right = expected(name, settings)
    for i in range(STEPS):
        step(*[eg.tensor(g) for g in grads[i]])
        close(params, right[i], f"step {i}", ROUNDED.get(name, TOLERANCE))
    # a momentum that SGD's first step makes is another program's
    assert len(traces) == (2 if "momentum" in settings and name == "SGD" else 1)


@table
def test_a_state_continues_bit_by_bit(name: str, settings: dict[str, Any]) -> None:
    start, grads = values(name)
    params = leaves(start)
    opt = made(name, params, settings)
    for i in range(STEPS):
        if i == 7:
            others = leaves([p.detach().numpy() for p in params])
            resumed = made(name, others, {})
            resumed.load_state_dict(opt.state_dict())
        put_grads(params, grads[i])
        opt.step()
        if i >= 7:
            put_grads(others, grads[i])
            resumed.step()
    assert [p.tolist() for p in params] == [p.tolist() for p in others]
    one, two = opt.state_dict(), resumed.state_dict()
    assert one["param_groups"] == two["param_groups"]
    assert one["state"].keys() == two["state"].keys()
    assert bool(one["state"]) is not (name == "SGD" and "momentum" not in settings)
    for k, held in one["state"].items():
        assert {n: t.tolist() for n, t in held.items()} == {
            n: t.tolist() for n, t in two["state"][k].items()
        }


def groups_of(params: list[Any]) -> list[dict[str, Any]]:
    return [{"params": params[:1], "lr": 0.03}, {"params": params[1:]}]


@each
def test_groups_have_settings_of_their_own(name: str, settings: dict[str, Any]) -> None:
    start, grads = values(name)
    params = leaves(start)
    opt = made(name, groups_of(params), settings)  # type: ignore[arg-type]
    apart = [expected(name, {**settings, "lr": 0.03}), expected(name, settings)]
    right = [[one[0], *two[1:]] for one, two in zip(*apart, strict=True)]
    for i in range(STEPS):
        put_grads(params, grads[i])
        opt.step()
    close(params, right[-1], "last step", ROUNDED.get(name, TOLERANCE))


@each
def test_float32_on_every_device(name: str, settings: dict[str, Any], device: str) -> None:
    start, grads = values(name)
    kind = {"dtype": "float32", "device": device}
    both = leaves(start, **kind), leaves(start, **kind)
    opts = [getattr(optim, name)(params, **settings) for params in both]
    if name == "Muon":
        for opt in opts:
            opt.param_groups[0]["ns_dtype"] = "float32"
    right = expected(name, settings)

    @eg.jit
    def compiled(*given: eg.Tensor) -> None:
        for p, g in zip(both[1], given, strict=True):
            p.grad = g
        opts[1].step()

    for i in range(STEPS):
        put_grads(both[0], grads[i], **kind)
        opts[0].step()
        compiled(*[eg.tensor(g, **kind) for g in grads[i]])
    # a sign, or the choice of a byte, may turn on the last bit of float32
    for params in both:
        close(params, right[-1], "last step", 1e-5 if name not in ROUNDED else 2e-3)


Closure = Callable[[], Any]
LBFGS_ROWS: list[dict[str, Any]] = [
    {"lr": 0.1, "max_iter": 3},
    {"lr": 1.0, "max_iter": 4, "history_size": 2, "line_search_fn": "strong_wolfe"},
    {"lr": 0.7, "max_iter": 12, "max_eval": 9, "line_search_fn": "strong_wolfe"},
    {"lr": 3.0, "max_iter": 20, "line_search_fn": "strong_wolfe", "tolerance_grad": 1e-3},
]


def valley(x: Any, y: Any) -> Any:
    """Rosenbrock's, in two pairs of coordinates, and a sharp well that makes the search turn."""
    pairs = ((1 - x) ** 2 + 10 * (y - x * x) ** 2).sum()
    return pairs + 0.3 * (3 * x).sin().sum() + 0.1 * (y**4).sum()


@pytest.mark.parametrize("settings", LBFGS_ROWS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_lbfgs(settings: dict[str, Any], compiled: bool) -> None:
    start = [np.array([-1.2, 0.7]), np.array([1.0, -0.4])]
    params, theirs = leaves(start), [torch.tensor(a, requires_grad=True) for a in start]
    opt, reference = optim.LBFGS(params, **settings), torch.optim.LBFGS(theirs, **settings)

    def closure() -> Any:
        opt.zero_grad()
        loss = valley(*params)
        loss.backward()
        return loss

    def their_closure() -> Any:
        reference.zero_grad()
        loss = valley(*theirs)
        loss.backward()
        return loss.detach()

    ours: Closure = eg.jit(closure) if compiled else closure
    for i in range(10):
        if i == 5:  # into another optimiser
            saved = opt.state_dict()
            opt = optim.LBFGS(params)
            opt.load_state_dict(saved)
        loss, want = opt.step(ours), reference.step(their_closure)
        assert abs(float(loss) - float(want)) <= TOLERANCE * max(1, abs(float(want)))
        close(params, [t.detach().numpy() for t in theirs], f"step {i}", 1e-10)
    counts = [opt.state[params[0]], reference.state[theirs[0]]]
    assert counts[0]["func_evals"] == counts[1]["func_evals"] > 10
    assert counts[0]["n_iter"] == counts[1]["n_iter"] > 5


def test_lbfgs_in_float32_on_every_device(device: str) -> None:
    start = [np.array([-1.2, 0.7]), np.array([1.0, -0.4])]
    params = leaves(start, dtype="float32", device=device)
    opt = optim.LBFGS(params, line_search_fn="strong_wolfe", max_iter=40)

    @eg.jit
    def closure() -> Any:
        opt.zero_grad()
        loss = valley(*params)
        loss.backward()
        return loss

    for _ in range(3):
        loss = opt.step(closure)
    assert loss.item() < 0.6
    largest = max(abs(p.grad.numpy()).max() for p in params if p.grad is not None)
    assert largest < 1e-2


TORCH_ROWS = [(n, s) for n, s in ROWS if hasattr(torch.optim, n)]


@pytest.mark.parametrize(("name", "settings"), TORCH_ROWS)
def test_a_state_of_pytorchs_is_taken_up(name: str, settings: dict[str, Any]) -> None:
    start, grads = values(name)
    theirs = [torch.tensor(a, requires_grad=True) for a in start]
    reference = getattr(torch.optim, name)(theirs, **settings)
    for i in range(STEPS):
        if i == 5:
            params = leaves([t.detach().numpy() for t in theirs])
            opt = made(name, params, {})
            opt.load_state_dict(as_ours(reference.state_dict()))
        for t, g in zip(theirs, grads[i], strict=True):
            t.grad = torch.tensor(g)
        reference.step()
        if i >= 5:
            put_grads(params, grads[i])
            opt.step()
    close(params, [t.detach().numpy() for t in theirs], "last step", TOLERANCE)


def as_ours(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return eg.tensor(value.numpy())
    if isinstance(value, dict):
        return {k: as_ours(v) for k, v in value.items()}
    return [as_ours(v) for v in value] if isinstance(value, list) else value

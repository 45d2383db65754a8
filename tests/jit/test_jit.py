"""eg.jit as users meet it: what is traced, what is written back."""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.core.ownership import calls_are_hooked
from everygrad.errors import (
    TraceError,
)
from everygrad.nn import functional as F
from tests.support.checks import close, values


def rand(*shape: int, seed: int = 0) -> Any:
    return eg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


class Runs:
    """Counts in a way that a trace does not see: it would be refused."""

    def __init__(self) -> None:
        self.queue: SimpleQueue[int] = SimpleQueue()

    def __len__(self) -> int:
        return self.queue.qsize()


def counted(fn: Any) -> tuple[Any, Runs]:
    """fn, and a count of how often it runs as Python."""
    runs = Runs()

    def inside(*args: Any, **kwargs: Any) -> Any:
        runs.queue.put(1)
        return fn(*args, **kwargs)

    return inside, runs


# --- calls ---------------------------------------------------------------------------------------


def test_what_only_backward_touches_is_an_input_too() -> None:
    factor = eg.tensor([2.0, 3.0])

    class Scaled(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            return g * factor * x

    slope = eg.grad(eg.jit(lambda x: Scaled.apply(x).sum()))
    for _ in range(2):
        assert slope(eg.tensor([1.0, 2.0])).tolist() == [2.0, 6.0]
    factor[0] = 5.0
    assert slope(eg.tensor([1.0, 2.0])).tolist() == [5.0, 6.0]


def test_traced_once_for_each_kind_of_call() -> None:
    fn, runs = counted(lambda x, k=1: x * k + 1)
    f = eg.jit(fn)
    x = rand(3, 4)
    for _ in range(3):
        close(f(x), x + 1, 1e-6)
    assert len(runs) == 1
    close(f(x, k=2), x * 2 + 1, 1e-6)
    close(f(x, 2.0), x * 2 + 1, 1e-6)
    close(f(rand(5)), rand(5) + 1, 1e-6)
    close(f(x.astype("float64")), x.astype("float64") + 1, 1e-6)
    assert len(runs) == 5
    f(x)
    assert len(runs) == 5


def test_containers_in_and_out() -> None:
    def fn(batch: dict[str, Any], pair: tuple[Any, Any]) -> dict[str, Any]:
        return {"sum": batch["x"] + pair[0], "all": [pair[1], batch["x"] * 2], "none": None}

    given = {"x": rand(4)}, (rand(4, seed=1), rand(2))
    got, want = eg.jit(fn)(*given), fn(*given)
    close(got["sum"], want["sum"], 1e-6)
    close(got["all"][0], want["all"][0], 0)
    close(got["all"][1], want["all"][1], 1e-6)
    assert got["none"] is None


def test_results_are_never_overwritten() -> None:
    f = eg.jit(lambda x: (x * 2, x.reshape(-1)[1:], x))
    x = rand(3, 3)
    first = f(x)
    kept = [np.array(t.numpy()) for t in first]
    for seed in range(3):
        f(rand(3, 3, seed=seed + 1))
    for t, k in zip(first, kept, strict=True):
        np.testing.assert_array_equal(t.numpy(), k)


def test_views_as_arguments() -> None:
    f = eg.jit(lambda x, y: x @ y + x.sum())
    big = rand(8, 6)
    for x, y in (
        (big.permute_dims((1, 0)), big),
        (big[1:7:2, ::2], big[:3, :]),
        (eg.flip(big), big.permute_dims((1, 0))),
        (rand(1).broadcast_to((4, 4)), rand(4, 4)),
    ):
        close(f(x, y), x @ y + x.sum(), 1e-5)


def test_empty_and_scalar_tensors() -> None:
    f = eg.jit(lambda x: (x + 1, x.sum(), x * x.sum()))
    for shape in ((), (0,), (0, 3), (1, 1)):
        x = rand(*shape)
        for got, want in zip(f(x), (x + 1, x.sum(), x * x.sum()), strict=True):
            close(got, want, 1e-6)


def test_methods() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = eg.tensor(factor)

        @eg.jit
        def apply(self, x: Any) -> Any:
            return x * self.factor

    a, b = Scale(2.0), Scale(3.0)
    x = rand(3)
    close(a.apply(x), x * 2, 1e-6)
    close(b.apply(x), x * 3, 1e-6)
    a.factor = eg.tensor(5.0)  # another tensor: not what was traced
    close(b.apply(x), x * 3, 1e-6)


def test_calls_from_several_threads() -> None:
    f = eg.jit(lambda x: eg.softmax(x @ x, axis=-1).sum(axis=0))
    inputs = [rand(40, 40, seed=i) for i in range(6)]
    wanted = [eg.softmax(x @ x, axis=-1).sum(axis=0) for x in inputs]
    wrong: list[Any] = []

    def work(k: int) -> None:
        for _ in range(20):
            if not np.allclose(f(inputs[k]).numpy(), wanted[k].numpy(), atol=1e-4):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# --- what a function closes over -----------------------------------------------------------------


def test_captured_tensors_are_read_at_each_call() -> None:
    w = rand(3)
    f = eg.jit(lambda x: x * w + w.detach())
    x = rand(3, seed=1)
    close(f(x), x * w + w, 1e-6)
    with eg.no_grad():
        w += 1.0
    close(f(x), x * w + w, 1e-6)


def test_rebound_tensors_are_written_back() -> None:
    count, total = eg.tensor(0.0), eg.zeros((3,))

    @eg.jit
    def f(x: Any) -> Any:
        nonlocal count
        count += 1.0
        total[1:] = x[1:] * 2
        return total * count

    x = rand(3)
    for i in range(3):
        out = f(x)
        assert count.item() == i + 1
        close(total[1:], x[1:] * 2, 1e-6)
        close(out, total * count, 1e-6)


def test_an_argument_that_is_assigned_to() -> None:
    def f(x: Any) -> None:
        x += 1.0

    a, b = rand(4), rand(4)
    eg.jit(f)(a)
    f(b)
    close(a, b, 1e-6)


def test_what_nobody_else_holds_is_written_in_place(monkeypatch: Any) -> None:
    # wgpu keeps a thread of its own, which would be reason enough to write elsewhere
    monkeypatch.setattr("everygrad._jit.entry._others_may_look", lambda: False)
    p = eg.tensor(np.ones(100_000, np.float32))
    f = eg.jit(lambda: p.__imul__(2.0))
    f()
    places = set()
    for _ in range(4):
        f()
        places.add(p.numpy().ctypes.data)
    # PyTorch may have left its hook on: then a call holds its arguments, and two places take turns
    assert len(places) == 1 + calls_are_hooked()
    assert p[0].item() == 32.0


def test_what_somebody_else_holds_is_not_overwritten() -> None:
    p = eg.tensor(np.ones(100_000, np.float32))

    @eg.jit
    def step() -> None:
        with eg.no_grad():
            p.__imul__(2.0)

    step()
    held, view = p.detach(), p[10:20]
    step()
    assert held[0].item() == 2.0
    assert view[0].item() == 2.0
    assert p[0].item() == 4.0
    source = np.full(100_000, 3.0, np.float32)
    shared = eg.asarray(source)
    q = shared.clone()
    f = eg.jit(lambda: q.__iadd__(1.0))
    f()
    assert source[0] == 3.0
    assert q[0].item() == 4.0


@pytest.mark.parametrize("holds", ["view", "tensor", "weak"])
def test_one_of_many_that_somebody_holds(device: str, holds: str) -> None:
    """The arrays of a step's parameters are looked at together from the third call on; one that
    somebody else can see is not written over, and the others still are."""
    weights = [eg.full((40, 30), float(i), device=device) for i in range(5)]

    @eg.jit
    def step() -> None:
        for w in weights:
            w += 1.0

    for _ in range(4):
        step()
    held: Any = None
    for k in range(3):
        before = weights[2].numpy().copy()
        if holds == "view":
            held = weights[2].reshape(-1)
        elif holds == "tensor":
            held = weights[2].detach()
        else:
            held = weakref.ref(weights[2]._data)
        step()
        if holds != "weak":
            assert (held.numpy().reshape(40, 30) == before).all()
        del held
        step()
        assert [float(w[3, 4].item()) for w in weights] == [i + 4.0 + 2 * k + 2 for i in range(5)]


def step_of(model: Any, opt: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return step


OPTIMISERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_whole_training_step(name: str) -> None:
    def model() -> Any:
        eg.manual_seed(3)
        return nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))

    a, b = model(), model()
    eager = step_of(a, OPTIMISERS[name](a.parameters()))
    fn, runs = counted(step_of(b, OPTIMISERS[name](b.parameters())))
    compiled = eg.jit(fn)
    for i in range(6):
        x, y = rand(32, 12, seed=i), eg.tensor(np.arange(32) % 5)
        close(compiled(x, y), eager(x, y), 1e-5)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            close(q.detach(), p.detach(), 1e-5)
            close(q.grad, p.grad, 1e-5)
    assert len(runs) <= 2, "traced at most once more, when state was made"


def test_gradients_add_up() -> None:
    w = rand(4).requires_grad_()
    v = w.detach().requires_grad_()

    def loss(x: Any, w: Any) -> None:
        (x * w * w).sum().backward()

    f = eg.jit(lambda x: loss(x, w))
    for i in range(3):
        f(rand(4, seed=i))
        loss(rand(4, seed=i), v)
        close(w.grad, v.grad, 1e-6)
    w.grad = None
    f(rand(4, seed=7))
    v.grad = None
    loss(rand(4, seed=7), v)
    close(w.grad, v.grad, 1e-6)


def test_a_gradient_that_never_came_may_be_asked_for() -> None:
    w = rand(3).requires_grad_()
    compiled = eg.jit(lambda x: x * 2.0 if w.grad is None else x)
    for seed in range(3):
        x = rand(3, seed=seed)
        close(compiled(x), x * 2.0, 1e-6)


def test_gradients_of_what_was_made_inside_stay_there() -> None:
    def slope(x: Any) -> Any:
        inside = x.detach().requires_grad_()
        (inside * inside * 2.0).sum().backward()
        return inside.grad

    compiled = eg.jit(slope)
    for seed in range(4):
        x = rand(3, seed=seed)
        close(compiled(x), slope(x), 1e-6)
        assert x.grad is None


def test_learning_rates_may_change() -> None:
    p, q = eg.ones((3,), requires_grad=True), eg.ones((3,), requires_grad=True)
    mine, theirs = optim.SGD([p], lr=0.5), optim.SGD([q], lr=0.5)

    def step(p: Any, opt: Any) -> None:
        opt.zero_grad()
        (p * 2.0).sum().backward()
        opt.step()

    fn, runs = counted(lambda: step(p, mine))
    f = eg.jit(fn)
    for lr in (0.5, 0.25, 0.125):
        mine.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = lr
        f()
        step(q, theirs)
        close(p.detach(), q.detach(), 1e-6)
    assert len(runs) == 1


def test_random_numbers_go_on() -> None:
    a, b = eg.Generator(5), eg.Generator(5)

    def draw(g: Any) -> Any:
        return eg.randn((7,), generator=g) + eg.rand((7,), generator=g)

    f = eg.jit(lambda: draw(a))
    for _ in range(3):
        close(f(), draw(b), 1e-6)


def test_dropout_draws_what_eager_draws() -> None:
    x = rand(8, 9)
    eg.manual_seed(1)
    want = [F.dropout(x, 0.3) for _ in range(3)]
    eg.manual_seed(1)
    f = eg.jit(lambda x: F.dropout(x, 0.3))
    for w in want:
        close(f(x), w, 1e-6)


def test_train_and_eval_are_different_calls() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout(0.5), nn.BatchNorm2d(4))
    f = eg.jit(lambda x: model(x))
    x = rand(6, 2, 5, 5)
    f(x)
    model.eval()
    close(f(x), model(x), 1e-5)
    close(f(x), model(x), 1e-5)
    model.train()
    before = values(model[2].running_mean).copy()
    f(x)
    assert not np.allclose(before, values(model[2].running_mean))


# --- transformations -----------------------------------------------------------------------------


def curve(x: Any, w: Any) -> Any:
    return (eg.tanh(x @ w) ** 2).sum()


def test_over_and_under_derivatives() -> None:
    x, w = rand(4, 3), rand(3, 5, seed=1)
    want = eg.grad(curve, (0, 1))(x, w)
    for got in (eg.jit(eg.grad(curve, (0, 1)))(x, w), eg.grad(eg.jit(curve), (0, 1))(x, w)):
        for g, t in zip(got, want, strict=True):
            close(g, t, 1e-5)
    value, slope = eg.jit(lambda x, t: eg.jvp(lambda x: curve(x, w), (x,), (t,)))(x, x)
    v2, s2 = eg.jvp(lambda x: curve(x, w), (x,), (x,))
    close(value, v2, 1e-5)
    close(slope, s2, 1e-5)
    close(eg.jvp(eg.jit(curve), (x, w), (x, w))[1], eg.jvp(curve, (x, w), (x, w))[1], 1e-5)
    close(eg.jit(eg.hessian(lambda x: curve(x, w)))(x), eg.hessian(lambda x: curve(x, w))(x), 1e-4)


def test_over_and_under_vmap() -> None:
    xs, w = rand(6, 4, 3), rand(3, 5, seed=1)
    want = eg.vmap(lambda x: curve(x, w))(xs)
    fn, runs = counted(eg.vmap(lambda x: curve(x, w)))
    compiled = eg.jit(fn)
    for _ in range(3):
        close(compiled(xs), want, 1e-5)
    assert len(runs) == 1
    close(eg.vmap(eg.jit(lambda x: curve(x, w)))(xs), want, 1e-5)
    per_example = eg.jit(eg.vmap(eg.grad(curve), in_axes=(0, None)))
    close(per_example(xs, w), eg.vmap(eg.grad(curve), in_axes=(0, None))(xs, w), 1e-5)


def test_backward_through_a_compiled_function() -> None:
    w = rand(3, 2).requires_grad_()
    v = w.detach().requires_grad_()
    f = eg.jit(lambda x: (eg.tanh(x @ w), x.sum()))
    x = rand(4, 3)
    for _ in range(2):
        out, total = f(x * 2)
        ((out * out).sum() * total).backward()
        y = eg.tanh((x * 2) @ v)
        ((y * y).sum() * (x * 2).sum()).backward()
    close(w.grad, v.grad, 1e-5)
    with eg.no_grad():
        assert not f(x)[0].requires_grad


def test_second_derivatives_are_right_or_refused() -> None:
    x = rand(3)
    f = lambda x: (x**3).sum()  # noqa: E731
    close(eg.jit(eg.grad(lambda x: eg.grad(f)(x).sum()))(x), 6 * x, 1e-5)
    close(eg.grad(lambda x: eg.grad(eg.jit(f))(x).sum())(x), 6 * x, 1e-5)


def test_nested() -> None:
    inner = eg.jit(lambda x: x * 2 + 1)
    close(eg.jit(lambda x: inner(inner(x)))(rand(3)), (rand(3) * 2 + 1) * 2 + 1, 1e-6)


def test_checkpoint_computes_again_and_saves_memory() -> None:
    w = [rand(64, 64, seed=i).requires_grad_() for i in range(6)]

    def loss(x: Any, keep: bool) -> Any:
        for i in range(0, 6, 2):

            def block(x: Any, i: int = i) -> Any:
                return eg.tanh(eg.tanh(x @ w[i]) @ w[i + 1])

            x = block(x) if keep else eg.checkpoint(block, x)
        return (x * x).mean()

    def step(keep: bool) -> Any:
        def run(x: Any) -> Any:
            for p in w:
                p.grad = None
            out = loss(x, keep)
            out.backward()
            return out

        return eg.jit(run)

    x = rand(512, 64)
    plain, checkpointed = step(True), step(False)
    close(plain(x), checkpointed(x), 1e-6)
    grads = [values(p.grad).copy() for p in w]
    plain(x)
    for p, g in zip(w, grads, strict=True):
        close(p.grad, g, 1e-5)
    assert checkpointed.memory().peak < plain.memory().peak


def test_pure_hooks_run_inside() -> None:
    w = rand(3).requires_grad_()
    w.register_hook(lambda g: g * 2)

    @eg.jit
    def f(x: Any) -> None:
        w.grad = None
        y = x * w
        y.register_hook(lambda g: g + 1)
        y.sum().backward()

    x = rand(3, seed=1)
    f(x)
    f(x)
    close(w.grad, x * 2 * 2, 1e-6)


def test_hooks_that_keep_or_read_values_are_refused() -> None:
    w = rand(3).requires_grad_()
    seen: list[Any] = []
    handle = w.register_hook(lambda g: seen.append(g))

    @eg.jit
    def f() -> None:
        w.grad = None
        (w * 2).sum().backward()

    f()  # once is how state is made
    with pytest.raises(TraceError, match=r"test_jit\.py"):
        f()
    handle.remove()
    w.register_hook(lambda g: print(float(g.sum())))
    with pytest.raises(TraceError, match=r"float\(\) at .*test_jit.py"):
        eg.jit(lambda: (w * 3).sum().backward())()

"""The engine's promises: backward, autograd.grad, hooks, modes."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, FreedGraphError, GradientError

pytestmark = pytest.mark.needs("float64")


def leaf(values: Any, device: str = "cpu", dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


# --- backward ------------------------------------------------------------------------------------


def test_backward_gradient(device: str) -> None:
    x = leaf([1.0, 2.0, 3.0], device)
    (x * x).backward(gradient=eg.tensor([1.0, 10.0, 100.0], dtype="float64", device=device))
    np.testing.assert_array_equal(values(x.grad), [2.0, 40.0, 600.0])
    x.grad = None
    (x * x).backward(eg.tensor([0.0, 1.0, 0.0], dtype="float64", device=device))
    np.testing.assert_array_equal(values(x.grad), [0.0, 4.0, 0.0])


def test_backward_accumulates_over_graphs(device: str) -> None:
    x = leaf(3.0, device)
    for k in range(1, 4):
        (x * x).backward()
        assert x.grad.item() == 6.0 * k


def test_backward_inputs(device: str) -> None:
    x, w, b = leaf([1.0, 2.0], device), leaf([3.0, 4.0], device), leaf([5.0, 6.0], device)
    h = x * w
    ((h + b) ** 2).sum().backward(inputs=[w, h])
    assert x.grad is None
    assert b.grad is None
    np.testing.assert_array_equal(values(h.grad), [16.0, 28.0])
    np.testing.assert_array_equal(values(w.grad), [16.0, 56.0])


def test_backward_inputs_named_twice_or_retained_count_once(device: str) -> None:
    x = leaf([3.0], device)
    y = x * 2
    y.retain_grad()
    y.sum().backward(inputs=[y, x, y, x])
    assert y.grad.item() == 1.0
    assert x.grad.item() == 2.0


def test_backward_inputs_leave_the_rest_of_the_graph(device: str) -> None:
    """What the pass did not need is neither computed nor used up."""
    a, b = leaf(2.0, device), leaf(3.0, device)
    other = b * b
    out = a * a + other
    out.backward(inputs=[a])
    assert b.grad is None
    other.backward()
    assert b.grad.item() == 6.0


def test_retain_graph(device: str) -> None:
    x = leaf(3.0, device)
    y = eg.exp(x * x)
    y.backward(retain_graph=True)
    first = x.grad.item()
    y.backward()
    assert x.grad.item() == 2 * first
    with pytest.raises(FreedGraphError, match=r"already used up .* pass retain_graph=True"):
        y.backward()
    assert x.grad.item() == 2 * first


def test_create_graph(device: str) -> None:
    x = leaf(2.0, device)
    (x**4).backward(create_graph=True)
    first = x.grad
    assert first.item() == 32.0
    assert first.requires_grad
    x.grad = None
    first.backward(create_graph=True)
    assert x.grad.item() == 48.0
    third = eg.autograd.grad(x.grad, x)[0]
    assert third.item() == 48.0
    assert not third.requires_grad


def test_without_create_graph_nothing_is_recorded(device: str) -> None:
    x = leaf(2.0, device)
    (x**3).backward()
    assert not x.grad.requires_grad


def test_create_graph_can_drop_the_graph(device: str) -> None:
    x = leaf(2.0, device)
    y = x**3
    (g,) = eg.autograd.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(FreedGraphError):
        y.backward()
    assert g.item() == 12.0


def test_backward_on_root_leaf_and_interior(device: str) -> None:
    x = leaf([1.0], device)
    x.backward()
    assert x.grad.item() == 1.0
    y = x * 3
    y.backward(eg.tensor([2.0], dtype="float64", device=device))
    assert x.grad.item() == 7.0


def test_every_gradient_is_a_tensor_of_its_own(device: str) -> None:
    """a + b hands one array to both: scaling the one name must not scale the other."""
    a, b = leaf([1.0, 2.0], device), leaf([3.0, 4.0], device)
    seed = eg.ones((2,), dtype="float64", device=device)
    (a + b).backward(seed)
    a.grad *= 0.5
    np.testing.assert_array_equal(values(b.grad), [1.0, 1.0])
    np.testing.assert_array_equal(values(seed), [1.0, 1.0])
    ga, gb = eg.autograd.grad(a + b, [a, b], seed)
    ga += 5
    np.testing.assert_array_equal(values(gb), [1.0, 1.0])
    np.testing.assert_array_equal(values(seed), [1.0, 1.0])
    ga, gb = eg.grad(lambda p, q: (p + q).sum(), (0, 1))(a.detach(), b.detach())
    ga += 5
    np.testing.assert_array_equal(values(gb), [1.0, 1.0])


def test_a_dead_leaf_is_skipped(device: str) -> None:
    x, w = leaf([1.0], device), leaf([2.0], device)
    y = (x * w).sum()
    del w
    y.backward()
    assert x.grad.item() == 2.0


# --- autograd.grad -------------------------------------------------------------------------------


def test_grad_several_outputs_and_inputs(device: str) -> None:
    x, y = leaf([1.0, 2.0], device), leaf([3.0, 4.0], device)
    outs = [x * y, (x * x).sum()]
    seeds = [eg.tensor([1.0, 10.0], dtype="float64", device=device), None]
    gx, gy = eg.autograd.grad(outs, [x, y], seeds)
    np.testing.assert_array_equal(values(gx), [3.0 + 2.0, 40.0 + 4.0])
    np.testing.assert_array_equal(values(gy), [1.0, 20.0])
    assert x.grad is None
    assert y.grad is None


def test_grad_of_the_same_output_twice_and_of_one_behind_the_other(device: str) -> None:
    x = leaf(3.0, device)
    y = x * x
    z = y * y
    (g,) = eg.autograd.grad([y, y, z], x)
    assert g.item() == 6.0 + 6.0 + 4 * 27.0


def test_grad_wrt_interior_and_itself(device: str) -> None:
    x = leaf(3.0, device)
    y = x * x
    z = y * y
    gz, gy, gx = eg.autograd.grad(z, [z, y, x])
    assert (gz.item(), gy.item(), gx.item()) == (1.0, 18.0, 108.0)


def test_grad_unused(device: str) -> None:
    x, z = leaf([1.0, 2.0], device), leaf([1.0, 1.0], device)
    y = (x * x).sum()
    with pytest.raises(GradientError, match=r"grad: input 1 \(shape \(2,\)\) was not used"):
        eg.autograd.grad(y, [x, z])
    g, none = eg.autograd.grad(y, [x, z], allow_unused=True)  # and the graph is still there
    assert none is None
    np.testing.assert_array_equal(values(g), [2.0, 4.0])


def test_grad_retain_and_workers(device: str) -> None:
    x = leaf(2.0, device)
    y = x**3
    assert eg.autograd.grad(y, x, retain_graph=True, workers=4)[0].item() == 12.0
    assert eg.autograd.grad(y, x)[0].item() == 12.0
    with pytest.raises(FreedGraphError):
        eg.autograd.grad(y, x)


def test_grad_create_graph_is_right_to_any_order(device: str) -> None:
    x = leaf(0.3, device)
    y = eg.sin(x)
    for k in range(1, 8):
        (y,) = eg.autograd.grad(y, x, create_graph=True)
        want = (np.sin, np.cos, lambda v: -np.sin(v), lambda v: -np.cos(v))[k % 4](0.3)
        assert y.item() == pytest.approx(want, abs=1e-12)


def test_grad_counts_of_arguments(device: str) -> None:
    x = leaf([1.0], device)
    with pytest.raises(ArgumentError, match="2 grad_outputs for 1 outputs"):
        eg.autograd.grad(x * 2, x, [x.detach(), x.detach()])
    with pytest.raises(ArgumentError, match="needs at least one output"):
        eg.autograd.grad([], x)


# --- hooks ---------------------------------------------------------------------------------------


def test_hook_once_on_the_sum(device: str) -> None:
    x = leaf(2.0, device)
    y = x * 3
    z = y * y + y * 5 + eg.exp(y * 0.0)
    seen: dict[str, list[float]] = {"x": [], "y": [], "z": []}
    for name, t in (("x", x), ("y", y), ("z", z)):
        t.register_hook(lambda g, name=name: seen[name].append(g.item()))
    z.backward()
    assert seen == {"x": [51.0], "y": [17.0], "z": [1.0]}


def test_hook_replaces(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    y = x * 2
    y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: g + 1)  # in the order they were registered
    y.sum().backward()
    np.testing.assert_array_equal(values(x.grad), [22.0, 22.0])


def test_hook_on_leaf_changes_what_is_accumulated(device: str) -> None:
    x = leaf(1.0, device)
    x.register_hook(lambda g: g * 100)
    (x * 2).backward()
    (x * 2).backward()
    assert x.grad.item() == 400.0
    assert eg.autograd.grad(x * 2, x)[0].item() == 200.0


def test_hook_that_changes_its_argument_changes_nothing_else(device: str) -> None:
    a, b = leaf([1.0], device), leaf([1.0], device)

    def double(g: Any) -> None:
        g *= 2

    a.register_hook(double)
    (a + b).backward()
    assert b.grad.item() == 1.0
    assert a.grad.item() == 1.0  # what a hook returns counts, not what it does to its argument


def test_hook_removed(device: str) -> None:
    x = leaf(1.0, device)
    calls: list[int] = []
    handle = x.register_hook(lambda g: calls.append(1))
    (x * 2).backward()
    handle.remove()
    handle.remove()
    (x * 2).backward()
    assert calls == [1]
    with x.register_hook(lambda g: calls.append(2)):
        (x * 2).backward()
    (x * 2).backward()
    assert calls == [1, 2]


def test_hook_reentrant(device: str) -> None:
    """Hooks that add hooks, remove themselves, and differentiate."""
    x = leaf(2.0, device)
    calls: list[str] = []
    handles: list[Any] = []

    def late(g: Any) -> None:
        calls.append("late")

    def first(g: Any) -> None:
        calls.append("first")
        handles[0].remove()
        x.register_hook(late)
        w = leaf(5.0, device)
        with eg.enable_grad():  # as in PyTorch: a pass that is not recorded runs hooks unrecorded
            (w * w).backward()
        calls.append(str(w.grad.item()))
        calls.append(str(eg.grad(lambda v: v**3)(leaf(2.0, device)).item()))

    handles.append(x.register_hook(first))
    (x * 3).backward()
    assert calls == ["first", "10.0", "12.0"]
    (x * 3).backward()
    assert calls == ["first", "10.0", "12.0", "late"]
    assert x.grad.item() == 6.0


@pytest.mark.parametrize("workers", [1, 8])
def test_hook_may_run_another_backward_through_its_own_leaf(device: str, workers: int) -> None:
    x = leaf(2.0, device)
    y = x * 3
    once = iter([True])

    def hook(g: Any) -> None:
        if next(once, False):
            with eg.enable_grad():
                (x * 100).backward(workers=workers)

    y.register_hook(hook)
    y.backward(workers=workers)
    assert x.grad.item() == 103.0


def test_hook_wrong_results(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    with (
        x.register_hook(lambda g: 3.0),
        pytest.raises(GradientError, match="returned float; return a Tensor"),
    ):
        x.sum().backward()
    with (
        x.register_hook(lambda g: g.sum()),
        pytest.raises(GradientError, match=r"returned float64\[\], the gradient is float64\[2\]"),
    ):
        x.sum().backward()
    assert x.grad is None
    with pytest.raises(GradientError, match="register_hook: this tensor does not require grad"):
        eg.ones((2,)).register_hook(lambda g: g)


def test_hook_raising_reaches_the_caller(device: str) -> None:
    x = leaf([1.0], device)

    def hook(g: Any) -> None:
        raise KeyError("mine")

    x.register_hook(hook)
    for workers in (1, 4):
        with pytest.raises(KeyError, match="mine"):
            (x * 2).backward(workers=workers)


def test_post_accumulate_hook(device: str) -> None:
    x = leaf(2.0, device)
    seen: list[float] = []
    handle = x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.item()))
    (x * 3 + x * x).backward()
    (x * 3).backward()
    assert seen == [7.0, 10.0]
    handle.remove()
    (x * 3).backward()
    assert len(seen) == 2
    with pytest.raises(GradientError, match="only a leaf accumulates"):
        (x * 2).register_post_accumulate_grad_hook(lambda t: None)


def test_post_accumulate_hook_may_take_a_step(device: str) -> None:
    """Optimiser in backward: the step uses the gradient and throws it away."""
    x = leaf(2.0, device)

    def step(t: Any) -> None:
        with eg.no_grad():
            t -= 0.1 * t.grad
        t.grad = None

    x.register_post_accumulate_grad_hook(step)
    (x * x).backward()
    assert x.grad is None
    assert x.item() == pytest.approx(1.6)
    assert x.requires_grad


@pytest.mark.parametrize("weight_first", [True, False])
def test_leaf_ready_hook_comes_as_soon_as_the_leaf_is_complete(
    device: str, weight_first: bool
) -> None:
    layers = [leaf(np.eye(3) * (i + 1), device) for i in range(4)]
    events: list[str] = []
    h = eg.ones((3, 3), dtype="float64", device=device)
    for i, w in enumerate(layers):
        h = w @ h if weight_first else h @ w
        h.register_hook(lambda g, i=i: events.append(f"h{i}"))
    names = {id(w): f"w{i}" for i, w in enumerate(layers)}
    with eg.leaf_ready_hook(lambda t: events.append(names[id(t)])):
        h.sum().backward()
    assert events == ["h3", "w3", "h2", "w2", "h1", "w1", "h0", "w0"]
    h.sum()  # the block is over: nobody is called
    assert len(events) == 8


def test_retain_grad(device: str) -> None:
    x = leaf(2.0, device)
    y = x * 3
    y.retain_grad()
    (y * y).backward(retain_graph=True)
    assert y.grad.item() == 12.0
    (y * 2).backward()
    assert y.grad.item() == 14.0
    x.retain_grad()  # a leaf keeps its own anyway
    with pytest.raises(GradientError, match="retain_grad: this tensor does not require grad"):
        eg.ones((2,)).retain_grad()


def test_retain_grad_twice_is_once(device: str) -> None:
    x = leaf(2.0, device)
    y = x * 3
    y.retain_grad()
    y.retain_grad()
    y.backward()
    assert y.grad.item() == 1.0


def test_retain_grad_does_not_keep_the_tensor(device: str) -> None:
    x = leaf(2.0, device)
    y = x * 3
    y.retain_grad()
    z = y * 2
    ref = weakref.ref(y)
    del y
    assert ref() is None
    z.backward()
    assert x.grad.item() == 6.0


# --- modes ---------------------------------------------------------------------------------------


def recorded(x: Any) -> bool:
    return (x * 2).requires_grad


def test_modes_nest_and_survive_exceptions(device: str) -> None:
    x = leaf(1.0, device)
    assert eg.is_grad_enabled()
    with eg.no_grad():
        assert not recorded(x)
        with eg.enable_grad():
            assert recorded(x)
            with eg.no_grad(), pytest.raises(ZeroDivisionError), eg.enable_grad():
                _ = 1 / 0
            assert recorded(x)
            with eg.set_grad_enabled(False):
                assert not recorded(x)
        assert not recorded(x)
    assert recorded(x)
    mode = eg.no_grad()
    with mode:
        with mode:
            assert not recorded(x)
        assert not recorded(x)
    assert recorded(x)


def test_modes_decorate(device: str) -> None:
    x = leaf(1.0, device)

    @eg.no_grad()
    def off(depth: int = 0) -> bool:
        return recorded(x) if depth == 0 else off(depth - 1)

    @eg.set_grad_enabled(False)
    def also_off() -> bool:
        return recorded(x)

    @eg.enable_grad()
    def on() -> bool:
        return recorded(x)

    assert not off()
    assert not off(3)
    assert not also_off()
    with eg.no_grad():
        assert on()
    assert off.__name__ == "off"
    assert recorded(x)


def test_modes_belong_to_their_thread(device: str) -> None:
    x = leaf(1.0, device)
    seen: list[bool] = []
    with eg.no_grad():
        thread = threading.Thread(target=lambda: seen.append(recorded(x)))
        thread.start()
        thread.join()
        assert not recorded(x)
    assert seen == [True]


def test_inference_mode(device: str) -> None:
    x = leaf(1.0, device)
    with eg.inference_mode():
        assert not recorded(x)
        with eg.enable_grad():
            assert not recorded(x)
        with eg.set_grad_enabled(True):
            assert not recorded(x)
        with pytest.raises(GradientError, match="inside inference_mode"):
            eg.tensor(1.0, requires_grad=True)
        for call in (eg.grad(lambda v: v * v), eg.jacobian(lambda v: v * v)):
            with pytest.raises(GradientError, match="inside inference_mode"):
                call(x.detach())
    assert recorded(x)


def test_inference_mode_refuses_requires_grad(device: str) -> None:
    x = eg.ones((2,), device=device)
    with eg.inference_mode(), pytest.raises(GradientError):
        x.requires_grad_()


def test_backward_inside_no_grad(device: str) -> None:
    x = leaf(3.0, device)
    y = x * x
    with eg.no_grad():
        y.backward(create_graph=True)
        assert not recorded(x)
    assert x.grad.requires_grad


def test_assignment_under_no_grad_keeps_the_leaf(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    y = (x * x).sum()
    with eg.no_grad():
        x -= 1.0
        x[0] = 7.0
    assert x.is_leaf
    assert x.requires_grad
    y.backward()
    np.testing.assert_array_equal(values(x.grad), [2.0, 4.0])  # what was there when y was made
    np.testing.assert_array_equal(values(x), [7.0, 1.0])


def test_only_what_leads_to_a_target_is_used_up() -> None:
    x, z, other = (eg.tensor([v], requires_grad=True) for v in (1.0, 2.0, 3.0))
    y = eg.sin(x) * eg.cos(z)
    assert eg.autograd.grad(y, [other], allow_unused=True) == (None,)
    (gz,) = eg.autograd.grad(y, [z])  # cos(z) and the product are used up now, sin(x) is not
    assert np.allclose(gz.numpy(), -np.sin(1.0) * np.sin(2.0))
    with pytest.raises(FreedGraphError):
        eg.autograd.grad(y, [x])


@pytest.mark.parametrize("every_leaf", [True, False])
def test_targets_inside_the_graph_and_at_its_ends(every_leaf: bool) -> None:
    x, z = (eg.tensor([v], requires_grad=True) for v in (3.0, 5.0))
    h = x * x
    wanted = [h, x, z] if every_leaf else [h, x]
    found = eg.autograd.grad((h * z).sum(), wanted)
    assert [g.item() for g in found] == [5.0, 30.0, 9.0][: len(wanted)]


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_sum_spreads_its_gradient_along_its_axes(axis: Any, keepdims: bool) -> None:
    x = eg.tensor(np.arange(8.0).reshape(2, 2, 2), requires_grad=True)
    weight = np.arange(1.0, 9.0).reshape(2, 2, 2).sum(axis=axis, keepdims=keepdims)
    (x.sum(axis=axis, keepdims=keepdims) * eg.tensor(weight)).sum().backward()
    kept = np.arange(1.0, 9.0).reshape(2, 2, 2).sum(axis=axis, keepdims=True)
    assert np.array_equal(x.grad.numpy(), np.broadcast_to(kept, (2, 2, 2)))

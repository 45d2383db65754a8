"""Checkpointing: the same results and gradients as without, for less memory."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad.autograd.checkpoint import _Frame
from everygrad.errors import ArgumentError, FreedGraphError


def leaf(values: Any, device: str = "cpu") -> Any:
    return eg.tensor(values, dtype="float64", device=device, requires_grad=True)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


def plain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return f(*args, **kwargs)


def both(run: Callable[[Callable[..., Any]], list[Any]]) -> None:
    """`run` gives the same bits with a checkpoint and without, and the same numbers afterwards."""
    found = []
    for way in (eg.checkpoint, plain):
        eg.manual_seed(42)
        results = [values(r).tobytes() for r in run(way)]
        found.append([*results, eg.rand((3,)).tolist()])
    assert found[0] == found[1]


def block(v: Any) -> Any:
    return eg.tanh(eg.exp(v * 0.5) - eg.sin(v) * v)


# --- results -------------------------------------------------------------------------------------


def test_computes_again_once_and_runs_once(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    again: list[int] = []
    recompute = _Frame.recompute

    def f(v: Any) -> Any:
        runs.append(1)
        return block(v).sum()

    def counted(self: Any) -> None:
        again.append(1)
        recompute(self)

    monkeypatch.setattr(_Frame, "recompute", counted)
    x = leaf([0.1, 0.2], device)
    out = eg.checkpoint(f, x)
    assert not again
    out.backward(retain_graph=True)
    assert len(again) == 1
    out.backward()  # what the first pass computed again is still there
    assert len(again) == 1
    with pytest.raises(FreedGraphError):
        out.backward()
    eg.checkpoint(f, x)
    assert len(again) == 1  # never differentiated, never computed again
    with eg.no_grad():
        assert not eg.checkpoint(f, x).requires_grad
    assert len(runs) == 3


def test_several_arguments_keywords_and_results(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x, y = leaf(np.linspace(0, 1, 5), device), leaf(np.linspace(1, 2, 5), device)

        def f(a: Any, scale: float, *, b: Any, name: str) -> Any:
            assert name == "mine"
            return {"p": block(a * b) * scale, "q": [a * a, b.sum()]}, 7

        out, number = way(f, x, 3.0, b=y, name="mine")
        assert number == 7
        (out["p"].sum() + (out["q"][0] * out["q"][1]).sum()).backward()
        return [out["p"], x.grad, y.grad]

    both(run)


def test_only_one_of_several_results_is_used(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x = leaf([0.5, 0.7], device)
        first, _, _ = way(lambda v: (block(v), eg.exp(v), v.sum()), x)
        first.sum().backward()
        return [x.grad]

    both(run)


def test_captured_and_repeated_inputs(device: str) -> None:
    def run(way: Any) -> list[Any]:
        w, x = leaf([2.0, 3.0], device), leaf([0.5, 0.7], device)
        h = x * 2
        out = way(lambda a, b: block(a * w) * eg.exp(b * h), x, x)
        (out.sum() + (h * w).sum()).backward()
        return [out, w.grad, x.grad]

    both(run)


def test_inputs_that_need_no_gradient(device: str) -> None:
    def run(way: Any) -> list[Any]:
        w, data = leaf([2.0, 3.0], device), eg.tensor([1.0, 2.0], dtype="float64", device=device)
        way(lambda v: block(v * w), data).sum().backward()
        assert not way(block, data).requires_grad
        return [w.grad]

    both(run)


def test_nested(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x = leaf(np.linspace(0, 1, 20), device)

        def inner(v: Any) -> Any:
            return eg.dropout(block(v), 0.4)

        def middle(v: Any) -> Any:
            return way(inner, way(inner, v) * v) + eg.dropout(v, 0.2)

        out = way(lambda v: way(middle, block(v)) * way(inner, v), x)
        out.sum().backward()
        return [out, x.grad]

    both(run)


def test_second_and_third_order(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x, w = leaf([0.3, 0.4], device), leaf([1.5, 0.5], device)
        out = way(lambda v: block(v * w) * way(block, v), x).sum()
        (g,) = eg.autograd.grad(out, x, create_graph=True)
        (h,) = eg.autograd.grad((g * g).sum(), x, create_graph=True)
        h.sum().backward()
        return [g, h, x.grad, w.grad]

    both(run)


def test_function_that_differentiates_inside(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x = leaf([0.3, 0.4], device)

        def f(v: Any) -> Any:
            inner = eg.grad(lambda u: (block(u) * u).sum())(v)
            return inner * eg.dropout(v, 0.5)

        out = way(f, x)
        out.sum().backward()
        return [out, x.grad]

    both(run)


def test_hooks_and_retained_gradients_inside(device: str) -> None:
    for way in (eg.checkpoint, plain):
        x = leaf([0.5, 0.7], device)
        seen: list[Any] = []

        def f(v: Any, seen: list[Any] = seen) -> Any:
            h = eg.exp(v)
            h.register_hook(lambda g: seen.append(g.tolist()))
            return h * 3

        way(f, x).sum().backward()
        assert seen == [[3.0, 3.0]]


def test_assignment_inside(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x = leaf([0.5, 0.7, 0.1], device)

        def f(v: Any) -> Any:
            h = v * 2
            h[0] = 1.0
            h += eg.exp(v)
            h[1:] = h[:2] * v[1:]
            return h

        out = way(f, x)
        out.sum().backward()
        return [out, x.grad]

    both(run)


# --- random numbers ------------------------------------------------------------------------------


def test_dropout_with_default_and_own_generators(device: str) -> None:
    states = []

    def run(way: Any) -> list[Any]:
        mine = eg.Generator(5)
        x = leaf(np.ones(40), device)

        def f(v: Any) -> Any:
            v = eg.dropout(v * v, 0.5)
            v = eg.dropout(eg.exp(v), 0.5, generator=mine)
            return eg.sin(v * eg.rand(v.shape, dtype="float64", device=device)) * v

        out = way(f, x)
        between = eg.rand((2,))  # drawn between forward and backward: must not be disturbed
        out.sum().backward()
        states.append(mine.get_state().tolist())
        return [out, between, x.grad]

    both(run)
    assert states[0] == states[1]


def test_own_generator_used_in_an_inner_checkpoint_only(device: str) -> None:
    def run(way: Any) -> list[Any]:
        mine = eg.Generator(5)
        x = leaf(np.ones(40), device)
        out = way(lambda v: eg.exp(way(lambda u: eg.dropout(u, generator=mine) * u, v)), x)
        out.sum().backward()
        return [out, x.grad, eg.rand((3,), generator=mine)]

    both(run)


def test_seeding_inside(device: str) -> None:
    def run(way: Any) -> list[Any]:
        x = leaf(np.ones(40), device)

        def f(v: Any) -> Any:
            v = eg.dropout(v * v)
            eg.manual_seed(9)
            fresh = eg.Generator(3)
            return eg.exp(eg.dropout(v) * eg.dropout(v, generator=fresh))

        out = way(f, x)
        after = eg.rand((2,))
        out.sum().backward()
        return [out, after, x.grad]

    both(run)


# --- what changes between forward and backward ---------------------------------------------------


def test_changed_tensors_are_read_as_they_were(device: str) -> None:
    def run(way: Any) -> list[Any]:
        w, buffer = leaf([2.0], device), eg.tensor([3.0], dtype="float64", device=device)
        x = leaf([1.0], device)
        h = x * 2
        outs = [way(lambda v, c=c: eg.exp(v * c) * c, x) for c in (w, buffer, h)]
        for c in (w, buffer, h):
            with eg.no_grad():
                c += 1.0
        (outs[0] + outs[1] + outs[2]).backward()
        return [x.grad, w.grad]

    both(run)


def test_a_rebound_argument_keeps_its_value(device: str) -> None:
    """The checkpoint has the value it was given; the name may go on."""
    data, x = eg.tensor([3.0], dtype="float64", device=device), leaf([0.5], device)
    out = eg.checkpoint(lambda v, d: eg.exp(v * d), x, data)
    data += 100.0
    out.backward()
    assert x.grad.item() == pytest.approx(3 * np.exp(1.5))


SCALE: Any = 2.0


class _Settings:
    factor: Any = 2.0


def _surroundings(device: str) -> tuple[Callable[[Any], Any], Callable[[], None]]:
    """A function that reads everything a function can read, and one that changes all of it."""
    global SCALE
    SCALE = 2.0
    number: Any = 3.0
    tensor = eg.tensor([1.5, 2.5], dtype="float64", device=device)
    held: dict[str, Any] = {"w": eg.tensor([0.5, 0.25], dtype="float64", device=device), "n": 2}
    parts: list[Any] = [eg.sin, 1]
    settings = _Settings()
    settings.factor = eg.tensor(0.7, dtype="float64", device=device)
    layer = nn.Linear(2, 2, dtype=eg.float64).to(device)
    index = np.array([1, 0])

    def inner(v: Any) -> Any:
        return v * number

    def f(v: Any) -> Any:
        v = inner(v) * SCALE * tensor + held["w"] * v
        for fn in parts[: held["n"]]:
            v = fn(v) if callable(fn) else v ** (fn + 1)
        v = layer(v)[eg.tensor(index.tolist(), device=device)] * settings.factor
        return [eg.tanh(u) for u in (v, v * held["w"])][parts[1]] * v.sum(axis=-parts[1])

    def change() -> None:
        nonlocal number, tensor, inner
        global SCALE
        SCALE, number, tensor = 5.0, 7.0, tensor * 3
        held["w"] = held["w"] * 11
        held["n"] = 1
        parts[:] = [eg.cos, 0]
        settings.factor = 13.0
        index[:] = 0
        with eg.no_grad():
            layer.weight += 1.0
        layer.bias = None
        inner = eg.exp

    return f, change


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_surroundings_may_change(device: str, jitted: bool, depth: int) -> None:
    """Names, globals, attributes, items, modules, numbers: the gradient is the plain one's."""

    def run(way: Any) -> list[Any]:
        eg.manual_seed(1)
        f, change = _surroundings(device)
        x = leaf([0.3, 0.4], device)

        def deep(v: Any, left: int) -> Any:
            return way(lambda u: deep(u, left - 1), v) * 2 if left else f(v)

        if jitted:
            step = eg.jit(lambda v: deep(v, depth))
            out = step(x)
        else:
            out = deep(x, depth)
        change()
        out.sum().backward(retain_graph=True)
        first = x.grad
        x.grad = None
        change()
        out.sum().backward()
        return [out, first, x.grad]

    for way in (eg.checkpoint, plain):
        found = [values(r) for r in run(way)]
        if way is eg.checkpoint:
            kept = found
    for a, b in zip(kept, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_array_equal(kept[1], kept[2])


def test_branches_that_would_go_another_way(device: str) -> None:
    calls: list[int] = []

    def shorter(v: Any) -> Any:
        calls.append(1)
        return eg.exp(v) if len(calls) > 1 else eg.exp(eg.exp(v))

    def different(v: Any) -> Any:
        calls.append(1)
        return (eg.exp if len(calls) > 1 else eg.sin)(v)

    def other_shape(v: Any) -> Any:
        calls.append(1)
        return v[: len(calls)].sum() * v

    for f in (shorter, different, other_shape):

        def run(way: Any, f: Any = f) -> list[Any]:
            calls.clear()
            x = leaf([0.1, 0.2], device)
            way(f, x).sum().backward()
            return [x.grad]

        both(run)


@pytest.mark.parametrize("way", ["eager", "jitted", "nested"])
@pytest.mark.parametrize("layer", ["BatchNorm1d", "InstanceNorm1d", "both"])
def test_statistics_count_once(way: str, layer: str) -> None:
    def make() -> Any:
        eg.manual_seed(0)
        layers = {
            "BatchNorm1d": [nn.BatchNorm1d(3)],
            "InstanceNorm1d": [nn.InstanceNorm1d(3, track_running_stats=True)],
            "both": [nn.BatchNorm1d(3, momentum=None), nn.Dropout(0.5), nn.BatchNorm1d(3)],
        }[layer]
        return nn.Sequential(*layers)

    def results(run: Any) -> list[Any]:
        model = make()
        x = eg.tensor(np.linspace(0, 1, 24).reshape(2, 3, 4) ** 2, requires_grad=True)

        def step(v: Any) -> Any:
            out = run(model, v)
            return (out * out * v).sum()

        if way == "jitted":
            step = eg.jit(step)
        elif way == "nested":
            inner = step

            def step(v: Any) -> Any:
                return run(lambda u: run(inner, u * 1.0) * 2, v)

        for _ in range(2):
            loss = step(x)
            loss.backward(retain_graph=True)
            loss.backward()
        state = [v.numpy() for v in model.state_dict().values()]
        return [values(x.grad), *state, eg.default_generator.get_state()]

    for got, want in zip(results(eg.checkpoint), results(plain), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_users_own_functions_run_once(device: str) -> None:
    runs: list[int] = []

    class Mine(eg.Function):
        @staticmethod
        def forward(x: Any, y: Any, times: Any) -> Any:
            runs.append(1)
            return eg.exp(x) * y * times[0], x - y

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, y: Any, times: Any) -> Any:
            return g[0] * out[0] + g[1], g[0] * eg.exp(x) * 2.0 - g[1]

    def run(way: Any) -> list[Any]:
        x, y, times = leaf([0.1, 0.2], device), leaf([0.3, 0.4], device), [2.0]

        def f(a: Any, b: Any) -> Any:
            p, q = Mine.apply(eg.sin(a), b, times=times)
            return eg.tanh(p * q) * p

        out = way(f, x, y)
        times[0] = 50.0
        out.sum().backward()
        return [out, x.grad, y.grad]

    both(run)
    assert len(runs) == 2


def test_exceptions_in_forward(device: str) -> None:
    fail: list[bool] = [True]

    def f(v: Any) -> Any:
        h = eg.dropout(eg.exp(v))
        if fail[0]:
            raise KeyError("mine")
        return h * v

    x = leaf([0.1, 0.2], device)
    with pytest.raises(KeyError, match="mine"):
        eg.checkpoint(f, x)
    assert eg.is_grad_enabled()
    fail[0] = False
    out = eg.checkpoint(f, x)
    fail[0] = True
    state = eg.default_generator.get_state().tolist()
    out.sum().backward()  # the function does not run again
    assert eg.default_generator.get_state().tolist() == state
    y = leaf([0.1, 0.2], device)  # nothing of it is left
    eg.exp(y).sum().backward()
    assert values(y.grad).tolist() == np.exp([0.1, 0.2]).tolist()


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="checkpoint: takes a function, got int"):
        eg.checkpoint(3, eg.ones((2,)))
    for segments in (0, -2, 1.0, True):
        with pytest.raises(ArgumentError, match="segments must be a positive integer"):
            eg.checkpoint_sequential([eg.exp], segments, eg.ones((2,)))
    x = eg.ones((2,))
    assert eg.checkpoint_sequential([], 3, x) is x


# --- with other transformations ------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 16])
def test_parallel_backward(device: str, workers: int) -> None:
    found = []
    for way, count in ((plain, 1), (eg.checkpoint, 1), (eg.checkpoint, workers)):
        eg.manual_seed(1)
        x = leaf(np.linspace(0, 1, 100), device)
        parts = [way(lambda v, k=k: eg.dropout(block(v * float(k))), x).sum() for k in range(1, 9)]
        sum(parts[1:], parts[0]).backward(workers=count)
        found.append(values(x.grad).tobytes())
    assert len(set(found)) == 1


TRANSFORMS: dict[str, Callable[[Callable[..., Any], Any], Any]] = {
    "grad": lambda f, x: eg.grad(lambda v: f(v).sum())(x[0]),
    "grad of grad": lambda f, x: eg.grad(lambda v: eg.grad(lambda u: f(u).sum())(v).sum())(x[0]),
    "vmap": lambda f, x: eg.vmap(f, randomness="different")(x),
    "vmap of grad": lambda f, x: eg.vmap(eg.grad(lambda v: f(v).sum()), randomness="same")(x),
    "grad of vmap": lambda f, x: eg.grad(lambda v: eg.vmap(f, randomness="different")(v).sum())(x),
    "jvp": lambda f, x: eg.jvp(f, (x,), (x * 2,))[1],
    "jvp of grad": lambda f, x: eg.jvp(eg.grad(lambda v: f(v).sum()), (x,), (x * 2,))[1],
    "grad of jvp": lambda f, x: eg.grad(lambda v: eg.jvp(f, (v,), (x,))[1].sum())(x),
    "jacobian": lambda f, x: eg.jacobian(f)(x[0]),
    "hessian": lambda f, x: eg.hessian(lambda v: f(v).sum())(x[0]),
    "hvp": lambda f, x: eg.hvp(lambda v: f(v).sum(), (x,), (x * 3,))[1][0],
    "vjp": lambda f, x: eg.vjp(f, x)[1](x * 3)[0],
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("random", [False, True])
def test_under_transformations(device: str, name: str, random: bool) -> None:
    x = eg.tensor(np.linspace(0.1, 1, 12).reshape(3, 4), device=device)

    def run(way: Any) -> list[Any]:
        w = leaf(np.linspace(1, 2, 4), device)

        def f(v: Any) -> Any:
            def inside(u: Any) -> Any:
                u = u * w
                return eg.exp(eg.dropout(u, 0.5) if random else u) * block(u)

            return way(inside, v)

        if random and name in ("jacobian", "hessian"):  # they map over what draws
            return []
        out = TRANSFORMS[name](f, x)
        (g,) = eg.autograd.grad(out.sum(), w)  # and through it all to the captured tensor
        return [out, g]

    found = []
    for way in (eg.checkpoint, plain):
        eg.manual_seed(2)
        found.append([values(r) for r in run(way)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


# --- memory --------------------------------------------------------------------------------------


def peak(run: Callable[[], Any]) -> int:
    run()
    gc.collect()
    tracemalloc.start(1)
    try:
        base = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()


def test_peak_memory_is_lower() -> None:
    """36 layers: all values at once, or those of one segment of six and the six borders."""
    size = 20_000
    layers = [lambda v: eg.tanh(v * 0.9)] * 36
    x = leaf(np.full(size, 0.5))

    def backward(segments: int) -> None:
        out = x
        if segments:
            out = eg.checkpoint_sequential(layers, segments, x)
        else:
            for layer in layers:
                out = layer(out)
        out.sum().backward()
        x.grad = None

    everything, some = peak(lambda: backward(0)), peak(lambda: backward(6))
    assert everything > 34 * size * 8
    assert some < everything * 0.6


def test_forward_keeps_inputs_only() -> None:
    size = 20_000
    x = leaf(np.full(size, 0.5))

    def deep(v: Any) -> Any:
        for _ in range(30):
            v = eg.tanh(v)
        return v.sum()

    gc.collect()
    tracemalloc.start(1)
    try:
        base = tracemalloc.get_traced_memory()[0]
        out = eg.checkpoint(deep, x)
        assert tracemalloc.get_traced_memory()[0] - base < 2 * size * 8
        out.backward()
        x.grad = None
        del out
        assert tracemalloc.get_traced_memory()[0] - base < size * 8
    finally:
        tracemalloc.stop()


def test_masks_and_constants_are_computed_again_too() -> None:
    """What no derivative is asked of, drawn numbers and filled tensors, is not kept either."""
    size = 20_000
    x = leaf(np.full(size, 0.5))

    def deep(v: Any) -> Any:
        for _ in range(10):
            v = eg.dropout(v, 0.5) * (eg.ones((size,), dtype="float64") * 1.5)
        return v.sum()

    gc.collect()
    tracemalloc.start(1)
    try:
        base = tracemalloc.get_traced_memory()[0]
        out = eg.checkpoint(deep, x)
        assert tracemalloc.get_traced_memory()[0] - base < 2 * size * 8
        out.backward()
    finally:
        tracemalloc.stop()
    x.grad = None


def test_no_cycles(device: str) -> None:
    """Graphs go when the last name for them does, not when the collector comes."""
    x = leaf([0.1, 0.2], device)

    class Twice(eg.Function):
        @staticmethod
        def forward(v: Any) -> Any:
            return v * 2

        @staticmethod
        def vjp(g: Any, out: Any, v: Any) -> Any:
            return g * 2

    def garbage(way: Any) -> int:
        def f(v: Any) -> Any:
            h = way(block, eg.dropout(v)) * Twice.apply(v)
            h[0] = 1.0
            return h + eg.grad(lambda u: eg.exp(u * h).sum())(v)

        way(f, x).sum().backward()
        gc.collect()
        gc.disable()
        try:
            way(f, x).sum().backward()
            return gc.collect()
        finally:
            gc.enable()

    assert garbage(eg.checkpoint) == garbage(plain)
    out = eg.checkpoint(lambda v: eg.exp(v) * v, x)
    node = weakref.ref(out._node)
    del out
    assert node() is None

"""Checkpoints whose surroundings change: the gradient is the plain one's, and state counts once.

A checkpoint keeps what its function read, and computes from that: names, tensors and settings may
stand for something else by the time of the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from tests.engine.test_checkpoint import both, leaf, plain, values

pytestmark = pytest.mark.needs("float64")


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

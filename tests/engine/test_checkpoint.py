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
from everygrad.autograd.transforms.checkpoint import _Frame
from everygrad.errors import ArgumentError, FreedGraphError

pytestmark = pytest.mark.needs("float64")


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


# --- refusals ------------------------------------------------------------------------------------


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

"""Placed tensors in compiled functions: the graph is that of the parts on this rank, collectives of
`reshard` are ops in it, and from the second call on it is replayed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad.distributed import Partial, Replicate, Shard
from everygrad.errors import PlacementError, TraceError
from everygrad.ops.random.generators import Generator

RNG = np.random.default_rng(5)
X, W, V = (RNG.standard_normal(shape) for shape in ((7, 6), (6, 5), (5, 3)))
KINDS = (Shard(0), Shard(1), Replicate(), Partial())


@pytest.mark.parametrize("shape", [(4, 6), (5, 3), (1, 2)])
def test_every_reshard_compiles(shape: tuple[int, int]) -> None:
    x, g = RNG.standard_normal(shape), RNG.standard_normal(shape)

    def run() -> list[str]:
        mesh = dist.Mesh({"d": 2})
        wrong = []
        for old, new in product(KINDS, KINDS):

            def move(t: Any, new: Any = new) -> Any:
                return dist.reshard(t * 2.0, mesh, "d", new)

            step, entries = eg.jit(move), []
            for k in range(3):
                t = dist.place(eg.tensor(x + k), mesh, {"d": old}).requires_grad_()
                moved = step(t)
                entries.append(step.latest)
                want = dist.reshard(t * 2.0, mesh, "d", new)
                held = dist.placements_of(moved) == {"d": new} and moved.shape == shape
                same = dist.local_value(moved).tolist() == dist.local_value(want).tolist()
                moved.backward(dist.place(eg.tensor(g), mesh, {"d": Replicate()}))
                grad = np.allclose(dist.full_value(t.grad).numpy(), 2 * g, rtol=1e-15)
                wrong += [] if held and same and grad else [f"{old} to {new}, call {k}"]
            replayed = entries[0] is not None and len({id(e) for e in entries}) == 1
            wrong += [] if replayed else [f"{old} to {new}: not replayed"]
        return wrong

    assert dist.run_local(run, 2) == [[], []]


def training(compiled: bool, steps: int) -> Callable[[], Any]:
    """A network of two layers over both axes of a mesh, trained by AdamW."""

    def run() -> Any:
        mesh = dist.Mesh({"data": 2, "model": 2})
        a = dist.place(eg.tensor(W), mesh, {"model": Shard(1)}).requires_grad_()
        b = dist.place(eg.tensor(V), mesh, {"model": Shard(0)}).requires_grad_()
        opt = eg.optim.AdamW([a, b], lr=0.01)
        entries = []

        def step(x: Any) -> Any:
            opt.zero_grad()
            y = dist.reshard(eg.tanh(x @ a) @ b, mesh, "model", Replicate())
            loss = dist.reshard((y * y).sum(), mesh, "data", Replicate())
            loss.backward()
            for p in (a, b):
                p.grad = dist.reshard(p.grad, mesh, "data", Replicate())
            opt.step()
            return loss

        made = eg.jit(step) if compiled else step
        losses = []
        for k in range(steps):
            x = dist.place(eg.tensor(X + k), mesh, {"data": Shard(0)})
            losses.append(dist.full_value(made(x)).item())
            entries.append(getattr(made, "latest", None))
        held = [dist.placements_of(t) for t in (a, a.grad, *opt.state[a].values()) if t.ndim]
        return losses, [dist.full_value(t).numpy() for t in (a, b)], entries, held

    return run


def test_a_training_step_of_placed_parameters_is_replayed() -> None:
    a, b = eg.tensor(W, requires_grad=True), eg.tensor(V, requires_grad=True)
    opt = eg.optim.AdamW([a, b], lr=0.01)
    want = []
    for k in range(6):
        opt.zero_grad()
        loss = ((eg.tanh(eg.tensor(X + k) @ a) @ b) ** 2).sum()
        loss.backward()
        opt.step()
        want.append(loss.item())
    for losses, values, entries, held in dist.run_local(training(True, 6), 4):
        np.testing.assert_allclose(losses, want, rtol=1e-13)
        for got, whole in zip(values, (a, b), strict=True):
            np.testing.assert_allclose(got, whole.detach().numpy(), rtol=1e-12)
        assert entries[1] is not None
        assert all(e is entries[1] for e in entries[2:])  # the first made the optimiser's state
        assert held == [{"data": Replicate(), "model": Shard(1)}] * 4  # of the state too


def test_the_graph_has_the_collectives_and_the_parts() -> None:
    def run() -> Any:
        mesh = dist.Mesh({"d": 2})
        x = dist.place(eg.tensor(X), mesh, {"d": Shard(1)})
        w = dist.place(eg.tensor(W), mesh, {"d": Shard(0)})
        f = eg.jit(lambda x: dist.reshard(x @ w, mesh, "d", Replicate()))
        return str(f.lower(x).graph)

    for text in dist.run_local(run, 2):
        assert "float64[7, 3]" in text  # this rank's columns
        assert text.count("all_reduce") == 1


def test_what_is_read_and_placed_inside() -> None:
    """Plain arguments become placed and placed ones plain, in one compiled function."""

    def run() -> Any:
        mesh = dist.Mesh({"d": 2})
        w = dist.place(eg.tensor(W), mesh, {"d": Shard(1)})

        def f(x: Any) -> Any:
            assert dist.placements_of(w) == {"d": Shard(1)}
            mine = dist.local_value(w) * 2.0
            y = dist.place(x, mesh, {"d": Shard(0)})
            z = dist.from_local(mine, mesh, {"d": Shard(1)}, W.shape)
            return mine, dist.full_value(y * 3.0), z, dist.full_value(z)

        compiled = eg.jit(f)
        for k in range(3):
            w.rebind(dist.place(eg.tensor(W + k), mesh, {"d": Shard(1)})._data, None)
            mine, y, z, whole = compiled(eg.tensor(X + k))
            assert mine.tolist() == (2.0 * dist.local_value(w)).tolist()
            assert y.tolist() == (3.0 * (X + k)).tolist()
            assert dist.placements_of(z) == {"d": Shard(1)}
            assert whole.tolist() == (2.0 * (W + k)).tolist()
        return compiled.count

    assert dist.run_local(run, 2) == [1, 1]


def test_other_placements_are_another_kind_of_call() -> None:
    def run() -> Any:
        mesh = dist.Mesh({"d": 2})
        w = dist.place(eg.tensor(X), mesh, {"d": Shard(0)})
        f = eg.jit(lambda x: x * w)
        for kind in (Shard(0), Shard(0), Replicate()):
            out = f(dist.place(eg.tensor(X), mesh, {"d": kind}))
            np.testing.assert_array_equal(dist.full_value(out).numpy(), X * X)
        before = f.count
        w.rebind(dist.place(eg.tensor(X), mesh, {"d": Shard(1)})._data, None)
        out = f(dist.place(eg.tensor(X), mesh, {"d": Replicate()}))
        assert dist.placements_of(out) == {"d": Shard(1)}
        w.rebind(eg.tensor(X)._data, None)
        plain = f(eg.tensor(X))
        assert dist.placements_of(plain) == {}
        return before, f.count

    assert dist.run_local(run, 2) == [(2, 4)] * 2


def test_derivatives_of_compiled_functions_of_placed_tensors() -> None:
    def run() -> Any:
        mesh = dist.Mesh({"d": 2})
        w = dist.place(eg.tensor(W), mesh, {"d": Shard(1)}).requires_grad_()

        def f(x: Any) -> Any:
            return eg.tanh(x @ w)

        compiled = eg.jit(f)
        found = []
        for fn in (f, compiled, compiled):
            w.grad = None
            x = dist.place(eg.tensor(X), mesh, {}).requires_grad_()
            out = fn(x)
            out.backward(dist.place(eg.ones(out.shape, "float64"), mesh, {"d": Replicate()}))
            found.append([dist.full_value(t).numpy() for t in (out, x.grad, w.grad)])
            held = [dist.placements_of(t) for t in (out, x.grad, w.grad)]
            assert held == [{"d": Shard(1)}, {"d": Partial()}, {"d": Shard(1)}]
        for got in found[1:]:
            for a, b in zip(got, found[0], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)
        out = compiled(x)
        with pytest.raises(PlacementError, match=r"reshard\(g, mesh, 'd', Shard\(1\)\) first"):
            out.backward(dist.place(eg.ones(out.shape, "float64"), mesh, {"d": Shard(0)}))
        return True

    assert dist.run_local(run, 2) == [True, True]


def test_dropout_is_that_of_the_whole() -> None:
    want = [
        eg.nn.functional.dropout(eg.tensor(X), 0.5, generator=generator).numpy()
        for generator in (Generator(1),)
        for _ in range(3)
    ]

    def run() -> Any:
        mesh = dist.Mesh({"d": 2})
        generator = Generator(1)
        f = eg.jit(lambda x: eg.nn.functional.dropout(x, 0.5, generator=generator))
        t = dist.place(eg.tensor(X), mesh, {"d": Shard(0)})
        return [dist.full_value(f(t)).numpy() for _ in range(3)]

    for got in dist.run_local(run, 2):
        np.testing.assert_array_equal(got, want)


def test_what_is_refused_is_named_and_changes_nothing() -> None:
    def run() -> bool:
        mesh = dist.Mesh({"d": 2})
        x = dist.place(eg.tensor(X), mesh, {"d": Shard(0)})
        before = dist.local_value(x).tolist()

        def scattered(y: Any) -> Any:
            x.rebind((dist.reshard(x, mesh, "d", Replicate()) + 1.0)._data, None)
            return y

        with pytest.raises(TraceError, match="given a value of other placements"):
            eg.jit(scattered)(eg.ones((2,)))
        with pytest.raises(PlacementError, match=r"reshard\(x, mesh, 'd', Shard\(1\)\) first"):
            eg.jit(lambda t: eg.softmax(t, axis=0))(x)
        with pytest.raises(PlacementError, match=r"exp: .* Partial"):
            eg.jit(eg.exp)(dist.place(eg.tensor(X), mesh, {"d": Partial()}))
        with pytest.raises((TraceError, PlacementError), match=r"value|spread over a mesh"):
            eg.jit(lambda t: eg.tensor(t.sum().item()))(x)
        return dist.local_value(x).tolist() == before

    assert dist.run_local(run, 2) == [True, True]

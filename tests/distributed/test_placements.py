"""Placed tensors: made, resharded, computed with on real meshes of ranks; and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad.distributed import Partial, Replicate, Shard
from everygrad.errors import PlacementError, ShapeError
from everygrad.ops.random.generators import Generator, sharded_draws

RNG = np.random.default_rng(11)
KINDS = (Shard(0), Shard(1), Replicate(), Partial())


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(4, 6), (5, 3), (1, 2), (0, 3)])
def test_resharding_keeps_the_value_and_brings_gradients_back(
    shape: tuple[int, int], ranks: int
) -> None:
    x, g = RNG.standard_normal(shape), RNG.standard_normal(shape)

    def run() -> list[str]:
        mesh = dist.Mesh({"d": ranks})
        wrong = []
        for old, new in product(KINDS, KINDS):
            t = dist.place(eg.tensor(x), mesh, {"d": old}).requires_grad_()
            moved = dist.reshard(t, mesh, "d", new)
            held = dist.placements_of(moved) == {"d": new} and moved.shape == shape
            close = np.allclose(dist.full_value(moved).numpy(), x, rtol=1e-15, atol=1e-15)
            moved.backward(dist.place(eg.tensor(g), mesh, {"d": Replicate()}))
            grad = np.allclose(dist.full_value(t.grad).numpy(), g, rtol=1e-15, atol=1e-15)
            kept = Replicate() if isinstance(old, Partial) else old
            back = dist.placements_of(t.grad) == {"d": kept}
            wrong += [] if held and close and grad and back else [f"{old} to {new}"]
        return wrong

    assert dist.run_local(run, ranks) == [[]] * ranks


def test_two_mesh_axes() -> None:
    """A product sharded over both: rows over one, the sum over the other."""
    x, w = RNG.standard_normal((5, 6)), RNG.standard_normal((6, 4))

    def run() -> Any:
        mesh = dist.Mesh({"data": 2, "model": 3})
        a = dist.place(eg.tensor(x), mesh, {"data": Shard(0), "model": Shard(1)}).requires_grad_()
        b = dist.place(eg.tensor(w), mesh, {"model": Shard(0)}).requires_grad_()
        out = a @ b
        held = dist.placements_of(out)
        total = dist.reshard(out, mesh, "model", Replicate())
        loss = (total * total).sum()
        loss = dist.reshard(loss, mesh, "data", Replicate())
        loss.backward()
        return held, [dist.full_value(t).numpy() for t in (out, a.grad, b.grad)]

    whole, weights = eg.tensor(x, requires_grad=True), eg.tensor(w, requires_grad=True)
    out = whole @ weights
    (out * out).sum().backward()
    for held, found in dist.run_local(run, 6):
        assert held == {"data": Shard(0), "model": Partial()}
        for got, want in zip(found, (out.detach(), whole.grad, weights.grad), strict=True):
            np.testing.assert_allclose(got, want.numpy(), atol=1e-13)


def test_a_refusal_names_the_reshard_that_cures_it() -> None:
    def run() -> bool:
        mesh = dist.Mesh({"d": 2})
        x = dist.place(eg.tensor(RNG.standard_normal((4, 6))), mesh, {"d": Shard(1)})
        with pytest.raises(PlacementError, match=r"reshard\(x, mesh, 'd', Shard\(0\)\) first"):
            eg.softmax(x, axis=1)
        cured = eg.softmax(dist.reshard(x, mesh, "d", Shard(0)), axis=1)
        return dist.placements_of(cured) == {"d": Shard(0)}

    assert dist.run_local(run, 2) == [True, True]


def test_bad_placements_are_named() -> None:
    def run() -> bool:
        mesh = dist.Mesh({"d": 2})
        x = eg.ones((4, 6))
        partial = dist.place(x, mesh, {"d": Partial()})
        cases: list[tuple[type[Exception], str, Any]] = [
            (PlacementError, "no axis 'e'; it has d", lambda: dist.place(x, mesh, {"e": Shard(0)})),
            (PlacementError, "the tensor has 2 axes", lambda: dist.place(x, mesh, {"d": Shard(2)})),
            (PlacementError, "must be Shard", lambda: dist.place(x, mesh, {"d": 0})),
            (PlacementError, "axis must be an integer from 0", lambda: Shard(-1)),
            (PlacementError, "combine must be 'sum'", lambda: Partial("max")),
            (PlacementError, "exp: .* Partial", lambda: eg.exp(partial)),
            (PlacementError, "multiply: .* Partial", lambda: partial * partial),
            (PlacementError, "placed already", lambda: dist.place(partial, mesh, {})),
            (PlacementError, "has no placement", lambda: dist.reshard(x, mesh, "d", Shard(0))),
            (PlacementError, "spread over a mesh; take", partial.numpy),
            (PlacementError, "different meshes",
             lambda: partial + dist.place(x, dist.Mesh({"d": 2}), {})),
            (ShapeError, "has .2, 6., got",
             lambda: dist.from_local(x, mesh, {"d": Shard(0)}, (4, 6))),
        ]  # fmt: skip
        for error, text, act in cases:
            with pytest.raises(error, match=text):
                act()
        return True

    assert dist.run_local(run, 2) == [True, True]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_random_numbers_go_by_the_place_in_the_whole(dtype: str) -> None:
    whole = eg.rand((7, 5), dtype=dtype, generator=Generator(3))
    normal = eg.randn((7, 5), dtype=dtype, generator=Generator(3))
    for start, stop in ((0, 3), (3, 4), (4, 7), (2, 2)):
        with sharded_draws(0, start, stop - start, 7):
            part = eg.rand((stop - start, 5), dtype=dtype, generator=Generator(3))
            again = eg.randn((stop - start, 5), dtype=dtype, generator=Generator(3))
        np.testing.assert_array_equal(part.numpy(), whole[start:stop].numpy())
        np.testing.assert_array_equal(again.numpy(), normal[start:stop].numpy())
    with sharded_draws(1, 1, 3, 5), sharded_draws(0, 2, 4, 7):
        inner = eg.rand((4, 3), dtype=dtype, generator=Generator(3))
    np.testing.assert_array_equal(inner.numpy(), whole[2:6, 1:4].numpy())


def test_a_stream_moves_on_as_if_all_had_been_drawn() -> None:
    whole, part = Generator(3), Generator(3)
    eg.rand((7, 5), generator=whole)
    with sharded_draws(0, 2, 3, 7):
        eg.rand((3, 5), generator=part)
    assert whole.get_state().tolist() == part.get_state().tolist()


def test_dropout_of_a_placed_tensor_is_that_of_the_whole() -> None:
    x = RNG.standard_normal((5, 4))
    want = eg.nn.functional.dropout(eg.tensor(x), 0.5, generator=Generator(1)).numpy()

    def run() -> Any:
        t = dist.place(eg.tensor(x), dist.Mesh({"d": 2}), {"d": Shard(0)})
        return dist.full_value(eg.nn.functional.dropout(t, 0.5, generator=Generator(1))).numpy()

    for got in dist.run_local(run, 2):
        np.testing.assert_array_equal(got, want)

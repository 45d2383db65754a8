"""Collectives inside compiled functions: one chain, buckets, starts early, waits late."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import distributed as dist, nn
from everygrad.compiler.ir import in_order, reachable
from everygrad.compiler.overlap import MOST, buckets_of
from everygrad.errors import CollectiveMismatchError


def network(layers: int, width: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [eg.tensor(rng.normal(size=(width, width)), requires_grad=True) for _ in range(layers)]


def trained(ws: list[Any], mesh: Any, x: Any) -> Any:
    """A step of plain gradient descent; gradients are summed in the order backward gives them."""
    h = x
    for w in ws:
        h = eg.tanh(h @ w / 20)
    loss = (h * h).mean()
    loss.backward()
    for w in reversed(ws):
        w.grad = dist.all_reduce(w.grad, mesh, "data", "mean")
    with eg.no_grad():
        for w in ws:
            w -= 0.1 * w.grad
            w.grad = None
    return dist.all_reduce(loss.detach(), mesh, "data", "mean")


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_a_compiled_step_is_the_eager_one(n: int) -> None:
    """Buckets and overlap change no bit of what ranks have in common, and nothing else much."""

    def main() -> Any:
        mesh = dist.Mesh({"data": n})
        x = eg.tensor(np.random.default_rng(dist.rank()).normal(size=(8, 64)))
        results = []
        for compile in (lambda f: f, eg.jit):
            ws = network(5, 64)
            step = compile(lambda x, ws=ws: trained(ws, mesh, x))
            losses = [step(x).item() for _ in range(4)]
            results.append((losses, [w.detach().numpy() for w in ws]))
        return results

    ranks = dist.run_local(main, n)
    assert len(ranks) == n
    for eager, compiled in ranks:
        np.testing.assert_allclose(compiled[0], eager[0], rtol=1e-12)
        for a, b, first in zip(compiled[1], eager[1], ranks[0][1][1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
            assert a.tobytes() == first.tobytes()  # on every rank


def test_starts_are_early_and_waits_late() -> None:
    """The first start comes while there is backward left to compute, no wait before its end; starts
    keep the order of the program."""

    def main() -> Any:
        mesh = dist.Mesh({"data": 1})
        ws = network(8, 512)  # 2 MB each
        lowered = eg.jit(lambda x: trained(ws, mesh, x)).lower(eg.ones((16, 512), dtype=eg.float64))
        return lowered.kernels.splitlines()

    (lines,) = dist.run_local(main, 1)
    starts = [i for i, line in enumerate(lines) if "all_reduce.start" in line]
    waits = [i for i, line in enumerate(lines) if "all_reduce.wait" in line]
    products = [i for i, line in enumerate(lines) if re.search(r"matmul|linear", line)]
    assert len(starts) == len(waits) == 9  # 16 MB in all: buckets of 2 MB, and one for the loss
    assert starts[0] < products[-3]
    assert waits[0] > products[-1]
    numbers = [int(re.search(r"%(\d+)", lines[i])[1]) for i in starts]  # type: ignore[index]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_little_is_under_way_at_once(level: int) -> None:
    """Of gathers and scatters never more than the next two and what is used; waits for gathers come
    one by one, between the layers that read them."""

    def main() -> Any:
        mesh = dist.Mesh({"data": 1})
        layers = [nn.Linear(512, 512, bias=False) for _ in range(8)]
        model = dist.shard(nn.Sequential(*layers), mesh, level=level)

        def step(x: Any) -> None:
            model.zero_grad()
            model(x).sum().backward()

        return eg.jit(step).lower(eg.ones((64, 512))).kernels.splitlines()

    (lines,) = dist.run_local(main, 1)
    under_way = most = 0
    for line in lines:
        if re.search(r"all_gather|reduce_scatter", line):
            under_way += 1 if ".start" in line else -1
            most = max(most, under_way)
    assert under_way == 0
    assert 2 <= most <= 3
    waits = [i for i, line in enumerate(lines) if "all_gather.wait" in line]
    products = [i for i, line in enumerate(lines) if re.search(r"matmul|linear", line)]
    assert len(waits) == (15 if level == 3 else 8)  # the first layer's backward needs no weight
    assert all(any(a < i < b for i in products) for a, b in pairwise(waits[:8]))


def test_what_is_summed_lies_where_the_sum_will() -> None:
    """A compiled step of data parallel training has no gradient in its arena, and the last native
    call moves all parameters and states."""

    def main() -> Any:
        mesh = dist.Mesh({"data": 1})
        layers = [nn.Linear(512, 512, bias=False) for _ in range(8)]
        model = dist.DataParallel(nn.Sequential(*layers), mesh)
        opt = eg.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = eg.ones((4, 512))

        def step() -> None:
            opt.zero_grad()
            model(x).sum().backward()
            opt.step()

        step()  # makes the state
        compiled = eg.jit(step)
        compiled()
        return compiled.memory()

    (memory,) = dist.run_local(main, 1)
    assert memory.peak < 512 * 512 * 4
    assert memory.in_place == 16


def test_buckets_are_bounded_and_never_need_themselves() -> None:
    def main() -> Any:
        mesh = dist.Mesh({"data": 1})

        def f(x: Any, y: Any) -> Any:
            sums = [dist.all_reduce(x * k, mesh, "data") for k in range(1, 7)]
            chained = dist.all_reduce(sums[-1] + 1, mesh, "data")
            largest = dist.all_reduce(x, mesh, "data", "max")
            other = [dist.all_reduce(y * k, mesh, "data") for k in (1, 2)]
            return sum(sums) + chained + largest + other[0] + other[1]

        x = eg.ones((3 << 20,))  # 12 MB
        lowered = eg.jit(f).lower(x, eg.ones((3 << 20,), dtype=eg.float32))
        calls = [v for v in in_order(reachable(lowered.graph.outputs)) if v.facts.communicates]
        return buckets_of(calls)

    (buckets,) = dist.run_local(main, 1)
    assert [len(b) for b in buckets] == [1] * 10  # 120 MB in 8: 15 MB, one of 12 MB in each
    assert all(sum(v.args[0].nbytes for v in b) <= MOST for b in buckets)


def test_small_sums_share_a_bucket() -> None:
    def main() -> Any:
        mesh = dist.Mesh({"data": 2})

        @eg.jit
        def f(x: Any) -> Any:
            sums = [dist.all_reduce(x * k, mesh, "data") for k in range(5)]
            again = dist.all_reduce(sums[2], mesh, "data")
            return eg.stack([*sums, again])

        x = eg.tensor([[1.0, 2.0]]) * (dist.rank() + 1)
        return f(x).tolist(), f.lower(x).kernels.count("all_reduce.start")

    values = [[[3.0 * k, 6.0 * k]] for k in range(5)] + [[[12.0, 24.0]]]
    assert dist.run_local(main, 2) == [(values, 2)] * 2


def test_nothing_is_dropped_or_merged() -> None:
    """A collective whose result nobody uses is carried out, and equal ones are two."""
    counts: list[int] = []

    def main() -> int:
        mesh = dist.Mesh({"data": 2})

        @eg.jit
        def f(x: Any) -> Any:
            dist.all_gather(x, mesh, "data")
            a = dist.all_gather(x, mesh, "data")
            b = dist.all_gather(x, mesh, "data")
            dist.barrier(mesh)
            return a + b

        f(eg.ones((2,)))
        ring = [e["call"] for e in mesh.group("data").world.ring.calls]
        counts.append(sum(call.startswith("barrier") for call in ring))
        return sum(call.startswith("all_gather") for call in ring)

    assert dist.run_local(main, 2) == [3, 3]
    assert counts == [1, 1]


def test_agreement_before_a_compiled_step() -> None:
    """Different lists are shown around their first difference, on all ranks, before anything."""
    said: dict[int, str] = {}

    def main() -> None:
        mesh = dist.Mesh({"data": 2})
        r = dist.rank()

        @eg.jit
        def f(x: Any) -> Any:
            y = dist.all_gather(x, mesh, "data")
            if r == 0:
                y = dist.reduce_scatter(y, mesh, "data")
            return dist.all_reduce(y, mesh, "data").sum()

        with pytest.raises(CollectiveMismatchError) as caught:
            f(eg.ones((4,)))
        said[r] = str(caught.value)

    dist.run_local(main, 2)
    assert set(said) == {0, 1}
    for text in said.values():
        assert "> 1: reduce_scatter float32[8] dim=0" in text
        assert "> 1: all_reduce float32[8] how=sum" in text
        assert "0: all_gather float32[4] dim=0" in text


def test_empty_tensors_are_carried() -> None:
    def main() -> Any:
        mesh = dist.Mesh({"data": 2})

        @eg.jit
        def f(x: Any) -> Any:
            y = dist.all_gather(x, mesh, "data")
            return y, dist.all_reduce(y.sum(), mesh, "data")

        y, total = f(eg.zeros((0, 3)))
        return y.shape, total.item()

    assert dist.run_local(main, 2) == [((0, 3), 0.0)] * 2

"""What two processes under mpiexec check; `test_mpi.py` starts them and reads their last line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import distributed as dist
from everygrad.distributed.world import world
from everygrad.errors import ArgumentError, CollectiveMismatchError


def simulated(n: int, main: Any) -> list[Any]:
    """The same program on simulated ranks."""
    return dist.run_local(main, n)


def values() -> list[bytes]:
    """Every collective in several dtypes, small and large, and their gradients, as bytes."""
    mesh = dist.Mesh({"data": dist.world_size()})
    made: list[bytes] = []
    for dtype in ("float16", "bfloat16", "float32", "float64", "int64"):
        for size in (6, 30000):
            rng = np.random.default_rng([dist.rank(), size])
            x = eg.tensor(rng.normal(size=(2, size)) * 9).astype(getattr(eg, dtype))
            results = [
                dist.all_reduce(x, mesh, "data"),
                dist.all_reduce(x, mesh, "data", "max"),
                dist.all_gather(x, mesh, "data", dim=1),
                dist.reduce_scatter(x, mesh, "data"),
                dist.all_to_all(x, mesh, "data", 0, 1),
                dist.broadcast(x, mesh, "data", source=1),
            ]
            made += [t.numpy().tobytes() for t in results]
    x = eg.tensor(np.arange(8.0) + mesh.rank, requires_grad=True)
    y = dist.reduce_scatter(dist.all_gather(x * x, mesh, "data") ** 2, mesh, "data")
    (g,) = eg.autograd.grad((y * y).sum(), (x,), create_graph=True)
    (h,) = eg.autograd.grad((g * g).sum(), (x,))
    return [*made, g.detach().numpy().tobytes(), h.numpy().tobytes()]


def compiled() -> list[bytes]:
    """A compiled training step, with gradients summed while backward goes on."""
    mesh = dist.Mesh({"data": dist.world_size()})
    rng = np.random.default_rng(0)
    ws = [eg.tensor(rng.normal(size=(96, 96)), requires_grad=True) for _ in range(3)]
    adam = eg.optim.Adam(ws, lr=0.01)

    def step(x: Any) -> Any:
        adam.zero_grad()
        h = x
        for w in ws:
            h = eg.tanh(h @ w / 9)
        loss = (h * h).mean()
        loss.backward()
        for w in reversed(ws):
            w.grad = dist.all_reduce(w.grad, mesh, "data", "mean")
        adam.step()
        return dist.all_reduce(loss.detach(), mesh, "data", "mean")

    x = eg.tensor(np.random.default_rng(1 + mesh.rank).normal(size=(4, 96)))
    run = eg.jit(step)
    losses = [run(x).numpy().tobytes() for _ in range(3)]
    return [*losses, *(w.detach().numpy().tobytes() for w in ws)]


def messages() -> list[bytes]:
    mesh = dist.Mesh({"pipe": dist.world_size()})
    other = 1 - mesh.rank
    for size in (3, 20000):
        dist.send(eg.ones((size,)), mesh, "pipe", to=mesh.rank)
        assert dist.recv(eg.zeros((size,)), mesh, "pipe", source=mesh.rank).sum().item() == size
    x = eg.full((20000,), float(mesh.rank), requires_grad=True)
    if mesh.rank == 0:
        dist.send(x * 3, mesh, "pipe", to=other).backward()
        assert x.grad is not None
        return [x.grad.numpy().tobytes()]
    got = dist.recv(eg.zeros((20000,), requires_grad=True), mesh, "pipe", source=other)
    (got * got).sum().backward()
    work = [got.detach().numpy().tobytes()]
    return work


def background() -> list[bytes]:
    mesh = dist.Mesh({"data": dist.world_size()})
    x = eg.full((50000,), 1.0 + mesh.rank)
    works = [dist.start_all_reduce(x * k, mesh, "data") for k in range(5)]
    now = dist.all_gather(x, mesh, "data")
    return [now.numpy().tobytes(), *(w.wait().numpy().tobytes() for w in works)]


def refusals() -> None:
    """Bad input is named on all ranks, and the ranks go on."""
    with pytest.raises(ArgumentError, match="3 places and there are 2 ranks"):
        dist.Mesh({"data": 3})
    mesh = dist.Mesh({"data": 2})
    with pytest.raises(CollectiveMismatchError) as caught:
        dist.all_reduce(eg.ones((3 + dist.rank(),)), mesh, "data")
    assert "float32[3]" in str(caught.value)
    assert "float32[4]" in str(caught.value)
    assert dist.all_reduce(eg.ones((2,)), mesh, "data").tolist() == [2.0, 2.0]


def main() -> None:
    dist.init("mpi")
    assert dist.world_size() == 2
    rank = dist.rank()
    checks = (values, compiled, messages, background)
    for check in checks:
        mine = check()
        wanted = simulated(2, check)[rank]
        assert len(mine) == len(wanted) > 0
        assert mine == wanted, f"{check.__name__}: not the bits of simulated ranks"
    refusals()
    assert world().carrier.size == 2
    dist.barrier()
    print(f"rank {rank}: {len(checks) + 1} checks", flush=True)


if __name__ == "__main__":
    main()

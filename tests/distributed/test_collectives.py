"""Collectives on simulated ranks against the same program on one process, all ranks stacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

import everygrad as eg
from everygrad import distributed as dist

SIZES = (1, 2, 4, 8)


class Row(NamedTuple):
    """A collective, and the same on one process: `whole` takes the tensors of all ranks, one after
    the other along the first axis, and gives their results in the same way."""

    name: str
    call: Callable[[Any, Any], Any]
    whole: Callable[[Any], Any]


def each(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda xs: eg.stack([fn(xs)] * xs.shape[0])


def parts(xs: Any, r: int, axis: int) -> Any:
    """The r-th part of every rank's tensor along an axis of it."""
    n = xs.shape[0]
    size = xs.shape[axis + 1] // n
    return xs[(slice(None),) * (axis + 1) + (slice(r * size, (r + 1) * size),)]


ROWS = (
    Row("sum", lambda x, m: dist.all_reduce(x, m, "r"), each(lambda xs: xs.sum(axis=0))),
    Row("mean", lambda x, m: dist.all_reduce(x, m, "r", "mean"), each(lambda xs: xs.mean(axis=0))),
    Row("max", lambda x, m: dist.all_reduce(x, m, "r", "max"), each(lambda xs: xs.max(axis=0))),
    Row("min", lambda x, m: dist.all_reduce(x, m, None, "min"), each(lambda xs: xs.min(axis=0))),
    Row(
        "gather",
        lambda x, m: dist.all_gather(x, m, "r", dim=1),
        each(lambda xs: eg.concat(list(xs), axis=1)),
    ),
    Row(
        "gather first",
        lambda x, m: dist.all_gather(x, m, "r"),
        each(lambda xs: eg.concat(list(xs), axis=0)),
    ),
    Row(
        "scatter",
        lambda x, m: dist.reduce_scatter(x, m, "r", dim=-1),
        lambda xs: eg.stack([parts(xs, r, 1).sum(axis=0) for r in range(xs.shape[0])]),
    ),
    Row(
        "to all",
        lambda x, m: dist.all_to_all(x, m, "r", 0, 1),
        lambda xs: eg.stack([eg.concat(list(parts(xs, r, 0)), axis=1) for r in range(xs.shape[0])]),
    ),
    Row("broadcast", lambda x, m: dist.broadcast(x, m, "r", m.size - 1), each(lambda xs: xs[-1])),
    Row(
        "reduce",
        lambda x, m: dist.reduce(x, m, "r"),
        lambda xs: eg.stack([xs.sum(axis=0)] + [eg.zeros_like(xs[0])] * (xs.shape[0] - 1)),
    ),
)


def given(n: int, dtype: Any = np.float64, shape: tuple[int, ...] = (8, 16)) -> Any:
    return np.random.default_rng(n).normal(size=(n, *shape)).astype(dtype)


def loss_of(y: Any) -> Any:
    """Something whose second derivative is not constant."""
    weights = eg.arange(y.size, dtype=y.dtype).reshape(y.shape) / y.size
    return (eg.sin(y) * weights + y * y * y).sum()


def on_ranks(row: Row, xs: Any, wrap: Callable[[Any], Any] = lambda f: f) -> list[Any]:
    """On every rank: the result, the gradient, and the gradient of the gradient's square."""

    def main() -> Any:
        mesh = dist.Mesh({"r": len(xs)})
        x = eg.tensor(xs[dist.rank()], requires_grad=True)
        f = wrap(lambda x: row.call(x, mesh))
        y = f(x)
        (g,) = eg.autograd.grad(loss_of(y), (x,), create_graph=True)
        (h,) = eg.autograd.grad((g * g).sum(), (x,))
        return y.detach().numpy(), g.detach().numpy(), h.detach().numpy()

    return dist.run_local(main, len(xs))


def on_one(row: Row, xs: Any) -> list[Any]:
    """The same on one process: the sum of all ranks' losses."""
    whole = eg.tensor(xs, requires_grad=True)
    ys = row.whole(whole)
    loss = sum((loss_of(y) for y in ys), eg.zeros((), dtype=eg.float64))
    (g,) = eg.autograd.grad(loss, (whole,), create_graph=True)
    (h,) = eg.autograd.grad((g * g).sum(), (whole,))
    made = [t.detach().numpy() for t in (ys, g, h)]
    return [tuple(t[r] for t in made) for r in range(len(xs))]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_values_and_two_derivatives(row: Row, n: int) -> None:
    xs = given(n)
    wanted, found = on_one(row, xs), on_ranks(row, xs)
    assert len(found) == n
    for mine, theirs in zip(found, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_inside_jit_and_checkpoint(row: Row, n: int) -> None:
    """A compiled function gives what eager mode does, and a checkpoint changes nothing."""
    xs = given(n)

    def main() -> Any:
        mesh = dist.Mesh({"r": n})

        def f(x: Any) -> Any:
            return loss_of(row.call(eg.sin(x), mesh))

        def step(x: Any) -> Any:
            loss = f(x)
            loss.backward()
            return loss

        results = []
        for g in (step, eg.jit(step), lambda x: _backward(eg.jit(f), x),
                  lambda x: _backward(lambda x: eg.checkpoint(f, x), x)):  # fmt: skip
            for _ in range(2):
                x = eg.tensor(xs[dist.rank()], requires_grad=True)
                value = g(x)
                assert x.grad is not None
                results.append((value.item(), x.grad.numpy()))
        return results

    found = dist.run_local(main, n)
    assert len(found) == n
    for (value, grad), *others in found:
        assert len(others) == 7
        for other, other_grad in others:
            assert other == pytest.approx(value, rel=1e-12)
            np.testing.assert_allclose(other_grad, grad, rtol=1e-12, atol=1e-12)


def _backward(f: Callable[[Any], Any], x: Any) -> Any:
    loss = f(x)
    loss.backward()
    return loss


DTYPES = [d for d in eg.dtypes.ALL if d.name != "bool"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype: Any) -> None:
    """All dtypes are carried; sums are made in the order of the ranks, of halves in float32."""
    n = 4
    values = np.random.default_rng(3).normal(size=(n, 4, 2000)) * 20
    xs = np.abs(values).astype(dtype.np) if dtype.is_integer else values.astype(dtype.np)
    wide = np.float32 if dtype.bits == 16 and dtype.is_float else dtype.np
    total = xs[0].astype(wide)
    for x in xs[1:]:
        total = total + x.astype(wide)
    total = total.astype(dtype.np)

    def main() -> Any:
        mesh = dist.Mesh({"r": n})
        x = eg.tensor(xs[dist.rank()], dtype=dtype)
        whole = dist.all_reduce(x, mesh, "r")
        small = dist.all_reduce(x[:, :3], mesh, "r")
        part = dist.reduce_scatter(x, mesh, "r")
        gathered = dist.all_gather(part, mesh, "r")
        back = dist.all_to_all(dist.all_to_all(x, mesh, "r", 0, 1), mesh, "r", 1, 0)
        assert whole.dtype is x.dtype
        assert part.shape == (1, 2000)
        return [t.numpy() for t in (whole, small, gathered, back)]

    results = dist.run_local(main, n)
    assert len(results) == n
    for rank, (whole, small, gathered, back) in enumerate(results):
        assert whole.tobytes() == total.tobytes() == gathered.tobytes()
        assert small.tobytes() == np.ascontiguousarray(total[:, :3]).tobytes()
        assert back.tobytes() == xs[rank].tobytes()


def test_halves_are_rounded_once() -> None:
    """1 + 2**-8 four times: in bfloat16 each sum would lose the small part."""
    small = np.array([2.0**-8], ml_dtypes.bfloat16)

    def main() -> float:
        mesh = dist.Mesh({"r": 5})
        x = eg.tensor(small) if dist.rank() else eg.ones((1,), dtype=eg.bfloat16)
        return float(dist.all_reduce(x, mesh, "r").astype(eg.float32).item())

    assert dist.run_local(main, 5) == [1 + 2.0**-6] * 5


def test_two_axes() -> None:
    """Ranks along one axis of a mesh of two; the other axis is left alone."""

    def main() -> Any:
        mesh = dist.Mesh({"data": 2, "model": 4})
        r = dist.rank()
        assert mesh.size == 8
        assert mesh.rank == r
        assert mesh.axes == {"data": 2, "model": 4}
        assert (mesh.coordinate("data"), mesh.coordinate("model")) == divmod(r, 4)
        assert mesh.ranks_along("model") == tuple(range(r // 4 * 4, r // 4 * 4 + 4))
        assert mesh.ranks_along("data") == (r % 4, r % 4 + 4)
        x = eg.tensor([float(r)])
        return [dist.all_reduce(x, mesh, a).item() for a in ("data", "model", None)]

    wanted = [[r % 4 * 2 + 4.0, (6.0 if r < 4 else 22.0), 28.0] for r in range(8)]
    assert dist.run_local(main, 8) == wanted


def test_send_and_recv_are_each_others_derivative() -> None:
    """x goes to the next rank, which squares it; its gradient comes back, and that one's too."""

    def main() -> Any:
        mesh = dist.Mesh({"pipe": 2})
        if dist.rank() == 0:
            x = eg.tensor([1.0, 2.0, 3.0], requires_grad=True)
            sent = dist.send(x * x, mesh, "pipe", to=1)
            (g,) = eg.autograd.grad(sent, (x,), create_graph=True)
            assert sent.shape == ()
            assert sent.item() == 0
            return g.tolist()
        like = eg.zeros((3,), requires_grad=True)
        got = dist.recv(like, mesh, "pipe", source=0)
        (g,) = eg.autograd.grad((got * got * got).sum(), (like,), create_graph=True)
        return got.tolist(), g.tolist()

    first, second = dist.run_local(main, 2)
    assert second == ([1.0, 4.0, 9.0], [0.0, 0.0, 0.0])
    assert first == [3 * x**4 * 2 * x for x in (1.0, 2.0, 3.0)]


def test_messages_inside_jit() -> None:
    def main() -> Any:
        mesh = dist.Mesh({"pipe": 3})
        r = dist.rank()

        @eg.jit
        def around(x: Any) -> Any:
            y = x * 2
            for hop in range(3):
                dist.send(y, mesh, "pipe", to=(r + 1) % 3)
                y = dist.recv(y, mesh, "pipe", source=(r - 1) % 3) + hop
            return y

        return [around(eg.tensor([float(r)])).item() for _ in range(2)]

    assert dist.run_local(main, 3) == [[3 + 2 * r, 3 + 2 * r] for r in (0.0, 1.0, 2.0)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_vmap_and_forward_mode(row: Row) -> None:
    """One collective of a batch is the batch of collectives; tangents go the same way."""
    n, batch = 2, 3
    xs = np.random.default_rng(0).normal(size=(n, batch, 4, 4))

    def main() -> Any:
        mesh = dist.Mesh({"r": n})
        x = eg.tensor(xs[dist.rank()])
        mapped = eg.vmap(lambda v: row.call(v, mesh))(x)
        one_by_one = eg.stack([row.call(v, mesh) for v in x])
        same = np.array_equal(mapped.numpy(), one_by_one.numpy())
        if row.name in ("max", "min"):  # not linear
            return same, True
        out, tangent = eg.jvp(lambda v: row.call(v, mesh), (x[0],), (x[1],))
        moved = row.call(x[1], mesh)
        return same, out.shape == moved.shape and np.array_equal(tangent.numpy(), moved.numpy())

    assert dist.run_local(main, n) == [(True, True)] * n


def test_work_in_the_background() -> None:
    """What was started is carried out in order, and what comes after it waits for it."""

    def main() -> Any:
        mesh = dist.Mesh({"r": 4})
        x = eg.full((5000,), float(dist.rank()))
        works = [dist.start_all_reduce(x * k, mesh, "r", "mean") for k in range(4)]
        now = dist.all_reduce(x, mesh, "r")[0].item()
        assert all(w.is_done() for w in works)
        return now, [w.wait()[0].item() for w in works]

    assert dist.run_local(main, 4) == [(6.0, [0.0, 1.5, 3.0, 4.5])] * 4


def test_barrier() -> None:
    order: list[int] = []

    def main() -> int:
        mesh = dist.Mesh({"r": 4})
        for _ in range(3):
            order.append(dist.rank())
            dist.barrier(mesh)
            dist.barrier()
        return len(order)

    assert dist.run_local(main, 4) == [12] * 4
    assert [sorted(order[i : i + 4]) for i in (0, 4, 8)] == [[0, 1, 2, 3]] * 3


REFUSALS = (
    (eg.errors.ArgumentError, "no axis 'model'", lambda m, x: dist.all_reduce(x, m, "model")),
    (eg.errors.ArgumentError, "op must be one of", lambda m, x: dist.all_reduce(x, m, "r", "and")),
    (eg.errors.DtypeError, "takes a Tensor", lambda m, x: dist.all_reduce([1], m, "r")),
    (eg.errors.ArgumentError, "mesh must be", lambda m, x: dist.all_gather(x, 3, "r")),
    (eg.errors.DtypeError, "not take bool", lambda m, x: dist.all_reduce(x > 0, m, "r")),
    (eg.errors.ShapeError, "pad it", lambda m, x: dist.reduce_scatter(x[:3], m, "r")),
    (eg.errors.AxisError, "all_gather", lambda m, x: dist.all_gather(x, m, "r", dim=7)),
    (eg.errors.ArgumentError, "from 0 to 1", lambda m, x: dist.broadcast(x, m, "r", source=2)),
    (eg.errors.ArgumentError, "from 0 to 1", lambda m, x: dist.send(x, m, "r", to=-1)),
    (eg.errors.ArgumentError, "has 3 places", lambda m, x: dist.Mesh({"r": 3})),
    (eg.errors.ArgumentError, "size from 1 on", lambda m, x: dist.Mesh({"r": 0})),
    (eg.errors.ArgumentError, "needs an axis", lambda m, x: dist.Mesh({})),
    (eg.errors.ArgumentError, "carrier must be", lambda m, x: dist.init("smoke")),
    (eg.errors.ArgumentError, "run_local", lambda m, x: dist.init("local:3")),
    (eg.errors.ArgumentError, "another carrier", lambda m, x: dist.init("mpi")),
)


@pytest.mark.parametrize(("error", "text", "call"), REFUSALS, ids=[text for _, text, _ in REFUSALS])
def test_bad_input_is_named_on_all_ranks(error: Any, text: str, call: Any) -> None:
    """The same error everywhere, nothing half done: a collective after it works."""

    def main() -> float:
        mesh = dist.Mesh({"r": 2})
        x = eg.ones((4, 2))
        with pytest.raises(error, match=text):
            call(mesh, x)
        return float(dist.all_reduce(x, mesh, "r")[0, 0].item())

    assert dist.run_local(main, 2) == [2.0, 2.0]


def test_backward_on_several_threads_keeps_the_order() -> None:
    """Collectives of equal shape in branches that threads could take in any order."""

    def main() -> Any:
        mesh = dist.Mesh({"r": 2})
        x = eg.tensor([1.0 + dist.rank()], requires_grad=True)
        branches = [dist.all_reduce(x * k, mesh, "r") * (k + dist.rank()) for k in range(8)]
        sum(branches, eg.zeros((1,))).backward(workers=4)
        assert x.grad is not None
        return x.grad.item()

    wanted = float(sum(k * (k + k + 1) for k in range(8)))
    assert dist.run_local(main, 2) == [wanted, wanted]


def test_a_barrier_of_no_mesh_is_refused_inside_jit() -> None:
    with pytest.raises(eg.errors.TraceError, match="barrier: inside a jitted function"):
        eg.jit(lambda x: (dist.barrier(), x)[1])(eg.ones((1,)))


def test_only_the_first_rank_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        progress = eg.training.progress.Progress(3, 0, "lines")
        progress.EVERY = 0.0
        progress.advance({"rank": dist.rank()})

    dist.run_local(main, 3)
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1
    assert "rank 0" in shown[0]


def test_one_process_is_a_world() -> None:
    assert dist.rank() == 0
    assert dist.world_size() == 1
    dist.init("local:1")
    mesh = dist.Mesh({"data": 1, "model": 1})
    x = eg.tensor([1.0, 2.0], requires_grad=True)
    y = dist.all_gather(dist.all_reduce(x, mesh, "data"), mesh, "model")
    (y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    with pytest.raises(eg.errors.ArgumentError, match="from 1 on"):
        dist.run_local(int, 0)


def test_a_channel_does_not_wait_for_what_was_started_elsewhere() -> None:
    """Else ranks that start a sum before and after they talk there wait for each other."""

    def main() -> Any:
        mesh = dist.Mesh({"r": 2})
        channel = mesh.channel("aside")
        x = eg.ones((5000,))
        early = dist.start_all_reduce(x, mesh, "r") if dist.rank() == 0 else None
        said = dist.all_gather(eg.tensor([dist.rank()]), channel, "r").tolist()
        work = early or dist.start_all_reduce(x, mesh, "r")
        return said, work.wait()[0].item()

    assert dist.run_local(main, 2, timeout=5.0) == [([0, 1], 2.0)] * 2

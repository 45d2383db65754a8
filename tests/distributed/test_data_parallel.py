"""Data parallel training beside one process: accumulation, uneven batches, parts that are not used,
buffers, masks; and what is refused."""

from __future__ import annotations

import time
import warnings
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.distributed.parallel.buckets import Lane
from everygrad.errors import ArgumentError, CollectiveMismatchError, GradientError, ShapeError
from everygrad.ops.random.generators import Generator, scoped_generator

RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((12, 5)), RNG.standard_normal((12, 2))


def net(*, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    """A small net with one start on every rank."""
    with scoped_generator(Generator(2)):
        middle: list[nn.Module] = [nn.BatchNorm1d(6)] if norm else []
        parts = [nn.Linear(5, 6), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, 2)]
        return nn.Sequential(*parts).double()


def loss_of(model: nn.Module, x: Any, y: Any) -> eg.Tensor:
    loss: eg.Tensor = nn.functional.mse_loss(model(eg.tensor(x)), eg.tensor(y))
    return loss


def gradients(model: nn.Module) -> dict[str, Any]:
    return {n: None if p.grad is None else p.grad.numpy() for n, p in model.named_parameters()}


def same(got: dict[str, Any], want: dict[str, Any], digits: float = 1e-14) -> None:
    assert got.keys() == want.keys()
    assert want
    for name, g in want.items():
        np.testing.assert_allclose(got[name], g, rtol=0, atol=digits, err_msg=name)


def whole_gradients(**kind: Any) -> dict[str, Any]:
    model = net(**kind)
    with scoped_generator(Generator(9)):
        loss_of(model, X, Y).backward()
    return gradients(model)


def rows(ranks: int) -> slice:
    each = len(X) // ranks
    return slice(dist.rank() * each, (dist.rank() + 1) * each)


@pytest.mark.parametrize("bucket_bytes", [1, 200, 25 * 2**20])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gradients_are_those_of_the_whole_batch(ranks: int, bucket_bytes: int) -> None:
    def run() -> dict[str, Any]:
        model = dist.DataParallel(net(), dist.Mesh({"data": ranks}), bucket_bytes=bucket_bytes)
        model.train(bucket_bytes > 1)  # gradients are averaged in evaluation mode too
        loss_of(model, X[rows(ranks)], Y[rows(ranks)]).backward()
        return gradients(model)

    for found in dist.run_local(run, ranks):
        same(found, whole_gradients())


def test_the_first_ranks_values_are_given_to_all() -> None:
    def run() -> Any:
        model = nn.Linear(2, 1)
        with eg.no_grad():
            model.weight.rebind(eg.full((1, 2), float(dist.rank() + 1))._data, model.weight._node)
        return dist.DataParallel(model, dist.Mesh({"data": 2})).module.weight.tolist()

    assert dist.run_local(run, 2) == [[[1.0, 1.0]]] * 2


def test_no_sync_adds_up_and_the_next_backward_averages() -> None:
    def run() -> tuple[dict[str, Any], dict[str, Any]]:
        model = dist.DataParallel(net(), dist.Mesh({"data": 2}))
        part = slice(dist.rank() * 6, dist.rank() * 6 + 3), slice(dist.rank() * 6 + 3, None)
        with model.no_sync():
            loss_of(model, X[part[0]], Y[part[0]]).backward()
        own = gradients(model)
        last = slice(part[1].start, part[1].start + 3)
        loss_of(model, X[last], Y[last]).backward()
        return own, gradients(model)

    (first, a), (second, b) = dist.run_local(run, 2)
    assert np.abs(first["0.weight"] - second["0.weight"]).max() > 1e-3
    same(a, {n: 2 * g for n, g in whole_gradients().items()})
    same(b, a, 0)


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("counts", [(3, 1), (0, 2), (2, 2)])
def test_join_goes_on_with_ranks_that_have_no_batch_left(
    counts: tuple[int, int], level: int
) -> None:
    """Batches of other sizes on each rank, as many as there are: one process with all rows of a
    step at once gets the same weights."""
    sizes = ((4, 2, 1), (3, 5))  # rows of each rank's batches

    def parts(rank: int) -> list[slice]:
        ends = np.cumsum((rank * 7, *sizes[rank]))
        return [slice(a, b) for a, b in pairwise(ends)][: counts[rank]]

    def run() -> dict[str, Any]:
        mesh = dist.Mesh({"data": 2})
        model: Any = net()
        model = dist.shard(model, mesh, "data", level) if level else dist.DataParallel(model, mesh)
        opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with model.join(opt.step):
            for part in parts(dist.rank()):
                opt.zero_grad()
                loss_of(model, X[part], Y[part]).backward()
                opt.step()
        return {n: t.numpy() for n, t in model.state_dict().items()}

    model = net()
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(max(counts)):
        now = [parts(rank)[step] for rank in range(2) if step < counts[rank]]
        opt.zero_grad()
        x, y = np.concatenate([X[p] for p in now]), np.concatenate([Y[p] for p in now])
        loss_of(model, x, y).backward()
        opt.step()
    want = {n: p.detach().numpy() for n, p in model.named_parameters()}
    for found in dist.run_local(run, 2):
        same(found, want)


class Branches(nn.Module):
    """Each rank uses another branch; one is used by none."""

    def __init__(self) -> None:
        super().__init__()
        with scoped_generator(Generator(2)):
            self.first, self.second = nn.Linear(2, 1).double(), nn.Linear(2, 1).double()
            self.third = nn.Linear(2, 1).double()

    def forward(self, x: eg.Tensor, which: int) -> eg.Tensor:
        return (self.first, self.second)[which](x)


def test_unused_parameters_are_named_and_count_as_zero() -> None:
    def run() -> Any:
        model = dist.DataParallel(Branches(), dist.Mesh({"data": 2}))
        model(eg.ones((3, 2), "float64"), dist.rank()).sum().backward()
        return model.unused_parameters, gradients(model)

    with warnings.catch_warnings(record=True) as found:  # of all threads: filters are the process's
        warnings.simplefilter("always")
        (unused, grads), (_, again) = dist.run_local(run, 2)
    heard = [str(w.message) for w in found]
    assert unused == ("second.weight", "second.bias", "third.weight", "third.bias")
    assert any("second.weight" in message for message in heard)
    np.testing.assert_array_equal(grads["first.weight"], [[1.5, 1.5]])  # 3 and 0
    np.testing.assert_array_equal(again["second.weight"], [[1.5, 1.5]])
    assert grads["third.weight"] is None


@pytest.mark.parametrize("wrap", ["data", "zero3"])
def test_masks_are_those_of_the_whole_batch(wrap: str) -> None:
    def run() -> dict[str, Any]:
        mesh = dist.Mesh({"data": 3})
        model = (
            dist.DataParallel(net(dropout=0.4), mesh)
            if wrap == "data"
            else dist.shard(net(dropout=0.4), mesh, level=3)
        )
        with scoped_generator(Generator(9)):
            loss_of(model, X[rows(3)], Y[rows(3)]).backward()
        if wrap == "data":
            return gradients(model)
        return {n: p.grad.numpy() for n, p in model.named_parameters()}

    found = dist.run_local(run, 3)
    want = whole_gradients(dropout=0.4)
    if wrap == "zero3":
        joined = {n: np.concatenate([f[n] for f in found]) for n in want}
        same({n: joined[n][: g.size].reshape(g.shape) for n, g in want.items()}, want)
    else:
        same(found[0], want)


def test_sync_batch_norm_is_that_of_the_whole_batch() -> None:
    def run() -> Any:
        mesh = dist.Mesh({"data": 3})
        model = dist.DataParallel(dist.convert_sync_batchnorm(net(norm=True), mesh), mesh)
        loss_of(model, X[rows(3)], Y[rows(3)]).backward()
        return gradients(model), {n: b.numpy() for n, b in model.named_buffers()}

    whole = net(norm=True)
    loss_of(whole, X, Y).backward()
    for grads, buffers in dist.run_local(run, 3):
        same(grads, gradients(whole))
        same(buffers, {n: b.numpy() for n, b in whole.named_buffers()})


def test_buffers_of_the_first_rank_are_given_to_all() -> None:
    def run() -> Any:
        model = dist.DataParallel(net(norm=True), dist.Mesh({"data": 2}))
        for _ in range(2):
            loss_of(model, X[rows(2)], Y[rows(2)]).backward()
        with eg.no_grad():
            model(eg.tensor(X))  # all ranks move on by the same rows, from the same values
        return dict(model.named_buffers())["1.running_mean"].tolist()

    first, second = dist.run_local(run, 2)
    assert not np.allclose(first, 0)
    assert first == second


def refused(error: type[Exception], text: str, ranks: int, act: Any) -> None:
    """All ranks raise the same."""

    def run() -> bool:
        model = dist.DataParallel(net(), dist.Mesh({"data": ranks}))
        with pytest.raises(error, match=text):
            act(model)
        return True

    assert dist.run_local(run, ranks) == [True] * ranks


def test_bad_input_is_named_on_all_ranks() -> None:
    refused(ShapeError, r"5 rows do not divide over 2 ranks .*join", 2,
            lambda m: m.local_batch(eg.ones((5, 5))))  # fmt: skip
    refused(ArgumentError, "changed after it was wrapped: 0.weight", 2, changed)
    refused(GradientError, "backward reaches", 2,
            lambda m: m.module(eg.ones((2, 5), "float64")).sum().backward())  # fmt: skip
    refused(ArgumentError, "no axis 'model'", 1,
            lambda m: dist.DataParallel(net(), m.mesh, "model"))  # fmt: skip
    refused(ArgumentError, "takes a Module, got int", 1,
            lambda m: dist.DataParallel(3, m.mesh))  # fmt: skip
    refused(ArgumentError, "bucket_bytes must be a positive integer", 1,
            lambda m: dist.DataParallel(net(), m.mesh, bucket_bytes=0))  # fmt: skip


def changed(model: Any) -> None:
    model.module[0].weight = nn.Parameter(eg.ones((6, 5), "float64"))
    model(eg.ones((2, 5), "float64"))


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_batches_of_different_sizes_are_refused_on_all_ranks(level: int) -> None:
    """Before anything is done; outside of training each rank has what it has."""

    def run() -> list[bool]:
        mesh = dist.Mesh({"data": 2})
        model: Any = net()
        model = dist.shard(model, mesh, "data", level) if level else dist.DataParallel(model, mesh)
        x = eg.ones((2 + dist.rank(), 5), "float64")
        with pytest.raises(CollectiveMismatchError, match=r"as many rows on each rank: 3"):
            model(x)
        with eg.no_grad():
            assert model(x).shape == (len(x), 2)
        assert model.eval()(x).shape == (len(x), 2)
        model.train()(x[:2]).sum().backward()
        return [p.grad is not None for p in model.parameters()]

    assert dist.run_local(run, 2) == [[True] * 4] * 2


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_pipelines_loss_has_the_dtype_of_the_last_stages(dtype: str, device: str) -> None:
    """On every rank, also those that have no loss of their own."""

    def run() -> tuple[Any, Any]:
        stages = [nn.Linear(3, 3).to(dtype=dtype, device=device) for _ in range(2)]
        pipe = dist.pipeline(stages, 2, mesh=dist.Mesh({"pipe": 2}))
        x = eg.ones((4, 3), dtype, device=device)
        loss = pipe.step(nn.functional.mse_loss, x, x)
        return loss.dtype.name, pipe(x).dtype.name

    assert dist.run_local(run, 2) == [(dtype, dtype)] * 2


def test_a_lane_keeps_the_order_of_what_it_is_asked() -> None:
    """Also where some is for a device on which it does not take its threads, and of what raises."""
    lane, order = Lane("slow"), []

    def noted(i: int) -> int:
        if i % 2 == 0:
            time.sleep(0.02)
        order.append(i)
        if i == 4:
            raise ValueError(i)
        return i

    devices = ["cpu", "webgpu", "cpu", "webgpu", "cpu", "webgpu"]
    started = [lane.start(partial(noted, i), device) for i, device in enumerate(devices)]
    assert order == list(range(6))
    with pytest.raises(ValueError, match="4"):
        started.pop(4).result()
    assert [future.result() for future in started] == [0, 1, 2, 3, 5]


def test_a_pipeline_whose_stage_was_changed_is_refused() -> None:
    def run() -> bool:
        pipe = dist.pipeline([nn.Linear(3, 3), nn.Linear(3, 3)], 2, mesh=dist.Mesh({"pipe": 2}))
        pipe.chunks[0].weight = nn.Parameter(eg.ones((3, 3)))
        with pytest.raises(ArgumentError, match=r"pipeline: .* wrapped: \d.weight"):
            pipe.step(nn.functional.mse_loss, eg.ones((4, 3)), eg.ones((4, 3)))
        return True

    assert dist.run_local(run, 2) == [True] * 2

"""What ranks keep of a sharded model, tensor parallel layers one by one, and clipping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn
from everygrad.errors import ArgumentError, PlacementError, ShapeError
from everygrad.ops.random.generators import Generator, scoped_generator

RNG = np.random.default_rng(7)
WIDE = 96  # of the layers whose memory is counted


def big() -> nn.Module:
    with scoped_generator(Generator(4)):
        layers = [part for _ in range(3) for part in (nn.Linear(WIDE, WIDE), nn.Tanh())]
        return nn.Sequential(*layers).double()


def test_level_three_keeps_no_whole_parameter_in_the_graph() -> None:
    """A weight that a graph saves is a placeholder, gathered again in backward."""

    def run() -> Any:
        model = dist.shard(big(), dist.Mesh({"data": 2}), level=3)
        out = model(eg.ones((4, WIDE), "float64"))
        todo, saved = [out._node], []
        for node in todo:
            saved += [v for v in node.saved if v is not None] if type(node.saved) is tuple else []
            todo += [p for p in node.parents if p is not None and p not in todo]
        largest = max(v.size for v in saved)
        out.sum().backward()
        return largest, all(p.grad is not None for p in model.parameters())

    assert dist.run_local(run, 2) == [(4 * WIDE, True)] * 2


def test_whole_values_of_shards() -> None:
    def run(level: int) -> Any:
        model = dist.shard(big(), dist.Mesh({"data": 3}), level=level)
        values = {n: t.numpy() + 1.0 for n, t in model.state_dict().items()}
        model.load_state_dict({n: eg.tensor(v) for n, v in values.items()})
        with pytest.raises((ArgumentError, ShapeError), match="load_state_dict"):
            model.load_state_dict({"0.weight": eg.ones((2, 2))})
        again = model.state_dict()
        return all((again[n].numpy() == v).all() for n, v in values.items()) and len(values)

    for level in (1, 2, 3):
        assert dist.run_local(run, 3, level) == [6] * 3


@pytest.mark.parametrize("level", [1, 2, 3])
def test_hooks_of_shards_are_run(level: int) -> None:
    """A gradient is what the hook of its shard makes of it."""

    def run(doubled: bool) -> Any:
        model = dist.shard(big(), dist.Mesh({"data": 2}), level=level)
        complete = []
        for name, p in model.named_parameters():
            if doubled:
                p.register_hook(lambda g: g * 2)
            p.register_post_accumulate_grad_hook(lambda t, name=name: complete.append(name))
        model(eg.ones((4, WIDE), "float64")).sum().backward()
        return sorted(complete), [p.grad.numpy() for p in model.parameters()]

    for (names, plain), (_, doubled) in zip(
        dist.run_local(run, 2, False), dist.run_local(run, 2, True), strict=True
    ):
        assert len(names) == len(plain) == 6
        for a, b in zip(plain, doubled, strict=True):
            np.testing.assert_array_equal(2 * a, b)


def test_a_sampler_deals_out_to_the_ranks_there_are() -> None:
    def run() -> Any:
        sampler = eg.data.DistributedSampler(range(11), shuffle=False)
        return sampler.num_replicas, list(sampler)

    assert dist.run_local(run, 3) == [(3, [r, r + 3, r + 6, (r + 9) % 11]) for r in range(3)]


@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallel_block(sequence: bool) -> None:
    """Norm, column, row, twice, on inputs that are whole or sharded along the sequence."""
    x = RNG.standard_normal((2, 6, 8))

    def layers() -> list[Any]:
        with scoped_generator(Generator(5)):
            made = [nn.LayerNorm(8), nn.Linear(8, 10), nn.Linear(10, 8)]
        return [m.double() for m in made]

    def forward(parts: list[Any], given: eg.Tensor) -> eg.Tensor:
        norm, up, down = parts
        return given + down(nn.functional.gelu(up(norm(given))))

    whole = layers()
    given = eg.tensor(x, requires_grad=True)
    (forward(whole, given) ** 2).mean().backward()

    def run() -> Any:
        mesh = dist.Mesh({"model": 3})
        norm, up, down = layers()
        dim = 1 if sequence else None
        column = dist.ColumnParallelLinear.from_linear(up, mesh, sequence_dim=dim)
        row = dist.RowParallelLinear.from_linear(down, mesh, sequence_dim=dim)
        own = eg.tensor(x[:, 2 * dist.rank() : 2 * dist.rank() + 2] if sequence else x)
        own = own.requires_grad_()
        if sequence:
            norm = dist.sequence_parallel(norm, mesh)
        out = forward([norm, column, row], own)
        loss = (out**2).sum() / x.size
        loss.backward()
        grads = [norm.weight.grad, norm.bias.grad, column.weight.grad, column.bias.grad]
        grads += [row.weight.grad, row.bias.grad, own.grad]
        return [g.numpy() for g in grads]

    found = dist.run_local(run, 3)
    norm, up, down = whole
    for grads in found:
        np.testing.assert_allclose(grads[0], norm.weight.grad.numpy(), atol=1e-14)
        np.testing.assert_allclose(grads[1], norm.bias.grad.numpy(), atol=1e-14)
        np.testing.assert_allclose(grads[5], down.bias.grad.numpy(), atol=1e-14)
    for place, axis, want in ((2, 0, up.weight), (3, 0, up.bias), (4, 1, down.weight)):
        joined = np.concatenate([grads[place] for grads in found], axis)
        np.testing.assert_allclose(joined, want.grad.numpy(), atol=1e-14)
    inputs = [grads[6] for grads in found]
    got = np.concatenate(inputs, 1) if sequence else inputs[0]
    np.testing.assert_allclose(got, given.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("classes", [6, 7])
def test_parallel_cross_entropy_and_embedding(classes: int) -> None:
    scores = RNG.standard_normal((4, classes)) * 30
    labels = RNG.integers(0, classes, (4,))

    def run(reduction: str) -> Any:
        mesh = dist.Mesh({"model": 3})
        start, stop = dist.extent(classes, 3, dist.rank())
        own = eg.tensor(scores[:, start:stop], requires_grad=True)
        loss = dist.parallel_cross_entropy(
            own, eg.tensor(labels), mesh, reduction=reduction, classes=classes
        )
        loss.sum().backward()
        return loss.detach().numpy(), own.grad.numpy()

    for reduction in ("mean", "sum", "none"):
        whole = eg.tensor(scores, requires_grad=True)
        want = nn.functional.cross_entropy(whole, eg.tensor(labels), reduction=reduction)
        want.sum().backward()
        found = dist.run_local(run, 3, reduction)
        np.testing.assert_allclose(found[0][0], want.detach().numpy(), rtol=1e-13)
        joined = np.concatenate([g for _, g in found], 1)
        np.testing.assert_allclose(joined, whole.grad.numpy(), atol=1e-14)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, float("inf")])
def test_clipping_counts_every_element_once(norm_type: float) -> None:
    gradient = RNG.standard_normal((10,))
    shared = RNG.standard_normal((3,))

    def run() -> Any:
        mesh = dist.Mesh({"data": 2, "model": 2})
        with scoped_generator(Generator(1)):
            layer = nn.Linear(10, 1, bias=False).double()
        row = dist.RowParallelLinear.from_linear(layer, mesh, "model")
        (box,) = row.weight.boxes
        row.weight.grad = eg.tensor(gradient[None, box[1][0] : box[1][1]])
        other = nn.Parameter(eg.zeros((3,), "float64"))
        other.grad = eg.tensor(shared)
        total = dist.clip_grad_norm_([row.weight, other], 0.5, norm_type)
        return total.item(), other.grad.numpy()

    want = np.linalg.norm(np.concatenate([gradient, shared]), norm_type)
    for total, clipped in dist.run_local(run, 4):
        assert total == pytest.approx(want, rel=1e-14)
        np.testing.assert_allclose(clipped, shared * 0.5 / (want + 1e-6), rtol=1e-14)


def test_bad_input_is_named() -> None:
    def run() -> bool:
        mesh = dist.Mesh({"data": 2})
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Embedding(1, 3))
        cases: list[tuple[type[Exception], str, Any]] = [
            (ArgumentError, "level must be 1, 2 or 3, got 4",
             lambda: dist.shard(big(), mesh, "data", 4)),
            (ArgumentError, "no axis 'pipe'", lambda: dist.shard(big(), mesh, "pipe", 3)),
            (ArgumentError, "no layer is called 'missing'",
             lambda: dist.parallelize(model, mesh, "data", {"missing": dist.Shard(0)})),
            (PlacementError, "1 is a ReLU, whose weight cannot be Shard",
             lambda: dist.parallelize(model, mesh, "data", {"1": dist.Shard(0)})),
            (ArgumentError, "1 features leave some of 2 ranks",
             lambda: dist.parallelize(model, mesh, "data", {"2": dist.Shard(0)})),
            (ArgumentError, "in shards along data already",
             lambda: dist.shard(dist.shard(nn.Linear(4, 4), mesh, level=3).module, mesh, level=2)),
            (ArgumentError, "no parameter is a shard",
             lambda: dist.clip_grad_norm_([nn.Parameter(eg.ones((2,)))], 1.0)),
            (ShapeError, "of 5 classes rank", lambda: dist.parallel_cross_entropy(
                eg.ones((2, 4)), eg.tensor([0, 1]), mesh, "data", classes=5)),
            (ArgumentError, "must be 2, one for each rank, got 3",
             lambda: dist.pipeline([model] * 3, 2, "1f1b", mesh, "data")),
            (ArgumentError, "microbatches in groups of 2",
             lambda: dist.pipeline([model] * 4, 3, "interleaved", mesh, "data")),
            (ArgumentError, "schedule must be one of",
             lambda: dist.pipeline([model], 2, "2f2b", mesh)),
        ]  # fmt: skip
        for error, text, act in cases:
            with pytest.raises(error, match=text):
                act()
        return isinstance(model[0], nn.Linear)  # nothing was half done

    assert dist.run_local(run, 2) == [True, True]

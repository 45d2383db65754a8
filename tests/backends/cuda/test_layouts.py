"""Channels-last layouts of compiled convolutions, without a GPU: the rewritten graph computes the
same, and nothing is rearranged between two convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver.cudnn import ConvProblem
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import layouts
from everygrad.backends.cuda.graph.layouts import ChannelsLastRewriter, in_channels_last
from everygrad.backends.cuda.graph.recording import ALIGN
from everygrad.backends.cuda.graph.replay import Replay
from everygrad.compiler import recompute
from everygrad.compiler.ir import Graph, reachable
from everygrad.nn import functional as F
from tests.support.cuda_graphs import agree, outputs, rand

DRY = "cuda:dry"


class Plan:
    """An engine for a problem, which does nothing."""

    workspace = 0

    def __init__(self, problem: ConvProblem) -> None:
        self.problem = problem
        self.name, self.__name__ = problem.op, str(problem)

    def __call__(self, *addresses: int) -> None:
        pass


class Engines:
    """A cuDNN that has an engine for every problem that `serves` accepts."""

    def __init__(self, serves: Callable[[ConvProblem], bool] = lambda problem: True) -> None:
        self.serves = serves

    def plan(self, problem: ConvProblem) -> Plan | None:
        return Plan(problem) if self.serves(problem) else None


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    driver = DryDriver()
    monkeypatch.setattr(driver, "cudnn", Engines(), raising=False)
    made = Cuda(DRY, driver)
    monkeypatch.setitem(base._OPEN, DRY, made)
    return made


class Block(nn.Module):
    """Convolutions of several kinds, norms, a residual, pooling and a head."""

    def __init__(self, pool: Any, cat: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 5, stride=2, padding=2, bias=False)
        self.second = nn.Conv2d(6, 4, 1)
        self.third = nn.Conv2d(4, 6, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (6, 4, 6)])
        self.pool, self.cat = pool, cat
        self.head = nn.Linear(12 if cat else 6, 3)

    def forward(self, x: Any) -> Any:
        x = self.pool(F.relu(self.norms[0](self.first(x))))
        y = F.gelu(self.norms[1](self.second(x)))
        y = self.norms[2](self.third(y))
        y = eg.concat([x, F.relu(y)], axis=1) if self.cat else F.relu(x + y)
        return self.head(y.mean(axis=(2, 3)))


POOLS = {
    "max": nn.MaxPool2d(3, 2, 1),
    "side by side": nn.MaxPool2d(2),
    "mean": nn.AvgPool2d(2, 2),
    "none": nn.Identity(),
}


def training_graph(pool: Any, cat: bool) -> tuple[Graph, list[Any]]:
    """A step's graph as it is traced for CUDA, in float32, and values of its inputs."""
    eg.manual_seed(0)
    model = Block(pool, cat).to(DRY)
    opt = eg.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    x, y = rand(4, 3, 13, 12), np.arange(4) % 3
    lowered = eg.jit(step).lower(*(eg.tensor(a).to(DRY) for a in (x, y)))
    graph = lowered.simplified
    given = [
        np.float32(1 + 0.1 * rand(*v.shape, seed=i)) if v.dtype is eg.float32 else np.zeros(v.shape)
        for i, v in enumerate(graph.inputs)
    ]
    given = [np.asarray(a, v.dtype.np) for a, v in zip(given, graph.inputs, strict=True)]
    return graph, [x, y, *given[2:]]


def names(graph: Graph) -> list[str]:
    return [v.name for v in reachable(graph.outputs)]


@pytest.mark.parametrize("cat", [False, True])
@pytest.mark.parametrize("pool", POOLS)
def test_steps_compute_the_same_in_channels_last(dry: Cuda, pool: str, cat: bool) -> None:
    graph, given = training_graph(POOLS[pool], cat)
    wanted = outputs(graph, given)
    made = ChannelsLastRewriter(graph, lambda v: True).run(graph)
    made.verify()
    agree(outputs(made, given), wanted)
    assert sum(name in layouts.CONVOLUTIONS for name in names(made)) == 0
    assert sum(name.startswith("conv2d") for name in names(made)) == 8  # the image needs none


@pytest.mark.parametrize("served", ["conv2d", "conv2d_input", "conv2d_weight"])
def test_each_convolution_may_be_served_or_not(dry: Cuda, served: str) -> None:
    graph, given = training_graph(POOLS["max"], False)
    wanted = outputs(graph, given)
    for serves in (lambda v: v.name == served, lambda v: v.name != served):
        made = ChannelsLastRewriter(graph, serves).run(graph)
        made.verify()
        agree(outputs(made, given), wanted)


def convolved(x: Any, *weights: Any) -> Any:
    with eg.autocast(dtype="bfloat16"):
        for w in weights:
            x = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True))
    return x


def compiled(dry: Cuda, fn: Any, *shapes: tuple[int, ...]) -> Replay:
    tensors = [eg.tensor(rand(*shape)).to(DRY) for shape in shapes]
    return Replay(dry, eg.jit(fn).lower(*tensors).simplified)


SHAPES = ((2, 8, 9, 7), (16, 8, 3, 3), (8, 16, 3, 3))


def test_nothing_is_rearranged_between_convolutions(dry: Cuda) -> None:
    gradients = eg.grad(lambda *given: convolved(*given).astype("float32").sum(), (1, 2))
    steps = compiled(dry, gradients, *SHAPES).steps()
    assert not [s for s in steps if s.startswith(("copy", "permute", "transpose"))], steps
    library = [s for s in steps if s.startswith("convolution")]
    assert len(library) == 5
    assert all("channels last" in s for s in library)


def test_images_are_kept_in_16_bits(dry: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever batch norm and its backward need in float32 is made again from what convolutions
    read and wrote."""
    monkeypatch.setattr(recompute, "LARGE", 64)
    shapes = ((2, 8, 9, 7), (24, 8, 3, 3), (40, 24, 3, 3), (8, 40, 3, 3))
    gradients = eg.grad(lambda *given: convolved(*given).astype("float32").sum(), (1, 2, 3))
    made = compiled(dry, gradients, *shapes)
    lives = [life for _, life in made.memory().placed]
    halves = {-(-2 * 9 * 7 * channels * 2 // ALIGN) * ALIGN for channels in (8, 24, 40)}
    wide = {-(-2 * 9 * 7 * channels * 4 // ALIGN) * ALIGN for channels in (24, 40)}
    assert not halves & wide
    assert sum(life.nbytes in halves for life in lives) >= 6  # of results and of what is read
    assert not [life for life in lives if life.nbytes in wide]


def test_results_lie_in_the_order_of_their_axes(dry: Cuda) -> None:
    made = compiled(dry, convolved, *SHAPES)
    (result,) = made.results
    assert result.strides == (8 * 9 * 7, 9 * 7, 7, 1)


@pytest.mark.parametrize(
    ("serves", "options"),
    [(lambda problem: not problem.channels_last, {}), (lambda problem: True, {"groups": 2})],
    ids=["no engine", "groups"],
)
def test_graphs_without_such_convolutions_stay_as_they_are(
    dry: Cuda, monkeypatch: pytest.MonkeyPatch, serves: Any, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(dry.gpu.driver, "cudnn", Engines(serves))
    x, w = rand(1, 4, 5, 5), rand(4, 4 // options.get("groups", 1), 3, 3)

    def fn(x: Any, w: Any) -> Any:
        return F.conv2d(x.astype("bfloat16"), w.astype("bfloat16"), **options)

    graph = eg.jit(fn).lower(eg.tensor(x).to(DRY), eg.tensor(w).to(DRY)).simplified
    assert "conv2d" in names(graph)
    assert in_channels_last(dry, graph) is graph


def test_float32_that_is_not_rounded_stays_as_it_is(dry: Cuda) -> None:
    given = [eg.tensor(rand(*shape)).to(DRY) for shape in SHAPES[:2]]
    graph = eg.jit(lambda x, w: F.conv2d(x, w)).lower(*given).simplified
    assert in_channels_last(dry, graph) is graph

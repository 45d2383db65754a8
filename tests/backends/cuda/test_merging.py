"""Kernels merged into one launch on CUDA, without a GPU: what its table says, and the order."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import merging
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.core.shapes import size_of

DRY = "cuda:dry"
SHAPES = [(64, 64), (7,), (20, 9), (33,), (3, 5, 7), (1,), (2100,), (40, 300)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dry GPU that nothing was launched on."""
    made = Cuda(DRY, DryDriver())
    monkeypatch.setitem(base._OPEN, DRY, made)
    return made


def stepped(make: Callable[..., Any]) -> Any:
    """The replay of an optimiser's step, compiled when its state is there."""
    params = [eg.tensor(np.ones(s, np.float32), device=DRY).requires_grad_() for s in SHAPES * 2]
    opt = make(params)
    step = eg.jit(lambda: opt.step())
    for _ in range(2):
        for p in params:
            p.grad = eg.tensor(np.ones(p.shape, np.float32), device=DRY)
        step()
    return step.latest.replay


def trained() -> Any:
    """The replay of a training step with clipping and an average of the weights."""
    layers = [nn.Embedding(50, 24), nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40)]
    net = nn.Sequential(*layers, nn.Linear(40, 50)).to(DRY)
    opt = optim.LAMB(net.parameters())
    multi = optim.swa_utils.get_ema_multi_avg_fn(0.9)
    mean = optim.swa_utils.AveragedModel(net, multi_avg_fn=multi)
    x = eg.zeros((4, 6), "int64", DRY)

    def step(x: Any) -> None:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x).reshape(24, 50), x.reshape(24)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        mean.update_parameters(net)

    compiled = eg.jit(step)
    compiled(x)
    compiled(x)
    return compiled.latest.replay


PROGRAMS: dict[str, Callable[[], Any]] = {
    "AdamW": lambda: stepped(optim.AdamW),
    "ASGD": lambda: stepped(optim.ASGD),
    "LAMB": lambda: stepped(optim.LAMB),
    "Adafactor": lambda: stepped(optim.Adafactor),
    "Adam8bit": lambda: stepped(lambda p: optim.Adam8bit(p, block_size=32, min_8bit_size=64)),
    "network": trained,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_table_has_the_arguments_of_every_entry(
    gpu: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, Any]] = []
    merge = merging.merge

    def noted(gpu: Any, given: Any) -> Any:
        made.append((given, merge(gpu, given)))
        return made[-1][1]

    monkeypatch.setattr(merging, "merge", noted)
    PROGRAMS[name]()
    assert made
    for given, (order, step) in made:
        written = step.what.written
        table = {"at": _Slots(step), "number": written.numbers}
        branches = re.findall(r"if \(k < (\d+)\) part\d+_\w+\((.*?)\);", written.text.source)
        firsts = written.numbers[: len(order)]
        blocks = [size_of(given[n].written.grid) for n in order]
        assert [*firsts, written.grid[0]] == [sum(blocks[:k]) for k in range(len(order) + 1)]
        assert 8 * written.pointers + 4 * len(written.numbers) <= 4096
        narrow = [given[n].threads < written.block for n in order]
        assert sum(n for n, is_narrow in zip(blocks, narrow, strict=True) if is_narrow) <= 128
        for k, n in enumerate(order):
            entry = given[n]
            call = next(text for end, text in branches if k < int(end))
            found = [
                table[what][k + int(sign + at) if sign else int(at)]
                for what, sign, at in re.findall(r"table\.(\w+)\[(?:k ([+-]) )?(\d+)\]", call)
            ]
            places = entry.written.grid[: len(found) - written_arguments(entry)]
            assert found == [*_Slots(entry.step), *entry.written.numbers, *places]
            assert written.block >= entry.written.block


def written_arguments(entry: Any) -> int:
    return len(entry.parts.pointers) + len(entry.parts.numbers)


class _Slots(list[Any]):
    """A step's addresses, those of placeholders by slot and offset."""

    def __init__(self, step: Any) -> None:
        places = {r.at: (r.slot, r.offset) for r in step.relocations}
        super().__init__(places.get(i, a) for i, a in enumerate(step.arguments))


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_run_behind_what_they_need(
    gpu: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []
    merged = merging.merged

    def noted(gpu: Any, steps: Any, *rest: Any) -> Any:
        seen.append((steps, merged(gpu, steps, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(merging, "merged", noted)
    replay = PROGRAMS[name]()
    ((steps, launches),) = seen[-1:]
    at = {n: k for k, launch in enumerate(launches) for n in launch.numbers}
    assert sorted(at) == [*range(len(steps))]
    assert len(launches) < len(steps)
    accesses = [merging.access_of(step) for step in steps]
    for k, (reads, writes) in enumerate(accesses):
        for n in range(k):
            if writes & (accesses[n].reads | accesses[n].writes) or reads & accesses[n].writes:
                assert at[n] < at[k], (n, k)
    # what is written over is read by its own kernel alone, or was read before
    of = {k: replay.slot(array) for k, array in enumerate(replay.results)}
    if name == "AdamW":  # all that it moves; parameters of one element are made with its numbers
        assert len(replay.donations) >= 3 * 2 * (len(SHAPES) - 1)
    for k, i in replay.donations.items():
        source, out = replay.inputs[i], of[k]
        readers = [n for n, (reads, _) in enumerate(accesses) if source in reads]
        (writer,) = [n for n, (_, writes) in enumerate(accesses) if out in writes]
        assert all(n == writer or at[n] < at[writer] for n in readers)


def test_kernels_whose_results_wait_long_are_not_merged(
    gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kernels() -> list[str]:
        xs = [eg.ones((64, 64), device=DRY) for _ in range(6)]
        f = eg.jit(lambda *xs: [eg.exp(x) @ x for x in xs])
        f(*xs)
        return [line.split("_")[0] for line in f.latest.replay.steps()]

    assert kernels() == ["multi", *["matmul"] * 6]
    monkeypatch.setattr(merging, "SMALL", 64 * 64 * 4 - 1)
    assert kernels() == ["fused", "matmul"] * 6


def test_merged_kernels_compile(gpu: Any) -> None:
    for name in ("LAMB", "Adafactor", "Adam8bit"):
        PROGRAMS[name]()
    texts = [t for n, t in gpu.gpu.driver.texts.items() if n.startswith("multi_tensor")]
    assert len(texts) > 8
    whole = with_library("".join(t.source for t in texts))
    options = ("--gpu-architecture=sm_80", *nvrtc.OPTIONS, "--Ofast-compile=max")
    assert nvrtc.opened().build("all", whole, options)

"""Checkpoints of ranks: saved on so many, loaded on others, bit for bit; damaged, and of others."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.distributed as dist
from everygrad import nn, optim
from everygrad.errors import ArgumentError, FileError, MissingFileError, ShapeError
from everygrad.ops.random.generators import Generator, scoped_generator
from tests.distributed import small_gpt

COUNTS = (1, 2, 3, 4, 7)


class Odd(nn.Module):
    """Sizes that do not divide, one element, and none at all on most ranks."""

    def __init__(self, seed: int = 6) -> None:
        super().__init__()
        with scoped_generator(Generator(seed)):
            self.layer = nn.Linear(5, 3)
            self.norm = nn.BatchNorm1d(3)
            self.scale = nn.Parameter(eg.rand(()))
            self.few = nn.Parameter(eg.rand((2,)))

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        return self.norm(self.layer(x)) * self.scale + self.few.sum()


def built(level: int, ranks: int, seed: int = 6) -> tuple[Any, Any, Any]:
    mesh = dist.Mesh({"data": ranks})
    model = small_gpt.wrapped(Odd(seed), mesh, level)
    return mesh, model, optim.AdamW(model.parameters(), lr=0.1)


def trained(level: int, folder: str) -> None:
    mesh, model, opt = built(level, dist.world_size())
    for i, (_, p) in enumerate(model.named_parameters()):
        p.grad = (p.detach() + 0.5) * (i + 1.0)
    opt.step()
    dist.save(folder, mesh, model, opt, {"step": 3, "name": "odd"})


def copied(level: int, source: str, target: str) -> Any:
    """Load on these ranks, and save what was loaded."""
    mesh, model, opt = built(level, dist.world_size(), seed=8)
    extra = dist.load(source, mesh, model, opt)
    dist.save(target, mesh, model, opt, extra)
    return extra


def content(folder: Path) -> dict[str, Any]:
    """All elements of a checkpoint, put together by their boxes."""
    said = json.loads((folder / "manifest.json").read_text())["content"]
    found: dict[str, Any] = {"extra": said["extra"], "groups": said["groups"]}
    files = {p.name: eg.load(p) for p in folder.glob("*.safetensors")}
    for name, about in said["tensors"].items():
        whole = np.full(about["shape"], np.nan)
        for part in about["parts"]:
            flat, at = np.asarray(files[part["file"]][name]), 0
            for box in part["boxes"]:
                place = tuple(slice(a, b) for a, b in box)
                size = whole[place].size
                whole[place] = flat[at : at + size].reshape(whole[place].shape)
                at += size
        assert not np.isnan(whole).any(), name
        found[name] = whole.tobytes()
    return found


@pytest.mark.parametrize("saved", COUNTS)
def test_any_number_of_ranks_loads_what_any_number_saved(saved: int, tmp_path: Path) -> None:
    dist.run_local(trained, saved, 3, str(tmp_path / "a"))
    want = content(tmp_path / "a")
    assert len(want) == 2 + 6 + 3 + 6 * 3  # extra, groups; parameters, buffers, moments, steps
    for loaded, level in zip(COUNTS, (3, 2, 3, 1, 0), strict=True):
        target = str(tmp_path / f"b{loaded}")
        extras = dist.run_local(copied, loaded, level, str(tmp_path / "a"), target)
        assert extras == [{"step": 3, "name": "odd"}] * loaded
        assert content(Path(target)) == want


@pytest.mark.parametrize(("level", "ranks"), [(0, 2), (1, 3), (2, 4)])
def test_levels_that_keep_whole_parameters(level: int, ranks: int, tmp_path: Path) -> None:
    dist.run_local(trained, ranks, level, str(tmp_path / "a"))
    dist.run_local(copied, 3, 3, str(tmp_path / "a"), str(tmp_path / "b"))
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Three steps on two ranks, then three on three tensor parallel ones times one."""
    folder = str(tmp_path)
    steps = 6

    def part(axes: dict[str, int], level: int, first: bool) -> list[float]:
        mesh = dist.Mesh(axes)
        inside = small_gpt.gpt()
        if "model" in axes:
            dist.parallelize(inside, mesh, "model", small_gpt.SHARDS)
        model = small_gpt.wrapped(inside, mesh, level)
        opt = small_gpt.optimizer(model.parameters())
        if not first:
            dist.load(folder, mesh, model, opt)
        found = []
        for x, y in small_gpt.batches(steps)[:3] if first else small_gpt.batches(steps)[3:]:
            x, y = model.local_batch(x, y)
            if "model" in axes:
                loss = dist.parallel_cross_entropy(
                    model(x), y, mesh, "model", classes=small_gpt.LETTERS
                )
            else:
                loss = small_gpt.loss_of(model, x, y)
            opt.zero_grad()
            loss.backward()
            dist.clip_grad_norm_(model.parameters(), 1.0, mesh=mesh)
            opt.step()
            found.append(dist.all_reduce(loss.detach(), mesh, "data", "mean").item())
        dist.save(folder, mesh, model, opt)
        return found

    begun = dist.run_local(part, 2, {"data": 2}, 2, True)[0]
    went_on = dist.run_local(part, 4, {"data": 2, "model": 2}, 3, False)[0]
    want = small_gpt.losses_of_one_process(small_gpt.STEPS)[:steps]
    assert max(abs(a - b) for a, b in zip(begun + went_on, want, strict=True)) < 1e-12


def failing(folder: str, make: Any, error: type[Exception], text: str) -> list[Any]:
    """Loading on two ranks raises on both, and leaves what there is."""

    def run() -> bool:
        mesh = dist.Mesh({"data": 2})
        model = dist.shard(make(), mesh, level=3)
        before = [p.tolist() for p in model.parameters()]
        with pytest.raises(error, match=text):
            dist.load(folder, mesh, model)
        return before == [p.tolist() for p in model.parameters()]

    return dist.run_local(run, 2)


class Other(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(2, 2)


class Wider(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.few = nn.Parameter(eg.ones((3,)))


def test_what_cannot_be_loaded_is_named_and_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    good = [True, True]
    assert failing(str(folder), Odd, MissingFileError, "no checkpoint there is whole") == good
    dist.run_local(trained, 2, 3, str(folder))
    assert failing(str(folder), Other, ArgumentError, "another model: .*more.weight") == good
    assert failing(str(folder), Wider, ShapeError, r"few has shape \(2,\) there, \(3,\)") == good
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"step": 3', '"step": 4'))
    assert failing(str(folder), Odd, FileError, "its checksum does not fit") == good
    manifest.write_text(text[:-20])
    assert failing(str(folder), Odd, FileError, "is damaged") == good
    manifest.write_text(text)
    lost = sorted(folder.glob("*rank00001*"))[0]
    data = bytearray(lost.read_bytes())
    first = int.from_bytes(data[:8], "little") + 8
    lost.write_bytes(bytes(data[:first]) + bytes(b ^ 1 for b in data[first:]))
    assert failing(str(folder), Odd, FileError, "rank|checksum|damaged") == good
    lost.unlink()
    assert failing(str(folder), Odd, FileError, "rank|there is no") == good


def test_a_save_that_fails_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    dist.run_local(trained, 2, 3, str(tmp_path))
    before = content(tmp_path)

    def run() -> bool:
        mesh, model, opt = built(3, 2)
        extra = {"bad": object()} if dist.rank() else {"step": 9}
        with pytest.raises((TypeError, FileError), match=r"rank 1 failed|not JSON"):
            dist.save(str(tmp_path), mesh, model, opt, extra)
        return True

    assert dist.run_local(run, 2) == [True, True]
    assert content(tmp_path) == before


def test_older_files_go_when_the_new_checkpoint_is_whole(tmp_path: Path) -> None:
    dist.run_local(trained, 3, 3, str(tmp_path))
    dist.run_local(trained, 2, 3, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2 + 1


def stages(seed: int) -> list[Any]:
    with scoped_generator(Generator(seed)):
        return [nn.Sequential(nn.Linear(5, 7), nn.Tanh()), Odd7(seed)]


class Odd7(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)
        self.odd = nn.BatchNorm1d(3)

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        return self.odd(self.layer(x))


def piped(seed: int, level: int | None, axes: dict[str, int]) -> tuple[Any, Any, Any]:
    """A pipeline of two stages on these ranks, each shared in some way over `data`; on one rank the
    same model as it is."""
    mesh = dist.Mesh(axes)
    parts = stages(seed)
    if "pipe" not in axes:
        model: Any = nn.Sequential(*parts)
    else:
        if level is not None:
            parts = [small_gpt.wrapped(part, mesh, level) for part in parts]
        model = dist.pipeline(parts, microbatches=2, schedule="1f1b", mesh=mesh)
    return mesh, model, optim.AdamW(model.parameters(), lr=0.1)


WAYS: list[tuple[int | None, dict[str, int]]] = [
    (None, {"data": 1}),
    (None, {"pipe": 2}),
    (0, {"data": 2, "pipe": 2}),
    (1, {"pipe": 2, "data": 2}),
    (3, {"data": 2, "pipe": 2}),
]


@pytest.mark.parametrize("target", range(len(WAYS)))
@pytest.mark.parametrize("source", range(len(WAYS)))
def test_pipelines_are_saved_whole(source: int, target: int, tmp_path: Path) -> None:
    """All stages, and from there to any other way to have the model; nobody says which mesh axis
    the stages lie along."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")

    def write(seed: int, way: int, folder: str, load: str | None) -> None:
        mesh, model, opt = piped(seed, *WAYS[way])
        if load is not None:
            dist.load(load, mesh, model, opt)
        else:
            for _, p in model.named_parameters():
                p.grad = p.detach() + 0.5
            opt.step()
        dist.save(folder, mesh, model, opt)

    def ranks(way: int) -> int:
        return int(np.prod(list(WAYS[way][1].values())))

    dist.run_local(write, ranks(source), 3, source, first, None)
    dist.run_local(write, ranks(target), 4, target, second, first)
    a, b = content(tmp_path / "first"), content(tmp_path / "second")
    count = sum(1 for _ in nn.Sequential(*stages(3)).parameters())
    assert sum(key.startswith("model/") for key in a) == count
    assert {k: v for k, v in a.items() if k != "groups"} == {
        k: v for k, v in b.items() if k != "groups"
    }


def test_parameters_that_no_rank_writes_are_named(tmp_path: Path) -> None:
    def run() -> bool:
        mesh = dist.Mesh({"data": 2})
        model = nn.ModuleDict({f"part{dist.rank()}": nn.Linear(3, 2)})
        with pytest.raises((ArgumentError, FileError), match=r"part1\.weight.*split_over"):
            dist.save(str(tmp_path), mesh, model)
        dist.save(str(tmp_path), mesh, model, split_over=("data",))
        return True

    assert dist.run_local(run, 2) == [True, True]
    named = content(tmp_path)
    assert {key for key in named if "/" in key} == {
        f"model/part{i}.{name}" for i in range(2) for name in ("weight", "bias")
    }


def test_pieces_cover_everything() -> None:
    """Stretches of boxes, for all starts and stops of some shapes."""
    from_module = dist.parallel.shard_parameter
    checked = 0
    for shape in ((), (4,), (2, 3), (2, 1, 3), (3, 2, 2)):
        box = from_module.whole_box(shape)
        numbers = np.arange(int(np.prod(shape))).reshape(shape)
        for start, stop in product(range(numbers.size + 1), repeat=2):
            boxes = from_module.stretch_boxes(box, start, stop)
            parts = [numbers[tuple(slice(a, b) for a, b in found)].reshape(-1) for found in boxes]
            joined = np.concatenate([*parts, np.zeros((0,), int)])
            assert joined.tolist() == list(range(start, stop))
            checked += 1
    assert checked > 100

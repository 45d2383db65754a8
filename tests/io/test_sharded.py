"""Tensors in several files with an index, ours and those of others."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import everygrad as eg
from everygrad.errors import ArgumentError, FileError

INDEX = "model.safetensors.index.json"


def state(seed: int = 0) -> dict[str, eg.Tensor]:
    rng = np.random.default_rng(seed)
    return {f"layer{i}.weight": eg.tensor(rng.standard_normal((10, i))) for i in range(12)}


@pytest.mark.parametrize("name", ["model.safetensors", INDEX])
@pytest.mark.parametrize("size", [1, "1KB", "2KiB", 10**9])
def test_round_trip(tmp_path: Path, name: str, size: int | str) -> None:
    obj = {"model": state(), "step": 3, "c": eg.ones((2,)).astype("complex128"), "n": np.ones(2)}
    eg.save(tmp_path / name, obj, max_shard_size=size)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == {1: 14, "1KB": 7, "2KiB": 3, 10**9: 1}[size]
    found = eg.load(tmp_path / INDEX)
    assert found["step"] == 3
    assert found["c"].dtype is eg.complex128
    assert isinstance(found["n"], np.ndarray)
    for key, t in obj["model"].items():
        np.testing.assert_array_equal(found["model"][key].numpy(), t.numpy(), strict=True)
    seen: dict[str, object] = {}
    for file in files:  # each is a safetensors file of its own
        seen |= safetensors.numpy.load_file(file)
    index = json.loads((tmp_path / INDEX).read_text())
    assert seen.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in seen.values())  # type: ignore[attr-defined]


def test_shards_of_others(tmp_path: Path, device: str) -> None:
    parts = {"a": np.ones((2, 3), np.float32), "b": np.arange(4, dtype=np.int32)}
    for i, (name, array) in enumerate(parts.items()):
        safetensors.numpy.save_file({name: array, f"more{i}": array}, tmp_path / f"part-{i}.st")
    where = {"b": "part-1.st", "a": "part-0.st", "more0": "part-0.st"}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    found = eg.load(tmp_path / INDEX, device=device)
    assert list(found) == ["b", "a", "more0"]
    assert found["a"].numpy().tolist() == parts["a"].tolist()
    assert {t.device for t in found.values()} == {eg.zeros((1,), device=device).device}


def test_what_lies_in_wrong_places_is_named(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(1)}, tmp_path / "p.st")
    where = dict.fromkeys(("a", "b", "c"), "p.st")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    with pytest.raises(FileError, match=r"p\.st: does not hold 'b', 'c', though"):
        eg.load(tmp_path / INDEX)


def test_the_old_ones_are_whole_until_the_new_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / INDEX
    eg.save(path, {"step": 1, **state(1)}, max_shard_size="1KB")
    before = set(os.listdir(tmp_path))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("everygrad.io.sharded.files.replace", full)
        with pytest.raises(OSError, match="No space"):
            eg.save(path, {"step": 2, **state(2)}, max_shard_size="1KB")
    assert set(os.listdir(tmp_path)) == before
    assert eg.load(path)["step"] == 1
    (tmp_path / "model-0123abcd-00001-of-00002.safetensors").write_bytes(b"of a killed process")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"of somebody else")
    eg.save(path, {"step": 3, **state(3)}, max_shard_size="1KB")
    assert eg.load(path)["step"] == 3
    assert before & set(os.listdir(tmp_path)) == {INDEX}
    assert len(os.listdir(tmp_path)) == len(before) + 1


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "much", "GB", "5", "1PB"])
def test_sizes_are_checked(tmp_path: Path, size: object) -> None:
    with pytest.raises(ArgumentError, match="save: max_shard_size is a number of bytes"):
        eg.save(tmp_path / INDEX, {}, max_shard_size=size)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []

"""`eg.io.load_safetensors`: files, indices and folders, as others write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import everygrad as eg
from everygrad.errors import FileError, MissingFileError

TENSORS = {
    "embed.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.tensor([1.5, -2.25], dtype=torch.bfloat16),
    "count": torch.tensor([[7]], dtype=torch.int64),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros((0, 3), dtype=torch.float16),
}
DTYPES = [eg.float32, eg.bfloat16, eg.int64, eg.bool, eg.float16]


def in_one_file(folder: Path) -> Path:
    safetensors.torch.save_file(TENSORS, folder / "model.safetensors")
    return folder / "model.safetensors"


def in_two_files(folder: Path) -> Path:
    parts = {"a-00001-of-00002.safetensors": ["embed.weight", "half"]}
    parts["a-00002-of-00002.safetensors"] = [
        n for n in TENSORS if n not in ("embed.weight", "half")
    ]
    for file, names in parts.items():
        safetensors.torch.save_file({n: TENSORS[n] for n in names}, folder / file)
    where = {name: file for file, names in parts.items() for name in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def assert_whole(found: dict[str, Any]) -> None:
    assert set(found) == set(TENSORS)
    assert [found[name].dtype for name in TENSORS] == DTYPES
    for name, expected in TENSORS.items():
        assert found[name].shape == tuple(expected.shape)
        np.testing.assert_array_equal(
            found[name].astype("float32").numpy(), expected.to(torch.float32).numpy()
        )


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("layout", [in_one_file, in_two_files])
def test_a_file_an_index_and_a_folder(tmp_path: Path, layout: Any, mmap: bool) -> None:
    path = layout(tmp_path)
    assert_whole(eg.io.load_safetensors(path, mmap=mmap))
    assert_whole(eg.io.load_safetensors(str(tmp_path), mmap=mmap))


def test_a_folder_with_one_file_of_another_name(tmp_path: Path) -> None:
    in_one_file(tmp_path).rename(tmp_path / "adapter.safetensors")
    assert_whole(eg.io.load_safetensors(tmp_path))


def test_mapped_tensors_are_values_like_others(tmp_path: Path) -> None:
    found = eg.io.load_safetensors(in_one_file(tmp_path))["embed.weight"]
    found += 1  # gives the tensor memory of its own
    assert found[0, 0].item() == 1
    again = eg.io.load_safetensors(tmp_path)["embed.weight"]
    assert again[0, 0].item() == 0


def test_tensors_go_to_a_device(tmp_path: Path, device: str) -> None:
    safetensors.torch.save_file({"x": TENSORS["embed.weight"]}, tmp_path / "model.safetensors")
    found = eg.io.load_safetensors(tmp_path, device=device)["x"]
    assert found.device.startswith(device)
    np.testing.assert_array_equal(found.to("cpu").numpy(), TENSORS["embed.weight"].numpy())


def cut(folder: Path) -> None:
    file = in_one_file(folder)
    file.write_bytes(file.read_bytes()[:-4])


def elsewhere(folder: Path) -> None:
    index = in_two_files(folder)
    index.write_text(json.dumps({"weight_map": {"x": "../model.safetensors"}}))


def lost(folder: Path) -> None:
    in_two_files(folder)
    (folder / "a-00002-of-00002.safetensors").unlink()


def absent(folder: Path) -> None:
    index = in_two_files(folder)
    said = json.loads(index.read_text())
    said["weight_map"]["more"] = "a-00001-of-00002.safetensors"
    index.write_text(json.dumps(said))


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "cut": (cut, FileError, "is it cut off"),
    "elsewhere": (elsewhere, FileError, "files of an index lie beside it"),
    "lost": (lost, MissingFileError, "a-00002-of-00002.safetensors"),
    "absent": (absent, FileError, "does not hold 'more'"),
    "empty": (lambda folder: None, MissingFileError, "there is nothing"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_folders_are_refused(tmp_path: Path, case: str) -> None:
    make, kind, message = BAD[case]
    make(tmp_path)
    with pytest.raises(kind, match=message):
        eg.io.load_safetensors(tmp_path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no"):
        eg.io.load_safetensors(tmp_path / "none")
    with pytest.raises(eg.errors.DeviceError, match="tpu"):
        eg.io.load_safetensors(in_one_file(tmp_path), device="tpu")

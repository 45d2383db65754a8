"""PyTorch's files: read as PyTorch reads them, and nothing in them is executed."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.errors import FileError

nn = torch.nn
DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(3, 4),
    "half": lambda: nn.Linear(3, 4).half(),
    "bfloat16": lambda: nn.Linear(3, 4).bfloat16(),
    "convolutions": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    "lstm": lambda: nn.LSTM(3, 5, num_layers=2, bidirectional=True),
    "transformer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "embedding": lambda: nn.Embedding(7, 3),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
}
WAYS: dict[str, dict[str, Any]] = {
    "zip": {},
    "zip, protocol 3": {"pickle_protocol": 3},
    "zip, protocol 4": {"pickle_protocol": 4},
    "zip, protocol 5": {"pickle_protocol": 5},
    "stream": {"_use_new_zipfile_serialization": False},
}


def raw(t: torch.Tensor) -> bytes:
    t = t.detach().resolve_conj().contiguous()
    return t.reshape(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""


def same(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert str(ours.dtype) == str(theirs.dtype).removeprefix("torch.")
        assert ours.shape == tuple(theirs.shape)
        array = ours.numpy() if isinstance(ours, eg.Tensor) else ours
        assert np.ascontiguousarray(array).tobytes() == raw(theirs)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    elif isinstance(theirs, torch.dtype):
        assert str(ours) == str(theirs).removeprefix("torch.")
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def checkpoint() -> dict[str, Any]:
    torch.manual_seed(0)
    w = torch.randn(4, 5)
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW([{"params": model.weight}, {"params": model.bias, "lr": 0.5}])
    model(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "best": 0.25,
        "large": [2**70, -(2**31), 2**31, 255, 256, -1],
        "nothing": None,
        "flags": (True, False),
        "nested": [{"a": [1, (2, "ä")]}, {}, [], ()],
        "shape": w.shape,
        "dtype": torch.float16,
        "parameter": nn.Parameter(w.clone()),
        "0-d": torch.tensor(3),
        "empty": torch.zeros(0, 3),
        "transposed": w.T,
        "strided": w[1:3, ::2],
        "shared": w[2],
        "expanded": w[:1].expand(7, 5),
        "overlapping": w.reshape(-1).unfold(0, 3, 1),
        "tied": (w, w),
        "gradient": torch.ones(3, requires_grad=True),
    }


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint(tmp_path: Path, way: str, mapped: bool) -> None:
    wanted = checkpoint()
    torch.save(wanted, tmp_path / "x.pt", **WAYS[way])
    found = eg.load(tmp_path / "x.pt", mmap=mapped)
    same(found, wanted)
    assert found["tied"][0] is found["tied"][1]
    sums = {k: float(v.sum().item()) for k, v in found.items() if isinstance(v, eg.Tensor)}
    assert len(sums) == 9  # whatever their strides are, ops take them
    for name, total in sums.items():
        assert total == pytest.approx(float(wanted[name].detach().sum()), abs=1e-5)


@pytest.mark.parametrize("way", ["zip", "stream"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(tmp_path: Path, dtype: str, way: str) -> None:
    t = torch.arange(1, 13).reshape(3, 4).to(getattr(torch, dtype))
    wanted = {"plain": t, "part": t[1:, ::2] if "float8" not in dtype else t, "one": t[0, 0]}
    torch.save(wanted, tmp_path / "x.pt", **WAYS[way])
    same(eg.load(tmp_path / "x.pt"), wanted)


@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path: Path, name: str) -> None:
    state = MODELS[name]().state_dict()
    torch.save(state, tmp_path / "x.bin")
    same(eg.load(tmp_path / "x.bin"), dict(state))


def test_into_a_module(tmp_path: Path, device: str) -> None:
    theirs = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    ours = eg.nn.Sequential(eg.nn.Linear(3, 4), eg.nn.Tanh(), eg.nn.Linear(4, 2)).to(device)
    torch.save(theirs.state_dict(), tmp_path / "x.pt")
    eg.load(tmp_path / "x.pt", into=ours)
    same({k: v.to("cpu") for k, v in ours.state_dict().items()}, dict(theirs.state_dict()))


def test_devices(tmp_path: Path, device: str) -> None:
    torch.save({"a": torch.ones(2, 3).T, "b": torch.ones(1).expand(9)}, tmp_path / "x.pt")
    found = eg.load(tmp_path / "x.pt", device=device)
    assert found["a"].device == found["b"].device
    assert (found["a"].numpy().shape, found["b"].tolist()) == ((3, 2), [1.0] * 9)


class Anything:
    pass


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a module": (lambda: nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear.*state_dict"),
    "a class": (lambda: {"a": Anything()}, r"Anything, which is not data and was neither"),
    "a set": (lambda: {1, 2}, r"__builtin__\.set, which is not data"),
    "a function": (lambda: [print], r"print, which is not data"),
    "NumPy": (lambda: {"a": np.float64(1)}, r"numpy.*scalar, which is not data"),
    "sparse": (lambda: torch.ones(3).to_sparse(), r"_rebuild_sparse_tensor, which is not data"),
    "conjugated": (lambda: torch.ones(2, dtype=torch.complex64).conj(), "resolve_conj"),
    "a bare storage": (lambda: torch.ones(2).untyped_storage(), "outside of a tensor"),
}


@pytest.mark.parametrize("way", ["zip", "stream"])
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # PyTorch's own call
def test_refused_by_name(tmp_path: Path, name: str, way: str) -> None:
    make, message = REFUSED[name]
    torch.save(make(), tmp_path / "x.pt", **WAYS[way])
    with pytest.raises(FileError, match=message):
        eg.load(tmp_path / "x.pt")


def test_programs_are_refused(tmp_path: Path) -> None:
    """An archive as TorchScript writes them: code beside the tensors."""
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("x/data.pkl", b"\x80\x02}.")
        archive.writestr("x/code/__torch__.py", "def forward(self): ...")
    with pytest.raises(FileError, match="a TorchScript program"):
        eg.load(tmp_path / "x.pt")

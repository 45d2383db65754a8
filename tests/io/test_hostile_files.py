"""Files that lie are refused by name before memory is taken, and no byte of them is executed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

import everygrad as eg
from everygrad.errors import EverygradError, FileError
from tests.support.hostile_files import INDEX, PICKLES, SAFETENSORS, archive, tensor

MOST_MEMORY = 1 << 23  # bytes, above what the file itself has
CORPUS = {
    **{f"safetensors: {name}": ("x.safetensors", *case) for name, case in SAFETENSORS.items()},
    **{f"index: {name}": ("x.safetensors.index.json", *case) for name, case in INDEX.items()},
    **{f"pickle: {name}": ("x.pt", *case) for name, case in PICKLES.items()},
}


@contextlib.contextmanager
def bounded(memory: int, seconds: int) -> Iterator[None]:
    """Fails if more memory is taken, or more time."""

    def too_long(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < memory
    finally:
        tracemalloc.stop()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mapped"])
@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, mapped: bool
) -> None:
    file, data, message = CORPUS[name]
    monkeypatch.chdir(tmp_path)  # what would be executed would be seen here
    Path(file).write_bytes(data)
    with bounded(MOST_MEMORY + 12 * len(data), 60), pytest.raises(FileError, match=message) as info:
        eg.load(file, mmap=mapped, verify=True)
    assert str(info.value).startswith((file, "load: "))  # says which file
    assert len(str(info.value)) < 1000
    assert os.listdir() == [file]


def test_what_pytorch_itself_would_execute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, ("touch pwned",)

    monkeypatch.chdir(tmp_path)
    for way in (True, False):
        torch.save({"a": Evil()}, "x.pt", _use_new_zipfile_serialization=way)
        with pytest.raises(FileError, match=r"posix\.system, which is not data"):
            eg.load("x.pt")
        with pytest.raises(FileError, match=r"posix\.system, which is not data"):
            eg.load("x.pt", into=eg.nn.Linear(2, 2))
    assert os.listdir() == ["x.pt"]


def test_a_broadcast_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(archive(tensor([2**40, 2], [0, 1])))
    with bounded(MOST_MEMORY, 60):
        found = eg.load(tmp_path / "x.pt")
    assert found.shape == (2**40, 2)
    assert found[2**39].tolist() == [0.0, 0.0]


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path / "pipe", "no plain file"), (tmp_path, "a folder")):
        with bounded(MOST_MEMORY, 60), pytest.raises(FileError, match=message):
            eg.load(path)
    with pytest.raises(FileError, match="no plain file"):
        eg.load("/dev/zero")


# --- the fuzzer ----------------------------------------------------------------------------------

STATE = {
    "a": np.arange(12.0).reshape(3, 4),
    "b": np.arange(5),
    "c": np.array([True, False]),
    "d.e": np.ones((2, 0), np.float16),
}


def _ours(path: Path) -> None:
    eg.save(path, {**{k: eg.tensor(v) for k, v in STATE.items()}, "n": {"x": [1, 2.5, None]}})


def _index(path: Path) -> None:
    eg.save(path, {k: eg.tensor(v) for k, v in STATE.items()}, max_shard_size=64)


def _torch(stream: bool) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        given = {k: torch.from_numpy(v) for k, v in STATE.items()}
        torch.save({**given, "t": given["a"].T}, path, _use_new_zipfile_serialization=not stream)

    return write


# how a file is made, its name, and whether a load that succeeds must give what was saved: the last
# two kinds have no checksums
KINDS: dict[str, tuple[Callable[[Path], None], str, bool]] = {
    "ours": (_ours, "x.safetensors", True),
    "index": (_index, "x.safetensors.index.json", True),
    "zip": (_torch(False), "x.pt", True),
    "package": (lambda path: safetensors.numpy.save_file(STATE, path), "x.safetensors", False),
    "stream": (_torch(True), "x.pt", False),
}


def mutated(data: bytes, rng: random.Random) -> bytes:
    """One of the ways in which files break, or are broken."""
    out = bytearray(data)
    at, length = rng.randrange(len(out)), rng.choice((1, 2, 4, 8, 64))
    match rng.randrange(7):
        case 0:
            for _ in range(rng.choice((1, 1, 2, 8))):
                out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        case 1:
            other = rng.randrange(len(out))
            out[at : at + length] = out[other : other + length]
        case 2:
            del out[at:]
        case 3:
            del out[at : at + length]
        case 4:
            out[at:at] = rng.randbytes(length)
        case 5:
            out[at : at + length] = rng.choice((b"\x00", b"\xff", b"9", b"[", b"(")) * length
        case _:  # a number in a header becomes another
            digits = [i for i, c in enumerate(out) if 48 <= c < 58]
            out[rng.choice(digits or [at])] = rng.choice(b"0123456789-.")
    return bytes(out)


def same(found: Any, wanted: Any) -> None:
    assert repr(type(found)) == repr(type(wanted))
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, eg.Tensor):
        assert found.dtype is wanted.dtype
        np.testing.assert_array_equal(found.numpy(), wanted.numpy(), strict=True)
    else:
        assert found == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_broken_files(tmp_path: Path, kind: str) -> None:
    """Nothing but an error of ours, or what was saved; never a hang, never much memory."""
    write, name, checked = KINDS[kind]
    write(tmp_path / name)
    wanted = eg.load(tmp_path / name)
    rng = random.Random(f"{kind} {os.environ.get('EVERYGRAD_FUZZ_SEED', '0')}")
    files = sorted(tmp_path.iterdir())
    assert len(files) == (3 if kind == "index" else 1)
    refused = whole = 0
    with bounded(MOST_MEMORY, 120):
        for _ in range(int(os.environ.get("EVERYGRAD_FUZZ_FILES", "400"))):
            path = rng.choice(files)
            before = path.read_bytes()
            broken = before
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                broken = mutated(broken, rng) or b"\x00"
            path.write_bytes(broken)
            try:
                found = eg.load(tmp_path / name, mmap=rng.random() < 0.3, verify=True)
            except EverygradError:
                refused += 1
            else:
                whole += 1
                if checked:
                    same(found, wanted)
            path.unlink()  # not written over: what was mapped stays
            path.write_bytes(before)
    assert refused > 100
    assert whole >= (0 if checked else 1)
    same(eg.load(tmp_path / name), wanted)

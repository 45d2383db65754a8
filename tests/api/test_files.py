"""Files are replaced as a whole, through names that nobody can have prepared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import everygrad as eg
from everygrad.io import export_web, files
from tests.conftest import DEVICES


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    for data in (b"first", b"second", b""):
        files.replace(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["model.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask  # a web server can read it


def test_links_are_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path = tmp_path / "model.json"
    path.symlink_to(victim)
    files.replace(path, b"new")
    assert victim.read_text() == "untouched"
    assert not path.is_symlink()
    assert path.read_bytes() == b"new"


def test_a_prepared_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the name known, a link there would not be written through, nor a file opened."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "known")
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path, prepared = tmp_path / "a.txt", tmp_path / ".a.txt.known.tmp"
    for prepare in (prepared.symlink_to, prepared.hardlink_to):
        prepare(victim)
        with pytest.raises(FileExistsError):
            files.replace(path, b"new")
        assert victim.read_text() == "untouched"
        assert prepared.is_file()  # it is not ours to delete
        assert not path.exists()
        prepared.unlink()


def test_names_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(Path(a).name), real(a, b)))
    for _ in range(20):
        files.replace(tmp_path / "x", b"data")
    assert len(set(seen)) == 20
    assert not any(str(os.getpid()) == part for name in seen for part in name.split("."))


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"before")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("replace", "fsync"):
        monkeypatch.setattr(os, name, fail)
        with pytest.raises(KeyboardInterrupt):
            files.replace(path, b"after")
        monkeypatch.undo()
        assert os.listdir(tmp_path) == ["x"]
        assert path.read_bytes() == b"before"


@pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")
def test_export_web_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    folder = tmp_path / "page"
    folder.mkdir()
    for name in ("model.json", "kernels.wgsl", "weights.safetensors"):
        (folder / name).symlink_to(victim)
        (folder / f".{name}.{os.getpid()}.tmp").symlink_to(victim)  # what it was called once
    export_web(lambda x: x * 2.0, (eg.ones((3,), device="webgpu"),), folder)
    assert victim.read_text() == "untouched"
    assert not (folder / "model.json").is_symlink()
    assert b"kernels" in (folder / "model.json").read_bytes()

"""Readers: equal to NumPy's and Pillow's, and hostile files refused before memory is taken."""

from __future__ import annotations

import importlib
import io
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError

ARRAYS = {
    "float": np.arange(12.0).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "0-d": np.array(3.5),
    "empty": np.ones((0, 5), np.float32),
    "bool": np.array([True, False]),
    "big-endian": np.arange(5, dtype=">i2"),
    "structured": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    "strings": np.array(["a", "bcd"]),
}


@pytest.mark.parametrize("case", ARRAYS)
@pytest.mark.parametrize("mmap", [True, False])
def test_arrays_are_numpys(case: str, mmap: bool, tmp_path: Path) -> None:
    wanted = ARRAYS[case]
    np.save(tmp_path / "x.npy", wanted)
    np.savez(tmp_path / "x.npz", a=wanted, b=np.arange(3))
    np.savez_compressed(tmp_path / "y.npz", a=wanted)
    found = [
        eg.data.read_npy(tmp_path / "x.npy", mmap=mmap),
        eg.data.read_npz(tmp_path / "x.npz", mmap=mmap)["a"],
        eg.data.read_npz(tmp_path / "y.npz", mmap=mmap)["a"],
    ]
    for x in found:
        np.testing.assert_array_equal(x, wanted)
        assert x.dtype == wanted.dtype
        assert not x.flags.writeable or x.size == 0
    assert isinstance(found[0], np.memmap) is (mmap and wanted.size > 0)


def npy(shape: str, descr: str = "'<f8'", data: bytes = b"", fortran: str = "False") -> bytes:
    head = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data


HOSTILE: dict[str, tuple[bytes, type[Exception]]] = {
    "nothing": (b"", ArgumentError),
    "not a file of arrays": (b"hello world, this is text", ArgumentError),
    "cut off in the header": (npy("(3,)")[:20], ArgumentError),
    "cut off in the data": (npy("(3,)", data=bytes(16)), ShapeError),
    "huge": (npy("(1000000000000, 1000000000)"), ShapeError),
    "huge beyond 64 bits": (npy(f"({2**63}, {2**63})", data=bytes(8)), ShapeError),
    "negative": (npy("(-3,)", data=bytes(24)), ShapeError),
    "two negatives": (npy("(-3, -1)", data=bytes(24)), ShapeError),
    "no numbers": (npy("('a',)"), ArgumentError),
    "floats": (npy("(1.0,)", data=bytes(8)), ArgumentError),
    "booleans": (npy("(True,)", data=bytes(8)), ShapeError),
    "many axes": (npy(str((1,) * 80), data=bytes(8)), ShapeError),
    "objects": (npy("(1,)", "'|O'", data=b"\x80\x04N."), DtypeError),
    "objects inside": (npy("(1,)", "[('a', '|O')]", data=b"\x80\x04N."), DtypeError),
    "no dtype": (npy("(1,)", "'<q17'", data=bytes(8)), ArgumentError),
    "code": (npy("__import__('os').system('true')"), ArgumentError),
    "deep": (npy("(" * 5000 + ")" * 5000), ArgumentError),
    "open brackets": (npy("(" * 5000), ArgumentError),
    "empty and huge": (npy(f"(0, {10**24})"), ShapeError),
    "many of no bytes": (npy("(1000000000000,)", "'|S0'"), ShapeError),
    "another version": (b"\x93NUMPY\x09\x00" + bytes(30), ArgumentError),
    "a long header": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{", ArgumentError),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays_are_refused(case: str, tmp_path: Path) -> None:
    data, error = HOSTILE[case]
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    for mmap in (True, False):
        with pytest.raises(error, match=r"read_npy: .*x\.npy: "):
            eg.data.read_npy(path, mmap=mmap)
    for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "x.npz", "w", how) as archive:
            archive.writestr("a.npy", data)
        with pytest.raises(error, match=r"read_npz: .*x\.npz: "):
            eg.data.read_npz(tmp_path / "x.npz")


def archive(data: bytes, how: int, **changes: Any) -> bytes:
    """A ZIP file whose directory says something else than its member is."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as made:
        made.writestr("a.npy", data)
        for name, value in changes.items():
            setattr(made.filelist[0], name, value)
    return buffer.getvalue()


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_archives_are_read_or_refused(tmp_path: Path, how: int) -> None:
    good = archive(npy("(100,)", data=np.arange(100.0).tobytes()), how)
    rng, path = np.random.default_rng(how), tmp_path / "x.npz"
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        places = [rng.integers(len(data)), rng.integers(140), len(data) - rng.integers(1, 120)]
        for at in places[: rng.integers(1, 4)]:
            data[at] = rng.choice([0, 1, 39, 40, 255, rng.integers(256)])
        path.write_bytes(bytes(data[: rng.integers(len(data))] if rng.random() < 0.1 else data))
        try:
            eg.data.read_npz(path, mmap=False)
        except (ArgumentError, DtypeError, ShapeError) as error:
            assert "x.npz" in str(error)  # noqa: PT017  # one of several that may come
            refused += 1
    assert refused > 200


def test_hostile_archives_are_refused(tmp_path: Path) -> None:
    good = npy("(4,)", data=bytes(32))
    big = 1 << 40
    zeros = npy(f"({big // 8},)")
    cases = {
        "cut": archive(good, zipfile.ZIP_STORED)[:-30],
        "a bomb": archive(zeros, zipfile.ZIP_DEFLATED, file_size=big + len(zeros)),
        "more than there is": archive(zeros, zipfile.ZIP_STORED, file_size=big + len(zeros)),
        "text": b"PK\x03\x04 nothing",
        "encrypted": archive(good, zipfile.ZIP_STORED, flag_bits=1),
    }
    for name, data in cases.items():
        path = tmp_path / "x.npz"
        path.write_bytes(data)
        with pytest.raises((ArgumentError, ShapeError), match="read_npz"):
            eg.data.read_npz(path)
        assert name
    twice = tmp_path / "twice.npz"
    with zipfile.ZipFile(twice, "w") as made:
        made.writestr("a.npy", good)
        with pytest.warns(UserWarning, match="Duplicate"):
            made.writestr("a.npy", good)
    with pytest.raises(ArgumentError, match="same name"):
        eg.data.read_npz(twice)


def test_mapped_arrays_make_a_dataset(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(20.0).reshape(10, 2))
    data = eg.data.TensorDataset(eg.data.read_npy(tmp_path / "x.npy"))
    for count in (0, 1):
        rows = [r for (x,) in eg.data.DataLoader(data, 4, num_workers=count) for r in x.tolist()]
        assert rows == np.arange(20.0).reshape(10, 2).tolist()


# --- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_tokens_come_back(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    tokens = [0, 1, 255, 7, 9, 200, 3, 4, 5, 6]
    with eg.data.TokenWriter(path, dtype) as out:
        out.write(tokens[:4])
        out.write(iter(tokens[4:]))
        out.write([])
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.tokens"]
    found = eg.data.read_tokens(path)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == tokens
    windows = eg.data.TokenDataset(path, block_size=3, stride=2)
    assert len(windows) == 4
    for i in range(len(windows)):
        x, y = windows[i]
        assert (x.tolist(), y.tolist()) == (
            tokens[2 * i : 2 * i + 3],
            tokens[2 * i + 1 : 2 * i + 4],
        )
        assert x.dtype == np.int64
    assert windows[-1][0].tolist() == windows[3][0].tolist()
    with pytest.raises(OutOfRangeError, match="index 4"):
        windows[4]


def test_windows_reach_spawned_workers(tmp_path: Path) -> None:
    eg.data.write_tokens(tmp_path / "a.tokens", range(1000))
    data = eg.data.TokenDataset(tmp_path / "a.tokens", block_size=9)
    loaders = [
        eg.data.DataLoader(data, 10, shuffle=True, generator=eg.Generator(0), **more)
        for more in ({}, {"num_workers": 2, "multiprocessing_context": "spawn"})
    ]
    first, second = ([(x.tolist(), y.tolist()) for x, y in loader] for loader in loaders)
    assert first == second
    assert sorted(n for x, _ in first for row in x for n in row) == list(range(999))


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    with (
        pytest.raises(ArgumentError, match="token 70000 does not fit"),
        eg.data.TokenWriter(path) as out,
    ):
        out.write([1, 70000])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match="token -1"):
        eg.data.write_tokens(path, [-1])
    with pytest.raises(DtypeError, match="integers"):
        eg.data.write_tokens(path, [1.5])
    with pytest.raises(DtypeError, match="dtype"):
        eg.data.TokenWriter(path, "int8")
    assert list(tmp_path.iterdir()) == []


def test_hostile_token_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    eg.data.write_tokens(path, range(100))
    good = path.read_bytes()
    assert len(good) == 64 + 200
    bad = {
        "nothing": b"",
        "cut in the header": good[:40],
        "cut in the data": good[:-1],
        "longer": good + b"x",
        "another magic": b"X" + good[1:],
        "another version": good[:8] + b"\x02" + good[9:],
        "a width of 3": good[:12] + b"\x03" + good[13:],
        "a width of 0": good[:12] + b"\x00" + good[13:],
        "huge": good[:16] + b"\xff" * 8 + good[24:],
        "2**63": good[:16] + struct.pack("<Q", 1 << 63) + good[24:],
    }
    for name, data in bad.items():
        path.write_bytes(data)
        with pytest.raises(ArgumentError, match="read_tokens"):
            eg.data.read_tokens(path)
        assert name
    path.write_bytes(good)
    with pytest.raises(ArgumentError, match="needs 101 tokens, the file has 100"):
        eg.data.TokenDataset(path, 100)
    with pytest.raises(ArgumentError, match="block_size must be 1"):
        eg.data.TokenDataset(path, 0)
    with pytest.raises(ArgumentError, match="stride must be 1"):
        eg.data.TokenDataset(path, 5, stride=0)


# --- images and tables ----------------------------------------------------------------------------


def test_images_are_pillows(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        pillow.fromarray(pixels).save(tmp_path / name / "1.png")
    np.testing.assert_array_equal(
        eg.data.read_image(tmp_path / "cat/1.png"), pixels.transpose(2, 0, 1)
    )
    grey = eg.data.read_image(tmp_path / "cat/1.png", "L")
    assert grey.shape == (1, 5, 7)
    data = eg.data.ImageFolder(tmp_path, transform=lambda x: x[:, :2, :2])
    assert (data.classes, len(data)) == (["cat", "dog"], 2)
    ((images, labels),) = eg.data.DataLoader(data, 2, num_workers=1)
    assert images.shape == (2, 3, 2, 2)
    assert labels.tolist() == [0, 1]
    (tmp_path / "cat/1.png").write_bytes((tmp_path / "dog/1.png").read_bytes()[:60])
    with pytest.raises(ArgumentError, match="read_image"):
        eg.data.read_image(tmp_path / "cat/1.png")
    with pytest.raises(FileNotFoundError):
        eg.data.read_image(tmp_path / "none.png")
    with pytest.raises(ArgumentError, match="mode"):
        eg.data.read_image(tmp_path / "dog/1.png", "CMYK")


MISSING = {
    "read_image": ("Pillow: pip install pillow", lambda d: d.read_image("a.png")),
    "ImageFolder": ("Pillow: pip install pillow", lambda d: d.ImageFolder(".")),
    "read_csv": ("pyarrow or polars: pip install pyarrow", lambda d: d.read_csv("a.csv")),
    "polars": ("polars: pip install polars", lambda d: d.read_csv("a.csv", engine="polars")),
    "read_parquet": ("pyarrow: pip", lambda d: d.read_parquet("a", engine="pyarrow")),
}


@pytest.mark.parametrize("case", MISSING)
def test_a_missing_package_is_named(case: str, monkeypatch: Any) -> None:
    for name in ("PIL", "pyarrow", "polars"):
        for loaded in [m for m in sys.modules if m.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
    real = importlib.import_module

    def absent(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] in ("PIL", "pyarrow", "polars"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return real(name, package)

    for module in ("images", "tables"):
        monkeypatch.setattr(f"everygrad.data.readers.{module}.import_module", absent)
    text, call = MISSING[case]
    with pytest.raises(ImportError, match=f"needs {text}"):
        call(eg.data)


@pytest.mark.parametrize("engine", ["pyarrow", "polars"])
def test_tables_by_column(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine, reason=f"{engine} is optional")
    path = tmp_path / "a.csv"
    path.write_text("x,y,name\n1,2.5,a\n3,4.5,b\n")
    table = eg.data.read_csv(path, engine=engine)
    assert table["x"].tolist() == [1, 3]
    assert table["y"].tolist() == [2.5, 4.5]
    assert table["name"] == ["a", "b"]
    assert [*eg.data.read_csv(path, ["y"], engine=engine)] == ["y"]
    with pytest.raises(ArgumentError, match="no column 'z'"):
        eg.data.read_csv(path, ["z"], engine=engine)


def test_engines_are_known_by_name() -> None:
    with pytest.raises(ArgumentError, match="engine must be one of"):
        eg.data.read_csv("a.csv", engine="pandas")
    with pytest.raises(ArgumentError, match="delimiter"):
        eg.data.read_csv("a.csv", delimiter=", ")

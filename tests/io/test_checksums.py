"""CRC-32 by carry-less products is zlib's, for every length, start and beginning."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest

from everygrad.backends.cpu.kernels import crc32


def test_checksums_are_those_of_zlib() -> None:
    rng = random.Random(0)
    data = rng.randbytes(1 << 16)
    sizes = [*range(200), 4095, 4096, 65535, *(rng.randrange(1 << 16) for _ in range(50))]
    for size in sizes:
        at = rng.randrange(len(data) - size + 1)
        given, begun = memoryview(data)[at : at + size], rng.choice([0, 1, rng.getrandbits(32)])
        assert crc32.folded(given, begun) == zlib.crc32(given, begun), (size, at, begun)
    for fill in (b"\x00", b"\xff"):
        assert crc32.folded(memoryview(fill * 1000)) == zlib.crc32(fill * 1000)


def test_much_is_summed_by_products_and_little_by_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    folded = crc32.folded

    def noted(data: Any, crc: int = 0) -> int:
        calls.append(len(data))
        return folded(data, crc)

    monkeypatch.setattr(crc32, "folded", noted)
    monkeypatch.setattr(crc32._Summed, "nbytes", 0)
    monkeypatch.setattr(crc32, "_PATIENCE", 1 << 14)
    data = memoryview(bytes(range(256)) * 32)
    crc = expected = 0
    for piece in (data, data, data, data[:100], data):
        crc, expected = crc32.crc32(piece, crc), zlib.crc32(piece, expected)
    assert crc == expected
    assert calls == [8192, 8192]


def test_where_there_are_no_products_zlib_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crc32, "_fold", lambda: None)
    data = memoryview(bytes(range(256)) * 32)
    assert crc32.folded(data, 7) == zlib.crc32(data, 7)

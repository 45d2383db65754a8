"""Uploads beside the launches, without a GPU: values, whose memory is reused, and what waits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.errors import DeviceError

DRY = "cuda:dry"


class Log(DryDriver):
    """A dry driver that notes what streams wait for; event k is noted as the stream it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.on: dict[int, int] = {}
        self.waits: list[tuple[int, int]] = []  # the stream, and the stream it waits for
        self.uploaded: list[int] = []

    def marked(self, stream: int | None = None) -> int:
        event = super().marked(stream)
        self.on[event] = self.stream if stream is None else stream
        return event

    def wait(self, stream: int, event: int) -> None:
        super().wait(stream, event)
        self.waits.append((stream, self.on[event]))

    def upload_pinned(self, ptr: int, pinned: Any, size: int, stream: int) -> None:
        super().upload_pinned(ptr, pinned, size, stream)
        self.uploaded.append(stream)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Cuda(DRY, Log())
    monkeypatch.setitem(base._OPEN, DRY, made)
    return made


def test_blocks_go_round_and_every_event_is_used(gpu: Any) -> None:
    driver, uploads = gpu.gpu.driver, gpu.uploads()
    held: list[Any] = []
    addresses = []
    for i in range(12):
        array = np.full((3, 5), i, np.float32)
        payload = uploads.put(array)
        uploads.arrived(uploads.sent())
        np.testing.assert_array_equal(gpu.to_numpy(payload), array)
        addresses.append(payload.ptr)
        held = [*held[-1:], payload]  # the last two stay in use
    assert len(set(addresses)) == 4
    assert driver.uploaded == [1] * 12
    # fresh blocks and reused ones alike wait for launches, and launches for every batch
    assert driver.waits.count((1, 0)) == driver.waits.count((0, 1)) == 12
    uploads.close()
    uploads.close()
    assert not driver.open_events
    del held, payload
    assert gpu.gpu.memory.counted == 0
    with pytest.raises(DeviceError, match="was closed"):
        uploads.put(array)


def test_free_blocks_of_many_sizes_are_few(gpu: Any) -> None:
    uploads = gpu.uploads()
    for n in range(1, 40):
        uploads.put(np.ones(n, np.float32))
        uploads.arrived(uploads.sent())
    assert gpu.gpu.memory.counted <= 4 * (40 * 10)
    uploads.close()
    assert not gpu.gpu.driver.open_events


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_uses_the_copy_stream(gpu: Any, workers: int) -> None:
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    data = eg.data.TensorDataset(eg.tensor(x), eg.arange(20))
    loader: Any = eg.data.DataLoader(
        data, batch_size=4, num_workers=workers, workers="thread", device=DRY
    )
    for _ in range(2):
        seen = 0
        for rows, numbers in loader:
            assert rows.device == numbers.device == DRY
            np.testing.assert_array_equal(rows.numpy(), x[seen : seen + 4])
            assert numbers.tolist() == list(range(seen, seen + 4))
            seen += 4
        assert seen == 20
    assert set(gpu.gpu.driver.uploaded) == {1}
    batches = iter(loader)
    next(batches)
    del batches  # in the middle: nothing is left waiting
    assert not gpu.gpu.driver.open_events


class Rows(eg.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return np.full(70_000, index, np.float32), index


def test_the_gpu_reads_what_workers_wrote_without_a_copy(gpu: Any) -> None:
    driver = gpu.gpu.driver
    filled: list[int] = []
    driver.fill = lambda pinned, piece: (filled.append(piece.size), np.copyto(pinned, piece))
    loader: Any = eg.data.DataLoader(Rows(), batch_size=2, num_workers=2, device=DRY)
    most = 0
    for k, (rows, numbers) in enumerate(loader):
        np.testing.assert_array_equal(rows.numpy()[:, ::69_999], [[2 * k] * 2, [2 * k + 1] * 2])
        assert numbers.tolist() == [2 * k, 2 * k + 1]
        most = max(most, len(driver.registered))
    assert 0 < most <= 20
    assert 2 * len(filled) < 40  # two arrays of 20 batches: only blocks that are new are copied
    del rows, numbers
    gpu.uploads().close()
    assert not driver.registered  # all that was pinned is unmapped


def test_blocks_that_cannot_be_pinned_are_copied(gpu: Any) -> None:
    gpu.gpu.driver.register = lambda address, size: False
    loader: Any = eg.data.DataLoader(Rows(), batch_size=4, num_workers=1, device=DRY)
    for k, (rows, _) in enumerate(loader):
        np.testing.assert_array_equal(rows.numpy()[:, 0], np.arange(4 * k, 4 * k + 4))

"""Calls of a compiled function on WebGPU: reused memory, values written in place."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from benchmarks import webgpu
from everygrad.backends import base
from everygrad.backends.webgpu.driver import wgpu_native
from everygrad.backends.webgpu.driver.submit import CommandRow, recorder
from everygrad.backends.webgpu.driver.timing import device_times
from everygrad.errors import DeviceError, OutOfRangeError
from tests.support.checks import close, values

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)
DEVICE = "webgpu"


def _gpu() -> Any:
    backend: Any = base.get(DEVICE)
    return backend.gpu


def _block(t: Any) -> int:
    number: int = t._data.storage.block.number
    return number


class Descent:
    """A parameter, and a compiled step that gives it a new value and returns its square's sum."""

    def __init__(self, size: int = 1000) -> None:
        self.w = eg.arange(size, dtype="float32", device=DEVICE) * 1.0
        self.step = eg.jit(self.compute)

    def compute(self, x: Any) -> Any:
        loss = (self.w * self.w * x).sum()
        self.w.__isub__(self.w * x * 0.5)
        return loss

    @property
    def replay(self) -> Any:
        compiled: Any = self.step
        return compiled.latest.replay


def _ones(size: int = 1000) -> Any:
    return eg.ones((size,), device=DEVICE) * 1.0


# --- in place ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that earlier tests left running do not count."""
    before = {*threading.enumerate()}

    def others_may_look() -> bool:
        new = {*threading.enumerate()} - before
        return any(
            not t.name.startswith("everygrad") and not type(t).__module__.startswith("wgpu.")
            for t in new
        )

    monkeypatch.setattr("everygrad._jit.entry._others_may_look", others_may_look)


@pytest.mark.parametrize("size", [1000, 1001, 1])
def test_a_parameter_stays_where_it_is(size: int) -> None:
    d, x = Descent(size), _ones(size)
    d.step(x)
    assert d.replay.memory().in_place == 1
    home = _block(d.w)
    for _ in range(3):
        d.step(x)
        assert _block(d.w) == home
    close(d.w, np.arange(size) / 16, 1e-6)


def test_old_values_with_another_owner_stay() -> None:
    d, x = Descent(), _ones()
    d.step(x)
    old = d.w.detach()
    d.step(x)
    assert _block(old) != _block(d.w)
    close(old, np.arange(1000) / 2, 1e-6)
    close(d.w, np.arange(1000) / 4, 1e-6)
    half = d.w[500:]  # another view of the same memory
    d.step(x)
    close(half, np.arange(500, 1000) / 4, 1e-6)
    close(d.w, np.arange(1000) / 8, 1e-6)


def test_old_values_stay_while_other_threads_may_look() -> None:
    d, x = Descent(), _ones()
    d.step(x)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        home = _block(d.w)
        d.step(x)
        assert _block(d.w) != home
    finally:
        done.set()
        thread.join()
    close(d.w, np.arange(1000) / 4, 1e-6)


def test_a_parameter_that_is_not_contiguous_is_copied() -> None:
    d = Descent()
    d.step(_ones())
    d.w.rebind((eg.arange(2000, dtype="float32", device=DEVICE) * 1.0)[::2]._data, d.w._node)
    d.step(_ones())
    close(d.w, np.arange(0, 2000, 2) / 2, 1e-6)


def test_a_value_that_other_threads_read_is_not_written_in_place() -> None:
    w = eg.arange(12, dtype="float32", device=DEVICE).reshape(3, 4) * 1.0
    v = eg.arange(16, dtype="float32", device=DEVICE).reshape(4, 4) * 1.0
    u = eg.arange(4, dtype="float32", device=DEVICE) * 1.0

    def step() -> Any:
        w.__isub__(w.sum(axis=1, keepdims=True) * w)  # whole rows are read again
        v.__iadd__(v.mT * 2.0)  # by other threads
        u.__iadd__(1.0)
        return u * 3.0

    want_w, want_v, want_u = values(w), values(v), values(u)
    compiled: Any = eg.jit(step)
    for _ in range(3):
        got = compiled()
        want_w = want_w - want_w.sum(axis=1, keepdims=True) * want_w
        want_v = want_v + want_v.T * 2
        want_u = want_u + 1
        for t, want in ((w, want_w), (v, want_v), (u, want_u), (got, want_u * 3)):
            close(t, want, 1e-5)


def test_a_value_that_a_later_command_reads_is_not_overwritten() -> None:
    w = _ones(64)
    m = eg.ones((64, 64), device=DEVICE)

    def step() -> Any:
        old = w * 1.0
        w.__iadd__(2.0)
        return m @ old

    compiled: Any = eg.jit(step)
    for n in range(3):
        close(compiled(), np.full(64, 64.0 * (1 + 2 * n)), 1e-6)


def test_without_donations_nothing_is_copied() -> None:
    """Where nothing may be written in place, results are written to other buffers."""
    d, x = Descent(), _ones()
    d.step(x)
    replay = d.replay
    kept = [d.w.detach()]
    d.step(x)
    assert replay.out_of_place is not None
    assert replay.out_of_place.memory().in_place == 0
    close(d.w, np.arange(1000) / 4, 1e-6)
    close(kept[0], np.arange(1000) / 2, 1e-6)


def test_an_index_is_checked_once() -> None:
    table = eg.ones((9, 4), device=DEVICE, requires_grad=True)

    def step(i: Any) -> Any:
        loss = (eg.take(table, i, axis=0) * 2.0).sum() + eg.take(table, i, axis=0).max()
        table.grad = None
        loss.backward()
        return loss

    f: Any = eg.jit(step)
    f(eg.tensor([0, 3, 8], device=DEVICE))
    names = [c.kernel.name for c in f.latest.replay.log if c.kernel is not None]
    assert names.count("check_range") == 1
    with pytest.raises(OutOfRangeError, match="index 9 is out of range for an axis of size 9"):
        f(eg.tensor([0, 9, 8], device=DEVICE)).item()
    close(f(eg.tensor([0, 3, 8], device=DEVICE)), 25.0, 1e-6)


# --- batches -------------------------------------------------------------------------------------


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gpu(), "is_software", False)


def _batches(f: Any) -> list[int]:
    """How many buffers each batch binds."""
    log = f.latest.replay.log
    return [len(c.blocks) for c in log if c.kernel and c.kernel.name.startswith("batch")]


def test_parameters_of_all_sizes_are_updated_at_once(hardware: None) -> None:
    sizes = [3, 1000, 4, 5000, 1, 256]
    params = [eg.arange(n, dtype="float32", device=DEVICE) * 1.0 for n in sizes]

    def step(rate: Any) -> None:
        for p in params:
            p.__isub__(p * rate)

    f: Any = eg.jit(step)
    for _ in range(3):
        f(eg.full((), 0.5, device=DEVICE))
    assert _batches(f) == [7]  # each parameter once, to be written, and the rate
    for n, p in zip(sizes, params, strict=True):
        close(p, np.arange(n) / 8, 1e-6)


def test_a_batch_ends_where_its_results_are_needed(hardware: None) -> None:
    x = eg.arange(6, dtype="float32", device=DEVICE).reshape(2, 3) * 1.0

    y = eg.arange(40, dtype="float32", device=DEVICE) * 0.1

    def f(x: Any, y: Any) -> Any:
        a, c = x + 1.0, eg.exp(y)
        b = a @ a.T  # a product reads what waits in the batch
        return a, b + 1.0, c, c[1:] + c[:-1]

    want = f(x.to("cpu"), y.to("cpu"))
    compiled: Any = eg.jit(f)
    for _ in range(2):
        for got, expected in zip(compiled(x, y), want, strict=True):
            close(got, expected, 1e-6)
    first, *_, last = [c.kernel.name for c in compiled.latest.replay.log]
    assert first.startswith("batch add exp")
    assert last.startswith("batch")


def test_a_batch_neither_reads_nor_overwrites_what_another_member_does(hardware: None) -> None:
    w, v = _ones(1000), _ones(10)

    def step() -> Any:
        old = w[:10] * 3.0  # of another size: another member, which reads w
        w.__iadd__(1.0)
        v.__iadd__(w[5:15])  # needs the new w
        return old

    f: Any = eg.jit(step)
    for n in range(3):
        close(f(), np.full(10, 3.0 * (n + 1)), 1e-6)
    close(w, np.full(1000, 4.0), 1e-6)
    close(v, np.full(10, 1.0 + 2 + 3 + 4), 1e-6)


def test_a_batch_has_no_more_buffers_than_the_device(
    hardware: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_gpu().limits, "storage_buffers", 8)
    params = [_ones(n) for n in range(1, 20)]

    def step() -> None:
        for p in params:
            p.__iadd__(p)

    f: Any = eg.jit(step)
    for _ in range(2):
        f()
    assert len(_batches(f)) == 3
    assert max(_batches(f)) == 8
    for p in params:
        close(p, np.full(p.shape, 4.0), 0)


# --- results alternate between blocks ------------------------------------------------------------


def test_results_alternate_between_few_blocks() -> None:
    f: Any = eg.jit(lambda x: x * 2.0)
    x, seen = _ones(), set()
    for _ in range(8):
        out = f(x)
        seen.add(_block(out))
    assert len(seen) <= 2
    assert len(f.latest.replay.ready) <= 2
    close(out, np.full(1000, 2.0), 0)


def test_results_that_are_kept_have_blocks_of_their_own() -> None:
    f = eg.jit(lambda x: x * 2.0)
    made = [f(eg.full((1000,), float(n), device=DEVICE) * 1.0) for n in range(40)]
    assert len({_block(t) for t in made}) == 40
    for n, t in enumerate(made):
        close(t, np.full(1000, 2.0 * n), 0)


def test_blocks_of_a_dropped_function_are_reused() -> None:
    gpu = _gpu()

    def free() -> set[int]:
        gpu.pool.take(256)  # collects returned blocks
        return {b.number for blocks in gpu.pool.free.values() for b in blocks}

    f = eg.jit(lambda x: x * 2.0)
    x = _ones(77_777)
    first, second = f(x), f(x)
    numbers = {_block(first), _block(second)}
    del first
    assert numbers.isdisjoint(free())  # one is in use, one waits for the next call
    del f
    gc.collect()
    close(second, np.full(77_777, 2.0), 0)
    del second
    gc.collect()
    assert numbers <= free()


def test_a_full_device_gets_the_blocks_of_results_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _gpu()
    f = eg.jit(lambda x: x * 2.0)
    x = _ones(300_000)
    for _ in range(3):
        f(x)
    gpu.wait()
    gpu.pool.trim()
    monkeypatch.setattr(gpu.pool, "limit", gpu.pool.taken_bytes)
    size = 4 * 300_000
    kept = gpu.pool.take(size)  # only the results' blocks are large enough
    assert kept.block.size >= size
    monkeypatch.setattr(gpu.pool, "limit", None)
    close(f(x), np.full(300_000, 2.0), 0)


def test_dropped_bind_groups_are_made_again() -> None:
    d, x = Descent(), _ones()
    for n in range(4):
        d.step(x)
        if n % 2:
            _gpu().pool.trim()
    close(d.w, np.arange(1000) / 16, 1e-6)


# --- recording -----------------------------------------------------------------------------------


def test_commands_one_by_one_where_wgpu_hides_its_functions() -> None:
    said: list[Any] = []
    calls = wgpu_native.by_classes()._replace(
        set_pipeline=lambda within, p: said.append((within, p)),
        set_group=lambda within, index, group, _, offsets: said.append((index, group)),
        dispatch=lambda within, *grid: said.append(grid),
    )
    recorder([CommandRow("p", "g", (1, 2, 3), None)], calls)("pass")
    assert said == [("pass", "p"), (0, "g"), (1, 2, 3)]


def test_a_lost_device_is_named() -> None:
    gpu = _gpu()
    lost, gpu.lost = gpu.lost, "webgpu: the device was lost (a test)"
    try:
        with pytest.raises(DeviceError, match="was lost"):
            gpu.record_prepared([], 0)
    finally:
        gpu.lost = lost


# --- times ---------------------------------------------------------------------------------------


def test_each_command_is_timed() -> None:
    f: Any = eg.jit(lambda x: (x @ x).sum(axis=0))
    x = eg.ones((64, 64), device=DEVICE)
    f(x)
    found = device_times(f.latest.replay, lambda: f(x))
    assert [name for name, _ in found] == f.latest.replay.steps()
    assert all(0 < seconds < 5 for _, seconds in found)
    close(f(x), np.full(64, 4096.0), 1e-6)


def test_a_device_without_timestamps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    f: Any = eg.jit(lambda x: x * 2.0)
    f(_ones())
    monkeypatch.setattr(_gpu(), "features", set())
    with pytest.raises(DeviceError, match="has no timestamps"):
        device_times(f.latest.replay, lambda: None)


def test_equal_commands_are_costed_as_one() -> None:
    f: Any = eg.jit(lambda x: eg.exp(x @ x) @ x)
    x = eg.ones((64, 64), device=DEVICE) * 0.01
    f(x)
    replay = f.latest.replay
    found = webgpu.costs(replay, lambda: f(x))
    assert sum(cost.count for cost in found) == len(replay.log)
    assert found == sorted(found, key=lambda cost: -cost.seconds)
    cost = webgpu.Cost("matmul: 2 workgroups", 4, 20e-6, 10_000)
    assert cost.row == ["matmul: 2 workgroups", "4", "5.0", "20.0", "2"]

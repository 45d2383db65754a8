"""What eager ops on CUDA do besides kernels, without a GPU: plans, cached memory, sharing."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.cuda import dlpack
from everygrad.backends.cuda.array import CudaArray, layout_of
from everygrad.backends.cuda.attention import attention
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.driver.memory import LARGE
from everygrad.backends.cuda.graph.launch_cache import CachedLaunch
from everygrad.errors import DtypeError, EverygradError, OutOfMemoryError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY
from tests.support import checks

DRY = "cuda:dry"


def device() -> Any:
    return base.get(DRY)


def on(values: Any, dtype: str = "float32") -> eg.Tensor:
    return eg.tensor(values, dtype, device=DRY)


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The results that `CudaArray.direct` computed."""
    made: list[Any] = []
    usual = CudaArray.direct

    def watched(op: Any, *arrays: Any) -> Any:
        out = usual(op, *arrays)
        made.extend([] if out is None else [out])
        return out

    monkeypatch.setattr("everygrad.backends.cuda.array._plans", {})  # drop what earlier tests made
    monkeypatch.setattr(CudaArray, "direct", staticmethod(watched))
    yield made
    gc.collect()


# --- plans ---------------------------------------------------------------------------------------


def test_the_second_call_of_an_op_uses_its_launch_plan(direct: list[Any]) -> None:
    x, y = on([[1.0, 2.0, 3.0]] * 2), on([1.0, 2.0, 3.0])
    first = x * y
    assert not direct
    before = sum(device().gpu.driver.launches.values())
    second = x * y
    assert direct == [second._data]
    assert sum(device().gpu.driver.launches.values()) == before + 1
    for a in ("shape", "strides", "dtype", "device", "offset"):
        assert getattr(first._data, a) == getattr(second._data, a)
    assert layout_of(first._data) is second._data.layout
    assert second._data.ptr == second._data.storage.ptr


def test_other_layouts_have_other_plans(direct: list[Any]) -> None:
    x = on(np.ones((4, 4)))
    x + x
    for other in (x.T, x[1:], x.astype("float64"), x[:, 1:]):
        direct.clear()
        assert (other + other).shape == other.shape
        assert not direct
        assert (other + other).dtype is other.dtype
        assert len(direct) == 1


def test_derivatives_and_numbers_go_it_too(direct: list[Any]) -> None:
    for _ in range(2):
        direct.clear()
        x = on([1.0, 2.0]).requires_grad_()
        (2.0 * eg.tanh(x * 3.0)).backward(on([1.0, 1.0]))
        assert x.grad is not None
    assert len(direct) == 6  # three ops, and the derivative of each


def test_what_must_see_every_op_sees_it(direct: list[Any]) -> None:
    x = on([1.0, 2.0])
    x * x
    with eg.tools.profile() as seen:
        x * x
    assert [row.name for row in seen.rows()] == ["multiply"]
    with device().launches() as names:
        x * x
    assert len(names) == 1
    with eg.autocast():
        x * x
    assert not direct


def test_zero_has_a_sign() -> None:
    x = on([1.0])._data
    plus, minus = x.number(0.0), x.number(-0.0)
    assert np.signbit(device().to_numpy(minus))
    assert not np.signbit(device().to_numpy(plus))
    assert x.number(2.5) is x.number(2.5)
    assert x.number(2.5).dtype == np.float32


def test_a_shape_that_does_not_fit_is_named() -> None:
    with pytest.raises(eg.errors.ShapeError, match=r"add: cannot broadcast \(2,\) with \(3,\)"):
        on([1.0, 2.0]) + on([1.0, 2.0, 3.0])
    with pytest.raises(eg.errors.DeviceError, match="inputs are on different devices"):
        on([1.0]) + eg.ones((1,))


# --- memory --------------------------------------------------------------------------------------


class Recycling(DryDriver):
    recycles = True


def fresh() -> Any:
    return Cuda("cuda:dry", Recycling()).gpu.memory


def test_a_block_nobody_holds_serves_the_next_of_its_size() -> None:
    memory = fresh()
    first = memory.take(100)
    ptr = first.ptr
    assert memory.take(512).ptr != ptr
    del first
    assert memory.take(600).ptr != ptr  # of another size
    assert memory.take(500).ptr == ptr
    large = memory.take(LARGE)
    assert LARGE <= memory.counted < LARGE + (1 << 12)
    del large
    assert memory.counted < 1 << 12
    assert memory.peak >= LARGE
    assert memory.statistics()["peak"] == memory.peak


def test_a_block_that_was_lent_does_not_wait() -> None:
    memory = fresh()
    shared = memory.take(100).holder  # as an allocator for another library does
    assert not memory.waiting_for(100)
    assert memory.counted == 0
    del shared
    assert memory.take(100).ptr


def test_not_all_blocks_wait() -> None:
    memory = fresh()
    held = [memory.take(512) for _ in range(1000)]
    assert memory.counted == 512_000
    held.clear()
    waiting = memory.waiting_for(512)
    assert 0 < len(waiting) < 1000
    assert memory.counted == 512 * len(waiting)
    memory.trim()
    assert not memory.waiting_for(512)
    assert memory.counted == 0


def test_threads_do_not_share_a_block() -> None:
    memory = fresh()
    clashes: list[int] = []

    def work() -> None:
        for _ in range(2000):
            mine = [memory.take(64) for _ in range(3)]
            pointers = {s.ptr for s in mine}
            if len(pointers) < 3:
                clashes.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not clashes
    free = [ptr for _, ptr in memory.waiting_for(64)]
    assert len(free) == len(set(free)) <= 24  # two rounds of three for each thread


def test_out_of_memory_empties_what_waits_first() -> None:
    memory = fresh()
    memory.take(512)
    assert memory.waiting_for(512)
    memory.gpu.driver.limit = 1 << 20
    held = memory.take(LARGE)
    with pytest.raises(OutOfMemoryError, match=r"4,194,304 bytes asked for(.|\n)*eager\.py:\d+"):
        memory.take(4 << 20)
    assert not memory.waiting_for(512)
    assert held.size == LARGE


# --- sharing -------------------------------------------------------------------------------------


class Host:
    """A NumPy array with the attributes that `capsule` takes."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.ptr = array.ctypes.data
        self.shape = array.shape
        self.strides = tuple(s // array.itemsize for s in array.strides)


def capsule_of(array: Any, done: Any) -> Any:
    given = Host(array)
    dtype = dtypes.FROM_NP[array.dtype]
    return dlpack.Exporter(given.shape, given.strides, dtype, (1, 0)).capsule(
        given.ptr, given, done
    )


class Given:
    """A capsule behind DLPack's two methods."""

    def __init__(self, made: Any, where: tuple[int, int] = (1, 0)) -> None:
        self.made, self.where = made, where

    def __dlpack__(self, **_: Any) -> Any:
        return self.made

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.where


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "complex64", "bool", "float64"])
def test_a_capsule_is_what_numpy_expects(dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype).T[1:]
    ended: list[int] = []
    made = capsule_of(array, lambda: ended.append(1))
    taken = np.from_dlpack(Given(made))
    assert taken.dtype == array.dtype
    assert taken.tolist() == array.tolist()
    assert taken.ctypes.data == array.ctypes.data
    del made
    assert not ended
    del taken
    assert ended == [1]


def test_a_capsule_nobody_takes_ends_too() -> None:
    ended: list[int] = []
    made = capsule_of(np.ones(2), lambda: ended.append(1))
    del made
    assert ended == [1]
    assert not dlpack._exported


def test_a_capsule_is_opened_once() -> None:
    ended: list[str] = []
    made = capsule_of(np.ones((2, 3)), lambda: ended.append("done"))
    holder, t, dtype = dlpack.opened(made, lambda: ended.append("before"))
    assert dtype is dtypes.float64
    assert t.shape[: t.ndim] == [2, 3]
    with pytest.raises(DtypeError, match="was used up"):
        dlpack.opened(made, lambda: None)
    del made, t
    assert not ended
    del holder
    assert ended == ["before", "done"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_tensor_goes_out_and_comes_in_without_a_copy(dtype: str) -> None:
    x = on(np.arange(6).reshape(2, 3), dtype)
    for view in (x, x.T, x[1:], x[:, 1]):
        assert view.__dlpack_device__() == (2, 0)
        back = device().from_dlpack(Given(view.__dlpack__()), False)
        assert back.ptr == view._data.ptr
        assert (back.shape, back.dtype) == (view.shape, view._data.dtype)
        np.testing.assert_array_equal(device().to_numpy(back), view.numpy())
    del back, view
    copied = device().from_dlpack(Given(x.__dlpack__()), True)
    assert copied.ptr != x._data.ptr
    assert not dlpack._exported
    with pytest.raises(BufferError, match="copy=False"):
        eg.flip(x, axis=0).__dlpack__(copy=False)


def test_shared_memory_lives_as_long_as_anyone_holds_it() -> None:
    x = on(np.arange(4))
    back = device().from_dlpack(Given(x.__dlpack__()), False)
    ptr = x._data.ptr
    del x
    assert on(np.zeros(4))._data.ptr != ptr
    assert device().to_numpy(back).tolist() == [0.0, 1.0, 2.0, 3.0]


# --- indices -------------------------------------------------------------------------------------


def test_indices_of_known_values_are_refused_at_once() -> None:
    x = on(np.ones((3, 4)))
    with pytest.raises(OutOfRangeError, match="index 4 is out of range for axis 1 of size 4"):
        x[:, [0, 4]]
    with pytest.raises(OutOfRangeError, match="index -4 is out of range for axis 0 of size 3"):
        x[np.array([-4])]


def test_an_index_tensor_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x, index = on(np.ones((3, 4))), on([0, 2], "int64")

    def refuse(*args: Any) -> Any:
        raise AssertionError("a copy to the host")

    monkeypatch.setattr(device().gpu.driver, "download", refuse)
    assert x[index].shape == (2, 4)
    assert x[:, index].shape == (3, 2)
    assert x[index, index].shape == (2,)
    x[index] = 1.0


def test_faults_name_the_index_as_it_was_given() -> None:
    gpu = device().gpu
    number = gpu.check_number("getitem: index {} is out of range for axis 1 of size 4", 4)
    for value in (7, -9):
        with pytest.raises(OutOfRangeError, match=f"index {value} is out of range for axis 1 of"):
            gpu.raise_fault(np.array([1, number, value], np.int64).view(np.uint8))


# --- clocks --------------------------------------------------------------------------------------


def test_the_delay_before_a_timed_op_is_not_part_of_it() -> None:
    x = on([1.0, 2.0])
    with eg.tools.profile() as seen:
        x * x
    (event,) = seen.events
    assert event.launches == 1
    assert all("delay" not in name for name in event.kernels)
    assert any("delay" in name for name in device().gpu.driver.launches)


# --- the launch cache ----------------------------------------------------------------------------


def calls(name: str, sample: Any) -> list[Any]:
    """What three calls of an op launch, and the layouts of their results; fewer where a device
    without values cannot run it."""
    found = []
    given = checks.map_sample(sample, checks.to_tensor(DRY))
    for _ in range(3):
        with device().launches() as names:
            try:
                outs = checks.call(checks.function_of(REGISTRY[name]), given)
            except (EverygradError, ValueError, IndexError, MemoryError):
                return []
        facts = [(o.shape, o.dtype, getattr(o._data, "strides", None)) for o in outs]
        found.append((list(names), facts))
    return found


def test_an_op_does_the_same_by_its_shortcut() -> None:
    compared = 0
    whole = {n for n in checks.WITH_SAMPLES if REGISTRY[n].family in ("movement", "reduction")}
    for name in whole | ({*device().kernels} & {*checks.WITH_SAMPLES}):
        for sample in checks.samples_of(REGISTRY[name], DRY):
            made = calls(name, sample)
            assert all(one == made[0] for one in made), f"{name} {sample}"
            compared += len(made) == 3
    known = [c for c in device().launch_cache._entries.values() if isinstance(c, CachedLaunch)]
    assert compared > 100
    assert len(known) > 60


def test_a_shortcut_goes_with_its_parameters_and_settings() -> None:
    x = on(np.ones((4, 6)))
    assert [x.sum(axis=0).shape for _ in range(3)] == [(6,)] * 3
    assert [x.sum(axis=1).shape for _ in range(3)] == [(4,)] * 3
    assert [(x @ x.T).shape for _ in range(3)] == [(4, 4)] * 3
    transposed = x.T
    before = len(device().launch_cache._entries)
    eg.set_matmul_precision("high")
    try:
        x @ transposed
    finally:
        eg.set_matmul_precision("highest")
    assert len(device().launch_cache._entries) == before + 1


def test_views_by_a_shortcut_are_views() -> None:
    x = on(np.arange(6.0).reshape(2, 3))
    for _ in range(3):
        transposed = x.T
        assert transposed._data.storage is x._data.storage
        assert transposed.numpy().tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    part = on(np.arange(2000.0))[512:]  # at another offset of its storage
    for _ in range(3):
        assert part.reshape(-1, 2)._data.ptr == part._data.ptr
        assert part.reshape(-1, 2)[0].numpy().tolist() == [512.0, 513.0]


def test_an_error_is_the_same_every_time() -> None:
    x, y = on(np.ones((2, 3))), on(np.ones((4, 5)))
    for _ in range(3):
        with pytest.raises(eg.errors.ShapeError, match="inner sizes 3 and 4 differ"):
            x @ y


def test_attention_reads_no_memory_that_was_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier kernel left for a later one is there until the later one is launched, also
    where results, statistics and gradients are blocks of one size."""
    driver = DryDriver()
    driver.recycles, driver.lt = True, object()  # memory as on a GPU, and a library to ask for
    dev: Any = Cuda(DRY, driver)
    seen: list[int] = []

    def numbers(value: Any) -> Iterator[int]:
        if isinstance(value, ctypes.Structure):
            for name, *_ in value._fields_:
                yield from numbers(getattr(value, name))
        elif isinstance(value, ctypes.Array):
            for one in value:
                yield from numbers(one)
        elif isinstance(value, int):
            yield value

    def launch(self: Any, calls: list[Any]) -> None:
        free = {ptr for blocks in dev.gpu.memory.waiting for _, ptr in blocks}
        given = [n for call in calls for n in numbers(call.params)]
        assert not free & {*given}
        seen.append(sum(n > 1 << 30 for n in given))  # addresses

    monkeypatch.setattr(attention._AttentionCall, "launch", launch)
    for queries, keys, width in [(1, 1, 24), (5, 5, 4), (4, 5, 4), (64, 64, 8), (3, 100, 16)]:
        q, k = ((1, 3, n, width) for n in (queries, keys))
        given = [dev.empty(shape, dtypes.float32) for shape in (q, q, k, k)]  # g, q, k, v
        for name, more in [("attention_grads", []), ("attention_masked_grads", [queries, keys])]:
            masks = [dev.empty((1, 1, *more), dtypes.float32)] if more else []
            dev.kernels[name](*given, *masks, scale=0.5)
        dev.kernels["attention"](*given[1:], scale=0.5)
        sums = dev.kernels["attention_log_sums"](*given[1:3], scale=0.5)
        dev.kernels["attention_saved_slopes"](*given, given[0], sums, scale=0.5)
        saved = dev.kernels["attention_saved"](*given[1:], scale=0.5)
        if queries == keys:
            dev.kernels["attention_saved_grads"](*given, saved, scale=0.5)
    assert min(seen) >= 3
    assert len(seen) >= 30

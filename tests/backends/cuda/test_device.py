"""The CUDA backend on a GPU: storage, numbers, errors, memory. What ops compute is in test_ops*.py,
which run on "cuda" too when EVERYGRAD_TEST_DEVICES names it."""

from __future__ import annotations

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.errors import CompileError, DeviceError, OutOfMemoryError, OutOfRangeError
from everygrad.ops.random.generators import BITS
from everygrad.ops.record.spec import REGISTRY
from tests.conftest import DEVICES
from tests.support import checks

pytestmark = pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
DEV = "cuda"
RNG = np.random.default_rng(0)


def on(array: Any) -> eg.Tensor:
    return eg.tensor(np.asarray(array), device=DEV)


def backend() -> Any:
    return base.get(DEV)


# --- storage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 16, 1023])
def test_every_dtype_comes_back_bit_for_bit(dtype: Any, count: int) -> None:
    raw = RNG.integers(0, 256, count * dtype.itemsize).astype(np.uint8)
    values = (raw & 1).astype(bool) if dtype is dtypes.bool_ else raw.view(dtype.np)
    x = eg.tensor(values, device=DEV)
    assert x.dtype is dtype
    assert x.numpy().tobytes() == values.tobytes()
    back = eg.flip(eg.flip(x))
    assert back.numpy().tobytes() == values.tobytes()
    joined = eg.concat([x, x[1:], x])  # at offsets that are not multiples of 16 bytes
    want = np.concatenate([values, values[1:], values])
    np.testing.assert_array_equal(joined.numpy().view(np.uint8), want.view(np.uint8))


def test_layouts_read_back() -> None:
    a = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    x = on(a)
    for index in ((slice(None), slice(1, 4), 2), (2, slice(None, None, -1)), slice(None, None, 3)):
        np.testing.assert_array_equal(x[index].numpy(), a[index])
        np.testing.assert_array_equal((x[index] + 1).numpy(), a[index] + 1)
    np.testing.assert_array_equal(
        x.permute_dims((2, 1, 0)).reshape(30, 4).numpy(), a.transpose(2, 1, 0).reshape(30, 4)
    )


@pytest.mark.parametrize("count", [1, 3, 4, 5, 255, 1024, 4099, 100_003])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int16"])
def test_several_at_a_time(count: int, dtype: str) -> None:
    a, b = (RNG.integers(1, 50, count).astype(dtype) for _ in range(2))
    x, y = on(a), on(b)
    np.testing.assert_array_equal((x * y + x).numpy(), a * b + a)
    np.testing.assert_array_equal((x > y).numpy(), a > b)
    np.testing.assert_array_equal(eg.where(x > y, x, y).numpy(), np.maximum(a, b))
    np.testing.assert_array_equal((x[1:] + y[:-1]).numpy(), a[1:] + b[:-1])
    rows = RNG.integers(1, 50, (6, count)).astype(dtype)
    np.testing.assert_array_equal((on(rows) - y).numpy(), rows - b)
    np.testing.assert_array_equal((on(rows).T - x[:1]).numpy(), rows.T - a[:1])


def test_large_uploads_and_downloads_arrive_whole() -> None:
    a = RNG.integers(0, 1 << 62, 80 << 20 >> 3)  # 80 MiB: several pinned pieces
    np.testing.assert_array_equal((on(a) + 1).numpy(), a + 1)


def test_readback_does_not_wait_for_the_other() -> None:
    xs = [on(np.full(1000, i, np.float32)) * 2.0 for i in range(20)]
    later = backend().read_later([x._data for x in xs])
    more = xs[0] + 1.0
    for i, values in enumerate(later.result()):
        np.testing.assert_array_equal(values, np.full(1000, 2 * i, np.float32))
    assert more.numpy()[0] == 1.0


def test_an_upload_does_not_overtake() -> None:
    sums = []
    for i in range(300):
        x = on(np.full(500, i, np.float32))
        sums.append((x * 2.0).sum())
        del x
    assert [s.item() for s in sums] == [1000.0 * i for i in range(300)]


def test_threads_share_the_device() -> None:
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            a = np.random.default_rng(seed).normal(size=(20, 30)).astype(np.float32)
            for _ in range(30):
                x = on(a)
                got = ((x @ x.T) * 2.0 + 1.0).sum(axis=0).numpy()
                np.testing.assert_allclose(got, ((a @ a.T) * 2 + 1).sum(0), 1e-4, 1e-4)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed


def test_the_array_interface_shows_the_values() -> None:
    cupy = pytest.importorskip("cupy")
    a = RNG.normal(size=(7, 9)).astype(np.float32)
    x = on(a).T + 1.0
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(x._data)), a.T + 1)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 100])
@pytest.mark.parametrize("columns", [33, 1000, 5001])
def test_columns_of_few_terms(terms: int, columns: int) -> None:
    """As many threads share a column as there are terms for."""
    a = RNG.standard_normal((3, terms, columns)).astype(np.float32)
    np.testing.assert_allclose(on(a).sum(axis=1).numpy(), a.sum(axis=1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(on(a).max(axis=1).numpy(), a.max(axis=1))


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_floats_round_as_on_the_cpu(half: str) -> None:
    kind = np.float16 if half == "float16" else ml_dtypes.bfloat16
    every = np.arange(1 << 16, dtype=np.uint16).view(kind)
    wide = eg.tensor(every, device=DEV).astype("float32").numpy()
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    x = RNG.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    middle = every.astype(np.float32)[np.isfinite(every.astype(np.float32))]
    ties = ((middle[1:].astype(np.float64) + middle[:-1]) / 2).astype(np.float32)
    x = np.concatenate([x, ties])
    with np.errstate(all="ignore"):
        want = x.astype(kind)
        double = x.astype(np.float64) * (1 + 2.0**-40)
    got = on(x).astype(half).numpy().astype(np.float32)
    np.testing.assert_array_equal(got, want.astype(np.float32))
    got = on(double).astype(half).numpy().astype(np.float32)
    want = eg.tensor(double).astype(half).numpy().astype(np.float32)
    np.testing.assert_array_equal(got, want)


INTEGER_OPS = ("add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum",
               "less", "less_equal", "equal", "not_equal", "bitwise_and")  # fmt: skip


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=str)
def test_integers_are_exact(dtype: Any) -> None:
    raw = RNG.integers(0, 256, (2, 5000 * dtype.itemsize)).astype(np.uint8)
    a, b = raw.view(dtype.np)
    b = b >> RNG.integers(0, dtype.bits, 5000).astype(dtype.np)
    for name in INTEGER_OPS:
        with np.errstate(all="ignore"):
            want = getattr(np, name)(a, b)
        np.testing.assert_array_equal(getattr(eg, name)(on(a), on(b)).numpy(), want, name)
    n = RNG.integers(0, 70, 5000).astype(dtype.np)
    np.testing.assert_array_equal((on(a) << on(n)).numpy(), np.left_shift(a, n))
    np.testing.assert_array_equal((on(a) >> on(n)).numpy(), np.right_shift(a, n))
    small = RNG.integers(0, 5, 5000).astype(dtype.np)
    np.testing.assert_array_equal((on(a) ** on(small)).numpy(), a**small)
    assert on(a).max().item() == int(a.max())
    assert on(a).argmin().item() == int(a.argmin())


@pytest.mark.parametrize("dtype", [str(d) for d in dtypes.INTEGERS])
def test_casts_saturate_as_on_the_cpu(dtype: str) -> None:
    x = RNG.normal(size=2000) * 10.0 ** RNG.uniform(0, 22, 2000)
    x[:4] = [np.nan, np.inf, -np.inf, -0.5]
    for kind in ("float32", "float64"):
        y = x.astype(kind)
        want = eg.tensor(y).astype(dtype).numpy()
        np.testing.assert_array_equal(on(y).astype(dtype).numpy(), want)
    wide = RNG.integers(-(2**62), 2**62, 1000)
    np.testing.assert_array_equal(on(wide).astype(dtype).numpy(), wide.astype(dtype))


def test_subnormals_are_kept() -> None:
    x = np.array([1e-40, -1e-42, 1.4e-45, 1e-38], np.float32)
    np.testing.assert_array_equal((on(x) * 1.0).numpy(), x)
    np.testing.assert_array_equal((on(x) / 2.0).numpy(), x / 2)
    np.testing.assert_array_equal((on(x) + on(x)).numpy(), x + x)


def test_random_bits_are_those_of_the_cpu() -> None:
    for state in ([1, 2, 0, 0], [5, 0, 2**32 - 2, 3]):
        words = np.array(state, np.uint32)
        for count in (1, 7, 4099):
            here = eg.dispatch.apply(BITS, on(words), count=count).numpy()
            there = eg.dispatch.apply(BITS, eg.tensor(words), count=count).numpy()
            np.testing.assert_array_equal(here, there)


# --- kernels of every kind -----------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(64, 64, 64), (65, 70, 33), (1, 400, 52), (1028, 36, 1)])
def test_products_in_every_layout(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    for transposed in range(4):
        for dtype, offset in (("float32", 0), ("float32", 1), ("float16", 0), ("float16", 1)):
            a = RNG.normal(size=(k, m) if transposed & 1 else (m, k)).astype(dtype)
            b = RNG.normal(size=(n, k) if transposed & 2 else (k, n)).astype(dtype)
            x = on(np.concatenate([np.zeros(offset, dtype), a.reshape(-1)]))[offset:]
            x, y = x.reshape(a.shape), on(b)
            x, a = (x.T, a.T) if transposed & 1 else (x, a)
            y, b = (y.T, b.T) if transposed & 2 else (y, b)
            want = a.astype(np.float64) @ b.astype(np.float64)
            tolerance = 2e-6 if dtype == "float32" else 1e-3
            error = np.abs((x @ y).numpy().astype(np.float64) - want).max()
            assert error <= tolerance * np.sqrt(k) * max(1.0, np.abs(want).max())


def test_stacks_of_products_and_integers() -> None:
    a, b = RNG.normal(size=(5, 1, 40, 64)), RNG.normal(size=(3, 64, 52))
    np.testing.assert_allclose((on(a) @ on(b)).numpy(), a @ b, 1e-12, 1e-12)
    flipped = on(a)[:, :, ::-1, ::2] @ on(b)[:, ::2]
    np.testing.assert_allclose(flipped.numpy(), a[:, :, ::-1, ::2] @ b[:, ::2], 1e-12, 1e-12)
    one = on(a[:1, 0]).broadcast_to((4, 40, 64)) @ on(b[0])
    np.testing.assert_allclose(one.numpy(), np.broadcast_to(a[0, 0] @ b[0], (4, 40, 52)), 1e-12,
                               1e-12)  # fmt: skip
    for dtype in ("int64", "uint32", "int8"):
        i = RNG.integers(0, 100, (40, 50)).astype(dtype)
        np.testing.assert_array_equal((on(i) @ on(i.T)).numpy(), i @ i.T)


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (200, 300), (7, 11, 13, 50)])
def test_reductions_of_every_kind(shape: tuple[int, ...]) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    for axes in ((0,), (len(shape) - 1,), tuple(range(len(shape))), (0, len(shape) - 1)):
        wide = x.astype(np.float64)
        got = on(x).sum(axis=axes).numpy()
        np.testing.assert_allclose(got, wide.sum(axis=axes), 1e-5, 1e-6 * np.sqrt(x.size))
        np.testing.assert_array_equal(got, on(x).sum(axis=axes).numpy())  # the same bits
        np.testing.assert_array_equal(on(x).max(axis=axes).numpy(), x.max(axis=axes))
        np.testing.assert_array_equal((on(x) > 2).any(axis=axes).numpy(), (x > 2).any(axis=axes))
        transposed = np.asfortranarray(x)
        np.testing.assert_array_equal(
            on(transposed).permute_dims(range(x.ndim)[::-1]).max().numpy(), x.max()
        )
    assert on(x).argmax().item() == x.argmax()
    for axis in range(len(shape)):
        np.testing.assert_array_equal(on(x).argmin(axis=axis).numpy(), x.argmin(axis=axis))


@pytest.mark.parametrize("length", [1, 2, 31, 33, 257, 1025, 9000, 33_000])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_of_every_length(length: int, dtype: str) -> None:
    a = eg.tensor(RNG.normal(size=(5, length)), dtype)
    tolerance = {"float32": 2e-6, "float64": 1e-12, "bfloat16": 2e-2}[dtype]
    for name in ("softmax", "log_softmax"):
        want = getattr(eg, name)(a).numpy().astype(np.float64)
        got = getattr(eg, name)(a.to(DEV)).numpy().astype(np.float64)
        np.testing.assert_allclose(got, want, 4 * tolerance, tolerance)
    if length > 1:
        want = eg.layer_norm(a.astype("float64"), (length,)).numpy()
        got = eg.layer_norm(a.to(DEV), (length,)).numpy().astype(np.float64)
        np.testing.assert_allclose(got, want, 4 * tolerance, 20 * tolerance)


@pytest.mark.parametrize("count", [3, 64, 65, 1000, 5000, 40_000])
@pytest.mark.parametrize("places", [1, 7, 3000])
def test_adding_to_places(count: int, places: int) -> None:
    index = RNG.integers(0, places, count)
    x, source = RNG.normal(size=(places, 5)), RNG.normal(size=(count, 5))
    want = x.copy()
    np.add.at(want, index, source)
    adds = [on(x).index_add(on(index), on(source)).numpy() for _ in range(2)]
    np.testing.assert_allclose(adds[0], want, 1e-11, 1e-11)
    np.testing.assert_array_equal(adds[0], adds[1])  # deterministic
    flat = on(x[:, 0]).scatter_add(on(index), on(source[:, 0])).numpy()
    np.testing.assert_allclose(flat, want[:, 0], 1e-11, 1e-11)
    transposed = on(x.T).index_add(on(index), on(source.T), axis=1).numpy()
    np.testing.assert_allclose(transposed, want.T, 1e-11, 1e-11)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("width", [64, 40, 128])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_equals_its_definition(dtype: str, width: int, causal: bool) -> None:
    q, k, v, g = (eg.tensor(RNG.normal(size=(2, 3, 100, width)), dtype) for _ in range(4))
    outs = []
    for device, kind in (("cpu", "float64"), (DEV, dtype)):
        given = [t.to(device).astype(kind).requires_grad_() for t in (q, k, v)]
        out = eg.nn.functional.scaled_dot_product_attention(*given, is_causal=causal)
        (out * g.to(device).astype(kind)).sum().backward()
        outs.append([out.detach(), *(t.grad for t in given)])
    tolerance = {"float32": 2e-5, "bfloat16": 4e-2, "float16": 6e-3}[dtype]
    for want, got in zip(*outs, strict=True):
        np.testing.assert_allclose(got.numpy().astype(np.float64), want.numpy(), tolerance,
                                   tolerance)  # fmt: skip


# --- errors --------------------------------------------------------------------------------------


def test_a_bad_index_is_raised_at_the_next_read() -> None:
    x = on(np.arange(4.0, dtype=np.float32))
    later = x + 1.0
    picked = eg.take(x, on(np.array([0, 7, 1])))
    with pytest.raises(OutOfRangeError, match="take: index 7 is out of range for an axis of size"):
        later.numpy()
    assert later.numpy().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert picked.shape == (3,)
    with pytest.raises(OutOfRangeError, match="gather: index -2 is out of range"):
        eg.gather(x, on(np.array([-2], np.int32))).numpy()
    many = on(np.full(5000, 9))
    with pytest.raises(OutOfRangeError, match="index_add: index 9 is out of range"):
        x.index_add(many, on(np.ones(5000, np.float32))).numpy()
    assert eg.take(x, on(np.array([3]))).numpy().tolist() == [3.0]


def test_out_of_memory_is_an_exception_and_passes() -> None:
    gpu = backend().gpu
    driver = gpu.driver
    gpu.memory.trim()
    x = on(np.ones(1 << 20, np.float32))
    used = driver.statistics()["held"]
    driver.limit(used + (32 << 20))
    held = []
    try:
        with pytest.raises(OutOfMemoryError, match="4,194,304 bytes asked for") as caught:
            held.extend(x + float(i) for i in range(100))
        largest = [line for line in str(caught.value).splitlines() if "test_device.py:" in line]
        assert sum(line.strip().startswith("4,194,304 bytes") for line in largest) >= 7
        held.clear()
        assert (x + 1.0).numpy()[0] == 2.0
    finally:
        driver.limit(None)
    assert (x + 3.0).numpy()[0] == 4.0


def test_out_of_memory_in_a_backward_and_in_a_compiled_function_passes() -> None:
    gpu = backend().gpu
    gpu.memory.trim()
    x = on(np.ones(1 << 20, np.float32)).requires_grad_()
    deep = eg.jit(lambda x: eg.concat([x @ x.reshape(-1, 1), *[x] * 40]))
    gpu.driver.limit(gpu.driver.statistics()["held"] + (24 << 20))

    def long_chain() -> None:
        y = x
        for _ in range(30):
            y = eg.tanh(y)
        y.sum().backward()

    try:
        with pytest.raises(OutOfMemoryError):
            long_chain()
        with pytest.raises(OutOfMemoryError):
            deep(x.detach())
        assert x.grad is None
        (x * 2.0).sum().backward()
        assert x.grad is not None
        assert x.grad.numpy()[0] == 2.0
    finally:
        gpu.driver.limit(None)
    assert deep(x.detach()).shape == ((40 << 20) + 1,)


def test_an_index_tensor_is_not_read_and_its_fault_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = on(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    good, bad, low = on(np.array([0, 2, -1])), on(np.array([1, 4])), on(np.array([-9]))

    def refuse(*args: Any) -> Any:
        raise AssertionError("a copy to the host")

    with monkeypatch.context() as patch:
        patch.setattr(backend().gpu.driver, "download", refuse)
        picked, crossed = x[good], x[:, good]
        wrong = x[:, bad]
    np.testing.assert_array_equal(picked.shape, (3, 4))
    with pytest.raises(OutOfRangeError, match="index 4 is out of range for axis 1 of size 4"):
        wrong.numpy()
    np.testing.assert_array_equal(picked.numpy(), x.numpy()[[0, 2, -1]])
    np.testing.assert_array_equal(crossed.numpy(), x.numpy()[:, [0, 2, -1]])
    with pytest.raises(OutOfRangeError, match="index -9 is out of range for axis 0 of size 3"):
        x[low].numpy()
    with pytest.raises(OutOfRangeError, match="index 4 is out of range for axis 1 of size 4"):
        eg.jit(lambda x: x * 2.0)(x[:, bad]).numpy()
    x[good] = 0.0
    assert x.numpy().sum() == 4.0 + 5.0 + 6.0 + 7.0


def test_labels_out_of_range_are_named() -> None:
    logits = on(np.zeros((2, 3), np.float32)).requires_grad_()
    for step in (eg.nn.functional.cross_entropy, eg.jit(eg.nn.functional.cross_entropy)):
        with pytest.raises(OutOfRangeError, match="cross_entropy: label 3 is out of range"):
            step(logits, on(np.array([0, 3]))).item()
        assert abs(step(logits, on(np.array([0, 2]))).item() - np.log(3)) < 1e-6


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match=r'"cuda:99" is not there: the driver finds \d+ GPU'):
        eg.ones((2,), device="cuda:99")


def test_a_broken_kernel_leaves_the_device_usable() -> None:
    with pytest.raises(CompileError, match="does not compile"):
        backend().gpu.driver.nvrtc.compile("broken", "this is no C++", "sm_90")
    assert (on(np.ones(2, np.float32)) + 1.0).numpy().tolist() == [2.0, 2.0]


def test_a_backward_makes_no_host_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = eg.nn.Sequential(eg.nn.Linear(8, 16), eg.nn.GELU(), eg.nn.Linear(16, 4)).to(DEV)
    x, y = on(RNG.normal(size=(5, 8)).astype(np.float32)), on(RNG.integers(0, 4, 5))

    def refuse(*args: Any) -> Any:
        raise AssertionError("a copy to the host")

    with monkeypatch.context() as patch:
        patch.setattr(backend().gpu.driver, "download", refuse)
        eg.nn.functional.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        assert p.grad is not None
        assert np.isfinite(p.grad.numpy()).all()


# --- speed ---------------------------------------------------------------------------------------


def test_a_profile_has_the_time_on_the_device() -> None:
    x = on(np.ones(1 << 26, np.float32))
    small = on(np.ones(16, np.float32))
    eg.exp(x), eg.exp(small)
    with eg.tools.profile() as p:
        eg.exp(x)
        eg.exp(small)
    large, tiny = (event.seconds for event in p.events)
    assert 5e-5 < large < 5e-4  # half a gigabyte moved
    assert tiny < 2e-5  # without the time of the launch
    assert p.events[0].launches == 1


@pytest.mark.parametrize("name", checks.WITH_SAMPLES)
def test_an_op_gives_the_same_bits_by_its_shortcut(name: str) -> None:
    op = REGISTRY[name]
    for sample in checks.samples_of(op, DEV):
        given = checks.map_sample(sample, checks.to_tensor(DEV))
        first, *others = (
            [o.to("cpu").numpy().tobytes() for o in checks.call(checks.function_of(op), given)]
            for _ in range(3)
        )
        assert all(other == first for other in others), sample


def test_memory_is_used_again() -> None:
    x = on(np.ones(100, np.float32))
    first = (x * x)._data.ptr
    assert len({(x * x)._data.ptr for _ in range(100)} | {first}) <= 2
    stats = backend().gpu.memory.statistics()
    assert 0 < stats["used"] <= stats["held"]
    assert stats["peak"] > 0


# --- other libraries -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "complex64"])
def test_pytorch_shares_memory_both_ways(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = on(np.arange(12).reshape(3, 4)).astype(dtype)
    for view in (x, x.T, x[1:, 1:], x[:0]):
        there = torch.from_dlpack(view)
        assert str(there.dtype) == f"torch.{dtype}"
        assert there.is_cuda
        assert tuple(there.shape) == view.shape
        if view.size:
            assert there.data_ptr() == view._data.ptr
        want = view.astype("complex64").numpy()
        np.testing.assert_array_equal(there.to(torch.complex64).cpu().numpy(), want)
    t = torch.arange(12, device=DEV).reshape(3, 4).to(getattr(torch, dtype))
    for view in (t, t.T, t[1:, 1:], t[:0]):
        back = eg.from_dlpack(view)
        assert (str(back.dtype), back.shape, back.device) == (dtype, tuple(view.shape), DEV)
        if view.numel():
            assert back._data.ptr == view.data_ptr()
        want = view.to(torch.complex64).cpu().numpy()
        np.testing.assert_array_equal(back.astype("complex64").numpy(), want)
    copied = eg.from_dlpack(t, copy=True)
    t.zero_()
    torch.cuda.synchronize()
    assert copied.astype("float32").numpy().sum() > 0
    assert eg.from_dlpack(t, device="cpu").device == "cpu"


def test_shared_memory_is_in_order() -> None:
    """Each side's work comes after the other's, without the host waiting."""
    torch = pytest.importorskip("torch")
    for i in range(20):
        x = on(np.full(1 << 20, 1.0, np.float32)) * float(i)
        there = torch.from_dlpack(x)
        doubled = there * 2
        del x, there
        again = eg.zeros((1 << 20,), device=DEV) + 7.0  # may have the memory of x
        back = eg.from_dlpack(doubled) + 1.0
        assert (back.numpy() == 2.0 * i + 1.0).all()
        assert (again.numpy() == 7.0).all()


def test_what_cannot_be_shared_is_named() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(eg.errors.GradientError, match="requires grad"):
        torch.from_dlpack(on(np.ones(2, np.float32)).requires_grad_())
    with pytest.raises(eg.errors.DtypeError, match="Tensor cannot be shared"):
        eg.from_dlpack(torch.ones(2, device=DEV, requires_grad=True))
    with pytest.raises(eg.errors.ArgumentError, match="copy=False"):
        eg.from_dlpack(torch.ones(2, device=DEV), device="cpu", copy=False)
    flipped = torch.from_dlpack(eg.flip(on(np.arange(3.0))))
    assert flipped.tolist() == [2.0, 1.0, 0.0]

"""The WebGPU backend: storage, numbers, limits, errors. What ops compute is in test_ops*.py."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.errors import (
    CompileError,
    DeviceError,
    DtypeError,
    OutOfMemoryError,
    OutOfRangeError,
)
from tests.conftest import DEVICES

pytestmark = pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")
DEV = "webgpu"
RNG = np.random.default_rng(0)


def on(array: Any) -> eg.Tensor:
    return eg.tensor(np.asarray(array), device=DEV)


def backend() -> Any:
    return base.get(DEV)


@contextmanager
def limits(**lowered: int) -> Iterator[None]:
    """The device as if it granted less."""
    held = backend().gpu.limits
    kept = {name: getattr(held, name) for name in lowered}
    backend().launch_cache.clear()
    for name, value in lowered.items():
        setattr(held, name, value)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(held, name, value)
        backend().launch_cache.clear()


# --- storage -------------------------------------------------------------------------------------

STORED = [d for d in dtypes.ALL if d.name not in ("float64", "complex64", "complex128")]


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 1023])
def test_every_dtype_comes_back_bit_for_bit(dtype: Any, count: int) -> None:
    raw = RNG.integers(0, 256, count * dtype.itemsize).astype(np.uint8)
    values = (raw & 1).astype(bool) if dtype is dtypes.bool_ else raw.view(dtype.np)
    x = eg.tensor(values, device=DEV)
    assert x.dtype is dtype
    assert x.numpy().tobytes() == values.tobytes()
    back = eg.flip(eg.flip(x)) + 0 if dtype.is_integer else eg.flip(eg.flip(x))
    assert back.numpy().tobytes() == values.tobytes()
    joined = eg.concat([x, x[1:], x])  # at offsets that are no multiples of a word
    want = np.concatenate([values, values[1:], values])
    np.testing.assert_array_equal(joined.numpy().view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize(("dtype", "cure"), [("float64", "float32"), ("complex128", "complex64")])
def test_absent_dtypes_are_named_with_their_cure(dtype: str, cure: str) -> None:
    message = f"webgpu: {dtype} does not exist on this device; use {cure}"
    with pytest.raises(DtypeError, match=message):
        eg.ones((2,), dtype, DEV)
    with pytest.raises(DtypeError, match=message):
        eg.ones((2,), device=DEV).astype(dtype)
    with pytest.raises(DtypeError, match=message):
        eg.ones((2,), dtype).to(DEV)
    with pytest.raises(DtypeError, match=message):
        eg.zeros((0,), dtype, DEV)


def test_views_copy_nothing() -> None:
    x = on(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))
    storage = x._data.storage
    parts = [
        x.reshape(6, 4),
        x.permute_dims((2, 1, 0)),
        x[:, ::-1, 1:3],
        x[0],
        x.expand_dims(1),
        x.reshape(4, 3, 2),
    ]
    parts += [x[:1].broadcast_to((5, 3, 4)), x.permute_dims((2, 0, 1)), x[1].reshape(2, 6)]
    for part in parts:
        assert part._data.storage is storage
    full = eg.zeros((1000, 1000), device=DEV)
    assert full._data.storage.size == 4


def test_layouts_read_back() -> None:
    a = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    x = on(a)
    for index in ((slice(None), slice(1, 4), 2), (2, slice(None, None, -1)), slice(None, None, 3)):
        np.testing.assert_array_equal(x[index].numpy(), a[index])
        np.testing.assert_array_equal((x[index] + 1).numpy(), a[index] + 1)
    np.testing.assert_array_equal(x.permute_dims((2, 1, 0)).reshape(30, 4).numpy(),
                                  a.transpose(2, 1, 0).reshape(30, 4))  # fmt: skip


def test_blocks_are_reused() -> None:
    pool = backend().gpu.pool
    x = on(np.ones(1000, np.float32))
    for _ in range(5):
        y = x + 1.0
    del y
    before = pool.taken_bytes
    for _ in range(50):
        y = (x * 2.0 + 1.0) * x
    assert y.numpy()[0] == 3.0
    assert pool.taken_bytes - before <= 3 * 5120


def test_an_upload_waits_for_commands_that_still_use_its_block() -> None:
    want, sums = [], []
    for i in range(300):
        x = on(np.full(500, i, np.float32))
        sums.append((x * 2.0).sum())
        want.append(1000.0 * i)
        del x
    assert [s.item() for s in sums] == want


def test_blocks_of_a_garbage_cycle_are_good() -> None:
    for i in range(5):
        x = on(np.full(2000, i, np.float32))
        holder: list[Any] = [x, x + 1.0]
        holder.append(holder)
        del holder, x
        gc.collect()
        assert float((on(np.full(2000, 5.0, np.float32)) + i).sum().item()) == 2000 * (5 + i)


def test_threads_share_the_device() -> None:
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            a = np.random.default_rng(seed).normal(size=(20, 30)).astype(np.float32)
            for _ in range(15):
                x = on(a)
                np.testing.assert_allclose(((x * 2.0) @ x.T).numpy(), 2 * a @ a.T, 1e-4, 1e-4)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


# --- numbers -------------------------------------------------------------------------------------

UNARY: dict[str, tuple[Any, tuple[tuple[float, float], ...]]] = {
    "exp": (np.exp, ((-87, 88), (-1, 1))),
    "expm1": (np.expm1, ((-20, 88), (-1, 1), (-1e-3, 1e-3))),
    "log": (np.log, ((1e-30, 1e30), (0.5, 2))),
    "log1p": (np.log1p, ((-0.999, 1), (0, 1e4), (-1e-3, 1e-3))),
    "log2": (np.log2, ((1e-30, 1e30), (0.5, 2))),
    "sin": (np.sin, ((-10, 10), (-500, 500), (-1e30, 1e30))),
    "cos": (np.cos, ((-10, 10), (-500, 500), (-1e30, 1e30))),
    "tan": (np.tan, ((-10, 10), (-1e30, 1e30))),
    "asin": (np.arcsin, ((-1, 1),)),
    "acos": (np.arccos, ((-1, 1),)),
    "atan": (np.arctan, ((-5, 5), (-1e30, 1e30))),
    "sinh": (np.sinh, ((-2, 2), (-88, 88))),
    "cosh": (np.cosh, ((-2, 2), (-88, 88))),
    "tanh": (np.tanh, ((-1, 1), (-10, 10))),
    "asinh": (np.arcsinh, ((-2, 2), (-1e30, 1e30))),
    "acosh": (np.arccosh, ((1, 2), (1, 1e30))),
    "atanh": (np.arctanh, ((-1, 1), (-0.1, 0.1))),
    "erf": (special.erf, ((-1, 1), (-5, 5))),
    "sqrt": (np.sqrt, ((0, 1e30),)),
    "sigmoid": (special.expit, ((-30, 30),)),
}


def ulps(got: Any, want: Any) -> float:
    """The largest distance, in units of float32's last place there."""
    there = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    return float(np.max(np.abs(got.astype(np.float64) - want) / there))


@pytest.mark.parametrize("name", UNARY)
def test_functions_are_within_four_units(name: str) -> None:
    reference, ranges = UNARY[name]
    for low, high in ranges:
        x = RNG.uniform(low, high, 50_000)
        if high >= 1e30:  # every size there is
            signs = RNG.choice([-1.0, 1.0], 50_000) if low < 0 else 1.0
            x = np.clip(np.exp(RNG.uniform(-60, 69, 50_000)) * signs, low, high)
        x = x.astype(np.float32)
        got = getattr(eg, name)(on(x)).numpy()
        assert ulps(got, reference(x.astype(np.float64))) <= 4.0, f"{name} in {low}, {high}"


def test_powers_are_within_four_units() -> None:
    for low, high, most in ((1e-9, 10, 4), (0.99, 1.01, 8000), (1e-30, 1e30, 1.2)):
        x = np.exp(RNG.uniform(np.log(low), np.log(high), 50_000)).astype(np.float32)
        y = RNG.uniform(-most, most, 50_000).astype(np.float32)
        want = np.power(x.astype(np.float64), y.astype(np.float64))
        normal = (want > 1e-37) & (want < 3e38)
        assert ulps(eg.pow(on(x), on(y)).numpy()[normal], want[normal]) <= 4.0
    base_ = on(np.array([-2, -2, -2, -0.0, -0.0, -np.inf, -8], np.float32))
    exponent = on(np.array([3, 2, -1, 3, -3, 3, 0.5], np.float32))
    got = eg.pow(base_, exponent).numpy()
    np.testing.assert_array_equal(got, [-8, 4, -0.5, -0.0, -np.inf, -np.inf, np.nan])


def test_remainders_are_exact() -> None:
    x = (RNG.normal(size=20_000) * 10 ** RNG.uniform(-3, 30, 20_000)).astype(np.float32)
    y = (RNG.normal(size=20_000) * 10 ** RNG.uniform(-3, 3, 20_000)).astype(np.float32)
    np.testing.assert_array_equal((on(x) % on(y)).numpy(), np.remainder(x, y))
    small = (x / y) < 1e7
    np.testing.assert_array_equal((on(x) // on(y)).numpy()[small], np.floor_divide(x, y)[small])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_floats_round_to_nearest_even(half: str) -> None:
    kind = np.float16 if half == "float16" else ml_dtypes.bfloat16
    every = np.arange(65536, dtype=np.uint16).view(kind)
    wide = eg.tensor(every, device=DEV).astype("float32").numpy()
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    x = RNG.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    middle = every.astype(np.float32)[np.isfinite(every.astype(np.float32))]
    ties = ((middle[1:].astype(np.float64) + middle[:-1]) / 2).astype(np.float32)
    x = np.concatenate([x, ties])
    with np.errstate(all="ignore"):
        want = x.astype(kind)
    np.testing.assert_array_equal(
        on(x).astype(half).numpy().astype(np.float32), want.astype(np.float32)
    )


OPS_64 = ("add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "minimum",
          "less", "less_equal", "equal", "not_equal", "bitwise_and", "bitwise_xor")  # fmt: skip


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_64_bit_integers_are_whole(dtype: str) -> None:
    a = RNG.integers(-(2**63), 2**63 - 1, 5000).view(dtype)
    b = (RNG.integers(-(2**63), 2**63 - 1, 5000) >> RNG.integers(0, 63, 5000)).view(dtype)
    for name in OPS_64:
        with np.errstate(all="ignore"):
            want = getattr(np, name)(a, b)
        np.testing.assert_array_equal(getattr(eg, name)(on(a), on(b)).numpy(), want, name)
    n = RNG.integers(0, 70, 5000).astype(dtype)
    np.testing.assert_array_equal((on(a) << on(n)).numpy(), np.left_shift(a, n))
    np.testing.assert_array_equal((on(a) >> on(n)).numpy(), np.right_shift(a, n))
    np.testing.assert_array_equal(on(a).astype("float32").numpy(), a.astype(np.float32))
    assert on(a).sum().item() == int(a.sum())
    assert on(a).max().item() == int(a.max())
    assert on(a).argmin().item() == int(a.argmin())


@pytest.mark.parametrize("dtype", [str(d) for d in dtypes.INTEGERS])
def test_casts_saturate_as_on_the_cpu(dtype: str) -> None:
    x = (RNG.normal(size=2000) * 10.0 ** RNG.uniform(0, 22, 2000)).astype(np.float32)
    x[:4] = [np.nan, np.inf, -np.inf, -0.5]
    np.testing.assert_array_equal(on(x).astype(dtype).numpy(), eg.tensor(x).astype(dtype).numpy())
    wide = RNG.integers(-(2**62), 2**62, 1000)
    np.testing.assert_array_equal(on(wide).astype(dtype).numpy(), wide.astype(dtype))


def test_random_bits_are_those_of_the_cpu() -> None:
    from everygrad.ops.random.generators import BITS

    for state in ([1, 2, 0, 0], [5, 0, 2**32 - 2, 3]):
        words = np.array(state, np.uint32)
        for count in (1, 7, 4099):
            here = eg.dispatch.apply(BITS, on(words), count=count).numpy()
            there = eg.dispatch.apply(BITS, eg.tensor(words), count=count).numpy()
            np.testing.assert_array_equal(here, there)


# --- kernels of every kind -----------------------------------------------------------------------


@pytest.fixture(params=[True, False], ids=["software", "hardware"])
def kind(request: Any, monkeypatch: Any) -> bool:
    """Kernels that suit a CPU, and those that suit a GPU, on whatever adapter there is."""
    monkeypatch.setattr(backend().gpu, "is_software", request.param)
    return bool(request.param)


@pytest.mark.parametrize("sizes", [(64, 64, 64), (65, 70, 33), (36, 400, 52), (1028, 36, 1152)])
def test_products_in_every_layout(sizes: tuple[int, int, int], kind: bool) -> None:
    m, k, n = sizes
    for transposed in range(4):
        for dtype, offset in (("float32", 0), ("float32", 1), ("float16", 0)):
            a = RNG.normal(size=(k, m) if transposed & 1 else (m, k)).astype(dtype)
            b = RNG.normal(size=(n, k) if transposed & 2 else (k, n)).astype(dtype)
            x = on(np.concatenate([np.zeros(offset, dtype), a.reshape(-1)]))[offset:]
            x, y = x.reshape(a.shape), on(b)
            x, a = (x.T, a.T) if transposed & 1 else (x, a)
            y, b = (y.T, b.T) if transposed & 2 else (y, b)
            want = a.astype(np.float64) @ b.astype(np.float64)
            tolerance = 2e-6 if dtype == "float32" else 1e-3
            error = np.abs((x @ y).numpy().astype(np.float64) - want).max()
            assert error <= tolerance * np.sqrt(k) * np.abs(want).max()


def test_stacks_of_products_and_integers(kind: bool) -> None:
    a, b = RNG.normal(size=(5, 1, 40, 64)), RNG.normal(size=(3, 64, 52))
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose((on(a) @ on(b)).numpy(), a @ b, 1e-4, 1e-4)
    for dtype in ("int64", "uint32", "int8"):
        i = RNG.integers(0, 100, (40, 50)).astype(dtype)
        np.testing.assert_array_equal((on(i) @ on(i.T)).numpy(), i @ i.T)


@pytest.mark.parametrize("shape", [(3, 40_001), (40_001, 3), (200, 300), (7, 11, 13, 50)])
def test_reductions_of_every_kind(shape: tuple[int, ...], kind: bool) -> None:
    x = RNG.normal(size=shape).astype(np.float32)
    for axes in ((0,), (len(shape) - 1,), tuple(range(len(shape))), (0, len(shape) - 1)):
        wide = x.astype(np.float64)
        np.testing.assert_allclose(
            on(x).sum(axis=axes).numpy(), wide.sum(axis=axes), 1e-5, 1e-6 * np.sqrt(x.size)
        )
        np.testing.assert_array_equal(on(x).max(axis=axes).numpy(), x.max(axis=axes))
        np.testing.assert_array_equal((on(x) > 2).any(axis=axes).numpy(), (x > 2).any(axis=axes))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 1023, 1024, 1025, 4099])
def test_vec4_kernels(count: int) -> None:
    a, b = RNG.normal(size=(2, count)).astype(np.float32)
    x, y = on(a), on(b)
    np.testing.assert_array_equal((x * y + 2.0).numpy(), a * b + 2)
    np.testing.assert_array_equal((x > y).numpy(), a > b)
    np.testing.assert_array_equal(eg.where(x > y, x, y).numpy(), np.maximum(a, b))
    np.testing.assert_array_equal(eg.where(x > y, 1.0, y).numpy(), np.where(a > b, 1, b))
    np.testing.assert_array_equal((~(x > y) & on(np.array(True))).numpy(), a <= b)
    np.testing.assert_array_equal((x > y).astype("int32").sum().item(), (a > b).sum())
    np.testing.assert_array_equal((x[1:] + y[:-1]).numpy(), a[1:] + b[:-1])


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_more_workgroups_than_one_dimension_holds(off: int) -> None:
    with limits(groups=5):
        for each in (256, 1024):  # one element for each thread, and four
            x = np.arange(5 * each + off + 1, dtype=np.float32)
            np.testing.assert_array_equal((on(x)[1:] + 1.0).numpy(), x[1:] + 1)
            np.testing.assert_array_equal((on(x)[:-1] + 1.0).numpy(), x[:-1] + 1)
        rows = np.ones((5 + off, 100), np.float32)
        np.testing.assert_array_equal(on(rows).sum(axis=1).numpy(), rows.sum(axis=1))
        np.testing.assert_array_equal(on(rows).argmax(axis=1).numpy(), rows.argmax(axis=1))
        a = RNG.normal(size=(5 + off, 20, 30)).astype(np.float32)
        np.testing.assert_allclose((on(a) @ on(a).mT).numpy(), a @ a.transpose(0, 2, 1), 1e-4, 1e-4)
        tall = RNG.normal(size=(64 * (5 + off) + 1, 20)).astype(np.float32)
        np.testing.assert_allclose((on(tall) @ on(tall[:16].T)).numpy(), tall @ tall[:16].T, 1e-4,
                                   1e-4)  # fmt: skip


def test_more_workgroups_than_two_dimensions_hold() -> None:
    with limits(groups=2), pytest.raises(DeviceError, match=r"add needs 5 workgroups.*2 x 2"):
        on(np.ones(5 * 1024 - 8, np.float32)) + 1.0  # a size that no other test has planned for


@pytest.mark.parametrize("most", [2, 3, 4, 5])
def test_more_buffers_than_a_kernel_may_read(most: int) -> None:
    with limits(storage_buffers=most):
        xs = [RNG.normal(size=(3, 4)).astype(np.float32) for _ in range(6)]
        ys = [on(x) for x in xs]
        clamped = ys[0].clamp(-eg.abs(ys[1]), eg.abs(ys[2]))
        want = np.clip(xs[0], -np.abs(xs[1]), np.abs(xs[2]))
        np.testing.assert_array_equal(clamped.numpy(), want)
        chosen = eg.where(ys[3] > 0, ys[4], ys[5])
        np.testing.assert_array_equal(chosen.numpy(), np.where(xs[3] > 0, xs[4], xs[5]))
        np.testing.assert_array_equal(eg.concat(ys).numpy(), np.concatenate(xs))
        bools = [x > 0 for x in xs]
        np.testing.assert_array_equal(
            eg.concat([on(b)[:, 1:] for b in bools]).numpy(),
            np.concatenate([b[:, 1:] for b in bools]),
        )
        added = ys[0].index_add(on(np.array([0, 2, 2])), ys[1]).numpy()
        same = eg.tensor(xs[0]).index_add(eg.tensor(np.array([0, 2, 2])), eg.tensor(xs[1]))
        np.testing.assert_allclose(added, same.numpy(), 1e-6)
        np.testing.assert_allclose((ys[0] @ ys[1].T).numpy(), xs[0] @ xs[1].T, 1e-5, 1e-5)


def test_out_of_memory_is_an_exception_and_passes() -> None:
    pool = backend().gpu.pool
    x = on(np.ones(100_000, np.float32))
    pool.trim()
    pool.limit = pool.taken_bytes + (1 << 20)
    held = []
    try:
        with pytest.raises(OutOfMemoryError, match=r"bytes asked for, .* in use"):
            held.extend(x + float(i) for i in range(100))
        held.clear()
        assert (x + 1.0).numpy()[0] == 2.0
    finally:
        pool.limit = None
    assert (x + 3.0).numpy()[0] == 4.0


def test_a_refusing_driver_is_asked_again_after_trimming(monkeypatch: Any) -> None:
    import wgpu

    gpu = backend().gpu
    real = gpu.device.create_buffer
    refused: list[int] = []

    def create(size: int, usage: Any) -> Any:
        if size > 1_000_000 and len(refused) < 3:
            refused.append(size)
            raise wgpu.GPUOutOfMemoryError("not enough memory left")
        return real(size=size, usage=usage)

    monkeypatch.setattr(gpu.device, "create_buffer", create)
    x = np.ones(333_000, np.float32)
    with pytest.raises(OutOfMemoryError, match="not enough memory left"):
        on(x)
    assert on(x).sum().item() == 333_000
    assert len(refused) == 3


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
    assert eg.take(x, on(np.array([3]))).numpy().tolist() == [3.0]


def test_a_broken_shader_is_shown() -> None:
    source = "\n".join([*(f"const c{i} = {i};" for i in range(20)), "fn f() -> f32 { return 1u; }"])
    source += "\n@compute @workgroup_size(1) fn main() {}\n"
    with pytest.raises(CompileError) as caught:
        backend().gpu.pipeline("a broken kernel", source, 1, 1)
    message = str(caught.value)
    assert "webgpu: the kernel 'a broken kernel' does not compile" in message
    assert ">  21 | fn f() -> f32 { return 1u; }" in message
    assert "  15 | const c14 = 14;" in message
    assert (on(np.ones(2, np.float32)) + 1.0).numpy().tolist() == [2.0, 2.0]


def test_an_absent_adapter_lists_those_present(monkeypatch: Any) -> None:
    with pytest.raises(DeviceError, match=r"no adapter is called 'voodoo'; present are: \w+"):
        eg.ones((2,), device="webgpu:voodoo")
    monkeypatch.setattr("everygrad.backends.webgpu.driver.adapters.adapters", lambda: [])
    with pytest.raises(DeviceError, match=r"none is present; install .*mesa-vulkan-drivers"):
        eg.ones((2,), device="webgpu:banshee")


def test_an_adapter_by_name() -> None:
    from everygrad.backends.webgpu.driver.adapters import adapters, describe

    name = describe(adapters()[0]).split(" ")[0]
    x = eg.ones((2,), device=f"webgpu:{name}") + 1.0
    assert x.device == f"webgpu:{name}"
    assert x.numpy().tolist() == [2.0, 2.0]
    with pytest.raises(DeviceError, match="different devices"):
        x + eg.ones((2,), device=DEV)


LOST = """
import numpy as np, everygrad as eg
from everygrad.backends import base
from everygrad.errors import DeviceError
x = eg.tensor(np.ones(4, np.float32), device="webgpu")
y = x + 1.0   # recorded, not yet submitted
base.get("webgpu").gpu.device.destroy()
for attempt in (lambda: y.numpy(), lambda: x * 2.0, lambda: eg.sum(y).item()):
    try:
        attempt()
    except DeviceError as error:
        assert "the device was lost" in str(error), error
    else:
        raise AssertionError("a lost device gave an answer")
assert (eg.ones((3,)) + 1.0).tolist() == [2.0, 2.0, 2.0]
again = eg.tensor(np.ones(4, np.float32), device="webgpu") + 1.0
assert again.tolist() == [2.0, 2.0, 2.0, 2.0]
try:
    x + again
except DeviceError as error:
    assert "the device was lost" in str(error), error
else:
    raise AssertionError("a lost tensor was used")
print("fine")
"""

ABORTS = """
import gc, numpy as np, everygrad as eg
dev = "webgpu"
one = np.ones(5000, np.float32)
# a buffer that commands still use goes away before they are submitted
for i in range(50):
    x = eg.tensor(one, device=dev)
    y = (x + float(i)) * x
    del x
    gc.collect()
assert y.numpy()[0] == 50.0
eg.backends.base.get(dev).gpu.pool.trim()
z = y + 1.0
del y
eg.backends.base.get(dev).gpu.pool.trim()
assert z.numpy()[0] == 51.0
# read while other results wait; read twice; read nothing
a, b = z + 1.0, z + 2.0
assert (a.numpy()[0], b.numpy()[0], a.numpy()[0]) == (52.0, 53.0, 52.0)
gpu = eg.backends.base.get(dev).gpu
gpu.submit()
gpu.submit()
gpu.wait()
gpu.wait()
# empty tensors, through every kind of op
e = eg.zeros((0, 3), device=dev)
w = eg.zeros((3, 4), device=dev)
outs = [e + 1.0, e.sum(), e.sum(axis=0), e @ w, e.T @ eg.zeros((0, 2), device=dev), e.reshape(3, 0),
        e[:, :0], eg.concat([e, e]), eg.concat([e, w.T[:, :3]]), e.max(axis=1), e.prod(),
        eg.take(w, eg.zeros((0,), "int64", dev)), e.astype("int64"), e.softmax(axis=1), e > 0,
        eg.pad(e, ((1, 0), (0, 0))), eg.flip(e), (e > 0).any(), e.to("cpu"), e.clone()]
for out in outs:
    out.numpy()
print("fine")
"""


@pytest.mark.parametrize("script", [LOST, ABORTS], ids=["lost", "aborts"])
def test_the_process_lives(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "fine"), done.stderr[-3000:]


def test_buffers_are_dropped_never_destroyed() -> None:
    folder = Path(str(eg.__file__)).parent / "backends" / "webgpu"
    for file in folder.rglob("*.py"):
        assert ".destroy(" not in file.read_text(), file

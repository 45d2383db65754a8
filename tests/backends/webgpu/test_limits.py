"""What WebGPU limits, lowered until it hurts: tensors larger than a binding, few buffers, few
workgroups; uploads, and reading back without waiting. Results are those of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes, nn
from everygrad.backends import base
from everygrad.backends.webgpu.driver import (
    binding_windows,
    gpu as gpu_module,
    readback,
    wgpu_native,
)
from everygrad.errors import (
    CompileError,
    DeviceError,
    DtypeError,
    OutOfMemoryError,
    OutOfRangeError,
    TraceError,
)
from everygrad.ops.record.spec import REGISTRY
from tests.backends.webgpu.test_device import backend, limits, on
from tests.conftest import DEVICES
from tests.registry.test_jit_ops import as_function
from tests.support.checks import (
    WITH_SAMPLES,
    arrays_of,
    close,
    is_absent,
    map_sample,
    samples_of,
    values,
)

pytestmark = pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")
RNG = np.random.default_rng(0)
BINDING = 4096
PER = BINDING // 4  # float32 elements of one binding


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def agree(got: Any, want: Any) -> None:
    if want.dtype.is_float or want.dtype.is_complex:
        close(got, want, 1e-4)
    else:
        np.testing.assert_array_equal(values(got), values(want))


def same_as_cpu(fn: Any, *arrays: Any) -> None:
    """One function of tensors on both devices."""
    agree(fn(*map(on, arrays)), fn(*map(eg.tensor, arrays)))


# --- every op, on windows of a few elements ------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch: Any) -> Iterator[None]:
    """Bindings of eight words: hardly a tensor fits one."""
    if backend().gpu.device.limits["min-storage-buffer-offset-alignment"] > 32:
        pytest.skip("this adapter starts no binding at a multiple of 32")
    monkeypatch.setattr(binding_windows, "ALIGNMENT", 32)
    backend().made.clear()
    with limits(binding_size=32):
        yield
    backend().made.clear()


# samples that touch more than 32 windows
NEEDS_MORE = {
    *("conv2d", "attention_grads", "gammainc", "gammaincc"),
    *("rnn_sequence", "rnn_reserve", "rnn_grads"),  # a state for each step
    *("qr", "qr_vjp", "qr_complete"),  # panels of all rows
    "dft",  # of 37 points, as a longer one
}
# by Jacobi's rotations, which a workgroup makes in place: refused by name beyond one binding
ROTATIONS = {
    *("eigh", "eigh_vjp", "eigvalsh", "svd", "svd_vjp", "svd_complete", "svdvals", "pinv"),
    *("matrix_rank", "lstsq", "lstsq_vjp", "adjugate", "matrix_norm", "cond"),
}


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_every_op_on_windows(name: str, tiny: None) -> None:
    op = REGISTRY[name]
    refused = is_absent(op, "webgpu")
    checked = 0
    for sample in [*samples_of(op, "webgpu")][:2]:
        function = as_function(op, sample)
        want = function(*map(eg.tensor, arrays_of(sample)))
        try:
            got = function(*map(on, arrays_of(sample)))
        except DtypeError:
            refused = True  # a dtype the device lacks, by name: tested elsewhere
            continue
        except OutOfMemoryError:
            if name in NEEDS_MORE:
                refused = True
                continue
            raise
        except CompileError as error:
            if name in ROTATIONS and "larger than one binding" in str(error):
                refused = True
                continue
            raise
        for g, w in zip(got, want, strict=True):
            if g.dtype is w.dtype:  # default dtypes differ between devices
                agree(g, w)
        checked += 1
    assert checked or refused


# --- at the edge of a binding --------------------------------------------------------------------

ELEMENTWISE = [n for n in WITH_SAMPLES if REGISTRY[n].family == "elementwise"]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_at_the_edge(name: str) -> None:
    op = REGISTRY[name]
    sample = next(iter(samples_of(op, "webgpu")))
    for off in (-1, 0, 1):
        grown = map_sample(sample, lambda a, n=PER + off: np.resize(a, n))
        function = as_function(op, grown)
        want = function(*map(eg.tensor, arrays_of(grown)))
        with limits(binding_size=BINDING, storage_buffers=8):
            try:
                got = function(*map(on, arrays_of(grown)))
            except DtypeError:  # a dtype the device lacks, at any size
                with pytest.raises(DtypeError):
                    as_function(op, sample)(*map(on, arrays_of(sample)))
                return
            for g, w in zip(got, want, strict=True):
                agree(g, w)


@pytest.mark.parametrize("off", [-1, 0, 1, PER // 2 + 3])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "bool", "int64"])
def test_layouts_at_the_edge(dtype: str, off: int) -> None:
    size = dtypes.as_dtype(dtype).itemsize
    count = BINDING // size + off
    a = RNG.integers(0, 2 if dtype == "bool" else 100, count).astype(dtypes.as_dtype(dtype).np)
    with limits(binding_size=BINDING, storage_buffers=8):
        x = on(a)
        assert x.numpy().tobytes() == a.tobytes()
        same_as_cpu(lambda x: eg.concat([x[1:], x[:1]]), a)
        same_as_cpu(eg.flip, a)
        same_as_cpu(lambda x: x[3::2] == x[2:-1:2][: x[3::2].shape[0]], a)
        same_as_cpu(lambda x: x.astype("float32").max(), a)
        square = a[: 24 * (count // 24)].reshape(24, -1)
        same_as_cpu(lambda x: x.T.reshape(-1), square)
        same_as_cpu(lambda x: x.T.astype("int32") + 1, square)


CASES: dict[str, Any] = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(axis=1),
    "mean of columns": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "any": lambda x: (x > 3).any(axis=1),
    "argmax": lambda x: x.argmax(axis=1),
    "softmax": lambda x: x.softmax(axis=-1),
    "layer_norm": lambda x: nn.functional.layer_norm(x, (x.shape[-1],)),
    "matmul": lambda x: x @ x.T,
    "batched matmul": lambda x: x.reshape(4, -1, x.shape[1]) @ x.T,
    "broadcast": lambda x: x + x[:1] * x[:, :1],
    "pad": lambda x: eg.pad(x, ((1, 2), (0, 1))),
    "stack": lambda x: eg.stack([x, x + 1.0], axis=1),
    "where": lambda x: eg.where(x > 0, x, -x),
    "take": lambda x: eg.take(x, eg.arange(0, x.shape[0], 3, device=x.device), axis=0),
    "full": lambda x: eg.full(x.shape, 3.0, device=x.device) + x,
}


@pytest.mark.parametrize("off", [-1, 0, 1, 16])
@pytest.mark.parametrize("case", CASES)
def test_ops_at_the_edge(case: str, off: int) -> None:
    columns = PER // 32 + off
    a = normal(32, columns)
    backend().made.clear()
    with limits(binding_size=BINDING, storage_buffers=8):
        same_as_cpu(CASES[case], a)
    backend().made.clear()


def test_adding_by_atomics_over_windows() -> None:
    a = normal(PER + 40)
    for dtype in ("float32", "int32"):
        index = RNG.integers(0, a.size, 300)
        source = RNG.integers(0, 50, 300).astype(dtype)
        with limits(binding_size=BINDING):
            same_as_cpu(lambda x, i, s: x.index_add(i, s), a.astype(dtype), index, source)


def test_gradients_over_windows() -> None:
    def loss(x: Any) -> Any:
        return (eg.tanh(x) * x).sum() + (x @ x.T).mean()

    with limits(binding_size=BINDING, storage_buffers=8):
        same_as_cpu(eg.grad(loss), normal(40, 40))


def test_compiled_functions_over_windows() -> None:
    def f(x: Any, y: Any) -> Any:
        return (eg.exp(x) * y).sum(axis=0) + (x.T @ y).softmax(axis=-1)

    a, b = normal(40, 40), normal(40, 40)
    with limits(binding_size=BINDING, storage_buffers=8):
        compiled = eg.jit(f)
        for _ in range(2):
            agree(compiled(on(a), on(b)), f(eg.tensor(a), eg.tensor(b)))
        views = on(np.stack([a, b]))  # inputs inside a larger buffer
        agree(compiled(views[0], views[1]), f(eg.tensor(a), eg.tensor(b)))


def test_larger_than_this_adapters_binding() -> None:
    most = backend().gpu.limits.binding_size
    if most > 1 << 28:
        pytest.skip("this adapter binds more than a test should take")
    count = most // 4 + 4
    x = eg.full((count,), 1.0, device="webgpu") + 1.0
    assert x._data.storage.block.size > most
    assert x.sum().item() == 2.0 * count
    assert (x[-7:] * 3.0).numpy().tolist() == [6.0] * 7
    assert float((x * x)[count - 1].item()) == 4.0


# --- refusals ------------------------------------------------------------------------------------


def test_more_windows_than_bindings_are_refused_by_name() -> None:
    x = on(normal(200, 200))
    with limits(binding_size=BINDING, storage_buffers=8):
        message = r"sum: its tensors take \d+ bindings of 4096 bytes .*binds 8 at once.*; split"
        with pytest.raises(OutOfMemoryError, match=message):
            x.sum()
        message = r"add: \d+ rows of its result.* bindings of 4096 bytes.*; split the tensors"
        with pytest.raises(OutOfMemoryError, match=message):
            x.T + 1.0
        np.testing.assert_array_equal((x + 1.0).numpy(), x.numpy() + 1)  # in pieces


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_larger_than_a_buffer(off: int) -> None:
    with limits(binding_size=BINDING, buffer_size=2 * BINDING):
        a = normal(2 * PER + off)
        if off > 0:
            message = "a tensor of 8196 bytes .* at most 8192 bytes .max-buffer-size.; split"
            with pytest.raises(OutOfMemoryError, match=message):
                on(a)
        else:
            np.testing.assert_array_equal((on(a) * 2.0).numpy(), a * 2)


def test_more_elements_than_kernels_count() -> None:
    many = eg.zeros((1 << 31,), "int8", "webgpu")  # a view of one number: no memory yet
    with pytest.raises(OutOfMemoryError, match="2147483648 elements: kernels count to 2147483647"):
        many + 1
    with pytest.raises(OutOfMemoryError, match="max of 2147483648 elements"):
        many.max()
    assert eg.zeros((1 << 40,), device="webgpu")[5:7].numpy().tolist() == [0.0, 0.0]
    with pytest.raises(DeviceError, match="copy is given 4294967296, and kernels count in 32 bits"):
        backend().gpu.prepare("copy", "", 0, 1, [1, 1 << 32], 1)


def test_accesses_that_cannot_be_split_are_refused() -> None:
    head = "@group(0) @binding(0) var<storage, read_write> out: array<{0}>;\n"
    head += "@group(0) @binding(1) var<uniform> P: Params;\n"
    for kind, line in (
        ("u32", "let n = arrayLength(&out);"),
        ("u32", "out[i] += 1u;"),
        ("vec4<u32>", "out[i].x = 1u;"),
        ("u32", "f(&out[i]);"),
        ("mat2x2<f32>", "out[i] = m;"),
    ):
        source = head.format(kind) + f"fn main() {{\n{line}\n}}\n"
        with pytest.raises(CompileError, match="odd cannot take a tensor larger than one binding"):
            binding_windows.widened("odd", source, (2,), 512)


def test_few_of_everything() -> None:
    with limits(binding_size=8192, groups=7, storage_buffers=6):
        for off in (-1, 0, 1):
            a = normal(7 * 256 + off)
            same_as_cpu(lambda x: eg.where(x > 0, x * 2.0, x), a)
            same_as_cpu(lambda x: eg.concat([x, x[:5]]).sum(), a)
            same_as_cpu(lambda x: x[1:].reshape(-1, 1).max(axis=1), a)


# --- data in and out -----------------------------------------------------------------------------


def test_uploads_and_downloads_are_split(monkeypatch: Any) -> None:
    for module in (gpu_module, readback):
        monkeypatch.setattr(module, "STAGED", 512)
    for count in (127, 128, 129, 1000):
        a = normal(count)
        x = on(a)
        assert x.numpy().tobytes() == a.tobytes()
        pending = backend().read_later([x._data, x[1:]._data, x[:3]._data])
        got = pending.result()
        for g, w in zip(got, (a, a[1:], a[:3]), strict=True):
            np.testing.assert_array_equal(g, w)


def test_small_uploads_do_not_submit_recorded_commands() -> None:
    gpu = backend().gpu
    gpu.wait()
    before, sums = gpu.epoch, []
    for i in range(40):
        x = on(np.full(500, i, np.float32))
        sums.append(x * 2.0)
        del x
    assert gpu.epoch == before
    assert [s.numpy()[3] for s in sums] == [2.0 * i for i in range(40)]


def test_many_readings_are_one_submission() -> None:
    gpu = backend().gpu
    arrays = [normal(n) for n in (1, 5, 0, 700)]
    tensors = [on(a) + 1.0 for a in arrays]
    before = gpu.epoch
    pending = backend().read_later([t._data for t in tensors])
    later = tensors[0] + 1.0  # recorded after: not waited for, not submitted
    for got, a in zip(pending.result(), arrays, strict=True):
        np.testing.assert_array_equal(got, a + 1)
    assert pending.result()[3] is not None
    assert gpu.epoch == before + 1
    assert gpu.is_recorded(later._data.storage.block)
    assert later.numpy()[0] == arrays[0][0] + 2
    assert [a.shape for a in backend().read_later([tensors[2]._data]).result()] == [(0,)]


def test_a_module_comes_back_in_one_submission() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))
    want = {k: v.numpy() for k, v in model.state_dict().items()}
    model[0].weight.grad = eg.ones((7, 5))
    model.to("webgpu")
    assert model[0].weight.grad.device == "webgpu"
    before = backend().gpu.epoch
    model.to("cpu")
    assert backend().gpu.epoch <= before + 1
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), want[name])
    assert model[0].weight.grad.numpy().tolist() == np.ones((7, 5)).tolist()
    model.to("webgpu", "float16").to("cpu")
    assert {p.dtype for p in model.parameters()} == {dtypes.float16}


def test_values_later() -> None:
    x = on(np.arange(6, dtype=np.float32).reshape(2, 3))
    pending = (x.T * 2.0).numpy_later()
    del x
    dropped = on(normal(50)).numpy_later()
    del dropped
    got = pending.result()
    assert got.tolist() == [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
    assert not got.flags.writeable
    assert pending.result().tolist() == got.tolist()
    assert eg.tensor([1.5]).numpy_later().result().tolist() == [1.5]
    with pytest.raises(eg.errors.GradientError, match=r"detach\(\).numpy_later\(\)"):
        eg.tensor([1.0], requires_grad=True).numpy_later()
    with pytest.raises(TraceError, match="numpy_later"):
        eg.jit(lambda x: x.numpy_later())(on(normal(2)))


def test_a_bad_index_is_raised_with_the_values() -> None:
    x = on(normal(4))
    first = eg.take(x, on(np.array([9]))).numpy_later()
    second = eg.take(x, on(np.array([0])))
    with pytest.raises(OutOfRangeError, match="index 9 is out of range"):
        first.result()
    assert first.result().shape == (1,)  # said once
    assert second.numpy()[0] == x.numpy()[0]
    eg.take(x, on(np.array([7])))
    with pytest.raises(OutOfRangeError, match="index 7 is out of range"):
        x.numpy()


def test_without_the_native_functions(monkeypatch: Any) -> None:
    assert wgpu_native.direct() is not None
    monkeypatch.delattr(wgpu_native.wgpu_native, "lib")
    assert wgpu_native.direct() is None
    gpu = backend().gpu
    gpu.wait()
    gpu.drop_bind_groups()
    monkeypatch.setattr(gpu, "calls", wgpu_native.by_classes())
    a = normal(20, 20)
    same_as_cpu(lambda x: (x @ x + 1.0).sum(axis=0), a)
    agree(eg.jit(lambda x: x @ x)(on(a)), eg.tensor(a) @ eg.tensor(a))
    gpu.wait()
    gpu.drop_bind_groups()


def test_backends_without_a_gpu_read_at_once() -> None:
    assert base.get("cpu").read_later([np.ones(2)]).result()[0].tolist() == [1.0, 1.0]

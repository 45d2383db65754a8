"""The CUDA backend without a GPU: every kernel of the registry compiles, launches are as planned.

The device "cuda:dry" has memory of the host and launches nothing; NVRTC comes from a wheel.
"""

from __future__ import annotations

import re
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.cuda import device
from everygrad.backends.cuda.driver import driver, nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.kernels import launch_kernel
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.backends.cuda.source.render import TABLE
from everygrad.backends.cuda.source.writer import KernelText
from everygrad.compiler.expr import INTRINSICS
from everygrad.dtypes import DType
from everygrad.errors import (
    CompileError,
    DeviceError,
    DtypeError,
    EverygradError,
    OutOfMemoryError,
)
from everygrad.ops.record.lazy_index import OPS
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.support.checks import (
    WITH_SAMPLES,
    call,
    function_of,
    in_dtype,
    is_flat,
    is_float,
    map_sample,
    to_tensor,
    with_floats,
)

DRY = "cuda:dry"
ARCHITECTURES = ("sm_80", "sm_90")
# values mean nothing here, and neither do sizes that depend on them
LIBRARY_ONLY = ("eig", "eigvals")  # CuPy's, on a GPU; refused by name elsewhere
FIXED = [
    n for n in WITH_SAMPLES if n not in LIBRARY_ONLY and not REGISTRY[n].notes.get("by_values")
]
LATER = {name for names in OPS.values() for name in names}
FEW = (dtypes.float32, dtypes.bfloat16)
MANY = (*FEW, dtypes.float64, dtypes.int64, dtypes.bool_, dtypes.complex64)
PARTS = 24  # of the ops, each one translation unit
# a kernel is checked, not run: optimising it would take five times as long
QUICK = ("--Ofast-compile=max",)


def dry() -> Any:
    return base.get(DRY)


def seen() -> dict[str, KernelText]:
    return dry().gpu.driver.texts  # type: ignore[no-any-return]


# --- every kernel --------------------------------------------------------------------------------


def _variants(one: Sample, wanted: Sequence[DType]) -> Iterator[Sample]:
    """A sample in some of the dtypes its arrays may have."""
    for dtype in wanted:
        if dtype.is_float:
            yield in_dtype(one, dtype)
        elif dtype.is_complex:
            yield with_floats(one, lambda a, d=dtype: np.asarray(a + 0.5j).astype(d.np))
        else:
            yield with_floats(one, lambda a, d=dtype: _integers(a).astype(d.np))


def _dtypes_of(op: Op) -> Sequence[DType]:
    """All dtypes where kernels differ only by dtype; few where kernels are those of other ops."""
    if op.namespace == "internal":  # they check nothing
        return FEW
    common = op.family in ("elementwise", "reduction") and op.name not in LATER
    return dtypes.ALL if common else FEW if op.family == "composite" else MANY


def _integers(a: Any) -> Any:
    return np.where(np.isfinite(a), np.abs(np.rint(a)), 1)


def _run(op: Op) -> None:
    """Every sample of the op, in every dtype it takes, and its derivatives."""
    for i, one in enumerate(op.samples()):
        for given in _variants(one, _dtypes_of(op) if i == 0 else FEW):
            try:
                call(function_of(op), map_sample(given, to_tensor(DRY)))
            except (EverygradError, TypeError):
                continue  # a dtype the op refuses; test_every_op_runs sees to the others
        if _floats(one) and not is_flat(op) and i < 2:
            for dtype in ("float32", "bfloat16"):
                if (total := _forward(op, in_dtype(one, dtype))) is not None:
                    total.backward()


def _floats(one: Sample) -> list[Any]:
    found: list[Any] = []
    map_sample(one, lambda a: found.append(a) if is_float(a) else None)
    return found


def new_texts(part: int) -> list[KernelText]:
    """The kernels that a part of the ops needs, and no earlier part in this process did."""
    before = {*seen()}
    for name in FIXED[part::PARTS]:
        _run(REGISTRY[name])
    if not part:
        _large_shapes()
    return [seen()[name] for name in sorted({*seen()} - before)]


def _large_shapes() -> None:
    """What small samples do not reach: split reductions, several blocks, sorting."""
    for dtype in ("float32", "bfloat16", "float64", "int64"):
        x = eg.zeros((3, 40_000), dtype, DRY).clone() + eg.ones((3, 1), dtype, DRY)
        for axis in (None, 0, 1):
            x.sum(axis=axis)
            x.max(axis=axis)
        x.T.sum(axis=0)
        x.argmax(axis=1)
        for axis in (0, 1):  # lanes; tiles, in chunks
            eg.cumsum(x, axis)
            eg.cummax(x, axis)
        rows = eg.zeros((5000, 40), dtype, DRY) + eg.ones((40,), dtype, DRY)
        index = eg.zeros((5000,), "int64", DRY)
        eg.ones((7, 40), dtype, DRY).index_add(index, rows)
        eg.ones((7000, 40), dtype, DRY).index_add(index, rows)
        eg.ones((7, 40), dtype, DRY).scatter_add(index.reshape(-1, 1), rows[:, :1])
        if dtype.startswith(("f", "b")):
            for n in (33, 1500, 20_000, 50_257):
                eg.log_softmax(eg.ones((2, n), dtype, DRY) + 1.0)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_compiles(part: int) -> None:
    texts = new_texts(part)
    assert texts
    options = (*nvrtc.OPTIONS, *QUICK)
    whole = with_library("".join(t.source for t in texts))
    for arch in ARCHITECTURES:
        try:
            nvrtc.opened().compile("all", whole, arch, options)  # on disk, if it was made before
        except CompileError:
            for text in texts:  # name the one
                nvrtc.opened().compile(text.name, with_library(text.source), arch, options)
            raise


def test_every_op_runs() -> None:
    """No sample is skipped by mistake: each op takes each of its own samples."""
    for name in FIXED:
        for one in REGISTRY[name].samples():
            outs = call(function_of(REGISTRY[name]), map_sample(one, to_tensor(DRY)))
            want = call(function_of(REGISTRY[name]), map_sample(one, to_tensor("cpu")))
            assert len(outs) == len(want)
            if not (name == "getitem" and any(a.dtype == bool for a in _arrays(one))):
                assert [(o.shape, o.dtype) for o in outs] == [(o.shape, o.dtype) for o in want]


def _arrays(one: Sample) -> list[Any]:
    found: list[Any] = []
    map_sample(one, found.append)
    return found


def test_every_intrinsic_has_its_line() -> None:
    assert set(TABLE) == set(INTRINSICS)


def test_a_text_serves_all_shapes() -> None:
    before = len(seen())
    for n in (100, 101, 102, 103):
        x = eg.tensor(np.ones((n, 5), np.float32), device=DRY)
        _ = x * eg.tensor(np.ones((5,), np.float32), device=DRY)
    assert len(seen()) - before <= 2


def test_places_beyond_32_bits_are_counted_in_64(monkeypatch: pytest.MonkeyPatch) -> None:
    x = eg.tensor(np.ones((40, 50), np.float32), device=DRY)
    before = set(seen())
    with monkeypatch.context() as patch:
        patch.setattr(launch_kernel, "NARROW", 1000)
        launch_kernel.machine.cache_clear()
        _ = x.T[1:] + x.T[:-1]
        _ = x.sum(axis=0)
    launch_kernel.machine.cache_clear()
    made = [seen()[name].source for name in set(seen()) - before]
    assert len(made) == 2
    assert all("const u64 r0 = blockIdx.x" in s for s in made)
    options = ("--gpu-architecture=sm_80", *nvrtc.OPTIONS, *QUICK)
    nvrtc.opened().build("wide", with_library("".join(made)), options)


# --- errors --------------------------------------------------------------------------------------


def test_a_broken_kernel_is_shown() -> None:
    lines = [f"static const int c{i} = {i};" for i in range(20)]
    source = "\n".join([*lines, 'extern "C" __global__ void k(float* x) { x = 1.5f; }'])
    with pytest.raises(CompileError) as caught:
        nvrtc.opened().compile("k", source, "sm_80")
    message = str(caught.value)
    assert "cuda: the kernel 'k' does not compile" in message
    assert ">  21 | extern" in message
    assert "  15 | static const int c14 = 14;" in message


def test_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    driver.found.cache_clear()
    with pytest.raises(DeviceError, match=r"needs CuPy.*pip install 'everygrad\[cuda13\]'"):
        device.open_device("cuda")


def test_cupy_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "cupy":
                raise ImportError("libnothing.so: no such file")

    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(DeviceError, match="CuPy does not load: libnothing"):
        driver.load_cupy()


class FakeCuda:
    """libcuda of a driver that has no GPU, or that fails."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        return types.SimpleNamespace(argtypes=None) if name != "cuInit" else _Init(self.code)


class _Init:
    argtypes: Any = None

    def __init__(self, code: int) -> None:
        self.code = code

    def __call__(self, flags: int) -> int:
        return self.code


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", absent)
    with pytest.raises(DeviceError, match=r"needs NVIDIA's driver.*libcuda\.so\.1 was not found"):
        driver.load_driver()


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: FakeCuda(100))
    with pytest.raises(DeviceError, match="the driver finds no GPU; see what nvidia-smi says"):
        driver.load_driver()


def test_a_driver_too_old() -> None:
    driver.check_versions(13000, 12090)
    message = r"driver is for CUDA 12\.4, too old for this CuPy, built for CUDA 13.*cuda12"
    with pytest.raises(DeviceError, match=message):
        driver.check_versions(12040, 13000)


@pytest.mark.parametrize("name", ["cuda:x", "cuda:-1", "cuda:1.5"])
def test_names_of_gpus(name: str) -> None:
    with pytest.raises(DeviceError, match="GPUs are named by their number"):
        base.get(name)


def test_one_device_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_OPEN", {})
    monkeypatch.setattr(device, "Driver", lambda index: DryDriver())
    assert base.get("cuda") is base.get("cuda:0")
    assert base.get("cuda:1") is not base.get("cuda")
    x = eg.ones((2,), device="cuda:0") + 1.0
    assert x.device == "cuda"
    y = x.to("cuda:1")
    assert y.device == "cuda:1"
    with pytest.raises(DeviceError, match="different devices"):
        x + y
    assert x.to("cuda:0")._data is x._data


def test_out_of_memory_names_the_largest_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    held = eg.tensor(np.ones((1 << 19,), np.float32), device=DRY) + 1.0  # 2 MiB
    monkeypatch.setattr(dry().gpu.driver, "limit", 1 << 22)
    with pytest.raises(OutOfMemoryError) as caught:
        eg.concat([held, held, held])
    message = str(caught.value)
    assert "out of memory: 6,291,456 bytes asked for" in message
    assert re.search(r"2,097,152 bytes  .*test_kernels_compile\.py:\d+", message)
    assert (held + 1.0).shape == held.shape


# --- arrays --------------------------------------------------------------------------------------


def test_views_copy_nothing() -> None:
    x = eg.tensor(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), device=DRY)
    before = sum(dry().gpu.driver.launches.values())
    parts = [x.reshape(6, 4), x.mT, x[:, ::-1, 1:3], x[0], x.expand_dims(1), x.reshape(4, 3, 2)]
    parts += [x[:1].broadcast_to((5, 3, 4)), x.permute_dims((2, 0, 1)), x[1].reshape(2, 6)]
    assert all(p._data.storage is x._data.storage for p in parts)
    assert sum(dry().gpu.driver.launches.values()) == before
    for part, want in zip(parts[:4], _numpy_views(), strict=True):
        np.testing.assert_array_equal(part.numpy(), want)


def _numpy_views() -> list[Any]:
    a = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    return [a.reshape(6, 4), a.swapaxes(1, 2), a[:, ::-1, 1:3], a[0]]


def test_permuted_operands_stay_permuted() -> None:
    x = eg.tensor(np.ones((30, 40), np.float32), device=DRY)
    y = (x.T + x.T) * 2.0
    assert y.shape == (40, 30)
    assert y._data.strides == (1, 40)


def test_the_array_interface() -> None:
    x = eg.tensor(np.ones((3, 4), np.float32), device=DRY).T
    facts = x._data.__cuda_array_interface__
    assert facts["shape"] == (4, 3)
    assert facts["strides"] == (4, 16)
    assert facts["typestr"] == "<f4"
    with pytest.raises(DtypeError, match="no bfloat16"):
        x.astype("bfloat16")._data.__cuda_array_interface__  # noqa: B018


def test_a_backward_makes_no_host_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No op or derivative reads values on the host, except to know the size of its result."""

    def refuse(*args: Any) -> Any:
        raise AssertionError("a copy to the host")

    differentiated = 0
    for name in FIXED:
        op = REGISTRY[name]
        for one in op.samples():
            if not _floats(one) or name == "to":
                continue
            with monkeypatch.context() as patch:
                if name != "getitem":  # which looks at its indices first
                    patch.setattr(dry().gpu.driver, "download", refuse)
                total = _forward(op, one)
                patch.setattr(dry().gpu.driver, "download", refuse)
                if total is not None:
                    total.backward()
                    differentiated += 1
    assert differentiated > len(FIXED) / 2


def _forward(op: Op, one: Sample) -> eg.Tensor | None:
    """The sum of all results that can be differentiated."""
    total: eg.Tensor | None = None
    for out in call(function_of(op), map_sample(one, to_tensor(DRY, grad=True))):
        if out.requires_grad:
            part = (eg.real(out) if out.dtype.is_complex else out).sum()
            total = part if total is None else total + part
    return total


def test_threads_that_compile_are_known_to_look_at_no_tensor() -> None:
    """Other threads may, and then nothing is overwritten: see `entry._others_may_look`."""
    before = set(threading.enumerate())
    source = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
    made = [nvrtc.opened().compile_later("k", f"{source} // {n}", "sm_80") for n in range(4)]
    assert all(m.result() for m in made)
    started = set(threading.enumerate()) - before
    assert started or any("nvrtc" in t.name for t in before)
    assert all(t.name.startswith("everygrad") for t in started)

"""DLPack, both ways: a table of dtypes, layouts and libraries, all on shared memory."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad.backends.cpu import lazy_native
from everygrad.core import fast_calls
from everygrad.dtypes import ALL, bfloat16
from everygrad.errors import DtypeError, ExchangeError, GradientError, TraceError
from everygrad.ops.python import dlpack


@pytest.fixture(autouse=True, params=["python", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs on the code in Python, and on the native code that takes over from it."""
    for method in dlpack._METHODS:
        monkeypatch.setattr(eg.Tensor, method.__name__, method)
    monkeypatch.setattr(dlpack, "_native_take", None)
    for heat in (dlpack._takes, dlpack._exports):
        monkeypatch.setattr(heat, "calls", -(1 << 62))
    if request.param == "native":
        dlpack._export_natively()
        dlpack._take_natively(torch.ones(1))
        assert eg.Tensor.__dlpack__ is not dlpack._METHODS[0]
        assert dlpack._native_take is not None
    return str(request.param)


DTYPES = [d.name for d in ALL]
# by name: a 2-d array of another library, or of this one, seen in some way
LAYOUTS: dict[str, Any] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "strided": lambda x: x[1:, ::2],
    "column": lambda x: x[:, 1],
    "0-d": lambda x: x[1, 1],
    "empty": lambda x: x[:0],
    "size 1": lambda x: x[:1, :1],
}


def _values(dtype: str) -> Any:
    counted = np.arange(12).reshape(3, 4) % 5
    wanted = bfloat16.np if dtype == "bfloat16" else np.dtype(dtype)
    return counted.astype(wanted)


def _pointer(t: Any) -> int:
    return int(t._data.ctypes.data)


def _same(got: Any, want: Any) -> None:
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.astype(np.complex128), want.astype(np.complex128))


def _from_torch(t: torch.Tensor) -> Any:
    if t.dtype is torch.bfloat16:
        return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_and_from_pytorch(dtype: str, layout: str) -> None:
    view = LAYOUTS[layout]
    mine = view(eg.tensor(_values(dtype)))
    there = torch.from_dlpack(mine)
    assert str(there.dtype) == f"torch.{dtype}"
    assert tuple(there.shape) == mine.shape
    _same(_from_torch(there), view(_values(dtype)))
    if mine.size:
        assert there.data_ptr() == _pointer(mine)
    back = eg.from_dlpack(there)
    _same(back.numpy(), view(_values(dtype)))
    if mine.size:
        assert _pointer(back) == there.data_ptr()
    theirs = view(torch.from_dlpack(eg.tensor(_values(dtype))).clone())
    taken = eg.from_dlpack(theirs)
    _same(taken.numpy(), view(_values(dtype)))
    if taken.size:
        assert _pointer(taken) == theirs.data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_to_and_from_numpy(dtype: str, layout: str) -> None:
    view = LAYOUTS[layout]
    array = np.asarray(view(_values(dtype)))
    taken = eg.from_dlpack(array)
    _same(taken.numpy(), array)
    if array.size:
        assert np.shares_memory(taken.numpy(), array)
    if dtype == "bfloat16":  # NumPy itself refuses it
        with pytest.raises((BufferError, RuntimeError, TypeError)):
            np.from_dlpack(taken)
        return
    back = np.from_dlpack(taken)
    _same(back, array)
    if array.size:
        assert np.shares_memory(back, taken.numpy())


class _Producer:
    """Another library: exactly what DLPack asks of one, in its old and its new form."""

    def __init__(self, t: torch.Tensor, new: bool) -> None:
        self.t, self.new, self.dtype = t, new, t.dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        if not self.new and options.keys() - {"stream"}:
            raise TypeError("unexpected keyword")
        return self.t.__dlpack__(max_version=(1, 0) if self.new else None)


@pytest.mark.parametrize("new", [False, True], ids=["0.8", "1.0"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_from_other_libraries(dtype: str, new: bool) -> None:
    theirs = torch.from_dlpack(eg.tensor(_values(dtype))).clone().T
    taken = eg.from_dlpack(_Producer(theirs, new))
    _same(taken.numpy(), _values(dtype).T)
    assert _pointer(taken) == theirs.data_ptr()


def test_jax_if_it_is_there() -> None:
    jax = pytest.importorskip("jax", reason="JAX is in .venv-jax (tools/bootstrap.sh bench)")
    for dtype in ("float32", "bfloat16", "float16", "int32", "bool"):
        theirs = jax.numpy.asarray(_values(dtype))
        _same(eg.from_dlpack(theirs).numpy(), _values(dtype))
        back = jax.dlpack.from_dlpack(eg.tensor(_values(dtype)))
        _same(np.asarray(back), _values(dtype))


def test_cupy_if_it_is_there() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy comes with everygrad[cuda13]")
    theirs = cupy.arange(6, dtype="float32").reshape(2, 3)
    taken = eg.from_dlpack(theirs)
    assert taken.device.startswith("cuda")
    assert cupy.from_dlpack(taken).data.ptr == theirs.data.ptr


def test_read_only_memory() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    taken = eg.from_dlpack(array)
    assert np.shares_memory(taken.numpy(), array)
    capsule = taken.__dlpack__(max_version=(1, 0))
    assert "versioned" in repr(capsule)
    again = np.from_dlpack(taken)
    assert np.shares_memory(again, array)
    assert not again.flags.writeable
    old = torch.utils.dlpack.from_dlpack(taken.__dlpack__())  # cannot be told: it gets a copy
    old[0] = 9.0
    assert array[0] == 0.0
    half = np.arange(3).astype(ml_dtypes.bfloat16)
    half.flags.writeable = False
    old = torch.utils.dlpack.from_dlpack(eg.from_dlpack(half).__dlpack__())
    old[0] = 9.0
    assert half[0] == 0.0


def test_odd_layouts() -> None:
    flipped = eg.arange(3.0).flip()  # PyTorch knows no negative strides
    assert torch.from_dlpack(flipped).tolist() == [2.0, 1.0, 0.0]
    assert torch.from_dlpack(eg.tensor(1.0).expand((2, 2))).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert torch.from_dlpack(eg.zeros((0, 2))).shape == (0, 2)
    assert eg.ones((1,)).__dlpack_device__() == (1, 0)
    narrow = eg.arange(3.0).astype("bfloat16").flip()
    assert torch.from_dlpack(narrow).tolist() == [2.0, 1.0, 0.0]
    with pytest.raises(BufferError, match="copy=False"):
        narrow.__dlpack__(copy=False)


def test_copies_where_they_are_asked_for() -> None:
    for dtype in ("float32", "bfloat16"):
        theirs = torch.ones(3).to(getattr(torch, dtype))
        taken = eg.from_dlpack(theirs, copy=True)
        theirs.fill_(5)
        assert taken.astype("float32").tolist() == [1.0, 1.0, 1.0]
        mine = eg.ones((3,), dtype)
        assert torch.from_dlpack(mine, copy=True).data_ptr() != _pointer(mine)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(GradientError, match=r"export detach\(\) instead"):
        torch.from_dlpack(eg.ones((1,), requires_grad=True))
    with pytest.raises(DtypeError, match="cannot be shared"):
        eg.from_dlpack(torch.ones(1, requires_grad=True))
    with pytest.raises(ExchangeError, match="Unknown device type meta"):
        eg.from_dlpack(torch.ones(2, device="meta"))
    with pytest.raises(ExchangeError, match="Parameter cannot be shared"):
        eg.from_dlpack(torch.nn.Parameter(torch.ones(1)))
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ExchangeError, match="cannot be shared"):
            eg.from_dlpack(torch.ones(2, 2, dtype=dtype).to_sparse())
        with pytest.raises(ExchangeError, match="cannot be shared"):
            eg.from_dlpack(torch.ones(2, dtype=dtype, requires_grad=True))
    with pytest.raises(ExchangeError, match="cannot be shared"):
        eg.from_dlpack(torch.ones(2, dtype=torch.complex64).conj())
    with pytest.raises(DtypeError):
        eg.from_dlpack(np.array(["2020-01-01"], "M8[D]"))
    with pytest.raises(DtypeError):
        eg.from_dlpack(np.arange(3, dtype=">f4"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_lives_as_long_as_anyone_sees_it(dtype: str) -> None:
    theirs = torch.ones(4).to(getattr(torch, dtype))
    held = weakref.ref(theirs)
    taken = eg.from_dlpack(theirs)
    del theirs
    gc.collect()
    assert taken.astype("float32").sum().item() == 4.0
    mine = eg.full((4,), 3.0, dtype=dtype) + 0
    payload = weakref.ref(mine._data)
    there = torch.from_dlpack(mine)
    del mine
    gc.collect()
    assert payload() is not None
    assert there.float().tolist() == [3.0] * 4
    del there, taken
    gc.collect()
    assert payload() is None
    assert held() is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_reference_is_kept_or_lost(dtype: str) -> None:
    theirs = torch.ones(2, 3).to(getattr(torch, dtype))
    mine = eg.ones((2, 3), dtype)
    version = (1, 0)
    held = (theirs, mine, mine._data, mine._data.dtype, version, np.dtype(np.uint16), None)

    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in held]

    def exchange() -> None:
        for _ in range(100):
            torch.from_dlpack(mine)
            mine.__dlpack__()
            mine.__dlpack__(max_version=version)
            mine.__dlpack_device__()
            eg.from_dlpack(theirs)
            with pytest.raises(TypeError):
                mine.__dlpack__(version)

    exchange()
    gc.collect()
    before = counts()
    exchange()
    gc.collect()  # None is pytest's and the interpreter's too
    assert all(abs(a - b) < 50 for a, b in zip(before, counts(), strict=True))


def test_capsules_are_freed_on_any_thread_and_used_once() -> None:
    mine = eg.full((3,), 2.0, "bfloat16") + 0
    payload = weakref.ref(mine._data)
    capsule = mine.__dlpack__(max_version=(1, 0))
    there = [torch.utils.dlpack.from_dlpack(capsule)]
    with pytest.raises(RuntimeError):
        torch.utils.dlpack.from_dlpack(capsule)
    del mine, capsule
    gc.collect()
    assert payload() is not None
    thread = threading.Thread(target=there.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert payload() is None
    unused = eg.ones((3,), "bfloat16").__dlpack__(max_version=(1, 0))
    del unused  # nobody took it: its destructor frees it


def test_memory_shared_both_ways_outlives_the_interpreter() -> None:
    """Deleters run while modules are torn down, or not at all."""
    program = """
import torch, everygrad as eg
from everygrad.ops.python import dlpack
dlpack._export_natively()
dlpack._take_natively(torch.ones(1))
held = []
for dtype in ("float32", "bfloat16"):
    mine, theirs = eg.ones((3,), dtype), torch.ones(3, dtype=getattr(torch, dtype))
    held += [eg.from_dlpack(theirs), torch.from_dlpack(mine), mine.__dlpack__(max_version=(1, 0))]
def cycle(): pass
cycle.held, cycle.itself = held, cycle
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (0, b"")


def test_derived_classes_and_watched_contexts(way: str) -> None:
    class Derived(torch.Tensor):
        pass

    theirs = torch.ones(2, dtype=torch.bfloat16)
    assert eg.from_dlpack(theirs.as_subclass(Derived)).tolist() == [1.0, 1.0]
    with pytest.raises(TraceError):  # a tensor without values has no memory to share
        eg.jit(lambda x: torch.from_dlpack(x))(eg.ones((2,)))
    with eg.autocast("cpu"):
        assert torch.from_dlpack(eg.ones((2,))).tolist() == [1.0, 1.0]
    assert "max_version" in inspect.signature(eg.Tensor.__dlpack__).parameters
    assert (eg.Tensor.__dlpack__ is dlpack._METHODS[0]) == (way == "python")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_becomes_native_by_itself(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy_native.warm_up()
    for heat in (dlpack._takes, dlpack._exports):
        monkeypatch.setattr(heat, "calls", 0)
    monkeypatch.setattr(dlpack, "_native_take", None)
    monkeypatch.setattr(eg.Tensor, "__dlpack__", dlpack._METHODS[0])
    theirs, mine = torch.ones(2, dtype=getattr(torch, dtype)), eg.ones((2,), dtype)
    for _ in range(fast_calls.LOADED_MANY + 1):
        mine.__dlpack__()
        eg.from_dlpack(theirs)
    assert eg.Tensor.__dlpack__ is not dlpack._METHODS[0]
    assert dlpack._native_take is not None


def test_a_tensor_costs_little(way: str) -> None:
    """Processor time, the least of many; ten times what it takes where nothing else runs, PyTorch's
    own share left out."""
    bound = 1e-5 if way == "python" else 5e-6

    def least(work: Any) -> float:
        times = []
        for _ in range(20):
            begun = time.process_time()
            for _ in range(200):
                work()
            times.append(time.process_time() - begun)
        return min(times) / 200

    for dtype in (torch.float32, torch.bfloat16):
        theirs = torch.ones(4, 4, dtype=dtype)
        mine = eg.from_dlpack(theirs)
        assert least(lambda t=theirs: eg.from_dlpack(t)) < bound
        assert least(lambda t=mine: t.__dlpack__(max_version=(1, 0))) < bound

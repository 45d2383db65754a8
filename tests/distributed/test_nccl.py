"""Collectives on devices: all of them at world size 1 on every device of the run (with `cuda` among
EVERYGRAD_TEST_DEVICES that is NCCL, eager, compiled and in CUDA graphs), and what is recorded and
called for more, on a dry device with a library that notes its calls.

More than one rank of NCCL needs more than one GPU: see docs/distributed.md for what was run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import everygrad as eg
from everygrad import distributed as dist
from everygrad.backends import base
from everygrad.backends.cuda import device as cuda_device
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import library_calls
from everygrad.distributed import world as worlds
from everygrad.distributed.carriers import nccl
from everygrad.distributed.carriers.local import Board, LocalCarrier

DRY = "cuda:dry"


class FakeNccl:
    """Notes every call in place of making it."""

    NCCL_SUM, NCCL_MAX, NCCL_MIN = "sum", "max", "min"
    NCCL_UINT8, NCCL_INT32, NCCL_FLOAT32, NCCL_FLOAT64 = "u8", "i32", "f32", "f64"

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    unique: Any = tuple(range(-64, 64))  # of CuPy 13; 14 has bytes

    def get_unique_id(self) -> Any:
        return self.unique

    def NcclCommunicator(self, size: int, key: Any, rank: int) -> FakeNccl:  # noqa: N802  # CuPy's
        self.calls.append(("communicator", (size, key, rank)))
        return self

    def setDevice(self, number: int) -> None:  # noqa: N802  # CuPy's
        assert number == 0

    def alloc(self, size: int) -> Any:
        return SimpleNamespace(ptr=size)

    def memsetAsync(self, *given: Any) -> None:  # noqa: N802  # CuPy's
        self.calls.append(("memset", given[1:3]))

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, given))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNccl]:
    """A world of one rank with a dry GPU, whose launches of collectives are noted."""
    fake = FakeNccl()

    @contextmanager
    def on_no_stream(dev: Any) -> Iterator[None]:
        yield None

    monkeypatch.setitem(base._OPEN, DRY, Cuda(DRY, DryDriver()))
    monkeypatch.setattr(nccl, "library", lambda: (fake, fake, fake.alloc))
    monkeypatch.setattr(cuda_device, "on_our_stream", on_no_stream)
    monkeypatch.setattr(library_calls, "on_our_stream", on_no_stream)
    alone = worlds.World(LocalCarrier(Board(1, 5.0), 0), uses_nccl=True)
    token = worlds._here.set(alone)
    yield fake
    worlds._here.reset(token)


def everything(x: Any, mesh: Any) -> Any:
    """All collectives but messages, along axes that are not the first too."""
    a = dist.all_reduce(x, mesh, "data")
    b = dist.all_gather(a, mesh, "data", dim=1)
    c = dist.reduce_scatter(b, mesh, "data", dim=1)
    d = dist.all_to_all(c, mesh, "data", 1, 0)
    e = dist.broadcast(d, mesh, "data")
    f = dist.reduce(e, mesh, "data")
    return dist.all_reduce(f, mesh, "data", "max")


ORDER = [
    *("allReduce", "allGather", "reduceScatter", "groupStart", "send", "recv", "groupEnd"),
    *("broadcast", "memset", "reduce", "allReduce"),
]


def test_eager_calls(library: FakeNccl) -> None:
    mesh = dist.Mesh({"data": 1})
    out = everything(eg.ones((2, 6), device=DRY), mesh)
    assert out.shape == (2, 6)
    assert out.device == DRY
    names = [name for name, _ in library.calls]
    assert names == ["communicator", *ORDER]
    size, key, rank = library.calls[0][1]
    assert (size, key, rank) == (1, tuple(range(-64, 64)), 0)
    sums = next(given for name, given in library.calls if name == "allReduce")
    assert sums[2:5] == (12, "f32", "sum")
    gathered = next(given for name, given in library.calls if name == "allGather")
    assert gathered[2:4] == (48, "u8")  # bytes


def test_halves_are_summed_in_float32(library: FakeNccl) -> None:
    mesh = dist.Mesh({"data": 1})
    for dtype in (eg.float16, eg.bfloat16):
        out = dist.all_reduce(eg.ones((4,), dtype=dtype, device=DRY), mesh, "data")
        assert out.dtype is dtype
    sums = [given[2:4] for name, given in library.calls if name == "allReduce"]
    assert sums == [(4, "f32"), (4, "f32")]


def test_in_a_compiled_function(library: FakeNccl) -> None:
    """Calls between graphs, in the order of the program; no NCCL call is made while compiling."""
    mesh = dist.Mesh({"data": 1})
    step = eg.jit(lambda x: everything(x * 2, mesh) + 1)
    lines = step.lower(eg.ones((2, 6), device=DRY)).kernels.splitlines()
    calls = [line for line in lines if "called between graphs" in line]
    assert [name for name, _ in library.calls] == ["communicator"]
    assert len(calls) == 8, lines  # seven, and the agreement before them
    assert "agree" in calls[0]
    shown = "\n".join(lines)
    places = [shown.index(name) for name in ("all_gather", "reduce_scatter", "all_to_all")]
    assert places == sorted(places)


def test_messages_to_oneself_stay_on_the_gpu(library: FakeNccl) -> None:
    """In the order in which they were sent; no NCCL call is made for them."""
    mesh = dist.Mesh({"pipe": 1})
    x = eg.ones((2,), device=DRY)
    dist.send(x, mesh, "pipe", to=0)
    dist.send(eg.ones((3,), device=DRY), mesh, "pipe", to=0)
    for size in (2, 3):
        assert dist.recv(eg.zeros((size,), device=DRY), mesh, "pipe", source=0).shape == (size,)
    copies = [given[2:4] for name, given in library.calls if name == "memcpyAsync"]
    assert copies == [(8, 3), (12, 3), (8, 3), (12, 3)]
    assert not {"send", "recv"} & {name for name, _ in library.calls}
    dist.send(x, mesh, "pipe", to=0)
    with pytest.raises(eg.errors.DeviceError, match="12 bytes from itself, and has sent one of 8"):
        dist.recv(eg.zeros((3,), device=DRY), mesh, "pipe", source=0)
    dist.recv(x, mesh, "pipe", source=0)
    with pytest.raises(eg.errors.DeviceError, match="8 bytes from itself, and has sent none"):
        dist.recv(x, mesh, "pipe", source=0)


def test_a_dtype_that_nccl_cannot_sum_is_named(library: FakeNccl) -> None:
    group = nccl.NcclGroup(dist.Mesh({"pipe": 1}).group("pipe"))
    with pytest.raises(eg.errors.DtypeError, match="NCCL has no"):
        group.number(eg.float16, "all_reduce")


# --- one rank on every device --------------------------------------------------------------------


@pytest.fixture
def one_rank(device: str) -> Iterator[Any]:
    """A mesh of one rank, whose collectives NCCL carries out if the device is a GPU of NVIDIA's."""
    alone = worlds.World(LocalCarrier(Board(1, 5.0), 0), uses_nccl=base.kind_of(device) == "cuda")
    token = worlds._here.set(alone)
    yield dist.Mesh({"data": 1})
    worlds._here.reset(token)


NUMBERS = [d for d in eg.dtypes.ALL if d.name != "bool"]


@pytest.mark.needs("float64")
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_one_rank_gets_back_what_it_gives(device: str, one_rank: Any, dtype: Any) -> None:
    """Every dtype, eager and compiled; from the second call on a compiled function is a graph."""
    x = eg.arange(12, dtype=eg.int32, device=device).reshape(2, 6).astype(dtype)
    collect = every_sum if dtype.is_complex else everything
    assert collect(x, one_rank).tolist() == x.tolist()
    compiled = eg.jit(lambda x: collect(x + x, one_rank) - x)
    for _ in range(4):
        assert compiled(x).tolist() == x.tolist()


def every_sum(x: Any, mesh: Any) -> Any:
    """What complex numbers have: all but the largest."""
    a = dist.all_reduce(x, mesh, "data")
    b = dist.reduce_scatter(dist.all_gather(a, mesh, "data", dim=1), mesh, "data")
    return dist.reduce(dist.broadcast(b, mesh, "data"), mesh, "data")


def test_derivatives_of_one_rank(device: str, one_rank: Any) -> None:
    """Eager, which goes through the host where a device has nothing of its own."""
    x = eg.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    y = everything(x, one_rank)
    (y * y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[3.0, 12.0], [27.0, 48.0]]
    assert x.grad.device == x.device


def test_messages_of_one_rank(device: str, one_rank: Any) -> None:
    """What a rank sends itself it receives, and its gradient comes back."""
    x = eg.tensor([1.0, 2.0], device=device, requires_grad=True)
    like = eg.zeros((2,), device=device, requires_grad=True)
    sent = dist.send(x * 2.0, one_rank, "data", to=0)
    got = dist.recv(like, one_rank, "data", source=0)
    assert got.tolist() == [2.0, 4.0]
    (got * got).sum().backward()
    sent.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 16.0]


@pytest.mark.needs("float64")
def test_a_compiled_step_of_one_rank(device: str, one_rank: Any) -> None:
    w = eg.tensor([1.0, -2.0], device=device, requires_grad=True)
    sgd = eg.optim.SGD([w], lr=0.1)

    @eg.jit
    def step(x: Any) -> Any:
        sgd.zero_grad()
        loss = ((w * x) ** 2).sum()
        loss.backward()
        w.grad = dist.all_reduce(w.grad, one_rank, "data", "mean")
        sgd.step()
        return dist.all_reduce(loss.detach(), one_rank, "data")

    losses = [step(eg.ones((2,), device=device)).item() for _ in range(4)]
    wanted = [5.0 * 0.64**k for k in range(4)]
    assert losses == pytest.approx(wanted, rel=1e-5)


def test_in_a_compiled_function_of_any_device(device: str, one_rank: Any) -> None:
    """A device without collectives of its own refuses them there, by name."""
    f = eg.jit(lambda x: dist.all_reduce(x * 2, one_rank, "data"))
    x = eg.ones((3,), device=device)
    if base.get(device).communicates:
        assert f(x).tolist() == [2.0, 2.0, 2.0]
    else:
        with pytest.raises(
            eg.errors.TraceError, match=r"all_reduce: .* no collectives in compiled"
        ):
            f(x)


def test_without_the_library() -> None:
    """Where CuPy or NCCL is missing, the error says what to install."""
    try:
        nccl.library()
    except eg.errors.DeviceError as error:
        said = str(error)
    else:
        said = "pip install: it is there"
    assert "pip install" in said


@pytest.mark.parametrize("unique", [tuple(range(-64, 64)), bytes(range(128))], ids=["13", "14"])
def test_the_id_of_a_communicator_is_of_the_kind_that_cupy_gives(
    library: FakeNccl, unique: Any
) -> None:
    library.unique = unique
    nccl.NcclGroup(eg.distributed.Mesh({"data": 1}).group("data"))
    assert library.calls[-1] == ("communicator", (1, unique, 0))

"""The NCCL carrier without a GPU: what is recorded and called, on a dry device and a fake library.

That NCCL itself does what it is asked to needs a GPU, and more than one rank needs several: see
docs/distributed.md for what was run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    monkeypatch.setattr(nccl, "library", lambda: (fake, fake))
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


def test_messages_to_oneself_are_refused(library: FakeNccl) -> None:
    mesh = dist.Mesh({"pipe": 1})
    with pytest.raises(eg.errors.DeviceError, match="no message from a rank to itself"):
        dist.send(eg.ones((2,), device=DRY), mesh, "pipe", to=0)
    with pytest.raises(eg.errors.DtypeError, match="NCCL has no"):
        nccl.NcclGroup(mesh.group("pipe")).number(eg.float16, "all_reduce")


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

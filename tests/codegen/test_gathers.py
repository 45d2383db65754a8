"""Gathers and scatters in the kernel language: every way of the lowerings, on views and at the
sizes where they change, run by the interpreter (which finds races) and compared with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes
from everygrad.backends.cpu.llvm.kernel_render import render as llvm_source
from everygrad.backends.cuda.source.kernel_render import render as cuda_source
from everygrad.backends.reference import interpreter
from everygrad.backends.webgpu.source.kernel_render import render as wgsl_source
from everygrad.codegen import gather, scatter, scatter_sorted
from everygrad.codegen.copy import Layout, Lowered
from everygrad.codegen.kernel import Kernel
from everygrad.codegen.machine import Machine

CORE = Machine(1, dtypes.float64, dtypes.uint64, 1 << 62, None, grain=16, checks_before=True)
# small, so that short arrays have many groups
CUDA = Machine(8, dtypes.float64, dtypes.uint32, 1 << 30, dtypes.uint64, most_groups=3,
               vector_bytes=16, sorted_keys=16, sorting_threads=4, run_threads=True)  # fmt: skip
WEBGPU = Machine(8, dtypes.float32, dtypes.uint32, 1 << 31, None, word=4, checks_apart=True,
                 sorted_keys=16, sorting_threads=8)  # fmt: skip
MACHINES = {"core": CORE, "cuda": CUDA, "wide": CUDA._replace(narrow=0), "webgpu": WEBGPU}
GPUS = ("cuda", "wide", "webgpu")


def layout(x: Any) -> Layout:
    strides = tuple(s // x.itemsize for s in x.strides)
    return Layout(dtypes.FROM_NP[x.dtype], x.shape, strides)


def memory(x: Any, start: int, kernel: Kernel, k: int) -> Any:
    """What the kernel's k-th buffer is, for a view of a contiguous array."""
    base = x if x.base is None else x.base
    at = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // x.itemsize
    buffer = kernel.buffers[k]
    many = buffer.dtype.itemsize // x.itemsize
    part = base.reshape(-1)[at + start : at + start + buffer.size * max(1, many)]
    return part.view(buffer.dtype.np)


def run(lowered: Lowered, *arrays: Any) -> interpreter.BadValue | None:
    """On views of contiguous arrays, which results are not; those get memory for whole vectors."""
    kernel, pairs = lowered.kernel, zip(arrays, lowered.starts, strict=True)
    held = [memory(x, start, kernel, k) for k, (x, start) in enumerate(pairs)]
    given = [np.resize(a, b.size) for a, b in zip(held, kernel.buffers, strict=True)]
    found = interpreter.run(kernel, given)
    for a, made in zip(held, given, strict=True):
        a[...] = made[: a.size]
    return found


def views(rng: Any, *shape: int, dtype: Any = np.float32) -> Iterator[Any]:
    """Arrays of a shape: contiguous, permuted, and backwards with gaps."""
    yield rng.integers(0, 99, shape).astype(dtype)
    yield rng.integers(0, 99, shape[::-1]).astype(dtype).T
    wide = rng.integers(0, 99, (*shape[:-1], 2 * shape[-1] + 1)).astype(dtype)
    yield wide[..., ::-2][..., : shape[-1]]


@pytest.mark.parametrize("machine", MACHINES)
def test_take(machine: str) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in [((5, 8), 0), ((3, 4, 8), 1), ((2, 3, 7), 2), ((6,), 0), ((1, 1), 0)]:
        for x in views(rng, *shape):
            for index in views(rng, 3, 5, dtype=np.int64):
                index %= shape[axis]
                out = np.zeros((*shape[:axis], 3, 5, *shape[axis + 1 :]), np.float32)
                lowered = gather.take(layout(x), layout(index), axis, MACHINES[machine])
                assert run(lowered, x, index, out) is None
                np.testing.assert_array_equal(out, np.take(x, index, axis))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "complex64"])
def test_take_of_other_sizes(dtype: str) -> None:
    """A thread stores whole words; neighbours are moved as one."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2, (5, 24)).astype(dtype)
    index = np.array([[4, 0, 1]], np.uint8)
    for name, machine in MACHINES.items():
        for columns, vector in [(24, 8), (23, 1)]:
            given = x if columns == 24 else np.ascontiguousarray(x[:, :columns])
            out = np.zeros((1, 3, columns), dtype)
            lowered = gather.take(layout(given), layout(index), 0, machine, aligned=16)
            run(lowered, given, index, out)
            np.testing.assert_array_equal(out, given[index])
            if name == "cuda":
                many = lowered.kernel.buffers[0].dtype.itemsize // given.itemsize
                assert many == max(1, min(vector, 16 // given.itemsize))


@pytest.mark.parametrize("machine", MACHINES)
def test_gather(machine: str) -> None:
    rng = np.random.default_rng(2)
    for shape, axis, taken in [((5, 6), 0, (3, 6)), ((5, 6), 1, (4, 9)), ((4, 1, 3), 0, (7, 1, 2)),
                               ((9,), 0, (31,))]:  # fmt: skip
        for x in views(rng, *shape):
            for index in views(rng, *taken, dtype=np.int32):
                index %= shape[axis]
                out = np.zeros(taken, np.float32)
                lowered = gather.gather(layout(x), layout(index), axis, MACHINES[machine])
                run(lowered, x, index, out)
                part = x[tuple(slice(None) if a == axis else slice(n)
                               for a, n in enumerate(taken))]  # fmt: skip
                np.testing.assert_array_equal(out, np.take_along_axis(part, index, axis))


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "uint8"])
def test_bad_indices_are_found(dtype: str) -> None:
    x = np.arange(12, dtype=np.float32)
    bad = -2 if dtype.startswith("int") else 12
    index = np.array([3, bad, 11, 100], dtype)
    out = np.zeros(4, np.float32)
    for machine in (CUDA, CUDA._replace(narrow=0)):
        lowered = gather.gather(layout(x), layout(index), 0, machine, number=7)
        assert run(lowered, x, index, out) == (7, bad)
        np.testing.assert_array_equal(out, [3, 0, 11, 0])
    lowered = gather.check(layout(index), 12, 7, WEBGPU)
    assert run(lowered, index) == (7, bad)
    assert run(gather.check(layout(index[::2]), 12, 7, WEBGPU), index[::2]) is None
    ok = np.array([True, False])
    assert run(gather.check(layout(ok), 1, 3, CUDA), ok) == (3, 0)


@pytest.mark.parametrize("machine", MACHINES)
def test_last_write(machine: str) -> None:
    index = np.array([3, 1, 3, 0, 1, 1] * 4, np.int64)[::-1]
    made = MACHINES[machine]
    if machine == "core":
        index = np.ascontiguousarray(index)
        out = np.zeros(5, np.int64)
        first, then = gather.last_write_in_order(layout(index), 5, made)
        run(first, out)
        run(then, index, out)
    else:
        found = np.zeros(5, gather.positions(made, index.size).np)
        run(gather.last_write(layout(index), 5, made), index, found)
        out = found.astype(np.int64) - 1
    want = np.full(5, -1)
    want[index] = np.arange(index.size)
    np.testing.assert_array_equal(out, want)


# --- scatters ------------------------------------------------------------------------------------

SCATTERS = [
    *((((6, 3), 0, (n,)), True) for n in (3, 40)),
    *((((2, 5, 40), 1, (n,)), True) for n in (2, 7, 40)),
    *((((7,), 0, (n,)), True) for n in (5, 16, 17, 40)),
    *((((5, 6), axis, shape), False) for axis, shape in [(0, (9, 4)), (1, (5, 7)), (1, (3, 40))]),
    (((2, 3), 0, (60, 2)), False),
]  # fmt: skip


def added(x: Any, index: Any, source: Any, axis: int, whole: bool) -> Any:
    out = x.astype(np.float64 if x.dtype.kind == "f" else x.dtype)
    places: Any = (slice(None),) * axis + (index,)
    if not whole:
        places = list(np.indices(index.shape, sparse=True))
        places[axis] = index
    np.add.at(out, tuple(places), source)
    return out


def by_searching(what: scatter.Scatter, machine: Machine, x: Any, index: Any, source: Any) -> Any:
    out = np.zeros(x.shape, x.dtype)
    run(scatter.search("index_add", what, machine), x, index, source, out)
    return out


def by_sorting(what: scatter.Scatter, machine: Machine, x: Any, index: Any, source: Any) -> Any:
    capacity = scatter_sorted.capacity_for(index.size, machine)
    keys, out = np.zeros(capacity, np.uint64), np.array(x, order="C")
    run(scatter_sorted.write_keys(what, capacity, machine), index, keys)
    for lowered in scatter_sorted.sorting(capacity, machine):
        run(lowered, keys)
    assert (keys[1:] >= keys[:-1]).all()
    lowered = scatter_sorted.add_runs("index_add", what, what.x.dtype, capacity, machine)
    interpreter.run(
        lowered.kernel,
        [keys.view(np.uint32), memory(source, lowered.starts[1], lowered.kernel, 1), out],
    )
    return out


@pytest.mark.parametrize("machine", GPUS)
@pytest.mark.parametrize("way", [by_searching, by_sorting], ids=lambda f: f.__name__)
def test_scatters(way: Callable[..., Any], machine: str) -> None:
    rng = np.random.default_rng(3)
    for k, ((shape, axis, taken), whole) in enumerate(SCATTERS):
        filled = (*shape[:axis], *taken, *shape[axis + 1 :]) if whole else taken
        x, source = [*views(rng, *shape)][k % 3], [*views(rng, *filled)][k % 3]
        index = [*views(rng, *taken, dtype=np.int64)][k % 3]
        index %= shape[axis]
        what = scatter.Scatter(layout(x), layout(index), layout(source), axis, whole)
        got = way(what, MACHINES[machine], x, index, source)
        np.testing.assert_array_equal(got, added(x, index, source, axis, whole))


@pytest.mark.parametrize("dtype", ["float16", "uint8", "int64", "complex64", "bool"])
def test_scatters_of_other_dtypes(dtype: str) -> None:
    x, index = np.zeros(5, dtype), np.array([1, 3, 1, 1, 0] * 9, np.int32)
    source = (np.arange(45) % 3).astype(dtype)
    for machine in (CUDA, WEBGPU):
        what = scatter.Scatter(layout(x), layout(index), layout(source), 0, True)
        for way in (by_searching, by_sorting):
            got = way(what, machine, x, index, source)
            wide = source.astype("complex64" if dtype == "complex64" else "int64")
            want = np.array([np.sum(wide[index == k]) for k in range(5)])
            np.testing.assert_array_equal(got, want.astype(dtype))


def test_integers_are_added_where_they_lie() -> None:
    rng = np.random.default_rng(4)
    for (shape, axis, taken), whole in SCATTERS:
        index = rng.integers(0, shape[axis], taken)
        filled = (*shape[:axis], *taken, *shape[axis + 1 :]) if whole else taken
        source = rng.integers(-5, 5, filled, np.int32)
        x = rng.integers(-5, 5, shape, np.int32)
        what = scatter.Scatter(layout(x), layout(index), layout(source), axis, whole)
        for machine in (CUDA, WEBGPU):
            out = x.copy()
            run(scatter.add_integers("scatter_add", what, machine), index, source, out)
            np.testing.assert_array_equal(out, added(x, index, source, axis, whole))


def test_on_a_core_blocks_own_parts_of_the_result() -> None:
    rng = np.random.default_rng(5)
    for (shape, axis, taken), whole in SCATTERS:
        index = rng.integers(0, shape[axis], taken)
        filled = (*shape[:axis], *taken, *shape[axis + 1 :]) if whole else taken
        x, source = rng.integers(0, 9, shape), rng.integers(0, 9, filled)
        want, out, kind = added(x, index, source, axis, whole), np.zeros_like(x), dtypes.int64
        if whole:
            lowered = scatter.slices_in_order("add", kind, shape, layout(index), axis, CORE, True)
            run(lowered, out, x, index, source)
            np.testing.assert_array_equal(out, want)
            lowered = scatter.slices_in_order("put", kind, shape, layout(index), axis, CORE, False)
            run(lowered, out, x, index, source)
            want = x.copy()
            for k, name in enumerate(index):
                np.moveaxis(want, axis, 0)[name] = np.moveaxis(source, axis, 0)[k]
        else:
            out = x.copy()
            lowered = scatter.elements_in_order(kind, shape, layout(index), axis, CORE)
            run(lowered, out, index, source)
        np.testing.assert_array_equal(out, want)


def test_bad_indices_of_a_scatter_add_nothing() -> None:
    x, source = np.zeros(5, np.float32), np.ones(40, np.float32)
    index = np.array([0, 7, -1, 4] * 10, np.int64)
    what = scatter.Scatter(layout(x), layout(index), layout(source), 0, True)
    for machine in (CUDA, WEBGPU):
        got = by_sorting(what, machine, x, index, source)
        np.testing.assert_array_equal(got, [10, 0, 0, 0, 10])
    keys = np.zeros(64, np.uint64)
    assert run(scatter_sorted.write_keys(what, 64, CUDA, 9), index, keys) == (9, 7)


def test_texts() -> None:
    """One text serves all sizes, and every renderer writes each kernel."""
    texts = set()
    for n in (200, 300):
        x, index = np.zeros((n, 7), np.float32), np.zeros(2 * n, np.int64)
        for machine, render in [(CUDA, cuda_source), (WEBGPU, wgsl_source)]:
            made = gather.take(layout(x), layout(index), 0, machine).kernel
            texts.add(str(getattr(render(made), "source", None) or render(made).text.source))
        made = gather.take(layout(x), layout(index), 0, CORE).kernel
        assert llvm_source(made, (2, 0, 1)).steps
    assert len(texts) == 2


def test_on_devices(device: str) -> None:
    """Compiled and eager, by looking and by sorting, of elements of 1 to 8 bytes."""
    rng = np.random.default_rng(6)
    for dtype in ("float32", "float16", "int8", "int64", "complex64"):
        x = rng.integers(0, 9, (7, 33)).astype(dtype)
        for n in (5, 300):
            index = rng.integers(0, 7, (n, 33))
            t, i = eg.tensor(x, device=device), eg.tensor(index, device=device)

            def both(t: Any, i: Any) -> Any:
                found = eg.gather(t, i, axis=0)
                return found, eg.take(t, i[:, 0], axis=0), t.scatter_add(i, found, axis=0)

            for fn in (both, eg.jit(both)):
                found, rows, total = fn(t, i)
                want = np.take_along_axis(x, index, 0)
                np.testing.assert_array_equal(found.numpy(), want)
                np.testing.assert_array_equal(rows.numpy(), x[index[:, 0]])
                np.testing.assert_array_equal(
                    total.numpy(), added(x, index, want, 0, False).astype(dtype)
                )

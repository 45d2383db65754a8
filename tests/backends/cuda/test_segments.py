"""Compiled functions on CUDA with library calls between graphs. Without a GPU: on a dry device,
with NumPy in place of CuPy. With one: equal to eager mode there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import fft, linalg
from everygrad.backends import base
from everygrad.backends.cuda import cupy_interop
from everygrad.backends.cuda.graph import runner
from everygrad.backends.cuda.solver import solver
from everygrad.errors import ArgumentError, DeviceError
from tests.conftest import DEVICES
from tests.support.checks import close

DRY = "cuda:dry"
DEV = "cuda"
on_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")


# --- NumPy in CuPy's place -----------------------------------------------------------------------


class Address:
    """The address of an array, as CuPy gives it."""

    def __init__(self, ptr: int, owner: Any) -> None:
        self.ptr = ptr
        self.owner = owner


class Array(np.ndarray):
    """A host array that gives its address as CuPy's arrays do."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return Address(self.ctypes.data, self)


def at(ptr: int, shape: Any, dtype: Any, steps: Any = None) -> Any:
    """The host's memory at an address, as an array."""
    if dtype.name == "bfloat16":
        raise TypeError("CuPy has no such dtype")
    facts = {"data": (ptr, False), "shape": shape, "typestr": dtype.str, "strides": steps}
    holder = type("Memory", (), {"__array_interface__": facts | {"version": 3}})()
    return np.asarray(holder).view(Array)


def ours(made: Any) -> Any:
    """NumPy's results as arrays of the kind above."""
    if isinstance(made, tuple | list):
        return tuple(ours(one) for one in made)
    return np.asarray(made).view(Array) if isinstance(made, np.ndarray | np.generic) else made


class Like:
    """A module of NumPy whose functions make such arrays."""

    def __init__(self, module: Any, **others: Any) -> None:
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        return lambda *args, **named: ours(function(*args, **named))


class Plan1d:
    """cuFFT's plan, by NumPy. Like cuFFT it overwrites the input of a complex-to-real transform."""

    made = 0

    def __init__(self, length: int, kind: int, count: int) -> None:
        self.facts = (length, kind, count)
        Plan1d.made += 1

    def fft(self, source: Any, target: Any, direction: int) -> None:
        n, kind, count = self.facts
        size = np.dtype(np.float64 if kind & 0x40 else np.float32)
        half = (count, n // 2 + 1)
        whole = np.dtype(f"c{2 * size.itemsize}")
        read, written = {
            0x29: (((count, n), whole), ((count, n), whole)),
            0x2A: (((count, n), size), (half, whole)),
            0x2C: ((half, whole), ((count, n), size)),
        }[kind & ~0x40]
        x, out = at(source.data.ptr, *read), at(target.data.ptr, *written)
        if kind & 0xF == 0x9:
            out[...] = np.fft.fft(x) if direction < 0 else np.fft.ifft(x, norm="forward")
        elif kind & 0xF == 0xA:
            out[...] = np.fft.rfft(x)
        else:
            out[...] = np.fft.irfft(x, n, norm="forward")
            x[...] = np.nan


@contextmanager
def _stream(log: list[str]) -> Iterator[None]:
    log.append("called")
    yield


def numpy_as_cupy(log: list[str]) -> Any:
    cuda = SimpleNamespace(
        UnownedMemory=lambda ptr, size, owner: ptr,
        MemoryPointer=lambda ptr, offset: ptr + offset,
        Stream=SimpleNamespace(from_external=lambda stream: _stream(log)),
        Device=lambda index: nullcontext(),
        using_allocator=lambda take: nullcontext(),
        cufft=SimpleNamespace(Plan1d=Plan1d),
    )
    array = lambda shape, dtype, memptr, strides: at(memptr, shape, dtype, strides)  # noqa: E731
    solvers = {name: _silently(name) for name in ("cholesky", "inv", "solve")}
    return Like(np, cuda=cuda, ndarray=array, linalg=Like(np.linalg, **solvers), fft=Like(np.fft))


def _silently(name: str) -> Callable[..., Any]:
    """A function of NumPy that gives NaN where it would fail, as cuSOLVER does."""

    def run(*arrays: Any) -> Any:
        try:
            return ours(getattr(np.linalg, name)(*arrays))
        except np.linalg.LinAlgError:
            return ours(np.full_like(arrays[-1], np.nan))

    return run


def _lu_factor(x: Any, check_finite: bool) -> Any:
    scipy = pytest.importorskip("scipy.linalg")
    return ours(scipy.lu_factor(x, check_finite=check_finite))


def _solve_triangular(a: Any, b: Any, lower: bool, unit_diagonal: bool, **_: Any) -> Any:
    tri = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        eye = np.eye(a.shape[-1], dtype=a.dtype)
        tri = np.where(eye != 0, eye, tri)
    return _silently("solve")(tri, b)


def install_numpy(monkeypatch: Any, log: list[str]) -> None:
    """Let every device count as one with libraries, which are NumPy's."""
    cupy = numpy_as_cupy(log)
    cupyx = ModuleType("cupyx")
    cupyx.errstate = lambda linalg: nullcontext()  # type: ignore[attr-defined]
    others = ModuleType("cupyx.scipy.linalg")
    others.lu_factor = _lu_factor  # type: ignore[attr-defined]
    others.solve_triangular = _solve_triangular  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    monkeypatch.setitem(sys.modules, "cupyx.scipy.linalg", others)
    monkeypatch.setattr(cupy_interop, "load_cupy", lambda: cupy)
    monkeypatch.setattr(cupy_interop, "Driver", object)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Libraries on the dry device; what is called, captured and launched."""
    log: list[str] = []
    install_numpy(monkeypatch, log)

    class Graph:
        def __init__(self, driver: Any, work: Callable[[], None]) -> None:
            log.append("captured")
            start = len(log)
            work()
            self.inside = log[start:]

        def launch(self, launched: list[Any]) -> None:
            log.append("launched")
            launched.append(None)

    class NoDriver:
        """No object is an instance, so the dry device counts as a real one."""

    monkeypatch.setattr(runner, "Captured", Graph)
    monkeypatch.setattr(runner, "DryDriver", NoDriver)

    def copy(driver: Any, target: int, source: int, size: int) -> None:
        driver.copy_from(driver, target, source, size)

    monkeypatch.setattr(runner, "copy", copy)
    return log


def matrix(n: int, m: int | None = None, seed: int = 0, device: str = DRY) -> Any:
    made = np.random.default_rng(seed).standard_normal((n, m or n)).astype(np.float32)
    return eg.tensor(made, device=device)


def calls(log: list[str], compiled: Any, *given: Any, times: int = 4) -> list[list[str]]:
    """What each call of a compiled function did."""
    found = []
    for _ in range(times):
        log.clear()
        compiled(*given)
        found.append(log.copy())
    return found


# --- without a GPU -------------------------------------------------------------------------------


def test_a_single_call_has_no_graph(libraries: list[str]) -> None:
    compiled = eg.jit(linalg.eigvals)
    x = matrix(100)
    want = np.linalg.eigvals(x.numpy())
    assert calls(libraries, compiled, x) == [["called"]] * 4
    np.testing.assert_allclose(compiled(x).numpy(), want, rtol=1e-4, atol=1e-4)


def test_graphs_are_captured_around_calls(libraries: list[str]) -> None:
    def f(x: Any) -> Any:
        return linalg.eigvalsh(eg.exp(x)) * 2.0 + linalg.qr(x * 3.0).Q

    found = calls(libraries, eg.jit(f), matrix(100))
    again = ["launched", "called", "called", "launched"]
    assert found[0] == ["called", "called"]
    assert [w for w in found[1] if w != "captured"] == again
    assert found[1].count("captured") == 2
    assert found[2:] == [again, again]


def test_without_calls_there_is_one_graph(libraries: list[str]) -> None:
    found = calls(libraries, eg.jit(lambda x: eg.softmax(eg.exp(x) @ x)), matrix(64))
    assert found == [[], ["captured", "launched"], ["launched"], ["launched"]]


def test_transforms_stay_inside_a_graph(libraries: list[str]) -> None:
    Plan1d.made = 0
    compiled = eg.jit(lambda x: fft.rfft(x))
    x = matrix(3, 1009)
    found = calls(libraries, compiled, x)
    assert found == [["called"], ["captured", "called", "launched"], ["launched"], ["launched"]]
    assert Plan1d.made == 1


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("length", [8, 9])
def test_transforms_by_plans(libraries: list[str], length: int, axis: int) -> None:
    """Contiguous inputs only: a dry device runs no kernel that would copy them."""
    shape = [1, 1, 1]
    shape[axis] = length
    a = np.random.default_rng(0).standard_normal(shape)
    x = eg.tensor(a, device=DRY)
    forward = eg.jit(lambda x: fft.rfft(x, axis=axis))
    close(forward(x), np.fft.rfft(a, axis=axis), 1e-12)
    z = eg.tensor(a + 1j, device=DRY)
    for ours_, theirs in ((fft.fft, np.fft.fft), (partial(fft.ifft, norm="forward"), _inverse)):
        close(eg.jit(lambda z, f=ours_: f(z, axis=axis))(z), theirs(a + 1j, axis=axis), 1e-12)


def _inverse(z: Any, axis: int) -> Any:
    return np.fft.ifft(z, axis=axis, norm="forward")


def test_what_it_is_made_of(libraries: list[str]) -> None:
    lowered = eg.jit(lambda x: linalg.cholesky(x * 2.0) + eg.real(fft.fft(x))).lower(matrix(100))
    lines = lowered.kernels.splitlines()
    assert sum("a library's, called between graphs" in line for line in lines) == 1
    assert "graph 1" in lines[0]
    assert "graph 2" in lines[-1]
    assert any("dft: a library's, graph" in line for line in lines)
    plain = eg.jit(lambda x: eg.exp(x)).lower(matrix(100)).kernels
    assert "graph" not in plain


def test_a_profile_names_the_call(libraries: list[str]) -> None:
    compiled = eg.jit(lambda x: linalg.eigvals(x * 2.0))
    with eg.tools.profile() as p:
        compiled(matrix(70))
    assert "eigvals" in {row.name for row in p.rows() if row.kind == "kernel"}


def test_a_failure_is_named_and_leaves_all_as_it_was(libraries: list[str]) -> None:
    w = eg.ones((64,), device=DRY)
    before = w.numpy()

    def step(x: Any) -> Any:
        w.__iadd__(1.0)  # what a dry kernel writes is not seen, but whose memory it would be is
        return linalg.eigvalsh(x) * 2.0 + w[0]

    compiled = eg.jit(step)
    good = eg.tensor(np.eye(64, dtype=np.float32), device=DRY)
    bad = eg.tensor(np.full((64, 64), np.nan, np.float32), device=DRY)
    assert compiled.lower(good).plan.donations == {}
    for _ in range(3):
        place = w._data.ptr
        with pytest.raises(ArgumentError, match="eigvalsh: the iteration does not converge"):
            compiled(bad)
        assert w._data.ptr == place
        compiled(good)
    np.testing.assert_array_equal(before, 1.0)


def test_an_update_waits_for_calls(libraries: list[str]) -> None:
    """Though it does not depend on them: it is in place only if no failure is still to come."""
    w = eg.ones((64,), device=DRY)

    def step(x: Any) -> Any:
        found = linalg.eigvalsh(x)
        w.__imul__(0.5)
        return found * 2.0

    compiled = eg.jit(step)
    compiled(matrix(64))
    assert compiled.memory().in_place == 1


def test_what_is_written_after_the_last_call_is_written_in_place(libraries: list[str]) -> None:
    w = eg.ones((64, 64), device=DRY)

    def step(x: Any) -> None:
        w.__isub__(linalg.inv(x) * 0.5)

    compiled = eg.jit(step)
    compiled(matrix(64))
    assert compiled.memory().in_place == 1


def test_small_rows_are_sorted_inside_a_graph(libraries: list[str]) -> None:
    assert "called" not in calls(libraries, eg.jit(lambda x: eg.argsort(x)), matrix(8, 16))[0]
    x = matrix(8, 1100)
    compiled = eg.jit(lambda x: eg.argsort(x))
    assert calls(libraries, compiled, x) == [["called"]] * 4
    np.testing.assert_array_equal(compiled(x).numpy(), x.numpy().argsort(axis=-1, kind="stable"))


def test_few_columns_stay_inside_a_graph(libraries: list[str]) -> None:
    for fn in (linalg.inv, linalg.cholesky, linalg.det):
        assert calls(libraries, eg.jit(fn), matrix(3), times=1) == [[]]
        assert calls(libraries, eg.jit(fn), matrix(20), times=1) == [["called"]]


def test_many_small_matrices_are_done_all_at_once(libraries: list[str]) -> None:
    factors = eg.jit(lambda x: linalg.lu_factor(x).LU)
    few = eg.tensor(np.random.default_rng(0).standard_normal((2, 6, 6)), device=DRY)
    assert calls(libraries, factors, few, times=1) == [["called"]]
    many = eg.tensor(np.ones((50, 6, 6)), device=DRY)
    assert calls(libraries, factors, many, times=1) == [[]]


def test_a_dry_device_has_no_libraries() -> None:
    with pytest.raises(DeviceError, match="eig: cuda:dry has no solver"):
        eg.jit(linalg.eig)(matrix(4))
    with pytest.raises(DeviceError, match="unrolls up to 64 columns"):
        eg.jit(linalg.cholesky)(matrix(65))


# --- on a GPU ------------------------------------------------------------------------------------


def positive(x: Any) -> Any:
    return x @ x.mT / x.shape[-1] + eg.eye(x.shape[-1], device=x.device, dtype=x.dtype)


def lopsided(x: Any) -> Any:
    """A matrix with real, distinct eigenvalues that is not symmetric."""
    steps = eg.arange(x.shape[-1], device=x.device).astype(x.dtype)
    return x * 0.01 + eg.diag(steps)


def _eig(x: Any) -> Any:
    """Sorted: cuSOLVER's order depends on rounding."""
    values, vectors = linalg.eig(lopsided(x))
    order = eg.argsort(eg.real(values))
    return eg.take(values, order, axis=0), eg.abs(eg.take(vectors, order, axis=1)) ** 2


def _eigh(x: Any) -> Any:
    values, vectors = linalg.eigh(lopsided(x) + lopsided(x).mT)
    return values, vectors * vectors


def _svd(x: Any) -> Any:
    u, values, vh = linalg.svd(lopsided(x) + 1.0, full_matrices=False)
    return u * u, values, vh * vh


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "eig": _eig,
    "eigvals": lambda x: eg.sort(eg.real(linalg.eigvals(lopsided(x)))),
    "eigh": _eigh,
    "eigvalsh": lambda x: linalg.eigvalsh(x + x.mT),
    "svd": _svd,
    "svdvals": lambda x: linalg.svdvals(x),
    "qr": lambda x: tuple(linalg.qr(lopsided(x) + 1.0)),
    "qr tall": lambda x: tuple(linalg.qr((lopsided(x) + 1.0)[:, :70])),
    "solve": lambda x: linalg.solve(positive(x), x),
    "inv": lambda x: linalg.inv(positive(x)),
    "det": lambda x: linalg.det(positive(x) * 0.9),
    "slogdet": lambda x: tuple(linalg.slogdet(positive(x))),
    "cholesky": lambda x: linalg.cholesky(positive(x)),
    "lstsq": lambda x: linalg.lstsq(positive(x)[:, :80], x).solution,
    "pinv": lambda x: linalg.pinv(positive(x)),
    "lu": lambda x: tuple(linalg.lu(lopsided(x) + 1.0)),
    "solve_triangular": lambda x: linalg.solve_triangular(positive(x), x, upper=False),
    "fft": lambda x: fft.fft(x),
    "fft down": lambda x: fft.fft(x, axis=0),
    "fft2": lambda x: fft.fft2(x),
    "rfft": lambda x: fft.rfft(x),
    "irfft": lambda x: fft.irfft(fft.rfft(x) * 2.0, n=100),
    "sort": lambda x: eg.sort(x, axis=0, descending=True),
    "sort long": lambda x: eg.sort(x.reshape(5, 2000), descending=True),
    "median": lambda x: eg.median(x, axis=1),
    "around": lambda x: eg.tanh(linalg.inv(positive(eg.sin(x)))).sum(axis=0) * 2.0,
    "two": lambda x: linalg.cholesky(positive(linalg.inv(positive(x)) * 2.0)) @ x,
    "convolved": lambda x: (
        fft.irfft(fft.rfft(eg.exp(x)) * fft.rfft(x), n=100) + linalg.inv(positive(x))
    ),
}


def flat(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def total(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A weighted sum of all results, so that no gradient is zero by symmetry."""

    def loss(x: Any) -> Any:
        sums = []
        for k, part in enumerate(flat(function(x))):
            real = eg.real(part * (2 - 1j)) if part.dtype.is_complex else part
            if real.dtype.is_float:
                count = real.size
                weights = eg.cos(eg.arange(count, device=x.device).astype(x.dtype) + k)
                sums.append((real.reshape(-1) * weights).sum() / count)
        return sum(sums[1:], sums[0])

    return loss


def agree(got: Any, want: Any, tolerance: float = 2e-4) -> None:
    for g, w in zip(flat(got), flat(want), strict=True):
        assert (g.device, g.dtype, g.shape) == (w.device, w.dtype, w.shape)
        scale = max(1e-3, float(np.abs(w.numpy()).max()))
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=0, atol=tolerance * scale)


@on_gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str) -> None:
    function = FUNCTIONS[name]
    x = matrix(100, device=DEV)
    y = matrix(100, seed=1, device=DEV)
    compiled = eg.jit(function)
    for given in (x, x, x, y, y, x):
        agree(compiled(given), function(given))
    loss = total(function)
    gradient = eg.jit(eg.grad(loss))
    want = eg.grad(loss)(x)
    for _ in range(3):
        agree(gradient(x), want, 2e-3)


@on_gpu
@pytest.mark.parametrize("length", [1000, 1009])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_transforms(length: int, dtype: str) -> None:
    a = np.random.default_rng(0).standard_normal((5, length)).astype(dtype)
    x = eg.tensor(a, device=DEV)
    tolerance = 1e-5 if dtype == "float32" else 1e-12

    def f(x: Any) -> Any:
        return fft.fft(x), fft.rfft(x[:, 1:]), fft.irfft(fft.rfft(x), n=length), fft.ifft(x)

    compiled = eg.jit(f)
    for _ in range(3):
        agree(compiled(x), f(x), tolerance)
    agree(compiled(x)[0], eg.tensor(np.fft.fft(a).astype(f(x)[0].dtype.np), device=DEV), tolerance)
    loss = total(f)
    agree(eg.jit(eg.grad(loss))(x), eg.grad(loss)(x), 10 * tolerance)


@on_gpu
def test_a_derivative_of_a_compiled_function() -> None:
    f = eg.jit(lambda x: (linalg.inv(positive(x)) ** 2).sum())
    plain = lambda x: (linalg.inv(positive(x)) ** 2).sum()  # noqa: E731
    for _ in range(3):
        x, y = (matrix(100, device=DEV).requires_grad_() for _ in range(2))
        f(x).backward()
        plain(y).backward()
        agree(x.grad, y.grad, 1e-3)


@on_gpu
def test_batches() -> None:
    x = eg.stack([matrix(70, seed=k, device=DEV) for k in range(3)])
    for fn in (lambda x: linalg.inv(positive(x)), lambda x: fft.rfft(x), _eigh):
        compiled = eg.jit(eg.vmap(fn))
        for _ in range(3):
            agree(compiled(x), eg.vmap(fn)(x))


@on_gpu
def test_state_goes_on_across_stages() -> None:
    """Dropout, an update in place, and a solver between them."""
    a, b = eg.Generator(5), eg.Generator(5)
    w, v = (eg.ones((100, 100), device=DEV) for _ in range(2))

    def step(x: Any, w: Any, generator: Any) -> Any:
        noise = eg.rand(x.shape, device=DEV, generator=generator)
        inverse = linalg.inv(positive(x * noise))
        with eg.no_grad():
            w.__isub__(inverse * 0.1)
        return inverse + eg.rand(x.shape, device=DEV, generator=generator)

    compiled = eg.jit(lambda x: step(x, w, a))
    x = matrix(100, device=DEV)
    for _ in range(5):
        agree(compiled(x), step(x, v, b))
    agree(w, v)


@on_gpu
def test_failures_are_those_of_eager_mode_and_nothing_is_broken() -> None:
    cases = (
        (linalg.cholesky, "cholesky: a matrix is not positive definite", -1.0),
        (linalg.inv, "inv: a matrix is singular", 0.0),
        (lambda x: linalg.solve(x, x), "solve: a matrix is singular", 0.0),
    )
    unit = eg.eye(100, device=DEV)
    for fn, words, factor in cases:
        for batch in (unit, eg.stack([unit, unit])):
            with pytest.raises(ArgumentError, match=words):
                fn(batch * factor).numpy()
            compiled = eg.jit(lambda x, fn=fn: eg.exp(fn(x * 1.0)) * 2.0)
            for _ in range(4):
                with pytest.raises(ArgumentError, match=words):
                    compiled(batch * factor).numpy()
                agree(compiled(batch), eg.exp(fn(batch)) * 2.0)


@on_gpu
def test_a_call_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w = eg.ones((100,), device=DEV)

    def step(x: Any) -> Any:
        with eg.no_grad():
            w.__imul__(0.5)
        return linalg.eigvalsh(x) + w

    def fail(cupy: Any, x: Any) -> Any:
        raise np.linalg.LinAlgError

    compiled = eg.jit(step)
    for k in range(4):
        with monkeypatch.context() as patch:
            failing = solver.LIBRARY["eigvalsh"]._replace(function=fail)
            patch.setitem(solver.LIBRARY, "eigvalsh", failing)
            with pytest.raises(ArgumentError, match="eigvalsh: the iteration does not converge"):
                compiled(eg.eye(100, device=DEV))
        close(w, np.full(100, 0.5**k), 0)
        compiled(eg.eye(100, device=DEV))
        close(w, np.full(100, 0.5 ** (k + 1)), 0)


@on_gpu
def test_memory_does_not_grow() -> None:
    compiled = eg.jit(lambda x: linalg.inv(positive(x)) @ eg.sort(x))
    x = matrix(300, device=DEV)
    used = []
    for _ in range(12):
        compiled(x).numpy()
        used.append(base.get(DEV).gpu.memory.statistics()["used"])  # type: ignore[attr-defined]
    assert len(set(used[6:])) == 1

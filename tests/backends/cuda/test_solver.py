"""Linear algebra called directly on CUDA. Without a GPU: by fake libraries and kernels, on a
dry device. With one: against NumPy there, eagerly and inside one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import linalg
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import cusolver, nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import library_calls
from everygrad.backends.cuda.solver.solver import LIBRARY
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.errors import ArgumentError, DeviceError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY
from tests.conftest import DEVICES
from tests.support.fake_cusolver import FakeCusolver, install_kernels

DRY = "cuda:dry"
DEV = "cuda"
on_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
DTYPES = ("float32", "float64", "complex64", "complex128")
SHAPES = ((1, 1), (7, 7), (40, 40), (3, 7, 7), (2, 2, 40, 40))
WORKSPACE = np.zeros(64, np.uint8)


def draw(dtype: str, *shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        made = made + 1j * rng.standard_normal(shape)
    return made.astype(dtype)


def positive(a: Any) -> Any:
    n = a.shape[-1]
    return (a @ a.swapaxes(-1, -2).conj() / n + np.eye(n)).astype(a.dtype)


def near(got: Any, want: Any, dtype: str) -> None:
    tolerance = 2e-4 if dtype in ("float32", "complex64") else 1e-10
    scale = max(1e-3, float(np.abs(want).max()))
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=tolerance * scale)


def transposed(a: Any, device: str) -> Any:
    """The same matrices, column-major."""
    return eg.tensor(np.ascontiguousarray(a.swapaxes(-1, -2)), device=device).mT


# --- without a GPU -------------------------------------------------------------------------------


def test_results_are_checked_where_the_record_states_a_failure() -> None:
    checked = {name for name, row in LIBRARY.items() if row.succeeded is not None}
    assert checked == {name for name in LIBRARY if REGISTRY[name].failure}
    assert {"solve", "cholesky", "svd"} <= checked


def opened(monkeypatch: pytest.MonkeyPatch, fake: FakeCusolver) -> Any:
    """A dry device that has these libraries."""
    driver = DryDriver()
    monkeypatch.setattr(driver, "cusolver", fake.opened(WORKSPACE.ctypes.data), raising=False)
    made = Cuda(DRY, driver)
    monkeypatch.setitem(base._OPEN, DRY, made)
    return made


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCusolver:
    made = FakeCusolver()
    opened(monkeypatch, made)
    install_kernels(monkeypatch)
    return made


Case = tuple[Callable[[Any], Any], Callable[[Any], Any]]
SQUARE: dict[str, Case] = {  # of positive definite matrices: ours, NumPy's
    "cholesky": (linalg.cholesky, np.linalg.cholesky),
    "inv": (linalg.inv, np.linalg.inv),
    "det": (linalg.det, np.linalg.det),
    "sign": (lambda x: linalg.slogdet(x).sign, lambda a: np.linalg.slogdet(a)[0]),
    "log": (lambda x: linalg.slogdet(x).logabsdet, lambda a: np.linalg.slogdet(a)[1]),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [  # of a complex matrix a kernel would take the logarithm's real part
        (n, d) for n in SQUARE for d in DTYPES if n != "log" or not d.startswith("complex")
    ],
)
def test_square_matrices(name: str, dtype: str, fake: FakeCusolver) -> None:
    """Eagerly, by the cached launches of the first call, and compiled."""
    ours, theirs = SQUARE[name]
    for shape in SHAPES:
        a = positive(draw(dtype, *shape))
        if name in ("det", "inv"):
            a[..., [0, -1], :] = a[..., [-1, 0], :]  # so that rows must be exchanged
        compiled = eg.jit(ours)
        for x in (eg.tensor(a, device=DRY), transposed(a, DRY)):
            for _ in range(3):
                near(ours(x), theirs(a), dtype)
        if shape[-1] > 4 and name in ("cholesky", "inv", "det"):
            for _ in range(2):
                near(compiled(eg.tensor(a, device=DRY)), theirs(a), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solutions(dtype: str, fake: FakeCusolver) -> None:
    for shape in SHAPES:
        a = draw(dtype, *shape) + 3 * np.eye(shape[-1], dtype=dtype)
        for columns in (1, 5):
            b = draw(dtype, *shape[:-1], columns, seed=1)
            want = np.linalg.solve(a, b)
            for x in (eg.tensor(a, device=DRY), transposed(a, DRY)):
                for _ in range(3):
                    near(linalg.solve(x, transposed(b, DRY)), want, dtype)
            if columns == 1 and shape[-1] > 4:
                compiled = eg.jit(linalg.solve)
                for _ in range(2):
                    near(compiled(*(eg.tensor(v, device=DRY) for v in (a, b))), want, dtype)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_triangular_systems(dtype: str, unit: bool, upper: bool, fake: FakeCusolver) -> None:
    def solved(a: Any, b: Any) -> Any:
        return linalg.solve_triangular(a, b, upper=upper, unitriangular=unit)

    for shape in SHAPES:
        n = shape[-1]
        a = 0.1 * draw(dtype, *shape) + 2 * np.eye(n, dtype=dtype)
        b = draw(dtype, *shape[:-1], 3, seed=1)
        half = np.triu(a) if upper else np.tril(a)
        if unit:
            half[..., range(n), range(n)] = 1
        want = np.linalg.solve(half, b)
        x, y = (eg.tensor(v.astype(dtype), device=DRY) for v in (a, b))
        for _ in range(3):
            near(solved(x, y), want, dtype)
            near(solved(transposed(a.astype(dtype), DRY), y), want, dtype)
        compiled = eg.jit(solved)
        for _ in range(2 if n > 4 else 0):  # fewer columns are our own kernels'
            near(compiled(x, y), want, dtype)
    one = eg.tensor((2 * np.eye(7)).astype(dtype), device=DRY)  # the same for a whole batch
    b = draw(dtype, 3, 7, 2)
    near(solved(one, eg.tensor(b, device=DRY)), b if unit else b / 2, dtype)
    assert fake.called[-1] == "trsmBatched"


@pytest.mark.parametrize("dtype", DTYPES)
def test_factors(dtype: str, fake: FakeCusolver) -> None:
    scipy = pytest.importorskip("scipy.linalg")
    for shape in (*SHAPES, (7, 4), (4, 7), (3, 5, 2)):
        a = draw(dtype, *shape)
        x = eg.tensor(a, device=DRY)
        for _ in range(3):
            got = linalg.lu_factor(x).LU
            one = np.stack([scipy.lu_factor(m)[0] for m in a.reshape(-1, *shape[-2:])])
            near(got, one.reshape(shape), dtype)
        if shape[-2] >= shape[-1]:
            for _ in range(3):
                q, r = linalg.qr(x)
                near(q, np.linalg.qr(a)[0], dtype)
                near(r, np.linalg.qr(a)[1], dtype)
        if shape[-2] > shape[-1] and len(shape) == 2:
            q, r = linalg.qr(x, mode="complete")
            near(q, np.linalg.qr(a, mode="complete")[0], dtype)
            near(r, np.linalg.qr(a, mode="complete")[1], dtype)


def test_which_routines_are_called(fake: FakeCusolver) -> None:
    """A batch at once, unless matrices are so large that each saturates the GPU."""

    def called(function: Callable[[Any], Any], *shape: int) -> list[str]:
        fake.idle, fake.called = True, []
        function(eg.zeros(shape, device=DRY))
        return fake.called

    assert called(linalg.cholesky, 40, 40) == ["potrf"]
    assert called(linalg.cholesky, 3, 40, 40) == ["potrfBatched"]
    assert called(linalg.cholesky, 2, 1300, 1300) == ["potrf"] * 2
    assert called(linalg.inv, 400, 400) == ["getrf", "getrs"]
    assert called(linalg.inv, 20, 20) == ["getrfBatched", "getrsBatched"]
    assert called(linalg.inv, 3, 40, 40) == ["getrfBatched", "getrsBatched"]
    assert called(linalg.inv, 3, 16, 16) == ["matinvBatched"]
    assert called(linalg.det, 3, 40, 40) == ["getrfBatched"]
    assert called(linalg.det, 3, 400, 400) == ["getrf"] * 3
    assert called(linalg.lu_factor, 3, 40, 30) == ["getrf"] * 3
    assert called(lambda x: linalg.solve(x, x), 3, 40, 40) == ["getrfBatched", "getrsBatched"]
    assert called(linalg.qr, 40, 30) == ["geqrf", "orgqr"]


def failures() -> dict[str, tuple[Callable[[Any], Any], Any, str]]:
    zero = np.diag([1.0, 0.0, *range(2, 40)])
    return {
        "cholesky": (linalg.cholesky, -np.eye(40), "cholesky: a matrix is not positive definite"),
        "inv": (linalg.inv, np.ones((40, 40)), "inv: a matrix is singular"),
        "small inv": (linalg.inv, np.ones((6, 6)), "inv: a matrix is singular"),
        "solve": (lambda x: linalg.solve(x, x), zero, "solve: a matrix is singular"),
        "triangular": (
            *(lambda x: linalg.solve_triangular(x, x, upper=True), zero),
            "solve_triangular: a matrix is singular",
        ),
    }


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", failures())
def test_what_the_library_finds_wrong(
    name: str, batch: tuple[int, ...], fake: FakeCusolver
) -> None:
    """The next read raises, once; later work is not affected."""
    function, bad, words = failures()[name]
    x = eg.tensor(np.broadcast_to(bad, (*batch, *bad.shape)).copy(), device=DRY)
    compiled = eg.jit(function)
    for how in (function, function, function, compiled, compiled):
        out = how(x)
        with pytest.raises(ArgumentError, match=words):
            out.numpy()
        out.numpy()


def nan_of_nan(device: str) -> None:
    for n in (10, 40):
        for batch in ((), (3,)):
            a = np.broadcast_to(np.eye(n), (*batch, n, n)).copy()
            a[..., 5, 5] = np.nan
            x = eg.tensor(a, device=device)
            for function in (linalg.inv, linalg.det, lambda x: linalg.solve(x, x)):
                for how in (function, function, function):
                    assert np.isnan(how(x).numpy()).any()
            assert np.isnan(linalg.lu_factor(x).LU.numpy()).any()


def test_nan_of_nan_is_no_failure(fake: FakeCusolver) -> None:
    """Though cuSOLVER reports an error."""
    nan_of_nan(DRY)


def test_nothing_leaves_the_graph(fake: FakeCusolver) -> None:
    def f(x: Any) -> Any:
        return linalg.inv(linalg.cholesky(x) + linalg.lu(x).U) * 2.0

    lines = eg.jit(f).lower(eg.ones((40, 40), device=DRY)).kernels
    assert "potrf 1 40 40 33, float32: a library's" in lines
    assert "between graphs" not in lines


def test_memory_that_is_reached_through_a_list_is_planned(fake: FakeCusolver) -> None:
    """A batched routine names the memory of its matrices, so that it is not reused meanwhile."""
    plan = eg.jit(lambda x: linalg.solve(x, x)).lower(eg.ones((3, 40, 40), device=DRY)).plan
    named = {s.what.name: s.slots for s in plan.steps_ if isinstance(s.what, cusolver.Routine)}
    placed = [s for s in plan.steps_ if s.title == "placed"]
    matrices, right = (step.relocations[-1].slot for step in placed)
    assert matrices in named["getrfBatched"]
    assert {matrices, right} <= named["getrsBatched"]


def test_few_columns_are_seen_through_by_the_compiler(fake: FakeCusolver) -> None:
    for n, whole in ((3, False), (20, True)):
        lines = eg.jit(linalg.cholesky).lower(eg.ones((n, n), device=DRY)).kernels
        assert ("potrf" in lines) == whole


def test_many_matrices_without_a_batched_routine_are_left(fake: FakeCusolver) -> None:
    dev = base.get(DRY)
    many, few = (eg.ones((k, 6, 5), device=DRY) for k in (100, 3))
    assert library_calls.serves(dev, "qr", [few._data], {})
    assert library_calls.serves(dev, "qr", [many._data], {}) is None  # there is no CuPy here


def test_a_call_that_fails_is_named(fake: FakeCusolver) -> None:
    fake.status["potrf"] = 7
    with pytest.raises(DeviceError, match="potrf 1 40 40 33, float32: cuSOLVER answers INTERNAL"):
        linalg.cholesky(eg.ones((40, 40), device=DRY))
    fake.status["trsm"] = 13
    with pytest.raises(DeviceError, match="cuBLAS answers EXECUTION_FAILED"):
        linalg.solve_triangular(*[eg.ones((4, 4), device=DRY)] * 2, upper=True)


def test_a_handle_that_cannot_be_made() -> None:
    fake = FakeCusolver()
    fake.status["cublasCreate_v2"] = 3
    with pytest.raises(DeviceError, match="a handle: cuBLAS answers ALLOC_FAILED"):
        fake.opened(0)


def test_without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cusolver, "candidates", lambda stem, majors: ["/no/such/library"])
    assert cusolver.load.__wrapped__() is None


def test_kernels_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCusolver()
    fake.idle = True
    dev = opened(monkeypatch, fake)
    for dtype in ("float32", "complex128"):
        for shape in ((40, 40), (3, 40, 40)):
            x = eg.zeros(shape, dtype, DRY)
            for function in (linalg.cholesky, linalg.inv, linalg.det, linalg.slogdet, linalg.lu):
                function(x)  # type: ignore[operator]
            linalg.solve(x, x)
            linalg.solve_triangular(x, x, upper=True)
            linalg.qr(x)
    linalg.lu(eg.zeros((9000, 2), device=DRY))
    names = "copy_strided addresses unit mark_failures check_diagonal keep_lower put_pivots"
    ours = (*names.split(), "determinants", "lexsort_rows", "take_triangle")
    texts = [t for n, t in dev.gpu.driver.texts.items() if n.startswith(ours)]
    assert {t.name.rpartition("_")[0] for t in texts} == {*ours}
    source = with_library("\n".join(t.source for t in texts))
    nvrtc.opened().compile("linear algebra", source, "sm_90", ("--std=c++17", "-w"))


# --- on a GPU ------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SQUARE)
def test_square_matrices_on_a_gpu(name: str, dtype: str) -> None:
    ours, theirs = SQUARE[name]
    checked = 0
    for shape in (*SHAPES, (100, 100), (300, 300), (2, 520, 520)):
        a = positive(draw(dtype, *shape))
        wide = a.astype("complex128" if dtype.startswith("complex") else "float64")
        want = theirs(wide)
        if np.abs(want).max() > np.finfo(a.dtype).max:
            continue  # a determinant that the dtype cannot hold
        compiled = eg.jit(ours)
        for x in (eg.tensor(a, device=DEV), transposed(a, DEV)):
            for how in (ours, ours, ours, compiled, compiled, compiled):
                near(how(x), want, dtype)
        checked += 1
    assert checked >= len(SHAPES)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_systems_on_a_gpu(dtype: str) -> None:
    def each(a: Any, b: Any) -> Any:
        return (
            linalg.solve(a, b),
            linalg.solve_triangular(a, b, upper=True),
            linalg.solve_triangular(a.mT, b, upper=True, unitriangular=True),
            linalg.cholesky_solve(b, linalg.cholesky(a)),
            linalg.lu_solve(*linalg.lu_factor(a), b),
        )

    for shape in (*SHAPES, (100, 100)):
        a, b = positive(draw(dtype, *shape)), draw(dtype, *shape[:-1], 3, seed=1)
        want = [w.numpy() for w in each(eg.tensor(a), eg.tensor(b))]
        compiled = eg.jit(each)
        for x in (eg.tensor(a, device=DEV), transposed(a, DEV)):
            for how in (each, each, each, compiled, compiled, compiled):
                for got, right in zip(how(x, transposed(b, DEV)), want, strict=True):
                    near(got, right, dtype)


@on_gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_on_a_gpu(dtype: str) -> None:
    def each(x: Any) -> Any:
        p, lower, upper = linalg.lu(x)
        q, r = linalg.qr(x)
        return p @ lower @ upper, q @ r, lower, linalg.qr(x, mode="complete").R

    for shape in (*SHAPES, (100, 100), (70, 30), (30, 70), (3, 9, 5)):
        a = draw(dtype, *shape)
        want = [w.numpy() for w in each(eg.tensor(a))]
        compiled = eg.jit(each)
        for how in (each, each, each, compiled, compiled, compiled):
            got = how(eg.tensor(a, device=DEV))
            # complex pivots are the largest by one measure or another
            count = 2 if dtype.startswith("complex") else 3
            for part, right in zip(got[:count], want[:count], strict=True):
                near(part, right, dtype)
            near(abs(got[3]), np.abs(want[3]), dtype)


@on_gpu
def test_the_order_of_many_rows() -> None:
    a = draw("float64", 9001, 2)  # more than shared memory holds
    p, lower, upper = linalg.lu(eg.tensor(a, device=DEV))
    near(p @ (lower @ upper), a, "float64")


@on_gpu
def test_pivots_that_are_no_rows() -> None:
    wrong = eg.tensor(np.array([1, 7, 3]), device=DEV)
    out = linalg.lu_solve(eg.eye(3, device=DEV), wrong, eg.ones((3, 1), device=DEV))
    with pytest.raises(OutOfRangeError, match="lu_solve: pivot 6 is out of range"):
        out.numpy()


@on_gpu
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("name", failures())
def test_failures_on_a_gpu(name: str, dtype: str, batch: tuple[int, ...]) -> None:
    function, bad, words = failures()[name]
    x = eg.tensor(np.broadcast_to(bad, (*batch, *bad.shape)).astype(dtype), device=DEV)
    good = eg.eye(bad.shape[-1], device=DEV, dtype=dtype)
    compiled = eg.jit(function)
    for how in (function, function, function, compiled, compiled, compiled):
        with pytest.raises(ArgumentError, match=words):
            how(x).numpy()
        near(how(good), np.eye(bad.shape[-1]), dtype)


@on_gpu
def test_singular_matrices_have_factors() -> None:
    for shape in ((50, 50), (3, 50, 50)):
        ones = eg.ones(shape, device=DEV)
        near(linalg.det(ones), np.zeros(shape[:-2]), "float32")
        p, lower, upper = linalg.lu(ones)
        near(p @ lower @ upper, np.ones(shape), "float32")


@on_gpu
def test_nan_of_nan_is_no_failure_on_a_gpu() -> None:
    nan_of_nan(DEV)


@on_gpu
def test_determinants_do_not_overflow_on_the_way() -> None:
    a = np.diag([1e200] * 5 + [1e-200] * 5)
    near(linalg.det(eg.tensor(a, device=DEV)), np.array(1.0), "float64")
    near(linalg.slogdet(eg.tensor(a * 1e30, device=DEV)).logabsdet, 300 * np.log(10.0), "float64")


@on_gpu
def test_memory_does_not_grow() -> None:
    x = eg.tensor(positive(draw("float32", 3, 100, 100)), device=DEV)

    def each(x: Any) -> Any:
        return linalg.inv(x) @ linalg.cholesky(x), linalg.solve(x, x), linalg.det(x)

    compiled = eg.jit(each)
    used = []
    for _ in range(12):
        for how in (each, compiled):
            how(x)[0].numpy()
        used.append(base.get(DEV).gpu.memory.statistics()["used"])  # type: ignore[attr-defined]
    assert len(set(used[6:])) == 1

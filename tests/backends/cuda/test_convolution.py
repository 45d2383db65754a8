"""Convolutions by cuDNN: on a GPU against PyTorch, without one by a fake library in Python."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import cudnn
from everygrad.backends.cuda.driver.cudnn import ConvProblem, Cudnn
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.errors import CompileError, DeviceError
from everygrad.tools import doctor
from tests.conftest import DEVICES
from tests.support.fake_cudnn import ALIGNMENT, DTYPE, NUMBER, SHAPE, STRIDES, Engine, FakeCudnn

DRY = "cuda:dry"
on_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
TENSOR_CORE, DOWN_CONVERT, NARROW_SUMS, NOT_DETERMINISTIC = 0, 1, 2, 4
CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ("conv2d", (2, 3, 6, 5), (4, 3, 3, 3), {"padding": 1}),
    "strided": ("conv2d", (2, 2, 9, 8), (3, 2, 3, 2), {"stride": (2, 3), "dilation": (1, 2)}),
    "groups": ("conv2d", (1, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "padding": (2, 0)}),
    "depthwise": ("conv2d", (2, 3, 5, 5), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    "line": ("conv1d", (2, 4, 9), (2, 4, 3), {"stride": 2, "padding": 2}),
    "volume": ("conv3d", (1, 4, 3, 4, 5), (2, 2, 2, 3, 2), {"groups": 2, "padding": (0, 1, 1)}),
    "transposed volume": ("conv_transpose3d", (1, 2, 2, 3, 2), (2, 3, 2, 2, 3), {"stride": 2}),
    "transposed": (
        *("conv_transpose2d", (2, 3, 4, 4), (3, 2, 3, 3)),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed line": ("conv_transpose1d", (1, 4, 5), (4, 1, 3), {"stride": 2, "groups": 2}),
}


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def with_library(monkeypatch: pytest.MonkeyPatch, fake: FakeCudnn) -> Any:
    """A dry device that has this cuDNN."""
    driver = DryDriver()
    monkeypatch.setattr(driver, "cudnn", Cudnn(fake, 0), raising=False)
    made = Cuda(DRY, driver)
    monkeypatch.setitem(base._OPEN, DRY, made)
    return made


def step(name: str, options: dict[str, Any]) -> Any:
    """A convolution and both of its gradients."""

    def run(x: Any, w: Any, g: Any) -> Any:
        out, back = eg.vjp(lambda x, w: getattr(eg, name)(x, w, **options), x, w)
        return out, *back(g)

    return run


def expected(name: str, x: Any, w: Any, options: dict[str, Any]) -> Any:
    """A gradient for the result, and PyTorch's result and gradients."""
    tx, tw = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (x, w))
    out = getattr(F, name)(tx, tw, **options)
    g = draw(*out.shape, seed=2)
    out.backward(torch.tensor(g))
    assert tx.grad is not None
    assert tw.grad is not None
    return g, [t.detach().numpy() for t in (out, tx.grad, tw.grad)]


# --- how problems are described ------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_values(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eagerly, by the cached launches of the first call, and compiled."""
    fake = FakeCudnn((Engine(workspace=4096),))
    with_library(monkeypatch, fake)
    name, shape, weight, options = CASES[case]
    x, w = draw(*shape), draw(*weight, seed=1)
    g, want = expected(name, x, w, options)
    given = [eg.tensor(v, device=DRY) for v in (x, w, g)]
    run = step(name, options)
    compiled = eg.jit(run)
    for how in (run, run, run, compiled, compiled, compiled):
        before = len(fake.executed)
        for got, right in zip(how(*given), want, strict=True):
            np.testing.assert_allclose(got.numpy(), right, 1e-12, 1e-12)
        assert len(fake.executed) == before + 3


def test_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCudnn()
    with_library(monkeypatch, fake)
    x, w = (eg.zeros(s, device=DRY) for s in ((2, 4, 6, 5), (6, 2, 3, 2)))
    eg.conv2d(x, w, stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2)
    first, second, third = fake.of_kind(17)
    assert [t.values[SHAPE] for t in (first, second, third)] == [
        *([2, 4, 6, 5], [6, 2, 3, 2], [2, 6, 3, 3]),
    ]
    assert first.values[STRIDES] == [120, 30, 5, 1]
    assert [t.values[NUMBER] for t in (first, second, third)] == [[1], [2], [3]]
    assert first.values[ALIGNMENT] == [16]
    assert first.values[DTYPE] == [0]
    (convolution,) = fake.of_kind(1)
    found = {100: [0], 101: [1], 102: [1, 2], 103: [2, 1], 104: [1, 0], 105: [1, 0], 106: [2]}
    assert convolution.values == found
    (operation,) = fake.of_kind(10)
    assert operation.values[700] == [1.0]
    assert operation.values[701] == [0.0]
    assert operation.types[700] == 4


def test_float64_is_summed_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCudnn()
    with_library(monkeypatch, fake)
    x, w = (eg.zeros(s, dtype="float64", device=DRY) for s in ((1, 1, 3, 3), (1, 1, 2, 2)))
    eg.conv2d(x, w)
    assert fake.of_kind(1)[0].values[100] == [1]
    assert fake.of_kind(10)[0].types[700] == 5


def test_channels_last_images_stay_channels_last(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCudnn()
    with_library(monkeypatch, fake)
    x = eg.permute_dims(eg.tensor(draw(2, 5, 6, 4), device=DRY), (0, 3, 1, 2))
    out = eg.conv2d(x, eg.tensor(draw(3, 4, 2, 2), device=DRY))
    assert [t.values[STRIDES] for t in fake.of_kind(17)] == [
        *([120, 1, 24, 4], [16, 1, 8, 4], [60, 1, 15, 3]),
    ]
    assert out._data.strides == (60, 1, 15, 3)
    assert out.shape == (2, 3, 4, 5)


def test_no_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCudnn()
    with_library(monkeypatch, fake)
    w = eg.ones((3, 2, 2, 2), device=DRY)
    assert eg.conv2d(eg.zeros((0, 2, 4, 4), device=DRY), w).shape == (0, 3, 3, 3)
    none = eg.conv2d(eg.zeros((1, 0, 4, 4), device=DRY), eg.ones((3, 0, 2, 2), device=DRY))
    assert none.shape == (1, 3, 3, 3)
    assert not none.numpy().any()
    assert not fake.made


# --- which engine --------------------------------------------------------------------------------


def plan_of(fake: FakeCudnn, dtype: Any = dtypes.float32, tf32: bool = False) -> Any:
    shapes = ((1, 1, 4, 4), (1, 1, 3, 3), (1, 1, 2, 2))
    one = (1, 1)
    return Cudnn(fake, 0).plan(
        ConvProblem("forward", dtype, *shapes, one, (0, 0), one, False, tf32)
    )


def chosen(*engines: Engine, dtype: Any = dtypes.float32, tf32: bool = False) -> int:
    """Which engine was chosen, identified by its workspace."""
    found: int = plan_of(FakeCudnn(engines), dtype, tf32).workspace
    return found


def test_engines_without_our_guarantees_are_skipped() -> None:
    bad = [Engine((note,), 1) for note in (DOWN_CONVERT, NARROW_SUMS, NOT_DETERMINISTIC)]
    quick, plain = Engine((TENSOR_CORE,), 2), Engine((5,), 3)
    assert chosen(*bad, quick, plain) == 3
    assert chosen(*bad, quick, plain, tf32=True) == 2
    assert chosen(*bad, quick, plain, dtype=dtypes.bfloat16) == 2
    assert chosen(*bad, quick, plain, dtype=dtypes.float64) == 2


def test_engines_that_cannot_are_passed_over() -> None:
    assert chosen(Engine(workspace=1, status=3000), Engine(workspace=2)) == 2
    fake = FakeCudnn((Engine(status=3002),), others=(Engine(workspace=5),))
    assert plan_of(fake).workspace == 5


def test_too_much_workspace_is_passed_over() -> None:
    much = 1 << 40
    assert chosen(Engine(workspace=much), Engine(workspace=9)) == 9
    assert chosen(Engine(workspace=much), Engine(workspace=much - 1)) == much - 1


def fake_pack(fake: FakeCudnn) -> int:
    found = ctypes.c_void_p()
    fake.do_create_descriptor(16, ctypes.addressof(found))
    return found.value or 0


def test_gradients_of_kernels_by_products_where_those_are_quicker() -> None:
    """cuDNN's other engines for them are slow; not with groups, nor without images."""
    slow, other = Engine((3,), 1), Engine((), 2)
    one = (1, 1)
    facts = (dtypes.float32, (1, 4, 4, 4), (4, 4, 3, 3), (1, 4, 2, 2), one, (0, 0), one)
    problem = ConvProblem("weight", *facts)
    assert Cudnn(FakeCudnn((slow, other)), 0).plan(problem) is None
    assert Cudnn(FakeCudnn((), (other,)), 0).plan(problem) is None
    assert Cudnn(FakeCudnn((other, slow)), 0).plan(problem) is not None
    grouped = problem._replace(w=(4, 1, 3, 3))
    assert Cudnn(FakeCudnn((slow,)), 0).plan(grouped) is not None
    assert Cudnn(FakeCudnn((), (other,)), 0).plan(problem._replace(kind="input")) is not None


def test_weights_of_5_by_5_by_no_engine_that_may_be_winograds() -> None:
    """It has no note, and four of seven digits."""
    unnoted, strict = Engine((), 1), Engine((9,), 2)
    one = (1, 1)
    facts = (dtypes.float32, (1, 4, 9, 9), (4, 2, 5, 5), (1, 4, 5, 5), one, (0, 0), one)
    grouped = ConvProblem("weight", *facts)
    whole = grouped._replace(w=(4, 4, 5, 5))
    seen = {
        "grouped": Cudnn(FakeCudnn((unnoted, strict)), 0).plan(grouped),
        "input": Cudnn(FakeCudnn((unnoted, strict)), 0).plan(grouped._replace(kind="input")),
        "3 by 3": Cudnn(FakeCudnn((unnoted,)), 0).plan(grouped._replace(w=(4, 2, 3, 3))),
        "bfloat16": Cudnn(FakeCudnn((unnoted,)), 0).plan(grouped._replace(dtype=dtypes.bfloat16)),
    }
    found = {name: plan and plan.workspace for name, plan in seen.items()}
    assert found == {"grouped": 2, "input": 1, "3 by 3": 1, "bfloat16": 1}
    # products serve where nothing better comes before
    assert Cudnn(FakeCudnn((unnoted, strict)), 0).plan(whole) is None
    assert Cudnn(FakeCudnn((strict, unnoted)), 0).plan(whole) is not None


def test_only_what_is_needed_stays() -> None:
    """The plan, its configuration, and the address packs of some calls."""
    fake = FakeCudnn((Engine(status=3000), Engine((4,)), Engine(workspace=1 << 40), Engine()))
    plan = plan_of(fake)
    assert sorted(d.kind for d in fake.alive) == [3, 5]
    memory = np.zeros(64, np.float32)
    places = [memory.ctypes.data + 4 * k for k in (0, 16, 32)]
    plan(*places, 0)
    plan(*places, 0)
    assert len(fake.of_kind(16)) == 1
    assert len(fake.executed) == 2
    plan(places[0], places[1], places[2] + 64, 0)
    assert len(fake.of_kind(16)) == 2
    assert sorted(d.kind for d in fake.alive) == [3, 5, 16, 16]
    plan._packs |= {(k, k, k, k): fake_pack(fake) for k in range(cudnn.PACKS - 2)}
    plan(places[0], places[1] + 64, places[2], 0)
    assert len(plan._packs) == cudnn.PACKS
    assert len([d for d in fake.alive if d.kind == 16]) == cudnn.PACKS


def test_without_an_engine_the_definition_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCudnn(())
    dev = with_library(monkeypatch, fake)
    x, w = eg.zeros((1, 2, 4, 4), device=DRY), eg.zeros((3, 2, 2, 2), device=DRY)
    with dev.launches() as names:
        assert eg.conv2d(x, w).shape == (1, 3, 3, 3)
    assert any("matmul" in name for name in names)
    assert not fake.executed
    assert eg.jit(eg.conv2d)(x, w).shape == (1, 3, 3, 3)


# --- what goes wrong -----------------------------------------------------------------------------


def test_faults_are_told_in_its_words() -> None:
    fake = FakeCudnn()
    plan = plan_of(fake)
    message = r"convolution \(forward\) of 1 x 1 x 4 x 4 .* STATUS_5000: what cuDNN says"
    fake.status["cudnnBackendExecute"] = 5000
    with pytest.raises(DeviceError, match=message):
        plan(16, 32, 48, 0)
    fake.status["cudnnBackendSetAttribute"] = 2000
    with pytest.raises(CompileError, match=r"attribute 901: cuDNN 91900 answers STATUS_2000"):
        plan_of(fake)


def test_a_library_that_does_not_start() -> None:
    fake = FakeCudnn()
    fake.status["cudnnCreate"] = 1001
    with pytest.raises(DeviceError, match="cudnnCreate: cuDNN 91900 answers STATUS_1001"):
        Cudnn(fake, 0)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "candidates", lambda stem, majors: ["/nowhere/libcudnn.so.9"])
    assert cudnn.load.__wrapped__() is None


def test_the_doctor_says_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    dev = with_library(monkeypatch, FakeCudnn())
    assert doctor.cudnn_fact(dev) == "9.19.0"
    monkeypatch.setattr(dev.gpu.driver, "cudnn", None)
    assert doctor.cudnn_fact(dev).startswith("not found")


# --- on a GPU ------------------------------------------------------------------------------------


@on_gpu
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_on_the_gpu(case: str, dtype: str) -> None:
    """Values equal PyTorch's, and every way to run gives the same bits."""
    name, shape, weight, options = CASES[case]
    x, w = (eg.tensor(draw(*s), device="cuda").astype(dtype) for s in (shape, weight))
    g, want = expected(name, *(t.astype("float64").numpy() for t in (x, w)), options)
    given = (x, w, eg.tensor(g, device="cuda").astype(dtype))
    run = step(name, options)
    compiled = eg.jit(run)
    tolerance = {"float32": 1e-5, "float64": 1e-12, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
    first: list[Any] = []
    for how in (run, run, run, compiled, compiled, compiled):
        made = [t.astype("float64").numpy() for t in how(*given)]
        first = first or made
        for got, right, before in zip(made, want, first, strict=True):
            np.testing.assert_allclose(got, right, tolerance, tolerance * np.abs(right).max())
            np.testing.assert_array_equal(got, before)


@on_gpu
def test_images_stay_whole_in_compiled_functions() -> None:
    if base.get("cuda").gpu.driver.cudnn is None:  # type: ignore[attr-defined]
        pytest.skip("this machine has no cuDNN")
    x, w = eg.zeros((2, 3, 8, 8), device="cuda"), eg.zeros((4, 3, 3, 3), device="cuda")
    assert "convolution (forward)" in eg.jit(eg.conv2d).lower(x, w).kernels

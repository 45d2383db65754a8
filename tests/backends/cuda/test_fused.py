"""eg.jit on CUDA. Without a GPU: plans are as expected, and every fused kernel compiles. With one:
equal to eager mode there, for every op of the registry and whole steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes, nn, optim
from everygrad.backends import base
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph import runner
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.errors import CompileError, DtypeError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY
from tests.conftest import DEVICES
from tests.jit.test_jit import counted
from tests.registry.test_jit_ops import KEEPS_PLACES, as_function, is_masked, loss_of
from tests.support.checks import arrays_of, close, in_dtype, is_float, values

DRY = "cuda:dry"
DEV = "cuda"
on_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="this run promises no cuda")
QUICK = ("--Ofast-compile=max",)


def layer_norm(x: Any, w: Any) -> Any:
    away = x - x.mean(axis=-1, keepdims=True)
    spread = (away * away).mean(axis=-1, keepdims=True)
    return away / (spread + 1e-5).sqrt() * w


def moved(x: Any) -> Any:
    return eg.permute_dims(x, (1, 0)) * 2.0 + eg.permute_dims(eg.exp(x), (1, 0))


def norm_grads(x: Any, w: Any) -> Any:
    return eg.grad(lambda x, w: (layer_norm(x, w) ** 2).sum(), (0, 1))(x, w)


def cross_entropy_grad(x: Any) -> Any:
    labels = eg.tensor(np.arange(x.shape[0]) % x.shape[1], device=x.device)
    return eg.grad(lambda x: nn.functional.cross_entropy(x, labels))(x)


def chain(x: Any) -> Any:
    for _ in range(8):
        x = eg.tanh(x) * 1.5 + 0.1
    return x


FORMS: dict[str, tuple[Callable[..., Any], int]] = {
    "chain": (chain, 1),
    "moved": (moved, 2),
    "total": (lambda x: (eg.exp(x).mean(), x * 2.0), 2),
    "columns": (lambda x: ((x * 2.0).sum(axis=0), eg.exp(x)), 2),
    "softmax": (lambda x: eg.softmax(x * 2.0, axis=-1), 1),
    "softmax down": (lambda x: eg.softmax(x, axis=0), 4),
    "norm": (lambda x: layer_norm(x, x[0]), 1),
    "norm grads": (lambda x: norm_grads(x, x[0]), 3),
    "loss": (
        lambda x: nn.functional.cross_entropy(x, eg.zeros((x.shape[0],), "int64", x.device)),
        4,
    ),
    "loss grad": (cross_entropy_grad, 2),
    "few rows": (lambda x: eg.exp(x.reshape(2, -1)).sum(axis=1), 2),
    "channels": (lambda x: (x.reshape(x.shape[0] // 4, 4, -1) * 2.0).sum(axis=(0, 2)), 2),
    "half": (lambda x: eg.softmax(x.astype("bfloat16") * 2.0, axis=-1).astype("float32"), 1),
    "complex": (lambda x: (eg.exp(x.astype("complex64") * 1j)).sum(axis=0), 2),
}
SHAPES = [(40, 128), (36, 129), (20, 3000), (20, 9000)]


def texts(fn: Callable[..., Any], *given: Any) -> dict[str, str]:
    """The kernels' texts of a compiled function, by name."""
    return {name: text for text, name in eg.jit(fn).lower(*given).plan.sources().items()}


# --- without a GPU -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_groups_are_few_kernels(name: str) -> None:
    fn, most = FORMS[name]
    for shape in SHAPES:
        lowered = eg.jit(fn).lower(eg.ones(shape, device=DRY))
        assert 1 <= len(lowered.kernels.splitlines()) <= most, (shape, lowered.kernels)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_fused_kernels_compile(arch: str) -> None:
    found: dict[str, str] = {}
    for fn, _ in FORMS.values():
        for shape in SHAPES:
            found |= texts(fn, eg.ones(shape, device=DRY))
    assert len(found) > 40
    whole = with_library("".join(found[name] for name in sorted(found)))
    nvrtc.opened().compile("all", whole, arch, (*nvrtc.OPTIONS, *QUICK))


def test_what_is_compared_with_an_extreme_is_rounded_alike() -> None:
    """a * x + b is not contracted to a fused multiply-add where its maximum is computed, nor where
    it is compared with that; elsewhere it may be."""

    def grads(x: Any) -> Any:
        return eg.grad(lambda x: (eg.max(x * 0.75 + 0.3, axis=-1) ** 2).sum())(x)

    x = eg.tensor(np.ones((2, 300), np.float32), device=DRY)
    found = "".join(texts(grads, x).values())
    assert "__fadd_rn" in found
    assert "__fadd_rn" not in "".join(texts(lambda x: eg.sum(x * 0.75 + 0.3, axis=-1), x).values())


def training_step(device: str, hidden: int = 64) -> tuple[Any, Any]:
    eg.manual_seed(2)
    layers = (nn.Linear(6, hidden), nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, 4))
    model = nn.Sequential(*layers).to(device)
    opt = optim.AdamW(model.parameters(), lr=0.01)

    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return model, step


def test_parameters_are_written_in_place(monkeypatch: Any) -> None:
    # other tests leave threads behind, and threads prevent writing in place
    monkeypatch.setattr("everygrad._jit.entry._others_may_look", lambda: False)
    model, step = training_step(DRY)
    compiled = eg.jit(step)
    x, y = eg.ones((16, 6), device=DRY), eg.zeros((16,), "int64", DRY)
    for _ in range(2):
        compiled(x, y)
    places = [p._data.ptr for p in model.parameters()]
    for _ in range(3):
        compiled(x, y)
    assert [p._data.ptr for p in model.parameters()] == places
    assert compiled.memory().in_place >= 3 * len(places)
    held = next(iter(model.parameters())).detach()
    compiled(x, y)
    assert held._data is not next(iter(model.parameters()))._data


def test_memory_is_shared_in_time() -> None:
    def f(x: Any) -> Any:
        for _ in range(6):
            x = eg.tanh(x @ x)
        return x

    compiled = eg.jit(f)
    x = eg.ones((64, 64), device=DRY)
    compiled(x)
    assert compiled.memory().arena <= 3 * 64 * 64 * 4
    assert compiled.memory().peak <= compiled.memory().arena


def test_replaying_takes_memory_for_results_only() -> None:
    compiled = eg.jit(lambda x: eg.softmax(x @ x, axis=-1).sum())
    x = eg.tensor(np.ones((64, 64), np.float32), device=DRY)
    compiled(x)
    memory = base.get(DRY).gpu.memory  # type: ignore[attr-defined]
    sizes: list[int] = []
    real = memory.take
    memory.take = lambda size: (sizes.append(size), real(size))[1]
    try:
        for _ in range(3):
            compiled(x)
    finally:
        del memory.take
    assert len(sizes) == 3
    assert max(sizes) <= 512


def test_recording_is_not_running() -> None:
    driver = base.get(DRY).gpu.driver  # type: ignore[attr-defined]
    before = sum(driver.launches.values())
    x = eg.ones((8, 8), device=DRY)
    made = sum(driver.launches.values()) - before
    eg.jit(lambda x: eg.softmax(x @ x, axis=-1)).lower(x)
    assert sum(driver.launches.values()) - before == made


def test_kernels_are_compiled_while_recording_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    waited: list[str] = []

    def begin(self: DryDriver, text: Any) -> Callable[[], str]:
        begun.append(text.name)
        return lambda: waited.append(text.name) or text.name  # type: ignore[func-returns-value]

    x = eg.tensor(np.ones((3, 41, 7), np.float32), device=DRY)  # a shape that no other test has
    monkeypatch.setattr(DryDriver, "begin", begin)
    monkeypatch.setattr(DryDriver, "function", None)  # no kernel is compiled synchronously
    compiled = eg.jit(lambda x: eg.sin(x).sum(axis=1) @ eg.ones((7, 5), device=DRY))
    compiled(x)
    assert len(begun) > 1
    assert set(waited) == set(begun)  # each before the first call, none twice
    assert len(waited) == len(begun)


def test_a_kernel_that_does_not_compile_is_the_functions_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(self: DryDriver, text: Any) -> Callable[[], str]:
        def fail() -> str:
            raise CompileError(f"cuda: the kernel {text.name!r} does not compile")

        return fail

    monkeypatch.setattr(DryDriver, "begin", begin)
    x = eg.ones((3, 43), device=DRY)
    with pytest.raises(CompileError, match="does not compile"):
        eg.jit(lambda x: eg.sin(x) + 43)(x)
    eg.jit(lambda x: eg.sin(x) + 44, fallback="eager")(x)  # eager mode has kernels of its own


def test_the_third_call_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Graph:
        def __init__(self, driver: Any, work: Callable[[], None]) -> None:
            log.append("captured")
            work()

        def launch(self, launched: list[Any]) -> None:
            log.append("launched")
            launched.append(None)

    class NoDriver:
        """No object is an instance, so the dry device counts as a real one."""

    monkeypatch.setattr(runner, "Captured", Graph)
    monkeypatch.setattr(runner, "DryDriver", NoDriver)
    monkeypatch.setattr(runner, "copy", lambda driver, target, source, size: log.append("copied"))
    compiled = eg.jit(lambda x: eg.softmax(x, axis=-1))
    x, y = (eg.tensor(np.ones((64, 64), np.float32), device=DRY) for _ in range(2))
    calls = []
    for given in (x, x, x, x, y, y, x):
        compiled(given)
        calls.append(log.copy())
        log.clear()
    graph = ["captured", "launched"]
    assert calls[:4] == [[], graph, ["launched"], ["launched"]]
    # its address changed: from now on it is copied, and there is one set of addresses again
    assert calls[4:] == [["copied"], ["copied", *graph], ["copied", "launched"]]


# --- on a GPU ------------------------------------------------------------------------------------


def agree(got: Any, want: Any) -> None:
    several = isinstance(want, list | tuple)
    for g, w in zip(got if several else [got], want if several else [want], strict=True):
        assert g.device == w.device
        assert g.dtype is w.dtype
        if w.dtype.is_differentiable:
            close(g, w, 1e-5)
        else:
            np.testing.assert_array_equal(values(g), values(w))


@on_gpu
@pytest.mark.parametrize("name", [n for n in FORMS if n not in ("half", "complex")])
def test_forms(name: str) -> None:
    fn, _ = FORMS[name]
    for shape in SHAPES:
        x = np.random.default_rng(0).standard_normal(shape)
        compiled = eg.jit(fn)
        want = fn(eg.tensor(x))
        got: Any = None
        for _ in range(3):
            got = compiled(eg.tensor(x.astype(np.float32), device=DEV))
        several = isinstance(want, list | tuple)
        for g, w in zip(got if several else [got], want if several else [want], strict=True):
            scale = max(1.0, float(np.abs(w.numpy()).max()))
            np.testing.assert_allclose(g.numpy(), w.numpy(), atol=2e-5 * scale)


@on_gpu
@pytest.mark.parametrize("name", KEEPS_PLACES)
def test_values_and_gradients(name: str) -> None:
    op = REGISTRY[name]
    checked = 0
    for sample in [*op.samples()][:3]:
        if name == "getitem" and is_masked(sample):
            continue
        single = in_dtype(sample, dtypes.float32)
        function = as_function(op, single)
        given = [eg.tensor(a, device=DEV) for a in arrays_of(single)]
        try:
            want = function(*given)
        except DtypeError:
            continue
        compiled = eg.jit(function)
        for _ in range(3):
            agree(compiled(*given), want)
        wanted = [i for i, a in enumerate(arrays_of(single)) if is_float(a)]
        if wanted and not op.constant and op.family != "movement":
            loss = on_device(loss_of(function))
            agree(list(eg.jit(eg.grad(loss, wanted))(*given)), list(eg.grad(loss, wanted)(*given)))
        checked += 1
    assert checked


def on_device(loss: Any) -> Any:
    """The loss, whose own tensors are made on the device, in float32."""

    def run(*tensors: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            real, arange = eg.zeros, eg.arange
            patch.setattr(eg, "zeros", lambda shape, dtype=None: real(shape, "float32", DEV))
            patch.setattr(eg, "arange", lambda n, dtype=None: arange(n, dtype=dtype, device=DEV))
            return loss(*tensors)

    return run


@on_gpu
def test_a_training_step() -> None:
    (a, eager), (b, fn) = training_step("cpu"), training_step(DEV)
    counting, runs = counted(fn)
    compiled = eg.jit(counting)
    rng = np.random.default_rng(0)
    for _ in range(6):
        x = eg.tensor(rng.standard_normal((16, 6)).astype(np.float32))
        y = eg.tensor(rng.integers(0, 4, 16))
        close(compiled(x.to(DEV), y.to(DEV)), eager(x, y), 1e-4)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        close(q.detach(), p.detach(), 1e-3)
    assert len(runs) == 1


@on_gpu
@pytest.mark.parametrize("size", [4, 1 << 14])
def test_results_stay_as_they_were(size: int) -> None:
    f = eg.jit(lambda x: (x * 2.0, x.sum()))
    held = [f(eg.full((size,), float(k), device=DEV)) for k in range(8)]
    for k, (twice, total) in enumerate(held):
        close(twice, np.full(size, 2.0 * k), 0)
        close(total, np.float32(k * size), 0)


@on_gpu
def test_what_the_user_holds_is_not_written_over() -> None:
    w = eg.ones((1000,), device=DEV, requires_grad=True)

    def step() -> None:
        with eg.no_grad():
            w.__isub__(w * 0.5)

    compiled = eg.jit(step)
    held = []
    for _ in range(6):
        compiled()
        held.append(w.detach())
    for k, one in enumerate(held):
        close(one, np.full(1000, 0.5 ** (k + 1)), 0)
    places = set()
    held.clear()
    for _ in range(4):
        compiled()
        places.add(w._data.ptr)
    assert len(places) == 1


@on_gpu
def test_inputs_of_any_strides() -> None:
    f = eg.jit(lambda x: eg.exp(x) + x.sum(axis=1, keepdims=True))
    x = eg.tensor(np.random.default_rng(0).standard_normal((40, 60)).astype(np.float32), device=DEV)
    for view in (x, x[1:], x[:, 3:30], x.T, x[::2, ::3], x[3:4]):
        for _ in range(3):
            close(f(view), np.exp(view.numpy()) + view.numpy().sum(1, keepdims=True), 1e-5)


@on_gpu
def test_random_numbers_are_those_of_the_cpu() -> None:
    a, b = eg.Generator(3), eg.Generator(3)
    f = eg.jit(lambda x: x + eg.rand((5,), device=DEV, generator=a))
    for _ in range(4):
        close(f(eg.zeros((5,), device=DEV)), eg.rand((5,), generator=b), 1e-6)


@on_gpu
def test_an_index_out_of_range_is_named() -> None:
    f = eg.jit(lambda x, i: eg.take(x, i, axis=0) * 2.0)
    x = eg.ones((3,), device=DEV)
    for _ in range(3):
        with pytest.raises(OutOfRangeError, match="index 7 is out of range for an axis of size 3"):
            f(x, eg.tensor([0, 7], device=DEV)).to("cpu")
        close(f(x, eg.tensor([0, 2], device=DEV)), np.full(2, 2.0), 0)

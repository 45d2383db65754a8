"""eg.jit on WebGPU: equal to eager mode there, for every op of the registry and whole steps."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import dtypes, nn, optim
from everygrad.errors import DtypeError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY
from tests.jit.test_jit import counted
from tests.registry.test_jit_ops import KEEPS_PLACES, as_function, is_masked, loss_of
from tests.support.checks import arrays_of, close, in_dtype, is_absent, is_flat, is_float, values

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)
DEVICE = "webgpu"


def on_device(sample: Any) -> list[Any]:
    return [eg.tensor(a, device=DEVICE) for a in arrays_of(sample)]


def agree(got: list[Any], want: list[Any]) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.device == w.device
        assert g.dtype is w.dtype
        if w.dtype.is_float:
            close(g, w, 1e-5)
        else:
            np.testing.assert_array_equal(values(g), values(w))


@pytest.mark.parametrize("name", KEEPS_PLACES)
def test_values_and_gradients(name: str) -> None:
    op = REGISTRY[name]
    refused = is_absent(op, DEVICE)
    checked = 0
    for sample in [*op.samples()][:2] if not refused else ():
        if name == "getitem" and is_masked(sample):
            continue
        single = in_dtype(sample, dtypes.float32)
        function = as_function(op, single)
        try:
            given = on_device(single)
            want = function(*given)
        except DtypeError:
            refused = True  # a dtype the device lacks, by name: tested elsewhere
            continue
        compiled = eg.jit(function)
        for _ in range(2):
            agree(compiled(*given), want)
        wanted = [i for i, a in enumerate(arrays_of(single)) if is_float(a)]
        if wanted and not is_flat(op) and op.family != "movement":
            loss = _in_float32(loss_of(function))
            agree(list(eg.jit(eg.grad(loss, wanted))(*given)), list(eg.grad(loss, wanted)(*given)))
        checked += 1
    assert checked or refused


def _in_float32(loss: Any) -> Any:
    def run(*tensors: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            real = eg.zeros
            patch.setattr(eg, "zeros", lambda shape, dtype=None: real(shape, "float32", DEVICE))
            arange = eg.arange
            patch.setattr(eg, "arange", lambda n, dtype=None: arange(n, dtype=dtype, device=DEVICE))
            return loss(*tensors)

    return run


def test_a_training_step() -> None:
    def make(device: str) -> tuple[Any, Any]:
        eg.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))
        model = model.to(device)
        opt = optim.AdamW(model.parameters(), lr=0.01)

        def step(x: Any, y: Any) -> Any:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        return model, step

    (a, eager), (b, fn) = make("cpu"), make(DEVICE)
    counting, runs = counted(fn)
    compiled = eg.jit(counting)
    rng = np.random.default_rng(0)
    for _ in range(5):
        x = eg.tensor(rng.standard_normal((16, 6)).astype(np.float32))
        y = eg.tensor(rng.integers(0, 4, 16))
        close(compiled(x.to(DEVICE), y.to(DEVICE)), eager(x, y), 1e-4)
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        close(q.detach(), p.detach(), 1e-3)
    assert len(runs) == 1


def test_results_stay_as_they_were() -> None:
    f = eg.jit(lambda x: x * 2.0)
    first = f(eg.ones((4,), device=DEVICE))
    f(eg.ones((4,), device=DEVICE) * 5.0)
    close(first, np.full(4, 2.0), 0)


def test_random_numbers_are_those_of_the_cpu() -> None:
    a, b = eg.Generator(3), eg.Generator(3)
    f = eg.jit(lambda x: x + eg.rand((5,), device=DEVICE, generator=a))
    for _ in range(3):
        close(f(eg.zeros((5,), device=DEVICE)), eg.rand((5,), generator=b), 1e-6)


def test_an_index_out_of_range_is_named() -> None:
    f = eg.jit(lambda x, i: eg.take(x, i, axis=0))
    x = eg.ones((3,), device=DEVICE)
    with pytest.raises(OutOfRangeError, match="index 7 is out of range for an axis of size 3"):
        f(x, eg.tensor([0, 7], device=DEVICE)).to("cpu")
    close(f(x, eg.tensor([0, 2], device=DEVICE)), np.ones(2), 0)


def test_more_inputs_than_buffers() -> None:
    xs = [eg.full((5,), float(i), device=DEVICE) for i in range(40)]

    def f(*xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = total + x * 2.0
        return total

    close(eg.jit(f)(*xs), f(*xs), 1e-6)


def test_constants_are_not_overwritten() -> None:
    c = np.random.default_rng(0).standard_normal(512).astype(np.float32)

    def f(x: Any) -> Any:
        s = x.sum(axis=1).sum()
        column = (s * 0.0 + 1.0) * eg.ones((512, 1), device=DEVICE)
        return s + eg.tensor(c, device=DEVICE).reshape(1, 512) @ column

    x = eg.ones((256, 20_000), device=DEVICE)
    g = eg.jit(f)
    for _ in range(3):
        close(g(x), f(x), 1e-5)


def test_recording_finds_no_faults() -> None:
    f = eg.jit(lambda x, i: eg.take(x, i - 1, axis=0))
    close(f(eg.ones((3,), device=DEVICE), eg.tensor([1, 2, 3], device=DEVICE)), np.ones(3), 0)

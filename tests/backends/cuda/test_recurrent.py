"""Recurrent layers by one persistent kernel: they compile without a GPU, and are right on one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cuda import array
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.source.prelude import with_library
from everygrad.ops.nn.recurrent import MODES, rnn_sequence
from tests.conftest import DEVICES

CUDA = [d for d in DEVICES if d.startswith("cuda")]
# (steps, batch, hidden) around the numbers at which the kernels change: rows and units of a block,
# chunks of a row, vectors, lanes
SIZES = [(1, 1, 1), (3, 2, 5), (2, 31, 64), (2, 33, 67), (3, 32, 256), (2, 65, 260), (2, 8, 300),
         (2, 3, 513), (2, 8, 1000)]  # fmt: skip


def given(mode: str, steps: int, batch: int, hidden: int) -> list[np.ndarray[Any, Any]]:
    gates, states, *_ = MODES[mode]
    rng = np.random.default_rng([steps, batch, hidden])
    shapes = (steps, batch, gates * hidden), (batch, states * hidden), (gates * hidden, hidden)
    x, start, w = (rng.standard_normal(s) for s in shapes)
    return [x, start, w / hidden**0.5, rng.standard_normal(gates * hidden)]


def computed(mode: str, arrays: list[Any], dtype: str, device: str, jit: bool = False) -> list[Any]:
    """The states, and the gradients of all inputs."""
    tensors = [eg.tensor(a, dtype=dtype, device=device, requires_grad=True) for a in arrays]

    def work(*inputs: eg.Tensor) -> Any:
        out = rnn_sequence(*inputs, mode=mode)
        by = eg.linspace(-1.0, 1.0, out.size, dtype=dtype, device=device).reshape(out.shape)
        return out, *eg.autograd.grad((out * by).sum(), inputs)

    made = (eg.jit(work) if jit else work)(*tensors)
    return [t.detach().to("cpu").numpy().astype(np.float64) for t in made]


@pytest.mark.parametrize("mode", MODES)
def test_kernels_of_all_sizes_compile(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Cuda("cuda:dry", DryDriver())
    monkeypatch.setitem(base._OPEN, "cuda:dry", gpu)
    monkeypatch.setattr(array, "_plans", {})  # they launch on the device they were made on
    with gpu.launches() as names:
        for dtype in ("float32", "float64"):
            for size in SIZES:
                computed(mode, given(mode, *size), dtype, "cuda:dry")
    assert sum(n.startswith("rnn_grads") for n in names) == 2 * len(SIZES)
    texts = [t for n, t in gpu.gpu.driver.texts.items() if n.startswith("rnn_")]
    assert len(texts) >= 20
    options = ("--gpu-architecture=sm_80", *nvrtc.OPTIONS, "--Ofast-compile=max")
    assert nvrtc.opened().build("all", with_library("".join(t.source for t in texts)), options)


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cuda", CUDA)
def test_all_sizes_are_those_of_the_cpu(
    cuda: str, mode: str, size: tuple[int, int, int], jit: bool
) -> None:
    arrays = given(mode, *size)
    want = computed(mode, arrays, "float64", "cpu")
    for dtype, room in (("float64", 1e-12), ("float32", 3e-5)):
        for made, expected in zip(computed(mode, arrays, dtype, cuda, jit), want, strict=True):
            scale = max(1.0, abs(expected).max())
            np.testing.assert_allclose(made, expected, rtol=room, atol=room * scale)


@pytest.mark.parametrize("cuda", CUDA)
def test_repeated_calls_have_the_same_bits(cuda: str) -> None:
    arrays = given("lstm", 40, 32, 256)
    first = computed("lstm", arrays, "float32", cuda)
    for _ in range(5):
        for a, b in zip(first, computed("lstm", arrays, "float32", cuda), strict=True):
            np.testing.assert_array_equal(a, b)

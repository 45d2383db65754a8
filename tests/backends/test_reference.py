"""The reference device: every op's first sample on it, by kernels that the interpreter checks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.backends import base
from everygrad.backends.reference import lowering
from everygrad.backends.reference.interpreter import KernelError
from everygrad.codegen.copy import Lowered, finished
from everygrad.codegen.kernel import Builder
from everygrad.errors import ArgumentError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import WITH_SAMPLES, call, function_of, map_sample, to_tensor

ELSEWHERE = ("to",)  # its sample is moved to the CPU
PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_runs(part: int) -> None:
    for name in WITH_SAMPLES[part::PARTS]:
        op = REGISTRY[name]
        one = next(iter(op.samples()))
        found = call(function_of(op), map_sample(one, to_tensor("reference")))
        wanted = call(function_of(op), map_sample(one, to_tensor("cpu")))
        for got, want in zip(found, wanted, strict=True):
            assert got.device == ("cpu" if name in ELSEWHERE else "reference"), name
            assert (got.shape, got.dtype) == (want.shape, want.dtype), name
            a, b = got.numpy(), want.numpy()
            exact = got.dtype.is_integer or got.dtype.name == "bool"
            close = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-4, "atol": 1e-5}
            np.testing.assert_allclose(a, b, err_msg=name, **close)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "bfloat16",
                                   "float64", "complex64"])  # fmt: skip
def test_dtypes(dtype: str) -> None:
    values = np.arange(70).reshape(7, 10) % 5 - (0 if dtype in ("bool", "uint16") else 2)

    def results(device: str) -> list[Any]:
        x = eg.tensor(values, device=device).astype(dtype)
        made = [x, x.astype("float32"), x == x[0], eg.where(x == 0, x, x[:1])]
        if dtype != "bool":
            made += [x.sum(), x.sum(axis=1), x * x + x, (x.astype("float32") * 0.3).astype(dtype)]
        if dtype != "complex64":
            made += [x.max(axis=0), x.any(axis=1)]
        return [t.numpy() for t in made]

    for got, want in zip(results("reference"), results("cpu"), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_compiled_step() -> None:
    losses = []
    for device in ("cpu", "reference"):
        eg.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        model = model.to(device)
        opt = optim.AdamW(model.parameters(), lr=1e-2)
        x = eg.tensor(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4), device=device)
        y = eg.tensor(np.array([0, 1, 2, 0, 1]), device=device)

        @eg.jit
        def step(x: Any, y: Any, model: Any = model, opt: Any = opt) -> Any:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        losses.append([float(step(x, y)) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert losses[0][2] < losses[0][0]


def test_bad_indices_raise_at_once() -> None:
    x = eg.tensor([1.0, 2.0, 3.0], device="reference")
    with pytest.raises(OutOfRangeError, match="take: index 7 is out of range for an axis of size"):
        eg.take(x, eg.tensor([0, 7], device="reference"))
    with pytest.raises(OutOfRangeError, match="gather: index -2 is out of range"):
        eg.gather(x, eg.tensor(np.array([-2], np.int32), device="reference"))
    with pytest.raises(ArgumentError):
        eg.full((2,), 300, "int8", "reference")


def test_a_wrong_kernel_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes what another thread writes; afterwards the device works as before."""

    def racing(*args: Any) -> Lowered:
        b = Builder("racing", lowering.MACHINE.narrow_index, 1, 4)
        x = b.buffer("x", eg.float32, 3)
        out = b.buffer("out", eg.float32, 3, written=True)
        b.store(out, b.thread // 2, b.load(x, b.thread // 2))
        return finished(b, None, None)

    x = eg.tensor([1.0, 2.0, 3.0], device="reference")
    monkeypatch.setattr(lowering, "elementwise", racing)
    with pytest.raises(KernelError, match="kernel racing, group 0: thread 1 writes what another"):
        eg.exp(x)
    monkeypatch.undo()
    assert eg.exp(x * 0).numpy().tolist() == [1, 1, 1]


def test_values_are_its_own() -> None:
    values = np.ones(3, np.float32)
    payload = base.get("reference").from_numpy(values)
    values[0] = 5
    assert payload.values.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        payload.values[0] = 2

"""Compiled functions on memory of others: addresses in, nothing shared out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad._jit.buffers import Buffer, compile_buffers
from everygrad.backends import base
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.errors import ArgumentError, OutOfRangeError, TraceError

KEPT = eg.tensor([1.0, 2.0, 3.0])


def _run(function: Any, arrays: list[Any]) -> list[Any]:
    outs = [np.full(b.shape, 99).astype(b.dtype.np) for b in function.results]
    function([a.ctypes.data for a in arrays], [o.ctypes.data for o in outs])
    return outs


def _buffers(arrays: list[Any]) -> list[Any]:
    return [(a.shape, a.dtype) for a in arrays]


def _x(*shape: int, dtype: str = "float64") -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


# by name: a function, and its inputs
CASES: dict[str, tuple[Any, list[Any]]] = {
    "elementwise": (lambda x, y: (x * y, eg.exp(x) + y), [_x(3, 4), _x(3, 4)]),
    "products": (lambda x, w: eg.tanh(x @ w).sum(0), [_x(5, 4), _x(4, 3)]),
    "slices of inputs": (lambda x: (x[1:] * 2, x[:, 2] + 1, x.T + 0), [_x(3, 4)]),
    "an input, whole and in parts": (lambda x: (x, x * 1.0, x.T, x[1:], x.reshape(-1)), [_x(3, 4)]),
    "constants": (lambda x: (eg.zeros((3,)), eg.arange(5), x + 1), [_x(2)]),
    "one value twice": (lambda x: (lambda y: (y, y, y.T))(eg.sin(x)), [_x(3, 3)]),
    "on the host": (lambda x: (eg.linalg.eigvalsh(x @ x.T), x + 1), [_x(4, 4)]),
    "from outside": (lambda x: x + KEPT.astype("float64"), [_x(2, 3)]),
    "empty": (lambda x: (x + 1, x.sum()), [_x(0, 3)]),
    "0-d": (lambda x: (x * 2, x), [np.array(3.0)]),
    "gather": (lambda x, i: x[i] * 2, [_x(5), np.array([0, 4, 2])]),
    "bfloat16": (lambda x: x * 2, [_x(4).astype(eg.bfloat16.np)]),
    "many": (lambda *xs: [x + 1 for x in xs], [_x(3) for _ in range(40)]),
}


@pytest.mark.parametrize("name", CASES)
def test_buffers_hold_what_eager_gives(name: str) -> None:
    fn, arrays = CASES[name]
    want = fn(*map(eg.tensor, arrays))
    want = [want] if isinstance(want, eg.Tensor) else list(want)
    function = eg.jit(fn).on_buffers(_buffers(arrays))
    before = [a.copy() for a in arrays]
    for _ in range(2):
        outs = _run(function, arrays)
        assert len(outs) == len(want)
        for got, w in zip(outs, want, strict=True):
            np.testing.assert_allclose(
                got.astype("float64"), w.numpy().astype("float64"), rtol=1e-10, atol=1e-12
            )
            got[...] = 7  # the caller's: nothing of ours changes with it
    for a, b in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_it_says_what_is_constant_and_what_is_an_input() -> None:
    function = eg.jit(
        lambda x, y, z: (eg.zeros((2,)), y * 1.0, x + y, eg.arange(3.0) * 2, x.reshape(-1), x.T)
    ).on_buffers([((2, 3), "float32")] * 3)
    assert function.constants == [0, 3]
    assert function.aliases == {1: 1, 4: 0}
    assert function.reads == [0, 1]
    assert [b.shape for b in function.results] == [(2,), (2, 3), (2, 3), (3,), (6,), (3, 2)]


def test_tensors_from_outside_are_read_anew() -> None:
    held = eg.tensor([1.0, 1.0])
    function = eg.jit(lambda x: x + held).on_buffers([((2,), "float32")])
    x = np.zeros(2, "float32")
    assert _run(function, [x])[0].tolist() == [1.0, 1.0]
    held[...] = 5.0
    assert _run(function, [x])[0].tolist() == [5.0, 5.0]


def test_threads_take_turns() -> None:
    function = eg.jit(lambda x: eg.tanh(x @ x) @ x).on_buffers([((60, 60), "float64")])
    inputs = [_x(60, 60) * k for k in range(8)]
    want = [np.tanh(x @ x) @ x for x in inputs]
    faults: list[BaseException] = []

    def work(k: int) -> None:
        try:
            for _ in range(20):
                np.testing.assert_allclose(_run(function, [inputs[k]])[0], want[k], atol=1e-9)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults


def test_an_index_out_of_range_is_refused_and_the_next_call_is_right() -> None:
    function = eg.jit(lambda x, i: x[i]).on_buffers([((3,), "float64"), ((2,), "int64")])
    x = np.arange(3.0)
    with pytest.raises(OutOfRangeError, match="index 3 is out of range"):
        _run(function, [x, np.array([0, 3])])
    assert _run(function, [x, np.array([2, 1])])[0].tolist() == [2.0, 1.0]


def test_what_cannot_be_compiled_is_refused() -> None:
    held = eg.zeros((2,))

    def writes(x: Any) -> Any:
        held[...] = x
        return x + 1

    with pytest.raises(TraceError, match="gives a tensor from outside a new value"):
        eg.jit(writes).on_buffers([((2,), "float32")])
    assert held.tolist() == [0.0, 0.0]
    with pytest.raises(ArgumentError, match="result 1 is a float"):
        eg.jit(lambda x: (x, 2.0)).on_buffers([((2,), "float32")])
    with pytest.raises(TraceError):
        eg.jit(lambda x: x if x.sum() > 0 else -x).on_buffers([((2,), "float32")])


def test_a_device_by_its_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the function makes is on "cuda", and "cuda:0" is the same device."""
    monkeypatch.setitem(base._OPEN, "cuda", Cuda("cuda", DryDriver()))
    for name in ("cuda", "cuda:0"):
        function = compile_buffers(
            lambda xs: [xs[0] + eg.ones((3,), device="cuda")], [Buffer((3,), eg.float32)], name
        )
        assert function.device == "cuda"

"""Parallel backward is the sequential one, bit for bit, and cannot hang; anomaly mode."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.autograd.modes import anomaly_enabled
from everygrad.errors import AnomalyError, ArgumentError, FunctionError, GradientError

pytestmark = pytest.mark.needs("float64")


def leaf(values: Any, device: str = "cpu", dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


@pytest.fixture(autouse=True)
def restless() -> Iterator[None]:
    """Threads take turns a thousand times as often as usual: what can interleave, does."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(usual)


# --- parallel ------------------------------------------------------------------------------------

BINARY = (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b, lambda a, b: eg.maximum(a, b))
UNARY = (eg.sin, eg.tanh, eg.exp, lambda a: a * 0.3, lambda a: a @ a.matrix_transpose() * 0.1,
         lambda a: eg.softmax(a), lambda a: a.sum(axis=0) + a)  # fmt: skip


def random_graph(seed: int, device: str, dtype: Any, size: int) -> tuple[Any, list[Any]]:
    """A root and its leaves: a random DAG in which every value is used again and again."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    leaves = [leaf(numbers.uniform(-1, 1, (3, 3)), device, dtype) for _ in range(4)]
    pool: list[Any] = list(leaves)
    for _ in range(size):
        if rng.random() < 0.6:
            new = rng.choice(BINARY)(rng.choice(pool), rng.choice(pool))
        else:
            new = rng.choice(UNARY)(rng.choice(pool))
        pool.append(eg.tanh(new))
    root = pool[-1].sum()
    for x in pool[4:]:
        root = root + (x * 1.0001).sum()
    return root, leaves


def bits(x: Any) -> Any:
    return None if x is None else values(x).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_parallel_equals_sequential_bit_for_bit(device: str, dtype: str) -> None:
    for seed in range(25 if dtype == "float32" else 4):
        want = None
        for workers in (1, 2, 3, 5, 8, 16):
            root, leaves = random_graph(seed, device, dtype, 30)
            root.backward(workers=workers)
            got = [bits(x.grad) for x in leaves]
            want = want or got
            assert got == want, f"graph {seed} on {workers} workers"


def test_parallel_wide_diamond(device: str) -> None:
    """200 float32 contributions to one leaf: in any other order the last bits would differ."""
    rng = np.random.default_rng(0)
    scales = rng.uniform(-1, 1, (200, 64)).astype(np.float32) * 10.0 ** rng.integers(
        -4, 4, (200, 1)
    )
    results = set()
    for workers in (1, 2, 4, 16, 16, 16):
        x = leaf(np.ones(64), device, "float32")
        total = None
        for s in scales:
            part = (eg.sin(x * eg.tensor(s, dtype="float32", device=device))).sum()
            total = part if total is None else total + part
        total.backward(workers=workers)
        results.add(bits(x.grad))
    assert len(results) == 1


def test_parallel_create_graph(device: str) -> None:
    found = []
    for workers in (1, 8):
        root, leaves = random_graph(7, device, "float64", 20)
        first = eg.autograd.grad(root, leaves, create_graph=True, workers=workers)
        second = eg.autograd.grad(sum((g * g).sum() for g in first), leaves, workers=workers)
        found.append([bits(g) for g in second])
    assert found[0] == found[1]


def test_parallel_inputs_and_none_gradients(device: str) -> None:
    """A result that no gradient reaches does not stop the others (FT-2)."""

    class Half(eg.Function):
        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, y: Any) -> Any:
            return g * 2, None

    for workers in (1, 4):
        x, y = leaf([1.0], device), leaf([1.0], device)
        Half.apply(eg.exp(x), eg.exp(y)).sum().backward(workers=workers)
        assert x.grad.item() == pytest.approx(2 * np.e)
        a, b = leaf([1.0], device), leaf([2.0], device)
        h = a * b
        eg.exp(h).sum().backward(inputs=[h, b], workers=workers)
        assert a.grad is None
        assert b.grad.item() == pytest.approx(h.grad.item())


class Fails(eg.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x + 1

    @staticmethod
    def vjp(g: Any, out: Any, x: Any) -> Any:
        raise ArithmeticError("no derivative today")


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_parallel_error_ends_at_once(device: str, workers: int) -> None:
    x = leaf(np.ones(8), device)
    fine = [leaf(np.ones(8), device) for _ in range(20)]
    root = Fails.apply(x).sum()
    for f in fine:
        root = root + eg.exp(f).sum()
    start = time.perf_counter()
    with pytest.raises(FunctionError, match=r"backward of Fails.*no derivative today"):
        root.backward(workers=workers)
    assert time.perf_counter() - start < 5
    assert all(f.grad is None for f in [x, *fine])
    y = leaf([3.0], device)  # the workers are alive and well
    (y * y).backward(workers=workers)
    assert y.grad.item() == 6.0


def test_parallel_leaves_no_thread_waiting(device: str) -> None:
    for _ in range(50):
        with pytest.raises(FunctionError):
            (Fails.apply(leaf(np.ones(4), device)) * leaf(np.ones(4), device)).sum().backward(
                workers=8
            )
    before = {*threading.enumerate()}
    for _ in range(50):
        (leaf([1.0], device) * 2).backward(workers=8)
    # the pool may have grown to its size; threads of other libraries come and go as they like
    ours = [t for t in threading.enumerate() if t.name.startswith("everygrad")]
    assert len(ours) <= max(len([t for t in ours if t in before]), 32)


def test_parallel_ten_thousand_small_graphs(device: str) -> None:
    """Lost wake-ups show themselves here: this hangs, or takes for ever (FT-3)."""
    x = leaf([2.0], device)
    start = time.perf_counter()
    for _ in range(10_000):
        y = x * x
        (y + y * x).backward(workers=16)
    took = time.perf_counter() - start
    assert x.grad.item() == 10_000 * (4.0 + 12.0)
    assert took < 60


def test_parallel_from_many_threads(device: str) -> None:
    """More passes than the pool has threads, each inside a hook of another."""
    results: list[float] = []

    def work(depth: int) -> None:
        x = leaf([1.0], device)
        y = x * 3
        if depth:

            def deeper(g: Any) -> None:
                with eg.enable_grad():
                    work(depth - 1)

            y.register_hook(deeper)
        (y * y + eg.exp(y)).backward(workers=16)
        results.append(x.grad.item())

    threads = [threading.Thread(target=work, args=(3,)) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
        assert not t.is_alive()
    assert len(results) == 48
    assert len(set(results)) == 1


def test_parallel_carries_modes(device: str) -> None:
    """What is in force where backward is called is in force in every worker (FT-15)."""
    seen: list[tuple[Any, int]] = []
    lock = threading.Lock()
    mine: ContextVar[str] = ContextVar("mine", default="lost")

    class Looks(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            time.sleep(0.002)  # so that every worker gets its share
            with lock:
                mode = (eg.is_grad_enabled(), anomaly_enabled(), mine.get())
                seen.append((mode, threading.get_ident()))
            return g * 2

    for create in (False, True):
        seen.clear()
        x = leaf([1.0], device)
        root = sum(Looks.apply(x * float(i)) for i in range(24))
        token = mine.set("kept")
        with eg.detect_anomaly():
            root.sum().backward(workers=8, create_graph=create)
        mine.reset(token)
        assert {mode for mode, _ in seen} == {(create, True, "kept")}
        assert len({thread for _, thread in seen}) > 1


def test_parallel_random_numbers_in_checkpoints(device: str) -> None:
    """Many checkpoints with dropout, recomputed at the same time, each from its own state."""
    found = []
    for workers in (1, 16):
        eg.manual_seed(5)
        x = leaf(np.ones(64), device)
        parts = [
            eg.checkpoint(lambda v, k=k: eg.exp(eg.dropout(v * float(k), 0.5)), x).sum()
            for k in range(12)
        ]
        sum(parts[1:], parts[0]).backward(workers=workers)
        found.append(bits(x.grad))
        state = eg.default_generator.get_state().tolist()
        found.append(state)
    assert found[:2] == found[2:]


def test_parallel_hooks_run_once(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    parts = [x * float(i) for i in range(10)]
    calls: list[Any] = []
    for p in [x, *parts]:
        p.register_hook(lambda g: calls.append(g.tolist()))
    ready: list[Any] = []
    with eg.leaf_ready_hook(ready.append):
        sum(parts[1:], parts[0]).sum().backward(workers=8)
    assert len(calls) == 11
    assert calls.count([45.0, 45.0]) == 1
    assert len(ready) == 1
    assert ready[0] is x


@pytest.mark.parametrize("workers", [0, -1, 2.5, None, "2"])
def test_workers_must_be_a_positive_integer(device: str, workers: Any) -> None:
    x = leaf([1.0], device)
    with pytest.raises(ArgumentError, match="workers must be a positive integer, got"):
        (x * 2).backward(workers=workers)
    assert x.grad is None


# --- anomaly mode --------------------------------------------------------------------------------


def line_of(text: str) -> int:
    """The line of this file that has `text` in it."""
    with open(__file__) as source:
        (found,) = [i for i, line in enumerate(source, 1) if text in line and "line_of" not in line]
    return found


@pytest.mark.parametrize("workers", [1, 4])
def test_anomaly_names_op_and_line(device: str, workers: int) -> None:
    x = leaf([0.0, 1.0], device)
    other = leaf([1.0, 1.0], device)
    with eg.detect_anomaly():
        y = eg.sqrt(x)  # the culprit
        z = (y * 0.0 + other).sum()
        with pytest.raises(AnomalyError) as caught:
            z.backward(workers=workers)
    message = str(caught.value)
    assert "backward of sqrt: the gradient of input 0, shape [2], has NaN" in message
    assert f"{__file__}:{line_of('# the culprit')}" in message
    assert x.grad is None
    assert other.grad is None


def test_anomaly_looks_inside_transformations(device: str) -> None:
    with eg.detect_anomaly():
        x = eg.tensor([4.0, 1.0], dtype="float64", device=device)
        np.testing.assert_array_equal(values(eg.jacobian(eg.sqrt)(x)), np.diag([0.25, 0.5]))
        with pytest.raises(AnomalyError, match="backward of sqrt"):
            eg.jacobian(lambda v: eg.sqrt(v) * 0.0)(x * 0.0)


def test_anomaly_names_the_line_of_an_error_in_a_derivative(device: str) -> None:
    class Bad(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            raise ValueError("broken")

    x = leaf([1.0], device)
    with eg.detect_anomaly():
        y = Bad.apply(x)  # the call
        with pytest.raises(GradientError) as caught:
            y.backward()
    assert f"recorded at {__file__}:{line_of('# the call')}" in str(caught.value)
    assert "ValueError: broken" in str(caught.value)


def test_anomaly_costs_nothing_afterwards(device: str) -> None:
    x = leaf([0.0], device)
    with eg.detect_anomaly():
        pass
    (eg.sqrt(x) * 0.0).sum().backward()
    assert np.isnan(values(x.grad)).all()

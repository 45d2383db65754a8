"""Faults found in other autograd engines, FT-1 to FT-16 and NR-1 to NR-15: the engine."""

# ruff: noqa: N802  # a test bears the id of its fault

from __future__ import annotations

import threading
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import (
    AnomalyError,
    DeviceError,
    FreedGraphError,
    FunctionError,
    GradientError,
)

pytestmark = pytest.mark.needs("float64")


def leaf(values: Any, device: str, dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-2, 2, shape)


def deep(x: Any, length: int) -> Any:
    for _ in range(length):
        x = -x
    return x


def test_SH_5_NR_1_FT_16_deep_graphs(device: str) -> None:
    """A chain of 1,000,000 with its time is in test_engine_memory.py; this one is in every mode."""
    x = leaf(1.0, device)
    y = deep(x, 100_000)
    y.backward()
    del y
    assert x.grad.item() == 1.0
    deep(x, 100_000)  # freed without ever having been gone through
    z = deep(x, 20_000)
    (g,) = eg.autograd.grad(z, x, create_graph=True, workers=2)
    assert g.item() == 1.0


class Explodes(eg.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def vjp(g: Any, out: Any, x: Any) -> Any:
        raise SystemError("dead")


class Stops(eg.Function):
    @staticmethod
    def forward(x: Any, y: Any) -> Any:
        return x + y

    @staticmethod
    def vjp(g: Any, out: Any, x: Any, y: Any) -> Any:
        return g, None


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_FT_1_2_3_4_parallel_backward_never_hangs(device: str, workers: int) -> None:
    done = threading.Event()

    def work() -> None:
        x = leaf(numbers(4), device)
        with pytest.raises(FunctionError, match=r"backward of Explodes.*SystemError: dead"):  # FT-1
            (eg.exp(Explodes.apply(x)) + eg.sin(x)).sum().backward(workers=workers)
        y = leaf(numbers(4), device)  # FT-2: eg.exp(y) gets no gradient
        Stops.apply(eg.sin(x), eg.exp(y)).sum().backward(workers=workers)
        for _ in range(500):  # FT-3
            (x * x + x).sum().backward(workers=workers)

        def die(g: Any) -> None:
            raise SystemExit  # FT-4: takes a worker down with it

        y.register_hook(die)
        with pytest.raises(SystemExit):
            (y * 2 + eg.exp(x)).sum().backward(workers=workers)
        (x * 2).sum().backward(workers=workers)
        done.set()

    thread = threading.Thread(target=work, daemon=True)
    start = time.perf_counter()
    thread.start()
    assert done.wait(60), "hangs"
    assert time.perf_counter() - start < 60


def test_FT_5_hooks_see_the_sum_once_everywhere(device: str) -> None:
    x = leaf(2.0, device)
    h = x * x
    root = h + h * h + eg.exp(h * 0)
    seen: list[tuple[str, float]] = []
    for name, t in (("x", x), ("h", h), ("root", root)):
        t.register_hook(lambda g, name=name: seen.append((name, g.item())))
    root.backward()
    assert seen == [("root", 1.0), ("h", 9.0), ("x", 36.0)]


def test_FT_7_leaf_and_constant_roots(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    seed = eg.tensor([3.0, 4.0], dtype="float64", device=device)
    x.backward(seed)
    assert x.grad.tolist() == [3.0, 4.0]
    for root in (seed.sum(), (x.detach() * 2).sum(), eg.argmax(x)):
        with pytest.raises(GradientError, match="the root does not depend on any tensor"):
            root.backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_FT_8_9_10_views_and_halves_in_diamonds(device: str, dtype: str) -> None:
    """Contributions that are transposed, sliced, flipped and expanded views of one another."""
    x = leaf(np.arange(9.0).reshape(3, 3), device, dtype)
    w = eg.tensor(np.arange(9.0).reshape(3, 3) * 2, dtype=dtype, device=device)
    out = (
        (x * w).sum()
        + (x.permute_dims((1, 0)) * w).sum()
        + (x[::2, 1:] * w[::2, 1:]).sum()
        + (x.flip(axis=0) * w).sum()
        + (x[0].broadcast_to((3, 3)) * w).sum()
        + x.reshape(9)[4:7].sum()
    )
    out.backward()
    a = np.arange(9.0).reshape(3, 3) * 2
    want = a + a.T + a[::-1]
    want[::2, 1:] += a[::2, 1:]
    want[0] += a.sum(axis=0)
    want.reshape(9)[4:7] += 1
    assert str(x.grad.dtype) == dtype
    np.testing.assert_array_equal(values(x.grad).astype(float), want)


def returns(result: Any) -> Any:
    class Custom(eg.Function):
        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, y: Any) -> Any:
            return result(g)

    return Custom


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda g: g, "vjp returned 1 gradients for 2 inputs"),
        (lambda g: (g, g, g), "vjp returned 3 gradients for 2 inputs"),
        (lambda g: (g, g.sum()), r"gradient 1 is float64\[\] on {}, its input is float64\[2\]"),
        (lambda g: (g.astype("float32"), g), r"gradient 0 is float32\[2\] on {}"),
        (lambda g: (g, 3.0), "gradient 1 is float, not a Tensor"),
    ],
)
def test_FT_11_NR_5_wrong_gradients_of_custom_functions(
    device: str, result: Any, message: str
) -> None:
    x, y = leaf([1.0, 2.0], device), leaf([1.0, 2.0], device)
    with pytest.raises(FunctionError, match=f"backward of Custom.*{message.format(device)}"):
        returns(result).apply(x, y).sum().backward()
    assert x.grad is None
    assert y.grad is None


def test_FT_12_seed_on_another_device(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    seed = eg.ones((2,), dtype="float64", device="null")
    with pytest.raises(DeviceError, match=f"gradient is on null, the root on {device}"):
        (x * 2).backward(seed)
    with pytest.raises(DeviceError, match=f"gradient is on null, the root on {device}"):
        eg.autograd.grad(x * 2, x, seed)


@pytest.mark.parametrize("workers", [1, 4])
def test_FT_13_hooks_may_add_and_remove_hooks(device: str, workers: int) -> None:
    x = leaf(1.0, device)
    calls: list[str] = []
    handles: dict[str, Any] = {}

    def second(g: Any) -> None:
        calls.append("second")

    def first(g: Any) -> None:
        calls.append("first")
        handles["first"].remove()
        handles["second"] = x.register_hook(second)

    handles["first"] = x.register_hook(first)
    for _ in range(3):
        (x * 2).backward(workers=workers)
    assert calls == ["first", "second", "second"]


def test_FT_14_second_backward_raises(device: str) -> None:
    x = leaf(2.0, device)
    for y in (x + 1.0, x * x, eg.exp(x), x.reshape(1)):
        x.grad = None
        y.backward()
        once = x.grad.item()
        with pytest.raises(FreedGraphError, match="pass retain_graph=True to the earlier one"):
            y.backward()
        with pytest.raises(FreedGraphError):
            (y * 2).backward()
        assert x.grad.item() == once


def test_FT_15_workers_keep_modes_and_sums(device: str) -> None:
    """More of it in test_engine_parallel.py."""
    seen: list[bool] = []

    class Looks(eg.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 1.0

        @staticmethod
        def vjp(g: Any, out: Any, x: Any) -> Any:
            seen.append(eg.is_grad_enabled())
            return g * 1.0

    found = []
    for workers in (1, 2, 8, 16):
        eg.manual_seed(0)
        x = leaf(numbers(50), device, "float32")
        y = sum(
            eg.checkpoint(lambda v, k=k: Looks.apply(eg.dropout(eg.sin(v * k), 0.5)), x).sum()
            for k in (0.1, 1.0, 3.0, 1e4)
        )
        y.backward(workers=workers)
        found.append(values(x.grad).tobytes())
    assert len(set(found)) == 1
    assert not any(seen)
    with eg.detect_anomaly(), pytest.raises(AnomalyError, match="backward of sqrt"):
        (eg.sqrt(leaf([0.0], device)) * 0.0).sum().backward(workers=4)


# --- NR ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 4])
def test_NR_3_leaf_hook_for_exactly_the_parameters(device: str, workers: int) -> None:
    w, b = leaf(numbers(3, 3), device), leaf(numbers(3), device)
    unused = leaf([1.0], device)
    data = eg.tensor(numbers(2, 3), device=device)
    ready: list[Any] = []
    loss = eg.mse_loss(data @ w + b * 2.0, eg.zeros((2, 3), dtype="float64", device=device))
    with eg.leaf_ready_hook(ready.append):
        loss.backward(workers=workers)
    assert len(ready) == 2
    assert {id(t) for t in ready} == {id(w), id(b)}
    assert unused.grad is None


def test_NR_6_interior_gradients_are_dropped(device: str) -> None:
    size, layers = 20_000, 100
    x = leaf(np.full(size, 0.5), device)

    def run() -> None:
        y = x
        for _ in range(layers):
            y = -y  # saves nothing
        y.sum().backward()
        x.grad = None

    run()
    tracemalloc.start(1)
    try:
        run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * size * 8 + 1_000_000


@pytest.mark.parametrize("weight_first", [True, False])
def test_NR_7_leaf_hooks_come_early(device: str, weight_first: bool) -> None:
    weights = [leaf(np.eye(2) * (i + 2), device) for i in range(3)]
    events: list[Any] = []
    h = x = leaf(np.ones((2, 2)), device)
    for i, w in enumerate(weights):
        h = w @ h if weight_first else h @ w
        h.register_hook(lambda g, i=i: events.append(f"into {i}"))
    places = {id(w): i for i, w in enumerate(weights)}
    with eg.leaf_ready_hook(lambda t: events.append(places.get(id(t), "x"))):
        h.sum().backward()
    # the first product hands over two leaves, in the order of its operands
    want = ["into 2", 2, "into 1", 1, "into 0"]
    assert events[:5] == want
    assert sorted(map(str, events[5:])) == ["0", "x"]
    assert x.grad is not None


def test_NR_10_clone_reaches_its_source(device: str) -> None:
    for value in (3.0, [3.0]):
        x = leaf(value, device)
        (x.clone() ** 2).backward()
        assert x.grad.tolist() == (6.0 if value == 3.0 else [6.0])
    copy = x.detach().clone()
    copy += 1
    assert x.tolist() == [3.0]


def test_NR_11_checkpoint(device: str) -> None:
    w = leaf([2.0], device)

    def f(a: Any, b: Any) -> Any:
        return eg.dropout(eg.exp(a * b * w), 0.5).sum()

    found = []
    for run in (eg.checkpoint, lambda f, *args: f(*args)):
        eg.manual_seed(8)
        x = leaf(np.linspace(0.1, 1, 20), device)
        w.grad = None
        y = run(f, x, x)  # a repeated input and a captured one
        (g,) = eg.autograd.grad(y, x, create_graph=True)
        y2 = (g * g).sum() + run(f, x, x)
        y2.backward()
        found.append((values(g), values(x.grad), values(w.grad)))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_NR_15_scalars_and_dropout_of_nothing_keep_the_graph(device: str) -> None:
    x = leaf([2.0], device)
    for out, slope in (
        (eg.dropout(x, 0.0), 1.0), (eg.dropout(x, 0.5, training=False), 1.0), (x + 1, 1.0),
        (1 + x, 1.0), (x - 1, 1.0), (1 - x, -1.0), (x * 3, 3.0), (3 * x, 3.0), (x / 2, 0.5),
        (2 / x, -0.5), (x**2, 4.0), (2**x, 4 * np.log(2)), (x % 5, 1.0), (-x, -1.0), (x * 0, 0.0),
        (eg.dropout(x, 1.0), 0.0), (x.astype("float64"), 1.0), (x.to(device), 1.0), (x[:], 1.0),
        (x.reshape(1), 1.0), (np.float64(3) * x, 3.0), (x * np.array([3.0]), 3.0),
    ):  # fmt: skip
        assert out.requires_grad
        (g,) = eg.autograd.grad(out, x)
        assert g.item() == pytest.approx(slope)


# --- also seen -----------------------------------------------------------------------------------


def test_also_seen_indices_above_2_to_the_24(device: str) -> None:
    """Indices that went through float32 would be rounded to even ones."""
    n = 2**24 + 5
    x = eg.zeros((n,), dtype="uint8", device=device)
    x[n - 2] = 7
    assert x.argmax().item() == n - 2
    index = eg.tensor([2**24 + 1, n - 2, n - 1], device=device)
    assert x[index].tolist() == [0, 7, 0]
    assert x.take(index).tolist() == [0, 7, 0]
    assert x.gather(index).tolist() == [0, 7, 0]
    assert eg.arange(2**24 - 1, 2**24 + 3, device=device).tolist() == [
        2**24 + k for k in range(-1, 3)
    ]
    added = x.index_add(index, eg.tensor([1, 1, 1], dtype="uint8", device=device))
    assert added[2**24 :].tolist() == [0, 1, 0, 8, 1]
    assert added.astype("int64").sum().item() == 10


def test_also_seen_promised_devices_are_opened(device: str) -> None:
    """A device that EVERYGRAD_TEST_DEVICES names and that is not there: a failure."""
    x = eg.ones((3,), device=device)
    assert x.device == device
    assert (x * 2).device == device  # nothing falls back to the CPU unseen
    assert eg.exp(x).sum().device == device


def test_also_seen_unknown_devices_are_refused() -> None:
    for name in ("tpu", "vulkan"):
        with pytest.raises(DeviceError, match=f"device '{name}' is not available"):
            eg.ones((3,), device=name)

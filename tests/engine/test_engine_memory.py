"""Time and memory: long chains, wide sharing, no cycles, nothing kept longer than it is needed."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.autograd.graph import Node
from everygrad.core.tensor import Wrapped

pytestmark = pytest.mark.needs("float64")


def leaf(values: Any, device: str = "cpu", dtype: Any = "float32") -> Any:
    return eg.tensor(values, dtype=dtype, device=device, requires_grad=True)


@contextmanager
def shallow(limit: int = 120) -> Iterator[None]:
    """Anything that recurses over the graph fails here."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)


# --- long chains ---------------------------------------------------------------------------------


def chain(device: str, length: int) -> tuple[float, float, float]:
    """Seconds to build, to go back through, and to delete a chain of `length` ops.

    Of the processor's time: others may be using the machine.
    """
    x = leaf(1.0, device)
    one = eg.ones((), device=device)
    clock = time.process_time
    with shallow():
        start = clock()
        y = x
        for _ in range(length // 2):
            y = -y
            y = y * one
        built = clock()
        y.backward()
        done = clock()
        ref = weakref.ref(y)
        del y
        deleted = clock()
    assert ref() is None
    assert x.grad.item() == 1.0
    return built - start, done - built, deleted - done


def test_chain_of_a_million_ops(device: str) -> None:
    times = chain(device, 1_000_000)
    print("1,000,000 ops: build {:.2f} s, backward {:.2f} s, delete {:.2f} s".format(*times))
    assert sum(times) < (20 if device == "cpu" else 60)  # a launch alone takes microseconds


def test_chain_is_linear_in_its_length(device: str) -> None:
    chain(device, 10_000)  # warm
    short = min(sum(chain(device, 100_000)) for _ in range(2))
    long = min(sum(chain(device, 400_000)) for _ in range(2))
    assert long < 13 * short  # quadratic would be 16 times; beyond the caches an op takes longer


def test_chain_dropped_without_backward(device: str) -> None:
    x = leaf(1.0, device)
    with shallow():
        y = x
        for _ in range(200_000):
            y = y + x
        ref = weakref.ref(y)
        del y
    assert ref() is None


@pytest.mark.parametrize(
    ("name", "length"),
    [("anomaly", 20_000), ("create_graph", 20_000), ("workers", 20_000), ("checkpoint", 5_000),
     ("retain", 50_000), ("inputs", 50_000), ("grad", 20_000)],
)  # fmt: skip
def test_chain_without_recursion_in_every_mode(device: str, name: str, length: int) -> None:
    x = leaf(1.0, device)

    def build(x: Any) -> Any:
        y = x
        for _ in range(length):
            y = y * 1.0
        return y

    with shallow(200):
        if name == "anomaly":
            with eg.detect_anomaly():
                build(x).backward()
        elif name == "create_graph":
            build(x).backward(create_graph=True)
            x.grad.backward(inputs=[x]) if x.grad.requires_grad else None
        elif name == "workers":
            build(x).backward(workers=4)
        elif name == "checkpoint":
            eg.checkpoint(build, x).backward()
        elif name == "retain":
            y = build(x)
            y.backward(retain_graph=True)
            x.grad = None
            y.backward()
        elif name == "inputs":
            build(x).backward(inputs=[x])
        else:
            assert eg.grad(build)(x.detach()).item() == 1.0
            return
    assert x.grad.item() >= 1.0


def test_sixty_four_doublings(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One visit to each node; a visit for each path would never end (TL-19)."""
    x = leaf(1.0, device, "float64")
    y = x
    for _ in range(64):
        y = y + y
    op, visits = y._node.op, []
    vjp = op.vjp
    monkeypatch.setattr(op, "vjp", lambda *given: (visits.append(1), vjp(*given))[1])
    y.backward()
    assert len(visits) == 64
    assert x.grad.item() == 2.0**64


def test_sixty_four_doublings_second_order(device: str) -> None:
    x = leaf(1.0, device, "float64")
    y = x * x
    for _ in range(64):
        y = y + y
    (g,) = eg.autograd.grad(y, x, create_graph=True)
    (h,) = eg.autograd.grad(g, x)
    assert h.item() == 2.0**65


# --- no cycles, nothing left over ----------------------------------------------------------------


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def live_buffers() -> tuple[int, int]:
    """How many array buffers NumPy has allocated and not freed, and their bytes."""
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    stats = tracemalloc.take_snapshot().filter_traces([domain]).statistics("filename")
    return sum(s.count for s in stats), sum(s.size for s in stats)


class Step:
    """A training step with everything in it that could keep something alive."""

    def __init__(self, device: str) -> None:
        rng = np.random.default_rng(0)
        self.device = device
        self.w1 = leaf(rng.normal(size=(8, 16)) * 0.1, device)
        self.w2 = leaf(rng.normal(size=(16, 4)) * 0.1, device)
        self.x = eg.tensor(rng.normal(size=(5, 8)), dtype="float32", device=device)
        self.norms: list[float] = []
        self.w1.register_hook(lambda g: g * 0.99)
        self.w2.register_post_accumulate_grad_hook(self.note)

    def note(self, p: Any) -> None:
        self.norms[:] = [p.grad.abs().max().item()]

    def forward(self, x: Any) -> Any:
        h = eg.checkpoint(lambda v: eg.dropout(eg.gelu(v @ self.w1), 0.1), x)
        h.register_hook(lambda g: None)
        h.retain_grad()
        return eg.softmax(h @ self.w2)

    def __call__(self) -> None:
        loss = (self.forward(self.x) ** 2).sum()
        g1, g2 = eg.autograd.grad(loss, [self.w1, self.w2], create_graph=True)
        total = loss + 0.1 * (g1 * g1).sum() + 0.1 * (g2 * g2).sum()
        total.backward(create_graph=True)
        with eg.no_grad():
            for p in (self.w1, self.w2):
                p -= 0.01 * p.grad
                p.grad = None
        eg.hvp(
            lambda v: (v @ self.w2.detach()).sum() ** 2, (self.w1.detach(),), (self.w1.detach(),)
        )
        eg.jacobian(lambda v: eg.tanh(v).sum(axis=1))(self.w2.detach()[:2])
        y = self.x * 1.0
        y[0] = 3.0
        y += 1.0


def live_objects() -> tuple[int, int]:
    """Tensors, payloads and nodes that are alive; blocks of memory small arrays live in."""
    kinds = (eg.Tensor, Node, Wrapped)
    # by type(): asking some of PyTorch's objects for their class gives a warning
    count = sum(issubclass(type(o), kinds) for o in gc.get_objects())
    gc.collect()  # after the count: Python's own lists of freed tuples are blocks too
    return count, sys.getallocatedblocks()


def test_live_objects_after_1000_steps_equal_those_after_10(device: str) -> None:
    step = Step(device)
    with no_collector():
        for _ in range(10):
            step()
        after_10 = live_objects()
        for _ in range(990):
            step()
        after_1000 = live_objects()
    assert after_1000[0] == after_10[0]
    assert after_1000[1] - after_10[1] < 800  # one leaked array a step would be 990


def test_live_buffers_stay_the_same(device: str) -> None:
    """Exactly, to the byte, as NumPy's own bookkeeping has it."""
    step = Step(device)
    tracemalloc.start(1)
    try:
        with no_collector():
            for _ in range(10):
                step()
            before = live_buffers()
            for _ in range(30):
                step()
            assert live_buffers() == before
    finally:
        tracemalloc.stop()


def garbage_of(run: Callable[[], Any]) -> list[Any]:
    """What only the garbage collector could free after `run`: the members of cycles."""
    run()
    run()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        with_cycles = gc.garbage
        with_cycles.clear()
        gc.disable()
        run()
        gc.collect()
        return [o for o in with_cycles if issubclass(type(o), eg.Tensor | Node)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


def test_no_cycles(device: str) -> None:
    assert garbage_of(Step(device)) == []


SITUATIONS: dict[str, Callable[[str], Any]] = {
    "create_graph into .grad": lambda d: (leaf([2.0], d) ** 3).backward(create_graph=True),
    "workers": lambda d: eg.exp(leaf([2.0], d) * leaf([3.0], d)).backward(workers=4),
    "anomaly": lambda d: eg.detect_anomaly()(lambda: eg.exp(leaf([2.0], d)).backward())(),
    "never differentiated": lambda d: eg.checkpoint(eg.exp, leaf([2.0], d)) * 2,
    "nested checkpoint": lambda d: eg.checkpoint(
        lambda v: eg.checkpoint(eg.exp, v * 2) * 3, leaf([2.0], d)
    ).backward(),
    "hessian": lambda d: eg.hessian(lambda v: eg.exp(v).sum())(eg.ones((3,), device=d)),
    "vmap of grad": lambda d: eg.vmap(eg.grad(lambda v: eg.sin(v).sum()))(
        eg.ones((3, 2), device=d)
    ),
    "vjp kept": lambda d: eg.vjp(eg.exp, eg.ones((3,), device=d))[1](eg.ones((3,), device=d)),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_no_cycles_in(name: str, device: str) -> None:
    assert garbage_of(lambda: SITUATIONS[name](device)) == []


def test_graph_is_freed_with_its_root(device: str) -> None:
    x = leaf(np.ones(1000), device)
    with no_collector():
        y = eg.exp(x)
        payload = weakref.ref(y._data)
        z = eg.sin(y)
        del y
        assert payload() is not None  # saved for the derivative
        del z
        assert payload() is None


def test_saved_values_are_freed_as_the_pass_goes(device: str) -> None:
    """Also while the root is still alive: what a node saved goes once it has been used."""
    x = leaf(np.ones(1000), device)
    y = eg.exp(x)
    payload = weakref.ref(y._data)
    z = eg.sin(y).sum()
    del y
    z.backward()
    assert payload() is None


# --- flat and low --------------------------------------------------------------------------------


def test_1e5_steps_under_no_grad_are_flat(device: str) -> None:
    """A moving average of something that requires grad (SH-22)."""
    x = leaf(np.ones(4), device)
    average = eg.zeros((4,), device=device)

    def run(steps: int) -> None:
        nonlocal average
        with eg.no_grad():
            for _ in range(steps):
                average = average * 0.999 + x * 0.001

    run(100)
    gc.collect()
    before = live_objects()
    run(100_000)
    after = live_objects()
    assert after[0] == before[0]
    assert after[1] - before[1] < 200
    assert not average.requires_grad


def peak_of(run: Callable[[], Any]) -> int:
    """Bytes allocated at the worst moment, above those at the start."""
    run()
    gc.collect()
    tracemalloc.start(1)
    try:
        base = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - base
    finally:
        tracemalloc.stop()


def test_interior_gradients_are_freed(device: str) -> None:
    """100 layers that save one array each: going back adds a few arrays, not another 100 (NR-6)."""
    size = 25_000  # below what the pool recycles: every buffer is seen by tracemalloc
    one = size * 8
    x = leaf(np.full(size, 0.5), device, "float64")

    def forward() -> Any:
        y = x
        for _ in range(100):
            y = eg.tanh(y)
        return y.sum()

    def both() -> None:
        forward().backward()
        x.grad = None

    kept = peak_of(forward)
    assert kept < 106 * one
    assert peak_of(both) < kept + 8 * one


def test_sums_are_freed_too(device: str) -> None:
    """60 values, each used twice, that nothing saves: their summed gradients come and go."""
    size = 25_000
    x = leaf(np.full(size, 0.5), device, "float64")

    def both() -> None:
        y = x
        for _ in range(60):
            y = y * 0.5 + y * 0.25
        y.sum().backward()
        x.grad = None

    assert peak_of(both) < 12 * size * 8


def test_sums_of_contributions_do_not_pile_up(device: str) -> None:
    size = 25_000
    one = size * 8
    x = leaf(np.full(size, 0.5), device, "float64")

    def both() -> None:
        parts = [(x * float(k)).sum() for k in range(50)]
        sum(parts[1:], parts[0]).backward()
        x.grad = None

    assert peak_of(both) < 60 * one  # x is saved once; each part and its gradient come and go


# --- gradients that stay -------------------------------------------------------------------------

LAYERS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "linear": (lambda: eg.nn.Linear(64, 8), (4096, 64)),
    "conv": (lambda: eg.nn.Conv2d(4, 8, 3), (8, 4, 64, 64)),
    "batch norm": (lambda: eg.nn.BatchNorm2d(4), (8, 4, 64, 64)),
    "batch norm, 1d": (lambda: eg.nn.BatchNorm1d(16), (16384, 16)),
    "group norm": (lambda: eg.nn.GroupNorm(2, 4), (8, 4, 64, 64)),
    "layer norm": (lambda: eg.nn.LayerNorm(16), (16384, 16)),
    "rms norm": (lambda: eg.nn.RMSNorm(16), (16384, 16)),
    "prelu": (lambda: eg.nn.PReLU(4), (8, 4, 64, 64)),
    "lstm": (lambda: eg.nn.LSTM(8, 8), (512, 32, 8)),
    "gru": (lambda: eg.nn.GRU(8, 8), (512, 32, 8)),
    "transformer": (lambda: eg.nn.TransformerEncoderLayer(16, 2, 32, 0.0), (256, 32, 16)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_keep_no_larger_array_alive(name: str) -> None:
    """A parameter's gradient may be a part of what a kernel made, not of what is far larger."""
    make, shape = LAYERS[name]
    layer = make()
    x = eg.randn(shape).requires_grad_()
    out = layer(x)
    (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    (alone,) = eg.autograd.grad(x[:1].square().sum(), x)
    for grad in [x.grad, alone, *(p.grad for p in layer.parameters())]:
        held = grad._data if grad._data.base is None else grad._data.base
        assert held.nbytes <= 2 * grad._data.nbytes + 2**16

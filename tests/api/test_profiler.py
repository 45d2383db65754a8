"""The profiler: what it counts, where it looks, what it writes."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import errors
from everygrad.compiler import costs
from everygrad.core.context import fast_limit, profiling
from everygrad.ops.record.spec import REGISTRY
from everygrad.tools import Profile, profile


def named(p: Profile) -> dict[str, Any]:
    return {row.name: row for row in p.rows()}


def test_ops_with_their_bytes_and_operations(device: str) -> None:
    x, w = eg.ones((4, 8)).to(device), eg.ones((8, 16)).to(device)
    with profile() as p:
        y = eg.exp(x @ w)
        z = y.reshape(-1)
        eg.exp(z)
    rows = named(p)
    assert rows["exp"].calls == 2
    assert rows["exp"].nbytes == 2 * 2 * 64 * 4
    assert rows["exp"].flops == 128
    assert rows["matmul"].flops == 2 * 4 * 8 * 16
    assert rows["matmul"].nbytes == 4 * (32 + 128 + 64)
    assert rows["reshape"].nbytes == rows["reshape"].launches == 0
    assert rows["exp"].launches == 2
    assert all(r.device == device and r.kind == "op" and r.seconds > 0 for r in rows.values())
    assert sum(e.seconds for e in p.events) <= p.seconds
    if device != "cpu":
        assert any("exp" in name for e in p.events for name in e.kernels)


def test_backward_and_optimisers_are_seen() -> None:
    w = eg.ones((3, 3), requires_grad=True)
    opt = eg.optim.SGD([w], lr=0.1)
    with eg.tools.profile() as p:
        eg.tanh(w @ w).sum().backward()
        opt.step()
    rows = named(p)
    assert {"matmul", "tanh", "tanh.d0", "linear", "linear_weight", "sgd"} <= rows.keys()
    assert {rows[name].flops for name in ("matmul", "linear", "linear_weight")} == {54}


def test_nothing_is_left_behind() -> None:
    before = fast_limit()
    with pytest.raises(ZeroDivisionError), profile() as p:
        raise ZeroDivisionError
    eg.ones((3,)) + 1.0
    assert fast_limit() == before
    assert profiling.get() is None
    assert p.events == []
    assert p.seconds > 0
    with pytest.raises(errors.ArgumentError, match="open already"), p, p:
        pass


def test_results_are_those_without_a_profile(device: str) -> None:
    x = eg.tensor(np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)).to(device)
    w = eg.ones((7, 3)).to(device)

    def f(x: Any) -> Any:
        return eg.log_softmax(eg.gelu(x @ w)), (x * x).sum()

    compiled = eg.jit(f)
    want = [t.numpy() for t in compiled(x)]
    with profile():
        found = [t.numpy() for t in compiled(x)]
        eager = [t.numpy() for t in f(x)]
    for a, b, c in zip(want, found, eager, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-5)


def test_compiled_functions_kernel_by_kernel(device: str) -> None:
    x, w = eg.ones((16, 32)).to(device), eg.ones((32, 8)).to(device)

    def layer(x: Any) -> Any:
        return eg.relu(x @ w), eg.exp(x.sum(axis=0))

    compiled = eg.jit(layer)
    compiled(x)
    with profile() as p:
        compiled(x)
        compiled(x)
    rows = p.rows()
    whole = [r for r in rows if r.kind == "jit"]
    kernels = [r for r in rows if r.kind == "kernel"]
    assert len(whole) == 1
    assert whole[0].name.endswith("layer")
    assert whole[0].calls == 2
    assert whole[0].flops >= 2 * 2 * 16 * 32 * 8
    assert whole[0].nbytes > 0
    assert len(kernels) >= 2
    assert sum(r.launches for r in kernels) == whole[0].launches
    assert sum(r.seconds for r in kernels) == pytest.approx(whole[0].seconds)
    assert any("matmul" in r.name for r in kernels)
    if device == "cpu":
        product = next(r for r in kernels if "matmul" in r.name)
        assert product.flops == 2 * 2 * 16 * 32 * 8


def test_steps_that_numpy_does_and_linked_ones_come_out_right() -> None:
    rng = np.random.default_rng(1)
    x = eg.tensor(rng.standard_normal((64, 48)).astype(np.float32))
    m = eg.nn.Sequential(eg.nn.Linear(48, 96), eg.nn.GELU(), eg.nn.LayerNorm(96))
    w = eg.tensor(rng.standard_normal((96, 4))).astype("float32")

    def f(x: Any) -> Any:
        hidden = m(x)
        return hidden @ w, eg.argmax(hidden, axis=1), eg.prod(hidden, axis=1)

    compiled = eg.jit(f)
    want = [t.detach().numpy() for t in compiled(x)]
    with profile() as p:
        found = [t.detach().numpy() for t in compiled(x)]
    for a, b in zip(want, found, strict=True):
        np.testing.assert_array_equal(a, b)
    steps = [e for e in p.events if e.kind == "kernel"]
    assert sum(e.launches for e in steps) == len(compiled.lower(x).plan.steps())


def test_backward_of_a_compiled_function() -> None:
    w = eg.ones((4, 4), requires_grad=True)
    f = eg.jit(lambda x: eg.exp(x @ w).sum())
    out = f(eg.ones((2, 4)))
    with profile() as p:
        out.backward()
    assert any(r.kind == "jit" and r.name.endswith("backward") for r in p.rows())
    assert w.grad is not None


def test_another_thread_is_not_seen() -> None:
    with profile() as p:
        thread = threading.Thread(target=lambda: eg.exp(eg.ones((3,))))
        thread.start()
        thread.join()
    assert p.events == []


def test_table_and_trace(tmp_path: Path) -> None:
    with profile() as p:
        for _ in range(3):
            eg.exp(eg.ones((256, 256)))
        eg.ones((8, 8)) @ eg.ones((8, 8))
    lines = str(p).splitlines()
    assert lines[0].split()[:3] == ["device", "kind", "name"]
    assert any(line.split()[:4] == ["cpu", "op", "exp", "3"] for line in lines)
    assert lines[-1].startswith(f"{sum(r.seconds for r in p.rows()) * 1e3:.3f} ms in 4 launches")
    assert "... and 1 more" in p.table(limit=1)
    assert "4 events" in repr(p)
    row = named(p)["exp"]
    assert row.bandwidth == pytest.approx(row.nbytes / row.seconds)
    assert row.rate == pytest.approx(3 * 256 * 256 / row.seconds)
    p.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in spans] == ["exp", "exp", "exp", "matmul"]
    assert spans[0]["args"]["bytes"] == 2 * 4 * 256 * 256
    assert spans[0]["args"]["inputs"] == "float32[256, 256]"
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(spans))
    assert {"name": "cpu"} in [e["args"] for e in trace["traceEvents"] if e["ph"] == "M"]


def test_cuda_kernels_are_named_without_a_gpu() -> None:
    with profile() as p:
        eg.exp(eg.ones((300,)).to("cuda:dry"))
    row = named(p)["exp"]
    assert (row.device, row.launches) == ("cuda:dry", 1)
    assert len(next(e for e in p.events if e.name == "exp").kernels) == 1


def test_costs() -> None:
    q, k, v = (2, 3, 8, 16), (2, 3, 10, 16), (2, 3, 10, 4)
    full = costs.flops(REGISTRY["attention"], (), [q, k, v], {"causal": False})
    assert full == 2 * 6 * 8 * 10 * (16 + 4)
    assert costs.flops(REGISTRY["attention"], (), [q, k, v], {"causal": True}) == full // 2
    backward = costs.flops(REGISTRY["attention_grads"], (), [q, q, k, v], {"causal": False})
    assert backward == 5 * full // 2
    assert costs.flops(REGISTRY["linear_weight"], (5, 7), [(9, 5), (9, 7)], {}) == 2 * 9 * 5 * 7
    assert costs.flops(REGISTRY["take"], (5,), [(9,), (5,)], {}) == 0

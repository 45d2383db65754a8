"""autocast and the precision of matrix products."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import errors
from everygrad.amp import policy as rules
from everygrad.backends import base
from everygrad.core.context import fast_limit
from everygrad.ops.record.spec import REGISTRY

PAGE = Path(__file__).parents[2] / "docs/mixed-precision.md"

HALVES = ("bfloat16", "float16")


def model(device: str = "cpu") -> Any:
    eg.manual_seed(3)
    nn = eg.nn
    net = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    return net.to(device)


def batch(device: str = "cpu") -> tuple[Any, Any]:
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    return eg.tensor(x).to(device), (eg.arange(8) % 3).to(device)


# --- the table -----------------------------------------------------------------------------------


def test_every_name_of_the_table_exists() -> None:
    assert {op.precision for op in REGISTRY.values()} == {"low", "float32", ""}
    functions = [name for op in REGISTRY.values() for name in op.entry_points]
    assert functions == ["scaled_dot_product_attention"]
    assert all(hasattr(eg.nn.functional, name) for name in functions)


def test_mixed_precision_table_is_fresh() -> None:
    page = PAGE.read_text(encoding="utf-8")
    start = page.index("| runs in |")
    end = page.index("\n\n", start) + 1
    fresh = rules.table(REGISTRY.values())
    if os.environ.get("EVERYGRAD_UPDATE") == "1":
        page = page[:start] + fresh + page[end:]
        PAGE.write_text(page, encoding="utf-8")
        end = start + len(fresh)
    cure = "EVERYGRAD_UPDATE=1 make test ARGS='-k mixed_precision_table'"
    assert page[start:end] == fresh, cure


@pytest.mark.parametrize("name", [op.name for op in REGISTRY.values() if op.precision == "float32"])
def test_float32_ops_widen_halves(name: str) -> None:
    """Every sample of a float32 op, its floats as halves, gives float32 where it gives a float."""
    op = REGISTRY[name]
    call = next(iter(op.samples()))
    args = [
        eg.tensor(a).astype("bfloat16")
        if isinstance(a, np.ndarray) and a.dtype.kind == "f"
        else eg.tensor(a)
        if isinstance(a, np.ndarray)
        else a
        for a in call.args
    ]
    plain = op.function(*args, **call.kwargs)
    with eg.autocast():
        out = op.function(*args, **call.kwargs)
    assert out.dtype is eg.float32
    assert plain.dtype is eg.bfloat16


@pytest.mark.parametrize("dtype", HALVES)
def test_layers_run_in_their_dtypes(device: str, dtype: str) -> None:
    nn = eg.nn
    x, image = eg.ones((2, 4)).to(device), eg.ones((1, 2, 5, 5)).to(device)
    q = eg.ones((1, 2, 4, 8)).to(device)
    linear, conv = nn.Linear(4, 3).to(device), nn.Conv2d(2, 3, 3).to(device)
    with eg.autocast(dtype=dtype):
        low = x @ eg.ones((4, 2)).to(device)
        hidden = linear(x)
        found = {
            "matmul": low.dtype,
            "mixed matmul": (low.matrix_transpose() @ x).dtype,
            "linear": hidden.dtype,
            "linear of a half": linear(nn.Linear(3, 4).to(device)(hidden)).dtype,
            "conv": conv(image).dtype,
            "attention": nn.functional.scaled_dot_product_attention(q, q, q).dtype,
        }
        assert {k: v.name for k, v in found.items()} == dict.fromkeys(found, dtype)
        assert nn.LayerNorm(3).to(device)(hidden).dtype is eg.float32
        assert eg.softmax(hidden).dtype is eg.float32
        assert eg.relu(hidden).dtype.name == dtype
        assert (hidden + eg.ones((3,)).to(device)).dtype is eg.float32
    assert (x @ eg.ones((4, 2)).to(device)).dtype is eg.float32


def test_what_is_no_small_float_stays() -> None:
    with eg.autocast():
        assert (eg.ones((2, 2), "float64") @ eg.ones((2, 2), "float64")).dtype is eg.float64
        assert (eg.ones((2, 2), "complex64") @ eg.ones((2, 2), "complex64")).dtype is eg.complex64
        assert eg.ones((2,), "int32").sum().dtype is not eg.float32


# --- the block -----------------------------------------------------------------------------------


def test_nesting_devices_and_the_end() -> None:
    a = eg.ones((2, 2))
    before = fast_limit()
    with eg.autocast():
        assert (a @ a).dtype is eg.bfloat16
        with eg.autocast(dtype="float16"):
            assert (a @ a).dtype is eg.float16
            with eg.autocast("webgpu", enabled=False):
                assert (a @ a).dtype is eg.float16
            with eg.autocast("cpu", enabled=False):
                assert (a @ a).dtype is eg.float32
        assert (a @ a).dtype is eg.bfloat16
        with eg.autocast(enabled=False):
            assert (a @ a).dtype is eg.float32
    with pytest.raises(ZeroDivisionError), eg.autocast():
        raise ZeroDivisionError
    assert fast_limit() == before
    assert (a @ a).dtype is eg.float32
    with eg.autocast(enabled=False):
        assert fast_limit() == before  # nothing is paid
    with eg.autocast("webgpu"):
        assert (a @ a).dtype is eg.float32


def test_decorator_and_threads() -> None:
    a = eg.ones((2, 2))
    found = []

    @eg.autocast()
    def product() -> Any:
        return (a @ a).dtype

    assert product() is eg.bfloat16
    assert (a @ a).dtype is eg.float32
    with eg.autocast():
        thread = threading.Thread(target=lambda: found.append((a @ a).dtype))
        thread.start()
        thread.join()
    assert found == [eg.float32]


def test_many_threads_leave_the_fast_path_as_it_was() -> None:
    before = fast_limit()

    def work() -> None:
        for _ in range(2000):
            with eg.autocast():
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert fast_limit() == before


def test_refusals() -> None:
    with pytest.raises(errors.DtypeError, match="autocast: dtype must be bfloat16 or float16"):
        eg.autocast(dtype="float32")
    with pytest.raises(errors.DeviceError, match="'gpu' is not available"):
        eg.autocast("gpu")
    with pytest.raises(errors.ArgumentError, match=r"decorate with @eg.autocast\(\)"):
        eg.autocast(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match='takes "highest" or "high"'):
        eg.set_matmul_precision("medium")


# --- derivatives and transformations -------------------------------------------------------------


def gradients(net: Any, x: Any, labels: Any, inside: bool, wrap: Any = lambda f: f) -> Any:
    forward = wrap(lambda x: eg.cross_entropy(net(x), labels))
    for p in net.parameters():
        p.grad = None
    if inside:
        with eg.autocast():
            forward(x).backward()
    else:
        with eg.autocast():
            loss = forward(x)
        loss.backward()
    return [p.grad for p in net.parameters()]


def test_gradients_are_those_of_float32_within_bf16_noise(device: str) -> None:
    net, (x, labels) = model(device), batch(device)
    eg.cross_entropy(net(x), labels).backward()
    exact = [p.grad for p in net.parameters()]
    found = gradients(net, x, labels, inside=False)
    for a, b in zip(exact, found, strict=True):
        assert b.dtype is eg.float32
        scale = np.abs(a.numpy()).max()
        assert 0 < np.abs(a.numpy() - b.numpy()).max() / scale < 0.03


@pytest.mark.parametrize("way", ["inside", "checkpoint", "jit", "grad of jit"])
def test_every_way_to_the_same_gradients(way: str) -> None:
    net, (x, labels) = model(), batch()
    want = gradients(net, x, labels, inside=False)
    wrap: Any = lambda f: f  # noqa: E731
    if way == "checkpoint":
        wrap = lambda f: lambda x: eg.checkpoint(f, x)  # noqa: E731
    elif way == "grad of jit":
        wrap = eg.jit
    if way == "jit":
        found = eg.jit(lambda x: gradients(net, x, labels, inside=True))(x)
    else:
        found = gradients(net, x, labels, inside=way == "inside", wrap=wrap)
    exact = way in ("inside", "checkpoint")
    for a, b in zip(want, found, strict=True):
        assert b.dtype is eg.float32
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=0 if exact else 2e-3)


def test_checkpoint_computes_again_under_the_same_setting() -> None:
    w = eg.ones((3, 3), requires_grad=True)
    seen = []

    def f(x: Any) -> Any:
        y = x @ w
        seen.append(y.dtype)
        return eg.exp(y).sum()

    grads = []
    for run in (eg.checkpoint, lambda f, x: f(x)):
        with eg.autocast():
            out = run(f, eg.ones((2, 3)) * 1.001)
        out.backward()
        assert seen.pop() is eg.bfloat16
        assert w.grad is not None
        assert w.grad.dtype is eg.float32
        grads.append(w.grad.tolist())
        w.grad = None
    assert grads[0] == grads[1]


def test_forward_mode_batching_and_second_derivatives() -> None:
    w = eg.tensor(np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32))
    x = eg.tensor([1.0, 2.0, 3.0])

    def f(x: Any) -> Any:
        return eg.exp(0.1 * (x.reshape(1, 3) @ w)).sum()

    with eg.autocast():
        out, tangent = eg.jvp(f, (x,), (eg.ones((3,)),))
        slope = eg.grad(f)(x)
        many = eg.vmap(eg.grad(f))(eg.stack([x, x]))
        curve = eg.hvp(f, (x,), (eg.ones((3,)),))
    exact = eg.grad(f)(x)
    assert out.dtype is tangent.dtype is slope.dtype is many.dtype is eg.float32
    np.testing.assert_allclose(tangent.item(), slope.sum().item(), rtol=2e-2)
    np.testing.assert_allclose(many[1].numpy(), slope.numpy(), rtol=2e-2)
    np.testing.assert_allclose(slope.numpy(), exact.numpy(), rtol=5e-2)
    curved = curve[1] if isinstance(curve, tuple) else curve
    want = eg.hvp(f, (x,), (eg.ones((3,)),))
    want = want[1] if isinstance(want, tuple) else want
    np.testing.assert_allclose(_flat(curved), _flat(want), rtol=0.1, atol=0.05)


def _flat(x: Any) -> Any:
    return (x[0] if isinstance(x, tuple | list) else x).numpy()


def test_functions_of_the_user_are_looked_into() -> None:
    class Product(eg.Function):
        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x @ y

        @staticmethod
        def vjp(g: Any, out: Any, x: Any, y: Any) -> Any:
            g = g.astype("float32")
            return g @ y.matrix_transpose(), x.matrix_transpose() @ g

    a, b = eg.ones((2, 2), requires_grad=True), eg.ones((2, 2))
    with eg.autocast():
        out = Product.apply(a, b)
        assert out.dtype is eg.bfloat16
        out.sum().backward()
    assert a.grad is not None
    assert a.grad.dtype is eg.float32


def test_jit_traces_once_for_each_setting() -> None:
    f = eg.jit(lambda x: x @ x)
    x = eg.ones((2, 2))
    for _ in range(2):
        assert f(x).dtype is eg.float32
        with eg.autocast():
            assert f(x).dtype is eg.bfloat16
        with eg.autocast(dtype="float16"):
            assert f(x).dtype is eg.float16
    assert f.count == 3
    with eg.autocast():
        assert "bfloat16[2, 2] = astype" in str(f.lower(x).graph)


def test_second_derivative_through_jit_runs_under_its_setting() -> None:
    x = eg.tensor([[1.0, 0.3], [0.2, 1.5]], requires_grad=True)
    f = eg.jit(lambda x: eg.exp(0.1 * (x @ x)).sum())
    with eg.autocast():
        out = f(x)
    (g,) = eg.autograd.grad(out, [x], create_graph=True)
    assert g.dtype is eg.float32
    with eg.autocast():
        plain = eg.exp(0.1 * (x @ x)).sum()
    (want,) = eg.autograd.grad(plain, [x], create_graph=True)
    np.testing.assert_array_equal(g.tolist(), want.tolist())


def test_matmul_precision_is_part_of_the_key() -> None:
    f = eg.jit(lambda x: x @ x)
    x = eg.ones((2, 2))
    f(x)
    assert eg.get_matmul_precision() == "highest"
    eg.set_matmul_precision("high")
    try:
        assert eg.get_matmul_precision() == "high"
        f(x)
        assert base.get("cuda:dry").tf32  # type: ignore[attr-defined]
    finally:
        eg.set_matmul_precision("highest")
    f(x)
    assert f.count == 2
    assert not base.get("cuda:dry").tf32  # type: ignore[attr-defined]

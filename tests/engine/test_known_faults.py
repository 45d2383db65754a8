"""Faults found in five other autograd engines, each by its id: AG-1 to SH-22, and the list of all.

The others are in test_known_faults_layers.py and test_known_faults_engine.py.
"""

# ruff: noqa: N802  # a test bears the id of its fault

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import everygrad as eg
from everygrad import nn
from everygrad.backends import base
from everygrad.core.scopes import intercepting
from everygrad.errors import ArgumentError, ShapeError
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import (
    WITH_SAMPLES,
    call,
    function_of,
    is_flat,
    is_float,
    leaves_of,
    map_sample,
    samples_of,
    to_tensor,
)

pytestmark = pytest.mark.needs("float64")

GROUPS = {
    "AG": "1 2 3 4 5 6 7 8 9 x y",
    "SH": "1 2 3 4 5 6 7 8 9 10 11 12 13 15 16 17 18 19 20 22",
    "TL": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 18 19 20 21 22 23 24",
    "FT": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16",
    "NR": "1 2 3 4 5 6 7 10 11 12 13 15",
}
IDS = {f"{group}-{number}" for group, numbers in GROUPS.items() for number in numbers.split()}


def test_every_fault_has_a_test() -> None:
    """A test's name begins with its ids: test_SH_8_TL_14_pow_at_zero."""
    found = set()
    for path in Path(__file__).parent.glob("test_known_faults*.py"):
        for item in ast.parse(path.read_text()).body:
            if isinstance(item, ast.FunctionDef) and item.name.startswith("test_"):
                for group, numbers in re.findall(r"_([A-Z]{2})((?:_(?:\d+|[xy]))+)", item.name):
                    found |= {f"{group}-{n}" for n in numbers.strip("_").split("_")}
    assert found == IDS


def leaf(values: Any, device: str, dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def constant(values: Any, device: str, dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


def close(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(values(got), want, rtol=tolerance, atol=tolerance)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-2, 2, shape)


def like_torch(ours: Any, theirs: Any, *arrays: Any, device: str = "cpu") -> None:
    """The value and the gradient of every argument, as PyTorch has them."""
    xs = [leaf(a, device) for a in arrays]
    ts = [torch.tensor(np.asarray(a), requires_grad=True) for a in arrays]
    out, want = ours(*xs), theirs(*ts)
    close(out, want.detach().numpy(), 1e-10)
    v = numbers(*want.shape, seed=9)
    out.backward(constant(v, device))
    want.backward(torch.tensor(v))
    for x, t in zip(xs, ts, strict=True):
        close(x.grad, t.grad.numpy(), 1e-10)


@contextmanager
def launches(device: str) -> Iterator[list[str]]:
    """The names of the ops a device runs, derivatives included."""
    names: list[str] = []
    backend = base.get(device)
    usual = backend.run

    def run(op: Any, arrays: Any, params: Any) -> Any:
        names.append(op.name)
        return usual(op, arrays, params)

    backend.run = run
    try:
        with intercepting():  # every op goes through `run`
            yield names
    finally:
        del backend.run


# --- AG: losses, convolutions, repeated backward -------------------------------------------------


def test_AG_1_losses_use_the_gradient_from_above(device: str) -> None:
    p, t = leaf([1.0, 2.0, 4.0], device), constant([0.0, 0.0, 0.0], device)
    (3 * eg.mse_loss(p, t)).backward()
    close(p.grad, 3 * 2 * np.array([1.0, 2.0, 4.0]) / 3)
    p.grad = None
    (eg.mse_loss(p, t) + 0.1 * eg.mse_loss(p * 2, t)).backward()
    close(p.grad, (2 + 0.1 * 8) * np.array([1.0, 2.0, 4.0]) / 3)


def test_AG_2_targets_get_gradients_too(device: str) -> None:
    like_torch(eg.mse_loss, F.mse_loss, numbers(4), numbers(4, seed=1), device=device)
    probabilities = np.abs(numbers(3, 5, seed=1))
    like_torch(eg.cross_entropy, F.cross_entropy, numbers(3, 5), probabilities, device=device)


@pytest.mark.parametrize("groups", [1, 2])
def test_AG_3_convolution_gradients_for_every_remainder(device: str, groups: int) -> None:
    cases = [(4, 3, 2, 1, 1), (5, 2, 2, 0, 1)]
    cases += [(n, k, s, p, d) for n in (5, 6) for k in (1, 2, 3) for s in (1, 2, 3)
              for p in (0, 1) for d in (1, 2) if n + 2 * p > d * (k - 1)]  # fmt: skip
    for n, k, s, p, d in cases:
        x, w, b = numbers(2, 4, n, n + 1), numbers(2, 4 // groups, k, k, seed=1), numbers(2, seed=2)
        options = {"stride": s, "padding": p, "dilation": d, "groups": groups}
        like_torch(
            lambda x, w, b, o=options: eg.conv2d(x, w, b, **o),
            lambda x, w, b, o=options: F.conv2d(x, w, b, **o),
            x, w, b, device=device,
        )  # fmt: skip


def test_AG_4_backward_twice_gives_exactly_twice(device: str) -> None:
    x = leaf(numbers(3, 3), device)
    y = eg.tanh(eg.exp(x @ x) * 0.1).sum()
    y.backward(retain_graph=True)
    once = values(x.grad).copy()
    y.backward(retain_graph=True)
    np.testing.assert_array_equal(values(x.grad), 2 * once)


def test_AG_5_two_losses_on_one_graph(device: str) -> None:
    x = leaf([1.0, 2.0], device)
    h = eg.exp(x)
    first, second = (h * 3).sum(), (h * h).sum()
    first.backward(retain_graph=True)
    second.backward()
    e = np.exp([1.0, 2.0])
    close(x.grad, 3 * e + 2 * e * e)


def test_AG_6_7_kernel_larger_than_the_image(device: str) -> None:
    with pytest.raises(ShapeError, match=r"conv2d: a kernel of \(3, 3\) .* does not fit an image"):
        eg.conv2d(constant(numbers(1, 1, 2, 2), device), constant(numbers(1, 1, 3, 3), device))
    with pytest.raises(ShapeError, match=r"max_pool2d: a kernel of \(5, 5\) .* does not fit"):
        eg.max_pool2d(constant(numbers(1, 1, 2, 2), device), 5, padding=1)
    like_torch(
        lambda x, w: eg.conv2d(x, w, padding=1), lambda x, w: F.conv2d(x, w, padding=1),
        numbers(2, 3, 1, 1), numbers(2, 3, 3, 3), device=device,
    )  # fmt: skip


def products(names: list[str]) -> int:
    """How many matrix products were launched."""
    return sum(name in ("matmul", "linear", "linear_weight") for name in names)


def test_AG_8_no_work_for_what_needs_no_gradient(device: str) -> None:
    w = leaf(numbers(3, 4), device)
    data, target = constant(numbers(5, 3), device), constant(numbers(5, 4), device)
    loss = eg.mse_loss(data @ w, target)
    with launches(device) as names:
        loss.backward()
    assert products(names) == 1
    assert "subtract.d1" not in names
    assert "negative" not in names

    image, kernel = constant(numbers(1, 2, 6, 6), device), leaf(numbers(3, 2, 3, 3), device)
    out = eg.conv2d(image, kernel).sum()
    with launches(device) as names:
        out.backward()
    whole = "conv2d_weight" in base.get(device).kernels
    if device == "cuda":  # by cuDNN, where there is one
        whole = base.get(device).gpu.driver.cudnn is not None  # type: ignore[attr-defined]
    assert ("conv2d_weight" in names) == whole
    assert "conv2d_input" not in names
    assert whole or products(names) == 1  # made of parts: the one product is the kernel's

    x, y = leaf([2.0], device), constant([3.0], device)
    for op in ("multiply", "divide", "pow", "atan2", "maximum", "minimum"):
        for a, b, own, other in ((x, y, "d0", "d1"), (y, x, "d1", "d0")):
            with launches(device) as names:
                out = REGISTRY[op].function(a, b)
                out.backward()
            assert f"{op}.{own}" in names, names
            assert f"{op}.{other}" not in names, names


def test_AG_8_nothing_is_saved_for_what_needs_no_gradient(device: str) -> None:
    w, x = leaf(numbers(3, 3), device), constant(numbers(3, 3), device)
    for out in (w * x, w @ x, w / x):
        saved = out._node.saved
        assert any(s is x._data for s in saved)
        assert not any(s is w._data for s in saved)


def test_AG_9_equal_counts_are_not_equal_shapes(device: str) -> None:
    a, b = constant(numbers(2, 3), device), constant(numbers(3, 2), device)
    with pytest.raises(ShapeError, match=r"add: cannot broadcast \(2, 3\) with \(3, 2\)"):
        a + b
    with pytest.raises(ShapeError, match=r"mse_loss: prediction \(2, 3\) and target \(3, 2\)"):
        eg.mse_loss(a, b)


def test_AG_x_sums_do_not_stall(device: str) -> None:
    many = eg.ones((20_000_000,), device=device)
    assert many.mean().item() == 1.0
    assert many.sum().item() == 20_000_000.0
    assert eg.mse_loss(many, many * 0.0).item() == 1.0
    columns = eg.ones((200_000, 3), device=device).sum(axis=0)
    assert columns.tolist() == [200_000.0] * 3
    tenth = eg.full((3_000_000, 2), 0.1, dtype="float32", device=device)
    np.testing.assert_allclose(values(tenth.mean(axis=0)), 0.1, rtol=1e-5)
    half = eg.ones((100_000,), dtype="float16", device=device)
    assert half.mean().item() == 1.0
    assert eg.ones((70_000,), dtype="bfloat16", device=device).mean().item() == 1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("size", [3, 40_000])
def test_AG_y_nan_in_nan_out(device: str, dtype: str, size: int) -> None:
    row = np.ones(size)
    row[1] = np.nan
    x, one = constant(row, device, dtype), eg.ones((size,), dtype=dtype, device=device)
    results = [
        eg.relu(x), eg.maximum(x, one), eg.maximum(one, x), eg.minimum(x, one),
        eg.minimum(one, x), eg.clamp(x, -1.0, 1.0), eg.clamp(x, min=0.0), eg.clamp(x, max=0.0),
    ]  # fmt: skip
    for out in results:
        assert np.isnan(values(out).astype(float)).tolist() == np.isnan(row).tolist()
    assert np.isnan(x.max().item())
    assert np.isnan(x.min().item())
    assert x.argmax().item() == 1


# --- SH: checkpointing, depth, second derivatives, awkward values --------------------------------


def test_SH_1_checkpoint_really_recomputes(device: str) -> None:
    """Peak memory is in test_checkpoint.py."""
    runs: list[int] = []

    def f(v: Any) -> Any:
        runs.append(1)
        return eg.sin(eg.exp(v)).sum()

    x, y = leaf([0.1, 0.2], device), leaf([0.1, 0.2], device)
    out = eg.checkpoint(f, x)
    sine = out._node.parents[0]
    assert not isinstance(sine.saved, tuple)  # nothing is kept
    out.backward(retain_graph=True)
    assert [v.shape for v in sine.saved if v is not None] == [(2,)]
    assert len(runs) == 1  # the ops run again, not the function
    f(y).backward()
    np.testing.assert_array_equal(values(x.grad), values(y.grad))


def test_SH_2_checkpoint_sequential_keeps_every_gradient(device: str) -> None:
    weights = [leaf(numbers(3, 3, seed=i), device) for i in range(5)]
    steps = [lambda v, w=w: eg.tanh(v @ w) for w in weights]
    x = leaf(numbers(2, 3), device)
    h = x
    for step in steps:
        h = step(h)
    h.sum().backward()
    plain = [values(t.grad) for t in (x, *weights)]
    for segments in (1, 2, 3, 5, 9):
        for t in (x, *weights):
            t.grad = None
        eg.checkpoint_sequential(steps, segments, x).sum().backward()
        for t, want in zip((x, *weights), plain, strict=True):
            np.testing.assert_array_equal(values(t.grad), want)


@pytest.mark.parametrize("segments", [0, -1, 1.5, True, None])
def test_SH_3_segments_must_be_positive(segments: Any) -> None:
    with pytest.raises(ValueError, match="segments must be a positive integer") as caught:
        eg.checkpoint_sequential([eg.exp], segments, eg.ones((2,)))
    assert isinstance(caught.value, ArgumentError)


def test_SH_4_checkpoints_nest_with_exceptions_and_dropout(device: str) -> None:
    def inner(v: Any) -> Any:
        with eg.no_grad(), pytest.raises(ZeroDivisionError):
            eg.checkpoint(lambda u: 1 / 0, v)
        return eg.dropout(eg.exp(v), 0.5)

    def outer(v: Any, run: Any) -> Any:
        h = run(inner, v)
        assert eg.is_grad_enabled()
        return eg.dropout(eg.sin(h), 0.3) * h

    found = []
    for run in (eg.checkpoint, lambda f, v: f(v)):
        eg.manual_seed(3)
        x = leaf(np.linspace(0, 1, 50), device)
        out = run(lambda v, run=run: outer(v, run), x)
        out.sum().backward()
        found.append((values(out), values(x.grad), eg.rand((2,)).tolist()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]
    assert eg.is_grad_enabled()


def test_SH_6_frozen_parameters_cost_nothing(device: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).to(device)
    x = eg.rand((3, 4), device=device)
    with launches(device) as all_of_it:
        model(x).sum().backward()
    for p in model[0].parameters():
        p.requires_grad_(False)
        p.grad = None
    loss = model(x).sum()
    with launches(device) as names:
        loss.backward()
    assert all(p.grad is None for p in model[0].parameters())
    assert all(p.grad is not None for p in model[2].parameters())
    assert products(names) == 1  # the last weight's: nothing beyond it is needed
    assert "relu.d0" not in names
    assert "relu.d0" in all_of_it


def numeric_hessian(f: Any, x: Any, step: float = 1e-4) -> Any:
    n = x.size
    h = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            total = 0.0
            for a in (1, -1):
                for b in (1, -1):
                    moved = x.copy().reshape(-1)
                    moved[i] += a * step
                    moved[j] += b * step
                    total += a * b * f(eg.tensor(moved.reshape(x.shape), dtype="float64")).item()
            h[i, j] = total / (4 * step * step)
    return h


SECOND = {
    "square of the sum": lambda x: x.sum() ** 2,
    "exp": lambda x: eg.exp(x).sum(),
    "tanh": lambda x: (eg.tanh(x) * eg.tanh(x)).sum(),
    "softmax": lambda x: (eg.softmax(x.reshape(2, 2)) ** 2).sum(),
    "log_softmax": lambda x: (eg.log_softmax(x.reshape(2, 2)) ** 2).sum(),
    "gelu": lambda x: eg.gelu(x).sum(),
    "concat": lambda x: (eg.concat([x, eg.sin(x), x * x]) ** 3).sum(),
    "norm": lambda x: eg.sqrt((x * x).sum()),
    "layer_norm": lambda x: (eg.layer_norm(x, (4,), eps=0.5) ** 3).sum(),
    "matmul": lambda x: eg.sin(x.reshape(2, 2) @ x.reshape(2, 2)).sum(),
    "var": lambda x: x.var() ** 2,
    "prod": lambda x: x.prod(),
    "logsumexp": lambda x: eg.logsumexp(x),
    "getitem": lambda x: (x[eg.tensor([0, 0, 2])] * x[1] ** 2).sum(),
    "conv2d": lambda x: (
        eg.conv2d(x.reshape(1, 1, 2, 2), x.reshape(1, 1, 2, 2), padding=1) ** 2
    ).sum(),
    "max_pool2d": lambda x: (eg.max_pool2d(x.reshape(1, 1, 2, 2), 2) ** 3).sum(),
    "cross_entropy": lambda x: eg.cross_entropy(x.reshape(2, 2), eg.tensor([0, 1])) ** 2,
    "checkpoint": lambda x: eg.checkpoint(lambda v: eg.exp(v * v).sum(), x),
}


@pytest.mark.parametrize("name", SECOND)
def test_SH_7_NR_4_second_derivatives_are_whole(name: str) -> None:
    x = np.array([0.3, -0.7, 1.1, 0.4])
    want = numeric_hessian(SECOND[name], x)
    assert np.abs(want).max() > 1e-3, "the case says nothing"
    close(eg.hessian(SECOND[name])(constant(x, "cpu")), want, 2e-6)
    z = leaf(x, "cpu")
    (g,) = eg.autograd.grad(SECOND[name](z), z, create_graph=True)
    rows = [eg.autograd.grad(g[i], z, retain_graph=True)[0] for i in range(4)]
    close(eg.stack(rows), want, 2e-6)


def test_SH_8_TL_14_NR_13_pow_at_zero_and_below(device: str) -> None:
    x = leaf([0.0, 0.0, 0.0, -2.0, -2.0, 0.0], device)
    y = constant([0.0, 2.0, 1.0, 3.0, 2.0, 3.0], device)
    out = x**y
    close(out, [1.0, 0.0, 0.0, -8.0, 4.0, 0.0])
    out.backward(eg.ones((6,), dtype="float64", device=device))
    close(x.grad, [0.0, 0.0, 1.0, 12.0, -4.0, 0.0])
    for exponent, slope in ((0, 0.0), (2, 0.0), (0.0, 0.0), (1, 1.0), (3.0, 0.0)):
        z = leaf(0.0, device)
        (z**exponent).backward()
        assert z.grad.item() == slope
    z = leaf(0.0, device)  # and again: d2(x^2) = 2, d2(x^3) = 0 at 0
    assert eg.grad(eg.grad(lambda v: v**2))(z).item() == 2.0
    assert eg.grad(eg.grad(lambda v: v**3))(z).item() == 0.0


def test_SH_9_clamp_has_gradient_one_at_its_bounds(device: str) -> None:
    x = leaf([-1.0, -0.5, 1.0, -1.1, 1.1], device)
    eg.clamp(x, -1.0, 1.0).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    for bounds in ({"min": 1.0}, {"max": 1.0}):
        y = leaf([1.0], device)
        eg.clamp(y, **bounds).sum().backward()
        assert y.grad.item() == 1.0


def test_SH_10_TL_15_16_quotients_do_not_overflow_on_the_way(device: str) -> None:
    a, b = leaf([3.0], device, "float16"), leaf([300.0], device, "float16")
    (a / b).backward()
    np.testing.assert_allclose(values(b.grad).astype(float), -3 / 300.0**2, rtol=2e-2)
    a, b = leaf([1e-25], device, "float32"), leaf([1e-25], device, "float32")
    (a / b).backward()
    np.testing.assert_allclose(values(b.grad), -1e25, rtol=1e-5)
    a, b = leaf([1e25], device, "float32"), leaf([1e25], device, "float32")
    (a / b).backward()
    np.testing.assert_allclose(values(b.grad), -1e-25, rtol=1e-5)


def test_SH_11_broadcasting_one_against_none(device: str) -> None:
    a, b = leaf([5.0], device), leaf(np.zeros(0), device)
    out = a * b
    assert out.shape == (0,)
    out.sum().backward()
    assert a.grad.tolist() == [0.0]
    assert b.grad.shape == (0,)


MATMULS = [((3, 2, 4), (4, 5)), ((2, 4), (3, 4, 5)), ((2, 1, 3, 4), (1, 5, 4, 2)), ((4,), (4,)),
           ((4,), (4, 5)), ((2, 4), (4,)), ((3, 2, 4), (4,)), ((4,), (3, 4, 2)),
           ((2, 3, 1, 2, 4), (3, 5, 4, 2)), ((1, 2, 2), (3, 2, 2))]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MATMULS)
def test_SH_12_TL_7_NR_12_batched_products(device: str, a: Any, b: Any) -> None:
    like_torch(
        lambda x, y: x @ y, lambda x, y: x @ y, numbers(*a), numbers(*b, seed=1), device=device
    )


def test_SH_13_ties_are_split_and_nan_wins(device: str) -> None:
    x = leaf([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], device)
    out = x.max(axis=1)
    assert out.tolist() == [3.0, 2.0]
    out.backward(constant([1.0, 3.0], device))
    close(x.grad, [[0.0, 0.5, 0.5], [1.0, 1.0, 1.0]])
    for fn in (eg.max, eg.min):
        y = leaf([1.0, np.nan, 5.0], device)
        out = fn(y)
        assert np.isnan(out.item())
        out.backward()
        assert y.grad.tolist() == [0.0, 1.0, 0.0]
    a, b = leaf([1.0, 2.0, np.nan, 1.0], device), leaf([1.0, 1.0, 1.0, np.nan], device)
    eg.maximum(a, b).sum().backward()
    assert a.grad.tolist() == [0.5, 1.0, 1.0, 0.0]
    assert b.grad.tolist() == [0.5, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("bad", [-np.inf, np.nan])
def test_SH_15_pooling_never_leaves_its_window(device: str, bad: float) -> None:
    images = np.arange(3 * 16, dtype=float).reshape(3, 1, 4, 4)
    images[1] = bad
    for options in ({}, {"padding": 1, "stride": 2}):
        x = leaf(images, device)
        eg.max_pool2d(x, 2, **options).sum().backward()
        per_image = values(x.grad).reshape(3, -1).sum(axis=1)
        assert per_image.tolist() == [4.0 if not options else 9.0] * 3
    x = leaf(images, device)
    eg.max_pool2d(x, 2).sum().backward()  # window by window
    blocks = values(x.grad).reshape(3, 2, 2, 2, 2).sum(axis=(2, 4))
    assert blocks.tolist() == np.ones((3, 2, 2)).tolist()


def test_SH_16_no_backward_copies_to_the_host(device: str) -> None:
    backend = base.get(device)
    moved: list[str] = []

    def watch(name: str) -> Any:
        usual = getattr(backend, name)

        def call(array: Any) -> Any:
            moved.append(name)
            return usual(array)

        return call

    checked: set[str] = set()
    for name in set(WITH_SAMPLES) - {"to"}:  # whose work it is
        op = REGISTRY[name]
        for sample in samples_of(op, device):
            given = map_sample(sample, to_tensor(device, grad=True))
            outs = [o for o in call(function_of(op), given) if o.requires_grad]
            seeds = [eg.ones(o.shape, dtype=o.dtype, device=device) for o in outs]
            if not outs or not leaves_of(given):
                continue
            backend.read_later, backend.to_numpy = watch("read_later"), watch("to_numpy")
            try:
                eg.autograd.grad(outs, leaves_of(given), seeds, allow_unused=True)
            finally:
                del backend.read_later, backend.to_numpy
            assert not moved, f"{name}: {moved}"
            checked.add(name)
    assert len(checked) > len(WITH_SAMPLES) / 2


def test_SH_17_permute_is_not_reshape(device: str) -> None:
    x, w = numbers(2, 3, 4), numbers(4, 2, 3, seed=1)
    like_torch(
        lambda x, w: (x.permute_dims((2, 0, 1)) * w).sum(),
        lambda x, w: (x.permute(2, 0, 1) * w).sum(), x, w, device=device,
    )  # fmt: skip


def test_SH_18_19_TL_24_NR_2_no_op_detaches_silently(device: str) -> None:
    """requires_grad in means requires_grad out, or a result that is no floating-point number."""
    checked: set[str] = set()
    for name in WITH_SAMPLES:
        op = REGISTRY[name]
        if is_flat(op):
            continue
        for sample in op.samples():
            if not any(is_float(a) for a in _arrays(sample)):
                continue
            given = map_sample(sample, to_tensor(device, grad=True))
            for out in call(function_of(op), given):
                assert out.requires_grad == out.dtype.is_differentiable, f"{name} {sample}"
                checked.add(name)
    assert len(checked) > len(WITH_SAMPLES) / 2


def _arrays(sample: Any) -> list[Any]:
    found: list[Any] = []
    map_sample(sample, found.append)
    return found


def test_SH_20_saved_values_cannot_change(device: str) -> None:
    w, x = leaf([2.0], device), leaf([3.0], device)
    out = (w * x).sum()
    with eg.no_grad():
        w *= 100.0
        x[0] = -1.0
    out.backward()
    assert w.grad.item() == 3.0
    assert x.grad.item() == 2.0
    array = np.array([2.0])
    v = eg.tensor(array, requires_grad=True)
    y = (v * v).sum()
    array[0] = 50.0
    y.backward()
    assert v.grad.item() == 4.0
    with pytest.raises(ValueError, match="read-only"):
        v.detach().numpy()[0] = 1.0
    q = leaf([1.0], device)
    later = eg.checkpoint(lambda u: eg.exp(u * w), q).sum()
    with eg.no_grad():
        w += 1.0
    later.backward()
    assert q.grad.item() == pytest.approx(200.0 * np.exp(200.0))


def test_SH_22_no_grad_does_not_grow(device: str) -> None:
    """The count of 1e5 steps is in test_engine_memory.py; here, that there is no graph at all."""
    x, average = leaf([1.0], device), eg.zeros((1,), dtype="float64", device=device)
    for _ in range(100):
        with eg.no_grad():
            average = 0.9 * average + 0.1 * x
    assert average._node is None
    assert average.is_leaf

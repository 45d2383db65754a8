"""Row kernels and attention on WebGPU, against the portable definitions in float64 on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.nn.functional as F
from everygrad.backends import base
from everygrad.dispatch import apply
from everygrad.errors import DeviceError
from everygrad.ops.nn.attention import attention, attention_masked
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import values

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)
DEVICE = "webgpu"
TOLERANCE = {"float32": 5e-6, "float16": 1.5e-3, "bfloat16": 1.2e-2}
INPUTS = {
    **{"softmax": 1, "log_softmax": 1, "standardize": 1},
    **{"softmax_vjp": 2, "log_softmax_vjp": 2, "standardize_vjp": 3},
}


@pytest.fixture(params=["threads share rows", "a thread for each row"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels for a GPU, and those for software, whichever this machine has."""
    monkeypatch.setattr(
        base.get(DEVICE).gpu, "is_software", request.param == "a thread for each row"
    )
    return str(request.param)


@contextmanager
def few_workgroups(most: int) -> Iterator[None]:
    """The device as if it started no more along one dimension."""
    limits = base.get(DEVICE).gpu.limits
    before, limits.groups = limits.groups, most
    try:
        yield
    finally:
        limits.groups = before


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def on(array: Any, dtype: str = "float32") -> eg.Tensor:
    return eg.tensor(np.asarray(array, np.float32), device=DEVICE).astype(dtype)


def wide(x: eg.Tensor) -> eg.Tensor:
    """The same values on the CPU, in float64."""
    return eg.tensor(values(x).astype(np.float64))


def portable(name: str, inputs: list[eg.Tensor], **params: Any) -> Any:
    return values(REGISTRY[name].portable(*(wide(x) for x in inputs), **params))


def check(name: str, inputs: list[eg.Tensor], **params: Any) -> None:
    """The kernel's results, within what the dtype can tell apart at their scale."""
    out = apply(REGISTRY[name], *inputs, **params)
    assert out.dtype is inputs[0].dtype
    want = portable(name, inputs, **params)
    assert out.shape == want.shape
    if want.size:
        off = np.abs(values(out).astype(np.float64) - want).max()
        assert off <= TOLERANCE[str(out.dtype)] * max(np.abs(want).max(), 1e-30), (name, params)


# --- rows ----------------------------------------------------------------------------------------


def row_inputs(name: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Any:
    """Inputs like those that derivatives get, and the op's parameters."""
    given = [random(*shape, seed=seed) for seed in range(INPUTS[name])]
    if len(given) > 1:  # the second is the result of the op that is differentiated
        given[1] = values(F.softmax(eg.tensor(given[1]), axis=axes[0]))
        given[1] = np.log(given[1]) if name.startswith("log") else given[1]
    params = {"axes": axes, "eps": 1e-3} if "standardize" in name else {"axis": axes[0]}
    return [on(x, dtype) for x in given], params


# one element, a few, whole words and none; registers, read again, in pieces; rows side by side
ROWS = [
    *[((1,), (0,)), ((3, 5), (1,)), ((7, 1), (1,)), ((513, 34), (1,)), ((5, 1000), (1,))],
    *[((2, 5000), (1,)), ((3, 4, 6), (1,)), ((40, 70, 20), (1,)), ((300, 50), (0,))],
    *[((2, 20001), (1,)), ((20000, 3), (0,))],
]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", INPUTS)
def test_rows_equal_the_portable_definition(name: str, dtype: str, way: str) -> None:
    for shape, axes in ROWS:
        given, params = row_inputs(name, shape, axes, dtype)
        check(name, given, **params)


def test_several_axes(way: str) -> None:
    for axes in ((0, 2), (1, 2), (0, 1), (0, 1, 2)):
        for shape in ((6, 5, 7), (60, 3, 400)):
            x = on(random(*shape))
            check("standardize", [x], axes=axes, eps=1e-5)
            given, _ = row_inputs("standardize_vjp", shape, axes, "float32")
            check("standardize_vjp", given, axes=axes, eps=1e-5)


def test_layouts_of_rows(way: str) -> None:
    x = on(random(12, 20, 30))
    views = [x.permute_dims((2, 0, 1)), x[:, ::-1, 3:], x[::2], x[:1].broadcast_to((9, 20, 30))]
    for view in views:
        for axis in range(3):
            check("softmax", [view], axis=axis)
            check("softmax_vjp", [view, view], axis=axis)


def test_rows_with_nan_and_infinities_are_as_on_the_cpu(way: str) -> None:
    x = random(8, 40)
    x[1, 3] = np.nan
    x[2, 4] = np.inf
    x[3, 5] = -np.inf
    x[4] = -np.inf
    x[5, 6:8] = 3e38
    x[6] = -3e38
    x[7, 1] = -200
    for fn in (eg.softmax, eg.log_softmax, eg.standardize):
        with np.errstate(all="ignore"):
            want = values(fn(eg.tensor(x)))
        got = values(fn(on(x)))
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_empty_rows(way: str) -> None:
    assert eg.softmax(on(np.zeros((0, 3)))).shape == (0, 3)
    assert eg.standardize(on(np.zeros((3, 0)))).shape == (3, 0)
    move = apply(REGISTRY["softmax_vjp"], *[on(np.zeros((2, 0, 3)))] * 2, axis=2)
    assert move.shape == (2, 0, 3)


def test_more_rows_than_one_dimension_has_workgroups(way: str) -> None:
    with few_workgroups(7):
        check("softmax", [on(random(3001, 12))], axis=1)
        check("standardize", [on(random(7, 900))], axes=(1,), eps=1e-5)


def test_long_rows_keep_their_digits(way: str) -> None:
    for shape in ((1, 1 << 20), (300, 1 << 15)):
        x = on(np.abs(random(*shape)) + 1)
        check("standardize", [x], axes=(1,), eps=1e-5)
        logs = eg.log_softmax(x * 1e-3)
        np.testing.assert_allclose(values(logs.exp().sum(axis=1)), 1, rtol=2e-5)


def test_a_row_op_is_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = base.get(DEVICE).gpu
    x = on(random(64, 100))
    launched: list[str] = []
    record = gpu.record

    def watched(kernel: Any, blocks: Any) -> None:
        launched.append(kernel.name)
        record(kernel, blocks)

    monkeypatch.setattr(gpu, "record", watched)
    eg.softmax(x)
    eg.standardize(x)
    apply(REGISTRY["standardize_vjp"], x, x, x, axes=(1,), eps=1e-5)
    eg.softmax(x.astype("float16"))
    assert launched == ["softmax", "standardize", "standardize_vjp", "astype", "softmax"]


# --- attention -----------------------------------------------------------------------------------


class Case:
    """g, q, k, v, perhaps a mask, and the parameters."""

    def __init__(
        self,
        kind: str,
        queries: int,
        keys: int,
        width: int,
        depth: int,
        batch: tuple[int, ...] = (2,),
        dtype: str = "float32",
    ) -> None:
        sizes = ((queries, depth), (queries, width), (keys, width), (keys, depth))
        self.inputs = [on(random(*batch, *s, seed=i), dtype) for i, s in enumerate(sizes)]
        self.params: dict[str, Any] = {"scale": 0.3}
        self.name = "attention_masked" if kind == "masked" else "attention"
        if kind == "masked":
            mask = random(*(1,) * len(batch), queries, keys, seed=4)
            mask[mask < -0.6] = -np.inf
            mask[..., queries // 2, :] = -np.inf
            self.inputs.append(on(mask, dtype))
        else:
            self.params["causal"] = kind == "causal"

    def check(self) -> None:
        check(self.name, self.inputs[1:], **self.params)
        check(f"{self.name}_grads", self.inputs, **self.params)


KINDS = ["full", "causal", "masked"]


@pytest.mark.parametrize("kind", KINDS)
def test_attention_equals_the_portable_definition(kind: str, way: str) -> None:
    for length, width in ((2, 8), (7, 8), (64, 16), (65, 33), (200, 64)):
        Case(kind, length, length, width, width).check()


@pytest.mark.parametrize("kind", KINDS)
def test_one_token(kind: str) -> None:
    """A query whose mask excludes every key gives 0, and no NaN."""
    case = Case(kind, 1, 1, 8, 8)
    check(case.name, case.inputs[1:], **case.params)
    check(f"{case.name}_grads", case.inputs, **case.params)


@pytest.mark.parametrize("kind", KINDS)
def test_queries_and_keys_differ_and_so_do_widths(kind: str, way: str) -> None:
    for sizes in ((1, 200, 16, 8), (200, 1, 8, 16), (30, 130, 12, 40), (130, 30, 64, 3)):
        Case(kind, *sizes).check()


@pytest.mark.parametrize("sizes", [(70, 70, 128, 128), (20, 70, 300, 20), (70, 20, 20, 300)])
def test_wide_heads(sizes: tuple[int, int, int, int], way: str) -> None:
    Case("causal", *sizes, batch=()).check()


@pytest.mark.parametrize(("dtype", "kind"), [("float16", "causal"), ("bfloat16", "masked")])
def test_half_floats(dtype: str, kind: str) -> None:
    Case(kind, 35, 70, 16, 9, dtype=dtype).check()


def test_attention_of_any_layout() -> None:
    case = Case("full", 40, 40, 12, 12, batch=(2, 3))
    g, q, k, v = case.inputs
    permuted = [on(random(2, 40, 3, 12, seed=9)).permute_dims((0, 2, 1, 3)), k[..., ::-1, :]]
    wider = on(random(2, 3, 40, 30))[..., 3:27:2]
    shared = v[:1, :1].broadcast_to(v.shape)
    for inputs in ([g, *permuted, wider], [shared, q, shared, q], [g, q, q, q]):
        case.inputs = inputs
        case.check()


@pytest.mark.parametrize("batch", [(), (3,), (2, 2, 3)])
def test_masks_broadcast(batch: tuple[int, ...]) -> None:
    case = Case("masked", 20, 30, 8, 8, batch=batch)
    ones = (1,) * len(batch)
    for shape in ((*batch, 20, 30), (*ones, 1, 30), (*ones, 20, 1), (*batch, 1, 1)):
        case.inputs[4] = on(random(*shape))
        case.check()


def test_empty_attention() -> None:
    for batch, sizes in (((0,), (3, 4, 2, 2)), ((2,), (0, 4, 2, 2)), ((2,), (3, 4, 2, 0))):
        Case("full", *sizes, batch=batch).check()
    Case("full", 3, 4, 0, 2).check()


def test_fully_masked_queries_give_zero() -> None:
    case = Case("masked", 70, 40, 8, 8)
    out = values(apply(REGISTRY[case.name], *case.inputs[1:], **case.params))
    assert not out[:, 35].any()
    flat = values(apply(REGISTRY[f"{case.name}_grads"], *case.inputs, **case.params))
    assert np.isfinite(flat).all()
    assert not flat[: 2 * 70 * 8].reshape(2, 70, 8)[:, 35].any()
    lowest = np.full((1, 70, 40), np.finfo(np.float32).min)  # closed, but not for good: even
    case.inputs[4] = on(lowest)
    got = values(apply(REGISTRY[case.name], *case.inputs[1:], **case.params))
    even = values(case.inputs[3]).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(got, np.broadcast_to(even, got.shape), rtol=1e-4, atol=1e-5)


def test_large_scores_and_nan() -> None:
    q, k, v = (random(90, 8, seed=i) for i in range(3))
    q[0] *= 1e4
    q[3, 2] = np.nan
    q[5] = 1e38
    got = values(attention(on(q), on(k), on(v), scale=10.0))
    with np.errstate(all="ignore"):
        inputs = [eg.tensor(x) for x in (q, k, v)]
        want = values(REGISTRY["attention"].portable(*inputs, scale=10.0, causal=False))
    assert np.isnan(want[3]).all()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_more_tiles_than_one_dimension_has_workgroups() -> None:
    with few_workgroups(4):
        Case("causal", 130, 130, 8, 8, batch=(5,)).check()


def test_refuses_what_a_software_adapter_cuts_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.get(DEVICE).gpu, "is_software", True)
    long, short = (eg.zeros((n, 8), device=DEVICE) for n in (1 << 16, 4))
    with pytest.raises(DeviceError, match=r"4 queries and 65536 keys .* after 65535 turns"):
        attention(short, long, long)
    with pytest.raises(DeviceError, match="attention: 65536 queries and 4 keys"):
        apply(REGISTRY["attention_grads"], long, long, short, short, scale=1.0, causal=False)


def test_long_attention_takes_no_matrix() -> None:
    length, heads = 2048, 2
    given = [on(random(heads, length, 16, seed=i)) for i in range(4)]
    pool = base.get(DEVICE).gpu.pool
    pool.trim()
    before = pool.taken_bytes
    out = attention(*given[1:], causal=True)
    flat = apply(REGISTRY["attention_grads"], *given, scale=0.25, causal=True)
    assert pool.taken_bytes - before < length * length  # a quarter of one head's matrix
    assert np.isfinite(values(flat)).all()
    few = [wide(x)[:, :50] for x in given]
    want = values(attention(*few[1:], causal=True))  # later keys change nothing for these
    np.testing.assert_allclose(values(out)[:, :50], want, rtol=1e-4, atol=1e-5)


def derivatives(inputs: list[eg.Tensor], kind: str) -> list[Any]:
    """A result, its derivatives, and theirs."""
    q, k, v, *mask = leaves = [x.detach().requires_grad_() for x in inputs]
    out = attention_masked(q, k, v, *mask) if mask else attention(q, k, v, causal=kind == "causal")
    first = eg.autograd.grad((out * out).sum(), leaves, create_graph=True)
    total = sum((s * s).sum() for s in first)
    return [values(x) for x in (out, *first, *eg.autograd.grad(total, leaves))]


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_any_order(kind: str) -> None:
    """Of a mask too, whose derivative is that of the scores."""
    inputs = Case(kind, 9, 11, 4, 3).inputs[1:]
    got, want = derivatives(inputs, kind), derivatives([wide(x) for x in inputs], kind)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind: str) -> None:
    _, q, k, v, *mask = Case(kind, 70, 70, 16, 16).inputs

    def loss(q: eg.Tensor, k: eg.Tensor, v: eg.Tensor) -> eg.Tensor:
        q = F.layer_norm(q, (16,))
        if mask:
            out = attention_masked(q, k, v, mask[0])
        else:
            out = attention(q, k, v, causal=kind == "causal")
        return (eg.softmax(out) * out).sum()

    want = [loss(q, k, v), *eg.grad(loss, (0, 1, 2))(q, k, v)]
    compiled, slopes = eg.jit(loss), eg.jit(eg.grad(loss, (0, 1, 2)))
    for _ in range(2):
        got = [compiled(q, k, v), *slopes(q, k, v)]
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(values(a), values(b), rtol=1e-4, atol=1e-5)

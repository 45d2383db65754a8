"""Faults found in other autograd engines, TL-1 to TL-24: what layers and ops must do."""

# ruff: noqa: N802  # a test bears the id of its fault

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import everygrad as eg
from everygrad import nn
from everygrad.errors import DtypeError, OutOfRangeError
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import (
    WITH_SAMPLES,
    call,
    function_of,
    in_dtype,
    is_float,
    leaves_of,
    map_sample,
    samples_of,
    to_tensor,
)

pytestmark = pytest.mark.needs("float64")


def leaf(values: Any, device: str, dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device, requires_grad=True)


def constant(values: Any, device: str, dtype: Any = "float64") -> Any:
    return eg.tensor(values, dtype=dtype, device=device)


def values(x: Any) -> Any:
    return x.detach().to("cpu").numpy()


def close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(values(got), want, rtol=tolerance, atol=tolerance)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).uniform(-2, 2, shape)


def like_torch(ours: Any, theirs: Any, *arrays: Any, device: str) -> None:
    """The value and the gradient of every argument, as PyTorch has them."""
    xs = [leaf(a, device) for a in arrays]
    ts = [torch.tensor(np.asarray(a), requires_grad=True) for a in arrays]
    out, want = ours(*xs), theirs(*ts)
    close(out, want.detach().numpy())
    v = np.asarray(numbers(*want.shape, seed=9))
    out.backward(constant(v, device))
    want.backward(torch.tensor(v))
    for x, t in zip(xs, ts, strict=True):
        close(x.grad, t.grad.numpy())


def copied(ours: Any, theirs: Any) -> tuple[Any, Any]:
    """Our layer with the weights of PyTorch's, both in float64."""
    theirs = theirs.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(torch.rand(p.shape, generator=generator, dtype=torch.float64) - 0.3)
    with eg.no_grad():
        for mine, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine[...] = eg.tensor(theirs_p.detach().numpy(), dtype="float64", device=mine.device)
    return ours, theirs


def same_layer(ours: Any, theirs: Any, x: Any, device: str) -> None:
    """Results, and gradients of the input and of every parameter."""
    a = leaf(x, device)
    b = torch.tensor(x, requires_grad=True)
    out, want = ours(a), theirs(b)
    close(out, want.detach().numpy())
    v = numbers(*want.shape, seed=3)
    out.backward(constant(v, device))
    want.backward(torch.tensor(v))
    close(a.grad, b.grad.numpy())
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        close(p.grad, q.grad.numpy())


# --- TL: layers ----------------------------------------------------------------------------------


def test_TL_1_layer_norm(device: str) -> None:
    pair = copied(nn.LayerNorm((3, 4), dtype="float64", device=device), torch.nn.LayerNorm((3, 4)))
    same_layer(*pair, numbers(2, 3, 4), device)
    x, w, b = (leaf(numbers(*s, seed=i), device) for i, s in enumerate(((2, 4), (4,), (4,))))
    assert eg.gradcheck(lambda x, w, b: eg.layer_norm(x, (4,), w, b), (x, w, b))


def test_TL_2_conv2d(device: str) -> None:
    options = {"stride": 2, "padding": 1, "groups": 2}
    ours = nn.Conv2d(4, 2, 3, dtype="float64", device=device, **options)
    same_layer(*copied(ours, torch.nn.Conv2d(4, 2, 3, **options)), numbers(2, 4, 5, 6), device)
    x, w, b = (
        leaf(numbers(*s, seed=i), device) for i, s in enumerate(((1, 2, 4, 3), (2, 1, 2, 2), (2,)))
    )
    assert eg.gradcheck(lambda x, w, b: eg.conv2d(x, w, b, groups=2, padding=1), (x, w, b))


@pytest.mark.parametrize("training", [True, False])
def test_TL_3_20_batch_norm_in_training_and_evaluation(device: str, training: bool) -> None:
    ours, theirs = copied(
        nn.BatchNorm2d(3, dtype="float64", device=device), torch.nn.BatchNorm2d(3)
    )
    for seed in range(2):  # so that the running statistics are not what they were made as
        x = numbers(4, 3, 2, 2, seed=seed)
        ours(constant(x, device))
        theirs(torch.tensor(x))
    close(ours.running_mean, theirs.running_mean.numpy())
    close(ours.running_var, theirs.running_var.numpy())
    ours.train(training)
    theirs.train(training)
    same_layer(ours, theirs, numbers(4, 3, 2, 2, seed=7), device)
    ours = nn.BatchNorm2d(2, dtype="float64", device=device).train(training)
    assert eg.gradcheck(ours, (leaf(numbers(2, 2, 2, 1), device),))


@pytest.mark.parametrize("training", [True, False])
def test_TL_4_dropout(device: str, training: bool) -> None:
    layer = nn.Dropout(0.4).train(training)
    x = leaf(numbers(200) + 5, device)
    eg.manual_seed(1)
    out = layer(x)
    out.sum().backward()
    kept = values(out) != 0
    close(x.grad, np.where(kept, 1 / 0.6, 0.0) if training else np.ones(200))
    assert kept.all() != training


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("name", ["sum", "mean", "max", "var"])
def test_TL_5_9_reductions_over_every_axis(device: str, name: str, keepdims: bool) -> None:
    theirs = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax}
    var = lambda t, axis, keep: torch.var(t, axis, correction=0, keepdim=keep)  # noqa: E731
    for shape in ((3, 3), (2, 3), (4,), (2, 3, 4)):
        axes: list[Any] = [*range(-len(shape), len(shape)), tuple(range(len(shape)))]
        axes += [(0, -1)] if len(shape) > 1 else []
        for axis in axes:
            like_torch(
                lambda x, a=axis: getattr(eg, name)(x, axis=a, keepdims=keepdims),
                lambda x, a=axis: (
                    var(x, a, keepdims) if name == "var" else theirs[name](x, a, keepdim=keepdims)
                ),
                numbers(*shape), device=device,
            )  # fmt: skip


def test_TL_6_pow_broadcasts_and_has_pytorchs_slopes(device: str) -> None:
    base, exponent = np.abs(numbers(3, 1)) + 0.1, numbers(4)
    like_torch(lambda x, y: x**y, lambda x, y: x**y, base, exponent, device=device)
    x, y = leaf([-2.0, 0.0, 0.0, -2.0], device), leaf([2.0, 2.0, 0.0, 3.0], device)
    (x**y).sum().backward()
    assert x.grad.tolist() == [-4.0, 0.0, 0.0, 12.0]
    # powers of negative numbers have no slope in the exponent
    np.testing.assert_array_equal(y.grad.numpy(), [np.nan, 0.0, 0.0, np.nan])
    fixed = constant([2.0], device)
    out = leaf([3.0], device) ** fixed
    assert out._node.parents[1] is None
    assert out._node.saved[0] is None  # out is what the exponent's derivative alone would need


@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
def test_TL_8_negative_axes(device: str, axis: int) -> None:
    x, w = numbers(3, 4), numbers(3, 4, seed=1)
    pairs = {
        "softmax": (lambda t: eg.softmax(t, axis=axis), lambda t: F.softmax(t, axis)),
        "log_softmax": (lambda t: eg.log_softmax(t, axis=axis), lambda t: F.log_softmax(t, axis)),
        "logsumexp": (
            lambda t: eg.logsumexp(t, axis=axis, keepdims=True),
            lambda t: torch.logsumexp(t, axis, keepdim=True),
        ),
        "flip": (lambda t: eg.flip(t, axis=axis), lambda t: torch.flip(t, (axis,))),
        "roll": (lambda t: eg.roll(t, 1, axis=axis), lambda t: torch.roll(t, 1, axis)),
        "concat": (
            lambda t: eg.concat([t, t * 2], axis=axis), lambda t: torch.cat([t, t * 2], axis)
        ),
        "stack": (lambda t: eg.stack([t, t * t], axis=axis),
                  lambda t: torch.stack([t, t * t], axis)),
        "split": (lambda t: eg.split(t, 2, axis=axis)[0], lambda t: torch.split(t, 2, axis)[0]),
    }  # fmt: skip
    for ours, theirs in pairs.values():
        like_torch(ours, theirs, x, device=device)
    index = np.array([[0, 1, 2, 0]])
    like_torch(
        lambda t, w: (t * w).gather(eg.tensor(index, device=device), axis=axis),
        lambda t, w: (t * w).gather(axis, torch.tensor(index)), x, w, device=device,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "int8", "uint64"])
def test_TL_10_11_labels_and_indices_of_every_integer(device: str, dtype: str) -> None:
    x, labels = numbers(4, 3), np.array([0, 2, 1, 2])
    like_torch(
        lambda t: eg.cross_entropy(t, constant(labels, device, dtype)),
        lambda t: F.cross_entropy(t, torch.tensor(labels)), x, device=device,
    )  # fmt: skip
    ignored = 100 if dtype in ("int8", "uint64") else 200 if dtype == "uint8" else -100
    some = np.array([0, ignored, 1, 2])
    like_torch(
        lambda t: eg.cross_entropy(t, constant(some, device, dtype), ignore_index=ignored),
        lambda t: F.cross_entropy(t, torch.tensor(some), ignore_index=ignored), x, device=device,
    )  # fmt: skip
    table = numbers(3, 2)
    like_torch(
        lambda w: eg.embedding(constant(labels, device, dtype), w),
        lambda w: F.embedding(torch.tensor(labels), w), table, device=device,
    )  # fmt: skip
    with pytest.raises(IndexError, match="cross_entropy: label 3 is out of range") as caught:
        values(eg.cross_entropy(constant(x, device), constant([0, 3, 1, 2], device, dtype)))
    assert isinstance(caught.value, OutOfRangeError)
    with pytest.raises(IndexError, match="index 7 is out of range for an axis of size 3"):
        values(eg.embedding(constant([0, 7], device, dtype), constant(table, device)))
    with pytest.raises(DtypeError, match="index must be an integer tensor, got float64"):
        eg.embedding(constant([0.0], device), constant(table, device))


def test_TL_12_every_op_reaches_the_leaf_through_another(device: str) -> None:
    """x -> x * 1 -> op -> sum reaches every floating-point input."""
    checked: set[str] = set()
    for name in WITH_SAMPLES:
        op = REGISTRY[name]
        if op.constant:
            continue
        sample = next(samples_of(op, device), None)
        if sample is None:
            continue
        given = map_sample(sample, to_tensor(device, grad=True))
        leaves = leaves_of(given)

        def through(t: Any) -> Any:
            if type(t) in (list, tuple):
                return type(t)(through(v) for v in t)
            return t * 1.0 if isinstance(t, eg.Tensor) and t.requires_grad else t

        moved = type(sample)(through(given.args), {k: through(v) for k, v in given.kwargs.items()})
        outs = [o for o in call(function_of(op), moved) if o.requires_grad]
        if not outs or not leaves:
            continue
        seeds = [eg.ones(o.shape, dtype=o.dtype, device=o.device) for o in outs]
        found = eg.autograd.grad(outs, leaves, seeds)  # raises if one is not reached
        assert all(g.shape == x.shape for g, x in zip(found, leaves, strict=True)), name
        checked.add(name)
    assert len(checked) > len(WITH_SAMPLES) / 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_TL_13_every_op_keeps_its_dtype_forward_and_back(device: str, dtype: str) -> None:
    checked: set[str] = set()
    for name in WITH_SAMPLES:
        op = REGISTRY[name]
        for one in samples_of(op, device):
            # astype has a dtype of its own; sums of exponentials are kept in float32
            if name in ("astype", "attention_log_sums") or not any(
                is_float(a) for a in _arrays(one)
            ):
                continue
            given = map_sample(in_dtype(one, dtype), to_tensor(device, grad=True))
            outs = [o for o in call(function_of(op), given) if o.dtype.is_differentiable]
            assert all(str(o.dtype) == dtype for o in outs if not o.dtype.is_complex), name
            leaves = leaves_of(given)
            outs = [o for o in outs if o.requires_grad]
            if outs and leaves:
                seeds = [eg.ones(o.shape, dtype=o.dtype, device=o.device) for o in outs]
                for g in eg.autograd.grad(outs, leaves, seeds, allow_unused=True):
                    assert g is None or str(g.dtype) == dtype, name
                checked.add(name)
    assert len(checked) > len(WITH_SAMPLES) / 2


def _arrays(sample: Any) -> list[Any]:
    found: list[Any] = []
    map_sample(sample, found.append)
    return found


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_TL_18_FT_6_one_element_shapes_keep_apart(device: str, shape: Any) -> None:
    for other in ((), (1,), (1, 1)):
        x, y = leaf(np.full(shape, 2.0), device), leaf(np.full(other, 3.0), device)
        out = x * y + y
        assert out.shape == np.broadcast_shapes(shape, other)
        out.backward()
        assert x.grad.shape == shape
        assert y.grad.shape == other
        assert (x.grad.item(), y.grad.item()) == (3.0, 3.0)
    z = leaf(np.full(shape, 2.0), device)
    z.sum().backward()
    assert z.grad.shape == shape


def test_TL_19_one_visit_to_each_node(device: str) -> None:
    x = leaf(1.0, device)
    y = x
    visits: list[float] = []
    for _ in range(64):
        y = y + y
        y.register_hook(lambda g: visits.append(g.item()))
    y.backward()
    assert visits == [2.0**k for k in range(64)]
    assert x.grad.item() == 2.0**64


def test_TL_21_dropout_masks(device: str) -> None:
    x = eg.ones((100_000,), device=device)
    eg.manual_seed(11)
    first, second = eg.dropout(x, 0.3), eg.dropout(x, 0.3)
    assert (values(first) != values(second)).any()
    for mask in (first, second):
        assert abs((values(mask) != 0).mean() - 0.7) < 0.01
        assert set(np.unique(values(mask)).tolist()) == {0.0, float(np.float32(1 / 0.7))}
    eg.manual_seed(11)
    np.testing.assert_array_equal(values(eg.dropout(x, 0.3)), values(first))
    own = [eg.dropout(x, 0.3, generator=eg.Generator(4)) for _ in range(2)]
    np.testing.assert_array_equal(values(own[0]), values(own[1]))


def test_TL_22_detach(device: str) -> None:
    x = leaf([1.0], device)
    y = (x * 2).detach()
    assert not y.requires_grad
    assert y.is_leaf
    (x * y).backward()
    assert x.grad.item() == 2.0
    assert x.requires_grad


ARGUMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "conv2d": (
        lambda **o: eg.conv2d(IMAGE, KERNEL, **o),
        {"bias": eg.ones((2,), dtype="float64"), "stride": 2, "padding": 1, "dilation": 2},
    ),
    "max_pool2d": (
        lambda **o: eg.max_pool2d(IMAGE, 2, **o), {"stride": 1, "padding": 1, "dilation": 2}
    ),
    "avg_pool2d": (lambda **o: eg.avg_pool2d(IMAGE, 2, **o), {"stride": 1, "padding": 1}),
    "avg_pool2d padded": (
        lambda **o: eg.avg_pool2d(IMAGE, 2, padding=1, **o), {"count_include_pad": False}
    ),
    "sum": (lambda **o: eg.sum(IMAGE, **o), {"axis": 1, "keepdims": True, "dtype": "float32"}),
    "var": (lambda **o: eg.var(IMAGE, **o), {"axis": 1, "correction": 1, "keepdims": True}),
    "argmax": (lambda **o: eg.argmax(IMAGE, **o), {"axis": 1, "keepdims": True}),
    "softmax": (lambda **o: eg.softmax(IMAGE, **o), {"axis": 1}),
    "layer_norm": (
        lambda **o: eg.layer_norm(IMAGE, (5,), **o),
        {"weight": eg.arange(5, dtype="float64"), "bias": eg.arange(5, dtype="float64"),
         "eps": 1.0},
    ),
    "cross_entropy": (
        lambda **o: eg.cross_entropy(IMAGE[:, :, 0, 0], eg.tensor([0, 1, 1]), **o),
        {"weight": eg.tensor([1.0, 5.0], dtype="float64"), "ignore_index": 0, "reduction": "sum",
         "label_smoothing": 0.3},
    ),
    "mse_loss": (lambda **o: eg.mse_loss(IMAGE, IMAGE * 2, **o), {"reduction": "sum"}),
    "pad": (lambda **o: eg.pad(IMAGE, 1, **o), {"value": 3.0}),
    "clamp": (lambda **o: eg.clamp(IMAGE, **o), {"min": 0.0, "max": 0.5}),
    "tril": (lambda **o: eg.tril(IMAGE, **o), {"k": 1}),
    "concat": (lambda **o: eg.concat([IMAGE, IMAGE * 2], **o), {"axis": 1}),
}  # fmt: skip
IMAGE = constant(numbers(3, 2, 5, 5), "cpu")
KERNEL = constant(numbers(2, 2, 2, 2, seed=1), "cpu")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_TL_23_every_argument_counts(name: str) -> None:
    function, options = ARGUMENTS[name]
    usual = function()
    for option, value in options.items():
        changed = function(**{option: value})
        differs = (
            changed.shape != usual.shape
            or changed.dtype is not usual.dtype
            or bool((changed != usual).any())
        )
        assert differs, f"{name}: {option}={value} makes no difference"
    grouped = eg.conv2d(IMAGE, KERNEL[:, :1], groups=2)
    assert bool((grouped != eg.conv2d(IMAGE, KERNEL)).any())

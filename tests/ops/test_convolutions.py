"""Convolution, pooling, resampling and norms against PyTorch: values and derivatives, twice."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn as tnn

import everygrad as eg
from everygrad import nn
from everygrad.errors import ShapeError
from tests.support.checks import close, fitted, is_narrow, values

RNG = np.random.default_rng(7)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape)


def agree(ours: Any, theirs: Any, *arrays: Any, twice: bool = True, digits: float = 1e-9) -> None:
    """Values, first derivatives, and derivatives of a sum over the first ones."""
    xs = [eg.tensor(a, requires_grad=True) for a in arrays]
    ts = [torch.tensor(a, requires_grad=True) for a in arrays]
    out, want = ours(*xs), theirs(*ts)
    close(out, want.detach().numpy(), digits)
    v = np.random.default_rng(1).uniform(-1, 1, want.shape)
    got = eg.autograd.grad([out], xs, [eg.tensor(v)], create_graph=twice)
    grads = torch.autograd.grad(want, ts, torch.tensor(v), create_graph=twice)
    for a, b in zip(got, grads, strict=True):
        close(a, b.detach().numpy(), digits)
    if not twice or not any(b.requires_grad for b in grads):
        return
    total = sum((g * g).sum() for g in got)
    other = sum((g * g).sum() for g in grads)
    if not total.requires_grad:
        assert all(torch.all(g == 0) for g in torch.autograd.grad(other, ts) if g is not None)
        return
    second = eg.autograd.grad(total, xs, allow_unused=True)
    expected = torch.autograd.grad(other, ts, allow_unused=True)
    for x, a, b in zip(xs, second, expected, strict=True):
        close(
            np.zeros(x.shape) if a is None else a,
            np.zeros(x.shape) if b is None else b.numpy(force=True),  # torch's zeros may be lazy
            10 * digits,
        )


# --- convolution ---------------------------------------------------------------------------------

ARGUMENTS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (1, {"stride": 3, "padding": 2, "dilation": 2, "groups": 2}),
    (1, {"padding": "same", "dilation": 2}),
    (2, {"padding": "valid", "groups": 2}),
    (2, {"padding": "same", "dilation": (1, 2)}),
    (3, {}),
    (3, {"stride": (2, 1, 2), "padding": (1, 0, 2), "dilation": (1, 2, 1), "groups": 2}),
    (3, {"padding": "same"}),
]


@pytest.mark.parametrize(("places", "options"), ARGUMENTS)
def test_convolution(places: int, options: dict[str, Any]) -> None:
    c = 2 // options.get("groups", 1)
    x, w, b = numbers(2, 2, *(6, 5, 4)[:places]), numbers(4, c, *(3, 1, 3)[:places]), numbers(4)
    name = f"conv{places}d"
    agree(
        lambda *t: getattr(eg, name)(*t, **options),
        lambda *t: getattr(F, name)(*t, **options),
        x,
        w,
        b,
    )


@pytest.mark.parametrize("places", [1, 2, 3])
def test_depthwise(places: int) -> None:
    x, w = numbers(1, 3, *(5, 4, 4)[:places]), numbers(6, 1, *(2, 3, 2)[:places])
    name = f"conv{places}d"
    agree(
        lambda *t: getattr(eg, name)(*t, groups=3, padding=1),
        lambda *t: getattr(F, name)(*t, groups=3, padding=1),
        x,
        w,
    )


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_padding_modes_of_layers(places: int, mode: str) -> None:
    kind = f"Conv{places}d"
    torch.manual_seed(0)
    theirs = getattr(tnn, kind)(2, 3, 3, padding=1, padding_mode=mode, dtype=torch.float64)
    layer = getattr(nn, kind)(2, 3, 3, padding=1, padding_mode=mode, dtype="float64")
    layer.load_state_dict({k: eg.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    assert f"padding_mode={mode!r}" in repr(layer) or mode == "zeros"
    agree(layer, theirs, numbers(2, 2, *(3, 4, 5)[:places]))


def test_asymmetric_padding(device: str) -> None:
    x, w = fitted(numbers(1, 2, 4, 3), device), fitted(numbers(2, 2, 2, 2), device)
    out = eg.conv2d(
        eg.tensor(x, device=device), eg.tensor(w, device=device), padding=((2, 0), (0, 1)), stride=2
    )
    padded = np.pad(x, ((0, 0), (0, 0), (2, 0), (0, 1)))
    close(out, F.conv2d(torch.tensor(padded), torch.tensor(w), stride=2).numpy(), 1e-9)


TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 3, "output_padding": 2, "dilation": 2, "groups": 2},
    {"stride": 1, "dilation": 3, "output_padding": 2, "padding": 1},  # beyond the stride
    {"stride": 2, "dilation": 4, "output_padding": 3},  # beyond what kernels reach: zeros
]


@pytest.mark.parametrize("options", TRANSPOSED)
@pytest.mark.parametrize("places", [1, 2, 3])
def test_transposed(places: int, options: dict[str, Any]) -> None:
    c = 4 // options.get("groups", 1)
    x, w, b = numbers(2, 2, *(3, 2, 3)[:places]), numbers(2, c, *(3, 2, 2)[:places]), numbers(4)
    name = f"conv_transpose{places}d"
    agree(
        lambda *t: getattr(eg, name)(*t, **options),
        lambda *t: getattr(F, name)(*t, **options),
        x,
        w,
        b,
    )


def test_transposed_layer_with_a_size() -> None:
    theirs = tnn.ConvTranspose2d(2, 3, 3, stride=2, dtype=torch.float64)
    layer = nn.ConvTranspose2d(2, 3, 3, stride=2, dtype="float64")
    layer.load_state_dict({k: eg.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    size = [1, 3, 8, 7]
    agree(lambda x: layer(x, output_size=size), lambda x: theirs(x, size[2:]), numbers(1, 2, 3, 3))
    with pytest.raises(ShapeError, match=r"output_size .* must be"):
        layer(eg.ones((1, 2, 3, 3), "float64"), output_size=(9, 9))


def test_halves_under_autocast() -> None:
    x, w, b = eg.ones((1, 2, 5)), eg.ones((2, 3, 3)), eg.ones((3,))
    with eg.autocast():
        assert eg.conv_transpose1d(x, w, b).dtype is eg.bfloat16
        assert eg.conv1d(x, eg.ones((3, 2, 2)), b).dtype is eg.bfloat16


# --- pooling -------------------------------------------------------------------------------------

SIZES = {1: (9,), 2: (7, 6), 3: (5, 6, 4)}


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_pooling(places: int, ceil: bool) -> None:
    x = numbers(2, 3, *SIZES[places])
    for k, st, p in ((2, None, 0), (3, 2, 1), (2, 3, 1)):
        for kind in ("max", "avg"):
            ours, theirs = (getattr(m, f"{kind}_pool{places}d") for m in (eg, F))
            agree(
                lambda t, f=ours, a=(k, st, p): f(t, *a, ceil_mode=ceil),
                lambda t, f=theirs, a=(k, st, p): f(t, *a, ceil_mode=ceil),
                x,
            )
        out, index = getattr(eg, f"max_pool{places}d")(
            eg.tensor(x), k, st, p, 1, ceil, return_indices=True
        )
        want = getattr(F, f"max_pool{places}d")(
            torch.tensor(x), k, st, p, 1, ceil_mode=ceil, return_indices=True
        )
        close(out, want[0].numpy(), 0)
        np.testing.assert_array_equal(values(index), want[1].numpy())
    agree(
        lambda t: getattr(eg, f"avg_pool{places}d")(t, 3, 2, 1, ceil, False),
        lambda t: getattr(F, f"avg_pool{places}d")(t, 3, 2, 1, ceil, False),
        x,
    )
    agree(
        lambda t: getattr(eg, f"lp_pool{places}d")(t, 2, 3, 2, ceil),
        lambda t: getattr(F, f"lp_pool{places}d")(t, 2, 3, 2, ceil),
        x,
    )


def test_divisor_override() -> None:
    agree(
        lambda t: eg.avg_pool2d(t, 2, divisor_override=3),
        lambda t: F.avg_pool2d(t, 2, divisor_override=3),
        numbers(1, 2, 4, 4),
    )


def test_pooling_beyond_the_end_prefers_what_is_there(device: str) -> None:
    """Equal to the padding, and still an index of the image."""
    x = eg.full((1, 1, 3, 3), -np.inf, device=device)
    _, index = eg.max_pool2d(x, 2, ceil_mode=True, return_indices=True)
    assert index.tolist() == [[[[0, 2], [6, 8]]]]
    low = eg.full((1, 1, 3), -128, dtype="int8", device=device)
    out, index = eg.max_pool1d(low, 2, ceil_mode=True, return_indices=True)
    assert index.tolist() == [[[0, 2]]]
    assert out.tolist() == [[[-128, -128]]]


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("places", [1, 2, 3])
def test_windows_wholly_in_the_padding(places: int, ceil: bool, device: str) -> None:
    """With dilation a window can reach over the image: minus infinity as in PyTorch, the index -1
    and no gradient; the others are as ever."""
    pool = getattr(eg, f"max_pool{places}d")
    missed = checked = 0
    for n, k, d, st in product((1, 2, 3, 7), (2, 3), (2, 3, 5), (1, 2)):
        size = (n, *(max(n, d * (k - 1) - 1),) * (places - 1))
        if n + 2 * (k // 2) < d * (k - 1) + 1:
            continue
        x = fitted(numbers(2, 1, *size), device)
        given = (k, st, k // 2, d)
        t = torch.tensor(x, requires_grad=True)
        want = getattr(F, f"max_pool{places}d")(t, *given, ceil_mode=ceil)
        want[want > -np.inf].sum().backward()
        for way in (lambda f: f, eg.jit):
            for with_index in (False, True):
                ours = eg.tensor(x, device=device, requires_grad=True)
                out = way(partial(pool, ceil_mode=ceil, return_indices=with_index))(ours, *given)
                out, index = out if with_index else (out, None)
                np.testing.assert_array_equal(values(out), want.detach().numpy())
                there = np.isfinite(values(out))
                if index is not None:
                    flat = x.reshape(2, -1)
                    at = values(index).reshape(2, -1)
                    assert ((at >= 0) == there.reshape(2, -1)).all()
                    took = np.take_along_axis(flat, np.maximum(at, 0), 1)
                    assert (took == values(out).reshape(2, -1))[at >= 0].all()
                eg.where(out > -np.inf, out, 0.0).sum().backward()
                np.testing.assert_array_equal(values(ours.grad), t.grad.numpy())
                missed += not there.all()
                checked += 1
    assert missed >= 4
    assert checked >= 40
    low = pool(eg.ones((1, 1, *(1,) * places), dtype="int8", device=device), 2, 1, 1, 2)
    assert low.numpy().tolist() == np.full((1, 1, *(1,) * places), -128).tolist()


def test_nan_wins_in_volumes(device: str) -> None:
    x = fitted(numbers(1, 1, 4, 4, 4), device)
    x[0, 0, 3, 1, 2] = np.nan
    out = values(eg.max_pool3d(eg.tensor(x, device=device), 2))
    np.testing.assert_array_equal(np.argwhere(np.isnan(out)), [[0, 0, 1, 0, 1]])
    out = values(eg.adaptive_max_pool3d(eg.tensor(x, device=device), 3))
    assert np.isnan(out[0, 0, 2, 1, 1])


@pytest.mark.parametrize("places", [1, 2, 3])
def test_adaptive_pooling(places: int) -> None:
    x = numbers(2, 3, *SIZES[places])
    for size in ((3, 4, 2)[:places], (1,) * places, (4, None, 7)[:places], (11,) * places):
        for kind in ("avg", "max"):
            ours, theirs = (getattr(m, f"adaptive_{kind}_pool{places}d") for m in (eg, F))
            agree(lambda t, f=ours, s=size: f(t, s), lambda t, f=theirs, s=size: f(t, s), x)
        _, index = getattr(eg, f"adaptive_max_pool{places}d")(eg.tensor(x), size, True)
        _, want = getattr(F, f"adaptive_max_pool{places}d")(torch.tensor(x), size, True)
        np.testing.assert_array_equal(values(index), want.numpy())


@pytest.mark.parametrize("places", [1, 2, 3])
def test_unpooling(places: int) -> None:
    x = numbers(2, 3, *(8, 6, 4)[:places])
    out, index = F.__dict__[f"max_pool{places}d"](torch.tensor(x), 2, return_indices=True)
    ours, theirs = (getattr(m, f"max_unpool{places}d") for m in (eg, F))
    places_of = eg.tensor(index.numpy())
    agree(lambda t: ours(t, places_of, 2), lambda t: theirs(t, index, 2), out.numpy())
    size = (9, 7, 5)[:places]
    got = ours(eg.tensor(out.numpy()), places_of, 2, output_size=size)
    close(got, theirs(out, index, 2, output_size=size).numpy(), 0)


@pytest.mark.parametrize("options", [{}, {"dilation": 2, "padding": (1, 2), "stride": (2, 1)}])
def test_columns(options: dict[str, Any]) -> None:
    x = numbers(2, 3, 6, 5)
    agree(
        lambda t: nn.functional.unfold(t, (2, 3), **options),
        lambda t: F.unfold(t, (2, 3), **options),
        x,
    )
    columns = F.unfold(torch.tensor(x), (2, 3), **options).numpy()
    agree(
        lambda t: nn.functional.fold(t, (6, 5), (2, 3), **options),
        lambda t: F.fold(t, (6, 5), (2, 3), **options),
        columns,
    )


# --- resampling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "mode"),
    [*product((1, 2, 3), ("nearest", "nearest-exact", "area", "linear")), (2, "bicubic")],
)
def test_interpolate(places: int, mode: str) -> None:
    name = {"linear": ("linear", "bilinear", "trilinear")[places - 1]}.get(mode, mode)
    x = numbers(1, 2, *(5, 4, 3)[:places])
    sizes = [{"size": (7, 9, 2)[:places]}, {"scale_factor": 1.7}, {"scale_factor": 0.6}]
    sizes += [{"scale_factor": 2.3, "recompute_scale_factor": True}, {"size": (10, 8, 6)[:places]}]
    corners = (True, False) if mode in ("linear", "bicubic") else (None,)
    for options in sizes:
        for align in corners:
            agree(
                lambda t, o=options, a=align: eg.interpolate(t, mode=name, align_corners=a, **o),
                lambda t, o=options, a=align: F.interpolate(t, mode=name, align_corners=a, **o),
                x,
            )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_interpolate_without_aliases(mode: str) -> None:
    x = numbers(1, 2, 9, 7)
    sizes = [{"size": (4, 3)}, {"size": (12, 9)}, {"size": (1, 20)}, {"size": (9, 5)}]
    sizes += [{"scale_factor": 0.37}, {"scale_factor": 1.6}]
    for options in sizes:
        for align in (True, False):
            given = {"mode": mode, "antialias": True, "align_corners": align, **options}
            ours, theirs = (
                (lambda t, fn=fn, given=given: fn(t, **given))
                for fn in (eg.interpolate, F.interpolate)
            )
            agree(ours, theirs, x)


def test_nearest_reads_where_pytorch_does() -> None:
    """Places that are whole numbers up to rounding."""
    for n, out in ((7, 49), (3, 50), (49, 7), (10, 3), (23, 161), (1, 9), (97, 41)):
        x = np.arange(float(n)).reshape(1, 1, n)
        for mode in ("nearest", "nearest-exact"):
            got = eg.interpolate(eg.tensor(x), out, mode=mode)
            close(got, F.interpolate(torch.tensor(x), out, mode=mode).numpy(), 0, f"{n} {out}")


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_grid_sample(mode: str, padding: str, align: bool) -> None:
    options = {"mode": mode, "padding_mode": padding, "align_corners": align}
    grid = RNG.uniform(-2.5, 2.5, (2, 4, 3, 2))
    agree(
        lambda x, g: eg.grid_sample(x, g, **options),
        lambda x, g: F.grid_sample(x, g, **options),
        numbers(2, 3, 5, 4),
        grid,
        twice=False,  # torch has no second derivative; differences hold in test_ops_derivatives
    )
    if mode == "bilinear":
        agree(
            lambda x, g: eg.grid_sample(x, g, **options),
            lambda x, g: F.grid_sample(x, g, **options),
            numbers(1, 2, 3, 4, 2),
            RNG.uniform(-2.5, 2.5, (1, 2, 3, 2, 3)),
            twice=False,
        )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_nearest(padding: str, device: str) -> None:
    x, grid = fitted(numbers(2, 3, 5, 4), device), fitted(RNG.uniform(-2, 2, (2, 4, 3, 2)), device)
    got = eg.grid_sample(
        eg.tensor(x, device=device), eg.tensor(grid, device=device), "nearest", padding
    )
    want = F.grid_sample(
        torch.tensor(x), torch.tensor(grid), "nearest", padding, align_corners=False
    )
    close(got, want.numpy(), 1e-12)


# --- norms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [1, 2, 3])
@pytest.mark.parametrize("kind", ["BatchNorm", "InstanceNorm"])
def test_norms_with_running_statistics(kind: str, places: int) -> None:
    name = f"{kind}{places}d"
    options = {"affine": True, "track_running_stats": True}
    theirs = getattr(tnn, name)(3, dtype=torch.float64, **options)
    layer = getattr(nn, name)(3, dtype="float64", **options)
    for training in (True, True, False):
        theirs.train(training)
        layer.train(training)
        agree(layer, theirs, numbers(4, 3, *(3, 2, 2)[:places]), digits=1e-8)
        for key, value in theirs.state_dict().items():
            close(layer.state_dict()[key], value.numpy(), 1e-10, key)


def test_batch_norm_of_vectors() -> None:
    agree(
        nn.BatchNorm1d(3, dtype="float64"), tnn.BatchNorm1d(3, dtype=torch.float64), numbers(5, 3)
    )
    with pytest.raises(ShapeError, match="BatchNorm1d: takes"):
        nn.BatchNorm1d(3)(eg.ones((2, 3, 4, 4)))


def test_norms() -> None:
    x, w, b = numbers(2, 6, 3, 2), numbers(6), numbers(6)
    agree(
        lambda *t: eg.group_norm(t[0], 3, *t[1:]), lambda *t: F.group_norm(t[0], 3, *t[1:]), x, w, b
    )
    agree(lambda t: eg.instance_norm(t), lambda t: F.instance_norm(t), x)
    agree(
        lambda t: eg.local_response_norm(t, 4, 0.3, 0.6, 1.5),
        lambda t: F.local_response_norm(t, 4, 0.3, 0.6, 1.5),
        x,
    )
    y, v = numbers(3, 2, 4), numbers(2, 4)
    agree(
        lambda *t: eg.rms_norm(t[0], (2, 4), t[1]), lambda *t: F.rms_norm(t[0], (2, 4), t[1]), y, v
    )
    for layer, other in (
        (nn.RMSNorm(4, dtype="float64"), tnn.RMSNorm(4, dtype=torch.float64)),
        (nn.GroupNorm(1, 2, dtype="float64"), tnn.GroupNorm(1, 2, dtype=torch.float64)),
        (nn.LocalResponseNorm(2), tnn.LocalResponseNorm(2)),
    ):
        agree(layer, other, y)


# --- layers --------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "max pool": (lambda n: n.MaxPool3d(2, 1, 1, ceil_mode=True), (1, 2, 3, 4, 3)),
    "avg pool": (lambda n: n.AvgPool1d(3, 2, 1, count_include_pad=False), (2, 2, 7)),
    "lp pool": (lambda n: n.LPPool2d(2, 2), (2, 2, 4, 5)),
    "adaptive avg": (lambda n: n.AdaptiveAvgPool2d((2, 3)), (1, 2, 5, 4)),
    "adaptive max": (lambda n: n.AdaptiveMaxPool1d(3), (1, 2, 5)),
    "upsample": (lambda n: n.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 2)),
    "pixel shuffle": (lambda n: n.PixelShuffle(2), (1, 8, 2, 3)),
    "pixel unshuffle": (lambda n: n.PixelUnshuffle(2), (1, 2, 4, 6)),
    "channel shuffle": (lambda n: n.ChannelShuffle(2), (1, 6, 2, 2)),
    "unfold": (lambda n: n.Unfold(2, padding=1), (1, 2, 3, 4)),
    "fold": (lambda n: n.Fold((3, 4), 2), (1, 8, 6)),
    "constant pad": (lambda n: n.ConstantPad1d((1, 2), 3.5), (2, 3)),
    "zero pad": (lambda n: n.ZeroPad2d((1, 2, 0, 3)), (1, 2, 3, 4)),
    "reflection pad": (lambda n: n.ReflectionPad2d((1, 2, 0, 1)), (1, 2, 3, 4)),
    "replication pad": (lambda n: n.ReplicationPad3d(2), (1, 2, 2, 3, 2)),
    "circular pad": (lambda n: n.CircularPad2d((2, 1, 0, 3)), (1, 1, 3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    make, shape = LAYERS[name]
    layer, theirs = make(nn), make(tnn)
    assert repr(layer).startswith(type(theirs).__name__)
    agree(layer, theirs, numbers(*shape))


def test_unpool_layer() -> None:
    x = numbers(1, 2, 4, 4)
    out, index = nn.MaxPool2d(2, return_indices=True)(eg.tensor(x))
    want = tnn.MaxUnpool2d(2)(*tnn.MaxPool2d(2, return_indices=True)(torch.tensor(x)))
    close(nn.MaxUnpool2d(2)(out, index), want.numpy(), 0)


@pytest.mark.parametrize("places", [1, 3])
def test_large_and_compiled(places: int, device: str) -> None:
    """What runs on native kernels, in a compiled function, with its gradients."""
    x = numbers(2, 8, *{1: (300,), 3: (6, 20, 20)}[places]).astype(np.float32)
    w = numbers(8, 8, *(3,) * places).astype(np.float32)
    conv, back = (getattr(eg, f"conv{t}{places}d") for t in ("", "_transpose"))
    pool = getattr(eg, f"max_pool{places}d")

    def loss(x: Any, w: Any) -> Any:
        return (pool(back(conv(x, w, padding=1, stride=2), w, stride=2), 3, 2) ** 2).sum()

    def reference(x: Any, w: Any) -> Any:
        conv, back, pool = (
            getattr(F, f"{n}{places}d") for n in ("conv", "conv_transpose", "max_pool")
        )
        return (pool(back(conv(x, w, padding=1, stride=2), w, stride=2), 3, 2) ** 2).sum()

    ts = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w)]
    want = torch.autograd.grad(reference(*ts), ts)
    xs = [eg.tensor(a, device=device) for a in (x, w)]
    for fn in (eg.grad(loss, (0, 1)), eg.jit(eg.grad(loss, (0, 1)))):
        for a, b in zip(fn(*xs), want, strict=True):
            close(a, b.numpy(), 2e-4 if is_narrow(device) else 1e-4)


EMPTY: dict[str, tuple[Any, tuple[int, ...]]] = {
    "conv1d": (lambda x: eg.conv1d(x, eg.ones((3, 2, 3), device=x.device)), (0, 2, 5)),
    "conv3d": (lambda x: eg.conv3d(x, eg.ones((3, 2, 2, 2, 2), device=x.device)), (0, 2, 3, 3, 3)),
    "transposed": (
        lambda x: eg.conv_transpose2d(x, eg.ones((2, 3, 2, 2), device=x.device)), (0, 2, 3, 3)
    ),
    "max pool": (lambda x: eg.max_pool3d(x, 2, ceil_mode=True), (0, 2, 3, 3, 3)),
    "avg pool": (lambda x: eg.avg_pool1d(x, 3, 2, 1, True), (0, 2, 6)),
    "lp pool": (lambda x: eg.lp_pool2d(x, 2.0, 2), (0, 2, 6, 6)),
    "adaptive avg": (lambda x: eg.adaptive_avg_pool2d(x, 4), (0, 2, 6, 6)),
    "adaptive max": (lambda x: eg.adaptive_max_pool2d(x, 4), (0, 2, 6, 6)),
    "unpool": (lambda x: eg.max_unpool1d(x, eg.zeros_like(x).astype("int64"), 2), (0, 2, 3)),
    "im2col": (lambda x: eg.im2col(x, 2), (0, 2, 4, 4)),
    "interpolate": (lambda x: eg.interpolate(x, (3, 5), mode="bilinear"), (0, 2, 4, 4)),
    "grid sample": (
        lambda x: eg.grid_sample(x, eg.zeros((0, 2, 2, 2), device=x.device)), (0, 2, 3, 3)
    ),
    "group norm": (lambda x: eg.group_norm(x, 2), (0, 4, 3)),
    "rms norm": (lambda x: eg.rms_norm(x, (4,)), (0, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_empty_batches(name: str, device: str) -> None:
    fn, shape = EMPTY[name]
    x = eg.ones(shape, device=device, requires_grad=True)
    out = fn(x)
    assert out.shape[0] == 0
    assert out.requires_grad
    out.sum().backward()
    assert x.grad.shape == shape


@pytest.mark.parametrize("n", [2, 7, 64, 127, 1000])
def test_aligned_corners_are_the_corners(n: int) -> None:
    """Whatever the sizes: the first and the last element come through unchanged."""
    x = eg.tensor(np.random.default_rng(n).standard_normal((1, 1, 1, n)))
    checked = 0
    for wanted in (2, 3, 14, 50, 99, 333):
        out = eg.interpolate(x, (1, wanted), mode="bicubic", align_corners=True)
        ends = [0, -1]
        assert out.numpy()[0, 0, 0, ends].tolist() == x.numpy()[0, 0, 0, ends].tolist()
        checked += 1
    assert checked == 6

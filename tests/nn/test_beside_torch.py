"""Layers, models and optimisers against PyTorch: float64, the same weights, the same data."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn as tnn

import everygrad as eg
from everygrad import nn, optim

STEPS = 20
TOLERANCE = 1e-10


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def ours(t: Any) -> Any:
    return eg.tensor(t.detach().numpy())


def distance(a: eg.Tensor, b: torch.Tensor) -> float:
    """The largest difference, beyond 1 relative to the value."""
    x, y = a.detach().numpy(), b.detach().numpy()
    assert x.shape == y.shape
    assert x.dtype == y.dtype
    return float(np.max(np.abs(x - y) / np.maximum(1, np.abs(y)), initial=0.0))


def same(a: eg.Tensor, b: torch.Tensor, what: str) -> None:
    off = distance(a, b)
    assert off <= TOLERANCE, f"{what}: {off}"  # a NaN fails too


def copied(model: nn.Module, reference: tnn.Module) -> nn.Module:
    model.to(dtype="float64")
    model.load_state_dict({k: ours(v) for k, v in reference.state_dict().items()})
    return model


# --- layers alone --------------------------------------------------------------------------------

PLACES = {"1": (3, 4), "2": (3, 4, 5), "3": (3, 4, 5, 6)}
WITHOUT_BATCH = [
    f"{kind}{count}d"
    for kind in ("MaxPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "InstanceNorm")
    for count in PLACES
]
LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "linear": (lambda n: n.Linear(4, 3), (5, 4)),
    "linear 1-d": (lambda n: n.Linear(4, 3), (4,)),
    "linear 4-d": (lambda n: n.Linear(4, 3, bias=False), (2, 3, 5, 4)),
    "conv": (lambda n: n.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7, 6)),
    "conv dilation": (lambda n: n.Conv2d(2, 3, (3, 2), dilation=(1, 2), bias=False), (2, 2, 7, 7)),
    "conv same": (lambda n: n.Conv2d(2, 3, (4, 3), padding="same", dilation=(1, 2)), (2, 2, 7, 7)),
    "conv valid": (lambda n: n.Conv2d(2, 3, 3, padding="valid"), (2, 2, 7, 7)),
    "max pool": (lambda n: n.MaxPool2d(3, stride=2, padding=1), (2, 3, 7, 7)),
    "max pool dilation": (lambda n: n.MaxPool2d(2, dilation=2), (2, 3, 7, 7)),
    "avg pool": (lambda n: n.AvgPool2d((3, 2), stride=2, padding=1), (2, 3, 7, 7)),
    "avg pool inside": (lambda n: n.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 7, 7)),
    "layer norm": (lambda n: n.LayerNorm(6), (4, 6)),
    "layer norm 2 axes": (lambda n: n.LayerNorm((3, 4), eps=0.1), (2, 3, 4)),
    "layer norm no bias": (lambda n: n.LayerNorm(6, bias=False), (4, 6)),
    "layer norm plain": (lambda n: n.LayerNorm(6, elementwise_affine=False), (4, 6)),
    "batch norm": (lambda n: n.BatchNorm2d(3), (4, 3, 2, 2)),
    "batch norm average": (lambda n: n.BatchNorm2d(3, momentum=None), (4, 3, 2, 2)),
    "batch norm plain": (lambda n: n.BatchNorm2d(3, affine=False, momentum=0.3), (4, 3, 2, 2)),
    "batch norm untracked": (lambda n: n.BatchNorm2d(3, track_running_stats=False), (4, 3, 2, 2)),
    "batch norm eps": (lambda n: n.BatchNorm2d(3, eps=0.1), (4, 3, 2, 2)),
    "batch norm no bias": (lambda n: n.BatchNorm2d(3, bias=False), (4, 3, 2, 2)),
    "group norm no bias": (lambda n: n.GroupNorm(2, 4, bias=False), (4, 4, 2)),
    "instance norm no bias": (lambda n: n.InstanceNorm1d(3, affine=True, bias=False), (2, 3, 4)),
    "one line": (lambda n: n.Conv1d(4, 6, 3, padding=1, groups=2), (4, 7)),
    "one image": (lambda n: n.Conv2d(4, 6, 3, padding="same"), (4, 7, 6)),
    "one volume": (lambda n: n.Conv3d(2, 3, 2, padding_mode="circular", padding=1), (2, 4, 5, 3)),
    "one line transposed": (lambda n: n.ConvTranspose1d(4, 6, 3, stride=2), (4, 7)),
    "one image transposed": (lambda n: n.ConvTranspose2d(4, 6, 3, padding=1), (4, 5, 6)),
    "one volume transposed": (lambda n: n.ConvTranspose3d(2, 3, 2), (2, 4, 5, 3)),
    **{f"one of {k}": (lambda n, k=k: getattr(n, k)(3), PLACES[k[-2]]) for k in WITHOUT_BATCH},
    "one of LPPool2d": (lambda n: n.LPPool2d(2, 2), (3, 4, 5)),
    "relu": (lambda n: n.ReLU(), (3, 4)),
    "leaky relu": (lambda n: n.LeakyReLU(0.2), (3, 4)),
    "gelu": (lambda n: n.GELU(), (3, 4)),
    "gelu tanh": (lambda n: n.GELU(approximate="tanh"), (3, 4)),
    "silu": (lambda n: n.SiLU(), (3, 4)),
    "sigmoid": (lambda n: n.Sigmoid(), (3, 4)),
    "tanh": (lambda n: n.Tanh(), (3, 4)),
    "softplus": (lambda n: n.Softplus(), (3, 4)),
    "softplus beta": (lambda n: n.Softplus(beta=3.0, threshold=1.0), (3, 4)),
    "softmax": (lambda n: n.Softmax(0), (3, 4)),
    "log softmax": (lambda n: n.LogSoftmax(-1), (3, 4)),
    "flatten": (lambda n: n.Flatten(), (2, 3, 4)),
    "identity": (lambda n: n.Identity(), (2, 3)),
    "dropout off": (lambda n: n.Dropout(0.0), (2, 3)),
}  # fmt: skip


# torch warns that it copies the image for an even kernel; the values are what we compare
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    make, shape = LAYERS[name]
    reference = make(tnn)
    with torch.no_grad():  # away from ones and zeros, which hide mistakes
        for p in reference.parameters():
            p.add_(0.3 * torch.randn_like(p))
    layer = copied(make(nn), reference)
    for mode in (True, True, False):
        reference.train(mode)
        layer.train(mode)
        reference.zero_grad()
        layer.zero_grad()
        tx = (2 * torch.randn(shape)).requires_grad_()
        x = ours(tx).requires_grad_()
        expected, out = reference(tx), layer(x)
        same(out, expected, "forward")
        g = torch.randn_like(expected)
        expected.backward(g)
        out.backward(ours(g))
        same(x.grad, tx.grad, "gradient of the input")
        for (key, p), tp in zip(layer.named_parameters(), reference.parameters(), strict=True):
            same(p.grad, tp.grad, f"gradient of {key}")
        for key, value in reference.state_dict().items():
            same(layer.state_dict()[key], value, key)


@pytest.mark.parametrize("padding_idx", [None, 2, -1])
def test_embedding(padding_idx: int | None) -> None:
    reference = tnn.Embedding(5, 3, padding_idx=padding_idx)
    layer = copied(nn.Embedding(5, 3, padding_idx=padding_idx), reference)
    index = torch.tensor([[0, 2, 2], [4, 1, 4]])
    expected, out = reference(index), layer(ours(index))
    same(out, expected, "forward")
    expected.square().sum().backward()
    (out * out).sum().backward()
    same(layer.weight.grad, reference.weight.grad, "gradient")


LOSSES: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, [0, 3, 1, 2]),
    "smooth": ({"label_smoothing": 0.2}, [0, 3, 1, 2]),
    "ignore": ({"ignore_index": 1, "reduction": "sum"}, [0, 3, 1, 1]),
    "weight": ({"weight": [1.0, 2.0, 0.5, 3.0], "label_smoothing": 0.1}, [0, 3, 1, 2]),
    "none": ({"reduction": "none"}, [0, 3, -100, 2]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_cross_entropy_loss(name: str) -> None:
    settings, labels = LOSSES[name]
    theirs = {k: torch.tensor(v) if k == "weight" else v for k, v in settings.items()}
    mine = {k: ours(v) if k == "weight" else v for k, v in theirs.items()}
    tx = torch.randn(4, 4, requires_grad=True)
    x = ours(tx).requires_grad_()
    expected = tnn.CrossEntropyLoss(**theirs)(tx, torch.tensor(labels))
    loss = nn.CrossEntropyLoss(**mine)(x, eg.tensor(labels))
    same(loss, expected, "loss")
    expected.sum().backward()
    loss.sum().backward()
    same(x.grad, tx.grad, "gradient")


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse_loss(reduction: str) -> None:
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    expected = tnn.MSELoss(reduction=reduction)(a, b)
    same(nn.MSELoss(reduction=reduction)(ours(a), ours(b)), expected, "loss")


# --- attention -----------------------------------------------------------------------------------


def _attention(**settings: Any) -> tuple[tnn.Module, nn.Module]:
    reference = tnn.MultiheadAttention(8, 2, **settings)
    with torch.no_grad():
        for p in reference.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return reference, copied(nn.MultiheadAttention(8, 2, **settings), reference)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "all heads": {"average_attn_weights": False},
    "bool mask": {"attn_mask": torch.tensor([[False, True, False], [True, False, False]])},
    "float mask": {"attn_mask": torch.tensor([[0.5, -1.0, 0.0], [0.0, 0.0, -torch.inf]])},
    "head masks": {"attn_mask": torch.arange(48.0).reshape(8, 2, 3) / 50, "need_weights": False},
    "padding": {
        "key_padding_mask": torch.tensor([[False, False, True]] * 3 + [[False] * 3]),
        "need_weights": False,
    },
    "both": {
        "key_padding_mask": torch.tensor([[False, False, True]] * 3 + [[False] * 3]),
        "attn_mask": torch.tensor([[False, True, False], [True, False, False]]),
    },
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention(name: str, batch_first: bool, bias: bool) -> None:
    reference, layer = _attention(batch_first=batch_first, bias=bias)
    options = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in CALLS[name].items()
    }
    sizes = ((4, 2, 8), (4, 3, 8), (4, 3, 8))  # 4 examples, 2 queries, 3 keys
    txs = [torch.randn(s if batch_first else (s[1], s[0], s[2])).requires_grad_() for s in sizes]
    xs = [ours(t).requires_grad_() for t in txs]
    expected, weights = reference(*txs, **options)
    mine = {k: ours(v) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    out, shown = layer(*xs, **mine)
    same(out, expected, "forward")
    assert (shown is None) == (weights is None)
    if weights is not None:
        same(shown, weights, "weights")
    g = torch.randn_like(expected)
    expected.backward(g)
    out.backward(ours(g))
    for x, tx in zip(xs, txs, strict=True):
        same(x.grad, tx.grad, "gradient of an input")
    for (key, p), tp in zip(layer.named_parameters(), reference.parameters(), strict=True):
        same(p.grad, tp.grad, f"gradient of {key}")


def test_attention_causal_and_without_batch() -> None:
    reference, layer = _attention()
    tx = torch.randn(5, 8)
    mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    expected, weights = reference(tx, tx, tx, attn_mask=mask, is_causal=True)
    out, shown = layer(ours(tx), ours(tx), ours(tx), is_causal=True)
    same(out, expected, "forward")
    same(shown, weights, "weights")


def test_scaled_dot_product_attention() -> None:
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)
    mask = torch.rand(4, 5) > 0.4
    mask[1] = False  # this query may look nowhere
    added = torch.where(mask, torch.randn(4, 5), -torch.inf)
    torch_attention = torch.nn.functional.scaled_dot_product_attention
    cases: list[dict[str, Any]] = [
        {}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": added}, {"scale": 0.3},
    ]  # fmt: skip
    for options in cases:
        mine = {n: ours(o) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
        expected = torch_attention(q, k, v, **options)
        out = nn.functional.scaled_dot_product_attention(ours(q), ours(k), ours(v), **mine)
        same(out, expected, str(options))


# --- whole models, step by step ------------------------------------------------------------------


class Net:
    """Makes the same model from either library's `nn`.

    `bias` False leaves out the biases before a normalisation and of the keys: their gradients are
    zero but for rounding, and Adam, which divides a gradient by its size, makes steps of that.
    """

    @staticmethod
    def mlp(n: Any, bias: bool = True) -> Any:
        return n.Sequential(n.Linear(6, 16), n.ReLU(), n.Linear(16, 16), n.Tanh(), n.Linear(16, 4))

    @staticmethod
    def cnn(n: Any, bias: bool) -> Any:
        strided = {"stride": 2, "groups": 4, "padding": 2, "dilation": 2}
        return n.Sequential(
            *(n.Conv2d(2, 8, 3, padding=1, bias=bias), n.BatchNorm2d(8), n.ReLU(), n.MaxPool2d(2)),
            *(n.Dropout(0.0), n.Conv2d(8, 12, 3, **strided, bias=bias)),
            *(n.BatchNorm2d(12, momentum=None), n.SiLU(), n.Conv2d(12, 12, 1)),
            *(n.AvgPool2d(2), n.Flatten(), n.Linear(12, 4)),
        )

    @staticmethod
    def transformer(n: Any, bias: bool) -> Any:
        class Block(n.Module):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:
                super().__init__()
                self.tokens = n.Embedding(9, 8, padding_idx=0)
                self.norm1 = n.LayerNorm(8)
                self.attention = n.MultiheadAttention(8, 2, bias=bias, batch_first=True)
                self.norm2 = n.LayerNorm(8)
                self.up = n.Linear(8, 32)
                self.act = n.GELU()
                self.down = n.Linear(32, 8)
                self.head = n.Linear(8, 4)

            def forward(self, tokens: Any) -> Any:
                x = self.tokens(tokens)
                h = self.norm1(x)
                x = x + self.attention(h, h, h, need_weights=False)[0]
                x = x + self.down(self.act(self.up(self.norm2(x))))
                return self.head(x.mean(1))

        return Block()


INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "mlp": lambda: torch.randn(8, 6),
    "cnn": lambda: torch.randn(6, 2, 8, 8),
    "transformer": lambda: torch.randint(0, 9, (6, 5)),
}
OPTIMISERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd decay": ("SGD", {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    "momentum": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    "nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": ("Adam", {"lr": 0.01}),
    "amsgrad": ("Adam", {"lr": 0.02, "amsgrad": True, "weight_decay": 0.05, "betas": (0.7, 0.8)}),
    "adamw": ("AdamW", {"lr": 0.01}),
    "adamw maximize": ("AdamW", {"lr": 0.003, "weight_decay": 0.2, "maximize": True, "eps": 1e-4}),
    "adamw amsgrad": ("AdamW", {"lr": 0.02, "amsgrad": True, "betas": (0.0, 0.9)}),
}
RUNS = [
    *(("mlp", name) for name in OPTIMISERS),
    ("cnn", "nesterov"), ("cnn", "adamw"), ("cnn", "amsgrad"),
    ("transformer", "adamw"), ("transformer", "amsgrad"), ("transformer", "momentum"),
]  # fmt: skip


@pytest.mark.parametrize(("net", "rule"), RUNS)
def test_training_step_by_step(net: str, rule: str) -> None:
    kind, settings = OPTIMISERS[rule]
    bias = kind == "SGD"
    reference = getattr(Net, net)(tnn, bias)
    model = copied(getattr(Net, net)(nn, bias), reference)
    theirs = getattr(torch.optim, kind)(reference.parameters(), **settings)
    opt = getattr(optim, kind)(model.parameters(), **settings)
    for step in range(STEPS):
        tx, ty = INPUTS[net](), torch.randint(0, 4, (8 if net == "mlp" else 6,))
        expected = tnn.functional.cross_entropy(reference(tx), ty)
        loss = nn.functional.cross_entropy(model(ours(tx)), ours(ty))
        same(loss, expected, f"loss at step {step}")
        theirs.zero_grad()
        opt.zero_grad()
        expected.backward()
        loss.backward()
        theirs.step()
        opt.step()
        state = model.state_dict()
        assert state.keys() == reference.state_dict().keys()
        for key, value in reference.state_dict().items():
            same(state[key], value, f"{key} after step {step}")


def test_groups_rates_that_change_and_a_state_that_travels() -> None:
    reference = Net.mlp(tnn)
    model = copied(Net.mlp(nn), reference)

    def groups(m: Any) -> list[dict[str, Any]]:
        first, *rest = m.parameters()
        return [{"params": [first], "lr": 0.1, "weight_decay": 0.3}, {"params": rest}]

    theirs = torch.optim.AdamW(groups(reference), lr=0.01)
    opt = optim.AdamW(groups(model), lr=eg.tensor(0.01, dtype="float64"))
    for step in range(STEPS):
        if step == 5:
            theirs.param_groups[1]["lr"] = 0.003
            opt.param_groups[1]["lr"] = 0.003
        if step == 10:  # into a new optimiser: from here on it must go the same way
            saved = opt.state_dict()
            opt = optim.AdamW(groups(model), lr=5.0)
            opt.load_state_dict(saved)
        tx = torch.randn(8, 6)
        theirs.zero_grad()
        opt.zero_grad()
        reference(tx).square().mean().backward()
        out = model(ours(tx))
        (out * out).mean().backward()
        if step in (3, 4):  # a parameter without a gradient keeps its state and its step count
            reference[0].bias.grad = model[0].bias.grad = None
        theirs.step()
        opt.step()
        for key, value in reference.state_dict().items():
            same(model.state_dict()[key], value, f"{key} after step {step}")
    counts = {float(s["step"]) for s in opt.state.values()}
    assert counts == {float(s["step"]) for s in theirs.state.values()} == {18.0, 20.0}


def test_adam_in_float32_keeps_its_bias_correction() -> None:
    # 1 - 0.999 ** 1 in float32 loses four digits unless it is taken as expm1
    tp = torch.ones(50, dtype=torch.float32, requires_grad=True)
    p = eg.ones((50,), requires_grad=True)
    theirs = torch.optim.Adam([tp], lr=0.1)
    opt = optim.Adam([p], lr=0.1)
    for _ in range(5):
        tp.grad = torch.linspace(0.1, 1, 50, dtype=torch.float32)
        p.grad = eg.tensor(tp.grad.numpy())
        theirs.step()
        opt.step()
    np.testing.assert_allclose(p.detach().numpy(), tp.detach().numpy(), rtol=2e-6)


def test_large_parameters_take_the_compiled_path() -> None:
    shape = (200, 300)  # above config.native_threshold
    for kind, settings in OPTIMISERS.values():
        tp = torch.randn(shape, requires_grad=True)
        p = ours(tp).requires_grad_()
        theirs = getattr(torch.optim, kind)([tp], **settings)
        opt = getattr(optim, kind)([p], **settings)
        for _ in range(3):
            tp.grad = torch.randn(shape)
            p.grad = ours(tp.grad)
            theirs.step()
            opt.step()
        same(p, tp, f"{kind} {settings}")


# --- starting values -----------------------------------------------------------------------------


def _spread(t: Any) -> tuple[float, float, float]:
    values = t.detach().numpy().astype(np.float64)
    return float(values.std()), float(values.min()), float(values.max())


@pytest.mark.parametrize(
    "make",
    [
        lambda n: n.Linear(400, 300),
        lambda n: n.Conv2d(32, 64, 5, groups=2),
        lambda n: n.Embedding(300, 200),
        lambda n: n.LayerNorm(200),
        lambda n: n.BatchNorm2d(200),
        lambda n: n.MultiheadAttention(128, 4),
    ],
    ids=["Linear", "Conv2d", "Embedding", "LayerNorm", "BatchNorm2d", "MultiheadAttention"],
)
def test_starting_values_have_the_same_distribution(make: Callable[[Any], Any]) -> None:
    eg.manual_seed(1)
    reference, layer = make(tnn), make(nn)
    state = layer.state_dict()
    assert list(state) == list(reference.state_dict())
    for key, value in reference.state_dict().items():
        assert state[key].shape == tuple(value.shape)
        (std, low, high), (tstd, tlow, thigh) = _spread(state[key]), _spread(value)
        rtol = 0.2 if value.numel() < 1000 else 0.03
        np.testing.assert_allclose(std, tstd, rtol=rtol, err_msg=key)
        bounds_rtol = 0.35 if key.startswith("weight") and "Embedding" in repr(layer) else 0.05
        np.testing.assert_allclose((low, high), (tlow, thigh), rtol=bounds_rtol, err_msg=key)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("uniform_", {"a": -2.0, "b": 3.0}),
        ("normal_", {"mean": 1.0, "std": 2.0}),
        ("constant_", {"val": 3.0}),
        ("zeros_", {}),
        ("ones_", {}),
        ("eye_", {}),
        ("xavier_uniform_", {"gain": 2.0}),
        ("xavier_normal_", {}),
        ("kaiming_uniform_", {"a": 0.3, "mode": "fan_out"}),
        ("kaiming_normal_", {"nonlinearity": "relu"}),
    ],
)
def test_init_functions(name: str, settings: dict[str, Any]) -> None:
    expected = getattr(tnn.init, name)(torch.empty(300, 200), **settings)
    generator = (
        {} if name in ("constant_", "zeros_", "ones_", "eye_") else {"generator": eg.Generator(3)}
    )
    t = eg.zeros((300, 200), requires_grad=True)
    out = getattr(nn.init, name)(t, **settings, **generator)
    assert out is t
    assert t.requires_grad
    assert t.is_leaf
    np.testing.assert_allclose(_spread(t)[0], _spread(expected)[0], rtol=0.02, atol=1e-6)
    np.testing.assert_allclose(t.mean().item(), expected.mean().item(), atol=0.03)
    if generator:
        again = getattr(nn.init, name)(eg.zeros((300, 200)), **settings, generator=eg.Generator(3))
        assert bool((again == t).all())

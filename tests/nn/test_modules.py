"""Modules: what they hold, what they refuse, what they do in training and in evaluation."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everygrad as eg
import everygrad.nn.functional as F
from everygrad import nn
from everygrad.errors import (
    ArgumentError,
    DeviceError,
    DtypeError,
    EverygradError,
    GradientError,
    OutOfRangeError,
    ShapeError,
)


class Tied(nn.Module):
    """Two layers that share a weight, a child used twice, a buffer and a lasting nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.again = self.first
        self.scale = nn.Parameter(eg.tensor(2.0))
        self.register_buffer("count", eg.tensor(0))
        self.register_buffer("scratch", eg.zeros((2,)), persistent=False)
        self.register_parameter("absent", None)
        self.plain = eg.ones((4,))  # a tensor, but nobody's parameter

    def forward(self, x: eg.Tensor) -> eg.Tensor:
        out: eg.Tensor = self.second(self.first(x)) * self.scale
        return out


def values(model: nn.Module) -> dict[str, Any]:
    return {k: v.tolist() for k, v in model.state_dict().items()}


# --- what a module holds -------------------------------------------------------------------------


def test_what_is_shared_comes_once() -> None:
    model = Tied()
    assert [n for n, _ in model.named_parameters()] == ["scale", "first.weight", "first.bias"]
    assert len(list(model.parameters())) == 3
    assert [n for n, _ in model.named_modules()] == ["", "first", "second"]
    assert [n for n, _ in model.named_children()] == ["first", "second"]
    assert next(model.modules()) is model
    assert list(model.children()) == [model.first, model.second]
    assert [n for n, _ in model.named_buffers()] == ["count", "scratch"]
    assert [n for n, _ in model.named_parameters(prefix="m", recurse=False)] == ["m.scale"]
    assert list(model.second.buffers()) == []


def test_state_dict_has_every_name_of_what_is_shared() -> None:
    names = ["scale", "count", "first.weight", "first.bias", "second.weight"]
    assert list(Tied().state_dict()) == [*names, "again.weight", "again.bias"]


def test_an_attribute_changes_what_is_held() -> None:
    model = Tied()
    model.absent = nn.Parameter(eg.ones((2,)))
    assert "absent" in dict(model.named_parameters())
    del model.again
    del model.count
    assert "again.weight" not in model.state_dict()
    assert "count" not in model.state_dict()
    model.first = None  # type: ignore[assignment]
    assert [n for n, _ in model.named_children()] == ["second"]
    with pytest.raises(
        ArgumentError, match=r"Tied\.scale is a Parameter, got Tensor; assign nn.Par"
    ):
        model.scale = eg.tensor(3.0)  # type: ignore[assignment]
    model.scratch = eg.ones((5,))
    assert dict(model.named_buffers())["scratch"].shape == (5,)
    with pytest.raises(ArgumentError, match=r"Tied\.scratch is a buffer, got list"):
        model.scratch = [1.0]


def test_names_that_cannot_be_used() -> None:
    model = Tied()
    with pytest.raises(ArgumentError, match=r"register_buffer: 'a\.b' is no name"):
        model.register_buffer("a.b", eg.ones(1))
    with pytest.raises(ArgumentError, match="Tied already has an attribute 'forward'"):
        model.register_parameter("forward", nn.Parameter(eg.ones(1)))
    with pytest.raises(ArgumentError, match=r"'w' must be a Parameter or None, got Tensor; wrap"):
        model.register_parameter("w", eg.ones(1))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="'b' must be a plain Tensor or None, got Parameter"):
        model.register_buffer("b", nn.Parameter(eg.ones(1)))
    with pytest.raises(ArgumentError, match="'c' must be a Module, got int"):
        model.add_module("c", 3)  # type: ignore[arg-type]


def test_a_subclass_may_forget_super_init() -> None:
    class Short(nn.Module):
        def __init__(self) -> None:
            self.w = nn.Parameter(eg.ones(2))

        def forward(self, x: eg.Tensor) -> eg.Tensor:
            return x * self.w

    assert Short()(eg.ones(2)).tolist() == [1.0, 1.0]
    assert len(list(Short().parameters())) == 1
    with pytest.raises(NotImplementedError, match=r"Module defines no forward\(\)"):
        nn.Module()(1)


def test_parameter() -> None:
    x = eg.tensor([1.0, 2.0], requires_grad=True)
    p = nn.Parameter(x * 2)
    assert isinstance(p, eg.Tensor)
    assert p.is_leaf
    assert p.requires_grad
    assert repr(p) == "Parameter containing:\ntensor([2., 4.], requires_grad=True)"
    assert not nn.Parameter(eg.ones(1), requires_grad=False).requires_grad
    assert not hasattr(p, "__dict__")
    with pytest.raises(ArgumentError, match=r"Parameter: takes a Tensor, got list.*eg.tensor\(\)"):
        nn.Parameter([1.0])  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="only floating and complex"):
        nn.Parameter(eg.tensor([1]))


def test_a_deep_copy_stands_alone() -> None:
    model = Tied()
    model(eg.ones((1, 3))).sum().backward()
    twin = copy.deepcopy(model)
    assert twin.second.weight is twin.first.weight
    assert values(twin) == values(model)
    assert twin.scale.grad is not model.scale.grad
    model.zero_grad()
    twin.zero_grad()
    twin(eg.ones((1, 3))).sum().backward()
    assert model.scale.grad is None
    assert twin.scale.grad is not None
    with eg.no_grad():
        twin.scale += 1.0
    assert model.scale.item() == 2.0


# --- all at once ---------------------------------------------------------------------------------


def test_train_and_eval_reach_everything() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5)))
    assert model.eval() is model
    assert not any(m.training for m in model.modules())
    model.train()
    assert all(m.training for m in model.modules())
    with pytest.raises(ArgumentError, match="train: mode must be True or False, got 1"):
        model.train(1)  # type: ignore[arg-type]


def test_frozen_parameters_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model(eg.ones((5, 3))).sum().backward()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is None
    assert model[2].weight.grad is not None
    before = values(model[0])
    eg.optim.SGD(model.parameters(), lr=1.0).step()
    assert values(model[0]) == before
    model.requires_grad_()
    model(eg.ones((5, 3))).sum().backward()
    assert model[0].weight.grad is not None
    model.zero_grad(set_to_none=False)
    assert model[0].weight.grad.tolist() == eg.zeros((4, 3)).tolist()
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_to_changes_dtype_and_keeps_the_objects() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    before = list(model.parameters())
    model(eg.ones((1, 1, 2, 2))).sum().backward()
    assert model.to(eg.float64) is model
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.dtype is eg.float64 and p.is_leaf and p.requires_grad for p in before)
    assert all(p.grad is not None and p.grad.dtype is eg.float64 for p in before)
    assert model[1].running_var.dtype is eg.float64
    assert model[1].num_batches_tracked.dtype is eg.int64  # a count stays a count
    assert model.to("cpu", "float32")[0].weight.dtype is eg.float32
    with pytest.raises(DtypeError, match="to: parameters must be floating point, not int64"):
        model.to(dtype="int64")
    with pytest.raises(DeviceError, match="device 'tpu' is not available"):
        model.to("tpu")
    assert model[0].weight.dtype is eg.float32


def test_apply_goes_children_first() -> None:
    seen: list[str] = []
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    assert model.apply(lambda m: seen.append(type(m).__name__)) is model
    assert seen == ["Linear", "ReLU", "Sequential", "Sequential"]


# --- state ---------------------------------------------------------------------------------------


def test_state_dict_round_trip() -> None:
    model, other = Tied(), Tied()
    assert values(model) != values(other)
    keys = other.load_state_dict(model.state_dict())
    assert keys == ([], [])
    assert values(model) == values(other)
    assert other.second.weight is other.first.weight
    arrays = {k: v.numpy().astype(np.float64) for k, v in Tied().state_dict().items()}
    model.load_state_dict(arrays)  # arrays of another dtype are cast
    assert model.first.weight.dtype is eg.float32
    assert model.first.weight.requires_grad


def test_state_dict_is_a_snapshot() -> None:
    model = nn.Linear(2, 2)
    before = model.state_dict()
    kept = before["weight"].tolist()
    model(eg.ones((1, 2))).sum().backward()
    eg.optim.SGD(model.parameters(), lr=1.0).step()
    assert before["weight"].tolist() == kept
    assert not before["weight"].requires_grad
    assert model.weight.tolist() != kept


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("1.bias"), ArgumentError, r"Sequential: missing: 1.bias; pass strict=Fal"),
        (lambda s: s.update(x=eg.ones(1)), ArgumentError, "unexpected: x; pass strict=False"),
        (
            lambda s: s.update({"0.weight": eg.ones((2, 2)), "1.bias": eg.ones(())}),
            ShapeError,
            r"0.weight has shape \(2, 2\), not \(2, 3\); 1.bias has shape \(\), not \(1,\)",
        ),
        (lambda s: s.update({"1.bias": 3.0}), ArgumentError, "1.bias must be a Tensor or an array"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(
    change: Callable[[Any], Any], error: type[EverygradError], message: str
) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    before = values(model)
    state = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).state_dict()
    change(state)
    with pytest.raises(error, match=message):
        model.load_state_dict(state)
    assert values(model) == before


def test_load_what_both_sides_have() -> None:
    model = nn.Linear(2, 1)
    keys = model.load_state_dict({"weight": eg.ones((1, 2)), "more": eg.ones(1)}, strict=False)
    assert keys.missing_keys == ["bias"]
    assert keys.unexpected_keys == ["more"]
    assert model.weight.tolist() == [[1.0, 1.0]]
    with pytest.raises(ShapeError, match="weight has shape"):
        model.load_state_dict({"weight": eg.ones((2, 2))}, strict=False)


# --- hooks and showing ---------------------------------------------------------------------------


def test_forward_hooks() -> None:
    layer = nn.Identity()
    seen: list[Any] = []
    first = layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    second = layer.register_forward_pre_hook(lambda m, args: args[0] * 10)
    third = layer.register_forward_hook(lambda m, args, out: seen.append((args[0].item(), m)))
    fourth = layer.register_forward_hook(lambda m, args, out: -out)
    assert layer(eg.tensor(2.0)).item() == -30.0
    assert seen == [(30.0, layer)]
    first.remove()
    fourth.remove()
    fourth.remove()
    assert layer(eg.tensor(2.0)).item() == 20.0
    second.remove()
    with third:
        pass
    assert layer(eg.tensor(2.0)).item() == 2.0
    assert len(seen) == 2


def test_repr_reads_like_the_code() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding="same", bias=False), nn.ModuleList([nn.Dropout(0.1)])
    )
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1), padding='same', bias=False)\n"
        "  (1): ModuleList(\n"
        "    (0): Dropout(p=0.1)\n"
        "  )\n"
        ")"
    )
    assert repr(nn.Embedding(3, 2, padding_idx=-1)) == "Embedding(3, 2, padding_idx=2)"
    assert repr(nn.BatchNorm2d(3)).startswith("BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=True")
    attention = repr(nn.MultiheadAttention(4, 2))
    assert "embed_dim=4, num_heads=2" in attention
    assert "(out_proj): Linear(in_features=4, out_features=4, bias=True)" in attention


# --- containers ----------------------------------------------------------------------------------


def test_sequential() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(2, 2), relu)
    assert len(model) == 3
    assert model[-1] is relu
    assert [type(m).__name__ for m in model] == ["ReLU", "Linear", "ReLU"]
    x = eg.tensor([[-1.0, 2.0]])
    assert model(x).tolist() == F.relu(model[1](F.relu(x))).tolist()  # a shared one runs each time
    assert len(model[1:]) == 2
    model[0] = nn.Identity()
    model.append(nn.Tanh())
    assert [type(m).__name__ for m in model] == ["Identity", "Linear", "ReLU", "Tanh"]
    named = nn.Sequential({"a": nn.Linear(2, 3), "b": nn.ReLU()})
    assert list(named.state_dict()) == ["a.weight", "a.bias"]
    with pytest.raises(OutOfRangeError, match="Sequential: index 9 is out of range for 4 modules"):
        model[9]
    with pytest.raises(ArgumentError, match="add_module: '0' must be a Module, got function"):
        nn.Sequential(lambda x: x)  # type: ignore[arg-type]


def test_module_list_and_dict() -> None:
    items = nn.ModuleList([nn.Linear(1, 1)]).extend([nn.Linear(1, 2), nn.ReLU()])
    assert list(items.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert isinstance(items[:2], nn.ModuleList)
    assert len(items[:2]) == 2
    table = nn.ModuleDict({"up": nn.Linear(1, 2)})
    table["down"] = nn.Linear(2, 1)
    assert list(table) == ["up", "down"] == table.keys()
    assert "up" in table
    assert [m.out_features for m in table.values()] == [2, 1]
    assert dict(table.items())["up"] is table["up"]
    del table["up"]
    assert list(table.state_dict()) == ["down.weight", "down.bias"]
    with pytest.raises(ArgumentError, match="ModuleDict: no module 'up'; there are: down"):
        table["up"]
    with pytest.raises(ArgumentError, match="no module 'up' to delete"):
        del table["up"]
    with pytest.raises(ArgumentError, match="already has an attribute 'keys'"):
        table["keys"] = nn.ReLU()


# --- layers that behave differently in training --------------------------------------------------


def test_dropout() -> None:
    x = eg.ones((100, 100), requires_grad=True)
    layer = nn.Dropout(0.25, generator=eg.Generator(5))
    out = layer(x)
    kept = out.detach().numpy() != 0
    assert abs(kept.mean() - 0.75) < 0.02
    np.testing.assert_allclose(out.detach().numpy()[kept], 1 / 0.75, rtol=1e-6)
    out.sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), out.detach().numpy())
    assert bool((layer(x) != out).any())  # the next mask is another one
    again = nn.Dropout(0.25, generator=eg.Generator(5))(x)
    assert bool((again == out).all())
    assert layer.eval()(x) is x
    eg.manual_seed(3)
    first = nn.Dropout(0.5)(x)
    eg.manual_seed(3)
    assert bool((nn.Dropout(0.5)(x) == first).all())


def test_attention_drops_weights_in_training_only() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.5)
    x = eg.randn((6, 3, 8), generator=eg.Generator(1))
    _, dropped = layer(x, x, x, average_attn_weights=False)
    assert 0.3 < (dropped.detach().numpy() == 0).mean() < 0.7
    _, kept = layer.eval()(x, x, x, average_attn_weights=False)
    np.testing.assert_allclose(kept.detach().numpy().sum(-1), 1.0, rtol=1e-5)


def test_batch_norm_running_statistics() -> None:
    layer = nn.BatchNorm2d(2)
    x = eg.randn((3, 2, 2, 2), generator=eg.Generator(1))
    layer(x)
    expected = 0.1 * x.mean(axis=(0, 2, 3)).numpy()
    np.testing.assert_allclose(layer.running_mean.numpy(), expected, rtol=1e-5)
    assert layer.num_batches_tracked.item() == 1
    before = values(layer)
    layer.eval()(x)
    assert values(layer) == before
    layer.train()
    with pytest.raises(ShapeError, match="more than one value in each channel, got shape"):
        layer(eg.ones((1, 2, 1, 1)))
    assert values(layer) == before  # not even the count has moved
    with pytest.raises(ShapeError, match=r"takes \(batch, 2, height, width\), got \(3, 2\)"):
        layer(eg.ones((3, 2)))
    layer.reset_parameters()
    assert layer.running_var.tolist() == [1.0, 1.0]
    assert not layer.running_mean.requires_grad


def test_embedding_keeps_its_padding_row() -> None:
    layer = nn.Embedding(4, 2, padding_idx=1)
    assert layer.weight.tolist()[1] == [0.0, 0.0]
    assert layer.weight.is_leaf
    layer(eg.tensor([1, 1, 2])).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[0, 0], [0, 0], [1, 1], [0, 0]]
    with pytest.raises(OutOfRangeError, match="index 4 is out of range"):
        layer(eg.tensor([4]))


def test_second_derivatives_go_through_the_layers() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.LayerNorm(8)
    ).to(dtype="float64")
    x = eg.randn((3, 1, 4, 4), "float64", generator=eg.Generator(1)).requires_grad_()
    weight = eg.randn((3, 8), "float64", generator=eg.Generator(2))

    def slope(x: eg.Tensor) -> eg.Tensor:
        (g,) = eg.autograd.grad((model(x) * weight).sum(), x, create_graph=True)
        return (g * g).sum()  # type: ignore[no-any-return]

    (second,) = eg.autograd.grad(slope(x), x)
    h = 1e-6
    step = eg.randn(x.shape, "float64", generator=eg.Generator(3))
    up, down = (slope((x + s * h * step).detach().requires_grad_()).item() for s in (1, -1))
    np.testing.assert_allclose((second * step).sum().item(), (up - down) / (2 * h), rtol=1e-5)


# --- refusals ------------------------------------------------------------------------------------

X = eg.ones((2, 4))
Attention = nn.MultiheadAttention
MISTAKES: dict[type[EverygradError], list[tuple[Callable[[], Any], str]]] = {
    ArgumentError: [
        (lambda: nn.Linear(0, 3), "Linear: in_features must be a positive integer"),
        (lambda: nn.Conv2d(3, 4, 3, groups=2), "multiples of groups=2"),
        (lambda: nn.Conv2d(3, 4, 0), "Conv2d: kernel_size must be one or two integers"),
        (lambda: nn.Conv2d(3, 4, 3, padding="full"), 'padding must be numbers, "same"'),
        (lambda: nn.Conv2d(3, 4, 3, 2, "same"), 'padding="same" needs stride 1'),
        (lambda: nn.MaxPool2d((2, 2, 2)), "MaxPool2d: kernel_size must be one or two"),
        (lambda: nn.AvgPool2d(2, stride=0), "AvgPool2d: stride must be one or two"),
        (lambda: nn.LayerNorm((3, 0)), "LayerNorm: axis 1 must be a positive integer"),
        (lambda: nn.BatchNorm2d(3, momentum=2.0), "momentum must be None or between"),
        (lambda: F.batch_norm(X, None, None), "it needs running_mean and running_var"),
        (lambda: F.batch_norm(X, eg.ones(4), None), "give both running_mean and running_var"),
        (lambda: nn.Embedding(3, 2, padding_idx=3), "padding_idx 3 is outside a table of 3"),
        (lambda: nn.Dropout(1.5), "Dropout: p must be between 0 and 1, got 1.5"),
        (lambda: nn.GELU("erf"), 'approximate must be "none" or "tanh", got \'erf\''),
        (lambda: F.gelu(X, "erf"), "gelu: approximate must be"),
        (lambda: nn.Softplus(0), "Softplus: beta must be positive"),
        (lambda: nn.MSELoss("avg"), "MSELoss: reduction must be .* got 'avg'"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), "label_smoothing must be between"),
        (lambda: Attention(6, 4), "embed_dim 6 is not a multiple of num_heads 4"),
        (lambda: Attention(4, 2, dropout=-1), "dropout must be between 0 and 1"),
        (
            lambda: F.scaled_dot_product_attention(X, X, X, attn_mask=X[:, :2], is_causal=True),
            "give attn_mask or is_causal, not both",
        ),
        (lambda: nn.init.kaiming_normal_(eg.ones((2, 2)), mode="fan"), "mode must be"),
        (lambda: nn.init.calculate_gain("swish"), "no gain for 'swish'; there is linear"),
    ],
    ShapeError: [
        (lambda: nn.Linear(3, 2)(X), r"linear: a weight .* \(2, 3\) does not take x of \(2, 4"),
        (lambda: F.linear(X, eg.ones((3, 4)), eg.ones(2)), r"linear: bias \(2,\) must have"),
        (lambda: nn.LayerNorm(3)(X), r"layer_norm: \(2, 4\) does not end in \(3,\)"),
        (lambda: F.batch_norm(X, None, None, eg.ones(3)), r"weight \(3,\) must have shape \(4,"),
        (lambda: Attention(3, 1)(X, X, X), "the last axis must be 3"),
        (lambda: Attention(4, 1)(X, X[0], X), "needs 3 axes, or 2 without batch"),
        (lambda: Attention(4, 1)(X, X, X[:1]), "keys and values must be as many"),
        (lambda: Attention(4, 1)(X, X, X, attn_mask=X), r"attn_mask \(2, 4\) must be"),
        (lambda: Attention(4, 1)(X, X, X, key_padding_mask=X), "key_padding_mask"),
        (lambda: F.scaled_dot_product_attention(X, X[:, :3], X), "query and key with the same"),
        (lambda: nn.init.xavier_uniform_(eg.ones(3)), "it needs 2 dimensions"),
        (lambda: nn.init.eye_(eg.ones(3)), "eye_: takes a matrix"),
    ],
    DtypeError: [
        (
            lambda: Attention(4, 1)(X, X, X, attn_mask=eg.zeros((2, 2), "int64")),
            "attn_mask must be bool or floating point, got int64",
        ),
    ],
    GradientError: [
        (lambda: nn.init.zeros_(nn.Parameter(X) * 2), "zeros_: this tensor is the result"),
    ],
}


@pytest.mark.parametrize(
    ("error", "call", "message"), [(e, *pair) for e, pairs in MISTAKES.items() for pair in pairs]
)
def test_mistakes_are_named(
    error: type[EverygradError], call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_attention_with_everything_masked() -> None:
    layer = nn.MultiheadAttention(4, 1, bias=False)
    closed = eg.ones((2, 2), "bool")
    out, _ = layer(X, X, X, attn_mask=closed, need_weights=False)
    assert out.tolist() == [[0.0] * 4] * 2
    _, weights = layer(X, X, X, attn_mask=closed)
    assert all(math.isnan(w) for row in weights.tolist() for w in row)  # as PyTorch gives

"""Optimisers: groups, state, refusals. That steps are PyTorch's is in test_beside_torch.py."""

from collections.abc import Callable
from typing import Any

import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.errors import ArgumentError, DtypeError, EverygradError, GradientError, ShapeError


def leaf(*data: float) -> eg.Tensor:
    return eg.tensor(list(data), requires_grad=True)


def test_only_what_has_a_gradient_moves_and_stays_the_same_leaf() -> None:
    p, q = leaf(1.0), leaf(1.0)
    opt = optim.AdamW([p, q], lr=0.1)
    node = p._node
    p.grad = eg.tensor([3.0])
    seen = p.detach()
    opt.step()
    assert q.item() == 1.0
    assert p.item() < 1.0
    assert p._node is node
    assert p.is_leaf
    assert seen.item() == 1.0  # who took the old value keeps it
    assert list(opt.state) == [p]


def test_a_graph_recorded_before_the_step_keeps_its_values() -> None:
    p = leaf(3.0)
    loss = (p * p).sum()
    p.grad = eg.tensor([1.0])
    optim.SGD([p], lr=1.0).step()
    assert p.item() == 2.0
    p.grad = None
    loss.backward()
    assert p.grad is not None
    assert p.grad.item() == 6.0  # 2 * 3: the value it was recorded with


def test_closure_is_recorded_and_its_loss_returned() -> None:
    p = leaf(2.0)
    opt = optim.SGD([p], lr=0.25)

    def closure() -> eg.Tensor:
        opt.zero_grad()
        loss: eg.Tensor = (p * p).sum()
        loss.backward()
        return loss

    with eg.no_grad():
        loss = opt.step(closure)
    assert loss.item() == 4.0
    assert p.item() == 1.0
    assert opt.step() is None


def test_a_gradient_that_carries_a_graph_records_nothing() -> None:
    p = leaf(2.0)
    (p * p * p).sum().backward(create_graph=True)
    opt = optim.Adam([p], lr=0.1)
    opt.step()
    assert p.is_leaf
    assert not any(t.requires_grad for t in opt.state[p].values())


def test_zero_grad() -> None:
    p, q = leaf(1.0), leaf(1.0)
    opt = optim.SGD([p, q], lr=0.1)
    p.grad = eg.tensor([3.0])
    opt.zero_grad(set_to_none=False)
    assert p.grad.item() == 0.0
    assert q.grad is None
    opt.zero_grad()
    assert p.grad is None


def test_groups() -> None:
    p, q, r = leaf(1.0), leaf(1.0), leaf(1.0)
    opt = optim.SGD([{"params": p, "lr": 0.5}, {"params": [q]}], lr=0.25)
    opt.add_param_group({"params": [r], "lr": eg.tensor(1.0)})
    for t in (p, q, r):
        t.grad = eg.tensor([1.0])
    opt.step()
    assert [t.item() for t in (p, q, r)] == [0.5, 0.75, 0.0]
    text = repr(opt)
    assert "group 0: 1 parameters, lr=0.5, momentum=0.0" in text


def test_half_floats_keep_their_dtype() -> None:
    for dtype in ("float16", "bfloat16"):
        p = eg.ones((3,), dtype, requires_grad=True)
        p.grad = eg.ones((3,), dtype)
        for opt in (optim.AdamW([p], lr=0.5), optim.SGD([p], lr=0.125, momentum=0.5)):
            opt.step()
            assert p.dtype.name == dtype
            assert all(s.dtype in (p.dtype, eg.float32) for s in opt.state[p].values())
        assert abs(p.astype("float32")[0].item() - 0.37) < 0.01


def test_equal_step_counts_share_their_value() -> None:
    ps = [leaf(1.0), leaf(2.0)]
    opt = optim.Adam(ps)
    for _ in range(3):
        for p in ps:
            p.grad = eg.tensor([1.0])
        opt.step()
    first, second = (opt.state[p]["step"] for p in ps)
    assert first is not second
    assert first._data is second._data
    ps[0].grad = None
    opt.step()
    assert [first.item(), second.item()] == [3.0, 4.0]
    opt.load_state_dict(opt.state_dict())
    assert [opt.state[p]["step"].item() for p in ps] == [3.0, 4.0]


def test_state_dict_is_a_snapshot_by_number() -> None:
    p, q = leaf(1.0), leaf(2.0)
    opt = optim.SGD([{"params": [q]}, {"params": [p], "lr": 0.5}], lr=0.1, momentum=0.9)
    p.grad = eg.tensor([1.0])
    opt.step()
    saved = opt.state_dict()
    assert saved["state"].keys() == {1}
    assert [g["params"] for g in saved["param_groups"]] == [[0], [1]]
    assert saved["param_groups"][1]["lr"] == 0.5
    opt.step()
    assert saved["state"][1]["momentum_buffer"].item() == 1.0
    assert opt.state[p]["momentum_buffer"].item() == pytest.approx(1.9)
    opt.load_state_dict(saved)
    opt.step()
    assert saved["state"][1]["momentum_buffer"].item() == 1.0  # still its own


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    p = leaf(1.0, 2.0)
    opt = optim.Adam([p], lr=0.1)
    p.grad = eg.ones((2,))
    opt.step()
    before = opt.state_dict()
    other = optim.Adam([leaf(1.0), leaf(1.0)]).state_dict()
    with pytest.raises(ArgumentError, match=r"groups of \[2\] parameters do not fit Adam's \[1\]"):
        opt.load_state_dict(other)
    wrong = opt.state_dict()
    wrong["param_groups"][0]["lr"] = 5.0
    wrong["state"][0]["exp_avg"] = eg.ones((3,))
    with pytest.raises(ShapeError, match=r"exp_avg has shape \(3,\), its parameter \(2,\)"):
        opt.load_state_dict(wrong)
    with pytest.raises(ArgumentError, match="Adam has no momentum"):
        opt.load_state_dict(
            {"state": {}, "param_groups": [{"params": [0], "lr": 0.1, "momentum": 0.9}]}
        )
    assert opt.param_groups[0]["lr"] == 0.1
    assert opt.state_dict()["state"][0]["exp_avg"] is not before["state"][0]["exp_avg"]
    assert opt.state[p]["exp_avg"].tolist() == before["state"][0]["exp_avg"].tolist()


P = leaf(1.0)
MISTAKES: dict[type[EverygradError], list[tuple[Callable[[], Any], str]]] = {
    ArgumentError: [
        (lambda: optim.SGD([]), "SGD: got no parameters; is the model empty?"),
        (lambda: optim.SGD(nn.ReLU().parameters()), "SGD: got no parameters"),
        (lambda: optim.SGD(P), "iterable of tensors or dicts, got Tensor; put it into"),
        (lambda: optim.SGD({P}), "a set has no order to save; give a list"),
        (lambda: optim.SGD([P, 3]), "parameter 1 is a int, not a Tensor"),
        (lambda: optim.SGD([P, P]), "parameter 1 .* was given before"),
        (lambda: optim.SGD([{"params": P}, {"params": [P]}]), "was given before"),
        (lambda: optim.SGD([{"params": []}]), "a group without parameters"),
        (lambda: optim.SGD([{"params": P, "eps": 1}]), "any of lr, momentum.*got params, eps"),
        (lambda: optim.SGD([{"lr": 1}]), "a group is a dict with params"),
        (lambda: optim.SGD([P], lr=-1), "SGD: lr must be at least 0, got -1"),
        (lambda: optim.SGD([P], lr=float("nan")), "lr must be at least 0, got nan"),
        (lambda: optim.SGD([P], lr=eg.ones(2)), r"lr as a tensor must be 0-d.*float32\[2"),
        (lambda: optim.SGD([P], momentum=-0.1), "momentum must be at least 0"),
        (lambda: optim.SGD([P], weight_decay=-1), "weight_decay must be at least 0"),
        (lambda: optim.SGD([P], nesterov=True), "nesterov needs momentum above 0"),
        (lambda: optim.SGD([P], dampening=0.5), "dampening does nothing without momentum"),
        (lambda: optim.AdamW([P], betas=(0.9, 1.0)), "AdamW: betas must be two numbers"),
        (lambda: optim.Adam([P], eps=-1), "Adam: eps must be at least 0, got -1"),
    ],
    GradientError: [
        (lambda: optim.SGD([P * 2]), r"parameter 0 \(shape \(1,\)\) is the result of an"),
    ],
    DtypeError: [
        (lambda: optim.SGD([eg.tensor([1])]), "parameter 0 is int64; it must be real float"),
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


def test_an_optimizer_without_a_rule() -> None:
    p = leaf(1.0)
    p.grad = eg.ones((1,))
    with pytest.raises(NotImplementedError, match=r"defines no update\(\)"):
        optim.Optimizer([p], {"lr": 1.0, "weight_decay": 0.0}).step()

"""`eg.load(path, into=...)`: live objects get what was saved, all of it or nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.errors import ArgumentError, EverygradError, ShapeError


def layers(hidden: int = 4) -> eg.nn.Module:
    return eg.nn.Sequential(eg.nn.Linear(3, hidden), eg.nn.Tanh(), eg.nn.Linear(hidden, 2))


@dataclasses.dataclass
class Progress:
    step: int
    average: eg.Tensor
    history: list[float]


@dataclasses.dataclass(frozen=True)
class Fixed:
    size: int


class Counter:
    """Anything with a state_dict is stateful; this one is written by a user."""

    def __init__(self, n: int, fails: bool = False) -> None:
        self.n = n
        self.fails = fails

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.fails and state["n"] == 99:
            raise KeyError("a user's own error")
        self.n = state["n"]


def everything(seed: int) -> dict[str, Any]:
    eg.manual_seed(seed)
    model = layers()
    optimizer = eg.optim.AdamW(model.parameters(), lr=seed / 100)
    model(eg.randn((5, 3))).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optimizer": optimizer,
        "random": eg.Generator(seed),
        "counter": Counter(seed),
        "progress": Progress(seed, eg.full((2,), float(seed)), [0.5] * seed),
        "tensors": [eg.full((3,), seed), (eg.full((), seed), np.full(4, seed))],
        "free": {},
        "numbers": {"best": seed, "name": str(seed), "tuple": (seed, "x")},
        "log": list(range(seed)),
    }


def state_of(obj: Any) -> Any:
    """Everything as values that can be compared."""
    if isinstance(obj, eg.Tensor | np.ndarray):
        return ("array", str(obj.dtype), np.asarray(obj).tolist())
    if hasattr(obj, "state_dict"):
        return state_of(obj.state_dict())
    if dataclasses.is_dataclass(obj):
        return state_of(vars(obj))
    if isinstance(obj, dict):
        return {k: state_of(v) for k, v in obj.items()}
    return [state_of(v) for v in obj] if isinstance(obj, list | tuple) else obj


def test_everything_is_restored_in_place(tmp_path: Path) -> None:
    saved, live = everything(5), everything(3)
    live["numbers"]["tuple"] = (5, "x")  # what a tuple holds cannot be changed
    saved["free"] = {"more": 1, "w": eg.ones(2)}
    eg.save(tmp_path / "x", saved)
    parts = {
        id(p) for p in (*live["model"].parameters(), *live["tensors"], live["progress"].average)
    }
    assert eg.load(tmp_path / "x", into=live) is live
    assert state_of(live) == state_of(saved)
    assert parts == {
        id(p) for p in (*live["model"].parameters(), *live["tensors"], live["progress"].average)
    }
    assert all(p.requires_grad and p.is_leaf for p in live["model"].parameters())


def test_devices_stay(tmp_path: Path, device: str) -> None:
    saved, live = layers(), layers().to(device)
    eg.save(tmp_path / "x", {"model": saved, "t": eg.arange(3)})
    t = eg.zeros((3,), dtype=eg.int64).to(device)
    eg.load(tmp_path / "x", into={"model": live, "t": t})
    assert {p.device for p in (*live.parameters(), t)} == {t.device}
    assert t.tolist() == [0, 1, 2]
    for a, b in zip(live.parameters(), saved.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    eg.save(
        tmp_path / "x",
        {
            "model": {
                **{k: v for k, v in layers(5).state_dict().items() if k != "2.bias"},
                "2.bais": eg.ones(2),
            },
            "stepp": 1,
            "t": eg.ones(3),
            "d": eg.ones(2),
            "kind": [1],
        },
    )
    live = {
        "model": layers(4),
        "step": 0,
        "t": eg.ones(4),
        "d": eg.ones(2).astype("int32"),
        "kind": {"a": 1},
    }
    before = state_of(live)
    with pytest.raises(ShapeError) as error:
        eg.load(tmp_path / "x", into=live)
    for part in (
        "missing: step (nearest: stepp), model.2.bias (nearest: model.2.bais)",
        "unexpected: stepp, model.2.bais",
        "model.0.weight has shape (5, 3), not (4, 3)",
        "model.0.bias has shape (5,), not (4,)",
        "model.2.weight has shape (2, 5), not (2, 4)",
        "t has shape (3,), not (4,)",
        "d is float32, not int32",
        "kind is a dict here and a list in the file",
    ):
        assert part in str(error.value), str(error.value)
    assert state_of(live) == before


MISFITS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "a tuple": ({"a": (1, 2)}, {"a": (1, 3)}, ArgumentError, r"a.1 is 2 in a tuple, which cannot"),
    "a frozen one": ({"a": Fixed(1)}, {"a": Fixed(2)}, ArgumentError, "a.size is 1 in a Fixed"),
    "too short": ([eg.ones(1)], [eg.ones(1), eg.ones(1)], ArgumentError, "unexpected: 1"),
    "too long": ([eg.ones(1)] * 2, [eg.ones(1)], ArgumentError, "missing: 1"),
    "a number": (3, 4, ArgumentError, "into is a int, which cannot be changed"),
    "no module": (layers(), [1], ArgumentError, "the object is a Sequential here and a list"),
    "no tensor": ({"t": eg.ones(1)}, {"t": 1}, ArgumentError, "t is a Tensor here and a int in"),
    "read-only": (
        {"a": np.broadcast_to(np.ones(1), (2,))}, {"a": np.ones(2)}, ArgumentError, "cannot be wri"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit(tmp_path: Path, name: str) -> None:
    live, saved, kind, message = MISFITS[name]
    eg.save(tmp_path / "x", saved)
    before = state_of(live)
    with pytest.raises(kind, match=message):
        eg.load(tmp_path / "x", into=live)
    assert state_of(live) == before


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_an_error_halfway_changes_nothing(tmp_path: Path, last: bool) -> None:
    """The object that refuses comes before or behind all others."""
    saved, live = everything(5), everything(3)
    del saved["numbers"], live["numbers"]
    saved["counter"].n = 99
    live["counter"].fails = True
    if last:
        live["counter"] = live.pop("counter")
    eg.save(tmp_path / "x", saved)
    before = state_of(live)
    with pytest.raises(KeyError) as error:
        eg.load(tmp_path / "x", into=live)
    assert error.value.__notes__ == ["load: while counter, a Counter, was restored"]
    assert state_of(live) == before


def test_an_optimiser_that_does_not_fit(tmp_path: Path) -> None:
    model = layers()
    saved = {"model": model, "optimizer": eg.optim.AdamW([next(model.parameters())])}
    live = {"model": layers()}
    live["optimizer"] = eg.optim.AdamW(live["model"].parameters())
    eg.save(tmp_path / "x", saved)
    before = state_of(live)
    with pytest.raises(EverygradError, match=r"groups of \[1\] parameters"):
        eg.load(tmp_path / "x", into=live)
    assert state_of(live) == before


def test_load_state_dict_names_every_fault() -> None:
    model = layers()
    state: dict[str, Any] = {k: v for k, v in model.state_dict().items() if k != "0.bias"}
    state |= {"0.wieght": state.pop("0.weight"), "2.weight": eg.ones((1, 1)), "2.bias": "text"}
    with pytest.raises(ShapeError) as error:
        model.load_state_dict(state)
    assert str(error.value) == (
        "load_state_dict: Sequential: missing: 0.weight (nearest: 0.wieght), 0.bias; "
        "unexpected: 0.wieght; 2.weight has shape (1, 1), not (2, 4); "
        "2.bias must be a Tensor or an array, got str; "
        "pass strict=False to load only what both sides have"
    )
    with pytest.raises(ShapeError, match=r"Sequential: 2\.weight has shape"):
        model.load_state_dict(state, strict=False)

"""eg.jit: what it guards, refuses and survives: states that change under it, errors, Ctrl-C."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad.dispatch import apply
from everygrad.errors import (
    AnomalyError,
    DeviceError,
    GradientError,
    OutOfRangeError,
    TraceError,
)
from everygrad.ops.random.generators import Generator, scoped_generator
from everygrad.ops.record.spec import REGISTRY
from tests.jit.test_jit_aliases import ones
from tests.support.checks import close


def test_jit_of_a_jitted_function_keeps_its_own_settings() -> None:
    inner = eg.jit(lambda x: x + 1.0)
    outer = eg.jit(inner, verify=True, fallback="eager")
    assert outer.verify
    assert outer.fallback == "eager"
    assert outer.entries is not inner.entries
    close(outer(ones(2)), ones(2) + 1.0, 0)


def test_a_second_derivative_after_a_change_is_refused() -> None:
    w = ones(2)
    f = eg.jit(lambda x: (x * x * w).sum())
    x = ones(2).requires_grad_()
    y = f(x)
    with eg.no_grad():
        w *= 10.0
    with pytest.raises(GradientError, match="another value since"):
        y.backward(create_graph=True)


def test_counting_in_a_module_is_refused() -> None:
    class Counts(eg.nn.Module):
        def __init__(self) -> None:
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return x * 2.0

    m = Counts()
    with pytest.raises(TraceError, match=r"Counts\.calls is changed inside"):
        eg.jit(lambda x: m(x))(ones(2))


def test_moving_to_another_device_inside_is_refused() -> None:
    with pytest.raises(DeviceError, match="move it outside"):
        eg.jit(lambda x: (x + 1.0).to("null"))(ones(2))


def test_state_made_by_a_call_that_fails_comes_with_the_next() -> None:
    cache: dict[str, Any] = {}

    def f(i: Any) -> Any:
        if "s" not in cache:
            cache["s"] = eg.ones((3,)) * 2.0
        return eg.take(cache["s"], i)

    g = eg.jit(f)
    with pytest.raises(OutOfRangeError):
        g(eg.tensor([5]))
    close(g(eg.tensor([1])), [2.0], 0)
    close(cache["s"], [2.0] * 3, 0)
    close(g(eg.tensor([1])), [2.0], 0)


def test_lower_leaves_state_as_a_call_would() -> None:
    cache: dict[str, Any] = {}

    def f(x: Any) -> Any:
        if "s" not in cache:
            cache["s"] = x * 0.0 + 3.0
        return cache["s"] + x

    g = eg.jit(f)
    g.lower(ones(2))
    close(g(ones(2)), [4.0, 4.0], 0)


def test_old_entries_go(caplog: Any) -> None:
    f = eg.jit(lambda x, k: x * k)
    with caplog.at_level("WARNING", logger="everygrad.jit"):
        for k in range(70):
            f(ones(1), k)
    assert sum(len(e) for e in f.entries.values()) <= 64
    assert "compiled" in caplog.text


def test_copies_of_a_module_with_a_jitted_function() -> None:
    m = eg.nn.Linear(2, 2)
    m.fast = eg.jit(lambda x: x + 1.0)  # type: ignore[attr-defined]
    other = copy.deepcopy(m)
    close(other.fast(ones(2)), [2.0, 2.0], 0)  # type: ignore[attr-defined]


def test_ctrl_c_leaves_a_step_done_or_not() -> None:
    script = """
import os, signal, threading, time
import numpy as np, everygrad as eg
signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent may ignore it
p, count = eg.tensor(np.zeros(3_000_000, np.float32)), eg.tensor(0.0)
def f():
    p.__iadd__(1.0)
    count.__iadd__(1.0)
g = eg.jit(f)
for _ in range(5): g()
for k in range(20):
    timer = threading.Timer(0.001 * (k % 7), lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True: g()
    except KeyboardInterrupt:
        pass
    assert p[0].item() == p[-1].item() == count.item(), (k, p[0].item(), count.item())
print("whole")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "whole\n", done.stderr


def test_a_caught_refusal_is_still_one() -> None:
    def f(x: Any) -> Any:
        try:
            k = float(x.sum())
        except TraceError:
            k = 1.0
        return x * k

    with pytest.raises(TraceError, match=r"float\(\) at"):
        eg.jit(f)(ones(2))


def test_counting_in_a_closure_is_refused() -> None:
    n, seen = 0, [0]

    def f(x: Any) -> Any:
        nonlocal n
        n += 1
        return x * float(n)

    def g(x: Any) -> Any:
        seen[0] += 1
        return x * float(seen[0])

    for fn, name in ((f, "n"), (g, r"seen\[0\]")):
        with pytest.raises(TraceError, match=f"changes {name},"):
            eg.jit(fn)(ones(2))


def test_find_nan_sees_compiled_functions() -> None:
    f = eg.jit(lambda x: eg.log(x))
    f(ones(2))
    with pytest.raises(AnomalyError, match="log"), eg.find_nan():
        f(ones(2) * -1.0)


def test_a_captured_tensor_that_moves_away() -> None:
    w = ones(3)
    f = eg.jit(lambda x: x * w)
    f(ones(3))
    w.rebind(w.to("null")._data, None)
    with pytest.raises(DeviceError):
        f(ones(3))


@pytest.mark.parametrize("several", [False, True])
def test_what_a_hook_reads_is_guarded(several: bool) -> None:
    """Our own code calls it: nothing of the user's does, whose name for it would be seen."""

    def hook_of(factor: float) -> tuple[Any, Any]:
        def change(value: float) -> None:
            nonlocal factor
            factor = value

        return lambda g: g * factor, change

    w: Any = ones(3).requires_grad_()
    hook, change = hook_of(2.0)
    other, change_other = hook_of(2.0)
    w.register_hook(hook)
    if several:
        w.register_hook(other)

    def step() -> None:
        w.grad = None
        (w * 5.0).sum().backward()

    f = eg.jit(step)
    product = 2.0 * (2.0 if several else 1.0)
    for value in (None, 3.0, 4.0):
        if value is not None:
            change(value)
            product = value * (2.0 if several else 1.0)
        for _ in range(2):
            f()
            assert w.grad.tolist() == [5.0 * product] * 3
    change_other(7.0)
    f()
    assert w.grad.tolist() == [5.0 * 4.0 * (7.0 if several else 1.0)] * 3


@pytest.mark.parametrize("kept", [True, False], ids=["loss", "gradient alone"])
def test_an_index_is_checked_once(kept: bool) -> None:
    """By whoever uses it first; and even if nobody needs what that one computed."""
    table: Any = eg.ones((9, 4), requires_grad=True)

    def step(i: Any, j: Any) -> Any:
        loss = (eg.take(table, i, axis=0) * 2.0).sum() + eg.take(table, j.T, axis=0).sum()
        loss = loss + (eg.take(table, i.reshape(3, 1), axis=0) * 3.0).sum()
        table.grad = None
        loss.backward()
        return loss if kept else None

    i, j = eg.tensor([0, 3, 8]), eg.tensor([[1, 1], [7, 2]])
    names = [v.name for v in eg.jit(step).lower(i, j).graph.values]
    assert 2 <= names.count("check_range") <= 3
    f = eg.jit(step)
    for again in range(2):
        f(i, j)
        want = np.zeros((9, 4)) + np.array([5, 2, 1, 5, 0, 0, 0, 1, 5])[:, None]
        np.testing.assert_array_equal(table.grad.numpy(), want)
        for wrong in ((eg.tensor([0, 9, 8]), j), (i, eg.tensor([[1, 1], [again + 9, 2]]))):
            with pytest.raises(OutOfRangeError):
                f(*wrong)


def test_an_index_checked_for_another_size_is_checked_again() -> None:
    def f(x: Any, i: Any) -> Any:
        return eg.take(x, apply(REGISTRY["check_range"], i, size=100, what="index"), axis=0)

    with pytest.raises(OutOfRangeError, match="index 50 is out of range for an axis of size 3"):
        eg.jit(f)(ones(3), eg.tensor([50]))


@pytest.mark.parametrize("inside", [False, True])
def test_draws_come_from_the_stream_of_the_call(inside: bool) -> None:
    """Threads that fetch items, and simulated ranks, have streams of their own: a function that one
    of them traced draws from another's there. A stream that the function sets is its own."""
    own, one, other = Generator(3), Generator(5), Generator(6)

    def drawn() -> eg.Tensor:
        with scoped_generator(own) if inside else nullcontext():
            return eg.rand((2,))

    compiled = eg.jit(drawn)
    for stream in (None, one, other, one, None):
        source = own if inside else stream or eg.default_generator
        expected = Generator()
        expected.set_state(source.get_state())
        with nullcontext() if stream is None else scoped_generator(stream):
            got = compiled()
        np.testing.assert_array_equal(got.numpy(), eg.rand((2,), generator=expected).numpy())
        np.testing.assert_array_equal(source.get_state(), expected.get_state())
    assert compiled.count == (1 if inside else 3)


class Number(float):
    """A number with an attribute, which counts too."""

    def __new__(cls, value: float, scale: float) -> Number:
        made = super().__new__(cls, value)
        made.scale = scale
        return made

    scale: float


@pytest.mark.parametrize(
    ("first", "equal", "other"),
    [
        (slice(0, 2), slice(0, 2), slice(0, 1)),
        (range(2), range(2), range(3)),
        (frozenset({1, 2}), frozenset({2, 1}), frozenset({1})),
        (frozenset({1}), frozenset({1}), frozenset({True})),
        (np.float32(2), np.float32(2), np.float64(2)),
        (np.float32(0.0), np.float32(0.0), np.float32(-0.0)),
        ((1, {"k": 2.0}), (1, {"k": 2.0}), (1, {"k": 2})),
        (eg.float32, eg.float32, eg.float64),
    ],
    ids=repr,
)
def test_equal_arguments_are_one_kind_of_call(first: Any, equal: Any, other: Any) -> None:
    f = eg.jit(lambda x, a: x * 2.0)
    x = ones(3)
    for given, count in ((first, 1), (equal, 1), (other, 2), (copy.copy(first), 2)):
        f(x, given)
        assert f.count == count


def test_arguments_with_attributes_are_told_apart_by_them() -> None:
    f = eg.jit(lambda x, a: x * float(a) * a.scale)
    for scale in (2.0, 3.0):
        a = Number(1.0, scale)
        close(f(ones(2), a), ones(2) * scale, 0)
        a.scale = 5.0
        close(f(ones(2), a), ones(2) * 5.0, 0)


def test_a_module_may_be_made_inside() -> None:
    """For one call, and nobody keeps it: what it is made of is made anew in each."""
    f = eg.jit(lambda x: eg.nn.Sequential(eg.nn.LayerNorm(3), eg.nn.ReLU())(x).sum())
    x = eg.tensor([[1.0, 2.0, 6.0]])
    for _ in range(3):
        close(f(x), eg.relu(eg.nn.LayerNorm(3)(x)).sum(), 1e-6)
    assert f.count == 1


def test_a_module_made_when_it_is_first_needed_is_kept() -> None:
    made: dict[str, Any] = {}

    def f(x: Any) -> Any:
        if "norm" not in made:
            made["norm"] = eg.nn.LayerNorm(3)
        return made["norm"](x)

    g, x = eg.jit(f), eg.tensor([[1.0, 2.0, 6.0]])
    for _ in range(3):
        close(g(x), eg.nn.LayerNorm(3)(x), 1e-6)
    with eg.no_grad():
        made["norm"].weight[...] = 2.0
    close(g(x), eg.nn.LayerNorm(3)(x) * 2.0, 1e-6)
    made["norm"] = eg.nn.LayerNorm(3, eps=1.0)
    close(g(x), eg.nn.LayerNorm(3, eps=1.0)(x), 1e-6)


def test_what_hooks_of_imports_read_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's, such as pytest's, which looks at all that it has collected."""
    many = {n: [n] for n in range(30_000)}

    class Finder:
        asked = 0

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            self.asked += name == "everygrad_absent"
            sorted(many)
            assert many[0]

    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    f = eg.jit(lambda x: x * (2 if importlib.util.find_spec("everygrad_absent") else 3))
    assert f(eg.ones(2)).tolist() == [3, 3]
    many[0] = [1, 2]
    assert f(eg.ones(2)).tolist() == [3, 3]
    assert finder.asked == 1
    assert f.count == 1

"""eg.jit: what is refused and how, and what the compiler tells about itself."""

from __future__ import annotations

import copy
import gc
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn, optim
from everygrad.errors import (
    ArgumentError,
    CompileError,
    OutOfRangeError,
    ShapeError,
    TraceError,
)
from everygrad.nn import functional as F
from tests.jit.test_jit import step_of
from tests.support.checks import close, values


def rand(*shape: int, seed: int = 0) -> Any:
    return eg.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


# --- refusals ------------------------------------------------------------------------------------


def test_values_are_not_known_while_tracing() -> None:
    x = rand(3)
    for fn in (
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * x.sum().item(),
        lambda x: x + eg.tensor(x.numpy()),
        lambda x: x[: int(x.sum())],
        lambda x: eg.tensor(x.tolist()),
        lambda y: y * float(x.sum()),  # a captured tensor's value would be frozen
        lambda y: y * x.numpy()[0],
    ):
        with pytest.raises(TraceError, match=r"test_jit_refusals\.py:"):
            eg.jit(fn)(x)
    close(x * 1, x, 0)


def test_results_must_be_tensors() -> None:
    for fn in (lambda x: x.shape, lambda x: (x, 3.0), lambda x: {"a": "text"}):
        with pytest.raises(TraceError, match="returned a"):
            eg.jit(fn)(rand(2))


def test_tensors_kept_outside_are_refused() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        return x + 1

    g = eg.jit(f)
    x = rand(3)
    g(x)
    close(kept[0], x * 2, 1e-6)  # the first call did what eager does
    with pytest.raises(TraceError, match="kept outside"):
        g(x)


def test_a_traced_tensor_that_leaks_names_its_line() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        eg.jit(f)(rand(2))
    with pytest.raises(TraceError, match=r"test_jit_refusals\.py"):
        eg.jit(lambda x: x + kept[0])(rand(2))


def test_graphs_from_outside_are_refused() -> None:
    w = rand(3).requires_grad_()
    y = w * 2
    with pytest.raises(TraceError, match="recorded outside"):
        eg.jit(lambda x: x + y)(rand(3))


def test_arguments_that_cannot_be_compared() -> None:
    with pytest.raises(ArgumentError, match="set"):
        eg.jit(lambda x, s: x)(rand(2), {1, 2})
    with pytest.raises(ArgumentError, match="takes a function"):
        eg.jit(3)
    with pytest.raises(ArgumentError, match="fallback"):
        eg.jit(lambda x: x, fallback="python")


def test_errors_are_the_same_as_eager() -> None:
    with pytest.raises(ShapeError, match="inner sizes 3 and 4 differ"):
        eg.jit(lambda x, y: x @ y)(rand(2, 3), rand(4, 2))
    with pytest.raises(ShapeError, match="cannot broadcast"):
        eg.jit(lambda x, y: x + y)(rand(2, 3), rand(4))


def test_a_trace_that_raises_changes_nothing() -> None:
    w = rand(3).requires_grad_()
    state = rand(3)
    before = values(state).copy()

    @eg.jit
    def f(x: Any) -> Any:
        nonlocal state
        (w * x).sum().backward()
        state += 1.0
        return x @ rand(7)

    with pytest.raises(ShapeError):
        f(rand(3))
    assert w.grad is None
    np.testing.assert_array_equal(values(state), before)
    (w * 2).sum().backward()
    close(w.grad, eg.full((3,), 2.0), 1e-6)


def test_an_index_out_of_range_changes_nothing() -> None:
    table = rand(5, 3)
    hits = eg.zeros((5,))

    @eg.jit
    def f(i: Any) -> Any:
        nonlocal hits
        hits += 1.0
        return eg.take(table, i, axis=0)

    close(f(eg.tensor([0, 4])), values(table)[[0, 4]], 0)
    for bad in (5, -6):
        with pytest.raises(OutOfRangeError, match=f"take: index {bad} is out of range .* size 5"):
            f(eg.tensor([0, bad]))
    assert hits[0].item() == 1.0
    f(eg.tensor([1, 2]))
    assert hits[0].item() == 2.0


def test_labels_out_of_range() -> None:
    f = eg.jit(F.cross_entropy)
    x = rand(4, 3)
    f(x, eg.tensor([0, 1, 2, 0]))
    with pytest.raises(OutOfRangeError, match="cross_entropy: label 3"):
        f(x, eg.tensor([0, 1, 3, 0]))


# --- the compiler itself -------------------------------------------------------------------------


def broken(monkeypatch: Any) -> None:
    from everygrad.backends.cpu.graph import execution_plan

    def fail(*args: Any) -> Any:
        raise KeyError("nonsense")

    monkeypatch.setattr(execution_plan, "fused", fail)


def test_a_fault_of_the_compiler_is_named(monkeypatch: Any) -> None:
    broken(monkeypatch)
    with pytest.raises(CompileError, match=r"nonsense.*report"):
        eg.jit(lambda x: x + 1)(rand(2))


def test_fallback_is_a_choice(monkeypatch: Any, caplog: Any) -> None:
    broken(monkeypatch)
    with caplog.at_level("WARNING"):
        close(eg.jit(lambda x: x + 1, fallback="eager")(rand(2)), rand(2) + 1, 1e-6)
    assert "falls back" in caplog.text


def test_verify_names_the_first_op_that_differs(monkeypatch: Any) -> None:
    f = eg.jit(lambda x: eg.exp(eg.sqrt(x * x + 1)).sum(), verify=True)
    close(f(rand(4)), eg.exp(eg.sqrt(rand(4) * rand(4) + 1)).sum(), 1e-5)
    from everygrad.backends.cpu.llvm import intrinsics

    real = intrinsics._FLOAT["sqrt"]
    wrong = lambda e, x: e.op("fadd", real(e, x), intrinsics.literal(x.type, 0.1))  # noqa: E731
    monkeypatch.setitem(intrinsics._FLOAT, "sqrt", wrong)
    with pytest.raises(CompileError, match=r"first at .*sqrt.*test_jit_refusals.py"):
        eg.jit(lambda x: eg.exp(eg.sqrt(x * x + 2)).sum(), verify=True)(rand(4))


def test_verify_with_state() -> None:
    model = nn.Linear(4, 3)
    other = copy.deepcopy(model)
    f = eg.jit(step_of(model, optim.AdamW(model.parameters())), verify=True)
    g = step_of(other, optim.AdamW(other.parameters()))
    x, y = rand(5, 4), eg.tensor([0, 1, 2, 0, 1])
    for _ in range(3):
        close(f(x, y), g(x, y), 1e-6)
    close(model.weight.detach(), other.weight.detach(), 1e-6)


def test_lower_shows_every_stage() -> None:
    w = rand(4)
    lowered = eg.jit(lambda x: eg.softmax(x * w, axis=-1).sum()).lower(rand(8, 4))
    text = str(lowered)
    assert "= multiply %0 %1" in text
    assert "fused multiply" in text
    assert "arena" in text
    assert "define void @step" in lowered.source
    lowered.graph.verify()
    lowered.simplified.verify()
    assert lowered.flops > 0
    assert lowered.nbytes > 0
    assert type(w._data) is np.ndarray


def test_memory_before_a_call() -> None:
    with pytest.raises(ArgumentError, match="before the first call"):
        eg.jit(lambda x: x).memory()


def test_memory_is_reused_and_not_leaked() -> None:
    def f(x: Any) -> Any:
        for _ in range(20):
            x = (x @ x).tanh()
        return x.sum()

    g = eg.jit(f)
    x = rand(64, 64) * 0.01
    g(x)
    assert g.memory().arena <= 4 * 64 * 64 * 4 + 4096
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        g(x)
    gc.collect()
    assert len(gc.get_objects()) - before < 20


def test_the_log_says_why_it_traces_again(caplog: Any) -> None:
    w = rand(3)
    f = eg.jit(lambda x: x * w)
    f(rand(3))
    with caplog.at_level("INFO", logger="everygrad.jit"):
        w.rebind(np.zeros((3, 3), np.float32), None)
        f(rand(3))
    assert "no longer float32[3]" in caplog.text

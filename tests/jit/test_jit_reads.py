"""eg.jit looks at everything that tracing read from Python: another value there, another result.

Each case is a function that reads a number somewhere, and a change of that number. A compiled
function must give what the plain one gives before the change, after it, and after it is undone.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import random
import secrets
import sqlite3
import subprocess
import sys
import threading
import time
import types
import uuid
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import ExactWeakKeyDictionary
from torch.utils.weak import WeakIdKeyDictionary

import everygrad as eg
from everygrad import nn, optim
from everygrad._jit.bytecode import FrameReader
from everygrad._jit.jit import Jitted
from everygrad.errors import TraceError
from tests.support.checks import values
from tests.support.reads import (
    by_classes,
    by_libraries,
    by_names,
    by_native,
    by_objects,
    by_reflection,
    by_syntax,
)
from tests.support.reads.by_names import Case
from tests.support.reads.by_objects import Plain, WithScale

MODULES = (by_names, by_objects, by_classes, by_syntax, by_reflection, by_libraries, by_native)
CASES = [
    fn
    for module in (
        by_names,
        by_objects,
        by_classes,
        by_syntax,
        by_reflection,
        by_libraries,
        by_native,
    )
    for fn in vars(module).values()
    if isinstance(fn, types.FunctionType)
    and fn.__name__[0] != "_"
    and fn.__annotations__.get("return") == "Case"
]


@pytest.mark.parametrize("case", CASES, ids=lambda fn: fn.__name__)
def test_a_change_of_what_was_read_is_seen(case: Callable[[], Case]) -> None:
    methods = {*vars(eg.Tensor)}
    fn, change = case()
    plain = getattr(fn, "jitted", fn)
    plain = plain.uncompiled if isinstance(plain, Jitted) else plain
    bound = getattr(fn, "instance", None)
    compiled = fn if bound is not None or hasattr(fn, "compiled") else eg.jit(fn)
    x = eg.tensor([1.0, 2.0, 3.0])
    try:
        results = []
        for v in (2.0, 2.0, 3.0, 3.0, 2.0):
            change(v)
            args = (x,) if bound is None else (bound, x)
            if hasattr(fn, "compiled"):  # a function that calls a compiled one
                want = values(x) * v
            else:
                want = values(plain(*args))
            got = values(compiled(x))
            np.testing.assert_array_equal(got, want)
            results.append(got.tolist())
        assert results[1] != results[2]
    finally:
        change(2.0)
        for added in {*vars(eg.Tensor)} - methods:
            delattr(eg.Tensor, added)


def test_enough_cases() -> None:
    assert len(CASES) > 280


@pytest.mark.parametrize("before", [0.0, -0.0, 1, 1.0, True, math.nan, 2 + 0j, "a", None])
@pytest.mark.parametrize("after", [0.0, -0.0, 1, 1.0, True, math.nan, 2 + 0j, "a", None])
def test_values_that_only_look_alike(before: Any, after: Any) -> None:
    """1, 1.0 and True are told apart, as are 0.0 and -0.0; equal values are not."""
    held = {"k": before}
    seen = eg.jit(lambda x: x + (0.0 if held["k"] is None else 1.0))
    seen(eg.ones((2,)))
    held["k"] = after
    count = seen.count
    seen(eg.ones((2,)))
    alike = type(before) is type(after) and repr(before) == repr(after)
    assert seen.count == count + (not alike)


def test_signs_of_zeros_in_a_module_and_a_name() -> None:
    zero = 0.0
    m = WithScale()
    m.scale = 0.0
    f, g = eg.jit(lambda x: x * zero), eg.jit(m)
    x = eg.tensor([1.0])
    assert not np.signbit(values(f(x)))[0]
    assert not np.signbit(values(g(x)))[0]
    zero, m.scale = -0.0, -0.0
    assert np.signbit(values(f(x)))[0]
    assert np.signbit(values(g(x)))[0]


def test_a_parameter_appended_to_a_group() -> None:
    a, b = (eg.ones((2,)).requires_grad_() for _ in range(2))
    opt = optim.SGD([a], lr=0.125)

    def step() -> Any:
        loss = (a * b).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
        b.grad = None
        return loss

    compiled = eg.jit(step)
    compiled()
    compiled()
    opt.param_groups[0]["params"].append(b)
    compiled()
    assert values(b.detach()).tolist() == [1.0 - 0.125 * 0.75] * 2


# --- nothing is traced without need --------------------------------------------------------------


def test_what_was_not_read_may_change() -> None:
    d = {"k": 2.0, "other": 1}
    o = Plain()
    history: list[int] = []
    f = eg.jit(lambda x: x * d["k"] * o.k)
    for i in range(5):
        f(eg.ones((2,)))
        d["other"] += 1
        d[f"new{i}"] = i
        o.unread = i  # type: ignore[attr-defined]
        history.append(i)
        d["k"] = float("2.0")  # equal, another object
    assert f.count == 1


def test_modules_and_classes_given_to_others_are_not_read_in_full() -> None:
    kinds = [eg, np, Plain, logging]
    f = eg.jit(lambda x: x * float(len([str(k) for k in kinds if isinstance(k, type(eg))])))
    assert values(f(eg.ones((1,)))).tolist() == [3.0]
    assert len(f.latest.record.guards.guards) < 20


def test_a_training_step_with_a_configuration_is_traced_once() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    opt = optim.AdamW(model.parameters(), lr=0.1)
    config = {"clip": 1.0, "losses": {"a": 0.5}}
    state = types.SimpleNamespace(step=0)

    def step(x: Any) -> Any:
        loss = (model(x) ** 2).mean() * config["losses"]["a"]  # type: ignore[index]
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.grad = p.grad.clip(-config["clip"], config["clip"])
        opt.step()
        return loss

    compiled = eg.jit(step)
    for _ in range(6):
        compiled(eg.ones((2, 3)))
        state.step += 1
    first = compiled.count
    for _ in range(6):
        compiled(eg.ones((2, 3)))
    assert compiled.count == first <= 2


# --- refusals ------------------------------------------------------------------------------------


def refused(name: str, fn: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(TraceError, match=name):
        eg.jit(fn)(*args)


def test_changes_of_what_was_read_are_refused() -> None:
    d: dict[str, Any] = {"n": 1, "list": [1], "set": {1}}
    o = Plain()
    x = eg.ones((2,))

    def counts(x: Any) -> Any:
        d["n"] += 1
        return x

    def writes(x: Any) -> Any:
        d["n"] = 7
        return x

    def appends(x: Any) -> Any:
        d["list"].append(2)
        return x

    def adds(x: Any) -> Any:
        d["set"].add(5)
        return x

    def removes(x: Any) -> Any:
        d["list"].pop()
        return x

    def deletes(x: Any) -> Any:
        del d["n"]
        return x

    def sets(x: Any) -> Any:
        o.k = 5.0
        return x

    def sets_by_name(x: Any) -> Any:
        setattr(o, "k", o.k + 1)  # noqa: B010
        return x

    refused(r"changes d\['n'\],", counts, x)
    refused(r"changes d\['n'\],", writes, x)
    refused(r"d\['list'\]", appends, x)
    refused(r"d\['set'\]", adds, x)
    refused(r"d\['list'\]", removes, x)
    refused(r"d\['n'\]", deletes, x)
    refused(r"changes o\.k,", sets, x)
    refused(r"changes o\.k,", sets_by_name, x)


def test_changing_a_container_among_the_arguments_is_refused() -> None:
    x = eg.ones((2,))

    def replaces(d: Any) -> Any:
        d["a"] = d["a"] * 2.0
        return d["a"]

    def adds(d: Any) -> Any:
        d["b"] = d["a"]
        return d["a"]

    def appends(xs: Any) -> Any:
        xs.append(xs[0])
        return xs[0]

    refused("container among its arguments", replaces, {"a": x})
    refused("container among its arguments", adds, {"a": x})
    refused("container among its arguments", appends, [x])


def test_a_large_array_that_may_change_unseen_is_refused() -> None:
    a = np.zeros(1 << 20, np.float32)
    refused(r"a NumPy array of \d+ bytes", lambda x: x + eg.tensor(a).sum(), eg.ones((2,)))


def test_going_on_with_an_iterator_from_outside_is_refused() -> None:
    """A replay would not take the next element."""
    ks = [1.0, 2.0]
    x = eg.ones((2,))
    for it in (iter(ks), zip(ks, ks, strict=True), map(float, ks), (k for k in ks), enumerate(ks)):
        refused("an iterator from outside", lambda x, it=it: x * float(len([next(it)])), x)
        refused("an iterator from outside", lambda x, it=it: x * len([*it]), x)
        refused("an iterator from outside", lambda x, it=it: x * sum(1 for _ in it), x)


def test_random_numbers_that_are_not_ours_are_refused() -> None:
    """A replay would draw none; a source that the function makes gives the same each time."""
    own, numpys, x = random.Random(0), np.random.default_rng(0), eg.ones((2,))
    old, shuffled = np.random.RandomState(0), [1.0, 2.0]
    refused(r"draws random numbers from own", lambda x: x * own.random(), x)
    refused(r"draws random numbers from numpys", lambda x: x * numpys.random(), x)
    refused(r"draws random numbers from old", lambda x: x * old.rand(), x)
    refused(r"draws random numbers from random", lambda x: x * random.random(), x)
    refused(r"draws random numbers from numpy", lambda x: x * np.random.rand(), x)
    refused("random numbers", lambda x: x * random.choice(shuffled), x)
    f = eg.jit(lambda x: x * random.Random(3).random() * np.random.default_rng(3).random())
    assert values(f(x)).tolist() == values(f(x)).tolist()


def test_what_is_outside_of_the_process_is_refused(tmp_path: Path) -> None:
    """Files, databases and queues: read it outside."""
    path, x, q = tmp_path / "k", eg.ones((2,)), SimpleQueue[float]()
    path.write_text("2.0")

    def reads(x: Any) -> Any:
        with open(path) as file:  # as most programs do
            return x * float(file.read())

    q.put(2.0)
    base = sqlite3.connect(":memory:")
    refused(r"draws random numbers by urandom\(\)", lambda x: x * os.urandom(1)[0], x)
    refused(r"draws random numbers by uuid4\(\)", lambda x: x * uuid.uuid4().int, x)
    refused(r"draws random numbers by randbelow\(\)", lambda x: x * secrets.randbelow(9), x)
    refused("draws random numbers by SystemRandom", lambda x: x * random.SystemRandom().random(), x)
    refused(r"uses a file by open\(\)", reads, x)
    refused(r"uses a file by read_text\(\)", lambda x: x * float(path.read_text()), x)
    refused(r"uses a queue by get\(\)", lambda x: x * q.get(), x)
    refused(r"uses a database by execute\(\)", lambda x: base.execute("select 1") and x, x)
    refused(r"asks gc.isenabled\(\)", lambda x: x if gc.isenabled() else -x, x)
    refused(r"asks sys.getrefcount\(\)", lambda x: x * sys.getrefcount(base), x)
    with path.open() as file:
        refused(r"uses a file by read\(\)", lambda x: x * float(file.read()), x)
    with path.open("a") as file:  # what is written is no part of the result
        assert values(eg.jit(lambda x: x * len([file.write("")]))(x)).tolist() == [1.0, 1.0]


def test_work_for_another_thread_is_refused() -> None:
    d, x = {"k": 2.0}, eg.ones((2,))

    def starts(x: Any) -> Any:
        thread = threading.Thread(target=lambda: d["k"])
        thread.start()
        return x

    with ThreadPoolExecutor(1) as pool:
        refused("another thread", starts, x)
        refused("another thread", lambda x: x * pool.submit(lambda: d["k"]).result(), x)
        refused("another thread", lambda x: x * sum(pool.map(lambda k: d[k], ["k"])), x)


def test_what_changes_nothing_is_not_refused() -> None:
    """Messages, locks, clocks, warnings and hints of libraries are no part of the result."""
    log, lock, event = logging.getLogger("everygrad.tests"), threading.Lock(), threading.Event()

    def f(x: Any) -> Any:
        log.info("of %s", x.shape)
        if log.isEnabledFor(logging.DEBUG):
            x = x * 1.0
        print("", end="")
        sys.stdout.write("")
        time.perf_counter()
        with lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("nothing", stacklevel=1)
        return x * (2.0 if not event.is_set() else 3.0)

    g = eg.jit(f)
    for _ in range(3):
        assert values(g(eg.ones((2,)))).tolist() == [2.0, 2.0]
    assert g.count == 1


def test_equal_values_are_compared_once() -> None:
    """Numbers that are computed anew for each call are other objects: they are taken for what is
    expected, and found at once in the next call."""
    d: dict[str, Any] = {"k": 2.0, "list": [1.0]}
    f = eg.jit(lambda x: x * d["k"] * sum(d["list"]))
    f(eg.ones((2,)))
    guards = f.latest.record.guards
    d["k"], d["list"][0] = float("2.0"), float("1.0")
    assert not guards.hold()
    f(eg.ones((2,)))
    assert guards.hold()
    assert f.count == 1


def test_an_interpreter_that_tells_of_no_instruction_is_refused(monkeypatch: Any) -> None:
    """What was not followed cannot be guarded: that is an error, never a function gone stale."""
    monkeypatch.setattr(FrameReader, "step", lambda self, frame: None)
    refused("tells of no instruction", lambda x: x * len([x]), eg.ones((2,)))


def test_state_made_when_first_needed() -> None:
    """A cache is filled by the first call; the second is traced again, and then no more."""
    cache: dict[str, Any] = {}

    def f(x: Any) -> Any:
        if "scale" not in cache:
            cache["scale"] = 3.0
        return x * cache["scale"]

    g = eg.jit(f)
    for _ in range(4):
        assert values(g(eg.ones((1,)))).tolist() == [3.0]
    assert cache == {"scale": 3.0}
    assert g.count == 1  # the first entry served one call
    cache.clear()
    assert values(g(eg.ones((1,)))).tolist() == [3.0]
    assert cache == {"scale": 3.0}


# --- what is said --------------------------------------------------------------------------------


def test_the_log_says_what_changed(caplog: Any) -> None:
    d = {"k": 2.0}
    f = eg.jit(lambda x: x * d["k"])
    with caplog.at_level(logging.INFO, "everygrad.jit"):
        f(eg.ones((2,)))
        d["k"] = 3.0
        f(eg.ones((2,)))
    assert "d['k'] was 2.0 and is 3.0" in caplog.text


def test_many_kinds_of_call_are_said_once(caplog: Any) -> None:
    d = {"k": 0}
    f = eg.jit(lambda x: x + d["k"])
    with caplog.at_level(logging.WARNING, "everygrad.jit"):
        for k in range(70):
            d["k"] = k
            f(eg.ones((2,)))
    assert caplog.text.count("compiled 65 times") == 1


def test_a_tracer_of_another_tool_goes_on() -> None:
    """A debugger or a coverage tool sees the same calls and lines with and without us."""
    import sys

    def f(x: Any) -> Any:
        y = x * 2.0
        return y + 1.0

    def lines_of(fn: Any) -> list[int]:
        seen = []

        def tool(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code is f.__code__ and event in ("line", "return"):
                seen.append(frame.f_lineno)
            return tool

        before = sys.gettrace()
        sys.settrace(tool)
        try:
            fn(eg.ones((2,)))
        finally:
            sys.settrace(before)
        return seen

    assert lines_of(eg.jit(f)) == lines_of(f) != []


_turns = [0]


def test_a_profiler_that_ran_meanwhile_hides_nothing() -> None:
    """Code that was followed once, then ran under a profiler, is followed again."""
    held, x = {"scale": 3.0}, eg.ones(2)

    def scaled(x: eg.Tensor) -> eg.Tensor:
        return sum(map(lambda v: v * held["scale"], [x, x]), eg.zeros(2))  # noqa: C417

    assert eg.jit(scaled)(x).tolist() == [6.0, 6.0]
    before, seen = sys.getprofile(), []
    for during in (True, False):
        compiled = eg.jit(scaled)
        for scale in (3.0, 4.0):
            held["scale"] = scale
            sys.setprofile((lambda *_: None) if during else before)
            try:
                seen.append(compiled(x).tolist()[0])
            finally:
                sys.setprofile(before)
    assert seen == [6.0, 8.0, 6.0, 8.0]


@pytest.mark.parametrize("table", [ExactWeakKeyDictionary, WeakIdKeyDictionary])
def test_what_other_libraries_read_is_guarded(table: type) -> None:
    """The code of an installed library is followed; its callbacks of dead objects are not, whether
    or not they have further arguments."""
    bound, x = torch.nn.Hardtanh(-1.0, 2.0), eg.ones(2)
    known = table()

    def fn(x: eg.Tensor) -> eg.Tensor:
        gc.collect()
        return x * float(bound(torch.full((1,), 5.0)))

    compiled = eg.jit(fn)
    for most in (2.0, 3.0):
        held = Held()
        held.itself = held  # freed by the collector, inside of fn
        known[held] = most
        del held
        bound.max_val = most
        assert compiled(x).tolist() == [most, most]
    assert not (known.values if table is ExactWeakKeyDictionary else known.data)


class Held:
    itself: Held


def test_what_runs_between_instructions_is_not_the_functions_doing() -> None:
    """Callbacks of the collector, and finalizers, change what they like while a function is
    traced."""

    def collected(phase: str, info: dict[str, int]) -> None:
        _turns[0] += len(phase)

    def dropped() -> None:
        _turns[0] += 1

    class Held:
        pass

    def fn(x: eg.Tensor) -> eg.Tensor:
        held = Held()
        weakref.finalize(held, dropped)
        gc.collect()
        del held
        return x * 2

    before = _turns[0]
    gc.callbacks.append(collected)
    try:
        got = eg.jit(fn)(eg.ones(3))
    finally:
        gc.callbacks.remove(collected)
    assert _turns[0] >= before + len("start") + len("stop") + 1
    np.testing.assert_array_equal(values(got), [2, 2, 2])


@pytest.mark.parametrize("way", ["grad", "vmap of grad", "grad of grad", "jvp of grad", "vmap"])
def test_facts_of_tensors_that_transformations_make_are_not_kept(way: str) -> None:
    """A tensor made and changed inside, whose shape is asked for, is nobody's state outside."""

    def f(x: Any) -> Any:
        y = x * x
        y += x
        return (y * float(y.size + y.ndim)).sum() if y.dtype.is_float else y

    ways: dict[str, Callable[[Any], Any]] = {
        "grad": eg.grad(f),
        "vmap of grad": eg.vmap(eg.grad(f)),
        "grad of grad": eg.grad(lambda x: eg.grad(f)(x).sum()),
        "jvp of grad": lambda x: eg.jvp(eg.grad(f), (x,), (x,))[1],
        "vmap": eg.vmap(f),
    }
    x = eg.tensor([[1.0, 2.0], [3.0, 4.0]])
    compiled = eg.jit(ways[way])
    for _ in range(2):
        np.testing.assert_array_equal(values(compiled(x)), values(ways[way](x)))
    assert compiled.count == 1


FIRST_USE = """
import everygrad as eg

@eg.jit
def made():
    return (eg.ones((4, 3), device=DEVICE) * 2.0).sum()

print(float(made()))
model = eg.nn.Sequential(eg.nn.Linear(3, 2), eg.nn.Tanh()).to(DEVICE)

@eg.jit
def step(x):
    loss = (model(x) * 0.0).sum() + 1.0
    loss.backward()
    return loss

print(float(step(eg.ones((4, 3), device=DEVICE))))
"""


def test_a_device_may_first_be_used_inside(device: str) -> None:
    """What libraries do while they open it is not the function's doing."""
    code = FIRST_USE.replace("DEVICE", repr(device))
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "24.0\n1.0"), done.stderr[-2000:]

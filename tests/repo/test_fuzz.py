"""Random programs agree with themselves in every way; a fault is found and shrunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devtools.fuzz import __main__ as fuzz, sampled
from devtools.fuzz.check import Failure, check, tried, ways_for
from devtools.fuzz.program import Input, Program, Ref, Step
from devtools.fuzz.shrink import shrink, still_fails
from devtools.fuzz.ways import DEVICES, NARROW, WAYS
from everygrad.backends import base
from everygrad.core.config import config
from everygrad.ops.record.spec import REGISTRY

ALWAYS = ("eager", "jit", "jit-grad", "checkpoint", "workers")
IN_TURN = [way for way in WAYS if way not in ALWAYS]  # each compiles: one of them a program
FEW, APART = 40, 1_000_003  # programs, far from the seeds people start at


def shown(seed: int, failures: list[Failure]) -> str:
    lines = "\n".join(map(str, failures))
    return f"seed {seed}: {lines}\nmake fuzz ARGS='--start {seed} --seeds 1' shrinks it"


@pytest.mark.parametrize("part", range(8))
def test_random_programs(part: int) -> None:
    for k in range(part, FEW, 8):
        seed = APART + k
        ways = (*ALWAYS, IN_TURN[k % len(IN_TURN)])
        failures = check(fuzz.program_of(seed), ways)
        assert not failures, shown(seed, failures)


def test_random_programs_on_devices(device: str) -> None:
    """What the CPU computes, compiled and eager, and its gradients."""
    kind = device.split(":")[0]
    for seed in range(APART, APART + 12):
        program = fuzz.program_of(seed, narrow=kind in NARROW)
        failures = check(program, [kind if kind in DEVICES else "eager"])
        assert not failures, f"{shown(seed, failures)} on {device}"


@pytest.mark.parametrize("seed", fuzz.recorded())
def test_recorded_seeds(seed: int) -> None:
    """Programs that failed once, in every way."""
    failures = check(fuzz.program_of(seed))
    assert not failures, shown(seed, failures)


def test_a_seed_is_one_program() -> None:
    texts = [fuzz.program_of(seed).text() for seed in range(30)]
    assert texts == [fuzz.program_of(seed).text() for seed in range(30)]
    assert len(set(texts)) == 30


def test_text_is_the_program() -> None:
    """What is printed runs on its own, and gives what the data gives."""
    for seed in range(40):
        program = fuzz.program_of(seed)
        space: dict[str, Any] = {}
        exec(program.text(), space)
        got = [t.numpy() for t in space["f"](*space["args"])]
        want = [t.numpy() for t in program.function()(*program.tensors())]
        assert [g.tobytes() for g in got] == [w.tobytes() for w in want], f"seed {seed}"


def test_every_op_is_met() -> None:
    """Ops nobody wrote a maker for come by their samples."""
    reached = {*sampled.sampled(), *sampled.elementwise(1), *sampled.elementwise(2)}
    reached |= {"where", "clamp", "astype"}
    with_samples = {n for n, op in REGISTRY.items() if next(iter(op.samples()), None)}
    by_values = {n for n, op in REGISTRY.items() if op.notes.get("by_values")}  # no jit, no vmap
    assert with_samples - reached <= sampled.NOT_FUZZED | by_values


def program_with(op: str, steps: int) -> Program:
    """The first program that has an op among so many steps, and returns its result; without half
    floats, which may differ by much."""
    for seed in range(3000):
        program = fuzz.program_of(seed)
        if any("float16" in i.dtype for i in program.inputs):
            continue
        returned = [s for s in program.steps if s.number in program.outputs]
        if len(program.steps) >= steps and op in {s.op for s in returned}:
            return program
    raise AssertionError(f"no program has {op}")


def test_a_fault_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eager kernel that is wrong: the minimal program is a call of it."""
    program = program_with("softmax", 6)
    monkeypatch.setattr(config, "native_threshold", 0)  # small rows have a kernel of their own
    assert not check(program, ["jit"])
    kernels = base.get("cpu").kernels
    right = kernels["softmax"]

    def wrong(x: Any, axis: int) -> Any:
        return (right(x, axis=axis) * 1.25).astype(x.dtype)

    monkeypatch.setitem(kernels, "softmax", wrong)
    (failure,) = check(program, ["jit"])
    assert failure.kind == "difference"
    small = shrink(program, still_fails(failure), seconds=30)
    assert len(small.steps) <= 2
    assert "softmax" in {s.op for s in small.steps}
    assert "eg.softmax(" in fuzz.snippet(small, failure)


def test_an_exception_is_a_failure() -> None:
    x = Input(0, (3,))
    step = Step(1, "matmul", (Ref(0), Ref(0)), {"nothing": 1})
    (failure,) = check(Program((x,), (step,), (1,)))
    assert failure.way == "eager"
    assert failure.kind.startswith("TypeError")


def test_in_place_steps_keep_what_they_change() -> None:
    """Dropping dead steps keeps an assignment to a value that is returned."""
    x = Input(0, (3,))
    double = Step(1, "multiply", (Ref(0), 2.0))
    write = Step(2, "setitem", (Ref(1), 0.25), {"index": slice(0, 2)})
    program = Program((x,), (double, write), (1,)).live()
    assert len(program.steps) == 2
    (out,) = program.function()(*program.tensors())
    np.testing.assert_array_equal(out.numpy()[:2], 0.25)
    possible, allowed = ways_for(program)
    assert tried(program, "jit", allowed) is None
    assert "jit" in possible


def test_failing_seeds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "seeds.txt"
    failure = Failure("jit", "traced", "difference", 2.0, "1, should be 2")
    for seed in (7, 12, 7):
        fuzz.record(seed, failure, path)
    assert fuzz.recorded(path) == [7, 12]


def test_command_stops_at_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Program((Input(0, (2,)),), (Step(1, "sin", (Ref(0),)),), (1,))
    monkeypatch.setattr(fuzz, "program_of", lambda seed, narrow=False: good)
    assert fuzz.main(["--seeds", "2", "--ways", "eager", "--no-record"]) == 0
    bad = Program((Input(0, (2,)),), (Step(1, "sin", (Ref(0), Ref(0))),), (1,))
    monkeypatch.setattr(fuzz, "program_of", lambda seed, narrow=False: bad)
    assert fuzz.main(["--seeds", "9", "--ways", "eager", "--no-record"]) == 1
    said = capsys.readouterr().out
    assert said.count("differs:") == 1
    assert "eg.sin(v0, v0)" in said

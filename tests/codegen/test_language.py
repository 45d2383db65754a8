"""The kernel language: its text, what the verifier and the interpreter refuse, and its passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everygrad import dtypes
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.llvm.kernel_render import render as llvm
from everygrad.backends.cuda.source.kernel_render import render as cuda
from everygrad.backends.reference import interpreter
from everygrad.backends.reference.interpreter import KernelError
from everygrad.backends.webgpu.source.kernel_render import render as wgsl
from everygrad.codegen import show
from everygrad.codegen.kernel import Builder, Kernel, Let, Loop
from everygrad.codegen.passes import optimised
from everygrad.codegen.verify import verify
from everygrad.compiler.expr import call
from everygrad.errors import CompileError

F32 = dtypes.float32


def builder(groups: int = 2, threads: int = 4, size: int = 8) -> tuple[Builder, Any, Any]:
    b = Builder("tested", dtypes.uint32, groups, threads)
    return b, b.buffer("x", F32, size), b.buffer("out", F32, size, written=True)


def doubled(size: int = 7) -> Kernel:
    b, x, out = builder(size=size)
    i = b.let(b.group * 4 + b.thread)
    with b.when(i < size):
        b.store(out, i, b.load(x, i) * 2.0)
    return b.finish()


def test_text() -> None:
    assert show.kernel(doubled()) == (
        "kernel tested: 2 groups x 4 threads, indices uint32\n"
        "x: float32[7], out: float32[7] written\n"
        "r2 = (group * 4) + thread\n"
        "when r2 < 7:\n"
        "  r3 = x[r2]\n"
        "  out[r2] = r3 * 2.0\n"
    )


def test_interpreted() -> None:
    x, out = np.arange(7, dtype=np.float32), np.zeros(7, np.float32)
    interpreter.run(verify(doubled()), [x, out])
    np.testing.assert_array_equal(out, 2 * x)


# --- the verifier --------------------------------------------------------------------------------


def outside(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.group * 5 + b.thread, 1.0)


def wrong_dtype(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.thread, b.thread)


def undefined(b: Builder, x: Any, out: Any) -> None:
    with b.when(b.thread < 2):
        v = b.load(x, b.thread)
    b.store(out, b.thread, v)


def read_only(b: Builder, x: Any, out: Any) -> None:
    b.store(x, b.thread, 1.0)


def constant_assigned(b: Builder, x: Any, out: Any) -> None:
    b.assign(b.let(1), 2)


def lone_barrier(b: Builder, x: Any, out: Any) -> None:
    with b.when(b.thread < 2):
        b.barrier()


def barrier_in_loop(b: Builder, x: Any, out: Any) -> None:
    with b.loop(0, b.thread):
        b.barrier()


def wrapped_around(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.thread - 1, 1.0)


def no_condition(b: Builder, x: Any, out: Any) -> None:
    with b.when(b.thread + 1):
        b.store(out, 0, 1.0)


def barrier_after_a_break(b: Builder, x: Any, out: Any) -> None:
    with b.loop(0, 4):
        b.barrier()
        b.leave(b.thread < 2)


def break_outside(b: Builder, x: Any, out: Any) -> None:
    b.leave(b.thread < 2)


def step_of_zero(b: Builder, x: Any, out: Any) -> None:
    with b.loop(0, 4, b.thread):
        pass


def unordered_sum(b: Builder, x: Any, out: Any) -> None:
    b.atomic("add", out, 0, 1.0)


def bits_outside(b: Builder, x: Any, out: Any) -> None:
    b.store(out, call("shl", b.thread | 4, b.group), 1.0)


def vector_outside(b: Builder, x: Any, out: Any) -> None:
    b.store_vector(out, b.thread * 4, [1.0] * 4)


def unaligned_vector(b: Builder, x: Any, out: Any) -> None:
    b.store_vector(out, b.thread, [1.0] * 2)


def below_zero(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.thread + -4, 1.0)


def guarded_before_it_was_assigned(b: Builder, x: Any, out: Any) -> None:
    v = b.variable(0, dtypes.uint32)
    with b.when(v < 8):
        b.assign(v, 9)
        b.store(out, v, 1.0)


def ended_by_what_was_assigned(b: Builder, x: Any, out: Any) -> None:
    """Up to 8 - v, of the v that was there before."""
    v = b.variable(4, dtypes.uint32)
    with b.loop(0, 8 - v) as i:
        b.assign(v, 8)
        b.store(out, b.let(i + v), 1.0)


def multiple_of_what_wraps(b: Builder, x: Any, out: Any) -> None:
    """0 - 3 is no multiple of 3, and its remainder by 9 is 7."""
    b.store(out, call("mod", b.group * 3 - 3, 9), 1.0)


def barrier_behind_a_break(b: Builder, x: Any, out: Any) -> None:
    turns = b.variable(0, dtypes.uint32)
    with b.loop(0, 4):
        b.leave(b.thread < 2)
        b.assign(turns, turns + 1)
    with b.when(turns < 2):
        b.barrier()


def barrier_in_the_next_turn(b: Builder, x: Any, out: Any) -> None:
    turns = b.variable(0, dtypes.uint32)
    with b.loop(0, 4):
        with b.when(turns < 2):
            b.barrier()
        b.assign(turns, b.thread)


def reduction_in_a_loop_that_is_left(b: Builder, x: Any, out: Any) -> None:
    with b.loop(0, 4):
        b.reduce([(b.let(b.thread), "add")], 4)
        b.leave(b.thread < 2)


REFUSED: dict[Callable[..., None], str] = {
    outside: "index from 0 to 8 of out with 8 elements",
    wrong_dtype: "thread is uint32 where float32 is wanted",
    undefined: "is used before it is defined",
    read_only: "x is not declared as written",
    constant_assigned: "is no variable",
    lone_barrier: "a barrier that some threads may not reach",
    barrier_in_loop: "a barrier that some threads may not reach",
    wrapped_around: "index from None to None of out",
    no_condition: "is uint32 where bool is wanted",
    barrier_after_a_break: "a barrier in a loop that some threads may leave before",
    break_outside: "there is no loop to leave",
    step_of_zero: "a step of 0",
    unordered_sum: "float32 depends on the order of its threads",
    bits_outside: "index from 0 to 14 of out with 8 elements",
    vector_outside: "index from 0 to 15 of out with 8 elements",
    unaligned_vector: "a vector of 2 that may not begin at a multiple of 2",
    below_zero: "index from -4 to -1 of out",
    guarded_before_it_was_assigned: "index from 0 to 4294967295 of out",
    ended_by_what_was_assigned: "of out with 8 elements",
    multiple_of_what_wraps: "index from 0 to 8 of out",
    barrier_behind_a_break: "a barrier that some threads may not reach",
    barrier_in_the_next_turn: "a barrier that some threads may not reach",
    reduction_in_a_loop_that_is_left: "a barrier in a loop that some threads may leave before",
}


@pytest.mark.parametrize("write", REFUSED, ids=lambda f: f.__name__)
def test_the_verifier_refuses(write: Callable[..., None]) -> None:
    b, x, out = builder()
    write(b, x, out)
    with pytest.raises(CompileError, match=REFUSED[write]) as caught:
        verify(b.finish())
    assert "kernel tested: 2 groups x 4 threads" in str(caught.value)  # the text, to report


def test_a_loop_up_to_a_difference_stays_inside() -> None:
    b, x, out = builder(groups=3, threads=1, size=10)
    start = b.let(b.group * 4)
    with b.loop(0, b.let(call("min", 10 - start, 4))) as i:
        at = b.let(start + i)
        b.store(out, at, b.load(x, at))
    given, found = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    interpreter.run(verify(b.finish()), [given, found])
    np.testing.assert_array_equal(found, given)


# --- the interpreter -----------------------------------------------------------------------------


def both_write(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.thread // 2, 1.0)


def read_while_written(b: Builder, x: Any, out: Any) -> None:
    shared = b.local("shared", F32, 4)
    b.store(shared, b.thread, 1.0)
    b.store(out, b.thread, b.load(shared, 3 - b.thread))


def written_while_read(b: Builder, x: Any, out: Any) -> None:
    shared = b.local("shared", F32, 4)
    b.store(shared, b.thread, 1.0)
    b.barrier()
    v = b.load(shared, 3 - b.thread)
    b.store(shared, b.thread, v)


def never_written(b: Builder, x: Any, out: Any) -> None:
    shared = b.local("shared", F32, 4)
    b.store(out, b.thread, b.load(shared, b.thread))


def other_group(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.thread, 1.0)


def left_out(b: Builder, x: Any, out: Any) -> None:
    b.store(out, b.group * 4 + b.thread, 1.0, b.thread < 3)


def read_by_the_other_group(b: Builder, x: Any, out: Any) -> None:
    last = b.load(out, 7 - b.group, b.thread < 1)
    b.store(out, b.group * 4 + b.thread, last)


def written_before_a_sum(b: Builder, x: Any, out: Any) -> None:
    counts = b.local("counts", dtypes.int32, 4)
    b.store(counts, b.thread, 0)
    b.atomic("add", counts, 0, 1)


def vector_across_a_word(b: Builder, x: Any, out: Any) -> None:
    b.store_vector(out, b.thread + 1, [1.0] * 2)


FAULTS: dict[Callable[..., None], str] = {
    both_write: "writes what another one reads or writes",
    read_while_written: "reads what another one writes",
    written_while_read: "writes what another one reads or writes",
    never_written: "reads what nobody wrote",
    other_group: "group 1: thread 0 writes what another one",
    left_out: "element 3 of out is never written",
    read_by_the_other_group: "reads what nobody wrote",
    vector_across_a_word: "thread 0 begins a vector of 2 at 1",
    written_before_a_sum: "changes what another one reads or writes",
}


@pytest.mark.parametrize("write", FAULTS, ids=lambda f: f.__name__)
def test_the_interpreter_finds(write: Callable[..., None]) -> None:
    b, x, out = builder()
    write(b, x, out)
    with pytest.raises(KernelError, match=FAULTS[write]):
        interpreter.run(b.finish(), [np.ones(8, np.float32), np.zeros(8, np.float32)])


def test_a_barrier_between_makes_it_right() -> None:
    b, _x, out = builder(groups=1, size=4)
    shared = b.local("shared", F32, 4)
    b.store(shared, b.thread, b.thread.cast(F32))
    b.barrier()
    b.store(out, b.thread, b.load(shared, 3 - b.thread))
    found = np.zeros(4, np.float32)
    interpreter.run(b.finish(), [np.ones(4, np.float32), found])
    np.testing.assert_array_equal(found, [3, 2, 1, 0])


def test_arrays_of_another_size_are_refused() -> None:
    with pytest.raises(KernelError, match=r"x is float32\[7\], got float32\[6\]"):
        interpreter.run(doubled(), [np.ones(6, np.float32), np.zeros(7, np.float32)])


def counted(threads: int = 4) -> Kernel:
    """Every statement that scans do not use."""
    b = Builder("counted", dtypes.uint32, 2, threads)
    x = b.buffer("x", dtypes.uint16, 12)
    sums = b.buffer("sums", dtypes.uint32, 2, written=True, held=True)
    out = b.buffer("out", dtypes.uint16, 4, written=True)
    with b.loop(b.group, 12, b.symbol(2)) as i:
        v = b.load(x, i)
        b.leave(v > 100)
        if threads == 1:
            b.atomic("add", sums, b.group, v.cast(dtypes.uint32))
        else:
            with b.when(b.thread < 1):
                b.atomic("max", sums, b.group, v.cast(dtypes.uint32))
    if threads > 1:  # a core's checks are made before
        b.fault(b.symbol(7), b.thread.cast(dtypes.int64) - 5, b.thread > 1)
    with b.when(b.thread < 1):
        b.store_vector(out, b.group * 2, [(b.group + j).cast(dtypes.uint16) for j in range(2)])
    return b.finish()


def test_other_statements() -> None:
    x = np.array([1, 2, 9, 4, 5, 300, 7, 8, 9, 200, 11, 12], np.uint16)
    for threads, want, found in [(4, [11, 50], (7, -3)), (1, [42, 56], None)]:
        sums, out = np.array([0, 50], np.uint32), np.zeros(4, np.uint16)
        fault = interpreter.run(optimised(verify(counted(threads))), [x, sums, out])
        np.testing.assert_array_equal(sums, want)
        np.testing.assert_array_equal(out, [0, 1, 1, 2])
        assert fault == found
    assert "sums[group] = atomic max" in show.kernel(counted())
    assert "fault(r5, int64(thread) - 5) if thread > 1" in show.kernel(counted())


def reversed_vectors() -> Kernel:
    b = Builder("reversed", dtypes.uint64, 3, 1)
    x = b.buffer("x", F32, 12)
    out = b.buffer("out", F32, 12, written=True)
    b.store_vector(out, b.group * 4, b.load_vector(x, 8 - b.group * 4, 4)[::-1], b.group < 3)
    return b.finish()


def test_vectors() -> None:
    made = optimised(verify(reversed_vectors()))
    assert "r2, r3, r4, r5 = x[8 - (group * 4):+4]" in show.kernel(made)
    x = np.arange(12, dtype=np.float32)
    interpreted, compiled = np.zeros(12, np.float32), np.zeros(12, np.float32)
    interpreter.run(made, [x, interpreted])
    run_work.run(llvm(made, (1, 0)), [compiled], [x])
    np.testing.assert_array_equal(interpreted, x[::-1])
    np.testing.assert_array_equal(compiled, x[::-1])


def shortened(index: Any) -> Kernel:
    """A loop that ends where it did when it began, whatever becomes of the variable."""
    b = Builder("shortened", index, 1, 1)
    out = b.buffer("out", index, 1, written=True)
    end, turns = b.variable(5, index), b.variable(0, index)
    with b.loop(0, end):
        b.assign(end, 1)
        b.assign(turns, turns + 1)
    b.store(out, 0, turns)
    return b.finish()


def test_loops_end_where_they_did_when_they_began() -> None:
    made = shortened(dtypes.uint64)
    interpreted, compiled = np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    interpreter.run(made, [interpreted])
    run_work.run(llvm(made, (0,)), [compiled], [])
    assert interpreted[0] == compiled[0] == 5
    made = shortened(dtypes.uint32)
    texts = cuda(made).text.source, wgsl(made).source
    assert not any("< r2;" in t for t in texts)


# --- passes --------------------------------------------------------------------------------------


def test_what_a_loop_does_not_change_is_computed_before_it() -> None:
    b, x, out = builder(groups=1, threads=1, size=12)
    n = b.symbol(4)
    with b.loop(0, 3) as row, b.loop(0, 4) as column:
        b.store(out, row * n + column * 1 + 0, b.load(x, row * n + column))
    made = optimised(verify(b.finish()))
    (rows,) = made.body
    assert isinstance(rows, Loop)
    before, columns = rows.body
    assert isinstance(before, Let)
    assert isinstance(columns, Loop)
    assert "*" in show.statement(before)[0]
    assert "*" not in "".join(show.statement(columns))  # neither the row's product nor times one
    given, found = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    interpreter.run(made, [given, found])
    np.testing.assert_array_equal(found, given)


def test_variables_and_divisions_by_what_may_be_zero_stay() -> None:
    b, _x, out = builder(groups=1, threads=1, size=8)
    v = b.variable(0, dtypes.uint32)
    with b.loop(0, 2) as i, b.when(i > 0):
        b.store(out, (v % 2) + i // i, 1.0)
        b.assign(v, v + 1)
    (_, loop) = optimised(b.finish()).body
    text = "\n".join(show.statement(loop))
    assert "% 2" in text.split("when")[1]
    assert "//" in text.split("when")[1]


@pytest.mark.parametrize("written", [lambda k: wgsl(k).source, lambda k: cuda(k).text.source])
def test_buffers_hide_nothing(written: Callable[[Kernel], str]) -> None:
    """A buffer may have any name in small letters: what a renderer declares has another."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    b = Builder("letters", dtypes.uint32, 2, 64)
    held = [b.buffer(name, dtypes.float32, 128) for name in letters]
    out = b.buffer("out", dtypes.float32, 128, written=True)
    at = b.let(b.group * 64 + b.thread)
    total = b.load(held[0], at)
    for one in held[1:]:
        total = total + b.load(one, at)
    b.store(out, at, total)
    source = written(optimised(verify(b.finish())))
    body = source[re.search(r"\bmain\(|__global__", source).start() :]  # type: ignore[union-attr]
    assert all(len(re.findall(rf"(?<!\.)\b{name}\[", body)) == 1 for name in letters)
    declared = re.findall(r"\b(?:let|var|const \w+|int|float) (\w+) ?[:=]", body)
    declared += re.findall(r"@builtin\(\w+\) (\w+):", body)
    assert declared
    assert not set(declared) & set(letters)

"""Runs an execution plan: steps are compiled, and each run of native steps is one foreign call."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from everygrad.backends.cpu.graph.execution_plan import (
    ERROR_WORDS,
    ExecutionPlan,
    HostStep,
    NativeStep,
    build,
)
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.runtime import native_threads
from everygrad.backends.cpu.runtime.addresses import address_of
from everygrad.backends.cpu.runtime.pool import (
    SMALLEST,
    Recycled,
    empty,
    free_idle,
    is_sole_owner,
    note_apart,
)
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.memory import Memory
from everygrad.compiler.views import View, is_whole
from everygrad.core.shapes import size_of
from everygrad.errors import OutOfRangeError, TraceError

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_A_VALUE = 4096  # estimated bytes of the Python objects of a value and its step
Segment = Callable[[dict[int, Any]], None]  # takes the outputs by slot, for host steps
Around = Callable[[range, Callable[[], None]], None]
Prepare = Callable[[list[Any]], Callable[[], None]]
Fresh = tuple[int, int, Callable[[], Any]]  # an output's number, its slot, its allocator


def _run_steps(where: int, count: int, slots: int, arrays: dict[int, Any]) -> None:
    native_threads.run_steps(where, count, slots)


def _none(arrays: dict[int, Any]) -> None:
    """The segment of a plan without steps."""


def compiled(
    graph: Graph, donated: Sequence[tuple[int, int]], remade: Sequence[int] = ()
) -> Replay:
    """A graph, planned and compiled."""
    return Replay(build(graph, donated, remade))


_REPLAYS: weakref.WeakSet[Replay] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked child: the thread that held a lock is gone."""
    for replay in _REPLAYS:
        replay.lock = threading.RLock()
        replay.running = False
        replay.error[0] = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def array_at(address: int, v: Value) -> Any:
    """The C-contiguous array at an address; whoever owns the memory must outlive it."""
    if not v.size:
        return np.empty(v.shape, v.dtype.np)
    memory: Any = (ctypes.c_char * v.nbytes).from_address(address)
    return np.frombuffer(memory, v.dtype.np).reshape(v.shape)


_LARGE = 1 << 24  # bytes of an arena for which idle memory of eager ops is given back


class Replay:
    """Runs one execution plan any number of times. A lock serialises calls from several threads."""

    def __init__(self, program: ExecutionPlan) -> None:
        self.program = program
        self.lock = threading.RLock()
        self.running = False
        _REPLAYS.add(self)
        self.error = (ctypes.c_int64 * ERROR_WORDS)()
        self.slots = (ctypes.c_int64 * max(1, program.slots))()
        self.slots[0] = ctypes.addressof(self.error)
        if program.arena >= _LARGE:  # what ran eagerly before now computes in there
            free_idle()
        block = np.empty(program.arena + 64, np.uint8)
        note_apart(block)
        start = -address_of(block) % 64
        self.arena = block[start : start + program.arena]
        base = address_of(self.arena) if program.arena else 0
        for slot, offset in program.temporaries.items():
            self.point(slot, base + offset)
        for slot, array in program.constants.items():
            self.point(slot, address_of(array))
        self.arrays: list[Any] = [None] * len(program.inputs)  # the inputs of the latest call
        self.input_at = {slot: i for i, slot in enumerate(program.inputs)}
        self.output_at = {slot: i for i, slot in enumerate(program.outputs)}
        self.inside = {  # slots that point into others: which slot, and the byte offset
            slot: (base, nbytes)
            for base, pointers in program.offsets.items()
            for slot, nbytes in pointers
        }
        self.outputs = [(slot, self.memory_for(slot, v)) for slot, v in program.outputs.items()]
        self.has_host_steps = any(isinstance(s, HostStep) for s in program.steps)
        self.segments = self.link()
        self.first: list[Segment] = self.segments[:-1]
        self.last: Segment = self.segments[-1] if self.segments else _none
        self.begins = self.first_needed()
        self.release_at = -1  # the run of steps before which `release` is called, if there is any
        self.release: Callable[[], None] | None = None  # lets go of memory that results take
        self.view_makers = [self.view_maker(r.slot, r.view) for r in program.results]
        self.result_sources = [self.result_source(r.slot) for r in program.results]

    def first_needed(self) -> list[list[Fresh]]:
        """For each segment: the outputs that get their memory before it runs."""
        begins: list[list[Fresh]] = [[] for _ in self.segments or [_none]]
        ends = list(accumulate(count for _, count in self.stretches))
        for i, (slot, fresh) in enumerate(self.outputs):
            first = self.program.first_writers.get(slot, 0)
            begins[bisect(ends, first)].append((i, slot, fresh))
        return begins

    def first_run_of(self, outputs: Sequence[int]) -> int:
        """The first run of steps that writes one of these outputs of the graph."""
        slots = {self.program.results[k].slot for k in outputs}
        for k, begin in enumerate(self.begins):
            if any(slot in slots for _, slot, _ in begin):
                return k
        return len(self.begins)

    def memory(self) -> Memory:
        return self.program.memory()

    def held_bytes(self, most: int) -> int:
        """About how many bytes this holds between calls, counting at most `most` of the arena."""
        program = self.program
        code = {id(a.module.code): a.nbytes for a in self.code}
        texts = {s.step.source for s in program.steps if isinstance(s, NativeStep)}
        constants = sum(a.nbytes for a in program.constants.values())
        members = sum(len(g.values) for g in program.groups)
        held = sum(code.values()) + sum(map(len, texts)) + constants + _A_VALUE * members
        return held + min(most, program.arena)

    def memory_for(self, slot: int, v: Value) -> Callable[[], Any]:
        """Returns the allocator of an output. It reuses earlier results that nobody holds any more;
        a small output that may reuse an input's memory has a fresh array, which no list holds."""
        if v.nbytes < SMALLEST:
            if slot in self.program.donations:
                return partial(np.empty, v.shape, v.dtype.np)
            return Recycled(v.shape, v.dtype.np).take
        return partial(empty, v.shape, v.dtype.np)

    def result_source(self, slot: int) -> tuple[int, Any]:
        """Where a result comes from: 0, an input; 1, an output; 2, the constant array itself."""
        if slot in self.input_at:
            return 0, self.input_at[slot]
        if slot in self.output_at:
            return 1, self.output_at[slot]
        return 2, self.program.constants[slot]

    def link(self) -> list[Callable[[dict[int, Any]], None]]:
        """Compiles all steps, and makes each run of native steps a single call."""
        native = [s for s in self.program.steps if isinstance(s, NativeStep)]
        sources = [(s.step.source, s.step.vectorise) for s in native]
        self.code = engine().compile_all(sources)  # held: keeps the machine code alive
        addresses = iter(self.code)
        self.keepalive: list[Any] = []  # memory that native code points to
        segments: list[Callable[[dict[int, Any]], None]] = []
        words: list[int] = []
        self.stretches: list[tuple[int, int]] = []  # of segments: an address, the step count

        def close() -> None:
            if words:
                table = (ctypes.c_int64 * len(words))(*words)
                self.keepalive.append(table)
                where, count = ctypes.addressof(table), len(words) // native_threads.STEP_WORDS
                slots = ctypes.addressof(self.slots)
                segments.append(lambda arrays: native_threads.run_steps(where, count, slots))
                self.stretches.append((where, count))
                words.clear()

        for s in self.program.steps:
            if isinstance(s, HostStep):
                close()
                segments.append(lambda arrays, s=s: self.call(s, arrays))  # type: ignore[misc]
                self.stretches.append((0, 1))
                continue
            numbers = (ctypes.c_int64 * len(s.slots))(*s.slots)
            args = (ctypes.c_int64 * len(s.slots))()
            self.keepalive += (numbers, args)
            pointers = (ctypes.addressof(numbers), ctypes.addressof(args))
            blocks = -s.step.blocks if s.linked else s.step.blocks
            words += (next(addresses), blocks, len(s.slots), *pointers)
        close()
        return segments

    def view_maker(self, slot: int, view: View) -> Callable[[Any], Any]:
        """Returns the function that views the array in a slot as an output."""
        shape = view.shape
        if size_of(shape) == view.base.size and is_whole(shape, view.strides, view.offset):
            if shape == view.base.shape:
                return lambda array: array
            # memory that was given has the shape of the result already
            return lambda array: array if array.shape == shape else array.reshape(shape)
        strides = tuple(s * view.base.dtype.itemsize for s in view.strides)
        return lambda array: as_strided(array.reshape(-1)[view.offset :], shape, strides)

    def array(self, slot: int, view: View, arrays: dict[int, Any]) -> Any:
        """A value in memory as a NumPy array, for a host step."""
        slot, start = self.inside.get(slot, (slot, 0))
        base = arrays.get(slot)
        if base is None and slot in self.input_at:
            base = self.arrays[self.input_at[slot]]
        if base is None:
            base = self.program.constants.get(slot)
        if base is None:
            offset = self.program.temporaries[slot]
            base = self.arena[offset : offset + start + view.base.nbytes].view(view.base.dtype.np)
        # a checked index aliases its argument, which may be another shape or part of an array
        first = start // view.base.dtype.itemsize
        part = base.reshape(-1)[first : first + view.base.size]
        return self.view_maker(slot, view)(part.reshape(view.base.shape))

    def call(self, s: HostStep, arrays: dict[int, Any]) -> None:
        made = s.call(*[self.array(slot, view, arrays) for slot, view in s.inputs])
        out = arrays.get(s.out)
        if out is None:
            nbytes = made.size * made.dtype.itemsize
            offset = self.program.temporaries[s.out]
            out = self.arena[offset : offset + nbytes].view(made.dtype).reshape(made.shape)
        if not (made.size and address_of(made) == address_of(out)):  # it lies there already
            np.copyto(out, made)

    def donated(self) -> dict[int, tuple[int, int]]:
        """By output: the slot to give it memory in, and the input whose memory it may take."""
        program = self.program
        return {
            k: (r.slot, self.input_at[program.donations[r.slot]])
            for k, r in enumerate(program.results)
            if r.slot in program.donations
        }

    def own_memory(self) -> dict[int, int]:
        """By output: its slot, for outputs whose memory is not written before the last step that
        can fail, and which share it with no other output."""
        program = self.program
        slots = [r.slot for r in program.results]
        return {
            k: r.slot
            for k, r in enumerate(program.results)
            if r.slot in program.certain
            and program.outputs[r.slot].nbytes >= SMALLEST  # small ones are recycled anyway
            and slots.count(r.slot) == 1
            and r.view.shape == r.view.base.shape
            and is_whole(r.view.shape, r.view.strides, r.view.offset)
        }

    def may_write(self, slot: int, array: Any) -> bool:
        """Whether an array is the sole owner of its memory and has the layout of a result."""
        flags = array.flags
        return flags.c_contiguous and flags.aligned and flags.writeable and is_sole_owner(array)

    def put(self, i: int, array: Any) -> None:
        """Make an array (C-contiguous and aligned) input i of the calls to come."""
        address = address_of(array)
        self.arrays[i] = None  # if this is interrupted before the end, the next call tries again
        self.point(self.program.inputs[i], address)
        self.arrays[i] = array

    def point(self, slot: int, address: int) -> None:
        """Sets the address of a slot and of the slots that point into it."""
        self.slots[slot] = address
        for other, nbytes in self.program.offsets.get(slot, ()):
            self.slots[other] = address + nbytes

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these arrays."""
        with self.lock:
            for i, array in enumerate(inputs):
                self.put(i, array)
            made, interrupted = self.run({})
            self.arrays = [None] * len(self.arrays)
        if interrupted is not None:
            raise interrupted
        return made

    def run_at(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        """Compute on memory of others: addresses of C-contiguous inputs, and of a buffer for each
        output of the graph, which must all have memory of their own."""
        with self.lock:
            if self.running:
                raise TraceError("jit: called again, by a signal handler or __del__, while it runs")
            self.running = True
            try:
                self.compute_at(inputs, results)
            finally:
                self.running = False

    def compute_at(self, inputs: Sequence[int], results: Sequence[int]) -> None:
        slots, program = self.slots, self.program
        if program.offsets:
            for slot, address in zip(program.inputs, inputs, strict=True):
                self.point(slot, address)
            for r, address in zip(program.results, results, strict=True):
                self.point(r.slot, address)
        else:
            for slot, address in zip(program.inputs, inputs, strict=True):
                slots[slot] = address
            for r, address in zip(program.results, results, strict=True):
                slots[r.slot] = address
        known = self.arrays_at(inputs, results) if self.has_host_steps else {}
        error = self.error
        error[0] = 0  # a call that was interrupted may have left one
        for segment in self.segments:
            segment(known)
            if error[0]:
                self.refuse()

    def arrays_at(self, inputs: Sequence[int], results: Sequence[int]) -> dict[int, Any]:
        """The memory of others as NumPy arrays by slot, for host steps."""
        program = self.program
        known = {
            r.slot: array_at(address, program.outputs[r.slot])
            for r, address in zip(program.results, results, strict=True)
        }
        for slot, address, v in zip(program.inputs, inputs, program.input_values, strict=True):
            known[slot] = array_at(address, v)
        return known

    def single_steps(self) -> list[tuple[range, Segment]]:
        """The steps one by one, linked ones as one: their range, and the call that runs them."""
        slots, steps = ctypes.addressof(self.slots), self.program.steps
        found: list[tuple[range, Segment]] = []
        first = 0
        for segment, (where, count) in zip(self.segments, self.stretches, strict=True):
            at = begin = first
            first += count
            for k in range(begin, first):
                s = steps[k]
                if isinstance(s, HostStep):
                    found.append((range(k, k + 1), segment))
                elif not s.linked:
                    address = where + (at - begin) * native_threads.STEP_WORDS * _POINTER
                    run = partial(_run_steps, address, k + 1 - at, slots)
                    found.append((range(at, k + 1), run))
                    at = k + 1
        return found

    def run_apart(self, around: Around) -> list[Any]:
        """As `run`, but step by step: `around(steps, work)` runs the work of these steps."""

        def within(steps: range, segment: Segment) -> Segment:
            return lambda arrays: around(steps, partial(segment, arrays))

        # results get fresh memory: the call can be interrupted between any two steps
        made, interrupted = self.run({}, None, [within(*part) for part in self.single_steps()])
        if interrupted is not None:
            raise interrupted
        return made

    def run(
        self,
        given: dict[int, Any],
        prepare: Prepare | None = None,
        segments: Sequence[Segment] | None = None,
    ) -> tuple[list[Any], BaseException | None]:
        """The outputs for the arrays that were put; the caller holds the lock.

        `given` has memory for outputs that reuse existing memory, by slot; the others get theirs
        when the first of them is computed. `prepare` gets the outputs before the last run of steps,
        and returns one native call that commits them: it is made if, and only if, everything was
        computed. An exception of a signal handler (Ctrl-C)
        during the last run is returned; one before it is raised, and nothing changes.
        """
        made: list[Any] = [None] * len(self.outputs)
        known: dict[int, Any] = {}
        if segments is None:
            first, last, begins = self.first, self.last, self.begins
        else:
            *first, last = segments or (_none,)
            begins = [[*chain(*self.begins)], *([] for _ in first)]
        error, interrupted = self.error, None
        release = self.release
        for k, (segment, begin) in enumerate(zip(first, begins, strict=False)):
            if k == self.release_at and release is not None:
                release()
            self.allocate(begin, given, made, known)
            segment(known)
            if error[0]:
                self.refuse()
        self.allocate(begins[-1], given, made, known)
        outputs = self.collected(made)
        commit = None if prepare is None else prepare(outputs)
        # From here to the end no signal handler can interfere: only the last run of steps
        # overwrites memory that somebody sees, it cannot be stopped halfway, and no function is
        # called between it, or an exception of a handler in or after it, and the commit.
        error[3] = last is _none
        try:
            last(known)
        except BaseException as raised:
            if not error[3] or error[0]:
                raise
            interrupted = raised
        if error[0]:
            self.refuse()
        if commit is not None:
            commit()
        return outputs, interrupted

    def allocate(
        self, some: Sequence[Fresh], given: dict[int, Any], made: list[Any], known: dict[int, Any]
    ) -> None:
        """Memory for some outputs; host steps find it in `known`."""
        for i, slot, fresh in some:
            array = given.get(slot)
            if array is None:
                array = fresh()
            self.point(slot, address_of(array))
            made[i] = array
        if self.has_host_steps:
            shapes = self.program.outputs
            known.update((slot, made[i].reshape(shapes[slot].shape)) for i, slot, _ in some)

    def collected(self, made: Sequence[Any]) -> list[Any]:
        """The outputs, from the memory they were computed in."""
        arrays = self.arrays
        return [
            give(arrays[i] if kind == 0 else made[i] if kind == 1 else i)
            for give, (kind, i) in zip(self.view_makers, self.result_sources, strict=True)
        ]

    def refuse(self) -> None:
        number, index, size, _ = self.error
        self.error[0] = 0
        what = self.program.checks[number - 1]
        raise OutOfRangeError(f"{what} {index} is out of range for an axis of size {size}")

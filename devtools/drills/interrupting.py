"""Interrupts at chosen moments, and what must hold after each of them.

CPython runs the handlers of signals between bytecodes, at a few of them: where a function begins,
behind a call, at the end of a loop's body. `at(k, work)` counts these as `work` runs, and makes the
signal pending just before the k-th; the interpreter itself then delivers it, at the very place and
with the very consequences of a signal that came there by chance. (An exception raised by the trace
function would land elsewhere: behind a lock's `__enter__`, say, where no signal is ever handled.)
"""

from __future__ import annotations

import _thread
import dis
import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from everygrad.amp.policy import policy
from everygrad.autograd import api, modes, randomness
from everygrad.autograd.saved_tensor_hooks import recorder
from everygrad.core.context import fast_limit, profiling, tracing, watcher
from everygrad.ops.random.generators import default_generator

SIGNAL = signal.SIGINT
HANG = 60  # seconds after which a trial is taken for a hang

# behind, or inside, these the interpreter looks for signals
_LOOKS = ("PRECALL", "CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "RETURN", "YIELD", "SEND",
          "BEFORE_WITH", "WITH_EXCEPT", "FOR_ITER", "BINARY", "COMPARE", "STORE_ATTR",
          "STORE_SUBSCR", "DELETE", "LOAD_METHOD", "UNPACK", "CONTAINS")  # fmt: skip
LOOKS = frozenset(
    code
    for name, code in dis.opmap.items()
    if name.startswith(_LOOKS) and name not in ("CALL", "JUMP_BACKWARD_NO_INTERRUPT")
) | ({dis.opmap["CALL"]} if "PRECALL" not in dis.opmap else set())


class Stop(BaseException):
    """What a handler may raise beside KeyboardInterrupt."""


class LateError(TimeoutError):
    """What a handler of an alarm may raise: an ordinary exception."""


KINDS = (KeyboardInterrupt, Stop, LateError)


class _Pending:
    """`pending[signum]` makes a signal pending. Not by a call, behind which it would be handled."""

    __getitem__ = _thread.interrupt_main


_pending = _Pending()


class Handler:
    """Raises what it is told to, and counts."""

    def __init__(self) -> None:
        self.kind: type[BaseException] = KeyboardInterrupt
        self.raised = 0
        self.deaf = True  # outside steps

    def __call__(self, signum: int, frame: Any) -> None:
        if not self.deaf:
            self.raised += 1
            raise self.kind("drill")


@contextmanager
def handled() -> Iterator[Handler]:
    """Signals come to a handler of our own, also where the parent ignores them. What it raises
    inside a finaliser, ours or Python's, cannot come out, and is not shown a thousand times."""
    handler = Handler()
    before, shown = signal.signal(SIGNAL, handler), sys.unraisablehook

    def hook(lost: Any) -> None:
        half_made = getattr(lost.object, "__qualname__", "") == "GPUObjectBase.__del__"  # wgpu's
        if lost.exc_type not in KINDS and not half_made:
            shown(lost)

    sys.unraisablehook = hook
    try:
        yield handler
    finally:
        signal.signal(SIGNAL, before)
        gc.collect()
        sys.unraisablehook = shown


@cache
def _code(code: CodeType) -> bytes:
    return code.co_code


class _Counter:
    """A trace function that makes the signal pending at the k-th place, and stops tracing."""

    def __init__(self, k: int) -> None:
        self.left = k
        self.fired = False

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode" and _code(frame.f_code)[frame.f_lasti] in LOOKS:
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                self.fired = True
                _pending[SIGNAL]
        return self


def _trace(tracer: Any) -> None:
    """Have the thread traced, opcodes too: 3.12 sends them only if some frame asked for them before
    `settrace`, and none may ask in a thread without a tracer."""
    sys.settrace(tracer)
    sys._getframe().f_trace_opcodes = True
    sys.settrace(tracer)
    sys._getframe().f_trace_opcodes = False


def places(work: Callable[[], Any]) -> int:
    """At how many places `work` can be interrupted."""
    counter = _Counter(-1)
    _trace(counter)
    try:
        work()
    finally:
        sys.settrace(None)
    return -1 - counter.left


def at(k: int, handler: Handler, work: Callable[[], Any]) -> tuple[bool, BaseException | None]:
    """Whether the k-th place was reached, and what came out of `work`, interrupted there."""
    counter = _Counter(k)
    raised = None
    handler.deaf = False
    try:
        _trace(counter)
        try:
            work()
        finally:
            sys.settrace(None)
    except BaseException as error:
        raised = error  # with its traceback: what only lives on in there must not matter
    handler.deaf = True
    return counter.fired, raised


def after(
    seconds: float, handler: Handler, work: Callable[[], Any]
) -> tuple[bool, BaseException | None]:
    """The same, by a real signal after so many seconds; `work` may be over by then."""
    raised, before = None, handler.raised
    signal.signal(signal.SIGALRM, handler)
    handler.deaf = False
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            work()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as error:
        raised = error
    handler.deaf = True
    return handler.raised > before, raised


class Storm:
    """Another process that sends signals all the time. The handler raises only within a step, but
    there again and again, also while the exception before is still on its way out."""

    _SCRIPT = """
import os, random, sys, time
pid, number, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
while os.getppid() == pid:
    os.kill(pid, number)
    time.sleep(random.random() * pause)
"""

    def __init__(self, pause: float) -> None:
        given = [str(os.getpid()), str(int(SIGNAL)), str(pause)]
        self.process = subprocess.Popen([sys.executable, "-c", self._SCRIPT, *given])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def __call__(self, handler: Handler, work: Callable[[], Any]) -> Any:
        raised, before = None, handler.raised
        try:
            handler.deaf = False
            work()
        except BaseException as error:
            handler.deaf = True
            raised = error
        handler.deaf = True
        return handler.raised > before, raised


# --- what must hold -------------------------------------------------------------------------------

State = dict[str, Any]  # arrays by name, None for what is not there


class Step:
    """Something that is interrupted. Subclasses define the first three.

    whole  True: after an interrupt its state is that before or that after, as a whole; False: that
           is so of each tensor
    """

    whole = True

    def run(self) -> Any:
        """Do it once; the results, if any, in a list or dict of tensors."""
        raise NotImplementedError

    def state(self) -> State:
        """Everything that it changes, as NumPy arrays."""
        return {}

    def load(self, state: State) -> None:
        """Make this the state."""


def modes_now() -> dict[str, Any]:
    """What is in force here."""
    return {
        "recording": modes.recording(),
        "anomaly": modes.anomaly_enabled(),
        "inference": modes.in_inference_mode(),
        "depth": modes.transform_depth(),
        "autocast": policy(),
        "tracer": tracing.get(),
        "profiler": profiling.get(),
        "find_nan": watcher.get(),
        "checkpoint": recorder.get(),
        "vmaps": randomness.vmaps_around.get(),
        "leaf_ready": api._leaf_ready.get(),
        "fast_limit": fast_limit(),
        "tracing": sys.gettrace(),
        "collector": gc.isenabled(),
        "trace function": sys.gettrace(),
    }


def same(a: Any, b: Any) -> bool:
    """Whether two states, or results, are equal bit for bit."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if a is None or b is None:
        return a is b
    return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=True))


def values(out: Any) -> State:
    """Results as arrays."""
    if out is None:
        return {}
    if isinstance(out, dict):
        return {str(k): v for key, x in out.items() for k, v in _named(key, x)}
    if isinstance(out, list | tuple):
        return {k: v for i, x in enumerate(out) for k, v in _named(i, x)}
    return {"": array(out)}


def _named(key: Any, x: Any) -> list[tuple[str, Any]]:
    return [(f"{key}/{k}", v) for k, v in values(x).items()]


def array(t: Any) -> Any:
    """A copy of a tensor's value."""
    return None if t is None else np.array(t.detach().to("cpu").numpy())


class Trial(NamedTuple):
    """One interrupt: whether it came in time, whether it was swallowed, what was wrong."""

    came: bool
    lost: bool
    faults: list[str]


class Drill:
    """A step, and its twin that is never interrupted and says what should come out."""

    def __init__(self, make: Callable[[], Step], handler: Handler) -> None:
        self.make = make
        self.handler = handler
        self.step, self.twin = make(), make()
        for s in (self.step, self.twin):
            for _ in range(3):
                s.run()
        self.twin.load(self.step.state())
        self.usual = modes_now()
        self.fast_limit = fast_limit()
        self.threads = threading.active_count()
        self.seconds = min(timeit.repeat(self.step.run, number=1, repeat=5))
        self.expected(self.step.state())  # compiled
        self.places = places(self.step.run)

    def expected(self, state: State) -> tuple[State, State]:
        """The results, and the state after, of an undisturbed run from a state."""
        drawn = default_generator.state
        held = drawn._data
        try:
            self.twin.load(state)
            return values(self.twin.run()), self.twin.state()
        finally:
            drawn.rebind(held, None)  # the very array: the next call finds what the last one left

    def trial(
        self, interrupt: Callable[[Callable[[], Any]], tuple[bool, BaseException | None]]
    ) -> Trial:
        """One interrupt, and one undisturbed call behind it."""
        faulthandler.dump_traceback_later(HANG, exit=True)
        try:
            return self._trial(interrupt)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _trial(self, interrupt: Any) -> Trial:
        before = self.step.state()
        raised_before = self.handler.raised
        came, error = interrupt(self.step.run)
        try:
            return self._looked(came, error, before, raised_before)
        finally:
            # The frames in a traceback hold the exception: such a cycle is the collector's, and
            # CPython crashes where it finds a memoryview in use in it, as wgpu's frames have.
            while error is not None:
                error.__traceback__ = None
                error = error.__cause__ or error.__context__

    def _looked(
        self, came: bool, error: BaseException | None, before: State, raised_before: int
    ) -> Trial:
        faults = []
        if error is not None and not _ours(error):
            faults.append(f"raised {type(error).__name__}: {error}")
        came = came and self.handler.raised > raised_before
        now = modes_now()
        faults += [f"{k} is {v!r}" for k, v in now.items() if v != self.usual[k]]
        state = self.step.state()
        after = self.expected(before)[1]
        faults += self.torn(before, state, after)
        try:
            out = values(self.step.run())
        except BaseException as next_error:
            name = type(next_error).__name__
            faults.append(f"the next call raised {name}: {next_error}")
            return Trial(came, False, faults)
        right, end = self.expected(state)
        if not same(out, right):
            faults.append("the next call gave a wrong result")
        if not same(self.step.state(), end):
            wrong = [k for k, v in self.step.state().items() if not same(v, end.get(k))]
            faults.append(f"the next call left a wrong state: {', '.join(wrong)}")
        if fast_limit() != self.fast_limit:
            faults.append("the fast path stays closed")
        if threading.active_count() > self.threads + 2:
            faults.append(f"{threading.active_count()} threads, {self.threads} before")
        return Trial(came, came and error is None, faults)

    def torn(self, before: State, now: State, after: State) -> list[str]:
        if self.step.whole:
            if same(now, before) or same(now, after):
                return []
            old = [k for k in now if not same(now[k], after.get(k))]
            new = [k for k in now if not same(now[k], before.get(k))]
            return [f"torn: not as after: {', '.join(old)}; not as before: {', '.join(new)}"]
        return [
            f"torn: {k}"
            for k, v in now.items()
            if not same(v, before.get(k)) and not same(v, after.get(k))
        ]

    def renew(self) -> None:
        """After a fault: a step that has not seen it."""
        self.step, self.twin = self.make(), self.make()
        for s in (self.step, self.twin):
            for _ in range(3):
                s.run()


def _ours(error: BaseException | None) -> bool:
    """Whether an exception is a handler's, or was raised because of one."""
    while error is not None:
        if type(error) in KINDS:
            return True
        error = error.__cause__ or error.__context__
    return False


def chosen(count: int, of: int, rng: random.Random) -> Sequence[int]:
    """So many places among 1..of: all of them where they are few."""
    if count >= of:
        return range(1, of + 1)
    return sorted(rng.sample(range(1, of + 1), count))

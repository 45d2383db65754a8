"""The user's functions that run while something is traced, frame by frame.

`sys.settrace` tells of every call of this thread. Frames of the user's code get a `FrameReader`;
those of everygrad, NumPy and the standard library are passed over, and so are imports.
"""

from __future__ import annotations

import functools
import gc
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

from everygrad._jit.bytecode import UNKNOWN, FrameReader, Plan
from everygrad._jit.inspection import has_attributes, is_code_of, is_installed, is_ours, slots_of
from everygrad._jit.instructions import plan_of
from everygrad.backends.base import open_now
from everygrad.core.scopes import Scope

if TYPE_CHECKING:
    from everygrad._jit.reads import Reads


class Following(Scope):
    """A block in which a follower follows; the thread's trace function is put back whatever a
    signal handler raises."""

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self.follower = follower

    def enter(self) -> None:
        self.follower.begin()

    def leaving(self) -> tuple[Callable[[], Any], ...]:
        return (functools.partial(sys.settrace, sys.gettrace()),)


class Follower:
    """Follows the user's functions; a subclass says what is read (see `reads`)."""

    def __init__(self) -> None:
        self.outside: dict[int, tuple[Any, str]] = {}  # objects by id, and how they are reached
        self.inside: dict[int, Any] = {}  # objects that the function made
        self.made_inside: set[CodeType] = set()  # functions that the function made
        self.failed: BaseException | None = None
        self._plans: dict[int, tuple[CodeType, Plan | None]] = {}
        self._ours: set[int] = set()  # ids of code that is not followed
        self._before: Any = None
        self._aside = 0  # imports, finalizers and handlers that run
        self._handlers = _handlers()

    def mark(self, held: Any, text: str) -> None:
        """An object is from outside."""
        raise NotImplementedError

    def reached(self, held: Any, code: CodeType) -> None:
        """A function runs that nobody named, whose first argument is `held`."""
        raise NotImplementedError

    def some(self, found: Sequence[Any]) -> Any:
        """One of these values."""
        raise NotImplementedError

    def following(self) -> Following:
        """User functions called inside, by this thread, are followed."""
        return Following(self)

    def begin(self) -> None:
        self._before = sys.gettrace()
        tracer = self.called if self._before is not None else self.quickly()
        # 3.12 sends such events only if one was asked for before `settrace`; but a frame that asks
        # for them in a thread without a tracer crashes while another thread traces. A name for the
        # frame would make a cycle of it, and of all that its callers know
        sys.settrace(tracer)
        sys._getframe().f_trace_opcodes = True
        sys.settrace(tracer)
        sys._getframe().f_trace_opcodes = False
        if sys.version_info >= (3, 12):
            # code that was followed before, and ran under a profiler since, would stay silent
            sys.monitoring.restart_events()

    def end(self) -> None:
        """Raise what went wrong in our own bookkeeping."""
        self._plans.clear()
        if self.failed is not None:
            raise self.failed

    def guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Do our own bookkeeping: what goes wrong in it must not look like the user's error."""
        if self.failed is None:
            try:
                work(*args)
            except Exception as error:
                self.failed = error

    def quickly(self) -> Callable[[FrameType, str, Any], Any]:
        """`called`, for the many frames of our own in as little time as there is."""
        ours, called = self._ours, self.called

        def quick(frame: FrameType, event: str, arg: Any) -> Any:
            return None if id(frame.f_code) in ours else called(frame, event, arg)

        return quick

    def called(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A frame begins, or a generator goes on."""
        others = None if self._before is None else self._before(frame, event, arg)
        code = frame.f_code
        known = self._plans.get(id(code))  # by id: the hash of a code object takes a microsecond
        if known is None:
            passed_over = is_ours(code.co_filename) or _is_generated(frame)
            known = (code, None if passed_over else plan_of(code))
            self._plans[id(code)] = known
            if known[1] is None and not self.runs_aside(code):
                self._ours.add(id(code))
        plan = known[1]
        if event != "call" or self._aside:
            return others
        if self.runs_aside(code) or (plan is not None and _cleans_up(frame)):
            if code.co_name == "<module>" and self.reader_of(frame.f_back) is not None:
                return self.read(frame, plan, others)  # eval() or exec()
            self._aside += 1
            return functools.partial(self.aside, others)
        return self.read(frame, plan, others)

    def read(self, frame: FrameType, plan: Plan | None, others: Any) -> Any:
        if plan is None:
            return others
        reader = self.reader_of(frame)
        if reader is None:
            reader = FrameReader(cast("Reads", self), plan, others)
            self.guarded(self.entered, frame)
        frame.f_trace_lines = self._before is not None
        frame.f_trace = reader  # 3.13 sends opcode events to a frame that has a tracer by then
        frame.f_trace_opcodes = True
        return reader

    def reader_of(self, frame: FrameType | None) -> FrameReader | None:
        """Who follows a frame, which alone holds it: nothing of the user's lives longer for it."""
        found = None if frame is None else frame.f_trace
        return found if isinstance(found, FrameReader) and found.reads is self else None

    def runs_aside(self, code: CodeType) -> bool:
        """Whether code is not the function's own doing."""
        return _runs_aside(code) or id(code) in self._handlers

    def aside(self, others: Any, frame: FrameType, event: str, arg: Any) -> Any:
        """An import, a finalizer or a handler, with all it calls: nothing is followed until
        it returns."""
        if event == "return":
            self._aside -= 1
        if others is not None:
            others(frame, event, arg)
        return functools.partial(self.aside, others)

    def entered(self, frame: FrameType) -> None:
        """Objects that reach a user's function through code that is not followed, such as the
        `self` of a module's forward, come from outside unless they were made inside."""
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount]
        reader = self.reader_of(frame.f_back)
        if names and (reader is None or reader.awaited is not code):
            self.reached(frame.f_locals.get(names[0]), code)
        if code.co_name == "__init__" and names:
            made = frame.f_locals.get(names[0])
            if id(made) not in self.outside:
                self.inside[id(made)] = made
        elif reader is None:
            self.mark_partials(frame.f_back, code)
            for name in names:
                held = frame.f_locals.get(name)
                if has_attributes(held) and id(held) not in self.inside:
                    self.mark(held, name)

    def mark_partials(self, caller: FrameType | None, code: CodeType) -> None:
        """What a partial gives a function is from outside, though code that is not followed calls
        it, such as a hook."""
        held = list(caller.f_locals.values()) if caller is not None else []
        held += [x for one in held if has_attributes(one) for x in vars(one).values()]
        held += [getattr(one, name, None) for one in held for name in slots_of(type(one))]
        for one in held:
            if isinstance(one, functools.partial) and is_code_of(one.func, code):
                self.mark(one, "a partial")

    def returned(self, frame: FrameType, value: Any) -> None:
        """The result of a followed function is what its caller goes on with, or may be."""
        reader = self.reader_of(frame.f_back)
        if reader is None or not reader.stack:
            return
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:  # the object, not None
            value = frame.f_locals.get(code.co_varnames[0])
        if reader.awaited is code:
            reader.stack[-1] = value
            reader.awaited = None
        elif reader.awaited is UNKNOWN:  # an operator's, a descriptor's, one that a builtin calls
            reader.stack[-1] = self.some([reader.stack[-1], value])


def _handlers() -> dict[int, CodeType]:
    """The code of what runs between any two instructions, by id: signal handlers, callbacks of the
    garbage collector, finalizers; and what opens a device."""
    found: dict[int, CodeType] = {}
    signals = [signal.getsignal(number) for number in signal.valid_signals()]
    for handler in (*signals, *gc.callbacks, weakref.finalize.__call__, open_now):
        if callable(handler) and not isinstance(handler, signal.Handlers):
            for fn in (handler, vars(type(handler)).get("__call__")):
                code = getattr(getattr(fn, "__func__", fn), "__code__", None)
                if code is not None:
                    found[id(code)] = code
    return found


def _is_generated(frame: FrameType) -> bool:
    """Whether a frame is a method that the library wrote for a named tuple, which reads nothing
    but its arguments, or for a dataclass of ours."""
    if frame.f_code.co_filename != "<string>":
        return False
    return str(frame.f_globals.get("__name__")).startswith(("namedtuple_", "everygrad."))


def _cleans_up(frame: FrameType) -> bool:
    """Whether a frame is a library's callback of a weak reference whose object is gone, as
    PyTorch's tables by object have them. Such a callback may have further arguments, with
    defaults."""
    code = frame.f_code
    if not code.co_argcount or not is_installed(code.co_filename):
        return False
    held = frame.f_locals.get(code.co_varnames[0])
    return isinstance(held, weakref.ref) and held() is None


def _runs_aside(code: CodeType) -> bool:
    """Whether code is an import, or looks for a module through the process's hooks, or is a
    finalizer: none of these is the function's own doing."""
    if code.co_name in ("_find_and_load", "_find_spec"):
        return code.co_filename == "<frozen importlib._bootstrap>"
    return code.co_name in ("<module>", "__del__")

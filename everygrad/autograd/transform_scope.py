"""The transformations in force (vmap, jvp, grad inside them), and what was changed inside each.

A payload that a transformation made has a meaning inside it only. So a transformation notes every
tensor that is given another value inside, and at its end those that live on must hold values of
the world around it. Where they cannot, all of them get back what they had, and the call is refused.
A tensor that was merely kept is found out when it is used: its payload knows where it was made.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType
from typing import Any, NamedTuple

from everygrad.autograd.modes import _Mode, deeper, transform_depth
from everygrad.errors import TraceError

_PACKAGE = __name__.split(".")[0] + "."
INTERPRETED = 4  # callers between `interpret` and an op's own function: for `user_place`
VALUE, GRAD, STREAM = "", ".grad", "stream"  # what of a tensor changed; else a module's attribute


Place = tuple[CodeType, int]  # in the user's program: a function, and an instruction of it


def user_place(skipped: int = 1) -> Place:
    """Where the innermost caller outside this package is; `skipped` callers are surely inside."""
    frame = sys._getframe(skipped)
    while frame.f_globals.get("__name__", "").startswith(_PACKAGE) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def line_of(place: Place) -> str:
    """A place as text: the file and the line."""
    code, at = place
    found = (line for start, end, line in code.co_lines() if start <= at < end)
    return f"{code.co_filename}:{next(found, None) or code.co_firstlineno}"


def outlasts_cycles(found: Callable[[], Any]) -> bool:
    """Whether something is found even when cycles that nobody can reach are gone. The young ones go
    first, and are all there is in most cases: the whole heap, which may take seconds, is walked
    only for what will be refused, or nearly so."""
    for generation in range(3):
        if not found():
            return False
        gc.collect(generation)
    return bool(found())


class Change(NamedTuple):
    """A tensor's value or gradient, or a module's attribute, as it was before."""

    owner: weakref.ref[Any]
    what: str
    before: Any
    place: Place
    named: weakref.ref[Any]  # who the user knows it by: not a tracer's stand-in


class Transform:
    """One call of a transformation.

    name    as the user knows it
    level   how deep it is; payloads have the same
    over    its payloads have no meaning any more
    size    of a vmap: a change inside counts for each of so many examples. None: the function
            stands for one call of it (jvp, grad, the directions of a jacobian)
    """

    def __init__(self, name: str, size: int | None = None) -> None:
        self.name = name
        self.size = size
        self.level = transform_depth() + 1
        self.over = False
        self.around = inside()
        self.inner: list[Transform] = []  # grads inside: their graphs live as long as this
        self.changes: dict[tuple[int, str], Change] = {}
        self.made: dict[int, weakref.ref[Any]] = {}

    def end(self) -> None:
        """From now on a payload of this transformation is one that escaped."""
        self.over = True
        for inner in self.inner:
            inner.end()
        self.inner = []

    def is_in_force(self) -> bool:
        """Whether this context is inside the transformation, for the first time or again."""
        found = _inside.get()
        while found is not None and found is not self:
            found = found.around
        return found is self

    # --- changes ---------------------------------------------------------------------------------

    def changing(self, owner: Any, what: str, before: Any, named: Any = None) -> None:
        """`what` of `owner` is about to change; `named`: whom the owner stands in for."""
        key = (id(owner), what)
        known = self.changes.get(key)
        if known is None or known.owner() is not owner:
            known_as = weakref.ref(owner if named is None else named)
            change = Change(weakref.ref(owner), what, before, user_place(), known_as)
            self.changes[key] = change

    def making(self, t: Any) -> None:
        """A Parameter is being made: what it is given inside is nobody's state outside."""
        self.made[id(t)] = weakref.ref(t)

    def has_made(self, t: Any) -> bool:
        return id(t) in self.made and self.made[id(t)]() is t

    def note(self, key: tuple[int, str], change: Change) -> None:
        known = self.changes.get(key)
        if known is None or known.owner() is None:
            self.changes[key] = change

    def settle(self) -> None:
        """What was changed and lives on gets values of the world outside, or all is refused.

        Called at the end, when nothing of the function's own is held any more.
        """
        for key in self.faults() if outlasts_cycles(self.faults) else ():
            change = self.changes[key]
            owner = change.owner()
            message = "" if owner is None else self.refusal(owner, change)
            del owner
            if message:
                raise TraceError(message)
        for change in self.changes.values():
            owner = change.owner()
            if owner is not None:
                self.release(owner, change.what)
        self.hand_over()

    def hand_over(self) -> None:
        """What was changed inside was changed inside the transformation around, too."""
        if self.around is not None:
            for key, change in self.changes.items():
                if change.owner() is not None:
                    self.around.note(key, change)
            self.around.made |= {k: made for k, made in self.made.items() if made() is not None}
        self.changes, self.made = {}, {}

    def faults(self) -> list[tuple[int, str]]:
        """The changes that cannot stay."""
        return [key for key, change in self.changes.items() if self.fault(change)]

    def fault(self, change: Change) -> str:
        """Why a change cannot stay; nothing if it can."""
        owner = change.owner()
        t = None if owner is None else _tensor(owner, change.what)
        if t is None:
            return ""
        payload, node = t._data, t._node
        mine = getattr(payload, "transform", None) is self
        left = payload.left() if mine else t
        if mine and left is None and self.size is not None:
            return "a value that differs by example"
        if left is None or (node is not None and not node.is_leaf and node.level >= self.level):
            return f"a value that has a derivative inside {self.name} only"
        if self.size not in (None, 1) and self.counts(change, t):
            return f"another value once, and not once for each of the {self.size} examples"
        return ""

    def counts(self, change: Change, now: Any) -> bool:
        """Whether a change would be another one if the function ran again."""
        if change.what == STREAM:  # of random numbers: vmap(randomness=...) says what is meant
            return False
        before = change.before
        if change.what == VALUE:
            return before[0] is not now._data and not self.has_made(now)
        if before is None:  # a buffer that was empty may be filled; a gradient sums up
            return change.what == GRAD
        return before._data is not now._data

    def refusal(self, owner: Any, change: Change) -> str:
        t = _tensor(owner, change.what)
        fault = self.fault(change)
        shown = _name(change.named(), change.what)
        by_module = ", or call eval() on the module first" if shown.module else ""
        cure = "give it detach() of that value" if "derivative" in fault else "return the new value"
        return (
            f"{self.name}: {shown.text}, of shape {t.shape}, is outside the function and is given "
            f"{fault}, at {line_of(change.place)}; {cure}, or change it outside{by_module}"
        )

    def release(self, owner: Any, what: str) -> None:
        """Give a tensor that lives on a value of the world outside."""
        t = _tensor(owner, what)
        if t is None:
            return
        if getattr(t._data, "transform", None) is self:
            left = t._data.left()
            t._data, t._node = left._data, left._node
        elif t._node is not None and t._node.is_leaf and t._node.level >= self.level:
            t._node.level = self.level - 1

    def roll_back(self) -> None:
        """Everything as it was before."""
        changes, self.changes, self.made = self.changes, {}, {}
        with _nobody_notes():
            for change in changes.values():
                owner = change.owner()
                if owner is None:
                    continue
                if change.what in (VALUE, STREAM):
                    owner.rebind(*change.before)
                elif change.what == GRAD:
                    owner.grad = change.before
                else:
                    setattr(owner, change.what, change.before)


_inside: ContextVar[Transform | None] = ContextVar("everygrad_transform", default=None)
inside = _inside.get  # the innermost transformation, or None


class within(deeper):  # noqa: N801  # a context manager, read as a phrase
    """Ops belong to a transformation inside. Who is done calls `settle`, who fails `roll_back`."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def settings(self) -> tuple[tuple[ContextVar[Any], Any], ...]:
        return ((_inside, self.transform), *super().settings())


class _nobody_notes(_Mode):  # noqa: N801  # a context manager, read as a phrase
    _settings = ((_inside, None),)


@contextmanager
def rolled_back(transform: Transform | None) -> Iterator[None]:
    """Whatever fails inside leaves no change of the transformation behind."""
    try:
        yield
    except BaseException:
        if transform is not None:
            transform.roll_back()
        raise


def check_in_force(payload: Any, what: str = "") -> None:
    """Refuse a payload whose transformation is over: it says who made it, and where."""
    while (transform := getattr(payload, "transform", None)) is not None:
        if transform.over and not transform.is_in_force():
            raise TraceError(f"{what}{escaped(payload)}")
        payload = payload.inner._data


def escaped(payload: Any) -> str:
    """Who made a payload that outlived its transformation, and where."""
    return (
        f"a tensor of shape {payload.shape} made at {line_of(payload.place)} inside "
        f"{payload.transform.name} was kept beyond its call and has no value there; return it from "
        f"the function instead"
    )


def outlived(payload: Any) -> str | None:
    """What `check_in_force` would say."""
    try:
        check_in_force(payload)
    except TraceError as error:
        return str(error)
    return None


def _tensor(owner: Any, what: str) -> Any:
    """The tensor a change is about, as it is now."""
    if what in (VALUE, STREAM):
        return owner
    if what == GRAD:
        return owner.grad
    found = vars(owner).get(what)
    return found if hasattr(found, "_data") else None


class _Shown(NamedTuple):
    text: str
    module: bool


def _name(owner: Any, what: str) -> _Shown:
    """A tensor as its user may know it: the attribute that holds it, if there is one."""
    if what not in (VALUE, STREAM, GRAD):
        return _Shown(f"{type(owner).__name__}.{what}", hasattr(owner, "eval"))
    suffix = GRAD if what == GRAD else ""
    holders = gc.get_referrers(owner)
    dicts = [holder for holder in holders if type(holder) is dict]
    for thing in [*holders, *(gc.get_referrers(*dicts) if dicts else ())]:  # two walks, not more
        held = getattr(thing, "__dict__", None)
        if isinstance(held, dict) and not isinstance(thing, type(sys)):
            names = [k for k, v in held.items() if v is owner and isinstance(k, str)]
            if names:
                text = f"{type(thing).__name__}.{names[0]}{suffix}"
                return _Shown(text, hasattr(thing, "eval"))
    return _Shown(f"a tensor{suffix and ' with its ' + suffix}", False)

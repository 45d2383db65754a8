"""What is in force in this thread and context: recording, anomaly mode, transformations.

Held in context variables: reading one costs 20 ns, nesting and exceptions restore them by
construction, and a worker thread takes them over with `contextvars.copy_context`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from typing import Any, ParamSpec, Self, TypeVar, overload

from everygrad.autograd.saved_tensor_hooks import recorder
from everygrad.core.decorators import decorated
from everygrad.core.scopes import Scope, Settings
from everygrad.errors import ArgumentError

P = ParamSpec("P")
R = TypeVar("R")

# CAREFUL: record through the slow path, which notes transformation levels and the user's line
OFF, RECORD, CAREFUL = 0, 1, 2

_recording: ContextVar[int] = ContextVar("everygrad_recording", default=RECORD)
_anomaly: ContextVar[bool] = ContextVar("everygrad_anomaly", default=False)
_inference: ContextVar[bool] = ContextVar("everygrad_inference", default=False)
_depth: ContextVar[int] = ContextVar("everygrad_depth", default=0)

recording = _recording.get
set_recording = _recording.set  # for the engine: `no_grad` without an object
anomaly_enabled = _anomaly.get
in_inference_mode = _inference.get
transform_depth = _depth.get


def _on() -> int:
    careful = anomaly_enabled() or transform_depth() or recorder.get() is not None
    return CAREFUL if careful else RECORD


def is_grad_enabled() -> bool:
    """Whether ops on tensors that require grad are being recorded."""
    return recording() != OFF


class _Mode(Scope):
    """A context manager that sets context variables, and can decorate a function, a generator or a
    coroutine."""

    __slots__ = ()
    _settings: Settings = ()

    def settings(self) -> Settings:
        return self._settings

    def __call__(self, fn: Callable[P, R]) -> Callable[P, R]:
        return decorated(self._again, fn)

    def _again(self) -> _Mode:
        """The same mode for one call: calls may nest, and run on several threads."""
        mode = copy(self)
        Scope.__init__(mode)
        return mode


class _GradMode(_Mode):
    """A mode without arguments: `@no_grad` decorates as `@no_grad()` does."""

    __slots__ = ()

    @overload
    def __new__(cls) -> Self: ...
    @overload
    def __new__(cls, fn: Callable[P, R]) -> Callable[P, R]: ...  # type: ignore[misc]  # PyTorch's

    def __new__(cls, fn: Any = None) -> Any:
        """The mode, or the function in it, which is no mode: `__init__` does not see it."""
        if fn is None:
            return object.__new__(cls)
        if not callable(fn):
            raise ArgumentError(
                f"{cls.__name__}: takes nothing, or a function to decorate, got {fn!r}; "
                f"set_grad_enabled takes a bool"
            )
        return cls()(fn)


class no_grad(_GradMode):  # noqa: N801  # PyTorch's name
    """Nothing inside is recorded; results do not require grad.

    >>> import everygrad as eg
    >>> x = eg.tensor([1.0], requires_grad=True)
    >>> with eg.no_grad():
    ...     (x * 2).requires_grad
    False
    """

    _settings = ((_recording, OFF),)


class enable_grad(_GradMode):  # noqa: N801  # PyTorch's name
    """Recording is on inside, also within `no_grad`."""

    def settings(self) -> Settings:
        return ((_recording, OFF if in_inference_mode() else _on()),)


class inference_mode(_GradMode):  # noqa: N801  # PyTorch's name
    """`no_grad` that `enable_grad` does not lift and in which no tensor can ask for gradients."""

    _settings = ((_recording, OFF), (_inference, True))


class detect_anomaly(_Mode):  # noqa: N801  # PyTorch's name
    """Every recorded op remembers the line that made it; a NaN in a gradient raises AnomalyError
    naming the op and that line."""

    def settings(self) -> Settings:
        return ((_anomaly, True), (_recording, CAREFUL if recording() else OFF))


class set_grad_enabled(_Mode):  # noqa: N801  # PyTorch's name
    """`enable_grad` or `no_grad`, chosen by a value."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self.enabled = enabled

    def settings(self) -> Settings:
        on = self.enabled and not in_inference_mode()
        return ((_recording, _on() if on else OFF),)


class deeper(_Mode):  # noqa: N801  # a context manager, read as a phrase
    """One transformation further in."""

    def settings(self) -> Settings:
        return ((_depth, transform_depth() + 1), (_recording, CAREFUL if recording() else OFF))

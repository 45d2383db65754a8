"""What parts know of parts above them: by these methods and attributes, and no others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from everygrad.errors import TraceError


class Op(Protocol):
    """The record of an op, as dispatch, the compiler and backends see it (`ops.record.spec`)."""

    name: str
    family: str
    precision: str


class Tracer(Protocol):
    """Sees every op of its context while a function is traced (`_jit.trace`)."""

    refused: TraceError | None  # what was raised for it: a function that catches it is not compiled

    def backend(self, real: Any) -> Any:
        """What stands for a backend: it notes what the real one would do."""

    def lift(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Tensors as ops of this trace take them: those from outside become inputs."""

    def stand_in(self, t: Any) -> Any:
        """Who holds the value and node of `t` in this trace."""

    def rebinding(self, t: Any, payload: Any) -> Any:
        """Who is to be given this payload in place of `t`."""

    def grad(self, t: Any) -> Any:
        """The gradient of `t`."""

    def set_grad(self, t: Any, g: Any) -> None:
        """`t` is given a gradient."""

    def met(self, module: Any) -> None:
        """A module is about to run: what it does depends on its attributes and hooks."""

    def depends(self, *things: Any) -> None:
        """The function takes for granted what the `changes` of these things count."""

    def depends_on_item(self, held: Any, key: Any, item: Any, text: str) -> None:
        """The function takes for granted that held[key] is this very item, and its `changes`."""

    def again(self) -> AbstractContextManager[None]:
        """Ops inside are computed again even if they were before."""


class Profiler(Protocol):
    """Times what the backends of its context do (`tools.profiler`)."""

    def run(self, backend: Any, op: Any, payloads: list[Any], params: dict[str, Any]) -> Any:
        """The result of an op, timed."""

    def replay(self, *given: Any) -> Any:
        """A compiled function run on its own memory, timed."""

    def replay_on(self, *given: Any) -> Any:
        """A compiled function run on payloads, timed."""


class Compiled(Protocol):
    """A graph that a backend compiled, to be run again and again.

    A backend may offer more: `run_apart` and `steps` for a profiler, `program` for people to read.
    """

    arrays: list[Any]  # the inputs that were put
    lock: Any  # held while it runs

    def put(self, i: int, array: Any) -> None:
        """Make an array input i of the calls to come."""

    def run(
        self, given: dict[int, Any], prepare: Any = None, around: Any = None
    ) -> tuple[list[Any], BaseException | None]:
        """The outputs, and what a signal handler raised meanwhile."""

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs."""

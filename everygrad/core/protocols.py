"""What parts know of parts above them: by these methods and attributes, and no others."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from everygrad.errors import TraceError

if TYPE_CHECKING:
    from everygrad.backends.base import Backend
    from everygrad.compiler.facts import OpFacts
    from everygrad.compiler.memory import Memory
    from everygrad.core.op import Op
    from everygrad.core.tensor import Tensor


class Change(Protocol):
    """A new value for one tensor of a parameter: that of an elementwise op on the tensors at these
    places, of which the first is the one that changes."""

    @property
    def op(self) -> OpFacts: ...
    @property
    def places(self) -> tuple[int, ...]: ...
    @property
    def params(self) -> dict[str, Any]: ...


class UpdateRule(Hashable, Protocol):
    """How an optimiser changes the tensors of one parameter (`optim.optimizer`): change by change.
    Rules that do the same are equal."""

    @property
    def changes(self) -> Sequence[Change]: ...


class Tracer(Protocol):
    """Sees every op of its context while a function is traced (`_jit.trace`)."""

    refused: TraceError | None  # what was raised for it: a function that catches it is not compiled

    def backend(self, real: Backend) -> Backend:
        """What stands for a backend: it notes what the real one would do."""

    def lift(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Tensors as ops of this trace take them: those from outside become inputs."""

    def owns(self, tensors: Sequence[Any]) -> bool:
        """Whether lifted tensors are of this trace alone, with no transformation around them."""

    def call(self, op: Any, inputs: Sequence[Any], params: dict[str, Any]) -> Any:
        """The payload of an op on such tensors."""

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

    def depends_on_variable(self, var: ContextVar[Any]) -> None:
        """The function takes for granted what a variable of the context, which has a default, is,
        unless it set it."""

    def remakes(self, t: Any) -> None:
        """`t` is given a value that can be made again from others: a call that raises may leave
        it half written."""

    def after(self, owner: Any, act: Callable[[], Any]) -> None:
        """Each call of the compiled function ends with `act()`, in Python, for `owner`."""

    def acts_after(self, owner: Any) -> bool:
        """Whether something is to be done for `owner` at the end of each call."""

    def again(self) -> AbstractContextManager[None]:
        """Ops inside are computed again even if they were before."""


class Profiler(Protocol):
    """Times what the backends of its context do (`tools.profiler`)."""

    def run(self, backend: Backend, op: Op, payloads: list[Any], params: dict[str, Any]) -> Any:
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
    running: bool

    def put(self, i: int, array: Any) -> None:
        """Make an array input i of the calls to come."""

    def run(
        self, given: dict[int, Any], prepare: Any = None, around: Any = None
    ) -> tuple[list[Any], BaseException | None]:
        """The outputs, and what a signal handler raised meanwhile."""

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these inputs."""

    def donated(self) -> dict[int, tuple[int, int]]:
        """By output: the slot to give it memory in, and the input whose memory it may take."""

    def own_memory(self) -> dict[int, int]:
        """By output that shares its memory with no other: the slot to give it memory in."""

    def may_write(self, slot: int, array: Any) -> bool:
        """Whether the output of a slot may be written into this array."""

    def held_bytes(self, most: int) -> int:
        """About the bytes that it holds between calls, of an arena at most so many."""

    def memory(self) -> Memory:
        """How its memory is planned."""


class Layout(Protocol):
    """How a tensor's part on this rank makes a payload of the whole. Equal ones make equal ones,
    so that a compiled function may be given other parts in the same layout."""

    def around(self, part: Tensor) -> Any:
        """The payload whose part on this rank is this tensor."""

    def of_gradient(self) -> Layout:
        """That of the gradient which a result in this layout is expected to get."""

    def fitted(self, g: Tensor) -> Tensor:
        """The part on this rank of a gradient, brought to this layout; raises where that would
        need communication."""

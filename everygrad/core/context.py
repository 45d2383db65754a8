"""What is in force in this context: who traces, profiles or watches, and whether ops may be quick.

A context is a thread's or a task's: what one of them traces or profiles neither slows nor changes
the ops of another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from everygrad.core.protocols import Profiler, Tracer

if TYPE_CHECKING:
    from everygrad.core.op import Op

# Whether something (a tracer, a profiler, `autocast`, `find_nan`) must see every op. Dispatch asks
# this first, and looks at the variables below only if it is so.
INTERCEPTED: ContextVar[bool] = ContextVar("everygrad_intercepted", default=False)
intercepted = INTERCEPTED.get

# Up to this many elements dispatch takes its fast path; -1 where ops are intercepted, so that the
# fast path asks one question, not two.
FAST_LIMIT: ContextVar[int] = ContextVar(
    "everygrad_fast_limit", default=int(os.environ.get("EVERYGRAD_NATIVE_THRESHOLD", "16384"))
)
fast_limit = FAST_LIMIT.get

# What a block that intercepts sets, always both.
INTERCEPT: tuple[tuple[ContextVar[Any], Any], ...] = ((INTERCEPTED, True), (FAST_LIMIT, -1))

tracing: ContextVar[Tracer | None] = ContextVar("everygrad_tracing", default=None)
profiling: ContextVar[Profiler | None] = ContextVar("everygrad_profiling", default=None)
# sees (op, inputs, result) after each op: `find_nan`
watcher: ContextVar[Callable[[Op, Any, Any], None] | None] = ContextVar(
    "everygrad_watcher", default=None
)


class _Records:
    """The records of ops by name, put here by `ops.record.spec`: a backend asks a record for what
    that alone knows, such as the op's result, its constants, and what it says when it fails."""

    by_name: Mapping[str, Op]

    def failure(self, name: str) -> str:
        """The text of the error that an op raises of values that it cannot compute with."""
        return f"{name}: {self.by_name[name].failure}"


records = _Records()

"""Where the time goes: every op and every kernel of a compiled function, timed on its device.

A profiler is seen by dispatch and by compiled functions while its block is open, as a tracer is;
when no block is open nothing is paid. Each op is waited for, so that its time is its own: a profile
says what the work costs, not how much of it a GPU would have hidden behind Python. On CUDA it is
the time on the device, by events on its stream.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from everygrad.backends import base
from everygrad.compiler import costs
from everygrad.compiler.ir import Graph, Value
from everygrad.core.context import profiling
from everygrad.core.op import Op
from everygrad.core.scopes import Scope, Settings
from everygrad.core.shapes import size_of
from everygrad.errors import ArgumentError

Shown = Callable[[], tuple[Any, Graph]]  # steps with `steps()` and `step_bytes()`, and a graph

OP, JIT, KERNEL = "op", "jit", "kernel"
_COLUMNS = (
    *("device", "kind", "name", "calls", "launches"),
    *("ms", "us each", "%", "MB", "GB/s", "GFLOP/s"),
)
_WIDEST = 48  # letters of a name in the table


class Event(NamedTuple):
    """One op, one call of a compiled function, or one kernel inside such a call.

    Times are seconds since the profile began; `launches` counts kernels on the device, whose names
    are in `kernels` where the device tells them.
    """

    kind: str
    name: str
    device: str
    start: float
    seconds: float
    launches: int
    nbytes: int
    flops: int
    thread: int
    kernels: tuple[str, ...] = ()
    shapes: str = ""


class Row(NamedTuple):
    """All events of one kind, name and device, summed."""

    kind: str
    name: str
    device: str
    calls: int
    launches: int
    seconds: float
    nbytes: int
    flops: int

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> float:
        """Arithmetic operations a second."""
        return self.flops / self.seconds if self.seconds else 0.0


class Profile(Scope):
    """What `profile` collects. Printed, it is the table."""

    watches = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.seconds = 0.0  # from the beginning of the block to its end
        self._began = 0.0
        self._open = False
        self._known: dict[int, _Steps] = {}

    def __enter__(self) -> Profile:
        if self._open:
            raise ArgumentError("profile: the block is open already; make another profile")
        for backend in base.opened():
            backend.synchronize()  # what was asked for before is not part of the profile
        self._began = perf_counter()
        super().__enter__()
        self._open = True
        return self

    def settings(self) -> Settings:
        return ((profiling, self),)

    def leaving(self) -> tuple[Callable[[], Any], ...]:
        return (partial(setattr, self, "_open", False), self._finish)

    def _finish(self) -> None:
        self.seconds = perf_counter() - self._began
        self._known.clear()

    # --- what happens ----------------------------------------------------------------------------

    def run(self, backend: base.Backend, op: Op, arrays: list[Any], params: dict[str, Any]) -> Any:
        """One op on a backend."""
        with backend.launches() as names:
            out, start, seconds = backend.timed(lambda: backend.run(op, arrays, params))
        if out is NotImplemented:  # its parts come next, and are counted
            return out
        view = op.move is not None and op.move.is_view
        inputs = [tuple(a.shape) for a in arrays]
        self._note(
            OP,
            op.name,
            backend,
            (start, seconds),
            # a device that tells no names, the CPU, does each op at once
            launches=len(names) if names or backend.name != "cpu" else int(not view),
            nbytes=0 if view else sum(map(_nbytes, (*arrays, out))),
            flops=costs.flops(op, tuple(out.shape), inputs, params),
            kernels=tuple(names),
            shapes=", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays),
        )
        return out

    def replay(self, name: str, shown: Shown, device: str, replay: Any) -> list[Any]:
        """One call of a compiled function, its inputs put; step by step where that can be done.
        `shown` gives its steps and its graph."""
        backend = base.get(device)
        steps = self._known.get(id(replay))
        if steps is None:
            steps = self._known[id(replay)] = _Steps(replay, shown)

        apart: list[float] = []

        def around(which: range, work: Callable[[], None]) -> None:
            _, start, seconds = backend.timed(work)
            apart.append(seconds)
            nbytes, flops = steps.cost(which)
            title = steps.title(which)
            self._note(KERNEL, title, backend, (start, seconds), len(which), nbytes, flops)

        if hasattr(replay, "run_apart"):  # what is between the steps is the profiler's own work
            start = perf_counter()
            out = replay.run_apart(around)
            seconds = sum(apart)
        else:
            (out, interrupted), start, seconds = backend.timed(lambda: replay.run({}))
            if interrupted is not None:
                raise interrupted
        count, (nbytes, _) = len(steps.lines), steps.cost(range(len(steps.lines)))
        self._note(JIT, name, backend, (start, seconds), count, nbytes, steps.flops)
        made: list[Any] = out
        return made

    def replay_on(
        self, name: str, shown: Shown, device: str, replay: Any, inputs: Sequence[Any]
    ) -> list[Any]:
        """The same on these inputs."""
        with replay.lock:
            for i, array in enumerate(inputs):
                replay.put(i, array)
            made = self.replay(name, shown, device, replay)
            replay.arrays = [None] * len(replay.arrays)
        return made

    def _note(
        self,
        kind: str,
        name: str,
        backend: base.Backend,
        when: tuple[float, float],
        launches: int,
        nbytes: int,
        flops: int,
        kernels: tuple[str, ...] = (),
        shapes: str = "",
    ) -> None:
        device = getattr(backend, "device", backend.name)
        start, seconds = when[0] - self._began, when[1]
        thread = threading.get_native_id()
        what = (launches, nbytes, flops, thread, kernels, shapes)
        self.events.append(Event(kind, name, device, start, seconds, *what))

    # --- what it comes to ------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """The events summed, those that took longest first."""
        groups: dict[tuple[str, str, str], list[Event]] = {}
        for e in self.events:
            groups.setdefault((e.kind, e.name, e.device), []).append(e)
        found = [
            Row(
                *key,
                len(events),
                sum(e.launches for e in events),
                sum(e.seconds for e in events),
                sum(e.nbytes for e in events),
                sum(e.flops for e in events),
            )
            for key, events in groups.items()
        ]
        return sorted(found, key=lambda r: -r.seconds)

    def table(self, limit: int | None = 40) -> str:
        """The rows as text, at most `limit` of them. Kernels are part of their function's time."""
        rows = self.rows()
        total = sum(r.seconds for r in rows if r.kind != KERNEL)
        launches = sum(r.launches for r in rows if r.kind != KERNEL)
        lines = [_COLUMNS, *(_cells(r, total) for r in rows[:limit])]
        widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
        text = [
            "  ".join(
                c.ljust(w) if i < 3 else c.rjust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        left = len(rows) - len(rows[:limit])
        if left:
            text.append(f"... and {left} more")
        text.append(
            f"{total * 1e3:.3f} ms in {launches} launches, of {self.seconds * 1e3:.3f} ms in all"
        )
        return "\n".join(text)

    __str__ = table

    def __repr__(self) -> str:
        return f"<profile of {len(self.events)} events in {self.seconds * 1e3:.3f} ms>"

    def save(self, path: str | Path) -> None:
        """Write a trace that Perfetto (ui.perfetto.dev) and chrome://tracing show."""
        devices = {name: i for i, name in enumerate(dict.fromkeys(e.device for e in self.events))}
        names = [
            {"ph": "M", "name": "process_name", "pid": i, "args": {"name": device}}
            for device, i in devices.items()
        ]
        events = [*names, *(_trace_event(e, devices[e.device]) for e in self.events)]
        text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
        Path(path).write_text(text, encoding="utf-8")


def profile() -> Profile:
    """Times everything inside its block: ops, compiled functions and their kernels.

    >>> import everygrad as eg
    >>> with eg.tools.profile() as p:
    ...     y = eg.exp(eg.ones((100, 100)))
    >>> [(row.name, row.calls, row.nbytes, row.flops) for row in p.rows()]
    [('exp', 1, 80000, 10000)]

    `print(p)` shows the table, `p.save("trace.json")` writes a trace for ui.perfetto.dev.
    """
    return Profile()


class _Steps:
    """The steps of a compiled function: what they are called, what they cost."""

    def __init__(self, replay: Any, shown: Shown) -> None:
        self.replay = replay  # held, so that no other can have its id
        view, graph = shown()
        self.flops = sum(costs.flops_of(v) for v in graph.values)
        self.lines: list[str] = [line.split(":")[0] for line in view.steps()]
        apart = hasattr(view, "step_bytes")
        self.nbytes: list[int] = view.step_bytes() if apart else [0] * len(self.lines)
        values = {v.number: v for v in graph.values}
        self.work = [_product(line, values) for line in self.lines]

    def title(self, which: range) -> str:
        return " + ".join(dict.fromkeys(self.lines[i] for i in which))

    def cost(self, which: range) -> tuple[int, int]:
        """Bytes and operations; these are known of products alone, where they matter."""
        products = dict.fromkeys(self.work[i] for i in which)
        flops = sum(costs.flops_of(v) for v in products if v is not None)
        return sum(self.nbytes[i] for i in which), flops


def _product(line: str, values: dict[int, Value]) -> Value | None:
    """The value that a step computes, where its name says that it is one and not a group."""
    found = re.match(r"%(\d+) (\w+)$", line)
    v = values.get(int(found[1])) if found else None
    return v if found and v is not None and v.name == found[2] else None


def _nbytes(array: Any) -> int:
    return size_of(tuple(array.shape)) * int(array.dtype.itemsize)


def _cells(r: Row, total: float) -> tuple[str, ...]:
    name = r.name if len(r.name) <= _WIDEST else r.name[: _WIDEST - 3] + "..."
    return (
        r.device,
        r.kind,
        name,
        str(r.calls),
        str(r.launches),
        f"{r.seconds * 1e3:.3f}",
        f"{r.seconds / r.calls * 1e6:.1f}",
        f"{100 * r.seconds / total:.1f}" if total else "",
        f"{r.nbytes / 1e6:.2f}",
        f"{r.bandwidth / 1e9:.2f}" if r.nbytes else "",
        f"{r.rate / 1e9:.2f}" if r.flops else "",
    )


def _trace_event(e: Event, process: int) -> dict[str, Any]:
    facts = {"launches": e.launches, "bytes": e.nbytes, "flops": e.flops}
    more = {"kernels": list(e.kernels), "inputs": e.shapes}
    return {
        "ph": "X",
        "name": e.name,
        "cat": e.kind,
        "pid": process,
        "tid": e.thread,
        "ts": round(e.start * 1e6, 3),
        "dur": round(e.seconds * 1e6, 3),
        "args": {**facts, **{k: v for k, v in more.items() if v}},
    }

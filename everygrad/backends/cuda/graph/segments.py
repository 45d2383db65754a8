"""A compiled function in segments: graphs, and between them the calls that no graph can hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from everygrad.backends.cuda.graph.library_calls import LibraryCall
from everygrad.backends.cuda.graph.recording import Step


def is_hosted(step: Step) -> bool:
    """Whether the host makes the step between graphs."""
    return isinstance(step.what, LibraryCall)


def segments_of(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps as segments: each host call is one, and so are the steps between two of them."""
    made: list[list[Step]] = []
    for hosted, some in groupby(steps, is_hosted):
        run = list(some)
        made += [[step] for step in run] if hosted else [run]
    return made


def group_host_calls(steps: Sequence[Step], inputs: set[int], donated: set[int]) -> list[int]:
    """An order in which host calls are neighbours where they can be, so that there are fewer
    graphs: a call is delayed until its result is needed, and later calls follow it directly if they
    do not depend on the steps between. `inputs` are slots that are only read; `donated` are those
    that may overwrite inputs, which is safe only when no call is still to come."""
    order: list[int] = []
    calls: list[int] = []
    behind: list[int] = []  # steps that come after the calls
    awaited, touched = (
        set(donated),
        set[int](),
    )  # slots of calls' results, and of `behind`
    for k, step in enumerate(steps):
        if is_hosted(step):
            if step.slots & touched:
                order += [*calls, *behind]
                calls, behind, awaited, touched = [], [], set(donated), set()
            calls.append(k)
            awaited.add(step.relocations[-1].slot)  # the result's
        elif behind or (calls and step.slots & awaited):
            behind.append(k)
            touched |= step.slots - inputs
        else:
            order.append(k)
    return [*order, *calls, *behind]


def segment_names(steps: Sequence[Step]) -> list[str]:
    """The name of each step's segment; empty where all are one graph."""
    names: list[str] = []
    graphs = 0
    segments = segments_of(steps)
    for segment in segments:
        graphs += not is_hosted(segment[0])
        name = "called between graphs" if is_hosted(segment[0]) else f"graph {graphs}"
        names += [name] * len(segment)
    return names if any(map(is_hosted, steps)) else [""] * len(steps)


class SegmentedGraph:
    """Segments that run one after the other, on the addresses they had when this was made. Making
    it runs them once. One that fails leaves the others as they were."""

    def __init__(
        self,
        steps: Sequence[Step],
        capture: Callable[[Callable[[], None]], Any],
        run: Callable[[Step], None],
        addresses: Sequence[int],
        launched: list[Any],
    ) -> None:
        self._parts: list[Callable[[list[Any]], None]] = []
        segments = segments_of(steps)
        for k, segment in enumerate(segments):
            part: Callable[[list[Any]], None]
            if is_hosted(segment[0]):
                part = partial(_called, partial(segment[0].what, *segment[0].filled(addresses)))
            else:
                part = capture(partial(_each, run, segment)).launch
            part(launched if k + 1 == len(segments) else [])
            self._parts.append(part)

    def launch(self, launched: list[Any]) -> None:
        """Run them. Only the last one overwrites memory that anyone sees; it fills `launched`."""
        *first, last = self._parts
        for part in first:
            part([])
        last(launched)


def _called(work: Callable[[], None], launched: list[Any]) -> None:
    work()
    launched.append(None)


def _each(run: Callable[[Step], None], steps: Sequence[Step]) -> None:
    for step in steps:
        run(step)

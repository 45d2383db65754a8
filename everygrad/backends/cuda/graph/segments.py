"""A compiled function in stages: graphs, and between them the calls that no graph can hold."""

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


def staged(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps as stages: a call of the host alone, others together up to the next such call."""
    made: list[list[Step]] = []
    for hosted, some in groupby(steps, is_hosted):
        together = list(some)
        made += [[step] for step in together] if hosted else [together]
    return made


def gathered(steps: Sequence[Step], inputs: set[int], gifts: set[int]) -> list[int]:
    """An order in which the host's calls stand together where they can, so that there are fewer
    graphs: a call waits until its result is needed, and later ones join it if they do not need what
    comes between. `inputs` are slots that are only read; `gifts` those that may be written over
    inputs, which can be done only when no call is still to come."""
    order: list[int] = []
    calls: list[int] = []
    behind: list[int] = []  # steps that come after the calls
    awaited, touched = set(gifts), set[int]()  # slots of calls' results, and of what is behind
    for k, step in enumerate(steps):
        if is_hosted(step):
            if step.slots & touched:
                order += [*calls, *behind]
                calls, behind, awaited, touched = [], [], set(gifts), set()
            calls.append(k)
            awaited.add(step.places[-1].slot)  # the result's
        elif behind or (calls and step.slots & awaited):
            behind.append(k)
            touched |= step.slots - inputs
        else:
            order.append(k)
    return [*order, *calls, *behind]


def stage_names(steps: Sequence[Step]) -> list[str]:
    """What stage each step is of; nothing where all are one graph."""
    names: list[str] = []
    graphs = 0
    stages = staged(steps)
    for stage in stages:
        graphs += not is_hosted(stage[0])
        name = "called between graphs" if is_hosted(stage[0]) else f"graph {graphs}"
        names += [name] * len(stage)
    return names if any(map(is_hosted, steps)) else [""] * len(steps)


class Staged:
    """Stages that run one after the other, with the addresses they had when it was made. Making it
    runs them once. One that fails leaves the others as they were."""

    def __init__(
        self,
        steps: Sequence[Step],
        capture: Callable[[Callable[[], None]], Any],
        run: Callable[[Step], None],
        addresses: Sequence[int],
        launched: list[Any],
    ) -> None:
        self._parts: list[Callable[[list[Any]], None]] = []
        stages = staged(steps)
        for k, stage in enumerate(stages):
            part: Callable[[list[Any]], None]
            if is_hosted(stage[0]):
                part = partial(_called, partial(stage[0].what, *stage[0].filled(addresses)))
            else:
                part = capture(partial(_each, run, stage)).launch
            part(launched if k + 1 == len(stages) else [])
            self._parts.append(part)

    def launch(self, launched: list[Any]) -> None:
        """Run them; the last one, which alone writes over what somebody sees, notes it."""
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

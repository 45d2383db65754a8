"""In which order a rank of a pipeline runs its stages forward and backward.

gpipe        all microbatches forward, then all backward; keeps the graphs of all of them
1f1b         once the pipeline is full, one forward and one backward by turns; keeps as many
             graphs as there are stages behind
interleaved  each rank has several stages, `ranks` apart, so that less of it waits at the ends
"""

from __future__ import annotations

from typing import NamedTuple

from everygrad.errors import ArgumentError

SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Act(NamedTuple):
    """One microbatch through one stage of a rank: `chunk` counts the rank's own stages."""

    forward: bool
    chunk: int
    microbatch: int


def acts_of(schedule: str, ranks: int, rank: int, chunks: int, microbatches: int) -> list[Act]:
    """What a rank does in one step.

    >>> from everygrad.distributed.parallel.schedules import acts_of
    >>> ["FB"[not act.forward] + str(act.microbatch) for act in acts_of("1f1b", 2, 0, 1, 3)]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    count = microbatches * chunks
    if schedule == "gpipe":
        ahead = count
    elif schedule == "1f1b":
        ahead = ranks - rank - 1
    else:
        if microbatches % ranks:
            raise ArgumentError(
                f"pipeline: the interleaved schedule takes microbatches in groups of {ranks}, one "
                f"for each rank, got {microbatches}"
            )
        ahead = (ranks - rank - 1) * 2 + (chunks - 1) * ranks
    ahead = min(ahead, count)
    forwards = [_numbered(True, k, ranks, chunks, microbatches) for k in range(count)]
    backwards = [_numbered(False, k, ranks, chunks, microbatches) for k in range(count)]
    made = forwards[:ahead]
    for k in range(count - ahead):
        made += [forwards[ahead + k], backwards[k]]
    return made + backwards[count - ahead :]


def _numbered(forward: bool, k: int, ranks: int, chunks: int, microbatches: int) -> Act:
    """The k-th forward or backward: groups of `ranks` microbatches, each through all chunks."""
    if chunks == 1:
        return Act(forward, 0, k)
    group = ranks if microbatches % ranks == 0 else microbatches
    at = k // group % chunks
    microbatch = k // (group * chunks) * group + k % group
    return Act(forward, at if forward else chunks - 1 - at, microbatch)

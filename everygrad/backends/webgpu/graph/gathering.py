"""The order in which groups are recorded: small ones that need not wait for each other together.

A group that can be part of a multi-tensor kernel takes along all later ones whose operands are
there already; those that nothing waits for come last. So an optimiser's launches are those of the
kinds of its work, one after the other, for as many parameters as one kernel binds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush

from everygrad.backends.webgpu.fused.inplace_reuse import read_by, read_by_group
from everygrad.codegen.groups.group_sums import Pairs
from everygrad.compiler.groups import Group
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge

# bytes of intermediate values that are computed earlier than they were to be, or are kept for later
_TEMPORARIES = edge(__name__, "_TEMPORARIES", 1 << 24, "bytes")


def gathered(
    groups: Sequence[Group],
    small: Collection[Group],
    outputs: Collection[Value],
    pairs: Pairs,
    links: Mapping[Group, Value],
) -> list[Group]:
    """The groups in another order. `small` ones can share kernels; `pairs` are inputs and what may
    overwrite them, `links` the products that run with a group."""
    number = {group: k for k, group in enumerate(groups)}
    reads = [_reads(group, links) for group in groups]
    waits = _waits(groups, reads, pairs)
    behind: list[list[int]] = [[] for _ in groups]
    for k, before in enumerate(waits):
        for n in before:
            behind[n].append(k)
    left = [len(before) for before in waits]
    ours = {number[group] for group in small}
    late = _late(groups, ours, behind, reads)
    made: list[int] = []
    done = [False] * len(groups)
    ready = [k for k in ours - late if not left[k]]
    heapify(ready)

    def record(k: int) -> None:
        done[k] = True
        made.append(k)
        for other in behind[k]:
            left[other] -= 1
            if not left[other] and other in ours and other not in late:
                heappush(fresh, other)

    fresh: list[int] = []  # what became ready: for the next kernel
    for k in (*(n for n in range(len(groups)) if n not in late), *sorted(late)):
        if done[k]:
            continue
        room = _TEMPORARIES
        record(k)
        if k in ours and k not in late:
            kept = []
            while ready:
                other = heappop(ready)
                if done[other]:
                    continue
                cost = sum(_bytes(v) for v in groups[other].members if v not in outputs)
                if cost > room:
                    kept.append(other)
                    continue
                room -= cost
                record(other)
            ready = kept
        ready += fresh
        fresh.clear()
        heapify(ready)
    return [groups[k] for k in made]


def _reads(group: Group, links: Mapping[Group, Value]) -> set[Value]:
    link = links.get(group)
    return read_by_group(group) | (read_by(link) if link is not None else set())


def _waits(groups: Sequence[Group], reads: Sequence[set[Value]], pairs: Pairs) -> list[set[int]]:
    """By group: the earlier ones it waits for, as what makes its operands, or reads what it
    overwrites."""
    maker: dict[Value, int] = {}
    for k, group in enumerate(groups):
        for v in (group.opaque,) if group.opaque is not None else group.members:
            maker[v] = k
    waits = [{maker[v] for v in some if v in maker} - {k} for k, some in enumerate(reads)]
    for x, v in pairs.items():
        writer = maker.get(v)
        if writer is not None:
            waits[writer] |= {k for k in range(writer) if x in reads[k]}
    return waits


def _late(
    groups: Sequence[Group],
    ours: Collection[int],
    behind: Sequence[list[int]],
    reads: Sequence[set[Value]],
) -> set[int]:
    """Small groups that nothing waits for, as long as what they read is little."""
    made = {v for group in groups for v in group.members}
    found: set[int] = set()
    kept: set[Value] = set()
    room = _TEMPORARIES
    for k in sorted(ours):
        more = {v for v in reads[k] if v in made and v not in kept}
        cost = sum(map(_bytes, more))
        if not behind[k] and cost <= room:
            room -= cost
            kept |= more
            found.add(k)
    return found


def _bytes(v: Value) -> int:
    return v.size * v.dtype.itemsize

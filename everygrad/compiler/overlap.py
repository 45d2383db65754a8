"""Collectives of a graph overlapped with what does not need them: two passes.

The first gathers neighbours in the chain of collectives into buckets: sums over the same ranks, in
one dtype, none of which needs the result of another. The second makes two values of each: `start`,
which hands it to the communication thread, and `wait`, which gives its result. Starts are chained
in the order of the program, and so are waits. In the order of the groups (`fuse`) a start then goes
as early and a wait as late as what they take and give allow. Of what takes memory of its own while
it is under way, at most two buckets are: a start then waits for the end of an earlier one.

Ahead of all stands an agreement: the ranks compare their lists of collectives, once for each run,
and none of the collectives need ask again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everygrad.compiler.facts import SplitCall
from everygrad.compiler.ir import LEAVES, Graph, Value, in_order, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.core.shapes import Shape
from everygrad.dtypes import float32

MOST = 25 << 20  # bytes of a bucket
FEWEST = 1 << 20  # bytes up to which more of them do not help
BUCKETS = 8  # that the bytes of a graph are shared among, within these limits
IN_FLIGHT = 2  # buckets that take memory of their own: one is exchanged, and the next is ready


def overlapped(graph: Graph, moves: dict[str, Any]) -> Graph:
    """The same graph with its collectives in buckets, and split into start and wait."""
    calls = [v for v in in_order(reachable(graph.outputs)) if v.facts.communicates]
    if len(calls) < 2:  # nothing to order, and little to overlap with: it is asked about eagerly
        return graph
    return _Splitter(buckets_of(calls), moves).run(graph)


def agreed(graph: Graph) -> Graph:
    """The same graph with an agreement ahead of its first collective, for a device that carries
    them out itself."""
    calls = [v for v in in_order(reachable(graph.outputs)) if v.facts.communicates]
    return _Agreed(calls).run(graph) if calls else graph


def buckets_of(calls: Sequence[Value]) -> list[list[Value]]:
    """The calls in their order, those that may be one in one list."""
    limit = _bucket_bytes(calls)
    needs = _latest_needed(calls)
    found: list[list[Value]] = []
    first, taken, key = 0, 0, None
    for i, v in enumerate(calls):
        own = _split_of(v).bucket(v)
        size = v.args[0].nbytes
        joins = own is not None and own == key and taken + size <= limit and needs[v] < first
        if joins:
            found[-1].append(v)
            taken += size
        else:
            found.append([v])
            first, taken, key = i, size, own
    return found


def _bucket_bytes(calls: Sequence[Value]) -> int:
    return min(MOST, max(FEWEST, sum(v.args[0].nbytes for v in calls) // BUCKETS))


def ended_before(buckets: Sequence[Sequence[Value]]) -> list[int]:
    """For each bucket: the number of the latest one that must have ended before it starts, or -1:
    what is under way from there on takes no more memory than `IN_FLIGHT` buckets. What is summed in
    its own place takes none."""
    sizes = [sum(map(_in_flight, bucket)) for bucket in buckets]
    limit = _bucket_bytes([v for bucket in buckets for v in bucket])
    most = IN_FLIGHT * min(limit, max(sizes))
    found = []
    first, taken = 0, 0  # the first bucket that may be under way, and what those from it on take
    for i, size in enumerate(sizes):
        taken += size
        while taken > most and first < i:
            taken -= sizes[first]
            first += 1
        found.append(first - 1 if size else -1)
    return found


def _in_flight(v: Value) -> int:
    """Bytes that a call takes while it is under way."""
    return 0 if _split_of(v).wait.takes_over is not None else max(v.nbytes, v.args[0].nbytes)


def _is_early(x: Value) -> bool:
    """Whether a value is no more than a rearrangement of what is there from the beginning."""
    return all(
        v.kind in LEAVES or v.kind == "movement" or v.facts.rearranges for v in reachable([x])
    )


def _latest_needed(calls: Sequence[Value]) -> dict[Value, int]:
    """For each call: the number of the latest other one whose result it is made of, or -1."""
    numbers = {v: i for i, v in enumerate(calls)}
    latest: dict[Value, int] = {}
    for v in in_order(reachable(calls)):
        data = v.args[:1] if v in numbers else v.args  # the others say the order alone
        latest[v] = max((max(latest[a], numbers.get(a, -1)) for a in data), default=-1)
    return {v: latest[v] for v in calls}


def _split_of(v: Value) -> SplitCall:
    assert v.facts.split is not None, v.name
    return v.facts.split


class _Splitter(Rewriter):
    """Builds the new graph. `buckets` are in the order of the chain."""

    def __init__(self, buckets: list[list[Value]], moves: dict[str, Any]) -> None:
        super().__init__()
        self.buckets = buckets
        self.moves = moves
        self.number = {v: i for i, bucket in enumerate(buckets) for v in bucket}
        self.ended_before = ended_before(buckets)
        self.last_start: Value | None = None
        self.waits: list[Value] = []

    def copy(self, outputs: Sequence[Value]) -> Graph:
        for v in self.order(outputs):
            if v in self.made:
                continue
            if v in self.number:
                self.emit(self.buckets[self.number[v]])
            else:
                self.get(v)
        self.graph.outputs = [self.made[v] for v in outputs]
        return self.graph

    def needs(self, v: Value) -> list[Value]:
        """What must be there before v: of a call all that its bucket takes, and the one before."""
        at = self.number.get(v)
        if at is None:
            return list(v.args)
        before = [self.buckets[at - 1][0]] if at else []
        return [*(member.args[0] for member in self.buckets[at]), *before]

    def order(self, outputs: Sequence[Value]) -> list[Value]:
        """All live values, each after what it needs, else as written."""
        done: set[Value] = set()
        order: list[Value] = []
        for root in in_order(reachable(outputs)):
            todo = [root]
            while todo:
                v = todo[-1]
                left = [] if v in done else [a for a in self.needs(v) if a not in done]
                if left:
                    todo += left
                else:
                    todo.pop()
                    if v not in done:
                        done.add(v)
                        order.append(v)
        return order

    def emit(self, bucket: list[Value]) -> None:
        """Start and wait of a bucket, and the result of each of its members."""
        v = bucket[0]
        split = _split_of(v)
        xs = [self.made[member.args[0]] for member in bucket]
        x = xs[0] if len(xs) == 1 else self.joined(xs, v)
        if self.last_start is None:
            self.last_start = self.agreement(split)
        params = {**v.params, "trusted": True}
        ended = self.ended_before[len(self.waits)]
        after = [] if ended < 0 else [self.waits[ended]]
        kind = split.fetch if _is_early(x) else split.start
        start = self.graph.call(kind, [x, self.last_start, *after], params, v.where)
        wait = self.graph.call(split.wait, [start, x, *self.waits[-1:]], params, v.where)
        self.last_start = start
        self.waits.append(wait)
        if len(bucket) == 1:
            self.made[v] = wait
            return
        at = 0
        for member in bucket:
            piece = {"slices": ((at, member.size, 1),)}
            part = self.graph.call(self.moves["slice"], [wait], piece, v.where)
            self.made[member] = self.reshaped(part, member.shape, v)
            at += member.size

    def joined(self, xs: Sequence[Value], v: Value) -> Value:
        flat = [self.reshaped(x, (x.size,), v) for x in xs]
        params = {"axis": 0, "sizes": tuple(x.size for x in flat)}
        return self.graph.call(self.moves["concat"], flat, params, v.where)

    def reshaped(self, x: Value, shape: tuple[int, ...], v: Value) -> Value:
        if x.shape == shape:
            return x
        return self.graph.call(self.moves["reshape"], [x], {"shape": shape}, v.where)

    def agreement(self, split: SplitCall) -> Value:
        """The value that stands before the first start."""
        shapes = [
            (sum(v.args[0].size for v in bucket),) if len(bucket) > 1 else bucket[0].args[0].shape
            for bucket in self.buckets
        ]
        return _agreement(self.graph, split, [bucket[0] for bucket in self.buckets], shapes)


class _Agreed(Rewriter):
    """Puts the agreement in front of the first of some calls."""

    def __init__(self, calls: Sequence[Value]) -> None:
        super().__init__()
        self.calls = calls

    def replacement(self, v: Value, args: list[Value]) -> Value | None:
        if v is not self.calls[0]:
            return None
        shapes = [v.args[0].shape for v in self.calls]
        agreement = _agreement(self.graph, _split_of(v), self.calls, shapes)
        return self.graph.call(v.op, [args[0], agreement], v.params, v.where, v.generation)


def _agreement(
    graph: Graph, split: SplitCall, calls: Sequence[Value], shapes: Sequence[Shape]
) -> Value:
    """A value that is there once all ranks have shown that they are about to make these calls."""
    listed = [_split_of(v).describe(v, shape) for v, shape in zip(calls, shapes, strict=True)]
    return graph.call(split.agree, [graph.full((1,), 0.0, float32)], {"owner": tuple(listed)})

"""Arguments that no kernel reads are not computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.rewrite import Rewriter


class _WithoutUnread(Rewriter):
    """Zeros, which are never written anywhere, in place of these arguments."""

    def __init__(self, unread: Mapping[str, Sequence[int]], live: set[Value]) -> None:
        super().__init__()
        self.unread, self.live = unread, live

    def is_late(self, v: Value) -> bool:
        return v not in self.live

    def rebuilt(self, v: Value) -> Value:
        places = self.unread.get(v.name, ())
        if not places:
            return super().rebuilt(v)
        args = [
            self.graph.full(a.shape, 0, a.dtype) if i in places else self.get(a)
            for i, a in enumerate(v.args)
        ]
        return self.graph.call(v.op, args, v.params, v.where, v.generation)


def without_unread(graph: Graph, unread: Mapping[str, Sequence[int]]) -> Graph:
    """The graph without what only such arguments need. `unread`: their places by the op's name."""
    live = set(graph.outputs)
    todo = list(live)
    found = False
    for v in todo:
        places = unread.get(v.name, ())
        found = found or bool(places)
        for i, a in enumerate(v.args):
            if i not in places and a not in live:
                live.add(a)
                todo.append(a)
    return _WithoutUnread(unread, live).run(graph) if found else graph

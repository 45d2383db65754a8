"""A graph as this device likes it, before its values are gathered into groups.

Attention and its derivative become ops of this backend alone. Forward leaves its result as (batch,
tokens, heads, width), which is what follows it reads, with the statistics backward needs behind it;
backward writes the three derivatives side by side, as one product has made q, k and v. So nothing
is computed twice, and heads are brought together and apart by strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everygrad.backends.cuda.attention.flash import lse_size
from everygrad.compile.ir import Graph, Value, in_order, reachable
from everygrad.compile.views import View, apply_move, is_whole, view_of, whole
from everygrad.core.shapes import Shape

_ATTENTION = ("attention", "attention_masked")
_DERIVATIVES = ("attention_grads", "attention_masked_grads")
_MOVES = ("permute_dims", "reshape", "slice")
_HEADS_APART = (0, 2, 1, 3)  # (batch, tokens, heads, width) to (batch, heads, tokens, width)


class BackendOp(NamedTuple):
    """An op that only this backend knows."""

    name: str
    result: Callable[..., tuple[Shape, Any]]
    family: str = "kernel"


def _kept(q: Any, *others: Any, **params: Any) -> tuple[Shape, Any]:
    batch, heads, queries, _ = q.shape
    masked = len(others) > 2  # than k and v
    statistics = lse_size(batch, heads, queries, masked) * 4 // q.dtype.itemsize
    return (q.size + statistics,), q.dtype


def _side_by_side(g: Any, q: Any, *others: Any, **params: Any) -> tuple[Shape, Any]:
    batch, heads, tokens, width = q.shape
    return (batch, tokens, 3, heads, width), q.dtype


KEPT = BackendOp("attention_kept", _kept)
KEPT_GRADS = BackendOp("attention_kept_grads", _side_by_side)


class Rewriter:
    """Builds the new graph, in order."""

    def __init__(self, old: Graph) -> None:
        self.old = old
        self.graph = Graph()
        self.live = list(in_order(reachable(old.outputs)))
        self.users: dict[Value, list[Value]] = {}
        for v in self.live:
            for a in v.args:
                self.users.setdefault(a, []).append(v)
        self.moves = {v.name: v.op for v in self.live if v.kind == "movement"}
        self.kept: dict[Any, Value] = {}  # by arguments and settings: what a forward left
        self.packed: dict[Value, Value] = {}  # old values: derivatives, and pieces of them
        self.rules: dict[str, Callable[[Value, list[Value]], Value | None]] = {
            **dict.fromkeys(_ATTENTION, self.attention),
            **dict.fromkeys(_DERIVATIVES, self.derivatives),
            "slice": self.piece,
            "reshape": self.heads,
            "copy": self.copy,
            "concat": self.concat,
        }

    def run(self) -> Graph:
        made = {v: self.graph.input(v.shape, v.dtype, v.where) for v in self.old.inputs}
        for v in self.live:
            if v not in made:
                made[v] = self.rebuild(v, [made[a] for a in v.args])
        self.graph.outputs = [made[v] for v in self.old.outputs]
        return self.graph

    def rebuild(self, v: Value, args: list[Value]) -> Value:
        if v.kind == "full":
            return self.graph.full(v.shape, v.params["value"], v.dtype)
        if v.kind == "constant":
            return self.graph.constant(v.params["array"], v.dtype)
        rule = self.rules.get(v.name)
        found = None if rule is None else rule(v, args)
        if found is None:
            found = self.graph.call(v.op, args, v.params, v.where, v.generation)
        return found

    def move(self, name: str, x: Value, **params: Any) -> Value:
        return self.graph.call(self.moves[name], [x], params)

    # --- attention -------------------------------------------------------------------------------

    def attention(self, v: Value, args: list[Value]) -> Value | None:
        q, k, values, *_ = args
        alike = len(q.shape) == 4 and q.shape == k.shape == values.shape
        if not alike or any(name not in self.moves for name in _MOVES):
            return None
        kept = self.graph.call(KEPT, args, v.params, v.where, v.generation)
        self.kept[_key(args, v.params)] = kept
        batch, heads, tokens, width = q.shape
        flat = self.move("slice", kept, slices=((0, q.size, 1),))
        together = self.move("reshape", flat, shape=(batch, tokens, heads, width))
        return self.move("permute_dims", together, axes=_HEADS_APART)

    def derivatives(self, v: Value, args: list[Value]) -> Value | None:
        g, *inputs = args
        kept = self.kept.get(_key(inputs, v.params))
        if kept is None or not self.is_cut(v, inputs[0].shape):
            return None
        given = [g, *inputs[:3], kept, *inputs[3:]]
        found = self.packed[v] = self.graph.call(KEPT_GRADS, given, v.params, v.where, v.generation)
        return found

    def is_cut(self, v: Value, shape: Shape) -> bool:
        """Whether derivatives, flat one after the other, are only used as what they are."""
        third = v.size // 3
        pieces = self.users.get(v, [])
        expected = [((i * third, third, 1),) for i in range(3)]
        cut = all(p.name == "slice" and p.params["slices"] in expected for p in pieces)
        shaped = [u for p in pieces for u in self.users.get(p, [])]
        outputs = {*self.old.outputs}
        return (
            cut
            and not outputs & {v, *pieces}
            and all(u.name == "reshape" and u.shape == shape for u in shaped)
        )

    def piece(self, v: Value, args: list[Value]) -> Value | None:
        if v.args[0] not in self.packed:
            return None
        whole = args[0].shape
        at = v.params["slices"][0][0] // v.size
        slices = tuple((at, 1, 1) if i == 2 else (0, n, 1) for i, n in enumerate(whole))
        found = self.packed[v] = self.move("slice", args[0], slices=slices)
        return found

    def heads(self, v: Value, args: list[Value]) -> Value | None:
        """A derivative from where it lies among the three."""
        if v.args[0] not in self.packed:
            return None
        batch, tokens, _, heads, width = args[0].shape
        together = self.move("reshape", args[0], shape=(batch, tokens, heads, width))
        return self.move("permute_dims", together, axes=_HEADS_APART)

    # --- what then needs no copy -----------------------------------------------------------------

    def copy(self, v: Value, args: list[Value]) -> Value | None:
        (x,) = args
        view = view_of(x)
        return x if is_whole(*view[1:]) else None

    def concat(self, v: Value, args: list[Value]) -> Value | None:
        """Parts of one value that lie there as they are to be joined are that value."""
        views = [_looked_through(a) for a in args]
        first, axis = views[0], v.params["axis"]
        if first is None or first.base.size != v.size:
            return None
        at = first.offset
        for view, a in zip(views, args, strict=True):
            if view is None or view[:1] + view[2:] != (first.base, first.strides, at):
                return None
            at += a.shape[axis] * first.strides[axis]
        if not is_whole(v.shape, first.strides, first.offset) or "reshape" not in self.moves:
            return None
        return self.move("reshape", first.base, shape=v.shape)


def _key(args: Sequence[Value], params: dict[str, Any]) -> Any:
    return (*(a.number for a in args), *params.items())


def _looked_through(v: Value) -> View | None:
    """A value as a view, as if nothing between was copied; None where strides cannot say it."""
    chain = []
    while v.kind == "movement" or v.name == "copy":
        chain.append(v)
        v = v.args[0]
    view: View | None = whole(v)
    for move in reversed(chain):
        if view is not None and move.name != "copy":
            view = apply_move(view, move)
    return view


def rewritten(graph: Graph) -> Graph:
    """The same outputs, by ops of this backend where they serve better; a graph of its own, which
    the fuser may change."""
    return Rewriter(graph).run()

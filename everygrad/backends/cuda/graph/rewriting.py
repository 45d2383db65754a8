"""Rewrites of a graph for this device, before its values are fused into groups.

Attention and its derivative become internal ops of this backend. Forward stores its result as
(batch, tokens, heads, width), which is the layout its readers want, followed by the statistics that
backward needs; backward writes the three derivatives interleaved, as one product computes q, k and
v. So nothing is computed twice, and heads are merged and split by strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from everygrad import dtypes
from everygrad.backends.cuda.attention.flash import lse_size
from everygrad.compiler.facts import Move, OpFacts
from everygrad.compiler.ir import Graph, Value, in_order, reachable
from everygrad.compiler.rewrite import Rewriter
from everygrad.compiler.views import View, apply_move, is_whole, view_of, whole
from everygrad.core.shapes import Shape

if TYPE_CHECKING:
    from everygrad.dtypes import DType

_ATTENTION = ("attention", "attention_masked")
_LOG_SUMS = "attention_log_sums"
_DERIVATIVES = ("attention_grads", "attention_masked_grads")
_SLOPES = "attention_saved_slopes"
_MOVES = (Move.PERMUTE, Move.RESHAPE, Move.SLICE)
_HEADS_APART = (0, 2, 1, 3)  # (batch, tokens, heads, width) to (batch, heads, tokens, width)


class BackendOp(OpFacts):
    """An op that only this backend has."""

    family = "kernel"

    def __init__(self, name: str, result: Callable[..., tuple[Shape, DType]]) -> None:
        self.name = name
        self.result = result


def _saved(q: Any, *others: Any, **params: Any) -> tuple[Shape, Any]:
    batch, heads, queries, _ = q.shape
    masked = len(others) > 2  # than k and v
    statistics = lse_size(batch, heads, queries, masked) * 4 // q.dtype.itemsize
    return (q.size + statistics,), q.dtype


def _side_by_side(g: Any, q: Any, *others: Any, **params: Any) -> tuple[Shape, Any]:
    batch, heads, tokens, width = q.shape
    return (batch, tokens, 3, heads, width), q.dtype


SAVED = BackendOp("attention_saved", _saved)
SAVED_GRADS = BackendOp("attention_saved_grads", _side_by_side)
# of a backward whose forward is another graph: the statistics are computed again
PACKED_GRADS = BackendOp("attention_packed_grads", _side_by_side)
# the same with its result and logarithms given, and the logarithms in what a forward saved
PACKED_SLOPES = BackendOp("attention_packed_slopes", _side_by_side)
SAVED_LOG_SUMS = BackendOp(
    "attention_saved_log_sums", lambda q, *others, **params: (q.shape[:-1], dtypes.float32)
)


class AttentionRewriter(Rewriter):
    """Attention and its derivative by the ops of this backend, and copies that become views."""

    def __init__(self, old: Graph) -> None:
        super().__init__()
        self.old = old
        self.live = list(in_order(reachable(old.outputs)))
        self.users: dict[Value, list[Value]] = {}
        for v in self.live:
            for a in v.args:
                self.users.setdefault(a, []).append(v)
        self.moves = {v.move: v.op for v in self.live if v.move is not None}
        self.saved: dict[Any, Value] = {}  # by arguments and settings: what a forward saved
        self.unmasked: dict[Any, list[Value]] = {}  # the same by q and k: with all that made it
        self.packed: dict[Value, Value] = {}  # by old value: derivatives, and slices of them
        self.rules: dict[str, Callable[[Value, list[Value]], Value | None]] = {
            **dict.fromkeys(_ATTENTION, self.attention),
            **dict.fromkeys(_DERIVATIVES, self.derivatives),
            _SLOPES: partial(self.derivatives, alone=PACKED_SLOPES),
            _LOG_SUMS: self.log_sums,
            "slice": self.piece,
            "reshape": self.heads,
            "copy": self.contiguous,
            "concat": self.concat,
        }

    def replacement(self, v: Value, args: list[Value]) -> Value | None:
        rule = self.rules.get(v.name)
        return None if rule is None else rule(v, args)

    def moved(self, move: Move, x: Value, **params: Any) -> Value:
        return self.graph.call(self.moves[move], [x], params)

    # --- attention -------------------------------------------------------------------------------

    def attention(self, v: Value, args: list[Value]) -> Value | None:
        q, k, values, *_ = args
        if not self.packs(q, k, values):
            return None
        saved = self.graph.call(SAVED, args, v.params, v.where, v.generation)
        self.saved[_key(args, v.params)] = saved
        if len(args) == 3:
            self.unmasked[_key(args[:2], v.params)] = [*args, saved]
        batch, heads, tokens, width = q.shape
        flat = self.moved(Move.SLICE, saved, slices=((0, q.size, 1),))
        joined = self.moved(Move.RESHAPE, flat, shape=(batch, tokens, heads, width))
        return self.moved(Move.PERMUTE, joined, axes=_HEADS_APART)

    def log_sums(self, v: Value, args: list[Value]) -> Value | None:
        """Those of attention that came before, which saved them."""
        found = self.unmasked.get(_key(args, v.params))
        if found is None:
            return None
        return self.graph.call(SAVED_LOG_SUMS, found, v.params, v.where, v.generation)

    def derivatives(
        self, v: Value, args: list[Value], alone: BackendOp = PACKED_GRADS
    ) -> Value | None:
        """The derivatives by what the forward saved; `alone`: by what serves where it saved
        nothing."""
        g, *inputs = args
        if not self.packs(*inputs[:3]) or not self.is_split(v, inputs[0].shape):
            return None
        saved = self.saved.get(_key(inputs, v.params))
        op, given = alone, args
        if saved is not None:
            op, given = SAVED_GRADS, [g, *inputs[:3], saved, *inputs[3:]]
        found = self.packed[v] = self.graph.call(op, given, v.params, v.where, v.generation)
        return found

    def packs(self, q: Value, k: Value, v: Value) -> bool:
        """Whether q, k and v can have come from one product, which their derivatives lead to."""
        alike = len(q.shape) == 4 and q.shape == k.shape == v.shape
        return alike and all(move in self.moves for move in _MOVES)

    def is_split(self, v: Value, shape: Shape) -> bool:
        """Whether the flat, concatenated derivatives are only ever sliced into the three."""
        third = v.size // 3
        pieces = self.users.get(v, [])
        expected = [((i * third, third, 1),) for i in range(3)]
        cut = all(p.move is Move.SLICE and p.params["slices"] in expected for p in pieces)
        shaped = [u for p in pieces for u in self.users.get(p, [])]
        outputs = {*self.old.outputs}
        return (
            cut
            and not outputs & {v, *pieces}
            and all(u.move is Move.RESHAPE and u.shape == shape for u in shaped)
        )

    def piece(self, v: Value, args: list[Value]) -> Value | None:
        if v.args[0] not in self.packed:
            return None
        whole = args[0].shape
        at = v.params["slices"][0][0] // v.size
        slices = tuple((at, 1, 1) if i == 2 else (0, n, 1) for i, n in enumerate(whole))
        found = self.packed[v] = self.moved(Move.SLICE, args[0], slices=slices)
        return found

    def heads(self, v: Value, args: list[Value]) -> Value | None:
        """One of the three derivatives, as a view of all."""
        if v.args[0] not in self.packed:
            return None
        batch, tokens, _, heads, width = args[0].shape
        joined = self.moved(Move.RESHAPE, args[0], shape=(batch, tokens, heads, width))
        return self.moved(Move.PERMUTE, joined, axes=_HEADS_APART)

    # --- copies that become views ----------------------------------------------------------------

    def contiguous(self, v: Value, args: list[Value]) -> Value | None:
        """A copy of what is contiguous already; one that separates results has a generation of its
        own, and stays."""
        (x,) = args
        view = view_of(x)
        return x if is_whole(*view[1:]) and v.generation >= 0 else None

    def concat(self, v: Value, args: list[Value]) -> Value | None:
        """Slices of one value, concatenated in the order in which they lie, are that value."""
        views = [_looked_through(a) for a in args]
        first, axis = views[0], v.params["axis"]
        if first is None or first.base.size != v.size:
            return None
        at = first.offset
        for view, a in zip(views, args, strict=True):
            if view is None or view[:1] + view[2:] != (first.base, first.strides, at):
                return None
            at += a.shape[axis] * first.strides[axis]
        if not is_whole(v.shape, first.strides, first.offset) or Move.RESHAPE not in self.moves:
            return None
        return self.moved(Move.RESHAPE, first.base, shape=v.shape)


def _key(args: Sequence[Value], params: dict[str, Any]) -> Any:
    return (*(a.number for a in args), *params.items())


def _looked_through(v: Value) -> View | None:
    """A value as a view, ignoring copies between; None where strides cannot express it."""
    chain = []
    while v.kind == "movement" or v.facts.copies:
        chain.append(v)
        v = v.args[0]
    view: View | None = whole(v)
    for move in reversed(chain):
        if view is not None and move.move is not None:
            view = apply_move(view, move)
    return view


def rewritten(graph: Graph) -> Graph:
    """The same outputs, by ops of this backend where these are better; a new graph, which the fuser
    may change."""
    return AttentionRewriter(graph).run(graph)

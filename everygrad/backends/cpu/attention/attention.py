"""Attention and its derivative, compiled, without a matrix of queries by keys in memory.

A block computes one head (and, forward, a range of its queries): it packs the head's keys and
values, then processes the queries a tile at a time. The largest temporary is the scores of one tile
against all keys, which stay in the cache. The derivative recomputes them. Causal tiles end at the
diagonal.

    attention         args: out, q, k, v [, mask], scratch
    attention_grads   args: out, g, q, k, v [, mask], scratch

All operands are (batch, heads, rows, width) with stride 1 along the width; a mask is (batch, heads,
queries, keys), its other strides may be 0. `out` of the derivative is flat: dq, dk and dv in order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from everygrad.backends.cpu.attention.attention_tiles import (
    GROUP,
    LOG2E,
    MAX_ROWS,
    IRText,
    Softmax,
    TileModule,
    round_up,
)
from everygrad.backends.cpu.kernels import run_work
from everygrad.backends.cpu.kernels.half_conversions import converted, widened
from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work
from everygrad.backends.cpu.runtime.pool import empty
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of

SMALL = edge(__name__, "SMALL", 1 << 14, "products")  # multiply-adds below which NumPy is as fast
# elements of a packed matrix that fit the nearest cache beside the scores
NEAR = edge(__name__, "NEAR", 1 << 13, "elements")
# bytes; if blocks need more, each processes several heads
MAX_SCRATCH = edge(__name__, "MAX_SCRATCH", 1 << 26, "bytes")
MIN_BLOCKS = edge(__name__, "MIN_BLOCKS", 32, "count")
# the range of key counts in which tiles of twice as many queries reuse keys and values more
SEVERAL = edge(__name__, "SEVERAL", 256, "size")
MANY = edge(__name__, "MANY", 2048, "size")
PART = edge(__name__, "PART", 128, "size")  # queries from which packing a head's keys again pays


class _QueryTile:
    """A tile of `rows` queries from `start` on, rounded up to whole `groups` of a product."""

    def __init__(self, writer: _AttentionWriter, start: str, stop: str) -> None:
        code = writer.code
        self.start = start
        self.rows = code.least(code.sub(stop, start), writer.tile)
        self.groups = code.up(self.rows, writer.t.rows)
        self.padded = code.mul(self.groups, writer.t.rows)
        self.end = code.add(start, self.padded)


class _AttentionWriter:
    """Writes the parts that both kernels share: arguments, packing, and products of a tile."""

    def __init__(
        self, q: ArrayLayout, k: ArrayLayout, v: ArrayLayout, mask: ArrayLayout | None, causal: bool
    ) -> None:
        self.layouts = {"q": q, "k": k, "v": v}
        if mask is not None:
            self.layouts["mask"] = mask
        self.causal = causal
        self.t = TileModule(q.dtype)
        self.heads = q.shape[1]
        self.units = q.shape[0] * q.shape[1]
        self.queries, self.width = q.shape[2:]
        self.keys, self.depth = v.shape[2:]
        lanes = self.t.lanes
        self.width_row = round_up(self.width, lanes)
        self.depth_row = round_up(self.depth, lanes)
        self.all_keys = round_up(self.keys, lanes)
        # products may read beyond the last key, and rows a power of two apart share cache sets
        self.score_row = self.all_keys + self.t.slack
        # whole groups of rows for every product; more where keys and values fill the caches
        self.tile = (4 if SEVERAL < self.keys <= MANY else 2) * MAX_ROWS
        mask_row = None if mask is None else mask.strides[2]
        self.softmax = Softmax(self.t, self.queries, self.keys, self.score_row, causal, mask_row)
        # the step itself does little, and optimising it would take a third of the compile time
        attributes = f"optnone noinline {engine().attributes}"
        self.code = IRText(f"define void @step(i64 %lo, i64 %hi, ptr %args) {attributes}")
        self.given: dict[str, str] = {}
        self.slot = 0  # elements of scratch memory that a call of the step uses

    # --- memory ----------------------------------------------------------------------------------

    def load_arguments(self, names: list[str], sizes: list[int]) -> list[str]:
        """Loads the arguments; returns pointers to scratch buffers of these sizes.

        The buffers belong to the call's first block, so a thread that does many blocks in one call
        finds its memory in the cache.
        """
        code = self.code
        masks = ["mask"] if "mask" in self.layouts else []
        for i, name in enumerate([*names, *masks, "scratch"]):
            at = code.at("ptr", "%args", i)
            self.given[name] = code.let(f"load ptr, ptr {at}, align 8")
        begins = []
        for size in sizes:
            begins.append(self.slot)
            self.slot += round_up(size, 64)
        slot = code.at_row(self.t.type, self.given["scratch"], "%lo", self.slot)
        return [code.at(self.t.type, slot, begin) for begin in begins]

    @property
    def share(self) -> int:
        """How many units of work (heads, or parts of them) a block does."""
        most = max(MIN_BLOCKS, MAX_SCRATCH // (self.slot * self.t.size))
        return -(-self.units // most)

    def range(self) -> tuple[str, str]:
        """The units of this call's blocks."""
        stop = self.code.least(self.code.mul("%hi", self.share), self.units)
        return self.code.mul("%lo", self.share), stop

    def work(self) -> Work:
        blocks = -(-self.units // self.share)
        step = Step(self.t.module(self.code), blocks, False)
        return Work((step,), blocks * self.slot * self.t.size)

    def head(self, name: str, head: str) -> str:
        """The first element of a head of an argument."""
        code, x = self.code, self.layouts[name]
        batch = code.div(head, self.heads)
        inner = code.sub(head, code.mul(batch, self.heads))
        at = code.add(code.mul(batch, x.strides[0]), code.mul(inner, x.strides[1]))
        return code.at(self.t.type, self.given[name], code.add(at, x.offset))

    def mask_head(self, head: str) -> str:
        return self.head("mask", head) if "mask" in self.layouts else "null"

    # --- packing ---------------------------------------------------------------------------------

    def call(self, routine: str, *args: str | float) -> None:
        self.t.call(self.code, routine, *args)

    def pack_panels(self, name: str, head: str, to: str, count: str | int) -> None:
        """The first rows of a head, transposed."""
        x = self.layouts[name]
        routine = self.t.transpose(self.keys, x.shape[3], x.strides[2])
        self.call(routine, self.head(name, head), to, count)

    def pack_rows(self, name: str, head: str, to: str, count: str | int) -> None:
        """The first rows of a head."""
        x = self.layouts[name]
        row = round_up(x.shape[3], self.t.lanes)
        routine = self.t.copy(x.shape[3], x.strides[2], row, True)
        self.call(routine, self.head(name, head), to, count, count, 1.0)

    def pack_tile(self, name: str, head: str, to: str, tile: _QueryTile, scale: float) -> None:
        """A tile's rows of a head, followed by zeros."""
        x = self.layouts[name]
        row = round_up(x.shape[3], self.t.lanes)
        routine = self.t.copy(x.shape[3], x.strides[2], row, True)
        start = self.code.at_row(self.t.type, head, tile.start, x.strides[2])
        self.call(routine, start, to, tile.rows, tile.padded, scale)

    # --- products --------------------------------------------------------------------------------

    def keys_until(self, row: str) -> str:
        """How many keys the queries before `row` may attend to."""
        return self.code.least(row, self.keys) if self.causal else str(self.keys)

    def panels_until(self, row: str) -> str:
        """How many panels hold them."""
        return self.code.up(self.keys_until(row), self.t.panel)

    def scores(
        self, a: str, a_row: int, panels: str, width: int, to: str, tile: _QueryTile
    ) -> None:
        """The products of a tile's rows with all keys (or values), packed as panels."""
        code, t = self.code, self.t
        count = self.panels_until(tile.end)
        full = self.all_keys // t.panel
        rest = (self.all_keys - full * t.panel) // t.lanes
        parts: list[tuple[str | int, str | int, int]] = [(0, code.least(count, full), 3)]
        parts += [(full, count, rest)] if rest else []
        for start, stop, vectors in parts:
            routine = t.product(t.rows, vectors, (a_row, 1), t.panel, self.score_row)
            with code.loop(start, stop) as panel:
                column = code.mul(panel.i, t.panel)
                b = code.at_row(t.type, panels, panel.i, t.panel * width)
                c = code.at(t.type, to, column)
                first: str | int = 0
                if self.causal:  # row groups that end before this panel begins
                    first = code.div(code.most(code.sub(column, tile.start), 0), t.rows)
                with code.loop(first, tile.groups) as group:
                    from_ = code.at_row(t.type, a, group.i, t.rows * a_row)
                    to_ = code.at_row(t.type, c, group.i, t.rows * self.score_row)
                    self.call(routine, from_, b, to_, width)

    def call_softmax(
        self, scores: str, extra: str, mask: str, tile: _QueryTile, grads: bool
    ) -> None:
        """Calls Softmax.routine on a tile's scores."""
        code, t = self.code, self.t
        routine = self.softmax.routine(grads)
        with code.loop(0, tile.padded, GROUP) as row:
            self.call(
                routine,
                code.at_row(t.type, scores, row.i, self.score_row),
                code.at_row(t.type, extra, row.i, self.score_row if grads else 1),
                mask,
                code.add(tile.start, row.i),
            )

    def scores_matmul(self, a: str, b: str, row: int, to: str, tile: _QueryTile) -> None:
        """Scores times packed rows (keys or values), summed over the keys."""
        code, t = self.code, self.t
        # if the rows overflow the nearest cache: a piece of the keys at a time, for all queries
        piece = self.keys if self.keys * row <= 2 * NEAR else round_up(NEAR // row, t.lanes)
        several = piece < self.keys
        if several:
            self.call(t.clear(), to, self.tile * row)
        with code.loop(0, self.keys_until(tile.end), piece) as key:
            below = code.at_row(t.type, b, key.i, row)
            beside = code.at(t.type, a, key.i)
            for at, vectors in self.columns(row):
                rows = t.rows_for(vectors)
                routine = t.product(rows, vectors, (self.score_row, 1), row, row, several)
                with code.loop(0, tile.rows, rows) as first:
                    last = code.add(code.add(tile.start, first.i), rows)
                    count = code.least(code.sub(self.keys_until(last), key.i), piece)
                    here = code.at_row(t.type, beside, first.i, self.score_row)
                    there = code.at(t.type, code.at_row(t.type, to, first.i, row), at)
                    self.call(routine, here, code.at(t.type, below, at), there, count)

    def scores_t_matmul(self, a: str, b: str, row: int, to: str, tile: _QueryTile) -> None:
        """Accumulates scores^T times the tile's packed rows, one row for each key."""
        code, t = self.code, self.t
        for at, vectors in self.columns(row):
            rows = t.rows_for(vectors)
            routine = t.product(rows, vectors, (1, self.score_row), row, row, True)
            with code.loop(0, self.keys_until(tile.end), rows) as key:
                first = code.most(code.sub(key.i, tile.start), 0) if self.causal else "0"
                here = code.at(t.type, code.at_row(t.type, a, first, self.score_row), key.i)
                beside = code.at(t.type, code.at_row(t.type, b, first, row), at)
                there = code.at(t.type, code.at_row(t.type, to, key.i, row), at)
                self.call(routine, here, beside, there, code.sub(tile.padded, first))

    def scores_t_rows(self, row: int) -> int:
        """How many rows `scores_t_matmul` writes: whole products, so more than there are keys."""
        each = (self.t.rows_for(vectors) for _, vectors in self.columns(row))
        return max((round_up(self.keys, rows) for rows in each), default=0)

    def columns(self, row: int) -> list[tuple[int, int]]:
        """A row split for products into (first element, vectors), up to 4 vectors each."""
        count = row // self.t.lanes
        pieces = max(1, -(-count // 4))
        ends = [count * i // pieces for i in range(pieces + 1)]
        return [(a * self.t.lanes, b - a) for a, b in pairwise(ends) if a < b]


@lru_cache(maxsize=256)
def attention(
    q: ArrayLayout,
    k: ArrayLayout,
    v: ArrayLayout,
    out: ArrayLayout,
    scale: float,
    causal: bool,
    mask: ArrayLayout | None = None,
) -> Work:
    """softmax(q k^T * scale + mask) v; with `causal`, query i attends to keys 0 to i."""
    p = _AttentionWriter(q, k, v, mask, causal)
    p.layouts["out"] = out
    t, code = p.t, p.code
    # with few heads, several blocks share a head, though each packs the head's keys again
    parts = min(-(-MIN_BLOCKS // p.units), max(1, p.queries // PART))
    part = round_up(-(-p.queries // parts), p.tile)
    parts = -(-p.queries // part)
    p.units *= parts
    sizes = [
        round_up(p.keys, t.panel) * p.width,
        p.keys * p.depth_row,
        p.tile * p.width_row,
        p.tile * p.score_row,
        p.tile * p.depth_row,
        p.tile,
    ]
    panels, values, queries, scores, scores_matmul, weights = p.load_arguments(
        ["out", "q", "k", "v"], sizes
    )
    with code.loop(*p.range()) as unit:
        head = code.div(unit.i, parts)
        begin = code.mul(code.sub(unit.i, code.mul(head, parts)), part)
        end = code.least(code.add(begin, part), p.queries)
        padded = code.mul(code.up(end, p.tile), p.tile)
        wanted = code.least(code.mul(p.panels_until(padded), t.panel), p.all_keys)
        p.pack_panels("k", head, panels, wanted)
        p.pack_rows("v", head, values, p.keys_until(padded))
        q_head, out_head, mask_head = p.head("q", head), p.head("out", head), p.mask_head(head)
        with code.loop(begin, end, p.tile) as loop:
            tile = _QueryTile(p, loop.i, end)
            p.pack_tile("q", q_head, queries, tile, scale * LOG2E)
            p.scores(queries, p.width_row, panels, p.width, scores, tile)
            p.call_softmax(scores, weights, mask_head, tile, False)
            p.scores_matmul(scores, values, p.depth_row, scores_matmul, tile)
            to = code.at_row(t.type, out_head, loop.i, out.strides[2])
            scaled_rows = t.scaled_rows(p.depth, p.depth_row, out.strides[2])
            p.call(scaled_rows, scores_matmul, to, weights, tile.rows)
    return p.work()


@lru_cache(maxsize=256)
def attention_grads(
    g: ArrayLayout,
    q: ArrayLayout,
    k: ArrayLayout,
    v: ArrayLayout,
    out: ArrayLayout,
    scale: float,
    causal: bool,
    mask: ArrayLayout | None = None,
) -> Work:
    """The derivative of <g, attention(q, k, v)> by q, k and v, one after the other in `out`."""
    p = _AttentionWriter(q, k, v, mask, causal)
    p.layouts["g"] = g
    t, code = p.t, p.code
    width, depth = p.width_row, p.depth_row
    rows = max(p.scores_t_rows(width), p.scores_t_rows(depth))
    panels = round_up(p.keys, t.panel)
    sizes = [panels * p.width, panels * p.depth, p.keys * width, p.tile * width, p.tile * depth]
    sizes += [p.tile * p.score_row] * 2 + [p.tile * width, rows * width, rows * depth]
    k_panels, v_panels, k_rows, q_tile, g_tile, probs, slopes, dq, dk, dv = p.load_arguments(
        ["out", "g", "q", "k", "v"], sizes
    )
    queries, keys = p.units * p.queries * p.width, p.units * p.keys * p.width
    dq_all = code.at(t.type, p.given["out"], out.offset)
    dk_all, dv_all = (code.at(t.type, dq_all, n) for n in (queries, queries + keys))
    with code.loop(*p.range()) as unit:
        head = unit.i
        p.pack_panels("k", head, k_panels, p.keys)
        p.pack_panels("v", head, v_panels, p.keys)
        p.pack_rows("k", head, k_rows, p.keys)
        p.call(t.clear(), dk, rows * width)
        p.call(t.clear(), dv, rows * depth)
        q_head, g_head, mask_head = p.head("q", head), p.head("g", head), p.mask_head(head)
        dq_head = code.at_row(t.type, dq_all, head, p.queries * p.width)
        with code.loop(0, p.queries, p.tile) as loop:
            tile = _QueryTile(p, loop.i, str(p.queries))
            p.pack_tile("q", q_head, q_tile, tile, scale * LOG2E)
            p.pack_tile("g", g_head, g_tile, tile, 1.0)
            p.scores(q_tile, width, k_panels, p.width, probs, tile)
            p.scores(g_tile, depth, v_panels, p.depth, slopes, tile)
            p.call_softmax(probs, slopes, mask_head, tile, True)
            p.scores_t_matmul(probs, g_tile, depth, dv, tile)
            p.scores_t_matmul(slopes, q_tile, width, dk, tile)
            p.scores_matmul(slopes, k_rows, width, dq, tile)
            to = code.at_row(t.type, dq_head, loop.i, p.width)
            p.call(
                t.copy(p.width, width, p.width, False), dq, to, tile.rows, tile.rows, float(scale)
            )
        to = code.at_row(t.type, dk_all, head, p.keys * p.width)
        # the queries were scaled by scale * log2(e)
        p.call(t.copy(p.width, width, p.width, False), dk, to, p.keys, p.keys, 1 / LOG2E)
        to = code.at_row(t.type, dv_all, head, p.keys * p.depth)
        p.call(t.copy(p.depth, depth, p.depth, False), dv, to, p.keys, p.keys, 1.0)
    return p.work()


# --- on arrays ------------------------------------------------------------------------------------


def _as_four_axes(x: Any) -> Any:
    """(*batch, rows, width) as (batch, heads, rows, width), stride 1 along the width."""
    x = widened(x)
    lead = x.shape[:-2]
    x = x.reshape(size_of(lead[:-1]), lead[-1] if lead else 1, *x.shape[-2:])
    size = x.itemsize
    plain = x.flags.aligned and (x.shape[-1] == 1 or x.strides[-1] == size)
    return x if plain and not any(s % size for s in x.strides) else np.ascontiguousarray(x)


def _layout(x: Any) -> ArrayLayout:
    """The layout of an array, with stride 0 along axes of one element, so that it can be a key."""
    found = run_work.layout_of(x)
    pairs = zip(found.shape, found.strides, strict=True)
    return found._replace(strides=tuple(0 if n == 1 else s for n, s in pairs))


def _whole_mask(mask: Any, q: Any, k: Any) -> Any:
    """The mask broadcast to every (query, key) pair, by strides of 0 where possible."""
    keys = k.shape[-2]
    mask = np.broadcast_to(mask, (*mask.shape[:-1], keys))
    if mask.strides[-1] != mask.itemsize:
        mask = np.ascontiguousarray(mask)
    return np.broadcast_to(mask, (*q.shape[:-1], keys))


def _is_small(q: Any, k: Any, v: Any) -> bool:
    return bool(q.size * k.shape[-2] + v.size * q.shape[-2] < SMALL)


def _probabilities(q: Any, k: Any, mask: Any, scale: float, causal: bool) -> Any:
    scores = np.matmul(q * q.dtype.type(scale), k.swapaxes(-1, -2))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask == -np.inf, -np.inf, scores + mask)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top)).astype(q.dtype, copy=False)
    total = e.sum(axis=-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _widened(*arrays: Any) -> list[Any]:
    return [a if a is None else widened(a) for a in arrays]


def run_attention(
    q: Any, k: Any, v: Any, mask: Any = None, *, scale: float, causal: bool = False
) -> Any:
    """The op on arrays; a mask has as many axes as q."""
    dtype, shape = q.dtype, (*q.shape[:-1], v.shape[-1])
    if _is_small(q, k, v):
        q, k, v, mask = _widened(q, k, v, mask)
        out = np.matmul(_probabilities(q, k, mask, scale, causal), v)
        return converted(out, dtype)
    masks = [] if mask is None else [_as_four_axes(_whole_mask(mask, q, k))]
    q, k, v = _as_four_axes(q), _as_four_axes(k), _as_four_axes(v)
    (batch, heads, rows, _), width = q.shape, v.shape[-1]
    if abs(q.strides[1]) < abs(q.strides[2]) and heads > 1:  # as a projection lays it out
        out = empty((batch, rows, heads, width), q.dtype).transpose(0, 2, 1, 3)
    else:
        out = empty((batch, heads, rows, width), q.dtype)
    given = [q, k, v, *masks]
    layouts = [_layout(x) for x in given]
    work = attention(*layouts[:3], _layout(out), scale, causal, *layouts[3:])
    run_work.run(work, [out], given)
    return converted(out.reshape(shape), dtype)


def run_grads(
    g: Any, q: Any, k: Any, v: Any, mask: Any = None, *, scale: float, causal: bool = False
) -> Any:
    """The derivative on arrays: dq, dk and dv one after the other, flat."""
    dtype = q.dtype
    if _is_small(q, k, v):
        g, q, k, v, mask = _widened(g, q, k, v, mask)
        p = _probabilities(q, k, mask, scale, causal)
        dv = np.matmul(p.swapaxes(-1, -2), g)
        dp = np.matmul(g, v.swapaxes(-1, -2))
        ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True)) * q.dtype.type(scale)
        dq, dk = np.matmul(ds, k), np.matmul(ds.swapaxes(-1, -2), q)
        flat = np.concatenate([dq.reshape(-1), dk.reshape(-1), dv.reshape(-1)])
        return converted(flat, dtype)
    masks = [] if mask is None else [_as_four_axes(_whole_mask(mask, q, k))]
    given = [*(_as_four_axes(x) for x in (g, q, k, v)), *masks]
    out = empty((q.size + k.size + v.size,), given[0].dtype)
    layouts = [_layout(x) for x in given]
    work = attention_grads(*layouts[:4], _layout(out), scale, causal, *layouts[4:])
    run_work.run(work, [out], given)
    return converted(out, dtype)


KERNELS: dict[str, Callable[..., Any]] = {
    "attention": run_attention,
    "attention_masked": run_attention,
    "attention_grads": run_grads,
    "attention_masked_grads": run_grads,
}

"""Scans: each element combined with all before it along an axis, on every device.

An array is seen as (outer, n, inner). On a processor's core a group scans a few rows at once, to
hide the latency of additions, or a stretch of the elements behind the axis, with their states in
scratch memory, so that the loop over them can be vectorised. On a GPU a thread scans one lane, or,
along the last axis, the threads of a group scan tiles of a row together. Where there are too few
lanes to keep a GPU busy the axis is cut into chunks: their totals are scanned first, and carried
into the chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from everygrad import dtypes
from everygrad.codegen.kernel import Buffer, Builder, Kernel, registers_in, where
from everygrad.codegen.machine import Machine
from everygrad.codegen.passes import optimised
from everygrad.codegen.verify import verify
from everygrad.compiler.expr import Expr, call
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType
from everygrad.errors import ArgumentError

# elements behind the axis that a core's group scans
_STRETCH = edge(__name__, "_STRETCH", 512, "size")
# elements of a core's group, at least
_LEAST = edge(__name__, "_LEAST", 1 << 12, "elements")
# elements along the last axis up to which a GPU's thread scans a row by itself
_SHORT = edge(__name__, "_SHORT", 64, "size")
# neighbouring elements of a thread in a tile
_EACH = edge(__name__, "_EACH", 4, "size")
# elements of a chunk, at least: of a lane, and in tiles of a row
_LANE_CHUNK = edge(__name__, "_LANE_CHUNK", 32, "size")
_ROW_CHUNK_TILES = 4

OPS = ("cumulative_sum", "cumulative_prod", "cummax_index", "cummin_index", "recurrence",
       "logcumsumexp")  # fmt: skip
State = list[Expr]


class Rule(NamedTuple):
    """What is kept of the elements so far, and how; `combine` takes earlier elements first.
    `begin` makes a state of a first element, where that differs from `enter`."""

    inputs: tuple[DType, ...]
    state: tuple[DType, ...]
    out: tuple[DType, ...]
    enter: Callable[[Sequence[Expr], Expr], State]  # (elements, index along the axis)
    combine: Callable[[State, State], State]
    finish: Callable[[State], State]
    begin: Callable[[State], State] = list

    def live(self) -> tuple[int, ...]:
        """The numbers of the state that results are made of, when elements come one by one."""
        before = Expr.inputs(len(self.state))
        here = [Expr("input", (), len(before) + k) for k in range(len(before))]
        made = self.combine(before, here)
        found = {r for e in self.finish(before) for r in registers_in(e)}
        while True:
            more = {r for k in found for r in registers_in(made[k]) if r < len(before)}
            if more <= found:
                return tuple(sorted(found))
            found |= more


def _better(sign: str, dtype: DType) -> Callable[[State, State], State]:
    """As good or better comes later; a NaN always is, and after a NaN only another NaN is."""

    def combine(before: State, here: State) -> State:
        (x, i), (y, j) = before, here
        later = call(sign, y, x)
        later = call("or", later, call("isnan", y)) if dtype.is_float else later
        return [where(later, y, x), where(later, j, i)]

    return combine


def _log_of_sum(before: State, here: State) -> State:
    """log(exp(x) + exp(y)) without overflow; of nothing, -inf, it is -inf."""
    (x,), (y,) = before, here
    top = call("max", x, y)
    finite = where(call("isinf", top), 0.0, top)
    total = call("exp", x - finite) + call("exp", y - finite)
    return [call("log", total) + finite]


def _from_zero(x: Expr, dtype: DType) -> Expr:
    """0.0 + x, as sums begin (`compiler.accumulate`): drivers may take the addition for x."""
    return where(call("eq", x, 0.0), 0.0, x) if dtype.is_float else x


def rule_of(op: str, dtype: DType, machine: Machine) -> Rule:
    """How the op of this name combines elements of this dtype."""
    wide, own = machine.accumulator(dtype), machine.comparable(dtype)

    def last(state: State) -> State:
        return [state[-1].cast(dtype)]

    def plain(x: Sequence[Expr], at: Expr) -> State:
        return [x[0].cast(wide)]

    if op == "cumulative_sum":
        return Rule(
            (dtype,), (wide,), (dtype,), plain, lambda a, b: [a[0] + b[0]], last,
            lambda state: [_from_zero(state[0], wide)],
        )  # fmt: skip
    if op == "cumulative_prod":
        return Rule((dtype,), (wide,), (dtype,), plain, lambda a, b: [a[0] * b[0]], last)
    if op == "logcumsumexp":
        return Rule((dtype,), (wide,), (dtype,), plain, _log_of_sum, last)
    if op == "recurrence":  # y = b + a y: of two maps, the one that does both
        return Rule(
            (dtype, dtype), (wide, wide), (dtype,), lambda x, at: [v.cast(wide) for v in x],
            lambda f, g: [g[0] * f[0], g[1] + g[0] * f[1]], last,
        )  # fmt: skip
    if op in ("cummax_index", "cummin_index"):
        sign = "ge" if op == "cummax_index" else "le"
        return Rule(
            (dtype,), (own, dtypes.int64), (dtypes.int64,),
            lambda x, at: [x[0].cast(own), at.cast(dtypes.int64)],
            _better(sign, own), lambda state: [state[1]],
        )  # fmt: skip
    raise ArgumentError(f"{op}: no rule of a scan has this name")


def of_totals(rule: Rule) -> Rule:
    """The scan of states that were combined before."""
    return Rule(
        rule.state, rule.state, rule.state, lambda x, at: list(x), rule.combine, lambda s: s
    )


class Launch(NamedTuple):
    """A kernel, and which arrays are its arguments: of inputs, outputs, then temporaries."""

    kernel: Kernel
    arrays: tuple[int, ...]


class ScanPlan(NamedTuple):
    """Kernels in order; `temporaries` are arrays that they hand to each other."""

    launches: tuple[Launch, ...]
    temporaries: tuple[tuple[DType, int], ...]


class _Shape(NamedTuple):
    outer: int
    n: int
    inner: int
    chunks: int = 1

    @property
    def size(self) -> int:
        return self.outer * self.n * self.inner

    @property
    def length(self) -> int:
        """Elements of a chunk."""
        return -(-self.n // self.chunks)

    @property
    def totals(self) -> int:
        return self.outer * self.chunks * self.inner


class _Writer:
    """Writes one kernel. `carried`: there are totals of all chunks before each; `totals`: only the
    last state of every chunk is stored."""

    def __init__(
        self, name: str, rule: Rule, shape: _Shape, machine: Machine, reverse: bool,
        groups: int, totals: bool = False, carried: bool = False,
    ) -> None:  # fmt: skip
        self.rule, self.shape, self.machine, self.reverse = rule, shape, machine, reverse
        self.totals, self.carried = totals, carried
        threads = machine.threads
        b = self.b = Builder(name, machine.index_for(shape.size, groups * threads), groups, threads)
        self.x = [b.buffer(f"x{k}", d, shape.size) for k, d in enumerate(rule.inputs)]
        kept = shape.totals
        self.before: list[Buffer] = []
        if carried:
            self.before = [b.buffer(f"before{k}", d, kept) for k, d in enumerate(rule.state)]
        kinds, size = (rule.state, kept) if totals else (rule.out, shape.size)
        self.out = [b.buffer(f"out{k}", d, size, written=True) for k, d in enumerate(kinds)]
        self.n, self.length = b.symbol(shape.n), b.symbol(shape.length)
        self.inner: Expr | int = 1 if shape.inner == 1 else b.symbol(shape.inner)
        self.live = tuple(range(len(rule.state))) if totals else rule.live()

    def position(self, at: Expr) -> Expr:
        """The index along the axis of the element that is scanned as number `at`."""
        return (self.n - 1) - at if self.reverse else at

    def entered(self, base: Expr, at: Expr, guard: Expr | None = None) -> State:
        """The state of one element; `base` is that of its lane."""
        position = self.b.let(self.position(at)) if self.reverse else at
        place = base + position * self.inner
        given = [self.b.load(x, place, guard) for x in self.x]
        return self.rule.enter(given, position)

    def started(self, base: Expr, at: Expr) -> State:
        """The state of a first element."""
        return self.rule.begin(self.entered(base, at))

    def lets(self, state: State) -> State:
        """The numbers that are needed, in registers; the others as they are, unused."""
        kinds = self.rule.state
        return [self.b.let(v, kinds[k]) if k in self.live else v for k, v in enumerate(state)]

    def variables(self, state: State) -> State:
        kinds = self.rule.state
        return [self.b.variable(v, kinds[k]) if k in self.live else v for k, v in enumerate(state)]

    def assign(self, variables: State, state: State) -> None:
        """All at once: what is assigned may read all of the variables."""
        made = self.lets(state)
        for k in self.live:
            self.b.assign(variables[k], made[k])

    def store(self, base: Expr, at: Expr, state: State, guard: Expr | None = None) -> None:
        if self.totals:
            return
        place = base + self.position(at) * self.inner
        for out, value in zip(self.out, self.rule.finish(state), strict=True):
            self.b.store(out, place, value, guard)

    def finish(self) -> Kernel:
        return optimised(verify(self.b.finish()))

    # --- on a core -------------------------------------------------------------------------------

    def rows(self, each: int) -> Kernel:
        """Groups of `each` bundles of rows, scanned at once; the last rows one by one."""
        b, s = self.b, self.shape
        many = min(self.machine.in_flight, s.outer)
        bundles = s.outer // many
        start = b.let(b.group * each)
        stop = b.let(call("min", start + each, bundles))
        with b.loop(start, stop) as bundle:
            self.row_bundle(b.let(bundle * many), many)
        rest = s.outer - bundles * many
        if rest:
            with b.when(call("eq", stop, bundles)), b.loop(bundles * many, s.outer) as row:
                self.row_bundle(row, 1)
        return self.finish()

    def row_bundle(self, first: Expr, many: int) -> None:
        b = self.b
        zero = b.let(0)
        bases = [b.let((first + k) * self.n) for k in range(many)]
        states = [self.variables(self.started(base, zero)) for base in bases]
        for base, state in zip(bases, states, strict=True):
            self.store(base, zero, state)
        with b.loop(1, self.n) as at:
            for base, state in zip(bases, states, strict=True):
                self.assign(state, self.rule.combine(state, self.entered(base, at)))
                self.store(base, at, state)

    def stretches(self) -> Kernel:
        """Groups of `_STRETCH` elements behind the axis."""
        b, s = self.b, self.shape
        width = min(_STRETCH, s.inner)
        many = -(-s.inner // width)
        kinds = self.rule.state
        held = {k: b.local(f"state{k}", kinds[k], width, "scratch") for k in self.live}
        outer, piece = b.let(b.group // many), b.let(b.group % many)
        start = b.let(piece * width)
        count = b.let(call("min", s.inner - start, width))
        base = b.let(outer * (self.n * self.inner))
        with b.loop(0, count, parallel=True) as column:
            self.column(held, base, start, column, b.let(0), first=True)
        with b.loop(1, self.n) as at, b.loop(0, count, parallel=True) as column:
            self.column(held, base, start, column, at)
        return self.finish()

    def column(
        self, held: dict[int, Buffer], base: Expr, start: Expr, column: Expr, at: Expr,
        first: bool = False,
    ) -> None:  # fmt: skip
        b = self.b
        place = b.let(start + column)
        position = b.let(self.position(at))
        lane = base + place
        given = [b.load(x, lane + position * self.inner) for x in self.x]
        state = self.rule.enter(given, position)
        if first:
            state = self.rule.begin(state)
        else:
            dead = Expr("const", (), 0)
            before = [b.load(held[k], column) if k in held else dead for k in range(len(state))]
            state = self.rule.combine(before, state)
        state = self.lets(state)
        for k, h in held.items():
            b.store(h, column, state[k])
        self.store(lane, at, state)

    # --- on a GPU --------------------------------------------------------------------------------

    def lanes(self) -> Kernel:
        """A thread for each lane of each chunk."""
        b, s = self.b, self.shape
        lane = b.let(b.group * b.threads + b.thread)
        with b.when(call("lt", lane, b.symbol(s.totals))):
            x, above = b.let(lane % self.inner), b.let(lane // self.inner)
            chunk, outer = b.let(above % s.chunks), b.let(above // s.chunks)
            base = b.let(outer * (self.n * self.inner) + x)
            start = b.let(chunk * self.length)
            stop = b.let(call("min", start + self.length, self.n))
            state = self.variables(self.started(base, start))
            if self.carried:
                with b.when(call("gt", above, 0)), b.when(call("gt", chunk, 0)):
                    at = (above - 1) * self.inner + x
                    self.assign(
                        state, self.rule.combine([b.load(v, at) for v in self.before], state)
                    )
            self.store(base, start, state)
            with b.loop(start + 1, stop) as at:
                self.assign(state, self.rule.combine(state, self.entered(base, at)))
                self.store(base, at, state)
            if self.totals:
                for out, value in zip(self.out, state, strict=True):
                    b.store(out, lane, value)
        return self.finish()

    def tiles(self) -> Kernel:
        """A group for each chunk of each row: its threads scan tiles, one after the other."""
        b, s, rule = self.b, self.shape, self.rule
        tile = b.threads * _EACH
        # of each thread, and behind them of the last one that has elements
        shared = [b.local(f"shared{k}", d, b.threads + 1) for k, d in enumerate(rule.state)]
        outer, chunk = b.let(b.group // s.chunks), b.let(b.group % s.chunks)
        base = b.let(outer * self.n)
        start = b.let(chunk * self.length)
        stop = b.let(call("min", start + self.length, self.n))
        self.live = tuple(range(len(rule.state)))  # totals of threads are combined
        zeros = [Expr("const", (), 0).cast(d) for d in rule.state]
        carry = self.variables(zeros)
        if self.carried:
            with b.when(call("gt", b.group, 0)), b.when(call("gt", chunk, 0)):
                self.assign(carry, [b.load(v, b.group - 1) for v in self.before])
        with b.loop(start, stop, tile) as first:
            own = b.let(first + b.thread * _EACH)
            states, places, inside = self.thread_states(base, own, stop)
            total = self.variables(states[-1])
            self.scan_shared(shared, total)
            ends = call("or", call("le", stop, own + _EACH), call("eq", b.thread, b.threads - 1))
            with b.when(call("and", inside[0], ends)):
                for place, value in zip(shared, total, strict=True):
                    b.store(place, b.threads, value)
            b.barrier()
            earlier = self.variables(zeros)
            with b.when(call("gt", b.thread, 0)):
                self.assign(earlier, [b.load(v, b.thread - 1) for v in shared])
            there = call("gt", first, start)
            if self.carried:
                there = call("or", there, call("gt", chunk, 0))
            follows = b.let(there, dtypes.bool_)
            begun = b.let(call("or", follows, call("gt", b.thread, 0)), dtypes.bool_)
            both = rule.combine(carry, earlier)
            joined = [
                where(call("gt", b.thread, 0), where(follows, c, e), h)
                for c, e, h in zip(both, earlier, carry, strict=True)
            ]
            lead = self.lets(joined)
            for j, state in enumerate(states):
                made = rule.combine(lead, state)
                whole = [where(begun, m, v) for m, v in zip(made, state, strict=True)]
                self.store(base, places[j], self.lets(whole), inside[j])
            end = [b.load(v, b.threads) for v in shared]
            after = rule.combine(carry, end)
            self.assign(carry, [where(follows, a, e) for a, e in zip(after, end, strict=True)])
            b.barrier()
        if self.totals:
            with b.when(call("eq", b.thread, 0)):
                for out, value in zip(self.out, carry, strict=True):
                    b.store(out, b.group, value)
        return self.finish()

    def thread_states(
        self, base: Expr, own: Expr, stop: Expr
    ) -> tuple[list[State], list[Expr], list[Expr]]:
        """The states of a thread's own elements, each combined with those before it, where they
        are, and whether there is such an element."""
        b, rule = self.b, self.rule
        states: list[State] = []
        places: list[Expr] = []
        inside: list[Expr] = []
        for j in range(_EACH):
            at = b.let(own + j)
            here = call("lt", at, stop)
            if self.reverse:  # an index below 0 would wrap around
                at = b.let(call("min", at, self.n - 1))
            state = self.entered(base, at, here)
            if states:
                made = rule.combine(states[-1], state)
                state = [where(here, m, v) for m, v in zip(made, states[-1], strict=True)]
            else:
                state = rule.begin(state)
            states.append(self.lets(state))
            places.append(at)
            inside.append(here)
        return states, places, inside

    def scan_shared(self, shared: list[Buffer], total: State) -> None:
        """After the step of width w each thread's total stands for its own and 2 w - 1 before."""
        b, rule = self.b, self.rule
        step = 1
        for place, value in zip(shared, total, strict=True):
            b.store(place, b.thread, value)
        b.barrier()
        while step < b.threads:
            with b.when(call("ge", b.thread, step)):
                before = [b.load(v, b.thread - step) for v in shared]
                self.assign(total, rule.combine(before, total))
            b.barrier()
            for place, value in zip(shared, total, strict=True):
                b.store(place, b.thread, value)
            b.barrier()
            step *= 2


def _on_core(name: str, rule: Rule, shape: _Shape, machine: Machine, reverse: bool) -> Kernel:
    if shape.inner > 1:
        groups = shape.outer * -(-shape.inner // min(_STRETCH, shape.inner))
        return _Writer(name, rule, shape, machine, reverse, groups).stretches()
    many = min(machine.in_flight, shape.outer)
    bundles = shape.outer // many
    each = max(1, _LEAST // (many * shape.n))
    return _Writer(name, rule, shape, machine, reverse, -(-bundles // each)).rows(each)


def _chunks(shape: _Shape, machine: Machine, in_tiles: bool) -> int:
    """Into how many chunks the axis is cut, so that there is work for the whole device."""
    if in_tiles:
        wanted = machine.parallel // machine.threads
        least = _ROW_CHUNK_TILES * machine.threads * _EACH
    else:
        wanted, least = machine.parallel, _LANE_CHUNK
    lanes = shape.outer * shape.inner
    chunks = min(-(-wanted // lanes), shape.n // least)
    if chunks < 2:
        return 1
    length = -(-shape.n // chunks)
    if in_tiles:  # whole tiles, so that only the last chunk has a tile that is not full
        tile = machine.threads * _EACH
        length = -(-length // tile) * tile
    return -(-shape.n // length)


class _Planner:
    """The kernels of one scan on a GPU; arrays are numbered as they are made."""

    def __init__(self, name: str, machine: Machine, arrays: int) -> None:
        self.name, self.machine = name, machine
        self.count = arrays
        self.launches: list[Launch] = []
        self.temporaries: list[tuple[DType, int]] = []

    def temporary(self, dtype: DType, size: int) -> int:
        self.temporaries.append((dtype, size))
        self.count += 1
        return self.count - 1

    def scan(
        self, rule: Rule, shape: _Shape, reverse: bool, given: Sequence[int], out: Sequence[int]
    ) -> None:
        in_tiles = shape.inner == 1 and shape.n > _SHORT
        whole = shape._replace(chunks=_chunks(shape, self.machine, in_tiles))
        if whole.chunks == 1:
            self.launch(rule, whole, reverse, in_tiles, given, (), out)
            return
        totals = [self.temporary(d, whole.totals) for d in rule.state]
        before = [self.temporary(d, whole.totals) for d in rule.state]
        self.launch(rule, whole, reverse, in_tiles, given, (), totals, totals=True)
        above = _Shape(shape.outer, whole.chunks, shape.inner)
        self.scan(of_totals(rule), above, False, totals, before)
        self.launch(rule, whole, reverse, in_tiles, given, before, out)

    def launch(
        self, rule: Rule, shape: _Shape, reverse: bool, in_tiles: bool, given: Sequence[int],
        before: Sequence[int], out: Sequence[int], totals: bool = False,
    ) -> None:  # fmt: skip
        threads = self.machine.threads
        groups = shape.totals if in_tiles else -(-shape.totals // threads)
        writer = _Writer(
            self.name, rule, shape, self.machine, reverse, groups, totals, bool(before)
        )
        kernel = writer.tiles() if in_tiles else writer.lanes()
        self.launches.append(Launch(kernel, (*given, *before, *out)))


def serves(dtype: DType) -> bool:
    """Whether there are kernels for this dtype."""
    return not dtype.is_complex and dtype is not dtypes.bool_


def result_dtype(op: str, dtype: DType) -> DType:
    return dtypes.int64 if op.endswith("_index") else dtype


def plan(
    op: str, dtype: DType, shape: Sequence[int], axis: int, machine: Machine, reverse: bool = False
) -> ScanPlan:
    """The kernels of a scan over a contiguous array that is not empty."""
    rule = rule_of(op, dtype, machine)
    seen = _Shape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
    given, out = tuple(range(len(rule.inputs))), (len(rule.inputs),)
    if machine.threads == 1:
        kernel = _on_core(op, rule, seen, machine, reverse)
        return ScanPlan((Launch(kernel, (*given, *out)),), ())
    planner = _Planner(op, machine, len(given) + len(out))
    planner.scan(rule, seen, reverse, given, out)
    return ScanPlan(tuple(planner.launches), tuple(planner.temporaries))

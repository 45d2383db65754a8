"""Every public op beside PyTorch on the CPU, eager and compiled: python -m benchmarks.sweep.

Each op is called on large arrays, forward, and forward and backward where it has a derivative.
What is called how is `benchmarks.sweep.calls`; an op that has no line there and needs one is named
at the end. The table is sorted by the worst of an op's ratios, ours over PyTorch's. With `--cpu`
seconds are the processor's, of all our threads and of PyTorch on one: what a busy machine can tell.
`--more` times what is no op by itself instead: see `benchmarks.sweep.more`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

import everygrad as eg
from benchmarks.sweep.calls import CALLS, THEIRS, UNTIMED, Call, F, I, Spec, arguments, is_spec
from benchmarks.sweep.more import Pair, pairs, tensors
from everygrad import ops
from everygrad.ops.record.spec import REGISTRY, Op

THREADS = 2
PAUSE_S = 0.01  # a pool of threads spins a while before it sleeps
BUDGET_S, ROUNDS, FEWEST, MOST = 0.02, 2, 2, 1000
RENAMED = {"axis": "dim", "keepdims": "keepdim"}
PLACES = ("torch", "torch.special", "torch.nn.functional", "torch.linalg", "torch.fft")
Clock = Callable[[], float]
WAYS = ("eager", "eager+grad", "jit", "jit+grad", "torch", "torch+grad")


@dataclass
class Row:
    """The shortest time of each way to run one op, in seconds; why one has none."""

    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def ratio(self, way: str) -> float | None:
        theirs = "torch+grad" if way.endswith("grad") else "torch"
        if way not in self.seconds or not self.seconds.get(theirs):  # 0: less than a tick
            return None
        return self.seconds[way] / self.seconds[theirs]

    @property
    def worst(self) -> float:
        return max((r for way in WAYS[:4] if (r := self.ratio(way)) is not None), default=0.0)


# --- what to call --------------------------------------------------------------------------------


def call_of(op: Op) -> Call | None:
    """The line of the table, or for elementwise ops and those of one array the first sample's
    call on large arrays; None where that cannot be known."""
    if op.name in CALLS:
        return CALLS[op.name]
    first = next(iter(op.samples()), None)
    if first is None:
        return None
    arrays = [a for a in first.args if isinstance(a, np.ndarray)]
    if any(isinstance(a, list | tuple) for a in first.args):
        return None
    if op.family != "elementwise" and (len(arrays) != 1 or len(first.args) != 1):
        return None
    made = [_large(a) if isinstance(a, np.ndarray) else a for a in first.args]
    return Call(tuple(made), first.kwargs)


def _large(a: Any) -> Any:
    """A million elements of the dtype and in the range of a sample; float64 becomes float32."""
    known = a[np.isfinite(a)] if a.dtype.kind in "fiu" else a.reshape(-1)[:0]
    low, high = (float(known.min()), float(known.max())) if known.size else (-2, 2)
    if a.dtype.kind in "iu":
        return I(max(int(high), 1) + 1, 1024, 1024, low=int(low))
    return F(1024, 1024, low=low, high=high, dtype="bool" if a.dtype.kind == "b" else "float32")


def theirs_of(op: Op) -> Callable[..., Any] | None:
    """PyTorch's function: as the record says, as the table says, or the one of that name."""
    named = THEIRS.get(op.name, op.notes.get("torch"))
    if callable(named):
        return partial(named, torch)
    if isinstance(named, str):
        module, name = named.split(":")
        return getattr(import_module(module), name)  # type: ignore[no-any-return]
    if "torch" in op.notes:
        return None
    name = op.name.removeprefix("fft_")
    for place in reversed(PLACES) if op.namespace in ("fft", "linalg") else PLACES:
        found = getattr(import_module(place), name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    return None


# --- how to run it -------------------------------------------------------------------------------


def _floats(out: Any) -> list[Any]:
    """The results that have gradients, of either library."""
    outs = out if isinstance(out, list | tuple) else [out]
    return [o for o in outs if isinstance(o, eg.Tensor | torch.Tensor) and o.requires_grad]


def _backward(
    fn: Callable[..., Any], grad: Any, leaves: Sequence[Any], wanted: list[bool], seeds: Any
) -> Any:
    """A call of `fn` on fresh leaves, then the gradients of its results from these seeds."""
    leaves = [x.detach() for x in leaves]
    for x, want in zip(leaves, wanted, strict=True):
        x.requires_grad = want
    roots = [x for x in leaves if x.requires_grad]
    return grad(_floats(fn(leaves)), roots, seeds, allow_unused=True)


def _ways(op: Op, call: Call) -> dict[str, Callable[[], Any]]:
    """The op's ways by name; those with a gradient are there if there can be one."""
    first = call.args[0] if call.args and isinstance(call.args[0], list) else call.args
    data = arguments([a for a in first if is_spec(a)])
    xs = [eg.tensor(a) for a in data]
    wanted = [a.dtype.kind == "f" and not op.constant and not op.notes.get("flat") for a in data]
    ours = partial(_placed, op.function, call.args, call.options)
    found: dict[str, Callable[[], Any]] = {"eager": partial(ours, xs)}
    compiled = eg.jit(lambda *given: ours(given))
    found["jit"] = lambda: compiled(*xs)
    seeds = arguments(_seeds(ours, xs, wanted)) if any(wanted) else []
    if seeds:
        count, grad = len(xs), eg.autograd.grad
        gs = [eg.tensor(a) for a in seeds]
        step = eg.jit(lambda *all: _backward(ours, grad, all[:count], wanted, all[count:]))
        found["eager+grad"] = lambda: _backward(ours, grad, xs, wanted, gs)
        found["jit+grad"] = lambda: step(*xs, *gs)
    function = theirs_of(op)
    if function is None:
        return found
    by_name = isinstance(THEIRS.get(op.name, op.notes.get("torch", "")), str)
    known = {RENAMED.get(k, k): v for k, v in call.options.items()} if by_name else call.options
    theirs = partial(_placed, function, call.args, known)
    ts = [torch.tensor(a) for a in data]
    found["torch"] = partial(theirs, ts)
    if seeds:
        g_ts = [torch.tensor(a) for a in seeds]
        found["torch+grad"] = lambda: _backward(theirs, torch.autograd.grad, ts, wanted, g_ts)
    return found


def _seeds(fn: Callable[..., Any], xs: list[Any], wanted: list[bool]) -> list[Spec]:
    """Arrays like the results that have gradients."""
    leaves = [x.detach() for x in xs]
    for x, want in zip(leaves, wanted, strict=True):
        x.requires_grad = want
    return [F(*out.shape, dtype=out.dtype.name) for out in _floats(fn(leaves))]


def _placed(fn: Callable[..., Any], args: Any, options: Any, given: Sequence[Any]) -> Any:
    """`fn` with these tensors in place of what stands for arrays."""
    supply = iter(given)
    if args and isinstance(args[0], list):  # a list of tensors
        return fn(list(given), *args[1:], **options)
    return fn(*[next(supply) if is_spec(a) else a for a in args], **options)


def _shortest(fn: Callable[[], Any], clock: Clock) -> float:
    """The shortest of some calls."""
    best, spent, count = float("inf"), 0.0, 0
    while (spent < BUDGET_S and count < MOST) or count < FEWEST:
        start = clock()
        fn()
        taken = clock() - start
        best, spent, count = min(best, taken), spent + taken, count + 1
    return best


def measured(op: Op, call: Call, clock: Clock = time.perf_counter) -> Row:
    """An op in every way it has."""
    return timed(op.name, _ways(op, call), clock)


def measured_more(pair: Pair, clock: Clock = time.perf_counter) -> Row:
    """What is no op of its own, or in other dtypes."""
    xs, ts = tensors(pair)
    compiled = eg.jit(pair.ours)
    ways: dict[str, Callable[[], Any]] = {"eager": lambda: pair.ours(*xs)}
    if pair.compiled:
        ways["jit"] = lambda: compiled(*xs)
    return timed(pair.name, {**ways, "torch": lambda: pair.theirs(*ts)}, clock)


def timed(name: str, ways: dict[str, Callable[[], Any]], clock: Clock) -> Row:
    """All ways in turn, several rounds; one that raises is noted and left out."""
    row = Row(name)
    for way in [w for w in WAYS if w in ways]:
        try:
            ways[way]()
        except Exception as error:  # a sweep goes on, and says what did not
            row.failures[way] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
            del ways[way]
    for _ in range(ROUNDS):
        for way in [w for w in WAYS if w in ways]:
            time.sleep(PAUSE_S)
            row.seconds[way] = min(row.seconds.get(way, 1e9), _shortest(ways[way], clock))
    return row


# --- what it says --------------------------------------------------------------------------------


def _cell(number: float | None, scale: float, digits: int) -> str:
    return "-" if number is None else f"{number * scale:.{digits}f}"


def line(row: Row) -> str:
    times = [_cell(row.seconds.get(way), 1e3, 3) for way in WAYS]
    ratios = [_cell(row.ratio(way), 1, 2) for way in WAYS[:4]]
    return f"{row.name:32}" + "".join(f"{c:>11}" for c in (*ratios, *times))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--only", help="ops whose names contain this; several with commas")
    parser.add_argument("--part", default="1/1", help="i/n: every n-th op from the i-th on")
    parser.add_argument("--more", action="store_true", help="random numbers, casts, other dtypes")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, not of the wall")
    given = parser.parse_args()
    ops.load_all()
    torch.set_num_threads(1 if given.cpu else THREADS)
    clock = time.process_time if given.cpu else time.perf_counter
    part, parts = map(int, given.part.split("/"))
    if given.more:
        wanted = (given.only or "").split(",")
        chosen = [p for p in pairs() if any(n in p.name for n in wanted)][part - 1 :: parts]
        show([measured_more(p, clock) for p in chosen])
        return
    public = [op for op in REGISTRY.values() if op.namespace != "internal"]
    public = [op for op in public if op.name not in UNTIMED][part - 1 :: parts]
    if given.only:
        public = [op for op in public if any(n in op.name for n in given.only.split(","))]
    calls = {op.name: call_of(op) for op in public}
    rows = [measured(op, call, clock) for op in public if (call := calls[op.name]) is not None]
    show(rows)
    print("no call known:", *(n for n, c in calls.items() if c is None))


def show(rows: list[Row]) -> None:
    """The table, and what failed."""
    titles = (*(f"x {way}" for way in WAYS[:4]), *(f"{way} ms" for way in WAYS))
    print(" " * 32 + "".join(f"{t:>11}"[-11:] for t in titles))
    for row in sorted(rows, key=lambda r: -r.worst):
        print(line(row))
    for row in rows:
        for way, why in row.failures.items():
            print(f"{row.name} {way}: {why}")


if __name__ == "__main__":
    main()

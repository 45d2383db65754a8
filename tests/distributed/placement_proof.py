"""Every op on shards, put together, beside the op on the whole: what the tests of rules go by.

Rules never communicate, so the ranks need not run at the same time: each is computed by itself, on
a mesh that only says where it is.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import islice, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

import everygrad as eg
from everygrad import ops
from everygrad.autograd.trees import flatten
from everygrad.distributed.placed import from_local, local_value, place, placements_of
from everygrad.distributed.placements import Partial, Placement, Replicate, Shard
from everygrad.errors import EverygradError, PlacementError, TraceError
from everygrad.ops.record.spec import REGISTRY, Op, Sample
from tests.support.checks import function_of, is_flat, is_float, map_sample

ops.load_all()
NAMES = sorted(REGISTRY)
SHARES = {2: (0.25, 0.75), 3: (0.5, 0.25, 0.25)}  # of each rank in a Partial
MANY = 64  # combinations up to which all are tried


class Place:
    """A mesh of one axis as one of its ranks sees it, without anybody to talk to."""

    def __init__(self, ranks: int, rank: int) -> None:
        self.axes = {"d": ranks}
        self.rank = rank

    def coordinate(self, axis: str) -> int:
        return self.rank


class Proof(NamedTuple):
    """What became of an op: combinations that gave the whole, those with shards, those whose
    gradients did too; refusals, and what was wrong."""

    accepted: int
    sharded: int
    gradients: int
    refused: Counter[str]
    wrong: list[str]


def arrays_of(sample: Sample) -> list[Any]:
    found: list[Any] = []
    map_sample(sample, lambda a: found.append(a) or a)
    return found


def choices(a: Any) -> list[Placement]:
    shards: list[Placement] = [Shard(axis) for axis in range(a.ndim)]
    return [Replicate(), *shards, *([Partial()] if is_float(a) else [])]


def combinations(arrays: list[Any]) -> list[tuple[Placement, ...]]:
    """Placements of all inputs: every one, or where these are too many those of one input alone and
    of several along axes of one size."""
    each = [choices(a) for a in arrays]
    if prod(map(len, each)) <= MANY:
        return list(product(*each))
    alone = [
        tuple(c if j == i else Replicate() for j in range(len(arrays)))
        for i, own in enumerate(each)
        for c in own
    ]
    made = dict.fromkeys(alone)
    for size in sorted({n for a in arrays for n in a.shape}):
        along = [
            [*(Shard(d) for d in reversed(range(a.ndim)) if a.shape[d] == size), Replicate()]
            for a in arrays
        ]
        made.update(dict.fromkeys(islice(product(*along), 2 * MANY)))
    return [*made, tuple(own[-1] for own in each)]


def placed(a: Any, how: Placement, mesh: Any, grad: bool) -> eg.Tensor:
    if isinstance(how, Partial):
        share = np.asarray(SHARES[mesh.axes["d"]][mesh.rank], a.dtype)
        t = from_local(eg.tensor(a * share), mesh, {"d": how}, a.shape)
    else:
        t = place(eg.tensor(a), mesh, {"d": how})
    return t.requires_grad_() if grad and is_float(a) else t


def results(op: Op, sample: Sample, tensors: list[eg.Tensor]) -> list[eg.Tensor]:
    supply = iter(tensors)
    given = map_sample(sample, lambda a: next(supply))
    leaves, _ = flatten(function_of(op)(*given.args, **given.kwargs))
    return [t for t in leaves if isinstance(t, eg.Tensor)]


def together(parts: list[eg.Tensor]) -> Any:
    """The whole, of what each rank has."""
    held = [placements_of(t).get("d", Replicate()) for t in parts]
    assert all(h == held[0] for h in held), held
    values = [local_value(t).numpy() for t in parts]
    if isinstance(held[0], Shard):
        return np.concatenate(values, held[0].axis)
    return sum(values[1:], values[0]) if isinstance(held[0], Partial) else values[0]


def slope(outs: list[eg.Tensor]) -> eg.Tensor | None:
    """A number that depends on all results that have derivatives."""
    total = None
    for t in outs:
        if t.requires_grad and not t.dtype.is_complex:
            weights = np.cos(np.arange(t.size, dtype=np.float64)).reshape(t.shape)
            part = (t * eg.tensor(weights, t.dtype)).sum()
            total = part if total is None else total + part
    return total


def differences(got: Any, want: Any) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    close = np.allclose(got, want, rtol=1e-10, atol=1e-12, equal_nan=True)
    return "" if close else f"{np.max(np.abs(got - want), initial=0)} off"


class Run(NamedTuple):
    """An op on the whole or on shards: its results and the gradients of its inputs."""

    outs: list[Any]
    grads: list[Any] | None


def run_whole(op: Op, sample: Sample, arrays: list[Any], grad: bool) -> Run:
    tensors = [eg.tensor(a, requires_grad=grad and is_float(a)) for a in arrays]
    outs = results(op, sample, tensors)
    loss = slope(outs) if grad else None
    if loss is None:
        return Run([t.detach().numpy() for t in outs], None)
    loss.backward()
    grads = [None if t.grad is None else t.grad.numpy() for t in tensors]
    return Run([t.detach().numpy() for t in outs], grads)


def run_shards(
    op: Op, sample: Sample, arrays: list[Any], how: tuple[Placement, ...], ranks: int, grad: bool
) -> Run:
    outs, grads = [], []
    for rank in range(ranks):
        mesh = Place(ranks, rank)
        tensors = [placed(a, h, mesh, grad) for a, h in zip(arrays, how, strict=True)]
        outs.append(results(op, sample, tensors))
        if grad:
            loss = slope(outs[-1])
            assert loss is not None
            loss.backward()
            grads.append([t.grad for t in tensors])
    whole = [together([t.detach() for t in parts]) for parts in zip(*outs, strict=True)]
    if not grad:
        return Run(whole, None)
    pairs = zip(*grads, strict=True)
    return Run(whole, [None if g[0] is None else together(list(g)) for g in pairs])


def tried(op: Op, sample: Sample, ranks: int, proof: Counter[str], wrong: list[str]) -> None:
    """All combinations of placements for one sample on so many ranks."""
    arrays = arrays_of(sample)
    try:
        want = run_whole(op, sample, arrays, not is_flat(op))
    except EverygradError:
        want = run_whole(op, sample, arrays, False)
    for how in combinations(arrays) if arrays else ():
        if all(h == Replicate() for h in how):
            continue
        try:
            got = run_shards(op, sample, arrays, how, ranks, False)
        except (PlacementError, TraceError) as error:
            proof[f"refused {str(error).split(':')[0]}"] += 1
            continue
        found = [differences(g, w) for g, w in zip(got.outs, want.outs, strict=True)]
        wrong += [f"{how} on {ranks} of {[a.shape for a in arrays]}: {f}" for f in found if f]
        proof["accepted"] += 1
        proof["sharded"] += any(isinstance(h, Shard) for h in how)
        if want.grads is None or ranks > 2:  # a third rank shows nothing new
            continue
        try:
            grads = run_shards(op, sample, arrays, how, ranks, True).grads
        except (PlacementError, TraceError):
            proof["gradient refused"] += 1
            continue
        for g, w in zip(grads or (), want.grads, strict=True):
            gap = "" if g is None and w is None else differences(np.asarray(g), np.asarray(w))
            wrong += [f"gradient, {how} on {ranks}: {gap}"] if gap else []
        proof["gradients"] += 1


def stacked(op: Op, sample: Sample) -> Sample | None:
    """The sample with an axis of four in front of all its arrays, if the op takes that. What users
    do not call need not say what it does not take: it states a rule."""
    if op.namespace == "internal" and op.splits is None:
        return None

    def stack(a: Any) -> Any:
        return np.stack([a * a.dtype.type(1 + k / 8) if is_float(a) else a for k in range(4)])

    made = map_sample(sample, stack)
    try:
        run_whole(op, made, arrays_of(made), False)
    except (EverygradError, TypeError, ValueError):
        return None
    return made


@cache
def proof_of(name: str, samples: int = 2) -> Proof:
    """An op beside itself in shards, on two ranks and on three. Where it goes along every axis that
    its samples have, also on stacks of them."""
    op = REGISTRY[name]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    plain = list(islice(op.samples(), samples))
    for sample in plain:
        for ranks in SHARES:
            tried(op, sample, ranks, counts, wrong)
    if not counts["sharded"]:
        for one in filter(None, (stacked(op, sample) for sample in plain)):
            for ranks in SHARES:
                tried(op, one, ranks, counts, wrong)
    refused = Counter({k: n for k, n in counts.items() if "refused" in k})
    return Proof(counts["accepted"], counts["sharded"], counts["gradients"], refused, wrong)

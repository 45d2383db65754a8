"""Connectionist temporal classification: the probability of a label sequence under a recogniser.

The forward algorithm (Graves et al. 2006) in logarithms, all examples at once, and backwards for
the gradient. Where a device has no kernel for them, each is one step of tensor ops for each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.compiler.expr import call
from everygrad.core.tensor import Tensor
from everygrad.dispatch import apply
from everygrad.errors import ArgumentError, DtypeError, OutOfRangeError, ShapeError
from everygrad.ops.elementwise.basic import clamp, maximum, minimum, where
from everygrad.ops.elementwise.math import exp
from everygrad.ops.index.gather import CHECK_RANGE, gather, take_along_axis, taken
from everygrad.ops.loss.losses import reduced
from everygrad.ops.python.creation import arange, asarray, full
from everygrad.ops.record import samples as s
from everygrad.ops.record.families import Function, Kernel, check_kind, elementwise
from everygrad.ops.record.spec import composite, refuse, register, sample
from everygrad.ops.record.splits import at_axes
from everygrad.ops.shape.joining import concat, stack, tril
from everygrad.ops.shape.movement import slice_axis

# the logarithm of what cannot be: finite, so that differences and their slopes are no NaN
_NEVER = -1e30


def _log_sum(x: Any, y: Any, z: Any) -> Any:
    top = call("max", call("max", x, y), z)
    total = call("exp", x - top) + call("exp", y - top) + call("exp", z - top)
    return top + call("log", total)


LOG_SUM: Function = elementwise(
    "log_sum_of_three",
    _log_sum,
    (
        lambda g, x, out: g * exp(x - out),
        lambda g, y, out: g * exp(y - out),
        lambda g, z, out: g * exp(z - out),
    ),
    kinds="real float",
    doc="log(exp(x) + exp(y) + exp(z)) of finite numbers.",
    methods=(),
    namespace="internal",
    reference=lambda x, y, z: np.logaddexp(np.logaddexp(x, y), z),
    samples=lambda: iter((sample(s.real(2, 3), s.real(3, seed=1), s.real(2, 1, seed=2)),)),
)


def _lengths(given: Any, what: str, count: int, most: int, device: str) -> Tensor:
    """Lengths as an integer tensor, checked wherever their values are."""
    if not isinstance(given, Tensor):
        whole = [given] if isinstance(given, int) else [*given]
        given = asarray(np.asarray(whole, np.int64), device=device)
    if not given.dtype.is_integer:
        raise DtypeError(f"ctc_loss: {what}s must be integers, got {given.dtype}")
    if given.size != count or given.ndim > 1:
        raise ShapeError(f"ctc_loss: {count} {what}s are needed, got shape {given.shape}")
    given = given.reshape(count).astype(dtypes.int64)
    return apply(CHECK_RANGE, given, size=most + 1, what=f"ctc_loss: {what}")


def _rows(targets: Tensor, lengths: Tensor, most: int) -> Tensor:
    """Labels that were given one after the other, as rows of `most`."""
    count = lengths.shape[0]
    before = tril(lengths.expand((count, count)), -1).sum(axis=1)
    places = before.reshape(-1, 1) + arange(most, device=targets.device)
    return taken(targets, minimum(places, targets.shape[0] - 1))


def _states(labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """Labels with blanks around each, and which of these can follow the one two before."""
    n, most = labels.shape
    blanks = full((n, most), blank, dtype=dtypes.int64, device=labels.device)
    ends = full((n, 1), blank, dtype=dtypes.int64, device=labels.device)
    states = concat([stack([blanks, labels], axis=2).reshape(n, 2 * most), ends], axis=1)
    if not most:
        return states, states != blank
    later, earlier = slice_axis(states, 1, 2, 2 * most - 1), slice_axis(states, 1, 0, 2 * most - 1)
    skips = (later != earlier) & (later != blank)
    nowhere = full((n, 2), False, dtype=dtypes.bool_, device=labels.device)
    return states, concat([nowhere, skips], axis=1)


def _ways(alpha: Tensor, skips: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What may come before each state: itself, the one before it, the one two before."""
    n, states = alpha.shape
    never = full((n, 2), _NEVER, dtype=alpha.dtype, device=alpha.device)
    wide = concat([never, alpha], axis=1)
    skipped = where(skips, slice_axis(wide, 1, 0, states), _NEVER)
    return alpha, slice_axis(wide, 1, 1, states), skipped


def _ctc_states(emitted: Tensor, skips: Tensor, times: Tensor) -> Tensor:
    steps, _, states = emitted.shape
    first = arange(states, device=emitted.device) < 2
    alphas = [where(first, emitted[0], _NEVER)]
    for t in range(1, steps):
        new = LOG_SUM(*_ways(alphas[-1], skips)) + emitted[t]
        alphas.append(where(times.reshape(-1, 1) > t, new, alphas[-1]))
    return stack(alphas, axis=0)


def _ctc_adjoint(back: Tensor, alphas: Tensor, skips: Tensor, times: Tensor) -> Tensor:
    steps, n, states = alphas.shape
    nothing = full((n, 2), 0.0, dtype=alphas.dtype, device=alphas.device)
    now = back[steps - 1]
    found = []
    for t in range(steps - 1, 0, -1):
        going = times.reshape(-1, 1) > t
        moving = where(going, now, 0.0)
        found.append(moving)
        ways = _ways(alphas[t - 1], skips)
        total = LOG_SUM(*ways)
        stay, step, skip = (moving * exp(way - total) for way in ways)
        step = slice_axis(concat([step, nothing], axis=1), 1, 1, states)
        skip = slice_axis(concat([where(skips, skip, 0.0), nothing], axis=1), 1, 2, states)
        now = where(going, stay + step + skip, now) + back[t - 1]
    found.append(where(arange(states, device=alphas.device) < 2, now, 0.0))
    return stack(found[::-1], axis=0)


CTC_STATES: Kernel = Kernel(
    "ctc_states",
    _ctc_states,
    ("emitted", "skips", "times"),
    (
        lambda g, out, skips, times: apply(CTC_ADJOINT, g, out, skips, times),
        None,
        None,
    ),
    result=lambda emitted, skips, times: (emitted.shape, emitted.dtype),
    splits=at_axes(((1, 0, 0), 1)),
)
CTC_ADJOINT: Kernel = Kernel(
    "ctc_adjoint",
    _ctc_adjoint,
    ("back", "alphas", "skips", "times"),
    result=lambda back, alphas, skips, times: (alphas.shape, alphas.dtype),
    splits=at_axes(((1, 1, 0, 0), 1)),
)


def ctc_states(emitted: Tensor, skips: Tensor, times: Tensor) -> Tensor:
    """(time, batch, states): the logarithm of the probability to be in each state, by all ways.

    `emitted` holds the logarithms of what each state says at each time; `skips` (batch, states)
    which states can follow the one two before; after its `times` (batch,) an example stays as it
    is. One op for all times, so that a compiler has one to compile where a device has it.
    """
    return apply(CTC_STATES, emitted, skips, times)


def ctc_adjoint(back: Tensor, alphas: Tensor, skips: Tensor, times: Tensor) -> Tensor:
    """The gradient of `emitted` from that of ctc_states, `alphas` being its result."""
    return apply(CTC_ADJOINT, back, alphas, skips, times)


def _wide(x: Tensor) -> Tensor:
    """In a dtype that holds the logarithm of what cannot be."""
    return x.astype(dtypes.float32) if x.dtype.itemsize < 4 else x


def _in_probabilities(emitted: Tensor, skips: Tensor, times: Tensor) -> Tensor:
    """What ctc_states is tested as: among logarithms, those of what cannot be hide all others."""
    return exp(ctc_states(_wide(emitted), skips, times)).astype(emitted.dtype)


def _adjoint_of_any(back: Tensor, alphas: Tensor, skips: Tensor, times: Tensor) -> Tensor:
    """What ctc_adjoint is tested as: of narrow dtypes too."""
    return ctc_adjoint(_wide(back), _wide(alphas), skips, times).astype(back.dtype)


_SKIPS, _TIMES = np.array([[False, False, False, True]] * 2), np.array([3, 2])
register(
    CTC_STATES,
    ctc_states,
    namespace="internal",
    kinds="real float",
    torch=None,
    tested_as=_in_probabilities,
    reference="tests.support.references.neural:ctc_states",
    samples=lambda: iter((sample(s.real(3, 2, 4), _SKIPS, _TIMES),)),
)
register(
    CTC_ADJOINT,
    ctc_adjoint,
    namespace="internal",
    kinds="real float",
    torch=None,
    tested_as=_adjoint_of_any,
    reference="tests.support.references.neural:ctc_adjoint",
    samples=lambda: iter((sample(s.real(3, 2, 4), s.real(3, 2, 4, seed=1), _SKIPS, _TIMES),)),
)


def _log_likelihood(
    logs: Tensor, targets: Tensor, times: Tensor, lengths: Tensor, blank: int
) -> Tensor:
    """(batch,): of targets (batch, most); below half of _NEVER where they cannot be."""
    _, n, classes = logs.shape
    most = targets.shape[1]
    held = minimum(lengths, most).reshape(-1, 1)
    labels = where(arange(most, device=logs.device) < held, targets.astype(dtypes.int64), blank)
    labels = apply(CHECK_RANGE, labels, size=classes, what="ctc_loss: label")
    states, skips = _states(labels, blank)
    emitted = take_along_axis(logs, states.expand_dims(0), axis=2)
    alpha = ctc_states(emitted, skips, times)[-1]
    at_blank = gather(alpha, 2 * held, axis=1)
    at_label = gather(alpha, maximum(2 * held - 1, 0), axis=1)
    at_label = where(held > 0, at_label, _NEVER)
    total = LOG_SUM(at_blank, at_label, full((), _NEVER, dtype=logs.dtype, device=logs.device))
    total = total.reshape(n)
    untold = where(lengths == 0, 0.0, _NEVER)  # no time has passed: only nothing can be said
    return where(lengths > most, _NEVER, where(times > 0, total, untold))


def _check(log_probs: Tensor, targets: Tensor, blank: int) -> None:
    check_kind("ctc_loss", log_probs.dtype, "real float")
    if log_probs.ndim not in (2, 3) or 0 in log_probs.shape:
        raise ShapeError(
            f"ctc_loss: log_probs must be (time, batch, classes) or (time, classes), none empty, "
            f"got {log_probs.shape}"
        )
    if not targets.dtype.is_integer:
        raise DtypeError(f"ctc_loss: labels must be integers, got {targets.dtype}")
    if not 0 <= blank < log_probs.shape[-1]:
        raise ArgumentError(f"ctc_loss: blank {blank} is none of the {log_probs.shape[-1]} classes")


def _padded(targets: Tensor, lengths: Any, n: int, steps: int) -> tuple[Tensor, Tensor]:
    """The labels as (batch, most), and their lengths."""
    if targets.ndim == 2 and targets.shape[0] == n:
        most = targets.shape[1]
        return targets, _lengths(lengths, "target length", n, most, targets.device)
    if targets.ndim != 1:
        raise ShapeError(
            f"ctc_loss: targets must be ({n}, longest) or one after the other in one axis, "
            f"got {targets.shape}"
        )
    total = targets.shape[0]
    # more labels than times cannot be, however many they are
    known = isinstance(lengths, Sequence) and max(lengths, default=0) <= total
    most = min(max(lengths) if known else total, total, steps + 1)
    checked = _lengths(lengths, "target length", n, total, targets.device)
    if not most:
        return full((n, 0), 0, dtype=dtypes.int64, device=targets.device), checked
    return _rows(targets, checked, most), checked


def _samples() -> Any:
    x, labels = s.real(2, 2, 3), np.array([[1, 2], [2, 0]])
    yield sample(x, labels, np.array([2, 2]), np.array([2, 1]))
    yield sample(s.real(2, 3), np.array([2, 1]), (2,), (2,), reduction="none")


_LOGS, _LABELS = s.real(3, 2, 3), np.array([[1, 2], [2, 1]])


@composite(
    kinds="real float",
    methods=(),
    reference="tests.support.references.neural:ctc_loss",
    torch=None,  # its derivative is that of log_softmax and the loss together
    samples=_samples,
    refuses=(
        refuse(OutOfRangeError, "ctc_loss: label 3", _LOGS, _LABELS + 1, (3, 3), (2, 2)),
        refuse(OutOfRangeError, "ctc_loss: input length 4", _LOGS, _LABELS, (4, 3), (2, 2)),
        refuse(OutOfRangeError, "ctc_loss: target length 3", _LOGS, _LABELS, (3, 3), (3, 2)),
        refuse(ShapeError, "ctc_loss: 2 input lengths are needed", _LOGS, _LABELS, (3,), (2, 2)),
        refuse(ArgumentError, "ctc_loss: blank 3", _LOGS, _LABELS, (3, 3), (2, 2), blank=3),
        refuse(ShapeError, "ctc_loss: log_probs must be", _LOGS[0, 0], _LABELS, (3, 3), (2, 2)),
        refuse(ShapeError, "ctc_loss: targets must be", _LOGS, _LABELS[:1], (3, 3), (2, 2)),
    ),
    precision="float32",
)
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the logarithm of the probability of each label sequence, by any alignment.

    log_probs, from log_softmax, is (time, batch, classes); targets (batch, longest), or one after
    the other; lengths are tensors or integers. Without a batch: (time, classes), (length,). "mean"
    divides by the target's length first. A sequence that cannot be has the loss infinity, or 0 if
    `zero_infinity`, and the derivative 0.
    """
    _check(log_probs, targets, blank)
    alone = log_probs.ndim == 2
    logs = log_probs.expand_dims(1) if alone else log_probs
    targets = targets.expand_dims(0) if alone and targets.ndim == 1 else targets
    logs = clamp(_wide(logs), min=_NEVER)
    steps, n, _ = logs.shape
    times = _lengths(input_lengths, "input length", n, steps, logs.device)
    labels, lengths = _padded(targets, target_lengths, n, steps)
    told = _log_likelihood(logs, labels, times, lengths, blank)
    loss = where(told < _NEVER / 2, 0.0 if zero_infinity else np.inf, -told)
    if reduction == "mean":
        loss = loss / maximum(lengths, 1).astype(loss.dtype)
    out = reduced(loss, reduction, "ctc_loss").astype(log_probs.dtype)
    return out.squeeze(0) if alone and reduction == "none" else out

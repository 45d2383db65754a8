"""Softmax, norms and losses: what is computed of whole rows."""

from __future__ import annotations

from typing import Any

import torch

import everygrad as eg
from devtools.sweep import referee
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem

TF = torch.nn.functional


def _shape(d: Draw, least: int = 1) -> tuple[int, ...]:
    return tuple(max(1, n) for n in d.any_shape(least=least))


def softmax(d: Draw) -> Problem:
    shape, name = d.any_shape(least=1), d.pick(("softmax", "log_softmax"))
    axis, dtype, twice = d.between(0, len(shape) - 1), d.dtype(), d.chance(0.2)
    return Problem(
        [d.floats(shape, dtype, -5, 5) for _ in range(1 + twice)],  # of the same layout, or not
        lambda *xs: [getattr(eg, name)(x, axis=axis) for x in xs],
        lambda *xs: [referee.softmax(x, axis, name == "log_softmax") for x in xs],
        "values",
        dtype=dtype,
    )


def layer_norm(d: Draw) -> Problem:
    shape, dtype = _shape(d, 2), d.dtype(halves=0.25)
    count = d.between(1, len(shape) - 1)
    tail = shape[-count:]
    if _size(tail) < 3:  # one or two numbers have nearly no deviation
        tail = shape = (*shape[:-1], shape[-1] + 3)[-1:]
        shape = (2, *tail)
    weighted = d.chance(0.6)
    inputs = [d.floats(shape, dtype, -2, 2)]
    if weighted:
        inputs += [d.floats(tail, dtype, 0.5, 1.5, False), d.floats(tail, dtype, -1, 1, False)]
    return Problem(
        inputs,
        lambda x, *wb: eg.layer_norm(x, tail, *wb),
        lambda x, *wb: torch.layer_norm(x, tail, *wb),
        "values",
        dtype=dtype,
    )


def _size(shape: Any) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def rms_norm(d: Draw) -> Problem:
    shape, dtype = _shape(d), d.dtype()
    inputs = [d.floats(shape, dtype, 0.2, 2)]
    if d.chance(0.6):
        inputs.append(d.floats(shape[-1:], dtype, 0.5, 1.5, False))

    def theirs(x: Any, w: Any = 1.0) -> Any:
        squares = (x * x).mean(-1, True)
        return x * referee.rounded(torch.rsqrt(squares + 1e-5)) * w

    return Problem(
        inputs,
        lambda x, *w: eg.rms_norm(x, shape[-1:], *w, eps=1e-5),
        theirs,
        "values",
        dtype=dtype,
    )


def batch_norm(d: Draw) -> Problem:
    shape = list(_shape(d, 2))
    shape[0] += 3
    dtype, training = d.dtype(), d.chance(0.7)
    n = shape[1]
    inputs = [
        d.floats(shape, dtype, -2, 2),
        d.floats((n,), dtype, 0.5, 1.5, False),
        d.floats((n,), dtype, -1, 1, False),
    ]
    if not training:
        inputs += [
            d.floats((n,), dtype, -1, 1, False, False),
            d.floats((n,), dtype, 0.5, 2, False, False),
        ]

    def ours(x: Any, w: Any, b: Any, mean: Any = None, var: Any = None) -> Any:
        return eg.batch_norm(x, mean, var, w, b, training=training)

    def theirs(x: Any, w: Any, b: Any, mean: Any = None, var: Any = None) -> Any:
        # PyTorch 2.13 gives wrong gradients where strides could be those of channels last and of
        # another layout too: (231, 1, 21, 231) of (4, 21, 11, 1)
        return TF.batch_norm(referee.rounded(x.contiguous()), mean, var, w, b, training=training)

    return Problem(inputs, ours, theirs, "values", looseness=4.0, dtype=dtype)  # sums of batches


def group_norm(d: Draw) -> Problem:
    groups, each = d.between(1, 6), d.size(20)
    size = _shape(d)[:2]
    size = (size[0] + 3, *size[1:])
    shape = (d.pick((1, 2, 3)), groups * each, *size)
    dtype = d.dtype()
    inputs = [d.floats(shape, dtype, -2, 2)]
    if d.chance(0.6):
        inputs += [
            d.floats(shape[1:2], dtype, 0.5, 1.5, False),
            d.floats(shape[1:2], dtype, -1, 1, False),
        ]
    return Problem(
        inputs,
        lambda x, *wb: eg.group_norm(x, groups, *wb),
        lambda x, *wb: TF.group_norm(x, groups, *wb),
        "values",
        looseness=4.0,  # sums over several axes
        dtype=dtype,
    )


def cross_entropy(d: Draw) -> Problem:
    """Rows of classes, or classes of an image; some labels ignored."""
    n, classes = d.shape(2)
    n, classes, dtype = max(1, n), max(2, classes), d.dtype()
    more = d.shape(1, 9) if d.chance(0.2) else ()
    reduction, smooth = d.pick(("mean", "sum", "none")), d.pick((0.0, 0.0, 0.1))
    labels = d._values.integers(0, classes, (n, *more))
    if d.chance(0.4):
        labels[d._values.random(labels.shape) < 0.3] = -100
        labels.reshape(-1)[:1] = 0  # the mean of none is no number
    x = d.floats((n, classes, *more), dtype, -4, 4)
    given = {"reduction": reduction, "label_smoothing": smooth}
    if 0 in x.array.shape:
        given["reduction"] = "sum"
    return Problem(
        (x, d.given(labels, "int64", False, False)),
        lambda t, y: eg.cross_entropy(t, y, **given),
        lambda t, y: TF.cross_entropy(t, y, **given),
        "values",
        looseness=4.0,  # a sum of rows of sums
        dtype=dtype,
    )


LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")


def losses(d: Draw) -> Problem:
    name, shape, dtype = d.pick(LOSSES), _shape(d), d.dtype(halves=0)
    reduction = d.pick(("mean", "sum", "none"))
    return Problem(
        (d.floats(shape, dtype), d.floats(shape, dtype, 3, 5)),
        lambda x, y: getattr(eg, name)(x, y, reduction=reduction),
        lambda x, y: getattr(TF, name)(x, y, reduction=reduction),
        "values",
        dtype=dtype,
    )


def normalize(d: Draw) -> Problem:
    shape, dtype = _shape(d), d.dtype(halves=0)
    axis = d.between(0, len(shape) - 1)
    return Problem(
        (d.floats(shape, dtype, 0.5, 2),),
        lambda x: eg.normalize(x, axis=axis),
        lambda x: TF.normalize(x, dim=axis),
        "values",
        floor=1.0,  # the norm of a single number is the number: its gradient cancels
        dtype=dtype,
    )


SECTION = OpSection(
    "rows",
    (
        "column_sums",
        "cross_entropy",
        "fused",
        "group",
        "group_threads",
        "loop_nest",
        "loop_writer",
        "losses",
        "machine",
        "numpy_reduce",
        "online_softmax",
        "reduction",
        "row_kernel",
        "row_kernels",
        "row_loops",
        "rows",
    ),
    {
        "softmax": (3, softmax),
        "layer_norm": (2, layer_norm),
        "rms_norm": (1, rms_norm),
        "batch_norm": (2, batch_norm),
        "group_norm": (1, group_norm),
        "cross_entropy": (2, cross_entropy),
        "losses": (1, losses),
        "normalize": (0.5, normalize),
    },
    weight=1.5,
)

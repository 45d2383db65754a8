"""Numbers that are counted out, and tensors that are written in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem
from everygrad.dispatch import update
from everygrad.ops.record.spec import REGISTRY

LIMITS = {"int8": 127, "uint8": 255, "int16": 32767, "int32": 2**31 - 1, "int64": 2**63 - 1}


def counted(d: Draw) -> Problem:
    """arange of whole numbers, up to the last that a dtype has, and down."""
    kind, step = d.pick(tuple(LIMITS)), d.pick((1, 1, 3, -1, -7))
    most = min(LIMITS[kind], 1 << 17)
    count = d.size(max(1, most // abs(step) - 1))
    first = LIMITS[kind] - (count - 1) * max(step, 0) if d.chance(0.4) else max(-step, 0) * count
    values = np.array([first + i * step for i in range(count)], kind)
    device = d.device
    return Problem(
        (),
        lambda: eg.arange(first, first + count * step, step, dtype=kind, device=device),
        lambda: torch.from_numpy(values),
        "exact",
    )


def fractions(d: Draw) -> Problem:
    """arange by a step that is no whole number, as floats and cut to integers."""
    kind, count = d.pick(("float32", "int32", "int64")), d.size(1 << 14)
    first, step = d.between(-40, 40) / 4, d.pick((0.5, 0.25, 1.5, -0.75))
    values = first + step * np.arange(count)
    device = d.device
    return Problem(
        (),
        lambda: eg.arange(first, first + count * step, step, dtype=kind, device=device),
        lambda: torch.from_numpy(values if kind == "float32" else values.astype(kind)),
        "exact",
    )


def of_views(d: Draw) -> Problem:
    """Tensors of NumPy's views: rows that repeat, every other column, backwards."""
    shape, kind = d.any_shape(least=1), d.pick(("float32", "int64", "bool", "int8"))
    a = d._values.integers(0, 2 if kind == "bool" else 90, shape).astype(kind)
    axis, device = d.between(0, a.ndim - 1), d.device
    how = d.pick(("rows", "rows", "columns", "backwards", "transposed"))
    views = {
        "rows": np.broadcast_to(a.take([0], axis) if a.shape[axis] else a, a.shape),
        "columns": a[..., ::2],
        "backwards": np.flip(a, axis),
        "transposed": a.T,
    }
    view, moved = views[how], d.chance(0.5)  # from the CPU, where a tensor shares the memory

    def ours() -> Any:
        if not moved:
            return eg.tensor(view, device=device) * 1
        return eg.from_numpy(view).to(device) * 1

    return Problem(
        (),
        ours,
        lambda: torch.from_numpy(view.copy()) * 1,
        "exact",
    )


UPDATES = {"add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div}


def updated(d: Draw) -> Problem:
    """A tensor of our own that takes another value in its memory, as optimisers' states do: of its
    shape, by a row, a number, another dtype; in order or not."""
    name, dtype = d.pick(tuple(UPDATES)), d.dtype(halves=0.2)
    shape = d.any_shape(least=1, most=3)
    if d.chance(0.4):  # large enough to be written in place
        shape = d.pick(((70_001,), (300, 301), (41, 50, 40)))
    other = d.pick((shape, shape, shape[1:], ()))
    layout = d.pick(("plain", "flipped", "transposed"))
    kind = d.pick((dtype, dtype, "float32"))
    x, t = d.floats(shape, dtype, grad=False), d.floats(other, kind, 0.5, 2, grad=False)
    wide = dtype if kind == "float32" else kind  # of both

    def view(y: Any) -> Any:
        if layout == "transposed" and len(shape) > 1:
            return y.reshape((*shape[:-2], shape[-1], shape[-2])).mT
        return y[..., ::-1] if layout == "flipped" and isinstance(y, eg.Tensor) else y

    def ours(x: Any, t: Any) -> Any:
        y = view(x * 2)
        for _ in range(2):
            update(REGISTRY[name], y, t)
        return y

    def theirs(x: Any, t: Any) -> Any:
        y = view(x * 2)
        y = y.flip(-1) if layout == "flipped" else y
        for _ in range(2):
            y = UPDATES[name](y, t)
        return y

    return Problem((x, t), ours, theirs, "values", looseness=2.0, compiled=False, dtype=wide)


def whole(d: Draw) -> Problem:
    """The same of integers, bits and truths."""
    kind = d.pick(("int32", "int64", "uint8", "bool"))
    bits = ("__iand__", "__ior__", "__ixor__")
    name = d.pick(bits if kind == "bool" else (*bits, "__iadd__", "__imul__"))
    shape = d.any_shape(least=1, most=3)
    draw = d.booleans if kind == "bool" else lambda s: d.integers(s, 0, 90, kind, layout=True)

    def update(x: Any, t: Any) -> Any:
        y = x ^ t
        return getattr(y, name)(t)

    return Problem((draw(shape), draw(shape)), update, update, "exact")


SECTION = OpSection(
    "creation",
    ("device", "elementwise", "numpy_render"),
    {
        "arange": (1, counted),
        "arange of fractions": (0.5, fractions),
        "of NumPy's views": (0.7, of_views),
        "updates": (2, updated),
        "updates of integers": (1, whole),
    },
    weight=0.5,
)

"""The five movements and the reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad import dtypes
from everygrad.compiler.facts import Move
from everygrad.compiler.ir import Value
from everygrad.interop.onnx.exporting.sizes import Dim, Size, is_static
from everygrad.interop.onnx.exporting.writer import Write, Writer, in_float32, sizes_of, static

_END = np.iinfo(np.int64).max
_BEGIN = np.iinfo(np.int64).min


def move(w: Writer, v: Value) -> str:
    """One movement."""
    assert v.move is not None
    return _MOVES[v.move](w, v)


def _reshape(w: Writer, v: Value) -> str:
    (x,) = v.args
    while x.move is Move.RESHAPE:  # only the last one counts
        (x,) = x.args
    return reshaped(w, w.name(x), x.shape, v.shape, near=(x,))


def reshaped(
    w: Writer, name: str, old: Sequence[Size], new: Sequence[Size], near: Sequence[Value] = ()
) -> str:
    """A tensor of shape `old` in another one. In ONNX's words 0 keeps a size and -1 follows from
    the others, so that most sizes that change need not be computed."""
    if is_static(tuple(new)):
        return w.node("Reshape", name, w.ints(new), allowzero=1 if 0 in new else None)
    sizes: list[Size] = [
        0 if isinstance(n, Dim) and i < len(old) and old[i] == n else n for i, n in enumerate(new)
    ]
    left = [i for i, n in enumerate(sizes) if isinstance(n, Dim)]
    if left:
        sizes[left[-1]] = -1
    return w.node("Reshape", name, w.ints(sizes, near))


def _permute(w: Writer, v: Value) -> str:
    name, axes = w.name(v.args[0]), list(v.params["axes"])
    return w.node("Transpose", name, perm=axes) if axes else name


def _broadcast(w: Writer, v: Value) -> str:
    (x,) = v.args
    name = w.number(x) if x.kind == "full" else w.name(x)
    return expanded(w, name, () if x.kind == "full" else x.shape, v.shape, near=(x,))


def expanded(
    w: Writer, name: str, old: Sequence[Size], new: Sequence[Size], near: Sequence[Value] = ()
) -> str:
    """A tensor repeated; a size that it has already, and that changes, is said as 1."""
    if is_static(tuple(new)):
        return w.node("Expand", name, w.ints(new))
    skipped = len(new) - len(old)
    sizes = [1 if i >= skipped and old[i - skipped] == n else n for i, n in enumerate(new)]
    return w.node("Expand", name, w.ints(sizes, near))


def _slice(w: Writer, v: Value) -> str:
    (x,) = v.args
    return sliced(w, w.name(x), x.shape, v.params["slices"], (x,))


def sliced(w: Writer, name: str, shape: Sequence[Size], slices: Any, near: Sequence[Value]) -> str:
    """`count` elements from `start` on, every `step`, along each axis."""
    axes, starts, ends, steps = [], [], [], []
    for axis, ((start, count, step), n) in enumerate(zip(slices, shape, strict=True)):
        if start == 0 and count == n and step == 1:
            continue
        axes.append(axis)
        starts.append(start)
        steps.append(static("the step of a slice", step))
        if count == 0:
            ends.append(start)
        elif step > 0:
            end = start + (count - 1) * step + 1
            ends.append(_END if end == n else end)
        else:
            end = start + count * step
            ends.append(_BEGIN if not isinstance(end, Dim) and end < 0 else end)
    if not axes:
        return name
    given = (w.ints(starts, near), w.ints(ends, near), w.ints(axes), w.ints(steps))
    return w.node("Slice", name, *given)


def _unslice(w: Writer, v: Value) -> str:
    """Zeros around, and between for a step."""
    (x,) = v.args
    name = w.name(x)
    before: list[Size] = []
    after: list[Size] = []
    sizes = [*sizes_of(x)]
    for axis, ((start, count, step), n) in enumerate(
        zip(v.params["slices"], v.params["shape"], strict=True)
    ):
        step = static("the step of a slice", step)
        if step < 0:
            whole = [(0, m, 1) for m in sizes]
            whole[axis] = (count - 1, count, -1)
            name = sliced(w, name, sizes, whole, (x,))
            start, step = start + (count - 1) * step, -step
        if step > 1:
            name = _spread(w, name, sizes, axis, step, (x,))
            count = (count - 1) * step + 1 if count != 0 else 0
            sizes[axis] = count
        before.append(start)
        after.append(n - start - count)
    return padded(w, name, before, after, (x,))


def _spread(
    w: Writer, name: str, sizes: list[Size], axis: int, step: int, near: Sequence[Value]
) -> str:
    """`step - 1` zeros between the elements along an axis."""
    count = sizes[axis]
    apart = [*sizes[: axis + 1], 1, *sizes[axis + 1 :]]
    name = reshaped(w, name, sizes, apart, near)
    zeros = [0] * len(apart)
    more = [step - 1 if i == axis + 1 else 0 for i in range(len(apart))]
    name = padded(w, name, zeros, more, near)
    wide = [*sizes[:axis], count * step, *sizes[axis + 1 :]]
    name = reshaped(w, name, [*sizes[: axis + 1], step, *sizes[axis + 1 :]], wide, near)
    whole: list[Any] = [(0, m, 1) for m in wide]
    whole[axis] = (0, (count - 1) * step + 1, 1)
    return sliced(w, name, wide, whole, near) if count != 0 else name


def padded(
    w: Writer, name: str, before: Sequence[Size], after: Sequence[Size], near: Sequence[Value]
) -> str:
    """Zeros before and after along each axis."""
    if not before or all(b == 0 for b in (*before, *after)):
        return name
    return w.node("Pad", name, w.ints([*before, *after], near))


_MOVES: dict[Move, Write] = {
    Move.RESHAPE: _reshape,
    Move.PERMUTE: _permute,
    Move.BROADCAST: _broadcast,
    Move.SLICE: _slice,
    Move.UNSLICE: in_float32(_unslice),
}

# --- reductions ----------------------------------------------------------------------------------

_REDUCTIONS = {"add": "ReduceSum", "mul": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}


def reduce(w: Writer, v: Value) -> str:
    """One reduction. Sums of half floats are float32's, as they are here."""
    sums = v.facts.combine in ("add", "mul")
    return (_SUMS_OF_HALVES if sums else _OF_BFLOAT16)(w, v)


def _reduce(w: Writer, v: Value) -> str:
    (x,) = v.args
    combine, axes = v.facts.combine, v.params["axes"]
    name = w.name(x)
    kept = 1 if v.params["keepdims"] else 0
    if not axes:
        return name
    if combine in ("and", "or"):
        whole, zero = w.cast(name, dtypes.int32), w.scalar(0, dtypes.int32)
        kind = "ReduceMin" if combine == "and" else "ReduceMax"
        # of no elements that is the largest or the least integer, and gives what it should
        return w.node("Greater", _reduced(w, kind, whole, axes, kept), zero)
    if v.facts.mean:
        return _reduced(w, "ReduceMean", name, axes, kept)
    return _reduced(w, _REDUCTIONS[combine], name, axes, kept)


_OF_BFLOAT16 = in_float32(_reduce)
_SUMS_OF_HALVES = in_float32(_reduce, dtypes.float16, dtypes.bfloat16)


def _reduced(w: Writer, kind: str, name: str, axes: Sequence[int], kept: int) -> str:
    return w.node(kind, name, w.ints(list(axes)), keepdims=kept)

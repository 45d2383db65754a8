"""If, Loop and Scan: decided while tracing where conditions are known, in Python otherwise.

A condition that is computed from tensors has a value only when ops run one by one; inside `eg.jit`
asking for it is refused, and the error names the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import everygrad as eg
from everygrad.errors import ArgumentError
from everygrad.interop.onnx.operators.registry import Body, Call, onnx_op
from everygrad.interop.onnx.values import array_of, tensor_of

# A file's limit on a loop's turns counts up to here; exporters write the largest number there is
# for "none", and then the condition must end the loop within so many turns.
LIMITS = 1 << 24
MOST_TURNS = 1 << 16


@onnx_op("If", static=(0,), raw=True)
def _if(call: Call, condition: Any) -> Any:
    known = np.asarray(condition)
    if known.size != 1:
        raise ArgumentError(f"If: the condition has shape {known.shape}, not one element")
    return tuple(call.bodies["then_branch" if known.reshape(-1)[0] else "else_branch"]())


def _scalar(value: Any, kind: Any, default: Any) -> Any:
    return default if value is None else kind(array_of(value).reshape(-1)[0])


def stacked(call: Call, values: Sequence[Any], axis: int = 0) -> Any:
    """Values along a new axis: an array if all of them are."""
    if all(isinstance(v, np.ndarray) for v in values):
        return np.stack(values, axis)
    return eg.stack([tensor_of(v, call.device) for v in values], axis=axis)


@onnx_op("Loop", static=(0, 1), raw=True)
def _loop(call: Call, limit: Any, condition: Any, *start: Any) -> Any:
    body = call.bodies["body"]
    turns = _scalar(limit, int, None)
    going = _scalar(condition, bool, True)
    carried = list(start)
    rows: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    turn = 0
    while going and (turns is None or turn < turns):
        if turn >= MOST_TURNS and (turns is None or turns > LIMITS):
            raise ArgumentError(f"Loop: no end after {turn} turns")
        found = body(np.array(turn, np.int64), np.array(going), *carried)
        turn += 1
        carried = list(found[1 : 1 + len(carried)])
        for row, value in zip(rows, found[1 + len(carried) :], strict=True):
            row.append(value)
        if condition is not None or turns is None:
            going = _scalar(found[0], bool, True)
    return (
        *carried,
        *(_joined_rows(call, body, i + 1 + len(carried), r) for i, r in enumerate(rows)),
    )


def _joined_rows(call: Call, body: Body, output: int, rows: list[Any]) -> Any:
    if rows:
        return stacked(call, rows)
    dtype, shape = body.declared[output]
    return np.zeros((0, *(0 if s is None else s for s in shape or ())), dtype or np.float32)


def _slice(x: Any, axis: int, at: int) -> Any:
    return x[(*(slice(None),) * (axis % len(x.shape)), at)]


@onnx_op("Scan", since=9, raw=True)
def _scan(call: Call, *inputs: Any) -> Any:
    body = call.bodies["body"]
    count = call("num_scan_inputs")
    split = len(inputs) - count
    return tuple(
        _scanned(
            call,
            body,
            inputs[:split],
            inputs[split:],
            call("scan_input_axes", [0] * count),
            call("scan_input_directions", [0] * count),
        )
    )


def _scanned(
    call: Call,
    body: Body,
    states: Sequence[Any],
    scans: Sequence[Any],
    axes: Sequence[int],
    backwards: Sequence[int],
    length: int | None = None,
) -> list[Any]:
    carried = list(states)
    made = len(body.outputs) - len(carried)
    steps = scans[0].shape[axes[0]] if length is None else length
    rows: list[list[Any]] = [[] for _ in range(made)]
    for t in range(steps):
        now = [
            _slice(x, axis, steps - 1 - t if back else t)
            for x, axis, back in zip(scans, axes, backwards, strict=True)
        ]
        found = body(*carried, *now)
        carried = list(found[: len(carried)])
        for row, value in zip(rows, found[len(carried) :], strict=True):
            row.append(value)
    out_axes = call("scan_output_axes", [0] * made)
    directions = call("scan_output_directions", [0] * made)
    joined = []
    for i, row in enumerate(rows):
        ordered = row[::-1] if directions[i] else row
        if not ordered:
            joined.append(_joined_rows(call, body, len(carried) + i, []))
            continue
        rank = len(ordered[0].shape) + 1
        joined.append(stacked(call, ordered, out_axes[i] % rank))
    return [*carried, *joined]


@onnx_op("Scan", raw=True)
def _scan_by_example(call: Call, lengths: Any, *inputs: Any) -> Any:
    """Opset 8: a batch of sequences, each with its own length."""
    body = call.bodies["body"]
    count = call("num_scan_inputs")
    split = len(inputs) - count
    batch = inputs[-1].shape[0]
    sizes = None if lengths is None else array_of(lengths)
    found = []
    for n in range(batch):
        own = [x[n] for x in inputs]
        steps = None if sizes is None else int(sizes[n])
        backwards = call("directions", [0] * count)
        found.append(_scanned(call, body, own[:split], own[split:], [0] * count, backwards, steps))
    return tuple(stacked(call, column) for column in zip(*found, strict=True))


# --- sequences and optionals ---------------------------------------------------------------------


@onnx_op("SequenceConstruct", raw=True)
def _sequence_construct(call: Call, *values: Any) -> Any:
    return list(values)


@onnx_op("SequenceEmpty", raw=True)
def _sequence_empty(call: Call) -> Any:
    return []


@onnx_op("SequenceLength", raw=True)
def _sequence_length(call: Call, values: Any) -> Any:
    return np.array(len(values), np.int64)


def _place(call: Call, values: list[Any], at: Any, most: int) -> int:
    index = int(np.asarray(at).reshape(-1)[0])
    if not -most <= index <= most:
        raise ArgumentError(f"{call.op}: index {index} in a sequence of {len(values)}")
    return index


@onnx_op("SequenceAt", static=(1,), raw=True)
def _sequence_at(call: Call, values: Any, at: Any) -> Any:
    index = _place(call, values, at, len(values))
    if index == len(values):
        raise ArgumentError(f"SequenceAt: index {index} in a sequence of {len(values)}")
    return values[index]


@onnx_op("SequenceInsert", static=(2,), raw=True)
def _sequence_insert(call: Call, values: Any, value: Any, at: Any = None) -> Any:
    index = len(values) if at is None else _place(call, values, at, len(values))
    found = list(values)
    found.insert(index, value)
    return found


@onnx_op("SequenceErase", static=(1,), raw=True)
def _sequence_erase(call: Call, values: Any, at: Any = None) -> Any:
    index = -1 if at is None else _place(call, values, at, len(values))
    return [v for i, v in enumerate(values) if i != index % len(values)]


@onnx_op("SplitToSequence", static=(1,), raw=True)
def _split_to_sequence(call: Call, x: Any, split: Any = None) -> Any:
    axis = call("axis", 0) % len(x.shape)
    size = x.shape[axis]
    if split is None:
        parts = [1] * size
    elif np.asarray(split).ndim == 0:
        each = int(split)
        parts = [min(each, size - at) for at in range(0, size, each)]
    else:
        parts = [int(s) for s in split]
    ends = np.cumsum([0, *parts])
    before = (slice(None),) * axis
    found = [x[(*before, slice(int(a), int(b)))] for a, b in pairwise(ends)]
    if split is None and not call("keepdims", 1):
        return [v.reshape((*v.shape[:axis], *v.shape[axis + 1 :])) for v in found]
    return found


@onnx_op("ConcatFromSequence", raw=True)
def _concat_from_sequence(call: Call, values: Any) -> Any:
    axis = call("axis")
    if call("new_axis", 0):
        return stacked(call, values, axis)
    if all(isinstance(v, np.ndarray) for v in values):
        return np.concatenate(values, axis)
    return eg.concat([tensor_of(v, call.device) for v in values], axis=axis)


@onnx_op("Optional", raw=True)
def _optional(call: Call, value: Any = None) -> Any:
    return value


@onnx_op("OptionalHasElement", raw=True)
def _optional_has_element(call: Call, value: Any = None) -> Any:
    return np.array(value is not None)


@onnx_op("OptionalGetElement", raw=True)
def _optional_get_element(call: Call, value: Any) -> Any:
    if value is None:
        raise ArgumentError("OptionalGetElement: the optional is empty")
    return value

"""Multi-tensor kernels: one kernel for groups of equal code and any sizes, as in optimisers.

A flat group reads whole contiguous tensors and single numbers, and writes whole tensors. Its code
needs no size: a table, one of the kernel's arguments, says for each block to which group it belongs
and which elements it covers. So fifty parameters are one step whose blocks all threads share, and
one function to compile, whatever their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.fused.fused import GRAIN, MAX_BLOCKS, FusedKernelWriter, code_key
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.cpu.llvm.compiler import Value as Reg, engine
from everygrad.backends.cpu.llvm.work import Step
from everygrad.compiler.groups import Group, Load
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import is_whole

_ENTRY = 3  # words of the table per block: number of its first argument, first element, end
_LINE = edge(__name__, "_LINE", 64, "size")  # blocks begin at multiples of this many elements


class MultiTensorWork(NamedTuple):
    """One step for several groups. Its arguments are the table, then the outputs and the inputs of
    each group, inputs with the offset, in elements, at which the argument points."""

    step: Step
    table: Any
    outputs: list[list[Value]]
    inputs: list[list[tuple[Value, int]]]


def _loads(group: Group) -> list[Load]:
    return [r for m in group.members.values() for r in m.refs if isinstance(r, Load)]


def _is_whole(r: Load, group: Group) -> bool:
    return r.value.size == group.size and is_whole(r.shape, r.strides, r.offset)


def whole_inputs(group: Group) -> set[Value]:
    """The values that a flat group reads element by element, as it writes its outputs."""
    return {r.value for r in _loads(group) if r.value.size > 1}


def kind_of(group: Group, stored: set[Value]) -> Any:
    """A key that is equal for flat groups that can share a kernel; None for other groups."""
    if group.opaque is not None or group.row is not None or group.size < 2:
        return None
    if any(m.role != "full" or v.kind != "elementwise" for v, m in group.members.items()):
        return None
    for r in _loads(group):
        if r.step is not None or not (r.value.size == 1 or _is_whole(r, group)):
            return None
    return code_key(group, stored, sized=False)


class _MultiTensorWriter(FusedKernelWriter):
    """Writes the loop of a flat group, with pointers loaded for each block."""

    def text(self) -> str:
        w = self.w
        operands = [*self.outputs, *(v for v, _ in self.inputs)]
        w.lines += ["entry:", "  %table = load ptr, ptr %args"]
        with w.counted("b", "%lo", "%hi") as block:
            entry = w.moved("%table", block, 8 * _ENTRY)
            first, start, end = (
                w.load_raw(w.at(entry, 8 * i), "i64", grouped=False) for i in range(_ENTRY)
            )
            given = w.indexed("%args", first, "ptr")
            for i, v in enumerate(operands):
                pointer = w.load_raw(w.at(given, 8 * i), "ptr", grouped=False)
                if v.size == 1:
                    w.lines.append(f"  %p{i} = getelementptr i8, ptr {pointer.name}, i64 0")
                else:
                    memory = intrinsics.memory_type(v.dtype)
                    at = f"getelementptr inbounds {memory}, ptr {pointer.name}, i64 {start.name}"
                    w.lines.append(f"  %p{i} = {at}")
            self.length = w.e.op("sub", end, start).name
            self.row_index = [Reg("i64", "0")] * len(self.nest.rows)
            self.row()
        w.lines.append("  ret void")
        return w.module(engine().attributes)


def multi_tensor_work(groups: Sequence[Group], stored: set[Value]) -> MultiTensorWork:
    """One step for flat groups of one kind; it stores the values in `stored` to memory."""
    writer = _MultiTensorWriter(groups[0], stored, (0, 1))
    total = sum(g.size for g in groups)
    piece = max(GRAIN, -(-total // (2 * MAX_BLOCKS)))
    piece = -(-piece // _LINE) * _LINE
    table: list[int] = []
    outputs, inputs = [], []
    at = 1  # the table itself is argument 0
    for group in groups:
        outputs.append([v for v in group.members if v in stored])
        inputs.append(list(dict.fromkeys((r.value, r.offset) for r in _loads(group))))
        for start in range(0, group.size, piece):
            table += (at, start, min(start + piece, group.size))
        at += len(outputs[-1]) + len(inputs[-1])
    step = Step(writer.text(), len(table) // _ENTRY)
    return MultiTensorWork(step, np.array(table, np.int64), outputs, inputs)

"""Reductions inside a fused kernel: accumulators, and block reductions in workgroup memory.

Values are converted to the accumulator's dtype (`reduction.accumulator_dtype`) when they are
loaded, and to the result's dtype when the reduction is finalized. A block reduction has at most two
steps: sixteen threads combine what all threads have, then every thread combines what those sixteen
have. The order depends on the number of threads alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad import dtypes
from everygrad.backends.webgpu.fused.thread_mapping import WORKGROUP
from everygrad.backends.webgpu.kernels.reduction import accumulator_dtype, combined, total_of
from everygrad.backends.webgpu.source.render import cast, constant, instruction
from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.compiler.accumulate import identity
from everygrad.compiler.expr import Inst
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType

GATHERERS = edge(__name__, "GATHERERS", 16, "size")


class Accumulator:
    """How one reduction accumulates."""

    def __init__(self, v: Value) -> None:
        self.value = v
        self.source = v.args[0].dtype
        self.dtype: DType = accumulator_dtype(self.source)
        self.register = layout(self.dtype).register
        self.words = layout(self.dtype).words
        self.identity = constant(identity(v.op.combine, self.dtype), self.dtype)
        self.function = f"combine_{v.op.combine}_{self.dtype}"

    def define(self) -> str:
        """The WGSL function that combines two values."""
        body = combined(self.value.op.combine, self.dtype, "a", "b")
        kind = self.register
        return f"fn {self.function}(a: {kind}, b: {kind}) -> {kind} {{\n  return {body};\n}}\n"

    def combine(self, parts: Sequence[str]) -> str:
        """Several values combined into one, pairwise."""
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        return f"{self.function}({self.combine(parts[:half])}, {self.combine(parts[half:])})"

    def load(self, name: str) -> str:
        """An input value in the accumulator's dtype."""
        return cast(name, self.source, self.dtype)

    def finalize(self, name: str) -> str:
        """The result, from the complete accumulator."""
        v = self.value
        name = total_of(v.op.combine, self.dtype, name)
        if v.op.mean:
            shape = v.args[0].shape
            count = constant(size_of(tuple(shape[a] for a in v.params["axes"])), dtypes.float32)
            divide = Inst("div", dtypes.float32, (0, 1))
            name = instruction(divide, [name, count], [dtypes.float32] * 2)
        return cast(f"({name})", self.dtype, v.dtype)

    def store_partial(self, buffer: str, index: str, name: str) -> list[str]:
        """Lines that store an accumulator in a buffer of words; `index` is a name."""
        return put(self.dtype, buffer, index, name)

    def load_partial(self, buffer: str, index: str) -> str:
        """An accumulator that was stored in a buffer."""
        return layout(self.dtype).load.format(b=buffer, i=index)


def put(dtype: DType, buffer: str, index: str, name: str) -> list[str]:
    """Lines that store one element of whole words (or in a word of its own)."""
    if layout(dtype).words == 2:
        return [
            f"  {buffer}[2u * {index}] = {name}.x;",
            f"  {buffer}[2u * {index} + 1u] = {name}.y;",
        ]
    return [f"  {buffer}[{index}] = {layout(dtype).bits.format(v=name)};"]


class ThreadGroup(NamedTuple):
    """The threads that combine their accumulators: the caller is number `thread` of `threads`, and
    number q has its own at `base` + q * `stride` of shared memory."""

    thread: str
    threads: int
    base: str
    stride: int

    def slot(self, number: str) -> str:
        step = number if self.stride == 1 else f"({number}) * {self.stride}u"
        return f"{self.base} + {step}"


class BlockReducer:
    """Writes block reductions; `shared_bytes` is the size of workgroup memory. All reductions use
    the same few arrays of words, whatever their dtypes."""

    def __init__(self, shared_bytes: int) -> None:
        # an accumulator may have two words
        self.max_arrays = max(2, shared_bytes // (4 * WORKGROUP))
        self.used = 0

    def declared(self) -> str:
        return "".join(
            f"var<workgroup> part{i}: array<u32, {WORKGROUP}>;\n" for i in range(self.used)
        )

    def rounds(self, accumulators: Sequence[Accumulator]) -> list[list[tuple[int, int]]]:
        """Which accumulators are reduced at the same time, each with its first array's number."""
        made: list[list[tuple[int, int]]] = []
        free = self.max_arrays
        for i, acc in enumerate(accumulators):
            if not made or free + acc.words > self.max_arrays:
                made.append([])
                free = 0
            made[-1].append((i, free))
            free += acc.words
            self.used = max(self.used, free)
        return made

    def block_reduce(
        self, accumulators: Sequence[Accumulator], names: Sequence[str], group: ThreadGroup
    ) -> list[str]:
        """Lines after which `all_{name}` holds, in every thread, what all had in `name`."""
        lines: list[str] = []
        few = min(group.threads, GATHERERS)
        for reduced in self.rounds(accumulators):
            lines.append("  workgroupBarrier();")  # the round before has read its arrays
            for i, array in reduced:
                lines += _shared_store(accumulators[i], array, names[i])
            lines.append("  workgroupBarrier();")
            if group.threads > GATHERERS:
                lines.append(f"  if ({group.thread} < {few}u) {{")
                for i, array in reduced:
                    first = f"{group.thread} + {few}u"
                    acc = accumulators[i]
                    lines += ["  {", *_combined(acc, array, group, "sum", first, few)]
                    lines += [*_shared_store(acc, array, "sum"), "  }"]
                lines += ["  }", "  workgroupBarrier();"]
            everyone = group._replace(threads=few)
            for i, array in reduced:
                lines += _combined(accumulators[i], array, everyone, f"all_{names[i]}", "1u", 1)
        return lines


def _shared_store(acc: Accumulator, array: int, name: str) -> list[str]:
    """Lines that store the thread's accumulator in shared memory."""
    if acc.words == 2:
        return [f"  part{array}[l] = {name}.x;", f"  part{array + 1}[l] = {name}.y;"]
    return [f"  part{array}[l] = bitcast<u32>({name});"]


def _shared_load(acc: Accumulator, array: int, slot: str) -> str:
    """The accumulator that the thread at a slot has stored in shared memory."""
    if acc.words == 2:
        return f"vec2<u32>(part{array}[{slot}], part{array + 1}[{slot}])"
    return f"bitcast<{acc.register}>(part{array}[{slot}])"


def _combined(
    acc: Accumulator, array: int, group: ThreadGroup, name: str, first: str, step: int
) -> list[str]:
    """Lines that combine into `name` the caller's own accumulator, or that of thread 0, and every
    `step`th one from thread `first` on."""
    start = group.slot("0u") if first == "1u" else "l"
    more = acc.combine([name, _shared_load(acc, array, group.slot("q"))])
    return [
        f"  var {name} = {_shared_load(acc, array, start)};",
        f"  for (var q = {first}; q < {group.threads}u; q = q + {step}u) {{ {name} = {more}; }}",
    ]

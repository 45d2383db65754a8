"""Reductions inside a fused kernel: accumulators, and how threads bring theirs together.

Values enter in the accumulator's dtype (`reducing.accumulator`) and leave in the result's. Threads
meet in workgroup memory, twice at most: sixteen of them gather what all have, then everyone
gathers what the sixteen have. The order depends on the number of threads alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everygrad import dtypes
from everygrad.backends.webgpu.fused.thread_mapping import WORKGROUP
from everygrad.backends.webgpu.kernels.reduction import accumulator, combined, total_of
from everygrad.backends.webgpu.source.render import cast, constant, instruction
from everygrad.backends.webgpu.source.word_layout import layout
from everygrad.compile.accumulate import identity
from everygrad.compile.expr import Inst
from everygrad.compile.ir import Value
from everygrad.compile.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType

GATHERERS = edge(__name__, "GATHERERS", 16, "size")


class Fold:
    """How one reduction accumulates."""

    def __init__(self, v: Value) -> None:
        self.value = v
        self.source = v.args[0].dtype
        self.dtype: DType = accumulator(self.source)
        self.register = layout(self.dtype).register
        self.words = layout(self.dtype).words
        self.start = constant(identity(v.op.combine, self.dtype), self.dtype)
        self.function = f"fold_{v.op.combine}_{self.dtype}"

    def define(self) -> str:
        """The function that combines two."""
        body = combined(self.value.op.combine, self.dtype, "a", "b")
        kind = self.register
        return f"fn {self.function}(a: {kind}, b: {kind}) -> {kind} {{\n  return {body};\n}}\n"

    def of(self, parts: Sequence[str]) -> str:
        """Several values as one, pairwise."""
        if len(parts) == 1:
            return parts[0]
        half = len(parts) // 2
        return f"{self.function}({self.of(parts[:half])}, {self.of(parts[half:])})"

    def enter(self, name: str) -> str:
        return cast(name, self.source, self.dtype)

    def leave(self, name: str) -> str:
        """The result, from all that was accumulated."""
        v = self.value
        name = total_of(v.op.combine, self.dtype, name)
        if v.op.mean:
            shape = v.args[0].shape
            count = constant(size_of(tuple(shape[a] for a in v.params["axes"])), dtypes.float32)
            divide = Inst("div", dtypes.float32, (0, 1))
            name = instruction(divide, [name, count], [dtypes.float32] * 2)
        return cast(f"({name})", self.dtype, v.dtype)

    def keep(self, buffer: str, index: str, name: str) -> list[str]:
        """Lines that put an accumulator into a buffer of words; `index` is a name."""
        return put(self.dtype, buffer, index, name)

    def kept(self, buffer: str, index: str) -> str:
        """An accumulator from a buffer."""
        return layout(self.dtype).load.format(b=buffer, i=index)


def put(dtype: DType, buffer: str, index: str, name: str) -> list[str]:
    """Lines that store one element of whole words (or in a word of its own)."""
    if layout(dtype).words == 2:
        return [
            f"  {buffer}[2u * {index}] = {name}.x;",
            f"  {buffer}[2u * {index} + 1u] = {name}.y;",
        ]
    return [f"  {buffer}[{index}] = {layout(dtype).bits.format(v=name)};"]


class Meeting(NamedTuple):
    """Threads that bring accumulators together: the caller is number `who` of `many`, and number
    q has its own at `base` + q * `stride`."""

    who: str
    many: int
    base: str
    stride: int

    def place(self, number: str) -> str:
        step = number if self.stride == 1 else f"({number}) * {self.stride}u"
        return f"{self.base} + {step}"


class Folding:
    """Writes meetings; `room` is the bytes of workgroup memory. All meet in the same few arrays of
    words, whatever they bring."""

    def __init__(self, room: int) -> None:
        self.most = max(2, room // (4 * WORKGROUP))  # arrays; an accumulator may have two words
        self.used = 0

    def declared(self) -> str:
        return "".join(
            f"var<workgroup> part{i}: array<u32, {WORKGROUP}>;\n" for i in range(self.used)
        )

    def batches(self, folds: Sequence[Fold]) -> list[list[tuple[int, int]]]:
        """Which of the folds meet at the same time, each with the number of its first array."""
        made: list[list[tuple[int, int]]] = []
        free = self.most
        for i, fold in enumerate(folds):
            if not made or free + fold.words > self.most:
                made.append([])
                free = 0
            made[-1].append((i, free))
            free += fold.words
            self.used = max(self.used, free)
        return made

    def meet(self, folds: Sequence[Fold], names: Sequence[str], at: Meeting) -> list[str]:
        """Lines after which `all_{name}` holds, in every thread, what all had in `name`."""
        lines: list[str] = []
        few = min(at.many, GATHERERS)
        for batch in self.batches(folds):
            lines.append("  workgroupBarrier();")  # who came before has read what it wanted
            for i, array in batch:
                lines += _brought(folds[i], array, names[i])
            lines.append("  workgroupBarrier();")
            if at.many > GATHERERS:
                lines.append(f"  if ({at.who} < {few}u) {{")
                for i, array in batch:
                    first = f"{at.who} + {few}u"
                    lines += ["  {", *_gathered(folds[i], array, at, "sum", first, few)]
                    lines += [*_brought(folds[i], array, "sum"), "  }"]
                lines += ["  }", "  workgroupBarrier();"]
            everyone = at._replace(many=few)
            for i, array in batch:
                lines += _gathered(folds[i], array, everyone, f"all_{names[i]}", "1u", 1)
        return lines


def _brought(fold: Fold, array: int, name: str) -> list[str]:
    """Lines that show the others what a thread has."""
    if fold.words == 2:
        return [f"  part{array}[l] = {name}.x;", f"  part{array + 1}[l] = {name}.y;"]
    return [f"  part{array}[l] = bitcast<u32>({name});"]


def _found(fold: Fold, array: int, place: str) -> str:
    """What the thread at a place has shown."""
    if fold.words == 2:
        return f"vec2<u32>(part{array}[{place}], part{array + 1}[{place}])"
    return f"bitcast<{fold.register}>(part{array}[{place}])"


def _gathered(fold: Fold, array: int, at: Meeting, name: str, first: str, step: int) -> list[str]:
    """Lines that gather into `name`: the caller's own, or number 0's, and every `step`th from
    number `first` on."""
    start = at.place("0u") if first == "1u" else "l"
    more = fold.of([name, _found(fold, array, at.place("q"))])
    return [
        f"  var {name} = {_found(fold, array, start)};",
        f"  for (var q = {first}; q < {at.many}u; q = q + {step}u) {{ {name} = {more}; }}",
    ]

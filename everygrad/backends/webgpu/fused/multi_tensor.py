"""Small elementwise groups of any sizes as one multi-tensor kernel: each has some workgroups.

The launch is what such groups cost a GPU. An optimiser's step has one group for each parameter, and
they are independent: each becomes a branch of one kernel, which whole workgroups take. A group
waits in the batch until another command needs its results.
"""

from __future__ import annotations

from everygrad.backends.webgpu.fused.fused import Buffer, FusedKernel
from everygrad.backends.webgpu.fused.inplace_reuse import Pairs
from everygrad.backends.webgpu.fused.row_kernel import RowKernelWriter, framed
from everygrad.backends.webgpu.source.render import MAIN, with_library
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge

MOST_LINES = 6000  # of one kernel: what a driver compiles quickly
# buffers that one kernel binds, whatever the device allows
MOST_BUFFERS = edge(__name__, "MOST_BUFFERS", 96, "count")


class MultiTensorBatch:
    """Groups that wait to be launched, for a device that binds so many `buffers`."""

    def __init__(self, buffers: int) -> None:
        self.buffers = min(buffers, MOST_BUFFERS)
        self.writers: list[tuple[RowKernelWriter, Pairs]] = []
        self.reads: dict[tuple[Value, str], str] = {}  # names, by value and item
        self.writes: dict[Value, str] = {}
        self.over: set[Value] = set()  # inputs that are overwritten
        self.lines = 0

    def is_needed(self, used: set[Value], over: set[Value]) -> bool:
        """Whether a command that reads `used` and overwrites `over` must come after the batch."""
        read = {v for v, _ in self.reads} | self.over
        return not used.isdisjoint(self.writes) or not over.isdisjoint(read)

    def takes(self, writer: RowKernelWriter, pairs: Pairs) -> bool:
        """Whether one more can be added: it reads no result of the batch, and neither overwrites
        what the other reads."""
        if not self.writers:
            return True
        reads = {v for v in writer.values.inputs if v not in pairs}
        if self.is_needed(reads | pairs.keys(), set(pairs)) or not reads.isdisjoint(self.over):
            return False
        more = len({*self.reads, *_items(writer, pairs)}) + len(self.writes)
        return more + len(writer.outputs()) <= self.buffers and self.lines < MOST_LINES

    def add(self, writer: RowKernelWriter, pairs: Pairs) -> None:
        self.writers.append((writer, pairs))
        for v in writer.outputs():
            writer.outs[v] = self.writes[v] = f"out{len(self.writes)}"
        for v, item in _items(writer, pairs):
            name = self.reads.setdefault((v, item), f"a{len(self.reads)}")
            writer.values.elsewhere[v] = name
        for x, v in pairs.items():
            writer.write_over(x, v)
        self.over |= pairs.keys()
        writer.body()
        self.lines += len(writer.values.lines)

    def kernel(self) -> FusedKernel:
        """One kernel for all groups, each with a range of workgroups."""
        lines, first = ["  let all = w.y * g.x + w.x;"], 0
        for writer, _ in self.writers:
            last = first + writer.mapping.workgroups
            lines.append(f"  if (all >= {first}u && all < {last}u) {{")
            lines += [f"  let k = all - {first}u;", *writer.values.lines, "  }"]
            first = last
        text = MAIN + "\n".join(lines) + "\n}\n"
        writes = [(name, w.item(v)) for w, _ in self.writers for v, name in w.outs.items()]
        reads = [(name, item) for (_, item), name in self.reads.items()]
        inputs: list[Buffer] = [v for v, _ in self.reads]
        pairs = {x: v for _, pairs in self.writers for x, v in pairs.items()}
        names = dict.fromkeys(v.name for w, _ in self.writers for v in w.members)
        return FusedKernel(
            " ".join(["batch" if len(self.writers) > 1 else "fused", *names]),
            framed(reads, writes) + with_library(text),
            inputs,
            [*self.writes],
            first,
            pairs,
        )


def _items(writer: RowKernelWriter, pairs: Pairs) -> list[tuple[Value, str]]:
    """The values that a kernel reads, and the types of their buffers' items."""
    both = zip(writer.values.inputs, writer.values.bindings(), strict=True)
    return [(v, item) for v, item in both if v not in pairs]

"""Small groups of any sizes as one multi-tensor kernel: each has some workgroups.

The launch is what such groups cost a GPU. An optimiser's step has a few groups for each parameter,
and those of one kind are independent: each becomes a branch of one kernel, which whole workgroups
take, and one second stage combines the partial sums of all. A group waits in the batch until
another command needs its results.
"""

from __future__ import annotations

from everygrad.codegen.groups.group import GroupWriter
from everygrad.codegen.groups.group_sums import Pairs
from everygrad.compiler.ir import Value
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType

# members of one kernel, each times the elements that a thread takes in each pass: what a driver
# compiles quickly
MOST_TEXT = edge(__name__, "MOST_TEXT", 2048, "count")
# buffers that one kernel binds, whatever the device allows
MOST_BUFFERS = edge(__name__, "MOST_BUFFERS", 96, "count")


class MultiTensorBatch:
    """Groups that wait to be launched, for a device that binds so many `buffers`."""

    def __init__(self, buffers: int) -> None:
        self.buffers = min(buffers, MOST_BUFFERS)
        self.parts: list[tuple[GroupWriter, Pairs]] = []
        self.reads: set[Value] = set()
        self.writes: set[Value] = set()
        self.over: set[Value] = set()  # inputs that are overwritten
        self.scratch: set[DType] = set()  # dtypes of partial sums: a buffer for each
        self.text = 0

    def is_needed(self, used: set[Value], over: set[Value]) -> bool:
        """Whether a command that reads `used` and overwrites `over` must come after the batch."""
        return not used.isdisjoint(self.writes) or not over.isdisjoint(self.reads | self.over)

    def takes(self, writer: GroupWriter, pairs: Pairs) -> bool:
        """Whether one more can be added: it reads no result of the batch, and neither overwrites
        what the other reads."""
        if not self.parts:
            return True
        reads = {v for v in writer.inputs() if v not in pairs}
        if self.is_needed(reads | pairs.keys(), set(pairs)) or not reads.isdisjoint(self.over):
            return False
        bound = len(self.reads | reads) + len(self.writes) + len(writer.outputs())
        bound += len(self.scratch | writer.scratch.keys())
        same = writer.mapping.threads == self.parts[0][0].mapping.threads
        return same and bound <= self.buffers and self.text < MOST_TEXT

    def add(self, writer: GroupWriter, pairs: Pairs) -> None:
        self.parts.append((writer, pairs))
        self.reads |= {v for v in writer.inputs() if v not in pairs}
        self.writes |= {*writer.outputs(), *writer.partial_sums}
        self.over |= pairs.keys()
        self.scratch |= writer.scratch.keys()
        self.text += text_of(writer)


def text_of(writer: GroupWriter) -> int:
    """How much text a group's branch has, about: what each thread does in each pass."""
    t = writer.mapping
    return len(writer.members) * t.vector * max(1, t.held) * max(1, writer.passes.count)

"""A compiled function on CUDA: its launches recorded once, then run again and again.

Fused groups become kernels of their own; everything else is what eager mode would launch.
Intermediate results lie in one arena, allocated when the first call runs. Inputs and results have
the memory of each call: the launches are captured as a CUDA graph for the addresses of a call, and
the graph is reused while these come again. Inputs at ever new addresses are copied. Library calls
that no graph can hold are made between two graphs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.driver.gpu import Kernel
from everygrad.backends.cuda.fused import fused
from everygrad.backends.cuda.fused.row_kernel import FusedKernel
from everygrad.backends.cuda.graph import library_calls, merging
from everygrad.backends.cuda.graph.epilogues import with_epilogues
from everygrad.backends.cuda.graph.layouts import in_channels_last
from everygrad.backends.cuda.graph.padding import with_padding
from everygrad.backends.cuda.graph.recording import ALIGN, Step, recorder, steps_of
from everygrad.backends.cuda.graph.rewriting import rewritten
from everygrad.backends.cuda.graph.runner import Prepare, Runner, RunPlan
from everygrad.backends.cuda.graph.segments import (
    group_host_calls,
    is_hosted,
    segment_names,
    segments_of,
)
from everygrad.backends.cuda.kernels import copy_kernels
from everygrad.backends.cuda.kernels.launch_kernel import machine
from everygrad.backends.cuda.source.kernel_render import render
from everygrad.codegen.groups.group_sums import second_stage
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import Group, used_outside
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.memory import Lifetime, Memory, plan
from everygrad.compiler.schedule import fusable, under_extremes, without_strays
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import is_whole, view_of
from everygrad.dtypes import DType
from everygrad.errors import CompileError

if TYPE_CHECKING:
    from everygrad.backends.cuda.device import Cuda

_MOST_LOADS = edge(__name__, "_MOST_LOADS", 64, "count")  # values that a fused kernel reads
_A_VALUE = 4096  # bytes of a value's objects, and of its launch's
_CONSTANT = 1 << 16  # bytes up to which a repeated number is stored whole


class Replay:
    """Runs one graph again and again on one device."""

    def __init__(self, dev: Cuda, graph: Graph, donated: Sequence[tuple[int, int]] = ()) -> None:
        self.dev = dev
        self.gpu = dev.gpu
        self.graph = with_epilogues(dev, with_padding(dev, rewritten(in_channels_last(dev, graph))))
        self.lock = threading.RLock()
        self.running = False
        self.arrays: list[Any] = [None] * len(self.graph.inputs)
        self.recorder = recorder(dev)
        self.made: dict[Value, CudaArray] = {}
        self.in_place: dict[int, list[tuple[int, int]]] = {}  # by command: slots, read and written
        self.record()
        self.steps_: list[Step] = steps_of(self.recorder.gpu)
        self.arrange({self.slot(self.results[k]) for _, k in donated})
        self.merge(donated)
        self.plan(donated)
        self.recorder.gpu.wait_for_kernels(self.steps_)  # kernels were compiled meanwhile
        self.gpu.unload()
        self.runner = Runner(dev, self.run_plan())

    # --- recording -------------------------------------------------------------------------------

    def record(self) -> None:
        graph = self.graph
        for v in graph.inputs:
            self.made[v] = self.recorder.empty(v.shape, v.dtype)
        found = fuse(graph, fusable, _MOST_LOADS, siblings=0, recompute=True)
        groups = without_strays(found, fused.LONGEST)
        stored = used_outside(groups, graph.outputs)
        exact = under_extremes(graph)
        self.kept = {view_of(v).base for v in graph.outputs}
        for group in groups:
            if group.opaque is not None:
                self.record_opaque(group.opaque)
            else:
                self.record_group(group, stored, exact)
        results = {v: self.array(v) for v in graph.outputs}
        self.results = [results[v] for v in graph.outputs]  # one value, one array

    def array(self, v: Value) -> CudaArray:
        """A value as an array: a view of what was computed."""
        view = view_of(v)
        if view.base.kind == "full" and v.nbytes > _CONSTANT:  # one element, however it is seen
            found: CudaArray = self.recorder.full(v.shape, view.base.params["value"], v.dtype)
            return found
        base = self.base(view.base)
        return base.view(view.shape, view.strides, base.offset + view.offset)

    def base(self, v: Value) -> CudaArray:
        found = self.made.get(v)
        if found is None:  # a constant: computed values are there already
            if v.kind == "full":
                values = np.full(v.shape, v.params["value"], v.dtype.np)
            else:
                values = np.ascontiguousarray(v.params["array"])
            found = self.made[v] = self.recorder.from_numpy(values)
        return found

    def record_group(self, group: Group, stored: set[Value], exact: set[Value]) -> None:
        for made in fused.kernels(group, stored, self.dev.multiprocessors, exact):
            self.group(group, made)

    def group(self, group: Group, made: FusedKernel) -> None:
        """Launch a kernel of a group, and the second stage of its sums."""
        rec = self.recorder
        small = all(v in self.kept or v.nbytes <= merging.SMALL for v in made.outputs)
        prepare = rec.gpu.postpone if small else rec.gpu.prepare
        kernel = prepare(made.written)
        for v in (*made.outputs, *(p.value for p in made.partial_sums)):
            self.made[v] = rec.empty(v.shape, v.dtype)
        scratch = {dtype: rec.empty((n,), dtype) for dtype, n in made.scratch.items()}
        bound = [self.base(v).ptr for v in (*made.inputs, *made.outputs)]
        bound += [scratch[p.dtype].ptr + p.start * p.dtype.itemsize for p in made.partial_sums]
        if made.in_place:
            self.note_in_place(group, made)
        rec.gpu.launch(kernel, *bound)
        if made.partial_sums:
            self.second_stage(made, scratch)

    def second_stage(self, made: FusedKernel, scratch: dict[DType, CudaArray]) -> None:
        """Launch the second stage of a kernel's sums."""
        rec, numbers = self.recorder, machine(self.dev.multiprocessors)
        name = made.written.text.name.rpartition("_")[0]
        stage = second_stage(made.partial_sums, made.scratch, numbers, name, open_sizes=True)
        bound = [
            self.made[b] if isinstance(b, Value) else scratch[b]
            for b in (*stage.reads, *stage.writes)
        ]
        rec.gpu.launch(rec.gpu.postpone(render(stage.kernel)), *(a.ptr for a in bound))

    def note_in_place(self, group: Group, made: FusedKernel) -> None:
        """Note which results of the next launch may reuse the memory of which of its operands."""
        at = len(self.recorder.gpu.commands)
        sources = [v for v in made.inputs if fused.read_in_place(group, v)]
        self.in_place[at] = [
            (self.slot(self.base(v)), self.slot(self.made[out]))
            for v in sources
            for out in made.outputs
            if v.dtype.itemsize == out.dtype.itemsize
            and out.size == v.size
            and made.may_replace(v, out)
        ]

    def record_opaque(self, v: Value) -> None:
        rec = self.recorder
        if not v.size:
            self.made[v] = rec.empty(v.shape, v.dtype)
            return
        arrays = [self.array(a) for a in v.args]
        if v.facts.communicates:
            out = library_calls.record_communication(self.dev, rec, v, arrays)
        elif library_calls.serves(self.dev, v.name, v.args, v.params):
            out = library_calls.record(self.dev, rec, v, arrays)
        else:
            out = rec.run(v.op, arrays, v.params)
        if out is NotImplemented:
            out = rec.run(v.op, [copy_kernels.contiguous(rec, a) for a in arrays], v.params)
        if out is NotImplemented:
            raise CompileError(f"jit on cuda: there is no kernel for {v}; please report it")
        out = copy_kernels.contiguous(rec, out)
        if out.offset:
            out = copy_kernels.copied(rec, out)
        self.made[v] = out

    def slot(self, array: CudaArray) -> int:
        """The slot of the placeholder that an array lies in; -1: it has real memory."""
        placeholders = self.recorder.gpu.placeholders
        if array.storage is None or not placeholders.holds(array.ptr):
            return -1
        return int(placeholders.find(array.ptr))

    def arrange(self, donated: set[int]) -> None:
        """Reorder the steps so that library calls are neighbours."""
        inputs = {self.slot(self.made[v]) for v in self.graph.inputs}
        order = group_host_calls(self.steps_, inputs, donated)
        self.steps_ = [self.steps_[k] for k in order]
        now = {k: i for i, k in enumerate(order)}
        self.in_place = {now[k]: pairs for k, pairs in self.in_place.items()}

    def merge(self, donated: Sequence[tuple[int, int]]) -> None:
        """Merge kernels that do not depend on each other. The host's calls stay where they are."""
        inputs = [self.slot(self.made[v]) for v in self.graph.inputs]
        kept = {*inputs, *(self.slot(array) for array in self.results)}
        sizes = self.recorder.gpu.placeholders.sizes
        over = {self.slot(self.results[k]): inputs[i] for i, k in donated}
        steps: list[Step] = []
        in_place: dict[int, list[tuple[int, int]]] = {}
        at = 0
        for segment in segments_of(self.steps_):
            rewritten = {
                k: {over[slot] for slot in step.slots & over.keys()}
                for k, step in enumerate(segment)
            }
            made = merging.merged(
                self.recorder.gpu,
                segment,
                rewritten,
                lambda slots: sum(sizes[slot] for slot in slots if slot not in kept),
            )
            for step, numbers in made:
                in_place[len(steps)] = merging.in_place_pairs(
                    [(segment[n], self.in_place.get(at + n, [])) for n in numbers]
                )
                steps.append(step)
            at += len(segment)
        self.steps_, self.in_place = steps, in_place

    # --- memory ----------------------------------------------------------------------------------

    def plan(self, donated: Sequence[tuple[int, int]]) -> None:
        """Assign memory to slots."""
        sizes = self.recorder.gpu.placeholders.sizes
        self.spans: dict[int, tuple[int, int]] = {}
        for k, step in enumerate(self.steps_):
            for slot in step.slots:
                self.spans[slot] = (self.spans.get(slot, (k, k))[0], k)
        self.inputs = [self.slot(self.made[v]) for v in self.graph.inputs]
        self.outputs: dict[int, int] = {}  # sizes, by slot
        inputs = set(self.inputs)
        for array in self.results:
            slot = self.slot(array)
            if slot >= 0 and slot not in inputs:
                self.outputs[slot] = sizes[slot]
        outside = {*self.inputs, *self.outputs}
        temporaries = [s for s in self.spans if s not in outside]
        reused = self.find_inplace_reuse(temporaries)
        spans = {s: self.spans[s] for s in temporaries if s not in reused}
        for out, owner in reused.items():  # in order: several may reuse one owner's memory in turn
            owner = reused[out] = reused.get(owner, owner)
            spans[owner] = (spans[owner][0], self.spans[out][1])
        self.lifetimes = [
            Lifetime(-(-sizes[s] // ALIGN) * ALIGN, first, last, self.name_of(s))
            for s, (first, last) in spans.items()
        ]
        placed = plan(self.lifetimes)
        self.offsets = dict(zip(spans, placed.offsets, strict=True))
        self.offsets |= {out: self.offsets[owner] for out, owner in reused.items()}
        self.arena = placed.size
        self.donations = self.find_donations(donated)

    def find_inplace_reuse(self, temporaries: Sequence[int]) -> dict[int, int]:
        """Which temporaries reuse the memory of which operand of the kernel that writes them, where
        that kernel is the operand's last reader."""
        sizes = self.recorder.gpu.placeholders.sizes
        found: dict[int, int] = {}
        known, owners = {*temporaries}, set[int]()
        for k in sorted(self.in_place):
            for source, out in self.in_place[k]:
                free = source in known and out in known and sizes[source] == sizes[out]
                taken = out in found or source in owners
                if free and not taken and self.spans[source][1] == k == self.spans[out][0]:
                    found[out] = source
                    owners.add(source)
        return found

    def name_of(self, slot: int) -> str:
        return self.steps_[self.spans[slot][0]].title

    def find_donations(self, donated: Sequence[tuple[int, int]]) -> dict[int, int]:
        """Which outputs can overwrite which inputs: once an output is being written nothing reads
        its input but the kernel that writes it, element by element. And no library is called after
        that: where one fails, inputs are unchanged."""
        found: dict[int, int] = {}
        calls = [k for k, step in enumerate(self.steps_) if is_hosted(step)]
        returned = {self.slot(array) for array in self.results}
        taken: set[int] = set()
        for i, k in donated:
            source, out = self.inputs[i], self.slot(self.results[k])
            x, v = self.graph.inputs[i], self.graph.outputs[k]
            view = view_of(v)
            whole = is_whole(*view[1:]) and view.base.size == v.size
            if source < 0 or out not in self.outputs or not whole or source in returned:
                continue
            if x.shape != v.shape or x.dtype is not v.dtype or out in taken:
                continue
            last, first = self.spans.get(source, (-1, -1))[1], self.spans[out][0]
            if calls and first <= calls[-1]:
                continue
            if last < first or (last == first and (source, out) in self.in_place.get(first, ())):
                found[k] = i
                taken.add(out)
        return found

    def run_plan(self) -> RunPlan:
        return RunPlan(
            self.steps_,
            self.inputs,
            [v.nbytes for v in self.graph.inputs],
            self.outputs,
            [(self.slot(array), array) for array in self.results],
            self.offsets,
            self.arena,
            {i: self.slot(self.results[k]) for k, i in self.donations.items()},
            len(self.recorder.gpu.placeholders.sizes),
        )

    def memory(self) -> Memory:
        """The memory of the function: for temporaries, results and constants."""
        placed = list(zip(self.offsets.values(), self.lifetimes, strict=False))
        held = {
            id(a.storage): a.storage.size for a in self.recorder.constants if a.storage is not None
        }
        outputs = sum(self.outputs.values())
        return Memory(self.arena, placed, outputs, sum(held.values()), len(self.donations))

    # --- reports ---------------------------------------------------------------------------------

    def held_bytes(self, most: int) -> int:
        """About the bytes retained for the next call; of the arena, `most` are counted at most."""
        texts = {s.what.source for s in self.steps_ if isinstance(s.what, Kernel)}
        retained = sum(map(len, texts)) + _A_VALUE * len(self.graph.values)
        return retained + min(most, self.arena)

    def steps(self) -> list[str]:
        """Each launch: its name, its blocks, and of several graphs the one it is in."""
        lines = []
        for s, segment in zip(self.steps_, segment_names(self.steps_), strict=True):
            where = f", {segment}" if segment else ""
            if isinstance(s.what, Kernel):
                shown = " x ".join(str(n) for i, n in enumerate(s.what.grid) if n > 1 or not i)
                lines.append(f"{s.what.name}: {shown} blocks of {s.what.block}{where}")
            else:
                lines.append(f"{s.title}: a library's{where}")
        return lines

    def sources(self) -> dict[str, str]:
        """The sources, each with a comment that names its kernel."""
        found: dict[str, str] = {}
        for s in self.steps_:
            if isinstance(s.what, Kernel):
                found.setdefault(s.what.source, f"// {s.what.name}")
        return found

    def nbytes(self) -> int:
        """Bytes of the memory that launches read and write."""
        return sum(self.step_bytes())

    def step_bytes(self) -> list[int]:
        """The same, launch by launch."""
        sizes = self.recorder.gpu.placeholders.sizes
        return [sum(sizes[slot] for slot in s.slots) for s in self.steps_]

    # --- running ---------------------------------------------------------------------------------

    def donated(self) -> dict[int, tuple[int, int]]:
        """By output: its slot, and the input whose memory it may take."""
        return {k: (self.slot(self.results[k]), i) for k, i in self.donations.items()}

    def put(self, i: int, array: Any) -> None:
        """Make an array input i of the calls to come."""
        self.runner.changed.add(i)  # first: an interrupted call then checks it again
        self.arrays[i] = array

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        """The outputs for these arrays."""
        with self.lock:
            for i, array in enumerate(inputs):
                self.put(i, array)
            made, _ = self.run({})
            self.arrays = [None] * len(self.arrays)
        return made

    def run_moved(self, moved: Mapping[int, Any]) -> list[tuple[Any, int]]:
        """The storages and addresses of the outputs; `moved`: the inputs that are not where they
        were in the call before, by number. The caller holds the lock, and the others' memory."""
        for i, array in moved.items():
            self.put(i, array)
        made, _ = self.run({}, bare=True)
        for i in moved:
            self.arrays[i] = None
        return made

    def unsettled(self) -> set[int]:
        """The inputs that each call must be given, since it reads a copy of them."""
        return {*self.runner.static, *self.runner.converted}

    def own_memory(self) -> dict[int, int]:
        """By output: its slot, of outputs that fill their memory and share it with no other. Only
        where there is one graph: of several, a call can be interrupted between two."""
        slots = [self.slot(array) for array in self.results]
        return {
            k: slot
            for k, (slot, v) in enumerate(zip(slots, self.graph.outputs, strict=True))
            if slot in self.runner.double_buffered
            and not self.runner.hosted
            and slots.count(slot) == 1
            and view_of(v).base.size == v.size
            and is_whole(*view_of(v)[1:])
        }

    def may_write(self, slot: int, array: Any) -> bool:
        """Whether nobody but an array, and perhaps the ring of its slot, sees its memory."""
        return self.runner.may_write(slot, array)

    def run(
        self,
        given: dict[int, Any],
        prepare: Prepare | None = None,
        around: Any = None,
        bare: bool = False,
    ) -> tuple[list[Any], BaseException | None]:
        """The outputs for the arrays that were put; `given` has memory for outputs that need none
        of their own, by slot. `prepare` gets the outputs before they are computed, and returns one
        native call that stores them: it is made if, and only if, all was launched. What a signal
        handler raised meanwhile is returned. `bare`: storages and addresses, not arrays."""
        with self.gpu.lock:
            if self.recorder.gpu.checks:
                self.gpu.faults()  # the next read looks at what the checks found
            return self.runner.run(self.arrays, given, prepare, around, bare)

    def run_apart(self, around: Any) -> list[Any]:
        """As `run`, but one launch at a time: `around(steps, work)` does the work of these."""
        return self.run({}, None, around)[0]

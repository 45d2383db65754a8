"""Plans a graph as a list of steps over numbered slots of memory, which a replay executes.

Groups of fused values become loops, and kernels become what `lowering` has for them; the other ops
are called on NumPy arrays between two runs of native code. Slot 0 is the error word. Inputs and
results get their memory for each call; constants and temporaries have theirs from the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from everygrad.backends.cpu.fused import multi_tensor
from everygrad.backends.cpu.fused.fused import FusedWork, can_split_by_rows, fusable, fused
from everygrad.backends.cpu.gemm.recurrent import UNREAD
from everygrad.backends.cpu.graph import lowering
from everygrad.backends.cpu.graph.same_memory import read_elsewhere, reads_of, same_memory
from everygrad.backends.cpu.graph.unread import without_unread
from everygrad.backends.cpu.kernels import copy_index
from everygrad.backends.cpu.llvm.work import ArrayLayout, Step, Work, contiguous
from everygrad.compiler.facts import ValueCheck
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import Group, Load, used_outside
from everygrad.compiler.ir import Graph, Value
from everygrad.compiler.memory import Lifetime, Memory, Plan, plan
from everygrad.compiler.views import View, is_whole, view_of


class NativeStep(NamedTuple):
    """One function and the slots of its arguments. `name` is for people to read."""

    step: Step
    slots: tuple[int, ...]
    name: str
    linked: bool = False  # to the next step, block by block


class HostStep(NamedTuple):
    """A call on NumPy arrays: the values in `inputs` by slot and view, the result into `out`."""

    call: Callable[..., Any]
    inputs: tuple[tuple[int, View], ...]
    out: int
    name: str


class Result(NamedTuple):
    """An output of the graph: a view of what is in a slot."""

    slot: int
    view: View


class ExecutionPlan(NamedTuple):
    """Everything that a replay needs, as plain data."""

    steps: list[NativeStep | HostStep]
    inputs: list[int]  # their slots
    input_values: list[Value]
    constants: dict[int, Any]  # arrays by slot
    outputs: dict[int, Value]  # what gets memory for each call, by slot
    results: list[Result]
    temporaries: dict[int, int]  # offsets in the arena, by slot
    lifetimes: list[Lifetime]
    arena: int
    slots: int
    checks: list[str]  # what the error word's number minus 1 means
    offsets: dict[int, list[tuple[int, int]]]  # by slot: slots that point into it, and how far
    donations: dict[int, int]  # slots of outputs that may reuse an input, and its slot
    certain: set[int]  # slots of outputs that are written after the last step that can fail
    first_writers: dict[int, int]  # by slot: the first step that writes there
    groups: list[Group]

    def memory(self) -> Memory:
        """The memory of temporaries, results and constants."""
        placed = list(zip(self.temporaries.values(), self.lifetimes, strict=True))
        outputs = sum(v.nbytes for v in self.outputs.values())
        constants = sum(a.nbytes for a in self.constants.values())
        return Memory(self.arena, placed, outputs, constants, len(self.donations))


class Planner:
    """Builds the execution plan of one graph."""

    def __init__(
        self, graph: Graph, donated: Sequence[tuple[int, int]], remade: Sequence[int]
    ) -> None:
        self.graph = graph
        self.remade = frozenset(remade)
        self.groups = fuse(graph, fusable, last=_wanted_last(graph, donated))
        self.stored = used_outside(self.groups, graph.outputs)
        self.steps: list[NativeStep | HostStep] = []
        self.slots: dict[Any, int] = {}
        self.count = 1
        self.constants: dict[int, Any] = {}
        self.outputs: dict[int, Value] = {}
        self.spans: dict[int, list[int]] = {}  # first and last step of temporaries, by slot
        self.sizes: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.checks: list[str] = []
        self.readers: dict[int, int] = {}  # the last step that reads a slot
        self.writers: dict[int, int] = {}
        self.first_writers: dict[int, int] = {}
        self.whole_reads: dict[int, set[int]] = {}  # by step: slots read elementwise
        self.donated = donated
        self.reads = {g.number: reads_of(g) for g in self.groups}
        self.read_by: dict[Value, list[Group]] = {}  # in the order of the groups
        for g in self.groups:
            for v in self.reads[g.number]:
                self.read_by.setdefault(v, []).append(g)
        self.pending_reads = {
            v: len(found) for v, found in self.read_by.items()
        }  # groups that have not run yet
        self.behind: dict[int, list[Group]] = {}  # the groups that read what a group writes
        for g in self.groups:
            for n in g.before:
                self.behind.setdefault(n, []).append(g)
        self.offsets: dict[tuple[int, int], int] = {}  # slots by their base slot and byte offset
        self.base: dict[int, tuple[int, int]] = {}  # and the other way round
        self.shared: set[int] = set()  # slots that two values share
        self.busy: set[int] = set()  # slots that the step linked to this one reads
        self.waiting: dict[int, Group] = {}  # groups that are not emitted yet
        self.blocked: dict[int, int] = {}  # how many groups each of them waits for
        self.kinds: dict[int, Any] = {}  # groups of one kind can share a kernel
        self.ready: dict[Any, dict[int, Group]] = {}  # by kind: the groups whose inputs are there
        self.results = {view_of(v).base for v in graph.outputs}
        donations = {view_of(graph.outputs[k]).base for _, k in donated}
        same = same_memory(self.groups, self.read_by, self.results, donations)
        self.lies_in, self.owned = same

    # --- slots -----------------------------------------------------------------------------------

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def slot(self, v: Value) -> int:
        """The slot of a value."""
        found = self.slots.get(v)
        if found is None and v in self.lies_in:
            found = self.slots[v] = self.slot(self.lies_in[v])
        if found is None:
            found = self.slots[v] = self.new_slot()
            if v.kind == "constant":
                self.constants[found] = np.ascontiguousarray(v.params["array"])
            elif v.kind == "full":
                self.constants[found] = np.full(v.shape, v.params["value"], v.dtype.np)
            elif v.kind != "input":
                self.names[found] = f"%{v.number} {v.name}"
                if v in self.results:
                    self.outputs[found] = v
                else:
                    self.temporary(found, v.nbytes)
        return found

    def temporary(self, slot: int, nbytes: int) -> None:
        self.sizes[slot] = nbytes
        self.spans[slot] = [len(self.steps), len(self.steps)]

    def scratch(self, nbytes: int) -> int:
        slot = self.new_slot()
        self.names[slot] = "scratch"
        self.temporary(slot, nbytes)
        return slot

    def operand(self, v: Value) -> tuple[int, ArrayLayout]:
        """A value as an argument: its slot and its layout there."""
        view = view_of(v)
        slot = self.at(self.slot(view.base), view.offset * v.dtype.itemsize)
        return slot, ArrayLayout(v.dtype, v.shape, view.strides)

    def at(self, slot: int, nbytes: int) -> int:
        """A slot that points `nbytes` past another one: kernels need not know offsets, so slices of
        one tensor share code. An offset from such a slot is resolved to the base slot."""
        if not nbytes:
            return slot
        base, before = self.base.get(slot, (slot, 0))
        key = (base, before + nbytes)
        found = self.offsets.get(key)
        if found is None:
            found = self.offsets[key] = self.new_slot()
            self.base[found] = key
        return found

    def contiguous_operand(self, v: Value) -> tuple[int, ArrayLayout]:
        """As `operand`, copied first if it is not contiguous."""
        slot, operand = self.operand(v)
        if is_whole(operand.shape, operand.strides, operand.offset):
            return slot, operand
        key = ("copy", v)
        made = self.slots.get(key)
        target = contiguous(v.dtype, v.shape)
        if made is None:
            made = self.slots[key] = self.new_slot()
            self.names[made] = f"copy of %{v.number}"
            self.temporary(made, v.nbytes)
            self.emit(Work((copy_index.copy(operand, target),)), [made, slot], f"copy %{v.number}")
        return made, target

    # --- steps -----------------------------------------------------------------------------------

    def emit(self, work: Work, slots: Sequence[int], name: str, written: int = 1) -> None:
        """All steps of a work; the first `written` slots are written, the others are read."""
        given = [*slots, self.scratch(work.scratch)] if work.scratch else list(slots)
        for step in work.steps:
            self.steps.append(NativeStep(step, tuple(given), name))
        self.use(given)
        self.note(slots[:written], slots[written:], len(work.steps))

    def note(self, written: Sequence[int], read: Sequence[int], steps: int = 1) -> None:
        """Records that the last `steps` steps write some slots and read others."""
        last = len(self.steps) - 1
        first = last + 1 - steps
        for slot in map(self.root, read):
            self.readers[slot] = last
        for slot in map(self.root, written):
            self.writers[slot] = last
            self.first_writers.setdefault(slot, first)

    def root(self, slot: int) -> int:
        return self.base.get(slot, (slot, 0))[0]

    def use(self, slots: Sequence[int]) -> None:
        for slot in map(self.root, slots):
            if slot in self.spans:
                self.spans[slot][1] = len(self.steps) - 1

    def host(self, v: Value, call: Callable[..., Any]) -> None:
        args = tuple((self.slot(view_of(a).base), view_of(a)) for a in v.args[: v.facts.looks_at])
        out = self.slot(v)
        self.steps.append(HostStep(call, args, out, f"%{v.number} {v.name} (NumPy)"))
        self.use([out, *(slot for slot, _ in args)])
        self.note([out], [slot for slot, _ in args])

    def with_contiguous_loads(self, group: Group) -> Group:
        """The group with its transposed loads replaced by loads from contiguous copies."""
        loads = [r for m in group.members.values() for r in m.refs if isinstance(r, Load)]
        copies = {
            r: self.contiguous_load(r)
            for r in dict.fromkeys(loads)
            if copy_index.is_transposed(r[1], r[2])
        }
        if not copies:
            return group
        made = copy(group)
        made.members = {}
        for v, m in group.members.items():
            refs = [copies.get(r, r) if isinstance(r, Load) else r for r in m.refs]
            made.members[v] = m._replace(refs=tuple(refs))
        return made

    def contiguous_load(self, r: Load) -> Load:
        """Emits a contiguous copy of what `r` reads, and returns a load from it."""
        source, dtype = r.value, r.value.dtype
        made = Value("movement", "copy", None, (source,), {}, r.shape, dtype, source.number, "")
        slot = self.slots[made] = self.new_slot()
        self.names[slot] = f"copy of %{source.number}"
        self.temporary(slot, made.nbytes)
        target = contiguous(dtype, r.shape)
        work = Work((copy_index.copy(ArrayLayout(dtype, r.shape, r.strides), target),))
        start = self.at(self.slot(source), r.offset * dtype.itemsize)
        self.emit(work, [slot, start], f"copy %{source.number}")
        return Load(made, r.shape, target.strides, 0)

    def emit_transpose_copy(self, group: Group) -> bool:
        """Emits the group as a tiled transpose if that is all it does; returns whether it did."""
        ((v, m), *others) = group.members.items()
        if others or not v.op.copies or not isinstance(m.refs[0], Load):
            return False
        r = m.refs[0]
        if not copy_index.is_transposed(r.shape, r.strides):
            return False
        step = copy_index.copy(
            ArrayLayout(v.dtype, r.shape, r.strides), contiguous(v.dtype, r.shape)
        )
        start = self.at(self.slot(r.value), r.offset * v.dtype.itemsize)
        self.emit(Work((step,)), [self.slot(v), start], f"%{v.number} copy")
        return True

    def group(self, group: Group, bounds: tuple[int, ...] = ()) -> None:
        if not bounds:
            if self.emit_transpose_copy(group):
                return
            group = self.with_contiguous_loads(group)
        made: FusedWork = fused(group, self.stored, bounds)
        ins = [self.at(self.slot(v), offset * v.dtype.itemsize) for v, offset in made.inputs]
        elsewhere = read_elsewhere(group)
        self.reuse(group, made, elsewhere)
        outs = [self.slot(v) for v in made.outputs]
        given = [*outs, *ins]
        if made.work.scratch:
            given.append(self.scratch(made.work.scratch))
        name = " ".join(f"%{v.number}" for v in made.outputs)
        names = dict.fromkeys(v.name for v in group.members)
        for step in made.work.steps:
            self.steps.append(NativeStep(step, tuple(given), f"{name} fused {' '.join(names)}"))
        self.use(given)
        self.note(outs, ins, len(made.work.steps))
        if group.row is None and len(made.work.steps) == 1:
            self.whole_reads[len(self.steps) - 1] = {
                self.slot(v) for v, _ in made.inputs if v not in elsewhere
            }

    def begin(self) -> None:
        """Queues all groups."""
        for g in self.groups:
            self.waiting[g.number] = g
            self.kinds[g.number] = multi_tensor.kind_of(g, self.stored)
            self.blocked[g.number] = len(g.before)
            if not g.before:
                self.is_ready(g)

    def is_ready(self, group: Group) -> None:
        kind = self.kinds[group.number]
        if kind is not None:
            self.ready.setdefault(kind, {})[group.number] = group

    def dequeue(self, group: Group) -> None:
        """Takes a group out of the queue: its steps are emitted next."""
        del self.waiting[group.number]
        kind = self.kinds[group.number]
        if kind is not None:
            del self.ready[kind][group.number]
        for v in self.reads[group.number]:
            self.pending_reads[v] -= 1
        for other in self.behind.get(group.number, ()):
            self.blocked[other.number] -= 1
            if not self.blocked[other.number]:
                self.is_ready(other)

    def same_kernel(self, group: Group) -> list[Group]:
        """This group, and the later ones that are ready and share its kernel."""
        kind = self.kinds[group.number]
        return [group] if kind is None else list(self.ready[kind].values())

    def emit_multi_tensor(self, groups: Sequence[Group]) -> None:
        """Emits groups of one kind as one multi-tensor step."""
        made = multi_tensor.multi_tensor_work(groups, self.stored)
        table = self.new_slot()
        self.constants[table] = made.table
        given, written = [table], []
        whole: Counter[int] = Counter()  # slots, by how many of the groups read them whole
        for group, outputs, inputs in zip(groups, made.outputs, made.inputs, strict=True):
            outs = [self.slot(v) for v in outputs]
            ins = [self.at(self.slot(v), offset * v.dtype.itemsize) for v, offset in inputs]
            given += (*outs, *ins)
            written += outs
            whole.update(self.slot(v) for v in multi_tensor.whole_inputs(group))
        names = dict.fromkeys(v.name for v in groups[0].members)
        numbers = " ".join(f"%{v.number}" for v in made.outputs[0])
        name = f"{numbers} and {len(groups) - 1} like it, fused {' '.join(names)}"
        self.steps.append(NativeStep(made.step, tuple(given), name))
        self.use(given)
        results = set(written)
        self.note(written, [s for s in given[1:] if s not in results])
        # a slot that two of the groups read must not be overwritten by one of them
        self.whole_reads[len(self.steps) - 1] = {s for s, count in whole.items() if count == 1}

    def reuse(self, group: Group, made: FusedWork, elsewhere: set[Value]) -> None:
        """In-place reuse: results take the memory of inputs that no later step reads, and that are
        not read `elsewhere` than where the loop is."""
        if group.row is not None:  # a later pass may read what an earlier pass overwrote
            return
        free = [
            v
            for v in dict.fromkeys(v for v, _ in made.inputs)
            if self.slots[v] in self.spans
            and self.slots[v] not in self.busy
            and not self.pending_reads.get(v)
            and v not in elsewhere
        ]
        for out in made.outputs:
            if out in self.results or out in self.lies_in or group.members[out].role != "full":
                continue
            for v in free:
                fits = v.nbytes == out.nbytes and v.dtype.itemsize == out.dtype.itemsize
                if fits and self.slots[v] not in self.shared:
                    self.slots[out] = self.slots[v]
                    free.remove(v)
                    break

    def guard(self, v: Value, slot: int, index: ArrayLayout, what: str, size: int) -> None:
        """Stops the run before the next step if an index of v is out of range for `size`."""
        self.checks.append(what)
        work = copy_index.check_range(index, size, len(self.checks))
        for step in work.steps:
            self.steps.append(NativeStep(step, (0, slot), f"check %{v.number} {what}"))
        self.use([slot])
        self.note([], [slot])

    def check(self, v: Value) -> None:
        """Emits a range check of indices; its value aliases its argument."""
        slot, operand = self.contiguous_operand(v.args[0])
        self.guard(v, slot, operand, v.params["what"], v.params["size"])
        key_slot = self.slots.get(v)
        assert key_slot is None, "a check is used before it is made"
        self.slots[v] = slot
        self.shared.add(slot)
        if v in self.results:  # an output of the graph needs a copy
            del self.slots[v]
            out = self.slot(v)
            whole = contiguous(v.dtype, v.shape)
            self.emit(Work((copy_index.copy(operand, whole),)), [out, slot], f"copy %{v.number}")

    # --- the whole -------------------------------------------------------------------------------

    def run(self) -> ExecutionPlan:
        inputs = [self.slot(v) for v in self.graph.inputs]
        self.begin()
        for group in self.groups:
            if group.number in self.waiting:
                same_kernel = self.same_kernel(group)
                for one in same_kernel:
                    self.dequeue(one)
                if len(same_kernel) > 1:
                    self.emit_multi_tensor(same_kernel)
                else:
                    self.one(group)
        views = [view_of(v) for v in self.graph.outputs]
        results = [Result(self.slot(view.base), view) for view in views]
        order = list(self.spans)
        lifetimes = [
            Lifetime(self.sizes[s], self.spans[s][0], self.spans[s][1], self.names.get(s, ""))
            for s in order
        ]
        placed: Plan = plan(lifetimes)
        return ExecutionPlan(
            self.steps,
            inputs,
            self.graph.inputs,
            self.constants,
            self.outputs,
            results,
            dict(zip(order, placed.offsets, strict=True)),
            lifetimes,
            placed.size,
            self.count,
            self.checks,
            self.pointers(),
            self.donations(inputs, results),
            self.certain(),
            self.first_writers,
            self.groups,
        )

    def pointers(self) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        for (base, nbytes), slot in self.offsets.items():
            found.setdefault(base, []).append((slot, nbytes))
        return found

    def one(self, group: Group) -> None:
        """All steps of a group."""
        v = group.opaque
        if v is None:
            self.group(group)
        elif v.facts.value_check is ValueCheck.RANGE:
            self.check(v)
        elif not v.size and not v.facts.communicates:
            self.slot(v)
        else:
            lowering.lower(self, v)

    def product(self, work: Work, v: Value, slots: Sequence[int]) -> None:
        """Emits a matrix product, linked to the steps of a group that consumes its rows."""
        name = f"%{v.number} {v.name}"
        follower = self.follower(v, work.rows) if work.rows else None
        self.emit(work, slots, name)
        if follower is not None:
            at = len(self.steps) - 1
            last = self.steps[at]
            assert isinstance(last, NativeStep)
            self.steps[at] = last._replace(linked=True)
            self.dequeue(follower)
            # blocks of both run concurrently, so nothing that the product reads may be overwritten
            self.busy = {*map(self.root, last.slots[1:])}
            self.group(follower, work.rows)
            self.use(last.slots)
            for slot in self.busy:
                self.readers[slot] = len(self.steps)
            self.busy = set()

    def follower(self, v: Value, rows: tuple[int, ...]) -> Group | None:
        """A group that can run right after v, block by block on its rows; None otherwise."""
        readers = (g for g in self.read_by.get(v, ()) if g.opaque is None)
        group = next((g for g in readers if g.number in self.waiting), None)
        if group is None or self.blocked[group.number]:
            return None
        in_step = group.size == v.size and v not in read_elsewhere(group)
        return group if in_step and can_split_by_rows(group, rows[-1]) else None

    def certain(self) -> set[int]:
        """The outputs that no step writes before the last check or call that may raise: after an
        exception their memory is unchanged."""
        checked = max(
            (
                i
                for i, s in enumerate(self.steps)
                if isinstance(s, HostStep) or s.name.startswith("check")
            ),
            default=-1,
        )
        return {out for out in self.outputs if self.first_writers.get(out, -1) > checked}

    def donations(self, inputs: list[int], results: list[Result]) -> dict[int, int]:
        """Which outputs can overwrite which inputs: no later step reads the input, and the step
        that writes the output reads the input, if at all, element by element."""
        found: dict[int, int] = {}
        overwritten: set[int] = set()
        certain = self.certain()
        read_afterwards = {r.slot for r in results}
        for i, k in self.donated:
            source, out = inputs[i], results[k].slot
            if source in read_afterwards:
                continue
            v = self.outputs.get(out)
            x = self.graph.inputs[i]
            fits = v is not None and v.size == x.size and v.dtype is x.dtype
            if not fits or out in found or source in overwritten:
                continue
            if not is_whole(*results[k].view[1:]):
                continue
            written = self.writers.get(out, -1)
            first = self.first_writers.get(out, -1)
            if out not in certain and k not in self.remade:
                continue
            read = self.readers.get(source, -1)
            in_step = source in self.whole_reads.get(written, ())
            if read < first or (read == first == written and in_step):
                found[out] = source
                overwritten.add(source)
        return found


def _wanted_last(graph: Graph, donated: Sequence[tuple[int, int]]) -> set[Value]:
    """What overwrites inputs: behind the last call that can fail it may, so in a graph with
    collectives it comes last. In any other it stays where what it reads is in the cache."""
    if not any(v.facts.communicates for v in graph.values):
        return set()
    return {view_of(graph.outputs[k]).base for _, k in donated}


def build(
    graph: Graph, donated: Sequence[tuple[int, int]] = (), remade: Sequence[int] = ()
) -> ExecutionPlan:
    """The plan of a graph; `donated` pairs inputs with outputs that may reuse their memory, of
    which those that are `remade` may be written before the last step that can fail."""
    return Planner(without_unread(graph, UNREAD), donated, remade).run()


ERROR_WORDS = 4  # number of the failed check, the index, the size; 1 once a run has ended

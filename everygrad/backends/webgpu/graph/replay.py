"""A compiled function on WebGPU: its commands are recorded once, and submitted at each call.

Groups of fused values are kernels of their own; everything else is what eager mode would launch.
While the commands are recorded, memory comes from a pool that belongs to the replay only, so that
buffers and bind groups stay valid. The buffers of inputs and results differ at each call: the few
commands that use them are bound again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from everygrad.backends.webgpu.array import WebGPUArray, storage_of
from everygrad.backends.webgpu.driver import binding_windows
from everygrad.backends.webgpu.driver.gpu import Command
from everygrad.backends.webgpu.driver.memory import Block, Shelf, Storage
from everygrad.backends.webgpu.fused import inplace_reuse
from everygrad.backends.webgpu.fused.fused import (
    FusedKernel,
    Fuser,
    Scratch,
    text_weight,
)
from everygrad.backends.webgpu.fused.multi_tensor import MultiTensorBatch
from everygrad.backends.webgpu.graph import epilogues
from everygrad.backends.webgpu.graph.gathering import gathered
from everygrad.backends.webgpu.graph.placeholders import PlaceholderBlock, PlaceholderPool, shared
from everygrad.backends.webgpu.kernels import copy_kernels, gather_scatter
from everygrad.backends.webgpu.source.machine import machine_of
from everygrad.codegen.groups.group import GroupWriter
from everygrad.codegen.groups.group_plan import assign_in_place
from everygrad.codegen.groups.group_sums import Pairs
from everygrad.codegen.groups.group_threads import splits_rows
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import Group, used_outside
from everygrad.compiler.ir import Graph, Value, index_bound
from everygrad.compiler.memory import Lifetime, Memory
from everygrad.compiler.schedule import fusable, without_strays
from everygrad.compiler.thresholds import edge
from everygrad.compiler.views import view_of
from everygrad.core.shapes import Shape
from everygrad.dtypes import FROM_NP
from everygrad.errors import CompileError, DeviceError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.device import WebGPU

_A_VALUE = 4096  # bytes of a value's Python objects and of its command's, about
_MOST_READY = 16  # sets of blocks for which prepared commands are cached
# elements up to which launching a kernel costs a GPU more than its work
SMALL = edge(__name__, "SMALL", 1 << 20, "elements")


Prepare = Callable[[list[Any]], Callable[[], None]]


def _nothing() -> None:
    """A commit that changes nothing."""


class Donation(NamedTuple):
    """A result that overwrites an input, and memory for it where the input must not change."""

    output: int
    input: int
    shelf: Shelf


class Replay:
    """Runs one graph repeatedly on one device."""

    def __init__(self, dev: WebGPU, graph: Graph, donated: Sequence[tuple[int, int]] = ()) -> None:
        self.dev = dev
        self.gpu = dev.gpu
        self.graph = graph
        self.lock = threading.RLock()
        self.running = False
        self.around: Any = None  # set to run the commands one by one (`timing`)
        self.arrays: list[Any] = [None] * len(graph.inputs)
        self.log: list[Command] = []
        self.made: dict[Value, WebGPUArray] = {}
        self.in_place: Pairs = {}
        with self.gpu.lock:
            self.gpu.fault_storage()  # created outside the recording: it outlives this replay
            outside = self.gpu.pool
            self.gpu.pool = PlaceholderPool(outside)
            self.gpu.log = self.log
            try:
                self.record(inplace_reuse.candidates(graph, donated))
            finally:
                self.gpu.pool, self.gpu.log = outside, None
        self.log = without_repeats(self.log)
        self.plan_memory()
        self.out_of_place: Replay | None = None  # the same function with no result in place
        faults = self.gpu.fault_storage().block.number
        self.checks = any(b.number == faults for c in self.log for b in c.blocks)

    # --- recording -------------------------------------------------------------------------------

    def record(self, pairs: Pairs) -> None:
        graph, dev = self.graph, self.dev
        for v in graph.inputs:
            self.made[v] = dev.empty(v.shape, v.dtype)
        limits = self.gpu.limits
        most = max(1, limits.storage_buffers - 1)
        machine = machine_of(limits.shared_bytes, self.gpu.is_software)
        split = splits_rows(machine)
        groups = fuse(graph, fusable, most, 0, text_weight=text_weight, is_split=split)
        groups = without_strays(groups)
        stored = used_outside(groups, graph.outputs)
        fuser = Fuser(
            limits.storage_buffers,
            machine,
            lambda nbytes: len(binding_windows.cut(nbytes, limits.binding_size)),
        )
        links = epilogues.links(groups, graph.outputs)
        waiting = set(links.values())
        self.fuser = fuser
        written = {g: fuser.writers(g, stored) for g in groups if g.opaque is None}
        small = [g for g, w in written.items() if g not in links and self.can_batch(g, w)]
        if small:
            groups = gathered(groups, small, set(graph.outputs), pairs, links)
        last = inplace_reuse.last_users(groups, links)
        by_group: dict[Group | None, Pairs] = {}
        for x, v in pairs.items():
            by_group.setdefault(last.get(x), {})[x] = v
        self.batch = MultiTensorBatch(limits.storage_buffers)
        for group in groups:
            if group.opaque in waiting:
                continue
            link = links.get(group)
            used = inplace_reuse.read_by_group(group) | (
                inplace_reuse.read_by(link) if link is not None else set()
            )
            over = by_group.get(group, {})
            if link is None and group.opaque is None:
                self.record_fused(group, written[group], over)
                continue
            self.flush(used, set())
            if group.opaque is not None:
                self.record_opaque(group.opaque)
            elif link is not None and not self.record_with_epilogue(link, group, stored):
                self.record_fused(group, written[group], over)
        self.flush(self.batch.writes, set())
        self.results = {v: self.array(v).with_known_order() for v in graph.outputs}

    def array(self, v: Value) -> WebGPUArray:
        """A value as an array: a view of what was computed."""
        if not v.size:
            return self.nothing(v)
        view = view_of(v)
        base = self.base(view.base)
        return base.view(view.shape, view.strides, base.offset + view.offset)

    def nothing(self, v: Value) -> WebGPUArray:
        """A value without elements: it has no memory."""
        made: WebGPUArray = self.dev.empty(v.shape, v.dtype)
        return made

    def base(self, v: Value) -> WebGPUArray:
        found = self.made.get(v)
        if found is None:  # constants: computed values exist already
            if v.kind == "full":
                found = self.dev.from_numpy(np.full(v.shape, v.params["value"], v.dtype.np))
            else:
                found = self.dev.from_numpy(np.ascontiguousarray(v.params["array"]))
            self.made[v] = found
        return found

    def record_fused(self, group: Group, writers: list[GroupWriter], pairs: Pairs) -> None:
        """Record a group's kernels now, or add them to the batch that waits."""
        assigned = assign_in_place(writers, pairs, group.size)
        if self.can_batch(group, writers):
            if not self.batch.takes(writers[0], assigned[0]):
                self.flush(self.batch.writes, set())
            self.batch.add(writers[0], assigned[0])
            return
        self.flush(inplace_reuse.read_by_group(group), {x for over in assigned for x in over})
        for writer, over in zip(writers, assigned, strict=True):
            self.record_kernels(self.fuser.kernels([(writer, over)]))

    def can_batch(self, group: Group, writers: list[GroupWriter]) -> bool:
        """Whether a group costs little more than its launch, and can be part of another kernel."""
        small = not self.gpu.is_software and group.size <= SMALL
        return small and len(writers) == 1 and self.fuser.is_narrow(writers[0])

    def flush(self, used: set[Value], over: set[Value]) -> None:
        """Record the batch if a command is about to use its results or overwrite what it reads."""
        if self.batch.is_needed(used, over):
            waiting, self.batch = self.batch, MultiTensorBatch(self.batch.buffers)
            self.record_kernels(self.fuser.kernels(waiting.parts))

    def record_kernels(self, kernels: list[FusedKernel]) -> None:
        """Record a group's kernels, one after the other."""
        between: dict[Scratch, Any] = {}
        for kernel in kernels:
            for x, v in kernel.in_place.items():
                self.made[v] = self.made[x]
                self.in_place[x] = v
            for b in kernel.outputs:
                if isinstance(b, Scratch):
                    between[b] = self.gpu.pool.take(b.nbytes)
                elif b not in self.made:
                    self.made[b] = self.dev.empty(b.shape, b.dtype)
            inputs, outputs = (
                [between[b] if isinstance(b, Scratch) else storage_of(self.base(b)) for b in bound]
                for bound in (kernel.inputs, kernel.outputs)
            )
            self.gpu.dispatch(
                kernel.name, kernel.source, inputs, outputs, kernel.params, kernel.workgroups
            )

    def record_with_epilogue(self, v: Value, group: Group, stored: set[Value]) -> bool:
        """Record the product v; true if its kernel also computes the group's values."""
        arrays = [self.array(a) for a in v.args]
        made = epilogues.run_with_epilogue(self.dev, v, arrays, group, stored, self.base)
        if made is None:
            self.record_opaque(v)
            return False
        self.made.update(made)
        return True

    def record_opaque(self, v: Value) -> None:
        if not v.size:
            self.made[v] = self.nothing(v)
            return
        start = len(self.log)
        out = self.dev.run(v.op, [self.array(a) for a in v.args], v.params)
        at = getattr(v.op, "index_input", None)
        if at is not None and index_bound(v.args[at]) <= v.args[0].shape[v.params["axis"]]:
            self.log[start:] = [c for c in self.log[start:] if not _is_check(c)]
        out = copy_kernels.contiguous(self.dev, out)
        if out.offset:
            out = self.dev.elementwise("copy", copy_kernels.identity(v.dtype), [out])
        self.made[v] = out

    # --- memory ----------------------------------------------------------------------------------

    def plan_memory(self) -> None:
        """Plan the memory. Inputs and results get theirs at each call, constants have it, and
        intermediate values share blocks, which are taken when the first call runs."""
        written = {b.number for c in self.log for b in c.blocks[_inputs(c) :]}
        arrays = [(i, self.made[v]) for i, v in enumerate(self.graph.inputs)]
        self.inputs = [  # the numbers of their blocks, and the strides that kernels expect
            (i, a.storage.block.number, a.strides) for i, a in arrays if a.storage is not None
        ]
        given = {number for _, number, _ in self.inputs}
        self.outputs: dict[int, int] = {}  # sizes, by the number of the block
        for array in self.results.values():
            storage = array.storage
            if storage is not None and storage.block.number in written - given:
                self.outputs[storage.block.number] = storage.size
        spans: dict[PlaceholderBlock, list[int]] = {}
        constants: dict[int, int] = {}
        for step, command in enumerate(self.log):
            for b in command.blocks:
                if (
                    not isinstance(b, PlaceholderBlock)
                    or b.number in given
                    or b.number in self.outputs
                ):
                    continue
                if b.storage is None:
                    spans.setdefault(b, [step, step])[1] = step
                elif b.number in written:
                    raise CompileError("webgpu: a kernel overwrites a constant; please report it")
                else:
                    constants[b.number] = b.storage.size
        self.lifetimes = [
            Lifetime(b.size, first, last, self.name_of(first)) for b, (first, last) in spans.items()
        ]
        assigned = shared(self.lifetimes, self.gpu.limits.binding_size)
        self.block_numbers = dict(zip(spans, assigned, strict=True))
        self.constants = sum(constants.values())
        self.commands: list[
            Command
        ] = []  # as they run; those that are bound already have no blocks
        # placeholders whose memory differs at each call, and their positions in that list
        self.changing = [*(number for _, number, _ in self.inputs), *self.outputs]
        self.slot_of = {number: at for at, number in enumerate(self.changing)}
        self.shelves = [Shelf(self.gpu, size) for size in self.outputs.values()]
        self.donations = self.find_donations()
        self.placed = [(array, self.slot(array)) for array in self.results.values()]
        numbers = {v: k for k, v in enumerate(self.results)}
        self.order = [numbers[v] for v in self.graph.outputs]
        self.ready: dict[tuple[int, ...], Any] = {}  # prepared commands, by blocks
        self.bind_group_resets = self.gpu.bind_group_resets

    def slot(self, array: WebGPUArray) -> int:
        """The position of a result's memory among the blocks of a call; -1: it is a constant."""
        storage = array.storage
        return -1 if storage is None else self.slot_of.get(storage.block.number, -1)

    def find_donations(self) -> dict[int, Donation]:
        """Results written in place, by the position of the input among the blocks of a call."""
        numbers = {v: k for k, v in enumerate(self.graph.outputs)}
        sources = {v: i for i, v in enumerate(self.graph.inputs)}
        found: dict[int, Donation] = {}
        for x, v in self.in_place.items():
            storage = self.made[x].storage
            assert storage is not None
            at = self.slot_of[storage.block.number]
            found[at] = Donation(numbers[v], sources[x], Shelf(self.gpu, storage.size))
        return found

    def name_of(self, step: int) -> str:
        """The name of the command at a step."""
        kernel = self.log[step].kernel
        return "copy" if kernel is None else kernel.name

    def block_sizes(self) -> dict[int, int]:
        """Bytes of the blocks that values share, by the block's number."""
        sizes: dict[int, int] = {}
        for b, number in self.block_numbers.items():
            sizes[number] = max(b.size, sizes.get(number, 0))
        return sizes

    def allocate(self) -> None:
        """Take the blocks, and bind the commands that use no others."""
        sizes = self.block_sizes()
        self.storages = {n: self.gpu.pool.take(size) for n, size in sizes.items()}
        real = {b.number: self.storages[n].block for b, n in self.block_numbers.items()}
        changing = set(self.changing)
        commands = []
        for kernel, placeholders, bound in self.log:
            blocks = tuple(real.get(b.number, b) for b in placeholders)
            if kernel is not None and not any(b.number in changing for b in blocks):
                bound, blocks = self.gpu.bind_group(kernel, list(blocks)), ()
            commands.append(Command(kernel, blocks, bound))
        self.commands = commands

    def memory(self) -> Memory:
        """The memory the function takes: for intermediate values, for results, for constants."""
        sizes: dict[int, int] = {}
        numbers = self.block_numbers.values()
        for life, n in zip(self.lifetimes, numbers, strict=True):
            sizes[n] = max(life.nbytes, sizes.get(n, 0))
        starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        placed = [(starts[n], life) for life, n in zip(self.lifetimes, numbers, strict=True)]
        results = sum(self.outputs.values()) + sum(g.shelf.size for g in self.donations.values())
        return Memory(sum(sizes.values()), placed, results, self.constants, len(self.donations))

    # --- reports ---------------------------------------------------------------------------------

    def held_bytes(self, most: int) -> int:
        """About how many bytes are kept for the next call, intermediate values up to `most`."""
        texts = {c.kernel.source for c in self.log if c.kernel is not None}
        kept = sum(map(len, texts)) + self.constants + _A_VALUE * len(self.graph.values)
        return kept + min(most, sum(self.block_sizes().values()))

    def steps(self) -> list[str]:
        """The name of each command, and its workgroups."""
        lines = []
        for c in self.log:
            if c.kernel is None:
                lines.append(f"copy: {c.bound[1]} bytes")
            else:
                grid = " x ".join(str(n) for i, n in enumerate(c.kernel.grid) if n > 1 or not i)
                lines.append(f"{c.kernel.name}: {grid} workgroup{'s' if grid != '1' else ''}")
        return lines

    def sources(self) -> dict[str, str]:
        """The sources, each with a comment that names the first command that uses it."""
        found: dict[str, str] = {}
        for c in self.log:
            if c.kernel is not None:
                found.setdefault(c.kernel.source, f"// {c.kernel.name}")
        return found

    def nbytes(self) -> int:
        """Bytes of the blocks that commands read and write."""
        return sum(b.size for c in self.log for b in c.blocks)

    # --- running ---------------------------------------------------------------------------------

    def donated(self) -> dict[int, tuple[int, int]]:
        """By output: the slot for its memory (its input's position among the blocks of a call), and
        the input whose memory it may take."""
        return {donation.output: (at, donation.input) for at, donation in self.donations.items()}

    def put(self, i: int, array: Any) -> None:
        """Make an array input i of the calls to come."""
        self.arrays[i] = array

    def own_memory(self) -> dict[int, int]:
        """By output: the slot for its memory (its position among the blocks of a call), for outputs
        that fill their memory and share it with no other."""
        places = [at for _, at in self.placed]
        found: dict[int, int] = {}
        for k, number in enumerate(self.order):
            array, at = self.placed[number]
            unshared = places.count(at) == 1 and self.order.count(number) == 1
            if at >= len(self.inputs) and unshared and array.in_order:
                found[k] = at
        return found

    def may_write(self, slot: int, array: Any) -> bool:
        """Whether the array is the only owner of its memory."""
        return type(array) is WebGPUArray and array.is_sole_owner

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        with self.lock:
            for i, array in enumerate(inputs):
                self.put(i, array)
            return self.run({})[0]

    def step_bytes(self) -> list[int]:
        """Bytes of the blocks that each command reads and writes."""
        return [sum(b.size for b in c.blocks) for c in self.log]

    def run_apart(self, around: Any) -> list[Any]:
        """As `run`, but one command at a time: `around(steps, work)` runs the work of these."""
        return self.run({}, None, around)[0]

    def run(
        self, given: dict[int, Any], prepare: Prepare | None = None, around: Any = None
    ) -> tuple[list[Any], BaseException | None]:
        """The outputs for the arrays that were put; `given` are arrays, by slot, that may be
        overwritten. `prepare` receives the outputs before they are computed, and returns one
        native call that commits them: it is made if, and only if, the commands will run. The
        second result is for devices that wait: the exception of a signal handler meanwhile."""
        if self.gpu.lost is not None:
            raise DeviceError(self.gpu.lost)
        around = around or self.around
        if self.donations and around is None and not any(at in self.donations for at in given):
            return self.run_out_of_place(prepare)
        with self.gpu.lock:
            if len(self.commands) < len(self.log):
                self.allocate()
            held = self.input_storages()
            for at, donation in self.donations.items():
                if at not in given:
                    held[at] = self.copied_storage(held[at], donation.shelf)
            for at, shelf in enumerate(self.shelves, len(held)):
                held.append(given[at].storage if at in given else shelf.take())
            made = [self.result(array, at, held, given) for array, at in self.placed]
            outputs = [made[k] for k in self.order]  # one array for each value
            commit = _nothing if prepare is None else prepare(outputs)
            if self.checks:
                self.gpu.expect_checks()
            if around is None:
                recorded = self.gpu.record_separately(self.prepared(held))
            else:
                self.run_one_by_one(held, around)
            epoch = self.gpu.epoch
            for storage in held:
                storage.block.epoch = epoch
            # no signal handler runs between these two: nothing else is called there
            if around is None:
                self.gpu.adopt(recorded)
            commit()
            self.gpu.submit()
        return outputs, None

    def run_out_of_place(self, prepare: Prepare | None) -> tuple[list[Any], BaseException | None]:
        """As `run`, where nothing may be overwritten: the kernels write to other buffers. Copying
        every parameter first would cost more than everything else."""
        if self.out_of_place is None:
            self.out_of_place = Replay(self.dev, self.graph)
        self.out_of_place.arrays = self.arrays
        return self.out_of_place.run({}, prepare)

    def prepared(self, held: list[Storage]) -> Any:
        """The commands bound to these blocks. They are cached: results alternate between blocks."""
        if self.bind_group_resets != self.gpu.bind_group_resets:
            # prepared commands would keep dropped buffers alive
            self.bind_group_resets = self.gpu.bind_group_resets
            self.ready.clear()
        key = tuple([s.block.number for s in held])
        found = self.ready.get(key)
        if found is None:
            if len(self.ready) >= _MOST_READY:
                del self.ready[next(iter(self.ready))]
            found = self.ready[key] = self.gpu.prepared(self.commands, self.substitutes(held))
        return found

    def substitutes(self, held: list[Storage]) -> dict[int, Block]:
        """The blocks that replace placeholders, by the number of the placeholder."""
        return {number: s.block for number, s in zip(self.changing, held, strict=True)}

    def run_one_by_one(self, held: list[Storage], around: Any) -> None:
        """Run the commands one by one."""
        substitutes = self.substitutes(held)
        for i, command in enumerate(self.commands):
            one = self.gpu.prepared([command], substitutes)
            around(range(i, i + 1), partial(self.gpu.record_prepared, one, 1))

    def input_storages(self) -> list[Storage]:
        """The memory of the inputs, in order."""
        held, arrays = [], self.arrays
        for i, _, steps in self.inputs:
            a = arrays[i]
            plain = type(a) is WebGPUArray and a.in_order
            held.append(a.storage if plain else self.contiguous_storage(a, steps))
        return held

    def contiguous_storage(self, array: Any, steps: Shape) -> Storage:
        """An input as its kernels expect it: contiguous, from the start of a buffer."""
        if isinstance(array, np.ndarray):  # a small tensor of the CPU, such as a random state
            array = self.dev.from_numpy(array)
        if array.offset or array.strides != steps:
            array = copy_kernels.contiguous(self.dev, array)
        if array.offset:
            array = self.dev.elementwise(
                "copy", copy_kernels.identity(FROM_NP[array.dtype]), [array]
            )
        storage: Storage = array.storage
        return storage

    def copied_storage(self, source: Storage, shelf: Shelf) -> Storage:
        """A copy of the bytes in memory that may be overwritten."""
        target = shelf.take()
        self.gpu.copy(source, target, 0, -(-source.size // 4) * 4)
        return target

    def result(
        self, array: WebGPUArray, at: int, held: list[Storage], given: dict[int, WebGPUArray]
    ) -> WebGPUArray:
        """A result on block number `at` of this call; a constant (-1) is returned as it is."""
        if at < 0:
            return array
        if at in given:
            return given[at]
        strides = None if array.in_order else array.strides
        storage = held[at]
        return WebGPUArray(array.device, array.shape, array.dtype, storage, array.offset, strides)


def without_repeats(log: list[Command]) -> list[Command]:
    """The commands without repeated checks of indices that have not changed since. It does not
    matter which op checks: the first one raises."""
    seen: dict[int, set[Any]] = {}  # checks, by the block they read
    made = []
    for c in log:
        if c.kernel is not None and _is_check(c):
            words = np.frombuffer(c.kernel.uniform, np.uint32)
            asked = (c.kernel.source, np.delete(words, gather_scatter.MESSAGE).tobytes())
            before = seen.setdefault(c.blocks[0].number, set())
            if asked in before:
                continue
            before.add(asked)
        for block in c.blocks[_inputs(c) :]:
            seen.pop(block.number, None)
        made.append(c)
    return made


def _is_check(command: Command) -> bool:
    return command.kernel is not None and command.kernel.name == gather_scatter.CHECK


def _inputs(command: Command) -> int:
    """How many of its blocks a command only reads."""
    return 1 if command.kernel is None else command.kernel.inputs

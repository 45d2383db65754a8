"""A compiled function on WebGPU: its commands recorded once, then handed over again and again.

Groups of fused values are kernels of their own; everything else is what eager mode would launch.
While the commands are recorded, memory comes from a pool that belongs to the replay alone, so that
buffers and bind groups stay valid. The buffers of inputs and results are those of each call: the
few commands that touch them are bound anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from everygrad.backends.webgpu import epilogues, moves, windows
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.fused import Fuser, Kernel, Scratch, strays
from everygrad.backends.webgpu.gpu import Command
from everygrad.backends.webgpu.memory import Storage
from everygrad.backends.webgpu.promises import Promised, Promises, shared
from everygrad.compile.fuse import Group, fuse, used_outside
from everygrad.compile.ir import Graph, Value
from everygrad.compile.memory import Lifetime, Memory
from everygrad.compile.views import view_of
from everygrad.dtypes import FROM_NP
from everygrad.errors import CompileError, DeviceError
from everygrad.shapes import Shape

SMALL = 1 << 20  # elements up to which starting a kernel costs a GPU more than its work


def fusable(v: Value) -> bool:
    """Elementwise values, reductions, and picks by an index: all that groups are made of."""
    return v.kind in ("elementwise", "reduction") or v.name == "take"


class Replay:
    """Runs one graph again and again on one device."""

    def __init__(self, dev: Any, graph: Graph) -> None:
        self.dev = dev
        self.gpu = dev.gpu
        self.graph = graph
        self.lock = threading.RLock()
        self.running = False
        self.interrupted: BaseException | None = None
        self.arrays: list[Any] = [None] * len(graph.inputs)
        self.log: list[Command] = []
        self.made: dict[Value, WebGPUArray] = {}
        with self.gpu.lock:
            self.gpu.fault_storage()  # not ours: it outlives us
            outside = self.gpu.pool
            promises = self.gpu.pool = Promises(outside)
            self.gpu.log = self.log
            try:
                self.record()
            finally:
                self.gpu.pool, self.gpu.log = outside, None
                promises.close()
        self.plan()
        self.checks = any(v.name == "check_range" for v in graph.values)

    # --- recording -------------------------------------------------------------------------------

    def record(self) -> None:
        graph, dev = self.graph, self.dev
        for v in graph.inputs:
            self.made[v] = dev.empty(v.shape, v.dtype)
        limits = self.gpu.limits
        most = max(1, limits.storage_buffers - 1)
        small = 0 if self.gpu.is_software else SMALL
        groups = without_strays(fuse(graph, fusable, most, small))
        stored = used_outside(groups, graph.outputs)
        fuser = Fuser(
            limits.storage_buffers,
            limits.shared_bytes,
            self.gpu.is_software,
            lambda nbytes: len(windows.cut(nbytes, limits.binding_size)),
        )
        links = epilogues.links(groups, graph.outputs)
        waiting = set(links.values())
        for group in groups:
            if group.opaque in waiting:
                continue
            if group.opaque is not None:
                self.alone(group.opaque)
            elif group not in links or not self.finished(links[group], group, stored):
                self.group(fuser.kernels(group, stored))
        self.results = {v: self.array(v) for v in graph.outputs}

    def array(self, v: Value) -> WebGPUArray:
        """A value as an array: a view of what was computed."""
        if not v.size:
            return self.nothing(v)
        view = view_of(v)
        base = self.base(view.base)
        return base.view(view.shape, view.strides, base.offset + view.offset)

    def nothing(self, v: Value) -> WebGPUArray:
        """A value without elements: it lies nowhere."""
        made: WebGPUArray = self.dev.empty(v.shape, v.dtype)
        return made

    def base(self, v: Value) -> WebGPUArray:
        found = self.made.get(v)
        if found is None:  # constants: computed values are there already
            if v.kind == "full":
                found = self.dev.from_numpy(np.full(v.shape, v.params["value"], v.dtype.np))
            else:
                found = self.dev.from_numpy(np.ascontiguousarray(v.params["array"]))
            self.made[v] = found
        return found

    def group(self, kernels: list[Kernel]) -> None:
        """A group's kernels, one after the other."""
        between: dict[Scratch, Any] = {}
        for kernel in kernels:
            for b in kernel.outputs:
                if isinstance(b, Scratch):
                    between[b] = self.gpu.pool.take(b.nbytes)
                else:
                    self.made[b] = self.dev.empty(b.shape, b.dtype)
            storages = [
                [between[b] if isinstance(b, Scratch) else self.base(b).storage for b in bound]
                for bound in (kernel.inputs, kernel.outputs)
            ]
            self.gpu.dispatch(kernel.name, kernel.source, *storages, [0], kernel.workgroups)

    def finished(self, v: Value, group: Group, stored: set[Value]) -> bool:
        """The product v, and whether its kernel could make the group's values at once."""
        arrays = [self.array(a) for a in v.args]
        made = epilogues.finish(self.dev, v, arrays, group, stored, self.base)
        if made is None:
            self.alone(v)
            return False
        self.made.update(made)
        return True

    def alone(self, v: Value) -> None:
        if not v.size:
            self.made[v] = self.nothing(v)
            return
        out = self.dev.run(v.op, [self.array(a) for a in v.args], v.params)
        out = moves.contiguous(self.dev, out)
        if out.offset:
            out = self.dev.elementwise("copy", moves.identity(v.dtype), [out])
        self.made[v] = out

    # --- memory ----------------------------------------------------------------------------------

    def plan(self) -> None:
        """Decide which memory is whose. Inputs and results get theirs at each call, constants
        have it, and what is computed on the way shares blocks, taken when the first call runs."""
        written = {b.number for c in self.log for b in c.blocks[_inputs(c) :]}
        arrays = [(i, self.made[v]) for i, v in enumerate(self.graph.inputs)]
        self.inputs = [  # the numbers of their blocks, and the strides they come with
            (i, a.storage.block.number, a.strides) for i, a in arrays if a.storage is not None
        ]
        given = {number for _, number, _ in self.inputs}
        self.outputs: dict[int, int] = {}  # sizes, by the number of the block
        for array in self.results.values():
            storage = array.storage
            if storage is not None and storage.block.number in written - given:
                self.outputs[storage.block.number] = storage.size
        spans: dict[Promised, list[int]] = {}
        constants: dict[int, int] = {}
        for step, command in enumerate(self.log):
            for b in command.blocks:
                if not isinstance(b, Promised) or b.number in given or b.number in self.outputs:
                    continue
                if b.held is None:
                    spans.setdefault(b, [step, step])[1] = step
                elif b.number in written:
                    raise CompileError("webgpu: a kernel writes over a constant; please report it")
                else:
                    constants[b.number] = b.held.size
        self.lifetimes = [
            Lifetime(b.size, first, last, self.name_of(first)) for b, (first, last) in spans.items()
        ]
        places = shared(self.lifetimes, self.gpu.limits.binding_size)
        self.places = dict(zip(spans, places, strict=True))
        self.constants = sum(constants.values())
        self.commands: list[Command] = []  # as they run; those that are bound name no blocks

    def name_of(self, step: int) -> str:
        """Who makes what a step is the first to use."""
        kernel = self.log[step].kernel
        return "copy" if kernel is None else kernel.name

    def settle(self) -> None:
        """Take the blocks, and bind the commands that touch nothing else."""
        sizes: dict[int, int] = {}
        for b, place in self.places.items():
            sizes[place] = max(b.size, sizes.get(place, 0))
        self.storages = {place: self.gpu.pool.take(size) for place, size in sizes.items()}
        real = {b.number: self.storages[place].block for b, place in self.places.items()}
        changing = {*self.outputs, *(number for _, number, _ in self.inputs)}
        commands = []
        for kernel, promised, bound in self.log:
            blocks = tuple(real.get(b.number, b) for b in promised)
            if kernel is not None and not any(b.number in changing for b in blocks):
                bound, blocks = self.gpu.bind_group(kernel, list(blocks)), ()
            commands.append(Command(kernel, blocks, bound))
        self.commands = commands

    def memory(self) -> Memory:
        """What the function takes: on the way, for results, for constants."""
        sizes: dict[int, int] = {}
        for life, place in zip(self.lifetimes, self.places.values(), strict=True):
            sizes[place] = max(life.nbytes, sizes.get(place, 0))
        starts = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        placed = [
            (starts[p], life) for life, p in zip(self.lifetimes, self.places.values(), strict=True)
        ]
        results = sum(self.outputs.values())
        return Memory(sum(sizes.values()), placed, results, self.constants, 0)

    # --- for people to read ----------------------------------------------------------------------

    def steps(self) -> list[str]:
        """What each command is, and its workgroups."""
        lines = []
        for c in self.log:
            if c.kernel is None:
                lines.append(f"copy: {c.bound[1]} bytes")
            else:
                grid = " x ".join(str(n) for i, n in enumerate(c.kernel.grid) if n > 1 or not i)
                lines.append(f"{c.kernel.name}: {grid} workgroup{'s' if grid != '1' else ''}")
        return lines

    def sources(self) -> dict[str, str]:
        """The texts, each with a comment that names the first command that has it."""
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
        """Which results may take the place of which inputs: none, results are copied out."""
        return {}

    def put(self, i: int, array: Any) -> None:
        """Make an array input i of the calls to come."""
        self.arrays[i] = array

    def run_on(self, inputs: Sequence[Any]) -> list[Any]:
        with self.lock:
            for i, array in enumerate(inputs):
                self.put(i, array)
            return self.run({})

    def step_bytes(self) -> list[int]:
        """Bytes of the blocks that each command reads and writes."""
        return [sum(b.size for b in c.blocks) for c in self.log]

    def run_apart(self, given: dict[int, Any], around: Any) -> list[Any]:
        """As `run`, but one command at a time: `around(steps, work)` does the work of these."""
        return self.run(given, around)

    def run(self, given: dict[int, Any], around: Any = None) -> list[Any]:
        """The outputs for the arrays that were put."""
        if self.gpu.lost is not None:
            raise DeviceError(self.gpu.lost)
        with self.gpu.lock:
            if len(self.commands) < len(self.log):
                self.settle()
            held = {  # in the place of what was promised, by the number of its block
                number: self.in_order(self.arrays[i], steps) for i, number, steps in self.inputs
            }
            take = self.gpu.pool.take
            for number, size in self.outputs.items():
                held[number] = take(size)
            instead = {number: storage.block for number, storage in held.items()}
            if around is None:
                self.gpu.again(self.commands, instead)
            for i, command in enumerate(self.commands if around is not None else ()):
                around(range(i, i + 1), partial(self.gpu.again, [command], instead))
            if self.checks:
                self.gpu.expect_checks()
            self.gpu.submit()
        made = {v: self.result(array, held) for v, array in self.results.items()}
        return [made[v] for v in self.graph.outputs]  # one value, one array

    def in_order(self, array: Any, steps: Shape) -> Storage:
        """An input as its kernels expect it: from the start of a buffer, one after the other."""
        if isinstance(array, np.ndarray):  # a small tensor of the CPU, such as a random state
            array = self.dev.from_numpy(array)
        if array.offset or array.strides != steps:
            array = moves.contiguous(self.dev, array)
        if array.offset:
            array = self.dev.elementwise("copy", moves.identity(FROM_NP[array.dtype]), [array])
        storage: Storage = array.storage
        return storage

    def result(self, array: WebGPUArray, held: dict[int, Storage]) -> WebGPUArray:
        """A result on the memory of this call; constants stay where they are."""
        storage = array.storage
        found = held.get(storage.block.number) if storage is not None else None
        if found is None:
            return array
        return WebGPUArray(
            array.device, array.shape, array.dtype, found, array.offset, array.strides
        )


def without_strays(groups: list[Group]) -> list[Group]:
    """The groups, with the sums that no walk of theirs serves as kernels behind them."""
    made: list[Group] = []
    for group in groups:
        apart = strays(group) if group.opaque is None else []
        for v in apart:
            del group.members[v]
        made += [group] if group.values else []
        for v in apart:
            alone = Group(group.number)
            alone.opaque = v
            made.append(alone)
    return made


def _inputs(command: Command) -> int:
    """How many of its blocks a command only reads."""
    return 1 if command.kernel is None else command.kernel.inputs

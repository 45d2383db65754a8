"""A compiled function on WebGPU: its commands recorded once, then handed over again and again.

Groups of fused values are kernels of their own; everything else is what eager mode would launch.
While the commands are recorded, memory comes from a pool that belongs to the replay alone, so that
buffers and bind groups stay valid. The buffers of inputs and results are those of each call: the
few commands that touch them are bound anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.backends.webgpu import moves
from everygrad.backends.webgpu.array import WebGPUArray
from everygrad.backends.webgpu.fused import kernels
from everygrad.backends.webgpu.gpu import WORKGROUP
from everygrad.backends.webgpu.memory import Block, Pool, Storage
from everygrad.compile.fuse import Group, fuse, used_outside
from everygrad.compile.ir import Graph, Value
from everygrad.compile.views import view_of
from everygrad.dtypes import FROM_NP
from everygrad.errors import DeviceError


def fusable(v: Value) -> bool:
    """Elementwise values, and picks by an index; reductions are kernels of their own."""
    return v.kind == "elementwise" or v.name == "take"


class _Private(Pool):
    """Memory of one replay. No block serves twice: a constant that is written once, while commands
    are recorded, must not lie where an earlier command writes at each call."""

    def __init__(self, gpu: Any) -> None:
        super().__init__(gpu)
        self.loose: list[Block] = []  # given back, and kept for the commands that use them

    def take(self, size: int) -> Storage:
        while self.returned:
            self.loose.append(self.returned.popleft())
        return super().take(size)


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
        self.log: list[Any] = []
        self.made: dict[Value, WebGPUArray] = {}
        with self.gpu.lock:
            self.gpu.fault_storage()  # not ours: it outlives us
            self.pool, outside = _Private(self.gpu), self.gpu.pool
            self.gpu.pool = self.pool
            self.gpu.log = self.log
            try:
                self.record()
            finally:
                self.gpu.pool, self.gpu.log = outside, None
                outside.adopt(self.pool)
            self.kept = list(dev.made.values())  # constants that eager kernels share
            # what was recorded also ran, on inputs that mean nothing
            self.gpu.write(self.gpu.fault_storage(), b"\0" * 16)
        self.checks = any(v.name == "check_range" for v in graph.values)

    def __del__(self) -> None:
        # blocks that no array holds are anybody's again; an append is safe at any moment
        pool = self.__dict__.get("pool")
        if pool is not None:
            for block in pool.loose:
                self.gpu.pool.returned.append(block)

    # --- recording -------------------------------------------------------------------------------

    def record(self) -> None:
        graph, dev = self.graph, self.dev
        for v in graph.inputs:
            self.made[v] = dev.empty(v.shape, v.dtype)
        most = self.gpu.limits.storage_buffers
        groups = fuse(graph, fusable, max(1, most - 1))
        stored = used_outside(groups, graph.outputs)
        for group in groups:
            if group.opaque is None:
                self.group(group, stored, most)
            else:
                self.alone(group.opaque)
        self.results = {v: self.array(v) for v in graph.outputs}
        # results get memory of their own at each call: the blocks they were recorded in, and sizes
        inputs = {self.made[v].storage for v in graph.inputs}
        constants = {a.storage for v, a in self.made.items() if v.kind in ("full", "constant")}
        self.outputs = {
            a.storage.block.number: a.storage.size
            for a in self.results.values()
            if a.storage is not None and a.storage not in inputs | constants
        }

    def array(self, v: Value) -> WebGPUArray:
        """A value as an array: a view of what was computed."""
        view = view_of(v)
        base = self.base(view.base)
        return base.view(view.shape, view.strides, base.offset + view.offset)

    def base(self, v: Value) -> WebGPUArray:
        found = self.made.get(v)
        if found is None:  # constants: computed values are there already
            if v.kind == "full":
                found = self.dev.from_numpy(np.full(v.shape, v.params["value"], v.dtype.np))
            else:
                found = self.dev.from_numpy(np.ascontiguousarray(v.params["array"]))
            self.made[v] = found
        return found

    def group(self, group: Group, stored: set[Value], most: int) -> None:
        for kernel in kernels(group, stored, most):
            for v in kernel.outputs:
                self.made[v] = self.dev.empty(v.shape, v.dtype)
            name = "fused " + " ".join(v.name for v in kernel.outputs)
            self.gpu.dispatch(
                name,
                kernel.source,
                [self.base(v).storage for v in kernel.inputs],
                [self.made[v].storage for v in kernel.outputs],
                [0],
                -(-kernel.threads // WORKGROUP),
            )

    def alone(self, v: Value) -> None:
        if not v.size:
            self.made[v] = self.dev.empty(v.shape, v.dtype)
            return
        out = self.dev.run(v.op, [self.array(a) for a in v.args], v.params)
        out = moves.contiguous(self.dev, out)
        if out.offset:
            out = self.dev.elementwise("copy", moves.identity(v.dtype), [out])
        self.made[v] = out

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

    def run(self, given: dict[int, Any]) -> list[Any]:
        """The outputs for the arrays that were put."""
        if self.gpu.lost is not None:
            raise DeviceError(self.gpu.lost)
        with self.gpu.lock:
            instead: dict[int, Block] = {}
            real: dict[int, WebGPUArray] = {}  # in the place of our own, by block
            for v, array in zip(self.graph.inputs, self.arrays, strict=True):
                ours = self.made[v].storage
                if ours is not None:
                    found = self.in_order(array)
                    assert found.storage is not None
                    instead[ours.block.number] = found.storage.block
                    real[ours.block.number] = found
            for block, size in self.outputs.items():
                fresh = self.gpu.pool.take(size)
                instead[block] = fresh.block
                real[block] = WebGPUArray(self.dev.device, (), None, fresh)
            self.gpu.again(self.log, instead)
            if self.checks:
                self.gpu.expect_checks()
            self.gpu.submit()
        made = {v: self.result(array, real) for v, array in self.results.items()}
        return [made[v] for v in self.graph.outputs]  # one value, one array

    def in_order(self, array: Any) -> WebGPUArray:
        """An input as its kernels expect it: from the start of a buffer, one after the other."""
        if isinstance(array, np.ndarray):  # a small tensor of the CPU, such as a random state
            array = self.dev.from_numpy(array)
        array = moves.contiguous(self.dev, array)
        if array.offset:
            array = self.dev.elementwise("copy", moves.identity(FROM_NP[array.dtype]), [array])
        return array

    def result(self, array: WebGPUArray, real: dict[int, WebGPUArray]) -> WebGPUArray:
        """A result on the memory of this call; constants stay where they are."""
        storage = array.storage
        found = real.get(storage.block.number) if storage is not None else None
        if found is None:
            return array
        return WebGPUArray(
            array.device, array.shape, array.dtype, found.storage, array.offset, array.strides
        )

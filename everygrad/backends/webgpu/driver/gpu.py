"""One opened GPU: pipelines, bind groups, uniforms, the command encoder, and reading back.

Commands are recorded into one encoder until something is read. Whatever makes wgpu abort a process
cannot happen here: buffers are dropped, never destroyed; a command buffer is submitted once, where
it is made; a staging buffer is unmapped before it is used again; nothing of size 0 is bound.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import wgpu

from everygrad.backends.deferred_checks import Check, Checks
from everygrad.backends.webgpu.driver import binding_windows
from everygrad.backends.webgpu.driver.adapters import FORKED, request_device
from everygrad.backends.webgpu.driver.encoding import Encoder
from everygrad.backends.webgpu.driver.memory import Block, Pool, Slice, Storage
from everygrad.backends.webgpu.driver.messages import first_words, numbered
from everygrad.backends.webgpu.driver.pipelines import Pipeline, Pipelines
from everygrad.backends.webgpu.driver.readback import STAGED, ByteRange, Fetch, Readback
from everygrad.backends.webgpu.driver.shader_modules import shader_module
from everygrad.backends.webgpu.driver.submit import CommandRow, Recorder, recorder
from everygrad.backends.webgpu.driver.wgpu_native import by_classes, direct
from everygrad.codegen import report
from everygrad.compiler.thresholds import edge
from everygrad.errors import (
    CompileError,
    DeviceError,
    EverygradError,
    OutOfMemoryError,
    OutOfRangeError,
)

WORKGROUP = edge(__name__, "WORKGROUP", 256, "size")  # every WebGPU device allows it
FLUSH_AFTER = 256  # commands recorded before they are submitted, so that the GPU starts early
_SLOT = 256  # bytes between uniforms: the alignment any device accepts
_ARENA = 1 << 16
_MAX_CACHED = 8192  # uniforms, and bind groups, cached before the caches are cleared
_USAGE = wgpu.BufferUsage
_LOST = re.compile(r"\blost\b|device.*(destroyed|invalid)|no longer valid", re.IGNORECASE)


@dataclass
class Limits:
    """What the device grants. Tests lower these."""

    storage_buffers: int
    binding_size: int
    buffer_size: int
    groups: int
    shared_bytes: int

    @staticmethod
    def of(given: Any) -> Limits:
        return Limits(
            given["max-storage-buffers-per-shader-stage"],
            given["max-storage-buffer-binding-size"],
            given["max-buffer-size"],
            given["max-compute-workgroups-per-dimension"],
            given["max-compute-workgroup-storage-size"],
        )


_REQUESTED = (
    "max-storage-buffers-per-shader-stage",
    "max-storage-buffer-binding-size",
    "max-buffer-size",
    "max-compute-workgroups-per-dimension",
    "max-compute-workgroup-storage-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
)


class Kernel(NamedTuple):
    """A pipeline, the bytes of its uniform, its workgroups, how many buffers it reads, writes."""

    pipeline: Pipeline
    uniform: bytes
    grid: tuple[int, int, int]
    inputs: int
    outputs: int
    name: str = ""
    source: str = ""


class Bound(NamedTuple):
    """A kernel bound to buffers, as handles; and the group and pipeline that must outlive them."""

    pipeline: Any
    group: Any
    keep: Any


class Command(NamedTuple):
    """A logged command: a kernel on blocks, those it reads first, and what `bind_group` gave for
    them; or, without a kernel, a copy of one block into another, whose `bound` is (at, size)."""

    kernel: Kernel | None
    blocks: tuple[Block, ...]
    bound: Any


class Copy(NamedTuple):
    """The first `size` bytes of one block into another at byte `at`."""

    source: Block
    target: Block
    at: int
    size: int


class Gpu:
    """A device of an adapter, until it is lost."""

    def __init__(self, adapter: Any) -> None:
        self.adapter = adapter
        wanted = {name: adapter.limits[name] for name in _REQUESTED}
        # tests and browser exports remove some of the features
        self.device, self.features = request_device(adapter, wanted)
        self.has_cooperative_matrices: bool | None = None  # whether they are correct, once checked
        self.queue = self.device.queue
        self.is_software = adapter.info["adapter_type"] == "CPU"
        self.limits = Limits.of(self.device.limits)
        self.lock = threading.RLock()
        self.lost: str | None = None
        _gpus.add(self)
        self.pool = Pool(self)
        self.epoch = 0  # counts submissions
        self._encoder: Encoder | None = None
        self._recorded = 0
        self._pipelines = Pipelines(self._compile, self.is_software)
        self._layouts: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._groups: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._wide: dict[tuple[Any, ...], Bound] = {}  # on buffers larger than a binding
        self._slices: dict[tuple[int, int, int], Slice] = {}
        self.bind_group_resets = 0  # how often all bind groups were dropped
        self.largest = 0  # bytes of the largest block there ever was
        self._uniforms: dict[bytes, tuple[Any, int, int]] = {}
        self._arena: Any = None
        self._arena_used = _ARENA
        self.calls = direct() or by_classes()
        self.readback = Readback(self)
        self.submission: Any = None  # the last one
        self._checks = Checks()
        self._faults: Storage | None = None
        self.checks_made = self._checks_read = 0
        self.log: list[Any] | None = None  # of commands, while a compiled function is recorded
        self.launched: list[str] | None = None  # names of kernels, for a profiler
        self.clock: Any = None  # notes when passes begin and end (`timing`)

    # --- errors ----------------------------------------------------------------------------------

    def guard(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call into wgpu, with its errors converted to ours."""
        if self.lost is not None:
            raise DeviceError(self.lost)
        try:
            return call(*args, **kwargs)
        except wgpu.GPUOutOfMemoryError as error:
            raise OutOfMemoryError(f"webgpu: out of memory: {error}") from None
        except (wgpu.GPUError, RuntimeError) as error:
            if isinstance(error, DeviceError | CompileError):
                raise
            text = str(error)
            if _LOST.search(text):
                raise self.lose(text) from None
            raise DeviceError(f"webgpu: {first_words(text)}") from error

    def lose(self, why: str) -> DeviceError:
        """Mark the device as lost: every later call raises."""
        self.lost = (
            f"webgpu: the device was lost ({first_words(why)}); tensors on it are gone. "
            f"The next tensor made on this device opens it again"
        )
        self._encoder = None
        return DeviceError(self.lost)

    # --- pipelines -------------------------------------------------------------------------------

    def layout(self, inputs: int, outputs: int) -> tuple[Any, Any]:
        """Bindings 0.. for what is read, then what is written, then the uniform. Explicit, since
        layout="auto" drops bindings a shader happens not to use."""
        found = self._layouts.get((inputs, outputs))
        if found is None:
            kinds = ["read-only-storage"] * inputs + ["storage"] * outputs + ["uniform"]
            entries = [
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for i, kind in enumerate(kinds)
            ]
            bindings = self.guard(self.device.create_bind_group_layout, entries=entries)
            whole = self.guard(self.device.create_pipeline_layout, bind_group_layouts=[bindings])
            found = self._layouts[inputs, outputs] = (bindings, whole)
        return found

    def pipeline(
        self, name: str, source: str, inputs: int, outputs: int, later: bool = False
    ) -> Pipeline:
        """A kernel, compiled now, or by another thread if `later`."""
        return self._pipelines.get(name, source, self.layout(inputs, outputs)[1], later)

    def _compile(self, name: str, source: str, layout: Any) -> Any:
        if self.lost is not None:
            raise DeviceError(self.lost)
        try:
            module = shader_module(self.device, name, source)
            stage = {"module": module, "entry_point": "main"}
            return self.device.create_compute_pipeline(layout=layout, compute=stage, label=name)
        except (wgpu.GPUError, wgpu.GPUPipelineError, RuntimeError) as error:
            text = str(error)
            if _LOST.search(text):
                raise self.lose(text) from None
            raise CompileError(
                f"webgpu: the kernel {name!r} does not compile:\n{text.strip()}\n"
                f"{numbered(source, text)}{report.origin(source)}"
            ) from None

    # --- recording -------------------------------------------------------------------------------

    def dispatch(
        self,
        name: str,
        source: str,
        inputs: Sequence[Storage],
        outputs: Sequence[Storage],
        params: Sequence[int],
        groups: int | tuple[int, int, int],
    ) -> None:
        """Record one kernel. `params` are words of its uniform, `groups` its workgroups."""
        kernel = self.prepare(name, source, len(inputs), len(outputs), params, groups)
        self.record(kernel, [s.block for s in (*inputs, *outputs)])

    def prepare(
        self,
        name: str,
        source: str,
        inputs: int,
        outputs: int,
        params: Sequence[int],
        groups: int | tuple[int, int, int],
    ) -> Kernel:
        """Everything about a kernel but its buffers; good for as long as this device lives."""
        if max(params, default=0) >> 32 or min(params, default=0) < -(1 << 31):
            raise DeviceError(
                f"webgpu: {name} is given {max(params, key=abs)}, and kernels count in 32 bits; "
                f"split the tensor"
            )
        with self.lock:
            # a compiled function binds its kernels when all of it is recorded
            later = self.log is not None
            pipeline = self.pipeline(name, source, inputs, outputs, later)
        words = np.array(params, np.int64).astype(np.uint32)
        uniform = words.tobytes() + b"\0" * (-4 * len(words) % 16)
        grid = self.grid(groups, name) if isinstance(groups, int) else groups
        return Kernel(pipeline, uniform, grid, inputs, outputs, name, source)

    def record(self, kernel: Kernel, blocks: list[Block]) -> None:
        """One kernel on these buffers, those it writes last."""
        with self.lock:
            if self.lost is not None:
                raise DeviceError(self.lost)
            if self.log is not None:  # a compiled function: only logged, its blocks have no memory
                self.log.append(Command(kernel, tuple(blocks), None))
                return
            bound = self.bind_group(kernel, blocks)
            epoch = self.epoch
            for block in blocks:  # first: an interrupt must not leave a recorded block unmarked
                block.epoch = epoch
            self.guard(self._record, bound, kernel.grid)
            if self.launched is not None:
                self.launched.append(kernel.name)
            self._recorded += 1
            if self._recorded >= FLUSH_AFTER:
                self.submit()

    def _record(self, bound: Bound, grid: tuple[int, int, int]) -> None:
        calls, encoder = self.calls, self._open()
        within = encoder.within_pass(self.clock)
        if bound.pipeline is not encoder.pipeline:
            encoder.pipeline = None  # unknown, should this be interrupted
            calls.set_pipeline(within, bound.pipeline)
            encoder.pipeline = bound.pipeline
        calls.set_group(within, 0, bound.group, 0, calls.nothing)
        calls.dispatch(within, *grid)

    def _open(self) -> Encoder:
        """The encoder that commands are recorded into."""
        if self._encoder is not None and self._encoder.is_finished:
            self.submit()  # it was interrupted
        if self._encoder is None:
            self._encoder = Encoder(self.device, self.calls)
        return self._encoder

    def prepared(self, log: Sequence[Command], actual: dict[int, Block]) -> list[Recorder | Copy]:
        """Logged commands, bound and ready to be recorded, on other blocks where `actual` has them
        (by the number of the logged block)."""
        made: list[Recorder | Copy] = []
        rows: list[CommandRow] = []
        with self.lock:
            for kernel, logged, bound in log:
                blocks = [actual.get(b.number, b) for b in logged]
                if kernel is not None:
                    if bound is None:
                        bound = self.bind_group(kernel, blocks)
                    rows.append(CommandRow(bound.pipeline, bound.group, kernel.grid, bound.keep))
                    continue
                if rows:
                    made.append(recorder(rows, self.calls))
                rows = []
                source, target = blocks
                made.append(Copy(source, target, *bound))
            return [*made, recorder(rows, self.calls)] if rows else made

    def record_prepared(self, prepared: Sequence[Recorder | Copy], commands: int) -> None:
        """Record prepared commands; `commands` is how many they are."""
        with self.lock:
            if self.lost is not None:
                raise DeviceError(self.lost)
            self.guard(self._record_prepared, prepared, self._open())
            self._recorded += commands

    def _record_prepared(self, prepared: Sequence[Recorder | Copy], encoder: Encoder) -> None:
        for part in prepared:
            if isinstance(part, Copy):
                raw = part.target.raw
                copy = encoder.outside_pass().copy_buffer_to_buffer
                copy(part.source.raw, 0, raw, part.at, part.size)
                continue
            within = encoder.within_pass(self.clock)
            encoder.pipeline = None
            part(within)

    def record_separately(self, prepared: Sequence[Recorder | Copy]) -> Encoder:
        """Prepared commands, recorded in an encoder of their own: `adopt` makes them what is
        submitted next, and without it they never run. The caller holds the lock."""
        if self.lost is not None:
            raise DeviceError(self.lost)
        self.submit()  # what came before
        made = Encoder(self.device, self.calls)
        self.guard(self._record_prepared, prepared, made)
        self.guard(made.finish)
        return made

    def adopt(self, encoder: Encoder) -> None:
        """Make these commands the next to be submitted."""
        self._encoder = encoder

    def expect_checks(self) -> None:
        """Note that commands check values: the next read must look at their result."""
        self.checks_made += 1

    @property
    def checks_are_unread(self) -> bool:
        return self.checks_made > self._checks_read and self._faults is not None

    def grid(self, groups: int, name: str) -> tuple[int, int, int]:
        """Workgroups in two dimensions where one dimension is too small."""
        most = self.limits.groups
        if groups <= most:
            return groups, 1, 1
        rows = -(-groups // most)
        if rows > most:
            raise DeviceError(
                f"webgpu: {name} needs {groups} workgroups, this device starts at most "
                f"{most} x {most}; split the tensor"
            )
        return most, rows, 1

    def bind_group(self, kernel: Kernel, blocks: list[Block]) -> Bound:
        key = (kernel.uniform, kernel.inputs, *[b.number for b in blocks])
        found = self._groups.get(key)
        if found is None:
            most = self.limits.binding_size
            if any(b.size > most for b in blocks):
                return self._bind_windows(kernel, blocks, key)
            if len(self._groups) >= _MAX_CACHED:
                self._groups.clear()
            group = self._group(kernel, [(b.raw, b.start, b.size) for b in blocks], kernel.inputs)
            found = self._groups[key] = (self.calls.handle(group), group)
        handle, group = found
        raw = kernel.pipeline.raw
        return Bound(self.calls.handle(raw), handle, (group, raw))

    def slice(self, block: Block, start: int, size: int) -> Block:
        """Bytes of a block as a block; `start` is a multiple of `binding_windows.ALIGNMENT`."""
        key = (block.number, start, size)
        found = self._slices.get(key)
        if found is None:
            found = self._slices[key] = Slice(block, start, size)
        return found

    def _group(self, kernel: Kernel, bindings: list[tuple[Any, int, int]], inputs: int) -> Any:
        """A bind group of these parts of buffers, the first `inputs` of them read."""
        entries = [
            {"binding": i, "resource": {"buffer": raw, "offset": offset, "size": size}}
            for i, (raw, offset, size) in enumerate((*bindings, self._uniform(kernel.uniform)))
        ]
        layout = self.layout(inputs, len(bindings) - inputs)[0]
        return self.guard(self.device.create_bind_group, layout=layout, entries=entries)

    def _bind_windows(self, kernel: Kernel, blocks: list[Block], key: tuple[Any, ...]) -> Bound:
        """As `bind_group`, where some blocks are larger than a binding."""
        found = self._wide.get((kernel.pipeline, key))
        if found is None:
            if len(self._wide) >= _MAX_CACHED:
                self._wide.clear()
            most = self.limits.binding_size
            cuts = [binding_windows.cut(b.size, most) for b in blocks]
            counts = tuple(map(len, cuts))
            self._check_windows(kernel.name, sum(counts))
            source = binding_windows.widened(kernel.name, kernel.source, counts, most)
            inputs, outputs = sum(counts[: kernel.inputs]), sum(counts[kernel.inputs :])
            pipeline = self.pipeline(kernel.name, source, inputs, outputs).raw
            bindings = [
                (b.raw, b.start + at, size)
                for b, cut in zip(blocks, cuts, strict=True)
                for at, size in cut
            ]
            group = self._group(kernel, bindings, inputs)
            handle = self.calls.handle
            keep = (group, pipeline)
            found = Bound(handle(pipeline), handle(group), keep)
            self._wide[kernel.pipeline, key] = found
        return found

    def _check_windows(self, name: str, count: int) -> None:
        most, size = self.limits.storage_buffers, self.limits.binding_size
        if count > most:
            raise OutOfMemoryError(
                f"webgpu: {name}: its tensors take {count} bindings of {size} bytes "
                f"(max-storage-buffer-binding-size), and this device binds {most} at once "
                f"(max-storage-buffers-per-shader-stage); split the tensors"
            )

    def _uniform(self, data: bytes) -> tuple[Any, int, int]:
        """Where these bytes are as a uniform: equal ones share a slot, and it never changes."""
        found = self._uniforms.get(data)
        if found is None:
            if len(self._uniforms) >= _MAX_CACHED:
                self._uniforms.clear()
                self.drop_bind_groups()
                self._arena_used = _ARENA
            padded = -(-len(data) // _SLOT) * _SLOT
            if self._arena_used + padded > _ARENA:
                usage = _USAGE.UNIFORM | _USAGE.COPY_DST
                self._arena = self.guard(self.device.create_buffer, size=_ARENA, usage=usage)
                self._arena_used = 0
            found = (self._arena, self._arena_used, len(data))
            self.guard(self.queue.write_buffer, self._arena, self._arena_used, data)
            self._arena_used += padded
            self._uniforms[data] = found  # when it is there
        return found

    def drop_bind_groups(self) -> None:
        """Drop the cached bind groups, which keep their buffers alive."""
        self.bind_group_resets += 1
        self._groups.clear()
        self._wide.clear()
        self._slices.clear()

    def submit(self) -> None:
        """Submit the recorded commands to the GPU."""
        with self.lock:
            if self._encoder is None:
                return
            try:  # continues where it was interrupted
                self.submission = self.guard(self._encoder.submit, self.queue)
            except EverygradError:
                self._encoder = None
                raise
            self.epoch += 1
            self._recorded = 0
            self._encoder = None

    def outside_pass(self) -> Any:
        """The encoder, ready for copies."""
        return self._open().outside_pass()

    # --- data in and out -------------------------------------------------------------------------

    def is_recorded(self, block: Block) -> bool:
        """Whether commands that are not submitted yet use it."""
        return block.epoch == self.epoch and self._encoder is not None

    def write(self, storage: Storage, data: Any) -> None:
        """Write bytes into a new storage. Writes run before recorded commands: a recycled buffer
        that recorded commands still use must wait for them."""
        with self.lock:
            if self.is_recorded(storage.block):
                self.submit()
            raw, size = storage.block.raw, memoryview(data).nbytes
            for at in range(0, size, STAGED):
                if at:  # the staged bytes are copied before more are written
                    self.guard(self.queue.submit, [])
                part = min(STAGED, size - at)
                self.guard(self.queue.write_buffer, raw, at, data, at, part)

    def copy(self, source: Storage, target: Storage, at: int, size: int) -> None:
        """Copy the first `size` bytes of one storage into another at byte `at`."""
        with self.lock:
            if self.log is not None:
                self.log.append(Command(None, (source.block, target.block), (at, size)))
                return
            encoder = self.guard(self.outside_pass)
            raw = source.block.raw
            source.block.epoch = target.block.epoch = self.epoch
            self.guard(encoder.copy_buffer_to_buffer, raw, 0, target.block.raw, at, size)
            self._recorded += 1

    def read(self, storage: Storage, start: int, size: int) -> Any:
        """`size` bytes from `start` on (multiples of 4) as a NumPy array, after all earlier
        commands; raises what a check found meanwhile."""
        with self.lock:
            if size <= STAGED:
                return self.fetch([ByteRange(storage, start, size)]).result()[0]
            whole = np.empty(size, np.uint8)
            for at in range(0, size, STAGED):  # in pieces: staging takes as much memory again
                part = ByteRange(storage, start + at, min(STAGED, size - at))
                whole[at : at + part.size] = self.fetch([part]).result()[0]
            return whole

    def fetch(self, parts: Sequence[ByteRange]) -> Fetch:
        """Start to read these bytes; `result()` waits for them, and for nothing recorded later."""
        return self.readback.start(parts)

    def wait(self) -> None:
        """Wait until everything recorded has run; raises what a check found."""
        self.read(self.fault_storage(), 0, 16)

    # --- checks ----------------------------------------------------------------------------------

    def fault_storage(self) -> Storage:
        """Four words: how many bad values, the number of the check, and the first bad value."""
        if self._faults is None:
            made = self.pool.take(16)
            self.write(made, b"\0" * 16)
            self._faults = made
        return self._faults

    def check_number(
        self, what: str, size: int, error: type[EverygradError] = OutOfRangeError
    ) -> int:
        """The number of a check's message; the next `read` looks at its result."""
        self.checks_made += 1
        return self._checks.number(Check(what, size, error))

    @property
    def raised(self) -> int:
        """How many errors of checks were raised."""
        return self._checks.raised

    def raise_fault(self, words: Any, checks: int, raised: int) -> None:
        """Raise what the first `checks` checks found, as four words. An error that was raised after
        the words were requested, when the count was `raised`, is not raised again."""
        self._checks_read = max(self._checks_read, checks)
        value = int(words[2:].view(np.int64)[0])
        refusal = self._checks.refusal(int(words[0]), int(words[1]), value, raised)
        if refusal is not None:
            self.write(self.fault_storage(), b"\0" * 16)
            raise refusal


_gpus: weakref.WeakSet[Gpu] = weakref.WeakSet()


def _after_fork() -> None:
    """Mark devices as lost in a forked child, which has none of wgpu's threads nor the holders of
    locks: every use of a device raises at once instead of waiting for ever."""
    for gpu in _gpus:
        gpu.lost = FORKED
        gpu.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""The native calls that record commands, as directly as the installed wgpu allows.

wgpu's classes spend several microseconds a command on catching errors that are reported, if at all,
when the pass ends. So wgpu-native's functions are called directly where they are available; a wgpu
that hides them is used through its classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from wgpu.backends import wgpu_native

from everygrad.backends.webgpu.driver.mapping import Mapping, is_possible
from everygrad.core.scopes import at_once

_FUNCTIONS = (
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuQueueSubmitForIndex",
    "wgpuDevicePoll",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuComputePassEncoderEnd",
    "wgpuComputePassEncoderRelease",
    "wgpuCommandEncoderFinish",
    "wgpuCommandBufferRelease",
)


class NativeCalls(NamedTuple):
    """All take handles, which `handle` makes from wgpu's objects; but `begin`, `end`, `finish`,
    `submit` and `drop` take encoders and queues themselves, and lists in which they note what they
    did, in one native call."""

    handle: Callable[[Any], Any]
    set_pipeline: Callable[[Any, Any], Any]  # of a pass
    set_group: Callable[[Any, int, Any, int, Any], Any]  # of a pass: index, group, no offsets
    dispatch: Callable[[Any, int, int, int], Any]
    begin: Callable[[Any, list[Any]], None]  # an encoder; its pass is put into the list
    end: Callable[[list[Any], Any], None]  # the pass in the list, and its object if it has one
    drop: Callable[[list[Any]], None]  # the pass in the list, which was not ended
    finish: Callable[[Any, list[Any]], None]  # an encoder; the command buffer is put into the list
    forget: Callable[[list[Any]], None]  # the command buffer in the list, which was not submitted
    submit: Callable[[Any, list[Any], list[Any]], None]  # a queue, that list; notes the submission
    submission: Callable[[Any], Any]  # what was noted, as `wait` takes it
    wait: Callable[[Any, Any], Any]  # a device, until a submission has run
    map: Callable[[Mapping, int, Any, Any], int]  # where bytes of a buffer are; device, submission
    close: Callable[[Mapping], None]
    nothing: Any  # what set_group takes for offsets
    address: Callable[[Any], int] = id  # of what a handle points to
    functions: tuple[int, ...] = ()  # where set_pipeline, set_group and dispatch are


def direct() -> NativeCalls | None:
    """The functions of wgpu-native, or None if this wgpu does not expose them."""
    lib: Any = getattr(wgpu_native, "lib", None)
    ffi: Any = getattr(wgpu_native, "ffi", None)
    safe: Any = getattr(getattr(wgpu_native, "_api", None), "libf", None)  # raises errors at once
    if not ffi or not all(hasattr(lib, name) and hasattr(safe, name) for name in _FUNCTIONS):
        return None
    shown = hasattr(safe, "_error_handler") and hasattr(wgpu_native, "_helpers")
    if not shown or not is_possible(lib):
        return None

    errors, kinds = safe._error_handler, wgpu_native._helpers.ERROR_TYPES

    def checked(name: str, *calls: Callable[[], Any]) -> None:
        """Make native calls, one after the other, as one; raises what wgpu-native reports."""
        work = at_once(*calls)
        errors.capture(name)
        try:
            work()
        finally:
            found = errors.release(name)
        if found is not None:
            kind, message = found
            raise kinds.get(kind, wgpu_native.GPUError)(message)

    def collected(made: list[Any], function: Any, *given: Any) -> Callable[[], None]:
        """A call that appends its result to a list."""
        return partial(made.extend, map(function, *[(x,) for x in given]))

    def begin(encoder: Any, opened: list[Any]) -> None:
        function = lib.wgpuCommandEncoderBeginComputePass
        checked("begin", collected(opened, function, encoder._internal, ffi.NULL))

    def end(opened: list[Any], timed: Any) -> None:
        (within,) = opened
        calls = [partial(lib.wgpuComputePassEncoderEnd, within)]
        if timed is None:  # otherwise its object releases it
            calls.append(partial(lib.wgpuComputePassEncoderRelease, within))
        checked("end", *calls, opened.clear)

    def drop(opened: list[Any]) -> None:
        (within,) = opened
        at_once(partial(lib.wgpuComputePassEncoderRelease, within), opened.clear)()

    def finish(encoder: Any, finished: list[Any]) -> None:
        function = lib.wgpuCommandEncoderFinish
        checked("finish", collected(finished, function, encoder._internal, ffi.NULL))

    def forget(finished: list[Any]) -> None:
        (commands,) = finished
        at_once(partial(lib.wgpuCommandBufferRelease, commands), finished.clear)()

    def submit(queue: Any, finished: list[Any], submitted: list[Any]) -> None:
        (commands,) = finished
        given = ffi.new("WGPUCommandBuffer[]", [commands])
        sent = collected(submitted, lib.wgpuQueueSubmitForIndex, queue._internal, 1, given)
        checked("submit", sent, partial(lib.wgpuCommandBufferRelease, commands))

    def submission(index: int) -> Any:
        return ffi.new("uint64_t *", index)

    def wait(device: Any, submission: Any) -> None:
        safe.wgpuDevicePoll(device, True, submission)

    def map_address(mapping: Mapping, size: int, device: Any, submission: Any) -> int:
        return mapping.address(lib, ffi, size, partial(wait, device, submission))

    set_pipeline, set_group, dispatch = (getattr(lib, name) for name in _FUNCTIONS[:3])
    of = attrgetter("_internal")

    def address(handle: Any) -> int:
        return int(ffi.cast("uintptr_t", handle))

    functions = tuple(address(ffi.addressof(lib, name)) for name in _FUNCTIONS[:3])
    return NativeCalls(
        of, set_pipeline, set_group, dispatch, begin, end, drop, finish, forget, submit,
        submission, wait, map_address, partial(Mapping.close, lib=lib), ffi.NULL, address,
        functions,
    )  # fmt: skip


def by_classes() -> NativeCalls:
    """The same through wgpu's classes, which are their own handles."""
    return NativeCalls(
        lambda x: x,
        lambda within, pipeline: within.set_pipeline(pipeline),
        lambda within, index, group, _, offsets: within.set_bind_group(index, group),
        lambda within, x, y, z: within.dispatch_workgroups(x, y, z),
        lambda encoder, opened: opened.append(encoder.begin_compute_pass()),
        lambda opened, timed: opened.pop().end(),
        lambda opened: opened.clear(),
        lambda encoder, finished: finished.append(encoder.finish()),
        lambda finished: finished.clear(),
        lambda queue, finished, submitted: submitted.append(queue.submit(finished)),
        lambda noted: noted,
        lambda device, submission: None,  # mapping waits by itself
        _map_address,
        _unmap,
        None,
    )


def _map_address(mapping: Mapping, size: int, device: Any, submission: Any) -> int:
    mapping.raw.map_sync("READ", 0, size)
    found = np.frombuffer(mapping.raw.read_mapped(0, size, copy=False), np.uint8)
    return int(found.ctypes.data)


def _unmap(mapping: Mapping) -> None:
    if mapping.raw.map_state == "mapped":
        mapping.raw.unmap()


def ticks_per_second(queue: Any) -> float:
    """Ticks of the timestamp clock. WebGPU counts nanoseconds, wgpu-native may not."""
    lib: Any = getattr(wgpu_native, "lib", None)
    period = getattr(lib, "wgpuQueueGetTimestampPeriod", None)
    return 1e9 if period is None else 1e9 / float(period(queue._internal))

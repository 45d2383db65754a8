"""The calls that recording is made of, as directly as the installed wgpu allows.

wgpu's classes spend several microseconds a command on catching errors that come, if at all, when
the pass ends. So the functions of wgpu-native are called themselves where they are to be had; a
wgpu that hides them is used through its classes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from wgpu.backends import wgpu_native

_FUNCTIONS = (
    "wgpuComputePassEncoderSetPipeline",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuQueueSubmitForIndex",
    "wgpuDevicePoll",
)


class Calls(NamedTuple):
    """All take handles, which `handle` makes of wgpu's objects."""

    handle: Callable[[Any], Any]
    set_pipeline: Callable[[Any, Any], Any]  # of a pass
    set_group: Callable[[Any, int, Any, int, Any], Any]  # of a pass: index, group, no offsets
    dispatch: Callable[[Any, int, int, int], Any]
    submit: Callable[[Any, Any], Any]  # a queue, a command buffer: gives the submission
    wait: Callable[[Any, Any], Any]  # a device, until a submission has run
    nothing: Any  # what set_group takes for offsets
    map_mode: str
    address: Callable[[Any], int] = id  # of what a handle points to
    functions: tuple[int, ...] = ()  # where set_pipeline, set_group and dispatch are


def direct() -> Calls | None:
    """The functions of wgpu-native, or None if this wgpu does not show them."""
    lib, ffi = getattr(wgpu_native, "lib", None), getattr(wgpu_native, "ffi", None)
    safe: Any = getattr(getattr(wgpu_native, "_api", None), "libf", None)  # raises errors at once
    if not ffi or not all(hasattr(lib, name) and hasattr(safe, name) for name in _FUNCTIONS):
        return None

    def submit(queue: Any, commands: Any) -> Any:
        given = ffi.new("WGPUCommandBuffer[]", [commands])
        return ffi.new("uint64_t *", safe.wgpuQueueSubmitForIndex(queue, 1, given))

    def wait(device: Any, submission: Any) -> None:
        safe.wgpuDevicePoll(device, True, submission)

    set_pipeline, set_group, dispatch = (getattr(lib, name) for name in _FUNCTIONS[:3])
    of = attrgetter("_internal")

    def address(handle: Any) -> int:
        return int(ffi.cast("uintptr_t", handle))

    functions = tuple(address(ffi.addressof(lib, name)) for name in _FUNCTIONS[:3])
    return Calls(
        of, set_pipeline, set_group, dispatch, submit, wait, ffi.NULL, "READ_NOSYNC",
        address, functions,
    )  # fmt: skip


def by_classes() -> Calls:
    """The same through wgpu's classes, which are their own handles."""
    return Calls(
        lambda x: x,
        lambda within, pipeline: within.set_pipeline(pipeline),
        lambda within, index, group, _, offsets: within.set_bind_group(index, group),
        lambda within, x, y, z: within.dispatch_workgroups(x, y, z),
        lambda queue, commands: queue.submit([commands]),
        lambda device, submission: None,  # mapping waits by itself
        None,
        "READ",
    )


def ticks_per_second(queue: Any) -> float:
    """How fast the clock of timestamps runs. In WebGPU it counts nanoseconds, here it need not."""
    lib: Any = getattr(wgpu_native, "lib", None)
    period = getattr(lib, "wgpuQueueGetTimestampPeriod", None)
    return 1e9 if period is None else 1e9 / float(period(queue._internal))

"""How long the GPU takes for each command of a compiled function.

Each command gets a pass of its own, and the GPU writes timestamps where a pass begins and ends. The
commands then overlap less than they do otherwise, so the sum is an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wgpu

from everygrad.backends.webgpu.driver.wgpu_native import ticks_per_second
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.backends.webgpu.driver.gpu import Gpu

FEATURE = "timestamp-query"
_USAGE = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC


class Clock:
    """The times at which up to `passes` passes begin and end."""

    def __init__(self, gpu: Gpu, passes: int) -> None:
        if FEATURE not in gpu.features:
            raise DeviceError(f"webgpu: this device has no timestamps ({FEATURE})")
        self.gpu = gpu
        self.passes = 0
        self.capacity = 2 * passes
        create = gpu.device.create_query_set
        self._set = gpu.guard(create, type="timestamp", count=self.capacity)

    def writes(self) -> dict[str, Any]:
        """The timestamps the next pass writes, as wgpu takes them."""
        at, self.passes = 2 * self.passes, self.passes + 1
        return {
            "query_set": self._set,
            "beginning_of_pass_write_index": at,
            "end_of_pass_write_index": at + 1,
        }

    def spans(self) -> list[tuple[float, float]]:
        """When each pass began and ended, in seconds of some clock."""
        gpu = self.gpu
        device, size = gpu.device, 8 * self.capacity
        target = gpu.guard(device.create_buffer, size=size, usage=_USAGE)
        encoder = gpu.guard(gpu.outside_pass)
        gpu.guard(encoder.resolve_query_set, self._set, 0, 2 * self.passes, target, 0)
        gpu.submit()
        ticks = memoryview(gpu.guard(gpu.queue.read_buffer, target)).cast("B").cast("Q")
        each = 1 / ticks_per_second(gpu.queue)
        return [(ticks[2 * k] * each, ticks[2 * k + 1] * each) for k in range(self.passes)]


def device_times(replay: Any, call: Callable[[], object]) -> list[tuple[str, float]]:
    """The commands of a compiled function, by name, and the seconds each took on the GPU in one
    call, which `call` makes. Copies are not timed."""
    gpu = replay.gpu
    clock = Clock(gpu, len(replay.log))

    def around(_: range, work: Callable[[], None]) -> None:
        with gpu.lock:
            gpu.guard(gpu.outside_pass)
            gpu.clock = clock
            try:
                work()
            finally:
                gpu.clock = None
            gpu.guard(gpu.outside_pass)

    replay.around = around
    try:
        call()
    finally:
        replay.around = None
    names = [line for c, line in zip(replay.log, replay.steps(), strict=True) if c.kernel]
    spans = [end - begin for begin, end in clock.spans()]
    return list(zip(names, spans, strict=True))


def device_time(replay: Any, call: Callable[[], object]) -> float:
    """The seconds a whole call takes on the GPU, its commands submitted as usual."""
    gpu = replay.gpu
    with gpu.lock:
        gpu.guard(gpu.outside_pass)
        gpu.clock = clock = Clock(gpu, 2 * len(replay.log) + 8)
        try:
            call()
        finally:
            gpu.clock = None
        spans = clock.spans()
    return spans[-1][1] - spans[0][0]

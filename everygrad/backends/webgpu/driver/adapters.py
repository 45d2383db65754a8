"""Which adapters exist, and which one a device name selects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import wgpu
from wgpu.backends.wgpu_native.extras import set_instance_extras

from everygrad.errors import DeviceError

# by wgpu-native's names; the last ones are experimental
FEATURES = ("subgroup", "shader-f16", "timestamp-query")
EXPERIMENTAL = ("cooperative-matrix",)
CURE = "install a Vulkan driver: Debian's mesa-vulkan-drivers has one that runs on the CPU"


FORKED = (
    "webgpu: this process was forked from one that used the GPU, which does not follow it; "
    'use multiprocessing.get_context("spawn"), or fork before the device is first used'
)
_used_by: int | None = None  # the process that used wgpu: a forked child has none of its threads


def _prepare() -> None:
    """Vulkan, Metal and DX12 only: OpenGL lacks what kernels need, and complains on headless
    machines. A program that has used wgpu before keeps its own choice."""
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
        with suppress(RuntimeError):
            set_instance_extras(backends=["Primary"])
    elif _used_by != os.getpid():
        raise DeviceError(FORKED)


@contextmanager
def _without_display() -> Iterator[None]:
    """Disable Mesa's layer that asks the display for its GPU on a machine without a session."""
    absent = "XDG_RUNTIME_DIR" not in os.environ and "NODEVICE_SELECT" not in os.environ
    if absent:
        os.environ["NODEVICE_SELECT"] = "1"
    try:
        yield
    finally:
        if absent:
            del os.environ["NODEVICE_SELECT"]


def adapters() -> list[Any]:
    """All adapters that wgpu finds."""
    with _without_display():
        _prepare()
        try:
            return list(wgpu.gpu.enumerate_adapters_sync())
        except RuntimeError:
            return []


def describe(adapter: Any) -> str:
    """A name to choose an adapter by."""
    info = adapter.info
    return f"{info['device'] or info['description']} ({info['backend_type']})"


def asked_for(device: str) -> str:
    """The part of an adapter's name that a device string or the environment gives, or ''."""
    return device.partition(":")[2] or os.environ.get("EVERYGRAD_WEBGPU_ADAPTER", "")


def find_adapter(wanted: str) -> Any:
    """The adapter whose name contains `wanted`, or the fastest; an error lists those present."""
    if wanted:
        for adapter in adapters():
            if wanted.lower() in describe(adapter).lower():
                return adapter
        raise _absent(f"no adapter is called {wanted!r}")
    with _without_display():
        _prepare()
        try:
            found = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
        except RuntimeError:
            found = None
    if found is None:
        raise _absent("no adapter was found")
    return found


def _absent(why: str) -> DeviceError:
    names = [describe(a) for a in adapters()]
    there = f"present are: {', '.join(names)}" if names else f"none is present; {CURE}"
    return DeviceError(f"webgpu: {why}; {there}")


def request_device(adapter: Any, limits: dict[str, int]) -> tuple[Any, set[str]]:
    """A device, and those of our features that it grants. An adapter may list an experimental
    feature and refuse it: wgpu-native 29 does, whose interface cannot enable one."""
    plain, young = (
        [f for f in names if f in adapter.features] for names in (FEATURES, EXPERIMENTAL)
    )
    if young:
        with suppress(RuntimeError):
            return _requested(adapter, [*plain, *young], limits)
    return _requested(adapter, plain, limits)


def _requested(adapter: Any, features: list[str], limits: dict[str, int]) -> tuple[Any, set[str]]:
    device = adapter.request_device_sync(required_features=features, required_limits=limits)
    return device, set(features)

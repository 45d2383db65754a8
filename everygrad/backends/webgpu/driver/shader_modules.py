"""Shader modules, without the checks that wgpu would add to our kernels.

wgpu takes sources from web pages that it cannot trust: it clamps the index of each access to an
array and counts the turns of each loop, by which products of matrices lose a sixth of their speed
on an H200. Kernels here come from no stranger. No loop of theirs is without end; and where the
indices of one follow from sizes alone, none is outside of its array (`InBounds`). Indices read from
memory stay clamped. Storage is guarded by the driver in any case.
"""

from __future__ import annotations

from typing import Any

from wgpu.backends import wgpu_native

_CLAMPED, _UNCHECKED = 1, 0  # WGPUShaderRuntimeChecks: all bounds, none


class InBounds(str):
    """The source of a kernel whose indices follow from sizes, and lie inside of their arrays."""

    __slots__ = ()


def shader_module(device: Any, name: str, source: str) -> Any:
    """A source as wgpu parsed it; raises wgpu's error where it is not valid."""
    lib: Any = getattr(wgpu_native, "lib", None)
    ffi: Any = getattr(wgpu_native, "ffi", None)
    safe: Any = getattr(getattr(wgpu_native, "_api", None), "libf", None)  # raises errors at once
    create = getattr(safe, "wgpuDeviceCreateShaderModuleTrusted", None)
    if not lib or not ffi or create is None:  # a wgpu that hides them: checked, and slower
        return device.create_shader_module(code=source, label=name)
    text, label = source.encode(), name.encode()
    held = ffi.new("char[]", text), ffi.new("char[]", label)  # until the call returns
    wgsl = ffi.new("WGPUShaderSourceWGSL *")
    wgsl.chain.sType = lib.WGPUSType_ShaderSourceWGSL
    wgsl.code.data, wgsl.code.length = held[0], len(text)
    descriptor = ffi.new("WGPUShaderModuleDescriptor *")
    descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", wgsl)
    descriptor.label.data, descriptor.label.length = held[1], len(label)
    checks = _UNCHECKED if isinstance(source, InBounds) else _CLAMPED
    raw = create(device._internal, descriptor, checks)
    return wgpu_native.GPUShaderModule(name, raw, device)

"""Mapping a staging buffer, by wgpu-native's own functions.

wgpu's `map_sync` waits on Python locks, which an interrupt can leave held for ever: the next read
would hang. Here a native callback receives the status of a mapping, and the native calls themselves
fill and clear the list that notes that a mapping was requested.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from everygrad.backends.cpu.llvm.compiler import engine
from everygrad.core.scopes import at_once
from everygrad.errors import DeviceError

# void f(WGPUMapAsyncStatus, WGPUStringView, void *word, void *): Windows passes the text, two words
# long, by its address, others in two registers
_TEXT_ARGUMENT = "ptr %text" if sys.platform == "win32" else "ptr %text, i64 %length"
_MAP_CALLBACK = f"""
define void @map_callback(i32 %status, {_TEXT_ARGUMENT}, ptr %word, ptr %unused) nounwind {{
  store atomic i32 %status, ptr %word release, align 4
  ret void
}}
"""
_NAMES = ("wgpuBufferMapAsync", "wgpuBufferGetConstMappedRange", "wgpuBufferUnmap")


@cache
def _map_callback() -> int:
    return engine().functions(_MAP_CALLBACK, ("map_callback",), vectorise=False)["map_callback"]


class Mapping:
    """A buffer, and whether it is mapped or a mapping was requested."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._asked: list[Any] = []
        self._words: list[Any] = []  # the callbacks' status words, which must outlive the calls

    @property
    def is_open(self) -> bool:
        return bool(self._asked)

    def address(self, lib: Any, ffi: Any, size: int, wait: Callable[[], None]) -> int:
        """The address of its first bytes, until `close`; `wait` lets wgpu-native proceed. It is not
        an array or a memoryview: an exception's traceback might keep that alive too long."""
        word = ffi.new("int32_t *")
        self._words.append(word)
        info = ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        info.callback = ffi.cast("WGPUBufferMapCallback", _map_callback())
        info.userdata1 = word
        given = ((self.raw._internal,), (lib.WGPUMapMode_Read,), (0,), (size,), (info[0],))
        self._asked.extend(map(lib.wgpuBufferMapAsync, *given))
        while not word[0]:
            wait()
        if word[0] != lib.WGPUMapAsyncStatus_Success:
            raise DeviceError(f"webgpu: a buffer could not be mapped (status {word[0]})")
        start = lib.wgpuBufferGetConstMappedRange(self.raw._internal, 0, size)
        return int(ffi.cast("uintptr_t", start))

    def close(self, lib: Any) -> None:
        """Unmap the buffer."""
        if self._asked:
            at_once(partial(lib.wgpuBufferUnmap, self.raw._internal), self._asked.clear)()


def is_possible(lib: Any) -> bool:
    """Whether this wgpu exposes the functions that are needed."""
    return all(hasattr(lib, name) for name in _NAMES)

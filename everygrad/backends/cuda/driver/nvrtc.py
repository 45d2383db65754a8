"""NVRTC through ctypes: CUDA C++ to machine code, with or without a GPU, cached on disk.

Several threads may compile at once. Threads of this module compile the kernels of a compiled
function while it is still being recorded (`compile_later`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from everygrad.backends import disk_cache
from everygrad.codegen import report
from everygrad.errors import CompileError, DeviceError

# x * y + z may be fused, as on the CPU; division, square roots and subnormals are IEEE's
OPTIONS = ("--std=c++17", "--fmad=true", "--prec-div=true", "--prec-sqrt=true", "--ftz=false", "-w")
_ERROR_LINE = re.compile(r"\((\d+)\): (?:catastrophic )?error")
_CURE = "install CuPy with its toolkit: pip install 'cupy-cuda13x[ctk]' (or 'cupy-cuda12x[ctk]')"


def library_folders() -> Iterator[Path]:
    """Where CUDA's libraries may be: NVIDIA's wheels, then the system's toolkits."""
    found = find_spec("nvidia")
    for place in (found.submodule_search_locations or ()) if found else ():
        yield from sorted(Path(place).glob("*/lib"), reverse=True)
        yield from sorted(Path(place).glob("*/bin/x86_64"), reverse=True)
    for name in ("CUDA_PATH", "CUDA_HOME"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "lib64"
    yield from (Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"))


def candidates(stem: str, majors: tuple[int, ...]) -> Iterator[str]:
    """Names under which a library of CUDA may be opened, those of the first major first."""
    for major in majors:
        for folder in library_folders():
            path = folder / f"{stem}.so.{major}"
            if path.exists():
                yield str(path)
        yield f"{stem}.so.{major}"


class Nvrtc:
    """The opened library."""

    def __init__(self, majors: tuple[int, ...]) -> None:
        self._lib = self._open(majors)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    @staticmethod
    def _open(majors: tuple[int, ...]) -> Any:
        for name in candidates("libnvrtc", majors):
            try:
                return ctypes.CDLL(name)
            except OSError:
                continue
        raise DeviceError(f"cuda: NVRTC, CUDA's run-time compiler, was not found; {_CURE}")

    def compile(self, name: str, source: str, arch: str, options: tuple[str, ...] = OPTIONS) -> Any:
        """The cubin of `source` for "sm_90" and the like, from the disk cache where it is there."""
        chosen = (f"--gpu-architecture={arch}", *options)
        facts = ("cuda", *map(str, self.version), *chosen, source)
        key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
        found = disk_cache.get(key)
        if found is None:
            found = self.build(name, source, chosen)
            disk_cache.put(key, found)
        return found

    def compile_later(self, name: str, source: str, arch: str) -> Future[Any]:
        """The same, started now in another thread."""
        return _threads().submit(self.compile, name, source, arch)

    def build(self, name: str, source: str, options: tuple[str, ...]) -> bytes:
        """The cubin, compiled now."""
        lib, program = self._lib, ctypes.c_void_p()
        lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            given = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
            if lib.nvrtcCompileProgram(program, len(options), given):
                raise _broken(name, source, self._text(program, "ProgramLog"))
            return self._text(program, "CUBIN")
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._lib, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw[: size.value]


@lru_cache
def opened(majors: tuple[int, ...] = (13, 12)) -> Nvrtc:
    """The library of the first of these CUDA versions that is there."""
    return Nvrtc(majors)


@lru_cache
def _threads() -> ThreadPoolExecutor:
    """The compiling threads: more than eight gain nothing, because NVRTC's parser is serial. Their
    names tell that they use no tensors."""
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="everygrad nvrtc")


def _broken(name: str, source: str, log: bytes) -> CompileError:
    text = log.rstrip(b"\0").decode(errors="replace").strip()
    return CompileError(
        f"cuda: the kernel {name!r} does not compile:\n{text[:4000]}\n{_numbered(source, text)}"
        f"{report.origin(name)}"
    )


def _numbered(source: str, message: str) -> str:
    """The lines around the first one that a message points at."""
    lines = source.splitlines()
    found = _ERROR_LINE.search(message)
    at = int(found.group(1)) if found else 1
    first, last = max(1, at - 6), min(len(lines), at + 6)
    rows = [f"{'>' if n == at else ' '}{n:4} | {lines[n - 1]}" for n in range(first, last + 1)]
    return "\n".join(rows)

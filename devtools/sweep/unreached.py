"""Branches that no shape can reach, and why: what a sweep's list of untaken branches leaves out.

A row names files and lines by pattern, so that it stays true when lines move;
`tests/repo/test_sweep` fails where a row matches nothing any more.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import cache
from typing import NamedTuple


class Row(NamedTuple):
    """Lines of some files, and the reason why no case goes from them where it did not."""

    files: str  # a pattern of fnmatch, below everygrad/backends
    line: str  # a regular expression that the line holds; "" any line
    reason: str


NO_GENERATOR = "no kernel generator: caches, threads, drivers"
GPUS = "what GPUs share: no part of the CPU's path"
REFUSED = "refuses arguments that no op hands on"
MACHINE = "another processor, adapter, operating system or interpreter decides"
FORKED = "in a forked child, or where there is no fork"
SIGNAL = "after a signal (devtools.drills.interrupts)"
APART = "step by step, for the profiler and find_nan"
BOUND = "a bound on entries or bytes that one case does not fill"
MEMORY = "an array larger than a binding or a staging buffer"
SINGULAR = "singular or infinite matrices, which have no derivative to compare"

ROWS = (
    Row("deferred_checks.py", "", REFUSED),
    Row("disk_cache.py", "", NO_GENERATOR),
    Row("code_cache.py", "", NO_GENERATOR),
    Row("thread_pool.py", "", NO_GENERATOR),
    Row("base.py", "", NO_GENERATOR),
    Row("cpu/runtime/*.py", "", NO_GENERATOR),
    Row("webgpu/driver/*.py", "", NO_GENERATOR),
    Row("*.py", r"register_at_fork", FORKED),
    Row("cpu/graph/replay.py", r"for replay in _REPLAYS", FORKED),
    Row("cpu/llvm/compiler.py", r"_engine is not None|_LLVM_LOCK\._is_owned", FORKED),
    Row("webgpu/device.py", r"os\.getpid\(\) == process|self\._gpu is not None", FORKED),
    Row("cpu/graph/replay.py", r"interrupted is not None|error\[[03]\]", SIGNAL),
    Row("cpu/graph/replay.py", r"self\.stretches|range\(begin, first\)|HostStep|s\.linked", APART),
    Row("webgpu/graph/replay.py", r"around is None|enumerate\(inputs\)", APART),
    Row("cpu/kernels/random_bits.py", "", "small programs, before LLVM is loaded"),
    Row("*.py", r"\.lost is not None", "a device that was lost"),
    Row("*.py", r"_CACHED_LAYOUTS|_MOST_MADE|_MOST_READY|> _PLANS", BOUND),
    Row("cpu/kernels/elementwise.py", r"held is kernel", BOUND),
    Row("cpu/kernels/run_work.py", r"_compiled\.get\(steps\)", BOUND),
    Row("cpu/graph/replay.py", r"segments is None", BOUND),
    Row("cpu/gemm/gemm_tile.py", r'has\("neon"\)', MACHINE),
    Row("cpu/gemm/blas.py", r"openblas|prefix, suffix|self\.controls|lowered", MACHINE),
    Row("cpu/solver/batched_lapack.py", r"openblas64|scipy_dgetrf", MACHINE),
    Row("cpu/llvm/compiler.py", r'"numba" not in|libm is not None', MACHINE),
    Row("cpu/llvm/compiler.py", r"not buffer|module is not None|not address", REFUSED),
    Row("cpu/runtime/addresses.py", r"address_of\(_probe\)", MACHINE),
    Row("webgpu/*/*.py", r"is_software|if software", MACHINE),
    Row("webgpu/gemm/cooperative_matrix.py", "", MACHINE),
    Row("webgpu/gemm/choose_kernel.py", r"cooperative|is_software|elif product\.kind", MACHINE),
    Row("webgpu/kernels/chunked.py", "", MEMORY),
    Row("webgpu/kernels/copy_kernels.py", r"storages|packed|for a in arrays|start is None", MEMORY),
    Row("webgpu/device.py", r"storage_buffers|binding_size|MOST_ELEMENTS|spans", MEMORY),
    Row("webgpu/graph/placeholders.py", r"life\.nbytes <= bound", MEMORY),
    Row("webgpu/graph/placeholders.py", r"busy|sorted\(those|if found", BOUND),
    Row("webgpu/attention/attention.py", r"columns > most", MEMORY),
    Row(
        "cpu/kernels/elementwise.py", r"supports\(program\)|len\(arrays\) <|out\.dtype !=", REFUSED
    ),
    Row("cpu/kernels/elementwise.py", r"wanted is not None", REFUSED),
    Row(
        "cpu/gemm/gemm_product.py",
        r"a\.dtype not in|b\.shape\[-2\] !=|out\.strides\[-1\] != 1",
        REFUSED,
    ),
    Row("cpu/llvm/loop_order.py", r"not fits|strides\[d\] == 0", REFUSED),
    Row("cpu/llvm/loops.py", r"inst\.value >= inputs", REFUSED),
    Row("webgpu/gemm/operand_reads.py", r"x\.shape\[-1\] != y\.shape\[-2\]", REFUSED),
    Row("webgpu/source/*.py", r"found is None|form is None", REFUSED),
    Row("cpu/registry.py", r"low < 0 or high >= size", REFUSED),
    Row("cpu/kernels/numpy_render.py", r"np\.any\(y < 0\)", REFUSED),
    Row("cpu/solver/*.py", r"bad\.any\(\)|diagonal\(|isfinite|not ok\.all\(\)|far\.all", SINGULAR),
)
# files that a device does not use, though another does
OTHERS = {"cpu": ("gpu.py", "strided_array.py", "strided_views.py")}


@cache
def _compiled(line: str) -> re.Pattern[str]:
    return re.compile(line)


def reason_for(device: str, file: str, line: str) -> str:
    """Why no shape reaches it; "" where one should."""
    if file in (*OTHERS.get(device, ()), *(["deferred_checks.py"] if device == "cpu" else [])):
        return GPUS
    for row in ROWS:
        if fnmatch(file, row.files) and _compiled(row.line).search(line):
            return row.reason
    return ""

"""Branches that no shape can reach, and why: what a sweep's list of untaken branches leaves out.

A row names a file, lines of it by pattern, and the function they stand in, so that it stays true
when lines move; `tests/repo/test_sweep` fails where a row matches nothing any more. Where a test
reaches them instead, the reason names it.
"""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

BACKENDS = Path(__file__).parents[2] / "everygrad" / "backends"


class Row(NamedTuple):
    """Lines of some files, and the reason why no case goes from them where it did not."""

    files: str  # a pattern of fnmatch, below everygrad/backends
    line: str  # a regular expression that the line holds; "" any line
    reason: str
    inside: str = ""  # a regular expression for the whole name of the function; "" any


GPUS = "what GPUs share: no part of the CPU's path"
REFUSED = "refuses arguments that no op hands on"
MACHINE = "another processor, adapter, operating system or interpreter decides"
FORKED = "in a forked child, or where there is no fork"
SIGNAL = "after a signal (devtools.drills.interrupts)"
APART = "step by step, for the profiler and find_nan"
BOUND = "a bound on entries or bytes that one case does not fill"
HOT = "an op that was called a thousand times (tests/engine/test_fast_calls)"
MEMORY = "an array larger than a binding or a staging buffer (tests/backends/webgpu/test_limits)"
SINGULAR = "singular or infinite matrices, or equal values, which have no derivative to compare"
ON_DISK = "the cache on disk, which a sweep leaves alone (tests/backends/test_disk_cache)"
DROPPED = "code that is dropped when there is too much of it (tests/jit/test_code_memory)"
THREADS = "how threads share work (tests/backends/cpu/test_thread_pool, test_native_threads)"
COUNTED = "memory counted by rank, freed and reused (tests/distributed/test_memory, tests/jit)"
BUFFERS = "compiled functions on memory of others (tests/jit/test_buffers)"
EXCHANGED = "arrays exchanged with other libraries (tests/api/test_dlpack)"
CHECKSUMS = "checksums of files (tests/io/test_checksums)"
STATES = "compiled functions that exchange or alias their states (tests/jit/test_jit_aliases)"
REPORTED = "what reports print of a compiled function (tests/backends/webgpu/test_replay, test_jit)"
RANKS = "communication between ranks (tests/distributed)"
LANGUAGE = "statements of the kernel language that no kernel of this device has"
NOTHING = "a product without elements, which no op hands on (tests/backends/cpu/test_gemm)"
WIDENED = "half floats, which programs widen to float32 before (compiler/expr)"
FENCED = "memory of the pool that is written again: while a case runs, fences stand in for the pool"
WARNINGS = "a filter of the user's that raises NumPy's warnings"
EMPTY_AXIS = "an index into an axis without elements, which is refused"
HARDWARE = "a GPU with cores of its own, not a software adapter"
UNKNOWN_OP = "an op that nothing knows: an error of whoever adds one"
READ_LATER = "arrays whose values are asked for later (tests/jit/test_host_subgraph)"
LOST = "a device that was lost (tests/backends/webgpu/test_device)"
DRIVER = "the driver's own limits, errors and fallbacks (tests/backends/webgpu/test_device)"

ROWS = (
    # --- what all devices share ---
    Row("disk_cache.py", "", ON_DISK),
    Row("code_cache.py", "", DROPPED),
    Row("thread_pool.py", "", THREADS),
    Row("__init__.py", r"_SWITCHES", "names that PyTorch's programs ask for (tests/api)"),
    Row("base.py", r"kind not in", "devices that there are not, or a second of a kind"),
    Row("dlpack_capsule.py", "", EXCHANGED),
    Row("*.py", r"register_at_fork", FORKED),
    Row("deferred_checks.py", r"self\.error is not|\"\{\}\" in what|raised != self", REFUSED),
    Row("deferred_checks.py", r"found is None", "more checks of one kind than a word counts"),
    Row("gpu.py", r"_MOST_MADE|> _INTERNED", BOUND),
    Row("strided_views.py", r"size_of\(shape\) != size_of", REFUSED),
    # --- the CPU ---
    Row("cpu/device.py", r"out is not None", FENCED, r"CPU\.rewrite"),
    Row("cpu/fused/channel_norm.py", r"if x\.size", REFUSED, "_run"),
    Row("cpu/device.py", r"kernel is not None", WARNINGS, r"CPU\.compute"),
    Row("cpu/device.py", r"not lazy_native\.supports", REFUSED, r"CPU\.direct"),
    Row("cpu/fused/row_kernels.py", r"_MOST_SMALL", BOUND),
    Row("cpu/fused/row_loops.py", "", HOT, r"SmallRows\.take_over"),
    Row("cpu/fused/row_loops.py", r"self\.builtin|out is not None|% MANY", HOT, r"SmallRows\..*"),
    Row(
        "cpu/gemm/blas.py", r"openblas|prefix, suffix|self\.controls|lowered|folder\.glob", MACHINE
    ),
    Row("cpu/gemm/eager_matmul.py", r">= _MOST", BOUND),
    Row("cpu/gemm/gemm.py", r"0 in out\.shape", NOTHING),
    Row("cpu/gemm/gemm_product.py", r"dtype not in|shape\[-2\] !=|strides\[-1\] !=", REFUSED),
    Row("cpu/gemm/gemm_tile.py", r'has\("neon"\)', MACHINE),
    Row(
        "cpu/graph/execution_plan.py",
        r"v in self\.results",
        "a check that is an output: what was checked is used by the op it is for",
        r".*\.check",
    ),
    Row(
        "cpu/graph/execution_plan.py", r"source in|not fits|not is_whole", STATES, r".*\.donations"
    ),
    Row("cpu/graph/lowering.py", r"v\.op\.host", RANKS, "host_call"),
    Row("cpu/graph/lowering.py", r'v\.kind == "reduction"', UNKNOWN_OP, "host_call"),
    Row("cpu/graph/replay.py", "", BUFFERS, r"array_at|Replay\.(run_at|compute_at|arrays_at)"),
    Row("cpu/graph/replay.py", r"for replay in _REPLAYS", FORKED),
    Row("cpu/graph/replay.py", r"interrupted is not None|error\[[03]\]", SIGNAL),
    Row("cpu/graph/replay.py", "", APART, r"Replay\.single_steps"),
    Row("cpu/graph/replay.py", r"segments is None", BOUND),
    Row("cpu/kernels/crc32.py", "", CHECKSUMS),
    Row("cpu/kernels/elementwise.py", r"held is kernel|_CACHED_LAYOUTS|_MAX_CACHED", BOUND),
    Row(
        "cpu/kernels/elementwise.py", r"supports\(program\)|len\(arrays\) <|out\.dtype !=", REFUSED
    ),
    Row("cpu/kernels/elementwise.py", r"wanted is not None", REFUSED),
    Row("cpu/kernels/elementwise.py", r"meta is not None", FENCED),  # an `out` that lies backwards
    Row("cpu/kernels/numpy_render.py", r">= _MOST", BOUND),
    Row("cpu/kernels/numpy_render.py", "", HOT, "most_by_numpy"),
    Row("cpu/kernels/numpy_render.py", r"np\.any\(y < 0\)", REFUSED),
    Row(
        "cpu/kernels/random_bits.py", r"is_loaded|in range", "small programs, before LLVM is loaded"
    ),
    Row("cpu/kernels/run_work.py", r"_compiled\.get\(steps\)", BOUND),
    Row("cpu/kernels/single_op.py", r"_MAX_CACHED", BOUND),
    Row("cpu/lazy_native.py", r">= _MOST", BOUND),
    Row("cpu/lazy_native.py", r"cpython", MACHINE),
    Row("cpu/llvm/compiler.py", r"_engine is not None|_LLVM_LOCK\._is_owned", FORKED),
    Row("cpu/llvm/compiler.py", r'"numba" not in|libm is not None|soft_half', MACHINE),
    Row("cpu/llvm/compiler.py", r"not buffer|not address", REFUSED),
    Row("cpu/llvm/compiler.py", r"module is not None", "two threads that compile the same kernel"),
    Row("cpu/llvm/compiler.py", r"found is not None and self\._is_valid", ON_DISK),
    Row("cpu/llvm/cpython.py", r"sys\.implementation", MACHINE),
    Row(
        "cpu/llvm/kernel_render.py", r"^case |s\.registers|fn != \"input\"|dtypes\.bool_", LANGUAGE
    ),
    Row("cpu/llvm/intrinsics.py", r"fn not in INTRINSICS", REFUSED),
    Row("cpu/llvm/intrinsics.py", r"dtype in _HALVES|INTRINSICS\[fn\]", WIDENED, "apply"),
    Row("cpu/llvm/intrinsics.py", r"source is dtypes\.float16", WIDENED, "_cast_to_float"),
    Row("cpu/llvm/loop_order.py", r"not fits|strides\[d\] == 0", REFUSED),
    Row("cpu/llvm/loop_order.py", r"\[0\]\[d\] < 0|k, steps in enumerate", FENCED, "merge"),
    Row("cpu/llvm/loops.py", r"inst\.value >= inputs", REFUSED),
    Row("cpu/registry.py", r"low < 0 or high >= size", REFUSED),
    Row("cpu/runtime/addresses.py", r"address_of\(_probe\)", MACHINE),
    Row("cpu/runtime/fast_call*.py", "", HOT),
    Row("cpu/runtime/native_call.py", r"cpython\.is_available", MACHINE),
    Row("cpu/runtime/native_threads.py", r"_shared is None", FORKED),
    Row(
        "cpu/runtime/pool.py",
        r"",
        COUNTED,
        r"_?Pool\..*|rewritable|count_memory|is_sole_owner|Recycled\..*",
    ),
    Row(
        "cpu/runtime/pool.py",
        r"for block in",
        "a loop that is over with its first turn",
        "_idle_.*",
    ),
    Row("cpu/solver/batched_lapack.py", r"openblas64|scipy_dgetrf", MACHINE),
    Row("cpu/solver/batched_lapack.py", r"bad\.any\(\)", SINGULAR),
    Row("cpu/solver/fourier.py", r"not axes", REFUSED),
    Row("cpu/solver/*.py", r"len\(_(small|bound)\) >= ", BOUND),
    Row("cpu/solver/*.py", r"found is not NotImplemented", SINGULAR),
    Row("cpu/solver/lapack.py", r"inside is None", MACHINE),
    Row(
        "cpu/solver/lapack.py",
        r"bad\.any\(\)|at := a\.diag|isfinite|not ok\.all|far\.all",
        SINGULAR,
    ),
    Row("cpu/solver/lapack.py", r"first != first|LinAlgError", SINGULAR),
    Row("cpu/solver/matrix_gradients.py", r"_phaseless|gaps is None|sizes\.max", SINGULAR),
    # --- WebGPU ---
    Row("*.py", r"\.lost is not None|_LOST", LOST),
    Row("webgpu/attention/attention.py", r"columns > most", MEMORY),
    Row("webgpu/device.py", r"os\.getpid\(\) == process|self\._gpu is not None", FORKED),
    Row("webgpu/device.py", r"storage_buffers|binding_size|MOST_ELEMENTS|spans|is_needed", MEMORY),
    Row("webgpu/device.py", r'op\.family == "reduction"', UNKNOWN_OP, r"WebGPU\.run"),
    Row("webgpu/device.py", "", READ_LATER, r"PendingArrays\.result"),
    Row("webgpu/driver/adapters.py", "", MACHINE),
    Row("webgpu/driver/binding_windows.py", "", MEMORY),
    Row("webgpu/driver/encoding.py", r"_submitted|\"raw\"|_pass and", SIGNAL),
    Row("webgpu/driver/encoding.py", r"clock is None", APART),
    Row("webgpu/driver/gpu.py", "", DRIVER),
    Row("webgpu/driver/mapping.py", r"Status_Success", LOST),
    Row("webgpu/driver/memory.py", "", COUNTED),
    Row("webgpu/driver/messages.py", "", DRIVER),
    Row("webgpu/driver/pipelines.py", "", BOUND),
    Row("webgpu/driver/readback.py", r"STAGED|_values is None", MEMORY),
    Row("webgpu/driver/submit.py", r"for row in rows", SIGNAL),
    Row("webgpu/driver/timing.py", "", APART),
    Row("webgpu/driver/wgpu_native.py", "", MACHINE),
    Row("webgpu/fused/multi_tensor.py", "", HARDWARE, r".*\.(takes|add|is_needed)"),
    Row("webgpu/gemm/choose_kernel.py", r"cooperative|is_software|elif product\.kind", MACHINE),
    Row("webgpu/gemm/cooperative_matrix.py", "", MACHINE),
    Row("webgpu/fused/fused.py", r"count == 1 or", MEMORY, r".*\.largest"),
    Row("webgpu/gemm/operand_reads.py", r"self\.native", HARDWARE),
    Row("webgpu/gemm/operand_reads.py", r"x\.shape\[-1\] != y\.shape\[-2\]", REFUSED),
    Row("webgpu/graph/gathering.py", "", HARDWARE),  # orders what can share kernels there
    Row("webgpu/graph/replay.py", r"^if small:", HARDWARE),
    Row("webgpu/graph/placeholders.py", r"life\.nbytes <= bound", MEMORY),
    Row("webgpu/graph/placeholders.py", r"busy|sorted\(those|if found", BOUND),
    Row("webgpu/graph/replay.py", r"", HARDWARE, r"Replay\.(record_fused|can_batch|flush)"),
    Row("webgpu/graph/replay.py", r"b\.number in written", "a fault of the compiler, reported"),
    Row(
        "webgpu/graph/replay.py", "", REPORTED, r"Replay\.(memory|steps|sources|nbytes|held_bytes)"
    ),
    Row("webgpu/graph/replay.py", r"_MOST_READY|bind_group_resets", BOUND),
    Row("webgpu/graph/replay.py", r"out_of_place", STATES),
    Row("webgpu/graph/replay.py", r"around|for i, command|enumerate\(inputs\)", APART),
    Row("webgpu/kernels/chunked.py", "", MEMORY),
    Row("webgpu/kernels/copy_kernels.py", r"storages|packed|for a in arrays|start is None", MEMORY),
    Row(
        "webgpu/kernels/gather_scatter.py",
        r"storage is not None and x|x\.shape\[axis\] ==",
        EMPTY_AXIS,
    ),
    Row("webgpu/kernels/gather_scatter.py", r"storage is not None:", EMPTY_AXIS, "last_write"),
    Row("webgpu/kernels/multi_tensor.py", r"binding_size|> most|if launch\.places:", MEMORY),
    Row("webgpu/kernels/multi_tensor.py", r"a\.shape != first\.shape", REFUSED),
    Row("webgpu/kernels/multi_tensor.py", r"type\(a\) is not WebGPUArray", REFUSED, "rewrite"),
    Row("webgpu/kernels/single_op.py", r">= _MOST", BOUND),
    Row("webgpu/kernels/single_op.py", r"not dtype\.is_float", REFUSED),
    Row("webgpu/kernels/scan.py", r"binding_size", MEMORY),
    Row("webgpu/solver/jacobi.py", r"n > MOST", MEMORY),
    Row("webgpu/solver/matrices.py", r"max\(grid\) > most|MOST_TURNS", MEMORY),
    Row("webgpu/source/kernel_render.py", r"self\.lacks|lay\.words > 1 or", LANGUAGE),
    Row("webgpu/source/kernel_render.py", r"in self\.offsets|in self\.atomics", LANGUAGE),
    Row("webgpu/source/kernel_render.py", r"text\.isidentifier", LANGUAGE),
    Row("webgpu/source/*.py", r"found is None|form is None", REFUSED),
    Row("webgpu/source/render.py", r"for key in \(", UNKNOWN_OP, "_cast_form"),
    Row("webgpu/*/*.py", r"is_software|if software", MACHINE),
)
# files that a device does not use, though another does
OTHERS = {"cpu": ("deferred_checks.py", "gpu.py", "strided_array.py", "strided_views.py")}


@cache
def _compiled(line: str) -> re.Pattern[str]:
    return re.compile(line)


@cache
def _functions(file: str) -> list[tuple[int, int, str]]:
    """First and last line of each function of a file, and its name with those around it."""
    found = []

    def look(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                name = f"{around}.{child.name}" if around else child.name
                found.append((child.lineno, child.end_lineno or child.lineno, name))
                look(child, name)
            else:
                look(child, around)

    look(ast.parse((BACKENDS / file).read_text()), "")
    return found


def function_at(file: str, at: int) -> str:
    """The function, or class, that a line stands in; the innermost."""
    names = [name for first, last, name in _functions(file) if first <= at <= last]
    return max(names, key=len, default="<module>")


def reason_for(device: str, file: str, line: str, at: int) -> str:
    """Why no shape reaches it; "" where one should."""
    if file in OTHERS.get(device, ()):
        return GPUS
    for row in ROWS:
        if not fnmatch(file, row.files) or not _compiled(row.line).search(line):
            continue
        if not row.inside or _compiled(row.inside).fullmatch(function_at(file, at)):
            return row.reason
    return ""

"""Flash attention, which never stores a matrix of queries by keys: kernels, arguments, launches.

    sizes = (batch, heads, queries, keys, width, depth)
    problem = AttentionProblem(dtypes.bfloat16, *sizes, scale, causal=True)
    calls = forward(problem, (9, 0), Inputs(q, k, v), out, lse)

q is (batch, heads, queries, width), k and v (batch, sources, keys, ...), where heads may share keys
(heads is a multiple of sources); each an `AttentionOperand`: an address and the strides of its
first three axes, in elements, the last one being contiguous. A `FlashLaunch` is a kernel's text
with all it is launched with; the owner of the device compiles it (once for each text) and passes it
to `launch`.

For a backward, `lse` is the log-sum-exp of each query's scores, and `delta` is sum(g * out):
float32 in the layout (batch, heads, `padded(queries)`). With a mask `lse` has two lines a head: the
largest score, and the logarithm of the sum relative to it, because a mask can make scores so large
that the sum would be lost in rounding. `statistics` computes both from q, k, v and g where the
forward's are not saved, at about the forward's cost; `delta` needs only g and out.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.backends.cuda.attention import (
    flash_engines,
    flash_forward,
    flash_gradients,
    flash_parts,
)
from everygrad.compiler.thresholds import edge
from everygrad.core.shapes import size_of
from everygrad.dtypes import DType
from everygrad.errors import DeviceError

NAME = "flash_kernel"  # of every kernel; each text has one
WIDEST = edge(__name__, "WIDEST", 128, "size")  # elements of a query, a key or a value
FLATTEST = 2.0**-100  # the least scale that can be applied after scores are compared
OLDEST = (8, 0)  # the first compute capability with cp.async
# queries, or keys: a grid's second axis times the fewest rows of a block
LONGEST = edge(__name__, "LONGEST", 65535 * 64, "size")
PAD = edge(__name__, "PAD", 64, "size")  # queries are padded to a multiple of this in lse and delta
_MASKS = {"": 0, "add": 1, "bool": 2}


def padded(queries: int) -> int:
    """Queries of one head in lse and delta."""
    return -(-queries // PAD) * PAD


def lse_size(batch: int, heads: int, queries: int, masked: bool = False) -> int:
    """Elements of lse."""
    return size_of((batch, heads, 1 + masked, padded(queries)))


class AttentionOperand(NamedTuple):
    """A tensor's address, and its strides of batch, head and token in elements."""

    address: int
    batch: int
    head: int
    token: int


class Mask(NamedTuple):
    """A mask's address and its strides of batch, head, query and key; 0 where it broadcasts."""

    address: int
    batch: int
    head: int
    query: int
    key: int


class Inputs(NamedTuple):
    """The operands that attention reads."""

    q: AttentionOperand
    k: AttentionOperand
    v: AttentionOperand
    mask: Mask | None = None


class AttentionProblem(NamedTuple):
    """Sizes and kinds. A mask is "add" (of q's dtype, -inf masks out) or "bool" (false does)."""

    dtype: DType
    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    depth: int
    scale: float
    causal: bool = False
    mask: str = ""
    sources: int = 0  # heads of k and v; 0: as many as of q

    @property
    def key_heads(self) -> int:
        return self.sources or self.heads

    @property
    def padded(self) -> int:
        """Queries of one head in lse and delta."""
        return padded(self.queries)

    @property
    def lse_size(self) -> int:
        return lse_size(self.batch, self.heads, self.queries, bool(self.mask))

    @property
    def delta_size(self) -> int:
        return lse_size(self.batch, self.heads, self.queries)


class Tiling(NamedTuple):
    """The tiling of a kernel: a block holds `rows` and loops over tiles of `columns`."""

    rows: int
    columns: int
    threads: int
    stages: int  # tiles that are loading or in use
    blocks: int  # blocks that should fit on a multiprocessor
    in_registers: bool = False  # rows are held in registers, not in shared memory; Ampere only
    overlap: bool = False  # softmax overlaps with products; needs three stages or more


class FlashKernel(NamedTuple):
    """All that a kernel's text depends on."""

    kind: str  # forward, statistics, delta, queries, keys
    engine: str  # hopper, ampere, plain
    dtype: DType
    wide: int  # 64 or 128: width and depth, padded
    causal: bool
    mask: str
    scaled: bool  # scores are scaled before they are compared
    long: bool = False  # tilings of long contexts, where larger tiles are waste at the edges alone


class FlashLaunch(NamedTuple):
    """One launch. `text` is compiled for `architecture`, and `params` is its one argument."""

    text: str
    architecture: str
    grid: tuple[int, int]
    threads: int
    shared: int  # bytes of dynamic shared memory
    params: ctypes.Structure
    title: str = "attention"


# kind, engine and width decide the tiling
_TILINGS = {
    ("forward", "hopper", 64): Tiling(128, 64, 256, 4, 2, False, True),
    ("forward", "hopper", 128): Tiling(128, 128, 256, 2, 1),
    ("queries", "hopper", 64): Tiling(128, 64, 256, 3, 2),
    ("queries", "hopper", 128): Tiling(128, 128, 256, 2, 1),
    ("keys", "hopper", 64): Tiling(64, 64, 128, 3, 3),
    ("keys", "hopper", 128): Tiling(128, 64, 256, 2, 1),
    ("forward", "ampere", 64): Tiling(128, 64, 128, 2, 2, True),
    ("forward", "ampere", 128): Tiling(128, 64, 256, 2, 1),
    ("queries", "ampere", 64): Tiling(128, 64, 256, 2, 1),
    ("queries", "ampere", 128): Tiling(128, 32, 256, 2, 1),
    ("keys", "ampere", 64): Tiling(128, 64, 256, 2, 1),
    ("keys", "ampere", 128): Tiling(128, 32, 256, 2, 1),
    ("forward", "plain", 64): Tiling(64, 32, 128, 2, 3),
    ("forward", "plain", 128): Tiling(64, 32, 128, 2, 2),
    ("queries", "plain", 64): Tiling(64, 32, 128, 2, 2),
    ("queries", "plain", 128): Tiling(64, 32, 128, 2, 1),
    ("keys", "plain", 64): Tiling(64, 32, 128, 2, 2),
    ("keys", "plain", 128): Tiling(64, 32, 128, 2, 1),
}
# of sequences of at least LONG tokens, without masks
LONG = edge(__name__, "LONG", 4096, "size")
_LONG_TILINGS = {
    ("forward", "hopper", 64): Tiling(192, 128, 384, 2, 1),
    ("queries", "hopper", 64): Tiling(128, 64, 256, 2, 2),
    ("keys", "hopper", 64): Tiling(64, 128, 128, 2, 2),
}
_AMPERE_MASKED = Tiling(128, 64, 256, 2, 1)  # 32 rows a warp are too many with a mask
_BODIES = {
    "forward": flash_forward.FORWARD,
    "statistics": flash_forward.FORWARD,
    "delta": flash_gradients.DELTA,
    "queries": flash_gradients.QUERIES,
    "keys": flash_gradients.KEYS,
}
_ENGINES = {
    "hopper": flash_engines.HOPPER,
    "ampere": flash_engines.AMPERE,
    "plain": flash_engines.PLAIN,
}


# --- which kernel --------------------------------------------------------------------------------


def serves(problem: AttentionProblem, capability: tuple[int, int], shared: int) -> bool:
    """Whether these kernels support the problem on a device that grants a block so many bytes of
    shared memory: dtype, sizes, and rows that are multiples of 16 bytes."""
    p = problem
    if p.dtype not in (dtypes.float16, dtypes.bfloat16, dtypes.float32) or capability < OLDEST:
        return False
    ragged = any(size % (16 // p.dtype.itemsize) for size in (p.width, p.depth))
    empty = not size_of((p.batch, p.heads, p.queries, p.keys, p.width, p.depth))
    if ragged or empty or max(p.width, p.depth) > WIDEST or max(p.queries, p.keys) > LONGEST:
        return False
    return most_shared(p, capability) <= shared


def aligned(dtype: DType, operand: AttentionOperand) -> bool:
    """Whether an operand can be read 16 bytes at a time."""
    steps = [step * dtype.itemsize for step in operand[1:]]
    return not any(n % 16 for n in (operand.address, *steps))


def kernel(problem: AttentionProblem, capability: tuple[int, int], kind: str) -> FlashKernel:
    """The kernel for a device of this compute capability."""
    p = problem
    engine = "plain"
    if p.dtype is not dtypes.float32:
        engine = "hopper" if capability == (9, 0) else "ampere"
    wide = 64 if max(p.width, p.depth) <= 64 else 128
    # a scale of 0, or one that underflows float32, would make masked scores NaN
    scaled = bool(p.mask) or p.scale < FLATTEST
    cut = _LONG_TILINGS.get(("forward" if kind == "statistics" else kind, engine, wide))
    long = cut is not None and not p.mask and min(p.queries, p.keys) >= LONG
    if cut is not None and kind == "keys":  # whole tiles of statistics are loaded, and not beyond
        long = long and p.padded % cut.columns == 0
    return FlashKernel(kind, engine, p.dtype, wide, p.causal, p.mask, scaled, long)


def architecture(kernel: FlashKernel, capability: tuple[int, int]) -> str:
    """NVRTC's target for the kernel: wgmma needs sm_90a."""
    return "sm_{}{}{}".format(*capability, "a" if kernel.engine == "hopper" else "")


def tiling(kernel: FlashKernel) -> Tiling:
    """The tiling of the kernel."""
    if kernel.kind == "delta":
        return Tiling(128 * 16 // (kernel.wide * kernel.dtype.itemsize), 8, 128, 2, 1)
    kind = "forward" if kernel.kind == "statistics" else kernel.kind
    cut = (_LONG_TILINGS if kernel.long else _TILINGS)[kind, kernel.engine, kernel.wide]
    if not kernel.mask:
        return cut
    masked = kernel.engine == "ampere" and kind == "forward"
    return _AMPERE_MASKED if masked else cut._replace(blocks=1)


def shared_bytes(kernel: FlashKernel, cut: Tiling) -> int:
    """Bytes of dynamic shared memory: tiles, statistics, scratch, barriers, and alignment."""
    if kernel.kind == "delta":
        return 0
    row = 2 * kernel.wide if kernel.engine != "plain" else 4 * kernel.wide + 16
    fixed = cut.rows * (1 if kernel.kind in ("forward", "statistics") else 2)
    each = 12 if kernel.mask else 8  # bytes of lse and delta
    lines = each * cut.columns * cut.stages if kernel.kind == "keys" else 0
    scratch = cut.threads // 2 * (4 * cut.columns + 16) if kernel.engine == "plain" else 0
    barriers = 8 + 16 * cut.stages
    return 1024 + (fixed + 2 * cut.columns * cut.stages) * row + lines + scratch + barriers


@lru_cache(maxsize=1024)
def most_shared(problem: AttentionProblem, capability: tuple[int, int]) -> int:
    """Bytes of shared memory that a device must grant a block, for forward and backward."""
    kernels = [kernel(problem, capability, kind) for kind in ("forward", "queries", "keys")]
    return max(shared_bytes(k, tiling(k)) for k in kernels)


@lru_cache(maxsize=256)
def source(kernel: FlashKernel, cut: Tiling | None = None) -> str:
    """The kernel as CUDA C++ that needs no header."""
    cut = cut or tiling(kernel)
    hopper = kernel.engine == "hopper"
    facts = {
        "HALVES": kernel.engine != "plain",
        "BFLOAT": kernel.dtype is dtypes.bfloat16,
        "HOPPER": hopper,
        "STATISTICS": kernel.kind == "statistics",
        "CAUSAL": kernel.causal,
        "MASK": _MASKS[kernel.mask],
        "SCALED": kernel.scaled,
        "WIDE": kernel.wide,
        "ROWS": cut.rows,
        "COLS": cut.columns,
        "THREADS": cut.threads,
        "STAGES": cut.stages,
        "BLOCKS": cut.blocks,
        "REGISTER_ROWS": cut.in_registers,
        "OVERLAP": cut.overlap,
        "MT": max(1, cut.rows * 2 // cut.threads),  # 16-row tiles of a warp
        "UNIT": 64 if hopper else max(16, cut.rows * 32 // cut.threads),  # rows of one product
    }
    parts = [f"#define {name} {int(value)}" for name, value in facts.items()]
    parts.append(flash_parts.INTRINSICS)
    if hopper:
        half = "bf16" if kernel.dtype is dtypes.bfloat16 else "f16"
        parts.append(flash_parts.HOPPER_INTRINSICS)
        parts += [flash_parts.wgmma(n, half) for n in sorted({cut.columns, kernel.wide})]
    parts.append(flash_parts.COMMON)
    if kernel.kind != "delta":
        parts.append(_ENGINES[kernel.engine])
    parts.append(_BODIES[kernel.kind])
    return "\n".join(parts)


# --- arguments of a kernel -----------------------------------------------------------------------

_Steps = ctypes.c_int64 * 3
_READ = ("q", "k", "v", "g")
_POINTERS = (*_READ, "mask", "out", "dq", "dk", "dv", "lse", "delta")
ADDRESSES = len(_POINTERS)  # the first words of the struct are addresses, or 0
_STEPS = ("q", "k", "v", "g", "out", "dq", "dk", "dv")


class Params(ctypes.Structure):
    """The kernels' struct `Params`, without tensor maps."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((f"{name}_steps", _Steps) for name in _STEPS),
        ("mask_steps", ctypes.c_int64 * 4),
        *((name, ctypes.c_int32) for name in ("heads", "group", "queries", "keys")),
        *((name, ctypes.c_int32) for name in ("width", "depth", "padded")),
        ("scale", ctypes.c_float),
        ("filler", ctypes.c_int32 * 10),  # the kernels' struct is aligned to 64 bytes
    )


class MappedParams(ctypes.Structure):
    """The same after the tensor maps of q, k, v and g."""

    _fields_ = (("maps", ctypes.c_uint64 * 16 * 4), ("plain", Params))


def _params(
    problem: AttentionProblem, inputs: Inputs, statistics: tuple[int, int], **more: Any
) -> Params:
    p = problem
    params = Params(
        heads=p.heads,
        group=p.heads // p.key_heads,
        queries=p.queries,
        keys=p.keys,
        width=p.width,
        depth=p.depth,
        padded=p.padded,
        scale=p.scale,
        lse=statistics[0],
        delta=statistics[1],
    )
    for name, operand in {**inputs._asdict(), **more}.items():
        if operand is not None:
            setattr(params, name, operand.address)
            kind = ctypes.c_int64 * len(operand[1:])
            setattr(params, f"{name}_steps", kind(*operand[1:]))
    return params


@lru_cache(maxsize=1)
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"attention on cuda: no NVIDIA driver: {error}") from None


@lru_cache(maxsize=1024)
def _tensor_map(dtype: DType, operand: AttentionOperand, sizes: tuple[int, ...], rows: int) -> Any:
    """A tensor map for TMA: boxes of `rows` by 64 elements."""
    buffer = (ctypes.c_uint64 * 32)()  # the driver wants 64-byte alignment
    at = -(-ctypes.addressof(buffer) // 64) * 64
    steps = [step * dtype.itemsize for step in (operand.token, operand.head, operand.batch)]
    # the stride of an axis of one element is not used, but the driver checks it
    steps = [step if size > 1 else 16 for step, size in zip(steps, sizes[1:], strict=True)]
    status = _driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(at),
        9 if dtype is dtypes.bfloat16 else 6,
        4,
        ctypes.c_void_p(operand.address),
        (ctypes.c_uint64 * 4)(*sizes),
        (ctypes.c_uint64 * 3)(*steps),
        (ctypes.c_uint32 * 4)(64, rows, 1, 1),
        (ctypes.c_uint32 * 4)(1, 1, 1, 1),
        0,  # no interleaving
        3,  # swizzled by 128 bytes
        2,  # fetched into L2 128 bytes at a time
        0,  # zeros outside
    )
    if status:
        raise DeviceError(f"attention: cuTensorMapEncodeTiled refuses {sizes} {operand}: {status}")
    return (ctypes.c_uint64 * 16).from_buffer_copy(ctypes.string_at(at, 128))


def _mapped(
    kernel: FlashKernel, cut: Tiling, problem: AttentionProblem, params: Params
) -> MappedParams:
    """`params` with tensor maps, whose boxes have the rows that the kernel loads at once."""
    p = problem
    found = MappedParams(plain=params)
    for i, name in enumerate(_READ):
        address = getattr(params, name)
        if not address:
            continue
        tokens, heads = (p.queries, p.heads) if name in "qg" else (p.keys, p.key_heads)
        columns = p.width if name in "qk" else p.depth
        stays = (name in "kv") == (kernel.kind == "keys")
        operand = AttentionOperand(address, *getattr(params, f"{name}_steps"))
        sizes = (columns, tokens, heads, p.batch)
        found.maps[i] = _tensor_map(p.dtype, operand, sizes, cut.rows if stays else cut.columns)
    return found


def remap(params: ctypes.Structure) -> None:
    """Update the tensor maps, if there are any, to the addresses in params."""
    if not isinstance(params, MappedParams):
        return
    buffer = (ctypes.c_uint64 * 32)()
    at = -(-ctypes.addressof(buffer) // 64) * 64
    for i, name in enumerate(_READ):
        address = getattr(params.plain, name)
        if address:
            ctypes.memmove(at, ctypes.addressof(params.maps[i]), 128)
            status = _driver().cuTensorMapReplaceAddress(
                ctypes.c_void_p(at), ctypes.c_void_p(address)
            )
            if status:
                raise DeviceError(f"attention: cuTensorMapReplaceAddress answers {status}")
            ctypes.memmove(ctypes.addressof(params.maps[i]), at, 128)


def _call(
    problem: AttentionProblem,
    capability: tuple[int, int],
    kind: str,
    params: Params,
    cut: Tiling | None = None,
) -> FlashLaunch:
    chosen = kernel(problem, capability, kind)
    cut = cut or tiling(chosen)
    given: ctypes.Structure = params
    if chosen.engine == "hopper":
        given = _mapped(chosen, cut, problem, params)
    rows, heads = problem.queries, problem.heads
    if kind == "keys":
        rows, heads = problem.keys, problem.key_heads
    elif kind == "delta":
        rows = problem.padded
    grid = (problem.batch * heads, min(65535, -(-rows // cut.rows)))
    name = architecture(chosen, capability)
    shared = shared_bytes(chosen, cut)
    title = f"attention_{kind}"
    return FlashLaunch(source(chosen, cut), name, grid, cut.threads, shared, given, title)


def forward(
    problem: AttentionProblem,
    capability: tuple[int, int],
    inputs: Inputs,
    out: AttentionOperand,
    lse: int,
) -> list[FlashLaunch]:
    """Compute out and, for a backward, lse."""
    params = _params(problem, inputs, (lse, 0), out=out)
    return [_call(problem, capability, "forward", params)]


def statistics(
    problem: AttentionProblem,
    capability: tuple[int, int],
    inputs: Inputs,
    g: AttentionOperand,
    lse: int,
    delta: int,
) -> list[FlashLaunch]:
    """Compute lse and delta from the inputs, for a backward without a saved out and lse."""
    params = _params(problem, inputs, (lse, delta), g=g)
    return [_call(problem, capability, "statistics", params)]


def delta(
    problem: AttentionProblem,
    capability: tuple[int, int],
    inputs: Inputs,
    g: AttentionOperand,
    out: AttentionOperand,
    delta: int,
) -> list[FlashLaunch]:
    """Compute delta from g and out."""
    params = _params(problem, inputs, (0, delta), g=g, out=out)
    return [_call(problem, capability, "delta", params)]


def backward(
    problem: AttentionProblem,
    capability: tuple[int, int],
    inputs: Inputs,
    g: AttentionOperand,
    lse: int,
    delta: int,
    dq: AttentionOperand,
    dk: AttentionOperand,
    dv: AttentionOperand,
) -> list[FlashLaunch]:
    """Compute dq, and dk with dv, in any order; deterministic."""
    params = _params(problem, inputs, (lse, delta), g=g, dq=dq, dk=dk, dv=dv)
    return [_call(problem, capability, kind, params) for kind in ("queries", "keys")]


def launch(function: int, call: FlashLaunch, stream: int) -> None:
    """Enqueue `call` on `stream`. `function` is its loaded CUfunction, which was granted
    `call.shared` bytes of dynamic shared memory (more than 48 KiB must be requested)."""
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(call.params))
    sizes = (*call.grid, 1, call.threads, 1, 1, call.shared)
    status = _driver().cuLaunchKernel(
        ctypes.c_void_p(function), *sizes, ctypes.c_void_p(stream), arguments, None
    )
    if status:
        raise DeviceError(f"attention: cuLaunchKernel answers {status} for {sizes}")

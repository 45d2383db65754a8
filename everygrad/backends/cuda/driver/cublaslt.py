"""Matrix products by cuBLASLt, called directly: CuPy's own calls cannot be captured into a graph.

    lt = CublasLt()                                  # one for each device, made while it is current
    plan = lt.plan(GemmProblem(m, n, k, dtypes.bfloat16, lda=k, ldb=n, ldd=n))
    lt.run(plan, stream, a, b, 0, d, workspace=w)    # addresses; allocates nothing, may be captured

All matrices are row-major: `d[i, j] = sum_l a[i, l] b[l, j]`, with `lda` the step from row to row
as stored, and `trans_a` saying that `a` is stored as (k, m). cuBLASLt's matrices are column-major,
and a row-major matrix read by columns is its transpose. So it is given the transposed problem,
`d^T = b^T a^T`: its A is our b, its m is our n, and its rows are our columns. A bias is thus one
value for each of our columns, and its BGRADA, sums over its A, is our "bgrad_b".
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from everygrad import dtypes
from everygrad.backends import disk_cache
from everygrad.backends.cuda.driver.nvrtc import candidates
from everygrad.compiler.thresholds import edge
from everygrad.dtypes import DType
from everygrad.errors import (
    ArgumentError,
    CompileError,
    DeviceError,
    DtypeError,
    EverygradError,
    ShapeError,
)

WORKSPACE = 32 << 20  # bytes; as much as pays on Hopper, and algorithms may use less
ANSWERS = 16  # how many algorithms to ask the heuristic for
# operations of a product from which on the fastest algorithm is taken, whatever memory it needs
WORTH = edge(__name__, "WORTH", 1 << 30, "products")
# below, a launch takes as long as the product: another algorithm must be faster by as much. The
# heuristic's first one may take ten times as long as the second
_MARGIN = 0.7
BIAS_ALIGNMENT = edge(__name__, "BIAS_ALIGNMENT", 16, "size")

# cudaDataType of elements
_TYPES = {
    dtypes.float32: 0,
    dtypes.float64: 1,
    dtypes.float16: 2,
    dtypes.complex64: 4,
    dtypes.complex128: 5,
    dtypes.bfloat16: 14,
}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_TF32 = 68, 70, 77

# What is computed on a product before it is stored. `bias` is a vector of n, which "bias" forms
# read and backward forms write the sums over rows to. `aux` is a matrix (m, aux_ld): gelu's input,
# or relu's signs as bits (aux_ld then counts bits, a multiple of 128). Gelu is the tanh form.
EPILOGUES = {
    "none": 1,
    "relu": 2,
    "bias": 4,
    "relu_bias": 6,
    "relu_aux": 2 | 128,
    "relu_aux_bias": 6 | 128,
    "gelu": 32,
    "gelu_bias": 36,
    "gelu_aux": 32 | 128,
    "gelu_aux_bias": 36 | 128,
    "drelu": 8 | 128,
    "drelu_bgrad": 8 | 16 | 128,
    "dgelu": 64 | 128,
    "dgelu_bgrad": 64 | 16 | 128,
    "bgrad_b": 256,  # sums of b over k, a vector of n
    "bgrad_a": 512,  # sums of a over k, a vector of m
}
_USES_BIAS = 4 | 16 | 256 | 512
_USES_AUX = 128
_BITS_IN_A_STEP, _VALUES_IN_A_STEP = 128, 8  # what aux_ld is a multiple of: for relu, for gelu

# attributes of descriptors, layouts and preferences
_TRANS_A, _TRANS_B, _EPILOGUE, _BIAS_POINTER = 3, 4, 7, 8
_AUX_POINTER, _AUX_LD, _AUX_STRIDE = 11, 12, 13
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_MAX_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)
_STATUS = {
    1: "NOT_INITIALIZED",
    3: "ALLOC_FAILED",
    7: "INVALID_VALUE",
    8: "ARCH_MISMATCH",
    11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED",
    14: "INTERNAL_ERROR",
    15: "NOT_SUPPORTED",
    16: "LICENSE_ERROR",
}


class Uses(NamedTuple):
    """How an epilogue uses its bias vector and its aux matrix."""

    reads_bias: bool
    sums: str  # "n": sums over rows of the result, or of b, are written; "m": those of a; or ""
    reads_aux: bool
    writes_aux: bool


def uses(epilogue: str) -> Uses:
    """
    >>> uses("gelu_aux_bias")
    Uses(reads_bias=True, sums='', reads_aux=False, writes_aux=True)
    """
    code = EPILOGUES[epilogue]
    aux, backward = bool(code & _USES_AUX), bool(code & (8 | 64))
    sums = "m" if code & 512 else "n" if code & (16 | 256) else ""
    return Uses(bool(code & 4), sums, aux and backward, aux and not backward)


def aux_step(epilogue: str, n: int) -> int:
    """`aux_ld` for rows of n: in bits for relu, in elements for gelu, 0 where there is no aux.

    >>> aux_step("drelu", 200), aux_step("gelu_aux", 13), aux_step("bias", 5)
    (256, 16, 0)
    """
    if not EPILOGUES[epilogue] & _USES_AUX:
        return 0
    step = _BITS_IN_A_STEP if "relu" in epilogue else _VALUES_IN_A_STEP
    return -(-n // step) * step


class GemmProblem(NamedTuple):
    """`d = epilogue(alpha * a b + beta * c)`, row-major; sizes, steps and strides in elements."""

    m: int
    n: int
    k: int
    dtype: DType  # of a and b
    lda: int
    ldb: int
    ldd: int
    trans_a: bool = False
    trans_b: bool = False
    out: DType | None = None  # of c and d; None: that of a and b
    batch: int = 1
    stride_a: int = 0  # from one matrix of the batch to the next; 0 uses one for all
    stride_b: int = 0
    stride_c: int = -1  # -1: as stride_d
    stride_d: int = 0
    ldc: int = 0  # 0: as ldd
    tf32: bool = False  # float32 and complex64 may be rounded to 10 bits before they are multiplied
    epilogue: str = "none"
    aux_ld: int = 0
    aux_stride: int = 0
    alpha: complex = 1.0
    beta: complex = 0.0
    alignment: int = 16  # bytes; every matrix's address is a multiple of it

    def __str__(self) -> str:
        a = f"({self.k}, {self.m})^T" if self.trans_a else f"({self.m}, {self.k})"
        b = f"({self.n}, {self.k})^T" if self.trans_b else f"({self.k}, {self.n})"
        batch = f"{self.batch} x " if self.batch > 1 else ""
        out = self.out or self.dtype
        return f"matmul {batch}{a} @ {b}, {self.dtype} to {out}, epilogue {self.epilogue}"


class _Answer(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: one algorithm and what it needs."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class GemmPlan:
    """A problem with its descriptors, the algorithms that can solve it, and the chosen one."""

    __slots__ = (
        "_addresses",
        "algorithm",
        "alpha",
        "answers",
        "beta",
        "chosen",
        "descriptor",
        "layouts",
        "lock",
        "problem",
        "tuned",
        "uses_aux",
        "uses_bias",
        "workspace",
    )

    def __init__(self, problem: GemmProblem, descriptor: int, layouts: tuple[int, ...]) -> None:
        self.problem = problem
        self.descriptor = descriptor
        self.layouts = layouts
        self.answers: list[_Answer] = []
        self.algorithm = 0  # address of the chosen algorithm
        self.workspace = 0  # bytes it needs
        self.tuned = False  # whether algorithms were timed
        self.alpha, self.beta = (_scalar(problem, x) for x in (problem.alpha, problem.beta))
        code = EPILOGUES[problem.epilogue]
        self.uses_bias, self.uses_aux = bool(code & _USES_BIAS), bool(code & _USES_AUX)
        self.lock = threading.Lock()  # the descriptor holds the addresses of bias and aux
        self._addresses = (0, 0)

    def choose(self, answer: _Answer) -> None:
        """Use the algorithm of `answer` from now on."""
        self.chosen = answer  # holds what `algorithm` points to
        self.algorithm = ctypes.addressof(answer)
        self.workspace = answer.workspace

    @property
    def is_large(self) -> bool:
        p = self.problem
        return 2 * p.m * p.n * p.k * p.batch >= WORTH


def _scalar(problem: GemmProblem, value: complex) -> Any:
    """alpha or beta in cuBLASLt's scale type."""
    part = ctypes.c_double if _wide(problem) else ctypes.c_float
    parts = [value.real, value.imag] if problem.dtype.is_complex else [value.real]
    return (part * len(parts))(*parts)


def _wide(problem: GemmProblem) -> bool:
    return problem.dtype in (dtypes.float64, dtypes.complex128)


def _scale_type(problem: GemmProblem) -> int:
    if problem.dtype.is_complex or _wide(problem):
        return _TYPES[problem.dtype]
    return _TYPES[dtypes.float32]


def _compute_type(problem: GemmProblem) -> int:
    """Halves accumulate in float32; float32 is rounded to tf32 only where that is allowed."""
    if _wide(problem):
        return _COMPUTE_64F
    full = problem.dtype in (dtypes.float32, dtypes.complex64)
    return _COMPUTE_TF32 if full and problem.tf32 else _COMPUTE_32F


def _check(problem: GemmProblem) -> None:
    p = problem
    for dtype in (p.dtype, p.out or p.dtype):
        if dtype not in _TYPES:
            names = ", ".join(str(d) for d in _TYPES)
            raise DtypeError(f"{p}: cuBLASLt does not multiply {dtype}; it takes {names}")
    if p.epilogue not in EPILOGUES:
        raise ArgumentError(f"{p}: no such epilogue; there are {', '.join(EPILOGUES)}")
    if min(p.m, p.n, p.k, p.batch) < 1:
        raise ShapeError(f"{p}: there is nothing to multiply; fill d with beta * c instead")
    rows = (p.m if p.trans_a else p.k, p.k if p.trans_b else p.n, p.n)
    if any(ld < row for ld, row in zip((p.lda, p.ldb, p.ldd), rows, strict=True)):
        raise ShapeError(f"{p}: steps {p.lda}, {p.ldb}, {p.ldd} between rows of {rows} elements")


def _load() -> Any:
    for path in candidates("libcublasLt", (13, 12)):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    cure = "pip install nvidia-cublas, or point CUDA_PATH at CUDA"
    raise DeviceError(f"matrix products on cuda: no libcublasLt was found: {cure}")


class CublasLt:
    """cuBLASLt on the device that is current when it is made; plans are cached by problem."""

    def __init__(self, library: Any = None, workspace: int = WORKSPACE) -> None:
        self.library = _load() if library is None else library
        self.library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.library.cublasLtGetStatusString.restype = ctypes.c_char_p
        self.version: int = self.library.cublasLtGetVersion()
        self.workspace = workspace  # bytes that `run` may be given
        self.plans: dict[GemmProblem, GemmPlan] = {}
        self._refused: set[GemmProblem] = set()
        handle = ctypes.c_void_p()
        self._check_status(self.library.cublasLtCreate(ctypes.byref(handle)), "cublasLtCreate")
        self._handle = handle.value
        self._matmul = self.library.cublasLtMatmul
        self._matmul.argtypes = [ctypes.c_void_p] * 14 + [ctypes.c_size_t, ctypes.c_void_p]

    def plan(self, problem: GemmProblem) -> GemmPlan:
        """How to solve `problem`: the cached plan, or the heuristic's best answer."""
        plan = self.plans.get(problem)
        if plan is None:
            plan = self.plans[problem] = self._new_plan(problem)
        return plan

    def serves(self, problem: GemmProblem) -> bool:
        """Whether there is an algorithm for `problem`; the answer is cached."""
        if problem in self._refused:
            return False
        try:
            self.plan(problem)
        except CompileError:
            self._refused.add(problem)
            return False
        return True

    def run(
        self,
        plan: GemmPlan,
        stream: int,
        a: int,
        b: int,
        c: int,
        d: int,
        bias: int = 0,
        aux: int = 0,
        workspace: int = 0,
    ) -> None:
        """Enqueue the product on `stream`. All are addresses; `c` is not read where beta is 0.

        `workspace` has at least `plan.workspace` bytes, and may be reused by later launches.
        """
        if (a | b | c | d) & (plan.problem.alignment - 1):
            raise ArgumentError(
                f"{plan.problem}: addresses {a:#x}, {b:#x}, {c:#x}, {d:#x} are no multiples of"
                f" {plan.problem.alignment}; plan with a smaller alignment"
            )
        if not (plan.uses_bias or plan.uses_aux):
            self._launch(plan, stream, a, b, c, d, workspace)
            return
        with plan.lock:
            self._point(plan, bias, aux)
            self._launch(plan, stream, a, b, c, d, workspace)

    def tune(
        self, plan: GemmPlan, device: str, timer: Callable[[Callable[[], None]], float], *args: int
    ) -> None:
        """Choose the fastest of the heuristic's answers: as it was found before on a device of this
        name, by this version, or by `timer(work)`, which measures how long `work` takes.

        `args` are those of `run` after the plan. Not while a stream is captured, and not where c is
        d and beta is not 0. Another answer may add in another order: sums can differ in their last
        bits from one machine to another, never from one call to the next.
        """
        plan.tuned = True
        key = hashlib.sha256(repr(("cublasLt", self.version, device, plan.problem)).encode())
        stored = disk_cache.get(key.hexdigest())
        if stored is not None and self._recall(plan, stored):
            return
        first = plan.answers[0]
        most = self.workspace if plan.is_large else first.workspace
        times: list[tuple[float, int, _Answer]] = []
        for answer in (a for a in plan.answers if a.workspace <= most):
            plan.choose(answer)
            times.append((timer(lambda: self.run(plan, *args)), len(times), answer))
        taken, _, best = min(times)
        pays = plan.is_large or taken < _MARGIN * times[0][0]
        plan.choose(best if pays else first)
        disk_cache.put(key.hexdigest(), bytes(plan.chosen.algorithm))

    def _recall(self, plan: GemmPlan, stored: bytes) -> bool:
        """Choose a stored algorithm, if the library still accepts it."""
        answer, found = _Answer(), _Answer()
        if len(stored) != ctypes.sizeof(answer.algorithm):
            return False
        ctypes.memmove(ctypes.addressof(answer), stored, len(stored))
        status = self.library.cublasLtMatmulAlgoCheck(
            ctypes.c_void_p(self._handle),
            ctypes.c_void_p(plan.descriptor),
            *(ctypes.c_void_p(layout) for layout in plan.layouts),
            ctypes.c_void_p(ctypes.addressof(answer)),
            ctypes.byref(found),
        )
        answer.workspace = found.workspace
        most = self.workspace if plan.is_large else plan.workspace
        if status or found.state or answer.workspace > most:
            return False
        plan.choose(answer)
        return True

    def close(self) -> None:
        """Destroy the handle and all descriptors; plans made here can no longer be run."""
        for plan in self.plans.values():
            self._drop(plan)
        self.plans.clear()
        if self._handle is not None:
            self.library.cublasLtDestroy(ctypes.c_void_p(self._handle))
            self._handle = None

    # --- internals -------------------------------------------------------------------------------

    def _launch(
        self, plan: GemmPlan, stream: int, a: int, b: int, c: int, d: int, space: int
    ) -> None:
        left, right, before, after = plan.layouts
        status = self._matmul(
            self._handle,
            plan.descriptor,
            ctypes.addressof(plan.alpha),
            b,
            left,
            a,
            right,
            ctypes.addressof(plan.beta),
            c or d,
            before,
            d,
            after,
            plan.algorithm,
            space,
            plan.workspace,
            stream,
        )
        if status:
            self._check_status(status, str(plan.problem))

    def _point(self, plan: GemmPlan, bias: int, aux: int) -> None:
        """Write the addresses into the descriptor, where they differ from its own."""
        if plan._addresses == (bias, aux):
            return
        missing = (plan.uses_bias and not bias, plan.uses_aux and not aux)
        if any(missing):
            name = "bias" if missing[0] else "aux"
            raise ArgumentError(f"{plan.problem}: needs the address of {name}")
        if plan.uses_bias:
            self._set(plan.descriptor, _BIAS_POINTER, ctypes.c_void_p(bias))
        if plan.uses_aux:
            self._set(plan.descriptor, _AUX_POINTER, ctypes.c_void_p(aux))
        plan._addresses = (bias, aux)

    def _new_plan(self, problem: GemmProblem) -> GemmPlan:
        _check(problem)
        p = problem
        out = p.out or p.dtype
        stride_c = p.stride_d if p.stride_c < 0 else p.stride_c
        layouts = (
            self._layout(p.dtype, p.k, p.n, p.trans_b, p.ldb, p.batch, p.stride_b),
            self._layout(p.dtype, p.m, p.k, p.trans_a, p.lda, p.batch, p.stride_a),
            self._layout(out, p.m, p.n, False, p.ldc or p.ldd, p.batch, stride_c),
            self._layout(out, p.m, p.n, False, p.ldd, p.batch, p.stride_d),
        )
        plan = GemmPlan(problem, self._descriptor(problem), layouts)
        try:
            self._ask(plan)
        except EverygradError:
            self._drop(plan)
            raise
        return plan

    def _layout(
        self,
        dtype: DType,
        rows: int,
        columns: int,
        transposed: bool,
        ld: int,
        batch: int,
        stride: int,
    ) -> int:
        """A row-major matrix, perhaps stored transposed, as cuBLASLt sees it: by columns."""
        if transposed:
            rows, columns = columns, rows
        found = ctypes.c_void_p()
        sizes = (ctypes.c_uint64(columns), ctypes.c_uint64(rows), ctypes.c_int64(ld))
        create = self.library.cublasLtMatrixLayoutCreate
        self._check_status(create(ctypes.byref(found), _TYPES[dtype], *sizes), "a matrix's layout")
        layout = found.value or 0
        if batch > 1:
            put = self.library.cublasLtMatrixLayoutSetAttribute
            count, step = ctypes.c_int32(batch), ctypes.c_int64(stride)
            self._put(put, layout, _BATCH_COUNT, count)
            self._put(put, layout, _BATCH_STRIDE, step)
        return layout

    def _descriptor(self, problem: GemmProblem) -> int:
        p = problem
        found = ctypes.c_void_p()
        create = self.library.cublasLtMatmulDescCreate
        status = create(ctypes.byref(found), _compute_type(p), _scale_type(p))
        self._check_status(status, str(p))
        descriptor = found.value or 0
        self._set(descriptor, _TRANS_A, ctypes.c_int32(p.trans_b))
        self._set(descriptor, _TRANS_B, ctypes.c_int32(p.trans_a))
        code = EPILOGUES[p.epilogue]
        self._set(descriptor, _EPILOGUE, ctypes.c_uint32(code))
        # the heuristic derives alignments from these addresses
        if code & _USES_BIAS:
            self._set(descriptor, _BIAS_POINTER, ctypes.c_void_p(BIAS_ALIGNMENT))
        if code & _USES_AUX:
            self._set(descriptor, _AUX_POINTER, ctypes.c_void_p(BIAS_ALIGNMENT))
            self._set(descriptor, _AUX_LD, ctypes.c_int64(p.aux_ld))
            self._set(descriptor, _AUX_STRIDE, ctypes.c_int64(p.aux_stride))
        return descriptor

    def _ask(self, plan: GemmPlan) -> None:
        """Ask the heuristic for algorithms and choose the first."""
        preference = ctypes.c_void_p()
        lib = self.library
        status = lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference))
        self._check_status(status, "a preference")
        chosen = preference.value or 0
        put = lib.cublasLtMatmulPreferenceSetAttribute
        self._put(put, chosen, _MAX_WORKSPACE, ctypes.c_uint64(self.workspace))
        for attribute in _ALIGNMENTS:
            self._put(put, chosen, attribute, ctypes.c_uint32(plan.problem.alignment))
        answers, count = (_Answer * ANSWERS)(), ctypes.c_int()
        status = lib.cublasLtMatmulAlgoGetHeuristic(
            ctypes.c_void_p(self._handle),
            ctypes.c_void_p(plan.descriptor),
            *(ctypes.c_void_p(layout) for layout in plan.layouts),
            preference,
            ANSWERS,
            answers,
            ctypes.byref(count),
        )
        lib.cublasLtMatmulPreferenceDestroy(preference)
        self._check_status(status, str(plan.problem))
        plan.answers = [answer for answer in answers[: count.value] if not answer.state]
        if not plan.answers:
            raise CompileError(f"{plan.problem}: cuBLASLt {self.version} has no algorithm for it")
        plan.choose(plan.answers[0])

    def _set(self, descriptor: int, attribute: int, value: Any) -> None:
        self._put(self.library.cublasLtMatmulDescSetAttribute, descriptor, attribute, value)

    def _put(self, put: Any, place: int, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        status = put(ctypes.c_void_p(place), attribute, ctypes.byref(value), size)
        self._check_status(status, f"attribute {attribute}")

    def _drop(self, plan: GemmPlan) -> None:
        self.library.cublasLtMatmulDescDestroy(ctypes.c_void_p(plan.descriptor))
        for layout in plan.layouts:
            self.library.cublasLtMatrixLayoutDestroy(ctypes.c_void_p(layout))

    def _check_status(self, status: int, what: str) -> None:
        """Raise for a status other than success: of the problem, or of the device."""
        if not status:
            return
        name = _STATUS.get(status, str(status))
        text = (self.library.cublasLtGetStatusString(status) or b"").decode()
        kind = CompileError if name in ("NOT_SUPPORTED", "INVALID_VALUE") else DeviceError
        raise kind(f"{what}: cuBLASLt {self.version} answers {name} ({text})")

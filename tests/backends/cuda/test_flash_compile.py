"""Attention's CUDA kernels and cuBLASLt's plans, without a GPU: they compile and fit the device."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from everygrad import dtypes
from everygrad.backends.cuda.array import CudaArray
from everygrad.backends.cuda.attention import attention, flash
from everygrad.backends.cuda.device import Cuda
from everygrad.backends.cuda.driver import cublaslt, nvrtc
from everygrad.backends.cuda.driver.dry_driver import DryDriver
from everygrad.backends.cuda.graph.recording import recorder, steps_of
from everygrad.errors import ArgumentError, CompileError, DeviceError, DtypeError, ShapeError

KINDS = ("forward", "statistics", "delta", "queries", "keys")
AMPERE, HOPPER = (8, 0), (9, 0)
A100_SHARED, H100_SHARED = 166_912, 232_448  # bytes that a block may have
PROBLEM = flash.AttentionProblem(dtypes.bfloat16, 2, 4, 100, 200, 64, 64, 0.125)
MASKED = {
    "": PROBLEM._replace(dtype=dtypes.float16),
    "add": PROBLEM._replace(mask="add"),
    "causal bool": PROBLEM._replace(mask="bool", causal=True),
    "negative": PROBLEM._replace(scale=-1.0),
}


class Report(nvrtc.Nvrtc):
    """NVRTC that records the assembler's report on a kernel."""

    log = ""

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        if what == "CUBIN":
            self.log = super()._text(program, "ProgramLog").decode()
        return super()._text(program, what)


@pytest.fixture(scope="module")
def compiler() -> Report:
    return Report((13, 12))


def assemble(compiler: Report, problem: flash.AttentionProblem, capability: Any, kind: str) -> None:
    """The kernel compiles without spilling its accumulators from registers."""
    kernel = flash.kernel(problem, capability, kind)
    name = flash.architecture(kernel, capability)
    options = (f"--gpu-architecture={name}", *nvrtc.OPTIONS, "--ptxas-options=-v")
    cubin = compiler.build(kind, flash.source(kernel), options)
    assert cubin.startswith(b"\x7fELF")
    assert re.findall(r"(\d+) bytes stack frame", compiler.log) == ["0"], compiler.log
    registers = int(re.findall(r"Used (\d+) registers", compiler.log)[0])
    blocks = flash.tiling(kernel).blocks
    assert registers * flash.tiling(kernel).threads * blocks <= 65536


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
@pytest.mark.parametrize("capability", [AMPERE, HOPPER], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [PROBLEM.queries, flash.LONG], ids=["", "long"])
def test_every_kernel_compiles_without_spills(
    compiler: Report, capability: Any, dtype: Any, width: int, kind: str, tokens: int
) -> None:
    problem = PROBLEM._replace(dtype=dtype, width=width, depth=width, causal=True)
    problem = problem._replace(queries=tokens, keys=tokens)
    assemble(compiler, problem, capability, kind)
    kernel = flash.kernel(problem, capability, kind)
    limit = A100_SHARED if capability == AMPERE else H100_SHARED
    assert flash.shared_bytes(kernel, flash.tiling(kernel)) <= limit


@pytest.mark.parametrize("capability", [AMPERE, HOPPER], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("case", MASKED)
@pytest.mark.parametrize("kind", ["forward", "queries", "keys"])
def test_every_mask_compiles(compiler: Report, capability: Any, case: str, kind: str) -> None:
    assemble(compiler, MASKED[case], capability, kind)


def test_long_contexts_load_whole_tiles_of_statistics() -> None:
    """The padding of lse and delta ends where a tile of the kernel that holds keys does."""
    for tokens in (flash.LONG - 64, flash.LONG, flash.LONG + 1, flash.LONG + 64, flash.LONG + 128):
        problem = PROBLEM._replace(queries=tokens, keys=tokens, width=64, depth=64)
        chosen = flash.kernel(problem, HOPPER, "keys")
        assert problem.padded % flash.tiling(chosen).columns == 0
        assert chosen.long is (tokens >= flash.LONG and problem.padded % 128 == 0)


def test_hopper_multiplies_by_its_own_instructions() -> None:
    hopper = flash.source(flash.kernel(PROBLEM, HOPPER, "forward"))
    assert "wgmma.mma_async" in hopper
    assert "cp.async.bulk.tensor" in hopper
    ampere = flash.source(flash.kernel(PROBLEM, AMPERE, "forward"))
    assert "wgmma" not in ampere
    assert "mma.sync" in ampere
    # later chips have none of Hopper's instructions, but all of Ampere's
    assert flash.kernel(PROBLEM, (12, 0), "forward").engine == "ampere"


def test_the_struct_is_laid_out_as_the_kernels_have_it(compiler: Report) -> None:
    if compiler.version < (13, 1):
        pytest.skip("this NVRTC has no offsetof; the one that CI compiles with has")
    names = [name for name, *_ in flash.Params._fields_ if name != "filler"]
    offsets = [getattr(flash.Params, name).offset for name in names]
    checks = "".join(
        f"static_assert(__builtin_offsetof(Params, {name}) == {at}, {name!r});\n".replace("'", '"')
        for name, at in zip(names, offsets, strict=True)
    )
    size = f'static_assert(sizeof(Params) == {ctypes.sizeof(flash.Params)}, "size");\n'
    text = flash.source(flash.kernel(PROBLEM, AMPERE, "delta")) + checks + size
    compiler.build("layout", text, ("--gpu-architecture=sm_80",))
    wrong = text.replace(f"lse) == {offsets[names.index('lse')]}", "lse) == 1")
    with pytest.raises(CompileError):
        compiler.build("layout", wrong, ("--gpu-architecture=sm_80",))


@pytest.mark.parametrize(
    "change",
    [
        {"width": 60},
        {"width": 256, "depth": 256},
        {"dtype": dtypes.float64},
        {"queries": 0},
        {"keys": 65535 * 64 + 1},  # more blocks than a grid has
    ],
    ids=str,
)
def test_what_the_kernels_do_not_serve(change: dict[str, Any]) -> None:
    assert flash.serves(PROBLEM, AMPERE, A100_SHARED)
    assert not flash.serves(PROBLEM._replace(**change), AMPERE, A100_SHARED)


def test_devices_that_the_kernels_do_not_serve() -> None:
    assert not flash.serves(PROBLEM, (7, 5), A100_SHARED)
    assert not flash.serves(PROBLEM, AMPERE, 48 << 10)


def test_operands_are_read_16_bytes_at_a_time() -> None:
    fine = flash.AttentionOperand(1 << 20, 4096, 64, 256)
    assert flash.aligned(dtypes.bfloat16, fine)
    assert not flash.aligned(dtypes.bfloat16, fine._replace(address=(1 << 20) + 8))
    assert not flash.aligned(dtypes.bfloat16, fine._replace(token=260))
    assert flash.aligned(dtypes.float32, fine._replace(token=260))


def test_a_mask_keeps_the_largest_score_apart() -> None:
    """Scores of -1e9 would lose the logarithm of their sum in rounding."""
    masked = PROBLEM._replace(mask="add")
    assert masked.lse_size == 2 * PROBLEM.lse_size
    assert masked.delta_size == PROBLEM.delta_size == PROBLEM.lse_size
    for shared in (99 << 10, A100_SHARED):  # and both fit
        wide = masked._replace(width=128, depth=128)
        assert flash.serves(wide, AMPERE, shared)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-60])
def test_scales_that_would_make_nan_of_closed_scores_come_first(scale: float) -> None:
    assert flash.kernel(PROBLEM._replace(scale=scale), AMPERE, "forward").scaled
    assert not flash.kernel(PROBLEM, AMPERE, "forward").scaled


def test_a_call_says_how_it_is_launched() -> None:
    x = flash.AttentionOperand(1 << 20, 25600, 6400, 64)
    inputs = flash.Inputs(x, x, x)
    assert PROBLEM.padded == 128
    assert PROBLEM.lse_size == 2 * 4 * 128
    (forward,) = flash.forward(PROBLEM, AMPERE, inputs, x, 1 << 21)
    assert forward.grid == (8, 1)
    assert forward.architecture == "sm_80"
    assert list(forward.params.q_steps) == [25600, 6400, 64]
    problem = PROBLEM._replace(sources=2)
    queries, keys = flash.backward(problem, AMPERE, inputs, x, 1, 2, x, x, x)
    assert queries.grid == (8, 1)
    assert keys.grid == (4, 2)
    assert keys.params.group == 2
    assert keys.params.dk == 1 << 20
    largest = max(forward.shared, queries.shared, keys.shared)
    assert flash.most_shared(problem, AMPERE) == largest


# --- on arrays -----------------------------------------------------------------------------------


class Served(DryDriver):
    """A driver without a GPU that attention's kernels support; they are not compiled."""

    capability = AMPERE
    lt: Any = object()

    @property
    def nvrtc(self) -> Any:
        return self

    def compile_later(self, *text: str) -> Future[bytes]:
        made: Future[bytes] = Future()
        made.set_result(b"")
        return made

    def load(self, *cubin: Any) -> int:
        return 0


@pytest.fixture
def recording() -> Any:
    return recorder(Cuda("cuda:dry", Served()))


def launched(dev: Any) -> list[flash.Params]:
    calls = [a for c in dev.gpu.commands for a in c.arguments if isinstance(a, flash.FlashLaunch)]
    return [call.params for call in calls]


@pytest.mark.parametrize("keys", [100, 1 << 14, (1 << 14) + 1])
def test_sizes_are_not_taken_for_addresses(recording: Any, keys: int) -> None:
    """Two neighbouring sizes, with 16384 keys, look like the first virtual address."""
    q, k = (recording.empty((1, 2, n, 64), dtypes.bfloat16) for n in (200, keys))
    attention._attention(recording, q, k, k, scale=0.1)
    (step,) = steps_of(recording.gpu)
    slots = range(len(recording.gpu.placeholders.starts))
    call = next(
        a for a in step.filled([1 << 20 | n << 9 for n in slots]) if type(a) is flash.FlashLaunch
    )
    assert (call.params.queries, call.params.keys) == (200, keys)
    assert call.params.q == 1 << 20
    assert call.params.lse == 1 << 20 | (len(slots) - 1) << 9


@pytest.mark.parametrize("name", ["attention", "attention_grads", "attention_saved_grads"])
@pytest.mark.parametrize("which", range(3))
def test_what_begins_at_an_odd_element_is_copied(recording: Any, which: int, name: str) -> None:
    """Even where it is contiguous: reading it 16 bytes at a time would end the process."""
    shape = (2, 3, 70, 64)
    given = [recording.empty(shape, dtypes.bfloat16) for _ in range(4)]
    longer = recording.empty((2 * 3 * 70 * 64 + 1,), dtypes.bfloat16)
    moved = CudaArray(longer.device, shape, longer.dtype, longer.storage, 1)
    assert moved.is_contiguous
    given[which] = moved
    saved = recording.empty((moved.storage.size,), dtypes.bfloat16)  # type: ignore[union-attr]
    inputs = {
        "attention": given[:3],
        "attention_grads": given,
        "attention_saved_grads": [*given, saved],
    }[name]
    assert attention.KERNELS[name](recording, *inputs, scale=0.1) is not NotImplemented
    for params in launched(recording):
        for field in ("q", "k", "v", "g", "out", "dq", "dk", "dv", "lse", "delta"):
            assert (getattr(params, field) or 0) % 16 == 0, field


# --- cuBLASLt ------------------------------------------------------------------------------------

SIMPLE = cublaslt.GemmProblem(2, 3, 4, dtypes.float32, lda=4, ldb=3, ldd=3)
LARGE = cublaslt.GemmProblem(1024, 1024, 1024, dtypes.float32, lda=1024, ldb=1024, ldd=1024)


class FakeLibrary:
    """cuBLASLt as far as CublasLt calls it: records every call, returns `status` for `failing`."""

    def __init__(self, failing: str = "", status: int = 0, answers: int = 2) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.failing, self.status, self.answers = failing, status, answers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)

        def function(*args: Any) -> Any:
            self.calls.append((name, args))
            if name == "cublasLtGetVersion":
                return 130000
            if name == "cublasLtGetStatusString":
                return b"the text"
            if name == "cublasLtMatmulAlgoGetHeuristic":
                args[-1]._obj.value = self.answers
                for i, answer in enumerate(args[-2][: self.answers]):
                    answer.workspace = 100 * (i + 1)
                    answer.algorithm[0] = i
            return self.status if name == self.failing else 0

        setattr(self, name, function)  # ctypes' functions keep their types the same way
        return function

    def last(self, name: str) -> tuple[Any, ...]:
        return next(args for called, args in reversed(self.calls) if called == name)

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)


def test_a_plan_is_made_once_and_run_transposed() -> None:
    library = FakeLibrary()
    products = cublaslt.CublasLt(library)
    plan = products.plan(SIMPLE)
    assert products.plan(cublaslt.GemmProblem(*SIMPLE)) is plan
    assert library.count("cublasLtMatmulAlgoGetHeuristic") == 1
    assert plan.workspace == 100
    products.run(plan, 7, 16, 32, 0, 48, workspace=64)
    args = library.last("cublasLtMatmul")
    # b comes first; c is d where there is none
    assert (args[3], args[5], args[8], args[10]) == (32, 16, 48, 48)
    assert args[-3:] == (64, 100, 7)
    products.close()
    assert library.count("cublasLtMatrixLayoutDestroy") == 4
    assert not products.plans


@pytest.fixture
def no_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What would be stored on disk."""
    files: dict[str, bytes] = {}
    monkeypatch.setattr(cublaslt.disk_cache, "get", files.get)
    monkeypatch.setattr(cublaslt.disk_cache, "put", files.__setitem__)
    return files


def test_the_fastest_answer_is_stored(no_files: dict[str, bytes]) -> None:
    library = FakeLibrary(answers=3)
    products = cublaslt.CublasLt(library)
    plan = products.plan(LARGE)
    times = iter([3.0, 1.0, 2.0])

    def timer(work: Callable[[], None]) -> float:
        work()
        return next(times)

    products.tune(plan, "a GPU", timer, 0, 16, 16, 0, 16)
    assert plan.workspace == 200
    assert library.count("cublasLtMatmul") == 3

    def never(work: Callable[[], None]) -> float:
        raise AssertionError("what was found is on disk")

    again = cublaslt.CublasLt(library).plan(LARGE)
    assert not again.tuned
    cublaslt.CublasLt(library).tune(again, "a GPU", never, 0, 16, 16, 0, 16)
    assert again.tuned
    assert bytes(again.chosen.algorithm) == bytes(plan.answers[1].algorithm)
    with pytest.raises(AssertionError, match="on disk"):
        cublaslt.CublasLt(library).tune(again, "another GPU", never, 0, 16, 16, 0, 16)


@pytest.mark.parametrize(("times", "chosen"), [((3.0, 1.0), 1), ((3.0, 2.5), 0), ((1.0, 3.0), 0)])
def test_a_small_product_changes_its_algorithm_only_if_that_pays(
    no_files: dict[str, bytes], times: tuple[float, ...], chosen: int
) -> None:
    """And never to one that needs more memory than the heuristic's first."""
    library = FakeLibrary(answers=3)
    products = cublaslt.CublasLt(library)
    plan = products.plan(SIMPLE)
    plan.answers[1].workspace = 50
    waiting = iter(times)
    products.tune(plan, "a GPU", lambda work: next(waiting), 0, 16, 16, 0, 16)
    assert bytes(plan.chosen.algorithm) == bytes(plan.answers[chosen].algorithm)
    assert not list(waiting)


@pytest.mark.parametrize("saved", [b"too short", b"1" * 64])
def test_an_algorithm_that_is_no_longer_taken_is_looked_for_again(
    no_files: dict[str, bytes], saved: bytes
) -> None:
    library = FakeLibrary("cublasLtMatmulAlgoCheck", 15, answers=1)
    products = cublaslt.CublasLt(library)
    plan = products.plan(SIMPLE)
    products.tune(plan, "a GPU", lambda work: 1.0, 0, 16, 16, 0, 16)
    (key,) = no_files
    no_files[key] = saved
    products.tune(plan, "a GPU", lambda work: 1.0, 0, 16, 16, 0, 16)
    assert no_files[key] == bytes(plan.answers[0].algorithm)


def test_addresses_of_bias_and_aux_are_set_when_they_change() -> None:
    library = FakeLibrary()
    products = cublaslt.CublasLt(library)
    plan = products.plan(SIMPLE._replace(epilogue="gelu_aux_bias", aux_ld=8))
    before = library.count("cublasLtMatmulDescSetAttribute")
    for bias in (16, 16, 32):
        products.run(plan, 0, 16, 16, 0, 16, bias=bias, aux=64)
    assert library.count("cublasLtMatmulDescSetAttribute") == before + 4
    with pytest.raises(ArgumentError, match="gelu_aux_bias: needs the address of aux"):
        products.run(plan, 0, 16, 16, 0, 16, bias=16)


def test_alpha_and_beta_have_the_type_of_sums() -> None:
    products = cublaslt.CublasLt(FakeLibrary())
    half = products.plan(SIMPLE._replace(dtype=dtypes.bfloat16, alpha=0.5, beta=2))
    assert bytes(half.alpha) == np.float32(0.5).tobytes()
    assert bytes(half.beta) == np.float32(2).tobytes()
    pair = products.plan(SIMPLE._replace(dtype=dtypes.complex128, alpha=1 + 2j))
    assert bytes(pair.alpha) == np.complex128(1 + 2j).tobytes()


@pytest.mark.parametrize(
    ("problem", "error", "message"),
    [
        (SIMPLE._replace(dtype=dtypes.int32), DtypeError, "does not multiply int32"),
        (SIMPLE._replace(epilogue="tanh"), ArgumentError, "no such epilogue"),
        (SIMPLE._replace(k=0), ShapeError, "nothing to multiply"),
        (SIMPLE._replace(ldb=2), ShapeError, "steps 4, 2, 3 between rows"),
    ],
)
def test_problems_that_are_none(problem: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        cublaslt.CublasLt(FakeLibrary()).plan(problem)


def test_failures_name_the_problem_and_the_status() -> None:
    products = cublaslt.CublasLt(FakeLibrary("cublasLtMatmulAlgoGetHeuristic", 15))
    with pytest.raises(CompileError, match=r"\(2, 4\) @ \(4, 3\), float32.*NOT_SUPPORTED"):
        products.plan(SIMPLE)
    assert not products.plans
    products = cublaslt.CublasLt(FakeLibrary("cublasLtMatmul", 13))
    with pytest.raises(DeviceError, match=r"matmul .*EXECUTION_FAILED \(the text\)"):
        products.run(products.plan(SIMPLE), 0, 16, 16, 0, 16)
    with pytest.raises(CompileError, match="has no algorithm"):
        cublaslt.CublasLt(FakeLibrary(answers=0)).plan(SIMPLE)
    with pytest.raises(ArgumentError, match="no multiples of 16"):
        products.run(products.plan(SIMPLE), 0, 16, 20, 0, 16)

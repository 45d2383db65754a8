"""Fused groups on WebGPU: rows of all lengths, sums over rows, limits, and the memory of a replay.

Everything runs twice: mapped as for a software adapter (one thread for each row), and as for a GPU
(threads share rows, with block reductions). Shapes alone decide that, so any adapter can test it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad._jit.pipeline import prepared
from everygrad.backends import base
from everygrad.backends.webgpu.fused import fused
from everygrad.backends.webgpu.source.machine import machine_of
from everygrad.codegen.groups.group import GroupWriter
from everygrad.codegen.groups.group_plan import task_of
from everygrad.compiler.fuse import fuse
from everygrad.compiler.groups import used_outside
from everygrad.compiler.schedule import by_loop_nest, fusable, without_strays
from everygrad.errors import DeviceError
from tests.api import test_export_web as web
from tests.jit.test_compile_time import PROGRAMS, step_of
from tests.support.checks import values

pytestmark = pytest.mark.skipif(
    "webgpu" not in os.environ.get("EVERYGRAD_TEST_DEVICES", ""),
    reason="this run does not promise webgpu (EVERYGRAD_TEST_DEVICES)",
)
DEVICE = "webgpu"
F = nn.functional
browser = web.browser  # a fixture


@pytest.fixture(params=["software", "hardware"])
def gpu(request: Any, monkeypatch: Any) -> Any:
    """The open device, treated as a software adapter or as a GPU."""
    found: Any = base.get(DEVICE)
    monkeypatch.setattr(found.gpu, "is_software", request.param == "software")
    return found.gpu


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(dtype)


def commands(f: Any) -> list[Any]:
    found: list[Any] = f.latest.replay.log
    return found


def bindings(f: Any) -> int:
    return max(len(c.blocks) for c in commands(f))


def listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple | list) else [made]


def compiled(function: Any, *arrays: Any, tolerance: float = 2e-5) -> Any:
    """The function compiled for the device, whose results are the CPU's, and its own again."""
    f = eg.jit(function)
    given = [eg.tensor(a, device=DEVICE) for a in arrays]
    first, again = listed(f(*given)), listed(f(*given))
    want = listed(function(*[eg.tensor(a) for a in arrays]))
    for got, repeated, expected in zip(first, again, want, strict=True):
        assert got.dtype is expected.dtype
        same(got, expected, tolerance)
        assert values(got).tobytes() == values(repeated).tobytes()
    return f


def same(got: Any, want: Any, tolerance: float) -> None:
    """Equal where they are NaN or infinite, and close to the scale of all elsewhere."""
    a, b = (np.asarray(values(x)) for x in (got, want))
    assert a.shape == b.shape
    if not want.dtype.is_float:
        np.testing.assert_array_equal(a, b)
        return
    a, b = a.astype(np.float64), b.astype(np.float64)
    scale = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def layer_norm(x: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],))


def cross_entropy(x: Any) -> Any:
    labels = eg.arange(x.shape[0], device=x.device) % x.shape[1]
    return F.cross_entropy(x, labels)


ALONG_ROWS = {
    "softmax": lambda x: F.softmax(x, axis=-1),
    "log_softmax": lambda x: F.log_softmax(x, axis=-1),
    "cross_entropy": cross_entropy,
    "layer_norm": layer_norm,
    "var": lambda x: x.var(axis=-1),
    "std": lambda x: eg.sqrt(x.var(axis=-1, keepdims=True) + 1.0) * x,
    "mean": lambda x: x - x.mean(axis=-1, keepdims=True),
    "max": lambda x: x.max(axis=-1) + x.min(axis=-1),
    "logsumexp": lambda x: eg.logsumexp(x, axis=-1),
}
# short, long, odd and very long rows; few and many of them
SHAPES = [
    (3, 1),
    (1, 5),
    (7, 4),
    (5, 7),
    (300, 24),
    (40, 1000),
    (33, 1025),
    (17, 4100),
    (2, 70_001),
]
MANY_ROWS = (66_001, 3)


def with_gradient(f: Any) -> Any:
    """The values, and the gradient of a weighted sum of them."""

    def loss(x: Any) -> Any:
        made = f(x)
        weights = eg.cos(eg.arange(made.size, dtype="float32", device=x.device))
        return (made * weights.reshape(made.shape)).sum()

    return lambda x: (f(x), eg.grad(loss)(x))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_and_their_derivatives(gpu: Any, shape: tuple[int, int]) -> None:
    for f in ALONG_ROWS.values():
        compiled(with_gradient(f), normal(*shape), tolerance=1e-4)


def test_more_rows_than_a_grid_has_workgroups(gpu: Any) -> None:
    for name in ("softmax", "layer_norm"):
        compiled(with_gradient(ALONG_ROWS[name]), normal(*MANY_ROWS), tolerance=1e-4)


@pytest.mark.parametrize("shape", [(64, 96), (9, 33)], ids=str)
def test_as_eager_mode_on_the_device(gpu: Any, shape: tuple[int, int]) -> None:
    x = eg.tensor(normal(*shape), device=DEVICE)
    for f in ALONG_ROWS.values():
        for got, want in zip(eg.jit(with_gradient(f))(x), with_gradient(f)(x), strict=True):
            same(got, want, 1e-4)


# --- sums over rows ------------------------------------------------------------------------------

SUMS = [(1, 6), (6, 1), (50, 3), (129, 64), (1000, 10), (3000, 257), (700, 132), (5, 9000)]


@pytest.mark.parametrize("shape", SUMS, ids=str)
def test_sums_that_end_a_group(gpu: Any, shape: tuple[int, int]) -> None:
    def sums(x: Any) -> Any:
        y = x * 2.0 + 1.0
        return y, y.sum(axis=0), y.mean(), y.max(axis=0), y.sum(axis=1), (y > 3.0).any()

    compiled(sums, normal(*shape))


@pytest.mark.parametrize("shape", [(64, 48), (500, 40), (20, 3000), (21, 7)], ids=str)
def test_sums_after_row_reductions(gpu: Any, shape: tuple[int, int]) -> None:
    """The gradients of a layer norm's weight and bias: sums over rows of row-reduced values."""

    def loss(x: Any, w: Any, b: Any) -> Any:
        return (F.layer_norm(x, (shape[1],), w, b) ** 2).mean()

    f = compiled(
        lambda x, w, b: (loss(x, w, b), *eg.grad(loss, (0, 1, 2))(x, w, b)),
        *(normal(*shape), normal(shape[1]), normal(shape[1] + 1)[1:]),
        tolerance=1e-4,
    )
    assert len(commands(f)) <= 2


def test_sums_over_any_axes(gpu: Any) -> None:
    def sums(x: Any) -> Any:
        y = eg.exp(x)
        axes = [(0, 2, 3), (1, 2), (0,), (3,), (0, 1), (1, 3), (0, 1, 2, 3)]
        return [y.sum(axis=a) for a in axes]

    compiled(sums, normal(3, 4, 5, 6))
    compiled(lambda x: ((x * x).sum(axis=0), eg.exp(x).sum(axis=1)), normal(300, 300))
    compiled(lambda x: (x * x).sum(axis=(0, 2, 3)), normal(6, 5, 40, 41))


def test_few_long_rows_are_shared_by_workgroups(gpu: Any) -> None:
    f = compiled(lambda x: eg.exp(x).sum(axis=1), normal(3, 90_000))
    assert [c.kernel.name.split()[0] for c in commands(f)] == ["fused", "finish"]
    assert commands(f)[0].kernel.grid[0] > 1


def test_rows_longer_than_the_loops_of_a_software_adapter() -> None:
    """Mesa's ends all loops of a thread after 65535 iterations in total, and says nothing."""
    compiled(lambda x: F.softmax(x, axis=-1), normal(130, 40_001))


def test_a_long_sum_keeps_its_digits(gpu: Any) -> None:
    x = np.full((3, 400_000), 0.1, np.float32)
    f = eg.jit(lambda x: ((x * 1.0).sum(), (x * 1.0).sum(axis=1), (x.mT * 1.0).sum(axis=0)))
    exact = x.astype(np.float64)
    for got, want in zip(
        f(eg.tensor(x, device=DEVICE)), (exact.sum(), *[exact.sum(1)] * 2), strict=True
    ):
        np.testing.assert_allclose(values(got), want, rtol=3e-6)


# --- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(6, 8), (70, 96), (5, 33), (3, 1)], ids=str)
def test_half_floats(gpu: Any, name: str, shape: tuple[int, int]) -> None:
    def f(x: Any) -> Any:
        x = x.astype(name)
        soft = F.softmax(x, axis=-1)
        return soft, layer_norm(x), x.mean(axis=1), x.sum(axis=0), (x * x).mean(), x > 0.0

    compiled(f, normal(*shape), tolerance=2e-2 if name == "float16" else 5e-2)


def test_half_floats_are_summed_in_float32(gpu: Any) -> None:
    ones = eg.ones((20, 5000), dtype="float16", device=DEVICE)
    for made in eg.jit(lambda x: (x.mean(axis=1), (x.mT * x.mT).mean(axis=0), x.mean()))(ones):
        np.testing.assert_array_equal(values(made).astype(np.float32), 1.0)


def test_integers_and_bools(gpu: Any) -> None:
    rng = np.random.default_rng(1)

    def f(x: Any, y: Any, z: Any) -> Any:
        y = y + 1
        wide = [
            y.sum(axis=1),
            y.sum(axis=0),
            y.max(axis=1),
            y.min(),
            y * y.max(axis=1, keepdims=True),
        ]
        flags = [z.any(axis=1), z.all(axis=0), (z ^ z.any(axis=1, keepdims=True)), z.all()]
        small = [
            x.max(axis=1),
            x.min(axis=0),
            x.astype("int32").sum(),
            eg.prod(x.astype("int32"), axis=1),
        ]
        return [*wide, *flags, *small]

    for shape in ((9, 12), (40, 7), (300, 65)):
        x = rng.integers(-3, 4, shape).astype(np.int8)
        y = rng.integers(-(2**62), 2**62, shape)
        compiled(f, x, y, rng.random(shape) < 0.9)


def test_products_of_floats(gpu: Any) -> None:
    x = 1.0 + 0.1 * normal(40, 30)
    compiled(lambda x: (eg.prod(x, axis=1), eg.prod(x + 0.0, axis=0), eg.prod(x[:3] * 1.0)), x)


def test_nan_and_infinity(gpu: Any) -> None:
    for length in (5, 8, 300, 3000):
        x = normal(24, length)
        x[0, 1] = x[1, :] = np.nan
        x[2, 0], x[3, 1], x[4, :] = np.inf, -np.inf, -np.inf
        x[5, 0], x[5, 1] = np.inf, -np.inf
        x[6, 0], x[6, 1] = np.inf, np.nan

        def f(x: Any) -> Any:
            most = x.max(axis=-1, keepdims=True)
            small = x.min(axis=1)
            soft = F.softmax(x, axis=-1)
            return soft, most, small, (x - most).sum(axis=-1), x.max(axis=0), x.max(), x.sum(axis=0)

        compiled(f, x)


# --- elementwise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1023, 1024, 1025, 40_003], ids=str)
def test_vec4_elements(gpu: Any, size: int) -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * y + 1.0
        return z, z > 1.0, z.astype("float16"), y.astype("int64") * 3, z.sum(), z.astype("int8")

    f = compiled(f, normal(size), np.arange(size).astype(np.int32), tolerance=1e-3)
    assert len(commands(f)) <= 2  # one, and perhaps a second stage of the sum


def test_operands_of_all_layouts(gpu: Any) -> None:
    def f(x: Any, row: Any, column: Any, words: Any) -> Any:
        halves = x.astype("float16").permute_dims((1, 0, 2)).permute_dims((1, 0, 2))
        flipped = x[:, ::-1, ::2]
        table = eg.take(x.reshape(-1, x.shape[2]), words, axis=0)
        return (
            x + row + column,
            x.permute_dims((2, 0, 1)) * 2.0,
            flipped * flipped,
            eg.exp(table) + row,
            halves + row.astype("float16"),
            (x * row).permute_dims((0, 2, 1)).reshape(x.shape[0], -1) + 1.0,
            table.sum(axis=1),
        )

    words = np.random.default_rng(0).integers(0, 12, 9)
    for last in (8, 6, 5):
        compiled(f, normal(3, 4, last), normal(last), normal(4, 1), words, tolerance=1e-3)


# --- how many commands ---------------------------------------------------------------------------

ONE = {
    "softmax": ALONG_ROWS["softmax"],
    "softmax, backward": eg.grad(lambda x: (F.softmax(x, axis=-1) ** 2).sum()),
    "log_softmax, backward": eg.grad(lambda x: (F.log_softmax(x, axis=-1) ** 2).sum()),
    "layer_norm": layer_norm,
    "layer_norm, backward": eg.grad(lambda x: (layer_norm(x) ** 3).sum()),
    "gelu, backward": eg.grad(lambda x: F.gelu(x).sum()),
    "a small loss": lambda x: (eg.softmax(x, axis=-1) ** 2).mean(),
    "a bias gradient": lambda x: (x * 2.0).sum(axis=0),
    "var": ALONG_ROWS["var"],
}


@pytest.mark.parametrize("name", ONE)
def test_one_kernel(gpu: Any, name: str) -> None:
    f = compiled(ONE[name], normal(48, 128), tolerance=1e-4)
    assert len(commands(f)) == 1, f.lower(eg.tensor(normal(48, 128), device=DEVICE)).kernels


def test_a_loss_and_its_gradient_read_once(gpu: Any) -> None:
    def gelu(x: Any) -> Any:
        return F.gelu(x).mean(), eg.grad(lambda x: F.gelu(x).mean())(x)

    f = compiled(gelu, normal(900, 257))
    assert [c.kernel.name for c in commands(f)] == [
        "fused gelu mean gelu.d0",
        "finish fused gelu mean gelu.d0",
    ]


def test_small_groups_of_one_size_are_one_kernel(gpu: Any) -> None:
    """Updates of parameters: on a GPU they cost little more than their launches."""
    arrays = [normal(12, 10) + i for i in range(6)]
    f = compiled(lambda *xs: [eg.exp(x) * 2.0 for x in xs], *arrays)
    assert len(commands(f)) == (6 if gpu.is_software else 1)


def test_kernels_read_vec4_and_divide_nothing(gpu: Any) -> None:
    x = eg.tensor(normal(64, 64), device=DEVICE)
    source = eg.jit(lambda x, y: eg.exp(x) * y).lower(x, x + 1.0).source
    main = source[source.index("@compute") :]
    assert source.count("array<vec4<u32>>;") == 3
    assert main.count("%") + main.count(" / ") == 0


# --- limits --------------------------------------------------------------------------------------


def test_few_buffers(gpu: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, storage_buffers=4))

    def f(x: Any, *others: Any) -> Any:
        y = x
        for t in others:
            y = y * 0.5 + t
        soft = F.softmax(y, axis=-1)
        return soft, soft.sum(axis=0), soft.mean(), y, (soft * y).sum(axis=0), soft.max(axis=1)

    f = compiled(f, *(normal(33, 40) + i for i in range(9)))
    assert bindings(f) <= 4


@pytest.mark.parametrize("shared_bytes", [2048, 4096])
def test_little_workgroup_memory(gpu: Any, monkeypatch: Any, shared_bytes: int) -> None:
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, shared_bytes=shared_bytes))

    def f(x: Any, n: Any) -> Any:
        each = [x.max(axis=1), x.min(axis=1), x.sum(axis=1), (x * x).sum(axis=1), n.sum(axis=1)]
        return [*each, x.sum(axis=0), (x * 2.0).sum(axis=0), x.mean(), n.sum(axis=0)]

    f = compiled(f, normal(40, 100), np.arange(4000).reshape(40, 100))
    for c in commands(f):
        assert 1024 * c.kernel.source.count("var<workgroup>") <= shared_bytes
        assert "array<u32, 256>" in c.kernel.source or "workgroup>" not in c.kernel.source


def test_few_workgroups_a_side(gpu: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, groups=40))
    x = normal(2000, 300)
    f = compiled(lambda x: (F.softmax(x, axis=1), eg.exp(x.mT), (x * 3.0).sum(axis=0)), x)
    assert max(max(c.kernel.grid) for c in commands(f)) == 40
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, groups=2))
    with pytest.raises(DeviceError, match="workgroups"):
        eg.jit(lambda x: x * 2.0)(eg.tensor(x, device=DEVICE))


def test_bindings_smaller_than_a_tensor(gpu: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(gpu, "limits", replace(gpu.limits, binding_size=1 << 14))
    compiled(lambda x: (F.softmax(x, axis=1), (x * 3.0).sum(axis=0), x.mean()), normal(60, 100))


def test_browsers_accept_the_kernels(gpu: Any, browser: Any, tmp_path: Path) -> None:
    """Chromium is strict about barriers: all threads must reach them."""
    (tmp_path / "index.html").write_text('<link rel=icon href="data:,"><p id=say></p>')
    sources: dict[str, str] = {}
    for shape in ((48, 128), (33, 70), (300, 7), (20, 5000)):
        x = eg.tensor(normal(*shape), device=DEVICE)
        for f in [
            *map(with_gradient, ALONG_ROWS.values()),
            lambda x: (x.sum(), (x + 1.0).sum(axis=0)),
        ]:
            sources |= eg.jit(f).lower(x).plan.sources()
        half = eg.jit(
            lambda x: (F.softmax(x.astype("float16"), axis=-1), x.astype("int64").sum(axis=0))
        )
        sources |= half.lower(x).plan.sources()
    with web.opened(browser, tmp_path) as page:
        wrong = page.evaluate(web.COMPILE, list(sources))
    assert [(sources[code], said) for code, said in wrong] == []


@pytest.mark.parametrize("buffers", [2, 3, 5, 8])
def test_a_kernel_has_as_many_results_as_can_be_bound(buffers: int) -> None:
    """Counts are found without writing kernels: they equal those of an exhaustive search."""
    compared = 0
    for program in PROGRAMS:
        graph = prepared(eg.jit(step_of(program, 12, "cpu")[0]).lower().graph, "cpu")
        groups = without_strays(
            fuse(
                graph,
                fusable,
                max(1, buffers - 1),
                0,
                text_weight=fused.text_weight,
            )
        )
        stored = used_outside(groups, graph.outputs)
        machine = machine_of(1 << 14, is_software=True)
        fuser = fused.Fuser(buffers, machine, lambda nbytes: 1 + (nbytes > 32))
        for group in groups:
            wanted = [v for v in group.members if v in stored]
            for part in by_loop_nest(group, wanted) if wanted else []:
                writers = [
                    GroupWriter(task_of(group, part[: n + 1], machine), machine)
                    for n in range(len(part))
                ]
                fits = [n + 1 for n, w in enumerate(writers) if fuser.bound(w) <= buffers]
                _, count = fuser.largest(group, part)
                assert count == max(fits, default=1)
                compared += len(part) > count
    assert compared


# --- memory --------------------------------------------------------------------------------------


def chain(x: Any, w: Any) -> Any:
    for _ in range(12):
        x = eg.tanh(x @ w).mT @ w
    return x


def test_blocks_are_reused(gpu: Any) -> None:
    x, w = normal(128, 128), normal(128, 128) / 12.0
    before = gpu.pool.taken_bytes
    f = compiled(chain, x, w, tolerance=1e-4)
    memory = f.memory()
    assert memory.outputs == x.nbytes
    assert 0 < memory.peak <= memory.arena <= 3 * x.nbytes
    assert sum(life.nbytes for _, life in memory.placed) >= 20 * x.nbytes
    assert gpu.pool.taken_bytes - before < 12 * x.nbytes


def test_blocks_are_returned_with_the_function(gpu: Any) -> None:
    x = eg.tensor(normal(64, 64), device=DEVICE)
    f = eg.jit(chain)
    f(x, x).to("cpu")
    f.clear()
    gpu.pool.take(64)  # collects returned blocks
    before, free = gpu.pool.taken_bytes, gpu.pool.free_bytes
    for _ in range(3):
        f(x, x).to("cpu")
        f.clear()
        gpu.pool.take(64)
    assert gpu.pool.taken_bytes == before
    assert gpu.pool.free_bytes == free


def test_recording_runs_nothing_and_takes_no_memory(gpu: Any) -> None:
    x = eg.tensor(normal(300, 300), device=DEVICE)
    gpu.wait()
    before, epoch = gpu.pool.taken_bytes, gpu.epoch
    lowered = eg.jit(chain).lower(x, x)
    assert (gpu.pool.taken_bytes, gpu.epoch) == (before, epoch)
    assert "workgroup" in lowered.kernels
    assert "@compute" in lowered.source
    assert lowered.memory.arena > 0
    assert lowered.nbytes > 24 * 300 * 300 * 4
    assert "steps" in str(lowered)


def test_memory_that_was_written_waits_for_what_is_recorded(gpu: Any) -> None:
    """A constant's block may be one that commands, not yet submitted, still write."""
    constant = np.arange(77, dtype=np.float32)
    for _ in range(20):
        x = eg.ones((77,), device=DEVICE)
        for _ in range(3):
            x = x * 2.0  # its blocks return to the pool, their kernels wait
        f = eg.jit(lambda x: x.reshape(7, 11) @ eg.tensor(constant, device=DEVICE).reshape(11, 7))
        np.testing.assert_array_equal(values(f(x)), np.full((7, 11), 8.0) @ constant.reshape(11, 7))


def test_a_result_that_is_a_constant(gpu: Any) -> None:
    f = eg.jit(lambda x: (x.sum(axis=0), x.sum()))
    for made in f(eg.zeros((0, 3), device=DEVICE)):
        np.testing.assert_array_equal(values(made), 0.0)


def test_results_without_elements(gpu: Any) -> None:
    f = eg.jit(lambda x: (x[3:3], x[:, 2:2].mT, x + 1.0))
    nothing, nor_here, something = f(eg.ones((4, 5), device=DEVICE))
    assert values(nothing).shape == (0, 5)
    assert values(nor_here).shape == (0, 4)
    np.testing.assert_array_equal(values(something), 2.0)


def test_calls_do_not_see_each_others_intermediate_values(gpu: Any) -> None:
    """Intermediate values of a call do not reach the next one."""
    f = eg.jit(lambda x, w: (chain(x, w), x.sum(axis=0)))
    w = eg.tensor(normal(32, 32) / 6.0, device=DEVICE)
    inputs = [eg.tensor(normal(32, 32) * k, device=DEVICE) for k in (1.0, 2.0, 3.0)]
    results = [f(x, w) for x in inputs]
    for x, (got, sums) in zip(inputs, results, strict=True):
        same(got, chain(x, w), 1e-4)
        same(sums, x.sum(axis=0), 1e-4)

"""Products on WebGPU: every kernel, at the edges of its tiles, against NumPy."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import everygrad as eg
from everygrad import nn
from everygrad.backends import base
from everygrad.backends.webgpu.driver.adapters import request_device
from everygrad.backends.webgpu.gemm import choose_kernel, cooperative_matrix, gemm, operand_reads
from everygrad.io.web import export_web
from tests.api import test_export_web as web
from tests.conftest import DEVICES

pytestmark = pytest.mark.skipif("webgpu" not in DEVICES, reason="this run promises no webgpu")
DEV = "webgpu"
RNG = np.random.default_rng(0)
browser = web.browser
TOLERANCES = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}


def backend() -> Any:
    return base.get(DEV)


def on(array: Any) -> eg.Tensor:
    return eg.tensor(np.asarray(array), device=DEV)


@pytest.fixture(params=["software", "hardware", "hardware without features"])
def kind(request: Any, monkeypatch: Any) -> None:
    """Kernels that suit a CPU, and those that suit a GPU, on whatever adapter there is."""
    gpu = backend().gpu
    monkeypatch.setattr(gpu, "is_software", request.param == "software")
    if "without" in request.param:
        monkeypatch.setattr(gpu, "features", set())


@pytest.fixture
def hardware(monkeypatch: Any) -> None:
    monkeypatch.setattr(backend().gpu, "is_software", False)


def matrix(rows: int, columns: int, dtype: str, transposed: bool) -> tuple[eg.Tensor, Any]:
    """A matrix on the device, transposed in memory or not, and its values."""
    shape = (columns, rows) if transposed else (rows, columns)
    values = RNG.normal(size=shape).astype(eg.dtypes.as_dtype(dtype).np)
    there = on(values)
    wide = values.astype(np.float64)
    return (there.T, wide.T) if transposed else (there, wide)


def check(got: eg.Tensor, want: Any, terms: int, dtype: str = "float32") -> None:
    error = np.abs(got.numpy().astype(np.float64) - want).max()
    assert got.shape == want.shape
    assert error <= TOLERANCES[dtype] * np.sqrt(terms) * max(1.0, np.abs(want).max())


def kinds_of(monkeypatch: Any) -> list[tuple[str, tuple[int, ...]]]:
    """The kinds of kernel that products take from now on, and their sizes."""
    seen: list[tuple[str, tuple[int, ...]]] = []
    run = choose_kernel.run

    def noted(dev: Any, product: Any) -> Any:
        seen.append((product.kind, product.sizes))
        return run(dev, product)

    monkeypatch.setattr(choose_kernel, "run", noted)
    return seen


# --- tiles ---------------------------------------------------------------------------------------

EDGES = [
    *((n, 33, 64) for n in (31, 32, 33, 63, 64, 65)),
    *((64, 16, n) for n in (31, 32, 33, 63, 64, 65)),
    *((129, k, 128) for k in (15, 16, 17)),
    *((8, 40, 300), (300, 40, 8), (9, 100, 129)),
]


@pytest.mark.parametrize("sizes", EDGES, ids=str)
def test_tiles_at_their_edges(sizes: tuple[int, int, int], kind: None) -> None:
    m, k, n = sizes
    for dtype in TOLERANCES:
        for transposed in range(4):
            x, a = matrix(m, k, dtype, bool(transposed & 1))
            y, b = matrix(k, n, dtype, bool(transposed & 2))
            check(x @ y, a @ b, k, dtype)


@pytest.mark.parametrize("n", [1023, 1024, 1025])
def test_large_tiles_at_their_edges(n: int, hardware: None) -> None:
    x, a = matrix(2048, 20, "float32", transposed=False)
    y, b = matrix(20, n, "float32", transposed=False)
    tiles = (2048 // gemm.LARGE_TILE.rows) * (1024 // gemm.LARGE_TILE.columns)
    assert tiles == choose_kernel.ENOUGH
    check(x @ y, a @ b, 20)


def test_operands_that_start_anywhere(kind: None) -> None:
    for offset in range(4):
        flat = RNG.normal(size=64 * 48 + offset).astype(np.float32)
        x = on(flat)[offset:].reshape(64, 48)
        a = flat[offset:].reshape(64, 48).astype(np.float64)
        check(x @ x.T, a @ a.T, 48)
        check(x[:, 1:45] @ x.T[2:46, 4:40], a[:, 1:45] @ a.T[2:46, 4:40], 44)


def test_stacks_broadcast(kind: None) -> None:
    a = RNG.normal(size=(3, 1, 40, 36)).astype(np.float32)
    b = RNG.normal(size=(4, 36, 52)).astype(np.float32)
    check(on(a) @ on(b), a.astype(np.float64) @ b.astype(np.float64), 36)
    check(on(a) @ on(b[0]), a.astype(np.float64) @ b[0].astype(np.float64), 36)
    transposed = np.swapaxes(a.astype(np.float64), -1, -2)
    check(on(a).mT @ on(a), transposed @ a.astype(np.float64), 40)


def test_more_matrices_than_a_dispatch_takes(kind: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(backend().gpu.limits, "groups", 11)
    a = RNG.normal(size=(13, 32, 40)).astype(np.float32)
    b = RNG.normal(size=(13, 40, 36)).astype(np.float32)
    check(on(a) @ on(b), a.astype(np.float64) @ b.astype(np.float64), 40)
    tall = RNG.normal(size=(700, 40)).astype(np.float32)  # more tiles than one axis of the grid
    check(on(tall) @ on(b[0]), tall.astype(np.float64) @ b[0].astype(np.float64), 40)


def test_integers_and_empty_products(kind: None) -> None:
    for dtype in ("int32", "uint8", "int64"):
        i = RNG.integers(0, 50, (65, 70)).astype(dtype)
        np.testing.assert_array_equal((on(i) @ on(i.T)).numpy(), i @ i.T)
    none = on(np.zeros((33, 0), np.float32))
    np.testing.assert_array_equal((none @ none.T).numpy(), np.zeros((33, 33)))
    assert (on(np.zeros((0, 33), np.float32)) @ on(np.zeros((33, 20), np.float32))).shape == (0, 20)


def test_transposed_operands_are_read_as_vec4() -> None:
    x = on(np.zeros((64, 128), np.float32))
    for left in (x, on(np.zeros((128, 64), np.float32)).T):
        for right in (x.T, on(np.zeros((128, 64), np.float32))):
            found = operand_reads.matrices(backend(), left._data, right._data)
            assert found is not None
            assert found.operands.is_vec4
            assert set(found.operands.words) == {"vec4<u32>"}
    odd = operand_reads.matrices(backend(), x._data, on(np.zeros((128, 63), np.float32))._data)
    assert odd is not None
    assert odd.operands.words == ("vec4<u32>", "u32")  # one side's reason is not the other's


# --- few rows or columns, many terms -------------------------------------------------------------

THIN = [
    *((m, 300, n) for m, n in ((1, 1000), (1000, 1), (7, 333), (333, 5), (2, 999))),
    *((1, 4096, 512), (512, 4096, 1), (3, 2049, 70), (1, 70_001, 1), (6, 5003, 6)),
]


@pytest.mark.parametrize("sizes", THIN, ids=str)
def test_gemv(sizes: tuple[int, int, int], kind: None, monkeypatch: Any) -> None:
    m, k, n = sizes
    seen = kinds_of(monkeypatch)
    for dtype in TOLERANCES:
        for transposed in range(4):
            x, a = matrix(m, k, dtype, bool(transposed & 1))
            y, b = matrix(k, n, dtype, bool(transposed & 2))
            check(x @ y, a @ b, k, dtype)
    assert {kind for kind, _ in seen} == {"gemv"}


@pytest.mark.parametrize("sizes", [(32, 9001, 32), (16, 4096, 40), (1, 50_000, 3), (2, 4096, 130)])
def test_many_terms_are_split_into_parts(sizes: tuple[int, int, int], kind: None) -> None:
    m, k, n = sizes
    x, a = matrix(m, k, "float32", transposed=True)
    y, b = matrix(k, n, "float32", transposed=False)
    found = operand_reads.matrices(backend(), x._data, y._data)
    assert found is not None
    assert choose_kernel.parts_of(backend(), found) > 1
    first = (x @ y).numpy()
    check(x @ y, a @ b, k)
    np.testing.assert_array_equal(first, (x @ y).numpy())  # the same bits each time


LONG = [(2, 65_535, 3), (2, 65_536, 3), (3, 200_001, 2)]


@pytest.mark.parametrize("sizes", LONG, ids=str)
def test_integers_of_more_terms_than_a_loop_has_iterations(sizes: tuple[int, int, int]) -> None:
    """Mesa's software adapter silently ends a thread's loops after 65,535 iterations."""
    m, k, n = sizes
    a = RNG.integers(1, 4, (m, k)).astype(np.int32)
    b = RNG.integers(1, 4, (k, n)).astype(np.int32)
    np.testing.assert_array_equal((on(a) @ on(b)).numpy(), a @ b)


@pytest.mark.parametrize("k", [4 * 65_536 * 4 + 64, 4 * 65_536 * 4 + 61])
def test_tiles_of_more_terms_than_a_loop_has_iterations(k: int) -> None:
    a = RNG.integers(0, 2, (8, k)).astype(np.float32)
    found = operand_reads.matrices(backend(), on(a)._data, on(a).T._data)
    assert found is not None
    assert -(-k // choose_kernel.parts_of(backend(), found)) * 5 / 16 < 65_535
    # sums of whole numbers below 2**24 are exact
    np.testing.assert_array_equal((on(a) @ on(a).T).numpy(), a.astype(np.float64) @ a.T)


# --- convolutions --------------------------------------------------------------------------------

CONVOLUTIONS = [  # images, channels, size, results, kernel, stride, padding, dilation, groups
    (9, 64, 4, 72, 3, 1, 1, 1, 1),
    (3, 17, 7, 33, 3, 2, 1, 1, 1),
    (17, 16, 16, 64, 3, 1, 1, 1, 1),
    (36, 8, 24, 128, 3, 1, 1, 1, 1),
    (2, 40, 9, 130, 2, 1, 0, 1, 1),
    (2, 24, 11, 40, 3, 2, 1, 1, 1),
    (9, 16, 17, 24, 1, 2, 0, 1, 1),
    (2, 32, 13, 16, 5, 3, 2, 1, 2),
    (9, 16, 19, 16, 2, 3, 1, 1, 1),
    (2, 16, 14, 32, 3, 1, 2, 2, 1),
    (2, 16, 15, 32, 3, 2, 2, 2, 1),
    (4, 3, 20, 16, 3, 1, 1, 1, 1),
    (4, 16, 15, 32, 3, 2, 1, 1, 1),
    (4, 32, 14, 32, 3, 1, 2, 2, 4),
    (4, 32, 13, 64, 1, 1, 0, 1, 1),
    (2, 16, 14, 64, 5, 3, 2, 1, 2),
    (4, 12, 16, 12, 3, 1, 1, 1, 12),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolutions_and_their_gradients(case: Any, kind: None, monkeypatch: Any) -> None:
    n, c, size, o, k, stride, padding, dilation, groups = case
    image = RNG.normal(size=(n, c, size, size)).astype(np.float32)
    weight = RNG.normal(size=(o, c // groups, k, k)).astype(np.float32)
    seen = kinds_of(monkeypatch)
    found = []
    for device in ("cpu", DEV):
        x = eg.tensor(image, device=device, requires_grad=True)
        w = eg.tensor(weight, device=device, requires_grad=True)
        y = nn.functional.conv2d(x, w, None, stride, padding, dilation, groups)
        (y * y).sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        found.append([t.detach().numpy() for t in (y, x.grad, w.grad)])
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, 1e-4, 1e-5 * np.abs(want).max())
    assert len(seen) == 3
    wide = min(o // groups, c // groups, seen[0][1][2]) >= 8
    assert {made for made, _ in seen} == {"images"} if wide else "simple" in dict(seen) or c < 8


# --- what follows a product ----------------------------------------------------------------------


def names_of(compiled: Any) -> list[str]:
    return [c.kernel.name for c in compiled.latest.replay.log if c.kernel is not None]


def _several(h: Any, r: Any) -> Any:
    return h, h > 0, eg.tanh(h) * r


def _small(h: Any) -> Any:
    return h.astype("float16"), (h * 8).astype("int8")


EPILOGUES = {
    "bias and activation": (lambda h, b, r: eg.gelu(h + b), 1),
    "several results": (lambda h, b, r: _several(h + b, r), 1),
    "small dtypes": (lambda h, b, r: _small(h * b), 1),
    "a column and a row": (lambda h, b, r: (h - r[:, :1]) * b * r, 1),
    "reversed operands": (lambda h, b, r: eg.flip(r, axis=1)[:, :64] - h, 1),
    "used twice": (lambda h, b, r: (eg.relu(h), h @ r.T), 3),
    "also returned": (lambda h, b, r: (h, eg.relu(h)), 1),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_a_product_takes_what_follows_as_its_epilogue(name: str, kind: None) -> None:
    after, count = EPILOGUES[name]
    x, w, b, r = (
        on(RNG.normal(size=shape).astype(np.float32))
        for shape in ((96, 40), (64, 40), 64, (96, 64))
    )

    def function(x: Any, w: Any, b: Any, r: Any) -> Any:
        return after(x @ w.T, b, r)

    compiled = eg.jit(function)
    got, want = compiled(x, w, b, r), function(x, w, b, r)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for g, v in pairs:
        assert g.dtype is v.dtype
        np.testing.assert_allclose(
            g.numpy().astype(np.float64), v.numpy().astype(np.float64), 1e-6, 1e-6
        )
    assert len(names_of(compiled)) <= count + (name == "also returned")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_floats_are_rounded_before_what_follows(dtype: str, kind: None) -> None:
    x, _ = matrix(64, 48, dtype, transposed=False)
    y, _ = matrix(48, 64, dtype, transposed=False)
    b = x[:, :1].reshape(64)

    def function(x: Any, y: Any, b: Any) -> Any:
        return (x @ y) * 3 + b

    compiled = eg.jit(function)
    np.testing.assert_array_equal(compiled(x, y, b).numpy(), function(x, y, b).numpy())
    assert len(names_of(compiled)) == 1


def test_no_epilogue_where_it_does_not_fit(kind: None, monkeypatch: Any) -> None:
    """Odd rows, GEMV, split-K, and too many buffers: the same results, by more kernels."""
    for m, k, n in ((64, 32, 63), (4, 300, 64), (32, 9000, 32)):
        x, y = (on(RNG.normal(size=s).astype(np.float32)) for s in ((m, k), (k, n)))
        compiled = eg.jit(lambda x, y: eg.relu(x @ y + 1.0))
        np.testing.assert_allclose(compiled(x, y).numpy(), eg.relu(x @ y + 1.0).numpy(), 1e-5, 1e-4)
        assert len(names_of(compiled)) >= 2
    monkeypatch.setattr(backend().gpu.limits, "storage_buffers", 3)
    x, y, b = (on(RNG.normal(size=s).astype(np.float32)) for s in ((64, 32), (32, 64), (64, 64)))
    compiled = eg.jit(lambda x, y, b: x @ y + b)
    np.testing.assert_allclose(compiled(x, y, b).numpy(), (x @ y + b).numpy(), 1e-6, 1e-6)
    assert len(names_of(compiled)) == 2


def test_convolutions_take_epilogues(kind: None) -> None:
    x = on(RNG.normal(size=(4, 8, 12, 12)).astype(np.float32))
    w = on(RNG.normal(size=(16, 8, 3, 3)).astype(np.float32))
    b = on(RNG.normal(size=16).astype(np.float32))

    def function(x: Any, w: Any, b: Any) -> Any:
        return eg.relu(nn.functional.conv2d(x, w, padding=1) + b.reshape(16, 1, 1))

    compiled = eg.jit(function)
    np.testing.assert_allclose(compiled(x, w, b).numpy(), function(x, w, b).numpy(), 1e-6, 1e-6)
    assert names_of(compiled) == ["copy", "conv2d add relu"]  # weights in the order of their reads


@pytest.mark.parametrize("dtype", [*TOLERANCES, "int32"])
def test_linear_layers_add_their_bias_at_once(dtype: str, kind: None) -> None:
    for rows, columns in ((64, 32), (64, 33), (2, 32)):
        x, w, b = (
            on((RNG.normal(size=s) * 8).astype(eg.dtypes.as_dtype(dtype).np))
            for s in ((rows, 48), (columns, 48), (columns,))
        )
        got = nn.functional.linear(x, w, b).numpy()
        np.testing.assert_array_equal(got, (nn.functional.linear(x, w) + b).numpy())


# --- cooperative matrices ------------------------------------------------------------------------

_EMULATED = """
struct Small { at: u32, line: u32, by_rows: bool }
fn part_of(m: Small, row: u32, column: u32) -> vec2<u32> {
  let far = select(column, row, m.by_rows);
  let near = select(row, column, m.by_rows);
  return vec2<u32>(m.at + far * m.line + near / 4u, near % 4u);
}
fn multiply_add(x: Small, y: Small, sums: array<f32, 8>, within: u32) -> array<f32, 8> {
  var made = sums;
  for (var i = 0u; i < 8u; i = i + 1u) {
    for (var k = 0u; k < 16u; k = k + 1u) {
      let p = part_of(x, within / 2u, k);
      let q = part_of(y, k, (within % 2u) * 8u + i);
      made[i] = made[i] + f32(xs[p.x][p.y]) * f32(ys[q.x][q.y]);
    }
  }
  return made;
}
"""
_MULTIPLIED = """    for (var i = 0u; i < 16u; i = i + 1u) {
      let which = i % 8u;
      sums[which] = multiply_add(x[i / 4u], y[i % 4u + (i / 8u) * 4u], sums[which], within);
    }
"""


def emulated(source: str) -> str:
    """A kernel's cooperative matrices as plain WGSL: 32 threads have 8 of the 256 numbers each. One
    loop stands for all multiplications, or they would take minutes to compile."""
    assert (cooperative_matrix.DOWN, cooperative_matrix.ACROSS, cooperative_matrix.TERMS) == (
        2,
        4,
        32,
    )
    text = source.replace("enable wgpu_cooperative_matrix;\n", "")
    given = (
        ") {\n  let group = l / 32u;\n  let within = l % 32u;\n  var x: array<Small, 4>;\n"
        "  var y: array<Small, 8>;\n  var sums: array<array<f32, 8>, 8>;"
    )
    text = re.sub(r", @builtin\(subgroup_id\).*?u32\) \{", given, text, flags=re.DOTALL)
    text = re.sub(r"  var s\d\d = coop_mat16x16<f32, C>\(\);\n", "", text)
    text = re.sub(
        r"let ([xy])(\d+)_(\d) = coopLoad(T?)<coop_mat16x16<f16, \w>>\(&\w+\[(\w+)\], (\w+)\)",
        lambda m: (
            f"{m[1]}[{int(m[2]) // 16 * (2 if m[1] == 'x' else 4) + int(m[3])}] = "
            f"Small({m[5]}, {m[6]}, {'true' if m[4] else 'false'})"
        ),
        text,
    )
    *_, last = re.finditer(r"    s\d\d = coopMultiplyAdd\(.*\n", text)
    text = text[: last.start()] + _MULTIPLIED + text[last.end() :]
    text = re.sub(r"    s\d\d = coopMultiplyAdd\(.*\n", "", text)
    text = re.sub(
        r"coopStoreT\(s(\d)(\d), &stage\[base\], line\);",
        lambda m: (
            "for (var i = 0u; i < 8u; i = i + 1u) {\n    stage[base + (within / 2u) * line + "
            f"(within % 2u) * 8u + i] = sums[{4 * int(m[1]) + int(m[2])}][i];\n  }}"
        ),
        text,
    )
    assert "coop" not in text
    return text.replace("@compute", _EMULATED + "@compute")


@pytest.fixture
def cooperative_matrices(hardware: None, monkeypatch: Any) -> Any:
    """A device with cooperative matrices, which are emulated."""
    gpu = backend().gpu
    kernel = cooperative_matrix.kernel
    if "shader-f16" not in gpu.features:
        pytest.skip("this adapter has no f16 to emulate them with")
    monkeypatch.setattr(gpu, "features", gpu.features | cooperative_matrix.NEEDS)
    monkeypatch.setattr(gpu, "has_cooperative_matrices", None)
    monkeypatch.setattr(
        cooperative_matrix, "kernel", lambda *args, **kw: emulated(kernel(*args, **kw))
    )
    return gpu


@pytest.mark.parametrize(
    "sizes", [(128, 64, 128), (127, 33, 65), (129, 32, 260), (64, 2000, 66)], ids=str
)
def test_cooperative_matrices(
    sizes: tuple[int, int, int], cooperative_matrices: Any, monkeypatch: Any
) -> None:
    m, k, n = sizes
    seen = kinds_of(monkeypatch)
    for transposed in range(4):
        x, a = matrix(m, k, "float16", bool(transposed & 1))
        y, b = matrix(k, n, "float16", bool(transposed & 2))
        check(x @ y, a @ b, k, "float16")
    assert {kind for kind, _ in seen} == {"cooperative"}
    assert "cooperative-matrix" in cooperative_matrices.features


def test_cooperative_matrices_in_stacks_with_epilogues(cooperative_matrices: Any) -> None:
    a = RNG.normal(size=(3, 70, 40)).astype(np.float16)
    b = RNG.normal(size=(3, 40, 68)).astype(np.float16)
    x, y, bias = on(a), on(b), on(b[0, 0])
    wide = a.astype(np.float64) @ b.astype(np.float64)
    check(x @ y, wide, 40, "float16")
    compiled = eg.jit(lambda x, y, b: eg.relu(x @ y + b))
    check(compiled(x, y, bias), np.maximum(wide + b[0, 0].astype(np.float64), 0), 40, "float16")
    assert len(names_of(compiled)) == 1


def test_cooperative_matrices_that_are_wrong_are_not_used(
    cooperative_matrices: Any, monkeypatch: Any
) -> None:
    kernel = cooperative_matrix.kernel
    wrong = ("made[i] = made[i] +", "made[i] = 2.0 * made[i] +")
    monkeypatch.setattr(
        cooperative_matrix, "kernel", lambda *args, **kw: kernel(*args, **kw).replace(*wrong)
    )
    x, a = matrix(128, 64, "float16", transposed=False)
    check(x @ x.T, a @ a.T, 64, "float16")
    assert "cooperative-matrix" not in cooperative_matrices.features
    monkeypatch.setattr(cooperative_matrix, "kernel", lambda *args, **kw: "this is no WGSL")
    cooperative_matrices.features.add("cooperative-matrix")
    monkeypatch.setattr(cooperative_matrices, "has_cooperative_matrices", None)
    check(x @ x.T, a @ a.T, 64, "float16")
    assert "cooperative-matrix" not in cooperative_matrices.features


# --- opening -------------------------------------------------------------------------------------


class Adapter:
    """Lists experimental features, and refuses them, as wgpu-native does."""

    def __init__(self, *features: str) -> None:
        self.features = set(features)
        self.asked: list[list[str]] = []

    def request_device_sync(self, required_features: list[str], required_limits: Any) -> str:
        self.asked.append(required_features)
        if "cooperative-matrix" in required_features:
            raise RuntimeError("Some experimental features were requested")
        return "device"


def test_a_device_without_experimental_features() -> None:
    adapter = Adapter("subgroup", "cooperative-matrix", "texture-atomic")
    assert request_device(adapter, {}) == ("device", {"subgroup"})
    assert adapter.asked == [["subgroup", "cooperative-matrix"], ["subgroup"]]
    assert request_device(Adapter("shader-f16"), {}) == ("device", {"shader-f16"})


def test_whether_cooperative_matrices_are_used_is_said() -> None:
    def said(offered: bool, granted: bool, right: bool | None, shared: int = 1 << 16) -> str:
        return cooperative_matrix.state(
            SimpleNamespace(
                adapter=SimpleNamespace(features=cooperative_matrix.NEEDS if offered else set()),
                features=set(cooperative_matrix.NEEDS) if granted else {"subgroup"},
                limits=SimpleNamespace(shared_bytes=shared),
                has_cooperative_matrices=right,
            )
        )

    assert said(offered=False, granted=False, right=None).startswith("not offered by this adapter")
    assert "refused when the device was opened" in said(offered=True, granted=False, right=None)
    assert "came out wrong" in said(offered=True, granted=False, right=False)
    assert "bytes of workgroup memory" in said(offered=True, granted=True, right=None, shared=1024)
    assert said(offered=True, granted=True, right=True) == "used for large products of float16"
    assert "float16" in backend().cooperative_matrices()


def test_exported_kernels_ask_for_nothing(tmp_path: Any) -> None:
    x = on(RNG.normal(size=(1, 4096)).astype(np.float32))
    w = on(RNG.normal(size=(64, 4096)).astype(np.float32))
    export_web(lambda x: eg.relu(x @ w.T), (x,), tmp_path)
    text = (tmp_path / "kernels.wgsl").read_text()
    assert "subgroup" not in text
    assert "enable" not in text


def test_browsers_accept_the_kernels(
    browser: Any, tmp_path: Any, kind: None, monkeypatch: Any
) -> None:
    """All kernels except those that use features a page has to request."""
    monkeypatch.setattr(backend().gpu, "features", set())
    (tmp_path / "index.html").write_text('<link rel=icon href="data:,"><p id=say></p>')
    sources: dict[str, str] = {}
    for m, k, n in ((1, 4096, 64), (3, 100, 640), (64, 48, 64), (65, 47, 33), (1024, 16, 1024)):
        for transposed in range(4):
            x, _ = matrix(m, k, "float32", bool(transposed & 1))
            y, _ = matrix(k, n, "float32", bool(transposed & 2))
            sources |= eg.jit(lambda x, y: eg.gelu(x @ y)).lower(x, y).plan.sources()
    image, weight = (
        on(np.zeros((2, 8, 16, 16), np.float32)),
        on(np.zeros((16, 8, 3, 3), np.float32)),
    )
    sources |= eg.jit(lambda x, w: nn.functional.conv2d(x, w)).lower(image, weight).plan.sources()
    with web.opened(browser, tmp_path) as page:
        wrong = page.evaluate(web.COMPILE, list(sources))
    assert [(sources[code], said) for code, said in wrong] == []
    assert len(sources) >= 8


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
@pytest.mark.parametrize("terms", [16_000, 20_000, 70_000, 129_276])
def test_long_products_of_small_integers_are_exact(dtype: str, terms: int) -> None:
    """A thread computes all results of a word, and a software adapter ends the loops of a thread
    after 65,535 iterations in total."""
    low = 0 if dtype == "uint8" else -9
    a, b = (RNG.integers(low, 9, s).astype(dtype) for s in ((2, terms), (terms, 5)))
    want = (a.astype(np.int64) @ b.astype(np.int64)).astype(dtype)
    assert np.array_equal((on(a) @ on(b)).numpy(), want)
    assert np.array_equal(eg.jit(lambda x, y: x @ y)(on(a), on(b)).numpy(), want)

"""The reference of `jit(verify=True)`: every op by NumPy alone, and what it says of results."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import everygrad as eg
from everygrad.backends import base
from everygrad.backends.cpu import registry
from everygrad.backends.cpu.conv import convolution
from everygrad.backends.cpu.fused import accumulator
from everygrad.backends.cpu.gemm import eager_matmul, gemm
from everygrad.backends.cpu.kernels import numpy_render
from everygrad.backends.cpu.llvm import intrinsics
from everygrad.backends.reference import evaluate
from everygrad.compiler.ir import infer
from everygrad.core.scopes import intercepting
from everygrad.dtypes import FROM_NP
from everygrad.errors import CompileError
from everygrad.ops.record.spec import REGISTRY
from tests.support.checks import (
    BY_FAMILY,
    WITH_SAMPLES,
    all_close,
    call,
    function_of,
    gradients,
    in_dtype,
    is_flat,
    map_sample,
    refer,
    samples_of,
    to_tensor,
)


def evaluated(op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
    """An op by the reference, in the dtype its record gives the result."""
    if op.family != "kernel" or op.result is not None:
        given = [SimpleNamespace(shape=a.shape, dtype=FROM_NP[a.dtype]) for a in arrays]
        dtype = infer(op, given, params)[1].np  # type: ignore[arg-type]  # all that it looks at
    elif op.name == "count_labels":
        dtype = params["dtype"].np
    else:
        dtype = np.dtype(np.int64) if op.name.startswith("arg") else arrays[0].dtype
    return np.asarray(evaluate.evaluate(op, arrays, params, dtype))


@contextmanager
def by_reference(seen: set[str] | None = None) -> Iterator[None]:
    """Every eager op on the CPU is computed by the reference instead."""
    backend = base.get("cpu")

    def run(op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
        if seen is not None:
            seen.add(op.name)
        return evaluated(op, arrays, params)

    backend.__dict__["run"] = run
    try:
        with intercepting():  # nothing goes past `run`
            yield
    finally:
        del backend.__dict__["run"]


def test_every_op_has_a_way() -> None:
    leaves = [op for op in REGISTRY.values() if op.family != "composite"]
    assert len(leaves) > 200
    assert [op.name for op in leaves if not evaluate.is_known(op)] == []


def test_no_way_is_left_over() -> None:
    """A way whose op is gone would say nothing of anything."""
    named = {*evaluate.WAYS, *evaluate.matmul_conv.ROUNDED, *evaluate.linalg.CLAIMS}
    assert named <= set(REGISTRY)
    assert set(evaluate.linalg.CLAIMS) == set(evaluate.linalg.CHOSEN)


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_reference_equals_the_records_own(name: str) -> None:
    op = REGISTRY[name]
    checked = 0
    for sample in samples_of(op, "cpu"):
        with by_reference():
            got = call(function_of(op), map_sample(sample, to_tensor("cpu")))
        coarse = op.notes.get("coarse")
        all_close(got, refer(op, sample), 2e-3 if coarse else 1e-11, f"{name} {sample}")
        checked += 1
    assert checked


def judged(name: str, dtypes: tuple[str, ...], slopes: bool = True) -> list[str]:
    """What the reference has against the CPU's own results, of every op that a sample runs."""
    op, backend, found, looked = REGISTRY[name], base.get("cpu"), [], 0
    usual = backend.run

    def run(op: Any, arrays: list[Any], params: dict[str, Any]) -> Any:
        nonlocal looked
        out = usual(op, arrays, params)
        fault = evaluate.fault(op, arrays, params, out)
        looked += 1
        if fault is not None:
            found.append(f"{op.name} {[f'{a.dtype}{a.shape}' for a in arrays]} {params}: {fault}")
        return out

    backend.__dict__["run"] = run
    try:
        with intercepting():
            for sample in samples_of(op, "cpu"):
                for one in (in_dtype(sample, dtype) for dtype in dtypes):
                    call(function_of(op), map_sample(one, to_tensor("cpu")))
            if slopes and not is_flat(op):
                gradients(function_of(op), next(samples_of(op, "cpu")), "cpu")
    finally:
        del backend.__dict__["run"]
    assert looked or name in NOTHING_RUNS, f"{name} ran no op"
    return found


NOTHING_RUNS = {"positive", "to"}  # on the same device: the tensor under another name


@pytest.mark.parametrize("name", WITH_SAMPLES)
def test_right_results_are_let_through(name: str) -> None:
    """Bounds are wide enough for every op and its derivative, in every precision."""
    assert judged(name, ("float64", "float32", "bfloat16")) == []


# --- wrong kernels, in eager mode and compiled alike ---------------------------------------------


def _wrong_tap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last element of each kernel is laid over the image where the first is."""
    right = convolution._taps

    def taps(reads: Any, window: Any) -> list[int]:
        found = right(reads, window)
        return [*found[:-1], found[0]]

    convolution._work.cache_clear()
    monkeypatch.setattr(convolution, "_taps", taps)


def _short_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last column of the first matrix is left out."""
    right = gemm.product_of
    _forget_products()
    monkeypatch.setattr(gemm, "product_of", lambda *xs: (p := right(*xs))._replace(k=p.k - 1))


def _forget_products() -> None:  # what was made for these shapes
    gemm.matmul.cache_clear()
    eager_matmul._works.clear()


def _long_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are a thousandth too large, compiled and by NumPy."""
    right, usual = accumulator.Accumulator.finalize, registry.REDUCERS["add"]

    def finalize(self: Any, e: Any, total: Any, v: Any) -> Any:
        made = right(self, e, total, v)
        return e.op("fmul", made, intrinsics.literal(made.type, 1.001))

    monkeypatch.setattr(accumulator.Accumulator, "finalize", finalize)
    monkeypatch.setitem(registry.REDUCERS, "add", lambda *xs, **ps: usual(*xs, **ps) * 1.001)


def _wrong_inverse(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element is a hundredth off."""
    right = registry.KERNELS["inv"]

    def inv(x: Any) -> Any:
        out = right(x)
        out[..., 0, 0] *= 1.01
        return out

    monkeypatch.setitem(registry.KERNELS, "inv", inv)
    monkeypatch.setitem(base.get("cpu").kernels, "inv", inv)


def _wrong_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """sqrt is off by the fifth digit, compiled and by NumPy."""
    right = intrinsics._FLOAT["sqrt"]
    wrong = lambda e, x: e.op("fmul", right(e, x), intrinsics.literal(x.type, 1.00001))  # noqa: E731
    monkeypatch.setitem(intrinsics._FLOAT, "sqrt", wrong)
    monkeypatch.setitem(numpy_render.UFUNCS, "sqrt", lambda x: np.sqrt(x) * x.dtype.type(1.00001))
    numpy_render.render.cache_clear()
    numpy_render._small.clear()


def _rand(*shape: int) -> Any:
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


class Planted(NamedTuple):
    """Something that makes an op wrong, a function of the op, and what it is called with."""

    plant: Callable[[pytest.MonkeyPatch], None]
    f: Callable[..., Any]
    arrays: tuple[Any, ...]


PLANTED = {
    "conv2d": Planted(
        _wrong_tap,
        lambda x, w: eg.conv2d(x, w, padding=1),
        (_rand(2, 8, 21, 19), _rand(11, 8, 3, 3)),
    ),
    "matmul": Planted(_short_product, eg.matmul, (_rand(171, 173), _rand(173, 167))),
    "mean": Planted(_long_mean, lambda x: x.mean(axis=1), (_rand(37, 41),)),
    "inv": Planted(_wrong_inverse, eg.linalg.inv, (_rand(5, 5) + 4 * np.eye(5, dtype="f"),)),
    "sqrt": Planted(_wrong_root, lambda x: eg.sqrt(x + 1), (_rand(7, 13),)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_kernel_of_both_is_refused_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager mode and jit agree on what is wrong; the reference has no part in it."""
    plant, f, arrays = PLANTED[name]
    tensors = [eg.tensor(a) for a in arrays]
    right = f(*tensors).numpy().copy()
    plant(monkeypatch)
    try:
        eager = _slowly(f, tensors)
        assert np.abs(eager - right).max() > 1e-6
        compiled = eg.jit(lambda *xs: f(*xs))(*tensors).numpy()
        np.testing.assert_allclose(compiled, eager, rtol=2e-6)
        with pytest.raises(
            CompileError, match=rf"first at .* {name} .*test_numpy_reference.py.* not "
        ):
            eg.jit(lambda *xs: f(*xs), verify=True)(*tensors)
    finally:
        monkeypatch.undo()
        convolution._work.cache_clear()
        _forget_products()
        numpy_render.render.cache_clear()
        numpy_render._small.clear()


def _slowly(f: Any, tensors: list[Any]) -> Any:
    """Without the fast path, which keeps the functions it found first."""
    with intercepting():
        return f(*tensors).numpy().copy()


def test_a_wrong_kernel_is_refused_in_the_compiled_derivative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`backward` from a compiled function's result runs code of its own."""
    x = eg.tensor(_rand(5, 11), requires_grad=True)
    eg.jit(lambda x: eg.sqrt(x).sum(), verify=True)(x).backward()
    loss = eg.jit(lambda x: eg.sqrt(x * 2).sum(), verify=True)(x)
    root = intrinsics._FLOAT["sqrt"]
    monkeypatch.setitem(intrinsics._FLOAT, "div", lambda e, a, b: root(e, a))
    with pytest.raises(CompileError, match=r"first at .* sqrt\.d0 .*test_numpy_reference.py"):
        loss.backward()


COMPILED = [
    name
    for name in (*BY_FAMILY["kernel"], *BY_FAMILY["reduction"])
    if not REGISTRY[name].notes.get("by_values")  # which jit refuses
]


@pytest.mark.parametrize("name", COMPILED)
def test_verify_lets_compiled_ops_through(name: str) -> None:
    op = REGISTRY[name]
    sample = map_sample(in_dtype(next(samples_of(op, "cpu")), "float32"), to_tensor("cpu"))
    verified = eg.jit(lambda: call(function_of(op), sample), verify=True)
    verified()
    assert verified.latest is not None
    assert verified.latest.used


def test_verify_knows_random_bits() -> None:
    eg.manual_seed(3)
    f = eg.jit(lambda: (eg.rand((65,)), eg.randn((3, 7)), eg.randint(0, 9, (11,))), verify=True)
    first = [t.numpy().copy() for t in f()]
    assert any((a != t.numpy()).any() for a, t in zip(first, f(), strict=True))


# of which any device is made: no kernels
INTERFACE = {"everygrad.backends", "everygrad.backends.base", "everygrad.backends.deferred_checks"}


def test_the_reference_knows_no_devices() -> None:
    folder = Path(evaluate.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                known = INTERFACE if path.name == "device.py" else set()
                outside = name.startswith("everygrad.backends") and "reference" not in name
                assert not outside or name in known, f"{path.name} imports {name}"
                assert "llvm" not in name, f"{path.name} imports {name}"

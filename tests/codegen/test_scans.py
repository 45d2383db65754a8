"""Scans in the kernel language: every way of the lowering, at the sizes where it changes, run by
the interpreter (which finds races) and compared with NumPy; and by the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import everygrad as eg
from everygrad import dtypes
from everygrad.backends.cuda.source.kernel_render import render as cuda_source
from everygrad.backends.reference import interpreter
from everygrad.backends.webgpu.source.kernel_render import render as wgsl_source
from everygrad.codegen import scan
from everygrad.codegen.machine import Machine

CORE = Machine(1, dtypes.float64, dtypes.uint64, 1 << 62, None, in_flight=4)
# small, so that short arrays have many groups, tiles and chunks
GPU = Machine(8, dtypes.float64, dtypes.uint32, 1 << 30, dtypes.uint64, parallel=64)
WEBGPU = GPU._replace(wide_float=dtypes.float32)
MACHINES = {"core": CORE, "gpu": GPU, "wide": GPU._replace(narrow=0)}
TILE = 8 * 4
SHAPES = [
    *(((rows, n), 1) for rows, n in [(1, 1), (3, 2), (4, 64), (9, 65), (3, TILE * 4 + 1)]),
    *(((n,), 0) for n in (63, TILE * 8 - 1, TILE * 8, TILE * 8 + 1)),
    *((shape, 1) for shape in [(1, 64, 2), (2, 1, 9), (2, 31, 9), (1, 130, 2)]),
    ((2, 3, 513), 1),
]  # fmt: skip


def interpreted(machine: Machine, op: str, arrays: list[Any], axis: int, reverse: bool) -> Any:
    x = arrays[-1]
    plan = scan.plan(op, dtypes.FROM_NP[x.dtype], x.shape, axis, machine, reverse)
    out = np.zeros(x.shape, scan.result_dtype(op, dtypes.FROM_NP[x.dtype]).np)
    held = [*arrays, out, *(np.zeros(n, d.np) for d, n in plan.temporaries)]
    for kernel, places in plan.launches:
        interpreter.run(kernel, [held[p] for p in places])
    return out


def expected(op: str, arrays: list[Any], axis: int, reverse: bool) -> Any:
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    if reverse:
        wide = [np.flip(a, axis) for a in wide]
    x = wide[-1]
    if op == "recurrence":
        out = np.moveaxis(np.array(x), axis, 0)
        for i, factor in enumerate(np.moveaxis(wide[0], axis, 0)[1:]):
            out[i + 1] += factor * out[i]
        out = np.moveaxis(out, 0, axis)
    elif op in ("cummax_index", "cummin_index"):
        fn = torch.cummax if op == "cummax_index" else torch.cummin
        out = fn(torch.tensor(x.copy()), axis).indices.numpy()
    else:
        fn = {
            "cumulative_sum": np.add,
            "cumulative_prod": np.multiply,
            "logcumsumexp": np.logaddexp,
        }
        out = fn[op].accumulate(x, axis=axis)
    return np.flip(out, axis) if reverse else out


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("op", scan.OPS)
def test_interpreted(op: str, machine: str) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in SHAPES:
        arrays = [rng.uniform(-1, 1, shape).astype(np.float32)]
        if op == "recurrence":
            arrays.insert(0, rng.uniform(-1, 1, shape).astype(np.float32))
        if op.endswith("_index"):  # ties and NaN
            arrays = [np.round(4 * arrays[0])]
            arrays[0][arrays[0] == 3] = np.nan
        for reverse in (False, True) if op == "cumulative_sum" else (False,):
            got = interpreted(MACHINES[machine], op, arrays, axis, reverse)
            want = expected(op, arrays, axis, reverse)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"{shape}")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "float16", "bfloat16", "float64"])
def test_dtypes(dtype: str) -> None:
    kind = dtypes.as_dtype(dtype)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 4, (3, 100)).astype(kind.np)
    for machine in MACHINES.values():
        got = interpreted(machine, "cumulative_sum", [x], 1, False)
        want = np.cumsum(x.astype(np.float64 if kind.is_float else kind.np), 1)
        np.testing.assert_array_equal(got, want.astype(kind.np))


def test_sums_begin_at_zero() -> None:
    x = np.full((3, 70), -0.0, np.float32)
    for machine in MACHINES.values():
        got = interpreted(machine, "cumulative_sum", [x], 1, False)
        assert not np.signbit(got).any()


def test_a_recurrence_keeps_one_number_where_elements_come_one_by_one() -> None:
    rule = scan.rule_of("recurrence", dtypes.float32, CORE)
    assert len(rule.state) == 2
    assert rule.live() == (1,)
    assert scan.rule_of("cummax_index", dtypes.float32, CORE).live() == (0, 1)


def test_one_text_serves_rows_of_all_lengths() -> None:
    """Where nothing but the length changes, it is a symbol."""
    texts = set()
    for n in (200, 300):
        (launch,) = scan.plan("cumulative_sum", dtypes.float32, (64, n), 1, WEBGPU).launches
        texts.add((cuda_source(launch.kernel).text.source, wgsl_source(launch.kernel).source))
    assert len(texts) == 1


@pytest.mark.parametrize("op", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_on_devices(device: str, op: str) -> None:
    """Tiles of 1024, chunks of long rows, lanes, and views that do not begin where memory does."""
    rng = np.random.default_rng(2)
    for shape, axis in [((3, 1023), 1), ((2, 1025), 1), ((1, 70001), 1), ((1, 5000, 3), 1),
                        ((40, 65), 1), ((300, 2), 0)]:  # fmt: skip
        base = rng.uniform(0.9, 1.1, (shape[0] + 1, *shape[1:])).astype(np.float32)
        x = eg.tensor(base, device=device)[1:]
        found = getattr(eg, op)(x, axis)
        want = getattr(torch, op)(torch.tensor(base[1:]).double(), axis)
        pairs = [(found, want)] if op[:4] not in ("cumm",) else zip(found, want, strict=True)
        for got, w in pairs:
            np.testing.assert_allclose(got.numpy(), w.numpy(), rtol=2e-5, atol=1e-6)
        eager = found if isinstance(found, eg.Tensor) else found.values
        compiled = eg.jit(lambda t, a=axis: _first(getattr(eg, op)(t, a)))(x)
        np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-6)


def _first(found: Any) -> Any:
    return found if isinstance(found, eg.Tensor) else found.values

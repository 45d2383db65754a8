"""cuBLASLt's products with epilogues on the host's memory, for the dry CUDA device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from everygrad.backends.cuda.driver import cublaslt
from everygrad.backends.cuda.driver.dry_driver import _bytes_at

SCALE, CUBE = np.sqrt(2 / np.pi), 0.044715


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(SCALE * (x + CUBE * x**3)))


def gelu_slope(x: Any) -> Any:
    bent = np.tanh(SCALE * (x + CUBE * x**3))
    return 0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * SCALE * (1 + 3 * CUBE * x * x)


def memory(at: int, shape: tuple[int, ...], dtype: Any, step: int = 0) -> Any:
    """The memory at an address as a matrix."""
    step = step or shape[-1]
    count = (shape[0] - 1) * step + shape[-1] if len(shape) == 2 else shape[0]
    flat = _bytes_at(at, count * dtype.itemsize).view(dtype)
    if len(shape) == 1:
        return flat
    return np.lib.stride_tricks.as_strided(flat, shape, (step * dtype.itemsize, dtype.itemsize))


class Host:
    """`cublaslt.CublasLt` by NumPy in float64; `refused` epilogues have no algorithm."""

    workspace = 0

    def __init__(self, refused: Sequence[str] = ()) -> None:
        self.refused = refused
        self.plans: dict[cublaslt.GemmProblem, cublaslt.GemmPlan] = {}
        self.done: list[str] = []

    def serves(self, problem: cublaslt.GemmProblem) -> bool:
        return problem.epilogue not in self.refused

    def plan(self, problem: cublaslt.GemmProblem) -> cublaslt.GemmPlan:
        assert self.serves(problem)
        cublaslt._check(problem)
        return self.plans.setdefault(problem, cublaslt.GemmPlan(problem, 0, ()))

    def run(
        self, plan: cublaslt.GemmPlan, stream: int, a: int, b: int, c: int, d: int, *rest: int
    ) -> None:
        p, (bias, aux, _) = plan.problem, rest
        self.done.append(p.epilogue)
        assert plan.uses_bias == bool(bias)
        assert plan.uses_aux == bool(aux)
        assert not (bias | aux) % 16
        dtype = p.dtype.np
        for i in range(p.batch):
            size = dtype.itemsize * i
            x = memory(a + size * p.stride_a, (p.k, p.m) if p.trans_a else (p.m, p.k), dtype, p.lda)
            y = memory(b + size * p.stride_b, (p.n, p.k) if p.trans_b else (p.k, p.n), dtype, p.ldb)
            x, y = (np.float64(z.T if t else z) for z, t in ((x, p.trans_a), (y, p.trans_b)))
            out = memory(d + size * p.stride_d, (p.m, p.n), dtype, p.ldd)
            out[:] = self.ended(p, x, y, bias, aux)

    def ended(self, p: cublaslt.GemmProblem, x: Any, y: Any, bias: int, aux: int) -> Any:
        out, dtype, use = x @ y, p.dtype.np, cublaslt.uses(p.epilogue)
        kind = p.epilogue.split("_")[0]
        if use.reads_bias:
            out = out + np.float64(memory(bias, (p.n,), dtype))
        bits = p.aux_ld // 8
        if use.writes_aux and kind == "relu":
            signs = np.packbits(out > 0, axis=1, bitorder="little")
            memory(aux, (p.m, signs.shape[1]), np.dtype(np.uint8), bits)[:] = signs
        elif use.writes_aux:
            memory(aux, (p.m, p.n), dtype, p.aux_ld)[:] = out
        if kind in ("relu", "gelu"):
            out = np.maximum(out, 0) if kind == "relu" else gelu(out)
        elif kind == "drelu":
            signs = memory(aux, (p.m, -(-p.n // 8)), np.dtype(np.uint8), bits)
            out = out * np.unpackbits(signs, axis=1, count=p.n, bitorder="little")
        elif kind == "dgelu":
            out = out * gelu_slope(np.float64(memory(aux, (p.m, p.n), dtype, p.aux_ld)))
        if use.sums:
            summed = {"bgrad_a": x.T, "bgrad_b": y}.get(p.epilogue, out)
            memory(bias, (p.m if use.sums == "m" else p.n,), dtype)[:] = summed.sum(0)
        return out

"""Complex numbers: made of two real operands, and taken apart again, so that the referee sees real
numbers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import everygrad as eg
from devtools.sweep.draw import Draw
from devtools.sweep.opsection import OpSection
from devtools.sweep.problem import Problem
from devtools.sweep.referee import as_list


def of_parts(f: Callable[..., Any], complexes: int) -> Callable[..., Any]:
    """f on complex numbers that are given and returned as their parts."""

    def run(*parts: Any) -> Any:
        made = [eg.complex(parts[2 * k], parts[2 * k + 1]) for k in range(complexes)]
        outs = as_list(f(*made, *parts[2 * complexes :]))
        return [p for o in outs for p in ((eg.real(o), eg.imag(o)) if o.dtype.is_complex else (o,))]

    return run


def of_torchs_parts(f: Callable[..., Any], complexes: int) -> Callable[..., Any]:
    """The same of a function of PyTorch's."""

    def run(*parts: Any) -> Any:
        made = [torch.complex(parts[2 * k], parts[2 * k + 1]) for k in range(complexes)]
        outs = as_list(f(*made, *parts[2 * complexes :]))
        return [p for o in outs for p in ((o.real, o.imag) if o.is_complex() else (o,))]

    return run


Pair = tuple[Callable[..., Any], Callable[..., Any]]


def _ours_written(x: eg.Tensor) -> eg.Tensor:
    out = x * 2
    out[[0, 0]] = x[:1]
    return out


def _theirs_written(x: torch.Tensor) -> torch.Tensor:
    out = x * 2
    out[:1] = x[:1]
    return out


UNARY: dict[str, Pair] = {
    "exp": (eg.exp, torch.exp),
    "sin": (eg.sin, torch.sin),
    "cosh": (eg.cosh, torch.cosh),
    "square": (lambda x: x * x, lambda x: x * x),
    "conj": (lambda x: eg.conj(x) * x, lambda x: torch.conj(x) * x),
    "abs": (eg.abs, torch.abs),
    "sum": (lambda x: eg.sum(x, 0), lambda x: torch.sum(x, 0)),
    "mean": (eg.mean, torch.mean),
    "cumsum": (lambda x: eg.cumsum(x, -1), lambda x: torch.cumsum(x, -1)),
    "cumprod": (lambda x: eg.cumprod(x[..., :6], -1), lambda x: torch.cumprod(x[..., :6], -1)),
    "flip": (lambda x: eg.flip(x, 0), lambda x: torch.flip(x, (0,))),
    "roll": (lambda x: eg.roll(x, 1, 0), lambda x: torch.roll(x, 1, 0)),
    "reshape": (lambda x: x.mT.reshape(-1), lambda x: x.mT.reshape(-1)),
    "sqrt": (lambda x: eg.sqrt(x * x + 4), lambda x: torch.sqrt(x * x + 4)),
    "reciprocal": (lambda x: 1 / (x + 4), lambda x: 1 / (x + 4)),
    "gather": (lambda x: x[::2][[0, 0]], lambda x: x[::2][[0, 0]]),
    "where": (
        lambda x: eg.where(eg.real(x) > 0, x, x * 2),
        lambda x: torch.where(x.real > 0, x, x * 2),
    ),
    "truth": (
        lambda x: eg.where(eg.logical_not(x), x, x * 2),
        lambda x: torch.where(torch.logical_not(x), x, x * 2),
    ),
    "concat": (lambda x: eg.concat([x, x]), lambda x: torch.cat([x, x])),
    "pad": (
        lambda x: eg.pad(x, ((0, 0),) * (x.ndim - 1) + ((1, 2),)),
        lambda x: torch.nn.functional.pad(x, (1, 2)),
    ),
    "stack": (lambda x: eg.stack([x, x * 2], axis=-1), lambda x: torch.stack([x, x * 2], -1)),
    "take": (lambda x: x[..., [0, 0]], lambda x: x[..., [0, 0]]),
    "take_along_axis": (
        lambda x: eg.take_along_axis(x, eg.argsort(eg.real(x), axis=0, stable=True), axis=0),
        lambda x: torch.take_along_dim(x, torch.sort(x.real, dim=0, stable=True).indices, 0),
    ),
    "scatter": (_ours_written, _theirs_written),
    # PyTorch's MKL refuses to transform no rows
    "fft": (lambda x: eg.fft.fft(x), lambda x: torch.fft.fft(x) if x.numel() else x * 1),
}


def _dtype(d: Draw) -> str:
    return d.dtype(halves=0, wide=0.4)


def unary(d: Draw) -> Problem:
    name, dtype = d.pick(tuple(UNARY)), _dtype(d)
    shape = d.shape(d.between(2, 3))
    if name == "take":  # by index, of what has elements
        shape = (*shape[:-1], max(1, shape[-1]))
    parts = [d.floats(shape, dtype, -1, 1) for _ in range(2)]
    ours, theirs = UNARY[name]
    return Problem(parts, of_parts(ours, 1), of_torchs_parts(theirs, 1), floor=1.0, dtype=dtype)


def products(d: Draw) -> Problem:
    dtype = _dtype(d)
    m, k, n = (d.size(d.pick((12, 70))) for _ in range(3))
    batch = d.shape(d.between(0, 1), 6)
    if large := d.chance(0.3):  # more than one thread's work
        m, k, n = d.pick(((150, 200, 170), (170, 200, 130), (60, 64, 70), (60, 64, 70)))
        batch = () if m > 60 else d.pick(((18,), (1, 18), (1, 18), (3, 7)))
    parts = [d.floats((*batch, m, k), dtype, -1, 1) for _ in range(2)]
    if large and d.chance(0.3):
        batch = ()  # of one operand alone
    parts += [d.floats((*batch, k, n), dtype, -1, 1) for _ in range(2)]
    f = of_parts(lambda a, b: a @ b, 2), of_torchs_parts(lambda a, b: a @ b, 2)
    return Problem(parts, *f, floor=math.sqrt(k), dtype=dtype)


def quotients(d: Draw) -> Problem:
    """Of numbers so small that their reciprocals overflow; the quotient of two is as any other."""
    shape, scale = d.any_shape(), d.pick((1.0, 2.0**-128, 2.0**-136))
    parts = [d.floats(shape, "float32", 0.5, 2.0, grad=False) for _ in range(4)]
    # numbers of few digits: what is smaller than the smallest normal one has few
    given = [replace(p, array=np.round(p.array * 16) / 16 * np.float32(scale)) for p in parts]
    f = of_parts(lambda a, b: a / b, 2), of_torchs_parts(lambda a, b: a / b, 2)
    return Problem(given, *f, floor=1.0)


LINALG = ("inv", "det", "matrix_exp", "eigvalsh", "cholesky", "solve")


def matrices(d: Draw) -> Problem:
    """Well-conditioned ones, as the real ones of `linalg` are."""
    name, dtype = d.pick(LINALG), _dtype(d)
    n, batch = d.size(d.pick((24, 90))), d.shape(d.between(0, 1), d.pick((3, 40)))
    hermitian = name in ("eigvalsh", "cholesky")
    real, imag = (
        d.given(
            (2 * np.eye(n) if k == 0 else 0) + d._values.uniform(-1, 1, (*batch, n, n)) / (2 * n),
            dtype,
            repeats=False,
        )
        for k in range(2)
    )
    right = [d.floats((*batch, n, 2), dtype, -1, 1) for _ in range(2)] if name == "solve" else []

    def of(lib: Any, adjoint: Callable[[Any], Any]) -> Callable[..., Any]:
        def run(a: Any, *b: Any) -> Any:
            return getattr(lib.linalg, name)((a + adjoint(a)) / 2 if hermitian else a, *b)

        return run

    count = 1 + len(right) // 2
    return Problem(
        (real, imag, *right),
        of_parts(of(eg, lambda a: eg.conj(a).mT), count),
        of_torchs_parts(of(torch, lambda a: a.mH), count),
        floor=2.0,
        looseness=8.0,
        dtype=dtype,
    )


SECTION = OpSection(
    "complexes",
    ("loop_nest", "single_op", "scan"),
    {
        "complex elements": (4, unary),
        "complex products": (1.5, products),
        "complex quotients": (0.5, quotients),
        "complex matrices": (1, matrices),
    },
    weight=0.5,
    absent={"webgpu": ("complex matrices",)},
)

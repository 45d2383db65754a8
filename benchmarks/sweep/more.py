"""What the sweep of ops in float32 does not show: random numbers, casts, other dtypes, small calls.

Each is a name and the same function of arrays for both libraries; `python -m benchmarks.sweep
--more` times them as it does ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

import everygrad as eg

MANY, FEW = 1 << 20, 1000
CASTS = (
    "float32 float16", "float16 float32", "float32 bfloat16", "bfloat16 float32", "float32 int32",
    "float32 int64", "int64 float32", "int32 float32", "float64 float32", "int64 int32",
    "float32 uint8", "uint8 float32", "bool float32",
)  # fmt: skip
PRODUCTS = ((8, 8, 8), (64, 64, 64), (512, 512, 512), (1024, 1024, 1))
EQUATIONS = {
    "bhid,bhjd->bhij": ((4, 8, 128, 64), (4, 8, 128, 64)),
    "i,j->ij": ((1000,), (1000,)),
    "bi,bi->b": ((1024, 1024), (1024, 1024)),
    "ijk,ilk->ijl": ((2, 3, 4), (2, 3, 4)),
}


class Pair(NamedTuple):
    """One thing to time: ours and PyTorch's; whether it can be compiled."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arrays: tuple[Any, ...] = ()
    dtype: str = ""
    compiled: bool = True


def tensors(pair: Pair) -> tuple[list[Any], list[Any]]:
    """The arrays as tensors of both libraries."""
    ours = [eg.tensor(a).astype(pair.dtype) if pair.dtype else eg.tensor(a) for a in pair.arrays]
    kind = getattr(torch, pair.dtype) if pair.dtype else None
    return ours, [torch.tensor(a).to(kind) for a in pair.arrays]


def _numbers(*shape: int, low: int = 1, high: int = 4) -> Any:
    return np.random.default_rng(0).integers(low, high, shape)


def _random() -> Iterator[Pair]:
    for n in (FEW, MANY):
        made: dict[str, tuple[Callable[[int], Any], Callable[[int], Any]]] = {
            "rand": (lambda n: eg.rand((n,)), torch.rand),
            "randn": (lambda n: eg.randn((n,)), torch.randn),
            "randn float64": (
                lambda n: eg.randn((n,), "float64"),
                lambda n: torch.randn(n, dtype=torch.float64),
            ),
            "randint": (lambda n: eg.randint(0, 99, (n,)), lambda n: torch.randint(0, 99, (n,))),
            "uniform": (
                lambda n: eg.uniform(-1, 1, (n,)),
                lambda n: torch.empty(n).uniform_(-1, 1),
            ),
            "bernoulli": (
                lambda n: eg.bernoulli(0.3, (n,)),
                lambda n: torch.empty(n).bernoulli_(0.3),
            ),
            "exponential": (
                lambda n: eg.exponential(1.0, (n,)),
                lambda n: torch.empty(n).exponential_(),
            ),
        }
        for name, (ours, theirs) in made.items():
            yield Pair(
                f"{name} {n}", lambda f=ours, n=n: f(n), lambda f=theirs, n=n: f(n), compiled=False
            )


def _casts() -> Iterator[Pair]:
    x = _numbers(1024, 1024, low=0, high=2)
    for cast in CASTS:
        source, to = cast.split()
        kind = getattr(torch, to)
        yield Pair(
            f"{source} to {to}",
            lambda x, to=to: x.astype(to),
            lambda x, kind=kind: x.to(kind),
            (x,),
            source,
        )


def _arithmetic() -> Iterator[Pair]:
    both: dict[str, Callable[..., Any]] = {
        "x + y": lambda x, y: x + y, "x * 2": lambda x, y: x * 2, "x < y": lambda x, y: x < y,
        "x // y": lambda x, y: x // y, "sum": lambda x, y: x.sum(), "sum(0)": lambda x, y: x.sum(0),
    }  # fmt: skip
    x, y = _numbers(1024, 1024), _numbers(1024, 1024)
    for dtype in ("int32", "int64", "uint8", "float16", "bfloat16", "float64"):
        for name, fn in both.items():
            yield Pair(f"{dtype} {name}", fn, fn, (x, y), dtype)
    for dtype in ("float16", "bfloat16"):
        yield Pair(f"{dtype} exp", eg.exp, torch.exp, (x,), dtype)
        yield Pair(f"{dtype} softmax", eg.softmax, lambda x: x.softmax(-1), (x,), dtype)
        yield Pair(
            f"{dtype} layer_norm",
            lambda x: eg.layer_norm(x, (1024,)),
            lambda x: torch.nn.functional.layer_norm(x, (1024,)),
            (x,),
            dtype,
        )


def _products() -> Iterator[Pair]:
    def product(x: Any, y: Any) -> Any:
        return x @ y

    for dtype in ("float32", "float64", "float16", "bfloat16", "int32", "int64"):
        for m, k, n in PRODUCTS:
            given = _numbers(m, k), _numbers(k, n)
            yield Pair(f"{dtype} ({m}, {k}) @ ({k}, {n})", product, product, given, dtype)
    for equation, shapes in EQUATIONS.items():
        yield Pair(
            equation,
            lambda *xs, e=equation: eg.einsum(e, *xs),
            lambda *xs, e=equation: torch.einsum(e, *xs),
            tuple(_numbers(*shape) for shape in shapes),
            "float32",
        )


def pairs() -> Iterator[Pair]:
    yield from _random()
    yield from _casts()
    yield from _arithmetic()
    yield from _products()

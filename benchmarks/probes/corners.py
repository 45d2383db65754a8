"""Small linear algebra, Fourier transforms and rows beside PyTorch, in one process on one thread.

`python -m benchmarks.probes.corners [PART] [--only WORDS]` prints a table: processor seconds,
the median of rounds in which both libraries take turns, on the same inputs. A backward is a whole
call: forward from a leaf, then the gradients of every result from given seeds.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

import everygrad as eg
from everygrad.backends import thread_pool

ROUNDS, ROUND_S, MOST_CALLS = 11, 2e-3, 500
ASKED = 1.2  # times PyTorch's


@dataclass(frozen=True)
class Case:
    """One call of both libraries on arrays."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arrays: tuple[Any, ...]
    backward: bool = False


@dataclass(frozen=True)
class Timed:
    name: str
    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs


# --- what is called ------------------------------------------------------------------------------


def _random(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    drawn = np.random.default_rng(seed).standard_normal
    out = drawn(shape)
    if np.dtype(dtype).kind == "c":
        out = out + 1j * drawn(shape)
    return np.asarray(out, dtype)


def _positive(*shape: int) -> Any:
    x = _random(*shape)
    return x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1], dtype=x.dtype)


def lstsq() -> Iterator[Case]:
    """PyTorch's CPU driver by default; its result is four tensors, two of them often empty."""
    shapes = (
        ((4, 2), 1), ((8, 4), 1), ((16, 16), 4), ((64, 8), 1), ((8, 64), 2), ((64, 64), 8),
        ((256, 32), 4), ((16, 8, 4), 2), ((64, 32, 8), 1), ((1000, 10), 1),
    )  # fmt: skip
    for shape, wide in shapes:
        a, b = _random(*shape), _random(*shape[:-1], wide, seed=1)
        for backward in (False, True):
            yield Case(
                f"lstsq {shape}, {wide}",
                lambda a, b: eg.linalg.lstsq(a, b)[0],
                lambda a, b: torch.linalg.lstsq(a, b)[0],
                (a, b),
                backward,
            )


def fft() -> Iterator[Case]:
    shapes: tuple[tuple[int, ...], ...] = (
        (16,), (64,), (256,), (1024,), (4096,), (65536,), (101,), (1009,), (1000,),
        (32, 64), (64, 1024), (100, 101),
    )  # fmt: skip
    for dtype in ("complex64", "complex128"):
        for shape in shapes:
            x = _random(*shape, dtype=dtype)
            yield Case(f"fft {dtype} {shape}", eg.fft.fft, torch.fft.fft, (x,))
    for shape in ((16, 16), (64, 64), (256, 256), (8, 32, 32)):
        x = _random(*shape, dtype="complex64")
        yield Case(f"fft2 complex64 {shape}", eg.fft.fft2, torch.fft.fft2, (x,))
        yield Case(f"ifft2 complex64 {shape}", eg.fft.ifft2, torch.fft.ifft2, (x,))
    for shape in shapes:
        x = _random(*shape)
        yield Case(f"rfft float32 {shape}", eg.fft.rfft, torch.fft.rfft, (x,))
        yield Case(f"irfft complex64 {shape}", eg.fft.irfft, torch.fft.irfft, (_half(x),))
    for shape in ((64,), (1024,), (64, 1024)):
        x = _random(*shape, dtype="complex64")
        yield Case(f"ifft complex64 {shape}", eg.fft.ifft, torch.fft.ifft, (x,))
        yield Case(f"fft complex64 {shape}", eg.fft.fft, torch.fft.fft, (x,), backward=True)
        x = _random(*shape)
        yield Case(f"fft float32 {shape}", eg.fft.fft, torch.fft.fft, (x,))
        yield Case(f"rfft float32 {shape}", eg.fft.rfft, torch.fft.rfft, (x,), backward=True)


def _half(x: Any) -> Any:
    return np.fft.rfft(x).astype(np.complex64)


def matrices() -> Iterator[Case]:
    """Factorisations and what is made of them, and their backwards."""
    sizes = ((2, 2), (4, 4), (8, 8), (16, 16), (32, 32), (64, 64), (32, 4, 4), (64, 8, 8))
    names = ("cholesky", "qr", "eigh", "svd", "inv", "det", "slogdet", "solve")
    for name in names:
        ours, theirs = getattr(eg.linalg, name), getattr(torch.linalg, name)
        if name == "svd":
            ours, theirs = _thin(ours), _thin(theirs)
        for shape in sizes:
            arrays = (_positive(*shape), _random(*shape, seed=1))[: 2 if name == "solve" else 1]
            for backward in (False, True):
                yield Case(f"{name} {shape}", ours, theirs, arrays, backward)


def _thin(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: fn(x, full_matrices=False)


def rows() -> Iterator[Case]:
    f = torch.nn.functional
    for shape in ((8, 16), (32, 64), (128, 128), (64, 1000)):
        x, w, b = _random(*shape), _random(shape[-1], seed=1), _random(shape[-1], seed=2)
        n = shape[-1:]
        for backward in (False, True):
            yield Case(
                f"softmax {shape}",
                lambda x: eg.softmax(x, axis=-1),
                lambda x: torch.softmax(x, -1),
                (x,),
                backward,
            )
            yield Case(
                f"log_softmax {shape}",
                lambda x: eg.log_softmax(x, axis=-1),
                lambda x: torch.log_softmax(x, -1),
                (x,),
                backward,
            )
            yield Case(
                f"layer_norm {shape}",
                lambda x, w, b, n=n: eg.layer_norm(x, n, w, b),
                lambda x, w, b, n=n: f.layer_norm(x, n, w, b),
                (x, w, b),
                backward,
            )
            yield Case(
                f"rms_norm {shape}",
                lambda x, w, n=n: eg.rms_norm(x, n, w),
                lambda x, w, n=n: f.rms_norm(x, n, w),
                (x, w),
                backward,
            )


PARTS = {"lstsq": lstsq, "fft": fft, "matrices": matrices, "rows": rows}


# --- how it is timed -----------------------------------------------------------------------------


def _results(out: Any) -> list[Any]:
    outs = out if isinstance(out, list | tuple) else [out]
    return [o for o in outs if o.requires_grad]


def _step(fn: Callable[..., Any], grad: Any, xs: Sequence[Any], seeds: Sequence[Any]) -> Any:
    return grad(_results(fn(*xs)), xs, seeds)


def ways(case: Case) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same call of ours and of PyTorch."""
    xs = [eg.tensor(a, requires_grad=case.backward) for a in case.arrays]
    ts = [torch.tensor(a, requires_grad=case.backward) for a in case.arrays]
    if not case.backward:
        return (lambda: case.ours(*xs)), (lambda: case.theirs(*ts))
    outs = _results(case.theirs(*ts))
    drawn = [_random(*o.shape, dtype=str(o.dtype)[6:], seed=9) for o in outs]
    if case.name.startswith("svd"):  # a gradient that no change of signs sees
        drawn = [a * 0 if a.ndim > 1 and a.shape[-1] != outs[1].shape[-1] else a for a in drawn]
    gs, g_ts = [eg.tensor(a) for a in drawn], [torch.tensor(a) for a in drawn]
    return (
        lambda: _step(case.ours, eg.autograd.grad, xs, gs),
        lambda: _step(case.theirs, torch.autograd.grad, ts, g_ts),
    )


def _batch(call: Callable[[], Any], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def timed(case: Case) -> Timed:
    both = ways(case)
    counts = []
    for call in both:
        _batch(call, 3)
        once = min(_batch(call, 1) for _ in range(3))
        counts.append(max(1, min(MOST_CALLS, int(ROUND_S / once))))
    taken: list[list[float]] = [[], []]
    gc.collect()
    for _ in range(ROUNDS):
        for call, count, found in zip(both, counts, taken, strict=True):
            found.append(_batch(call, count))
    name = f"{case.name}{', backward' if case.backward else ''}"
    return Timed(name, median(taken[0]), median(taken[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all unless given")
    parser.add_argument("--only", default="", help="cases whose names have these words")
    args = parser.parse_args()
    torch.set_num_threads(1)
    thread_pool.set_num_threads(1)
    found = []
    for part in args.parts or PARTS:
        for case in PARTS[part]():
            whole = f"{case.name}{', backward' if case.backward else ''}"
            if args.only in whole:
                one = timed(case)
                found.append(one)
                mark = "" if one.ratio <= ASKED else " *"
                print(
                    f"{one.name:44} {one.ours * 1e6:9.1f} {one.theirs * 1e6:9.1f} us "
                    f"{one.ratio:6.2f}{mark}",
                    flush=True,
                )
    over = sum(t.ratio > ASKED for t in found)
    print(f"{len(found)} cases, {over} over {ASKED}; median {median(t.ratio for t in found):.2f}")


if __name__ == "__main__":
    main()

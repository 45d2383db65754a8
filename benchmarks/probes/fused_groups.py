"""Fused groups on CUDA: the kernels in use, and those of the lowering that all devices share.

`python -m benchmarks.probes.fused_groups` compiles a list of functions both ways on a GPU, compares
their results, times their replays in turns and prints a table: it says whether
`backends/cuda/fused` can go. Microseconds a call, the least of all rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import everygrad as eg
from everygrad import nn
from everygrad._jit.pipeline import prepared
from everygrad.backends import base
from everygrad.backends.cuda.graph.replay import Replay
from everygrad.backends.cuda.kernels.launch_kernel import machine
from everygrad.backends.cuda.source.kernel_render import render
from everygrad.codegen.groups.group_plan import kernels_of
from everygrad.compiler.groups import Group
from everygrad.compiler.ir import Value
from everygrad.dtypes import DType

F = nn.functional
ROUNDS, CALLS = 30, 50
Form = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


class LoweredReplay(Replay):
    """A compiled function whose groups are lowered as on every device."""

    def record_group(self, group: Group, stored: set[Value], exact: set[Value]) -> None:
        rec = self.recorder
        partials: dict[DType, Any] = {}

        def array(b: Value | DType, size: int, is_written: bool) -> Any:
            if isinstance(b, DType):
                if b not in partials:
                    partials[b] = rec.empty((size,), b)
                return partials[b]
            if is_written:
                self.made[b] = rec.empty(b.shape, b.dtype)
            return self.base(b)

        for made in kernels_of(group, stored, machine(self.dev.multiprocessors), exact):
            if all(isinstance(b, Value) for b in made.reads):
                partials.clear()  # those of the kernel before
            bound = [*made.reads, *made.writes]
            buffers = zip(bound, made.kernel.buffers, strict=True)
            arrays = [array(b, buffer.size, buffer.written) for b, buffer in buffers]
            rec.gpu.launch(rec.gpu.prepare(render(made.kernel)), *(a.ptr for a in arrays))


def _norm(x: Any, w: Any, b: Any) -> Any:
    return F.layer_norm(x, (x.shape[-1],), w, b)


def _chain(x: Any) -> Any:
    for _ in range(8):
        x = eg.tanh(x) * 1.5 + 0.1
    return x


def _halves(x: Any) -> Any:
    return F.softmax(x.astype("bfloat16") * 2.0, axis=-1)


_NORM = ((4096, 1024), (1024,), (1024,))
FORMS: dict[str, Form] = {
    "chain": (_chain, ((4096, 4096),)),
    "broadcast": (lambda x, r, c: x * r + c, ((4096, 4096), (4096,), (4096, 1))),
    "odd elements": (lambda x, y: eg.exp(x) * y, ((4097, 4095), (4097, 4095))),
    "transposed": (lambda x, y: x.mT * 2.0 + y, ((4096, 4096), (4096, 4096))),
    "short rows": (lambda x: F.softmax(x, axis=-1), ((65536, 64),)),
    "rows": (lambda x: F.softmax(x, axis=-1), ((8192, 1024),)),
    "long rows": (lambda x: F.softmax(x, axis=-1), ((4096, 8192),)),
    "vocabulary": (lambda x: F.log_softmax(x, axis=-1), ((2048, 50257),)),
    "half rows": (_halves, ((8192, 1024),)),
    "softmax gradient": (
        eg.grad(lambda x: (F.softmax(x, axis=-1) ** 2).sum()),
        ((8192, 1024),),
    ),
    "norm": (_norm, _NORM),
    "norm gradients": (
        eg.grad(lambda x, w, b: (_norm(x, w, b) ** 2).mean(), (0, 1, 2)),
        _NORM,
    ),
    "bias gradient": (lambda x: (x * 2.0).sum(axis=0), ((16384, 1024),)),
    "total": (lambda x: (x * x).sum(), ((4096, 4096),)),
    "few rows": (lambda x: eg.exp(x).sum(axis=1), ((8, 1 << 20),)),
    "channels": (lambda x: (x * x).sum(axis=(0, 2, 3)), ((64, 64, 56, 56),)),
    "gelu loss": (lambda x: (F.gelu(x).mean(), eg.grad(lambda x: F.gelu(x).mean())(x)),
                  ((8192, 1024),)),
}  # fmt: skip


def replays(form: Form, device: str) -> tuple[list[Any], list[Any]]:
    """The function compiled both ways, and its inputs."""
    fn, shapes = form
    rng = np.random.default_rng(0)
    given = [eg.tensor(rng.standard_normal(s).astype(np.float32), device=device) for s in shapes]
    dev = base.get(device)
    graph = prepared(eg.jit(fn).lower(*given).graph, device)
    return [Replay(dev, graph), LoweredReplay(dev, graph)], [t._data for t in given]  # type: ignore[arg-type]  # a CUDA device


def timed(replay: Any, given: list[Any], dev: Any) -> float:
    dev.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        replay.run_on(given)
    dev.synchronize()
    return (time.perf_counter() - start) / CALLS * 1e6


def error(one: list[Any], other: list[Any]) -> float:
    """The largest difference, relative to the largest number."""
    found = 0.0
    for a, b in zip(one, other, strict=True):
        x, y = (np.asarray(base.get("cuda").to_numpy(v), np.float64) for v in (a, b))
        found = max(found, float(np.abs(x - y).max() / max(1e-6, np.abs(x).max())))
    return found


def main() -> None:
    dev: Any = base.get("cuda")
    print("| group | in use, us | shared lowering, us | ratio | error |\n|---|---:|---:|---:|---:|")
    for name, form in FORMS.items():
        both, given = replays(form, "cuda")
        wrong = error(*[r.run_on(given) for r in both])
        best = [float("inf")] * 2
        for turn in range(ROUNDS):
            for k in (0, 1) if turn % 2 else (1, 0):
                best[k] = min(best[k], timed(both[k], given, dev))
        old, new = best
        print(f"| {name} | {old:.1f} | {new:.1f} | {new / old:.3f} | {wrong:.1e} |", flush=True)


if __name__ == "__main__":
    main()

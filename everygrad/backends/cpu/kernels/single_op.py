"""Runs a large eager op through the compiler: a graph of one op, planned and run as any other.

It serves reductions, and copies that NumPy does on one core. The code is specific to the shape, as
for large matrix products: the first call on a new shape compiles for about 10 ms, or loads the code
from the disk cache. Elementwise ops and rows have kernels for all shapes (`elementwise`,
`row_kernels`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from everygrad.backends.cpu import lazy_native
from everygrad.compiler.facts import OpFacts
from everygrad.compiler.ir import Graph
from everygrad.compiler.thresholds import edge
from everygrad.core.context import records
from everygrad.core.shapes import Shape
from everygrad.dtypes import FROM_NP

# elements from which a compiled kernel pays
LARGE = edge(__name__, "LARGE", 1 << 18, "elements")
_MAX_CACHED = 256  # compiled ops that are cached, and
_MAX_BYTES = 1 << 26  # of the memory that they hold
_replays: dict[Any, Any] = {}
_lock = threading.Lock()


# contiguous, aligned and writable, as nearly all arrays are
_is_plain: Callable[[Any], bool] = attrgetter("flags.carray")


def as_contiguous(*arrays: Any) -> tuple[Any, ...]:
    """The arrays as C-contiguous and aligned ones, copied where they are not."""
    return tuple([a if _is_plain(a) else np.require(a, requirements=("C", "A")) for a in arrays])


def serves(arrays: Sequence[Any]) -> bool:
    """Whether these arrays are large enough, real, contiguous and aligned."""
    size = 0
    for a in arrays:
        if a.dtype.kind == "c" or not a.flags.c_contiguous or not a.flags.aligned:
            return False
        size += a.size
    return size >= LARGE


def reduces(x: Any, axes: Shape) -> bool:
    """Whether x is served and has more than one element along the axes: no kernel reduces a single
    element."""
    return serves((x,)) and any(x.shape[a] > 1 for a in axes)


def run(op: OpFacts, arrays: Sequence[Any], params: dict[str, Any]) -> Any:
    """The op on arrays that are served."""
    key = (op.name, *params.items(), *[(a.dtype, a.shape) for a in arrays])
    with _lock:
        replay = _replays.pop(key, None)
        if replay is None:
            graph = Graph()
            inputs = [graph.input(a.shape, FROM_NP[a.dtype]) for a in arrays]
            graph.outputs = [graph.call(op, inputs, params)]
            replay = lazy_native.compiled(graph, ())
            while len(_replays) >= _MAX_CACHED or (
                _replays and _retained_bytes(replay) > _MAX_BYTES
            ):
                del _replays[next(iter(_replays))]
        _replays[key] = replay  # the most recent one is last
    return replay.run_on(arrays)[0]


def _retained_bytes(more: Any) -> int:
    return sum(replay.program.arena for replay in (more, *_replays.values()))


def call(name: str, *arrays: Any, **params: Any) -> Any:
    """The op of this name on arrays that are served."""
    return run(records.by_name[name], arrays, params)


def compiled(name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that calls `usual` on small arrays and compiled code on large ones."""

    def kernel(*arrays: Any, **params: Any) -> Any:
        return call(name, *arrays, **params) if serves(arrays) else usual(*arrays, **params)

    return kernel

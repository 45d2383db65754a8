"""Whether a program gives the same in every way; what differs if not."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from devtools.fuzz.program import Program, coarsest
from devtools.fuzz.ways import DEVICES, WAYS, Case, Pair

# by the coarsest dtype in the program: the error allowed in values, in gradients, in second order
TOLERANCE = {
    "float64": (0.0, 1e-10, 1e-9, 1e-7),
    "float32": (0.0, 3e-4, 3e-3, 3e-2),
    "float16": (0.0, 5e-2, 1e-1, 1.0),
    "bfloat16": (0.0, 1e-1, 3e-1, 1.0),
}
# ways that repeat or square rounding until nothing can be told from it
TOO_COARSE = {"bfloat16": {"second", "jvp", "sgd", "vmap", "inside"}, "float32": {"sgd"}}


@dataclass(frozen=True)
class Failure:
    """One way in which a program differs. `error` is in units of what is allowed."""

    way: str
    what: str
    kind: str  # "difference", "shape", or the exception at the root, and the function it is from
    error: float
    detail: str

    def same_as(self, other: Failure) -> bool:
        """Whether a smaller program fails as the larger one did."""
        if (self.way, self.kind) != (other.way, other.kind):
            return False
        return self.kind != "difference" or self.error >= min(other.error * 1e-2, 1e3)

    def __str__(self) -> str:
        return f"{self.way}, {self.what}: {self.detail}"


def wide(array: Any) -> Any:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def error_of(got: Any, want: Any, scale: float) -> float:
    """The largest difference, relative to `scale`; infinite where one is NaN alone."""
    if not want.size:
        return 0.0
    a, b = wide(got), wide(want)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
    apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, apart)
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max()) / scale


def compared(way: str, pair: Pair, allowed: tuple[float, ...]) -> Failure | None:
    """What differs in one pair."""
    if len(pair.got) != len(pair.want):
        return Failure(
            way, pair.what, "shape", 0.0, f"{len(pair.got)} and {len(pair.want)} results"
        )
    sizes = [np.abs(wide(w)[np.isfinite(wide(w))]).max(initial=0.0) for w in pair.want]
    scale = max(1.0, *sizes) if sizes else 1.0
    for k, (got, want) in enumerate(zip(pair.got, pair.want, strict=True)):
        if got.shape != want.shape or got.dtype != want.dtype:
            types = f"result {k}: {got.dtype}{got.shape}, should be {want.dtype}{want.shape}"
            return Failure(way, pair.what, "shape", 0.0, types)
        if pair.exact:
            if got.tobytes() != want.tobytes():
                apart = error_of(got, want, scale)
                text = f"result {k}: other bits, by {apart:.3g}"
                return Failure(way, pair.what, "difference", apart / allowed[1], text)
            continue
        apart = error_of(got, want, scale)
        if want.dtype.kind in "iub":
            bad = apart > 0
        else:
            bad = apart > allowed[pair.order]
        if bad:
            shown = f"result {k}: {_short(got)}, should be {_short(want)} (by {apart:.3g})"
            return Failure(way, pair.what, "difference", apart / allowed[pair.order], shown)
    return None


def _short(array: Any) -> str:
    return np.array2string(array.reshape(-1)[:6], precision=6, separator=", ")


def case_of(program: Program, device: str = "cpu") -> Case:
    """The program on a device, as the ways take it."""
    f, args = program.function(device), program.tensors(device)
    return Case(f, args, lambda name: case_of(program, name), device)


def tried(program: Program, way: str, allowed: tuple[float, ...]) -> Failure | None:
    """What differs in one way, or the exception it ends with."""
    what = "at the start"
    try:
        for pair in {**WAYS, **DEVICES}[way](case_of(program)):
            what = pair.what
            found = compared(way, pair, allowed)
            if found is not None:
                return found
    except Exception as error:
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        last = traceback.extract_tb(root.__traceback__)[-1]
        where = f"{last.filename.rpartition('everygrad/')[2]}, {last.name}"
        kind = f"{type(root).__name__} ({where})"
        detail = f"{type(error).__name__}: {error} ({where}:{last.lineno})"
        return Failure(way, f"after {what!r}", kind, 0.0, detail)
    return None


def ways_for(program: Program) -> tuple[list[str], tuple[float, ...]]:
    """The ways that can be told apart from rounding, and how exact they are."""
    try:
        dtype = coarsest(list(program.values().values()))
    except Exception:  # the eager way will say which
        return ["eager"], TOLERANCE["float64"]
    ways = [w for w in WAYS if w not in TOO_COARSE.get(dtype, ())]
    return ways, TOLERANCE[dtype]


def check(program: Program, ways: Iterable[str] = WAYS) -> list[Failure]:
    """What differs, one failure a way."""
    possible, allowed = ways_for(program)
    found = [tried(program, w, allowed) for w in ways if w in possible or w in DEVICES]
    return [f for f in found if f is not None]

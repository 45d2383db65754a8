"""What tests over the registry share: samples as tensors, references, tolerances, differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np

import everygrad as eg
from everygrad import dtypes
from everygrad.backends import base
from everygrad.ops.record.lazy_index import OPS
from everygrad.ops.record.spec import REGISTRY, Op, Sample

TOLERANCE = {"float64": 1e-11, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2,
             "complex128": 1e-11, "complex64": 1e-5}  # fmt: skip

# devices without float64 and complex128: inputs are rounded to float32 and complex64, and what is
# compared to many digits elsewhere is compared to these
NARROW = {"webgpu": 2e-5}
# ops that are hundreds of small kernels where there is no library: one sample shows as much as four
_MODULES = ("decompositions", "singular", "spectral", "solving", "matrixfunctions", "ctc")
UNROLLED = {name for module in _MODULES for name in OPS.get(module, ())}

WITH_SAMPLES = [name for name, op in REGISTRY.items() if next(iter(op.samples()), None)]
BY_FAMILY = {
    family: [n for n in WITH_SAMPLES if REGISTRY[n].family == family]
    for family in ("composite", "movement", "elementwise", "reduction", "kernel")
}


def is_float(value: Any) -> bool:
    """Whether a value of a sample stands for a tensor that has derivatives."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "fcV"


def mapped(value: Any, fn: Callable[[Any], Any]) -> Any:
    """`value` with `fn` of every NumPy array in it; lists and tuples are gone through."""
    if isinstance(value, np.ndarray):
        return fn(value)
    if type(value) in (list, tuple):
        return type(value)(mapped(v, fn) for v in value)
    return value


def map_sample(sample: Sample, fn: Callable[[Any], Any]) -> Sample:
    return Sample(
        mapped(sample.args, fn), {name: mapped(v, fn) for name, v in sample.kwargs.items()}
    )


def is_narrow(device: str) -> bool:
    """Whether a device has no number wider than float32."""
    return device.split(":")[0] in NARROW


_NARROWER = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}


def fitted(value: Any, device: str) -> Any:
    """An array in a dtype the device has."""
    array = np.asarray(value)
    return array.astype(_NARROWER.get(array.dtype, array.dtype)) if is_narrow(device) else array


def function_of(op: Op) -> Callable[..., Any]:
    """The function that stands for the op: its own, or one of what is determined in its results."""
    return op.notes.get("tested_as") or op.function


def is_flat(op: Op) -> bool:
    """Whether the result never carries a derivative."""
    return op.constant or bool(op.notes.get("flat"))


def is_absent(op: Op, device: str) -> bool:
    """Whether the device refuses the op by name."""
    return device.split(":")[0] in op.notes.get("absent", {})


def samples_of(op: Op, device: str) -> Iterator[Sample]:
    """The op's samples in dtypes the device has; none only of an op that it refuses by name."""
    if is_absent(op, device):
        return iter(())
    found = [
        map_sample(one, lambda a: fitted(a, device))
        for one in op.samples()
        if not (is_narrow(device) and _wants_wide(one))  # test_device.py: refused by name
    ]
    assert found, f"{op.name} has no sample for {device}: a test of it would check nothing"
    return iter(found[:1] if is_narrow(device) and op.name in UNROLLED else found)


def _wants_wide(sample: Sample) -> bool:
    given = [v for v in (*sample.args, *sample.kwargs.values()) if isinstance(v, str)]
    return bool({"float64", "complex128"} & {*given})


def few(samples: Iterable[Sample], device: str) -> Iterator[Sample]:
    """Of a slow device only the first: for what the engine does alike on all, whatever it runs."""
    return islice(samples, 1) if is_narrow(device) else iter(samples)


def few_samples_of(op: Op, device: str) -> Iterator[Sample]:
    return few(samples_of(op, device), device)


def widened(sample: Sample) -> Sample:
    """`sample` with float32 arrays in float64, for differences."""
    return map_sample(sample, lambda a: a.astype(np.float64) if a.dtype == np.float32 else a)


def referee(device: str) -> str:
    """A device that has float64, to compare with."""
    return "cpu" if is_narrow(device) else device


def allowed(tolerance: float, *got: Any) -> float:
    """The tolerance that can be asked of results on their devices; 0 stays exact."""
    devices = [x.device for x in got if isinstance(x, eg.Tensor)]
    floors = [NARROW[d.split(":")[0]] for d in devices if is_narrow(d)]
    return max([tolerance, *floors]) if tolerance else tolerance


def arrays_of(sample: Sample) -> list[Any]:
    """Every NumPy array of a sample, in order."""
    found: list[Any] = []
    map_sample(sample, found.append)
    return found


def to_tensor(device: str, grad: bool = False) -> Callable[[Any], Any]:
    """Arrays to tensors; those that can have a derivative ask for one if `grad`."""
    return lambda a: eg.tensor(a, device=device, requires_grad=grad and is_float(a))


def with_floats(sample: Sample, fn: Callable[[Any], Any]) -> Sample:
    """`sample` with `fn` of its floating-point arrays, the others as they are."""
    return map_sample(sample, lambda a: fn(a) if is_float(a) else a)


def in_dtype(sample: Sample, dtype: Any) -> Sample:
    """`sample` with its floating-point arrays rounded to `dtype`."""
    return with_floats(sample, lambda a: a.astype(dtypes.as_dtype(dtype).np))


def leaves_of(sample: Sample) -> list[Any]:
    """The tensors of a sample (already made) that require grad."""
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, eg.Tensor):
            if value.requires_grad:
                found.append(value)
        elif type(value) in (list, tuple):
            for v in value:
                look(v)

    look(sample.args)
    look(tuple(sample.kwargs.values()))
    return found


def call(fn: Callable[..., Any], sample: Sample) -> list[Any]:
    """The results as a list, of one element for most ops."""
    out = fn(*sample.args, **sample.kwargs)
    return list(out) if isinstance(out, list | tuple) else [out]


def reference(op: Op) -> Callable[..., Any]:
    """The op's reference, found by name where the record gives a name."""
    found: Any = op.reference
    if isinstance(found, str):
        module, name = found.split(":")
        found = getattr(import_module(module), name)
    assert callable(found), f"{op.name} has samples but no reference"
    return found  # type: ignore[no-any-return]


def refer(op: Op, sample: Sample) -> list[Any]:
    """The reference's results, without NumPy's warnings."""
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in call(reference(op), sample)]


def values(x: Any) -> Any:
    """A tensor's values as a NumPy array; half floats as they are."""
    return x.detach().to("cpu").numpy() if isinstance(x, eg.Tensor) else np.asarray(x)


def wide(x: Any) -> Any:
    """Values in float64 or complex128, whatever they were in."""
    array = values(x)
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def close(got: Any, want: Any, tolerance: float, what: str = "") -> None:
    """Equal shapes, and values equal within `tolerance` of the largest one."""
    tolerance = allowed(tolerance, got, want)
    got, want = wide(got), wide(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, should be {want.shape}"
    finite = np.abs(want[np.isfinite(want)])
    scale = max(1.0, float(finite.max()) if finite.size else 1.0)
    np.testing.assert_allclose(
        got, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True, err_msg=what
    )


def all_close(got: list[Any], want: list[Any], tolerance: float, what: str = "") -> None:
    assert len(got) == len(want), f"{what}: {len(got)} results, should be {len(want)}"
    for g, w in zip(got, want, strict=True):
        close(g, w, tolerance, what)


def directions(outs: list[Any], seed: int = 0) -> list[Any]:
    """A random gradient for each result."""
    rng = np.random.default_rng(seed)
    made = []
    for out in outs:
        v = rng.uniform(-1, 1, out.shape)
        if np.dtype(values(out).dtype).kind == "c":
            v = v + 1j * rng.uniform(-1, 1, out.shape)
        made.append(v)
    return made


def gradients(
    fn: Callable[..., Any], sample: Sample, device: str, vs: list[Any] | None = None
) -> tuple[list[Any], list[Any]]:
    """The results, and the gradient of <results, vs> for each floating-point input."""
    given = map_sample(sample, to_tensor(device, grad=True))
    leaves = leaves_of(given)
    outs = call(fn, given)
    vs = directions(outs) if vs is None else vs
    seeds = [eg.tensor(v, dtype=o.dtype, device=o.device) for o, v in zip(outs, vs, strict=True)]
    return outs, list(eg.autograd.grad(outs, leaves, seeds))


def replaced(sample: Sample, floats: list[Any]) -> Sample:
    """`sample` with its floating-point arrays exchanged for these, in order."""
    supply = iter(floats)
    return with_floats(sample, lambda a: next(supply))


def difference_gradients(
    fn: Callable[[Sample], list[Any]], sample: Sample, vs: list[Any], step: float = 1e-6
) -> list[Any]:
    """Central differences of <fn(sample), vs> in every element of every floating-point input."""
    sample = widened(sample)

    def loss(s: Sample) -> float:
        return sum(float(np.sum(np.real(np.conj(v) * o))) for v, o in zip(vs, fn(s), strict=True))

    floats = [a for a in arrays_of(sample) if is_float(a)]
    found = []
    for which, array in enumerate(floats):
        slope = np.zeros(array.shape)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in floats]
                moved[which][place] += sign * step
                ends.append(loss(replaced(sample, moved)))
            slope[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


@contextmanager
def native_threshold(value: int) -> Iterator[None]:
    """Everything above this many elements is compiled."""
    old = eg.config.native_threshold
    eg.config.native_threshold = value
    try:
        yield
    finally:
        eg.config.native_threshold = old


@contextmanager
def without_kernel(device: str, name: str) -> Iterator[None]:
    """The device uses the portable definition of an op it has a kernel for."""
    kernels = base.get(device).kernels
    kernel = kernels.pop(name)
    try:
        yield
    finally:
        kernels[name] = kernel

"""The interface of a device, and the registry of devices by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from everygrad.compiler.facts import OpFacts
from everygrad.core.context import intercepted, tracing
from everygrad.core.protocols import Compiled, UpdateRule
from everygrad.core.shapes import Shape
from everygrad.errors import DeviceError

if TYPE_CHECKING:
    from everygrad.compiler.ir import Graph


class Pending(Protocol):
    """Arrays on their way to the CPU."""

    def result(self) -> list[Any]:
        """The values as NumPy arrays, not to be written to; waits for them where it must."""


class Ready:
    """Arrays that have already arrived."""

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def result(self) -> list[Any]:
        return self._arrays


class Uploads:
    """Moves NumPy arrays to a device ahead of their use. A backend that can do so beside its other
    work overrides this; one thread calls `put` and `sent`, and the one that uses the arrays calls
    `arrived` first."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def put(self, array: Any) -> Any:
        """A payload with these values, once they have arrived."""
        return self._backend.from_numpy(array)

    def sent(self) -> Any:
        """What stands for everything put so far."""
        return None

    def arrived(self, sent: Any) -> None:
        """Ops from now on see what was put before `sent`."""

    def close(self) -> None:
        """No more is put."""


class Backend:
    """One device: it computes ops from their records and moves data in and out.

    `run` gets elementwise ops, reductions and view ops, which it computes from what the op record
    says, and kernels that it has by name (`kernels`). An op without a kernel never reaches it: the
    dispatcher uses the op's portable definition, made of the others.
    """

    name: str
    kernels: Mapping[str, Callable[..., Any]]
    checks_later = False  # True: a bad index raises when a result is read, and nothing waits
    communicates = False  # True: compiled functions may hold ops that communicate
    overlaps = False  # True: the host carries these out while the device goes on

    def run(self, op: OpFacts, arrays: list[Any], params: dict[str, Any]) -> Any:
        """The result of `op` as a payload of this device; NotImplemented where the kernel does not
        take these arrays, and the op's portable definition must be used."""
        raise NotImplementedError

    def communicate(
        self, work: Callable[[int, int, int], None], x: Any, shape: Shape, dtype: Any
    ) -> Any:
        """What `work` makes of a payload, called with the device's stream and the addresses of the
        payload and of the result; of a device that communicates and does not overlap."""
        raise NotImplementedError

    def rewrite(self, op: OpFacts, t: Any, others: list[Any], params: dict[str, Any]) -> Any:
        """The payload of op(t, *others) in the memory of tensor `t`, or None: a backend may always
        decline, and must where anything but `t` can see that memory."""
        return None

    def rewrite_all(
        self, rule: UpdateRule, given: Sequence[list[Any]]
    ) -> Sequence[dict[int, Any] | None]:
        """Apply an optimiser's rule to the payloads of each parameter: for each, its new payloads
        by their places in the rule, or None where the backend has no better way than op by op. A
        payload that only its tensor and `given` hold may be written over."""
        return [None] * len(given)

    def direct(self, op: OpFacts, *arrays: Any) -> Any:
        """An elementwise op without parameters on arrays of which one is large, with as little
        around the kernel as there can be; None for arrays that this does not serve: asked of the
        CPU only, other devices' payloads have it."""
        raise NotImplementedError

    def small_rows(self, name: str, eps: float | None = None) -> Callable[..., Any]:
        """The kernel of an op along the last axis of small arrays, which gives None for arrays that
        it does not serve: asked of the CPU only."""
        raise NotImplementedError

    def norm_gradients(self, g: Any, x: Any, weight: Any, eps: float) -> Any:
        """The gradients of layer_norm along the last axis by x, weight and bias, all at once; None
        for arrays that this does not serve: asked of the CPU only."""
        raise NotImplementedError

    def rms_gradients(self, g: Any, x: Any, weight: Any, eps: float) -> Any:
        """The same of rms_norm, by x and weight."""
        raise NotImplementedError

    def warm_up(self) -> None:
        """Load what compiling needs: a function may be compiled here soon."""

    def compile(self, graph: Graph, donated: Any = (), remade: Any = ()) -> Compiled:
        """Something that computes the graph's outputs again and again: `put` inputs and `run`, or
        `run_on` them all; `run_apart`, where it can run its steps one by one for a profiler, with
        `steps()` and `step_bytes()` about them. `donated` pairs inputs with outputs that may
        reuse their memory; those outputs that are `remade` may do so even before the last call
        that can raise.
        """
        raise DeviceError(f"jit: the device {self.name!r} has no compiler; use the CPU")

    def synchronize(self) -> None:
        """Wait until everything submitted has run; does nothing where `run` itself waits."""

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float, float]:
        """What work() returns, when it began (by `perf_counter`) and the seconds it took here. A
        backend whose device has a clock may override this."""
        self.synchronize()
        start = perf_counter()
        out = work()
        self.synchronize()
        return out, start, perf_counter() - start

    def launches(self) -> AbstractContextManager[list[str]]:
        """The names of the kernels launched inside, where the device reports them."""
        return nullcontext([])

    def serves(self, op: OpFacts, given: Sequence[Any], params: dict[str, Any]) -> bool:
        """Whether the kernel of this op takes values of these shapes and dtypes; asked before a
        compiled function keeps the op whole."""
        return True

    def from_numpy(self, array: Any) -> Any:
        """A payload with the values of a NumPy array, which the caller promises not to change."""
        raise NotImplementedError

    def uploads(self) -> Uploads:
        """A way to move arrays here ahead of their use, while other work goes on."""
        return Uploads(self)

    def to_numpy(self, array: Any) -> Any:
        """The values as a NumPy array, not to be written to."""
        raise NotImplementedError

    def read_later(self, arrays: Sequence[Any]) -> Pending:
        """Begin to copy payloads to the CPU: many cost one wait, and meanwhile others may run."""
        return Ready([self.to_numpy(a) for a in arrays])

    @property
    def dlpack_device(self) -> tuple[int, int]:
        """The DLPack device on which payloads can be shared: by default the CPU, which is 1."""
        return (1, 0)

    def to_dlpack(self, array: Any, stream: Any, copy: bool | None) -> Any:
        """A payload as DLPack's capsule, where `dlpack_device` is not the CPU."""
        raise NotImplementedError

    def from_dlpack(self, x: Any, copy: bool) -> Any:
        """A payload of another library's array on this device; it shares the memory, unless a copy
        is asked for."""
        raise NotImplementedError

    def full(self, shape: Shape, value: Any, dtype: Any) -> Any:
        """A payload filled with one value."""
        raise NotImplementedError

    def arange(self, start: Any, count: int, step: Any, dtype: Any) -> Any:
        """start, start + step, ... as a payload."""
        raise NotImplementedError


_MODULES = {
    "cpu": "everygrad.backends.cpu.device",
    "null": "everygrad.backends.null.device",
    "reference": "everygrad.backends.reference.device",
    "webgpu": "everygrad.backends.webgpu.device",
    "cuda": "everygrad.backends.cuda.device",
}
_SEVERAL = ("webgpu", "cuda")  # kinds with several devices: "cuda:1", "webgpu:intel"
_OPEN: dict[str, Backend] = {}


def kind_of(name: str) -> str:
    """The kind of device that a name means: "cuda" for "cuda:1". Opens nothing."""
    kind = name.split(":")[0] if isinstance(name, str) else name
    if kind not in _MODULES or (kind != name and kind not in _SEVERAL):
        why = f"known devices are {', '.join(_MODULES)}"
        raise DeviceError(f"device {name!r} is not available: {why}")
    return kind


def opened() -> list[Backend]:
    """The backends used so far."""
    return list(dict.fromkeys(_OPEN.values()))


def open_now(name: str) -> Backend:
    """Open the backend called `name`. Tracers ignore what happens meanwhile: what drivers
    and their bindings do is not the traced function's doing."""
    kind = kind_of(name)
    module = import_module(_MODULES[kind])
    if kind not in _SEVERAL:
        found = module.open_device()
    else:
        own = module.canonical(name) if kind == "cuda" else name  # "cuda:0" is "cuda"
        found = _OPEN.get(own) or module.open_device(own)
        _OPEN[own] = found
    _OPEN[name] = found
    return found


def get(name: str) -> Backend:
    """The backend called `name`, opened on first use."""
    found = _OPEN.get(name) or open_now(name)
    if intercepted() and (tracer := tracing.get()) is not None:
        return tracer.backend(found)
    return found
